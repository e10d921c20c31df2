"""From one neighbour relation to another: what it costs, against exact divergences of two steps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from privlearn.accountants.guarantee import epsilon_of
from privlearn.errors import AdjacencyError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FailingLoss,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SubsampledGaussian,
    ZCDPLoss,
    as_replace_one,
    as_zero_out,
    compose,
)
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact

AR, ZO = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT
PAIRS: list[tuple[Loss, Loss]] = [
    (GaussianLoss("0.3", adjacency=AR), GaussianLoss("1.2")),
    (LaplaceLoss("0.3", adjacency=AR), LaplaceLoss("0.6")),
    (BoundedRangeLoss("0.3", adjacency=AR), BoundedRangeLoss("0.6")),
    (PureLoss("0.3", adjacency=AR), PureLoss("0.6")),
    (RandomizedResponse("0.3", 4, adjacency=ZO), PureLoss("0.6")),
    (DiscreteLaplace("0.3", 2, adjacency=AR), DiscreteLaplace("0.6", 4)),
    (DiscreteGaussian(2, 5, adjacency=AR), DiscreteGaussian(4, 5)),
    (GeneralizedGaussian(2, 1, 5, adjacency=ZO), GeneralizedGaussian(2, 2, 5)),
    (ZCDPLoss("0.1", adjacency=AR), ZCDPLoss("0.4")),
    (
        MinimizerLoss(
            difference=2, trace=1, rank=3, directions=1, ridge=15, noise_std=9, adjacency=AR
        ),
        MinimizerLoss(difference=4, trace=1, rank=3, directions=2, ridge=15, noise_std=9),
    ),
]


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda loss: loss.kind)
def test_a_replacement_is_two_steps(before: Loss, after: Loss) -> None:
    found = as_replace_one(before)
    assert (found.before, found.loss) == (before, after)
    assert "replacement" in found.reason
    assert found.loss.adjacency is Adjacency.REPLACE_ONE
    assert as_replace_one(before * 7).loss == after * 7


def test_profiles_by_arrival_are_converted_part_by_part() -> None:
    zero = PerArrivalLoss(
        [(3, GaussianLoss("0.5", adjacency=ZO)), (2, GaussianLoss("0.1", adjacency=ZO))]
    )
    found = as_replace_one(zero).loss
    assert found == PerArrivalLoss([(3, GaussianLoss(2)), (2, GaussianLoss("0.4"))])
    assert as_zero_out(found).loss == PerArrivalLoss(
        [(3, GaussianLoss(2, adjacency=ZO)), (2, GaussianLoss("0.4", adjacency=ZO))]
    )
    failing = FailingLoss(GaussianLoss(1), "1e-9")
    assert as_zero_out(failing).loss == FailingLoss(GaussianLoss(1, adjacency=ZO), "1e-9")
    with pytest.raises(AdjacencyError, match="no proved price"):
        as_replace_one(FailingLoss(GaussianLoss(1, adjacency=AR), "1e-9"))


def test_a_gaussian_of_multiplier_one_doubles_its_mu() -> None:
    """4.887 under add-remove at δ = 1e-6; 10.997 under replace-one."""
    before = GaussianLoss(1, adjacency=AR)
    assert epsilon_of(before, 1e-6).value == pytest.approx(4.887, abs=5e-4)
    assert epsilon_of(as_replace_one(before).loss, 1e-6).value == pytest.approx(10.997, abs=5e-4)


def _divergence(p: Array, q: Array, order: float) -> float:
    terms = order * np.log(p) + (1 - order) * np.log(q)
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def test_exact_divergences_of_two_steps_lie_below() -> None:
    """Laplace-like laws on a line at 0, 1, 2 steps, and random laws with ε-bounded ratios."""
    x = np.arange(-400, 401)
    shifted = [np.exp(-0.3 * np.abs(x - 2 * m)) for m in range(3)]
    laws = [law / law.sum() for law in shifted]
    two = as_replace_one(DiscreteLaplace("0.6", 2, adjacency=AR)).loss
    for order in (1.5, 2, 5.0, 40):
        exact = _divergence(laws[0], laws[2], order)
        assert exact <= two.renyi(order)
        assert exact >= two.renyi(order) * (1 - 1e-9), "and no more than that is charged"
        assert exact > DiscreteLaplace("0.6", 2).renyi(order), "one step would be too little"
    random = np.random.default_rng(5)
    for _ in range(200):
        q = random.dirichlet(np.ones(6))
        p, r = (
            law / law.sum() for law in (q * np.exp(random.uniform(0, 0.5, 6)) for _ in range(2))
        )
        ranges = [float(np.ptp(np.log(a / q))) for a in (p, r)]
        bound = BoundedRangeLoss(
            Fraction(max(ranges)).limit_denominator(10**6) + Fraction(1, 10**5)
        )
        twice = as_replace_one(BoundedRangeLoss(bound.epsilon, adjacency=AR)).loss
        curve: dict[Exact, Exact] = {
            order: Fraction(
                max(_divergence(a, b, order) for a, b in ((p, q), (q, p), (r, q), (q, r)))
            ).limit_denominator(10**12)
            + Fraction(1, 10**9)
            for order in (2, 3, 4, 5, 8, 16)
        }
        weak = as_replace_one(RenyiCurve(curve, adjacency=AR)).loss
        for order in (1.5, 2.0, 2.5, 4.0, 8.0):
            assert _divergence(p, r, order) <= twice.renyi(order)
            assert _divergence(p, r, order) <= weak.renyi(order)


def test_failures_of_two_steps() -> None:
    found = as_replace_one(ApproxLoss("0.5", "1e-6", adjacency=AR)).loss
    assert isinstance(found, ApproxLoss)
    assert found.epsilon == 1
    assert found.delta == pytest.approx(1e-6 * (1 + math.exp(0.5)), rel=1e-9)
    assert found.delta > Fraction("1e-6") * (
        1 + Fraction(math.exp(0.5)) * (1 - Fraction(1, 10**15))
    )
    with pytest.raises(AdjacencyError, match="probability 1"):
        as_replace_one(ApproxLoss(5, "0.1", adjacency=AR))


def test_what_has_no_proof_is_refused() -> None:
    with pytest.raises(AdjacencyError, match="no proved price under replace-one"):
        as_replace_one(SubsampledGaussian(1, "0.01"))
    with pytest.raises(AdjacencyError, match="no proved price"):
        as_replace_one(GaussianLoss(1, adjacency=AR) + SubsampledGaussian(1, "0.01"))
    with pytest.raises(AdjacencyError, match="order above 2"):
        as_replace_one(RenyiCurve({"1.5": 1, 2: 1}, adjacency=AR))
    with pytest.raises(AdjacencyError, match="for replace-one already"):
        as_replace_one(GaussianLoss(1))


def test_zero_out_is_one_of_the_replacements() -> None:
    loss = GaussianLoss(1) * 3 + LaplaceLoss("0.1") + DiscreteLaplace(1, 2)
    found = as_zero_out(loss).loss
    assert found.adjacency is ZO
    assert found.renyi(3) == loss.renyi(3)
    for relation in (AR, ZO):
        with pytest.raises(AdjacencyError, match="as_replace_one first"):
            as_zero_out(GaussianLoss(1, adjacency=relation))


def test_nothing_is_mixed_silently() -> None:
    with pytest.raises(AdjacencyError, match="convert one explicitly"):
        compose([(GaussianLoss(1), 1), (GaussianLoss(1, adjacency=AR), 1)])
    both = compose([(GaussianLoss(1), 1), (as_replace_one(GaussianLoss(1, adjacency=AR)).loss, 1)])
    assert both.gaussian() == 5
