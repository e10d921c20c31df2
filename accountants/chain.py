"""Follows the chain of a ledger record by record."""

from __future__ import annotations

from typing import final

from privlearn.ledger import GENESIS, Record, chain_hash


@final
class Chain:
    """Checks every record against the one before it, of which it keeps the hash alone.

    After a gap it goes on from the position that it finds: one missing entry is one problem.
    """

    def __init__(self) -> None:
        self.head = GENESIS
        """Hash of the last record."""
        self.size = 0
        """Position of the next record."""

    def add(self, record: Record) -> list[str]:
        """What is wrong with ``record`` as the next one, in words."""
        found = []
        if record.seq != self.size:
            found.append(
                f"entry {record.seq}: stands at position {self.size}; entries were cut or moved"
            )
        elif chain_hash(self.head, record.seq, record.digests) != record.hash:
            found.append(
                f"entry {record.seq}: its hash does not fit; it or the entry before was changed"
            )
        self.head, self.size = record.hash, record.seq + 1
        return found + _changed(record)

    def end(self, head: str | None) -> list[str]:
        """What is wrong with the whole, which should end at ``head``."""
        if head is None or head == self.head:
            return []
        return [f"head is {self.head}, not {head}: the ledger was cut or rewritten"]


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
