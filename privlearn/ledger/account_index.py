"""The accountants whose entries a ledger holds."""

from __future__ import annotations

from collections import Counter
from typing import final

from privlearn.ledger.entries import CloseEntry, Entry, OpenEntry, ResumeEntry


@final
class AccountIndex:
    """What entries say of their accountants, each by its id.

    Attributes:
        newest: the last entry of each, by which it is told whether an append was done.
        counts: how many entries each has.
        opens: how they were opened, in their order.
        open: those that were opened and not closed.
        unsaid: those that can go on, and whose entries do not say yet that the head was unknown.
    """

    def __init__(self) -> None:
        self.newest: dict[str, Entry] = {}
        self.counts: Counter[str] = Counter()
        self.opens: list[OpenEntry] = []
        self.open: set[str] = set()
        self.unsaid: frozenset[str] = frozenset()

    def note(self, entry: Entry) -> None:
        self.newest[entry.accountant] = entry
        self.counts[entry.accountant] += 1
        if entry.__class__ is OpenEntry:
            self.opens.append(entry)
            self.open.add(entry.accountant)
        elif entry.__class__ is CloseEntry:
            self.open.discard(entry.accountant)
        elif entry.__class__ is ResumeEntry:
            self.unsaid -= {entry.accountant}
