"""Caps: enclosures, masses and prices against other sources, and the laws of what is drawn."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privlearn.noise.exact import caps
from privlearn.noise.exact.cap_mass import cap_mass, log_above
from privlearn.noise.exact.cap_rows import CapRows
from privlearn.noise.exact.caps import (
    NORMAL_LIMIT,
    REPORT_LEVELS,
    Approx,
    CapLaw,
    Interval,
    Undecided,
    approximate,
    intervals,
    number,
    root,
)
from privlearn.noise.exact.pool import NoisePool, SeededWords

Array = NDArray[np.float64]
LAWS = [
    (1, 0.0, True),
    (2, 0.0, True),
    (2, 0.3, True),
    (2, 0.95, True),
    (3, 0.1, True),
    (3, 0.6, True),
    (3, 0.99, True),
    (4, 0.31, True),
    (7, 0.2, True),
    (10, 0.5, True),
    (50, 0.3, True),
    (1, 1.0, False),
    (3, 0.0, False),
    (5, 0.5, False),
    (4, 3.0, False),
]


def pool(seed: int = 0) -> NoisePool:
    return NoisePool(SeededWords(seed))


def law_of(dim: int, threshold: float, sphere: bool, share: float = 0.6) -> CapLaw:
    return CapLaw(dim, threshold, int(share * 2**52), sphere)


def directions(dim: int, n: int, seed: int = 0) -> Array:
    units = np.random.default_rng(seed).normal(size=(n, dim))
    return np.asarray(units / np.linalg.norm(units, axis=1)[:, None])


# Enclosures ---------------------------------------------------------------------------------------


def formula(a: Any, b: Any, c: Any, one: Any) -> Any:
    """Of everything that is computed with, on numbers about 1 and vectors of 40."""
    square = (c * c).sum(axis=1)
    return (a * b - root(square) / (one + abs(a))) * (b + a * root(abs(a))) - square / b


def off_by(shift: float) -> tuple[Array, Array]:
    """How far off the formula is in doubles, and the bounds, for true numbers at ``shift``."""
    rng, n = np.random.default_rng(1), 300
    a, b = rng.normal(size=n), rng.normal(size=n) + 5
    c = rng.normal(size=(n, 40))
    found = formula(
        Approx(a, abs(shift)), Approx(b, abs(shift)), Approx(c, abs(shift)), number(1, None)
    )
    exact = []
    for i in range(n):
        rows = [
            intervals([Fraction(x) + Fraction(shift) for x in np.atleast_1d(v).tolist()], 300)
            for v in (a[i], b[i], c[i])
        ]
        (value,) = formula(rows[0], rows[1], rows[2][None], number(1, 300))
        assert value.high - value.low < 1 << 20
        exact.append(Fraction(value.low, 1 << 300))
    off = [abs(Fraction(x) - y) for x, y in zip(found.value.tolist(), exact, strict=True)]
    return np.array([float(x) for x in off]), np.asarray(found.error)


@pytest.mark.parametrize("shift", [0.0, 2.0**-41, -(2.0**-41), 2.0**-20])
def test_doubles_are_as_near_as_their_bounds_say(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    off, bounds = off_by(shift)
    assert (off <= bounds).all()
    assert (off > 0.01 * bounds).any()  # bounds that say something
    if not shift:
        monkeypatch.setattr(caps, "_ROUNDING", 2.0**-60)
        off, bounds = off_by(shift)
        assert (off > bounds).any()


def test_what_is_not_certain_in_doubles_has_no_bound() -> None:
    one = Approx(np.ones(1))
    with np.errstate(all="ignore"):
        for wild in (
            one / Approx(np.array([1e-9]), 1e-9),
            Approx(np.array([0.0]), 1e-9).sqrt(),
            one / Approx(np.zeros(1)),
        ):
            assert wild.unsure.all()
    floors = np.array([1 << 40, 1 << 53, -(1 << 62)])
    assert np.isinf(approximate(floors).error).tolist() == [False, True, True]
    assert approximate(floors[:1]).error == 2.0**-41


@pytest.mark.parametrize("bits", [8, 60])
def test_intervals_hold_the_number(bits: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        x, y = (Fraction(float(v)) for v in rng.normal(size=2) * [1, 10])
        (a, b) = intervals([x, y], bits)
        pairs = [(a + b, x + y), (a - b, x - y), (a * b, x * y), (abs(a), abs(x))]
        if not b.low <= 0 <= b.high:
            pairs.append((a / b, x / y))
        for found, exact in pairs:
            assert Fraction(found.low, 1 << bits) <= exact <= Fraction(found.high, 1 << bits)
        r = abs(b).sqrt()
        assert Fraction(r.low, 1 << bits) ** 2 <= abs(y) <= Fraction(r.high, 1 << bits) ** 2
    around = Interval(-1, 1, bits)
    for undecided in (lambda: a / around, around.positive, around.floor):
        with pytest.raises(Undecided):
            undecided()
    assert Interval(1, 2, bits).positive()
    assert not Interval(-2, -1, bits).positive()
    assert Interval(-2, -1, 3).floor() == -1


# Masses and logarithms ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "threshold"),
    [
        (2, 0.3),
        (2, 1e-9),
        (2, 0.999999),
        (3, 0.9),
        (4, 0.5),
        (5, 0.99),
        (10, 1e-12),
        (50, 0.1),
        (50, 0.8),
        (51, 0.7071),
        (51, 0.7072),
        (200, 0.05),
        (200, 0.9),
        (1000, 0.6),
        (1001, 0.1),
        (10_000, 0.1),
    ],
)
def test_masses_of_caps_of_the_sphere_against_80_digits(dim: int, threshold: float) -> None:
    low, high = cap_mass(dim, threshold, True)
    with mpmath.workdps(130):
        y = 1 - mpmath.mpf(threshold) ** 2
        whole = mpmath.betainc(mpmath.mpf(dim - 1) / 2, 0.5, 0, y, regularized=True) / 2
        below, above = (mpmath.mpf(x.numerator) / x.denominator for x in (low, high))
        assert below < whole < above
    assert (high - low) * 2**80 < low


def test_masses_by_hand_and_of_normals() -> None:
    assert cap_mass(7, 0.0, True) == cap_mass(7, 0.0, False) == (Fraction(1, 2), Fraction(1, 2))
    for t in (0.25, 0.75, 0.9375):  # Archimedes: heights on the sphere are uniform
        low, high = cap_mass(3, t, True)
        assert low < (1 - Fraction(t)) / 2 < high
    for t in (1e-5, 0.5, 3.0, 6.9, 8.99):
        low, high = cap_mass(3, t, False)
        with mpmath.workdps(60):
            exact = mpmath.erfc(mpmath.mpf(t) / mpmath.sqrt(2)) / 2
            assert mpmath.mpf(low.numerator) / low.denominator < exact
            assert exact < mpmath.mpf(high.numerator) / high.denominator
        assert (high - low) * 2**90 < low
    assert cap_mass(10**6, 0.4, True)[0] == 0  # too small to be computed


def test_logarithms_are_never_below_and_hardly_above(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = [1 + Fraction(math.exp(x)) for x in rng.uniform(-14, 40, 100).tolist()]
    values += [Fraction(10) ** 200, 1 + Fraction(1, 10**6), Fraction(2)]

    def excess() -> list[float]:
        with mpmath.workdps(60):
            logs = [mpmath.log(mpmath.mpf(x.numerator) / x.denominator) for x in values]
            above = [
                mpmath.mpf(found.numerator) / found.denominator for found in map(log_above, values)
            ]
            return [float(a / b - 1) for a, b in zip(above, logs, strict=True)]

    found = excess()
    assert min(found) > 0
    assert max(found) < 2e-15
    for wrong in (0.999, 1.0 - 1e-13):  # of a machine whose logarithms are too small
        monkeypatch.setattr(math, "log", lambda x, w=wrong: w * math.log1p(x - 1))
        assert min(excess()) > 0
    with pytest.raises(ValueError, match="exceed 1"):
        log_above(Fraction(1))


# Laws ---------------------------------------------------------------------------------------------


def null_below(dim: int, sphere: bool) -> Any:
    """The distribution function of a height under the null law."""
    if not sphere:
        return stats.norm.cdf
    return lambda h: stats.beta.cdf((1 + h) / 2, (dim - 1) / 2, (dim - 1) / 2)


def reported(
    dim: int, threshold: float, sphere: bool, n: int = 5000
) -> tuple[CapRows, Array, Array, Array]:
    """Rows, and heights inside, outside and of null reports about one direction."""
    rows = CapRows.drawn(law_of(dim, threshold, sphere), pool(), n)
    units = np.repeat(directions(dim, 1, seed=3), n, axis=0)
    null = np.arange(n) % 3 == 0
    z = rows.steps(units, null) * ((1 if sphere else NORMAL_LIMIT) / REPORT_LEVELS)
    if sphere:
        assert np.abs(np.linalg.norm(z, axis=1) - 1).max() < 1e-6 * math.sqrt(dim)
    heights = z @ units[0]
    return rows, heights[rows.inside & ~null], heights[~rows.inside & ~null], heights[null]


def gaps(dim: int, threshold: float, sphere: bool, n: int = 5000) -> list[float]:
    """p-values of the three laws against the null law's."""
    _, inside, outside, null = reported(dim, threshold, sphere, n)
    below = null_below(dim, sphere)
    q = float(1 - below(threshold))
    assert inside.min() > threshold - 1e-6
    assert outside.max() < threshold + 1e-6
    shares = (below(inside) - (1 - q)) / q, below(outside) / (1 - q), below(null)
    return [float(stats.kstest(part, "uniform").pvalue) for part in shares]


@pytest.mark.parametrize(("dim", "threshold", "sphere"), LAWS)
def test_reports_have_their_law(dim: int, threshold: float, sphere: bool) -> None:
    if dim == 1 and sphere:
        _, inside, outside, null = reported(dim, threshold, sphere)
        assert (inside == 1).all()
        assert (outside == -1).all()
        assert abs(np.count_nonzero(null == 1) - len(null) / 2) < 2 * math.sqrt(len(null))
        return
    assert min(gaps(dim, threshold, sphere)) > 1e-3


@pytest.mark.parametrize(("dim", "threshold", "sphere"), LAWS[2::4])
def test_the_share_inside_is_the_stated_one(dim: int, threshold: float, sphere: bool) -> None:
    n = 40_000
    rows = CapRows.drawn(law_of(dim, threshold, sphere), pool(1), n)
    assert abs(np.count_nonzero(rows.inside) - 0.6 * n) < 4 * math.sqrt(0.24 * n)


@pytest.mark.parametrize(
    ("dim", "threshold", "sphere", "fault"),
    [
        (2, 0.05, True, "keeps all heights"),
        (3, 0.6, True, "keeps all heights"),
        (5, 0.5, False, "keeps all heights"),
        (10, 0.5, True, "keeps all heights"),
        (10, 0.5, True, "one normal more"),
        (7, 0.2, True, "keeps all points"),
        (5, 0.5, False, "keeps all points"),
        (7, 0.2, True, "null points are those outside"),
    ],
)
def test_broken_laws_are_seen(
    dim: int, threshold: float, sphere: bool, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of(self: CapLaw, exponentials: Any, normals: Any, bits: int | None) -> Any:
        return Approx(np.ones(max(len(exponentials.value), len(normals.value))))

    if fault == "one normal more":
        inner = CapLaw.height_wide.func  # type: ignore[attr-defined]
        more = property(lambda self: (inner(self)[0] + 1, inner(self)[1]))
        monkeypatch.setattr(CapLaw, "height_wide", more)
    elif fault == "keeps all heights":
        monkeypatch.setattr(CapLaw, "in_cap", all_of)
    elif fault == "keeps all points":
        monkeypatch.setattr(CapLaw, "outside", all_of)
    else:
        steps = CapRows.steps

        def same(self: CapRows, *args: Any) -> Any:
            return steps(dataclasses.replace(self, first=self.last), *args)

        monkeypatch.setattr(CapRows, "steps", same)
    if fault == "keeps all points":
        with pytest.raises(AssertionError):
            gaps(dim, threshold, sphere)
    else:
        assert min(gaps(dim, threshold, sphere, n=40_000 if dim == 2 else 5000)) < 1e-6


# Doubles and integers -----------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "threshold", "sphere"), LAWS)
def test_bounds_in_doubles_hold_against_integers(
    dim: int, threshold: float, sphere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For directions along an axis, opposite to it and any other, and null reports."""
    n, bits = 8, 120
    rows = CapRows.drawn(law_of(dim, threshold, sphere), pool(5), n)
    units = directions(dim, n)
    units[:2] = 0.0
    units[:2, 0] = 1, -1
    units[2] *= 1 + 2e-15
    null = np.arange(n) == 3
    values, errors = rows._in_doubles(units, null)
    exact: list[list[float]] = []
    floors: list[Interval] = []

    def noted(self: Interval) -> int:
        floors.append(self)
        return 0

    monkeypatch.setattr(Interval, "floor", noted)
    for i in range(n):
        floors.clear()
        rows._exactly(i, list(range(dim)), units[i], bool(null[i]), bits)
        off = [
            Fraction(v) - Fraction(x.low, 1 << bits)
            for v, x in zip(values[i].tolist(), floors, strict=True)
        ]
        assert all(x.high - x.low < 1 << bits - 20 for x in floors)
        exact.append([abs(float(x)) for x in off])
    assert (np.array(exact) <= errors).all()
    if dim > 1:
        assert (np.array(exact) > 1e-4 * errors).any()
        assert np.median(errors) < 1e-4  # of a step
    for broken in (1e-5, 1e-9):  # bounds that are too small do not hold
        if dim > 2:
            assert (np.array(exact) > broken * errors).any()


@pytest.mark.parametrize(
    ("dim", "threshold", "sphere"), [law for law in LAWS if law[1]] + [(8, 1e-3, True)]
)
def test_bounds_of_heights_and_margins_hold_against_integers(
    dim: int, threshold: float, sphere: bool
) -> None:
    law, n, bits = law_of(dim, threshold, sphere), 6, 130
    candidates = [
        (caps.Candidates.drawn(pool(8), n, law.height_wide), [law.in_cap, law.height]),
        (caps.Candidates.drawn(pool(9), n, (0, dim)), [law.outside]),
    ]
    for found, formulas in candidates:
        exponentials, normals = found.approximate()
        for formula in formulas:
            known = formula(exponentials, normals, None)
            for i in range(n):
                exact = formula(*found.enclosed(i, bits), bits)
                pairs = zip(known, exact, strict=True) if isinstance(known, tuple) else None
                for near, (true,) in pairs or [(known, exact)]:
                    error = np.broadcast_to(near.error, n)[i]
                    off = abs(Fraction(near.value[i]) - Fraction(true.low, 1 << bits))
                    assert true.high - true.low < 1 << bits - 50
                    assert off <= error < 1e-6
                    assert off > 1e-6 * error  # a bound that says something


@pytest.mark.parametrize(("dim", "threshold", "sphere"), LAWS)
def test_coarse_doubles_give_the_same_reports(
    dim: int, threshold: float, sphere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 18 of the 40 bits, integers decide every rounding and many comparisons."""
    n = 12
    units, null = directions(dim, n), np.arange(n) % 4 == 0

    def made() -> tuple[CapRows, Any]:
        rows = CapRows.drawn(law_of(dim, threshold, sphere), pool(7), n)
        return rows, rows.steps(units, null)

    fine, found = made()
    refined: list[int] = []
    inner = CapRows._exactly

    def counting(self: CapRows, row: int, columns: list[int], *rest: Any) -> list[int]:
        refined.append(len(columns))
        return inner(self, row, columns, *rest)

    def coarse(floors: Any) -> Approx:
        return Approx(((floors >> 22) + 0.5) * 2.0**-18, 2.0**-19)

    monkeypatch.setattr(caps, "approximate", coarse)
    monkeypatch.setattr(CapRows, "_exactly", counting)
    again, same = made()
    assert np.array_equal(found, same)
    assert np.array_equal(fine.last, again.last)
    assert np.array_equal(fine.heights, again.heights)
    if not (dim == 1 and sphere):
        assert sum(refined) > 0.5 * n * dim
    # a twin that takes coarse doubles for exact ones
    monkeypatch.setattr(caps, "approximate", lambda floors: Approx(coarse(floors).value, 0.0))
    if not (dim == 1 and sphere):
        assert not np.array_equal(found, made()[1])


def test_a_decision_on_the_edge_is_made_on_more_bits() -> None:
    """Candidates are moved so near the edge of the cap that 40 bits do not decide."""
    law = law_of(3, 0.5, True)
    found = caps.Candidates.drawn(pool(), 400, (0, 3))
    assert found.normals is not None
    w = np.ldexp(found.normals.floors.reshape(-1, 3).astype(float), -40)
    across = np.hypot(w[:, 1], w[:, 2])
    edge = np.rint(np.ldexp(across / math.sqrt(3), 40)).astype(np.int64)  # x = τr
    floors = found.normals.floors.copy().reshape(-1, 3)
    floors[:, 0] = edge
    asked: list[int] = []

    class Moved:
        """The same normals, the first of each three with the new floor and its own further bits."""

        def __init__(self) -> None:
            self.floors = floors.reshape(-1)

        def __len__(self) -> int:
            return len(self.floors)

        def refined(self, i: int, bits: int) -> int:
            asked.append(i)
            fine = found.normals.refined(i, bits)  # type: ignore[union-attr]
            if i % 3:
                return fine
            return (int(edge[i // 3]) << bits - 40) + (fine & (1 << bits - 40) - 1)

    moved: Any = caps.Candidates(None, Moved(), (0, 3))  # type: ignore[arg-type]
    exponentials, normals = moved.approximate()
    margins = law.outside(exponentials, normals, None)
    assert margins.unsure.all()
    kept = set(law._where_kept(moved, law.outside).tolist())
    assert len(set(asked)) == 1200
    for row in range(0, 400, 20):
        x, y, z = (Fraction(moved.normals.refined(3 * row + j, 90), 2**90) for j in range(3))
        assert (row in kept) == (4 * x * x < x * x + y * y + z * z)
    assert 20 < len(kept) < 200  # one in eight


def test_what_is_drawn_does_not_depend_on_the_coin() -> None:
    """Heights in the cap and points outside are there for every report, whatever it takes."""
    one, two = (CapRows.drawn(law_of(5, 0.4, True, share), pool(2), 200) for share in (0.3, 0.99))
    assert not np.array_equal(one.inside, two.inside)
    assert one.whole.normals is not None
    assert np.array_equal(one.whole.normals.floors, two.whole.normals.floors)  # type: ignore[union-attr]
    for name in ("first", "last", "heights", "turns", "public"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


def test_no_two_reports_share_normals() -> None:
    rows = CapRows.drawn(law_of(4, 0.2, True), pool(3), 500)
    assert (rows.first[1:] > rows.last[:-1]).all()
    assert (rows.first <= rows.last).all()
    assert (rows.last - rows.first > 0).any()
    assert len(set(rows.heights.tolist())) == 500
    part = rows[20:30]
    assert len(part) == 10
    units, null = directions(4, 500), np.arange(500) % 2 == 0
    assert np.array_equal(rows.steps(units, null)[20:30], part.steps(units[20:30], null[20:30]))


@pytest.mark.parametrize(("dim", "threshold", "sphere"), LAWS)
def test_rows_that_are_prepared_give_the_same_reports(
    dim: int, threshold: float, sphere: bool
) -> None:
    """To the last bit, for rows by themselves and together; points of the other law do not."""
    n = 200
    rows = CapRows.drawn(law_of(dim, threshold, sphere), pool(6), n)
    units, null = directions(dim, n), np.arange(n) % 3 == 0
    steps, ahead = rows.steps(units, null), rows.about_axis()
    assert ahead.points is not None
    assert np.array_equal(ahead.steps(units, null), steps)
    single = [ahead[i : i + 1].steps(units[i : i + 1], null[i : i + 1]) for i in range(n)]
    assert np.array_equal(np.concatenate(single), steps)
    wrong = dataclasses.replace(ahead, points=ahead.points[::-1])
    assert not np.array_equal(wrong.steps(units, null), steps)
