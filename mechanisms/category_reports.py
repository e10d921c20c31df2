"""One of k answers, reported by every user: k-ary randomized response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.spends import Spend
from privlearn.mechanisms.report_streams import EachReport, RowsOfNoise, spends_of
from privlearn.noise import CategoryNoise, CategoryRows
from privlearn.rows.domains import Array, Categories
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact
from privlearn.values.validate import assign


@final
@dataclass(frozen=True, slots=True)
class CategoryReport(EachReport[NDArray[Any]]):
    """The true one of k answers with ``probability``, else any other one; one number.

    Rows are integers 0..k−1, shape (n,); whoever has no answer reports a uniform one, which counts
    as 1/k of each.

    Args:
        categories: k >= 2.
        probability: of the truth, in (1/k, 1).
        adjacency: must be the accountant's.

    Raises:
        ValueError: a number out of range.
        AdjacencyError: add-remove.
    """

    categories: int
    probability: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    domain: Categories = field(init=False, repr=False, compare=False)
    """Vectors with a 1 at the answer."""
    _spends: tuple[Spend, Spend] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        noise = CategoryNoise(self.categories, self.probability)
        assign(self, categories=noise.categories, probability=noise.probability)
        domain = Categories(noise.categories)
        spends = spends_of("category-report", domain, noise, exact=True)
        assign(self, domain=domain, _spends=spends)
        self.loss()

    @classmethod
    def calibrated(
        cls, categories: int, epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ) -> CategoryReport:
        """The largest probability of the truth at which replacing an answer costs ε.

        Raises:
            ValueError: ε is not in [1e-6, 30], or fewer than two categories.
        """
        return cls(categories, CategoryNoise.at(categories, epsilon).probability, adjacency)

    @property
    def size(self) -> int:
        return 1

    @property
    def limit(self) -> float:
        """Every report lies in [−limit, limit], as 0..k−1."""
        return float(self.categories - 1)

    def randomized(self, values: Array, draw: RowsOfNoise) -> Array:
        rows: CategoryRows = draw(len(values))
        truth = np.argmax(values, axis=1)
        answer = np.where(rows.true, truth, rows.others + (rows.others >= truth))
        null = values.max(axis=1) < 1
        return np.where(null, rows.nulls, answer).astype(np.float64)[:, None]

    def _weights(self) -> tuple[float, float]:
        """What a report counts for its answer and for any other."""
        k, p = self.categories, self.probability
        other = (1 - p) / (k - 1)
        return (1 - other) / (p - other), -other / (p - other)

    @property
    def estimate_limit(self) -> float:
        return self._weights()[0]

    def estimate(self, reports: Array) -> Array:
        """Unbiased estimates of the vectors with a 1 at the answer, shape (n, k)."""
        said, other = self._weights()
        answers = np.rint(reports[:, 0]).astype(np.intp)
        estimates = np.full((len(reports), self.categories), other)
        estimates[np.arange(len(reports)), answers] = said
        return estimates

    def plausible(self, reports: Array, slack: float) -> NDArray[np.bool_]:
        """Whether each is an answer, up to ``slack``."""
        answers = np.clip(np.rint(reports[:, 0]), 0, self.categories - 1)
        return np.asarray(np.abs(reports[:, 0] - answers) <= slack)

    def mean_squared_error(self) -> float:
        """The largest E‖estimate − contribution‖², which is that without an answer."""
        said, other = self._weights()
        return said**2 + (self.categories - 1) * other**2 - 1 / self.categories

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "category-report",
            "categories": self.categories,
            "probability": self.probability,
            "adjacency": self.adjacency.value,
        }
