"""Private bandits with arms: what they learn, null rewards, kills, prices, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_users import Crowd, joint, resumed
from resuming import die, killed_at

from privlearn import Adjacency
from privlearn.accountants import LocalAccountant
from privlearn.errors import LedgerError, ProvenanceError
from privlearn.learners import PrivateArms
from privlearn.learners.arm_policies import imed_arm
from privlearn.ledger.entries import PhaseEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.noise import NoiseSource

MEANS = [0.4, 0.6, 0.45]


def phases(learner: Any) -> list[tuple[int, float]]:
    """Ends of the phases and what was released."""
    return [(item["at"], item["value"][0]) for item in learner.billboard_.history()]


# What it learns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "most"), [(PureDP(1), 60), (ZCDP("0.1"), 75)])
def test_it_shows_the_best_arm_more_and_more_often(budget: Any, most: float) -> None:
    regrets = []
    for seed in range(8):
        accountant = joint(5000, budget, 100 + seed)
        learner = Crowd(MEANS, 5000, 100 + seed).play(PrivateArms(3).start(accountant), 5000)
        regrets.append(float(learner.pulls_ @ (0.6 - np.array(MEANS))))
        assert learner.best_arm_ == 1
        assert abs(learner.means_[1] - 0.6) < 4 * learner.stds_[1]
        assert learner.pulls_.sum() == 5000
    assert np.mean(regrets) < most
    assert max(regrets) < 3 * most


def test_after_a_change_only_memory_finds_the_new_best_arm() -> None:
    regrets = {}
    for memory in (None, 2000):
        total = 0.0
        for seed in range(4):
            accountant = joint(6000, seed=seed)
            learner = PrivateArms(2, memory=memory).start(accountant)
            Crowd([0.6, 0.4], 6000, seed).play(learner, 3000)
            before = learner.pulls_
            Crowd([0.3, 0.6], 6000, seed).play(learner, 6000)
            total += 0.2 * before[1] + 0.3 * (learner.pulls_ - before)[0]
        regrets[memory] = total / 4
    assert regrets[2000] < regrets[None] / 2


@pytest.mark.parametrize("delay", [0, 3])
def test_what_an_arm_rests_on_is_the_inverse_variance_of_its_phases(delay: int) -> None:
    learner = PrivateArms(2, reward_range=(-1.0, 3.0), delay=delay)
    learner.start(joint(400, PureDP("1/2")))
    shown: list[int] = []

    def respond(arms: Any) -> Any:
        shown.extend(arms)
        return np.where(arms == 1, 3.0, 1.0)

    learner.play(400, respond)
    information, weighed, pulls, first = np.zeros(2), np.zeros(2), np.zeros(2), 0
    for stop, value in phases(learner):
        m, arm = stop - first - delay, shown[first]
        assert shown[first:stop] == [arm] * (stop - first)
        weight = 1 / (0.25 / m + 8 / m**2)
        information[arm] += weight
        weighed[arm] += weight * (value / m + 0.5)
        pulls[arm] += m
        first = stop
    assert phases(learner)[0][0] == math.ceil(2 * math.sqrt(8)) + delay
    np.testing.assert_allclose(learner.stds_, 4 / np.sqrt(information), rtol=1e-3)
    np.testing.assert_allclose(learner.means_, -1 + 4 * weighed / information, rtol=1e-3)
    assert learner.pulls_.tolist() == pulls.tolist()
    assert learner.shown_.tolist() == np.bincount(shown).tolist()


def test_imed_weighs_what_is_known_against_what_it_would_cost() -> None:
    known = np.array([500.0, 5.0])
    assert imed_arm(np.array([np.nan, 0.9]), np.array([0.0, 9.0]), 1000) == 0
    assert imed_arm(np.array([0.6, 0.59]), known, 1000) == 1  # hardly known
    assert imed_arm(np.array([0.6, 0.1]), np.array([500.0, 50.0]), 1000) == 0  # known to be worse
    assert imed_arm(np.array([5.0, -7.0]), np.array([10.0, 10.0]), 1000) == 0  # by noise
    assert imed_arm(np.array([0.6, 0.59]), known, 5) == 0  # and too few users to look again
    assert imed_arm(np.r_[0.6, np.full(400, 0.5)], np.r_[500.0, np.full(400, 20.0)], 4000) == 0
    assert imed_arm(np.array([0.6, 0.5]), np.array([500.0, 20.0]), 4000) == 1


# Kills --------------------------------------------------------------------------------------------


def test_a_phase_lasts_as_long_after_a_kill_and_a_second_one_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    accountant = joint(200, path=path)
    learner = Crowd(MEANS, 200).play(PrivateArms(3).start(accountant), 20)
    state = learner.public_state()
    for seed in (1, 2):
        die(accountant)
        accountant = resumed(path, seed)
        again = PrivateArms.resume(accountant)
        begun = again.public_state()
        assert {**begun, "clock": 20} == state  # of this phase, whoever came is lost
    Crowd(MEANS, 200).play(again, 200)
    die(accountant)
    with pytest.raises(LedgerError, match="n_arms = 4: the learner was begun with 3"):
        PrivateArms(4).start(resumed(path, 9))


@pytest.mark.parametrize("entry", range(5, 10))
def test_whoever_comes_after_a_kill_is_in_a_phase_that_stands_in_the_ledger(
    entry: int, tmp_path: Path
) -> None:
    accountant: Any = joint(200, path=tmp_path / "ledger")
    with killed_at(accountant, entry, written=True):
        Crowd(MEANS, 200).play(PrivateArms(3).start(accountant), 200)
    accountant = resumed(tmp_path / "ledger")
    learner = PrivateArms.resume(accountant)
    learner.select()
    entries = accountant.ledger.entries
    running = [e.token for e in entries if isinstance(e, SpendEntry)][-1]
    ends = [e.stop for e in entries if isinstance(e, PhaseEntry) and e.token == running]
    assert ends[-1:] == [learner.clock_ + len(learner.coming_)]


# Prices and refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "std"),
    [(PureDP("1/2"), math.sqrt(8)), (ZCDP("1/8"), 2.0), (GaussianDP("1/2"), 2.0)],
)
def test_all_phases_cost_what_one_sum_does(budget: Any, std: float) -> None:
    accountant = joint(2000, budget)
    learner = Crowd(MEANS, 2000).play(PrivateArms(3).start(accountant), 2000)
    assert accountant.spent() == accountant.budget
    assert learner.billboard_.history()[0]["at"] == math.ceil(2 * std)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"n_arms": 1}, ValueError, "n_arms = 1: must be an integer >= 2"),
        ({"growth": 1.0}, ValueError, "growth = 1.0: must be > 1"),
        ({"first_phase": 0}, ValueError, "first_phase = 0: must be"),
        ({"memory": 0.5}, TypeError, "memory = 0.5: must be an integer"),
        ({"missing": 1.5}, ValueError, r"missing = 1.5: must lie in \[0, 1\]"),
        ({"reward_range": (1, 0)}, ValueError, r"reward_range = \(1, 0\): must be two numbers"),
        ({"reward_range": 1}, TypeError, "reward_range = 1: must be two numbers"),
        ({"reward_range": (0, math.inf)}, ValueError, "reward_range = inf: must be finite"),
        ({"n_arms": 40}, ValueError, "n_arms = 40: each is first shown to 3 users, to 120 toget"),
    ],
)
def test_public_mistakes_are_errors_before_anything_is_spent(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    accountant = joint(100)
    with pytest.raises(error, match=message):
        PrivateArms(**{"n_arms": 3, **wrong}).start(accountant)
    assert not accountant.begun


def test_other_accountants_are_refused() -> None:
    local: Any = LocalAccountant(PureDP(1), users=range(50), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="PrivateArms: learns from answers as they are"):
        PrivateArms(2).start(local)


def test_a_phase_sum_is_of_neighbours_who_are_replaced_or_zero() -> None:
    zero = joint(50, adjacency=Adjacency.ZERO_OUT)
    learner = PrivateArms(2).start(zero)
    assert learner.billboard_.history() == []
    learner.skip(2)  # zero-out: half the sensitivity, half the noise
    assert [end for end, _ in phases(learner)] == [2]
