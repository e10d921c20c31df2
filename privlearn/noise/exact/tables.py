"""The shipped tables: polynomials for 2^40 f(V) on small cells, each with a proved error bound."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import NoiseSamplerError
from privlearn.noise.exact.tails import FAMILIES, Family
from privlearn.values.validate import assign

FLOOR_BITS: Final = 40  # Fractional bits of the finest floor of a table
WORD_BITS: Final = 63  # Bits of V in a word; the last one is free, for a sign
OCTAVES: Final = 24  # Below V = 2^−24, which no cell covers, a draw takes the slow path
CELL_BITS: Final = 8  # An octave has 2^8 cells
CELLS: Final = OCTAVES << CELL_BITS
DEGREE: Final = 5

FILE: Final = Path(__file__).with_name("tables.bin")
SHA256: Final = "2fc0072e651c759709a40a61a82a1e721e9f9be6b2c99b3b8ca57043735e4253"
"""Of the shipped file; its error bounds are proved again in our tests."""
SAMPLER: Final = "inversion/1"  # Changes whenever the same words would give other noise

_AGAIN: Final = "install privlearn again"


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Cells in ascending order of V; all arrays of length ``CELLS``, or (DEGREE + 1, CELLS).

    On a cell, with t = w − centre for the word's bits w = ⌊2^63 V⌋,
    |2^40 f(V) − base − Σ coefficients_j t^j| <= error, the rounding of Horner's rule in doubles and
    the unknown bits of V included; an error of 1 sends a cell to the slow path.
    """

    family: Family
    centre: NDArray[np.int64]
    base: NDArray[np.int64]
    coefficients: NDArray[np.float64]
    error: NDArray[np.float64]
    rows: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    """The same numbers, one row for each cell, as draws look them up: shape (CELLS + 2, ROW).

    Row c + 1 is that of cell c.  Row 0 is for V below all cells, with an error of 1; the last one
    is once more that of the last cell, for V that is rounded to 1.
    """

    def __post_init__(self) -> None:
        rows = np.zeros((CELLS + 2, ROW), np.int64)
        parts = self.centre, self.base, *self.coefficients, self.error
        for column, part in zip(rows.T, parts, strict=True):
            column[1:-1] = part.view(np.int64)
        rows[0].view(np.float64)[-1] = 1.0
        rows[-1] = rows[-2]
        assign(self, rows=rows)


ROW: Final = 3 + DEGREE + 1  # Arrays of 8-byte numbers for each family, in the order of the fields


def read_tables(raw: NDArray[np.int64]) -> tuple[Table, ...]:
    """Tables as they stand in a file, in the order of `FAMILIES`."""
    parts = raw.reshape(len(FAMILIES), ROW, CELLS)
    return tuple(
        Table(family, part[0], part[1], part[2:-1].view(np.float64), part[-1].view(np.float64))
        for family, part in zip(FAMILIES, parts, strict=True)
    )


@cache
def shipped_tables() -> tuple[Table, ...]:
    """The tables of this installation: the very bytes whose digest was compared.

    Raises:
        NoiseSamplerError: the file is missing, or not the one whose bounds were proved.
    """
    if not FILE.is_file():
        raise NoiseSamplerError(f"{FILE}: is missing, and noise is drawn from it; {_AGAIN}")
    raw = FILE.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    if digest != SHA256:
        raise NoiseSamplerError(
            f"{FILE}: has SHA-256 {digest}, must have {SHA256}: no noise is drawn from tables "
            f"whose error bounds are not proved; {_AGAIN}"
        )
    return read_tables(np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False))
