"""A ledger file that one process owns, and others write to through it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn import NoiseSource, Rows
from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.accountants.accounts import Accounts
from privlearn.accountants.serving import default_socket, owning_ledger
from privlearn.accountants.state import Checked
from privlearn.errors import (
    BudgetError,
    InsufficientBudgetError,
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerHeadError,
    LocalSocketError,
    PrivlearnError,
)
from privlearn.learners import OnePassNewtonMNL
from privlearn.ledger import Ledger, Record, read_records
from privlearn.ledger.disk import Disk
from privlearn.ledger.entries import IssueEntry, PublishEntry, RetireEntry
from privlearn.ledger.entry_log import this_minute
from privlearn.ledger.open_ledger import Settling
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball
from privlearn.storage.sockets import Client

USERS = range(10)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
"""ρ = 1/200."""
Account = CentralAccountant[ZCDP]
NOISE = NoiseSource.simulation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def begun(path: Path, cap: str = "1/20") -> Account:
    ledger = Ledger.connect(default_socket(path))
    return CentralAccountant(ZCDP(cap), users=USERS, ledger=ledger, noise=NOISE(0))


def joined(path: Path, seed: int = 1) -> Account:
    return Account.join(Ledger.connect(default_socket(path)), noise=NOISE(seed))


def run(accountant: Account, label: str = "sum") -> Any:
    token = accountant.issue(SUM.loss(), users=USERS, label=label)
    return release(token)


def release(token: Any) -> Any:
    return SUM.release(Rows.seal(np.ones((10, 2)), users=USERS), token)


def store_of(accountant: Account) -> Any:
    return accountant.ledger._shared


def outcomes(path: Path) -> list[str]:
    return [r.body["outcome"] for r in read_records(path) if r.body["entry"] == "retire"]


def spends(path: Path) -> int:
    return sum(record.body["entry"] == "spend" for record in read_records(path))


def eventually(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@contextmanager
def owned(path: Path, **named: Any) -> Iterator[Path]:
    with owning_ledger(path, new=not path.exists(), **{"grace": 0, **named}) as socket:
        yield socket


# One cap ------------------------------------------------------------------------------------------


def test_processes_spend_from_one_cap_and_it_is_verified_afterwards(path: Path) -> None:
    with owned(path):
        one, other = begun(path), joined(path)
        for _ in range(5):
            run(one)
            run(other)
        assert one.remaining() == other.remaining() == ZCDP(0)
        for each in (one, other):
            with pytest.raises(InsufficientBudgetError):
                run(each)
    found = audit(path)
    assert (list(found.problems), found.spends) == ([], 10)


def test_threads_of_several_connections_never_overspend(path: Path) -> None:
    with owned(path):
        members = [begun(path), *(joined(path, seed) for seed in range(1, 4))]

        def work(member: Account) -> int:
            paid = 0
            for _ in range(3):
                try:
                    run(member)
                    paid += 1
                except InsufficientBudgetError:
                    pass
            return paid

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(work, members * 2)) == 10
    assert list(audit(path).problems) == []
    assert spends(path) == 10


def overspending(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a process spends that checks nothing itself."""
    one = begun(path)
    monkeypatch.setattr(one._state, "check", Checked)
    paid = 0
    for _ in range(14):
        try:
            token = one._issue(SUM.loss(), USERS, "sum", one.failure() * 0, None)
            release(token)
            paid += 1
        except BudgetError:
            pass
    return paid


def test_a_process_that_does_not_check_cannot_overspend(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owned(path):
        assert overspending(path, monkeypatch) == 10
    assert list(audit(path).problems) == []


def test_an_owner_that_cannot_follow_what_it_wrote_stops(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, left = Accounts.record, list[object]()

    def fails(self: Accounts, entry: Any) -> None:
        if entry.entry == "spend":
            raise MemoryError
        record(self, entry)

    def spends_on() -> None:
        with owned(path):
            one, other = begun(path), joined(path)
            monkeypatch.setattr(Accounts, "record", fails)
            for each in (one, other):
                with pytest.raises(LedgerError):
                    left.append(run(each))

    with pytest.raises(LedgerError, match=r"the owner of .* stops"):
        spends_on()
    assert left == []


def test_an_owner_that_does_not_check_is_caught(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken variant: what the test above tests is seen by an audit."""
    check = Accounts.check

    def only_opens(self: Accounts, entry: Any, minute: int) -> None:
        if entry.entry == "open":
            check(self, entry, minute)

    monkeypatch.setattr(Accounts, "check", only_opens)
    with owned(path):
        assert overspending(path, monkeypatch) == 14
    assert any("budget exceeded" in problem for problem in audit(path).problems)


BROKEN: dict[str, tuple[Callable[[Account], Any], str]] = {
    "a token of nobody": (
        lambda a: RetireEntry(accountant=a.id, token="nobody/1", outcome="unused"),
        "nobody/1",
    ),
    "a token twice": (lambda a: a_token(a, token=next(iter(a._state.accounts))), "issued"),
    "an account of nobody": (lambda a: a_token(a, accountant="12345678"), "was not opened"),
    "an account twice": (lambda a: a._state.opened, "was opened before"),
    "a budget above the cap": (
        lambda a: a_token(a, budget=ZCDP(1).to_dict()),
        "budget exceeded",
    ),
    "another currency": (lambda a: a_token(a, budget={"kind": "pure", "epsilon": "1"}), "Pure"),
    "users of nobody": (lambda a: a_token(a, users=(0, 11)), "11"),
}


def a_token(accountant: Account, /, **changed: Any) -> IssueEntry:
    fields = {
        "accountant": accountant.id,
        "token": f"{accountant.id}/99",
        "label": "x",
        "users": (0, 10),
        "budget": ZCDP("1/200").to_dict(),
    }
    return IssueEntry(**{**fields, **changed})


def wrote(accountant: Account, entry: Any, value: Any = None, **changed: Any) -> None:
    """Sends an entry to the owner as a process would that checks nothing."""
    ledger, store = accountant.ledger, store_of(accountant)
    with ledger.turn():
        record = ledger.log.tip.make(entry, this_minute(), None)
        store.write(replace(record, **changed), value)


@pytest.mark.parametrize("name", BROKEN)
def test_an_entry_that_does_not_check_is_not_written(path: Path, name: str) -> None:
    make, said = BROKEN[name]
    with owned(path):
        one = begun(path)
        one.issue(SUM.loss(), users=USERS, label="first")
        with pytest.raises(PrivlearnError, match=said):
            wrote(one, make(one))
        assert not store_of(one).doubtful
        run(one)  # and all goes on
    assert list(audit(path).problems) == []
    assert [r.body["entry"] for r in read_records(path)] == [
        "open",
        "issue",
        "issue",
        "spend",
        "retire",
        "retire",
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not of the form"),
        (b"\xff\x00garbage", "not of the form"),
        (b'{"body":{"entry":"issue"}}', "not of the form"),
        (b'{"body":{},"nonce":"' + b"0" * 32 + b'"}', "not of the form"),
        (b'{"body":{},"nonce":"../../../etc/passwd"}', "nonce"),
        (b'{"body":' + b"[" * 200 + b"]" * 200 + b"}", "nested"),
    ],
)
def test_what_is_no_entry_is_not_written(path: Path, data: bytes, said: str) -> None:
    with owned(path):
        one = begun(path)
        with pytest.raises(LedgerError, match=said):
            wrote(one, a_token(one), data=data)
        run(one)
    assert list(audit(path).problems) == []


def test_values_are_those_that_their_entries_state(path: Path) -> None:
    with owned(path):
        one, other = begun(path), joined(path)
        released = run(one, "shared")
        (found,) = other.released("shared")
        np.testing.assert_array_equal(found.value, released.value)
        token = one.issue(SUM.loss(), users=USERS, label="x")
        stated = PublishEntry(accountant=one.id, token=token.id, digest="0" * 64, upto=10)
        for value in (None, ("1" * 64, b"x"), ("0" * 64, b"no value")):
            with pytest.raises(LedgerError, match="nothing was recorded"):
                wrote(one, stated, value)


def test_large_values_come_whole(path: Path) -> None:
    many = NoisySum(Ball(1.0, 200_000, "l2"), GaussianNoise(20.0))
    with owned(path):
        one, other = begun(path), joined(path)
        token = one.issue(many.loss(), users=range(2), label="large")
        released = many.release(Rows.seal(np.zeros((2, 200_000)), users=range(2)), token)
        (found,) = other.released("large")
        np.testing.assert_array_equal(found.value, released.value)
    assert (path.parent / "ledger.db.values").is_dir()


def test_a_process_far_behind_takes_in_what_it_does_not_know_before_its_turn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privlearn.ledger.owner._BEHIND", 3)
    monkeypatch.setattr("privlearn.ledger.owner._PAGE", 2000)
    with owned(path):
        one, other = begun(path), joined(path)
        for _ in range(6):
            run(one)
        assert other.spent() == one.spent() == ZCDP("6/200")
        run(other)
    assert list(audit(path).problems) == []


def test_a_learner_goes_on_in_another_process_from_what_the_first_released(path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(300, 5, 3)) / 3

    def answers(own: Any, shown: Any) -> Any:
        return shown[:, 0]

    with owned(path):
        ledger = Ledger.connect(default_socket(path))
        account = JointAccountant(ZCDP(1), users=range(300), ledger=ledger)
        learner = OnePassNewtonMNL(n_items=5, dim=3).start(account)
        learner.play(features[:230], answers)
        with Ledger.connect(default_socket(path)) as beside:
            other = JointAccountant[ZCDP].join(beside)
            with pytest.raises(LedgerError, match="a learner belongs to one"):
                OnePassNewtonMNL(n_items=5, dim=3).start(other)
        ledger.close()
        again = JointAccountant[ZCDP].resume(Ledger.connect(default_socket(path)))
        later = OnePassNewtonMNL.resume(again)
        assert 230 <= later.clock_ <= 230 + 230 // 8
        later.play(features[later.clock_ :], answers)
        again.close()
    assert list(audit(path).problems) == []
    assert [r.body["entry"] for r in read_records(path)].count("close") == 1


def test_a_release_that_is_asked_for_again_is_that_of_the_first_process(path: Path) -> None:
    nonce = "0123456789abcdef" * 2
    rows = Rows.seal(np.ones((10, 2)), users=USERS)
    with owned(path):
        one, other = begun(path), joined(path)
        first = one.release_once(nonce, mechanism=SUM, rows=rows, users=USERS, label="once")
        one.ledger.close()
        again = other.release_once(nonce, mechanism=SUM, rows=rows, users=USERS, label="once")
        np.testing.assert_array_equal(first.value, again.value)
        assert other.spent() == ZCDP("1/200")
        with other.lease(SUM, runs=4, users=USERS, label="lease") as lease:
            for _ in range(4):
                lease.release(rows)
        assert other.spent() == ZCDP("5/200")
    assert list(audit(path).problems) == []


def test_who_asks_under_a_nonce_a_moment_later_has_the_value_of_the_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked before the other one's token stood."""
    nonce = "0123456789abcdef" * 2
    rows = Rows.seal(np.ones((10, 2)), users=USERS)
    with owned(path):
        one, other = begun(path), joined(path)
        looked = other._first_try
        first: list[Any] = []

        def looks(*asked: Any) -> Any:
            found = looked(*asked)
            if not first:
                first.append(one.release_once(nonce, SUM, rows, users=USERS, label="once"))
            return found

        monkeypatch.setattr(other, "_first_try", looks)
        again = other.release_once(nonce, SUM, rows, users=USERS, label="once")
        np.testing.assert_array_equal(first[0].value, again.value)
        assert other.spent() == ZCDP("1/200")


# Two owners ---------------------------------------------------------------------------------------


def test_a_second_owner_and_a_second_writer_are_refused_while_the_first_lives(path: Path) -> None:
    with owned(path) as socket:
        one = begun(path)
        with (
            pytest.raises(LedgerBusyError, match=r"ledger\.db is served by its owner"),
            owning_ledger(path, socket=path.parent / "other.sock"),
        ):
            pass
        link = path.parent / "another-name"
        link.symlink_to(path)
        with pytest.raises(LedgerBusyError), owning_ledger(link):
            pass
        with pytest.raises(LedgerBusyError, match="is served by its owner"):
            Ledger.open(path)  # from the owner's own process, too
        child = os.fork()
        if child == 0:
            try:
                Ledger.open(path)
                os._exit(3)
            except LedgerBusyError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        other = path.parent / "other.db"
        with (
            pytest.raises(LocalSocketError, match="is served by another process"),
            owning_ledger(other, new=True, socket=socket),
        ):
            pass
        run(one)
    with owned(path):
        run(joined(path))
    assert list(audit(path).problems) == []


def test_a_process_of_an_earlier_owner_neither_spends_nor_releases(path: Path) -> None:
    left: list[object] = []
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(owned(path))
        one = begun(path)
        token = one.issue(SUM.loss(), users=USERS, label="early")
        retire = one.issuer.record_retire

        def after_another_owner_came(*given: Any, **named: Any) -> None:
            first.close()
            second.enter_context(owned(path))
            retire(*given, **named)

        one.issuer.record_retire = after_another_owner_came  # type: ignore[method-assign]
        with pytest.raises(LedgerFencedError, match="opened anew, in epoch 2"):
            left.append(run(one))  # its spend stands, and its release does not
        refusals: list[Callable[[], object]] = [
            lambda: release(token),
            lambda: run(one),
            lambda: one.remaining(),
            one.ledger.check_own,
        ]
        for refused in refusals:
            with pytest.raises(LedgerFencedError, match="opened anew, in epoch 2"):
                refused()
        assert joined(path).remaining() == ZCDP("9/200")
    assert left == []
    assert outcomes(path) == ["unused", "lost"]
    assert list(audit(path).problems) == []


def test_a_process_that_hides_its_epoch_releases_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken variant: a client that takes a new owner for its own."""
    left: list[object] = []
    with owned(path):
        one = begun(path)
        token = one.issue(SUM.loss(), users=USERS, label="early")
        store = store_of(one)
    with owned(path):
        store._session, store.epoch = None, 0
        with pytest.raises(PrivlearnError):
            left.append(release(token))
    assert left == []
    assert spends(path) == 0
    assert list(audit(path).problems) == []


# Turns --------------------------------------------------------------------------------------------


def test_who_holds_its_turn_too_long_loses_it_and_its_append_is_refused(path: Path) -> None:
    with owned(path, turn_seconds=0.05):
        one, other = begun(path), joined(path)
        with one.ledger.turn():
            run(other)  # waits until the turn of the first is over
            with pytest.raises(LedgerBusyError, match=r"longer than 0\.05 seconds.*nothing was"):
                one.ledger.append(a_token(one))
        run(one)
        with one.ledger.turn():  # nobody waits, so that nobody is held up
            time.sleep(0.06)
            one.ledger.append(a_token(one))
    assert spends(path) == 2
    assert list(audit(path).problems) == []


def test_who_waits_too_long_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privlearn.ledger.socket_store.WAIT", 0.02)
    with owned(path):
        one, other = begun(path), joined(path)
        with one.ledger.turn():
            with pytest.raises(LedgerBusyError, match=r"had the turn for 0\.02 seconds"):
                run(other)
            one.ledger.append(a_token(one))
        run(other)


def test_who_is_interrupted_while_it_waits_holds_up_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owned(path, turn_seconds=60):
        one, other = begun(path), joined(path)
        client = store_of(other)._client
        with one.ledger.turn(), monkeypatch.context() as patch:
            patch.setattr(client, "_until_ready", lambda *_: stop())
            with pytest.raises(KeyboardInterrupt):
                other.remaining()
        begin = time.monotonic()
        run(one)
        run(other)
        assert time.monotonic() - begin < 30
    assert spends(path) == 2


def test_an_entry_outside_of_a_turn_is_refused(path: Path) -> None:
    with owned(path):
        one = begun(path)
        store = store_of(one)
        with one.ledger.turn():
            pass
        record = one.ledger.log.tip.make(a_token(one), this_minute(), None)
        with pytest.raises(LedgerBusyError, match="is over"):
            store.write(record, None)
        with one.ledger.turn(), pytest.raises(LedgerBusyError, match="others have written"):
            store.write(replace(record, seq=record.seq + 1), None)


# Connections --------------------------------------------------------------------------------------


def cut(store: Any, *, before: str = "", after: str = "") -> None:
    """Cuts the connection once, before a question is sent, or before its answer comes."""
    ask = Client.ask

    def asked(self: Client, fields: dict[str, Any], *more: Any, **named: Any) -> Any:
        if fields["do"] == before and self is client:
            self._close()
        answer = ask(self, fields, *more, **named)
        if fields["do"] == after and self is client:
            self._lost = "it was cut"
            self._close()
            raise LocalSocketError("the connection was lost")
        return answer

    client = store._client
    patch = pytest.MonkeyPatch()
    patch.setattr(Client, "ask", asked)


@pytest.fixture(autouse=True)
def uncut() -> Iterator[None]:
    ask = Client.ask
    yield
    Client.ask = ask  # type: ignore[method-assign]


@pytest.mark.parametrize("question", ["turn", "write", "end", "check", "enter", "records"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_cut_is_made_again_and_nothing_stands_twice(
    path: Path, question: str, when: str
) -> None:
    with owned(path, grace=5):
        one = begun(path)
        run(one)
        cut(store_of(one), **{when: question})
        try:
            run(one)
        except LedgerBusyError:  # with its connection it lost its turn, and nothing was recorded
            assert (when, question) in {("before", "write"), ("after", "turn"), ("before", "enter")}
            run(one)
        one.ledger.check_own()
        with one.ledger.turn():
            one.ledger.enter(one.id)
        assert len(one.ledger.records) == 1 + 2 * 3
        assert one.spent() == ZCDP("2/200")
    assert list(audit(path).problems) == []


def test_a_process_that_comes_back_too_late_has_lost_its_tokens(path: Path) -> None:
    with owned(path):
        one, other = begun(path), joined(path)
        unspent = one.issue(SUM.loss(), users=USERS, label="unspent")
        store_of(one)._client._close()
        eventually(lambda: outcomes(path) == ["unused"])
        with pytest.raises(LedgerFencedError, match="its tokens were ended"):
            release(unspent)
        with pytest.raises(LedgerFencedError, match="its tokens were ended"):
            run(one)
        assert other.remaining() == ZCDP("1/20")
    assert list(audit(path).problems) == []


def test_what_a_connection_held_is_ended_with_it(path: Path) -> None:
    with owned(path):
        one, other = begun(path, "1/10"), joined(path)
        part = other.delegate(ZCDP("2/200"), users=USERS, label="part")
        part.issue(SUM.loss(), users=USERS, label="of a part")
        other.issue(SUM.loss(), users=USERS, label="unspent")
        kept = one.issue(SUM.loss(), users=USERS, label="kept")
        wrote_spend(other)
        run(other)
        other.ledger.close()
        eventually(lambda: read_records(path)[-1].body["entry"] == "return")
        assert outcomes(path) == ["released", "unused", "unused", "lost"]
        release(kept)
        assert one.spent() == ZCDP("3/200")
    assert list(audit(path).problems) == []


def wrote_spend(accountant: Account) -> None:
    """A spend without a release."""
    token = accountant.issue(SUM.loss(), users=USERS, label="lost")
    retire = accountant.issuer.record_retire
    accountant.issuer.record_retire = lambda *_, **__: stop()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        release(token)
    accountant.issuer.record_retire = retire  # type: ignore[method-assign]


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("entry", ["spend", "retire"])
def test_nothing_is_released_when_the_owner_is_gone_between_spend_and_release(
    path: Path, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    append = Ledger.append
    with owned(path) as socket:
        one = begun(path)

        def gone(self: Ledger, written: Any, **named: Any) -> None:
            if written.entry == entry and self.shared:
                socket.rename(f"{socket}-away")
                store_of(one)._client._close()
            append(self, written, **named)

        monkeypatch.setattr(Ledger, "append", gone)
        with pytest.raises(LedgerError, match=r"nothing is released.*resume or join"):
            left.append(run(one))
        with pytest.raises(LedgerError):  # and it stays so
            left.append(run(one))
    assert left == []
    assert spends(path) == (entry == "retire")
    assert outcomes(path) == (["unused"] if entry == "spend" else ["lost"])
    assert list(audit(path).problems) == []


def test_an_account_is_resumed_by_one_process_and_again_when_that_is_gone(path: Path) -> None:
    with owned(path, grace=60):
        one = begun(path)
        with pytest.raises(LedgerBusyError, match=rf"process {os.getpid()} writes for"):
            Account.resume(Ledger.connect(default_socket(path)), noise=NOISE(2))
        store_of(one)._client._close()  # as if it died
        eventually(lambda: resumed(path))
        with pytest.raises(LedgerFencedError):
            run(one)
    assert list(audit(path).problems) == []


def test_what_a_resumed_account_ends_itself_is_not_ended_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with owned(path, grace=60):
        one = begun(path)
        one.issue(SUM.loss(), users=USERS, label="unspent")
        store_of(one)._client._close()
        eventually(lambda: resumed(path))
    assert outcomes(path) == ["unused", "released"]
    assert caplog.records == []


def resumed(path: Path) -> Account | None:
    ledger = Ledger.connect(default_socket(path))
    try:
        again = Account.resume(ledger, noise=NOISE(2))
    except LedgerBusyError:
        ledger.close()
        return None
    run(again)
    return again


def test_nobody_serves_there(path: Path) -> None:
    with pytest.raises(LedgerError, match=r"nobody answers there.*privlearn ledger serve LEDGER"):
        Ledger.connect(default_socket(path))


def test_an_owner_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with owned(path) as socket:
        monkeypatch.setattr(
            "privlearn.storage.sockets.user_of", lambda end: (os.getpid(), os.geteuid() + 1)
        )
        with pytest.raises(LedgerError, match="both must be the same"):
            Ledger.connect(socket)


@pytest.mark.parametrize(
    "fields",
    [
        {"do": "write"},
        {"do": "turn", "size": -1, "known": 0, "wait": 1},
        {"do": "turn", "size": True, "known": 0, "wait": 1},
        {"do": "records", "begin": 2**60},
        {"do": "value", "digest": 3},
        {"do": ["turn"]},
        {"do": "drop"},
        {},
    ],
)
def test_questions_of_another_form_are_refused_by_name(path: Path, fields: dict[str, Any]) -> None:
    with owned(path):
        one = begun(path)
        with pytest.raises(LedgerError, match="use one version"):
            store_of(one)._client.ask({"epoch": 1, **fields})
        with Client(default_socket(path)) as stranger:
            with pytest.raises(LedgerError, match="does not know this connection"):
                stranger.ask({"do": "check", "epoch": 1})
            stranger.ask({"do": "hello"})
            with pytest.raises(LedgerError, match="knows this connection already"):
                stranger.ask({"do": "hello"})
        run(one)


# What is durable, and when ------------------------------------------------------------------------


def test_one_sync_pays_for_all_that_wait_and_nobody_is_told_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, syncs = Settling.sync, 0
    first, go_on = threading.Event(), threading.Event()

    def slow(self: Settling) -> None:
        nonlocal syncs
        syncs += 1
        first.set()
        assert go_on.wait(10)
        sync(self)

    with owned(path):
        members = [begun(path), joined(path, 1), joined(path, 2)]
        tokens = [each.issue(SUM.loss(), users=USERS, label="x") for each in members]
        told: list[int] = []

        def spend(i: int) -> None:
            release(tokens[i])
            told.append(i)

        monkeypatch.setattr(Settling, "sync", slow)
        threads = [threading.Thread(target=spend, args=(i,)) for i in range(3)]
        threads[0].start()
        assert first.wait(10)
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: spends(path) == 3)
        assert told == []
        assert outcomes(path) == []
        go_on.set()
        for thread in threads:
            thread.join()
        assert sorted(told) == [0, 1, 2]
        assert syncs == 2
    assert list(audit(path).problems) == []


def test_a_disk_that_fails_stops_the_owner_and_nothing_is_released(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []

    def broken(self: Disk, file: int) -> None:
        self._failed = "Input/output error"
        self.check_sound()

    def fails() -> None:
        with owned(path):
            one = begun(path)
            run(one)
            token = one.issue(SUM.loss(), users=USERS, label="x")
            with monkeypatch.context() as patch:
                patch.setattr(Disk, "_sync", broken)
                with pytest.raises(LedgerError, match=r"the owner of .* stops: .*Input/output"):
                    left.append(release(token))
                with pytest.raises(LedgerError):
                    left.append(run(one))

    with pytest.raises(LedgerError, match="could not be brought to disk"):
        fails()
    assert left == []
    with owned(path):
        run(joined(path))
    assert list(audit(path).problems) == []


@pytest.mark.parametrize("stopped", [True, False])
def test_a_writer_that_took_the_file_away_fences_the_owner_and_all_its_processes(
    stopped: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has stopped before the block around it ends."""
    left: list[object] = []
    monkeypatch.setattr("privlearn.ledger.store.check_not_served", lambda path: None)

    def fenced() -> None:
        with owned(path):
            one = begun(path)
            token = one.issue(SUM.loss(), users=USERS, label="x")
            with Ledger.open(path) as thief:
                Account.resume(thief, noise=NOISE(3))
            with pytest.raises(LedgerFencedError):
                left.append(release(token))

    with pytest.raises(LedgerFencedError, match=r"stops: .*another process"):
        fenced()
    assert left == []
    assert list(audit(path).problems) == []


def test_heads_are_kept_elsewhere_once_they_are_on_disk_and_before_a_spend_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync = Settling.sync

    def synced(self: Settling) -> None:
        sync(self)
        order.append(f"synced {self.head.hash}")

    monkeypatch.setattr(Settling, "sync", synced)
    with owned(path, keep_head=order.append):
        one = begun(path)
        order.clear()
        run(one)
        spend = next(r.hash for r in read_records(path) if r.body["entry"] == "spend")
        assert order == [f"synced {spend}", spend]
    head = order[-1]
    assert head == read_records(path)[-1].hash
    with pytest.raises(LedgerHeadError, match="kept elsewhere"), owned(path):
        pass
    with owned(path, head=head, keep_head=order.append):
        assert Ledger.connect(default_socket(path), head=head).holds(head)
        with pytest.raises(LedgerHeadError, match="f" * 64):
            Ledger.connect(default_socket(path), head="f" * 64)


def test_a_head_that_cannot_be_kept_releases_nothing(path: Path) -> None:
    left: list[object] = []
    broken = False

    def keep(head: str) -> None:
        if broken:
            raise OSError("the other disk is full")

    with owned(path, keep_head=keep):
        one = begun(path)
        broken = True
        with pytest.raises(LedgerHeadError, match="the other disk is full"):
            left.append(run(one))
        with pytest.raises(LedgerHeadError, match="the other disk is full"):
            one.ledger.keep_head_again()
        broken = False
        one.ledger.keep_head_again()
        run(one)
    assert left == []
    assert outcomes(path) == ["released", "lost"]


def test_a_ledger_whose_head_is_unknown_says_so(path: Path) -> None:
    with owned(path):
        run(begun(path))
    path.with_name("ledger.db.head").unlink()
    with pytest.raises(LedgerHeadError), owned(path):
        pass
    with owned(path, unknown_head=True):
        run(joined(path))
    with owned(path):
        pass
    assert [r.body["entry"] for r in read_records(path)].count("resume") == 1


def test_every_record_is_the_owners(path: Path) -> None:
    """Time, writer, epoch and place in the chain are not the process's to say."""
    with owned(path):
        one = begun(path)
        store = store_of(one)
        with one.ledger.turn():
            forged = Record.make("0" * 64, 1, a_token(one).body(), minute=1, epoch=77)
            stands = store.write(forged, None)
        envelope = stands.envelope
        assert envelope is not None
        assert envelope["epoch"] == 1
        assert not envelope["at"].startswith("1970")
        assert envelope["nonce"] == (forged.envelope or {})["nonce"]
        with one.ledger.turn(), pytest.raises(LedgerError, match="is that of another entry"):
            store.write(
                Record.make("0" * 64, 2, a_token(one, label="y").body(), nonce=envelope["nonce"]),
                None,
            )
        with one.ledger.turn():  # again, as it might be asked after a cut
            assert store.write(forged, None) == stands
    assert list(audit(path).problems) == []
    assert len(read_records(path)) == 3
