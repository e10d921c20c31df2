"""Answers that come late, in any order, or never: Offers pass, and each broken form is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from answer_orders import assert_answers_in_any_order
from faults import offers_leaking as broken
from grids import thinned

from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import returning_pair, shopper, stranger
from privlearn.checking.replay.protocols import (
    Tardy,
    offered,
)
from privlearn.errors import CheckError, HorizonError, InterferenceError
from privlearn.learners import DPHDB, DPMNL, Offers, OnePassNewtonMNL
from privlearn.learners.offers import Observing, Selecting
from privlearn.learners.participation import NOT_GIVEN
from privlearn.losses.budgets import ZCDP
from privlearn.values.participation import Participation
from privlearn_studies.rivals.linear_bandits import DPUCB

USERS, ITEMS, DIM = 30, 6, 2


def tardy(rng: np.random.Generator, users: Sequence[Any], most: int) -> list[Tardy]:
    """Users with times drawn for them, up to ``most`` further offers; a quarter never answers."""
    return [
        Tardy(
            user,
            None if rng.random() < 0.25 else int(rng.integers(most + 1)),
            bool(rng.random() < 0.25),
        )
        for user in users
    ]


def newton(accountant: Any) -> Any:
    learner = OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=3, first_batch=6)
    return learner.start(accountant)


def dpmnl(accountant: Any) -> Any:
    learner = DPMNL(
        n_items=ITEMS, dim=DIM, max_items=3, initial_rounds=6, max_updates=2, gram_share=0.5
    )
    return learner.start(accountant)


def hdb(accountant: Any) -> Any:
    return DPHDB(n_arms=ITEMS, dim=ITEMS * DIM, first_epoch=6).start(accountant)


def ucb(accountant: Any) -> Any:
    return DPUCB(n_arms=ITEMS, dim=ITEMS * DIM).start(accountant)


CASES = {"newton": newton, "dpmnl": dpmnl, "hdb": hdb, "ucb": ucb}


def crowd(seed: int, most: int, strange: bool = False) -> list[Tardy]:
    rng = np.random.default_rng(seed)
    users = [
        stranger(rng) if strange and rng.random() < 0.2 else shopper(rng) for _ in range(USERS)
    ]
    return tardy(rng, users, most)


@pytest.mark.parametrize(
    ("case", "wait"),
    thinned([("newton", 15), ("newton", 0), ("dpmnl", 4), ("dpmnl", 0), ("hdb", 4), ("ucb", 4)]),
)
def test_when_somebody_answers_is_told_to_nobody(case: str, wait: int) -> None:
    """Neighbours differ in one user's data, choices and time of answering."""
    arms = case in ("hdb", "ucb")
    for seed, at in enumerate([0, 5, 6, USERS - 1]):
        data = crowd(seed, 12, strange=True)
        rng = np.random.default_rng([seed, at])
        late = [None, 3, 9, 40][seed]
        other = list(data)
        other[at] = Tardy(stranger(rng, ITEMS, DIM), late, twice=True)
        protocol = offered(wait, arms=arms)
        one, two = (data, other) if seed % 2 else (other, data)
        assert_noninterference(CASES[case], one, two, protocol=protocol, budget=ZCDP(20))


@pytest.mark.parametrize("late", [None, 0, 4])
def test_nothing_comes_through_a_restart_with_open_offers(late: int | None) -> None:
    data = crowd(5, 6)
    other = list(data)
    other[10] = Tardy(stranger(np.random.default_rng(9)), late)
    protocol = offered(3)
    for restarts in ((12,), (9, 11, 25)):
        assert_noninterference(newton, data, other, protocol=protocol, restarts=restarts)


def test_the_time_alone_is_part_of_the_record() -> None:
    data = crowd(3, 5)
    for late in (None, 0, 2, 60):
        other = list(data)
        other[8] = Tardy(data[8].user, late)
        replay = assert_noninterference(newton, data, other, protocol=offered(2))
        assert replay.moved or (data[8].late is None) == (late in (None, 60))


@pytest.mark.parametrize(
    "rule", [Participation(2, pooled=True), Participation(2, apart=3)], ids=str
)
def test_a_person_with_several_open_offers_is_replaced_with_all_visits(rule: Participation) -> None:
    for number in range(3):
        pair = returning_pair(0, number, n_items=ITEMS, dim=DIM, users=USERS)
        rng = np.random.default_rng(number)
        times = tardy(rng, pair[0], 6)
        wrapped = dict[int, Tardy]()
        data, other = (
            [
                wrapped.setdefault(id(user), Tardy(user, mine.late, mine.twice))
                for user, mine in zip(side, times, strict=True)
            ]
            for side in pair
        )
        protocol = offered(4, people=True)
        assert_noninterference(newton, data, other, protocol=protocol, rule=rule)


@pytest.mark.parametrize(
    ("case", "wait"), [("newton", 0), ("newton", 7), ("dpmnl", 7), ("hdb", 3), ("ucb", 3)]
)
def test_answers_in_any_order_give_the_same_to_the_last_bit(case: str, wait: int) -> None:
    arms = case in ("hdb", "ucb")
    users = crowd(1, 0, strange=True)
    assert_answers_in_any_order(CASES[case], users, wait=wait, arms=arms, budget=ZCDP(20))


def test_two_persons_who_swap_their_answers_in_time() -> None:
    """A answers before B, or B before A; and both have two offers open."""
    users = crowd(4, 0)
    for at in (2, 3, 9, 12):
        users[at] = Tardy(_of(users[at].user, "AB"[at % 2]), 1)
    for user in users:
        user.user.id = user.user.id or f"somebody {id(user)}"
    assert_answers_in_any_order(newton, users, wait=8, orders=6, rule=Participation(2, pooled=True))


def _of(user: Any, who: str) -> Any:
    user.id = who
    return user


@pytest.mark.parametrize(
    "offers", [leak for leak in broken.LEAKS if leak is not broken.LogsWhoNeverAnswered]
)
def test_what_tells_the_order_of_answers_is_found(offers: Any) -> None:
    users = crowd(3, 0)
    for user in users:
        user.late, user.twice = 0, True
    with pytest.raises(InterferenceError, match="in another order"):
        assert_answers_in_any_order(newton, users, wait=6, offers=offers)
    assert_answers_in_any_order(newton, users, wait=6)


def test_nothing_is_concluded_from_a_learner_that_fails_or_spends_nothing() -> None:
    def fails(accountant: Any) -> Any:
        raise ValueError("no learner")

    with pytest.raises(CheckError, match="no learner"):
        assert_answers_in_any_order(fails, crowd(0, 0), wait=0)


WILD: tuple[Any, ...] = ("1", 10**400, float("nan"), [1], {}, np.zeros(3), None, b"x", object(), -5)


def in_blocks(wait: int, blocks: int) -> Callable[[Any, Iterable[Any]], Iterator[Any]]:
    """Requests that are served together: how many offers at once is public, all else is not.

    Where answers stand in the queue, beside each other and beside offers, is drawn for each run
    anew, and a user who answers twice also guesses at ids.
    """
    runs = count()

    def protocol(learner: Any, users: Iterable[Any]) -> Iterator[Any]:
        served, public = Offers(learner, wait=wait), np.random.default_rng(blocks)
        order, arriving = np.random.default_rng(next(runs)), iter(users)
        received: list[list[Any]] = []
        due: list[tuple[int, str, Any, list[Any]]] = []
        for now in count():
            block = list(islice(arriving, int(public.integers(1, 6))))
            ready = [each for each in due if each[0] <= now or not block]
            due = [each for each in due if each[0] > now and block]
            answers = [Observing(id, choice, NOT_GIVEN) for _, id, choice, _ in ready]
            asked = [served.selecting(user.features, None, NOT_GIVEN) for user in block]
            kinds = order.permutation([0] * len(asked) + [1] * len(answers))
            queues: tuple[Iterator[Any], Iterator[Any]] = iter(asked), iter(answers)
            mixed: list[Selecting | Observing] = [next(queues[kind]) for kind in kinds]
            served.take(mixed)
            for (*_, told), answer in zip(ready, answers, strict=True):
                told.append(str(answer.error))
            for user, request in zip(block, asked, strict=True):
                offer = request.outcome()
                received.append([offer.items])
                choice = user.respond(offer.items) if user.late != 1 else WILD[len(received) % 10]
                ids = [offer.id] if user.late is not None else []
                ids += [offer.id, offer.id[:-1], "1-2-3"] if user.twice else []
                due += [(now + (user.late or 0) // 3, id, choice, received[-1]) for id in ids]
            if not block and not due:
                break
        with suppress(HorizonError):
            while True:
                served.close_batch()
        yield from received

    return protocol


@pytest.mark.parametrize("wait", [0, 3, 12])
def test_requests_that_are_served_together_tell_nothing(wait: int) -> None:
    for seed in range(3):
        data = crowd(10 + seed, 12, strange=True)
        other, at = list(data), 3 + 7 * seed
        other[at] = Tardy(stranger(np.random.default_rng(seed)), [None, 1, 9][seed], twice=True)
        protocol = in_blocks(wait, seed)
        assert_noninterference(newton, data, other, protocol=protocol, budget=ZCDP(20))
