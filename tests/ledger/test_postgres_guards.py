"""Second looks of the PostgreSQL store, of which each one catches what the first one cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from postgres import Server
from postgres_processes import NOISE, USERS, Account, run
from psycopg import errors as sql
from sqlalchemy import text

from privlearn.accountants import CentralAccountant
from privlearn.errors import (
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerHeadError,
    LedgerUnreadableError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.postgres import PostgresStore, of_nonce
from privlearn.ledger.postgres_schema import statements
from privlearn.ledger.postgres_sessions import Conflict, LostConnection, Session
from privlearn.losses.budgets import ZCDP
from privlearn.people import postgres_schema as of_people


@pytest.fixture
def name(postgres: Server) -> str:
    return postgres.new_name()


@pytest.fixture
def begun(postgres: Server, name: str) -> Iterator[Account]:
    with Ledger.postgres(postgres.url(ledger=name), "create") as ledger:
        yield CentralAccountant(ZCDP("1/2"), users=USERS, ledger=ledger, noise=NOISE(0))


def session_of(account: Account) -> Session:
    store = account.ledger._shared
    assert isinstance(store, PostgresStore)
    assert store._held.session is not None
    return store._held.session


# Epochs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM privlearn.epochs", "it is not there any more"),
        ("UPDATE privlearn.epochs SET writer = '0000000000000000'", "it is epoch 1"),
    ],
)
def test_an_epoch_that_is_not_the_one_that_was_begun_fences(
    postgres: Server, name: str, begun: Account, change: str, said: str
) -> None:
    """As where two servers were primaries, and each began one."""
    postgres.execute(f"{change} WHERE ledger = '{name}'")
    for act in (lambda: run(begun), begun.ledger.check_own):
        with pytest.raises(LedgerFencedError, match=said):
            act()


def test_no_ledger_is_begun_over_entries_whose_epochs_are_gone(
    postgres: Server, name: str, begun: Account
) -> None:
    postgres.execute(f"DELETE FROM privlearn.epochs WHERE ledger = '{name}'")
    with pytest.raises(LedgerError, match="exists: ledgers are never overwritten"):
        Ledger.postgres(postgres.url(ledger=name), "create")


def test_an_epoch_that_no_standby_confirmed_is_not_written_in(
    postgres: Server, name: str, begun: Account
) -> None:
    with postgres.unconfirmed(), pytest.raises(LedgerError, match=r"replication.*open it again"):
        Ledger.postgres(postgres.url(ledger=name))
    Ledger.postgres(postgres.url(ledger=name)).close()


# Entries ------------------------------------------------------------------------------------------


def test_a_process_does_not_go_on_behind_another_entry_than_it_knows(
    postgres: Server, name: str, begun: Account
) -> None:
    run(begun)
    postgres.execute(
        f"UPDATE privlearn.entries SET hash = '{'0' * 64}' WHERE ledger = '{name}' AND seq = 3"
    )
    with pytest.raises(LedgerHeadError, match="does not stand there any more"):
        run(begun)


def test_what_stands_under_a_nonce_is_ours_only_with_our_body_at_our_position(
    begun: Account,
) -> None:
    run(begun)
    store, session = begun.ledger._shared, session_of(begun)
    assert isinstance(store, PostgresStore)
    ours, other = begun.ledger.records[1:3]
    assert of_nonce(session, store.name, store.ledger, ours) == ours
    for not_ours in (replace(ours, seq=2), replace(ours, body=other.body)):
        with pytest.raises(LedgerUnreadableError, match="has the nonce of an entry"):
            of_nonce(session, store.name, store.ledger, not_ours)


def test_the_server_takes_no_nonce_and_no_position_twice(
    postgres: Server, name: str, begun: Account
) -> None:
    entry = f"INSERT INTO privlearn.entries VALUES ('{name}', %d, '', '', 'n', 1)"
    with pytest.raises(sql.UniqueViolation, match="nonce"):
        postgres.execute(*(entry % seq for seq in (10, 11)))
    with pytest.raises(sql.UniqueViolation, match="seq"):
        postgres.execute((entry % 12).replace("'n'", "'m'"), (entry % 12).replace("'n'", "'o'"))


# Sessions -----------------------------------------------------------------------------------------


def test_a_transaction_that_failed_is_not_taken_for_committed(begun: Account) -> None:
    """To COMMIT the server answers then with ROLLBACK, and without an error."""
    session = session_of(begun)
    session.begin()
    with suppress(LedgerError):
        session.run(text("SELECT 1 / 0"))
    with pytest.raises(LedgerError, match="nothing to commit; nothing was recorded"):
        session.commit()


def test_what_the_server_undid_can_be_tried_again(begun: Account) -> None:
    session = session_of(begun)
    for error, meaning in {
        sql.SerializationFailure(): Conflict,
        sql.DeadlockDetected(): Conflict,
        sql.LockNotAvailable(): LedgerBusyError,
        sql.QueryCanceled(): LedgerBusyError,
    }.items():
        assert type(session._meaning(error)) is meaning


def test_a_connection_that_was_lost_is_not_replaced_without_its_locks(
    postgres: Server, begun: Account
) -> None:
    session = session_of(begun)
    postgres.execute(f"SELECT pg_terminate_backend({session._backend}, 5000)")
    for _ in range(2):
        with pytest.raises(LostConnection):
            session.run(text("SELECT 1"))


def test_a_commit_waits_for_at_least_the_standbys_disk(
    postgres: Server, name: str, begun: Account
) -> None:
    with (
        postgres.configured(synchronous_commit="remote_apply"),
        Ledger.postgres(postgres.url(ledger=name), "join") as ledger,
    ):
        account = Account.join(ledger, noise=NOISE(1))
        session = session_of(account)
        assert session.one(text("SHOW synchronous_commit")) == ("remote_apply",)
        session.run(text("SET synchronous_commit = local"))
        with pytest.raises(LedgerError, match="synchronous_commit = local although"):
            run(account)


# Roles --------------------------------------------------------------------------------------------


def test_roles_may_do_what_they_need_and_nothing_else() -> None:
    granted = [
        each
        for each in (
            *statements(writers=["shop"], readers=["auditor"]),
            *of_people.statements(keepers=["desk"]),
        )
        if each.startswith("GRANT") and "GRANT USAGE ON SCHEMA" not in each
    ]
    ledgers = "privlearn.epochs, privlearn.entries, privlearn.released"
    assert granted == [
        f'GRANT SELECT, INSERT ON {ledgers} TO "shop"',
        f'GRANT SELECT ON {ledgers} TO "auditor"',
        'GRANT SELECT, INSERT, UPDATE ON privlearn.registries TO "desk"',
        'GRANT SELECT, INSERT, UPDATE ON privlearn.people TO "desk"',
    ]
