"""Learners that go on in another process: what they do depends on releases only, all the more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from privlearn.accountants import streams
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import generated_pairs, returning_pair
from privlearn.checking.replay.protocols import pulled, serve
from privlearn.errors import InterferenceError
from privlearn.learners import DPHDB, DPMNL, OnePassNewtonMNL
from privlearn.learners.newton import Belief
from privlearn.losses.budgets import ZCDP
from privlearn.values.participation import Participation

USERS, FIRST = 12, 4


def newton(**options: Any) -> Callable[[Any], Any]:
    return lambda accountant: OnePassNewtonMNL(
        n_items=6, dim=2, max_items=3, first_batch=FIRST, **options
    ).start(accountant)


def dpmnl(accountant: Any) -> DPMNL:
    learner = DPMNL(
        n_items=6, dim=2, max_items=3, initial_rounds=FIRST, max_updates=3, exploration=1.0
    )
    return learner.start(accountant)


def hdb(accountant: Any) -> DPHDB:
    return DPHDB(n_arms=2, dim=4, first_epoch=FIRST).start(accountant)


CASES: dict[str, tuple[Any, Any, int]] = {
    "newton": (newton(), serve, 6),
    "dpmnl": (dpmnl, serve, 6),
    "hdb": (hdb, pulled(), 2),
}


@pytest.fixture(autouse=True)
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams say two users ahead what they take, so that few users are enough."""
    monkeypatch.setattr(streams, "SEGMENT", 2)


def pairs(n: int, n_items: int) -> Any:
    return generated_pairs(
        n, 3, n_items=n_items, dim=2, users=USERS, positions=(FIRST - 1, FIRST, FIRST + 2)
    )


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_releases_comes_through_a_restart(name: str) -> None:
    factory, protocol, n_items = CASES[name]
    moved = 0
    for number, (data, neighbour) in enumerate(pairs(3, n_items)):
        found = assert_noninterference(
            factory,
            data,
            neighbour,
            protocol=protocol,
            seed=number,
            budget=ZCDP(10),
            restarts=((6,), (3, 7), (4,))[number],
        )
        moved += found.moved
    assert moved > 0


def test_persons_who_return_are_as_well_off() -> None:
    for number in range(2):
        data, neighbour = returning_pair(0, number, n_items=6, dim=2, users=USERS, public=False)
        assert_noninterference(
            newton(),
            data,
            neighbour,
            rule=Participation(1, pooled=True),
            seed=number,
            restarts=(6,),
        )


class Keeps:
    """A learner that hands its open batch on by a way of its own, past the ledger."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, accountant: Any) -> Any:
        learner = newton()(accountant)
        if accountant.resumed:
            belief = learner.belief_
            shift = 0.1 * sum(choice or 0 for choice in self.kept)
            learner.belief_ = Belief(belief.mean + shift, belief.precision)
        observe = learner.observe

        def keeping(choice: Any) -> None:
            self.kept.append(choice)
            observe(choice)

        learner.observe = keeping
        if not accountant.resumed:
            self.kept.clear()
        return learner


def test_a_learner_that_hands_on_more_is_caught() -> None:
    caught = 0
    for number, (data, neighbour) in enumerate(pairs(6, 6)):
        try:
            assert_noninterference(Keeps(), data, neighbour, seed=number, restarts=(6,))
        except InterferenceError:
            caught += 1
    assert caught
