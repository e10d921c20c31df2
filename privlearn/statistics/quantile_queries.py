"""Quantiles with intervals: picks by an exponential mechanism, then counts around them.

The picks have the least error (`ReportQuantiles`), but do not tell how far they are off.  A fifth
of the budget counts the values between edges around them, at distances that halve; where the noisy
count below an edge is certainly too small, the quantile lies above it.  Only the edge next to the
quantile decides whether an interval misses it, so that no correction for several edges is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, final

import numpy as np

from privlearn.losses.budgets import Currency
from privlearn.mechanisms import NoisySum, ReportQuantiles
from privlearn.rows.domains import Array, Box, OneOf
from privlearn.statistics.columns import Groups, NumberColumn
from privlearn.statistics.intervals import Interval, NoiseLaw, normal_width
from privlearn.statistics.queries import InGroup, Release, family_for, placed
from privlearn.statistics.results import Estimate, Summary
from privlearn.tables import Table

_FOR_INTERVALS: Final = Fraction(1, 5)
_HALVINGS: Final = 12
_LEAST_CELLS, _MOST_CELLS = 2**12, 2**18


def cells_for(n: int, scale: float) -> int:
    """So many that a cell of evenly spread values holds a small part of the ranks of the noise."""
    wanted = min(max(64 * n / scale, _LEAST_CELLS), _MOST_CELLS)
    return 1 << math.ceil(math.log2(wanted))


@final
@dataclass(frozen=True, slots=True)
class QuantilesQuery:
    """Several quantiles of a column, by group.

    Args:
        column: of numbers.
        groups: public.
        probabilities: ascending.
        n: rows, which are public.
        intervals: whether a fifth of the budget goes into intervals; else they are the bounds.
    """

    column: NumberColumn
    groups: Groups
    probabilities: tuple[Fraction, ...]
    n: int
    intervals: bool = True

    @property
    def label(self) -> str:
        return f"quantiles of {self.column.name}"

    @property
    def _edges(self) -> int:
        return len(self.probabilities) * (2 * _HALVINGS + 1)

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        aside = _FOR_INTERVALS if self.intervals else Fraction(0)
        rest = budget.share(1 - aside)
        coarse = ReportQuantiles.calibrated(self.probabilities, rest, groups=self.groups.count)
        found: dict[str, Any] = {self.label: replace(coarse, cells=cells_for(self.n, coarse.scale))}
        if self.intervals:
            domain = OneOf(Box(0.0, 1.0, 1), (self._edges + 1) * self.groups.count)
            counting = NoisySum.calibrated(domain, budget.share(aside), noise=family_for(budget))
            found[f"counts around {self.label}"] = counting
        return found

    def error(self, mechanisms: dict[str, Any]) -> float:
        return float(mechanisms[self.label].rank_error_std())

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Summary]:
        z, group = self.column.placed(table), self.groups.places(table)
        mechanism = mechanisms[self.label]
        picks = mechanism.values(release(self.label, placed(z[:, None], group)))
        counted: list[CountsAround | None] = [None] * self.groups.count
        if self.intervals:
            label = f"counts around {self.label}"
            law = NoiseLaw.of(mechanisms[label].noise)
            edges = np.array([_edges_around(line) for line in picks])
            own = np.zeros(len(z)) if group is None else group
            cells = np.full(len(z), np.nan)
            for number, line in enumerate(edges):
                here = (own == number) & ~np.isnan(z)
                cells[here] = np.searchsorted(line, z[here]) + (self._edges + 1) * number
            counts = release(label, InGroup(np.ones((len(z), 1)), cells))
            counts = counts.reshape(self.groups.count, self._edges + 1)
            counted = [CountsAround(*one, law) for one in zip(edges, counts, strict=True)]
        found = []
        for label, line, around in zip(self.groups.labels, picks, counted, strict=True):
            quantiles = {
                float(q): Estimate(
                    f"quantile {float(q):g}",
                    self.column.at(float(place)),
                    QuantileBounds(self.column, q, float(place), around, 1 / mechanism.cells),
                )
                for q, place in zip(self.probabilities, line, strict=True)
            }
            found.append(
                Summary(self.column.name, label, quantiles=quantiles, unit=self.column.unit)
            )
        return found


def _edges_around(places: Array) -> Array:
    steps = 2.0 ** -np.arange(_HALVINGS)
    offsets = np.concatenate([-steps, [0.0], steps[::-1]])
    return np.sort(np.clip(np.add.outer(places, offsets).ravel(), -1.0, 1.0))


@final
@dataclass(frozen=True, eq=False)
class CountsAround:
    """Noisy counts between edges: of the values up to the first, …, beyond the last."""

    edges: Array
    counts: Array
    law: NoiseLaw

    def interval(self, q: float, level: float, spread: float) -> Interval:
        """Of the quantile, in [−1, 1]: between an edge certainly below and one certainly above."""
        below = np.cumsum(self.counts)[:-1]
        lead = below - q * self.counts.sum()
        cells, widths = len(self.counts), np.empty(len(below))
        for i in range(len(below)):
            weights = [1 - q] * (i + 1) + [q] * (cells - i - 1)
            widths[i] = self.law.width(level, *weights)
        widths = widths + spread if self.law.laplace else np.hypot(widths, spread)
        first = int(np.argmin([*(lead < -widths), False]))  # the first edge that is not below
        last = int(np.argmin([*(lead[::-1] >= widths[::-1]), False]))
        low = -1.0 if first == 0 else float(self.edges[first - 1])
        high = 1.0 if last == 0 else float(self.edges[len(self.edges) - last])
        return min(low, high), max(low, high)


@final
@dataclass(frozen=True, eq=False)
class QuantileBounds:
    """Intervals of one quantile: those of the counts around it, and the pick's own cell."""

    column: NumberColumn
    probability: Fraction
    place: float
    around: CountsAround | None
    half_cell: float

    def __call__(self, level: float, sampling: bool) -> Interval:
        low, high = -1.0, 1.0
        if self.around is not None:
            q, total = float(self.probability), max(float(self.around.counts.sum()), 1.0)
            drawn = normal_width(level) * math.sqrt(total * q * (1 - q)) if sampling else 0.0
            low, high = self.around.interval(q, level, drawn)
        low = max(min(low, self.place - self.half_cell), -1.0)
        high = min(max(high, self.place + self.half_cell), 1.0)
        return self.column.at(low), self.column.at(high)
