"""Lower-triangular factorisations of the prefix-sum matrix, and streams of their noise.

Let A be the all-ones lower triangular matrix and A = B C with B, C lower triangular.  A mechanism
that sees C x + z, with z iid standard normal rows, can output B (C x + z) = A x + W, W = B z: the
prefix sums of x plus a correlated noise that does not depend on x.  This file holds the numbers
only ("noise out"): column norms of C (privacy), standard deviations of W (error), and W itself.

Privacy:  with ``noise_std`` times W as the noise, changing row j of x by D costs the Gaussian
          parameter mu**2 = |D|**2 * column_norm_at(j)**2 / noise_std**2, that is rho = mu**2 / 2
          in zCDP.  Rows of x may be chosen after seeing earlier outputs.
Proof:    A x + W = B (C x + z) is post-processing of C x + z.  Adaptive inputs: C lower triangular
          and Gaussian z, Denisov et al. 2022 (arXiv 2202.08312).
Units:    errors are quoted as column_norm() * max_error_std(): the largest standard deviation of
          any prefix sum at mu = 1 (rho = 1/2) and sensitivity 1.  The tree's is then
          sqrt((floor(log2 n) + 1) * max popcount), sqrt((log2 n + 1) * log2 n) at n = 2**k > 2.
Symbols:  decay = 1 - theta, output_decay = 1 - theta^.  The Toeplitz C has the generating function
          C(x) = prod(1 - theta^_i x) / prod(1 - theta_i x) = sum c_k x**k, with c_0 = 1 and
          c_k = sum w_i theta_i**(k - 1); B(x) = 1 / ((1 - x) C(x)) = sum b_k x**k, with
          b_k = sum beta_j lambda_j**k and lambda = (1, theta^).  Arrivals are t = 1, 2, ...
Rounding: decays are stored, not thetas, so 1 - theta keeps all digits.  Interlacing makes all of
          w, beta, c, b positive; norms and errors are sums and products of positive terms, each
          within a few ulps (expm1 does not amplify errors at arguments <= 0).  The total is far
          below 2**-40 relative (200 ulps are 5e-14), so a norm times 1 + 2**-40 is an upper bound.
          The rounding of W itself, ordinary double arithmetic on z, is in no bound here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn._validate import count
from privlearn.errors import HorizonError
from privlearn.mechanisms._blt_table import ANYTIME, TOEPLITZ, Decays

Array: TypeAlias = NDArray[np.float64]
DrawNumbers: TypeAlias = Callable[[int], Array]
JSON: TypeAlias = "int | float | str | list[float]"

_ROUND_UP = 1.0 + 2.0**-40  # see Rounding above
_TREE_BLOCK = 64  # rows; a power of two
_BLT_BLOCK = 32  # rows per matrix product
_PRODUCT_SIZE = 2**18  # multiplications per product: OpenBLAS starts threads above this
_CHUNK = 4096  # times per vectorised pass of an error profile


class Factorization(Protocol):
    """What a mechanism needs of A = B C; structural, nothing to inherit."""

    kind: ClassVar[str]

    @property
    def horizon(self) -> int | None:
        """Number of arrivals covered; None: any number."""

    def column_norm(self) -> float:
        """Upper bound on all column norms of C, float rounding included."""

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j >= 1 of C, float rounding included."""

    def error_std(self, t: int, /) -> float:
        """Standard deviation of each coordinate of W_t, t >= 1."""

    def max_error_std(self) -> float:
        """Largest error_std(t) up to the horizon; inf without a horizon."""

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor, for a ledger."""

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """W_1, W_2, ... made from z_1, z_2, ..., where draw(n) gives the next n rows of z."""


class _Advance(Protocol):
    """Turns the next block of z into the same rows of W; owns the state in between.

    All blocks have ``rows`` rows, but for the last one at a horizon.
    """

    rows: ClassVar[int]

    def __call__(self, z: Array, /) -> Array: ...


@final
class NoiseStream:
    """Hands out the rows W_1, W_2, ..., each once and in order.

    z is drawn and correlated ahead, in blocks of fixed size: for the same z the rows are bitwise
    the same however the calls are split.  Rows made ahead are as secret as z.  A call that fails
    hands out nothing and loses nothing, so it may be repeated.  Not thread-safe.
    """

    __slots__ = ("_advance", "_draw", "_drawn", "_handed", "_horizon", "_rest")

    def __init__(self, draw: DrawNumbers, advance: _Advance, horizon: int | None) -> None:
        """Takes draw(n) -> fresh iid standard rows of shape (n, dim), never past ``horizon``."""
        self._draw = draw
        self._advance = advance
        self._horizon = horizon
        self._drawn = 0
        self._handed = 0
        self._rest = np.empty((0, 0))  # rows made but not handed out

    def next(self, n: int, /) -> Array:
        """Returns the next n >= 0 rows, shape (n, dim), in memory of the caller's own.

        Raises:
            ValueError: n < 0, or ``draw`` gave another shape.
            HorizonError: more rows than the horizon in all.
        """
        n = count(at_least=0, n=n)
        if self._horizon is not None and self._handed + n > self._horizon:
            raise HorizonError(
                f"{n} more rows after {self._handed} exceed horizon = {self._horizon}; "
                "declare a larger horizon or use a factorization without one"
            )
        if self._drawn == 0:
            self._rest = self._block()
        rows = np.empty((n, self._rest.shape[1]))
        at = 0
        try:
            while at < n:
                if not len(self._rest):
                    self._rest = self._block()
                part = self._rest[: n - at]
                rows[at : at + len(part)] = part
                at += len(part)
                self._rest = self._rest[len(part) :]
        except BaseException:
            self._rest = np.concatenate([rows[:at], self._rest])
            raise
        self._handed += n
        return rows

    def _block(self) -> Array:
        size = self._advance.rows
        if self._horizon is not None:
            size = min(size, self._horizon - self._drawn)
        z = np.asarray(self._draw(size), dtype=np.float64)
        dim = self._rest.shape[1] if self._drawn else None
        if z.ndim != 2 or len(z) != size or dim not in (None, z.shape[1]):
            raise ValueError(f"draw({size}) has shape {z.shape}: must be ({size}, {dim or 'dim'})")
        rows = self._advance(z)
        self._drawn += size
        return rows


@final
@dataclass(frozen=True, slots=True)
class BinaryTree:
    """Binary-tree sums in Fenwick form: one node of noise per arrival.

    Node t holds the sum over (t - lowbit(t), t]; the prefix t is the sum of the nodes in the binary
    representation of t, so W_t = z_t + W_{t - lowbit(t)}.  Index j is in the nodes j, j +
    lowbit(j), ... up to the horizon, at most floor(log2 horizon) + 1 of them (j = 1).
    Stream memory: O(dim * (log(horizon) + 64)).
    """

    kind: ClassVar[str] = "binary_tree"
    horizon: int

    def __post_init__(self) -> None:
        """Raises ValueError unless horizon >= 1."""
        count(horizon=self.horizon)

    def column_norm(self) -> float:
        """Upper bound on all column norms of C."""
        return self.column_norm_at(1)

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j: root of the number of nodes that contain j."""
        _arrival(j, self.horizon)
        nodes = 0
        while j <= self.horizon:
            nodes += 1
            j += j & -j
        return math.sqrt(nodes) * _ROUND_UP

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t: root of the number of ones in t."""
        return math.sqrt(_arrival(t, self.horizon).bit_count())

    def max_error_std(self) -> float:
        """Root of the most ones in any t <= horizon: all ones if horizon + 1 is a power of two."""
        return math.sqrt((self.horizon + 1).bit_length() - 1)

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor."""
        return {"horizon": self.horizon}

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """Rows of W; draw(n) gives n fresh iid standard rows."""
        return NoiseStream(draw, _TreeSums(), self.horizon)


@final
class _TreeSums:
    rows: ClassVar[int] = _TREE_BLOCK

    def __init__(self) -> None:
        self._ends: list[tuple[int, Array]] = []  # (block, W at its end) along the binary digits

    def __call__(self, z: Array, /) -> Array:
        last = self._ends[-1][0] if self._ends else 0
        w = np.zeros((self.rows + 1, z.shape[1]))
        if self._ends:
            w[0] = self._ends[-1][1]
        w[1 : len(z) + 1] = z
        step = self.rows
        while step > 1:
            w[step // 2 :: step] += w[: self.rows : step]
            step //= 2
        block = last + 1
        kept = [end for end in self._ends if end[0] <= block & last]  # block without its lowest one
        if kept:
            w[self.rows] += kept[-1][1]
        self._ends = [*kept, (block, w[self.rows].copy())]
        return w[1 : len(z) + 1]


@final
@dataclass(frozen=True, slots=True)
class BufferedToeplitz:
    """Buffered linear Toeplitz (BLT) factorisation: a rational approximation of (1 - x)**-1/2.

    Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and near-optimal noise
    generation for streaming differential privacy" (arXiv 2404.16706).  Columns shrink with j, so
    the first one bounds them all; errors grow with t.  Stream memory: O(dim * (buffers + 32)).

    Args:
        horizon: number of arrivals.
        decay, output_decay: 1 - theta and 1 - theta^, both descending and interlaced,
            1 > output_decay[0] > decay[0] > output_decay[1] > ... > 0 (else ValueError);
            1 to 16 of each.
    """

    kind: ClassVar[str] = "buffered_toeplitz"
    horizon: int
    decay: tuple[float, ...]
    output_decay: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError unless horizon >= 1 and the decays interlace."""
        count(horizon=self.horizon)
        _check_decays(self.decay, self.output_decay)

    @classmethod
    def fitted(cls, horizon: int) -> BufferedToeplitz:
        """Five buffers, parameters from a fitted table; norms and errors are for ``horizon``."""
        return cls(horizon, *_fitted(horizon))

    def column_norm(self) -> float:
        """Upper bound on all column norms of C."""
        return self.column_norm_at(1)

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j."""
        left = self.horizon - _arrival(j, self.horizon) + 1
        return float(_upper_norms(self._toeplitz, np.array([left]))[0])

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t."""
        return self._toeplitz.error_std(_arrival(t, self.horizon))

    def max_error_std(self) -> float:
        """Standard deviation of the last row."""
        return self.error_std(self.horizon)

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor."""
        return _parameters(self.decay, self.output_decay, self.horizon)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """Rows of W; draw(n) gives n fresh iid standard rows."""
        matrix = self._toeplitz.block_matrix(_BLT_BLOCK)
        advance = _BlockProduct(lambda _: matrix, len(self.decay) + 1)
        return NoiseStream(draw, advance, self.horizon)

    @property
    def _toeplitz(self) -> _Toeplitz:
        return _toeplitz(self.decay, self.output_decay)


@final
@dataclass(frozen=True, slots=True)
class AnytimeBLT:
    """BLT without a horizon: columns of C are bounded over the infinite stream.

    Every column has the same norm.  The error is at most 1.235 times that of BufferedToeplitz with
    horizon t, for 16 <= t <= 2**20 (1.75 times at t = 1); later its square grows linearly.
    Arguments as for BufferedToeplitz; the defaults are fitted constants.  Stream memory:
    O(dim * (buffers + 32)).
    """

    kind: ClassVar[str] = "anytime_blt"
    decay: tuple[float, ...] = ANYTIME[0]
    output_decay: tuple[float, ...] = ANYTIME[1]

    def __post_init__(self) -> None:
        """Raises ValueError unless the decays interlace."""
        _check_decays(self.decay, self.output_decay)

    @property
    def horizon(self) -> None:
        """None: any number of arrivals."""
        return None

    def column_norm(self) -> float:
        """Upper bound on all column norms of C, which are infinite columns."""
        return float(_upper_norms(self._toeplitz, np.array([np.inf]))[0])

    def column_norm_at(self, j: int, /) -> float:
        """The same for every j."""
        _arrival(j, None)
        return self.column_norm()

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t."""
        return self._toeplitz.error_std(_arrival(t, None))

    def max_error_std(self) -> float:
        """Infinity: the error grows without bound."""
        return math.inf

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor."""
        return _parameters(self.decay, self.output_decay)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """Rows of W; draw(n) gives n fresh iid standard rows."""
        matrix = self._toeplitz.block_matrix(_BLT_BLOCK)
        return NoiseStream(draw, _BlockProduct(lambda _: matrix, len(self.decay) + 1), None)

    @property
    def _toeplitz(self) -> _Toeplitz:
        return _toeplitz(self.decay, self.output_decay)


@final
@dataclass(frozen=True, slots=True)
class ColumnNormalizedBLT:
    """BLT with every column of C scaled to norm 1 within a hard horizon; the least error.

    C' = C diag(1 / n_j), B' = A diag(n) C**-1, with n_j = |column j of C|.  All arrivals then cost
    the same, and from 2**10 to 2**20 the error is 6 to 4% below BufferedToeplitz.  With the noise
    Y = B z of the BLT, W_t = n_t Y_t + sum_{s<t} (n_s - n_{s+1}) Y_s.

    Proof:   summation by parts of A diag(n) C**-1 z, Y = A C**-1 z.  The n_j are taken as their
             upper bounds and the differences of neighbours are exact in floats (Sterbenz: each is
             within a factor of 2 of the next), so every column norm is at most 1, not about 1.
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
        count(horizon=self.horizon)
        _check_decays(self.decay, self.output_decay)

    @classmethod
    def fitted(cls, horizon: int) -> ColumnNormalizedBLT:
        """Five buffers, parameters from a fitted table; norms and errors are for ``horizon``."""
        return cls(horizon, *_fitted(horizon))

    def column_norm(self) -> float:
        """Upper bound on all column norms of C': exactly 1."""
        return 1.0

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j of C': exactly 1."""
        _arrival(j, self.horizon)
        return 1.0

    def error_std(self, t: int, /) -> float:
        """Standard deviation of W_t; the first call takes time O(horizon)."""
        return float(self._error_profile()[_arrival(t, self.horizon) - 1])

    def max_error_std(self) -> float:
        """Largest standard deviation up to the horizon; the first call takes time O(horizon)."""
        return float(self._error_profile().max())

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor."""
        return _parameters(self.decay, self.output_decay, self.horizon)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """Rows of W; draw(n) gives n fresh iid standard rows."""
        toeplitz = _toeplitz(self.decay, self.output_decay)
        base = toeplitz.block_matrix(_BLT_BLOCK)
        size = _BLT_BLOCK

        before = np.tri(size + 1, size, -1)
        full = np.zeros((len(base) + 1, len(base) + 1))
        full[: size + 1, 0] = 1.0  # first state: the running sum of (n_s - n_{s+1}) Y_s
        full[size + 1 :, 1:] = base[size:]

        def matrix(first: int) -> Array:
            norms = _column_norms(toeplitz, self.horizon, first, size + 1)
            weights = before * (norms[:-1] - norms[1:])
            np.fill_diagonal(weights, norms)
            np.matmul(weights, base[:size], out=full[: size + 1, 1:])
            return full

        return NoiseStream(draw, _BlockProduct(matrix, len(self.decay) + 2), self.horizon)

    def _error_profile(self) -> Array:
        return _normalized_profile(self.horizon, self.decay, self.output_decay)


@final
class _BlockProduct:
    """One matrix product per block: matrix(first) @ [state; z] = [W; new state].

    Columns are taken in tiles small enough that OpenBLAS stays on one thread: faster at this size,
    many times so when cores are busy, and the result does not depend on the number of threads.
    """

    rows: ClassVar[int] = _BLT_BLOCK

    def __init__(self, matrix: Callable[[int], Array], n_states: int) -> None:
        self._matrix = matrix
        self._n_states = n_states
        self._first = 1
        self._input = np.zeros((0, 0))

    def __call__(self, z: Array, /) -> Array:
        states, dim = self._n_states, z.shape[1]
        if self._first == 1:
            self._input = np.zeros((states + self.rows, dim))
        self._input[states : states + len(z)] = z
        self._input[states + len(z) :] = 0.0
        matrix = self._matrix(self._first)
        out = np.empty((len(matrix), dim))
        width = _PRODUCT_SIZE // matrix.size
        for left in range(0, dim, width):
            columns = slice(left, left + width)
            np.matmul(matrix, self._input[:, columns], out=out[:, columns])
        self._input[:states] = out[self.rows :]
        self._first += self.rows
        return out[: len(z)]


@final
@dataclass(frozen=True, slots=True)
class _Toeplitz:
    """Numbers of one BLT; all arrays positive but for the log rates."""

    log_output: Array  # log lambda, (buffers + 1,), the first 0
    beta: Array  # (buffers + 1,)
    norm_rate: Array  # log(theta_i theta_j) over pairs i <= j, flat
    norm_scale: Array  # w_i w_j / (1 - theta_i theta_j), twice where i < j
    pair_rate: Array  # log(lambda_i lambda_j), (buffers + 1, buffers + 1)
    pair_gap: Array  # 1 - lambda_i lambda_j, 1 in the corner, which is not used

    def column_energy(self, length: Array) -> Array:
        """Squared norm of a column of C with ``length`` >= 1 entries (inf allowed), any shape."""
        gone = -np.expm1(np.multiply.outer(length - 1.0, self.norm_rate))
        return np.asarray(1.0 + gone @ self.norm_scale)

    def state_covariance(self, t: Array) -> Array:
        """Covariance of the states S_t = sum_s lambda**(t - s) z_s, (len(t), d + 1, d + 1)."""
        covariance = -np.expm1(np.multiply.outer(t, self.pair_rate)) / self.pair_gap
        covariance[:, 0, 0] = t
        return np.asarray(covariance)

    def error_std(self, t: int) -> float:
        """Standard deviation of Y_t = beta . S_t."""
        covariance = self.state_covariance(np.array([float(t)]))[0]
        return math.sqrt(self.beta @ covariance @ self.beta)

    def block_matrix(self, rows: int) -> Array:
        """The matrix of [S_0; z_1 .. z_rows] -> [Y_1 .. Y_rows; S_rows]."""
        states = len(self.beta)
        powers = np.exp(np.multiply.outer(np.arange(rows + 1.0), self.log_output))
        lag = np.subtract.outer(np.arange(rows), np.arange(rows))
        matrix = np.zeros((rows + states, states + rows))
        matrix[:rows, :states] = self.beta * powers[1:]
        matrix[:rows, states:] = np.where(lag >= 0, (powers @ self.beta)[np.abs(lag)], 0.0)
        matrix[rows:, :states] = np.diag(powers[rows])
        matrix[rows:, states:] = powers[rows - 1 :: -1].T
        return matrix


@lru_cache(maxsize=64)
def _toeplitz(decay: tuple[float, ...], output_decay: tuple[float, ...]) -> _Toeplitz:
    a, b = np.array(decay), np.array(output_decay)
    n = len(a)
    rest = ~np.eye(n, dtype=bool)
    # theta_i - theta^_j = b_j - a_i, and so on: differences of stored floats, one rounding each.
    cross = b[None, :] - a[:, None]
    within_a = np.where(rest, a[None, :] - a[:, None], 1.0)
    within_b = np.where(rest, b[None, :] - b[:, None], 1.0)
    w = np.abs(np.prod(cross / within_a, axis=1))
    w_hat = np.abs(np.prod(cross.T / within_b, axis=1))
    beta = np.concatenate([[np.prod(a / b)], w_hat / b])
    log_a, log_b = np.log1p(-a), np.concatenate([[0.0], np.log1p(-b)])
    outputs = np.concatenate([[0.0], b])
    gap = outputs[:, None] + outputs[None, :] * (1.0 - outputs[:, None])
    gap[0, 0] = 1.0
    i, j = np.triu_indices(n)
    norm_gap = a[i] + a[j] * (1.0 - a[i])
    return _Toeplitz(
        log_output=log_b,
        beta=beta,
        norm_rate=log_a[i] + log_a[j],
        norm_scale=np.where(i < j, 2.0, 1.0) * w[i] * w[j] / norm_gap,
        pair_rate=np.add.outer(log_b, log_b),
        pair_gap=gap,
    )


def _upper_norms(toeplitz: _Toeplitz, length: Array) -> Array:
    return np.asarray(np.sqrt(toeplitz.column_energy(length)) * _ROUND_UP)


def _column_norms(toeplitz: _Toeplitz, horizon: int, first: int, size: int) -> Array:
    """Upper bounds on the norms of columns first, ..., first + size - 1; 1 past the horizon."""
    length = horizon - np.arange(first, first + size, dtype=np.float64) + 1.0
    return _upper_norms(toeplitz, np.maximum(length, 1.0))


@lru_cache(maxsize=4)
def _normalized_profile(
    horizon: int, decay: tuple[float, ...], output_decay: tuple[float, ...]
) -> Array:
    """Standard deviations of W_1, ..., W_horizon, read-only; about 1 us per entry.

    With U_t = sum_{s<t} delta_s Y_s, delta_s = n_s - n_{s+1} >= 0, and S the states of Y:
    cov(U_{t+1}, S_{t+1}) = lambda * (cov(U_t, S_t) + delta_t cov(Y_t, S_t)), and
    var U_{t+1} = var U_t + 2 delta_t cov(U_t, Y_t) + delta_t**2 var Y_t: nothing cancels.
    """
    toeplitz = _toeplitz(decay, output_decay)
    beta = toeplitz.beta
    profile = np.empty(horizon)
    cross, var_u = np.zeros(len(beta)), 0.0
    for start in range(0, horizon, _CHUNK):
        size = min(_CHUNK, horizon - start)
        t = np.arange(start + 1.0, start + size + 1.0)
        norms = _column_norms(toeplitz, horizon, start + 1, size + 1)
        delta = norms[:-1] - norms[1:]
        y_s = toeplitz.state_covariance(t) @ beta
        var_y = y_s @ beta
        # Row 0 holds cov(U, S) at the first t; the doubling scan then applies the recursion.
        u_s = np.vstack([cross, delta[:, None] * y_s * np.exp(toeplitz.log_output)])
        lag = 1
        while lag <= size:
            u_s[lag:] += np.exp(lag * toeplitz.log_output) * u_s[:-lag]
            lag *= 2
        u_y = u_s[:-1] @ beta
        u_u = var_u + np.concatenate([[0.0], np.cumsum(delta * (2.0 * u_y + delta * var_y))])
        variance = norms[:-1] ** 2 * var_y + 2.0 * norms[:-1] * u_y + u_u[:-1]
        profile[start : start + size] = np.sqrt(variance)
        cross, var_u = u_s[-1], float(u_u[-1])
    profile.flags.writeable = False
    return profile


def _fitted(horizon: int) -> Decays:
    """Table entry of the next power of two: within 0.1% of the best for the horizon itself."""
    k = (count(horizon=horizon) - 1).bit_length()
    return TOEPLITZ[min(max(k, min(TOEPLITZ)), max(TOEPLITZ))]


def _arrival(t: int, horizon: int | None) -> int:
    t = count(arrival=t)
    if horizon is not None and t > horizon:
        raise HorizonError(f"arrival = {t}: must be <= horizon = {horizon}")
    return t


def _check_decays(decay: tuple[float, ...], output_decay: tuple[float, ...]) -> None:
    """Interlacing makes all coefficients positive (Rounding, above); the gaps prevent overflow."""
    if not (isinstance(decay, tuple) and isinstance(output_decay, tuple)):
        raise TypeError("decay, output_decay: must be tuples of floats")
    if len(decay) != len(output_decay) or not 1 <= len(decay) <= 16:
        raise ValueError(
            f"decay, output_decay have {len(decay)}, {len(output_decay)} entries: "
            "must have the same number, 1 to 16"
        )
    chain = [1.0, *(p for pair in zip(output_decay, decay, strict=True) for p in pair)]
    gaps = all(p - q >= p * 2.0**-30 for p, q in itertools.pairwise(chain))
    if not (gaps and chain[-1] >= 2.0**-100):
        raise ValueError(
            f"decay = {decay}, output_decay = {output_decay}: must interlace, "
            "1 > output_decay[0] > decay[0] > output_decay[1] > ... > 0, "
            "with relative gaps >= 2**-30 and all >= 2**-100"
        )


def _parameters(
    decay: tuple[float, ...], output_decay: tuple[float, ...], horizon: int | None = None
) -> dict[str, JSON]:
    known: dict[str, JSON] = {} if horizon is None else {"horizon": horizon}
    return known | {"decay": list(decay), "output_decay": list(output_decay)}
