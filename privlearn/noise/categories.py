"""Reports of one of several answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.losses import Loss, PureLoss, RandomizedResponse
from privlearn.noise.exact.pool import NoisePool, Pool, below, bernoulli
from privlearn.noise.reports import GRID, GridProbability, ReportFamily, local_price
from privlearn.rows.domains import Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, float_down
from privlearn.values.validate import AtLeastTwo, check_fields, count

_MOST_CATEGORIES = 2**20


@final
@dataclass(frozen=True, slots=True)
class CategoryRows:
    """What reports of answers are made of.

    Args:
        true: which tell the truth.
        others: 0..k−2, a place among the other answers.
        nulls: 0..k−1, the answer of who has none.
    """

    true: NDArray[np.bool_]
    others: NDArray[np.int64]
    nulls: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.true)

    def __getitem__(self, rows: slice) -> CategoryRows:
        return CategoryRows(self.true[rows], self.others[rows], self.nulls[rows])

    def in_child(self) -> None:
        """Overwrites them in a forked child."""
        for part in (self.true, self.others, self.nulls):
            part[:] = 0


@final
@dataclass(frozen=True, slots=True)
class CategoryNoise(ReportFamily):
    """Randomness of k-ary randomized response: the truth with ``probability``, or any other answer.

    A null report is uniform.  Against it the density is pk at the truth and (1−p)k/(k−1) elsewhere;
    it is the mean of the laws of all answers, so that replacing one by a null one costs no more.
    All of these probabilities are met exactly.

    Args:
        categories: k in 2..2²⁰.
        probability: p in (1/k, 1); rounded down to a multiple of 2⁻⁵².

    Raises:
        ValueError: a number is out of range.
    """

    norm: ClassVar[Norm] = "linf"
    categories: AtLeastTwo
    probability: GridProbability

    def __post_init__(self) -> None:
        check_fields(self)
        if self.categories > _MOST_CATEGORIES:
            raise ValueError(f"categories = {self.categories}: must be at most {_MOST_CATEGORIES}")
        if not 1 / self.categories < self.probability:
            raise ValueError(f"probability = {self.probability!r}: must exceed 1/categories")

    @classmethod
    def at(cls, categories: int, epsilon: Exact) -> CategoryNoise:
        """The largest probability at which replacing a record costs at most ``epsilon``.

        Raises:
            ValueError: ε is not in [1e-6, 30].
        """
        cost, k = exact("epsilon", epsilon), count(categories=categories, at_least=2)
        if not Fraction(1, 10**6) <= cost <= 30:
            raise ValueError(f"epsilon = {epsilon!r}: must lie in [1e-6, 30] for a local report")
        odds = math.exp(float_down(cost)) / (k - 1)
        p, step = math.floor(odds / (1 + odds) / GRID) * GRID, GRID
        while (made := cls(k, p))._epsilon(Adjacency.REPLACE_ONE) > cost:
            p, step = p - step, 2 * step
        return made

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Randomized response, under zero-out log max(pk, (k−1)/((1−p)k)), rounded up.

        Raises:
            AdjacencyError: add-remove; whoever sends a report is seen to take part.
        """
        epsilon = self._epsilon(adjacency)
        if adjacency is Adjacency.REPLACE_ONE:
            return RandomizedResponse(epsilon, self.categories, adjacency=adjacency)
        return PureLoss(epsilon, adjacency=adjacency)

    def _epsilon(self, adjacency: Adjacency) -> Fraction:
        p, k = Fraction(self.probability), self.categories
        return local_price(p * k, (k - 1) / ((1 - p) * k), adjacency)

    def rows(self, pool: Pool, n: int) -> CategoryRows:
        """What ``n`` reports are made of; all of it is drawn, whatever a report takes."""

        def make(count: int) -> CategoryRows:
            return self._drawn(pool, count)

        return pool.rows(self, n, 1, make) if isinstance(pool, NoisePool) else make(n)

    def _drawn(self, pool: Pool, n: int) -> CategoryRows:
        k = self.categories
        true = bernoulli(pool.words(n), int(self.probability / GRID))
        return CategoryRows(true, below(pool, k - 1, n), below(pool, k, n))

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": "category",
            "categories": self.categories,
            "probability": self.probability,
        }
