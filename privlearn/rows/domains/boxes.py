"""Vectors with entries between two numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np

from privlearn.rows.domains.base import ShippedDomain
from privlearn.rows.domains.clipping import bound, floor_in_steps, shaped, tiles, usable_rows
from privlearn.rows.domains.norms import Array, Norm, exponent_of, power
from privlearn.rows.domains.reading import ships
from privlearn.rows.record_forms import Numbers
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers
from privlearn.values.json_forms import REAL, WHOLE
from privlearn.values.validate import Count, Finite, check_fields


@final
@dataclass(frozen=True, slots=True)
class Box(ShippedDomain):
    """Vectors of length ``size`` with every entry in [low, high]; entries are clamped."""

    kind: ClassVar[str] = "box"
    low: Finite
    high: Finite
    size: Count

    def __post_init__(self) -> None:
        check_fields(self)
        if self.low >= self.high:
            raise ValueError(f"low = {self.low!r}, high = {self.high!r}: low must be below high")
        if max(abs(self.low), abs(self.high)) > 1e3 * bound(width=self.high - self.low):
            raise ValueError(
                f"low = {self.low!r}, high = {self.high!r}: lie far from 0 for their distance, so "
                "that sums would lose the digits that matter; subtract a public constant first"
            )

    def clip(self, block: Array) -> Array:
        """Clamps each entry of each row, shape (size,)."""
        with np.errstate(all="ignore"):
            values = usable_rows(shaped(block, self.record_form()))
            return np.clip(values, self.low, self.high)

    def record_form(self) -> Numbers:
        return Numbers((self.size,))

    def null(self) -> Array:
        return np.clip(np.zeros(self.size), self.low, self.high)

    def _largest_of_null(self) -> float:
        return abs(min(max(0.0, self.low), self.high))

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Clamps each entry of each row, shape (size,), to ⌈low/step⌉ … ⌊high/step⌋."""
        low, high = _ends_in_steps(self, grid)
        values = shaped(block, self.record_form())
        steps = np.empty(values.shape, dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in tiles(values):
                part = np.clip(usable_rows(values[tile]), self.low, self.high)
                steps[tile] = np.divide(part, grid.step, out=part)  # toward zero
                np.clip(steps[tile], low, high, out=steps[tile])
        return steps

    def null_integers(self, grid: Grid) -> Integers:
        low, high = _ends_in_steps(self, grid)
        return np.full(self.size, min(max(0, low), high), dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """Every entry lies in ``low`` … ``high``."""
        low, high = _ends_in_steps(self, grid)
        return {"largest": max(abs(low), abs(high)), "low": low, "high": high}

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        low, high = Fraction(self.low), Fraction(self.high)
        if adjacency is Adjacency.REPLACE_ONE:
            width = high - low
        elif adjacency is Adjacency.ADD_REMOVE:
            width = max(abs(low), abs(high))
        else:
            null = min(max(Fraction(0), low), high)
            width = max(high - null, null - low)
        # Exact where it can be, so that a count in [0, 1] costs exactly what it should.
        root = math.isqrt(self.size)
        p = exponent_of(norm)
        whole = {1.0: self.size, math.inf: 1} | ({2.0: root} if root**2 == self.size else {})
        if p not in whole:
            return float_up(width) * power(self.size, 1 / p) * (1 + 1e-14)
        return float_up(width * whole[p])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "low": self.low, "high": self.high, "size": self.size}


@lru_cache(maxsize=256)
def _ends_in_steps(box: Box, grid: Grid) -> tuple[int, int]:
    low = -floor_in_steps(-Fraction(box.low), grid, low=box.low)
    high = floor_in_steps(Fraction(box.high), grid, high=box.high)
    if low > high:
        raise ValueError(
            f"{box!r}: holds no multiple of the step {grid.step!r} of {grid!r}; the scale of the "
            "noise is too large for it"
        )
    return low, high


ships(
    Box,
    {"low": REAL, "high": REAL, "size": WHOLE},
    lambda data: Box(data["low"], data["high"], data["size"]),
)
