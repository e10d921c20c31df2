"""⌊2^40 f(V)⌋ for many words at once: from the table where that is certain, else by `slow`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.slow import Bits, exact_floor
from privlearn.noise.exact.tables import (
    CELL_BITS,
    CELLS,
    DEGREE,
    FLOOR_BITS,
    OCTAVES,
    ROW,
    WORD_BITS,
    Table,
)
from privlearn.noise.exact.tails import Family
from privlearn.storage import processes

WordArray: TypeAlias = NDArray[np.uint64]
Floors: TypeAlias = NDArray[np.int64]
Extended: TypeAlias = dict[int, Bits]
"""Places of a draw whose floors took more bits than a word has, and these bits."""

_TILE = 1 << 13  # Words at a time: scratch and table stay in the cache
_MOST = (1 << 62) - 1
"""Floors end here, at |z| = 2^22, so that adding them does not wrap.  It is passed with probability
at most e^(−2^22), below 10^(−1800000): the one place where what is added has not the continuous law
itself, but one at that distance.  Comparisons look at the bits instead."""
_ONE = np.uint64(1)
_FIRST_CELL = (1023 + WORD_BITS - OCTAVES) << CELL_BITS
"""Exponent and first digits of the double 2^(63−24)."""


class _Scratch:
    """Where a draw computes: two draws on one would overwrite each other's cells."""

    __slots__ = ("__weakref__", "doubles", "integers", "rows", "views")

    def __init__(self) -> None:
        self.integers = np.empty((2, _TILE), np.int64)
        self.doubles = np.empty((2, _TILE))
        self.rows = np.empty((_TILE, ROW), np.int64)
        self.views: tuple[Any, ...] = self._of(_TILE)
        processes.INHERITED.add(self)

    def in_child(self) -> None:
        """Overwrites, in a forked child, what is left here of the last draw."""
        for cells in (self.integers, self.doubles, self.rows):
            cells[:] = 0

    def _of(self, n: int) -> tuple[Any, ...]:
        w, cell = self.integers[:, :n]
        t, y = self.doubles[:, :n]
        rows = self.rows[:n]
        centre, base = rows[:, 0], rows[:, 1]
        coefficients = tuple(rows[:, 2:-1].view(np.float64).T)
        error = rows[:, -1:].view(np.float64)[:, 0]
        digits, unsigned = t.view(np.int64), w.view(np.uint64)
        return w, unsigned, cell, t, digits, y, rows, centre, base, coefficients, error

    def of(self, n: int) -> tuple[Any, ...]:
        if len(self.views[0]) != n:
            self.views = self._of(n)
        return self.views


class _Spare(threading.local):
    """Scratch that no draw of this thread uses.

    It is taken out while one does: a draw from inside an unfinished one, in a signal handler or a
    finaliser, finds none and makes its own.
    """

    def __init__(self) -> None:
        self.scratch: list[_Scratch] = []


_spare = _Spare()


@final
@dataclass(frozen=True, slots=True)
class Halves:
    """Two tables of one law; the last bit of a word, 0 or 1, says where it is looked up."""

    families: tuple[Family, Family]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, even: Table, odd: Table) -> Halves:
        """The table for even words, and that for odd ones."""
        return cls((even.family, odd.family), np.concatenate([even.rows, odd.rows]))


def floors(
    table: Table | Halves, words: WordArray, more: Callable[[], int], *, out: Floors | None = None
) -> tuple[Floors, Extended]:
    """⌊2^40 f(V)⌋, V beginning with bits 1 to 63 of each word; and the bits of slow draws.

    Args:
        table: of the family, or of both families that words are of.
        words: uniform, shape (n,).
        more: 64 further bits.
        out: where to; made anew if None.
    """
    found = np.empty(len(words), np.int64) if out is None else out
    try:
        scratch = _spare.scratch.pop()
    except IndexError:
        scratch = _Scratch()
    rows, two, unsure = table.rows, isinstance(table, Halves), []
    for start in range(0, len(words), _TILE):
        tile = slice(start, start + _TILE)
        unsure += [start + i for i in _tile(rows, two, words[tile], found[tile], scratch)]
    _spare.scratch[:] = [scratch]
    return found, _decided(table, words, found, unsure, more) if unsure else {}


def _decided(
    table: Table | Halves, words: WordArray, out: Floors, places: list[int], more: Callable[[], int]
) -> Extended:
    """Writes the floors of places that the table does not decide; those of even words first."""
    extended: Extended = {}
    known = {at: int(words[at]) for at in places}
    if isinstance(table, Halves):
        places = sorted(places, key=lambda at: known[at] & 1)
    for at in places:
        family = table.families[known[at] & 1] if isinstance(table, Halves) else table.family
        bits = Bits(known[at] >> 1, WORD_BITS)
        exact = exact_floor(family, bits, more, FLOOR_BITS)
        out[at] = max(min(exact, _MOST), -_MOST)
        extended[at] = bits
    return extended


def cells(words: WordArray) -> tuple[Floors, Floors]:
    """⌊2^63 V⌋ of every word, and its cell; below 0 where V is too small for one."""
    w = (words >> np.uint64(1)).view(np.int64)
    cell = w.astype(np.float64).view(np.int64) >> (52 - CELL_BITS)
    return w, cell - _FIRST_CELL


def _tile(
    rows: NDArray[np.int64], two: bool, words: WordArray, out: Floors, scratch: _Scratch
) -> list[int]:
    """Writes the floors of a tile, and returns the places where they are not certain."""
    w, unsigned, cell, t, digits, y, found, centre, base, coefficients, error = scratch.of(
        len(words)
    )
    np.right_shift(words, _ONE, unsigned)
    t[:] = w  # to the nearest double: the cells are wide enough for that
    np.right_shift(digits, 52 - CELL_BITS, cell)
    cell -= _FIRST_CELL - 1
    if two:
        np.maximum(cell, 0, out=cell)
        np.bitwise_and(words, _ONE, digits.view(np.uint64))
        digits *= CELLS + 2
        cell += digits
    rows.take(cell, 0, found, "clip")
    w -= centre
    t[:] = w
    y[:] = coefficients[DEGREE]
    for j in range(DEGREE - 1, -1, -1):
        y *= t
        y += coefficients[j]
    np.floor(y, out=t)
    y -= t
    w[:] = t
    np.add(base, w, out)
    y -= 0.5
    np.abs(y, y)
    y += error
    return [] if np.maximum.reduce(y) < 0.5 else np.flatnonzero(~(y < 0.5)).tolist()
