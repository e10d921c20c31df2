from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from privlearn.learners.links import mean_of
from privlearn.learners.local.protocol import LocalBanditConfig, LocalLearner
from privlearn.losses.conversion import gaussian_epsilon, gaussian_mu, gaussian_mu_squared
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn_studies.rivals.local import (
    LDPGLOC,
    LDPUCB,
    PublishedForm,
    PublishedOLS,
    PublishedSGD,
)
from privlearn_studies.rivals.local_nonprivate import (
    GreedyLeastSquares,
    GreedySGD,
    LinUCB,
    RandomPlay,
)
from privlearn_studies.simulated import local_bandit as local

SIZE: dict[str, Any] = {"dim": 3, "n_arms": 4, "horizon": 900, "shared": True, "epsilon": 1.0}
GAUSSIAN = SIZE | {"delta": 0.01}
PER_ARM = GAUSSIAN | {"shared": False}


def methods(size: dict[str, Any]) -> list[LocalLearner]:
    pure = {name: value for name, value in size.items() if name != "delta"}
    return [
        LDPUCB(**size),
        LDPUCB(**size, form="published"),
        LDPGLOC(**size, link="logistic"),
        LDPGLOC(**size, form="published"),
        PublishedOLS(**size, warm_up_users=300),
        PublishedOLS(**size, code=True),
        PublishedSGD(**pure, warm_up_users=300),
    ]


# Prices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.01), (1.0, 0.1), (5.0, 1e-6), (0.01, 1e-9)])
def test_the_least_gaussian_noise_is_that_of_the_exact_curve(epsilon: float, delta: float) -> None:
    exact = math.sqrt(gaussian_mu_squared(epsilon, delta))
    assert exact * (1 - 1e-6) < gaussian_mu(epsilon, delta) <= exact


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 1e-6, 0.3, 8.0, 100.0, 1e9])
@pytest.mark.parametrize("delta", [1e-200, 1e-12, 0.01, 0.999])
def test_the_least_gaussian_noise_holds_to_many_digits(epsilon: float, delta: float) -> None:
    """Exactly (ε, δ) is between the μ found and one that is 3e-9 larger."""
    found = gaussian_mu(epsilon, delta)

    def exact(mu: float) -> Any:
        ratio, half = mpmath.mpf(epsilon) / mpmath.mpf(mu), mpmath.mpf(mu) / 2
        upper, lower = (mpmath.erfc(x / mpmath.sqrt(2)) / 2 for x in (ratio - half, ratio + half))
        return upper - mpmath.exp(mpmath.mpf(epsilon)) * lower

    with mpmath.workdps(450):
        assert exact(found) <= mpmath.mpf(delta) < exact(found * (1 + 3e-9))


def test_gaussian_noise_needs_a_delta() -> None:
    with pytest.raises(ValueError, match=r"delta = 0.0: .* in \(0, 1\)"):
        gaussian_mu(1.0, 0.0)
    with pytest.raises(ValueError, match=r"delta = 1e-300: .* in \[1e-200, 0.999\]"):
        gaussian_mu(1e-6, 1e-300)
    for wrong in (0.0, 2e9, math.inf):
        with pytest.raises(ValueError, match=r"epsilon = .*: must lie in \(0, 1e9\]"):
            gaussian_mu(wrong, 0.01)
    with pytest.raises(ValueError, match="delta"):
        LDPUCB(**(SIZE | {"delta": 0.0}))


def mu_of(method: Any) -> float:
    report = method.report()
    return float(report.domain.sensitivity(Adjacency.REPLACE_ONE) / report.error_std())


@pytest.mark.parametrize(
    ("method", "mu"),
    [
        # √4.5 over 6·√(2·ln 250), and likewise: less than half of what the claims need
        (LDPUCB(**GAUSSIAN, form="published"), math.sqrt(4.5) / 19.9386),
        (PublishedOLS(**GAUSSIAN, code=True), math.sqrt(4.5) / 19.9386),
        (PublishedOLS(**GAUSSIAN), math.sqrt(4.5) / 6.2151),
        (PublishedOLS(**PER_ARM), math.sqrt(4.5) / (4 * math.sqrt(2 * math.log(250)))),
        (LDPGLOC(**GAUSSIAN, form="published"), 3.5 * math.sqrt(2) / 20.6568),
    ],
)
def test_published_noise_has_its_true_price(method: Any, mu: float) -> None:
    assert mu_of(method) == pytest.approx(mu, rel=1e-4)
    assert mu_of(method) < gaussian_mu(1.0, 0.01)


@pytest.mark.parametrize("method", [LDPUCB(**GAUSSIAN), LDPGLOC(**GAUSSIAN, link="poisson")])
def test_tight_noise_is_all_of_the_claim(method: Any) -> None:
    epsilon = gaussian_epsilon(mu_of(method) ** 2, 0.01).value
    assert 0.9999 < epsilon <= 1.0


def test_parts_at_half_of_epsilon_where_the_paper_splits_it() -> None:
    whole, split = (
        PublishedSGD(**SIZE).report(),
        PublishedSGD(**(SIZE | {"shared": False})).report(),
    )
    assert split.scale > 1.8 * whole.scale


# Sums -----------------------------------------------------------------------------------------


def answered(seed: int, n: int, bound: float = 2.0) -> tuple[Array, Any, Array]:
    rng = np.random.default_rng(seed)
    contexts = rng.uniform(-1, 1, (n, 3))
    contexts *= bound / 2 / np.linalg.norm(contexts, axis=1, keepdims=True)
    return contexts, rng.integers(4, size=n), rng.uniform(-3, 3, n)


def test_a_ucb_record_gives_gram_and_moment_in_public_units() -> None:
    method = LDPUCB(**GAUSSIAN, context_bound=2.0, reward_low=-3.0, reward_high=2.0)
    contexts, arms, rewards = answered(1, 7)
    record = method.record({}, 0, contexts, arms, rewards)
    gram, (moment,) = method._apart(method.report().domain.clip(record).sum(axis=0)[None])
    np.testing.assert_allclose(gram[0], contexts.T @ contexts / 4, atol=1e-12)
    np.testing.assert_allclose(moment[0], rewards @ contexts / 6, atol=1e-12)


@pytest.mark.parametrize("link", ["linear", "logistic", "poisson"])
def test_a_gloc_record_gives_gram_index_and_gradient(link: Any) -> None:
    method = LDPGLOC(**PER_ARM, link=link, context_bound=2.0, reward_low=-3.0, reward_high=3.0)
    contexts, arms, rewards = answered(2, 9)
    follower = np.random.default_rng(3).uniform(-0.5, 0.5, (4, 3))
    record = method.record({"follower": follower}, 0, contexts, arms, rewards)
    gram, (moment, gradient) = method._apart(method.report().domain.clip(record).sum(axis=0)[None])
    unit = contexts / 2
    index = (unit * follower[arms]).sum(axis=1)
    answers = rewards / 3 if link == "linear" else rewards
    residual = mean_of(link, index) - answers
    np.testing.assert_allclose(gram[0], unit.T @ unit, atol=1e-12)
    np.testing.assert_allclose(method.index_size * moment[0], index @ unit, atol=1e-12)
    np.testing.assert_allclose(method.residual_size * gradient[0], residual @ unit, atol=1e-12)


def test_entries_of_all_sums_have_the_printed_noise() -> None:
    method = LDPGLOC(**GAUSSIAN, form="published")
    rng, std = np.random.default_rng(4), method.noise_std()
    noise = std * rng.standard_normal((20_000, method.report().domain.size))
    gram, (moment, gradient) = method._apart(noise)
    assert gram[:, 1, 1].std() == pytest.approx(std, rel=0.02)
    assert gram[:, 0, 1].std() == pytest.approx(std / math.sqrt(2), rel=0.02)
    assert (method.index_size * moment).std() == pytest.approx(std, rel=0.02)
    assert (method.residual_size * gradient).std() == pytest.approx(std, rel=0.02)


def test_the_papers_least_squares_has_twice_the_noise_on_the_matrix() -> None:
    rng, method = np.random.default_rng(8), PublishedOLS(**GAUSSIAN)
    noise = method.noise_std() * rng.standard_normal((20_000, method.report().domain.size))
    gram, (moment,) = method._apart(noise)
    assert gram[:, 1, 1].std() == pytest.approx(2 * 6.2151, rel=0.02)
    assert moment.std() == pytest.approx(6.2151, rel=0.02)


def test_the_bound_on_the_noise_fails_no_more_often_than_said() -> None:
    method = LDPUCB(**(GAUSSIAN | {"dim": 6}))
    rng, size = np.random.default_rng(5), method.report().domain.size
    gram, _ = method._apart(rng.standard_normal((2_000, size)))
    largest = np.linalg.eigvalsh(gram)[:, -1]
    bound = float(method._spectral(1.0, np.ones(1), 0.1)[0])
    assert (largest > bound).mean() <= 0.1
    assert (largest > bound / 2).mean() > 0.1  # nor is half of it enough


def test_the_follower_moves_along_the_gradient() -> None:
    method = LDPGLOC(**GAUSSIAN)
    contexts, arms, rewards = answered(6, 50)
    state = method.start()
    record = method.record(method.model(state), 0, contexts, arms, rewards / 3)
    sums = method.report().domain.clip(record).sum(axis=0)[None]
    moved = method.step(state, 0, sums, np.array([50]))["follower"]
    np.testing.assert_allclose(moved[0], (rewards / 3) @ contexts / 30, atol=1e-12)


def test_a_published_gradient_step() -> None:
    single = PublishedSGD(**SIZE)
    state = single.step(single.start(), 4, np.ones((1, 3)), np.array([1]))
    np.testing.assert_allclose(state["theta"], -np.ones((1, 3)))  # 5/(4 + 1)
    several = PublishedSGD(**(SIZE | {"shared": False}))
    begun = {"theta": np.full((4, 3), 2.0)}
    counts = np.array([1, 0, 1, 1])
    moved = several.step(begun, 9, np.ones((4, 3)), counts)["theta"]
    np.testing.assert_allclose(moved[0], 2.0 - 2 * (1 + 0.1))  # 5·K/(9 + 1), and the ridge
    np.testing.assert_allclose(moved[1], 2.0)  # nothing was heard of it


# Choices --------------------------------------------------------------------------------------


def test_a_bonus_is_the_width_times_the_length_in_the_inverse_matrix() -> None:
    method = LDPUCB(**PER_ARM, context_bound=2.0)
    rng = np.random.default_rng(7)
    factors = rng.standard_normal((4, 3, 3))
    state = method.start() | {"users": np.full(4, 100.0), "moment": rng.standard_normal((4, 3))}
    state["gram"] = 3000 * np.einsum("kij,klj->kil", factors, factors)
    model = method.model(state)
    contexts = rng.standard_normal((5, 3))
    bound = method._spectral(method.noise_std(), np.array([100.0]), 900**-2.0)[0]
    for k in range(4):
        inverse = np.linalg.inv(state["gram"][k] + 2 * bound * np.eye(3))
        theta = inverse @ state["moment"][k]
        lengths = np.sqrt(np.einsum("nd,de,ne->n", contexts, inverse, contexts))
        wanted = contexts @ theta / 2 + model["width"][k] * lengths / 2
        np.testing.assert_allclose(method.scores(model, contexts)[:, k], wanted, rtol=1e-9)


def test_arms_far_behind_in_the_warm_up_are_eliminated() -> None:
    method = PublishedOLS(**PER_ARM, warm_up_users=300, gap=1.0)
    first = np.diag([1.0, 0.6, 0.4])
    model = {"theta": np.zeros((4, 3)), "first": np.vstack([first, np.zeros(3)])}
    scores = method.scores(model, np.ones((1, 3)))
    np.testing.assert_array_equal(scores, [[0.0, 0.0, -np.inf, -np.inf]])


def test_estimates_of_the_warm_up_are_kept() -> None:
    method = PublishedOLS(**PER_ARM, warm_up_users=300, gap=1.0)
    state, size = method.start(), method.report().domain.size
    last = method.batches().index(300) - 1
    sums = np.ones((4, size))
    warm = method.step(state, last, sums, np.full(4, 10))
    later = method.step(warm, last + 1, 3 * sums, np.full(4, 10))
    assert np.abs(warm["first"]).min() > 0
    np.testing.assert_array_equal(later["first"], warm["first"])


# Whole methods --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [GAUSSIAN, PER_ARM])
def test_all_of_them_survive_json(size: dict[str, Any]) -> None:
    for method in methods(size):
        config = LocalBanditConfig(name="test", method=method)
        again = LocalBanditConfig.model_validate_json(config.model_dump_json())
        assert again.fingerprint == config.fingerprint
        assert type(again.method) is type(method)


@pytest.mark.parametrize("horizon", [1, 7])
@pytest.mark.parametrize("shared", [True, False])
def test_one_dimension_and_few_users(horizon: int, shared: bool) -> None:
    market: Any = (
        local.shared_market(200, horizon=horizon, dim=1, n_arms=2)
        if shared
        else local.arm_market(200, horizon=horizon, dim=1, n_arms=2)
    )
    told = market.public | {"epsilon": 0.5}
    for method in (
        LDPUCB(**told),
        LDPGLOC(**told, form="published"),
        PublishedOLS(**told, code=True, warm_up_users=1),
        PublishedSGD(**told, warm_up_users=1),
    ):
        assert len(local.serve(method, market, noise_seed=500_200).regrets) == horizon


def test_a_warm_up_beyond_the_horizon_is_refused() -> None:
    for maker in (PublishedOLS, PublishedSGD):
        with pytest.raises(ValueError, match="warm_up_users = 901: must be <= horizon"):
            maker(**(SIZE | {"shared": False}), warm_up_users=901)


def test_tight_noise_learns_where_published_noise_does_not() -> None:
    regrets: dict[PublishedForm, list[float]] = {"tight": [], "published": []}
    for seed in (200, 201):
        market = local.shared_market(seed, horizon=4_000)
        for form, found in regrets.items():
            method = LDPUCB(**market.public, epsilon=1.0, delta=0.01, form=form)
            served = local.serve(method, market, noise_seed=seed + local.NOISE_SEEDS)
            found.append(float(served.regrets.sum()))
    assert np.mean(regrets["tight"]) < 0.5 * np.mean(regrets["published"])


# Without a promise ----------------------------------------------------------------------------


def regret(player: local.UnpricedPlayer, market: local.LocalMarket) -> float:
    return float(market.regrets(local.play(player, market)).sum())


@pytest.mark.parametrize("shared", [True, False])
def test_players_without_privacy_learn(shared: bool) -> None:
    market = (
        local.shared_market(200, horizon=3_000, dim=4)
        if shared
        else local.arm_market(200, horizon=3_000, dim=4)
    )
    size: dict[str, Any] = {"dim": 4, "n_arms": market.n_arms, "shared": shared}
    random = regret(RandomPlay(n_arms=market.n_arms, random_state=1), market)
    for player in (
        GreedyLeastSquares(**size),
        LinUCB(**size, horizon=3_000, noise_std=0.05),
        GreedySGD(**size),
    ):
        assert regret(player, market) < 0.03 * random


@pytest.mark.parametrize(("link", "share"), [("logistic", 0.1), ("poisson", 0.1)])
def test_gradient_steps_learn_other_links(link: Any, share: float) -> None:
    market = local.shared_market(201, horizon=3_000, link=link)
    player = GreedySGD(dim=2, n_arms=10, shared=True, link=link)
    random = regret(RandomPlay(n_arms=10), market)
    assert regret(player, market) < share * random


def test_arms_of_their_own_are_first_pulled_in_turn() -> None:
    player = GreedyLeastSquares(dim=2, n_arms=3, shared=False)
    np.testing.assert_array_equal(player.choose(np.ones((8, 2))), [0, 1, 2, 0, 1, 2, 0, 0])
