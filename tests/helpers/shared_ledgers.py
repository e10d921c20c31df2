"""A ledger that several `Ledger` objects of one process share, as processes share one elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex

from privlearn.errors import LedgerBusyError, LedgerError, LedgerFencedError
from privlearn.ledger import Record, canonical
from privlearn.ledger.stores import Turn, Value


class Place:
    """Where it stands."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.epoch, self.writer = 0, ""
        self.members: dict[str, list[MemoryStore]] = {}
        self.issued: dict[str, MemoryStore] = {}

    def open(self) -> MemoryStore:
        """Begins an epoch."""
        self.epoch, self.writer = self.epoch + 1, token_hex(8)
        self.members.clear()
        return MemoryStore(self)


class MemoryStore:
    """What one process holds of it."""

    checks = False

    def __init__(self, place: Place) -> None:
        self._place, self.epoch, self.writer = place, place.epoch, place.writer
        self.name, self.doubtful, self.gone = "the test's ledger", False, False
        self.grantee = None
        self.before_write: Callable[[Record], object] = lambda record: None

    def iterate(self, begin: int) -> Iterator[Record]:
        yield from self._place.records[begin:]

    @contextmanager
    def turn(self, size: int) -> Iterator[Turn]:
        with self._place.lock:
            self.check()
            orphans = [token for token, who in self._place.issued.items() if who.gone]
            yield Turn(self._place.records[size:], orphans)

    def write(self, record: Record, value: Value | None) -> Record:
        self.check()
        self.before_write(record)
        place = self._place
        for each in place.records:
            if (each.envelope or {})["nonce"] == (record.envelope or {})["nonce"]:
                if canonical(each.body) != canonical(record.body):
                    raise LedgerError("the nonce is that of another entry: nothing was recorded")
                return each
        if record.seq != len(place.records):
            raise LedgerBusyError("others have written: nothing was recorded")
        place.records.append(record)
        if value is not None:
            place.values[value[0]] = value[1]
        if record.body["entry"] == "issue":
            place.issued[record.body["token"]] = self
        return record

    def write_ahead(self, record: Record, value: Value | None) -> None:
        raise AssertionError("nobody checks here")

    def check(self) -> None:
        if self.gone:
            raise LedgerError("this process is gone")
        if self.epoch != self._place.epoch:
            raise LedgerFencedError("the test's ledger was opened anew: nothing was recorded")

    def settle(self) -> None:
        pass

    def value(self, digest: str) -> bytes | None:
        return self._place.values.get(digest)

    def enter(self, accountant: str, *, alone: bool) -> None:
        here = self._place.members.setdefault(accountant, [])
        if alone and any(other is not self and not other.gone for other in here):
            raise LedgerBusyError(f"another process writes for accountant {accountant}")
        here.append(self)

    def close(self) -> None:
        self.gone = True
