"""A user of `OnePassNewtonGLM` with bad data, at any place, is as one who never came."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from arm_users import joint
from one_line_faults import cases, is_found

from privlearn.accountants import CentralAccountant
from privlearn.errors import ProvenanceError
from privlearn.learners import OnePassNewtonGLM
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation

USERS, ACTIONS, DIM, EVERY = 60, 4, 3, 3
SLATES = np.random.default_rng(0).normal(size=(USERS, ACTIONS, DIM)) / 2
LUCK = np.random.default_rng(1).random(USERS)

LEARNERS: dict[str, dict[str, Any]] = {
    "logistic": {},
    "linear": {"link": "linear", "reward_range": (-1.0, 2.0), "policy": "greedy"},
    "probit": {"link": "probit", "policy": "thompson"},
    "poisson": {"link": "poisson", "reward_range": (0.0, 3.0), "per_action": True},
}


class Explosive:
    """A cell that fails however it is looked at."""

    def _fail(self, *_: object) -> Any:
        raise SystemExit("a secret")

    __float__ = __index__ = __len__ = __array__ = __iter__ = __getitem__ = __eq__ = _fail
    __hash__ = object.__hash__


def started(name: str) -> Any:
    learner = OnePassNewtonGLM(ACTIONS, DIM, first_batch=7, longest_batch=9, **LEARNERS[name])
    return learner.start(joint(USERS, ZCDP(20), 3))


def sent(learner: Any, user: int) -> Any:
    return SLATES[user, 0] if learner.per_action else SLATES[user]


def bad_visits(learner: Any) -> list[tuple[Any, Any]]:
    """Data and a reward of which one is no use; all others are as good as any."""
    good, (low, high) = sent(learner, 0), learner.reward_range
    one, other = good.copy(), good.copy()
    one.flat[-1], other.flat[0] = np.nan, -np.inf
    data = [one, other, good[..., :-1], good[None], good[:0], good.astype(str), good * 1j]
    data += [None, "slate", 3.0, {}, [], [[]], [Explosive()] * len(good)]
    data += [np.concatenate([good, good], axis=-1), [[10**400] * DIM] * ACTIONS]
    rewards: list[Any] = [None, math.nan, math.inf, np.nextafter(low, -9), np.nextafter(high, 9)]
    rewards += ["1/2", "", {}, [0.5], np.ones(2), 10**400, 1j, Explosive(), np.ma.masked]
    return [(each, high) for each in data] + [(good, each) for each in rewards]


def served(learner: Any, visits: dict[int, Any]) -> list[int]:
    """What users were shown; of ``visits`` None is a user who never comes."""
    shown = []
    for user in range(USERS):
        if user in visits and visits[user] is None:
            learner.skip(1)
            shown.append(-1)
            continue
        data, reward = visits.get(user, (sent(learner, user), None))
        shown.append(learner.select(data))
        if user not in visits:
            low, high = learner.reward_range
            reward = low + (high - low) * float(LUCK[user] > 0.3 + 0.1 * shown[-1])
        learner.observe(reward)
    return shown


def told(learner: Any) -> list[Any]:
    entries = learner._accountant.ledger.entries
    return [(type(each), each.model_dump(exclude={"accountant", "token"})) for each in entries]


@pytest.mark.parametrize("name", LEARNERS)
def test_bad_users_at_every_place_are_as_those_who_never_came(name: str) -> None:
    number, good = 0, started(name)
    all_good = served(good, {})
    for first in range(EVERY):
        places = range(first, USERS, EVERY)
        bad, gone = started(name), started(name)
        kinds = bad_visits(bad)
        visits = {user: kinds[(number + i) % len(kinds)] for i, user in enumerate(places)}
        number += len(places)
        seen, others = served(bad, visits), served(gone, dict.fromkeys(places))
        assert all(0 <= seen[user] < ACTIONS for user in places)
        assert [a for u, a in enumerate(seen) if u not in visits] == (
            [a for u, a in enumerate(others) if u not in visits]
        )
        assert bad.public_state() == gone.public_state()
        assert told(bad) == told(gone)
        assert bad.private_counts_.null == len(places)
        assert str(bad) == str(gone)
        # and beside good ones nothing else happens: others, too, are shown the same up to a release
        assert [u for u in range(7) if all_good[u] != seen[u] and u not in visits] == []
        assert [each for each, _ in told(good)] == [each for each, _ in told(bad)]
        assert good.clock_ == bad.clock_ == USERS
    assert number >= len(kinds)


_ACTIONS = "privlearn.learners.served_actions:ServedActions"
_LOGISTIC = partial(test_bad_users_at_every_place_are_as_those_who_never_came, "logistic")


@cases(
    [
        (f"{_ACTIONS}._learnable", "& (rewards <= self._high) ", "", _LOGISTIC),
        (f"{_ACTIONS}._clipped", "if np.count_nonzero(unusable):", "if False:", _LOGISTIC),
    ]
)
def test_a_bad_user_who_counts_is_seen(
    target: str, old: str, new: str, test: Callable[..., None]
) -> None:
    assert is_found(target, old, new, test)


def test_the_visits_of_whoever_is_forgotten_are_null() -> None:
    ids: list[Any] = [f"person {user * 7 % 20}" for user in range(USERS)]
    found = []
    for forgets in (True, False):
        people = People.memory(Participation(2, pooled=True))
        learner = OnePassNewtonGLM(ACTIONS, DIM, first_batch=20, longest_batch=20)
        learner.start(joint(USERS, ZCDP(20), 3, people=people))
        for user in range(USERS):
            learner.select(SLATES[user], person=ids[user])
            null = not forgets and ids[user] == "person 7" and user < 40
            learner.observe(None if null else float(LUCK[user] > 0.5))
            if forgets and user == 19 - 1:
                learner.forget("person 7")
        found.append(learner.public_state())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", LEARNERS)
def test_large_numbers_are_clipped_and_nothing_warns_of_them(name: str) -> None:
    """Warnings are errors here."""
    learner = OnePassNewtonGLM(ACTIONS, DIM, first_batch=2, feature_scale=0.1, **LEARNERS[name])
    learner.start(joint(8, ZCDP(20), 3))
    far = np.broadcast_to(1.7e308 * np.sign(sent(learner, 0)), (3, *sent(learner, 0).shape))
    learner.play(far, lambda own, actions: np.ones(len(actions)), np.full((3, ACTIONS), 1.7e308))
    for data in far:
        assert 0 <= learner.select(data, np.full(ACTIONS, -1.7e308)) < ACTIONS
        learner.observe(1)
    assert learner.clock_ == 6


@pytest.mark.parametrize("per_action", [False, True])
def test_what_one_user_sends_moves_nobody_else_in_a_block(per_action: bool) -> None:
    """Expected rewards are all at their cap, so that whoever has them compared is shown another."""
    seen = []
    own, other = (SLATES[30, 0], "no slate") if per_action else (SLATES[30], [[1.0], [2.0]])
    sent: list[tuple[Any, float]] = [(own, worth) for worth in (1.0, 9.0, math.nan, 1e308)]
    for data, worth in [*sent, (1e6 * own, 1.0), (other, 1.0)]:
        learner = OnePassNewtonGLM(
            ACTIONS,
            DIM,
            link="poisson",
            reward_range=(0.0, 3.0),
            max_rate=1e-3,
            policy="greedy",
            per_action=per_action,
            first_batch=10,
            longest_batch=14,
        )
        learner.start(joint(USERS, ZCDP(20), 3))
        slates = [*(SLATES[:, 0] if per_action else SLATES)]
        revenues, shown = np.ones((USERS, ACTIONS)), np.zeros(USERS)
        revenues[30, 1], slates[30] = worth, data

        def respond(own: Any, actions: Any, shown: Any = shown) -> Any:
            shown[own.turn] = np.where(own.turn == 30, -1, actions)
            return np.where(own.turn == 30, math.nan, 1.0)  # whatever was shown, a null record

        learner.play(slates, respond, revenues)
        seen.append((shown.tolist(), learner.public_state()))
    assert seen[1:] == seen[:1] * 5


def test_numbers_of_no_action_are_null() -> None:
    learner = OnePassNewtonGLM(ACTIONS, DIM, per_action=True)
    noise = NoiseSource.simulation(0)
    learner.start(CentralAccountant(ZCDP(1), users=range(7), noise=noise))
    learner.partial_fit(SLATES[:7, 0], np.ones(7), actions=[0, 3, 4, -1, math.nan, 1.5, 2])
    assert [user for user, _ in learner.private_messages_] == [2, 3, 4, 5]


def test_a_timetable_is_refused_by_name() -> None:
    people = People.memory(Participation(1, clock="timetable"))
    with pytest.raises(ProvenanceError, match="OnePassNewtonGLM takes one row for each slot"):
        OnePassNewtonGLM(ACTIONS, DIM).start(joint(USERS, ZCDP(20), 3, people=people))
