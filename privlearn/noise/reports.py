"""What noise of whole local reports has in common: its probabilities and its price."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Annotated, Any

from privlearn.errors import AdjacencyError, TokenError
from privlearn.noise.exact.cap_mass import log_above
from privlearn.noise.exact.pool import Pool
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.validate import probability

GRID = 2.0**-52  # A probability on it is met exactly


def _on_grid(**named: float) -> float:
    return math.floor(probability(**named) / GRID) * GRID


GridProbability = Annotated[float, _on_grid]


class ReportFamily(ABC):
    """Noise that makes whole reports."""

    __slots__ = ()

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        """Refused: such noise is not made of numbers that are drawn by themselves."""
        raise TokenError(
            f"{self.to_dict()['family']} noise makes whole reports, and no numbers to be added: "
            "use receipt.draw_rows(n)"
        )

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


def local_price(most: Fraction, least: Fraction, adjacency: Adjacency) -> Fraction:
    """Of bounds of M and 1/m, the largest densities against the null law and of it."""
    if adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            "a local report has no add-remove price: who sends one is seen to take part"
        )
    replaced = adjacency is Adjacency.REPLACE_ONE
    return round_up(log_above(most * least if replaced else max(most, least)))
