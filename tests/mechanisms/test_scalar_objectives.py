"""Derivatives by finite differences, constants that hold, and losses that break theirs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import DPTOFW
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.scalar_objectives import (
    CustomObjective,
    HuberObjective,
    LogisticObjective,
    OneAtATime,
    PoissonObjective,
    ScalarObjective,
    SquaredObjective,
    named_objective,
    try_out,
)
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array

SCORES = np.linspace(-8, 8, 401)


def huber(score: Array, label: Array) -> Array:
    return np.clip(score - label, -0.5, 0.5)


def squared(score: Array, label: Array) -> Array:
    return (score - label) ** 2 / 2


def values_of(objective: Any) -> Callable[[Array, Array], Array]:
    return squared if isinstance(objective, SquaredObjective) else objective.value


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (SquaredObjective(2.0), (-2.0, 0.3)),
        (LogisticObjective(), (0.0, 1.0)),
        (PoissonObjective(3.0), (0.0, 3.0)),
        (HuberObjective(0.5, 2.0), (-2.0, 0.3)),
    ],
)
def test_derivatives_are_those_of_the_loss(
    loss: ScalarObjective, labels: tuple[float, ...]
) -> None:
    value = values_of(loss)
    for label in labels:
        y, h = np.full(len(SCORES), label), 1e-5
        slope = (value(SCORES + h, y) - value(SCORES - h, y)) / (2 * h)
        found = loss.derivative(SCORES, y)
        smooth = np.abs(found - slope) <= 1e-8
        assert np.count_nonzero(~smooth) <= 3, "but at a kink"
        assert np.abs(found).max() <= loss.slope * (1 + 1e-15)
        rise = np.diff(found) / np.diff(SCORES)
        assert rise.min() >= 0
        assert rise.max() <= loss.curvature + 1e-12
        assert rise.max() == pytest.approx(loss.curvature, rel=0.05), "the bound is attained"


def test_labels_of_a_regression_are_clipped() -> None:
    odd = np.array([5.0, -5.0, 0.5, math.nan, math.inf, -math.inf])
    with np.errstate(invalid="ignore"):
        found = SquaredObjective(2.0).labels(odd)
    assert found[:3].tolist() == [2.0, -2.0, 0.5]
    assert np.isnan(found[3:]).all()


def test_labels_of_a_classification_are_two() -> None:
    found = LogisticObjective().labels(np.array([1.0, 0.0, -1.0, 0.5, 2.0, math.nan, math.inf]))
    assert found[:3].tolist() == [1.0, 0.0, 0.0]
    assert np.isnan(found[3:]).all()


def test_a_loss_of_the_users_own() -> None:
    loss = CustomObjective(huber, curvature=1.0, slope=0.5, label_low=0.0, label_high=3.0)
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
        CustomObjective(function, curvature=curvature, slope=slope)


@pytest.mark.parametrize(
    "changes", [{"label_low": 2.0}, {"largest_score": 0.0}, {"label_high": math.nan}]
)
def test_ranges_of_an_own_loss_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"label_|largest_score"):
        CustomObjective(huber, curvature=1.0, slope=0.5, **changes)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_label_bounds_are_checked(bound: float) -> None:
    with pytest.raises(ValueError, match="label_bound"):
        SquaredObjective(bound)


def test_losses_by_name() -> None:
    own = CustomObjective(huber, curvature=1.0, slope=0.5)
    assert named_objective("squared", 3.0) == SquaredObjective(3.0)
    assert named_objective("logistic", 3.0) == LogisticObjective()
    assert named_objective(own, 3.0) == OneAtATime(own)
    for shipped in (HuberObjective(0.5), PoissonObjective(2.0)):  # whole blocks at once
        assert named_objective(shipped, 3.0) is shipped
    with pytest.raises(ValueError, match="'hinge'"):
        named_objective("hinge", 1.0)
    unknown: Any = 3
    with pytest.raises(TypeError, match="ScalarObjective"):
        named_objective(unknown, 1.0)


def test_a_loss_of_ones_own_sees_one_record_at_a_time() -> None:
    """Centred over the block: every entry is fine by itself, and the first one in a block too."""

    def centred(score: Array, label: Array) -> Array:
        mean = np.cumsum(label) / np.arange(1, len(label) + 1)
        return np.clip(score - (label - mean), -3, 3)

    with pytest.raises(ValueError, match="entry by entry"):
        CustomObjective(centred, 1.0, 3.0)


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
        named_objective(loss, 1.0)


def test_no_entry_reaches_another_through_a_wrapped_loss() -> None:
    wrapped = OneAtATime(Remembers())
    label = np.array([0.5, -1.0, 0.25])
    assert wrapped.derivative(np.zeros(3), label).tolist() == label.tolist()
    assert wrapped.labels(np.array([2.0, -3.0, 0.0])).tolist() == [1.0, -1.0, 0.0]


def test_every_shipped_one_keeps_what_it_states() -> None:
    shipped = (LogisticObjective(), PoissonObjective(3.0), HuberObjective(0.5, 2.0))
    for objective in shipped:
        try_out(objective, *objective.label_range)
    steep = dataclasses.replace(HuberObjective(0.5, 2.0), threshold=0.6)
    with pytest.raises(ValueError, match=r"slope = 0\.5"):
        CustomObjective(steep.derivative, 1.0, 0.5, -2.0, 2.0)


def test_learners_take_the_shipped_ones() -> None:
    """In blocks and one by one alike, which code of somebody's own would be asked."""
    features, labels = np.random.default_rng(0).uniform(-0.5, 0.5, size=(2, 40, 3))
    states = []
    for size in (1, 40):
        noise = NoiseSource.simulation(0)
        accountant = CentralAccountant(ZCDP(5), users=range(40), noise=noise)
        learner = DPTOFW(3, loss=HuberObjective(0.5)).start(accountant)
        for start in range(0, 40, size):
            block = slice(start, start + size)
            learner.partial_fit(features[block], labels[block, 0])
        states.append(learner.coef_)
    assert np.array_equal(states[0], states[1])
    assert np.any(states[0])
