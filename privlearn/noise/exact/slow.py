"""⌊2^k f(V)⌋ for a uniform V whose bits are drawn as they are needed: right for every V."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from privlearn.noise.exact.tails import Family

_MORE = 64  # Bits that are appended at a time
_GUARD = 32  # Bits of precision beyond those of V
_SPARE = 16  # Bits of V beyond those after the point: fewer would hardly ever do
_GUESSED = 45  # Bits after the point that a guess in doubles has nearly right
_STEPS = 8  # Each adds nearly as many right digits as the guess has
_BENT = 6
"""Binary digits of how fast the slope of a tail changes, relative to it: z for the normal one."""


@dataclass(slots=True)
class Bits:
    """The first ``count`` binary digits of V, as an integer; more are drawn as they are needed."""

    prefix: int
    count: int

    def extend(self, more: Callable[[], int]) -> None:
        self.prefix, self.count = (self.prefix << _MORE) | more(), self.count + _MORE


def exact_floor(family: Family, bits: Bits, more: Callable[[], int], k: int) -> int:
    """⌊2^k f(V)⌋, the same for all V that begin with ``bits``, which are extended until it is.

    m is the floor if and only if tail((m+1)·2^−k) < V <= tail(m·2^−k) (up to V of probability 0).
    A guess in doubles says where to begin; steps of doubled length enclose the floor and halving
    finds it, and every comparison is one of integers.  It ends with probability 1: V is none of
    the countably many tail(m·2^−k).
    """

    def reaches(m: int) -> bool:
        """Whether f(V) >= m·2^−k."""
        while True:
            precision = bits.count + _GUARD
            low, high = family.tail(m, k, precision)
            if (bits.prefix + 1) << _GUARD <= low:
                return True
            if bits.prefix << _GUARD >= high:
                return False
            bits.extend(more)

    while not bits.prefix or bits.count < k + _SPARE:
        bits.extend(more)
    known, low = -1, 0
    below = False
    while known < bits.count:  # where V begins with zeros, more bits of it may move it far
        known, low = bits.count, _improved(family, bits, k, _guess(family, bits, k))
        below = not reaches(low)
    step = 1
    while below:
        low, step = low - step, 2 * step
        below = not reaches(low)
    high, step = low + 1, 1
    while reaches(high):
        low, high, step = high, high + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reaches(middle) else (low, middle)
    return low


def _guess(family: Family, bits: Bits, k: int) -> int:
    """Near 2^k f(V); any integer is correct."""
    length = bits.prefix.bit_length()
    drop = max(length - 64, 0)
    exponent = drop - bits.count
    if length + exponent < -1000:
        return 0
    v = math.ldexp((bits.prefix >> drop) + 0.5, exponent)
    z = family.guess(min(max(v, 1e-300), 1 - 2.0**-53))
    if not math.isfinite(z):
        return 0
    return math.floor(math.ldexp(z, min(k, 60))) << max(k - 60, 0)


def _improved(family: Family, bits: Bits, k: int, m: int) -> int:
    """Nearer to 2^k f(V) than what is near it already, by one slope; any integer is correct."""
    apart, precision = 1 << max(k - _GUESSED, 0), bits.count + _GUARD
    if k <= _GUESSED:
        return m
    v = (bits.prefix << _GUARD) + (1 << _GUARD - 1)
    here, there = (family.tail(x, k, precision)[0] for x in (m, m + apart))
    if here <= there:
        return m
    first, fall = m, here - there
    for _ in range(_STEPS):
        moved = (here - v) * apart // fall
        m += moved
        # the slope is off by as much as it changes over the way from where it was taken
        if abs(moved) * max(abs(m - first), apart) >> k - _BENT == 0:
            break
        here = family.tail(m, k, precision)[0]
    return m
