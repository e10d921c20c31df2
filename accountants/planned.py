"""Items of a plan: how many of their runs are left, and for whom.

A run is one token for all users of the item or, where streams end early, several one after the
other: each is for the last users, none of whom was in those before.  So every user is in at most
``count`` tokens of the item that were not handed back, or ended before this user came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from privlearn.accountants.prices import LossPrice, Prices
from privlearn.errors import BudgetError
from privlearn.ledger.entries import IssueEntry
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


@final
class CommittedPlan(list[Planned]):
    """The items of a plan, found by what they are for."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, range], list[int]] = {}

    def add(self, label: str, users: range, loss: Loss, count: int) -> None:
        """A further item."""
        self._of.setdefault((label, users), []).append(len(self))
        self.append(Planned(label, users, loss, count, count))

    def item(self, position: int | None) -> Planned | None:
        """The item at a position; None where there is none, which only audits meet."""
        return None if position is None or not 0 <= position < len(self) else self[position]

    def position_for(self, label: str, users: range, loss: Loss, prices: Prices) -> int | None:
        """Position of the item that a new token can use, if there is one."""
        for position in self._of.get((label, users), []):
            item = self[position]
            if item.left and (item.loss == loss or prices.dominates(item.loss, loss, users)):
                return position
        for position, item in enumerate(self):
            rest = item.label == label and item.has(users)
            if rest and prices.dominates(item.loss, loss, users):
                return position
        return None

    def check_issue(self, entry: IssueEntry, users: range, held: LossPrice, prices: Prices) -> None:
        """Raises BudgetError unless the item that a new token names is for it."""
        item = self.item(entry.planned)
        if item is None:
            raise BudgetError(f"token {entry.token} is not in the committed plan")
        if not item.has(users) or item.label != entry.label:
            raise BudgetError(f"token {entry.token} does not match plan item {entry.planned}")
        if not prices.of_person(item.loss, users).covers(held):
            raise BudgetError(f"token {entry.token} holds more than plan item {entry.planned}")
