"""The append-only, hash-chained record of every plan, token, spend and release.

Each entry is stored as canonical JSON (RFC 8785) and hashed together with the hash before it, so a
changed, cut or re-ordered entry breaks the chain; every ``close`` states a Merkle root of all that
stands before it.  Somebody who can rewrite the whole file can rebuild the chain: keep the head hash
elsewhere to detect that.  docs/ledger.md has the format.

A file ledger is one SQLite database in WAL mode.  `Ledger.append` returns when what the entry must
protect is on disk, in the very file that was made or opened: spends, and all that is promised,
claimed or committed, at once.  The issue of a token and its end, but for an uncovered one, are on
disk with the next of these, at the latest when `Ledger.head` is asked for: a cut of the power that
takes them away frees nothing, as an unspent token paid for nothing, and a spend without end is lost
and stays charged.

A ledger has one writer; a second process that writes makes the first one's next append fail instead
of losing count.  Several accountants of one process may share a `Ledger`; each keeps count of its
own entries.
"""

from __future__ import annotations

import math
import os
import secrets
import sqlite3
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Self, final

from privlearn import _held_lock, _processes
from privlearn._exclusive import Exclusive
from privlearn._sqlite_gate import SQLITE
from privlearn.entries import (
    CloseEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    PublishEntry,
    RetireEntry,
    parse_entry,
)
from privlearn.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    LedgerSchemaError,
    LedgerUnreadableError,
)
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import (
    GENESIS,
    SCHEMA,
    Chain,
    MerkleTree,
    Record,
)
from privlearn.ledger.reader import (
    APPLICATION_ID,
    ENTRIES,
    RELEASED,
    is_export,
    iterate_records,
    parse,
)

_PLAIN_DEPTH = 16


def _storable(values: Iterable[object], depth: int = 0) -> bool:
    """Whether values are plainly JSON that a reader takes; where not, `parse` says.

    An entry in memory is not written, and what a file could not hold must not stand in it.
    """
    for value in values:
        kind = value.__class__
        if kind is str:
            if not value.isascii() and not _encodes(value):  # type: ignore[attr-defined, arg-type]
                return False
        elif kind is int:
            if not -(2**53) < value < 2**53:  # type: ignore[operator]
                return False
        elif kind is float:
            if not math.isfinite(value):  # type: ignore[arg-type]
                return False
        elif value is None or kind is bool:
            pass
        elif kind is dict or kind is list or kind is tuple:
            if not value:
                continue
            if depth == _PLAIN_DEPTH:
                return False
            if kind is dict:
                try:
                    names = "".join(value)  # type: ignore[arg-type]
                except TypeError:
                    return False
                if not names.isascii() and not _encodes(names):
                    return False
                value = value.values()  # type: ignore[attr-defined]
            if not _storable(value, depth + 1):  # type: ignore[arg-type]
                return False
        elif not isinstance(value, Enum) or value._value_.__class__ is not str:
            return False
    return True


def _encodes(text: str) -> bool:
    """Whether a text holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@final
class Ledger:
    """A ledger open for writing; `create`, `open` or `memory` make one.

    ``path`` is absolute, and None for a ledger in memory.
    """

    def __init__(self, connection: sqlite3.Connection | None, path: Path | None) -> None:
        self._connection, self.path = connection, path
        self._lock = Exclusive("a ledger")
        self._doubtful: Entry | None = None
        self._place = None if path is None else _identity(path)
        self._entries: list[Entry] = []
        self._records: list[Record] = []
        self._times: list[float] = []
        self._tree = MerkleTree()
        self._head = GENESIS
        self._writer, self._epoch = secrets.token_hex(8), 1
        self._disk = None if connection is None or path is None else _Disk(connection, path)
        self._counts: Counter[str] = Counter()
        self._open: set[str] = set()
        self._closed = False

    @classmethod
    def memory(cls) -> Ledger:
        """A ledger in memory, which ends with this process; for simulations."""
        return cls(None, None)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Ledger:
        """Creates a new ledger file.

        Raises:
            LedgerError: the file exists, the directory is missing or not writable, the path names
            no file (a URI, ``":memory:"``), or SQLite writes somewhere else.
        """
        where = _located(path)
        try:
            with open(where, "xb"):
                pass
        except FileExistsError:
            raise LedgerError(
                f"{where} is a directory: name a file in it"
                if where.is_dir()
                else f"{where} exists: ledgers are never overwritten; resume it or choose another "
                "path"
            ) from None
        except OSError as error:
            raise LedgerError(f"{where} cannot be created: {error.strerror}") from None
        ledger = cls(_connect(where), where)
        with ledger._sql() as connection:
            connection.executescript(
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};"
                f"{ENTRIES};{RELEASED};PRAGMA wal_checkpoint(TRUNCATE);"
            )
        try:
            assert ledger._disk is not None
            ledger._disk.check_header()
        except LedgerError:
            ledger.close()
            raise
        _sync_directory(where.parent)
        return ledger

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, head: str | None = None) -> Ledger:
        """Opens an existing ledger file for further entries.

        ``head`` is the last hash as kept elsewhere; without it an old copy cannot be told.

        Raises:
            LedgerUnreadableError: missing, torn or broken.  LedgerSchemaError: newer version, or
            format 1, which takes no further entries.  LedgerFeatureError: it needs an unknown
            extension.  LedgerError: the path names no file.
        """
        where = _located(path)
        records, problems, chain = [], [], Chain()
        for record in iterate_records(where):
            if record.format != SCHEMA:
                raise LedgerSchemaError(
                    f"{path} cannot be resumed: it is of format {record.format}, which is read and "
                    "audited but takes no further entries; begin a new ledger with what is left "
                    "of the budget, and keep this one: what both promise adds up"
                )
            records.append(record)
            problems += chain.add(record)
        problems += chain.end(head)
        if problems:
            raise LedgerUnreadableError(f"{path} cannot be resumed: {'; '.join(problems)}")
        if is_export(where):
            raise LedgerUnreadableError(f"{path} cannot be resumed: it is an export")
        try:
            entries = [parse_entry(record.body, record.ext) for record in records]
            ledger = cls(_connect(where), where)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise LedgerUnreadableError(f"{path} cannot be resumed: {error}") from None
        ledger._records, ledger._tree, ledger._head = records, chain.tree, chain.head
        ledger._epoch = chain.epoch + 1
        assert ledger._disk is not None
        ledger._disk.pending = True  # what a process left that died, its last issue, say
        for entry in entries:
            ledger._keep(entry)
        return ledger

    def append(
        self,
        entry: Entry,
        *,
        after: int | None = None,
        first: bool = False,
        beside: Callable[[Sequence[Entry]], None] | None = None,
        value: tuple[str, bytes] | None = None,
    ) -> None:
        """Adds an entry; returns when what it protects is durable (at once for a memory ledger).

        ``after`` is the number of its accountant's entries that the writer knows of, if it relies
        on them; ``first`` says that the writer relies on an empty ledger, and ``beside`` raises
        why the entry cannot stand behind those that the ledger holds.  ``value``, bytes and the
        digest that they are kept under, is written with the entry, or not at all; a ledger in
        memory keeps none.

        Raises:
            LedgerClosedError: closed.  LedgerBusyError: somebody else has written since then.
            TokenCopyError: called in a forked process.  LedgerError: it could not be written, or
            whether the entry before stands there is not known, as it was interrupted.
            ReentryError: called from inside a call that is not done.
        """
        with self._lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            if self._doubtful is not None:
                raise LedgerError("an entry was interrupted half-way: open the ledger again")
            if first and self._entries:
                raise LedgerBusyError("another accountant has begun this ledger")
            if after is not None and after != self._counts[entry.accountant]:
                raise LedgerBusyError(
                    "another accountant has resumed this ledger: only the last one may write"
                )
            if beside is not None:
                beside(self._entries)
            if self._connection is not None:
                self._write(entry, value)
            else:
                if not _storable(entry.__dict__.values()):
                    # raises for what a file could not hold
                    parse(canonical({"body": entry.body(), "ext": entry.ext()}))
                self._times.append(time.time())
            self._doubtful = entry  # where a signal's exception ends it
            self._keep(entry)
            self._doubtful = None

    def may_hold(self, entry: Entry) -> bool:
        """Whether this very entry stands here, or may stand here as `append` was interrupted."""
        return entry is self._doubtful or any(entry is kept for kept in reversed(self._entries))

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._counts[entry.accountant] += 1
        if entry.__class__ is OpenEntry:
            self._open.add(entry.accountant)
        elif entry.__class__ is CloseEntry:
            self._open.discard(entry.accountant)

    def check_own(self) -> None:
        """Raises what `append` would, if the file is not there or somebody else wrote to it."""
        if self._disk is None:
            return
        with self._lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            with self._sql():
                self._check_place()
                self._disk.check_log()
                self._check_last()

    def _check_last(self) -> None:
        assert self._disk is not None
        if self._disk.last() != self._last():
            raise LedgerBusyError(
                f"{self.path} was written to by another process; resume it to go on"
            )

    def value(self, digest: str) -> bytes | None:
        """What was written with an entry under that digest; None where nothing was."""
        with self._lock, self._sql() as connection:
            row = connection.execute("SELECT value FROM released WHERE digest = ?", (digest,))
            found = row.fetchone()
            return None if found is None else bytes(found[0])

    def _write(self, entry: Entry, value: tuple[str, bytes] | None) -> None:
        record = self._make(entry, time.time())
        parse(record.data)  # raises for what a reader would refuse, and the whole file with it
        disk = self._disk
        assert disk is not None
        with self._sql() as connection:
            self._check_place()
            disk.defer()
            connection.execute("BEGIN IMMEDIATE")
            disk.check_log()
            self._check_last()
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)",
                (record.seq, record.data.decode(), record.hash),
            )
            if value is not None:
                connection.execute("INSERT OR IGNORE INTO released VALUES (?, ?)", value)
            self._doubtful = entry  # where something else than SQLite ends it
            disk.pending = True
            connection.execute("COMMIT")
            disk.check_log()
            if not _may_wait(entry):
                disk.settle((record.seq, record.hash))
        self._add(record)

    def _last(self) -> tuple[int, str] | None:
        return (len(self._records) - 1, self._head) if self._records else None

    def _make(self, entry: Entry, then: float) -> Record:
        return Record.make(
            self._head,
            len(self._records),
            entry.body(),
            ext=entry.ext(),
            writer=self._writer,
            epoch=self._epoch,
            minute=int(then // 60),
            root=self._tree.root if isinstance(entry, CloseEntry) else None,
        )

    def _add(self, record: Record) -> None:
        self._records.append(record)
        self._tree.add(bytes.fromhex(record.hash))
        self._head = record.hash

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was deleted or replaced, which nobody finds."""
        assert self.path is not None
        if _identity(self.path) != self._place:
            raise LedgerError(
                f"{self.path} was moved, deleted or replaced: nothing more can be recorded in it"
            )

    @contextmanager
    def _sql(self) -> Iterator[sqlite3.Connection]:
        assert self._connection is not None
        try:
            SQLITE.__enter__()
            yield self._connection
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
                self._doubtful = None
            if isinstance(error, sqlite3.Error):
                self._doubtful = None
            if isinstance(error, sqlite3.Error | OSError):
                raise LedgerError(f"{self.path} could not be written: {error}") from error
            raise
        finally:
            if self._disk is not None:
                self._disk.leave_to_sqlite()
            SQLITE.__exit__()

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def entries_of(self, accountant: str) -> int:
        """How many entries one accountant has."""
        return self._counts[accountant]

    @property
    def open_accountants(self) -> frozenset[str]:
        """The accountants that were opened and not closed."""
        with self._lock:
            return frozenset(self._open)

    @property
    def records(self) -> list[Record]:
        """All entries with their hashes, oldest first; on disk before they are told."""
        with self._lock:
            self._complete()
            return list(self._records)

    @property
    def head(self) -> str:
        """The last hash, on disk before it is told; keep it elsewhere to detect cuts."""
        with self._lock:
            self._complete()
            return self._head

    @property
    def root(self) -> str:
        """The Merkle root (RFC 6962) of the hashes of all entries."""
        with self._lock:
            self._complete()
            return self._tree.root

    def _complete(self) -> None:
        """Chains what a memory ledger holds, and brings to disk what may wait."""
        if self._disk is None:
            done = len(self._records)
            for entry, then in zip(self._entries[done:], self._times[done:], strict=False):
                self._add(self._make(entry, then))
        elif self._disk.pending and not self._closed:
            with self._sql():
                self._disk.check_log()
                self._disk.defer()
                self._disk.settle(self._last())

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all entries as JSON lines."""
        write_export(path, self.records)

    def close(self) -> None:
        """Flushes everything into the one file and releases it; may be called twice.

        While somebody else reads the file, the last entries stay in the ``-wal`` file beside it.
        In a forked process the file is left alone, as it is the parent's.
        """
        if self._lock.made_in != _processes.here():
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._disk is not None:
                self._disk.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _located(path: str | os.PathLike[str]) -> Path:
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
    if name.startswith("file:"):
        raise LedgerError(
            f"path = {name!r}: URIs are not taken, as they can name a database in memory; give "
            "the path of a file"
        )
    try:
        return Path(name).resolve()
    except (OSError, RuntimeError) as error:  # symbolic links in a circle
        raise LedgerError(f"path = {name!r}: {error}") from None


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands there; None for none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


_TIMEOUT = 10  # seconds that another process may hold the file


def _connect(path: Path) -> sqlite3.Connection:
    with SQLITE:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=_TIMEOUT
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # `_Disk.settle` does it
        connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _may_wait(entry: Entry) -> bool:
    """Whether a cut of the power may take an entry away that was written last."""
    return isinstance(entry, IssueEntry | PublishEntry) or (
        isinstance(entry, RetireEntry) and entry.outcome != "uncovered"
    )


@final
class _Disk:
    """Brings what SQLite wrote to disk with two syncs, where SQLite itself needs four.

    SQLite syncs a log that it begins anew, the log, the log again and the main file, at every
    commit.  Here the log is synced when the entries in it must stand, then copied to the main file,
    that is synced, and the log is cut to nothing.  So one of the two is whole at every moment, and
    the main file by itself holds every spend.  A log that is written from its beginning again
    without having been cut could, after a cut of the power, be a mixture of old and new
    (SQLite's ticket ff5be73dee): where it could not be cut, as somebody reads it, SQLite syncs the
    next entry.

    Another process may have resumed the ledger, and write to the log without a sync, too: what it
    wrote is copied only behind a sync, but for what it writes while this one settles its entry.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self.pending = False
        with SQLITE:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        self._logged = mode == "wal"
        self._cut = False
        # closing a file of its own would let go of SQLite's locks: kept until SQLite is done
        self._files = [os.open(path, os.O_RDWR)]
        if self._logged:
            with SQLITE:
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # begins the log
            with suppress(FileNotFoundError):  # SQLite writes elsewhere, see `check_header`
                self._files.append(os.open(f"{path}-wal", os.O_RDWR))
            _held_lock.hold(self._files[0])
        self._end = weakref.finalize(self, _close, connection, self._files, _processes.here())
        self._end.atexit = False
        _processes.INHERITED.add(self)

    def defer(self) -> None:
        """Leaves it to `settle` when to sync, if the log began with nothing."""
        if self._cut:
            self._connection.execute("PRAGMA synchronous = OFF")

    def leave_to_sqlite(self) -> None:
        """SQLite syncs for itself, whatever ends the connection."""
        if self._cut:
            self._connection.execute("PRAGMA synchronous = FULL")

    def check_header(self) -> None:
        """Raises LedgerError unless what SQLite wrote stands in the file itself."""
        header = os.pread(self._files[0], 100, 0)
        # the fields of the header: https://www.sqlite.org/fileformat.html#the_database_header
        if header[68:72] != APPLICATION_ID.to_bytes(4, "big"):
            raise LedgerError(
                f"{self._path} is not the file that SQLite writes to: it holds {len(header)} bytes "
                "of a ledger; nothing can be recorded in it"
            )

    def check_log(self) -> None:
        """Raises LedgerBusyError if another process ended the log and may have begun a new one.

        It can do so where `privlearn._held_lock` knows no lock that keeps it from that.
        """
        if self._logged:
            found = [(file.st_dev, file.st_ino) for file in map(os.fstat, self._files[1:])]
            if [_identity(Path(f"{self._path}-wal"))] != found:
                raise LedgerBusyError(
                    f"{self._path} was closed by another process; resume it to go on"
                )

    def last(self) -> tuple[int, str] | None:
        """Position and hash of the last entry in the file, whoever wrote it; None for none."""
        found = self._connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1")
        last: tuple[int, str] | None = found.fetchone()
        return last

    def settle(self, written: tuple[int, str] | None) -> None:
        """Returns when everything that was committed is on disk, and in the main file.

        If ``written`` is not the last entry, somebody else writes, perhaps now: then SQLite syncs
        the log by itself, between reading its end and copying it.
        """
        if self._logged:
            main, log = self._files
            try:
                if self.last() != written:
                    self.leave_to_sqlite()
                os.fsync(log)
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                os.fsync(main)
                # what a reader, who is gone now, kept from being copied is synced by SQLite
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA busy_timeout = 0")
                cut = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._connection.execute(f"PRAGMA busy_timeout = {_TIMEOUT * 1000}")
            except sqlite3.Error as error:  # what was committed stands in the log
                raise OSError(str(error)) from error
            self._cut = cut == (0, 0, 0)
        self.pending = False

    def close(self) -> None:
        """Leaves one self-contained file, without -wal and -shm beside it."""
        _held_lock.let_go(self._files[0])
        # while somebody else reads, the last entries stay in the log
        with SQLITE, suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._end()

    def inherited(self) -> None:
        """Keeps the connection, which is not a forked child's to close."""
        _processes.never_end(self._connection)


def _close(connection: sqlite3.Connection, files: list[int], made_in: tuple[int, int]) -> None:
    if _processes.here() == made_in:
        with SQLITE:
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA synchronous = FULL")
            _held_lock.let_go(files[0])
            connection.close()
        for file in files:
            os.close(file)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_export(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Writes records as JSON lines, the first line naming their format.

    Raises:
        LedgerError: something else than an export stands there, a ledger, say.
    """
    where = Path(path)
    if where.is_file() and where.stat().st_size and not is_export(where):
        raise LedgerError(f"{path} is no export: it is not overwritten")
    with open(path, "wb") as file:
        format = None
        for record in records:
            if format is None:
                format = record.format
                file.write(canonical({"privlearn_ledger": format}) + b"\n")
            file.write(record.line() + b"\n")
        if format is None:
            file.write(canonical({"privlearn_ledger": SCHEMA}) + b"\n")
