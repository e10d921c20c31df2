"""Ledgers in a real PostgreSQL: turns, epochs, members, and what becomes of a lost connection."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
from grids import thinned
from kill_points import tell
from postgres import Server
from postgres_processes import NOISE, ROWS, SUM, USERS, Account, forked, live, run, told_by, unpaid
from postgres_proxy import Cut, proxy_of
from spending_together import asked as spent_together
from spending_together import overspends
from sqlalchemy import text

from privlearn import Rows
from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import audit
from privlearn.accountants.certificate import Certificate
from privlearn.contract import leases
from privlearn.contract.receipts import Receipt
from privlearn.errors import (
    BudgetError,
    InsufficientBudgetError,
    LeaseError,
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerUnreadableError,
    NonceReusedError,
    PrivlearnError,
    TokenCopyError,
    TokenError,
)
from privlearn.ledger import Ledger, Record, iterate_records
from privlearn.ledger import postgres_sessions as sessions
from privlearn.ledger.entries import PlanEntry, PlanItem
from privlearn.ledger.postgres import PostgresStore
from privlearn.ledger.postgres_sessions import Session
from privlearn.losses.budgets import ZCDP

PLANNED = PlanItem(label="sum", users=(0, 10), loss=SUM.loss().to_dict(), count=1)


@pytest.fixture
def address(postgres: Server) -> str:
    """Of a ledger that is not there yet."""
    return postgres.url(ledger=postgres.new_name())


@pytest.fixture
def begun() -> Iterator[Callable[..., Account]]:
    """Makes a ledger and its first accountant, ends with the test."""
    with _opened() as opened:

        def make(address: str, cap: str = "1/20", **options: Any) -> Account:
            ledger = opened(Ledger.postgres(address, "create", **options))
            return CentralAccountant(ZCDP(cap), users=USERS, ledger=ledger, noise=NOISE(0))

        yield make


@pytest.fixture
def joined() -> Iterator[Callable[..., Account]]:
    """Joins the accountant of a ledger, ends with the test."""
    with _opened() as opened:

        def make(address: str, seed: int = 1) -> Account:
            return Account.join(opened(Ledger.postgres(address, "join")), noise=NOISE(seed))

        yield make


@pytest.fixture
def resumed() -> Iterator[Callable[..., Account]]:
    """Begins a new epoch of a ledger, ends with the test."""
    with _opened() as opened:

        def make(address: str, seed: int = 2, **options: Any) -> Account:
            return Account.resume(opened(Ledger.postgres(address, **options)), noise=NOISE(seed))

        yield make


@contextmanager
def _opened() -> Iterator[Callable[[Ledger], Ledger]]:
    ledgers: list[Ledger] = []

    def opened(ledger: Ledger) -> Ledger:
        ledgers.append(ledger)
        return ledger

    yield opened
    for each in ledgers:
        each.close()


def store_of(accountant: Account) -> PostgresStore:
    store = accountant.ledger._shared
    assert isinstance(store, PostgresStore)
    return store


def backend_of(accountant: Account) -> int:
    """The process of the server that has the accountant's lock."""
    session = store_of(accountant)._held.session
    assert session is not None
    return int(session._backend)


def certified(address: str) -> Certificate:
    found = audit(address)
    assert found.problems == []
    return found


def outcomes(accountant: Account) -> list[str | None]:
    with accountant._lock:
        return [each.outcome for each in accountant._state.accounts.values()]


# Turns --------------------------------------------------------------------------------------------


def test_two_processes_spend_from_one_cap(address: str, begun: Any, joined: Any) -> None:
    one, other = begun(address), joined(address)
    for _ in range(5):
        run(one)
        run(other)
    assert one.remaining() == other.remaining() == ZCDP(0)
    for each in (one, other):
        with pytest.raises(InsufficientBudgetError):
            run(each)
    assert certified(address).spends == 10


def test_eight_threads_of_four_processes_never_overspend(address: str, begun: Any) -> None:
    one = begun(address, cap="1/5")
    one.ledger.close()

    def work(pipe: int) -> None:
        account = Account.join(Ledger.postgres(address, "join"), noise=NOISE(os.getpid()))

        def spend() -> None:
            with suppress(InsufficientBudgetError):
                while True:
                    run(account)
                    tell(pipe, b"paid")

        threads = [threading.Thread(target=spend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [forked(work) for _ in range(4)]
    paid = [len(told_by(*each)) for each in children]
    assert sum(paid) == 40
    assert certified(address).spends == 40
    assert min(paid) > 0


def test_eight_processes_spend_no_more_than_nested_caps(postgres: Server, address: str) -> None:
    Ledger.postgres(address, "create").close()
    found = spent_together(address, 24, attempts=10, processes=8, threads=1, nested=24)
    assert not found.errors
    assert (found.released, found.refused) == (24, 56)
    above = overspends(iterate_records(address), 24)
    assert {"account", "one", "other", "project 0", "numbered, epoch 1"} <= above.keys()
    assert {*above.values()} == {0}
    assert certified(address).problems == []


def test_an_account_is_resumed_by_one_process_alone(address: str, begun: Any, joined: Any) -> None:
    begun(address)
    with (
        Ledger.postgres(address, "join") as beside,
        pytest.raises(LedgerBusyError, match="another process writes for accountant"),
    ):
        Account.resume(beside, noise=NOISE(2))


def test_two_ledgers_of_one_database_know_nothing_of_each_other(
    postgres: Server, address: str, begun: Any
) -> None:
    other = postgres.url(ledger=postgres.new_name())
    one, two = begun(address), begun(other)
    work = [
        threading.Thread(target=lambda a=each: [run(a) for _ in range(8)]) for each in (one, two)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert certified(address).spends == certified(other).spends == 8
    with pytest.raises(LedgerError, match="exists: ledgers are never overwritten"):
        Ledger.postgres(other, "create")
    with pytest.raises(LedgerUnreadableError, match="no such ledger; there are"):
        Ledger.postgres(postgres.url(ledger="nobody's"))


def test_what_the_server_undoes_for_the_sake_of_others_is_tried_again(
    address: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, commit, failures = begun(address), Session.commit, [3]

    def undone(self: Session, *last: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            self.rollback()
            raise sessions.Conflict("could not serialize access")
        commit(self, *last)

    monkeypatch.setattr(Session, "commit", undone)
    run(account)
    failures[0] = 10**6
    with pytest.raises(LedgerBusyError, match="nothing was recorded"):
        run(account)
    failures[0] = 0
    run(account)
    assert certified(address).spends == 2


# Epochs -------------------------------------------------------------------------------------------


def lose_the_ledger_half_way(address: str, account: Account, left: list[object]) -> None:
    """Opens the ledger anew between a spend and its release, by another process."""
    write, before = PostgresStore.write, store_of(account)

    def written(self: PostgresStore, record: Record, value: Any) -> Record:
        if self is before and record.body["entry"] == "retire":
            # another process has its turn first
            self._turn_lock.give_back()
            Ledger.postgres(address).close()
            self._turn_lock.take()
        return write(self, record, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresStore, "write", written)
        left.append(run(account))


def check_fencing(address: str, account: Account, resumed: Any) -> None:
    """A process whose ledger was opened anew appends, publishes and retires nothing."""
    early = account.issue(SUM.loss(), users=USERS, label="early")
    left: list[object] = []
    with pytest.raises(LedgerFencedError, match="can neither spend nor release"):
        lose_the_ledger_half_way(address, account, left)
    assert left == []
    for late in (
        lambda: account.issue(SUM.loss(), users=USERS, label="late"),
        lambda: SUM.release(Rows.seal(ROWS, users=USERS), early),
        early.retire,
        account.ledger.check_own,
        account.close,
    ):
        with pytest.raises(LedgerFencedError):
            late()
    again = resumed(address)
    assert outcomes(again) == ["unused", "lost"]
    assert certified(address).spends == 1


def test_who_lost_the_ledger_can_neither_spend_nor_release(
    address: str, begun: Any, resumed: Any
) -> None:
    check_fencing(address, begun(address), resumed)


def test_a_store_that_does_not_look_at_the_epoch_is_found_out(
    address: str, begun: Any, resumed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken variant."""
    account = begun(address)
    monkeypatch.setattr(PostgresStore, "check_epoch", lambda self, session: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_fencing(address, account, resumed)


def test_who_opens_the_ledger_without_a_turn_is_not_overlooked(
    postgres: Server, address: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the epoch and the commit, in a serializable transaction of its own."""
    account, insert, left = begun(address), PostgresStore._insert, list[object]()
    name = address.partition("ledger=")[2]

    def inserted(self: PostgresStore, session: Session, record: Record, value: Any) -> None:
        if record.body["entry"] == "spend":
            assert session.one(text("SHOW transaction_isolation")) == ("serializable",)
            postgres.execute(
                "BEGIN ISOLATION LEVEL SERIALIZABLE",
                f"SELECT count(*) FROM privlearn.entries WHERE ledger = '{name}'",
                f"INSERT INTO privlearn.epochs VALUES ('{name}', 2, '{'0' * 16}') "
                "ON CONFLICT DO NOTHING",
                "COMMIT",
            )
        insert(self, session, record, value)

    monkeypatch.setattr(PostgresStore, "_insert", inserted)
    with pytest.raises(LedgerFencedError):
        left.append(run(account))
    assert left == []
    assert certified(address).spends == 0


# Members ------------------------------------------------------------------------------------------


def cut_between_spend_and_release(
    postgres: Server, account: Account, meanwhile: Callable[[], object]
) -> Any:
    """Ends the connection of a process after a spend, and then something else happens."""
    noise = Receipt._noise

    def cut(self: Receipt, *arguments: Any, **named: Any) -> Any:
        drawn = noise(self, *arguments, **named)
        postgres.execute(f"SELECT pg_terminate_backend({backend_of(account)}, 5000)")
        meanwhile()
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Receipt, "_noise", cut)
        return run(account)


def test_a_lost_connection_is_made_again_where_nobody_has_ended_the_token(
    postgres: Server, address: str, begun: Any
) -> None:
    account = begun(address)
    cut_between_spend_and_release(postgres, account, lambda: None)
    assert outcomes(account) == ["released"]
    run(account)
    assert certified(address).spends == 2


def test_who_took_its_connection_again_is_still_known_to_write(
    postgres: Server, address: str, begun: Any
) -> None:
    account = begun(address)
    postgres.execute(f"SELECT pg_terminate_backend({backend_of(account)}, 5000)")
    run(account)
    with (
        Ledger.postgres(address, "join") as beside,
        pytest.raises(LedgerBusyError, match="another process writes for accountant"),
    ):
        Account.resume(beside, noise=NOISE(2))


def test_what_others_ended_meanwhile_is_not_released(
    postgres: Server, address: str, begun: Any, joined: Any
) -> None:
    account, other = begun(address), joined(address)
    unspent = account.issue(SUM.loss(), users=USERS, label="unspent")
    with pytest.raises(PrivlearnError, match="its outcome lost: it stays charged"):
        cut_between_spend_and_release(postgres, account, other.remaining)
    assert outcomes(other) == ["unused", "lost"]
    with pytest.raises(TokenError, match=r"unspent and free of charge.*connection of that was cut"):
        SUM.release(Rows.seal(ROWS, users=USERS), unspent)
    run(account)  # the process goes on
    assert certified(address).spends == 2


def test_a_lease_whose_token_others_may_have_ended_runs_no_more(
    monkeypatch: pytest.MonkeyPatch, postgres: Server, address: str, begun: Any, joined: Any
) -> None:
    monkeypatch.setattr(leases, "_LOOK_AFTER", 0.0)
    account, other = begun(address), joined(address)
    lease, rows = (
        account.lease(SUM, runs=5, users=USERS, label="sums"),
        Rows.seal(ROWS, users=USERS),
    )
    lease.release(rows)
    lease.release(rows)
    postgres.execute(f"SELECT pg_terminate_backend({backend_of(account)}, 5000)")
    other.remaining()
    assert outcomes(other) == ["lost"]
    with pytest.raises(LeaseError, match="others may have ended its tokens"):
        lease.release(rows)
    run(account)  # the process goes on


@pytest.mark.parametrize("how", ["begun", "resumed"])
def test_who_was_cut_off_does_not_come_back_to_an_account_that_another_has_resumed(
    postgres: Server, address: str, begun: Any, joined: Any, resumed: Any, how: str
) -> None:
    account = begun(address)
    if how == "resumed":
        account = resumed(address)
    beside = joined(address)
    beside.ledger.close()
    postgres.execute(f"SELECT pg_terminate_backend({backend_of(account)}, 5000)")
    later = resumed(address, how="join")
    for _ in range(2):
        with pytest.raises(LedgerFencedError, match="another one has resumed accountant"):
            run(account)
    run(later)
    postgres.execute(f"SELECT pg_terminate_backend({backend_of(later)}, 5000)")
    run(later)  # nobody else has


def test_tokens_of_a_killed_process_are_ended_by_the_others(address: str, begun: Any) -> None:
    account = begun(address)

    def work(pipe: int) -> None:
        child = Account.join(Ledger.postgres(address, "join"), noise=NOISE(3))
        child.issue(SUM.loss(), users=USERS, label="unspent")
        token = child.issue(SUM.loss(), users=USERS, label="spent")
        with suppress(ZeroDivisionError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Receipt, "_noise", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
            tell(pipe, b"spends")
            SUM.release(Rows.seal(ROWS, users=USERS), token)

    assert told_by(*forked(work)) == ["spends"]
    deadline = time.monotonic() + 10
    while None in outcomes(account) and time.monotonic() < deadline:
        time.sleep(0.01)  # until the server has noticed
    assert outcomes(account) == ["unused", "lost"]
    assert account.remaining() == ZCDP("9/200")
    certified(address)


def test_reserved_parts_of_who_is_gone_are_given_back_but_for_what_was_spent(
    postgres: Server, address: str, begun: Any, joined: Any
) -> None:
    account, other = begun(address), joined(address)
    part = other.delegate(ZCDP("3/200"), users=USERS, label="part")
    spent = part.issue(SUM.loss(), users=USERS, label="spent")
    unspent = part.issue(SUM.loss(), users=USERS, label="unspent")
    spent.spend(SUM.spend())
    own = account.delegate(ZCDP("2/200"), users=USERS, label="of one that lives")
    assert account.remaining() == ZCDP("5/200")
    postgres.execute(f"SELECT pg_terminate_backend({backend_of(other)}, 5000)")
    assert account.remaining() == ZCDP("7/200")
    assert outcomes(account) == ["lost", "unused"]
    assert not own.closed
    own.issue(SUM.loss(), users=USERS, label="of a part")
    for late in (
        lambda: part.issue(SUM.loss(), users=USERS, label="late"),
        lambda: SUM.release(Rows.seal(ROWS, users=USERS), unspent),
    ):
        with pytest.raises((BudgetError, TokenError, LedgerError)):
            late()
    assert other.remaining() == ZCDP("7/200")
    assert part.closed
    certified(address)


def test_a_forked_child_neither_uses_nor_ends_the_connections(address: str, begun: Any) -> None:
    account = begun(address)

    def work(pipe: int) -> None:
        for each in (account.remaining, account.ledger.check_own, lambda: run(account)):
            try:
                each()
            except TokenCopyError:
                tell(pipe, b"refused")
        account.ledger.close()

    backend = backend_of(account)
    assert told_by(*forked(work)) == ["refused"] * 3
    run(account)
    assert backend_of(account) == backend


def test_a_process_that_is_stopped_in_its_turn_does_not_stop_the_others(
    address: str, begun: Any, joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "TIMEOUT", 0.3)
    account, other = begun(address), joined(address)
    early, backend = other.issue(SUM.loss(), users=USERS, label="early"), backend_of(other)
    with account.ledger.turn():
        with pytest.raises(LedgerBusyError, match="nothing was recorded: try again"):
            other.remaining()
        time.sleep(0.7)  # idle in its transaction, for longer than the server lets it
        run(other)
    run(account)
    assert backend_of(other) == backend  # who only had to wait has lost nothing
    SUM.release(Rows.seal(ROWS, users=USERS), early)
    assert certified(address).spends == 3


# Commits of unknown outcome -----------------------------------------------------------------------


@pytest.fixture
def cut_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Cuts a proxy's connection at the commit of the next entry of a kind."""

    def set_up(proxy: Any, cut: Cut, kind: str, *, refuses: bool = False) -> None:
        insert, commit = PostgresStore._insert, Session.commit
        now, armed = [""], [True]

        def inserted(self: PostgresStore, session: Session, record: Record, value: Any) -> None:
            now[0] = record.body["entry"]
            insert(self, session, record, value)

        def committed(self: Session, *last: Any) -> None:
            if now[0] == kind and armed:
                armed.clear()
                proxy.cut, proxy.refuses = cut, refuses
            commit(self, *last)

        monkeypatch.setattr(PostgresStore, "_insert", inserted)
        monkeypatch.setattr(Session, "commit", committed)

    return set_up


@pytest.mark.parametrize("kind", ["spend", "retire"])
def test_a_commit_that_never_arrived_recorded_nothing(
    postgres: Server, address: str, begun: Any, cut_at: Any, kind: str
) -> None:
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        token = account.issue(SUM.loss(), users=USERS, label="cut")
        cut_at(proxy, "before", kind)
        with pytest.raises(LedgerError, match="nothing was recorded: try again"):
            SUM.release(Rows.seal(ROWS, users=USERS), token)
        assert outcomes(account) == [None]
        assert certified(address).spends == (kind == "retire")
        name = address.partition("ledger=")[2]
        values = f"SELECT count(*) FROM privlearn.released WHERE ledger = '{name}'"
        assert postgres.execute(values) == [(0,)]  # it is written with its entry
        run(account)  # it goes on, over a new connection
        assert account.spent() == ZCDP("1/100")
        account.ledger.close()
    assert certified(address).spends == 1 + (kind == "retire")


@pytest.mark.parametrize("kind", ["spend", "retire"])
def test_a_commit_whose_answer_was_lost_is_found_by_its_nonce(
    postgres: Server, address: str, begun: Any, cut_at: Any, kind: str
) -> None:
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        cut_at(proxy, "after", kind)
        released = run(account)
        assert np.isfinite(released.value).all()
        assert outcomes(account) == ["released"]
        run(account)
        account.ledger.close()
    assert certified(address).spends == 2


@pytest.mark.parametrize("kind", ["issue", "spend"])
def test_a_retry_by_nonce_releases_once_for_one_charge(
    postgres: Server, address: str, begun: Any, joined: Any, cut_at: Any, kind: str
) -> None:
    nonce, rows = token_hex(16), Rows.seal(ROWS, users=USERS)
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        cut_at(proxy, "before", kind)
        with pytest.raises(LedgerError, match="nothing was recorded: try again"):
            account.release_once(nonce, SUM, rows, users=USERS, label="once")
        first = account.release_once(nonce, SUM, rows, users=USERS, label="once")
        account.ledger.close()
    other = joined(address)  # another process that retries gets what left
    again = other.release_once(nonce, SUM, rows, users=USERS, label="once")
    np.testing.assert_array_equal(first.value, again.value)
    assert other.spent() == ZCDP("1/200")
    assert certified(address).spends == 1


@pytest.mark.parametrize("cut", ["before", "after", "silently"])
def test_a_commit_of_which_nothing_can_be_learnt_releases_nothing(
    postgres: Server,
    address: str,
    begun: Any,
    resumed: Any,
    cut_at: Any,
    cut: Cut,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "TIMEOUT", 0.7)  # a loaded machine takes long for a turn
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        # a session that the server takes to live keeps its locks
        cut_at(proxy, cut, "spend", refuses=cut != "silently")
        left: list[object] = []
        with pytest.raises(LedgerError, match="whether it stands is not known"):
            left.append(run(account))
        assert left == []
        proxy.refuses = False
        proxy.end_all()
        with pytest.raises(LedgerError, match="interrupted half-way"):
            run(account)
        account.ledger.close()
    again = resumed(address)
    assert outcomes(again) == ["lost" if cut == "after" else "unused"]
    assert certified(address).spends == (cut == "after")


def test_a_commit_that_no_standby_confirmed_releases_nothing(
    postgres: Server, address: str, begun: Any, resumed: Any
) -> None:
    account, left = begun(address), list[object]()
    with (
        postgres.unconfirmed(),
        pytest.raises(LedgerError, match="stands on this server, and perhaps on no other"),
    ):
        left.append(run(account))
    assert left == []
    account.ledger.close()
    assert outcomes(resumed(address)) == ["unused"]
    certified(address)


def test_an_entry_that_is_found_again_and_no_standby_confirmed_releases_nothing(
    postgres: Server, address: str, begun: Any, resumed: Any, cut_at: Any
) -> None:
    """Its commit has an unknown outcome, and stands when it is looked for."""
    left: list[object] = []
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        token = account.issue(SUM.loss(), users=USERS, label="cut")
        cut_at(proxy, "after", "spend")
        with postgres.unconfirmed(), pytest.raises(LedgerError, match="it stands is not known"):
            left.append(SUM.release(Rows.seal(ROWS, users=USERS), token))
        account.ledger.close()
    assert left == []
    assert outcomes(resumed(address)) == ["lost"]


def test_who_looked_for_an_entry_has_its_turn_still(
    postgres: Server, address: str, begun: Any, joined: Any, cut_at: Any
) -> None:
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        key = sessions.key_of("turn", address.partition("ledger=")[2])
        with account._lock:
            cut_at(proxy, "after", "plan")
            account._log.append(PlanEntry(accountant=account.id, items=(PLANNED,)))
            assert postgres.execute(f"SELECT pg_try_advisory_lock({key})") == [(False,)]
        account.ledger.close()


def test_who_comes_back_waits_until_its_former_connection_is_over(
    postgres: Server, address: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its tokens are taken for those of somebody who is gone, when that one ends."""
    monkeypatch.setattr(sessions, "TIMEOUT", 0.5)
    with proxy_of(postgres.folder) as proxy:
        account = begun(address.replace(str(postgres.folder), str(proxy.folder)))
        account.remaining()
        proxy.cut = "silently"
        with pytest.raises(LedgerBusyError, match="others held it"):
            account.remaining()
        proxy.end_all()
        run(account)
        account.ledger.close()
    assert certified(address).spends == 1


# What it is killed in -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", thinned([12, 50]))
def test_wherever_it_is_killed_nothing_leaves_unpaid_and_the_others_go_on(
    number: int, address: str, begun: Any
) -> None:
    account = begun(address, cap="10")
    *_, counted = told_by(*forked(lambda pipe: live(address, 0, pipe)))
    points = int(counted.removeprefix("points "))
    left = 0
    for stop in np.linspace(1, points + 10, number).astype(int):  # ending others takes some more
        lines = told_by(*forked(partial(live, address, int(stop))))
        left += len(lines)
        assert not lines or unpaid(address, lines) == 0
        run(account)
    assert 0.4 * number < left < 1.2 * number
    deadline = time.monotonic() + 10
    while None in outcomes(account) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert None not in outcomes(account)
    certified(address)


def test_a_store_that_charges_after_the_release_is_found_out(address: str, begun: Any) -> None:
    """The broken variant."""
    begun(address)
    lines = told_by(*forked(lambda pipe: live(address, 0, pipe, charges_late=True)))
    assert lines[0].startswith("left")
    assert unpaid(address, lines) > 0


def sealed() -> Rows[Any]:
    return Rows.seal(ROWS, users=USERS)


def test_a_release_is_asked_for_again_by_its_nonce_from_any_process(
    address: str, begun: Any, joined: Any, resumed: Any
) -> None:
    nonce = "0123456789abcdef" * 2

    def once(accountant: Account, label: str = "sum") -> Any:
        return accountant.release_once(nonce, SUM, sealed(), users=USERS, label=label).value

    one = begun(address)
    first = once(one)
    other = joined(address)
    assert np.array_equal(once(other), first)
    with pytest.raises(NonceReusedError):
        once(other, "another")
    assert np.array_equal(once(resumed(address)), first)
    with pytest.raises(LedgerFencedError):
        once(one)


def test_a_lease_is_a_spend_there_too_and_ends_with_the_epoch(
    address: str, begun: Any, resumed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_LOOK_AFTER", 0.0)
    one = begun(address)
    lease = one.lease(SUM, runs=4, users=USERS, label="sums")
    for _ in range(2):
        lease.release(sealed())
    other = resumed(address)
    assert other.spent() == ZCDP("4/200")
    with pytest.raises(LeaseError, match="stay charged"):
        lease.release(sealed())
