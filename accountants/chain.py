"""Follows the chain of a ledger record by record, and says once where it is broken."""

from __future__ import annotations

from typing import final

from privlearn.ledger import GENESIS, Record, chain_hash


@final
class Chain:
    """Checks every record against the one before it, of which it keeps the hash alone.

    After a gap it goes on with the position that it finds: one missing entry is one problem.
    """

    def __init__(self) -> None:
        self.head = GENESIS
        """Hash of the last record in order."""
        self.entries = 0
        self.broken = False
        """Whether anything was wrong so far, so that what follows may be wrong because of it."""
        self.gap = ""
        """Where entries are missing, moved or repeated first; empty if nowhere."""
        self._next = 0

    def follow(self, record: Record) -> list[str]:
        """What is wrong with ``record`` as the next one, in words."""
        self.entries += 1
        found = _changed(record)
        if record.seq == self._next:
            if chain_hash(self.head, record.seq, record.digests) != record.hash:
                found.append(
                    f"entry {record.seq}: its hash does not fit; it or the entry before was changed"
                )
        else:
            found.insert(0, self._misplaced(record.seq))
            self.gap = self.gap or found[0]
        if record.seq >= self._next:
            self.head, self._next = record.hash, record.seq + 1
        self.broken = self.broken or bool(found)
        return found

    def end(self, head: str | None) -> list[str]:
        """What is wrong with the whole, which should end at ``head``."""
        if head is None or head == self.head:
            return []
        return [f"head is {self.head}, not {head}: the ledger was cut or rewritten"]

    def _misplaced(self, seq: int) -> str:
        if seq < self._next:
            return f"entry {seq}: stands behind entry {self._next - 1}; entries were cut or moved"
        if seq == self._next + 1:
            return f"entry {self._next} is missing: entries were cut or moved"
        return f"entries {self._next} to {seq - 1} are missing: entries were cut or moved"


def _changed(record: Record) -> list[str]:
    """Which fields are not those that were sealed."""
    found = Record.make(GENESIS, record.seq, record.body).digests
    if found == record.digests:
        return []
    return [
        f"entry {record.seq}: field {name!r} was changed"
        for name in sorted(found.keys() | record.digests.keys())
        if found.get(name) != record.digests.get(name)
    ]
