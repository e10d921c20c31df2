"""What one process knows of a ledger that others write to as well."""

from __future__ import annotations

from typing import final

from privlearn.errors import LedgerError, LedgerUnreadableError
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import Chain, Record, minute_of
from privlearn.ledger.entries import Entry, parse_entry
from privlearn.ledger.last_record import Tip
from privlearn.ledger.stores import SharedStore, Value


@final
class Replica:
    """The chain of a shared ledger, as far as this process has followed it.

    Args:
        store: where the ledger stands.

    Attributes:
        tip: of the chain.
        in_turn: whether nobody else can write, so that this process may.
        broken: whether the chain was followed half-way, so that nothing can be written behind it.
    """

    def __init__(self, store: SharedStore) -> None:
        self._store, self._chain = store, Chain()
        self.tip = Tip(self._chain.tree, self._chain.nonces, store.writer, store.epoch)
        self.in_turn = self.broken = False

    @property
    def size(self) -> int:
        return self._chain.size

    def take_in(self, record: Record) -> Entry:
        """Follows an entry that stands in the store.

        Raises:
            LedgerUnreadableError: it does not continue the chain.
        """
        problems = self._chain.add(record)
        if not problems:
            try:
                entry = parse_entry(record.body, record.ext)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            self.broken = True
            raise LedgerUnreadableError(
                f"{self._store.name} was changed by somebody else than its writers: "
                f"{'; '.join(problems)}"
            )
        self.tip.head = record.hash
        self.tip.minute = max(self.tip.minute, minute_of(self._chain.minute))
        return entry

    def write(self, record: Record, value: Value | None) -> Record:
        """Appends to the store; returns the record that stands there, for `follow`.

        Raises:
            LedgerError: it is not this process's turn, or as `SharedStore.write`.
        """
        if not self.in_turn:
            raise LedgerError(
                f"{self._store.name}: entries are written in a turn: with ledger.turn(): …"
            )
        return self._store.write(record, value)

    def follow(self, stands: Record, record: Record) -> None:
        """Takes an entry of our own into the chain, as it stands in the store.

        Raises:
            LedgerUnreadableError: another one stands there.
        """
        self.broken = True
        check_same(stands, record, self._store.name)
        problems = self._chain.add(stands)
        if problems:
            raise LedgerUnreadableError(f"{self._store.name}: {'; '.join(problems)}")
        self.broken = False
        self.tip.head = stands.hash


def check_same(stands: Record, record: Record, name: str) -> None:
    """Raises LedgerUnreadableError unless what stands in a store says what was to be written."""
    if stands.data != record.data and canonical(stands.body) != canonical(record.body):
        raise LedgerUnreadableError(f"{name}: another entry was written")
