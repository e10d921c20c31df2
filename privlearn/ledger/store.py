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

A ledger file has one writer; a second process that writes makes the first one's next append fail
instead of losing count.  Several accountants of one process may share a `Ledger`; each keeps count
of its own entries.  Where a ledger stands in a `SharedStore`, several processes write to it, each
in its turns (`Ledger.turn`), with all entries before it in view.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol, Self, final

from privlearn.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    LedgerHeadError,
    NonceReusedError,
)
from privlearn.ledger.account_index import AccountIndex
from privlearn.ledger.addresses import extra_needed
from privlearn.ledger.backups import backup
from privlearn.ledger.chain import (
    GENESIS,
    Record,
    text_of_minute,
    this_minute,
)
from privlearn.ledger.continued_files import read_to_continue
from privlearn.ledger.disk import Disk, located
from privlearn.ledger.entries import (
    Entry,
    IssueEntry,
    OpenEntry,
    parse_entry,
)
from privlearn.ledger.exports import write_export
from privlearn.ledger.file_store import FileStore, unwritable
from privlearn.ledger.file_systems import check_on_this_host
from privlearn.ledger.heads import Head, check_form_of_head, kept_elsewhere
from privlearn.ledger.kept_heads import KeepHead, KeptHeads
from privlearn.ledger.memory_log import MemoryLog
from privlearn.ledger.new_files import create_ledger
from privlearn.ledger.nonces import check_nonce
from privlearn.ledger.owner_lock import check_not_served
from privlearn.ledger.reader import iterate_records, parse
from privlearn.ledger.replica import Replica
from privlearn.ledger.settling import Settling
from privlearn.ledger.storable import storable
from privlearn.ledger.stores import SharedStore, Turn, Value
from privlearn.ledger.tip import Tip
from privlearn.ledger.values import unpacked
from privlearn.storage import processes
from privlearn.storage.exclusive import Block, Exclusive
from privlearn.storage.new_names import unlink_leftover_names


class Queue(Protocol):
    """Takes entries at once, and never waits, as `queue.SimpleQueue` does."""

    def put(self, item: Entry, /) -> None:
        """Takes one more."""


@final
class Ledger:
    """A ledger open for writing; `create`, `open` or `memory` make one.

    ``path`` is absolute, and None for a ledger in memory.  ``unknown_head`` says that it was opened
    without a head to compare it with, which accountants that go on with it write down.
    """

    def __init__(
        self,
        path: Path | None = None,
        keep_head: KeepHead | None = None,
        shared: SharedStore | None = None,
        tip: Tip | None = None,
    ) -> None:
        self.path = path
        self._lock = Exclusive("a ledger")
        self._turn_lock = Exclusive("a turn of a ledger")
        self._shared = shared
        self._replica = None if shared is None else Replica(shared)
        self._tip = tip or (Tip.new() if self._replica is None else self._replica.tip)
        self._file = None if path is None else FileStore(path)
        self._memory = None
        self._read: list[Entry] | None = []
        """All entries; of a file only until the first that is written, then they are read again."""
        if not self.durable:
            self._memory = MemoryLog(self._tip)
            self._read = self._memory.entries
        self._doubtful: Entry | None = None
        self._last_record: Record | None = None
        self._accounts = AccountIndex()
        self._heads = KeptHeads(self.name, path, keep_head)
        self._listeners: list[Queue] = []
        self._closed = False
        self.unknown_head = False

    @classmethod
    def memory(cls) -> Ledger:
        """A ledger in memory, which ends with this process; for simulations."""
        return cls()

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
        check_on_this_host(where)
        create_ledger(where)
        ledger = cls(where, keep_head)
        try:
            assert ledger._file is not None
            ledger._file.disk.check_header()
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
            LedgerBusyError: its owner serves it, `privlearn ledger serve`.
            LedgerError: the path names no file, or one on a network file system.
        """
        where = located(path)
        check_on_this_host(where)
        check_not_served(where)
        entries, chain, unknown = read_to_continue(
            path, where, head=head, unknown_head=unknown_head, keeps_heads=keep_head is not None
        )
        try:
            unlink_leftover_names(where)
        except OSError as error:
            raise unwritable(where, error) from None
        tip = Tip.behind(chain)
        ledger = cls(where, keep_head, tip=tip)
        ledger.unknown_head = unknown
        now = this_minute()
        if tip.minute > now + _CLOCK_MAY_BE_OFF:
            warnings.warn(
                f"{path}: the last entry was written at {chain.minute}, and the clock says "
                f"{text_of_minute(now)}: until it is past that, entries tell "
                "the former; look after the clock",
                stacklevel=2,
            )
        assert ledger._file is not None
        ledger._file.disk.pending = True  # what a process left that died, its last issue, say
        for entry in entries:
            ledger._accounts.note(entry)
        ledger._read = entries
        if unknown:
            ledger._accounts.unsaid = frozenset(ledger._accounts.open)
        return ledger

    @classmethod
    def over(
        cls, store: SharedStore, *, head: str | None = None, keep_head: KeepHead | None = None
    ) -> Ledger:
        """A ledger that other processes write to as well.

        Args:
            store: where it stands; closed with the ledger.
            head: one that was kept elsewhere, which it must hold.
            keep_head: as for `create`; each process keeps those of its own entries.

        Raises:
            LedgerHeadError: ``head`` is not in it.
            LedgerUnreadableError: broken.
            LedgerFencedError, LedgerError: the store cannot be used.
            ValueError: ``head`` is none.
        """
        ledger = cls(None, keep_head, store)
        try:
            check_form_of_head(head)
            found = head in (None, GENESIS)
            assert ledger._replica is not None
            for record in store.iterate(0):
                ledger._take_in(ledger._replica, record)
                found = found or record.hash == head
            if not found:
                raise LedgerHeadError(
                    f"{store.name}: its head is {ledger._tip.head}, not {head}, which no entry "
                    "has: it lost entries, as after a fail-over, or was rewritten; restore the "
                    "newest"
                )
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def postgres(
        cls,
        address: str,
        how: Literal["create", "open", "join"] = "open",
        *,
        head: str | None = None,
        keep_head: KeepHead | None = None,
    ) -> Ledger:
        """A ledger in PostgreSQL, to which processes on several hosts write; see docs/how-to.

        Args:
            address: ``postgresql://user@host/database?ledger=name``, and whatever else libpq takes.
            how: ``"create"`` makes it, and where the role may the tables; ``"open"`` begins a new
                epoch: processes of earlier ones can neither spend nor release any more; ``"join"``
                writes beside the others of the epoch, for `Accountant.join`.
            head: one that was kept elsewhere, which it must hold: a server that lost entries, as
                after a fail-over to a standby that was behind, does not.
            keep_head: as for `create`; each process keeps those of its own entries.

        Raises:
            LedgerHeadError: ``head`` is not in it, or must be given, as it says that heads are kept
                elsewhere.
            LedgerUnreadableError: there is none, or it is broken.
            LedgerError: ``"create"``, and there is one; the server cannot be reached, or does not
                keep what it commits (``fsync``, ``full_page_writes``, a standby); or the extra
                ``postgres`` is not installed.
            ValueError: no such ``how``, or ``head`` is none.
        """
        if how not in ("create", "open", "join"):  # "open" would end all other processes' epoch
            raise ValueError(f"how = {how!r}: must be 'create', 'open' or 'join'")
        check_form_of_head(head)
        with extra_needed():
            from privlearn.ledger.postgres import PostgresStore
        store = PostgresStore(address, how)
        ledger = cls.over(store, head=head, keep_head=keep_head)
        if any(map(kept_elsewhere, ledger.opened)) and (head is None or keep_head is None):
            ledger.close()
            raise LedgerHeadError(
                f"{store.name} says that its heads are kept elsewhere: give head=, the last of "
                "them, and keep_head="
            )
        return ledger

    @classmethod
    def connect(
        cls,
        socket: str | os.PathLike[str],
        *,
        head: str | None = None,
    ) -> Ledger:
        """A ledger file whose owner, `privlearn ledger serve`, other processes write to as well.

        Heads are kept elsewhere by the owner, if they are.

        Args:
            socket: of the owner, which is a process of the same user on this host.
            head: one that was kept elsewhere, which it must hold.

        Raises:
            LedgerError: nobody serves there, or not a process of this user.
            LedgerHeadError: ``head`` is not in it.
            LedgerUnreadableError: broken.
            ValueError: ``head`` is none.
        """
        check_form_of_head(head)
        from privlearn.ledger.socket_store import SocketStore  # asyncio takes long to import

        store = SocketStore(socket)
        ledger = cls.over(store, head=head)
        ledger._heads.elsewhere = store.heads_elsewhere
        return ledger

    @property
    def durable(self) -> bool:
        """Whether it outlives this process."""
        return self.path is not None or self._shared is not None

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it."""
        return self._shared is not None

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        if self._shared is not None:
            return self._shared.name
        return "the ledger" if self.path is None else str(self.path)

    def turn(self) -> AbstractContextManager[Sequence[str]]:
        """A block in which no other process can append, and all that others wrote is known.

        Returns the ids of tokens and reserved parts of processes that are gone.  Where nobody else
        writes it is nothing.

        Raises:
            LedgerFencedError: the ledger was opened anew since.
            LedgerBusyError: others held it for too long.
            LedgerClosedError, LedgerError, TokenCopyError, ReentryError: as `append`.
        """
        return Block(self._turn)

    def _turn(self) -> Generator[Sequence[str]]:
        if self._shared is None or self._replica is None:
            yield ()
            return
        with self._turn_lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            with self._shared.turn(self._replica.size) as turn:
                yield from self._taken(self._replica, turn)

    def _taken(self, replica: Replica, turn: Turn) -> Generator[Sequence[str]]:
        with self._lock:
            if replica.broken:
                raise LedgerError(f"{self.name} was followed half-way: open the ledger again")
            replica.broken = True  # where a signal's exception ends it, some are known in part
            for record in turn.records:
                entry = self._take_in(replica, record)
                for queue in self._listeners:
                    queue.put(entry)
            replica.broken = False
        replica.in_turn = True
        try:
            yield turn.orphans
        finally:
            replica.in_turn = False

    def _take_in(self, replica: Replica, record: Record) -> Entry:
        entry = replica.take_in(record)
        self._accounts.note(entry)
        self._read = None
        return entry

    def enter(self, accountant: str, *, alone: bool = False) -> None:
        """Says, in a turn, that this process writes for an accountant; see `SharedStore.enter`.

        Raises:
            LedgerBusyError: ``alone``, and another process does.
        """
        if self._shared is not None:
            self._shared.enter(accountant, alone=alone)

    def append(
        self,
        entry: Entry,
        *,
        after: int | None = None,
        first: bool = False,
        beside: Callable[[Sequence[OpenEntry]], None] | None = None,
        value: Value | None = None,
        nonce: str | None = None,
        later: bool = False,
    ) -> None:
        """Adds an entry; returns when what it protects is durable (at once for a memory ledger).

        ``after`` is the number of its accountant's entries that the writer knows of, if it relies
        on them; ``first`` says that the writer relies on an empty ledger, and ``beside`` raises
        why the entry cannot stand behind the accountants that the ledger opens.  ``value``, bytes
        and the digest that they are kept under, is written with the entry, or not at all; a ledger
        in memory keeps none.  ``nonce`` is for an ``issue``: 32 lower-case hexadecimal digits by
        which `issued_under` finds it, and that no other entry has; default, random ones.
        ``later``: an entry in a file is durable once `settled` returns, and nothing is to be
        released for it before.

        Raises:
            LedgerClosedError: closed.
            LedgerBusyError: somebody else has written since then.
            TokenCopyError: called in a forked process.
            LedgerError: it could not be written, or whether the entry before stands there is not
                known, as it was interrupted.
            LedgerHeadError: it stands there, but its head could not be kept.
            ReentryError: called from inside a call that is not done.
            NonceReusedError: a token was issued under that nonce.
        """
        with self._lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            if nonce is not None and self._position_under(nonce) is not None:
                raise NonceReusedError(f"nonce {nonce}: a token was issued under it before")
            broken = self._replica is not None and self._replica.broken
            if self._doubtful is not None or broken:
                raise LedgerError("an entry was interrupted half-way: open the ledger again")
            if first and self._accounts.counts:
                raise LedgerBusyError("another accountant has begun this ledger")
            if after is not None and after != self._accounts.counts[entry.accountant]:
                raise LedgerBusyError(
                    "another accountant has resumed this ledger: only the last one may write"
                )
            if beside is not None:
                beside(self._accounts.opens)
            if self._memory is None:
                self._write(entry, value, nonce, later)
            else:
                self._memory.check(entry)
                self._doubtful = entry
                self._memory.write(entry, nonce)
            self._doubtful = entry  # where a signal's exception ends it
            self._accounts.note(entry)
            self._doubtful = None
            for queue in self._listeners:
                queue.put(entry)
            if self.durable and not (self._disk is not None and self._disk.pending):
                self._tell_head()

    def issued_under(self, nonce: str) -> IssueEntry | None:
        """The entry that a token was issued with under a nonce; None if none was.

        Of a shared ledger, as far as this process knows: ask in a `turn`.

        Raises:
            ValueError: it is not 32 lower-case hexadecimal digits.
        """
        found = next(self.since(nonce), None)
        assert found is None or isinstance(found, IssueEntry)
        return found

    def since(self, nonce: str) -> Iterator[Entry]:
        """The entry that a token was issued with under a nonce, and all that follow it.

        Raises:
            ValueError: it is not 32 lower-case hexadecimal digits.
        """
        with self._lock:
            position = self._position_under(nonce)
            size, read = self._tip.size, self._read
        if position is None:
            return
        if read is not None:
            yield from islice(read, position, None)
            return
        if self._shared is not None:
            records = self._shared.iterate(position)
        else:
            assert self.path is not None
            records = iterate_records(self.path, vouched=True, begin=position)
        for record in islice(records, size - position):
            yield parse_entry(record.body, record.ext)

    def _position_under(self, nonce: str) -> int | None:
        check_nonce(nonce)
        if self._memory is not None:
            self._memory.complete()
        return self._tip.nonces.position(nonce)

    def listen(self, queue: Queue) -> int:
        """Puts every entry that stands from now on into a queue, and says how many stood before.

        Whoever takes them out can neither delay nor stop what is written.
        """
        with self._lock:
            self._listeners.append(queue)
            return self._accounts.counts.total()

    def unlisten(self, queue: Queue) -> None:
        """Ends `listen`."""
        with self._lock:
            self._listeners.remove(queue)

    def may_hold(self, entry: Entry) -> bool:
        """Whether this very entry stands here, or may stand here as `append` was interrupted.

        Asked by an accountant for its last entry, with no other on its way.
        """
        return entry is self._doubtful or entry is self._accounts.newest.get(entry.accountant)

    def check_own(self) -> None:
        """Raises what `append` would, if the file is not there or somebody else wrote to it."""
        if not self.durable:
            return
        with self._lock:
            if self._closed:
                raise LedgerClosedError("the ledger is closed")
            if self._shared is not None:
                self._shared.check()
            elif self._file is not None:
                self._file.check_own(self._tip.last)

    def _tell_head(self, standing: Head | None = None) -> None:
        """Keeps the head of what is on disk, beside the file and wherever else it is wanted.

        Beside a file whose head was unknown none is kept before the accounts that it may have
        forgotten spends of say so themselves: else the next process would find all in order.
        """
        head = self._standing() if standing is None else standing
        self._heads.keep(head, self._tip.head, beside=not self._accounts.unsaid)

    def _standing(self) -> Head:
        return Head(self._tip.size, self._tip.head)

    def value(self, digest: str) -> bytes | None:
        """What was written with an entry under that digest; None where nothing was.

        Raises:
            LedgerUnreadableError: it was changed.
        """
        store = self._file or self._shared
        assert store is not None
        with self._lock:
            data = store.value(digest)
        if data is not None:
            unpacked(data, digest)
        return data

    def _write(self, entry: Entry, value: Value | None, nonce: str | None, later: bool) -> None:
        record = self._tip.make(entry, this_minute(), nonce)
        if not storable(entry.__dict__.values()):
            parse(record.data)  # raises for what a reader would refuse, and the whole file with it
        store = self._file or self._shared
        assert store is not None
        stands = record
        self._doubtful = entry
        try:
            if self._replica is not None:
                stands = self._replica.write(record, value)
            elif self._file is not None:
                self._file.write(record, value, self._tip.last, later=later)
        except BaseException:
            if not store.doubtful:
                self._doubtful = None
            raise
        if self._replica is not None:  # what ends it from here on leaves the entry doubtful
            self._replica.follow(stands, record)
        else:
            self._last_record = record
            self._tip.add(record)
        self._read = None

    @property
    def _disk(self) -> Disk | None:
        return None if self._file is None else self._file.disk

    @property
    def _connection(self) -> sqlite3.Connection | None:
        return None if self._file is None else self._file.disk.connection

    # For the owner of a file that other processes write to through it -----------------------------

    @property
    def size(self) -> int:
        """How many entries it has."""
        return self._tip.size

    @property
    def epoch(self) -> int:
        """Which opening of the ledger this is, from 1."""
        return self._tip.epoch

    @property
    def writer(self) -> str:
        """Who writes since it was opened, 16 hexadecimal digits."""
        return self._tip.writer

    @property
    def last_record(self) -> Record:
        """Of a file: what was appended last, since it was opened."""
        assert self._last_record is not None
        return self._last_record

    def stored(self, begin: int, most_bytes: int) -> list[bytes]:
        """Of a file: lines of an export from a position on, at least one if there is one."""
        assert self._file is not None
        with self._lock:
            # what somebody else wrote behind its own is not this ledger's
            return self._file.lines(begin, self._tip.last, most_bytes)

    def settling(self) -> Settling:
        """What brings to disk all that was appended ``later``; then call `settled`."""
        with self._lock:
            assert self._disk is not None
            return Settling(self._disk, self._standing())

    def settled(self, done: Settling) -> None:
        """Keeps the head of what was synced.

        Raises:
            LedgerHeadError: it could not be kept.  LedgerError, LedgerBusyError: as `append`.
        """
        with self._lock:
            assert self._file is not None
            all_of_it = self._file.settle_later(done.head.entries, self._tip.last)
            self._tell_head(None if all_of_it else done.head)

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first; of a file they are read again."""
        with self._lock:
            if self._read is not None:
                return tuple(self._read)
        return tuple(parse_entry(record.body, record.ext) for record in self.iterate())

    def entries_of(self, accountant: str) -> int:
        """How many entries one accountant has."""
        return self._accounts.counts[accountant]

    @property
    def opened(self) -> Sequence[OpenEntry]:
        """How the accountants that it holds were opened, in their order."""
        return tuple(self._accounts.opens)

    @property
    def open_accountants(self) -> frozenset[str]:
        """The accountants that were opened and not closed."""
        with self._lock:
            return frozenset(self._accounts.open)

    @property
    def keeps_heads_elsewhere(self) -> bool:
        """Whether each head is handed to somebody who keeps it."""
        return self._heads.elsewhere

    @property
    def records(self) -> list[Record]:
        """All entries with their hashes, oldest first; on disk before they are told."""
        return list(self.iterate())

    def iterate(self) -> Iterator[Record]:
        """As `records`, one by one; entries of a file are not held in memory."""
        with self._lock:
            self._complete()
            size = self._tip.size
        if self._shared is not None:
            yield from islice(self._shared.iterate(0), size)
            return
        if self._memory is not None:
            yield from self._memory.records[:size]
            return
        assert self.path is not None
        yield from islice(iterate_records(self.path, vouched=True), size)

    @property
    def head(self) -> str:
        """The last hash, on disk before it is told; keep it elsewhere to detect cuts."""
        with self._lock:
            self._complete()
            if self._shared is not None:
                self._shared.settle()
            return self._tip.head

    def keep_head_again(self) -> None:
        """Keeps the head of what is on disk, as it may not have been kept when it was written.

        Raises:
            LedgerHeadError: it could not be kept.  LedgerClosedError, LedgerBusyError, LedgerError,
            TokenCopyError, ReentryError: as `append`.
        """
        self.check_own()
        with self._lock:
            self._complete()
            if self._shared is not None:
                self._shared.settle()  # whoever owns it keeps its head then
            if self.durable:
                self._tell_head()

    def holds(self, head: str) -> bool:
        """Whether a hash is that of one of its entries, or of none before the first."""
        return head == GENESIS or any(record.hash == head for record in self.iterate())

    @property
    def root(self) -> str:
        """The Merkle root (RFC 6962) of the hashes of all entries."""
        with self._lock:
            self._complete()
            return self._tip.tree.root

    def _complete(self) -> None:
        """Chains what a memory ledger holds, and brings to disk what may wait."""
        if self._memory is not None:
            self._memory.complete()
        elif self._file is not None and self._file.disk.pending and not self._closed:
            ours = self._file.settle(self._tip.last)
            if ours and not self._accounts.unsaid:
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
            what = self.name if self.shared else "a ledger in memory"
            raise LedgerError(f"{what} has no file to copy: export(path) writes one")
        with self._lock:
            self._complete()
        return backup(self.path, path, vouched=True)

    def close(self) -> None:
        """Flushes everything into the one file and releases it; may be called twice.

        While somebody else reads the file, the last entries stay in the ``-wal`` file beside it.
        In a forked process the file is left alone, as it is the parent's.
        """
        if self._lock.made_in != processes.here():
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            if self._file is not None:
                try:
                    self._file.disk.check_place()
                    self._complete()
                except LedgerError:
                    pass  # what may wait need not stand, and a head may be an earlier one
                self._closed = True
                self._file.close()
            self._closed = True
            self._heads.close()
            if self._shared is not None:
                self._shared.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_CLOCK_MAY_BE_OFF = 2  # minutes
