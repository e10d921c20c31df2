"""How far the noise moved the coefficients of `WhitenedDescent`, from released numbers alone.

The answer is thought of as that of the same steps on a quadratic loss of curvature h·Σ, where Σ is
a lower estimate of the second moments, and h of the loss's curvature where gradients are not
clipped.  Too low a curvature makes an interval too wide, never too narrow: what the noise may hide
is 0, where the noise of steps adds up unhindered.  The noise of Σzzᵀ moves the coordinates, and
with them how far the steps come: that is simulated on the quadratic loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from privlearn.learners.white_coordinates import WhiteCoordinates
from privlearn.rows.domains import Array

_DRAWS, _LEAST_DRAWS = 24, 3  # Of the noise of Σzzᵀ
_MANY_NUMBERS: Final = 4000  # Of coefficients in all draws, beyond which there are fewer draws
_POINTS: Final = 512  # Of the law of scores
_CAUTION: Final = 0.75  # What a curvature may be less, as scores are not normal
_MANY_CLASSES: Final = 24  # Beyond which no curvature is worked out, as it takes K³: h is then 0
_TINY: Final = 1e-12
_LENGTHS: Final = 0.25  # Standard deviation of log ‖u‖


class Step(NamedTuple):
    """One step of the path."""

    eta: float
    """The size of the step."""
    std: float
    """Of the noise that it added to each number of θ."""


def shrunk_answer(
    answer: Array,
    path: Sequence[Step],
    first: int,
    space: WhiteCoordinates,
    redrawn: Callable[[Array], WhiteCoordinates],
    curvatures: Array,
    usual: float,
) -> tuple[Array, Array]:
    """Coefficients of x, shrunk, and the standard deviations of their noise, each (K, d').

    A column that hardly ever varies has hardly anything but noise: its coefficient is the posterior
    mean for a normal prior of usual size, and the standard deviation that of the posterior.

    Args:
        answer: released coefficients of x, shape (K, d').
        path, first: all steps, and from which on θ is averaged.
        space: the coordinates.
        redrawn: the coordinates for other noise of Σzzᵀ: of draws of symmetric matrices, in units
            of its standard deviation, shape (d' + 1, d' + 1).
        curvatures: h of each output, across and along its scores, shape (K, 2).
        usual: standard deviation of coefficients that the prior has at least.
    """
    count = min(max(_MANY_NUMBERS // answer.size, _LEAST_DRAWS), _DRAWS)
    rng, size = np.random.default_rng(0), space.width + 1  # an integral by fixed points
    draws = (rng.standard_normal((size, size)) for _ in range(count))
    forward = np.stack([space.forward, *(redrawn((d + d.T) / 2).forward for d in draws)])
    found = []
    for coef, h in zip(answer, _CAUTION * curvatures, strict=True):
        hessian = _curved(coef, space.least_moments, *h)
        noise = _noise_of_steps(path, first, space.forward, hessian)
        kept = _kept(coef, noise, space.hidden, usual)
        noise += (_moves(coef, path, first, forward, hessian) ** 2).mean(axis=0)
        found.append((kept * coef, np.sqrt(kept * noise)))
    coefs, stds = zip(*found, strict=True)
    return np.array(coefs), np.array(stds)


def _curved(coef: Array, moments: Array, across: float, along: float) -> Array:
    """Second derivatives of the mean loss."""
    pull = moments @ coef
    energy = max(float(coef @ pull), _TINY)
    return np.asarray(across * moments + (along - across) * np.outer(pull, pull) / energy)


def _kept(coef: Array, noise: Array, hidden: NDArray[np.bool_], usual: float) -> Array:
    """The factors that make the posterior mean of hidden columns, for a normal prior."""
    seen = coef[~hidden]
    prior = max(usual**2, float((seen**2).mean()) if len(seen) else 0.0)
    return np.asarray(np.where(hidden, prior / (prior + noise), 1.0))


def _axes(forward: Array, hessian: Array) -> tuple[Array, Array]:
    """x of the coordinates that steps leave apart, and their curvatures."""
    values, vectors = np.linalg.eigh(np.swapaxes(forward, -1, -2) @ hessian @ forward)
    return forward @ vectors, np.maximum(values, 0.0)


def _noise_of_steps(path: Sequence[Step], first: int, forward: Array, hessian: Array) -> Array:
    """Variances of the noise of coefficients."""
    axes, values = _axes(forward, hessian)
    return np.asarray(axes**2 @ _along(path, first, values)[0])


def _moves(coef: Array, path: Sequence[Step], first: int, forward: Array, hessian: Array) -> Array:
    """Coefficients that the path would have in other coordinates, less those that it has."""
    axes, values = _axes(forward, hessian)
    reached = _along(path, first, values)[1]
    pull = np.linalg.solve(axes[0] * reached[0], coef)  # gradient at 0
    pulls = np.swapaxes(np.linalg.solve(axes[:1], axes), 1, 2) @ pull
    return np.asarray(np.einsum("kde,ke->kd", axes, reached * pulls)[1:] - coef)


def _along(path: Sequence[Step], first: int, curvature: Array) -> tuple[Array, Array]:
    """Variance of the mean θ from the ``first`` on, and that mean per gradient at θ₀ = 0."""
    weight = variance = reached = np.zeros_like(curvature)
    for number in reversed(range(len(path))):
        weight = weight + (number >= first)
        variance = variance + (weight * path[number].std) ** 2
        reached = reached + weight * path[number].eta
        weight = weight * np.clip(1 - path[number].eta * curvature, 0.0, 1.0)
    kept = max(len(path) - first, 1)
    return variance / kept**2, reached / kept


def curvature_of_scores(center: Array, spread: Array, clip: float, dim: int) -> Array:
    """E h and E h·t², where gradients are not clipped, for normal scores, shape (K, 2).

    Here h is the curvature of a score, of several the least one of what sets them apart, and t is
    the score, standardised.

    Args:
        center, spread: mean, shape (K,), and covariance of scores, (K, K); K = 1: logistic.
        clip: of residuals, for rows of usual length.
        dim: of rows.
    """
    classes = len(center)
    if classes > _MANY_CLASSES:
        return np.zeros((classes, 2))
    points = np.random.default_rng(0).standard_normal((_POINTS, classes + 1))  # fixed ones
    values, vectors = np.linalg.eigh(spread)
    apart = points[:, :-1] * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    variances = (apart**2).mean(axis=0)
    squares = apart**2 / np.maximum(variances, _TINY)
    # scores that hardly vary say nothing of a row, which is then of usual length
    usual = np.where(variances > _TINY, squares, 1.0)
    lengths = (dim - 1 + usual.mean(axis=1, keepdims=True)) / dim
    clips = clip * np.exp(_LENGTHS * points[:, -1:]) / np.sqrt(lengths)
    weights = np.dstack([np.ones_like(squares), squares])
    if classes == 1:
        odds = expit(center + apart)
        inside = odds * (1 - odds <= clips) + (1 - odds) * (odds <= clips)
        return np.asarray(((odds * (1 - odds) * inside)[:, :, None] * weights).mean(axis=0))
    odds = softmax(center + apart, axis=1)
    residuals = (odds**2).sum(axis=1, keepdims=True) + 1 - 2 * odds  # ‖r‖², by label
    inside = (odds * (residuals <= clips**2)).sum(axis=1)
    curved = odds[:, :, None] * (np.eye(classes) - odds[:, None, :])
    found = np.einsum("p,pkw,pij->kwij", inside, weights, curved) / len(points)
    return np.linalg.eigvalsh(found)[:, :, 1]
