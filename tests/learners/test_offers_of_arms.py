"""`Offers` of learners whose visitors send nothing: arms and rewards, experts and their losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.learners import AsyncOffers, Offers, PrivateArms, PrivateExperts, PrivateTest
from privlearn.learners.served import Served
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource

USERS = 240
LEARNERS: dict[str, tuple[Callable[[], Any], Callable[[int, int], Any]]] = {
    "arms": (lambda: PrivateArms(3), lambda user, arm: float((user + arm) % 3 == 0)),
    "test": (lambda: PrivateTest(random_state=1), lambda user, arm: float((user + arm) % 2)),
    "experts": (
        lambda: PrivateExperts(3, first_block=20),
        lambda user, expert: [user % 2, (user + 1) % 2, 0.5],
    ),
}


def started(name: str, **given: Any) -> Any:
    noise = NoiseSource.simulation(2)
    accountant = JointAccountant(ZCDP(5), users=range(USERS), noise=noise, **given)
    make, _ = LEARNERS[name]
    return make().start(accountant)


@pytest.mark.parametrize("name", LEARNERS)
def test_answers_that_come_at_once_are_as_one_user_at_a_time(name: str) -> None:
    alone, offers = started(name), Offers(started(name))
    _, answer = LEARNERS[name]
    for user in range(USERS):
        shown, offer = alone.select(), offers.select()
        assert offer.items == shown
        alone.observe(answer(user, shown))
        offers.observe(offer.id, answer(user, shown))
    assert offers.read(lambda learner: learner.clock_) == USERS
    state = alone.public_state()
    offers.close_if_full(offers.first_open)
    assert offers.public_state() == state


@pytest.mark.parametrize("name", LEARNERS)
def test_answers_come_in_any_order_or_never(name: str) -> None:
    """What is shown, and when, does not tell; the learner's own nulls are the same."""
    states = []
    _, answer = LEARNERS[name]
    for order in (1, -1):
        offers: Offers[Served[Any, Any, Any]] = Offers(started(name))
        made, shown = [], []
        for user in range(USERS):
            before = offers.first_open
            made.append((user, offers.select()))
            shown.append(made[-1][1].items)
            if offers.first_open != before:  # the batch of all others is closed
                made = made[-1:]
            if offers.full:
                for each, offer in [pair for pair in made if pair[0] % 5][::order]:
                    offers.observe(offer.id, answer(each, offer.items))
        states.append((offers.public_state(), shown))
        assert offers.learner.private_counts_.reasons["no answer came before the batch was closed"]
    assert states[0] == states[1]


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
        noise = NoiseSource.simulation(2)
        accountant = JointAccountant(ZCDP(5), users=range(USERS), noise=noise)
        offers = Offers(make().start(accountant))
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
    with pytest.raises(ValueError, match=r"wait = 2: a PrivateArms shows .* make it with delay=2"):
        Offers(started("arms"), wait=2)
    with pytest.raises(TypeError, match=r"arms \(PrivateArms, PrivateTest, .*experts \(PrivateExp"):
        Offers(object())  # type: ignore[type-var]
    contexts = PrivateExperts(2, policies=[_first, _first], n_actions=2, dim=2, first_block=5)
    accountant = JointAccountant(ZCDP(5), users=range(30), noise=NoiseSource.simulation(2))
    offers = Offers(contexts.start(accountant))
    with pytest.raises(TypeError, match="context: must be given, as this learner's users send it"):
        offers.select()
    offers.observe(offers.select([0.1, 0.2]).id, [0.0, 1.0])
    assert arms.clock_ == 0


def _first(contexts: Any) -> Any:
    return np.zeros(len(contexts), dtype=np.int64)


def test_losses_that_cannot_be_used_are_null() -> None:
    offers = Offers(started("experts"))
    for losses in (None, [1, 0], [0, 0, 9], "x", [np.nan, 0, 0], [[0, 0, 0]], 1):
        offers.observe(offers.select().id, losses)
    offers.close_batch()
    counts = offers.learner.private_counts_
    assert counts.reasons["never came"] == 13
    assert sum(counts.reasons.values()) == 20


def test_as_many_count_in_a_phase_as_do_not() -> None:
    noise = NoiseSource.simulation(2)
    accountant = JointAccountant(ZCDP(5), users=range(USERS), noise=noise)
    assert len(PrivateArms(3, delay=20).start(accountant).coming_) == 40
    assert len(started("arms").coming_) == 1
