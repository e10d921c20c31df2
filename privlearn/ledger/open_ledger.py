"""A ledger that is open: what is appended to it and read of it, one thread at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self, final

from privlearn.errors import LedgerError
from privlearn.ledger.backups import backup
from privlearn.ledger.chain import GENESIS, Record
from privlearn.ledger.disk import Disk
from privlearn.ledger.entries import Entry, OpenEntry, parse_entry
from privlearn.ledger.entry_log import EntryLog
from privlearn.ledger.exports import write_export
from privlearn.ledger.heads import Head
from privlearn.ledger.kept_heads import KeepHead, KeptHeads
from privlearn.ledger.last_record import Tip
from privlearn.ledger.replica import Replica
from privlearn.ledger.stores import SharedStore, Value
from privlearn.ledger.values import unpacked
from privlearn.storage import processes
from privlearn.storage.exclusive import Block, Exclusive


class Queue(Protocol):
    """Takes entries at once, and never waits, as `queue.SimpleQueue` does."""

    def put(self, item: Entry, /) -> None:
        """Takes one more."""


@final
class Settling:
    """One sync of what stood in a file when it was made.

    Attributes:
        head: of what stood.
    """

    def __init__(self, disk: Disk, head: Head) -> None:
        self._disk, self.head = disk, head

    def sync(self) -> None:
        """Returns when it is on disk; a thread may call it while another one appends.

        Raises:
            LedgerError: the sync failed, and nothing more is recorded by this process.
        """
        self._disk.sync_log()


class OpenLedger:
    """What every `privlearn.ledger.Ledger` does once it is open, wherever its entries stand.

    Attributes:
        path: absolute; None for a ledger in memory, and one that others write to.
        shared: whether other processes may write to it.
        checks_ahead: whether an owner checks every entry, so that some need no turn; see `append`.
        grantee: who this process writes for, if only what was granted to them; None if for anybody.
        unknown_head: whether it was opened without a head to compare it with.
        log: its entries and where they stand; for who holds all of it, as its owner does.
    """

    def __init__(
        self,
        path: Path | None = None,
        keep_head: KeepHead | None = None,
        shared: SharedStore | None = None,
        tip: Tip | None = None,
    ) -> None:
        self.path, self.shared = path, shared is not None
        self._lock = Exclusive("a ledger")
        self._turn_lock = Exclusive("a turn of a ledger")
        self._shared = shared
        self.grantee = None if shared is None else shared.grantee
        self.checks_ahead = shared is not None and shared.checks
        self.log = EntryLog(path, shared, tip)
        self._heads = KeptHeads(self.name, path, keep_head)
        self._listeners: list[Queue] = []
        self.unknown_head = False

    @property
    def durable(self) -> bool:
        return self.log.durable

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        return self.log.name

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
        replica = self.log.replica
        if self._shared is None or replica is None:
            yield ()
            return
        with self._turn_lock:
            self.log.check_open()
            with self._shared.turn(replica.size) as turn:
                self._follow(replica, turn.records)
                replica.in_turn = True
                try:
                    yield turn.orphans
                finally:
                    replica.in_turn = False

    def _follow(self, replica: Replica, records: Iterable[Record]) -> None:
        with self._lock:
            if replica.broken:
                raise LedgerError(f"{self.name} was followed half-way: open the ledger again")
            replica.broken = True  # where a signal's exception ends it, some are known in part
            for record in records:
                entry = self.log.take_in(record)
                for queue in self._listeners:
                    queue.put(entry)
            replica.broken = False
            self.log.last_ahead = None

    def _catch_up(self) -> None:
        """Follows what was written ahead of what this process knows of."""
        if self.log.last_ahead is not None and not self.log.closed:
            with self.turn():
                pass

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
        minute: int | None = None,
        ahead: bool = False,
    ) -> None:
        """Adds an entry; returns when what it protects is durable (at once for a memory ledger).

        ``after`` is the number of its accountant's entries that the writer knows of, if it relies
        on them; ``first`` says that the writer relies on an empty ledger, and ``beside`` raises
        why the entry cannot stand behind the accountants that the ledger opens.  ``value``, bytes
        and the digest that they are kept under, is written with the entry, or not at all; a ledger
        in memory keeps none.  ``nonce`` is for an ``issue``: 32 lower-case hexadecimal digits by
        which `since` finds it, and that no other entry has; default, random ones.
        ``later``: an entry in a file is durable once `settled` returns, and nothing is to be
        released for it before.  ``minute``: that it tells, of `next_minute`; default, by the clock.
        ``ahead``, where `checks_ahead`: an entry that relies on no other that this process knows of
        is written outside of a turn, and stands among `entries` from the next turn on.

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
        if ahead:
            with self._turn_lock, self._lock:
                self.log.check_next(entry, after=None, first=False, beside=None, nonce=None)
                self.log.add_ahead(entry, value, nonce)
            return
        with self._lock:
            log = self.log
            log.check_next(entry, after=after, first=first, beside=beside, nonce=nonce)
            log.add(entry, value, nonce, later, minute)
            for queue in self._listeners:
                queue.put(entry)
            if log.durable and not log.waits:
                self._tell_head()

    @property
    def minute(self) -> int:
        """Since 1970, as told by the last entry of a shared ledger that tells one."""
        return self.log.tip.minute

    def next_minute(self) -> int:
        """The minute, since 1970, that the next entry would tell; 0 where the clock is behind.

        Of a shared ledger, as far as this process knows: ask in a `turn`.
        """
        with self._lock:
            return self.log.next_minute()

    def since(self, nonce: str) -> Iterator[Entry]:
        """The entry that a token was issued with under a nonce, and all that follow it.

        Of a shared ledger, as far as this process knows: ask in a `turn`.

        Raises:
            ValueError: it is not 32 lower-case hexadecimal digits.
        """
        with self._lock:
            position = self.log.position_under(nonce)
            found = iter(()) if position is None else self.log.entries_from(position)
        yield from found

    def listen(self, queue: Queue) -> int:
        """Puts every entry that stands from now on into a queue, and says how many stood before.

        Whoever takes them out can neither delay nor stop what is written.
        """
        with self._lock:
            self._listeners.append(queue)
            return self.log.accounts.counts.total()

    def unlisten(self, queue: Queue) -> None:
        with self._lock:
            self._listeners.remove(queue)

    def may_hold(self, entry: Entry) -> bool:
        """Whether this very entry stands here, or may stand here as `append` was interrupted.

        Asked by an accountant for its last entry, with no other on its way.
        """
        log = self.log
        newest = log.accounts.newest.get(entry.accountant)
        return entry is log.doubtful or entry is log.last_ahead or entry is newest

    def check_own(self) -> None:
        """Raises what `append` would, if the file is not there or somebody else wrote to it."""
        if self.durable:
            with self._lock:
                self.log.check_own()

    def _tell_head(self, standing: Head | None = None) -> None:
        """Keeps the head of what is on disk, beside the file and wherever else it is wanted.

        Beside a file whose head was unknown none is kept before the accounts that it may have
        forgotten spends of say so themselves: else the next process would find all in order.
        """
        log = self.log
        head = log.standing() if standing is None else standing
        self._heads.keep(head, log.tip.head, beside=not log.accounts.unsaid)

    def value(self, digest: str) -> bytes | None:
        """What was written with an entry under that digest; None where nothing was.

        Raises:
            LedgerUnreadableError: it was changed.
        """
        with self._lock:
            data = self.log.value(digest)
        if data is not None:
            unpacked(data, digest)
        return data

    @property
    def _disk(self) -> Disk | None:
        return None if self.log.file is None else self.log.file.disk

    @property
    def _connection(self) -> sqlite3.Connection | None:
        return None if self._disk is None else self._disk.connection

    # For the owner of a file that other processes write to through it -----------------------------

    def stored(self, begin: int, most_bytes: int) -> list[bytes]:
        """Of a file: lines of an export from a position on, at least one if there is one."""
        file = self.log.file
        assert file is not None
        with self._lock:
            # what somebody else wrote behind its own is not this ledger's
            return file.lines(begin, self.log.tip.last, most_bytes)

    def settling(self) -> Settling:
        """What brings to disk all that was appended ``later``; then call `settled`."""
        with self._lock:
            assert self._disk is not None
            return Settling(self._disk, self.log.standing())

    def settled(self, done: Settling) -> None:
        """Keeps the head of what was synced.

        Raises:
            LedgerHeadError: it could not be kept.  LedgerError, LedgerBusyError: as `append`.
        """
        file = self.log.file
        assert file is not None
        with self._lock:
            all_of_it = file.settle_later(done.head.entries, self.log.tip.last)
            self._tell_head(None if all_of_it else done.head)

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first; of a file they are read again."""
        self._catch_up()
        with self._lock:
            held = self.log.held_from(0)
            if held is not None:
                return tuple(held)
        return tuple(parse_entry(record.body, record.ext) for record in self.iterate())

    def entries_of(self, accountant: str) -> int:
        """How many entries one accountant has."""
        return self.log.accounts.counts[accountant]

    @property
    def opened(self) -> Sequence[OpenEntry]:
        """How the accountants that it holds were opened, in their order."""
        return tuple(self.log.accounts.opens)

    @property
    def open_accountants(self) -> frozenset[str]:
        """The accountants that were opened and not closed."""
        with self._lock:
            return frozenset(self.log.accounts.open)

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
        self._catch_up()
        with self._lock:
            self._complete()
            found = self.log.records_from(0)
        yield from found

    @property
    def head(self) -> str:
        """The last hash, on disk before it is told; keep it elsewhere to detect cuts."""
        self._catch_up()
        with self._lock:
            self._complete()
            if self._shared is not None:
                self._shared.settle()
            return self.log.tip.head

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
        self._catch_up()
        with self._lock:
            self._complete()
            return self.log.tip.tree.root

    def _complete(self) -> None:
        if self.log.complete():
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
        log = self.log
        if self._lock.made_in != processes.here():
            log.closed = True
            return
        with self._lock:
            if log.closed:
                return
            if log.file is not None:
                try:
                    log.file.disk.check_place()
                    self._complete()
                except LedgerError:
                    pass  # what may wait need not stand, and a head may be an earlier one
                log.closed = True
                log.file.close()
            log.closed = True
            self._heads.close()
            if self._shared is not None:
                self._shared.close()

    @property
    def closed(self) -> bool:
        return self.log.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
