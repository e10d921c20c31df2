"""⌊2^40 f(V)⌋ for many words at once: from the table where that is certain, else by `slow`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from privlearn.exact_noise.slow import Bits, exact_floor
from privlearn.exact_noise.tables import (
    CELL_BITS,
    DEGREE,
    FLOOR_BITS,
    OCTAVES,
    WORD_BITS,
    Table,
)
from privlearn.exact_noise.words import WordArray

Floors: TypeAlias = NDArray[np.int64]
Extended: TypeAlias = dict[int, Bits]
"""Places of a draw whose floors took more bits than a word has, and these bits."""

_TILE = 1 << 13
"""Words at a time: scratch and table stay in the cache."""
_MOST = (1 << 62) - 1
"""Floors end here, at |z| = 2^22, so that adding them does not wrap.  It is passed with probability
at most e^(−2^22), below 10^(−1800000): the one place where what is added has not the continuous law
itself, but one at that distance.  Comparisons look at the bits instead."""
_FIRST_CELL = (1023 + WORD_BITS - OCTAVES) << CELL_BITS
"""Exponent and first digits of the double 2^(63−24)."""


class _Scratch:
    """Where a draw computes: two draws on one would overwrite each other's cells."""

    __slots__ = ("doubles", "integers", "unsure")

    def __init__(self) -> None:
        self.integers = np.empty((2, _TILE), np.int64)
        self.doubles = np.empty((3, _TILE))
        self.unsure = np.empty(_TILE, np.bool_)


class _Spare(threading.local):
    """Scratch that no draw of this thread uses.

    It is taken out while one does: a draw from inside an unfinished one, in a signal handler or a
    finaliser, finds none and makes its own.
    """

    def __init__(self) -> None:
        self.scratch: list[_Scratch] = []


_spare = _Spare()


def floors(
    table: Table, words: WordArray, more: Callable[[], int], *, out: Floors | None = None
) -> tuple[Floors, Extended]:
    """⌊2^40 f(V)⌋, V beginning with bits 1 to 63 of each word; and the bits of slow draws.

    Args:
        table: of the family.
        words: uniform, shape (n,).
        more: 64 further bits.
        out: where to; made anew if None.
    """
    found = np.empty(len(words), np.int64) if out is None else out
    extended: Extended = {}
    try:
        scratch = _spare.scratch.pop()
    except IndexError:
        scratch = _Scratch()
    for start in range(0, len(words), _TILE):
        tile = slice(start, start + _TILE)
        for place in _tile(table, words[tile], found[tile], scratch):
            at = start + place
            bits = Bits(int(words[at]) >> 1, WORD_BITS)
            exact = exact_floor(table.family, bits, more, FLOOR_BITS)
            found[at] = max(min(exact, _MOST), -_MOST)
            extended[at] = bits
    _spare.scratch[:] = [scratch]
    return found, extended


def cells(words: WordArray) -> tuple[Floors, Floors]:
    """⌊2^63 V⌋ of every word, and its cell; below 0 where V is too small for one."""
    w = (words >> np.uint64(1)).view(np.int64)
    cell = w.astype(np.float64).view(np.int64) >> (52 - CELL_BITS)
    return w, cell - _FIRST_CELL


def _tile(table: Table, words: WordArray, out: Floors, scratch: _Scratch) -> list[int]:
    """Writes the floors of a tile, and returns the places where they are not certain."""
    n = len(words)
    w, cell = scratch.integers[:, :n]
    t, y, part = scratch.doubles[:, :n]
    unsure = scratch.unsure[:n]
    np.right_shift(words, np.uint64(1), out=w.view(np.uint64))
    np.copyto(t, w)  # to the nearest double: the cells are wide enough for that
    np.right_shift(t.view(np.int64), 52 - CELL_BITS, out=cell)
    cell -= _FIRST_CELL
    table.centre.take(cell, out=out, mode="clip")
    np.subtract(w, out, out=out)
    np.copyto(t, out)
    table.coefficients[DEGREE].take(cell, out=y, mode="clip")
    for j in range(DEGREE - 1, -1, -1):
        y *= t
        table.coefficients[j].take(cell, out=part, mode="clip")
        y += part
    np.floor(y, out=t)
    y -= t
    y -= 0.5
    np.abs(y, out=y)
    table.error.take(cell, out=part, mode="clip")
    y += part
    np.greater_equal(y, 0.5, out=unsure)
    table.base.take(cell, out=out, mode="clip")
    np.copyto(w, t, casting="unsafe")
    out += w
    np.less(cell, 0, out=cell, casting="unsafe")
    np.logical_or(unsure, cell, out=unsure)
    return [] if not unsure.any() else np.flatnonzero(unsure).tolist()
