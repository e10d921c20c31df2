"""How many rows were learned from: public without a rule of participation, and noisy under one.

Under a rule it is data how many visits are learned.  Sums become means by a noisy count of them,
which has a small part of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from privlearn.domains import Array, Ball
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, BatchedStream
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows
from privlearn.tokens import Token

_PART: Final = Fraction(1, 50)
"""Of the budget of a group."""
_DEVIATIONS: Final = 3.0
"""A count is taken to be at least so many standard deviations of its noise."""


class LearnedRows:
    """Counts of the rows of one group of slots, after each of its batches.

    Args:
        accountant: of the group.
        users: its slots.
        sums: that count them; None without a rule.
    """

    def __init__(
        self,
        accountant: Accountant[Any],
        users: range,
        sums: BatchedPrefixSum[Array] | NoisySum[Array] | None,
    ) -> None:
        self._accountant, self._users, self._sums = accountant, users, sums
        self._stream: BatchedStream[Array] | None = None
        self._batch = 0

    @staticmethod
    def rest(budgets: PersonBudgets) -> Fraction:
        """The part of a group's budget that counts leave."""
        return 1 - _PART if budgets.rule is not None else Fraction(1)

    def plan(self) -> list[Plan]:
        """The counts, where there are any."""
        return [] if self._sums is None else [Plan("count", self._sums.loss(), self._users)]

    def after(self, rows: Rows[Array]) -> float:
        """The rows of the group so far, after some more; of use where they end a batch."""
        slots = rows.users.stop - self._users.start
        if self._sums is None:
            return slots
        ones = rows.map_rows(_ones)
        if isinstance(self._sums, NoisySum):
            released, std = (
                self._sums.release(ones, self._token(self._sums)),
                self._sums.error_std(),
            )
        else:
            if self._stream is None:
                self._stream = self._sums.open(self._token(self._sums))
            found = self._stream.append(ones)
            if found is None:
                return slots
            self._batch += 1
            released, std = found, self._sums.error_std(self._batch)
        least = max(_DEVIATIONS * std, 1.0)
        return float(min(max(float(released.value[0]), least), slots))

    def _token(self, sums: BatchedPrefixSum[Array] | NoisySum[Array]) -> Token[Any]:
        return self._accountant.issue(sums.loss(), users=self._users, label="count")


def learned_rows(
    accountant: Accountant[Any],
    budgets: PersonBudgets,
    groups: Sequence[range],
    sizes: Sequence[Sequence[int]] = (),
) -> list[LearnedRows]:
    """Counts of groups, with the sizes of their batches.

    Without sizes the rows of a group are handed over all at once.
    """
    if budgets.rule is None:
        return [LearnedRows(accountant, users, None) for users in groups]
    one = Ball(1.0, 1)
    if not sizes:
        budget, adjacency = budgets.of_row(_PART), accountant.adjacency
        count = NoisySum.calibrated(one, budget, adjacency=adjacency)
        return [LearnedRows(accountant, users, count) for users in groups]
    found = budgets.sums([one] * len(groups), sizes, _PART)
    pairs = zip(groups, found, strict=True)
    return [LearnedRows(accountant, users, sums) for users, sums in pairs]


def _ones(block: Array) -> Array:
    """One for each row of numbers, and not a number for others, which are null."""
    real = np.isfinite(block.reshape(len(block), -1)).all(axis=1)
    return np.where(real, 1.0, np.nan)[:, None]
