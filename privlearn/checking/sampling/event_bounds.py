"""Lower bounds from how often one event happens on either data set.

The event is chosen beforehand; on fresh outputs it happens k of n times on the first data set and l
of m times on the second.  Binomial tails a(p) = P(Bin(n, p) >= k) and b(q) = P(Bin(m, q) <= l) of
the true probabilities are at least uniform, so a·b <= c with probability at most c·(1 − ln c)
(Fisher 1925), and {(p, q): a(p)·b(q) >= c} holds the truth with confidence 1 − c·(1 − ln c).  That
is a convex set, as a and b are log-concave, and needs half the samples of two intervals by Clopper
and Pearson.  The bound is the least `Claim.strength` in it; along its border the strength has one
valley, as claims' regions are convex too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv

from privlearn.checking.sampling.claims import Claim
from privlearn.rows.domains import Array

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
