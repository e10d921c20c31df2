"""The least noise that a budget allows on numbers into which one user's contribution enters."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from privlearn.errors import CurrencyError
from privlearn.losses import gaussian_std
from privlearn.losses.budgets import ZCDP, Currency, PureDP, check_currency
from privlearn.noise import AdditiveNoise, GaussianNoise, GeneralizedGaussianNoise, LaplaceNoise
from privlearn.rows.domains import Ball, Domain, Norm, exponent_of
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up
from privlearn.values.validate import count, positive

Family = Literal["gaussian", "laplace", "generalized-gaussian"]
"""Of additive noise, as ledgers name it."""


def least_noise(
    domain: Domain[Any],
    budget: Currency,
    family: Family = "gaussian",
    *,
    exponent: float | None = None,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> AdditiveNoise:
    """The least noise of a family at which one vector may be released.

    Args:
        domain: what one user can contribute.
        budget: for the release: PureDP for Laplace noise, ZCDP for generalized Gaussian noise
            (and any that a Gaussian has a price in, where p = 2 is given or chosen), any that a
            Gaussian has a price in for Gaussian noise.
        family: of the noise.
        exponent: p, of generalized Gaussian noise; default the one with the least computed error
            among 2, that is the Gaussian with ℓ2 sensitivity, and, for a ball of ℓq with q > 2,
            `whole_exponent`.
        adjacency: the neighbour relation of the price.

    Raises:
        CurrencyError: the noise has no price in this currency.
        ValueError: a budget of zero, an unknown family, or an exponent for noise that has none.
    """
    if not isinstance(adjacency, Adjacency):
        raise TypeError(f"adjacency = {adjacency!r}: must be an Adjacency")
    if family not in get_args(Family):
        raise ValueError(f"noise = {family!r}: must be one of {', '.join(get_args(Family))}")
    if family == "generalized-gaussian":
        return generalized_gaussian_noise(domain, budget, exponent, adjacency)
    if exponent is not None:
        raise ValueError(f"exponent = {exponent!r}: only generalized Gaussian noise has one")
    if family == "laplace":
        return laplace_noise(domain, budget, adjacency)
    if isinstance(budget, PureDP):
        raise CurrencyError(
            f"budget = {budget!r}: Gaussian noise has no finite price in it; use noise='laplace', "
            "or a budget of ZCDP, GaussianDP or Renyi"
        )
    return gaussian_noise(domain, budget, adjacency)


def gaussian_noise(
    domain: Domain[Any], budget: Currency, adjacency: Adjacency, *, gain: float = 1.0
) -> GaussianNoise:
    """The least Gaussian noise, where contributions enter with ℓ2 operator norm ``gain``.

    Raises:
        CurrencyError: no Gaussian fits this currency.
        ValueError: a budget of zero.
    """
    check_currency(budget)
    # rounded up, so that a verifier who multiplies exactly finds no larger loss
    reach = float_up(Fraction(domain.sensitivity(adjacency, "l2")) * Fraction(gain))
    return GaussianNoise(gaussian_std(reach, budget.gaussian_mass()))


def laplace_noise(domain: Domain[Any], budget: Currency, adjacency: Adjacency) -> LaplaceNoise:
    """The least Laplace noise at a pure ε.

    Raises:
        CurrencyError: another currency than PureDP.
        ValueError: a budget of zero.
    """
    if not isinstance(budget, PureDP):
        raise CurrencyError(f"budget = {budget}: Laplace noise is fitted to PureDP")
    cost, reach = budget.epsilon, domain.sensitivity(adjacency, "l1")
    scale = positive(scale=reach / positive(epsilon=float(cost)))
    while Fraction(reach) / Fraction(scale) > cost:
        scale = float(np.nextafter(scale, np.inf))
    made = LaplaceNoise(scale)
    # prices are rounded up to 12 digits
    fits = budget.covers(budget.price(made.loss(reach, adjacency)))
    return made if fits else LaplaceNoise(scale * (1 + 2e-11))


def generalized_gaussian_noise(
    domain: Domain[Any], budget: Currency, exponent: float | None, adjacency: Adjacency
) -> GeneralizedGaussianNoise:
    """The least generalized Gaussian noise; see `least_noise`."""
    check_currency(budget)
    if exponent is not None:
        return _in_exponent(domain, budget, float(exponent), adjacency)
    tried = {2.0}
    if isinstance(budget, ZCDP) and isinstance(domain, Ball):
        q = exponent_of(domain.norm)
        tried |= {whole_exponent(q, domain.size)} if q > 2 else set()
    made = [_in_exponent(domain, budget, p, adjacency) for p in sorted(tried)]
    return min(made, key=lambda noise: noise.coordinate_std(domain.size))


def _in_exponent(
    domain: Domain[Any], budget: Currency, p: float, adjacency: Adjacency
) -> GeneralizedGaussianNoise:
    if p != 2 and not isinstance(budget, ZCDP):
        raise CurrencyError(
            f"generalized Gaussian noise has a zCDP constant and no more: it has no price in "
            f"{type(budget).__name__}"
        )
    mass = budget.gaussian_mass()
    if mass <= 0:
        raise ValueError(f"{budget}: noise needs a budget > 0")
    norm: Norm = "l2" if p == 2 else p
    reach = domain.sensitivity(adjacency, norm)

    def fits(std: float) -> bool:
        loss = GeneralizedGaussianNoise(std, p).loss(reach, adjacency)
        return budget.covers(budget.price(loss))

    return GeneralizedGaussianNoise(
        first_that_fits(reach * math.sqrt(Fraction(p - 1) / mass), fits), p
    )


def first_that_fits(std: float, fits: Callable[[float], bool]) -> float:
    """``std``, or a few units in its last place more, because prices are rounded up."""
    step = math.ulp(std)
    while not fits(std):
        std, step = std + step, 2 * step
    return std


def least_that_fits(low: float, high: float, fits: Callable[[float], bool], width: float) -> float:
    """The least number that fits, or at most ``width`` more; whatever is above it fits, too.

    It is looked for from ``low`` on, and as far above ``high`` as it takes.
    """
    step = high - low
    while not fits(high):
        low, high = high, high + step
    while high - low > width:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def check_noise(noise: AdditiveNoise) -> None:
    """Refuses what is not added to numbers: choices and caps are priced in another way.

    Raises:
        TypeError: a number, or noise of another kind.
    """
    if not callable(getattr(noise, "reach", None)):
        raise TypeError(
            f"noise = {noise!r}: must be noise that is added to numbers, such as GaussianNoise(1.0)"
        )


def family_of(noise: AdditiveNoise) -> str:
    """Its name in ledgers."""
    return str(noise.to_dict().get("family", "noisy"))


def regular_exponent(q: float, dim: int) -> float:
    """The p in [2, q] with the least κ = (p−1)·dim^{2/p − 2/q}, in closed form.

    With L = log dim, the derivative of log κ in p is 1/(p−1) − 2L/p², of the sign of
    p² − 2Lp + 2L.  For L <= 2 that is nowhere negative: p = 2.  For L > 2 it is negative between
    its roots L ± √(L² − 2L); at p = 2 it is 4 − 2L < 0, so 2 lies between them: κ falls up to the
    larger root and grows from there on.

    Args:
        q: exponent >= 2 of the norm in which sensitivity counts; inf is allowed.
        dim: d >= 1.

    Raises:
        ValueError: q < 2.
    """
    if not q >= 2:
        raise ValueError(f"q = {q!r}: must be >= 2; below, noise in ℓ2 is right (‖x‖₂ <= ‖x‖_q)")
    log = math.log(count(dim=dim))
    return 2.0 if log <= 2 else min(float(q), log + math.sqrt(log * (log - 2)))


def whole_exponent(q: float, dim: int) -> float:
    """The integer p in [2, q] with the least κ; noise of an integer p takes the least time.

    `regular_exponent` itself if that is more than a fiftieth better, as it can be where q is no
    integer, or if none up to 1000 is as good.
    """
    best = regular_exponent(q, dim)
    near = {math.floor(best), min(math.ceil(best), math.floor(min(q, 1000.0)))}
    whole = float(min(near, key=lambda p: regularity(q, dim, p)))
    return whole if regularity(q, dim, whole) <= 1.02 * regularity(q, dim, best) else best


def regularity(q: float, dim: int, exponent: float | None = None) -> float:
    """κ = (p−1)·dim^{2/p − 2/q}: ℓq is κ-regular by way of ℓp (``docs/errata``).

    Args:
        q: exponent >= 2; inf is allowed.
        dim: d >= 1.
        exponent: p in [2, q]; default the one with the least κ.

    Raises:
        ValueError: an exponent is out of range.
    """
    p = regular_exponent(q, dim) if exponent is None else float(exponent)
    if not 2 <= p <= q:
        raise ValueError(f"exponent = {exponent!r}: must lie in [2, {q!r}]")
    return float((p - 1) * count(dim=dim) ** (2 / p - 2 / q))
