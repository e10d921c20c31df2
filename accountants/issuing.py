"""How an account spends: what it commits, and the tokens that it issues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.metering import Metering
from privlearn.accountants.parts import Parts
from privlearn.accountants.prices import LossPrice
from privlearn.accountants.replay import Replay
from privlearn.accountants.retries import (
    FirstTry,
    Given,
    nonce_after,
    nothing_in_place_of,
    released,
)
from privlearn.accountants.token_entries import TokenEntries
from privlearn.contract.leases import Lease, check_leasable
from privlearn.contract.protocols import Mechanism, Plan, Streaming
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token, mint_token
from privlearn.errors import (
    BudgetError,
    InsufficientBudgetError,
    LeaseError,
    NonceReusedError,
    PrivlearnError,
    TokenSpentError,
)
from privlearn.ledger.entries import (
    BatchesEntry,
    IssueEntry,
    PlanEntry,
    PlanItem,
    made,
)
from privlearn.losses import Loss
from privlearn.losses.base import is_foreign
from privlearn.losses.budgets import ZCDP, B, Currency, GaussianDP, PureDP
from privlearn.rows.domains import Array
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.validate import user_range

X = TypeVar("X")
T = TypeVar("T")
_NO = Fraction(0)
_MOST_FORMS = 256
_OF_ONE_NUMBER = frozenset({PureDP, ZCDP, GaussianDP})


class Issuing(Parts[B], Metering, Generic[B]):
    """The side of an accountant that spends."""

    def _start(self, log: AccountLog, issuer: TokenEntries) -> None:
        super()._start(log, issuer)
        self._mechanisms: dict[str, Any] = {}
        self._forms: dict[int, tuple[Fraction, type[Currency], dict[str, Any]]] = {}
        """By identity of an amount, which is one for equal short texts."""

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
            entry = BatchesEntry(accountant=self.issuer.id, starts=found)
            if not stands:
                self._state.check(entry)
            # The registry first: what it refuses must not be in the ledger, from which prices are.
            if self.issuer.people is not None:
                self.issuer.people.divide(found)
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
                self._log.append(PlanEntry(accountant=self.issuer.id, items=items))
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
            self.issuer.values[token.id] = []
        return self._run_with(token, lambda token: released(mechanism, rows, token))

    def _again_from(
        self, first: FirstTry, mechanism: Mechanism[X], rows: Given[X]
    ) -> Released[Array]:
        first.check_done()
        issue, loss = first.issue, mechanism.loss()
        budget = cast(B, self._state.accounts[issue.token].budget)
        failing, users = exact("", issue.failure), range(*issue.users)
        token = mint_token(self.issuer, issue.token, budget, users, issue.label, failing, loss)
        self.issuer.retried[id(token)] = first
        try:
            return released(mechanism, nothing_in_place_of(rows), token)
        finally:
            del self.issuer.retried[id(token)]

    def _first_try(self, nonce: str, loss: Loss, users: range, label: str) -> FirstTry | None:
        """What came of the token that was issued under a nonce; None if none was."""
        with self._lock:
            entries = self.ledger.since(nonce)
            issue = next(entries, None)
            if issue is None:
                return None
            assert isinstance(issue, IssueEntry)
            found = FirstTry(nonce, issue)
            index, _, price = self._priced(loss, users)
            found.check_asked(self.issuer.id, label, index, price)
            if self._state.accounts[issue.token].outcome is not None:
                found = FirstTry.read(nonce, issue, entries, self.ledger)
            if not self.ledger.durable:
                left = self.issuer.values.get(issue.token, ())
                found.values.extend((each.value, each.upto) for each in left)
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
        if self._state.learner is not None or self.issuer.past is not None:
            raise LeaseError(
                f"lease {label!r}: the account is a learner's, which after a restart goes on from "
                "the values in its ledger; those of leased runs do not stand there"
            )
        check_leasable(mechanism, runs, user_range(users=users), self.issuer)
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
        *,
        epoch: int | None = None,
    ) -> Token[B]:
        # under a nonce, a turn tells whether somebody was quicker
        if self._log.goes_ahead and self.issuer.past is None and nonce is None:
            try:
                return self._issued(
                    price, users, label, failure, allowance, None, epoch, ahead=True
                )
            except InsufficientBudgetError:
                raise
            except BudgetError:
                pass  # others may have committed a plan, which its turn tells
        return self._issued(price, users, label, failure, allowance, nonce, epoch, ahead=False)

    def _issued(
        self,
        price: Loss | B,
        users: range,
        label: str,
        failure: Fraction,
        allowance: str | None,
        nonce: str | None,
        epoch: int | None,
        *,
        ahead: bool,
    ) -> Token[B]:
        with self._log.own_lock if ahead else self._lock:
            if self.issuer.past is not None and (past := self._past) is not None:
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
                budget, form = price, self._form_of(price)
            planned = None
            if (plan := self._state.plan) is not None:
                if stands is None:
                    raise BudgetError("under a committed plan, issue tokens for its losses")
                planned = plan.position_for(label, index, stands, self._state.prices)
            epochs, minute = self._epochs(allowance, epoch)
            token = self._log.name(ahead)
            fields: dict[str, Any] = {
                "accountant": self.issuer.id,
                "entry": "issue",
                "token": token,
                "label": label,
                "users": (index.start, index.stop),
                "budget": form,
                "planned": planned,
                "failure": exact_text(failure) if failure else "0",
                "allowance": allowance,
                "epochs": epochs,
                "shared": None if self.issuer.people is None else self._shared(stands),
            }
            # all but the label is ours
            plain = label.__class__ is str
            entry = made(IssueEntry, fields) if plain else IssueEntry(**fields)
            self._log.append(entry, nonce=nonce, minute=minute, ahead=ahead)
            return mint_token(self.issuer, token, budget, index, label, failure, priced)

    def _form_of(self, budget: B) -> dict[str, Any]:
        """A budget as it is written; of one number the very form that was written before."""
        kind = budget.__class__
        if kind not in _OF_ONE_NUMBER:
            return budget.to_dict()
        (amount,) = budget.amounts
        seen = self._forms.get(id(amount))
        if seen is None or seen[0] is not amount or seen[1] is not kind:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            seen = self._forms[id(amount)] = amount, kind, budget.to_dict()
        return seen[2]

    def _priced(self, loss: Loss, users: range) -> tuple[range, Loss, LossPrice]:
        index = self._state.meter.charged.check(user_range(users=users))
        stands = self._log.others.as_recorded(loss, index) if is_foreign(loss) else loss
        return index, stands, self._state.prices.of_person(stands, index)

    def _issue_again(self, past: Replay, price: Loss | B, users: range, label: str) -> Token[B]:
        entry = past.take(label, users).issue
        budget = cast(B, self._state.accounts[entry.token].budget)
        priced = price if isinstance(price, Loss) else None
        return mint_token(
            self.issuer, entry.token, budget, users, label, exact("", entry.failure), priced
        )

    def _shared(self, loss: Loss | None) -> dict[str, Any] | None:
        if self._state.plan is not None or loss is None:
            return None
        return {} if self._state.prices.shares(loss) else None


def _check_mechanism(name: str, each: object) -> None:
    if isinstance(each, type) or not callable(getattr(each, "loss", None)):
        raise TypeError(f"{name} = {each!r:.200}: must be a mechanism, which states a loss()")
