"""A public belief about θ, and public batches that it is learned from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast, final

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
        projected = np.matmul(features, self.root)
        return cast(Array, np.sqrt(np.einsum("...d,...d->...", projected, projected)))

    def drawn(self, normal: Array) -> Array:
        """θ − mean under the belief, from standard normal numbers (n, d); row by row."""
        return cast(Array, np.einsum("nd,ed->ne", normal, self.root))

    @property
    def root(self) -> Array:
        """R with RRᵀ the covariance, shape (d, d)."""
        if self._root is None:  # once for all users who are served from it
            root = np.linalg.cholesky(np.linalg.inv(self.precision))
            object.__setattr__(self, "_root", root)
        return cast(Array, self._root)


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


def public_ends(
    horizon: int,
    dim: int,
    rho: float,
    first: int | None = None,
    growth: float = 1.2,
    longest: int | None = None,
) -> list[int]:
    """`capped_ends` with defaults: ⌈3·dim/√ρ⌉ users first, and a thirtieth at most.

    The first batch must rise above the noise, and has at most an eighth of all.
    """
    enough = min(math.ceil(3 * dim / math.sqrt(rho)), max(horizon // 8, 1))
    begin = first or enough
    return capped_ends(horizon, begin, growth, longest or max(horizon // 30, begin))


def capped_ends(horizon: int, first: int, growth: float, longest: int) -> list[int]:
    """Public ends of batches that begin with ``first`` users and grow by ``growth`` up to a size.

    What is left at the end, if less than half a batch, goes with the last one.

    Raises:
        ValueError: ``first`` exceeds ``horizon`` or ``longest``.
    """
    if not 1 <= first <= horizon:
        raise ValueError(f"first_batch = {first}: must lie in 1..{horizon}, the number of users")
    if longest < first:
        raise ValueError(f"longest_batch = {longest}: must be at least {first}, the first batch")
    ends, size = [first], float(first)
    while ends[-1] < horizon:
        size = min(size * growth, longest)
        ends.append(min(ends[-1] + round(size), horizon))
    if len(ends) > 2 and 2 * (ends[-1] - ends[-2]) < size:
        del ends[-2]
    return ends
