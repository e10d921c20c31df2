"""The ledger is the file that it is taken for, and is made whole or not at all."""

from __future__ import annotations

import os
import runpy
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.receipts import Released
from privlearn.errors import LedgerBusyError, LedgerError, LedgerUnreadableError
from privlearn.ledger import Ledger, iterate_records, read_records, reader
from privlearn.ledger import disk as disks
from privlearn.ledger import new_files as making
from privlearn.ledger.disk import Disk
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

_DOCS = Path(__file__).resolve().parents[2] / "docs"
VERIFIER = SimpleNamespace(**runpy.run_path(str(_DOCS / "verify_ledger.py")))

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))


def begun(path: Path) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=noise)


def release(accountant: CentralAccountant[ZCDP]) -> Released[Any]:
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    return MECHANISM.release(rows, accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))


def spends_in(path: Path) -> int:
    return sum(record.body["entry"] == "spend" for record in read_records(path))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# Which file it is ---------------------------------------------------------------------------------


def deleted(path: Path) -> None:
    path.unlink()


def deleted_and_made_again(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def replaced(path: Path) -> None:
    Path(f"{path}.copy").write_bytes(path.read_bytes())
    os.replace(f"{path}.copy", path)


def renamed(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def renamed_and_linked_to(path: Path) -> None:
    """SQLite takes the log of the file behind a symbolic link, and not that beside it."""
    path.rename(path.with_name("elsewhere.db"))
    path.symlink_to("elsewhere.db")


def hard_linked(path: Path) -> None:
    os.link(path, path.with_name("second.db"))


def its_folder_renamed(path: Path) -> None:
    path.parent.rename(path.parent.with_name("gone"))


MOVES = [
    deleted,
    deleted_and_made_again,
    replaced,
    renamed,
    renamed_and_linked_to,
    hard_linked,
    its_folder_renamed,
]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("moment", ["before", "at the commit"])
def test_nothing_is_released_once_the_file_is_another_one(
    move: Callable[[Path], None], moment: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "ledger.db"
    accountant = begun(path)
    release(accountant)
    token = accountant.issue(ZCDP("0.01"), users=USERS, label="sum")
    connection, left = accountant.ledger._connection, list[object]()
    assert connection is not None

    def trace(text: str) -> None:
        if text == "COMMIT":
            connection.set_trace_callback(None)
            move(path)

    if moment == "before":
        move(path)
    else:
        connection.set_trace_callback(trace)
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    with pytest.raises(LedgerError, match=r"moved, deleted or replaced|2 names \(hard|was closed"):
        left.append(MECHANISM.release(rows, token))
    assert not left


def test_without_the_look_at_its_place_releases_would_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted defect: what the test above asserts does not hold for it."""
    monkeypatch.setattr(Disk, "check_place", lambda self: None)
    accountant = begun(tmp_path / "ledger.db")
    replaced(tmp_path / "ledger.db")
    release(accountant)
    os.link(tmp_path / "ledger.db", tmp_path / "second.db")
    release(accountant)


def test_a_second_name_that_is_taken_away_again_stops_nothing_for_good(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "ledger.db")
    hard_linked(tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="has 2 names"):
        release(accountant)
    (tmp_path / "second.db").unlink()
    release(accountant)
    assert audit(tmp_path / "ledger.db").problems == []


@pytest.mark.parametrize("how", ["deleted", "replaced", "hard-linked"])
def test_the_log_is_the_one_that_is_open(how: str, tmp_path: Path) -> None:
    accountant = begun(tmp_path / "ledger.db")
    release(accountant)
    log = tmp_path / "ledger.db-wal"
    if how == "hard-linked":
        os.link(log, tmp_path / "log")
        with pytest.raises(LedgerError, match=r"ledger.db-wal has 2 names"):
            release(accountant)
        (tmp_path / "log").unlink()
        release(accountant)
        return
    content = log.read_bytes()
    log.unlink()
    if how == "replaced":
        log.write_bytes(content)
    with pytest.raises(LedgerBusyError, match=r"or its log .*ledger.db-wal was deleted"):
        release(accountant)


# How it is made -----------------------------------------------------------------------------------

STOPS = [
    "connect",
    "check_written",
    "link ledger.db.head",
    "unlink ledger.db.head",
    "link ledger.db",
    "unlink ledger.db",
    "sync_directory",
]


@pytest.mark.parametrize("at", STOPS)
def test_a_crash_while_a_ledger_is_made_leaves_all_of_it_or_nothing(
    at: str, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    child = os.fork()
    if not child:
        call, _, of = at.partition(" ")
        module: Any = {"connect": sqlite3, "link": os, "unlink": os}.get(call, making)
        done = getattr(module, call)

        def dies(name: Any, *rest: Any, **named: Any) -> Any:
            if of in ("", Path(name).name.partition(".new-")[0]):
                os._exit(9)
            return done(name, *rest, **named)

        setattr(module, call, dies)
        try:
            Ledger.create(path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    named = at in ("unlink ledger.db", "sync_directory")
    assert path.exists() is named
    left = {name for name in names(tmp_path) if name not in ("ledger.db", "ledger.db.head")}
    assert all(name.startswith(("ledger.db.new-", "ledger.db.head.new-")) for name in left)
    with Ledger.open(path) if named else Ledger.create(path) as book:
        noise = NoiseSource.simulation(0)
        release(CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=noise))
    assert audit(path).problems == []
    assert spends_in(path) == 1


def test_a_ledger_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    sync, link = os.fsync, os.link

    def fsync(file: int) -> None:
        said.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")).split(".new-")[0])
        sync(file)

    def linked(*paths: Any) -> None:
        said.append("link")
        link(*paths)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", linked)
    making.create_ledger(tmp_path / "ledger.db")
    assert said == ["ledger.db.head", "link", "ledger.db", "link", tmp_path.name]


@pytest.mark.parametrize("beside", ["ledger.db", "ledger.db-wal", "ledger.db-journal"])
def test_what_stands_in_the_way_is_left_alone(beside: str, tmp_path: Path) -> None:
    (tmp_path / beside).write_text("mine")
    with pytest.raises(LedgerError, match=r"exists: ledgers are never|stands there, and"):
        Ledger.create(tmp_path / "ledger.db")
    assert names(tmp_path) == [beside]
    assert (tmp_path / beside).read_text() == "mine"


def test_who_names_the_file_meanwhile_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "ledger.db", os.link

    def late(new: Any, old: Any) -> None:
        path.write_text("mine")
        link(new, old)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(LedgerError, match="exists: ledgers are never overwritten"):
        Ledger.create(path)
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["ledger.db", "ledger.db.head"]


def test_a_ledger_that_is_gone_is_not_begun_anew_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    begun(path).ledger.close()
    path.unlink()
    with pytest.raises(LedgerError, match=r"is gone, of which .*ledger.db.head kept the head"):
        Ledger.create(path)
    (tmp_path / "ledger.db.head").unlink()
    begun(path)


# Copies of the main file alone --------------------------------------------------------------------


def unread_by_another_verifier(path: Path) -> None:
    """docs/verify_ledger.py says the same."""
    with pytest.raises(VERIFIER.Unreadable, match="its log, which may hold its last"):
        VERIFIER.verify(path)


def copy_alone(path: Path, to: str = "copy.db") -> Path:
    return Path(shutil.copyfile(path, path.with_name(to)))


@pytest.mark.parametrize("reading", [False, True])
def test_a_copy_without_its_log_is_refused_also_while_somebody_reads(
    reading: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "SHORTEST_LOG", 0)  # it is copied at every spend
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    release(accountant)
    reader = sqlite3.connect(path, isolation_level=None)
    if reading:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
    release(accountant)
    copy = copy_alone(path)
    unread_by_another_verifier(copy)
    for read in (read_records, audit, Ledger.open):
        with pytest.raises(LedgerUnreadableError, match=r"copy.db-wal, which may hold its last"):
            read(copy)
    # a head of the moment tells whether it is whole
    shutil.copyfile(f"{path}.head", f"{copy}.head")
    if reading:
        with pytest.raises(LedgerUnreadableError, match=r"copy.db-wal, which may hold its last"):
            read_records(copy)
        unread_by_another_verifier(copy)
        assert audit(copy, head=accountant.ledger.head).problems
    else:
        assert spends_in(copy) == 2
        assert audit(copy).problems == VERIFIER.verify(copy)["problems"] == []
    # with its log it is whole
    shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    assert spends_in(copy) == 2
    reader.close()


@pytest.mark.parametrize("log", ["missing", "empty", "zeros", "begun"])
@pytest.mark.parametrize("head", [False, True])
def test_a_copy_with_a_log_of_a_later_moment_is_refused(
    log: str, head: bool, tmp_path: Path
) -> None:
    """The main file was copied before its log was copied to it and cut, and the log after that."""
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    release(accountant)
    copy = copy_alone(path)
    if log != "missing":
        header = Path(f"{path}-wal").read_bytes()[: 32 + 24 + 4096]
        content = {
            "empty": b"",
            "zeros": bytes(65536),
            "begun": header[:36] + bytes(4) + header[40:],
        }
        Path(f"{copy}-wal").write_bytes(content[log])
    if head:
        shutil.copyfile(f"{path}.head", f"{copy}.head")
    unread_by_another_verifier(copy)
    for read in (read_records, audit, Ledger.open):
        with pytest.raises(LedgerUnreadableError, match=r"copy.db-wal, which may hold its last"):
            read(copy)
    assert spends_in(path) == 1


def test_without_that_look_a_spend_would_be_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted defect: the copy looks whole, and lacks a spend that was told to be durable."""
    monkeypatch.setattr("privlearn.ledger.reader._check_log_is_not_missed", lambda *_: None)
    accountant = begun(tmp_path / "ledger.db")
    reader = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    release(accountant)
    found = audit(copy_alone(tmp_path / "ledger.db"))
    assert (found.problems, found.spends) == ([], 0)
    reader.close()


def test_a_copy_of_a_closed_ledger_needs_nothing_beside_it(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "ledger.db")
    release(accountant)
    accountant.close()
    assert audit(copy_alone(tmp_path / "ledger.db")).problems == []


def test_a_log_that_another_program_ended_is_not_missed(tmp_path: Path) -> None:
    """It copies everything, and leaves the header as it is: the head beside the file vouches."""
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    release(accountant)
    assert accountant.ledger._disk is not None
    accountant.ledger._disk._end()  # dies
    other = sqlite3.connect(path)
    other.execute("SELECT count(*) FROM entries").fetchone()
    other.close()
    assert names(tmp_path) == ["ledger.db", "ledger.db-tail", "ledger.db.head"]
    assert spends_in(path) == 1
    again: CentralAccountant[ZCDP] = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
    release(again)
    assert spends_in(path) == 2


def test_who_has_read_half_of_a_ledger_does_not_keep_the_log_from_being_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "SHORTEST_LOG", 0)  # it is copied at every spend
    monkeypatch.setattr(reader, "_AT_ONCE", 3)
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    for _ in range(4):
        release(accountant)
    disk = accountant.ledger._disk
    assert disk is not None
    reading = iterate_records(path)
    read = [next(reading)]
    release(accountant)
    assert disk._cut
    read += [next(reading) for _ in range(3)]  # a new look
    release(accountant)
    assert disk._cut
    read += list(reading)
    assert [record.seq for record in read] == list(range(len(read)))
    assert len(read) > 13  # it also saw what was written meanwhile
