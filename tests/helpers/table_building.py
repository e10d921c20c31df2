"""How the tables are made, and the proof of their error bounds, in ball arithmetic.

`fitted_cell` chooses numbers and is not trusted.  `proved_error` bounds, for given numbers, what
the fast path can be wrong by on a cell; it is what the tests run on the shipped bytes.  Needs
python-flint (Arb), which nothing that draws noise does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import flint
import numpy as np
from flint import arb, arb_series

from privlearn.noise.exact.tables import (
    CELL_BITS,
    CELLS,
    DEGREE,
    FLOOR_BITS,
    OCTAVES,
    WORD_BITS,
    Table,
)
from privlearn.noise.exact.tails import FAMILIES, Family

Ball: TypeAlias = Any
_PRECISION = 200
_ORDER = 8
"""Terms of the Taylor polynomial; the remainder has this degree."""
_MOST_ERROR = 0.25
"""Cells with a larger error would nearly always be uncertain."""
_WIDER = 1 + arb(2) ** -30
"""The double nearest to w may lie in the next cell; w is then at most 2^−44 half-widths outside."""
_ROOM = 1 + 2.0**-16
"""Between the bound as proved and the one that is shipped: another version of the library encloses
the same numbers a little more widely, and must be able to prove the shipped ones, too."""
_LAST = arb(2) ** -45
"""The fraction of the sum, the subtraction of 1/2, and the addition of the error, in doubles."""


@dataclass(frozen=True)
class BallTail:
    """tail of a family in balls: of a number, and of a power series."""

    of: Callable[[Ball], Ball]
    series: Callable[[Any], Any]


@contextmanager
def _precise() -> Iterator[None]:
    """200 bits, and series as long as Taylor's polynomial; both are globals of the library."""
    cap, precision = flint.ctx.cap, flint.ctx.prec
    flint.ctx.prec, flint.ctx.cap = _PRECISION, _ORDER + 1
    try:
        yield
    finally:
        flint.ctx.cap, flint.ctx.prec = cap, precision


with _precise():
    _ROOT_HALF = 1 / arb(2).sqrt()
BALL_TAILS = {
    "normal": BallTail(lambda z: (z * _ROOT_HALF).erfc(), lambda s: (s * _ROOT_HALF).erfc()),
    "exponential": BallTail(lambda z: (-z).exp(), lambda s: (-s).exp()),
    "gumbel-top": BallTail(
        lambda z: -2 * (-((-z).exp())).expm1(), lambda s: 2 - 2 * (-((-s).exp())).exp()
    ),
    "gumbel-bottom": BallTail(lambda y: 2 * (-(y.exp())).exp(), lambda s: 2 * (-(s.exp())).exp()),
}


@dataclass(frozen=True)
class _Expansion:
    """f on a cell: Σ terms_j x^j + remainder, x = V − centre; and a bound of |f′|."""

    terms: list[Ball]
    remainder: Ball
    slope: Ball


def cell_place(index: int) -> tuple[int, int]:
    """Centre and half-width of a cell, in units of 2^−63 of V."""
    octave, place = divmod(index, 1 << CELL_BITS)
    low = 1 << (WORD_BITS - OCTAVES + octave)
    width = low >> CELL_BITS
    return low + place * width + width // 2, width // 2


def _expand(tail: BallTail, family: Family, centre: int, half: Ball) -> _Expansion:
    """Taylor's polynomial of the inverse of ``tail``, by reversion, with Lagrange's remainder."""
    v = arb(centre) / arb(2) ** WORD_BITS
    z = arb(family.guess(float(v)))
    for _ in range(5):  # Newton's rule; where it ends is not trusted
        s = tail.series(arb_series([z, 1]))
        z = (z - (s[0] - v) / s[1]).mid()
    s = tail.series(arb_series([z, 1]))
    shift = v - s[0]  # the polynomial is about tail(z), less than 2^−150 from the centre
    inverse = arb_series([0] + [s[j] for j in range(1, _ORDER)]).reversion()
    terms = [z] + [inverse[j] for j in range(1, _ORDER)]
    reach = half + abs(shift)
    wide = abs(terms[1]) * half * arb("1.05")
    if not (tail.of(z - wide) > v + reach and tail.of(z + wide) < v - reach):
        raise ArithmeticError("the values on the cell are not enclosed")
    around = arb(z.mid(), float(wide.upper()) * (1 + 2.0**-50))
    s = tail.series(arb_series([around, 1]))
    inverse = arb_series([0] + [s[j] for j in range(1, _ORDER + 1)]).reversion()
    remainder = abs(inverse[_ORDER]) * reach**_ORDER
    moved = sum((j * abs(terms[j]) * reach ** (j - 1) for j in range(1, _ORDER)), arb(0)) * abs(
        shift
    )
    return _Expansion(terms, remainder + moved, abs(inverse[1]))


def _chebyshev_bound(polynomial: list[Ball], half: Ball) -> Ball:
    """A bound of |Σ p_j t^j| on |t| <= half: the sum of its Chebyshev coefficients' sizes."""
    # t^n = 2^(1−n) Σ C(n, i) T_(n−2i), the last one halved for even n
    total = [arb(0)] * len(polynomial)
    for n, value in enumerate(polynomial):
        scaled = value * half**n
        if n == 0:
            total[0] += scaled
            continue
        for i in range(n // 2 + 1):
            share = scaled * math.comb(n, i) / arb(2) ** (n - 1)
            total[n - 2 * i] += share / 2 if n == 2 * i else share
    return sum((abs(value) for value in total), arb(0))


def proved_error(family: Family, index: int, base: int, coefficients: list[float]) -> float:
    """A bound of |2^40 f(V) − base − polynomial as computed|, for every V of the cell.

    The difference to Taylor's polynomial, bounded in Chebyshev's basis; its remainder; Horner's
    rule in doubles, with or without fused multiplications, and the conversion of t: each operation
    and t itself are within 2^−53 of its result; the bits of V after the word, one unit of 2^−63;
    and the operations after the sum.  1 if there is no such bound below 1/4.
    """
    centre, half_width = cell_place(index)
    with _precise():
        half = arb(half_width) * _WIDER
        try:
            found = _expand(BALL_TAILS[family.name], family, centre, half / arb(2) ** WORD_BITS)
        except (ArithmeticError, ValueError):
            return 1.0
        scale, unit = arb(2) ** FLOOR_BITS, arb(2) ** -WORD_BITS
        wanted = [term * scale * unit**j for j, term in enumerate(found.terms)]
        wanted[0] -= base
        have = [arb(c) for c in coefficients] + [arb(0)] * (_ORDER - 1 - DEGREE)
        apart = _chebyshev_bound([w - h for w, h in zip(wanted, have, strict=True)], half)
        horner = (
            sum((abs(have[j]) * half**j * (3 * j + 1) for j in range(DEGREE + 1)), arb(0))
            * arb(2) ** -53
            * arb("1.0001")
        )
        total = apart + (found.remainder + found.slope * unit) * scale + horner + _LAST
        bound = math.nextafter(float(total.upper()), math.inf)
    return bound if bound <= _MOST_ERROR else 1.0


def fitted_cell(family: Family, index: int) -> tuple[int, list[float]]:
    """Base and coefficients: Taylor's polynomial, economised from degree 7 to 5, in doubles."""
    centre, half_width = cell_place(index)
    with _precise():
        h = arb(half_width) / arb(2) ** WORD_BITS
        try:
            b = list(_expand(BALL_TAILS[family.name], family, centre, h * _WIDER).terms)
        except (ArithmeticError, ValueError):
            return 0, [0.0] * (DEGREE + 1)
        # t^n − h^n T_n(t/h)/2^(n−1), n = 7 and 6
        b[5] += b[7] * h**2 * 112 / 64
        b[3] -= b[7] * h**4 * 56 / 64
        b[1] += b[7] * h**6 * 7 / 64
        b[4] += b[6] * h**2 * 48 / 32
        b[2] -= b[6] * h**4 * 18 / 32
        b[0] += b[6] * h**6 / 32
        unit = arb(2) ** -WORD_BITS
        scaled = [b[j] * arb(2) ** FLOOR_BITS * unit**j for j in range(DEGREE + 1)]
        base = int(scaled[0].mid().floor().unique_fmpz())
        return base, [float((scaled[0] - base).mid()), *(float(x.mid()) for x in scaled[1:])]


def build_table(family: Family) -> Table:
    """The table of a family, with the bounds proved."""
    centre, base = np.zeros(CELLS, np.int64), np.zeros(CELLS, np.int64)
    coefficients, error = np.zeros((DEGREE + 1, CELLS)), np.ones(CELLS)
    for index in range(CELLS):
        centre[index] = cell_place(index)[0]
        start, numbers = fitted_cell(family, index)
        base[index], coefficients[:, index] = start, numbers
        error[index] = min(proved_error(family, index, start, numbers) * _ROOM, 1.0)
    return Table(family, centre, base, coefficients, error)


def build_tables() -> tuple[Table, ...]:
    """All tables, in the order of the file."""
    return tuple(build_table(family) for family in FAMILIES)


def table_bytes(tables: tuple[Table, ...]) -> bytes:
    """The file of tables."""
    return b"".join(
        np.ascontiguousarray(field).view("<i8").tobytes()
        for table in tables
        for field in (table.centre, table.base, *table.coefficients, table.error)
    )
