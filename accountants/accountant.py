"""Accountants: they hold a cap per arrival index, issue tokens and write the ledger.

`CentralAccountant` promises differential privacy of everything released; `JointAccountant` promises
it jointly for what all *other* users receive, by the billboard lemma, and therefore opens only rows
that its own billboard served.  `privlearn.accountants.local` has the one for local privacy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast, final

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.arrivals import ArrivalSpend, spend_by_arrival
from privlearn.accountants.audit import certify
from privlearn.accountants.beginnings import check_registry
from privlearn.accountants.certificate import Certificate
from privlearn.accountants.collector import collector_paused
from privlearn.accountants.continuations import read_account
from privlearn.accountants.delegated import Delegated
from privlearn.accountants.epsilon_delta import largest_delta, largest_epsilon
from privlearn.accountants.filters import RunningBound, running_bound
from privlearn.accountants.guarantee import promised, spent
from privlearn.accountants.multiple_accountants import check_beside
from privlearn.accountants.opening_entries import opening_entry
from privlearn.accountants.prices import LossPrice
from privlearn.accountants.recorded_values import RecordedValue, recorded_values
from privlearn.accountants.replay import Replay
from privlearn.accountants.retries import (
    FirstTry,
    Given,
    nonce_after,
    nothing_in_place_of,
    released,
)
from privlearn.accountants.state import AccountState
from privlearn.accountants.token_entries import TokenEntries
from privlearn.accountants.turn_lock import News
from privlearn.contract.leases import Lease, check_leasable
from privlearn.contract.protocols import Mechanism, Plan, Streaming
from privlearn.contract.tokens import (
    Outcome,
    RecordedToken,
    Released,
    ReleasedValue,
    ReleaseObserver,
    Spend,
    Token,
    mint_token,
)
from privlearn.errors import (
    BudgetError,
    LeaseError,
    LedgerError,
    LedgerHeadError,
    NonceReusedError,
    PeopleError,
    PrivlearnError,
    TokenCopyError,
    TokenSpentError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import (
    BatchesEntry,
    DelegateEntry,
    IssueEntry,
    LearnerEntry,
    PlanEntry,
    PlanItem,
    ResumeEntry,
)
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, B
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.validate import user_range

X = TypeVar("X")
T = TypeVar("T")

Of = Literal["guarantee", "spent"]


class _Accountant(Generic[B]):
    """What all accountants share.

    Args:
        budget: the cap for every user: a currency, or an (ε, δ) promise that is turned into one.
        users: the arrival indices this accountant protects.
        ledger: where entries go; it must be new, or shared.  Only a simulation may leave it out.
        noise: default `NoiseSource.secure()`.  The accountant becomes its owner.
        currency: for an (ε, δ) budget, what to count in: ZCDP (default; takes every loss with a
            zCDP constant), GaussianDP (a larger budget, for Gaussian losses only) or Renyi (one
            order; a larger budget for objective perturbation).  Counted in ZCDP, Gaussian noise
            uses up the cap of (1, 1e-5) at ε = 0.915; in GaussianDP at ε = 1.
        order_for: with an (ε, δ) budget in Renyi, the loss of which most runs are to fit, which
            decides the order; default, a Gaussian.
        adjacency: the neighbour relation; every loss must be stated for it.  Default replace-one;
            with a rule whose pattern is private zero-out, which is all that it can be.
        side_information: quantities computed from these or related data that are declared public.
        observer: for checks only; needs simulation noise.
        shared: whether to open beside the accountants that the ledger already holds.  This is a
            further cap, not the continuation of an old one, which is what `resume` is for.
        failure: a probability that is set aside for losses that may fail, such as `ApproxLoss`;
            part of the δ of an (ε, δ) budget.  With it the cap is a filter for (ε, δ) spends.
        odometer: the δ of a bound on the privacy loss so far that the certificate states besides
            the guarantee, and that holds at all times at once; see `Odometer`.
        population: a name for the people behind the indices.  Accountants of one ledger that give
            the same name declare that an index is the same person in all of them.
        people: the registry of persons who may come back, with the public rule of how often they
            are learned from.  The cap is then one for every person with all visits, and an index is
            a slot: for one visit, or on a timetable for any number.
    """

    trust: ClassVar[Trust]

    def __init__(
        self,
        budget: B | ApproxDP,
        *,
        users: range,
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        currency: type[B] | None = None,
        order_for: Loss | None = None,
        adjacency: Adjacency | None = None,
        side_information: Iterable[str] = (),
        observer: ReleaseObserver | None = None,
        shared: bool = False,
        population: str | None = None,
        failure: Exact = 0,
        odometer: Exact | None = None,
        people: People | None = None,
        _attested: bool = False,
    ) -> None:
        source = noise if noise is not None else NoiseSource.secure()
        opened = opening_entry(
            budget,
            trust=self.trust,
            users=users,
            ledger=ledger,
            noise=source,
            currency=currency,
            order_for=order_for,
            adjacency=adjacency,
            side_information=side_information,
            shared=shared,
            population=population,
            failure=failure,
            odometer=odometer,
            people=people,
            attested=_attested,
        )
        if observer is not None and not source.simulated:
            raise ValueError("observer: a check needs NoiseSource.simulation(seed)")
        book = ledger if ledger is not None else Ledger.memory()
        news = News(opened.accountant)
        if book.shared:
            book.listen(news)
        log = AccountLog(AccountState(opened), 1, book, news)
        self._start(log, source, observer, people)
        if people is not None and people.serving_only:
            raise PeopleError(
                f"people: registry {people.id} stands in place of one that was lost, and learns "
                "nobody; it is for resume(..., people=), a new accountant needs one of its own"
            )
        if people is not None and people.accountant is not None:
            raise PeopleError(
                f"people: registry {people.id} belongs to accountant {people.accountant!r}; resume "
                "that, or make a registry for this one"
            )
        log.begin(first=not shared, beside=lambda others: check_beside(opened, list(others)))
        if people is not None:
            people.bind(opened.accountant, self.users)

    def _start(
        self,
        log: AccountLog,
        noise: NoiseSource,
        observer: ReleaseObserver | None,
        people: People | None,
    ) -> None:
        self._log, self._state, self._lock = log, log.state, log.lock
        self.ledger, self.noise, self.observer = log.ledger, noise, observer
        self._people = people
        self._resumed = self._joined = False
        self._before: Replay | None = None
        """What was released before a restart, until a learner runs again over it."""
        self._goes_on = False
        self._mechanisms: dict[str, Any] = {}
        self._entries = TokenEntries(log, simulated=noise.simulated, people=people)

    @classmethod
    @collector_paused()
    def resume(
        cls,
        ledger: Ledger | str | os.PathLike[str],
        *,
        noise: NoiseSource | None = None,
        head: str | None = None,
        unknown_head: bool = False,
        accountant: str | None = None,
        people: People | None = None,
    ) -> Self:
        """Goes on with an existing ledger after a restart.

        ``head`` is the last hash as kept elsewhere; it tells an old copy, which forgets spends.  It
        is needed where the file beside the ledger that keeps one is missing, and where the ledger
        says that its heads are kept elsewhere; ``unknown_head`` goes on without, and every audit
        reports it.  Of an open `Ledger`, `Ledger.open` has taken both.
        ``accountant`` is the `id`, needed where several of this trust are open.  To resume several
        in one process hand them one `Ledger`, not its path.  ``people`` is the registry that it was
        begun with, as it was left; visits of the open batch are null.  If it is lost,
        `People.replace_lost` makes one that serves everybody and learns nobody.

        Tokens that were never spent are handed back; spends whose end is unknown are retired as
        ``lost`` and stay charged: their outcome cannot be drawn again.

        A ledger that was begun by a version with noise in double precision goes on, too.  Its
        accountant declared no exact noise, so its certificates keep saying so of everything.

        Raises:
            LedgerError: unreadable, closed, of another trust, or with entries that do not check.
            LedgerHeadError: its head is not known, or not in it.
            PeopleError: not the registry of this accountant, or older than its ledger.
        """
        check_registry(people)
        if not isinstance(ledger, Ledger):
            book = Ledger.open(ledger, head=head, unknown_head=unknown_head)
        elif unknown_head:
            raise ValueError("unknown_head = True: is for Ledger.open, where there is a Ledger")
        else:
            book = ledger
            if head is not None and not book.holds(head):
                raise LedgerHeadError(
                    f"head is {book.head}, not {head}: the ledger was cut or rewritten"
                )
        resumed, before = cls._read(book, noise, accountant, people)
        resumed._before = before
        with resumed._lock:
            book.enter(resumed.id, alone=True)
            if book.unknown_head:
                resumed._log.append(ResumeEntry(accountant=resumed.id))
            resumed._log.end_outstanding()
        return resumed

    @classmethod
    @collector_paused()
    def join(
        cls,
        ledger: Ledger,
        *,
        noise: NoiseSource | None = None,
        accountant: str | None = None,
        people: People | None = None,
    ) -> Self:
        """Issues and spends beside other processes, from one cap that all of them share.

        Each process sees what the others wrote before it writes itself, so together they spend at
        most the cap.  Tokens are their process's own; those of one that ends are ended by the
        others: unspent ones are handed back, spent ones stay charged.  A learner is not joined: it
        belongs to one process, which resumes it.

        Args:
            ledger: one that is shared, `Ledger.connect` or `Ledger.postgres`.
            noise: as for `resume`.
            accountant: the `id`, needed where several of this trust are open.
            people: the registry that it was begun with, which must be shared as well.

        Raises:
            LedgerError: not shared, closed, of another trust, or with entries that do not check.
            LedgerFencedError: the ledger was opened anew since.
            PeopleError: not the registry of this accountant.
        """
        check_registry(people)
        if not isinstance(ledger, Ledger):
            raise TypeError(
                f"ledger: {type(ledger).__name__}: must be a Ledger, Ledger.connect(socket) or "
                "Ledger.postgres(address, 'join')"
            )
        if not ledger.shared:
            raise LedgerError(
                f"{ledger.name} has one process: connect to its owner (Ledger.connect), or keep it "
                "in PostgreSQL"
            )
        joined, _ = cls._read(ledger, noise, accountant, people)
        joined._joined = True
        with joined._lock:
            ledger.enter(joined.id)
        return joined

    @classmethod
    def _read(
        cls,
        book: Ledger,
        noise: NoiseSource | None,
        accountant: str | None,
        people: People | None,
    ) -> tuple[Self, Replay]:
        """An accountant that the ledger holds, and what it released before."""
        log, source, before = read_account(book, cls.trust, noise, accountant, people)
        resumed = cls.__new__(cls)
        resumed._start(log, source, None, people)
        resumed._resumed = True
        return resumed, before

    # Public facts ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The accountant's name in the ledger; token ids begin with it."""
        return self._state.opened.accountant

    @property
    def people(self) -> People | None:
        """The registry of persons who may come back; None where a user is one index.

        It stays as it was when the accountant was opened: a rule begins before the first token.
        """
        return self._people

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of all guarantees."""
        return self._state.opened.adjacency

    @property
    def users(self) -> range:
        """The arrival indices this accountant protects."""
        return self._state.users

    def of_person(self, loss: Loss, users: range) -> Loss:
        """The loss of one person with all visits in a range; that of one row without a rule.

        Of a kind of another package it is what is recorded of it, which is what is charged.

        Raises:
            BudgetError: none is known, or the range cuts a batch of the rule.
            UnknownKindError, PackageError: of another package, and cannot be recorded.
        """
        stands = self._log.others.as_recorded(loss, users)
        if self.people is None:
            return stands
        with self._lock:
            return self._state.of_person(stands, users)

    @property
    def population(self) -> str | None:
        """The declared name of the people behind the indices."""
        return self._state.opened.population

    @property
    def budget(self) -> B:
        """The cap for every user."""
        return cast(B, self._state.cap)

    def spent(self, user: int | None = None) -> B:
        """What is charged or reserved for one user (default: the largest over users).

        Raises:
            BudgetError: for one user under a rule of participation, where an index is no person.
        """
        self._look()
        return cast(B, self._state.ceiling.largest(self._range(user)))

    def _look(self) -> None:
        """Learns what other processes wrote, if there are others."""
        if self.ledger.shared and not self._state.closed:
            with self._lock:
                pass

    def remaining(self, user: int | None = None) -> B:
        """What can still be issued for one user (default: for all of them at once).

        Raises:
            BudgetError: as `spent`.
        """
        spent = self.spent(user)
        # where a person's total is rounded up, it may be above the cap by that
        return self.budget - spent if self.budget.covers(spent) else self.budget.zero()

    def _range(self, user: int | None) -> range:
        self._state.check_asked(user=user)
        return self.users if user is None else range(user, user + 1)

    def failure(self, user: int | None = None) -> Fraction:
        """The probability of failing that is charged or reserved for one user (default: most).

        Raises:
            BudgetError: as `spent`.
        """
        self._look()
        return self._state.ceiling.largest_failure(self._range(user))

    def epsilon(self, delta: float, *, of: Of = "guarantee", rounds: int = 1) -> float:
        """ε at ``delta``: of the guarantee (plan total or cap), or of what was spent, ex post.

        An upper bound on the exact value, error bound included; for a person with ``rounds`` rows,
        or under a rule of participation for one with all visits.  At δ = 0 it is infinite unless
        all losses are pure.

        Raises:
            ValueError: delta outside [0, 1).
            BudgetError: rounds under a rule of participation.
        """
        self._state.check_asked(rounds)
        with self._lock:
            parts = (promised if of == "guarantee" else spent)(self._state).parts
            return largest_epsilon(parts, delta, rounds).value

    def running_bound(self, user: int | None = None) -> RunningBound:
        """The odometer: a bound on the privacy loss so far that holds at all times at once.

        Raises:
            BudgetError: no odometer was declared when the accountant was made.
        """
        with self._lock:
            found = running_bound(self._state, None if user is None else self._range(user))
        if found is None:
            raise BudgetError("odometer: declare its δ when the accountant is made")
        return found

    def spend_by_arrival(self, delta: float | None = None) -> list[ArrivalSpend]:
        """ε promised to, and spent on, each range of arrivals; see `plot_arrivals`.

        Raises:
            BudgetError: under a rule of participation an index is no person.
        """
        with self._lock:
            return spend_by_arrival(self._state, delta)

    def delta(self, epsilon: float, *, of: Of = "guarantee") -> float:
        """δ at ``epsilon``: of the guarantee, or of what was spent, ex post."""
        with self._lock:
            parts = (promised if of == "guarantee" else spent)(self._state).parts
            return largest_delta(parts, epsilon).value

    def certificate(
        self, delta: float | None = None, *, user: int | None = None, rounds: int = 1
    ) -> Certificate:
        """What the ledger proves so far, as an auditor would find it.

        Args:
            delta: defaults to that of an (ε, δ) budget, else 1e-6.
            user: an arrival index; default the maximum over users.  For one user all counts that
                the plan or the cap allows to touch this user, not what happened later.
            rounds: for a person with so many rows (group privacy).

        Raises:
            BudgetError: user or rounds under a rule of participation, which is about persons.
        """
        return certify(self.ledger.iterate(), delta=delta, user=user, rounds=rounds)

    # Spending -------------------------------------------------------------------------------------

    def divide(self, starts: Sequence[int]) -> None:
        """Declares where the public batches begin that the rule of participation counts within.

        Once, before the plan and the first token; a program that resumes declares the same again.

        Raises:
            BudgetError: there is no such rule, or it is too late.
            UsersError: not ascending, or not the accountant's slots.
            PeopleError: the registry has others.
        """
        found = tuple(starts)
        with self._lock:
            visits = self._state.visits
            stands = self._resumed and visits is not None and visits.starts == found
            entry = BatchesEntry(accountant=self.id, starts=found)
            if not stands:
                self._state.check(entry)
            # The registry first: what it refuses must not be in the ledger, from which prices are.
            if self.people is not None:
                self.people.divide(found)
            if not stands:
                self._log.append(entry)

    def commit(
        self, plan: Iterable[Plan] = (), /, **mechanisms: Mechanism[Any] | Streaming[Any]
    ) -> None:
        """Commits all losses and counts in advance; afterwards only they can be spent.

        Mechanisms are given by keyword, and run once each, on all users, by `release` or `open`
        under that keyword; ``plan`` is for other users and counts.  A program that resumes a ledger
        commits the same mechanisms again, which adds nothing to the plan that stands there.

        The guarantee is then the plan's composition, which is exact where all mass is Gaussian, and
        tight where all losses are Gaussian, pure or of bounded range.  Tokens may be spent in any
        order, which may depend on earlier outputs: it is the worst case over all orders.

        Raises:
            InsufficientBudgetError: the plan does not fit under the cap.
            BudgetError: too late.
            TypeError: something else than a mechanism is given by keyword.
            ValueError: no items.
        """
        for label, each in mechanisms.items():
            _check_mechanism(label, each)
        named = [Plan(label, each.loss(), self.users) for label, each in mechanisms.items()]
        given = [*plan, *named]
        if not given:
            raise ValueError("plan = []: must have an item for everything that will be spent")
        ranges = [user_range(users=item.users) for item in given]
        whole = [
            replace(item, loss=self._log.others.as_recorded(item.loss, users))
            for item, users in zip(given, ranges, strict=True)
        ]
        items = tuple(
            PlanItem(
                label=item.label,
                users=(users.start, users.stop),
                loss=item.loss.to_dict(),
                count=item.count,
            )
            for item, users in zip(whole, ranges, strict=True)
        )
        with self._lock:
            stands = [Plan(i.label, i.loss, i.users, i.count) for i in self._state.plan or []]
            if not (self._resumed and whole and whole == stands):
                self._log.append(PlanEntry(accountant=self.id, items=items))
            self._mechanisms = dict(mechanisms)

    def release(self, label: str, rows: Given[Any], *, nonce: str | None = None) -> Released[Array]:
        """Runs a mechanism that was committed by keyword: issue, spend and release in one call.

        Args:
            label: the keyword.
            rows: sealed, of the accountant's users; as of `release_once`.
            nonce: as of `release_once`.

        Raises:
            BudgetError: nothing was committed by that keyword, or it has run.
            TokenError, UsersError, ProvenanceError: see `Token.spend` and `Receipt.open`; what was
                not spent is free again.
            NonceReusedError, NonceBusyError, SpendLostError: as `release_once`.
        """
        mechanism = self._committed(label)
        if not hasattr(mechanism, "release"):
            raise BudgetError(f"{label!r} is a stream: accountant.open({label!r}) begins it")
        if nonce is not None:
            return self.release_once(nonce, mechanism, rows, users=self.users, label=label)
        return self._run(label, mechanism, lambda token: released(mechanism, rows, token))

    def release_once(
        self, nonce: str, mechanism: Mechanism[X], rows: Given[X], *, users: range, label: str
    ) -> Released[Array]:
        """Issue, spend and release in one call, that can be tried again without paying twice.

        The same nonce returns the value that left the first time, whatever ``rows`` hold now:
        nothing is charged, no row is opened, and no new noise leaves; also after a restart, of a
        ledger file.  A first try that was never spent is free, and the retry goes on.

        Args:
            nonce: 32 lower-case hexadecimal digits, ``secrets.token_hex(16)``, for this release.
            mechanism: that runs.
            rows: sealed, of ``users``: `Rows`, a `PartialSum` of them, or `PartitionedRows`, which
                a mechanism with ``release_partitions`` or ``release_partial`` takes, and which a
                retry does not read.
            users: whom it is charged to.
            label: what it is for.

        Raises:
            NonceReusedError: it was given for another mechanism, label or other users, or with
                other parameters; nothing is spent.
            NonceBusyError: the first try is not done, in another thread or process.
            SpendLostError: the first try was spent and left no value; it stays charged.
            ValueError: no such nonce.  TypeError: no mechanism.
            BudgetError, TokenError, UsersError, ProvenanceError: as `issue`, and as `release`.
            PartitionError: as `PartitionedRows.partial`, and ``release_partitions``.
        """
        _check_mechanism("mechanism", mechanism)
        loss = mechanism.loss()
        token: Token[B] | None = None
        while token is None:
            while (first := self._first_try(nonce, loss, users, label)) is not None:
                if first.end != "unused":
                    return self._again_from(first, mechanism, rows)
                nonce = nonce_after(nonce)
            try:
                token = self.issue(loss, users=users, label=label, nonce=nonce)
            except NonceReusedError:  # somebody was quicker
                if self._first_try(nonce, loss, users, label) is None:
                    raise
        with self._lock:
            self._entries.values.expect(token.id)
        return self._run_with(token, lambda token: released(mechanism, rows, token))

    def _again_from(
        self, first: FirstTry, mechanism: Mechanism[X], rows: Given[X]
    ) -> Released[Array]:
        first.check_done()
        issue, loss = first.issue, mechanism.loss()
        budget = cast(B, self._state.accounts[issue.token].budget)
        failing, users = exact("", issue.failure), range(*issue.users)
        token = mint_token(self, issue.token, budget, users, issue.label, failing, loss)
        self._entries.retried[id(token)] = first
        try:
            return released(mechanism, nothing_in_place_of(rows), token)
        finally:
            del self._entries.retried[id(token)]

    def _first_try(self, nonce: str, loss: Loss, users: range, label: str) -> FirstTry | None:
        """What came of the token that was issued under a nonce; None if none was.

        Raises:
            NonceReusedError: it was another one.
        """
        with self._lock:
            entries = self.ledger.since(nonce)
            issue = next(entries, None)
            if issue is None:
                return None
            assert isinstance(issue, IssueEntry)
            found = FirstTry(nonce, issue)
            index, _, price = self._priced(loss, users)
            found.check_asked(self.id, label, index, price)
            if self._state.accounts[issue.token].outcome is not None:
                found = FirstTry.read(nonce, issue, entries, self.ledger)
            if not self.ledger.durable:
                found.values.extend(self._entries.values.of(issue.token))
            return found

    def open(self, label: str) -> Any:
        """Begins a stream that was committed by keyword; close it, or use it in ``with``.

        A stream that is open when its process ends has ended, too: its noise was never written.
        What it released stands in the ledger (`released`), and its users below the last ``reach``
        are paid for.  The others have another stream, whose noise and sums begin anew::

            left = accountant.rest("sums", accountant.users)
            again = sums.for_last(left)
            stream = again.open(accountant.issue(again.loss(), users=left, label="sums"))

        Raises:
            BudgetError: nothing was committed by that keyword, or it has begun.
        """
        mechanism = self._committed(label)
        if not hasattr(mechanism, "open"):
            raise BudgetError(
                f"{label!r} is no stream: accountant.release({label!r}, rows) runs it"
            )
        return self._run(label, mechanism, mechanism.open)

    def _committed(self, label: str) -> Any:
        found = self._mechanisms.get(label)
        if found is None:
            known = ", ".join(map(repr, self._mechanisms)) or "none"
            raise BudgetError(
                f"{label!r}: no mechanism was committed by that keyword; there are {known}"
            )
        return found

    def _run(self, label: str, mechanism: Any, run: Callable[[Token[B]], T]) -> T:
        return self._run_with(self.issue(mechanism.loss(), users=self.users, label=label), run)

    @staticmethod
    def _run_with(token: Token[B], run: Callable[[Token[B]], T]) -> T:
        try:
            made = run(token)
        except BaseException:  # which the caller gets, whatever can still be written
            with suppress(PrivlearnError):
                token.retire()
            raise
        with suppress(TokenSpentError):  # it was, unless the mechanism did nothing
            token.retire()
        return made

    def left(self, label: str, users: range) -> int:
        """How many tokens of a committed plan item are still to be issued; 0 if there is none."""
        with self._lock:
            past = self._past
            return self._unissued(label, users) if past is None else past.left(label, users)

    def _unissued(self, label: str, users: range) -> int:
        items = self._state.plan or []
        return sum(item.left for item in items if (item.label, item.users) == (label, users))

    @property
    def unmade(self) -> list[tuple[str, range, int]]:
        """Of the committed plan, what was never issued: labels, users, and how many tokens."""
        with self._lock:
            items = self._state.plan or []
            return [(item.label, item.users, item.left) for item in items if item.left]

    @property
    def _past(self) -> Replay | None:
        """While a learner runs again, what was released before; None from where it goes on."""
        past = self._entries.past
        return None if past is None or (self._goes_on and past.over) else past

    def lost(self, label: str, users: range, upto: int | None = None) -> bool:
        """Whether a step was lost with a process that died; False outside of `replaying`.

        That is, whether no token of these users released anything of rows before ``upto``, by
        default of all of them; and, where the learner goes on, none can be issued any more.
        """
        with self._lock:
            if self._entries.past is None:
                return False
            if self._past is None:
                return self._entries.past.lost(label, users) or not self._unissued(label, users)
            return not self._entries.past.released(
                label, users, users.stop if upto is None else upto
            )

    def rest(self, label: str, users: range) -> range | None:
        """The users of whom a planned stream can still take rows; None if there are none.

        All of them before it began, and after it ended early, as its process died, those whose
        rows it did not take.
        """
        with self._lock:
            if self._entries.past is not None:
                return self._entries.past.rest(label, users)
            for item in self._state.plan or []:
                if (item.label, item.users) == (label, users):
                    return item.rest
            return None

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

    def issue(
        self,
        price: Loss | B,
        *,
        users: range,
        label: str,
        failure: Exact = 0,
        nonce: str | None = None,
    ) -> Token[B]:
        """Issues a token for one loss, or for any loss that a budget covers, on ``users``.

        ``failure`` is the probability of failing that a budget's losses may use; a loss states it.
        ``nonce``, 32 lower-case hexadecimal digits, is one that no other token has; `release_once`
        is for releases that may be tried again.

        Raises:
            InsufficientBudgetError: some user's cap cannot hold it (nothing is charged).
            BudgetError: not in the committed plan.
            CurrencyError: no price in this currency.
            NonceReusedError: a token was issued under that nonce.
        """
        failing = exact("failure", failure) if failure else _NO
        return self._issue(price, users, label, failing, None, nonce)

    def lease(self, mechanism: Mechanism[X], *, runs: int, users: range, label: str) -> Lease[X]:
        """Pays once, at the price of all, for many runs of a mechanism: ``lease.release(rows)``.

        For rates at which a durable spend for each run takes too long.  Every run is charged to all
        of ``users``, used or not.  Under a plan it is an item of its own,
        ``Plan(label, mechanism.loss() * runs, users)``.  Under a rule of participation each run is
        charged for all visits of a person, and the slots of ``users`` must be over.

        Args:
            mechanism: that runs, always with the same parameters.
            runs: how many, >= 1.
            users: whose rows each run can open.
            label: what it is for.

        Raises:
            LeaseError: with a learner, whose account goes on from values in the ledger, where those
                of a lease do not stand; of a stream; or of slots that are not over.
            InsufficientBudgetError, BudgetError, CurrencyError: as `issue`.
            ValueError: runs below 1.
        """
        if self._state.learner is not None or self._entries.past is not None:
            raise LeaseError(
                f"lease {label!r}: the account is a learner's, which after a restart goes on from "
                "the values in its ledger; those of leased runs do not stand there"
            )
        check_leasable(mechanism, runs, user_range(users=users), self)
        token = self.issue(mechanism.loss() * runs, users=users, label=label)
        return Lease(token, mechanism, runs)

    def _issue(
        self,
        price: Loss | B,
        users: range,
        label: str,
        failure: Fraction,
        allowance: str | None,
        nonce: str | None = None,
    ) -> Token[B]:
        with self._lock:
            if (past := self._past) is not None:
                return self._issue_again(past, price, users, label)
            if isinstance(price, Loss):
                if failure:
                    raise BudgetError("failure: a loss says itself how likely it is to fail")
                priced = price
                index, stands, found = self._priced(price, users)
                form = found.form
                budget, failure = cast(B, found.budget), found.failure
            else:
                index = user_range(users=users)
                priced, stands = None, None
                budget, form = price, price.to_dict()
            planned = None
            if self._state.plan is not None:
                if stands is None:
                    raise BudgetError("under a committed plan, issue tokens for its losses")
                planned = self._state.planned_for(label, index, stands)
            token = f"{self.id}/{len(self._state.accounts) + 1}"
            self._log.append(
                IssueEntry(
                    accountant=self.id,
                    token=token,
                    label=label,
                    users=(index.start, index.stop),
                    budget=form,
                    planned=planned,
                    failure=exact_text(failure) if failure else "0",
                    allowance=allowance,
                    shared=self._shared(stands),
                ),
                nonce=nonce,
            )
            return mint_token(self, token, budget, index, label, failure, priced)

    def _priced(self, loss: Loss, users: range) -> tuple[range, Loss, LossPrice]:
        """Whom a token for a loss is for, how the loss is recorded, and what it costs."""
        index = self._state.ceiling.charged.check(user_range(users=users))
        stands = self._log.others.as_recorded(loss, index)
        return index, stands, self._state.price_of_person(stands, index)

    def _issue_again(self, past: Replay, price: Loss | B, users: range, label: str) -> Token[B]:
        entry = past.take(label, users).issue
        budget = cast(B, self._state.accounts[entry.token].budget)
        priced = price if isinstance(price, Loss) else None
        return mint_token(self, entry.token, budget, users, label, exact("", entry.failure), priced)

    def _shared(self, loss: Loss | None) -> dict[str, Any] | None:
        """What a token's entry says of the loss that it is for, under a rule without a plan."""
        if self.people is None or self._state.plan is not None or loss is None:
            return None
        return {} if self._state.shares(loss) else None

    def delegate(self, budget: B, *, users: range, label: str, failure: Exact = 0) -> Delegated[B]:
        """Reserves part of the cap for a component, which issues its tokens from it.

        What it did not use comes back when it is closed.  Component and reservation stand in the
        ledger, so an audit sees that the component stayed within its part.

        Raises:
            InsufficientBudgetError: it does not fit.
            BudgetError: there is a committed plan, whose items are the components' budgets.
        """
        with self._lock:
            index = self._state.ceiling.charged.check(user_range(users=users))
            name = f"{self.id}/allowance-{len(self._state.allowances) + 1}"
            self._log.append(
                DelegateEntry(
                    accountant=self.id,
                    allowance=name,
                    label=label,
                    users=(index.start, index.stop),
                    budget=budget.to_dict(),
                    failure=exact_text(exact("failure", failure)),
                )
            )
            return Delegated(self, self._state, name, budget, index)

    # What another process needs to go on ---------------------------------------------------------

    @property
    def learner(self) -> LearnerEntry | None:
        """Whose plan stands in the ledger; None if no learner was begun, or it was in memory."""
        return self._state.learner

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
            self._entries.past, self._goes_on = past, goes_on
        try:
            yield past
            past.check_all_left()
        finally:
            self._entries.past = None

    def check_ledger(self) -> None:
        """For leases: raises LedgerError if nothing can be recorded any more; writes nothing."""
        self._log.check_writable()

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        """For tokens: writes the spend; returns the token's account when it is durable."""
        account, written = self._entries.spend(token, spend, loss, runs)
        if written and self.observer is not None:
            self.observer.spent(token, spend)
        return account

    def record_functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        """For receipts: writes what user code rows passed through; returns when it is durable."""
        self._entries.functions(token, names)

    def record_reach(self, token: Token[Any], stop: int) -> int:
        """For receipts: writes how far a stream comes; returns it when it is durable."""
        return self._entries.reach(token, stop)

    def record_publish(self, token: Token[Any], value: ReleasedValue) -> None:
        """For receipts: writes a value that is about to leave a spend which stays open."""
        self._entries.publish(token, value)

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        """For tokens and receipts: writes how the token ended, with the value that leaves then."""
        self._entries.retire(token, outcome, digest, value)

    def close(self) -> None:
        """Ends the account: unspent tokens go back, open streams are lost.

        The ledger is closed with its last accountant.
        """
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TokenCopyError("an accountant cannot be copied or pickled; resume its ledger instead")

    def __repr__(self) -> str:
        spent = self._state.ceiling.largest(self.users)
        return f"{type(self).__name__}({self.budget}, spent {spent}, users={self.users})"


def _check_mechanism(name: str, each: object) -> None:
    if isinstance(each, type) or not callable(getattr(each, "loss", None)):
        raise TypeError(f"{name} = {each!r:.200}: must be a mechanism, which states a loss()")


_NO = Fraction(0)


@final
class CentralAccountant(_Accountant[B]):
    """Promises differential privacy of everything released, with a trusted curator."""

    trust = Trust.CENTRAL


@final
class JointAccountant(_Accountant[B]):
    """Promises joint differential privacy by the billboard lemma (see `contract.billboard`)."""

    trust = Trust.JOINT
