"""Connections to a PostgreSQL that holds ledgers, and what is asked of the server before."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast, final

import psycopg
from psycopg import errors as sql
from psycopg.rows import namedtuple_row
from sqlalchemy import (
    URL,
    ClauseElement,
    Connection,
    Engine,
    Executable,
    Label,
    create_engine,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from privlearn.errors import LedgerBusyError, LedgerError, LedgerUnreadableError
from privlearn.ledger.addresses import LEDGER, is_address, shown, spelled_out
from privlearn.storage import processes
from privlearn.storage.exclusive import Block

TIMEOUT = 10.0
"""Seconds that a connection, a lock or a statement may take."""


class LostConnection(Exception):
    """The connection ended; what was not committed is not recorded."""


class Conflict(Exception):
    """The server undid a transaction for the sake of another one: it can be tried again."""


class Denied(LedgerError):
    """The role may not do what was asked."""

    def __init__(self, name: str, said: str) -> None:
        told = "`privlearn ledger postgres-schema --writer ROLE` prints what a role needs"
        super().__init__(f"{name}: {said}; {told}")
        self.said = said


class Address:
    """Where a ledger is, from ``postgresql://user@host/database?ledger=name``.

    What else stands behind the question mark goes to the driver: ``sslmode=verify-full``, say.

    Raises:
        LedgerError: it is no such address.
    """

    def __init__(self, address: str | os.PathLike[str]) -> None:
        try:
            if not is_address(address):  # of another database, say
                raise ValueError
            url = make_url(spelled_out(address))
        except (ArgumentError, ValueError):
            raise LedgerError(
                f"{shown(address)}: is no address: postgresql://user@host/database?ledger=name"
            ) from None
        ledger = url.query.get(LEDGER)
        if ledger is not None and (not isinstance(ledger, str) or not ledger):
            raise LedgerError(f"{shown(address)}: {LEDGER}= must be given once, and name a ledger")
        self.ledger: str | None = ledger
        self.url: URL = url.difference_update_query([LEDGER]).set(drivername="postgresql+psycopg")
        self._shown = shown(url.difference_update_query([LEDGER]).render_as_string())

    def __str__(self) -> str:
        return self._shown if self.ledger is None else f"{self._shown}?{LEDGER}={self.ledger}"

    __repr__ = __str__


_DEFAULTS: dict[str, Any] = {
    "application_name": "privlearn",
    "connect_timeout": int(TIMEOUT),
    # a machine that is gone, or cut off, is noticed within half a minute
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


def engine_of(address: Address) -> Engine:
    """Makes connections, each of which is closed when it is let go of."""
    return _engine(address.url)


@lru_cache(16)
def _engine(url: URL) -> Engine:
    # it holds no connection, and what it learns of the server and compiles is of use to the next
    given = {name: value for name, value in _DEFAULTS.items() if name not in url.query}
    return create_engine(
        url,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",  # transactions are begun in so many words
        hide_parameters=True,
        use_native_hstore=False,  # which every new connection would ask for, in a transaction
        connect_args={**given, "client_encoding": "UTF8"},
    )


_DURABLE = "synchronous_commit"
_REQUIRED = {
    "fsync": "a crash of the server's machine takes away what was committed",
    "full_page_writes": "a crash of the server's machine can tear what was committed",
}


@final
class Session:
    """One connection; what it does is one thread's at a time.

    Args:
        engine: makes it.
        name: of the ledger, for messages.
        writes: whether it is to write, and not only to read.
        pooled: whether a pooler may stand between, which gives each transaction another session
            of the server: then it only reads, by `read`, and leaves nothing behind in a session.

    Raises:
        LedgerError: the server cannot be reached, does not keep what is committed, or a pooler
            stands between that may not.
    """

    def __init__(
        self, engine: Engine, name: str, *, writes: bool = False, pooled: bool = False
    ) -> None:
        self.name, self._writes, self._pooled = name, writes, pooled
        self.warnings: list[str] = []
        """What the server said of the last statement."""
        self._lock = threading.RLock()
        password = engine.url.password
        try:
            self._connection: Connection = engine.connect()
        except DBAPIError as error:
            said = _said(error.orig)
            if password:
                said = said.replace(password, "…")
            raise LedgerError(f"{name} cannot be reached: {said}") from None
        try:
            self._driver.add_notice_handler(self._note)
            if pooled:
                self._driver.prepare_threshold = None  # what is prepared stays in a session
            found = self.one(select(*SERVER))
            self._backend = found.backend
            self._check_place(found)
            if not pooled:
                self._set()
                self.check_server(self.one(select(*SERVER)))
        except BaseException:
            self.close()
            raise

    @property
    def _driver(self) -> Any:
        return self._connection.connection.driver_connection

    def _note(self, said: psycopg.errors.Diagnostic) -> None:
        if said.severity_nonlocalized == "WARNING":
            self.warnings.append(said.message_primary or "")

    def _set(self) -> None:
        settings = {
            # objects are named with their schema, and functions are the server's own
            "search_path": "pg_catalog",
            "lock_timeout": f"{int(TIMEOUT * 1000)}ms",
            "statement_timeout": f"{int(TIMEOUT * 3000)}ms",
            # a process that was stopped in its turn keeps the others waiting for no longer
            "idle_in_transaction_session_timeout": f"{int(TIMEOUT * 3000)}ms",
            # nor does one whose machine is gone, as the server asks it, too
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "4",
        }
        if self._writes:
            (now,) = self.one(text(f"SELECT current_setting('{_DURABLE}')"))
            if now != "remote_apply":  # which waits for longer
                settings[_DURABLE] = "on"
            settings["default_transaction_isolation"] = "serializable"
        else:
            settings["default_transaction_read_only"] = "on"
        calls = ", ".join(
            f"set_config('{name}', '{to}', false) AS {name}" for name, to in settings.items()
        )
        self.one(text(f"SELECT {calls}"))

    def _check_place(self, row: Any) -> None:
        if row.server_encoding != "UTF8":
            raise LedgerError(
                f"{self.name}: the database is in {row.server_encoding}; a ledger needs UTF8"
            )
        if not self._pooled and row.backend != self._driver.info.backend_pid:
            raise LedgerError(
                f"{self.name}: another process of the server answers than the one that was "
                "connected to: a pooler stands between, such as PgBouncer, and locks belong to a "
                "session; connect to the server itself"
            )
        if self._writes and row.recovering:
            raise LedgerError(
                f"{self.name} is a standby, which takes no entries: connect to the primary "
                "(target_session_attrs=read-write picks it among several hosts)"
            )

    def check_server(self, row: Any) -> None:
        """Raises LedgerError where the server takes no writes, or does not keep what it commits."""
        if not self._writes:
            return
        self._check_place(row)
        found = row._asdict()
        for setting, why in _REQUIRED.items():
            if found[setting] != "on":
                raise LedgerError(
                    f"{self.name}: the server has {setting} = {found[setting]}: {why}, and with it "
                    "spends whose releases are out; nothing is written to it: set it to on"
                )
        if found[_DURABLE] not in ("on", "remote_apply"):
            raise LedgerError(
                f"{self.name}: {_DURABLE} = {found[_DURABLE]} although this session set it to on: "
                "is there a pooler between, which shares sessions? connect to the server itself"
            )
        if found["read_only"] != "off":
            raise LedgerError(
                f"{self.name}: the server takes only reading (default_transaction_read_only = on): "
                "connect to the primary, or let this role write"
            )
        if found["isolation"] != "serializable":
            raise LedgerError(f"{self.name}: transactions are {found['isolation']}")
        if found["backend"] != self._backend:
            raise LedgerError(
                f"{self.name}: another process of the server answers than before: a pooler that "
                "shares sessions between transactions stands between; connect to the server itself"
            )

    def check_tables(self) -> None:
        """Raises LedgerError where a crash of the server would empty a table of ledgers."""
        if found := self.run(_UNLOGGED):
            raise LedgerError(
                f"{self.name}: the table {found[0].name} is unlogged, or temporary: a crash of the "
                "server empties it; ALTER TABLE … SET LOGGED"
            )

    def run(self, statement: Executable, **parameters: Any) -> Sequence[Any]:
        """Runs a statement; its rows.

        Raises:
            LostConnection, Conflict: see there.
            LedgerBusyError: somebody held a lock for too long.
            LedgerError: the server refused it.
        """
        with self._lock, self._errors():
            self._check_not_lost()
            # SQLAlchemy writes the statement, once; to run it there takes three times as long
            told, more = _written(statement, tuple(parameters))
            cursor = self._driver.cursor(row_factory=namedtuple_row)
            cursor.execute(told, {**more, **parameters})
            return cursor.fetchall() if cursor.description is not None else ()

    def together(self, *asked: tuple[Executable, dict[str, Any]]) -> list[Sequence[Any]]:
        """Runs several statements, sent as one, up to the first that fails; the rows of each.

        Raises:
            LostConnection, Conflict, LedgerError: as `run`.
        """
        with self._lock, self._errors():
            self._check_not_lost()
            cursor = psycopg.ClientCursor(self._driver, row_factory=namedtuple_row)
            texts = []
            for statement, parameters in asked:
                told, more = _written(statement, tuple(parameters))
                texts.append(cursor.mogrify(told, {**more, **parameters}))
            cursor.execute("; ".join(texts))
            found: list[Sequence[Any]] = []
            more_sets: bool | None = True
            while more_sets:
                found.append(cursor.fetchall() if cursor.description is not None else ())
                more_sets = cursor.nextset()
            return found

    def _check_not_lost(self) -> None:
        self.warnings.clear()
        if self.lost:  # else another connection would be made, without the locks of this one
            raise LostConnection("it had ended before")

    def read(self, statement: Executable, **parameters: Any) -> Sequence[Any]:
        """As `run`, in a transaction of its own, whose settings end with it."""
        with self._lock:
            self.run(_BEGIN_READING)
            try:
                return self.run(statement, **parameters)
            finally:
                self.rollback()

    def one(self, statement: Executable, **parameters: Any) -> Any:
        """Runs a statement that has one row."""
        (row,) = self.run(statement, **parameters)
        return row

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._meaning(error) from None

    def _meaning(self, what: psycopg.Error) -> Exception:
        if self.lost:
            return LostConnection(_said(what))
        if isinstance(what, sql.SerializationFailure | sql.DeadlockDetected):
            return Conflict(_said(what))
        if isinstance(what, sql.UniqueViolation | sql.DuplicateSchema):
            return Taken(_said(what))
        if isinstance(what, sql.LockNotAvailable):
            return LedgerBusyError(
                f"{self.name}: {_said(what)}: others held it for {TIMEOUT:.0f} seconds; nothing "
                "was recorded: try again"
            )
        if isinstance(what, sql.QueryCanceled):
            return LedgerBusyError(f"{self.name}: {_said(what)}; nothing was recorded: try again")
        if isinstance(what, sql.UndefinedTable | sql.InvalidSchemaName):
            return LedgerUnreadableError(
                f"{self.name}: the database holds no ledgers; `privlearn ledger postgres-schema` "
                "prints what makes the tables"
            )
        if isinstance(what, sql.InsufficientPrivilege):
            return Denied(self.name, _said(what))
        return LedgerError(f"{self.name}: {_said(what)}; nothing was recorded")

    @property
    def lost(self) -> bool:
        return self._connection.closed or self._connection.invalidated or bool(self._driver.closed)

    @property
    def in_transaction(self) -> bool:
        """Whether one was begun, and neither committed nor rolled back."""
        return not self.lost and self._driver.info.transaction_status != _IDLE

    def begin(self) -> None:
        """Begins a transaction that behaves as if no other ran beside it."""
        self.run(BEGIN)

    def commit(self, *last: tuple[Executable, dict[str, Any]]) -> None:
        """Commits, behind ``last``; returns when it is as durable as the server makes it.

        Raises:
            LostConnection: the outcome is not known.
            LedgerError: the server gave up waiting for a standby: it stands here, and perhaps only
                here.  Else nothing was recorded.
        """
        if self._driver.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
            raise LedgerError(f"{self.name}: there is nothing to commit; nothing was recorded")
        self.together(*last, (_COMMIT, {}))

    def rollback(self) -> None:
        if self.in_transaction:
            self.run(_ROLLBACK)

    def close(self) -> None:
        """Ends the connection, and with it all locks."""
        with suppress(Exception):
            self._driver.close()
        with suppress(Exception):
            self._connection.invalidate()
        with suppress(Exception):
            self._connection.close()


class Taken(Exception):
    """A row with that key stands there."""


_IDLE = psycopg.pq.TransactionStatus.IDLE
BEGIN = text("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
_BEGIN_READING = text(
    "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL search_path = pg_catalog; "
    f"SET LOCAL statement_timeout = '{int(TIMEOUT * 3000)}ms'"
)
_UNLOGGED = text(
    "SELECT relname AS name FROM pg_class WHERE relpersistence <> 'p' AND relkind IN ('r', 'p') "
    "AND relnamespace = to_regnamespace('privlearn')"
)
_COMMIT, _ROLLBACK = text("COMMIT"), text("ROLLBACK")
SERVER: tuple[Label[Any], ...] = tuple(
    literal_column(what).label(name)
    for name, what in {
        "backend": "pg_backend_pid()",
        "recovering": "pg_is_in_recovery()",
        "server_encoding": "current_setting('server_encoding')",
        "read_only": "current_setting('transaction_read_only')",
        "isolation": "current_setting('transaction_isolation')",
        **{name: f"current_setting('{name}')" for name in (_DURABLE, *_REQUIRED)},
    }.items()
)
"""What the server says of itself, as columns of a row."""


@final
class Connections:
    """Those of one process: one in which it writes, and one in which it reads meanwhile."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.reading: Session | None = None

    def drop(self) -> None:
        """Ends the one that writes."""
        if self.session is not None:
            self.session.close()
        self.session = None

    def drop_reading(self) -> None:
        """Ends the one that reads."""
        if self.reading is not None:
            self.reading.close()
        self.reading = None

    def close(self, made_in: tuple[int, int]) -> None:
        """Ends both, unless they are a parent's."""
        if processes.here() == made_in:
            with suppress(Exception):
                self.drop()
            with suppress(Exception):
                self.drop_reading()


@final
class TurnLock:
    """An advisory lock that a process holds for a turn, on the connection on which it writes.

    Args:
        held: the process's connections.
        names: of the lock.
        connect: makes the connection that writes, where there is none.
    """

    def __init__(
        self, held: Connections, names: Sequence[str], connect: Callable[[], Session]
    ) -> None:
        self._held, self._key, self._connect = held, key_of(*names), connect
        self.perhaps = False
        """Whether it is held, or may be."""

    def turn(self) -> AbstractContextManager[Session]:
        """A block in which it is held; see `take`."""
        return Block(self._turn)

    def _turn(self) -> Generator[Session]:
        try:
            try:
                yield self.take()
            finally:
                self.give_back()
        except BaseException:  # a signal's may have fallen before it began to
            self.give_back()
            raise

    def take(self) -> Session:
        """Waits for the lock; the connection that has it, which may be a new one.

        Whatever it raises, `give_back` is to follow.

        Raises:
            LostConnection: the new one was lost, too.
            LedgerError: others held it for too long, or no connection can be made.
        """
        self.give_back()  # where that was interrupted twice; else it is not held
        self.perhaps = True
        if self._held.session is not None:
            try:
                return self._taken_on(self._held.session)
            except LostConnection:
                self._held.drop()  # it was cut since the last turn, in which all was said
        return self._taken_on(self._connect())

    def _taken_on(self, session: Session) -> Session:
        session.run(_LOCK, key=self._key)
        return session

    def give_back(self) -> None:
        """Undoes what was not committed, and lets the others in; may be called twice."""
        if not self.perhaps:
            return
        session = self._held.session
        try:
            if session is not None:
                session.rollback()
                session.run(UNLOCK, key=self._key)
        except (LostConnection, LedgerError):
            self._held.drop()  # which gives it back as well
        except BaseException:
            self._held.drop()
            raise
        self.perhaps = False


_LOCK = text("SELECT pg_advisory_lock(:key)")
UNLOCK = text("SELECT pg_advisory_unlock(:key)")


def _said(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@lru_cache(256)
def _written(statement: Executable, names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """A statement with parameters of these names as the driver takes it, and its others."""
    given = cast(ClauseElement, statement).compile(dialect=_DIALECT, column_keys=names)
    return str(given), {name: value for name, value in given.params.items() if name not in names}


_DIALECT: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def key_of(*names: object) -> int:
    """A number that stands for something in the server's table of advisory locks."""
    digest = sha256("\0".join(map(str, ("privlearn", *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def room_of(ledger: str) -> int:
    """Of a ledger's members, in the same table: half a key, whose other half is the member."""
    return key_of("members", ledger) >> 32


def new_member() -> int:
    """A number for a process that writes a ledger."""
    return secrets.randbelow(2**31)
