"""Buffered linear Toeplitz factorisations (BLT), for a horizon and for streams of any length."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.block_products import BLOCK, RowProducts, product
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
from privlearn.mechanisms.participation_norms import most_visits, toeplitz_norm
from privlearn.mechanisms.toeplitz import Toeplitz, check_decays, toeplitz
from privlearn.mechanisms.toeplitz_sums import ToeplitzSums, sums_error
from privlearn.values.exact import float_up
from privlearn.values.validate import count

Decays: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""decay and output_decay."""

_ANYTIME: Decays = (
    (1.272488e-01, 4.775738e-03, 2.519223e-04, 9.224152e-06, 8.588022e-07),
    (5.844249e-01, 1.515009e-02, 9.021445e-04, 4.653344e-05, 2.212190e-06),
)
"""Within 1.235 of the best known-horizon BLT for 16 <= t <= 2**20 (benchmarks/fit_blt.py)."""


class _ToeplitzFactorization(ABC):
    """What holds for every Toeplitz C, whatever bounds its columns."""

    __slots__ = ()

    if TYPE_CHECKING:  # fields

        @property
        def horizon(self) -> int: ...
        @property
        def decay(self) -> tuple[float, ...]: ...
        @property
        def output_decay(self) -> tuple[float, ...]: ...

    @abstractmethod
    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j."""

    def column_norm(self) -> float:
        """Upper bound on all column norms of C: that of the first."""
        return self.column_norm_at(1)

    def participation_norm(self, most: int, apart: int, /) -> float:
        """S, rounded up, in closed form: columns 1, 1 + apart, ... are the worst pattern."""
        visits = most_visits(self.horizon, most, apart)
        return toeplitz_norm(self._numbers, self.horizon, visits, apart)

    def largest_norm(self, first: int, last: int, /) -> float:
        """That of ``first``: columns do not grow."""
        return self.column_norm_at(first)

    def column_sum(self) -> float:
        """C(1), the sum of an infinite column."""
        pairs = zip(self.output_decay, self.decay, strict=True)
        return float_up(math.prod((Fraction(b) / Fraction(a) for b, a in pairs), start=Fraction(1)))

    def reach(self) -> Fraction:
        return toeplitz_reach(self.horizon, self.decay)

    def rounding(self, largest: int, /) -> Rounding:
        """Twice the error of R, once for each of two streams."""
        return Rounding(Fraction(0), 2 * sums_error(self._numbers, self.horizon, largest))

    def error_std(self, t: int, /) -> float:
        return self._numbers.error_std(arrival(t, self.horizon))

    def max_error_std(self) -> float:
        return self.error_std(self.horizon)

    def rms_error_std(self) -> float:
        return self._numbers.rms_error_std(self.horizon)

    def parameters(self) -> dict[str, JSON]:
        return decay_parameters(self.horizon, self.decay, self.output_decay)

    def encoder(self, dim: int, /) -> Encoder:
        return ToeplitzSums(self._numbers, dim)

    def decoder(self, dim: int, /) -> Decoder:
        return _ToeplitzOutputs(self._numbers, dim)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        return NoiseStream(draw, self.decoder, self.horizon)

    @property
    def _numbers(self) -> Toeplitz:
        return toeplitz(self.decay, self.output_decay)


@final
@dataclass(frozen=True, slots=True)
class BufferedToeplitz(_ToeplitzFactorization):
    """Buffered linear Toeplitz (BLT) factorisation: a rational approximation of (1 - x)**-1/2.

    Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and near-optimal noise
    generation for streaming differential privacy" (arXiv 2404.16706).  Columns shrink with j, so
    the first one bounds them all; errors grow with t.  Stream memory: O(dim * (buffers + 32)).

    Args:
        horizon: number of arrivals, at most 2**40.
        decay, output_decay: 1 - theta and 1 - theta^, both descending and interlaced,
            1 > output_decay[0] > decay[0] > output_decay[1] > ... > 0 (else ValueError);
            1 to 16 of each.
    """

    kind: ClassVar[str] = "buffered_toeplitz"
    horizon: int
    decay: tuple[float, ...]
    output_decay: tuple[float, ...]

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        check_decays(self.decay, self.output_decay)

    @classmethod
    def early(cls, horizon: int) -> BufferedToeplitz:
        """One buffer, for streams whose early sums matter most: errors begin low and grow.

        For weights 1.2^-t of the variance of the sum t, it is within 2 % of the best of all
        factorisations at 12 to 35 rows, with half of the first variance that `fitted` has.
        """
        return cls(horizon, (0.25,), (0.7,))

    @classmethod
    def fitted(cls, horizon: int) -> BufferedToeplitz:
        """Five buffers, parameters from a fitted table; norms and errors are for ``horizon``."""
        return cls(horizon, *fitted_decays(horizon))

    def column_norm_at(self, j: int, /) -> float:
        left = self.horizon - arrival(j, self.horizon) + 1
        return float(self._numbers.column_norms(np.array([left]))[0])


@final
@dataclass(frozen=True, slots=True)
class AnytimeBLT(_ToeplitzFactorization):
    """BLT whose columns are bounded over the infinite stream, for those of unknown length.

    Every column has the same norm.  The error is at most 1.235 times that of BufferedToeplitz with
    horizon t, for 16 <= t <= 2**20 (1.75 times at t = 1); later its square grows linearly.
    Arguments as for BufferedToeplitz; the defaults are fitted constants.  Stream memory:
    O(dim * (buffers + 32)).

    Each row adds to the price what its rounding may tell, so that a stream must end: after
    ``horizon`` rows, with HorizonError.  By default that adds 1e-8 to mu**2 at mu = 1, replace-one
    and 15 coordinates.
    """

    kind: ClassVar[str] = "anytime_blt"
    decay: tuple[float, ...] = _ANYTIME[0]
    output_decay: tuple[float, ...] = _ANYTIME[1]
    horizon: int = 2**24

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        check_decays(self.decay, self.output_decay)

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of an infinite column, the same for every j."""
        arrival(j, self.horizon)
        return self._numbers.endless_norm()


@final
class _ToeplitzOutputs:
    __slots__ = ("_at", "_input", "_moved", "_numbers", "_products")

    def __init__(self, numbers: Toeplitz, dim: int) -> None:
        states = len(numbers.output_moves)
        self._numbers = numbers
        self._moved = np.empty((states, dim))
        self._input = np.zeros((states + BLOCK, dim))
        self._products = RowProducts(numbers.output_rows, self._input)
        self._at = 0

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
                product(self._numbers.output_moves, self._input, self._moved)
                self._input[:states] += self._moved
                self._input[states:] = 0.0
                self._at = 0
        return found


def toeplitz_reach(horizon: int, decay: tuple[float, ...]) -> Fraction:
    """Bounds all states and sums of `ToeplitzSums` for |X| <= 1: the least of horizon and 1/decay.

    A state is a sum of at most ``horizon`` numbers, and of geometric shares that add up to 1/decay.
    So is a row of C X: c_k <= 1, and C(1) = prod(output_decay / decay) < 1/decay[-1], because the
    decays interlace below 1.  A whole block moves a state by less than 128, in parts.
    """
    return min(Fraction(horizon), max(1 / Fraction(decay[-1]), Fraction(4 * BLOCK)))


def fitted_decays(horizon: int) -> Decays:
    """Table entry of the next power of two: within 0.1% of the best for the horizon itself."""
    table = blt_table()
    k = (count(horizon=horizon) - 1).bit_length()
    return table[min(max(k, min(table)), max(table))]


@cache
def blt_table() -> dict[int, Decays]:
    """Decays of the least largest error by log2(horizon), made by benchmarks/fit_blt.py.

    Any that interlace are valid at any horizon, whose norms and errors are always computed.
    """
    file = Path(__file__).with_name("blt_table.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    return {int(log): (tuple(decay), tuple(output)) for log, (decay, output) in found.items()}


def check_horizon(horizon: int) -> None:
    """Raises ValueError unless 1 <= horizon <= 2**40."""
    if count(horizon=horizon) > 2**40:
        raise ValueError(f"horizon = {horizon}: must be <= 2**40")


def decay_parameters(
    horizon: int, decay: tuple[float, ...], output_decay: tuple[float, ...]
) -> dict[str, JSON]:
    """Arguments of the constructors, for a ledger."""
    return {"horizon": horizon, "decay": list(decay), "output_decay": list(output_decay)}
