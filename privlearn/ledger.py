"""The append-only, hash-chained record of every plan, token, spend and release.

Each entry is a JSON object.  Every field has its own SHA-256 digest, and the entry's hash covers
the previous hash, the position and all digests; so a changed field is named, and a changed, cut or
re-ordered entry breaks the chain.  Somebody who can rewrite the whole file can rebuild the chain:
keep the head hash elsewhere to detect that.

A file ledger is one SQLite database in WAL mode with ``synchronous=FULL``: `Ledger.append` returns
when the entry is on disk, in the very file that was made or opened.  It has one writer; a second
process that writes makes the first one's next append fail instead of losing count.  Several
accountants of one process may share a `Ledger`; each keeps count of its own entries.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self, final

from privlearn._exclusive import Exclusive
from privlearn.entries import CloseEntry, Entry, FunctionsEntry, OpenEntry, parse_entry
from privlearn.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    LedgerSchemaError,
    LedgerUnreadableError,
    TokenCopyError,
)

SCHEMA = 1
_APPLICATION_ID = 0x70726C6E  # "prln"
GENESIS = "0" * 64
_TABLE = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, digests TEXT NOT NULL, hash TEXT NOT NULL,
    kind TEXT NOT NULL, token TEXT
) STRICT;
CREATE UNIQUE INDEX one_of_each_per_token ON entries (kind, token) WHERE token IS NOT NULL;
"""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces; what is hashed."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _storable(value: object) -> bool:
    """Whether a value is plainly JSON; where not, `canonical` says."""
    kind = value.__class__
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if isinstance(value, Enum):
        return value.value.__class__ is str
    if isinstance(value, dict):
        return all([name.__class__ is str and _storable(inside) for name, inside in value.items()])
    if kind is list or kind is tuple:
        return all([_storable(inside) for inside in value])  # type: ignore[attr-defined]
    return isinstance(value, float) and math.isfinite(value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """One stored entry: its body, one digest per field, and the hash that chains it."""

    seq: int
    body: dict[str, Any]
    digests: dict[str, str]
    hash: str

    @classmethod
    def make(cls, previous: str, seq: int, body: dict[str, Any]) -> Record:
        """Seals ``body`` as entry number ``seq`` after the entry with hash ``previous``."""
        digests = {name: _sha256(canonical(value)) for name, value in body.items()}
        return cls(seq, body, digests, chain_hash(previous, seq, digests))

    def to_dict(self) -> dict[str, Any]:
        """JSON form, one line of an export."""
        return {"seq": self.seq, "body": self.body, "digests": self.digests, "hash": self.hash}


def chain_hash(previous: str, seq: int, digests: dict[str, str]) -> str:
    """SHA-256 over the previous hash, the position and the digests of all fields."""
    return _sha256(canonical({"previous": previous, "seq": seq, "digests": digests}))


def chain_problems(records: Sequence[Record], head: str | None = None) -> list[str]:
    """What is wrong with the chain, in words; empty if it is whole and ends at ``head``."""
    problems: list[str] = []
    previous = GENESIS
    for position, record in enumerate(records):
        where = f"entry {record.seq}"
        if record.seq != position:
            problems.append(f"{where}: stands at position {position}; entries were cut or moved")
        found = {name: _sha256(canonical(value)) for name, value in record.body.items()}
        for name in sorted(found.keys() | record.digests.keys()):
            if found.get(name) != record.digests.get(name):
                problems.append(f"{where}: field {name!r} was changed")
        if chain_hash(previous, record.seq, record.digests) != record.hash:
            problems.append(f"{where}: its hash does not fit; it or the entry before was changed")
        previous = record.hash
    if head is not None and previous != head:
        problems.append(f"head is {previous}, not {head}: the ledger was cut or rewritten")
    return problems


@final
class Ledger:
    """A ledger open for writing; `create`, `open` or `memory` make one.

    ``path`` is absolute, and None for a ledger in memory.
    """

    def __init__(self, connection: sqlite3.Connection | None, path: Path | None) -> None:
        self._connection, self.path = connection, path
        self._pid = os.getpid()
        self._lock = Exclusive("a ledger")
        self._doubtful: Entry | None = None
        self._place = None if path is None else _identity(path)
        self._entries: list[Entry] = []
        self._records: list[Record] = []
        self._counts: Counter[str] = Counter()
        self._open: set[str] = set()
        self._closed = False

    @classmethod
    def memory(cls) -> Ledger:
        """A ledger that lives and dies with this process, for simulations."""
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
                f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA};"
                + _TABLE
            )
        try:
            _check_header(where)
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
            LedgerUnreadableError: missing, torn or broken.  LedgerSchemaError: newer version.
            LedgerError: the path names no file.
        """
        where = _located(path)
        records = read_records(where)
        problems = chain_problems(records, head)
        if problems:
            raise LedgerUnreadableError(f"{path} cannot be resumed: {'; '.join(problems)}")
        try:
            entries = [parse_entry(record.body) for record in records]
            ledger = cls(_connect(where), where)
        except (ValueError, sqlite3.Error) as error:
            raise LedgerUnreadableError(f"{path} cannot be resumed: {error}") from None
        ledger._records = records
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
    ) -> None:
        """Adds an entry; returns when it is durable (at once for a memory ledger).

        ``after`` is the number of its accountant's entries that the writer knows of, if it relies
        on them; ``first`` says that the writer relies on an empty ledger, and ``beside`` raises
        why the entry cannot stand behind those that the ledger holds.

        Raises:
            LedgerClosedError: closed.  LedgerBusyError: somebody else has written since then.
            TokenCopyError: called in a forked process.  LedgerError: it could not be written, or
            whether the entry before stands there is not known, as it was interrupted.
            ReentryError: called from inside a call that is not done.
        """
        with self._lock:
            if os.getpid() != self._pid:
                raise TokenCopyError("a ledger cannot be written from a forked process")
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
                self._write(entry)
            elif not all([_storable(value) for value in entry.__dict__.values()]):
                canonical(entry.body())  # raises for what a file could not hold
            self._doubtful = entry  # where a signal's exception ends it
            self._keep(entry)
            self._doubtful = None

    def may_hold(self, entry: Entry) -> bool:
        """Whether this very entry stands here, or may stand here as `append` was interrupted."""
        return entry is self._doubtful or any(entry is kept for kept in reversed(self._entries))

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._counts[entry.accountant] += 1
        if isinstance(entry, OpenEntry):
            self._open.add(entry.accountant)
        elif isinstance(entry, CloseEntry):
            self._open.discard(entry.accountant)

    def _write(self, entry: Entry) -> None:
        body = entry.body()
        record = Record.make(self.head, len(self._records), body)
        with self._sql() as connection:
            self._check_place()
            connection.execute("BEGIN IMMEDIATE")
            last = connection.execute(
                "SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1"
            ).fetchone()
            if last != ((record.seq - 1, self.head) if self._records else None):
                raise LedgerBusyError(
                    f"{self.path} was written to by another process; resume it to go on"
                )
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (
                    record.seq,
                    canonical(body),
                    canonical(record.digests),
                    record.hash,
                    body["entry"],
                    # a stream may meet new functions again and again
                    None if isinstance(entry, FunctionsEntry) else body.get("token"),
                ),
            )
            self._doubtful = entry  # where something else than SQLite ends it
            connection.execute("COMMIT")
        self._records.append(record)

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
            yield self._connection
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
                self._doubtful = None
            if isinstance(error, sqlite3.Error):
                self._doubtful = None
                raise LedgerError(f"{self.path} could not be written: {error}") from error
            raise

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
        """All entries with their digests and hashes, oldest first."""
        with self._lock:
            # A memory ledger is chained only when somebody looks.
            for entry in self._entries[len(self._records) :]:
                previous = self._records[-1].hash if self._records else GENESIS
                self._records.append(Record.make(previous, len(self._records), entry.body()))
            return list(self._records)

    @property
    def head(self) -> str:
        """The last hash; keep it elsewhere to detect cuts and rewrites."""
        records = self.records if self._connection is None else self._records
        return records[-1].hash if records else GENESIS

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all entries as JSON lines."""
        write_export(path, self.records)

    def close(self) -> None:
        """Flushes everything into the one file and releases it; may be called twice.

        While somebody else reads the file, the last entries stay in the ``-wal`` file beside it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._connection is not None:
                # One self-contained file, without -wal and -shm beside it.
                with suppress(sqlite3.OperationalError):
                    self._connection.execute("PRAGMA journal_mode = DELETE")
                self._connection.close()

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


def _check_header(where: Path) -> None:
    """Raises LedgerError unless what SQLite wrote stands in the file itself."""
    with open(where, "rb") as file:
        header = file.read(100)
    # the fields of the header: https://www.sqlite.org/fileformat.html#the_database_header
    if header[68:72] != _APPLICATION_ID.to_bytes(4, "big"):
        raise LedgerError(
            f"{where} is not the file that SQLite writes to: it holds {len(header)} bytes of a "
            "ledger; nothing can be recorded in it"
        )


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # The main file alone is whole after every entry: a copy without its -wal forgets nothing.
    connection.execute("PRAGMA wal_autocheckpoint = 1")
    return connection


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_export(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Writes records as JSON lines, the first line naming the schema."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(canonical({"privlearn_ledger": SCHEMA}) + "\n")
        for record in records:
            file.write(canonical(record.to_dict()) + "\n")


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Reads a ledger file or a JSON-lines export without changing it.

    Raises:
        LedgerUnreadableError: missing, torn or not a ledger.  LedgerSchemaError: newer version.
    """
    where = Path(path)
    if not where.is_file():
        raise LedgerUnreadableError(f"{where}: no such file")
    try:
        with open(where, "rb") as file:
            start = file.read(16)
        return _read_lines(where) if start.startswith(b"{") else _read_database(where)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, sqlite3.Error) as error:
        raise LedgerUnreadableError(f"{where} is not a readable ledger: {error}") from None


def _check_schema(where: Path, schema: object) -> None:
    if not isinstance(schema, int) or schema < 1:
        raise LedgerUnreadableError(f"{where} is not a ledger")
    if schema > SCHEMA:
        raise LedgerSchemaError(
            f"{where} has schema {schema}; this version reads up to {SCHEMA}: upgrade privlearn"
        )


def _read_lines(where: Path) -> list[Record]:
    with open(where, encoding="utf-8") as file:
        _check_schema(where, json.loads(file.readline()).get("privlearn_ledger"))
        lines = [json.loads(line) for line in file]
    return [_record(line["seq"], line["body"], line["digests"], line["hash"]) for line in lines]


def _read_database(where: Path) -> list[Record]:
    # Without a WAL beside it the file is complete, and may lie on a read-only medium.
    mode = "mode=ro" if Path(f"{where}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{where.resolve().as_uri()}?{mode}", uri=True)) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION_ID:
            raise LedgerUnreadableError(f"{where} is not a ledger")
        _check_schema(where, connection.execute("PRAGMA user_version").fetchone()[0])
        rows = connection.execute("SELECT seq, body, digests, hash FROM entries ORDER BY seq")
        return [_record(seq, json.loads(b), json.loads(d), h) for seq, b, d, h in rows]


def _record(seq: int, body: dict[str, Any], digests: dict[str, str], hash: str) -> Record:
    """A record as it was read; what cannot be hashed is not an entry."""
    forms = ((seq, int), (body, dict), (digests, dict), (hash, str))
    if not all(isinstance(value, form) for value, form in forms):
        raise ValueError(f"entry {seq} has no body, digests or hash")
    canonical([body, digests, hash]).encode()
    return Record(seq, body, digests, hash)
