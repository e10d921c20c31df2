r"""Covariances and correlations of columns, from one noisy matrix of second moments.

With z of the columns on [−1, 1] and f = (z, 1), a row enters as ffᵀ, of trace at most d + 1
(`PSDTrace`, ℓ2 sensitivity √2·(d + 1)): sums of products, sums and the count in one release, with
noise of half the variance off the diagonal.  Only rows of which all columns are present enter.
Groups are free: two matrices in two places are as far apart as two in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from privlearn.losses.budgets import Currency
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Array, PSDTrace
from privlearn.statistics.columns import Groups, NumberColumn
from privlearn.statistics.intervals import Interval, NoiseLaw, NoisyQuotient
from privlearn.statistics.queries import Release, family_for, in_groups, placed
from privlearn.statistics.results import Matrix
from privlearn.tables import Table

_OFF_DIAGONAL = math.sqrt(0.5)


@final
@dataclass(frozen=True, slots=True)
class CovarianceQuery:
    """Covariances of columns, or correlations, by group.

    Args:
        columns: two or more, of numbers.
        groups: public.
        correlations: which of the two.
    """

    columns: tuple[NumberColumn, ...]
    groups: Groups
    correlations: bool

    @property
    def label(self) -> str:
        return f"second moments of {', '.join(column.name for column in self.columns)}"

    def mechanisms(self, budget: Currency) -> dict[str, Any]:
        dim = len(self.columns) + 1
        domain = in_groups(PSDTrace(float(dim), dim), self.groups.count)
        return {self.label: NoisySum.calibrated(domain, budget, noise=family_for(budget))}

    def error(self, mechanisms: dict[str, Any]) -> float:
        return float(mechanisms[self.label].error_std())

    def ask(self, table: Table, mechanisms: dict[str, Any], release: Release) -> list[Matrix]:
        numbers = [column.scaled(table) for column in self.columns]
        factors = np.stack([*numbers, np.ones(len(table))], axis=1)[:, None, :]
        dim = len(self.columns) + 1
        sums = release(self.label, placed(factors, self.groups.places(table)))
        law = NoiseLaw.of(mechanisms[self.label].noise)
        names = tuple(column.name for column in self.columns)
        found = []
        for label, matrix in zip(self.groups.labels, sums.reshape(-1, dim, dim), strict=True):
            moments = SecondMoments(self.columns, matrix, law, len(table))
            of = moments.correlations if self.correlations else moments.covariances
            bounds = moments.correlation_bounds if self.correlations else moments.covariance_bounds
            what = "correlation" if self.correlations else "covariance"
            found.append(Matrix(what, names, of(), bounds, label))
        return found


@final
@dataclass(frozen=True, eq=False)
class SecondMoments:
    """A noisy Σffᵀ, and what follows from it."""

    columns: tuple[NumberColumn, ...]
    matrix: Array
    law: NoiseLaw
    n: int

    def _mean(self, i: int) -> NoisyQuotient:
        return NoisyQuotient(self.matrix[i, -1], self.matrix[-1, -1], self.law, _OFF_DIAGONAL, 1.0)

    def _product(self, i: int, j: int) -> NoisyQuotient:
        weight, low = (1.0, 0.0) if i == j else (_OFF_DIAGONAL, -1.0)
        return NoisyQuotient(self.matrix[i, j], self.matrix[-1, -1], self.law, weight, 1.0, low)

    def _scaled(self) -> Array:
        """Covariances of z: positive semidefinite."""
        size = range(len(self.columns))
        means = np.array([self._mean(i).value(self.n) for i in size])
        products = np.array([[self._product(i, j).value(self.n) for j in size] for i in size])
        values, vectors = np.linalg.eigh(products - np.outer(means, means))
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)

    @property
    def _units(self) -> Array:
        halves = np.array([column.half for column in self.columns])
        return np.outer(halves, halves)

    def covariances(self) -> Array:
        """In the units of the columns, (d, d)."""
        return self._scaled() * self._units

    def correlations(self) -> Array:
        """In [−1, 1]; 0 where a variance is not above 0."""
        scaled = self._scaled()
        sd = np.sqrt(np.diag(scaled))
        there = np.outer(sd, sd) > 1e-12
        found = np.where(there, scaled / np.where(there, np.outer(sd, sd), 1.0), 0.0)
        np.fill_diagonal(found, 1.0)
        return np.clip(found, -1.0, 1.0)

    def _range(self, i: int, j: int, level: float, spread: float) -> Interval:
        """Of a covariance of z, from intervals at ``level`` of each of its parts."""
        low, high = self._product(i, j).interval(level, spread)
        first, second = (self._mean(k).interval(level, spread) for k in (i, j))
        products = [a * b for a in first for b in second]
        least, most = min(products), max(products)
        if i == j:
            least = 0.0 if first[0] <= 0 <= first[1] else min(first[0] ** 2, first[1] ** 2)
        floor = 0.0 if i == j else -1.0
        return max(low - most, floor), max(min(high - least, 1.0), floor)

    def _spread(self, sampling: bool) -> float:
        return math.sqrt(max(self.matrix[-1, -1], 1.0)) if sampling else 0.0

    def covariance_bounds(self, level: float, sampling: bool) -> tuple[Array, Array]:
        """Ends for all pairs, each at the level, (d, d) and (d, d)."""
        spread = self._spread(sampling)

        def one(i: int, j: int) -> Interval:
            return self._range(i, j, 1 - (1 - level) / (2 if i == j else 3), spread)

        low, high = self._all(one)
        return low * self._units, high * self._units

    def correlation_bounds(self, level: float, sampling: bool) -> tuple[Array, Array]:
        """As `covariance_bounds`."""
        spread, each = self._spread(sampling), 1 - (1 - level) / 5

        def one(i: int, j: int) -> Interval:
            if i == j:
                return 1.0, 1.0
            low, high = self._range(i, j, each, spread)
            variances = [self._range(k, k, each, spread) for k in (i, j)]
            least, most = (math.sqrt(variances[0][k] * variances[1][k]) for k in (0, 1))
            if least <= 0 or most <= 0:
                return -1.0, 1.0
            ends = [x / y for x in (low, high) for y in (least, most)]
            return max(min(ends), -1.0), min(max(ends), 1.0)

        return self._all(one)

    def _all(self, one: Callable[[int, int], Interval]) -> tuple[Array, Array]:
        size = len(self.columns)
        low, high = np.empty((size, size)), np.empty((size, size))
        for i in range(size):
            for j in range(i + 1):
                low[i, j], high[i, j] = one(i, j)
                low[j, i], high[j, i] = low[i, j], high[i, j]
        return low, high
