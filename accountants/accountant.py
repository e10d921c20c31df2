"""Accountants: they hold a cap per arrival index, issue tokens and write the ledger.

`CentralAccountant` promises differential privacy of everything released; `JointAccountant` promises
it jointly for what all *other* users receive, by the billboard lemma, and therefore opens only rows
that its own billboard served.  `privlearn.accountants.local` has the one for local privacy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from fractions import Fraction
from typing import ClassVar, Generic, Literal, Self, cast, final

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.account_totals import promised, spent
from privlearn.accountants.arrivals import ArrivalSpend, spend_by_arrival
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Certificate
from privlearn.accountants.collector import collector_paused
from privlearn.accountants.epsilon_delta import largest_delta, largest_epsilon
from privlearn.accountants.filters import RunningBound, running_bound
from privlearn.accountants.issuing import Issuing
from privlearn.accountants.multiple_accountants import check_beside
from privlearn.accountants.opening import check_registry, opening_entry, read_account
from privlearn.accountants.replay import Replay
from privlearn.accountants.state import AccountState
from privlearn.accountants.token_entries import TokenEntries
from privlearn.accountants.turn_lock import News
from privlearn.contract.issuing import ReleaseObserver
from privlearn.errors import (
    ONE_PROCESS,
    BudgetError,
    LedgerError,
    LedgerHeadError,
    PeopleError,
    TokenCopyError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import ResumeEntry
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, B
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact

Of = Literal["guarantee", "spent"]


class _Accountant(Issuing[B], Generic[B]):
    """What all accountants share.

    Args:
        budget: the cap for every user: a currency, or an (ε, δ) promise that is turned into one.
        users: the arrival indices this accountant protects.
        ledger: where entries go: the path of a new file, or a `Ledger`, which must be new or
            shared.  Only a simulation may leave it out.
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
        ledger: Ledger | str | os.PathLike[str] | None = None,
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
        book = Ledger.memory() if ledger is None else ledger
        if isinstance(book, str | os.PathLike):  # made only now: a mistake above leaves no file
            book = Ledger.create(book)
        news = News(opened.accountant)
        if book.shared:
            book.listen(news)
        log = AccountLog(AccountState(opened), 1, book, news)
        self._start(log, TokenEntries(log, source, observer, people))
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
        cls, book: Ledger, noise: NoiseSource | None, accountant: str | None, people: People | None
    ) -> tuple[Self, Replay]:
        log, source, before = read_account(book, cls.trust, noise, accountant, people)
        resumed = cls.__new__(cls)
        resumed._start(log, TokenEntries(log, source, None, people))
        resumed._resumed = True
        return resumed, before

    # Public facts ---------------------------------------------------------------------------------

    @property
    def noise(self) -> NoiseSource:
        """Where the noise of its tokens is drawn."""
        return self.issuer.noise

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of all guarantees."""
        return self._state.opened.adjacency

    def of_person(self, loss: Loss, users: range) -> Loss:
        """The loss of one person with all visits in a range; that of one row without a rule.

        Of a kind of another package it is what is recorded of it, which is what is charged.

        Raises:
            BudgetError: none is known, or the range cuts a batch of the rule.
            UnknownKindError, PackageError: of another package, and cannot be recorded.
        """
        return self.issuer.of_person(loss, users)

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
        return cast(B, self._state.meter.largest(self._range(user)))

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
        return self._state.meter.largest_failure(self._range(user))

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

    def delta(self, epsilon: float, *, of: Of = "guarantee") -> float:
        """δ at ``epsilon``: of the guarantee, or of what was spent, ex post."""
        with self._lock:
            parts = (promised if of == "guarantee" else spent)(self._state).parts
            return largest_delta(parts, epsilon).value

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

    def close(self) -> None:
        """Ends the account: unspent tokens go back, open streams are lost.

        The ledger is closed with its last accountant.
        """
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __sklearn_clone__(self) -> Self:
        """Itself: what `sklearn.base.clone` makes of an estimator spends under the same cap."""
        return self

    def __reduce__(self) -> str:
        raise TokenCopyError(
            "an accountant cannot be copied or pickled; resume its ledger instead. With joblib and "
            f"scikit-learn: {ONE_PROCESS}"
        )

    def __repr__(self) -> str:
        spent = self._state.meter.largest(self.users)
        return f"{type(self).__name__}({self.budget}, spent {spent}, users={self.users})"


@final
class CentralAccountant(_Accountant[B]):
    """Promises differential privacy of everything released, with a trusted curator."""

    trust = Trust.CENTRAL


@final
class JointAccountant(_Accountant[B]):
    """Promises joint differential privacy by the billboard lemma (see `contract.billboard`)."""

    trust = Trust.JOINT
