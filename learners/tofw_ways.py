"""What all ways of DP-TOFW share: their public units, and what the learner asks of a way."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from privlearn.learners.streaming import Example, typical_length
from privlearn.mechanisms.scalar_objectives import ScalarObjective
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows

if TYPE_CHECKING:
    from privlearn.learners.tofw import DPTOFW


class Scale(NamedTuple):
    """Public constants that give the rules their units."""

    dim: int
    length: float
    """Typical ‖x‖₂ within the feature bound."""
    unit: float
    """The largest score that is thought likely."""
    curvature: float
    """Of the loss, in the score."""
    floor: float
    """Residuals that do not get smaller while learning: the slope, if it is bounded, else 0."""

    def clip(self, level: float) -> float:
        """The ℓ2 clip at a level of residuals, as a part of the unit."""
        return self.length * max(level * self.unit * self.curvature, self.floor)

    @property
    def newton(self) -> float:
        """Step per gradient if features had no preferred direction."""
        return self.dim / (self.length**2 * self.curvature)


def scale_of(
    loss: ScalarObjective, *, dim: int, q: float, feature_bound: float, reach: float
) -> Scale:
    """Units of the rules from public constants; ``reach`` is half of the set's radius."""
    unit = loss.unit
    return Scale(
        dim=dim,
        length=typical_length(dim, q) * float(feature_bound),
        unit=unit if unit is not None else max(reach, 1e-9) * float(feature_bound),
        curvature=loss.curvature,
        floor=loss.slope if math.isfinite(loss.slope) else 0.0,
    )


class Way(ABC):
    """One way of using the sums; it owns the mechanisms of a started learner."""

    def __init__(self, learner: DPTOFW, accountant: Accountant[Any]) -> None:
        self._learner, self._accountant, self._set = learner, accountant, learner._set
        self._scale, self._mu, self._users = learner._scale, learner._mu, accountant.users

    @abstractmethod
    def plan(self) -> list[Plan]: ...

    @abstractmethod
    def next_change(self) -> int: ...

    @abstractmethod
    def take(self, rows: Rows[Example]) -> None: ...

    def close(self) -> None:
        """Nothing is open between the calls, unless a subclass says so."""
        return
