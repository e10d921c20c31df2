"""Budgets: the order and the arithmetic that accountants rely on."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

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
from privlearn.values.exact import float_up, round_up

AMOUNTS = st.fractions(min_value=0, max_value=100, max_denominator=10**6)
ORDERS = (Fraction(3, 2), Fraction(2), Fraction(64))


def _same_currency(count: int) -> st.SearchStrategy[tuple[Currency, ...]]:
    def of(make: st.SearchStrategy[Currency]) -> st.SearchStrategy[tuple[Currency, ...]]:
        return st.tuples(*[make] * count)

    renyi = st.tuples(AMOUNTS, AMOUNTS, AMOUNTS).map(
        lambda e: Renyi(dict(zip(ORDERS, e, strict=True)))
    )
    return st.one_of(
        of(AMOUNTS.map(PureDP)),
        of(AMOUNTS.map(ZCDP)),
        of(AMOUNTS.map(GaussianDP.from_mu_squared)),
        of(renyi),
    )


@given(_same_currency(3))
def test_covers_is_a_partial_order(budgets: tuple[Currency, ...]) -> None:
    a, b, c = budgets
    assert a.covers(a)
    assert not (a.covers(b) and b.covers(a)) or a == b
    assert not (a.covers(b) and b.covers(c)) or a.covers(c)
    assert (a == b) == (a.to_dict() == b.to_dict())


@given(_same_currency(3))
def test_adding_keeps_the_order_and_can_be_taken_back(budgets: tuple[Currency, ...]) -> None:
    a, b, c = budgets
    assert (a + b) - b == a
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + a.zero() == a
    assert (a + b).covers(a)
    assert a.covers(b) == (a + c).covers(b + c)
    assert a.covers(a.zero())


@given(_same_currency(1), st.integers(0, 40))
def test_times_n_is_n_fold_addition(budgets: tuple[Currency, ...], count: int) -> None:
    (a,) = budgets
    total = a.zero()
    for _ in range(count):
        total = total + a
    assert a * count == count * a == total


@given(_same_currency(1), st.fractions(0, 1), st.fractions(0, 1))
def test_shares_add_up_and_grow(
    budgets: tuple[Currency, ...], first: Fraction, second: Fraction
) -> None:
    (a,) = budgets
    small, large = sorted([first, second])
    assert a.share(large).covers(a.share(small))
    assert a.share(first) + a.share(1 - first) == a


@given(
    st.one_of(
        _same_currency(1).map(lambda one: one[0]),
        st.builds(ApproxDP, AMOUNTS, st.fractions("1e-9", "0.999")),
    )
)
def test_json_keeps_every_digit(budget: Budget) -> None:
    assert budget_from_dict(budget.to_dict()) == budget


@given(st.fractions(min_value=0, max_value=10**40), st.integers(1, 20))
def test_rounding_up_is_up_by_less_than_one_last_digit(value: Fraction, digits: int) -> None:
    rounded = round_up(value, digits)
    assert value <= rounded <= value * (1 + Fraction(10) ** (1 - digits))
    assert round_up(rounded, digits) == rounded
    assert Fraction(float_up(value)) >= value
