"""The gain of a stream: how far one record moves what the noise is added to, rounding included.

Row t of R moves, in the norm of the noise, by at most |C_tj| D + q (v_t + each) if row j of the
data moves by D: q = sqrt(dim) g is the norm of one step g in every coordinate (in l_p with p >= 2
at most that), and v and ``each`` come from `Rounding`.  The stream is one Gaussian mechanism, of
mass sum_t (that)**2 / std**2 (the same sum for generalized Gaussian noise, as zCDP adds up), even
if rows are chosen after outputs.  With e = q / D and n - j + 1 rows from j on, Minkowski and
Cauchy-Schwarz give

    gain**2 = (norm_j + e column)**2 + 2 e each (sum_j + sqrt(n - j + 1) e column)
              + (n - j + 1)(e each)**2.

``sum_j``, of |C_tj| over t, is at most sqrt(n - j + 1) norm_j.

A person with k visits changes k rows, one after the other: each step moves R by C_tj and by the
rounding of one row, whatever the other rows are.  So row t moves by at most a_t + q (V_t + k each),
where the norm of a is at most S D (`StreamVisits.norm`), that of V at most k column, and the sum of
a_t at most k sum_1 D: the formula for one row with S in place of its norm, and k times the sum and
the rounding, over all n rows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from privlearn.mechanisms.factorization import NO_ROUNDING, Factorization, Rounding
from privlearn.values.exact import float_up

if TYPE_CHECKING:
    from privlearn.mechanisms.stream_visits import StreamVisits

_PRODUCT = 1 + Fraction(1, 2**50)
"""Covers the rounding of sensitivity * gain, a product of doubles."""
_PLACES = 64


def largest_gain(factorization: Factorization, rounding: Rounding, step: Fraction) -> float:
    """Upper bound on the gain of every row.

    Args:
        factorization: of the stream.
        rounding: of its encoder.
        step: q / D, of a step in every coordinate against the sensitivity.
    """
    norm, left = factorization.column_norm(), factorization.horizon
    return _gain(norm, factorization.column_sum(), left, rounding, step)


def visits_gain(
    factorization: Factorization, visits: StreamVisits, rounding: Rounding, step: Fraction
) -> float:
    """Upper bound on the gain of all visits of one person together.

    Raises:
        ValueError: as `Factorization.participation_norm`.
    """
    times = visits.most
    several = Rounding(times * rounding.column, times * rounding.each)
    total = factorization.column_sum()
    if math.isfinite(total):
        total = float_up(times * Fraction(total))
    return _gain(visits.norm(factorization), total, factorization.horizon, several, step)


def gain_profile(
    factorization: Factorization, rounding: Rounding, step: Fraction
) -> tuple[tuple[int, float], ...]:
    """Numbers of rows and upper bounds on their gains, in at most about 40 pieces.

    Pieces are halved towards the horizon; a piece has the largest norm of its columns and all the
    rows from its first one on.
    """
    horizon = factorization.horizon
    pieces: list[tuple[int, float]] = []
    start = 0
    while start < horizon:
        stop = start + max((horizon - start) // 2, 1)
        norm = factorization.largest_norm(start + 1, stop)
        gain = _gain(norm, factorization.column_sum(), horizon - start, rounding, step)
        pieces.append((stop - start, gain))
        start = stop
    top = max(largest_gain(factorization, rounding, step), *(gain for _, gain in pieces))
    return ((pieces[0][0], top), *pieces[1:])


def _gain(
    norm: float | Fraction, total: float, left: int, rounding: Rounding, step: Fraction
) -> float:
    if rounding == NO_ROUNDING:
        return float_up(Fraction(norm) * _PRODUCT)
    column, each = rounding.column * step, rounding.each * step
    root = root_up(Fraction(left))
    sums = root * Fraction(norm)
    if math.isfinite(total):
        sums = min(sums, Fraction(total))
    mass = (Fraction(norm) + column) ** 2
    mass += 2 * each * (sums + root * column) + left * each**2
    return float_up(root_up(mass) * _PRODUCT)


def root_up(value: Fraction) -> Fraction:
    """A square root, rounded up to 64 binary places."""
    scaled = (value.numerator << 2 * _PLACES) // value.denominator + 1
    return Fraction(math.isqrt(scaled) + 1, 1 << _PLACES)
