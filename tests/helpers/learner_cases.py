"""The shipped learners, in every way of running them, with neighbours for their replays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.checking.isolation import muted
from privlearn.checking.replay.check import Replay
from privlearn.checking.replay.learners import Way, replayed
from privlearn.checking.replay.populations import Person, generated_pairs, returning_pair
from privlearn.checking.replay.protocols import (
    InteractionProtocol,
    examples,
    played,
    pulled,
    serve,
    serve_people,
)
from privlearn.learners import (
    DPMNL,
    HeldPolicy,
    NoisySGD,
    OnePassNewtonGLM,
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
from privlearn.mechanisms.choice_model import NO_ITEM
from privlearn.mechanisms.constraint_sets import LpBall, Polytope, Simplex
from privlearn.values.participation import Participation

N_ITEMS, DIM, SHOWN, USERS = 6, 2, 3, 10
FIRST = 4  # Users before the public state changes for the first time


@dataclass(frozen=True)
class LearnerCase:
    """One learner and one way of running it, on so many users; see `Way`."""

    learner: str
    how: str
    factory: Callable[[Any], Any]
    protocol: InteractionProtocol = serve
    options: Mapping[str, Any] = field(default_factory=dict)
    n_items: int = N_ITEMS
    users: int = USERS

    def __str__(self) -> str:
        return f"{self.learner}, {self.how}"


def replay_pairs(case: LearnerCase, n: int, *, seed: int = 0) -> list[Replay]:
    """Replays on ``n`` pairs; under a rule of participation all visits of one person differ."""
    sizes: dict[str, Any] = {"n_items": case.n_items, "dim": DIM, "users": case.users}
    pairs: Iterable[tuple[Sequence[Person], Sequence[Person]]]
    if rule := case.options.get("rule"):
        public = rule.pattern == "public"
        pairs = (returning_pair(seed, number, public=public, **sizes) for number in range(n))
    else:
        pairs = generated_pairs(n, seed, positions=(FIRST - 1, FIRST), **sizes)
    return replayed(Way(str(case), case.factory, case.protocol, case.options), pairs, seed)


def logged(size: int = 1, *, people: bool = False) -> InteractionProtocol:
    """`partial_fit` on users who were shown all items elsewhere; nobody receives anything."""

    def protocol(learner: Any, users: Iterable[Any]) -> Iterator[None]:
        everything = np.arange(learner.n_items)
        rest = iter(users)
        while block := list(islice(rest, size)):
            with muted():
                choices = [user.respond(everything) for user in block]
            answers = [NO_ITEM if choice is None else choice for choice in choices]
            ids = {"people": [user.id for user in block]} if people else {}
            learner.partial_fit([user.features for user in block], answers, **ids)
            yield from [None] * len(block)

    return protocol


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


_BLOCKS: dict[str, Any] = {"first_batch": FIRST, "longest_batch": FIRST}
_slates = partial(_started, OnePassNewtonGLM, N_ITEMS, DIM, **_BLOCKS)
_contexts = partial(_started, OnePassNewtonGLM, CLASSES, INPUTS, per_action=True, **_BLOCKS)
_counts = _contexts(link="poisson", reward_range=(0.0, 3.0))
_logged_glm = _started(OnePassNewtonGLM, 1, INPUTS, link="linear", **_BLOCKS)


_squares = _bandit(PrivateLeastSquares)


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
        "DPTOFW", "buffered", _tofw(method="buffered"), examples(3), _CENTRAL, n_items=CLASSES
    ),
    LearnerCase(
        "DPTOFW",
        "whitened",
        _tofw(method="whitened", constant=0.5),
        examples(3),
        _CENTRAL,
        n_items=CLASSES,
    ),
    *(
        LearnerCase(learner, how, factory, protocol, n_items=CLASSES)
        for learner, how, factory, protocol in (
            ("DPHDB", "one by one", _bandit(DPHDB, first_epoch=FIRST), pulled()),
            ("DPHDB", "in blocks", _bandit(DPHDB, first_epoch=FIRST), pulled(3)),
            ("DPHDB", "logistic", _bandit(DPHDB, loss="logistic", first_epoch=FIRST), pulled(5)),
        )
    ),
    *(
        LearnerCase("PrivateLeastSquares", how, _squares, protocol, n_items=CLASSES)
        for how, protocol in (("one by one", pulled()), ("in blocks", pulled(4)))
    ),
    *(
        LearnerCase("OnePassNewtonGLM", how, factory, protocol, options, n_items=n_items)
        for how, factory, protocol, options, n_items in (
            ("one by one", _slates(), pulled(slates=True), {}, N_ITEMS),
            ("in blocks", _slates(link="probit"), pulled(3, slates=True), _RICH, N_ITEMS),
            ("by draws", _slates(policy="thompson"), pulled(4, slates=True), _RICH, N_ITEMS),
            ("per action", _counts, pulled(), _RICH, CLASSES),
            ("per action, by draws", _contexts(policy="thompson"), pulled(3), {}, CLASSES),
            ("logged", _logged_glm, examples(3), _CENTRAL, CLASSES),
            ("logged, per action", _contexts(), examples(4, actions=True), _CENTRAL, CLASSES),
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
        LearnerCase("OnePassNewtonGLM", how, factory, protocol, rule, n_items=n_items)
        for how, factory, protocol, rule, n_items in (
            ("people, pooled", _slates(), pulled(slates=True, people=True), _POOLED, N_ITEMS),
            (
                "people, once in a block",
                _slates(policy="thompson"),
                pulled(3, slates=True, people=True),
                _once(most=2, per_batch=1),
                N_ITEMS,
            ),
            ("people, per action", _contexts(), pulled(3, people=True), _PUBLIC, CLASSES),
            (
                "people, logged",
                _logged_glm,
                examples(3, people=True),
                {**_CENTRAL, **_POOLED},
                CLASSES,
            ),
        )
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
