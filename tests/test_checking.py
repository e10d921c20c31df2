"""The non-interference check: the shipped learner passes it, and planted leaks do not.

Every leak is a small learner that differs from an honest one by a single fault.  Neighbours are
whole users: own data and response function.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from privlearn.adjacency import Adjacency
from privlearn.billboard import Billboard, Shown
from privlearn.budgets import ZCDP, GaussianDP
from privlearn.checking import Assorting, User, assert_noninterference, check_row_local
from privlearn.domains import Array, Ball, Norm
from privlearn.errors import InterferenceError
from privlearn.learners import NO_ITEM, OnePassNewtonMNL
from privlearn.learners.newton import Belief
from privlearn.learners.serving import Arrival, answered, default_items, optimistic_items
from privlearn.losses import Gaussian
from privlearn.mechanisms import PrefixSum
from privlearn.mnl import Answer, Items, clip_items, gradients, hessian_factors
from privlearn.noise import GaussianNoise
from privlearn.protocols import Accountant
from privlearn.rows import Rows
from privlearn.tokens import Spend

N_ITEMS, DIM, SHOWN = 6, 2, 3


@dataclass
class Person:
    """A user whose answer to any offer follows from a rule."""

    features: Any
    answer: Callable[[Items], Any]

    def respond(self, items: Items, /) -> Any:
        return self.answer(items)


def shopper(rng: np.random.Generator, dim: int = DIM) -> Person:
    """A user with proper data who takes a favourite if it is on offer."""
    favourites = rng.permutation(N_ITEMS)
    buys = rng.random() < 0.8

    def answer(items: Items) -> int | None:
        offered = [int(i) for i in favourites if i in items]
        return offered[0] if offered and buys else None

    return Person(rng.normal(size=(N_ITEMS, dim)), answer)


def stranger(rng: np.random.Generator, dim: int = DIM) -> Person:
    """A user of any kind, most of them with data that no learner may trust."""
    good = rng.normal(size=(N_ITEMS, dim))
    holed, infinite = good.copy(), good.copy()
    holed[rng.integers(N_ITEMS), rng.integers(dim)] = np.nan
    infinite[rng.integers(N_ITEMS), 0] = -np.inf
    contexts: list[Any] = [
        good,
        holed,
        infinite,
        np.full((N_ITEMS, dim), np.nan),
        1e200 * good,
        1e308 * np.sign(good),
        1e-310 * good,
        good[:-1],
        good.ravel(),
        good[None],
        "not numbers",
        None,
        [[10**400] * dim] * N_ITEMS,
    ]
    answers: list[Any] = [
        None,
        NO_ITEM,
        int(rng.integers(N_ITEMS)),
        N_ITEMS,
        -5,
        10**6,
        10**30,
        0.5,
        math.nan,
        "three",
        [1, 2],
    ]
    if rng.random() < 0.3:
        return shopper(rng, dim)
    fixed = answers[rng.integers(len(answers))]
    return Person(contexts[rng.integers(len(contexts))], lambda items: fixed)


def replaced(data: Sequence[Person], at: int, by: Person) -> list[Person]:
    return [by if i == at else person for i, person in enumerate(data)]


def shipped(**params: Any) -> Callable[[Accountant[Any]], OnePassNewtonMNL]:
    settings: dict[str, Any] = {"dim": DIM, "first_batch": 6, **params}

    def factory(accountant: Accountant[Any]) -> OnePassNewtonMNL:
        learner = OnePassNewtonMNL(n_items=N_ITEMS, max_items=SHOWN, **settings)
        return learner.start(accountant)

    return factory


# The shipped learner ----------------------------------------------------------------------


@pytest.mark.parametrize("case", range(100))
def test_the_shipped_learner_passes_on_generated_neighbours(case: int) -> None:
    rng = np.random.default_rng([2024, case])
    horizon, dim = int(rng.integers(40, 61)), int(rng.integers(2, 4))
    factory = shipped(
        dim=dim,
        growth=float(rng.choice([1.2, 1.5, 2.5])),
        exploration=float(rng.choice([0.0, 3.0])),
        outside_option=bool(rng.random() < 0.8),
        random_state=case,
    )
    strange = rng.random() < 0.5
    data = [
        stranger(rng, dim) if strange and rng.random() < 0.2 else shopper(rng, dim)
        for _ in range(horizon)
    ]
    # First, last, both sides of the first boundary, and anywhere.
    at = [0, horizon - 1, 5, 6, int(rng.integers(horizon))][case % 5]
    budget = [None, ZCDP("0.1"), ZCDP(100), GaussianDP(2)][case % 4]
    neighbour = replaced(data, at, stranger(rng, dim))
    assert_noninterference(factory, data, neighbour, budget=budget, seed=case)
    assert_noninterference(factory, neighbour, data, budget=budget, seed=case)


@pytest.mark.parametrize("at", range(0, 40))
def test_every_position_may_be_the_replaced_one(at: int) -> None:
    rng = np.random.default_rng(1)
    data = [shopper(rng) for _ in range(40)]
    assert_noninterference(shipped(), data, replaced(data, at, stranger(rng)))


def test_the_response_alone_is_part_of_the_record() -> None:
    rng = np.random.default_rng(2)
    data = [shopper(rng) for _ in range(40)]
    other = Person(data[9].features, lambda items: None)
    assert_noninterference(shipped(), data, replaced(data, 9, other))


@pytest.mark.parametrize("change", ["two", "none", "shorter", "longer"])
def test_data_that_are_no_neighbours_are_refused(change: str) -> None:
    rng = np.random.default_rng(3)
    data = [shopper(rng) for _ in range(10)]
    other: list[Person] = {
        "two": replaced(replaced(data, 1, shopper(rng)), 2, shopper(rng)),
        "none": list(data),
        "shorter": data[:-1],
        "longer": [*data, shopper(rng)],
    }[change]
    with pytest.raises(ValueError, match="must replace exactly one of 10 users"):
        assert_noninterference(shipped(), data, other)


# Planted leaks ----------------------------------------------------------------------------


@dataclass(frozen=True)
class NoisySum:
    """A third party's mechanism, with the places where a leak can be planted."""

    domain: Any = field(default_factory=lambda: Ball(1.0, DIM))
    std: float = 20.0
    parameters: dict[str, Any] = field(default_factory=dict)
    own_loss: Gaussian | None = None

    def spend(self) -> Spend:
        return Spend(
            "noisy-sum",
            self.domain,
            GaussianNoise(self.std),
            own_loss=self.own_loss,
            parameters=self.parameters,
        )

    def release(self, accountant: Accountant[Any], rows: Rows[Any]) -> Array:
        loss = self.spend().loss(accountant.adjacency)
        token = accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(self.spend()) as receipt:
            total: Array = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape)).value


class Honest:
    """Shows items by a released sum of mean features; releases every ``every`` users.

    Leaks override one step.  ``seen`` holds the raw rows, which no honest step looks at.
    """

    every = 5

    def __init__(self, accountant: Accountant[Any]) -> None:
        self.accountant = accountant
        self.board = Billboard(accountant, accountant.users)
        self.belief = np.zeros(DIM)
        self.pending: list[Rows[Array]] = []
        self.seen: list[Array] = []
        self.asked: Shown[Array, Items] | None = None

    def select(self, features: Array, /) -> Items:
        self.seen.append(np.array(features, dtype=float))
        user = range(self.board.clock, self.board.clock + 1)
        rows = Rows.seal(np.array(features)[None], users=user)
        self.asked = self.board.serve(rows, self.policy)
        items = self.asked.reveal()
        assert items is not None
        return items

    def policy(self, own: Array) -> Items:
        values = np.nan_to_num(own) @ self.belief
        return np.sort(np.argsort(-values, axis=1)[:, :SHOWN], axis=1)

    def observe(self, choice: int | None, /) -> None:
        assert self.asked is not None
        self.pending.append(self.asked.deliver(lambda own, items: own.mean(axis=1)))
        if self.is_full():
            rows, self.pending = Rows.concat(self.pending), []
            self.belief = self.learn(rows)

    def is_full(self) -> bool:
        return len(self.pending) == self.every

    def learn(self, rows: Rows[Array]) -> Array:
        return NoisySum().release(self.accountant, rows)

    def public_state(self) -> Any:
        return {"belief": self.belief.tolist()}


class SkipsBadRows(Honest):
    """The first named leak: a NaN row is not counted, which shifts everybody behind it."""

    def observe(self, choice: int | None, /) -> None:
        if np.isfinite(self.seen[-1]).all():
            super().observe(choice)
            return
        assert self.asked is not None
        self.asked.deliver(lambda own, items: own.mean(axis=1))


class SkipsBadRowsSilently(Honest):
    """The same leak with the gap closed: bad rows are removed and the batch waits for another."""

    def __init__(self, accountant: Accountant[Any]) -> None:
        super().__init__(accountant)
        self.good = 0

    def is_full(self) -> bool:
        self.good += bool(np.isfinite(self.seen[-1]).all())
        full = self.good == self.every
        self.good = 0 if full else self.good
        return full


class RawMaximumInAParameter(Honest):
    """The second: a bound computed from the data goes into the ledger."""

    def learn(self, rows: Rows[Array]) -> Array:
        largest = float(np.nanmax(np.abs(self.seen[-self.every :])))
        return NoisySum(parameters={"bound": largest}).release(self.accountant, rows)


class RawMaximumInALongParameter(Honest):
    """The same, at the end of a list that a shortened print would not show."""

    def learn(self, rows: Rows[Array]) -> Array:
        largest = float(np.nanmax(np.abs(self.seen[-self.every :])))
        edges = [0.0] * 5_000
        edges[2_500] = largest
        return NoisySum(parameters={"edges": edges}).release(self.accountant, rows)


class RawMaximumAsTheDomain(Honest):
    """The same, as the radius that rows are clipped to."""

    def learn(self, rows: Rows[Array]) -> Array:
        largest = float(np.nanmax(np.abs(self.seen[-self.every :])))
        return NoisySum(Ball(largest, DIM), std=20 * largest).release(self.accountant, rows)


class RawValueBesideTheRelease(Honest):
    """The third: an unpaid sum stands in the public state."""

    def public_state(self) -> Any:
        return {"belief": self.belief.tolist(), "sum": float(np.nansum(self.seen))}


class RawValueInALongPublicArray(Honest):
    """The same, in the middle of an array whose print is shortened."""

    def public_state(self) -> Any:
        history = np.zeros(10_000)
        history[5_000] = np.nansum(self.seen)
        return {"history": history}


class RawValueInALongArrayOfAnObject(Honest):
    """The same, inside an object, of which no JSON would tell."""

    def public_state(self) -> Any:
        history = np.zeros(10_000)
        history[5_000] = np.nansum(self.seen)
        return {"belief": Belief(history, np.eye(2))}


class RawValueBelowThePrintedDigits(Honest):
    """The same, in digits that a print would round away."""

    def public_state(self) -> Any:
        return {"belief": self.belief + 1e-12 * np.nansum(np.clip(self.seen, -1, 1))}


class RawValueInThePolicy(Honest):
    """The same: other users are served from an exact sum."""

    def learn(self, rows: Rows[Array]) -> Array:
        super().learn(rows)
        return np.asarray(np.nansum(self.seen, axis=(0, 1)))

    def public_state(self) -> Any:
        return {}


class DataDependentBatchEnd(Honest):
    """The fourth: a batch closes when enough was observed."""

    def is_full(self) -> bool:
        weight = np.nansum(np.clip(np.abs(self.seen[-len(self.pending) :]), 0, 1))
        return bool(weight > 30)


class FewerCallsOnBadData(Honest):
    """An update is left out when the batch has a bad row."""

    def learn(self, rows: Rows[Array]) -> Array:
        if not np.isfinite(self.seen[-self.every :]).all():
            return self.belief
        return super().learn(rows)


class FailsOnBadData(Honest):
    """An exception that happens for some data only."""

    def select(self, features: Array, /) -> Items:
        if not np.isfinite(features).all():
            raise ValueError("features must be finite")
        return super().select(features)


class BatchStatistic(Honest):
    """Rows are centred by their own mean before they are clipped."""

    def learn(self, rows: Rows[Array]) -> Array:
        centred = rows.map_rows(lambda block: block - np.nanmean(block, axis=0))
        return NoisySum().release(self.accountant, centred)


class ChangesTheLabel(Honest):
    """A token's public label tells about data."""

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = NoisySum()
        label = "large" if np.nanmax(np.abs(self.seen)) > 1e3 else "small"
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label=label)
        with token.spend(mechanism.spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape)).value


class ForgetsToRetire(Honest):
    """A release that fails on bad data leaves another ledger."""

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = NoisySum()
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(mechanism.spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            if np.isfinite(self.seen[-self.every :]).all():
                return receipt.release(total + receipt.draw(total.shape)).value
        return self.belief


@dataclass(frozen=True)
class LyingBall:
    """A third party's domain whose clip does not clip."""

    radius: float
    size: int

    def clip(self, block: Array) -> Array:
        return np.nan_to_num(np.asarray(block, dtype=np.float64))

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return 2 * self.radius

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "my-ball", "radius": self.radius, "size": self.size}


class UnderstatedSensitivity(Honest):
    """The diameter that is paid for is not that of the contributions."""

    def learn(self, rows: Rows[Array]) -> Array:
        own = Gaussian("0.01", adjacency=Adjacency.REPLACE_ONE)
        return NoisySum(LyingBall(1.0, DIM), std=20.0, own_loss=own).release(self.accountant, rows)


class ReleasesWithoutNoise(Honest):
    """The fifth: the noise is drawn and forgotten, and the sum is magnified."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return 1000 * total

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = NoisySum()
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(mechanism.spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            value = self.leaving(total, receipt.draw(total.shape))
            return np.array(receipt.release(value).value)


class RawValueInTheRelease(ReleasesWithoutNoise):
    """The same: a raw value rides on a noisy release."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return total + noise + np.nansum(self.seen[-self.every :])


class RawNotANumberInTheRelease(ReleasesWithoutNoise):
    """The same, as NaN, which is above no bound."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return total + noise + np.sum(self.seen[-self.every :])


class OldValueInTheRelease(ReleasesWithoutNoise):
    """The same, within the sensitivity, but paid for by other users."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return total + noise + math.tanh(float(np.nansum(self.seen[: -self.every])) / 1e4)


class OldValueInAStream(Honest):
    """A running sum that has the replaced user in it before that user was opened."""

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = NoisySum()
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(replace(mechanism.spend(), interactive=True)) as receipt:
            total = np.zeros(DIM)
            for user in rows.users:
                total = total + receipt.open(rows.slice(range(user, user + 1)))[0]
                noise = receipt.draw(total.shape)
                peek = np.tanh(np.nansum(self.seen) / 1e4)
                last = receipt.publish(total + noise + peek).value
            receipt.close()
        return last


class RawValueInAnAttribute(Honest):
    """The sixth: no public state is declared, and an attribute without underscore tells."""

    public_state = None  # type: ignore[assignment]

    @property
    def total(self) -> float:
        return float(np.nansum(self.seen))


class Wrapped:
    """Prints alike whatever is inside."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __repr__(self) -> str:
        return "Wrapped"


class RawValueBehindACoarsePrint(Honest):
    """An object in the public state that does not tell what it holds."""

    def public_state(self) -> Any:
        return {"belief": [Wrapped(self.seen)]}


class Prints(Honest):
    """The seventh: an extreme user is told of beside the billboard."""

    def tell(self, text: str) -> None:
        print(text)

    def select(self, features: Array, /) -> Items:
        if np.abs(features).max() > 1e3:
            self.tell("extreme user")
        return super().select(features)


class PrintsToStderr(Prints):
    def tell(self, text: str) -> None:
        print(text, file=sys.stderr)


class Warns(Prints):
    def tell(self, text: str) -> None:
        warnings.warn(text, stacklevel=1)


class Logs(Prints):
    def tell(self, text: str) -> None:
        logging.getLogger("learner").debug(text)


class TellsOnAnotherBoard(Honest):
    """The eighth: the billboard that is shown is one of its own."""

    @property
    def billboard_(self) -> Any:
        return {"sum": np.nansum(self.seen)}


LEAKS: list[tuple[type[Honest], Any, str]] = [
    (SkipsBadRows, "nan", "run ends with"),
    (SkipsBadRowsSilently, "nan", "event"),
    (RawMaximumInAParameter, "large", "event 3 .spend"),
    (RawMaximumInALongParameter, "large", "event 3 .spend"),
    (RawMaximumAsTheDomain, "large", "event 3 .spend"),
    (RawValueBesideTheRelease, "large", "public state depends on data"),
    (RawValueInALongPublicArray, "large", "public state depends on data"),
    (RawValueInALongArrayOfAnObject, "large", "'belief'. is of type Belief, which may hide"),
    (RawValueBelowThePrintedDigits, "large", "public state depends on data"),
    (RawValueInThePolicy, "large", "received"),
    (DataDependentBatchEnd, "large", "event"),
    (FewerCallsOnBadData, "nan", "event|events"),
    (FailsOnBadData, "nan", "then ValueError"),
    (BatchStatistic, "large", "rows of users .* changed with user 7"),
    (ChangesTheLabel, "large", "event"),
    (ForgetsToRetire, "nan", "event|ledger"),
    (ReleasesWithoutNoise, "large", "noise held fixed the value moves by .* paid for 2"),
    (RawValueInTheRelease, "large", "noise held fixed the value moves by .* paid for 2"),
    (RawNotANumberInTheRelease, "nan", "noise held fixed the value moves by nan"),
    (OldValueInTheRelease, "large", "noise held fixed the value moves by .* paid for 0"),
    (OldValueInAStream, "large", "noise held fixed the value moves by .* paid for 0"),
    (RawValueInAnAttribute, "large", "public state depends on data .*: .*seen, total"),
    (RawValueBehindACoarsePrint, "large", "'belief'..0. is of type Wrapped"),
    (Prints, "large", "printed, warned or logged 0: at clock 8: .'extreme user|nothing"),
    (PrintsToStderr, "large", "printed, warned or logged"),
    (Warns, "large", "printed, warned or logged"),
    (Logs, "large", "printed, warned or logged"),
    (TellsOnAnotherBoard, "large", "public state depends on data .*: billboard_"),
    (UnderstatedSensitivity, "large", "user 7 moves the sum by .* paid for 2"),
]


def crowd_and_neighbour(kind: str) -> tuple[list[Person], list[Person]]:
    rng = np.random.default_rng(5)
    data = [shopper(rng) for _ in range(40)]
    value = np.nan if kind == "nan" else 1e4
    bad = Person(np.where(np.eye(N_ITEMS, DIM) > 0, value, 1.0), lambda items: None)
    return data, replaced(data, 7, bad)


@pytest.mark.parametrize("kind", ["nan", "large"])
def test_the_honest_learner_without_leaks_passes(kind: str) -> None:
    data, neighbour = crowd_and_neighbour(kind)
    assert_noninterference(Honest, data, neighbour)


@pytest.mark.parametrize(("leak", "kind", "message"), LEAKS, ids=[x[0].__name__ for x in LEAKS])
def test_every_planted_leak_is_caught(leak: type[Honest], kind: str, message: str) -> None:
    data, neighbour = crowd_and_neighbour(kind)
    factory: Callable[[Accountant[Any]], Assorting] = leak
    for first, second in ((data, neighbour), (neighbour, data)):
        with pytest.raises(InterferenceError) as caught:
            assert_noninterference(factory, first, second)
        if first is data:
            assert caught.match(message)


class WithoutPublicState:
    """An honest learner whose public attributes are the public state."""

    def __init__(self, accountant: Accountant[Any], kept: Any = None) -> None:
        self._inner = Honest(accountant)
        self.accountant, self.board, self.kept = accountant, self._inner.board, kept
        self.mechanism, self.rows, self.shown = NoisySum(), self._inner.pending, self._inner.asked
        self.coins, self.belief = np.random.default_rng(0), self._inner.belief

    def select(self, features: Array, /) -> Items:
        return self._inner.select(features)

    def observe(self, choice: int | None, /) -> None:
        self._inner.observe(choice)
        self.rows, self.shown = self._inner.pending, self._inner.asked
        self.belief = self._inner.belief


class Streams(Honest):
    """An honest stream of prefix sums; more than one block while the token is open."""

    every = 40

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = PrefixSum.calibrated(Ball(1.0, DIM), ZCDP(1), horizon=40)
        token = self.accountant.issue(mechanism.loss(), users=rows.users, label="sums")
        with mechanism.open(token) as stream:
            stream.append(rows.slice(range(0, 5)))
            return np.array(stream.append(rows.slice(range(5, 40))).value[-1])


class StreamsAtOnce(Streams):
    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = PrefixSum.calibrated(Ball(1.0, DIM), ZCDP(1), horizon=40)
        token = self.accountant.issue(mechanism.loss(), users=rows.users, label="sums")
        with mechanism.open(token) as stream:
            return np.array(stream.append(rows).value[-1])


@pytest.mark.parametrize("kind", ["nan", "large"])
@pytest.mark.parametrize("learner", [WithoutPublicState, Streams, StreamsAtOnce])
def test_other_honest_learners_pass(learner: Any, kind: str) -> None:
    data, neighbour = crowd_and_neighbour(kind)
    assert_noninterference(learner, data, neighbour)
    assert_noninterference(learner, neighbour, data)


@pytest.mark.parametrize("inside", [deque, Wrapped, partial(partial, max), set, np.array])
def test_attributes_are_compared_to_the_ground(inside: Any) -> None:
    data, neighbour = crowd_and_neighbour("large")

    class Tells(WithoutPublicState):
        def select(self, features: Array, /) -> Items:
            self.found = [*getattr(self, "found", []), inside([str(features.max() > 1e3)])]
            return super().select(features)

    with pytest.raises(InterferenceError, match=r"public state .*: found"):
        assert_noninterference(Tells, data, neighbour)


def test_attributes_that_cannot_be_compared_are_refused_by_name() -> None:
    data, neighbour = crowd_and_neighbour("large")
    with pytest.raises(InterferenceError, match="kept cannot be compared"):
        assert_noninterference(
            lambda accountant: WithoutPublicState(accountant, threading.Lock()), data, neighbour
        )


class SkippingNewton:
    """The shipped learner behind a front that drops bad rows: everybody behind moves up."""

    def __init__(self, accountant: Accountant[Any]) -> None:
        self.inner = shipped()(accountant)
        self.dropped = False

    def select(self, features: Array, /) -> Items:
        self.dropped = not np.isfinite(np.asarray(features, dtype=float)).all()
        return np.arange(SHOWN) if self.dropped else self.inner.select(features)

    def observe(self, choice: int | None, /) -> None:
        if not self.dropped:
            self.inner.observe(choice)

    def public_state(self) -> Any:
        return self.inner.public_state()


class TellingNewton:
    """The shipped learner with the private messages in its public state."""

    def __init__(self, accountant: Accountant[Any]) -> None:
        self.inner = shipped()(accountant)
        self.select, self.observe = self.inner.select, self.inner.observe

    def public_state(self) -> Any:
        return {**self.inner.public_state(), "messages": self.inner.private_messages_}


@pytest.mark.parametrize("leak", [SkippingNewton, TellingNewton])
def test_a_leak_around_the_shipped_learner_is_caught(leak: Any) -> None:
    data, neighbour = crowd_and_neighbour("nan")
    with pytest.raises(InterferenceError):
        assert_noninterference(leak, data, neighbour)
    with pytest.raises(InterferenceError):
        assert_noninterference(leak, neighbour, data)


def test_users_need_only_features_and_a_response() -> None:
    person: User = shopper(np.random.default_rng(0))
    assert person.features.shape == (N_ITEMS, DIM)


# Row-local maps ---------------------------------------------------------------------------


def arrivals(seed: int, n: int) -> Arrival:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, N_ITEMS, DIM))
    features[:: max(n // 3, 1), 0, 0] = (np.nan, np.inf, 1e200, 1.0)[seed % 4]
    revenues = np.where(rng.random((n, 1)) < 0.5, 1.0, rng.normal(size=(n, N_ITEMS)))
    return Arrival(features, revenues, rng.random((n, N_ITEMS)), np.zeros((n, 0)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("exploration", [0.0, 3.0])
def test_the_learners_policy_is_row_local(seed: int, shuffled: bool, exploration: float) -> None:
    belief = Belief(np.random.default_rng(seed).normal(size=DIM), 3 * np.eye(DIM))

    def policy(own: Arrival) -> Items:
        return optimistic_items(
            own, belief, max_items=SHOWN, exploration=exploration, scale=1.0, shuffled=shuffled
        )

    check_row_local(policy, arrivals(seed, 7), arrivals(seed + 1, 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("outside", [True, False])
def test_the_learners_row_maps_are_row_local(seed: int, outside: bool) -> None:
    theta = np.random.default_rng(seed).normal(size=DIM)

    def answers(own: Arrival) -> Answer:
        choice = own.ties[:, 0] * 9 - 2
        return answered(
            own,
            default_items(len(choice), SHOWN),
            choice.astype(np.int64),
            outside=outside,
            scale=2.0,
        )

    block, other = arrivals(seed, 7), arrivals(seed + 1, 1)
    check_row_local(answers, block, other)
    check_row_local(lambda own: gradients(answers(own), theta, outside=outside), block, other)
    check_row_local(lambda own: hessian_factors(answers(own), theta, outside=outside), block, other)
    check_row_local(lambda own: clip_items(own.features, 2.0), block, other)


NOT_ROW_LOCAL: dict[str, Callable[[Array], Array]] = {
    "batch-mean centring": lambda block: block - block.mean(axis=0),
    "sorting": lambda block: np.sort(block, axis=0),
    "running maximum": lambda block: np.maximum.accumulate(block, axis=0),
    "first row": lambda block: block - block[:1],
    "scaling by the largest": lambda block: block / np.abs(block).max(),
    "rank": lambda block: np.argsort(np.argsort(block, axis=0), axis=0).astype(float),
    "next row": lambda block: np.roll(block, 1, axis=0),
    "position": lambda block: block + np.arange(len(block))[:, None],
}


@pytest.mark.parametrize("name", NOT_ROW_LOCAL)
def test_functions_that_mix_rows_are_caught(name: str) -> None:
    rng = np.random.default_rng(0)
    block, other = rng.normal(size=(5, 2)), 10 + rng.normal(size=(1, 2))
    with pytest.raises(InterferenceError, match="row"):
        check_row_local(NOT_ROW_LOCAL[name], block, other)


def test_functions_of_single_rows_pass() -> None:
    rng = np.random.default_rng(0)
    block, other = rng.normal(size=(5, 2)), rng.normal(size=(1, 2))
    check_row_local(lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True), block, other)
    check_row_local(lambda rows: np.cumsum(rows, axis=1), block, other)
    with pytest.raises(ValueError, match="at least two rows"):
        check_row_local(np.abs, block[:1], other)
    with pytest.raises(ValueError, match="other exactly one"):
        check_row_local(np.abs, block, block)
