"""What the noise families are: V = tail(z), enclosed between integers.

Everything here is integer arithmetic that is rounded to a known side.  A bound (low, high) at
``precision`` P of a number x says low <= 2^P·x <= high.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias, final

Bounds: TypeAlias = tuple[int, int]

_GUARD = 24  # Bits beyond the precision that is asked for


@final
@dataclass(frozen=True, slots=True)
class Family:
    """A decreasing function f on (0, 1), given by its inverse.

    Args:
        name: of the family, and of its table.
        tail: bounds of tail(m·2^−bits) at a precision; tail decreases from 1 to 0 and is the
            inverse of f; beyond f's values it may be any bound.
        guess: f at a double, nearly; it only chooses where the search begins.
    """

    name: str
    tail: Callable[[int, int, int], Bounds]
    guess: Callable[[float], float]


def exp_minus(x: int, bits: int, precision: int) -> Bounds:
    """Bounds of e^(−x·2^−bits), x >= 0.

    With r = x·2^−(bits+s) < 2^−8 the alternating series gives e^−r within its first term left out
    and one unit for each division; s squarings then double the error and add one unit each.
    """
    if x < 0:
        raise ValueError(f"x = {x}: must be at least 0")
    if x >> bits > precision + 2:  # e^−x < 2^−x
        return 0, 1
    squarings = max(x.bit_length() - bits + 8, 0)
    working = precision + squarings + _GUARD
    shift = bits + squarings
    power, total, n = 1 << working, 1 << working, 0
    while power:
        n += 1
        power = (power * x >> shift) // n
        total += -power if n % 2 else power
    # n terms, each short of its value by less than 2 units (its own floor, and the one before
    # times r/n < 1/2); what is left out is below one unit
    error = 2 * n + 1
    for _ in range(squarings):
        total = total * total >> working
        error = 2 * error + 1 + (error * error >> working) + 1
    drop = working - precision
    return max(total - error, 0) >> drop, min((total + error >> drop) + 1, 1 << precision)


def _exp_minus_between(bounds: Bounds, bits: int, precision: int) -> Bounds:
    """Bounds of e^−x for every x within bounds at precision ``bits``."""
    return exp_minus(bounds[1], bits, precision)[0], exp_minus(bounds[0], bits, precision)[1]


@lru_cache(maxsize=16)
def pi(precision: int) -> Bounds:
    """Bounds of π.  Machin: π = 16·arctan(1/5) − 4·arctan(1/239)."""
    working = precision + _GUARD

    def arctan_inverse(q: int) -> Bounds:
        power, total, n = (1 << working) // q, 0, 0
        terms = 0
        while power:
            term = power // (2 * n + 1)
            total += -term if n % 2 else term
            power //= q * q
            n, terms = n + 1, terms + 1
        return total - 2 * terms - 1, total + 2 * terms + 1

    five, other = arctan_inverse(5), arctan_inverse(239)
    low, high = 16 * five[0] - 4 * other[1], 16 * five[1] - 4 * other[0]
    return low >> _GUARD, (high >> _GUARD) + 1


def normal_tail(m: int, bits: int, precision: int) -> Bounds:
    """P(|Z| > m·2^−bits), Z standard normal: erfc(z/√2).

    1 − √(2/π)·z·e^(−z²/2)·Σ z^(2n)/(1·3·…·(2n+1)), a series of positive terms.
    """
    if m <= 0:
        return 1 << precision, 1 << precision
    square = m * m  # 2^(2·bits)·z²
    half = 2 * bits + 1  # z²/2 = square·2^−half
    if square >> half > precision + 2:  # tail <= e^(−z²/2)
        return 0, 1
    large = (square * 3 >> half + 1) + 2  # the sum is at most e^(z²/2) < 2^(1.5·z²/2)
    working = precision + large + _GUARD
    # terms fall from n = z²/2 on; the rest after a vanished term, where the ratio is below 1/2
    # at 2n + 3 > 2z², is smaller than that term
    term, total, n = 1 << working, 1 << working, 0
    while term or 2 * n + 3 <= 2 * square >> 2 * bits:
        n += 1
        term = (term * square >> 2 * bits) // (2 * n + 1)
        total += term
    # a floor's unit grows like the terms after it, by at most 2^large
    sum_low, sum_high = total, total + ((n + 2) << large + 1)
    low, high = exp_minus(square, half, working)
    pi_low, pi_high = pi(working)
    # √(2/π) at precision ``working``
    root_low = math.isqrt((2 << 3 * working) // pi_high)
    root_high = math.isqrt((2 << 3 * working) // pi_low) + 1
    scale = 2 * working + bits + working - precision
    inner_low = m * root_low * low * sum_low >> scale
    inner_high = (m * root_high * high * sum_high >> scale) + 1
    one = 1 << precision
    return max(one - inner_high, 0), max(one - inner_low, 0)


def exponential_tail(m: int, bits: int, precision: int) -> Bounds:
    """P(E > m·2^−bits) = e^−z, E standard exponential."""
    return exp_minus(max(m, 0), bits, precision)


def gumbel_top_tail(m: int, bits: int, precision: int) -> Bounds:
    """2·P(G > m·2^−bits) = 2 − 2·exp(−e^−z), for the upper half of a Gumbel variate G."""
    one = 1 << precision
    if m <= 0:  # 2 − 2/e > 1
        return one, 2 * one
    low, high = _exp_minus_between(_exp_of_minus(m, bits, precision), precision, precision)
    return 2 * (one - high), 2 * (one - low)


def gumbel_bottom_tail(m: int, bits: int, precision: int) -> Bounds:
    """2·P(G < −m·2^−bits) = 2·exp(−e^y), y = m·2^−bits, for the lower half."""
    if m > 0 and m >> bits >= precision.bit_length() + 2:  # e^y > 2^y > 4·precision
        return 0, 1
    if m < -1 << bits:  # 2·exp(−1/e) > 1
        return 1 << precision, 2 << precision
    low, high = _exp_minus_between(_exp_of_minus(-m, bits, precision), precision, precision)
    return 2 * low, 2 * high


def _exp_of_minus(m: int, bits: int, precision: int) -> Bounds:
    """Bounds of e^(−m·2^−bits) for either sign of m."""
    if m >= 0:
        return exp_minus(m, bits, precision)
    # for −z > 0: 1/e^−|z|, with as many more bits as it has before the point, twice
    working = precision + 2 * ((-m * 3 >> bits + 1) + 2) + _GUARD
    low, high = exp_minus(-m, bits, working)
    one = 1 << 2 * working
    drop = working - precision
    return one // high >> drop, (-(-one // low) >> drop) + 1


def _normal_guess(v: float) -> float:
    return -NormalDist().inv_cdf(v / 2)


NORMAL = Family("normal", normal_tail, _normal_guess)
EXPONENTIAL = Family("exponential", exponential_tail, lambda v: -math.log(v))
GUMBEL_TOP = Family("gumbel-top", gumbel_top_tail, lambda v: -math.log(-math.log1p(-v / 2)))
GUMBEL_BOTTOM = Family("gumbel-bottom", gumbel_bottom_tail, lambda v: math.log(-math.log(v / 2)))
FAMILIES = (NORMAL, EXPONENTIAL, GUMBEL_TOP, GUMBEL_BOTTOM)
"""In the order in which their tables stand."""
