"""What the operator alone is told of users' rows: the last messages, and counts of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

MOST_MESSAGES = 10_000


@final
class PrivateMessages(list[tuple[int, str]]):
    """The last `MOST_MESSAGES` messages, users with what was wrong, oldest first."""

    dropped = 0
    """How many older ones were let go of."""

    def append(self, message: tuple[int, str], /) -> None:
        if len(self) >= MOST_MESSAGES:
            del self[0]
            self.dropped += 1
        super().append(message)


@final
@dataclass
class PrivateCounts:
    """Rows that came since the learner was started in this process, and why some are null.

    A learner that goes on after a restart counts from 0 again.  A row that a rule of participation
    leaves out counts as good, as nobody is told which are left out.

    Attributes:
        rows: how many came, with those of absent users.
        reasons: how many of them are null, by what was wrong.
    """

    rows: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def null(self) -> int:
        """How many rows are null, of those that have been looked at."""
        return sum(self.reasons.values())

    def add(self, reason: str, rows: int = 1) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + rows

    def __str__(self) -> str:
        why = sorted(self.reasons.items(), key=lambda item: -item[1])
        told = "".join(f"\n  {count:,}: {reason}" for reason, count in why)
        return f"{self.rows:,} rows, {self.null:,} null{told}"
