"""How many rows were learned from: public without a rule of participation, and noisy under one.

Under a rule it is data how many visits are learned.  Sums become means by a noisy count of them,
which has a small part of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.base import Learner
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.planned_stream import PlannedStream
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball

Counting: TypeAlias = BatchedPrefixSum[Array] | NoisySum[Array]

_PART: Final = Fraction(1, 50)  # Of the budget of a group
_DEVIATIONS: Final = 3.0
"""A count is taken to be at least so many standard deviations of its noise."""


class LearnedRows:
    """Counts of the rows of one group of slots, after each of its batches.

    Args:
        accountant: of the group.
        users: its slots.
        sums: that count them; None without a rule.
    """

    def __init__(self, accountant: Accountant[Any], users: range, sums: Counting | None) -> None:
        self._accountant, self._users, self._sums = accountant, users, sums
        self._stream: PlannedStream[Array] | None = None
        if isinstance(sums, BatchedPrefixSum):
            self._stream = PlannedStream(accountant, "count", users, sums)
        # The last count, the deviation of its noise, and of how many slots it is.
        self._count = self._std = 0.0
        self._of = 0

    @staticmethod
    def rest(budgets: PersonBudgets) -> Fraction:
        """The part of a group's budget that counts leave."""
        return 1 - _PART if budgets.rule is not None else Fraction(1)

    def plan(self) -> list[Plan]:
        return [] if self._sums is None else [Plan("count", self._sums.loss(), self._users)]

    def streams(self) -> list[PlannedStream[Array]]:
        """What may be open between the calls."""
        return [] if self._stream is None else [self._stream]

    def after(self, rows: Rows[Array], slots: int) -> float:
        """The rows of the group so far, after some more; of use where they end a batch.

        Args:
            rows: the next.
            slots: how many slots they are counted in: those of a sum that is to become a mean.
                Where a count was lost with its process, the last one stands for them all.
        """
        if self._sums is None:
            return slots
        ones = rows.map_rows(_ones)
        if self._stream is None:
            self._count_at_once(ones)
        else:
            released = self._stream.append(ones)
            if released is not None:
                self._count = float(self._stream.whole(released.value)[0])
                self._std = self._stream.error_std(rows.users.stop)
                self._of = self._stream.learned
        if not self._of:
            return slots
        least = max(_DEVIATIONS * self._std, 1.0)
        return float(min(max(self._count * (slots / self._of), least), slots))

    def _count_at_once(self, ones: Rows[Array]) -> None:
        sums = self._sums
        if not isinstance(sums, NoisySum) or not self._accountant.left("count", self._users):
            return
        token = self._accountant.issue(sums.loss(), users=self._users, label="count")
        self._count = float(sums.release(ones, token).value[0])
        self._std, self._of = sums.error_std(), len(self._users)


def learned_rows(
    learner: Learner,
    accountant: Accountant[Any],
    budgets: PersonBudgets,
    groups: Sequence[range],
    sizes: Sequence[Sequence[int]] = (),
) -> list[LearnedRows]:
    """Counts of groups, with the sizes of their batches.

    Without sizes the rows of a group are handed over all at once.
    """
    found = learner._fixed("counts", lambda: _counting(accountant, budgets, groups, sizes))
    pairs = zip(groups, found, strict=True)
    return [LearnedRows(accountant, users, sums) for users, sums in pairs]


def _counting(
    accountant: Accountant[Any],
    budgets: PersonBudgets,
    groups: Sequence[range],
    sizes: Sequence[Sequence[int]],
) -> Sequence[Counting | None]:
    if budgets.rule is None:
        return [None] * len(groups)
    one = Ball(1.0, 1)
    if sizes:
        return budgets.sums([one] * len(groups), sizes, _PART)
    budget, adjacency = budgets.of_row(_PART), accountant.adjacency
    return [NoisySum.calibrated(one, budget, adjacency=adjacency)] * len(groups)


def _ones(block: Array) -> Array:
    """One for each row of numbers, and not a number for others, which are null."""
    real = np.isfinite(block.reshape(len(block), -1)).all(axis=1)
    return np.where(real, 1.0, np.nan)[:, None]
