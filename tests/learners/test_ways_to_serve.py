"""Arms, tests and experts: one by one, in blocks, as offers in any order, they learn the same."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from answer_orders import assert_answers_in_any_order
from arm_users import joint
from grids import thinned
from mortal_subjects import Leader

from privlearn.accountants import CentralAccountant
from privlearn.checking import Tardy
from privlearn.checking.replay.populations import shopper, stranger
from privlearn.errors import OfferError
from privlearn.learners import (
    AsyncOffers,
    HeldPolicy,
    Offers,
    PrivateArms,
    PrivateExperts,
    PrivateTest,
)
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource

USERS, WIDE, DIM = 160, 3, 2
CONTEXTS = np.random.default_rng(1).normal(size=(USERS, DIM))
CONTEXTS[5] = np.nan
ANSWERS = np.random.default_rng(2).random((USERS, WIDE))


def by_sign(contexts: Any) -> Any:
    return (contexts[:, 0] > 0).astype(int)


def none_for_some(contexts: Any) -> Any:
    """Actions that there are none of for contexts far out."""
    return np.where(np.abs(contexts[:, 1]) > 1.5, 7, 2)


MIDDLE = [0.5] * WIDE
LEARNERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "arms": (lambda: PrivateArms(WIDE, first_phase=4, missing=0.25), 0.25),
    "arms with memory": (lambda: PrivateArms(WIDE, first_phase=2, memory=20), 0.5),
    "arms with delay": (lambda: PrivateArms(WIDE, first_phase=4, delay=3), 0.5),
    "held": (lambda: HeldPolicy(Leader(WIDE), n_arms=WIDE, hold=7, missing=0.75), 0.75),
    "test": (lambda: PrivateTest(reward_range=(-1, 1), random_state=1), -1.0),
    "groups": (lambda: PrivateTest(3, random_state=1), 0.0),
    "experts": (lambda: PrivateExperts(WIDE, first_block=15), MIDDLE),
    "policies": (
        lambda: PrivateExperts(
            2, policies=[by_sign, none_for_some], n_actions=WIDE, dim=DIM, first_block=15
        ),
        MIDDLE,
    ),
}
"""And what an answer that cannot be used counts as."""
BAD: list[Any] = [None, math.nan, math.inf, -1.01, 1.01, "1/2", [1.0], np.ones(2), {}, 10**400]
BAD += [[0.5, math.nan, 0.5], [0.5, 1.01, 0.5], [0.5, "x", 0.5], np.ones((3, 1)), [0.5, 0.5]]


def started(name: str) -> Any:
    return LEARNERS[name][0]().start(joint(USERS, ZCDP(5), 2))


def sent(name: str, user: int) -> list[Any]:
    return [CONTEXTS[user]] if name == "policies" else []


def answer(name: str, user: int, shown: int) -> Any:
    return ANSWERS[user] if name in ("experts", "policies") else float(ANSWERS[user, shown])


def one_by_one(name: str, learner: Any, heard: Callable[[int, int], Any]) -> Any:
    for user in range(USERS):
        shown = learner.select(*sent(name, user))
        learner.observe(heard(user, shown))
    return learner


def played(name: str, learner: Any, stop: int, null: Any) -> Any:
    """The next users at once, of whom some give nothing that can be used."""
    first = learner.clock_
    left = iter(range(first, stop))

    def respond(*given: Any) -> Any:
        shown = given[-1]
        turns = given[0].turn.tolist() if len(given) > 1 else [next(left) for _ in shown]
        found = np.array([answer(name, user, arm) for user, arm in zip(turns, shown, strict=True)])
        found[[user in null for user in turns]] = np.nan
        return found

    learner.play(CONTEXTS[first:stop] if name == "policies" else stop - first, respond)
    return learner


def told(learner: Any) -> tuple[Any, ...]:
    posted = [(item["name"], item["at"], item["digest"]) for item in learner.billboard_.history()]
    return learner.public_state(), posted


@pytest.mark.parametrize("name", LEARNERS)
def test_all_ways_learn_the_same_and_what_cannot_be_used_is_null(name: str) -> None:
    _, counts_as = LEARNERS[name]
    null = range(1, USERS, 3)

    def odd(user: int, shown: int) -> Any:
        return BAD[user // 3 % len(BAD)] if user in null else answer(name, user, shown)

    def filled(user: int, shown: int) -> Any:
        return counts_as if user in null else answer(name, user, shown)

    alone = one_by_one(name, started(name), odd)
    ways = [one_by_one(name, started(name), filled), started(name)]
    for stop in (1, 7, 8, 100, USERS):
        played(name, ways[-1], stop, null)
    if name != "policies":  # what is shown follows from releases, so that central is enough
        central: Any = CentralAccountant(
            ZCDP(5), users=range(USERS), noise=NoiseSource.simulation(2)
        )
        ways.append(played(name, LEARNERS[name][0]().start(central), USERS, null))
        ((why, lost),) = alone.private_counts_.reasons.items()
        assert "must be" in why
        assert (alone.private_counts_.rows, lost) == (USERS, len(null))
        assert why not in repr(alone)
        assert ways[1].private_counts_.reasons == {why: lost}
    for learner in ways:
        assert told(learner) == told(alone)


@pytest.mark.parametrize("name", LEARNERS)
def test_who_never_comes_is_as_who_has_no_answer(name: str) -> None:
    gone, null = started(name).skip(25), played(name, started(name), 25, range(25))
    assert gone.private_counts_.reasons == {"never came": 25}
    for learner in (gone, null):
        played(name, learner, USERS, ())
    assert told(gone) == told(null)


# Offers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seed"), thinned([(name, seed) for seed in range(4) for name in LEARNERS], 9)
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
            made.append(offers.select(*sent(name, offers.clock_)))
        elif made and what < 0.98:
            # often of somebody who came last, and at times of anybody, in time or not
            user = int(rng.integers(max(len(made) - 6, 0) if rng.random() < 0.8 else 0, len(made)))
            usable = rng.random() > 0.2
            reply = answer(name, user, made[user].items) if usable else BAD[user % len(BAD)]
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

    def again(user: int, shown: int) -> Any:
        assert shown == made[user].items
        return heard.get(user)

    one_by_one(name, alone, again)
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
        lambda accountant: LEARNERS["policies" if contexts else "experts"][0]().start(accountant),
        users,
        wait=6,
        orders=3,
        budget=ZCDP(5),
        arms=True,
        contexts=contexts,
        losses=WIDE,
    )


DELAY = 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrivateArms(3, delay=DELAY),
        lambda: PrivateTest(delay=DELAY, random_state=1),
        lambda: PrivateTest(3, delay=DELAY, random_state=1),
    ],
)
def test_with_a_delay_answers_that_come_late_count_and_nobody_else_does(
    make: Callable[[], Any],
) -> None:
    """The last users of a phase answer what they like."""
    found, phases = [], set[range]()
    for late, odd in ((0, False), (DELAY, True)):
        offers: Any = Offers(make().start(joint(USERS, ZCDP(5))))
        made, arms = [], []
        for user in range(USERS):
            made.append(offers.select())
            arms.append(made[-1].items)
            phases.add(offers.open_batch)
            if user >= late:
                offer, batch = made[user - late], offers.open_batch
                if offers.is_open(offer):
                    told = odd and user - late >= batch.stop - DELAY
                    offers.observe(offer.id, 1.0 if told else (user - late) % 3 / 2)
        offers.close_batch()
        learner = offers.learner
        found.append((arms, learner.public_state()))
    assert found[0] == found[1]
    assert found[0][1]["phase"] == [USERS, USERS]
    assert learner.shown_.sum() == USERS
    if isinstance(learner, PrivateArms):
        assert learner.pulls_.sum() == sum(max(len(phase) - DELAY, 0) for phase in phases)


def test_as_many_count_in_a_phase_as_do_not() -> None:
    assert len(PrivateArms(3, delay=20).start(joint(USERS)).coming_) == 40


def test_coroutines_serve_them_too() -> None:
    async def work() -> list[int]:
        async with AsyncOffers(Offers(started("test"))) as offers:
            made = await asyncio.gather(*(offers.select() for _ in range(4)))
            await asyncio.gather(*(offers.observe(offer.id, 1.0) for offer in made))
            return list(await offers.read(lambda learner: learner.shown_))

    assert asyncio.run(work()) == [2, 2]


def test_mistakes_are_named() -> None:
    arms = Offers(started("arms"))
    with pytest.raises(TypeError, match=r"PrivateArms.select: takes no data of the user"):
        arms.select([1.0])
    assert arms.clock_ == 0
    with pytest.raises(ValueError, match=r"wait = 2: a PrivateArms shows .* make it with delay=2"):
        Offers(started("arms"), wait=2)
    with pytest.raises(TypeError, match=r"arms \(PrivateArms, PrivateTest, .*experts \(PrivateExp"):
        Offers(object())  # type: ignore[type-var]
    with pytest.raises(TypeError, match="context: must be given, as this learner's users send it"):
        Offers(started("policies")).select()
