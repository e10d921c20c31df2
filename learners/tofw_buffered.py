"""The buffered strategy of DP-TOFW: an epoch's users are kept, sealed, and read in many steps.

θ moves at the end of an epoch only.  It is the best in risk, for memory O(users·d).

Under a rule of participation the batches are the epochs: each of the many steps of an epoch reads
the same visits of a person, and its price is multiplied by the number of steps; with ``pooled`` it
reads the mean of a person's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.convex import TINY, LpLearner, SealedEpochs, Strategy
from privlearn.learners.learned_rows import LearnedRows, learned_rows
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.streaming import Example
from privlearn.mechanisms import NoisySum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball

_FIRST_EPOCH = 0.2  # Part of all users; the second epoch is the rest
_CLIPS = (0.05, 0.03)
"""Levels of residuals at which gradients are clipped, by epoch, as parts of the unit."""
_STEPS = 64  # Of each epoch; θ is averaged over the later half of those that were made
_STEP = 0.5  # In Newton steps
_SHRINK = 0.5  # Part of the James-Stein factor that is applied


@final
class Buffered(Strategy):
    """See the module."""

    def __init__(self, learner: LpLearner, accountant: Accountant[Any], clip: float | None) -> None:
        super().__init__(learner, accountant)
        sizes: list[tuple[int, float]] = self._fixed("epochs", lambda: _epochs(len(self._users)))
        self._steps = self._fixed("steps", lambda: _STEPS)
        self._epochs: SealedEpochs[Example] = SealedEpochs(self._users, [size for size, _ in sizes])
        budgets = PersonBudgets(accountant, self._epochs.all)

        def calibrated() -> list[NoisySum[Array]]:
            part = budgets.of_row(LearnedRows.rest(budgets) / self._steps)
            radii = [clip or self._scale.clip(level) for _, level in sizes]
            adjacency = accountant.adjacency
            return [
                NoisySum.calibrated(Ball(radius, learner.dim), part, adjacency=adjacency)
                for radius in radii
            ]

        self._sums = self._fixed("gradients", calibrated)
        self._learned = learned_rows(learner, accountant, budgets, self._epochs.all)

    def plan(self) -> list[Plan]:
        pairs = zip(self._sums, self._epochs.all, strict=True)
        plans = [Plan("step", sums.loss(), users, self._steps) for sums, users in pairs]
        return plans + [plan for learned in self._learned for plan in learned.plan()]

    def batches(self) -> Sequence[int]:
        return [users.start for users in self._epochs.all]

    def next_change(self) -> int:
        return self._epochs.stop

    def let_go(self) -> None:
        self._epochs.let_go()

    def take(self, rows: Rows[Example]) -> None:
        number, learner = self._epochs.number, self._learner
        kept = self._epochs.add(rows)
        if kept is None:
            return
        theta = learner._theta
        path: list[Array] = []
        sums = self._sums[number]
        gradients = self._of_persons(kept.map_rows(learner._increments([(1.0, theta)])))
        users = self._learned[number].after(gradients, len(kept.users))
        std = sums.error_std() / users
        for step in range(self._steps):
            # A process that died in the middle has lost the rows of the steps that were left.
            if not self._accountant.left("step", kept.users):
                break
            if step:
                gradients = self._of_persons(kept.map_rows(learner._increments([(1.0, theta)])))
            gradient = learner._posted(sums, gradients, "step", f"gradient/{number}/{step}") / users
            energy = max(float((gradient * gradient).sum()), TINY)
            shrunk = max(0.0, 1.0 - _SHRINK * self._scale.dim * std * std / energy)
            moved = theta - _STEP * self._scale.newton * shrunk * gradient
            theta = np.asarray(self._set.pull(moved))
            path.append(theta)
            # after each step, so that what a death in the next one leaves was there before it
            late = path[len(path) // 2 :]
            learner._theta = np.asarray(sum(late) / len(late))


def _epochs(users: int) -> list[tuple[int, float]]:
    first = int(users * _FIRST_EPOCH)
    both = zip((first, users - first), _CLIPS, strict=True)
    return [(size, level) for size, level in both if size]
