"""The sparse vector technique: its exact law, its price, and twins that break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP
from privlearn.mechanisms import AboveThreshold
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency

Vector = NDArray[np.float64]
_EDGES = np.linspace(0, 60, 60_001)
_NOISE = (_EDGES[1:] + _EDGES[:-1]) / 2
_PAIRS = [
    ([0, 0, 0], [1, 1, -1]),
    ([3, 1, 2], [2, 2, 1]),
    ([0, 0, 9], [-1, -1, 10]),
    ([5], [4]),
    ([0, 1], [1, 0]),
]


def law(queries: Any, scale: float, threshold_scale: float) -> Vector:
    """Of the answer, the threshold being 0, by an integral over its noise."""
    weights = np.diff(-np.exp(-_EDGES / threshold_scale))
    weights /= weights.sum()

    def below(q: float) -> Vector:
        return -np.expm1(-np.maximum(_NOISE - q, 0) / scale)

    left, found = weights, []
    for q in queries:
        found.append((left * (1 - below(q))).sum())
        left = left * below(q)
    return np.array([*found, left.sum()])


def shared_noise(queries: Any, scale: float, threshold_scale: float) -> Vector:
    """The twin with one draw for all queries: it says which sum is the first above a level."""
    level = np.subtract.outer(np.linspace(0, 30, 301), np.linspace(0, 30, 301))
    each = np.exp(-np.linspace(0, 30, 301))
    weights = np.outer(each, each) / each.sum() ** 2
    above = [q + scale * level >= 0 for q in queries]
    left, found = np.ones_like(weights, dtype=bool), []
    for one in above:
        found.append(weights[left & one].sum())
        left &= ~one
    return np.array([*found, weights[left].sum()])


def worst(of: Callable[..., Vector], *scales: float) -> float:
    ratios = []
    for one, other in _PAIRS:
        p, q = of(one, *scales), of(other, *scales)
        with np.errstate(all="ignore"):
            ratios += list(np.abs(np.log(p / q))[(p > 1e-9) | (q > 1e-9)])
    return float(max(ratios))


def test_no_changed_record_moves_the_law_by_more_than_the_price() -> None:
    mechanism = AboveThreshold(3, 0.0, 3.0, 2.0)
    epsilon = float(mechanism.loss().pure() or 0)
    assert epsilon == pytest.approx(1 / 2 + 2 / 3)
    found = worst(law, mechanism.scale, mechanism.threshold_scale)
    assert 0.8 * epsilon < found <= epsilon * (1 + 1e-5)


def test_the_price_of_one_that_only_falls_does_not_hold_where_sums_go_both_ways() -> None:
    removed = AboveThreshold(3, 0.0, 3.0, 2.0, Adjacency.ZERO_OUT)
    assert worst(law, removed.scale, removed.threshold_scale) > float(removed.loss().pure() or 0)
    falling = [([2, 1, 2], [1, 0, 1]), ([2, 2], [2, 1]), ([0, 4], [0, 3])]
    for one, other in falling:
        moved = np.abs(np.log(law(one, 3.0, 2.0) / law(other, 3.0, 2.0)))
        assert moved.max() <= float(removed.loss().pure() or 0) * (1 + 1e-5)


def test_one_draw_for_all_queries_breaks_it() -> None:
    price = float(AboveThreshold(3, 0.0, 3.0, 2.0).loss().pure() or 0)
    assert worst(shared_noise, 3.0, 2.0) > 5 * price


def test_the_program_has_the_law_of_the_integral() -> None:
    mechanism, draws = AboveThreshold(3, 0.0, 1.0, 1.5), 1000
    pool = NoiseSource.simulation(3).pool()
    step = 1 / mechanism.grid.step
    totals = np.array([int(q * step) for q in (-1, 0, 0.5)], dtype=np.int64)
    seen = np.zeros(4)
    for _ in range(draws):
        seen[mechanism.first_above(totals, pool.variates("exponential", 4))] += 1
    edge = mechanism.scale - mechanism.threshold_scale
    expected = law(np.array([-1, 0, 0.5]) - edge, 1.0, 1.5) * draws
    assert (np.square(seen - expected) / expected).sum() < 16.3  # of 3 degrees, once in a thousand


class _Bits:
    """Noise of given numbers, of which one more bit decides at a time."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = numbers

    def refined(self, i: int, bits: int) -> int:
        return int(np.floor(self._numbers[i] * 2.0**bits))


def test_comparisons_are_of_real_numbers() -> None:
    mechanism = AboveThreshold(1, 0.0, 1.0, 1.0)
    zero, near = np.array([0]), 2.0**-45
    assert mechanism.first_above(zero, _Bits(1.0, 1.0 + near)) == 0  # type: ignore[arg-type]
    assert mechanism.first_above(zero, _Bits(1.0 + near, 1.0)) == 1  # type: ignore[arg-type]


def test_calibrated_noise_takes_the_budget_and_finds_the_first_large_sum() -> None:
    budgets: list[Currency] = [PureDP(1), ZCDP("0.4"), GaussianDP(1)]
    for budget in budgets:
        made = AboveThreshold.calibrated(4, 50.0, budget)
        price = budget.price(made.loss())
        assert budget.covers(price)
        assert not budget.share("0.9999").covers(price)
    made = AboveThreshold.calibrated(4, 50.0, PureDP(1))
    data = np.tile([0.0, 0.1, 1.0, 1.0], (100, 1))
    data[7] = np.nan
    book = CentralAccountant(PureDP(1), users=range(100), noise=NoiseSource.simulation(0))
    token = book.issue(made.loss(), users=range(100), label="first")
    assert made.release(Rows.seal(data, users=range(100)), token).value.tolist() == [2]
