"""Convex objectives of a score u and a label: squared, logistic, Poisson, Huber, and your own.

Learners take derivatives in the score u = x·θ only; fits by objective perturbation
(`linear_models.LinearObjective`) values and second derivatives, too.  Labels are clipped into their
public range (or refused, where there is nothing to clip); what is no label becomes NaN, and with it
that record null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np

from privlearn.rows.domains import Array, Bound
from privlearn.rows.domains.clipping import bound
from privlearn.values.validate import Checked, Positive, check_fields, count, finite, positive

_SLACK = 1e-6  # Relative slack of the checks on random points


@runtime_checkable
class ScalarObjective(Protocol):
    """A convex function of a score; structural."""

    @property
    def curvature(self) -> float:
        """Bound on the second derivative in the score."""

    @property
    def slope(self) -> float:
        """Bound on the derivative's absolute value; inf if there is none."""

    @property
    def unit(self) -> float | None:
        """Public guess of the largest score, where labels tell it; else None."""

    def derivative(self, score: Array, label: Array, /) -> Array:
        """φ'(score; label), shape (n,), entry by entry."""

    def labels(self, values: Array, /) -> Array:
        """Labels clipped into their range, NaN where that is not possible; shape (n,)."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


class SmoothObjective(ScalarObjective, Protocol):
    """One with |φ'| bounded, and with all that a fit by objective perturbation needs."""

    kind: ClassVar[str]

    @property
    def label_range(self) -> tuple[float, float]:
        """The least and the largest label; others are clipped."""

    @property
    def depth(self) -> float:
        """Bound on φ(0; y) − inf φ(·; y)."""

    def value(self, score: Array, label: Array, /) -> Array:
        """φ(score; label), shape (n,)."""

    def second(self, score: Array, label: Array, /) -> Array:
        """φ''(score; label), shape (n,); where there is a kink, that of one side."""


@final
@dataclass(frozen=True, slots=True)
class SquaredObjective(Checked):
    """(u − y)²/2 with labels clipped into [−label_bound, label_bound]."""

    kind: ClassVar[str] = "squared"
    curvature: ClassVar[float] = 1.0
    slope: ClassVar[float] = math.inf
    label_bound: Bound = 1.0

    @property
    def unit(self) -> float:
        return self.label_bound

    def derivative(self, score: Array, label: Array, /) -> Array:
        return score - label

    def labels(self, values: Array, /) -> Array:
        return _clamped(values, -self.label_bound, self.label_bound)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "label_bound": self.label_bound}


@final
@dataclass(frozen=True, slots=True)
class LogisticObjective:
    """log(1 + e^u) − y·u with labels 0 and 1 (−1 counts as 0); learners take no others.

    φ' = σ(u) − y lies in [−1, 1] for labels in [0, 1] and φ'' = σ(u)σ(−u) in [0, 1/4].
    """

    kind: ClassVar[str] = "logistic"
    curvature: ClassVar[float] = 0.25
    slope: ClassVar[float] = 1.0
    unit: ClassVar[None] = None
    label_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    depth: ClassVar[float] = math.log(2)

    def derivative(self, score: Array, label: Array, /) -> Array:
        return _sigmoid(score) - label

    def labels(self, values: Array, /) -> Array:
        known = (values == 1) | (values == 0) | (values == -1)
        return np.where(known, np.maximum(values, 0.0), np.nan)

    def value(self, score: Array, label: Array, /) -> Array:
        return np.asarray(np.logaddexp(0.0, score) - label * score)

    def second(self, score: Array, label: Array, /) -> Array:
        return _sigmoid(score) * _sigmoid(-score)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


def _sigmoid(score: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(score))


@final
@dataclass(frozen=True, slots=True)
class PoissonObjective(Checked):
    """φ₀(u) − y·u for counts y in [0, max_rate] and rates up to ``max_rate``.

    φ₀(u) = e^u below u = log(max_rate) and goes on along its tangent: convex, C^{1,1}, with
    φ₀' = φ₀'' = min(e^u, max_rate), so |φ'| <= max_rate and φ'' <= max_rate.

    Args:
        max_rate: largest rate (events per record), and the bound that counts are clipped to.
    """

    kind: ClassVar[str] = "poisson"
    unit: ClassVar[None] = None
    max_rate: Positive

    @property
    def curvature(self) -> float:
        return self.max_rate

    @property
    def slope(self) -> float:
        return self.max_rate

    def derivative(self, score: Array, label: Array, /) -> Array:
        return self._rate(score) - label

    def labels(self, values: Array, /) -> Array:
        return _clamped(values, 0.0, self.max_rate)

    @property
    def label_range(self) -> tuple[float, float]:
        return 0.0, self.max_rate

    @property
    def depth(self) -> float:
        """φ(0) − y + y·log y, convex in y, is largest at 0 or ``max_rate``."""
        most = self.max_rate
        start = 1.0 if most >= 1 else most * (1 - math.log(most))
        return start + max(0.0, most * math.log(most) - most)

    def value(self, score: Array, label: Array, /) -> Array:
        beyond = np.maximum(score - math.log(self.max_rate), 0.0)
        return np.asarray(self._rate(score) * (1 + beyond) - label * score)

    def second(self, score: Array, label: Array, /) -> Array:
        return np.where(score > math.log(self.max_rate), 0.0, self._rate(score))

    def _rate(self, score: Array) -> Array:
        return np.asarray(np.exp(np.minimum(score, math.log(self.max_rate))))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "max_rate": self.max_rate}


@final
@dataclass(frozen=True, slots=True)
class HuberObjective(Checked):
    """Huber's function of the residual y − u: quadratic up to ``threshold``, linear beyond.

    |φ'| <= threshold and φ'' is 0 or 1; C^{1,1}.

    Args:
        threshold: largest slope, unit of y.
        label_bound: y is clipped to [−label_bound, label_bound].
    """

    kind: ClassVar[str] = "huber"
    curvature: ClassVar[float] = 1.0
    threshold: Positive = 1.0
    label_bound: Positive = 1.0

    @property
    def slope(self) -> float:
        return self.threshold

    @property
    def unit(self) -> float:
        return self.label_bound

    def derivative(self, score: Array, label: Array, /) -> Array:
        return np.clip(score - label, -self.threshold, self.threshold)

    def labels(self, values: Array, /) -> Array:
        return _clamped(values, -self.label_bound, self.label_bound)

    @property
    def label_range(self) -> tuple[float, float]:
        return -self.label_bound, self.label_bound

    @property
    def depth(self) -> float:
        """The largest value at u = 0; none is negative."""
        reach = min(self.label_bound, self.threshold)
        return reach * (self.label_bound - reach / 2)

    def value(self, score: Array, label: Array, /) -> Array:
        size = np.abs(label - score)
        c = self.threshold
        return np.where(size <= c, size**2 / 2, c * (size - c / 2))

    def second(self, score: Array, label: Array, /) -> Array:
        return np.where(np.abs(score - label) <= self.threshold, 1.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "threshold": self.threshold, "label_bound": self.label_bound}


@final
@dataclass(frozen=True, slots=True)
class CustomObjective:
    """A convex function by its derivative; its stated constants are tried out on random points.

    Utility rests on the constants; privacy does not, as increments are clipped as a whole and the
    derivative is asked about one record at a time (`OneAtATime`).

    Args:
        function: φ'(score, label) of arrays of shape (n,), entry by entry.
        curvature: bound on φ''.
        slope: bound on |φ'|.
        label_low, label_high: the range of labels; they are clipped into it.
        largest_score: constants are checked for scores up to here in absolute value.
    """

    kind: ClassVar[str] = "custom"
    unit: ClassVar[None] = None
    function: Callable[[Array, Array], Array]
    curvature: Bound
    slope: Bound
    label_low: float = -1.0
    label_high: float = 1.0
    largest_score: float = 10.0
    points: int = 4096

    def __post_init__(self) -> None:
        check_fields(self)
        low, high = finite(label_low=self.label_low), finite(label_high=self.label_high)
        if low > high:
            raise ValueError(f"label_low = {low!r}, label_high = {high!r}: in this order")
        positive(largest_score=self.largest_score)
        count(points=self.points)
        try_out(self, self.label_low, self.label_high, self.largest_score, self.points)

    def derivative(self, score: Array, label: Array, /) -> Array:
        return np.asarray(self.function(score, label), dtype=np.float64)

    def labels(self, values: Array, /) -> Array:
        return _clamped(values, self.label_low, self.label_high)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "function": getattr(self.function, "__qualname__", type(self.function).__name__),
            "curvature": self.curvature,
            "slope": self.slope,
            "label_low": self.label_low,
            "label_high": self.label_high,
        }


def try_out(
    objective: ScalarObjective,
    low: float,
    high: float,
    largest_score: float = 10.0,
    points: int = 4096,
) -> None:
    """Tries what an objective states on random scores and labels in [low, high].

    Raises:
        ValueError: it is broken on one of them.
    """
    rng = np.random.default_rng(0)
    score = rng.uniform(-largest_score, largest_score, points)
    higher = score + largest_score * 10.0 ** rng.uniform(-4, 0, points)
    higher = np.minimum(higher, largest_score)
    gap = higher - score
    label = rng.uniform(low, high, points)
    label[: points // 4], label[-(points // 4) :] = low, high
    rng.shuffle(label)
    label = np.asarray(objective.labels(label), dtype=np.float64)
    known = np.isfinite(label)
    score, higher, gap, label = score[known], higher[known], gap[known], label[known]
    if not known.any():
        raise ValueError(f"labels: takes none of {points} numbers in [{low:g}, {high:g}]")
    here, there = objective.derivative(score, label), objective.derivative(higher, label)
    if here.shape != score.shape:
        raise ValueError(f"function: returns shape {here.shape} for {score.shape}")
    if not (np.isfinite(here).all() and np.isfinite(there).all()):
        raise ValueError("function: is not finite everywhere on its range")
    _check_entries(objective, score, label, here)
    steepest = max(float(np.abs(here).max()), float(np.abs(there).max()))
    if steepest > objective.slope * (1 + _SLACK):
        raise ValueError(f"slope = {objective.slope!r}: |φ'| reaches {steepest:g}")
    rise, rounding = there - here, 1e-12 * steepest
    if (rise < -rounding).any():
        raise ValueError("function: decreases somewhere, so the objective is not convex")
    if (rise > objective.curvature * gap * (1 + _SLACK) + rounding).any():
        most = float((rise[gap > 0] / gap[gap > 0]).max())
        raise ValueError(f"curvature = {objective.curvature!r}: φ'' reaches about {most:g}")


def _check_entries(objective: ScalarObjective, score: Array, label: Array, whole: Array) -> None:
    """Each entry by itself, and all in another order, must give the same."""
    few = range(0, len(score), max(len(score) // 32, 1))
    alone = np.array([objective.derivative(score[i : i + 1], label[i : i + 1]).item() for i in few])
    turned = objective.derivative(score[::-1], label[::-1])[::-1]
    allowed = 1e-9 * (1 + np.abs(whole))
    if (np.abs(alone - whole[list(few)]) > allowed[list(few)]).any() or (
        np.abs(turned - whole) > allowed
    ).any():
        raise ValueError("function: must act entry by entry")


@final
@dataclass(frozen=True, slots=True)
class OneAtATime:
    """Somebody's objective, asked about one record at a time: none can see another through it.

    That it remembers nothing from call to call is spot-checked where rows pass through it.
    """

    inner: ScalarObjective

    @property
    def curvature(self) -> float:
        return self.inner.curvature

    @property
    def slope(self) -> float:
        return self.inner.slope

    @property
    def unit(self) -> float | None:
        return self.inner.unit

    def derivative(self, score: Array, label: Array, /) -> Array:
        pairs = zip(score[:, None], label[:, None], strict=True)
        return np.array([float(np.asarray(self.inner.derivative(u, y)).item()) for u, y in pairs])

    def labels(self, values: Array, /) -> Array:
        if isinstance(self.inner, CustomObjective):  # no code of theirs: entries are clamped here
            return self.inner.labels(values)
        flat = np.asarray(values, dtype=np.float64).ravel()
        found = [float(np.asarray(self.inner.labels(y)).item()) for y in flat[:, None]]
        return np.array(found).reshape(np.shape(values))

    def to_dict(self) -> dict[str, Any]:
        return self.inner.to_dict()


def code_of(objective: ScalarObjective) -> object:
    """What computes an objective: for one of the user's own, the user's code."""
    inner = objective.inner if isinstance(objective, OneAtATime) else objective
    return inner.function if isinstance(inner, CustomObjective) else inner


def _clamped(values: Array, low: float, high: float) -> Array:
    """Numbers moved into [low, high]; infinities and NaN become NaN, as ∞ − ∞ does."""
    return np.asarray(np.minimum(np.maximum(values, low), high) + (values - values))


_SHIPPED = (SquaredObjective, LogisticObjective, PoissonObjective, HuberObjective)


_WANTED = "must be 'squared', 'logistic' or a ScalarObjective"


def named_objective(objective: str | ScalarObjective, label_bound: float) -> ScalarObjective:
    """An objective by its name, or as it is.

    Raises:
        ValueError: an unknown name, or one that breaks what it states.
        TypeError: no objective.
    """
    if objective == "squared":
        return SquaredObjective(label_bound)
    if objective == "logistic":
        return LogisticObjective()
    if isinstance(objective, str):
        raise ValueError(f"loss = {objective!r}: {_WANTED}")
    if not isinstance(objective, ScalarObjective):
        raise TypeError(f"loss = {objective!r}: {_WANTED}")
    if isinstance(objective, _SHIPPED):
        return objective
    if not isinstance(objective, CustomObjective):
        bound(curvature=objective.curvature)
        if not objective.slope > 0:  # it may be infinite
            raise ValueError(f"slope = {objective.slope!r}: must be > 0")
        try_out(objective, -label_bound, label_bound)
    return OneAtATime(objective)
