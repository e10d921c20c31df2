"""A registry that several processes use: each is answered as if one process did it all, in turn."""

from __future__ import annotations

import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from participation_oracle import Visits, rules
from postgres import Server
from psycopg.errors import UniqueViolation
from served_registries import served
from sqlalchemy import text

from privlearn import Ledger
from privlearn.errors import (
    LedgerError,
    LedgerFencedError,
    LocalSocketError,
    PeopleError,
    ProvenanceError,
    UsersError,
)
from privlearn.ledger import postgres_sessions
from privlearn.ledger.postgres import PostgresStore
from privlearn.ledger.postgres_sessions import LostConnection, Session
from privlearn.people import Admission, People, in_memory, postgres, registry
from privlearn.people.key_files import read_key, write_key
from privlearn.people.postgres import PostgresTurns
from privlearn.people.server import PeopleAnswers
from privlearn.rows import Rows
from privlearn.storage import processes
from privlearn.values.participation import Participation

SLOTS = 400
STARTS = (0, 7, 20, 150)
ONCE = Participation(1)
Another = Callable[[], People]
"""One more process's access to the same registry."""


class Place:
    """Where registries are kept, "owner" or "postgres", until the block ends."""

    def __init__(self, kind: str, folder: Path, server: Server | None) -> None:
        self.kind, self._folder, self._stack = kind, folder, ExitStack()
        if server is not None:
            self.address = server.url(ledger=secrets.token_hex(4))
            self.ledger = self._stack.enter_context(Ledger.postgres(self.address, "create"))
        self._made = 0

    def key(self, number: int) -> Path:
        return self._folder / f"{number}.key"

    def make(self, rule: Participation, epoch: Callable[[], int] = lambda: 1) -> Another:
        """A new registry with an accountant and its batches; what opens it once more."""
        self._made += 1
        number, keep = self._made, self._stack.enter_context
        if self.kind == "owner":
            socket = self._folder / f"{number}.sock"
            people = People.memory(rule)
            keep(served(people, socket, epoch))

            def another() -> People:
                return keep(People.connect(socket))

        else:
            where: dict[str, Any] = {"key": self.key(number), "name": str(number)}
            people = keep(People.postgres(self.ledger, "create", rule=rule, **where))

            def another() -> People:
                return keep(People.postgres(self.ledger, "open", **where))

        people.bind("me", range(SLOTS))
        if rule.batched:
            people.divide(STARTS)
        return another

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=["owner", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    made = Place(request.param, tmp_path, server)
    yield made
    made.close()


@pytest.fixture
def tables(postgres: Server, tmp_path: Path) -> Iterator[Place]:
    made = Place("postgres", tmp_path, postgres)
    yield made
    made.close()


def problems(
    rule: Participation, calls: Sequence[tuple[Sequence[str | None], Admission]]
) -> list[str]:
    """What is wrong with answers, by an account that knows nothing of registries."""
    oracle, found, clock = Visits(rule, STARTS), list[str](), 0
    numbers: dict[str, int] = {}
    for ids, answer in sorted(calls, key=lambda call: call[1].users.start):
        if answer.users != range(clock, clock + len(ids)):
            found.append(f"slots {answer.users} are not the next, {clock}")
        clock = answer.users.stop
        for slot, who, learned, number in zip(
            answer.users, ids, answer.learned.tolist(), answer.persons.tolist(), strict=True
        ):
            if learned != oracle.learns(who, slot):
                found.append(f"slot {slot}: {learned}")
            if who is not None and numbers.setdefault(who, number) != number:
                found.append(f"slot {slot}: two numbers of one person")
    if len(set(numbers.values())) != len(numbers):
        found.append("two persons with one number")
    return found


class Step(NamedTuple):
    """What one process does next."""

    process: int
    ids: list[str | None]
    exact: bool
    """Whether it names the slots."""


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=9,
)
_SHARED = [HealthCheck.function_scoped_fixture]


@settings(max_examples=12, deadline=None, suppress_health_check=_SHARED)
@given(rules(), STEPS)
def test_an_interleaving_of_processes_is_one_process(
    place: Place, rule: Participation, steps: list[Step]
) -> None:
    another = place.make(rule)
    processes = [another() for _ in range(3)]
    alone = People.memory(rule)
    alone.bind("me", range(SLOTS))
    if rule.batched:
        alone.divide(STARTS)
    calls = []
    for step in steps:
        people, clock = processes[step.process], alone.clock or 0
        users = range(clock, clock + len(step.ids))
        expected = alone.admit_visits(step.ids, users)
        exact = step.exact
        found = people.admit_visits(step.ids, users) if exact else people.admit_next(step.ids)
        assert found.users == users
        for name in ("learned", "persons", "counted"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist()
        calls.append((step.ids, found))
        assert {each.clock for each in processes} == {alone.clock}
    assert problems(rule, calls) == []
    numbers = [found.call for _, found in calls]
    assert numbers == sorted(set(numbers))
    for each in processes:
        each.close()


def at_the_same_time(
    rule: Participation, another: Another, processes: int = 3, calls: int = 8
) -> list[tuple[list[str | None], Admission]]:
    """Threads with a connection each, that all admit the same few people."""
    rng = np.random.default_rng(5)
    people = [another() for _ in range(processes)]
    begin = threading.Barrier(processes)

    def work(number: int, sizes: list[int], ids: list[list[str]]) -> list[Any]:
        begin.wait(10)
        return [(part, people[number].admit_next(part)) for part in ids]

    tasks = []
    for number in range(processes):
        sizes = rng.integers(1, 4, calls).tolist()
        tasks.append((number, sizes, [[f"p{i}" for i in rng.integers(0, 9, n)] for n in sizes]))
    with ThreadPoolExecutor(processes) as pool:
        done = [pool.submit(work, *task) for task in tasks]
        return [call for each in done for call in each.result(30)]


@pytest.mark.parametrize(
    "rule",
    [Participation(2, apart=3), Participation(3, per_batch=1), Participation(1, pooled=True)],
)
def test_processes_that_admit_at_the_same_time(place: Place, rule: Participation) -> None:
    calls = at_the_same_time(rule, place.make(rule))
    assert len(calls) == 24
    assert problems(rule, calls) == []


class _NoLock:
    """In place of a registry's lock."""

    made_in = None

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def both_read_before_either_writes(
    monkeypatch: pytest.MonkeyPatch, turn: Any, another: Another
) -> list[tuple[list[str | None], Admission]]:
    """Two processes admit the same person; between reading and writing they wait for each other."""
    people, barrier, read = [another(), another()], threading.Barrier(2), turn.standings

    def standings(self: Any, keys: Any) -> Any:
        found = dict(read(self, keys))
        barrier.wait(10)
        return found

    monkeypatch.setattr(turn, "standings", standings)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(each.admit_next, ["maria"]) for each in people]
        return [(["maria"], each.result(30)) for each in done]


def test_an_owner_that_judges_two_at_once_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "Exclusive", _NoLock)
    place = Place("owner", tmp_path, None)
    calls = both_read_before_either_writes(monkeypatch, in_memory.Kept, place.make(ONCE))
    assert [call.learned.item() for _, call in calls] == [True, True]
    assert problems(ONCE, calls)
    monkeypatch.setattr(_NoLock, "made_in", processes.here(), raising=False)
    place.close()


def test_turns_that_do_not_wait_would_be_found(
    tables: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, and without what the server does for transactions besides."""
    registries = [tables.make(ONCE) for _ in range(6)]
    monkeypatch.setattr(postgres_sessions, "_LOCK", text("SELECT :key"))
    monkeypatch.setattr(postgres_sessions, "UNLOCK", text("SELECT :key"))

    def begin(session: Any) -> None:
        session.run(text("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"))

    monkeypatch.setattr(Session, "begin", begin)
    monkeypatch.setattr(Session, "check_server", lambda *_: None)
    calls: list[Any] = []
    while not calls:  # a key of the tables may stop one of two that write at the same moment
        with suppress(PeopleError):
            another = registries.pop()
            calls = both_read_before_either_writes(monkeypatch, postgres._PostgresTurn, another)
    assert [call.learned.item() for _, call in calls] == [True, True]
    assert problems(ONCE, calls)


def test_standings_of_an_earlier_turn_would_be_found(
    tables: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = tables.make(ONCE)
    seen: dict[tuple[int, bytes], Any] = {}
    read = postgres._PostgresTurn.standings

    def standings(turn: Any, keys: Any) -> Any:
        found, who = read(turn, keys), id(turn._session)
        for key in keys:
            seen.setdefault((who, key), found.get(key))
        return {key: seen[who, key] for key in keys if seen[who, key] is not None}

    monkeypatch.setattr(postgres._PostgresTurn, "standings", standings)
    one, other = another(), another()
    calls: list[Any] = [(["x", "y"], each.admit_next(["x", "y"])) for each in (one, other, one)]
    assert problems(ONCE, calls)


def test_the_server_sees_to_it_as_well(tables: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock, transactions are undone for each other's sake, and done again."""
    rule = Participation(2)
    another = tables.make(rule)
    monkeypatch.setattr(postgres_sessions, "_LOCK", text("SELECT :key"))
    monkeypatch.setattr(postgres_sessions, "UNLOCK", text("SELECT :key"))
    assert problems(rule, at_the_same_time(rule, another, processes=2, calls=6)) == []


def test_only_who_is_asked_for_is_looked_up(tables: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    people = tables.make(Participation(3))()
    people.admit_next([f"p{i}" for i in range(30)])
    found: list[int] = []
    read = postgres._PostgresTurn.standings

    def standings(turn: Any, keys: Any) -> Any:
        known = read(turn, keys)
        found.append(len(known))
        return known

    monkeypatch.setattr(postgres._PostgresTurn, "standings", standings)
    people.admit_next(["p3", None, "p3", "new", "p7"])
    assert found == [2]


# The next slots -----------------------------------------------------------------------------------


def test_the_next_slots_end_with_the_accountant(place: Place) -> None:
    one = place.make(ONCE)()
    one.skip(range(SLOTS - 3))
    with pytest.raises(UsersError, match=f"end by {SLOTS}"):
        one.admit_next(["a"] * 4)
    with pytest.raises(UsersError, match="there are none"):
        one.admit_next([])
    assert one.admit_next(["a", "b", None]).users == range(SLOTS - 3, SLOTS)


def test_time_passes_for_all_processes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    another = place.make(ONCE)
    one, other = another(), another()
    looked: Callable[[People], int | None] = vars(People)["clock"].fget

    def before_others(people: People) -> int | None:
        clock = looked(people)
        if people is one:
            other.skip_to(7)
        return clock

    monkeypatch.setattr(People, "clock", property(before_others))
    for slot in (5, 9):
        one.skip_to(slot)
        assert one.passed == slot
    assert other.clock == 9
    with pytest.raises(UsersError, match=f"end by {SLOTS}"):
        one.skip_to(SLOTS + 1)


def test_on_a_timetable_a_visit_says_when_it_is() -> None:
    people = People.memory(Participation(1, clock="timetable"))
    with pytest.raises(ProvenanceError, match="admit_visits"):
        people.admit_next(["a"])


def test_rows_are_sealed_at_the_next_slots(place: Place) -> None:
    another = place.make(ONCE)
    one, other = another(), another()
    values = np.arange(6.0).reshape(3, 2)
    parts = [
        one.seal_next(values, ["a", "b", "a"]),
        other.seal_next(values, ["c", "a", None]),
        one.seal_next(values[:1], ["d"]),
    ]
    assert [part.users for part in parts] == [range(3), range(3, 6), range(6, 7)]
    values[:] = 9
    real = [[valid for chunk in Rows._unseal(part) for valid in chunk.valid] for part in parts]
    assert real == [[True, True, False], [True, False, False], [True]]
    assert np.asarray(Rows._unseal(parts[0])[0].block)[:2].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    with pytest.raises(UsersError, match="2 for a block of 3 records"):
        one.seal_next(values, ["a", "b"])
    with pytest.raises(UsersError, match="there are none"):
        one.seal_next(values[:0], [])
    with pytest.raises(TypeError, match="block"):
        one.seal_next({"no": "block"}, ["a"])
    assert one.clock == 7


# Who was forgotten --------------------------------------------------------------------------------


def test_who_is_forgotten_in_one_process_is_so_in_all(place: Place) -> None:
    another = place.make(Participation(3))
    one, other = another(), another()
    rows = one.seal_next(np.ones((2, 1)), ["a", "b"])
    other.forget("a")
    assert [valid for chunk in Rows._unseal(rows) for valid in chunk.valid] == [False, True]
    assert one.admit_next(["a", "b"]).learned.tolist() == [False, True]
    assert another().forgotten(np.array([0, 1, -1])).tolist() == [True, False, False]
    one.forgotten(np.array([1]))  # which takes nothing back
    one.close()
    assert one.forgotten(np.array([0, 1, -1])).tolist() == [True, False, False]  # as it knew


# Epochs and what is lost --------------------------------------------------------------------------


def test_who_belongs_to_an_earlier_epoch_asks_in_vain(tmp_path: Path) -> None:
    now = 4
    place = Place("owner", tmp_path, None)
    another = place.make(ONCE, lambda: now)
    fenced = another()
    fenced.admit_next(["a"])
    now = 5
    for call in (
        lambda: fenced.admit_next(["b"]),
        lambda: fenced.forget("a"),
        lambda: fenced.skip(range(1, 2)),
        lambda: fenced.clock,
    ):
        with pytest.raises(LedgerFencedError, match="epoch 5, and this process joined it in epoch"):
            call()
    people = another()
    assert (people.clock, people.admit_next(["b"]).learned.tolist()) == (1, [True])
    place.close()


def test_who_lost_its_ledger_admits_nobody(tables: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    another = tables.make(ONCE)
    fenced = another()
    fenced.admit_next(["a"])
    new: dict[str, Any] = {"rule": ONCE, "key": tables.key(2), "name": "2"}
    with Ledger.postgres(tables.address, "open") as ledger:
        for call in (
            lambda: fenced.admit_next(["b"]),
            lambda: fenced.forget("a"),
            lambda: People.postgres(tables.ledger, "create", **new),
        ):
            with pytest.raises(LedgerFencedError, match="opened anew"):
                call()
        people = People.postgres(ledger, key=tables.key(1), name="1")
        assert (people.clock, people.admit_next(["b"]).learned.tolist()) == (1, [True])
        people.close()
        monkeypatch.setattr(type(ledger._shared), "check_epoch", lambda *_: None)
        assert fenced.admit_next(["c"]).learned.tolist() == [True]  # but for that check


def test_an_owner_that_ends_takes_no_visit_along(tmp_path: Path) -> None:
    people, socket = People.memory(ONCE), tmp_path / "s"
    people.bind("me", range(9))
    with served(people, socket):
        other = People.connect(socket)
        other.admit_next(["a"])
    with pytest.raises(PeopleError, match=r"gave no answer.*may be used up, and are not learned"):
        other.admit_next(["b"])
    other.close()
    assert other.clock == 1  # as it was seen last
    with pytest.raises(LocalSocketError):
        People.connect(socket)


@pytest.mark.parametrize(
    ("fields", "attached"),
    [
        ({"registry": "spend"}, b""),
        ({"registry": "admit", "users": None}, b"no json"),
        ({"registry": "admit", "users": None}, b'{"ids": ["a"]}'),
        ({"registry": "admit", "users": None}, b'{"ids": "a", "at": null}'),
        ({"registry": "admit", "users": None}, b'{"ids": [{"i": "x"}], "at": null}'),
        ({"registry": "admit", "users": None}, b'{"ids": [["a"]], "at": null}'),
        ({"registry": "admit", "users": [0]}, b'{"ids": ["a"], "at": null}'),
        ({"registry": "admit", "users": [0, True]}, b'{"ids": ["a"], "at": null}'),
        ({"registry": "skip"}, b""),
        ({"registry": "skip_to", "slot": "9"}, b""),
        ({"registry": "divide"}, b"3"),
        ({"registry": "forgotten"}, b"123"),
    ],
)
def test_questions_that_are_not_of_their_form_are_refused(
    fields: dict[str, Any], attached: bytes
) -> None:
    from privlearn.storage.frames import Message

    people = People.memory(ONCE)
    people.bind("me", range(9))
    with pytest.raises(PeopleError, match="not of its form"):
        PeopleAnswers(people, lambda: 1).answer(Message({"epoch": 1, **fields}, attached))
    assert people.clock == 0


def cut_off(server: Server) -> None:
    """Ends all connections of processes."""
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND application_name = 'privlearn'"
    )


def test_a_commit_of_unknown_outcome_teaches_nothing(
    tables: Place, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = tables.make(ONCE)
    one, commit = another(), Session.commit

    def cut(session: Any) -> None:
        commit(session)
        session.close()
        raise LostConnection("cut")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", cut)
        with pytest.raises(PeopleError, match=r"connection was lost.*are not learned"):
            one.admit_next(["a"])
    assert one.clock == 1  # on another connection
    assert one.admit_next(["a", "b"]).learned.tolist() == [False, True]

    def cut_before(session: Any) -> None:
        cut_off(postgres)
        commit(session)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", cut_before)
        with pytest.raises(PeopleError, match=r"connection was lost.*are not learned"):
            one.admit_next(["c"])
    assert one.clock == 3  # the server undid it
    assert one.admit_next(["c"]).learned.tolist() == [True]


def test_a_visit_that_no_standby_confirmed_teaches_nothing(tables: Place, postgres: Server) -> None:
    one = tables.make(ONCE)()
    with postgres.unconfirmed(), pytest.raises(PeopleError, match=r"replication.*are not learned"):
        one.admit_next(["a"])
    assert one.clock == 1
    assert one.admit_next(["a", "b"]).learned.tolist() == [False, True]
    new: dict[str, Any] = {"rule": ONCE, "key": tables.key(2), "name": "2"}
    with postgres.unconfirmed(), pytest.raises(PeopleError, match="replication"):
        People.postgres(tables.ledger, "create", **new)


def test_what_was_not_committed_was_not_seen(
    tables: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.make(ONCE)
    one = People.postgres(
        tables.ledger, "create", key=tables.key(2), name="2", rule=Participation(1, per_batch=1)
    )
    one.bind("me", range(SLOTS))

    def refused(session: Session) -> None:
        raise LedgerError("the server refused it")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", refused)
        with pytest.raises(PeopleError, match="refused it"):
            one.divide(STARTS)
    with pytest.raises(UsersError, match=r"batches begin at \(\)"):
        one.batches(range(7))
    one.close()


@pytest.mark.parametrize("change", ["used = 2", "used = 0", "last = 9", "last = -2", "number = 2"])
def test_a_standing_that_cannot_be_right_is_refused(
    tables: Place, postgres: Server, change: str
) -> None:
    one = tables.make(ONCE)()
    one.admit_next(["a", "b"])
    postgres.execute(
        f"UPDATE privlearn.people SET {change} WHERE number = 1 AND registry = '{one.id}'"
    )
    with pytest.raises(PeopleError, match="a standing cannot be right"):
        one.admit_next(["b"])
    assert one.clock == 2
    with pytest.raises(UniqueViolation, match="number"):
        postgres.execute(f"UPDATE privlearn.people SET number = 7 WHERE registry = '{one.id}'")


def test_who_waits_too_long_debits_nothing(tables: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_sessions, "TIMEOUT", 0.2)
    another = tables.make(ONCE)
    other = another()
    turns = PostgresTurns(other_store(tables), "1", own=False)
    turns.open(tables.key(1), None)

    def stopped(turn: object) -> None:
        with pytest.raises(PeopleError, match=r"lock timeout.*nothing was recorded"):
            other.admit_next(["a"])

    turns.take(stopped)
    turns.close()
    assert other.admit_next(["a"]).learned.tolist() == [True]


def other_store(tables: Place) -> PostgresStore:
    store = tables.ledger._shared
    assert isinstance(store, PostgresStore)
    return store


def test_a_connection_that_was_cut_is_made_anew(tables: Place, postgres: Server) -> None:
    one = tables.make(ONCE)()
    one.admit_next(["a"])
    cut_off(postgres)
    assert one.admit_next(["a", "b"]).learned.tolist() == [False, True]
    assert one.forgotten(np.array([0])).tolist() == [False]


# The database -------------------------------------------------------------------------------------


def test_neither_key_nor_ids_are_in_the_database(tables: Place, postgres: Server) -> None:
    another = tables.make(ONCE)
    another().admit_next(["maria@example.org"])
    key = read_key(tables.key(1))
    assert stat.S_IMODE(tables.key(1).stat().st_mode) == 0o600
    held = str(
        postgres.execute(
            "SELECT (SELECT json_agg(r) FROM privlearn.registries r)::text ||"
            " (SELECT json_agg(p) FROM privlearn.people p)::text"
        )
    )
    assert "maria" not in held
    assert key.hex() not in held
    assert key[:8].hex() not in held


def test_what_was_known_of_who_is_forgotten_is_overwritten(tables: Place, postgres: Server) -> None:
    one = tables.make(Participation(3))()
    one.admit_next(["a", "b"])
    one.forget("a")
    found = postgres.execute(
        "SELECT p.number, p.used, p.last FROM privlearn.people p JOIN privlearn.registries r"
        f" ON p.registry = r.id WHERE r.ledger = '{tables.ledger._shared.ledger}' ORDER BY number"  # type: ignore[union-attr]
    )
    assert found == [(0, 3, -1), (1, 1, 1)]


def test_another_key_or_another_rule_is_refused(tables: Place, tmp_path: Path) -> None:
    tables.make(ONCE)

    def opened(**how: Any) -> People:
        return People.postgres(tables.ledger, **{"key": tables.key(1), "name": "1", **how})

    write_key(tmp_path / "other", secrets.token_bytes(32))
    with pytest.raises(PeopleError, match=r"key: .* was made with another one"):
        opened(key=tmp_path / "other")
    with pytest.raises(PeopleError, match="cannot be read: No such file"):
        opened(key=tmp_path / "none")
    (tmp_path / "short").write_text("abc")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(PeopleError, match="holds no key"):
        opened(key=tmp_path / "short")
    tables.key(1).chmod(0o640)
    with pytest.raises(PeopleError, match="may be read by others"):
        opened()
    tables.key(1).chmod(0o600)
    with pytest.raises(PeopleError, match="keeps another"):
        opened(rule=Participation(2))
    with pytest.raises(PeopleError, match="there is none"):
        opened(name="2")
    with pytest.raises(ValueError, match="how = 'make'"):
        opened(how="make")
    with pytest.raises(TypeError, match="rule = None"):
        opened(how="create", key=tmp_path / "new")
    with pytest.raises(PeopleError, match="exists: a key is never"):
        opened(how="create", rule=ONCE)
    with pytest.raises(PeopleError, match="registry of people '1' exists"):
        opened(how="create", rule=ONCE, key=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match=r"one in PostgreSQL"):
        People.postgres(Ledger.memory(), key=tables.key(1))
    opened(rule=ONCE).close()


def test_tables_that_a_crash_would_empty_are_refused(tables: Place, postgres: Server) -> None:
    another = tables.make(ONCE)
    for table in ("people", "registries"):
        postgres.execute(f"ALTER TABLE privlearn.{table} SET UNLOGGED")
        try:
            people = another()
            for _ in range(2):
                with pytest.raises(PeopleError, match=f"the table {table} is unlogged"):
                    people.admit_next(["a"])
        finally:
            postgres.execute(f"ALTER TABLE privlearn.{table} SET LOGGED")
    assert another().clock == 0


def test_a_role_needs_to_insert_to_select_and_to_update(postgres: Server, tmp_path: Path) -> None:
    from privlearn.ledger import postgres_schema as of_ledgers
    from privlearn.people import postgres_schema as of_people

    with postgres.database() as database, postgres.role("keeper", database=database):
        postgres.execute(
            *of_ledgers.statements(writers=["keeper"]),
            *of_people.statements(keepers=["keeper"]),
            database=database,
        )
        address = postgres.url("keeper", database=database, ledger="shop")
        with Ledger.postgres(address, "create") as ledger:
            key = tmp_path / "key"
            with People.postgres(ledger, "create", rule=ONCE, key=key) as people:
                people.bind("me", range(9))
                people.admit_next(["a", "b"])
                people.forget("a")
                postgres.execute("REVOKE UPDATE ON privlearn.people FROM keeper", database=database)
                with pytest.raises(PeopleError, match="permission denied"):
                    people.admit_next(["c"])
                assert people.clock == 2
