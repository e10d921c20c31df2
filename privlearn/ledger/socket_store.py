"""A ledger file that another process of this host owns, over its Unix socket.

The owner, `privlearn.ledger.owner`, makes every record and decides whether it may stand; here is
what it is asked.  A connection that was cut is made again, once, and what was on its way is asked
again: an entry by its nonce, so that it never stands twice.  An owner that was replaced tells
another epoch, and this store then refuses everything with LedgerFencedError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, final

from privlearn.errors import LedgerError, LedgerUnreadableError, LocalSocketError, PrivlearnError
from privlearn.ledger.chain import Record
from privlearn.ledger.large_values import LARGEST
from privlearn.ledger.records import record_of
from privlearn.ledger.replica import check_same
from privlearn.ledger.stores import Turn, Value
from privlearn.storage.exclusive import Block
from privlearn.storage.frames import Limits, Message
from privlearn.storage.sockets import Client

LIMITS = Limits(json=2**20, attached=LARGEST + 2**24)
"""Entries and values come attached, and are as large as a ledger takes them."""
WAIT = 60.0
"""Seconds that a process waits for its turn."""
_ANSWER = 30.0  # Seconds within which the owner answers everything else
_FAREWELL = 2.0  # Seconds that a ledger takes at most to be closed, if the owner does not answer


def lines_of(attached: bytes, begin: int) -> Iterator[Record]:
    """Records, from a position on, as the owner sends them: lines of an export.

    Raises:
        LedgerUnreadableError: not of the form.
    """
    for seq, line in enumerate(attached.split(b"\n") if attached else (), begin):
        data, _, end = line.removeprefix(_FIRST).rpartition(_MIDDLE)
        try:
            if not line.startswith(_FIRST) or not end.endswith(_LAST):
                raise ValueError(f"entry {seq} is not of the form")
            yield record_of(seq, data, end.removesuffix(_LAST))
        except ValueError as error:
            raise LedgerUnreadableError(f"the owner sent what is no ledger: {error}") from None


_FIRST, _MIDDLE, _LAST = b'{"entry":', b',"hash":"', b'"}'


@final
class SocketStore:
    """What one process holds of a ledger that its owner writes; see `SharedStore`.

    Args:
        socket: of the owner.
        of: the number of the user whose process that must be; default, this one's.

    Attributes:
        heads_elsewhere: whether the owner hands each head to somebody who keeps it.
        grantee: this process's user, if the owner lets it write only what was granted to them.

    Raises:
        LedgerError: nobody serves there.
    """

    def __init__(self, socket: str | os.PathLike[str], of: int | None = None) -> None:
        self._socket, self._of, self.heads_elsewhere = socket, of, False
        self.grantee: str | None = None
        self._session: str | None = None
        self._joining = threading.Lock()
        self._asked = self._unsettled = False
        """Whether the owner may have given us a turn, and whether entries of it must be durable."""
        self._turn: int | None = None
        self.doubtful = False
        self.epoch, self.writer = 0, ""
        try:
            self._client = self._connected()
        except LocalSocketError as error:
            raise LedgerError(
                f"{error}; a ledger's owner is started by `privlearn ledger serve LEDGER`"
            ) from None

    def _connected(self) -> Client:
        client = Client(self._socket, limits=LIMITS, of=self._of)
        try:
            asked = {"do": "hello", "session": self._session, "epoch": self.epoch or None}
            told = client.ask(asked, seconds=_ANSWER).fields
        except BaseException:
            client.close()
            raise
        self._session, self._ledger = str(told["session"]), str(told["path"])
        self.heads_elsewhere = bool(told["heads_elsewhere"])
        self.grantee = None if told["grantee"] is None else str(told["grantee"])
        self.epoch, self.writer = int(told["epoch"]), str(told["writer"])
        return client

    @property
    def name(self) -> str:
        return f"{self._ledger} (by its owner at {self._socket})"

    def _ask(
        self, do: str, fields: dict[str, Any], attached: bytes = b"", seconds: float = _ANSWER
    ) -> Message:
        question = {"do": do, "epoch": self.epoch, **fields}
        client = self._client
        try:
            return client.ask(question, attached, seconds=seconds)
        except LocalSocketError as error:
            if not client.lost:
                raise LedgerError(f"{self.name}: {error}") from error
        try:
            return self._again(client).ask(question, attached, seconds=seconds)
        except LocalSocketError as error:
            raise LedgerError(
                f"{self.name} cannot be asked: {error}; nothing is released for what was not "
                "answered: start the owner again, connect anew, and resume or join the account"
            ) from error

    def _again(self, lost: Client) -> Client:
        with self._joining:
            if self._client is lost:
                self._client = self._connected()
                lost.close()
            return self._client

    def iterate(self, begin: int) -> Iterator[Record]:
        stop = None
        while stop is None or begin < stop:
            told = self._ask("records", {"begin": begin})
            stop = int(told.fields["size"]) if stop is None else stop
            for record in lines_of(told.attached, begin):
                begin = record.seq + 1
                yield record
            if begin < stop and not told.attached:
                raise LedgerUnreadableError(f"{self.name}: entry {begin} is not there")

    def turn(self, size: int) -> AbstractContextManager[Turn]:
        return Block(lambda: self._steps(size))

    def _steps(self, size: int) -> Generator[Turn]:
        try:
            try:
                self._asked, self._turn, self._unsettled = True, None, False
                yield Turn(self._taken(size))
            finally:
                self._end()
        except BaseException:  # a signal's may have fallen before it began to
            self._end()
            raise

    def _taken(self, size: int) -> list[Record]:
        records: list[Record] = []
        while self._turn is None:
            fields = {"size": size, "known": size + len(records), "wait": WAIT}
            told = self._ask("turn", fields, seconds=WAIT + _ANSWER)
            records += lines_of(told.attached, size + len(records))
            # where it is none, there is more than is sent at once, and others may go first
            self._turn = None if told.fields["turn"] is None else int(told.fields["turn"])
        return records

    def _end(self) -> None:
        """Gives the turn back, if there may be one; may be called again if it is interrupted."""
        if not self._asked:
            return
        # without a number it ends one that is given to us later, too, when nobody waits for it
        fields = {"turn": self._turn, "settle": self._unsettled}
        try:
            if self._unsettled:
                self._ask("end", fields)
            else:
                self._client.tell({"do": "end", "epoch": self.epoch, **fields})
        except PrivlearnError:  # else the turn has ended with the connection
            if self._unsettled:
                self._asked, self._turn = False, None
                raise
        self._asked, self._turn = False, None

    def write(self, record: Record, value: Value | None) -> Record:
        """Appends in a turn, and returns the record that stands there.

        It is durable when the turn has ended, by when the owner has brought several to disk at
        once; nobody releases anything for it before, as an accountant holds the turn until then.
        """
        fields, attached = self._written(record, value)
        self.doubtful = True
        try:
            told = self._ask("write", {"turn": self._turn, "seq": record.seq, **fields}, attached)
        except PrivlearnError as error:
            # what the owner answered is known: it was not written
            self.doubtful = isinstance(error.__cause__, LocalSocketError)
            raise
        (stands,) = lines_of(told.attached, record.seq)
        self._unsettled = self._unsettled or bool(told.fields["unsettled"])
        self.doubtful = False
        return stands

    @staticmethod
    def _written(record: Record, value: Value | None) -> tuple[dict[str, Any], bytes]:
        """An entry and its value, as the owner is asked to write them."""
        digest, data = (None, b"") if value is None else value
        if len(data) > LARGEST:
            raise LedgerError(f"a value of {len(data)} bytes; at most {LARGEST} are kept")
        return {"entry": len(record.data), "digest": digest}, record.data + data

    checks = True

    def write_ahead(self, record: Record, value: Value | None) -> None:
        fields, attached = self._written(record, value)
        self.doubtful = True
        try:
            asked = {"wait": WAIT, **fields}
            told = self._ask("append", asked, attached, seconds=WAIT + _ANSWER)
        except PrivlearnError as error:
            # an entry stands whose head was not kept; else nothing was written
            self.doubtful = isinstance(error.__cause__, LocalSocketError)
            raise
        if not told.attached.startswith(_FIRST + record.data):  # it may tell another minute
            (stands,) = lines_of(told.attached, record.seq)
            check_same(stands, record, self.name)
        self.doubtful = False

    def check(self) -> None:
        self._ask("check", {})

    def settle(self) -> None:
        self._ask("settle", {})

    def value(self, digest: str) -> bytes | None:
        told = self._ask("value", {"digest": digest})
        return told.attached if told.fields["found"] else None

    def enter(self, accountant: str, *, alone: bool) -> None:
        self._ask("enter", {"accountant": accountant, "alone": alone})

    def close(self) -> None:
        """Ends the tokens of this process, and the connection; may be called twice."""
        with suppress(PrivlearnError):  # who cannot be told sees that the connection is closed
            self._client.ask({"do": "bye", "epoch": self.epoch}, seconds=_FAREWELL)
        self._client.close()
