"""What a process made refuses at once in a forked child, whichever locks were held at the fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, Filter, JointAccountant, Odometer
from privlearn.checking import budgets
from privlearn.contract.billboard import Billboard
from privlearn.contract.spends import Spend
from privlearn.ledger import Ledger
from privlearn.ledger.entries import CloseEntry, RetireEntry
from privlearn.losses import PureLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.noise import CapNoise, CategoryNoise, GaussianNoise, NoiseSource
from privlearn.noise.exact.fast import _spare
from privlearn.noise.exact.pool import Keystream, NoisePool, SeededWords
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.storage import open_file_lock, processes
from privlearn.values.participation import Participation

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

USERS = range(8)
BALL = Ball(1.0, 2)
SPEND = Spend("probe", BALL, GaussianNoise(10.0))
Acts = dict[str, Callable[[], object]]


class Child(NamedTuple):
    """What each act raised in a child, or "none"; and how the child ended."""

    told: dict[str, str]
    ended: int


def in_child(acts: Acts, seconds: float = 10.0) -> Child:
    """Runs acts in one forked child, which is killed if one of them hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for name, act in acts.items():
            try:
                act()
                raised = "none"
            except BaseException as error:
                raised = f"{type(error).__name__}: {error}".replace("\n", " ")
            os.write(write, f"{name}|{raised}\n".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = dict(line.rstrip("\n").split("|", 1) for line in pipe)
    return Child(told, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@contextmanager
def held_by_a_thread(locks: Sequence[Any]) -> Iterator[None]:
    """Another thread holds all of them, whatever the block does."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.__enter__()
        held.set()
        done.wait()
        for lock in locks:
            lock.__exit__(None, None, None)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(2)
        yield
    finally:
        done.set()
        thread.join()


def rows(users: range = USERS) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


def locks_of(made: Sequence[object]) -> list[Any]:
    of_people = vars(People)["_People__lock"].__get__
    return [getattr(each, "_lock", None) or of_people(each) for each in made]


def simulated() -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))


class Parents(NamedTuple):
    """One object of each kind, and what is tried with it in a child."""

    objects: list[object]
    acts: Acts
    files: list[Any]


def made_by_the_parent(folder: Path) -> Parents:
    book = Ledger.create(folder / "ledger.db")
    central: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(100), users=USERS, ledger=book, noise=NoiseSource.simulation(0)
    )
    joint: JointAccountant[ZCDP] = JointAccountant(
        ZCDP(1), users=USERS, noise=NoiseSource.simulation(0)
    )
    unspent = central.issue(ZCDP("0.1"), users=USERS, label="unspent")
    paying = central.issue(ZCDP("0.1"), users=USERS, label="open")
    receipt = paying.spend(SPEND)
    stream: Any = PrefixSum(BALL, BinaryTree(8), 10.0).open(
        central.issue(ZCDP(10), users=USERS, label="stream")
    )
    board = Billboard(joint, USERS)
    people = People.create(folder / "people.db", Participation(1))
    in_memory = People.memory(Participation(1))
    for registry in (people, in_memory):
        registry.bind("me", USERS)
    seeded, secure = NoisePool(SeededWords(0)), NoiseSource.secure().pool()
    keystream = Keystream()
    spending: Filter[ZCDP] = Filter(ZCDP(1))
    odometer = Odometer(1e-6)
    loss = PureLoss(0.1)
    acts: Acts = {
        "spend": lambda: unspent.spend(SPEND),
        "retire": unspent.retire,
        "open": lambda: receipt.open(rows()),
        "draw": lambda: receipt.draw((2,)),
        "publish": lambda: receipt.publish(np.zeros(2)),
        "close": receipt.close,
        "abandon": receipt.abandon,
        "issue": lambda: central.issue(ZCDP("0.1"), users=USERS, label="child"),
        "epsilon": lambda: central.epsilon(1e-6),
        "close accountant": central.close,
        "append": lambda: book.append(book.entries[0]),
        "head": lambda: book.head,
        "records": lambda: book.records,
        "stream": lambda: stream.append(rows(range(1))),
        "close stream": stream.close,
        "billboard": lambda: board.serve(rows(), len),
        "people": lambda: people.admit_visits(["a"], range(1)),
        "forget": lambda: people.forget("a"),
        "people in memory": lambda: in_memory.admit_visits(["a"], range(1)),
        "seeded pool": lambda: seeded.floors("normal", 1),
        "pool": lambda: secure.variates("normal", 1),
        "words": lambda: secure.words(1),
        "more": lambda: secure.more(),
        "rows ahead": lambda: secure.rows("law", 1, 1, lambda n: np.zeros((n, 1), np.int64)),
        "keystream": lambda: keystream.words(1),
        "further bits": keystream.more,
        "filter": lambda: spending.spend(loss),
        "odometer": lambda: odometer.spend(loss),
    }
    objects: list[object] = [
        *(unspent, paying, central, joint, book, stream, board, people, in_memory),
        *(seeded, secure, spending, odometer),
    ]
    return Parents(objects, acts, [book, people])


@pytest.fixture(params=["other pid", "same pid"])
def parents(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Parents]:
    """With the same number, as the first processes of two containers have it."""
    if request.param == "same pid":
        monkeypatch.setattr(os, "getpid", lambda: 1)
    made = made_by_the_parent(tmp_path)
    yield made
    for file in made.files:
        file.close()


def test_what_the_parent_made_refuses_in_a_child_whoever_holds_its_locks(parents: Parents) -> None:
    locks = locks_of(parents.objects)
    assert len(locks) == len(parents.objects)
    with held_by_a_thread(locks):
        child = in_child(parents.acts)
    assert child.ended == 0
    assert list(child.told) == list(parents.acts)
    for name, raised in child.told.items():
        kind = "PeopleError" if name.startswith(("people", "forget")) else "TokenCopyError"
        assert raised.startswith(f"{kind}: "), name
        assert "cannot be used in a forked process" in raised, name


def test_the_parent_goes_on(parents: Parents) -> None:
    refused = in_child({**parents.acts, "a file": parents.files[0].close})
    assert [raised for raised in refused.told.values() if raised == "none"] == ["none"]
    for name in ("head", "seeded pool", "people", "stream", "issue", "spend", "draw", "close"):
        parents.acts[name]()


def test_without_the_count_a_child_of_the_same_number_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What these tests are worth: without it they end by the alarm, or with the parent's noise."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    before, accountant = (
        processes.forks,
        simulated(),
    )
    pool = NoisePool(SeededWords(0))

    def forget() -> None:
        processes.forks = before

    act: Acts = {"forget": forget, "epsilon": lambda: accountant.epsilon(1e-6)}
    with held_by_a_thread(locks_of([accountant])):
        assert in_child(act, seconds=0.2) == Child({"forget": "none"}, -signal.SIGALRM)
    again = in_child({"forget": forget, "draw": lambda: pool.floors("normal", 1)})
    assert again.told["draw"] == "none"


@pytest.mark.parametrize("number", ["other pid", "same pid"])
def test_what_a_child_makes_works_in_it(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number == "same pid":
        monkeypatch.setattr(os, "getpid", lambda: 1)
    source = NoiseSource.secure()
    before = made_by_the_parent(tmp_path)

    def release() -> None:
        with Ledger.create(tmp_path / "child.db") as book:
            made = CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=source)
            token = made.issue(ZCDP("0.1"), users=USERS, label="child")
            NoisySum(BALL, GaussianNoise(10.0)).release(rows(), token)
            made.close()

    def admit() -> None:
        with People.create(tmp_path / "childs.db", Participation(1)) as people:
            people.bind("me", USERS)
            assert people.admit_visits(["a"], range(1)).learned.all()

    def grandchild() -> None:
        pool = source.pool()
        assert len(pool.floors("normal", 3)) == 3
        assert in_child({"draw": lambda: pool.words(1)}).told["draw"].startswith("TokenCopyError")

    with held_by_a_thread([*locks_of(before.objects)]):
        acts: Acts = {
            "release": release,
            "admit": admit,
            "grandchild": grandchild,
            "watch": lambda: budgets.watch_accountants().__enter__(),
        }
        child = in_child(acts)
    assert child == Child(dict.fromkeys(acts, "none"), 0)
    with Ledger.open(tmp_path / "child.db") as book:
        assert [type(entry) for entry in book.entries][-2:] == [RetireEntry, CloseEntry]
    for file in before.files:
        file.close()


def _report(pipe: Any, token: Any) -> None:
    told = []
    for each in (
        token,
        simulated().issue(ZCDP("0.1"), users=USERS, label="own"),
    ):
        try:
            each.spend(SPEND)
            told.append("none")
        except BaseException as error:
            told.append(type(error).__name__)
    pipe.send(told)


def test_a_worker_of_multiprocessing() -> None:
    context = multiprocessing.get_context("fork")
    token = simulated().issue(ZCDP("0.1"), users=USERS, label="mine")
    receive, send = context.Pipe(duplex=False)
    with held_by_a_thread(locks_of([token])):
        worker = context.Process(target=_report, args=(send, token))
        worker.start()
        assert receive.poll(10)
        assert receive.recv() == ["TokenCopyError", "none"]
        worker.join()
    assert worker.exitcode == 0


def arrays_in(thing: object) -> list[Any]:
    """The arrays of an object of ours, and of those that it is made of."""
    if isinstance(thing, np.ndarray):
        return [thing]
    if isinstance(thing, tuple):
        return [array for part in thing for array in arrays_in(part)]
    names = getattr(type(thing), "__slots__", ()) if type(thing).__module__[:5] == "privl" else ()
    return [array for name in names for array in arrays_in(getattr(thing, name))]


def test_keys_and_noise_ahead_are_overwritten_in_a_child() -> None:
    pool = NoiseSource.secure().pool()
    source: Any = pool._source
    handed = pool.variates("normal", 5)
    pool.words(3)
    pool.more()
    ahead = pool._ahead["normal"]
    of_reports = NoiseSource.secure().pool()
    laws: list[Any] = [CapNoise.half(2, 1), CapNoise.optimal(3, 1), CategoryNoise(4, 0.5)]
    for _ in range(4):  # the fourth finds none, and leaves some
        of_reports.rows("law", 1, 2, lambda n: np.ones((n, 2), np.int64))
        for law in laws:
            law.rows(of_reports, 1)
    blocks = [block for block, _, _ in of_reports._rows.values()]
    rows = [array for block in blocks for array in arrays_in(block) if array.any()]
    assert len(blocks) == 4
    assert len(rows) > 20
    key, scratch = source._key, _spare.scratch[0]
    before = handed.floors.copy()
    unused = len(ahead) - 5

    def count() -> None:
        assert not any(key)
        assert source._first is None
        assert not source._second
        assert not ahead.words[5:].any()
        assert not ahead.floors[5:].any()
        assert not any(array.any() for array in rows)
        assert not pool._ahead
        assert not of_reports._rows
        for cells in (scratch.integers, scratch.doubles, scratch.rows):
            assert not cells.any()
        assert (handed.floors == before).all()

    assert in_child({"count": count}) == Child({"count": "none"}, 0)
    # the parent has all of it, so that the child had it, too
    assert any(key)
    assert np.count_nonzero(ahead.floors[5:]) > unused / 2
    assert np.count_nonzero(ahead.words[5:]) > unused / 2
    assert all(array.any() for array in rows)
    assert pool.floors("normal", 1) == ahead.floors[5]


LEFT = textwrap.dedent("""
    import gc, os, sys
    from privlearn.storage import processes
    from privlearn.ledger import Ledger
    from privlearn.values.participation import Participation
    from privlearn.people import People

    class Told:
        tell = staticmethod(lambda *what: None)
        def __call__(self):
            return 0
        def __del__(self):
            self.tell(1, b"closed ")

    if sys.argv[1] == "broken":
        processes.never_end = id
    book = Ledger.create("ledger.db")
    people = People.create("people.db", Participation(1))
    for connection in (book._connection, people._People__keeper._turns._store._file.connection):
        connection.create_function("told", 0, Told())
    del connection
    child = os.fork()
    if not child:
        Told.tell = staticmethod(os.write)
        people.close()
        del book, people
        gc.collect()
        os.write(1, b"collected ")
        sys.exit()
    os.waitpid(child, 0)
    people.bind("me", range(1))
    print(people.admit_visits(["a"], range(1)).learned.item(), book.head[:6])
    people.close()
    book.close()
""")


@pytest.mark.parametrize(
    ("how", "told"),
    [("whole", "collected"), ("broken", "closed closed collected")],
)
def test_a_child_closes_no_connection_of_its_parent(how: str, told: str, tmp_path: Path) -> None:
    """Not as garbage; SQLite tells by ending a function."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEFT, how],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.split() == [*told.split(), "True", "000000"]


@pytest.mark.parametrize(("keep", "open_still"), [("never_end", True), ("KEPT.append", False)])
def test_nor_at_the_end_of_the_interpreter(keep: str, open_still: bool, tmp_path: Path) -> None:
    """SQLite takes the log away when it closes the file; what a module holds is closed."""
    script = f"""
import sqlite3, sys
from privlearn.storage import processes
processes.KEPT = []
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE t (x)")
processes.{keep}(connection)
"""
    path = tmp_path / "kept.db"
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(path)], check=True)
    assert Path(f"{path}-wal").exists() is open_still


@pytest.mark.skipif(open_file_lock._SET is None, reason="needs locks of open files")
def test_a_child_lets_go_of_no_lock_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    path.open("rb").close()  # lets go of SQLite's own lock

    def take() -> None:
        import fcntl

        assert open_file_lock._SET is not None
        file = os.open(path, os.O_RDWR)
        with suppress(BlockingIOError):
            open_file_lock._set(open_file_lock._SET, file, fcntl.F_WRLCK)
            raise AssertionError("nobody holds it")

    child = in_child({"close": book.close, "take": take})
    assert child.told == {"close": "none", "take": "none"}
    book.close()
