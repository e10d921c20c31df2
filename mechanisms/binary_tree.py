"""Binary-tree sums: C is made of 0 and 1, so that all sums are integers and nothing is rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.factorization import (
    JSON,
    NO_ROUNDING,
    Array,
    Decoder,
    DrawNumbers,
    Encoder,
    Integers,
    Rounding,
    arrival,
)
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.mechanisms.participation_norms import tree_norm
from privlearn.values.validate import count

_BLOCK = 64  # Rows; a power of two
_BEFORE = np.arange(_BLOCK + 1) & np.arange(-1, _BLOCK)
"""t - lowbit(t), where the node of row t begins."""
_ROUND_UP = 1.0 + 2.0**-50  # Covers the rounding of a square root and of this product


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
        count(horizon=self.horizon)

    def column_norm(self) -> float:
        return self.column_norm_at(1)

    def column_norm_at(self, j: int, /) -> float:
        """Upper bound on the norm of column j: root of the number of nodes that contain j."""
        return math.sqrt(self._nodes(arrival(j, self.horizon))) * _ROUND_UP

    def largest_norm(self, first: int, last: int, /) -> float:
        """Upper bound on the norms of columns first, ..., last.

        With i = j - 1, index j is in a node of level l if bit l of i is 0 (and the node within the
        horizon).  Of all larger i, those with the most such bits raise one 0 of ``first - 1`` to 1
        and have 0 below it: the indices behind the nodes of ``first``.
        """
        last, j = arrival(last, self.horizon), arrival(first, self.horizon)
        most = 0
        while j <= last:
            most = max(most, self._nodes(j), self._nodes(j + 1) if j < last else 0)
            j += j & -j
        return math.sqrt(most) * _ROUND_UP

    def participation_norm(self, most: int, apart: int, /) -> float:
        """Upper bound on S, by levels: see `tree_norm`."""
        return tree_norm(self.horizon, most, apart)

    def _nodes(self, j: int) -> int:
        nodes = 0
        while j <= self.horizon:
            nodes += 1
            j += j & -j
        return nodes

    def column_sum(self) -> float:
        """The most nodes that an index is in."""
        return float(self._nodes(1))

    def reach(self) -> Fraction:
        """The horizon: the sum of everything."""
        return Fraction(self.horizon)

    def rounding(self, largest: int, /) -> Rounding:
        """None: sums of integers are exact."""
        return NO_ROUNDING

    def error_std(self, t: int, /) -> float:
        return math.sqrt(arrival(t, self.horizon).bit_count())

    def max_error_std(self) -> float:
        """Root of the most ones in any t <= horizon: all ones if horizon + 1 is a power of two."""
        return math.sqrt((self.horizon + 1).bit_length() - 1)

    def rms_error_std(self) -> float:
        """Root of the mean number of ones: a bit is one in the last half of each of its periods."""
        numbers, ones, unit = self.horizon + 1, 0, 1
        while unit < numbers:
            ones += numbers // (2 * unit) * unit + max(numbers % (2 * unit) - unit, 0)
            unit *= 2
        return math.sqrt(ones / self.horizon)

    def parameters(self) -> dict[str, JSON]:
        return {"horizon": self.horizon}

    def encoder(self, dim: int, /) -> Encoder:
        """Sums of nodes."""
        return _NodeSums(dim)

    def decoder(self, dim: int, /) -> Decoder:
        """Prefixes as sums of nodes, exact for integers but for the last rounding to a double."""
        return _Prefixes(dim)

    def stream(self, draw: DrawNumbers, /) -> NoiseStream:
        return NoiseStream(draw, self.decoder, self.horizon)


class _Ends:
    """What stands at the ends of blocks along the binary digits of the last one."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, NDArray[Any]]] = []

    @property
    def block(self) -> int:
        return self._ends[-1][0] if self._ends else 0

    def last(self) -> NDArray[Any] | None:
        return self._ends[-1][1] if self._ends else None

    def below(self) -> NDArray[Any] | None:
        """What stands where the node of the next block's end begins; None: at 0."""
        kept = self._kept()
        return kept[-1][1] if kept else None

    def add(self, end: NDArray[Any]) -> None:
        self._ends = [*self._kept(), (self.block + 1, end)]

    def _kept(self) -> list[tuple[int, NDArray[Any]]]:
        block = self.block + 1
        return [end for end in self._ends if end[0] <= block & (block - 1)]


@final
class _NodeSums:
    """R_t = P_t - P_{t - lowbit(t)} for the prefix sums P of X, all in integers."""

    def __init__(self, dim: int) -> None:
        self._ends = _Ends()
        self._prefix = np.zeros((_BLOCK + 1, dim), dtype=np.int64)
        self._at = 0

    def __call__(self, x: Integers, /) -> Integers:
        found = np.empty_like(x)
        prefix, done = self._prefix, 0
        while done < len(x):
            first, stop = self._at, min(self._at + len(x) - done, _BLOCK)
            part = slice(done, done + stop - first)
            filled = prefix[first + 1 : stop + 1]
            np.add.accumulate(x[part], axis=0, out=filled)
            filled += prefix[first]
            np.subtract(filled, prefix[_BEFORE[first + 1 : stop + 1]], out=found[part])
            done, self._at = part.stop, stop
            if stop == _BLOCK:
                self._advance(found[part])
        return found

    def _advance(self, found: Integers) -> None:
        start, below = self._ends.last(), self._ends.below()
        if start is not None:
            found[-1] += start
        if below is not None:
            found[-1] -= below
        end = self._prefix[_BLOCK].copy()
        self._ends.add(end)
        self._prefix[0] = end
        self._at = 0


@final
class _Prefixes:
    """W_t = y_t + W_{t - lowbit(t)}, in the type of y."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._ends = _Ends()
        self._sums: NDArray[Any] | None = None
        self._at = 0

    def __call__(self, y: NDArray[np.int64] | NDArray[np.float64], /) -> Array:
        if self._sums is None:
            self._sums = np.zeros((_BLOCK + 1, self._dim), dtype=y.dtype)
        found, sums, done = np.empty(y.shape), self._sums, 0
        while done < len(y):
            first, stop = self._at, min(self._at + len(y) - done, _BLOCK)
            part = slice(done, done + stop - first)
            rows = sums[first + 1 : stop + 1]
            rows[:] = y[part]
            for here, before in _levels(first + 1, min(stop, _BLOCK - 1)):
                sums[here] += sums[before]
            if stop == _BLOCK and (below := self._ends.below()) is not None:
                sums[_BLOCK] += below
            found[part] = rows
            done, self._at = part.stop, stop
            if stop == _BLOCK:
                self._ends.add(sums[_BLOCK].copy())
                sums[0], self._at = sums[_BLOCK], 0
        return found


def _levels(first: int, last: int) -> Iterator[tuple[slice, slice]]:
    """Rows t in first..last, and t - lowbit(t), from long nodes to short ones."""
    if first == last:
        yield slice(first, first + 1), slice(first & (first - 1), (first & (first - 1)) + 1)
        return
    step = _BLOCK // 2
    while step:
        start = first + (step - first) % (2 * step)
        if start <= last:
            stop = last + 1 - (last - start) % (2 * step)
            yield slice(start, stop, 2 * step), slice(start - step, stop - step, 2 * step)
        step //= 2
