"""A registry as one SQLite file, in which each change is on disk before it counts.

A second registry at work would give everybody the whole of the rule again, and so would a copy or
an older one: see `privlearn.storage.held_file`.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from typing import Any, Self, final

from privlearn.errors import PeopleError
from privlearn.people.contents import Contents, Head
from privlearn.people.identities import HASH_BYTES, KEY_BYTES, KINDS
from privlearn.people.quotas import FORGOTTEN, Standing
from privlearn.storage.held_file import HeldFile, Kind
from privlearn.values.participation import Participation

APPLICATION_ID = 0x70704C50
FORMAT = 1
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


KIND = Kind(
    name="a registry of people",
    error=PeopleError,
    application_id=APPLICATION_ID,
    format=FORMAT,
    tables=_TABLES,
    table="registry",
    never="a registry of people is never overwritten; open it, or choose another path",
    missing="a registry of people that is lost cannot be made anew with what people have left; "
    "People.create begins one, and People.replace_lost goes on without learning",
    unlogged="visits that were learned are not in it. Bring the log, or go on without learning "
    "(People.replace_lost)",
    copied="with two of them everybody would have the whole of the rule twice. If it was moved and "
    "is the only one, and the newest, open it with moved=True",
    one="one registry of people is used by one accountant in one process",
    stops="nothing more is learned",
)


@final
class RegistryFile:
    """The store of a durable registry; `create` and `open` make one."""

    def __init__(self, file: HeldFile) -> None:
        self._file = file

    @classmethod
    def create(cls, path: str | os.PathLike[str], head: Head) -> Self:
        """Makes a new file that holds the head alone.

        Raises:
            PeopleError: something stands there, or it cannot be written.
        """
        with HeldFile.create(path, KIND) as file:
            file.connection.execute(
                "INSERT INTO registry (id, key, rule, serving_only, place, clock)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    head.id,
                    head.key,
                    json.dumps(head.rule.to_dict(), sort_keys=True),
                    head.serving_only,
                    file.identity,
                    head.clock,
                ),
            )
        return cls(file)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, moved: bool) -> tuple[Self, Contents]:
        """Opens a file, and reads it; ``moved`` takes it for the only one, wherever it stands.

        Raises:
            PeopleError: missing, no registry, damaged, of another format, a copy, or open already.
        """
        with HeldFile.open(path, KIND, moved=moved) as file:
            store = cls(file)
            contents = store.read()
        return store, contents

    def read(self) -> Contents:
        file = self._file
        try:
            file.check_pages()
            return _contents(file.connection)
        except sqlite3.OperationalError as error:
            raise file.raised(error, "read") from None
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise PeopleError(f"{file.path} is a damaged registry of people: {error}") from None

    def write(
        self, head: Head, starts: tuple[int, ...] | None, changed: Mapping[bytes, Standing]
    ) -> None:
        users = head.users
        with self._file.transaction() as connection:
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
        self._file.clean()

    def close(self) -> None:
        self._file.close()


def _contents(connection: sqlite3.Connection) -> Contents:
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
