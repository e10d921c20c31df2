"""Variates to 2^−58 or so, for many at once: where 2^−40 is too coarse to compute with."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.fast import Floors, cells
from privlearn.noise.exact.pool import Variates, table_of
from privlearn.noise.exact.tables import CELLS, DEGREE, FLOOR_BITS

NEAR_BITS: Final = 58  # Fractional bits of `near`
NEAR_ERROR: Final = 17  # The largest error, in units of 2^−58; most are 2 or so
TOO_LARGE: Final = 1 << 62  # Stands for every variate of 16 or more

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
    np.clip(cell, 0, CELLS - 1, out=cell)  # V next to 1 may round to it, as in `fast`
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


class Refinable(Protocol):
    """Variates, or what stands for them in a check."""

    def __len__(self) -> int: ...

    def refined(self, i: int, bits: int) -> int:
        """⌊2^bits z_i⌋."""


def nearly(drawn: Refinable) -> list[int]:
    """Integers within 17 of 2^58·z_i for normal, Laplace or exponential variates of any size."""
    if not isinstance(drawn, Variates):
        return [drawn.refined(i, NEAR_BITS) for i in range(len(drawn))]
    sizes = near(drawn)[0].tolist()
    signed = [table_of(drawn.kind, word & 1)[1] for word in drawn.words.tolist()]
    return [
        drawn.refined(i, NEAR_BITS) if size == TOO_LARGE else -size if turned else size
        for i, (size, turned) in enumerate(zip(sizes, signed, strict=True))
    ]
