"""How DP-HDB learns from an epoch: what is released of its increments, and the step that follows.

Constants are scaled by public sizes only (`EpochSetting`); one token pays for all arms of an epoch
(`OneOfK`), at the whole budget, since epochs have no user in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol, cast, final, runtime_checkable

import numpy as np

from privlearn.losses.budgets import Currency
from privlearn.mechanisms.noisy_sum import NoisySum
from privlearn.mechanisms.one_of_k import OneOfK
from privlearn.rows.domains import Array, Ball, PSDTrace
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import finite, not_negative, positive, within


class EpochSetting(NamedTuple):
    """Public sizes that the constants of an epoch are scaled by."""

    n_arms: int
    """K."""
    dim: int
    """d."""
    horizon: int
    """T."""
    slope: float
    """Size of a derivative φ' that is worth keeping: the reward bound, or half of |φ'|'s bound."""
    kept: bool
    """Whether derivatives stay of that size however good the estimates, as for binary rewards."""
    bend: float
    """Bound on φ''."""
    curvature: float
    """Mean square of one scaled context entry."""
    radius: float
    """Of the ℓ1 ball that θ_a is scaled into."""
    budget: Currency
    """What each epoch may spend."""
    adjacency: Adjacency

    @property
    def spread(self) -> float:
        """Usual ℓ2 norm of a scaled context."""
        return math.sqrt(self.dim * self.curvature)

    @property
    def scale(self) -> float:
        """Usual size of a score."""
        return self.slope / self.bend

    def clip(self, clip: float, decay: float, floor: float, epoch: int) -> float:
        """Bound on φ' in one epoch; the constants are in units of the slope."""
        return self.slope * (1.0 if self.kept else max(clip * decay**epoch, floor))

    def step(self, users: int) -> float:
        """1/curvature of the sum over an epoch, if every arm has its public share of the users."""
        return self.n_arms / (users * self.bend * self.curvature)


class Estimate(NamedTuple):
    """What the learner goes on from; a function of releases and public counts."""

    theta: Array
    """shape (K, d), for scaled contexts."""
    pooled: Array
    """Before thresholds, shape (K, d)."""
    variance: float
    """Of the noise on an entry of ``pooled``."""
    weight: float
    """Sum of the weights of all epochs so far, the past forgotten."""


class Moments(NamedTuple):
    """Released second moments of contexts so far."""

    total: Array
    """Σxxᵀ, shape (d, d)."""
    users: int
    variance: float
    """Of the noise on its diagonal; half of it off the diagonal."""

    def damping(self, curvature: float) -> Array:
        """What sums of increments are multiplied by, symmetric (d, d), once there are users.

        Along eigenvectors of the mean of xxᵀ whose eigenvalue exceeds ``curvature`` by more than
        the usual largest eigenvalue of the noise it is curvature/eigenvalue, else 1.
        """
        values, vectors = np.linalg.eigh(self.total / self.users)
        noise = math.sqrt(2 * len(values) * self.variance) / self.users
        factors = np.where(values > curvature + noise, curvature / values, 1.0)
        return np.asarray((vectors * factors) @ vectors.T)


@runtime_checkable
class Epochs(Protocol):
    """What is released of an epoch, and what is learned from it."""

    @property
    def growth(self) -> float:
        """Ratio of consecutive epoch lengths, >= 1."""

    def first_length(self, setting: EpochSetting) -> int:
        """Users in the first epoch, by default."""

    def mechanism(self, setting: EpochSetting, epoch: int) -> OneOfK[Array]:
        """What is released at the end of an epoch, at the whole budget."""

    def second_moments(self, setting: EpochSetting) -> NoisySum[Array] | None:
        """What is released of contexts only at the end of an epoch; None for nothing."""

    def learn(
        self,
        old: Estimate,
        released: Array,
        setting: EpochSetting,
        epoch: int,
        users: int,
        mechanism: OneOfK[Array],
    ) -> Estimate:
        """The next estimate, from what ``mechanism`` released after ``users`` users."""


@final
@dataclass(frozen=True, slots=True)
class GaussianEpochs:
    """Pooled and thresholded estimates from one Gaussian release per epoch.

    Args:
        growth: ratio of consecutive epoch lengths, >= 1.
        clip: bound on φ' in the first epoch for a context of the usual norm, in units of the reward
            bound; an increment is scaled into the ℓ2 ball of radius clip·(usual norm).
        clip_decay: its ratio from one epoch to the next, in (0, 1].
        clip_floor: the least one.
        first_step, step: step sizes in units of 1/curvature; above 1 they make up for clipping.
        first_threshold, threshold: soft threshold in standard deviations of the noise left.
        memory: weight of the past from one epoch to the next, in [0, 1].
        keep: entries beyond so many standard deviations are not shrunk.
        first_std: the first epoch is as long as it takes for this standard deviation of its
            estimates, in units of the usual score, but at most an eighth of the horizon.
        moments: share of each epoch's budget, in [0, 1), for Σxxᵀ over all its users; 0 for none.
            Directions whose second moment stands out of the noise are then stepped along by its
            inverse (`damping`): where contexts are correlated the regret is up to a third less,
            where they are independent 4% more (docs/benchmarks.md).
    """

    growth: float = 1.15
    clip: float = 0.08
    clip_decay: float = 0.85
    clip_floor: float = 0.032
    first_step: float = 1.0
    step: float = 1.6
    first_threshold: float = 0.5
    threshold: float = 1.4
    memory: float = 0.4
    keep: float = 3.0
    first_std: float = 0.04
    moments: float = 0.15

    def __post_init__(self) -> None:
        check_epochs(self.growth, self.clip, self.clip_decay, self.clip_floor, self.first_std)
        positive(first_step=self.first_step)
        positive(step=self.step)
        not_negative(first_threshold=self.first_threshold)
        not_negative(threshold=self.threshold)
        not_negative(keep=self.keep)
        within("[0, 1]", memory=self.memory)
        within("[0, 1)", moments=self.moments)

    def first_length(self, setting: EpochSetting) -> int:
        """Users until the noise on an estimate is `first_std`."""
        noise = _noise_std(self.mechanism(setting, 0))
        return warm_up_length(noise * setting.step(1), self.first_std, setting)

    def mechanism(self, setting: EpochSetting, epoch: int) -> OneOfK[Array]:
        """K Gaussian sums of increments, (K, d)."""
        clip = setting.clip(self.clip, self.clip_decay, self.clip_floor, epoch)
        ball = Ball(clip * setting.spread, setting.dim)
        budget = setting.budget.share(1 - Fraction(str(self.moments)))
        return OneOfK.calibrated(ball, budget, arms=setting.n_arms, adjacency=setting.adjacency)

    def second_moments(self, setting: EpochSetting) -> NoisySum[Array] | None:
        """Σxxᵀ over the users of an epoch, whatever arm they got, (d, d)."""
        if not self.moments:
            return None
        return NoisySum.calibrated(
            PSDTrace(setting.spread**2, setting.dim),
            setting.budget.share(Fraction(str(self.moments))),
            adjacency=setting.adjacency,
        )

    def learn(
        self,
        old: Estimate,
        released: Array,
        setting: EpochSetting,
        epoch: int,
        users: int,
        mechanism: OneOfK[Array],
    ) -> Estimate:
        """One noisy Newton step, pooled with those before and thresholded."""
        step = setting.step(users) * (self.first_step if epoch == 0 else self.step)
        variance = (step * _noise_std(mechanism)) ** 2
        weight = old.weight * self.memory + 1 / variance
        share = 1 / (variance * weight)
        pooled = (1 - share) * old.pooled + share * (old.theta + step * released)
        left = (1 - share) ** 2 * old.variance + share**2 * variance
        std = math.sqrt(left)
        bar = self.first_threshold if epoch == 0 else self.threshold
        theta = np.where(np.abs(pooled) > self.keep * std, pooled, soft(pooled, bar * std))
        return Estimate(into_l1_ball(theta, setting.radius), pooled, left, weight)


def _noise_std(arms: OneOfK[Array]) -> float:
    return cast(NoisySum[Array], arms.mechanism).error_std()


def check_epochs(growth: float, clip: float, decay: float, floor: float, std: float) -> None:
    """Raises ValueError for constants that are out of range."""
    if finite(growth=growth) < 1:
        raise ValueError(f"growth = {growth!r}: must be >= 1")
    positive(clip=clip)
    within("(0, 1]", clip_decay=decay)
    if positive(clip_floor=floor) > clip:
        raise ValueError(f"clip_floor = {floor!r}: must be at most clip = {clip!r}")
    positive(first_std=std)


def warm_up_length(noise: float, std: float, setting: EpochSetting) -> int:
    """Users in the first epoch: enough for noise and for sampling, within an eighth of all."""
    wanted = max(round(noise / (std * setting.scale)), 20 * setting.n_arms)
    return max(min(wanted, setting.horizon // 8), min(setting.n_arms, setting.horizon))


def soft(values: Array, bar: float) -> Array:
    """Soft threshold: towards 0 by ``bar``, entry by entry."""
    return cast(Array, np.sign(values) * np.maximum(np.abs(values) - bar, 0.0))


def into_l1_ball(theta: Array, radius: float) -> Array:
    """Scales each row, shape (K, d), into the ℓ1 ball."""
    norms = np.abs(theta).sum(axis=1, keepdims=True)
    return cast(Array, theta * np.minimum(1.0, radius / np.maximum(norms, radius)))


def epoch_ends(horizon: int, first: int, growth: float) -> list[int]:
    """Ends of public epochs of sizes ⌊first·growth^k⌋ that cover ``horizon`` users."""
    ends, size = [min(first, horizon)], float(first)
    while ends[-1] < horizon:
        size = min(size * growth, float(horizon))
        ends.append(min(ends[-1] + int(size), horizon))
    return ends
