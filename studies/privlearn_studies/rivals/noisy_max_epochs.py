"""DP-HDB as it was published: steps along vertices that report-noisy-max picks for every arm.

For every arm the best few of the 2d vertices ±e_j are released, and θ_a moves along them.  The sign
is part of the vertex; the sums themselves are never used.

    DPHDB(n_arms=2, dim=50, method=NoisyMaxEpochs())

Source: Han et al. 2022, Algorithm 3, with the repairs of `privlearn.learners.hdb`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.batch_sums import BatchSums
from privlearn.learners.hdb_epochs import (
    EpochSetting,
    check_growth,
    into_l1_ball,
    warm_up_length,
)
from privlearn.losses.budgets import Currency
from privlearn.mechanisms.noisy_max import ReportNoisyMax
from privlearn.mechanisms.one_of_k import OneOfK
from privlearn.mechanisms.vertices import CrossPolytope
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count, positive, within


@final
@dataclass(frozen=True, slots=True)
class NoisyMaxEpochs:
    """Steps along the vertices ±e_j that report-noisy-max picks for every arm.

    Args:
        growth: ratio of consecutive epoch lengths, >= 1.
        first_picks, picks: vertices per arm in the first epoch and later.
        clip, clip_decay, clip_floor: bound on φ' in the first epoch, its ratio from one epoch to
            the next, and the least one, in units of the reward bound; an increment is scaled into
            the ℓ∞ ball of that radius.
        first_step, step: ℓ1 length of a step, in units of the usual score, shared equally by the
            picks; in the first epoch and in the second.
        step_decay: its ratio from the second epoch on.
        first_std: as for `CorrelatedEpochs`, of the noise on a score.
    """

    growth: float = 1.0
    first_picks: int = 3
    picks: int = 2
    clip: float = 0.1
    clip_decay: float = 0.6
    clip_floor: float = 0.03
    first_step: float = 0.5
    step: float = 0.35
    step_decay: float = 0.6
    first_std: float = 0.021

    def __post_init__(self) -> None:
        check_growth(self.growth)
        positive(clip=self.clip)
        within("(0, 1]", clip_decay=self.clip_decay)
        if positive(clip_floor=self.clip_floor) > self.clip:
            raise ValueError(
                f"clip_floor = {self.clip_floor!r}: must be at most clip = {self.clip!r}"
            )
        positive(first_std=self.first_std)
        count(first_picks=self.first_picks)
        count(picks=self.picks)
        positive(first_step=self.first_step)
        positive(step=self.step)
        within("(0, 1]", step_decay=self.step_decay)

    def first_length(self, setting: EpochSetting) -> int:
        """Users until the noise on a score is `first_std`."""
        noise = self._single(setting, 0).scale * setting.step(1)
        return warm_up_length(noise, self.first_std, setting)

    def mechanism(self, setting: EpochSetting, epoch: int) -> OneOfK[Array]:
        """For every arm the picked vertices ±e_j, (K, picks)."""
        return OneOfK(self._single(setting, epoch), setting.n_arms)

    def steps(
        self, setting: EpochSetting, sizes: list[int], accountant: Accountant[Any]
    ) -> tuple[list[OneOfK[Array]], list[int]]:
        """Choices that differ, and which of them each epoch has: late ones are equal."""
        distinct: list[OneOfK[Array]] = []
        which: list[int] = []
        for epoch in range(len(sizes)):
            step = self.mechanism(setting, epoch)
            if step not in distinct[-1:]:
                distinct.append(step)
            which.append(len(distinct) - 1)
        return distinct, which

    def sums(
        self,
        steps: tuple[list[OneOfK[Array]], list[int]],
        batches: list[range],
        accountant: Accountant[Any],
    ) -> _Choices:
        distinct, which = steps
        return _Choices([distinct[place] for place in which], batches, accountant)

    def estimate(self, setting: EpochSetting, sums: BatchSums[Any]) -> _Walk:
        return _Walk(self, setting)

    def _single(self, setting: EpochSetting, epoch: int) -> ReportNoisyMax:
        """One arm's choice; another arm's differs from the null one by half as much (`OneOfK`)."""
        picks = self.first_picks if epoch == 0 else self.picks
        clip = setting.slope
        if not setting.kept:
            clip *= max(self.clip * self.clip_decay**epoch, self.clip_floor)
        top = min(picks, 2 * setting.dim - 1)
        return _choice(setting.dim, clip, setting.budget, top, setting.adjacency)

    def length(self, epoch: int) -> float:
        """ℓ1 length of the step after an epoch, in units of the usual score."""
        return self.first_step if epoch == 0 else self.step * self.step_decay ** (epoch - 1)


@final
class _Choices(BatchSums[Any]):
    """What is picked from each epoch, with a token for each."""

    label = "epoch"

    def __init__(
        self, steps: list[OneOfK[Array]], batches: Sequence[range], accountant: Accountant[Any]
    ) -> None:
        self._steps, self.batches, self._accountant = steps, batches, accountant

    def plan(self) -> list[Plan]:
        pairs = zip(self._steps, self.batches, strict=True)
        return [Plan(self.label, step.loss(), epoch) for step, epoch in pairs]

    def release(self, rows: Rows[Any], board: Billboard, batch: int) -> Array | None:
        step, users = self._steps[batch], self.batches[batch]
        if self._accountant.lost(self.label, users):
            return None
        token = self._accountant.issue(step.loss(), users=users, label=self.label)
        return board.post(f"{self.label}/{batch}", step.release(rows, token))

    def covariance(self, batches: Sequence[int]) -> Array:
        raise NotImplementedError  # picks are no sums


@final
class _Walk:
    """θ, and steps along what was picked."""

    def __init__(self, method: NoisyMaxEpochs, setting: EpochSetting) -> None:
        self._method, self._setting = method, setting
        self.theta = np.zeros((setting.n_arms, setting.dim))
        self.scale = np.ones((setting.n_arms, setting.dim))

    def learn(self, epoch: int, released: Array) -> None:
        points = CrossPolytope(self._setting.dim).points(np.asarray(released, dtype=np.int64))
        moves = self._method.length(epoch) * self._setting.scale * points.mean(axis=1)
        self.theta = into_l1_ball(self.theta + moves, self._setting.radius)

    def state(self) -> dict[str, Any]:
        return {"theta": self.theta.tolist()}


@lru_cache(maxsize=256)
def _choice(
    dim: int, clip: float, budget: Currency, top: int, adjacency: Adjacency
) -> ReportNoisyMax:
    made = ReportNoisyMax.calibrated(CrossPolytope(dim), clip, budget, top=top, adjacency=adjacency)
    # Of two arms, twice the half is rounded up once more: above the whole by the last digit.
    return replace(made, scale=made.scale * (1 + 1e-9))
