"""A SQLite file that is at one place, is used by one process, and is older for nobody.

Each change is on disk before it counts: SQLite writes it to a log beside the file, and syncs that
(``synchronous = FULL`` with ``journal_mode = WAL``), so that neither a kill nor a cut of the power
brings an older standing back.  A file that is closed has no log, and is everything; one that was
not says so, and cannot be read without its log.

The file is locked as an open file (``flock``, where the system has it), and it states on which
device and as which inode it was made, so that a copy is not taken for it.  Before each change its
path and its log are looked at, and whether somebody else has written to it: that stops who came
first where there are no such locks.

A new file is written and synced under another name, and then linked to its own: a crash leaves a
whole one or none.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from privlearn.errors import PrivlearnError
from privlearn.storage import open_file_lock, processes
from privlearn.storage.addresses import is_address
from privlearn.storage.fork_gate import SQLITE
from privlearn.storage.new_names import BESIDE, new_name, sync_directory, unlink_leftover_names

try:
    import fcntl
except ImportError:  # SQLite's own lock has to do
    fcntl = None  # type: ignore[assignment]

_MODE = 0o600
_READERS = 2.0  # Seconds that somebody else may read the file for whom the log is to be cut
_LOG_PAGES = 4_000
"""Of 4 KB, after which the log is copied to the file: that takes two more syncs of the disk, so it
is done once in several hundred changes."""
_MAGIC = b"SQLite format 3\0"


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """What such files hold, and what is said when one cannot be used.

    Args:
        name: with its article, such as ``a registry of people``.
        error: what is raised.
        application_id: in the header of the file.
        format: the one that this version reads and writes.
        tables: SQL that makes them.
        table: which of them has the columns ``place`` and ``logged``, in its only row.
        never: what is not done with one that exists.
        missing: what to do where there is none.
        unlogged: what the log held, and what to do without it.
        copied: what would be wrong with a copy, and what to do with one that was moved.
        one: who uses it.
        stops: what a file that is gone while it is in use stops.
    """

    name: str
    error: type[PrivlearnError]
    application_id: int
    format: int
    tables: str
    table: str
    never: str
    missing: str
    unlogged: str
    copied: str
    one: str
    stops: str

    def busy(self, path: Path) -> PrivlearnError:
        """What is raised where somebody else has the file."""
        return self.error(f"{path} is open already, in this process or in another: {self.one}")


def located(path: str | os.PathLike[str], kind: Kind) -> Path:
    """The path without links.

    Raises:
        PrivlearnError: it names no file.
    """
    given = os.fspath(path)
    if not isinstance(given, str) or not given or "\0" in given:
        raise kind.error(f"path = {given!r}: must name a file")
    if is_address(given):
        raise kind.error(f"path: a database's address where that of {kind.name} is wanted: a file")
    return Path(os.path.realpath(given))


@final
class _Place:
    """Where a file is, open and locked; `made` and `found` make one."""

    __slots__ = ("_file", "_log", "alone", "kind", "log", "path")

    def __init__(self, path: Path, file: int, kind: Kind) -> None:
        self.path, self._file, self.kind = path, file, kind
        self.log = Path(f"{path}-wal")
        self._log: tuple[int, int] | None = None
        self.alone = True  # Whether nobody else was seen to write to it

    @classmethod
    def made(cls, path: Path, kind: Kind) -> Self:
        """Makes the file, which only its owner may read, under another name; see `name`."""
        _check_free(path, kind)
        new = new_name(path)
        try:
            file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE)
        except OSError as error:
            raise kind.error(f"{path} cannot be created: {error.strerror}") from None
        place = cls(new, file, kind)
        try:
            return place._locked()
        except PrivlearnError:
            place.leave()
            new.unlink()
            raise

    def name(self, path: Path) -> None:
        """Brings the file to disk, and then to its own name."""
        new, kind = self.path, self.kind
        try:
            os.fsync(self._file)
            os.link(new, path)
        except FileExistsError:
            raise kind.error(f"{path} exists: {kind.never}") from None
        except OSError as error:
            raise kind.error(f"{path} cannot be created: {error.strerror}") from None
        self.path, self.log = path, Path(f"{path}-wal")
        os.unlink(new)
        sync_directory(path.parent)

    @classmethod
    def found(cls, path: Path, kind: Kind) -> Self:
        try:
            file = os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            raise kind.error(f"{path} does not exist: {kind.missing}") from None
        except OSError as error:
            raise kind.error(f"{path} cannot be opened: {error.strerror}") from None
        place = cls(path, file, kind)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise kind.error(f"{path} is no {_bare(kind)}: it is no file")
            place._locked()._check_header()
            unlink_leftover_names(path)
        except PrivlearnError:
            place.leave()
            raise
        return place

    def _locked(self) -> Self:
        if fcntl is None:
            return self
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise self.kind.busy(self.path) from None
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise self.kind.error(f"{self.path} cannot be locked: {error.strerror}") from None
        return self

    def _check_header(self) -> None:
        """Raises for another file: https://www.sqlite.org/fileformat.html, 1.3."""
        kind = self.kind
        os.lseek(self._file, 0, os.SEEK_SET)
        header = os.read(self._file, 100)
        if header[:16] != _MAGIC or header[68:72] != kind.application_id.to_bytes(4, "big"):
            raise kind.error(f"{self.path} is no {_bare(kind)}")
        found = int.from_bytes(header[60:64], "big")
        if found != kind.format:
            raise kind.error(
                f"{self.path} is {kind.name} of format {found}: this version reads format "
                f"{kind.format}"
            )

    @property
    def identity(self) -> str:
        found = os.fstat(self._file)
        return f"{found.st_dev}:{found.st_ino}"

    def take_log(self) -> None:
        """From now on no closing removes the log that SQLite has begun, and `check` looks at it."""
        open_file_lock.hold(self._file)
        self._log = _which(self.log)

    def leave_log(self) -> None:
        open_file_lock.let_go(self._file)

    def check(self) -> None:
        """Raises unless the paths still name these very files."""
        changed = None
        if _which(self.path) != _which(self._file):
            changed = self.path
        elif self._log is not None and _which(self.log) != self._log:
            changed = self.log
        if changed is not None:
            raise self.kind.error(
                f"{changed} was deleted or replaced while it was in use: what is written to it "
                f"would be lost; {self.kind.stops}"
            )

    def leave(self) -> None:
        """Lets go of the lock, also for processes that were forked from this one."""
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
        self.leave_log()
        os.close(self._file)


@final
class HeldFile:
    """One file of some `Kind`; `create` and `open` make one.

    Attributes:
        path: of the file.
        connection: with it.
    """

    def __init__(self, place: _Place) -> None:
        self._place, self._kind, self.path = place, place.kind, place.path
        self._version: object = None
        """Another one once somebody else has written; None before it was looked at."""
        self._made_in = processes.here()
        self._connect()
        processes.INHERITED.add(self)

    def _connect(self) -> None:
        place = self._place
        try:
            with SQLITE:
                self.connection: Any = sqlite3.connect(
                    place.path, isolation_level=None, check_same_thread=False, timeout=0
                )
        except sqlite3.Error as error:
            place.leave()
            raise self._kind.error(f"{place.path} cannot be opened: {error}") from None
        self._end = weakref.finalize(self, _close, self.connection, place, self._made_in)

    @classmethod
    @contextmanager
    def create(cls, path: str | os.PathLike[str], kind: Kind) -> Iterator[Self]:
        """A new file; the block writes the first row of its table, with the columns of its own.

        Raises:
            PrivlearnError: something stands there, or it cannot be written.
        """
        where = located(path, kind)
        place = _Place.made(where, kind)
        new = place.path
        try:
            file = cls(place)
            with SQLITE, file._ended_by_errors():
                file.connection.execute("PRAGMA journal_mode = MEMORY").fetchall()
                with file.transaction() as connection:
                    connection.execute(f"PRAGMA application_id = {kind.application_id}")
                    connection.execute(f"PRAGMA user_version = {kind.format}")
                    for statement in kind.tables.split(";")[:-1]:
                        connection.execute(statement)
                    yield file
                file._end.detach()
                file.connection.close()
                try:
                    place.name(where)
                except BaseException:
                    place.leave()
                    raise
                file._begin_at(where)
        finally:
            with suppress(OSError):
                os.unlink(new)

    def _begin_at(self, path: Path) -> None:
        self.path, self._version = path, None
        self._connect()
        self._configure()
        self._settle_in()

    @classmethod
    @contextmanager
    def open(cls, path: str | os.PathLike[str], kind: Kind, *, moved: bool) -> Iterator[Self]:
        """Opens a file, which the block reads; it is let go of where the block fails.

        Args:
            moved: takes it for the only one, wherever it stands.

        Raises:
            PrivlearnError: missing, of another kind or format, a copy, without its log, or open
                already.
        """
        place = _Place.found(located(path, kind), kind)
        had_log = place.log.exists()
        file = cls(place)
        with SQLITE, file._ended_by_errors():
            file._configure()
            file._place.check()
            file._check_alone()
            yield file
            file._check_whole(had_log=had_log, moved=moved)
            file._settle_in()

    @property
    def identity(self) -> str:
        return self._place.identity

    def check_pages(self) -> None:
        """Raises PrivlearnError where it is not at its place, ValueError where it is damaged."""
        self._place.check()
        with SQLITE:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            (found,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise ValueError("its pages do not fit together")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One change: on disk when the block is left, or not at all."""
        self._place.check()
        connection = self.connection
        try:
            SQLITE.__enter__()
            connection.execute("BEGIN IMMEDIATE")
            self._check_alone()
            yield connection
            self.connection.execute("COMMIT")  # which a child has not, that was forked half-way
        except sqlite3.Error as error:
            raise self.raised(error, "written") from None
        finally:
            if self._made_in == processes.here() and connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            SQLITE.__exit__()
        self._place.check()

    def _check_alone(self) -> None:
        """Raises once another connection has written to the file since it was opened."""
        (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        if self._version not in (None, version):
            kind, self._place.alone = self._kind, False
            raise kind.error(
                f"{self.path} was written to by somebody else: {kind.one}; {kind.stops}"
            )
        self._version = version

    def raised(self, error: sqlite3.Error, what: str) -> PrivlearnError:
        """What is raised for an error of SQLite while the file was ``what``."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
        ):
            return self._kind.busy(self.path)
        return self._kind.error(f"{self.path} cannot be {what}: {error}")

    def clean(self) -> None:
        try:
            cut = self._cut_log(wait=_READERS)
        except sqlite3.Error as error:
            raise self.raised(error, "written") from None
        if not cut:
            raise self._kind.error(
                f"{self.path} is read by another process, so that its log, {self._place.log}, "
                "still holds what was overwritten: end that process, and ask for it again"
            )

    def _cut_log(self, wait: float) -> bool:
        """Copies the log to the file and cuts it, if within so many seconds nobody reads."""
        execute = self.connection.execute
        with SQLITE:
            execute(f"PRAGMA busy_timeout = {round(wait * 1000)}")
            try:
                (busy, *_) = execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                execute("PRAGMA busy_timeout = 0")
        return not busy

    def close(self) -> None:
        """Lets go of the file, and leaves nothing beside it."""
        self._end()

    def in_child(self) -> None:
        """Keeps the connection, which is not a forked child's to close, and lets nobody use it."""
        processes.never_end(self.connection)
        self.connection = processes.Gone(self._kind.error, self._kind.name)

    def _configure(self) -> None:
        for setting in (
            "trusted_schema = OFF",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",  # macOS: to the disk, not to its cache
            "secure_delete = ON",
            f"wal_autocheckpoint = {_LOG_PAGES}",
        ):
            self.connection.execute(f"PRAGMA {setting}").fetchall()

    def _check_whole(self, *, had_log: bool, moved: bool) -> None:
        """Raises for a copy, and for a file whose log is missing."""
        place, kind = self._place, self._kind
        stated, logged = self.connection.execute(
            f"SELECT place, logged FROM {kind.table}"
        ).fetchone()
        if logged and not had_log:
            raise kind.error(
                f"{place.path} was not closed, and its log, {place.log}, is missing: "
                f"{kind.unlogged}"
            )
        if stated != place.identity and not moved:
            raise kind.error(
                f"{place.path} was made at another place, and is a copy: {kind.copied}"
            )

    def _settle_in(self) -> None:
        """States in the file itself where it stands, and that it has a log."""
        with self.transaction() as connection:
            connection.execute(
                f"UPDATE {self._kind.table} SET logged = 1, place = ?", (self._place.identity,)
            )
        self._cut_log(wait=0)
        self._place.take_log()

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Lets go of the file if the block fails."""
        try:
            yield
        except sqlite3.Error as error:
            self._end()
            raise self.raised(error, "used") from None
        except BaseException:
            self._end()
            raise


def _close(connection: sqlite3.Connection, place: _Place, made_in: tuple[int, int]) -> None:
    """Leaves one file that is everything, or, where that fails, a log that will be read again."""
    if processes.here() != made_in:  # in a forked process it is not ours to close
        return
    with SQLITE:
        with suppress(sqlite3.Error, PrivlearnError):
            place.check()
            if place.alone:
                connection.execute(f"UPDATE {place.kind.table} SET logged = 0")
            place.leave_log()
            if place.alone:
                connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
    place.leave()


def _check_free(path: Path, kind: Kind) -> None:
    """Raises if something stands where a file is to be made, or belongs to one that stood there."""
    if os.path.lexists(path):
        raise kind.error(f"{path} exists: {kind.never}")
    for end in BESIDE:
        if path.name.endswith(end) and path.name != end:
            raise kind.error(
                f"{path} ends in {end}: what stands there is taken for a part of "
                f"{path.name.removesuffix(end)!r}, and overwritten or removed; choose another path"
            )
    for end in ("-wal", "-journal"):
        if os.path.lexists(f"{path}{end}"):
            raise kind.error(
                f"{path}{end} stands there, and {path} does not: it is the log of "
                f"{kind.name} that was deleted or moved; put that back, or choose another path"
            )


def _bare(kind: Kind) -> str:
    return kind.name.partition(" ")[2]


def _which(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
