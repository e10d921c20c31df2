"""Private choices: their spread, their exact laws, and what they cost."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import scipy.stats
from claims_alone import assert_private
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from privlearn.accountants import CentralAccountant
from privlearn.checking.exact.check import white_box
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CheckError,
    PrivacyViolation,
)
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import BoundedRangeLoss, LaplaceLoss, Loss, PureLoss
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.mechanisms import (
    CrossPolytope,
    ExplicitVertices,
    NoisyMaxStream,
    ReportNoisyMax,
    SimplexVertices,
)
from privlearn.mechanisms.exact_choices import NoisyScores
from privlearn.mechanisms.noisy_max import ChoiceNoise, choice_loss
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import (
    ExponentialNoise,
    GumbelNoise,
    LaplaceNoise,
    Noise,
    NoiseSource,
)
from privlearn.noise import noise_from_dict as rebuilt
from privlearn.rows import Rows
from privlearn.rows.domains import Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.grid import Grid

Vector = NDArray[np.float64]
ORDERS = (1.001, 1.1, 1.5, 2.0, 4.0, 16.0, 64.0)
FAMILIES: tuple[ChoiceNoise, ...] = ("gumbel", "laplace", "exponential")
TRIANGLE = ExplicitVertices(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]))
SETS: list[Vertices] = [CrossPolytope(3, 2.0), SimplexVertices(3, 0.5), TRIANGLE]


def run(mechanism: ReportNoisyMax, data: Any, seed: int = 0) -> NDArray[np.int64]:
    users = range(len(data))
    book = CentralAccountant(
        ZCDP("1e9"),
        users=users,
        noise=NoiseSource.simulation(seed),
        adjacency=mechanism.adjacency,
    )
    token = book.issue(mechanism.loss(), users=users, label="choice")
    return mechanism.release(Rows.seal(data, users=users), token).value


def renyi(p: Vector, q: Vector, order: float) -> float:
    logs = order * np.log(p) + (1 - order) * np.log(q)
    return float(np.logaddexp.reduce(logs)) / (order - 1)


# Sensitivity ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vertices", SETS, ids=repr)
@pytest.mark.parametrize("norm", ["l1", "l2", "linf", 3.0])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_spread_is_attained_and_never_exceeded(
    vertices: Vertices, norm: Norm, adjacency: Adjacency
) -> None:
    """A search over pairs of rows finds the stated spread and nothing above it."""
    mechanism = ReportNoisyMax(vertices, 0.7, 1.0, norm=norm, adjacency=adjacency)
    rng, points = np.random.default_rng(0), vertices.points(np.arange(vertices.count))
    best = 0.0
    for v in points:
        for w in points:
            apart = v - w
            # Hölder's extremal vectors of a few exponents, and random ones
            tried = [np.sign(apart) * np.abs(apart) ** k for k in (0, 0.5, 1, 2, 40)]
            records = np.array([*tried, *rng.standard_normal((20, vertices.dim))]) * 1e3
            # the extremal one of ℓ1 is only on the axis of the largest entry
            axis = np.zeros(vertices.dim)
            axis[np.abs(apart).argmax()] = 1e3 * np.sign(apart[np.abs(apart).argmax()])
            rows = mechanism.domain.clip(np.concatenate([records, [axis]]))
            for row in rows:
                other = -row if adjacency is Adjacency.REPLACE_ONE else 0 * row
                scores = vertices.scores(row - other)
                best = max(best, float(scores.max() - scores.min()))
    assert best <= mechanism.spread
    assert best >= mechanism.spread * (1 - 1e-9)


def test_the_spread_of_the_cross_polytope_is_four_clip_radius() -> None:
    assert ReportNoisyMax(CrossPolytope(5, 3.0), 0.5, 2.0).spread == 4 * 3.0 * 0.5
    assert ReportNoisyMax(CrossPolytope(5, 3.0), 0.5, 2.0).eta == 3
    half = ReportNoisyMax(CrossPolytope(5, 3.0), 0.5, 2.0, adjacency=Adjacency.ZERO_OUT)
    assert half.eta == Fraction(3, 2)


# Exact laws -------------------------------------------------------------------------------------


NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


def law(family: ChoiceNoise, scores: Vector) -> Vector:
    """Probabilities of each candidate with noise of scale 1: softmax, or by quadrature.

    The integrands are analytic between knots; every piece of length 2 or less has 24 nodes.
    """
    if family == "gumbel":
        return np.asarray(softmax(scores))
    frozen = scipy.stats.laplace if family == "laplace" else scipy.stats.expon
    low, high = (-50.0, 50.0) if family == "laplace" else (0.0, 50.0)
    found = []
    for v, score in enumerate(scores):
        others = np.delete(scores, v)
        knots = np.unique(np.clip([*(others - score), *np.arange(low, high + 1, 2)], low, high))
        half = np.diff(knots)[:, None] / 2
        z = (knots[:-1, None] + half) + half * NODES
        above = score + z[..., None] - others
        found.append(
            float((half * WEIGHTS * frozen.pdf(z) * frozen.cdf(above).prod(axis=-1)).sum())
        )
    assert sum(found) == pytest.approx(1, abs=1e-12)
    return np.array(found)


NOISES: dict[ChoiceNoise, Noise] = {
    "gumbel": GumbelNoise(1.0),
    "laplace": LaplaceNoise(1.0),
    "exponential": ExponentialNoise(1.0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_choices_have_the_computed_law(family: ChoiceNoise) -> None:
    scores, n = np.array([0.3, -0.4, 0.9]), 60_000
    totals = np.tile(np.round(scores * 2**40).astype(np.int64), (n, 1))
    noise = NoiseSource.simulation(3).pool().variates(family, 3 * n)
    drawn = NoisyScores(SimplexVertices(3), totals, np.full(n, 2.0**40), noise)
    seen = np.bincount(drawn.largest(1)[:, 0], minlength=3)
    assert scipy.stats.chisquare(seen, law(family, scores) * n).pvalue > 1e-3
    others = [name for name in FAMILIES if name != family]
    for other in others:  # the test can tell them apart
        assert scipy.stats.chisquare(seen, law(other, scores) * n).pvalue < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eta", [0.25, 1.0, 2.5])
def test_exact_laws_of_three_candidates_stay_below_the_price(
    family: ChoiceNoise, eta: float
) -> None:
    rng = np.random.default_rng(1)
    stated = choice_loss(family, Fraction(eta), 1, Adjacency.REPLACE_ONE)
    rho, worst = float(stated.zcdp() or 0), 0.0
    ends = [np.array(q) for q in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 0.3, 1))]
    tried = [np.array([-eta / 2, 0.0, -9.0]), np.array([-2.0, 0.0, 0.0])]
    tried += list(rng.normal(scale=1.5, size=(8 if family == "laplace" else 25, 3)))
    for scores in tried:
        q = law(family, scores)
        for end in ends:
            p = law(family, scores + eta * end)
            log = np.log(p / q)
            if family == "gumbel":
                assert np.ptp(log) <= eta * (1 + 1e-9)
            assert np.abs(log).max() <= eta * (1 + 1e-9)
            for order in ORDERS:
                both = max(renyi(p, q, order), renyi(q, p, order))
                assert both <= stated.renyi(order) + 1e-10
                worst = max(worst, both / order)
    assert worst <= rho * (1 + 1e-9)
    assert worst >= rho / 5, "the price is not far from what is attained"


@pytest.mark.parametrize("eta", [0.1, 0.5, 2.0, 6.0])
def test_the_price_of_a_gumbel_choice_is_attained(eta: float) -> None:
    """The worst scores of two candidates have sup_α D_α/α = ρ, to a millionth."""
    t = np.linspace(-eta, 0, 20_001)  # difference of scores in one world, t + η in the other
    q, p = 1 / (1 + np.exp(-t)), 1 / (1 + np.exp(-t - eta))
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    rho = float(BoundedRangeLoss(eta).zcdp())
    assert kl.max() == pytest.approx(rho, rel=1e-6)
    assert kl.max() <= rho <= eta**2 / 8


def test_exponential_noise_does_not_earn_the_price_of_a_bounded_range() -> None:
    """Priced like Gumbel noise it would be broken: its range is almost 2η."""
    eta, worst = 0.5, 0.0
    for gap in np.linspace(-eta - 1, 1, 61):
        p, q = (law("exponential", np.array([gap + move, 0.0])) for move in (eta, 0.0))
        worst = max(worst, renyi(p, q, 1.001), renyi(q, p, 1.001))
    assert 3 * float(BoundedRangeLoss(eta).zcdp()) < worst < float(PureLoss(eta).zcdp())
    p = law("exponential", np.array([eta / 2, 0.0]))
    reached = 2 * abs(math.log(p[0] / p[1]))
    assert reached == pytest.approx(2 * math.log(2 * math.exp(eta / 2) - 1), rel=1e-9)
    assert reached > 1.79 * eta


def test_laplace_noise_does_not_earn_the_price_of_a_bounded_range() -> None:
    """Of many candidates some go up, some down, and the range of the privacy loss exceeds η."""
    eta, most = 0.5, 0.0
    for gap in (0.5, 1.0, 2.0):
        scores = np.concatenate([np.full(8, gap), np.zeros(8)])
        change = np.concatenate([np.ones(8), np.zeros(8)])
        for chosen in (0, 8):
            move = change.copy()
            move[chosen] = 1 - move[chosen]
            log = np.log(law("laplace", scores + eta * move) / law("laplace", scores))
            assert np.abs(log).max() <= eta
            most = max(most, float(np.ptp(log)))
    assert most > 1.05 * eta


def several(scores: Vector, top: int) -> dict[tuple[int, ...], float]:
    """Ordered picks without replacement, each an exponential mechanism on what is left."""
    found = {}
    for picks in permutations(range(len(scores)), top):
        left, chance = list(range(len(scores))), 1.0
        for v in picks:
            chance *= float(softmax(scores[left])[left.index(v)])
            left.remove(v)
        found[picks] = chance
    return found


@pytest.mark.parametrize("top", [1, 2, 3])
def test_the_largest_gumbel_scores_are_picks_one_after_the_other(top: int) -> None:
    scores, n = np.array([0.5, -0.2, 0.0, 1.1]), 20_000
    totals = np.tile(np.round(scores * 2**40).astype(np.int64), (n, 1))
    noise = NoiseSource.simulation(5).pool().variates("gumbel", 4 * n)
    units = np.full(n, 2.0**40)
    found = NoisyScores(SimplexVertices(4), totals, units, noise).largest(top)
    picks = [tuple(row) for row in found.tolist()]
    exact = several(scores, top)
    seen = [picks.count(key) for key in exact]
    assert sum(seen) == n
    expected = np.array(list(exact.values())) * n
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-3


@given(
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.sampled_from([2, 3]),
)
def test_several_picks_stay_below_their_price(
    scores: list[float], change: list[float], eta: float, top: int
) -> None:
    one = np.array(list(several(np.array(scores), top).values()))
    two = np.array(list(several(np.array(scores) + eta * np.array(change), top).values()))
    stated = choice_loss("gumbel", Fraction(eta), top, Adjacency.REPLACE_ONE)
    for order in ORDERS:
        assert max(renyi(one, two, order), renyi(two, one, order)) <= stated.renyi(order) + 1e-9
    assert np.abs(np.log(one / two)).max() <= top * eta * (1 + 1e-9)


@pytest.mark.parametrize("family", ["laplace", "exponential"])
def test_several_picks_by_other_noise_are_drawn_afresh(family: ChoiceNoise) -> None:
    """The second pick of such noise is not the runner-up of the first draw."""
    scores, runner_up = np.array([1.0, 0.0, -1.0]), 0
    mechanism = ReportNoisyMax(SimplexVertices(3), 1.0, 4.0, 2, family)
    for seed in range(60):
        pool, noise = NoiseSource.simulation(seed).pool(), mechanism.spend().noise
        first_scores = mechanism.domain.clip(scores[None])[0] + noise.draw(pool, (3,))
        second_scores = mechanism.domain.clip(scores[None])[0] + noise.draw(pool, (3,))
        first = int(first_scores.argmax())
        second_scores[first] = -np.inf
        picks = run(mechanism, scores[None], seed).tolist()
        assert picks == [first, int(second_scores.argmax())]
        runner_up += picks == np.argsort(-first_scores)[:2].tolist()
    assert 10 < runner_up < 50, "the runner-up of one draw is something else"


# Releases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vertices", SETS, ids=repr)
def test_with_little_noise_the_best_points_of_the_clipped_sum_leave(
    vertices: Vertices, family: ChoiceNoise
) -> None:
    data = np.array([[9.0, 0.9, 0.9], [0.9, 0.8, -0.5], [np.nan, 1.0, 1.0]])[:, : vertices.dim]
    mechanism = ReportNoisyMax(vertices, 1.0, 0.012, 2, family)
    picks = run(mechanism, data)
    total = np.array([1.9, 0.9, -0.4])[: vertices.dim]
    expected = np.argsort(-vertices.scores(total))[:2]
    np.testing.assert_array_equal(picks, expected)
    assert picks.dtype == np.int64
    assert vertices.points(picks).shape == (2, vertices.dim)


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_the_unit_nor_the_place_of_points_changes_a_pick(family: ChoiceNoise) -> None:
    """Powers of two, and a shift of all points: exactly the same order of noisy scores."""
    rng = np.random.default_rng(0)
    points, data = rng.integers(-8, 8, (6, 3)) / 8.0, rng.normal(size=(20, 3))
    moved = points + 0.125
    for seed in range(10):
        usual = run(ReportNoisyMax(ExplicitVertices(points), 1.0, 9.0, 2, family), data, seed)
        for factor in (2.0**-60, 0.25, 2.0, 2.0**70):
            made = ReportNoisyMax(ExplicitVertices(points * factor), 1.0, 9.0 * factor, 2, family)
            np.testing.assert_array_equal(run(made, data, seed), usual)
        shifted = ReportNoisyMax(ExplicitVertices(moved), 1.0, 9.0, 2, family)
        assert shifted.grid == ReportNoisyMax(ExplicitVertices(points), 1.0, 9.0, 2, family).grid
        np.testing.assert_array_equal(run(shifted, data, seed), usual)


def test_sums_of_any_size_and_order_are_exact() -> None:
    """Beyond 63 bits, where one row decides; and rows in another order."""
    vertices = ExplicitVertices(np.array([[1.0, 0.0], [0.0, 1.0]]))
    mechanism = ReportNoisyMax(vertices, 2.0**20, 2.0**13 + 1)
    assert mechanism.grid.bits == 40
    rows = np.full((2**16, 2), 2.0**20)
    picks = [run(mechanism, rows, seed)[0] for seed in range(8)]
    assert 0 < sum(picks) < 8
    rows[-1] = [2.0**20, -(2.0**20)]
    assert [run(mechanism, rows, seed)[0] for seed in range(3)] == [0] * 3
    data = np.random.default_rng(1).normal(size=(400, 2))
    narrow = ReportNoisyMax(vertices, 2.0, 2.0**-5)
    for seed in range(5):
        assert run(narrow, data, seed) == run(narrow, data[::-1], seed)


def test_the_ledger_states_a_choice_in_the_unit_of_its_rows() -> None:
    """Noise, grid and spread over the largest power of two below the length of the points."""
    mechanism = ReportNoisyMax(CrossPolytope(3, 5.0), 0.5, 12.0)
    assert mechanism.grid == Grid(3.0, 40)
    spend = mechanism.spend()
    assert spend.noise == GumbelNoise(3.0)
    assert spend.parameters["unit"] == 4.0
    stated = Fraction(spend.parameters["spread"]) / Fraction(3)
    assert choice_loss("gumbel", round_up(stated), 1, Adjacency.REPLACE_ONE) == mechanism.loss()
    with pytest.raises(ValueError, match="must have the scale of the noise"):
        replace(spend, grid=Grid(12.0, 40))
    far = ExplicitVertices(np.array([[1e12], [1e12 + 1]]))
    with pytest.raises(ValueError, match="no grid has room for their scores"):
        ReportNoisyMax(far, 1.0, 10.0)


FAR = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([[-1.0, 1.0], [-1.0, 1.0]])
"""Equal scores, against a difference of 4."""


@pytest.mark.calibration
@pytest.mark.parametrize("family", FAMILIES)
def test_samples_do_not_refute_it_and_catch_half_the_price(family: ChoiceNoise) -> None:
    """Half the price is the claim for monotone counts, and that of a radius for a diameter."""
    mechanism = ReportNoisyMax(SimplexVertices(2), 1.0, 1.0, noise=family)
    assert mechanism.eta == 4
    assert_private(mechanism, neighbours=FAR, samples=1_000)
    broken = choice_loss(family, mechanism.eta / 2, 1, Adjacency.REPLACE_ONE)
    with pytest.raises(PrivacyViolation):
        assert_private(mechanism, broken, neighbours=FAR, samples=2_000)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_exact_check_refuses_what_it_cannot_measure(family: ChoiceNoise) -> None:
    """With a price of 40 the unlikely choices have no digits left; that is no pass."""
    with pytest.raises(CheckError, match="too unlikely to be measured"):
        white_box(ReportNoisyMax(CrossPolytope(2), 1.0, 0.1, noise=family))


def test_it_stands_in_the_ledger_as_trusted_code() -> None:
    users = range(3)
    book = CentralAccountant(ZCDP(9), users=users, noise=NoiseSource.simulation(0))
    for family in FAMILIES:
        mechanism = ReportNoisyMax(TRIANGLE, 1.0, 8.0, noise=family)
        token = book.issue(mechanism.loss(), users=users, label="choice")
        mechanism.release(Rows.seal(np.ones((3, 2)), users=users), token)
    spends = [entry for entry in book.ledger.entries if isinstance(entry, SpendEntry)]
    found: list[Any] = [rebuilt(entry.noise) for entry in spends]
    assert found == [
        GumbelNoise(4.0),
        LaplaceNoise(4.0),
        ExponentialNoise(4.0),
    ]
    assert {entry.parameters["unit"] for entry in spends} == {2.0}
    assert not any(entry.derived for entry in spends)
    assert spends[0].parameters["vertices"] == TRIANGLE.to_dict()
    (note,) = book.certificate().trusted_code
    assert note.startswith("report-noisy-max: its loss")
    assert book.certificate().problems == []


@pytest.mark.parametrize("noise", [GumbelNoise(1.0), ExponentialNoise(2.0)])
def test_noise_for_choices_has_no_price_for_sums(noise: GumbelNoise | ExponentialNoise) -> None:
    with pytest.raises(BudgetError, match="not the scores"):
        noise.loss(1.0, Adjacency.REPLACE_ONE)


# Calibration ------------------------------------------------------------------------------------

AMOUNTS = st.fractions(min_value=Fraction(1, 10**5), max_value=50, max_denominator=10**6)
BUDGETS: st.SearchStrategy[Currency] = st.one_of(
    AMOUNTS.map(ZCDP),
    AMOUNTS.map(PureDP),
    st.tuples(AMOUNTS, AMOUNTS).map(lambda e: Renyi({"1.5": e[0], 8: e[1]})),
)


@given(BUDGETS, st.sampled_from(SETS), st.integers(1, 2), st.sampled_from(FAMILIES), st.booleans())
def test_calibrated_noise_fits_and_wastes_none(
    budget: Currency, vertices: Vertices, top: int, family: ChoiceNoise, zero_out: bool
) -> None:
    adjacency = Adjacency.ZERO_OUT if zero_out else Adjacency.REPLACE_ONE
    mechanism = ReportNoisyMax.calibrated(
        vertices, 0.3, budget, top=top, noise=family, adjacency=adjacency
    )
    assert budget.covers(budget.price(mechanism.loss()))
    if mechanism.eta < 699:
        less = ReportNoisyMax(
            vertices, 0.3, mechanism.scale * (1 - 1e-6), top, family, adjacency=adjacency
        )
        assert not budget.covers(budget.price(less.loss()))


def test_gumbel_noise_is_the_least_for_a_zcdp_budget() -> None:
    scale = {
        family: ReportNoisyMax.calibrated(
            CrossPolytope(4), 1.0, ZCDP("0.01"), top=3, noise=family
        ).scale
        for family in FAMILIES
    }
    # as ε²/2 is to ε²/8, and a Laplace pick costs a little less than ε²/2
    for family in ("laplace", "exponential"):
        assert 0.98 * 2 * scale["gumbel"] < scale[family] < 2 * scale["gumbel"]
    simple = 4 * math.sqrt(3 / (8 * 0.01))  # rho = 3·η²/8
    assert scale["gumbel"] == pytest.approx(simple, rel=0.01)


def test_budgets_that_buy_no_choice() -> None:
    made = ReportNoisyMax.calibrated(CrossPolytope(2), 1.0, GaussianDP(1))
    assert GaussianDP(1).price(made.loss()).mu_squared == pytest.approx(1, rel=1e-4)
    with pytest.raises(BudgetError, match="needs a budget > 0"):
        ReportNoisyMax.calibrated(CrossPolytope(2), 1.0, ZCDP(0))


# Refusals ---------------------------------------------------------------------------------------


def test_bad_numbers_are_refused() -> None:
    square = CrossPolytope(2)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="scale"):
            ReportNoisyMax(square, 1.0, bad)
        with pytest.raises(ValueError, match="radius"):
            ReportNoisyMax(square, bad, 1.0)
    with pytest.raises(ValueError, match="below the number of points, 4"):
        ReportNoisyMax(square, 1.0, 1.0, top=4)
    with pytest.raises(ValueError, match="noise = 'cauchy'"):
        ReportNoisyMax(square, 1.0, 1.0, noise="cauchy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must lie in"):
        ReportNoisyMax(square, 1.0, 1e-3)
    with pytest.raises(TypeError, match="adjacency"):
        ReportNoisyMax(square, 1.0, 1.0, adjacency="zero-out")  # type: ignore[arg-type]


def test_a_token_for_other_neighbours_is_refused_and_left_alone() -> None:
    users = range(2)
    book = CentralAccountant(
        ZCDP(9), users=users, noise=NoiseSource.simulation(0), adjacency=Adjacency.ZERO_OUT
    )
    token = book.issue(ZCDP(1), users=users, label="choice")
    mechanism = ReportNoisyMax(CrossPolytope(2), 1.0, 6.0)
    with pytest.raises(AdjacencyError, match="a mechanism for replace-one"):
        mechanism.release(Rows.seal(np.ones((2, 2)), users=users), token)
    token.retire()


def test_losses_are_those_of_the_docstring() -> None:
    eta = Fraction(1, 2)
    expected: dict[ChoiceNoise, Loss] = {
        "gumbel": BoundedRangeLoss(eta) * 3,
        "laplace": LaplaceLoss(eta) * 3,
        "exponential": LaplaceLoss(eta) * 3,
    }
    for family, loss in expected.items():
        assert choice_loss(family, eta, 3, Adjacency.REPLACE_ONE) == loss


@pytest.mark.parametrize("vertices", [10, np.eye(3)])
def test_what_is_no_set_of_points_is_told_which_there_are(vertices: Any) -> None:
    for make in (
        lambda: ReportNoisyMax(vertices, 1.0, 1.0),
        lambda: ReportNoisyMax.calibrated(vertices, 1.0, ZCDP(1)),
        lambda: NoisyMaxStream.calibrated(vertices, 1.0, ZCDP(1), horizon=3),
    ):
        with pytest.raises(TypeError, match=r"vertices: .* not (int|ndarray): SimplexV"):
            make()
