"""Claims as regions: closed forms, exact laws that fill a claim, and inequalities by algebra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from privlearn.checking.sampling.claims import (
    ORDERS,
    ApproxClaim,
    Claim,
    FailingClaim,
    GaussianClaim,
    RenyiClaim,
    claim_of,
)
from privlearn.checking.sampling.sequential import moments
from privlearn.errors import CheckError
from privlearn.losses import ApproxLoss, GaussianLoss, LaplaceLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.rows.domains import Array

RHO = RenyiClaim(0.5, "zCDP", "rho", tuple(ORDERS), tuple(ORDERS))
CLAIMS = [
    ApproxClaim(1.0, 0.0, "pure"),
    ApproxClaim(0.5, 0.05, "approx"),
    GaussianClaim(1.0, "mu"),
    RHO,
    RenyiClaim(1.0, "capped", "", (2.0, 8.0), (0.4, 0.9), 1.5),
    FailingClaim(ApproxClaim(1.0, 0.0, "pure"), 0.05),
    FailingClaim(RHO, 0.05),
]
inner = st.floats(0.001, 0.999)
epsilons = st.floats(-6.0, 6.0)


def one(claim: Claim, p: float, q: float) -> float:
    return float(claim.strength(np.array([p]), np.array([q]))[0])


def renyi(p: Array, q: Array, order: float) -> float:
    return float(logsumexp(order * np.log(p) - (order - 1) * np.log(q)) / (order - 1))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.text)
@settings(max_examples=60, deadline=None)
@given(p=inner, q=inner, step=st.floats(0, 0.5))
def test_strength_grows_with_the_gap_and_does_not_care_which_world_is_first(
    claim: Claim, p: float, q: float, step: float
) -> None:
    value = one(claim, p, q)
    assert one(claim, p + step * (1 - p), q) >= value - 1e-9
    assert one(claim, p, q * (1 - step)) >= value - 1e-9
    if not isinstance(claim, FailingClaim):
        assert one(claim, 1 - q, 1 - p) == pytest.approx(value, abs=1e-9)
    if p <= q:
        assert value == 0


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.text)
@settings(max_examples=100, deadline=None)
@given(p=inner, q=inner, epsilon=epsilons)
def test_lines_hold_for_every_event_that_the_claim_allows(
    claim: Claim, p: float, q: float, epsilon: float
) -> None:
    allowed = max(one(claim, p, q), 1e-6)
    if np.isfinite(allowed):
        limit = claim.delta(np.array([epsilon]), allowed)[0]
        assert p - np.exp(epsilon) * q <= limit + 1e-9


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.text)
@settings(max_examples=60, deadline=None)
@given(epsilon=epsilons, low=st.floats(0.01, 3), more=st.floats(0, 3))
def test_lines_grow_with_the_number(claim: Claim, epsilon: float, low: float, more: float) -> None:
    at = np.array([epsilon])
    assert claim.delta(at, low)[0] <= claim.delta(at, low + more)[0] + 1e-12


def test_lines_of_an_approximate_claim_touch_its_polygon() -> None:
    claim = CLAIMS[1]
    grid = np.linspace(0, 1, 1001)
    p, q = (axis.ravel() for axis in np.meshgrid(grid, grid))
    slack, e = 0.05, np.exp(0.5)
    inside = (p <= e * q + slack + 1e-12) & (1 - q <= e * (1 - p) + slack + 1e-12)
    for epsilon in (-2.0, -0.5, -0.1, 0.0, 0.2, 0.5, 1.0):
        best = (p - np.exp(epsilon) * q)[inside].max()
        assert claim.delta(np.array([epsilon]), 0.5)[0] == pytest.approx(best, abs=3e-3)


def test_randomised_response_has_exactly_its_epsilon() -> None:
    p = np.exp(1.3) / (1 + np.exp(1.3))
    assert one(claim_of(PureDP(1)), p, 1 - p) == pytest.approx(1.3)
    assert one(claim_of(ApproxDP(1, "0.1")), 0.9 * p + 0.1, 0.9 * (1 - p)) == pytest.approx(1.3)


def test_a_gaussian_threshold_has_exactly_its_mu() -> None:
    assert one(claim_of(GaussianDP(1)), norm.sf(0.3 - 1.7), norm.sf(0.3)) == pytest.approx(1.7)
    at, mu = np.linspace(-3, 3, 25), 1.4
    cuts = at / mu + mu / 2  # where the likelihood ratio is e^ε
    exact = norm.sf(cuts - mu) - np.exp(at) * norm.sf(cuts)
    assert claim_of(GaussianDP(1)).delta(at, mu) == pytest.approx(exact)


@settings(max_examples=50, deadline=None)
@given(p=inner, q=inner)
def test_renyi_strength_is_the_worst_order_of_either_direction(p: float, q: float) -> None:
    high, low = max(p, q), min(p, q)
    first, second = np.array([high, 1 - high]), np.array([low, 1 - low])
    wanted = max(max(renyi(first, second, a), renyi(second, first, a)) / a for a in ORDERS.tolist())
    assert one(RHO, high, low) == pytest.approx(wanted if high > low else 0.0, abs=1e-8)


@settings(max_examples=80, deadline=None)
@given(
    weights=st.lists(st.tuples(inner, inner), min_size=2, max_size=5),
    order=st.sampled_from([1.0, 1.5, 2.0, 3.0, 5.0, 8.0]),
    clip=st.sampled_from([1.0, 2.0, 4.0]),
    slope=st.floats(-2, 2),
    swapped=st.booleans(),
)
def test_moments_hold_for_every_law_that_the_claim_allows(
    weights: list[tuple[float, float]], order: float, clip: float, slope: float, swapped: bool
) -> None:
    p, q = (np.array(column) / sum(column) for column in zip(*weights, strict=True))
    x, y = (q, p) if swapped else (p, q)
    at = np.arange(len(p), dtype=float)
    divergence = float((x * np.log(x / y)).sum()) if order == 1 else renyi(x, y, order)
    value = max(RHO.number(order, divergence), 1e-9)
    for ratio in (lambda s: slope * s - 1, lambda s: np.log(p / q)[s.astype(int)]):
        bets = moments(RHO, ratio, [(order, clip, swapped)])
        paid = float((bets.gain(at)[0] * p).sum() - (bets.cost(at)[0] * q).sum())
        assert paid <= bets.limits(value)[0] + 1e-9
        assert np.subtract.outer(bets.gain(at)[0], bets.cost(at)[0]).min() >= bets.least[0] - 1e-9


def test_a_failure_of_small_probability_is_allowed_and_no_more() -> None:
    claim = FailingClaim(ApproxClaim(1.0, 0.0, "pure"), 0.05)
    p0 = np.exp(1) / (1 + np.exp(1))
    p, q = 0.95 * p0 + 0.05, 0.95 * (1 - p0)  # fails into the event, and out of it
    assert one(claim, p, q) == pytest.approx(1.0)
    assert one(claim, p + 0.01, q) > 1.0
    assert one(claim, 0.05, 0.0) == 0


def test_losses_and_budgets_become_claims_of_their_best_kind() -> None:
    assert isinstance(claim_of(GaussianLoss(1)), GaussianClaim)
    laplace = claim_of(LaplaceLoss(1))
    assert isinstance(laplace, RenyiClaim)
    assert laplace.worst == 1
    assert not laplace.by_moments
    assert isinstance(claim_of(ApproxLoss(1, "0.01")), FailingClaim)
    assert claim_of(ZCDP("0.5")).by_moments
    assert claim_of(PureDP(1)).unit == "epsilon"


def test_huge_claims_do_not_overflow() -> None:
    steep = np.linspace(-30, 30, 7)
    for promise in (PureDP(1000), ApproxDP(700, "0.5"), GaussianDP(100), ZCDP(1000)):
        claim = claim_of(promise)
        assert np.isfinite(claim.delta(steep, claim.value)).all()
    wide = moments(claim_of(ZCDP(1000)), lambda s: s, [(8.0, 4.0, False), (1.0, 4.0, True)])
    assert np.isfinite(wide.limits(1e6)).all()


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(CheckError, match="must be a loss or a budget"):
        claim_of("epsilon 1")
    with pytest.raises(CheckError, match="no order at which"):
        claim_of(Renyi({2: 0}))
