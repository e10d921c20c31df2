"""A registry and the ledger that it stands beside: one owner, one epoch, nobody waits in vain."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from postgres import Server
from typer.testing import CliRunner

from privlearn import Ledger, NoiseSource
from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.serving import owning_ledger
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT
from privlearn.errors import InsufficientBudgetError, LedgerError, PeopleError
from privlearn.ledger.postgres_schema import statements as ledger_tables
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.people import People
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

RULE = Participation(2)
SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/2"), adjacency=Adjacency.ZERO_OUT)
USERS = range(8)


class Beside(NamedTuple):
    """One more process's access to a ledger, and to the registry beside it."""

    begun: Ledger
    joined: Callable[[], Ledger]
    people: Callable[[], People]
    named: tuple[str, ...]
    """Arguments of commands that name the registry."""


@pytest.fixture(params=["owner", "postgres"])
def beside(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Beside]:
    with ExitStack() as stack:
        keep = stack.enter_context
        if request.param == "owner":
            registry = keep(People.create(tmp_path / "people.db", RULE))
            socket = keep(owning_ledger(tmp_path / "ledger.db", new=True, people=registry))
            yield Beside(
                keep(Ledger.connect(socket)),
                lambda: keep(Ledger.connect(socket)),
                lambda: keep(People.connect(socket)),
                (str(socket),),
            )
            return
        server: Server = request.getfixturevalue("postgres")
        address, key = server.url(ledger=secrets.token_hex(4)), tmp_path / "key"
        ledger = keep(Ledger.postgres(address, "create"))
        keep(People.postgres(ledger, "create", rule=RULE, key=key))
        yield Beside(
            ledger,
            lambda: keep(Ledger.postgres(address, "join")),
            lambda: keep(People.postgres(address, key=key)),
            (address, "--key", str(key)),
        )


def test_two_processes_admit_and_spend_from_one_cap(beside: Beside) -> None:
    accounts = [
        CentralAccountant(
            ZCDP(2),
            users=USERS,
            people=beside.people(),
            ledger=beside.begun,
            noise=NoiseSource.simulation(0),
        )
    ]
    accounts.append(
        CentralAccountant[ZCDP].join(
            beside.joined(), people=beside.people(), noise=NoiseSource.simulation(1)
        )
    )
    one = PartialSum._opened(SUM.partial(Rows.seal(np.ones((1, 2)), users=range(1))))
    for begin, learned, account in zip((0, 4), (3, 1), accounts, strict=True):
        assert account.people is not None
        rows = account.people.seal_next(np.ones((4, 2)), ["a", "b", "a", None])
        assert rows.users == range(begin, begin + 4)
        token = account.issue(SUM.loss(), users=rows.users, label="sum")
        assert (PartialSum._opened(SUM.partial(rows)) == learned * one).all()
        SUM.release(rows, token)
    for account in accounts:
        assert account.remaining() == ZCDP(0)
        with pytest.raises(InsufficientBudgetError):
            account.issue(SUM.loss(), users=USERS, label="sum")
    assert list(certify(beside.joined().records).problems) == []


def test_who_admits_waits_for_nobody_who_spends(beside: Beside) -> None:
    """Else two processes would wait for each other: an entry states the registry's clock."""
    people, other = beside.people(), beside.people()
    people.bind("me", USERS)
    with beside.begun.turn():
        assert people.admit_next(["a"]).learned.all()
        other.forget("a")
        assert people.clock == 1


def test_commands_reach_it_while_it_is_used(beside: Beside) -> None:
    people = beside.people()
    people.bind("me", USERS)
    people.admit_next(["maria", "zoe"])
    runner = CliRunner()
    shown = runner.invoke(app, ["people", "show", *beside.named])
    assert shown.exit_code == 0, shown.output
    assert "next slot: 2" in shown.output
    done = runner.invoke(app, ["people", "forget", *beside.named, "--id", "maria"])
    assert done.exit_code == 0, done.output
    assert "maria" not in done.output
    assert people.admit_next(["maria", "zoe"]).learned.tolist() == [False, True]


def test_a_registry_in_a_database_is_named_with_its_key(postgres: Server) -> None:
    found = CliRunner().invoke(app, ["people", "show", postgres.url(ledger="shop")])
    assert found.exit_code == BAD_INPUT
    assert "--key" in found.output


def test_tables_are_printed_for_the_administrator() -> None:
    found = CliRunner().invoke(app, ["people", "postgres-schema", "--keeper", "shop desk"])
    assert found.exit_code == 0
    assert found.output.count("CREATE TABLE") == 2
    assert 'GRANT SELECT, INSERT, UPDATE ON privlearn.people TO "shop desk";' in found.output
    assert "DELETE" not in found.output


def test_a_role_that_may_not_is_told_what_people_need(postgres: Server, tmp_path: Path) -> None:
    with postgres.database() as database, postgres.role("clerk", database=database):
        postgres.execute(*ledger_tables(writers=["clerk"]), database=database)
        address = postgres.url("clerk", database=database, ledger="shop")
        with Ledger.postgres(address, "create") as ledger:
            wanted = "denied.*`privlearn people postgres-schema --keeper ROLE` prints"
            with pytest.raises(PeopleError, match=wanted):
                People.postgres(ledger, "create", rule=RULE, key=tmp_path / "key")


def test_an_owner_without_a_registry_says_so(tmp_path: Path) -> None:
    with (
        owning_ledger(tmp_path / "ledger.db", new=True) as socket,
        pytest.raises(PeopleError, match=r"keeps no registry of people.*--people"),
    ):
        People.connect(socket)


def test_the_next_owner_goes_on_with_what_was_used_up(tmp_path: Path) -> None:
    ledger, registry = tmp_path / "ledger.db", tmp_path / "people.db"
    with (
        People.create(registry, RULE) as kept,
        owning_ledger(ledger, new=True, people=kept) as socket,
    ):
        people = People.connect(socket)
        people.bind("me", USERS)
        people.admit_next(["a", "a"])
    with People.open(registry) as kept, owning_ledger(ledger, people=kept) as socket:
        with pytest.raises(PeopleError, match="connect anew"):
            people.admit_next(["b"])
        with People.connect(socket) as again:
            assert again.admit_next(["a", "b"]).learned.tolist() == [False, True]
    people.close()


def test_an_owner_that_cannot_write_admits_nobody(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"

    def served(kept: People) -> None:
        with (
            owning_ledger(ledger, new=True, people=kept) as socket,
            Ledger.connect(socket) as book,
            People.connect(socket) as people,
        ):
            people.admit_next(["a"])
            ledger.rename(tmp_path / "gone.db")
            with pytest.raises(LedgerError):
                book.check_own()
            with pytest.raises((LedgerError, PeopleError)):
                people.admit_next(["b"])

    with People.create(tmp_path / "people.db", RULE) as kept:
        kept.bind("me", USERS)
        with pytest.raises(LedgerError, match="deleted or replaced"):
            served(kept)
        assert kept.clock == 1
