"""Baseline bandits: faithful where they say so, priced as they are, and better than nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rewarding_users import RewardingCrowd
from sklearn.linear_model import Lasso

from privlearn.accountants import JointAccountant
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import generated_pairs
from privlearn.checking.replay.protocols import pulled
from privlearn.errors import CurrencyError
from privlearn.learners.contextual import Visitor
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.ledger.entries import SpendEntry
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.runs.references import LassoBandit, RandomArms
from privlearn.runs.simulated_arms import sparse_market
from privlearn_studies.rivals.linear_bandits import DPUCB

DIM, ARMS, HORIZON = 3, 2, 40
KINDS: list[Any] = [PrivateLeastSquares, DPUCB]


def joint(horizon: int = HORIZON, rho: Any = 1) -> JointAccountant[ZCDP]:
    return JointAccountant(ZCDP(rho), users=range(horizon), noise=NoiseSource.simulation(0))


def fresh(kind: Any, rho: Any = 1, horizon: int = HORIZON, **changes: Any) -> Any:
    params: dict[str, Any] = {"n_arms": ARMS, "dim": DIM, "blocks": 8, **changes}
    return kind(**params).start(joint(horizon, rho))


class Crowd(RewardingCrowd):
    def __init__(self, seed: int = 0, n: int = HORIZON) -> None:
        contexts = np.random.default_rng(seed).uniform(-1.2, 1.2, (n, DIM))
        self.theta = np.array([[0.5, -0.3, 0.1], [-0.2, 0.3, 0.4]])
        super().__init__(contexts, np.clip(contexts, -1, 1) @ self.theta.T)


# Private ones -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_block_path_is_the_one_user_path(kind: Any) -> None:
    slow, fast, crowd = fresh(kind, 100), fresh(kind, 100), Crowd()
    crowd.play(fast)
    arms = []
    for context, rewards in zip(crowd.contexts, crowd.rewards, strict=True):
        arms.append(slow.select(context))
        slow.observe(float(rewards[arms[-1]]))
    assert arms == crowd.arms
    assert slow.public_state() == fast.public_state()
    assert len(set(arms)) == ARMS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drive", [pulled(), pulled(5)], ids=["one by one", "in blocks"])
def test_nobody_else_and_nothing_public_depends_on_one_user(kind: Any, drive: Any) -> None:
    def start(accountant: Any) -> Any:
        return kind(n_arms=ARMS, dim=ARMS * DIM, blocks=3).start(accountant)

    moved = 0
    people = generated_pairs(12, 1, n_items=ARMS, dim=DIM, users=12, positions=(3, 4))
    for number, (data, neighbour) in enumerate(people):
        found = assert_noninterference(
            start, data, neighbour, protocol=drive, seed=number, budget=ZCDP(30)
        )
        moved += found.moved > 0
    assert moved > 4


@pytest.mark.parametrize("kind", KINDS)
def test_one_stream_of_all_arms_costs_the_cap_and_its_sensitivity_is_attained(kind: Any) -> None:
    learner = fresh(kind)
    Crowd().play(learner)
    accountant = learner._accountant
    accountant.close()
    certificate = accountant.certificate(1e-6)
    assert certificate.problems == []
    assert certificate.spent[0].rho == pytest.approx(1.0, rel=1e-9)
    (spend,) = (entry for entry in accountant.ledger.entries if isinstance(entry, SpendEntry))
    assert spend.domain["kind"] == "one-of"
    domain = learner._sums.sums.domain
    heard = type("Heard", (), {})()
    heard.context = 10 * np.eye(DIM)[[0, 1, 0]]
    heard.arm, heard.reward = np.array([0, 0, 1]), np.array([0.0, 0.0, 0.0])
    rows = domain.clip(learner._factors(heard))
    top = 1 + learner._share**2
    assert np.linalg.norm(rows[0] - rows[1]) == pytest.approx(math.sqrt(2), rel=1e-9)
    assert np.linalg.norm(rows[0] - rows[2]) == pytest.approx(math.sqrt(2), rel=1e-9)
    heard.reward = np.array([9.0, 9.0, -9.0])
    rows = domain.clip(learner._factors(heard))
    assert np.linalg.norm(rows[0] - rows[2]) == pytest.approx(math.sqrt(2) * top, rel=1e-9)
    assert domain.diameter() == pytest.approx(math.sqrt(2) * top, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_it_is_ridge_regression_of_each_arm(kind: Any) -> None:
    rich: dict[str, Any] = {"norm_clip": 1.01, "curvature": 1.0}
    if kind is PrivateLeastSquares:
        rich["reward_clip"] = 1.0
    learner, crowd = fresh(kind, rho=10**12, **rich), Crowd()
    crowd.play(learner)
    contexts, arms = np.clip(crowd.contexts, -1, 1), np.array(crowd.arms)
    for arm in range(ARMS):
        mine = arms == arm
        fit = np.linalg.lstsq(contexts[mine], crowd.rewards[mine, arm], rcond=None)[0]
        np.testing.assert_allclose(learner.coef_[arm], fit, atol=2e-3)
        np.testing.assert_allclose(
            learner._precision[arm], contexts[mine].T @ contexts[mine], atol=2e-2
        )


def test_the_shift_keeps_the_noisy_matrices_positive_definite_and_no_larger_than_needed() -> None:
    least = []
    for seed in range(8):
        learner = DPUCB(n_arms=2, dim=8, blocks=30)
        accountant = JointAccountant(
            ZCDP("0.1"), users=range(300), noise=NoiseSource.simulation(seed)
        )
        learner.start(accountant)
        null = np.full((300, 8), np.nan)
        learner.play(null, lambda own, arms: np.zeros(len(arms)))
        noise = np.array(learner.billboard_["sums"])[..., :8, :8] * learner._norm**2
        least.append(np.linalg.eigvalsh(noise).min() / learner._gamma)
    assert min(least) > -1
    assert min(least) < -0.15, "the last sum of a tree has less noise than its worst"


@pytest.mark.parametrize(
    ("kind", "rho", "share"), [(PrivateLeastSquares, "0.5", 0.5), (DPUCB, "1000", 0.5)]
)
def test_regret_is_below_random(kind: Any, rho: str, share: float) -> None:
    market = sparse_market(1, horizon=3000, dim=8)
    blind = float(market.serve(RandomArms(n_arms=2)).sum())
    learner = kind(n_arms=2, dim=8, **({"exploration": 0.05} if kind is DPUCB else {}))
    learner.start(joint(3000, rho))
    assert float(market.serve(learner).sum()) < share * blind


def test_the_bonus_explores() -> None:
    """A large bonus serves arms by what is unknown, not by what they paid."""
    bold, greedy = fresh(DPUCB, 10**6, exploration=100.0), fresh(DPUCB, 10**6, exploration=0.0)
    counts = []
    for learner in (bold, greedy):
        arms: list[int] = []
        same = np.full((HORIZON, DIM), 0.5)

        def respond(own: Visitor, pulled: Any, arms: list[int] = arms) -> Array:
            arms.extend(pulled.tolist())
            return np.where(pulled == 0, 0.9, 0.1)

        learner.play(same, respond)
        counts.append(sum(arms))
    assert abs(counts[0] - HORIZON / 2) <= HORIZON / 5
    assert counts[1] < HORIZON / 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_arms": 1}, "n_arms = 1"),
        ({"blocks": 0}, "blocks = 0"),
        ({"norm_clip": 0.0}, "norm_clip = 0.0"),
        ({"reward_bound": 0.0}, "reward_bound = 0.0"),
        ({"curvature": 2.0}, "curvature = 2.0"),
    ],
)
def test_bad_parameters_are_refused(kind: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fresh(kind, **changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fresh(DPUCB, exploration=-1.0),
        lambda: fresh(DPUCB, theta_norm=0.0),
        lambda: fresh(DPUCB, noise_std=0.0),
        lambda: fresh(PrivateLeastSquares, weight=0.0),
        lambda: fresh(PrivateLeastSquares, ridge=-1.0),
        lambda: fresh(PrivateLeastSquares, reward_clip=0.0),
        lambda: LassoBandit(n_arms=2, dim=3, gap=0.0),
        lambda: LassoBandit(n_arms=2, dim=3, penalty=-1.0),
        lambda: RandomArms(n_arms=0),
    ],
)
def test_other_bad_parameters_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_no_gaussian_fits_is_refused(kind: Any) -> None:
    accountant = JointAccountant(PureDP(1), users=range(HORIZON), noise=NoiseSource.simulation(0))
    with pytest.raises(CurrencyError, match="no finite price"):
        kind(n_arms=2, dim=3).start(accountant)
    assert len(accountant.ledger.entries) == 1


# Without a promise ------------------------------------------------------------------------


def test_the_lasso_bandit_forces_arms_as_printed_and_learns() -> None:
    learner, crowd = LassoBandit(n_arms=2, dim=DIM, forced=2), Crowd(n=60)
    crowd.play(learner)
    # (2^n - 1)·Kq + j, j = 1..Kq with Kq = 4: rounds 1-4, 5-8, 13-16, 29-32 (counted from 1)
    forced = [*range(4), *range(4, 8), *range(12, 16), *range(28, 32)]
    assert [crowd.arms[i] for i in forced] == [0, 0, 1, 1] * 4
    market = sparse_market(2, horizon=2000, dim=20)
    blind = float(market.serve(RandomArms(n_arms=2)).sum())
    assert float(market.serve(LassoBandit(n_arms=2, dim=20)).sum()) < 0.1 * blind


def test_the_lasso_is_that_of_scikit_learn_in_the_units_of_the_paper() -> None:
    learner, crowd = LassoBandit(n_arms=2, dim=DIM, penalty=0.5), Crowd(n=64)
    crowd.play(learner)
    n = learner._renewed
    penalty = 0.5 * math.sqrt((math.log(n) + math.log(DIM)) / n)
    for arm in range(2):
        mine = np.array(crowd.arms[:n]) == arm
        x, y = crowd.contexts[:n][mine], crowd.rewards[:n][mine, arm]
        fit = Lasso(alpha=penalty / 2, fit_intercept=False, max_iter=10_000).fit(x, y)
        np.testing.assert_allclose(learner.coef_[arm], fit.coef_, atol=1e-9)
        gradient = 2 * x.T @ (y - x @ learner.coef_[arm]) / len(y)
        assert np.abs(gradient).max() == pytest.approx(penalty, rel=1e-2), "its optimality"


def test_random_arms_are_drawn_alike() -> None:
    crowd = Crowd(n=3000)
    crowd.play(RandomArms(n_arms=2))
    assert 1400 < sum(crowd.arms) < 1600
