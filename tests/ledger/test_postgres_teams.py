"""Roles of teams in PostgreSQL: what the database lets them insert, whatever their code does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from pages import run_page
from postgres import Server

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import BudgetError, InsufficientBudgetError, LedgerError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import CapEntry, Entry, RetireEntry
from privlearn.ledger.postgres_teams import script
from privlearn.losses.budgets import PureDP

USERS = range(10)
Account = CentralAccountant[PureDP]


@pytest.fixture
def teams(postgres: Server) -> Iterator[None]:
    with postgres.role("alice"), postgres.role("bob"):
        Ledger.postgres(postgres.url(ledger=postgres.new_name()), "create").close()
        postgres.execute(script(["alice", "bob"]))
        yield


def joined(postgres: Server, role: str, name: str) -> Account:
    return Account.join(Ledger.postgres(postgres.url(role, ledger=name), "join"))


def written(account: Account, entry: Entry) -> None:
    with account._lock:
        account._log.append(entry)


@pytest.mark.usefixtures("teams")
def test_a_team_spends_what_was_granted_to_it_and_nothing_else(postgres: Server) -> None:
    name = postgres.new_name()
    keeper = Account(
        PureDP(3), users=USERS, ledger=Ledger.postgres(postgres.url(ledger=name), "create")
    )
    keeper.nested(PureDP(1), label="a", to="alice", until="2999-01-01")
    postgres.execute(script(["alice", "bob"]))  # again: it knows the grant that stands
    keeper.nested(PureDP(1), label="b", to="bob")
    alice, bob = joined(postgres, "alice", name), joined(postgres, "bob", name)
    with alice.granted("a").meter(PureDP("0.4"), label="x") as spend:
        spend.release(1.0)
    with pytest.raises(InsufficientBudgetError):
        alice.granted("a").issue(PureDP("0.7"), users=USERS, label="x")
    inner = alice.granted("a").nested(PureDP("0.3"), label="project")
    with inner.meter(PureDP("0.2"), label="x") as spend:
        spend.release(1.0)
    with (
        alice.granted("a").delegate(PureDP("0.1"), users=USERS, label="part") as part,
        part.meter(PureDP("0.1"), label="x") as spend,
    ):
        spend.release(1.0)
    token = keeper.issue(PureDP("0.1"), users=USERS, label="x")
    theirs = keeper.granted("a")._name
    with patch("privlearn.accountants.account_log.check_right"):  # code that does not look
        for attempt in (
            lambda: bob.issue(PureDP("0.1"), users=USERS, label="x"),
            lambda: bob.granted("a").issue(PureDP("0.1"), users=USERS, label="x"),
            lambda: bob.granted("a").close(),
            lambda: bob.nested(PureDP(1), label="mine", to="bob"),
            lambda: bob.granted("a").delegate(PureDP("0.1"), users=USERS, label="x"),
            lambda: bob.close(),
            lambda: written(bob, RetireEntry(accountant=bob.id, token=token.id, outcome="unused")),
        ):
            with pytest.raises(LedgerError, match="role bob may only spend what was granted"):
                attempt()
        with (
            patch.object(bob._state, "check"),
            pytest.raises(LedgerError, match="role bob may only spend what was granted"),
        ):  # a cap that would pass for another one
            written(
                bob,
                CapEntry(
                    accountant=bob.id,
                    allowance=theirs,
                    label="mine",
                    users=(0, 10),
                    budget=PureDP("0.1").to_dict(),
                    within=bob.granted("b")._name,
                ),
            )
    with pytest.raises(LedgerError, match="permission denied"):
        Ledger.postgres(postgres.url("bob", ledger=name))  # a new epoch ends all others
    keeper.granted("a").close()
    with pytest.raises(BudgetError, match="was returned before"):
        alice.granted("a/project").issue(PureDP("0.1"), users=USERS, label="x")
    for account in (alice, bob, keeper):
        account.ledger.close()
    found = audit(postgres.url(ledger=name))
    assert found.problems == []
    assert [(cap.name, cap.to, cap.closed) for cap in found.caps] == [
        ("a", "alice", True),
        ("b", "bob", False),
        ("a/project", None, False),
    ]


def test_all_blocks_of_the_page_run_as_shown(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/several-teams.md").read_text("utf-8")
    name = postgres.new_name()
    for role in ("keeper", "marketing"):
        address = postgres.url(*([role] if role == "marketing" else []), ledger=name)
        page = page.replace(f"postgresql://{role}@db.example.org/app?ledger=shop", address)
    with postgres.role("marketing"), postgres.role("research"):
        Ledger.postgres(postgres.url(ledger=postgres.new_name()), "create").close()
        postgres.execute(script(["marketing", "research"]))
        assert run_page(page, "several-teams.md", tmp_path, monkeypatch) == 4
