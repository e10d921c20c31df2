"""The entries of one account: each is checked, written and recorded, whichever process wrote it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from privlearn.accountants.charged import Account
from privlearn.accountants.prices import read_loss
from privlearn.accountants.state import AccountState, Checked
from privlearn.accountants.turn_lock import News, TurnLock
from privlearn.contract.issuing import Outcome, ReleasedValue
from privlearn.errors import (
    InsufficientBudgetError,
    LedgerClosedError,
    LedgerError,
    LedgerHeadError,
    PrivlearnError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import (
    AttestEntry,
    CloseEntry,
    Entry,
    OpenEntry,
    PlanEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
)
from privlearn.ledger.rights import check_right
from privlearn.ledger.values import packed
from privlearn.losses import DeclaredLoss, Loss, declared_in, foreign_kinds, recorded
from privlearn.storage.exclusive import Exclusive


@final
@dataclass(slots=True)
class OtherLosses:
    """What stood in a ledger of losses of other packages when it was resumed."""

    declared: dict[str, DeclaredLoss] = field(default_factory=dict)
    """By the text of their forms."""
    bare: bool = False
    """Whether some stand there as they are: so it was done by older versions."""

    def as_recorded(self, loss: Loss, users: range) -> Loss:
        """A loss as it stands, or will stand, in the ledger.

        Raises:
            UnknownKindError, PackageError: of another package, and cannot be recorded.
        """
        return loss if self.bare else recorded(loss, users, self.declared)

    def note(self, state: AccountState, entry: Entry) -> None:
        """Looks at an entry that ``state`` has recorded."""
        match entry:
            case PlanEntry():
                for item in state.plan or []:
                    self._note(item.loss, item.users)
            case SpendEntry() | AttestEntry():
                self._note(read_loss(entry.loss), range(*entry.users))

    def _note(self, loss: Loss, users: range) -> None:
        self.bare = self.bare or any(foreign_kinds(loss))
        for one, _ in declared_in(loss, users):
            self.declared.setdefault(one.text, one)


@final
class AccountLog:
    """Writes the entries of one account, and takes in those that other processes write.

    Args:
        state: what follows from the entries so far.
        seen: how many these are.
        ledger: where they stand.
        news: listens to the ledger if others write to it, from the first entry that is not in the
            state on.
        others: losses of other packages among these entries.

    Attributes:
        lock: for looking and writing.  Where others write, too, nobody else can while it is held,
            and all that they wrote is in the state.
    """

    def __init__(
        self,
        state: AccountState,
        seen: int,
        ledger: Ledger,
        news: News,
        others: OtherLosses | None = None,
    ) -> None:
        self.state, self.ledger = state, ledger
        self.others = OtherLosses() if others is None else others
        lock = Exclusive("an accountant")
        self.lock: Exclusive | TurnLock = lock
        if ledger.shared:
            self.lock = TurnLock(lock, ledger, self.catch_up)
        self.own_lock = lock
        """For what is written ahead: against other threads alone."""
        self._news, self._seen = news, seen
        self._ahead: set[tuple[type[Entry], str]] = set()
        """Entries in the state that were written ahead, and not followed: kind and token."""
        self._names, self._named = secrets.token_hex(4), 0
        self._interrupted = False
        self._behind = False
        """Whether entries of other processes stand in the ledger that are not in the state."""

    @property
    def id(self) -> str:
        return self.state.opened.accountant

    def begin(
        self, *, first: bool, beside: Callable[[Sequence[OpenEntry]], None] | None = None
    ) -> None:
        """Writes the entry that opens the account.

        Raises:
            LedgerError: as `Ledger.append`.
        """
        opened = self.state.opened
        with self.ledger.turn():
            self.ledger.enter(self.id, alone=True)
            self._news.own = opened
            self.ledger.append(opened, after=0, first=first, beside=beside)

    def check_writable(self) -> None:
        """Raises LedgerError if nothing can be recorded any more; writes nothing."""
        if self.state.closed:
            raise LedgerClosedError("the accountant was closed")
        if self._interrupted:
            raise LedgerError("an entry was interrupted half-way: resume the ledger to go on")
        self.ledger.check_own()

    @property
    def goes_ahead(self) -> bool:
        """Whether the issue, spend and end of a token need no turn.

        An owner checks them behind all that others wrote; of what is known here only the cap may
        be otherwise, as a plan, once committed, and a rule of participation count what others did.
        Parts and caps inside are looked at in a turn: they may be closed, or renew, meanwhile.
        """
        state = self.state
        plain = state.plan is None and state.visits is None and not state.allowances
        return self.ledger.checks_ahead and plain and self.ledger.grantee is None

    def name(self, ahead: bool) -> str:
        """Of a further token; ahead of others one that none of them can take."""
        if not ahead:
            return f"{self.id}/{len(self.state.accounts) + 1}"
        self._named += 1
        return f"{self.id}/{self._names}-{self._named}"

    def append(
        self,
        entry: Entry,
        value: ReleasedValue | None = None,
        nonce: str | None = None,
        minute: int | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Checks, writes and records, with the lock held: nobody comes in between.

        ``minute``: that it tells, of `Ledger.next_minute`; default, by the clock.
        ``ahead``, with the own lock: others may come in between, see `goes_ahead`.
        """
        if self._interrupted:
            raise LedgerError("an entry was interrupted half-way: resume the ledger to go on")
        if (who := self.ledger.grantee) is not None:
            check_right(entry, who, self._granted, lambda token: self._paid_by(token, who))
        if minute is None and self.state.allowances.timed:
            minute = self.ledger.next_minute()
        checked = self._checked_ahead(entry) if ahead else self.state.check(entry, minute)
        self._interrupted = True
        self._news.own = entry
        try:
            kept = None if value is None else (value.digest, packed(value.value))
            after = None if ahead else self._seen
            self.ledger.append(
                entry, after=after, value=kept, nonce=nonce, minute=minute, ahead=ahead
            )
        except LedgerHeadError:  # it stands
            self._record(checked, ahead)
            raise
        except BaseException:
            self._interrupted = self.ledger.may_hold(entry)
            raise
        self._record(checked, ahead)

    def _checked_ahead(self, entry: Entry) -> Checked[Any]:
        try:
            return self.state.check(entry)
        except InsufficientBudgetError:  # others may have handed back: its owner knows
            return Checked(entry)

    def _record(self, checked: Checked[Any], ahead: bool) -> None:
        if ahead:
            self._ahead.add(_key(checked.entry))
        else:
            self._seen += 1
        self.state.record(checked)
        self._interrupted = False

    def _granted(self, accountant: str, name: str | None, to: str) -> bool:
        return accountant == self.id and self.state.allowances.granted(name, to)

    def _paid_by(self, token: str, who: str) -> bool:
        """Whether a token is of what was granted to somebody."""
        account = self.state.accounts.get(token)
        return account is not None and self._granted(self.id, account.allowance, who)

    def catch_up(self, orphans: Sequence[str]) -> None:
        """Records what others wrote, and ends tokens and parts of processes that are gone."""
        if self._behind:
            raise LedgerError(
                "what other processes wrote was not taken in whole, as that was interrupted or "
                "does not check: join the account again"
            )
        self._behind = True
        in_order = not self._ahead
        for entry in self._news.take():
            if not in_order and _key(entry) in self._ahead:
                self._ahead.remove(_key(entry))
                self._seen += 1
                continue
            try:
                # among what was written ahead it may seem to exceed the cap: its owner checked it
                checked = self.state.check(entry) if in_order else Checked(entry)
            except (PrivlearnError, ValueError) as error:
                raise LedgerError(
                    f"{self.ledger.name}: another process wrote an entry that does not check, and "
                    f"nothing more is recorded here: {error}"
                ) from error
            self.state.record(checked)
            self.others.note(self.state, entry)
            self._seen += 1
        self._behind = False
        if (who := self.ledger.grantee) is not None:  # the others' are left to others
            orphans = [name for name in orphans if self._paid_by(name, who)]
        for name in orphans:
            account = self.state.accounts.get(name)
            if account is not None and account.outcome is None:
                self._end(account)
        for name in orphans:  # behind their tokens: nobody is left who could issue from them
            part = self.state.allowances.get(name)
            if part is not None and not part.returned:
                self.take_back(name)

    def take_back(self, allowance: str) -> None:
        """Ends a reserved part, or a cap, with the lock held."""
        self.append(ReturnEntry(accountant=self.id, allowance=allowance))

    def end_outstanding(self) -> None:
        for account in self.state.outstanding():
            self._end(account)
        for allowance in self.state.delegated():
            self.take_back(allowance.entry.allowance)

    def _end(self, account: Account) -> None:
        outcome: Outcome = "unused" if account.spend is None else "lost"
        self.append(RetireEntry(accountant=self.id, token=account.token, outcome=outcome))

    def close(self) -> None:
        """Ends the account; the ledger is closed with its last one."""
        with self.lock:
            if self.state.closed:
                return
            self.end_outstanding()
            self.append(CloseEntry(accountant=self.id))
            over = not self.ledger.open_accountants
        if over:
            self.ledger.close()


def _key(entry: Entry) -> tuple[type[Entry], str]:
    return entry.__class__, getattr(entry, "token", "")
