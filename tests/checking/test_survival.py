"""`assert_survives`: learners that go on pass, and each way of not going on is found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from privlearn import Ball, Rows
from privlearn.accountants import CentralAccountant
from privlearn.checking import Survival, assert_survives, generated_pairs
from privlearn.checking.replay.protocols import examples, pulled
from privlearn.contract.protocols import Plan
from privlearn.errors import BudgetError, CheckError, SurvivalError
from privlearn.learners import (
    DPMNL,
    DPTOFW,
    OnePassNewtonMNL,
    PrivateArms,
    PrivateExperts,
    PrivateTest,
)
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array

USERS, SIZE, DIM = 40, 8, 2
DATA = list(np.random.default_rng(0).normal(size=(USERS, DIM)))


class Totals:
    """The sum of all rows, by a noisy sum of each block; goes on from its ledger."""

    mechanism = NoisySum(Ball(1.0, DIM), GaussianNoise(4.0))

    def __init__(self, accountant: Any) -> None:
        self.accountant = accountant
        held = accountant.held("block", accountant.users)
        self.clock_ = max((users.stop for users in held), default=0)
        self.total_ = np.zeros(DIM)
        for recorded in accountant.released("block"):
            self.total_ = self.total_ + recorded.value
        self.pending: list[Array] = []

    def learn(self, row: Array) -> None:
        self.pending.append(row)
        self.clock_ += 1
        if len(self.pending) == SIZE:
            self.release(range(self.clock_ - SIZE, self.clock_))
            self.pending = []

    def release(self, users: range) -> None:
        rows = Rows.seal(np.array(self.pending), users=users)
        token = self.accountant.issue(self.mechanism.loss(), users=users, label="block")
        self.total_ = self.total_ + self.mechanism.release(rows, token).value


def online(learner: Any, rows: Iterable[Array]) -> Iterator[Array]:
    for row in rows:
        yield learner.total_
        learner.learn(row)


def survives(learner: Callable[[Any], Any], deaths: int = 9) -> Survival:
    return assert_survives(
        learner,
        DATA,
        learned=lambda learner: learner.total_,
        protocol=online,
        accountant=CentralAccountant,
        deaths=deaths,
    )


def test_a_learner_that_goes_on_from_its_ledger_passes() -> None:
    found = survives(Totals)
    # a death costs at most the open block: its users come again, or their spend was lost
    assert (found.users, found.again, found.passed) == (USERS, SIZE, 0)
    assert 4 <= found.deaths <= 9
    assert found.compared == found.deaths


# Streams ------------------------------------------------------------------------------------------


class Sums(Totals):
    """The sum of all rows, by a planned stream and, after a death, by one more."""

    mechanism: Any = PrefixSum.calibrated(Ball(1.0, DIM), ZCDP(1), horizon=USERS)

    def __init__(self, accountant: Any) -> None:
        self.accountant, everybody = accountant, accountant.users
        accountant.commit([Plan("sums", self.mechanism.loss(), everybody)])
        self.before = self.now = np.zeros(DIM)
        first = None
        for recorded in accountant.released("sums"):
            if first != recorded.users.start:
                first, self.before = recorded.users.start, self.before + self.now
            self.now = recorded.value[-1]
        self.before, self.now = self.before + self.now, np.zeros(DIM)
        self.left = accountant.rest("sums", everybody) or range(USERS, USERS)
        self.clock_ = self.left.start
        self.stream: Any = None

    @property
    def total_(self) -> Array:
        return self.before + self.now

    @total_.setter
    def total_(self, value: Array) -> None: ...

    def learn(self, row: Array) -> None:
        users = range(self.clock_, self.clock_ + 1)
        if self.stream is None:
            own = self.mechanism.for_last(self.left)
            token = self.accountant.issue(own.loss(), users=self.left, label="sums")
            self.stream = own.open(token)
        self.now = self.stream.append(Rows.seal(row[None], users=users)).value[-1]
        self.clock_ += 1


def test_a_stream_that_is_followed_by_another_passes() -> None:
    found = survives(Sums, deaths=5)
    assert found.compared == found.deaths
    assert found.passed > 0  # whom the stream had said that it comes to


class BeganAnew(Sums):
    """Forgets what the stream released that died."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.before = np.zeros(DIM)


# Faults -------------------------------------------------------------------------------------------


class Amnesiac(Totals):
    """Never looks at what was released."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.total_ = np.zeros(DIM)


class Forgetful(Totals):
    """Takes the users whose spend was lost for users that were learned from, at the last value."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        recorded = accountant.released("block")
        missed = self.clock_ // SIZE - len(recorded)
        for _ in range(missed if recorded else 0):
            self.total_ = self.total_ + recorded[-1].value


class FromTheStart(Totals):
    """Begins with user 0 again."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.clock_ = 0


class OneTooFew(Totals):
    """Is off by one user."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.clock_ = max(0, self.clock_ - 1)


class OneTooMany(Totals):
    """Passes over a user who had not come."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.clock_ += accountant.resumed


class Eager(Totals):
    """Releases something at once when it is resumed, for users who have not come."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        if accountant.resumed and self.clock_ + SIZE <= USERS:
            users = range(self.clock_, self.clock_ + SIZE)
            token = accountant.issue(self.mechanism.loss(), users=users, label="block")
            self.mechanism.release(Rows.null(users), token)


class PaysTwice(Totals):
    """Releases once more what its ledger holds, when the next block is full."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.resumed, self.first = accountant.resumed, self.clock_

    def release(self, users: range) -> None:
        super().release(users)
        if self.resumed and self.first >= SIZE:
            self.resumed = False
            again = range(self.first - SIZE, self.first)
            token = self.accountant.issue(self.mechanism.loss(), users=again, label="block")
            self.mechanism.release(Rows.null(again), token)


_KEPT: dict[str, Any] = {}


class KeepsState(Totals):
    """Keeps its total in a global variable, as others do in a file."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        if accountant.resumed:
            self.total_ = _KEPT["total"]

    def release(self, users: range) -> None:
        super().release(users)
        _KEPT["total"] = self.total_


class KeepsRows(Totals):
    """Keeps the rows of the open block besides the ledger, and the clock with them."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        if accountant.resumed:
            self.pending, self.clock_ = list(_KEPT["rows"]), _KEPT["clock"]

    def learn(self, row: Array) -> None:
        super().learn(row)
        if not self.accountant.resumed:
            _KEPT["rows"], _KEPT["clock"] = list(self.pending), self.clock_


class CoinsOfTime(Totals):
    """Adds public coins to what it shows, drawn from the time of its start."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.coins = np.random.default_rng(int(time.time()))

    def learn(self, row: Array) -> None:
        super().learn(row if self.coins.random() < 0.5 else -row)


class CoinsOfTheSystem(CoinsOfTime):
    """The same, drawn from the system."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self.coins = np.random.default_rng()


class GivesUp(Totals):
    """Cannot be resumed in the middle of a step, as it takes for granted that all have an end."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        if self.clock_ != SIZE * len(accountant.released("block")):
            raise BudgetError("a block was spent and not released")


class CommitsAnother(Totals):
    """Commits a plan that depends on how often it was started."""

    started = 0

    def __init__(self, accountant: Any) -> None:
        type(self).started += 1
        blocks = [range(start, start + SIZE) for start in range(0, USERS, SIZE)]
        loss = NoisySum(Ball(1.0, DIM), GaussianNoise(4.0 + type(self).started)).loss()
        accountant.commit([Plan("block", loss, users) for users in blocks])
        self.mechanism = NoisySum(Ball(1.0, DIM), GaussianNoise(4.0 + type(self).started))
        super().__init__(accountant)


FAULTS: list[tuple[type[Totals], str]] = [
    (Amnesiac, "has not learned what it had learned"),
    (BeganAnew, "has not learned what it had learned"),
    (Forgetful, "has not learned what it had learned"),
    (FromTheStart, "clock_ is 0: user .*, whose row was in a value that left, is to come again"),
    (OneTooFew, "clock_ is 31: user 31, whose row was in a value that left, is to come again"),
    (OneTooMany, "user .*, who had not come and is in no spend that was lost, is passed over"),
    (Eager, "spends 1 tokens before anybody has come"),
    (PaysTwice, "pays 2 times for 'block' of user .*, and without a death 1 times"),
    (KeepsState, "has not learned what it had learned"),
    (KeepsRows, "user .*, who had not come .*, is passed over"),
    (CoinsOfTime, "does not do the same when it is resumed twice"),
    (CoinsOfTheSystem, "does not do the same when it is resumed twice"),
    (GivesUp, "cannot go on: BudgetError"),
    (CommitsAnother, "cannot go on: BudgetError"),
]


@pytest.mark.parametrize(("learner", "said"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_learner_that_does_not_go_on_is_found(learner: type[Totals], said: str) -> None:
    with pytest.raises(SurvivalError, match=said) as found:
        survives(learner)
    assert "after a death behind entry" in str(found.value)


# What cannot be concluded -------------------------------------------------------------------------


def test_what_cannot_be_concluded_is_no_pass() -> None:
    class Broken(Totals):
        def release(self, users: range) -> None:
            raise ValueError("broken")

    class Idle(Totals):
        def learn(self, row: Array) -> None:
            self.clock_ += 1

    with pytest.raises(CheckError, match=r"fails without a death at user .* of .*: ValueError"):
        survives(Broken)
    with pytest.raises(CheckError, match="released nothing on these users"):
        survives(Idle)
    with pytest.raises(CheckError, match="learned: is the same at all times"):
        assert_survives(
            Totals,
            DATA,
            learned=lambda learner: 0,
            protocol=online,
            accountant=CentralAccountant,
        )
    with pytest.raises(ValueError, match="deaths = 1"):
        survives(Totals, deaths=1)


# Learners of the package --------------------------------------------------------------------------


def test_learners_of_the_package_pass() -> None:
    users, _ = next(iter(generated_pairs(1, users=40, n_items=4, dim=2)))
    market: dict[str, Any] = {"n_items": 4, "dim": 2, "max_items": 2}
    newton = partial(OnePassNewtonMNL, **market, first_batch=10)
    found = assert_survives(
        lambda accountant: newton().start(accountant),
        users,
        learned=lambda learner: (learner.theta_, learner.precision_),
        deaths=3,
    )
    assert found.compared
    found = assert_survives(
        lambda accountant: DPMNL(**market, initial_rounds=10).start(accountant),
        users,
        learned=lambda learner: (learner.theta_, learner.gram_),
        deaths=3,
    )
    assert found.compared
    found = assert_survives(
        lambda accountant: DPTOFW(dim=8, method="plain").start(accountant),
        users,
        learned=lambda learner: learner.coef_,
        protocol=examples(),
        accountant=CentralAccountant,
        deaths=3,
    )
    assert found.compared


@pytest.mark.parametrize(
    ("make", "users", "learned", "losses"),
    [
        (partial(PrivateArms, 3, first_phase=3), 50, lambda arms: arms.means_, None),
        (partial(PrivateTest, random_state=3), 110, lambda test: test.e_value_, None),
        (partial(PrivateExperts, 3, first_block=10), 50, lambda experts: experts.redraws_, 3),
    ],
)
def test_arms_tests_and_experts_survive(
    make: Callable[[], Any], users: int, learned: Callable[[Any], Any], losses: int | None
) -> None:
    (data, _), *_ = generated_pairs(1, 2, n_items=3, dim=2, users=users)
    found = assert_survives(
        lambda accountant: make().start(accountant),
        data,
        learned=learned,
        protocol=pulled(contexts=False, losses=losses),
        deaths=5,
    )
    assert found.compared > 1
