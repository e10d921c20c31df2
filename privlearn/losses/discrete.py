r"""Discrete noise: integers, with Laplace's or Gauss's weights.

Symbols as in `privlearn.losses.base`, and v = s − 1/2, so that s(s−1) = v² − 1/4.

Lemma (zeros).  Let the privacy loss of P against Q take finitely many values, multiples of one
number, and let both directions have the same law, so that M(v) = E_Q[(dP/dQ)^{1/2+v}] is even.  If
all zeros of M in the complex plane are imaginary, then K(s) <= K′(1)·s(s−1) for all s >= 1: the KL
divergence K′(1) is a zCDP constant, and the tight one, because D_s → K′(1) as s → 1.
Proof.  M is entire, even, of order 1 and M(0) > 0: by Hadamard M(v) = M(0)·∏(1 + v²/γ_k²), the γ_k
real.  Each log(1 + u/γ²) is concave in u = v², and so is log M; it lies below its tangent at
u = 1/4, where M = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np

from privlearn.errors import CheckError
from privlearn.losses.base import Loss, register
from privlearn.losses.numerics import (
    MOST_STEPS,
    ROUNDING,
    decimal_of,
    fraction_up,
    up,
    valid_count,
    valid_epsilon,
    valid_number,
    valid_order,
    working_context,
)
from privlearn.losses.output_laws import Discrete, LawPair, Product
from privlearn.losses.pure import response_renyi
from privlearn.losses.steps import (
    CurveStep,
    Direction,
    DiscreteLaplaceStep,
    PairStep,
    Points,
    Step,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, float_down, float_up

_MOST_SYMBOLS = 10**6
_LARGEST_STD = 20_000.0  # Of noise whose law is listed for a tight composition
_MOST_MOVED = 3  # Integers that change by one step where nothing else is possible


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class DiscreteLaplace(Loss):
    """Integer noise, P(x) ∝ e^{−a|x|} with a = ε/Δ, on integers of ℓ1 sensitivity Δ.

    A shift m >= 1 has the moment A·e^{(α−1)am} + B·e^{−αam} with b = e^{−a}, r = e^{−(2α−1)a},
    A = (1 + (1−b)r/(1−r))/(1+b) and B = (b−r)/((1+b)(1−r)), by summing three geometric series.  As
    A, B > 0 and A + B = 1, its logarithm is convex in m and 0 at 0, hence superadditive: a
    sensitivity spread over coordinates costs no more than Δ in one.

    ρ = ε − a(1−e^{−ε})/sinh(a), the KL divergence, is the tight zCDP constant.  M(v) is a multiple
    of e^{−Δy}·p(e^{2y}), where y = av and p(z) = z^Δ + (1−b)(z^{Δ−1} + … + z) + 1.  Because
    (z−1)p(z) = z^Δ(z−b) − (1−bz), a zero of p has z^Δ·(z−b)/(1−bz) = 1.  The Blaschke factor
    (z−b)/(1−bz) is smaller than 1 inside of the unit circle and larger outside: |z| = 1, y is
    imaginary, and the module's Lemma applies.  (Δ = 1 is `PureLoss`, Δ → ∞ is `LaplaceLoss`.)
    """

    kind = "discrete-laplace"
    epsilon: Fraction
    sensitivity: int
    adjacency: Adjacency

    def __init__(
        self, epsilon: Exact, sensitivity: int = 1, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        steps = valid_count(MOST_STEPS, at_least=1, sensitivity=sensitivity)
        self._set(epsilon=valid_epsilon(epsilon), sensitivity=steps, adjacency=adjacency)

    def renyi(self, order: float) -> float:
        alpha, eps = valid_order(order), float_up(self.epsilon)
        worst = response_renyi(alpha, eps, 2)
        if self.sensitivity == 1:
            return worst
        a, t = eps / self.sensitivity, alpha - 1
        b, gap = math.exp(-a), (alpha + t) * a
        left = (1 - math.expm1(-a) / math.expm1(gap)) / (1 + b) if gap < 700 else 1 / (1 + b)
        right = b * math.expm1(-2 * t * a) / math.expm1(-gap) / (1 + b)
        log_moment = t * eps + math.log(left + right * math.exp(-(alpha + t) * eps))
        evaluated = (log_moment + ROUNDING * (1 + t * eps)) / t
        return min(evaluated, worst, up(alpha * float_up(self.zcdp())))

    def zcdp(self) -> Fraction:
        return _discrete_laplace_rho(self.epsilon, self.sensitivity)

    def pure(self) -> Fraction:
        return self.epsilon

    def doubled(self) -> DiscreteLaplace:
        return DiscreteLaplace(2 * self.epsilon, 2 * self.sensitivity)

    def several(self, visits: int, apart: int) -> DiscreteLaplace:
        epsilon, sensitivity = visits * self.epsilon, visits * self.sensitivity
        return replace(self, epsilon=epsilon, sensitivity=sensitivity)

    def noisier(self, factor: Fraction) -> DiscreteLaplace:
        return replace(self, epsilon=self.epsilon / factor)

    def step(self) -> DiscreteLaplaceStep:
        return DiscreteLaplaceStep(float_up(self.epsilon), self.sensitivity)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [_geometric(float(self.epsilon), self.sensitivity)]


@lru_cache(maxsize=2**14)
def _discrete_laplace_rho(epsilon: Fraction, sensitivity: int) -> Fraction:
    precise = working_context(epsilon / sensitivity)
    eps, a = decimal_of(epsilon, precise), decimal_of(epsilon / sensitivity, precise)
    sinh = precise.divide(
        precise.subtract(precise.exp(a), precise.exp(precise.minus(a))), Decimal(2)
    )
    mass = precise.subtract(1, precise.exp(precise.minus(eps)))
    return fraction_up(precise.subtract(eps, precise.multiply(a, precise.divide(mass, sinh))))


@dataclass(frozen=True, slots=True)
class DiscreteGaussianStep(PairStep):
    """Discrete Gaussian noise of width std on integers, ``moved`` of which change by one step.

    The pair of one shift dominates those of smaller ones: the likelihood ratio rises with x, so the
    best sets are half-lines, and a larger shift only makes them more likely under P.
    """

    std: float
    moved: int

    def points(self, way: Direction, step: float, tail: float) -> Points:
        """With s the sum of the changed integers the loss is (2s - moved)/(2 std^2)."""
        reach = math.ceil(self.std * math.sqrt(-2 * math.log(tail))) + 1
        x = np.arange(-reach, reach + 1, dtype=np.float64)
        one = np.exp(-(x * x) / (2 * self.std**2))
        one /= one.sum()
        masses = one
        for _ in range(self.moved - 1):
            masses = np.convolve(masses, one)
        loss = (2 * np.arange(len(masses)) - 2.0 * self.moved * reach + self.moved) / 2
        loss = loss / self.std**2
        # P(|X| > reach) <= 2 e^(-reach^2/(2 std^2)) of each (Canonne, Kamath & Steinke 2020)
        out = self.moved * math.exp(-(reach**2) / (2 * self.std**2)) * 2
        found = Points(loss + 1e-15 * np.abs(loss), masses, lost=out)
        return found.plus([float(loss[0])], [out], out)

    def lattice(self) -> float:
        return (2 - self.moved % 2) / 2 / self.std**2

    def renyi(self, order: float) -> float:
        return up(order * self.moved / self.std**2 / 2)

    def in_range(self) -> bool:
        return 0.05 <= self.std <= _LARGEST_STD and 1 <= self.moved <= _MOST_MOVED


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class DiscreteGaussian(Loss):
    """Integer noise, P(x) ∝ e^{−x²/(2σ²)}, on each coordinate of a vector of integers.

    Args:
        sensitivity: the ℓ2 sensitivity Δ, in steps of the grid, at least 1 (a change below one step
            is none); a real number for vectors, such as √2.
        std: σ, in steps of the grid.
        adjacency: the neighbour relation.

    D_α <= αΔ²/(2σ²) for every α, with equality whenever α times the shift is a vector of integers,
    hence at every integer order (Canonne, Kamath & Steinke 2020, Proposition 5): a shift m costs
    αm²/(2σ²) + log(θ(αm)/θ(0))/(α−1), where θ(t) = Σ_x e^{−(x−t)²/(2σ²)} is largest at the
    integers, by Poisson summation.  So ρ = Δ²/(2σ²) is tight.  There is no Gaussian mass: its δ
    exceeds that of the continuous Gaussian.  A tight composition takes its own law where Δ² < 4,
    as then at most three integers change, by one step each; beyond that vectors of many shapes have
    that norm, none of which dominates the others, and the zCDP constant stands for it.
    """

    kind = "discrete-gaussian"
    sensitivity: Fraction
    std: Fraction
    adjacency: Adjacency

    def __init__(
        self, sensitivity: Exact, std: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        self._set(
            sensitivity=valid_number("sensitivity", sensitivity, "1", "1e75"),
            std=valid_number("std", std, "1e-75", "1e75"),
            adjacency=adjacency,
        )

    def renyi(self, order: float) -> float:
        return up(valid_order(order) * float_up(self.zcdp()))

    def zcdp(self) -> Fraction:
        return (self.sensitivity / self.std) ** 2 / 2

    def doubled(self) -> DiscreteGaussian:
        return DiscreteGaussian(2 * self.sensitivity, self.std)

    def several(self, visits: int, apart: int) -> DiscreteGaussian:
        return replace(self, sensitivity=visits * self.sensitivity)

    def noisier(self, factor: Fraction) -> DiscreteGaussian:
        return replace(self, std=self.std * factor)

    def step(self) -> Step:
        found = DiscreteGaussianStep(float_down(self.std), math.floor(self.sensitivity**2))
        return found if found.in_range() else CurveStep(self.renyi)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [_discrete_gaussian(self.sensitivity, float(self.std))]


def _geometric(epsilon: float, sensitivity: int) -> LawPair:
    """P(x) ∝ e^{−a|x|} at 0 and Δ; all x <= 0 have one ratio and count as one symbol, as x >= Δ."""
    if sensitivity > _MOST_SYMBOLS:
        raise CheckError(f"sensitivity = {sensitivity}: at most {_MOST_SYMBOLS} symbols")
    a = epsilon / sensitivity
    inside = np.arange(1, sensitivity, dtype=float)
    log_unit = math.log(math.tanh(a / 2))  # of (1 − e^{−a})/(1 + e^{−a})
    tail = log_unit - math.log(-math.expm1(-a))
    near = np.r_[tail, log_unit - a * inside, tail - epsilon]
    return Discrete(near), Discrete(near[::-1].copy())


def _discrete_gaussian(sensitivity: Fraction, std: float) -> LawPair:
    """Shifts by whole steps whose squares add up to at most Δ²: all of it where that is whole."""
    left = math.floor(sensitivity**2 + Fraction(1, 10**9))
    shifts: list[int] = []
    while left and len(shifts) < 4:
        shifts.append(math.isqrt(left))
        left -= shifts[-1] ** 2
    pairs = [_shifted_grid(shift, std) for shift in shifts]
    return Product(tuple((p, 1) for p, _ in pairs)), Product(tuple((q, 1) for _, q in pairs))


def _shifted_grid(shift: int, std: float) -> LawPair:
    reach = math.ceil(40 * std) + 130 * shift
    if 2 * reach > _MOST_SYMBOLS:
        raise CheckError(f"std = {std:g}: at most {_MOST_SYMBOLS} steps of the grid")
    x = np.arange(-reach, reach + shift + 1, dtype=float)
    total = math.log(math.fsum(np.exp(-(x**2) / (2 * std * std))))
    first, second = ((-((x - s) ** 2) / (2 * std * std) - total) for s in (shift, 0))
    return Discrete(first), Discrete(second)
