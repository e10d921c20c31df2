"""Group privacy: a person with several rounds."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant
from privlearn.accountants.guarantee import _renyi_group, delta_of, epsilon_of, group_epsilon
from privlearn.contract.protocols import Plan
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PureLoss,
    RenyiCurve,
    SubsampledGaussian,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.losses.conversion import gaussian_delta, zcdp_epsilon
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency

USERS = range(10)
LOSSES: list[Any] = [
    GaussianLoss("0.04"),
    LaplaceLoss("0.2"),
    BoundedRangeLoss("0.3") * 5 + GaussianLoss("0.01"),
    PureLoss("0.1"),
    RenyiCurve({4: "0.1", 32: "0.4", 64: 1}),
    SubsampledGaussian(2, "0.05") * 20,
    ApproxLoss("0.1", "1e-9"),
    FailingLoss(GaussianLoss("0.04"), "1e-9"),
    ZCDP("0.02"),
    GaussianDP("0.2"),
    PureDP("0.1"),
    Renyi({8: "0.1", 64: "0.5"}),
]


@pytest.mark.parametrize("what", LOSSES, ids=repr)
def test_more_rounds_never_cost_less(what: Any) -> None:
    values = [group_epsilon(what, 1e-6, k).value for k in (1, 2, 3, 4, 7)]
    assert values == sorted(values)
    assert values[0] == epsilon_of(what, 1e-6).value
    assert all(math.isfinite(value) for value in values[:2])


def test_each_currency_has_its_own_rule() -> None:
    assert group_epsilon(PureDP("0.1"), 1e-9, 3).value == pytest.approx(0.3)
    gauss = group_epsilon(GaussianLoss("0.04"), 1e-6, 3)
    assert gauss.value == epsilon_of(GaussianLoss("0.36"), 1e-6).value
    rho = group_epsilon(ZCDP("0.02"), 1e-6, 3).value
    assert rho == pytest.approx(zcdp_epsilon(0.18, 1e-6).value)


def tradeoff_delta(mass: float, k: int, epsilon: float) -> float:
    return gaussian_delta(mass * k * k, epsilon).value


@given(st.floats(0.001, 0.2), st.integers(2, 5), st.floats(0.05, 5))
@settings(deadline=None)
def test_the_generic_rule_is_above_the_exact_one(mass: float, k: int, epsilon: float) -> None:
    """A shift of k·mu is the truth for one Gaussian: every other bound lies above it."""
    exact = tradeoff_delta(mass, k, epsilon)
    single = gaussian_delta(mass, epsilon / k).value
    generic = single * math.fsum(math.exp(i * epsilon / k) for i in range(k))
    assert generic >= exact * (1 - 1e-9)
    for bound in (ZCDP(Fraction(mass) / 2), FailingLoss(GaussianLoss(Fraction(mass)), "1e-12")):
        if 1e-12 < exact < 1:
            found = group_epsilon(bound, exact, k).value
            assert found >= epsilon * (1 - 1e-6)


@pytest.mark.parametrize("k", [2, 3, 4, 8])
def test_renyi_groups_are_above_the_truth(k: int) -> None:
    """The planted defects: 2^c in the place of 3^c for Laplace noise, or orders not doubled."""
    loss = LaplaceLoss("0.1")
    truth = epsilon_of(LaplaceLoss(Fraction(k, 10)), 1e-6).value
    assert _renyi_group(loss.renyi, None, 1e-6, k).value >= truth
    mass = GaussianLoss("0.01")
    exact = epsilon_of(GaussianLoss(Fraction(k * k, 100)), 1e-6).value
    assert _renyi_group(mass.renyi, None, 1e-6, k).value >= exact
    steps = (k - 1).bit_length()

    def broken(order: float) -> float:  # neither doubled nor tripled
        return mass.renyi(order) * k

    from privlearn.losses.conversion import renyi_epsilon

    if k >= 4:
        assert renyi_epsilon(broken, 1e-6).value < exact
    assert 2**steps >= k


def test_mironov_at_orders_of_randomized_response_by_enumeration() -> None:
    """D_α of two steps of ε against 3·D_2α of one step, for α >= 2."""

    def divergence(epsilon: float, order: float) -> float:
        p = math.exp(epsilon) / (1 + math.exp(epsilon))
        moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
        return math.log(moment) / (order - 1)

    for epsilon in (0.05, 0.3, 1.0, 3.0):
        for order in np.linspace(2, 20, 37):
            assert divergence(2 * epsilon, order) <= 3 * divergence(epsilon, 2 * order)


def test_what_may_fail_has_only_the_generic_rule() -> None:
    loss = ApproxLoss("0.1", "1e-9")
    found = group_epsilon(loss, 1e-6, 3).value
    assert found == pytest.approx(0.3, rel=1e-4)  # a little less: δ has room
    # three failures of 1e-9 with their factors must fit into δ
    assert group_epsilon(loss, 3e-9, 3).value == math.inf
    assert group_epsilon(loss, 3.5e-9, 3).value == pytest.approx(0.3, rel=1e-6)
    assert delta_of(loss, 0.1 + 1e-9).value == pytest.approx(1e-9)


@pytest.mark.parametrize("rounds", [0, -1, True, 1.5])
def test_rounds_are_counted_from_one(rounds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="rounds"):
        group_epsilon(ZCDP(1), 1e-6, rounds)


def test_a_certificate_for_a_person_with_rounds() -> None:
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(1), users=USERS, noise=NoiseSource.simulation(0)
    )
    book.commit([Plan("x", GaussianLoss("0.1"), USERS), Plan("y", GaussianLoss("0.1"), range(5))])
    single, triple = book.certificate(), book.certificate(rounds=3)
    (one,), (three,) = single.guarantees, triple.guarantees
    assert (one.rounds, three.rounds) == (1, 3)
    assert one.rho is not None
    assert three.rho == pytest.approx(9 * one.rho)
    assert one.mu is not None
    assert three.mu == pytest.approx(3 * one.mu)
    assert three.epsilon == book.epsilon(1e-6, rounds=3) > 3 * one.epsilon
    assert any("a person with 3 rounds" in line for line in three.assumptions)
    assert triple.problems == []


def test_a_promise_is_for_one_round() -> None:
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ApproxDP(1, "1e-6"), users=USERS, noise=NoiseSource.simulation(0)
    )
    assert book.epsilon(1e-6) <= 1 + 1e-12 < book.epsilon(1e-6, rounds=2)


def test_large_groups_end() -> None:
    loss: Loss = SubsampledGaussian(1, "0.5", adjacency=Adjacency.ZERO_OUT)
    assert group_epsilon(loss, 1e-6, 100_000).value > 0
    assert group_epsilon(ZCDP("1e-9"), 1e-6, 10**6).value < math.inf
