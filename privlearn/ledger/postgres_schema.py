"""The tables of ledgers in PostgreSQL, and who may do what with them.

Whoever writes a ledger needs to insert and to select, and nothing else: rows are never updated, and
never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateSchema, CreateTable

from privlearn.ledger.chain import MOST_BYTES

SCHEMA_NAME = "privlearn"
METADATA = MetaData(schema=SCHEMA_NAME)

EPOCHS = Table(
    "epochs",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("writer", Text, nullable=False),
    CheckConstraint("epoch >= 1"),
    comment="Every opening of a ledger; the last one of each may write.",
)
ENTRIES = Table(
    "entries",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("entry", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("nonce", Text, nullable=False),
    Column("member", Integer, nullable=False),
    UniqueConstraint("ledger", "nonce"),
    CheckConstraint("seq >= 0"),
    CheckConstraint(f"octet_length(entry) <= {MOST_BYTES}"),
    comment="The hash-chained entries; member is the process that wrote one.",
)
RELEASED = Table(
    "released",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    comment="Released values, by the digests that entries state.",
)
TABLES = (EPOCHS, ENTRIES, RELEASED)


def statements(*, writers: Sequence[str] = (), readers: Sequence[str] = ()) -> Iterator[str]:
    """SQL that makes the tables, once in a database, and lets roles use them."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    quoted = dialect.identifier_preparer.quote_identifier
    yield str(CreateSchema(SCHEMA_NAME).compile(dialect=dialect))
    for table in TABLES:
        yield str(CreateTable(table).compile(dialect=dialect)).strip()
        yield f"COMMENT ON TABLE {table.fullname} IS '{table.comment}'"
    tables = ", ".join(table.fullname for table in TABLES)
    for role in (*writers, *readers):
        may = "SELECT, INSERT" if role in writers else "SELECT"
        yield f"GRANT USAGE ON SCHEMA {SCHEMA_NAME} TO {quoted(role)}"
        yield f"GRANT {may} ON {tables} TO {quoted(role)}"


def script(*, writers: Sequence[str] = (), readers: Sequence[str] = ()) -> str:
    """As `statements`, for ``psql``: all of it is done, or nothing."""
    lines = [f"{each};" for each in statements(writers=writers, readers=readers)]
    return "\n\n".join(["BEGIN;", *lines, "COMMIT;"]) + "\n"
