"""Conversions against 50-digit arithmetic, dp-accounting, published numbers and their own laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.losses.conversion import (
    Bounded,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu_squared,
    renyi_delta,
    renyi_epsilon,
    renyi_order,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)

mp.mp.dps = 50


def logs(low: float, high: float) -> st.SearchStrategy[float]:
    """Floats spread evenly over the exponents between 10^low and 10^high."""
    return st.floats(low, high).map(lambda exponent: 10**exponent)


MASSES = logs(-12, 4)
EPSILONS = logs(-4, 2.7)
DELTAS = logs(-40, -0.05)
RHOS = logs(-8, 3)
quick = settings(max_examples=60, deadline=None)


def exact_gaussian_delta(mu_squared: float, epsilon: Any) -> Any:
    """Q(x) - e^epsilon Q(y), with digits added for what the difference cancels."""
    mu, level = mp.sqrt(mp.mpf(mu_squared)), mp.mpf(epsilon)
    x = level / mu - mu / 2
    with mp.workdps(50 + int(max(x, 0) ** 2 / 4) + int(max(-mp.log10(mu), 0)) + 10):
        mu = mp.sqrt(mp.mpf(mu_squared))
        x, y = level / mu - mu / 2, level / mu + mu / 2
        return (mp.erfc(x / mp.sqrt(2)) - mp.exp(level) * mp.erfc(y / mp.sqrt(2))) / 2


def exact_renyi_log_delta(divergence: Any, order: Any, epsilon: Any) -> Any:
    """Canonne, Kamath & Steinke 2020, Proposition 12, as printed."""
    power = (order - 1) * (divergence - epsilon)
    return power - mp.log(order - 1) + order * mp.log(1 - 1 / order)


def exact_zcdp_epsilon(rho: float, delta: float) -> Any:
    """Minimum over the order by a root of the derivative in the logarithm of order - 1."""
    rho_, log_delta = mp.mpf(rho), mp.log(mp.mpf(delta))

    def epsilon(z: Any) -> Any:
        order = 1 + mp.exp(z)
        shift = exact_renyi_log_delta(rho_ * order, order, 0) - log_delta
        return shift / (order - 1)

    return epsilon(minimiser(epsilon))


def minimiser(fun: Callable[[Any], Any]) -> Any:
    """Golden section to half of the digits, at which the value has all of them."""
    low, high, ratio = mp.mpf(-30), mp.mpf(60), (mp.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = fun(a), fun(b)
    while high - low > mp.mpf(10) ** -15:
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = fun(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = fun(b)
    return (low + high) / 2


def encloses(bound: Bounded, exact: Any, slack: float = 0.0) -> bool:
    """Whether value >= exact >= value - error_bound; ``slack`` is the oracle's own error."""
    low = mp.mpf(bound.value) - mp.mpf(bound.error_bound)
    return bool(bound.value >= exact - slack and exact + slack >= low)


GRID = [
    (mu * mu, epsilon)
    for mu in (1e-6, 1e-4, 0.013, 0.3, 1.0, 1.58, 4.0, 17.0, 100.0)
    for epsilon in (0.0, 1e-6, 1e-4, 0.03, 0.5, 2.0, 8.3, 30.0, 250.0, 600.0)
    if epsilon / mu - mu / 2 < 30
]


@pytest.mark.parametrize(("mu_squared", "epsilon"), GRID)
def test_gaussian_delta_encloses_the_exact_curve(mu_squared: float, epsilon: float) -> None:
    bound = gaussian_delta(mu_squared, epsilon)
    assert encloses(bound, exact_gaussian_delta(mu_squared, epsilon))
    assert bound.error_bound <= 4 * math.ulp(bound.value)


@pytest.mark.parametrize("delta", [1e-300, 1e-40, 1e-30, 1e-12, 1e-6, 1e-3, 0.4, 0.99])
@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 1.58, 10.0, 100.0])
def test_gaussian_epsilon_encloses_the_exact_root(mu: float, delta: float) -> None:
    bound = gaussian_epsilon(mu * mu, delta)
    assert exact_gaussian_delta(mu * mu, bound.value) <= delta
    if bound.value == 0:
        assert bound.error_bound == 0
    else:
        low = mp.mpf(bound.value) - mp.mpf(bound.error_bound)
        assert exact_gaussian_delta(mu * mu, max(low, mp.mpf(0))) >= delta
        assert bound.error_bound <= 8 * math.ulp(bound.value)


def test_extreme_gaussian_arguments_stay_sound() -> None:
    assert gaussian_delta(0, 0) == (0, 0)
    assert gaussian_epsilon(0, 1e-300) == (0, 0)
    assert gaussian_delta(1, 700) == (math.ulp(0.0), math.ulp(0.0))
    assert gaussian_delta(1e15, 1.0).value == 1
    below_smallest = gaussian_delta(1e-90, 0.0)
    assert below_smallest.value >= 1e-45 / math.sqrt(2 * math.pi)
    assert below_smallest.error_bound >= below_smallest.value * (1 - 1e-12)
    assert 5e14 < gaussian_epsilon(1e15, 1e-300).value < 6e14


@pytest.mark.parametrize(("count", "multiplier", "epsilon"), [(1000, 20, 8.3062), (17, 4, 5.0582)])
def test_gaussian_anchors(count: int, multiplier: float, epsilon: float) -> None:
    # benchmark numbers of dp-accounting's privacy loss distributions, delta = 1e-6
    assert gaussian_epsilon(count / multiplier**2, 1e-6).value == pytest.approx(epsilon, abs=5e-5)


def test_noise_for_a_thousand_gaussians_at_epsilon_one() -> None:
    assert math.sqrt(1000 / gaussian_mu_squared(1, 1e-6)) == pytest.approx(133.5961, abs=5e-5)


@pytest.mark.parametrize("std", [0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-2])
def test_gaussian_agrees_with_dp_accounting(std: float, delta: float) -> None:
    peer = gaussian_mechanism.get_epsilon_gaussian(std, delta, tol=1e-10)
    assert gaussian_epsilon(1 / std**2, delta).value == pytest.approx(peer, abs=1e-8)


@quick
@given(MASSES, DELTAS, st.floats(1.0001, 3))
def test_gaussian_epsilon_is_monotone(mass: float, delta: float, factor: float) -> None:
    bound = gaussian_epsilon(mass, delta)
    assert gaussian_epsilon(mass * factor, delta).value >= bound.value - bound.error_bound
    looser = min(delta * factor, 0.99)
    assert gaussian_epsilon(mass, looser).value <= bound.value or looser < delta
    assert gaussian_delta(mass, bound.value).value <= delta


@quick
@given(MASSES, EPSILONS, st.floats(1.0001, 3))
def test_gaussian_delta_is_monotone(mass: float, epsilon: float, factor: float) -> None:
    delta = gaussian_delta(mass, epsilon).value
    assert 0 < delta <= 1
    assert gaussian_delta(mass * factor, epsilon).value >= delta
    assert gaussian_delta(mass, epsilon * factor).value <= delta


@quick
@given(st.just(0.0) | EPSILONS, logs(-15, -0.05))
def test_gaussian_mass_round_trip_is_safe_and_tight(epsilon: float, delta: float) -> None:
    mass = gaussian_mu_squared(epsilon, delta)
    assert gaussian_epsilon(mass, delta).value <= epsilon
    assert exact_gaussian_delta(mass, epsilon) <= delta
    assert exact_gaussian_delta(mass * (1 + 1e-14), epsilon) > delta


@pytest.mark.parametrize(
    ("rho", "epsilon"), [(0.1, 2.14194), (0.5, 5.22153), (1, 7.76622), (5, 20.55195)]
)
def test_zcdp_anchors(rho: float, epsilon: float) -> None:
    # continuous-order minima of Canonne, Kamath & Steinke's bound, delta = 1e-6
    assert zcdp_epsilon(rho, 1e-6).value == pytest.approx(epsilon, abs=5e-6)
    assert renyi_epsilon(lambda a: rho * a, 1e-6).value == pytest.approx(epsilon, abs=5e-6)


@pytest.mark.parametrize("rho", [1e-8, 1e-4, 0.02, 1.0, 300.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-6, 0.1])
def test_zcdp_epsilon_encloses_the_exact_minimum(rho: float, delta: float) -> None:
    exact = max(exact_zcdp_epsilon(rho, delta), mp.mpf(0))
    bound = zcdp_epsilon(rho, delta)
    assert encloses(bound, exact, slack=1e-25 * (1 + rho))
    assert bound.error_bound <= 4 * math.ulp(bound.value)


@pytest.mark.parametrize("rho", [1e-4, 0.02, 1.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 40.0])
def test_zcdp_delta_encloses_the_exact_minimum(rho: float, epsilon: float) -> None:
    def log_delta(z: Any) -> Any:
        order = 1 + mp.exp(z)
        return exact_renyi_log_delta(mp.mpf(rho) * order, order, mp.mpf(epsilon))

    exact = mp.exp(log_delta(minimiser(log_delta)))
    bound = zcdp_delta(rho, epsilon)
    if exact < 1e-320:
        assert bound.value <= 2e-320
    else:
        assert encloses(bound, exact, slack=float(exact) * 1e-22)
        assert bound.error_bound <= 4 * math.ulp(bound.value)


@quick
@given(RHOS, DELTAS, st.floats(1.0001, 3))
def test_zcdp_epsilon_is_monotone_and_inverted(rho: float, delta: float, factor: float) -> None:
    epsilon = zcdp_epsilon(rho, delta).value
    assert zcdp_epsilon(rho * factor, delta).value >= epsilon
    assert zcdp_epsilon(rho, delta * (2 - 1 / factor) / 2).value >= epsilon
    if epsilon > 0:
        assert zcdp_delta(rho, epsilon).value <= delta * (1 + 1e-12)


@quick
@given(st.just(0.0) | EPSILONS, DELTAS)
def test_zcdp_rho_round_trip_is_safe_and_tight(epsilon: float, delta: float) -> None:
    rho = zcdp_rho(epsilon, delta)
    assert rho > 0
    assert zcdp_epsilon(rho, delta).value <= epsilon
    assert zcdp_epsilon(rho * (1 + 1e-12), delta).value > epsilon


@quick
@given(RHOS, DELTAS)
def test_the_order_search_finds_the_zcdp_minimum(rho: float, delta: float) -> None:
    found, best = renyi_epsilon(lambda a: rho * a, delta), zcdp_epsilon(rho, delta)
    assert found.value >= best.value - best.error_bound
    assert found.value <= best.value + 1e-11 * (1 + best.value)


@quick
@given(st.floats(1.01, 500), logs(-6, 2), DELTAS)
def test_single_order_is_the_printed_formula(order: float, level: float, delta: float) -> None:
    epsilon = renyi_epsilon(lambda _: level, delta, orders=[order])
    exact = -exact_renyi_log_delta(0, mp.mpf(order), 0) + mp.log(mp.mpf(delta))
    exact = mp.mpf(level) - exact / (mp.mpf(order) - 1)
    assert encloses(epsilon, max(exact, mp.mpf(0)), slack=1e-40)
    log_delta = exact_renyi_log_delta(mp.mpf(level), mp.mpf(order), mp.mpf(0.5))
    bound = renyi_delta(lambda _: level, 0.5, orders=[order])
    assert encloses(bound, min(mp.exp(log_delta), mp.mpf(1)), slack=1e-40)


def test_finite_orders_agree_with_dp_accounting() -> None:
    orders = [1.5, 2, 3, 5, 8, 16, 64]
    divergences = [0.3 * order for order in orders]
    peer, _ = rdp_privacy_accountant.compute_epsilon(orders, divergences, 1e-6)
    assert renyi_epsilon(lambda a: 0.3 * a, 1e-6, orders=orders).value == pytest.approx(peer)
    peer_delta, _ = rdp_privacy_accountant.compute_delta(orders, divergences, 3.0)
    ours = renyi_delta(lambda a: 0.3 * a, 3.0, orders=orders).value
    assert ours == pytest.approx(peer_delta)


def test_only_allowed_orders_are_used() -> None:
    asked: list[float] = []

    def curve(order: float) -> float:
        asked.append(order)
        return 0.01 * order

    renyi_epsilon(curve, 1e-6, largest_order=3.5)
    assert max(asked) == 3.5
    asked.clear()
    renyi_epsilon(curve, 1e-6, orders=[2.0, 3.0, 9.0], largest_order=3.5)
    assert asked == [2.0, 3.0]


def test_curve_may_be_infinite_beyond_some_order() -> None:
    full = renyi_epsilon(lambda a: 0.05 * a, 1e-6).value  # the best order is 17.5
    cut = renyi_epsilon(lambda a: 0.05 * a if a < 7 else math.inf, 1e-6)
    assert full < cut.value < renyi_epsilon(lambda a: 0.05 * a, 1e-6, orders=[6.99]).value + 1e-9
    assert renyi_epsilon(lambda _: math.inf, 1e-6) == (math.inf, 0)
    assert renyi_delta(lambda _: math.inf, 3.0) == (1, 0)


def test_flat_curve_costs_at_most_the_pure_loss() -> None:
    assert 1 - 2e-6 < renyi_epsilon(lambda _: 1.0, 1e-6).value <= 1
    assert renyi_delta(lambda _: 1.0, 1.0).value <= 1e-9


def test_minimum_of_two_curves_finds_the_better_valley() -> None:
    def curve(order: float) -> float:
        return min(3 * order, 0.001 * order + 4)

    better = renyi_epsilon(lambda a: 0.001 * a + 4, 1e-6).value
    assert renyi_epsilon(curve, 1e-6).value == pytest.approx(better, abs=1e-9)


def test_zero_loss_costs_nothing() -> None:
    assert zcdp_epsilon(0, 1e-6) == (0, 0)
    assert zcdp_delta(0, 1) == (0, 0)
    assert renyi_epsilon(lambda _: 0.0, 0.01).value == 0


@pytest.mark.parametrize("value", [math.nan, -1e-9])
def test_bad_divergence_is_never_dropped(value: float) -> None:
    def curve(order: float) -> float:
        return value if 10 < order < 100 else order

    with pytest.raises(ValueError, match=r"curve\(17.0\) = (nan|-1e-09): must be >= 0"):
        renyi_epsilon(curve, 1e-6)
    with pytest.raises(ValueError, match=r"curve\(20.0\) = (nan|-1e-09): must be >= 0"):
        renyi_delta(curve, 1.0, orders=[2.0, 20.0])


def flat(order: float) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_epsilon(-1, 0.1), r"mu_squared = -1: must be >= 0"),
        (lambda: gaussian_epsilon(math.nan, 0.1), r"mu_squared = nan: must be finite"),
        (lambda: gaussian_delta(1e16, 0.1), r"mu_squared = 1e\+16: must lie in \[0, 1e\+15\]"),
        (lambda: gaussian_epsilon(1, 0), r"delta = 0: must lie strictly between 0 and 1"),
        (lambda: gaussian_epsilon(1, math.nan), r"delta = nan: must be finite"),
        (lambda: gaussian_delta(1, -0.5), r"epsilon = -0.5: must be >= 0"),
        (lambda: gaussian_mu_squared(math.inf, 0.1), r"epsilon = inf: must be finite"),
        (lambda: gaussian_mu_squared(0, 1e-30), r"the mass must lie in"),
        (lambda: gaussian_mu_squared(1, 1), r"delta = 1: must lie strictly"),
        (lambda: renyi_epsilon(flat, 2), r"delta = 2: must lie strictly"),
        (lambda: renyi_epsilon(flat, 0.1, orders=[1.0]), r"order = 1.0: must be > 1"),
        (lambda: renyi_epsilon(flat, 0.1, orders=[]), r"orders = \[\]: must name an order"),
        (lambda: renyi_epsilon(flat, 0.1, largest_order=1), r"largest_order = 1: must be > 1"),
        (lambda: renyi_delta(flat, math.nan), r"epsilon = nan: must be finite"),
        (lambda: zcdp_epsilon(-0.1, 0.1), r"rho = -0.1: must be >= 0"),
        (lambda: zcdp_delta(0.1, -1), r"epsilon = -1: must be >= 0"),
        (lambda: zcdp_rho(1, 1.5), r"delta = 1.5: must lie strictly"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


PROMISES = [
    (epsilon, delta)
    for epsilon in (1e-6, 0.01, 0.5, 1.0, 5.22153, 8.0, 60.0, 400.0)
    for delta in (1e-300, 1e-30, 1e-9, 1e-6, 1e-3, 0.1, 0.9)
]


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_one_order_keeps_the_promise_and_wastes_nothing(epsilon: float, delta: float) -> None:
    order, divergence = renyi_order(epsilon, delta)
    assert order > 1
    if divergence == 0:
        assert exact_renyi_epsilon(0, order, delta) >= epsilon * (1 - 1e-9)
        return
    assert exact_renyi_epsilon(divergence, order, delta) <= epsilon
    assert renyi_epsilon(lambda _: divergence, delta, orders=[order]).value <= epsilon * (1 + 1e-15)
    more = divergence * (1 + 1e-9) + 1e-9 * epsilon
    assert exact_renyi_epsilon(more, order, delta) > epsilon


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_that_order_holds_as_much_gaussian_noise_as_zcdp(epsilon: float, delta: float) -> None:
    order, divergence = renyi_order(epsilon, delta)
    rho = zcdp_rho(epsilon, delta)
    if rho > 1e-12:
        assert divergence / order == pytest.approx(rho, rel=1e-5)
    rates = [exact_rate(epsilon, delta, order * (1 + step)) for step in (-0.2, -0.02, 0.02, 0.2)]
    assert all(divergence / order >= rate * (1 - 1e-6) - 1e-15 for rate in rates), "the best order"


def exact_rate(epsilon: float, delta: float, order: float) -> float:
    """The largest D/order at ``order`` that (epsilon, delta) allows."""
    if order <= 1:
        return 0.0
    return float((epsilon - exact_renyi_epsilon(0, order, delta)) / order)


def exact_renyi_epsilon(divergence: float, order: float, delta: float) -> Any:
    """Canonne, Kamath & Steinke 2020, Proposition 12, solved for epsilon; it may be below 0."""
    alpha = mp.mpf(order)
    log_delta = exact_renyi_log_delta(0, alpha, 0) - mp.log(mp.mpf(delta))
    return mp.mpf(divergence) + log_delta / (alpha - 1)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1), (1.0, math.nan)]
)
def test_an_order_needs_a_promise(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        renyi_order(epsilon, delta)
