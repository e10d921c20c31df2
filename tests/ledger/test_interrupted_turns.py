"""An interrupt in a turn keeps nobody from the next one, in this process or in another."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from postgres import Server
from postgres_processes import NOISE, USERS, Account, run
from stepping import stepped

from privlearn.accountants import CentralAccountant, account_log, turn_lock
from privlearn.accountants.serving import owning_ledger
from privlearn.errors import LedgerBusyError, LedgerError
from privlearn.ledger import (
    Ledger,
    entry_log,
    last_record,
    open_ledger,
    postgres,
    postgres_sessions,
    replica,
    socket_store,
)
from privlearn.losses.budgets import ZCDP
from privlearn.people import People
from privlearn.people import postgres as people_postgres
from privlearn.storage import exclusive, sockets
from privlearn.storage.exclusive import Block
from privlearn.values.participation import Participation

MODULES = (
    contextlib,
    threading,
    exclusive,
    sockets,
    turn_lock,
    open_ledger,
    entry_log,
    replica,
    last_record,
    account_log,
    postgres,
    postgres_sessions,
    socket_store,
    people_postgres,
)
SOON = 5.0
"""Seconds; whoever does not give its turn back holds the others up for longer."""
Opened = Callable[[Literal["create", "join"]], Ledger]


@pytest.fixture(params=["owner", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """What opens a ledger, to "create" or to "join" it."""
    with ExitStack() as stack:
        if request.param == "owner":
            made = owning_ledger(tmp_path / "l.db", new=True, turn_seconds=60)
            socket = stack.enter_context(made)
            yield lambda how: stack.enter_context(Ledger.connect(socket))
        else:
            server: Server = request.getfixturevalue("postgres")
            address = server.url(ledger=server.new_name())
            yield lambda how: stack.enter_context(Ledger.postgres(address, how))


def begun(opened: Opened) -> Account:
    return CentralAccountant(ZCDP("1/2"), users=USERS, ledger=opened("create"), noise=NOISE(0))


def interrupt() -> None:
    raise KeyboardInterrupt


def in_a_thread(look: Callable[[], object]) -> bool:
    """Whether a ledger takes it, in a thread that holds none of the interrupted one's locks."""
    done: list[bool] = []

    def work() -> None:
        with contextlib.suppress(LedgerError):
            look()
            done.append(True)
        done.append(False)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON)
    assert done
    return done[0]


def left(account: Account, *, unsettled: bool) -> Callable[[], object]:
    """The end of a turn, which an account has now."""
    lock: Any = account._lock
    lock.__enter__()
    if unsettled:  # as if a spend had been written in it
        account.ledger._shared._unsettled = True  # type: ignore[union-attr]
    return lambda: lock.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("opened", "what"),
    [
        ("owner", "end"),
        ("owner", "settling end"),
        ("owner", "turn"),
        ("postgres", "end"),
        ("postgres", "turn"),
    ],
    indirect=["opened"],
)
def test_an_interrupt_at_any_line_keeps_nobody_waiting(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """At every line where it ends; at every sixth of the whole, as that takes long."""
    stride = 6 if what == "turn" else 1
    one, other = begun(opened), Account.join(opened("join"), noise=NOISE(1))
    monkeypatch.setattr(socket_store, "WAIT", SOON)
    kept: list[BaseException] = []
    step, more, again = 1 - stride, True, 0
    while more:
        step += stride
        act = one.remaining if what == "turn" else left(one, unsettled=what != "end")
        try:
            more = stepped(act, interrupt, step, MODULES)
        except KeyboardInterrupt as error:
            kept.append(error)  # with its frames, and all that these hold
        begin = time.monotonic()
        other.remaining()
        assert time.monotonic() - begin < SOON
        if not in_a_thread(one.remaining):  # what others wrote was taken in half-way
            again += 1
            one = Account.join(opened("join"), noise=NOISE(step))
    assert len(kept) > 15
    assert again < (5 if what == "turn" else 1)
    run(one)


@pytest.mark.parametrize("opened", ["owner", "postgres"], indirect=True)
def test_a_turn_that_is_left_by_python_code_can_be_kept(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken variant: as `contextlib` has it."""
    monkeypatch.setattr(socket_store, "WAIT", 0.1)
    monkeypatch.setattr(postgres_sessions, "TIMEOUT", 0.1)
    one, other = begun(opened), Account.join(opened("join"), noise=NOISE(1))

    def by_python(self: Block[Any], *error: object) -> None:
        self.close()

    monkeypatch.setattr(Block, "__exit__", by_python)
    end = left(one, unsettled=False)
    with pytest.raises(KeyboardInterrupt):
        stepped(end, interrupt, 1, [sys.modules[__name__]])
    with pytest.raises(LedgerBusyError):
        other.remaining()
    end()
    other.remaining()


def test_an_interrupt_at_any_line_of_a_registrys_turn_keeps_nobody_waiting(
    postgres: Server, tmp_path: Path
) -> None:
    """From the commit on."""
    address, key = postgres.url(ledger=postgres.new_name()), tmp_path / "people.key"
    with (
        Ledger.postgres(address, "create") as ledger,
        People.postgres(ledger, "create", key=key, rule=Participation(1)) as one,
        People.postgres(ledger, key=key) as other,
    ):
        one.bind("me", range(1000))
        keeper: Any = one._People__keeper  # type: ignore[attr-defined]
        kept: list[BaseException] = []
        step, more = 0, True
        while more:
            step += 1
            turn = keeper._turns._turn_lock.turn()
            turn.__enter__()
            try:
                more = stepped(lambda: turn.__exit__(None, None, None), interrupt, step, MODULES)  # noqa: B023
            except KeyboardInterrupt as error:
                kept.append(error)
            for each in (other, one):
                begin = time.monotonic()
                each.admit_next([None])
                assert time.monotonic() - begin < SOON
        assert len(kept) > 10
        assert one.clock == 2 * step
