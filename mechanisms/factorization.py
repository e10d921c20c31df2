"""Lower-triangular factorisations A = B C of the prefix-sum matrix, and what a stream needs of one.

Let A be the all-ones lower triangular matrix and A = B C with B, C lower triangular.  Contributions
and noise are integers, in steps g of a public grid.  A stream computes R, an integer vector near
C X (`encoder`), adds the integers N of the noise, and releases B Y g for Y = R + N (`decoder`): the
prefix sums of X plus a correlated noise, times g.  Only Y depends on data, so what B does to it, in
doubles, is post-processing; B applied to N alone, added to exact sums, would not be.

Privacy:  N = floor(Z / g) for iid normal Z, so that g Y = g floor((g R + Z) / g) is post-processing
          of g R + Z.  Changing row j of X by at most D/g moves R_t by at most |C_tj| D/g, and by
          rounding (`rounding`).  Without rounding that is the Gaussian parameter
          mu**2 = D**2 * column_norm_at(j)**2 / std**2; `stream_price` has the rest.  Rows of X may
          be chosen after seeing earlier outputs.
Proof:    docs/proofs.md, "Streams of prefix sums"; adaptive inputs: C lower triangular and Gaussian
          noise, Denisov et al. 2022 (arXiv 2202.08312).
Units:    errors are quoted as column_norm() * max_error_std(): the largest standard deviation of
          any prefix sum at mu = 1 (rho = 1/2) and sensitivity 1.  The tree's is then
          sqrt((floor(log2 n) + 1) * max popcount), sqrt((log2 n + 1) * log2 n) at n = 2**k > 2.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import HorizonError
from privlearn.values.validate import count

if TYPE_CHECKING:
    from privlearn.mechanisms.noise_stream import NoiseStream

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
DrawNumbers: TypeAlias = Callable[[int], Array]
JSON: TypeAlias = "int | float | str | list[float]"


class Encoder(Protocol):
    """R_1, R_2, ... from X_1, X_2, ..., each once and in order, however the calls are split."""

    def __call__(self, x: Integers, /) -> Integers: ...


class Decoder(Protocol):
    """(B y)_1, (B y)_2, ... from y_1, y_2, ..., bitwise the same however the calls are split."""

    def __call__(self, y: NDArray[np.int64] | NDArray[np.float64], /) -> Array: ...


class Rounding(NamedTuple):
    """How far R moves besides C (X - X'), for two X that differ in one row; steps, rounded up.

    In each coordinate the move is at most v_t + ``each``, where the norm of v over all rows is at
    most ``column``.
    """

    column: Fraction
    each: Fraction


NO_ROUNDING = Rounding(Fraction(0), Fraction(0))


class Factorization(Protocol):
    """What a mechanism needs of A = B C; structural, nothing to inherit."""

    kind: ClassVar[str]

    @property
    def horizon(self) -> int:
        """Number of arrivals covered; a stream ends there."""

    def column_norm(self) -> float:
        """Upper bound on all column norms of C, float rounding included."""

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j >= 1 of C, float rounding included."""

    def largest_norm(self, first: int, last: int, /) -> float:
        """Upper bound on the norms of columns first, ..., last."""

    def participation_norm(self, most: int, apart: int, /) -> float:
        """S: upper bound on the root of sum_t (sum_{j in pattern} |C_tj|)**2 over patterns.

        A pattern is at most ``most`` columns, any two of them at least ``apart`` from each other
        (`privlearn.mechanisms.participation_norms`); float rounding is included.

        Raises:
            ValueError: a number below 1, or no bound is known, with the reason.
        """

    def column_sum(self) -> float:
        """Upper bound on the sum of |entries| of any column of C; inf where none is known."""

    def reach(self) -> Fraction:
        """Upper bound on any sum the encoder makes, where every entry of X is at most 1 in size."""

    def rounding(self, largest: int, /) -> Rounding:
        """Of the encoder, for X with entries of size at most ``largest``."""

    def error_std(self, t: int, /) -> float:
        """Standard deviation of each coordinate of (B z)_t, t >= 1, for iid standard z."""

    def max_error_std(self) -> float:
        """Largest error_std(t) up to the horizon."""

    def rms_error_std(self) -> float:
        """Root of the mean of error_std(t)**2 up to the horizon."""

    def parameters(self) -> dict[str, JSON]:
        """Arguments of the constructor, for a ledger."""

    def encoder(self, dim: int, /) -> Encoder:
        """R near C X, for rows of length ``dim``."""

    def decoder(self, dim: int, /) -> Decoder:
        """B y, for rows of length ``dim``."""

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        """B z for rows z that are drawn ahead: draw(n) gives the next n of them."""


def arrival(t: int, horizon: int) -> int:
    """``t`` as an int.

    Raises:
        ValueError: t < 1.
        HorizonError: t is past the horizon.
    """
    t = count(arrival=t)
    if t > horizon:
        raise HorizonError(f"arrival = {t}: must be <= horizon = {horizon}")
    return t
