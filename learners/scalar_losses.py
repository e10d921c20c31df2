"""Convex losses of a linear score u = x·θ and a label: squared, logistic, and the user's own.

Only derivatives in the score are needed.  Labels are clipped into their public range (or refused,
where there is nothing to clip); what is no label becomes NaN, and with it that record null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np
from scipy.special import expit

from privlearn._validate import count, finite, positive
from privlearn.domains import Array, _bound

_SLACK = 1e-6
"""Relative slack of the checks on random points."""


@runtime_checkable
class ScalarLoss(Protocol):
    """A convex loss of a score; structural."""

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


@final
@dataclass(frozen=True, slots=True)
class SquaredLoss:
    """(u − y)²/2 with labels clipped into [−label_bound, label_bound]."""

    kind: ClassVar[str] = "squared"
    label_bound: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "label_bound", _bound(label_bound=self.label_bound))

    @property
    def curvature(self) -> float:
        return 1.0

    @property
    def slope(self) -> float:
        return math.inf

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
class LogisticLoss:
    """log(1 + e^u) − y·u with labels 0 and 1 (−1 counts as 0); other labels are none."""

    kind: ClassVar[str] = "logistic"

    @property
    def curvature(self) -> float:
        return 0.25

    @property
    def slope(self) -> float:
        return 1.0

    @property
    def unit(self) -> None:
        return None

    def derivative(self, score: Array, label: Array, /) -> Array:
        return np.asarray(expit(score) - label)

    def labels(self, values: Array, /) -> Array:
        known = (values == 1) | (values == 0) | (values == -1)
        return np.where(known, np.maximum(values, 0.0), np.nan)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


@final
@dataclass(frozen=True, slots=True)
class CustomLoss:
    """A convex loss by its derivative; its stated constants are tried out on random points.

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
    function: Callable[[Array, Array], Array]
    curvature: float
    slope: float
    label_low: float = -1.0
    label_high: float = 1.0
    largest_score: float = 10.0
    points: int = 4096

    def __post_init__(self) -> None:
        """Raises ValueError if the derivative breaks what is stated on a random point."""
        object.__setattr__(self, "curvature", _bound(curvature=self.curvature))
        object.__setattr__(self, "slope", _bound(slope=self.slope))
        low, high = finite(label_low=self.label_low), finite(label_high=self.label_high)
        if low > high:
            raise ValueError(f"label_low = {low!r}, label_high = {high!r}: in this order")
        positive(largest_score=self.largest_score)
        count(points=self.points)
        try_out(self, self.label_low, self.label_high, self.largest_score, self.points)

    @property
    def unit(self) -> None:
        return None

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
    loss: ScalarLoss, low: float, high: float, largest_score: float = 10.0, points: int = 4096
) -> None:
    """Tries what a loss states on random scores and labels in [low, high].

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
    label = np.asarray(loss.labels(label), dtype=np.float64)
    known = np.isfinite(label)
    score, higher, gap, label = score[known], higher[known], gap[known], label[known]
    if not known.any():
        raise ValueError(f"labels: takes none of {points} numbers in [{low:g}, {high:g}]")
    here, there = loss.derivative(score, label), loss.derivative(higher, label)
    if here.shape != score.shape:
        raise ValueError(f"function: returns shape {here.shape} for {score.shape}")
    if not (np.isfinite(here).all() and np.isfinite(there).all()):
        raise ValueError("function: is not finite everywhere on its range")
    _check_entries(loss, score, label, here)
    steepest = max(float(np.abs(here).max()), float(np.abs(there).max()))
    if steepest > loss.slope * (1 + _SLACK):
        raise ValueError(f"slope = {loss.slope!r}: |φ'| reaches {steepest:g}")
    rise, rounding = there - here, 1e-12 * steepest
    if (rise < -rounding).any():
        raise ValueError("function: decreases somewhere, so the loss is not convex")
    if (rise > loss.curvature * gap * (1 + _SLACK) + rounding).any():
        most = float((rise[gap > 0] / gap[gap > 0]).max())
        raise ValueError(f"curvature = {loss.curvature!r}: φ'' reaches about {most:g}")


def _check_entries(loss: ScalarLoss, score: Array, label: Array, whole: Array) -> None:
    """Each entry by itself, and all in another order, must give the same."""
    few = range(0, len(score), max(len(score) // 32, 1))
    alone = np.array([loss.derivative(score[i : i + 1], label[i : i + 1]).item() for i in few])
    turned = loss.derivative(score[::-1], label[::-1])[::-1]
    allowed = 1e-9 * (1 + np.abs(whole))
    if (np.abs(alone - whole[list(few)]) > allowed[list(few)]).any() or (
        np.abs(turned - whole) > allowed
    ).any():
        raise ValueError("function: must act entry by entry")


@final
@dataclass(frozen=True, slots=True)
class OneAtATime:
    """Somebody's loss, asked about one record at a time: none can see another through it.

    That it remembers nothing from call to call is spot-checked where rows pass through it.
    """

    inner: ScalarLoss

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
        if isinstance(self.inner, CustomLoss):  # no code of theirs: entries are clamped here
            return self.inner.labels(values)
        flat = np.asarray(values, dtype=np.float64).ravel()
        found = [float(np.asarray(self.inner.labels(y)).item()) for y in flat[:, None]]
        return np.array(found).reshape(np.shape(values))

    def to_dict(self) -> dict[str, Any]:
        return self.inner.to_dict()


def code_of(loss: ScalarLoss) -> object:
    """What computes a loss: for one of the user's own, the user's code."""
    inner = loss.inner if isinstance(loss, OneAtATime) else loss
    return inner.function if isinstance(inner, CustomLoss) else inner


def _clamped(values: Array, low: float, high: float) -> Array:
    """Numbers moved into [low, high]; infinities and NaN become NaN, as ∞ − ∞ does."""
    return np.asarray(np.minimum(np.maximum(values, low), high) + (values - values))


def named_loss(loss: str | ScalarLoss, label_bound: float) -> ScalarLoss:
    """A loss by its name, or as it is.

    Raises:
        ValueError: an unknown name, or a loss that breaks what it states.  TypeError: no loss.
    """
    if loss == "squared":
        return SquaredLoss(label_bound)
    if loss == "logistic":
        return LogisticLoss()
    if isinstance(loss, str):
        raise ValueError(f"loss = {loss!r}: must be 'squared', 'logistic' or a ScalarLoss")
    if not isinstance(loss, ScalarLoss):
        raise TypeError(f"loss = {loss!r}: must be 'squared', 'logistic' or a ScalarLoss")
    if isinstance(loss, SquaredLoss | LogisticLoss):
        return loss
    if not isinstance(loss, CustomLoss):
        _bound(curvature=loss.curvature)
        if not loss.slope > 0:  # it may be infinite
            raise ValueError(f"slope = {loss.slope!r}: must be > 0")
        try_out(loss, -label_bound, label_bound)
    return OneAtATime(loss)
