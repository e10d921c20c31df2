"""x^p, norms and roots of order p, for every double p: against mpmath."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.noise.exact.real_powers import (
    RealPower,
    integer_root,
    real_power,
    root_above,
)
from privlearn.noise.exact.tails import Bounds

EXPONENTS = st.one_of(st.floats(1, 4), st.floats(1, 1000), st.integers(1, 1000).map(float))
ORACLE = 2.0**-1000
"""mpmath, too, rounds."""
SIZES = st.one_of(st.floats(2.0**-50, 1), st.floats(0.9, 16))


def error(p: float, x: float, power: RealPower) -> float:
    """Of x^p, in units of what is allowed."""
    found = float(power.doubles(np.array([x]))[0])
    with mpmath.workprec(300):
        exact = mpmath.mpf(x) ** mpmath.mpf(p)
        return float(abs(found / exact - 1)) / (1.01 * 2.0**-53 * max(power.roundings, 0.01))


@given(EXPONENTS, SIZES)
def test_doubles_are_as_near_as_they_say(p: float, x: float) -> None:
    if abs(p * math.log(x)) < 690:  # where no product under- or overflows
        assert error(p, x, real_power(p)) <= 1


@pytest.mark.parametrize("p", [1.25, 2.5, 2.7, math.nextafter(3, 4), 998.7])
def test_one_digit_of_the_exponent_more_or_less_is_seen(p: float) -> None:
    power = real_power(p)
    assert power.whole + sum(2.0**-j for j, b in enumerate(power.digits, 1) if b) == p
    assert power.digits[-1]
    # past the last place of a double a digit hardly moves x^p, so the twentieth at the latest
    place = min(len(power.digits), 20) - 1
    digits = list(power.digits)
    digits[place] = not digits[place]
    wrong = dataclasses.replace(power, digits=tuple(digits) if digits[-1] else (*digits, True))
    assert error(p, 1.5, power) <= 1 < error(p, 1.5, wrong)
    x = 3 << 79, 3 << 79
    assert encloses(power.between(x, 80), p, x, 80)
    assert not encloses(wrong.between(x, 80), p, x, 80)


def encloses(found: Bounds, p: float, x: Bounds, precision: int) -> bool:
    with mpmath.workprec(3000):
        least, most = ((mpmath.mpf(end) / 2**precision) ** mpmath.mpf(p) for end in x)
        return bool(found[0] <= least * 2**precision and most * 2**precision <= found[1])


@given(EXPONENTS, st.integers(0, 2**130), st.integers(0, 2**40), st.sampled_from([64, 128, 150]))
def test_powers_lie_between_their_bounds(p: float, low: int, wide: int, precision: int) -> None:
    low = low % (2 << precision)
    power = real_power(p)
    found = power.between((low, low + wide), precision)
    assert encloses(found, p, (low, low + wide), precision)
    point = power.between((low, low), precision)
    # a unit for each product and root, times the slope where x > 1
    assert point[1] - point[0] <= 20 * math.ceil(p) * (1 + (point[0] >> precision)) + 2 ** (
        precision // 2 + 1
    )
    above = 1 << precision
    least, most = power.between((above + low, above + low), precision)
    assert most - least <= 20 * math.ceil(p) * (1 + (most >> precision))


@given(EXPONENTS, st.integers(0, 2**90), st.integers(0, 2**50), st.sampled_from([58, 90, 200]))
def test_roots_lie_between_their_bounds(p: float, low: int, wide: int, precision: int) -> None:
    found = real_power(p).root((low, low + wide), precision)
    with mpmath.workprec(3000):
        least, most = (
            (mpmath.mpf(end) / 2**precision) ** (1 / mpmath.mpf(p)) * 2**precision
            for end in (low, low + wide)
        )
        assert found[0] <= least + ORACLE
        assert most - ORACLE <= found[1]


@given(
    st.one_of(st.floats(2, 4), st.floats(2, 1000), st.integers(2, 1000).map(float)),
    st.lists(st.integers(0, 2**62), min_size=1, max_size=6),
    st.sampled_from([58, 128]),
    st.booleans(),
)
def test_norms_lie_between_their_bounds(
    p: float, x: list[int], precision: int, exact: bool
) -> None:
    found = real_power(p).norm([(each, each + (not exact)) for each in x], precision)
    with mpmath.workprec(3000):
        least, most = (
            mpmath.fsum(mpmath.mpf(each + more) ** mpmath.mpf(p) for each in x)
            ** (1 / mpmath.mpf(p))
            for more in (0, not exact)
        )
        assert found[0] <= least + ORACLE
        assert most - ORACLE <= found[1]
        assert found[1] - found[0] <= most - least + 3 + 8 * (max(x) < 2**40)


def test_norms_of_nothing_and_of_what_may_be_nothing() -> None:
    power = real_power(2.5)
    assert power.norm([(0, 0), (0, 0)], 58) == (0, 0)
    low, high = power.norm([(0, 1), (0, 3)], 58)
    assert (low, high) == (0, 4)


@given(st.integers(0, 2**3000), st.integers(2, 1000))
def test_integer_roots(number: int, p: int) -> None:
    root = integer_root(number, p)
    assert root**p <= number < (root + 1) ** p


@given(st.integers(0, 10**6), EXPONENTS)
def test_roots_above(n: int, p: float) -> None:
    root = root_above(n, p)
    with mpmath.workprec(300):
        assert mpmath.mpf(root) ** mpmath.mpf(p) >= n
    assert root <= n ** (1 / p) * 1.002 + 1e-5
