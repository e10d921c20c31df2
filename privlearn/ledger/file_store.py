"""A ledger in one SQLite file with one writer: what is written, and when it is certain to stand."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from privlearn.errors import LedgerBusyError, LedgerError
from privlearn.ledger.chain import GENESIS, Record
from privlearn.ledger.disk import Disk, connect
from privlearn.ledger.large_values import LARGEST_IN_DATABASE, read_large, write_large
from privlearn.ledger.stores import Value
from privlearn.ledger.tail import (
    Tail,
    Waiting,
    needs_no_sync,
    values_in_tail,
    waiting_behind,
)
from privlearn.storage import processes
from privlearn.storage.fork_gate import SQLITE

Last = tuple[int, str] | None
"""Position and hash of the last entry; None for none."""


@final
class FileStore:
    """One ledger file that is open for writing.

    Raises:
        LedgerError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made_in = processes.here()
        self.doubtful = False
        """Whether the entry of the last `write` may stand, also if that raised."""
        self._committed = False
        """Whether the entry that is on its way was committed, to disk or not yet."""
        self._tail = Tail(path)
        self._before_tail: Last = None
        """The last entry in the database, while others wait in the tail."""
        self._has_written = False
        """Whether what another process left in the tail is in the database, or was none."""
        try:
            self.disk = Disk(connect(path), path)
        except (OSError, sqlite3.Error) as error:
            raise unwritable(path, error) from None

    def write(
        self, record: Record, value: Value | None, last: Last, *, later: bool = False
    ) -> None:
        """Appends behind ``last``; on disk at once, unless it is said to be ``later``, or may wait.

        What needs no sync waits in the `Tail` for the next entry that does.

        Raises:
            LedgerBusyError: somebody else has written.
            LedgerError: nothing was recorded, unless `doubtful`.
        """
        disk = self.disk
        self._committed = self.doubtful = False
        row = Waiting(record.seq, record.data, record.hash, *(value or ("", b"")))
        waits = needs_no_sync(record.body)
        if waits and not later and self._waits(row, last):
            return
        with self._sql():  # the connection is asked for each time: a forked child has none
            disk.check_sound()
            disk.check_place()
            self._insert([row], last)
            if not (later or waits):
                disk.settle((record.seq, record.hash))
                disk.check_place()
        self._committed = False

    def _waits(self, row: Waiting, last: Last) -> bool:
        """Whether it was written to the tail; where it cannot be, the database takes it."""
        if not (self._has_written and self._tail.has_room(row.size)):
            return False
        if len(row.value) > LARGEST_IN_DATABASE:  # a file of its own, before its entry
            return False
        if self._made_in != processes.here():
            return False  # which says that a forked child has no database
        self.disk.check_sound()
        self.disk.check_place()
        if not (self._tail.made or self._begin_tail(last)):
            return False
        if not self._tail.records:
            self._before_tail = last
        self.doubtful = self.disk.pending = True
        try:
            stands = self._tail.add(row)
        except OSError:
            stands = None
        if not stands:
            self.doubtful = False
        if stands is False:
            raise self._written_by_another()
        return stands is not None

    def _begin_tail(self, last: Last) -> bool:
        """Makes the tail with the database locked, so that who takes it over finds it; whether."""
        with self._sql():
            self.disk.connection.execute("BEGIN IMMEDIATE")
            self.disk.check_log()
            self._check_last(last)
            with suppress(OSError):
                self._tail.make()
            self.disk.connection.execute("ROLLBACK")
        return self._tail.made

    def _insert(self, rows: Sequence[Waiting], last: Last) -> None:
        disk = self.disk
        disk.connection.execute("BEGIN IMMEDIATE")
        disk.check_log()
        waiting = self._check_last(last)
        foreign = not self._has_written and self._tail.take_over()
        if foreign:
            waiting = self._check_last(last)  # what came before the end that now stands there
        rows = [*waiting, *rows]
        for row in rows:
            if len(row.value) > LARGEST_IN_DATABASE:  # no sooner: who lost it lets nothing out
                write_large(self.path, row.digest, row.value)
        disk.connection.executemany(
            "INSERT INTO entries VALUES (?, ?, ?)",
            ((row.seq, row.data.decode(), row.hash) for row in rows),
        )
        values = [
            (row.digest, row.value)
            for row in rows
            if row.digest and len(row.value) <= LARGEST_IN_DATABASE
        ]
        if values:
            disk.connection.executemany("INSERT OR IGNORE INTO released VALUES (?, ?)", values)
        self.doubtful = True  # where something else than SQLite ends it
        disk.pending = True
        disk.connection.execute("COMMIT")
        self._committed = True
        disk.check_log()
        self._tail.records.clear()
        if foreign or self._tail.worth_emptying:
            self._empty_tail((rows[-1].seq, rows[-1].hash) if rows else last)
        # without a row nobody can tell by the database that it was taken over
        self._has_written = self._has_written or bool(rows)

    def _empty_tail(self, last: Last) -> None:
        """Begins the tail anew, unless somebody else writes, who may be ending it just now."""
        try:
            self.disk.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return  # what stands there is known to be in the database
        try:
            if self.disk.last() == last:
                self._tail.empty()
        finally:
            self.disk.connection.execute("ROLLBACK")

    def check_own(self, last: Last) -> None:
        """Raises what `write` would, if the file is not there or somebody else wrote to it."""
        with self._sql():
            self.disk.check_place()
            self.disk.check_log()
            self._check_last(last)

    def settle(self, last: Last) -> bool:
        """Brings to disk what may wait; whether the last entry is our own."""
        with self._sql():
            self.disk.check_log()
            if self._tail.records:
                self._insert((), last)
            self.disk.settle(last)
            return self.disk.last() == last

    def settle_later(self, synced: int, last: Last) -> bool:
        """What is left to do behind `Disk.sync_log`; whether all that stands is on disk.

        ``synced`` is how many entries stood when it began.
        """
        with self._sql():
            self.disk.check_log()
            copy = self.disk.must_copy
            all_of_it = copy or (0 if last is None else last[0] + 1) == synced
            if copy:
                self.disk.settle(last)
            self.disk.pending = not all_of_it
            self.disk.check_place()
        return all_of_it

    def lines(self, begin: int, last: Last, most_bytes: int) -> list[bytes]:
        """Lines of an export from a position up to ``last``, at least one if there is one."""
        found: list[bytes] = []
        stop = 0 if last is None else last[0] + 1
        with self._sql():
            if self._tail.records or (not self._has_written and self._tail.exists()):
                self._insert((), last)
            rows = self.disk.connection.execute(
                "SELECT entry, hash FROM entries WHERE seq >= ? AND seq < ? ORDER BY seq",
                (begin, stop),
            )
            for entry, hash in rows:
                found.append(b'{"entry":' + entry.encode() + b',"hash":"' + hash.encode() + b'"}')
                most_bytes -= len(found[-1])
                if most_bytes <= 0:
                    break
            rows.close()
        return found

    def value(self, digest: str) -> bytes | None:
        with self._sql():
            row = self.disk.connection.execute(
                "SELECT value FROM released WHERE digest = ?", (digest,)
            )
            found = row.fetchone()
            if found is not None:
                return bytes(found[0])
            for name, value in values_in_tail(self.path):
                if name == digest:
                    return value
        return read_large(self.path, digest)

    def _check_last(self, last: Last) -> list[Waiting]:
        """What waits in the tail, if the database and it end with ``last``."""
        found = self.disk.last()
        if self._tail.records:
            if found == self._before_tail:
                return self._tail.records.copy()
        elif self._has_written:
            if found == last:
                return []
        else:  # the writer before may have gone on since the ledger was read
            rows = list(waiting_behind(self.path, *(found or (-1, GENESIS))))
            if ((rows[-1].seq, rows[-1].hash) if rows else found) == last:
                return rows
        raise self._written_by_another()

    def _written_by_another(self) -> LedgerBusyError:
        return LedgerBusyError(f"{self.path} was written to by another process; resume it to go on")

    @contextmanager
    def _sql(self) -> Iterator[None]:
        try:
            SQLITE.__enter__()
            yield
        except BaseException as error:
            if self._made_in != processes.here():
                raise  # the transaction is the parent's
            self.disk.note(error)
            if self.disk.connection.in_transaction:
                with suppress(sqlite3.Error):
                    self.disk.connection.execute("ROLLBACK")
                self.doubtful = False
            if isinstance(error, sqlite3.Error):
                self.disk.check_sound()  # what was not synced may stand nevertheless: doubtful
                if self._committed:
                    raise LedgerError(
                        f"{self.path} could not be brought to disk: {error}; the last entry may "
                        "stand: open it again"
                    ) from error
                self.doubtful = False
            if isinstance(error, sqlite3.Error | OSError):
                raise unwritable(self.path, error) from error
            raise
        finally:
            SQLITE.__exit__()

    def close(self) -> None:
        if self._tail.made and not self._tail.records:
            with suppress(sqlite3.Error), SQLITE:  # locked, as another process may make its own
                self.disk.connection.execute("BEGIN IMMEDIATE")
                self._tail.remove()
                self.disk.connection.execute("ROLLBACK")
        self.disk.close()


def unwritable(path: Path, error: sqlite3.Error | OSError) -> LedgerError:
    """What to do about a ledger that could not be written; nothing of the entry stands there."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or isinstance(
        error, BlockingIOError
    ):
        return LedgerBusyError(
            f"{path} could not be written: {error}: another process holds it; end what it does "
            "there, and try again: this entry was not recorded, and those before it stand"
        )
    todo = {
        sqlite3.SQLITE_FULL: "make room and try again",
        sqlite3.SQLITE_READONLY: "the file or its directory is read-only: make both writable",
        sqlite3.SQLITE_CANTOPEN: "its directory must be there, and writable",
        sqlite3.SQLITE_IOERR: "look after the disk and its limits, and try again",
    }.get(primary or 0, "")
    if isinstance(error, OSError):
        todo = {
            errno.ENOSPC: "make room and try again",
            errno.EDQUOT: "make room and try again",
            errno.EROFS: "the file system is read-only: make it writable",
            errno.EACCES: "make the file and its directory writable",
        }.get(error.errno or 0, "")
    return LedgerError(
        f"{path} could not be written: {error}{'; ' if todo else ''}{todo}: this entry was not "
        "recorded, and those before it stand"
    )
