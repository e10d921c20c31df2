"""The strategy of DP-TOFW with restarts: epochs of disjoint users, each at the whole budget.

Within an epoch there are a few batches, whose increments are a noisy prefix sum; θ moves along the
mean gradient after each.  Around each restart the reach and the clip are smaller.

Under a rule of participation ``per_batch`` counts within an epoch, and several visits in it have
the price of a group of rows or that of the prefix sum, whichever makes less noise; ``pooled``
counts within the batches of an epoch, as each of them is released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.convex import TINY, LpLearner, Strategy
from privlearn.learners.learned_rows import LearnedRows, learned_rows
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.streaming import Example, Terms, epoch_count, epoch_sizes
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, even_sizes
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball

_EPOCHS, _BATCHES = 2, 12
"""At most so many epochs, and so many batches in each."""
_EPOCH_GROWTH = 3.0
"""Ratio of consecutive epochs, or less where the first one would be too small for its noise."""
_USERS_PER_NOISE = 4.0
"""Least users of an epoch, in units of the number at which the noise is as large as the mean."""
_CLIP_PER_LEVEL = 0.2
"""Clips in units of the residuals that are expected, the level."""
_REACH = 1.4
"""How far θ moves within an epoch, in units of the distance that the level stands for."""
_SHORT_STEP = 2.5
"""Steps near the minimum, in Newton steps."""
_LONG_STEP, _LONG_DELAY = 0.7, 5.0
"""Steps far from it, in reaches: at most _LONG_STEP/(batch + _LONG_DELAY)."""
_FIRST_LEVEL, _LAST_LEVEL = 0.4, 0.08
"""Of residuals, in units of the scores; the first one for features of _USUAL_DIM numbers."""
_USUAL_DIM = 10
_LEAST_SHRINK, _MOST_SHRINK, _SHRINK_PER_NOISE = 0.4, 0.8, 3.0
"""Ratio of consecutive levels: by the noise of the epoch between them, within these bounds."""
_DIMS_PER_STEP = 5
"""Steps are shorter with fewer users than this times d/μ."""


class Epoch(NamedTuple):
    """Public numbers of one epoch."""

    users: range
    level: float
    sizes: Sequence[int]
    """Of its batches."""
    stream: PlannedStream[Array]
    learned: LearnedRows


@final
class Restarts(Strategy):
    """See the module."""

    def __init__(self, learner: LpLearner, accountant: Accountant[Any], clip: float | None) -> None:
        super().__init__(learner, accountant)
        plan: list[tuple[int, float]] = self._fixed(
            "epochs", lambda: restart_plan(len(self._users), self._scale.dim, self._mu)
        )
        ends = accumulate((size for size, _ in plan), initial=self._users.start)
        groups = [range(start, stop) for start, stop in pairwise(ends)]
        batches: list[tuple[int, ...]] = self._fixed(
            "batches", lambda: [even_sizes(size, _BATCHES) for size, _ in plan]
        )
        self._pooled = self._rule is not None and self._rule.pooled
        budgets = PersonBudgets(
            accountant, groups, [len(sizes) for sizes in batches] if self._pooled else ()
        )

        def calibrated() -> list[BatchedPrefixSum[Array]]:
            first = plan[0][1]
            clips = [
                self._scale.clip(_CLIP_PER_LEVEL * level) if clip is None else clip * level / first
                for _, level in plan
            ]
            domains = [Ball(radius, learner._dim) for radius in clips]
            return budgets.sums(domains, batches, LearnedRows.rest(budgets))

        sums = self._fixed("increments", calibrated)
        streams = [
            PlannedStream(accountant, "epoch", users, each)
            for users, each in zip(groups, sums, strict=True)
        ]
        learned = learned_rows(learner, accountant, budgets, groups, batches)
        parts = zip(groups, (level for _, level in plan), batches, streams, learned, strict=True)
        self._epochs = [Epoch(*part) for part in parts]
        self._caution = self._fixed(
            "caution",
            lambda: min(1.0, len(self._users) * self._mu / (_DIMS_PER_STEP * learner._dim)),
        )
        self._number = -1
        self._begin_epoch()

    def plan(self) -> list[Plan]:
        plans = [epoch.stream.plan() for epoch in self._epochs]
        return plans + [plan for epoch in self._epochs for plan in epoch.learned.plan()]

    def batches(self) -> Sequence[int]:
        starts: list[int] = []
        for epoch in self._epochs:
            sizes = epoch.sizes if self._pooled else (len(epoch.users),)
            starts += accumulate(sizes[:-1], initial=epoch.users.start)
        return starts

    def streams(self) -> list[PlannedStream[Array]]:
        epoch = self._epochs[self._number]
        return [epoch.stream, *epoch.learned.streams()]

    def _begin_epoch(self) -> None:
        self._number += 1
        self._before, self._batch = self._learner._theta, 0
        self._end = self._epochs[self._number].users.start
        self._begin_batch()

    def _begin_batch(self) -> None:
        start = self._end
        self._end = start + self._epochs[self._number].sizes[self._batch]
        self._users_of_batch = range(start, self._end)
        self._aimed = range(0)
        self._pending: list[Rows[Example]] = []

    def next_change(self) -> int:
        return self._end

    def let_go(self) -> None:
        self._pending = [rows.without_forgotten() for rows in self._pending]

    def take(self, rows: Rows[Example]) -> None:
        if self._pooled:  # a person's rows in a batch become one at its end
            self._pending.append(rows)
            if rows.users.stop < self._end:
                return
            rows = Rows.concat(self._pending)
        self._learn(self._epochs[self._number], rows)
        if rows.users.stop < self._end:
            return
        self._batch += 1
        if self._batch < len(self._epochs[self._number].sizes):
            self._begin_batch()
        elif self._number + 1 < len(self._epochs):
            self._begin_epoch()

    def _learn(self, epoch: Epoch, rows: Rows[Example]) -> None:
        stream = epoch.stream
        taken = stream.takes(rows.users)
        if not taken:
            return
        self._aim(stream)
        own = rows if taken == rows.users else rows.slice(taken)
        increments = self._of_persons(own.map_rows(self._increments))
        released = stream.append(increments)
        learned = epoch.learned.after(increments, stream.learned)
        if released is None:
            return
        value = self._learner._board.post(f"sum/{self._number}/{self._batch}", released)
        std = stream.error_std(rows.users.stop)
        self._before = self._learner._theta  # where the running sum is the gradient
        self._move(epoch, stream.whole(value) / learned, std / learned)

    def _aim(self, stream: PlannedStream[Array]) -> None:
        """Makes the increments of a batch, or of what is left of one for a new stream."""
        users = range(max(self._users_of_batch.start, stream.first), self._end)
        if users == self._aimed:
            return
        self._aimed = users
        ahead = (stream.learned + len(users)) / len(users)
        terms: Terms = [(ahead, self._learner._theta)]
        if stream.learned:
            terms = [*terms, (1 - ahead, self._before)]
        self._increments = self._learner._increments(terms)

    def _move(self, epoch: Epoch, gradient: Array, std: float) -> None:
        scale, dim = self._scale, self._scale.dim
        size = math.sqrt(float((gradient * gradient).sum())) + TINY
        kept = max(0.0, 1.0 - dim * (std / size) ** 2)
        reach = _REACH * epoch.level * scale.unit * math.sqrt(dim) / scale.length * self._caution
        short = _SHORT_STEP * self._caution * scale.newton * size * kept
        far = _LONG_STEP * reach / (self._batch + _LONG_DELAY)
        moved = self._learner._theta - min(short, far) / size * gradient
        self._learner._theta = np.asarray(self._set.pull(moved))


def restart_plan(users: int, dim: int, mu: float) -> list[tuple[int, float]]:
    """Sizes of the epochs and the levels of residuals that they expect, in units of the scores."""
    noise = float((_root(_BATCHES) ** 2).sum())
    least = _USERS_PER_NOISE * dim / mu * math.sqrt(noise)
    epochs = epoch_count(users, least, _EPOCHS)
    growth = _EPOCH_GROWTH
    if epochs > 1 and users / (growth ** np.arange(epochs)).sum() < least:
        low, high = 1.0, growth
        for _ in range(50):
            middle = (low + high) / 2
            if users / (middle ** np.arange(epochs)).sum() > least:
                low = middle
            else:
                high = middle
        growth = low
    sizes = epoch_sizes(users, epochs, growth)
    first = min(_FIRST_LEVEL * math.sqrt(_USUAL_DIM / dim), 1.0)
    levels = [first]
    for size in sizes[:-1]:
        predicted = _SHRINK_PER_NOISE * dim / (mu * size) * math.sqrt(noise)
        shrink = min(_MOST_SHRINK, max(_LEAST_SHRINK, predicted))
        levels.append(max(min(_LAST_LEVEL, first), levels[-1] * shrink))
    return list(zip(sizes, levels, strict=True))


def _root(n: int) -> Array:
    """Coefficients of (1 − x)^{−1/2}."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
