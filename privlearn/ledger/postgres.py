"""Ledgers in PostgreSQL, to which processes on several hosts write.

**Turns.** A process writes only while it holds the ledger's advisory lock, and what it decides on
it reads behind that lock, in a transaction that is serializable besides.  So entries are appended
one after another, each by somebody who knows all before it; that no two stand at one position the
primary key sees to as well.

**Epochs.** Opening a ledger writes a row to ``epochs``, in a turn.  Every transaction that appends
reads the last of these rows first: a process of an earlier epoch appends nothing, and so spends
nothing and publishes nothing.

**Members.** A process holds an advisory lock of its own for as long as the connection lives on
which it appends; each entry names that lock.  Where the lock is gone, the process is, or it lost
its connection, and others end the tokens that it had issued.  A process that only lost its
connection takes its lock again in its next turn, and finds out then what became of its tokens.

**Commits of unknown outcome.** Where the connection ends before the server has answered, the
process takes its own lock on another connection.  It gets it when the former session is over; from
then on the entry stands or never will, and its nonce tells.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, TypeVar, cast, final

from sqlalchemy import bindparam, case, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as insert_or_leave

from privlearn.errors import (
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerHeadError,
    LedgerUnreadableError,
    TokenCopyError,
)
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import MOST_BYTES, Record
from privlearn.ledger.postgres_reading import MOST_VALUE_BYTES, NAMES, PAGE, VALUE, records_from
from privlearn.ledger.postgres_schema import ENTRIES, EPOCHS, RELEASED, SCHEMA_NAME, statements
from privlearn.ledger.postgres_sessions import (
    BEGIN,
    SERVER,
    UNLOCK,
    Address,
    Conflict,
    Connections,
    LostConnection,
    Session,
    Taken,
    TurnLock,
    engine_of,
    key_of,
    new_member,
    room_of,
)
from privlearn.ledger.postgres_teams import TEAM
from privlearn.ledger.records import record_of
from privlearn.ledger.stores import Turn, Value
from privlearn.storage import processes
from privlearn.storage.exclusive import Block

_TRIES = 20
"""Of a transaction that the server undoes for the sake of another one, of another ledger, say."""

T = TypeVar("T")
How = Literal["create", "open", "join"]


@final
class PostgresStore:
    """One process's access to a ledger in PostgreSQL; a `privlearn.ledger.stores.SharedStore`.

    Args:
        address: ``postgresql://user@host/database?ledger=name``, with the parameters of libpq.
        how: ``"create"`` makes the ledger, and the tables if the role may; ``"open"`` begins a new
            epoch, which ends every process of the one before; ``"join"`` writes beside others.

    Raises:
        LedgerUnreadableError: there is no such ledger, or there are no tables.
        LedgerError: there is one already, the server cannot be reached, or does not keep what it
            commits.

    Attributes:
        ledger: what it is called in the database.
        grantee: the session's role, if the database lets it write only what was granted to it.
    """

    def __init__(self, address: str | os.PathLike[str], how: How) -> None:
        self._address = Address(address)
        if self._address.ledger is None:
            raise LedgerError(f"{self._address}: name the ledger: …?ledger=name")
        self.ledger = self._address.ledger
        self.name = str(self._address)
        self._engine = engine_of(self._address)
        self._member = new_member()
        self._entered: set[str] = set()
        """Accountants that this process writes for."""
        self._alone: set[str] = set()
        """Those of them that it has begun or resumed, so that nobody else can while it lives."""
        self._known = _Known()
        self.doubtful = False
        self._turns = threading.Lock()
        self._reads = threading.Lock()
        self._closed = False
        self._held = Connections()
        self._turn_lock = TurnLock(self._held, ("turn", self.ledger), self._connected)
        self._end = weakref.finalize(self, self._held.close, processes.here())
        processes.INHERITED.add(self)
        self.writer, self.epoch = "", 0
        self.grantee: str | None = None
        try:
            if how == "create":
                self._make_tables()
            with self._said(), self._turn_taken() as session:
                self.writer, self.epoch = self._again(
                    session, lambda: self._begun(session, how), of_epoch=False
                )
            self.grantee = self._team()
        except BaseException:
            self.close()
            raise

    def _make_tables(self) -> None:
        (found,) = self._ask(text("SELECT to_regnamespace(:name) AS found"), name=SCHEMA_NAME)
        if found.found is not None:
            return
        making = Session(self._engine, self.name, writes=True)
        try:
            making.begin()
            for statement in statements():
                making.run(text(statement))
            making.commit()
        except (Taken, Conflict):
            pass  # somebody else has made them meanwhile
        except LostConnection as error:
            raise self._cut_off(error) from None
        finally:
            making.close()

    def _team(self) -> str | None:
        (found,) = self._ask(text("SELECT to_regproc(:name) AS found"), name=TEAM)
        if found.found is None:
            return None
        (told,) = self._ask(text(f"SELECT {TEAM}() AS role"))
        return None if told.role is None else str(told.role)

    def _begun(self, session: Session, how: How) -> tuple[str, int]:
        last = session.run(_LAST_EPOCH, ledger=self.ledger)
        if how == "create" and (last or session.run(_ANY_ENTRY, ledger=self.ledger)):
            raise LedgerError(
                f"{self.name} exists: ledgers are never overwritten; choose another name, or "
                "resume it"
            )
        if how != "create" and not last:
            names = [row.ledger for row in session.run(NAMES)]
            raise LedgerUnreadableError(
                f"{self.name}: no such ledger; there are {', '.join(map(repr, names)) or 'none'}"
            )
        if how == "join":
            return last[0].writer, last[0].epoch
        writer, epoch = secrets.token_hex(8), last[0].epoch + 1 if last else 1
        session.run(insert(EPOCHS), ledger=self.ledger, epoch=epoch, writer=writer)
        session.commit()
        if session.warnings:
            raise LedgerError(f"{self.name}: {session.warnings[0]}: open it again")
        return writer, epoch

    def turn(self, size: int) -> AbstractContextManager[Turn]:
        return Block(lambda: self._turn(size))

    def _turn(self, size: int) -> Generator[Turn]:
        with self._said(), self._turn_taken() as session:
            yield self._again(session, lambda: self._looked(session, size), begins=True)

    def _looked(self, session: Session, size: int) -> Turn:
        """Begins a transaction, and says what stands there and who is gone, in one question."""
        newest = self._known.newest
        begin = size if newest is None else min(size, newest[0])
        asked: list[tuple[Any, dict[str, Any]]] = [
            (BEGIN, {}),
            (_LAST_EPOCH, {"ledger": self.ledger}),
            (PAGE, {"ledger": self.ledger, "begin": begin}),
        ]
        others = self._known.of_others(self._member)
        if others:
            asked.append((_ALIVE, {"room": self._room}))
        _, last, page, *alive = session.together(*asked)
        self._check_last_epoch(session, last)
        news = self._news(session, size, begin, page)
        if not others and not self._known.of_others(self._member):
            return Turn(news)
        there = {row.member for row in alive[0]} if alive else self._alive(session)
        members = self._known.members
        if not there.issuperset(members.values()):  # who came since has locked itself before
            there = self._alive(session)
        return Turn(news, [token for token, member in members.items() if member not in there])

    def _again(
        self,
        session: Session,
        what: Callable[[], T],
        *,
        of_epoch: bool = True,
        begins: bool = False,
    ) -> T:
        """Does something in a transaction that is checked, until the server does not undo it.

        ``of_epoch``: for the last epoch alone; ``begins``: it begins it, and checks, by itself.
        """
        for _ in range(_TRIES):
            try:
                if not begins and not session.in_transaction:
                    session.begin()
                    if of_epoch:
                        self.check_epoch(session)
                return what()
            except Conflict:
                session.rollback()  # the turn is ours still: nothing has changed
            except LedgerError:
                session.rollback()
                raise
        raise LedgerBusyError(
            f"{self.name}: the server undid it {_TRIES} times for the sake of others; nothing was "
            "recorded: try again"
        )

    def _turn_taken(self) -> AbstractContextManager[Session]:
        return Block(self._alone_in_turn)

    def _alone_in_turn(self) -> Generator[Session]:
        with self._turns:
            if self._closed:
                raise LedgerError(f"{self.name}: was closed here")
            with self._turn_lock.turn() as session:
                yield session

    @contextmanager
    def _said(self) -> Iterator[None]:
        """A block in which what became of the connection is raised as LedgerError."""
        try:
            yield
        except LostConnection as error:
            raise self._cut_off(error) from None
        except (Conflict, Taken) as error:
            raise LedgerBusyError(f"{self.name}: {error}: nothing was recorded") from None

    def _connected(self) -> Session:
        """A new connection that has the locks of this process.

        They are free only when the connection that had them is over.
        """
        session = Session(self._engine, self.name, writes=True)
        try:
            session.check_tables()
            session.run(_LOCK_MEMBER, room=self._room, member=self._member)
            for accountant in self._entered:
                session.run(_LOCK_SHARED, key=self._key_of(accountant))
            for accountant in self._alone:
                self._resume_alone(session, accountant)
            self._held.session = session
        except BaseException:
            session.close()
            raise
        return session

    def check_epoch(self, session: Session) -> None:
        """Raises LedgerFencedError unless, in a transaction, the epoch is that of this process."""
        self._check_last_epoch(session, session.run(_LAST_EPOCH, ledger=self.ledger))

    def _check_last_epoch(self, session: Session, last: Sequence[Any]) -> None:
        for row in last:
            session.check_server(row)
        if not last or (last[0].epoch, last[0].writer) != (self.epoch, self.writer):
            now = f"epoch {last[0].epoch}" if last else "not there any more"
            raise LedgerFencedError(
                f"{self.name} was opened anew: it is {now}, and this process belongs to epoch "
                f"{self.epoch}: it can neither spend nor release; join or resume the ledger"
            )

    def _cut_off(self, error: Exception) -> LedgerError:
        return LedgerError(
            f"{self.name}: the connection was lost: {error}; nothing was recorded: try again"
        )

    def _news(self, session: Session, size: int, begin: int, page: Sequence[Any]) -> list[Record]:
        """What others wrote, behind an entry that must stand there still.

        ``page``: the first entries from ``begin`` on.
        """
        newest, pages = self._known.newest, [page]

        def run(statement: Any, **parameters: Any) -> Sequence[Any]:
            return pages.pop() if pages else session.run(statement, **parameters)

        records = list(self._read(run, begin))
        if newest is not None:
            stands = next((each for each in records if each.seq == newest[0]), None)
            if stands is None or stands.hash != newest[1]:
                raise LedgerHeadError(
                    f"{self.name}: entry {newest[0]}, with the hash {newest[1]}, does not stand "
                    "there any more: it lost entries, as after a fail-over, or was rewritten; "
                    "restore the newest before anything else is spent"
                )
        return [each for each in records if each.seq >= size]

    checks = False

    def write_ahead(self, record: Record, value: Value | None) -> None:
        raise LedgerError(f"{self.name}: entries are written in a turn")

    def write(self, record: Record, value: Value | None) -> Record:
        session = self._held.session
        if not self._turn_lock.perhaps or session is None:
            raise LedgerBusyError(f"{self.name}: the turn is over; nothing was recorded")
        if value is not None and len(value[1]) > MOST_VALUE_BYTES:
            raise LedgerError(
                f"{self.name}: a value of {len(value[1])} bytes; at most {MOST_VALUE_BYTES} are "
                "kept; nothing was recorded"
            )
        with self._said():
            try:
                self._again(session, lambda: self._insert(session, record, value))
            except Taken:
                session.rollback()
                stands = of_nonce(session, self.name, self.ledger, record)
                if stands is None:
                    raise LedgerBusyError(
                        f"{self.name}: somebody wrote to it who did not wait for a turn; nothing "
                        "was recorded"
                    ) from None
                return stands
            except LostConnection:
                self._held.drop()
                raise
        self._known.note(record, self._member)
        return record

    def _insert(self, session: Session, record: Record, value: Value | None) -> None:
        assert record.envelope is not None
        row = {
            "ledger": self.ledger,
            "seq": record.seq,
            "entry": record.data.decode(),
            "hash": record.hash,
            "nonce": record.envelope["nonce"],
            "member": self._member,
        }
        last: list[tuple[Any, dict[str, Any]]] = [(_APPEND, row)]
        if value is not None:
            kept = {"ledger": self.ledger, "digest": value[0], "value": value[1]}
            if len(value[1]) <= _SMALL:
                last.insert(0, (_KEEP, kept))
            else:
                session.run(_KEEP, **kept)
        self.doubtful = True  # whatever ends the commit
        try:
            session.commit(*last)
        except (Conflict, Taken, LedgerError):
            self.doubtful = False  # the server says that it is undone
            raise
        except LostConnection as error:
            self._look_for(record, error)
        if session.warnings:
            raise LedgerError(
                f"{self.name}: {session.warnings[0]}: the last entry stands on this server, and "
                "perhaps on no other; nothing was released for it: look after the standbys, and "
                "open the ledger again"
            )
        self.doubtful = False

    def _look_for(self, record: Record, error: LostConnection) -> None:
        """Returns if the entry stands, of whose commit nothing is known."""
        try:
            self._held.drop()
            session = self._turn_lock.take()
            session.begin()
            stands = of_nonce(session, self.name, self.ledger, record)
            if stands is not None:
                # as durable as a commit is that is answered, with the standbys that there are
                session.run(_WRITE_NOTHING)
                session.commit()
                if session.warnings:
                    raise LostConnection(session.warnings[0])
        except (LostConnection, Conflict, LedgerError) as again:
            self._held.drop()
            raise LedgerError(
                f"{self.name}: the connection was lost while an entry was committed ({error}), and "
                f"whether it stands is not known ({again}); nothing was released for it: open the "
                "ledger again"
            ) from None
        self.doubtful = stands is not None
        if stands is None:
            raise self._cut_off(error)

    def iterate(self, begin: int) -> Iterator[Record]:
        return self._read(self._ask, begin)

    def _read(self, run: Callable[..., Sequence[Any]], begin: int) -> Iterator[Record]:
        for record, member in records_from(run, self.name, self.ledger, begin):
            self._known.note(record, member)
            yield record

    def value(self, digest: str) -> bytes | None:
        found = self._ask(VALUE, ledger=self.ledger, digest=digest)
        if found and found[0].value is None:
            raise LedgerUnreadableError(
                f"{self.name}: the value {digest} is larger than {MOST_VALUE_BYTES} bytes"
            )
        return bytes(found[0].value) if found else None

    def check(self) -> None:
        with self._reads:
            self._on_reading(self._check_present)

    def _check_present(self, session: Session) -> None:
        self.check_epoch(session)
        if self._member not in self._alive(session):
            raise LedgerError(
                f"{self.name}: this process lost the connection on which it writes, so that others "
                "may have ended its tokens; its next entry connects again and tells"
            )

    def _alive(self, session: Session) -> set[int]:
        return {row.member for row in session.run(_ALIVE, room=self._room)}

    def settle(self) -> None:
        """See `SharedStore.settle`; a commit is on disk when it is told."""

    def _ask(self, statement: Any, **parameters: Any) -> Sequence[Any]:
        with self._reads:
            found = self._on_reading(lambda session: session.run(statement, **parameters))
        return cast(Sequence[Any], found)

    def _on_reading(self, what: Callable[[Session], Any]) -> Any:
        if self._closed:
            raise LedgerError(f"{self.name}: was closed here")
        try:
            return what(self._reading())
        except LostConnection:
            self._held.drop_reading()
        try:
            return what(self._reading())
        except LostConnection as error:
            raise self._cut_off(error) from None

    def _reading(self) -> Session:
        if self._held.reading is None:
            session = Session(self._engine, self.name)
            if session.one(_RECOVERING).found:  # which may be behind, and tell an old epoch
                session.close()
                raise LedgerError(
                    f"{self.name} is a standby, which takes no entries and may be behind: connect "
                    "to the primary (target_session_attrs=read-write picks it among several hosts)"
                )
            self._held.reading = session
        return self._held.reading

    def session(self, *, writes: bool) -> Session:
        """Another connection to the database, for what is kept there beside the ledger.

        Raises:
            LedgerError: see `Session`.
        """
        return Session(self._engine, self.name, writes=writes)

    @property
    def _room(self) -> int:
        return room_of(self.ledger)

    def _key_of(self, accountant: str, what: str = "accountant") -> int:
        return key_of(what, self.ledger, self.epoch, accountant)

    def enter(self, accountant: str, *, alone: bool) -> None:
        session = self._held.session
        if not self._turn_lock.perhaps or session is None:
            raise LedgerBusyError(f"{self.name}: the turn is over")
        key = self._key_of(accountant)
        with self._said():
            self._enter(session, accountant, key, alone)

    def _enter(self, session: Session, accountant: str, key: int, alone: bool) -> None:
        # in a turn nobody else enters: so looking comes first, and then a lock that others share
        if alone and accountant not in self._entered:
            if not session.one(_TRY_LOCK, key=key)[0]:
                raise LedgerBusyError(
                    f"{self.name}: another process writes for accountant {accountant!r}: join it, "
                    "or end that process first"
                )
            session.run(UNLOCK, key=key)
        if accountant not in self._entered:
            session.run(_LOCK_SHARED, key=key)
            self._entered.add(accountant)
        if alone and accountant not in self._alone:
            self._resume_alone(session, accountant)
            self._alone.add(accountant)

    def _resume_alone(self, session: Session, accountant: str) -> None:
        """Holds, while the connection lives, that this process is the one that has resumed it."""
        if not session.one(_TRY_LOCK, key=self._key_of(accountant, "resumed"))[0]:
            raise LedgerFencedError(
                f"{self.name}: the connection of this process was lost, and another one has "
                f"resumed accountant {accountant!r} since: it can neither spend nor release; join "
                "or resume the ledger"
            )

    def close(self) -> None:
        self._closed = True
        self._end()

    def in_child(self) -> None:
        """Leaves the connections to the parent: a forked child must not end them, nor use them."""
        processes.never_end((self._held.session, self._held.reading, self._engine))
        self._held.session = self._held.reading = processes.Gone(TokenCopyError, "a ledger")  # type: ignore[assignment]


@final
class _Known:
    """What one process knows of the entries.

    Attributes:
        newest: position and hash of the last one that was read or written here.
        members: who issued the tokens, and reserved the parts of a cap, that have not ended.
    """

    def __init__(self) -> None:
        self.newest: tuple[int, str] | None = None
        self.members: dict[str, int] = {}
        self._lock = threading.Lock()

    def of_others(self, member: int) -> bool:
        """Whether another process holds a token, or a reserved part."""
        return any(each != member for each in self.members.values())

    def note(self, record: Record, member: int) -> None:
        """Takes down who holds a token, or a reserved part, entry by entry."""
        with self._lock:
            if record.seq != (0 if self.newest is None else self.newest[0] + 1):
                return
            self.newest = record.seq, record.hash
            kind = record.body.get("entry")
            name = str(record.body.get("token" if kind in ("issue", "retire") else "allowance"))
            if kind in ("issue", "delegate"):
                self.members[name] = member
            elif kind in ("retire", "return"):
                self.members.pop(name, None)


def of_nonce(session: Session, name: str, ledger: str, record: Record) -> Record | None:
    """What stands there with the nonce of a record; None where nothing does."""
    assert record.envelope is not None
    found = session.run(_OF_NONCE, ledger=ledger, nonce=record.envelope["nonce"])
    if not found:
        return None
    (row,) = found
    with suppress(ValueError):
        stands = record_of(row.seq, (row.entry or "").encode(), row.hash.encode())
        if stands.seq == record.seq and canonical(stands.body) == canonical(record.body):
            return stands
    raise LedgerUnreadableError(
        f"{name}: entry {row.seq} has the nonce of an entry that was being written, and "
        "is another one"
    )


_OF_NONCE = select(
    ENTRIES.c.seq,
    case((func.octet_length(ENTRIES.c.entry) <= MOST_BYTES, ENTRIES.c.entry)).label("entry"),
    ENTRIES.c.hash,
).where(ENTRIES.c.ledger == bindparam("ledger"), ENTRIES.c.nonce == bindparam("nonce"))
_ANY_ENTRY = select(ENTRIES.c.seq).where(ENTRIES.c.ledger == bindparam("ledger")).limit(1)
_LAST_EPOCH = (
    select(EPOCHS.c.epoch, EPOCHS.c.writer, *SERVER)
    .where(EPOCHS.c.ledger == bindparam("ledger"))
    .order_by(EPOCHS.c.epoch.desc())
    .limit(1)
)
_APPEND = insert(ENTRIES)
_SMALL = 2**12  # Bytes of a value that is written in one statement with its entry
_KEEP = insert_or_leave(RELEASED).on_conflict_do_nothing()
_LOCK_SHARED = text("SELECT pg_advisory_lock_shared(:key)")
_TRY_LOCK = text("SELECT pg_try_advisory_lock(:key)")
_RECOVERING = text("SELECT pg_is_in_recovery() AS found")
_LOCK_MEMBER = text("SELECT pg_advisory_lock(:room, :member)")
_ALIVE = text(
    "SELECT objid::bigint AS member FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND objsubid = 2 AND classid::bigint = (:room + 4294967296) % 4294967296 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_WRITE_NOTHING = text("SELECT pg_logical_emit_message(true, 'privlearn', '')")
