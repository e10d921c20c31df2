"""Grants: who may spend how much of an account until when, and who sees to it."""

from __future__ import annotations

import asyncio
import grp
import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.accounts import Accounts
from privlearn.accountants.allowances import Allowance
from privlearn.accountants.serving import owning_ledger
from privlearn.cli.main import app
from privlearn.errors import BudgetError, LedgerError, PeopleError
from privlearn.ledger import Ledger
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import minute_of
from privlearn.ledger.entries import (
    CapEntry,
    CloseEntry,
    Entry,
    IssueEntry,
    RetireEntry,
    ReturnEntry,
)
from privlearn.ledger.owner import LedgerOwner
from privlearn.losses.budgets import PureDP
from privlearn.noise import NoiseSource
from privlearn.people.server import PeopleAnswers, WithPeople
from privlearn.storage.frames import Limits, Message
from privlearn.storage.sockets import Peer

USERS = range(10)
NOW = minute_of("2030-05-01T12:00Z")
Account = CentralAccountant[PureDP]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [NOW]
    monkeypatch.setattr("privlearn.ledger.entry_log.this_minute", lambda: now[0])
    return now


def in_file(path: Path) -> Account:
    return Account(PureDP(2), users=USERS, ledger=path)


def spend(part: Any, epsilon: str) -> None:
    with part.meter(PureDP(epsilon), label="x") as block:
        block.release(0)


def problems_of_one_file(path: Path) -> list[str]:
    file = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[str] = module.verify(path)["problems"]
    return found


# Until when ---------------------------------------------------------------------------------------


def test_a_grant_ends_with_its_time(tmp_path: Path, clock: list[int]) -> None:
    path = tmp_path / "ledger.db"
    with in_file(path) as account:
        grant = account.nested(PureDP(1), label="a", to="alice", until="2030-05-02")
        inner = grant.nested(PureDP("0.5"), label="project")
        spend(inner, "0.1")
        late = grant.issue(PureDP("0.1"), users=USERS, label="late")
        clock[0] = minute_of("2030-05-02T00:00Z")
        for part in (grant, inner):
            with pytest.raises(BudgetError, match="was granted until 2030-05-02T00:00Z"):
                spend(part, "0.1")
        late.retire()
        spend(account, "0.1")
        assert account.spent() == PureDP("0.2")
    found = audit(path)
    assert found.problems == problems_of_one_file(path) == []
    told = [(cap.to, cap.until, cap.share) for cap in found.caps]
    assert told == [("alice", "2030-05-02T00:00Z", 0.1), (None, None, 0.2)]


def test_both_verifiers_find_what_was_spent_behind_the_end(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    with in_file(path) as account, monkeypatch.context() as patched:
        grant = account.nested(PureDP(1), label="a", until="2030-05-02")
        clock[0] += 1440
        patched.setattr(Allowance, "check_until", lambda self, minute: None)
        spend(grant, "0.1")
    assert any("was granted until" in problem for problem in audit(path).problems)
    assert any("a grant that ended" in problem for problem in problems_of_one_file(path))


@pytest.mark.parametrize(
    "until", ["2030-05-01", "2030-05-01T12:00Z", "tomorrow", "2030-13-01", "2031", 7]
)
def test_a_time_that_is_over_or_none_is_refused(clock: list[int], until: Any) -> None:
    account = Account(PureDP(2), users=USERS, noise=NoiseSource.simulation(0))
    with pytest.raises(ValueError, match="must be a day or time to come"):
        account.nested(PureDP(1), label="a", until=until)
    with pytest.raises(BudgetError, match="no cap 'a'"):
        account.granted("a")


def test_an_ended_grant_is_not_found_and_another_term_is_refused(clock: list[int]) -> None:
    account = Account(PureDP(2), users=USERS, noise=NoiseSource.simulation(0))
    grant = account.nested(PureDP(1), label="a", to="alice")
    with pytest.raises(BudgetError, match="stands with to = alice, not bob"):
        account.nested(PureDP(1), label="a", to="bob")
    assert account.granted("a").budget == PureDP(1)
    grant.close()
    with pytest.raises(BudgetError, match="was returned before"):
        account.granted("a")


# The owner, asked by a process of another user ----------------------------------------------------


def stored(entry: Entry) -> bytes:
    said = {"at": "2030-05-01T12:00Z", "epoch": 1, "nonce": token_hex(16), "writer": "0" * 16}
    return canonical({"body": entry.body(), **said})


async def asked(owner: LedgerOwner, peer: Peer, entry: Entry) -> Entry:
    epoch = owner._ledger.log.tip.epoch
    size = owner._ledger.log.tip.size
    known = {"size": size, "known": size, "wait": 5, "epoch": epoch}
    turn = (await owner.answer(peer, Message({"do": "turn", **known}))).fields["turn"]
    data = stored(entry)
    said = {"turn": turn, "seq": size, "entry": len(data), "digest": None}
    try:
        await owner.answer(peer, Message({"do": "write", "epoch": epoch, **said}, data))
    finally:
        end = {"turn": turn, "settle": False, "epoch": epoch}
        await owner.answer(peer, Message({"do": "end", **end}))
    return entry


def test_another_user_writes_what_was_granted_to_them_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "privlearn.ledger.owner.user_named", {1: "alice", 2: "bob", 3: "carol"}.__getitem__
    )
    path = tmp_path / "ledger.db"
    account = in_file(path)
    mine = account.nested(PureDP(1), label="a", to="alice")._name
    other = account.nested(PureDP(1), label="b", to="bob")._name
    account.ledger.close()

    def token(number: int, name: str | None, epsilon: str = "0.5") -> IssueEntry:
        return IssueEntry(
            accountant=account.id,
            token=f"{account.id}/{number}",
            label="x",
            users=(0, 10),
            budget=PureDP(epsilon).to_dict(),
            allowance=name,
        )

    def cap(name: str, within: str | None) -> CapEntry:
        return CapEntry(
            accountant=account.id,
            allowance=name,
            label=name,
            users=(0, 10),
            budget=PureDP("0.1").to_dict(),
            within=within,
        )

    def end(number: int) -> RetireEntry:
        return RetireEntry(accountant=account.id, token=f"{account.id}/{number}", outcome="unused")

    async def play() -> None:
        with Ledger.open(path) as ledger:
            owner = LedgerOwner(ledger, Accounts.read(ledger), grace=0)
            keeper, alice, bob = (Peer(n, Limits(), n or None) for n in range(3))
            for peer in (keeper, alice, bob):
                await owner.answer(peer, Message({"do": "hello"}))
            with pytest.raises(LedgerError, match="nothing is granted to user 'carol'"):
                await owner.answer(Peer(3, Limits(), 3), Message({"do": "hello"}))
            await asked(owner, keeper, token(1, None))
            await asked(owner, alice, token(2, mine))
            await asked(owner, bob, token(3, other))
            for entry in (
                token(4, None),
                token(4, other),
                cap("outer", None),
                cap("inner", other),
                end(1),
                end(3),
                ReturnEntry(accountant=account.id, allowance=other),
                CloseEntry(accountant=account.id),
            ):
                with pytest.raises(BudgetError, match="by 'alice', who may only spend what was"):
                    await asked(owner, alice, entry)
            with pytest.raises(BudgetError, match=r"budget exceeded .* in cap 'a'"):
                await asked(owner, alice, token(4, mine, "0.6"))
            alone = {"accountant": account.id, "alone": True, "epoch": ledger.log.tip.epoch}
            with pytest.raises(BudgetError, match="joins the account"):
                await owner.answer(alice, Message({"do": "enter", **alone}))
            await asked(owner, alice, end(2))
            await asked(owner, alice, cap("inner", mine))
            await asked(owner, alice, token(4, "inner", "0.1"))
            await asked(owner, keeper, ReturnEntry(accountant=account.id, allowance=mine))
            with pytest.raises(BudgetError, match="was returned before"):
                await asked(owner, alice, token(5, mine, "0.1"))
            people: Any = object()
            with pytest.raises(PeopleError, match="its owner's user"):
                await WithPeople(owner, PeopleAnswers(people, lambda: 1)).answer(
                    alice, Message({"registry": "look"})
                )
            await owner.end()

    asyncio.run(play())
    assert audit(path).problems == []


AS_ANOTHER = """
import os, sys, _strptime
from privlearn import PureDP
from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
import privlearn.ledger.socket_store

def spend(account):
    with account.granted("a").meter(PureDP("0.4"), label="x") as block:
        block.release(1)

tried = CentralAccountant(PureDP(1), users=range(10), noise=NoiseSource.simulation(0))
tried.nested(PureDP(1), label="a", until="2999-01-01")
spend(tried)  # all is imported: the other user may not read what is
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(1)
try:
    Ledger.connect(sys.argv[1])
except Exception as error:
    print("both must be the same" in str(error))
account = CentralAccountant.join(Ledger.connect(sys.argv[1], owner="root"))
for attempt in range(3):
    try:
        spend(account)
        print("spent")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_spends_its_grant_over_the_socket() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o711)  # pytest's are closed to others
        spends_over_a_socket(Path(folder) / "ledger.db")


def spends_over_a_socket(path: Path) -> None:
    group = grp.getgrgid(65534)
    with owning_ledger(path, new=True, group=group.gr_name) as socket:
        assert socket.stat().st_mode & 0o777 == 0o660
        with Ledger.connect(socket) as ledger:
            account = Account(PureDP(2), users=USERS, ledger=ledger)
            account.nested(PureDP(1), label="a", to="daemon", until="2999-01-01")
            program = [sys.executable, "-c", textwrap.dedent(AS_ANOTHER), str(socket), "65534"]
            done = subprocess.run(program, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "spent", "spent", "InsufficientBudgetError"], done.stderr
    assert audit(path).caps[0].share == pytest.approx(0.8)


def test_a_group_or_user_that_is_none_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="group 'nobody here'"),
        owning_ledger(tmp_path / "ledger.db", new=True, group="nobody here"),
    ):
        pass
    assert not (tmp_path / "ledger.db").exists()
    with pytest.raises(ValueError, match="user 'nobody here'"):
        Ledger.connect(tmp_path / "none.sock", owner="nobody here")


# The command line ---------------------------------------------------------------------------------


def test_grants_are_made_listed_and_revoked_beside_who_spends(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["ledger", *arguments])
        return done.exit_code, done.output

    in_file(path).ledger.close()
    assert run("grants", str(path)) == (0, "nothing was granted\n")
    told = run("grant", str(path), "a", "--to", "alice", "--cap", "25%", "--until", "2999-01-01")
    assert told == (0, "a: PureDP('0.5') granted to alice\n")
    with owning_ledger(path) as socket:
        account = Account.join(Ledger.connect(socket))
        assert run("grant", str(path), "b", "--to", "bob", "--cap", "epsilon=1")[0] == 0
        spend(account.granted("b"), "0.25")
        assert run("revoke", str(path), "b") == (0, "b: ended, with PureDP('0.25') spent\n")
        with pytest.raises(BudgetError, match="was returned before"):
            spend(account.granted("b"), "0.25")
        account.ledger.close()
    code, listed = run("grants", str(path))
    assert code == 0
    assert [line.split()[:3] for line in listed.splitlines()[1:]] == [
        ["a", "1", "alice"],
        ["b", "1", "bob"],
    ]
    assert "25.0%" in listed
    assert listed.count("ended") == 1
    for wrong in (
        ("revoke", str(path), "b"),
        ("grant", str(path), "c", "--to", "carol", "--cap", "epsilon=9"),
        ("grant", str(path), "c", "--to", "carol", "--cap", "rho=1"),
        ("grant", str(path), "c", "--to", "carol", "--cap", "nothing"),
        ("grant", str(path), "c", "--to", "", "--cap", "epsilon=1"),
        ("grant", str(tmp_path / "none.db"), "c", "--to", "carol", "--cap", "epsilon=1"),
    ):
        assert run(*wrong)[0] == 2, wrong
    assert run("grants", str(tmp_path / "none.db"))[0] == 4
    assert audit(path).problems == []
