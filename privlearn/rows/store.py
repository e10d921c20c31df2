"""An encrypted store of sealed rows that a learner will need after a restart.

Rows are written as they arrive, and are on disk when `RowStore.keep` returns.  Each record is
encrypted and authenticated (`privlearn.rows.cipher`).

What is authenticated with a record: the store, the accountant, its number, and the record before
it.  So records can be cut out, moved, or brought from another store or from another branch of this
one by nobody without the key.  A mark, written with each change, says which records there are.  All
of this cannot tell an older state of the whole file from the present one; the ledger can, where it
knows of rows that were taken later.

The file tells how many records it holds, and how large they are.  It is private.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar, final

import numpy as np

from privlearn.errors import RowStoreError, UsersError
from privlearn.rows.cipher import KEY_BYTES, TAG_BYTES, Cipher, check_key
from privlearn.rows.packing import Parts, joins, packed, unpacked
from privlearn.rows.sealed import Rows, Sealed
from privlearn.rows.stamps import Registry
from privlearn.storage import processes
from privlearn.storage.exclusive import Exclusive
from privlearn.storage.fork_gate import SQLITE
from privlearn.storage.held_file import HeldFile, Kind
from privlearn.values.validate import count, text

T = TypeVar("T")

APPLICATION_ID = 0x70704C52
FORMAT = 1
_KIND = Kind(
    name="a store of rows",
    error=RowStoreError,
    application_id=APPLICATION_ID,
    format=FORMAT,
    tables="""
CREATE TABLE store (
    id TEXT NOT NULL, known BLOB NOT NULL, mark BLOB NOT NULL,
    place TEXT NOT NULL, logged INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE kept (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
""",
    table="store",
    never="a store of rows is never overwritten; open it, or choose another path",
    missing="RowStore.create begins one; without the rows that were kept a learner goes on with "
    "null records in their place",
    unlogged="rows that were kept are not in it. Bring the log, or begin another store",
    copied="two of them would each go on with rows of their own. If it was moved and is the only "
    "one, and the newest, open it with moved=True",
    one="one store of rows is used by one learner in one process",
    stops="no more rows are kept",
)


class _Mark(NamedTuple):
    """Which records there are; written with each change, and authenticated."""

    accountant: str | None = None
    clock: int = 0  # One past the last user of whom a record was ever kept
    first: int = 0
    before: bytes = bytes(TAG_BYTES)  # Of the record before the first
    next: int = 0
    last: bytes = bytes(TAG_BYTES)

    def to_bytes(self) -> bytes:
        told = {**self._asdict(), "before": self.before.hex(), "last": self.last.hex()}
        return json.dumps(told).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> _Mark:
        told = json.loads(data)
        return cls(
            **{**told, "before": bytes.fromhex(told["before"]), "last": bytes.fromhex(told["last"])}
        )


class _Kept(NamedTuple):
    """What is remembered of a record."""

    number: int
    users: range
    before: bytes


@final
class RowStore(Sealed):
    """Sealed rows in one encrypted file, for one accountant's learner; `create` or `open` make one.

    One process uses it at a time.  In a forked child its key is wiped, and it cannot be used.
    """

    __slots__ = (
        "__cipher",
        "__file",
        "__id",
        "__index",
        "__kinds",
        "__lock",
        "__mark",
        "__older",
        "__order",
        "__registry",
        "__timed",
        "__usable",
    )

    def __init__(self, file: HeldFile, id: str, cipher: Cipher, *, older: bool) -> None:
        self.__file, self.__id, self.__cipher = file, id, cipher
        self.__mark, self.__index = _Mark(), list[_Kept]()
        self.__order: list[_Kept] = []  # by users, who may have answered in another order
        self.__kinds: tuple[type[Any], ...] = ()
        self.__registry: Registry | None = None
        self.__timed, self.__older, self.__usable = False, older, True
        self.__lock = Exclusive(
            "a store of rows", RowStoreError, "its key was wiped, and its file is the parent's"
        )

    @staticmethod
    def new_key() -> bytes:
        """A key of 32 random bytes; keep it where neither the store nor its backups are."""
        return secrets.token_bytes(KEY_BYTES)

    @classmethod
    def create(cls, path: str | os.PathLike[str], key: bytes) -> RowStore:
        """A store in a new file, which only its owner may read.

        Args:
            key: 32 secret bytes, such as `new_key` makes.

        Raises:
            RowStoreError: something stands there, or it cannot be written.
            TypeError, ValueError: the key is not 32 bytes.
        """
        id = secrets.token_hex(16)
        cipher = Cipher(key, id)
        with HeldFile.create(path, _KIND) as file:
            store = cls(file, id, cipher, older=False)
            mark = cipher.encrypt(_Mark().to_bytes(), store.__about_mark())
            file.connection.execute(
                "INSERT INTO store (id, known, mark, place) VALUES (?, ?, ?, ?)",
                (id, cipher.known, mark, file.identity),
            )
        return store

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], key: bytes, *, moved: bool = False, older: bool = False
    ) -> RowStore:
        """A store that was created before.

        Args:
            key: the same as then.
            moved: it was moved or restored, and is the only one and the newest; it is taken where
                it stands now.
            older: it may lack rows that its ledger knows of, as a backup does; they are null.

        Raises:
            RowStoreError: missing, no store, damaged, of another format, of another key, a copy, or
                open already.
            TypeError, ValueError: the key is not 32 bytes.
        """
        check_key(key)
        with HeldFile.open(path, _KIND, moved=moved) as file:
            return cls.__opened(file, key, older=older)

    @classmethod
    def __opened(cls, file: HeldFile, key: bytes, *, older: bool) -> RowStore:
        try:
            file.check_pages()
            heads = file.connection.execute("SELECT id, known, mark FROM store").fetchall()
            (id, known, mark), *more = heads
            if more or not isinstance(id, str):
                raise ValueError("it has no head")
            cipher = Cipher(key, id)
            if cipher.known != known:
                raise RowStoreError(
                    f"key: {file.path} was made with another one, without which its rows cannot be "
                    "read; a learner that goes on without this store has null records instead"
                )
            store = cls(file, id, cipher, older=older)
            store.__mark = _Mark.from_bytes(cipher.decrypt(mark, store.__about_mark()))
            store.__index = list(store.__verified())
            store.__order = sorted(store.__index, key=_first_user)
        except sqlite3.OperationalError as error:
            raise file.raised(error, "read") from None
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise RowStoreError(f"{file.path} is a damaged store of rows: {error}") from None
        return store

    def __verified(self) -> Iterator[_Kept]:
        """All records; raises ValueError unless they are those that the mark names."""
        number, before = self.__mark.first, self.__mark.before
        with SQLITE:
            rows = self.__file.connection.execute("SELECT number, record FROM kept ORDER BY number")
        for found, record in SQLITE.each(rows):
            if found != number:
                raise ValueError(f"record {number} is missing")
            yield _Kept(
                number, _users(self.__cipher.decrypt(record, self.__about(number, before))), before
            )
            number, before = number + 1, record[-TAG_BYTES:]
        if (number, before) != (self.__mark.next, self.__mark.last):
            raise ValueError(f"record {number} is missing")

    @property
    def id(self) -> str:
        """A public name, drawn at random when it was made."""
        return self.__id

    @property
    def accountant(self) -> str | None:
        """The public id of the accountant that it belongs to; None before `bind`."""
        return self.__mark.accountant

    @property
    def clock(self) -> int:
        """One past the last user whose row was ever kept, held still or not."""
        return self.__mark.clock

    @property
    def older(self) -> bool:
        """Whether it was opened as one that may be older than its ledger."""
        return self.__older

    def within(self, users: range) -> list[range]:
        """Of which of these users there are records, ascending."""
        found = [
            range(max(users.start, kept.users.start), min(users.stop, kept.users.stop))
            for kept in self.__kept_of(users)
        ]
        return joined(found)

    def __repr__(self) -> str:
        return f"RowStore(id={self.id!r}, accountant={self.accountant!r}, sealed)"

    def check_accountant(self, accountant: str) -> None:
        """Raises RowStoreError if it belongs to another accountant than that of this public id."""
        had = self.__mark.accountant
        if had not in (None, text(accountant=accountant)):
            raise RowStoreError(
                f"this store of rows belongs to accountant {had!r}, not to {accountant!r}: begin "
                "one for each"
            )

    def bind(
        self,
        accountant: str,
        kinds: Collection[type[Any]],
        registry: Registry | None = None,
        *,
        timed: bool = False,
    ) -> None:
        """Gives it to one accountant, for good; the same one may come again after a restart.

        Args:
            kinds: the classes of named tuples that rows are made of.
            registry: whose stamp rows carry; without it the rows that one admitted are null.
            timed: whether a slot may hold several rows.

        Raises:
            RowStoreError: it belongs to another accountant, or cannot be written.
        """
        self.check_accountant(accountant)
        with self.__lock:
            self.__check_usable()
            self.__kinds, self.__registry, self.__timed = tuple(kinds), registry, timed
            if self.__mark.accountant is None:
                self.__change(self.__mark._replace(accountant=accountant))
            self.__let_go()

    def keep(self, rows: Rows[Any], *, needed: int = 0) -> None:
        """Writes rows of the next users, and returns when they are on disk.

        Args:
            rows: as they arrived.
            needed: the records of users below it are deleted.

        Raises:
            UsersError: of some of these users, rows were kept before.
            RowStoreError: it cannot be written.
            TypeError: rows made of another class than those named in `bind`.
        """
        users = rows.users
        with self.__lock:
            self.__check_usable()
            mark = self.__mark
            if mark.accountant is None:
                raise RowStoreError("this store of rows belongs to no accountant yet")
            if users.start < mark.clock - self.__timed:
                raise UsersError(f"users {users!r}: rows up to user {mark.clock - 1} were kept")
            data = _framed(users, packed(Rows._parts_of(rows), self.__kinds))
            self.__append([(users, data)], needed)

    def keep_late(self, rows: Sequence[Rows[Any]], *, needed: int = 0) -> None:
        """Writes rows of users who were passed (`pass_to`) before they answered, in any order.

        Args:
            rows: of some users, each of whose rows were kept at no other time.
            needed: as in `keep`.

        Raises:
            UsersError: of some of these users, rows were kept before.
            RowStoreError, TypeError: as in `keep`.
        """
        with self.__lock:
            self.__check_usable()
            for each in rows:
                if self.within(each.users):
                    raise UsersError(f"users {each.users!r}: rows of them were kept")
            self.__append(
                [
                    (r.users, _framed(r.users, packed(Rows._parts_of(r), self.__kinds)))
                    for r in rows
                ],
                needed,
            )

    def __append(self, records: Sequence[tuple[range, bytes]], needed: int) -> None:
        first, before = self.__first_needed(needed)
        new, written = self.__mark._replace(first=first, before=before), []
        added: list[_Kept] = []
        for users, data in records:
            kept = _Kept(new.next, users, new.last)
            record = self.__cipher.encrypt(data, self.__about(kept.number, kept.before))
            clock = max(new.clock, users.stop)
            new = new._replace(clock=clock, next=kept.number + 1, last=record[-TAG_BYTES:])
            written.append((kept.number, record))
            added.append(kept)
        self.__change(new, written)
        self.__index += added
        for kept in added:
            insort(self.__order, kept, key=_first_user)

    def drop(self, before: int) -> None:
        """Deletes the records of users below ``before``.

        Raises:
            RowStoreError: it cannot be written.
        """
        with self.__lock:
            self.__check_usable()
            first, tag = self.__first_needed(count(before=before, at_least=0))
            if first > self.__mark.first:
                self.__change(self.__mark._replace(first=first, before=tag))

    def pass_to(self, clock: int) -> None:
        """Says that users below ``clock`` were taken in, with rows that are kept or without.

        Raises:
            RowStoreError: it cannot be written.
        """
        with self.__lock:
            self.__check_usable()
            if clock > self.__mark.clock:
                self.__change(self.__mark._replace(clock=clock))

    def fill(self, absent: Rows[T]) -> Rows[T]:
        """Null rows with those that are kept in their place.

        Raises:
            RowStoreError: the file was changed since it was opened.
        """
        with self.__lock:
            self.__check_usable()
            users, stop = absent.users, absent.users.start
            parts: list[Rows[T]] = []
            for rows in self.__within(users, Rows._board_of(absent)):
                if rows.users.start > stop:
                    parts.append(absent.slice(range(stop, rows.users.start)))
                parts.append(rows)
                stop = rows.users.stop
            if not parts:
                return absent
            if stop < users.stop:
                parts.append(absent.slice(range(stop, users.stop)))
            return Rows.concat(parts)

    def forget(self) -> None:
        """Deletes what is kept of persons whom the registry was asked to forget.

        Raises:
            RowStoreError: it cannot be written, or is read by another process, so that its log
                still holds them.
        """
        with self.__lock:
            self.__check_usable()
            self.__let_go()
            self.__file.clean()  # also what it could not take out before

    def close(self) -> None:
        """Lets go of the file and of the key; the store cannot be used any more.

        In a forked process the file is left alone, as it is the parent's.
        """
        if self.__lock.made_in != processes.here():
            return
        with self.__lock:
            self.__usable = False
            self.__cipher.wipe()
            self.__file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __check_usable(self) -> None:
        if not self.__usable:
            raise RowStoreError(
                "this store of rows was closed, or could not be written: open it again"
            )

    def __about(self, number: int, before: bytes) -> bytes:
        return f"privlearn rows {self.__id} {self.__mark.accountant} {number} ".encode() + before

    def __about_mark(self) -> bytes:
        return f"privlearn rows {self.__id} mark".encode()

    def __first_needed(self, needed: int) -> tuple[int, bytes]:
        """The first record that stays, and the tag before it."""
        stay = 0
        while stay < len(self.__index) and self.__index[stay].users.stop <= needed:
            stay += 1
        if stay < len(self.__index):
            return self.__index[stay].number, self.__index[stay].before
        return self.__mark.next, self.__mark.last

    def __change(self, mark: _Mark, written: Collection[tuple[int, bytes]] = ()) -> None:
        self.__usable = False  # until it is known what stands in the file
        sealed = self.__cipher.encrypt(mark.to_bytes(), self.__about_mark())
        with self.__file.transaction() as connection:
            connection.execute("UPDATE store SET mark = ?", (sealed,))
            if written:
                connection.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", written)
            if mark.first > self.__mark.first:
                connection.execute("DELETE FROM kept WHERE number < ?", (mark.first,))
        if mark.first > self.__mark.first:
            del self.__index[: mark.first - self.__mark.first]
            self.__order = [kept for kept in self.__order if kept.number >= mark.first]
        self.__mark = mark
        self.__usable = True

    def __read(self, some: Sequence[_Kept]) -> Iterator[tuple[_Kept, bytes]]:
        for at in range(0, len(some), _TOGETHER):
            group = some[at : at + _TOGETHER]
            numbers = [kept.number for kept in group]
            wanted = set(numbers)
            with SQLITE:
                rows = self.__file.connection.execute(
                    "SELECT number, record FROM kept WHERE number BETWEEN ? AND ?",
                    (min(numbers), max(numbers)),
                )
            found = {number: data for number, data in SQLITE.each(rows) if number in wanted}
            for kept in group:
                about = self.__about(kept.number, kept.before)
                yield kept, self.__cipher.decrypt(found.pop(kept.number), about)[_FRAME:]

    def __kept_of(self, users: range) -> list[_Kept]:
        order = self.__order
        first = bisect_left(order, users.start + 1, key=lambda kept: kept.users.stop)
        stop = bisect_left(order, users.stop, lo=first, key=_first_user)
        return order[first:stop]

    def __within(self, users: range, board: object | None) -> Iterator[Rows[Any]]:
        some = self.__kept_of(users)
        if not some:
            return
        try:
            for run in _runs(self.__read(some)):
                rows = self.__rows(run, board)
                low, high = max(users.start, rows.users.start), min(users.stop, rows.users.stop)
                yield (
                    rows
                    if (low, high) == (rows.users.start, rows.users.stop)
                    else rows.slice(range(low, high))
                )
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise RowStoreError(f"{self.__file.path} cannot be read: {error}") from None

    def __rows(self, run: Sequence[tuple[_Kept, bytes]], board: object | None) -> Rows[Any]:
        users = range(run[0][0].users.start, run[-1][0].users.stop)
        parts = unpacked([data for _, data in run], users, self.__kinds)
        registry, stamp = self.__registry, parts.stamp
        if registry is not None and stamp and stamp.registry not in (None, registry.id):
            raise ValueError("its rows were admitted by another registry of people")
        call = run[-1][0].number - self.__mark.next  # below those of this process, in order
        return Rows._of_parts(parts, board if parts.served else None, registry, call)

    def __let_go(self) -> None:
        """Writes all records again from the first in which somebody was forgotten."""
        if self.__registry is None or not self.__index:
            return
        written: list[tuple[int, bytes]] = []
        changed: list[_Kept] = []
        last = b""
        for kept, data in self.__read(tuple(self.__index)):
            if _holds_any(unpacked([data], kept.users, self.__kinds), self.__registry):
                rows = self.__rows([(kept, data)], object())
                data = packed(Rows._parts_of(rows), self.__kinds)
            elif not written:
                continue
            own = kept._replace(before=last) if written else kept
            framed = _framed(own.users, data)
            record = self.__cipher.encrypt(framed, self.__about(own.number, own.before))
            written.append((own.number, record))
            changed.append(own)
            last = record[-TAG_BYTES:]
        if written:
            self.__change(self.__mark._replace(last=last), written)
            self.__index[len(self.__index) - len(changed) :] = changed
            self.__order = sorted(self.__index, key=_first_user)
            self.__file.clean()


def _first_user(kept: _Kept) -> int:
    return kept.users.start


_FRAME = 16  # Bytes of a record that say whose it is


def _framed(users: range, data: bytes) -> bytes:
    return users.start.to_bytes(8, "big") + users.stop.to_bytes(8, "big") + data


def _users(data: bytes) -> range:
    return range(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:16], "big"))


_TOGETHER = 4_096  # Records that are read as one block, at most: bounds memory


def _runs(records: Iterable[tuple[_Kept, bytes]]) -> Iterator[Sequence[tuple[_Kept, bytes]]]:
    run: list[tuple[_Kept, bytes]] = []
    head = b""
    for kept, data in records:
        follows = run and kept.users.start == run[-1][0].users.stop and len(run) < _TOGETHER
        if not (follows and head and data.startswith(head)):
            if run:
                yield run
            run, head = [], data[: data.index(b"\n") + 1]
            if not joins(head[:-1]):
                head = b""
        run.append((kept, data))
    if run:
        yield run


def joined(parts: Iterable[range]) -> list[range]:
    """Ascending ranges, with those together that touch."""
    found: list[range] = []
    for part in parts:
        if found and part.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(part.stop, found[-1].stop))
        else:
            found.append(part)
    return found


def _holds_any(parts: Parts, registry: Registry) -> bool:
    if parts.stamp is None or parts.stamp.persons is None or not parts.chunks:
        return False
    real = np.concatenate([valid for _, valid in parts.chunks])
    return bool((registry.forgotten(parts.stamp.persons) & real).any())
