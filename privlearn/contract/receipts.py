"""Receipts of what was spent: only they open rows, draw noise, and make what is `Released`."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.issuing import (
    MINT,
    Issuer,
    Mint,
    Outcome,
    Past,
    PhaseObserver,
    RecordedToken,
    ReleasedValue,
)
from privlearn.contract.openings import check_partitions, check_rows, check_total
from privlearn.contract.partial_sums import check_terms
from privlearn.contract.partial_sums import partial_sum as partial_sum
from privlearn.contract.spends import PHASES
from privlearn.contract.spends import Arithmetic as Arithmetic
from privlearn.contract.spends import Spend as Spend
from privlearn.errors import (
    PrivlearnError,
    RowLocalityError,
    TokenCopyError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger.values import digest_of
from privlearn.noise import ExactNoise, ReportNoise
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import NoisePool, Variates
from privlearn.rows import PartialSum, Rows
from privlearn.rows.clipping import clipping_of
from privlearn.rows.domains import Array
from privlearn.rows.functions import NOT_NAMED
from privlearn.rows.partitions.rows import OpenedPartitions, PartitionedRows
from privlearn.storage import processes
from privlearn.values.grid import Grid, sum_of_rows

if TYPE_CHECKING:
    from privlearn.contract.tokens import Token

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
        "_phase",
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
        self, mint: Mint, issuer: Issuer, token: Token[Any], spend: Spend, account: RecordedToken
    ) -> None:
        if mint is not MINT:
            raise TypeError("receipts are made by token.spend(...)")
        self._issuer, self._token, self._spend = issuer, token, spend
        self._account = account
        self._past = account.past
        self._next = token.users.start
        # up to where the ledger says that rows may be opened
        self._reached = token.users.start if spend.interactive else token.users.stop
        # of a spend in phases: one past the last user of the phase that began last
        self._phase = token.users.start if PHASES in spend.parameters else None
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
            raise self._is_closed()

    def _is_closed(self) -> TokenSpentError:
        return TokenSpentError(f"the receipt of token {self._token.label!r} is closed")

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
        if self._spend.grid is not None:
            if self._issuer.observer is None:
                return self._noisy(self._opened(rows, summed=True))
            return self._noisy(sum_of_rows(self._opened(rows), self._clipping.largest))
        total: Array = np.add.reduce(self._opened(rows), axis=0)
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
        return self._released_sum(grid.values(total + self._integers(total.shape, grid)))

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

    def begin_phase(self, stop: int) -> None:
        """Says, on disk, that the next users, up to ``stop``, are one phase.

        For spends that say that they are in phases.

        Raises:
            TokenError: it did not, or the phase before has not ended.
            UsersError: it would not end among the token's users that are left, or not where it was
                to end before a restart.
            TokenSpentError: retired.
        """
        if self._phase is None:
            raise TokenError(f"{self._spend.mechanism} did not say that it is in phases")
        with self._token._lock:
            self._check_open()
            if self._phase != self._next or (self._opened_rows and not self._left):
                raise TokenError(f"the phase of users up to {self._phase} has not ended")
            if not self._phase < stop <= self._token.users.stop:
                raise UsersError(
                    f"stop = {stop!r}: must lie in {self._phase + 1}..{self._token.users.stop}"
                )
            self._recording(self._issuer.record_phase, self._token, stop)
            phase, self._phase = range(self._phase, stop), stop
        if self._past is None and isinstance(self._issuer.observer, PhaseObserver):
            self._issuer.observer.begun(self._token, phase)

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

    def _opened(self, rows: Rows[Any], *, summed: bool = False) -> NDArray[Any]:
        """Contributions of rows; ``summed``: their sum, which nobody observes."""
        with self._token._lock:  # which refuses a forked child
            if self._done or self._account.outcome is not None:
                raise self._is_closed()
            check_rows(self._token, rows, self._next, self._spend.domain)
            functions, users = rows.functions, rows.users
            self._name_passed(functions)
            self._reach(users.stop)
            self._next = users.stop
            self._left = False
            self._due += len(users)
        if self._past is not None:  # nothing is opened for what left before a restart
            rows = Rows.null(users)
        try:
            values = (self._clipping.sum if summed else self._clipping.contributions)(rows)
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
        if self._phase not in (None, stop):
            raise UsersError(f"rows up to {stop}: those of the phase up to {self._phase} are due")
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
        grid = self._check_grid()
        self._check_own()
        self._check_open()
        noise = self._integers(shape, grid)
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

    def _integers(self, shape: tuple[int, ...], grid: Grid) -> Floors:
        return cast(ExactNoise, self._spend.noise).integers(self._noise(), shape, grid.bits)

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
        if self._phase is not None and (last or self._left or self._phase != self._next):
            raise TokenError(f"{self._spend.mechanism}: one value is published for each phase")
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
        return Released(MINT, frozen, self._token.id, leaving.digest)

    def _released_again(self, past: Past, *, last: bool) -> Released[Array]:
        """What left before a restart, in place of what was computed now from null records."""
        value, _ = past.next()
        self._left = True
        if last:
            self._done = True
        return Released(MINT, value, self._token.id, digest_of(value))

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

    def __init__(self, mint: Mint, value: T_co, paid_by: str, digest: str) -> None:
        if mint is not MINT:
            raise TypeError("released values come out of a receipt: use receipt.release(...)")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "paid_by", paid_by)
        object.__setattr__(self, "digest", digest)

    def __repr__(self) -> str:
        return f"Released({self.value!r}, paid_by={self.paid_by!r})"
