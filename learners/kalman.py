"""A Newton step on noisy sums, weighted as a Kalman filter would weight it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast, final

import numpy as np

from privlearn.domains import Array


@final
@dataclass(frozen=True, slots=True)
class Belief:
    """A public Gaussian belief about θ: mean (d,) and precision (inverse covariance) (d, d)."""

    mean: Array
    precision: Array

    @classmethod
    def prior(cls, dim: int, precision: float) -> Belief:
        """Mean 0 and the same precision in every direction."""
        return cls(np.zeros(dim), precision * np.eye(dim))

    def updated(
        self, gradient: Array, hessian: Array, *, gradient_std: float, hessian_std: float
    ) -> Belief:
        """The belief after one batch, from released sums alone (post-processing, costs nothing).

        With H the batch's Hessian sum and g its gradient sum at the current mean, −H⁻¹g observes
        θ − mean with covariance H⁻¹(H + σ²I)H⁻¹: sampling noise H (the information equality) plus
        privacy noise σ².  Its information is W = H(H + σ²I)⁻¹H, which needs no inverse of H.

        Args:
            gradient: noisy sum of loss gradients at ``mean``, shape (d,).
            hessian: noisy sum of Hessians at ``mean``, shape (d, d).
            gradient_std: noise per coordinate of ``gradient``.
            hessian_std: noise per svec coordinate of ``hessian``.
        """
        values, vectors = np.linalg.eigh(_denoised(hessian, hessian_std))
        values = np.maximum(values, 0.0)
        gain = values / np.maximum(values + gradient_std**2, 1e-300)
        information = (vectors * (values * gain)) @ vectors.T
        precision = self.precision + information
        step = np.linalg.solve(precision, vectors @ (gain * (vectors.T @ gradient)))
        return Belief(self.mean - step, precision)

    def spread(self, features: Array) -> Array:
        """Standard deviation of x·θ under the belief, for features (..., d)."""
        root = np.linalg.cholesky(np.linalg.inv(self.precision))
        projected = np.matmul(features, root)
        return cast(Array, np.sqrt(np.einsum("...d,...d->...", projected, projected)))


def _denoised(matrix: Array, noise_std: float) -> Array:
    """Shrinks a noisy symmetric matrix towards a multiple of the identity.

    Positive-part James-Stein on the part orthogonal to the identity, whose noise has
    d(d+1)/2 − 1 svec coordinates: what is within the noise is not believed.
    """
    dim = len(matrix)
    mean = max(float(np.trace(matrix)) / dim, 0.0) * np.eye(dim)
    rest = matrix - mean
    energy = float(np.sum(rest * rest))
    noise = noise_std**2 * (dim * (dim + 1) / 2 - 1)
    keep = max(0.0, 1.0 - noise / energy) if energy > 0 else 0.0
    return mean + keep * rest


def batch_ends(horizon: int, first: int, growth: float) -> list[int]:
    """Public ends of batches of size first, first·growth, …, the last one cut at ``horizon``."""
    ends: list[int] = []
    size, end = float(first), 0.0
    while not ends or ends[-1] < horizon:
        end += size
        size *= growth
        ends.append(min(round(end), horizon))
    return ends


def default_first_batch(horizon: int, rho: float) -> int:
    """⌈30/√ρ⌉ users, at most an eighth of all: the first batch must rise above the noise."""
    return min(max(math.ceil(30 / math.sqrt(rho)), 1), max(horizon // 8, 1))
