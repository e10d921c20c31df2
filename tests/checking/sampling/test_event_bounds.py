"""Bounds from one event: exact coverage by enumeration, and the choice of the event."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from privlearn.checking.sampling.check import Claim, best_cut, border, claim_of, event_bound
from privlearn.losses import ApproxLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP

EVENTS = [
    (claim_of(PureDP(1)), math.e / (1 + math.e), 1 / (1 + math.e)),
    (claim_of(PureDP(1)), 0.02 * math.e, 0.02),
    (claim_of(PureDP(0)), 0.3, 0.3),
    (claim_of(ApproxDP(1, "0.1")), 0.1, 0.0),
    (claim_of(ApproxDP(1, "0.1")), 0.1 + 0.9 * math.e / (1 + math.e), 0.9 / (1 + math.e)),
    (claim_of(GaussianDP(1)), norm.sf(-0.5), norm.sf(0.5)),
    (claim_of(GaussianDP(2)), norm.sf(0.0), norm.sf(2.0)),
    (claim_of(ApproxLoss(1, "0.05")), 0.05 + 0.95 * math.e / (1 + math.e), 0.95 / (1 + math.e)),
]


def exact_alarms(claim: Claim, p: float, q: float, n: int, m: int, confidence: float) -> float:
    """How often the bound is above the truth, summed over all counts."""
    truth = float(claim.strength(np.array([p]), np.array([q]))[0])
    first, second = binom.pmf(np.arange(n + 1), n, p), binom.pmf(np.arange(m + 1), m, q)
    total = 0.0
    for k in np.flatnonzero(first > 1e-7):
        for low in np.flatnonzero(second > 1e-7):
            if event_bound(claim, int(k), n, int(low), m, confidence) > truth:
                total += first[k] * second[low]
    return total


@pytest.mark.calibration
@pytest.mark.parametrize(("claim", "p", "q"), EVENTS)
@pytest.mark.parametrize("confidence", [0.95, 0.7])
def test_the_bound_is_above_the_truth_as_rarely_as_stated(
    claim: Claim, p: float, q: float, confidence: float
) -> None:
    assert exact_alarms(claim, p, q, 22, 17, confidence) <= 1 - confidence + 1e-5


def test_exact_coverage_catches_a_bound_that_is_too_bold() -> None:
    claim, p, q = EVENTS[0]
    assert exact_alarms(claim, p, q, 22, 17, 0.8) > 0.05  # as if 80% were 95%


@settings(max_examples=40, deadline=None)
@given(n=st.integers(5, 400), m=st.integers(5, 400), k=st.floats(0, 1), low=st.floats(0, 1))
def test_the_border_is_where_the_product_of_tails_is_critical(
    n: int, m: int, k: float, low: float
) -> None:
    hits, misses = max(int(k * n), 1), min(int(low * m), m - 1)
    p, q = border(hits, n, misses, m, 0.95, np.linspace(0.1, 0.9, 9))
    products = np.asarray(binom.sf(hits - 1, n, p) * binom.cdf(misses, m, q))
    critical = float(products[0])
    assert products == pytest.approx(critical, rel=1e-6)
    assert critical * (1 - np.log(critical)) == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("claim", [claim for claim, _, _ in EVENTS] + [claim_of(ZCDP("0.5"))])
def test_the_least_strength_is_found_on_the_whole_border(claim: Claim) -> None:
    at = np.linspace(0, 1, 20_001)
    for k, n, low, m in ((30, 60, 3, 50), (5, 400, 0, 400), (60, 60, 59, 60), (40, 100, 35, 90)):
        wanted = float(claim.strength(*border(k, n, low, m, 0.95, at)).min())
        found = event_bound(claim, k, n, low, m, 0.95)
        assert wanted * (1 - 1e-4) - 1e-9 <= found <= wanted + 1e-12


def test_counts_that_say_nothing_give_no_bound() -> None:
    for claim in (EVENTS[0][0], EVENTS[5][0], claim_of(ZCDP("0.5"))):
        assert event_bound(claim, 0, 50, 0, 50, 0.95) == 0
        assert event_bound(claim, 50, 50, 50, 50, 0.95) == 0
        assert event_bound(claim, 20, 50, 30, 50, 0.95) == 0


@pytest.mark.calibration
def test_an_event_chosen_on_the_outputs_that_judge_it_would_alarm_too_often() -> None:
    claim = claim_of(PureDP("0.2"))
    honest = fooled = 0
    rng = np.random.default_rng(3)
    for _ in range(300):
        # Twenty pairs of cells, in each of which the data sets differ by exactly e^0.2.
        x, y = (
            (2 * rng.integers(20, size=(2, 60)) + (rng.random((2, 60)) < r / (1 + r)))
            for r in (np.exp(0.2), np.exp(-0.2))
        )
        learned = np.bincount(x[0], minlength=40) - np.bincount(y[0], minlength=40)
        scores = learned.astype(float)
        cut = best_cut(claim, scores[x[0]], scores[y[0]], 60)
        for part in (0, 1):
            u, v = cut.holds(scores[x[part]]).sum(), cut.holds(scores[y[part]]).sum()
            k, low = (u, v) if cut.above else (v, u)
            bound = event_bound(claim, int(k), 60, int(low), 60, 0.95)
            honest += part == 1 and bound > 0.2
            fooled += part == 0 and bound > 0.2
    assert honest <= binom.ppf(0.999, 300, 0.05) < fooled


def test_thresholds_stand_between_scores_and_bear_infinite_ones() -> None:
    claim = claim_of(PureDP(1))
    cut = best_cut(claim, np.array([1.0] * 90 + [0.0] * 10), np.zeros(100), 100)
    assert cut.above
    assert 0 < cut.threshold < 1
    below = best_cut(claim, np.zeros(100), np.array([-1.0] * 90 + [0.0] * 10), 100)
    assert below.holds(np.array([0.0, -1.0])).tolist() == (
        [True, False] if below.above else [False, True]
    )
    for value in (-1e100, 1e100):
        extreme = best_cut(claim, np.full(50, value), np.zeros(50), 50)
        assert np.isfinite(extreme.threshold)
