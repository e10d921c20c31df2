"""How an account goes on: what it released before a restart, and what is left of its plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.charged import Planned
from privlearn.accountants.recorded_values import RecordedValue, recorded_values
from privlearn.accountants.replay import Replay
from privlearn.accountants.token_entries import TokenEntries
from privlearn.errors import LedgerError
from privlearn.ledger.entries import LearnerEntry
from privlearn.people import People


class Continuing:
    """The side of an accountant that learners go on by; begun anew it goes on from nothing."""

    def _start(self, log: AccountLog, issuer: TokenEntries) -> None:
        self._log, self._state, self._lock = log, log.state, log.lock
        self.ledger, self.issuer = log.ledger, issuer
        """Where its entries stand, and what its tokens talk to."""
        self._resumed = self._joined = False
        self._before: Replay | None = None
        """What was released before a restart, until a learner runs again over it."""
        self._goes_on = False

    @property
    def id(self) -> str:
        """The accountant's name in the ledger; token ids begin with it."""
        return self._state.opened.accountant

    @property
    def people(self) -> People | None:
        """The registry of persons who may come back; None where a user is one index.

        It stays as it was when the accountant was opened: a rule begins before the first token.
        """
        return self.issuer.people

    @property
    def users(self) -> range:
        """The arrival indices this accountant protects."""
        return self._state.users

    @property
    def learner(self) -> LearnerEntry | None:
        """Whose plan stands in the ledger; None if no learner was begun, or it was in memory."""
        return self._state.learner

    @property
    def closed(self) -> bool:
        """Whether nothing more can be issued or spent."""
        return self._state.closed

    @property
    def resumed(self) -> bool:
        """Whether the account was begun by an earlier process."""
        return self._resumed

    @property
    def begun(self) -> bool:
        """Whether a plan stands in the ledger, or a token was issued."""
        with self._lock:
            return self._state.begun

    def record_learner(self, name: str, parameters: dict[str, Any], made: dict[str, Any]) -> None:
        """For learners: writes, before the plan, what makes the same learner again."""
        self._check_not_joined()
        with self._lock:
            if self._state.resumable:
                self._log.append(
                    LearnerEntry(accountant=self.id, name=name, parameters=parameters, made=made)
                )

    def _check_not_joined(self) -> None:
        if self._joined:
            raise LedgerError(
                "the account was joined, beside other processes, and a learner belongs to one: "
                "resume the account there"
            )

    @contextmanager
    def replaying(self, *, goes_on: bool = False) -> Iterator[Replay]:
        """For learners: tokens issued in the block are those of earlier processes, in their order.

        They open null records, and what leaves is what left then.  A learner that has the rows
        again ``goes_on``: when all that left has left again, it makes what the plan still holds.

        Raises:
            LedgerError: the account was not resumed, or a learner has run again over it before; at
                the end of the block, that something which left then did not leave again.
        """
        self._check_not_joined()
        with self._lock:
            past, self._before = self._before, None
            if past is None:
                raise LedgerError(
                    "a learner runs over what was released before a restart, once: resume the "
                    "ledger anew for another one"
                )
            past.begin()
            self.issuer.past, self._goes_on = past, goes_on
        try:
            yield past
            past.check_all_left()
        finally:
            self.issuer.past = None

    @property
    def _past(self) -> Replay | None:
        """While a learner runs again, what was released before; None from where it goes on."""
        past = self.issuer.past
        return None if past is None or (self._goes_on and past.over) else past

    def left(self, label: str, users: range) -> int:
        """How many tokens of a committed plan item are still to be issued; 0 if there is none."""
        with self._lock:
            past = self._past
            return self._unissued(label, users) if past is None else past.left(label, users)

    def _unissued(self, label: str, users: range) -> int:
        items: list[Planned] = self._state.plan or []
        return sum(item.left for item in items if (item.label, item.users) == (label, users))

    @property
    def unmade(self) -> list[tuple[str, range, int]]:
        """Of the committed plan, what was never issued: labels, users, and how many tokens."""
        with self._lock:
            items: list[Planned] = self._state.plan or []
            return [(item.label, item.users, item.left) for item in items if item.left]

    def lost(self, label: str, users: range, upto: int | None = None) -> bool:
        """Whether a step was lost with a process that died; False outside of `replaying`.

        That is, whether no token of these users released anything of rows before ``upto``, by
        default of all of them; and, where the learner goes on, none can be issued any more.
        """
        past = self.issuer.past
        if past is None:
            return False
        with self._lock:
            if self._past is None:
                return past.lost(label, users) or not self._unissued(label, users)
            return not past.released(label, users, users.stop if upto is None else upto)

    def rest(self, label: str, users: range) -> range | None:
        """The users of whom a planned stream can still take rows; None if there are none.

        All of them before it began, and after it ended early, as its process died, those whose
        rows it did not take.
        """
        with self._lock:
            if self.issuer.past is not None:
                return self.issuer.past.rest(label, users)
            for item in self._state.plan or []:
                if (item.label, item.users) == (label, users):
                    return item.rest
            return None

    def held(self, label: str, users: range) -> list[range]:
        """Whose rows tokens of that label are for, of those that are out or were spent.

        Those that hold some of ``users``, in the order of their issue, also from before a restart.
        A stream that ended holds the users that it may have taken rows of.
        """
        found = []
        with self._lock:
            for account in self._state.accounts.values():
                if account.label != label or account.outcome == "unused":
                    continue
                theirs = self._state.users_of(account)
                if theirs.start < users.stop and users.start < theirs.stop:
                    found.append(theirs)
        return found

    def released(self, label: str) -> list[RecordedValue]:
        """What left under a label, also before a restart: values, and whose rows they are made of.

        Raises:
            LedgerError: the ledger keeps no values, as it is in memory or of an older version; or
                the accountant was closed.
            LedgerUnreadableError: a value is missing, or was changed.
        """
        if not self._state.resumable:
            raise LedgerError(
                "released: values are kept in ledgers of files, Ledger.create(path), from this "
                "version on; here only their digests are"
            )
        with self._lock:
            if self._state.closed:
                raise LedgerError("released: the accountant was closed; ask it before")
            entries = [entry for entry in self.ledger.entries if entry.accountant == self.id]
        return list(recorded_values(self.ledger, entries, label))
