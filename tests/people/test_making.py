"""Registries and stores of rows are made whole or not at all, and have one writer."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from privlearn.errors import PeopleError, PrivlearnError, RowStoreError
from privlearn.people import People
from privlearn.rows import RowStore
from privlearn.storage import held_file
from privlearn.storage.held_file import HeldFile
from privlearn.values.participation import Participation

RULE, KEY = Participation(2), bytes(range(32))
MAKES: dict[str, Callable[[Path], Any]] = {
    "people": lambda path: People.create(path, RULE),
    "rows": lambda path: RowStore.create(path, KEY),
}
OPENS: dict[str, Callable[[Path], Any]] = {
    "people": lambda path: People.open(path, RULE),
    "rows": lambda path: RowStore.open(path, KEY),
}
STOPS = [
    "before fsync",
    "before link",
    "behind link",
    "before sync_directory",
    "before _settle_in",
    "behind _settle_in",
]


@pytest.fixture(params=list(MAKES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("stop", STOPS)
def test_a_crash_while_one_is_made_leaves_all_of_it_or_nothing(
    stop: str, kind: str, tmp_path: Path
) -> None:
    path, (when, at) = tmp_path / "file.db", stop.split()
    child = os.fork()
    if not child:
        place: Any = HeldFile if at.startswith("_") else held_file if "_" in at else os
        done = getattr(place, at)

        def dies(*told: Any, **named: Any) -> Any:
            if when == "before":
                os._exit(9)
            done(*told, **named)
            os._exit(9)

        setattr(place, at, dies)
        try:
            MAKES[kind](path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    named = path.exists()
    assert named is (stop not in ("before fsync", "before link"))
    for each in tmp_path.iterdir():
        assert each.stat().st_mode & 0o077 == 0
    with (OPENS if named else MAKES)[kind](path):
        assert path.stat().st_nlink == 1
    if named:
        assert os.listdir(tmp_path) == [path.name]
    with OPENS[kind](path):
        pass


def test_it_is_on_disk_before_it_has_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "file.db", list[str]()
    sync, link = os.fsync, os.link

    def fsync(file: int) -> None:
        said.append(Path(os.readlink(f"/proc/self/fd/{file}")).name.partition(".new-")[0])
        sync(file)

    def linked(old: Path, new: Path) -> None:
        said.append("link")
        with closing(sqlite3.connect(f"file:{old}?mode=ro", uri=True)) as whole:
            assert whole.execute("PRAGMA quick_check").fetchone() == ("ok",)
        link(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", linked)
    with MAKES[kind](path):
        assert said == ["file.db", "link", tmp_path.name]
        assert sorted(os.listdir(tmp_path)) == ["file.db", "file.db-shm", "file.db-wal"]


def test_who_names_a_file_meanwhile_keeps_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sync = tmp_path / "file.db", os.fsync

    def fsync(file: int) -> None:
        sync(file)
        path.write_text("mine")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(PrivlearnError, match="exists"):
        MAKES[kind](path)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == [path.name]


def test_no_file_is_made_beside_the_log_of_another_or_under_its_name(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.db"
    for end in ("-wal", "-shm", "-journal"):
        with pytest.raises(PrivlearnError, match=f"ends in {end}"):
            MAKES[kind](Path(f"{path}{end}"))
    for end in ("-wal", "-journal"):
        Path(f"{path}{end}").write_bytes(b"log")
        with pytest.raises(PrivlearnError, match=f"{end} stands there"):
            MAKES[kind](path)
        assert Path(f"{path}{end}").read_bytes() == b"log"
        Path(f"{path}{end}").unlink()
    assert os.listdir(tmp_path) == []


def test_without_locks_the_first_of_two_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    first = RowStore.create(tmp_path / "rows.db", KEY)
    second = RowStore.open(tmp_path / "rows.db", KEY)
    with pytest.raises(RowStoreError, match="was written to by somebody else"):
        first.bind("first", ())
    first.close()
    second.bind("second", ())
    second.close()
    with RowStore.open(tmp_path / "rows.db", KEY) as store:
        assert store.accountant == "second"
    people = People.create(tmp_path / "people.db", RULE)
    with (
        People.open(tmp_path / "people.db", RULE),
        pytest.raises(PeopleError, match="was written to by somebody else"),
    ):
        people.bind("someone", range(9))


def test_a_child_that_is_forked_half_way_in_a_change_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore.create(tmp_path / "rows.db", KEY)
    check, children = HeldFile._check_alone, list[int]()

    def forks(file: HeldFile) -> None:
        check(file)
        if not children:
            children.append(os.fork())

    monkeypatch.setattr(HeldFile, "_check_alone", forks)
    try:
        store.bind("mine", ())
    except RowStoreError:
        if not children[0]:
            os._exit(7)
        raise
    finally:
        if children == [0]:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    store.pass_to(3)
    store.close()
    with RowStore.open(tmp_path / "rows.db", KEY) as again:
        assert (again.accountant, again.clock) == ("mine", 3)


@pytest.mark.parametrize("reads", [True, False])
def test_who_is_forgotten_while_somebody_reads_is_not_said_to_be_gone(
    reads: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.db"
    monkeypatch.setattr(held_file, "_READERS", 0.01)
    with MAKES[kind](path) as made:
        forget = made.forget if kind == "rows" else lambda: made.forget("maria")
        if kind == "rows":
            made.bind("mine", ())
        else:
            made.bind("mine", range(9))
            made.skip(range(3))
        reader = sqlite3.connect(path)
        if reads:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            with pytest.raises(PrivlearnError, match=r"is read by another process.*ask"):
                forget()
            assert Path(f"{path}-wal").stat().st_size
            reader.execute("ROLLBACK")
        forget()
        assert Path(f"{path}-wal").stat().st_size == 0
        reader.close()
