"""S(most, apart): how long all that one person moves in a stream can be, of each kind of C.

A pattern is at most ``most`` columns of C, any two of them at least ``apart`` from each other.

    S**2 >= sum_t (sum_{j in pattern} |C_tj|)**2   for every pattern.

A person whose row j moves by at most D, in a norm, for j in a pattern, moves row t of C X by at
most D sum_j |C_tj| in that norm, so all rows together by at most D S.  In l2, where the moves are
vectors d_j, ||C d||**2 = sum_ij (C'C)_ij <d_i, d_j>; where C has no negative entries the two bounds
are the same number, and it is reached when all d_j are equal.

Proofs:    docs/proofs.md, "Persons who return: streams".
Rounding:  what is returned is an upper bound.  Sums of exponentials are integers in units of
           2**-256 that are rounded up after each product, and there are sums and products of
           positive numbers only.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from privlearn.mechanisms.row_scales import SLACK, Piece, row_scales
from privlearn.mechanisms.stream_price import root_up
from privlearn.mechanisms.toeplitz import Toeplitz
from privlearn.values.exact import float_up
from privlearn.values.validate import count

_PLACES = 256
_ONE = 1 << _PLACES


def most_visits(horizon: int, most: int, apart: int) -> int:
    """The most columns of a pattern.

    Raises:
        ValueError: a number is no whole one >= 1.
    """
    return min(count(most=most), -(-count(horizon=horizon) // count(apart=apart)))


def tree_norm(horizon: int, most: int, apart: int) -> float:
    """Of the binary tree, by levels.

    The nodes of level l are every other stretch of 2**l rows.  One holds at most m = min(most,
    ceil(2**l / apart)) visits, all together at most ``most``: sums of squares are largest where as
    many nodes as possible hold m.  Each level is at its worst; no pattern need be that at all.
    """
    visits, total = most_visits(horizon, most, apart), 0
    for level in range(horizon.bit_length()):
        nodes = ((horizon >> level) + 1) // 2
        held = min(visits, -(-(1 << level) // apart))
        full, rest = divmod(min(visits, held * nodes), held)
        total += full * held**2 + rest**2
    return float_up(root_up(Fraction(total)))


def banded_norm(horizon: int, band: int, most: int, apart: int) -> float:
    """Where columns have norms of at most 1, and none has an entry ``band`` rows below its first.

    Columns ``band`` apart have no row in common: each g-th visit, g = ceil(band / apart), is of
    such ones, of squared length at most their number.  Lengths of the g parts of a pattern add up;
    where apart >= band there is one, and unit columns reach the bound.
    """
    visits = most_visits(horizon, most, apart)
    parts = min(-(-count(band=band) // apart), visits)
    whole, rest = divmod(visits, parts)
    longer, shorter = root_up(Fraction(whole + 1)), root_up(Fraction(whole))
    return float_up(rest * longer + (parts - rest) * shorter)


def falling_norm(
    horizon: int, band: int, scales: tuple[float, ...], most: int, apart: int
) -> float:
    """Where column j has norm p_j at most, p with knots ``scales`` that do not rise; as above.

    The i-th visit of a pattern, from 0, is at 1 + i apart or later, where p is no larger than
    there.  So the sum of squares of p over a pattern is at most sum_i p_(1 + i apart)**2, and of
    the g parts above the lengths add up to at most the root of g times that, by Cauchy-Schwarz.
    """
    visits = most_visits(horizon, most, apart)
    parts = min(-(-count(band=band) // apart), visits)
    square = parts * _squares(row_scales(horizon, scales).pieces, visits, apart)
    return min(banded_norm(horizon, band, most, apart), float_up(root_up(square)))


def _squares(pieces: tuple[Piece, ...], visits: int, apart: int) -> Fraction:
    """Upper bound on the sum of p_j**2 over j = 1, 1 + apart, ..., one sum for each piece."""
    total, done = Fraction(0), 0
    for piece in pieces:
        stop = min(visits, -(-(piece.stop - 1) // apart))
        n = stop - done
        if n > 0:
            step = Fraction(piece.slope) * apart
            top = Fraction(piece.base) + Fraction(SLACK)
            top += Fraction(piece.slope) * (1 + done * apart - piece.first)
            total += n * top**2 + n * (n - 1) * top * step
            total += n * (n - 1) * (2 * n - 1) * step**2 / 6
            done = stop
    return total


def toeplitz_norm(numbers: Toeplitz, horizon: int, visits: int, apart: int) -> float:
    """Of a BLT, exact but for rounding up: 0, apart, 2 apart, ... is the worst pattern.

    With m + 1 visits so far, s rows after the last one, the row of C d is sum_i w_i P_i(m + 1)
    theta_i**(s - 1) if s > 0, and 1 + sum_i w_i theta_i**(apart - 1) P_i(m) if s = 0, where P_i(m)
    = sum_{r < m} x_i**r, x_i = theta_i**apart.  With Q_ij = sum_{m < visits} P_i(m) P_j(m), R_i =
    sum_{m < visits} P_i(m), g_ij(L) = sum_{s < L} (theta_i theta_j)**s and L rows from the last
    visit on,

        S**2 = visits + 2 sum_i w_i theta_i**(apart - 1) R_i
               + sum_ij w_i w_j (Q_ij g_ij(apart) + P_i(visits) P_j(visits) g_ij(L - 1)).
    """
    theta = [_up(1 - a) for a in numbers.decay]
    weights = [_up(w) for w in numbers.weights]
    pairs = list(itertools.combinations_with_replacement(range(len(theta)), 2))
    before = [_geometric(rate, apart - 1)[1] for rate in theta] if visits > 1 else theta
    steps = [_times(power, rate) for power, rate in zip(before, theta, strict=True)]
    sums, ones, products = _repeated(steps, pairs, visits - 1)
    last = [a + b for a, b in sums]  # P(visits)
    total = visits * _ONE
    for weight, power, one in zip(weights, before, ones, strict=True):
        total += 2 * _times(weight, _times(power, one))
    for (i, j), product in zip(pairs, products, strict=True):
        rate = _times(theta[i], theta[j])
        between = _geometric(rate, apart)[0] if visits > 1 else 0
        after = _geometric(rate, horizon - (visits - 1) * apart - 1)[0]
        both = _times(product, between) + _times(_times(last[i], last[j]), after)
        total += (2 if i < j else 1) * _times(_times(weights[i], weights[j]), both)
    return float_up(root_up(Fraction(total, _ONE)))


def _up(value: Fraction) -> int:
    return -((-value.numerator << _PLACES) // value.denominator)


def _times(a: int, b: int) -> int:
    return -(-(a * b) >> _PLACES)


def _geometric(rate: int, terms: int) -> tuple[int, int]:
    total, power = 0, _ONE
    for bit in f"{terms:b}":
        total += _times(power, total)
        power = _times(power, power)
        if bit == "1":
            total += power
            power = _times(power, rate)
    return total, power


def _repeated(
    rates: list[int], pairs: list[tuple[int, int]], n: int
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """(P(n), rate**n), sum_{m <= n} P(m) and, over pairs, sum_{m <= n} P_i(m) P_j(m).

    P(m) = 1 + ... + rate**(m - 1).  From n to 2n by P(n + m) = P(n) + rate**n P(m).
    """
    sums, ones, products = [(0, _ONE)] * len(rates), [0] * len(rates), [0] * len(pairs)
    done = 0
    for bit in f"{n:b}":
        moved = [_times(power, one) for (_, power), one in zip(sums, ones, strict=True)]
        for at, (i, j) in enumerate(pairs):
            (p, x), (q, y) = sums[i], sums[j]
            products[at] += _times(_times(x, y), products[at])
            products[at] += done * _times(p, q) + _times(p, moved[j]) + _times(q, moved[i])
        ones = [one + done * p + more for one, (p, _), more in zip(ones, sums, moved, strict=True)]
        sums = [(p + _times(x, p), _times(x, x)) for p, x in sums]
        done *= 2
        if bit == "1":
            sums = [(p + x, _times(x, rate)) for (p, x), rate in zip(sums, rates, strict=True)]
            ones = [one + p for one, (p, _) in zip(ones, sums, strict=True)]
            for at, (i, j) in enumerate(pairs):
                products[at] += _times(sums[i][0], sums[j][0])
            done += 1
    return sums, ones, products
