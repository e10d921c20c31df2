"""Released values stand beside the entries as they were, and copies of a ledger take them along."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, audit
from privlearn.cli.main import app
from privlearn.contract.receipts import Released
from privlearn.errors import LedgerError, LedgerHeadError, LedgerUnreadableError
from privlearn.ledger import Ledger, backup, file_store, read_records
from privlearn.ledger import large_values as large
from privlearn.ledger.values import digest_of, packed, unpacked
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)


def begun(path: Path) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=noise)


def release(accountant: CentralAccountant[ZCDP], dim: int = 2) -> Released[Any]:
    mechanism = NoisySum(Ball(1.0, dim), GaussianNoise(20.0))
    rows = Rows.seal(np.ones((4, dim)), users=USERS)
    return mechanism.release(rows, accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of more than 100 bytes are large."""
    monkeypatch.setattr(file_store, "LARGEST_IN_DATABASE", 100)


# Values -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_a_large_value_is_a_file_that_is_on_disk_before_its_entry(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = begun(path)
    said, sync, link = list[str](), os.fsync, os.replace

    def fsync(file: int) -> None:
        said.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")).partition(".new-")[0])
        sync(file)

    def replace(old: Any, new: Any) -> None:
        said.append("named")
        link(old, new)

    token_free = release(accountant)
    kept = accountant.ledger.value(token_free.digest)
    assert kept is not None
    assert np.array_equal(unpacked(kept, token_free.digest), token_free.value)
    assert not large.values_path(path).exists()
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    released = release(accountant, 50)
    begins = said.index(path.parent.name)  # behind the sync of the spend
    assert said[begins : begins + 4] == [
        path.parent.name,
        released.digest,
        "named",
        "ledger.db.values",
    ]
    assert [file.name for file in large.values_path(path).iterdir()] == [released.digest]
    again = accountant.ledger.value(released.digest)
    assert again is not None
    assert np.array_equal(unpacked(again, released.digest), released.value)
    assert accountant.ledger.value("0" * 64) is None


def test_the_limit_lets_values_pass_that_a_reader_takes() -> None:
    from privlearn.ledger import MOST_BYTES

    assert large.LARGEST_IN_DATABASE <= MOST_BYTES


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dim", [2, 50])
@pytest.mark.parametrize("how", ["changed", "missing", "torn"])
def test_an_audit_says_which_values_were_changed_or_are_missing(
    how: str, dim: int, path: Path
) -> None:
    with begun(path) as accountant:
        digest = release(accountant, dim).digest
        release(accountant, dim)
    assert audit(path).remarks == audit(path).problems == []
    other = packed(np.zeros(dim))[: -1 if how == "torn" else None]
    if dim == 50:
        file = large.values_path(path) / digest
        file.unlink() if how == "missing" else file.write_bytes(other)
    else:
        with closing(sqlite3.connect(path)) as database, database:
            if how == "missing":
                database.execute("DELETE FROM released WHERE digest = ?", (digest,))
            else:
                database.execute("UPDATE released SET value = ? WHERE digest = ?", (other, digest))
    found = audit(path)
    if how == "missing":
        (remark,) = found.remarks
        assert remark.startswith("1 of 2 released values that the entries name are missing")
        assert found.problems == []
    else:
        (problem,) = found.problems
        assert digest in problem
        assert "was changed" in problem or "cannot be read" in problem
        assert "a backup may hold it" in problem
        with (
            Ledger.open(path) as book,
            pytest.raises(LedgerUnreadableError, match=f"the value {digest}"),
        ):
            book.value(digest)
    records = read_records(path)
    assert all(record.body["entry"] != "value" for record in records)


def test_an_export_has_no_values_and_nothing_is_said_of_that(path: Path, tmp_path: Path) -> None:
    with begun(path) as accountant:
        release(accountant)
        accountant.ledger.export(tmp_path / "export.jsonl")
    found = audit(tmp_path / "export.jsonl")
    assert found.remarks == found.problems == []


@pytest.mark.usefixtures("small")
def test_a_large_value_that_cannot_be_written_does_not_leave(path: Path) -> None:
    accountant = begun(path)
    large.values_path(path).write_text("in the way")
    left = list[object]()
    with pytest.raises(LedgerError, match="could not be written"):
        left.append(release(accountant, 50))
    assert not left
    large.values_path(path).unlink()
    release(accountant, 50)
    accountant.close()
    assert (audit(path).problems, audit(path).lost) == ([], 1)


def test_values_survive_with_the_end_of_their_token(path: Path) -> None:
    """Of a process that died, both or none are there: they are one transaction."""
    accountant = begun(path)
    released = [release(accountant) for _ in range(3)]
    assert accountant.ledger._disk is not None
    accountant.ledger._disk._end()
    with Ledger.open(path) as book:
        for each in released:
            kept = book.value(each.digest)
            assert kept is not None
            assert digest_of(unpacked(kept, each.digest)) == each.digest


def test_a_value_that_is_written_apart_from_its_end_could_be_missed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted defect: a process that dies in between leaves an end without its value."""
    accountant, append = begun(path), Ledger.append

    def apart(self: Ledger, entry: Any, *, value: Any = None, **more: Any) -> None:
        append(self, entry, **more)
        if value is not None:
            assert self._disk is not None
            self._disk._end()
            raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "append", apart)
    with pytest.raises(KeyboardInterrupt):
        release(accountant)
    (remark,) = audit(path).remarks
    assert "1 of 1 released values" in remark


# Memory -------------------------------------------------------------------------------------------


def test_entries_of_a_file_are_not_held_in_memory(path: Path) -> None:
    accountant = begun(path)
    book = accountant.ledger
    for _ in range(5):
        release(accountant)
    assert book.durable
    assert (len(book.log.accounts.newest), len(book.log.accounts.opens)) == (1, 1)
    assert book.log.read is None
    assert len(book.entries) == len(book.records) == book.entries_of(accountant.id) == 16
    assert [entry.body() for entry in book.entries] == [record.body for record in book.records]
    assert book.records == read_records(path)
    book.close()
    assert len(book.records) == 16
    again = Ledger.open(path)
    assert len(again.entries) == 16


# Backups ------------------------------------------------------------------------------------------

WRITER = """
    import os, sys
    import numpy as np
    from privlearn.accountants import CentralAccountant
    from privlearn.losses.budgets import ZCDP
    from privlearn.rows.domains import Ball
    from privlearn.ledger import Ledger
    from privlearn.mechanisms import NoisySum
    from privlearn.noise import GaussianNoise, NoiseSource
    from privlearn.rows import Rows

    book = Ledger.create(sys.argv[1])
    accountant = CentralAccountant(
        ZCDP(100), users=range(4), ledger=book, noise=NoiseSource.simulation(0)
    )
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    rows = Rows.seal(np.ones((4, 2)), users=range(4))
    for count in range(5000):
        mechanism.release(rows, accountant.issue(ZCDP("0.01"), users=range(4), label="sum"))
        print(count + 1, flush=True)
"""


def test_a_backup_holds_all_that_was_told_while_a_writer_runs_and_after_it_died(
    path: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for number in range(3):
        for _ in range(5):
            told = int(writer.stdout.readline())
        copy = tmp_path / f"copy{number}.db"
        head = backup(path, copy)
        found = audit(copy, head=head)
        assert found.problems == []
        assert found.spends >= told
        assert found.head_at == found.entries
    writer.kill()
    rest = writer.communicate()[0].splitlines()
    head = backup(path, tmp_path / "last.db")
    found = audit(tmp_path / "last.db", head=head)
    assert (found.problems, found.remarks) == ([], [])
    assert found.spends >= int(rest[-1] if rest else told)
    assert not Path(f"{tmp_path / 'last.db'}-wal").exists()


@pytest.mark.usefixtures("small")
def test_a_backup_takes_values_along_and_overwrites_nothing(path: Path, tmp_path: Path) -> None:
    accountant = begun(path)
    release(accountant)
    release(accountant, 50)
    copy = tmp_path / "copy.db"
    head = accountant.ledger.backup(copy)
    assert head == accountant.ledger.head == read_records(copy)[-1].hash
    assert (audit(copy).problems, audit(copy).remarks) == ([], [])
    assert sorted(file.name for file in tmp_path.iterdir() if file.name.startswith("copy")) == [
        "copy.db",
        "copy.db.values",
    ]
    content = copy.read_bytes()
    with pytest.raises(LedgerError, match=r"copy\.db exists: ledgers are never overwritten"):
        accountant.ledger.backup(copy)
    assert copy.read_bytes() == content
    with pytest.raises(LedgerError, match="in memory has no file"):
        Ledger.memory().backup(tmp_path / "memory.db")


def test_a_backup_is_named_when_it_is_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = begun(path)
    release(accountant)
    accountant.ledger.head  # noqa: B018
    folder = tmp_path / "copies"
    folder.mkdir()
    said = list[str]()
    sync, link = os.fsync, os.link

    def fsync(file: int) -> None:
        said.append("sync")
        sync(file)

    def linked(*paths: Any) -> None:
        said.append("link")
        link(*paths)

    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", fsync)
        watched.setattr(os, "link", linked)
        backup(path, folder / "copy.db")
    assert said == ["sync", "link", "sync"]
    with monkeypatch.context() as broken:
        broken.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output")))
        with pytest.raises(LedgerError, match="cannot be created: Input/output"):
            backup(path, folder / "second.db")
    assert [file.name for file in folder.iterdir()] == ["copy.db"]


def test_a_restored_backup_is_not_gone_on_with_without_a_word(path: Path, tmp_path: Path) -> None:
    accountant = begun(path)
    release(accountant)
    head = backup(path, tmp_path / "copy.db")
    release(accountant)
    accountant.ledger.close()
    noise = NoiseSource.simulation(1)
    # elsewhere, without a head beside it; or in place, where the head is newer
    with pytest.raises(LedgerHeadError, match="which keeps its head, is not there"):
        CentralAccountant.resume(tmp_path / "copy.db", noise=noise)
    os.replace(tmp_path / "copy.db", path)
    for known in ({}, {"head": head}):
        with pytest.raises(LedgerHeadError, match="it is an older copy, was cut, or is another"):
            CentralAccountant.resume(path, noise=noise, **known)  # type: ignore[arg-type]
    again: CentralAccountant[ZCDP] = CentralAccountant.resume(path, noise=noise, unknown_head=True)
    again.close()
    assert any(
        "without a head to compare it with" in line.text
        for line in audit(path).guarantees[0].rests_on
    )


def test_the_command_copies_prints_the_head_and_refuses_clearly(path: Path, tmp_path: Path) -> None:
    accountant = begun(path)
    release(accountant)
    copy = tmp_path / "copy.db"
    done = CliRunner().invoke(app, ["ledger", "backup", str(path), str(copy)])
    assert (done.exit_code, done.stdout) == (0, f"head: {read_records(copy)[-1].hash}\n")
    again = CliRunner().invoke(app, ["ledger", "backup", str(path), str(copy)])
    assert again.exit_code == 2
    assert "copy.db exists: ledgers are never overwritten" in again.output
    for wrong in (tmp_path / "missing.db", tmp_path / "text.db", tmp_path / "export.jsonl"):
        (tmp_path / "text.db").write_text("dear diary")
        accountant.ledger.export(tmp_path / "export.jsonl")
        failed = CliRunner().invoke(app, ["ledger", "backup", str(wrong), str(tmp_path / "new.db")])
        assert failed.exit_code == 4, failed.output
        assert not (tmp_path / "new.db").exists()
