"""The ledger: durable before anything leaves, chained, and never guessed at."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    LedgerSchemaError,
    LedgerUnreadableError,
    TokenError,
    TokenSpentError,
)
from privlearn.ledger import (
    GENESIS,
    SCHEMA,
    Ledger,
    Record,
    canonical,
    chain_problems,
    read_records,
)
from privlearn.ledger import disk as disks
from privlearn.ledger.entries import (
    CloseEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    RetireEntry,
    SpendEntry,
)
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency, Trust

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))

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
    side_information=("prices", "Größe"),
    durable=True,
)
ISSUE = IssueEntry(
    accountant="a", token="a/1", label="sum", users=(0, 4), budget={"kind": "zcdp", "rho": "0.1"}
)
ENTRIES: tuple[Entry, ...] = (
    OPEN,
    ISSUE,
    RetireEntry(accountant="a", token="a/1", outcome="unused"),
    CloseEntry(accountant="a"),
)


def rows() -> Rows[Any]:
    return Rows.seal(np.ones((4, 2)), users=USERS)


def file_accountant(path: Path, cap: str = "1") -> CentralAccountant[ZCDP]:
    return CentralAccountant(
        ZCDP(cap), users=USERS, ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    )


def resumed(path: Path) -> CentralAccountant[ZCDP]:
    return CentralAccountant.resume(path, noise=NoiseSource.simulation(1))


def by_hand(records: list[Record]) -> list[str]:
    """The hashes, only from the definition."""
    previous, hashes = bytes(32), []
    for record in records:
        previous = hashlib.sha256(previous + record.data).digest()
        hashes.append(previous.hex())
    return hashes


def test_memory_and_file_ledgers_have_the_hashes_of_the_definition(tmp_path: Path) -> None:
    memory, file = Ledger.memory(), Ledger.create(tmp_path / "ledger.db")
    assert memory.head == file.head == GENESIS
    for entry in ENTRIES:
        memory.append(entry)
        file.append(entry)
    file.export(tmp_path / "export.jsonl")
    file.close()
    written = file.records
    assert (
        read_records(tmp_path / "ledger.db") == read_records(tmp_path / "export.jsonl") == written
    )
    for ledger in (memory, file):
        assert [record.hash for record in ledger.records] == by_hand(ledger.records)
        assert ledger.head == ledger.records[-1].hash
        assert chain_problems(ledger.records, ledger.head) == []
        for record, entry in zip(ledger.records, ENTRIES, strict=True):
            assert record.body == entry.body()
            assert json.loads(record.data) == {**(record.envelope or {}), "body": record.body}
            assert record.data == canonical(json.loads(record.data))
    assert Ledger.open(tmp_path / "ledger.db").entries == ENTRIES
    with open(tmp_path / "export.jsonl", "rb") as export:
        lines = [json.loads(line) for line in export]
    assert lines[0] == {"privlearn_ledger": 2}
    assert [line["hash"] for line in lines[1:]] == [record.hash for record in written]


def test_the_envelope_tells_writer_epoch_and_minute_but_no_end_its_time(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    now = int(time.time() // 60)
    with Ledger.create(path) as ledger:
        ledger.append(OPEN)
        ledger.append(ISSUE)
    with Ledger.open(path) as again:
        again.append(ENTRIES[2])
        again.append(ENTRIES[3])
    envelopes = [record.envelope or {} for record in read_records(path)]
    assert [envelope["epoch"] for envelope in envelopes] == [1, 1, 2, 2]
    first, same, second, last = (envelope["writer"] for envelope in envelopes)
    assert first == same != second == last
    assert len({envelope["nonce"] for envelope in envelopes}) == 4
    assert ["at" in envelope for envelope in envelopes] == [True, True, False, True]
    told = datetime.strptime(envelopes[0]["at"], "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC)
    assert 0 <= told.timestamp() // 60 - now <= 1
    assert ["root" in envelope for envelope in envelopes] == [False, False, False, True]


def test_a_spend_is_on_disk_after_one_sync_and_an_issue_and_an_end_ride_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fdatasync, []

    def fdatasync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}").rpartition("ledger.db")[2])
        real(file)

    accountant = file_accountant(tmp_path / "ledger.db")
    disk = accountant.ledger._disk
    assert disk is not None
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for _ in range(3):
        MECHANISM.release(rows(), accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
    assert synced == ["-wal"] * 3
    accountant.ledger.head  # noqa: B018
    accountant.ledger.head  # noqa: B018
    assert synced == ["-wal"] * 4
    disk._ready = 0  # the log is to be copied
    MECHANISM.release(rows(), accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
    assert synced == [*["-wal"] * 5, ""]


@pytest.mark.skipif(shutil.which("strace") is None, reason="counts what SQLite itself syncs")
def test_the_system_is_asked_for_no_other_sync(tmp_path: Path) -> None:
    script = """
        import os, sys
        import numpy as np
        from privlearn.accountants import CentralAccountant
        from privlearn.losses.budgets import ZCDP
        from privlearn.rows.domains import Ball
        from privlearn.ledger import Ledger
        from privlearn.mechanisms import NoisySum
        from privlearn.noise import GaussianNoise, NoiseSource
        from privlearn.rows import Rows

        book, noise = Ledger.create(sys.argv[1]), NoiseSource.simulation(0)
        accountant = CentralAccountant(ZCDP(100), users=range(4), ledger=book, noise=noise)
        mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
        rows = Rows.seal(np.ones((4, 2)), users=range(4))
        os.write(2, b"BEGIN\\n")
        for _ in range(100):
            mechanism.release(rows, accountant.issue(ZCDP("0.01"), users=range(4), label="sum"))
        os._exit(0)
    """
    traced = "--trace=fsync,fdatasync,sync_file_range,sync,syncfs,msync,write"
    python = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "ledger.db")]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(tmp_path / "said"), traced, *python], capture_output=True
    )
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("this system lets nobody trace")
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_text().partition('"BEGIN')[2]
    assert 100 <= said.count("sync(") <= 115  # one for each, and some for copies of the log


@pytest.mark.parametrize("shortest", [0, 32 * 2**10])
def test_a_cut_of_the_power_at_any_moment_leaves_every_spend(
    shortest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced may be on disk or not, block by block; what was cut off may come back."""
    monkeypatch.setattr(disks, "SHORTEST_LOG", shortest)
    path = tmp_path / "ledger.db"
    rng = np.random.default_rng(0)
    real, promised = os.fdatasync, 0
    states: list[tuple[int, bytes, bytes, bytes]] = []
    synced = {"": b"", "-wal": b""}

    def now(end: str) -> bytes:
        file = Path(f"{path}{end}")
        return file.read_bytes() if file.exists() else b""

    def left(end: str) -> bytes:
        old, new = synced[end], now(end)
        if end == "-wal" and old[:32] != new[:32]:  # it was cut since it was synced: new blocks
            if rng.random() < 0.3:
                return old
            old = b""
        size = max(len(old), len(new))
        old, new = old.ljust(size, b"\0"), new.ljust(size, b"\0")
        blocks = range(0, size, 4096)
        return b"".join((new if rng.random() < 0.5 else old)[i : i + 4096] for i in blocks)

    def fdatasync(file: int) -> None:
        end = os.readlink(f"/proc/self/fd/{file}").rpartition("ledger.db")[2]
        for _ in range(3):
            log = left("-wal") if end == "-wal" else now("-wal")
            states.append((promised, left(""), log, now(".head")))
        real(file)
        synced[end] = now(end)
        copied.append(end)

    copied = list[str]()
    accountant = file_accountant(path)
    synced = {end: now(end) for end in synced}
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for count in range(12):
        promised = count
        token = accountant.issue(ZCDP("0.01"), users=USERS, label=f"sum {'x' * 700}")
        MECHANISM.release(rows(), token)
    assert copied.count("-wal") == 12
    assert copied.count("") == 12 if not shortest else 2 <= copied.count("") < 6
    monkeypatch.setattr(os, "fdatasync", real)
    for number, (spends, main, log, head) in enumerate(states):
        copy = tmp_path / f"copy{number}.db"
        for end, content in (("", main), ("-wal", log), (".head", head)):
            Path(f"{copy}{end}").write_bytes(content)
        assert spends_in(copy) >= spends
        assert chain_problems(read_records(copy)) == []


@pytest.mark.parametrize("reading", [True, False])
def test_a_log_that_somebody_reads_is_left_to_sqlite(
    reading: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "SHORTEST_LOG", 0)  # it is copied at every spend
    path = tmp_path / "ledger.db"
    accountant = file_accountant(path)
    reader = sqlite3.connect(path, isolation_level=None)
    if reading:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
    MECHANISM.release(rows(), accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
    disk = accountant.ledger._disk
    assert disk is not None
    assert disk._cut is not reading
    reader.close()
    MECHANISM.release(rows(), accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
    assert disk._cut
    assert spends_in(path) == 2


def test_what_a_reader_held_back_is_synced_before_the_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader goes while the main file is synced: SQLite copies the rest, and cuts the log."""
    monkeypatch.setattr(disks, "SHORTEST_LOG", 0)  # it is copied at every spend
    accountant = file_accountant(tmp_path / "ledger.db")
    reader = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    real, said = os.fdatasync, list[str]()

    def fdatasync(file: int) -> None:
        real(file)
        if os.readlink(f"/proc/self/fd/{file}").endswith("ledger.db"):
            reader.close()

    connection = accountant.ledger._connection
    assert connection is not None
    connection.set_trace_callback(said.append)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    MECHANISM.release(rows(), accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
    cuts = [i for i, text in enumerate(said) if "TRUNCATE" in text]
    assert cuts
    for cut in cuts:
        modes = [text for text in said[:cut] if text.startswith("PRAGMA synchronous")]
        assert modes[-1] == "PRAGMA synchronous = FULL"


def test_the_head_of_a_resumed_ledger_is_on_disk_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    first = file_accountant(path)
    first.issue(ZCDP("0.01"), users=USERS, label="sum")  # not synced; and its process is gone
    real, synced = os.fdatasync, []

    def fdatasync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}").rpartition("ledger.db")[2])
        real(file)

    again = Ledger.open(path)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    head = again.head
    assert synced == ["-wal", ""]  # whatever it held is copied once
    assert head == read_records(path)[-1].hash


@pytest.mark.parametrize("audited", [False, True])
def test_a_process_that_ends_the_log_behind_a_writer_stops_it(
    audited: bool, tmp_path: Path
) -> None:
    """Closing any descriptor of a file lets go of its locks: the second takes itself for alone."""
    path = tmp_path / "ledger.db"
    first = file_accountant(path)
    token = first.issue(ZCDP("0.1"), users=USERS, label="sum")
    if audited:
        assert audit(path).problems == []
    script = """
        import sys
        from privlearn.accountants import CentralAccountant
        from privlearn.ledger import Ledger
        from privlearn.noise import NoiseSource
        Ledger.open(sys.argv[1]).close()
        book = Ledger.open(sys.argv[1])
        CentralAccountant.resume(book, noise=NoiseSource.simulation(1))
        book.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    subprocess.run(command, check=True)
    written = [record.hash for record in read_records(path)]
    with pytest.raises(LedgerBusyError, match="by another process; resume it"):
        MECHANISM.release(rows(), token)
    assert [record.hash for record in read_records(path)] == written


def test_an_appended_entry_can_be_read_by_others_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path)
    for count, entry in enumerate(ENTRIES, 1):
        ledger.append(entry)
        script = (
            "import sys; from privlearn.ledger import read_records as r; print(len(r(sys.argv[1])))"
        )
        if count == 2:
            done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True)
            assert done.stdout.split() == [b"2"]
        assert len(read_records(path)) == count
    assert ledger._connection is not None
    assert ledger._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger._connection.execute("PRAGMA synchronous").fetchone() == (0,)  # it is left to us
    ledger.close()
    ledger.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.db", "ledger.db.head"]


KILLED = """
    import os, signal, sys
    import numpy as np
    from pathlib import Path
    from privlearn.accountants import CentralAccountant
    from privlearn.accountants.state import AccountState
    from privlearn.losses.budgets import ZCDP
    from privlearn.rows.domains import Ball
    from privlearn.ledger import Ledger
    from privlearn.mechanisms import NoisySum
    from privlearn.noise import GaussianNoise
    from privlearn.rows import Rows
    from privlearn.contract.receipts import Receipt

    path, out, when, how = sys.argv[1:]

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(9)

    def dies_at_spend(self, entry, *rest):
        return die() if entry.entry == "spend" else check(self, entry, *rest)

    check = AccountState.check
    if when == "before the spend":
        AccountState.check = dies_at_spend
    elif when == "before opening":
        Receipt._opened = die
    elif when == "before noise":
        GaussianNoise.integers = die
    elif when == "before release":
        Receipt._released = die

    accountant = CentralAccountant(ZCDP("0.1"), users=range(4), ledger=Ledger.create(path))
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    token = accountant.issue(ZCDP("0.1"), users=range(4), label="sum")
    rows = Rows.seal(np.ones((4, 2)), users=range(4))
    if when == "planted: noise before the spend":
        noisy = 4 + accountant.noise.pool().floors("normal", 2)
        Path(out).write_text(str(noisy))
        die()
    released = mechanism.release(rows, token)
    Path(out).write_text(str(released.value))
    die()
"""
MOMENTS = ["before the spend", "before opening", "before noise", "before release", "after release"]


def run_and_kill(tmp_path: Path, when: str, how: str = "kill") -> tuple[Path, bool]:
    """Runs the script until it dies; the ledger it leaves, and whether a value got out."""
    path, out = tmp_path / "ledger.db", tmp_path / "released.txt"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path), str(out), when, how],
        capture_output=True,
        text=True,
    )
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 9), done.stderr
    return path, out.exists()


def spends_in(path: Path) -> int:
    return sum(record.body["entry"] == "spend" for record in read_records(path))


@pytest.mark.parametrize("when", MOMENTS)
def test_a_process_killed_after_its_spend_leaves_the_spend_and_never_a_second_draw(
    when: str, tmp_path: Path
) -> None:
    path, got_out = run_and_kill(tmp_path, when)
    spent = spends_in(path)
    assert spent >= got_out  # never a release without its spend
    assert spent == (when != "before the spend")
    before = audit(path)
    assert before.problems == []
    assert not before.closed
    assert before.lost == (1 if when in MOMENTS[1:4] else 0)
    accountant: CentralAccountant[ZCDP] = CentralAccountant.resume(path)
    end = accountant.ledger.entries[-1]
    assert isinstance(end, RetireEntry)
    assert end.outcome == {"before the spend": "unused", "after release": "released"}.get(
        when, "lost"
    )
    if when == "before the spend":
        assert accountant.spent().is_zero
        return
    # The outcome is lost and stays charged; the token cannot be drawn again, nor its budget.
    assert accountant.spent() == ZCDP("0.005")  # (2/20)²/2
    assert audit(path).lost == (when != "after release")
    issue = next(e for e in accountant.ledger.entries if isinstance(e, IssueEntry))
    spend = next(e for e in accountant.ledger.entries if isinstance(e, SpendEntry))
    with pytest.raises(TokenSpentError, match=r"was spent (and then retired )?before"):
        accountant._log.append(spend)
    with pytest.raises(TokenError, match="was issued before"):
        accountant._log.append(issue)
    with pytest.raises(ValueError, match="budget exceeded"):
        accountant.issue(ZCDP("0.0951"), users=USERS, label="again")
    assert audit(path).problems == []


def test_a_process_that_exits_without_cleaning_up_is_no_different(tmp_path: Path) -> None:
    path, got_out = run_and_kill(tmp_path, "before release", "exit")
    assert (spends_in(path), got_out) == (1, False)
    assert audit(path).lost == 1


def test_noise_that_leaves_before_the_spend_would_be_seen(tmp_path: Path) -> None:
    """The planted defect of peers: the check of the test above does not hold for it."""
    path, got_out = run_and_kill(tmp_path, "planted: noise before the spend")
    assert not spends_in(path) >= got_out


def test_the_second_process_on_one_ledger_stops_the_first(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first = file_accountant(path)
    token = first.issue(ZCDP("0.1"), users=USERS, label="sum")
    script = (
        "import sys; from privlearn.accountants import CentralAccountant as C; "
        "from privlearn.noise import NoiseSource as N; "
        "C.resume(sys.argv[1], noise=N.simulation(1))"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    entries = len(read_records(path))
    with pytest.raises(LedgerBusyError, match="was written to by another process"):
        MECHANISM.release(rows(), token)
    with pytest.raises(LedgerBusyError, match="was written to by another process"):
        first.issue(ZCDP("0.1"), users=USERS, label="sum")
    assert len(read_records(path)) == entries
    assert audit(path).problems == []


def test_two_ledger_objects_on_one_file_do_not_both_write(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.create(path) as writer:
        writer.append(OPEN)
    first, second = Ledger.open(path), Ledger.open(path)
    first.append(ISSUE)
    with pytest.raises(LedgerBusyError, match="another process"):
        second.append(ISSUE)
    assert len(second.entries) == 1
    assert len(read_records(path)) == 2


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_accountant_whose_ledger_was_resumed_writes_no_more(kind: str, tmp_path: Path) -> None:
    """Otherwise two accountants would each spend the whole cap in one process."""
    book = Ledger.memory() if kind == "memory" else Ledger.create(tmp_path / "ledger.db")
    noise = NoiseSource.simulation(0)
    first = CentralAccountant(ZCDP("0.005"), users=USERS, ledger=book, noise=noise)
    token = first.issue(ZCDP("0.005"), users=USERS, label="sum")
    second: CentralAccountant[ZCDP] = CentralAccountant.resume(book, noise=noise)
    MECHANISM.release(rows(), second.issue(ZCDP("0.005"), users=USERS, label="sum"))
    with pytest.raises(LedgerBusyError, match="only the last one may write"):
        MECHANISM.release(rows(), token)
    assert second.certificate().problems == []


def test_ledgers_are_never_overwritten_and_need_a_place(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.create(path).close()
    with pytest.raises(LedgerError, match=r"ledger.db exists: ledgers are never overwritten"):
        Ledger.create(path)
    with pytest.raises(LedgerError, match="cannot be created: No such file or directory"):
        Ledger.create(tmp_path / "missing" / "ledger.db")
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerError, match="cannot be created: Not a directory"):
        Ledger.create(tmp_path / "file" / "ledger.db")
    if os.getuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(LedgerError, match="cannot be created: Permission denied"):
            Ledger.create(tmp_path / "locked" / "ledger.db")


def test_nothing_follows_a_close(tmp_path: Path) -> None:
    accountant = file_accountant(tmp_path / "ledger.db")
    accountant.close()
    accountant.close()
    with pytest.raises(LedgerClosedError, match="closed"):
        accountant.issue(ZCDP("0.1"), users=USERS, label="late")
    with pytest.raises(LedgerClosedError, match="closed"):
        accountant.ledger.append(ISSUE)
    with pytest.raises(LedgerError, match=r"ledger\.db: its accountant was closed"):
        resumed(tmp_path / "ledger.db")


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with file_accountant(path) as accountant:
        for _ in range(10):
            MECHANISM.release(rows(), accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
    return path


def test_missing_files_and_other_files_are_named_as_such(tmp_path: Path) -> None:
    for name, content, message in (
        ("nothing.db", None, "no such file"),
        ("empty.db", b"", "is not a ledger"),
        ("text.db", b"dear diary, " * 100, "is not a readable ledger"),
        ("json.db", b'{"weather": "fine"}\n', "is not a ledger"),
        ("list.db", b"{]\n", "is not a readable ledger"),
        ("header.db", b"SQLite format 3\x00" + b"\xff" * 4000, "is not a readable ledger"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        for read in (read_records, Ledger.open, audit, resumed):
            with pytest.raises(LedgerUnreadableError, match=message):
                read(path)
    with pytest.raises(LedgerUnreadableError, match="is a folder"):
        read_records(tmp_path)


def test_another_programs_database_is_not_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE entries (seq, body, digests, hash)")
    with pytest.raises(LedgerUnreadableError, match="is not a ledger"):
        read_records(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_torn_file_is_unreadable(closed: Path, part: float) -> None:
    content = closed.read_bytes()
    closed.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(LedgerUnreadableError, match=r"not a readable ledger|cannot be resumed"):
        Ledger.open(closed)


@pytest.mark.parametrize("cut", [1, 7, 200])
def test_a_torn_export_is_unreadable(closed: Path, tmp_path: Path, cut: int) -> None:
    export = tmp_path / "export.jsonl"
    Ledger.open(closed).export(export)
    export.write_bytes(export.read_bytes()[: -1 - cut])
    with pytest.raises(LedgerUnreadableError, match="not a readable ledger"):
        audit(export)


def test_a_newer_schema_is_its_own_error(closed: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    Ledger.open(closed).export(export)
    lines = export.read_text(encoding="utf-8").splitlines()
    export.write_text("\n".join([json.dumps({"privlearn_ledger": SCHEMA + 1}), *lines[1:]]))
    with closing(sqlite3.connect(closed)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    for path in (closed, export):
        for read in (read_records, Ledger.open, audit):
            with pytest.raises(
                LedgerSchemaError, match=f"has schema {SCHEMA + 1}.*upgrade privlearn"
            ):
                read(path)


def test_a_tampered_ledger_is_not_resumed(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as connection, connection:
        connection.execute(
            "UPDATE entries SET entry = replace(entry, '\"sum\"', '\"gram\"') WHERE seq = 1"
        )
    connection.close()
    with pytest.raises(
        LedgerUnreadableError, match="cannot be resumed: entry 1: its hash does not fit"
    ):
        Ledger.open(closed)


def test_a_rewritten_ledger_with_entries_of_a_wrong_form_is_not_resumed(closed: Path) -> None:
    first = read_records(closed)[0]
    wrong = {**ISSUE.body(), "users": [-3, "x"]}
    record = Record.make(first.hash, 1, wrong, writer=(first.envelope or {})["writer"])
    with closing(sqlite3.connect(closed)) as connection, connection:
        connection.execute("DELETE FROM entries WHERE seq > 0")
        values = (1, record.data.decode(), record.hash)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?)", values)
    connection.close()
    assert chain_problems(read_records(closed)) == []
    with pytest.raises(LedgerUnreadableError, match=r"(?s)cannot be resumed: .*users"):
        Ledger.open(closed)


def test_an_export_can_be_audited_but_not_resumed(closed: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    Ledger.open(closed).export(export)
    before = export.read_bytes()
    assert audit(export).problems == []
    for read in (Ledger.open, resumed):
        with pytest.raises(LedgerUnreadableError, match="cannot be resumed"):
            read(export)
    assert export.read_bytes() == before


def test_closing_while_somebody_reads_still_leaves_a_whole_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    accountant = file_accountant(path)
    reader = sqlite3.connect(path)
    reader.execute("SELECT count(*) FROM entries").fetchone()
    accountant.close()
    assert audit(path).closed
    reader.close()
    assert audit(path).closed
    assert audit(path).problems == []


def test_auditing_does_not_change_the_file(closed: Path) -> None:
    before = closed.read_bytes()
    audit(closed)
    assert closed.read_bytes() == before
    assert sorted(p.name for p in closed.parent.iterdir()) == ["ledger.db", "ledger.db.head"]


def test_token_numbers_go_on_after_refusals_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    accountant = file_accountant(path)
    accountant.issue(ZCDP("0.1"), users=USERS, label="a")
    for _ in range(3):
        with pytest.raises(ValueError, match="budget exceeded"):
            accountant.issue(ZCDP(5), users=USERS, label="too much")
    accountant.issue(ZCDP("0.1"), users=USERS, label="b")
    again = resumed(path)
    ids = {again.issue(GaussianLoss("0.1"), users=USERS, label="c").id for _ in range(3)}
    assert len(ids) == 3
    assert audit(path).problems == []


def test_an_entry_that_is_no_json_is_refused_by_both_kinds_of_ledger(tmp_path: Path) -> None:
    """Not only when somebody looks at a memory ledger later."""
    bad = ISSUE.model_copy(update={"budget": {"rho": object()}})
    for ledger in (Ledger.create(tmp_path / "ledger.db"), Ledger.memory()):
        ledger.append(OPEN)
        with pytest.raises(ValueError, match="Unable to serialize"):
            ledger.append(bad)
        assert len(ledger.entries) == len(ledger.records) == 1


@pytest.mark.parametrize("value", [float("nan"), 2**53, -(2**53)])
@pytest.mark.parametrize("deep", [1, 70])
def test_what_a_reader_would_refuse_is_not_written(value: float, deep: int, tmp_path: Path) -> None:
    inner: Any = value if deep == 1 else 1
    for _ in range(deep):
        inner = [inner]
    bad = ISSUE.model_copy(update={"budget": {"kind": "zcdp", "rho": "0.1", "more": inner}})
    for ledger in (Ledger.create(tmp_path / "ledger.db"), Ledger.memory()):
        ledger.append(OPEN)
        with pytest.raises(ValueError, match=r"2\^53|safe integer|nan|64 levels"):
            ledger.append(bad)
        ledger.append(ISSUE)
        assert len(ledger.entries) == len(ledger.records) == 2
    assert len(read_records(tmp_path / "ledger.db")) == 2


@pytest.mark.parametrize("value", [2.0**53, -1e16, 1e20, 123456789012345680000.0, 1e21, 1e300])
def test_whole_reals_that_canonical_json_writes_as_integers_are_read_back(
    value: float, tmp_path: Path
) -> None:
    large = OPEN.model_copy(update={"cap": {"kind": "zcdp", "rho": "1", "more": value}})
    for ledger in (Ledger.create(tmp_path / "ledger.db"), Ledger.memory()):
        ledger.append(large)
        assert len(ledger.records) == 1
    (record,) = read_records(tmp_path / "ledger.db")
    assert type(record.body["cap"]["more"]) is float
    assert record.body == large.body()


# Where a ledger lies ------------------------------------------------------------------------------


def central(book: Ledger) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=noise)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (":memory:", r"Ledger\.memory\(\) makes such"),
        ("file::memory:", "URIs are not taken"),
        ("file:ledger.db?mode=memory&cache=shared", "URIs are not taken"),
        ("file:ledger.db", "URIs are not taken"),
        ("", "must name a file"),
        ("led\0ger.db", "must name a file"),
        (".", "is a directory: name a file in it"),
        ("missing/ledger.db", "cannot be created: No such file"),
    ],
)
def test_what_sqlite_takes_for_something_else_than_a_file_is_refused(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: three runs of ρ = 1 fitted one cap in a "durable" ledger of 0 bytes."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerError, match=reason):
        Ledger.create(path)
    with pytest.raises(LedgerError):
        Ledger.open(path)
    with pytest.raises(LedgerError):
        CentralAccountant.resume(path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_of_bytes_is_refused_as_such() -> None:
    with pytest.raises(TypeError, match=r"path = b'x.db': must be text"):
        Ledger.create(b"x.db")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%41b", "Größe ;'\"&=.db", ":memory:.db", "-wal"])
def test_odd_names_are_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    book = Ledger.create(name)
    central(book).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [name, f"{name}.head"]
    assert [record.body["entry"] for record in read_records(name)] == ["open", "close"]
    assert len(Ledger.open(tmp_path / name).entries) == 2


def test_a_ledger_stays_where_it_is_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    book = Ledger.create("ledger.db")
    accountant = central(book)
    monkeypatch.chdir(tmp_path / "two")
    accountant.issue(ZCDP(1), users=USERS, label="all")
    assert book.path == tmp_path / "one" / "ledger.db"
    assert len(read_records(book.path)) == 2
    accountant.close()
    assert list((tmp_path / "two").iterdir()) == []
    assert audit(tmp_path / "one" / "ledger.db").closed


@pytest.mark.parametrize("beside", [":memory:", "elsewhere.db"])
def test_a_connection_to_another_place_than_the_file_is_noticed(
    beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever SQLite makes of a path: what counts is what stands in the file."""
    real = sqlite3.connect
    elsewhere = beside if beside == ":memory:" else str(tmp_path / beside)
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: real(elsewhere, **more))
    with pytest.raises(LedgerError, match="is not the file that SQLite writes to: it holds 0"):
        Ledger.create(tmp_path / "ledger.db")


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_nothing_is_recorded_in_a_file_that_nobody_finds(how: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    accountant = central(book)
    if how == "deleted":
        path.unlink()
    else:
        path.rename(tmp_path / "old.db")
    if how == "replaced":
        Ledger.create(tmp_path / "another.db").close()
        (tmp_path / "another.db").rename(path)
    with pytest.raises(LedgerError, match="was moved, deleted or replaced"):
        accountant.issue(ZCDP(1), users=USERS, label="all")
    assert accountant.spent().is_zero


def test_another_ledger_of_the_same_length_is_not_written_to(tmp_path: Path) -> None:
    """Rewritten in place, so that it is the same file: the last hash is another."""
    book, other = Ledger.create(tmp_path / "a.db"), Ledger.create(tmp_path / "b.db")
    accountant = central(book)
    central(other)
    with closing(sqlite3.connect(tmp_path / "a.db")) as file, file:
        with closing(sqlite3.connect(tmp_path / "b.db")) as beside:
            (row,) = beside.execute("SELECT * FROM entries").fetchall()
        file.execute("DELETE FROM entries")
        file.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
    with pytest.raises(LedgerBusyError, match="written to by another process"):
        accountant.issue(ZCDP(1), users=USERS, label="all")
