"""The pair of laws that each kind of loss is about: the mechanism at its worst, itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, product

import numpy as np

from privlearn.checking.exact.distributions import (
    Density,
    Discrete,
    Distribution,
    DistributionPair,
    Product,
    laplace,
    normal,
    renyi,
)
from privlearn.domains import Array
from privlearn.errors import CheckError
from privlearn.losses import (
    ApproxLoss,
    BoundedRange,
    ByArrival,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    GeneralizedGaussian,
    Laplace,
    Loss,
    PureEpsilon,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
)

_MOST_SYMBOLS = 10**6
_MOST_PAIRS = 256


def distribution_pairs(loss: Loss, orders: Sequence[float]) -> list[DistributionPair]:
    """Laws of the output under the worst neighbours of a loss that is about known laws.

    Args:
        loss: any kind but black boxes without a worst law and minimisers.
        orders: at which the worst member of a family is looked for.

    Raises:
        CheckError: the loss names no law (a list of Rényi bounds), or the law depends on data.
    """
    pairs = _pairs(loss, orders)
    if pairs is None:
        raise CheckError(
            f"a {loss.kind} loss does not say which laws it is about: give the mechanism instead"
        )
    return [DistributionPair(p, q, loss.kind) for p, q in pairs]


def _pairs(loss: Loss, orders: Sequence[float]) -> list[tuple[Distribution, Distribution]] | None:
    match loss:
        case Gaussian():
            return [_shifted(math.sqrt(loss.mu_squared))]
        case ZCDPLoss():
            return [_shifted(math.sqrt(2 * loss.rho))]
        case GeneralizedGaussian():  # on the line, where the norm is the Euclidean one
            return [_shifted(float(loss.sensitivity / loss.std))]
        case Laplace():
            return [(laplace(float(loss.epsilon), 1.0), laplace(0.0, 1.0))]
        case PureEpsilon():
            return [_response(float(loss.epsilon), 2)]
        case RandomizedResponse():
            return [_response(float(loss.epsilon), loss.categories)]
        case ApproxLoss():
            return [_revealing(float(loss.epsilon), float(loss.delta))]
        case DiscreteLaplace():
            return [_geometric(float(loss.epsilon), loss.sensitivity)]
        case DiscreteGaussian():
            return [_discrete_gaussian(loss.sensitivity, float(loss.std))]
        case SubsampledGaussian():
            return [_subsampled(float(loss.noise_multiplier), float(loss.sampling_probability))]
        case BoundedRange():
            return [_worst_range(float(loss.epsilon), order) for order in orders]
        case ByArrival():
            result = [_pairs(part, orders) for _, part in loss.parts]
            return None if None in result else [pair for part in result for pair in part or ()]
        case Composed():
            return _composed(loss, orders)
    return None


def _composed(
    loss: Composed, orders: Sequence[float]
) -> list[tuple[Distribution, Distribution]] | None:
    parts = [_pairs(part, orders) for part, _ in loss.parts]
    counts = [n for _, n in loss.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return [
        (
            Product(tuple((p, n) for (p, _), n in zip(chosen, counts, strict=True))),
            Product(tuple((q, n) for (_, q), n in zip(chosen, counts, strict=True))),
        )
        for chosen in islice(product(*known), _MOST_PAIRS)
    ]


def _shifted(mu: float) -> tuple[Distribution, Distribution]:
    return normal(mu, 1.0), normal(0.0, 1.0)


def _response(epsilon: float, categories: int) -> tuple[Discrete, Discrete]:
    """Reports of the first and of the second category; all others count as one symbol."""
    z = math.log(math.exp(epsilon) + categories - 1)
    rest = math.log(categories - 2) - z if categories > 2 else -math.inf
    return (
        Discrete(np.array([epsilon - z, -z, rest])[: 3 if categories > 2 else 2]),
        Discrete(np.array([-z, epsilon - z, rest])[: 3 if categories > 2 else 2]),
    )


def _revealing(epsilon: float, delta: float) -> tuple[Distribution, Distribution]:
    p, q = _response(epsilon, 2)
    known, rest = math.log(delta), math.log1p(-delta)
    return (
        Discrete(np.r_[p.log_mass + rest, known, -np.inf]),
        Discrete(np.r_[q.log_mass + rest, -np.inf, known]),
    )


def _geometric(epsilon: float, sensitivity: int) -> tuple[Distribution, Distribution]:
    """P(x) ∝ e^{−a|x|} at 0 and Δ; all x <= 0 have one ratio and count as one symbol, as x >= Δ."""
    if sensitivity > _MOST_SYMBOLS:
        raise CheckError(f"sensitivity = {sensitivity}: at most {_MOST_SYMBOLS} symbols")
    a = epsilon / sensitivity
    inside = np.arange(1, sensitivity, dtype=float)
    log_unit = math.log(math.tanh(a / 2))  # of (1 − e^{−a})/(1 + e^{−a})
    tail = log_unit - math.log(-math.expm1(-a))
    near = np.r_[tail, log_unit - a * inside, tail - epsilon]
    return Discrete(near), Discrete(near[::-1].copy())


def _discrete_gaussian(sensitivity: Fraction, std: float) -> tuple[Distribution, Distribution]:
    """Shifts by whole steps whose squares add up to at most Δ²: all of it where that is whole."""
    left = math.floor(sensitivity**2 + Fraction(1, 10**9))
    shifts: list[int] = []
    while left and len(shifts) < 4:
        shifts.append(math.isqrt(left))
        left -= shifts[-1] ** 2
    pairs = [_shifted_grid(shift, std) for shift in shifts]
    return Product(tuple((p, 1) for p, _ in pairs)), Product(tuple((q, 1) for _, q in pairs))


def _shifted_grid(shift: int, std: float) -> tuple[Distribution, Distribution]:
    reach = math.ceil(40 * std) + 130 * shift
    if 2 * reach > _MOST_SYMBOLS:
        raise CheckError(f"std = {std:g}: at most {_MOST_SYMBOLS} steps of the grid")
    x = np.arange(-reach, reach + shift + 1, dtype=float)
    total = math.log(math.fsum(np.exp(-(x**2) / (2 * std * std))))
    first, second = ((-((x - s) ** 2) / (2 * std * std) - total) for s in (shift, 0))
    return Discrete(first), Discrete(second)


def _subsampled(z: float, q: float) -> tuple[Distribution, Distribution]:
    plain = normal(0.0, z)
    inside, outside = math.log(q), math.log1p(-q)
    constant = math.log(z) + math.log(2 * math.pi) / 2

    def mixed(points: Array) -> Array:
        x = points[:, 0]
        without, with_ = outside - (x / z) ** 2 / 2, inside - ((x - 1) / z) ** 2 / 2
        return np.asarray(np.logaddexp(without, with_) - constant)

    return Density(mixed, (1.0,), z), plain


def _worst_range(epsilon: float, order: float) -> tuple[Distribution, Distribution]:
    """The two-point law on {t, t − ε} with the largest divergence of this order."""
    from scipy.optimize import minimize_scalar

    result = minimize_scalar(
        lambda t: -renyi(*_two_points(epsilon, t), order).value,
        bounds=(1e-9 * epsilon, epsilon * (1 - 1e-9)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return _two_points(epsilon, float(result.x))


def _two_points(epsilon: float, t: float) -> tuple[Discrete, Discrete]:
    """Privacy losses t and t − ε; under Q their exponentials have mean 1."""
    # Q(t) = (1 − e^{t−ε})/(e^t − e^{t−ε}), Q(t−ε) = 1 − Q(t)
    high = math.log(-math.expm1(t - epsilon)) - t - math.log(-math.expm1(-epsilon))
    low = math.log(math.expm1(t)) - t - math.log(-math.expm1(-epsilon))
    q = np.array([high, low])
    return Discrete(q + np.array([t, t - epsilon])), Discrete(q)
