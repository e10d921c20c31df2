"""Variates to 2^−58 or so, for many at once: where 2^−40 is too coarse to compute with."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from privlearn.exact_noise.fast import Floors, cells
from privlearn.exact_noise.tables import DEGREE, FLOOR_BITS
from privlearn.exact_noise.variates import Variates, table_of

NEAR_BITS: Final = 58
"""Fractional bits of `near`."""
TOO_LARGE: Final = 1 << 62
"""Stands for every variate of 16 or more."""

_MORE = NEAR_BITS - FLOOR_BITS
_ERROR = 2.0**-14
"""Of a cell that is used: 16 units of 2^−58, and 1 more for rounding down; others are refined."""
_LAST = 16 << FLOOR_BITS


def near(drawn: Variates) -> tuple[Floors, Floors]:
    """Integers near 2^58·|z_i|, and by how much they may be off: at most 17; int64.

    Where |z_i| may be 16 or more, 2^62 stands for it.

    Args:
        drawn: normal, Laplace or exponential variates.

    Raises:
        ValueError: Gumbel variates, whose two halves have tables of their own.
    """
    if drawn.kind == "gumbel":
        raise ValueError("drawn: are Gumbel variates, must be normal, Laplace or exponential")
    table = table_of(drawn.kind, 0)[0]
    w, cell = cells(drawn.words)
    sure = cell >= 0
    cell[~sure] = 0
    error, base = table.error[cell], table.base[cell]
    sure &= (error <= _ERROR) & (base < _LAST - (1 << 33))
    t: NDArray[np.float64] = (w - table.centre[cell]).astype(np.float64)
    y = table.coefficients[DEGREE][cell]
    for j in range(DEGREE - 1, -1, -1):
        y *= t
        y += table.coefficients[j][cell]
    whole = np.floor(y)
    y -= whole  # exact
    found = (base + whole.astype(np.int64)) << _MORE
    found += (y * 2.0**_MORE).astype(np.int64)
    off = np.ceil(error * 2.0**_MORE).astype(np.int64) + 1
    for i in np.flatnonzero(~sure).tolist():
        exact = drawn.refined(i, NEAR_BITS)
        found[i], off[i] = min(max(exact, ~exact), TOO_LARGE), 1
    return found, off
