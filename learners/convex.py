"""What the learners on convex sets share: public units, epochs of users, and strategies.

A learner keeps θ in a set.  How it spends its budget and moves θ is a `Strategy`, of which a
learner may offer several.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.participation import rule_of
from privlearn.learners.streaming import Example, StreamLearner, typical_length
from privlearn.learners.successive_streams import SuccessiveStreams
from privlearn.mechanisms.constraint_sets import (
    ConstraintSet,
    checked_member,
    dual_exponent,
    exponent,
)
from privlearn.mechanisms.scalar_objectives import ScalarObjective
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.pooling import mean_of_visits
from privlearn.values.participation import Participation
from privlearn.values.validate import count, positive

T = TypeVar("T")

TINY = 1e-300
"""Added to squares that are divided by."""


class ProblemScale(NamedTuple):
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
) -> ProblemScale:
    """Units of the rules from public constants; ``reach`` is half of the set's radius."""
    unit = loss.unit
    return ProblemScale(
        dim=dim,
        length=typical_length(dim, q) * float(feature_bound),
        unit=unit if unit is not None else max(reach, 1e-9) * float(feature_bound),
        curvature=loss.curvature,
        floor=loss.slope if math.isfinite(loss.slope) else 0.0,
    )


class SealedEpochs(Generic[T]):
    """Public groups of consecutive users, whose rows are kept, sealed, until the group is full.

    Args:
        users: of all groups.
        sizes: of the groups, each at least 1.
    """

    def __init__(self, users: range, sizes: Iterable[int]) -> None:
        bounds = accumulate(sizes, initial=users.start)
        self.all = [range(a, b) for a, b in pairwise(bounds)]
        self.number = 0
        """Of the open group."""
        self._pending: list[Rows[T]] = []

    @property
    def stop(self) -> int:
        """One past the last user of the open group, or of all."""
        return self.all[min(self.number, len(self.all) - 1)].stop

    def add(self, rows: Rows[T]) -> Rows[T] | None:
        """All rows of the group, once it is full; the next one is then open."""
        self._pending.append(rows)
        if rows.users.stop < self.stop:
            return None
        kept, self._pending = Rows.concat(self._pending), []
        self.number += 1
        return kept

    def let_go(self) -> None:
        self._pending = [rows.without_forgotten() for rows in self._pending]


class ConvexLearner(StreamLearner):
    """A learner from (x, y) whose θ stays in a convex set."""

    _set: ConstraintSet
    _scale: ProblemScale

    def _start_in(self, inside: ConstraintSet, initial: ArrayLike | None) -> None:
        """Puts θ at a member of the set, by default the one nearest to 0."""
        self._set = inside
        if initial is not None:
            self._theta = checked_member(initial, inside).copy()
            return

        def nearest() -> Array | None:
            found = np.asarray(inside.pull(np.zeros(self._dim)))
            return found if found.any() else None

        start = self._fixed("initial", nearest)
        self._theta = np.zeros(self._dim) if start is None else start

    def _scaled(self, make: Callable[[], ProblemScale]) -> None:
        self._scale = ProblemScale(*self._fixed("scale", make))


@dataclass(eq=False, repr=False)
class LpLearner(ConvexLearner):
    """A convex learner with ‖x‖_q bounded, 1/p + 1/q = 1; its set is mostly an ℓp ball."""

    dim: int
    _: KW_ONLY
    p: float = 2.0
    radius: float = 2.0
    loss: str | ScalarObjective = "squared"
    feature_bound: float = 1.0
    label_bound: float = 1.0

    @property
    def _dim(self) -> int:
        return self.dim

    @property
    def _feature_norm(self) -> float:
        return dual_exponent(float(self.p))

    def _check_params(self) -> None:
        count(dim=self.dim)
        exponent(p=self.p)
        positive(radius=self.radius)


class Strategy(ABC):
    """One way of learning; it owns the mechanisms of a started learner, and moves its θ."""

    def __init__(self, learner: ConvexLearner, accountant: Accountant[Any]) -> None:
        self._learner, self._accountant, self._set = learner, accountant, learner._set
        self._scale, self._users = learner._scale, accountant.users
        self._rule = rule_of(accountant)
        self._fixed = learner._fixed

    @abstractmethod
    def plan(self) -> list[Plan]:
        """All that will be spent."""

    @abstractmethod
    def next_change(self) -> int:
        """As `StreamLearner._next_change`."""

    @abstractmethod
    def take(self, rows: Rows[Example]) -> None:
        """As `StreamLearner._take`."""

    @abstractmethod
    def batches(self) -> Sequence[int]:
        """As `StreamLearner._rule_batches`."""

    def needed_from(self, clock: int) -> int:
        starts = self.batches()
        return clock if clock in starts else max(start for start in starts if start <= clock)

    @abstractmethod
    def let_go(self) -> None:
        """Drops the data of persons who were forgotten from the rows that are kept."""

    def streams(self) -> Sequence[SuccessiveStreams[Any]]:
        """What may be open between the calls."""
        return ()

    @property
    def was_closed(self) -> bool:
        """After a replay: whether an earlier process closed what was open."""
        return any(stream.was_closed for stream in self.streams())

    def close(self) -> None:
        """Ends what is open, as released."""
        for stream in self.streams():
            stream.close()

    def _of_persons(self, rows: Rows[Array]) -> Rows[Array]:
        """Under a pooled rule the mean of each person's rows in a batch, else the rows."""
        if self._rule is None or not self._rule.pooled:
            return rows
        return rows.pool(mean_of_visits)

    @property
    def _together(self) -> int:
        return 1 if self._rule is None else self._rule.visits(len(self._users))

    @property
    def _mu(self) -> float:
        return math.sqrt(self._accountant.budget.gaussian_mass()) / self._together


class StrategyLearner(ConvexLearner):
    """A convex learner that leaves it to a strategy when θ moves and how."""

    _strategy: Strategy

    def _check_rule(self, rule: Participation) -> None:
        """Each strategy says by itself what it has no price for."""

    @property
    def _rule_batches(self) -> Sequence[int]:
        return self._strategy.batches()

    def _plan(self) -> list[Plan]:
        return self._strategy.plan()

    def _next_change(self) -> int:
        return self._strategy.next_change()

    def _take(self, rows: Rows[Example]) -> None:
        self._strategy.take(rows)

    def _needed_from(self) -> int:
        return self._strategy.needed_from(self.clock_)

    def forget(self, person: Any) -> None:
        super().forget(person)
        self._strategy.let_go()
