"""Items of a plan: how many of their runs are left, and for whom.

A run is one token for all users of the item or, where streams end early, several one after the
other: each is for the last users, none of whom was in those before.  So every user is in at most
``count`` tokens of the item that were not handed back, or ended before this user came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from privlearn.losses import Loss


@final
@dataclass(slots=True)
class Planned:
    """One item and what is left of it."""

    label: str
    users: range
    loss: Loss
    count: int
    left: int
    """Runs that were not begun."""
    rests: list[int] = field(default_factory=list)
    """Of runs whose stream ended early: where the users begin whose rows it did not take."""

    def has(self, users: range) -> bool:
        return (self.left > 0 and users == self.users) or self._rest(users) is not None

    def take(self, users: range) -> None:
        rest = self._rest(users)
        if rest is None or (self.left > 0 and users == self.users):
            self.left -= 1
        else:
            self.rests.remove(rest)

    def give_back(self, users: range) -> None:
        if users == self.users:
            self.left += 1
        else:
            self.rests.append(users.start)

    def end_early(self, stop: int) -> None:
        """The users from ``stop`` on were not in a stream that ended."""
        self.rests.append(stop)

    @property
    def rest(self) -> range | None:
        """The users of whom a further token can be issued; None if there is none."""
        if self.left > 0:
            return self.users
        return range(min(self.rests), self.users.stop) if self.rests else None

    def _rest(self, users: range) -> int | None:
        """Where the rest begins that a token of these users takes: the shortest one."""
        if users.stop != self.users.stop:
            return None
        return max((start for start in self.rests if start <= users.start), default=None)
