r"""What a loss costs an account in Gaussian mass, given what remains of it.

A rest A is the promise that all that follows is √A-GDP.  A loss with trade-off g may be spent from
it, and leave M = A − c, if g ⊗ G_√M >= G_√A.  Then A + k may pay c too, for every k >= 0, since
both sides may be composed with G_√k: so the cost c is tabulated at some rests and holds from each
of them on.  At M = 0 it is the fixed price, which holds whatever the rest is.

With γ(s) = e^{−s/2}·(δ_g(s) − max(0, 1 − e^s)) and N_v the density of N(0, v), the condition is

    ∫ γ(s)·N_M(x − s) ds <= ½ ∫_0^c e^{−w/8}·N_{M+w}(x) dw    for every real x,

where nothing cancels.  Divided by N_M(x), at x = z√M, its sides are L(z) and R(z): even, log L
convex in z and log R in z², so that finitely many points certify all z.  Proofs, of the γ below
too: ``docs/proofs.md#gaussian-rests``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from privlearn.losses.base import Loss, parts_of
from privlearn.losses.numerics import up
from privlearn.losses.pure import RandomizedResponse
from privlearn.losses.steps import (
    BoundedRangeStep,
    LaplaceStep,
    PureStep,
    RandomizedResponseStep,
)
from privlearn.losses.subsampled import SubsampledGaussianStep
from privlearn.values.exact import float_up

Array = np.ndarray[Any, np.dtype[np.float64]]
Tabled = PureStep | LaplaceStep | RandomizedResponseStep | BoundedRangeStep

_BITS = 24  # Of tabulated numbers, so that sums of them stay short
_LARGEST_TABLED = 4.0
"""Above this ε only the fixed price is used; the quadrature's error is bounded up to it."""
_PER_OCTAVE = 4
_FIRST, _LAST = -3 * _PER_OCTAVE, 12 * _PER_OCTAVE
"""Rests M = ε²·2^(i/4) at which costs are certified: from ε²/8, where a cost is near the fixed
price, to 4096·ε², where it is within 4e-5 of the limit."""
_SLACK = 1e-4  # What a cost has above that at x = 0, to begin with
_LARGEST_EPSILON = 700  # As of a `PureLoss`
_MARGIN = -1e-9  # Covers the rounding of sums of positive terms, and the quadrature's error
_FARTHEST = 16.0  # zη up to which the quadrature's error is bounded
_EDGES = np.concatenate([[0.0], np.geomspace(0.02, _FARTHEST, 92)])  # In units of zη
_TOPS = 48  # Intervals of t in [ε/2, ε] for bounded range; the others are mirrored
_CHORDS = 64


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A loss in Gaussian mass.

    Attributes:
        price: a mass whose Gaussian is at least as revealing, so the cost whatever the rest is.
        step: whose costs at a rest are tabulated; None where they are the price.
        count: how often it runs.
    """

    price: Fraction
    step: Tabled | None
    count: int

    def cost(self, rest: Fraction) -> tuple[Fraction, Fraction]:
        """What one run costs at a rest, and from which rest on."""
        found = None if self.step is None else _tabled(self.step, rest)
        return (self.price, self.price) if found is None or found[0] >= self.price else found


def gaussian_parts(loss: Loss) -> tuple[Part, ...] | None:
    """The parts of a loss in the order that leaves most; None if one is not Gaussian DP.

    Those whose cost depends on the rest come first, the largest of them before the others.  A
    Gaussian has its own mass; a subsampled one that of the plain Gaussian, as its tail leaves no
    amplification; a loss of worst case ε the least μ² with 2Φ(μ/2) − 1 >= δ_g(0).
    """
    found = []
    for part, count in parts_of(loss):
        price, step = part.gaussian(), None
        if price is None:
            stands = _stand_in(part)
            if stands is None:
                return None
            price, step = stands
        found.append(Part(price, step, count))
    return tuple(sorted(found, key=lambda part: (part.step is None, -part.price)))


def total_price(parts: Sequence[Part]) -> Fraction:
    """A mass whose Gaussian is at least as revealing as all of them."""
    return sum((part.price * part.count for part in parts), Fraction(0))


def rest_after(rest: Fraction, parts: Sequence[Part], count: int) -> Fraction | None:
    """What remains of a mass after so many runs of all parts, rounded down; None if refused.

    The work does not grow with the count, but with the tabulated rests that are passed.
    """
    for part in parts:
        left = part.count * count
        while left:
            cost, threshold = part.cost(rest)
            if rest < threshold:
                return None
            runs = min(left, int((rest - threshold) // cost) + 1)
            rest -= runs * cost
            left -= runs
    return rest


def _stand_in(loss: Loss) -> tuple[Fraction, Tabled | None] | None:
    """The fixed price of what dominates a loss, and the step to look up in a table, if any."""
    step = loss.step()
    match step:
        case SubsampledGaussianStep(_, sigma):
            return _short(1 / sigma**2 * (1 + 1e-15)), None
        case PureStep() | LaplaceStep() | RandomizedResponseStep() | BoundedRangeStep():
            known: Tabled = step
        case _:
            worst = loss.pure()
            if worst is None or worst > _LARGEST_EPSILON:
                return None
            known = PureStep(float_up(worst))
    return _fixed(known), known if known.epsilon <= _LARGEST_TABLED else None


def _short(value: float) -> Fraction:
    """A positive number rounded up to few bits."""
    mantissa, exponent = math.frexp(value)
    return Fraction(math.ceil(mantissa * 2**_BITS)) * Fraction(2) ** (exponent - _BITS)


@lru_cache(maxsize=2**12)
def _fixed(step: Tabled) -> Fraction:
    """The least μ² whose Gaussian has the total variation of the step's law, rounded up."""
    match step:
        case LaplaceStep(eps):
            distance, rest = -math.expm1(-eps / 2), math.exp(-eps / 2)
        case BoundedRangeStep(eps):
            distance, rest = math.tanh(eps / 4), 2 / (1 + math.exp(eps / 2))
        case PureStep(eps) | RandomizedResponseStep(eps):
            distance, rest = math.tanh(eps / 2), 2 / (1 + math.exp(eps))

    def enough(x: float) -> bool:
        """Whether erf(x) is at least the distance, where the smaller of the two is compared."""
        if distance < 0.5:
            return math.erf(x) >= distance * (1 + 1e-12)
        return math.erfc(x) <= rest * (1 - 1e-12)

    # erf(x) >= x up to 1/2, and erfc(x) <= e^(-x²)
    low, high = 0.0, 1.01 * distance if distance < 0.5 else math.sqrt(1e-9 - math.log(rest))
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _short(8 * high * high * (1 + 1e-15))


def _tabled(step: Tabled, rest: Fraction) -> tuple[Fraction, Fraction] | None:
    """The certified cost at a rest and the rest from which on it holds; None below all of them."""
    ratio = rest / Fraction(step.epsilon) ** 2
    if ratio >= 2**20:
        place = _LAST
    else:
        place = math.floor(_PER_OCTAVE * math.log2(ratio)) if ratio >= 2**-10 else _FIRST - 1
    for lower in range(min(place, _LAST), _FIRST - 1, -1):
        found = _entry(step, lower)
        if found is None:  # nor is one certified below, where costs are higher
            return None
        if found[1] <= rest:
            return found
    return None


@lru_cache(maxsize=2**14)
def _entry(step: Tabled, place: int) -> tuple[Fraction, Fraction] | None:
    """A certified cost, and the rest from which on it holds, M + cost; None without certificate."""
    kernel = _kernel(step, 20 if place >= 0 else 32)
    mass = _short(step.epsilon**2 * 2 ** (place / _PER_OCTAVE))
    rest = float(mass)
    least = max(_cost_at_zero(kernel, rest), kernel.least)

    def holds(excess: float) -> bool:
        return _certified(kernel, rest, float(_short(least * (1 + excess))))

    excess = _SLACK
    while not holds(excess):
        excess *= 4
        if least * (1 + excess) > _fixed(step):
            return None
    failed = excess / 4 if excess > _SLACK else excess
    while excess - failed > 10 * _SLACK * (1 + excess):
        middle = (failed + excess) / 2
        failed, excess = (failed, middle) if holds(middle) else (middle, excess)
    cost = _short(least * (1 + excess))
    return cost, mass + cost


@dataclass(frozen=True, slots=True)
class _Kernel:
    """γ of a law, or of several members of a family, at the nodes of a quadrature.

    Attributes:
        points: s, a row for each member.
        weights: γ(s) times the node's weight.
        reach: the largest |s|.
        between: what may be added to the largest integral for members between rows, where the
            factor of γ is at most 1.
        least: a cost from which the search may start.
    """

    points: Array
    weights: Array
    reach: float
    between: float = 0.0
    least: float = 0.0

    def largest(self, rest: float, z: Array) -> Array:
        """The largest of the left sides at each z >= 0, rounded up."""
        sigma = self.points / math.sqrt(rest)
        base = self.weights * np.exp(-sigma * sigma / 2)
        found = [float((base * np.exp(-value * sigma)).sum(axis=-1).max()) for value in z]
        return np.array(found) + self.between * np.exp(z * self.reach / math.sqrt(rest))


@lru_cache(maxsize=2)
def _nodes(number: int) -> tuple[Array, Array]:
    points, weights = np.polynomial.legendre.leggauss(number)
    return (points + 1) / 2, weights / 2


@lru_cache(maxsize=2**8)
def _kernel(step: Tabled, number: int) -> _Kernel:
    """With so many nodes on each side of 0: 20 are enough for ε² <= M, 32 for ε² <= 8M."""
    nodes, weights = _nodes(number)
    eps, least = step.epsilon, 0.0
    match step:
        case BoundedRangeStep():
            # the two-point law on {t, t − ε}: twice a product of sinh, a tent over [−t, ε − t]
            top = np.linspace(eps / 2, eps, _TOPS + 1)[:, None]
            scale = 2 / math.sinh(eps / 2)
            left = scale * np.sinh((eps - top) / 2) * np.sinh(top * (1 - nodes) / 2) * weights * top
            length = eps - top
            right = scale * np.sinh(top / 2) * np.sinh(length * (1 - nodes) / 2) * weights * length
            bend = math.cosh(eps / 2) ** 2 / math.sinh(eps / 2) * eps
            points = np.concatenate([-top * nodes, length * nodes], axis=1)
            return _Kernel(
                points,
                np.concatenate([left, right], axis=1),
                eps,
                up(bend * (eps / (2 * _TOPS)) ** 2 / 8),
            )
        case LaplaceStep():
            half = math.exp(-eps / 2) * np.expm1(eps * (1 - nodes) / 2)
        case PureStep():
            half = np.sinh(eps * (1 - nodes) / 2) / math.cosh(eps / 2)
        case RandomizedResponseStep(_, k):
            share = 2 * math.exp(eps / 2) / (math.exp(eps) + k - 1)
            half = share * np.sinh(eps * (1 - nodes) / 2)
            if k > 2:  # its worst order is beyond x = 0
                least = 2 * float(RandomizedResponse(Fraction(eps), k).zcdp())
    half = half * weights * eps
    points = np.concatenate([eps * nodes, -eps * nodes])[None, :]
    return _Kernel(points, np.concatenate([half, half])[None, :], eps, least=least)


def _right_side(rest: float, cost: float, z: Array) -> Array:
    """½∫_0^c (1 + w/M)^{−1/2}·exp(z²w/(2(M + w)) − w/8) dw at each z, rounded down.

    In θ = log(1 + w/M) the logarithm of the integrand is concave: it lies above its chords.
    """
    theta = np.linspace(0, math.log1p(cost / rest), _CHORDS + 1)
    share = -np.expm1(-theta)
    log_height = theta / 2 - rest / 8 * np.expm1(theta) + z[:, None] ** 2 / 2 * share
    rise = np.diff(log_height, axis=1)
    mean = np.where(np.abs(rise) < 1e-6, 1 + rise / 2, np.expm1(rise) / np.where(rise, rise, 1))
    cells = np.exp(log_height[:, :-1]) * mean
    return np.asarray(rest / 2 * theta[1] * cells.sum(axis=1))


def _cost_at_zero(kernel: _Kernel, rest: float) -> float:
    """The cost at which both sides are equal at x = 0, by Newton's method."""
    zero = np.zeros(1)
    goal = float(kernel.largest(rest, zero)[0])
    cost = 2 * goal
    for _ in range(30):
        gap = goal - float(_right_side(rest, cost, zero)[0])
        # beyond, the right side hardly grows, and the certificate fails anyway
        step = 2 * gap * math.sqrt(1 + cost / rest) * math.exp(min(cost / 8, 40.0))
        cost += step
        if abs(step) <= 1e-9 * cost:
            break
    return cost


def _certified(kernel: _Kernel, rest: float, cost: float) -> bool:
    """Whether the condition holds at every x.

    log L is convex in z, so below its chords; log R, also as it is rounded down, is convex in z²,
    so above the chord of the interval before.  Beyond the last point L grows by at most the factor
    e^{(z−Z)η}, η = reach/√M, and R by at least e^{2Zs(z−Z)}, s the slope of its last chord.
    """
    eta = kernel.reach / math.sqrt(rest)
    before = 0.0
    for first in range(0, len(_EDGES) - 1, 16):
        z = _EDGES[first : first + 17] / eta
        right = np.log(_right_side(rest, cost, z))
        left = np.log(kernel.largest(rest, z))
        slopes = np.diff(right) / np.diff(z * z)
        rise, growth = np.diff(left) / np.diff(z), np.concatenate([[before], slopes[:-1]])
        # where the chord of log L is farthest above the line below log R
        worst = np.clip(rise / (2 * np.maximum(growth, 1e-300)), z[:-1], z[1:])
        gap = left[:-1] + rise * (worst - z[:-1]) - right[:-1]
        gap -= growth * (worst**2 - z[:-1] ** 2)
        before = slopes[-1]
        if gap.max() > _MARGIN or left[-1] - right[-1] > _MARGIN:
            return False
        if 2 * z[-1] * before >= eta:
            return True
    return False
