"""One account of several processes: each entry is checked against all that stand before it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from shared_ledgers import MemoryStore, Place

from privlearn import NoiseSource, Rows
from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.state import AccountState, Checked
from privlearn.accountants.turn_lock import News
from privlearn.errors import (
    InsufficientBudgetError,
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerUnreadableError,
    PrivlearnError,
)
from privlearn.ledger import Ledger, Record
from privlearn.ledger.chain import Chain
from privlearn.ledger.entry_log import AccountIndex
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball

USERS = range(10)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
"""ρ = 2/20² = 1/200 for one that replaces."""
NOISE = NoiseSource.simulation


def begun(place: Place, cap: str = "1/20") -> CentralAccountant[ZCDP]:
    ledger = Ledger.over(place.open())
    return CentralAccountant(ZCDP(cap), users=USERS, ledger=ledger, noise=NOISE(0))


def joined(place: Place, seed: int = 1) -> CentralAccountant[ZCDP]:
    return CentralAccountant[ZCDP].join(Ledger.over(MemoryStore(place)), noise=NOISE(seed))


def run(accountant: CentralAccountant[ZCDP], label: str = "sum") -> Any:
    token = accountant.issue(SUM.loss(), users=USERS, label=label)
    return SUM.release(Rows.seal(np.ones((10, 2)), users=USERS), token)


def problems(place: Place) -> list[str]:
    return list(certify(place.records).problems)


def test_two_processes_spend_from_one_cap() -> None:
    place = Place()
    one = begun(place)
    other = joined(place)
    for _ in range(5):
        run(one)
        run(other)
    assert one.remaining() == other.remaining() == ZCDP(0)
    for each in (one, other):
        with pytest.raises(InsufficientBudgetError):
            run(each)
    assert problems(place) == []
    assert certify(place.records).spends == 10


def test_many_threads_of_four_processes_never_overspend() -> None:
    place = Place()
    members = [begun(place), *(joined(place, seed) for seed in range(1, 4))]

    def work(member: CentralAccountant[ZCDP]) -> int:
        paid = 0
        for _ in range(6):
            try:
                run(member)
                paid += 1
            except InsufficientBudgetError:
                pass
        return paid

    with ThreadPoolExecutor(8) as pool:
        paid = sum(pool.map(work, members * 2))
    assert paid == 10
    assert problems(place) == []
    assert certify(place.records).spends == 10


def test_who_does_not_look_overspends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant: a process that checks against what it knew."""
    place = Place()
    one, other = begun(place), joined(place)
    monkeypatch.setattr(other._log, "catch_up", lambda orphans: None)
    other._lock._catch_up = lambda orphans: None  # type: ignore[union-attr]
    run(one)
    with pytest.raises(LedgerBusyError):  # the ledger counts, too
        run(other)


def test_a_process_of_an_earlier_epoch_neither_spends_nor_releases() -> None:
    place = Place()
    one = begun(place)
    token = one.issue(SUM.loss(), users=USERS, label="early")
    left: list[object] = []
    half = joined(place)
    store: Any = half.ledger._shared

    def fence(record: Record) -> None:
        if record.body["entry"] == "retire":
            place.open()
            store.check()

    store.before_write = fence
    with pytest.raises(LedgerFencedError):  # between its spend and its release
        left.append(run(half))
    assert left == []
    with pytest.raises(LedgerFencedError):
        SUM.release(Rows.seal(np.ones((10, 2)), users=USERS), token)
    with pytest.raises(LedgerFencedError):
        one.issue(SUM.loss(), users=USERS, label="late")
    resumed = CentralAccountant[ZCDP].resume(Ledger.over(place.open()), noise=NOISE(9))
    assert [each.outcome for each in resumed._state.accounts.values()] == ["unused", "lost"]
    assert resumed.remaining() == ZCDP("9/200")
    assert problems(place) == []


def test_the_tokens_of_a_process_that_is_gone_are_ended_by_the_others() -> None:
    place = Place()
    one, other = begun(place), joined(place)
    other.issue(SUM.loss(), users=USERS, label="unspent")
    assert one.remaining() == ZCDP("9/200")
    other.ledger.close()
    assert one.remaining() == ZCDP("1/20")
    assert problems(place) == []


def test_an_account_is_resumed_by_one_process_alone() -> None:
    place = Place()
    one = begun(place)
    with pytest.raises(LedgerBusyError, match="another process"):
        CentralAccountant[ZCDP].resume(Ledger.over(MemoryStore(place)), noise=NOISE(2))
    one.ledger.close()
    again = CentralAccountant[ZCDP].resume(Ledger.over(MemoryStore(place)), noise=NOISE(2))
    run(again)
    assert problems(place) == []


def test_a_file_is_not_joined() -> None:
    with pytest.raises(LedgerError, match="has one process"):
        CentralAccountant[ZCDP].join(Ledger.memory())


def test_what_somebody_else_wrote_into_it_is_refused() -> None:
    place = Place()
    one, other = begun(place), joined(place)
    run(one)
    last = place.records[-1]
    place.records[-1] = Record(last.seq, last.body, "0" * 64, last.data, last.envelope)
    with pytest.raises(LedgerUnreadableError, match="somebody else"):
        run(other)
    with pytest.raises(PrivlearnError):
        run(other)


INTERRUPTED = {
    "the chain is followed": (Chain, "add"),
    "an entry is counted": (AccountIndex, "note"),
    "an entry is handed on": (News, "put"),
    "news are taken": (News, "take"),
    "an account is kept": (AccountState, "record"),
    "it is written": (MemoryStore, "write"),
}


@pytest.mark.parametrize("late", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("call", range(3))
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupt_leaves_a_process_that_knows_all_or_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, call: int, late: bool
) -> None:
    place = Place()
    one, other = begun(place), joined(place)
    for _ in range(5):
        run(other)  # so that there is something to take in
    kind, method = INTERRUPTED[name]
    real, calls = getattr(kind, method), iter(range(100))

    def interrupted(*arguments: Any) -> Any:
        if next(calls) != call:
            return real(*arguments)
        done = real(*arguments) if late else None
        raise KeyboardInterrupt(repr(done))

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, interrupted)
        with suppress(KeyboardInterrupt):
            run(one)
    assert next(calls) > call
    for each in (one, other, one):
        with suppress(PrivlearnError):
            for _ in range(11):
                run(each)
    found = certify(place.records)
    assert found.problems == []
    assert found.spends <= 10
    remaining = {other.remaining()}
    with suppress(LedgerError):
        remaining.add(one.remaining())
    assert len(remaining) == 1


def test_a_retry_goes_on_where_who_was_quicker_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    place, nonce = Place(), "ab" * 16
    one, other = begun(place), joined(place)
    issue = type(one).issue

    def slower(self: CentralAccountant[ZCDP], *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(type(one), "issue", issue)
        other.issue(SUM.loss(), users=USERS, label="sum", nonce=nonce).retire()
        return issue(self, *arguments, **named)

    monkeypatch.setattr(type(one), "issue", slower)
    rows = Rows.seal(np.ones((10, 2)), users=USERS)
    first = one.release_once(nonce, SUM, rows, users=USERS, label="sum")
    again = other.release_once(nonce, SUM, rows, users=USERS, label="sum")
    np.testing.assert_array_equal(first.value, again.value)
    assert certify(place.records).spends == 1


def test_an_entry_of_another_process_that_does_not_check_stops_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place()
    one, other = begun(place), joined(place)
    for _ in range(10):
        run(other)
    monkeypatch.setattr(other._state, "check", Checked)
    run(other)
    size = len(place.records)
    with pytest.raises(LedgerError, match=r"wrote an entry that does not check.*budget exceeded"):
        run(one)
    with pytest.raises(LedgerError, match="was not taken in whole"):
        one.remaining()
    assert len(place.records) == size
    assert len(problems(place)) == 1


def test_a_value_is_read_by_every_process() -> None:
    place = Place()
    one, other = begun(place), joined(place)
    released = run(one, "shared")
    (found,) = other.released("shared")
    np.testing.assert_array_equal(found.value, released.value)


def test_a_later_process_begins_with_all_that_stands() -> None:
    place = Place()
    one = begun(place)
    run(one)
    assert joined(place).spent() == ZCDP("1/200")
    with pytest.raises(LedgerError, match=r"not 1{64}"):
        Ledger.over(MemoryStore(place), head="1" * 64)
