"""Laws that hold for every shipped loss under every accountant and currency that can price it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from privlearn import ZCDP, GaussianDP, NoiseSource, Plan, PureDP, Renyi
from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.errors import CurrencyError, InsufficientBudgetError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DeclaredLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedBatch,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    LeastLoss,
    Loss,
    MinimizerLoss,
    PoissonSampled,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SubsampledGaussian,
    ZCDPLoss,
)
from privlearn.losses.budgets import Currency
from privlearn.losses.conversion import RoundedNumber
from privlearn.values.adjacency import Adjacency

USERS = range(3)
DELTA = 1e-6
LOSSES: list[Loss] = [
    GaussianLoss("0.04"),
    LaplaceLoss("0.1"),
    BoundedRangeLoss("0.1"),
    PureLoss("0.1"),
    RandomizedResponse("0.1", categories=4),
    DiscreteLaplace("0.1", sensitivity=3),
    DiscreteGaussian(1, 8),
    GeneralizedGaussian(2, 1, 10),
    ZCDPLoss("0.01"),
    RenyiCurve({"2": "0.02", "8": "0.1", "32": "0.5"}),
    MinimizerLoss(difference=4, trace=1, rank=3, directions=3, ridge=20, noise_std=30),
    LeastLoss([PureLoss("0.1"), ZCDPLoss("0.003"), RenyiCurve({"2": "0.005", "8": "0.02"})]),
    DeclaredLoss({"kind": "else.where", "adjacency": "replace-one"}, PureLoss("0.1")),
    PoissonSampled(
        LaplaceLoss("0.5", adjacency=Adjacency.ADD_REMOVE),
        "0.1",
        adjacency=Adjacency.REPLACE_ONE,
    ),
    FixedBatch(GaussianLoss("0.04"), 100, 5),
]
CAPS: list[Currency] = [
    ZCDP(1),
    GaussianDP(2),
    PureDP(3),
    Renyi({"2": "2", "6": "7"}),
]
ACCOUNTANTS = [CentralAccountant, JointAccountant]


def opened(kind: Callable[..., Any], cap: Currency) -> Any:
    return kind(cap, users=USERS, noise=NoiseSource.simulation(0))


def price(cap: Currency, loss: Loss) -> Currency | None:
    try:
        return cap.price(loss)
    except CurrencyError:
        return None


CASES = [
    (kind, cap, loss)
    for kind in ACCOUNTANTS
    for cap in CAPS
    for loss in LOSSES
    if price(cap, loss) is not None
]
NAMES = [f"{k.__name__}-{c.kind}-{loss.kind}" for k, c, loss in CASES]


def test_every_kind_has_a_home() -> None:
    """Each loss can be spent in some currency, and each currency can pay for some losses."""
    assert {loss.kind for _, _, loss in CASES} == {loss.kind for loss in LOSSES}
    assert {cap.kind for _, cap, _ in CASES} == {cap.kind for cap in CAPS}


@pytest.mark.parametrize(("kind", "cap", "loss"), CASES, ids=NAMES)
def test_copies_cost_the_multiple_and_no_more_fit_than_fit(
    kind: Callable[..., Any], cap: Currency, loss: Loss
) -> None:
    single = cap.price(loss)
    accountant = opened(kind, cap)
    fitting = min(a // b for a, b in zip(cap.amounts, single.amounts, strict=True) if b > 0)
    for copies in range(1, min(int(fitting), 5) + 1):
        accountant.issue(loss, users=USERS, label="one")
        assert accountant.remaining() == cap - single * copies
    bulk = loss * (int(fitting) + 1)
    with pytest.raises(InsufficientBudgetError):
        opened(kind, cap).issue(bulk, users=USERS, label="bulk")
    if fitting >= 1:
        whole = opened(kind, cap)
        whole.issue(loss * int(fitting), users=USERS, label="bulk")
        with pytest.raises(InsufficientBudgetError):
            whole.issue(loss, users=USERS, label="one more")


@pytest.mark.parametrize(("kind", "cap", "loss"), CASES, ids=NAMES)
def test_a_plan_says_the_same_in_one_piece_and_in_many(
    kind: Callable[..., Any], cap: Currency, loss: Loss
) -> None:
    one, many = opened(kind, cap), opened(kind, cap)
    one.commit([Plan("all", loss, USERS, 3)])
    many.commit([Plan(label, loss, USERS) for label in "abc"])
    first, second = (a.certificate(DELTA).guarantees[0] for a in (one, many))
    assert (first.rho, first.mu) == (second.rho, second.mu)
    assert first.epsilon == pytest.approx(second.epsilon, rel=1e-9)
    if first.rho is not None:
        assert first.rho == pytest.approx(3 * float(loss.zcdp() or 0), rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_epsilon_grows_with_the_count_and_falls_with_delta(loss: Loss) -> None:
    def epsilon(count: int, delta: float = DELTA) -> float:
        answer: RoundedNumber = evaluate([(loss, count)]).epsilon(delta)
        return answer.value

    values = [epsilon(count) for count in (1, 2, 10, 50)]
    assert all(0 < a <= b * (1 + 1e-9) for a, b in pairwise(values))
    assert epsilon(10, 1e-9) >= epsilon(10, 1e-3)
    # consistent: at that ε no more than that δ is needed, up to the stated error
    at = evaluate([(loss, 10)])
    assert at.delta(at.epsilon(DELTA).value).value <= DELTA * (1 + 1e-3)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_the_order_of_names_does_not_matter_where_any_order_is_asked_for(loss: Loss) -> None:
    other = GaussianLoss("0.01")
    one, two = evaluate([(loss, 2), (other, 3)]), evaluate([(other, 3), (loss, 2)])
    assert one.epsilon(DELTA).value == pytest.approx(two.epsilon(DELTA).value, rel=1e-6)


def test_a_subsampled_gaussian_and_a_box_are_priced_where_they_can_be() -> None:
    sampled = SubsampledGaussian(1, "0.01", adjacency=Adjacency.ADD_REMOVE)
    assert (
        evaluate([(sampled, 10)]).epsilon(DELTA).value
        < evaluate([(GaussianLoss(1, adjacency=Adjacency.ADD_REMOVE), 10)]).epsilon(DELTA).value
    )
    box = evaluate([(ApproxLoss("0.1", "1e-7"), 3)])
    assert box.epsilon(DELTA).value <= 0.3 * (1 + 1e-9)
    assert math.isinf(box.epsilon(2e-7).value)
    with pytest.raises(CurrencyError):
        ZCDP(1).price(ApproxLoss("0.1", "1e-7"))
