"""A public belief about θ from released gradient and Hessian sums of disjoint batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, final

import numpy as np

from privlearn.rows.domains import Array
from privlearn.values.records import frozen


@final
@dataclass(frozen=True, slots=True)
class Belief:
    """A Gaussian belief about θ: mean (d,) and precision (inverse covariance) (d, d), read-only."""

    mean: Array
    precision: Array
    _root: Array | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", frozen(self.mean))
        object.__setattr__(self, "precision", frozen(self.precision))

    def spread(self, features: Array) -> Array:
        """Standard deviation of x·θ under the belief, for features (..., d)."""
        if self._root is None:  # once for all users who are served from it
            root = np.linalg.cholesky(np.linalg.inv(self.precision))
            object.__setattr__(self, "_root", root)
        projected = np.matmul(features, cast(Array, self._root))
        return cast(Array, np.sqrt(np.einsum("...d,...d->...", projected, projected)))


class _Batch(NamedTuple):
    users: int
    at: Array
    gradient: Array
    hessian: Array


@final
@dataclass(slots=True)
class BatchStatistics:
    """All that was released so far, and the belief it gives; pure post-processing.

    A batch of n users with noisy gradient sum g at θ_k and Hessian sum H observes θ as θ_k − H⁻¹g,
    with covariance H⁻¹(H + σ²I)H⁻¹: sampling noise H (the information equality) plus privacy noise
    σ².  Its information is W = H(H + σ²I)⁻¹H, and W(θ_k − H⁻¹g) = Wθ_k − H(H + σ²I)⁻¹g needs no
    inverse of H.

    Args:
        dim: d.
        prior_precision: of the prior N(0, I/prior_precision).
        gradient_std: noise per coordinate of each gradient sum.
        hessian_std: noise per svec coordinate of each Hessian sum.
    """

    dim: int
    prior_precision: float
    gradient_std: float
    hessian_std: float
    batches: list[_Batch] = field(default_factory=list)

    def add(self, batch: int, users: int, at: Array, gradient: Array, hessian: Array) -> None:
        """Adds the sums that a batch of ``users`` users released at the parameter ``at``."""
        self.batches.append(_Batch(users, at, gradient, hessian))

    def belief(self) -> Belief:
        precision = self.prior_precision * np.eye(self.dim)
        if not self.batches:
            return Belief(np.zeros(self.dim), precision)
        moment = np.zeros(self.dim)
        for batch, hessian in zip(self.batches, self._denoised_hessians(), strict=True):
            values, vectors = np.linalg.eigh(hessian)
            values = np.maximum(values, 0.0)
            gain = values / np.maximum(values + self.gradient_std**2, 1e-300)
            information = (vectors * (values * gain)) @ vectors.T
            precision = precision + information
            moment = (
                moment + information @ batch.at - vectors @ (gain * (vectors.T @ batch.gradient))
            )
        mean = cast(Array, np.linalg.solve(precision, moment))
        return Belief(mean, precision)

    def _denoised_hessians(self) -> list[Array]:
        """Each batch's Hessian sum, shrunk towards its share of the sum over all batches.

        That sum in turn is shrunk towards a multiple of the identity; both by `shrunk`, which
        believes only what stands out of the noise.
        """
        users = sum(batch.users for batch in self.batches)
        total = cast(Array, np.sum([batch.hessian for batch in self.batches], axis=0))
        eye = max(float(np.trace(total)) / self.dim, 0.0) * np.eye(self.dim)
        coordinates = self.dim * (self.dim + 1) / 2
        variance = self.hessian_std**2
        pooled = shrunk(total, eye, variance * len(self.batches) * (coordinates - 1))
        hessians = []
        for batch in self.batches:
            part = batch.users / users
            own = (1 - part) ** 2 + part**2 * (len(self.batches) - 1)
            difference = batch.hessian - part * total
            hessians.append(
                part * pooled
                + shrunk(difference, np.zeros_like(difference), variance * own * coordinates)
            )
        return hessians

    def to_dict(self) -> dict[str, Any]:
        return {"batches": [[b.users, *(x.tolist() for x in b[1:])] for b in self.batches]}


def shrunk(matrix: Array, target: Array, noise: float) -> Array:
    """Positive-part James-Stein: shrinks ``matrix`` − ``target``, whose noise has energy ``noise``.

    Args:
        matrix: noisy symmetric matrix, (d, d).
        target: what to shrink to, (d, d).
        noise: expected squared Frobenius norm of the noise in the difference.
    """
    difference = matrix - target
    energy = float(np.sum(difference * difference))
    keep = max(0.0, 1.0 - noise / energy) if energy > 0 else 0.0
    return target + keep * difference


def batch_ends(horizon: int, first: int, growth: float) -> list[int]:
    """Public ends of batches that grow by about ``growth`` and fill ``horizon`` exactly.

    The first batch has ``first`` users; the ratio is moved from ``growth`` to the nearest value
    for which the last batch is a full one.

    Raises:
        ValueError: ``first`` exceeds ``horizon``.
    """
    if not 1 <= first <= horizon:
        raise ValueError(f"first_batch = {first}: must lie in 1..{horizon}, the number of users")
    batches = max(round(math.log1p(horizon * (growth - 1) / first) / math.log(growth)), 1)
    batches = min(batches, horizon // first)  # a smaller growth would need shrinking batches
    if batches == 1:
        return [horizon]
    if batches * first == horizon:
        return list(range(first, horizon + 1, first))

    def end(ratio: float, k: int) -> float:
        return first * k if ratio == 1 else first * (ratio**k - 1) / (ratio - 1)

    low, high = 1.0, (horizon / first) ** (1 / (batches - 1))  # only the last batch is shorter
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if end(middle, batches) < horizon else (low, middle)
    return [*(round(end(high, k)) for k in range(1, batches)), horizon]


def default_first_batch(horizon: int, dim: int, rho: float) -> int:
    """⌈6·dim/√ρ⌉ users, at most an eighth of all: the first batch must rise above the noise."""
    return min(math.ceil(6 * dim / math.sqrt(rho)), max(horizon // 8, 1))
