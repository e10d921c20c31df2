"""What the spends of an account cost the user, or the person, who pays most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import final

import numpy as np

from privlearn.accountants.person_totals import person_cost
from privlearn.accountants.prices import CurveWork, LossPrice
from privlearn.accountants.state import AccountState
from privlearn.errors import PrivlearnError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.reporting.spend_table import Columns, SpendTable, add_up
from privlearn.rows.domains import Array
from privlearn.values.exact import float_up

NO_PRICE = PrivlearnError, ValueError, TypeError, ArithmeticError
"""What is raised where a loss has no price."""
MOST_RUNS = 2000
"""Different runs of losses of which it is worked out what they cost a person who comes back."""
_MOST_EXACT = 5000
"""Different losses that are added up as exact numbers; more are added up as floats, rounded up."""


def unit_of(cap: Currency, term: int = 0) -> str:
    """What an amount of a currency is."""
    match cap:
        case ZCDP():
            return "ρ"
        case GaussianDP():
            return "μ²"
        case PureDP():
            return "ε"
        case Renyi():
            return f"ε at order {float(list(cap.curve)[term]):g}"
    return cap.kind


@final
class Costs:
    """What the spends of one account cost, in the amount of its currency that is used up first.

    Args:
        state: the account, after its last entry.
        columns: the rows of its spends.
        table: where they are from.
        user: who is asked about; None for all.
        unknown: why it is not known what was spent; empty where it is.
        entries: how many there are in the ledger, which bounds what may be worked out.

    Attributes:
        persons: whether costs are those of persons, who may come back.
        charged: the largest charge on any user or person, amount by amount.
        term: which of these amounts the costs are in.
        unit: what that amount is.
        cap: of that amount.
        amounts: of each loss of the table, rounded up; NaN where it has no price here.
    """

    def __init__(
        self,
        state: AccountState,
        columns: Columns,
        table: SpendTable,
        user: int | None,
        unknown: str,
        entries: int,
    ) -> None:
        self.state, self.columns, self.table, self.user = state, columns, table, user
        self.unknown = unknown
        state.prices.work = CurveWork()  # the audit is over: what it may take is no concern here
        state.prices.work.left += 256 * entries
        self.persons = state.visits is not None
        self._prices: dict[Loss, LossPrice | None] = {}
        self.charged = self._largest_charge()
        self.term = _binding(state.cap, self.charged)
        self.unit = unit_of(state.cap, self.term)
        self.cap = state.cap.amounts[self.term]
        self.amounts = self._amount_of_losses(columns)

    def _largest_charge(self) -> tuple[Fraction, ...]:
        try:
            return self.state.meter.largest().amounts
        except NO_PRICE as error:
            self.unknown = self.unknown or str(error)
            return self.state.cap.amounts

    def price(self, loss: Loss) -> LossPrice | None:
        """What a loss costs an index here; None where it has no price, which the audit says."""
        if loss not in self._prices:
            try:
                self._prices[loss] = self.state.prices.of(loss)
            except NO_PRICE:
                self._prices[loss] = None
        return self._prices[loss]

    def _amount_of_losses(self, columns: Columns) -> Array:
        amounts = np.full(len(self.table.losses), np.nan)
        if not self.persons:
            for number in np.unique(columns.loss).tolist():
                price = self.price(self.table.losses[number])
                if price is not None:
                    amounts[number] = float_up(price.budget.amounts[self.term])
        return amounts

    def of_rows(self, rows: Columns) -> Array:
        found: Array = self.amounts[rows.loss] * rows.times
        return found

    def most_spent(self) -> int:
        rows = self.columns
        if not len(rows):
            return self.state.users.start
        return int(add_up(rows, np.zeros(len(rows), np.int64), self.of_rows(rows)).user[0])

    def most(self, rows: Columns, user: int) -> Fraction | None:
        """What rows cost the user whom they cost most; under a rule any one person."""
        if self.persons:
            return self._most_of_person(rows)
        if not np.isfinite(self.amounts[rows.loss]).all():
            return None
        rows = rows.only(rows.touching(user, user + 1))
        numbers, where = np.unique(rows.loss, return_inverse=True)
        if len(numbers) > _MOST_EXACT:
            return Fraction(math.fsum(self.of_rows(rows).tolist()) * (1 + 1e-12))
        counts = np.zeros(len(numbers), dtype=object)
        np.add.at(counts, where, rows.times.astype(object))
        prices = [self.price(self.table.losses[number]) for number in numbers.tolist()]
        return total(
            (price.budget.amounts[self.term], int(n))
            for price, n in zip(prices, counts, strict=True)
            if price is not None
        )

    def _most_of_person(self, rows: Columns) -> Fraction | None:
        if self.user is not None:
            return None
        runs: Counter[tuple[int, int, Loss]] = Counter()
        losses = self.table.losses
        columns = (rows.start.tolist(), rows.stop.tolist(), rows.loss.tolist(), rows.times.tolist())
        for start, stop, loss, times in zip(*columns, strict=True):
            if start < stop:
                runs[start, stop, losses[loss]] += times
            if len(runs) > MOST_RUNS:
                return None
        try:
            return person_cost(self.state, runs).amounts[self.term]
        except NO_PRICE:
            return None


def _binding(cap: Currency, charged: Sequence[Fraction]) -> int:
    orders = list(cap.curve) if isinstance(cap, Renyi) else [Fraction(1)]
    places = range(len(cap.amounts))
    return max(places, key=lambda k: (charged[k] / cap.amounts[k], orders[k] / cap.amounts[k]))


def total(terms: Iterable[tuple[Fraction, int]]) -> Fraction:
    """The sum of amounts, each so many times."""
    return sum((amount * count for amount, count in terms), Fraction(0))
