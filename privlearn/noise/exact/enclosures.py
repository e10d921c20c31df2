"""Numbers that are known between two bounds: arrays of doubles, and single ones in integers.

A formula written with + − × ÷ and `root` runs on both.  Doubles with a bound on their error decide
nearly always; what they leave open is computed again in integers, from more bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import STEP, Variates

_ROUNDING = 2.0**-52
"""Relative, twice that of one operation; the other half is room for the rounding of bounds."""
_MORE = 1 + 2.0**-48
"""Covers the rounding of what computes a bound."""
_UNDERFLOW = 2.0**-1000
_HALF_STEP = STEP / 2
_LARGE = 2.0**12
"""Below it ⌊2^40 z⌋ + ½ is a double."""


class Undecided(ArithmeticError):
    """More bits are needed."""


@final
class Approx:
    """Doubles with a bound on the distance of each from its true number, any shape.

    The bounds hold for IEEE arithmetic to nearest, and for sums in any order.
    """

    __slots__ = ("error", "value")

    def __init__(self, value: NDArray[np.float64], error: NDArray[np.float64] | float = 0.0):
        self.value, self.error = value, error

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __getitem__(self, place: Any) -> Approx:
        error = self.error
        return Approx(
            self.value[place], error if isinstance(error, float) or not error.ndim else error[place]
        )

    def _rounded(self, value: Any, error: Any) -> Approx:
        return Approx(value, error * _MORE + np.abs(value) * _ROUNDING)

    def __add__(self, other: Approx) -> Approx:
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Approx) -> Approx:
        return self._rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Approx) -> Approx:
        error = np.abs(other.value) * self.error + (np.abs(self.value) + self.error) * other.error
        return self._rounded(self.value * other.value, error + _UNDERFLOW)

    def __truediv__(self, other: Approx) -> Approx:
        quotient = self.value / other.value
        room = np.abs(other.value) - other.error * _MORE
        error = (self.error + np.abs(quotient) * other.error + _UNDERFLOW) / room
        return self._rounded(quotient, np.where(room > 0, error, math.inf))

    def sqrt(self) -> Approx:
        """Of numbers >= 0."""
        root = np.sqrt(np.maximum(self.value, 0.0))
        return self._rounded(root, np.where(root > 0, self.error / root, math.inf))

    def sum(self, axis: int) -> Approx:
        total = self.value.sum(axis=axis)
        sizes = np.abs(self.value).sum(axis=axis)
        count = self.value.shape[axis]
        errors = np.broadcast_to(self.error, self.value.shape).sum(axis=axis)
        more = 1 + (count + 4) * _ROUNDING
        return Approx(total, (errors * more + sizes * (count * _ROUNDING * more)) * _MORE)

    def __abs__(self) -> Approx:
        return Approx(np.abs(self.value), self.error)

    def where(self, first: NDArray[np.bool_], other: Approx) -> Approx:
        """These numbers where ``first`` holds, and ``other`` ones elsewhere."""
        return Approx(
            np.where(first, self.value, other.value), np.where(first, self.error, other.error)
        )

    @property
    def unsure(self) -> NDArray[np.bool_]:
        """Where the sign is not certain."""
        return ~(np.abs(self.value) > self.error)  # also where a bound is NaN


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """A number between low·2^−bits and high·2^−bits."""

    low: int
    high: int
    bits: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high, self.bits)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low, self.bits)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(ends) >> self.bits, -(-max(ends) >> self.bits), self.bits)

    def __truediv__(self, other: Interval) -> Interval:
        if other.low <= 0 <= other.high:
            raise Undecided
        pairs = [
            (a << self.bits, b) for a in (self.low, self.high) for b in (other.low, other.high)
        ]
        return Interval(min(a // b for a, b in pairs), max(-(-a // b) for a, b in pairs), self.bits)

    def sqrt(self) -> Interval:
        """Of a number >= 0."""
        low, high = max(self.low, 0) << self.bits, max(self.high, 0) << self.bits
        return Interval(math.isqrt(low), math.isqrt(high) + 1, self.bits)

    def __abs__(self) -> Interval:
        if self.low >= 0:
            return self
        return Interval(max(-self.high, 0), max(-self.low, self.high), self.bits)

    def positive(self) -> bool:
        """The sign, if it is certain."""
        if self.low <= 0 <= self.high:
            raise Undecided
        return self.low > 0

    def floor(self) -> int:
        """⌊x⌋, if it is certain."""
        if self.low >> self.bits != self.high >> self.bits:
            raise Undecided
        return self.low >> self.bits


Numbers: TypeAlias = Approx | NDArray[np.object_]
"""Doubles with their errors, or intervals in an array."""


def root(x: Any) -> Any:
    """√x, elementwise."""
    return x.sqrt() if isinstance(x, Approx) else np.sqrt(x)


def numbers(values: NDArray[np.float64], bits: int | None) -> Any:
    """Doubles as they are: with error 0, or to ``bits`` in intervals."""
    if bits is None:
        return Approx(values)
    return intervals([Fraction(x) for x in values.ravel().tolist()], bits).reshape(values.shape)


def number(x: Fraction | int, bits: int | None) -> Any:
    """One number, in an array of shape (1,)."""
    if bits is None:
        near = np.array([float(x)])
        return Approx(near, np.abs(near) * _ROUNDING)
    return intervals([Fraction(x)], bits)


def intervals(values: list[Fraction], bits: int) -> NDArray[np.object_]:
    """Exact numbers, or the two multiples of 2^−bits around them."""
    found = np.empty(len(values), object)
    for i, x in enumerate(values):
        low = (x.numerator << bits) // x.denominator
        found[i] = Interval(low, low + (low * x.denominator != x.numerator << bits), bits)
    return found


def approximate(floors: Floors) -> Approx:
    """Variates in doubles: the middles of their steps; with no bound if they are very large."""
    values = np.asarray((floors + 0.5) * STEP, np.float64)
    size = np.abs(values)
    if size.size and size.max() >= _LARGE:
        return Approx(values, np.where(size < _LARGE, _HALF_STEP, math.inf))
    return Approx(values, _HALF_STEP)


def enclosed(variates: Variates, places: range, bits: int) -> NDArray[np.object_]:
    """Variates to half of ``bits``, which leaves the other half to arithmetic; (1, len(places))."""
    found, known = np.empty((1, len(places)), object), bits // 2
    for column, place in enumerate(places):
        low = variates.refined(place, known)
        ends = low << bits - known, low + 1 << bits - known
        found[0, column] = Interval(*ends, bits)
    return found
