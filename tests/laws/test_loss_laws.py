"""Composition of losses: order does not matter, nothing ever gets cheaper."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import add

from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants.guarantee import delta_of, epsilon_of, rho_of
from privlearn.losses import (
    BoundedRangeLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    RenyiCurve,
    compose,
    loss_from_dict,
)

NUMBERS = st.fractions(min_value=Fraction(1, 1000), max_value=5, max_denominator=1000)
CURVES = st.tuples(NUMBERS, NUMBERS).map(lambda e: RenyiCurve({2: min(e), 40: max(e)}))
SINGLE: st.SearchStrategy[Loss] = st.one_of(
    NUMBERS.map(GaussianLoss), NUMBERS.map(LaplaceLoss), NUMBERS.map(BoundedRangeLoss), CURVES
)
PARTS = st.lists(st.tuples(SINGLE, st.integers(1, 20)), min_size=1, max_size=4)
ORDER = st.floats(1.01, 40)


def _values(loss: Loss, order: float) -> list[float]:
    prices = [loss.zcdp(), loss.pure(), loss.gaussian()]
    return [loss.renyi(order), *(math.inf if p is None else float(p) for p in prices)]


@given(PARTS, ORDER)
def test_composition_is_the_sum_in_any_order(parts: list[tuple[Loss, int]], order: float) -> None:
    forward, backward = compose(parts), compose(parts[::-1])
    one_by_one = reduce(add, [loss for loss, count in parts for _ in range(count)])
    nested = reduce(add, [loss * count for loss, count in parts])
    expected = [
        sum(column)
        for column in zip(
            *[[v * n for v in _values(loss, order)] for loss, n in parts], strict=True
        )
    ]
    for found in (forward, backward, one_by_one, nested):
        for value, want in zip(_values(found, order), expected, strict=True):
            assert value == want or math.isclose(value, want, rel_tol=1e-12)


@given(PARTS)
def test_equal_compositions_are_equal_values(parts: list[tuple[Loss, int]]) -> None:
    """A plan names a loss, a spend the same parts in another order: one loss."""
    assert compose(parts) == compose(parts[::-1])
    assert hash(compose(parts)) == hash(compose(parts[::-1]))


@given(PARTS)
def test_compositions_survive_json(parts: list[tuple[Loss, int]]) -> None:
    loss = compose(parts)
    assert loss_from_dict(loss.to_dict()) == loss


@given(SINGLE, ORDER, ORDER)
def test_curves_never_fall_in_the_order(loss: Loss, first: float, second: float) -> None:
    low, high = sorted([first, second])
    assert loss.renyi(low) <= loss.renyi(high) * (1 + 1e-9) + 1e-12


@given(SINGLE, ORDER)
def test_bounds_of_one_loss_agree_with_each_other(loss: Loss, order: float) -> None:
    curve, rho, pure, mass = loss.renyi(order), loss.zcdp(), loss.pure(), loss.gaussian()
    if pure is not None:
        assert curve <= float(pure) * (1 + 1e-12)
        assert rho is not None
        assert rho <= pure**2 / 2
    if rho is not None:
        assert curve <= order * float(rho) * (1 + 1e-12)
    if mass is not None:
        assert rho == mass / 2


@given(PARTS, SINGLE, st.sampled_from([1e-3, 1e-6, 1e-10]))
def test_a_further_spend_never_lowers_epsilon_or_delta(
    parts: list[tuple[Loss, int]], more: Loss, delta: float
) -> None:
    before, after = compose(parts), compose([*parts, (more, 1)])
    # An upper bound may be off by its own error bound, but never the other way round by more.
    low, high = epsilon_of(before, delta), epsilon_of(after, delta)
    assert high.value >= low.value - low.error_bound - 1e-9 * low.value
    assert delta_of(after, 1.0).value >= delta_of(before, 1.0).value * (1 - 1e-9)
    rho = rho_of(before)
    if rho is not None and rho > 0:
        assert high.value > 0
