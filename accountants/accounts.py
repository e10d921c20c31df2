"""All accounts of one ledger, as they follow from its entries: what its owner checks by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from privlearn.accountants.multiple_accountants import check_beside
from privlearn.accountants.state import AccountState, Checked
from privlearn.errors import LedgerClosedError, LedgerError, LedgerHeadError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import (
    CapEntry,
    Entry,
    OpenEntry,
    ResumeEntry,
    RetireEntry,
    ReturnEntry,
)


@final
class Accounts:
    """The accounts of a ledger; `read` makes them of its entries."""

    def __init__(self) -> None:
        self._states: dict[str, AccountState] = {}
        self._made: AccountState | None = None
        self._checked: Checked[Entry] | None = None
        self._unsaid = False
        """Whether no entry says yet that the head of the ledger was unknown."""

    @classmethod
    def read(cls, ledger: Ledger) -> Accounts:
        """Those that a ledger holds.

        Raises:
            LedgerError: an entry does not check.
            LedgerHeadError: the head is unknown, and an account is of a version that cannot say so.
        """
        accounts = cls()
        for number, entry in enumerate(ledger.entries):
            try:
                accounts.check(entry)
            except (LedgerError, ValueError, RuntimeError) as error:
                raise LedgerError(
                    f"{ledger.name} cannot be served: entry {number}: {error}"
                ) from None
            accounts.record(entry)
        accounts._unsaid = ledger.unknown_head
        if ledger.unknown_head:
            for state in accounts._open():
                if not state.resumable:
                    raise LedgerHeadError(
                        "unknown_head = True: an account was begun by a version whose ledgers "
                        "cannot say so; give head=, the last hash, which `privlearn audit` prints"
                    )
        return accounts

    def _open(self) -> Iterator[AccountState]:
        return (state for state in self._states.values() if not state.closed)

    def check(self, entry: Entry, minute: int | None = None) -> None:
        """Raises what `AccountState.check` does if an entry may not stand behind the others.

        Raises:
            LedgerError: its account was not opened, or is opened again.
        """
        state = self._states.get(entry.accountant)
        if not isinstance(entry, OpenEntry):
            if state is None:
                raise LedgerError(f"accountant {entry.accountant!r} was not opened")
            if state.closed:
                raise LedgerClosedError(f"accountant {entry.accountant!r} was closed")
            self._checked = state.check(entry, minute)
        elif state is not None:
            raise LedgerError(f"accountant {entry.accountant!r} was opened before")
        else:
            check_beside(entry, [other.opened for other in self._states.values()])
            self._made = AccountState(entry)

    def record(self, entry: Entry) -> None:
        if isinstance(entry, OpenEntry):
            assert self._made is not None
            self._states[entry.accountant], self._made = self._made, None
        else:
            known = self._checked is not None and self._checked.entry is entry
            checked = self._checked if known else None
            self._states[entry.accountant].record(checked or Checked(entry))

    def granted(self, accountant: str, name: str | None, to: str) -> bool:
        """Whether a cap of an accountant, or one that it is inside of, was granted to somebody."""
        state = self._states.get(accountant)
        return state is not None and state.allowances.granted(name, to)

    def has_grant(self, to: str) -> bool:
        """Whether something was granted to them that was not revoked."""
        return any(
            isinstance(part.entry, CapEntry) and part.entry.to == to and not part.returned
            for state in self._open()
            for part in state.allowances.values()
        )

    def outstanding(self) -> Iterator[Entry]:
        """What a new opening writes: that the head was unknown, and the ends of what is open."""
        for state in list(self._open()):
            accountant = state.opened.accountant
            if self._unsaid:
                yield ResumeEntry(accountant=accountant)
            for account in state.outstanding():
                yield from filter(None, [self.ending(accountant, account.token)])
            for allowance in state.delegated():
                yield from filter(None, [self.ending(accountant, allowance.entry.allowance)])

    def ending(self, accountant: str, name: str) -> Entry | None:
        """What ends a token or a reserved part; None if it has ended."""
        state = self._states[accountant]
        if state.closed:
            return None
        if name in state.allowances:
            returned = state.allowances[name].returned
            return None if returned else ReturnEntry(accountant=accountant, allowance=name)
        account = state.accounts.get(name)
        if account is None or account.outcome is not None:
            return None
        return RetireEntry(
            accountant=accountant, token=name, outcome="unused" if account.spend is None else "lost"
        )
