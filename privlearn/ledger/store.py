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

import errno
import math
import os
import secrets
import sqlite3
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Protocol, Self, final

from privlearn import _processes
from privlearn._exclusive import Exclusive
from privlearn._new_names import unlink_leftover_names
from privlearn._sqlite_gate import SQLITE
from privlearn.entries import (
    CloseEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    PublishEntry,
    ResumeEntry,
    RetireEntry,
    SumsEntry,
    parse_entry,
)
from privlearn.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    LedgerHeadError,
    LedgerSchemaError,
    LedgerUnreadableError,
)
from privlearn.ledger.backups import backup
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import (
    GENESIS,
    SCHEMA,
    Chain,
    MerkleTree,
    Record,
    minute_of,
    text_of_minute,
)
from privlearn.ledger.disk import Disk, connect, located
from privlearn.ledger.heads import Claimed, Head, HeadFile, kept_elsewhere
from privlearn.ledger.large_values import LARGEST_IN_DATABASE, read_large, write_large
from privlearn.ledger.new_files import create_ledger
from privlearn.ledger.reader import is_export, iterate_records, parse
from privlearn.ledger.values import unpacked


class Queue(Protocol):
    """Takes entries at once, and never waits, as `queue.SimpleQueue` does."""

    def put(self, item: Entry, /) -> None:
        """Takes one more."""


KeepHead = Callable[[str], object]
"""Takes a head, 64 hexadecimal digits, to where it is kept."""

_PLAIN_DEPTH = 16


def _storable(values: Iterable[object], depth: int = 0) -> bool:
    """Whether values are plainly JSON that a reader takes; where not, `parse` says.

    An entry in memory is not written, and what a file could not hold must not stand in it either.
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

    ``path`` is absolute, and None for a ledger in memory.  ``unknown_head`` says that it was opened
    without a head to compare it with, which accountants that go on with it write down.
    """

    def __init__(
        self,
        connection: sqlite3.Connection | None,
        path: Path | None,
        keep_head: KeepHead | None = None,
    ) -> None:
        self.path = path
        self._lock = Exclusive("a ledger")
        self._doubtful: Entry | None = None
        self._newest: dict[str, Entry] = {}
        """The last entry of each accountant, by which it is told whether an append was done."""
        self._read: list[Entry] | None = []
        """All entries; of a file only until the first that is written, then they are read again."""
        self._records: list[Record] = []
        self._times: list[float] = []
        """Of a ledger in memory."""
        self._committed = False
        """Whether the entry that is on its way was committed, to disk or not yet."""
        self._tree = MerkleTree()
        self._head, self._minute = GENESIS, 0
        self._writer, self._epoch = secrets.token_hex(8), 1
        self._disk = None if connection is None or path is None else Disk(connection, path)
        self._beside = None if path is None else HeadFile(path)
        self._keep_head = keep_head
        self._counts: Counter[str] = Counter()
        self._opens: list[OpenEntry] = []
        self._listeners: list[Queue] = []
        self._open: set[str] = set()
        self._closed = False
        self.unknown_head = False
        self._unsaid: frozenset[str] = frozenset()
        """Accounts that can go on, and whose entries do not say yet that the head was unknown."""

    @classmethod
    def memory(cls) -> Ledger:
        """A ledger in memory, which ends with this process; for simulations."""
        return cls(None, None)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, keep_head: KeepHead | None = None) -> Ledger:
        """Creates a new ledger file, and beside it one that keeps its head.

        ``keep_head`` takes each head that is on disk, 64 hexadecimal digits, to a safer place: it
        is called before any noise of the spend that stands there is drawn, and if it raises,
        nothing is released.  It must not call this ledger.

        Raises:
            LedgerError: the file exists, or the head or log of one that is gone; the directory is
                missing or not writable, the path names no file (a URI, ``":memory:"``), or SQLite
                writes somewhere else.
        """
        where = located(path)
        create_ledger(where)
        ledger = cls(connect(where), where, keep_head)
        try:
            assert ledger._disk is not None
            ledger._disk.check_header()
        except LedgerError:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        head: str | None = None,
        unknown_head: bool = False,
        keep_head: KeepHead | None = None,
    ) -> Ledger:
        """Opens an existing ledger file for further entries.

        The ledger must hold the head that is kept beside it, and ``head``, if it is given: one that
        was kept elsewhere, and needed where the file beside it is missing, and where the ledger
        says that its heads are kept elsewhere (``keep_head``, see `create`).  An older copy, which
        forgets spends, does not hold them.  ``unknown_head`` goes on without, and every audit
        reports it.

        Raises:
            LedgerHeadError: the head is not known, or not in this file.
            LedgerUnreadableError: missing, torn or broken.
            LedgerSchemaError: newer version, or format 1, which takes no further entries.
            LedgerFeatureError: it needs an unknown extension.
            LedgerError: the path names no file.
        """
        where = located(path)
        claimed = Claimed(where, head=head, unknown=unknown_head)
        entries: list[Entry] = []
        problems, chain = list[str](), Chain()
        for record in iterate_records(where, vouched=head is not None or unknown_head):
            if record.format != SCHEMA:
                raise LedgerSchemaError(
                    f"{path} cannot be resumed: it is of format {record.format}, which is read and "
                    "audited but takes no further entries; begin a new ledger with what is left "
                    "of the budget, and keep this one: what both promise adds up"
                )
            problems += chain.add(record)
            claimed.compare(record)
            if not problems:
                try:
                    entries.append(parse_entry(record.body, record.ext))
                except ValueError as error:
                    problems.append(str(error))
        if problems:
            raise LedgerUnreadableError(f"{path} cannot be resumed: {'; '.join(problems)}")
        if is_export(where):
            raise LedgerUnreadableError(f"{path} cannot be resumed: it is an export")
        opens = [entry for entry in entries if isinstance(entry, OpenEntry)]
        unknown = claimed.check(chain, elsewhere=any(map(kept_elsewhere, opens)))
        if keep_head is None and any(map(kept_elsewhere, opens)):
            raise LedgerHeadError(
                f"{path} says that its heads are kept elsewhere: open it with keep_head=, and hand "
                "the Ledger to resume(...)"
            )
        try:
            unlink_leftover_names(where)
            ledger = cls(connect(where), where, keep_head)
        except (OSError, sqlite3.Error) as error:
            raise _unwritable(where, error) from None
        ledger.unknown_head = unknown
        ledger._tree, ledger._head = chain.tree, chain.head
        ledger._epoch, ledger._minute = chain.epoch + 1, minute_of(chain.minute)
        if ledger._minute > time.time() // 60 + _CLOCK_MAY_BE_OFF:
            warnings.warn(
                f"{path}: the last entry was written at {chain.minute}, and the clock says "
                f"{text_of_minute(int(time.time() // 60))}: until it is past that, entries tell "
                "the former; look after the clock",
                stacklevel=2,
            )
        assert ledger._disk is not None
        ledger._disk.pending = True  # what a process left that died, its last issue, say
        for entry in entries:
            ledger._keep(entry)
        ledger._read = entries
        if unknown:
            ledger._unsaid = frozenset(ledger._open)
        return ledger

    def append(
        self,
        entry: Entry,
        *,
        after: int | None = None,
        first: bool = False,
        beside: Callable[[Sequence[OpenEntry]], None] | None = None,
        value: tuple[str, bytes] | None = None,
    ) -> None:
        """Adds an entry; returns when what it protects is durable (at once for a memory ledger).

        ``after`` is the number of its accountant's entries that the writer knows of, if it relies
        on them; ``first`` says that the writer relies on an empty ledger, and ``beside`` raises
        why the entry cannot stand behind the accountants that the ledger opens.  ``value``, bytes
        and the digest that they are kept under, is written with the entry, or not at all; a ledger
        in memory keeps none.

        Raises:
            LedgerClosedError: closed.
            LedgerBusyError: somebody else has written since then.
            TokenCopyError: called in a forked process.
            LedgerError: it could not be written, or whether the entry before stands there is not
                known, as it was interrupted.
            LedgerHeadError: it stands there, but its head could not be kept.
            ReentryError: called from inside a call that is not done.
        """
        with self._lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            if self._doubtful is not None:
                raise LedgerError("an entry was interrupted half-way: open the ledger again")
            if first and self._counts:
                raise LedgerBusyError("another accountant has begun this ledger")
            if after is not None and after != self._counts[entry.accountant]:
                raise LedgerBusyError(
                    "another accountant has resumed this ledger: only the last one may write"
                )
            if beside is not None:
                beside(self._opens)
            if self._disk is not None:
                self._write(entry, value)
            else:
                if not _storable(entry.__dict__.values()):
                    # raises for what a file could not hold
                    parse(canonical({"body": entry.body(), "ext": entry.ext()}))
                self._doubtful = entry
                self._times.append(time.time())
                assert self._read is not None
                self._read.append(entry)
            self._doubtful = entry  # where a signal's exception ends it
            self._keep(entry)
            self._doubtful = None
            for queue in self._listeners:
                queue.put(entry)
            if self._disk is not None and not self._disk.pending:
                self._tell_head()

    def listen(self, queue: Queue) -> int:
        """Puts every entry that stands from now on into a queue, and says how many stood before.

        Whoever takes them out can neither delay nor stop what is written.
        """
        with self._lock:
            self._listeners.append(queue)
            return self._counts.total()

    def unlisten(self, queue: Queue) -> None:
        """Ends `listen`."""
        with self._lock:
            self._listeners.remove(queue)

    def may_hold(self, entry: Entry) -> bool:
        """Whether this very entry stands here, or may stand here as `append` was interrupted.

        Asked by an accountant for its last entry, with no other on its way.
        """
        return entry is self._doubtful or entry is self._newest.get(entry.accountant)

    def _keep(self, entry: Entry) -> None:
        self._newest[entry.accountant] = entry
        self._counts[entry.accountant] += 1
        if entry.__class__ is OpenEntry:
            self._opens.append(entry)
            self._open.add(entry.accountant)
        elif entry.__class__ is CloseEntry:
            self._open.discard(entry.accountant)
        elif entry.__class__ is ResumeEntry:
            self._unsaid -= {entry.accountant}

    def check_own(self) -> None:
        """Raises what `append` would, if the file is not there or somebody else wrote to it."""
        if self._disk is None:
            return
        with self._lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            with self._sql():
                self._disk.check_place()
                self._disk.check_log()
                self._check_last()

    def _check_last(self) -> None:
        assert self._disk is not None
        if self._disk.last() != self._last():
            raise LedgerBusyError(
                f"{self.path} was written to by another process; resume it to go on"
            )

    def _tell_head(self) -> None:
        """Keeps the head of what is on disk, beside the file and wherever else it is wanted.

        Beside a file whose head was unknown none is kept before the accounts that it may have
        forgotten spends of say so themselves: else the next process would find all in order.
        """
        assert self._beside is not None
        if not self._unsaid:
            try:
                self._beside.write(Head(self._tree.size, self._head))
            except OSError as error:
                raise self._not_kept(error) from error
        if self._keep_head is not None:
            try:
                self._keep_head(self._head)
            except Exception as error:
                raise self._not_kept(error) from error

    def _not_kept(self, error: Exception) -> LedgerHeadError:
        return LedgerHeadError(
            f"{self.path}: the head {self._head} could not be kept: {error!r}; its entry stands, "
            "and a spend stays charged, but nothing was released for it"
        )

    def value(self, digest: str) -> bytes | None:
        """What was written with an entry under that digest; None where nothing was.

        Raises:
            LedgerUnreadableError: it was changed.
        """
        with self._lock, self._sql():
            assert self._disk is not None
            row = self._disk.connection.execute(
                "SELECT value FROM released WHERE digest = ?", (digest,)
            )
            found = row.fetchone()
        assert self.path is not None
        data = read_large(self.path, digest) if found is None else bytes(found[0])
        if data is not None:
            unpacked(data, digest)
        return data

    def _write(self, entry: Entry, value: tuple[str, bytes] | None) -> None:
        record = self._make(entry, time.time())
        if not _storable(entry.__dict__.values()):
            parse(record.data)  # raises for what a reader would refuse, and the whole file with it
        disk, path = self._disk, self.path
        assert disk is not None
        assert path is not None
        self._committed = False
        with self._sql():  # the connection is asked for each time: a forked child has none
            disk.check_sound()
            disk.check_place()
            disk.connection.execute("BEGIN IMMEDIATE")
            disk.check_log()
            self._check_last()
            if value is not None and len(value[1]) > LARGEST_IN_DATABASE:
                write_large(path, *value)  # no sooner: who lost the ledger lets nothing out
                value = None
            disk.connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)",
                (record.seq, record.data.decode(), record.hash),
            )
            if value is not None:
                disk.connection.execute("INSERT OR IGNORE INTO released VALUES (?, ?)", value)
            self._doubtful = entry  # where something else than SQLite ends it
            disk.pending = True
            disk.connection.execute("COMMIT")
            self._committed = True
            disk.check_log()
            if not _may_wait(entry):
                disk.settle((record.seq, record.hash))
                disk.check_place()
        self._committed = False
        self._add(record)
        self._read = None

    @property
    def _connection(self) -> sqlite3.Connection | None:
        return None if self._disk is None else self._disk.connection

    def _last(self) -> tuple[int, str] | None:
        return (self._tree.size - 1, self._head) if self._tree.size else None

    def _make(self, entry: Entry, then: float) -> Record:
        # the clock may be set back, and what entries tell of time is not to contradict their order
        self._minute = max(self._minute, int(then // 60))
        return Record.make(
            self._head,
            self._tree.size,
            entry.body(),
            ext=entry.ext(),
            writer=self._writer,
            epoch=self._epoch,
            minute=self._minute,
            root=self._tree.root if isinstance(entry, CloseEntry) else None,
        )

    def _add(self, record: Record) -> None:
        if self._disk is None:
            self._records.append(record)
        self._tree.add(bytes.fromhex(record.hash))
        self._head = record.hash

    @contextmanager
    def _sql(self) -> Iterator[None]:
        disk = self._disk
        assert disk is not None
        assert self.path is not None
        try:
            SQLITE.__enter__()
            yield
        except BaseException as error:
            if self._lock.made_in != _processes.here():
                raise  # the transaction is the parent's
            disk.note(error)
            if disk.connection.in_transaction:
                with suppress(sqlite3.Error):
                    disk.connection.execute("ROLLBACK")
                self._doubtful = None
            if isinstance(error, sqlite3.Error):
                disk.check_sound()  # what was not synced may stand nevertheless: it is doubtful
                if self._committed:
                    raise LedgerError(
                        f"{self.path} could not be brought to disk: {error}; the last entry may "
                        "stand: open it again"
                    ) from error
                self._doubtful = None
            if isinstance(error, sqlite3.Error | OSError):
                raise _unwritable(self.path, error) from error
            raise
        finally:
            SQLITE.__exit__()

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first; of a file they are read again."""
        with self._lock:
            if self._read is not None:
                return tuple(self._read)
        return tuple(parse_entry(record.body, record.ext) for record in self.iterate())

    def entries_of(self, accountant: str) -> int:
        """How many entries one accountant has."""
        return self._counts[accountant]

    @property
    def opened(self) -> Sequence[OpenEntry]:
        """How the accountants that it holds were opened, in their order."""
        return tuple(self._opens)

    @property
    def open_accountants(self) -> frozenset[str]:
        """The accountants that were opened and not closed."""
        with self._lock:
            return frozenset(self._open)

    @property
    def keeps_heads_elsewhere(self) -> bool:
        """Whether each head is handed to somebody who keeps it."""
        return self._keep_head is not None

    @property
    def records(self) -> list[Record]:
        """All entries with their hashes, oldest first; on disk before they are told."""
        return list(self.iterate())

    def iterate(self) -> Iterator[Record]:
        """As `records`, one by one; entries of a file are not held in memory."""
        with self._lock:
            self._complete()
            size = self._tree.size
        if self._disk is None:
            yield from self._records[:size]
            return
        assert self.path is not None
        yield from islice(iterate_records(self.path, vouched=True), size)

    @property
    def head(self) -> str:
        """The last hash, on disk before it is told; keep it elsewhere to detect cuts."""
        with self._lock:
            self._complete()
            return self._head

    def keep_head_again(self) -> None:
        """Keeps the head of what is on disk, as it may not have been kept when it was written.

        Raises:
            LedgerHeadError: it could not be kept.  LedgerClosedError, LedgerBusyError, LedgerError,
            TokenCopyError, ReentryError: as `append`.
        """
        self.check_own()
        with self._lock:
            self._complete()
            if self._disk is not None:
                self._tell_head()

    def holds(self, head: str) -> bool:
        """Whether a hash is that of one of its entries, or of none before the first."""
        return head == GENESIS or any(record.hash == head for record in self.iterate())

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
            assert self._read is not None
            for entry, then in zip(self._read[done:], self._times[done:], strict=False):
                self._add(self._make(entry, then))
        elif self._disk.pending and not self._closed:
            with self._sql():
                self._disk.check_log()
                self._disk.settle(self._last())
                own = self._disk.last() == self._last()
            if own and not self._unsaid:
                self._tell_head()

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all entries as JSON lines."""
        write_export(path, self.iterate())

    def backup(self, path: str | os.PathLike[str]) -> str:
        """Copies all of it, values included, to a new file, and returns the head of the copy.

        Raises:
            LedgerError: the file exists, cannot be made, or the ledger is one in memory.
        """
        if self.path is None:
            raise LedgerError("a ledger in memory has no file to copy: export(path) writes one")
        with self._lock:
            self._complete()
        return backup(self.path, path, vouched=True)

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
            if self._disk is not None:
                try:
                    self._disk.check_place()
                    self._complete()
                except LedgerError:
                    pass  # what may wait need not stand, and a head may be an earlier one
                self._closed = True
                self._disk.close()
            self._closed = True
            if self._beside is not None:
                self._beside.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_CLOCK_MAY_BE_OFF = 2  # minutes


def _may_wait(entry: Entry) -> bool:
    """Whether a cut of the power may take an entry away that was written last."""
    return isinstance(entry, IssueEntry | PublishEntry | SumsEntry) or (
        isinstance(entry, RetireEntry) and entry.outcome != "uncovered"
    )


def _unwritable(path: Path, error: sqlite3.Error | OSError) -> LedgerError:
    """What to do about a ledger that could not be written; nothing of the entry stands there."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or isinstance(
        error, BlockingIOError
    ):
        return LedgerBusyError(
            f"{path} could not be written: {error}: another process holds it; end what it does "
            "there, and try again: nothing was recorded"
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
        f"{path} could not be written: {error}{'; ' if todo else ''}{todo}: nothing was recorded"
    )


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
