"""The public belief: what released sums say about θ, and the schedule of public batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.learners.newton import Belief, batch_ends, capped_ends, public_ends, shrunk
from privlearn.learners.newton_correlated import MixedStatistics
from privlearn.learners.pooled_belief import Noise, PooledStatistics, _deviations, _towards_identity
from privlearn.mechanisms.choice_model import (
    NO_ITEM,
    Answer,
    clip_items,
    fit_mle,
    gradients,
    hessian_factors,
    utilities,
)
from privlearn.rows.domains import Array

THETA = np.array([0.8, -0.4, 0.3])


def answers(n: int, seed: int) -> Answer:
    """Users with an outside option who choose by the logit with parameter `THETA`."""
    rng = np.random.default_rng(seed)
    features = clip_items(rng.normal(size=(n, 4, 3)))
    values = np.concatenate([utilities(features, THETA), np.zeros((n, 1))], axis=1)
    place = (values - np.log(-np.log(rng.random((n, 5))))).argmax(axis=1)
    return Answer(features, np.ones((n, 4)), np.where(place == 4, NO_ITEM, place))


def sums(answer: Answer, at: Array) -> tuple[Array, Array]:
    factors = hessian_factors(answer, at, outside=True).reshape(-1, 3)
    return gradients(answer, at, outside=True).sum(axis=0), factors.T @ factors


def pooled(prior: float, gradient: float = 0.0, hessian: float = 0.0) -> PooledStatistics:
    """For noise of its own in each batch, with these standard deviations."""

    def noise(std: float) -> Noise:
        return lambda batches: std**2 * np.eye(len(batches))

    return PooledStatistics(3, prior, noise(gradient), noise(hessian))


class Mixed:
    """As `pooled`, of the other belief."""

    def __init__(self, prior: float, gradient: float = 0.0, hessian: float = 0.0) -> None:
        self._made = MixedStatistics(
            3,
            prior,
            lambda batches: gradient**2 * np.eye(len(batches)),
            lambda batches: hessian**2 * np.eye(len(batches)),
        )

    @property
    def belief(self) -> Belief:
        return self._made.belief

    def add(self, batch: int, users: float, at: Array, gradient: Array, hessian: Array) -> None:
        self._made.add(batch, at, gradient, hessian)


both = pytest.mark.parametrize("made", [pooled, Mixed])


@both
def test_without_noise_large_batches_recover_the_truth(made: Any) -> None:
    statistics = made(1e-3)
    for k, n in enumerate((2_000, 20_000, 40_000)):
        at = statistics.belief.mean
        statistics.add(k, n, at, *sums(answers(n, k), at))
    belief = statistics.belief
    assert np.abs(belief.mean - THETA).max() < 0.03
    spread = belief.spread(np.eye(3))
    assert (np.abs(belief.mean - THETA) < 4 * spread).all(), "the belief knows how good it is"


@both
def test_without_noise_one_batch_at_the_optimum_is_the_ridge_estimate(made: Any) -> None:
    answer = answers(500, 9)
    fit = fit_mle(answer, outside=True)
    gradient, hessian = sums(answer, fit)
    statistics = made(2.0)
    statistics.add(0, 500, fit, gradient, hessian)
    belief = statistics.belief
    assert belief.precision == pytest.approx(hessian + 2 * np.eye(3), rel=1e-9)
    assert belief.mean == pytest.approx(np.linalg.solve(belief.precision, hessian @ fit), rel=1e-5)


def test_before_any_evidence_the_belief_is_the_prior() -> None:
    belief = pooled(2.5, 1.0, 1.0).belief
    assert belief.mean.tolist() == [0, 0, 0]
    assert belief.precision.tolist() == (2.5 * np.eye(3)).tolist()


@given(
    seed=st.integers(0, 10_000),
    batches=st.integers(1, 6),
    size=st.sampled_from([1e-6, 1.0, 100.0, 1e6]),
    noise=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
)
def test_information_is_never_negative_whatever_was_released(
    seed: int, batches: int, size: float, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    statistics = pooled(1.5, noise, noise)
    for k in range(batches):
        half = size * rng.normal(size=(3, 3))
        statistics.add(k, 10 * 2**k, rng.normal(size=3), size * rng.normal(size=3), half + half.T)
        belief = statistics.belief
        lowest = np.linalg.eigvalsh(belief.precision).min()
        assert lowest >= 1.5 * (1 - 1e-6) - 1e-12 * size
        assert np.isfinite(belief.mean).all()
        assert belief.precision == pytest.approx(belief.precision.T, rel=1e-9, abs=1e-9 * size)


@both
def test_more_gradient_noise_means_less_information(made: Any) -> None:
    at = np.zeros(3)
    gradient, hessian = sums(answers(300, 4), at)
    lowest = []
    for std in (0.0, 3.0, 10.0, 100.0, 1e6):
        statistics = made(1.0, std)
        statistics.add(0, 300, at, gradient, hessian)
        lowest.append(np.linalg.eigvalsh(statistics.belief.precision).min())
    assert (np.diff(lowest) < 0).all()
    assert lowest[-1] == pytest.approx(1.0, abs=1e-6), "only the prior is left"


@both
def test_the_information_of_one_batch_is_that_of_its_noisy_newton_step(made: Any) -> None:
    """W = H(H + σ²I)⁻¹H is the inverse of the covariance H⁻¹(H + σ²I)H⁻¹ of θ_k − H⁻¹g."""
    at = np.array([0.2, 0.1, -0.3])
    gradient, hessian = sums(answers(400, 5), at)
    statistics = made(1.0, 6.0)
    statistics.add(0, 400, at, gradient, hessian)
    inverse = np.linalg.inv(hessian)
    covariance = inverse @ (hessian + 36 * np.eye(3)) @ inverse
    information = np.linalg.inv(covariance)
    belief = statistics.belief
    assert belief.precision == pytest.approx(information + np.eye(3), rel=1e-9)
    moment = information @ (at - inverse @ gradient)
    assert belief.mean == pytest.approx(np.linalg.solve(belief.precision, moment), rel=1e-9)


@given(seed=st.integers(0, 10_000), d=st.integers(1, 5), noise=st.floats(0, 1e3))
def test_shrinking_stays_between_target_and_matrix(seed: int, d: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(2, d, d))
    found = shrunk(matrix, target, noise)
    whole, kept = (float(np.linalg.norm(m - target)) for m in (matrix, found))
    assert kept <= whole * (1 + 1e-12)
    assert found - target == pytest.approx(kept / whole * (matrix - target), abs=1e-9)
    assert kept == pytest.approx(whole * max(0.0, 1 - noise / whole**2), abs=1e-9)


def test_shrinking_by_no_noise_or_all_noise_or_to_itself() -> None:
    matrix, target = np.diag([3.0, 1.0]), np.eye(2)
    assert np.array_equal(shrunk(matrix, target, 0.0), matrix)
    assert np.array_equal(shrunk(matrix, target, 4.0), target)
    assert np.array_equal(shrunk(target, target, 1.0), target)
    assert np.array_equal(shrunk(target, target, 0.0), target)


def test_errors_of_the_hessian_count_as_noise() -> None:
    at = np.zeros(3)
    gradient, hessian = sums(answers(300, 4), at)
    precisions = []
    for noise in (0.0, 1.0, 8.0):
        statistics = pooled(1.0, 3.0, noise)
        statistics.add(0, 300, at, gradient, hessian)
        precisions.append(float(np.trace(statistics.belief.precision)))
    assert (np.diff(precisions) < 0).all()


@both
def test_what_batches_have_apart_is_taken_at_their_own_parameters(made: Any) -> None:
    """Without noise, exact linear gradients give θ whatever the shares and the parameters are."""
    rng, statistics = np.random.default_rng(3), made(1e-9)
    for k, n in enumerate((50, 80, 400)):
        half, at = rng.normal(size=(3, 3)), rng.normal(size=3)
        hessian = n * half @ half.T
        statistics.add(k, 100, at, hessian @ (at - THETA), hessian)
    assert statistics.belief.mean == pytest.approx(THETA, abs=1e-6)


def test_shrunk_hessians_are_nearer_to_the_truth_than_noisy_ones() -> None:
    rng = np.random.default_rng(0)
    raw, better = 0.0, 0.0
    shares, covariance = np.array([1, 2, 4]) / 7, 25.0 * np.eye(3)
    for seed in range(40):
        true = [sums(answers(n, 100 * seed + n), np.zeros(3))[1] for n in (30, 60, 120)]
        half = rng.normal(size=(3, 3, 3))
        noise = 5.0 * (np.triu(half, 1) + np.triu(half, 1).swapaxes(1, 2)) / math.sqrt(2)
        noise += 5.0 * np.eye(3) * half
        found = np.stack(true) + noise
        total = found.sum(axis=0)
        apart = _deviations(found, total, shares, covariance)
        whole = _towards_identity(total, float(covariance.sum()), 0.4 * (30 + 60 + 120))
        denoised = shares[:, None, None] * whole + apart
        raw += float(np.linalg.norm(noise) ** 2)
        better += float(np.linalg.norm(denoised - np.stack(true)) ** 2)
    assert better < 0.5 * raw


def test_the_spread_is_the_standard_deviation_of_a_utility() -> None:
    rng = np.random.default_rng(1)
    half = rng.normal(size=(3, 3))
    precision = half @ half.T + np.eye(3)
    features = rng.normal(size=(2, 5, 3))
    expected = np.sqrt(np.einsum("nki,ij,nkj->nk", features, np.linalg.inv(precision), features))
    assert Belief(np.zeros(3), precision).spread(features) == pytest.approx(expected, rel=1e-9)


@given(
    horizon=st.integers(1, 5_000),
    share=st.floats(0.0, 1.0),
    growth=st.floats(1.0001, 20),
)
def test_batches_fill_the_horizon_exactly_and_begin_as_asked(
    horizon: int, share: float, growth: float
) -> None:
    first = max(1, round(share * horizon))
    ends = batch_ends(horizon, first, growth)
    assert ends[-1] == horizon
    sizes = np.diff([0, *ends])
    assert (sizes >= 1).all(), "strictly increasing"
    assert ends[0] == first or ends == [horizon]
    if ends == [horizon]:
        # One batch only where two could not both be full, or where growth makes one nearest.
        assert 2 * first > horizon or first * (1 + growth) > horizon
    assert (np.diff(sizes) >= -1).all(), "no batch is smaller than the one before, but for rounding"


@given(first=st.integers(20, 100), horizon=st.integers(2_000, 50_000), growth=st.floats(1.2, 3.0))
def test_batches_grow_by_about_the_asked_ratio(first: int, horizon: int, growth: float) -> None:
    sizes = np.diff([0, *batch_ends(horizon, first, growth)])
    n = len(sizes)
    ratios = sizes[1:] / sizes[:-1]
    middle = float((sizes[-1] / sizes[0]) ** (1 / (n - 1)))
    assert np.abs(ratios / middle - 1).max() < 3 / first, "one ratio throughout, but for rounding"
    # The number of batches is off by at most one half, which moves the exponent by as much.
    assert abs(math.log(middle) / math.log(growth) - 1) < 1 / (n - 1)


def test_a_growth_near_one_gives_equal_batches_and_not_a_single_one() -> None:
    assert batch_ends(30, 10, 1.05) == [10, 20, 30]
    assert batch_ends(1000, 10, 1.0001) == list(range(10, 1001, 10))
    assert batch_ends(2, 1, 1.5) == [1, 2]


def test_known_schedules() -> None:
    assert batch_ends(70, 10, 2.0) == [10, 30, 70]
    assert batch_ends(10, 10, 2.0) == [10]
    assert batch_ends(1, 1, 1.5) == [1]
    assert batch_ends(19, 10, 1.5) == [19]


@pytest.mark.parametrize("first", [0, -3, 11])
def test_a_first_batch_outside_the_horizon_is_refused(first: int) -> None:
    with pytest.raises(ValueError, match=f"first_batch = {first}: must lie in 1..10"):
        batch_ends(10, first, 1.5)


def test_public_ends_begin_above_the_noise_within_an_eighth_and_grow_to_a_thirtieth() -> None:
    for horizon, rho, first in ((10_000, 1.0, 15), (10_000, 0.1, 48), (100, 0.1, 12), (5, 0.1, 1)):
        ends = public_ends(horizon, 5, rho)
        assert (ends[0], ends[-1]) == (first, horizon)
        assert max(np.diff([0, *ends])) <= 1.5 * max(horizon / 30, first)
    assert public_ends(1_000, 5, 1.0, first=100, longest=200, growth=2.0)[:3] == [100, 300, 500]
    with pytest.raises(ValueError, match="longest_batch = 5: must be at least 10"):
        capped_ends(100, 10, 1.5, 5)
