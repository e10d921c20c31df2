"""A ledger in one SQLite file with one writer: what is written, and when it is certain to stand."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from privlearn import _processes
from privlearn._sqlite_gate import SQLITE
from privlearn.errors import LedgerBusyError, LedgerError
from privlearn.ledger.chain import Record
from privlearn.ledger.disk import Disk, connect
from privlearn.ledger.large_values import LARGEST_IN_DATABASE, read_large, write_large
from privlearn.ledger.stores import Value

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
        self._made_in = _processes.here()
        self.doubtful = False
        """Whether the entry of the last `write` may stand, also if that raised."""
        self._committed = False
        """Whether the entry that is on its way was committed, to disk or not yet."""
        try:
            self.disk = Disk(connect(path), path)
        except (OSError, sqlite3.Error) as error:
            raise unwritable(path, error) from None

    def write(
        self, record: Record, value: Value | None, last: Last, *, later: bool = False
    ) -> None:
        """Appends behind ``last``; on disk at once, unless it is said to be ``later``, or may wait.

        Raises:
            LedgerBusyError: somebody else has written.
            LedgerError: nothing was recorded, unless `doubtful`.
        """
        disk = self.disk
        self._committed = self.doubtful = False
        with self._sql():  # the connection is asked for each time: a forked child has none
            disk.check_sound()
            disk.check_place()
            disk.connection.execute("BEGIN IMMEDIATE")
            disk.check_log()
            self._check_last(last)
            if value is not None and len(value[1]) > LARGEST_IN_DATABASE:
                write_large(self.path, *value)  # no sooner: who lost the ledger lets nothing out
                value = None
            disk.connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)",
                (record.seq, record.data.decode(), record.hash),
            )
            if value is not None:
                disk.connection.execute("INSERT OR IGNORE INTO released VALUES (?, ?)", value)
            self.doubtful = True  # where something else than SQLite ends it
            disk.pending = True
            disk.connection.execute("COMMIT")
            self._committed = True
            disk.check_log()
            if not (later or may_wait(record.body)):
                disk.settle((record.seq, record.hash))
                disk.check_place()
        self._committed = False

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

    def lines(self, begin: int, stop: int, most_bytes: int) -> list[bytes]:
        """Lines of an export between two positions, at least one if there is one."""
        found: list[bytes] = []
        with self._sql():
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
        """What was written with an entry under that digest; None where nothing was."""
        with self._sql():
            row = self.disk.connection.execute(
                "SELECT value FROM released WHERE digest = ?", (digest,)
            )
            found = row.fetchone()
        return read_large(self.path, digest) if found is None else bytes(found[0])

    def _check_last(self, last: Last) -> None:
        if self.disk.last() != last:
            raise LedgerBusyError(
                f"{self.path} was written to by another process; resume it to go on"
            )

    @contextmanager
    def _sql(self) -> Iterator[None]:
        try:
            SQLITE.__enter__()
            yield
        except BaseException as error:
            if self._made_in != _processes.here():
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
        """Leaves one self-contained file."""
        self.disk.close()


def may_wait(body: Mapping[str, Any]) -> bool:
    """Whether a cut of the power may take an entry away that was written last."""
    kind = body["entry"]
    return kind in ("issue", "publish", "sums") or (
        kind == "retire" and body["outcome"] != "uncovered"
    )


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
