"""C X in integers for C = diag(l) T diag(r), T a banded BLT, within a proved number of steps.

Method:   Row j enters as the integers y_j = rint(r_j X_j), r_j = p_j/m_j rounded down.  T y is made
          as in `toeplitz_sums`, from states S_i = sum theta_i**(u - 1) y_{t-u} over 1 <= u < band,
          each an integer V and a residue f, and the rows of a block of 32.  What is different: row
          t - band + 1 leaves with the factor theta_i**(band - 1), so that the rows of the last
          ``band`` times are kept, and those that leave within a block enter its products with the
          coefficients that take them out.  R_t = rint(l_t (T y)_t).
Privacy:  as for `toeplitz_sums`: R_t is a function of X_1, ..., X_t alone; two streams that differ
          in row j have R that differ by C_tj (X_j - X'_j) and what `BandedBLT.rounding` states.
Trusted:  + - * / and rint of doubles in numpy, with or without fused multiplication and addition,
          and that BLAS computes a sum of products as one, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_scales import BandedTerms, NextScales
from privlearn.mechanisms.banded_toeplitz import powers
from privlearn.mechanisms.block_products import BLOCK, RowProducts, product
from privlearn.mechanisms.toeplitz_sums import rounded_up
from privlearn.values.exact import float_down, float_up

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_UNIT = Fraction(1, 2**53)  # Relative error of a rounding to nearest


@final
@dataclass(frozen=True, slots=True)
class BandedMatrices:
    """What a block of 32 rows is multiplied by; inputs are [S_0; leaving rows; rows]."""

    rows: Array
    """-> T y, (32, inputs)."""
    state_lost: Array
    """1 - theta**32, (states, 1)."""
    input_lost: Array
    """[leaving rows; rows] -> what is lost of the sum of the rows in each state."""
    row_size: Fraction
    """Not below the sum of the sizes of what one of ``rows`` has for inputs other than states."""
    lost_sizes: tuple[Fraction, ...]
    """The same of each of ``input_lost``."""


@lru_cache(maxsize=64)
def banded_matrices(terms: BandedTerms) -> BandedMatrices:
    """Rows that leave within the block they come in have lost all of their factor 1."""
    band, weights = terms.band, terms.toeplitz.weights
    theta = [1 - a for a in terms.toeplitz.decay]
    near = [powers(x, 0, BLOCK + 1) for x in theta]
    leaving = BLOCK if terms.cut else 0
    states = len(theta)
    rows = np.zeros((BLOCK, states + leaving + BLOCK))
    lost = np.zeros((states, leaving + BLOCK))
    for i in range(states):
        rows[:, i] = [float(weights[i] * near[i][r]) for r in range(BLOCK)]
        lost[i, leaving:] = [
            1.0 if terms.cut and r + band <= BLOCK else float(1 - near[i][BLOCK - 1 - r])
            for r in range(BLOCK)
        ]
    here = [1.0, *_coefficients(weights, near, min(band, BLOCK) - 1)]
    for r in range(BLOCK):
        for s in range(max(r - len(here) + 1, 0), r + 1):
            rows[r, states + leaving + s] = here[r - s]
    if terms.cut:
        far = [powers(x, band - 1, BLOCK) for x in theta]
        gone = _coefficients(weights, far, BLOCK)
        for k in range(min(BLOCK, band - 1)):
            lost[:, k] = [float(power[BLOCK - 1 - k]) for power in far]
            rows[k + 1 :, states + k] = [-x for x in gone[: BLOCK - 1 - k]]
    state_lost = np.array([[float(1 - power[BLOCK])] for power in near])
    for each in (rows, state_lost, lost):  # all streams share them
        each.flags.writeable = False
    return BandedMatrices(
        rows,
        state_lost,
        lost,
        max(_sum_up(row) for row in rows[:, states:]),
        tuple(_sum_up(row) for row in lost),
    )


def _coefficients(
    weights: tuple[Fraction, ...], found: list[list[Fraction]], size: int
) -> list[float]:
    pairs = list(zip(weights, found, strict=True))
    return [float(sum((w * power[k] for w, power in pairs), Fraction(0))) for k in range(size)]


@final
class LastRows:
    """The rows of the last ``band`` times, and which of them leave in the next block."""

    __slots__ = ("_band", "_next", "_rows")

    def __init__(self, band: int, dim: int, kind: type[np.int64] | type[np.float64]) -> None:
        blocks = -(-(band - 1) // BLOCK) + 1
        self._rows = np.zeros((blocks * BLOCK, dim), dtype=kind)
        self._band, self._next = band, 0

    def add(self, block: NDArray[np.int64] | Array) -> None:
        self._rows[self._next : self._next + BLOCK] = block
        self._next = (self._next + BLOCK) % len(self._rows)

    def leaving(self, out: Array) -> None:
        """Writes rows t - band + 1 for the 32 times t of the next block; 0 where there is none.

        Those that are themselves in that block have no coefficient: what is written is older.
        """
        first = (self._next - self._band + 1) % len(self._rows)
        until = min(BLOCK, len(self._rows) - first)
        out[:until] = self._rows[first : first + until]
        out[until:] = self._rows[: BLOCK - until]


@final
class ScaledBandedSums:
    """Rows of R for rows of X, each once and in order, however the calls are split."""

    __slots__ = (
        "_at",
        "_block",
        "_input",
        "_last",
        "_matrices",
        "_moved",
        "_products",
        "_residue",
        "_scales",
        "_state",
    )

    def __init__(self, terms: BandedTerms, dim: int) -> None:
        self._matrices = banded_matrices(terms)
        states = len(terms.decay)
        self._scales = NextScales(terms)
        self._state = np.zeros((states, dim), dtype=np.int64)
        self._residue = np.zeros((states, dim))
        self._moved = np.empty((states, dim))
        self._block = np.zeros((BLOCK, dim), dtype=np.int64)
        self._last = LastRows(terms.band, dim, np.int64) if terms.cut else None
        self._input = np.zeros((self._matrices.rows.shape[1], dim))
        self._products = RowProducts(self._matrices.rows, self._input)
        self._at = 0

    def __call__(self, x: Integers, /) -> Integers:
        rows, columns = self._scales(len(x))
        # 1/m and the product are rounded up by less than the factor takes off
        y = np.multiply(x, 1.0 / columns * (1 - 2.0**-52))
        np.rint(y, out=y)
        done = 0
        while done < len(x):
            part = slice(done, min(done + BLOCK - self._at, len(x)))
            y[part] = self._within(y[part])
            done = part.stop
        y *= rows
        return np.rint(y, out=y).astype(np.int64)

    def _within(self, y: Array) -> Array:
        first, stop = self._at, self._at + len(y)
        left = len(self._input) - BLOCK
        self._block[first:stop] = y
        self._input[left + first : left + stop] = y
        found = self._products(first, stop)
        self._at = stop
        if stop == BLOCK:
            self._advance()
        return found

    def _advance(self) -> None:
        states, moved = len(self._state), self._moved
        product(self._matrices.input_lost, self._input[states:], moved)
        lost = self._input[:states]
        lost *= self._matrices.state_lost
        np.subtract(self._residue, lost, out=lost)
        np.subtract(lost, moved, out=moved)
        whole = np.rint(moved)
        np.subtract(moved, whole, out=self._residue)  # exact
        self._state += whole.astype(np.int64)
        self._state += self._block.sum(axis=0)
        lost[:] = self._state
        lost += self._residue
        if self._last is not None:
            self._last.add(self._block)
            self._last.leaving(self._input[states : states + BLOCK])
        self._input[-BLOCK:] = 0.0
        self._at = 0


@lru_cache(maxsize=1024)  # every calibration asks again, and fractions are slow
def banded_sums_error(terms: BandedTerms, largest: int) -> Fraction:
    """A bound on |R - diag(l) T y| for integers |y| <= ``largest``, in steps; to 40 bits, up.

    As `toeplitz_sums.sums_error`, with u = 2**-53, v = 1 - theta**32 and signs of w that are free:

    A state has |S| <= H = largest * min(lags, horizon, 1/a).  Let E bound the error of V + f.  The
    double for V + f is off by at most 2.01u(H + E + 1); v and its product by u relative each.  The
    product of [leaving rows; rows] has 64 terms at most, of sizes that add up to I = largest * sum
    of |coefficients|; it is off by 64u I in any order and by 3u I for coefficients and the doubles
    of rows (the powers, off by 2**-225, do not show).  The two subtractions are off by u of what
    they give.  So m is off by at most d = u(7v(H + E + 1) + 70 I + 2), and the rest is exact.
    V + f then has the error E' <= (1 - v)E + d: after any number of blocks at most J d, where J is
    the least of 1/v and the number of blocks, E <= J u(7v(H + 1) + 70 I + 2)/(1 - 8u).

    A row of T y adds up the errors of the states, sum |w_i| E_i.  Its product has K <= states + 64
    terms, of sizes that add up to at most G = sum |w_i|(H_i + E_i + 1) + largest * sum of
    |coefficients of rows|; it is off by e(G + 1), e = (K + 6)u.  The product with l_t <= 1 makes
    these no larger, and is off by less than 2u(G + 1) itself.  rint adds 1/2.
    """
    matrices, toeplitz = banded_matrices(terms), terms.toeplitz
    factor = (matrices.rows.shape[1] + 8) * _UNIT
    blocks = Fraction(-(-terms.horizon // BLOCK))
    error, sizes = Fraction(1, 2), Fraction(0)
    for i, (a, w) in enumerate(zip(toeplitz.decay, toeplitz.weights, strict=True)):
        lost = 1 - (1 - a) ** BLOCK
        above, below = Fraction(float_up(lost)), Fraction(float_down(lost))
        state = largest * min(Fraction(terms.lags), 1 / a)
        inputs = matrices.lost_sizes[i] * largest
        moved = 7 * above * (state + 1) + 70 * inputs + 2
        off = min(1 / below, blocks) * _UNIT * moved / (1 - 8 * _UNIT)
        error += abs(w) * off
        sizes += abs(w) * (state + off + 1)
    sizes += largest * matrices.row_size
    return rounded_up(error + factor * (sizes + 1))


def _sum_up(coefficients: Array) -> Fraction:
    """Not below the sum of the sizes of numbers that were rounded to these."""
    total = sum((Fraction(abs(x)) for x in coefficients.tolist()), Fraction(0))
    return total * (1 + 2 * _UNIT)
