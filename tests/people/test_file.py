"""The file of a registry: it outlives the process, stands in one place, and is used by one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from privlearn.errors import PeopleError, UsersError
from privlearn.ledger import Ledger
from privlearn.people import People
from privlearn.people.file import FORMAT, RegistryFile
from privlearn.values.participation import Participation

ONCE = Participation(1)
TWICE = Participation(2, apart=3)
POOLED = Participation(2, pooled=True)
LOST = "0123456789abcdef" * 2


def begun(path: Path, rule: Participation = ONCE, stop: int = 100) -> People:
    people = People.create(path, rule)
    people.bind("me", range(stop))
    if rule.batched:
        people.divide([0, 5])
    return people


def admitted(people: People, *ids: object) -> list[bool]:
    clock = people.clock or 0
    learned: list[bool] = people.admit_visits(ids, range(clock, clock + len(ids))).learned.tolist()
    return learned


def spoilt(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_everything_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with begun(path, POOLED) as people:
        assert admitted(people, "a", "b", None, "a") == [True, True, False, True]
        people.forget("b")
        people.skip(range(4, 5))
        was = people.id, people.rule, people.accountant, people.clock, people.serving_only
    with People.open(path, POOLED) as people:
        assert (people.id, people.rule, people.accountant, people.clock, people.serving_only) == was
        people.bind("me", range(100))
        people.divide([0, 5])
        with pytest.raises(PeopleError, match="other batches"):
            people.divide([0, 6])
        with pytest.raises(PeopleError, match="belongs to accountant 'me'"):
            people.bind("other", range(100))
        with pytest.raises(TypeError, match="int beside str"):
            people.admit_visits([3], range(5, 6))
        assert admitted(people, "a", "b", "c") == [True, False, True]
        assert people.forgotten(people.admit_visits(["b"], range(8, 9)).persons).all()


def test_the_rule_goes_on_over_many_openings(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    begun(path, TWICE).close()
    learned = []
    for _ in range(9):
        with People.open(path) as people:
            learned += admitted(people, "a")
    assert learned == [True, False, False, True] + [False] * 5


@pytest.mark.parametrize("rule", [POOLED, TWICE, Participation(3, per_batch=1)], ids=str)
def test_a_file_keeps_the_rule_as_memory_does(rule: Participation, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    visits = [f"p{i}" if i else None for i in rng.zipf(1.7, 600) % 90]
    memory = People.memory(rule)
    begun(tmp_path / "people.db", rule, stop=600).close()
    memory.bind("me", range(600))
    if rule.batched:
        memory.divide([0, 5])
    for begin, end in pairwise([0, 3, 7, 200, 201, 600]):
        expected = memory.admit_visits(visits[begin:end], range(begin, end))
        with People.open(tmp_path / "people.db") as people:
            admission = people.admit_visits(visits[begin:end], range(begin, end))
        assert admission.learned.tolist() == expected.learned.tolist()
        assert admission.persons.tolist() == expected.persons.tolist()


def test_only_its_owner_may_read_it_and_a_closed_one_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with begun(path) as people:
        admitted(people, "maria@example.org")
        assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
        assert b"maria" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert [each.name for each in tmp_path.iterdir()] == ["people.db"]
    assert b"maria" not in path.read_bytes()


def test_each_call_is_one_synced_change(tmp_path: Path) -> None:
    with begun(tmp_path / "people.db") as people:
        connection = people._People__keeper._turns._store._file.connection  # type: ignore[attr-defined]
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "secure_delete")
        }
        assert settings == {
            "synchronous": 2,  # FULL: the log is synced when a change is committed
            "journal_mode": "wal",
            "secure_delete": 1,
        }
        told: list[str] = []
        connection.set_trace_callback(told.append)
        admitted(people, *(f"p{i}" for i in range(50)))
        people.skip(range(50, 60))
        assert [each for each in told if "BEGIN" in each] == ["BEGIN IMMEDIATE"] * 2
        assert [each for each in told if "COMMIT" in each] == ["COMMIT"] * 2


def test_what_a_forgotten_person_left_is_not_on_disk_any_more(tmp_path: Path) -> None:
    """Of somebody forgotten the slot is gone, also from the log."""
    path = tmp_path / "people.db"
    marked = 0x5A5A5A5A5A
    with People.create(path, ONCE) as people:
        people.bind("me", range(marked + 10))
        people.skip(range(marked))
        admitted(people, "a")
        people.skip(range(marked + 1, marked + 2))
        people.forget("a")
        held = [each.read_bytes() for each in tmp_path.iterdir()]
        assert len(held) == 3
        # the slot itself, as SQLite keeps a number of six bytes
        assert not [each for each in held if marked.to_bytes(6, "big") in each]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    begun(path).close()
    before = path.read_bytes()
    with pytest.raises(PeopleError, match="exists: a registry of people is never overwritten"):
        People.create(path, ONCE)
    with pytest.raises(PeopleError, match="exists"):
        People.replace_lost(path, ONCE, id=LOST, clock=3)
    with pytest.raises(PeopleError, match="cannot be created"):
        People.create(tmp_path / "none" / "people.db", ONCE)
    with pytest.raises(PeopleError, match="must name a file"):
        People.create("", ONCE)
    assert path.read_bytes() == before


def _ledger(path: Path) -> None:
    Ledger.create(path).close()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "does not exist.*cannot be made anew"),
    "empty": (lambda path: path.touch(), "is no registry of people"),
    "text": (lambda path: path.write_text("id,count\n" * 99), "is no registry of people"),
    "folder": (lambda path: path.mkdir(), "cannot be opened|is no registry"),
    "ledger": (_ledger, "is no registry of people"),
    "database": (lambda path: spoilt(path, "CREATE TABLE t (x)"), "is no registry of people"),
    "pipe": (lambda path: os.mkfifo(path), "is no registry of people: it is no file"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_no_registry_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    prepare, message = REFUSED[what]
    prepare(path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(PeopleError, match=message):
        People.open(path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"PRAGMA user_version = {FORMAT + 1}", f"of format {FORMAT + 1}: this version reads"),
        ("DELETE FROM registry", "damaged registry of people: it has no head"),
        ("UPDATE registry SET key = x'00'", "damaged.*its key cannot be right"),
        ("UPDATE registry SET rule = '{}'", "damaged.*participation"),
        ("UPDATE registry SET rule = 'x'", "damaged"),
        ("UPDATE registry SET kind = 'float'", "damaged.*the kind of its ids"),
        ("UPDATE registry SET clock = 'x'", "damaged.*its slots"),
        ("UPDATE registry SET clock = 101", "damaged.*its slots"),
        ("UPDATE registry SET serving_only = 2", "damaged.*whether it learns"),
        ("UPDATE registry SET id = ''", "damaged.*its name"),
        ("UPDATE people SET used = 0", "damaged.*a standing cannot be right"),
        ("UPDATE people SET used = 2", "damaged.*a standing cannot be right"),
        ("UPDATE people SET last = 7", "damaged.*a standing cannot be right"),
        ("UPDATE people SET last = 'x'", "damaged.*a standing cannot be right"),
        ("UPDATE people SET number = 4 WHERE number = 1", "damaged.*the numbers"),
        ("UPDATE people SET hash = (SELECT hash FROM people LIMIT 1)", "damaged.*stands twice"),
        ("UPDATE people SET hash = 'x'", "damaged.*a hash"),
        ("INSERT INTO batches VALUES (3)", "damaged.*its batches"),
        ("DROP TABLE people", "cannot be read|damaged"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(statement: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with begun(path) as people:
        assert admitted(people, "a", "b") == [True, True]
    spoilt(path, statement)
    with pytest.raises(PeopleError, match=message):
        People.open(path)


def test_a_file_with_torn_pages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with begun(path) as people:
        admitted(people, *(f"p{i}" for i in range(100)))
    data = bytearray(path.read_bytes())
    data[-3000:] = os.urandom(3000)
    path.write_bytes(data)
    with pytest.raises(PeopleError, match=r"damaged|cannot be read"):
        People.open(path)


def test_another_rule_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    begun(path).close()
    with pytest.raises(PeopleError, match=r"rule = Participation\(most=2.*keeps another.*most=1"):
        People.open(path, TWICE)
    People.open(path, ONCE).close()


def test_a_copy_is_refused_and_a_move_is_said(tmp_path: Path) -> None:
    path, copy, moved = (tmp_path / name for name in ("people.db", "copy.db", "moved.db"))
    with begun(path) as people:
        admitted(people, "a")
    shutil.copy(path, copy)
    with pytest.raises(PeopleError, match=r"copy.db was made at another place.*moved=True"):
        People.open(copy)
    os.rename(path, moved)  # within one file system it is the same file
    People.open(moved).close()
    moved.unlink()
    with People.open(copy, moved=True) as people:
        assert admitted(people, "a", "b") == [False, True]
    People.open(copy).close()


def test_a_link_leads_to_the_same_registry(tmp_path: Path) -> None:
    path, link = tmp_path / "people.db", tmp_path / "link.db"
    link.symlink_to(path)
    with (
        begun(path),
        pytest.raises(PeopleError, match=r"people.db is open already"),
    ):
        People.open(link)


def test_it_is_opened_once_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    script = textwrap.dedent("""
        import sys
        from privlearn.errors import PeopleError
        from privlearn.people import People
        try:
            People.open(sys.argv[1])
        except PeopleError as error:
            print(error)
    """)
    with begun(path) as people:
        for _ in range(2):
            with pytest.raises(PeopleError, match="is open already, in this process or"):
                People.open(path)
        path.read_bytes()  # closing it lets go of POSIX locks, but not of this one
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
        )
        assert "is open already" in done.stdout
        assert admitted(people, "a") == [True]
    People.open(path).close()


def test_a_registry_that_is_let_go_of_can_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    people = begun(path)
    admitted(people, "a")
    del people
    assert [each.name for each in tmp_path.iterdir()] == ["people.db"]
    with People.open(path) as people:
        assert admitted(people, "a") == [False]


def test_without_its_log_a_file_that_was_not_closed_is_refused(tmp_path: Path) -> None:
    path, copy = tmp_path / "people.db", tmp_path / "copy.db"
    with begun(path) as people:
        admitted(people, "a")
        shutil.copy(path, copy)
        with pytest.raises(PeopleError, match=r"was not closed, and its log, .*copy.db-wal, is"):
            People.open(copy, moved=True)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
        with People.open(copy, moved=True) as other:
            assert admitted(other, "a") == [False]


@pytest.mark.parametrize("name", ["people.db", "people.db-wal"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_what_is_deleted_or_replaced_in_use_is_noticed(name: str, how: str, tmp_path: Path) -> None:
    people = begun(tmp_path / "people.db")
    admitted(people, "a")
    file = tmp_path / name
    if how == "replaced":
        shutil.copy(file, tmp_path / "other")
        os.replace(tmp_path / "other", file)
    else:
        file.unlink()
    for call in (lambda: admitted(people, "b"), lambda: people.forget("b")):
        with pytest.raises(PeopleError, match=rf"{name} was deleted or replaced while"):
            call()
    people.close()


def test_what_is_replaced_during_a_change_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "people.db"
    people = begun(path)
    keep = RegistryFile.write

    def replaced(store: RegistryFile, *changes: object) -> None:
        connection = store._file.connection
        connection.set_trace_callback(
            lambda told: os.rename(path, tmp_path / "gone") if "UPDATE" in told else None
        )
        keep(store, *changes)  # type: ignore[arg-type]

    monkeypatch.setattr(RegistryFile, "write", replaced)
    with pytest.raises(PeopleError, match="deleted or replaced"):
        people.skip(range(1))
    people.close()


def test_one_whose_file_is_gone_leaves_that_of_the_next_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    gone = begun(path)
    for each in tmp_path.iterdir():
        each.unlink()
    with begun(path) as people:
        assert admitted(people, "a") == [True]
        gone.close()
        assert admitted(people, "a", "b") == [False, True]


@pytest.mark.parametrize("call", ["clock", "admit"])
def test_an_interruption_between_disk_and_memory_is_made_good(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = RegistryFile.write

    def interrupted(*changes: object) -> None:
        keep(*changes)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with begun(tmp_path / "people.db") as people:
        with monkeypatch.context() as patch:
            patch.setattr(RegistryFile, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                people.admit_visits(["a", "b"], range(2))
        if call == "clock":
            assert people.clock == 2
        else:
            with pytest.raises(UsersError, match="the next slot, 2"):
                people.admit_visits(["a", "b"], range(2))
        assert people.admit_visits(["a", "c"], range(2, 4)).learned.tolist() == [False, True]


def test_a_change_that_cannot_be_written_teaches_nothing(tmp_path: Path) -> None:
    """A full disk, say: the visit is not learned, and nothing is half there."""
    with begun(tmp_path / "people.db", stop=1_000) as people:
        admitted(people, "a")
        connection = people._People__keeper._turns._store._file.connection  # type: ignore[attr-defined]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        many = [f"p{i}" for i in range(300)]
        with pytest.raises(PeopleError, match="cannot be written: database or disk is full"):
            people.admit_visits(many, range(1, 301))
        assert people.clock == 1
        connection.execute("PRAGMA max_page_count = 1000000")
        assert admitted(people, "a", *many) == [False] + [True] * 300


def test_a_forked_process_cannot_use_it(tmp_path: Path) -> None:
    """In memory it would be a copy with the whole of the rule, on disk a second user."""
    script = textwrap.dedent("""
        import os, sys
        from privlearn.errors import PeopleError
        from privlearn.values.participation import Participation
        from privlearn.people import People
        both = People.memory(Participation(1)), People.create(sys.argv[1], Participation(1))
        for people in both:
            people.bind("me", range(9))
        open(sys.argv[1], "rb").close()  # lets go of SQLite's own locks
        child = os.fork()
        if not child:
            for people in both:
                try:
                    people.admit_visits(["a"], range(1))
                except PeopleError as error:
                    os.write(1, f"{error}\\n".encode())
                people.close()
            sys.exit()
        os.waitpid(child, 0)
        try:
            People.open(sys.argv[1])
        except PeopleError as error:
            print("still mine:", error)
        print(*(people.admit_visits(["a"], range(1)).learned.item() for people in both))
        both[1].close()
        People.open(sys.argv[1]).close()
    """)
    path = tmp_path / "people.db"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    first, second, third, last = done.stdout.splitlines()
    assert first == second
    assert "cannot be used in a forked process" in first
    assert third.startswith("still mine: ")
    assert last == "True True"


@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_however_a_process_ends_the_next_one_goes_on(end: str, tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os, sys
        from privlearn.values.participation import Participation
        from privlearn.people import People
        people = People.create(sys.argv[1], Participation(1))
        people.bind("me", range(9))
        people.admit_visits(["a"], range(1))
        {end}
    """)
    path = tmp_path / "people.db"
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    if not end:
        assert [each.name for each in tmp_path.iterdir()] == ["people.db"]
    with People.open(path) as people:
        assert (people.accountant, people.clock) == ("me", 1)
        assert admitted(people, "a", "b") == [False, True]
    assert [each.name for each in tmp_path.iterdir()] == ["people.db"]


def test_in_place_of_a_lost_registry_nobody_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with People.replace_lost(path, POOLED, id=LOST, clock=7) as people:
        assert (people.id, people.serving_only) == (LOST, True)
        assert (people.clock, people.accountant) == (7, None)
        with pytest.raises(ValueError, match="begins at slot 7"):
            people.bind("me", range(5))
        people.bind("me", range(20))
        people.divide([0, 10])
        people.check_not_older(6)
        assert people.clock == 7
        admission = people.admit_visits(["a", "b", None, "a"], range(7, 11))
        assert admission.learned.tolist() == [False] * 4
        assert admission.persons.tolist() == [-1] * 4
        with pytest.raises(TypeError, match="int beside str"):
            people.admit_visits([4], range(11, 12))
    with People.open(path) as people:
        assert (people.id, people.serving_only, people.clock) == (LOST, True, 11)
        assert admitted(people, "a", "c") == [False, False]
    for how, why in (
        ({"id": ""}, "id"),
        ({"id": "lost"}, "32 digits"),
        ({"clock": -1}, "clock = -1"),
    ):
        with pytest.raises(ValueError, match=why):
            People.replace_lost(
                tmp_path / "no.db",
                POOLED,
                **{"id": LOST, "clock": 9, **how},  # type: ignore[arg-type]
            )
    assert not (tmp_path / "no.db").exists()


def test_ids_stand_in_no_exception_of_the_file(tmp_path: Path) -> None:
    people = begun(tmp_path / "people.db")
    connection = people._People__keeper._turns._store._file.connection  # type: ignore[attr-defined]
    connection.execute("DROP TABLE people")
    with pytest.raises(PeopleError) as caught:
        admitted(people, "maria@example.org")
    assert "maria" not in str(caught.value)
    assert caught.value.__suppress_context__
    people.close()
