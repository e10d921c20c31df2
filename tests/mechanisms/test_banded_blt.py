"""The two-sided banded BLT: norms of columns, its integers within the stated error, its noise."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from streams_and_matrices import (
    FALLING,
    PLACES,
    banded,
    banded_c,
    coefficients_of,
    line_of,
    true_banded_sums,
)

from privlearn.mechanisms import BandedBLT, banded_errors, banded_scales, banded_sums
from privlearn.mechanisms.banded_scales import BandedTerms, NextScales, column_bounds
from privlearn.mechanisms.banded_sums import LastRows, ScaledBandedSums, banded_sums_error
from privlearn.mechanisms.banded_toeplitz import banded_toeplitz, inverse, lags_of, prefix_sums
from privlearn.mechanisms.banded_zeros import inverse_decays
from privlearn.mechanisms.row_scales import SLACK, row_scales

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
LARGEST = 2**38
SLOW = BandedBLT(
    1200, 400, (0.3, 0.06, 0.02, -0.004), (0.5, 0.05, 0.002, 2.0**-30), (1.0, 0.5, 0.25, 0.3)
)
"""Four states, one of which forgets nothing within the band."""
BANDS = (1, 2, 3, 31, 32, 33, 34, 64, 65, 97, 149, 150, 1000)


def terms_of(made: BandedBLT) -> BandedTerms:
    scales = made.row_scales, made.column_scales
    return BandedTerms(made.horizon, made.band, made.weights, made.decay, *scales)


def scales_of(made: BandedBLT) -> tuple[Array, Array]:
    """l and r, the doubles that rows are multiplied by."""
    rows, columns = NextScales(terms_of(made))(made.horizon)
    return rows[:, 0], 1.0 / columns[:, 0] * (1 - 2.0**-52)


# Columns ----------------------------------------------------------------------------------------


def squared_norms(made: BandedBLT) -> list[Fraction]:
    """Of the columns of diag(l) T diag(r), exactly, by p_j**2."""
    rows, columns = scales_of(made)
    c = [x * x for x in coefficients_of(made)]
    squares = [Fraction(x) ** 2 for x in rows.tolist()]
    return [
        (Fraction(r) / Fraction(made.column_norm_at(j + 1))) ** 2
        * sum(x * y for x, y in zip(squares[j:], c, strict=False))
        for j, r in enumerate(columns.tolist())
    ]


EXACT = [
    *(
        banded(n, band)
        for n, band in ((1, 1), (2, 5), (7, 3), (60, 1), (60, 2), (60, 20), (60, 60))
    ),
    *(banded(n, band, FALLING) for n, band in ((1, 1), (7, 3), (60, 20), (60, 60))),
    banded(60, 20, (1.0, 2.0**-20)),
    BandedBLT(50, 17, (2.0**20, -(2.0**20)), (0.25, 0.25 + 2.0**-40), (2.0**-20, 1.0)),
    BandedBLT(90, 30, (0.5, -0.01), (0.5, 0.001), (1.0, 2.0**-20, 1.0, 0.3, 0.1, 0.9)),
]


@pytest.mark.parametrize("made", EXACT, ids=lambda f: f"{f.horizon}-{f.band}")
def test_columns_have_at_most_their_norms_in_exact_rationals(made: BandedBLT) -> None:
    norms = squared_norms(made)
    assert max(norms) <= 1
    assert min(norms) > 1 - Fraction(1, 8 if min(made.row_scales) < 1e-3 else 10**10)
    norms_at = [made.column_norm_at(j) for j in range(1, made.horizon + 1)]
    assert made.column_norm() == norms_at[0] == made.largest_norm(1, made.horizon) == 1.0
    assert norms_at[-1] == (made.column_scales[-1] if made.horizon > 1 else 1.0)
    assert made.largest_norm(made.horizon, made.horizon) == norms_at[-1]


def test_bounds_on_columns_that_are_too_small_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nearest(terms: BandedTerms, first: int, size: int) -> Array:
        return column_bounds(terms, first, size) * (1 - 2.0**-40)

    banded_scales._chunk.cache_clear()
    monkeypatch.setattr(banded_scales, "column_bounds", nearest)
    try:
        assert max(squared_norms(banded(60, 20))) > 1
        assert max(squared_norms(banded(60, 20, FALLING))) > 1
    finally:
        banded_scales._chunk.cache_clear()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 1000])
@pytest.mark.parametrize("knots", [(1.0,), (0.5, 1.0), (1.0, 2.0**-20, 0.3, 0.1, 0.7, 0.6, 1.0)])
def test_row_scales_are_the_lines_between_the_knots(n: int, knots: tuple[float, ...]) -> None:
    scales = row_scales(n, knots)
    found = [Fraction(x) for x in scales(1, n).tolist()]
    assert all(
        abs(x - line) <= Fraction(SLACK) for x, line in zip(found, line_of(n, knots), strict=True)
    )
    assert min(knots) <= min(found)
    assert max(found) <= max(knots)
    lines: list[Fraction] = []
    for piece in scales.pieces:
        steps = range(piece.stop - piece.first)
        lines += [Fraction(piece.base) + Fraction(piece.slope) * step for step in steps]
    assert all(x <= line + Fraction(SLACK) for x, line in zip(found, lines, strict=True))
    assert np.array_equal(scales(1, n), np.concatenate([scales(t, 1) for t in range(1, n + 1)]))
    assert (scales(n + 1, 3) == 1).all()


@pytest.mark.parametrize(
    "knots",
    [
        FALLING,
        (1.0, 2.0**-20),
        (1.0, 1.0 - 2.0**-53, 1.0 - 2.0**-52, 0.3, 0.3 - 2.0**-54, 0.3 - 2.0**-53),
        tuple(float(x) for x in np.linspace(1, 0.1, 64)),
    ],
    ids=str,
)
def test_norms_of_columns_never_rise(knots: tuple[float, ...]) -> None:
    for n in (1, 2, 3, 50, 999, 4096, 2**40):
        columns = BandedTerms(n, 5, (0.3,), (0.5,), (1.0,), knots).columns
        size = min(n, 5000)
        first, last = columns(1, size), columns(n - size + 1, size)
        assert first[0] == 1.0
        assert first[-1] >= last[-1]
        assert (np.diff(first) <= 0).all()
        assert (np.diff(last) <= 0).all()


def test_columns_of_one_norm_are_what_they_were() -> None:
    """Several ones in a row are one: the same divisors, and the default is not written."""
    plain, same = banded(300, 40), banded(300, 40, (1.0, 1.0, 1.0))
    assert "column_scales" not in plain.parameters()
    assert same.parameters()["column_scales"] == [1.0, 1.0, 1.0]
    assert np.array_equal(scales_of(plain)[1], scales_of(same)[1])
    assert plain.max_error_std() == same.max_error_std()
    assert plain.participation_norm(7, 41) == same.participation_norm(7, 41)


def test_sizes_of_coefficients_are_upper_bounds() -> None:
    """Also where weights of 2²⁰ cancel; and moments are sums of their squares."""
    for made in (SLOW, EXACT[-2]):
        c = coefficients_of(made, 200)
        numbers = banded_toeplitz(len(c), made.weights, made.decay)
        moments = lags_of(len(c), made.weights, made.decay).moments
        energy = Fraction(0)
        for u, value in enumerate(c):
            energy += value**2
            assert Fraction(float(moments[0, u + 1])) * (1 + Fraction(1, 2**42)) >= energy
        assert energy <= numbers.norm**2 <= energy * Fraction(1001, 1000)
        assert numbers.total >= sum(abs(x) for x in c)
    values = np.random.default_rng(0).uniform(size=5000)
    np.testing.assert_allclose(prefix_sums(values), np.cumsum(values), rtol=1e-13)


# Integers ---------------------------------------------------------------------------------------


def rows_of(kind: str, n: int, largest: int = LARGEST) -> Integers:
    """Columns of adversarial data: constant at the bound, signs at random, and anything."""
    rng = np.random.default_rng(n)
    if kind == "bound":
        return np.array([[largest, -largest]] * n)
    if kind == "signs":
        return np.asarray(rng.choice([-1, 1], size=(n, 2)) * largest)
    return rng.integers(-largest, largest, size=(n, 2), endpoint=True)


def errors_of(made: BandedBLT, x: Integers) -> tuple[list[list[Fraction]], Integers]:
    """R - diag(l) T y with y as the encoder has it, exactly; and y."""
    rows, columns = scales_of(made)
    y = np.rint(x * columns[:, None]).astype(np.int64)
    true = true_banded_sums(made, y)
    found = made.encoder(x.shape[1])(x).tolist()
    return [
        [Fraction(value) - Fraction(scale) * Fraction(exact, 2**PLACES) for value, exact in pairs]
        for scale, pairs in zip(
            rows.tolist(),
            (list(zip(a, b, strict=True)) for a, b in zip(found, true, strict=True)),
            strict=True,
        )
    ], y


def largest_error(made: BandedBLT, x: Integers) -> Fraction:
    return max(abs(error) for row in errors_of(made, x)[0] for error in row)


@pytest.mark.parametrize("kind", ["bound", "signs", "random"])
@pytest.mark.parametrize(
    "made",
    [SLOW, banded(300, 40), banded(300, 300), banded(300, 40, FALLING)],
    ids=lambda f: f"{f.horizon}-{f.band}",
)
def test_sums_are_within_the_stated_error(made: BandedBLT, kind: str) -> None:
    """Half of the stated bound would not do."""
    error = largest_error(made, rows_of(kind, made.horizon))
    rounding = made.rounding(LARGEST)
    assert rounding.each / 4 < error <= rounding.each / 2
    assert rounding.each < 2 * 2


@pytest.mark.parametrize("columns", [(1.0,), FALLING], ids=["norm 1", "falling"])
@pytest.mark.parametrize("band", BANDS)
def test_every_band_is_right(band: int, columns: tuple[float, ...]) -> None:
    """Rows that leave in the block that they came in, at its end, in the next, much later."""
    made = banded(150, band, columns)
    assert largest_error(made, rows_of("random", 150)) <= made.rounding(LARGEST).each / 2
    z = np.random.default_rng(band).standard_normal((150, 2))
    b = np.tril(np.ones((150, 150))) @ np.linalg.inv(banded_c(made))
    np.testing.assert_allclose(made.decoder(2)(z), b @ z, atol=1e-10)
    errors = [made.error_std(t) for t in range(1, 151)]
    np.testing.assert_allclose(errors, np.linalg.norm(b, axis=1), rtol=1e-9)
    assert made.max_error_std() == max(errors)
    assert made.rms_error_std() == pytest.approx(math.sqrt(np.mean(np.square(errors))))


@pytest.mark.parametrize("columns", [(1.0,), (1.0, 0.97, 0.29)], ids=["norm 1", "falling"])
@pytest.mark.parametrize("j", [0, 31, 200, 299])
def test_a_changed_row_moves_the_integers_by_no_more_than_is_stated(
    j: int, columns: tuple[float, ...]
) -> None:
    """|R - R' - C (X - X')| <= v + each with |v| <= column, of which half would not do."""
    made = dataclasses.replace(SLOW, horizon=300, band=70, column_scales=columns)
    rng = np.random.default_rng(j)
    rows, factors = scales_of(made)
    rounding = made.rounding(LARGEST)
    x = np.repeat(rng.integers(-LARGEST, LARGEST, size=(made.horizon, 1)), 2, axis=1)
    r = Fraction(float(factors[j]))
    parts = {v: r * v % 1 - Fraction(1, 2) for v in range(LARGEST - 2000, LARGEST)}
    above = min((v for v in parts if parts[v] > 2.0**-10), key=lambda v: parts[v])
    below = max((v for v in parts if parts[v] < -(2.0**-10)), key=lambda v: parts[v])
    x[j] = [above, below]
    found = made.encoder(2)(x)
    moved = found[:, 0] - found[:, 1]
    c = [Fraction(0)] * j + coefficients_of(made, made.horizon - j)
    c += [Fraction(0)] * (made.horizon - len(c))
    true = [Fraction(scale) * x * r for scale, x in zip(rows.tolist(), c, strict=True)]
    off = np.array(
        [float(m - t * (above - below)) for m, t in zip(moved.tolist(), true, strict=True)]
    )
    assert (moved[:j] == 0).all()
    beyond = np.maximum(np.abs(off) - float(rounding.each), 0)
    assert np.linalg.norm(beyond) <= float(rounding.column)
    y = np.rint(np.array([above, below]) * factors[j]).tolist()
    apart = float(Fraction(y[0] - y[1]) - r * (above - below))
    assert apart * np.linalg.norm([float(t / r) for t in true]) <= float(rounding.column)
    if j == 0:
        assert apart * np.linalg.norm([float(x) for x in c]) > float(rounding.column) / 2


def test_states_and_sums_stay_within_the_reach() -> None:
    """A constant stream of the largest numbers on a grid that is just fine enough for them."""
    for made in (SLOW, banded(400, 30), banded(400, 400), banded(400, 30, FALLING)):
        largest = int(2**61 / made.reach()) - 1
        sums = ScaledBandedSums(terms_of(made), 1)
        x = np.full((made.horizon // 32 * 32, 1), largest, dtype=np.int64)
        found = sums(x)
        assert max(abs(int(v)) for v in sums._state.flat) < 2**61
        assert max(abs(int(v)) for v in found.flat) < 2**61
        _, columns = scales_of(made)
        y = np.array([[round(Fraction(r) * largest)] for r in columns.tolist()[: len(x)]])
        true = true_banded_sums(made, y)
        assert max(abs(row[0]) for row in true) < 2 ** (61 + PLACES)
        stated = banded_sums_error(terms_of(made), int(y.max()))
        rows, _ = scales_of(made)
        for value, scale, row in zip(found[:, 0].tolist(), rows.tolist(), true, strict=False):
            assert abs(value - Fraction(scale) * Fraction(row[0], 2**PLACES)) <= 2 * stated


def _nothing_leaves(self: LastRows, out: Array) -> None:
    out[:] = 0.0


def _leaves_a_row_early(self: LastRows, out: Array) -> None:
    self._band -= 1
    _leaving(self, out)
    self._band += 1


def _without_residue(self: ScaledBandedSums) -> None:
    _advance(self)
    self._input[: len(self._state)] -= self._residue
    self._residue[:] = 0.0


_leaving, _advance = LastRows.leaving, ScaledBandedSums._advance


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (LastRows, "leaving", _nothing_leaves),
        (LastRows, "leaving", _leaves_a_row_early),
        (ScaledBandedSums, "_advance", _without_residue),
    ],
)
def test_the_bound_is_missed_by_broken_sums(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    x = rows_of("random", SLOW.horizon, 2**20)
    assert largest_error(SLOW, x) > SLOW.rounding(2**20).each / 2


def test_a_band_of_the_horizon_cuts_nothing() -> None:
    whole, more = banded(300, 300), banded(300, 10**6)
    x = rows_of("random", 300)
    assert np.array_equal(whole.encoder(2)(x), more.encoder(2)(x))
    assert whole.decoder(2)(x).tobytes() == more.decoder(2)(x).tobytes()
    assert whole.rounding(LARGEST) == more.rounding(LARGEST)
    assert not np.array_equal(banded(300, 299).encoder(2)(x), whole.encoder(2)(x))


def test_memory_is_that_of_the_band() -> None:
    made = banded(2**40, 100)
    assert made.encoder(3)(np.ones((70, 3), dtype=np.int64)).shape == (70, 3)
    assert LastRows(100, 3, np.int64)._rows.shape == (160, 3)
    assert banded_sums.banded_matrices(terms_of(made)).rows.shape == (32, 67)
    assert banded_sums.banded_matrices(terms_of(banded(50, 50))).rows.shape == (32, 35)


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("band", "falling"), [(150, (1.0,)), (10**6, (1.0,)), (150, FALLING), (150, (1.0, 0.9, 0.5))]
)
def test_errors_of_long_streams_are_within_what_is_stated(
    band: int, falling: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same sums for every row."""
    monkeypatch.setattr(banded_errors, "ALL", 1024)
    n = 2100
    made = dataclasses.replace(SLOW, horizon=n, band=band, column_scales=falling)
    h = inverse(lags_of(min(band, n), made.weights, made.decay).coefficients, n)
    rows, columns = scales_of(made)
    variances = np.zeros(n)
    for s in range(n):
        variances[s:] += (np.cumsum(h[: n - s] / columns[s:]) / rows[s]) ** 2
    found = np.array([made.error_std(t) for t in range(1, n + 1)])
    np.testing.assert_allclose(found, np.sqrt(variances), rtol=2e-3)
    assert made.max_error_std() == pytest.approx(math.sqrt(variances.max()), rel=2e-4)
    assert made.rms_error_std() == pytest.approx(math.sqrt(variances.mean()), rel=2e-4)


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"horizon": 0}, "horizon = 0"),
        ({"band": 0}, "band = 0"),
        ({"band": 2**25, "horizon": 2**26}, r"band = 33554432: must be <= 2\*\*24"),
        ({"weights": (0.1,)}, "weights, decay have 1, 3 entries"),
        ({"weights": (), "decay": ()}, "weights, decay have 0, 0 entries"),
        ({"weights": (math.nan, 0.1, 0.1)}, "weights = nan: must be finite"),
        ({"weights": (2.0**21, 0.1, 0.1)}, "weights = .* must be numbers in"),
        ({"decay": (0.0, 0.1, 0.2)}, "decay = .* must be numbers in"),
        ({"decay": (1.0, 0.1, 0.2)}, "decay = .* must be numbers in"),
        ({"row_scales": ()}, "row_scales = .* must be 1 to 64 numbers"),
        ({"row_scales": (1.0, 0.0)}, "row_scales = .* must be 1 to 64 numbers"),
        ({"row_scales": (1.5,)}, "row_scales = .* must be 1 to 64 numbers"),
        ({"column_scales": ()}, "column_scales = .* must be 1 to 64 numbers"),
        ({"column_scales": (0.9,)}, "column_scales = .* the first of them 1"),
        ({"column_scales": (1.5, 1.0)}, "column_scales = .* the first of them 1"),
        ({"column_scales": (1.0, 0.0)}, "column_scales = .* must be 1 to 64 numbers in"),
        ({"column_scales": (1.0, 0.5, 0.6)}, "column_scales = .* none above the one before"),
        ({"column_scales": (1.0,) * 65}, "column_scales = .* must be 1 to 64 numbers"),
        ({"weights": (-0.9, 0.0, 0.0)}, r"c\(x\) must have no zero"),
        ({"weights": (2.5, 0.0, 0.0)}, r"c\(x\) must have no zero"),
        ({"weights": (2.0**20, 0.0, 0.0), "horizon": 2**20}, r"c\(x\) must have no zero"),
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "horizon": 200,
        "band": 50,
        "weights": (0.3, 0.1, -0.1),
        "decay": (0.5, 0.1, 0.2),
        "row_scales": (1.0, 0.5),
    }
    BandedBLT(**fields)
    with pytest.raises(ValueError, match=message):
        BandedBLT(**{**fields, **changed})


def test_zeros_in_the_disc_are_found() -> None:
    """Against all roots of the polynomial, for weights at random; and at the very edge."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(120):
        lags, cut, size = int(rng.integers(2, 60)), bool(rng.integers(2)), int(rng.integers(1, 4))
        weights = tuple((rng.normal(size=size) * 0.4).tolist())
        decay = tuple((10.0 ** rng.uniform(-4, -0.05, size=size)).tolist())
        c = lags_of(lags, weights, decay).coefficients
        radius = 1.0 if cut else math.exp(-3 / lags)
        least = np.abs(np.roots(c[::-1])).min()
        if abs(least - radius) > 1e-3:
            found.append(least > radius)
            assert inverse_decays(lags, cut, weights, decay) == found[-1]
    assert 20 < sum(found) < len(found) - 20
    assert inverse_decays(2, True, (0.99,), (0.5,))
    assert not inverse_decays(2, True, (1.01,), (0.5,))
    assert not inverse_decays(2**20, True, (-0.5000001,), (0.5,))
    assert inverse_decays(2**20, True, (-0.4999,), (0.5,))
    assert not inverse_decays(2**20, True, (0.1, -0.01), (0.1, 0.001))


def test_lists_are_refused() -> None:
    with pytest.raises(TypeError, match=r"row_scales = .*must be a tuple of numbers"):
        BandedBLT(5, 5, (0.3,), (0.5,), [1.0])  # type: ignore[arg-type]


def test_numbers_that_a_ledger_writes_as_integers_make_the_same_stream() -> None:
    made = BandedBLT(80, 20, (1.0, -0.5), (0.5, 0.25), (1.0, 0.5), (1.0, 0.75))
    written = json.loads(json.dumps(made.parameters()).replace("1.0", "1"))
    assert written["weights"][0].__class__ is int
    fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
    again = BandedBLT(**fields)
    assert again == made
    assert again.parameters() == made.parameters()
    assert all(x.__class__ is float for x in (*again.row_scales, *again.column_scales))
