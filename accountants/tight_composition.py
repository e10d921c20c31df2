"""From losses to a tight composition: in which order, and when it is worth the time.

`epsilon` and `delta` answer with a proved bound, or with None where there is nothing to gain: no
loss has a step of its own (only curves are known, or all mass is Gaussian), or the task is too
large for the ``effort``.  The engine is imported when it is first needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from privlearn.losses import ComposedLoss, Loss, is_bounded_range, parts_of, without_visits
from privlearn.losses.conversion import RoundedNumber
from privlearn.losses.steps import (
    BoundedRangeStep,
    CurveStep,
    GaussianStep,
    Order,
    Step,
    check_step,
)

if TYPE_CHECKING:
    from privlearn.accountants.composition import Composition

LossParts = tuple[tuple[Loss, int], ...]

THOROUGH = 1.2e7
"""Effort for a question that somebody asks: seconds."""
QUICK = 1e6
"""Effort for certificates, which are asked for often: about half a second."""

_LARGEST_EPSILON = 500.0  # Of a backward recursion
_LEAST_DELTA = 1e-46  # What a lattice with the finest resolution adds to every answer, about
_MOST_RANGED = 20_000
_MOST_DISTINCT = 1000
_MOST_LISTED = 10_000
_SAMPLED_COST = 25  # What has no largest loss takes about as long as so many other steps


def in_order(parts: Sequence[tuple[Loss, int]], order: Order) -> tuple[LossParts, Order]:
    """Losses without compositions among them, and the order that may be used for them.

    The order of the parts of one run is not recorded.  Dominating pairs placed first are worst
    (``docs/proofs.md#composition``, 5), so they are listed first in every run; a run with several
    sizes of bounded range leaves no order to rely on.
    """
    parts = [(without_visits(loss), count) for loss, count in parts]
    if order == "any":
        merged: dict[Loss, int] = {}
        for loss, count in parts:
            for part, n in parts_of(loss):
                merged[part] = merged.get(part, 0) + n * count
        return tuple(merged.items()), "any"
    listed: list[tuple[Loss, int]] = []
    for loss, count in parts:
        if not isinstance(loss, ComposedLoss):
            listed.append((loss, count))
            continue
        ranged = [part for part in loss.parts if is_bounded_range(part[0])]
        if len(ranged) > 1:
            return in_order(parts, "any")
        others = [part for part in loss.parts if not is_bounded_range(part[0])]
        rounds = count if ranged and len(loss.parts) * count <= _MOST_LISTED else 1
        listed += [(part, n * (count // rounds)) for part, n in [*others, *ranged]] * rounds
    return tuple(listed), "listed"


def step_of(loss: Loss) -> Step:
    """The step that dominates ``loss``; its Rényi curve where a number is out of range for that."""
    step = loss.step()
    try:
        check_step(step, 1)
    except ValueError:
        return CurveStep(loss.renyi)
    return step


def steps_of(parts: LossParts) -> list[tuple[Step, int]]:
    """Every loss as a step, in order."""
    ranged = sum(count for loss, count in parts if is_bounded_range(loss))
    steps: list[tuple[Step, int]] = []
    for loss, count in parts:
        many = is_bounded_range(loss) and ranged > _MOST_RANGED
        steps.append((CurveStep(loss.renyi) if many else step_of(loss), count))
    return steps


def _worth(steps: Sequence[tuple[Step, int]], effort: float) -> bool:
    known = {step for step, _ in steps if not isinstance(step, GaussianStep | CurveStep)}
    sampled = sum(step.largest() == math.inf for step in known)
    most = _MOST_DISTINCT * max(effort / QUICK, 1)
    return len(known) > 0 and len(known) + _SAMPLED_COST * sampled <= most


@lru_cache(maxsize=64)
def _steps(parts: LossParts, effort: float) -> tuple[tuple[Step, int], ...] | None:
    steps = steps_of(parts)
    return tuple(steps) if _worth(steps, effort) else None


@lru_cache(maxsize=64)
def _composition(
    steps: tuple[tuple[Step, int], ...], order: Order, resolution: float, effort: float
) -> Composition | None:
    from privlearn.accountants.composition import Composition
    from privlearn.accountants.step_curves import StepCurve

    known = [part for part in steps if not isinstance(part[0], CurveStep)]
    ranged = any(isinstance(step, BoundedRangeStep) for step, _ in known)
    if ranged and StepCurve(known).epsilon(resolution) > _LARGEST_EPSILON:
        return None
    return Composition(steps, delta=resolution, order=order, effort=effort)


def epsilon(parts: LossParts, order: Order, delta: float, effort: float) -> RoundedNumber | None:
    """ε at ``delta``, or None."""
    steps = _steps(parts, effort) if delta >= _LEAST_DELTA else None
    if steps is None:
        return None
    found = _composition(steps, order, _resolution(delta), effort)
    return None if found is None else found.epsilon(delta)


def delta(parts: LossParts, order: Order, epsilon: float, effort: float) -> RoundedNumber | None:
    """δ at ``epsilon``, or None."""
    steps = _steps(parts, effort)
    if steps is None:
        return None
    from privlearn.accountants.step_curves import StepCurve

    rough = StepCurve(steps).delta(epsilon)
    if rough < _LEAST_DELTA:
        return None
    found = _composition(steps, order, _resolution(max(rough / 10, 1e-40)), effort)
    return None if found is None else found.delta(epsilon)


def _resolution(delta: float) -> float:
    """A power of a thousand at most δ, so that neighbouring questions share one composition."""
    return min(max(1000.0 ** math.floor(math.log(delta, 1000) + 1e-9), 1e-40), 1e-3)
