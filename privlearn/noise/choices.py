"""Noise of scores of which one is chosen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

from privlearn.errors import BudgetError
from privlearn.losses import Loss
from privlearn.noise.exact.pool import Pool, Variates, doubles_of
from privlearn.rows.domains import Array, Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import Checked, Positive


class _ForChoices(Checked, ABC):
    """Noise that protects which of several scores is largest, and no score itself."""

    __slots__ = ()
    norm: ClassVar[Norm] = "linf"
    scale: float

    @property
    def unit(self) -> float:
        """The scale."""
        return self.scale

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Refused: the price of a choice depends on what is chosen from.

        Raises:
            BudgetError: always.
        """
        raise BudgetError(
            f"{self.to_dict()['family']} noise protects which of several scores is largest, not "
            "the scores: use ReportNoisyMax, or state own_loss"
        )

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@final
@dataclass(frozen=True, slots=True)
class GumbelNoise(_ForChoices):
    """Gumbel noise, distribution function exp(−e^{−x/scale}), for scores of which one is chosen."""

    scale: Positive

    def variates(self, pool: Pool, n: int) -> Variates:
        return pool.variates("gumbel", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return doubles_of(pool, "gumbel", shape) * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": "gumbel", "scale": self.scale}


@final
@dataclass(frozen=True, slots=True)
class ExponentialNoise(_ForChoices):
    """Exponential noise of mean ``scale``, for scores of which one is chosen.

    On a number that is released it would be one-sided, and reveal it.
    """

    scale: Positive

    def variates(self, pool: Pool, n: int) -> Variates:
        return pool.variates("exponential", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return doubles_of(pool, "exponential", shape) * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": "exponential", "scale": self.scale}
