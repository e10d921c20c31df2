"""The assortment optimiser against brute force over all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.learners import assortment
from privlearn.learners.assortment import ascending, best_assortments, largest_utilities
from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array


def value(utilities: Array, revenues: Array, items: Items) -> float:
    """Expected revenue of one offer, scaled so that no utility overflows."""
    chosen = [int(i) for i in items if i != NO_ITEM]
    if not chosen:
        return 0.0
    top = max(0.0, float(utilities[chosen].max()))
    weights = np.exp(utilities[chosen] - top)
    return float(weights @ revenues[chosen] / (np.exp(-top) + weights.sum()))


def brute_force(utilities: Array, revenues: Array, max_items: int) -> float:
    """The best value over every subset of at most K items, the empty one included."""
    subsets = [
        np.array(subset, dtype=np.int64)
        for size in range(max_items + 1)
        for subset in combinations(range(len(utilities)), size)
    ]
    return max(value(utilities, revenues, subset) for subset in subsets)


def assert_legal(items: Items, n_items: int, max_items: int) -> None:
    assert items.shape[1] == max_items
    for row in items:
        used = row[row != NO_ITEM]
        assert (row[len(used) :] == NO_ITEM).all(), "unused places come last"
        assert (np.diff(used) > 0).all(), "ascending, hence no item twice"
        assert ((used >= 0) & (used < n_items)).all()


@given(
    seed=st.integers(0, 10_000),
    n_items=st.integers(1, 8),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    share_negative=st.sampled_from([0.0, 0.3, 0.9]),
    data=st.data(),
)
def test_the_optimum_is_that_of_brute_force(
    seed: int, n_items: int, spread: float, share_negative: float, data: st.DataObject
) -> None:
    max_items = data.draw(st.integers(1, n_items))
    rng = np.random.default_rng(seed)
    utilities = spread * rng.normal(size=(4, n_items))
    signs = np.where(rng.random((4, n_items)) < share_negative, -1.0, 1.0)
    revenues = signs * rng.random((4, n_items))
    items = best_assortments(utilities, revenues, max_items)
    assert_legal(items, n_items, max_items)
    for z, r, row in zip(utilities, revenues, items, strict=True):
        assert value(z, r, row) == pytest.approx(brute_force(z, r, max_items), rel=1e-12, abs=1e-15)


@given(seed=st.integers(0, 10_000), n_items=st.integers(2, 7), data=st.data())
def test_ties_in_utility_and_revenue_cost_nothing(
    seed: int, n_items: int, data: st.DataObject
) -> None:
    max_items = data.draw(st.integers(1, n_items))
    rng = np.random.default_rng(seed)
    utilities = rng.integers(-1, 2, size=(3, n_items)).astype(float)
    revenues = rng.integers(-1, 3, size=(3, n_items)) / 2.0
    items = best_assortments(utilities, revenues, max_items)
    assert_legal(items, n_items, max_items)
    for z, r, row in zip(utilities, revenues, items, strict=True):
        assert value(z, r, row) == pytest.approx(brute_force(z, r, max_items), rel=1e-12, abs=1e-15)


@given(seed=st.integers(0, 10_000), max_items=st.integers(1, 6))
def test_utilities_of_a_thousand_neither_overflow_nor_mislead(seed: int, max_items: int) -> None:
    rng = np.random.default_rng(seed)
    utilities = rng.choice([-1e3, -1.0, 0.0, 1.0, 1e3], size=(3, 6))
    revenues = rng.random((3, 6)) - 0.2
    items = best_assortments(utilities, revenues, max_items)
    assert_legal(items, 6, max_items)
    for z, r, row in zip(utilities, revenues, items, strict=True):
        assert value(z, r, row) == pytest.approx(brute_force(z, r, max_items), abs=1e-12)


@pytest.mark.parametrize("max_items", [1, 3, 5])
def test_if_every_sale_loses_money_nothing_is_offered(max_items: int) -> None:
    utilities = np.random.default_rng(0).normal(size=(2, 5))
    for revenues in (np.full((2, 5), -1.0), np.zeros((2, 5))):
        items = best_assortments(utilities, revenues, max_items)
        assert (items == NO_ITEM).all()


def test_one_row_that_offers_nothing_leaves_the_others_alone() -> None:
    utilities = np.zeros((3, 4))
    revenues = np.array([[1.0, 2, 3, 4], [-1, -1, -1, -1], [4, 3, 2, 1]])
    items = best_assortments(utilities, revenues, 1)
    assert items.ravel().tolist() == [3, NO_ITEM, 0]


@given(seed=st.integers(0, 10_000), n_items=st.integers(1, 9), data=st.data())
def test_equal_revenues_mean_the_largest_utilities(
    seed: int, n_items: int, data: st.DataObject
) -> None:
    max_items = data.draw(st.integers(1, n_items))
    utilities = 3 * np.random.default_rng(seed).normal(size=(5, n_items))
    short_cut = largest_utilities(utilities, max_items)
    expected = np.sort(np.argsort(-utilities, axis=1)[:, :max_items], axis=1)
    assert np.array_equal(short_cut, expected)
    revenues = np.full((5, n_items), 0.7)
    assert np.array_equal(best_assortments(utilities, revenues, max_items), expected)


@given(seed=st.integers(0, 10_000), n_items=st.integers(1, 12), data=st.data())
def test_a_batch_is_its_rows_one_by_one(seed: int, n_items: int, data: st.DataObject) -> None:
    max_items = data.draw(st.integers(1, n_items))
    rng = np.random.default_rng(seed)
    utilities = rng.choice([rng.normal(), 0.0, 1.0], size=(9, n_items))
    revenues = rng.normal(size=(9, n_items))
    batch = best_assortments(utilities, revenues, max_items)
    single = [
        best_assortments(utilities[i : i + 1], revenues[i : i + 1], max_items)[0] for i in range(9)
    ]
    assert np.array_equal(batch, np.array(single))


@given(seed=st.integers(0, 10_000), n_items=st.integers(1, 8), data=st.data())
def test_wide_catalogues_are_solved_as_narrow_ones(
    seed: int, n_items: int, data: st.DataObject
) -> None:
    """Rows with many items are solved one by one; here that path runs on few."""
    max_items = data.draw(st.integers(1, n_items))
    rng = np.random.default_rng(seed)
    utilities = rng.choice([1e3, -1e3, 0.0, *rng.normal(size=4)], size=(4, n_items))
    revenues = rng.choice([0.5, -0.5, 0.0, *rng.normal(size=4)], size=(4, n_items))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assortment, "_WIDE", 0)
        items = best_assortments(utilities, revenues, max_items)
    assert_legal(items, n_items, max_items)
    for z, r, row in zip(utilities, revenues, items, strict=True):
        assert value(z, r, row) == pytest.approx(brute_force(z, r, max_items), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("max_items", [1, 10, 1_200])
def test_a_catalogue_of_1200_items_has_the_optimum_of_both_paths(max_items: int) -> None:
    rng = np.random.default_rng(1)
    utilities, revenues = rng.normal(size=(2, 5, 1_200))
    revenues[0] = -1.0
    wide = best_assortments(utilities, revenues, max_items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assortment, "_WIDE", 10**9)
        assert np.array_equal(best_assortments(utilities, revenues, max_items), wide)
    assert (wide[0] == NO_ITEM).all()


def test_k_must_lie_between_one_and_the_number_of_items() -> None:
    block = np.zeros((2, 3))
    with pytest.raises(ValueError, match="max_items = 4: must be at most the 3 items"):
        best_assortments(block, block, 4)
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"max_items = {bad}: must be an integer >= 1"):
            best_assortments(block, block, bad)
    with pytest.raises(TypeError, match="must be an integer"):
        best_assortments(block, block, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="revenues of shape"):
        best_assortments(block, np.zeros((2, 4)), 1)


def test_no_rows_give_no_offers() -> None:
    nothing = np.zeros((0, 4))
    assert best_assortments(nothing, nothing, 2).shape == (0, 2)
    assert largest_utilities(nothing, 2).shape == (0, 2)


def test_ascending_puts_unused_places_last() -> None:
    rows = np.array([[3, NO_ITEM, 1], [NO_ITEM, NO_ITEM, NO_ITEM], [2, 0, 1]])
    assert ascending(rows).tolist() == [[1, 3, NO_ITEM], [NO_ITEM] * 3, [0, 1, 2]]
