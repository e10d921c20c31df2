"""Forks that Python is not told of, processes of one number, and forks while SQLite is busy."""

from __future__ import annotations

import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reaching import far_ahead

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import LedgerBusyError, TokenCopyError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.noise.exact.pool import Keystream
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.storage import fork_gate, processes
from privlearn.storage.fork_gate import SQLITE
from privlearn.values.participation import Participation

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
USERS = range(8)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(10.0))


def in_child(act: Callable[[], str], fork: Callable[[], int] = os.fork) -> str:
    """What an act tells, or raises, in a child; which is killed if it hangs."""
    read, write = os.pipe()
    child = fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 20)
        try:
            told = act()
        except BaseException as error:
            told = type(error).__name__
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


# Forks in C --------------------------------------------------------------------------------------


def fork_in_c() -> int:
    """With Python's lock held, so that it goes on in the child as after `os.fork`."""
    return int(ctypes.PyDLL(None).fork())


def wiped_pages() -> bool:
    return in_child(lambda: str(processes.MARK[0]), fork_in_c) == "0"


needs_wiping = pytest.mark.skipif(
    not wiped_pages(), reason="the kernel wipes no pages in forked children (MADV_WIPEONFORK)"
)


@needs_wiping
def test_a_fork_in_c_is_noticed_at_first_use_and_wipes_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where both have the same number, as the first processes of two containers have it."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    stream = Keystream()
    stream.words(1)
    assert in_child(lambda: str(stream.words(1)), fork_in_c) == "TokenCopyError"
    accountant: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(1), users=USERS, noise=NoiseSource.simulation(0)
    )
    token = accountant.issue(ZCDP("0.1"), users=USERS, label="mine")

    def use() -> str:
        with pytest.raises(TokenCopyError):
            token.spend(MECHANISM.spend())
        assert not any(stream._key)
        own: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(1), users=USERS, noise=NoiseSource.simulation(0)
        )
        own.issue(ZCDP("0.1"), users=USERS, label="own")
        return "refused, and makes its own"

    assert in_child(use, fork_in_c) == "refused, and makes its own"
    assert any(stream._key)
    token.retire()
    monkeypatch.setattr(processes, "MARK", bytearray(b"\1"))  # without such a page
    assert in_child(lambda: type(stream.words(1)).__name__, fork_in_c) == "ndarray"


# Two processes of one number ---------------------------------------------------------------------

FIRST_OF_TWO = textwrap.dedent("""
    import ctypes, os, sys
    from privlearn.noise import NoiseSource

    source = NoiseSource.secure()
    pool = source.pool()
    pool.words(1)
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000000):  # CLONE_NEWPID: for children
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    read, write = os.pipe()
    child = os.fork()
    try:
        inherited = pool.words(1).tolist()
    except Exception as error:
        inherited = type(error).__name__
    told = f"{os.getpid()}|{inherited}|{source.pool().words(2).tolist()}"
    if not child:
        os.write(write, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(told)
    print(os.read(read, 1000).decode())
""")


def test_the_first_processes_of_two_namespaces_draw_different_noise() -> None:
    """Both are process 1; the second was forked by the first one."""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-W", "ignore", "-c", FIRST_OF_TWO],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no namespaces of processes here: {done.stderr.strip()[-200:]}")
    (mine, before, later), (childs, inherited, its) = (
        line.split("|") for line in done.stdout.splitlines()
    )
    assert (mine, childs) == ("1", "1")
    assert before.startswith("[")
    assert inherited == "TokenCopyError"
    assert later != its


# When a key is drawn ------------------------------------------------------------------------------


def test_a_key_is_drawn_after_the_spend_stands_and_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that was made before a spend therefore holds no noise of it."""
    path, seen = tmp_path / "ledger.db", list[tuple[int, bytes]]()
    made = Keystream.__init__

    def watched(self: Keystream) -> None:
        made(self)
        other = sqlite3.connect(path)  # as somebody else finds the file
        (spends,) = other.execute(
            'SELECT count(*) FROM entries WHERE entry LIKE \'%"entry":"spend"%\''
        ).fetchone()
        other.close()
        seen.append((spends, bytes(self._key)))

    monkeypatch.setattr(Keystream, "__init__", watched)
    with Ledger.create(path) as book:
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(10**6), users=USERS, ledger=book
        )
        for n in range(1, 4):
            token = accountant.issue(MECHANISM.loss(), users=USERS, label="sum")
            assert len(seen) == n - 1
            MECHANISM.release(Rows.seal(np.zeros((8, 2)), users=USERS), token)
    assert [spends for spends, _ in seen] == [1, 2, 3]
    assert len({key for _, key in seen}) == 3


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], str]], str]:
    """What an act tells in a copy of this process that does not know that it is one.

    As an image that is restored; it has the same process number and memory.  A fork stands for it,
    of which this package is not told.
    """
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def of_copy(act: Callable[[], str]) -> str:
        forks = processes.forks

        def forget() -> str:
            processes.forks = forks
            SQLITE.in_child()
            return act()

        with monkeypatch.context() as during:
            during.setattr(processes, "INHERITED", weakref.WeakSet())
            return in_child(forget)

    return of_copy


Copied = Callable[[Callable[[], str]], str]


def test_copies_that_draw_later_draw_different_noise(tmp_path: Path, restored: Copied) -> None:
    """Also of a spend that stood when the image was made, and for which nothing was drawn yet."""
    with Ledger.create(tmp_path / "ledger.db") as book:
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(10**6), users=USERS, ledger=book
        )
        token = accountant.issue(MECHANISM.loss(), users=USERS, label="sum")
        receipt = token.spend(MECHANISM.spend())

        def drawn() -> str:
            return str(receipt._noise().words(4).tolist())

        copies = [restored(drawn) for _ in range(3)]
        mine = drawn()
        assert len({*copies, mine}) == 4
        # what is ahead is the same: such an image must not go on twice
        after = [restored(drawn) for _ in range(2)]
        assert after[0] == after[1] == drawn() != mine


def test_of_two_copies_only_the_first_that_writes_lets_something_out(
    tmp_path: Path, restored: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the same stream, with the same noise."""
    far_ahead(monkeypatch)
    with Ledger.create(tmp_path / "ledger.db") as book:
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(10**6), users=USERS, ledger=book
        )
        made = PrefixSum(Ball(1.0, 2), BinaryTree(8), 10.0)
        stream = made.open(accountant.issue(made.loss(), users=USERS, label="stream"))
        stream.append(Rows.seal(np.zeros((1, 2)), users=range(1)))

        def publish() -> str:
            return stream.append(Rows.seal(np.ones((1, 2)), users=range(1, 2))).digest

        left = restored(publish)
        assert len(left) == 64
        with pytest.raises(LedgerBusyError):
            publish()
        assert stream.closed


def test_between_spend_and_draw_only_one_process_can_go_on(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.db") as book:
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(10**6), users=USERS, ledger=book
        )
        token = accountant.issue(MECHANISM.loss(), users=USERS, label="sum")
        receipt = token.spend(MECHANISM.spend())
        rows = Rows.seal(np.zeros((8, 2)), users=USERS)
        assert in_child(lambda: str(receipt.release_sum(rows).value)) == "TokenCopyError"
        assert receipt.release_sum(rows).value.shape == (2,)


# Workers of multiprocessing -----------------------------------------------------------------------


def test_a_worker_that_is_not_forked_gets_nothing_that_pays_or_draws() -> None:
    """Under ``spawn`` and ``forkserver`` what it gets is pickled, by this very pickler."""
    accountant: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(10), users=USERS, noise=NoiseSource.simulation(0)
    )
    token = accountant.issue(ZCDP("0.5"), users=USERS, label="mine")
    receipt = accountant.issue(MECHANISM.loss(), users=USERS, label="open").spend(MECHANISM.spend())
    made = PrefixSum(Ball(1.0, 2), BinaryTree(8), 10.0)
    stream = made.open(accountant.issue(made.loss(), users=USERS, label="stream"))
    for thing in (accountant, token, receipt, stream, NoiseSource.secure(), receipt._noise()):
        with pytest.raises(TokenCopyError):
            ForkingPickler.dumps(thing)
    with pytest.raises(TypeError):
        ForkingPickler.dumps(Keystream())


# SQLite -------------------------------------------------------------------------------------------


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Statements that SQLite ran for a thread that was not in the gate, and how many in all."""
    outside, connect = list[str](), sqlite3.connect

    def look(said: str) -> None:
        if threading.get_ident() not in SQLITE._inside:
            outside.append(said)

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        look("connect")
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(look)
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)
    return outside


def test_whatever_is_asked_of_sqlite_is_asked_in_the_gate(
    within: list[str], tmp_path: Path
) -> None:
    with Ledger.create(tmp_path / "ledger.db") as book:
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(10**6), users=USERS, ledger=book, noise=NoiseSource.simulation(0)
        )
        token = accountant.issue(MECHANISM.loss(), users=USERS, label="sum")
        MECHANISM.release(Rows.seal(np.zeros((8, 2)), users=USERS), token)
        book.check_own()
        assert book.head
    CentralAccountant.resume(tmp_path / "ledger.db", noise=NoiseSource.simulation(0)).close()
    audit(tmp_path / "ledger.db")
    with People.create(tmp_path / "people.db", Participation(1)) as people:
        people.bind("me", USERS)
        people.admit_visits(["a"], range(1))
        people.forget("a")
    People.open(tmp_path / "people.db").close()
    assert within == []


def entered(done: threading.Event, left: list[float]) -> threading.Thread:
    """A thread that is inside SQLite until it may leave; it says when it left."""
    there = threading.Event()

    def stay() -> None:
        with SQLITE:
            there.set()
            done.wait(30)
            left.append(time.monotonic())

    thread = threading.Thread(target=stay)
    thread.start()
    assert there.wait(30)
    return thread


@pytest.mark.parametrize("gate", ["whole", "broken"])
def test_a_fork_waits_for_threads_that_are_inside_sqlite(
    gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_gate, "WAIT", 30.0 if gate == "whole" else 0.0)
    done, left = threading.Event(), list[float]()
    thread = entered(done, left)
    threading.Timer(0.2, done.set).start()
    assert in_child(lambda: str(len(left))) == ("1" if gate == "whole" else "0")
    thread.join()
    with SQLITE:  # open again
        assert SQLITE._forking is None


def test_nobody_enters_while_a_fork_is_under_way() -> None:
    SQLITE.before_fork()
    done, left = threading.Event(), list[float]()
    done.set()
    late = threading.Thread(target=lambda: entered(done, left))
    late.start()
    time.sleep(0.05)
    assert left == []
    with SQLITE, SQLITE:  # a signal handler of the thread that forks
        pass
    SQLITE.after_fork_in_parent()
    late.join()
    assert len(left) == 1


def test_a_callback_of_sqlite_may_fork() -> None:
    """It would wait for itself."""
    connection = sqlite3.connect(":memory:")
    connection.create_function("fork", 0, lambda: in_child(lambda: "child"))
    begun = time.monotonic()
    with SQLITE:
        assert connection.execute("SELECT fork()").fetchone() == ("child",)
    assert time.monotonic() - begun < fork_gate.WAIT / 2
    connection.close()


def test_a_fork_goes_ahead_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread inside may itself wait for what the child does."""
    monkeypatch.setattr(fork_gate, "WAIT", 0.05)
    done, left = threading.Event(), list[float]()
    thread = entered(done, left)
    assert in_child(lambda: f"{SQLITE._inside} {SQLITE._forking}") == "{} None"
    done.set()
    thread.join()
