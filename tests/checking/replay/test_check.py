"""The non-interference check: the shipped learner passes it, and planted leaks do not.

Every leak is a small learner that differs from an honest one by a single fault.  Neighbours are
whole users: own data and response function.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from faults.learners_leaking import (
    BadData,
    Logs,
    Prints,
    PrintsToStderr,
    RawValueBehindACoarsePrint,
    RawValueBelowThePrintedDigits,
    RawValueBesideTheRelease,
    RawValueInALongArrayOfAnObject,
    RawValueInALongPublicArray,
    RawValueInAnAttribute,
    RawValueInThePolicy,
    TellsOnAnotherBoard,
    Warns,
    Wrapped,
    crowd_and_neighbour,
)
from faults.learners_learning import (
    BatchStatistic,
    ChangesTheLabel,
    DataDependentBatchEnd,
    FailsOnBadData,
    FewerCallsOnBadData,
    ForgetsToRetire,
    Honest,
    OldValueInAStream,
    OldValueInTheRelease,
    OwnSum,
    RawMaximumAsTheDomain,
    RawMaximumInALongParameter,
    RawMaximumInAParameter,
    RawNotANumberInTheRelease,
    RawValueInTheRelease,
    ReleasesWithoutNoise,
    SkipsBadRows,
    SkipsBadRowsSilently,
    UnderstatedSensitivity,
)
from grids import thinned

from privlearn.checking import User, check_row_local, generated_pairs
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import Person, replaced, shopper, stranger
from privlearn.contract.protocols import Accountant
from privlearn.errors import CheckError, InterferenceError
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.newton import Belief
from privlearn.learners.serving import Arrival, answered, default_items, optimistic_items
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.mechanisms.choice_model import Answer, Items, clip_items, gradients, hessian_factors
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball

N_ITEMS, DIM, SHOWN = 6, 2, 3


def shipped(**params: Any) -> Callable[[Accountant[Any]], OnePassNewtonMNL]:
    settings: dict[str, Any] = {"dim": DIM, "first_batch": 6, **params}

    def factory(accountant: Accountant[Any]) -> OnePassNewtonMNL:
        learner = OnePassNewtonMNL(n_items=N_ITEMS, max_items=SHOWN, **settings)
        return learner.start(accountant)

    return factory


# The shipped learner ----------------------------------------------------------------------


@pytest.mark.parametrize("case", thinned(range(20), 4))
def test_the_shipped_learner_passes_on_generated_neighbours(case: int) -> None:
    rng = np.random.default_rng([2024, case])
    horizon, dim = int(rng.integers(24, 37)), int(rng.integers(2, 4))
    factory = shipped(
        dim=dim,
        growth=float(rng.choice([1.2, 1.5, 2.5])),
        exploration=float(rng.choice([0.0, 3.0])),
        outside_option=bool(rng.random() < 0.8),
        random_state=case,
    )
    strange = rng.random() < 0.5
    data = [
        stranger(rng, N_ITEMS, dim)
        if strange and rng.random() < 0.2
        else shopper(rng, N_ITEMS, dim)
        for _ in range(horizon)
    ]
    # First, last, both sides of the first boundary, and anywhere.
    at = [0, horizon - 1, 5, 6, int(rng.integers(horizon))][case % 5]
    budget = [None, ZCDP("0.1"), ZCDP(100), GaussianDP(2)][case % 4]
    neighbour = replaced(data, at, stranger(rng, N_ITEMS, dim))
    assert_noninterference(factory, data, neighbour, budget=budget, seed=case)
    assert_noninterference(factory, neighbour, data, budget=budget, seed=case)


@pytest.mark.parametrize("at", thinned(range(0, 40), 4))
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


LEAKS: list[tuple[type[Honest], Any, str]] = [
    (SkipsBadRows, "nan", "got: .*raises"),
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
    (FailsOnBadData, "nan", "raises ValueError"),
    (BatchStatistic, "large", "rows of users .* changed with user 7"),
    (ChangesTheLabel, "large", "event"),
    (ForgetsToRetire, "nan", "event|ledger"),
    (ReleasesWithoutNoise, "large", "noise held fixed the value moves by .* paid for 2"),
    (RawValueInTheRelease, "large", "noise held fixed the value moves by .* paid for 2"),
    (RawNotANumberInTheRelease, "nan", "noise held fixed the value moves by nan"),
    (OldValueInTheRelease, "large", "noise held fixed the value moves by .* paid for 0"),
    (OldValueInAStream, "large", "noise held fixed the value moves by .* paid for 0"),
    (RawValueInAnAttribute, "large", "public state depends on data .*: total"),
    (RawValueBehindACoarsePrint, "large", "'belief'..0. is of type Wrapped"),
    (Prints, "large", "printed, warned, logged or written 0: at clock 8: .'extreme user|nothing"),
    (PrintsToStderr, "large", "printed, warned, logged or written"),
    (Warns, "large", "printed, warned, logged or written"),
    (Logs, "large", "printed, warned, logged or written"),
    (TellsOnAnotherBoard, "large", "public state depends on data .*: billboard_"),
    (UnderstatedSensitivity, "large", "user 7 moves the sum by .* paid for 2"),
]


@pytest.mark.parametrize("kind", ["nan", "large"])
def test_the_honest_learner_without_leaks_passes(kind: BadData) -> None:
    data, neighbour = crowd_and_neighbour(kind)
    assert_noninterference(Honest, data, neighbour)


@pytest.mark.parametrize(
    ("leak", "kind", "message"), thinned(LEAKS, 3), ids=[x[0].__name__ for x in LEAKS]
)
def test_every_planted_leak_is_caught(leak: type[Honest], kind: BadData, message: str) -> None:
    data, neighbour = crowd_and_neighbour(kind)
    factory: Callable[[Accountant[Any]], Any] = leak
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
        self.mechanism, self.rows, self.shown = OwnSum(), self._inner.pending, self._inner.asked
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
def test_other_honest_learners_pass(learner: Any, kind: BadData) -> None:
    data, neighbour = crowd_and_neighbour(kind)
    assert_noninterference(learner, data, neighbour)
    assert_noninterference(learner, neighbour, data)


@pytest.mark.parametrize("inside", [deque, Wrapped, partial(partial, max), set, np.array])
def test_attributes_are_compared_to_the_ground(inside: Any) -> None:
    data, neighbour = crowd_and_neighbour("large")

    class TellsMore(WithoutPublicState):
        def select(self, features: Array, /) -> Items:
            self.found = [*getattr(self, "found", []), inside([str(features.max() > 1e3)])]
            return super().select(features)

    with pytest.raises(InterferenceError, match=r"public state .*: found"):
        assert_noninterference(TellsMore, data, neighbour)


def test_what_a_public_mechanism_works_out_when_it_is_asked_tells_nothing() -> None:
    class Public(Honest):
        sums = NoisySum.calibrated(Ball(1.0, DIM), ZCDP("0.1"))

        def learn(self, rows: Rows[Array]) -> Array:
            token = self.accountant.issue(self.sums.loss(), users=rows.users, label="sum")
            return self.sums.release(rows, token).value

    class OfItsOwn(Public):
        def learn(self, rows: Rows[Array]) -> Array:
            self.sums = replace(self.sums)
            return super().learn(rows)

    class Telling(Public):
        def learn(self, rows: Rows[Array]) -> Array:
            self.sums = replace(self.sums, name=f"large {np.nanmax(np.abs(self._seen)) > 1e3}")
            return Public.sums.release(
                rows, self.accountant.issue(self.sums.loss(), users=rows.users, label="sum")
            ).value

    for learner in (Public, OfItsOwn):
        assert assert_noninterference(learner, *crowd_and_neighbour("large")).moved
    with pytest.raises(InterferenceError, match=r"sums\['name'\]"):
        assert_noninterference(Telling, *crowd_and_neighbour("large"))


def test_attributes_that_cannot_be_compared_are_refused_by_name() -> None:
    data, neighbour = crowd_and_neighbour("large")
    with pytest.raises(CheckError, match="nothing can be concluded, as kept cannot be compared"):
        assert_noninterference(
            lambda accountant: WithoutPublicState(accountant, threading.Lock()), data, neighbour
        )


class Tells(Honest):
    """Declares a public state, and tells the sum of the answers beside it."""

    def __init__(self, accountant: Accountant[Any]) -> None:
        super().__init__(accountant)
        self._total = 0.0

    def observe(self, choice: int | None, /) -> None:
        super().observe(choice)
        self._total += float(np.nansum(self._seen[-1]))


class InAnAttribute(Tells):
    total_: float

    def observe(self, choice: int | None, /) -> None:
        super().observe(choice)
        self.total_ = self._total


class ForAWhile(InAnAttribute):
    """What is taken back before the end was seen by whoever came meanwhile."""

    def observe(self, choice: int | None, /) -> None:
        super().observe(choice)
        if self.board.clock > 30:
            self.total_ = 0.0


class InAnInnerObject(Tells):
    def observe(self, choice: int | None, /) -> None:
        super().observe(choice)
        self.history_ = {"all": [np.array([np.nan, self._total])]}


class InAProperty(Tells):
    @property
    def total_(self) -> float:
        return self._total


class InAnError(Tells):
    @property
    def coef_(self) -> float:
        raise AttributeError(f"nothing was learned from {self._total}")


class InItsPrint(Tells):
    def __repr__(self) -> str:
        return f"Tells({self._total})"


class InItsLength(Tells):
    def __len__(self) -> int:
        return int(self._total > 1e4)


class InItsItems(Tells):
    def __iter__(self) -> Any:
        return iter([self._total])


class InAClosure(Tells):
    def observe(self, choice: int | None, /) -> None:
        super().observe(choice)
        total = self._total
        self.score_ = lambda: total


TOLD = [
    (InAnAttribute, "total_"),
    (ForAWhile, "total_"),
    (InAnInnerObject, r"history_\n  history_\['all'\]\[0\]\[1\]: "),
    (InAProperty, "total_"),
    (InAnError, "coef_"),
    (InItsPrint, r"repr\(\)"),
    (InItsLength, r"len\(\)"),
    (InItsItems, "iteration"),
    (InAClosure, "score_"),
]


@pytest.mark.parametrize(("learner", "what"), TOLD, ids=[x[0].__name__ for x in TOLD])
def test_whatever_can_be_read_beside_the_public_state_is_compared(learner: Any, what: str) -> None:
    """After each user, as it may be gone later."""
    with pytest.raises(InterferenceError) as caught:
        assert_noninterference(learner, *crowd_and_neighbour("large"))
    assert caught.match(f"public state depends on data beyond what was released: {what}")
    assert caught.match("as it was before user 8 came")


def test_an_attribute_that_only_some_data_bring_is_named() -> None:
    class Appears(WithoutPublicState):
        def select(self, features: Array, /) -> Items:
            if features.max() > 1e3:
                self.seen_ = ["something"]
            return super().select(features)

    pair = crowd_and_neighbour("large")
    for data, neighbour in (pair, pair[::-1]):
        with pytest.raises(InterferenceError, match=r"released: seen_\n.*no such attribute"):
            assert_noninterference(Appears, data, neighbour)


def test_what_a_learner_inside_another_one_declares_is_listed_too() -> None:
    class Inner:
        operator_only = frozenset({"total_", "never_there_"})
        total_ = 0.0

        def public_state(self) -> dict[str, Any]:
            return {}

    class Outer(WithoutPublicState):
        def __init__(self, accountant: Accountant[Any]) -> None:
            super().__init__(accountant)
            self.inner_ = Inner()

        def select(self, features: Array, /) -> Items:
            self.inner_.total_ += float(features.max())
            return super().select(features)

    found = assert_noninterference(Outer, *crowd_and_neighbour("large"))
    (name,) = found.operator_only
    assert name.endswith("Inner.total_")


def test_what_a_class_declares_to_be_the_operators_is_left_out_and_listed() -> None:
    class Declares(InAnAttribute):
        operator_only = frozenset({"total_", "never_there_"})

    class Inherits(Declares):
        operator_only = frozenset({"other_"})
        other_ = 0

    pair = crowd_and_neighbour("large")
    assert assert_noninterference(Declares, *pair).operator_only == ("total_",)
    assert assert_noninterference(Inherits, *pair).operator_only == ("other_", "total_")
    assert assert_noninterference(Honest, *pair).operator_only == ()
    (shop,) = generated_pairs(1)
    assert "private_messages_" in assert_noninterference(shipped(), *shop).operator_only

    def declared_by_an_instance(accountant: Accountant[Any]) -> Any:
        learner = InAnAttribute(accountant)
        learner.operator_only = frozenset({"total_"})  # type: ignore[attr-defined]
        return learner

    with pytest.raises(InterferenceError, match="total_"):
        assert_noninterference(declared_by_an_instance, *pair)


def test_nothing_is_concluded_where_looking_changes_a_learner_or_does_not_end() -> None:
    class Iterator(Honest):
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

    class Endless(Honest):
        def __iter__(self) -> Any:
            return count()

    for learner, why in ((Iterator, "changes it"), (Endless, "did not end after 100,000 items")):
        with pytest.raises(CheckError, match=f"nothing can be concluded, .*{why}"):
            assert_noninterference(learner, *crowd_and_neighbour("large"))


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("exploration", [0.0, 3.0])
def test_the_learners_policy_is_row_local(seed: int, shuffled: bool, exploration: float) -> None:
    belief = Belief(np.random.default_rng(seed).normal(size=DIM), 3 * np.eye(DIM))

    def policy(own: Arrival) -> Items:
        return optimistic_items(
            own, belief, max_items=SHOWN, exploration=exploration, scale=1.0, shuffled=shuffled
        )

    check_row_local(policy, arrivals(seed, 7), arrivals(seed + 1, 1))


@pytest.mark.parametrize("seed", range(2))
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
