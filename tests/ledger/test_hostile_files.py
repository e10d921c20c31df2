"""What stands beside a ledger may be anything, and opening one makes nothing known of it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import LedgerError, LedgerHeadError, LedgerUnreadableError, TokenCopyError
from privlearn.ledger import Ledger, large_values, read_records
from privlearn.ledger import new_files as making
from privlearn.ledger.disk import Disk
from privlearn.ledger.heads import head_path, read_head
from privlearn.ledger.large_values import LARGEST, read_large, values_path, write_large
from privlearn.ledger.values import digest_of, packed
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))


def central(book: Ledger) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=noise)


def resumed(book: Path | Ledger, **known: Any) -> CentralAccountant[ZCDP]:
    return CentralAccountant.resume(book, noise=NoiseSource.simulation(1), **known)


def release(accountant: CentralAccountant[ZCDP]) -> Any:
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    return MECHANISM.release(rows, accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# Heads that are not known -------------------------------------------------------------------------


def _closed(book: Ledger) -> None:
    book.close()


def _asked(book: Ledger) -> None:
    assert book.head
    book.close()


def _copied(book: Ledger) -> None:
    book.backup(f"{book.path}.copy")
    book.close()


def _with_another(book: Ledger) -> None:
    noise = NoiseSource.simulation(2)
    release(CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=noise, shared=True))
    book.close()


USES: list[Callable[[Ledger], None]] = [_closed, _asked, _copied, _with_another]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_opening_without_a_head_does_not_make_it_known(
    use: Callable[[Ledger], None], elsewhere: bool, tmp_path: Path, path: Path
) -> None:
    kept = list[str]()
    keep = kept.append if elsewhere else None
    accountant = central(Ledger.create(path, keep_head=keep))
    release(accountant)
    accountant.ledger.backup(tmp_path / "restored.db")
    release(accountant)
    accountant.ledger.close()
    old, before = tmp_path / "restored.db", len(kept)
    use(Ledger.open(old, unknown_head=True, keep_head=keep))
    assert read_head(old) is None
    if use is not _with_another:
        assert len(kept) == before
    mine = accountant.id
    with pytest.raises(LedgerHeadError):
        resumed(Ledger.open(old, keep_head=keep) if elsewhere else old, accountant=mine)
    again = resumed(Ledger.open(old, unknown_head=True, keep_head=keep), accountant=mine)
    release(again)
    again.close()
    assert (read_head(old) is None) is (use is _with_another)  # the other does not say it yet
    assert any(r.body["entry"] == "resume" for r in read_records(old))


# What is no file, or no end of one ----------------------------------------------------------------


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**43)


def _folder(path: Path) -> None:
    path.mkdir()


WRONG: list[Callable[[Path], None]] = [_pipe, _endless, _folder]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_head_that_is_no_small_file_is_refused_at_once(
    wrong: Callable[[Path], None], path: Path
) -> None:
    accountant = central(Ledger.create(path))
    release(accountant)
    accountant.ledger.close()
    head_path(path).unlink()
    wrong(head_path(path))
    assert audit(path).problems == []
    with pytest.raises(LedgerHeadError, match=r"cannot be read.*give head="):
        resumed(path)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_that_is_no_file_of_its_size_is_a_problem_and_no_wait(
    wrong: Callable[[Path], None], path: Path
) -> None:
    accountant = central(Ledger.create(path))
    release(accountant)
    accountant.ledger.close()
    (digest,) = [
        record.ext["resume/1"]["digest"]
        for record in read_records(path)
        if "digest" in record.ext.get("resume/1", {})
    ]
    values_path(path).mkdir()
    wrong(values_path(path) / digest)
    (problem,) = audit(path).problems
    assert digest in problem
    with pytest.raises(LedgerUnreadableError, match=digest):
        read_large(path, digest)


def test_a_log_that_is_a_pipe_is_not_waited_for(path: Path) -> None:
    Ledger.create(path).close()
    os.mkfifo(f"{path}-wal")
    with pytest.raises(LedgerUnreadableError, match=r"ledger\.db-wal is no file"):
        audit(path)


def test_a_value_is_not_written_that_nobody_would_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LARGEST == 2**30
    monkeypatch.setattr(large_values, "LARGEST", 99)
    with pytest.raises(OSError, match="at most 99 are kept") as caught:
        write_large(path, "0" * 64, bytes(100))
    assert caught.value.errno == errno.EFBIG


def test_a_backup_takes_values_along_and_nothing_that_is_called_one(path: Path) -> None:
    Ledger.create(path).close()
    value = np.arange(3.0)
    write_large(path, digest_of(value), packed(value))
    secret = path.with_name("secret")
    secret.write_text("private")
    (values_path(path) / ("a" * 64)).symlink_to(secret)
    (values_path(path) / ("b" * 64)).write_text("other")
    os.mkfifo(values_path(path) / ("c" * 64))
    (values_path(path) / "notes").write_text("mine")
    to = path.with_name("copy.db")
    values_path(to).mkdir()
    (values_path(to) / digest_of(value)).write_text("torn")  # of a backup that was interrupted
    with Ledger.open(path) as book:
        book.backup(to)
    assert os.listdir(values_path(to)) == [digest_of(value)]
    assert read_large(to, digest_of(value)) == packed(value)


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal", ".head"])
def test_no_ledger_is_made_under_a_name_that_belongs_to_another(end: str, path: Path) -> None:
    accountant = central(Ledger.create(path))
    release(accountant)
    accountant.ledger.close()
    head_path(path).unlink()
    with pytest.raises(LedgerError, match=f"ends in {end}"):
        Ledger.create(f"{path}{end}")
    book = Ledger.open(path, head=read_records(path)[-1].hash)
    with pytest.raises(LedgerError, match="ends in"):
        book.backup(path.with_name(f"other{end}"))
    book._disk._end()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["a?b", "a#b", "a%41", "a b\n", "é", "file:x", "\udcff", "'\"", "-x"]
)
def test_names_of_any_letters_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    accountant = central(Ledger.create(path))
    release(accountant)
    assert accountant.ledger._disk is not None
    accountant.ledger._disk._end()
    release(resumed(path))
    assert audit(path).problems == []
    assert {n.removeprefix(name) for n in os.listdir(tmp_path)} >= {"", ".head"}


# The file beside a ledger -------------------------------------------------------------------------


def test_who_names_a_ledger_first_keeps_its_head(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that make one, the second writes its head when the first one has spent."""
    checked, first = making.check_written, list[Any]()

    def another(*paths: Path) -> None:
        checked(*paths)
        if not first:
            first.append(None)
            first[0] = central(Ledger.create(path))
            release(first[0])

    monkeypatch.setattr(making, "check_written", another)
    with pytest.raises(LedgerError, match="exists"):
        Ledger.create(path)
    spend = [r for r in read_records(path) if r.body["entry"] == "spend"][-1]
    kept = read_head(path)
    assert kept is not None
    assert (kept.entries, kept.hash) == (spend.seq + 1, spend.hash)
    assert head_path(path).stat().st_nlink == 1


def test_a_head_file_that_was_moved_away_is_made_anew(path: Path) -> None:
    accountant = central(Ledger.create(path))
    release(accountant)
    former = head_path(path).read_bytes()
    head_path(path).rename(path.with_name("elsewhere"))
    head_path(path).write_bytes(former)
    release(accountant)
    spend = [r for r in read_records(path) if r.body["entry"] == "spend"][-1]
    kept = read_head(path)
    assert kept is not None
    assert kept.hash == spend.hash
    assert path.with_name("elsewhere").read_bytes() == former


def test_the_name_of_a_head_file_is_on_disk_when_it_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant, said = central(Ledger.create(path)), list[str]()
    sync, replace = os.fsync, os.replace

    def fsync(file: int) -> None:
        said.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        sync(file)

    def replaced(*paths: Any) -> None:
        said.append("named")
        replace(*paths)

    head_path(path).unlink()
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    release(accountant)
    assert said[-2:] == ["named", path.parent.name]


def test_the_folder_of_large_values_is_on_disk_whoever_made_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values_path(path).mkdir()  # by a process that died
    said, sync = list[str](), os.fsync

    def fsync(file: int) -> None:
        said.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    value = np.arange(3.0)
    write_large(path, digest_of(value), packed(value))
    assert path.parent.name in said


def test_a_large_value_of_who_lost_the_ledger_is_not_left_on_disk(path: Path) -> None:
    """Two copies of an open stream have one noise: their values must not both be found."""
    noise = NoiseSource.simulation(0)
    wide = NoisySum(Ball(1.0, 2**18), GaussianNoise(20.0))
    accountant = CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=noise)
    token = accountant.issue(ZCDP("0.01"), users=USERS, label="sum")
    append = Ledger.append

    def overtaken(book: Ledger, entry: Any, **how: Any) -> None:
        if "value" in how and how["value"] is not None:
            resumed(path).ledger.close()
        append(book, entry, **how)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "append", overtaken)
        with pytest.raises(LedgerError, match="another process"):
            wide.release(Rows.seal(np.ones((4, 2**18)), users=USERS), token)
    assert not values_path(path).exists()
    again = resumed(path)
    token = again.issue(ZCDP("0.01"), users=USERS, label="sum")
    wide.release(Rows.seal(np.ones((4, 2**18)), users=USERS), token)
    assert len(os.listdir(values_path(path))) == 1


# Half-way -----------------------------------------------------------------------------------------


def test_a_child_that_is_forked_half_way_in_an_entry_writes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = central(Ledger.create(path))
    release(accountant)
    check, children = Disk.check_log, list[int]()

    def forks(disk: Disk) -> None:
        check(disk)
        if not children:  # between the begin of the entry and its commit
            children.append(os.fork())

    monkeypatch.setattr(Disk, "check_log", forks)
    try:
        release(accountant)
    except TokenCopyError:
        if not children[0]:
            os._exit(7)
        raise
    finally:
        if children == [0]:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    release(accountant)
    accountant.close()
    assert audit(path).problems == []
    assert sum(r.body["entry"] == "spend" for r in read_records(path)) == 3


class _Failing:
    """A connection whose commits, or looks at the end, fail as SQLite says it."""

    def __init__(self, connection: Any, statement: str, code: int) -> None:
        self._connection, self._statement, self._code = connection, statement, code

    def execute(self, statement: str, *rest: Any) -> Any:
        found = self._connection.execute(statement, *rest)
        if statement.startswith(self._statement):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_what_sqlite_could_not_sync_ends_the_writing(path: Path) -> None:
    accountant = central(Ledger.create(path))
    release(accountant)
    disk = accountant.ledger._disk
    assert disk is not None
    connection = disk.connection
    disk.connection = _Failing(connection, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
    with pytest.raises(LedgerError, match="could not be brought to disk"):
        release(accountant)
    disk.connection = connection
    with pytest.raises(LedgerError, match=r"could not be brought to disk|half-way"):
        release(accountant)


def test_an_entry_that_was_committed_is_not_said_to_be_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = central(Ledger.create(path))
    token = accountant.issue(ZCDP("0.01"), users=USERS, label="sum")
    disk = accountant.ledger._disk
    assert disk is not None
    connection = disk.connection
    settle = Disk.settle

    def settles(disk: Disk, written: Any) -> None:
        disk.connection = _Failing(connection, "SELECT", sqlite3.SQLITE_IOERR)
        disk._cut = False
        settle(disk, written)

    with monkeypatch.context() as failing:
        failing.setattr(Disk, "settle", settles)
        with pytest.raises(LedgerError, match="may stand: open it again"):
            MECHANISM.release(Rows.seal(np.ones((4, 2)), users=USERS), token)
    disk.connection = connection
    assert accountant.spent() == ZCDP("0.01")
