"""What the times that entries tell say of the clocks of those who wrote them: claims, no more.

No guarantee rests on them.  A writer's own entries never go back, as a clock that is set back is
not followed; a clock that jumps ahead is, and everything behind its jump then tells that minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from privlearn.ledger import Record
from privlearn.ledger.chain import minute_of, text_of_minute

_CLOCKS_DIFFER = 24 * 60
"""Minutes by which the clocks of a writer and a reader may differ without a word."""


@final
class ToldTimes:
    """Compares the minutes of entries with each other, and in the end with the reader's clock."""

    def __init__(self) -> None:
        self._last: object = None
        self._latest = 0
        self._back = self._unreal = 0
        self._first_back = ""

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            told = (record.envelope or {}).get("at")
            if told is None or told == self._last or not isinstance(told, str):
                continue
            self._last, minute = told, minute_of(told)
            if not minute:
                self._unreal += 1
            elif minute < self._latest:
                self._back += 1
                self._first_back = self._first_back or f"entry {record.seq} ({told})"
            else:
                self._latest = minute

    def remarks(self) -> list[str]:
        """What is to be said whoever reads the entries, and whenever."""
        found = []
        if self._back:
            found.append(
                f"Times go back {self._back} times, first at {self._first_back}; entries that this "
                f"package writes never do. {_CLAIMS}"
            )
        if self._unreal:
            found.append(f"{self._unreal} entries tell a time that no calendar has. {_CLAIMS}")
        return found

    def ahead(self, now: int) -> list[str]:
        """What is to be said of times beyond ``now``, the minute of the reader's clock."""
        if self._latest <= now + _CLOCKS_DIFFER:
            return []
        return [
            f"Entries tell times up to {text_of_minute(self._latest)}, and the clock of who reads "
            f"them says {text_of_minute(now)}: one of the two is wrong. {_CLAIMS}"
        ]


_CLAIMS = "Times are what the writers say; no guarantee rests on them."
