"""Laws of what every kind of loss answers: its step, its worst laws, more noise, two steps, JSON.

A new kind is one more line in `EXAMPLES`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from privlearn.accountants.composition import Composition
from privlearn.accountants.tight_composition import step_of
from privlearn.checking.exact.distributions import hockey_stick, renyi
from privlearn.errors import AdjacencyError, BudgetError, CheckError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DeclaredLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FailingLoss,
    FixedBatch,
    GaussianLoss,
    GaussianMixture,
    GeneralizedGaussian,
    LaplaceLoss,
    LeastLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    PoissonSampled,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    RepeatAndSelect,
    SelectedLoss,
    SubsampledGaussian,
    TruncatedPoisson,
    VisitsLoss,
    ZCDPLoss,
    loss_from_dict,
    registered_kinds,
)
from privlearn.losses.base import register
from privlearn.losses.output_laws import Distribution
from privlearn.losses.steps import CurveStep
from privlearn.values.adjacency import Adjacency

OUT = Adjacency.ZERO_OUT
ORDERS = (1.5, 2.0, 8.0)
_WITHOUT_LAWS = (
    *("renyi-curve", "objective-perturbation", "may-fail", "least", "declared"),
    *("fixed-batch", "truncated-poisson", "selected"),
)
EXAMPLES: list[Loss] = [
    GaussianLoss("0.3", adjacency=OUT),
    GeneralizedGaussian(2, 1, 3, adjacency=OUT),
    LaplaceLoss("0.7", adjacency=OUT),
    BoundedRangeLoss("0.9", adjacency=OUT),
    PureLoss("0.5", adjacency=OUT),
    RandomizedResponse("0.6", 4, adjacency=OUT),
    DiscreteLaplace("0.8", 3, adjacency=OUT),
    DiscreteGaussian(1, 3, adjacency=OUT),
    SubsampledGaussian("1.1", "0.05", adjacency=OUT),
    PoissonSampled(GaussianLoss("0.3", adjacency=OUT), "0.05"),
    TruncatedPoisson(LaplaceLoss("0.7", adjacency=OUT), "0.05", 100, 8),
    FixedBatch(LaplaceLoss("0.7"), 100, 5, adjacency=OUT),
    GaussianMixture([0, 1, "2.5"], ["0.7", "0.2", "0.1"], 2, adjacency=OUT),
    SelectedLoss(GaussianLoss("0.04", adjacency=OUT), "1e-3", 8, "0.5"),
    ZCDPLoss("0.1", adjacency=OUT),
    RenyiCurve({"1.5": "0.1", "8": "0.5", "32": "2"}, adjacency=OUT),
    ApproxLoss("0.5", "1e-3", adjacency=OUT),
    RepeatAndSelect("0.04", "1e-3", "1/8", adjacency=OUT),
    LeastLoss([PureLoss("0.5", adjacency=OUT), ZCDPLoss("0.1", adjacency=OUT)]),
    DeclaredLoss(
        {"kind": "else.where", "adjacency": "zero-out", "scale": 2},
        LeastLoss(
            [ZCDPLoss("0.1", adjacency=OUT), RenyiCurve({"2": "0.2", "8": "0.5"}, adjacency=OUT)]
        ),
        "else-where",
    ),
    MinimizerLoss(
        difference=4, trace=1, rank=3, directions=3, ridge=20, noise_std=30, adjacency=OUT
    ),
    FailingLoss(GaussianLoss("0.3", adjacency=OUT), "1e-3"),
    PerArrivalLoss(
        [(3, LaplaceLoss("0.7", adjacency=OUT)), (2, GaussianLoss("0.3", adjacency=OUT))]
    ),
    GaussianLoss("0.3", adjacency=OUT) * 2 + LaplaceLoss("0.7", adjacency=OUT),
    VisitsLoss(LaplaceLoss("0.7", adjacency=OUT), most=4, apart=10),
]
each = pytest.mark.parametrize("loss", EXAMPLES, ids=lambda loss: loss.kind)


def curve(loss: Loss) -> list[float]:
    """The prices apart from failures."""
    return [loss.unless_failed().renyi(order) for order in ORDERS]


def promised(loss: Loss, epsilon: float) -> float:
    """δ at ε of one run, by its step in a tight composition."""
    failed = float(loss.failure())
    apart = Composition([(step_of(loss.unless_failed()), 1)], delta=1e-6).delta(epsilon).value
    return failed + (1 - failed) * apart


def test_every_kind_has_an_example() -> None:
    ours = [
        kind for kind, cls in registered_kinds().items() if cls.__module__.startswith("privlearn.")
    ]
    assert {loss.kind for loss in EXAMPLES} == set(ours)


@each
def test_json_gives_back_an_equal_loss(loss: Loss) -> None:
    read = loss_from_dict(loss.to_dict())
    assert (read, hash(read), read.to_dict()) == (loss, hash(loss), loss.to_dict())
    with pytest.raises(ValueError, match=f"{loss.kind} loss lacks"):
        loss_from_dict({"kind": loss.kind, "adjacency": OUT.value})


@each
def test_other_json_types_and_unknown_names_are_refused(loss: Loss) -> None:
    data = loss.to_dict()
    for name, number in data.items():
        wrong: list[Any] = [True, None, {"x": 1} if isinstance(number, list) else [number]]
        wrong += [1] if isinstance(number, str) else ["1"]
        wrong += [1.5] if isinstance(number, int) else []
        for other in wrong:
            with pytest.raises(ValueError, match=rf"{name} = .*: must be "):
                loss_from_dict({**data, name: other})
    with pytest.raises(ValueError, match=f"{loss.kind} loss: has no 'more', only kind, adjacency"):
        loss_from_dict({**data, "more": 1})


@pytest.mark.parametrize("loss", [loss for loss in EXAMPLES if loss.inner()], ids=lambda x: x.kind)
def test_a_loss_holds_no_loss_for_another_relation(loss: Loss) -> None:
    other = next(a for a in Adjacency if a is not loss.adjacency)
    with pytest.raises(AdjacencyError, match=f"in one for {other.value}"):
        loss_from_dict({**loss.to_dict(), "adjacency": other.value})


@each
def test_a_loss_cannot_be_changed(loss: Loss) -> None:
    with pytest.raises((AttributeError, TypeError)):
        loss.adjacency = Adjacency.REPLACE_ONE  # type: ignore[misc]


@each
def test_more_noise_costs_less_and_undoes_less_noise(loss: Loss) -> None:
    factor = Fraction(2)
    if type(loss).noisier is Loss.noisier:
        with pytest.raises(BudgetError, match="states no noise"):
            loss.noisier(factor)
        return
    quieter = loss.noisier(factor)
    assert quieter.adjacency is loss.adjacency
    assert all(a < b for a, b in zip(curve(quieter), curve(loss), strict=True))
    assert quieter.noisier(1 / factor) == loss == loss.noisier(Fraction(1))


@each
def test_two_steps_are_for_replace_one_and_cost_at_least_twice(loss: Loss) -> None:
    if loss.kind in ("subsampled-gaussian", "may-fail", "fixed-batch"):
        with pytest.raises(AdjacencyError, match="no proved price"):
            loss.doubled()
        return
    twice = loss.doubled()
    assert twice.adjacency is Adjacency.REPLACE_ONE
    orders = (1.5, 2.0, 4.0)  # of a list of bounds only the half of each order is left
    before, after = ([x.unless_failed().renyi(a) for a in orders] for x in (loss, twice))
    assert all(b >= 2 * a or math.isinf(b) for a, b in zip(before, after, strict=True))
    more = (
        1 if loss.kind in ("repeat-and-select", "selected") else 2
    )  # which pays all in ε, at the same δ
    assert twice.failure() >= more * loss.failure()


def sticks(p: Distribution, q: Distribution, epsilon: float) -> float:
    try:
        return hockey_stick(p, q, epsilon).value
    except CheckError:  # products have no δ(ε) here; their curves are compared below
        return 0.0


@each
def test_prices_and_step_hold_for_the_worst_laws(loss: Loss) -> None:
    pairs = loss.worst_pairs(ORDERS)
    if pairs is None:
        assert loss.kind in _WITHOUT_LAWS
        return
    assert pairs
    both = [way for p, q in pairs for way in ((p, q), (q, p))]
    for p, q in both:
        for order in ORDERS:
            found = renyi(p, q, order)
            assert found.value <= loss.renyi(order) + found.error
        for epsilon in (0.1, 0.4):
            assert sticks(p, q, epsilon) <= promised(loss, epsilon) * (1 + 1e-9)


@each
def test_a_step_is_worth_more_than_the_curve(loss: Loss) -> None:
    step = step_of(loss.unless_failed())
    if isinstance(step, CurveStep):
        assert step.renyi(2.0) == loss.unless_failed().renyi(2.0)
        return
    known = Composition([(CurveStep(loss.unless_failed().renyi), 1)]).delta(0.4).value
    assert Composition([(step, 1)]).delta(0.4).value < known


def test_a_step_of_half_the_loss_is_caught() -> None:
    """The law above can fail: a third party's step that stands for too little."""
    small, loss = LaplaceLoss("0.35", adjacency=OUT), LaplaceLoss("0.7", adjacency=OUT)
    (pair,) = loss.worst_pairs(ORDERS)
    assert sticks(*pair, 0.1) > promised(small, 0.1) * 1.5


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'laplace' is registered already"):
        register(LaplaceLoss)
