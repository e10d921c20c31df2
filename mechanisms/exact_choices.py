r"""Which of several noisy scores are largest, decided for the real numbers they stand for.

The noisy score of a point v is ⟨G, v⟩ + u·Z_v, in steps of a grid: G an integer vector, v a vector
of doubles, u a power of two or another public double, and Z_v a variate any number of whose bits
can be asked for.  All of these are exact, so the order of noisy scores is that of real numbers, and
the choice is the continuous mechanism's own.

Doubles say which points can win at all, as in computational geometry.  With s >= Σ|G_i||v_i| for
every point, a score is off by at most (dim + 2)·2^−53·s, in any order of summation; noise of less
than 64 scales by its floor, u·2^−40, and two roundings.  A lead of the margin
(dim + 8)·2^−51·s + 4·u·2^−40 is therefore certain.  Points that are nearer to each other, and all
where noise is farther out, are compared in integers: with a = (⟨G, v⟩ − ⟨G, w⟩)/u, the point v is
ahead of w where 2^b·a + ⌊2^b·Z_v⌋ − ⌊2^b·Z_w⌋ >= 1, behind where it is <= −1, and else b is
doubled.  docs/proofs.md, "Choices", has the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import NoiseSamplerError
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import STEP
from privlearn.rows.domains import Array

Picks = NDArray[np.int64]
"""Indices of points, the first pick first."""

_UNUSUAL = 2**46  # Floors of noise that is 64 scales or more from 0: doubles decide nothing then
_FIRST_BITS, _MOST_BITS = 64, 2**9


class Refinable(Protocol):
    """`Variates`, as far as choices need them."""

    @property
    def floors(self) -> Floors:
        """⌊2^40·Z⌋, int64."""

    def refined(self, i: int, bits: int) -> int:
        """⌊2^bits·Z_i⌋."""


@final
@dataclass(frozen=True, slots=True)
class NoisyScores:
    """Noisy scores of all points for several vectors.

    Args:
        vertices: the points.
        totals: G in steps of the grid, int64 or Python's integers, shape (n, dim).
        units: u of each, shape (n,): the scale of the noise in steps, at least 2^13.
        noise: n·count variates, those of the first vector first.
    """

    vertices: Vertices
    totals: NDArray[Any]
    units: Array
    noise: Refinable

    def largest(self, top: int, taken: Picks | None = None) -> Picks:
        """The points of the ``top`` largest noisy scores, in order, shape (n, top).

        Args:
            top: at most the number of points left.
            taken: points that are out already, shape (n, any).

        Raises:
            NoiseSamplerError: two variates are equal in 2^9 bits.
        """
        floors = self.noise.floors.reshape(len(self.totals), self.vertices.count)
        rough = self.totals.astype(np.float64)
        steps = self.units * STEP
        noisy = floors.astype(np.float64)
        noisy *= steps[:, None]
        noisy += self.vertices.scores(rough)
        sizes = self.vertices.longest * np.abs(rough).max(axis=1)
        margins = (self.vertices.dim + 8) * 2.0**-51 * sizes + 4 * steps
        if max(int(floors.max()), -int(floors.min())) >= _UNUSUAL:
            margins[(np.abs(floors) >= _UNUSUAL).any(axis=1)] = np.inf
        if taken is not None:
            np.put_along_axis(noisy, taken, -np.inf, axis=1)
        if top == 1:
            return self._first(noisy, margins)
        rows = range(len(noisy))
        return np.array([self._several(row, noisy[row], margins[row], top) for row in rows])

    def _first(self, noisy: Array, margins: Array) -> Picks:
        found = noisy.argmax(axis=1)
        near = noisy >= (noisy.max(axis=1) - margins)[:, None]
        if np.count_nonzero(near) > len(noisy):
            for row in np.flatnonzero(np.count_nonzero(near, axis=1) > 1):
                points = np.flatnonzero(near[row] & (noisy[row] > -np.inf))
                found[row] = self._in_order(int(row), points)[0]
        return np.asarray(found, dtype=np.int64)[:, None]

    def _several(self, row: int, noisy: Array, margin: float, top: int) -> Picks:
        least = np.partition(noisy, -top)[-top]
        points = np.flatnonzero((noisy >= least - margin) & (noisy > -np.inf))
        points = points[np.argsort(-noisy[points])]
        if len(points) > top or (np.diff(noisy[points]) > -margin).any():
            points = self._in_order(row, points)
        return points[:top]

    def _in_order(self, row: int, points: Picks) -> Picks:
        total = [int(number) for number in self.totals[row]]
        unit, start = Fraction(float(self.units[row])), row * self.vertices.count
        scores = {
            int(point): sum(map(_product, total, vector), Fraction(0)) / unit
            for point, vector in zip(points, self.vertices.points(points).tolist(), strict=True)
        }

        def compare(one: int, two: int) -> int:
            lead, bits = scores[one] - scores[two], _FIRST_BITS
            while bits <= _MOST_BITS:
                apart = self.noise.refined(start + one, bits) - self.noise.refined(
                    start + two, bits
                )
                if abs(found := lead * 2**bits + apart) >= 1:
                    return -1 if found > 0 else 1
                bits *= 2
            raise NoiseSamplerError(
                f"two numbers of noise agree in {_MOST_BITS} bits: what they are drawn from repeats"
            )

        return np.array(sorted(scores, key=cmp_to_key(compare)), dtype=np.int64)


def _product(number: int, coordinate: float) -> Fraction:
    return number * Fraction(coordinate)
