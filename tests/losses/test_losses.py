"""Losses against 50-digit quadrature, exact probabilities and brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from privlearn.errors import AdjacencyError, UnknownKindError
from privlearn.losses import (
    BoundedRangeLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    RenyiCurve,
    compose,
    gaussian_loss,
    gaussian_std,
    loss_from_dict,
    register,
)
from privlearn.values.adjacency import Adjacency

mp.dps = 50
ORDERS = (1.0001, 1.01, 1.5, 2.0, 3.7, 8.0, 64.0, 1000.0)
EPSILONS = ("0.01", "0.1", "0.5", "1", "2", "5", "10")
EVERY: list[Loss] = [
    GaussianLoss("0.3"),
    LaplaceLoss("0.7"),
    BoundedRangeLoss("1.3"),
    RenyiCurve({"1.5": "0.1", 4: "0.4", 32: 2}),
    GaussianLoss("0.3") * 3 + LaplaceLoss("0.7") * 2,
]


def true_gaussian(mass: Fraction, order: float) -> Any:
    """D_order of N(mu, 1) from N(0, 1), by quadrature of p^a q^(1-a)."""
    alpha, mu = mpf(order), mp.sqrt(mpf(mass.numerator) / mass.denominator)
    centre = alpha * mu  # where the integrand peaks

    def integrand(x: Any) -> Any:
        return mp.exp(-alpha * (x - mu) ** 2 / 2 - (1 - alpha) * x**2 / 2) / mp.sqrt(2 * mp.pi)

    points = [centre + k for k in range(-24, 25, 4)]
    with mp.workdps(25):
        return mp.log(mp.quad(integrand, points)) / (alpha - 1)


def true_laplace(epsilon: str, order: float) -> Any:
    """D_order of Laplace(0) from Laplace(epsilon), exactly: three integrals of exponentials."""
    alpha, eps = mpf(order), mpf(epsilon)
    left = mp.exp(eps * (alpha - 1)) / 2
    right = mp.exp(-eps * alpha) / 2
    rate = 2 * alpha - 1
    middle = mp.exp(eps * (alpha - 1)) * (1 - mp.exp(-eps * rate)) / (2 * rate)
    return mp.log(left + right + middle) / (alpha - 1)


def _two_point(eps: Any, t: Any) -> tuple[Any, Any]:
    """Probability under Q of the ratios e^t and e^(t-eps), so that P is a law as well."""
    high = (1 - mp.exp(t - eps)) / (mp.exp(t) - mp.exp(t - eps))
    return high, 1 - high


def true_bounded_range(epsilon: str, order: float) -> Any:
    """max over t of the two-point law's divergence, by golden section after a grid."""
    alpha, eps = mpf(order), mpf(epsilon)

    def moment(t: Any) -> Any:
        high, low = _two_point(eps, t)
        return high * mp.exp(alpha * t) + low * mp.exp(alpha * (t - eps))

    return mp.log(_maximum(moment, eps)) / (alpha - 1)


def _maximum(value: Callable[[Any], Any], width: Any) -> Any:
    grid = [width * k / 64 for k in range(65)]
    best = max(range(65), key=lambda k: value(grid[k]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, 64)]
    ratio = (mp.sqrt(5) - 1) / 2
    for _ in range(60):
        inner, outer = high - ratio * (high - low), low + ratio * (high - low)
        if value(inner) > value(outer):
            high = outer
        else:
            low = inner
    return value((low + high) / 2)


@pytest.mark.parametrize("order", [1.01, 2.0, 8.0, 64.0])
@pytest.mark.parametrize("mass", ["0.01", "1", "4"])
def test_gaussian_curve_is_the_quadrature(mass: str, order: float) -> None:
    truth = true_gaussian(Fraction(mass), order)
    assert truth <= GaussianLoss(mass).renyi(order) <= truth * (1 + mpf(10) ** -12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_laplace_curve_is_exact(epsilon: str, order: float) -> None:
    truth = true_laplace(epsilon, order)
    stated = LaplaceLoss(epsilon).renyi(order)
    assert truth <= stated <= truth * (1 + mpf("1e-6")) + mpf("1e-14") / (order - 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bounded_range_curve_is_the_worst_two_point_law(epsilon: str, order: float) -> None:
    truth = true_bounded_range(epsilon, order)
    stated = BoundedRangeLoss(epsilon).renyi(order)
    assert truth * (1 - mpf(10) ** -15) <= stated
    assert stated <= truth * (1 + mpf("1e-6")) + mpf("3e-14") * (1 + mpf(epsilon)) / (
        1 - 1 / mpf(order)
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_zcdp_constants_bound_every_order_and_are_reached_near_one(epsilon: str) -> None:
    for loss, truth in (
        (LaplaceLoss(epsilon), true_laplace),
        (BoundedRangeLoss(epsilon), true_bounded_range),
    ):
        rho = loss.zcdp()
        assert rho is not None
        value = mpf(rho.numerator) / rho.denominator
        ratios = [truth(epsilon, order) / mpf(order) for order in ORDERS]
        assert max(ratios) <= value
        near_one = truth(epsilon, 1 + 2.0**-40) / (1 + mpf(2) ** -40)
        assert near_one <= value <= near_one * (1 + mpf(10) ** -9)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_zcdp_constant_too_small_by_a_millionth_is_refuted(epsilon: str) -> None:
    for loss, truth in (
        (LaplaceLoss(epsilon), true_laplace),
        (BoundedRangeLoss(epsilon), true_bounded_range),
    ):
        rho = loss.zcdp()
        assert rho is not None
        planted = mpf(rho.numerator) / rho.denominator * (1 - mpf(10) ** -6)
        assert truth(epsilon, 1 + 2.0**-40) > planted * (1 + mpf(2) ** -40)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=6),
    st.floats(0.05, 6),
    st.sampled_from(ORDERS),
    st.randoms(use_true_random=False),
)
def test_every_exponential_mechanism_is_within_the_bounded_range(
    utilities: list[float], epsilon: float, order: float, random: Any
) -> None:
    """Neighbours move each utility by at most one; logits then move within a range of epsilon."""
    moved = [u + random.uniform(0, 1) for u in utilities]
    p = np.array([mp.exp(mpf(epsilon) * mpf(u)) for u in utilities])
    q = np.array([mp.exp(mpf(epsilon) * mpf(u)) for u in moved])
    p, q = p / p.sum(), q / q.sum()
    alpha = mpf(order)
    for first, second in ((p, q), (q, p)):
        truth = mp.log(sum(first**alpha * second ** (1 - alpha))) / (alpha - 1)
        assert truth <= BoundedRangeLoss(epsilon).renyi(order) + mpf(10) ** -40
        ratios = [mp.log(a / b) for a, b in zip(first, second, strict=True)]
        assert max(ratios) - min(ratios) <= epsilon + 1e-12


def test_permute_and_flip_is_not_bounded_range() -> None:
    """A peer claims bounded range for permute-and-flip; its law refutes the claim."""

    def permute_and_flip(gaps: list[Any]) -> list[Any]:
        a, b = (mp.exp(-g) for g in gaps)  # acceptance probabilities, the best has 1
        first = a / 2 + (1 - b) * a / 2
        return [first / (first + b / 2 + (1 - a) * b / 2), 1 - first]

    eps = mpf(1)
    p = permute_and_flip([mpf(0), eps / 2])
    q = permute_and_flip([eps / 2, mpf(0)])
    ratios = [mp.log(a / b) for a, b in zip(p, q, strict=True)]
    assert max(ratios) - min(ratios) > eps


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("count", [1, 2, 10, 500])
def test_n_copies_cost_n_times_one(loss: Loss, count: int) -> None:
    many = loss * count
    assert many == compose([(loss, 1)] * count)
    for order in (1.5, 2.0, 4.0, 32.0):
        assert many.renyi(order) == pytest.approx(count * loss.renyi(order), rel=1e-12)
        assert many.renyi(order) >= count * loss.renyi(order) * (1 - 1e-15)
    for price in (Loss.zcdp, Loss.pure, Loss.gaussian):
        one, total = getattr(loss, price.__name__)(), getattr(many, price.__name__)()
        assert total == (None if one is None else one * count)


def test_a_forgotten_count_would_be_seen() -> None:
    """The defect of a peer: 500 exponential-mechanism steps reported as one."""
    assert (BoundedRangeLoss("0.087") * 500).renyi(2) > 400 * BoundedRangeLoss("0.087").renyi(2)
    assert (LaplaceLoss(1) * 10).pure() == 10


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.kind)
def test_losses_survive_json(loss: Loss) -> None:
    assert loss_from_dict(loss.to_dict()) == loss
    assert loss_from_dict((loss * 7).to_dict()) == loss * 7


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("order", [1, 0.5, -1, math.nan, math.inf])
def test_orders_not_above_one_are_refused(loss: Loss, order: float) -> None:
    with pytest.raises(ValueError, match=r"order = .*must be"):
        loss.renyi(order)


def test_a_curve_is_joined_by_chords_and_ends_at_its_last_order() -> None:
    curve = RenyiCurve({2: 1, 4: 3})
    assert curve.renyi(1.5) == 1.0  # (a-1)D is at most linear from 0 at order 1
    assert curve.renyi(3) == 2.5  # halfway between 1·1 and 3·3, over 2
    assert curve.renyi(2) == 1.0
    assert curve.renyi(4) == 3.0
    assert curve.renyi(4.000001) == math.inf
    assert curve.zcdp() is None
    assert curve.gaussian() is None
    assert curve.pure() is None


@given(st.floats(0.05, 3), st.floats(1.2, 5), st.floats(1.1, 40))
def test_a_sampled_curve_never_falls_below_the_true_one(
    epsilon: float, first: float, order: float
) -> None:
    true = LaplaceLoss(epsilon)
    grid = sorted({first, first + 1, 2 * first + 3, 64.0})
    sampled = RenyiCurve({a: true.renyi(a) for a in grid})
    assert sampled.renyi(order) >= true.renyi(order) * (1 - 1e-12)


@pytest.mark.parametrize("bad", [0, -1, "nan", "inf", math.nan, math.inf])
def test_losses_of_nothing_or_without_bound_are_refused(bad: Any) -> None:
    """The defect of peers: NaN noise counted as epsilon = 0."""
    for make in (GaussianLoss, LaplaceLoss, BoundedRangeLoss):
        with pytest.raises(ValueError, match=r"must"):
            make(bad)
    with pytest.raises(ValueError, match=r"must"):
        gaussian_loss(1.0, float(bad), Adjacency.REPLACE_ONE)
    with pytest.raises(ValueError, match=r"must"):
        gaussian_loss(float(bad), 1.0, Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("count", [0, -5])
def test_a_count_below_one_is_refused(count: int) -> None:
    """The defect of a peer: -5 steps gave epsilon = -134."""
    with pytest.raises(ValueError, match=r"count = .*must be an integer >= 1"):
        GaussianLoss(1) * count
    with pytest.raises(TypeError, match="must be an integer"):
        GaussianLoss(1) * 1.5  # type: ignore[operator]
    with pytest.raises(ValueError, match="needs at least one loss"):
        compose([])


def test_adjacencies_do_not_mix() -> None:
    with pytest.raises(AdjacencyError, match="cannot compose losses for replace-one and zero-out"):
        GaussianLoss(1) + GaussianLoss(1, adjacency=Adjacency.ZERO_OUT)
    both = loss_from_dict(LaplaceLoss(1, adjacency=Adjacency.ADD_REMOVE).to_dict())
    assert both.adjacency is Adjacency.ADD_REMOVE


def test_unknown_kinds_and_missing_numbers_are_named() -> None:
    with pytest.raises(UnknownKindError, match=r"'magic' is unknown; known: .*gaussian"):
        loss_from_dict({"kind": "magic", "adjacency": "replace-one"})
    with pytest.raises(ValueError, match="gaussian loss lacks 'mu_squared'"):
        loss_from_dict({"kind": "gaussian", "adjacency": "replace-one"})
    with pytest.raises(ValueError, match="registered already"):
        register(GaussianLoss)


@given(
    st.floats(1e-6, 1e6),
    st.fractions(min_value=Fraction(1, 10**6), max_value=10**4, max_denominator=10**9),
)
def test_the_std_for_a_mass_is_enough_and_hardly_more(sensitivity: float, mass: Fraction) -> None:
    std = gaussian_std(sensitivity, mass)
    stated = gaussian_loss(sensitivity, std, Adjacency.REPLACE_ONE).mu_squared
    exact = (Fraction(sensitivity) / Fraction(std)) ** 2
    assert exact <= stated <= mass
    assert exact >= mass * (1 - Fraction(1, 10**9))


def test_replace_one_noise_is_priced_as_replace_one() -> None:
    """The defect of a peer: a replace-one Gaussian priced as add-remove, 5.2 for 11.0."""
    assert gaussian_loss(2.0, 1.0, Adjacency.REPLACE_ONE) == GaussianLoss(4)
