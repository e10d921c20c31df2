"""Rows of block-triangular matrix products, bitwise the same however they are asked for.

A stream works in blocks of 32 rows: what row r of a block gives is row r of one fixed matrix times
[state; rows of the block], where later rows have the coefficient 0.  `RowProducts` makes each
row by a product of its own (one vector, one matrix, in a fixed tile of columns), and never several
by one product of matrices, whose kernels may add up in another order.  So a row is the same whether
it is asked for alone or with others.  The state moves once a block, with all of it there.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK = 32
"""Rows."""
_PRODUCT_SIZE = 2**13
"""Entries of the matrix of one product: more would not stay in the nearest cache, and OpenBLAS
starts threads above 9216, which is slower and may change the order of additions."""
_LEAST_WIDTH = 8


@final
class RowProducts:
    """Rows of matrix @ inputs, of arrays that may change in between."""

    __slots__ = ("_columns", "_inputs", "_matrix", "_out")

    def __init__(self, matrix: Array, inputs: Array) -> None:
        self._matrix, self._inputs = matrix, inputs  # no views of them: copies would lose these
        self._out = np.empty((BLOCK, inputs.shape[1]))
        self._columns = _columns(inputs)

    def __call__(self, first: int, stop: int) -> Array:
        """Rows first, ..., stop - 1; in memory that the next call writes to."""
        rows, found = self._matrix[first:stop, None], self._out[first:stop]
        if len(self._columns) == 1:
            np.matmul(rows, self._inputs, out=found[:, None])
            return found
        for part in self._columns:
            np.matmul(rows, self._inputs[:, part], out=found[:, None, part])
        return found


def product(matrix: Array, inputs: Array, out: Array) -> None:
    """Writes matrix @ inputs into ``out``; for what is always asked for as a whole."""
    for part in _columns(inputs):
        np.matmul(matrix, inputs[:, part], out=out[:, part])


def _columns(inputs: Array) -> list[slice]:
    height, dim = inputs.shape
    width = max(_PRODUCT_SIZE // height // _LEAST_WIDTH * _LEAST_WIDTH, _LEAST_WIDTH)
    return [slice(left, left + width) for left in range(0, dim, width)]
