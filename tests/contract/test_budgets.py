"""Budgets: exact numbers in, exact comparisons, clear refusals."""

from __future__ import annotations

import copy
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any

import pytest

from privlearn.errors import CurrencyError
from privlearn.losses import GaussianLoss, LaplaceLoss, RenyiCurve, ZCDPLoss, gaussian_loss
from privlearn.losses.budgets import (
    ZCDP,
    ApproxDP,
    Budget,
    Currency,
    GaussianDP,
    PureDP,
    Renyi,
    budget_from_dict,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact, exact_text, float_up, round_up

ALL: list[Budget] = [
    PureDP("1/3"),
    ZCDP("0.1"),
    GaussianDP(2),
    Renyi({"1.5": "0.1", 2: "1/7", 32: 3}),
    ApproxDP(1, "1e-6"),
]
CURRENCIES = [budget for budget in ALL if isinstance(budget, Currency)]


@pytest.mark.parametrize("written", ["0.1", 0.1, Fraction(1, 10), Decimal("0.1"), "1/10"])
def test_a_tenth_is_a_tenth_however_it_is_written(written: Any) -> None:
    assert ZCDP(written).rho == Fraction(1, 10)


def test_two_hundred_two_hundredths_are_one_which_floats_do_not_give() -> None:
    assert ZCDP("1/200") * 200 == ZCDP(1)
    assert reduce(add, [1 / 200] * 200) != 1.0  # from Python 3.12 on, sum() corrects itself


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, "nan", "inf", "a tenth", Decimal("NaN"), "1/0"]
)
@pytest.mark.parametrize("make", [PureDP, ZCDP, GaussianDP, GaussianDP.from_mu_squared])
def test_numbers_that_are_not_finite_are_refused(make: Any, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"must be a finite number|must not divide by zero"):
        make(bad)


@pytest.mark.parametrize("bad", [-1, -0.001, "-1/3", Fraction(-1, 2)])
@pytest.mark.parametrize("make", [PureDP, ZCDP, GaussianDP, GaussianDP.from_mu_squared])
def test_negative_budgets_are_refused(make: Any, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"must be >= 0"):
        make(bad)


@pytest.mark.parametrize("bad", [True, None, 1j, [1], b"1"])
def test_things_that_are_not_numbers_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"rho = .*must be a number"):
        ZCDP(bad)


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5])
def test_delta_lies_strictly_between_zero_and_one(delta: float) -> None:
    with pytest.raises(ValueError, match="must lie strictly between 0 and 1"):
        ApproxDP(1, delta)


def test_renyi_orders_lie_above_one_and_are_named_once() -> None:
    with pytest.raises(ValueError, match="needs at least one order, all > 1"):
        Renyi({1: 1})
    with pytest.raises(ValueError, match="needs at least one order, all > 1"):
        Renyi({})
    with pytest.raises(ValueError, match="names an order twice"):
        Renyi({2: 1, "2": 1})
    with pytest.raises(ValueError, match="must be >= 0"):
        Renyi({2: -1})


@pytest.mark.parametrize("budget", ALL, ids=repr)
def test_budgets_are_immutable_values(budget: Budget) -> None:
    with pytest.raises(AttributeError, match="budgets are immutable"):
        budget.amounts = (Fraction(100),)
    twin = budget_from_dict(budget.to_dict())
    assert twin == budget
    assert hash(twin) == hash(budget)
    assert eval(repr(budget)) == budget
    assert pickle.loads(pickle.dumps(budget)) == budget == copy.deepcopy(budget)


@pytest.mark.parametrize("a", ALL, ids=repr)
@pytest.mark.parametrize("b", ALL, ids=repr)
def test_different_currencies_are_never_compared_or_added(a: Any, b: Any) -> None:
    if type(a) is type(b):
        assert a.covers(b)
        return
    assert a != b
    for act in ("covers", "__add__", "__sub__"):
        if hasattr(a, act):
            with pytest.raises(CurrencyError, match="different budgets"):
                getattr(a, act)(b)


def test_renyi_budgets_of_different_orders_are_not_compared() -> None:
    with pytest.raises(CurrencyError, match="different orders"):
        Renyi({2: 1}).covers(Renyi({3: 1}))
    assert Renyi({2: 1}) != Renyi({3: 1})


@pytest.mark.parametrize("budget", CURRENCIES, ids=repr)
def test_a_share_is_exact_and_never_more_than_the_whole(budget: Currency) -> None:
    third = budget.share("1/3")
    assert third + third + third == budget
    assert budget.share(1) == budget
    assert budget.share(0).is_zero
    for bad in (-0.1, 1.1, "4/3"):
        with pytest.raises(ValueError, match=r"part = .*must lie between 0 and 1"):
            budget.share(bad)


@pytest.mark.parametrize("budget", CURRENCIES, ids=repr)
def test_nothing_can_be_taken_that_is_not_there(budget: Currency) -> None:
    assert (budget - budget).is_zero
    with pytest.raises(ValueError, match="cannot take"):
        budget - (budget + budget.share("0.001"))
    for bad in (-1, 1.5, True):
        with pytest.raises(ValueError, match="must be an integer >= 0"):
            budget * bad  # type: ignore[operator]


def test_exact_text_is_read_back_exactly() -> None:
    for value in (
        Fraction(1, 3),
        Fraction(5, 2**70),
        Fraction(-7, 8),
        Fraction(10**30),
        Fraction(0),
    ):
        assert exact("value", exact_text(value)) == value


def test_rounding_up_never_falls_below_and_stays_close() -> None:
    for value in (
        Fraction(1, 3),
        Fraction(10**12),
        Fraction(999999999999999, 10**15),
        Fraction(1, 7**99),
    ):
        rounded = round_up(value)
        assert value <= rounded <= value * (1 + Fraction(1, 10**11))
        assert Fraction(float_up(value)) >= value
    assert round_up(Fraction(1, 8)) == Fraction(1, 8)


def test_unknown_or_incomplete_budgets_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="budget kind 'promise'"):
        budget_from_dict({"kind": "promise"})
    with pytest.raises(ValueError, match="lacks 'rho'"):
        budget_from_dict({"kind": "zcdp"})


def test_prices_follow_the_currency() -> None:
    gauss = GaussianLoss("0.5")
    assert ZCDP(1).price(gauss) == ZCDP("0.25")
    assert GaussianDP(1).price(gauss) == GaussianDP.from_mu_squared("0.5")
    assert PureDP(1).price(LaplaceLoss("0.5")) == PureDP("0.5")
    assert Renyi({2: 1, 8: 9}).price(gauss) == Renyi({2: "0.5", 8: 2})
    with pytest.raises(CurrencyError, match="not pure-DP"):
        PureDP(1).price(gauss)
    with pytest.raises(CurrencyError, match="not dominated by a Gaussian"):
        GaussianDP(1).price(ZCDPLoss(1))
    with pytest.raises(CurrencyError, match="no zCDP constant"):
        ZCDP(1).price(RenyiCurve({2: 1}))
    with pytest.raises(CurrencyError, match="infinite at order 8"):
        Renyi({2: 1, 8: 9}).price(RenyiCurve({2: 1}))


@pytest.mark.parametrize("order", ["1.1", "1.7", "4/3", "5/3", 2, "100.1"])
def test_a_curve_has_its_own_price_at_its_own_orders(order: str | int) -> None:
    assert Renyi({order: 1}).price(RenyiCurve({order: "0.5"})) == Renyi({order: "0.5"})


@pytest.mark.parametrize(
    "budget",
    [ZCDP("1/3"), GaussianDP("0.7"), Renyi({2: "0.1", "1.1": "0.06"}), Renyi({"5/3": "1/7"})],
)
def test_a_gaussian_of_the_largest_mass_fits_its_budget(budget: Currency) -> None:
    mass = budget.gaussian_mass()
    assert budget.covers(budget.price(GaussianLoss(mass)))
    assert not budget.covers(budget.price(GaussianLoss(mass * (1 + Fraction(1, 10**9)))))


def test_pure_budgets_have_no_gaussian_mass() -> None:
    with pytest.raises(CurrencyError, match="no finite price in PureDP"):
        PureDP(1).gaussian_mass()


def test_a_replaced_row_costs_four_times_a_zeroed_one() -> None:
    whole = gaussian_loss(2.0, 1.0, Adjacency.REPLACE_ONE)
    half = gaussian_loss(1.0, 1.0, Adjacency.ZERO_OUT)
    assert whole.zcdp() == 4 * half.zcdp()
