"""Disks that are full, read-only, locked or failing: nothing is released unpaid, and it goes on."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.receipts import Released
from privlearn.errors import LedgerBusyError, LedgerError
from privlearn.ledger import Ledger, read_records
from privlearn.ledger import disk as disks
from privlearn.ledger.chain import minute_of
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))


def begun(path: Path) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(100), users=USERS, ledger=Ledger.create(path), noise=noise)


def release(accountant: CentralAccountant[ZCDP]) -> Released[Any]:
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    return MECHANISM.release(rows, accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))


def connection_of(accountant: CentralAccountant[ZCDP]) -> sqlite3.Connection:
    assert accountant.ledger._connection is not None
    return accountant.ledger._connection


def until_refused(accountant: CentralAccountant[ZCDP]) -> tuple[int, LedgerError]:
    """How many values left before the first error, which is returned."""
    for left in range(500):
        try:
            release(accountant)
        except LedgerError as error:
            return left, error
    raise AssertionError("it was never refused")


def check_paid(path: Path, left: int) -> None:
    found = audit(path)
    assert found.problems == []
    assert found.spends - found.lost == left
    assert found.closed


def in_a_child(work: Callable[[], None]) -> None:
    """Runs it in a forked process, whose limits and user are its own."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users can reach."""
    found = Path(tempfile.mkdtemp())
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


def test_a_database_that_may_not_grow_refuses_and_then_goes_on(path: Path) -> None:
    accountant = begun(path)
    connection = connection_of(accountant)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    left, error = until_refused(accountant)
    assert (
        "database or disk is full; make room and try again: this entry was not recorded, and"
        in str(error)
    )
    for _ in range(3):
        with pytest.raises(LedgerError, match="database or disk is full"):
            release(accountant)
    connection.execute("PRAGMA max_page_count = 100000")
    release(accountant)
    accountant.close()
    check_paid(path, left + 1)


def test_a_limit_on_files_that_the_system_sets_refuses_and_then_goes_on(path: Path) -> None:
    """The main file can grow no more, then neither can its log: a spend needs one of them."""

    def work() -> None:
        disks.SHORTEST_LOG = 0  # it is copied at every spend
        accountant = begun(path)
        disk = accountant.ledger._disk
        assert disk is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40_000, hard))
        left, error = until_refused(accountant)
        assert "disk I/O error; look after the disk and its limits" in str(error), error
        assert not disk._cut  # the log held what the main file had no room for
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        release(accountant)
        assert disk._cut
        accountant.close()
        check_paid(path, left + 1)

    in_a_child(work)


def test_a_value_does_not_leave_where_its_end_cannot_be_recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = begun(path)
    connection, integers = connection_of(accountant), GaussianNoise.integers
    left = list[object]()

    def fills(*given: Any) -> Any:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        full.setattr(os, "write", lambda file, data: 0)  # nor is there room to wait
        return integers(*given)

    large = NoisySum(Ball(1.0, 2000), GaussianNoise(20.0))
    rows = Rows.seal(np.ones((4, 2000)), users=USERS)
    token = accountant.issue(ZCDP("0.01"), users=USERS, label="sum")
    with monkeypatch.context() as full:
        full.setattr(GaussianNoise, "integers", fills)
        with pytest.raises(LedgerError, match="database or disk is full"):
            left.append(large.release(rows, token))
    assert not left
    connection.execute("PRAGMA max_page_count = 100000")
    release(accountant)
    accountant.close()
    found = audit(path)
    assert (found.problems, found.spends, found.lost) == ([], 2, 1)
    with closing(sqlite3.connect(path)) as values:
        assert values.execute("SELECT count(*) FROM released").fetchone() == (1,)


def test_a_sync_that_fails_ends_the_writing_and_keeps_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync a second one succeeds, though nothing came to the disk."""
    monkeypatch.setattr(disks, "SHORTEST_LOG", 0)
    accountant = begun(path)
    release(accountant)
    sync, left = os.fdatasync, list[object]()

    def fdatasync(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}") == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(file)

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fdatasync)
        with pytest.raises(LedgerError, match="could not be brought to disk: Input/output error"):
            left.append(release(accountant))
    with pytest.raises(LedgerError, match="interrupted half-way"):
        left.append(release(accountant))
    with pytest.raises(LedgerError, match="look after the disk, end the process and resume"):
        accountant.ledger.head  # noqa: B018
    accountant.ledger.close()
    assert Path(f"{path}-wal").stat().st_size  # whole, where the main file may not be
    assert not left
    again: CentralAccountant[ZCDP] = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
    release(again)
    again.close()
    check_paid(path, 2)


def test_who_locks_the_file_is_waited_for_and_then_named(path: Path) -> None:
    accountant = begun(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    connection_of(accountant).execute("PRAGMA busy_timeout = 0")
    for _ in range(2):
        with pytest.raises(LedgerBusyError, match="locked: another process holds it; end what it"):
            release(accountant)
    other.execute("ROLLBACK")
    other.close()
    release(accountant)
    accountant.close()
    check_paid(path, 1)


def test_a_file_that_turns_read_only_is_named(path: Path) -> None:
    accountant = begun(path)
    connection_of(accountant).execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerError, match="the file or its directory is read-only: make both"):
        release(accountant)
    connection_of(accountant).execute("PRAGMA query_only = OFF")
    release(accountant)
    accountant.close()
    check_paid(path, 1)


@pytest.mark.parametrize("what", ["nowhere", "directory", "file"])
def test_what_may_not_be_written_is_named(what: str, folder: Path) -> None:
    path = folder / "ledger.db"
    if what != "nowhere":
        with begun(path).ledger:
            pass
        for file in folder.iterdir():
            file.chmod(0o666)
    folder.chmod(0o555 if what != "file" else 0o777)
    if what == "file":
        path.chmod(0o444)

    def work() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        if what == "nowhere":
            with pytest.raises(LedgerError, match="cannot be created: Permission denied"):
                Ledger.create(path)
        else:
            said = "could not be written: .*make" if what == "file" else "could not be written"
            with pytest.raises(LedgerError, match=said):
                Ledger.open(path)

    in_a_child(work)
    folder.chmod(0o755)


def test_a_clock_that_is_set_back_does_not_turn_the_entries_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_800_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    accountant = begun(path)
    release(accountant)
    now[0] -= 7200
    release(accountant)
    accountant.ledger.close()
    with pytest.warns(
        UserWarning, match=r"written at 2027-01-15T08:00Z, and the clock says 2027-01-15T06:00Z"
    ):
        again: CentralAccountant[ZCDP] = CentralAccountant.resume(
            path, noise=NoiseSource.simulation(1)
        )
    release(again)
    now[0] += 7260
    release(again)
    again.close()
    told = [(record.envelope or {}).get("at") for record in read_records(path)]
    minutes = [minute_of(each) for each in told if each is not None]
    assert minutes == sorted(minutes)
    assert minutes[-1] == minutes[0] + 1
    assert audit(path).problems == []
