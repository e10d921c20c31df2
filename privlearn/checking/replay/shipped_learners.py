"""The shipped learners, in every way of running them, for `privlearn check` and tests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import Person, generated_pairs, returning_pair
from privlearn.checking.replay.protocols import (
    InteractionProtocol,
    examples,
    logged,
    played,
    pulled,
    serve,
    serve_people,
)
from privlearn.learners import (
    DPMNL,
    HeldPolicy,
    NoisySGD,
    OnePassNewtonMNL,
    PrivateArms,
    PrivateExperts,
    PrivateLeastSquares,
    PrivateTest,
    WhitenedDescent,
)
from privlearn.learners.hdb import DPHDB
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.tofw import DPTOFW
from privlearn.losses.budgets import ZCDP, PureDP, Renyi
from privlearn.mechanisms.constraint_sets import LpBall, Polytope, Simplex
from privlearn.values.participation import Participation
from privlearn.values.validate import count

Pair = tuple[list[Person], list[Person]]
N_ITEMS, DIM, SHOWN, USERS = 6, 2, 3, 10
FIRST = 4  # Users before the public state changes for the first time


@dataclass(frozen=True)
class LearnerCase:
    """One learner and one way of running it.

    Attributes:
        learner: its name.
        how: which case.
        factory: starts it with an accountant.
        protocol: see `privlearn.checking.replay.protocols`.
        options: further arguments of `assert_noninterference`.
        arrays: whether users must send arrays of the right shape.
        n_items: rows of the users' arrays, and the number of proper answers.
        dim: columns of the users' arrays.
        users: of each run.
        cost: how many times slower a replay is than others; so many fewer are done.
    """

    learner: str
    how: str
    factory: Callable[[Any], Any]
    protocol: InteractionProtocol = serve
    options: Mapping[str, Any] = field(default_factory=dict)
    arrays: bool = False
    n_items: int = N_ITEMS
    dim: int = DIM
    users: int = USERS
    cost: int = 1

    def __str__(self) -> str:
        return f"{self.learner}, {self.how}"


@dataclass(frozen=True, slots=True)
class Replays:
    """What many passed replays have gone through."""

    pairs: int
    moved: int
    runs: int
    seconds: float
    operator_only: frozenset[str] = frozenset()
    """Attributes that were not compared, see `Replay`."""


def _started(kind: Any, *given: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda accountant: kind(*given, **options).start(accountant)


_MARKET = {"n_items": N_ITEMS, "dim": DIM, "max_items": SHOWN}
_newton = _started(OnePassNewtonMNL, **_MARKET, first_batch=FIRST)


_dpmnl = partial(
    _started,
    DPMNL,
    **_MARKET,
    initial_rounds=FIRST,
    max_updates=2,
    gram_share=0.5,
    exploration=1.0,
)
_AT_PUBLIC_TIMES, _BY_DETERMINANT = _dpmnl(trigger="public"), _dpmnl(trigger="determinant")


CLASSES = 2
"""Rows of the arrays of users with a label or a reward; read as one vector of length INPUTS."""
INPUTS = CLASSES * DIM


_tofw = partial(_started, DPTOFW, INPUTS)
_descent = partial(_started, WhitenedDescent, INPUTS, row_norm=1.0)


def _pofw(inside: Any = None, **options: Any) -> Callable[[Any], Any]:
    return _started(DPPOFW, LpBall(INPUTS, 1, 2.0) if inside is None else inside, **options)


def _bandit(kind: Any, **options: Any) -> Callable[[Any], Any]:
    return _started(kind, n_arms=CLASSES, dim=INPUTS, **options)


class _Leader:
    """A policy that follows the arm of the highest mean, each once first."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    def choose(self) -> int:
        return max(range(CLASSES), key=lambda arm: self._means.get(arm, math.inf))

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self._means[arm] = mean


_arms = partial(_started, PrivateArms, CLASSES, first_phase=2)
_test = partial(_started, PrivateTest, reward_range=(-1, 1), random_state=1)
_experts = partial(_started, PrivateExperts, CLASSES, first_block=FIRST)


def _first_number(contexts: Any) -> Any:
    """A policy: one action for positive first numbers, the other for all else."""
    return (contexts[:, 0] > 0).astype(int)


def _by_size(contexts: Any) -> Any:
    """A policy that names no action for contexts that are too large."""
    return np.round(np.abs(contexts).max(axis=1))


_policies = _experts(policies=[_first_number, _by_size], n_actions=CLASSES, dim=INPUTS)
_ACTIONS = pulled(3, losses=CLASSES)
_pulled = partial(pulled, contexts=False)
_advised = partial(pulled, contexts=False, losses=CLASSES)
_HELD = _started(HeldPolicy, _Leader(), n_arms=CLASSES, hold=2)

_CORNERS = Polytope([[1.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, -1.0, 1.0], [-1.0, -1.0, 0, 0]])


_CENTRAL = {"accountant": CentralAccountant}
_RICH = {"budget": ZCDP(100)}
_PURE = {"budget": PureDP(1)}
_RENYI = {"budget": Renyi({4: 3})}

LEARNER_CASES = (
    LearnerCase("OnePassNewtonMNL", "one by one", _newton),
    LearnerCase("OnePassNewtonMNL", "in blocks", _newton, played(3)),
    LearnerCase("OnePassNewtonMNL", "all at once", _newton, played(), {"budget": ZCDP("0.01")}),
    LearnerCase("OnePassNewtonMNL", "logged", _newton, logged(), _CENTRAL),
    LearnerCase("OnePassNewtonMNL", "logged in blocks", _newton, logged(7), _CENTRAL),
    LearnerCase("DPMNL", "at public times", _AT_PUBLIC_TIMES, serve, _RICH),
    LearnerCase("DPMNL", "at public times, in blocks", _AT_PUBLIC_TIMES, played(4), _RENYI),
    LearnerCase("DPMNL", "by determinant", _BY_DETERMINANT, serve, _RICH),
    LearnerCase("DPMNL", "by determinant, in blocks", _BY_DETERMINANT, played(6), _RICH),
    *(
        LearnerCase(learner, how, factory, protocol, _CENTRAL, n_items=CLASSES)
        for learner, how, factory, protocol in (
            ("DPTOFW", "one by one", _tofw(), examples()),
            ("DPTOFW", "in blocks", _tofw(p=1.5), examples(3)),
            ("DPTOFW", "logistic", _tofw(loss="logistic", p=float("inf")), examples(4)),
            ("DPTOFW", "plain", _tofw(method="plain"), examples()),
            ("DPTOFW", "plain, in blocks", _tofw(method="plain", p=1.5), examples(7)),
            ("DPTOFW", "anytime", _tofw(method="plain", anytime=True), examples(2)),
            ("DPPOFW", "thresholds", _pofw(method="thresholds"), examples()),
            ("DPPOFW", "choices", _pofw(method="choices"), examples(3)),
            ("DPPOFW", "vertices", _pofw(Simplex(INPUTS), loss="logistic"), examples(4)),
            ("DPPOFW", "polytope", _pofw(_CORNERS), examples()),
            ("NoisySGD", "one by one", _started(NoisySGD, INPUTS, passes=4), examples()),
            ("WhitenedDescent", "squared", _descent("squared"), examples()),
            ("WhitenedDescent", "softmax", _descent("softmax"), examples(3)),
        )
    ),
    LearnerCase(
        "DPTOFW",
        "buffered",
        _tofw(method="buffered"),
        examples(3),
        _CENTRAL,
        n_items=CLASSES,
        cost=8,
    ),
    LearnerCase(
        "DPTOFW",
        "whitened",
        _tofw(method="whitened", constant=0.5),
        examples(3),
        _CENTRAL,
        n_items=CLASSES,
        cost=8,
    ),
    *(
        LearnerCase(learner, how, factory, protocol, n_items=CLASSES)
        for learner, how, factory, protocol in (
            ("DPHDB", "one by one", _bandit(DPHDB, first_epoch=FIRST), pulled()),
            ("DPHDB", "in blocks", _bandit(DPHDB, first_epoch=FIRST), pulled(3)),
            ("DPHDB", "logistic", _bandit(DPHDB, loss="logistic", first_epoch=FIRST), pulled(5)),
            ("PrivateLeastSquares", "one by one", _bandit(PrivateLeastSquares), pulled()),
            ("PrivateLeastSquares", "in blocks", _bandit(PrivateLeastSquares), pulled(4)),
        )
    ),
    *(
        LearnerCase(learner, how, factory, protocol, options, n_items=CLASSES, users=users)
        for learner, how, factory, protocol, options, users in (
            ("PrivateArms", "one by one", _arms(), _pulled(), _PURE, USERS),
            ("PrivateArms", "in blocks", _arms(missing=0.0, delay=1), _pulled(3), _RICH, USERS),
            ("PrivateArms", "with memory", _arms(memory=4), _pulled(), {}, USERS),
            ("PrivateArms", "central", _arms(), _pulled(4), _PURE | _CENTRAL, USERS),
            ("HeldPolicy", "one by one", _HELD, _pulled(), _PURE, USERS),
            ("HeldPolicy", "in blocks", _HELD, _pulled(3), {}, USERS),
            ("PrivateTest", "one by one", _test(), _pulled(), _PURE, 110),
            ("PrivateTest", "coins alone, in blocks", _test(assume="coin"), _pulled(40), {}, 110),
            ("PrivateTest", "three arms", _test(3), _pulled(70), _PURE, 160),
            ("PrivateExperts", "one by one", _experts(), _advised(), {}, 16),
            ("PrivateExperts", "central", _experts(), _advised(3), _PURE | _CENTRAL, 16),
            ("PrivateExperts", "policies", _policies, pulled(losses=CLASSES), {}, 16),
            ("PrivateExperts", "policies, in blocks", _policies, _ACTIONS, _PURE, 16),
        )
    ),
)


def _once(**how: Any) -> dict[str, Any]:
    return {"rule": Participation(**how)}


_POOLED = _once(most=2, pooled=True)
_PUBLIC = _once(most=2, pattern="public")

PEOPLE_CASES = (
    LearnerCase("OnePassNewtonMNL", "people, pooled", _newton, serve_people, _POOLED),
    LearnerCase("OnePassNewtonMNL", "people, in blocks", _newton, played(3, people=True), _POOLED),
    LearnerCase(
        "OnePassNewtonMNL",
        "people, logged",
        _newton,
        logged(4, people=True),
        {**_CENTRAL, **_POOLED},
    ),
    LearnerCase("OnePassNewtonMNL", "people, public", _newton, serve_people, _PUBLIC),
    LearnerCase(
        "DPMNL", "people, once", _AT_PUBLIC_TIMES, serve_people, {**_RICH, **_once(most=1)}
    ),
    LearnerCase(
        "DPMNL",
        "people, twice, in blocks",
        _AT_PUBLIC_TIMES,
        played(4, people=True),
        {**_RICH, **_once(most=2, apart=3)},
    ),
    *(
        LearnerCase(
            "DPHDB", how, _bandit(DPHDB, first_epoch=FIRST), protocol, rule, n_items=CLASSES
        )
        for how, protocol, rule in (
            ("people, once in an epoch", pulled(people=True), _once(most=2, per_batch=1)),
            ("people, in blocks", pulled(3, people=True), _once(most=2)),
        )
    ),
    *(
        LearnerCase(learner, how, factory, protocol, rule, n_items=CLASSES, users=users)
        for learner, how, factory, protocol, rule, users in (
            ("PrivateArms", "people", _arms(), _pulled(people=True), _once(most=2), USERS),
            ("HeldPolicy", "people", _HELD, _pulled(3, people=True), _PUBLIC, USERS),
            ("PrivateExperts", "people", _experts(), _advised(people=True), _POOLED, 16),
            (
                "PrivateTest",
                "people",
                _test(assume="coin"),
                _pulled(40, people=True),
                _once(most=3, apart=2),
                110,
            ),
        )
    ),
    *(
        LearnerCase(
            learner, how, factory, examples(3, people=True), {**_CENTRAL, **rule}, n_items=CLASSES
        )
        for learner, how, factory, rule in (
            ("DPTOFW", "people, pooled", _tofw(), _POOLED),
            ("DPTOFW", "people, plain", _tofw(method="plain"), _once(most=3, apart=2)),
            ("DPPOFW", "people, pooled", _pofw(method="thresholds"), _POOLED),
            ("WhitenedDescent", "people, pooled", _descent("squared"), _POOLED),
        )
    ),
)
"""Under a rule of participation."""


def replay_people(case: LearnerCase, n: int, *, seed: int = 0) -> Replays:
    """As `replay_pairs`, with all visits of one person replaced: `populations.returning_pair`.

    Raises:
        InterferenceError, CheckError: as `assert_noninterference`, for the first pair that fails.
    """
    public = case.options["rule"].pattern == "public"
    people = (
        returning_pair(
            seed, number, n_items=case.n_items, dim=case.dim, users=case.users, public=public
        )
        for number in range(count(n=n))
    )
    return replayed(case, people, seed)


def replay_pairs(case: LearnerCase, n: int, *, seed: int = 0) -> Replays:
    """Checks a learner on ``n`` generated pairs of neighbours.

    Raises:
        InterferenceError, CheckError: as `assert_noninterference`, for the first pair that fails;
            it is `populations.generated_pair` of ``seed`` and the number in the message.
    """
    people = generated_pairs(
        count(n=n),
        seed,
        n_items=case.n_items,
        dim=case.dim,
        users=case.users,
        positions=(FIRST - 1, FIRST),
        arrays=case.arrays,
    )
    return replayed(case, people, seed)


def replayed(case: LearnerCase, people: Iterable[Pair], seed: int) -> Replays:
    """Checks a learner on pairs of neighbours.

    Raises:
        InterferenceError, CheckError: as `assert_noninterference`, for the first pair that fails;
            its number in the message is of ``seed``.
    """
    start, pairs, moved, runs = time.perf_counter(), 0, 0, 0
    hidden = set[str]()
    for number, (data, neighbour) in enumerate(people):
        try:
            result = assert_noninterference(
                case.factory, data, neighbour, protocol=case.protocol, seed=number, **case.options
            )
        except Exception as error:
            error.add_note(f"{case}: pair {number} of seed {seed}")
            raise
        pairs += 1
        moved += result.moved > 0
        runs += result.runs
        hidden |= set(result.operator_only)
    return Replays(pairs, moved, runs, time.perf_counter() - start, frozenset(hidden))
