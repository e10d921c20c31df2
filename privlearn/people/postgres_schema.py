"""The tables of registries of people in PostgreSQL, and who may do what with them.

Whoever keeps a registry inserts, selects and updates: what is known of a person is overwritten, as
forgetting means that.  Nothing is deleted.  The registry's key is not in these tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from privlearn.ledger.postgres_schema import METADATA, SCHEMA_NAME

REGISTRIES = Table(
    "registries",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("known_key", LargeBinary, nullable=False),
    Column("rule", Text, nullable=False),
    Column("serving_only", Boolean, nullable=False),
    Column("accountant", Text),
    Column("first", BigInteger),
    Column("stop", BigInteger),
    Column("clock", BigInteger),
    Column("kind", Text),
    Column("starts", ARRAY(BigInteger)),
    Column("calls", BigInteger, nullable=False),
    Column("people", BigInteger, nullable=False),
    comment="Registries of people: rule, clock and batches; known_key tells a wrong key.",
)
PEOPLE = Table(
    "people",
    METADATA,
    Column("registry", Text, primary_key=True),
    Column("hash", LargeBinary, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("used", Integer, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("within", Integer, nullable=False),
    UniqueConstraint("registry", "number"),
    CheckConstraint("octet_length(hash) = 16"),
    comment="Personal data: who used up how much of a rule, by the keyed hashes of their ids.",
)
TABLES = (REGISTRIES, PEOPLE)


def statements(*, keepers: Sequence[str] = ()) -> Iterator[str]:
    """SQL that makes the tables, beside those of ledgers, and lets roles keep registries."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in TABLES:
        # rows of persons may outlive their registry, and then stay; never the other way round, as
        # without its persons a registry would learn all of them anew
        made = CreateTable(table, if_not_exists=table is PEOPLE)
        yield str(made.compile(dialect=dialect)).strip()
        yield f"COMMENT ON TABLE {table.fullname} IS '{table.comment}'"
    quoted = dialect.identifier_preparer.quote_identifier
    for role in keepers:
        yield f"GRANT USAGE ON SCHEMA {SCHEMA_NAME} TO {quoted(role)}"
        for table in TABLES:
            yield f"GRANT SELECT, INSERT, UPDATE ON {table.fullname} TO {quoted(role)}"


def script(*, keepers: Sequence[str] = ()) -> str:
    """As `statements`, for ``psql``: all of it is done, or nothing."""
    lines = [f"{each};" for each in statements(keepers=keepers)]
    return "\n\n".join(["BEGIN;", *lines, "COMMIT;"]) + "\n"
