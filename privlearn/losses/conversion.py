"""From a composed guarantee to (epsilon, delta), and back: numbers in, numbers out.

Three guarantees are converted: a Gaussian mass mu^2 (exact), a zCDP constant rho and a Renyi curve
(both by Canonne, Kamath & Steinke 2020, Proposition 12, at the best real order).  Epsilons and
divergences are in nats.

Rounding.  Searches run on floats or at low precision and need only be good; every number handed
out is then evaluated once more in decimal arithmetic, whose operations, ``sqrt``, ``exp`` and
``ln`` are correctly rounded, with its error bound added.  Nothing rests on the accuracy of the C
library.  An upper bound is a `Bounded`; the answers of `gaussian_mu_squared` and `zcdp_rho`, which
somebody spends, are rounded down.  Arguments are taken as the exact values of the floats given:
round a mass or a rho up before the call, an epsilon or a delta down.

Symbols: x = epsilon/mu - mu/2 and y = x + mu; phi is the standard normal density, Q its upper
tail, M = Q/phi the Mills ratio; t = order - 1 > 0; L = log(1/delta).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from decimal import (
    ROUND_CEILING,
    Context,
    Decimal,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    getcontext,
    localcontext,
)
from typing import NamedTuple

from privlearn.values.validate import finite, probability

_ROOT_TWO_PI = Decimal(
    "2.5066282746310005024157652848110452530069867406099383166299235763422936546078419749465958"
    "38378057266116009972665203879644866"
)
_LARGEST_MASS = 1e15
_SMALLEST_MASS = 1e-40
_TINY = math.ulp(0.0)
_CEILING = Context(prec=60, rounding=ROUND_CEILING)
_FULL = 34  # Digits for results: what a float holds, and what the differences below can cancel
_ROUGH = 22  # Digits for searches
_SAFE = 1 - 2.0**-49
"""Shrinks an inverted parameter by more than the rounding of the forward conversion."""


class Bounded(NamedTuple):
    """A rounded-up number: the exact one lies in [value - error_bound, value]."""

    value: float
    error_bound: float


class RoundedNumber(NamedTuple):
    """A rounded-up number, and the method that gave it."""

    value: float
    error_bound: float
    method: str


def gaussian_delta(mu_squared: float, epsilon: float) -> Bounded:
    """The smallest delta for which mu-GDP is (epsilon, delta)-DP.

    Source: Balle & Wang 2018, Theorem 8; Dong, Roth & Su 2022, Corollary 2.13, give
    delta = Q(x) - e^epsilon Q(y).  Because phi(x) = e^epsilon phi(y), this is
    phi(x)(M(x) - M(y)), which cancels only as mu -> 0, where the working precision grows.

    Args:
        mu_squared: the Gaussian mass (sensitivity/std)^2, in [0, 1e15].
        epsilon: nats, >= 0.

    Returns:
        An upper bound within a few ulps for mu_squared >= 1e-40 (smaller masses count as 1e-40).

    Raises:
        ValueError: an argument is not finite or out of range.

    >>> round(gaussian_delta(2.5, 8.3062).value * 1e6, 3)
    1.0
    """
    mass, level = _mass(mu_squared), _non_negative(epsilon=epsilon)
    if mass == 0:
        return Bounded(0.0, 0.0)
    rounded = max(mass, _SMALLEST_MASS)
    mu = math.sqrt(rounded)
    if level / mu - mu / 2 > 60:  # delta <= Q(x) <= e^(-x^2/2) is far below the smallest float
        return Bounded(_TINY, _TINY)
    with _precision(mu, _FULL):
        point = _gaussian(Decimal(rounded).sqrt(), Decimal(level))
        low = point.delta - point.error if rounded == mass else Decimal(0)
        return _bounded(low, min(point.delta + point.error, Decimal(1)))


def gaussian_epsilon(mu_squared: float, delta: float) -> Bounded:
    """The smallest epsilon >= 0 for which mu-GDP is (epsilon, delta)-DP.

    The root of delta(epsilon) = delta, with delta(.) as in `gaussian_delta`.  -delta' =
    phi(x) M(y) = e^epsilon Q(y) is log-concave in epsilon, hence so is its tail integral
    delta(.): Newton's iteration on log delta(.), started above the root, stays above it.  The
    last iterate is checked.  As an expectation of max(0, 1 - e^epsilon .) delta(.) is convex in
    e^epsilon, so with g = (delta - delta(epsilon)) / -delta'(epsilon), e^root is at least
    (1 - g) e^epsilon; the error bound is g/(1 - g) >= -log(1 - g).

    Args:
        mu_squared: the Gaussian mass (sensitivity/std)^2, in [0, 1e15].
        delta: in (0, 1).

    Returns:
        An upper bound within a few ulps (masses below 1e-40 count as 1e-40).

    Raises:
        ValueError: an argument is not finite or out of range.

    >>> round(gaussian_epsilon(1000 / 20**2, 1e-6).value, 4)
    8.3062
    """
    mass, target = _mass(mu_squared), Decimal(probability(delta=delta))
    if mass == 0:
        return Bounded(0.0, 0.0)
    rounded = max(mass, _SMALLEST_MASS)
    mu = math.sqrt(rounded)
    # delta(epsilon) <= Q(x) <= e^(-x^2/2)/2 = delta/2 here
    epsilon = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    with _precision(mu, _ROUGH):
        log_target, std = target.ln(), Decimal(rounded).sqrt()
        for _ in range(100):
            point = _gaussian(std, Decimal(epsilon))
            step = float((log_target - point.delta.ln()) * point.delta / point.slope)
            epsilon = max(epsilon - step, 0.0)
            if step <= 1e-8 * epsilon or epsilon == 0:
                break
    with _precision(mu, _FULL):
        std = Decimal(rounded).sqrt()
        point = _gaussian(std, Decimal(epsilon))
        shift = (point.delta / target).ln() * point.delta / point.slope
        epsilon, nudge = max(_up(Decimal(epsilon) + shift), 0.0), 0.0
        while True:
            point = _gaussian(std, Decimal(epsilon))
            if point.delta + point.error <= target:
                break
            nudge = max(2 * nudge, math.ulp(epsilon), 1e-20 * mu)
            epsilon += nudge
        gap = (target - point.delta + point.error) / (point.slope - point.error)
        low = Decimal(epsilon) - gap / (1 - gap) if rounded == mass and gap < 1 else Decimal(0)
        return _bounded(max(low, Decimal(0)), Decimal(epsilon))


def gaussian_mu_squared(epsilon: float, delta: float) -> float:
    """The largest Gaussian mass mu^2 that is (epsilon, delta)-DP, rounded down.

    The root of delta(mu) = delta, with delta(.) as in `gaussian_delta`.  d delta/d log(mu) =
    mu phi(x), and log(mu) - x^2/2 = log(mu) - (epsilon^2/mu^2 - epsilon + mu^2/4)/2 is concave in
    log(mu); hence log delta is concave in log(mu), and Newton's iteration in log(mu), started
    below the root, stays below it.  The answer is checked.

    Args:
        epsilon: nats, >= 0.
        delta: in (0, 1).

    Returns:
        mu^2 within a relative 1e-14 of the largest, with gaussian_epsilon(mu^2, delta) <= epsilon.

    Raises:
        ValueError: an argument is not finite or out of range, or the mass is not in [1e-40, 1e12].

    >>> round(math.sqrt(1000 / gaussian_mu_squared(1.0, 1e-6)), 4)
    133.5961
    """
    level, target = _non_negative(epsilon=epsilon), probability(delta=delta)
    start = _small_mu(level, target)
    if not _SMALLEST_MASS < start * start < _LARGEST_MASS / 1e3:
        raise ValueError(
            f"epsilon = {epsilon!r}, delta = {delta!r}: the mass must lie in [1e-40, 1e12]"
        )
    return _largest_mu(level, target, start, squared=True)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu of a Gaussian that is (epsilon, delta)-DP, rounded down.

    The root of `gaussian_mu_squared`, also where mu^2 is smaller than any float.

    Args:
        epsilon: nats, in (0, 1e9].
        delta: in [1e-200, 0.999].

    Returns:
        mu within a relative 1e-14 of the largest.

    Raises:
        ValueError: an argument is out of range.

    >>> round(gaussian_mu(1.0, 1e-6), 4)
    0.2367
    """
    if not 1e-200 <= delta <= 0.999:
        raise ValueError(
            f"delta = {delta!r}: Gaussian noise needs a delta in (0, 1), here in [1e-200, 0.999]"
        )
    if not 0 < epsilon <= 1e9:
        raise ValueError(f"epsilon = {epsilon!r}: must lie in (0, 1e9]")
    return _largest_mu(epsilon, delta, _small_mu(epsilon, delta), squared=False)


def _small_mu(epsilon: float, delta: float) -> float:
    """A mu below the largest one: delta(mu) <= e^(-x^2/2)/2 with x >= depth, or mu/sqrt(2 pi)."""
    depth = math.sqrt(-2 * math.log(delta))
    return max(2 * epsilon / (depth + math.sqrt(depth**2 + 2 * epsilon)), 2.5 * delta)


def _largest_mu(epsilon: float, delta: float, mu: float, *, squared: bool) -> float:
    """The largest mu, or mu^2, as a float, searched from a ``mu`` below it."""
    level, target = Decimal(epsilon), Decimal(delta)
    with _precision(mu, _ROUGH):
        log_target = target.ln()
        for _ in range(100):
            point = _gaussian(Decimal(mu), level)
            log_slope = Decimal(mu) * point.density / point.delta
            step = float((log_target - point.delta.ln()) / log_slope)
            mu *= math.exp(step)
            if step <= 1e-8:
                break
    with _precision(mu, _FULL):
        root = Decimal(mu)
        point = _gaussian(root, level)
        root += (target / point.delta).ln() * point.delta / point.density
        found = float(root * root if squared else root)
        while True:
            found *= _SAFE
            point = _gaussian(Decimal(found).sqrt() if squared else Decimal(found), level)
            if point.delta + point.error <= target:
                return found


def renyi_epsilon(
    curve: Callable[[float], float],
    delta: float,
    *,
    orders: Sequence[float] | None = None,
    largest_order: float = math.inf,
) -> Bounded:
    """An epsilon >= 0 for which a mechanism of a given Renyi curve is (epsilon, delta)-DP.

    Source: Canonne, Kamath & Steinke 2020, Proposition 12: each order alpha > 1 gives
    epsilon = R(alpha) + log(t/alpha) + (L - log alpha)/t.  With K = t R(alpha) this is
    (K + L + t log t - alpha log alpha)/t, a convex function over t if K is convex, as it is for
    every exact curve; so it is quasi-convex, and the search has one valley to find.  Minima of
    several bounds can have more: the three best ones of a grid of ratio 4 are refined.

    Args:
        curve: order -> an upper bound on the divergence (nats, >= 0, inf where there is none);
            called at ``orders``, else at orders between 1 + 2^-20 and 2^36.
        delta: in (0, 1).
        orders: the only orders to use, each > 1; any real order if None.
        largest_order: no order above it is used.

    Returns:
        The bound at the best order found, rounded up; valid whatever that order is.  The error
        bound covers rounding at that order, not the search.

    Raises:
        ValueError: an argument is out of range, or the curve returns NaN or a negative number.

    >>> round(renyi_epsilon(lambda order: 0.5 * order, 1e-6).value, 5)
    5.22153
    """
    log_delta = math.log(probability(delta=delta))

    def bound(order: float, divergence: float) -> float:
        t = order - 1
        return divergence + math.log(t / order) - (log_delta + math.log(order)) / t

    order, divergence = _best_order(curve, bound, orders, largest_order)
    if math.isinf(divergence):
        return Bounded(math.inf, 0.0)
    with _precision(order, 45):
        value, error = _epsilon_at(Decimal(order) - 1, Decimal(divergence), Decimal(delta))
        return _bounded(max(value - error, Decimal(0)), max(value + error, Decimal(0)))


def renyi_delta(
    curve: Callable[[float], float],
    epsilon: float,
    *,
    orders: Sequence[float] | None = None,
    largest_order: float = math.inf,
) -> Bounded:
    """A delta for which a mechanism of a given Renyi curve is (epsilon, delta)-DP.

    Source: the formula of `renyi_epsilon` solved for delta,
    log delta = t(R(alpha) - epsilon) + t log(t/alpha) - log alpha, convex in alpha if t R is.

    Args:
        curve: as for `renyi_epsilon`.
        epsilon: nats, >= 0.
        orders: the only orders to use, each > 1; any real order if None.
        largest_order: no order above it is used.

    Returns:
        The bound at the best order found, rounded up and at most 1; valid whatever that order is.
        The error bound covers rounding at that order, not the search.

    Raises:
        ValueError: an argument is out of range, or the curve returns NaN or a negative number.

    >>> round(renyi_delta(lambda order: 0.5 * order, 5.22153).value * 1e6, 3)
    1.0
    """
    level = _non_negative(epsilon=epsilon)

    def bound(order: float, divergence: float) -> float:
        t = order - 1
        return t * (divergence - level + math.log(t / order)) - math.log(order)

    order, divergence = _best_order(curve, bound, orders, largest_order)
    if math.isinf(divergence):
        return Bounded(1.0, 0.0)
    with _precision(order, 45):
        log_value, error = _log_delta_at(Decimal(order) - 1, Decimal(divergence), Decimal(level))
        return _bounded_exp(log_value - error, log_value + error)


def zcdp_epsilon(rho: float, delta: float) -> Bounded:
    """The smallest epsilon >= 0 that `renyi_epsilon` can give for the curve rho * order.

    The derivative of epsilon(t) = C(t)/t, C(t) = rho t(t+1) + L + t log t - (t+1) log(t+1), has
    the sign of tC' - C = rho t^2 + log(1+t) - L, which increases in t.  At a t below its root the
    convex C lies above its tangent there, C(s) >= C'(t) s + (C - tC')(t) >= C'(t) s; so the
    minimum is at least C'(t), which is (L - rho t^2 - log(1+t))/t below epsilon(t).

    Args:
        rho: zCDP constant, >= 0.
        delta: in (0, 1).

    Returns:
        An upper bound; the error bound is to the minimum over all real orders.

    Raises:
        ValueError: an argument is not finite or out of range.

    >>> [round(zcdp_epsilon(rho, 1e-6).value, 5) for rho in (0.1, 0.5, 1, 5)]
    [2.14194, 5.22153, 7.76622, 20.55195]
    """
    constant, depth = _non_negative(rho=rho), -math.log(probability(delta=delta))
    if constant == 0:
        return Bounded(0.0, 0.0)
    t = _root(lambda t: constant * t * t + math.log1p(t) - depth)
    with _precision(max(t, 1.0), 45):
        exact, goal, exact_t = Decimal(constant), -Decimal(delta).ln(), Decimal(t)
        for _ in range(2):
            excess = exact * exact_t * exact_t + (1 + exact_t).ln() - goal
            exact_t -= excess / (2 * exact * exact_t + 1 / (1 + exact_t))
        shrink = Decimal("1e-30")
        while exact * exact_t * exact_t + (1 + exact_t).ln() > goal:
            exact_t, shrink = exact_t * (1 - shrink), 10 * shrink
        gap = (goal - exact * exact_t * exact_t - (1 + exact_t).ln()) / exact_t
        value, error = _epsilon_at(exact_t, exact * (1 + exact_t), Decimal(delta))
        low = value - 2 * error - gap
        return _bounded(max(low, Decimal(0)), max(value + error, Decimal(0)))


def zcdp_delta(rho: float, epsilon: float) -> Bounded:
    """The smallest delta that `renyi_delta` can give for the curve rho * order.

    log delta(t) has the derivative J = rho(2t+1) + log(t/(1+t)) - epsilon, which increases from
    -inf to inf at a rate of at least 2 rho; so log delta(t) exceeds its minimum by at most
    J^2/(4 rho).

    Args:
        rho: zCDP constant, >= 0.
        epsilon: nats, >= 0.

    Returns:
        An upper bound; the error bound is to the minimum over all real orders.

    Raises:
        ValueError: an argument is not finite or out of range.

    >>> round(zcdp_delta(0.5, 5.22153).value * 1e6, 3)
    1.0
    """
    constant, level = _non_negative(rho=rho), _non_negative(epsilon=epsilon)
    if constant == 0:
        return Bounded(0.0, 0.0)
    t = _root(lambda t: constant * (2 * t + 1) - math.log1p(1 / t) - level)
    with _precision(max(t, 1.0), 45):
        exact, exact_t = Decimal(constant), Decimal(t)
        log_value, error = _log_delta_at(exact_t, exact * (1 + exact_t), Decimal(level))
        slope = exact * (2 * exact_t + 1) + (exact_t / (1 + exact_t)).ln() - Decimal(level)
        low = log_value - 2 * error - slope * slope / (4 * exact)
        return _bounded_exp(low, log_value + error)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest rho with zcdp_epsilon(rho, delta) <= epsilon, rounded down.

    Any t gives a valid rho(t) = (epsilon - log(t/(1+t)) - (L - log(1+t))/t)/(1+t).  At its
    maximum, by the condition in `zcdp_epsilon`, rho = (L - log(1+t))/t^2 as well, so that
    (L - log(1+t))(2t+1)/t^2 - log(1+1/t) = epsilon, where the left side decreases in t < 1/delta.

    Args:
        epsilon: nats, >= 0.
        delta: in (0, 1).

    Returns:
        rho within a relative 1e-13 of the largest.

    Raises:
        ValueError: an argument is not finite or out of range.

    >>> round(zcdp_rho(5.22153, 1e-6), 5)
    0.5
    """
    level, t = _non_negative(epsilon=epsilon), _best_t(epsilon, delta)
    with _precision(max(t, 1.0), 45):
        exact_t = Decimal(t)
        free, error = _epsilon_at(exact_t, Decimal(0), Decimal(delta))
        rho = (Decimal(level) - free - error) / (1 + exact_t) * Decimal(_SAFE)
        return max(-_up(-rho), 0.0)


def _best_t(epsilon: float, delta: float) -> float:
    """order − 1 at which (epsilon, delta) allows the largest Rényi divergence per order."""
    level, depth = _non_negative(epsilon=epsilon), -math.log(probability(delta=delta))

    def excess(t: float) -> float:
        rest = depth - math.log1p(t)
        return level - rest * (2 + 1 / t) / t + math.log1p(1 / t) if rest > 0 else 1.0

    return _root(excess)


def renyi_order(
    epsilon: float, delta: float, curve: Callable[[float], float] | None = None
) -> tuple[float, float]:
    """The order at which (epsilon, delta) allows the most of one mechanism, and the divergence.

    Any mechanism whose divergence at that one order is at most the second number is
    (epsilon, delta)-DP (Canonne, Kamath & Steinke 2020, Proposition 12).  With f(t) the part of
    that bound that no divergence pays for, n runs of a mechanism fit at the order 1 + t if
    n·R <= epsilon − f(t).  t·R is convex and t·(epsilon − f(t)) concave over t, so the orders with
    room for n runs are an interval for each n, and the search has one valley to find.

    Args:
        epsilon: nats, > 0.
        delta: in (0, 1).
        curve: the Rényi curve of one run; default, a Gaussian's.

    Returns:
        The order, t to about four digits, and the divergence (nats), rounded down; 0 if even an
        exact release of nothing would not keep the promise at that order.

    Raises:
        ValueError: an argument is out of range, or the curve returns NaN or a negative number.

    >>> renyi_order(5.22153, 1e-6)[0]
    5.907
    >>> renyi_order(5.22153, 1e-6, lambda order: 0.5 * order)[0]
    5.907
    """
    best = _best_t(epsilon, delta)
    if curve is not None:
        log_delta = math.log(delta)

        def runs(order: float, divergence: float) -> float:
            t = order - 1
            room = epsilon - math.log(t / order) + (log_delta + math.log(order)) / t
            if room <= 0:  # grows with the order up to where there is room
                return 1e300 * (1 + math.log1p(-room))
            return divergence / room

        best = _best_order(curve, runs, None, math.inf)[0] - 1
    order = 1 + float(f"{best:.4g}")
    with _precision(order, 45):
        exact_t = Decimal(order) - 1
        free, error = _epsilon_at(exact_t, Decimal(0), Decimal(delta))
        divergence = (Decimal(epsilon) - free - error) * Decimal(_SAFE)
        return order, max(-_up(-divergence), 0.0)


class _Gaussian(NamedTuple):
    delta: Decimal
    slope: Decimal  # -d delta/d epsilon
    density: Decimal  # d delta/d mu
    error: Decimal


def _gaussian(mu: Decimal, epsilon: Decimal) -> _Gaussian:
    """Evaluates the curve in the current context, which `_precision` made; x <= 60.

    With u = 10^-p, x and y are off by at most 15u(epsilon/mu + mu), phi(x) by a relative
    20u(1 + |x|)(1 + epsilon/mu + mu); |M'| <= 1, and phi(x) M(x) <= 1.
    """
    unit = _unit()
    ratio = epsilon / mu
    x = ratio - mu / 2
    density = (-x * x / 2).exp() / _ROOT_TWO_PI
    near, near_error = _mills(abs(x))
    far, far_error = _mills(x + mu)
    spread = 1 + ratio + mu
    relative = 20 * unit * (1 + abs(x)) * spread
    error = density * (near_error + far_error + 40 * unit * spread + 2 * relative * (near + far))
    delta = density * (near - far) if x >= 0 else 1 - density * (near + far)
    return _Gaussian(delta, density * far, density, error + 10 * unit * (delta if x >= 0 else 1))


def _mills(x: Decimal) -> tuple[Decimal, Decimal]:
    """M(x) = e^(x^2/2) * integral of e^(-s^2/2) over s > x, for x >= 0, and an error bound.

    Below 5: M(x) = sqrt(2 pi) e^(x^2/2)/2 - sum of x^(2k+1)/(2k+1)!!; the positive terms end when
    they fall by half or more, so the rest is at most the last one.  From 5 on, the convergents of
    1/(x+1/(x+2/(x+3/...))) lie on alternating sides of M (Laplace).  Each has fewer than 1000
    operations on positive numbers, each off by a relative 5*10^-p: 10^(5-p) covers the rounding.
    """
    unit = _unit()
    square = x * x
    if x < 5:
        half = (square / 2).exp() * _ROOT_TWO_PI / 2
        term = total = x
        odd = 1
        while term > unit * total or odd < 2 * square:
            odd += 2
            term = term * square / odd
            total += term
        return half - total, term + 100_000 * unit * half
    digits = -float(unit.log10())
    depth = 14 + int((1.16 * digits / float(x)) ** 2)
    top, last_top = Decimal(1), Decimal(0)
    bottom, last_bottom = x, Decimal(1)
    for k in range(1, depth):
        top, last_top = x * top + k * last_top, top
        bottom, last_bottom = x * bottom + k * last_bottom, bottom
    value, other = top / bottom, last_top / last_bottom
    return value, abs(value - other) + 100_000 * unit * value


def _epsilon_at(t: Decimal, divergence: Decimal, delta: Decimal) -> tuple[Decimal, Decimal]:
    """The bound of `renyi_epsilon` at one order, and a bound on its rounding error."""
    order = 1 + t
    ratio, rest = (t / order).ln(), -(delta.ln() + order.ln()) / t
    size = 1 + divergence - ratio + (order.ln() - delta.ln()) / t
    return divergence + ratio + rest, 1000 * _unit() * size


def _log_delta_at(t: Decimal, divergence: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal]:
    """The bound of `renyi_delta` at one order, as a logarithm, and its rounding error."""
    order = 1 + t
    ratio = (t / order).ln()
    size = 1 + t * (1 + divergence + epsilon - ratio) + order.ln()
    return t * (divergence - epsilon + ratio) - order.ln(), 1000 * _unit() * size


def _best_order(
    curve: Callable[[float], float],
    bound: Callable[[float, float], float],
    orders: Sequence[float] | None,
    largest_order: float,
) -> tuple[float, float]:
    """The order (and its divergence) with the least bound among those looked at."""
    if not largest_order > 1:
        raise ValueError(f"largest_order = {largest_order!r}: must be > 1")
    seen: dict[float, tuple[float, float]] = {}

    def look(order: float) -> float:
        divergence = curve(order)
        if not divergence >= 0:
            raise ValueError(f"curve({order!r}) = {divergence!r}: must be >= 0 or inf")
        value = bound(order, divergence) if divergence < math.inf else math.inf
        seen[order] = value, divergence
        return value

    if orders is None:
        grid = [1 + 4.0**k for k in range(-10, 19) if 1 + 4.0**k < largest_order]
        values = [look(order) for order in (*grid, min(largest_order, 4.0**18))]
        grid.append(min(largest_order, 4.0**18))
        last = len(grid) - 1
        valleys = [
            i
            for i in range(len(grid))
            if values[max(i - 1, 0)] >= values[i] <= values[min(i + 1, last)]
        ]
        for i in sorted(valleys, key=lambda i: values[i])[:3]:
            if values[i] < math.inf:
                _golden(look, grid[max(i - 1, 0)] - 1, grid[min(i + 1, last)] - 1)
    else:
        usable = [order for order in orders if _above_one(order) <= largest_order]
        if not usable:
            raise ValueError(f"orders = {orders!r}: must name an order <= {largest_order!r}")
        for order in usable:
            look(order)
    best = min(seen, key=lambda order: seen[order][0])
    return best, seen[best][1]


def _golden(look: Callable[[float], float], low: float, high: float) -> None:
    """Looks at orders 1 + t, t in [low, high], by golden section on log t."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = math.log(low), math.log(high)
    inner, outer = right - ratio * (right - left), left + ratio * (right - left)
    at_inner, at_outer = look(1 + math.exp(inner)), look(1 + math.exp(outer))
    for _ in range(32):
        if at_inner <= at_outer:
            right, outer, at_outer = outer, inner, at_inner
            inner = right - ratio * (right - left)
            at_inner = look(1 + math.exp(inner))
        else:
            left, inner, at_inner = inner, outer, at_outer
            outer = left + ratio * (right - left)
            at_outer = look(1 + math.exp(outer))


def _root(increasing: Callable[[float], float]) -> float:
    """A t in (1e-304, 1e304) close to the sign change of an increasing function."""
    low, high = -700.0, 700.0
    for _ in range(64):
        middle = (low + high) / 2
        if increasing(math.exp(middle)) > 0:
            high = middle
        else:
            low = middle
    return math.exp(low)


def _precision(scale: float, digits: int) -> AbstractContextManager[Context]:
    """A decimal context with the digits on top that cancel at this mu, or this t >= 1."""
    extra = 2 * math.log10(scale) if scale > 1 else -math.log10(scale)
    traps = [InvalidOperation, DivisionByZero, Overflow]
    return localcontext(Context(prec=digits + math.ceil(extra), traps=traps))


def _unit() -> Decimal:
    """10^-p for the p digits of the current context; one operation errs by half of 10^(1-p)."""
    return Decimal(1).scaleb(-getcontext().prec)


def _up(value: Decimal) -> float:
    nearest = float(value)
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)


def _bounded(low: Decimal, high: Decimal) -> Bounded:
    value = _up(high)
    return Bounded(value, _up(_CEILING.subtract(Decimal(value), low)))


def _bounded_exp(log_low: Decimal, log_high: Decimal) -> Bounded:
    """The enclosure of e^z, at most 1, for z in the given interval."""
    if log_high < -750:  # below the smallest float
        return Bounded(_TINY, _TINY)
    slack = 10 * _unit()
    low = min(log_low, Decimal(1)).exp() * (1 - slack) if log_low > -1000 else Decimal(0)
    high = log_high.exp() * (1 + slack) if log_high < 0 else Decimal(1)
    return _bounded(min(low, Decimal(1)), min(high, Decimal(1)))


def _mass(mu_squared: float) -> float:
    mass = _non_negative(mu_squared=mu_squared)
    if mass > _LARGEST_MASS:
        raise ValueError(f"mu_squared = {mu_squared!r}: must lie in [0, {_LARGEST_MASS:g}]")
    return mass


def _non_negative(**named: float) -> float:
    ((name, value),) = named.items()
    number = finite(**named)
    if number < 0:
        raise ValueError(f"{name} = {value!r}: must be >= 0")
    return number


def _above_one(order: float) -> float:
    number = finite(order=order)
    if number <= 1:
        raise ValueError(f"order = {order!r}: must be > 1")
    return number
