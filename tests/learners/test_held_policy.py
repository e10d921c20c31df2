"""Policies of other libraries: what is told to them, bad ones, kills."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_users import Crowd, joint, resumed
from resuming import die

from privlearn.accountants import audit
from privlearn.errors import LedgerError, PolicyError
from privlearn.learners import HeldPolicy
from privlearn.losses.budgets import ZCDP, PureDP

MEANS = [0.3, 0.6, 0.4]


class Greedy:
    """The best arm, and every fifth time the next one in turn."""

    def __init__(self, n_arms: int = 3, every: int = 5) -> None:
        self.total, self.weight = np.zeros(n_arms), np.full(n_arms, 1e-9)
        self.every, self.round = every, 0
        self.told: list[tuple[int, float, int]] = []

    def choose(self) -> Any:
        self.round += 1
        arms = len(self.total)
        explores = self.round <= arms or self.round % self.every == 0
        return self.round % arms if explores else int(np.argmax(self.total / self.weight))

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self.told.append((arm, mean, weight))
        self.total[arm] += weight * mean
        self.weight[arm] += weight


def started(policy: Any, users: int = 400, budget: Any = None, **options: Any) -> Any:
    options.setdefault("n_arms", 3)
    return HeldPolicy(policy, **options).start(joint(users, budget))


# What it is told ----------------------------------------------------------------------------------


def test_a_policy_finds_the_best_arm_and_is_told_means_and_nothing_else() -> None:
    policy = Greedy()
    learner = started(policy, 3001, hold=6)
    shown: list[int] = []
    crowd = Crowd(MEANS, 3001, 5)
    answer = crowd.respond(learner)

    def respond(arms: Any) -> Any:
        shown.extend(arms)
        return answer(arms)

    learner.play(3001, respond)
    told = learner.policy_.told
    released = [item["value"][0] for item in learner.billboard_.history()]
    assert [weight for _, _, weight in told] == [6] * 500 + [1]
    assert [arm for arm, _, weight in told for _ in range(weight)] == shown
    means = [value / weight + 0.5 for value, (_, _, weight) in zip(released, told, strict=True)]
    assert [mean for _, mean, _ in told] == pytest.approx(np.clip(means, -1, 2))
    assert max(means) > 2  # so that clipping is seen
    assert policy.told == []  # a copy learns
    assert learner.pulls_.tolist() == np.bincount(shown).tolist()
    assert learner.pulls_[1] > 1800


@pytest.mark.parametrize(("budget", "hold"), [(PureDP("1/4"), 8), (ZCDP("1/8"), 3)])
def test_the_default_hold_follows_from_the_noise(budget: Any, hold: int) -> None:
    learner = started(Greedy(), 100, budget).skip(100)
    assert learner.policy_.told[0][2] == hold
    assert learner._accountant.spent() == budget


def test_mabwiser_and_river_fit_as_they_are() -> None:
    mab = pytest.importorskip("mabwiser.mab")
    bandit = pytest.importorskip("river.bandit")
    arms, kinds = [0, 1, 2], mab.LearningPolicy
    for policy, options in [
        (mab.MAB(arms, kinds.EpsilonGreedy(0.1)), {}),
        (mab.MAB(arms, kinds.UCB1(0.5)), {}),
        (mab.MAB(arms, kinds.Popularity()), {"clip": (0, 1)}),
        (bandit.EpsilonGreedy(epsilon=0.1, decay=0, seed=1), {}),
        (bandit.UCB(delta=1, seed=1), {}),
    ]:
        learner = started(policy, 600, hold=20, **options)
        assert Crowd(MEANS, 600).play(learner, 600).pulls_.sum() == 600
    with pytest.raises(PolicyError, match=r"MAB.predict raised ValueError"):
        started(mab.MAB(arms, kinds.Popularity()))
    with pytest.raises(PolicyError, match="takes contexts"):
        started(mab.MAB(arms, kinds.LinUCB()))


# Bad policies -------------------------------------------------------------------------------------


class Returns(Greedy):
    """Chooses something else in its fourth round."""

    def __init__(self, arm: Any) -> None:
        super().__init__()
        self.arm = arm

    def choose(self) -> Any:
        return super().choose() if self.round < 3 else self.arm


class Fails(Greedy):
    """Raises when it was told so many means."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def learn(self, arm: int, mean: float, weight: int) -> None:
        if len(self.told) == self.after:
            raise KeyError("a bug")
        super().learn(arm, mean, weight)


class Unseeded(Greedy):
    def choose(self) -> int:
        return int(np.random.randint(3))


class Named(Greedy):
    arms = ("a", "b", "c")
    is_contextual = False

    def predict(self) -> int:
        return 0

    def partial_fit(self, arms: Any, rewards: Any) -> None: ...


class Copyless(Greedy):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class NoRepr(Greedy):
    def __repr__(self) -> str:
        raise ValueError


for name in ("choose", "learn"):  # MABWiser's form alone
    setattr(Named, name, None)


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        *(
            (Returns(arm), PolicyError, "policy: Returns.choose returned .*: must be an integer fr")
            for arm in (3, -1, None, True, np.True_, 1.0, "1", [1], np.array([1, 2]))
        ),
        (Fails(5), PolicyError, "policy: Fails.learn raised KeyError: 'a bug'"),
        (Unseeded(), PolicyError, "two copies of a Unseeded chose different arms"),
        (Named(), PolicyError, r"policy.arms = \['a', 'b', 'c'\]: must be list\(range\(3\)\)"),
        (Copyless(), TypeError, "policy: a Copyless cannot be copied"),
        (object(), TypeError, "must be an object with the methods choose and learn; predict and"),
        (Greedy, TypeError, "must be an object with the methods"),
        (None, TypeError, "policy = None: must be an object"),
        (
            Greedy(4),
            PolicyError,
            "policy: Greedy.choose returned 3: must be an integer from 0 to 2",
        ),
    ],
)
def test_bad_policies_are_refused_before_anything_is_spent(
    policy: Any, error: type[Exception], message: str
) -> None:
    accountant = joint(400)
    with pytest.raises(error, match=message):
        HeldPolicy(policy, n_arms=3).start(accountant)
    assert not accountant.begun


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hold": 0}, "hold = 0: must be an integer >= 1"),
        ({"clip": (1, 1)}, r"clip = \(1, 1\): must be two numbers, the lower one first"),
        ({"hold": 200}, "each is first shown to 200 users, to 600 together"),
    ],
)
def test_public_mistakes_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started(Greedy(), **wrong)


# Kills --------------------------------------------------------------------------------------------


def begun(path: Path, policy: Any) -> Any:
    return HeldPolicy(policy, n_arms=3).start(joint(300, path=path))


def again_with(path: Path, policy: Any) -> Any:
    return HeldPolicy.resume(resumed(path), policy=policy)


def test_a_policy_is_told_again_what_was_released(tmp_path: Path) -> None:
    learner = Crowd(MEANS, 300).play(begun(tmp_path / "ledger", NoRepr()), 61)
    told, state = learner.policy_.told, learner.public_state()
    die(learner._accountant)
    again = again_with(tmp_path / "ledger", NoRepr())
    assert again.policy_.told == told
    assert {**again.public_state(), "clock": 61} == state
    Crowd(MEANS, 300).play(again, 300)
    again._accountant.close()
    assert audit(tmp_path / "ledger").problems == []


def test_a_policy_that_fails_stops_the_run_and_a_mended_one_goes_on(tmp_path: Path) -> None:
    path, crowd = tmp_path / "ledger", Crowd(MEANS, 300)
    learner = begun(path, Fails(110))
    with pytest.raises(PolicyError, match=r"policy: Fails.learn raised KeyError: 'a bug'"):
        crowd.play(learner, 300)
    with pytest.raises(RuntimeError, match="failed half-way: resume its ledger"):
        learner.select()
    told = learner.policy_.told
    assert len(told) == 110
    die(learner._accountant)
    mended = again_with(path, Fails(-1))
    assert mended.policy_.told[:110] == told
    assert len(mended.policy_.told) == 111  # that mean was released, too
    assert mended.clock_ == 222
    crowd.play(mended, 300)
    mended._accountant.close()
    assert audit(path).problems == []


def test_another_policy_does_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    die(begun(path, Greedy())._accountant)
    with pytest.raises(PolicyError, match="chooses other arms than the one that the run was begun"):
        again_with(path, Greedy(every=4))
    with pytest.raises(LedgerError, match=r"policy = .*Named': the learner was begun with"):
        HeldPolicy(Named(), n_arms=3).start(resumed(path))
