"""The mass of a cap under the null law, and logarithms, between rational bounds.

Everything is integer arithmetic that is rounded to a known side: prices rest on it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, reduce

from privlearn.noise.exact.caps import Interval
from privlearn.noise.exact.tails import exp_minus, normal_tail, pi

_DIGITS = 96  # Correct bits of a mass, at least
_SMALLEST = 1e-210  # Caps of less are not computed: their mass is between 0 and this


@lru_cache(maxsize=1024)
def cap_mass(dim: int, threshold: float, sphere: bool) -> tuple[Fraction, Fraction]:
    """Bounds of Q(⟨z, u⟩ >= t), t >= 0: z uniform on the unit sphere, or N(0, I)."""
    if threshold == 0:
        return Fraction(1, 2), Fraction(1, 2)
    return _on_sphere(dim, Fraction(threshold)) if sphere else _of_normals(Fraction(threshold))


def _of_normals(t: Fraction) -> tuple[Fraction, Fraction]:
    precision = _DIGITS + 16 + math.ceil(t * t)
    low, high = normal_tail(t.numerator, t.denominator.bit_length() - 1, precision)
    return Fraction(low, 2 << precision), Fraction(high, 2 << precision)


def _on_sphere(dim: int, t: Fraction) -> tuple[Fraction, Fraction]:
    """½·I_y(a, ½) with y = 1 − t², a = (d − 1)/2.

    With x = t² and B = B(a, ½): I_y(a, ½) = y^a·t/(aB)·Σ (a+½)_n/(a+1)_n·y^n, and one minus it is
    2y^a·t/B·Σ (a+½)_n/(3/2)_n·x^n; of the two positive series the one with y or x <= 1/2.
    """
    x, a = t * t, Fraction(dim - 1, 2)
    y = 1 - x
    halvings = -float(a) * math.log2(y)
    if halvings > -math.log2(_SMALLEST):  # q <= y^a/2
        return Fraction(0), Fraction(_SMALLEST)
    bits = _DIGITS + 2 * math.ceil(halvings) + 2 * dim.bit_length() + 32
    common = _power(_interval(y, bits).sqrt(), dim - 1) * _interval(t, bits)
    common = common * _one_over_beta(dim, bits)
    if 2 * y <= 1:
        found = common / _interval(2 * a, bits) * _series(a, a + 1, y, bits)
    else:
        rest = _interval(Fraction(2), bits) * common * _series(a, Fraction(3, 2), x, bits)
        found = (_interval(Fraction(1), bits) - rest) * _interval(Fraction(1, 2), bits)
    return Fraction(max(found.low, 0), 1 << bits), Fraction(found.high, 1 << bits)


def _interval(value: Fraction, bits: int) -> Interval:
    low = (value.numerator << bits) // value.denominator
    return Interval(low, low + 1, bits)


def _power(base: Interval, exponent: int) -> Interval:
    digits = bin(exponent)[3:]
    return reduce(lambda p, digit: p * p * base if digit == "1" else p * p, digits, base)


def _series(a: Fraction, below: Fraction, z: Fraction, bits: int) -> Interval:
    """Σ (a+½)_n/(below)_n·z^n for 0 < z <= 1/2: positive terms."""
    top, bottom = int(2 * a + 1), int(2 * below)  # of twice the numbers
    numerator, denominator = z.numerator, z.denominator
    term = total = 1 << bits
    n = 0
    while True:
        term = term * (top + 2 * n) * numerator // ((bottom + 2 * n) * denominator)
        total += term
        n += 1
        ratio = max(z * Fraction(top + 2 * n, bottom + 2 * n), z)
        # from here on each term is at most ``ratio`` times the one before
        if ratio <= Fraction(3, 4) and term <= 1:
            break
    # ratios of terms fall, or rise to z: so a floor's unit, with what becomes of it in the terms
    # behind it, is at most the sum of all terms, or 2; what is left out is at most 3 units
    growth = total >> bits
    return Interval(total, total + (n + 1) * (growth + 2) * 4, bits)


@lru_cache(maxsize=64)
def _one_over_beta(dim: int, bits: int) -> Interval:
    """1/B((d−1)/2, ½): m·g for d = 2m + 1 and 1/(πg) for d = 2m + 2, g = (2m choose m)/4^m."""
    m = (dim - 1) // 2
    g = 1 << bits
    for j in range(1, m + 1):  # each floor loses less than a unit, and later factors are below 1
        g = g * (2 * j - 1) // (2 * j)
    central = Interval(g, g + m + 1, bits)
    if dim % 2:
        return _interval(Fraction(m), bits) * central
    return Interval(1 << bits, 1 << bits, bits) / (Interval(*pi(bits), bits) * central)


def log_above(x: Fraction) -> Fraction:
    """Not below log x, x > 1, and above it by little more than a double's rounding.

    e^−L <= 1/x is shown in integers for a guess L of the machine's logarithm, which is raised until
    it holds.
    """
    if x <= 1:
        raise ValueError(f"x = {float(x)!r}: must exceed 1")
    guess = Fraction(math.log1p(float(x - 1)) if x < 2 else math.log(x))
    slack = guess / 2**51
    while True:
        found = Fraction(math.nextafter(float(guess + slack), math.inf))
        bits = found.denominator.bit_length() - 1
        precision = 160 + 2 * (x.numerator // x.denominator).bit_length()
        if exp_minus(found.numerator, bits, precision)[1] * x <= 1 << precision:
            return found
        slack *= 2
