"""Public grids: the integers that clipped data become, and in whose steps exact noise is added."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.values.json_forms import TEXT, WHOLE, check_form
from privlearn.values.validate import assign, count, finite

LEAST_BITS, MOST_BITS = 30, 40
_ROOM = 2**61
"""Sums of ``rows`` contributions stay below this many steps, so that adding noise does not wrap."""


@final
@dataclass(frozen=True, slots=True)
class Grid:
    """The multiples of ``step`` = scale·2^−bits, with ``scale`` that of the noise.

    A release is step·(X + ⌊2^bits·Z⌋), with X an integer vector and Z noise of scale 1, and that is
    step·⌊(step·X + scale·Z)/step⌋: a function of the continuous mechanism's output.

    Args:
        scale: of the noise, in the unit of the data: a normal double.
        bits: 30 to 40.

    Raises:
        TypeError: not numbers.
        ValueError: another number, or a step that is no normal double.
    """

    scale: float
    bits: int

    def __post_init__(self) -> None:
        scale, bits = _normal(scale=self.scale), count(bits=self.bits)
        if not LEAST_BITS <= bits <= MOST_BITS:
            raise ValueError(f"bits = {bits}: must lie in {LEAST_BITS}..{MOST_BITS}")
        if math.ldexp(scale, -bits) < sys.float_info.min:
            raise ValueError(
                f"scale = {scale!r}, bits = {bits}: the step scale·2^-bits must be a normal "
                f"double, at least {sys.float_info.min!r}"
            )
        assign(self, scale=scale, bits=bits)

    @property
    def step(self) -> float:
        """The distance of neighbouring points, in the unit of the data; exactly scale·2^−bits."""
        return math.ldexp(self.scale, -self.bits)

    @classmethod
    def fitting(cls, scale: float, largest: float, rows: float | Fraction = 1) -> Grid:
        """The finest grid on which ``rows`` numbers of size ``largest`` add up to below 2⁶¹ steps.

        Args:
            scale: of the noise, in the unit of the data.
            largest: bound on every number of a contribution, in the unit of the data.
            rows: how many are added up at most, where something public limits it, or by what factor
                a stream's state may exceed ``largest``; >= 1.

        Raises:
            ValueError: even the coarsest grid is too fine, or a number is out of range.
        """
        scale, number = _normal(scale=scale), finite(largest=largest)
        if number < 0:
            raise ValueError(f"largest = {largest!r}: must be >= 0")
        factor = Fraction(rows) if isinstance(rows, Fraction) else Fraction(finite(rows=rows))
        if factor < 1:
            raise ValueError(f"rows = {rows!r}: must be >= 1")
        room = Fraction(scale) * _ROOM
        for bits in range(MOST_BITS, LEAST_BITS - 1, -1):
            if factor * Fraction(number) * 2**bits < room:
                return cls(scale, bits)
        least = factor * Fraction(number) / 2 ** (61 - LEAST_BITS)
        above = float(min(least, Fraction(sys.float_info.max)))
        added_up = "" if factor == 1 else f", {float(factor):.6g} of which are added up"
        raise ValueError(
            f"scale = {scale!r}: too small for contributions of up to {number!r}{added_up}; must "
            f"be above {above!r}, 2^-31 of their size"
        )

    def values(self, integers: NDArray[Any]) -> NDArray[np.float64]:
        """``step`` times integers, int64 or Python's own, in the unit of the data."""
        return integers.astype(np.float64) * self.step

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the scale is the text of a hexadecimal double, so that no reader rounds it."""
        return {"scale": self.scale.hex(), "bits": self.bits}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Grid:
        """Rebuilds a grid from its JSON form.

        Raises:
            ValueError: names, types or numbers are others, or the scale is written in another way.
        """
        try:
            check_form("grid", data, {"scale": TEXT, "bits": WHOLE})
        except KeyError as missing:
            raise ValueError(f"grid lacks {missing}") from None
        written = data["scale"]
        try:
            scale = float.fromhex(written)
        except (ValueError, OverflowError):
            scale = math.nan
        if scale.hex() != written:
            raise ValueError(f"grid: scale = {written!r:.80}: must be what float.hex writes")
        return cls(scale, data["bits"])


def sum_of_rows(rows: NDArray[np.int64], largest: int = _ROOM) -> NDArray[Any]:
    """The exact sum over the first axis, for any number of rows.

    Args:
        rows: contributions in steps, (n, size).
        largest: public bound of the sizes of entries, at most 2⁶¹.

    Returns:
        int64 where no sum can reach 2⁶², else Python's integers; nothing shows how many there were.
    """
    count = len(rows)
    if count * largest < 2**62 or count * max(int(rows.max()), -int(rows.min())) < 2**62:
        return np.asarray(np.einsum("ij->j", rows))  # np.add.reduce takes five times as long
    # halves of 31 and 33 bits: 2³⁰ rows of either add up within int64
    low, high = rows & (2**31 - 1), rows >> 31
    parts = [slice(i, i + 2**30) for i in range(0, len(rows), 2**30)]
    return np.asarray(
        sum(
            high[part].sum(axis=0).astype(object) * 2**31 + low[part].sum(axis=0).astype(object)
            for part in parts
        )
    )


def added(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The exact sum of two sums of rows, int64 or Python's integers, in the same way."""
    total = one.astype(object) + other.astype(object)
    if not total.size or max(abs(int(x)) for x in (total.max(), total.min())) < 2**62:
        return np.asarray(total.astype(np.int64))
    return np.asarray(total)


def _normal(**named: float) -> float:
    number = finite(**named)
    if number < sys.float_info.min:
        ((name, value),) = named.items()
        raise ValueError(f"{name} = {value!r}: must be a normal double > 0")
    return number
