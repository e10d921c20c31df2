"""The head is kept outside the ledger, and who goes on with it knows it or says not to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.receipts import Released
from privlearn.errors import LedgerHeadError
from privlearn.ledger import Ledger, read_records
from privlearn.ledger.heads import Claimed, Head, HeadFile, head_path, read_head
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.reporting.certificates import weaknesses
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
FORMER = Path(__file__).parent / "format2"


def central(book: Ledger) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=noise)


def resumed(book: Path | Ledger, **known: Any) -> CentralAccountant[ZCDP]:
    return CentralAccountant.resume(book, noise=NoiseSource.simulation(1), **known)


def release(accountant: CentralAccountant[ZCDP]) -> Released[Any]:
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    return MECHANISM.release(rows, accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))


def die(accountant: CentralAccountant[ZCDP]) -> None:
    assert accountant.ledger._disk is not None
    accountant.ledger._disk._end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def copied(path: Path, name: str, *ends: str) -> Path:
    """A copy of a ledger that is not open, with what stands beside it."""
    for end in ("", *ends):
        shutil.copyfile(f"{path}{end}", path.with_name(f"{name}{end}"))
    return path.with_name(name)


# Beside the ledger --------------------------------------------------------------------------------


def test_the_head_beside_the_ledger_is_that_of_the_last_spend(path: Path) -> None:
    accountant = central(Ledger.create(path))
    for _ in range(3):
        release(accountant)
        spend = [r for r in read_records(path) if r.body["entry"] == "spend"][-1]
        assert read_head(path) == Head(spend.seq + 1, spend.hash)
    head = accountant.ledger.head
    assert read_head(path) == Head(len(read_records(path)), head)
    accountant.close()
    assert read_head(path) == Head(len(read_records(path)), read_records(path)[-1].hash)


def test_it_is_never_ahead_of_what_is_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accountant = central(Ledger.create(path))
    said = list[str]()
    sync, write = os.fdatasync, os.pwrite

    def fdatasync(file: int) -> None:
        said.append(os.readlink(f"/proc/self/fd/{file}").rpartition("ledger.db")[2])
        sync(file)

    def pwrite(file: int, data: bytes, at: int) -> int:
        said.append("head")
        return write(file, data, at)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(os, "pwrite", pwrite)
    release(accountant)
    assert said == ["-wal", "head"]  # and it costs no sync


def test_a_process_that_died_is_gone_on_with_without_a_word(path: Path) -> None:
    first = central(Ledger.create(path))
    release(first)
    first.issue(ZCDP("0.01"), users=USERS, label="waits")
    die(first)
    second = resumed(path)
    release(second)
    second.close()
    found = audit(path)
    assert (found.problems, found.spends) == ([], 2)
    assert not any("without a head" in line for line in weaknesses(found))


@pytest.mark.parametrize("how", ["older", "cut", "another", "emptied"])
def test_an_older_or_another_ledger_is_not_gone_on_with(how: str, path: Path) -> None:
    """The defect: an older copy in place of the ledger, and spends were forgotten."""
    first = central(Ledger.create(path))
    release(first)
    first.ledger.close()
    old = copied(path, "old.db")
    second = resumed(path)
    release(second)
    if how == "another":
        central(Ledger.create(path.with_name("old2.db"))).ledger.close()
        old = path.with_name("old2.db")
    elif how == "emptied":
        Ledger.create(path.with_name("old3.db")).close()
        old = path.with_name("old3.db")
    second.ledger.close()
    os.replace(old, path)
    if how == "cut":
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(path)) as file, file:
            file.execute("DELETE FROM entries WHERE seq > 2")
    (problem,) = audit(path).problems if how != "emptied" else audit(path).problems[-1:]
    assert "which ledger.db.head keeps, is not in it: it is an older copy, was cut" in problem
    for known in ({}, {"head": read_records(path)[-1].hash} if read_records(path) else {}):
        with pytest.raises(LedgerHeadError, match=r"not the head .* that ledger.db.head keeps"):
            resumed(path, **known)
    if how == "older":
        third = resumed(path, unknown_head=True)
        release(third)
        third.close()
        found = audit(path)
        assert found.problems == []
        assert any("resumed once without a head" in line for line in weaknesses(found))


def test_without_the_comparison_an_older_copy_would_be_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted defect: the spend that the older copy lacks is charged no more."""
    monkeypatch.setattr(Claimed, "check", lambda self, chain, elsewhere: False)
    first = central(Ledger.create(path))
    first.ledger.close()
    old = copied(path, "old.db")
    second = resumed(path)
    release(second)
    second.ledger.close()
    os.replace(old, path)
    assert resumed(path).spent().is_zero


def test_a_head_that_is_damaged_or_behind_is_no_problem_of_an_audit(path: Path) -> None:
    first = central(Ledger.create(path))
    release(first)
    before = head_path(path).read_bytes()
    release(first)
    first.close()
    for content in (before, b"damaged"):
        head_path(path).write_bytes(content)
        assert audit(path).problems == []


@pytest.mark.parametrize("state", ["missing", "damaged", "empty", "swapped digits"])
def test_without_its_head_a_ledger_needs_one(state: str, path: Path) -> None:
    first = central(Ledger.create(path))
    release(first)
    kept = first.ledger.head
    first.ledger.close()
    beside = head_path(path)
    if state == "missing":
        beside.unlink()
    elif state == "swapped digits":
        beside.write_bytes(beside.read_bytes().replace(kept[:4].encode(), kept[3::-1].encode()))
    else:
        beside.write_bytes(b"" if state == "empty" else b"rubbish")
    message = "which keeps its head, is not there" if state == "missing" else "is damaged"
    for open_it in (Ledger.open, resumed):
        with pytest.raises(LedgerHeadError, match=message):
            open_it(path)
    with pytest.raises(LedgerHeadError, match=r"its head is .*, not 0+1, which no entry has"):
        resumed(path, head="0" * 63 + "1")
    second = resumed(path, head=kept)
    second.close()
    assert read_head(path) == Head(len(read_records(path)), read_records(path)[-1].hash)
    assert not any("without a head" in line for line in weaknesses(audit(path)))


def test_an_earlier_head_that_was_kept_is_continued(path: Path) -> None:
    first = central(Ledger.create(path))
    release(first)
    kept = first.ledger.head
    release(first)
    first.ledger.close()
    head_path(path).unlink()
    assert resumed(path, head=kept).spent() == ZCDP("0.01")


def test_a_head_that_is_said_to_be_unknown_is_reported_by_every_audit(path: Path) -> None:
    first = central(Ledger.create(path))
    release(first)
    first.ledger.close()
    for _ in range(2):
        head_path(path).unlink()
        again = resumed(path, unknown_head=True)
        again.ledger.close()
    again = resumed(path, unknown_head=True)  # it is known now: nothing to report
    again.close()
    found = audit(path)
    kinds = [record.body["entry"] for record in read_records(path)]
    assert kinds == ["open", "issue", "spend", "retire", "resume", "resume", "close"]
    (line,) = [line for line in weaknesses(found) if "without a head" in line]
    assert "resumed 2 times without a head" in line
    again = central(Ledger.create(path.with_name("second.db")))
    assert not any(
        "without a head" in each.text for each in again.certificate().guarantees[0].rests_on
    )


def test_a_head_is_one_and_is_known_or_unknown(path: Path) -> None:
    Ledger.create(path).close()
    with pytest.raises(ValueError, match="head = 'x': must be 64 hexadecimal digits"):
        Ledger.open(path, head="x")
    with pytest.raises(ValueError, match="unknown_head = True: a head is given; leave one"):
        Ledger.open(path, head="0" * 64, unknown_head=True)
    book = Ledger.open(path)
    with pytest.raises(ValueError, match=r"unknown_head = True: is for Ledger\.open"):
        resumed(book, unknown_head=True)
    accountant = central(book)
    with pytest.raises(LedgerHeadError, match="the ledger was cut or rewritten"):
        resumed(book, head="1" * 64)
    assert resumed(book, head=accountant.ledger.head).id == accountant.id


def test_an_account_from_before_needs_its_head(tmp_path: Path) -> None:
    path = copied(FORMER / "double-precision-open.db", "old.db")
    path = Path(shutil.move(path, tmp_path / "old.db"))
    with pytest.raises(LedgerHeadError, match="which keeps its head, is not there"):
        CentralAccountant.resume(path)
    with pytest.raises(LedgerHeadError, match="begun by a version whose ledgers cannot say so"):
        CentralAccountant.resume(path, unknown_head=True)


def test_the_file_is_written_by_the_last_process_only(path: Path) -> None:
    """An earlier one that still runs writes to the file that it had, which is gone."""
    first, second = HeadFile(path), HeadFile(path)
    first.write(Head(1, "1" * 64))
    second.write(Head(2, "2" * 64))
    assert read_head(path) == Head(2, "2" * 64)
    second.write(Head(3, "3" * 64))
    assert read_head(path) == Head(3, "3" * 64)
    head_path(path).unlink()
    second.write(Head(4, "4" * 64))  # made anew
    assert read_head(path) == Head(4, "4" * 64)
    assert len(list(path.parent.iterdir())) == 1


# In a safer place ---------------------------------------------------------------------------------


def test_heads_are_handed_out_when_they_are_on_disk_and_before_noise_is_drawn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, kept = list[str](), list[str]()
    sync, integers = os.fdatasync, GaussianNoise.integers

    def keep(head: str) -> None:
        said.append("kept")
        kept.append(head)

    def fdatasync(file: int) -> None:
        said.append("sync")
        sync(file)

    def drawn(*given: Any) -> Any:
        said.append("noise")
        return integers(*given)

    accountant = central(Ledger.create(path, keep_head=keep))
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(GaussianNoise, "integers", drawn)
    said.clear()
    release(accountant)
    assert said == ["sync", "kept", "noise"]
    spend = [record for record in read_records(path) if record.body["entry"] == "spend"][-1]
    assert kept[-1] == spend.hash
    accountant.close()
    assert kept[-1] == read_records(path)[-1].hash
    (open_, *_) = read_records(path)
    assert open_.ext == {"resume/1": {"heads": "elsewhere"}}
    said_of = [line.text for line in audit(path).guarantees[0].rests_on]
    assert any("handed to a safer place" in text for text in said_of)


def test_a_head_that_cannot_be_kept_stops_its_release_and_no_other(path: Path) -> None:
    down = [False]
    left = list[object]()

    def keep(head: str) -> None:
        if down[0]:
            raise ConnectionError("no route to the safe")

    accountant = central(Ledger.create(path, keep_head=keep))
    left.append(release(accountant))
    down[0] = True
    for _ in range(2):
        with pytest.raises(LedgerHeadError, match=r"could not be kept: .*no route to the safe"):
            left.append(release(accountant))
    down[0] = False
    left.append(release(accountant))
    assert len(left) == 2
    assert accountant.spent() == ZCDP("0.02")  # (2/20)²/2 each: what stands is charged
    accountant.close()
    found = audit(path)
    assert (found.problems, found.spends, found.lost) == ([], 4, 2)


def test_a_stream_goes_on_once_the_head_of_its_reach_is_kept(path: Path) -> None:
    """And not before, though the reach stands: rolled back, the file would know nothing of it."""
    down, kept = [False], list[str]()

    def keep(head: str) -> None:
        if down[0]:
            raise ConnectionError("no route to the safe")
        kept.append(head)

    def ones(first: int, *functions: Any) -> Rows[Any]:
        rows = Rows.seal(np.ones((1, 2)), users=range(first, first + 1))
        for function in functions:
            rows = rows.map_rows(function)
        return rows

    accountant = central(Ledger.create(path, keep_head=keep))
    sums = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.01"), horizon=len(USERS))
    stream = sums.open(accountant.issue(sums.loss(), users=USERS, label="sums"))
    for user, functions in enumerate([[], [lambda row: row]]):
        down[0] = True
        for _ in range(2):
            with pytest.raises(LedgerHeadError, match="could not be kept"):
                stream.append(ones(user, *functions))
        down[0] = False
        assert stream.append(ones(user, *functions)).value.shape == (1, 2)
        said = {record.hash: record.body["entry"] for record in read_records(path)}
        assert said[kept[-1]] in ("reach", "functions")
    accountant.close()
    assert audit(path).problems == []


def test_a_head_that_cannot_be_written_beside_the_ledger_stops_its_release(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = central(Ledger.create(path))
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(LedgerHeadError, match="could not be written whole"):
            release(accountant)
    release(accountant)
    accountant.close()
    assert audit(path).lost == 1


def test_a_ledger_put_back_together_with_its_head_is_told_by_one_kept_elsewhere(path: Path) -> None:
    """A joint rollback, which the file beside the ledger does not tell."""
    kept = list[str]()
    first = central(Ledger.create(path, keep_head=kept.append))
    first.ledger.close()
    copied(path, "old.db", ".head")
    second = resumed(Ledger.open(path, head=kept[-1], keep_head=kept.append))
    release(second)
    second.ledger.close()
    for end in ("", ".head"):
        os.replace(path.with_name(f"old.db{end}"), f"{path}{end}")
    with pytest.raises(LedgerHeadError, match="which no entry has: it is an older copy"):
        Ledger.open(path, head=kept[-1], keep_head=kept.append)
    with pytest.raises(LedgerHeadError, match="says that its heads are kept elsewhere: give head="):
        resumed(path)
    third = resumed(Ledger.open(path, unknown_head=True, keep_head=kept.append))
    assert third.spent().is_zero
    third.close()
    assert any("resumed once without a head" in line for line in weaknesses(audit(path)))


def test_who_goes_on_keeps_heads_where_the_ledger_says(path: Path) -> None:
    kept = list[str]()
    central(Ledger.create(path, keep_head=kept.append)).ledger.close()
    with pytest.raises(LedgerHeadError, match=r"open it with keep_head=, and hand the Ledger to"):
        resumed(path, head=kept[-1])
    before = len(kept)
    release(resumed(Ledger.open(path, head=kept[-1], keep_head=kept.append)))
    assert len(kept) == before + 1


def test_what_a_ledger_says_of_its_heads_has_a_form(path: Path) -> None:
    from privlearn.accountants.audit import certify
    from privlearn.ledger.chain import chained

    central(Ledger.create(path)).ledger.close()
    body = read_records(path)[0].body
    found = certify(chained([body], {0: {"resume/1": {"heads": "in my head"}}}))
    assert "heads must be 'elsewhere'" in " ".join(found.problems)
    late = [body, {"entry": "resume", "accountant": body["accountant"], "head": "known"}]
    assert len(certify(chained(late)).problems) == 1
    bare = {**body, "features": {"exact/1": "optional"}}
    late[0], late[1]["head"] = bare, "unknown"
    assert "'resume/1' was not declared" in " ".join(certify(chained(late)).problems)
