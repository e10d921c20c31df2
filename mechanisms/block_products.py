"""Rows of block-triangular matrix products, bitwise the same however they are asked for.

A stream works in blocks of 32 rows: what row r of a block gives is row r of one fixed matrix times
[state; rows of the block], where later rows have the coefficient 0.  `rows_of_product` makes each
row by a product of its own (one vector, one matrix, in a fixed tile of columns), and never several
by one product of matrices, whose kernels may add up in another order.  So a row is the same whether
it is asked for alone or with others.  The state moves once a block, with all of it there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK = 32
"""Rows."""
_PRODUCT_SIZE = 2**13
"""Entries of the matrix of one product: more would not stay in the nearest cache, and OpenBLAS
starts threads above 9216, which is slower and may change the order of additions."""
_LEAST_WIDTH = 8


def rows_of_product(matrix: Array, inputs: Array, first: int, stop: int, out: Array) -> None:
    """Writes rows first, ..., stop − 1 of matrix @ inputs into those of ``out``."""
    rows = matrix[first:stop, None, :]
    for columns in _tiles(inputs):
        np.matmul(rows, inputs[:, columns], out=out[first:stop, None, columns])


def product(matrix: Array, inputs: Array, out: Array) -> None:
    """Writes matrix @ inputs into ``out``; for what is always asked for as a whole."""
    for columns in _tiles(inputs):
        np.matmul(matrix, inputs[:, columns], out=out[:, columns])


def _tiles(inputs: Array) -> list[slice]:
    height, dim = inputs.shape
    width = max(_PRODUCT_SIZE // height // _LEAST_WIDTH * _LEAST_WIDTH, _LEAST_WIDTH)
    return [slice(left, left + width) for left in range(0, dim, width)]
