"""Reports of vectors: densities, means and laws against sources of their own."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
from grids import thinned
from numpy.typing import NDArray
from scipy import stats

from privlearn.accountants import LocalAccountant
from privlearn.errors import AdjacencyError
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms import (
    BallReport,
    OneOfKReport,
    ProjectedReport,
    ball_reports,
    projected_reports,
    report_from_dict,
)
from privlearn.mechanisms.report_streams import LEVELS
from privlearn.noise import CapNoise, NoiseSource, Surface, noise_from_dict
from privlearn.noise.exact.cap_rows import CapRows
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency

Array = NDArray[np.float64]
MAKERS: list[Callable[..., BallReport]] = [
    BallReport.duchi,
    BallReport.privunit,
    BallReport.privunit_g,
]
DIMS = [1, 2, 3, 4, 10]


def epsilon_of(report: Any) -> float:
    pure = report.loss().pure()
    assert pure is not None
    return float(pure)


def sampled(report: Any, rows: Any, seed: int = 0) -> Array:
    n = len(rows[1]) if isinstance(rows, tuple) else len(rows)
    book = LocalAccountant(PureDP(60), users=range(n), noise=NoiseSource.simulation(seed))
    token = book.issue(report.loss(), users=range(n), label="message")
    value: Array = report.release(Rows.seal(rows, users=range(n)), token).value
    return value


# The cap -----------------------------------------------------------------------------------------


@lru_cache
def power_in_cap(dim: int, threshold: float, surface: Surface, power: int) -> Any:
    """25 digits of Q(⟨z, u⟩ >= t), or of E[⟨z, u⟩; ⟨z, u⟩ >= t], by integrating the density."""
    if dim == 1 and surface == "sphere":
        return mpmath.mpf(1) / 2
    with mpmath.workdps(25):
        t = mpmath.mpf(threshold)
        if surface == "gaussian":
            cuts = [t + 40 * mpmath.mpf(k) / 12 for k in range(13)]
            return mpmath.quad(lambda x: x**power * mpmath.npdf(x), cuts)
        # by the angle, where the density is bounded; nothing is left 40 deviations from the equator
        const = mpmath.gammaprod([mpmath.mpf(dim) / 2], [mpmath.mpf(dim - 1) / 2])
        const /= mpmath.sqrt(mpmath.pi)
        end = mpmath.acos(t)
        begin = max(mpmath.mpf(0), end - 40 / mpmath.sqrt(dim))
        cuts = [begin + (end - begin) * k / 12 for k in range(13)]

        def law(angle: Any) -> Any:
            return const * mpmath.sin(angle) ** (dim - 2) * mpmath.cos(angle) ** power

        return mpmath.quad(law, cuts)


@pytest.mark.parametrize(
    ("dim", "epsilon"),
    [
        (2, 1),
        (3, 0.25),
        (5, 20),
        (10, 1),
        (50, 8),
        (200, 2),
        (2, 30),
        (3, 30),
        (10_000, 0.01),
        (10_000, 20),
    ],
)
@pytest.mark.parametrize("surface", ["sphere", "gaussian"])
def test_masses_means_and_prices_against_25_digits(
    dim: int, epsilon: float, surface: Surface
) -> None:
    cap = CapNoise.optimal(dim, epsilon, surface)
    q, moment = (power_in_cap(dim, cap.threshold, surface, power) for power in (0, 1))
    assert abs(cap.mass / q - 1) < 1e-15
    with mpmath.workdps(40):
        p = mpmath.mpf(cap.probability)
        most, least = p / q, (1 - p) / (1 - q)
        price = float(BallReport(dim, 1.0, cap).loss().pure() or 0)
        assert mpmath.log(most / least) <= price <= epsilon
        # nothing is given away: 2⁻⁵² in the probability, and 12 digits of the price
        lost = 2.3e-16 / float(p * (1 - p)) + 1e-11 * epsilon
        assert mpmath.log(most / least) >= epsilon - lost
        assert abs(cap.mean / (moment * (most - least)) - 1) < 1e-9


@pytest.mark.parametrize("surface", ["sphere", "gaussian"])
@pytest.mark.parametrize(("dim", "epsilon"), [(2, 0.5), (3, 4), (10, 1), (200, 8)])
def test_the_threshold_is_the_best_one(dim: int, epsilon: float, surface: Surface) -> None:
    best = CapNoise.optimal(dim, epsilon, surface)
    least = best.second_moment / best.mean**2
    most = 1.0 if surface == "sphere" else 5.0
    for t in [*np.linspace(0.0, most, 60)[:-1], best.threshold * 0.99, best.threshold * 1.01]:
        try:
            other = CapNoise.at(dim, float(t), epsilon, surface)
        except ValueError:  # a cap too small for doubles
            continue
        assert other.second_moment / other.mean**2 >= least * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [0.25, 1, 8])
@pytest.mark.parametrize("dim", [1, 2, 5, 50, 1000])
def test_best_has_the_least_error(dim: int, epsilon: float) -> None:
    errors = [make(dim, 2.0, epsilon).mean_squared_error() for make in MAKERS]
    assert BallReport.best(dim, 2.0, epsilon).mean_squared_error() <= min(errors) * (1 + 1e-9)
    if dim > 1:
        assert errors[1] < errors[0]


# Laws --------------------------------------------------------------------------------------------


def density(cap: CapNoise, x: Array, radius: float, z: Array) -> Array:
    """Of the report about x against the null law, from the definition, at points z."""
    length = float(np.linalg.norm(x))
    if length == 0:
        return np.ones(len(z))
    q = float(power_in_cap(cap.dim, cap.threshold, cap.surface, 0))
    inside, outside = cap.probability / q, (1 - cap.probability) / (1 - q)
    heights = z @ (x / length)
    total = np.zeros(len(z))
    for sign in (1, -1):
        share = (1 + sign * length / radius) / 2
        cut = cap.threshold if cap.threshold else 1e-300
        total += share * np.where(sign * heights >= cut, inside, outside)
    return total


def points_of(cap: CapNoise) -> Array:
    """Directions all over the sphere; for normals at several lengths."""
    if cap.dim == 1:
        directions = np.array([[1.0], [-1.0]])
    else:
        rng = np.random.default_rng(0)
        directions = rng.normal(size=(2000, cap.dim))
        directions[:4, :] = 0
        directions[:4, 0], directions[2:4, 1] = [1, -1, 1, -1], [0.1, 0.1]
        directions /= np.linalg.norm(directions, axis=1)[:, None]
    lengths = [1.0] if cap.surface == "sphere" else [0.3, 1.0, 2.0, 5.0]
    return np.concatenate([length * directions for length in lengths])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("dim", "epsilon"), [(1, 1), (2, 0.5), (2, 4), (3, 1), (10, 2)])
def test_density_ratios(make: Callable[..., BallReport], dim: int, epsilon: float) -> None:
    """Any two records, in the ball or null, differ by e^ε at most; opposite ends attain it."""
    report = make(dim, 2.0, epsilon)
    z = points_of(report.cap)
    axis = np.eye(dim)[0]
    tilted = np.full(dim, 1 / math.sqrt(dim))
    records = [s * 2.0 * v for s in (1.0, 0.5, 1e-9, -0.5, -1.0) for v in (axis, tilted)]
    laws = [density(report.cap, x, 2.0, z) for x in [*records, np.zeros(dim)]]
    worst = max(float(np.max(a / b)) for a, b in itertools.permutations(laws, 2))
    price = epsilon_of(report)
    assert worst <= math.exp(price) * (1 + 1e-12)
    assert worst >= math.exp(epsilon) * (1 - 1e-9)
    m, big = report.cap.densities
    assert all(law.min() >= m * (1 - 1e-9) and law.max() <= big * (1 + 1e-9) for law in laws)
    out = float(np.max([np.maximum(law, 1 / law) for law in laws]))
    zero = make(dim, 2.0, epsilon, adjacency=Adjacency.ZERO_OUT)
    assert out == pytest.approx(math.exp(epsilon_of(zero)), rel=1e-9)


def given(rows: CapRows) -> Callable[[int], CapRows]:
    """These rows as noise, whatever their number."""
    return lambda count: rows


def rows_of(cap: CapNoise, n: int, seed: int = 0) -> CapRows:
    return cap.rows(NoiseSource.simulation(seed).pool(), n)


@pytest.mark.parametrize("surface", ["sphere", "gaussian"])
@pytest.mark.parametrize("dim", DIMS)
def test_reports_about_a_direction_are_those_about_an_axis_turned(
    dim: int, surface: Surface
) -> None:
    """⟨z, u⟩ and ‖z‖ stay, for directions near and far from the axis, and null ones too."""
    cap = CapNoise.optimal(dim, 1, surface)
    n, step = 500, (1 if surface == "sphere" else 12) / LEVELS
    units = np.random.default_rng(3).normal(size=(n, dim))
    units[0] = units[1] = 0
    units[:2, 0] = 1, -1
    units[2, 1:] *= 1e-9
    units /= np.linalg.norm(units, axis=1)[:, None]
    rows = rows_of(cap, n)
    for null in (False, True):
        z = rows.steps(units, np.full(n, null)) * step
        about_axis = rows.steps(np.eye(dim)[:1].repeat(n, axis=0), np.full(n, null)) * step
        heights = np.einsum("ij,ij->i", z, units)
        assert heights == pytest.approx(about_axis[:, 0], abs=step * dim)
        lengths = np.linalg.norm(about_axis, axis=1)
        assert np.linalg.norm(z, axis=1) == pytest.approx(lengths, abs=step * dim)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dim", [*DIMS, 17, 130])
def test_a_report_by_itself_is_its_row_of_many(
    make: Callable[..., BallReport], dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digit, for records of any length and direction, and those that are null."""
    report, n = make(dim, 2.0, 1), 200
    rng = np.random.default_rng(6)
    values = rng.normal(size=(n, dim))
    values *= (rng.uniform(size=n) * 2 / np.linalg.norm(values, axis=1))[:, None]
    values[:4] = 0.0
    values[0, 0], values[1, -1], values[3, 0] = -2.0, 1.5, 1e-150
    rows = rows_of(report.cap, n, 4)
    monkeypatch.setattr(ball_reports, "_AT_ONCE", n * dim)
    many = report.randomized(values, given(rows))
    for i in range(n):
        row = slice(i, i + 1)
        one = report.randomized(values[row], given(rows[row]))
        assert one.shape == (1, dim)
        assert one.tobytes() == many[row].tobytes()
    monkeypatch.setattr(ball_reports, "_AT_ONCE", 17 * dim)  # block by block
    places = iter(range(0, n, 17))
    blocks = report.randomized(values, lambda count: rows[(k := next(places)) : k + count])
    assert blocks.tobytes() == many.tobytes()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dim", [1, 3])
def test_all_reports_lie_on_one_lattice(make: Callable[..., BallReport], dim: int) -> None:
    """Whatever the record, every number is an integer times limit/2²³, up to ±2²³."""
    report = make(dim, 0.3, 1)
    x = np.random.default_rng(0).normal(size=(300, dim)) * 0.2
    x[:100] = 0.0
    steps = sampled(report, x) / (report.limit / LEVELS)
    assert np.abs(steps).max() <= LEVELS
    assert np.abs(steps - np.rint(steps)).max() < 1e-8
    assert np.array_equal(sampled(report, x), np.rint(steps) * (report.limit / LEVELS))


@pytest.mark.parametrize("threshold", [6.9, 8.99])
def test_normals_are_not_biased_by_the_cut_at_12(threshold: float) -> None:
    report, n = BallReport(2, 1.0, CapNoise(2, threshold, 0.5, "gaussian")), 20_000
    for x in (np.array([1.0, 0.0]), np.array([0.6, -0.8]), np.array([0.5, 0.0])):
        reports = sampled(report, np.tile(x, (n, 1)))
        assert np.abs(reports).max() <= report.limit
        spread = reports.std(axis=0) / math.sqrt(n)
        assert (np.abs(reports.mean(axis=0) - x) < 4.5 * spread).all()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("length", [0.2, 0.5, 0.9])
def test_the_sign_of_a_record_has_its_probability(
    make: Callable[..., BallReport], dim: int, length: float
) -> None:
    """(1 + ‖x‖/R)/2 for a report about x/‖x‖, by uniform numbers all over (0, 1).

    At R/2 a probability 5% closer to certainty, .7625 for .75, would be off by 5 of 400.
    """
    report, n = make(dim, 2.0, 1), 400
    one = rows_of(report.cap, 1, 3)
    rows = dataclasses.replace(
        one,
        turns=(np.arange(n) + 0.5) / n,
        known=tuple(part[np.zeros(n, int)] for part in one.known),
        **{
            name: getattr(one, name).repeat(n)
            for name in ("inside", "public", "first", "last", "heights")
        },
    )
    x = np.tile(length * 2.0 / math.sqrt(dim) * np.ones(dim), (n, 1))
    found = report.randomized(x, given(rows))
    ahead = report.randomized(x[:1] * (1 / length), given(rows[:1]))[0]
    right = np.linalg.norm(found - ahead, axis=1) < 1e-5 * report.scale
    wrong = np.linalg.norm(found + ahead, axis=1) < 1e-5 * report.scale
    assert (right != wrong).all()
    assert abs(int(right.sum()) - n * (1 + length) / 2) <= 1


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("dim", "epsilon"), thinned([(3, 2), (1, 1), (10, 1), (2, 1)]))
def test_released_reports_have_their_mean_error_and_cap(
    make: Callable[..., BallReport], dim: int, epsilon: float
) -> None:
    """By samples; a probability 5% closer to certainty is noticed."""
    n, report = 100_000, make(dim, 1.0, epsilon)
    u = np.full(dim, 1 / math.sqrt(dim))
    reports = sampled(report, np.tile(u, (n, 1)))
    spread = reports.std(axis=0) / math.sqrt(n)
    assert np.abs(reports.mean(axis=0) - u).max() < 4.5 * spread.max()
    squared = np.square(reports).sum(axis=1)
    error = squared.mean()
    assert abs(error - report.mean_squared_error()) < 4.5 * squared.std() / math.sqrt(n) + 1e-9

    def off(probability: float) -> float:
        share = float(np.mean(reports @ u >= report.cap.threshold * report.scale))
        return abs(share - probability) / math.sqrt(probability * (1 - probability) / n)

    p = report.cap.probability
    assert off(p) < 4
    assert off(p + 0.05 * (1 - p)) > 4
    # and of what is null
    nulls = sampled(report, np.zeros((n, dim)))
    q = report.cap.mass
    share = float(np.mean(nulls @ u >= report.cap.threshold * report.scale))
    assert abs(share - q) < 4 * math.sqrt(q * (1 - q) / n)


# Input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dim", [1, 3])
def test_odd_records(make: Callable[..., BallReport], dim: int) -> None:
    """What cannot be used, 0 and what is too short for doubles has the null law; no NaN ever."""
    report = make(dim, 1.0, 1)
    zero = sampled(report, np.zeros((4, dim)))
    odd = np.zeros((4, dim))
    odd[0, 0], odd[1, -1], odd[2, 0], odd[3, 0] = np.nan, np.inf, 1e-160, -5e-324
    assert np.array_equal(sampled(report, odd), zero)
    assert np.array_equal(sampled(report, np.full((4, dim), np.nan)), zero)
    far = sampled(report, np.full((4, dim), 1e150))
    assert far == pytest.approx(sampled(report, np.full((4, dim), 3.0)), rel=1e-10)
    assert report.plausible(np.concatenate([zero, far]), 0.0).all()
    assert np.abs(np.concatenate([zero, far])).max() <= report.limit * (1 + 1e-12)


def test_in_one_dimension_there_are_two_reports() -> None:
    """Not one bit more, whatever the length of the record."""
    report = BallReport.best(1, 1.0, "0.5")
    x = np.array([[1.0], [0.3], [-1e-9], [0.1], [1e-139], [-0.7]] * 50)
    assert {float(v) for v in sampled(report, x).ravel()} == {report.limit, -report.limit}
    wide = math.exp(0.5)
    assert report.limit == pytest.approx((wide + 1) / (wide - 1))


@pytest.mark.parametrize("epsilon", [0, -1, "-0.5", 31, float("nan")])
@pytest.mark.parametrize("make", MAKERS)
def test_refused_budgets(make: Callable[..., BallReport], epsilon: Any) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        make(3, 1.0, epsilon)


def cap_form(dim: int, threshold: float, probability: float) -> dict[str, Any]:
    numbers = {"dim": dim, "threshold": threshold, "probability": probability}
    return {"family": "cap", **numbers, "surface": "sphere"}


def test_refused_numbers() -> None:
    with pytest.raises(ValueError, match="dimension 3"):
        BallReport(3, 1.0, CapNoise.half(2, 1))
    with pytest.raises(ValueError, match="at most 2"):
        ProjectedReport(2, 1.0, CapNoise.half(3, 1))
    with pytest.raises(ValueError, match="mass of the cap"):
        CapNoise(3, 0.0, 0.4)
    with pytest.raises(ValueError, match="threshold"):
        CapNoise(3, 1.0, 0.9)
    with pytest.raises(ValueError, match="threshold"):
        CapNoise(1, 0.1, 0.9)
    for threshold in (9.0, 20.0):
        with pytest.raises(ValueError, match="threshold"):
            CapNoise(2, threshold, 0.5, "gaussian")
    for form in (CapNoise, lambda *numbers: noise_from_dict(cap_form(*numbers))):
        with pytest.raises(ValueError, match=r"threshold = 0\.4: .* dimension 1000000 "):
            form(10**6, 0.4, 0.5)
    with pytest.raises(ValueError, match="threshold"):
        report_from_dict(
            {
                "kind": "ball-report",
                "adjacency": "replace-one",
                "dim": 10**6,
                "radius": 1.0,
                "cap": cap_form(10**6, 0.4, 0.5),
            }
        )
    with pytest.raises(ValueError, match="surface"):
        CapNoise(3, 0.1, 0.9, "cube")  # type: ignore[arg-type]
    with pytest.raises(AdjacencyError, match="add-remove"):
        BallReport.best(3, 1.0, 1, adjacency=Adjacency.ADD_REMOVE)


def test_plausible_reports_are_on_the_sphere() -> None:
    report = BallReport.best(4, 1.0, 1)
    good = sampled(report, np.eye(4))
    assert report.plausible(good, 0.0).all()
    grid = report.limit / 2**23
    assert report.plausible(np.rint(good / grid) * grid, grid / 2).all()
    assert not report.plausible(good * 1.001, grid / 2).any()
    assert not report.plausible(np.zeros((1, 4)), grid / 2).any()
    assert not report.plausible(np.full((1, 4), np.nan), grid / 2).any()


# Projections -------------------------------------------------------------------------------------


def test_projected_reports_are_unbiased_on_the_sphere(monkeypatch: pytest.MonkeyPatch) -> None:
    """By samples; a scale 5% too small is noticed.  Within the ball, too."""
    n, d, report = 30_000, 6, ProjectedReport.privunit(6, 2.0, 4, size=3)
    u = np.arange(1.0, d + 1) / np.linalg.norm(np.arange(1.0, d + 1))
    for length in (2.0, 0.8):
        reports = sampled(report, np.tile(length * u, (n, 1)))
        assert reports.shape == (n, 5)
        along = report.estimate(reports) @ u
        spread = along.std() / math.sqrt(n)
        assert abs(along.mean() - length) < 4 * spread
        if length == 2.0:
            assert abs(0.95 * along.mean() - length) > 4 * spread
        other = report.estimate(reports).mean(axis=0) - length * u
        assert np.abs(other).max() < 0.05
    squared = np.square(report.estimate(reports)).sum(axis=1)
    assert squared == pytest.approx(np.full(n, report.mean_squared_error()))


def test_the_mean_length_of_a_projection() -> None:
    """E‖Wu‖, by integrating the law of ‖Wu‖², which is Beta(k/2, (d−k)/2)."""
    for d, k in ((6, 3), (50, 5), (2, 1)):
        report = ProjectedReport.privunit(d, 1.0, 2, size=k)
        mean = float(stats.beta(k / 2, (d - k) / 2).expect(math.sqrt))
        assert report.scale * report.cap.mean * mean == pytest.approx(1.0, rel=1e-9)
    whole = ProjectedReport.privunit(4, 1.0, 2, size=4)
    assert whole.scale == pytest.approx(BallReport.privunit(4, 1.0, 2).scale, rel=1e-12)


def test_subspaces_are_orthonormal_uniform_and_found_again() -> None:
    report = ProjectedReport.privunit(5, 1.0, 2, size=2)
    n = 4000
    reports = sampled(report, np.tile(np.eye(5)[0], (n, 1)))
    grid = report.limit / 2**23
    sent = np.rint(reports / grid) * grid
    assert np.array_equal(sent[:, 2:], reports[:, 2:])  # the seed travels as it is
    assert report.estimate(sent) == pytest.approx(report.estimate(reports), abs=1e-5)
    assert report.plausible(sent, grid / 2).all()
    assert len({tuple(row) for row in reports[:, 2:]}) == n
    spaces = report._subspaces(np.rint(reports[:, 2:] / grid))
    gram = np.einsum("nkd,njd->nkj", spaces, spaces)
    assert np.abs(gram - np.eye(2)).max() < 1e-12
    # the projection of an axis: Beta(1, 3/2), and no corner is preferred
    kept = np.square(spaces).sum(axis=1)
    for axis in range(5):
        assert stats.kstest(kept[:, axis], stats.beta(1, 1.5).cdf).pvalue > 1e-4
    assert np.abs(spaces.mean(axis=0)).max() < 4.5 / math.sqrt(5 * n)


@pytest.mark.parametrize(("dim", "size"), [(1, 1), (5, 2), (64, 8), (300, 30)])
def test_projections_do_not_depend_on_the_block(
    dim: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digit, and with no more of the subspaces in memory than fits a block."""
    report, n = ProjectedReport.privunit(dim, 2.0, 2, size=size), 23
    x = np.random.default_rng(5).normal(size=(n, dim))
    x *= 1.5 / np.linalg.norm(x, axis=1)[:, None]
    x[3] = 0.0
    drawn = rows_of(report.cap, n, 2)
    whole = report.randomized(x, given(drawn))
    estimates = report.estimate(whole)
    made: list[int] = []
    inner = ProjectedReport._subspaces

    def counting(self: ProjectedReport, words: Array) -> Array:
        made.append(len(words))
        return inner(self, words)

    monkeypatch.setattr(ProjectedReport, "_subspaces", counting)
    for rows in (1, 2, 7, 22, n):
        monkeypatch.setattr(projected_reports, "_AT_ONCE", rows * size * dim)
        made.clear()
        assert report.randomized(x, given(drawn)).tobytes() == whole.tobytes()
        assert report.estimate(whole).tobytes() == estimates.tobytes()
        assert max(made) == rows
        assert sum(made) == 2 * n
    assert report.estimate(whole[:0]).shape == (0, dim)
    alone = [report.estimate(whole[i : i + 1]) for i in range(n)]
    assert np.concatenate(alone).tobytes() == estimates.tobytes()


def test_the_price_of_a_projection_is_that_of_its_subspace() -> None:
    report = ProjectedReport.privunit(30, 1.0, 2, size=3)
    assert report.loss() == BallReport.privunit(3, 1.0, 2).loss()
    assert report.domain.size == 30
    # also when nothing is projected, or everything is null
    zero = sampled(report, np.zeros((5, 30)))
    assert report.plausible(zero, 0.0).all()
    assert np.isfinite(report.estimate(zero)).all()


# One of K ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_one_of_k_costs_the_maximum_and_not_the_sum(make: Callable[..., BallReport]) -> None:
    """Densities of two arms, one real and one null, for all pairs of users; e^ε is attained."""
    epsilon = 1.5
    one = make(2, 1.0, epsilon)
    z = points_of(one.cap)[::7]
    records = [np.array(x) for x in ([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.3, 0.4], [0.0, 0.0])]
    laws = [density(one.cap, x, 1.0, z) for x in records]
    null = np.ones(len(z))
    users = [(law, null) for law in laws] + [(null, law) for law in laws]
    same = different = 0.0
    for (a, b), (c, d) in itertools.permutations(users, 2):
        worst = float(np.max(a / c)) * float(np.max(b / d))  # over all pairs of points
        if (b is d) or (a is c):
            same = max(same, worst)
        else:
            different = max(different, worst)
    for k in (2, 7):
        report: OneOfKReport[Array] = OneOfKReport(one, k)
        price = epsilon_of(report)
        assert report.loss() == one.loss()
        assert max(same, different) <= math.exp(price) * (1 + 1e-12)
    assert same == pytest.approx(math.exp(epsilon), rel=1e-9)
    assert different == pytest.approx(math.exp(epsilon), rel=1e-9)
    assert different < math.exp(2 * epsilon)


def test_one_of_k_reports_are_null_at_all_other_arms() -> None:
    n, one = 40_000, BallReport.best(3, 1.0, 3)
    report: OneOfKReport[Array] = OneOfKReport(one, 3)
    x = np.tile([0.6, 0.0, 0.8], (n, 1))
    reports = sampled(report, (x, np.full(n, 1))).reshape(n, 3, 3)
    spread = one.limit / math.sqrt(3 * n)
    means = reports.mean(axis=0)
    assert np.abs(means[1] - x[0]).max() < 4.5 * spread
    assert np.abs(means[[0, 2]]).max() < 4.5 * spread
    for arm, share in ((0, one.cap.mass), (1, one.cap.probability)):
        inside = reports[:, arm] @ x[0] >= one.cap.threshold * one.scale
        assert abs(inside.mean() - share) < 4 * math.sqrt(share * (1 - share) / n)
    # no arm, and arms that do not exist: everything is null
    nobody = sampled(report, (x[:3], np.array([-1, 3, 2**40])))
    assert np.array_equal(nobody, sampled(report, (x[:3] * np.nan, np.array([0, 1, 2]))))


def test_frozen_and_equal() -> None:
    assert BallReport.best(3, 1.0, 1) == BallReport.privunit(3, 1, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        BallReport.best(3, 1.0, 1).radius = 2.0  # type: ignore[misc]
