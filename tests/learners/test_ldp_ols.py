"""LDP-OLS: its price, what it learns with and without noise, and that no sums can break it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from privlearn.learners.ldp_ols import LDPOLS
from privlearn.learners.local.protocol import Arrays, LocalBanditConfig
from privlearn.losses.budgets import GaussianDP
from privlearn.losses.conversion import gaussian_mu
from privlearn.mechanisms import NoisyReport, OneOfKReport
from privlearn.rows.domains import Ball
from privlearn_studies.rivals.local import PublishedOLS
from privlearn_studies.simulated.local_bandit import LocalMarket, arm_market, serve, shared_market


def ols(**changed: Any) -> LDPOLS:
    numbers = {"dim": 2, "n_arms": 10, "horizon": 3000, "shared": True, "epsilon": 1.0}
    return LDPOLS(**{**numbers, **changed})


def random_play(market: LocalMarket) -> float:
    return float((market.means.max(axis=1) - market.means.mean(axis=1)).sum())


def served(method: Any, market: LocalMarket, seed: int) -> float:
    return float(serve(method, market, noise_seed=seed).regrets.sum())


def taught(method: LDPOLS, market: LocalMarket, upto: int | None = None) -> Arrays:
    """The state after batches whose sums have no noise."""
    state, starts = method.start(), method.batches()
    for batch in range(len(starts) - 1 if upto is None else upto):
        own = slice(starts[batch], starts[batch + 1])
        users, model = np.arange(own.start, own.stop), method.model(state)
        warming = own.start < method.warm_up()
        if warming:
            arms = users % method.n_arms
        else:
            arms = method.scores(model, market.contexts[own]).argmax(axis=1)
        contexts, rewards = market.pulled(own, arms)
        scale = np.maximum(np.linalg.norm(contexts, axis=1) / method.context_bound, 1.0)
        factors = method.record(model, batch, contexts / scale[:, None], arms, rewards)
        rows = method.domain.clip(factors)
        of = np.zeros(len(users), dtype=int) if method.shared else arms
        sums = np.stack([rows[of == part].sum(axis=0) for part in range(method.parts)])
        every = np.full(method.parts, len(users))
        counts = np.bincount(of, minlength=method.parts) if warming else every
        state = method.step(state, batch, sums, counts)
    return state


# The price ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0])
def test_the_noise_is_the_least_that_epsilon_and_delta_allow(epsilon: float) -> None:
    method = ols(epsilon=epsilon, delta=0.01)
    run = serve(
        ols(epsilon=epsilon, delta=0.01, horizon=20),
        shared_market(200, horizon=20),
        noise_seed=1,
    )
    assert 0.9999 * epsilon < run.epsilon <= epsilon
    assert method.report().error_std() == pytest.approx(
        2 * math.sqrt(2) / gaussian_mu(epsilon, 0.01)
    )


def test_the_matrix_comes_at_the_price_of_the_moment_alone() -> None:
    budget = GaussianDP(gaussian_mu(1.0, 0.01))
    alone = NoisyReport.calibrated(Ball(1.0, 3), budget).error_std()
    method = ols(dim=3)
    # off the diagonal a svec entry is √2 times that of the matrix
    assert method.report().error_std() / math.sqrt(2) == pytest.approx(alone)
    half = GaussianDP(gaussian_mu(0.5, 0.005))
    split = NoisyReport.calibrated(Ball(1.0, 3), half).error_std()
    assert split > 1.8 * alone


def test_synthetic_updates_cost_what_one_arm_does() -> None:
    method = ols(n_arms=3, shared=False, delta=0.1)
    whole = OneOfKReport(method.report(), 3)
    assert whole.loss() == method.report().loss()
    assert LocalBanditConfig(name="a", method=method).loss() == whole.loss()


# What it learns -----------------------------------------------------------------------------------


def test_it_learns_where_the_published_form_does_not() -> None:
    ours, published, chance = [], [], []
    for seed in range(200, 203):
        market = shared_market(seed, horizon=3000, dim=4)
        sizes = {**market.public, "epsilon": 1.0, "delta": 0.01}
        ours.append(served(LDPOLS(**sizes), market, seed))
        published.append(served(PublishedOLS(**sizes), market, seed))
        chance.append(random_play(market))
    assert np.mean(ours) < 0.25 * np.mean(chance)
    assert np.mean(ours) < 0.5 * np.mean(published)


def test_with_a_theta_per_arm_synthetic_updates_go_on_teaching() -> None:
    market = arm_market(203, horizon=3000, dim=3)
    sizes = {**market.public, "epsilon": 2.0, "delta": 0.1}
    method = LDPOLS(**sizes)
    regrets = serve(method, market, noise_seed=3).regrets
    by_chance = (market.means.max(axis=1) - market.means.mean(axis=1)).mean()
    early = regrets[method.warm_up() : 2 * method.warm_up()].mean()
    assert early < 0.7 * by_chance
    assert regrets[2000:].mean() < 0.5 * early
    assert regrets.sum() < served(PublishedOLS(**sizes, warm_up_users=900), market, 3)


def test_without_noise_it_finds_theta_on_narrow_contexts_too() -> None:
    for design in ("sphere", "anisotropic"):
        market = shared_market(204, horizon=3000, dim=4, design=design)
        state = taught(LDPOLS(**market.public, epsilon=20.0), market)
        shown = market.contexts @ state["theta"][0]
        assert np.abs(shown - market.means).mean() < 0.02


def test_a_context_bound_is_a_unit() -> None:
    market = shared_market(205, horizon=500, dim=3)
    wide = LocalMarket(10 * market.contexts, market.rewards, market.means, 10.0, -1.0, 1.0)
    one = taught(LDPOLS(**market.public, epsilon=5.0), market)
    ten = taught(LDPOLS(**wide.public, epsilon=5.0, theta_bound=0.1), wide)
    np.testing.assert_allclose(10 * ten["theta"], one["theta"], rtol=1e-8)


def test_the_scale_falls_with_the_residuals_but_not_below_the_noise_of_the_rewards() -> None:
    scales = {}
    for sd in (0.0, 0.4):
        market = shared_market(206, dim=2, horizon=4000, reward_sd=sd)
        state = taught(LDPOLS(**market.public, epsilon=20.0), market)
        scales[sd] = float(state["clip"][0])
    assert scales[0.0] < 0.05
    assert 0.1 < scales[0.4] < 0.6


# Warm-up and elimination --------------------------------------------------------------------------


def test_an_eliminated_arm_is_not_pulled_however_good_it_looks_later() -> None:
    method = ols(n_arms=3, shared=False)
    model = {
        "theta": np.array([[0.0, 0.0], [5.0, 0.0], [1.0, 0.0]]),
        "clip": np.ones(3),
        "first": np.array([[1.0, 0.0], [0.2, 0.0], [0.9, 0.0]]),
        "margin": np.array([0.5]),
    }
    scores = method.scores(model, np.array([[1.0, 0.0], [-1.0, 0.0], [0.1, 0.0]]))
    assert scores[0].tolist() == [0.0, -math.inf, 1.0]
    assert scores[1].tolist() == [-math.inf, -5.0, -math.inf]
    assert scores[2].argmax() == 1


def test_the_warm_up_leaves_a_margin_of_three_deviations_and_only_those_arms_are_pulled() -> None:
    market = arm_market(207, horizon=3000, dim=2)
    method = LDPOLS(**market.public, epsilon=20.0, delta=0.1, warm_up_users=600)
    state = taught(method, market)
    first, margin = state["first"], float(state["margin"][0])
    assert 0 < margin < 1.5
    assert np.abs(first - state["theta"]).max() < 0.3
    scores = method.scores(method.model(state), market.contexts)
    behind = market.contexts @ first.T
    behind = behind.max(axis=1, keepdims=True) - behind
    assert np.array_equal(np.isneginf(scores), behind > margin)
    assert np.isneginf(scores).mean() > 0.2
    run = serve(method, market, noise_seed=4)
    assert run.arms[:600].tolist() == [user % 3 for user in range(600)]


def test_a_margin_may_be_given() -> None:
    market = arm_market(207, horizon=900, dim=2)
    state = taught(LDPOLS(**market.public, epsilon=5.0, delta=0.1, margin=0.25), market)
    assert state["margin"].tolist() == [0.25]


def test_the_warm_up_grows_with_the_noise_and_has_a_fifth_at_most() -> None:
    def length(**changed: Any) -> int:
        return ols(n_arms=3, shared=False, delta=0.1, horizon=10_000, **changed).warm_up()

    assert 50 < length(epsilon=5.0) < length(epsilon=1.0) < length(epsilon=1.0, dim=10) < 2000
    assert length(epsilon=0.1, dim=50) == 2000
    assert ols().warm_up() == 0
    assert ols(n_arms=3, shared=False, warm_up_users=7).warm_up() == 7


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize(
    ("diagonal", "rest", "users"),
    [
        (0.0, 0.0, 0),
        (0.0, 0.0, 1),
        (-1e3, 0.0, 10),
        (1e3, 1e3, 10),
        (-1e9, 1e9, 1000),
        (1e12, -1e12, 1),
        (1e-300, 1e-300, 5),
    ],
)
def test_no_sums_make_it_worse_than_a_bounded_estimate(
    shared: bool, dim: int, diagonal: float, rest: float, users: int
) -> None:
    method = ols(dim=dim, n_arms=3, shared=shared, horizon=2000, theta_bound=2.0)
    matrix = np.full((dim + 1, dim + 1), rest)
    np.fill_diagonal(matrix, diagonal)
    rows, columns = np.triu_indices(dim + 1)
    svec = matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2))
    state = method.start()
    for batch in range(len(method.batches()) - 1):
        sums = np.tile(svec, (method.parts, 1)) * (-1) ** batch
        state = method.step(state, batch, sums, np.full(method.parts, users))
        assert all(np.isfinite(array).all() for array in state.values())
        assert (np.linalg.norm(state["theta"], axis=1) <= 2.0 * (1 + 1e-12)).all()
        assert (state["clip"] > 0).all()


def test_users_who_all_stay_away_teach_nothing() -> None:
    method = ols()
    state = method.start()
    for batch in range(3):
        state = method.step(state, batch, np.zeros((1, method.domain.size)), np.zeros(1))
    assert not state["theta"].any()
    np.testing.assert_allclose(state["clip"], method.start()["clip"])


def test_one_dimension_and_few_users() -> None:
    for horizon in (1, 5, 40):
        market = shared_market(208, horizon=horizon, dim=1)
        method = LDPOLS(**market.public, epsilon=1.0)
        assert np.isfinite(served(method, market, 5))


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"theta_bound": 0.0},
        {"warm_up_users": 3001},
        {"margin": 0.0},
        {"context_bound": math.inf},
    ],
)
def test_numbers_out_of_range_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(changed))):
        ols(**changed)


def test_it_comes_back_from_json_with_its_own_numbers() -> None:
    config = LocalBanditConfig(name="a", method=ols(theta_bound=3.0, margin=0.5))
    again = LocalBanditConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert again.fingerprint != LocalBanditConfig(name="a", method=ols()).fingerprint
