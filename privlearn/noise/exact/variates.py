"""Standard variates known to 2^-40, exactly, and to as many more bits as somebody asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, final

import numpy as np

from privlearn.errors import NoiseSamplerError
from privlearn.noise.exact.fast import Extended, Floors, Halves, floors
from privlearn.noise.exact.slow import Bits, exact_floor
from privlearn.noise.exact.tables import FLOOR_BITS, WORD_BITS, Table, shipped_tables
from privlearn.noise.exact.words import SeededWords, WordArray, Words

Kind = Literal["normal", "laplace", "exponential", "gumbel"]
"""N(0, 1); density e^(−|z|)/2; density e^(−z), z > 0; distribution function e^(−e^(−z))."""

_ONE = np.uint64(1)


@final
@dataclass(slots=True)  # a frozen one takes longer to make
class Variates:
    """Independent variates z_0, …, z_(n−1) of one kind.

    Args:
        kind: of all of them.
        words: one for each: bits 1 to 63 begin V, the last one is a sign, or says which half.
        floors: ⌊2^40 z_i⌋, int64, shape (n,); ends at ±2^62.
        more: 64 further bits.
        extended: the bits of V of those that took more than their word.
    """

    kind: Kind
    words: WordArray
    floors: Floors
    more: Callable[[], int]
    extended: Extended

    def __len__(self) -> int:
        return len(self.words)

    def refined(self, i: int, bits: int) -> int:
        """⌊2^bits z_i⌋ for any number of bits; the bits of V that it takes are kept for later."""
        word = int(self.words[i])
        known = self.extended.setdefault(i, Bits(word >> 1, WORD_BITS))
        table, turned = table_of(self.kind, word & 1)
        found = exact_floor(table.family, known, self.more, bits)
        return ~found if turned else found

    def part(self, start: int, stop: int) -> Variates:
        """z_start, …, z_(stop−1); what is refined in a part is to be asked of that part only."""
        kept = {i - start: bits for i, bits in self.extended.items() if start <= i < stop}
        return Variates(self.kind, self.words[start:stop], self.floors[start:stop], self.more, kept)

    def joined(self, later: Variates) -> Variates:
        """These, and then ``later`` ones of the same kind and source."""
        n = len(self)
        return Variates(
            self.kind,
            np.concatenate([self.words, later.words]),
            np.concatenate([self.floors, later.floors]),
            self.more,
            {**self.extended, **{n + i: bits for i, bits in later.extended.items()}},
        )


def variates(kind: Kind, source: Words, n: int) -> Variates:
    """``n`` fresh variates."""
    words = source.words(n)
    if kind == "gumbel":
        found, extended = floors(_gumbel(), words, source.more)
        found ^= (words & _ONE).view(np.int64) - 1  # minus the lower half's table
    else:
        table = table_of(kind, 0)[0]
        found, extended = floors(table, words, source.more)
        if kind in ("normal", "laplace"):
            found ^= -(words & _ONE).view(np.int64)  # ⌊−y⌋ = −⌊y⌋ − 1 for y that is no integer
    return Variates(kind, words, found, source.more, extended)


@cache
def _gumbel() -> Halves:
    return Halves.of(table_of("gumbel", 0)[0], table_of("gumbel", 1)[0])


def table_of(kind: Kind, last_bit: int) -> tuple[Table, bool]:
    """The table for a word, and whether z is minus the table's f."""
    normal, exponential, top, bottom = shipped_tables()
    if kind == "gumbel":
        return (top, False) if last_bit else (bottom, True)
    table = normal if kind == "normal" else exponential
    return table, kind in ("normal", "laplace") and bool(last_bit)


STEP = 2.0**-FLOOR_BITS  # Of the floors
_TRIED = 64  # Words of each table, in the test before first use; it takes some 10 ms


@cache
def check_sampler() -> None:
    """Compares both paths on some words, once in a process: a broken platform would differ.

    Raises:
        NoiseSamplerError: they differ, or the tables are not those that were shipped.
    """
    source = SeededWords(0)
    for table in shipped_tables():
        words = source.words(_TRIED)
        found, _ = floors(table, words, source.more)
        for word, fast in zip(words.tolist(), found.tolist(), strict=True):
            known = Bits(word >> 1, WORD_BITS)
            if exact_floor(table.family, known, source.more, FLOOR_BITS) != fast:
                raise NoiseSamplerError(
                    f"the {table.family.name} noise of word {word:#x} is {fast} by the table and "
                    "something else by integer arithmetic: NumPy's double arithmetic on this "
                    "machine is not IEEE 754 to nearest, so that no noise is drawn here"
                )
