"""Whether the released values that a ledger names stand beside its entries, as they were."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import final

from privlearn.ledger.addresses import extra_needed
from privlearn.ledger.chain import Record
from privlearn.ledger.entries import RESUME
from privlearn.ledger.large_values import large_values
from privlearn.ledger.moments import real_path
from privlearn.ledger.reader import Look, is_export, read_at_once, readable
from privlearn.ledger.tail import values_in_tail
from privlearn.ledger.values import wrong_values


@final
class RecordedValues:
    """Notes the digests in records, and then looks for their values."""

    def __init__(self) -> None:
        self.digests: set[str] = set()
        """That were noted."""

    def note(self, records: Iterable[Record]) -> None:
        """Notes what values records name."""
        for record in records:
            said = record.body if record.body.get("entry") == "publish" else record.ext.get(RESUME)
            digest = said.get("digest") if isinstance(said, dict) else None
            if isinstance(digest, str):
                self.digests.add(digest)

    def problems_and_remarks(self, path: Path | str) -> tuple[list[str], list[str]]:
        """What is wrong with values that were changed, and what is to be said of missing ones.

        An export has none, and nothing is said of that.  A text is the address of a database.

        Raises:
            LedgerUnreadableError: it cannot be looked for them.
        """
        missing, changed = set(self.digests), list[str]()
        with readable(path):
            if not self.digests or (not isinstance(path, str) and is_export(path)):
                return [], []
            for found in _values_of(path, self.digests):
                missing.difference_update(digest for digest, _ in found)
                changed += wrong_values(found)
        remarks = []
        if missing:
            remarks.append(
                f"{len(missing)} of {len(self.digests)} released values that the entries name are "
                "missing from this file. No guarantee needs them; a learner cannot go on without."
            )
        return sorted(changed), remarks


def _values_of(path: Path | str, digests: set[str]) -> Iterator[Sequence[tuple[str, bytes]]]:
    """Those that stand there, by their digests, some at once."""
    if isinstance(path, str):
        with extra_needed():
            from privlearn.ledger.postgres_reading import read_values
        return ([each] for each in read_values(path, digests))
    return _kept(path, digests)


def _kept(path: Path, digests: set[str]) -> Iterator[Sequence[tuple[str, bytes]]]:
    ledger = real_path(path)
    for each in large_values(ledger, digests):
        yield [each]
    yield [(name, value) for name, value in values_in_tail(ledger) if name in digests]
    wanted = sorted(digests.intersection(read_at_once(path, _digests_in)))
    while wanted:
        found = read_at_once(path, partial(_some_values, wanted))
        yield found
        del wanted[: len(found)]


def _digests_in(look: Look) -> list[str]:
    tables = look.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    if ("released",) not in tables.fetchall():
        return []
    return [digest for (digest,) in look.connection.execute("SELECT digest FROM released")]


def _some_values(wanted: Sequence[str], look: Look) -> list[tuple[str, bytes]]:
    """The first values under these digests: at least one, and not many more bytes than `_BYTES`."""
    kept: list[tuple[str, bytes]] = []
    held = 0
    for digest in wanted:
        look.steps[0] = 0
        row = look.connection.execute("SELECT value FROM released WHERE digest = ?", (digest,))
        try:
            (value,) = row.fetchone()
        except sqlite3.DataError:  # larger than an entry may be, which it was not when written
            value = b""
        kept.append((digest, value))
        held += len(value)
        if held > _BYTES:
            break
    return kept


_BYTES = 4 * 2**20  # Of values that are held at once, beside the last
