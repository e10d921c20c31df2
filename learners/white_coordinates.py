"""Coordinates in which rows are about white, from one noisy Σzzᵀ: post-processing of it alone.

z is (x, g) with a public constant g, so that Σzzᵀ holds a noisy count of the rows and their sum.
Second moments are shrunk towards what columns in [−1, 1] usually have, correlations towards none,
each by how much of it is noise, and eigenvalues are lifted by the usual largest eigenvalue of the
noise: where noise hides a direction, the entries of u there are small, and little is learned of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array

_USUAL = 0.15
"""The usual variance of a column that was scaled into [−1, 1] by its bounds."""
_SEEN = 3.0
"""Standard deviations of noise, below which the variance of a column may be none."""
_LITTLE = 0.03
"""A variance that a column that says something mostly has."""
_LEAST_WEIGHT = 0.3
"""Of the rows, the part that are thought to be whole at least, whatever the noisy count says."""


class WhiteCoordinates(NamedTuple):
    """u = ((x − mean)·forward, constant), shape (d' + 1,).

    The coordinates are those of the eigenvectors of the shrunk correlation matrix.
    """

    mean: Array
    """Shape (d',)."""
    forward: Array
    """Shape (d', d')."""
    constant: float
    moments: Array
    """About E u², shape (d' + 1,)."""
    weight: float
    """About the part of all rows that is not null."""
    least_moments: Array
    """A low estimate of the second moments of x − mean, shape (d', d')."""
    hidden: NDArray[np.bool_]
    """Columns that hardly vary: less than noise may hide, and that is little; shape (d',)."""

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def energy(self) -> float:
        """About E‖u‖²."""
        return float(self.moments.sum())

    def answer(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of x, shape (K, d'), and intercepts, (K,), of θ of u, (K, d' + 1)."""
        coef = theta[:, :-1] @ self.forward.T
        return coef, self.constant * theta[:, -1] - coef @ self.mean


def white_coordinates(
    gram: Array, rows: float, added: float, noise: float, *, lifted: float, floor: float
) -> WhiteCoordinates:
    """The coordinates that a noisy Σzzᵀ gives.

    Args:
        gram: symmetric, shape (d' + 1, d' + 1); the last row is that of ``added``.
        rows: how many rows are in it, null ones included.
        added: g, the last entry of z.
        noise: standard deviation on the diagonal; off it the variance is half.
        lifted, floor: see `DescentRule`.
    """
    width = len(gram) - 1
    weight = float(np.clip(gram[-1, -1] / (added**2 * rows), _LEAST_WEIGHT, 1.0))
    noise_of_mean = noise / (math.sqrt(2) * rows * added)
    mean = np.clip(gram[:-1, -1] / (added * rows * weight), -1.0, 1.0)
    mean *= _USUAL / (_USUAL + noise_of_mean**2)
    moments = gram[:-1, :-1] / (rows * weight) - np.outer(mean, mean)
    noise = noise / (rows * weight)
    kept = _USUAL**2 / (_USUAL**2 + noise**2)
    variances = _USUAL + (np.diag(moments) - _USUAL) * kept
    variances = np.clip(variances, min(noise / 4 + 0.003, 1.0), 1.0)
    deviations = np.sqrt(variances)
    correlations, shrink = _correlations(moments, variances, noise)
    values, vectors = np.linalg.eigh(correlations)
    values = np.maximum(values, 0.0)
    hidden = lifted * shrink * noise * math.sqrt(2 * width) / float(variances.mean())
    raised = values + hidden + floor
    white = values / raised
    constant = math.sqrt(max(float(white.sum()), 0.001) / width)
    return WhiteCoordinates(
        mean,
        vectors / deviations[:, None] / np.sqrt(raised),
        constant,
        np.append(white, constant**2),
        weight,
        _least(moments, noise),
        (np.diag(moments) <= _SEEN * noise) & (_SEEN * noise < _LITTLE),
    )


def _least(moments: Array, noise: float) -> Array:
    """What is left of noisy second moments without what their noise may have added."""
    seen = np.diag(moments) > _SEEN * noise
    values, vectors = np.linalg.eigh(np.where(np.outer(seen, seen), moments, 0.0))
    # Eigenvalues of noise are below the edge, and it adds edge²/4 per λ to an eigenvalue λ beyond.
    edge = noise * math.sqrt(2 * max(int(seen.sum()), 1))
    beyond = np.maximum(values, edge)
    true = (beyond + np.sqrt(beyond * beyond - edge * edge)) / 2
    kept = np.where(values > edge, np.maximum(true - noise, 0.0), 0.0)
    return np.asarray((vectors * kept) @ vectors.T)


def _correlations(moments: Array, variances: Array, noise: float) -> tuple[Array, float]:
    """I + keep·R, with R the noisy correlations off the diagonal, and the part that is kept."""
    deviations = np.sqrt(variances)
    found = moments / np.outer(deviations, deviations)
    np.fill_diagonal(found, 0.0)
    inverse = 1 / variances
    usual = noise**2 / 2 * float(inverse.sum() ** 2 - (inverse * inverse).sum())
    energy = float((found * found).sum())
    keep = max(0.0, 1 - usual / energy) if energy > 0 else 0.0
    return np.eye(len(found)) + keep * found, keep
