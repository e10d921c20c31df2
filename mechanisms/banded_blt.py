"""The two-sided banded BLT: rows and columns of a banded Toeplitz matrix scaled, for unit columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from privlearn._validate import count
from privlearn.exact import float_up
from privlearn.mechanisms.banded_errors import error_variances
from privlearn.mechanisms.banded_sums import BandedOutputs, ScaledBandedSums, banded_sums_error
from privlearn.mechanisms.banded_toeplitz import (
    MOST_LAGS,
    BandedToeplitz,
    banded_toeplitz,
    check_weights,
    growth,
    inverse,
)
from privlearn.mechanisms.block_products import BLOCK
from privlearn.mechanisms.buffered_toeplitz import check_horizon
from privlearn.mechanisms.factorization import (
    JSON,
    Array,
    Decoder,
    DrawNumbers,
    Encoder,
    Rounding,
    arrival,
)
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.mechanisms.row_scales import SLACK, RowScales, check_row_scales
from privlearn.mechanisms.stream_price import root_up
from privlearn.mechanisms.toeplitz_sums import rounded_up

_SCALES = 16 * BLOCK
"""Scales made at once."""


@final
@dataclass(frozen=True, slots=True)
class BandedBLT:
    """C = diag(l) T diag(r): T a BLT cut at a band, l_t smooth in t, r_j for columns of norm 1.

    T is lower triangular Toeplitz with c_0 = 1, c_u = sum w_i theta_i**(u - 1) for 1 <= u < band,
    and 0 from there on; r_j = 1/m_j rounded down, m_j an upper bound on the norm of column j of
    diag(l) T.  Columns that are ``band`` apart have no row in common, so that what one person moves
    who comes k times, at least ``band`` apart, is sqrt(k) times what one visit moves.  With
    band >= horizon nothing is cut, and for one visit the error is 3% below ColumnNormalizedBLT's.

    Proof:   norms in `column_bounds`, what rounding adds in `banded_sums`.
    Memory:  stream O(dim * (band + weights)) and 7 floats a lag; errors O(horizon) floats, kept for
             the last few factorisations used.

    Args:
        horizon: number of arrivals, at most 2**40.
        band: lags with a coefficient; the smaller of it and the horizon is at most 2**24.
        weights, decay: w, of any sign, and 1 - theta, in [2**-60, 1); 1 to 16 of each.
        row_scales: l at knots, in [2**-20, 1], 1 to 64 of them; linear in between.  The knots are
            closer at both ends (`privlearn.mechanisms.row_scales.knot_times`).

    Raises:
        ValueError: out of range, or 1/c(x) grows, so that noise would be amplified for ever.
    """

    kind: ClassVar[str] = "banded_blt"
    horizon: int
    band: int
    weights: tuple[float, ...]
    decay: tuple[float, ...]
    row_scales: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for the reasons above."""
        check_horizon(self.horizon)
        if min(count(band=self.band), self.horizon) > MOST_LAGS:
            raise ValueError(f"band = {self.band}: must be <= 2**24, or the horizon must")
        check_weights(self.weights, self.decay)
        check_row_scales(self.row_scales)
        grown = growth(self.horizon, self.lags, self.weights, self.decay)
        if not grown <= 1:
            raise ValueError(
                f"weights = {self.weights!r}, decay = {self.decay!r}: the coefficients of 1/c(x) "
                f"must decay, but add up to {grown:.3g} times as much behind the first half"
            )

    @property
    def lags(self) -> int:
        """Coefficients of T that are not 0: the band, within the horizon."""
        return min(self.band, self.horizon)

    def column_norm(self) -> float:
        """Upper bound on all column norms of C: exactly 1."""
        return 1.0

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j of C: exactly 1."""
        arrival(j, self.horizon)
        return 1.0

    def largest_norm(self, first: int, last: int, /) -> float:
        """Exactly 1."""
        return self.column_norm_at(first)

    def column_sum(self) -> float:
        """A column of norm 1 has at most ``lags`` entries."""
        return float_up(root_up(Fraction(self.lags)))

    def reach(self) -> Fraction:
        """Rows are multiplied by up to 1/min(row_scales), and rounded; then as for the BLT."""
        numbers = self._numbers
        states = (min(Fraction(self.lags), 1 / a) for a in numbers.decay)
        largest = max(*states, numbers.total, Fraction(4 * BLOCK))
        return rounded_up((1 / Fraction(min(self.row_scales)) + 1) * largest)

    def rounding(self, largest: int, /) -> Rounding:
        """See `banded_sums_error`; two rows, each off by half a step and more, enter a column."""
        scaled = largest / Fraction(min(self.row_scales))
        off = Fraction(1, 2) + scaled / 2**51
        cut = self.band < self.horizon
        error = banded_sums_error(self._numbers, self.horizon, cut, int(scaled + off) + 1)
        return Rounding(rounded_up(2 * off * self._numbers.norm), 2 * error)

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t; the first call takes time O(1000 horizon)."""
        return float(self._profile()[arrival(t, self.horizon) - 1])

    def max_error_std(self) -> float:
        """Largest standard deviation up to the horizon; as `error_std`."""
        return float(self._profile().max())

    def rms_error_std(self) -> float:
        """Root of the mean variance up to the horizon; as `error_std`."""
        return math.sqrt(float(np.mean(self._profile() ** 2)))

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor."""
        return {
            "horizon": self.horizon,
            "band": self.band,
            "weights": list(self.weights),
            "decay": list(self.decay),
            "row_scales": list(self.row_scales),
        }

    def encoder(self, dim: int, /) -> Encoder:
        """R near C X."""
        return ScaledBandedSums(self, dim)

    def decoder(self, dim: int, /) -> Decoder:
        """B y."""
        return BandedOutputs(self, dim)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """Rows of W; draw(n) gives n fresh iid standard rows."""
        return NoiseStream(draw, self.decoder, self.horizon)

    @property
    def _numbers(self) -> BandedToeplitz:
        return banded_toeplitz(self.lags, self.weights, self.decay)

    def _profile(self) -> Array:
        return _profile(self)


def scales_from(made: BandedBLT, first: int) -> tuple[Array, Array]:
    """l and m, as `column_bounds` has it, of the next times from ``first`` on, at least one."""
    start = (first - 1) // _SCALES * _SCALES + 1
    rows, columns = _scales(made, start)
    return rows[first - start :], columns[first - start :]


@lru_cache(maxsize=16)
def _scales(made: BandedBLT, start: int) -> tuple[Array, Array]:
    scales = RowScales(made.horizon, made.row_scales)
    rows = scales(start, _SCALES)
    columns = column_bounds(made, start, _SCALES)
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def column_bounds(made: BandedBLT, first: int, size: int) -> Array:
    """Upper bounds on the norms of columns first, ... of diag(l) T; 1 past the horizon.

    On a piece of the scales, l_s <= L(u) = A + slope u at s = j + u, with A = base + SLACK +
    slope (j - piece.first), so that the sum of (l_s c_u)**2 over it is at most that of L**2 times
    `moments`, A**2 E_0 + 2 A slope E_1 + slope**2 E_2 with E_k differences of prefix sums.  Every
    product and sum of that is off by at most 10u of the same expression in sizes, Z, with |A| <=
    base + SLACK + |slope (j - piece.first)| and the E_k up to the end of the piece; and by 2**-42 Z
    from `moments`.  The bound adds 2**-41 Z.  The last factor covers the sum over at most 64
    pieces, the root and the product.
    """
    numbers = made._numbers
    j = np.arange(first, first + size, dtype=np.int64)
    found, slack = np.zeros(size), np.zeros(size)
    for piece in RowScales(made.horizon, made.row_scales).pieces:
        start = np.clip(piece.first - j, 0, made.lags)
        stop = np.clip(piece.stop - j, 0, made.lags)
        some = np.flatnonzero((start < stop) & (j <= made.horizon))
        if not len(some):
            continue
        low, high = numbers.moments[:, start[some]], numbers.moments[:, stop[some]]
        moved = piece.slope * (j[some] - piece.first)
        a, sizes = piece.base + SLACK + moved, piece.base + SLACK + np.abs(moved)
        slope, steep = piece.slope, abs(piece.slope)
        e = high - low
        found[some] += a * a * e[0] + 2.0 * a * slope * e[1] + slope * slope * e[2]
        slack[some] += sizes * sizes * high[0] + 2.0 * sizes * steep * high[1]
        slack[some] += steep * steep * high[2]
    bounds = np.sqrt((found + 2.0**-41 * slack) * (1 + 2.0**-44)) * (1 + 2.0**-50)
    return np.where(j <= made.horizon, bounds, 1.0)


@lru_cache(maxsize=4)
def _profile(made: BandedBLT) -> Array:
    n = made.horizon
    scales = RowScales(n, made.row_scales)
    h = np.zeros(n)
    h[:] = inverse(made._numbers.coefficients, n)
    places = np.array([piece.first - 1 for piece in scales.pieces], dtype=np.int64)
    columns = np.concatenate(
        [column_bounds(made, first, min(2**16, n - first + 1)) for first in range(1, n + 1, 2**16)]
    )
    profile = np.sqrt(error_variances(scales(1, n), columns, h, places))
    profile.flags.writeable = False
    return np.asarray(profile)
