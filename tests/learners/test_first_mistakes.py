"""First mistakes with arms, tests and experts: each is an error that says what is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privlearn import ApproxDP, Ledger, PureDP
from privlearn.accountants import JointAccountant
from privlearn.errors import LedgerClosedError, LedgerError, PolicyError
from privlearn.learners import HeldPolicy, PrivateArms, PrivateExperts, PrivateTest


def joint(budget: Any = None, path: Any = None) -> JointAccountant[Any]:
    ledger = Ledger.memory() if path is None else path
    return JointAccountant(budget or PureDP(1), users=range(600), ledger=ledger)


@pytest.mark.parametrize("wrong", [None, "new.db", PureDP(1)], ids=["none", "path", "budget"])
def test_what_is_no_accountant_is_told_so(wrong: Any) -> None:
    for call in (PrivateArms(3).start, PrivateTest().start, PrivateArms.resume):
        with pytest.raises(TypeError, match="must be an accountant, such as JointAccountant"):
            call(wrong)


@pytest.mark.parametrize(
    "learner", [PrivateArms(3), PrivateTest(), PrivateExperts(3)], ids=lambda one: repr(one)
)
def test_nothing_is_known_before_the_start(learner: Any) -> None:
    names = ["best_arm_", "means_", "stds_", "pulls_", "e_value_", "p_value_", "decision_"]
    for name in [*names, "expert_", "redraws_"]:
        if hasattr(type(learner), name):
            with pytest.raises(RuntimeError, match="call start"):
                getattr(learner, name)
    with pytest.raises(RuntimeError, match="call start"):
        learner.observe(None)


def test_a_learner_is_shown_as_it_was_made() -> None:
    assert repr(PrivateArms(5)) == "PrivateArms(n_arms=5)"
    assert repr(PrivateArms(5, missing=0).start(joint())) == "PrivateArms(n_arms=5, missing=0)"
    assert repr(PrivateTest()) == "PrivateTest()"


def test_rewards_in_place_of_a_function_are_refused_and_not_shown() -> None:
    rewards: Any = np.full(100, 0.12345)
    for learner in (PrivateArms(3).start(joint()), PrivateExperts(3).start(joint())):
        with pytest.raises(TypeError, match="respond: is of type ndarray; must be a function") as e:
            learner.play(100, rewards)
        assert "12345" not in str(e.value)
        assert learner.clock_ == 0


def test_a_memory_too_short_for_all_arms_is_refused() -> None:
    with pytest.raises(ValueError, match=r"memory = 8: .* must be at least 9"):
        PrivateArms(3, memory=8).start(joint())
    PrivateArms(3, memory=9).start(joint())


@pytest.mark.parametrize(
    "policy",
    [
        lambda contexts: 0,
        lambda contexts: int(contexts[0] > 0.5),
        lambda contexts: np.full(len(contexts), 3),
        lambda contexts: ["first"] * len(contexts),
    ],
    ids=["one number", "of one row", "no action", "text"],
)
def test_a_policy_that_always_fails_is_an_error_at_the_start(policy: Any) -> None:
    accountant = joint(ApproxDP(1, 1e-6))

    def first(contexts: Any) -> Any:
        return np.zeros(len(contexts), dtype=int)

    learner = PrivateExperts(2, policies=[first, policy], n_actions=3, dim=2)
    with pytest.raises(PolicyError, match=r"policies\[1\]: failed in all contexts"):
        learner.start(accountant)
    assert not accountant.begun


class Fixed:
    def choose(self) -> int:
        return 0

    def learn(self, arm: int, mean: float, weight: int) -> None: ...


class Other(Fixed): ...


def test_a_policy_of_another_class_is_told_what_to_hand_in(tmp_path: Any) -> None:
    accountant = joint(path=tmp_path / "own.db")
    HeldPolicy(Fixed(), n_arms=2).start(accountant).play(10, lambda arms: arms)
    accountant.ledger.close()
    accountant = JointAccountant.resume(tmp_path / "own.db")
    with pytest.raises(LedgerError, match="hand in one of a class of that name"):
        HeldPolicy.resume(accountant, policy=Other())


def test_nobody_is_served_once_the_accountant_is_closed() -> None:
    accountant = joint()
    arms = PrivateArms(2).start(accountant)
    accountant.close()
    with pytest.raises(LedgerClosedError, match="nobody is served any more"):
        arms.select()
