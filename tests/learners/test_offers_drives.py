"""Random orders of offers and answers: what is learned is what one user at a time would teach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grids import thinned
from mortal_subjects import Leader

from privlearn.accountants import JointAccountant
from privlearn.checking import Tardy, assert_answers_in_any_order
from privlearn.checking.replay.populations import shopper, stranger
from privlearn.errors import OfferError
from privlearn.learners import HeldPolicy, Offers, PrivateArms, PrivateExperts, PrivateTest
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource

USERS, WIDE, DIM = 130, 3, 2
CONTEXTS = np.random.default_rng(1).normal(size=(USERS, DIM))
CONTEXTS[5] = np.nan


def by_sign(contexts: Any) -> Any:
    return (contexts[:, 0] > 0).astype(int)


def none_for_some(contexts: Any) -> Any:
    """Actions that there are none of for contexts far out."""
    return np.where(np.abs(contexts[:, 1]) > 1.5, 7, 2)


LEARNERS: dict[str, Callable[[], Any]] = {
    "arms": lambda: PrivateArms(WIDE, first_phase=4),
    "arms with memory": lambda: PrivateArms(WIDE, first_phase=2, memory=20),
    "arms with delay": lambda: PrivateArms(WIDE, first_phase=4, delay=3),
    "held": lambda: HeldPolicy(Leader(WIDE), n_arms=WIDE, hold=7),
    "test": lambda: PrivateTest(random_state=1),
    "experts": lambda: PrivateExperts(WIDE, first_block=15),
    "policies": lambda: PrivateExperts(
        2, policies=[by_sign, none_for_some], n_actions=WIDE, dim=DIM, first_block=15
    ),
}


def started(name: str) -> Any:
    noise = NoiseSource.simulation(2)
    return LEARNERS[name]().start(JointAccountant(ZCDP(5), users=range(USERS), noise=noise))


def answer(name: str, user: int, shown: int, rng: np.random.Generator) -> Any:
    """Of some users one that nobody can use."""
    bad = (None, np.nan, 7.0, -1, "much", [[1.0]], [0.5, np.nan, 0.2], True)
    if rng.random() < 0.2:
        return bad[int(rng.integers(len(bad)))]
    if name in ("experts", "policies"):
        return [(user * (k + 1)) % 5 / 4 for k in range(WIDE)]
    return float((user * (shown + 1)) % 5 / 4)


def told(learner: Any) -> tuple[Any, ...]:
    posted = [(item["name"], item["at"], item["digest"]) for item in learner.billboard_.history()]
    return learner.public_state(), posted


@pytest.mark.parametrize(
    ("name", "seed"), thinned([(name, seed) for seed in range(8) for name in LEARNERS], 9)
)
def test_any_order_teaches_what_those_who_answered_in_time_would_alone(
    name: str, seed: int
) -> None:
    rng = np.random.default_rng([seed, 3])
    alone, offers = started(name), Offers(started(name))
    made: list[Any] = []
    heard: dict[int, Any] = {}
    late = 0
    while offers.clock_ < USERS or (offers.full and rng.random() < 0.8):
        what = rng.random()
        if offers.clock_ < USERS and what < 0.5:
            user = offers.clock_
            sent = [CONTEXTS[user]] if name == "policies" else []
            made.append(offers.select(*sent))
        elif made and what < 0.98:
            # often of somebody who came last, and at times of anybody, in time or not
            user = int(rng.integers(max(len(made) - 6, 0) if rng.random() < 0.8 else 0, len(made)))
            reply = answer(name, user, made[user].items, rng)
            try:
                offers.observe(made[user].id, reply)
                heard[user] = reply
            except OfferError:  # answered before, or closed
                late += 1
        elif offers.full:
            offers.close_if_full(offers.first_open)
    while offers.full:
        offers.close_batch()
    assert late
    for user in range(USERS):
        assert alone.select(*([CONTEXTS[user]] if name == "policies" else [])) == made[user].items
        alone.observe(heard.get(user))
    assert told(offers.learner) == told(alone)


@pytest.mark.parametrize("contexts", [False, True])
def test_nothing_of_experts_follows_from_the_order_of_answers(contexts: bool) -> None:
    rng = np.random.default_rng(4)
    make = [shopper, stranger]
    users = [
        Tardy(make[int(rng.integers(2))](rng, DIM, 1), None if rng.random() < 0.2 else 0)
        for _ in range(40)
    ]
    assert_answers_in_any_order(
        lambda accountant: LEARNERS["policies" if contexts else "experts"]().start(accountant),
        users,
        wait=6,
        orders=3,
        budget=ZCDP(5),
        arms=True,
        contexts=contexts,
        losses=WIDE,
    )
