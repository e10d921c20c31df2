"""Curves of banded BLTs: errors and their gradient, fits, and what the table holds."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from banded_fitting import (
    Model,
    Reduction,
    errors,
    fit_shape,
    gradient,
    mean,
    power_mean,
    some_times,
    variances,
)
from fit_banded import own_parameters

from privlearn.mechanisms import BandedBLT
from privlearn.mechanisms.banded_parameters import (
    band_for,
    banded_table,
    fitted_errors,
    fitted_parameters,
    fitted_shape,
    parameters_of,
)
from privlearn.mechanisms.banded_shapes import (
    COLUMNS,
    FLAT,
    LAGS,
    ROWS,
    Array,
    Curves,
    Errors,
    Objective,
    Shape,
    exponentials,
    half_powers,
    row_knots,
)
from privlearn.mechanisms.row_scales import knot_times
from privlearn.values.participation import Participation

OBJECTIVES: tuple[Objective, ...] = ("max", "mean")
CURVES: tuple[Curves, ...] = ("max", "mean", "visits")
SHAPES = {curves: banded_table("shapes", curves) for curves in CURVES}
ERRORS = {curves: banded_table("errors", curves) for curves in CURVES}


def cut_exponentials(weights: Array, decay: Array, band: int) -> Array:
    """c_0, ..., c_(band - 1) of exponentials."""
    found = np.zeros(band)
    lags = np.arange(band - 1.0)
    for weight, rate in zip(weights, np.log1p(-decay), strict=True):
        found[1:] += weight * np.exp(lags * rate)
    found[0] = 1.0
    return found


def some_curves(rows: int, band: int) -> tuple[Array, Array]:
    """c and l that are near nothing."""
    generator = np.random.default_rng(5)
    c = half_powers(band) * (1 + 0.2 * generator.random(band))
    c[0] = 1.0
    return c, np.exp(0.2 * generator.standard_normal(rows))


def dense(c: Array, scales: Array, norms: Array) -> Array:
    """C, whose columns have these norms."""
    n = len(scales)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    within = (lag >= 0) & (lag < len(c))
    matrix = scales[:, None] * np.where(within, c[np.clip(lag, 0, len(c) - 1)], 0.0)
    return np.asarray(matrix * (norms / np.linalg.norm(matrix, axis=0)))


# Errors and fits --------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "band"), [(1, 1), (7, 1), (30, 5), (30, 30), (33, 16)])
def test_variances_are_those_of_the_matrix(rows: int, band: int) -> None:
    c, scales = some_curves(rows, band)
    times = np.arange(1, rows + 1)
    for norms in (np.ones(rows), np.linspace(1.0, 0.6, rows)):
        matrix = dense(c, scales, norms)
        expected = (np.linalg.solve(matrix.T, np.tri(rows).T) ** 2).sum(axis=0)
        told = variances(c, scales, times, norms=norms)
        np.testing.assert_allclose(told, expected, rtol=1e-10)
        found = errors(c, scales, norms=norms)
        assert found == pytest.approx((math.sqrt(expected.max()), math.sqrt(expected.mean())))


TIMES = np.array([1, 2, 7, 12, 13, 25, 38, 39, 40])


@pytest.mark.parametrize("reduction", [power_mean(8.0), mean(np.full(9, 1 / 9))], ids=["p", "mean"])
def test_gradient_is_that_of_differences(reduction: Reduction) -> None:
    c, scales = some_curves(40, 12)
    times = TIMES
    curves = c, scales, np.linspace(1.0, 0.6, 40)
    step = 1e-6

    def value_of(c: Array, scales: Array, norms: Array) -> tuple[float, Array, Array, Array]:
        return gradient(c, scales, times, reduction, 0.3, norms)

    def moved(place: int, j: int, sign: float) -> float:
        other = [curve.copy() for curve in curves]
        other[place][j] += sign * step
        return value_of(*other)[0]

    value, *told = value_of(*curves)
    assert math.isfinite(value)
    for place, j in ((0, 1), (0, 11), (1, 0), (1, 20), (1, 39), (2, 0), (2, 20), (2, 39)):
        difference = (moved(place, j, 1) - moved(place, j, -1)) / (2 * step)
        assert told[place][j] == pytest.approx(difference, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_fit_from_nothing_reaches_the_table(objective: Objective) -> None:
    shape = fit_shape(64, 16, objective, FLAT)
    found = errors(shape.coefficients(16), shape.scales(64))
    listed = np.exp(ERRORS[objective][6][2])
    place = OBJECTIVES.index(objective)
    assert found[place] == pytest.approx(listed[place], rel=2e-3)
    assert shape == fit_shape(64, 16, objective, FLAT)


def test_of_several_visits_the_mean_error_is_less_where_columns_fall() -> None:
    """Without a table; not where visits end early, as long late columns cost nothing there."""
    horizon, band, alike = 64, 8, fit_shape(64, 8, "mean", FLAT)
    shape = fit_shape(horizon, band, "mean", FLAT, 8)
    norms = shape.norms(horizon)
    assert shape.columns[0] == 0
    assert all(later <= earlier for earlier, later in pairwise(shape.columns))
    found = errors(shape.coefficients(band), shape.scales(horizon), norms=norms).rms
    known = errors(alike.coefficients(band), alike.scales(horizon)).rms
    assert found * np.linalg.norm(norms[::band]) < 0.99 * known * math.sqrt(8)
    assert alike.columns == FLAT.columns
    assert fit_shape(horizon, band, "mean", FLAT, 2).columns == FLAT.columns
    assert fit_shape(horizon, band, "max", FLAT, 8).columns == FLAT.columns


def test_each_objective_is_better_at_its_own() -> None:
    best = {o: np.exp(ERRORS[o][10][3]) for o in OBJECTIVES}
    assert best["max"][0] < 0.95 * best["mean"][0]
    assert best["mean"][1] < 0.95 * best["max"][1]


def test_fewer_rows_stand_for_many() -> None:
    horizon, band = 4096, 512
    model = Model.of(horizon, band)
    assert (model.rows, model.band) == (1024, 128)
    assert model.unseen == pytest.approx(math.log(4) / math.pi)
    shape = fitted_shape(horizon, band, "max")
    small = variances(
        shape.coefficients(128), shape.scales(1024), np.array([256, 512, 1024]), model.unseen
    )
    large = variances(shape.coefficients(512), shape.scales(4096), np.array([1024, 2048, 4096]))
    np.testing.assert_allclose(small, large, rtol=2e-2)
    without = variances(shape.coefficients(128), shape.scales(1024), np.array([512]))
    assert without[0] < 0.95 * large[1]


def test_mean_over_some_times_is_near_that_over_all() -> None:
    shape = fitted_shape(512, 64, "mean")
    c, scales = shape.coefficients(64), shape.scales(512)
    assert errors(c, scales, some_times(512, 150)).rms == pytest.approx(errors(c, scales).rms, 2e-3)


# The table --------------------------------------------------------------------------------


def test_every_entry_is_a_shape_with_errors() -> None:
    for curves, shapes in SHAPES.items():
        for k, entries in shapes.items():
            columns = COLUMNS if curves == "visits" else 0
            assert all(len(entry) == LAGS + ROWS + columns for entry in entries)
            assert all(max(entry[LAGS : LAGS + ROWS]) == 0 for entry in entries)
            for logs in (entry[LAGS + ROWS :] for entry in entries):
                assert not logs or logs[0] == 0
                assert all(later <= earlier for earlier, later in pairwise(logs))
            assert len(ERRORS[curves][k]) == min(k, 13)
            assert len(entries) == min(2 * k - 1, 15)


@pytest.mark.parametrize("curves", CURVES)
def test_errors_of_the_table_are_those_of_the_factorisation(curves: Curves) -> None:
    for k in (4, 6, 8):
        for r in range(k):
            told = fitted_errors(2**k, 2 ** (k - r), curves)
            found = computed(2**k, 2 ** (k - r), curves)
            assert told == pytest.approx(found, rel=2e-4)


@pytest.mark.parametrize("horizon", [20, 100, 365, 700])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_errors_between_entries_are_near(horizon: int, objective: Objective) -> None:
    for band in (horizon, 3 * horizon // 4, horizon // 3, horizon // 9):
        told = fitted_errors(horizon, band, objective)
        found = computed(horizon, band, objective)
        place = OBJECTIVES.index(objective)
        assert told[place] == pytest.approx(found[place], rel=0.04)


@pytest.mark.parametrize("horizon", [20, 100, 365, 700])
def test_errors_between_entries_are_near_where_columns_fall(horizon: int) -> None:
    for band in (3 * horizon // 4, horizon // 3, horizon // 9):
        told = fitted_errors(horizon, band, "visits").rms
        assert told == pytest.approx(computed(horizon, band, "visits").rms, rel=0.05)


def computed(horizon: int, band: int, curves: Curves) -> Errors:
    made = BandedBLT(horizon, *fitted_parameters(horizon, band, curves))
    return Errors(made.max_error_std(), made.rms_error_std())


def test_class_and_curves_agree_on_the_errors() -> None:
    for curves in CURVES:
        parameters, shape = fitted_parameters(300, 60, curves), fitted_shape(300, 60, curves)
        c = cut_exponentials(np.array(parameters.weights), np.array(parameters.decay), 60)
        found = errors(c, shape.scales(300), norms=shape.norms(300))
        made = BandedBLT(300, *parameters)
        assert found == pytest.approx((made.max_error_std(), made.rms_error_std()), rel=1e-9)


def test_knots_of_curves_are_those_of_the_row_scales() -> None:
    exact = [float((t - 1) / 99) for t in knot_times(100, ROWS)]
    np.testing.assert_allclose(row_knots(), exact, atol=1e-15)


@pytest.mark.parametrize("band", [2, 3, 8, 60, 301, 5000])
def test_exponentials_follow_the_curve(band: int) -> None:
    shape = fitted_shape(4 * band, band, "max")
    weights, decay = exponentials(shape, band)
    assert len(weights) == len(decay) == min(8, band - 1)
    found, wanted = cut_exponentials(weights, decay, band), shape.coefficients(band)
    assert np.linalg.norm(found - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("horizon", "most", "apart", "limit"),
    [(2**10, 1, 1, 2.98), (2**10, 8, 128, 10.8), (2**14, 4, 2**12, 8.4), (2**14, 16, 2**10, 22.0)],
)
def test_targets_of_the_largest_error(horizon: int, most: int, apart: int, limit: float) -> None:
    rule = Participation(most, apart)
    made = BandedBLT.fitted(horizon, rule)
    visits = rule.visits(horizon)
    assert math.sqrt(visits) * made.max_error_std() <= limit


@pytest.mark.parametrize(("most", "apart", "peer"), [(8, 128, 9.748), (16, 64, 15.991)])
def test_mean_error_is_no_worse_than_of_a_peer(most: int, apart: int, peer: float) -> None:
    """Column-normalised banded matrices of jax_privacy (benchmarks/participation.py)."""
    made = BandedBLT.fitted(2**10, Participation(most, apart), "mean")
    assert made.rms_error_std() * made.participation_norm(most, apart) <= peer
    alike = BandedBLT(2**10, *fitted_parameters(2**10, apart, "mean"))
    assert alike.rms_error_std() * math.sqrt(most) > peer


@pytest.mark.parametrize(
    ("horizon", "most", "apart", "falls"),
    [(200, 2, 100, True), (200, 20, 10, True), (300, 43, 7, True), (200, 4, 10, False)],
)
def test_columns_fall_where_that_is_better(
    horizon: int, most: int, apart: int, falls: bool
) -> None:
    """Where a person may come all the time; not where the visits end long before the horizon."""
    rule = Participation(most, apart)
    made = BandedBLT.fitted(horizon, rule, "mean")
    alike = BandedBLT(horizon, *fitted_parameters(horizon, apart, "mean"))
    own = BandedBLT(horizon, *own_parameters(horizon, apart, "mean", rule.visits(horizon)))
    fall, plain, best = (
        each.rms_error_std() * each.participation_norm(most, apart) for each in (made, alike, own)
    )
    assert fall <= plain
    assert best <= fall * 1.0005
    assert (made.column_scales != (1.0,)) is falls
    assert BandedBLT.fitted(horizon, rule, "max").column_scales == (1.0,)


def test_one_visit_is_near_the_lower_bound() -> None:
    """1.03 times the known bounds, by the errors in the table (computed by benchmarks)."""
    for horizon, bound in ((2**14, 3.791), (2**16, 4.232), (2**20, 5.115)):
        assert fitted_errors(horizon, horizon, "max").largest <= 1.03 * bound


def test_own_fit_is_no_worse_than_the_table_between_its_entries() -> None:
    found = (f(100, 30, "max") for f in (fitted_parameters, own_parameters))
    table, own = (BandedBLT(100, *each).max_error_std() for each in found)
    assert own < table <= 1.02 * own


def test_band_is_as_wide_as_visits_are_apart() -> None:
    assert band_for(100, None) == 100
    assert band_for(100, Participation(5, 20)) == 20
    assert band_for(100, Participation(5, 100)) == 100
    assert band_for(2**30, None) == 2**24
    with pytest.raises(ValueError, match="a stream has no batches"):
        band_for(100, Participation(5, per_batch=1))
    with pytest.raises(ValueError, match="a stream has no batches"):
        BandedBLT.fitted(100, Participation(5, pooled=True))


def test_any_size_has_parameters() -> None:
    for horizon, band in (
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 2),
        (40, 1),
        (1000, 2),
        (2000, 3),
        (5000, 20),
    ):
        made = BandedBLT(horizon, *fitted_parameters(horizon, band, "max"))
        assert made.band == band


def test_broken_curves_are_worse() -> None:
    """The scales matter: without them the error is that of a banded Toeplitz matrix."""
    shape = fitted_shape(256, 32, "max")
    plain = Shape(shape.lags, FLAT.rows)
    scaled, flat = (BandedBLT(256, *parameters_of(s, 32)).max_error_std() for s in (shape, plain))
    assert flat > 1.05 * scaled


def test_errors_fall_with_the_band() -> None:
    found = [fitted_errors(5000, band, "max").largest for band in (100, 200, 500, 1300, 2600, 5000)]
    assert all(wide < narrow for narrow, wide in pairwise(found))
