"""B y of a two-sided banded BLT, B = A diag(d) T**-1 diag(1/l): x = T**-1 (y/l), then sums of d x.

d_j are the numbers that columns are divided by, m_j / p_j (`column_divisors`).

x_t = y_t/l_t - sum w_i S_i, with the states of `banded_sums` but of the rows x.  Within a block of
32 rows that is one matrix: the coefficients h of 1/c, times what the states and the rows that leave
add.  Errors of a state enter later rows as rows do, with coefficients of 1/c, and these decay.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_scales import BandedTerms, NextScales
from privlearn.mechanisms.banded_sums import LastRows, banded_matrices
from privlearn.mechanisms.block_products import BLOCK, RowProducts, product

Array = NDArray[np.float64]


@final
class BandedOutputs:
    """Rows of B y, bitwise the same however the calls are split."""

    __slots__ = (
        "_at",
        "_block",
        "_input",
        "_last",
        "_moved",
        "_moves",
        "_products",
        "_scales",
        "_total",
    )

    def __init__(self, terms: BandedTerms, dim: int) -> None:
        rows, self._moves = _undone(terms)
        states, inputs = self._moves.shape
        self._scales = NextScales(terms)
        self._input = np.zeros((inputs, dim))
        self._products = RowProducts(rows, self._input)
        self._block = np.zeros((BLOCK, dim))
        self._moved = np.empty((states, dim))
        self._last = LastRows(terms.band, dim, np.float64) if terms.cut else None
        self._total = np.zeros(dim)
        self._at = 0

    def __call__(self, y: NDArray[np.int64] | Array, /) -> Array:
        rows, columns = self._scales(len(y))
        found = y / rows
        done = 0
        while done < len(y):
            part = slice(done, min(done + BLOCK - self._at, len(y)))
            found[part] = self._within(found[part])
            done = part.stop
        if len(y):
            found *= columns
            found[0] += self._total
            np.add.accumulate(found, axis=0, out=found)
            self._total = found[-1].copy()
        return found

    def _within(self, y: Array) -> Array:
        first, stop = self._at, self._at + len(y)
        left = len(self._input) - BLOCK
        self._input[left + first : left + stop] = y
        found = self._products(first, stop)
        self._block[first:stop] = found
        self._at = stop
        if stop == BLOCK:
            self._advance()
        return found

    def _advance(self) -> None:
        states = len(self._moved)
        self._input[-BLOCK:] = self._block
        product(self._moves, self._input, self._moved)
        self._input[:states] += self._moved
        if self._last is not None:
            self._last.add(self._block)
            self._last.leaving(self._input[states : states + BLOCK])
        self._input[-BLOCK:] = 0.0
        self._at = 0


@lru_cache(maxsize=64)
def _undone(terms: BandedTerms) -> tuple[Array, Array]:
    matrices = banded_matrices(terms)
    undone = _inverse(matrices.rows[:, -BLOCK:])
    rows = np.hstack([-undone @ matrices.rows[:, :-BLOCK], undone])
    moves = -np.hstack([matrices.state_lost * np.eye(len(terms.decay)), matrices.input_lost])
    moves[:, -BLOCK:] += 1.0
    rows.flags.writeable = moves.flags.writeable = False
    return rows, moves


def _inverse(rows: Array) -> Array:
    """Of a lower triangular Toeplitz matrix with ones on the diagonal."""
    column = rows[:, 0].tolist()
    h = [1.0]
    for k in range(1, len(column)):
        h.append(-sum(column[i] * h[k - i] for i in range(1, k + 1)))
    found = np.zeros(rows.shape)
    for k, value in enumerate(h):
        found += value * np.eye(len(h), k=-k)
    return found
