"""One ledger file that is open for writing: which it is, and when what it holds is on disk."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from privlearn.errors import LedgerBusyError, LedgerError, TokenCopyError
from privlearn.ledger.addresses import is_address, shown
from privlearn.ledger.records import APPLICATION_ID
from privlearn.storage import open_file_lock, processes
from privlearn.storage.fork_gate import SQLITE
from privlearn.storage.new_names import sync_directory

TIMEOUT = 10
"""Seconds that another process may hold the file."""


def located(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a ledger file, which means the same wherever the process goes.

    Raises:
        LedgerError: SQLite, or the system, would take it for something else than a file's name.
    """
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"path = {path!r}: must be text or a path of text")
    if not name or "\0" in name:
        raise LedgerError(f"path = {name!r}: must name a file")
    if name == ":memory:":
        raise LedgerError(
            "path = ':memory:': would be lost with the process; Ledger.memory() makes such a "
            "ledger, and says so"
        )
    if is_address(name):
        raise LedgerError(
            f"path = {shown(name)!r}: is a database's address: Ledger.postgres(address) opens it"
        )
    if name.startswith("file:"):
        raise LedgerError(
            f"path = {name!r}: URIs are not taken, as they can name a database in memory; give "
            "the path of a file"
        )
    try:
        return Path(name).resolve()
    except (OSError, RuntimeError) as error:  # symbolic links in a circle
        raise LedgerError(f"path = {name!r}: {error}") from None


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes: in WAL mode, syncing unless `Disk` does."""
    with SQLITE:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=TIMEOUT
        )
    _begin_log(connection)
    with SQLITE:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # `Disk.settle` does it
        connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _begin_log(connection: sqlite3.Connection) -> None:
    """Waits for who begins or ends a log just now, where SQLite by itself does not."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            with SQLITE:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > until:
                connection.close()
                raise
        time.sleep(0.005)


SHORTEST_LOG, LONGEST_LOG = 64 * 2**10, 4 * 2**20
"""Bytes of log that are made ready at once; each time twice as many as before."""
LOG_OF_SMALL = 256 * 2**10
"""As many are made ready though the ledger has fewer."""
_SYNCS_DATA = hasattr(os, "fdatasync")
_SYNC_ERRORS = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)


@final
class Disk:
    """Brings what SQLite wrote to disk with one sync, where SQLite itself needs up to four.

    The log is synced when the entries in it must stand.  When it has outgrown what was made ready
    of it, it is copied to the main file, that is synced, and the log is cut to nothing: so at every
    moment both together are whole.  Then it is filled with zeros, which are no entries to SQLite:
    to overwrite them changes no size of a file, and this is what a sync else waits for longest.

    A log that is written from its beginning again without having been cut could, after a cut of the
    power, be a mixture of old and new (SQLite's ticket ff5be73dee): where it could not be cut, as
    somebody reads it, or there is no room to copy it, SQLite syncs each entry, until it is.

    Another process may have resumed the ledger, and write to the log without a sync, too: what it
    wrote is copied only behind a sync, but for what it writes while this one copies.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection: Any = connection
        self._path = path
        self._main_name, self._log_name = os.fspath(path), f"{path}-wal"
        self.pending = False
        self._failed = ""
        with SQLITE:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        self._logged = mode == "wal"
        self._cut, self._syncs_itself = False, True
        self._ready = 0
        """Bytes of the log that were filled with zeros."""
        # closing a file of its own would let go of SQLite's locks: kept until SQLite is done
        self._files = [os.open(path, os.O_RDWR)]
        if self._logged:
            with suppress(FileNotFoundError):  # SQLite writes elsewhere, see `check_header`
                self._files.append(os.open(self._log_name, os.O_RDWR))
            open_file_lock.hold(self._files[0])
        self._own = [(each.st_dev, each.st_ino) for each in map(os.fstat, self._files)]
        """Which files are open: main and log; no other has that while they are."""
        self._end = weakref.finalize(self, _close, connection, self._files, processes.here())
        self._end.atexit = False
        processes.INHERITED.add(self)
        if self._logged:
            sync_directory(path.parent)  # the log's name: it may hold an entry alone for a while

    def _leave_to_sqlite(self, whether: bool) -> None:
        if whether is not self._syncs_itself:
            self.connection.execute(f"PRAGMA synchronous = {'FULL' if whether else 'OFF'}")
            self._syncs_itself = whether

    def check_header(self) -> None:
        """Raises LedgerError unless what SQLite wrote stands in the file itself."""
        header = os.pread(self._files[0], 100, 0)
        # the fields of the header: https://www.sqlite.org/fileformat.html#the_database_header
        if header[68:72] != APPLICATION_ID.to_bytes(4, "big"):
            raise LedgerError(
                f"{self._path} is not the file that SQLite writes to: it holds {len(header)} bytes "
                "of a ledger; nothing can be recorded in it"
            )

    def check_place(self) -> None:
        """Raises LedgerError unless the file that is open stands at its path, and nowhere else.

        SQLite goes on writing to a file that was deleted or replaced, which nobody finds; and one
        with a second name would have a second log.
        """
        try:
            found = os.lstat(self._main_name)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._own[0]:
            what = "no file stands there" if found is None else "another file stands there"
            raise LedgerError(
                f"{self._path} was moved, deleted or replaced: {what}; nothing more can be "
                "recorded in it: put the file back, or restore the newest backup, and resume that"
            )
        if found.st_nlink != 1:
            raise LedgerError(
                f"{self._path} has {found.st_nlink} names (hard links): who opens it under another "
                "one would not see its log; remove the others, and copy it with `privlearn ledger "
                "backup`"
            )

    def check_log(self) -> None:
        """Raises LedgerBusyError if another process ended the log and may have begun a new one.

        It can do so where `privlearn.storage.open_file_lock` knows no lock that keeps it from that.
        """
        if not self._logged:
            return
        try:
            found = os.lstat(self._log_name)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or [(found.st_dev, found.st_ino)] != self._own[1:]:
            raise LedgerBusyError(
                f"{self._path} was closed by another process, or its log {self._log_name} was "
                "deleted or replaced; resume it to go on"
            )
        if found.st_nlink != 1:
            raise LedgerError(
                f"{self._log_name} has {found.st_nlink} names (hard links): remove the others, and "
                "copy the ledger with `privlearn ledger backup`"
            )

    def last(self) -> tuple[int, str] | None:
        """Position and hash of the last entry in the file, whoever wrote it; None for none."""
        found = self.connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1")
        last: tuple[int, str] | None = found.fetchone()
        return last

    def settle(self, written: tuple[int, str] | None) -> None:
        """Returns when everything that was committed is on disk.

        If ``written`` is not the last entry, somebody else writes, perhaps now: then SQLite syncs
        the log by itself, between reading its end and copying it.

        Raises:
            LedgerError: a sync failed.  What the system then still holds of the file is not known
                to be on disk, whatever a second sync says: this process writes nothing more to it.
        """
        if self._logged:
            main, log = self._files
            copy = self.must_copy
            if copy and self.last() != written:
                self._leave_to_sqlite(True)
            self._sync(log)
            if copy:
                self._cut = self._copied(main) and self._made_ready(log)
                self._leave_to_sqlite(not self._cut)
        self.pending = False

    @property
    def must_copy(self) -> bool:
        """Whether the log has outgrown what was made ready, so that `settle` copies it."""
        return self._logged and (not self._cut or os.fstat(self._files[1]).st_size > self._ready)

    def sync_log(self) -> None:
        """Brings to disk what was committed before; a thread may do it while another one writes.

        Raises:
            LedgerError: as `settle`.
        """
        if self._logged:
            self._sync(self._files[1])

    def _made_ready(self, log: int) -> bool:
        """Fills the log, which was cut, with zeros, unless somebody else has begun to write."""
        # as large as the ledger itself at most: who is short of room has to be able to end it
        most = max(LOG_OF_SMALL, os.fstat(self._files[0]).st_size)
        size = min(2 * self._ready or SHORTEST_LOG, LONGEST_LOG, most)
        try:
            self.connection.execute("BEGIN IMMEDIATE")  # who else writes, does so before or after
        except sqlite3.Error:
            return False
        try:
            if os.fstat(log).st_size:
                return False
            with suppress(OSError):  # without room it grows as it is written
                os.pwrite(log, bytes(size), 0)
            self._ready = os.fstat(log).st_size
        finally:
            self.connection.execute("ROLLBACK")
        return True

    def _copied(self, main: int) -> bool:
        """Copies the log, which is on disk, to the main file; whether it could then be cut."""
        execute = self.connection.execute
        try:
            execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            self.note(error)
            self.check_sound()
            return False  # no room, say: it stands in the log, from where it is copied next time
        self._sync(main)
        # what a reader, who is gone now, kept from being copied is synced by SQLite
        self._leave_to_sqlite(True)
        execute("PRAGMA busy_timeout = 0")
        try:
            found = execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            self.note(error)
            self.check_sound()
            return False
        finally:
            execute(f"PRAGMA busy_timeout = {TIMEOUT * 1000}")
        return bool(found == (0, 0, 0))

    def _sync(self, file: int) -> None:
        self.check_sound()
        try:
            os.fdatasync(file) if _SYNCS_DATA else os.fsync(file)
        except OSError as error:
            self._failed = error.strerror or str(error)
            self.check_sound()

    def note(self, error: BaseException) -> None:
        """Writes nothing more once SQLite could not sync."""
        if getattr(error, "sqlite_errorcode", None) in _SYNC_ERRORS:
            self._failed = str(error)

    def check_sound(self) -> None:
        if self._failed:
            raise LedgerError(
                f"{self._path} could not be brought to disk: {self._failed}; nothing more is "
                "recorded by this process: look after the disk, end the process and resume"
            )

    def close(self) -> None:
        """Leaves one self-contained file, without -wal and -shm beside it."""
        if self._failed:
            # SQLite would remove the log, which may be the only whole copy
            self._end.detach()
            processes.never_end(self.connection)
            return
        open_file_lock.let_go(self._files[0])
        with SQLITE:
            self._leave_to_sqlite(True)
            # while somebody else reads, the last entries stay in the log
            with suppress(sqlite3.OperationalError):
                self.connection.execute("PRAGMA journal_mode = DELETE")
        self._end()

    def in_child(self) -> None:
        """Keeps the connection, which is not a forked child's to close, and lets nobody use it.

        A child can be forked half-way in an entry, by a signal's handler, and go on with it.
        """
        processes.never_end(self.connection)
        self.connection = processes.Gone(TokenCopyError, "a ledger")


def _close(connection: sqlite3.Connection, files: list[int], made_in: tuple[int, int]) -> None:
    if processes.here() == made_in:
        with SQLITE:
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA synchronous = FULL")
            open_file_lock.let_go(files[0])
            connection.close()
        for file in files:
            os.close(file)
