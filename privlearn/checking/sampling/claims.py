"""Claims as regions of what an event may do: P(E) on one data set, Q(E) on a neighbouring one.

Every guarantee bounds P(E) by a concave function of Q(E), in both orientations.  Its inverse, the
least parameter under which an event with probabilities (p, q) is possible, turns frequencies into a
lower bound on the loss (`Claim.strength`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.rows.domains import Array
from privlearn.values.exact import float_up

ORDERS = np.concatenate([1 + np.geomspace(0.01, 1, 8), np.geomspace(2.5, 256, 12)])
"""Where Rényi curves are asked; fewer orders only make a check more lenient."""


@dataclass(frozen=True)
class Claim:
    """A promise with one number that can be turned up until an observation becomes possible.

    Args:
        unit: of that number.
        value: which is promised.
        text: what is promised, in words.
        least: least number under which P(E) = p, Q(E) = q is possible, for arrays of these.
        failure: probability of an event that nothing is promised in: P = (1−δ)P₀ + δA and
            Q = (1−δ)Q₀ + δB, where P₀, Q₀ keep the promise.
    """

    unit: str
    value: float
    text: str
    least: Callable[[Array, Array], Array]
    failure: float = 0.0

    def strength(self, p: Array, q: Array) -> Array:
        """Least number under which P(E) = p, Q(E) = q is possible; 0 where p <= q."""
        if self.failure:
            rest = 1 - self.failure
            p, q = np.clip((p - self.failure) / rest, 0, 1), np.clip(q / rest, 0, 1)
        return np.asarray(np.nan_to_num(self.least(p, q), nan=0.0, posinf=np.inf))


def least_epsilon(p: Array, q: Array, slack: float = 0.0) -> Array:
    """Of (ε, slack)-DP."""
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.log(np.maximum(p - slack, 0) / q)
        down = np.log(np.maximum(1 - q - slack, 0) / (1 - p))
    return np.asarray(np.maximum(np.maximum(up, down), 0.0))


def least_mu(p: Array, q: Array) -> Array:
    """Of μ-Gaussian DP (Dong, Roth & Su 2022)."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.maximum(ndtri(p) - ndtri(q), 0.0))


def least_multiple(
    p: Array, q: Array, known: ArrayLike, curve: ArrayLike, worst: float = np.inf
) -> Array:
    """Of D_α <= multiple·curve(α) at every known order; for zCDP the curve is α.

    ``worst``: bound on the privacy loss itself at a multiple of 1, where the claim has one.
    """
    a = np.asarray(known)[:, None]
    p, q = np.ravel(p), np.ravel(q)
    best, size = np.zeros(len(p)), (a - 1) * np.asarray(curve)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = (np.log(p), np.log1p(-p)), (np.log(q), np.log1p(-q))
        for x, y in (logs, logs[::-1]):
            terms = [np.fmax(a * u - (a - 1) * v, -np.inf) for u, v in zip(x, y, strict=True)]
            ratio = np.logaddexp(*terms) / size
            best = np.fmax(best, np.fmax.reduce(ratio, axis=0))
    if np.isfinite(worst):
        best = np.fmax(best, least_epsilon(p, q) / worst)
    return np.asarray(np.where(p > q, best, 0.0))


def claim_of(promise: Any) -> Claim:
    """The claim that a loss, a currency or an (ε, δ) promise makes."""
    text = str(promise)
    match promise:
        case ApproxDP():
            least = partial(least_epsilon, slack=float(promise.delta))
            return Claim("epsilon", float(promise.epsilon), text, least)
        case PureDP():
            return Claim("epsilon", float_up(promise.epsilon), text, least_epsilon)
        case GaussianDP():
            return Claim("mu", promise.mu, text, least_mu)
        case ZCDP():
            least = partial(least_multiple, known=ORDERS, curve=ORDERS)
            return Claim("rho", float_up(promise.rho), text, least)
        case Renyi():
            points = {float(a): float_up(e) for a, e in promise.curve.items()}
            return _curve(points, text)
        case Loss():
            return _of_loss(promise)
    raise CheckError(f"claim = {promise!r}: must be a loss or a budget")


def _of_loss(loss: Loss) -> Claim:
    failure, apart = float_up(loss.failure()), loss.unless_failed()
    if failure >= 1:
        raise CheckError(f"claim {loss.kind}: it may fail with probability {failure:g}")
    text = f"{loss.kind} loss"
    mass, pure = apart.gaussian(), apart.pure()
    if mass is not None:
        claim = Claim("mu", float_up(mass) ** 0.5, text, least_mu)
    else:
        points = {float(a): apart.renyi(float(a)) for a in ORDERS}
        finite = {a: d for a, d in points.items() if np.isfinite(d)}
        if not finite and pure is not None:
            claim = Claim("epsilon", float_up(pure), text, least_epsilon)
        else:
            claim = _curve(finite, text, np.inf if pure is None else float_up(pure))
    if not failure:
        return claim
    text = f"{text} but for a failure of probability {failure:g}"
    return replace(claim, failure=failure, text=text)


def _curve(points: dict[float, float], text: str, worst: float = np.inf) -> Claim:
    if not points or min(points.values()) <= 0:
        raise CheckError(f"claim {text}: no order at which it promises anything that can be tested")
    known = sorted(points)
    least = partial(least_multiple, known=known, curve=[points[a] for a in known], worst=worst)
    return Claim("times the claimed curve", 1.0, text, least)
