"""Row scales l_t, and column scales, of a stream: piecewise linear, from numbers at knots.

Knots:    with q pieces, knot k is at the time 1 + (horizon - 1) k**2 (3q - 2k) / q**3, a fraction:
          closer at both ends.
Exact:    of a piece, the value at its first whole time and the slope are fractions, rounded to
          nearest once.  l_t is then one product and one sum of doubles, the same everywhere, and
          that double is what the encoder multiplies by: it *is* the row scale.  It is at most
          `SLACK` above the straight line through these two doubles: u = 2**-53 each for the product
          and the sum, as scales lie in [2**-20, 1], and 2.1u where it is moved between the two
          knots of the piece, which the line leaves by no more than the rounding of its two numbers.
Falling:  where no knot is above the one before, no scale is: within a piece, products, sums and the
          move are monotone; and from piece to piece the ranges of the knots only touch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_SCALE = 2.0**-20
SLACK = 2.0**-50


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Times first, ..., stop - 1, on which l_t is base + slope (t - first), rounded.

    The scales are moved to between ``low`` and ``high``, the values at its knots.
    """

    first: int
    stop: int
    base: float
    slope: float
    low: float
    high: float


@final
class RowScales:
    """l_1, ..., l_horizon."""

    __slots__ = ("pieces",)

    def __init__(self, horizon: int, knots: tuple[float, ...]) -> None:
        self.pieces = _pieces(horizon, knots)

    def __call__(self, first: int, size: int) -> Array:
        """l of ``size`` times from ``first`` on; 1 past the horizon."""
        found = np.ones(size)
        for piece in self.pieces:
            start, stop = max(piece.first, first), min(piece.stop, first + size)
            if start < stop:
                steps = np.arange(start - piece.first, stop - piece.first, dtype=np.float64)
                line = piece.base + piece.slope * steps
                found[start - first : stop - first] = np.clip(line, piece.low, piece.high)
        return found


@lru_cache(maxsize=64)
def row_scales(horizon: int, knots: tuple[float, ...]) -> RowScales:
    """The scales between these knots; some 0.1 ms the first time."""
    return RowScales(horizon, knots)


def check_row_scales(knots: tuple[float, ...]) -> None:
    """Raises ValueError unless these are 1 to 64 numbers in [2**-20, 1]."""
    if not 1 <= len(knots) <= 64 or not all(LEAST_SCALE <= x <= 1 for x in knots):
        raise ValueError(f"row_scales = {knots!r}: must be 1 to 64 numbers in [2^-20, 1]")


def check_column_scales(knots: tuple[float, ...]) -> None:
    """Raises ValueError unless these are 1 to 64 numbers from 1 down to 2**-20 at least.

    Were they to rise, visits as early as they may be would not move the stream most.
    """
    known = 1 <= len(knots) <= 64 and knots[0] == 1 and knots[-1] >= LEAST_SCALE
    if not known or any(later > earlier for earlier, later in pairwise(knots)):
        raise ValueError(
            f"column_scales = {knots!r}: must be 1 to 64 numbers in [2^-20, 1], the first of them "
            "1 and none above the one before"
        )


def knot_times(horizon: int, knots: int) -> tuple[Fraction, ...]:
    """Where the knots are, from 1 to the horizon."""
    q = max(knots - 1, 1)
    return tuple(1 + Fraction((horizon - 1) * k * k * (3 * q - 2 * k), q**3) for k in range(knots))


def _pieces(horizon: int, knots: tuple[float, ...]) -> tuple[Piece, ...]:
    if len(knots) == 1 or horizon == 1:
        return (Piece(1, horizon + 1, knots[0], 0.0, knots[0], knots[0]),)
    times = knot_times(horizon, len(knots))
    found = []
    for k in range(len(knots) - 1):
        last = k == len(knots) - 2
        first, stop = math.ceil(times[k]), horizon + 1 if last else math.ceil(times[k + 1])
        if first < stop:
            left, right = knots[k], knots[k + 1]
            slope = (Fraction(right) - Fraction(left)) / (times[k + 1] - times[k])
            base = float(Fraction(left) + slope * (first - times[k]))
            low, high = min(left, right), max(left, right)
            found.append(Piece(first, stop, base, float(slope), low, high))
    return tuple(found)
