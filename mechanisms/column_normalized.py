"""The BLT with every column of C scaled to norm 1 within a hard horizon."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.block_products import BLOCK, RowProducts, product
from privlearn.mechanisms.buffered_toeplitz import (
    check_horizon,
    decay_parameters,
    fitted_decays,
    toeplitz_reach,
)
from privlearn.mechanisms.factorization import (
    JSON,
    Array,
    Decoder,
    DrawNumbers,
    Encoder,
    Integers,
    Rounding,
    arrival,
)
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.mechanisms.participation_norms import most_visits, normalized_norm
from privlearn.mechanisms.toeplitz import Toeplitz, check_decays, toeplitz
from privlearn.mechanisms.toeplitz_sums import ToeplitzSums, rounded_up, sums_error

_CHUNK = 4096
"""Times per vectorised pass of an error profile."""
_NORMS = 16 * BLOCK
"""Norms made at once."""
_BEFORE = np.tri(BLOCK + 1, BLOCK, -1)


@final
@dataclass(frozen=True, slots=True)
class ColumnNormalizedBLT:
    """BLT with every column of C scaled to norm 1 within a hard horizon; the least error.

    C' = C diag(r), B' = A diag(n) C**-1, with n_j an upper bound on |column j of C| and r_j = 1/n_j
    rounded down.  All arrivals then cost the same, and from 2**10 to 2**20 the error is 6 to 4%
    below BufferedToeplitz.  With Y = B y of the BLT, W_t = n_t Y_t + sum_{s<t} (n_s - n_{s+1}) Y_s.

    Proof:   summation by parts of A diag(n) C**-1 y, Y = A C**-1 y.  The differences of neighbours
             n_s are exact in floats (Sterbenz: each is within a factor of 2 of the next).  Row j of
             X enters C as rint(r_j X_j), so its column has norm at most 1, and what rounding adds
             to the move of a row is in `rounding`.
    Memory:  stream O(dim * (buffers + 32)); errors O(horizon) floats, kept for the last few
             factorisations used.
    Args:    as BufferedToeplitz.
    """

    kind: ClassVar[str] = "column_normalized_blt"
    horizon: int
    decay: tuple[float, ...]
    output_decay: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError unless horizon >= 1 and the decays interlace."""
        check_horizon(self.horizon)
        check_decays(self.decay, self.output_decay)

    @classmethod
    def fitted(cls, horizon: int) -> ColumnNormalizedBLT:
        """Five buffers, parameters from a fitted table; norms and errors are for ``horizon``."""
        return cls(horizon, *fitted_decays(horizon))

    def column_norm(self) -> float:
        """Upper bound on all column norms of C': exactly 1."""
        return 1.0

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j of C': exactly 1."""
        arrival(j, self.horizon)
        return 1.0

    def largest_norm(self, first: int, last: int, /) -> float:
        """Exactly 1."""
        return self.column_norm_at(first)

    def participation_norm(self, most: int, apart: int, /) -> float:
        """Upper bound on S, by a dynamic programme in time O(horizon * visits).

        Raises:
            ValueError: a number below 1, or horizon * visits is above 2**28.
        """
        visits = most_visits(self.horizon, most, apart)
        if visits == 1:
            return 1.0
        return _participation_norm(self.horizon, self.decay, self.output_decay, visits, apart)

    def column_sum(self) -> float:
        """None known but that which follows from the norm."""
        return float("inf")

    def reach(self) -> Fraction:
        """That of the BLT: rows are scaled down."""
        return toeplitz_reach(self.horizon, self.decay)

    def rounding(self, largest: int, /) -> Rounding:
        """As for the BLT, and what scaling a row adds.

        A double of X times r is off by 2.01u largest, u = 2**-53, before it is rounded to an
        integer.  Two rows, each off by that and 1/2, enter a column of C as it is.
        """
        off = Fraction(1, 2) + Fraction(largest, 2**51)
        numbers = toeplitz(self.decay, self.output_decay)
        norm = Fraction(float(numbers.column_norms(np.array([self.horizon]))[0]))
        error = sums_error(numbers, self.horizon, largest + int(off) + 1)
        return Rounding(rounded_up(2 * off * norm), 2 * error)

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t; the first call takes time O(horizon)."""
        return float(self._error_profile()[arrival(t, self.horizon) - 1])

    def max_error_std(self) -> float:
        """Largest standard deviation up to the horizon; the first call takes time O(horizon)."""
        return float(self._error_profile().max())

    def rms_error_std(self) -> float:
        """Root of the mean variance up to the horizon; the first call takes time O(horizon)."""
        return float(np.sqrt(np.mean(self._error_profile() ** 2)))

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor."""
        return decay_parameters(self.horizon, self.decay, self.output_decay)

    def encoder(self, dim: int, /) -> Encoder:
        """R near C diag(r) X."""
        return _ScaledSums(self, ToeplitzSums(toeplitz(self.decay, self.output_decay), dim))

    def decoder(self, dim: int, /) -> Decoder:
        """B' y."""
        return _WeightedOutputs(self, dim)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """Rows of W; draw(n) gives n fresh iid standard rows."""
        return NoiseStream(draw, self.decoder, self.horizon)

    def _error_profile(self) -> Array:
        return _normalized_profile(self.horizon, self.decay, self.output_decay)


@final
class _ScaledSums:
    """Rows of R for rows of X, each scaled by r_j and rounded to integers."""

    __slots__ = ("_at", "_factorization", "_next", "_scales", "_sums")

    def __init__(self, factorization: ColumnNormalizedBLT, sums: ToeplitzSums) -> None:
        self._factorization, self._sums = factorization, sums
        self._scales = np.empty((0, 1))
        self._next, self._at = 1, 0  # the next chunk of scales, and the place in this one

    def __call__(self, x: Integers, /) -> Integers:
        stop = self._at + len(x)
        while stop > len(self._scales):
            stop -= self._at
            self._more()
        scaled = np.multiply(x, self._scales[self._at : stop])
        self._at = stop
        return self._sums(np.rint(scaled, out=scaled).astype(np.int64))

    def _more(self) -> None:
        """Puts the scales of the next rows behind what is left of these."""
        norms = norms_from(self._factorization, self._next)[:-1]
        # 1/n and the product are rounded up by less than the factor takes off
        scales = 1.0 / norms * (1 - 2.0**-52)
        self._scales = np.concatenate([self._scales[self._at :], scales[:, None]])
        self._next, self._at = self._next + len(norms), 0


@final
class _WeightedOutputs:
    """Rows of B' y, by `block_products`; the first state is the sum of (n_s - n_{s+1}) Y_s."""

    __slots__ = (
        "_at",
        "_factorization",
        "_first",
        "_full",
        "_input",
        "_moved",
        "_numbers",
        "_products",
    )

    def __init__(self, factorization: ColumnNormalizedBLT, dim: int) -> None:
        self._factorization = factorization
        self._numbers = toeplitz(factorization.decay, factorization.output_decay)
        states = len(self._numbers.output_moves)
        self._full = np.zeros((BLOCK + 1 + states, 1 + states + BLOCK))
        self._full[:BLOCK, 0] = 1.0
        self._full[BLOCK + 1 :, 1:] = self._numbers.output_moves
        self._input = np.zeros((1 + states + BLOCK, dim))
        self._moved = np.empty((1 + states, dim))
        self._products = RowProducts(self._full, self._input)
        self._first, self._at = 1, 0
        self._weigh()

    def __call__(self, y: NDArray[np.int64] | NDArray[np.float64], /) -> Array:
        found = np.empty(y.shape)
        states, done = len(self._moved), 0
        while done < len(y):
            first, stop = self._at, min(self._at + len(y) - done, BLOCK)
            part = slice(done, done + stop - first)
            self._input[states + first : states + stop] = y[part]
            found[part] = self._products(first, stop)
            done, self._at = part.stop, stop
            if stop == BLOCK:
                product(self._full[BLOCK:], self._input, self._moved)
                self._input[:states] += self._moved
                self._input[states:] = 0.0
                self._first, self._at = self._first + BLOCK, 0
                self._weigh()
        return found

    def _weigh(self) -> None:
        """Puts the weights of the next block into the matrix."""
        norms = norms_from(self._factorization, self._first)[: BLOCK + 1]
        weights = _BEFORE * (norms[:-1] - norms[1:])
        np.fill_diagonal(weights, norms)
        np.matmul(weights, self._numbers.output_rows, out=self._full[: BLOCK + 1, 1:])


def norms_from(factorization: ColumnNormalizedBLT, first: int) -> Array:
    """Upper bounds on the norms of the next columns of C from ``first`` on, at least two."""
    start = (first - 1) // _NORMS * _NORMS + 1
    known = _norms(factorization.horizon, factorization.decay, factorization.output_decay, start)
    return known[first - start :]


@lru_cache(maxsize=16)
def _norms(
    horizon: int, decay: tuple[float, ...], output_decay: tuple[float, ...], start: int
) -> Array:
    made = column_norms(toeplitz(decay, output_decay), horizon, start, _NORMS + 1)
    made.flags.writeable = False
    return made


def column_norms(numbers: Toeplitz, horizon: int, first: int, size: int) -> Array:
    """Upper bounds on the norms of columns first, ..., first + size - 1; 1 past the horizon."""
    length = horizon - np.arange(first, first + size, dtype=np.int64) + 1
    return numbers.column_norms(np.maximum(length, 1))


@lru_cache(maxsize=64)
def _participation_norm(
    horizon: int,
    decay: tuple[float, ...],
    output_decay: tuple[float, ...],
    visits: int,
    apart: int,
) -> float:
    return normalized_norm(toeplitz(decay, output_decay), horizon, visits, apart)


@lru_cache(maxsize=4)
def _normalized_profile(
    horizon: int, decay: tuple[float, ...], output_decay: tuple[float, ...]
) -> Array:
    """Standard deviations of W_1, ..., W_horizon, read-only; about 1 us per entry.

    With U_t = sum_{s<t} delta_s Y_s, delta_s = n_s - n_{s+1} >= 0, and S the states of Y:
    cov(U_{t+1}, S_{t+1}) = lambda * (cov(U_t, S_t) + delta_t cov(Y_t, S_t)), and
    var U_{t+1} = var U_t + 2 delta_t cov(U_t, Y_t) + delta_t**2 var Y_t: nothing cancels.
    """
    numbers = toeplitz(decay, output_decay)
    beta = numbers.beta
    profile = np.empty(horizon)
    cross, var_u = np.zeros(len(beta)), 0.0
    for start in range(0, horizon, _CHUNK):
        size = min(_CHUNK, horizon - start)
        t = np.arange(start + 1.0, start + size + 1.0)
        norms = column_norms(numbers, horizon, start + 1, size + 1)
        delta = norms[:-1] - norms[1:]
        y_s = numbers.state_covariance(t) @ beta
        var_y = y_s @ beta
        # Row 0 holds cov(U, S) at the first t; the doubling scan then applies the recursion.
        u_s = np.vstack([cross, delta[:, None] * y_s * np.exp(numbers.log_output)])
        lag = 1
        while lag <= size:
            u_s[lag:] += np.exp(lag * numbers.log_output) * u_s[:-lag]
            lag *= 2
        u_y = u_s[:-1] @ beta
        u_u = var_u + np.concatenate([[0.0], np.cumsum(delta * (2.0 * u_y + delta * var_y))])
        variance = norms[:-1] ** 2 * var_y + 2.0 * norms[:-1] * u_y + u_u[:-1]
        profile[start : start + size] = np.sqrt(variance)
        cross, var_u = u_s[-1], float(u_u[-1])
    profile.flags.writeable = False
    return profile
