"""Private quantiles: their exact law on small tables, and what it costs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.errors import AdjacencyError
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP
from privlearn.losses.conversion import gaussian_delta
from privlearn.mechanisms import ReportQuantiles
from privlearn.mechanisms.quantiles import _round_loss, mass_of_range, missed_ranks, rounds_of
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency

CELLS = 4
QUARTILES = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
TAILS = (Fraction(1, 20), Fraction(1, 2), Fraction(19, 20))
Law = dict[tuple[int, ...], float]


class _Told:
    """Says which cell is picked, and remembers with which probability it is."""

    def __init__(self, scale: float, picks: tuple[int, ...]) -> None:
        self._scale, self._picks, self.probability = scale, list(picks), 1.0

    def pick(self, held: NDArray[np.int64], q: Fraction) -> int:
        place = self._picks.pop(0)
        if place >= len(held) - 1:
            self.probability = 0.0
            return 0
        weights = np.exp(-missed_ranks(held, q) / q.denominator / self._scale)
        self.probability *= float(weights[place] / weights.sum())
        return place


def law_of(mechanism: ReportQuantiles, values: list[int | None]) -> Law:
    """Every outcome with its probability, by the code that makes the picks."""
    counts = np.zeros(CELLS + 1, dtype=np.int64)
    there = [value for value in values if value is not None]
    counts[1:] = np.bincount(there, minlength=CELLS).cumsum()
    found: Law = {}
    number = len(mechanism.probabilities)
    for picks in itertools.product(range(CELLS), repeat=number):
        told = _Told(mechanism.scale, picks)
        made = ReportQuantiles._picks(_Through(mechanism, told), None, counts)  # type: ignore[arg-type]
        if told.probability:
            found[tuple(made)] = found.get(tuple(made), 0.0) + told.probability
    assert sum(found.values()) == pytest.approx(1)
    return found


class _Through:
    def __init__(self, mechanism: ReportQuantiles, told: _Told) -> None:
        self.probabilities, self.cells, self._told = mechanism.probabilities, mechanism.cells, told

    def _pick(self, _: Any, held: NDArray[np.int64], q: Fraction) -> int:
        return self._told.pick(held, q)


def ratios(one: Law, other: Law) -> NDArray[np.float64]:
    return np.array([np.log(one[key] / other[key]) for key in one])


@pytest.mark.parametrize("probabilities", [(Fraction(1, 2),), (Fraction(1, 5),), QUARTILES, TAILS])
def test_no_replaced_value_moves_the_law_by_more_than_the_price(
    probabilities: tuple[Fraction, ...],
) -> None:
    mechanism = ReportQuantiles(probabilities, 1.5, CELLS)
    price = mechanism.loss()
    epsilon, worst = float(price.pure() or 0), 0.0
    rho = float(price.zcdp() or 0)
    gaussian = ReportQuantiles(probabilities, 1.5, CELLS, as_gaussian=True).loss().gaussian()
    assert gaussian is not None
    tables = itertools.combinations_with_replacement([None, *range(CELLS)], 3)
    laws = {table: law_of(mechanism, list(table)) for table in tables}
    for one, other in itertools.permutations(laws, 2):
        if sum((np.array(_signs(one)) - np.array(_signs(other))).clip(0)) > 1:
            continue
        moved = ratios(laws[one], laws[other])
        single = len(rounds_of(probabilities)) == 1
        worst = max(worst, float(np.ptp(moved) if single else np.abs(moved).max()))
        p = np.array(list(laws[one].values()))
        assert float(p @ moved) <= rho + 1e-12  # the divergence of order 1
        for level in (0.0, 0.1, 0.5):
            delta = float(np.maximum(p - np.exp(level) * p / np.exp(moved), 0).sum())
            assert delta <= gaussian_delta(float(gaussian), level).value + 1e-12
    assert 0.3 * epsilon < worst <= epsilon + 1e-12


def _signs(table: tuple[int | None, ...]) -> list[int]:
    return [table.count(value) for value in (None, *range(CELLS))]


def test_at_half_the_noise_the_price_would_not_hold() -> None:
    mechanism, cheaper = (ReportQuantiles((Fraction(1, 2),), s, CELLS) for s in (1.0, 2.0))
    moved = ratios(law_of(mechanism, [0, 0, 0]), law_of(mechanism, [0, 0, 3]))
    moved = np.append(moved, ratios(law_of(mechanism, [0, 3, 3]), law_of(mechanism, [0, 0, 3])))
    assert np.ptp(moved) > float(cheaper.loss().pure() or 0)


def test_values_that_a_pick_divides_may_not_count_on_both_sides() -> None:
    """The twin that asks each of seven probabilities about all values costs more than the price."""
    sevens = tuple(Fraction(i, 8) for i in range(1, 8))
    price = float(ReportQuantiles(sevens, 1.5, CELLS).loss().pure() or 0)

    def logs(values: list[int], q: Fraction) -> NDArray[np.float64]:
        held = np.concatenate([[0], np.bincount(values, minlength=CELLS).cumsum()])
        scores = -missed_ranks(held, q) / q.denominator / 1.5
        return np.asarray(scores - np.log(np.exp(scores).sum()))

    one, other = [0] * 40 + [3] * 40, [0] * 39 + [1] + [3] * 40
    assert sum(np.abs(logs(one, q) - logs(other, q)).max() for q in sevens) > price


@pytest.mark.parametrize(
    ("probabilities", "groups", "q", "other"),
    [
        ((Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)), 1, Fraction(1, 5), Fraction(4, 5)),
        ((Fraction(1, 10),), 2, Fraction(1, 10), Fraction(1, 10)),
    ],
)
def test_a_value_that_goes_from_one_part_to_another_moves_both_picks(
    probabilities: tuple[Fraction, ...], groups: int, q: Fraction, other: Fraction
) -> None:
    """Two parts of one round, or the same part of two groups: one value leaves, one comes."""
    scale, parts = 1.5, rounds_of(probabilities)[-1]
    assert {part.within for part in parts} == {q, other}

    def moved(q: Fraction) -> float:
        cells = [1, 0, 28, 1] if q < Fraction(1, 2) else [1, 28, 0, 1]
        fewer = [0, 0, 28, 1] if q < Fraction(1, 2) else [1, 28, 0, 0]
        one, two = (np.concatenate([[0], np.cumsum(held)]) for held in (cells, fewer))
        return float(np.ptp(missed_ranks(one, q) - missed_ranks(two, q))) / q.denominator / scale

    prices = [
        _round_loss(parts, scale, groups, Adjacency.REPLACE_ONE, gaussian)
        for gaussian in (False, True)
    ]
    both = Fraction(moved(q)) + Fraction(moved(other))
    assert both == pytest.approx(float(prices[0].pure() or 0))
    masses = mass_of_range(Fraction(moved(q))) + mass_of_range(Fraction(moved(other)))
    assert float(prices[1].gaussian() or 0) >= float(masses) * (1 - 1e-12)
    odds = [eta / math.expm1(eta) for eta in (moved(q), moved(other))]
    rho = sum(ratio - 1 - math.log(ratio) for ratio in odds)  # of two bounded ranges
    assert float(prices[0].zcdp() or 0) == pytest.approx(rho)


@pytest.mark.parametrize("eta", ["0.01", "0.5", "3"])
def test_a_bounded_range_is_no_worse_than_its_gaussian_mass(eta: str) -> None:
    range_of, mass = float(Fraction(eta)), float(mass_of_range(Fraction(eta)))
    for t in np.linspace(0, range_of, 41)[1:-1]:
        q = np.expm1(range_of - t) / np.expm1(range_of)  # of the loss t, under the second law
        for level in np.linspace(0, range_of, 11):
            high, low = (
                q * (np.exp(t) - np.exp(level)),
                (1 - q) * (np.exp(t - range_of) - np.exp(level)),
            )
            delta = max(high, 0) + max(low, 0)
            assert delta <= gaussian_delta(mass, float(level)).value * (1 + 1e-9) + 1e-15
    t, q = range_of / 2, np.expm1(range_of / 2) / np.expm1(range_of)
    assert q * (np.exp(t) - 1) > gaussian_delta(0.98 * mass, 0.0).value


@pytest.mark.parametrize("budget", [PureDP(1), ZCDP("0.1"), GaussianDP("0.4")])
def test_calibrated_noise_takes_the_budget_and_no_more(budget: Currency) -> None:
    for groups in (1, 3):
        made = ReportQuantiles.calibrated(TAILS, budget, groups=groups)
        price = budget.price(made.loss())
        assert budget.covers(price)
        assert not budget.share("0.9999").covers(price)


def test_each_part_is_asked_once_and_halves_are_asked_in_one_round() -> None:
    sevens = tuple(Fraction(i, 8) for i in range(1, 8))
    assert [len(parts) for parts in rounds_of(sevens)] == [1, 2, 4]
    assert {part.within for parts in rounds_of(sevens) for part in parts} == {Fraction(1, 2)}
    removed = ReportQuantiles(sevens, 1.0, adjacency=Adjacency.ZERO_OUT).loss().pure()
    assert ReportQuantiles(sevens, 1.0).loss().pure() == 6
    assert removed == 3


def test_quantiles_of_groups_are_near_those_of_their_values() -> None:
    rng, n = np.random.default_rng(1), 3000
    values, group = rng.uniform(-1, 1, n), np.arange(n) % 2
    values[group == 1] = values[group == 1] / 4 + 0.5
    values[::7] = np.nan  # no value of its own, and counted nowhere
    mechanism = ReportQuantiles(QUARTILES, 2.0, 2**12, groups=2)
    book = CentralAccountant(ZCDP("100"), users=range(n), noise=NoiseSource.simulation(5))
    token = book.issue(mechanism.loss(), users=range(n), label="q")
    rows = Rows.seal((values[:, None], group.astype(float)), users=range(n))
    found = mechanism.values(mechanism.release(rows, token).value)
    for number in (0, 1):
        own = values[(group == number) & ~np.isnan(values)]
        ranks = [(own <= place).mean() for place in found[number]]
        assert ranks == pytest.approx([0.25, 0.5, 0.75], abs=0.03)


def test_indices_of_others_may_not_shift() -> None:
    with pytest.raises(AdjacencyError):
        ReportQuantiles(QUARTILES, 1.0, adjacency=Adjacency.ADD_REMOVE)


@pytest.mark.parametrize("wrong", [(), (0.5, 0.5), (0, 0.5), (0.5, 1), ("x",), 0.5, (1e-4,)])
def test_probabilities_that_do_not_ascend_within_0_and_1_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        ReportQuantiles(wrong, 1.0)
