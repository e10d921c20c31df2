"""Which integer vectors lie in a set: checks that hold whatever the integers are.

Clipping may scale and round as it likes, because what it makes is kept only where one of these
checks says so.  A check uses integers, and + − × ÷ √ of doubles in any order of summation; a row
that it cannot certify counts as outside.  The proofs stand in docs/proofs.md, "Clipping on
integers".
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privlearn.values.exact import float_down

Integers = NDArray[np.int64]
Inside = NDArray[np.bool_]

MOST = 2**62
"""Bound on every entry, in steps."""
_UNIT = Fraction(1, 2**52)
_EXACT = 2**53  # Doubles hold all integers up to here
_HALF, _LOW = np.uint64(31), np.uint64(2**31 - 1)
_ROOTS = 44  # Binary digits of a fractional exponent that are used
MOST_EXPONENT = 2.0**30
"""Of norms other than ℓ∞: a ball of a larger exponent is cut to that of this one."""


def inside(steps: Integers, radius: int, exponent: float) -> Inside:
    """Which rows, shape (n, d), certainly have an ℓq norm of at most ``radius`` < 2⁶²."""
    if exponent == 1:
        return _inside_l1(steps, radius)
    if exponent == 2:
        return _inside_l2(steps, radius)
    within = _inside_cube(steps, radius)
    return within if exponent == math.inf else within & _inside_lq(steps, radius, exponent)


def _magnitudes(steps: Integers) -> NDArray[np.uint64]:
    """|X|, right for −2⁶³ too: NumPy's abs leaves it as it is, which reads 2⁶³ without a sign."""
    return np.abs(steps).view(np.uint64)


def _inside_cube(steps: Integers, radius: int) -> Inside:
    sizes = _magnitudes(steps)
    if sizes.max(initial=0) <= radius:
        return np.ones(len(steps), dtype=np.bool_)
    return np.asarray(sizes.max(axis=1) <= radius)


def _inside_l1(steps: Integers, radius: int) -> Inside:
    sizes = _magnitudes(steps)
    # Cut one above the radius a sum is as much too large as before, and cannot wrap.
    np.minimum(sizes, np.uint64(radius + 1), out=sizes)
    if (radius + 1) * steps.shape[1] < 2**64:
        return np.asarray(np.einsum("ij->i", sizes) <= radius)
    low = np.add.reduce(sizes & _LOW, axis=1)  # of d numbers below 2^31, and of d below 2^32
    high = np.add.reduce(sizes >> _HALF, axis=1) + (low >> _HALF)
    most, rest = np.uint64(radius) >> _HALF, np.uint64(radius) & _LOW
    return np.asarray((high < most) | ((high == most) & ((low & _LOW) <= rest)))


def _inside_l2(steps: Integers, radius: int) -> Inside:
    values, most = steps.astype(np.float64), certain(radius**2, steps.shape[1] + 8)
    if len(values) == 1:  # the same in less time
        return np.array([np.vdot(values, values) <= most])
    return np.asarray(np.einsum("ij,ij->i", values, values) <= most)


@lru_cache(maxsize=256)
def certain(limit: int, roundings: int) -> float:
    """The largest double s with: a sum of terms >= 0 that is computed to be <= s, is <= ``limit``.

    Where each term has suffered at most ``roundings`` roundings, those of the sum included; of
    integers none counts as long as ``limit`` is below 2⁵³, because smaller ones are exact.
    """
    if limit < _EXACT:
        return float(limit)
    return float_down(limit / (1 + roundings * _UNIT))


def _inside_lq(steps: Integers, radius: int, exponent: float) -> Inside:
    """Which rows, of entries no larger than ``radius``, certainly have Σ|X/radius|^q <= 1."""
    if radius == 0:
        return np.ones(len(steps), dtype=np.bool_)
    q = min(exponent, MOST_EXPONENT)
    whole = int(q)
    ratios = np.abs(steps.astype(np.float64)) / float_down(Fraction(radius))
    powers = _power(ratios, whole)
    digits, root = int((q - whole) * 2**_ROOTS), ratios  # rounded down: powers of x <= 1 grow
    for place in range(_ROOTS - 1, -1, -1):
        if not digits & ((2 << place) - 1):
            break
        root = np.sqrt(root)
        if digits >> place & 1:
            powers *= root
    roundings = steps.shape[1] + 5 * whole + 5 * _ROOTS
    limit = float_down((1 - _UNIT / 4) / (1 + roundings * _UNIT))
    return np.asarray(np.add.reduce(powers, axis=1) <= limit)


def _power(base: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    """By squaring, so that only multiplication is trusted."""
    result, square = np.ones_like(base), base
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return result
