"""Mistakes that are easily made in a ledger's owner, or by who asks it: each is found by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn import NoiseSource, Rows
from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.accounts import Accounts
from privlearn.accountants.serving import _answerer, default_socket, owning_ledger
from privlearn.accountants.state import Checked
from privlearn.errors import (
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerUnreadableError,
    LocalSocketError,
)
from privlearn.ledger import Ledger, Record, read_records
from privlearn.ledger.entries import IssueEntry
from privlearn.ledger.entry_log import this_minute
from privlearn.ledger.owner import LedgerOwner
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.people import People
from privlearn.rows.domains import Ball
from privlearn.storage.addresses import located_socket
from privlearn.storage.frames import Limits, Message
from privlearn.storage.sockets import Client, Peer
from privlearn.values.participation import Participation

USERS = range(10)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
"""ρ = 1/200."""
Account = CentralAccountant[ZCDP]
NOISE = NoiseSource.simulation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@contextmanager
def owned(path: Path, **named: Any) -> Iterator[Path]:
    with owning_ledger(path, new=not path.exists(), **{"grace": 0, **named}) as socket:
        yield socket


def connected(path: Path) -> Ledger:
    return Ledger.connect(default_socket(path))


def begun(path: Path, cap: str = "1/20", **more: Any) -> Account:
    return Account(ZCDP(cap), users=USERS, ledger=connected(path), noise=NOISE(0), **more)


def joined(path: Path) -> Account:
    return Account.join(connected(path), noise=NOISE(1))


def run(accountant: Account) -> Any:
    token = accountant.issue(SUM.loss(), users=USERS, label="sum")
    return SUM.release(Rows.seal(np.ones((10, 2)), users=USERS), token)


def store_of(accountant: Account) -> Any:
    return accountant.ledger._shared


def made(accountant: Account, label: str) -> Record:
    entry = IssueEntry(
        accountant=accountant.id,
        token=f"{accountant.id}/1",
        label=label,
        users=(0, 10),
        budget=ZCDP("1/200").to_dict(),
    )
    return accountant.ledger.log.tip.make(entry, this_minute(), None)


def test_an_entry_of_an_earlier_turn_of_the_same_process_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owned(path):
        one = begun(path)
        store = store_of(one)
        with one.ledger.turn():
            record = made(one, "late")
            with monkeypatch.context() as patch:  # the turn itself ends by its own number
                patch.setattr(store, "_turn", store._turn - 1)
                with pytest.raises(LedgerBusyError, match="is over"):
                    store.write(record, None)
        with pytest.raises(LedgerError, match=r"entries are written in a turn: with ledger.turn"):
            one.ledger.append(IssueEntry(**record_fields(record)))
    assert len(read_records(path)) == 1


def record_fields(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.body.items() if name != "entry"}


@pytest.mark.parametrize("do", ["check", "settle", "value", "records", "turn"])
def test_every_question_of_another_epoch_is_refused(path: Path, do: str) -> None:
    asked = {"do": do, "digest": "x", "begin": 0, "size": 0, "known": 0, "wait": 1}
    with owned(path), Client(default_socket(path)) as client:
        client.ask({"do": "hello"})
        with pytest.raises(LedgerFencedError, match="process is of epoch 7: nothing was recorded"):
            client.ask({**asked, "epoch": 7})


def test_an_entry_of_unknown_outcome_ends_what_its_process_may_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owned(path, grace=60):
        one = begun(path)
        ask = Client.ask

        def lost(self: Client, fields: dict[str, Any], *more: Any, **named: Any) -> Any:
            found = ask(self, fields, *more, **named)
            if fields["do"] not in ("write", "append"):
                return found
            self._lost = "it was cut"
            raise LocalSocketError("the connection was lost")

        with monkeypatch.context() as patch:
            patch.setattr(Client, "ask", lost)
            with pytest.raises(LedgerError, match="cannot be asked: the connection was lost"):
                one.issue(SUM.loss(), users=USERS, label="x")
        with pytest.raises(LedgerError, match="interrupted half-way: resume"):
            one.issue(SUM.loss(), users=USERS, label="y")
        with one.ledger.turn(), pytest.raises(LedgerError, match="half-way: open the ledger again"):
            one.ledger.append(IssueEntry(**vars(one.ledger.entries[-1])))
        assert [record.body["label"] for record in read_records(path)[1:]] == ["x"]


def test_an_owner_that_writes_another_entry_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owned(path):
        one = begun(path)
        asked = Client.ask

        def other(self: Client, fields: dict[str, Any], data: bytes = b"", **named: Any) -> Any:
            if fields["do"] == "append":
                data = made(one, "other").data
                fields = {**fields, "entry": len(data)}
            return asked(self, fields, data, **named)

        with monkeypatch.context() as patch:
            patch.setattr(Client, "ask", other)
            with pytest.raises(LedgerUnreadableError, match="another entry was written"):
                one.issue(SUM.loss(), users=USERS, label="mine")
        with pytest.raises(LedgerError, match="interrupted half-way"):
            one.issue(SUM.loss(), users=USERS, label="mine")


def test_what_others_wrote_is_checked_by_every_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that check nothing, the owner among them, spend beyond the cap: a third one stops."""
    check = Accounts.check

    def only_opens(self: Accounts, entry: Any, minute: int | None = None) -> None:
        if entry.entry == "open":
            check(self, entry)

    with owned(path):
        one, other = begun(path, "1/200"), joined(path)
        with monkeypatch.context() as patch:
            patch.setattr(Accounts, "check", only_opens)
            patch.setattr(other._state, "check", lambda entry, minute=None: Checked(entry))
            for _ in range(2):
                other._issue(SUM.loss(), USERS, "sum", one.failure() * 0, None)
        with pytest.raises(LedgerError, match=r"does not check.*: budget exceeded"):
            one.remaining()


def test_two_accounts_of_one_ledger_take_turns(path: Path) -> None:
    with owned(path):
        one = begun(path)
        other = begun(path, "3/200", shared=True)
        run(other)
        run(one)
        run(other)
        assert (one.spent(), other.spent()) == (ZCDP("1/200"), ZCDP("2/200"))
        with pytest.raises(LedgerBusyError, match="writes for accountant"):
            Account.resume(connected(path), noise=NOISE(2), accountant=other.id)
    assert list(audit(path).problems) == []


def test_an_account_that_was_joined_is_not_resumed(path: Path) -> None:
    with owned(path):
        one = begun(path)
        other = joined(path)
        one.ledger.close()
        with pytest.raises(LedgerBusyError, match="an account is resumed by one process alone"):
            Account.resume(connected(path), noise=NOISE(2))
        run(other)
        other.ledger.close()
        Account.resume(connected(path), noise=NOISE(2))


def test_an_account_is_found_that_was_opened_after_its_process_connected(path: Path) -> None:
    with owned(path, grace=60):
        early = [connected(path), connected(path), connected(path)]
        one = begun(path)
        run(one)
        assert Account.join(early[0], noise=NOISE(1)).spent() == ZCDP("1/200")
        with pytest.raises(LedgerBusyError, match="an account is resumed by one process alone"):
            Account.resume(early[1], noise=NOISE(2))
        with pytest.raises(LedgerError, match="another accountant has begun this ledger"):
            Account(ZCDP(1), users=USERS, ledger=early[2], noise=NOISE(3))
    assert list(audit(path).problems) == []


# In one loop, where nothing happens in between ---------------------------------------------------


def in_a_loop(path: Path, scenario: Any, **named: Any) -> None:
    Ledger.create(path).close()

    async def play() -> None:
        with Ledger.open(path) as ledger:
            owner = LedgerOwner(ledger, Accounts.read(ledger), **named)
            await scenario(owner, ledger)
            await owner.end()

    asyncio.run(play())


def test_who_comes_back_in_time_keeps_its_tokens(path: Path) -> None:
    async def scenario(owner: LedgerOwner, ledger: Ledger) -> None:
        first, again = Peer(1, Limits()), Peer(1, Limits())
        hello = await owner.answer(first, Message({"do": "hello"}))
        session = owner._sessions[hello.fields["session"]]
        owner.left(first)
        assert session.end is not None
        told = {"do": "hello", "session": hello.fields["session"], "epoch": ledger.log.tip.epoch}
        await owner.answer(again, Message(told))
        await asyncio.sleep(0.05)
        assert list(owner._sessions.values()) == [session]
        await owner.answer(again, Message({"do": "check", "epoch": ledger.log.tip.epoch}))

    in_a_loop(path, scenario, grace=0.02)


def test_an_owner_that_failed_answers_nothing_more(path: Path) -> None:
    async def scenario(owner: LedgerOwner, ledger: Ledger) -> None:
        peer = Peer(1, Limits())
        await owner.answer(peer, Message({"do": "hello"}))
        owner._fail(LedgerError("no disk"))
        told = {"epoch": ledger.log.tip.epoch, "begin": 0, "size": 0, "known": 0, "wait": 0}
        for do in ("records", "turn", "check", "value", "enter", "hello"):
            with pytest.raises(LedgerError, match="stops: no disk; nothing more is recorded"):
                await asyncio.wait_for(owner.answer(peer, Message({"do": do, **told})), 5)

    in_a_loop(path, scenario)


def test_an_owner_that_failed_admits_nobody(path: Path) -> None:
    async def scenario(owner: LedgerOwner, ledger: Ledger) -> None:
        with People.memory(Participation(most=2)) as people:
            answerer = _answerer(owner, ledger, people)
            peer, epoch = Peer(1, Limits()), ledger.log.tip.epoch
            asked = Message({"registry": "look", "epoch": epoch})
            assert (await answerer.answer(peer, asked)).fields["epoch"] == epoch
            owner._fail(LedgerError("no disk"))
            with pytest.raises(LedgerError, match="stops: no disk; nothing more is recorded"):
                await answerer.answer(peer, asked)

    in_a_loop(path, scenario)


# What is given that is none -----------------------------------------------------------------------


def test_a_served_file_is_opened_by_nobody_else_in_its_owners_process_neither(path: Path) -> None:
    with owned(path):
        with pytest.raises(LedgerBusyError, match="is served by its owner"):
            Ledger.open(path)
        run(begun(path))
    Ledger.open(path).close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"turn_seconds": float("nan")}, "turn_seconds = nan: must be finite"),
        ({"turn_seconds": 0}, "turn_seconds = 0: must be > 0"),
        ({"turn_seconds": "x"}, "turn_seconds = 'x': must be a number"),
        ({"grace": -1}, "grace = -1: must be >= 0"),
        ({"grace": float("inf")}, "grace = inf: must be finite"),
        ({"people": "people.db"}, "people: a str: must be the registry"),
    ],
)
def test_an_owner_is_not_begun_with_what_it_cannot_use(
    path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message), owned(path, **given):
        pass
    assert not path.exists()


def test_what_is_no_head_is_not_looked_for(path: Path) -> None:
    with owned(path) as socket:
        for head in ("zz", "A" * 64, 5, ""):
            with pytest.raises(ValueError, match="must be 64 hexadecimal digits in lower case"):
                Ledger.connect(socket, head=head)  # type: ignore[arg-type]


def test_a_typing_error_does_not_open_a_ledger_anew() -> None:
    with pytest.raises(ValueError, match="how = 'jion': must be 'create', 'open' or 'join'"):
        Ledger.postgres("postgresql://nobody@127.0.0.1:1/x?ledger=x", "jion")  # type: ignore[arg-type]


def test_another_database_is_not_taken_for_postgresql() -> None:
    with pytest.raises(LedgerError, match="is no address: postgresql://"):
        Ledger.postgres("mysql://nobody@127.0.0.1:1/x?ledger=x")


@pytest.mark.parametrize("socket", ["", "a\0b"])
def test_a_socket_has_a_name(socket: str) -> None:
    with pytest.raises(LocalSocketError, match="must name a file"):
        located_socket(socket)


@pytest.mark.parametrize("ledger", [5, "ledger.db"])
def test_what_is_no_ledger_is_not_joined(ledger: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a Ledger, Ledger\.connect"):
        Account.join(ledger)
