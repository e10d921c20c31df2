"""E-processes against a claim: test martingales whose growth is evidence, at any stopping time.

A bet pays u(x) − v(y) − c for one output x on the first data set and y on the second, where the
claim implies E u(x) − E v(y) <= c.  Betting a share of the wealth that no outcome can exhaust
multiplies the wealth by a factor of mean at most 1 under the claim, so the wealth passes 1/α with
probability at most α at any stopping time (Ville 1939).  Each stake is decided before the outputs
that it is placed on.  As every c grows with the claim's number, the numbers under which the wealth
still passes 1/α are all those below a bound: a lower confidence bound on the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import nnls

from privlearn.checking.sampling.claims import Claim
from privlearn.rows.domains import Array

CLIPS = (1.0, 2.0, 4.0)  # Bounds on the log ratios that moments are taken of

GAINS = ((1.0, (0.06, 0.2, 0.8)), (0.8, (0.2,)), (0.5, (0.6,)))
"""Strategies bet against a part of the claim, each for one assumed gap to the truth; one more
against the whole claim follows past outputs.  Those against a part find a bound where the claim
itself cannot be refuted."""

SHARES = np.log([0.5, 0.15, 0.1, 0.15, 0.05, 0.05])
"""How the initial wealth is divided among the strategies; small gaps take the most samples."""

MARKS = np.array([0.001, 0.01, 0.03, *np.linspace(0.06, 0.94, 11), 0.97, 0.99, 0.999])
"""Thresholds of events, as quantiles of scores."""

STEEPEST = 30.0  # A larger ε would take more samples to refute than anybody draws

NO_CLAIM = 0.1  # Gaps to a claim of 0 are measured by this

HIGH = 100.0  # Moments with a higher power of e than this take more samples than anybody draws

MOMENTS = 3  # Moments that one strategy bets on at once

LEAST_FACTOR = 0.1  # The least factor by which any outcome of one bet multiplies the wealth


@dataclass(frozen=True)
class Bets:
    """k inequalities E u(x) − E v(y) <= c(value) in terms of one score.

    Attributes:
        texts: what they are.
        gain: u of n scores of the first data set, shape (k, n).
        cost: v of scores of the second.
        limits: c, shape (k,), non-decreasing in the claim's number.
        reach: the largest E u − E v that the number allows at the frequencies seen, shape (k,).
        least: the smallest u − v, shape (k,).
    """

    texts: tuple[str, ...]
    gain: Callable[[Array], Array]
    cost: Callable[[Array], Array]
    limits: Callable[[float], Array]
    reach: Callable[[float], Array]
    least: Array


def lines(claim: Claim, value: float, thresholds: Array, q: Array) -> Bets:
    """P(score >= t) <= e^ε·Q(score >= t) + δ(ε), tight in the claim where Q(score >= t) = q."""
    widest = min(max(4 * value + value**2, 0.1), STEEPEST)
    slopes = np.linspace(-widest, widest, 121)
    slopes = np.unique([*slopes, min(value, STEEPEST), -min(value, STEEPEST)])

    def allowed(number: float) -> Array:  # e^ε·q + δ(ε) for all events and slopes
        return np.asarray(np.exp(slopes) * q[:, None] + claim.delta(slopes, number))

    epsilons = slopes[np.argmin(allowed(value), axis=1)]
    factors = np.exp(epsilons)
    return Bets(
        tuple(f"an event against e^{epsilon:.3g}" for epsilon in epsilons),
        lambda s: (s >= thresholds[:, None]).astype(np.float64),
        lambda s: factors[:, None] * (s >= thresholds[:, None]),
        lambda number: claim.delta(epsilons, number),
        lambda number: allowed(number).min(axis=1) - factors * q,
        -factors,
    )


def moments(
    claim: Claim, log_ratio: Callable[[Array], Array], wanted: Sequence[tuple[float, float, bool]]
) -> Bets:
    """The moment inequalities of `privlearn.checking.sampling.claims`."""
    singles = [
        _turned(_moment(claim, _negative(log_ratio), order, clip))
        if swapped
        else _moment(claim, log_ratio, order, clip)
        for order, clip, swapped in wanted
    ]
    texts, gains, costs, limits, least = zip(*singles, strict=True)

    def all_limits(value: float) -> Array:
        return np.array([limit(value) for limit in limits])

    return Bets(
        texts,
        lambda s: np.stack([gain(s) for gain in gains]),
        lambda s: np.stack([cost(s) for cost in costs]),
        all_limits,
        all_limits,
        np.array(least),
    )


Function = Callable[[Array], Array]
Inequality = tuple[str, Function, Function, Callable[[float], float], float]
"""Text, u, v, c and the smallest u − v."""


def _negative(function: Function) -> Function:
    return lambda s: -function(s)


def _turned(single: Inequality) -> Inequality:
    text, gain, cost, limit, least = single
    return f"{text}, data sets swapped", _negative(cost), _negative(gain), limit, least


def _moment(claim: Claim, log_ratio: Function, order: float, clip: float) -> Inequality:
    """No limit is above the largest u − v, where the claim says nothing."""

    def f(s: Array) -> Array:
        return np.clip(log_ratio(s), -clip, clip)

    if order == 1:
        return (
            f"KL divergence, log ratio within ±{clip:g}",
            f,
            lambda s: np.exp(f(s)),
            lambda value: min(claim.divergence(1.0, value) - 1, clip - float(np.exp(-clip))),
            -clip - float(np.exp(clip)),
        )
    rest = 1 - 1 / order
    most = float(np.exp((order - 1) * clip)) - rest * float(np.exp(-order * clip))

    def limit(value: float) -> float:
        exponent = min((order - 1) * claim.divergence(order, value), 700.0)
        return min(float(np.exp(exponent)) / order, most)

    return (
        f"moment of order {order:g}, log ratio within ±{clip:g}",
        lambda s: np.exp((order - 1) * f(s)),
        lambda s: rest * np.exp(order * f(s)),
        limit,
        float(np.exp(-(order - 1) * clip)) - rest * float(np.exp(order * clip)),
    )


def calibrated(first: Array, second: Array) -> Callable[[Array], Array]:
    """log P(score)/Q(score) as a line, by logistic regression on scores of either data set."""
    both = np.concatenate([first, second])
    middle, spread = float(np.median(both)), float(np.std(both)) or 1.0
    design = np.stack([np.ones(len(both)), (both - middle) / spread], axis=1)
    label = np.repeat([1.0, 0.0], [len(first), len(second)])
    weight = np.repeat([0.5 / len(first), 0.5 / len(second)], [len(first), len(second)])
    b = np.zeros(2)
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(design @ b, -30, 30)))
        slope = design.T @ (weight * (label - p)) - 1e-4 * b
        curve = (design * (weight * p * (1 - p))[:, None]).T @ design + 1e-4 * np.eye(2)
        step = np.linalg.solve(curve, slope)
        b += np.clip(step, -3, 3)
        if np.abs(step).max() < 1e-6:
            break
    return lambda s: b[0] + b[1] * (s - middle) / spread


@dataclass(frozen=True)
class Moment:
    """A moment inequality chosen on training scores, with its stake."""

    bets: Bets
    order: float
    stake: float
    promise: float


def least_number(claim: Claim, order: float, result: float) -> float:
    """The least of the claim's numbers under which a moment bet may pay ``found`` on average."""
    if order == 1:
        return claim.number(1.0, result + 1)
    return claim.number(order, float(np.log(order * result)) / (order - 1)) if result > 0 else 0.0


@np.errstate(all="ignore")  # scores of malformed outputs may be huge
def best_moment(
    claim: Claim, first: Array, second: Array, held_out: int, confidence: float
) -> Moment | None:
    """The moment with the largest bound to be expected from ``held_out`` outputs per data set."""
    best: Moment | None = None
    need = -np.log(1 - confidence)
    ratio = calibrated(first, second)
    for swapped, order, clip in product((False, True), claim.orders, CLIPS):
        if order * clip > HIGH:
            continue
        bets = moments(claim, ratio, [(order, clip, swapped)])
        u, v = bets.gain(first)[0], bets.cost(second)[0]
        deviation = float(np.sqrt(u.var() + v.var())) or 1e-12
        middle = float(u.mean() - v.mean())
        stake = min(
            float(np.sqrt(2 * need / held_out)) / deviation,
            (1 - LEAST_FACTOR) / max(middle - float(bets.least[0]), 1e-12),
        )
        width = need / (held_out * stake) + stake * deviation**2 / 2
        promise = least_number(claim, order, middle - 1.15 * width)
        if best is None or promise > best.promise:
            best = Moment(bets, order, stake, promise)
    return best


@np.errstate(all="ignore")
def moment_bound(
    claim: Claim, chosen: Moment, first: Array, second: Array, confidence: float
) -> float:
    """Lower bound on the claim's number from held-out scores, as many of either data set."""
    paid = chosen.bets.gain(first)[0] - chosen.bets.cost(second)[0]
    need = -np.log(1 - confidence)

    def log_stake(c: float) -> float:
        factors = 1 + chosen.stake * (paid - c)
        return float(np.log(factors).sum()) if factors.min() > 0 else -np.inf

    # The stake must bear every outcome that could have been, not only those that were.
    low, high = float(paid.mean()) - 50 / chosen.stake, float(chosen.bets.least[0])
    high += 1 / chosen.stake
    if log_stake(low) < need:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_stake(middle) >= need else (low, middle)
    return least_number(claim, chosen.order, low) * (1 - 1e-9)


@dataclass(frozen=True)
class _Segment:
    """What some strategies staked on some pairs, and what these paid apart from the limits."""

    weights: Array
    bets: Bets
    paid: Array

    def factors(self, value: float) -> Array:
        """By what each strategy's wealth was multiplied, pair by pair, at that number.

        Cutting off what is below 0 would make an unfavourable bet favourable, so a strategy that
        cannot bear the worst outcome at that number bets less; the factor still falls with it.
        """
        limits = self.weights @ self.bets.limits(value)
        worst = limits - self.weights @ self.bets.least
        part = np.minimum(1.0, (1 - LEAST_FACTOR) / np.maximum(worst, 1e-300))
        return np.asarray(1 + part[:, None] * (self.paid - limits[:, None]))


class EProcess:
    """A mixture of betting strategies on the same pairs, each with its share of the wealth."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._rounds: list[list[_Segment]] = []
        self._logs = np.zeros(len(SHARES))

    @np.errstate(all="ignore")
    def play(self, past: tuple[Array, Array], new: tuple[Array, Array]) -> Array:
        """Log wealth after each of the new pairs; shape (n,).

        Args:
            past: scores of earlier outputs of either data set, by a fit that had not seen them; the
                stakes follow only from these.
            new: scores of the pairs that are bet on.
        """
        segments = []
        for part, gains in GAINS:
            bets = bets_on(self.claim, part * self.claim.value, *past)
            u, v = bets.gain(past[0]), bets.cost(past[1])
            weights = _stakes(bets, u, v, part * self.claim.value, gains, part == 1.0)
            paid = weights @ (bets.gain(new[0]) - bets.cost(new[1]))
            segments.append(_Segment(weights, bets, paid))
        self._rounds.append(segments)
        runs = self._logs[:, None] + np.cumsum(_logs(segments, self.claim.value), axis=1)
        self._logs = runs[:, -1]
        return np.asarray(np.logaddexp.reduce(runs + SHARES[:, None], axis=0))

    def cut(self, pairs: int) -> None:
        """Forgets the last pairs played but for the first ``pairs`` of the last call."""
        last = self._rounds.pop()
        self._rounds.append([_Segment(s.weights, s.bets, s.paid[:, :pairs]) for s in last])

    @np.errstate(all="ignore")
    def bound(self, confidence: float) -> float:
        need = -np.log(1 - confidence)

        def passes(value: float) -> bool:
            logs = sum(_logs(segments, value).sum(axis=1) for segments in self._rounds)
            return bool(np.logaddexp.reduce(logs + SHARES) >= need)

        if not self._rounds or not passes(0.0):
            return 0.0
        low, high = 0.0, self.claim.value or 1e-6
        while passes(high):
            low, high = high, 2 * high
            if high > 1e9:
                return np.inf
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if passes(middle) else (low, middle)
        return low


def _logs(segments: Sequence[_Segment], value: float) -> Array:
    """Log factors of all strategies, shape (strategies, pairs)."""
    return np.asarray(np.log(np.vstack([s.factors(value) for s in segments])))


def _stakes(
    bets: Bets, u: Array, v: Array, value: float, gains: Sequence[float], follow_past: bool
) -> Array:
    """Weights of the bets, shape (strategies, k), with no outcome that ends one at ``value``."""
    limits = bets.limits(value)
    spread = np.atleast_2d(np.cov(u)) + np.atleast_2d(np.cov(v))
    # As if every bet had been won and lost once more: rare events look too safe otherwise.
    spread += np.diag(1e-3 * np.diag(spread) + 2 * (1 + np.abs(bets.least)) ** 2 / u.shape[1])
    root = np.linalg.cholesky(spread)
    rows = []
    for gain in gains:
        more = bets.reach(value + gain * (value or NO_CLAIM)) - bets.reach(value)
        rows.append(nnls(root.T, np.linalg.solve(root, more))[0])
    if follow_past:
        rows.append(_from_past(u, v, limits, np.diag(spread)))
    weights = np.stack(rows)
    worst = weights @ (limits - bets.least)
    return np.asarray(
        weights * np.minimum(1.0, (1 - LEAST_FACTOR) / np.maximum(worst, 1e-300))[:, None]
    )


def _from_past(u: Array, v: Array, limits: Array, variances: Array) -> Array:
    """Half of what would have been best on the one bet that won most."""
    means = u.mean(axis=1) - v.mean(axis=1) - limits
    z = means / np.sqrt(variances / u.shape[1])
    best = int(np.argmax(z))
    weights = np.zeros(len(limits))
    if z[best] > 0.5:
        weights[best] = 0.5 * means[best] / (variances[best] + means[best] ** 2)
    return weights


def bets_on(claim: Claim, value: float, first: Array, second: Array) -> Bets:
    """Inequalities worth betting on against that number, given scores of past outputs."""
    if claim.by_moments and min(claim.orders) - 1 <= STEEPEST:
        return _informative_moments(claim, first, second)
    marks = np.unique(np.quantile(np.concatenate([first, second]), MARKS))
    q = (np.count_nonzero(second >= marks[:, None], axis=1) + 0.5) / (len(second) + 1)
    return lines(claim, value, marks, q)


def _informative_moments(claim: Claim, first: Array, second: Array) -> Bets:
    """Clipping costs some moments more than others; those that see least are of no use."""
    ratio = calibrated(first, second)
    wanted = [
        (a, clip, swapped)
        for a, clip, swapped in product(claim.orders, CLIPS, (False, True))
        if (a - 1) * clip <= max(8, min(claim.orders) - 1)
    ]
    bets = moments(claim, ratio, wanted)
    result = bets.gain(first).mean(axis=1) - bets.cost(second).mean(axis=1)
    seen = [least_number(claim, a, float(x)) for (a, *_), x in zip(wanted, result, strict=True)]
    return moments(claim, ratio, [wanted[i] for i in np.argsort(seen)[-MOMENTS:]])
