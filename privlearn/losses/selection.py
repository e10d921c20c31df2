r"""The best of a secret, random number of runs: private selection with random stopping.

A number of tries K is drawn, a mechanism runs K times, each time with noise of its own, and the
best output leaves, and nothing else: not K, not what else was tried (Liu & Talwar 2019; Papernot &
Steinke 2022).  K has the truncated negative binomial law of shape η and parameter γ, with
f(x) = E[x^K] and

    f′(x) = E[K]·(γ/(1 − (1−γ)x))^{η+1},    E[K] = η(1−γ)/(γ(1−γ^η)),  at η = 0 (1/γ−1)/ln(1/γ);

η = 1 is the geometric law P(K = k) = γ(1−γ)^{k−1}, η = 0 the logarithmic one.

Theorem (the privacy profile of Koskela, Redberg & Wang 2024).  If a try is (ε, δ(ε))-DP for all ε,
the whole is (ε, δ_A(ε))-DP with δ_A(ε) <= E[K]·δ(ε − c) where, for any ε₁ >= 0,
c = (η+1)·ln(e^{ε₁} + (1−γ)/γ·δ(ε₁)).

Proof.  Q, Q′ are the laws of a try (what was tried, its score and its output) on two neighbours.
Break ties by a uniform number that is drawn besides: it changes no profile, and no law of what
leaves, as tries that tie are exchangeable.  So the order is strict, and with q = Q(at most y),
the best of K tries has the density A(y) = Q(y)·f′(q).
(1) p = 1−q has p′ <= e^{ε₁}p + δ(ε₁), so f′(q)/f′(q′) = ((γ+(1−γ)p′)/(γ+(1−γ)p))^{η+1} <= e^c.
(2) f′ <= f′(1) = E[K], as f′ increases.
(3) A − e^ε·A′ = Q·f′(q) − e^ε·Q′·f′(q′) <= f′(q)·(Q − e^{ε−c}·Q′), by (1).
(4) Integrated where it is positive, by (2): δ_A(ε) <= E[K]·δ(ε − c).  ∎

A try that first draws its candidate from a public set, and releases which, is a mixture whose
index is seen: its profile is at most the largest of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import final

import numpy as np

from privlearn.losses.base import Loss, register
from privlearn.losses.conversion import gaussian_delta, gaussian_epsilon
from privlearn.losses.numerics import valid_number, valid_order
from privlearn.losses.output_laws import Array, Density, LawPair
from privlearn.losses.pure import PureLoss
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, float_down, float_up

_SLACK = 1 + 1e-12  # For logarithms, powers and a quotient in floating point
_STANDARD = NormalDist()
_LARGEST_EPSILON = 700.0
_TINY_POWER = 1e-14
_NEAR = 1e-7  # Share of a minimum's place; any ε₁ is valid


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class RepeatAndSelect(Loss):
    """The best of K runs of a mechanism of Gaussian mass μ², K secret and random.

    It is (ε, δ)-DP for ``delta`` and the least ε of the theorem above, over ε₁ in closed form:
    in t = e^{ε₁} the bound t + r·δ(ln t), r = (1−γ)/γ, is convex with the slope
    1 − r·Φ(−ε₁/μ − μ/2).

    Args:
        mu_squared: Gaussian mass of one run; each try must be dominated by N(μ, 1) against N(0, 1).
        delta: the probability of failing at which ε is stated.
        gamma: of the law of K, in [1e-12, 1).
        eta: its shape, in [0, 100]; 1 is geometric.
    """

    kind = "repeat-and-select"
    mu_squared: Fraction
    delta: Fraction
    gamma: Fraction
    eta: Fraction
    adjacency: Adjacency

    def __init__(
        self,
        mu_squared: Exact,
        delta: Exact,
        gamma: Exact,
        eta: Exact = 1,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ):
        stop = exact("gamma", gamma)
        if not Fraction(1, 10**12) <= stop < 1:
            raise ValueError(f"gamma = {gamma!r}: must lie in [1e-12, 1)")
        failure = exact("delta", delta)
        if not Fraction(1, 10**200) <= failure <= Fraction(1, 2):
            raise ValueError(f"delta = {delta!r}: must lie in [1e-200, 1/2]")
        self._set(
            mu_squared=valid_number("mu_squared", mu_squared, "1e-30", "1e4"),
            delta=failure,
            gamma=stop,
            eta=valid_number("eta", eta, "0", "100"),
            adjacency=adjacency,
        )
        if not self.epsilon() <= _LARGEST_EPSILON:
            raise ValueError(
                f"mu_squared = {mu_squared!r}, gamma = {gamma!r}, eta = {eta!r}: the price is "
                f"above {_LARGEST_EPSILON}"
            )

    def epsilon(self) -> float:
        """ε at ``delta`` in nats, rounded up."""
        return _epsilon(self.mu_squared, self.delta, self.gamma, self.eta)

    def mean(self) -> float:
        """E[K], rounded up."""
        return mean_tries(self.gamma, self.eta)

    def renyi(self, order: float) -> float:
        valid_order(order)
        return math.inf

    def failure(self) -> Fraction:
        """δ, as of an `ApproxLoss`."""
        return self.delta

    def unless_failed(self) -> Loss:
        """The loss apart from that event, as of an `ApproxLoss`."""
        return PureLoss(Fraction(self.epsilon()), adjacency=self.adjacency)

    def doubled(self) -> RepeatAndSelect:
        return replace(self, mu_squared=4 * self.mu_squared, adjacency=Adjacency.REPLACE_ONE)

    def several(self, visits: int, apart: int) -> RepeatAndSelect:
        return replace(self, mu_squared=visits**2 * self.mu_squared)

    def noisier(self, factor: Fraction) -> RepeatAndSelect:
        return replace(self, mu_squared=self.mu_squared / factor**2)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        """The largest of K draws of N(μ, 1), and of N(0, 1): one selection, not the worst."""
        mu, gamma, power = float(self.mu_squared) ** 0.5, float(self.gamma), float(self.eta) + 1
        return [(_largest(mu, gamma, power), _largest(0.0, gamma, power))]


def largest_mass(epsilon: Exact, delta: Exact, gamma: Exact, eta: Exact = 1) -> Fraction:
    """The largest μ² of a try for which the whole is (ε, δ)-DP, rounded down by at most 1e-9 of it.

    Raises:
        ValueError: no mass of a usable size keeps the promise, or as `RepeatAndSelect`.
    """
    goal = float_down(exact("epsilon", epsilon))
    low, high = Fraction(1, 10**12), Fraction(1)

    def kept(mass: Fraction) -> bool:
        try:
            return RepeatAndSelect(mass, delta, gamma, eta).epsilon() <= goal
        except ValueError:
            if mass == low:
                raise
            return False

    if not kept(low):
        promise = f"epsilon = {goal!r}, delta = {float(exact('delta', delta))!r}"
        raise ValueError(f"{promise}: no usable noise keeps them")
    while kept(high) and high < 4096:
        high *= 4
    while high / low > Fraction(10**9 + 1, 10**9):
        middle = Fraction(round(math.sqrt(low * high) * 2**60), 2**60)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def chance_of_trying(count: int, gamma: float, eta: float = 1.0) -> float:
    """The probability that one of ``count`` candidates, drawn anew for each try, is ever tried."""
    return 1 - _generating(1 - 1 / count, gamma, eta)


def _generating(x: float, gamma: float, eta: float) -> float:
    """E[x^K]."""
    left = math.log1p(-(1 - gamma) * x)
    if eta == 0:
        return left / math.log(gamma)
    return math.expm1(-eta * left) / math.expm1(-eta * math.log(gamma))


def selection_shift(bound: Callable[[float], float], eta: Fraction, largest: float) -> float:
    """c of the theorem: (η+1) times the least of ln(e^{ε₁} + (1−γ)/γ·δ(ε₁)) that a search finds.

    Args:
        bound: that logarithm at ε₁ >= 0, rounded up.
        eta: the shape.
        largest: no larger ε₁ is tried.
    """
    low, high = 0.0, largest
    best = bound(low)
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = bound(left), bound(right)
    while high - low > _NEAR * (1 + high):
        best = min(best, at_left, at_right)
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = bound(right)
    return float_up(eta + 1) * best


@lru_cache(maxsize=4096)
def _epsilon(mass: Fraction, delta: Fraction, gamma: Fraction, eta: Fraction) -> float:
    squared, mu = float_up(mass), math.sqrt(mass)
    odds = float_up((1 - gamma) / gamma)
    first = 0.0
    if odds > 1:  # any number >= 0 will do: this is the best one, up to rounding
        first = max(-mu * _STANDARD.inv_cdf(1 / odds) - squared / 2, 0.0)
    excess = math.expm1(first) + odds * gaussian_delta(squared, first).value
    shift = float_up(eta + 1) * math.log1p(excess * _SLACK)
    target = float_down(delta) / (mean_tries(gamma, eta) * _SLACK)
    return (shift + gaussian_epsilon(squared, target).value) * _SLACK


@lru_cache(maxsize=4096)
def mean_tries(gamma: Fraction, eta: Fraction) -> float:
    """E[K], rounded up."""
    log = math.log1p(-float(1 - gamma)) if gamma > Fraction(1, 2) else math.log(gamma)
    odds = float((1 - gamma) / gamma)
    power = -float(eta) * log
    # x/(1 − e^−x) <= 1 + x, where x is too small to be told from its own rounding
    ratio = -(1 + power) / log if power < _TINY_POWER else float(eta) / -math.expm1(-power)
    return max(odds * ratio, 1.0) * _SLACK


def _largest(mean: float, gamma: float, power: float) -> Density:
    """The law of the largest of K normal draws around ``mean``."""
    from scipy.special import ndtr

    constant = math.log(2 * math.pi) / 2
    tries = math.log(float(mean_tries(Fraction(gamma), Fraction(power - 1))))

    def log_density(points: Array) -> Array:
        x = points[:, 0] - mean
        below = -power * np.log1p((1 - gamma) / gamma * ndtr(-x))
        return np.asarray(tries + below - x * x / 2 - constant)

    return Density(log_density, (mean,), 1.0)
