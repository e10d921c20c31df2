"""DP-HDB as it was published: steps along vertices that report-noisy-max picks for every arm.

For every arm the best few of the 2d vertices ±e_j are released, and θ_a moves along them.  The sign
is part of the vertex; the sums themselves are never used.

    DPHDB(n_arms=2, dim=50, method=NoisyMaxEpochs())

Source: Han et al. 2022, Algorithm 3, with the repairs of `privlearn.learners.hdb`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np

from privlearn.learners.hdb_epochs import (
    EpochSetting,
    Estimate,
    check_epochs,
    into_l1_ball,
    warm_up_length,
)
from privlearn.losses.budgets import Currency
from privlearn.mechanisms.noisy_max import ReportNoisyMax
from privlearn.mechanisms.noisy_sum import NoisySum
from privlearn.mechanisms.one_of_k import OneOfK
from privlearn.mechanisms.vertices import CrossPolytope
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
        clip, clip_decay, clip_floor: as for `GaussianEpochs`; an increment is scaled into the ℓ∞
            ball of that radius.
        first_step, step: ℓ1 length of a step, in units of the usual score, shared equally by the
            picks; in the first epoch and in the second.
        step_decay: its ratio from the second epoch on.
        first_std: as for `GaussianEpochs`, of the noise on a score.
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
        check_epochs(self.growth, self.clip, self.clip_decay, self.clip_floor, self.first_std)
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

    def second_moments(self, setting: EpochSetting) -> NoisySum[Array] | None:
        """None: steps are along vertices."""
        return None

    def _single(self, setting: EpochSetting, epoch: int) -> ReportNoisyMax:
        """One arm's choice; another arm's differs from the null one by half as much (`OneOfK`)."""
        picks = self.first_picks if epoch == 0 else self.picks
        clip = setting.clip(self.clip, self.clip_decay, self.clip_floor, epoch)
        top = min(picks, 2 * setting.dim - 1)
        return _choice(setting.dim, clip, setting.budget, top, setting.adjacency)

    def learn(
        self,
        old: Estimate,
        released: Array,
        setting: EpochSetting,
        epoch: int,
        users: int,
        mechanism: OneOfK[Array],
    ) -> Estimate:
        """A step along the picked vertices."""
        length = self.first_step if epoch == 0 else self.step * self.step_decay ** (epoch - 1)
        points = CrossPolytope(setting.dim).points(np.asarray(released, dtype=np.int64))
        moves = length * setting.scale * points.mean(axis=1)
        theta = into_l1_ball(old.theta + moves, setting.radius)
        return Estimate(theta, theta, 0.0, 0.0)


@lru_cache(maxsize=256)
def _choice(
    dim: int, clip: float, budget: Currency, top: int, adjacency: Adjacency
) -> ReportNoisyMax:
    made = ReportNoisyMax.calibrated(CrossPolytope(dim), clip, budget, top=top, adjacency=adjacency)
    # Of two arms, twice the half is rounded up once more: above the whole by the last digit.
    return replace(made, scale=made.scale * (1 + 1e-9))
