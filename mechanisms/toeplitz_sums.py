"""C X in integers for a BLT, from integers X: within a proved number of steps, in constant memory.

Method:   C X = X + sum w_i theta_i**r S_i + sum c_{r-s} X_s over the rows of a block, with states
          S_i = sum theta_i**.. X_s over all rows before it.  Each S_i is kept as an integer V and a
          residue f in [-1/2, 1/2]; at the end of a block V moves by the sum of its X, exactly, and
          m = f - (1 - theta**32)(V + f) - sum (1 - theta**(31-r)) X_r:  V += rint(m), f = m -
          rint(m).  For the slow states, whose errors last, what is rounded is then of the size of
          32 max|X|, once.  Without the residue a block would lose up to 1/2 step, which adds up to
          1/2/(1 - theta**32).  R = X + rint(sum w_i .. + sum c ..).
Privacy:  R_t is a function of X_1, ..., X_t alone, and of nothing that was drawn.  Two streams that
          differ in row j have R that differ by C_tj (X_j - X'_j) and at most twice `sums_error` in
          each coordinate, for all t >= j, whatever the other rows are (see `stream_price`).
Trusted:  + - * and rint of doubles in numpy, with or without fused multiplication and addition, and
          that BLAS computes a sum of products as one, in any order.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.block_products import BLOCK, RowProducts, product
from privlearn.mechanisms.toeplitz import Toeplitz
from privlearn.values.exact import float_down, float_up

Integers = NDArray[np.int64]
_UNIT = Fraction(1, 2**53)  # Relative error of a rounding to nearest


@final
class ToeplitzSums:
    """Rows of R for rows of X, each once and in order, however the calls are split."""

    __slots__ = ("_at", "_input", "_moved", "_numbers", "_products", "_residue", "_state")

    def __init__(self, numbers: Toeplitz, dim: int) -> None:
        buffers = len(numbers.decay)
        self._numbers = numbers
        self._state = np.zeros((buffers, dim), dtype=np.int64)
        self._residue = np.zeros((buffers, dim))
        self._moved = np.empty((buffers, dim))
        self._input = np.zeros((buffers + BLOCK, dim))
        self._products = RowProducts(numbers.state_rows, self._input)
        self._at = 0

    def __call__(self, x: Integers, /) -> Integers:
        if self._at + len(x) <= BLOCK:
            return self._within(x)
        found, done = np.empty_like(x), 0
        while done < len(x):
            part = slice(done, done + BLOCK - self._at)
            found[part] = self._within(x[part])
            done = part.stop
        return found

    def _within(self, x: Integers) -> Integers:
        first, stop = self._at, self._at + len(x)
        buffers = len(self._state)
        self._input[buffers + first : buffers + stop] = x
        sums = self._products(first, stop)
        found = np.rint(sums, out=sums).astype(np.int64)
        found += x
        self._at = stop
        if stop == BLOCK:
            self._advance()
        return found

    def _advance(self) -> None:
        buffers, moved = len(self._state), self._moved
        rows = self._input[buffers:]
        product(self._numbers.input_lost, rows, moved)
        lost = self._input[:buffers]
        lost *= self._numbers.state_lost
        np.subtract(self._residue, lost, out=lost)
        np.subtract(lost, moved, out=moved)
        whole = np.rint(moved)
        np.subtract(moved, whole, out=self._residue)  # exact
        self._state += whole.astype(np.int64)
        self._state += rows.astype(np.int64).sum(axis=0)
        self._input[:buffers] = self._state
        self._input[:buffers] += self._residue
        rows[:] = 0.0
        self._at = 0


@lru_cache(maxsize=1024)  # every calibration asks again, and fractions are slow
def sums_error(numbers: Toeplitz, horizon: int, largest: int) -> Fraction:
    """A bound on |R - C X| for integers |X| <= ``largest``, in steps; rounded up to 40 bits.

    With u = 2**-53, a = 1 - theta, v = 1 - theta**32 and l = sum_r (1 - theta**(31-r)) = 32 - v/a:

    The state has |S| <= H = largest * min(horizon, 1/a).  Let E bound the error of V + f.  The
    double for V + f is off by at most 2.01u(H + E + 1): two roundings; v and its product by u
    relative each; the product of X, whose terms have sizes that add up to l * largest, by 32u of
    them in any order, and by 2u for coefficients and doubles of X; the two subtractions by u of
    what they give.  So m is off by at most u(7v(H + E + 1) + 36 l * largest + 2), and subtracting
    rint(m) is exact.  Where X > 2**53, their sum is that of their doubles, off by 32u * largest.
    Call all that d.  V + f then has the error E' <= (1 - v)E + d: after any number of blocks at
    most J d, where J is the least of 1/v and the number of blocks.  d holds E itself; with
    J v <= 1, E = J u(7v(H + 1) + 36 l * largest + 2 (+ 32 largest))/(1 - 8u).

    A row adds the error of the states, sum w_i E_i, and 1/2 for rint.  Its product has K = buffers
    + 32 terms, of sizes that add up to at most G = sum w_i(H_i + E_i + 1) + largest * sum c_s; it
    is off by K u G in any order, by 3.01u G for coefficients and the doubles of states and X, and
    by less than that in second order: e(G + 1) with e = (K + 6)u.
    """
    factor = (len(numbers.decay) + BLOCK + 6) * _UNIT
    blocks = Fraction(-(-horizon // BLOCK))
    converted = BLOCK * largest if largest > 2**53 else 0
    error, sizes = Fraction(1, 2), Fraction(0)
    for a, w in zip(numbers.decay, numbers.weights, strict=True):
        lost = 1 - (1 - a) ** BLOCK
        above, below = Fraction(float_up(lost)), Fraction(float_down(lost))
        state = largest * min(Fraction(horizon), 1 / a)
        inputs = (BLOCK - below / a) * largest
        moved = 7 * above * (state + 1) + 36 * inputs + 2 + converted
        off = min(1 / below, blocks) * _UNIT * moved / (1 - 8 * _UNIT)
        error += w * off
        sizes += w * (state + off + 1)
    later = [Fraction(c) for c in numbers.state_rows[BLOCK - 1, len(numbers.decay) :].tolist()]
    sizes += largest * sum(later) * (1 + 2 * _UNIT)
    return rounded_up(error + factor * (sizes + 1))


def rounded_up(value: Fraction) -> Fraction:
    """With 40 significant bits, so that fractions stay short."""
    shift = 40 - (value.numerator.bit_length() - value.denominator.bit_length())
    unit = Fraction(1, 2**shift) if shift >= 0 else Fraction(2**-shift)
    return -(-value // unit) * unit
