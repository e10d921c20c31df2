"""What all sets clip with: usable rows, scaling to a radius, and radii in steps of a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains.norms import Array
from privlearn.rows.record_forms import Numbers, numbers_of
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import MOST, Integers
from privlearn.values.validate import positive

Number = TypeVar("Number", np.float64, np.int64)

_SHRINK = 1 - 1e-12
"""Clipped values stay inside by this factor, which covers the rounding of norm and product."""

FAR = 1e140  # Of a number; rows that are longer are shortened before their norm is taken

WITHIN = Fraction(2**42 - 1, 2**42)
"""Of a radius, what integers are checked against: covers the rounding of `sensitivity`."""


def floor_in_steps(number: Fraction, grid: Grid, **named: float) -> int:
    """⌊number/step⌋.

    Raises:
        ValueError: 2⁶² or more, by the name of what it is.
    """
    steps = math.floor(number / Fraction(grid.step))
    if not -MOST < steps < MOST:
        ((name, value),) = named.items()
        raise ValueError(
            f"{name} = {value!r}: more than 2^62 steps of {grid!r}; the grid must be coarser"
        )
    return steps


def shrunk(terms: int) -> float:
    """Of a radius, what rows are scaled to: sums of so many rounded terms are then certified."""
    return _SHRINK - (terms + 256) * 2.0**-52


def with_norms(values: Array, exponent: float) -> tuple[Array, Array]:
    """Rows, shape (n, d), and their ℓq norms; both 0 where a number is NaN or infinite.

    Rows whose norm is beyond what doubles hold are shortened, which changes no direction; they are
    longer than any radius (`bound`) all the same.
    """
    norms = row_norms(values, exponent)
    rest = ~(norms <= FAR)  # NaN is neither
    if rest.any():
        values = values.copy()
        values[rest] = shortened(usable_rows(values[rest]))
        norms[rest] = row_norms(values[rest], exponent)
    return values, norms


def row_norms(values: Array, p: float) -> Array:
    """The ℓp norms of rows; inf where that is too large for a float."""
    with np.errstate(over="ignore"):
        if p == 2:
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", values, values)))
        if p in (1, math.inf):
            return np.asarray(np.linalg.norm(values, ord=p, axis=1))
        # powers of numbers below 1 only: those of small ones vanish, those of large ones overflow
        largest = np.abs(values).max(axis=1)
        scaled = np.abs(values) / np.where(largest > 0, largest, 1.0)[:, None]
        return np.asarray(largest * np.power(np.power(scaled, p).sum(axis=1), 1 / p))


def shortened(values: Array) -> Array:
    """Vectors, shape (..., d), with no number above 1e140; infinite ones become NaN."""
    largest = np.abs(values).max(axis=-1, initial=0.0)
    far = largest > FAR
    return np.asarray(values * np.where(far, FAR / np.where(far, largest, 1.0), 1.0)[..., None])


def drop(steps: Integers, held: NDArray[np.bool_]) -> None:
    """Sets rows to 0 that no check held to be inside."""
    if not held.all():
        steps[~held] = 0


def tiles(values: NDArray[Any]) -> Iterator[slice]:
    """Slices of rows that stay in the cache together with what is computed of them."""
    rows = max(_TILE // max(values[:1].size, 1), 1)
    for start in range(0, len(values), rows):
        yield slice(start, start + rows)


_TILE = 2**14  # Numbers


@lru_cache(maxsize=256)
def radius_in_steps(radius: float, grid: Grid) -> int:
    """Of what integers are checked against."""
    return floor_in_steps(Fraction(radius) * WITHIN, grid, radius=radius)


def shaped(block: object, form: Numbers) -> Array:
    """The block as floats, contiguous; NaN where text or an object is no number.

    Raises:
        TypeError: several arrays, or of dates, complex numbers or the like.
        ValueError: it has a shape other than (n, *form.shape).
    """
    values = numbers_of(block)
    if not values.ndim or not form.holds(values.shape[1:]):
        raise ValueError(f"rows of shape {values.shape[1:]} where {form.shape} is required")
    # sums of a row then do not depend on the block's layout
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)


def usable_rows(values: Array) -> Array:
    """Rows, set to 0 where a number is NaN or infinite."""
    if np.isfinite(values).all():
        return values
    usable = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return np.where(usable.reshape(-1, *(1,) * (values.ndim - 1)), values, 0.0)


def to_radius(values: Array, norms: Array, radius: float) -> Array:
    """Rows, scaled where their norm is above the radius."""
    limit = radius * _SHRINK
    outside = norms > limit
    if not outside.any():
        return values
    scale = np.where(outside, limit / np.where(outside, norms, limit), 1.0)
    return np.asarray(values * scale[:, None])


def bound(**named: float) -> float:
    """Checks a radius: squares of the numbers beside it must neither overflow nor vanish."""
    number = positive(**named)
    if not 1e-100 <= number <= 1e100:
        ((name, value),) = named.items()
        raise ValueError(f"{name} = {value!r}: must lie in [1e-100, 1e100]")
    return number


Bound = Annotated[float, bound]


def whole_below(numbers: Array, end: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the whole numbers among 0, …, end − 1 stand, and which they are."""
    (found,) = ((numbers >= 0) & (numbers < end) & (numbers == np.floor(numbers))).nonzero()
    return found, numbers[found].astype(np.intp)
