"""Columns as statistics see them: numbers on [−1, 1] by bounds, or cells of a partition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from privlearn.rows.domains import Array
from privlearn.tables import Boolean, Category, Date, Number, Schema, Table
from privlearn.tables.table import span

MISSING = "missing"
"""The label of cells that are missing or cannot be used."""

_MOST_CELLS = 100_000


@final
@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A number with declared bounds; z is 0 in their middle, −1 and 1 at the bounds."""

    name: str
    low: float
    high: float
    log: bool = False
    """Whether quantiles are looked for on the logarithmic scale."""
    unit: str = ""

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def cells(self, table: Table) -> Array:
        """In own units, moved onto the bounds; NaN where missing; private, (n,)."""
        return np.clip(table.column(self.name), self.low, self.high)

    def scaled(self, table: Table) -> Array:
        """z, NaN where missing; private, (n,)."""
        return np.clip((self.cells(table) - self.middle) / self.half, -1.0, 1.0)

    def placed(self, table: Table) -> Array:
        """As `scaled`, on the scale on which quantiles are looked for."""
        if not self.log:
            return self.scaled(table)
        low, high = math.log(self.low), math.log(self.high)
        places = (2 * np.log(self.cells(table)) - low - high) / (high - low)
        return np.clip(places, -1.0, 1.0)

    def at(self, place: float) -> float:
        """The number at a place of `placed`."""
        if not self.log:
            return self.middle + self.half * place
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp((low + high + (high - low) * place) / 2), self.low), self.high)


@final
@dataclass(frozen=True, slots=True)
class CellColumn:
    """A column of which the cells of a declared partition are counted: categories, or bins."""

    name: str
    labels: tuple[Any, ...]
    edges: tuple[float, ...] | None = None
    """Of bins, one more than labels; each holds its lower edge, the last one also its upper."""

    def places(self, table: Table) -> Array:
        """The number of each cell, NaN where missing; private, (n,)."""
        cells = table.column(self.name)
        if self.edges is None:
            return cells
        last = len(self.labels) - 1
        places = np.clip(np.searchsorted(self.edges, cells, side="right") - 1.0, 0, last)
        return np.where(np.isnan(cells), np.nan, places)


@final
@dataclass(frozen=True, slots=True)
class Groups:
    """Public groups by a column; one without a label is everybody."""

    column: CellColumn | None = None

    @property
    def labels(self) -> tuple[Any, ...]:
        return (None,) if self.column is None else self.column.labels

    @property
    def count(self) -> int:
        return len(self.labels)

    def places(self, table: Table) -> Array | None:
        """The group of each row; None if there is only one; private."""
        return None if self.column is None else self.column.places(table)


def number_column(schema: Schema, name: str, *, what: str) -> NumberColumn:
    """The column of that name.

    Raises:
        ValueError: it is not declared, or not as a number, a date or a boolean.
    """
    kind = _kind(schema, name)
    if isinstance(kind, Boolean):
        return NumberColumn(name, 0.0, 1.0)
    if not isinstance(kind, Number | Date):
        raise ValueError(
            f"{name!r} is a {type(kind).__name__}: {what} is of a Number, Date or Boolean column; "
            "use histogram for categories"
        )
    low, high = span(kind)
    if isinstance(kind, Date):
        return NumberColumn(name, low, high, unit=f"days since {kind.start}")
    return NumberColumn(name, low, high, kind.log, kind.unit)


def cell_column(schema: Schema, name: str, bins: int | Sequence[float] | None = None) -> CellColumn:
    """The cells of a column: its categories, or ``bins`` between its bounds.

    Args:
        schema: what the columns are.
        name: of one.
        bins: how many of equal width, or their edges; for numbers and dates; default 10.

    Raises:
        ValueError: it is not declared; bins of a category, or edges that do not ascend.
    """
    kind = _kind(schema, name)
    if isinstance(kind, Boolean | Category):
        if bins is not None:
            raise ValueError(f"bins: {name!r} has declared values, which are its bins")
        if isinstance(kind, Boolean):
            return CellColumn(name, (False, True))
        if len(kind.values) > _MOST_CELLS:
            raise ValueError(
                f"column {name!r}: {len(kind.values):,} values are declared; at most "
                f"{_MOST_CELLS:,} can be counted: group them, or make the column Ignored()"
            )
        return CellColumn(name, (*kind.values, *(["other"] if kind.other else [])))
    column = number_column(schema, name, what="a histogram")
    given = 10 if bins is None else bins
    if isinstance(given, int):
        if isinstance(given, bool) or not 1 <= given <= _MOST_CELLS:
            raise ValueError(f"bins = {bins!r}: must be 1 to {_MOST_CELLS:,}, or edges")
        edges = np.linspace(column.low, column.high, given + 1)
    else:
        edges = np.asarray(given, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ValueError(f"bins = {bins!r}: edges must be two or more finite numbers, ascending")
    labels = tuple(
        f"{a:g} – {b:g}" for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    )
    return CellColumn(name, labels, tuple(edges.tolist()))


def groups_by(schema: Schema, by: str | None) -> Groups:
    """The public groups of ``by``.

    Raises:
        ValueError: not a Category or Boolean, or of fewer than two values.
    """
    if by is None:
        return Groups()
    kind = _kind(schema, by)
    if not isinstance(kind, Boolean | Category):
        raise ValueError(
            f"by = {by!r} is a {type(kind).__name__}: groups are the declared values of a Category "
            "or Boolean column"
        )
    column = cell_column(schema, by)
    if len(column.labels) < 2:
        raise ValueError(f"by = {by!r} has one declared value: leave it out")
    return Groups(column)


def _kind(schema: Schema, name: str) -> Any:
    kind = schema.columns.get(name) if isinstance(name, str) else None
    if kind is None or name == schema.person:
        known = ", ".join(map(repr, list(schema.columns)[:30]))
        raise ValueError(f"column {name!r}: the schema declares {known}")
    return kind
