"""Claims as regions of what an event may do: P(E) on one data set, Q(E) on a neighbouring one.

Every guarantee bounds P(E) by a concave function of Q(E), in both orientations.  Its inverse, the
least parameter under which an event with probabilities (p, q) is possible, turns frequencies into a
lower bound on the loss (`Claim.strength`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

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

    ``least`` is the least number under which P(E) = p, Q(E) = q is possible. ``failure`` is the
    probability of an event that nothing is promised in: P = (1−δ)P₀ + δA and Q = (1−δ)Q₀ + δB,
    where P₀, Q₀ keep the promise.
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


THRESHOLDS = 160

PRUDENCE = 0.9999  # Confidence of the bounds by which candidate events are compared
GRID = np.linspace(0.0, 1.0, 33)


@dataclass(frozen=True, slots=True)
class Cut:
    """{score >= threshold} on the first data set, or {score <= threshold} on the second."""

    threshold: float
    above: bool
    promise: float  # Bound that is to be expected of held-out outputs

    def holds(self, scores: Array) -> NDArray[np.bool_]:
        return scores >= self.threshold if self.above else scores <= self.threshold


@lru_cache(maxsize=64)
def _critical(confidence: float) -> float:
    """c with c·(1 − ln c) = 1 − confidence."""
    alpha = 1 - confidence
    return float(np.exp(brentq(lambda x: np.exp(x) * (1 - x) - alpha, -700.0, 0.0)))


def border(k: int, n: int, low: int, m: int, confidence: float, at: Array) -> tuple[Array, Array]:
    """Points (p, q) of the region's border: tails c^s and c^{1−s} for s in ``at``."""
    log_c = np.log(_critical(confidence))
    p = np.zeros_like(at) if k == 0 else betaincinv(k, n - k + 1, np.exp(log_c * at))
    q = np.ones_like(at) if low == m else 1 - betaincinv(m - low, low + 1, np.exp(log_c * (1 - at)))
    return p, q


def event_bound(claim: Claim, k: int, n: int, low: int, m: int, confidence: float) -> float:
    """Lower bound on the claim's number, for an event seen ``k`` of n and ``low`` of m times."""
    left, right = 0.0, 1.0
    best = np.inf
    for _ in range(6):  # each time 16 times as fine, around the valley
        at = left + (right - left) * GRID
        strengths = claim.strength(*border(k, n, low, m, confidence, at))
        i = int(np.argmin(strengths))
        best = min(best, float(strengths[i]))
        left, right = float(at[max(i - 1, 0)]), float(at[min(i + 1, len(at) - 1)])
    return best * (1 - 1e-6)


@np.errstate(all="ignore")  # scores of malformed outputs may be huge
def best_cut(
    claim: Claim, first: Array, second: Array, held_out: int, prudence: float = PRUDENCE
) -> Cut:
    """The threshold with the largest bound to be expected from ``held_out`` outputs per data set.

    Many thresholds compete, so each is judged by a bound, of confidence ``prudence``, that its own
    frequencies earn.
    """
    candidates = [
        _best_of(claim, np.sort(first), np.sort(second), held_out, prudence, above=True),
        _best_of(claim, np.sort(-second), np.sort(-first), held_out, prudence, above=False),
    ]
    return max(candidates, key=lambda cut: cut.promise)


def _best_of(
    claim: Claim, first: Array, second: Array, held_out: int, prudence: float, *, above: bool
) -> Cut:
    """Events {score >= t} of sorted scores, likelier under ``first``."""
    pooled = np.sort(np.concatenate([first, second]))
    values = np.unique(pooled)
    if len(values) > THRESHOLDS:
        values = np.quantile(pooled, np.linspace(0, 1, THRESHOLDS))
        values = np.unique(np.concatenate([values, pooled[-8:]]))
    # Between two seen scores there is room; the middle is the safer place for new ones.
    cuts = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2])
    cuts = np.where(np.isfinite(cuts), cuts, values)
    p, q = (1 - np.searchsorted(x, cuts, side="left") / len(x) for x in (first, second))
    tail = _critical(prudence) ** 0.5
    n, m = min(len(first), held_out), min(len(second), held_out)
    promise = np.zeros(len(cuts))
    likelier = p > q  # elsewhere the bounds are as far from a gap, and promise nothing
    k, rest = p[likelier] * n, (1 - q[likelier]) * m
    lower = np.where(k > 0, betaincinv(np.maximum(k, 1e-9), n - k + 1, tail), 0.0)
    upper = 1 - np.where(rest > 0, betaincinv(np.maximum(rest, 1e-9), m - rest + 1, tail), 0.0)
    promise[likelier] = claim.strength(lower, upper)
    i = int(np.argmax(promise))
    threshold = float(cuts[i])
    return Cut(threshold if above else -threshold, above, float(promise[i]))
