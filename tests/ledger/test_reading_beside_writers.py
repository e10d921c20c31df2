"""Reading a ledger that somebody writes, replaces or damages, or that is none."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, audit
from privlearn.cli.main import app
from privlearn.errors import LedgerError, LedgerUnreadableError
from privlearn.ledger import Ledger, iterate_records, moments, reader, write_export
from privlearn.ledger import disk as disks
from privlearn.ledger.moments import Moment
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(200.0))


def begun(path: Path) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=noise)


def release(accountant: CentralAccountant[ZCDP]) -> None:
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    MECHANISM.release(rows, accountant.issue(MECHANISM.loss(), users=USERS, label="sum"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    release(accountant)
    accountant.ledger.close()
    return path


def written(path: Path) -> None:
    """What another process does that opens a ledger, spends and closes it."""
    with Ledger.open(path) as book:
        release(CentralAccountant.resume(book, noise=NoiseSource.simulation(1)))


def changed_during(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object], times: int = 1
) -> list[int]:
    """Has a change happen right before calls of a function of `reader`, but those that it makes."""
    before, left, within = getattr(reader, name), [times], list[bool]()

    def called(*arguments: Any) -> Any:
        if left[0] and not within:
            left[0] -= 1
            within.append(True)
            change()
            within.clear()
        return before(*arguments)

    monkeypatch.setattr(reader, name, called)
    return left


def test_a_log_that_ends_between_two_looks_at_it_is_no_fault_of_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, book, before = len(list(iterate_records(path))), Ledger.open(path), Moment.of
    seen: list[bool] = []

    def look(where: Path) -> Moment:
        found = before(where)
        seen.append(found.logged)
        if len(seen) == 2:  # the first is what it is compared with
            book.close()
        return found

    monkeypatch.setattr(Moment, "of", look)
    assert len(list(iterate_records(path))) == size
    assert seen[:2] == [True, True]
    assert seen[-1] is False


def test_a_ledger_that_is_written_while_it_is_read_is_read_as_it_is_at_one_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(list(iterate_records(path)))
    left = changed_during(monkeypatch, "_check_schema", lambda: written(path), times=3)
    assert len(list(iterate_records(path))) == size + 3 * 3
    assert left == [0]
    monkeypatch.setattr(moments, "_TRIES", 3)
    changed_during(monkeypatch, "_check_schema", lambda: written(path), times=9)
    with pytest.raises(LedgerUnreadableError, match="somebody writes to it"):  # it does not hang
        list(iterate_records(path))


@pytest.mark.parametrize("form", ["file", "export"])
def test_pages_are_of_bounded_size_and_an_audit_is_the_same_whatever_they_are(
    path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path)
    whole, found = list(iterate_records(path)), audit(path)
    if form == "export":
        write_export(path.with_suffix(".jsonl"), whole)
        path = path.with_suffix(".jsonl")
        found = audit(path)
    for at_once, most_bytes, most in ((3, 2**20, 3), (512, 1, 1), (512, 1000, 4)):
        monkeypatch.setattr(reader, "_AT_ONCE", at_once)
        monkeypatch.setattr(reader, "_BYTES", most_bytes)
        pages = list(reader.iterate_pages(path))
        assert [record for page in pages for record in page] == whole
        assert 1 <= min(map(len, pages)) <= max(map(len, pages)) <= most
        assert audit(path) == found


def test_a_ledger_that_is_gone_or_swapped_while_it_is_read_is_found(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = begun(tmp_path / "other.db")
    for _ in range(3):
        release(accountant)
    accountant.ledger.close()
    monkeypatch.setattr(reader, "_AT_ONCE", 2)
    reading = iterate_records(path)
    next(reading)
    os.replace(tmp_path / "other.db", path)
    with pytest.raises(LedgerUnreadableError, match="somebody writes to it, or replaced it"):
        list(reading)
    assert any("is another ledger" in problem for problem in audit(path).problems)  # by its head
    changed_during(monkeypatch, "_check_schema", path.unlink)
    with pytest.raises(LedgerUnreadableError):
        list(iterate_records(path))


def test_a_link_to_a_ledger_is_read_with_the_log_that_the_ledger_has(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with Ledger.open(path) as book:
        release(CentralAccountant.resume(book, noise=NoiseSource.simulation(1)))
        assert Moment.of(link).logged
        assert len(list(iterate_records(link))) == len(list(iterate_records(path)))


# What is no ledger, or a damaged one --------------------------------------------------------------


def _sql(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(text)
            connection.commit()

    return change


def _zeroed(block: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(4096 * block)
            file.write(bytes(4096))

    return change


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


_DIGEST = 'UPDATE entries SET entry = replace(entry, \'"digest":"\', \'"digest":"{}\')'


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_sql("DROP TABLE released"), 0),  # which no guarantee needs
        (_sql("UPDATE released SET digest = char(0)"), 0),
        (_sql(_DIGEST.format("\\u0000")), 1),
        (_sql(_DIGEST.format("../")), 1),
        (_zeroed(0), 4),
        (_zeroed(1), 4),
        (_zeroed(2), 4),
        (_instead(os.mkfifo), 4),
        (_instead(lambda path: path.symlink_to("/dev/zero")), 4),
        (_instead(lambda path: path.symlink_to(path.name)), 4),
        (_instead(Path.mkdir), 4),
    ],
)
def test_whatever_a_ledger_file_holds_an_audit_of_it_ends_with_an_exit_code(
    change: Callable[[Path], None], code: int, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    accountant = CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path))
    release(accountant)
    accountant.ledger.close()
    change(path)
    found = CliRunner().invoke(app, ["audit", str(path)])
    assert found.exit_code == code, found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert found.output.startswith("error: ") is (code == 4)
    with suppress(LedgerError):  # and nothing else
        Ledger.open(path).close()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_data_settings_and_notes_that_are_no_files_are_refused_and_not_waited_for(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "input.csv"
    make(path)
    tofw = ["run", "tofw", "--target", "y", "--horizon", "9", "--budget", "rho=1"]
    for command in (
        [*tofw, "--bounds", "x=0:1", "--data", str(path), "--out", str(tmp_path / "out")],
        ["run", "tofw", "--config", str(path)],
        ["access", "list", str(path)],
        ["verify", str(path)],
    ):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 2, (command, found.output)
        assert "cannot be read: it is no file" in " ".join(found.output.split()), command


def test_settings_that_are_nested_too_deeply_are_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text(f"a = {'[' * 5000}")
    for command in (["access", "list", str(path)], ["run", "tofw", "--config", str(path)]):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 2
        assert "is not TOML: it is nested too deeply" in " ".join(found.output.split())


# Clocks -------------------------------------------------------------------------------------------


def test_times_that_cannot_be_right_are_remarked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    assert audit(path).remarks == []
    monkeypatch.setattr(time, "time", lambda: 4.3e9)  # 2106
    release(accountant)
    assert audit(path).remarks == []  # by a clock that agrees
    monkeypatch.undo()
    accountant.ledger.close()
    (remark,) = audit(path).remarks
    assert remark.startswith("Entries tell times up to 2106-04-06T12:26Z")
    assert "no guarantee rests on them" in remark


def test_a_clock_that_no_entry_can_tell_spends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beyond() -> float:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")

    path = tmp_path / "ledger.db"
    accountant = begun(path)
    token = accountant.issue(MECHANISM.loss(), users=USERS, label="sum")
    monkeypatch.setattr(time, "time", beyond)
    with pytest.raises(LedgerError, match="clock of this host is not between the years"):
        MECHANISM.release(Rows.seal(np.ones((4, 2)), users=USERS), token)
    assert audit(path).spends == 0
    monkeypatch.undo()
    MECHANISM.release(Rows.seal(np.ones((4, 2)), users=USERS), token)
    assert audit(path).spends == 1


# Room ---------------------------------------------------------------------------------------------


def test_a_log_is_not_made_ready_for_more_than_the_ledger_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "SHORTEST_LOG", 2**13)
    monkeypatch.setattr(disks, "LOG_OF_SMALL", 2**14)
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    for _ in range(40):
        release(accountant)
    largest = max(2**14, path.stat().st_size)
    assert largest < 2**18
    assert Path(f"{path}-wal").stat().st_size <= largest + 2**16  # and what the last entry took
    accountant.ledger.close()
