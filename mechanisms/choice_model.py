"""The multinomial logit model: probabilities, gradients, Hessian factors, likelihood, MLE.

A user with offered features x_1..x_K (rows) chooses item i with probability
e^{x_i·θ}/(1{outside} + Σ_j e^{x_j·θ}); the outside option ("no purchase") has utility 0.

Hessian: H = Σ_j p_j (x_j − x̄)(x_j − x̄)ᵀ over all alternatives, the outside option included with
x = 0 and x̄ = Σ_j p_j x_j.  As a variance, tr H <= Σ p_j ‖x_j‖² <= 1 for items in
the unit ball.  Gradient of the loss: x̄ − x_choice, of norm < 2.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array
from privlearn.rows.domains.clipping import shortened

Items = NDArray[np.int64]

NO_ITEM = -1
"""No purchase as a choice; the filler of assortments with fewer than K items."""


class Answer(NamedTuple):
    """What a user was offered and chose; arrays of one user, or of a block with a leading axis."""

    features: Array
    """shape (K, d); rows of unused places are 0."""
    offered: Array
    """1 for a used place, 0 for an unused one; shape (K,)."""
    choice: Items
    """Place of the chosen item, or `NO_ITEM` for no purchase; a scalar."""


def clip_items(features: Array, scale: float = 1.0) -> Array:
    """Divides features by a public ``scale`` and scales each item, (..., d), into the unit ball."""
    with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of sealed data
        scaled = features if scale == 1 else features / scale
        norms = np.sqrt(np.einsum("...d,...d->...", scaled, scaled))
        if not (good := np.isfinite(norms)).all():
            scaled = np.where(good[..., None], scaled, shortened(scaled))
            norms = np.sqrt(np.einsum("...d,...d->...", scaled, scaled))
        return cast(Array, scaled / np.maximum(norms, 1.0)[..., None])


def utilities(features: Array, theta: Array) -> Array:
    """x·θ for features (..., d)."""
    return cast(Array, np.einsum("...d,d->...", features, theta))


def probabilities(answer: Answer, theta: Array, *, outside: bool) -> Array:
    """Choice probabilities of the offered places, shape (n, K); the rest is the outside option."""
    return shares(utilities(answer.features, theta), answer.offered, outside=outside)


def shares(values: Array, offered: Array, *, outside: bool) -> Array:
    """Choice probabilities from utilities (..., K) of the places that are offered.

    Where nothing can be chosen, all are 0.
    """
    values = np.where(offered > 0, values, -np.inf)
    floor = 0.0 if outside else -np.inf
    shift = np.maximum(values.max(axis=-1), floor)[..., None]
    shift = np.where(np.isneginf(shift), 0.0, shift)
    with np.errstate(invalid="ignore"):  # null rows are NaN throughout
        weights = np.exp(values - shift)
    total = weights.sum(axis=-1, keepdims=True)
    total = total + np.exp(-shift) if outside else np.where(total == 0, 1.0, total)
    return cast(Array, weights / total)


def chosen(answer: Answer) -> Array:
    """Features of the chosen item, 0 for no purchase, shape (n, d)."""
    bought = answer.choice != NO_ITEM
    place = np.where(bought, answer.choice, 0)[..., None, None]
    features = np.take_along_axis(answer.features, place, axis=-2)[..., 0, :]
    return cast(Array, np.where(bought[..., None], features, 0.0))


def gradients(answer: Answer, theta: Array, *, outside: bool) -> Array:
    """Gradient of each user's negative log-likelihood at ``theta``, shape (n, d)."""
    p = probabilities(answer, theta, outside=outside)
    mean: Array = np.einsum("...k,...kd->...d", p, answer.features)
    return mean - chosen(answer)


def hessian_factors(answer: Answer, theta: Array, *, outside: bool) -> Array:
    """Factors X of each user's Hessian XᵀX: rows √p_j (x_j − x̄), shape (n, K or K+1, d)."""
    p = probabilities(answer, theta, outside=outside)
    mean: Array = np.einsum("...k,...kd->...d", p, answer.features)[..., None, :]
    inside: Array = np.sqrt(p)[..., None] * (answer.features - mean)
    if not outside:
        return inside
    rest = np.sqrt(np.maximum(1.0 - p.sum(axis=-1), 0.0))[..., None, None]
    return np.concatenate([inside, -rest * mean], axis=-2)


def hessian_sum(answer: Answer, theta: Array, *, outside: bool) -> Array:
    """The sum of all users' Hessians, shape (d, d); **not private**.

    Without BLAS: for a few columns its threads cost more than they save when cores are busy.
    """
    factors = hessian_factors(answer, theta, outside=outside)
    return cast(Array, np.einsum("nkd,nke->de", factors, factors))


def log_likelihoods(answer: Answer, theta: Array, *, outside: bool) -> Array:
    """Log-probability of each user's choice, nats, shape (n,)."""
    p = probabilities(answer, theta, outside=outside)
    bought = answer.choice != NO_ITEM
    place = np.where(bought, answer.choice, 0)[..., None]
    inside = np.take_along_axis(p, place, axis=-1)[..., 0]
    return cast(Array, np.log(np.where(bought, inside, 1.0 - p.sum(axis=-1))))


def fit_mle(
    answer: Answer,
    *,
    outside: bool,
    prior_precision: float = 0.0,
    start: Array | None = None,
    tolerance: float = 1e-10,
) -> Array:
    """Maximises the likelihood by Newton's method with step halving; **not private**.

    Args:
        answer: all users, leading axis n.
        prior_precision: weight λ of a ridge λ‖θ‖²/2 (0: the plain MLE).
        start: first iterate, default 0.
        tolerance: largest accepted Newton decrement squared, nats.

    Returns:
        θ, shape (d,).

    Raises:
        RuntimeError: no maximum within 100 steps (separated or collinear data).
    """
    dim = answer.features.shape[-1]
    theta = np.zeros(dim) if start is None else np.array(start, dtype=float)
    ridge = prior_precision * np.eye(dim)

    def objective(at: Array) -> float:
        value = log_likelihoods(answer, at, outside=outside).sum()
        return float(-value + prior_precision / 2 * at @ at)

    current = objective(theta)
    for _ in range(100):
        gradient = gradients(answer, theta, outside=outside).sum(axis=0) + prior_precision * theta
        hessian = hessian_sum(answer, theta, outside=outside) + ridge
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        decrement = float(gradient @ step)
        if decrement <= tolerance:
            return cast(Array, theta - step)  # squares the remaining error once more
        size = 1.0
        while (trial := objective(theta - size * step)) > current - 0.25 * size * decrement:
            size /= 2
            if size < 1e-12:
                return theta
        theta, current = theta - size * step, trial
    raise RuntimeError("the likelihood has no maximum within 100 Newton steps")
