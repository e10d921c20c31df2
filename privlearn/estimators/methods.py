"""The learners behind ``method=``, in one form: inputs without a constant, and an intercept.

``auto``        `WhitenedDescent`: one noisy Σxxᵀ, then clipped descent in coordinates that it makes
                white.
``descent``     `NoisySGD`: clipped descent over the whole data in the coordinates as they are.
``one-pass``    `DPTOFW` in whitened coordinates: each record is read in one epoch.
``objective``   `ObjectivePerturbation`: the minimiser of a tilted objective, in one release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, final

import numpy as np

from privlearn.contract.protocols import Plan
from privlearn.learners.noisy_sgd import NoisySGD
from privlearn.learners.tofw import DPTOFW
from privlearn.learners.whitened_descent import WhitenedDescent
from privlearn.losses.budgets import Currency, GaussianDP, Renyi
from privlearn.mechanisms import ObjectivePerturbation
from privlearn.mechanisms.linear_models import LinearObjective
from privlearn.mechanisms.scalar_objectives import HuberObjective, LogisticObjective
from privlearn.rows import Rows
from privlearn.rows.domains import Array

Loss = Literal["squared", "logistic", "softmax"]

CONSTANT: Final = 0.5
"""The last input of the learners that have no intercept of their own."""
_RADIUS: Final = {"squared": 2.0, "logistic": 5.0}


class Task(NamedTuple):
    """What is to be learned; all of it is public."""

    loss: Loss
    dim: int
    """Inputs, without a constant."""
    classes: int
    row_norm: float
    """Bound on ‖x‖₂."""
    rows_per_person: int = 1
    """Usual; of use where the rows of a person are one."""

    @property
    def longest(self) -> float:
        """The largest norm of (x, constant) with entries in [−1, 1]."""
        return math.hypot(math.sqrt(self.dim), CONSTANT)

    @property
    def bound(self) -> float:
        """Bound on ‖(x, constant)‖₂."""
        return math.hypot(self.row_norm, CONSTANT)


class Fitter(Protocol):
    """Is started with one accountant, is handed its users, and then has what was learned."""

    def start(self, accountant: Any) -> Any:
        """Commits all that will be spent."""

    def partial_fit(self, x: Array, y: Array, *, people: Any = None) -> Any:
        """The next users: inputs (n, dim) and targets (n,); NaN rows are null."""

    def skip(self, n: int) -> Any:
        """Users who never come."""

    @property
    def coef_(self) -> Array:
        """Shape (dim,), or (classes, dim)."""

    @property
    def intercept_(self) -> Any:
        """A number, or shape (classes,)."""

    @property
    def noise_std_(self) -> Array | None:
        """Public standard deviation of the noise of each coefficient; None if none is known."""


@final
class WithConstant:
    """A learner of dim + 1 coefficients whose last input is a constant.

    Args:
        learner: with ``start``, ``partial_fit``, ``skip`` and ``coef_``.
    """

    def __init__(self, learner: Any) -> None:
        self._learner = learner

    def start(self, accountant: Any) -> None:
        self._learner.start(accountant)

    def partial_fit(self, x: Array, y: Array, *, people: Any = None) -> None:
        rows = np.concatenate([x, np.full((len(x), 1), CONSTANT)], axis=1)
        if people is None:
            self._learner.partial_fit(rows, y)
        else:
            self._learner.partial_fit(rows, y, people=people)

    def skip(self, n: int) -> None:
        self._learner.skip(n)

    @property
    def coef_(self) -> Array:
        coef: Array = self._learner.coef_[:-1]
        return coef

    @property
    def intercept_(self) -> float:
        return float(self._learner.coef_[-1]) * CONSTANT

    @property
    def noise_std_(self) -> None:
        """Unknown."""


@final
class PerturbedObjective:
    """One fit by objective perturbation, in the form of a learner.

    The squared loss is Huber's with a slope of at most 1, which is the squared loss wherever the
    residual is within half of the target's range; the price needs a bounded slope.
    """

    _LABEL: Final = "fit"

    def __init__(self, task: Task) -> None:
        scalar = HuberObjective() if task.loss == "squared" else LogisticObjective()
        self._objective = LinearObjective(scalar, task.dim + 1, task.bound)
        self._radius = _RADIUS[task.loss]
        self._parts: list[Rows[tuple[Array, Array]]] = []
        self._theta = np.zeros(task.dim + 1)

    def start(self, accountant: Any) -> None:
        if accountant.people is not None:
            raise ValueError(
                "method = 'objective' has no price for a person with several rows; use 'auto' or "
                "'one-pass' with people="
            )
        self._accountant, users = accountant, accountant.users
        self._mechanism = ObjectivePerturbation.calibrated(
            self._objective,
            accountant.budget,
            max_rows=len(users),
            theta_norm=self._radius,
            adjacency=accountant.adjacency,
        )
        accountant.commit([Plan(self._LABEL, self._mechanism.loss(), users)])

    def partial_fit(self, x: Array, y: Array, *, people: Any = None) -> None:
        rows = np.concatenate([x, np.full((len(x), 1), CONSTANT)], axis=1)
        self._take(Rows.seal((rows, y), users=self._next(len(y))))

    def skip(self, n: int) -> None:
        self._take(Rows.null(self._next(n)))

    def _next(self, n: int) -> range:
        start = self._parts[-1].users.stop if self._parts else self._accountant.users.start
        return range(start, start + n)

    def _take(self, rows: Rows[tuple[Array, Array]]) -> None:
        self._parts.append(rows)
        users = self._accountant.users
        if rows.users.stop < users.stop:
            return
        mechanism, everybody = self._mechanism, Rows.concat(self._parts)
        token = self._accountant.issue(mechanism.loss(), users=users, label=self._LABEL)
        self._theta = mechanism.release(everybody, token).value

    @property
    def coef_(self) -> Array:
        return self._theta[:-1]

    @property
    def intercept_(self) -> float:
        return float(self._theta[-1]) * CONSTANT

    @property
    def noise_std_(self) -> None:
        """Unknown: it depends on the curvature, which was not released."""


@dataclass(frozen=True)
class Method:
    """How a method is made, and what its account counts in."""

    make: Callable[[Task], Fitter]
    currency: type[Currency]
    losses: tuple[Loss, ...] = ("squared", "logistic")
    reads_once: bool = False
    """Whether a row is read in one epoch only, so that the order of rows matters."""


def _whitened(task: Task) -> Fitter:
    classes = max(task.classes, 2)
    return WhitenedDescent(
        task.dim,
        task.loss,
        row_norm=task.row_norm,
        classes=classes,
        rows_per_person=task.rows_per_person,
    )


def _descent(task: Task) -> Fitter:
    return WithConstant(
        NoisySGD(task.dim + 1, loss=task.loss, radius=_RADIUS[task.loss], feature_bound=task.bound)
    )


def _one_pass(task: Task) -> Fitter:
    return WithConstant(
        DPTOFW(
            task.dim + 1,
            loss=task.loss,
            radius=_RADIUS[task.loss],
            feature_bound=task.longest,
            usual_norm=min(task.bound, task.longest),
            method="whitened",
            constant=CONSTANT,
        )
    )


METHODS: Final[Mapping[str, Method]] = {
    "auto": Method(_whitened, GaussianDP, ("squared", "logistic", "softmax")),
    "descent": Method(_descent, GaussianDP),
    "one-pass": Method(_one_pass, GaussianDP, reads_once=True),
    "objective": Method(PerturbedObjective, Renyi),
}


def method_named(name: object, loss: Loss) -> Method:
    """The method of that name, for a loss.

    Raises:
        ValueError: there is none, or it does not take the loss.
    """
    found = METHODS.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"method = {name!r}: must be one of {', '.join(map(repr, METHODS))}")
    if loss not in found.losses:
        able = " or ".join(repr(other) for other, each in METHODS.items() if loss in each.losses)
        raise ValueError(f"method = {name!r}: takes two classes; more classes take {able}")
    return found
