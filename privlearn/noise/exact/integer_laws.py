"""Laws on the integers, exactly, for rational parameters.

Nothing here is added to contributions by the mechanisms of this package: noise on a grid has the
price of the continuous noise, which that of a discrete Gaussian exceeds.  Values are Python's
integers, for parameters of any size.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from privlearn.noise.exact.pool import Pool, Variates
from privlearn.noise.exact.tables import FLOOR_BITS
from privlearn.values.exact import Exact, exact

_SATURATED = 1 << 62
_MORE = 64
"""Bits by which an exponential is refined where it does not decide."""


def geometric(pool: Pool, scale: Exact, n: int) -> list[int]:
    """``n`` integers k >= 0 with P(k or more) = e^(−k/scale): ⌊scale·E⌋, E exponential.

    Args:
        pool: of variates.
        scale: > 0, as an exact number; a float counts as its shortest decimal.
        n: how many.

    Raises:
        ValueError: ``scale`` is not positive.
    """
    ratio = _positive("scale", scale)
    drawn = pool.variates("exponential", n)
    return [_floor_of_multiple(drawn, i, m, ratio) for i, m in enumerate(drawn.floors.tolist())]


def discrete_laplace(pool: Pool, scale: Exact, n: int) -> list[int]:
    """``n`` integers with probabilities ∝ e^(−|k|/scale).

    A geometric size with a random sign, again where that would be −0 (Canonne, Kamath & Steinke
    2020, Algorithm 2).

    Raises:
        ValueError: ``scale`` is not positive.
    """
    found: list[int] = []
    while len(found) < n:
        left = n - len(found)
        sizes = geometric(pool, scale, left)
        signs = (pool.words(left) & np.uint64(1)).tolist()
        found += [-k if sign else k for k, sign in zip(sizes, signs, strict=True) if k or not sign]
    return found


def discrete_gaussian(pool: Pool, variance: Exact, n: int) -> list[int]:
    """``n`` integers with probabilities ∝ e^(−k²/(2·variance)).

    Discrete Laplace of scale t = ⌊σ⌋ + 1, accepted with probability e^−(|k| − σ²/t)²/(2σ²): an
    exponential exceeds that rational number (Canonne, Kamath & Steinke 2020, Algorithm 3).

    Raises:
        ValueError: ``variance`` is not positive.
    """
    square = _positive("variance", variance)
    a, b = square.numerator, square.denominator
    t = math.isqrt(a // b) + 1
    below = 2 * a * b * t * t
    found: list[int] = []
    while len(found) < n:
        proposed = discrete_laplace(pool, t, n - len(found))
        levels = pool.variates("exponential", len(proposed))
        for i, (k, m) in enumerate(zip(proposed, levels.floors.tolist(), strict=True)):
            if _exceeds(levels, i, m, (abs(k) * b * t - a) ** 2, below):
                found.append(k)
    return found


def _positive(name: str, value: Exact) -> Fraction:
    number = exact(name, value)
    if number <= 0:
        raise ValueError(f"{name} = {value!r}: must be > 0")
    return number


def _floor_of_multiple(drawn: Variates, i: int, m: int, ratio: Fraction) -> int:
    """⌊ratio·z_i⌋, m = ⌊2^40 z_i⌋."""
    bits = FLOOR_BITS
    m = drawn.refined(i, bits) if m >= _SATURATED else m
    while True:
        below = ratio.denominator << bits
        low = ratio.numerator * m // below
        # z_i is less than (m + 1)·2^−bits, and no rational number
        if low == (ratio.numerator * (m + 1) - 1) // below:
            return low
        bits += _MORE
        m = drawn.refined(i, bits)


def _exceeds(drawn: Variates, i: int, m: int, above: int, below: int) -> bool:
    """Whether z_i > above/below, m = ⌊2^40 z_i⌋."""
    bits = FLOOR_BITS
    m = drawn.refined(i, bits) if m >= _SATURATED else m
    while True:
        if m * below >= above << bits:
            return True
        if (m + 1) * below <= above << bits:
            return False
        bits += _MORE
        m = drawn.refined(i, bits)
