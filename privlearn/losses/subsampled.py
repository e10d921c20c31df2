"""Poisson subsampling: each record takes part with a given probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, register
from privlearn.losses.gaussian import GaussianLoss
from privlearn.losses.numerics import ROUNDING, ULP, up, valid_number, valid_order
from privlearn.losses.output_laws import Array, Density, LawPair, normal
from privlearn.losses.steps import (
    Direction,
    PairStep,
    Points,
    integrated,
    normal_density,
    normal_reach,
    normal_tail,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, float_down, float_up

_LARGEST_ORDER = 4096
"""Above this order the subsampled Gaussian is priced by a simple bound (two Gaussians mixed)."""
_MOST_NODES = 5000
_DEPTH = 45.0  # Quadrature errors are held below a few e^−45 of the value


@dataclass(frozen=True, slots=True)
class SubsampledGaussianStep(PairStep):
    """Poisson subsampling at rate q, noise multiplier sigma, ADD_REMOVE adjacency."""

    q: float
    sigma: float
    both_ways = True

    def points(self, way: Direction, step: float, tail: float) -> Points:
        """r(z) = 1 + q(e^(z/sigma - 1/(2 sigma^2)) - 1), z standard normal without the record.

        remove: P has density phi*r, loss log r.  add: -z has density phi, loss -log r.
        """
        q, sigma = self.q, self.sigma
        half, reach = 1 / (2 * sigma * sigma), normal_reach(tail)
        width, out = min(1.0, sigma) / 16, normal_tail(reach)

        def log_ratio(z: Array) -> Array:
            y = z / sigma - half
            small = np.log1p(q * np.expm1(np.minimum(y, 30.0)))
            large = y + math.log(q) + np.log1p((1 - q) / q * np.exp(-np.maximum(y, 0.0)))
            return np.where(y < 30, small, large)

        def inverse(loss: Array) -> Array:
            inside = np.expm1(loss) / q
            return sigma * (np.log1p(inside[inside > -1]) + half)

        if way == "add":
            return integrated(
                lambda z: -log_ratio(-z),
                normal_density,
                (-reach, reach),
                step,
                outside=(out, out),
                width=width,
                inverse=lambda loss: -inverse(-loss),
                top=-math.log1p(-q) if q < 1 else math.inf,
            )
        end = reach + 1 / sigma
        above = (1 - q) * normal_tail(end) + q * out
        return integrated(
            log_ratio,
            lambda z: normal_density(z) * np.exp(log_ratio(z)),
            (-end, end),
            step,
            outside=(normal_tail(end), above),
            width=width,
            inverse=inverse,
        )

    def renyi(self, order: float) -> float:
        return sampled_renyi(order, self.sigma, self.q)

    def in_range(self) -> bool:
        return 1e-9 <= self.q <= 1 and 0.05 <= self.sigma <= 1e6


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class SubsampledGaussian(Loss):
    r"""A sum over a Poisson sample, plus Gaussian noise.

    Args:
        noise_multiplier: z, std over the largest ℓ2 norm of one record's summand.
        sampling_probability: q in (0, 1); each record is in the sample with this probability,
            independently.  The sum must not be divided by the size of the sample.
        adjacency: add-remove or zero-out; `PoissonSampled` prices it under replace-one.

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
    of the Gaussian *without* subsampling, whatever q is, and so is its price in ZCDP and
    GaussianDP.  Count it in Rényi orders.
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
                "a subsampled Gaussian is priced for add-remove or zero-out: state a "
                "PoissonSampled loss of a Gaussian one, whose adjacency may be replace-one"
            )
        multiplier = valid_number("noise_multiplier", noise_multiplier, "1e-3", "1e6")
        probability = exact("sampling_probability", sampling_probability)
        if not Fraction(1, 10**12) <= probability < 1:
            raise ValueError(
                f"sampling_probability = {sampling_probability!r}: must lie in [1e-12, 1); "
                "with probability 1 this is `GaussianLoss`"
            )
        self._set(
            noise_multiplier=multiplier, sampling_probability=probability, adjacency=adjacency
        )

    def renyi(self, order: float) -> float:
        alpha = valid_order(order)
        z = float_down(self.noise_multiplier)
        q = min(float_up(self.sampling_probability), math.nextafter(1, 0))
        return sampled_renyi(alpha, z, q)

    def noisier(self, factor: Fraction) -> SubsampledGaussian:
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def step(self) -> SubsampledGaussianStep:
        q = min(float_up(self.sampling_probability), 1.0)
        return SubsampledGaussianStep(q, float_down(self.noise_multiplier))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [_sampled_pair(float(self.noise_multiplier), float(self.sampling_probability))]


def sampled_gaussian_loss(
    noise_multiplier: Exact, sampling_probability: Exact, adjacency: Adjacency
) -> Loss:
    """The loss of a Gaussian on a Poisson sample: with probability 1 that of a plain Gaussian.

    Raises:
        ValueError: the multiplier is not in [1e-3, 1e6], or the probability not in [1e-12, 1].
        AdjacencyError: a sample under replace-one.
    """
    if exact("sampling_probability", sampling_probability) != 1:
        return SubsampledGaussian(noise_multiplier, sampling_probability, adjacency=adjacency)
    multiplier = valid_number("noise_multiplier", noise_multiplier, "1e-3", "1e6")
    return GaussianLoss(1 / multiplier**2, adjacency=adjacency)


@lru_cache(maxsize=4096)
def sampled_renyi(alpha: float, z: float, q: float) -> float:
    """D_α at noise multiplier z and sampling probability q <= 1; see `SubsampledGaussian`."""
    t = alpha - 1
    plain = up(alpha / (2 * z * z))
    if q >= 1:
        return plain
    if alpha > _LARGEST_ORDER:
        x = t * plain
        rest = math.exp(-x)
        mixed = math.log1p(q * math.expm1(x)) if x < 1 else x + math.log(q + (1 - q) * rest)
        return min(plain, up(mixed / t + ROUNDING * (1 + x) / t))
    below = math.floor(alpha)
    share = alpha - below
    moment = _integer_moment(below, z, q) * (1 - share)
    if share > 0:
        moment += _integer_moment(below + 1, z, q) * share
        moment = min(moment * (1 + 4 * ULP), _quadrature(alpha, z, q))
    if below == 1 and z > 0.05:
        variance = q * q * math.expm1(1 / (z * z))
        growth = alpha * t / 2 * (1 - q) ** (alpha - 2) * variance
        moment = min(moment, math.log1p(growth * (1 + 1e-13)))
    return min(up(moment / t), plain)


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
    terms += 8 * ULP * (1 + 2 * factorial[order] - weights + np.abs(excess) + growth)
    top = float(terms.max())
    log_excess = top + math.log(float(np.exp(terms - top).sum())) + 16 * ULP * (1 + abs(top))
    rounded = math.log1p(math.exp(log_excess)) if log_excess < 30 else log_excess + 1e-13
    return up(rounded)


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
    terms += 8 * ULP * size
    top = float(terms.max())
    log_sum = math.log(float(np.exp(terms - top).sum())) + math.log(step / math.sqrt(2 * math.pi))
    # 1e-14: the sum's rounding, the rule's error and the tails, each below 1e-15 of A
    return top + log_sum + 1e-14 + 4 * ULP * abs(top)


def _sampled_pair(z: float, q: float) -> LawPair:
    plain = normal(0.0, z)
    inside, outside = math.log(q), math.log1p(-q)
    constant = math.log(z) + math.log(2 * math.pi) / 2

    def mixed(points: Array) -> Array:
        x = points[:, 0]
        without, with_ = outside - (x / z) ** 2 / 2, inside - ((x - 1) / z) ** 2 / 2
        return np.asarray(np.logaddexp(without, with_) - constant)

    return Density(mixed, (1.0,), z), plain
