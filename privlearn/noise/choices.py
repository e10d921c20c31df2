"""Noise of scores of which one is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from privlearn.errors import BudgetError
from privlearn.losses import Loss
from privlearn.noise.exact.pool import Kind
from privlearn.noise.scaled import Scaled
from privlearn.rows.domains import Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import Positive


class _ForChoices(Scaled):
    """Noise that protects which of several scores is largest, and no score itself."""

    __slots__ = ()
    norm: ClassVar[Norm] = "linf"

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Refused: the price of a choice depends on what is chosen from."""
        raise BudgetError(
            f"{self.kind} noise protects which of several scores is largest, not "
            "the scores: use ReportNoisyMax, or state own_loss"
        )


@final
@dataclass(frozen=True, slots=True)
class GumbelNoise(_ForChoices):
    """Gumbel noise, distribution function exp(−e^{−x/scale}), for scores of which one is chosen."""

    kind: ClassVar[Kind] = "gumbel"
    scale: Positive


@final
@dataclass(frozen=True, slots=True)
class ExponentialNoise(_ForChoices):
    """Exponential noise of mean ``scale``, for scores of which one is chosen.

    On a number that is released it would be one-sided, and reveal it.
    """

    kind: ClassVar[Kind] = "exponential"
    scale: Positive
