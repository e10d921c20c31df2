"""Choices among the cells of a column: the largest, and the first above a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from privlearn.losses.budgets import Currency, PureDP
from privlearn.mechanisms import AboveThreshold, ReportNoisyMax, SimplexVertices
from privlearn.rows.domains import Array
from privlearn.statistics.columns import CellColumn
from privlearn.statistics.queries import Release
from privlearn.statistics.results import Choice
from privlearn.tables import Table
from privlearn.values.validate import count, finite

_MOST_CELLS: Final = 100_000


def _one_hot(column: CellColumn, table: Table) -> Array:
    places = column.places(table)
    found = np.zeros((len(table), len(column.labels)))
    there = ~np.isnan(places)
    found[there, places[there].astype(np.int64)] = 1.0
    return found


@final
@dataclass(frozen=True, slots=True)
class TopQuery:
    """The cells with the largest counts, the largest first; no count is told.

    One pick under a pure ε is by permute-and-flip (exponential noise), which is never worse than
    the exponential mechanism; several picks, and other budgets, take Gumbel noise.

    Args:
        column: of at least one cell more than are picked.
        top: how many.

    Raises:
        ValueError: as many as there are.
    """

    column: CellColumn
    top: int

    def __post_init__(self) -> None:
        if not count(k=self.top) < len(self.column.labels) <= _MOST_CELLS:
            raise ValueError(
                f"k = {self.top}: must be below the number of cells of {self.column.name!r}, "
                f"{len(self.column.labels)}"
            )

    @property
    def label(self) -> str:
        return f"largest of {self.column.name}"

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        flip = isinstance(budget, PureDP) and self.top == 1
        made = ReportNoisyMax.calibrated(
            SimplexVertices(len(self.column.labels)),
            1.0,
            budget,
            top=self.top,
            noise="exponential" if flip else "gumbel",
            norm="l1",
        )
        return {self.label: made}

    def error(self, mechanisms: dict[str, Any]) -> float:
        return float(mechanisms[self.label].scale)

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Choice]:
        picks = release(self.label, _one_hot(self.column, table))
        # a cell that is t below a better one wins with probability e^(−t/scale) at most
        scale, tries = mechanisms[self.label].scale, self.top * len(self.column.labels)
        labels = tuple(self.column.labels[int(place)] for place in picks)
        return [Choice(self.column.name, labels, scale, tries)]


@final
@dataclass(frozen=True, slots=True)
class FirstAboveQuery:
    """The first cell, in the declared order, whose count is above a threshold."""

    column: CellColumn
    threshold: float

    def __post_init__(self) -> None:
        finite(threshold=self.threshold)

    @property
    def label(self) -> str:
        return f"first of {self.column.name} above"

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        cells = len(self.column.labels)
        return {self.label: AboveThreshold.calibrated(cells, float(self.threshold), budget)}

    def error(self, mechanisms: dict[str, Any]) -> float:
        made = mechanisms[self.label]
        return math.hypot(made.scale, made.threshold_scale)

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Choice]:
        place, made = (
            int(release(self.label, _one_hot(self.column, table))[0]),
            mechanisms[self.label],
        )
        labels = self.column.labels
        found = (labels[place],) if place < len(labels) else ()
        # each noise is below scale·ln(1/p) but with probability p
        return [Choice(self.column.name, found, made.scale + made.threshold_scale, len(labels) + 1)]
