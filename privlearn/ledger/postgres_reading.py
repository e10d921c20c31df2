"""Reads ledgers in PostgreSQL of administrators who are not trusted, with the limits of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import bindparam, case, func, select

from privlearn.errors import LedgerUnreadableError
from privlearn.ledger.addresses import LEDGER
from privlearn.ledger.chain import MOST_BYTES, Record
from privlearn.ledger.postgres_schema import ENTRIES, EPOCHS, RELEASED
from privlearn.ledger.postgres_sessions import Address, Conflict, LostConnection, Session, engine_of
from privlearn.ledger.records import record_of

MOST_NAMES = 100
"""Ledgers of a database that are listed."""
MOST_VALUE_BYTES = 2**28
"""Of one released value."""
_PAGE, _PAGE_BYTES = 512, 64 * 2**20
"""Entries that are read at once, and bytes of them besides the last."""


def read_records(address: str | os.PathLike[str], begin: int) -> Iterator[Record]:
    """The entries of a ledger from a position on; nothing is written, and a standby will do.

    Raises:
        LedgerUnreadableError: there is none, or an entry is too large or of a wrong form.
        LedgerError: the server cannot be reached.
    """
    with _opened(address) as (session, name, ledger):
        for record, _ in records_from(session.read, name, ledger, begin):
            yield record


def read_values(address: str | os.PathLike[str], digests: set[str]) -> Iterator[tuple[str, bytes]]:
    """Values that stand there under some of these digests; of one that is too large no bytes.

    Raises:
        LedgerError: as `read_records`.
    """
    with _opened(address) as (session, _, ledger):
        for digest in sorted(digests):
            for row in session.read(VALUE, ledger=ledger, digest=digest):
                yield digest, b"" if row.value is None else bytes(row.value)


@contextmanager
def _opened(address: str | os.PathLike[str]) -> Iterator[tuple[Session, str, str]]:
    where = Address(address)
    try:
        with closing(Session(engine_of(where), str(where), pooled=True)) as session:
            yield session, str(where), _ledger_of(where, session)
    except (LostConnection, Conflict) as error:
        raise LedgerUnreadableError(f"{where}: the connection was lost: {error}") from None


def _ledger_of(where: Address, session: Session) -> str:
    found = where.ledger
    if found is not None and session.read(_NAMED, ledger=found):
        return found
    names = [row.ledger for row in session.read(NAMES)]
    if found is None and len(names) == 1:
        return str(names[0])
    there = ", ".join(map(repr, names)) or "none"
    raise LedgerUnreadableError(
        f"{where}: no such ledger; there are {there}"
        if found
        else f"{where}: say which ledger, …?{LEDGER}=name; there are {there}"
    )


def records_from(
    run: Callable[..., Sequence[Any]], name: str, ledger: str, begin: int
) -> Iterator[tuple[Record, int]]:
    """A ledger's entries with their members, read in pages of bounded size.

    Raises:
        LedgerUnreadableError: an entry is larger than it may be, or of a wrong form.
    """
    more = True
    while more:
        rows, size = run(PAGE, ledger=ledger, begin=begin), 0
        for row in rows:
            try:
                if row.entry is None:
                    raise ValueError(f"entry {row.seq} has more than {MOST_BYTES} bytes")
                data = row.entry.encode()
                record = record_of(row.seq, data, (row.hash or "").encode())
            except (ValueError, RecursionError) as error:
                raise LedgerUnreadableError(f"{name} is not a readable ledger: {error}") from None
            yield record, row.member
            size, begin = size + len(data), row.seq + 1
        more = len(rows) == _PAGE or size > _PAGE_BYTES


_PAGE_OF = (
    select(ENTRIES.c.seq, ENTRIES.c.entry, ENTRIES.c.hash, ENTRIES.c.member)
    .where(ENTRIES.c.ledger == bindparam("ledger"), ENTRIES.c.seq >= bindparam("begin"))
    .order_by(ENTRIES.c.seq)
    .limit(_PAGE)
    .subquery()
)
_BYTES = func.octet_length(_PAGE_OF.c.entry)
_SIZED = select(
    _PAGE_OF.c.seq,
    case((_BYTES <= MOST_BYTES, _PAGE_OF.c.entry)).label("entry"),
    case((func.octet_length(_PAGE_OF.c.hash) == 64, _PAGE_OF.c.hash)).label("hash"),
    _PAGE_OF.c.member,
    (func.sum(_BYTES).over(order_by=_PAGE_OF.c.seq) - _BYTES).label("before"),
).subquery()
PAGE = (
    select(_SIZED.c.seq, _SIZED.c.entry, _SIZED.c.hash, _SIZED.c.member)
    .where(_SIZED.c.before <= _PAGE_BYTES)
    .order_by(_SIZED.c.seq)
)
NAMES = select(EPOCHS.c.ledger).distinct().order_by(EPOCHS.c.ledger).limit(MOST_NAMES)
_NAMED = select(EPOCHS.c.ledger).where(EPOCHS.c.ledger == bindparam("ledger")).limit(1)
VALUE = select(
    case((func.octet_length(RELEASED.c.value) <= MOST_VALUE_BYTES, RELEASED.c.value)).label("value")
).where(RELEASED.c.ledger == bindparam("ledger"), RELEASED.c.digest == bindparam("digest"))
