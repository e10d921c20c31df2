"""Generalized linear bandits: what they learn, their belief, blocks and single users, null rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_users import joint, resumed
from resuming import die
from scipy.special import expit
from scipy.stats import norm

from privlearn.accountants import CentralAccountant
from privlearn.errors import ProvenanceError
from privlearn.learners import OnePassNewtonGLM
from privlearn.learners.one_pass_newton_glm import mean_of_lines
from privlearn.learners.pooled_belief import PooledStatistics
from privlearn.ledger.entries import SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.rows.functions import user_code


class Market:
    """Slates of actions, and users who reward one with 1 as the logistic model says."""

    def __init__(self, users: int, actions: int, dim: int, seed: int, size: float = 4.0) -> None:
        rng = np.random.default_rng([seed, 7])
        theta = rng.standard_normal(dim)
        self.theta = size * theta / np.linalg.norm(theta)
        slates = rng.standard_normal((users, actions, dim))
        self.slates = slates / np.linalg.norm(slates, axis=-1, keepdims=True)
        self.means = expit(self.slates @ self.theta)
        self.rewards = (rng.random((users, 1)) < self.means).astype(np.float64)
        self.places = np.arange(users, dtype=np.float64)[:, None]
        self.shown: list[int] = []

    def respond(self, own: Any, actions: Any) -> Array:
        self.shown.extend(actions.tolist())
        return np.array(self.rewards[own.private[:, 0].astype(int), actions])

    def play(self, learner: Any, start: int = 0, stop: int | None = None, **more: Any) -> None:
        here = slice(start, stop)
        learner.play(self.slates[here], self.respond, private=self.places[here], **more)

    def one_by_one(self, learner: Any, start: int = 0, stop: int | None = None) -> None:
        here = slice(start, stop)
        for slate, rewards in zip(self.slates[here], self.rewards[here], strict=True):
            action = learner.select(slate)
            self.shown.append(action)
            learner.observe(float(rewards[action]))

    def regret(self) -> float:
        users = np.arange(len(self.shown))
        return float((self.means.max(axis=1) - self.means[users, self.shown]).sum())


# What it learns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["ucb", "thompson", "greedy"])
def test_it_shows_the_best_action_more_and_more_often(policy: str) -> None:
    regrets, at_random = [], []
    for seed in range(3):
        market = Market(3000, 8, 3, seed)
        learner = OnePassNewtonGLM(8, 3, policy=policy).start(joint(3000, ZCDP("0.5"), seed))
        market.play(learner)
        regrets.append(market.regret())
        at_random.append(float((market.means.max(axis=1) - market.means.mean(axis=1)).sum()))
    assert np.mean(regrets) < 0.08 * np.mean(at_random)


@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("policy", ["ucb", "thompson"])
def test_blocks_are_the_same_as_one_user_at_a_time(policy: str, per_action: bool) -> None:
    states = []
    for way in ("play", "one_by_one"):
        market = Market(260, 5, 4, 3)
        if per_action:
            market.slates = market.slates[:, 0]
        learner = OnePassNewtonGLM(
            5, 4, policy=policy, per_action=per_action, first_batch=20, longest_batch=40
        )
        learner.start(joint(260, ZCDP(5), 3))
        getattr(market, way)(learner, 0, 130)
        getattr(market, way)(learner, 130)
        states.append((market.shown, learner.public_state()))
    assert states[0] == states[1]


def test_logged_rewards_are_learned_as_those_of_users_who_were_served() -> None:
    market = Market(400, 5, 3, 5)
    served = OnePassNewtonGLM(5, 3).start(joint(400, ZCDP(2), 5))
    market.play(served)
    shown = market.slates[np.arange(400), market.shown]
    rewards = market.rewards[np.arange(400), market.shown]
    noise = NoiseSource.simulation(5)
    logged = OnePassNewtonGLM(1, 3).start(CentralAccountant(ZCDP(2), users=range(400), noise=noise))
    logged.partial_fit(shown[:170], rewards[:170]).partial_fit(shown[170:], rewards[170:])
    assert logged.public_state() == served.public_state()
    with pytest.raises(ProvenanceError, match="logged"):
        OnePassNewtonGLM(1, 3).start(joint(9, ZCDP(1))).partial_fit(shown, rewards)


# What it believes ---------------------------------------------------------------------------------

MEANS: dict[str, Any] = {
    "linear": lambda z: z,
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "probit": norm.cdf,
    "poisson": np.exp,
}
VARIANCES = {"linear": 0.25, "probit": np.sqrt(np.pi / 8)}
RANGES = {"linear": (-1, 3), "logistic": (2, 4), "probit": (-1, 0), "poisson": (0, 50)}


@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("link", MEANS)
def test_without_noise_the_belief_is_that_of_gauss_newton_steps(
    link: str, per_action: bool
) -> None:
    n, rng, (low, high) = 120, np.random.default_rng(4), RANGES[link]
    mean, variance = MEANS[link], VARIANCES.get(link, 1.0)
    unit, offset = (1.0, 0.0) if link == "poisson" else (high - low, low)
    offset = (low + high) / 2 if link == "linear" else offset
    features = rng.standard_normal((n, 2)) / 4
    actions = rng.integers(0, 3, size=n) if per_action else np.zeros(n, dtype=np.int64)
    rewards = rng.integers(low, min(high, 4) + 1, size=n).astype(np.float64)
    noise = NoiseSource.simulation(0)
    learner = OnePassNewtonGLM(
        3, 2, link=link, per_action=per_action, reward_range=(low, high), gradient_clip=3.0,
        first_batch=40, longest_batch=40, prior_precision=2.0, feature_scale=0.5,
    )  # fmt: skip
    learner.start(CentralAccountant(ZCDP("1e9"), users=range(n), noise=noise))
    parts = 3 if per_action else 1
    theta: Array = np.zeros((parts, 2))
    precision: Array = np.tile(2.0 * np.eye(2), (parts, 1, 1))
    moment = np.zeros((parts, 2))
    for first in range(0, n, 40):
        here = slice(first, first + 40)
        learner.partial_fit(
            features[here], rewards[here], actions=actions[here] if per_action else None
        )
        for x, a, r in zip(2 * features[here], actions[here], rewards[here], strict=True):
            x = x / max(1, np.linalg.norm(x))
            z, h = x @ theta[a], 1e-6
            slope = (mean(z + h) - mean(z - h)) / (2 * h)
            precision[a] += slope * np.outer(x, x) / variance
            moment[a] += (slope * z + ((r - offset) / unit - mean(z))) * x / variance
        theta[:] = np.linalg.solve(precision, moment[..., None])[..., 0]
        scale = unit if link == "linear" else 1.0
        shape = (3, 2) if per_action else (2,)
        np.testing.assert_allclose(
            learner.theta_, scale * theta.reshape(shape), rtol=0.01, atol=0.001
        )
    np.testing.assert_allclose(
        learner.precision_, precision.reshape(*shape, 2) / scale**2, rtol=0.005, atol=0.005
    )
    x = np.array([0.1, -0.2])
    known = mean(2 * x @ learner.theta_.T / scale) * unit + offset
    np.testing.assert_allclose(learner.predict(x), known)


def test_it_earns_most_where_actions_earn_differently() -> None:
    """Five prices, of which the lowest sells best; what is best depends on the visitor."""
    prices, n = np.array([4.0, 6.0, 8.0, 10.0, 12.0]), 2000
    rng = np.random.default_rng(8)
    student = (rng.random(n) < 0.4).astype(float)
    slates = np.zeros((n, 5, 3))
    slates[:, :, 0], slates[:, :, 1], slates[:, :, 2] = 1, (prices - 8) / 4, student[:, None]
    chance = expit((10 - 5 * student[:, None] - prices) / 1.2)
    bought = (rng.random((n, 5)) < chance).astype(float)
    in_blocks, single = np.zeros((2, n), dtype=np.int64)

    def respond(own: Any, actions: Any) -> Array:
        in_blocks[own.turn] = actions
        return np.array(bought[own.turn, actions])

    learner = OnePassNewtonGLM(5, 3, feature_scale=1.5).start(joint(n, ZCDP(1), 8))
    learner.play(slates, respond, np.tile(prices, (n, 1)))
    earned = (chance * prices)[np.arange(n), in_blocks]
    assert earned[500:].mean() > 0.97 * (chance * prices)[500:].max(axis=1).mean()
    learner = OnePassNewtonGLM(5, 3, feature_scale=1.5).start(joint(n, ZCDP(1), 8))
    for visitor in range(700):
        single[visitor] = learner.select(slates[visitor], prices)
        learner.observe(bought[visitor, single[visitor]])
    assert in_blocks[:700].tolist() == single[:700].tolist()


def test_noise_in_hessians_is_not_taken_for_knowledge_of_what_was_never_tried() -> None:
    """All data lie along one direction, and the noise of Hessians everywhere."""
    rng, dim, std = np.random.default_rng(3), 6, 10.0
    statistics = PooledStatistics(
        dim, 1.0, lambda batches: 0.01 * np.eye(len(batches)),
        lambda batches: std**2 * np.eye(len(batches)),
    )  # fmt: skip
    along = np.eye(dim)[0]
    for batch in range(8):
        theta, noise = statistics.belief.mean, std * rng.standard_normal((dim, dim))
        hessian = 400 * np.outer(along, along) + (noise + noise.T) / 2
        gradient = 400 * (theta[0] - 2) * along
        statistics.add(batch, 50, theta, gradient, hessian)
    belief = statistics.belief
    assert abs(belief.mean[0] - 2) < 0.2
    assert np.linalg.norm(belief.mean[1:]) < 0.5
    assert np.linalg.eigvalsh(belief.precision[1:, 1:]).max() < 4
    assert belief.precision[0, 0] > 100


def test_rows_pass_through_no_code_but_that_of_the_package() -> None:
    """A decorator of another package would be named in the ledger, and called again for checks."""
    learner = OnePassNewtonGLM(5, 3).start(joint(60, ZCDP(20), 1))
    functions = (learner._policy, learner._contributions, learner._logged, mean_of_lines)
    assert [user_code(function) for function in functions] == [()] * 4


# Bad input ----------------------------------------------------------------------------------------

SLATE = np.array([[0.6, 0.1, 0.0], [0.1, -0.4, 0.3], [0.2, 0.2, 0.2], [-0.5, 0.0, 0.1]])
BAD_SLATES: dict[str, Any] = {
    "empty": np.zeros((0, 3)),
    "too many": np.zeros((6, 3)),
    "another length": np.zeros((4, 2)),
    "one vector": np.zeros(3),
    "a NaN": np.where(np.eye(4, 3) > 0, np.nan, SLATE),
    "infinite": np.where(np.eye(4, 3) > 0, -np.inf, SLATE),
    "text": [["a", 0, 0], [0, 1, 0]],
    "nothing": None,
}


def after(change: Any, **params: Any) -> Any:
    """A learner of 60 users, of whom the 30th is ``change``d."""
    market, accountant = Market(60, 5, 3, 1), joint(60, ZCDP(20), 1)
    learner = OnePassNewtonGLM(5, 3, first_batch=20, **params).start(accountant)
    market.play(learner, 0, 30)
    change(learner)
    assert learner.clock_ == 31
    market.play(learner, 31)
    return learner, (learner.public_state(), len(accountant.ledger.entries))


@pytest.mark.parametrize("bad", BAD_SLATES)
def test_an_unusable_slate_keeps_its_place_and_counts_as_nobody(bad: str) -> None:
    def visit(learner: Any) -> None:
        shown = learner.select(BAD_SLATES[bad])
        assert 0 <= shown < 5
        learner.observe(1.0)

    learner, state = after(visit)
    assert state == after(lambda learner: learner.skip(1))[1]
    assert "features must be" in learner.private_messages_[-1][1]


@pytest.mark.parametrize("bad", [[1.0] * 4, 3.0, [1, 2, np.nan, 4, 5], ["a"] * 5, [1e400] * 5])
def test_unusable_revenues_count_as_nobody(bad: Any) -> None:
    slate = np.vstack([SLATE, SLATE[:1]])

    def visit(learner: Any) -> None:
        learner.select(slate, bad)
        learner.observe(1.0)

    assert after(visit)[1] == after(lambda learner: learner.skip(1))[1]


@pytest.mark.parametrize("reward", [None, np.nan, 1.0001, -0.1, np.inf, "good", 10**400, [0.5]])
def test_an_unusable_reward_counts_as_nobody_and_is_not_cut(reward: Any) -> None:
    def visit(learner: Any) -> None:
        learner.select(SLATE)
        learner.observe(reward)

    learner, state = after(visit)
    assert state == after(lambda learner: learner.skip(1))[1]
    assert "reward must be" in learner.private_messages_[-1][1]


def test_of_a_log_the_operator_is_told_what_its_rows_must_be() -> None:
    account = CentralAccountant(ZCDP(1), users=range(9), noise=NoiseSource.simulation(0))
    learner = OnePassNewtonGLM(3, 2, per_action=True).start(account)
    learner.partial_fit(np.zeros((2, 2)), [1.0, 0.0], actions=[1, 3])
    ((row, told),) = learner.private_messages_
    assert row == 1
    assert "features must be (2,) finite numbers, and the action one of 0 to 2" in told


def test_short_slates_are_served_alike_one_by_one_and_in_blocks() -> None:
    market, rng = Market(200, 5, 3, 9), np.random.default_rng(9)
    offered = np.arange(5) < rng.integers(1, 6, size=200)[:, None]
    blocks = OnePassNewtonGLM(5, 3, first_batch=25).start(joint(200, ZCDP(8), 9))
    unread = np.where(offered[..., None], market.slates, np.nan)
    blocks.play(unread, market.respond, private=market.places, offered=offered)
    assert offered[np.arange(200), market.shown].all()
    listed = OnePassNewtonGLM(5, 3, first_batch=25).start(joint(200, ZCDP(8), 9))
    slates = [slate[on] for slate, on in zip(market.slates, offered, strict=True)]
    listed.play(slates, market.respond, private=market.places)
    assert listed.public_state() == blocks.public_state()
    with pytest.raises(ValueError, match="tables of 1 to 5 rows of shape"):
        OnePassNewtonGLM(5, 3).start(joint(9, ZCDP(1))).play([[[1.0, 2.0]]] * 3, market.respond)
    single = OnePassNewtonGLM(5, 3, first_batch=25).start(joint(200, ZCDP(8), 9))
    for user, slate in enumerate(market.slates):
        assert single.select(slate[offered[user]]) == market.shown[user]
        single.observe(float(market.rewards[user, market.shown[user]]))
    assert single.public_state() == blocks.public_state()


def test_bad_rows_of_a_block_are_null_alone() -> None:
    market = Market(60, 5, 3, 1)
    market.slates[[3, 40], 2, 1] = np.nan
    market.rewards[17] = 2.0
    learner = OnePassNewtonGLM(5, 3, first_batch=20).start(joint(60, ZCDP(20), 1))
    offered = np.ones((60, 5), dtype=bool)
    offered[[9, 50]] = False
    market.play(learner, offered=offered)
    skipping = OnePassNewtonGLM(5, 3, first_batch=20).start(joint(60, ZCDP(20), 1))
    first = 0
    for null in (3, 9, 17, 40, 50, 60):
        market.play(skipping, first, null)
        if null < 60:
            skipping.skip(1)
        first = null + 1
    assert learner.public_state() == skipping.public_state()
    assert learner.private_counts_.rows == 60


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"n_actions": 0}, "n_actions = 0"),
        ({"dim": 2.5}, "dim"),
        ({"link": "cloglog"}, "link = 'cloglog': must be one of linear, logistic, probit, poisson"),
        ({"policy": "best"}, "policy = 'best': must be one of ucb, thompson, greedy"),
        ({"reward_range": (1, 0)}, "reward_range"),
        ({"link": "poisson", "reward_range": (0, np.inf)}, "reward_range"),
        ({"link": "poisson", "reward_range": (-1, 5)}, "counts are not negative"),
        ({"link": "poisson"}, r"reward_range = \(0.0, 1.0\): .* must be 0 and the largest count"),
        ({"link": "poisson", "reward_range": (0, 5), "max_rate": 6}, "max_rate = 6"),
        ({"max_rate": 1}, "max_rate = 1.*only for link = 'poisson'"),
        ({"growth": 1}, "growth = 1: must be > 1"),
        ({"first_batch": 500}, "first_batch = 500: must lie in 1..100"),
        ({"first_batch": 50, "longest_batch": 20}, "longest_batch = 20"),
        ({"gradient_clip": 0}, "gradient_clip"),
        ({"prior_precision": -1}, "prior_precision"),
        ({"exploration": -1}, "exploration"),
        ({"feature_scale": np.nan}, "feature_scale"),
        ({"n_actions": 1, "per_action": True}, "n_actions = 1: must be at least 2"),
        ({"per_action": "yes"}, "per_action"),
    ],
)
def test_public_mistakes_are_errors_before_anything_is_spent(
    params: dict[str, Any], told: str
) -> None:
    accountant = joint(100, ZCDP(1))
    begun = len(accountant.ledger.entries)
    with pytest.raises((ValueError, TypeError), match=told):
        OnePassNewtonGLM(**{"n_actions": 5, "dim": 3, **params}).start(accountant)
    assert len(accountant.ledger.entries) == begun


# Kills --------------------------------------------------------------------------------------------


def test_after_a_kill_the_belief_goes_on_with_noise_of_its_own(tmp_path: Path) -> None:
    market = Market(600, 5, 3, 11)
    learner = OnePassNewtonGLM(5, 3).start(joint(600, ZCDP(2), 11, tmp_path / "ledger.db"))
    market.play(learner, 0, 250)
    before = learner.public_state()
    die(learner._accountant)
    accountant = resumed(tmp_path / "ledger.db")
    again = OnePassNewtonGLM.resume(accountant)
    assert again.public_state()["evidence"] == before["evidence"]
    del market.shown[again.clock_ :]
    market.play(again, again.clock_)
    assert again.clock_ == 600
    streams = [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]
    assert len(streams) == 2
    error = np.linalg.norm(again.theta_ - market.theta)
    assert error < np.linalg.norm(market.theta) / 2
    for _, users, _, _, hessian in again.public_state()["evidence"][0]["batches"]:
        assert -4 < np.trace(hessian) < users / 4 + 4  # of this block's users, of either stream
    die(accountant)
    assert OnePassNewtonGLM.resume(resumed(tmp_path / "ledger.db")).public_state() == (
        again.public_state()
    )


def test_a_hessian_that_noise_made_negative_does_not_lose_what_the_gradient_says() -> None:
    """Its trace is taken near what is usual; with little noise it is what was released."""
    loud = PooledStatistics(3, 1.0, lambda _: np.eye(1) * 4.0, lambda _: np.eye(1) * 1e4)
    loud.add(0, 50, np.zeros(3), np.array([-30.0, 0, 0]), -70.0 * np.eye(3))
    assert loud.belief.mean[0] > 0.01
    assert not loud.belief.mean[1:].any()
    quiet = PooledStatistics(3, 1.0, lambda _: np.eye(1) * 1e-9, lambda _: np.eye(1) * 1e-9)
    quiet.add(0, 50, np.zeros(3), np.array([-30.0, 0, 0]), 70.0 * np.eye(3))
    np.testing.assert_allclose(quiet.belief.precision, 71 * np.eye(3), rtol=1e-6)
