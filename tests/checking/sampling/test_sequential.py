"""Bets: fair at every number by exact expectation, inverted into bounds, alarms as stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import Generator
from scipy.stats import binom

from privlearn.checking.sampling.claims import Claim, claim_of
from privlearn.checking.sampling.event_bounds import event_bound
from privlearn.checking.sampling.sequential import (
    EProcess,
    _Segment,
    best_moment,
    bets_on,
    calibrated,
    moment_bound,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.rows.domains import Array

E = float(math.e)
RESPONSE = np.array([1, E]) / (1 + E)
FOUR = np.array([0.0, 0.95 / (1 + E), 0.95 * E / (1 + E), 0.05])


def zcdp_response(rho: float) -> Array:
    """The pair (1−p, p), (p, 1−p) that fills a zCDP claim exactly."""
    claim, low, high = claim_of(ZCDP(str(rho))), 0.5, 1 - 1e-9
    for _ in range(60):
        p = (low + high) / 2
        too_much = claim.strength(np.array([p]), np.array([1 - p]))[0] > rho
        low, high = (low, p) if too_much else (p, high)
    return np.array([1 - low, low])


# Laws on 0, 1, ...: promise, P; Q is P turned round, and the claim holds with nothing to spare.
TIGHT = [
    (PureDP(1), RESPONSE),
    (ApproxDP(1, "0.05"), FOUR),
    (ApproxDP(0, "0.05"), np.array([0.0, 0.475, 0.475, 0.05])),
    (ZCDP("0.5"), zcdp_response(0.5)),
    (ZCDP("2"), zcdp_response(2.0)),
    (Renyi({20: "1"}), np.array([0.5, 0.5])),
]
KINDS = [claim_of(promise) for promise, _ in TIGHT] + [claim_of(GaussianDP(1))]


def sample(law: Array, rng: Generator, n: int) -> Array:
    return np.searchsorted(np.cumsum(law), rng.random(n)).clip(max=len(law) - 1).astype(float)


def played(claim: Claim, first: Array, second: Array, step: int = 40) -> tuple[EProcess, float]:
    """EProcess that stop when they may, and the largest log stake."""
    bettors, most = EProcess(claim), -np.inf
    for n in range(64, len(first), step):
        new = first[n : n + step], second[n : n + step]
        runs = bettors.play((first[:n], second[:n]), new)
        most = max(most, float(runs.max()))
        hit = np.flatnonzero(runs >= -np.log(0.05))
        if hit.size:
            bettors.cut(int(hit[0]) + 1)
            break
    return bettors, most


def segments(claim: Claim, first: Array, second: Array) -> list[_Segment]:
    bettors = EProcess(claim)
    bettors.play((first, second), (first[:5], second[:5]))
    return bettors._rounds[0]


@pytest.mark.parametrize("claim", KINDS, ids=lambda c: c.text)
@pytest.mark.parametrize("shift", [0.0, 0.7, 3.0])
def test_no_outcome_ruins_anybody_at_any_number_and_factors_fall_with_it(
    claim: Claim, shift: float
) -> None:
    rng = np.random.default_rng(5)
    first, second = rng.normal(shift, 1, 300), rng.normal(0, 1, 300)
    for segment in segments(claim, first, second):
        worst = _Segment(
            segment.weights, segment.bets, segment.weights @ segment.bets.least[:, None]
        )
        before = np.full(segment.paid.shape, np.inf)
        for value in (0.0, 1e-3, 0.3, 0.9, 1.0, 1.2, 2.0, 7.0, 300.0):
            assert worst.factors(value).min() > 0
            now = segment.factors(value)
            assert (now <= before * (1 + 1e-9)).all()
            before = now


@pytest.mark.parametrize(("promise", "law"), TIGHT, ids=lambda x: str(x)[:20])
def test_a_bet_is_unfavourable_under_every_number_that_is_true(promise: object, law: Array) -> None:
    claim = claim_of(promise)
    p, q = law, law[::-1]
    rng = np.random.default_rng(2)
    skewed = sample(np.roll(p, 1), rng, 300), sample(q, rng, 300)  # stakes that believe in a leak
    honest = sample(p, rng, 300), sample(q, rng, 300)
    points = np.arange(len(p), dtype=float)
    x, y = (axis.ravel() for axis in np.meshgrid(points, points, indexing="ij"))
    chance = np.outer(p, q).ravel()
    for past in (skewed, honest):
        for segment in segments(claim, *past):
            bets = segment.bets
            paid = segment.weights @ (bets.gain(x) - bets.cost(y))
            for value in (claim.value, 1.3 * claim.value, 4 * claim.value + 0.1):
                factors = _Segment(segment.weights, bets, paid).factors(value)
                assert (factors >= 0).all()
                assert (factors @ chance).max() <= 1 + 1e-9


def test_cutting_off_negative_factors_would_not_be_fair() -> None:
    # What the smaller stakes at larger numbers are for: a factor cut off at 0 has mean above 1.
    segment = _Segment(
        np.array([[5.0]]),
        bets_on(claim_of(PureDP(1)), 1.0, np.arange(9.0), np.arange(9.0)),
        np.zeros((1, 1)),
    )
    k = len(segment.bets.least)
    weights = np.zeros((1, k))
    weights[0, 0] = 3.0
    limits = weights @ segment.bets.limits(1.0)
    outcomes = np.array([[1.0, float(segment.bets.least[0])]]) * 3.0
    mean_zero = (limits[0] - outcomes[0, 1]) / (outcomes[0, 0] - outcomes[0, 1])
    chance = np.array([mean_zero, 1 - mean_zero])
    cut_off = np.maximum(1 + outcomes - limits[:, None], 0.0)
    ours = _Segment(weights, segment.bets, outcomes).factors(1.0)
    assert (cut_off @ chance)[0] > 1.01
    assert (ours @ chance)[0] == pytest.approx(1.0)


@pytest.mark.calibration
@pytest.mark.parametrize(("promise", "law"), TIGHT[:4], ids=lambda x: str(x)[:20])
def test_correct_laws_are_accused_no_more_often_than_stated(promise: object, law: Array) -> None:
    claim, alarms = claim_of(promise), 0
    runs = 60
    for seed in range(runs):
        rng = np.random.default_rng([11, seed])
        bettors, _ = played(claim, sample(law, rng, 220), sample(law[::-1], rng, 220), 52)
        alarms += bettors.bound(0.95) > claim.value
    assert alarms <= binom.ppf(0.999, runs, 0.05)


@pytest.mark.calibration
def test_looking_again_and_again_at_a_bound_for_one_look_would_accuse_correct_laws() -> None:
    claim, alarms = claim_of(PureDP(1)), 0
    for seed in range(60):
        rng = np.random.default_rng([12, seed])
        first, second = sample(RESPONSE, rng, 2000), sample(RESPONSE[::-1], rng, 2000)
        looks = range(40, 2000, 40)
        alarms += any(
            event_bound(claim, int(first[:n].sum()), n, int(second[:n].sum()), n, 0.95) > 1
            for n in looks
        )
    assert alarms > binom.ppf(0.999, 60, 0.05)


@pytest.mark.calibration
def test_bounds_stay_below_the_truth_where_the_claim_is_false() -> None:
    for promise, shift, truth in (
        (GaussianDP(1), 2.0, 2.0),
        (ZCDP("0.5"), 2.0, 2.0),
        (GaussianDP(0), 1.0, 1.0),
    ):
        for seed in range(6):
            rng = np.random.default_rng([13, seed])
            bettors, most = played(
                claim_of(promise), rng.normal(shift, 1, 500), rng.normal(0, 1, 500)
            )
            assert most > -np.log(0.05)
            assert claim_of(promise).value < bettors.bound(0.95) < truth


def test_a_bound_is_where_the_stake_just_passes() -> None:
    rng = np.random.default_rng(1)
    claim = claim_of(PureDP(1))
    bettors, _ = played(claim, rng.normal(3, 1, 400), rng.normal(0, 1, 400))
    bold, usual, shy = (bettors.bound(c) for c in (0.5, 0.95, 0.999))
    assert shy < usual < bold
    assert EProcess(claim).bound(0.95) == 0


@pytest.mark.parametrize("turned", [False, True])
def test_moments_see_either_direction(turned: bool) -> None:
    # An output that only one data set gives; only one of the two divergences is large.
    rng = np.random.default_rng(4)
    rare, never = (rng.random(1500) < 0.2).astype(float), np.zeros(1500)
    first, second = (1 - never, 1 - rare) if turned else (rare, never)
    _, most = played(claim_of(ZCDP("0.05")), first, second, 100)
    assert most > -np.log(0.05)


@pytest.mark.calibration
def test_fixed_moments_bound_the_divergence_and_cover() -> None:
    claim, above, found = claim_of(ZCDP("0.1")), 0, []
    for seed in range(60):
        rng = np.random.default_rng([14, seed])
        chosen = best_moment(claim, rng.normal(1, 1, 200), rng.normal(0, 1, 200), 300, 0.95)
        assert chosen is not None
        bound = moment_bound(claim, chosen, rng.normal(1, 1, 300), rng.normal(0, 1, 300), 0.95)
        above += bound > 0.5
        found.append(bound)
    assert above <= binom.ppf(0.999, 60, 0.05)
    assert np.median(found) > 0.15


@pytest.mark.calibration
def test_fixed_moments_cover_at_a_law_that_fills_the_claim() -> None:
    claim, above = claim_of(ZCDP("0.5")), 0
    law = zcdp_response(0.5)
    for seed in range(150):
        rng = np.random.default_rng([15, seed])
        chosen = best_moment(claim, sample(law, rng, 60), sample(law[::-1], rng, 60), 60, 0.9)
        assert chosen is not None
        x, y = sample(law, rng, 60), sample(law[::-1], rng, 60)
        above += moment_bound(claim, chosen, x, y, 0.9) > 0.5
    assert above <= binom.ppf(0.999, 150, 0.1)


def test_calibration_finds_the_log_ratio_of_normal_scores() -> None:
    rng = np.random.default_rng(6)
    ratio = calibrated(rng.normal(3, 1, 4000), rng.normal(2, 1, 4000))
    assert ratio(np.array([2.5, 3.5])) == pytest.approx([0.0, 1.0], abs=0.12)
    flat = calibrated(np.zeros(20), np.zeros(20))
    assert flat(np.array([0.0])) == pytest.approx([0.0])
