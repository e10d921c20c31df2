"""Losses that depend on the arrival index of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, LossOfSeveral, of_relation, read_parts, register
from privlearn.losses.discrete import DiscreteGaussian
from privlearn.losses.gaussian import GaussianLoss, GeneralizedGaussian
from privlearn.losses.numerics import MOST_STEPS, valid_count
from privlearn.losses.output_laws import LawPair
from privlearn.losses.pure import BoundedRangeLoss, LaplaceLoss, PureLoss, RandomizedResponse
from privlearn.losses.stated import ZCDPLoss
from privlearn.values.adjacency import Adjacency

_ONE_NUMBER: frozenset[type[Loss]] = frozenset(
    {
        GaussianLoss,
        GeneralizedGaussian,
        ZCDPLoss,
        DiscreteGaussian,
        PureLoss,
        RandomizedResponse,
        LaplaceLoss,
        BoundedRangeLoss,
    }
)
"""Kinds of which a group of rows costs what a sum over these rows of one number says."""


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class PerArrivalLoss(LossOfSeveral):
    """One run that costs early users more than late ones, such as a stream of prefix sums.

    ``parts`` are numbers of consecutive users, from the first user of the token on, with what each
    of them pays.  Which part a user is in follows from the arrival index, which is public and fixed
    when the user arrives; so replacing that user costs that part, whoever the others are.  All
    bounds of the whole are the largest over users.

    Raises:
        ValueError: no parts, or no users in one.
        AdjacencyError: parts of different adjacencies, or add-remove, under which a removed user
            moves everybody behind to another part.
    """

    kind = "by-arrival"
    parts: tuple[tuple[int, Loss], ...]
    adjacency: Adjacency

    def __init__(self, parts: Iterable[tuple[int, Loss]]):
        listed = tuple((valid_count(MOST_STEPS, at_least=1, users=n), loss) for n, loss in parts)
        if not listed:
            raise ValueError("parts = []: needs at least one")
        relations = {loss.adjacency for _, loss in listed}
        if len(relations) > 1 or Adjacency.ADD_REMOVE in relations:
            names = " and ".join(sorted(a.value for a in relations))
            raise AdjacencyError(f"a profile for {names}: must be for replace-one or zero-out")
        self._set(parts=listed, adjacency=listed[0][1].adjacency)

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return [(loss, 1) for _, loss in self.parts]

    def renyi(self, order: float) -> float:
        return max(loss.renyi(order) for _, loss in self.parts)

    def failure(self) -> Fraction:
        return max(loss.failure() for _, loss in self.parts)

    def unless_failed(self) -> Loss:
        return PerArrivalLoss([(n, loss.unless_failed()) for n, loss in self.parts])

    def over(self, users: range) -> list[tuple[range, Loss]]:
        pieces: list[tuple[range, Loss]] = []
        start = users.start
        for n, loss in self.parts:
            if start >= users.stop:
                break
            inner = range(start, min(start + n, users.stop))
            pieces += loss.over(inner)
            start = inner.stop
        if start < users.stop:
            raise ValueError(
                f"users = {users!r}: the profile is for {start - users.start} users only"
            )
        return pieces

    def _gathered(self, value: Callable[[Loss], Fraction | None]) -> Fraction | None:
        values = [value(loss) for _, loss in self.parts]
        known = [number for number in values if number is not None]
        return max(known) if len(known) == len(values) else None

    def numbers(self) -> dict[str, Any]:
        return {"parts": [{"users": n, "loss": loss.to_dict()} for n, loss in self.parts]}

    def doubled(self) -> PerArrivalLoss:
        return PerArrivalLoss([(users, loss.doubled()) for users, loss in self.parts])

    def several(self, visits: int, apart: int) -> PerArrivalLoss:
        """Part by part: whoever has rows in several parts pays the dearest of these at most.

        Raises:
            ValueError: among parts such as these, one need not be the dearest.
        """
        kinds = {loss.__class__ for _, loss in self.parts}
        if len({loss for _, loss in self.parts}) > 1 and not (
            len(kinds) == 1 and kinds <= _ONE_NUMBER
        ):
            raise ValueError(
                f"visits = {visits}: a profile of {' and '.join(sorted(k.kind for k in kinds))} "
                "losses has no known price for a person with rows in several of its parts; state "
                "one loss for all arrivals"
            )
        parts = [(users, loss.for_visits(visits, apart)) for users, loss in self.parts]
        return PerArrivalLoss(parts)

    def noisier(self, factor: Fraction) -> PerArrivalLoss:
        return PerArrivalLoss([(users, loss.noisier(factor)) for users, loss in self.parts])

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair] | None:
        found: list[LawPair] = []
        for _, loss in self.parts:
            pairs = loss.worst_pairs(orders)
            if pairs is None:
                return None
            found += pairs
        return found

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> PerArrivalLoss:
        parts = read_parts(data["parts"], "users")
        return of_relation(adjacency, cls([(users, loss) for loss, users in parts]))
