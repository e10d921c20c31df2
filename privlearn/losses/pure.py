r"""Pure losses: the privacy loss lies in a bounded interval.

Symbols as in `privlearn.losses.base`: D_α is the Rényi divergence of order α, K(s) = (s−1)·D_s.

Lemma (used for `BoundedRangeLoss`).  Let c ↦ K_c be a family with K_c''(s) = g(s + c),
where g is even, positive and non-increasing on [0, ∞).  Then the supremum over c of K_c(α)/(α(α−1))
is non-increasing in α > 1; its limit at α → 1 is the supremum of the KL divergence.
Proof.  K(α)/(α(α−1)) is the divided difference K[0,1,α] = ½∫M K'' with M the B-spline with knots
0, 1, α; its derivative in α is K[0,1,α,α], a positive multiple of ∫N K''' with N the B-spline with
knots 0, 1, α, α.  On [0,1] N/M is a multiple of s, on [1,α] it is linear with larger slope, so N/M
increases.  At a maximising c, ∫M K''' = 0; K''' changes sign once, from + to −, so
∫N K''' <= (N/M)(sign change)·∫M K''' = 0.  The envelope theorem concludes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Self, final

import numpy as np

from privlearn.losses.base import Loss, register
from privlearn.losses.numerics import (
    ROUNDING,
    ULP,
    decimal_of,
    fraction_up,
    up,
    valid_count,
    valid_epsilon,
    valid_order,
    working_context,
)
from privlearn.losses.output_laws import Discrete, LawPair, laplace
from privlearn.losses.steps import BoundedRangeStep, LaplaceStep, PureStep, RandomizedResponseStep
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, float_up

_MOST_CATEGORIES = 10**15


@dataclass(frozen=True, slots=True, init=False)
class _OfEpsilon(Loss):
    """A loss of which ε is all: rows multiply it, and noise divides it."""

    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        self._set(epsilon=valid_epsilon(epsilon), adjacency=adjacency)

    def pure(self) -> Fraction:
        return self.epsilon

    def doubled(self) -> Self:
        return type(self)(2 * self.epsilon)

    def several(self, visits: int, apart: int) -> Self:
        return replace(self, epsilon=visits * self.epsilon)

    def noisier(self, factor: Fraction) -> Self:
        return replace(self, epsilon=self.epsilon / factor)


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class PureLoss(_OfEpsilon):
    """A black box that is ε-DP: no worse than binary randomized response.

    D_α = log(cosh((α−1/2)ε)/cosh(ε/2))/(α−1), because by convexity the moment is largest for the
    two-point law on e^{±ε}; ρ = ε·tanh(ε/2) is tight; proofs in ``docs/proofs.md#pure``.
    """

    kind = "pure"

    def renyi(self, order: float) -> float:
        return response_renyi(valid_order(order), float_up(self.epsilon), 2)

    def zcdp(self) -> Fraction:
        precise = working_context(self.epsilon)
        eps = decimal_of(self.epsilon, precise)
        small = precise.exp(precise.minus(eps))
        ratio = precise.divide(precise.subtract(1, small), precise.add(1, small))
        return fraction_up(precise.multiply(eps, ratio))

    def step(self) -> PureStep:
        return PureStep(float_up(self.epsilon))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [response_pair(float(self.epsilon), 2)]


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class LaplaceLoss(_OfEpsilon):
    """Laplace noise of scale (ℓ1 sensitivity)/ε on each coordinate.

    D_α = log(α/(2α−1)·e^{(α−1)ε} + (α−1)/(2α−1)·e^{−αε})/(α−1) in one dimension (Mironov 2017,
    Proposition 6); a sensitivity spread over coordinates costs no more, because the sum of the
    coordinates' curves is convex and vanishes at 0 in each share.
    ρ = ε + e^{−ε} − 1, the KL divergence, is the tight zCDP constant; proof in
    ``docs/proofs.md#laplace``.
    """

    kind = "laplace"

    def renyi(self, order: float) -> float:
        alpha, eps = valid_order(order), float_up(self.epsilon)
        # log of the convex combination of two exponentials, as top + log1p(...)
        weight = alpha / (2 * alpha - 1)
        rest = (alpha - 1) / (2 * alpha - 1) * math.exp(-alpha * eps)
        top = (alpha - 1) * eps
        log_moment = (
            math.log(weight * math.exp(top) + rest)
            if top < 300
            else (top + math.log(weight + rest * math.exp(-top)))
        )
        evaluated = (log_moment + ROUNDING * (1 + top)) / (alpha - 1)
        return min(evaluated, eps, up(alpha * float_up(self.zcdp())))

    def zcdp(self) -> Fraction:
        return _laplace_zcdp(self.epsilon)

    def step(self) -> LaplaceStep:
        return LaplaceStep(float_up(self.epsilon))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [(laplace(float(self.epsilon), 1.0), laplace(0.0, 1.0))]


@lru_cache(maxsize=2**14)
def _laplace_zcdp(epsilon: Fraction) -> Fraction:
    precise = working_context(epsilon)
    eps = decimal_of(epsilon, precise)
    small = precise.exp(precise.minus(eps))  # -eps would round to the ambient precision
    return fraction_up(precise.subtract(precise.add(eps, small), Decimal(1)))


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class BoundedRangeLoss(_OfEpsilon):
    """A privacy loss that lies in some interval [t−ε, t]: the exponential mechanism.

    Source: Durfee & Rogers 2019; Dong, Durfee & Rogers 2020.  For a given t and α > 1 the moment
    E_Q[(dP/dQ)^α] is largest for the two-point law on {e^t, e^{t−ε}} with mean 1, since x^α lies
    below its chord; there it is A·e^{(α−1)t} + B·e^{αt} with A = (1−e^{−αε})/(1−e^{−ε}),
    B = (e^{−αε}−e^{−ε})/(1−e^{−ε}) < 0, which is maximal at e^t = A(α−1)/(−Bα).
    ρ = ε/(e^ε−1) − 1 − ln(ε/(e^ε−1)): for two-point laws K'' = ε²·σ'(εs + c) with σ' the even,
    unimodal logistic density, so the module's Lemma gives sup_α D_α/α = sup_t KL, and
    KL = t + ε/(1−e^{−ε}) − ε − ε·e^{t−ε}/(1−e^{−ε}) is maximal at e^t = (e^ε−1)/ε.
    """

    kind = "bounded-range"

    def renyi(self, order: float) -> float:
        alpha, eps = valid_order(order), float_up(self.epsilon)
        log_a = math.log(math.expm1(-alpha * eps) / math.expm1(-eps))
        # -B = e^{-ε}(1 − e^{−(α−1)ε})/(1 − e^{−ε})
        log_b = -eps + math.log(math.expm1(-(alpha - 1) * eps) / math.expm1(-eps))
        t = min(max(log_a + math.log(alpha - 1) - log_b - math.log(alpha), 0.0), eps)
        log_moment = log_a + (alpha - 1) * t + math.log1p(-math.exp(log_b + t - log_a))
        evaluated = (log_moment + ROUNDING * (1 + alpha * (1 + eps))) / (alpha - 1)
        return min(evaluated, eps, up(alpha * float_up(self.zcdp())))

    def zcdp(self) -> Fraction:
        return _bounded_range_zcdp(self.epsilon)

    def step(self) -> BoundedRangeStep:
        return BoundedRangeStep(float_up(self.epsilon))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [_worst_range(float(self.epsilon), order) for order in orders]


@lru_cache(maxsize=2**14)
def _bounded_range_zcdp(epsilon: Fraction) -> Fraction:
    precise = working_context(epsilon)
    eps = decimal_of(epsilon, precise)
    ratio = precise.divide(eps, precise.subtract(precise.exp(eps), Decimal(1)))
    return fraction_up(precise.subtract(precise.subtract(ratio, Decimal(1)), precise.ln(ratio)))


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class RandomizedResponse(Loss):
    """One of k categories is reported: the true one with e^ε times the probability of another.

    With Z = e^ε + k − 1, D_α = log((e^{αε} + e^{(1−α)ε} + k − 2)/Z)/(α−1) exactly.

    The zCDP constant is tight.  K = h(u) − h(ε²/4), where u = (vε)², c = (k−2)/(2e^{ε/2}),
    h(u) = log(c + cosh √u) and s(s−1) = (u − ε²/4)/ε²; so ρ = ε²·sup over u > ε²/4 of the slope
    of the chord of h from ε²/4.  With w = √u, h′ = sinh(w)/(2w(c + cosh w)) and

        (log h′)′(w) = (coth w − 1/w)·(c − ψ(w))/(c + cosh w),
        ψ(w) = (sinh w·cosh w − w)/(w·cosh w − sinh w).

    ψ is the quotient of two functions that vanish at 0 and whose derivatives have the increasing
    quotient 2·sinh(w)/w; so ψ increases, from 2 (monotone l'Hospital rule).  Hence h is convex
    while ψ(w) < c and concave from there on.  If it is concave from ε²/4 on, the supremum is the
    tangent there, and ρ = ε(e^ε−1)/Z, the KL divergence; so it is for k <= 2 + 4e^{ε/2}.
    Else take a point w of the concave part whose tangent passes below (ε²/4, h(ε²/4)): the line of
    that slope from there lies above h on the concave part, hence at both ends of the convex part,
    hence everywhere, and ε²h′(w) is a zCDP constant; the tight one is the limit for the largest w.
    """

    kind = "randomized-response"
    epsilon: Fraction
    categories: int
    adjacency: Adjacency

    def __init__(
        self, epsilon: Exact, categories: int = 2, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        number = valid_count(_MOST_CATEGORIES, at_least=2, categories=categories)
        self._set(epsilon=valid_epsilon(epsilon), categories=number, adjacency=adjacency)

    def renyi(self, order: float) -> float:
        return response_renyi(valid_order(order), float_up(self.epsilon), self.categories)

    def zcdp(self) -> Fraction:
        return _response_rho(self.epsilon, self.categories)

    def pure(self) -> Fraction:
        return self.epsilon

    def doubled(self) -> PureLoss:
        return PureLoss(2 * self.epsilon)

    def several(self, visits: int, apart: int) -> PureLoss:
        return PureLoss(visits * self.epsilon, adjacency=self.adjacency)

    def noisier(self, factor: Fraction) -> RandomizedResponse:
        return replace(self, epsilon=self.epsilon / factor)

    def step(self) -> RandomizedResponseStep:
        return RandomizedResponseStep(float_up(self.epsilon), self.categories)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [response_pair(float(self.epsilon), self.categories)]


def response_renyi(alpha: float, eps: float, k: int) -> float:
    """D_α of k-ary randomized response; for k = 2 that of any ε-DP mechanism at its worst."""
    t = alpha - 1
    if (alpha + t) * eps < 1200:
        # moment − 1 = 4e^{ε/2}·sinh(αε/2)·sinh((α−1)ε/2)/Z, where nothing cancels
        share = 4 / (math.exp(eps / 2) + (k - 1) * math.exp(-eps / 2))
        left, right = math.sinh(t * eps / 2), math.sinh(alpha * eps / 2) * share
        log_moment = math.log1p(left * right)
        log_moment += ULP * alpha * eps * min(log_moment, 1)  # sinh feels its argument's rounding
    else:
        # with αε >= 600 the other terms of the moment are below e^−560 of the first
        log_moment = t * eps - math.log1p((k - 1) * math.exp(-eps))
    return min(up(log_moment / t), eps)


@lru_cache(maxsize=2**14)
def _response_rho(epsilon: Fraction, k: int) -> Fraction:
    precise = working_context(epsilon)
    eps = decimal_of(epsilon, precise)
    half = precise.divide(eps, Decimal(2))
    c = precise.divide(Decimal(k - 2), precise.multiply(2, precise.exp(half)))

    def hyperbolic(w: Decimal) -> tuple[Decimal, Decimal]:
        up, down = precise.exp(w), precise.exp(precise.minus(w))
        cosh = precise.divide(precise.add(up, down), Decimal(2))
        return cosh, precise.divide(precise.subtract(up, down), Decimal(2))

    def concave(w: Decimal) -> bool:
        cosh, sinh = hyperbolic(w)
        top = precise.subtract(precise.multiply(sinh, cosh), w)
        bottom = precise.subtract(precise.multiply(w, cosh), sinh)
        return top >= precise.multiply(c, bottom)

    def slope(w: Decimal) -> Decimal:
        cosh, sinh = hyperbolic(w)
        bottom = precise.multiply(precise.multiply(2, w), precise.add(c, cosh))
        return precise.divide(sinh, bottom)

    def height(w: Decimal) -> Decimal:
        return precise.ln(precise.add(c, hyperbolic(w)[0]))

    def below(w: Decimal) -> bool:
        """Whether the tangent at w passes below h at ε²/4."""
        run = precise.subtract(precise.multiply(half, half), precise.multiply(w, w))
        tangent = precise.add(height(w), precise.multiply(slope(w), run))
        return tangent <= height(half)

    point = half
    if not concave(half):
        low, high = half, precise.add(half, Decimal(1))
        while not concave(high) or below(high):
            low, high = high, precise.multiply(2, high)
        for _ in range(64):
            middle = precise.divide(precise.add(low, high), Decimal(2))
            if not concave(middle) or below(middle):
                low = middle
            else:
                high = middle
        if not concave(low):  # the two points agree to 19 digits: no certificate
            return PureLoss(epsilon).zcdp()
        point = low
    return fraction_up(precise.multiply(precise.multiply(eps, eps), slope(point)))


def response_pair(epsilon: float, categories: int) -> tuple[Discrete, Discrete]:
    """Reports of the first and of the second category; all others count as one symbol."""
    z = math.log(math.exp(epsilon) + categories - 1)
    rest = math.log(categories - 2) - z if categories > 2 else -math.inf
    return (
        Discrete(np.array([epsilon - z, -z, rest])[: 3 if categories > 2 else 2]),
        Discrete(np.array([-z, epsilon - z, rest])[: 3 if categories > 2 else 2]),
    )


def _worst_range(epsilon: float, order: float) -> LawPair:
    """The two-point law on {t, t − ε} with the largest divergence of this order, by search."""
    from scipy.optimize import minimize_scalar

    def moment(t: float) -> float:
        p, q = _two_points(epsilon, t)
        return float(np.logaddexp(*(order * p.log_mass - (order - 1) * q.log_mass)))

    found = minimize_scalar(
        lambda t: -moment(t),
        bounds=(1e-9 * epsilon, epsilon * (1 - 1e-9)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return _two_points(epsilon, float(found.x))


def _two_points(epsilon: float, t: float) -> tuple[Discrete, Discrete]:
    """Privacy losses t and t − ε; under Q their exponentials have mean 1."""
    # Q(t) = (1 − e^{t−ε})/(e^t − e^{t−ε}), Q(t−ε) = 1 − Q(t)
    high = math.log(-math.expm1(t - epsilon)) - t - math.log(-math.expm1(-epsilon))
    low = math.log(math.expm1(t)) - t - math.log(-math.expm1(-epsilon))
    q = np.array([high, low])
    return Discrete(q + np.array([t, t - epsilon])), Discrete(q)
