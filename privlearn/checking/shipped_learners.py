"""The learners that come with privlearn, in every way of running them; for gate and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from privlearn._validate import count
from privlearn.accountants import CentralAccountant
from privlearn.budgets import ZCDP, Renyi
from privlearn.checking.drives import Drive, logged, played, serve
from privlearn.checking.populations import generated_pairs
from privlearn.checking.replay import assert_noninterference
from privlearn.learners import DPMNL, OnePassNewtonMNL
from privlearn.learners.references import RandomAssortments

N_ITEMS, DIM, SHOWN, USERS = 6, 2, 3, 10
FIRST = 4
"""Users before the public state changes for the first time."""


@dataclass(frozen=True)
class Way:
    """One learner and one way of running it.

    Attributes:
        learner: its name.
        how: which way.
        factory: starts it with an accountant.
        drive: see `privlearn.checking.drives`.
        options: further arguments of `assert_noninterference`.
        arrays: whether users must send arrays of the right shape.
    """

    learner: str
    how: str
    factory: Callable[[Any], Any]
    drive: Drive = serve
    options: Mapping[str, Any] = field(default_factory=dict)
    arrays: bool = False

    def __str__(self) -> str:
        return f"{self.learner}, {self.how}"


@dataclass(frozen=True, slots=True)
class Replays:
    """What many passed replays have gone through.

    Attributes:
        pairs: of neighbours.
        moved: pairs in which something that was paid for depended on the replaced user.
        runs: of the learner, in all pairs together.
        seconds: of all, the learner's own time included.
    """

    pairs: int
    moved: int
    runs: int
    seconds: float


def _newton(accountant: Any) -> OnePassNewtonMNL:
    learner = OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM, max_items=SHOWN, first_batch=FIRST)
    return learner.start(accountant)


def _dpmnl(trigger: Any) -> Callable[[Any], DPMNL]:
    def factory(accountant: Any) -> DPMNL:
        learner = DPMNL(
            n_items=N_ITEMS,
            dim=DIM,
            max_items=SHOWN,
            initial_rounds=FIRST,
            max_updates=2,
            trigger=trigger,
            gram_share=0.5,
            exploration=1.0,
        )
        return learner.start(accountant)

    return factory


def _at_random(accountant: Any) -> RandomAssortments:
    return RandomAssortments(max_items=SHOWN)


_CENTRAL = {"accountant": CentralAccountant}
_RICH = {"budget": ZCDP(100)}
_RENYI = {"budget": Renyi({4: 3})}

WAYS = (
    Way("OnePassNewtonMNL", "one by one", _newton),
    Way("OnePassNewtonMNL", "in blocks", _newton, played(3)),
    Way("OnePassNewtonMNL", "all at once", _newton, played(), {"budget": ZCDP("0.01")}),
    Way("OnePassNewtonMNL", "logged", _newton, logged(), _CENTRAL),
    Way("OnePassNewtonMNL", "logged in blocks", _newton, logged(7), _CENTRAL),
    Way("DPMNL", "at public times", _dpmnl("public"), serve, _RICH),
    Way("DPMNL", "at public times, in blocks", _dpmnl("public"), played(4), _RENYI),
    Way("DPMNL", "by determinant", _dpmnl("determinant"), serve, _RICH),
    Way("DPMNL", "by determinant, in blocks", _dpmnl("determinant"), played(6), _RICH),
    Way(
        "RandomAssortments",
        "in blocks",
        _at_random,
        played(4, one_array=True),
        {"may_spend_nothing": True},
        arrays=True,
    ),
)


def replay_pairs(way: Way, n: int, *, seed: int = 0) -> Replays:
    """Checks a learner on ``n`` generated pairs of neighbours.

    Raises:
        InterferenceError, CheckError: as `assert_noninterference`, for the first pair that fails;
            it is `populations.generated_pair` of ``seed`` and the number in the message.
    """
    start, moved, runs = time.perf_counter(), 0, 0
    people = generated_pairs(
        count(n=n),
        seed,
        n_items=N_ITEMS,
        dim=DIM,
        users=USERS,
        positions=(FIRST - 1, FIRST),
        arrays=way.arrays,
    )
    for number, (data, neighbour) in enumerate(people):
        try:
            found = assert_noninterference(
                way.factory, data, neighbour, drive=way.drive, seed=number, **way.options
            )
        except Exception as error:
            error.add_note(f"{way}: pair {number} of seed {seed}")
            raise
        moved += found.moved > 0
        runs += found.runs
    return Replays(n, moved, runs, time.perf_counter() - start)
