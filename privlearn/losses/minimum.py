"""Several bounds that hold for one and the same run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, LossOfSeveral, loss_from_dict, of_relation, register
from privlearn.losses.discrete import DiscreteLaplace
from privlearn.losses.gaussian import GaussianLoss
from privlearn.losses.pure import BoundedRangeLoss, LaplaceLoss, PureLoss, RandomizedResponse
from privlearn.losses.stated import RenyiCurve, ZCDPLoss
from privlearn.losses.steps import CurveStep, Step
from privlearn.losses.subsampled import SubsampledGaussian
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact_text, float_up, round_up
from privlearn.values.json_forms import LIST, Form

BOUNDS: tuple[type[Loss], ...] = (
    GaussianLoss,
    ZCDPLoss,
    PureLoss,
    RenyiCurve,
    LaplaceLoss,
    DiscreteLaplace,
    RandomizedResponse,
    BoundedRangeLoss,
    SubsampledGaussian,
)
"""Kinds that are a bound by themselves: of one run, and without failures."""
_MOST = 8
_MOST_ORDERS = 128
_DIGITS = 17
_SLACK = 1 + 2.0**-30  # For the rounding of what was computed in floating point


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class LeastLoss(LossOfSeveral):
    """A run that each of several losses bounds: in every price, the least of them.

    Each dominates the run by itself, so all of them hold at once; they are bounds and no parts, so
    it is a loss without parts.  The first is the step of a tight composition, and only it may be of
    bounded range, whose promise is about one release.  A Rényi curve among them must not fall with
    the order, as divergences do not, nor be above what another one says.

    Raises:
        ValueError: fewer than two losses or more than eight, of other kinds than bounds of one run,
            a bounded range that is not the first, or a curve that contradicts them.
        AdjacencyError: of different relations.
    """

    kind = "least"
    losses: tuple[Loss, ...]

    def __init__(self, losses: Iterable[Loss]):
        listed = tuple(losses)
        if not 2 <= len(listed) <= _MOST:
            raise ValueError(f"losses = {len(listed)} of them: must be 2 to {_MOST}")
        for loss in listed:
            of_relation(listed[0].adjacency, loss)
            if type(loss) not in BOUNDS:
                known = ", ".join(kind.kind for kind in BOUNDS)
                raise ValueError(
                    f"a {loss.kind} loss as a bound of one run: must be one of {known}"
                )
        if any(isinstance(loss, BoundedRangeLoss) for loss in listed[1:]):
            raise ValueError("a bounded range beside other bounds: must stand first")
        curves = [loss for loss in listed if isinstance(loss, RenyiCurve)]
        if len(curves) > 1 or any(len(curve.points) > _MOST_ORDERS for curve in curves):
            raise ValueError(
                f"{len(curves)} Rényi curves beside other bounds: must be at most one, of at most "
                f"{_MOST_ORDERS} orders"
            )
        self._set(losses=listed)
        for curve in curves:
            check_coherent(curve, [other for other in listed if other is not curve])

    @property
    def adjacency(self) -> Adjacency:
        return self.losses[0].adjacency

    def renyi(self, order: float) -> float:
        return min(loss.renyi(order) for loss in self.losses)

    def _gathered(self, value: Callable[[Loss], Fraction | None]) -> Fraction | None:
        known = [number for number in map(value, self.losses) if number is not None]
        return min(known, default=None)

    def step(self) -> Step:
        first = self.losses[0].step()
        return CurveStep(self.renyi) if isinstance(first, CurveStep) else first

    def doubled(self) -> Loss:
        return self._each(lambda loss: loss.doubled())

    def several(self, visits: int, apart: int) -> Loss:
        return self._each(lambda loss: loss.for_visits(visits, apart))

    def noisier(self, factor: Fraction) -> Loss:
        """Refused where one of the bounds states no noise, such as a curve."""
        return least([loss.noisier(factor) for loss in self.losses])

    def _each(self, change: Callable[[Loss], Loss]) -> Loss:
        """The least of those bounds for which a proof is known."""
        found: list[Loss] = []
        refused: Exception | None = None
        for loss in self.losses:
            try:
                found.append(change(loss))
            except (ValueError, AdjacencyError) as error:
                refused = refused or error
        if refused is not None and not found:
            raise refused
        return least(found)

    def numbers(self) -> dict[str, Any]:
        return {"losses": [loss.to_dict() for loss in self.losses]}

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> LeastLoss:
        listed = data["losses"]
        if not all(isinstance(each, dict) for each in listed):
            raise ValueError(f"least loss: losses = {listed!r:.80}: must be a list of objects")
        return of_relation(adjacency, cls(map(loss_from_dict, listed)))

    @classmethod
    def json_form(cls) -> Form:
        return {"losses": LIST}


def least(losses: Sequence[Loss]) -> Loss:
    """The least of several bounds of one run; the only one itself.

    Curves are made to agree with the others: their bounds do not fall, nor exceed another's.

    Raises:
        ValueError: as `LeastLoss`.
    """
    distinct = list(dict.fromkeys(losses))
    agreed = [
        _agreeing(loss, [other for other in distinct if other is not loss])
        if isinstance(loss, RenyiCurve)
        else loss
        for loss in distinct
    ]
    return agreed[0] if len(agreed) == 1 else LeastLoss(agreed)


def check_coherent(curve: RenyiCurve, others: Sequence[Loss]) -> None:
    """Raises ValueError for a curve that falls, or says more than another bound allows."""
    before = Fraction(0)
    for order, bound in curve.points:
        if bound < before:
            raise ValueError(
                f"curve: {exact_text(bound)} at order {exact_text(order)}, and more at a smaller "
                "one: divergences do not fall with the order"
            )
        before, at, most = bound, float_up(order), float_up(bound)
        for other in others:
            allowed = other.renyi(at)
            if most > _SLACK * allowed:
                raise ValueError(
                    f"curve: {exact_text(bound)} at order {exact_text(order)}, where the "
                    f"{other.kind} loss beside it allows {allowed!r}: they contradict each other"
                )


def _agreeing(curve: RenyiCurve, others: Sequence[Loss]) -> RenyiCurve:
    points: dict[Exact, Exact] = {}
    before = Fraction(0)
    for order, bound in curve.points:
        allowed = min((other.renyi(float_up(order)) for other in others), default=math.inf)
        if allowed < math.inf and bound > Fraction(allowed):
            bound = round_up(Fraction(allowed), _DIGITS)
        before = points[order] = max(before, bound)
    return RenyiCurve(points, adjacency=curve.adjacency)
