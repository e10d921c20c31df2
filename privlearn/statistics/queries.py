r"""What is asked of a table: each query states its mechanism, its records, and what it found.

Moments.  A number z in [−1, 1] enters as (z, u), u standing for "present", a missing one as (0, 0)
(`Counted`).  Two present ones are 2 apart, so that under Gaussian noise u = √3 makes the count of
the present cells free, and with public groups, between which a person may move, u = 1 does
(`OneOf`: two contributions of length √2).  For variances a third number w·(z² − ½) joins; the pair
(z, w·(z² − ½)) is in a ball of radius √(1 + w²/4) around 0, so that second moments are of noise
√(1 + w²/4)·2/(w·μ) where a sum of squares by itself would have 1/μ, and a mean that is
√(1 + w²/4) times as noisy.  Splitting the budget in two would take √2 on both.

Histograms.  A record is in one cell, and moves between two: `OneOf`, √2 in ℓ2 and 2 in ℓ1, however
many cells and groups there are.  "Missing" is a further cell at no price; n is public, so the noise
that all cells have in common is taken out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from privlearn.losses.budgets import Currency, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.least_noise import Family
from privlearn.rows.domains import Array, Ball, Box, Counted, Domain, OneOf
from privlearn.statistics.columns import MISSING, CellColumn, Groups, NumberColumn
from privlearn.statistics.intervals import Interval, NoiseLaw, NoiseSum, NoisyQuotient, normal_width
from privlearn.statistics.results import Estimate, Summary
from privlearn.tables import Table


class InGroup(NamedTuple):
    """A block of records and the group of each."""

    record: Array
    group: Array

    def __repr__(self) -> str:
        return "<InGroup>"


Records = Array | InGroup
Release = Callable[[str, Any], Array]
"""Releases by the mechanism of a label, for a block of records of all rows."""


class Query(Protocol):
    """One thing that is asked, and paid for."""

    @property
    def label(self) -> str:
        """In the ledger."""

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        """At that budget, by label."""

    def error(self, mechanisms: dict[str, Any]) -> float:
        """A typical standard deviation of what is found, up to a factor that is the query's own."""

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> Sequence[Any]:
        """Asks, and says what was found: one finding for each group."""


def family_for(budget: Currency) -> Family:
    """Laplace noise for a pure ε, else Gaussian noise."""
    return "laplace" if isinstance(budget, PureDP) else "gaussian"


def in_groups(inner: Domain[Any], groups: int) -> Domain[Any]:
    """The domain, or one of so many."""
    return inner if groups == 1 else OneOf(inner, groups)


def placed(records: Array, places: Array | None) -> Records:
    """Records with their groups, if there are any."""
    return records if places is None else InGroup(records, places)


@final
@dataclass(frozen=True, slots=True)
class MomentsQuery:
    """Count of the present cells, mean, and with ``weight`` variance and sd, by group.

    Args:
        column: of numbers.
        groups: public.
        weight: w, of squares; 0 for none.
        wanted: names of estimates.
    """

    column: NumberColumn
    groups: Groups
    weight: float
    wanted: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"moments of {self.column.name}"

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        laplace, w = isinstance(budget, PureDP), self.weight
        if not w:
            inner: Ball | Box = Box(-1.0, 1.0, 1)
            radius = 1.0
        else:
            radius = 1 + w / 2 if laplace else math.sqrt(1 + w * w / 4)
            inner = Ball(radius, 2, "l1" if laplace else "l2")
        unit = radius if self.groups.count > 1 or laplace else None
        if laplace and self.groups.count > 1:
            unit = radius / 2
        domain = in_groups(Counted(inner, unit), self.groups.count)
        return {self.label: NoisySum.calibrated(domain, budget, noise=family_for(budget))}

    def error(self, mechanisms: dict[str, Any]) -> float:
        return float(mechanisms[self.label].error_std())

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Summary]:
        z = self.column.scaled(table)
        numbers = [z] if not self.weight else [z, self.weight * (z * z - 0.5)]
        records = placed(np.stack(numbers, axis=1), self.groups.places(table))
        sums = release(self.label, records).reshape(self.groups.count, len(numbers) + 1)
        mechanism = mechanisms[self.label]
        inner = mechanism.domain if self.groups.count == 1 else mechanism.domain.inner
        law = NoiseLaw.of(mechanism.noise)
        found = []
        for label, line in zip(self.groups.labels, sums, strict=True):
            moments = Moments(self.column, line, law, self.weight, 1 / inner.unit, len(table))
            made = {name: moments.estimate(name) for name in self.wanted}
            found.append(Summary(self.column.name, label, made, unit=self.column.unit))
        return found


@final
@dataclass(frozen=True)
class Moments:
    """Noisy sums of one column in one group: of z, of w·(z² − ½), and of the present cells."""

    column: NumberColumn
    sums: Array
    law: NoiseLaw
    weight: float
    count_weight: float
    n: int

    @property
    def mean_of_z(self) -> NoisyQuotient:
        return NoisyQuotient(self.sums[0], self.sums[-1], self.law, 1.0, self.count_weight)

    @property
    def mean_of_squares(self) -> NoisyQuotient:
        """Of z² − ½."""
        top, w = self.sums[1] / self.weight, 1 / self.weight
        return NoisyQuotient(top, self.sums[-1], self.law, w, self.count_weight, -0.5, 0.5)

    def estimate(self, name: str) -> Estimate:
        """That of ``count``, ``missing``, ``mean``, ``variance`` or ``sd``."""
        values = {"count": self.count, "missing": self.missing, "mean": self.mean}
        value = values[name]() if name in values else self.variance(name == "sd")
        bounds = {"count": self.count_bounds, "missing": self.missing_bounds}
        limits = {**bounds, "mean": self.mean_bounds}.get(
            name, partial(self.variance_bounds, name == "sd")
        )
        return Estimate(name, value, limits)

    def count(self) -> float:
        return float(min(max(self.sums[-1], 0.0), self.n))

    def missing(self) -> float:
        return self.n - self.count()

    def mean(self) -> float:
        return self.column.middle + self.column.half * self.mean_of_z.value(self.n)

    def variance(self, root: bool) -> float:
        z, square = self.mean_of_z.value(self.n), self.mean_of_squares.value(self.n) + 0.5
        found = min(max(square - z * z, 0.0), 1.0)
        return self.column.half * math.sqrt(found) if root else self.column.half**2 * found

    def count_bounds(self, level: float, sampling: bool) -> Interval:
        return count_bounds(self.sums[-1], self.law.width(level, self.count_weight), self.n)(
            level, sampling
        )

    def missing_bounds(self, level: float, sampling: bool) -> Interval:
        low, high = self.count_bounds(level, sampling)
        return self.n - high, self.n - low

    def mean_bounds(self, level: float, sampling: bool) -> Interval:
        low, high = self.mean_of_z.interval(level, self._spread() if sampling else 0.0)
        return self.column.middle + self.column.half * low, (
            self.column.middle + self.column.half * high
        )

    def _spread(self) -> float:
        """Standard deviation of Σz, at most, or as estimated."""
        z = self.mean_of_z.value(self.n)
        variance = 1 - z * z
        if self.weight:
            variance = min(variance, self.variance(False) / self.column.half**2)
        return math.sqrt(max(self.count(), 1.0) * max(variance, 0.0))

    def variance_bounds(self, root: bool, level: float, sampling: bool) -> Interval:
        """From intervals of both means, each of half the error."""
        each = (1 + level) / 2
        spread = self._spread() if sampling else 0.0
        squares = math.sqrt(max(self.count(), 1.0)) / 2 if sampling else 0.0  # z² is in [0, 1]
        low, high = self.mean_of_z.interval(each, spread)
        least, most = self.mean_of_squares.interval(each, squares)
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        farthest = max(abs(low), abs(high))
        ends = (
            min(max(least + 0.5 - farthest**2, 0.0), 1.0),
            min(max(most + 0.5 - nearest**2, 0.0), 1.0),
        )
        if root:
            return self.column.half * math.sqrt(ends[0]), self.column.half * math.sqrt(ends[1])
        return self.column.half**2 * ends[0], self.column.half**2 * ends[1]


def count_bounds(value: float, width: float, n: int) -> Callable[[float, bool], Interval]:
    """Of a noisy count of n: by its width at the level, with sampling by the binomial law."""

    def bounds(level: float, sampling: bool) -> Interval:
        share = min(max(value / n, 0.0), 1.0)
        drawn = normal_width(level) * math.sqrt(n * share * (1 - share)) if sampling else 0.0
        reach = math.hypot(width, drawn)
        return min(max(value - reach, 0.0), n), max(min(value + reach, float(n)), 0.0)

    return bounds


@final
@dataclass(frozen=True)
class CountBounds:
    """Intervals of a count among n, with its noise."""

    value: float
    noise: NoiseSum
    n: int

    def __call__(self, level: float, sampling: bool) -> Interval:
        return count_bounds(self.value, self.noise.width(level), self.n)(level, sampling)


@final
@dataclass(frozen=True, slots=True)
class HistogramQuery:
    """Counts of the cells of a column, and of missing ones, by group."""

    column: CellColumn
    groups: Groups

    @property
    def label(self) -> str:
        return f"histogram of {self.column.name}"

    @property
    def _cells(self) -> int:
        return len(self.column.labels) + 1

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        domain = OneOf(Box(0.0, 1.0, 1), self._cells * self.groups.count)
        return {self.label: NoisySum.calibrated(domain, budget, noise=family_for(budget))}

    def error(self, mechanisms: dict[str, Any]) -> float:
        return float(mechanisms[self.label].error_std())

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Summary]:
        places = self.column.places(table)
        cells = np.where(np.isnan(places), self._cells - 1.0, places)
        group = self.groups.places(table)
        if group is not None:
            cells = cells + self._cells * group
        counts = release(self.label, InGroup(np.ones((len(table), 1)), cells))
        counts = counts.reshape(self.groups.count, self._cells)
        law, n = NoiseLaw.of(mechanisms[self.label].noise), len(table)
        weights: tuple[float, ...] = (1.0,)
        if self.groups.count == 1:  # all cells together are the n that is public
            counts = counts + (n - counts.sum()) / self._cells
            weights = (1 - 1 / self._cells, *[-1 / self._cells] * (self._cells - 1))
        labels, noise = [*self.column.labels, MISSING], NoiseSum(law, weights)
        return [
            Summary(
                self.column.name,
                group_label,
                histogram={
                    label: _count(label, float(value), noise, n)
                    for label, value in zip(labels, line, strict=True)
                },
            )
            for group_label, line in zip(self.groups.labels, counts, strict=True)
        ]


def _count(label: Any, value: float, noise: NoiseSum, n: int) -> Estimate:
    clipped = min(max(value, 0.0), float(n))
    return Estimate(f"count of {label}", clipped, CountBounds(value, noise, n))


@final
@dataclass(frozen=True, slots=True)
class TotalQuery:
    """One sum of cells that are present, by group: of ones (a count), or of the numbers."""

    column: NumberColumn | CellColumn
    groups: Groups
    what: str
    """"count" or "sum"."""

    @property
    def label(self) -> str:
        return f"{self.what} of {self.column.name}"

    @property
    def _reach(self) -> Interval:
        """Bounds of one contribution; 0 is that of a missing cell."""
        if self.what == "count" or isinstance(self.column, CellColumn):
            return 0.0, 1.0
        return min(self.column.low, 0.0), max(self.column.high, 0.0)

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        domain = in_groups(Box(*self._reach, 1), self.groups.count)
        return {self.label: NoisySum.calibrated(domain, budget, noise=family_for(budget))}

    def error(self, mechanisms: dict[str, Any]) -> float:
        return float(mechanisms[self.label].error_std())

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Summary]:
        if self.what == "sum" and isinstance(self.column, NumberColumn):
            numbers = self.column.cells(table)
        else:
            numbers = np.where(np.isnan(table.column(self.column.name)), np.nan, 1.0)
        records = placed(numbers[:, None], self.groups.places(table))
        sums = release(self.label, records).reshape(self.groups.count)
        law, n = NoiseLaw.of(mechanisms[self.label].noise), len(table)
        found = []
        for label, total in zip(self.groups.labels, sums.tolist(), strict=True):
            if self.what == "count":
                bounds = CountBounds(total, NoiseSum(law, (1.0,)), n)
                estimate = Estimate("count", min(max(total, 0.0), float(n)), bounds)
            else:
                low, high = self._reach
                value = min(max(total, n * low), n * high)
                estimate = Estimate("sum", value, SumBounds(total, law, n, low, high))
            found.append(Summary(self.column.name, label, {self.what: estimate}))
        return found


@final
@dataclass(frozen=True)
class SumBounds:
    """Intervals of a sum of n numbers in [low, high]; sampling by the largest variance."""

    value: float
    law: NoiseLaw
    n: int
    low: float
    high: float

    def __call__(self, level: float, sampling: bool) -> Interval:
        drawn = math.sqrt(self.n) * (self.high - self.low) / 2 * normal_width(level) * sampling
        reach = math.hypot(self.law.width(level, 1.0), drawn)
        least, most = self.n * self.low, self.n * self.high
        return min(max(self.value - reach, least), most), max(min(self.value + reach, most), least)
