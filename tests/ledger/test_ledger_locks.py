"""Closing a descriptor of a ledger in the process that writes it lets nobody else write."""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from privlearn.accountants import audit
from privlearn.errors import LedgerBusyError, LedgerError
from privlearn.ledger import Ledger, disk, read_records
from privlearn.ledger.entries import IssueEntry, OpenEntry, RetireEntry
from privlearn.ledger.tail import Tail
from privlearn.storage import open_file_lock
from privlearn.values.adjacency import Adjacency, Trust

OPEN = OpenEntry(
    accountant="a",
    software="privlearn 0",
    trust=Trust.CENTRAL,
    adjacency=Adjacency.REPLACE_ONE,
    users=(0, 4),
    cap={"kind": "zcdp", "rho": "1"},
    promise=None,
    noise="simulation, seed 0",
    simulated=True,
    side_information=(),
    durable=True,
)
ISSUE = IssueEntry(
    accountant="a", token="a/1", label="sum", users=(0, 4), budget={"kind": "zcdp", "rho": "0.1"}
)
SPENT = RetireEntry(accountant="a", token="a/1", outcome="uncovered")
"""An entry that does not wait."""

INTRUDER = """
    import sqlite3, sys
    # removes the log on closing, if nothing tells it that somebody writes to it
    with sqlite3.connect(sys.argv[1]) as first:
        first.execute("SELECT count(*) FROM entries").fetchone()
    first.close()
    second = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
    try:
        second.execute("BEGIN IMMEDIATE")
        second.execute(
            "INSERT INTO entries SELECT seq + 1, entry, hash FROM entries ORDER BY seq DESC LIMIT 1"
        )
        second.execute("COMMIT")
        print("written")
    except sqlite3.OperationalError as error:
        print(error)
"""


def intrude(path: Path) -> str:
    """What another process achieves that reads the ledger, and then writes to it."""
    command = [sys.executable, "-c", textwrap.dedent(INTRUDER), str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def read_by_somebody(path: Path) -> None:
    path.read_bytes()


def audited(path: Path) -> None:
    audit(path)


def resumed(path: Path) -> None:
    Ledger.open(path).close()


def resumed_and_forgotten(path: Path) -> None:
    Ledger.open(path)
    gc.collect()


def append_with(book: Ledger, between: Callable[[Path], None]) -> list[str]:
    """Appends; before it is committed, ``between`` and another process come in."""
    assert book._connection is not None
    assert book.path is not None
    path, said = book.path, list[str]()

    def trace(text: str) -> None:
        if text == "COMMIT" and not said:
            between(path)
            said.append(intrude(path))

    book._connection.set_trace_callback(trace)
    try:
        book.append(SPENT)
    finally:
        book._connection.set_trace_callback(None)
    return said


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "ledger.db")
    made.append(OPEN)
    made.append(ISSUE)
    return made


@pytest.mark.skipif(open_file_lock._SET is None, reason="needs locks of open files")
@pytest.mark.parametrize("between", [read_by_somebody, audited, resumed, resumed_and_forgotten])
def test_nobody_writes_between_the_check_and_the_commit(
    between: Callable[[Path], None], book: Ledger
) -> None:
    """Whatever closes a descriptor of the file in this process meanwhile."""
    assert append_with(book, between) == ["database is locked"]
    assert book.path is not None
    kept, path = book.head, book.path
    assert intrude(path) == "written"  # when nobody writes
    assert [record.hash for record in read_records(path)[:3]][-1] == kept


def test_an_audit_lets_go_of_no_lock_on_systems_without_such_locks(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_file_lock, "_SET", None)
    book.close()
    again = Ledger.open(tmp_path / "ledger.db")
    assert append_with(again, audited) == ["database is locked"]
    assert read_records(tmp_path / "ledger.db")[-1].hash == again.head


def test_an_entry_in_a_log_that_was_removed_is_not_taken_for_written(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_file_lock, "_SET", None)
    book.close()
    again = Ledger.open(tmp_path / "ledger.db")
    with pytest.raises(LedgerBusyError, match="was closed by another process"):
        append_with(again, read_by_somebody)
    assert len(again.entries) == 2
    with pytest.raises(LedgerError, match="interrupted half-way"):
        again.append(SPENT)
    with pytest.raises(LedgerBusyError, match="was closed by another process"):
        again.head  # noqa: B018
    # the other's entry is not overwritten
    assert [record.seq for record in read_records(tmp_path / "ledger.db")] == [0, 1, 2]


def test_a_lock_is_gone_with_its_ledger(book: Ledger, tmp_path: Path) -> None:
    book.close()
    other = sqlite3.connect(tmp_path / "ledger.db", timeout=0, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    other.execute("ROLLBACK")
    other.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ledger.db", "ledger.db.head"]


def test_what_another_writer_did_not_sync_is_copied_by_sqlite(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which reads where the log ends, syncs it, and only then copies it."""
    monkeypatch.setattr(disk, "SHORTEST_LOG", 0)  # it is copied at every spend

    def mode_of_copy() -> str:
        asked = [text for text in said if "synchronous" in text or "PASSIVE" in text]
        before = asked[: asked.index("PRAGMA wal_checkpoint(PASSIVE)")]
        return before[-1].rpartition(" ")[2] if before else "as it was"

    said = list[str]()
    connection = book._connection
    assert connection is not None
    connection.set_trace_callback(said.append)
    assert book._disk is not None
    book._disk._ready = 0
    book.append(SPENT)  # settled, alone
    assert mode_of_copy() == "as it was"
    assert connection.execute("PRAGMA synchronous").fetchone() == (0,)
    monkeypatch.setattr(Tail, "has_room", lambda *_: False)  # it waits in the database
    book.append(ISSUE)
    other = Ledger.open(tmp_path / "ledger.db")
    other.append(ISSUE)
    said.clear()
    book.head  # noqa: B018
    assert mode_of_copy() == "FULL"


def test_an_export_overwrites_exports_only(book: Ledger, tmp_path: Path) -> None:
    assert book.path is not None
    book.head  # noqa: B018
    for path in (book.path, tmp_path / "notes.txt"):
        if path != book.path:
            path.write_text("kept")
        before = path.read_bytes()
        with pytest.raises(LedgerError, match="is no export: it is not overwritten"):
            book.export(path)
        assert path.read_bytes() == before
    for _ in range(2):
        book.export(tmp_path / "ledger.jsonl")
    assert len(read_records(tmp_path / "ledger.jsonl")) == 2
