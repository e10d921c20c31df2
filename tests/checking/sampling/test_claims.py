"""Claims as regions: closed forms, exact laws that fill a claim, and inequalities by algebra."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from privlearn.checking.sampling.check import ORDERS, Claim, claim_of, least_multiple
from privlearn.errors import CheckError
from privlearn.losses import ApproxLoss, GaussianLoss, LaplaceLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.rows.domains import Array

RHO = claim_of(ZCDP("0.5"))
CAPPED = partial(least_multiple, known=(2.0, 8.0), curve=(0.4, 0.9), worst=1.5)
FAILING = claim_of(ApproxLoss(1, "0.05"))
CLAIMS = [
    claim_of(PureDP(1)),
    claim_of(ApproxDP("0.5", "0.05")),
    claim_of(GaussianDP(1)),
    RHO,
    Claim("", 1.0, "capped", CAPPED),
    FAILING,
    replace(RHO, failure=0.05, text="failing zCDP"),
]
inner = st.floats(0.001, 0.999)


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
    if not claim.failure:
        assert one(claim, 1 - q, 1 - p) == pytest.approx(value, abs=1e-9)
    if p <= q:
        assert value == 0


def test_an_approximate_claim_allows_its_polygon_and_no_more() -> None:
    claim = CLAIMS[1]
    grid = np.linspace(0, 1, 101)
    p, q = (axis.ravel() for axis in np.meshgrid(grid, grid))
    slack, e = 0.05, np.exp(0.5)
    inside = (p <= e * q + slack + 1e-12) & (1 - q <= e * (1 - p) + slack + 1e-12)
    assert ((claim.strength(p, q) <= 0.5 + 1e-12) == (inside | (p <= q))).mean() == 1.0


def test_randomised_response_has_exactly_its_epsilon() -> None:
    p = np.exp(1.3) / (1 + np.exp(1.3))
    assert one(claim_of(PureDP(1)), p, 1 - p) == pytest.approx(1.3)
    assert one(claim_of(ApproxDP(1, "0.1")), 0.9 * p + 0.1, 0.9 * (1 - p)) == pytest.approx(1.3)


def test_a_gaussian_threshold_has_exactly_its_mu() -> None:
    assert one(claim_of(GaussianDP(1)), norm.sf(0.3 - 1.7), norm.sf(0.3)) == pytest.approx(1.7)


@settings(max_examples=50, deadline=None)
@given(p=inner, q=inner)
def test_renyi_strength_is_the_worst_order_of_either_direction(p: float, q: float) -> None:
    high, low = max(p, q), min(p, q)
    first, second = np.array([high, 1 - high]), np.array([low, 1 - low])
    wanted = max(max(renyi(first, second, a), renyi(second, first, a)) / a for a in ORDERS.tolist())
    assert one(RHO, high, low) == pytest.approx(wanted if high > low else 0.0, abs=1e-8)


def test_a_failure_of_small_probability_is_allowed_and_no_more() -> None:
    claim = replace(claim_of(PureDP(1)), failure=0.05)
    p0 = np.exp(1) / (1 + np.exp(1))
    p, q = 0.95 * p0 + 0.05, 0.95 * (1 - p0)  # fails into the event, and out of it
    assert one(claim, p, q) == pytest.approx(1.0)
    assert one(claim, p + 0.01, q) > 1.0
    assert one(claim, 0.05, 0.0) == 0


def test_losses_and_budgets_become_claims_of_their_best_kind() -> None:
    assert claim_of(GaussianLoss(1)).unit == "mu"
    assert claim_of(LaplaceLoss(1)).unit == "times the claimed curve"
    assert one(claim_of(LaplaceLoss(1)), 0.3, 0.01) >= np.log(30)  # as its pure ε is 1
    assert FAILING.failure == 0.05
    assert claim_of(PureDP(1)).unit == "epsilon"


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(CheckError, match="must be a loss or a budget"):
        claim_of("epsilon 1")
    with pytest.raises(CheckError, match="no order at which"):
        claim_of(Renyi({2: 0}))
