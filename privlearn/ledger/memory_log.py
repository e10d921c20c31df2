"""A ledger in memory, which ends with its process."""

from __future__ import annotations

from typing import final

from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import Record, this_minute
from privlearn.ledger.entries import Entry
from privlearn.ledger.last_record import Tip
from privlearn.ledger.records import parse
from privlearn.ledger.storable import storable


@final
class MemoryLog:
    """Entries that are chained no sooner than somebody asks for their hashes.

    Args:
        tip: of the chain.

    Attributes:
        entries: all of them, oldest first.
        records: those that were chained; see `complete`.
    """

    def __init__(self, tip: Tip) -> None:
        self._tip = tip
        self.entries: list[Entry] = []
        self.records: list[Record] = []
        self._times: list[int] = []
        self._given: dict[int, str] = {}
        """Nonces that were given, by position, until they are chained."""

    @staticmethod
    def check(entry: Entry) -> None:
        """Raises ValueError for what a file could not hold."""
        if not storable(entry.__dict__.values()):
            parse(canonical({"body": entry.body(), "ext": entry.ext()}))

    def write(self, entry: Entry, nonce: str | None) -> None:
        now = this_minute()
        if nonce is not None:
            self._given[len(self._times)] = nonce
        self._times.append(now)
        self.entries.append(entry)

    def complete(self) -> None:
        done = len(self.records)
        for entry, minute in zip(self.entries[done:], self._times[done:], strict=False):
            record = self._tip.make(entry, minute, self._given.pop(len(self.records), None))
            self.records.append(record)
            self._tip.add(record)
