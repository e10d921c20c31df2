"""The encrypted store of rows: what is acknowledged is there again, and nothing else is taken."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from numpy.typing import NDArray

from privlearn.errors import ProvenanceError, RowLocalityError, RowStoreError, UsersError
from privlearn.people import People
from privlearn.rows import Rows, RowStore
from privlearn.rows.cipher import Cipher
from privlearn.rows.packing import Parts, packed, unpacked
from privlearn.values.participation import Participation

KEY = bytes(range(32))


class Pair(NamedTuple):
    """Of somebody's own learner."""

    left: NDArray[Any]
    right: NDArray[Any]


def begun(path: Path, *, accountant: str = "me", **how: Any) -> RowStore:
    store = RowStore.create(path, KEY)
    store.bind(accountant, (Pair,), **how)
    return store


def again(path: Path, registry: Any = None, **how: Any) -> RowStore:
    store = RowStore.open(path, KEY, **how)
    store.bind("me", (Pair,), registry)
    return store


def null(users: range) -> Rows[Any]:
    return Rows.null(users)


def some(users: range, value: float = 1.0) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 2), value), users=users)


def kept(path: Path, count: int = 3) -> None:
    with begun(path) as store:
        for i in range(count):
            store.keep(some(range(2 * i, 2 * i + 2), float(i)))


def values(store: RowStore, stop: int) -> list[float | None]:
    """The first number of each row; None of null rows."""
    chunks = Rows._unseal(store.fill(null(range(stop))))
    return [
        float(chunk.block[i, 0]) if chunk.block is not None and chunk.valid[i] else None
        for chunk in chunks
        for i in range(len(chunk.valid))
    ]


def same(one: Parts, other: Parts) -> None:
    assert one._replace(chunks=(), stamp=None, at=None) == other._replace(
        chunks=(), stamp=None, at=None
    )
    for (block, valid), (block_again, valid_again) in zip(one.chunks, other.chunks, strict=True):
        np.testing.assert_array_equal(valid, valid_again)
        assert type(block) is type(block_again)
        np.testing.assert_equal(block, block_again)


def spoilt(path: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(*statement)
    connection.close()


# What comes back ---------------------------------------------------------------------------------


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    block = Pair(np.arange(12.0).reshape(3, 4), np.array(["a", "bcd", ""]))
    mixed = (np.array([1, 2, 3], dtype="<i2"), (np.array([True, False, True]), np.zeros((3, 0))))
    blocks: list[Any] = [block, mixed, np.array([np.nan, -0.0, np.inf]), block]
    made: list[Rows[Any]] = [
        Rows.seal(each, users=range(3 * i, 3 * i + 3)) for i, each in enumerate(blocks)
    ]
    made[2] = made[2].map(lambda x: np.zeros(2) if x == 0 else 1 / np.float64(0 * x))
    made.append(Rows.null(range(12, 20)))
    with begun(tmp_path / "rows.db") as store:
        for rows in made:
            store.keep(rows)
    with again(tmp_path / "rows.db") as store:
        assert store.clock == 20
        for rows in made:
            found = store.fill(null(rows.users))
            same(Rows._parts_of(found), Rows._parts_of(rows))
        joined = store.fill(null(range(1, 25)))
        assert joined.users == range(1, 25)
        assert len(joined.functions) == 1


def test_between_the_rows_that_are_kept_there_are_null_ones(tmp_path: Path) -> None:
    with begun(tmp_path / "rows.db") as store:
        store.keep(some(range(2, 4), 2.0))
        store.keep(some(range(6, 7), 6.0))
        assert values(store, 8) == [None, None, 2.0, 2.0, None, None, 6.0, None]
        assert store.within(range(3, 20)) == [range(3, 4), range(6, 7)]
        with pytest.raises(UsersError, match="rows up to user 6 were kept"):
            store.keep(some(range(6, 8)))


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_come_late_and_in_any_order_stand_in_order_of_users(
    tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    order = [int(i) for i in rng.permutation(30) if i % 4]
    wanted = [float(i) if i % 4 else None for i in range(30)]
    with begun(tmp_path / "rows.db") as store:
        store.pass_to(30)
        for i in order[:15]:
            store.keep_late([some(range(i, i + 1), float(i))])
        store.keep_late([some(range(i, i + 1), float(i)) for i in order[15:]])
        store.keep(some(range(30, 32), 30.0))  # and others when it is their turn
        assert values(store, 30) == wanted
    with again(tmp_path / "rows.db") as store:
        assert store.clock == 32
        assert values(store, 32) == [*wanted, 30.0, 30.0]
        assert store.within(range(3, 10)) == [range(3, 4), range(5, 8), range(9, 10)]
        with pytest.raises(UsersError, match="rows of them were kept"):
            store.keep_late([some(range(5, 6))])
        store.keep_late([some(range(8, 9), 8.0)], needed=8)
        assert values(store, 10)[8:] == [8.0, 9.0]
    with again(tmp_path / "rows.db") as store:
        left = values(store, 32)
        assert left[8:10] + left[30:] == [8.0, 9.0, 30.0, 30.0]
        store.drop(32)
        assert values(store, 32) == [None] * 32


def test_rows_of_functions_that_failed_their_check_stay_closed(tmp_path: Path) -> None:
    seen: list[Any] = []

    def remembers(row: Any) -> Any:
        seen.append(row)
        return np.full(1, float(len(seen)))

    with begun(tmp_path / "rows.db") as store:
        store.keep(some(range(4)).map(remembers))
    with again(tmp_path / "rows.db") as store:
        rows = store.fill(null(range(4)))
        assert "remembers" in str(rows.functions)
        with pytest.raises(RowLocalityError, match="remembers"):
            Rows._unseal(rows)


def test_served_rows_go_with_served_ones_only(tmp_path: Path) -> None:
    board = object()
    with begun(tmp_path / "rows.db") as store:
        store.keep(Rows._served_by(some(range(2)), board))
        store.keep(some(range(2, 4)))
        assert store.fill(Rows._served_by(null(range(2)), board)).source.value == "served"
        with pytest.raises(ProvenanceError, match="different billboards or sources"):
            store.fill(Rows._served_by(null(range(4)), board))


def test_what_cannot_be_written_as_numbers_is_null_and_says_nothing(tmp_path: Path) -> None:
    with begun(tmp_path / "rows.db") as store:
        store.keep(Rows.seal(np.array([object(), None]), users=range(2)))
        assert values(store, 2) == [None, None]

        class Other(NamedTuple):
            x: Any

        with pytest.raises(TypeError, match="Other: a store must be told"):
            store.keep(Rows.seal(Other(np.zeros(1)), users=range(2, 3)))


@pytest.mark.parametrize(
    "form",
    [
        [["|O", [1]]],
        [["<f8", [1_000]]],
        [{"class": "People", "fields": [["<f8", [1]]]}],
    ],
)
def test_bytes_make_nothing_but_arrays_and_the_named_classes(form: list[Any]) -> None:
    plain = packed(Parts(range(1), ((np.zeros(1), np.ones(1, bool)),), False, (), None, None, None))
    assert unpacked([plain], range(1)).users == range(1)
    line, _, rest = plain.partition(b"\n")
    head = json.loads(line)
    head["chunks"][0]["block"] = form[0]
    with pytest.raises(ValueError, match=r"type object|ends too early|People"):
        unpacked([json.dumps(head).encode() + b"\n" + rest], range(1), (Pair,))


# What is on disk ---------------------------------------------------------------------------------


def test_nothing_of_a_row_can_be_read_in_the_file_or_its_log(tmp_path: Path) -> None:
    secret = np.array([1234.56789, 9876.54321])
    rows = Rows.seal(Pair(secret[None], np.array(["Ada Lovelace"])), users=range(1))
    looked_for = [secret.tobytes(), secret[:1].tobytes(), "Ada".encode("utf-32-le"), b"Pair"]
    plain = packed(Rows._parts_of(rows), (Pair,))
    assert all(each in plain for each in looked_for)
    with begun(tmp_path / "rows.db") as store:
        store.keep(rows)
        open_files = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    closed = (tmp_path / "rows.db").read_bytes()
    assert len(open_files) > len(closed) > 8_000
    for held in (open_files, closed):
        assert not any(each in held for each in (*looked_for, KEY))


def test_the_same_row_is_never_the_same_bytes(tmp_path: Path) -> None:
    with begun(tmp_path / "rows.db") as store:
        for i in range(20):
            store.keep(some(range(i, i + 1)))
    connection = sqlite3.connect(tmp_path / "rows.db")
    records = [record for (record,) in connection.execute("SELECT record FROM kept")]
    connection.close()
    assert len({record[:12] for record in records}) == len({record[12:60] for record in records})
    assert len({record[12:60] for record in records}) == 20


def test_rows_that_are_not_needed_leave_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    kept(path)
    connection = sqlite3.connect(path)
    records = [record for (record,) in connection.execute("SELECT record FROM kept")]
    connection.close()
    with again(path) as store:
        store.keep(some(range(6, 7), 6.0), needed=3)
        assert store.within(range(9)) == [range(2, 7)]
        store.drop(4)
        assert store.within(range(9)) == [range(4, 7)]
    held = path.read_bytes()
    assert [record in held for record in records] == [False, False, True]
    with again(path) as store:
        assert values(store, 7) == [None] * 4 + [2.0, 2.0, 6.0]
        store.drop(7)
    with again(path) as store:
        assert store.within(range(9)) == []
        assert store.clock == 7
        store.keep(some(range(7, 8), 7.0))
    with again(path) as store:
        assert values(store, 8)[7] == 7.0


def test_a_block_of_rows_is_one_synced_change(tmp_path: Path) -> None:
    with begun(tmp_path / "rows.db") as store:
        connection = store._RowStore__file.connection  # type: ignore[attr-defined]
        synced = [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode")
        ]
        assert synced == [2, "wal"]  # FULL: the log is synced when a change is committed
        told: list[str] = []
        connection.set_trace_callback(told.append)
        store.keep(some(range(100)), needed=0)
        store.keep(some(range(100, 101)), needed=100)
        assert [each for each in told if each in ("BEGIN IMMEDIATE", "COMMIT")] == [
            "BEGIN IMMEDIATE",
            "COMMIT",
        ] * 2


# Crashes -----------------------------------------------------------------------------------------


def test_a_log_that_was_torn_anywhere_costs_the_last_rows_at_most(tmp_path: Path) -> None:
    path, torn = tmp_path / "rows.db", tmp_path / "torn"
    store = begun(path)
    store.keep(some(range(0, 2), 0.0))
    store.keep(some(range(2, 4), 1.0))
    before = os.path.getsize(f"{path}-wal")
    store.keep(some(range(4, 6), 2.0))
    log = Path(f"{path}-wal").read_bytes()
    assert len(log) - before > 8_000
    cuts = {before, before + 1, len(log) - 1, len(log), *range(before, len(log), 509)}
    for cut in sorted(cuts):
        torn.mkdir()
        shutil.copy(path, torn / "rows.db")
        (torn / "rows.db-wal").write_bytes(log[:cut])
        with again(torn / "rows.db", moved=True) as found:
            whole = cut == len(log)
            assert values(found, 6)[:4] == [0.0, 0.0, 1.0, 1.0]
            assert values(found, 6)[4:] == ([2.0, 2.0] if whole else [None, None]), cut
            assert found.clock == (6 if whole else 4)
            found.keep(some(range(found.clock, 7), 3.0))
        shutil.rmtree(torn)
    store.close()


def test_a_file_without_its_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    store = begun(path)
    store.keep(some(range(2)))
    shutil.copy(path, tmp_path / "copy.db")
    with pytest.raises(RowStoreError, match=r"was not closed, and its log, .*-wal, is missing"):
        RowStore.open(tmp_path / "copy.db", KEY, moved=True)
    store.close()


def test_a_full_disk_keeps_what_was_acknowledged_and_nothing_of_the_rest(tmp_path: Path) -> None:
    script = """
        import resource, sys
        import numpy as np
        from privlearn.errors import RowStoreError
        from privlearn.rows import Rows, RowStore

        path, limit = sys.argv[1], int(sys.argv[2])
        store = RowStore.create(path, bytes(range(32)))
        store.bind("me", ())
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for i in range(1000):
            try:
                store.keep(Rows.seal(np.full((1, 200), float(i)), users=range(i, i + 1)))
            except RowStoreError as error:
                print(error)
                break
            print(i, flush=True)
        try:
            store.keep(Rows.seal(np.zeros((1, 200)), users=range(2000, 2001)))
        except RowStoreError as error:
            print(error)
        sys.stdout.flush()
        import os
        os._exit(0)
    """
    path = tmp_path / "rows.db"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path), "100000"],
        capture_output=True,
        text=True,
        check=True,
    )
    *acknowledged, refused, closed = done.stdout.splitlines()
    assert "rows.db cannot be written" in refused
    assert "open it again" in closed
    assert len(acknowledged) > 3
    with again(path) as store:
        assert store.clock == len(acknowledged)
        assert values(store, store.clock) == [float(i) for i in range(store.clock)]


def test_an_interrupted_change_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.db"
    kept(path)
    store = again(path)
    monkeypatch.setattr("privlearn.rows.store._Mark.to_bytes", lambda mark: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.keep(some(range(6, 8)))
    with pytest.raises(RowStoreError, match="open it again"):
        store.keep(some(range(6, 8)))
    store.close()
    monkeypatch.undo()
    with again(path) as store:
        assert store.clock == 6


def test_a_file_that_could_not_be_made_whole_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.db"
    monkeypatch.setattr("privlearn.rows.store._Mark.to_bytes", lambda mark: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RowStore.create(path, KEY)
    monkeypatch.undo()
    RowStore.create(path, KEY).close()


# Whose it is -------------------------------------------------------------------------------------


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    kept(path)
    assert len(RowStore.new_key()) == 32
    assert RowStore.new_key() != RowStore.new_key()
    with pytest.raises(
        RowStoreError, match=r"key: .*rows.db was made with another one, .* null"
    ) as told:
        RowStore.open(path, RowStore.new_key())
    assert KEY.hex() not in str(told.value)
    for bad, message in ((b"short", "key of 5 bytes: must have 32"), ("x" * 32, "not a str")):
        for make in (RowStore.create, RowStore.open):
            with pytest.raises((ValueError, TypeError), match=message):
                make(tmp_path / "new.db" if make == RowStore.create else path, bad)  # type: ignore[arg-type]
    assert not (tmp_path / "new.db").exists()


def test_a_library_without_the_cipher_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(key: bytes) -> None:
        raise UnsupportedAlgorithm("AES-GCM-SIV is not supported")

    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.AESGCMSIV", missing)
    with pytest.raises(RowStoreError, match=r"needs AES-GCM-SIV, which OpenSSL has from 3\.2 on"):
        RowStore.create(tmp_path / "rows.db", KEY)


def _swap(path: Path) -> None:
    spoilt(
        path,
        ("UPDATE kept SET number = 7 WHERE number = 1", ()),
        ("UPDATE kept SET number = 1 WHERE number = 0", ()),
        ("UPDATE kept SET number = 0 WHERE number = 7", ()),
    )


def _of_another(path: Path) -> None:
    other = path.with_name("other.db")
    kept(other)
    connection = sqlite3.connect(other)
    ((record,),) = connection.execute("SELECT record FROM kept WHERE number = 1").fetchall()
    connection.close()
    spoilt(path, ("UPDATE kept SET record = ? WHERE number = 1", (record,)))


def _of_another_branch(path: Path) -> None:
    """A record with the right number, of a copy that went on by itself."""
    before = path.with_name("before.db")
    with begun(before) as store:
        store.keep(some(range(2)))
    records = []
    for name in ("rows.db", "branch.db"):
        shutil.copy(before, path.with_name(name))
        with again(path.with_name(name), moved=True) as store:
            store.keep(some(range(2, 4)))
            store.keep(some(range(4, 6)))
        connection = sqlite3.connect(path.with_name(name))
        records.append(connection.execute("SELECT record FROM kept ORDER BY number").fetchall())
        connection.close()
    assert records[0][0] == records[1][0]
    spoilt(path, ("UPDATE kept SET record = ? WHERE number = 2", records[1][2]))


def _flip(column: str, table: str) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        connection = sqlite3.connect(path)
        ((record,),) = connection.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchall()
        connection.close()
        bad = bytes([*record[:-1], record[-1] ^ 1])
        spoilt(path, (f"UPDATE {table} SET {column} = ?", (bad,)))

    return flip


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_flip("record", "kept"), "a record was changed"),
        (_flip("mark", "store"), "a record was changed"),
        (_swap, "a record was changed, was moved"),
        (_of_another, "is of another store"),
        (_of_another_branch, "is of another store"),
        (lambda path: spoilt(path, ("DELETE FROM kept WHERE number = 0", ())), "0 is missing"),
        (lambda path: spoilt(path, ("DELETE FROM kept WHERE number = 1", ())), "1 is missing"),
        (lambda path: spoilt(path, ("DELETE FROM kept WHERE number = 2", ())), "2 is missing"),
        (lambda path: spoilt(path, ("UPDATE kept SET record = 'x'", ())), "too short"),
        (lambda path: spoilt(path, ("UPDATE store SET id = 'x'", ())), "made with another"),
        (lambda path: spoilt(path, ("DELETE FROM store", ())), "damaged"),
        (lambda path: spoilt(path, ("DROP TABLE kept", ())), "cannot be read"),
    ],
)
def test_what_was_changed_cut_moved_or_brought_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "rows.db"
    if spoil is not _of_another_branch:
        kept(path)
    spoil(path)
    with pytest.raises(RowStoreError, match=message):
        RowStore.open(path, KEY, moved=True)


def test_records_are_of_one_accountant_even_for_who_has_the_key(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    kept(path)
    connection = sqlite3.connect(path)
    ((id, mark),) = connection.execute("SELECT id, mark FROM store").fetchall()
    connection.close()
    cipher, about = Cipher(KEY, id), f"privlearn rows {id} mark".encode()
    for given, taken in ((b'"me"', True), (b'"you"', False)):
        told = cipher.decrypt(mark, about).replace(b'"me"', given)
        spoilt(path, ("UPDATE store SET mark = ?", (cipher.encrypt(told, about),)))
        if taken:
            RowStore.open(path, KEY).close()
        else:
            with pytest.raises(RowStoreError, match="or accountant"):
                RowStore.open(path, KEY)


def test_one_accountant_has_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with begun(path) as store, pytest.raises(RowStoreError, match="belongs to accountant 'me'"):
        store.bind("you", ())
    with (
        RowStore.create(tmp_path / "new.db", KEY) as store,
        pytest.raises(RowStoreError, match="no accountant yet"),
    ):
        store.keep(some(range(2)))


def test_one_process_has_it_at_one_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    kept(path)
    with again(path), pytest.raises(RowStoreError, match=r"rows.db is open already"):
        RowStore.open(path, KEY)
    shutil.copy(path, tmp_path / "copy.db")
    with pytest.raises(RowStoreError, match=r"copy.db was made at another place.*moved=True"):
        RowStore.open(tmp_path / "copy.db", KEY)
    with pytest.raises(RowStoreError, match="exists: a store of rows is never overwritten"):
        RowStore.create(path, KEY)
    with pytest.raises(RowStoreError, match="cannot be created"):
        RowStore.create(tmp_path / "missing" / "rows.db", KEY)
    with pytest.raises(RowStoreError, match=r"does not exist: RowStore\.create begins one"):
        RowStore.open(tmp_path / "none.db", KEY)
    People.create(tmp_path / "people.db", Participation(1)).close()
    with pytest.raises(RowStoreError, match=r"people.db is no store of rows"):
        RowStore.open(tmp_path / "people.db", KEY)
    store = again(path)
    os.rename(path, tmp_path / "gone.db")
    with pytest.raises(RowStoreError, match="deleted or replaced while"):
        store.keep(some(range(6, 8)))
    store.close()


def test_a_forked_child_has_no_key(tmp_path: Path) -> None:
    store = begun(tmp_path / "rows.db")
    key = store._RowStore__cipher._key  # type: ignore[attr-defined]
    assert any(key)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = "used"
        try:
            store.keep(some(range(2)))
        except RowStoreError as error:
            said = str(error)
        store.close()
        os.write(writing, f"{any(key)} {said}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 1_000).decode()
    os.close(reading)
    os.close(writing)
    assert said.startswith("False a store of rows cannot be used in a forked process")
    store.keep(some(range(2)))
    store.close()
    assert not any(key)
    with pytest.raises(RowStoreError, match="closed"):
        store.keep(some(range(2, 4)))
    with again(tmp_path / "rows.db") as store:
        assert store.clock == 2


# People ------------------------------------------------------------------------------------------


class Registry:
    """Numbers of persons who asked to be forgotten."""

    def __init__(self, *gone: int) -> None:
        self.id, self.gone = "registry", gone
        self.rule, self.clock, self.serving_only = Participation(1), 100, False

    def batches(self, users: range) -> list[range]:
        return [users]

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(persons, self.gone)


class Found:
    """Everybody is learned."""

    def __init__(self, persons: list[int], call: int) -> None:
        self.persons = np.array(persons)
        self.learned = self.counted = np.ones(len(persons), dtype=bool)
        self.call = call


def visits(users: range, persons: list[int], value: float, call: int) -> Rows[Any]:
    return Rows._admitted(some(users, value), Registry(), Found(persons, call))


def records(path: Path) -> list[bytes]:
    connection = sqlite3.connect(path)
    found = [record for (record,) in connection.execute("SELECT record FROM kept ORDER BY number")]
    connection.close()
    return found


def test_what_a_forgotten_person_sent_leaves_the_store(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with begun(path, registry=Registry()) as store:
        store.keep(visits(range(0, 2), [0, 1], 0.0, 1))
        store.keep(visits(range(2, 4), [2, 1], 1.0, 2))
        store.keep(visits(range(4, 6), [3, 2], 2.0, 3))
    before = records(path)
    with again(path, Registry(2)) as store:
        assert values(store, 6) == [0.0, 0.0, None, 1.0, 2.0, None]
    after = records(path)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False]
    held = path.read_bytes()
    assert not any(record in held for record in before[1:])
    with again(path, Registry()) as store:  # what it held is gone, and not only out of sight
        assert values(store, 6) == [0.0, 0.0, None, 1.0, 2.0, None]
    with again(path, Registry(2)) as store:
        store.keep(visits(range(6, 7), [2], 3.0, 1))
        assert values(store, 7)[6] is None
    assert records(path)[:3] == after  # nothing was left to do


def test_stamps_come_back_with_their_registry_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    registry = Registry()
    with begun(path, registry=registry) as store:
        store.keep(visits(range(0, 2), [0, 1], 0.0, 7))
    with again(path, registry) as store:
        stamp = Rows._stamp_of(store.fill(null(range(2))))
        assert stamp is not None
        assert stamp.registry is registry
        assert stamp.persons is not None
        assert stamp.persons.tolist() == [0, 1]
        assert stamp.calls < (1, 1)  # before all calls of this process
    with again(path, None) as store:
        assert values(store, 2) == [None, None]
    other = Registry()
    other.id = "other"
    with again(path, other) as store, pytest.raises(RowStoreError, match="another registry"):
        store.fill(null(range(2)))


def test_a_slot_that_goes_on_has_all_its_visits(tmp_path: Path) -> None:
    registry = Registry()

    def at_five(value: float, call: int) -> Rows[Any]:
        rows = Rows.seal(np.full((2, 2), value), users=range(5, 6), slots=[5, 5])
        return Rows._admitted(rows, registry, Found([0, 1], call))

    path = tmp_path / "rows.db"
    with begun(path, registry=registry, timed=True) as store:
        store.keep(at_five(1.0, 3))
        store.keep(at_five(2.0, 4))
        store.keep(Rows.null(range(5, 8)))
    with RowStore.open(path, KEY) as store:
        store.bind("me", (), registry, timed=True)
        found = store.fill(null(range(4, 9)))
        assert found.users == range(4, 9)
        assert sum(int(chunk.valid.sum()) for chunk in Rows._unseal(found)) == 4
        present = store.fill(null(range(5, 6)))
        whole = Rows.concat([present, at_five(3.0, 1)])  # by a later process
        assert sum(int(chunk.valid.sum()) for chunk in Rows._unseal(whole)) == 6
