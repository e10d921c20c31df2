"""Releases that are asked for again under the nonce of a first try.

The nonce stands in the envelope of the entry that issues the token, once in a ledger, so that of
several who ask at a time one issues, and pays.  Whoever asks later gets what left then.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn, TypeVar, cast, final

from privlearn.accountants.prices import LossPrice
from privlearn.accountants.recorded_values import recorded_value
from privlearn.contract.protocols import Mechanism
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.errors import NonceBusyError, NonceReusedError, SpendLostError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import Entry, IssueEntry, PublishEntry, RetireEntry, SpendEntry
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array
from privlearn.rows.partitions import PartitionedRows
from privlearn.values.exact import exact_text

X = TypeVar("X")

Given = Rows[X] | PartialSum | PartitionedRows[X]
"""What a release may be asked for of: rows, a sum of them, or rows of several processes."""


def released(mechanism: Mechanism[X], given: Given[X], token: Token[Any]) -> Released[Array]:
    """One release of a mechanism, by the method that takes what is given.

    Raises:
        TypeError: it has none.
        PrivlearnError: as that method.
    """
    if isinstance(given, PartitionedRows):
        if hasattr(mechanism, "release_partitions"):
            return cast(Released[Array], mechanism.release_partitions(given, token))
        token.check_partitions(given)  # before they are added up
        given = given.partial(cast(Any, mechanism))
    if isinstance(given, PartialSum):
        if not hasattr(mechanism, "release_partial"):
            raise TypeError(f"mechanism = {mechanism!r:.200}: releases no sum that was made before")
        return cast(Released[Array], mechanism.release_partial(given, token))
    return mechanism.release(given, token)


def nothing_in_place_of(given: Given[X]) -> Given[X]:
    """The same users, with nothing in their place: for a retry, which opens nothing.

    So partitions need not be there any more, and under a rule of participation visits, which were
    used up by the first try, need not be admitted again.
    """
    if isinstance(given, PartialSum):
        return PartialSum._of_nobody(given, given.users)
    if isinstance(given, PartitionedRows):
        return PartitionedRows._of_nobody(given)
    return Rows._of_nobody(given) if isinstance(given, Rows) else given


def nonce_after(nonce: str) -> str:
    """The nonce of the try that follows one which ended unused: 32 digits of its SHA-256."""
    return hashlib.sha256(bytes.fromhex(nonce)).hexdigest()[:32]


@final
@dataclass(slots=True)
class FirstTry:
    """A token that was issued under a nonce, and what came of it.

    A retry runs the mechanism over null records and hands out what left then.
    """

    nonce: str
    issue: IssueEntry
    spend: SpendEntry | None = None
    end: str | None = None
    values: deque[tuple[Array, int]] = field(default_factory=deque)
    """That left, with one past the last user of each; those that are left to do."""

    @classmethod
    def read(
        cls, nonce: str, issue: IssueEntry, entries: Iterator[Entry], ledger: Ledger
    ) -> FirstTry:
        """From the entries that follow the token's issue, up to its end.

        Raises:
            LedgerUnreadableError: a value is missing, or was changed.
        """
        found = cls(nonce, issue)

        def kept(digest: str, upto: int) -> None:
            if ledger.durable:
                value = recorded_value(ledger, digest, f"token {issue.token}")
                found.values.append((value, upto))

        for entry in chain((issue,), entries):
            match entry:
                case SpendEntry(token=issue.token):
                    found.spend = entry
                case PublishEntry(token=issue.token):
                    kept(entry.digest, entry.upto)
                case RetireEntry(token=issue.token):
                    found.end = entry.outcome
                    if entry.value is not None:
                        kept(entry.value["digest"], entry.value["upto"])
                    break
        return found

    def check_asked(self, accountant: str, label: str, users: range, price: LossPrice) -> None:
        """Raises NonceReusedError unless it was issued for what is asked for now."""
        now: dict[str, object] = {
            "accountant": accountant,
            "label": label,
            "users": (users.start, users.stop),
            "budget": price.form,
            "failure": exact_text(price.failure),
        }
        for name, value in now.items():
            if (then := getattr(self.issue, name)) != value:
                self._refuse(f"a token with {name}", then, value)

    def spent(self, entry: SpendEntry) -> FirstTry:
        """Itself, as the account of the token when it is spent again.

        Raises:
            NonceReusedError: it was spent by another mechanism, or with other parameters.
        """
        assert self.spend is not None
        then, now = self.spend.body(), entry.body()
        for name in now:
            if then[name] != now[name]:
                self._refuse(f"a spend with {name}", then[name], now[name])
        return self

    def _refuse(self, what: str, then: object, now: object) -> NoReturn:
        raise NonceReusedError(
            f"nonce {self.nonce} was given for {what} = {then!r:.200}, and now it is {now!r:.200}: "
            "nothing was spent; another release takes a nonce of its own, secrets.token_hex(16)"
        )

    def check_done(self) -> None:
        """Raises unless its value can be handed out.

        Raises:
            NonceBusyError: it is not done.
            SpendLostError: nothing is left of it.
        """
        if self.end is None:
            raise NonceBusyError(
                f"nonce {self.nonce}: token {self.issue.token} ({self.issue.label!r}) is out, in "
                "another thread or process, and not done: ask again later"
            )
        if self.end == "released" and self.values:
            return
        what = (
            "released a value that was not kept"
            if self.end == "released"
            else f"was spent and ended {self.end}, without a value"
        )
        raise SpendLostError(
            f"nonce {self.nonce}: token {self.issue.token} ({self.issue.label!r}) {what}: it stays "
            "charged, and its outcome is never drawn again; a new nonce pays anew"
        )

    # As the account of a token that is spent again: `RecordedToken` and `Past`.

    @property
    def past(self) -> FirstTry:
        return self

    @property
    def outcome(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self.values)

    def next(self) -> tuple[Array, int]:
        return self.values.popleft()
