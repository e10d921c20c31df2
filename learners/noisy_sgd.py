"""Noisy gradient descent over a whole data set, offline (Bassily et al. 2020, Algorithm 2)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.convex import LpLearner, SealedEpochs, scale_of
from privlearn.learners.streaming import Example
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.values.validate import count, positive, within

Summed = NoisySum[Array]


class BallLearner(LpLearner):
    """A learner over an ℓp ball around 0."""

    @abstractmethod
    def _mechanisms(self, accountant: Accountant[Any]) -> None:
        """Makes the mechanisms, in these units."""

    def _calibrate(self, accountant: Accountant[Any]) -> None:
        self._set = LpBall(self.dim, self.p, self.radius)
        self._scaled(
            lambda: scale_of(
                self._loss,
                dim=self.dim,
                q=self._feature_norm,
                feature_bound=self.feature_bound,
                reach=self.radius / 2,
            )
        )
        self._mechanisms(accountant)

    def _mean_gradient(
        self, kept: Rows[Example], sums: NoisySum[Array], theta: Array, name: str
    ) -> Array | None:
        """A noisy mean gradient at θ, one of several steps of the same users.

        None if the process died that had their rows.
        """
        if not self._accountant.left("step", kept.users):
            return None
        rows = kept.map_rows(self._increments([(1.0, theta)]))
        return self._posted(sums, rows, "step", f"gradient/{name}") / len(kept.users)


def step_sums(accountant: Accountant[Any], clip: float, dim: int, steps: int) -> NoisySum[Array]:
    """The sum of one of many steps, which share the budget of a group."""
    part = accountant.budget.share(Fraction(1, steps))
    return NoisySum.calibrated(Ball(clip, dim), part, adjacency=accountant.adjacency)


@final
@dataclass(eq=False, repr=False, kw_only=True)
class NoisySGD(BallLearner):
    """Noisy gradient descent over the whole data set, projected and averaged.

    **Not a streaming method**: it holds every record until the horizon, reads all of them in each
    of ``passes`` steps, and answers 0 until then.  Memory O(n·d).  The paper samples one record per
    step and takes n² steps, from which its authors' code needs minutes; noisy sums over everybody
    at 1/passes of the budget each replace them here.

    Args:
        dim: d.
        p: the ℓp ball; features are bounded in the dual norm.
        radius: of the ball.
        loss: ``"squared"``, ``"logistic"``, or a `ScalarObjective`.
        feature_bound: bound on ‖x‖_q.
        label_bound: bound on |y| for the squared loss.
        passes: K, steps over all data.
        clip: of gradients, in units of a typical ‖x‖ times the label bound.
        step: in units of one over the curvature of features without a preferred direction.
        averaged: steps from this part of them on are averaged.
    """

    passes: int = 60
    clip: float = 0.05
    step: float = 0.7
    averaged: float = 0.3

    def _check_params(self) -> None:
        super()._check_params()
        count(passes=self.passes)
        positive(clip=self.clip)
        positive(step=self.step)
        within("[0, 1)", averaged=self.averaged)

    def _mechanisms(self, accountant: Accountant[Any]) -> None:
        clip = self._scale.clip(self.clip)
        self._sums = self._fixed(
            "gradients", lambda: step_sums(accountant, clip, self.dim, self.passes)
        )
        self._everybody: SealedEpochs[Example] = SealedEpochs(
            accountant.users, [len(accountant.users)]
        )

    def _plan(self) -> list[Plan]:
        return [Plan("step", self._sums.loss(), self._everybody.all[0], self.passes)]

    def _next_change(self) -> int:
        return self._everybody.stop

    def _take(self, rows: Rows[Example]) -> None:
        kept, theta = self._everybody.add(rows), self._theta
        if kept is None:
            return
        path: list[Array] = []
        for number in range(self.passes):
            gradient = self._mean_gradient(kept, self._sums, theta, str(number))
            if gradient is None:
                break
            theta = self._set.pull(theta - self.step * self._scale.newton * gradient)
            path.append(theta)
            # after each step, so that what a death in the next one leaves was there before it
            first = min(math.ceil(self.averaged * len(path)), len(path) - 1)
            self._theta = np.mean(path[first:], axis=0)
