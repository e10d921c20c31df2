"""Whether the released values that a ledger names stand beside its entries, as they were."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import final

from privlearn._sqlite_gate import SQLITE
from privlearn.entries import RESUME
from privlearn.errors import LedgerError
from privlearn.ledger.addresses import extra_needed
from privlearn.ledger.chain import Record
from privlearn.ledger.large_values import read_large
from privlearn.ledger.reader import is_export, opened_database
from privlearn.ledger.tail import values_in_tail
from privlearn.ledger.values import unpacked


@final
class RecordedValues:
    """Notes the digests in records, and then looks for their values."""

    def __init__(self) -> None:
        self.digests: set[str] = set()
        """That were noted."""

    def note(self, record: Record) -> None:
        """Notes what value a record names, if it names one."""
        said = record.body if record.body.get("entry") == "publish" else record.ext.get(RESUME)
        digest = said.get("digest") if isinstance(said, dict) else None
        if isinstance(digest, str):
            self.digests.add(digest)

    def problems_and_remarks(self, path: Path | str) -> tuple[list[str], list[str]]:
        """What is wrong with values that were changed, and what is to be said of missing ones.

        An export has none, and nothing is said of that.  A text is the address of a database.
        """
        if not self.digests or (not isinstance(path, str) and is_export(path)):
            return [], []
        missing, changed = set(self.digests), list[str]()
        for digest, data in _values_of(path, self.digests):
            missing.discard(digest)
            try:
                unpacked(data, digest)
            except LedgerError as error:
                changed.append(str(error))
        remarks = []
        if missing:
            remarks.append(
                f"{len(missing)} of {len(self.digests)} released values that the entries name are "
                "missing from this file. No guarantee needs them; a learner cannot go on without."
            )
        return sorted(changed), remarks


def _values_of(path: Path | str, digests: set[str]) -> Iterator[tuple[str, bytes]]:
    if isinstance(path, str):
        with extra_needed():
            from privlearn.ledger.postgres_reading import read_values
        return read_values(path, digests)
    return SQLITE.each(_kept(path, digests))


def _kept(path: Path, digests: set[str]) -> Iterator[tuple[str, bytes]]:
    for digest in digests:
        try:
            large = read_large(path.resolve(), digest)
        except LedgerError:
            large = b""  # which is no value
        if large is not None:
            yield digest, large
    yield from ((name, value) for name, value in values_in_tail(path.resolve()) if name in digests)
    with opened_database(path, vouched=True) as (connection, steps, _, _):
        rows = connection.execute("SELECT digest FROM released").fetchall()
        for (digest,) in rows:
            steps[0] = 0
            if digest not in digests:
                continue
            try:
                (found,) = connection.execute(
                    "SELECT value FROM released WHERE digest = ?", (digest,)
                ).fetchone()
            except sqlite3.DataError:  # larger than an entry may be, which it was not when written
                found = b""
            yield digest, found
