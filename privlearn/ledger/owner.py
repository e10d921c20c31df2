"""The one process that writes a ledger file for others: who asks, in which order, and what stands.

Processes ask over a Unix socket (`privlearn.ledger.socket_store`).  One of them at a time has the
*turn*, in which it is told what the others wrote, and appends; the owner checks every entry with
accounts of its own, which follow from the file alone, and makes the record itself.  So what a
process believes, or how it is broken, changes nothing of what may be spent.  So the issue, spend
and end of a token need no turn, and its process need not know what others wrote: they are written
between two turns, if the accounts here say that they may stand.

Whoever has the turn and does not end it, as it is stopped, say, loses it after ``turn_seconds`` if
others wait.  Entries that others are to rely on are brought to disk with one sync for all that came
until it began: the turn goes on meanwhile, and the end of a turn is answered when its own entries
are durable.

A process of another user than the owner's, where these may connect, writes only what was granted
to that user (`privlearn.ledger.rights`), as the kernel tells whose it is.

A process that is gone, by its connection, has ``grace`` seconds to come back; then the owner ends
its tokens: unspent ones are free again, spent ones stay charged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_hex
from typing import Any, Protocol, final

from privlearn.errors import (
    BudgetError,
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    LedgerHeadError,
    LedgerUnreadableError,
    PrivlearnError,
)
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.entries import (
    DelegateEntry,
    Entry,
    IssueEntry,
    PublishEntry,
    RetireEntry,
    ReturnEntry,
    SumsEntry,
    parse_entry,
)
from privlearn.ledger.open_ledger import Settling
from privlearn.ledger.records import record_of
from privlearn.ledger.rights import check_right
from privlearn.ledger.store import Ledger
from privlearn.ledger.stores import Value
from privlearn.ledger.tail import needs_no_sync
from privlearn.ledger.values import unpacked
from privlearn.storage.frames import Message
from privlearn.storage.sockets import Peer
from privlearn.storage.users import user_named

TURN = 10.0
"""Seconds after which a process loses its turn, if others wait; public."""
GRACE = 2.0
"""Seconds that a process whose connection was cut has to come back; public."""
_FOR_EACH = 0.002  # Seconds more for each entry that a process has to take in first
_PAGE = 4 * 2**20  # Bytes of entries that are sent at once
_BEHIND = 1000  # Entries that may be sent with the turn; who knows less takes them in before
_REMEMBERED = 4096  # Entries of which the record is told again, by their nonces
_LOG = logging.getLogger("privlearn.ledger.owner")


class Checker(Protocol):
    """The accounts of a ledger, which say whether an entry may stand."""

    def check(self, entry: Entry, minute: int | None = None) -> None:
        """Raises PrivlearnError or ValueError if it may not, in that minute."""

    def record(self, entry: Entry) -> None:
        """It stands."""

    def outstanding(self) -> Iterable[Entry]:
        """What ends all tokens and reserved parts that have not ended."""

    def ending(self, accountant: str, name: str) -> Entry | None:
        """What ends one of them; None if nothing is to end."""

    def granted(self, accountant: str, name: str | None, to: str) -> bool:
        """Whether a cap of an accountant, or one that it is inside of, was granted to somebody."""

    def has_grant(self, to: str) -> bool:
        """Whether something was granted to them that was not revoked."""


@final
class _Session:
    """One process that asks, whose connection may be another one than at first."""

    def __init__(self, peer: Peer) -> None:
        self.peer: Peer | None = peer
        self.who = None if peer.other is None else user_named(peer.other)
        """Who writes only what was granted to them; None for whoever is the owner's own user."""
        self.other, self.id = peer.other, token_hex(16)
        self.held: dict[str, str] = {}
        """Tokens and reserved parts that are to be ended with it, and their accountants."""
        self.accountants: set[str] = set()
        self.end: asyncio.TimerHandle | None = None


@final
class _Turn:
    """Who may append, and until when."""

    def __init__(self, number: int, session: _Session, until: float) -> None:
        self.number, self.session, self.until = number, session, until


@final
class _Waiting:
    """Who waits for a turn."""

    def __init__(self, session: _Session, size: int, granted: asyncio.Future[_Turn]) -> None:
        self.session, self.size, self.granted = session, size, granted


@final
class LedgerOwner:
    """Answers what processes ask of a ledger; an `Answerer` of one asyncio loop.

    It ends the tokens that are outstanding when it begins: their processes are of an earlier epoch.

    Args:
        ledger: a file, open for writing.
        accounts: of all its entries so far.
        turn_seconds, grace: see above.

    Raises:
        LedgerError: the file cannot be written.
    """

    def __init__(
        self, ledger: Ledger, accounts: Checker, *, turn_seconds: float = TURN, grace: float = GRACE
    ) -> None:
        self._ledger, self._accounts = ledger, accounts
        self._turn_seconds, self._grace = turn_seconds, grace
        self._sessions: dict[str, _Session] = {}
        self._of: dict[Peer, _Session] = {}
        self._holder: dict[str, _Session] = {}
        self._turn: _Turn | None = None
        self._turns = 0
        self._queue: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False
        self._idle = asyncio.Event()
        """Set when a turn has ended that is not given to somebody else, as the owner ends."""
        self._due: list[tuple[str, str]] = []
        """Accountants, and tokens and reserved parts of processes that are gone."""
        self._written: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()
        """By nonce: the body and the line of what was written last."""
        self._syncing = _Syncing(ledger, self._fail)
        self.failure: PrivlearnError | None = None
        """Why nothing more is written."""
        self.failed = asyncio.Event()
        for entry in accounts.outstanding():
            self._append(entry, None, None)

    async def answer(self, peer: Peer, asked: Message) -> Message:
        fields = _Fields(asked.fields)
        do = fields.text("do")
        if self.failure is not None:
            raise self.failure
        if do == "hello":
            return self._hello(peer, fields)
        session = self._of.get(peer)
        if session is None:
            raise LedgerError("the owner does not know this connection: connect anew")
        self._check_epoch(fields.number("epoch"))
        match do:
            case "turn":
                return await self._give_turn(session, fields)
            case "write":
                return self._write(session, fields, asked.attached, in_turn=True)
            case "append":
                return await self._write_ahead(session, fields, asked.attached)
            case "end":
                return await self._end_turn(session, fields)
            case "records":
                return self._records(fields.number("begin"))
            case "value":
                found = self._ledger.value(fields.text("digest"))
                return Message({"found": found is not None}, found or b"")
            case "check":
                self._check_own()
                return Message()
            case "settle":
                self._check_own()
                await self._syncing.done()
                return Message()
            case "enter":
                return self._enter(session, fields)
            case "bye":
                self._leave(session, at_once=True)
                return Message()
        raise LedgerError(f"{do!r:.80} cannot be asked of the owner of a ledger: use one version")

    def _check_epoch(self, epoch: int) -> None:
        now = self._ledger.log.tip.epoch
        if epoch != now:
            raise LedgerFencedError(
                f"{self._ledger.name} was opened anew, in epoch {now}, and this "
                f"process is of epoch {epoch}: nothing was recorded, and nothing more is released "
                "by it; connect again, and resume or join the account"
            )

    def _hello(self, peer: Peer, fields: _Fields) -> Message:
        epoch, known = fields.optional_number("epoch"), fields.optional_text("session")
        if peer in self._of:
            raise LedgerError("the owner knows this connection already: use one version")
        if epoch is not None:
            self._check_epoch(epoch)
        who = None if peer.other is None else user_named(peer.other)
        if who is not None and not self._accounts.has_grant(who):
            raise LedgerError(f"{self._ledger.name}: nothing is granted to user {who!r}")
        if known is None:
            session = _Session(peer)
            self._sessions[session.id] = session
        else:
            session = self._back(peer, known)
        self._of[peer] = session
        return Message(
            {
                "session": session.id,
                "path": self._ledger.name,
                "epoch": self._ledger.log.tip.epoch,
                "writer": self._ledger.log.tip.writer,
                "heads_elsewhere": self._ledger.keeps_heads_elsewhere,
                "grantee": session.who,
            }
        )

    def _back(self, peer: Peer, known: str) -> _Session:
        """A process that lost its connection, and whose tokens were not ended yet."""
        session = self._sessions.get(known)
        if session is None or peer.other != session.other:
            raise LedgerFencedError(
                f"{self._ledger.name}: the connection of this process was cut for more than "
                f"{self._grace:g} seconds, and its tokens were ended; connect again, and join"
            )
        if session.peer is not None:  # its end was not seen yet
            self._of.pop(session.peer, None)
            self._drop(session)
        if session.end is not None:
            session.end.cancel()
            session.end = None
        session.peer = peer
        return session

    def left(self, peer: Peer) -> None:
        session = self._of.pop(peer, None)
        if session is not None and session.peer is peer:
            session.peer = None
            self._drop(session)
            self._leave(session, at_once=False)

    def _drop(self, session: _Session) -> None:
        for waiting in self._queue:
            if waiting.session is session:
                waiting.granted.cancel()
        if self._turn is not None and self._turn.session is session:
            self._turn = None
        self._grant()

    def _leave(self, session: _Session, *, at_once: bool) -> None:
        if session.end is not None:
            session.end.cancel()
        if not at_once and self._grace:
            loop = asyncio.get_running_loop()
            session.end = loop.call_later(self._grace, self._leave_now, session)
        else:
            self._leave_now(session)

    def _leave_now(self, session: _Session) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        session.accountants.clear()
        for name, accountant in session.held.items():
            self._holder.pop(name, None)
            self._due.append((accountant, name))
        if session.peer is not None:
            self._of.pop(session.peer, None)
            session.peer = None
        self._drop(session)

    def _enter(self, session: _Session, fields: _Fields) -> Message:
        accountant = fields.text("accountant")
        if fields.truth("alone"):
            if session.who is not None:
                raise BudgetError(f"{session.who!r} joins the account for what was granted")
            for other in list(self._sessions.values()):
                if other is session or accountant not in other.accountants:
                    continue
                if other.peer is not None:
                    raise LedgerBusyError(
                        f"{self._ledger.name}: process {other.peer.process} writes for accountant "
                        f"{accountant}: an account is resumed by one process alone; join it"
                    )
                self._leave(other, at_once=True)  # who is gone does not come back to this
        session.accountants.add(accountant)
        return Message()

    async def _give_turn(self, session: _Session, fields: _Fields) -> Message:
        size, known = fields.number("size"), fields.number("known")
        if self._ledger.log.tip.size - known > _BEHIND:
            lines = self._ledger.stored(known, _PAGE)
            return Message({"turn": None}, b"\n".join(lines))
        turn = await self._granted(session, size, min(fields.real("wait"), 3600.0))
        lines = self._ledger.stored(known, 2**40)
        return Message({"turn": turn.number}, b"\n".join(lines))

    async def _granted(self, session: _Session, size: int, wait: float) -> _Turn:
        if self._ending:
            raise LedgerError(f"{self._ledger.name}: its owner ends; nothing was recorded")
        self._drop(session)  # who asks again gave up what it asked for before
        loop = asyncio.get_running_loop()
        waiting = _Waiting(session, size, loop.create_future())
        self._queue.append(waiting)
        self._grant()
        await asyncio.wait([waiting.granted], timeout=wait)
        if not waiting.granted.done():
            self._queue.remove(waiting)
            raise LedgerBusyError(
                f"{self._ledger.name}: other processes had the turn for {wait:g} seconds; nothing "
                "was recorded: try again"
            )
        if waiting.granted.cancelled():
            if self.failure is not None:
                raise self.failure
            raise LedgerError(f"{self._ledger.name}: its owner ends, or the connection was cut")
        return waiting.granted.result()

    async def _write_ahead(self, session: _Session, fields: _Fields, attached: bytes) -> Message:
        """Writes between two turns an entry that relies on no other that its process knows of."""
        wait = min(fields.real("wait"), 3600.0)
        if self._turn is None and not self._queue and not self._due and not self._ending:
            told = self._write(session, fields, attached)
        else:
            turn = await self._granted(session, self._ledger.log.tip.size, wait)
            try:
                told = self._write(session, fields, attached)
            finally:
                if self._turn is turn:
                    self._turn = None
                    self._grant()
        if told.fields["unsettled"]:
            await self._syncing.done()
        return told

    def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._queue[0].granted.done():
            self._queue.popleft()
        turn = self._turn
        if turn is not None:
            if (self._queue or self._due) and loop.time() >= turn.until:
                who = turn.session.peer
                process = "a process" if who is None else f"process {who.process}"
                _LOG.warning("%s: %s was too slow in its turn", self._ledger.name, process)
                self._turn = None
            elif self._queue or self._due:
                self._timer = loop.call_at(turn.until, self._grant)
        if self._turn is not None:
            return
        self._write_due()
        if self._ending:
            self._idle.set()
            return
        while self._queue and self.failure is None:
            waiting = self._queue.popleft()
            if not waiting.granted.done():
                more = max(0, self._ledger.log.tip.size - waiting.size) * _FOR_EACH
                if waiting.session.who is not None:  # who says how much it has to take in
                    more = min(more, self._turn_seconds)
                self._turns += 1
                until = loop.time() + self._turn_seconds + more
                self._turn = _Turn(self._turns, waiting.session, until)
                waiting.granted.set_result(self._turn)
                if self._queue:
                    self._timer = loop.call_at(until, self._grant)
                return

    async def _end_turn(self, session: _Session, fields: _Fields) -> Message:
        turn, number = self._turn, fields.optional_number("turn")
        if number is None:  # it was interrupted, and does not know whether it was given one
            self._drop(session)
        elif turn is not None and turn.session is session and turn.number == number:
            self._turn = None
            self._grant()
        if fields.truth("settle"):
            await self._syncing.done()
        return Message()

    def _records(self, begin: int) -> Message:
        lines = self._ledger.stored(begin, _PAGE)
        return Message({"size": self._ledger.log.tip.size}, b"\n".join(lines))

    def _check_own(self) -> None:
        try:
            self._ledger.check_own()
        except LedgerError as error:
            raise self._fail(error) from error

    def _write(
        self, session: _Session, fields: _Fields, attached: bytes, *, in_turn: bool = False
    ) -> Message:
        stored = attached[: fields.number("entry")]
        entry, nonce = _entry_in(stored)
        body = canonical([entry.body(), entry.ext()])
        line = self._stands(nonce, body)
        if line is None:
            if in_turn:
                self._check_turn(session, fields)
            if session.who is not None:
                own = lambda token: self._holder.get(token) is session  # noqa: E731
                check_right(entry, session.who, self._accounts.granted, own)
            value = _value_in(entry, fields.optional_text("digest"), attached[len(stored) :])
            line = self._append(entry, value, nonce)
            self._written[nonce] = body, line
            if len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)
            self._hold(session, entry)
        return Message({"unsettled": not needs_no_sync(entry.body())}, line)

    def _stands(self, nonce: str, body: bytes) -> bytes | None:
        """The line of an entry that was written before, as its answer was lost."""
        found = self._written.get(nonce)
        if found is None:
            return None
        if found[0] != body:
            raise LedgerError(f"nonce {nonce} is that of another entry: nothing was recorded")
        return found[1]

    def _check_turn(self, session: _Session, fields: _Fields) -> None:
        turn, number = self._turn, fields.optional_number("turn")
        if turn is None or turn.session is not session or turn.number != number:
            raise LedgerBusyError(
                f"{self._ledger.name}: the turn of this process is over, as it took longer than "
                f"{self._turn_seconds:g} seconds, or its connection was cut; nothing was recorded: "
                "try again"
            )
        if fields.number("seq") != self._ledger.log.tip.size:
            raise LedgerBusyError(f"{self._ledger.name}: others have written: nothing was recorded")

    def _append(self, entry: Entry, value: Value | None, nonce: str | None) -> bytes:
        """Writes an entry, if it may stand; its line."""
        try:
            minute = self._ledger.next_minute()
            self._accounts.check(entry, minute)
        except ValueError as error:
            if isinstance(error, PrivlearnError):
                raise
            raise LedgerError(f"{error}: nothing was recorded") from None
        try:
            self._ledger.append(entry, value=value, nonce=nonce, later=True, minute=minute)
        except BaseException as error:
            if self._ledger.may_hold(entry) or isinstance(error, LedgerBusyError):
                raise self._fail(error) from error
            raise
        try:
            self._accounts.record(entry)
        except BaseException as error:  # it stands, and what may stand behind it is not known
            raise self._fail(error) from error
        record = self._ledger.log.last_record
        assert record is not None
        return record.line()

    def _hold(self, session: _Session, entry: Entry) -> None:
        """Knows what is to be ended when the process is gone."""
        match entry:
            case IssueEntry():
                name = entry.token
            case DelegateEntry():
                name = entry.allowance
            case RetireEntry() | ReturnEntry():
                ended = entry.token if isinstance(entry, RetireEntry) else entry.allowance
                holder = self._holder.pop(ended, None)
                if holder is not None:
                    holder.held.pop(ended, None)
                return
            case _:
                return
        session.held[name] = entry.accountant
        self._holder[name] = session

    def _write_due(self) -> None:
        """Between two turns: ends what is due, and has not been ended since, tokens first."""
        due, self._due = self._due, []
        found = [self._accounts.ending(accountant, name) for accountant, name in due]
        entries = [entry for entry in found if entry is not None]
        for entry in sorted(entries, key=lambda entry: isinstance(entry, ReturnEntry)):
            try:
                if self.failure is None:
                    self._append(entry, None, None)
            except PrivlearnError as error:
                _LOG.warning("%s: a token could not be ended: %s", self._ledger.name, error)

    def _fail(self, error: BaseException) -> PrivlearnError:
        """Nothing more is written: what stands on the disk is not known, or is not this owner's."""
        if self.failure is None:
            busy = isinstance(error, LedgerBusyError)
            kind = LedgerFencedError if busy else LedgerError
            self.failure = kind(
                f"the owner of {self._ledger.name} stops: {error}; nothing more is recorded or "
                "released; when that is mended, serve the ledger again, connect anew, and resume "
                "or join the account"
            )
            for waiting in self._queue:
                if not waiting.granted.done():
                    waiting.granted.cancel()
            self.failed.set()
        return self.failure

    async def finish(self, seconds: float) -> None:
        """Gives no further turns, and lets whoever has one end it, for so many seconds at most."""
        self._ending = True
        for waiting in self._queue:
            waiting.granted.cancel()
        if self._turn is not None and self.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    async def end(self) -> None:
        """Ends the tokens of all processes; called last, when nothing more can be asked."""
        await self._syncing.end()
        self._turn = None
        for session in list(self._sessions.values()):
            self._leave(session, at_once=True)


@final
class _Syncing:
    """Brings entries to disk in a thread, all that were written until it begins at once."""

    def __init__(self, ledger: Ledger, fail: Callable[[BaseException], PrivlearnError]) -> None:
        self._ledger, self._fail = ledger, fail
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="privlearn-sync")

    async def done(self) -> None:
        """Returns when all that was written before is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await future

    async def end(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                step: Settling = self._ledger.settling()
                await loop.run_in_executor(self._thread, step.sync)
                self._ledger.settled(step)
            except BaseException as error:
                # an entry whose head was not kept stands, and the next one may do better
                kept = isinstance(error, LedgerHeadError)
                failure = error if kept else self._fail(error)
                for future in waiting:
                    if not future.done():
                        future.set_exception(failure)
                if not isinstance(error, Exception):
                    raise
            else:
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
        self._task = None


@final
class _Fields:
    """The fields of a question, each of its type."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def _of(self, name: str, kinds: tuple[type, ...]) -> Any:
        found = self._fields.get(name)
        if found.__class__ not in kinds:
            raise LedgerError(f"{name!r} = {found!r:.80} was asked of the owner: use one version")
        return found

    def text(self, name: str) -> str:
        found: str = self._of(name, (str,))
        return found

    def number(self, name: str) -> int:
        found: int = self._of(name, (int,))
        if not 0 <= found < 2**53:
            raise LedgerError(f"{name!r} = {found!r:.80} was asked of the owner: use one version")
        return found

    def real(self, name: str) -> float:
        return float(self._of(name, (int, float)))

    def truth(self, name: str) -> bool:
        found: bool = self._of(name, (bool,))
        return found

    def optional_text(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def optional_number(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.number(name)


def _entry_in(stored: bytes) -> tuple[Entry, str]:
    """The entry that a process wants to stand, and its nonce."""
    try:
        record = record_of(0, stored, b"0" * 64)
        nonce = (record.envelope or {}).get("nonce")
        if not isinstance(nonce, str) or len(nonce) != 32 or not set(nonce) <= _DIGITS:
            raise ValueError("its nonce is not one of 32 hexadecimal digits")
        return parse_entry(record.body, record.ext), nonce
    except ValueError as error:
        raise LedgerError(f"an entry that is not of the form: {error}") from None


_DIGITS = frozenset("0123456789abcdef")


def _value_in(entry: Entry, digest: str | None, data: bytes) -> Value | None:
    """The value that is kept with an entry."""
    stated: object = None
    if isinstance(entry, PublishEntry | SumsEntry):
        stated = entry.digest
    elif isinstance(entry, RetireEntry) and entry.value is not None:
        stated = entry.value.get("digest")
    if digest != stated:
        raise LedgerError("a value that is not the one that its entry states: nothing was recorded")
    if digest is None:
        return None
    try:
        unpacked(data, digest)
    except LedgerUnreadableError as error:
        raise LedgerError(f"{error}: nothing was recorded") from None
    return digest, data
