"""Tokens, receipts and released values: spend before release.

A mechanism presents a `Token` together with a `Spend`, the statement of what it is about to do.
Only when the spend stands durably in the ledger does it get a `Receipt`, and only the receipt opens
rows (clipped by the stated domain) and draws noise (at the stated scale).  A `Released` value comes
out of a receipt and nowhere else, so a billboard can tell it from anything unpaid.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Never,
    Protocol,
    Self,
    TypeVar,
    cast,
    final,
)

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.openings import check_partitions, check_rows, check_timetable, check_total
from privlearn.contract.partial_sums import check_terms
from privlearn.contract.partial_sums import partial_sum as partial_sum
from privlearn.contract.spends import Arithmetic as Arithmetic
from privlearn.contract.spends import Spend as Spend
from privlearn.errors import (
    LossExceedsTokenError,
    PrivlearnError,
    RowLocalityError,
    TokenCopyError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger.values import digest_of
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency
from privlearn.noise import ExactNoise, NoiseSource, ReportNoise
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import NoisePool
from privlearn.noise.exact.variates import Variates
from privlearn.people import People
from privlearn.rows import PartialSum, Rows
from privlearn.rows.clipping import clipping_of
from privlearn.rows.domains import Array
from privlearn.rows.functions import NOT_NAMED
from privlearn.rows.partitions.rows import OpenedPartitions, PartitionedRows
from privlearn.storage import processes
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import exact_text
from privlearn.values.grid import Grid, sum_of_rows
from privlearn.values.participation import Participation

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Outcome = Literal["released", "unused", "lost", "uncovered"]
"""How a token ends; ``uncovered``: the mechanism stopped after it had opened rows, without a value.
Whether it does may depend on the rows, which no price covers."""


class ReleaseObserver(Protocol):
    """What a check sees at the receipts of a simulation; see `privlearn.checking`."""

    def spent(self, token: Token[Any], spend: Spend) -> None:
        """A spend was recorded."""

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        """Clipped rows were opened; what is written into ``rows`` is what the mechanism gets."""

    def released(self, token: Token[Any], value: Array) -> Array:
        """A value is about to leave; what is returned leaves instead."""


class RecordedToken(Protocol):
    """What an accountant records of a token, as long as the token lives."""

    @property
    def outcome(self) -> str | None:
        """How the token ended; None while it has no recorded end."""

    @property
    def past(self) -> Past | None:
        """What the token released in a process that ended; None for a token of this one."""


class Past(Protocol):
    """Values that a token released in a process that ended, which leave once more."""

    def __len__(self) -> int:
        """How many are left."""

    def next(self) -> tuple[Array, int]:
        """The next value, and one past the last user whose row it was made of."""


class Issuer(Protocol):
    """What tokens and receipts talk to: it writes their entries."""

    @property
    def id(self) -> str: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def noise(self) -> NoiseSource: ...
    @property
    def observer(self) -> ReleaseObserver | None: ...
    @property
    def people(self) -> People | None:
        """The registry under whose rule persons may come back; None if a user is an index."""

    def of_person(self, loss: Loss, users: range, /) -> Loss:
        """The loss of one person with all visits in a range; ``loss`` itself without a rule."""

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        """Returns the token's account, only when the spend stands durably in the ledger.

        ``runs``: how many a lease pays for; ``loss`` is that of all of them.
        """

    def check_ledger(self) -> None:
        """Raises LedgerError if nothing can be recorded any more, as far as is known unwritten."""

    def record_functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        """Returns only when the names of user code stand durably in the ledger."""

    def record_reach(self, token: Token[Any], stop: int) -> int:
        """Returns how far a stream may open rows, at least ``stop``, when that is durable."""

    def record_publish(self, token: Token[Any], value: ReleasedValue) -> None:
        """Returns when a value stands in the ledger that leaves a spend which stays open."""

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        """Closes the token's account, with the value that leaves at its end."""


class ReleasedValue(NamedTuple):
    """A value that is about to leave."""

    value: Array
    digest: str
    """SHA-256 of type, shape and bytes."""
    upto: int
    """One past the last user whose row was opened."""


class _Mint:
    """Key to the constructors below; accountants own the only instance."""

    __slots__ = ()


_MINT = _Mint()


@final
@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False, match_args=False)
class Token(Generic[B]):
    """The right to run one mechanism within ``budget`` on ``users``; made only by an accountant.

    It can be spent once, by a loss that the budget covers.  It cannot be copied, pickled or used
    in a forked process.
    """

    id: str
    """The token's name in the ledger."""
    budget: B
    """What the token holds."""
    failure: Fraction
    """The probability of failing that it may use besides."""
    users: range
    """The arrival indices whose rows it can open."""
    label: str
    """What it was issued for."""
    adjacency: Adjacency
    """The neighbour relation of the accountant."""
    _priced: Loss | None
    """The loss whose price ``budget`` and ``failure`` are."""
    _issuer: Issuer
    _used: bool
    _lock: Exclusive

    def __init__(
        self,
        mint: _Mint,
        issuer: Issuer,
        id: str,
        budget: B,
        users: range,
        label: str,
        failure: Fraction = Fraction(0),
        priced: Loss | None = None,
    ) -> None:
        if mint is not _MINT:
            raise TypeError("tokens are made by an accountant: use accountant.issue(...)")
        fix = object.__setattr__
        fix(self, "id", id)
        fix(self, "budget", budget)
        fix(self, "failure", failure)
        fix(self, "users", users)
        fix(self, "label", label)
        fix(self, "adjacency", issuer.adjacency)
        fix(self, "_priced", priced)
        fix(self, "_issuer", issuer)
        fix(self, "_used", False)
        fix(self, "_lock", Exclusive(f"token {label!r}"))

    def check(self, rows: Rows[Any], spend: Spend) -> None:
        """Raises what `Receipt.open` would raise for ``rows``, before anything is spent."""
        check_rows(self, rows, self.users.start, spend.domain)

    def check_batches(self, rule: Participation, starts: Sequence[int]) -> None:
        """Whether a person has no more rows in each of these batches than in one of ``rule``.

        Args:
            rule: that a price takes for granted, and that counts within batches.
            starts: where batches of the token's users begin.

        Raises:
            UsersError: the accountant's rule allows more in a batch, or a batch of its own begins
                within one of these.
        """
        people = self._issuer.people
        if people is None:  # what is promised is about single rows
            return
        most, others = _in_a_batch(rule), _in_a_batch(people.rule)
        if others is None or (most is not None and others > most):
            raise UsersError(
                f"a price for {rule}: the accountant's rule is {people.rule}, with which a person "
                "may have more rows in a batch"
            )
        begun = set(starts)
        for batch in people.batches(self.users):
            if batch.start not in begun:
                raise UsersError(
                    f"a batch of the accountant's rule begins at slot {batch.start}, within one of "
                    "the mechanism's: every batch must lie within one that was declared"
                )

    def check_total(self, total: PartialSum, spend: Spend) -> None:
        """Raises what `Receipt.release_total` would raise for ``total``, before it is spent."""
        check_total(self, total, self.users.start)
        check_terms(spend, total)

    def check_partitions(self, rows: PartitionedRows[Any]) -> None:
        """Raises what `Receipt.open_partitions` would raise for ``rows``, before it is spent."""
        check_partitions(self, rows, self.users.start)

    def spend(self, spend: Spend) -> Receipt:
        """Records ``spend`` durably and returns the receipt that allows it.

        Raises:
            TokenSpentError: used before.
            LossExceedsTokenError: the loss costs more than the token holds (the token stays
                unspent).
            TokenCopyError: in a forked process.
            CurrencyError: the loss has no price in the token's currency.
            ProvenanceError: on a timetable, a mechanism that does not add up.
            UsersError: slots that are not over.
        """
        check_timetable(self, spend)
        loss = spend.loss(self.adjacency)
        if loss is not self._priced:
            self._check_price(spend.mechanism, self._issuer.of_person(loss, self.users))
        self._use()
        try:
            account = self._issuer.record_spend(self, spend, loss)
        except BaseException:
            # Not durable: the token may be tried again; the ledger refuses a second spend anyway.
            object.__setattr__(self, "_used", False)
            raise
        return Receipt(_MINT, self._issuer, self, spend, account)

    def _check_price(self, mechanism: str, loss: Loss) -> None:
        failure = loss.failure()
        price = self.budget.price(loss.unless_failed() if failure else loss)
        if not self.budget.covers(price):
            raise LossExceedsTokenError(
                f"{mechanism} costs {price}, the token {self.label!r} holds {self.budget}"
            )
        if failure > self.failure:
            raise LossExceedsTokenError(
                f"{mechanism} fails with probability {exact_text(failure)}, the token "
                f"{self.label!r} holds {exact_text(self.failure)}"
            )

    def retire(self) -> None:
        """Hands the token back unused; its budget is free again.

        Raises:
            TokenSpentError: used before.
            TokenCopyError: in a forked process.
        """
        self._use()
        self._issuer.record_retire(self, "unused", None)

    def _use(self) -> None:
        with self._lock:
            if self._used:
                raise TokenSpentError(f"token {self.label!r} was spent or retired before")
            object.__setattr__(self, "_used", True)

    def __repr__(self) -> str:
        state = "used" if self._used else "unspent"
        users = f"{self.users.start}..{self.users.stop - 1}"
        return f"Token({self.label!r}, {self.budget}, users={users}, {state})"

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError("a token cannot be copied or pickled: issue a second one")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy


def _in_a_batch(rule: Participation) -> int | None:
    return 1 if rule.pooled else rule.per_batch


class _Spent:
    """The life of a receipt: what it names, and how it ends."""

    __slots__ = (
        "_account",
        "_clipping",
        "_digest",
        "_done",
        "_drawn",
        "_due",
        "_issuer",
        "_left",
        "_named",
        "_next",
        "_outcome",
        "_past",
        "_pool",
        "_reached",
        "_refused",
        "_rounds",
        "_scopes",
        "_served",
        "_spend",
        "_token",
    )

    def __init__(
        self, mint: _Mint, issuer: Issuer, token: Token[Any], spend: Spend, account: RecordedToken
    ) -> None:
        if mint is not _MINT:
            raise TypeError("receipts are made by token.spend(...)")
        self._issuer, self._token, self._spend = issuer, token, spend
        self._account = account
        self._past = account.past
        self._next = token.users.start
        # up to where the ledger says that rows may be opened
        self._reached = token.users.start if spend.interactive else token.users.stop
        # users opened since the last output, and before it; rows of noise
        self._due = self._served = self._drawn = 0
        self._digest = hashlib.sha256()
        self._done = False
        self._outcome: Outcome = "released"  # what `close` will write
        self._left = False  # whether a value left since rows were opened
        # what the ledger raised last: it says nothing of rows
        self._refused: weakref.ref[PrivlearnError] | None = None
        self._rounds = 0  # of `round`, that it is in
        self._scopes = 0  # blocks, of `with receipt` and `round`, that it is in
        self._named: set[str] = set()
        self._clipping = clipping_of(spend.domain, spend.grid)
        self._pool: NoisePool | None = None  # made when noise is first asked for
        self._name((*spend.functions, *self._clipping.checked.names))

    def _name(self, functions: tuple[str, ...]) -> None:
        """Records user code that rows pass through, before any of them is opened."""
        if not functions:
            return
        new = tuple(name for name in functions if name not in self._named)
        if new:
            self._recording(self._issuer.record_functions, self._token, new)
            self._named.update(new)

    def _recording(self, record: Callable[..., T], *arguments: Any) -> T:
        """What is raised here comes of what everybody sees, and not of rows."""
        try:
            return record(*arguments)
        except PrivlearnError as error:
            self._refused = weakref.ref(error)  # with its frames it would keep rows alive
            raise

    def _may_tell(self, error: BaseException | None) -> bool:
        """Whether an error may depend on opened rows; an interrupt comes from outside."""
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        return self._refused is None or self._refused() is not error

    def _name_passed(self, functions: tuple[str, ...]) -> None:
        """As `_name`, for what rows passed through before; on a timetable always the same."""
        people = self._issuer.people
        timed = people is not None and people.rule.clock == "timetable"
        self._name((NOT_NAMED,) if timed else functions)

    @property
    def token_id(self) -> str:
        """The id of the token that paid."""
        return self._token.id

    @property
    def next_user(self) -> int:
        """The first user whose row was not opened yet."""
        return self._next

    @property
    def of_past(self) -> bool:
        """Whether it only hands out again what a process that ended has released."""
        return self._past is not None

    def close(self) -> None:
        """Retires the token as released, with the digest of all that left.

        A mechanism that opened rows and let nothing leave since ends ``uncovered``; so does a
        stream within a `round`, but outside of one it is closed by what everybody sees.
        """
        if self._past is not None and not self._done:
            # how it ended stands in the ledger, maybe as lost after the last value
            self._done = True
            return
        self._check_open()
        knows = self._rounds > 0 or not self._spend.interactive
        if self._opened_rows and knows and not self._left:
            self._end("uncovered")
            return
        self._retire()

    def _retire(self, value: ReleasedValue | None = None) -> None:
        self._done = True
        digest = self._digest.hexdigest()
        self._issuer.record_retire(self._token, self._outcome, digest, value)

    @property
    def _opened_rows(self) -> bool:
        return self._next > self._token.users.start

    @property
    def closed(self) -> bool:
        """Whether the token is retired."""
        return self._done or self._account.outcome is not None

    def _check_open(self) -> None:
        if not processes.MARK[0]:
            processes.in_child()
        if self._token._lock.made_in != (processes.forks, os.getpid()):
            raise TokenCopyError("a receipt cannot be used in a forked process")
        if self._done or self._account.outcome is not None:
            raise TokenSpentError(f"the receipt of token {self._token.label!r} is closed")

    def round(self) -> AbstractContextManager[None]:
        """One step of a stream, which opens rows and may publish a value.

        If it fails after it opened rows, the token is retired as ``uncovered``, or as ``lost`` if
        it was interrupted or the ledger refused: its sums and its noise may be out of step.  With
        ``each``, the users whose rows it opened have no output, others go on, and the token ends
        ``uncovered`` if it failed.
        """
        return _Round(self)

    def _fail(self, error: BaseException) -> None:
        tells = self._may_tell(error)
        if self._spend.arithmetic == "each":
            self._due = 0  # their noise, which may not have been drawn, is not counted any more
            self._outcome = "uncovered" if tells else self._outcome
        elif tells:
            self._end("uncovered")
        else:
            with suppress(PrivlearnError):  # the first error says why; without an end it is lost
                self._end("lost")

    def __enter__(self) -> Self:
        self._scopes += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scopes -= 1
        if self._done:
            return
        # Somebody's domain may have failed on rows, too.
        own = self._opened_rows and not (self._spend.arithmetic == "sum" and self._clipping.own)
        # A stream is closed, without an error, by somebody who sees what everybody sees.
        silent = error is None and not self._spend.interactive
        self._end("uncovered" if own and (silent or self._may_tell(error)) else "lost")

    def abandon(self, error: BaseException | None = None) -> None:
        """Retires the token of a stream that is left open.

        Without an error, or by an interrupt, it is ``lost``: whoever leaves it so sees published
        values only.  An error may come from whoever handed over rows, and depend on them: after
        rows were opened it is ``uncovered``.
        """
        if not self._done:
            self._end("uncovered" if self._opened_rows and self._may_tell(error) else "lost")

    def _end(self, outcome: Outcome) -> None:
        self._done = True
        if self._account.outcome is None:
            self._issuer.record_retire(self._token, outcome, None)

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError("a receipt cannot be copied or pickled")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy


@final
class Receipt(_Spent):
    """Proof of a durable spend; a context manager that retires the token.

    Users are opened in ascending order, each at most once.  A mechanism with arithmetic of its own
    opens rows inside the ``with`` block (a stream: inside `round`).  If it leaves the block with an
    exception, or without a release, the token is retired and stays charged: as ``lost``, or as
    ``uncovered`` where rows were opened, because what it computed from them may be the reason.
    Only an interrupt from outside (KeyboardInterrupt), and a ledger that cannot be written to, are
    no such reasons.
    """

    __slots__ = ()

    @property
    def grid(self) -> Grid | None:
        """Where rows are clipped to integers; None if they are opened as doubles."""
        return self._spend.grid

    def release_sum(self, rows: Rows[Any]) -> Released[Array]:
        """Opens the rows, adds up their contributions and noise, and retires the token.

        Returns:
            The noisy sum in its natural shape (`Domain.decode`).

        Raises:
            UsersError, ProvenanceError, RowLocalityError, TokenSpentError: as `open`.
        """
        values = self._opened(rows)
        if self._spend.grid is not None:
            return self._noisy(sum_of_rows(values, self._clipping.largest))
        total: Array = np.add.reduce(values, axis=0)
        noisy = total + self._spend.noise.draw(self._noise(), total.shape)
        return self._released_sum(noisy)

    def release_total(self, total: PartialSum) -> Released[Array]:
        """As `release_sum`, for rows whose contributions were added up before (`partial_sum`).

        Raises:
            UsersError, ProvenanceError, RowLocalityError, TokenSpentError: as `open`.
            ValueError: a sum that another mechanism made.
        """
        return self._noisy(self._opened_total(total))

    def open_total(self, total: PartialSum) -> NDArray[Any]:
        """The sum of the rows of ``total`` in steps, for mechanisms with arithmetic of their own.

        Raises:
            UsersError, ProvenanceError, RowLocalityError, TokenSpentError, ValueError: as
                `release_total` and `open`.
        """
        self._check_may_open()
        return self._opened_total(total)

    def open_partitions(self, rows: PartitionedRows[Any]) -> OpenedPartitions:
        """Rows that lie in several processes, for mechanisms that add them up in several passes.

        What the mechanism learns of a pass is as secret as opened rows are.

        Raises:
            UsersError, ProvenanceError, TokenSpentError: as `open`.
            TokenError: as `open`.
        """
        self._check_may_open()
        if self._past is not None:  # as in `_opened`
            rows = PartitionedRows._of_nobody(rows)
        with self._token._lock:
            self._check_open()
            check_partitions(self._token, rows, self._next)
            self._name_passed(rows.functions)
            stop = rows.users[-1].stop
            self._reach(stop)
            self._next = stop
            self._left = False
        return PartitionedRows._opened(rows)

    def _noisy(self, total: NDArray[Any]) -> Released[Array]:
        grid = self._check_grid()
        return self._released_sum(grid.values(total + self._integers(total.shape)))

    def _released_sum(self, noisy: Array) -> Released[Array]:
        self._drawn += 1
        self._check_open()
        return self._released(self._spend.domain.decode(noisy), last=True)

    def _opened_total(self, total: PartialSum) -> NDArray[Any]:
        with self._token._lock:
            self._check_open()
            check_total(self._token, total, self._next)
            check_terms(self._spend, total)
            self._name_passed(total.functions)
            self._reach(total.users[-1].stop)
            self._next = total.users[-1].stop
            self._left = False
        if self._past is not None:  # as in `_opened`
            return np.zeros(self._spend.domain.size, np.int64)
        try:
            return PartialSum._opened(total)
        except RowLocalityError:
            self._end("uncovered")
            raise

    def open(self, rows: Rows[Any]) -> Array:
        """Contributions of the rows, clipped by the stated domain; shape (n, domain.size).

        For mechanisms with arithmetic of their own.

        Rows that cannot be clipped and null records come out as the null contribution.

        Raises:
            DataError: no row can be clipped, because of its public form; nothing is opened.
            UsersError: an index outside the token's users, opened before, or out of order.
            ProvenanceError: logged rows under a joint guarantee.
            TokenSpentError: retired.
            TokenError: the spend said that the receipt would do the arithmetic, or this is outside
                the receipt's ``with`` block and `round`.
            RowLocalityError: a function that the rows passed through is not row-local; the token
                ends ``uncovered``.
        """
        if self._spend.grid is not None:
            raise TokenError(
                f"{self._spend.mechanism} said a grid: use receipt.open_integers(rows)"
            )
        return cast(Array, self._open(rows))

    def open_integers(self, rows: Rows[Any]) -> Floors:
        """As `open`, in steps of the stated grid: int64, shape (n, domain.size).

        Raises:
            TokenError: the spend stated no grid.  Else as `open`.
        """
        self._check_grid()
        return cast(Floors, self._open(rows))

    def _check_grid(self) -> Grid:
        if self._spend.grid is None:
            raise TokenError(f"{self._spend.mechanism} said no grid: it computes in doubles")
        return self._spend.grid

    def _open(self, rows: Rows[Any]) -> NDArray[Any]:
        self._check_may_open()
        return self._opened(rows)

    def _check_may_open(self) -> None:
        self._check_own()
        self._check_open()
        if not self._scopes:
            within = "receipt.round()" if self._spend.interactive else "token.spend(...) as receipt"
            raise TokenError(
                f"{self._spend.mechanism}: rows are opened inside `with {within}:`, which retires "
                "the token if the mechanism then fails"
            )

    def _opened(self, rows: Rows[Any]) -> NDArray[Any]:
        with self._token._lock:
            self._check_open()
            check_rows(self._token, rows, self._next, self._spend.domain)
            self._name_passed(rows.functions)
            users = rows.users
            self._reach(users.stop)
            self._next = users.stop
            self._left = False
            self._due += len(users)
        if self._past is not None:  # nothing is opened for what left before a restart
            rows = Rows.null(users)
        try:
            values = self._clipping.contributions(rows)
        except RowLocalityError:
            self._end("uncovered")
            raise
        if self._issuer.observer is not None and self._past is None:
            self._issuer.observer.opened(self._token, self._spend, users, values)
        return values

    def _reach(self, stop: int) -> None:
        """Says, on disk, that rows below ``stop`` are about to be opened."""
        if self._past is not None and not self._past:
            raise TokenSpentError(
                f"token {self._token.label!r}: what it released before a restart is all that it did"
            )
        if stop > self._reached:
            self._reached = self._recording(self._issuer.record_reach, self._token, stop)

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Fresh noise of the stated family and scale.

        For ``each``, one row or more for each user, along the first axis; also ahead of users to
        come.

        Raises:
            TokenSpentError: the receipt is closed.
            TokenError: noise that makes whole reports (`draw_rows`), or a spend that said to be
                exact (`draw_integers`, `draw_variates`).
        """
        if self._spend.grid is not None or self._spend.exact:
            raise TokenError(
                f"{self._spend.mechanism} said that its noise is exact: use draw_integers, "
                "draw_variates or draw_rows; noise in doubles is not"
            )
        self._check_own()
        self._check_open()
        noise = self._spend.noise.draw(self._noise(), shape)
        self._count(shape)
        return noise

    def draw_rows(self, n: int) -> Any:
        """What ``n`` local reports are made of, for noise that makes whole reports; for ``each``.

        Raises:
            TokenError: noise of another kind.
            TokenSpentError: the receipt is closed.
        """
        self._check_own()
        self._check_open()
        family = self._spend.noise
        if not hasattr(family, "rows"):
            raise TokenError(
                f"{self._spend.mechanism}: {family!r} makes no reports; use receipt.draw(shape)"
            )
        rows = cast(ReportNoise, family).rows(self._noise(), n)
        self._count((n,))
        return rows

    def draw_integers(self, shape: tuple[int, ...]) -> Floors:
        """Fresh noise in steps of the stated grid, ⌊2^bits·Z⌋, int64.

        Raises:
            TokenError: the spend stated no grid.  Else as `draw`.
        """
        self._check_grid()
        self._check_own()
        self._check_open()
        noise = self._integers(shape)
        self._count(shape)
        return noise

    def draw_variates(self, n: int) -> Variates:
        """``n`` fresh standard variates of the stated noise, that can be refined.

        Raises:
            TokenError: noise of a kind that has none.
            TokenSpentError: the receipt is closed.
        """
        self._check_own()
        self._check_open()
        if not hasattr(self._spend.noise, "variates"):
            raise TokenError(f"{self._spend.noise!r} has no variates: use receipt.draw(shape)")
        drawn = cast(Any, self._spend.noise).variates(self._noise(), n)
        self._count((n,))
        return cast(Variates, drawn)

    def _count(self, shape: tuple[int, ...]) -> None:
        if 0 not in shape:
            self._drawn += shape[0] if shape else 1

    def _integers(self, shape: tuple[int, ...]) -> Floors:
        noise = cast(ExactNoise, self._spend.noise)
        return noise.integers(self._noise(), shape, self._check_grid().bits)

    def _noise(self) -> NoisePool:
        """The noise of this spend, and of no other; asked for only after it stands."""
        if self._pool is None:
            self._pool = self._issuer.noise.pool()
        return self._pool

    def publish(self, value: Array) -> Released[Array]:
        """Lets one value of a stream leave; the receipt stays open for the next.

        Raises:
            TokenError: no noise was drawn yet, the spend is not stated to be interactive, or it
                said ``each`` and the value is not one output for each user opened since the last,
                or fewer rows of noise were drawn than users opened.
            TokenSpentError: the receipt is closed.
        """
        self._check_own()
        self._check_open()
        if self._drawn and not self._spend.interactive:
            raise TokenError(
                f"{self._spend.mechanism} lets out one value: only a spend with interactive=True "
                "stays open after a first one"
            )
        return self._released(value, last=False)

    def release(self, value: Array, *, keep: bool = True) -> Released[Array]:
        """Lets the single value of the mechanism leave and retires the token.

        ``keep`` writes the value to a ledger file, where `released` of the accountant finds it
        after a restart; without, only its digest stands there.

        Raises:
            TokenError, TokenSpentError: as `publish`.
        """
        self._check_own()
        self._check_open()
        return self._released(value, last=True, keep=keep)

    def _check_own(self) -> None:
        if self._spend.arithmetic == "sum":
            raise TokenError(
                f"{self._spend.mechanism} said arithmetic = 'sum': use receipt.release_sum(rows)"
            )

    def _released(self, value: Array, *, last: bool, keep: bool = True) -> Released[Array]:
        if not self._drawn:
            raise TokenError(f"{self._spend.mechanism} drew no noise: nothing may leave")
        if self._spend.arithmetic == "each":
            with self._token._lock:
                self._check_each(value)
        if self._past is not None:
            return self._released_again(self._past, last=last)
        if self._issuer.observer is not None:
            value = self._issuer.observer.released(self._token, value)
        frozen = np.array(value)
        frozen.setflags(write=False)
        leaving = ReleasedValue(frozen, digest_of(frozen), self._next)
        if last:
            self._left = True
            self._digest.update(leaving.digest.encode())
            self._retire(leaving if keep else None)
        else:
            self._recording(self._issuer.record_publish, self._token, leaving)
            self._left = True
            self._digest.update(leaving.digest.encode())
        return Released(_MINT, frozen, self._token.id, leaving.digest)

    def _released_again(self, past: Past, *, last: bool) -> Released[Array]:
        """What left before a restart, in place of what was computed now from null records."""
        value, _ = past.next()
        self._left = True
        if last:
            self._done = True
        return Released(_MINT, value, self._token.id, digest_of(value))

    def _check_each(self, value: Array) -> None:
        if not np.ndim(value) or len(value) != self._due:
            raise TokenError(
                f"{self._spend.mechanism} said arithmetic = 'each': {self._due} users were opened, "
                f"so not a value of shape {np.shape(value)} but one output for each must leave"
            )
        if self._drawn < self._served + self._due:
            raise TokenError(
                f"{self._spend.mechanism} said arithmetic = 'each', with noise for each user: "
                f"{self._drawn} rows of noise were drawn for {self._served + self._due} users"
            )
        self._served += self._due
        self._due = 0


class _Round:
    """See `Receipt.round`; a class of its own, because streams enter it for every row."""

    __slots__ = ("_before", "_receipt")

    def __init__(self, receipt: _Spent) -> None:
        self._receipt = receipt

    def __enter__(self) -> None:
        self._before = self._receipt._next
        self._receipt._scopes += 1
        self._receipt._rounds += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        receipt = self._receipt
        receipt._scopes -= 1
        receipt._rounds -= 1
        if error is not None and receipt._next > self._before and not receipt._done:
            receipt._fail(error)


@final
@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Released(Generic[T_co]):
    """A value that was paid for; anybody may see it."""

    __match_args__: ClassVar[tuple[str, ...]] = ("value",)
    value: T_co
    """What left."""
    paid_by: str
    """The id of the token that paid."""
    digest: str
    """SHA-256 of the value."""

    def __init__(self, mint: _Mint, value: T_co, paid_by: str, digest: str) -> None:
        if mint is not _MINT:
            raise TypeError("released values come out of a receipt: use receipt.release(...)")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "paid_by", paid_by)
        object.__setattr__(self, "digest", digest)

    def __repr__(self) -> str:
        return f"Released({self.value!r}, paid_by={self.paid_by!r})"


def mint_token(
    issuer: Issuer,
    id: str,
    budget: B,
    users: range,
    label: str,
    failure: Fraction = Fraction(0),
    priced: Loss | None = None,
) -> Token[B]:
    """Makes a token; for accountants only (see the contributors' guide).

    ``priced``: the loss whose price ``budget`` and ``failure`` are, if they are one's.
    """
    if not isinstance(budget, Currency):
        raise TypeError(f"budget = {budget!r}: must be a currency such as ZCDP('0.1')")
    return Token(_MINT, issuer, id, budget, users, label, failure, priced)
