r"""More kinds of loss: discrete noise, randomized response, subsampling and black boxes.

Symbols as in `privlearn.losses`: D_α is the Rényi divergence of order α, K(s) = (s−1)·D_s, and
v = s − 1/2, so that s(s−1) = v² − 1/4.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from privlearn._json_forms import LIST, OBJECT, TEXT, WHOLE
from privlearn._validate import count as valid_count
from privlearn.adjacency import Adjacency
from privlearn.errors import AdjacencyError
from privlearn.exact import Exact, exact, exact_text, float_down, float_up
from privlearn.losses.base import (
    _ROUNDING,
    Loss,
    _context,
    _decimal,
    _epsilon,
    _fraction_up,
    _order,
    _up,
    loss_from_dict,
    of_relation,
    read_parts,
    register,
)

_ULP = 2.0**-52
_MOST_CATEGORIES = 10**15
_MOST_STEPS = 10**15
_LARGEST_ORDER = 4096
"""Above this order the subsampled Gaussian is priced by a simple bound (two Gaussians mixed)."""
_MOST_NODES = 5000
_DEPTH = 45.0
"""Quadrature errors are held below a few e^−45 of the value."""


def _number(name: str, value: Exact, low: str, high: str) -> Fraction:
    number = exact(name, value)
    if not Fraction(low) <= number <= Fraction(high):
        raise ValueError(f"{name} = {value!r}: must lie in [{low}, {high}]")
    return number


def _whole(most: int, *, at_least: int, **named: int) -> int:
    ((name, value),) = named.items()
    number = valid_count(at_least=at_least, **{name: value})
    if number > most:
        raise ValueError(f"{name} = {value!r}: must be an integer <= {most}")
    return number


# Pure losses ----------------------------------------------------------------------------------


@final
@register(
    lambda data, adjacency: PureEpsilon(data["epsilon"], adjacency=adjacency), {"epsilon": TEXT}
)
@dataclass(frozen=True, slots=True, init=False)
class PureEpsilon(Loss):
    """A black box that is ε-DP: no worse than binary randomized response.

    D_α = log(cosh((α−1/2)ε)/cosh(ε/2))/(α−1), because by convexity the moment is largest for the
    two-point law on e^{±ε}; ρ = ε·tanh(ε/2) is tight; proofs in ``docs/proofs.md#pure``.
    """

    kind = "pure"
    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        object.__setattr__(self, "epsilon", _epsilon(epsilon))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        return _randomized_response(_order(order), float_up(self.epsilon), 2)

    def zcdp(self) -> Fraction:
        precise = _context(self.epsilon)
        eps = _decimal(self.epsilon, precise)
        small = precise.exp(precise.minus(eps))
        ratio = precise.divide(precise.subtract(1, small), precise.add(1, small))
        return _fraction_up(precise.multiply(eps, ratio))

    def pure(self) -> Fraction:
        return self.epsilon

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": exact_text(self.epsilon)}


def _read_randomized_response(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return RandomizedResponse(data["epsilon"], data["categories"], adjacency=adjacency)


@final
@register(_read_randomized_response, {"epsilon": TEXT, "categories": WHOLE})
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
        self,
        epsilon: Exact,
        categories: int = 2,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ):
        number = _whole(_MOST_CATEGORIES, at_least=2, categories=categories)
        object.__setattr__(self, "epsilon", _epsilon(epsilon))
        object.__setattr__(self, "categories", number)
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        return _randomized_response(_order(order), float_up(self.epsilon), self.categories)

    def zcdp(self) -> Fraction:
        return _response_rho(self.epsilon, self.categories)

    def pure(self) -> Fraction:
        return self.epsilon

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": exact_text(self.epsilon), "categories": self.categories}


def _randomized_response(alpha: float, eps: float, k: int) -> float:
    t = alpha - 1
    if (alpha + t) * eps < 1200:
        # moment − 1 = 4e^{ε/2}·sinh(αε/2)·sinh((α−1)ε/2)/Z, where nothing cancels
        share = 4 / (math.exp(eps / 2) + (k - 1) * math.exp(-eps / 2))
        left, right = math.sinh(t * eps / 2), math.sinh(alpha * eps / 2) * share
        log_moment = math.log1p(left * right)
        log_moment += _ULP * alpha * eps * min(log_moment, 1)  # sinh feels its argument's rounding
    else:
        # with αε >= 600 the other terms of the moment are below e^−560 of the first
        log_moment = t * eps - math.log1p((k - 1) * math.exp(-eps))
    return min(_up(log_moment / t), eps)


@lru_cache(maxsize=2**14)
def _response_rho(epsilon: Fraction, k: int) -> Fraction:
    precise = _context(epsilon)
    eps = _decimal(epsilon, precise)
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
            return PureEpsilon(epsilon).zcdp()
        point = low
    return _fraction_up(precise.multiply(precise.multiply(eps, eps), slope(point)))


def _read_discrete_laplace(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return DiscreteLaplace(data["epsilon"], data["sensitivity"], adjacency=adjacency)


@final
@register(_read_discrete_laplace, {"epsilon": TEXT, "sensitivity": WHOLE})
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
    imaginary, and the module's Lemma applies.  (Δ = 1 is `PureEpsilon`, Δ → ∞ is `Laplace`.)
    """

    kind = "discrete-laplace"
    epsilon: Fraction
    sensitivity: int
    adjacency: Adjacency

    def __init__(
        self,
        epsilon: Exact,
        sensitivity: int = 1,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ):
        steps = _whole(_MOST_STEPS, at_least=1, sensitivity=sensitivity)
        object.__setattr__(self, "epsilon", _epsilon(epsilon))
        object.__setattr__(self, "sensitivity", steps)
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        alpha, eps = _order(order), float_up(self.epsilon)
        worst = _randomized_response(alpha, eps, 2)
        if self.sensitivity == 1:
            return worst
        a, t = eps / self.sensitivity, alpha - 1
        b, gap = math.exp(-a), (alpha + t) * a
        left = (1 - math.expm1(-a) / math.expm1(gap)) / (1 + b) if gap < 700 else 1 / (1 + b)
        right = b * math.expm1(-2 * t * a) / math.expm1(-gap) / (1 + b)
        log_moment = t * eps + math.log(left + right * math.exp(-(alpha + t) * eps))
        evaluated = (log_moment + _ROUNDING * (1 + t * eps)) / t
        return min(evaluated, worst, _up(alpha * float_up(self.zcdp())))

    def zcdp(self) -> Fraction:
        return _discrete_laplace_rho(self.epsilon, self.sensitivity)

    def pure(self) -> Fraction:
        return self.epsilon

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": exact_text(self.epsilon), "sensitivity": self.sensitivity}


@lru_cache(maxsize=2**14)
def _discrete_laplace_rho(epsilon: Fraction, sensitivity: int) -> Fraction:
    precise = _context(epsilon / sensitivity)
    eps, a = _decimal(epsilon, precise), _decimal(epsilon / sensitivity, precise)
    sinh = precise.divide(
        precise.subtract(precise.exp(a), precise.exp(precise.minus(a))), Decimal(2)
    )
    mass = precise.subtract(1, precise.exp(precise.minus(eps)))
    return _fraction_up(precise.subtract(eps, precise.multiply(a, precise.divide(mass, sinh))))


# Losses that are straight lines ---------------------------------------------------------------


@final
@register(lambda data, adjacency: ZCDPLoss(data["rho"], adjacency=adjacency), {"rho": TEXT})
@dataclass(frozen=True, slots=True, init=False)
class ZCDPLoss(Loss):
    """A black box that is ρ-zCDP: D_α <= αρ for all α > 1 (Bun & Steinke 2016, Definition 1.1)."""

    kind = "zcdp"
    rho: Fraction
    adjacency: Adjacency

    def __init__(self, rho: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        object.__setattr__(self, "rho", _number("rho", rho, "1e-100", "1e100"))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        return _up(_order(order) * float_up(self.rho))

    def zcdp(self) -> Fraction:
        return self.rho

    def numbers(self) -> dict[str, Any]:
        return {"rho": exact_text(self.rho)}


def _read_discrete_gaussian(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return DiscreteGaussian(data["sensitivity"], data["std"], adjacency=adjacency)


@final
@register(_read_discrete_gaussian, {"sensitivity": TEXT, "std": TEXT})
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
    exceeds that of the continuous Gaussian.
    """

    kind = "discrete-gaussian"
    sensitivity: Fraction
    std: Fraction
    adjacency: Adjacency

    def __init__(
        self, sensitivity: Exact, std: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        object.__setattr__(self, "sensitivity", _number("sensitivity", sensitivity, "1", "1e75"))
        object.__setattr__(self, "std", _number("std", std, "1e-75", "1e75"))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        return _up(_order(order) * float_up(self.zcdp()))

    def zcdp(self) -> Fraction:
        return (self.sensitivity / self.std) ** 2 / 2

    def numbers(self) -> dict[str, Any]:
        return {"sensitivity": exact_text(self.sensitivity), "std": exact_text(self.std)}


def _read_generalized_gaussian(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return GeneralizedGaussian(data["kappa"], data["sensitivity"], data["std"], adjacency=adjacency)


@final
@register(_read_generalized_gaussian, {"kappa": TEXT, "sensitivity": TEXT, "std": TEXT})
@dataclass(frozen=True, slots=True, init=False)
class GeneralizedGaussian(Loss):
    """Noise with density ∝ exp(−‖z‖₊²/(2σ²)), sensitivity s in a κ-regular norm.

    ‖·‖₊ is κ₊-smooth and ‖·‖₊² <= (κ/κ₊)‖·‖², as in Han et al. 2022, Lemma 2.1.
    D_α <= α·κs²/(2σ²): ``docs/errata/generalized-gaussian.md`` has the proof.  A bound only: for
    norms far from Euclidean the truth can be lower.
    """

    kind = "generalized-gaussian"
    kappa: Fraction
    sensitivity: Fraction
    std: Fraction
    adjacency: Adjacency

    def __init__(
        self,
        kappa: Exact,
        sensitivity: Exact,
        std: Exact,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ):
        object.__setattr__(self, "kappa", _number("kappa", kappa, "1", "1e75"))
        object.__setattr__(
            self, "sensitivity", _number("sensitivity", sensitivity, "1e-75", "1e75")
        )
        object.__setattr__(self, "std", _number("std", std, "1e-75", "1e75"))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        return _up(_order(order) * float_up(self.zcdp()))

    def zcdp(self) -> Fraction:
        return self.kappa * (self.sensitivity / self.std) ** 2 / 2

    def numbers(self) -> dict[str, Any]:
        return {
            "kappa": exact_text(self.kappa),
            "sensitivity": exact_text(self.sensitivity),
            "std": exact_text(self.std),
        }


# Subsampling ----------------------------------------------------------------------------------


def _read_subsampled_gaussian(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return SubsampledGaussian(
        data["noise_multiplier"], data["sampling_probability"], adjacency=adjacency
    )


@final
@register(_read_subsampled_gaussian, {"noise_multiplier": TEXT, "sampling_probability": TEXT})
@dataclass(frozen=True, slots=True, init=False)
class SubsampledGaussian(Loss):
    r"""A sum over a Poisson sample, plus Gaussian noise.

    Args:
        noise_multiplier: z, std over the largest ℓ2 norm of one record's summand.
        sampling_probability: q in (0, 1); each record is in the sample with this probability,
            independently.  The sum must not be divided by the size of the sample.
        adjacency: add-remove or zero-out.  Under replace-one two mixtures face each other, whose
            worst pair is not known to us: refused.

    The larger direction is that of (1−q)N(0, z²) + qN(1, z²) from N(0, z²), for all α > 1 and in
    any dimension (Mironov, Talwar & Zhang 2019, Theorems 4 and 5).  With A = e^{(α−1)D_α}:

    - integer orders: A = 1 + Σ_{k=2}^α C(α,k)·(1−q)^{α−k}·q^k·(e^{k(k−1)/(2z²)} − 1), since the
      binomial weights add up to 1; nothing cancels;
    - real orders: the chord of the convex (α−1)D_α between integers, 0 at order 1; and, where it is
      lower, the trapezoidal rule for A = ∫φ(y)(1 − q + q·e^{y/z−1/(2z²)})^α dy.  The integrand is
      analytic for |Im y| < πz, and on a line at height d its modulus is at most e^{d²/2} times its
      value at the real part; so with step h the rule errs by at most 2e^{d²/2}/(e^{2πd/h}−1) of A
      (Trefethen & Weideman 2014, Theorem 5.1).  Tails: (…)^α <= 1 − q + q·e^{α(y/z−1/(2z²))};
    - orders below 2, where q is small: with the ratio 1 + y, y >= −q, Taylor's theorem gives
      A <= 1 + α(α−1)/2·(1−q)^{α−2}·q²(e^{1/z²} − 1);
    - orders above 4096: A <= 1 − q + q·e^{α(α−1)/(2z²)}, by the same convexity.

    **No zCDP constant is stated.**  D_α/α tends to 1/(2z²) as α → ∞: the smallest constant is that
    of the Gaussian *without* subsampling, whatever q is.  Count it in Rényi orders.
    """

    kind = "subsampled-gaussian"
    noise_multiplier: Fraction
    sampling_probability: Fraction
    adjacency: Adjacency

    def __init__(
        self,
        noise_multiplier: Exact,
        sampling_probability: Exact,
        *,
        adjacency: Adjacency = Adjacency.ADD_REMOVE,
    ):
        if adjacency is Adjacency.REPLACE_ONE:
            raise AdjacencyError(
                "a subsampled Gaussian is priced for add-remove or zero-out: under replace-one a "
                "record that is sampled in both worlds moves between two mixtures, and no worst "
                "pair is proved for that"
            )
        multiplier = _number("noise_multiplier", noise_multiplier, "1e-3", "1e6")
        probability = exact("sampling_probability", sampling_probability)
        if not Fraction(1, 10**12) <= probability < 1:
            raise ValueError(
                f"sampling_probability = {sampling_probability!r}: must lie in [1e-12, 1); "
                "with probability 1 this is `Gaussian`"
            )
        object.__setattr__(self, "noise_multiplier", multiplier)
        object.__setattr__(self, "sampling_probability", probability)
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        alpha = _order(order)
        z = float_down(self.noise_multiplier)
        q = min(float_up(self.sampling_probability), math.nextafter(1, 0))
        return _subsampled(alpha, z, q)

    def numbers(self) -> dict[str, Any]:
        return {
            "noise_multiplier": exact_text(self.noise_multiplier),
            "sampling_probability": exact_text(self.sampling_probability),
        }


@lru_cache(maxsize=4096)
def _subsampled(alpha: float, z: float, q: float) -> float:
    t = alpha - 1
    plain = _up(alpha / (2 * z * z))
    if alpha > _LARGEST_ORDER:
        x = t * plain
        rest = math.exp(-x)
        mixed = math.log1p(q * math.expm1(x)) if x < 1 else x + math.log(q + (1 - q) * rest)
        return min(plain, _up(mixed / t + _ROUNDING * (1 + x) / t))
    below = math.floor(alpha)
    share = alpha - below
    moment = _integer_moment(below, z, q) * (1 - share)
    if share > 0:
        moment += _integer_moment(below + 1, z, q) * share
        moment = min(moment * (1 + 4 * _ULP), _quadrature(alpha, z, q))
    if below == 1 and z > 0.05:
        variance = q * q * math.expm1(1 / (z * z))
        growth = alpha * t / 2 * (1 - q) ** (alpha - 2) * variance
        moment = min(moment, math.log1p(growth * (1 + 1e-13)))
    return min(_up(moment / t), plain)


@lru_cache(maxsize=4096)
def _integer_moment(order: int, z: float, q: float) -> float:
    """log A at an integer order, rounded up."""
    if order == 1:
        return 0.0
    k = np.arange(2, order + 1, dtype=float)
    factorial = _log_factorials()
    choose = factorial[order] - factorial[2 : order + 1] - factorial[order - 2 :: -1][: order - 1]
    weights = (order - k) * math.log1p(-q) + k * math.log(q)
    growth = k * (k - 1) / (2 * z * z)
    with np.errstate(over="ignore"):
        excess = np.where(growth < 40, np.log(np.expm1(np.minimum(growth, 40))), growth)
    terms = choose + weights + excess
    terms += 8 * _ULP * (1 + 2 * factorial[order] - weights + np.abs(excess) + growth)
    top = float(terms.max())
    log_excess = top + math.log(float(np.exp(terms - top).sum())) + 16 * _ULP * (1 + abs(top))
    rounded = math.log1p(math.exp(log_excess)) if log_excess < 30 else log_excess + 1e-13
    return _up(rounded)


@lru_cache(maxsize=1)
def _log_factorials() -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([math.lgamma(k + 1) for k in range(_LARGEST_ORDER + 2)])


def _quadrature(alpha: float, z: float, q: float) -> float:
    """log A by the trapezoidal rule, rounded up; inf where it would need too many points."""
    d = min(3.14159 * z, 8.0)
    step = 2 * math.pi * d / (_DEPTH + d * d / 2)
    rise = min(alpha * (alpha - 1) / (2 * z * z), -alpha * math.log(q))
    reach = math.sqrt(2 * (_DEPTH + rise))
    first, last = math.floor(-reach / step), math.ceil((alpha / z + reach) / step)
    if last - first > _MOST_NODES:
        return math.inf
    y = np.arange(first, last + 1) * step
    loss = y / z - 1 / (2 * z * z)
    mixed = alpha * np.logaddexp(math.log1p(-q), math.log(q) + loss)
    terms = mixed - y * y / 2
    size = alpha * (1 - math.log(q) + np.abs(loss) + 1 / (z * z)) + y * y + 1
    terms += 8 * _ULP * size
    top = float(terms.max())
    log_sum = math.log(float(np.exp(terms - top).sum())) + math.log(step / math.sqrt(2 * math.pi))
    # 1e-14: the sum's rounding, the rule's error and the tails, each below 1e-15 of A
    return top + log_sum + 1e-14 + 4 * _ULP * abs(top)


# Black boxes that may fail --------------------------------------------------------------------


def _read_approx(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return ApproxLoss(data["epsilon"], data["delta"], adjacency=adjacency)


@final
@register(_read_approx, {"epsilon": TEXT, "delta": TEXT})
@dataclass(frozen=True, slots=True, init=False)
class ApproxLoss(Loss):
    """A black box that is (ε, δ)-DP.

    On every pair of neighbours it is post-processing of: with probability δ reveal which of the
    two it is, else run binary ε-randomized response (Kairouz, Oh & Viswanath 2015; its trade-off
    function is the least that (ε, δ)-DP allows, so this is Blackwell's theorem).  So k such boxes
    and other losses, composed adaptively, are no worse than the following: with probability at
    most Σδ_i, the same under both neighbours, everything is revealed; else the other losses are
    composed with k `PureEpsilon` losses.  If that is (ε′, δ′)-DP, the whole is
    (ε′, f + (1−f)δ′)-DP for every f >= Σδ_i.

    Alone it has no Rényi curve, no zCDP constant and no worst case: a failure reveals everything.
    `failure` and `unless_failed` are what is added up and what is composed.
    """

    kind = "approx"
    epsilon: Fraction
    delta: Fraction
    adjacency: Adjacency

    def __init__(
        self, epsilon: Exact, delta: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        failure = exact("delta", delta)
        if not Fraction(1, 10**300) <= failure < 1:
            raise ValueError(
                f"delta = {delta!r}: must lie in [1e-300, 1); without δ this is `PureEpsilon`"
            )
        object.__setattr__(self, "epsilon", _epsilon(epsilon))
        object.__setattr__(self, "delta", failure)
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        _order(order)
        return math.inf

    def failure(self) -> Fraction:
        """The probability δ of the event in which nothing is promised."""
        return self.delta

    def unless_failed(self) -> Loss:
        """The loss apart from that event."""
        return PureEpsilon(self.epsilon, adjacency=self.adjacency)

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": exact_text(self.epsilon), "delta": exact_text(self.delta)}


def _read_may_fail(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return MayFail(of_relation(adjacency, loss_from_dict(data["loss"])), data["failure"])


@final
@register(_read_may_fail, {"loss": OBJECT, "failure": TEXT})
@dataclass(frozen=True, slots=True, init=False)
class MayFail(Loss):
    """A loss that holds apart from an event of probability ``failure``, such as approximate zCDP.

    For every pair of neighbours the laws are (1−f)P′ + fP″ and (1−f)Q′ + fQ″, and P′ against Q′ has
    the loss (Bun & Steinke 2016, Definition 8.1, for zCDP).  Composition as for `ApproxLoss`.
    """

    kind = "may-fail"
    loss: Loss
    probability: Fraction

    def __init__(self, loss: Loss, failure: Exact):
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "probability", exact("failure", failure))
        if not 0 < self.probability < 1 or loss.failure():
            raise ValueError(
                f"failure = {failure!r}: must lie strictly between 0 and 1, of a loss that does "
                "not fail otherwise"
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.loss.adjacency

    def renyi(self, order: float) -> float:
        _order(order)
        return math.inf

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return ((self.loss, 1),)

    def failure(self) -> Fraction:
        return self.probability

    def unless_failed(self) -> Loss:
        return self.loss

    def numbers(self) -> dict[str, Any]:
        return {"loss": self.loss.to_dict(), "failure": exact_text(self.probability)}


# Losses that depend on the arrival index -----------------------------------------------------


def _read_by_arrival(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    parts = read_parts(data["parts"], "users")
    return of_relation(adjacency, ByArrival([(users, loss) for loss, users in parts]))


@final
@register(_read_by_arrival, {"parts": LIST})
@dataclass(frozen=True, slots=True, init=False)
class ByArrival(Loss):
    """One run that costs early users more than late ones, such as a stream of prefix sums.

    ``parts`` are numbers of consecutive users, from the first user of the token on, with what each
    of them pays.  Which part a user is in follows from the arrival index, which is public and fixed
    when the user arrives; so replacing that user costs that part, whoever the others are.  All
    bounds of the whole are the largest over users.

    Raises:
        ValueError: no parts, or no users in one.  AdjacencyError: parts of different adjacencies,
        or add-remove, under which a removed user moves everybody behind to another part.
    """

    kind = "by-arrival"
    parts: tuple[tuple[int, Loss], ...]
    adjacency: Adjacency

    def __init__(self, parts: Iterable[tuple[int, Loss]]):
        listed = tuple((_whole(_MOST_STEPS, at_least=1, users=n), loss) for n, loss in parts)
        if not listed:
            raise ValueError("parts = []: needs at least one")
        relations = {loss.adjacency for _, loss in listed}
        if len(relations) > 1 or Adjacency.ADD_REMOVE in relations:
            names = " and ".join(sorted(a.value for a in relations))
            raise AdjacencyError(f"a profile for {names}: must be for replace-one or zero-out")
        object.__setattr__(self, "parts", listed)
        object.__setattr__(self, "adjacency", listed[0][1].adjacency)

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return [(loss, 1) for _, loss in self.parts]

    def renyi(self, order: float) -> float:
        return max(loss.renyi(order) for _, loss in self.parts)

    def zcdp(self) -> Fraction | None:
        return self._largest(lambda loss: loss.zcdp())

    def gaussian(self) -> Fraction | None:
        return self._largest(lambda loss: loss.gaussian())

    def pure(self) -> Fraction | None:
        return self._largest(lambda loss: loss.pure())

    def failure(self) -> Fraction:
        return max(loss.failure() for _, loss in self.parts)

    def unless_failed(self) -> Loss:
        return ByArrival([(n, loss.unless_failed()) for n, loss in self.parts])

    def over(self, users: range) -> list[tuple[range, Loss]]:
        pieces: list[tuple[range, Loss]] = []
        start = users.start
        for n, loss in self.parts:
            if start >= users.stop:
                break
            inner = range(start, min(start + n, users.stop))
            pieces += loss.over(inner)
            start = inner.stop
        if start < users.stop:
            raise ValueError(
                f"users = {users!r}: the profile is for {start - users.start} users only"
            )
        return pieces

    def _largest(self, value: Callable[[Loss], Fraction | None]) -> Fraction | None:
        values = [value(loss) for _, loss in self.parts]
        known = [number for number in values if number is not None]
        return max(known) if len(known) == len(values) else None

    def numbers(self) -> dict[str, Any]:
        return {"parts": [{"users": n, "loss": loss.to_dict()} for n, loss in self.parts]}
