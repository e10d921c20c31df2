"""Reads ledger files and exports from people who are not trusted.

Nothing in a file decides how long reading takes or how much memory it needs, beyond the size of the
file: there are limits on rows, on bytes of an entry, of a line and in all, on nesting and on
numbers, and the database has exactly the tables of its format.  What breaks one is refused by name.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

from privlearn.errors import (
    LedgerFeatureError,
    LedgerSchemaError,
    LedgerUnreadableError,
    PrivlearnError,
)
from privlearn.ledger.addresses import extra_needed, is_address, shown
from privlearn.ledger.chain import GENESIS, KNOWN_FEATURES, MOST_BYTES, SCHEMA, Record
from privlearn.ledger.heads import HEAD, head_path, is_head, read_head
from privlearn.ledger.moments import CHANGED, Moment, Tries, log_path, real_path
from privlearn.ledger.records import (
    APPLICATION_ID,
    ENTRIES,
    MOST_DIGITS,
    RELEASED,
    parse,
    record_in_row_1,
    record_of,
    record_of_1,
)
from privlearn.ledger.tail import needs_no_sync, tail_path, waiting_behind
from privlearn.storage.fork_gate import SQLITE

T = TypeVar("T")

MOST_ENTRIES = 50_000_000
MOST_FILE_BYTES = 64 * 2**30
_MOST_STEPS = 100  # of the progress handler without a row
_STEP = 10_000  # operations of SQLite's virtual machine between two of its calls
_FRAME = len(b'{"entry":'), len(b',"hash":"') + 64 + len(b'"}\n')

_ENTRIES_1 = """CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, digests TEXT NOT NULL, hash TEXT NOT NULL,
    kind TEXT NOT NULL, token TEXT
) STRICT"""
_INDEX_1 = (
    "CREATE UNIQUE INDEX one_of_each_per_token ON entries (kind, token) WHERE token IS NOT NULL"
)
_TABLES = ("table", "entries", "entries", ENTRIES), ("table", "released", "released", RELEASED)
_SCHEMAS: dict[int, tuple[frozenset[tuple[str, str, str, str]], ...]] = {
    1: (
        frozenset(
            {
                ("table", "entries", "entries", _ENTRIES_1),
                ("index", "one_of_each_per_token", "entries", _INDEX_1),
            }
        ),
    ),
    2: (frozenset(_TABLES), frozenset(_TABLES[:1])),
}
_COLUMNS = {1: "seq, body, digests, hash", 2: "seq, entry, hash"}


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Reads all entries at once; see `iterate_records`."""
    return list(iterate_records(path))


def iterate_records(
    path: str | os.PathLike[str], *, vouched: bool = False, begin: int = 0
) -> Iterator[Record]:
    """Reads a ledger file, a JSON-lines export or a ledger in PostgreSQL entry by entry.

    Nothing of it is changed.

    Args:
        path: the file, or ``postgresql://user@host/database?ledger=name``.
        vouched: whether a file whose log is missing is read, too, because the caller compares the
            head, or says that it is not known.
        begin: the position of the first entry that is wanted, of all but an export.

    Raises:
        LedgerUnreadableError: missing, torn, not a ledger, without its log, or beyond a limit.
        LedgerSchemaError: newer version.
        LedgerFeatureError: it needs an unknown extension.
    """
    for page in iterate_pages(path, vouched=vouched, begin=begin):
        yield from page


def iterate_pages(
    path: str | os.PathLike[str], *, vouched: bool = False, begin: int = 0
) -> Iterator[list[Record]]:
    """As `iterate_records`, some entries at once: of bounded size, and at least one.

    Raises:
        PrivlearnError: as `iterate_records`.
    """
    server = is_address(path)
    where = shown(path) if server else Path(path)
    count = 0
    with readable(where):
        for page in _read_server(path, begin) if server else _read_path(Path(path), vouched, begin):
            count += len(page)
            if count > MOST_ENTRIES:
                raise ValueError(f"more than {MOST_ENTRIES} entries")
            for record in page:
                if "features" in record.body:
                    _check_features(where, record.body)
            yield page


def _read_path(where: Path, vouched: bool, begin: int) -> Iterator[list[Record]]:
    check_is_file(where)
    return pages_of(_read_lines(where)) if is_export(where) else _read_file(where, vouched, begin)


def _read_server(address: str | os.PathLike[str], begin: int) -> Iterator[list[Record]]:
    with extra_needed():
        from privlearn.ledger.postgres_reading import read_records as records_of
    size = 0
    for page in pages_of(records_of(address, begin)):
        size += sum(len(record.data) for record in page)
        if size > MOST_FILE_BYTES:
            raise ValueError(f"more than {MOST_FILE_BYTES} bytes of entries")
        yield page


def pages_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records in pages of bounded size; of format 1, which may be larger, one by one."""
    page, held = list[Record](), 0
    for record in records:
        page.append(record)
        held += len(record.data) if record.data else _BYTES + 1
        if len(page) >= _AT_ONCE or held > _BYTES:
            yield page
            page, held = [], 0
    if page:
        yield page


_HOSTILE = (
    OSError, sqlite3.Error, ValueError, ArithmeticError, LookupError, TypeError, RecursionError,
    SyntaxError, MemoryError,
)  # fmt: skip
"""What reading a file may raise that somebody else wrote, damaged or made a pipe."""


@contextmanager
def readable(where: Path | str) -> Iterator[None]:
    """A block that reads a ledger, or what stands beside it: it ends in one kind of error.

    Raises:
        LedgerUnreadableError: whatever was wrong with what it read.
    """
    try:
        yield
    except PrivlearnError:
        raise
    except _HOSTILE as error:
        said = str(error) or type(error).__name__
        if isinstance(error, sqlite3.Error) and "too big" in said:
            said = f"an entry of more than {MOST_BYTES} bytes"
        if isinstance(error, sqlite3.OperationalError) and said == "interrupted":
            said = "the database takes more steps than a ledger of its size needs"
        if isinstance(error, sqlite3.OperationalError) and not _has_room(where):
            said += "; its disk is full, and to read it beside its log takes 32 kB there: make room"
        raise LedgerUnreadableError(f"{where} is not a readable ledger: {said}") from None


def _has_room(where: Path | str) -> bool:
    try:
        return shutil.disk_usage(real_path(Path(where)).parent).free >= 2**16
    except OSError:
        return True  # it is not known to be full


def check_is_file(where: Path) -> None:
    """Raises LedgerUnreadableError for what is no file, that of a head, or too large."""
    try:
        found = os.stat(where)
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerUnreadableError(f"{where}: no such file") from None
    if stat.S_ISDIR(found.st_mode):
        raise LedgerUnreadableError(f"{where} is a folder: name the ledger file in it")
    if not stat.S_ISREG(found.st_mode):
        raise LedgerUnreadableError(f"{where}: is no file, but a pipe or device")
    if is_head(where):
        raise LedgerUnreadableError(
            f"{where} keeps the head of a ledger: name the ledger, {where.name[: -len(HEAD)]}"
        )
    if found.st_size > MOST_FILE_BYTES:
        raise ValueError(f"{found.st_size} bytes; at most {MOST_FILE_BYTES} are read")


def is_export(where: Path) -> bool:
    """Whether a file is no database, and begins as an export does.

    Closing any descriptor of a file lets go of the locks that SQLite holds on it for this process,
    which may be writing to it: so a database is opened only by SQLite, which knows of that.
    """
    uri = f"{real_path(where).as_uri()}?immutable=1"
    with SQLITE, closing(sqlite3.connect(uri, uri=True)) as database:
        _confine(database)
        try:
            database.execute("PRAGMA schema_version").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                return False  # torn, say, but what is missing stands in its log
        else:
            return False
    with open(where, "rb") as file:
        return file.read(1) == b"{"


def _check_schema(where: Path, schema: object) -> int:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise LedgerUnreadableError(f"{where} is not a ledger")
    if schema > SCHEMA:
        raise LedgerSchemaError(
            f"{where} has schema {schema}; this version reads up to {SCHEMA}: upgrade privlearn"
        )
    return schema


def _check_features(where: Path | str, body: dict[str, Any]) -> None:
    features = body.get("features") if body.get("entry") == "open" else None
    if not isinstance(features, dict):
        return
    unknown = [n for n, v in features.items() if v == "critical" and n not in KNOWN_FEATURES]
    if unknown:
        raise LedgerFeatureError(
            f"{where} needs the extensions {', '.join(map(repr, unknown))}, which this version "
            "does not know, to be understood: upgrade privlearn"
        )


def _read_lines(where: Path) -> Iterator[Record]:
    with open(where, "rb") as file:
        first = parse(file.readline(1024))
        if not isinstance(first, dict):
            raise LedgerUnreadableError(f"{where} is not a ledger")
        schema = _check_schema(where, first.get("privlearn_ledger"))
        most = MOST_BYTES + sum(_FRAME) if schema == 2 else 2 * MOST_BYTES
        seq = 0
        while line := file.readline(most + 1):
            if len(line) > most:
                raise ValueError(f"line {seq + 2} is longer than {most} bytes")
            if schema == 1:
                whole = parse(line, most_digits=MOST_DIGITS)
                if not isinstance(whole, dict) or len(whole) != 4:
                    raise ValueError(f"line {seq + 2} is no entry")
                yield record_of_1(whole["seq"], whole["body"], whole["digests"], whole["hash"])
            else:
                head, tail = line[: _FRAME[0]], line[-_FRAME[1] :]
                if head != b'{"entry":' or tail[:9] != b',"hash":"' or tail[-3:] != b'"}\n':
                    raise ValueError(f"line {seq + 2} is no entry, or is torn")
                yield record_of(seq, line[_FRAME[0] : -_FRAME[1]], tail[9:-3])
            seq += 1


@final
class Look:
    """A ledger file that is open for reading, as it was at one moment.

    Attributes:
        connection: with it.
        steps: of SQLite's since a row, counted elsewhere.
        schema: its format.
    """

    def __init__(
        self,
        where: Path,
        connection: sqlite3.Connection,
        steps: list[int],
        schema: int,
        moment: Moment,
    ) -> None:
        self.connection, self.steps, self.schema = connection, steps, schema
        self._where, self._moment = where, moment

    def check(self) -> None:
        """Raises ValueError where what was read so far may be of several moments."""
        if not self._moment.logged and Moment.of(self._where) != self._moment:
            raise ValueError(CHANGED)


@contextmanager
def _opened_database(where: Path, vouched: bool = False) -> Iterator[Look]:
    """A ledger file opened for reading.

    A file without a log beside it is complete, and may lie on a read-only medium, where SQLite
    cannot lock it: whether somebody wrote to it meanwhile is looked at by `Look.check`.
    """
    moment = Moment.of(where)
    logged, mode = moment.logged, "mode=ro" if moment.logged else "immutable=1"
    with closing(sqlite3.connect(f"{real_path(where).as_uri()}?{mode}", uri=True)) as connection:
        steps = _confine(connection)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise LedgerUnreadableError(f"{where} is not a ledger")
        schema = _check_schema(where, connection.execute("PRAGMA user_version").fetchone()[0])
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT 9")
        tables = found.fetchall()
        if frozenset(tables) not in _SCHEMAS[schema] or len(tables) != len(set(tables)):
            raise ValueError(
                "its tables are not those of a ledger: nothing else may stand in it, no view, "
                "trigger, index or further table"
            )
        if connection.execute("PRAGMA encoding").fetchone() != ("UTF-8",):
            raise ValueError("its text is not UTF-8")
        if not vouched and not (logged and _begun(log_path(where))):
            _check_log_is_not_missed(where, connection, logged)
        yield Look(where, connection, steps, schema, moment)


def _begun(log: Path) -> bool:
    """Whether a log holds a commit: one without may be that of another moment.

    https://www.sqlite.org/fileformat.html#the_write_ahead_log
    """
    with open(log, "rb") as file:
        header = file.read(32)
        if header[:4] not in (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"):
            return False
        page = int.from_bytes(header[8:12], "big")
        while (frame := file.read(24))[8:16] == header[16:24]:
            if any(frame[4:8]):
                return True
            file.seek(page, os.SEEK_CUR)
    return False


def _check_log_is_not_missed(where: Path, connection: sqlite3.Connection, logged: bool) -> None:
    """Raises LedgerUnreadableError for a copy that was made without the log, while it was open.

    Spends may stand in the log only.  Closing the ledger says in the main file that there is no log
    any more.  An empty one is right after it was copied to the main file, and wrong if the main
    file was copied before that.
    """
    if logged:
        # through SQLite, as closing a descriptor lets go of the locks of who writes to it here
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            return
    else:
        with open(where, "rb") as file:
            if file.read(20)[18:] != _WITH_LOG:
                return
    head = read_head(real_path(where))
    if head is not None:
        row = connection.execute("SELECT hash FROM entries WHERE seq = ?", (head.entries - 1,))
        if not head.entries or row.fetchone() == (head.hash,):
            return  # another program ended the log in good order
    raise LedgerUnreadableError(
        f"{where} was open when it was copied, and {where.name}-wal, which may hold its last "
        f"entries, is {'empty' if logged else 'not there'}: copy it with `privlearn ledger "
        f"backup`, or put {where.name}-wal and {head_path(where).name} of the same moment beside "
        "it; a head that was kept elsewhere (--head, head=) tells whether it is whole"
    )


_WITH_LOG = b"\2\2"  # Of SQLite's header: write and read version


def _read_file(where: Path, vouched: bool, begin: int) -> Iterator[list[Record]]:
    """Reads on where a writer ended or began its log meanwhile."""
    tries = Tries(where)
    while True:
        try:
            for page in SQLITE.each(_read_database(where, vouched, begin)):
                tries.further()
                yield page
                begin = page[-1].seq + 1
        except (LedgerUnreadableError, *_HOSTILE):
            if not tries.again():
                raise
        else:
            return


def read_at_once(where: Path, read: Callable[[Look], T], *, vouched: bool = True) -> T:
    """What a function reads of a ledger file, as it was at one moment; it may be called again.

    Raises:
        LedgerUnreadableError, LedgerSchemaError: as `iterate_records`.
    """
    tries = Tries(where)
    while True:
        try:
            with SQLITE, _opened_database(where, vouched) as look:
                found = read(look)
                look.check()
                return found
        except (LedgerUnreadableError, *_HOSTILE):
            if not tries.again():
                raise


def _read_database(where: Path, vouched: bool, begin: int) -> Iterator[list[Record]]:
    with _opened_database(where, vouched) as look:
        connection = look.connection
        connection.text_factory = bytes
        record_in = record_of if look.schema == 2 else record_in_row_1
        limits = _Limits(look.steps, Moment.of(where).size)
        wanted = "SELECT min(seq) FROM entries" + " WHERE seq >= ?" * bool(begin)
        (after,) = connection.execute(wanted, (begin,) if begin else ()).fetchone()
        last: Record | None = None
        more = after is not None
        while more:
            # Each look but the first begins with the last row of the one before, and goes on from
            # there page by page: a page that was torn is met, and not searched.
            rows = connection.execute(
                f"SELECT {_COLUMNS[look.schema]} FROM entries WHERE seq >= ? ORDER BY seq LIMIT ?",
                (after, _AT_ONCE),
            )
            found = limits.some_of(rows, at_least=1 if last is None else 2)
            look.check()
            if last is not None and (not found or found.pop(0)[0] != after):
                raise ValueError(_WRONG_FORM)
            if more := bool(found):
                page = [record_in(*row) for row in found]
                last = page[-1]
                after = last.seq
                yield page
            limits.grow(Moment.of(where).size)  # it may meanwhile
        if look.schema == 2:
            end = (last.seq, last.hash) if last else _end(connection)
            if waiting := [each for each in _waiting(where, *end) if each.seq >= begin]:
                yield waiting


def _end(connection: sqlite3.Connection) -> tuple[int, str]:
    found = connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return (-1, GENESIS) if found is None else (found[0], bytes(found[1]).decode())


def _waiting(where: Path, seq: int, head: str) -> Iterator[Record]:
    for each in waiting_behind(real_path(where), seq, head):
        record = record_of(each.seq, each.data, each.hash.encode())
        if not needs_no_sync(record.body):
            raise ValueError(f"{tail_path(where).name} holds an entry that cannot wait there")
        yield record


@dataclass
class _Limits:
    """What reading may take."""

    steps: list[int]  # Of SQLite's since a row, counted elsewhere
    size: int  # Bytes of the file and its log
    left: int = field(init=False)  # Bytes of entries that may still come

    def __post_init__(self) -> None:
        self.left = self.size

    def grow(self, size: int) -> None:
        """The file has so many bytes now."""
        self.left += max(0, size - self.size)
        self.size = max(self.size, size)

    def some_of(self, rows: sqlite3.Cursor, at_least: int) -> list[Any]:
        """The first rows: ``at_least`` so many, if there are, and ``_BYTES`` beside the last."""
        found: list[Any] = []
        held = 0
        for row in rows:
            if row[0].__class__ is not int or any(each.__class__ is not bytes for each in row[1:]):
                raise ValueError(_WRONG_FORM)
            self.steps[0] = 0
            size = sum(map(len, row[1:]))
            self.left, held = self.left - size, held + size
            if self.left < 0:
                raise ValueError("its entries are larger than the file that they stand in")
            found.append(row)
            if held > _BYTES and len(found) >= at_least:
                break
        rows.close()
        return found


_AT_ONCE = 512
"""Entries of one look into the file: a longer one would keep a writer's log from being cut."""
_BYTES = 2**20  # Of these that are held at once, beside the last
_WRONG_FORM = "a row is of a wrong form"


def _confine(connection: sqlite3.Connection) -> list[int]:
    """Sets what SQLite may do with a file that is not trusted; the count of steps since a row."""
    for limit, most in (
        (sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES + 1024),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10_000),
        (sqlite3.SQLITE_LIMIT_COLUMN, 16),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 16),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 2),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(limit, most)
    steps = [0]

    def stop() -> int:
        steps[0] += 1
        return int(steps[0] > _MOST_STEPS)

    connection.set_progress_handler(stop, _STEP)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute("PRAGMA query_only = ON")
    return steps
