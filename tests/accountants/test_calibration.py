"""The least noise: on the safe side, monotone, and no more than needed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.accountants.calibration import (
    DIGITS,
    least_noise,
    least_noise_by_shares,
    noisier,
)
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.accountants.guarantee import epsilon_of
from privlearn.errors import BudgetError, CurrencyError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FailingLoss,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SubsampledGaussian,
    ZCDPLoss,
    compose,
    registered_kinds,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.losses.conversion import gaussian_mu_squared
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_down, float_up

MINIMIZER = MinimizerLoss(difference=4, trace=1, rank=5, directions=5, ridge=15, noise_std=12)
KINDS: list[Loss] = [
    GaussianLoss(1),
    LaplaceLoss(1),
    BoundedRangeLoss(1),
    PureLoss(1),
    RandomizedResponse(1, 5),
    DiscreteLaplace(1, 3),
    DiscreteGaussian(1, 1),
    GeneralizedGaussian(2, 1, 1),
    ZCDPLoss(1),
    SubsampledGaussian(1, "0.01"),
]
EPSILONS = st.floats(-4, 2).map(lambda x: float(f"{10**x:.6g}"))
DELTAS = st.floats(-30, -1).map(lambda x: float(f"{10**x:.6g}"))
COUNTS = st.integers(0, 9).flatmap(lambda k: st.integers(10 ** max(k - 1, 0), 10**k))
STEP = Fraction(1, 10 ** (DIGITS - 1))
"""The largest relative distance of neighbours on the grid."""


def name(loss: Loss) -> str:
    return loss.kind


# Every kind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", KINDS, ids=name)
@given(EPSILONS, DELTAS, COUNTS)
@settings(deadline=None, max_examples=12)
def test_every_kind_is_calibrated_on_the_safe_side(
    loss: Loss, e: float, d: float, count: int
) -> None:
    try:
        found = least_noise([(loss, count)], ApproxDP(e, d))
    except BudgetError:
        assert isinstance(loss, SubsampledGaussian), "its multiplier ends at 1e6"
        assert epsilon_of(noisier(loss, 10**6) * count, d).value > e
        return
    ((spent, times),) = found.parts
    assert (spent, times) == (noisier(loss, found.factor), count)
    assert epsilon_of(spent * times, d).value <= e
    less = noisier(loss, found.factor * (1 - STEP))
    assert epsilon_of(less * times, d).value > e * (1 - 1e-15), "a step less is too little"
    assert found.answer is not None
    assert found.answer.value <= e


@pytest.mark.parametrize("loss", KINDS, ids=name)
def test_more_is_asked_for_where_less_is_allowed(loss: Loss) -> None:
    def factor(e: float, d: float, n: int) -> Fraction:
        return least_noise([(loss, n)], ApproxDP(e, d)).factor

    for chain in (
        [factor(e, 1e-6, 10) for e in (100, 10, 1, 0.999, 0.1, 1e-2, 1e-4)],
        [factor(1, d, 10) for d in (1e-1, 1e-2, 1e-6, 0.99e-6, 1e-12, 1e-30)],
        [factor(1, 1e-6, n) for n in (1, 2, 3, 10, 11, 1000, 10**6, 10**9)],
    ):
        assert chain == sorted(chain)


def test_the_ends_of_the_range() -> None:
    assert least_noise([(LaplaceLoss(1), 1)], ApproxDP(1, "1e-30")).factor == 1
    assert least_noise([(LaplaceLoss(1), 1)], ApproxDP(1, "1e-30")).answer.method == "pure"  # type: ignore[union-attr]
    hard = least_noise([(BoundedRangeLoss(1), 10**9)], ApproxDP("1e-4", "1e-30"))
    assert hard.answer is not None
    assert hard.answer.value == pytest.approx(1e-4, rel=1e-7)


def test_objective_perturbation_keeps_its_ridge_and_may_need_more() -> None:
    found = least_noise([(MINIMIZER, 1)], ApproxDP(1, "1e-6"))
    ((spent, _),) = found.parts
    assert isinstance(spent, MinimizerLoss)
    assert (spent.ridge, spent.trace) == (MINIMIZER.ridge, MINIMIZER.trace)
    assert epsilon_of(spent, 1e-6).value <= 1
    with pytest.raises(BudgetError, match="larger ridge"):
        least_noise([(MINIMIZER, 1)], ApproxDP("1e-4", "1e-6"))


def test_mixtures_share_one_factor() -> None:
    parts: list[tuple[Loss, int]] = [
        (GaussianLoss(1), 50),
        (LaplaceLoss(1), 20),
        (BoundedRangeLoss("0.5"), 500),
    ]
    found = least_noise(parts, ApproxDP(2, "1e-6"), count=3)
    assert list(found.parts) == [(noisier(loss, found.factor), 3 * n) for loss, n in parts]
    assert epsilon_of(compose(found.parts), 1e-6).value <= 2
    less = [(noisier(loss, found.factor * (1 - STEP)), 3 * n) for loss, n in parts]
    assert epsilon_of(compose(less), 1e-6).value > 2


def test_a_thorough_price_needs_less_noise() -> None:
    parts: list[tuple[Loss, int]] = [(LaplaceLoss(1), 100)]
    quick = least_noise(parts, ApproxDP(1, "1e-6"))
    found = least_noise(parts, ApproxDP(1, "1e-6"), thorough=True)
    assert found.factor < quick.factor * Fraction(99, 100)
    price = evaluate(found.parts).epsilon(1e-6).value
    assert 1 - 1e-3 < price <= 1
    # Gaussians are exact as they are
    one: list[tuple[Loss, int]] = [(GaussianLoss(1), 7)]
    exact = least_noise(one, ApproxDP(1, "1e-6"), thorough=True)
    assert exact.factor == least_noise(one, ApproxDP(1, "1e-6")).factor


def test_shares_are_kept_and_gaussian_ones_are_shares_of_the_mass() -> None:
    parts: list[tuple[Loss, int]] = [(GaussianLoss(1), 10), (GaussianLoss(4), 1)]
    first, second = least_noise_by_shares(parts, [3, 1], ApproxDP(1, "1e-6"))
    masses = [compose(one.parts).gaussian() for one in (first, second)]
    assert masses[0] is not None
    assert masses[1] is not None
    assert float(masses[0] / masses[1]) == pytest.approx(3, rel=1e-7)
    assert float(sum(m for m in masses if m)) == pytest.approx(
        gaussian_mu_squared(1, 1e-6), rel=1e-7
    )
    mixed: list[tuple[Loss, int]] = [
        (GaussianLoss(1), 10),
        (LaplaceLoss(1), 5),
        (BoundedRangeLoss(2), 100),
    ]
    found = least_noise_by_shares(mixed, ["0.5", "0.3", "0.2"], ApproxDP(2, "1e-6"))
    spent = [part for one in found for part in one.parts]
    rhos = [compose(one.parts).zcdp() for one in found]
    assert [float(r / rhos[0]) for r in rhos if r and rhos[0]] == pytest.approx([1, 0.6, 0.4])
    assert 2 * (1 - 1e-6) < epsilon_of(compose(spent), 1e-6).value <= 2


def test_currencies_are_covered() -> None:
    budgets: list[tuple[Any, Loss, int]] = [
        (PureDP(1), LaplaceLoss(1), 100),
        (ZCDP("0.5"), GaussianLoss(1), 10),
        (GaussianDP(1), GaussianLoss(1), 10),
        (Renyi({2: 1, 8: 4}), GaussianLoss(1), 10),
    ]
    for budget, loss, factor in budgets:
        found = least_noise([(loss, 1)], budget, count=100)
        assert found.factor == factor
        assert found.answer is None
        assert budget.covers(budget.price(compose(found.parts)))
    with pytest.raises(CurrencyError):
        least_noise([(GaussianLoss(1), 1)], PureDP(1))


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(BudgetError, match="states no noise"):
        least_noise([(RenyiCurve({2: 1}), 1)], ApproxDP(1, "1e-6"))
    with pytest.raises(BudgetError, match="failures are not made rarer"):
        least_noise([(ApproxLoss(1, "1e-5"), 1)], ApproxDP(1, "1e-6"))
    half = least_noise([(ApproxLoss(1, "1e-7"), 2)], ApproxDP(1, "1e-6")).factor
    assert float(half) == pytest.approx(2, rel=1e-5)
    with pytest.raises(BudgetError, match="above zero"):
        least_noise([(GaussianLoss(1), 1)], ApproxDP(0, "1e-6"))
    with pytest.raises(ValueError, match="count"):
        least_noise([(GaussianLoss(1), 1)], ApproxDP(1, "1e-6"), count=-5)
    with pytest.raises(ValueError, match="shares"):
        least_noise_by_shares([(GaussianLoss(1), 1)], [0], ApproxDP(1, "1e-6"))
    with pytest.raises(ValueError, match="shares"):
        least_noise_by_shares([(GaussianLoss(1), 1)], [1, 2], ApproxDP(1, "1e-6"))
    with pytest.raises(TypeError, match="promise"):
        least_noise([(GaussianLoss(1), 1)], 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be > 0"):
        noisier(GaussianLoss(1), 0)


@pytest.mark.parametrize(
    "loss", [*KINDS, MINIMIZER, GaussianLoss(1) * 3 + LaplaceLoss(1)], ids=name
)
def test_noisier_costs_less_and_keeps_the_relation(loss: Loss) -> None:
    found = noisier(loss, 2)
    assert found.adjacency is loss.adjacency
    for order in (1.5, 2, 8):
        assert found.renyi(order) < loss.renyi(order)
    assert noisier(loss, 1) == loss
    assert noisier(ApproxLoss(1, "1e-7"), 2) == ApproxLoss("0.5", "1e-7")
    assert noisier(FailingLoss(GaussianLoss(1), "1e-7"), 2) == FailingLoss(
        GaussianLoss("1/4"), "1e-7"
    )
    profile = PerArrivalLoss([(3, GaussianLoss(1)), (2, LaplaceLoss(1))])
    assert noisier(profile, 2) == PerArrivalLoss(
        [(3, GaussianLoss("1/4")), (2, LaplaceLoss("1/2"))]
    )


def test_every_kind_of_loss_but_what_is_only_stated_can_be_made_noisier() -> None:
    ours = [cls for cls in registered_kinds().values() if cls.__module__.startswith("privlearn.")]
    assert [cls.kind for cls in ours if cls.noisier is Loss.noisier] == [
        "renyi-curve",
        "declared",
    ]


def test_the_promise_is_rounded_down_before_the_search() -> None:
    """A third is no float: the floats that are used lie below it."""
    promise = ApproxDP("1/3", "1/3000001")
    z = least_noise([(GaussianLoss(1), 1)], promise).factor
    value = epsilon_of(
        GaussianLoss(1 / z**2, adjacency=Adjacency.REPLACE_ONE), float_down(promise.delta)
    )
    assert Fraction(value.value) <= promise.epsilon
    assert float_down(promise.epsilon) < float_up(promise.epsilon)
