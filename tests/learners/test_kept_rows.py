"""Learners with a store: rows that arrived are there after a crash, and are learned as they were.

Noise is set to zero here, in the receipts, so that what a run learned can be compared number by
number with a run that was not interrupted.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.contract.receipts import Receipt
from privlearn.errors import PeopleError, RowStoreError
from privlearn.learners import DPMNL, DPTOFW, OnePassNewtonMNL
from privlearn.learners.kept_rows import Recovered, gaps
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.people import People
from privlearn.rows import Rows, RowStore
from privlearn.values.participation import Participation

KEY = bytes(range(32))
USERS, DIM, ITEMS = 120, 3, 4
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(USERS, ITEMS, DIM)) / 2
CHOICES = RNG.integers(0, 2, USERS)
CONTEXTS = RNG.uniform(-1, 1, (USERS, DIM))
LABELS = CONTEXTS @ [1.0, 0.0, -0.5]


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receipt, "_integers", lambda self, shape, grid: np.zeros(shape, np.int64))
    monkeypatch.setattr("privlearn.learners.tofw_buffered._STEPS", 2)


@pytest.fixture
def opened() -> Iterator[list[RowStore]]:
    stores: list[RowStore] = []
    yield stores
    for store in stores:
        store.close()


class Run:
    """One learner of one ledger, in processes that end."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[], Any],
        learn: Callable[[Any, int, int], None],
        trust: type[Any] = JointAccountant,
        rule: Participation | None = None,
        users: int = USERS,
    ) -> None:
        self.ledger, self.rows, self.people = folder / "l.db", folder / "r.db", folder / "p.db"
        self.learn, self.trust, self.users = learn, trust, users
        self.registry = None if rule is None else People.create(self.people, rule)
        self.accountant = trust(
            ZCDP(50), users=range(users), ledger=Ledger.create(self.ledger), people=self.registry
        )
        self.store = RowStore.create(self.rows, KEY)
        self.learner = make().start(self.accountant, store=self.store)

    def end(self) -> None:
        """The process is gone; the files are as it left them."""
        self.accountant.ledger._disk._end()
        self.store.close()
        if self.registry is not None:
            self.registry.close()

    def resume(self, store: RowStore | None = None, **given: Any) -> None:
        if self.registry is not None:
            self.registry = People.open(self.people)
        self.accountant = self.trust.resume(self.ledger, people=self.registry)
        self.store = RowStore.open(self.rows, KEY) if store is None else store
        kind = type(self.learner)
        self.learner = kind.resume(self.accountant, store=self.store, **given)

    def to(self, *stops: int) -> None:
        """Learns up to each of the users, with a crash after each but the last."""
        for i, stop in enumerate(stops):
            if i:
                self.end()
                self.resume()
                assert self.learner.clock_ == stops[i - 1]
            self.learn(self.learner, self.learner.clock_, stop)


def newton() -> OnePassNewtonMNL:
    return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2, first_batch=20, random_state=3)


def served(learner: Any, start: int, stop: int) -> None:
    if start < stop:
        learner.play(FEATURES[start:stop], lambda own, shown: shown[:, 0])


def one_by_one(learner: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        shown = learner.select(FEATURES[i])
        learner.observe(int(shown[0]) if CHOICES[i] else None)


def logged(learner: Any, start: int, stop: int) -> None:
    learner.partial_fit(CONTEXTS[start:stop], LABELS[start:stop])


def chosen(learner: Any, start: int, stop: int) -> None:
    if start < stop:
        learner.partial_fit(FEATURES[start:stop], CHOICES[start:stop])


CASES: dict[str, tuple[Any, ...]] = {
    "tofw, buffered": (lambda: DPTOFW(DIM, method="buffered"), logged, CentralAccountant),
}


@pytest.mark.usefixtures("noiseless")
@pytest.mark.parametrize("case", CASES)
def test_a_run_with_crashes_learns_what_one_without_them_learns(tmp_path: Path, case: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    one, other = Run(whole, *CASES[case]), Run(parts, *CASES[case])
    one.to(USERS)
    other.to(7, 33, 34, USERS)
    state = one.learner.public_state()
    assert state == other.learner.public_state()
    for run in (one, other):
        run.accountant.close()
        found = audit(run.ledger)
        assert (list(found.problems), found.lost) == ([], 0)
        assert run.store.within(range(USERS)) == []  # what is not needed is not kept
        run.store.close()


SEVERAL: dict[str, tuple[Any, ...]] = {
    "newton": (newton, served),
    "newton, logged": (newton, chosen, CentralAccountant),
    "buffered": (lambda: DPTOFW(DIM, method="buffered"), logged, CentralAccountant),
    "whitened": (lambda: DPTOFW(DIM, method="whitened", constant=0.5), logged, CentralAccountant),
}
"""Learners that release several things of the same rows."""


class _Ended(BaseException):
    """The end of a process."""


@contextmanager
def ended_after(patch: pytest.MonkeyPatch, values: int) -> Iterator[None]:
    """The process ends when so many values have left a release."""
    append, left = Ledger.append, [values]

    def counting(self: Ledger, entry: Any, **more: Any) -> None:
        append(self, entry, **more)
        if entry.entry == "retire" and entry.outcome == "released":
            left[0] -= 1
            if not left[0]:
                assert self._disk is not None
                self._disk._end()
                raise _Ended

    with patch.context() as patched, suppress(_Ended):
        patched.setattr(Ledger, "append", counting)
        yield


@pytest.mark.usefixtures("noiseless")
@pytest.mark.parametrize("case", [*SEVERAL, "buffered, again", "whitened, again"])
def test_what_the_plan_still_holds_is_made_after_the_crash(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends when something has left, and before the next is spent of the same rows."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    name, sent = case.removesuffix(", again"), (CONTEXTS, LABELS)
    one, other = Run(whole, *SEVERAL[name]), Run(parts, *SEVERAL[name])
    one.to(USERS)

    def go_on() -> None:
        if case == name:
            other.resume()
        else:
            other.accountant = CentralAccountant.resume(other.ledger)
            other.learner = type(other.learner).resume(other.accountant, again=sent)

    with ended_after(monkeypatch, 1):
        other.learn(other.learner, 0, USERS)
    for values in (2, 1, 1, 3, 10_000):
        other.end()
        with ended_after(monkeypatch, values):
            go_on()
            other.learn(other.learner, other.learner.clock_, USERS)
    assert other.learner.public_state() == one.learner.public_state()
    assert other.accountant.unmade == []
    for run in (one, other):
        run.store.close()


@pytest.mark.usefixtures("noiseless")
def test_a_batch_whose_rows_are_all_there_is_released_after_the_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    one, other = Run(whole, newton, served), Run(parts, newton, served)
    one.to(40)

    def dies(learner: Any, rows: Rows[Any], batch: range) -> None:
        raise SystemExit

    monkeypatch.setattr(OnePassNewtonMNL, "_release", dies)
    with pytest.raises(SystemExit):
        served(other.learner, 0, 40)
    other.end()
    with pytest.raises(SystemExit):  # again before the release
        other.resume()
    other.end()
    monkeypatch.undo()
    monkeypatch.setattr(Receipt, "_integers", lambda self, shape, grid: np.zeros(shape, np.int64))
    other.resume()
    assert other.learner.clock_ == 20
    served(other.learner, 20, 40)
    assert one.learner.public_state() == other.learner.public_state()
    for run in (one, other):
        run.store.close()


@pytest.mark.usefixtures("noiseless")
def test_without_the_rows_the_same_run_learns_something_else(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    one, other = Run(whole, newton, served), Run(parts, newton, served)
    one.to(40)
    other.to(7)
    other.end()
    other.resume(RowStore.create(tmp_path / "new.db", KEY))
    assert other.learner.clock_ == 0
    other.learner.skip(7)
    served(other.learner, 7, 40)
    assert one.learner.public_state() != other.learner.public_state()
    for run in (one, other):
        run.store.close()


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, noiseless: None) -> None:
    script = """
        import sys
        import numpy as np
        from test_kept_rows import Run, newton, one_by_one
        from pathlib import Path

        run = Run(Path(sys.argv[1]), newton, one_by_one)
        for i in range(1000):
            one_by_one(run.learner, i, i + 1)
            print(i, flush=True)
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(killed)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    ) as process:
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last == 13:
                process.kill()
                break
        last = max([last, *(int(line) for line in process.stdout if line.endswith("\n"))])
    assert 13 <= last < 19  # within the first batch
    other = Run.__new__(Run)
    other.ledger, other.rows, other.trust = killed / "l.db", killed / "r.db", JointAccountant
    other.registry, other.learner = None, newton()
    other.resume()
    assert last + 1 <= other.learner.clock_ <= last + 2
    came = other.learner.clock_
    assert other.learner.recovered_ == Recovered(rows=(range(came),))
    one_by_one(other.learner, came, 60)
    one = Run(whole, newton, one_by_one)
    one.to(60)
    assert one.learner.public_state() == other.learner.public_state()
    for run in (one, other):
        run.store.close()


def dpmnl(first: int) -> DPMNL:
    return DPMNL(n_items=ITEMS, dim=DIM, initial_rounds=first, max_updates=3)


def test_fits_have_the_answers_of_everybody_who_came_before_the_crash(tmp_path: Path) -> None:
    def many(learner: Any, start: int, stop: int) -> None:
        learner.play(
            np.resize(FEATURES, (stop, ITEMS, DIM))[start:], lambda own, shown: shown[:, 0]
        )

    run = Run(tmp_path, lambda: dpmnl(300), many, users=400)
    run.to(100, 310)
    run.end()
    run.resume()
    learner = run.learner
    assert learner.recovered_.rows == (range(310),)
    held = Rows.concat([*learner._answers, *learner._pending])
    real = np.concatenate([chunk.valid for chunk in Rows._unseal(held)])
    assert real.tolist() == [user < 310 for user in range(learner.clock_)]
    assert learner.recovered_.null == (
        (range(310, learner.clock_),) if learner.clock_ > 310 else ()
    )
    assert len(run.accountant.held("fit", range(1))) == 1
    run.store.close()


def test_an_open_stream_ends_and_rows_behind_its_reach_go_on(tmp_path: Path) -> None:
    """Rows on disk that the stream had not reached are in the next one."""
    run = Run(tmp_path, lambda: DPTOFW(DIM, method="plain"), logged, CentralAccountant, users=600)
    x = np.random.default_rng(1).uniform(-1, 1, (600, DIM))
    run.learner.partial_fit(x[:100], x[:100, 0])
    run.store.keep(Rows.seal((x[100:400], x[100:400, 0]), users=range(100, 400)))  # and dies
    run.end()
    run.resume()
    assert run.learner.clock_ == 400
    run.learner.partial_fit(x[400:], x[400:, 0])
    run.accountant.close()
    found = audit(run.ledger)
    assert (list(found.problems), found.lost) == ([], 1)
    run.store.close()


def test_a_store_that_is_older_than_its_ledger_is_refused(
    tmp_path: Path, opened: list[RowStore]
) -> None:
    run = Run(tmp_path, newton, served)
    served(run.learner, 0, 5)
    run.end()
    backup = run.rows.read_bytes()
    run.resume()
    served(run.learner, 5, 35)
    run.end()
    run.rows.write_bytes(backup)
    with pytest.raises(RowStoreError, match=r"older than its ledger: rows of users up to 19 were"):
        run.resume()
    run.accountant.ledger._disk._end()
    run.store.close()
    opened.append(RowStore.open(run.rows, KEY, older=True))
    run.resume(opened[-1])
    assert run.learner.clock_ == 20
    assert opened[-1].clock == 20
    served(run.learner, 20, 22)
    run.end()
    run.resume()  # it is not older any more
    assert run.learner.recovered_ == Recovered(rows=(range(20, 22),))
    run.store.close()


def test_a_store_of_another_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run, other = Run(tmp_path / "a", newton, served), Run(tmp_path / "b", newton, served)
    run.end()
    with pytest.raises(RowStoreError, match=r"belongs to accountant '.*', not to"):
        run.resume(other.store)
    other.store.close()


def test_a_new_store_begins_where_the_ledger_ends(tmp_path: Path) -> None:
    run = Run(tmp_path, newton, served)
    served(run.learner, 0, 25)
    run.end()
    run.rows = tmp_path / "new.db"
    run.resume(RowStore.create(run.rows, KEY))
    assert run.learner.clock_ == 20  # 20..24 are lost, and come again
    served(run.learner, 20, 23)
    run.end()
    run.resume()
    assert run.learner.recovered_ == Recovered(rows=(range(20, 23),))
    run.store.close()


def test_without_a_store_what_is_null_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda: dpmnl(40), served, users=2_000)
    served(run.learner, 0, 50)
    run.end()
    accountant: Any = JointAccountant.resume(run.ledger)
    learner = DPMNL.resume(accountant)
    assert learner.recovered_ == Recovered(null=(range(learner.clock_),))
    with pytest.raises(TypeError, match="must be a RowStore"):
        DPMNL(n_items=ITEMS, dim=DIM).start(accountant, store=run.rows)  # type: ignore[arg-type]
    assert list(gaps(range(2, 9), [range(0, 3), range(4, 5), range(8, 20)])) == [
        range(3, 4),
        range(5, 8),
    ]


def test_skipped_users_stay_skipped(tmp_path: Path) -> None:
    run = Run(tmp_path, newton, served)
    served(run.learner, 0, 3)
    run.learner.skip(4)
    run.end()
    run.resume()
    assert run.learner.clock_ == 7
    run.store.close()


def test_a_store_that_cannot_be_written_stops_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, newton, served)
    served(run.learner, 0, 3)

    def full(store: RowStore, rows: Rows[Any], *, needed: int) -> None:
        raise RowStoreError("disk is full")

    before = run.accountant.ledger.head
    monkeypatch.setattr(RowStore, "keep", full)
    with pytest.raises(RowStoreError, match="disk is full"):
        served(run.learner, 3, 60)
    assert run.learner._failed  # it takes nobody any more
    assert run.accountant.ledger.head == before
    monkeypatch.undo()
    run.end()
    run.resume()
    assert run.learner.clock_ == 3
    run.store.close()


# People ------------------------------------------------------------------------------------------

IDS = [f"p{i % 50}" for i in range(USERS)]


def with_ids(learner: Any, start: int, stop: int) -> None:
    learner.play(FEATURES[start:stop], lambda own, shown: shown[:, 0], people=IDS[start:stop])


@pytest.mark.usefixtures("noiseless")
@pytest.mark.parametrize("pooled", [False, True])
def test_visits_come_back_with_whose_they_are(tmp_path: Path, pooled: bool) -> None:
    rule = Participation(1, pooled=pooled)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()

    def make() -> OnePassNewtonMNL:
        return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, first_batch=70)

    one = Run(whole, make, with_ids, rule=rule)
    other = Run(parts, make, with_ids, rule=rule)
    one.to(USERS)
    other.to(7, 60, USERS)
    assert one.learner.public_state() == other.learner.public_state()
    for run in (one, other):
        run.end()


@pytest.mark.usefixtures("noiseless")
def test_who_was_forgotten_is_not_learned_after_a_restart(tmp_path: Path) -> None:
    rule = Participation(1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    one, other = (Run(folder, newton, with_ids, rule=rule) for folder in (whole, parts))
    for run in (one, other):
        run.learn(run.learner, 0, 10)
    before = one.rows.with_name("r.db-wal").read_bytes()
    one.learner.forget("p4")
    assert one.rows.with_name("r.db-wal").read_bytes() == b"" != before  # the row left the disk
    other.end()
    with People.open(other.people) as people:  # while no learner runs
        people.forget("p4")
    other.resume()
    for run in (one, other):
        run.learn(run.learner, 10, 30)
    assert one.learner.public_state() == other.learner.public_state()
    for run in (one, other):
        run.end()


def test_rows_of_a_registry_that_is_lost_or_older_are_not_learned(tmp_path: Path) -> None:
    run = Run(tmp_path, newton, with_ids, rule=Participation(1))
    run.end()
    backup = run.people.read_bytes()
    run.resume()
    with_ids(run.learner, 0, 10)
    registry = run.registry
    assert registry is not None
    id = registry.id
    run.end()
    newer = run.people.read_bytes()
    run.people.write_bytes(backup)
    with pytest.raises(PeopleError, match="older than its ledger"):
        run.resume()
    run.end()
    run.people.write_bytes(newer)
    run.people.unlink()
    People.replace_lost(run.people, Participation(1), id=id, clock=10).close()
    run.resume()
    assert run.learner.clock_ == 10
    (chunk,) = Rows._unseal(Rows.concat(run.learner._pending))
    assert not chunk.valid.any()
    run.end()


@pytest.mark.usefixtures("noiseless")
def test_on_a_timetable_the_slot_goes_on_with_its_visits(tmp_path: Path) -> None:
    rule = Participation(1, clock="timetable")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()

    def make() -> OnePassNewtonMNL:
        return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, first_batch=6, random_state=3)

    slots = np.repeat(np.arange(20), 6)

    def some(learner: Any, start: int, stop: int) -> None:
        ids = [f"p{i}" for i in range(start, stop)]
        learner.play(
            FEATURES[start:stop],
            lambda own, shown: shown[:, 0],
            people=ids,
            slots=slots[start:stop],
        )

    one = Run(whole, make, some, rule=rule, users=20)
    other = Run(parts, make, some, rule=rule, users=20)
    some(one.learner, 0, USERS)
    at = 0
    for stop in (3, 8, 20, 45, USERS):
        some(other.learner, at, stop)
        if stop < USERS:
            other.end()
            other.resume()
            assert other.learner.clock_ == slots[stop - 1]
        at = stop
    for run in (one, other):
        run.learner.skip(20 - run.learner.clock_)
    assert one.learner.public_state() == other.learner.public_state()
    for run in (one, other):
        run.end()
