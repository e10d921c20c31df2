r"""How DP-HDB learns from epochs: sums of increments with correlated noise, and a sparse posterior.

A user of epoch k with arm a has the row −φ'(x·θ_a; r)·(w_a∘x)/C, in the unit ball: θ is the public
estimate, w_a > 0 are public weights of coordinates and C is a public clip.  With n users, of whom
every arm has its public share n/K, the epoch's sum has about the mean u∘(θ* − θ) by arm,

    u = (n/K)·γ·φ″·E[x_j²]·w/C,

γ the share of an increment that clipping leaves of a normal residual.  Where noise is correlated
over epochs (`CorrelatedSums`), θ* is estimated coordinate by coordinate by generalized least
squares from all sums so far, with the covariance of their noise, and then by its posterior mean for
independent coordinates that are 0 or normal, with public grids for how many and how large.  What is
not known is measured best: w_a² is proportional to the posterior's variance, and C to the residual
that it predicts.  So the noise falls with the number of coordinates that may still matter.

All of it is post-processing, and every user is in one row of one stream, at the whole budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from privlearn.contract.protocols import Accountant
from privlearn.learners.batch_sums import BatchSums, CorrelatedSums
from privlearn.learners.participation import rule_of
from privlearn.losses.budgets import Currency
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz
from privlearn.mechanisms.least_noise import gaussian_noise
from privlearn.rows.domains import Array, Ball, OneOf
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import finite, not_negative, positive, within

_DECAYS: Final = ((0.35,), (0.99,))
"""Of the noise: an epoch's sum is released with .65 of that before, .42 of the one before, ..."""
_SIZES: Final = np.geomspace(0.02, 1.0, 6)  # Standard deviations of entries that are not 0
_PARTS: Final = np.array([0.03, 0.1, 0.3, 1.0])  # How many of them are not


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
    """What each epoch may spend, if every epoch has noise of its own."""
    adjacency: Adjacency

    @property
    def spread(self) -> float:
        """Usual ℓ2 norm of a scaled context."""
        return math.sqrt(self.dim * self.curvature)

    @property
    def scale(self) -> float:
        """Usual size of a score."""
        return self.slope / self.bend

    def step(self, users: int) -> float:
        """1/curvature of the sum over an epoch, if every arm has its public share of the users."""
        return self.n_arms / (users * self.bend * self.curvature)


class EpochEstimate(Protocol):
    """What the learner goes on from; a function of releases and public counts."""

    theta: Array
    """shape (K, d), for scaled contexts."""
    scale: Array
    """What the increments of the next epoch are multiplied by, shape (K, d)."""

    def learn(self, epoch: int, released: Array) -> None:
        """Takes what an epoch released."""

    def state(self) -> dict[str, Any]:
        """All of it, as JSON."""


@runtime_checkable
class Epochs(Protocol):
    """What is released of an epoch, and what is learned from it."""

    @property
    def growth(self) -> float:
        """Ratio of consecutive epoch lengths, >= 1."""

    def first_length(self, setting: EpochSetting) -> int:
        """Users in the first epoch, by default."""

    def steps(self, setting: EpochSetting, sizes: list[int], accountant: Accountant[Any]) -> Any:
        """What is released of increments, over epochs of these sizes; kept in the ledger."""

    def sums(self, steps: Any, batches: list[range], accountant: Accountant[Any]) -> BatchSums[Any]:
        """Releases ``steps``, with the label ``epoch``."""

    def estimate(self, setting: EpochSetting, sums: BatchSums[Any]) -> EpochEstimate:
        """The estimate before anything is released."""


@final
@dataclass(frozen=True, slots=True)
class CorrelatedEpochs:
    """One stream of sums over short epochs, and the sparse posterior; see the module.

    Args:
        growth: ratio of consecutive epoch lengths, >= 1.
        clip: C for a context of the usual norm, in standard deviations of the residual that the
            posterior predicts.  Increments whose φ' is bounded anyway are not clipped below that.
        first_std: the first epoch is as long as it takes for this standard deviation of its
            estimates, if it were alone, in units of the usual score; at most an eighth of the
            horizon.
        first_score: what x·θ is thought to be at first, in the same units.
        noise: of rewards, which stays in residuals, in the same units.
        least_weight: of a coordinate, against the one of which least is known, in (0, 1].
    """

    growth: float = 1.03
    clip: float = 0.5
    first_std: float = 0.35
    first_score: float = 0.16
    noise: float = 0.05
    least_weight: float = 0.1

    def __post_init__(self) -> None:
        check_growth(self.growth)
        positive(clip=self.clip)
        positive(first_std=self.first_std)
        positive(first_score=self.first_score)
        not_negative(noise=self.noise)
        within("(0, 1]", least_weight=self.least_weight)

    def first_length(self, setting: EpochSetting) -> int:
        """Users until the noise on an estimate is `first_std`."""
        bound, kept = self.bound(setting, self.first_score * setting.scale)
        noise = gaussian_noise(_domain(setting), setting.budget, setting.adjacency).std
        noise *= bound / kept
        return warm_up_length(noise * setting.step(1), self.first_std, setting)

    def bound(self, setting: EpochSetting, score: float) -> tuple[float, float]:
        """C, and γ, where x·(θ* − θ) has the standard deviation ``score``."""
        if setting.kept:
            return setting.slope * setting.spread, 1.0
        residual = setting.bend * math.hypot(score, self.noise * setting.scale)
        return self.clip * residual * setting.spread, math.erf(self.clip / math.sqrt(2))

    def steps(
        self, setting: EpochSetting, sizes: list[int], accountant: Accountant[Any]
    ) -> BatchedPrefixSum[Any]:
        """K running sums of rows of the unit ball, (K, d)."""
        return BatchedPrefixSum.calibrated(
            _domain(setting),
            accountant.budget,
            sizes=sizes,
            adjacency=accountant.adjacency,
            participation=rule_of(accountant),
            factorization=BufferedToeplitz(len(sizes), *_DECAYS),
        )

    def sums(
        self, steps: Any, batches: list[range], accountant: Accountant[Any]
    ) -> CorrelatedSums[Any]:
        return CorrelatedSums("epoch", steps, batches, accountant)

    def estimate(self, setting: EpochSetting, sums: BatchSums[Any]) -> SparseEstimate:
        return SparseEstimate(self, setting, sums)


def _domain(setting: EpochSetting) -> OneOf[Array]:
    return OneOf(Ball(1.0, setting.dim), setting.n_arms)


class _Epoch(NamedTuple):
    """What one epoch tells; arrays (K, d)."""

    users: int
    signal: Array
    """u."""
    seen: Array
    """The noisy sum plus u∘θ, which is u∘θ* but for noise."""


@final
class SparseEstimate:
    """The posterior mean of `CorrelatedEpochs`, and the weights and the clip that follow."""

    def __init__(
        self, method: CorrelatedEpochs, setting: EpochSetting, sums: BatchSums[Any]
    ) -> None:
        self._method, self._setting, self._sums = method, setting, sums
        self._epochs: dict[int, _Epoch] = {}
        blank = np.zeros((setting.n_arms, setting.dim))
        score = method.first_score * setting.scale
        self._hold(blank, blank + score**2 / setting.spread**2)

    def _hold(self, theta: Array, variance: Array) -> None:
        """Makes these the estimate; weights and clip follow."""
        setting = self._setting
        self.theta = into_l1_ball(theta, setting.radius)
        self._variance = variance
        most = variance.max(axis=1, keepdims=True)
        weights = np.maximum(np.sqrt(variance / most), self._method.least_weight)
        weights /= np.sqrt((weights**2).mean(axis=1, keepdims=True))
        score = math.sqrt(setting.curvature * float(variance.sum(axis=1).max()))
        bound, self._kept = self._method.bound(setting, score)
        self.scale = weights / bound

    def learn(self, epoch: int, released: Array) -> None:
        users = len(self._sums.users(epoch))
        signal = self._kept * self.scale / self._setting.step(users)
        seen = released.reshape(self.theta.shape) + signal * self.theta
        self._epochs[epoch] = _Epoch(users, signal, seen)
        found, variance = self._least_squares()
        self._hold(*posterior(found, variance, self._setting.scale))

    def _least_squares(self) -> tuple[Array, Array]:
        """Of θ* from all epochs, coordinate by coordinate: the estimate and its variance."""
        setting, epochs = self._setting, list(self._epochs.values())
        # a row in the unit ball has 1/d in each coordinate, on the average of all
        sampling = [epoch.users / (setting.n_arms * setting.dim) for epoch in epochs]
        noise = self._sums.covariance(list(self._epochs)) + np.diag(sampling)
        columns = [np.concatenate([epoch.signal, epoch.seen]).ravel() for epoch in epochs]
        rows = solve_triangular(cholesky(noise, lower=True), columns, lower=True)
        signal, seen = np.split(rows, 2, axis=1)
        precision = (signal**2).sum(axis=0).reshape(self.theta.shape)
        found = (signal * seen).sum(axis=0).reshape(self.theta.shape) / precision
        return found, 1 / precision

    def state(self) -> dict[str, Any]:
        return {
            "theta": self.theta.tolist(),
            "variance": self._variance.tolist(),
            "scale": self.scale.tolist(),
        }


def posterior(found: Array, variance: Array, scale: float) -> tuple[Array, Array]:
    """Mean and variance of θ, entry by entry, from estimates with normal errors.

    Entries are 0 or N(0, s²).  How many are not 0, and s (in units of ``scale``), are averaged over
    grids, by the likelihood of all entries.

    Args:
        found: estimates, any shape.
        variance: of their errors, the same shape.
        scale: usual size of a score.
    """
    size = np.repeat((scale * _SIZES) ** 2, len(_PARTS))[:, None]
    part = np.tile(_PARTS, len(_SIZES))[:, None]
    y, v = found.ravel(), variance.ravel()
    with np.errstate(divide="ignore"):
        zero = np.log1p(-part) - (np.log(v) + y**2 / v) / 2
    other = np.log(part) - (np.log(v + size) + y**2 / (v + size)) / 2
    likelihood = np.logaddexp(zero, other)
    inclusion, shrinkage = np.exp(other - likelihood), size / (size + v)
    total = likelihood.sum(axis=1)
    weight = np.exp(total - total.max())
    weight /= weight.sum()
    mean = weight @ (inclusion * shrinkage * y)
    square = weight @ (inclusion * shrinkage * (shrinkage * y**2 + v))
    left = np.maximum(square - mean**2, 1e-12 * scale**2)
    return mean.reshape(found.shape), left.reshape(found.shape)


def check_growth(growth: float) -> None:
    """Raises ValueError if epochs would shrink."""
    if finite(growth=growth) < 1:
        raise ValueError(f"growth = {growth!r}: must be >= 1")


def warm_up_length(noise: float, std: float, setting: EpochSetting) -> int:
    """Users in the first epoch: enough for noise and for sampling, within an eighth of all."""
    wanted = max(round(noise / (std * setting.scale)), 20 * setting.n_arms)
    return max(min(wanted, setting.horizon // 8), min(setting.n_arms, setting.horizon))


def into_l1_ball(theta: Array, radius: float) -> Array:
    """Scales each row, shape (K, d), into the ℓ1 ball."""
    norms = np.abs(theta).sum(axis=1, keepdims=True)
    return np.asarray(theta * np.minimum(1.0, radius / np.maximum(norms, radius)))


def epoch_ends(horizon: int, first: int, growth: float) -> list[int]:
    """Ends of public epochs of sizes ⌊first·growth^k⌋ that cover ``horizon`` users."""
    ends, size = [min(first, horizon)], float(first)
    while ends[-1] < horizon:
        size = min(size * growth, float(horizon))
        ends.append(min(ends[-1] + int(size), horizon))
    return ends
