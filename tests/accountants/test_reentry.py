"""Whoever comes in half-way, in a signal handler or a callback, gets nothing beyond the cap.

Every test runs a call again and again and comes in at its first line, its second, and so on, with
another call of the same objects, or with an exception.
"""

from __future__ import annotations

import copy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from grids import thinned
from reaching import far_ahead
from stepping import stepped

from privlearn.accountants import (
    CentralAccountant,
    JointAccountant,
    LocalAccountant,
    account_log,
    accountant,
    delegated,
    filters,
    local,
    opening,
    token_entries,
)
from privlearn.accountants.audit import certify
from privlearn.accountants.filters import Filter, Odometer
from privlearn.contract import billboard, tokens
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Plan
from privlearn.contract.receipts import Receipt
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    InsufficientBudgetError,
    LedgerError,
    PrivlearnError,
    ReentryError,
    UsersError,
)
from privlearn.ledger import (
    Ledger,
    entry_log,
    file_store,
    kept_heads,
    last_record,
    open_ledger,
    read_records,
)
from privlearn.ledger.entries import RetireEntry
from privlearn.ledger.values import digest_of
from privlearn.losses import FailingLoss, GaussianLoss, Loss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    BatchedPrefixSum,
    BinaryTree,
    CrossPolytope,
    NoisyMaxStream,
    PrefixSum,
    prefix_sums,
    receipt_stream,
)
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.storage import exclusive
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency

USERS = range(4)
WHOLE = Spend("probe", Ball(1.0, 2), GaussianNoise(2**0.5))  # (2/√2)²/2 = 1
LOSS = WHOLE.loss(Adjacency.REPLACE_ONE)
CAP = ZCDP("1.0001")  # √2 is a float
LEDGER = open_ledger, entry_log, kept_heads, last_record
MODULES = (
    *LEDGER,
    account_log,
    accountant,
    opening,
    delegated,
    local,
    file_store,
    token_entries,
    tokens,
    exclusive,
)


class Case:
    """One accountant whose cap holds one `WHOLE`, and all the receipts that it gave."""

    def __init__(self, book: Ledger | None = None) -> None:
        self.book = Ledger.memory() if book is None else book
        self.accountant: CentralAccountant[ZCDP] = CentralAccountant(
            CAP, users=USERS, ledger=self.book, noise=NoiseSource.simulation(0), shared=True
        )
        self.receipts: list[Receipt] = []
        self.refused: list[PrivlearnError] = []

    def take(self, token: Token[ZCDP]) -> None:
        self.receipts.append(token.spend(WHOLE))

    def issue(self) -> None:
        self.take(self.accountant.issue(LOSS, users=USERS, label="probe"))

    def reserve_little(self) -> None:
        self.accountant.issue(ZCDP("0.001"), users=USERS, label="little")

    def delegate(self) -> None:
        part = self.accountant.delegate(CAP, users=USERS, label="part")
        self.take(part.issue(LOSS, users=USERS, label="probe"))

    def trying(self, act: Callable[[], object]) -> Callable[[], None]:
        def attempt() -> None:
            try:
                act()
            except PrivlearnError as error:
                self.refused.append(error)

        return attempt


Prepared = tuple[Callable[[], object], Callable[[], object]]


def issuing(case: Case) -> Prepared:
    return case.issue, case.issue


def issuing_over_delegating(case: Case) -> Prepared:
    return case.delegate, case.issue


def delegating_over_issuing(case: Case) -> Prepared:
    return case.issue, case.delegate


def spending_a_token_twice(case: Case) -> Prepared:
    token = case.accountant.issue(LOSS, users=USERS, label="probe")
    return (lambda: case.take(token)), (lambda: case.take(token))


def spending_what_is_handed_back(case: Case) -> Prepared:
    token = case.accountant.issue(LOSS, users=USERS, label="probe")

    def hand_back() -> None:
        token.retire()
        case.issue()

    return hand_back, lambda: case.take(token)


def issuing_beside_a_plan(case: Case) -> Prepared:
    def planned() -> None:
        case.accountant.commit([Plan("probe", LOSS, USERS)])
        case.issue()

    return planned, case.issue


def issuing_while_closing(case: Case) -> Prepared:
    case.accountant.issue(LOSS, users=USERS, label="probe")
    return case.accountant.close, case.issue


def a_part_while_it_is_given_back(case: Case) -> Prepared:
    part = case.accountant.delegate(CAP, users=USERS, label="part")

    def give_back() -> None:
        part.close()
        case.issue()

    return give_back, lambda: case.take(part.issue(LOSS, users=USERS, label="probe"))


def the_old_one_while_another_resumes(case: Case) -> Prepared:
    def resumes() -> None:
        again: CentralAccountant[ZCDP] = CentralAccountant.resume(
            case.book, noise=NoiseSource.simulation(0), accountant=case.accountant.id
        )
        case.take(again.issue(LOSS, users=USERS, label="probe"))

    return resumes, case.issue


CASES = [
    issuing,
    issuing_over_delegating,
    delegating_over_issuing,
    spending_a_token_twice,
    spending_what_is_handed_back,
    issuing_beside_a_plan,
    issuing_while_closing,
    a_part_while_it_is_given_back,
    the_old_one_while_another_resumes,
]


def intruded(prepare: Callable[[Case], Prepared]) -> Iterator[Case]:
    """The same case with an intruder at each of its lines."""
    step, more = 0, True
    while more:
        step += 1
        case = Case()
        act, intrude = prepare(case)
        more = stepped(case.trying(act), case.trying(intrude), step, MODULES)
        yield case


def problems(cases: list[Case]) -> list[str]:
    """What an audit finds in any ledger; of those that hold the same entries it reads one."""
    alike = {tuple(type(entry) for entry in case.book.entries): case.book for case in cases}
    return [problem for book in alike.values() for problem in certify(book.records).problems]


@pytest.mark.parametrize("prepare", thinned(CASES))
def test_a_call_from_inside_gets_nothing_beyond_the_cap(
    prepare: Callable[[Case], Prepared],
) -> None:
    cases = list(intruded(prepare))
    assert len(cases) > 50
    for case in cases:
        assert len(case.receipts) <= 1
        assert CAP.covers(case.accountant.spent())
    assert problems(cases) == []
    assert any(isinstance(error, ReentryError) for case in cases for error in case.refused)
    # one of the two was given what the other was not
    most = sum(len(case.receipts) == 1 for case in cases)
    assert most > len(cases) / 2 or prepare is issuing_while_closing


@pytest.mark.parametrize("prepare", [issuing, issuing_over_delegating])
def test_the_stepping_sees_a_lock_that_lets_its_own_thread_in(
    prepare: Callable[[Case], Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: a reentrant lock, as it was."""
    monkeypatch.setattr(Exclusive, "__enter__", lambda self: self._acquire())
    cases = list(intruded(prepare))
    assert any(len(case.receipts) > 1 for case in cases)
    assert problems(cases) != []


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_two_accountants_of_one_ledger_do_not_write_into_each_others_entries(
    kind: str, tmp_path: Path
) -> None:
    book = Ledger.memory() if kind == "memory" else Ledger.create(tmp_path / "ledger.db")
    first, second = Case(book), Case(book)
    step, more = 0, True
    while more:
        step += 1
        act, intrude = (case.trying(case.reserve_little) for case in (first, second))
        more = stepped(act, intrude, step, LEDGER)
    assert first.refused == []
    assert {type(error) for error in second.refused} == {ReentryError}
    issued = [len(case.accountant._state.accounts) for case in (first, second)]
    # one line runs before the ledger is held: what comes in there is written whole, before
    assert issued == [step, 1]
    assert len(second.refused) == step - 1 - 1
    written = book.records if kind == "memory" else read_records(tmp_path / "ledger.db")
    assert certify(written).problems == []
    book.close()


class Timeout(Exception):
    """What a handler of alarms raises."""


def ends() -> None:
    raise Timeout


def test_an_exception_at_any_line_loses_budget_at_most() -> None:
    """What may stand in the ledger is never taken for unspent."""
    step, more, interrupted, cases = 0, True, 0, list[Case]()
    while more:
        step += 1
        case = Case()
        cases.append(case)
        with suppress(Timeout):
            more = stepped(case.issue, ends, step, MODULES)
        for _ in range(2):
            case.trying(case.issue)()
        interrupted += any("half-way" in str(error) for error in case.refused)
        with suppress(LedgerError):  # the ledger in memory is in doubt
            again: CentralAccountant[ZCDP] = CentralAccountant.resume(
                case.book, noise=NoiseSource.simulation(0)
            )
            case.accountant = again
            case.trying(case.issue)()
        assert len(case.receipts) <= 1
    assert problems(cases) == []
    assert step > 100
    assert interrupted > 10


def test_after_an_exception_a_file_holds_what_its_ledger_says_or_takes_no_more(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    opened = Case(Ledger.memory()).book.entries[0]
    step, more, doubted = 0, True, 0
    while more:
        step += 1
        with suppress(Timeout):
            more = stepped(lambda: book.append(opened), ends, step, LEDGER)  # noqa: B023
        if book.log.doubtful is not None:
            doubted += 1
            with pytest.raises(LedgerError, match="open the ledger again"):
                book.append(opened)
            book.close()
            book = Ledger.open(path)
        assert read_records(path) == book.records
    assert step > 40
    assert doubted > 1
    book.close()


def interrupt() -> None:
    raise KeyboardInterrupt


STREAM = PrefixSum(Ball(1.0, 2), BinaryTree(4), 10.0)


def publishing(path: Path, left: list[str], step: int) -> bool:
    """A stream that is interrupted before the ``step``-th line; the process then ends."""
    first: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(10), users=USERS, ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    )
    first.record_learner("Own", {}, {})  # without a learner there is no replay
    stream = STREAM.open(first.issue(STREAM.loss(), users=USERS, label="sum"))

    def act() -> None:
        users = range(stream._next, stream._next + 2)
        left.append(stream.append(Rows.seal(np.ones((2, 2)), users=users)).digest)

    more = True
    with suppress(KeyboardInterrupt):
        more = stepped(act, interrupt, step, [*MODULES, receipt_stream, prefix_sums])
    with suppress(PrivlearnError):  # it may be open still
        act()
    assert first.ledger._disk is not None
    first.ledger._disk._end()
    return more


def left_again(path: Path) -> tuple[list[str], list[str]]:
    """How its token ended, and which values the next process has of it, as they are in the file."""
    with Ledger.open(path) as book:
        second: CentralAccountant[Any] = CentralAccountant.resume(
            book, noise=NoiseSource.simulation(0)
        )
        ends: list[str] = [e.outcome for e in book.entries if isinstance(e, RetireEntry)]
        values = [digest_of(found.value) for found in second.released("sum")]
        assert not certify(book.records).problems
    return ends, values


def test_an_interrupt_at_any_line_of_a_stream_lets_nothing_out_that_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every third; all of them take three times as long."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    far_ahead(monkeypatch)
    step, more = 1, True
    while more:
        step += 3
        left = list[str]()
        more = publishing(tmp_path / f"{step}.db", left, step)
        ends, again = left_again(tmp_path / f"{step}.db")
        assert ends == ["lost"], "an interrupt depends on no row"
        recorded = iter(again)
        assert all(digest in recorded for digest in left)
        assert len(again) - len(left) <= 1, "recorded, and interrupted before it left"
    assert step > 100


def test_a_real_signal_between_check_and_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    check = case.accountant._state.check

    def interrupted(entry: Any, *rest: Any) -> Any:
        found = check(entry, *rest)
        signal.raise_signal(signal.SIGUSR1)
        return found

    monkeypatch.setattr(case.accountant._state, "check", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: case.trying(case.issue)())
    try:
        case.delegate()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(case.receipts) == 1
    assert {type(error) for error in case.refused} == {ReentryError}


def test_attestations_are_counted_one_after_the_other() -> None:
    step, more = 0, True
    while more:
        step += 1
        server: LocalAccountant[ZCDP] = LocalAccountant(
            CAP, users=USERS, noise=NoiseSource.simulation(0), attested=True
        )
        done: list[int] = []

        def attest(server: LocalAccountant[ZCDP] = server, done: list[int] = done) -> None:
            with suppress(PrivlearnError):
                server.attest(
                    LOSS, users=USERS, most_messages=1, count=4, by="app 1", mechanism="sum"
                )
                done.append(1)

        more = stepped(attest, attest, step, MODULES)
        assert done == [1]
        assert certify(server.ledger.records).problems == []


# Filters and odometers ---------------------------------------------------------------------------


Meter = Filter[ZCDP] | Odometer


def meter(kind: str) -> Meter:
    """Something that has room for one `HALF` and no second one."""
    return Filter(ZCDP(1)) if kind == "filter" else Odometer("0.01", failure="0.5")


def half(kind: str) -> Loss:
    return (
        GaussianLoss("1.5")
        if kind == "filter"
        else FailingLoss(GaussianLoss("0.1"), Fraction(1, 3))
    )


def counted(kind: str, found: Meter) -> bool:
    """Whether exactly one was counted."""
    if isinstance(found, Filter):
        return found.spent == ZCDP("0.75")
    one = Odometer("0.01", failure="0.5")
    one.spend(half(kind))
    return found.bound == one.bound


def spent_by_two(kind: str, second: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """How many of two spends were let through, the second begun at each line of the first."""
    step, more = 0, True
    while more:
        step += 1
        found, loss, done = meter(kind), half(kind), list[int]()

        def spend(found: Meter = found, loss: Loss = loss, done: list[int] = done) -> None:
            with suppress(InsufficientBudgetError, ReentryError):
                found.spend(loss)
                done.append(1)

        def intrude(spend: Callable[[], None] = spend) -> None:
            second(spend)

        more = stepped(spend, intrude, step, [filters, exclusive])
        wait_for_threads()
        assert counted(kind, found) or len(done) > 1
        yield len(done)


def inside(spend: Callable[[], None]) -> None:
    """As a signal handler."""
    spend()


def unlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No locks at all."""
    monkeypatch.setattr(Exclusive, "__enter__", lambda self: None)
    free = property(lambda self: lambda *_: None, lambda self, bound: None)
    monkeypatch.setattr(Exclusive, "__exit__", free)


_THREADS: list[threading.Thread] = []


def beside(spend: Callable[[], None]) -> None:
    """In another thread, until that is done or stands before the lock."""
    there = threading.Event()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == exclusive.__file__:
            there.set()
        return None

    def run() -> None:
        sys.settrace(trace)
        try:
            spend()
        finally:
            sys.settrace(None)
            there.set()

    _THREADS.append(threading.Thread(target=run))
    _THREADS[-1].start()
    assert there.wait(60)


def wait_for_threads() -> None:
    while _THREADS:
        _THREADS.pop().join()


@pytest.mark.parametrize("kind", ["filter", "odometer"])
@pytest.mark.parametrize("second", [inside, beside])
def test_what_is_counted_one_after_the_other_stays_under_the_cap(
    kind: str, second: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = list(spent_by_two(kind, second))
    assert set(good) == {1}
    assert len(good) > 10
    # the defect: look, and then set, without a lock
    unlock(monkeypatch)
    assert set(spent_by_two(kind, second)) == {1, 2}


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("second", [inside, beside])
def test_a_user_is_served_once(
    broken: bool,
    second: Callable[[Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if broken:
        unlock(monkeypatch)
    step, more, served = 0, True, set[int]()
    while more:
        step += 1
        joint = JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))
        board, done = Billboard(joint, USERS), list[Rows[Any]]()

        def serve(board: Billboard = board, done: list[Rows[Any]] = done) -> None:
            with suppress(UsersError, ReentryError):
                done.append(board.skip(range(1)))

        def intrude(serve: Callable[[], None] = serve) -> None:
            second(serve)

        more = stepped(serve, intrude, step, [billboard, exclusive])
        wait_for_threads()
        served.add(len(done))
    assert served == ({1, 2} if broken else {1})


def things_with_a_lock() -> Iterator[tuple[Exclusive, Callable[[], object]]]:
    """The lock of one of each, and a call that takes it."""
    case = Case()
    token = case.accountant.issue(ZCDP("0.001"), users=USERS, label="x")
    yield token._lock, token.retire
    noise = NoiseSource.simulation(0)
    pool = noise.pool()
    yield pool._lock, lambda: pool.floors("normal", 1)
    account = CentralAccountant(ZCDP(99), users=USERS, noise=noise)
    rows = Rows.seal(np.zeros((4, 2)), users=USERS)
    for mechanism in (
        PrefixSum(Ball(1.0, 2), BinaryTree(4), 9.0),
        BatchedPrefixSum(Ball(1.0, 2), (2, 2), BinaryTree(2), 9.0),
    ):
        stream = mechanism.open(account.issue(mechanism.loss(), users=USERS, label="sums"))
        yield stream._lock, partial(stream.append, rows.slice(range(2)))
    picking = NoisyMaxStream(CrossPolytope(2), 1.0, 9.0, 4)
    picks = picking.open(account.issue(picking.loss(), users=USERS, label="picks"))
    yield picks._lock, lambda: picks.append(rows)


def test_a_call_from_inside_is_refused_and_does_not_wait_for_itself() -> None:
    """The defect: a plain lock, under which a signal handler hangs for ever."""
    seen = 0
    for lock, call in things_with_a_lock():
        with lock, pytest.raises(ReentryError, match="was called from inside an unfinished"):
            call()
        call()  # nothing has happened yet
        seen += 1
    assert seen == 5


def test_a_copy_of_a_filter_is_held_by_nobody() -> None:
    found = Filter(ZCDP(1))
    with found._lock:
        other = copy.deepcopy(found)
    other.spend(GaussianLoss(1))
    assert (found.spent, other.spent) == (ZCDP(0), ZCDP("0.5"))
