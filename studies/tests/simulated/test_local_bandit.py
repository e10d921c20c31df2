from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privlearn_studies.rivals.local import LDPUCB, PublishedOLS, PublishedSGD
from privlearn_studies.rivals.local_nonprivate import RandomPlay
from privlearn_studies.simulated import local_bandit as local
from privlearn_studies.simulated.local_bandit import LocalMarket


def test_sphere_contexts_and_noise_free_linear_rewards() -> None:
    market = local.shared_market(200, horizon=500, dim=3, n_arms=4)
    assert market.contexts.shape == (500, 4, 3)
    np.testing.assert_allclose(np.linalg.norm(market.contexts, axis=-1), 1.0)
    np.testing.assert_array_equal(market.rewards, market.means)
    theta = np.linalg.lstsq(market.contexts.reshape(-1, 3), market.means.ravel(), rcond=None)[0]
    assert np.linalg.norm(theta) == pytest.approx(1.0)
    assert (market.shared, market.reward_low, market.reward_high) == (True, -1.0, 1.0)


def test_reward_noise_has_the_standard_deviation_asked_for() -> None:
    market = local.shared_market(200, horizon=5_000, reward_sd=0.3)
    assert (market.rewards - market.means).std() == pytest.approx(0.3, rel=0.02)


def test_anisotropic_contexts_have_condition_ten() -> None:
    market = local.shared_market(200, horizon=5_000, dim=5, design="anisotropic")
    values = np.linalg.eigvalsh(np.cov(market.contexts.reshape(-1, 5).T))
    assert values[-1] / values[0] == pytest.approx(10.0, rel=0.1)
    assert np.linalg.norm(market.contexts, axis=-1).max() <= 1 + 1e-12


def test_price_contexts_are_features_and_features_times_price() -> None:
    market = local.shared_market(200, horizon=50, dim=7, n_arms=5, design="prices")
    features = market.contexts[:, :, :3]
    np.testing.assert_array_equal(features, np.broadcast_to(features[:, :1], features.shape))
    prices = np.linspace(0, 1, 5)[None, :, None]
    np.testing.assert_allclose(market.contexts[:, :, 3:6], prices * features)
    assert not market.contexts[:, :, 6].any()
    assert np.linalg.norm(market.contexts, axis=-1).max() <= 1 + 1e-12


@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_counts_and_answers_have_their_means(link: Any) -> None:
    market = local.shared_market(200, horizon=20_000, link=link)
    errors = (market.rewards - market.means).ravel()
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(errors.size)
    assert set(np.unique(market.rewards)) <= set(range(20))
    index = np.log(market.means) if link == "poisson" else np.log(market.means / (1 - market.means))
    assert np.abs(index).max() <= 1 + 1e-9


def test_one_theta_per_arm() -> None:
    market = local.arm_market(200, horizon=4_000)
    assert market.contexts.shape == (4_000, 20)
    assert not market.shared
    assert market.contexts.std() == pytest.approx(1.0, rel=0.02)
    assert market.context_bound == pytest.approx(math.sqrt(20))
    np.testing.assert_allclose(market.means.std(axis=0), 1.0, rtol=0.1)
    assert (market.rewards - market.means).std() == pytest.approx(0.05, rel=0.05)


def test_a_seed_says_all() -> None:
    one, same, other = (local.shared_market(seed, horizon=20) for seed in (200, 200, 201))
    np.testing.assert_array_equal(one.contexts, same.contexts)
    assert not np.array_equal(one.contexts, other.contexts)


def test_regret_is_counted_in_means() -> None:
    market = LocalMarket(
        contexts=np.zeros((2, 1)),
        rewards=np.array([[5.0, 0.0], [0.0, 5.0]]),
        means=np.array([[0.25, 1.0], [0.5, 0.0]]),
        context_bound=1.0,
        reward_low=0.0,
        reward_high=1.0,
    )
    np.testing.assert_array_equal(market.regrets(np.array([0, 0])), [0.75, 0.0])
    contexts, rewards = market.pulled(slice(0, 2), np.array([0, 1]))
    np.testing.assert_array_equal(rewards, [5.0, 5.0])
    assert contexts.shape == (2, 1)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"design": "cube"}, "design = 'cube': must be one of sphere"),
        ({"link": "probit"}, "link = 'probit': must be one of linear"),
        ({"reward_sd": -1.0}, "reward_sd = -1.0: must be >= 0"),
        ({"n_arms": 1}, "n_arms = 1: must be an integer >= 2"),
        ({"dim": 0}, "dim = 0"),
        ({"dim": 1, "design": "prices"}, "dim = 1: must be at least 2"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        local.shared_market(200, **({"horizon": 10} | wrong))


def test_arrays_that_do_not_fit_are_refused() -> None:
    good: dict[str, Any] = {
        "contexts": np.zeros((3, 2)),
        "rewards": np.zeros((3, 4)),
        "means": np.zeros((3, 4)),
        "context_bound": 1.0,
        "reward_low": 0.0,
        "reward_high": 1.0,
    }
    LocalMarket(**good)
    for wrong in (
        {"contexts": np.zeros((2, 2))},
        {"contexts": np.zeros((3, 3, 2))},
        {"rewards": np.zeros((3, 3))},
        {"reward_high": 0.0},
        {"context_bound": 0.0},
    ):
        with pytest.raises(ValueError, match="must be"):
            LocalMarket(**(good | wrong))


# Serving --------------------------------------------------------------------------------------


def test_a_run_is_charged_what_its_messages_cost() -> None:
    market = local.shared_market(200, horizon=600)
    method = LDPUCB(**market.public, epsilon=1.0, delta=0.01, form="published")
    served = local.serve(method, market, noise_seed=500_200)
    np.testing.assert_array_equal(served.regrets, market.regrets(served.arms))
    for certificate in (served.device, served.server):
        (guarantee,) = certificate.guarantees
        assert guarantee.trust.value == "local"
        assert guarantee.mu == pytest.approx(math.sqrt(4.5) / 19.9386, rel=1e-4)
        assert certificate.simulation
        assert not certificate.problems
    assert 0.1 < served.epsilon < 0.11
    assert served.server.guarantees[0].attested
    assert not served.device.guarantees[0].attested


def test_a_pure_price_stays_pure() -> None:
    market = local.shared_market(200, horizon=60)
    served = local.serve(PublishedSGD(**market.public, epsilon=2.0), market, noise_seed=500_200)
    assert 1.999 < served.epsilon <= 2.0
    assert served.device.guarantees[0].delta < 1e-3


def test_the_same_noise_gives_the_same_run_and_other_noise_another() -> None:
    market = local.shared_market(200, horizon=600)
    method = PublishedOLS(**market.public, epsilon=1.0, delta=0.01)
    runs = [local.serve(method, market, noise_seed=seed).arms for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_users_of_a_warm_up_pull_arms_in_turn() -> None:
    market = local.arm_market(200, horizon=90, dim=2)
    method = PublishedOLS(**market.public, epsilon=1.0, delta=0.1, warm_up_users=30)
    heard: list[int] = []
    served = local.serve(method, market, noise_seed=500_200, progress=heard.append)
    np.testing.assert_array_equal(served.arms[:30], np.arange(30) % 3)
    assert sum(heard) == 90
    assert len(set(served.arms[30:].tolist())) > 1


def test_a_method_for_another_market_is_refused() -> None:
    market = local.shared_market(200, horizon=60)
    method = LDPUCB(**(market.public | {"horizon": 61}), epsilon=1.0)
    with pytest.raises(ValueError, match="horizon = 61: the market has 60"):
        local.serve(method, market, noise_seed=1)


def test_random_play_has_the_regret_of_a_mean_arm() -> None:
    market = local.shared_market(200, horizon=4_000)
    regret = market.regrets(local.play(RandomPlay(n_arms=10, random_state=3), market))
    mean = (market.means.max(axis=1) - market.means.mean(axis=1)).sum()
    assert regret.sum() == pytest.approx(mean, rel=0.05)
