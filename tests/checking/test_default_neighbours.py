"""Faults that need certain neighbours, exact laws or rare values: found with default settings."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from faults.few_inputs import FEW_INPUT_FAULTS, ComputingMechanism, RunningSums
from grids import thinned
from scipy.stats import binom

from privlearn.checking.exact.check import white_box
from privlearn.checking.exact.choices import _FAMILIES, _Choice
from privlearn.checking.neighbours import (
    LONGEST,
    default_pairs,
    stream_rows,
)
from privlearn.checking.sampling.check import black_box
from privlearn.checking.sampling.distinguishers import repeats
from privlearn.checking.sampling.encoding import Noted, layout, tabulate
from privlearn.errors import CheckError
from privlearn.losses import PureLoss
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms import (
    BallReport,
    BinaryTree,
    CategoryReport,
    CrossPolytope,
    ExplicitVertices,
    NoisySum,
    OneOfKReport,
    PrefixSum,
    ProjectedReport,
    ReportNoisyMax,
    SimplexVertices,
)
from privlearn.noise import GaussianNoise, GumbelNoise, LaplaceNoise
from privlearn.noise.exact.caps import Approx, CapLaw
from privlearn.rows.domains import Ball, Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import length

Rng = np.random.Generator

# Exact laws ---------------------------------------------------------------------------------------

CORNERS = ExplicitVertices(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]))
PRICED: dict[str, Callable[[], Any]] = {
    "gumbel": lambda: ReportNoisyMax(SimplexVertices(3), 1.0, 4.0),
    "gumbel, two picks": lambda: ReportNoisyMax(SimplexVertices(3), 1.0, 4.0, top=2),
    "gumbel, a polytope": lambda: ReportNoisyMax(CORNERS, 1.0, 4.0, norm="l2"),
    "gumbel, zero-out": lambda: ReportNoisyMax(
        SimplexVertices(3), 1.0, 4.0, adjacency=Adjacency.ZERO_OUT
    ),
    "laplace": lambda: ReportNoisyMax(SimplexVertices(3), 1.0, 4.0, noise="laplace"),
    "exponential": lambda: ReportNoisyMax(CrossPolytope(1), 1.0, 4.0, noise="exponential"),
    "half spheres": lambda: BallReport.duchi(3, 1.0, 1),
    "caps": lambda: BallReport.privunit(5, 2.0, 3),
    "caps, zero-out": lambda: BallReport.privunit(5, 2.0, 3, adjacency=Adjacency.ZERO_OUT),
    "half spaces": lambda: BallReport.privunit_g(4, 1.0, 2),
    "one number": lambda: BallReport.best(1, 1.0, 1),
    "projected": lambda: ProjectedReport.privunit(5, 1.0, 2, size=2),
    "one of three": lambda: OneOfKReport(BallReport.best(2, 1.0, 1), 3),
    "answers": lambda: CategoryReport.calibrated(4, 2),
}


@pytest.mark.parametrize("name", thinned(PRICED, 3))
def test_a_price_a_tenth_too_low_is_refuted_exactly(name: str) -> None:
    mechanism = PRICED[name]()
    epsilon = mechanism.loss().pure()
    found = white_box(mechanism, PureDP(epsilon * Fraction(9, 10)))
    assert found.violated
    assert 0.97 * epsilon < found.worst.exact <= epsilon + found.error


@pytest.mark.parametrize("name", ["gumbel", "caps", "answers"])
def test_the_right_price_stands(name: str) -> None:
    assert not white_box(PRICED[name]()).violated


@pytest.mark.parametrize("margin", ["in_cap", "outside"])
def test_reports_that_do_not_follow_their_law_are_not_priced(
    margin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heights in the cap, or points outside of it, of which all are kept."""

    def all_of(self: Any, exponentials: Any, normals: Any, bits: Any) -> Approx:
        return Approx(np.ones(max(len(exponentials.value), len(normals.value))))

    monkeypatch.setattr(CapLaw, margin, all_of)
    with pytest.raises(CheckError, match="do not follow the null law"):
        white_box(BallReport.privunit(5, 1.0, 2))


def test_reports_cost_what_they_should_to_many_digits() -> None:
    found = white_box(BallReport.privunit(20, 1.0, 3), PureDP(3))
    assert found.worst.exact == pytest.approx(3, rel=1e-9)
    assert found.error < 1e-7


@pytest.mark.parametrize("kind", _FAMILIES)
@pytest.mark.parametrize(("top", "one_draw"), [(1, True), (2, True), (2, False)])
def test_laws_of_choices_are_those_of_simulated_ones(kind: Any, top: int, one_draw: bool) -> None:
    scores = np.array([0.0, -0.7, -1.5, -0.2])
    choice = _Choice(None, PureLoss(1), _FAMILIES[kind], 4, top, one_draw)
    law, n = choice.law(scores), 20_000
    rng = np.random.default_rng(0)
    draw = {"GumbelNoise": rng.gumbel, "LaplaceNoise": rng.laplace}.get(
        kind.__name__, rng.exponential
    )
    noisy = scores + draw(size=(n, 4))
    first = noisy.argmax(axis=1)
    if not one_draw:
        noisy = scores + draw(size=(n, 4))
    noisy[np.arange(n), first] = -np.inf
    place = first
    if top == 2:
        second = noisy.argmax(axis=1)
        place = 3 * first + second - (second > first)
    for k, log_mass in enumerate(law.log_mass):
        low, high = (binom.ppf(x, n, np.exp(log_mass)) for x in (1e-6, 1 - 1e-6))
        assert low <= np.count_nonzero(place == k) <= high


def test_a_choice_that_is_no_noisy_maximum_is_left_to_samples() -> None:
    def second_best(values: Any, receipt: Any) -> Any:
        return np.argsort(values.sum(axis=0) + receipt.draw((3,)))[1:2]

    mechanism = ComputingMechanism("own", Ball(1.0, 3), GumbelNoise(4.0), second_best, PureLoss(1))
    with pytest.raises(CheckError, match="not those of the largest noisy scores"):
        white_box(mechanism)


# Neighbours ---------------------------------------------------------------------------------------


def test_half_the_spread_of_a_simplex_is_seen_by_samples_too() -> None:
    _, _, broken, _ = FEW_INPUT_FAULTS["half the spread of a simplex"]
    assert black_box(broken, samples=1_500).violated


def test_few_samples_look_at_the_likeliest_neighbours_alone() -> None:
    found = black_box(NoisySum(Ball(1.0, 3), GaussianNoise(2.0)), samples=120)
    assert found.pair < 3
    assert found.samples <= 120
    with pytest.raises(CheckError, match="too few for 4 pairs"):
        black_box(
            lambda x, rng: x + rng.laplace(), PureDP(1), [(float(k), 0.0) for k in range(1, 5)],
            samples=120,
        )  # fmt: skip


def test_neighbours_are_neighbours_under_every_relation() -> None:
    for adjacency in Adjacency:
        mechanism = NoisySum(Box(-1, 2, 3), GaussianNoise(2.0), adjacency=adjacency)
        for first, second in default_pairs(mechanism, adjacency=adjacency):
            if adjacency is Adjacency.ADD_REMOVE:
                assert length(first) == length(second) + 1 >= 2
                continue
            changed = ~((first == second) | (np.isnan(first) & np.isnan(second))).all(axis=1)
            assert changed.sum() == 1
            if adjacency is Adjacency.ZERO_OUT:
                assert np.isnan(second[changed]).all()


def test_streams_are_run_to_their_horizon_or_as_long_as_they_take() -> None:
    assert stream_rows(PrefixSum(Ball(1.0, 2), BinaryTree(40), 1.0)) == 40
    assert stream_rows(RunningSums(4.0, 4096, 16)) == LONGEST
    assert stream_rows(PRICED["caps"]()) == LONGEST  # no horizon is stated


# Rare values and memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [([1.0, 0.3], [0.0, 0.3]), ([0.0, 0.3], [1.0, 0.3])])
def test_one_raw_value_in_thirty(pair: Any) -> None:
    def sometimes(x: list[float], rng: Rng) -> float:
        raw = x[0] > 0 and rng.random() < 1 / 30
        return float(sum(x) if raw else sum(x) + rng.laplace())

    found = black_box(sometimes, PureDP(1), pair, samples=5_000, confidence=0.99)
    assert found.violated
    assert "seen before" in found.event
    assert not black_box(
        lambda x, rng: sum(x) + rng.laplace(), PureDP(1), pair, samples=5_000, confidence=0.99
    ).violated


def test_any_raw_row_of_many() -> None:
    """No single value comes often."""

    def row(x: Any, rng: Rng) -> Any:
        return x[rng.integers(len(x))] if rng.random() < 0.05 else rng.laplace(size=2)

    base = np.random.default_rng(0).normal(size=(2, 300, 2))
    assert black_box(row, PureDP(1), (base[0], base[1]), samples=4_000).violated


def test_values_that_both_worlds_repeat_are_no_event() -> None:
    rng = np.random.default_rng(0)
    numbers = [np.where(rng.random(400) < 0.2, 0.5, rng.normal(size=400)) for _ in range(2)]
    first, second = (tabulate(list(x)) for x in numbers)
    assert repeats(first, second, None) is None
    raw = tabulate(list(np.where(rng.random(400) < 0.1, 7.0, rng.normal(size=400))))
    found = repeats(raw, tabulate(list(rng.normal(size=400))), None)
    assert found is not None
    # by fits that had not seen these outputs: no noise is taken for a repeat of itself
    assert found.first.sum() == pytest.approx(40, abs=20)
    assert not found.second.any()


LAID: dict[str, Callable[[Any, bool], Any]] = {
    "a narrower type": lambda x, odd: x.astype(np.float32) if odd else x,
    "Fortran order": lambda x, odd: np.asfortranarray(x) if odd else x,
    "strides": lambda x, odd: np.repeat(x, 2, axis=0)[::2] if odd else x,
    "a view": lambda x, odd: x[:] if odd else x,
    "one array twice": lambda x, odd: (x, x if odd else x.copy()),
}


@pytest.mark.parametrize("name", LAID)
def test_how_an_output_lies_in_memory_is_seen(name: str) -> None:
    def laid(x: list[float], rng: Rng) -> Any:
        return LAID[name](rng.normal(size=(3, 2)).copy(), x[0] > 0 and rng.random() < 0.7)

    assert black_box(laid, PureDP(1), ([1.0], [0.0]), samples=400).violated


def test_flags_are_part_of_a_layout() -> None:
    data = np.zeros(3)
    fixed = np.zeros(3)
    fixed.setflags(write=False)
    texts = [layout(x) for x in (np.zeros(3), fixed, data[1:], np.zeros((3, 3))[:, 1])]
    assert len(set(texts)) == 4
    both = tabulate([Noted(1.5, layout="C"), Noted(1.5, layout="F"), 1.5])
    assert "[0].layout" in both.paths or ".layout" in both.paths


def test_laplace_choice_of_two_from_one_draw_is_left_to_samples_beyond_two() -> None:
    def three(values: Any, receipt: Any) -> Any:
        return np.argsort(-(values.sum(axis=0) + receipt.draw((5,))))[:3]

    mechanism = ComputingMechanism("own", Ball(1.0, 5), LaplaceNoise(4.0), three, PureLoss(1))
    with pytest.raises(CheckError, match="more than two picks from one draw"):
        white_box(mechanism)
