"""The entries of a ledger: in memory, in a file, or where others write, too."""

from __future__ import annotations

import math
import pickle
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar, final
from zlib import compress, decompress

from privlearn.errors import LedgerBusyError, LedgerClosedError, LedgerError, NonceReusedError
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import LAST_MINUTE, Record
from privlearn.ledger.entries import (
    CloseEntry,
    Entry,
    OpenEntry,
    ResumeEntry,
    SpendEntry,
    made,
    parse_entry,
)
from privlearn.ledger.file_store import FileStore
from privlearn.ledger.heads import Head
from privlearn.ledger.last_record import Tip
from privlearn.ledger.nonces import check_nonce
from privlearn.ledger.reader import iterate_records
from privlearn.ledger.records import parse
from privlearn.ledger.replica import Replica
from privlearn.ledger.spend_forms import KNOWN
from privlearn.ledger.stores import SharedStore, Value

CLOCK_MAY_BE_OFF = 2
"""Minutes by which a clock may be behind the last entry without a word."""
_PLAIN_DEPTH = 16
B = TypeVar("B")
E = TypeVar("E")


@final
class EntryLog:
    """One chain that is written to; its `Ledger` calls it one thread at a time.

    Args:
        path: of the file.
        shared: where others write, too; without both it stands in memory.
        tip: where the chain ends; default, before its first entry.

    Attributes:
        name: where it is, for messages.
        durable: whether it outlives this process.
        tip: where the chain ends.
        file, replica: where it is written to, and None elsewhere.
        accounts: what the entries say of their accountants.
        read: all entries of a file; None once they have to be read again, after the first that is
            written.
        doubtful: an entry that may stand, though writing it was interrupted.
        last_ahead: the last entry that was written ahead, until others are followed to it.
        last_record: of a file, what was written last; None before that.
        closed: whether nothing may be written any more.
    """

    def __init__(self, path: Path | None, shared: SharedStore | None, tip: Tip | None) -> None:
        self._path, self._shared = path, shared
        self.durable = path is not None or shared is not None
        self.name = "the ledger" if path is None else str(path)
        self.replica: Replica | None = None
        if shared is not None:
            self.name, self.replica = shared.name, Replica(shared)
        self.tip = tip or (Tip.new() if self.replica is None else self.replica.tip)
        self.file = None if path is None else FileStore(path)
        self._memory = None if self.durable else MemoryLog(self.tip)
        self.read: list[Entry] | None = []
        self.accounts = AccountIndex()
        self.doubtful: Entry | None = None
        self.last_ahead: Entry | None = None
        self.last_record: Record | None = None
        self.closed = False

    def go_on_with(self, entries: list[Entry], *, unsaid: bool) -> None:
        """Takes what a file holds that was opened.

        ``unsaid``: it was opened without a head, which its accounts do not say yet.
        """
        assert self.file is not None
        self.file.disk.pending = True  # what a process left that died, its last issue, say
        for entry in entries:
            self.accounts.note(entry)
        self.read = entries
        if unsaid:
            self.accounts.unsaid = frozenset(self.accounts.open)

    def take_in(self, record: Record) -> Entry:
        """Follows an entry that others wrote.

        Raises:
            LedgerUnreadableError: it does not continue the chain.
        """
        assert self.replica is not None
        entry = self.replica.take_in(record)
        self.accounts.note(entry)
        self.read = None
        return entry

    # Writing --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises LedgerClosedError once it is closed."""
        if self.closed:
            raise LedgerClosedError("the ledger is closed")

    def check_next(
        self,
        entry: Entry,
        *,
        after: int | None,
        first: bool,
        beside: Callable[[Sequence[OpenEntry]], None] | None,
        nonce: str | None,
    ) -> None:
        """Raises why an entry cannot be the next one; see `Ledger.append`."""
        self.check_open()
        if nonce is not None and self.position_under(nonce) is not None:
            raise NonceReusedError(f"nonce {nonce}: a token was issued under it before")
        broken = self.replica is not None and self.replica.broken
        if self.doubtful is not None or broken:
            raise LedgerError("an entry was interrupted half-way: open the ledger again")
        if first and self.accounts.counts:
            raise LedgerBusyError("another accountant has begun this ledger")
        if after is not None and after != self.accounts.counts[entry.accountant]:
            raise LedgerBusyError(
                "another accountant has resumed this ledger: only the last one may write"
            )
        if beside is not None:
            beside(self.accounts.opens)

    def add_ahead(self, entry: Entry, value: Value | None, nonce: str | None) -> None:
        """Has an entry written behind entries that are not known here; it is followed later."""
        store = self._shared
        assert store is not None
        record = self._made(entry, nonce, this_minute())
        self.doubtful = entry
        try:
            store.write_ahead(record, value)
        except BaseException:
            if not store.doubtful:
                self.doubtful = None
            raise
        self.last_ahead, self.doubtful = entry, None

    def add(
        self,
        entry: Entry,
        value: Value | None,
        nonce: str | None,
        later: bool,
        minute: int | None = None,
    ) -> None:
        """Writes the next entry; see `Ledger.append`."""
        if minute is None:
            minute = this_minute()
        if self._memory is None:
            self._write(entry, value, nonce, later, minute)
        else:
            kept = self._memory.checked(entry)
            self.doubtful = entry
            self._memory.write(kept, nonce, minute)
        self.doubtful = entry  # where a signal's exception ends it
        self.accounts.note(entry)
        self.doubtful = None

    def _write(
        self, entry: Entry, value: Value | None, nonce: str | None, later: bool, minute: int
    ) -> None:
        record = self._made(entry, nonce, minute)
        store = self.file or self._shared
        assert store is not None
        stands = record
        self.doubtful = entry
        try:
            if self.replica is not None:
                stands = self.replica.write(record, value)
            elif self.file is not None:
                self.file.write(record, value, self.tip.last, later=later)
        except BaseException:
            if not store.doubtful:
                self.doubtful = None
            raise
        if self.replica is not None:  # what ends it from here on leaves the entry doubtful
            self.replica.follow(stands, record)
        else:
            self.last_record = record
            self.tip.add(record)
        self.read = None

    def _made(self, entry: Entry, nonce: str | None, minute: int) -> Record:
        record = self.tip.make(entry, minute, nonce)
        if not _is_plain(entry):
            parse(record.data)  # raises for what a reader would refuse, and the whole file with it
        return record

    @property
    def waits(self) -> bool:
        """Whether the last entries of a file may not be on disk yet."""
        return self.file is not None and self.file.disk.pending

    def complete(self) -> bool:
        """Chains what stands in memory, and brings to disk what may wait.

        Returns whether the head is to be kept that is on disk since then.
        """
        if self._memory is not None:
            self._memory.complete()
        if self.file is None or self.closed or not self.file.disk.pending:
            return False
        return self.file.settle(self.tip.last) and not self.accounts.unsaid

    def standing(self) -> Head:
        """The head of all entries."""
        return Head(self.tip.size, self.tip.head)

    def next_minute(self) -> int:
        """That the next entry would tell; 0 where the clock is behind what entries tell.

        By a minute or two the clocks of several hosts may differ: what entries tell goes on.

        Raises:
            LedgerError: as `this_minute`.
        """
        now, last = this_minute(), self.tip.minute if self._memory is None else self._memory.minute
        return max(now, last) if last <= now + CLOCK_MAY_BE_OFF else 0

    def check_own(self) -> None:
        """Raises what `check_next` and `add` would, if somebody else wrote to it."""
        self.check_open()
        if self._shared is not None:
            self._shared.check()
        elif self.file is not None:
            self.file.check_own(self.tip.last)

    # Reading --------------------------------------------------------------------------------------

    def position_under(self, nonce: str) -> int | None:
        """Of the entry that a token was issued with under a nonce; None if none was.

        Raises:
            ValueError: it is not 32 lower-case hexadecimal digits.
        """
        check_nonce(nonce)
        if self._memory is not None:
            self._memory.complete()
        return self.tip.nonces.position(nonce)

    def records_from(self, position: int) -> Iterator[Record]:
        """The records from a position on, to the last that stands now; of a file, read again."""
        count = self.tip.size - position
        if self._memory is not None:
            return self._memory.records_from(position)
        if self._shared is not None:
            return islice(self._shared.iterate(position), count)
        assert self._path is not None
        return islice(iterate_records(self._path, vouched=True, begin=position), count)

    def entries_from(self, position: int) -> Iterator[Entry]:
        """The entries from a position on, to the last that stands now."""
        held = self.held_from(position)
        if held is not None:
            return held
        return (parse_entry(each.body, each.ext) for each in self.records_from(position))

    def held_from(self, position: int) -> Iterator[Entry] | None:
        """As `entries_from`, without reading them again; None where they have to be."""
        if self._memory is not None:
            return self._memory.entries_from(position)
        return None if self.read is None else islice(self.read, position, None)

    def value(self, digest: str) -> bytes | None:
        """What was written with an entry under that digest; None where nothing was."""
        store = self.file or self._shared
        assert store is not None
        return store.value(digest)


_AT_ONCE = 512
"""Entries that are packed together: what is open of them takes the room of so many."""


@final
class MemoryLog:
    """Entries that are chained no sooner than somebody asks for their hashes.

    All but the last are packed, and made again for whoever reads them: of a long run most of its
    room would else be theirs.  Of what was chained only what was drawn for it is kept.

    Args:
        tip: of the chain.
    """

    def __init__(self, tip: Tip) -> None:
        self._tip = tip
        self._packed: list[bytes] = []
        self._last: list[Entry] = []
        self._records: list[Record] = []
        """Those of `_last` that were chained; see `complete`."""
        self._minutes = array("l")
        self._given: dict[int, str] = {}
        """Nonces that were given, by position."""
        self._nonces = bytearray()
        self._heads = [tip.head]
        """The hash before each block that was chained up to its first entry."""
        self._roots: dict[int, str] = {}

    @staticmethod
    def checked(entry: Entry) -> Entry:
        """What is kept of an entry; raises ValueError for what a file could not hold."""
        if _is_plain(entry):
            return entry
        stored = parse(canonical({"body": entry.body(), "ext": entry.ext()}))
        return parse_entry(stored["body"], stored["ext"])

    @property
    def minute(self) -> int:
        """Of the last entry, since 1970."""
        return self._minutes[-1] if self._minutes else 0

    def write(self, entry: Entry, nonce: str | None, minute: int) -> None:
        """Adds an entry that was `checked`; ``minute``, ``nonce`` as for `Tip.make`."""
        if nonce is not None:
            self._given[len(self._minutes)] = nonce
        self._minutes.append(max(minute, self.minute))
        self._last.append(entry)
        if len(self._last) == _AT_ONCE:
            self._packed.append(_packed(self._last))
            self._last, self._records = [], []

    def complete(self) -> None:
        """Chains what was not chained yet."""
        tip = self._tip
        packed, done = len(self._packed) * _AT_ONCE, tip.size
        del self._nonces[16 * done :]  # of an entry whose chaining a signal's exception ended
        del self._heads[done // _AT_ONCE + 1 :]
        del self._records[max(done - packed, 0) :]
        for seq, entry in enumerate(self.entries_from(done), done):
            record = tip.make(entry, self._minutes[seq], self._given.get(seq))
            assert record.envelope is not None
            self._nonces += bytes.fromhex(record.envelope["nonce"])
            if "root" in record.envelope:
                self._roots[seq] = record.envelope["root"]
            if (seq + 1) % _AT_ONCE == 0:
                self._heads.append(record.hash)
            if seq >= packed:
                self._records.append(record)
            tip.add(record)

    def entries_from(self, position: int) -> Iterator[Entry]:
        """The entries from a position on that stand now, oldest first."""
        return _from(position, self._packed.copy(), _unpacked, self._last.copy())

    def records_from(self, position: int) -> Iterator[Record]:
        """As `entries_from`, of those that were chained."""
        blocks = list(enumerate(self._packed[: len(self._heads) - 1]))
        return _from(position, blocks, self._made_again, self._records.copy())

    def _made_again(self, numbered: tuple[int, bytes]) -> Iterator[Record]:
        number, block = numbered
        head, tip = self._heads[number], self._tip
        for seq, entry in enumerate(_unpacked(block), number * _AT_ONCE):
            record = Record.make(
                head,
                seq,
                entry.body(),
                ext=entry.ext(),
                writer=tip.writer,
                epoch=tip.epoch,
                minute=self._minutes[seq],
                root=self._roots.get(seq),
                nonce=self._nonces[16 * seq : 16 * seq + 16].hex(),
            )
            head = record.hash
            yield record


def _packed(entries: list[Entry]) -> bytes:
    """Of this process, for this process: nobody else's bytes are ever unpacked."""
    return compress(pickle.dumps([(each.__class__, each.__dict__) for each in entries], 5), 1)


def _unpacked(block: bytes) -> Iterator[Entry]:
    return (made(kind, fields) for kind, fields in pickle.loads(decompress(block)))


def _from(
    position: int, blocks: Sequence[B], unpacked: Callable[[B], Iterator[E]], last: list[E]
) -> Iterator[E]:
    first, skipped = divmod(position, _AT_ONCE)
    if first >= len(blocks):
        return islice(last, position - len(blocks) * _AT_ONCE, None)
    each = chain.from_iterable([chain.from_iterable(map(unpacked, blocks[first:])), last])
    return islice(each, skipped, None)


@final
class AccountIndex:
    """What entries say of their accountants, each by its id.

    Attributes:
        newest: the last entry of each, by which it is told whether an append was done.
        counts: how many entries each has.
        opens: how they were opened, in their order.
        open: those that were opened and not closed.
        unsaid: those that can go on, and whose entries do not say yet that the head was unknown.
    """

    def __init__(self) -> None:
        self.newest: dict[str, Entry] = {}
        self.counts: Counter[str] = Counter()
        self.opens: list[OpenEntry] = []
        self.open: set[str] = set()
        self.unsaid: frozenset[str] = frozenset()

    def note(self, entry: Entry) -> None:
        """One more entry stands."""
        self.newest[entry.accountant] = entry
        self.counts[entry.accountant] += 1
        if entry.__class__ is OpenEntry:
            self.opens.append(entry)
            self.open.add(entry.accountant)
        elif entry.__class__ is CloseEntry:
            self.open.discard(entry.accountant)
        elif entry.__class__ is ResumeEntry:
            self.unsaid -= {entry.accountant}


def this_minute() -> int:
    """Minutes since 1970, by the clock of this host.

    Raises:
        LedgerError: no entry can tell them.
    """
    try:
        minute = int(time.time() // 60)
    except OverflowError:  # Python's clock ends in 2262
        minute = LAST_MINUTE + 1
    if not 0 <= minute <= LAST_MINUTE:
        raise LedgerError(
            "the clock of this host is not between the years 1970 and 2262: set it; nothing was "
            "recorded"
        )
    return minute


def _is_plain(entry: Entry) -> bool:
    """Whether `storable` holds of all that an entry says."""
    form = KNOWN.get(id(entry.domain)) if isinstance(entry, SpendEntry) else None
    if form is None or not isinstance(entry, SpendEntry) or not form.has(entry):
        return storable(entry.__dict__.values())
    return storable((entry.token, entry.admitted))  # of the rest it was found before


def storable(values: Iterable[object], depth: int = 0) -> bool:
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
            if not storable(value, depth + 1):  # type: ignore[arg-type]
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
