"""The least noise that keeps a promise, from (ε, δ) and counts, rounded up.

One number is looked for: a factor c by which all noise is multiplied.  `noisier` says what that
means for each kind of loss: standard deviations and scales are multiplied by c, worst cases are
divided by c, zCDP constants by c².  With the noise of unit size, such as ``GaussianLoss(1)`` or
``LaplaceLoss(1)``, the factor is the noise multiplier, or the scale, itself.

Answers lie on the grid of numbers with `DIGITS` significant decimals, so that equal questions get
equal answers however rough the search, and an answer is handed out only after the finished
composition was priced and found within the promise.  Prices fall as noise grows; the answer is the
smallest number of the grid that passes, so it is monotone as far as the pricing is: the exact
Gaussian curve always, Rényi bounds up to what the search for an order leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias, final

from privlearn.accountants.epsilon_delta import Order, RoundedNumber, evaluate
from privlearn.accountants.tight_composition import THOROUGH
from privlearn.errors import BudgetError
from privlearn.losses import Loss, compose
from privlearn.losses.budgets import ZCDP, ApproxDP, Budget, Currency
from privlearn.losses.conversion import gaussian_mu_squared
from privlearn.values.exact import Exact, exact, float_down
from privlearn.values.validate import count as valid_count

CountedLosses: TypeAlias = Sequence[tuple[Loss, int]]
LossFamily: TypeAlias = Callable[[Fraction], CountedLosses]
"""What is spent when all noise is multiplied by a factor; it costs less as the factor grows."""

DIGITS = 9
"""Significant decimals of a factor: at most a relative 1e-8 more noise than needed."""

_NEAR = 1e-6  # Of the promise that a refined answer leaves
_MOST_TRIES = 12

_SMALLEST, _LARGEST = Fraction(1, 10**40), Fraction(10**40)


@final
@dataclass(frozen=True, slots=True)
class Calibrated:
    """The least factor, what is then spent, and its price.

    ``answer`` is ε at the δ of an (ε, δ) promise; None for a currency.
    """

    factor: Fraction
    parts: tuple[tuple[Loss, int], ...]
    answer: RoundedNumber | None


def least_noise(
    parts: CountedLosses | LossFamily,
    promise: Budget,
    *,
    count: int = 1,
    order: Order = "any",
    thorough: bool = False,
) -> Calibrated:
    """The least factor on all noise of ``parts``, run ``count`` times, that keeps ``promise``.

    Args:
        parts: losses with counts, made noisier by `noisier`; or a function from the factor to them.
        promise: (ε, δ), or a currency that is to cover the sum.
        count: how often the whole list runs.
        order: whether it runs as listed.
        thorough: prices by tight composition as well, in seconds instead of milliseconds; within
            about a relative 1e-6 of the least factor (and the error bound) that this allows.

    Returns:
        The factor, rounded up, and what is then spent.

    Raises:
        BudgetError: no amount of noise keeps the promise, or none is needed.
        CurrencyError: a loss has no price in that currency.
        ValueError: no parts, count < 1.

    >>> from privlearn.losses import LaplaceLoss
    >>> float(least_noise([(LaplaceLoss(1), 1)], ApproxDP(1, "1e-6"), count=100).factor) < 50
    True
    """
    runs = valid_count(count=count)
    price = _Price(parts if callable(parts) else _made_noisier(parts), promise, runs, order)
    start = price.closed_form()
    factor = _ceil(start if start is not None else price.root())
    step = _unit(factor, DIGITS)
    while not price.kept(factor):
        factor, step = _ceil(factor + step), 2 * step
    while price.kept(smaller := factor - _unit(factor, DIGITS)):
        factor = smaller
    spent, answer = price.parts(factor), None
    if isinstance(promise, ApproxDP):
        if thorough and start is None:
            factor = _refined(_Price(price.family, promise, runs, order, THOROUGH), factor)
            spent = price.parts(factor)
        effort = THOROUGH if thorough else 0
        answer = evaluate(spent, order=order, effort=effort).epsilon(float_down(promise.delta))
    return Calibrated(factor, tuple(spent), answer)


def _refined(price: _Price, factor: Fraction) -> Fraction:
    """A smaller factor that a better price still finds within the promise, by secants."""
    best, left, at_left = factor, math.log(factor), price(factor)
    if at_left is None or at_left > 0:
        return factor
    right = left + at_left
    for _ in range(_MOST_TRIES):
        tried = _ceil(Fraction(math.exp(right)))
        at_right = price(tried)
        if tried >= best or at_right is None:
            break
        if at_right <= 0:
            best = tried
            if at_right > -_NEAR:
                break
        slope = min((at_right - at_left) / (right - left), -0.1)
        left, at_left, right = right, at_right, right - (at_right + _NEAR / 2) / slope
    return best


def least_noise_by_shares(
    parts: CountedLosses,
    shares: Sequence[Exact],
    promise: ApproxDP,
    *,
    order: Order = "any",
    thorough: bool = False,
) -> list[Calibrated]:
    """The least noise with which each part has a given share of the whole zCDP constant.

    With all parts Gaussian these are shares of the mass μ².  Part i, all its runs together, costs
    at most share_i·ρ, and ρ is the largest for which the promise is kept.

    Args:
        parts: losses with counts; each is made noisier or less noisy by its own factor.
        shares: positive; counted relative to their sum.
        promise: ε and δ of the whole.
        order, thorough: as for `least_noise`.

    Returns:
        One answer for each part; ``answer`` is that of the whole.

    Raises:
        CurrencyError: a loss has no zCDP constant.
        BudgetError: no noise keeps the promise.
        ValueError: a share is not > 0, or there are not as many as parts.

    >>> from privlearn.losses import GaussianLoss, LaplaceLoss
    >>> mixed = least_noise_by_shares([(GaussianLoss(1), 10), (LaplaceLoss(1), 5)], [3, 1],
    ...                               ApproxDP(1, "1e-6"))
    >>> [len(part.parts) for part in mixed]
    [1, 1]
    """
    weights = [exact("shares", share) for share in shares]
    if len(weights) != len(parts) or not weights or min(weights) <= 0:
        raise ValueError(f"shares = {list(shares)!r}: needs one number > 0 for each part")
    total = sum(weights)

    def factors(inverse_rho: Fraction) -> list[Calibrated]:
        return [
            least_noise([part], ZCDP(weight / total / inverse_rho))
            for part, weight in zip(parts, weights, strict=True)
        ]

    whole = least_noise(
        lambda inverse: [part for one in factors(inverse) for part in one.parts],
        promise,
        order=order,
        thorough=thorough,
    )
    return [replace(one, answer=whole.answer) for one in factors(whole.factor)]


def noisier(loss: Loss, factor: Exact) -> Loss:
    """The same mechanism with its noise multiplied by ``factor``, in exact arithmetic.

    Objective perturbation keeps its ridge.  A black box is given a smaller promise: ε is divided
    by the factor (δ stays), ρ by its square.  Failures stay as likely as they are.

    Raises:
        BudgetError: the loss has no noise to speak of (a Rényi curve, a kind of a third party).
        ValueError: factor <= 0, or the numbers leave the range of the loss.
    """
    c = exact("factor", factor)
    if c <= 0:
        raise ValueError(f"factor = {factor!r}: must be > 0")
    return loss.noisier(c)


def _made_noisier(parts: CountedLosses) -> LossFamily:
    listed = tuple(parts)
    return lambda factor: [(noisier(loss, factor), count) for loss, count in listed]


class _Price:
    """log(price / promise) as a function of the factor: the promise is kept at 0 and below."""

    def __init__(
        self, family: LossFamily, promise: Budget, runs: int, order: Order, effort: float = 0
    ) -> None:
        if not isinstance(promise, ApproxDP | Currency):
            raise TypeError(f"promise = {promise!r}: must be a budget such as ApproxDP(1, '1e-6')")
        if any(amount == 0 for amount in promise.amounts):
            raise BudgetError(f"promise = {promise}: must be above zero")
        self.family, self._promise, self._runs = family, promise, runs
        self._order, self._effort = order, effort
        self._seen: dict[Fraction, float | None] = {}

    def parts(self, factor: Fraction) -> CountedLosses:
        return [(loss, count * self._runs) for loss, count in self.family(factor)]

    def __call__(self, factor: Fraction) -> float | None:
        """The price; None where the numbers leave the range of a loss or of the pricing."""
        if factor not in self._seen:
            try:
                self._seen[factor] = self._priced(self.parts(factor))
            except BudgetError:
                raise
            except (ValueError, OverflowError):
                self._seen[factor] = None
        return self._seen[factor]

    def _priced(self, parts: CountedLosses) -> float:
        promise = self._promise
        if isinstance(promise, Currency):
            price = promise.price(compose(parts))
            ratio = max(p / b for p, b in zip(price.amounts, promise.amounts, strict=True))
            log_ratio, kept = _log(ratio), promise.covers(price)
        else:
            epsilon, delta = (float_down(amount) for amount in promise.amounts)
            value = evaluate(parts, order=self._order, effort=self._effort).epsilon(delta).value
            log_ratio, kept = math.log(max(value, 1e-300) / epsilon), value <= epsilon
        return min(log_ratio, 0.0) if kept else min(max(log_ratio, 1e-300), 700.0)

    def kept(self, factor: Fraction) -> bool:
        """Whether the promise is kept; no where nothing is known."""
        price = self(factor)
        return price is not None and price <= 0

    def closed_form(self) -> Fraction | None:
        """The answer up to rounding, where all mass is Gaussian."""
        promise = self._promise
        if not isinstance(promise, ApproxDP) or self(Fraction(1)) is None:
            return None
        mass = compose(self.parts(Fraction(1))).gaussian()
        if mass is None or compose(self.parts(Fraction(2))).gaussian() != mass / 4:
            return None
        epsilon, delta = (float_down(amount) for amount in promise.amounts)
        return Fraction(math.sqrt(mass / Fraction(gaussian_mu_squared(epsilon, delta))))

    def root(self) -> Fraction:
        """The factor at which the promise comes to be kept, to about 1e-10."""
        from scipy.optimize import toms748

        low, high = self._bracket()
        while self(low) is None:  # too little noise to have a price
            middle = _ceil(Fraction(math.sqrt(low * high)))
            if not low < middle < high:
                return high
            low, high = (low, middle) if self.kept(middle) else (middle, high)
        left, right = math.log(low), math.log(high)

        def excess(log_factor: float) -> float:
            if log_factor in (left, right):
                return self(low if log_factor == left else high) or 0.0
            return self(Fraction(math.exp(log_factor))) or 0.0

        return Fraction(math.exp(toms748(excess, left, right, xtol=1e-10, rtol=1e-14)))

    def _bracket(self) -> tuple[Fraction, Fraction]:
        low = high = self._valid()
        step = Fraction(4)
        if self.kept(high):
            while self.kept(low := high / step):
                if low < _SMALLEST:
                    raise BudgetError(f"{self._promise} is kept with no noise at all")
                high, step = low, step**2
            return low, high
        while not self.kept(high := low * step):
            if self(high) is None:  # more noise than the loss takes
                step = _ceil(Fraction(math.sqrt(step)))
                if step <= Fraction("1.000001"):
                    raise self._impossible()
            elif high > _LARGEST:
                raise self._impossible()
            else:
                low, step = high, min(step**2, Fraction(2**32))
        return low, high

    def _valid(self) -> Fraction:
        for k in range(67):
            for factor in (Fraction(4) ** k, Fraction(4) ** -k):
                if self(factor) is not None:
                    return factor
        raise self._impossible()

    def _impossible(self) -> BudgetError:
        return BudgetError(
            f"no noise within the range of these losses keeps {self._promise} (failures are not "
            "made rarer by noise; objective perturbation may need a larger ridge as well)"
        )


def _log(ratio: Fraction) -> float:
    return math.log(ratio.numerator) - math.log(ratio.denominator) if ratio > 0 else -700.0


def _unit(value: Fraction, digits: int) -> Fraction:
    """The distance of neighbours on the grid just below ``value``."""
    exponent = len(str(value.numerator)) - len(str(value.denominator))
    unit = Fraction(10) ** (exponent - digits)
    while value > unit * 10**digits:
        unit *= 10
    while value <= unit * 10 ** (digits - 1):
        unit /= 10
    return unit


def _ceil(value: Fraction, digits: int = DIGITS) -> Fraction:
    unit = _unit(value, digits)
    return -(-value // unit) * unit
