"""What callers go on writing to changes nothing: every learner copies data where they enter.

The usual loop is ``a = learner.select(seen)``; the environment writes the next context into
``seen``; ``learner.observe(reward)``.  A learner that keeps the array learns the next user's
context in this user's record, so that one person is in two records, and pays for one.

Every class of the package with a verb that takes data is driven twice, with fresh arrays and with
arrays that are written to as soon as the call is over (or during it); all that it releases must be
the same to the last bit.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from grids import thinned
from mortal_subjects import Leader

import privlearn.learners
import privlearn.learners.local
import privlearn_studies.rivals
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPPOFW,
    DPTOFW,
    LDPSGD,
    AsyncOffers,
    HeldPolicy,
    Offers,
    OnePassNewtonGLM,
    OnePassNewtonMNL,
    PrivateArms,
    PrivateExperts,
    PrivateTest,
    WhitenedDescent,
)
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.local import LocalBanditConfig, LocalClient
from privlearn.learners.local.protocol import Model
from privlearn.learners.noisy_sgd import NoisySGD
from privlearn.learners.phases import PhaseLearner
from privlearn.ledger.entries import RetireEntry
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import LpBall
from privlearn.noise import NoiseSource
from privlearn.rows import inputs
from privlearn.runs.references import LassoBandit, NonPrivateMNL, RandomArms, RandomAssortments
from privlearn_studies.rivals.convex import (
    ConstantAnswer,
    LocalMD,
    NoisySFW,
    OnlineFrankWolfe,
    PublishedTOFW,
)
from privlearn_studies.rivals.linear_bandits import DPUCB
from privlearn_studies.rivals.local_nonprivate import (
    GreedyLeastSquares,
    GreedySGD,
    LinUCB,
    RandomPlay,
)

USERS, ITEMS, DIM, ARMS, SHOWN = 24, 5, 3, 2, 2
VERBS = ("select", "observe", "play", "partial_fit", "choose", "randomize")
JUNK = 0.77

Market = dict[str, Any]
MNL: Market = {"n_items": ITEMS, "dim": DIM, "max_items": SHOWN}
SLATES: Market = {"n_actions": ITEMS, "dim": DIM, "first_batch": 4, "longest_batch": 4}
BANDIT: Market = {"n_arms": ARMS, "dim": DIM}


def _started(learner: Any, kind: Any, users: int = USERS) -> Any:
    noise = NoiseSource.simulation(3)
    return learner.start(kind(ZCDP(50), users=range(users), noise=noise))


def joint(kind: Any, users: int = USERS, **options: Any) -> Callable[[], Any]:
    return lambda: _started(kind(**options), JointAccountant, users)


def central(kind: Any, *options: Any, **more: Any) -> Callable[[], Any]:
    return lambda: _started(kind(*options, **more), CentralAccountant)


def client() -> LocalClient[Any]:
    method = LDPSGD(dim=DIM, n_arms=ARMS, horizon=USERS, shared=False, epsilon=1.0, delta=1e-3)
    noise = NoiseSource.simulation(3)
    phones = LocalAccountant(PureDP(9), users=range(USERS), noise=noise)
    return LocalClient(LocalBanditConfig(name="test", method=method), phones)


EXPERTS: Market = {"n_experts": ARMS, "first_block": 6, "loss_range": (-1, 1)}
POLICIES: Market = {
    "policies": (lambda contexts: contexts[:, 0] > 0, lambda contexts: contexts[:, 1] > 0),
    "n_actions": ARMS,
    "dim": DIM,
}
PHASES: Market = {"n_arms": ARMS, "reward_range": (-1, 1)}

LEARNERS: dict[type, list[Callable[[], Any]]] = {
    OnePassNewtonMNL: [joint(OnePassNewtonMNL, first_batch=4, **MNL)],
    DPMNL: [joint(DPMNL, initial_rounds=6, max_updates=2, **MNL)],
    OnePassNewtonGLM: [
        joint(OnePassNewtonGLM, **SLATES),
        joint(OnePassNewtonGLM, per_action=True, policy="thompson", **SLATES),
    ],
    DPHDB: [joint(DPHDB, first_epoch=4, **BANDIT)],
    PrivateLeastSquares: [joint(PrivateLeastSquares, blocks=4, **BANDIT)],
    DPUCB: [joint(DPUCB, blocks=4, **BANDIT)],
    PrivateArms: [joint(PrivateArms, first_phase=2, **PHASES)],
    HeldPolicy: [joint(HeldPolicy, policy=Leader(ARMS), hold=3, **PHASES)],
    PrivateTest: [joint(PrivateTest, users=130, random_state=1, **PHASES)],
    PrivateExperts: [
        joint(PrivateExperts, **EXPERTS),
        joint(PrivateExperts, **EXPERTS, **POLICIES),
    ],
    DPPOFW: [central(DPPOFW, LpBall(DIM, 1, 2.0), method=how) for how in ("thresholds", "choices")],
    DPTOFW: [central(DPTOFW, DIM, method=how) for how in ("plain", "buffered", "whitened")],
    NoisySFW: [central(NoisySFW, DIM)],
    NoisySGD: [central(NoisySGD, DIM, passes=2)],
    WhitenedDescent: [central(WhitenedDescent, DIM, row_norm=1.0)],
    LocalMD: [central(LocalMD, DIM, phases=2, steps=2)],
    PublishedTOFW: [central(PublishedTOFW, DIM)],
    OnlineFrankWolfe: [lambda: OnlineFrankWolfe(DIM)],
    ConstantAnswer: [lambda: ConstantAnswer(DIM)],
    RandomArms: [lambda: RandomArms(n_arms=ARMS)],
    LassoBandit: [lambda: LassoBandit(**BANDIT)],
    RandomAssortments: [lambda: RandomAssortments(max_items=SHOWN)],
    NonPrivateMNL: [lambda: NonPrivateMNL(horizon=USERS, dim=DIM, max_items=SHOWN, first_batch=4)],
    LocalClient: [client],
    GreedyLeastSquares: [lambda: GreedyLeastSquares(shared=False, **BANDIT)],
    LinUCB: [lambda: LinUCB(shared=False, horizon=USERS, **BANDIT)],
    GreedySGD: [lambda: GreedySGD(shared=False, **BANDIT)],
    RandomPlay: [lambda: RandomPlay(n_arms=ARMS)],
}
"""How to make one of each."""


def classes_that_take_data() -> Iterator[type]:
    rooms = privlearn.learners, privlearn_studies.rivals, privlearn.learners.local
    found = [(room, each) for room in rooms for each in pkgutil.iter_modules(room.__path__)]
    modules = [f"{room.__name__}.{each.name}" for room, each in found]
    for name in (*modules, "privlearn.runs.references"):
        for kind in vars(importlib.import_module(name)).values():
            mine = isinstance(kind, type) and kind.__module__ == name and kind.__name__[0] != "_"
            whole = not inspect.isabstract(kind) and not getattr(kind, "_is_protocol", False)
            if mine and whole and any(hasattr(kind, verb) for verb in VERBS):
                yield kind


def test_every_learner_is_driven_here() -> None:
    named = {getattr(privlearn.learners, name) for name in privlearn.learners.__all__}
    with_verbs = {kind for kind in named if any(hasattr(kind, verb) for verb in VERBS)}
    known = {*LEARNERS, Offers, AsyncOffers}  # the last two in test_offers.py
    assert set(classes_that_take_data()) == known
    assert {kind for kind in with_verbs if not inspect.isabstract(kind)} <= known


# How data are handed over ------------------------------------------------------------------------


class Fresh:
    """Every call gets an array of its own."""

    def hand(self, name: str, values: Any) -> Any:
        return np.array(values)

    def after(self) -> None:
        """Nothing is written to."""


class Reused:
    """All calls get the same arrays, which hold something else when the call is over."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.lent: list[Any] = []

    def hand(self, name: str, values: Any) -> Any:
        own = self.arrays.setdefault((name, np.shape(values)), np.array(values))
        own[...] = values
        return own

    def after(self) -> None:
        for array in [*self.arrays.values(), *self.lent]:
            if array.flags.writeable:
                array[...] = JUNK if array.dtype.kind == "f" else 1


Hands = Fresh | Reused
_RNG = np.random.default_rng(5)
FEATURES = _RNG.normal(size=(USERS, ITEMS, DIM)) / 3
REVENUES = _RNG.uniform(0.5, 1.5, size=(USERS, ITEMS))
CONTEXTS = _RNG.uniform(-1, 1, size=(USERS, DIM))
REWARDS = _RNG.uniform(-1, 1, size=USERS)
LUCK = _RNG.uniform(size=(USERS, 1))


def one_by_one_items(learner: Any, hands: Hands) -> None:
    for t in range(USERS):
        shown = learner.select(
            hands.hand("features", FEATURES[t]), hands.hand("revenues", REVENUES[t])
        )
        choice = int(shown[int(LUCK[t, 0] * len(shown))])
        hands.after()
        if isinstance(hands, Reused):
            shown[...] = 0
        learner.observe(choice)


def one_by_one_arms(learner: Any, hands: Hands) -> None:
    for t in range(USERS):
        learner.select(hands.hand("context", CONTEXTS[t]))
        hands.after()
        reward = hands.hand("reward", REWARDS[t])
        learner.observe(reward)
        hands.after()


def one_by_one_slates(learner: Any, hands: Hands) -> None:
    for t, own in enumerate(data_of(learner)):
        learner.select(hands.hand("features", own), hands.hand("revenues", REVENUES[t]))
        hands.after()
        learner.observe(hands.hand("reward", LUCK[t, 0]))
        hands.after()


def data_of(learner: Any) -> Any:
    return CONTEXTS if learner.per_action else FEATURES


def slates_of(
    drive: Callable[[Any, Callable[[Any, Any], Any]], Callable[[Any, Hands], None]],
) -> Callable[[Any, Hands], None]:
    def clicked(own: Any, actions: Any) -> Any:
        return np.cos(own.features.reshape(len(actions), -1).sum(axis=1) + actions) ** 2

    return lambda learner, hands: drive(data_of(learner), clicked)(learner, hands)


def one_by_one_phases(learner: Any, hands: Hands) -> None:
    for t in learner.billboard_.users:
        learner.select()
        learner.observe(hands.hand("reward", REWARDS[t % USERS]))
        hands.after()


def blocks_of_phases(learner: Any, hands: Hands) -> None:
    """The users' side writes to the arms, too, and returns the same array every time."""

    def respond(arms: Any) -> Any:
        found = hands.hand("answers", np.cos(np.arange(len(arms)) + arms))
        if isinstance(hands, Reused):
            arms[...] = 0
        return found

    for n in (9, len(learner.billboard_.users) - 9):
        learner.play(n, respond)
        hands.after()


def one_by_one_losses(learner: Any, hands: Hands) -> None:
    for t in range(USERS):
        learner.select(*([] if learner.dim is None else [hands.hand("context", CONTEXTS[t])]))
        hands.after()
        learner.observe(hands.hand("losses", CONTEXTS[t][:ARMS]))
        hands.after()


def blocks_of_losses(learner: Any, hands: Hands) -> None:
    def respond(*given: Any) -> Any:
        *own, shown = given
        found = hands.hand("answers", np.cos(np.arange(ARMS) + np.array(shown)[:, None]))
        if isinstance(hands, Reused):
            hands.lent += [*(own[0] if own else ()), shown]
            found = found.copy()
            hands.after()
        return found

    for start, stop in ((0, 9), (9, USERS)):
        contexts = hands.hand("block", CONTEXTS[start:stop])
        learner.play(stop - start if learner.dim is None else contexts, respond)
        hands.after()


def played(features: Any, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Hands], None]:
    """In blocks of users; the users' side writes to all that it gets, and to what it gave."""

    def drive(learner: Any, hands: Hands) -> None:
        def respond(own: Any, shown: Any) -> Any:
            found = hands.hand("answers", answer(own, shown))
            if isinstance(hands, Reused):
                hands.lent += [*own, shown]  # the turn or the ties too
                found = found.copy()  # of this call; after() is for what was lent before
                hands.after()
            return found

        for start, stop in ((0, 9), (9, USERS)):
            block = hands.hand("block", features[start:stop])
            luck = hands.hand("luck", LUCK[start:stop])
            learner.play(block, respond, private=luck)
            hands.after()

    return drive


def reused_answers(
    features: Any, answer: Callable[[Any, Any], Any]
) -> Callable[[Any, Hands], None]:
    """The users' side returns the same array every time."""

    def drive(learner: Any, hands: Hands) -> None:
        def respond(own: Any, shown: Any) -> Any:
            return hands.hand("answers", answer(own, shown))

        for t in range(USERS):
            learner.play(features[t : t + 1].copy(), respond, private=LUCK[t : t + 1].copy())
            hands.after()

    return drive


def one_by_one_examples(learner: Any, hands: Hands) -> None:
    for t in range(USERS):
        learner.partial_fit(hands.hand("x", CONTEXTS[t]), float(REWARDS[t]))
        hands.after()


def blocks_of_examples(learner: Any, hands: Hands) -> None:
    for start, stop in ((0, 7), (7, 9), (9, USERS)):
        x = hands.hand("x", CONTEXTS[start:stop])
        learner.partial_fit(x, hands.hand("y", REWARDS[start:stop]))
        hands.after()


def logged_choices(learner: Any, hands: Hands) -> None:
    for start, stop in ((0, 7), (7, USERS)):
        choices = (LUCK[start:stop, 0] * ITEMS).astype(int)
        learner.partial_fit(
            hands.hand("features", FEATURES[start:stop]), hands.hand("choices", choices)
        )
        hands.after()


def logged_rewards(learner: Any, hands: Hands) -> None:
    for start, stop in ((0, 7), (7, USERS)):
        more = {}
        if learner.per_action:
            more["actions"] = hands.hand("actions", (LUCK[start:stop, 0] * ITEMS).astype(int))
        features = hands.hand("features", CONTEXTS[start:stop])
        learner.partial_fit(features, hands.hand("rewards", LUCK[start:stop, 0]), **more)
        hands.after()


def local_messages(learner: LocalClient[Any], hands: Hands) -> None:
    config, sent = learner.config, list[Any]()
    for t in range(USERS):
        batch = config.batch_of(t)
        theta = hands.hand("theta", np.ones((config.method.parts, DIM)) / 2)
        arrays = {"theta": theta, **_rest_of_model(config)}
        model = Model(fingerprint=config.fingerprint.hex(), batch=batch, arrays=arrays)
        arm = learner.choose(hands.hand("context", CONTEXTS[t] / 2), model, user=t)
        context = hands.hand("pulled", CONTEXTS[t] / 2)
        sent.append(learner.randomize(context, arm, float(REWARDS[t]), user=t).values)
        hands.after()
    learner.sent = sent  # type: ignore[attr-defined]


def _rest_of_model(config: LocalBanditConfig) -> dict[str, Any]:
    start = config.method.model(config.method.start())
    return {name: array for name, array in start.items() if name != "theta"}


def local_learning(learner: Any, hands: Hands) -> None:
    for start, stop in ((0, 7), (7, USERS)):
        contexts = hands.hand("contexts", CONTEXTS[start:stop])
        arms = learner.choose(contexts)
        learner.learn(contexts, hands.hand("arms", arms), hands.hand("y", REWARDS[start:stop]))
        hands.after()


def taste(own: Any, shown: Any) -> Any:
    return shown[np.arange(len(shown)), (own.private[:, 0] * SHOWN).astype(int)]


def reward(own: Any, arms: Any) -> Any:
    return np.cos(own.context.sum(axis=1) + arms) * own.private[:, 0]


ITEMS_WAYS = [played(FEATURES, taste), reused_answers(FEATURES, taste)]
ARMS_WAYS = [played(CONTEXTS, reward), reused_answers(CONTEXTS, reward)]
EXAMPLES: list[Callable[[Any, Hands], None]] = [one_by_one_examples, blocks_of_examples]
LOCAL: list[Callable[[Any, Hands], None]] = [local_learning]


def ways(kind: type) -> list[Callable[[Any, Hands], None]]:
    if kind in (OnePassNewtonMNL, DPMNL):
        return [one_by_one_items, *ITEMS_WAYS]
    if kind is OnePassNewtonGLM:
        return [one_by_one_slates, slates_of(played), slates_of(reused_answers)]
    if kind in (DPHDB, PrivateLeastSquares, DPUCB):
        return [one_by_one_arms, *ARMS_WAYS]
    if kind is PrivateExperts:
        return [one_by_one_losses, blocks_of_losses]
    if issubclass(kind, PhaseLearner):
        return [one_by_one_phases, blocks_of_phases]
    if kind in (RandomAssortments, NonPrivateMNL):
        return ITEMS_WAYS
    if kind in (RandomArms, LassoBandit):
        return ARMS_WAYS
    if hasattr(kind, "partial_fit"):
        return EXAMPLES
    return [local_messages] if kind is LocalClient else LOCAL


DRIVES = [
    pytest.param(make, drive, id=f"{kind.__name__}-{i}-{j}")
    for kind, makers in LEARNERS.items()
    for i, make in enumerate(makers)
    for j, drive in enumerate(ways(kind))
] + [
    pytest.param(
        central(OnePassNewtonMNL, first_batch=4, **MNL), logged_choices, id="OnePassNewton-logged"
    ),
    *(
        pytest.param(central(OnePassNewtonGLM, **SLATES, per_action=each), logged_rewards)
        for each in (False, True)
    ),
]


def told(learner: Any) -> str:
    """All that a learner let out, or has learned, as text that shows every bit."""
    found: dict[str, Any] = {"sent": getattr(learner, "sent", None)}
    if hasattr(learner, "public_state"):
        found["state"] = learner.public_state()
        found["board"] = [
            {name: item[name] for name in ("name", "at", "digest", "value")}
            for item in learner.billboard_.history()
        ]
        entries = learner._accountant.ledger.entries
        found["digests"] = [entry.digest for entry in entries if isinstance(entry, RetireEntry)]
        assert any(found["digests"])
    for name in ("coef_", "_theta", "_early"):
        if hasattr(learner, name):
            found[name] = getattr(learner, name)
    if hasattr(learner, "belief_"):
        found["belief"] = [learner.belief_.mean, learner.belief_.precision]
    return json.dumps(found, default=lambda item: getattr(item, "tolist", item.__repr__)())


@pytest.mark.parametrize(("make", "drive"), DRIVES)
def test_arrays_that_are_written_to_afterwards_change_nothing(
    make: Callable[[], Any], drive: Callable[[Any, Hands], None]
) -> None:
    fresh, reused = make(), make()
    drive(fresh, Fresh())
    drive(reused, Reused())
    assert told(reused) == told(fresh)


@pytest.mark.parametrize(
    ("kind", "drive"),
    [
        (OnePassNewtonMNL, one_by_one_items),
        (DPMNL, one_by_one_items),
        (DPHDB, one_by_one_arms),
        (OnePassNewtonMNL, played(FEATURES, taste)),
    ],
)
def test_the_comparison_sees_a_learner_that_keeps_the_callers_array(
    kind: type, drive: Callable[[Any, Hands], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: the data were taken as they are, wherever the array fits."""
    monkeypatch.setattr(inputs, "_converted", lambda values: np.asarray(values, dtype=np.float64))
    fresh, reused = (LEARNERS[kind][-1]() for _ in range(2))
    drive(fresh, Fresh())
    drive(reused, Reused())
    assert told(reused) != told(fresh)


# What is handed out ------------------------------------------------------------------------------


def scribble(item: Any) -> None:
    """Writes into everything that can be written to."""
    if isinstance(item, np.ndarray) and item.flags.writeable:
        item[...] = 7
    elif isinstance(item, list):
        for inside in item:
            scribble(inside)
        item[:] = [7] * len(item)
    elif isinstance(item, dict):
        for name, inside in item.items():
            scribble(inside)
            item[name] = 7


PUBLIC = [
    pytest.param(make, ways(kind)[0], id=f"{kind.__name__}-{i}")
    for kind, makers in LEARNERS.items()
    for i, make in enumerate(makers)
    if hasattr(kind, "public_state")
]


@pytest.mark.parametrize(("make", "drive"), PUBLIC)
@pytest.mark.parametrize("when", thinned(["in the end", "at the start"]))
def test_what_is_handed_out_is_not_the_learners_own(
    make: Callable[[], Any], drive: Callable[[Any, Hands], None], when: str
) -> None:
    learner, untouched = make(), make()
    if when == "in the end":
        drive(learner, Fresh())
    before = json.dumps(learner.public_state(), default=str)
    for name in dir(learner):
        if name.startswith("_") or callable(getattr(learner, name, None)):
            continue
        if name not in learner.get_params():
            scribble(getattr(learner, name))
    for value in learner.billboard_.values():
        scribble(value)
    scribble(learner.public_state())
    scribble(learner.billboard_.history())
    scribble(learner.get_params())
    assert json.dumps(learner.public_state(), default=str) == before
    if when == "at the start":
        drive(learner, Fresh())
    drive(untouched, Fresh())
    assert told(learner) == told(untouched)
