"""Leases: one durable spend that pays for many runs of a mechanism, taken one by one.

A spend costs a sync of the ledger, which takes longer than most mechanisms do.  A lease writes one,
for ``runs`` runs at the price of all of them together, before the first opens rows.  Each run is
then a token, a receipt and noise of its own, as everywhere else, but nothing is written for it.

What follows from that: runs that were not used stay charged.  The values that leave, and how many,
do not stand in the ledger: so its end says nothing of when, or how often, somebody needed a run,
which may follow from data; and no value of a lease can be read back after a restart.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, Never, Self, TypeVar, cast, final

from privlearn.contract.issuing import (
    Issuer,
    Outcome,
    RecordedToken,
    ReleasedValue,
    ReleaseObserver,
)
from privlearn.contract.protocols import Mechanism
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend, is_builtin
from privlearn.contract.tokens import Token, mint_token
from privlearn.errors import LeaseError, LedgerError, PrivlearnError, TokenCopyError, TokenError
from privlearn.losses import Loss, compose
from privlearn.noise import NoiseSource
from privlearn.noise.exact.pool import NoisePool
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.validate import count

X = TypeVar("X")

_LOOK_AFTER = 0.05
"""Seconds between two looks at the ledger, which tell whether it is still this process's."""


@final
class Lease(Generic[X]):
    """The right to ``runs`` runs of one mechanism; made by ``accountant.lease``.

    The first run writes the spend that pays for all of them, and returns nothing before that is
    durable.  Threads may share a lease: no two get the same run, and together they get no more than
    ``runs``.  It cannot be copied, pickled or used in a forked process, and it ends with `close`,
    with its accountant, when another process goes on with the ledger, and when a run ends
    ``uncovered``.  A context manager that closes it.

    Args:
        token: unspent, that holds the price of all runs; the lease has it from now on.
        mechanism: with a ``release(rows, token)``, which is run.
        runs: how many, >= 1.

    Raises:
        LeaseError: a stream, or slots that are not over under the accountant's rule of
            participation.
        TokenSpentError, TokenCopyError, LossExceedsTokenError: as `Token.spend`.
    """

    __slots__ = (
        "_account",
        "_closed",
        "_functions",
        "_holds",
        "_left",
        "_lock",
        "_look",
        "_mechanism",
        "_pools",
        "_priced",
        "_stated",
        "_token",
        "runs",
    )

    def __init__(self, token: Token[Any], mechanism: Mechanism[X], runs: int) -> None:
        issuer, users = token._issuer, token.users
        check_leasable(mechanism, runs, users, issuer)
        self.runs = runs
        loss = mechanism.loss()
        all_runs = issuer.of_person(compose([(loss, runs)]), users)
        token._check_price(type(mechanism).__name__, all_runs)
        token._use()
        self._token, self._mechanism = token, mechanism
        self._priced = loss
        single = issuer.of_person(loss, users)
        failure = single.failure()
        self._holds = token.budget.price(single.unless_failed() if failure else single), failure
        """What the token of each run holds."""
        self._left = runs
        self._lock = Exclusive(f"lease {token.label!r}")
        self._stated: Spend | None = None
        self._account: RecordedToken | None = None
        self._functions: frozenset[str] = frozenset()
        self._pools: deque[NoisePool] = deque()
        """Noise of this lease that no run draws from at the moment."""
        self._look = time.monotonic()
        self._closed = False

    # What everybody may know ----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name of its token in the ledger, which pays for all its values."""
        return self._token.id

    @property
    def label(self) -> str:
        """What it is for."""
        return self._token.label

    @property
    def users(self) -> range:
        """The arrival indices whose rows each run can open."""
        return self._token.users

    @property
    def left(self) -> int:
        """Runs that can still be used; 0 once it ended."""
        ended = self._closed or (self._account is not None and self._account.outcome is not None)
        return 0 if ended else self._left

    # Runs -----------------------------------------------------------------------------------------

    def release(self, rows: Rows[X]) -> Released[Array]:
        """One run of the mechanism.

        Raises:
            LeaseError: all runs were used, or the lease ended; no row is opened.
            UsersError, ProvenanceError: other rows than the mechanism takes; no run is used.
            PrivlearnError: as the mechanism's ``release``, and the first time as `Token.spend`.
            TokenCopyError: in a forked process.
        """
        return self._mechanism.release(rows, self._token_of_run())

    def _token_of_run(self) -> Token[Any]:
        """A token that takes one run when it is spent."""
        token, (budget, failure) = self._token, self._holds
        return mint_token(
            _Run(self), token.id, budget, token.users, token.label, failure, self._priced
        )

    def _take(self, spend: Spend, loss: Loss) -> RecordedToken:
        with self._lock:
            self._check_alive()
            if self._account is None or self._stated is None:
                self._record(spend, loss)
            elif not _same(spend, self._stated):
                raise LeaseError(
                    f"lease {self.label!r} is for runs of {self._stated.mechanism} as it was spent "
                    f"first; {spend.mechanism} with other parameters needs a token of its own"
                )
            assert self._account is not None
            if not self._left:
                raise LeaseError(
                    f"lease {self.label!r}: all of its {self.runs} runs were used; take a new lease"
                )
            self._left -= 1
            self._priced = loss  # is the same object the next time, if the mechanism keeps it
            return self._account

    def _record(self, spend: Spend, loss: Loss) -> None:
        if spend.interactive:
            raise LeaseError(
                f"{spend.mechanism} stays open and releases again: it needs no lease, and cannot "
                "be run under one"
            )
        all_runs = compose([(loss, self.runs)])
        issuer = self._token._issuer
        self._account = issuer.record_spend(self._token, spend, all_runs, self.runs)
        self._stated = spend

    def _check_alive(self) -> None:
        """Raises LeaseError once it ended, as far as can be known without writing."""
        why = ""
        error: LedgerError | None = None
        if self._closed:
            why = "it was closed"
        elif self._account is not None and self._account.outcome is not None:
            why = f"its token ended {self._account.outcome}"
        elif self._account is not None and (now := time.monotonic()) - self._look > _LOOK_AFTER:
            self._look = now
            try:
                self._token._issuer.check_ledger()
            except LedgerError as found:
                self._closed, error = True, found
                why = f"the ledger cannot be written to any more: {found}"
        if why:
            raise LeaseError(
                f"lease {self.label!r} ended: {why}; its runs that were not used stay charged"
            ) from error

    def _name(self, names: tuple[str, ...]) -> None:
        """Returns only when the names of user code that rows pass through stand in the ledger."""
        if self._functions.issuperset(names):
            return
        with self._lock:
            self._token._issuer.record_functions(self._token, names)
            self._functions |= set(names)

    def _ended(self, outcome: Outcome) -> None:
        """One run ended; what may depend on opened rows ends the lease."""
        if outcome != "uncovered":
            return
        with self._lock:
            if self._account is not None and self._account.outcome is None:
                self._token._issuer.record_retire(self._token, "uncovered", None)

    def close(self) -> None:
        """Ends it; runs that were not used stay charged, unless no run was.  May be called twice.

        The ledger says that the lease ended, and not how many runs were used.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._pools.clear()
            if self._account is None:
                with suppress(TokenError):  # it stands nevertheless, and stays charged
                    self._token._issuer.record_retire(self._token, "unused", None)
            elif self._account.outcome is None:
                self._token._issuer.record_retire(self._token, "released", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(*(() if error is None else (PrivlearnError,))):  # the first error says why
            self.close()

    def __repr__(self) -> str:
        users = f"{self.users.start}..{self.users.stop - 1}"
        return f"Lease({self.label!r}, {self.left} of {self.runs} runs left, users={users})"

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError("a lease cannot be copied or pickled: its runs would be used twice")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy


def check_leasable(mechanism: object, runs: int, users: range, issuer: Issuer) -> None:
    """Raises what `Lease` would, before a token is issued.

    Raises:
        LeaseError: a stream; or under a rule of participation slots that are not over.
        ValueError: runs below 1.
    """
    count(runs=runs)
    if not hasattr(mechanism, "release"):
        raise LeaseError(
            f"mechanism = {mechanism!r}: a lease is of runs that release once; a stream pays once "
            "for all that it releases, and needs none"
        )
    people = issuer.people
    if people is None:
        return
    at = people.passed if people.rule.clock == "timetable" else people.clock
    if at is None or at < users.stop:
        # the ledger tells an older copy of the registry by what spends say, and runs say nothing
        raise LeaseError(
            f"users = {users!r} under {people.rule}: the registry of people is at slot {at}, and a "
            "lease is of slots that are over, as a leased run does not tell in the ledger how far "
            f"the registry has come; lease slots before {at}, let the others pass first "
            f"(people.skip_to({users.stop})), or issue a token for each run"
        )


@final
class _Run:
    """One run of a lease, as the issuer of its token: it answers as that of the lease does."""

    __slots__ = ("_lease", "_of", "_pool")

    def __init__(self, lease: Lease[Any]) -> None:
        self._lease, self._of = lease, lease._token._issuer
        self._pool: NoisePool | None = None

    @property
    def id(self) -> str:
        return self._of.id

    @property
    def adjacency(self) -> Adjacency:
        return self._of.adjacency

    @property
    def trust(self) -> Trust:
        return self._of.trust

    @property
    def noise(self) -> NoiseSource:
        return cast(NoiseSource, self)

    @property
    def observer(self) -> ReleaseObserver | None:
        return self._of.observer

    @property
    def people(self) -> People | None:
        return self._of.people

    @property
    def lender(self) -> Issuer:
        return self._of

    def pool(self) -> NoisePool:
        """Noise of the lease that nobody else draws from while this run does."""
        if self._pool is None:
            try:
                self._pool = self._lease._pools.pop()
            except IndexError:
                self._pool = self._of.noise.pool()
        return self._pool

    def of_person(self, loss: Loss, users: range, /) -> Loss:
        return self._of.of_person(loss, users)

    def check_ledger(self) -> None:
        self._of.check_ledger()

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        return self._lease._take(spend, loss)

    def record_functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        self._lease._name(names)

    def record_phase(self, token: Token[Any], stop: int) -> None:
        """No run of a lease is in phases."""

    def record_reach(self, token: Token[Any], stop: int) -> int:
        return token.users.stop

    def record_publish(self, token: Token[Any], value: ReleasedValue) -> None:
        """A value leaves: nothing is written."""

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        if self._pool is not None:
            self._lease._pools.append(self._pool)
            self._pool = None
        self._lease._ended(outcome)


def _same(spend: Spend, stated: Spend) -> bool:
    if spend is stated:
        return True
    if is_builtin(spend.domain) and is_builtin(spend.noise):
        return spend == stated
    alike = replace(spend, domain=stated.domain, noise=stated.noise)
    forms = (
        (spend.domain.to_dict(), spend.noise.to_dict()),
        (stated.domain.to_dict(), stated.noise.to_dict()),
    )
    return alike == stated and forms[0] == forms[1]
