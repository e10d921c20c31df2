"""Derivatives by finite differences, constants that hold, and losses that break theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.domains import Array
from privlearn.learners.scalar_losses import (
    CustomLoss,
    LogisticLoss,
    OneAtATime,
    ScalarLoss,
    SquaredLoss,
    named_loss,
)

SCORES = np.linspace(-8, 8, 401)


def huber(score: Array, label: Array) -> Array:
    return np.clip(score - label, -0.5, 0.5)


def squared(score: Array, label: Array) -> Array:
    return (score - label) ** 2 / 2


def logistic(score: Array, label: Array) -> Array:
    return np.asarray(np.logaddexp(0, score) - label * score)


@pytest.mark.parametrize(
    ("loss", "value", "labels"),
    [(SquaredLoss(2.0), squared, (-2.0, 0.3)), (LogisticLoss(), logistic, (0.0, 1.0))],
)
def test_derivatives_are_those_of_the_loss(
    loss: ScalarLoss, value: Callable[[Array, Array], Array], labels: tuple[float, ...]
) -> None:
    for label in labels:
        y, h = np.full(len(SCORES), label), 1e-5
        slope = (value(SCORES + h, y) - value(SCORES - h, y)) / (2 * h)
        found = loss.derivative(SCORES, y)
        assert found == pytest.approx(slope, abs=1e-8)
        assert np.abs(found).max() <= loss.slope
        rise = np.diff(found) / np.diff(SCORES)
        assert rise.min() >= 0
        assert rise.max() <= loss.curvature + 1e-12
        assert rise.max() == pytest.approx(loss.curvature, rel=1e-3), "the bound is attained"


def test_labels_of_a_regression_are_clipped() -> None:
    odd = np.array([5.0, -5.0, 0.5, math.nan, math.inf, -math.inf])
    with np.errstate(invalid="ignore"):
        found = SquaredLoss(2.0).labels(odd)
    assert found[:3].tolist() == [2.0, -2.0, 0.5]
    assert np.isnan(found[3:]).all()


def test_labels_of_a_classification_are_two() -> None:
    found = LogisticLoss().labels(np.array([1.0, 0.0, -1.0, 0.5, 2.0, math.nan, math.inf]))
    assert found[:3].tolist() == [1.0, 0.0, 0.0]
    assert np.isnan(found[3:]).all()


def test_a_loss_of_the_users_own() -> None:
    loss = CustomLoss(huber, curvature=1.0, slope=0.5, label_low=0.0, label_high=3.0)
    assert loss.labels(np.array([-1.0, 9.0])).tolist() == [0.0, 3.0]
    assert loss.derivative(np.array([4.0]), np.array([3.0])).tolist() == [0.5]
    assert loss.to_dict()["function"] == "huber"


def cubic(score: Array, label: Array) -> Array:
    return np.asarray((score - label) ** 3)


def falling(score: Array, label: Array) -> Array:
    return np.asarray(np.sin(score))


def together(score: Array, label: Array) -> Array:
    return np.asarray(np.clip(score - score.mean(), -0.5, 0.5))


def shapeless(score: Array, label: Array) -> Array:
    return np.zeros((len(score), 2))


def undefined(score: Array, label: Array) -> Array:
    return np.where(score > 3, math.nan, 0.0)


@pytest.mark.parametrize(
    ("function", "curvature", "slope", "message"),
    [
        (huber, 1.0, 0.4, "slope = 0.4"),
        (huber, 0.5, 0.5, "curvature = 0.5"),
        (cubic, 10.0, 1e5, "curvature = 10"),
        (falling, 1.0, 1.0, "not convex"),
        (together, 1.0, 0.5, "entry by entry"),
        (shapeless, 1.0, 1.0, "shape"),
        (undefined, 1.0, 1.0, "not finite"),
        (huber, 0.0, 1.0, "curvature"),
        (huber, 1.0, math.inf, "slope"),
    ],
)
def test_losses_that_break_what_they_state_are_caught(
    function: Callable[[Array, Array], Array], curvature: float, slope: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CustomLoss(function, curvature=curvature, slope=slope)


@pytest.mark.parametrize(
    "changes", [{"label_low": 2.0}, {"largest_score": 0.0}, {"label_high": math.nan}]
)
def test_ranges_of_an_own_loss_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"label_|largest_score"):
        CustomLoss(huber, curvature=1.0, slope=0.5, **changes)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_label_bounds_are_checked(bound: float) -> None:
    with pytest.raises(ValueError, match="label_bound"):
        SquaredLoss(bound)


def test_losses_by_name() -> None:
    own = CustomLoss(huber, curvature=1.0, slope=0.5)
    assert named_loss("squared", 3.0) == SquaredLoss(3.0)
    assert named_loss("logistic", 3.0) == LogisticLoss()
    assert named_loss(own, 3.0) == OneAtATime(own)
    with pytest.raises(ValueError, match="'hinge'"):
        named_loss("hinge", 1.0)
    unknown: Any = 3
    with pytest.raises(TypeError, match="ScalarLoss"):
        named_loss(unknown, 1.0)


def test_a_loss_of_ones_own_sees_one_record_at_a_time() -> None:
    """Centred over the block: every entry is fine by itself, and the first one in a block too."""

    def centred(score: Array, label: Array) -> Array:
        mean = np.cumsum(label) / np.arange(1, len(label) + 1)
        return np.clip(score - (label - mean), -3, 3)

    with pytest.raises(ValueError, match="entry by entry"):
        CustomLoss(centred, 1.0, 3.0)


class Remembers:
    """A loss without checks of its own, which adds up the labels of its block."""

    curvature, slope, unit = 1.0, 50.0, None

    def derivative(self, score: Array, label: Array, /) -> Array:
        return np.full(len(score), float(label.sum()))

    def labels(self, values: Array, /) -> Array:
        return np.clip(values, -1.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "remembers"}


class Steep(Remembers):
    """States too small a slope."""

    slope = 0.5

    def derivative(self, score: Array, label: Array, /) -> Array:
        return np.asarray(score - label)


@pytest.mark.parametrize(
    ("loss", "message"), [(Remembers(), "entry by entry"), (Steep(), "slope = 0.5")]
)
def test_any_loss_of_ones_own_is_tried_out(loss: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_loss(loss, 1.0)


def test_no_entry_reaches_another_through_a_wrapped_loss() -> None:
    wrapped = OneAtATime(Remembers())
    label = np.array([0.5, -1.0, 0.25])
    assert wrapped.derivative(np.zeros(3), label).tolist() == label.tolist()
    assert wrapped.labels(np.array([2.0, -3.0, 0.0])).tolist() == [1.0, -1.0, 0.0]
