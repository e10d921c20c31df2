"""What is asked of a PostgreSQL server, of roles in it, and of its administrators."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import psycopg
import pytest
from pages import run_page
from pgbouncer import Pooling, pooled
from postgres import Server
from postgres_processes import NOISE, SUM, USERS, Account, run
from postgres_proxy import proxy_of
from sqlalchemy import text
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import audit
from privlearn.accountants.serving import serve_ledger
from privlearn.cli.main import app
from privlearn.errors import (
    LedgerError,
    LedgerHeadError,
    LedgerUnreadableError,
    PrivlearnError,
)
from privlearn.ledger import Ledger, backup, read_records
from privlearn.ledger import postgres as store
from privlearn.ledger import postgres_reading as reading
from privlearn.ledger.addresses import is_address, shown
from privlearn.ledger.postgres import PostgresStore
from privlearn.ledger.postgres_schema import script
from privlearn.ledger.postgres_sessions import Address, Session, engine_of
from privlearn.ledger.proofs import measure
from privlearn.losses.budgets import ZCDP
from privlearn.people import People
from privlearn.values.participation import Participation


@pytest.fixture
def name(postgres: Server) -> str:
    return postgres.new_name()


@pytest.fixture
def begun() -> Iterator[Callable[..., Account]]:
    ledgers: list[Ledger] = []

    def make(address: str, **options: Any) -> Account:
        ledgers.append(Ledger.postgres(address, "create", **options))
        return CentralAccountant(ZCDP("1/2"), users=USERS, ledger=ledgers[-1], noise=NOISE(0))

    yield make
    for each in ledgers:
        each.close()


def refused(address: str, what: str, how: Any = "create") -> None:
    with pytest.raises(LedgerError, match=what):
        Ledger.postgres(address, how)


# What the server must keep ------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_keep_what_it_commits_is_refused(
    postgres: Server, name: str, begun: Any, setting: str
) -> None:
    account = begun(postgres.url(ledger=name))
    left: list[object] = []
    with postgres.configured(**{setting: "off"}):
        refused(postgres.url(ledger="another"), f"{setting} = off: a crash of the server's machine")
        with pytest.raises(LedgerError, match=f"{setting} = off"):  # also who was connected before
            left.append(run(account))
    assert left == []
    run(account)


def test_commits_are_synchronous_whatever_the_default_is(
    postgres: Server, name: str, begun: Any
) -> None:
    account = begun(postgres.url(ledger=name))
    with postgres.configured(synchronous_commit="off"):
        run(account)  # its session had set it
        with closing(Ledger.postgres(postgres.url(ledger=name), "join")) as ledger:
            store: Any = ledger._shared
            session = store._held.session
            assert session.one(text("SHOW synchronous_commit")) == ("on",)
            session.run(
                text("SET synchronous_commit = off")
            )  # as a pooler does that resets a session
            with pytest.raises(LedgerError, match="synchronous_commit = off although"):
                run(Account.join(ledger, noise=NOISE(1)))


def test_a_server_that_only_reads_is_refused(postgres: Server, name: str) -> None:
    with postgres.role("reading"):
        postgres.execute("ALTER ROLE reading SET default_transaction_read_only = on")
        refused(postgres.url("reading", ledger=name), "takes only reading")


def test_a_database_of_another_encoding_is_refused(postgres: Server, name: str) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    refused(postgres.url(database="latin", ledger=name), "is in LATIN1; a ledger needs UTF8")
    postgres.execute("DROP DATABASE latin WITH (FORCE)")


def test_tables_that_a_crash_empties_are_refused(postgres: Server, name: str) -> None:
    with postgres.database() as database:
        address = postgres.url(database=database, ledger=name)
        Ledger.postgres(address, "create").close()
        postgres.execute("ALTER TABLE privlearn.entries SET UNLOGGED", database=database)
        refused(address, "the table entries is unlogged", "open")


def test_another_process_of_the_server_than_before_is_found(
    postgres: Server, name: str, begun: Any
) -> None:
    """As where a pooler gives each transaction another session, which has no locks of this one."""
    account = begun(postgres.url(ledger=name))
    store: Any = account.ledger._shared
    session, other = store._held.session, Session(store._engine, store.name, writes=True)
    session._connection, other._connection = other._connection, session._connection
    with pytest.raises(LedgerError, match="a pooler that shares sessions"):
        run(account)
    other.close()


POOLED = "a pooler stands between"


def test_a_pooler_between_is_refused(postgres: Server, name: str) -> None:
    with proxy_of(postgres.folder) as proxy:
        address = postgres.url(ledger=name).replace(str(postgres.folder), str(proxy.folder))
        proxy.pools = True
        refused(address, POOLED)
        Ledger.postgres(postgres.url(ledger=name), "create").close()
        refused(address, POOLED, "open")
        assert read_records(address) == []  # who only reads needs no lock


@pytest.mark.parametrize("pooling", ["session", "transaction", "statement"])
def test_a_real_pooler_is_refused_at_once_and_nothing_of_a_reader_stays_behind_it(
    postgres: Server, name: str, begun: Any, pooling: Pooling
) -> None:
    """All clients share one session of the server: what one leaves set, another application has."""
    address = postgres.url(ledger=name)
    run(begun(address))
    written = read_records(address)
    epochs = postgres.execute("SELECT * FROM privlearn.epochs")
    with pooled(postgres, pooling) as folder:
        behind = address.replace(str(postgres.folder), str(folder))
        for how in ("create", "open", "join"):
            refused(behind.replace(name, "another") if how == "create" else behind, POOLED, how)
        assert postgres.execute("SELECT * FROM privlearn.epochs") == epochs
        if pooling == "statement":
            with pytest.raises(LedgerUnreadableError, match="not allowed in statement pooling"):
                read_records(behind)
        else:
            with ThreadPoolExecutor(4) as readers:
                for found in readers.map(read_records, [behind] * 8):
                    assert found == written
            assert audit(behind) == audit(address)
            often = {f"{i:064x}" for i in range(8)}  # of what is run as often, psycopg prepares
            assert list(reading.read_values(behind, often)) == []
        with psycopg.connect(
            host=str(folder), user="postgres", dbname="postgres", autocommit=True
        ) as other:
            left = other.execute(
                "SELECT count(*) FROM pg_settings WHERE source = 'session' "
                "AND name NOT IN ('application_name', 'client_encoding')"  # which a pooler keeps
            ).fetchall()
            prepared = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()
    assert (left, prepared) == ([(0,)], [(0,)])


def test_several_begin_their_ledgers_in_a_new_database_at_once(postgres: Server) -> None:
    def begin(number: int) -> None:
        together.wait()
        Ledger.postgres(postgres.url(database=database, ledger=f"l{number}"), "create").close()

    together = Barrier(6)
    with postgres.database() as database, ThreadPoolExecutor(6) as threads:
        list(threads.map(begin, range(6)))
        found = postgres.execute("SELECT ledger, epoch FROM privlearn.epochs", database=database)
    assert sorted(found) == [(f"l{i}", 1) for i in range(6)]


# Roles --------------------------------------------------------------------------------------------


def test_a_role_that_may_insert_and_select_is_enough(postgres: Server, name: str) -> None:
    with (
        postgres.database() as database,
        postgres.role("shop", database=database),
        postgres.role("auditor", database=database),
        postgres.role("stranger", database=database),
    ):
        address = postgres.url("shop", database=database, ledger=name)
        refused(address, "permission denied for database")  # to make the tables
        told = CliRunner().invoke(
            app, ["ledger", "postgres-schema", "--writer", "shop", "--reader", "auditor"]
        )
        assert told.exit_code == 0
        assert told.output == script(writers=["shop"], readers=["auditor"])
        with psycopg.connect(
            host=str(postgres.folder), user="postgres", dbname=database, autocommit=True
        ) as connection:
            connection.execute(told.output.encode())
        with closing(Ledger.postgres(address, "create")) as ledger:
            account = CentralAccountant(ZCDP("1/2"), users=USERS, ledger=ledger, noise=NOISE(0))
            run(account)
            with closing(Ledger.postgres(address, "join")) as beside:
                run(Account.join(beside, noise=NOISE(1)))
        with closing(Ledger.postgres(address)) as ledger:
            run(Account.resume(ledger, noise=NOISE(2)))
        with postgres.connect("shop", database=database) as connection:
            for change in (
                b"DELETE FROM privlearn.entries",
                b"UPDATE privlearn.epochs SET epoch=1",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(change)
        reader = postgres.url("auditor", database=database, ledger=name)
        assert (audit(reader).problems, audit(reader).spends) == ([], 3)
        refused(reader, "--writer ROLE", "open")
        with pytest.raises(LedgerError, match="permission denied"):
            audit(postgres.url("stranger", database=database, ledger=name))


def test_a_database_without_tables_says_what_makes_them(postgres: Server, name: str) -> None:
    with postgres.database() as database:
        address = postgres.url(database=database, ledger=name)
        for each in (lambda: Ledger.postgres(address), lambda: audit(address)):
            with pytest.raises(LedgerUnreadableError, match="privlearn ledger postgres-schema"):
                each()


# Addresses ----------------------------------------------------------------------------------------


def test_no_message_tells_a_password(
    postgres: Server, name: str, begun: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    address = postgres.url("postgres:geheim", ledger=name)
    account = begun(address)
    said = [repr(account.ledger.name), str(Address(address)), repr(Address(address))]
    bad = address.replace(str(postgres.folder), "/nowhere").replace("postgres:", "nobody:")
    for each in (bad, address + "-2", "postgresql://u:geheim@h:port/db", address + "&ledger=b"):
        with pytest.raises(LedgerError) as error:
            audit(each)
        said.append(str(error.value))
        told = CliRunner().invoke(app, ["audit", each])
        said += [told.output, shown(each)]
    for open_file in (Ledger.open, Ledger.create, Account.resume):
        with pytest.raises(LedgerError, match=r"Ledger\.postgres") as error:
            open_file(address)
        said.append(str(error.value))
    said += [CliRunner().invoke(app, ["audit", "a.db", address]).output]
    said += [CliRunner().invoke(app, ["audit", address, "--full"]).output]
    said += [CliRunner().invoke(app, ["audit", "diff", address, address]).output]
    assert name in said[-1]
    assert "geheim" not in "".join((*said, *capfd.readouterr()))


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (
            "postgresql://ann:secret@db:5433/app?ledger=shop&sslmode=require",
            "postgresql://db:5433/app?ledger=shop",
        ),
        ("postgres://ann@db/app?ledger=shop", "postgresql://db/app?ledger=shop"),
        ("postgresql+psycopg://db/app", "postgresql://db/app"),
        ("postgresql://ann:secret@db/app?ledger=a@b", "postgresql://db/app?ledger=a@b"),
        ("postgresql:///app?host=/run/pg&ledger=a", "postgresql:///run/pg/app?ledger=a"),
        ("postgresql://[::1]:5432/app", "postgresql://[::1]:5432/app"),
    ],
)
def test_addresses_are_shown_without_secrets(address: str, told: str) -> None:
    assert is_address(address)
    assert shown(address) == told
    assert str(Address(address)) == told
    assert engine_of(Address(address)).url.drivername == "postgresql+psycopg"


ELSEWHERE: dict[str, Callable[[Any], object]] = {
    "join": Account.join,
    "resume": Account.resume,
    "connect": Ledger.connect,
    "serve": serve_ledger,
    "serve at": lambda address: serve_ledger("a.db", socket=address),
    "People.connect": People.connect,
    "People.create": lambda address: People.create(address, Participation(most=1)),
    "People.open": lambda address: People.open(Path(address)),
}
COMMANDS = (
    ["verify"],
    ["ledger", "serve"],
    ["ledger", "serve", "a.db", "--people"],
    ["ledger", "export", "a.db"],
    ["ledger", "backup", "a.db"],
)


@pytest.mark.parametrize("what", ELSEWHERE)
def test_an_address_where_a_path_is_wanted_is_not_repeated(what: str) -> None:
    with pytest.raises((PrivlearnError, TypeError)) as error:
        ELSEWHERE[what]("postgresql://ann:geheim@nowhere.invalid/app?ledger=shop")
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_does_not_repeat_a_password(command: list[str]) -> None:
    told = CliRunner().invoke(app, [*command, "postgresql://ann:geheim@nowhere.invalid/app"])
    assert told.exit_code != 0
    assert told.output
    assert "geheim" not in told.output


@pytest.mark.parametrize("sign", ["/", "?", "#"])
def test_a_password_that_was_not_quoted_is_not_shown(sign: str) -> None:
    address = f"postgresql://ann:12{sign}34@db/app?ledger=shop"
    assert shown(address) == "postgresql://…"
    with suppress(LedgerError):
        assert "34" not in str(Address(address))


def test_a_standby_does_not_tell_a_process_whether_it_may_release(
    monkeypatch: pytest.MonkeyPatch, postgres: Server, name: str, begun: Any
) -> None:
    account = begun(postgres.url(ledger=name))
    account.ledger._shared._held.drop_reading()
    monkeypatch.setattr(store, "_RECOVERING", text("SELECT true AS found"))
    for look in (account.ledger.check_own, lambda: account.ledger.records):
        with pytest.raises(LedgerError, match="takes no entries and may be behind"):
            look()
    monkeypatch.undo()
    account.ledger.check_own()


def test_files_are_no_addresses() -> None:
    for each in ("ledger.db", "./postgresql", "file:x", "postgres.db", Path("postgresql")):
        assert not is_address(each)
    with pytest.raises(LedgerError, match="name the ledger: …"):
        Ledger.postgres("postgresql://nowhere/app")
    for other in ("ledger.db", "mysql://nowhere/app?ledger=a"):
        with pytest.raises(LedgerError, match="is no address"):
            Ledger.postgres(other)
    with pytest.raises(LedgerError, match="must be given once"):
        Ledger.postgres("postgresql://nowhere/app?ledger=a&ledger=b")


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "privlearn.ledger.postgres_sessions", None)
    monkeypatch.delitem(sys.modules, "privlearn.ledger.postgres")
    monkeypatch.delitem(sys.modules, "privlearn.ledger.postgres_reading")
    for each in (Ledger.postgres, audit):
        with pytest.raises(LedgerError, match=r"pip install 'privlearn\[postgres\]'"):
            each("postgresql://nowhere/app?ledger=a")


# Administrators -----------------------------------------------------------------------------------


def tamper(postgres: Server, name: str, change: str, *before: str) -> None:
    postgres.execute(*before, change.replace("LEDGER", f"ledger = '{name}'"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE privlearn.entries SET entry = replace(entry, '\"sum\"', '\"mus\"') "
            "WHERE LEDGER AND seq = 1",
            "entry 1: its hash does not fit",
        ),
        (
            "DELETE FROM privlearn.entries WHERE LEDGER AND seq = 2",
            "entry 3: stands at position 2; entries were cut or moved",
        ),
        (
            "UPDATE privlearn.entries e SET entry = o.entry, hash = o.hash FROM privlearn.entries "
            "o WHERE e.LEDGER AND o.LEDGER AND (e.seq, o.seq) IN ((2, 3), (3, 2))",
            "entry 2: its hash does not fit",
        ),
    ],
    ids=["edited", "deleted", "moved"],
)
def test_the_audit_says_what_an_administrator_did(
    postgres: Server, name: str, begun: Any, change: str, said: str
) -> None:
    account = begun(postgres.url(ledger=name))
    run(account)
    run(account)
    tamper(postgres, name, change)
    told = CliRunner().invoke(app, ["audit", postgres.url(ledger=name), "--full"])
    assert told.exit_code == 1
    assert said in " ".join(told.output.split())
    with pytest.raises(LedgerUnreadableError, match="was changed by somebody else"):
        Ledger.postgres(postgres.url(ledger=name))


def test_a_process_does_not_go_on_behind_entries_that_are_gone(
    postgres: Server, name: str, begun: Any
) -> None:
    """As after a fail-over to a standby that was behind."""
    account = begun(postgres.url(ledger=name))
    run(account)
    head = account.ledger.head
    tamper(postgres, name, "DELETE FROM privlearn.entries WHERE LEDGER AND seq >= 3")
    with pytest.raises(LedgerHeadError, match=r"does not stand there any more: it lost entries"):
        run(account)
    assert audit(postgres.url(ledger=name)).problems == []  # which only an earlier head can tell
    assert any(head in each for each in audit(postgres.url(ledger=name), head=head).problems)
    with pytest.raises(LedgerHeadError, match="it lost entries, as after a fail-over"):
        Ledger.postgres(postgres.url(ledger=name), head=head)


def test_values_are_kept_and_an_audit_finds_one_that_was_changed(
    postgres: Server, name: str, begun: Any, tmp_path: Path
) -> None:
    address = postgres.url(ledger=name)
    account = begun(address)
    released = run(account, "small")
    np.testing.assert_array_equal(account.released("small")[0].value, released.value)
    head = backup(address, tmp_path / "copy.db")
    assert head == account.ledger.head == audit(tmp_path / "copy.db").head
    with closing(Ledger.open(tmp_path / "copy.db", head=head)) as copy:
        again = Account.resume(copy, noise=NOISE(1))
        np.testing.assert_array_equal(again.released("small")[0].value, released.value)
    tamper(postgres, name, "UPDATE privlearn.released SET value = '\\x00' WHERE LEDGER")
    assert any("value" in each for each in audit(address).problems)
    tamper(postgres, name, "DELETE FROM privlearn.released WHERE LEDGER")
    assert any("1 of 1 released values" in each for each in audit(address).remarks)


def test_a_value_that_is_too_large_is_not_recorded(
    postgres: Server, name: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = begun(postgres.url(ledger=name))
    monkeypatch.setattr("privlearn.ledger.postgres.MOST_VALUE_BYTES", 10)
    with pytest.raises(LedgerError, match=r"at most 10 are kept; nothing was recorded"):
        run(account)
    monkeypatch.undo()
    run(account)


def test_an_entry_that_is_too_large_is_not_fetched(postgres: Server, name: str, begun: Any) -> None:
    with postgres.database() as database:
        address = postgres.url(database=database, ledger=name)
        begun(address).ledger.close()
        postgres.execute(
            "ALTER TABLE privlearn.entries DROP CONSTRAINT entries_entry_check",
            "UPDATE privlearn.entries SET entry = repeat('x', 9000000)",
            database=database,
        )
        with pytest.raises(LedgerUnreadableError, match="entry 0 has more than 8388608 bytes"):
            read_records(address)


@pytest.mark.parametrize("entry", ["[]", "{}", "nothing", '{"body": 1}'])
def test_a_row_that_is_no_entry_is_refused(
    postgres: Server, name: str, begun: Any, entry: str
) -> None:
    begun(postgres.url(ledger=name)).ledger.close()
    tamper(postgres, name, f"UPDATE privlearn.entries SET entry = '{entry}' WHERE LEDGER")
    with pytest.raises(LedgerUnreadableError, match="is not a readable ledger"):
        audit(postgres.url(ledger=name))
    with pytest.raises(LedgerUnreadableError):
        Ledger.postgres(postgres.url(ledger=name))


def test_more_entries_than_are_read_are_refused(
    postgres: Server, name: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = begun(postgres.url(ledger=name))
    for _ in range(3):
        run(account)
    monkeypatch.setattr(reading, "_PAGE_BYTES", 1)  # of one entry each
    assert len(read_records(postgres.url(ledger=name))) == 10
    monkeypatch.setattr("privlearn.ledger.reader.MOST_ENTRIES", 5)
    with pytest.raises(LedgerUnreadableError, match="more than 5 entries"):
        read_records(postgres.url(ledger=name))


@pytest.mark.parametrize(
    ("same", "said"),
    [(False, "who did not wait for a turn"), (True, "entry 1 has the nonce of an entry")],
)
def test_who_writes_without_a_turn_stops_the_others(
    postgres: Server, name: str, begun: Any, same: bool, said: str
) -> None:
    """A row at the next position, by somebody who holds no lock."""
    account = begun(postgres.url(ledger=name))
    store: Any = account.ledger._shared
    insert = PostgresStore._insert

    def late(self: PostgresStore, session: Session, record: Any, value: Any) -> None:
        nonce = record.envelope["nonce"] if same else "another"
        postgres.execute(
            f"INSERT INTO privlearn.entries VALUES ('{name}', 1, '{{}}', '', '{nonce}', 1)"
        )
        insert(self, session, record, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresStore, "_insert", late)
        with pytest.raises(LedgerError, match=said):
            account.issue(SUM.loss(), users=USERS, label="late")
    assert not store.doubtful


def test_heads_are_told_and_asked_for(postgres: Server, name: str, begun: Any) -> None:
    kept: list[str] = []
    address = postgres.url(ledger=name)
    account = begun(address, keep_head=kept.append)
    run(account)
    assert kept[-1] == account.ledger.head
    assert len(kept) == len(read_records(address)) == 4
    account.ledger.close()
    for options in ({}, {"head": kept[-1]}, {"keep_head": kept.append}):
        with pytest.raises(LedgerHeadError, match="heads are kept elsewhere: give head="):
            Ledger.postgres(address, **options)
    with closing(Ledger.postgres(address, head=kept[-1], keep_head=kept.append)) as ledger:
        run(Account.resume(ledger, noise=NOISE(1)))


def test_exports_are_audited_as_the_ledger_is(
    postgres: Server, name: str, begun: Any, tmp_path: Path
) -> None:
    address = postgres.url(ledger=name)
    run(begun(address))
    to = tmp_path / "export.jsonl"
    assert CliRunner().invoke(app, ["ledger", "export", address, str(to)]).exit_code == 0
    assert audit(to).head == audit(address).head
    assert measure(to) == measure(address)
    said = CliRunner().invoke(app, ["ledger", "export", address + "x", str(to)])
    assert said.exit_code == 4
    assert audit(to).head == audit(address).head  # it stands as it was
    copied = CliRunner().invoke(app, ["ledger", "backup", address, str(tmp_path / "copy.db")])
    assert copied.output == f"head: {audit(address).head}\n"


def test_a_ledger_that_is_not_there_is_named_among_however_many(
    postgres: Server, name: str
) -> None:
    """Beside more than are listed, a slip in a name was read as a ledger without entries."""
    with postgres.database() as database:
        address = postgres.url(database=database, ledger=name)
        Ledger.postgres(address, "create").close()
        postgres.execute(
            "INSERT INTO privlearn.epochs SELECT 'a' || i, 1, '' FROM generate_series(1, 200) AS i",
            database=database,
        )
        with pytest.raises(LedgerUnreadableError, match="no such ledger; there are 'a1', "):
            read_records(f"{address}x")
        assert read_records(address) == []


# The page -----------------------------------------------------------------------------------------


def test_all_blocks_of_the_page_run_as_shown(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/postgresql.md").read_text("utf-8")
    here = page.replace(
        "postgresql://shop@db.example.org/app?ledger=shop", postgres.url(ledger="shop")
    )
    assert run_page(here, "postgresql.md", tmp_path, monkeypatch) == 4


# Standbys -----------------------------------------------------------------------------------------


@pytest.fixture
def standby(postgres: Server) -> Iterator[Server]:
    """A copy of the server that follows it, asynchronously."""
    folder = postgres.folder / "standby"
    folder.mkdir()
    os.chown(folder, postgres.folder.stat().st_uid, -1)
    subprocess.run(
        [
            postgres.programs / "pg_basebackup",
            *("-D", folder / "data", "-h", postgres.folder, "-U", "postgres"),
            *("-R", "--no-sync", "--checkpoint=fast"),
        ],
        check=True,
        cwd=folder,
        **postgres.user,
    )
    copy = Server(postgres.programs, folder, postgres.user)
    copy.start()
    yield copy
    copy.stop()
    shutil.rmtree(folder)


def test_an_asynchronous_fail_over_that_lost_entries_is_found(
    postgres: Server, standby: Server, name: str, begun: Any
) -> None:
    account = begun(postgres.url(ledger=name))
    written = postgres.execute("SELECT pg_current_wal_lsn()")[0][0]
    while standby.execute(f"SELECT pg_last_wal_replay_lsn() < '{written}'") != [(False,)]:
        time.sleep(0.01)
    refused(standby.url(ledger=name), "is a standby, which takes no entries", "open")
    assert audit(standby.url(ledger=name)).problems == []  # but it is read
    with standby.configured(primary_conninfo=""):  # it is cut off
        while standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") != [(0,)]:
            time.sleep(0.01)
        run(account)
        head = account.ledger.head
        standby.execute("SELECT pg_promote()")
    Ledger.postgres(standby.url(ledger=name)).close()  # nothing in it tells
    with pytest.raises(LedgerHeadError, match="it lost entries, as after a fail-over"):
        Ledger.postgres(standby.url(ledger=name), head=head)
    store: Any = account.ledger._shared
    store._held.drop()
    store._engine = engine_of(Address(standby.url(ledger=name)))  # as a virtual address moves
    with pytest.raises(PrivlearnError, match=r"opened anew|does not stand there any more"):
        run(account)
