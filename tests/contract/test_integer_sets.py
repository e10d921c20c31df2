"""Checks of integers: never a row that is outside, whatever the integers are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from mutation import Edit, InspectionCase, Mutant
from numpy.typing import NDArray

from privlearn.values.integer_sets import certain, inside

Integers = NDArray[np.int64]
EXPONENTS = (1.0, 1.3, 1.5, 2.0, 2.5, 3.0, 7.75, math.inf)
LEAST, MOST = -(2**63), 2**63 - 1


def held(rows: object, radius: int, exponent: float) -> list[bool]:
    with np.errstate(all="ignore"):
        answer = inside(np.array(rows, dtype=np.int64), radius, exponent)
    assert answer.dtype == np.bool_
    return [bool(one) for one in answer]


def exact_power_sum(row: list[int], exponent: float) -> mpmath.mpf:
    """Σ|X|^q to 90 digits."""
    with mpmath.workdps(90):
        return mpmath.fsum(mpmath.mpf(abs(x)) ** mpmath.mpf(exponent) for x in row)


@lru_cache(maxsize=4096)
def side(sizes: tuple[int, ...], radius: int, exponent: float) -> int:
    """-1, 0 or 1: inside, on the edge, outside."""
    if exponent == math.inf:
        return int(np.sign(max(sizes) - radius))
    with mpmath.workdps(90):
        beyond = exact_power_sum(list(sizes), exponent) - mpmath.mpf(radius) ** exponent
        return 0 if abs(beyond) < mpmath.mpf(10) ** -70 else int(mpmath.sign(beyond))


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("radius", [0, 1, 2, 5])
def test_small_integers_are_told_apart_one_by_one(radius: int, exponent: float) -> None:
    exact = exponent in (1, 2, math.inf)  # the others may leave out what lies on the edge
    for d in (1, 2, 3):
        rows = list(itertools.product(range(-6, 7), repeat=d))
        for row, answer in zip(rows, held(rows, radius, exponent), strict=True):
            where = side(tuple(sorted(map(abs, row))), radius, exponent)
            assert answer is (where <= 0) or (where == 0 and not exact), row


def rows_at_the_edge(exponent: float, seed: int) -> list[tuple[list[int], int, bool]]:
    """Rows, radii, and whether the row must be held inside; otherwise it is outside, just."""
    rng, made = np.random.default_rng(seed), []
    for d, size in itertools.product((1, 2, 15, 60), (2**27, 2**40, 2**52, 2**57)):
        for _ in range(3):
            row = [int(x) for x in rng.integers(-size, size + 1, d)]
            row[0] = row[0] or 1
            with mpmath.workdps(90):
                if exponent == math.inf:
                    norm = mpmath.mpf(max(map(abs, row)))
                else:
                    norm = exact_power_sum(row, exponent) ** (1 / mpmath.mpf(exponent))
                below = int(mpmath.ceil(norm)) - 1
                above = int(mpmath.ceil(norm * (1 + mpmath.mpf(2) ** -38))) + 1
            made += [(row, below, False), (row, above, True)]
    return made


def wrong_at_the_edge(exponent: float) -> str | None:
    for row, radius, within in rows_at_the_edge(exponent, seed=0):
        if held([row], radius, exponent) != [within]:
            return f"{len(row)} numbers, radius {radius}: not {within}"
    return None


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_rows_beyond_the_edge_are_outside_and_rows_just_within_it_are_not(exponent: float) -> None:
    assert wrong_at_the_edge(exponent) is None


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_extreme_integers_are_outside(exponent: float) -> None:
    rows = [
        [LEAST] * 16,
        [MOST] * 16,
        [2**60] * 16,  # adds up to 2^64
        [-(2**60)] * 16,
        [LEAST, *[0] * 15],
        [LEAST, MOST, *[0] * 14],
        [2**62] * 4 + [0] * 12,
        [2**61] * 15 + [-(2**61)],
    ]
    for radius in (0, 1, 2**20, 2**58, 2**59):
        assert not any(held(rows, radius, exponent)), radius
    zeros = [[0] * 16]
    assert held(zeros, 0, exponent) == [True]
    assert held([[2**61, *[0] * 15]], 2**62 - 1, exponent) == [True]


def test_sums_beyond_64_bits_are_exact() -> None:
    radius = 2**62 - 5
    rng = np.random.default_rng(0)
    for d in (4, 5, 100):
        for more in (-1, 0, 1, 2**31 - 1, 2**31, 2**31 + 1):
            shares = rng.multinomial(2**40, np.ones(d) / d) * ((radius + more) // 2**40)
            row = [int(x) for x in shares]
            row[0] += radius + more - sum(row)
            assert sum(row) == radius + more
            assert held([row], radius, 1.0) == [more <= 0]


def test_blocks_without_rows_are_fine() -> None:
    for exponent in EXPONENTS:
        assert inside(np.zeros((0, 3), dtype=np.int64), 5, exponent).shape == (0,)


def test_what_a_sum_must_stay_below_is_a_bound_in_exact_arithmetic() -> None:
    for limit in (0, 1, 10, 2**53 - 1):
        assert certain(limit, 1000) == limit
    for limit in (2**53, 2**80 - 1, 2**122 + 12345):
        for roundings in (9, 1283, 10**6):
            bound = certain(limit, roundings)
            assert Fraction(bound) * (2**52 + roundings) <= limit * 2**52
            assert bound >= limit * (1 - (roundings + 2) * 2.0**-52)


def _extremes(exponent: float) -> str | None:
    try:
        test_extreme_integers_are_outside(exponent)
    except AssertionError:
        return "an extreme row is held inside"
    return None


@pytest.mark.parametrize(
    ("edit", "look"),
    [
        pytest.param(
            Edit(
                "privlearn.values.integer_sets:_inside_l1",
                "np.minimum(sizes, np.uint64(radius + 1), out=sizes)",
                "pass",
            ),
            lambda: _extremes(1.0),
            id="a sum of magnitudes that wraps",
        ),
        pytest.param(
            Edit("privlearn.values.integer_sets:_magnitudes", ".view(np.uint64)", ""),
            lambda: _extremes(math.inf),
            id="the magnitude of the least integer",
        ),
        pytest.param(
            Edit(
                "privlearn.values.integer_sets:certain",
                "float_down(limit / (1 + roundings * _UNIT))",
                "float(limit)",
            ),
            lambda: wrong_at_the_edge(2.0),
            id="squares added up without their rounding",
        ),
        pytest.param(
            Edit(
                "privlearn.values.integer_sets:_inside_lq",
                "float_down((1 - _UNIT / 4) / (1 + roundings * _UNIT))",
                "1.0",
            ),
            lambda: wrong_at_the_edge(2.5),
            id="powers added up without their rounding",
        ),
        pytest.param(
            Edit(
                "privlearn.values.integer_sets:_inside_lq",
                "powers *= root",
                "powers *= root * root",
            ),
            lambda: wrong_at_the_edge(1.3),
            id="another fractional power",
        ),
    ],
)
def test_broken_checks_are_caught(edit: Edit, look: Callable[[], str | None]) -> None:
    assert look() is None
    assert Mutant("broken", "A check.", (edit,), InspectionCase(look)).check().caught
