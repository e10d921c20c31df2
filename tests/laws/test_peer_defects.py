"""Defects that were seen in other libraries, each with the test that would have caught it here.

Seen in November 2026 in dp-accounting 0.6.0, opacus 1.6.0, autodp 0.2.3.1, diffprivlib 0.6.6,
OpenDP 0.16.0 and others.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.accountants.guarantee import epsilon_of
from privlearn.errors import (
    AdjacencyError,
    DataError,
    InsufficientBudgetError,
    LedgerError,
    TokenCopyError,
    TokenSpentError,
)
from privlearn.events.lists import event_list
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
    as_replace_one,
    compose,
    gaussian_loss,
)
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

USERS = range(4)
ADD_REMOVE = Adjacency.ADD_REMOVE
LOSSES: list[Loss] = [
    GaussianLoss("0.1"),
    LaplaceLoss("0.2"),
    BoundedRangeLoss("0.2"),
    PureLoss("0.2"),
    RandomizedResponse("1.1", 3),
    DiscreteLaplace("0.3", 2),
    DiscreteGaussian(1, 5),
    GeneralizedGaussian(2, 1, 9),
    SubsampledGaussian(1, "0.01"),
    ZCDPLoss("0.1"),
    ApproxLoss("0.1", "1e-9"),
    RenyiCurve({2: "0.1", 8: "0.5"}),
    MinimizerLoss(difference=4, trace=1, rank=5, directions=5, ridge=15, noise_std=12),
    LaplaceLoss("0.1") * 3 + GaussianLoss("0.2"),
    FailingLoss(GaussianLoss("0.1"), "1e-9"),
    PerArrivalLoss([(3, GaussianLoss("0.2")), (2, GaussianLoss("0.1"))]),
]


def account(budget: Any, **options: Any) -> CentralAccountant[Any]:
    return CentralAccountant(budget, users=USERS, noise=NoiseSource.simulation(0), **options)


# A branch forgot `count` -----------------------------------------------------------------------


def test_ten_randomized_responses_cost_eleven_not_1_1() -> None:
    ten = RandomizedResponse("1.1") * 10
    assert ten.pure() == 11
    assert epsilon_of(ten, 1e-6).value == pytest.approx(11, rel=1e-5)
    event = {"mechanism": "randomized-response", "epsilon": 1.1, "count": 10}
    top = {"adjacency": "replace-one", "trust": "local"}
    assert event_list({**top, "events": [event]}).loss() == ten


def test_five_hundred_exponential_mechanisms_cost_43_not_half() -> None:
    many = BoundedRangeLoss("0.5") * 500
    assert many.pure() == 250
    assert epsilon_of(many, 1e-6).value == pytest.approx(43.29, abs=0.01)
    assert evaluate([(BoundedRangeLoss("0.5"), 500)]).epsilon(1e-6).value > 30


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_no_loss_forgets_its_count(loss: Loss) -> None:
    seven, listed = loss * 7, compose([(loss, 1)] * 7)
    assert seven == listed
    for order in (1.5, 2.0, 7.5):
        once = loss.renyi(order)
        assert seven.renyi(order) == pytest.approx(7 * once, rel=1e-9) or math.isinf(once)
    for total, single in (
        (seven.zcdp(), loss.zcdp()),
        (seven.pure(), loss.pure()),
        (seven.gaussian(), loss.gaussian()),
        (seven.failure(), loss.failure()),
    ):
        assert total == (None if single is None else 7 * single)
    assert epsilon_of(seven, 1e-6).value > epsilon_of(loss, 1e-6).value
    assert evaluate([(loss, 7)]).epsilon(1e-6).value > evaluate([(loss, 1)]).epsilon(1e-6).value


# Numbers that are no numbers -------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0, "nan", "1/0"])
def test_nan_noise_is_refused_not_free(bad: Any) -> None:
    for make in (
        lambda: GaussianLoss(bad),
        lambda: LaplaceLoss(bad),
        lambda: BoundedRangeLoss(bad),
        lambda: PureLoss(bad),
        lambda: RandomizedResponse(bad),
        lambda: DiscreteLaplace(bad),
        lambda: DiscreteGaussian(1, bad),
        lambda: GeneralizedGaussian(2, 1, bad),
        lambda: SubsampledGaussian(bad, "0.01"),
        lambda: ZCDPLoss(bad),
        lambda: ApproxLoss(bad, "1e-6"),
        lambda: NoisySum(Ball(1.0, 1), GaussianNoise(bad)),
        lambda: GaussianNoise(bad),
        lambda: LaplaceNoise(bad),
        lambda: gaussian_loss(1.0, bad, Adjacency.REPLACE_ONE),
    ):
        with pytest.raises((ValueError, TypeError)):
            make()
    event = {"mechanism": "gaussian", "noise_multiplier": bad}
    with pytest.raises(DataError, match=r"^events\[0\]\.noise_multiplier"):
        event_list({"adjacency": "replace-one", "trust": "central", "events": [event]})


@pytest.mark.parametrize("steps", [-5, 0, 2.5, True, math.nan])
def test_minus_five_steps_are_refused_not_refunded(steps: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        GaussianLoss(1) * steps
    with pytest.raises((ValueError, TypeError)):
        evaluate([(GaussianLoss(1), steps)])
    event = {"mechanism": "gaussian", "noise_multiplier": 1, "count": steps}
    with pytest.raises(DataError, match=r"^events\[0\]\.count"):
        event_list({"adjacency": "replace-one", "trust": "central", "events": [event]})


# Neighbour relations ---------------------------------------------------------------------------


def test_a_replace_one_gaussian_is_not_priced_as_add_remove() -> None:
    """Multiplier 1 in terms of one record: 4.9 under add-remove, 11.0 (not 5.2) for replace-one."""
    one = GaussianLoss(1, adjacency=ADD_REMOVE)
    assert epsilon_of(one, 1e-6).value == pytest.approx(4.887, abs=5e-4)
    assert epsilon_of(as_replace_one(one).loss, 1e-6).value == pytest.approx(10.997, abs=5e-4)
    prices = [
        NoisySum(Ball(1.0, 3), GaussianNoise(1.0), a).loss().gaussian()
        for a in (ADD_REMOVE, Adjacency.REPLACE_ONE)
    ]
    assert prices == [1, 4], "a mechanism knows both from its domain"
    with pytest.raises(AdjacencyError):
        one + GaussianLoss(1)
    with pytest.raises(DataError, match="local"):
        event_list(
            {
                "adjacency": "add-remove",
                "trust": "local",
                "events": [{"mechanism": "gaussian", "noise_multiplier": 1}],
            }
        )


# Permute-and-flip is not the exponential mechanism --------------------------------------------


def _exponential(utility: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weights = np.exp((utility - utility.max()) / 2)
    found: np.ndarray[Any, Any] = weights / weights.sum()
    return found


def _permute_and_flip(utility: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Exact law for two items (McKenna & Sheldon 2020): flip in random order until heads."""
    heads = np.exp((utility - utility.max()) / 2)
    first = heads * 0.5
    passed = (1 - heads)[::-1] * 0.5 * heads
    found: np.ndarray[Any, Any] = (first + passed) / (first + passed).sum()
    return found


def _worst(law: Any, scale: float) -> tuple[float, float]:
    """Largest absolute loss and largest range of the loss over neighbours (scores move by 1)."""
    most = widest = 0.0
    for gap in np.linspace(0, 4, 41):
        for shift in ((1, -1), (-1, 1), (1, 1), (1, 0), (0, 1), (0, -1)):
            p, q = law(scale * np.array([gap, 0.0])), law(scale * (np.array([gap, 0.0]) + shift))
            loss = np.log(p / q)
            most, widest = max(most, float(np.abs(loss).max())), max(widest, float(np.ptp(loss)))
    return most, widest


def test_bounded_range_is_claimed_for_the_exponential_mechanism_only() -> None:
    """At scale ε = 1 both are 1-DP; the losses of permute-and-flip spread over more than 1."""
    most, widest = _worst(_exponential, 1.0)
    assert most <= 1 + 1e-12
    assert widest <= 1 + 1e-12
    most, widest = _worst(_permute_and_flip, 1.0)
    assert most <= 1 + 1e-12
    assert widest > 1.2, "BoundedRangeLoss(1) would be a false claim"
    event = {"mechanism": "permute-and-flip", "epsilon": 1}
    with pytest.raises(DataError, match=r"events\[0\]: mechanism 'permute-and-flip' is unknown"):
        event_list({"adjacency": "replace-one", "trust": "central", "events": [event]})
    assert PureLoss(1).zcdp() > 3 * BoundedRangeLoss(1).zcdp(), "what it costs as a black box"


# Caps, forks, order, arithmetic ------------------------------------------------------------------


@pytest.mark.parametrize("budget", [PureDP(1), ZCDP("0.3"), ZCDP("1/3")], ids=str)
def test_an_exactly_filled_cap_takes_step_200_of_200(budget: PureDP | ZCDP) -> None:
    book = account(budget)
    share = budget.share("1/200")
    for _ in range(200):
        book.issue(share, users=USERS, label="step")
    assert book.remaining().is_zero
    with pytest.raises(InsufficientBudgetError):
        book.issue(share, users=USERS, label="step")


def _in_child(answers: Any, act: Any) -> None:
    try:
        act()
        answers.put("answered")
    except TokenCopyError:
        answers.put("refused")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks_of_one_budget_slot_answer_once() -> None:
    book = account(ZCDP(1))
    mechanism = NoisySum.calibrated(Ball(1.0, 1), ZCDP(1))
    rows: Rows[Any] = Rows.seal(np.ones((4, 1)), users=USERS)
    token = book.issue(mechanism.loss(), users=USERS, label="one")
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    children = [
        context.Process(target=_in_child, args=(answers, lambda: mechanism.release(rows, token)))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == ["refused"] * 4
    for child in children:
        child.join()
    mechanism.release(rows, token)
    with pytest.raises(TokenSpentError):
        mechanism.release(rows, token)


def test_the_charge_is_durable_before_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    book = account(ZCDP(1))
    mechanism = NoisySum.calibrated(Ball(1.0, 1), ZCDP(1))
    token = book.issue(mechanism.loss(), users=USERS, label="one")
    events: list[str] = []
    pool, append = NoiseSource.pool, book.ledger.append

    def drawn(self: NoiseSource) -> Any:
        events.append("noise")
        return pool(self)

    def refused(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full")

    def written(entry: Any, **options: Any) -> Any:
        events.append(entry.entry)
        return append(entry, **options)

    monkeypatch.setattr(NoiseSource, "pool", drawn)
    monkeypatch.setattr(book.ledger, "append", refused)
    rows: Rows[Any] = Rows.seal(np.ones((4, 1)), users=USERS)
    with pytest.raises(LedgerError, match="disk"):
        mechanism.release(rows, token)
    assert events == [], "no charge, no noise"
    monkeypatch.setattr(book.ledger, "append", written)
    mechanism.release(rows, token)
    assert events == ["spend", "noise", "retire"]


def test_budget_arithmetic_is_exact() -> None:
    assert 0.1 + 0.1 + 0.1 != 0.3
    assert ZCDP(0.1) + ZCDP(0.1) + ZCDP(0.1) == ZCDP(0.3)
    assert (LaplaceLoss(0.1) * 3).pure() == Fraction(3, 10)
    book = account(PureDP(0.3))
    for _ in range(3):
        book.issue(PureDP(0.1), users=USERS, label="tenth")
    assert book.spent() == PureDP("0.3")
