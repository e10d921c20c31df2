"""Losses of a person with several visits, and of messages that each have noise of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from privlearn.losses.base import (
    ComposedLoss,
    Loss,
    LossAround,
    compose,
    loss_from_dict,
    of_relation,
    register,
)
from privlearn.losses.output_laws import LawPair
from privlearn.values.adjacency import Adjacency
from privlearn.values.json_forms import OBJECT, WHOLE, Form
from privlearn.values.validate import count


@final
@register
@dataclass(frozen=True, slots=True)
class VisitsLoss(LossAround):
    """The loss of a person with at most ``most`` visits, ``apart`` or more slots from each other.

    All bounds are those of ``loss``, which is that of the person, not of one row; only what more
    visits, or closer ones, cost is different (`for_visits`).

    Args:
        loss: what the person pays for all visits together.
        most: >= 1.
        apart: slots from one visit to the next, at least; >= 1.

    Raises:
        ValueError: a number below 1.
    """

    kind = "visits"
    loss: Loss
    most: int
    apart: int = 1

    def __post_init__(self) -> None:
        count(most=self.most)
        count(apart=self.apart)

    def unless_failed(self) -> Loss:
        apart_from_failure = self.loss.unless_failed()
        return self if apart_from_failure is self.loss else self._around(apart_from_failure)

    def over(self, users: range) -> list[tuple[range, Loss]]:
        return [(piece, self._around(loss)) for piece, loss in self.loss.over(users)]

    def doubled(self) -> VisitsLoss:
        return self._around(self.loss.doubled())

    def several(self, visits: int, apart: int) -> Loss:
        """As many groups of visits within the rule as are needed, by group privacy."""
        stride = -(-self.apart // apart)  # every stride-th visit is far enough from the next
        full, longer = divmod(visits, stride)
        groups = longer * -(-(full + 1) // self.most) + (stride - longer) * -(-full // self.most)
        return self if groups == 1 else self.loss.for_visits(groups)

    def noisier(self, factor: Fraction) -> VisitsLoss:
        return self._around(self.loss.noisier(factor))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair] | None:
        return self.loss.worst_pairs(orders)

    def numbers(self) -> dict[str, Any]:
        return {"loss": self.loss.to_dict(), "most": self.most, "apart": self.apart}

    def _around(self, loss: Loss) -> VisitsLoss:
        return VisitsLoss(loss, self.most, self.apart)

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> VisitsLoss:
        loss = of_relation(adjacency, loss_from_dict(data["loss"]))
        return cls(loss, data["most"], data["apart"])

    @classmethod
    def json_form(cls) -> Form:
        return {"loss": OBJECT, "most": WHOLE, "apart": WHOLE}


def has_visits(loss: Loss) -> bool:
    """Whether a `VisitsLoss` is part of ``loss``: then it is no loss of one row."""
    return isinstance(loss, VisitsLoss) or any(has_visits(part) for part, _ in loss.inner())


def without_visits(loss: Loss) -> Loss:
    """``loss`` with what its `VisitsLoss` parts are about in their place: its bounds are the same.

    For whoever looks at the kinds of losses to compute with them.
    """
    match loss:
        case VisitsLoss():
            return without_visits(loss.loss)
        case ComposedLoss() if has_visits(loss):
            return compose([(without_visits(part), count) for part, count in loss.parts])
    return loss


def each_visit(loss: Loss, visits: int) -> Loss:
    """What a person pays whose ``visits`` rows each get noise of their own: a composition.

    So it is for messages of local devices: noise that is shared costs `Loss.for_visits` instead,
    which is never less.

    Raises:
        ValueError: a number below 1.
    """
    return compose([(loss, count(visits=visits))])
