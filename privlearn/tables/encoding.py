"""From the cells of a table to the inputs of a model: a public map of every row by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array
from privlearn.tables.schema import Boolean, Category, Date, Kind, Number, Schema
from privlearn.tables.table import Table, indicated, span, within

_MOST_LEVELS: Final = 10_000
_HALF: Final = 0.5


class Encoding:
    """The public map from a schema's columns to inputs of a model.

    A number or date goes onto [−1, 1] by its bounds, two levels onto ±1/2, a category of k levels
    onto k − 1 indicators (the first level has none).  A missing cell of an optional column is 0,
    and an input of its own says so: 1/2, or 1 for a category of more than two levels, so that a
    value and its indicator share what the column adds to the norm of a row.

    Attributes:
        names: of the inputs, without a constant.
        row_norm: the bound on ‖x‖₂ that rows are to be *clipped* to: its square is the sum of 1/4
            per number, date and two-level column, and 1 per category of more levels.

    Raises:
        ValueError: no inputs, or a category with more than 10,000 levels.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._parts = [_Part(name, schema.columns[name]) for name in schema.features]
        self.names = tuple(name for part in self._parts for name in part.names)
        if not self.names:
            raise ValueError("columns: no feature beside target, person and ignored ones")
        self.row_norm = math.sqrt(sum(part.square for part in self._parts))

    @property
    def dim(self) -> int:
        """Inputs, without a constant."""
        return len(self.names)

    def inputs(self, table: Table) -> Array:
        """Inputs of every row, shape (n, dim); rows that cannot be used are NaN; private."""
        found, lacks = self._filled(table)
        found[lacks | ~table.present] = np.nan
        return found

    def for_prediction(self, table: Table) -> Array:
        """Inputs of every row, shape (n, dim), always finite; private.

        A cell that cannot be used counts as missing: 0, and its indicator where there is one.
        """
        return self._filled(table)[0]

    def targets(self, table: Table) -> Array:
        """Targets, shape (n,): [−1, 1] by the bounds, or class numbers; NaN unusable; private.

        A target beyond its bounds is unusable.
        """
        name, kind = self._target()
        cells = np.where(within(kind, table.column(name)), table.column(name), np.nan)
        return _scaled(kind, cells) if isinstance(kind, Number) else cells

    def from_target(self, values: Any) -> NDArray[Any]:
        """Values on [−1, 1] in the target's own units, or class numbers as labels; shape kept."""
        _, kind = self._target()
        if not isinstance(kind, Number):
            labels = self.schema.classes or ()
            return label_array(labels)[np.asarray(values, dtype=np.intp)]
        low, high = (math.log(b) if kind.log else b for b in (kind.low, kind.high))
        found = (low + high) / 2 + np.asarray(values, dtype=np.float64) * (high - low) / 2
        return np.exp(found) if kind.log else found

    def to_dict(self) -> dict[str, Any]:
        """The map as public JSON: the schema, and what the inputs are."""
        return {
            "schema": self.schema.to_dict(),
            "inputs": list(self.names),
            "row_norm": self.row_norm,
            "map": "numbers and dates: clip(2*(value - low)/(high - low) - 1, -1, 1), of logarithms"
            " where log; two levels: -1/2, 1/2; a category: an indicator for each level but the "
            "first; a missing cell: 0, and 1/2 (1 for a category) in its own input",
        }

    def _target(self) -> tuple[str, Kind]:
        name = self.schema.target
        if name is None:
            raise ValueError("target: the schema names none")
        return name, self.schema.columns[name]

    def _filled(self, table: Table) -> tuple[Array, NDArray[np.bool_]]:
        found = np.zeros((len(table), self.dim))
        lacks = np.zeros(len(table), dtype=np.bool_)
        at = 0
        for part in self._parts:
            block = found[:, at : at + len(part.names)]
            hole = part.fill(block, table.column(part.name))
            if not indicated(part.kind):
                lacks |= hole
            at += len(part.names)
        return found, lacks


@dataclass(frozen=True, slots=True)
class _Part:
    """The inputs that one column gives."""

    name: str
    kind: Kind

    @property
    def levels(self) -> tuple[Any, ...]:
        """Of a category, in the order of their places."""
        if isinstance(self.kind, Boolean):
            return (False, True)
        if isinstance(self.kind, Category):
            return (*self.kind.values, *((None,) if self.kind.other else ()))
        return ()

    @property
    def names(self) -> list[str]:
        levels = self.levels
        if len(levels) > _MOST_LEVELS:
            raise ValueError(
                f"columns.{self.name}: {len(levels):,} levels would be as many inputs; at most "
                f"{_MOST_LEVELS:,}: group them, or make the column Ignored()"
            )
        found = [self.name]
        if isinstance(self.kind, Category):
            found = [
                f"{self.name} other" if level is None else f"{self.name}={level}"
                for level in levels[1:]
            ]
        return [*found, f"{self.name} missing"] if indicated(self.kind) else found

    @property
    def square(self) -> float:
        """What the column adds to the square of a row's norm."""
        return 1.0 if len(self.levels) > 2 else 0.25 * bool(self.names)

    def fill(self, block: Array, cells: Array) -> NDArray[np.bool_]:
        """Writes the inputs, shape (n, k), over zeros; which cells are missing."""
        hole = np.isnan(cells)
        present = np.flatnonzero(~hole)
        levels = len(self.levels)
        if levels > 2:
            place = cells[present].astype(np.intp)
            marked = place > 0
            block[present[marked], place[marked] - 1] = 1.0
        elif levels == 2:
            block[:, 0] = np.where(hole, 0.0, cells - _HALF)
        elif isinstance(self.kind, Number | Date):
            block[:, 0] = np.nan_to_num(_scaled(self.kind, cells), nan=0.0)
        if indicated(self.kind):
            block[hole, -1] = 1.0 if levels > 2 else _HALF
        return hole


def label_array(labels: Sequence[Any]) -> NDArray[Any]:
    """Labels as an array of their own type, shape (K,); of objects where they differ in type."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 or kinds == {int, float}:
        return np.array(labels)
    found = np.empty(len(labels), dtype=object)
    found[:] = labels
    return found


@np.errstate(all="ignore")  # a warning would tell of sealed data
def _scaled(kind: Number | Date, cells: Array) -> Array:
    low, high = span(kind)
    if isinstance(kind, Number) and kind.log:
        low, high = math.log(low), math.log(high)
        # below a positive bound there is zero and less, which is moved onto the bound
        cells = np.log(np.maximum(cells, kind.low))
    return np.asarray(np.clip(2 * (cells - low) / (high - low) - 1, -1.0, 1.0))
