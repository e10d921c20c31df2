"""What is charged for the entries of one account: planned, reserved, and spent."""

from __future__ import annotations

from collections import Counter
from typing import final

from privlearn.accountants.account import Account
from privlearn.accountants.loss_structure import over, pieces_of
from privlearn.accountants.meter import Allowances, Meter
from privlearn.accountants.persons import Visits
from privlearn.accountants.prices import LossPrice, Prices
from privlearn.accountants.streams import Stream
from privlearn.accountants.tallies import Tallies
from privlearn.losses import Loss

Pieces = list[tuple[range, Loss]]
"""What each of some users pays."""


@final
class Charged:
    """Sums of amounts under the caps of one account, and tallies of the losses that they are for.

    Args:
        meter: of the account itself; each part of it that was delegated has one of its own.
        prices: of losses in its currency.
        visits: the rule under which a person may come back; without one a person is an index.

    Attributes:
        planned: whether what can be spent was charged when the plan was committed.
        spent: losses that were spent, for each index.
        committed: losses of the plan.
        runs_spent: with a rule, losses of one row by the ranges of slots that they are on.
        runs_committed: the same of the plan.
    """

    def __init__(self, meter: Meter, prices: Prices, visits: Visits | None) -> None:
        self._meter, self._prices, self._visits = meter, prices, visits
        self.allowances = Allowances(meter)
        self.planned = False
        self.spent: Tallies[Loss] = Tallies(meter.users)
        self.committed: Tallies[Loss] = Tallies(meter.users)
        self.runs_spent: Counter[tuple[int, int, Loss]] = Counter()
        self.runs_committed: Counter[tuple[int, int, Loss]] = Counter()

    def plan(self, users: range, loss: Loss, count: int) -> None:
        """Charges an item of the plan."""
        pieces = over(loss, users)
        self.charge(self._meter, pieces, count)
        if self._visits is not None:
            self.runs_committed[users.start, users.stop, loss] += count
        for piece, part in pieces:
            self.committed.add(piece, self._of_person(part, piece), count)

    def reserve(self, account: Account) -> None:
        """Charges what a new token holds."""
        if not self.planned:
            self.allowances.paying(account.allowance).charge(
                range(*account.users), account.budget, account.failure, shared=account.shared
            )

    def hand_back(self, account: Account) -> None:
        """Takes off what a token held."""
        if account.held and not self.planned:
            account.held = False
            self.allowances.paying(account.allowance).release(
                range(*account.users), account.budget, account.failure, shared=account.shared
            )

    def spend(
        self, account: Account | None, users: range, loss: Loss, price: LossPrice | None
    ) -> None:
        """Charges what a spend costs, in place of what its token held.

        Args:
            account: of the token; None for one that has ended, which only audits meet.
            users: of the spend.
            loss: that it states.
            price: of the loss, if it is known.
        """
        pieces = pieces_of(loss, users)
        for piece, part in pieces:
            self._add(piece, part)
        if self.planned:
            return
        if account is None:
            self.charge(self._meter, pieces)
            return
        whole = len(pieces) == 1 and account.users == (users.start, users.stop)
        if account.held and (account.wrong or whole):
            cost = price or self._prices.of_person(loss, users)
            budget, failure = cost.budget, cost.failure
            if account.wrong and account.budget.covers(budget) and failure <= account.failure:
                return
            same = budget.amounts == account.budget.amounts and failure == account.failure
            if whole and same and account.shared is self._shares(loss):
                account.held = False
                return
        self.hand_back(account)  # it may have held more than its one loss; the rest is free again
        self.charge(self.allowances.paying(account.allowance), pieces)

    def end_early(self, account: Account, stream: Stream) -> None:
        """Takes a stream's charges off the users whose rows it never took."""
        meter = self.allowances.paying(account.allowance)
        for users, kept, part in stream.freed:
            self._add(users, part, -1)
            if kept:
                self._add(kept, part)
            if not self.planned:
                self.charge(meter, [(users, part)], off=True)
                self.charge(meter, [(kept, part)] if kept else [])

    def charge(self, meter: Meter, pieces: Pieces, count: int = 1, *, off: bool = False) -> None:
        """Charges ``count`` runs of what each of the users pays, or takes them off."""
        for users, loss in pieces:
            shared, price = self._shares(loss), self._prices.of_person(loss, users)
            budget = price.budget if count == 1 else price.budget * count
            charge = meter.release if off else meter.charge
            charge(users, budget, price.failure * count, shared=shared)

    def _shares(self, loss: Loss) -> bool:
        return self._visits is not None and self._prices.shares(loss)

    def _add(self, users: range, loss: Loss, count: int = 1) -> None:
        self.spent.add(users, self._of_person(loss, users), count)
        if self._visits is not None:
            run = users.start, users.stop, loss
            self.runs_spent[run] += count
            if not self.runs_spent[run]:
                del self.runs_spent[run]

    def _of_person(self, loss: Loss, users: range) -> Loss:
        return loss if self._visits is None else self._prices.loss_of_person(loss, users)
