"""Messages about single users' data, for the operator: the last of them, as a run may be long."""

from __future__ import annotations

from typing import final

MOST_MESSAGES = 10_000


@final
class PrivateMessages(list[tuple[int, str]]):
    """The last `MOST_MESSAGES` messages, users with what was wrong, oldest first."""

    dropped = 0
    """How many older ones were let go of."""

    def append(self, message: tuple[int, str], /) -> None:
        """Adds one, in place of the oldest where there are too many."""
        if len(self) >= MOST_MESSAGES:
            del self[0]
            self.dropped += 1
        super().append(message)
