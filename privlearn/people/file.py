"""A registry as one SQLite file, in which each change is on disk before it counts.

SQLite writes a change to a log beside the file, and syncs that, before it is taken for done
(``synchronous = FULL`` with ``journal_mode = WAL``): neither a kill nor a cut of the power brings
an older standing back.  A file that is closed has no log, and is everything; one that was not says
so, and cannot be read without its log.
"""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self, final

from privlearn import _processes
from privlearn._sqlite_gate import SQLITE
from privlearn.errors import PeopleError
from privlearn.participation import Participation
from privlearn.people.contents import Contents, Head
from privlearn.people.identities import HASH_BYTES, KEY_BYTES, KINDS
from privlearn.people.place import Place, busy, located
from privlearn.people.quotas import FORGOTTEN, Standing

APPLICATION_ID = 0x70704C50
FORMAT = 1
_MAGIC = b"SQLite format 3\0"
_TABLES = """
CREATE TABLE registry (
    id TEXT NOT NULL, key BLOB NOT NULL, rule TEXT NOT NULL,
    serving_only INTEGER NOT NULL,
    place TEXT NOT NULL, logged INTEGER NOT NULL DEFAULT 0,
    accountant TEXT, first INTEGER, stop INTEGER, clock INTEGER, kind TEXT
);
CREATE TABLE batches (start INTEGER PRIMARY KEY);
CREATE TABLE people (
    number INTEGER PRIMARY KEY, hash BLOB NOT NULL,
    used INTEGER NOT NULL, last INTEGER NOT NULL, within INTEGER NOT NULL
);
"""
_KEEP = """
INSERT INTO people (number, hash, used, last, within) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (number) DO UPDATE SET used = excluded.used, last = excluded.last,
    within = excluded.within
"""


@final
class RegistryFile:
    """The store of a durable registry; `create` and `open` make one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        try:
            with SQLITE:
                self._connection = sqlite3.connect(
                    place.path, isolation_level=None, check_same_thread=False, timeout=0
                )
        except sqlite3.Error as error:
            place.leave()
            raise PeopleError(f"{place.path} cannot be opened: {error}") from None
        self._end = weakref.finalize(self, _close, self._connection, place, _processes.here())
        _processes.INHERITED.add(self)

    @classmethod
    def create(cls, path: str | os.PathLike[str], head: Head) -> Self:
        """Makes a new file that holds the head alone.

        Raises:
            PeopleError: something stands there, or it cannot be written.
        """
        store = cls(Place.made(located(path)))
        with SQLITE, store._ended_by_errors():
            store._configure()
            with store._transaction() as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                for statement in _TABLES.split(";")[:-1]:
                    connection.execute(statement)
                connection.execute(
                    "INSERT INTO registry (id, key, rule, serving_only, place, clock)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        head.id,
                        head.key,
                        json.dumps(head.rule.to_dict(), sort_keys=True),
                        head.serving_only,
                        store._place.identity,
                        head.clock,
                    ),
                )
            store._settle_in()
            _sync_folder(store._place)
        return store

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, moved: bool) -> tuple[Self, Contents]:
        """Opens a file, and reads it; ``moved`` takes it for the only one, wherever it stands.

        Raises:
            PeopleError: missing, no registry, damaged, of another format, a copy, or open already.
        """
        place = Place.found(located(path))
        try:
            _check_header(place)
        except PeopleError:
            place.leave()
            raise
        had_log = place.has_log()
        store = cls(place)
        with SQLITE, store._ended_by_errors():
            store._configure()
            contents = store.read()
            store._check_whole(had_log=had_log, moved=moved)
            store._settle_in()
        return store, contents

    def read(self) -> Contents:
        """Everything that was written.

        Raises:
            PeopleError: it is damaged, or not at its place.
        """
        self._place.check()
        path = self._place.path
        try:
            SQLITE.__enter__()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ValueError("its pages do not fit together")
            return _contents(self._connection)
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise busy(path) from None
            raise PeopleError(f"{path} cannot be read: {error}") from None
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise PeopleError(f"{path} is a damaged registry of people: {error}") from None
        finally:
            SQLITE.__exit__()

    def write(
        self, head: Head, starts: tuple[int, ...] | None, changed: Mapping[bytes, Standing]
    ) -> None:
        """Returns when all of it is on disk, in the file that the path names.

        Raises:
            PeopleError: it could not be written.
        """
        users = head.users
        with self._transaction() as connection:
            connection.execute(
                "UPDATE registry SET accountant = ?, first = ?, stop = ?, clock = ?, kind = ?",
                (
                    head.accountant,
                    None if users is None else users.start,
                    None if users is None else users.stop,
                    head.clock,
                    head.kind,
                ),
            )
            if starts is not None:
                connection.executemany(
                    "INSERT INTO batches VALUES (?)", ((start,) for start in starts)
                )
            connection.executemany(
                _KEEP,
                (
                    (each.number, hashed, each.used, each.last, each.within)
                    for hashed, each in changed.items()
                ),
            )

    def clean(self) -> None:
        """Takes what was overwritten out of the file and its log."""
        with SQLITE:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Lets go of the file, and leaves nothing beside it."""
        self._end()

    def inherited(self) -> None:
        """Keeps the connection, which is not a forked child's to close."""
        _processes.never_end(self._connection)

    def _configure(self) -> None:
        for setting in (
            "trusted_schema = OFF",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",  # macOS: to the disk, not to its cache
            "secure_delete = ON",
        ):
            self._connection.execute(f"PRAGMA {setting}").fetchall()

    def _check_whole(self, *, had_log: bool, moved: bool) -> None:
        """Raises PeopleError for a copy, and for a file whose log is missing."""
        stated, logged = self._connection.execute("SELECT place, logged FROM registry").fetchone()
        place = self._place
        if logged and not had_log:
            raise PeopleError(
                f"{place.path} was not closed, and its log, {place.log}, is missing: visits that "
                "were learned are not in it. Bring the log, or go on without learning "
                "(People.replace_lost)"
            )
        if stated != place.identity and not moved:
            raise PeopleError(
                f"{place.path} was made at another place, and is a copy: with two of them "
                "everybody would have the whole of the rule twice. If it was moved and is the "
                "only one, and the newest, open it with moved=True"
            )

    def _settle_in(self) -> None:
        """States in the file itself where it stands, and that it has a log."""
        with self._transaction() as connection:
            connection.execute("UPDATE registry SET logged = 1, place = ?", (self._place.identity,))
        self.clean()
        self._place.take_log()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One change: on disk when the block is left, or not at all."""
        self._place.check()
        connection = self._connection
        try:
            SQLITE.__enter__()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if _is_busy(error):
                raise busy(self._place.path) from None
            raise PeopleError(f"{self._place.path} cannot be written: {error}") from None
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            SQLITE.__exit__()
        self._place.check()

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Lets go of the file if the block fails."""
        try:
            yield
        except sqlite3.Error as error:
            self._end()
            if _is_busy(error):
                raise busy(self._place.path) from None
            raise PeopleError(f"{self._place.path} cannot be used: {error}") from None
        except BaseException:
            self._end()
            raise


def _close(connection: sqlite3.Connection, place: Place, made_in: tuple[int, int]) -> None:
    """Leaves one file that is everything, or, where that fails, a log that will be read again."""
    if _processes.here() != made_in:  # in a forked process it is not ours to close
        return
    with SQLITE:
        with suppress(sqlite3.Error, PeopleError):
            place.check()
            connection.execute("UPDATE registry SET logged = 0")
            place.leave_log()
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
    place.leave()


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def _sync_folder(place: Place) -> None:
    if os.name == "posix":
        folder = os.open(place.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _check_header(place: Place) -> None:
    """Raises PeopleError for another file: https://www.sqlite.org/fileformat.html, 1.3."""
    header = place.header(100)
    if header[:16] != _MAGIC or header[68:72] != APPLICATION_ID.to_bytes(4, "big"):
        raise PeopleError(f"{place.path} is no registry of people")
    found = int.from_bytes(header[60:64], "big")
    if found != FORMAT:
        raise PeopleError(
            f"{place.path} is a registry of people of format {found}: this version reads format "
            f"{FORMAT}"
        )


def _contents(connection: sqlite3.Connection) -> Contents:
    """Everything in the file.

    Raises:
        ValueError, TypeError, KeyError: something that no registry writes.
    """
    rows = connection.execute(
        "SELECT id, key, rule, serving_only, accountant, first, stop, clock, kind FROM registry"
    ).fetchall()
    if len(rows) != 1:
        raise ValueError("it has no head")
    id, key, rule, serving_only, accountant, first, stop, clock, kind = rows[0]
    _require(isinstance(key, bytes) and len(key) == KEY_BYTES, "its key")
    _require(isinstance(id, str) and bool(id), "its name")
    _require(serving_only in (0, 1), "whether it learns")
    _require(kind is None or kind in KINDS, "the kind of its ids")
    users = None if accountant is None else _users(first, stop, clock)
    _require(clock is None or _is_count(clock), "its next slot")
    kept = Participation.from_dict(json.loads(rule))
    head = Head(id, key, kept, bool(serving_only), accountant, users, clock, kind)
    starts = tuple(start for (start,) in connection.execute("SELECT start FROM batches"))
    if starts:
        inside = users is not None and starts[0] == users.start and starts[-1] in users
        _require(kept.batched and inside, "its batches")
    return Contents(head, starts or None, _standings(connection, head))


def _users(first: Any, stop: Any, clock: Any) -> range:
    slots = all(_is_count(each) for each in (first, stop, clock))
    _require(slots and first <= clock <= stop and first < stop, "its slots")
    return range(first, stop)


def _standings(connection: sqlite3.Connection, head: Head) -> dict[bytes, Standing]:
    kept: dict[bytes, Standing] = {}
    found: Any = connection.execute(
        "SELECT hash, number, used, last, within FROM people ORDER BY number"
    )
    most, clock = head.rule.most, head.clock or 0
    for hashed, *numbers in found:
        standing = Standing(*numbers)
        _require(isinstance(hashed, bytes) and len(hashed) == HASH_BYTES, "a hash")
        _require(hashed not in kept, "a hash that stands twice")
        _require(standing.number == len(kept), "the numbers of its people")
        _require(
            _is_count(standing.used, 1)
            and standing.used <= most
            and _is_count(standing.last, FORGOTTEN)
            and standing.last < clock
            and _is_count(standing.within),
            "a standing",
        )
        kept[hashed] = standing
    return kept


def _is_count(value: object, at_least: int = 0) -> bool:
    return isinstance(value, int) and value >= at_least


def _require(held: bool, what: str) -> None:
    if not held:
        raise ValueError(f"{what} cannot be right")
