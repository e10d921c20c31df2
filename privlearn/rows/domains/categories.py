"""One of several answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains.base import ShippedDomain
from privlearn.rows.domains.clipping import WITHIN, Number, floor_in_steps, shaped, whole_below
from privlearn.rows.domains.norms import Array, Norm, exponent_of
from privlearn.rows.domains.reading import ships
from privlearn.rows.record_forms import Numbers
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers
from privlearn.values.json_forms import WHOLE
from privlearn.values.validate import AtLeastTwo


@final
@dataclass(frozen=True, slots=True)
class Categories(ShippedDomain):
    """One of k answers, as a vector of k numbers with a 1 at the answer.

    Takes integers 0..k−1, shape (n,).  The null contribution is 1/k for every answer, the mean of
    all: what randomized response reports where there is no answer.

    Args:
        size: k >= 2.
    """

    kind: ClassVar[str] = "categories"
    size: AtLeastTwo

    def clip(self, block: NDArray[Any]) -> Array:
        """Rows with a 1 at the answer; 1/k everywhere for what is no answer."""
        return self._marked(block, np.float64(1.0), self.null())

    def record_form(self) -> Numbers:
        return Numbers()

    def _marked(self, block: object, mark: Number, null: NDArray[Number]) -> NDArray[Number]:
        answers = shaped(block, self.record_form())
        with np.errstate(all="ignore"):
            real, places = whole_below(answers, self.size)
        rows = np.empty((len(answers), len(null)), null.dtype)
        rows[:] = null
        rows[real] = 0
        rows[real, places] = mark
        return rows

    def null(self) -> Array:
        return np.full(self.size, 1 / self.size)

    def _largest_of_null(self) -> float:
        return 1 / self.size

    def integers(self, block: NDArray[Any], grid: Grid) -> Integers:
        """Rows with k·b at the answer, b = ⌊1/(k·step)⌋; b everywhere for what is no answer."""
        null = self.null_integers(grid)
        return self._marked(block, null.sum(), null)

    def null_integers(self, grid: Grid) -> Integers:
        return np.full(self.size, _share_in_steps(self, grid), dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """An answer is ``largest`` = k·``null``, so that null is exactly the mean of all."""
        share = _share_in_steps(self, grid)
        return {"largest": self.size * share, "null": share}

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        p = exponent_of(norm)
        if adjacency is Adjacency.REPLACE_ONE:
            return math.sqrt(2) if p == 2 else float(2 ** (1 / p))
        if adjacency is Adjacency.ADD_REMOVE:
            return 1.0
        away = 1 - 1 / self.size
        rest = (self.size - 1) * (1 / (self.size * away)) ** p if p < math.inf else 0.0
        return away * float((1 + rest) ** (1 / p)) * (1 + 1e-14)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size}


@lru_cache(maxsize=256)
def _share_in_steps(domain: Categories, grid: Grid) -> int:
    share = floor_in_steps(WITHIN / domain.size, grid, answer=1.0)
    if share < 1:
        raise ValueError(
            f"{domain!r}: 1/{domain.size} is less than the step {grid.step!r} of {grid!r}; the "
            "scale of the noise is too large for it"
        )
    return share


ships(Categories, {"size": WHOLE}, lambda data: Categories(data["size"]))
