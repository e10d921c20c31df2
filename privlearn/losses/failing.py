"""Losses that hold apart from a rare event."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from privlearn.losses.base import Loss, loss_from_dict, of_relation, register
from privlearn.losses.numerics import valid_order
from privlearn.losses.stated import ApproxLoss
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.json_forms import OBJECT, TEXT, Form


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class FailingLoss(Loss):
    """A loss that holds apart from an event of probability ``failure``, such as approximate zCDP.

    For every pair of neighbours the laws are (1−f)P′ + fP″ and (1−f)Q′ + fQ″, and P′ against Q′ has
    the loss (Bun & Steinke 2016, Definition 8.1, for zCDP).  Composition as for `ApproxLoss`.
    """

    kind = "may-fail"
    loss: Loss
    probability: Fraction

    def __init__(self, loss: Loss, failure: Exact):
        self._set(loss=loss, probability=exact("failure", failure))
        if not 0 < self.probability < 1 or loss.failure():
            raise ValueError(
                f"failure = {failure!r}: must lie strictly between 0 and 1, of a loss that does "
                "not fail otherwise"
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.loss.adjacency

    def renyi(self, order: float) -> float:
        valid_order(order)
        return math.inf

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return ((self.loss, 1),)

    def failure(self) -> Fraction:
        return self.probability

    def unless_failed(self) -> Loss:
        return self.loss

    def numbers(self) -> dict[str, Any]:
        return {"loss": self.loss.to_dict(), "failure": exact_text(self.probability)}

    def noisier(self, factor: Fraction) -> FailingLoss:
        return FailingLoss(self.loss.noisier(factor), self.probability)

    def several(self, visits: int, apart: int) -> ApproxLoss:
        """By (ε, δ): what is apart from the failure differs from one step to the next."""
        worst = self.loss.pure()
        if worst is None:
            raise ValueError(
                f"visits = {visits}: a {self.loss.kind} loss that may fail is not priced for a "
                "person with several rows, as it has no worst case; state an (ε, δ) of it as an "
                "ApproxLoss"
            )
        return ApproxLoss(worst, self.probability, adjacency=self.adjacency).several(visits, apart)

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> FailingLoss:
        return cls(of_relation(adjacency, loss_from_dict(data["loss"])), data["failure"])

    @classmethod
    def json_form(cls) -> Form:
        return {"loss": OBJECT, "failure": TEXT}
