"""The two-sided banded BLT: a banded Toeplitz matrix, its rows and columns scaled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from privlearn.mechanisms.banded_errors import error_variances
from privlearn.mechanisms.banded_outputs import BandedOutputs
from privlearn.mechanisms.banded_parameters import band_for, best_curves, fitted_parameters
from privlearn.mechanisms.banded_scales import BandedTerms, column_divisors
from privlearn.mechanisms.banded_shapes import Objective
from privlearn.mechanisms.banded_sums import ScaledBandedSums, banded_sums_error
from privlearn.mechanisms.banded_toeplitz import MOST_LAGS, check_weights, inverse
from privlearn.mechanisms.banded_zeros import inverse_decays
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
from privlearn.mechanisms.participation_norms import falling_norm
from privlearn.mechanisms.row_scales import check_column_scales, check_row_scales
from privlearn.mechanisms.stream_price import root_up
from privlearn.mechanisms.toeplitz_sums import rounded_up
from privlearn.values.exact import float_up
from privlearn.values.participation import Participation
from privlearn.values.validate import assign, count, finite


@final
@dataclass(frozen=True, slots=True)
class BandedBLT:
    """C = diag(l) T diag(r): T a BLT cut at a band, l_t smooth in t, r_j for columns of norm p_j.

    T is lower triangular Toeplitz with c_0 = 1, c_u = sum w_i theta_i**(u - 1) for 1 <= u < band,
    and 0 from there on; r_j = p_j/m_j rounded down, m_j an upper bound on the norm of column j of
    diag(l) T.  Columns that are ``band`` apart have no row in common, so that what one person moves
    who comes k times, at least ``band`` apart, is at most sqrt(k) times what one visit moves.  With
    band >= horizon nothing is cut, and for one visit the error is 9 to 6% below BufferedToeplitz's.
    Norms p_j that fall from 1 lower the mean error of several visits: more sums have the noise of
    an early row than of a late one.

    Proof:   norms in `column_divisors`, what rounding adds in `banded_sums`.
    Memory:  stream O(dim * (band + weights)) and 6 floats a lag; errors O(horizon) floats, kept for
             the last few factorisations used.

    Args:
        horizon: number of arrivals, at most 2**40.
        band: lags with a coefficient; the smaller of it and the horizon is at most 2**24.
        weights, decay: w, of any sign, and 1 - theta, in [2**-60, 1); 1 to 16 of each.
        row_scales: l at knots, in [2**-20, 1], 1 to 64 of them; linear in between.  The knots are
            closer at both ends (`privlearn.mechanisms.row_scales.knot_times`).
        column_scales: p at such knots, in [2**-20, 1], 1 to 64 of them; the first is 1, and none is
            above the one before.

    Raises:
        ValueError: out of range, or c(x) has a zero in the unit disc, so that T**-1 grows.
    """

    kind: ClassVar[str] = "banded_blt"
    horizon: int
    band: int
    weights: tuple[float, ...]
    decay: tuple[float, ...]
    row_scales: tuple[float, ...]
    column_scales: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        for name in ("weights", "decay", "row_scales", "column_scales"):
            assign(self, **{name: _floats(name, getattr(self, name))})
        if min(count(band=self.band), self.horizon) > MOST_LAGS:
            raise ValueError(f"band = {self.band}: must be <= 2**24, or the horizon must")
        check_weights(self.weights, self.decay)
        check_row_scales(self.row_scales)
        check_column_scales(self.column_scales)
        terms = self._terms
        if not inverse_decays(terms.lags, terms.cut, self.weights, self.decay):
            raise ValueError(
                f"weights = {self.weights!r}, decay = {self.decay!r}: c(x) must have no zero in "
                "the unit disc, or the noise of a row is amplified on and on"
            )

    @classmethod
    def fitted(
        cls, horizon: int, participation: Participation | None = None, objective: Objective = "max"
    ) -> BandedBLT:
        """From a fitted table, for the least largest, or mean, error of a person; milliseconds.

        The band is as wide as visits of one person are apart, or the horizon for one visit.

        Raises:
            ValueError: horizon < 1, or a rule that counts in batches.
        """
        check_horizon(horizon)
        band, visits = band_for(horizon, participation), _visits(horizon, participation)
        curves = best_curves(horizon, band, objective, visits)
        return cls(horizon, *fitted_parameters(horizon, band, curves))

    def column_norm(self) -> float:
        """Upper bound on all column norms of C: exactly 1."""
        return 1.0

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j of C: exactly p_j."""
        return float(self._terms.columns(arrival(j, self.horizon), 1)[0])

    def largest_norm(self, first: int, last: int, /) -> float:
        return self.column_norm_at(first)

    def participation_norm(self, most: int, apart: int, /) -> float:
        """S: the root of the sum of p_j**2 over the earliest visits if apart >= band; else an upper
        bound."""
        return falling_norm(self.horizon, self._terms.lags, self.column_scales, most, apart)

    def column_sum(self) -> float:
        """A column of norm 1, or less, has at most ``lags`` entries."""
        return float_up(root_up(Fraction(self._terms.lags)))

    def reach(self) -> Fraction:
        """Rows are multiplied by up to 1/min(row_scales), and rounded; then as for the BLT."""
        toeplitz = self._terms.toeplitz
        states = (min(Fraction(self._terms.lags), 1 / a) for a in toeplitz.decay)
        largest = max(*states, toeplitz.total, Fraction(4 * BLOCK))
        return rounded_up((1 / Fraction(min(self.row_scales)) + 1) * largest)

    def rounding(self, largest: int, /) -> Rounding:
        """See `banded_sums_error`; two rows, each off by half a step and more, enter a column."""
        scaled = largest / Fraction(min(self.row_scales))
        off = Fraction(1, 2) + scaled / 2**51
        error = banded_sums_error(self._terms, int(scaled + off) + 1)
        return Rounding(rounded_up(2 * off * self._terms.toeplitz.norm), 2 * error)

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t; for most t within 0.1%; seconds at 10**6 rows."""
        return float(self._profile()[arrival(t, self.horizon) - 1])

    def max_error_std(self) -> float:
        return float(self._profile().max())

    def rms_error_std(self) -> float:
        return math.sqrt(float(np.mean(self._profile() ** 2)))

    def parameters(self) -> dict[str, JSON]:
        named: dict[str, JSON] = {
            "horizon": self.horizon,
            "band": self.band,
            "weights": list(self.weights),
            "decay": list(self.decay),
            "row_scales": list(self.row_scales),
        }
        alike = self.column_scales == (1.0,)
        return named if alike else {**named, "column_scales": list(self.column_scales)}

    def encoder(self, dim: int, /) -> Encoder:
        return ScaledBandedSums(self._terms, dim)

    def decoder(self, dim: int, /) -> Decoder:
        return BandedOutputs(self._terms, dim)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        return NoiseStream(draw, self.decoder, self.horizon)

    @property
    def _terms(self) -> BandedTerms:
        scales = self.row_scales, self.column_scales
        return BandedTerms(self.horizon, self.band, self.weights, self.decay, *scales)

    def _profile(self) -> Array:
        return _profile(self._terms)


def _visits(horizon: int, participation: Participation | None) -> int:
    return 1 if participation is None else participation.visits(horizon)


def _floats(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    if not isinstance(values, tuple):
        raise TypeError(f"{name} = {values!r}: must be a tuple of numbers")
    return tuple(finite(**{name: x}) for x in values)


@lru_cache(maxsize=4)
def _profile(terms: BandedTerms) -> Array:
    n = terms.horizon
    h = inverse(terms.each_lag.coefficients, n)
    bends = {piece.first - 1 for scales in (terms.rows, terms.columns) for piece in scales.pieces}
    places = np.array(sorted(bends), dtype=np.int64)
    columns = np.concatenate(
        [
            column_divisors(terms, first, min(2**16, n - first + 1))
            for first in range(1, n + 1, 2**16)
        ]
    )
    profile = np.sqrt(error_variances(terms.rows(1, n), columns, h, places))
    profile.flags.writeable = False
    return np.asarray(profile)
