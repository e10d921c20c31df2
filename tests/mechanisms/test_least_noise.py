"""The least noise at a price, under exact multiplication."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privlearn import ApproxDP, Ledger
from privlearn.accountants import CentralAccountant
from privlearn.errors import CurrencyError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    BatchedPrefixSum,
    CrossPolytope,
    LinearObjective,
    NoisyMaxStream,
    NoisySum,
    ObjectivePerturbation,
    OneOfK,
    PrefixSum,
    ReportNoisyMax,
)
from privlearn.mechanisms.least_noise import gaussian_noise
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency


@given(st.floats(0.01, 100), st.floats(1, 4))
@example(0.0715541752799933, 1.000000325001199)
def test_an_exact_product_of_sensitivity_and_gain_earns_no_larger_loss(
    radius: float, gain: float
) -> None:
    """As somebody finds who multiplies what stands in a spend, which is 1e-16 off in floats."""
    noise = gaussian_noise(Ball(radius, 2), ZCDP(1), Adjacency.REPLACE_ONE, gain=gain)
    earned = (2 * Fraction(radius) * Fraction(gain) / Fraction(noise.std)) ** 2
    assert earned <= 2 <= earned * (1 + Fraction(1, 10**10))


@pytest.mark.parametrize(
    "calibrated",
    [
        lambda budget: NoisySum.calibrated(Ball(1.0, 2), budget),
        lambda budget: NoisySum.calibrated(Ball(1.0, 2), budget, noise="generalized-gaussian"),
        lambda budget: PrefixSum.calibrated(Ball(1.0, 2), budget, horizon=4),
        lambda budget: BatchedPrefixSum.calibrated(Ball(1.0, 2), budget, sizes=(2, 2)),
        lambda budget: OneOfK.calibrated(Ball(1.0, 2), budget, arms=2),
        lambda budget: ReportNoisyMax.calibrated(CrossPolytope(2), 1.0, budget),
        lambda budget: NoisyMaxStream.calibrated(CrossPolytope(2), 1.0, budget, horizon=4),
        lambda budget: ObjectivePerturbation.calibrated(
            LinearObjective.logistic(2), budget, max_rows=9
        ),
    ],
)
def test_a_promise_is_no_currency_and_the_error_says_how_to_get_one(
    calibrated: Callable[[Any], object],
) -> None:
    promise = ApproxDP(1, "1e-6")
    with pytest.raises(CurrencyError, match="ZCDP"):
        calibrated(promise)
    calibrated(CentralAccountant(promise, users=range(9), ledger=Ledger.memory()).budget)
