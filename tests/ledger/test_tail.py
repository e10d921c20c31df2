"""What needs no sync waits in a file beside the ledger: few transactions, and none is lost."""

from __future__ import annotations

import os
import runpy
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, resumed

from privlearn.accountants import audit
from privlearn.errors import LedgerBusyError, LedgerError, LedgerUnreadableError
from privlearn.learners import DPTOFW
from privlearn.ledger import Ledger, Record, read_records
from privlearn.ledger.backups import backup
from privlearn.ledger.entries import RetireEntry
from privlearn.ledger.file_store import FileStore
from privlearn.ledger.tail import tail_path
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

VERIFIER = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "verify_ledger.py"))
USERS = 400
SUMS = PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=USERS)
X = np.random.default_rng(0).uniform(-0.5, 0.5, (USERS, 2))


def one_by_one(stream: Any, users: range) -> list[bytes]:
    """What left, one value for each row."""
    rows = (Rows.seal(X[i : i + 1], users=range(i, i + 1)) for i in users)
    return [stream.append(row).value.tobytes() for row in rows]


def opened(path: Path) -> tuple[Any, Any]:
    account = begun(path, ZCDP(1), USERS)
    account.commit(sums=SUMS)
    return account, account.open("sums")


def kept(path: Path) -> Counter[str]:
    """Entries by their kinds; a stranger's verifier finds no fewer."""
    records = list(read_records(path))
    assert [data for _, data, _ in VERIFIER["rows"](path)] == [record.data for record in records]
    return Counter(record.body["entry"] for record in records)


def test_a_learner_of_single_rows_writes_the_journal_once_for_a_stretch_of_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    account = begun(path, ZCDP(1), USERS)
    learner = DPTOFW(2, method="plain").start(account)
    said: list[str] = []
    account.ledger._connection.set_trace_callback(said.append)
    for x in X:
        learner.partial_fit(x, 1.0)
    entries, transactions = kept(path), said.count("COMMIT")
    assert entries["publish"] == USERS
    assert transactions <= entries.total() - entries["publish"] < USERS / 8
    account.close()
    assert not tail_path(path).exists()
    assert kept(path)["publish"] == USERS
    assert audit(path).problems == []


def test_what_left_before_a_kill_stands_and_what_was_reached_is_never_taken_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    account, stream = opened(path)
    left = one_by_one(stream, range(303))
    die(account)
    assert audit(path).problems == []
    assert kept(path)["publish"] == 303  # whoever reads the file finds them
    account = resumed(path)
    reached = max(e.stop for e in account.ledger.entries if e.entry == "reach")
    again = account.released("sums")
    assert [value.value.tobytes() for value in again] == left
    rest = account.rest("sums", range(USERS))
    assert rest.start == reached > 303
    last = SUMS.for_last(rest)
    one_by_one(last.open(account.issue(last.loss(), users=rest, label="sums")), rest[:3])
    account.close()
    assert audit(path).problems == []


def test_tokens_and_ends_wait_so_that_a_release_is_one_transaction_and_a_kill_loses_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    account = begun(path, ZCDP(1), USERS)
    said: list[str] = []
    account.ledger._connection.set_trace_callback(said.append)
    mechanism = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.1"))
    rows = Rows.seal(X, users=range(USERS))
    tokens = (account.issue(ZCDP("0.1"), users=rows.users, label="sum") for _ in range(4))
    left = [mechanism.release(rows, token).value.tobytes() for token in tokens]
    account.issue(ZCDP("0.1"), users=rows.users, label="not spent")
    die(account)
    assert said.count("COMMIT") <= 4 + 1  # and that of the first token: no file was there
    assert kept(path) == Counter(open=1, issue=5, spend=4, retire=4)
    account = resumed(path)
    assert [value.value.tobytes() for value in account.released("sum")] == left
    assert kept(path)["retire"] == 5
    account.close()
    assert audit(path).problems == []


def test_a_stream_whose_ledger_was_taken_over_lets_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    stream = opened(path)[1]
    one_by_one(stream, range(203))
    other = Ledger.open(path)
    one_by_one(stream, range(203, 204))  # opening alone stops nobody
    other.close()
    new = resumed(path)
    with pytest.raises(LedgerBusyError, match="by another process; resume it to go on"):
        one_by_one(stream, range(204, 205))
    assert len(new.released("sums")) == 204
    new.close()
    assert kept(path)["publish"] == 204
    assert audit(path).problems == []


def test_whoever_was_taken_over_before_its_first_value_lets_nothing_out_and_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that stood still between a spend and the value, while another one resumed."""
    path = tmp_path / "ledger"
    stream = opened(path)[1]
    write, new = FileStore.write, list[Any]()

    def late(self: FileStore, record: Record, *args: Any, **settings: Any) -> None:
        if record.body["entry"] == "publish" and not new:
            new.append(resumed(path))
            rest = new[0].rest("sums", range(USERS))
            last = SUMS.for_last(rest)
            new.append(last.open(new[0].issue(last.loss(), users=rest, label="sums")))
            one_by_one(new[1], rest[:3])
        write(self, record, *args, **settings)

    monkeypatch.setattr(FileStore, "write", late)
    with pytest.raises(LedgerBusyError, match="by another process; resume it to go on"):
        one_by_one(stream, range(1))
    assert kept(path)["publish"] == 3
    start = new[0].ledger.entries[-1].upto
    one_by_one(new[1], range(start, start + 1))
    assert kept(path)["publish"] == 4
    assert audit(path).problems == []


def test_a_value_that_left_since_the_ledger_was_opened_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    account, stream = opened(path)
    one_by_one(stream, range(203))
    account.ledger.head  # noqa: B018  # nothing waits any more
    token = next(e.token for e in account.ledger.entries if e.entry == "issue")
    other = Ledger.open(path)
    one_by_one(stream, range(203, 204))
    assert tail_path(path).stat().st_size
    with pytest.raises(LedgerBusyError):
        other.append(RetireEntry(accountant=account.id, token=token, outcome="lost", digest=None))
    assert kept(path)["publish"] == 204
    one_by_one(stream, range(204, 205))
    assert kept(path)["publish"] == 205


@pytest.mark.parametrize("cut", [1, 8, 30, 71])
def test_what_was_torn_is_not_made_whole_by_the_end_behind_it(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    account, stream = opened(path)
    one_by_one(stream, range(203))
    account.ledger.head  # noqa: B018  # nothing waits any more
    one_by_one(stream, range(203, 206))
    die(account)
    tail = tail_path(path)
    os.truncate(tail, tail.stat().st_size - cut)
    tail.write_bytes(tail.read_bytes() + bytes(72))  # of somebody who died when taking it over
    assert kept(path)["publish"] == 205
    new = resumed(path)
    assert len(new.released("sums")) == 205
    new.close()
    assert audit(path).problems == []


def test_no_link_is_followed_to_a_file_that_is_no_part_of_the_ledger(tmp_path: Path) -> None:
    path, other = tmp_path / "ledger", tmp_path / "other"
    account = opened(path)[0]
    die(account)
    other.write_bytes(b"mine")
    tail_path(path).unlink(missing_ok=True)
    tail_path(path).symlink_to(other)
    with pytest.raises(LedgerError, match="could not be written"):
        resumed(path)
    assert other.read_bytes() == b"mine"


@pytest.mark.parametrize("cut", [1, 150, 4000])
def test_of_a_torn_file_the_part_that_goes_on_with_the_ledger_is_read(
    cut: int, tmp_path: Path
) -> None:
    """As a cut of the power may leave it, of which nothing was synced."""
    path = tmp_path / "ledger"
    account, stream = opened(path)
    one_by_one(stream, range(303))
    die(account)
    tail = tail_path(path)
    whole = len(read_records(path))
    size = tail.stat().st_size
    os.truncate(tail, max(size - cut, 0))
    assert whole - len(read_records(path)) == pytest.approx(cut / 400, abs=4)
    tail.write_bytes(tail.read_bytes()[::-1])
    behind = len(read_records(path))
    account = resumed(path)
    assert account.rest("sums", range(USERS)).start > 303
    account.close()
    assert behind < whole
    assert audit(path).problems == []


def test_a_file_of_another_ledger_or_another_moment_is_no_part_of_this_one(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        account, stream = opened(path)
        one_by_one(stream, range(203))
        before = tail_path(path).read_bytes()
        one_by_one(stream, range(203, 300))
        account.close()
    whole = read_records(one)
    tail_path(one).write_bytes(before)
    assert read_records(one) == whole
    with Ledger.open(one) as ledger:
        assert ledger.head == whole[-1].hash
    tail_path(one).unlink()
    os.mkfifo(tail_path(one))
    with pytest.raises(LedgerUnreadableError, match="is no file"):
        read_records(one)


def test_a_copy_holds_the_values_that_wait(tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger", tmp_path / "copy"
    account, stream = opened(path)
    one_by_one(stream, range(203))
    shutil.copytree(tmp_path, tmp_path.with_name("dead"))  # as a kill leaves it
    account.ledger.backup(copy)
    account.close()
    dead = tmp_path.with_name("dead") / "ledger"
    assert backup(dead, tmp_path / "second") == read_records(copy)[-1].hash
    for each in (copy, tmp_path / "second"):
        assert kept(each)["publish"] == 203
        assert not any("missing" in remark for remark in audit(each).remarks)


def test_a_file_that_did_not_get_its_name_takes_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    account, stream = opened(path)

    def fails(*_: object) -> None:
        raise OSError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("privlearn.ledger.tail.os.replace", fails)
        left = one_by_one(stream, range(20))
    die(account)
    assert kept(path)["publish"] == len(left)


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_whoever_may_read_the_ledger_may_read_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    before = os.umask(0o137)
    try:
        account, stream = opened(path)
    finally:
        os.umask(before)
    one_by_one(stream, range(20))
    assert tail_path(path).stat().st_mode & 0o777 == 0o640
    account.close()


def test_where_the_file_has_no_room_the_database_takes_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    account, stream = opened(path)
    left = one_by_one(stream, range(203))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    left += one_by_one(stream, range(203, 205))
    monkeypatch.undo()
    left += one_by_one(stream, range(205, 210))
    die(account)
    again = resumed(path)
    assert [each.value.tobytes() for each in again.released("sums")] == left
    again.close()
    assert audit(path).problems == []
