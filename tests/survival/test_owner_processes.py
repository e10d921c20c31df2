"""Owners and the processes that spend through them are real ones here, and die."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deaths import Death
from grids import thinned
from owner_deaths import FAULTS, Answer, Task, asked
from spending_together import asked as spent_together
from spending_together import overspends

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.serving import default_socket, owning_ledger
from privlearn.cli.main import main
from privlearn.errors import LedgerBusyError, LedgerFencedError
from privlearn.ledger import Ledger, read_records
from privlearn.losses.budgets import ZCDP

DEATHS, SEED = thinned([12, 50]), 21
MEMORY = Path("/dev/shm")
PLANTED = [
    Task((Death("kill", 2, "before append (spend)"),), "process_lets_go_early"),
    Task((Death("power", 22, "after an answer (no entry)"),), "owner_syncs_nothing"),
]
SOUND = [Task(task.deaths) for task in PLANTED]
Account = CentralAccountant[ZCDP]


@pytest.fixture(scope="module", params=DEATHS)
def number(request: pytest.FixtureRequest) -> int:
    """Of deaths."""
    return int(request.param)


@pytest.fixture(scope="module")
def answer(number: int) -> Answer:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        return asked(number, SEED, [*PLANTED, *SOUND], Path(folder))


def test_nothing_is_unpaid_and_the_next_owner_goes_on_after_many_deaths(
    answer: Answer, number: int
) -> None:
    many = answer[: -2 * len(PLANTED)]
    assert [found for _, found in many if found["unpaid"] or found["problems"]] == []
    assert all(found["finished"] for _, found in many)
    assert sum(found["deaths"] for _, found in many) == number
    points = Counter(point for _, found in many for point in found["points"])
    assert len(points) > 0.6 * number
    assert any("sync" in point for point in points)
    tasks = [task for task, _ in many]
    assert {death["how"] for task in tasks for death in task["deaths"]} == {"kill", "power"}
    assert {len(task["deaths"]) for task in tasks} == {1, 2}


def test_planted_faults_are_caught_and_the_same_deaths_without_them_show_nothing(
    answer: Answer,
) -> None:
    last = answer[-2 * len(PLANTED) :]
    assert {task["fault"] for task, _ in last} == {*FAULTS, ""}
    for task, found in last:
        assert found["deaths"] == 1
        assert bool(found["unpaid"]) == bool(task["fault"]), (task, found)
        if not task["fault"]:
            assert (found["problems"], found["finished"]) == ([], True)


def test_threads_of_four_processes_spend_no_more_than_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with owning_ledger(path, new=True) as socket:
        found = spent_together(str(socket), spends=40, attempts=6, processes=4, threads=2)
    assert not found.errors
    assert (found.released, found.refused) == (40, 8)
    looked = audit(path)
    assert (list(looked.problems), looked.spends) == ([], 40)


def test_eight_processes_spend_no_more_than_nested_caps(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with owning_ledger(path, new=True) as socket:
        found = spent_together(str(socket), 24, attempts=10, processes=8, threads=1, nested=24)
    assert not found.errors
    assert (found.released, found.refused) == (24, 56)
    above = overspends(read_records(path), 24)
    assert {"account", "one", "other", "project 0", "numbered, epoch 1"} <= above.keys()
    assert {*above.values()} == {0}
    assert audit(path).problems == []


_IN_ITS_TURN = """
import sys, time
from privlearn import ZCDP
from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
account = CentralAccountant.join(Ledger.connect(sys.argv[1]))
account.issue(ZCDP("0.1"), users=account.users, label="held")
with account.ledger.turn():
    print("has the turn", flush=True)
    time.sleep(60)
"""


@contextmanager
def in_its_turn(socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a token, and the turn."""
    with subprocess.Popen(
        [sys.executable, "-c", _IN_ITS_TURN, socket], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has the turn\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_process_that_is_stopped_or_killed_in_its_turn_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with owning_ledger(path, new=True, turn_seconds=0.3, grace=0) as socket:
        account = CentralAccountant(ZCDP(1), users=range(10), ledger=Ledger.connect(socket))
        with in_its_turn(socket) as process:
            process.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            token = account.issue(ZCDP("0.5"), users=range(10), label="x")
            assert time.monotonic() - begun < 30
            assert account.remaining() == ZCDP("0.4")  # it may go on, and holds its token
            process.kill()
            eventually(lambda: account.remaining() == ZCDP("0.5"))
        token.retire()
    assert [r.body["outcome"] for r in read_records(path) if r.body["entry"] == "retire"] == [
        "unused",
        "unused",
    ]
    assert list(audit(path).problems) == []


def eventually(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def served(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "privlearn.cli", "ledger", "serve", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )


def commanded(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of ``privlearn ledger serve`` in this process, where it does not come to it."""
    monkeypatch.setattr(sys, "argv", ["privlearn", "ledger", "serve", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_command_serves_until_it_is_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.db"
    owner = served(path, "--new")
    assert owner.stdout is not None
    assert owner.stdout.readline() == f"{path} is served at {default_socket(path)}\n"
    ledger = Ledger.connect(default_socket(path))
    account = CentralAccountant(ZCDP(1), users=range(10), ledger=ledger)
    account.issue(ZCDP("0.5"), users=range(10), label="x")
    assert commanded([str(path), "--socket", str(tmp_path / "other.sock")], monkeypatch) == 2
    assert capsys.readouterr().err.startswith(f"error: {path} is served by its owner")
    with account.ledger.turn():  # it waits for that
        owner.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        assert owner.poll() is None
    assert owner.communicate() == ("", "")
    assert owner.returncode == 0
    assert not default_socket(path).exists()
    left = {"ledger.db", "ledger.db.head", "ledger.db.sock.lock"}
    assert {each.name for each in tmp_path.iterdir()} == left
    assert read_records(path)[-1].body["outcome"] == "unused"


def test_an_owner_that_was_killed_leaves_no_lock_and_its_socket_is_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    first = served(path, "--new")
    assert first.stdout is not None
    assert first.stdout.readline()
    account = CentralAccountant(
        ZCDP(1), users=range(10), ledger=Ledger.connect(default_socket(path))
    )
    token = account.issue(ZCDP("0.5"), users=range(10), label="x")
    with pytest.raises(LedgerBusyError):
        Ledger.open(path)
    first.kill()
    first.communicate()
    assert default_socket(path).is_socket()
    with owning_ledger(path):
        with pytest.raises(LedgerFencedError):
            token.retire()
        assert Account.join(Ledger.connect(default_socket(path))).remaining() == ZCDP(1)
    assert list(audit(path).problems) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.db"], 4, "no such file"),
        (["there.db", "--new"], 2, "exists"),
        (["there.db", "--head", "f" * 64], 4, "which no entry has"),
        (["there.db", "--socket", "x" * 120], 2, "give a shorter one"),
        (["no/folder.db", "--new"], 2, "folder"),
    ],
)
def test_what_cannot_be_served_ends_with_its_exit_code(
    tmp_path: Path,
    arguments: list[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.create("there.db").close()
    assert commanded(arguments, monkeypatch) == code
    assert said in capsys.readouterr().err
