"""Row and column scales of a two-sided banded BLT, from its public numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_toeplitz import BandedToeplitz, Lags, banded_toeplitz, lags_of
from privlearn.mechanisms.block_products import BLOCK
from privlearn.mechanisms.row_scales import SLACK, RowScales, row_scales

Array = NDArray[np.float64]

_CHUNK = 32 * BLOCK  # Scales made at once


class BandedTerms(NamedTuple):
    """The arguments of `BandedBLT`, checked."""

    horizon: int
    band: int
    weights: tuple[float, ...]
    decay: tuple[float, ...]
    row_scales: tuple[float, ...]
    column_scales: tuple[float, ...] = (1.0,)

    @property
    def lags(self) -> int:
        """Coefficients of T that are not 0: the band, within the horizon."""
        return min(self.band, self.horizon)

    @property
    def cut(self) -> bool:
        """Whether rows leave the states within the horizon."""
        return self.band < self.horizon

    @property
    def rows(self) -> RowScales:
        return row_scales(self.horizon, self.row_scales)

    @property
    def columns(self) -> RowScales:
        return row_scales(self.horizon, self.column_scales)

    @property
    def toeplitz(self) -> BandedToeplitz:
        """The numbers of T."""
        return banded_toeplitz(self.lags, self.weights, self.decay)

    @property
    def each_lag(self) -> Lags:
        """Numbers of T for each lag."""
        return lags_of(self.lags, self.weights, self.decay)


@final
class NextScales:
    """l and `column_divisors` of the next rows, each once and in order."""

    __slots__ = ("_at", "_columns", "_next", "_rows", "_terms")

    def __init__(self, terms: BandedTerms) -> None:
        self._terms = terms
        self._rows, self._columns = np.empty((0, 1)), np.empty((0, 1))
        self._next, self._at = 1, 0  # the next chunk, and the place in this one

    def __call__(self, n: int) -> tuple[Array, Array]:
        """Both of shape (n, 1)."""
        first, self._at = self._at, self._at + n
        while self._at > len(self._rows):
            self._rows, self._columns = self._rows[first:], self._columns[first:]
            self._at, first = self._at - first, 0
            rows, columns = _chunk(self._terms, self._next)
            self._rows = np.concatenate([self._rows, rows])
            self._columns = np.concatenate([self._columns, columns])
            self._next += _CHUNK
        return self._rows[first : self._at], self._columns[first : self._at]


@lru_cache(maxsize=16)
def _chunk(terms: BandedTerms, first: int) -> tuple[Array, Array]:
    rows = terms.rows(first, _CHUNK)[:, None]
    columns = column_divisors(terms, first, _CHUNK)[:, None]
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def column_divisors(terms: BandedTerms, first: int, size: int) -> Array:
    """Upper bounds on m_j / p_j for columns first, ...: divided by it, column j has norm <= p_j.

    The quotient is off by u = 2**-53 of itself, and so is its product with 1 + 4u.
    """
    bounds, scales = column_bounds(terms, first, size), terms.columns(first, size)
    return np.where(scales < 1.0, bounds / scales * (1 + 2.0**-51), bounds)


def column_bounds(terms: BandedTerms, first: int, size: int) -> Array:
    """Upper bounds on the norms of columns first, ... of diag(l) T; 1 past the horizon.

    On a piece of the scales, l_s <= L(u) = A + slope u at s = j + u, with A = base + SLACK +
    slope (j - piece.first), so that the sum of (l_s c_u)**2 over it is at most that of L**2 times
    `moments`, A**2 E_0 + 2 A slope E_1 + slope**2 E_2 with E_k differences of prefix sums.  Every
    product and sum of that is off by at most 16u of the same expression in sizes, Z, u = 2**-53,
    with |A| <= base + SLACK + |slope (j - piece.first)| and the E_k up to the end of the piece; and
    by 2**-42 Z from `moments`.  The bound adds 2**-41 Z.  The last factors cover the sum over at
    most 63 pieces, the root and the products.
    """
    moments, lags = terms.each_lag.moments, terms.lags
    j = np.arange(first, first + size, dtype=np.int64)
    found, slack = np.zeros(size), np.zeros(size)
    for piece in terms.rows.pieces:
        start = np.clip(piece.first - j, 0, lags)
        stop = np.clip(piece.stop - j, 0, lags)
        some = np.flatnonzero(start < stop)
        if not len(some):
            continue
        high = moments[:, stop[some]]
        e = high - moments[:, start[some]]
        moved = piece.slope * (j[some] - piece.first)
        a, sizes = piece.base + SLACK + moved, piece.base + SLACK + np.abs(moved)
        slope, steep = piece.slope, abs(piece.slope)
        found[some] += a * a * e[0] + 2.0 * a * slope * e[1] + slope * slope * e[2]
        slack[some] += sizes * sizes * high[0] + 2.0 * sizes * steep * high[1]
        slack[some] += steep * steep * high[2]
    bounds = np.sqrt((found + 2.0**-41 * slack) * (1 + 2.0**-44)) * (1 + 2.0**-50)
    return np.where(j <= terms.horizon, bounds, 1.0)
