"""C X in integers for a two-sided banded BLT, and B y: slow, right."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_toeplitz import BandedToeplitz
from privlearn.mechanisms.toeplitz_sums import rounded_up

if TYPE_CHECKING:
    from privlearn.mechanisms.banded_blt import BandedBLT

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@final
class ScaledBandedSums:
    """Rows of R for rows of X."""

    def __init__(self, made: BandedBLT, dim: int) -> None:
        self._made, self._rows, self._at = made, np.zeros((0, dim)), 1

    def __call__(self, x: Integers, /) -> Integers:
        from privlearn.mechanisms.banded_blt import scales_from

        c = self._made._numbers.coefficients
        found = np.empty_like(x)
        for i, row in enumerate(x):
            rows, columns = (part[0] for part in scales_from(self._made, self._at))
            y = np.rint(row * (1 / columns * (1 - 2.0**-52)))
            self._rows = np.concatenate([y[None], self._rows])[: len(c)]
            found[i] = np.rint(rows * np.einsum("u,ud->d", c[: len(self._rows)], self._rows))
            self._at += 1
        return found


@final
class BandedOutputs:
    """Rows of B y."""

    def __init__(self, made: BandedBLT, dim: int) -> None:
        self._made, self._rows, self._at = made, np.zeros((0, dim)), 1
        self._total = np.zeros(dim)

    def __call__(self, y: NDArray[np.int64] | Array, /) -> Array:
        from privlearn.mechanisms.banded_blt import scales_from

        c = self._made._numbers.coefficients
        found = np.empty(y.shape)
        for i, row in enumerate(y):
            rows, columns = (part[0] for part in scales_from(self._made, self._at))
            past = self._rows[: len(c) - 1]
            new = row / rows - np.einsum("u,ud->d", c[1 : len(past) + 1], past)
            self._rows = np.concatenate([new[None], past])
            self._total = self._total + columns * new
            found[i] = self._total
            self._at += 1
        return found


def banded_sums_error(numbers: BandedToeplitz, horizon: int, cut: bool, largest: int) -> Fraction:
    """A bound on |R - C X| (direct sums)."""
    unit = Fraction(1, 2**53)
    return rounded_up(Fraction(1, 2) + (numbers.lags + 8) * unit * numbers.total * largest)
