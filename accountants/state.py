"""The state of one accountant as a fold over its ledger entries.

The live accountant checks an entry, makes it durable and then records it here; an auditor feeds the
entries of a file through the same two steps.  So what is enforced is what is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast, final

from privlearn._validate import user_range
from privlearn.accountants.per_user_charge import ByUser
from privlearn.adjacency import Adjacency, Trust
from privlearn.budgets import ApproxDP, Budget, Currency, budget_from_dict
from privlearn.domains import domain_from_dict
from privlearn.entries import (
    AttestEntry,
    CloseEntry,
    DelegateEntry,
    Entry,
    FunctionsEntry,
    IssueEntry,
    OpenEntry,
    PlanEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
)
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    InsufficientBudgetError,
    LedgerClosedError,
    LedgerError,
    LossExceedsTokenError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.exact import exact, exact_text
from privlearn.losses import (
    BoundedRangeLoss,
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    compose,
    gaussian_loss,
    is_bounded_range,
    leaves_of,
    loss_from_dict,
)
from privlearn.noise import GaussianNoise, noise_from_dict

T = TypeVar("T")
Tally = dict[Loss, int]
"""Losses with multiplicities."""


def _range(users: tuple[int, int]) -> range:
    return range(*users)


class _Reader(Generic[T]):
    """Reads JSON forms, and remembers the flat ones: most spends of an account look alike."""

    def __init__(self, read: Callable[[dict[str, Any]], T]) -> None:
        self._read = read
        self._known: dict[tuple[object, ...], T] = {}

    def __call__(self, data: dict[str, Any]) -> T:
        try:
            # types too: True, 1 and 1.0 are equal, but not all of them are accepted
            key = tuple([(name, value.__class__, value) for name, value in data.items()])
            found = self._known.get(key)
        except TypeError:  # it holds lists or objects
            return self._read(data)
        if found is None:
            found = self._read(data)
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[key] = found
        return found


_read_loss: _Reader[Loss] = _Reader(loss_from_dict)
_read_budget: _Reader[Budget] = _Reader(budget_from_dict)


@dataclass(slots=True)
class Ceiling:
    """What is charged to each arrival index, and how likely it is to fail."""

    charged: ByUser[Currency]
    failing: ByUser[Fraction]
    cap: Currency
    failure: Fraction
    _last: tuple[Currency, Currency, Currency] | None = None
    """The last sum: what is checked is then charged."""

    @classmethod
    def empty(cls, users: range, cap: Currency, failure: Fraction) -> Ceiling:
        """Nothing is charged yet."""
        zero: ByUser[Currency] = ByUser(users, cap.zero(), lambda value: value)
        return cls(zero, ByUser(users, Fraction(0), lambda value: value), cap, failure)

    def check(self, users: range, amount: Currency, failure: Fraction) -> None:
        """Raises InsufficientBudgetError unless every one of the users has room for that much.

        This is the filter: the next spend is chosen after everything before it was seen, and may
        be made only if the sum, of amounts known before it runs, stays under the cap.
        """
        for piece, value in self.charged.pieces(users):
            if not self.cap.covers(self._sum(value, amount)):
                # an audit goes on after a cap was exceeded
                remaining = self.cap - value if self.cap.covers(value) else self.cap.zero()
                raise InsufficientBudgetError(
                    spent=value, requested=amount, remaining=remaining, users=piece
                )
        if not failure:
            return
        for piece, failed in self.failing.pieces(users):
            if failed + failure > self.failure:
                raise InsufficientBudgetError(
                    spent=f"failure {exact_text(failed)}",
                    requested=f"failure {exact_text(failure)}",
                    remaining=f"failure {exact_text(max(self.failure - failed, Fraction(0)))}",
                    users=piece,
                )

    def charge(self, users: range, amount: Currency, failure: Fraction) -> None:
        """Adds to what is charged."""
        self.charged.update(users, lambda value: self._sum(value, amount))
        if failure:
            self.failing.update(users, lambda value: value + failure)

    def _sum(self, value: Currency, amount: Currency) -> Currency:
        last = self._last
        if last is None or last[0] is not value or last[1] is not amount:
            last = self._last = value, amount, value + amount
        return last[2]

    def release(self, users: range, amount: Currency, failure: Fraction) -> None:
        """Takes off what was charged."""
        self.charged.update(users, lambda value: value - amount)
        if failure:
            self.failing.update(users, lambda value: value - failure)


@dataclass(slots=True)
class Allowance:
    """A reserved part of the cap: a ceiling of its own for the tokens that come out of it."""

    entry: DelegateEntry
    ceiling: Ceiling
    returned: bool = False


@dataclass(slots=True)
class Account:
    """One token's history."""

    entry: IssueEntry
    budget: Currency
    failure: Fraction
    spend: SpendEntry | None = None
    loss: Loss | None = None
    outcome: str | None = None
    functions: dict[str, None] = field(default_factory=dict)
    """Names of user code that its rows passed through, in the order in which they came."""


@dataclass(slots=True)
class Planned:
    """One plan item and how many of its tokens are still to be issued."""

    label: str
    users: range
    loss: Loss
    count: int
    left: int


@final
class AccountState:
    """Everything that follows from one accountant's entries so far."""

    def __init__(self, opened: OpenEntry) -> None:
        _check_relation(opened)
        cap = budget_from_dict(opened.cap)
        if not isinstance(cap, Currency) or cap.is_zero:
            raise BudgetError(f"cap {cap}: must be a currency above zero")
        promise = None if opened.promise is None else budget_from_dict(opened.promise)
        if promise is not None and not isinstance(promise, ApproxDP):
            raise BudgetError(f"promise {promise}: must be an (ε, δ) budget")
        self.opened = opened
        self.number = 1  # among the accountants of its ledger
        self.cap = cap
        self.failure = _probability("failure", opened.failure)
        self.odometer: Fraction | None = None
        if opened.odometer is not None:
            self.odometer = _probability("odometer", opened.odometer)
            if not self.odometer:
                raise BudgetError("odometer = 0: its δ must be above zero")
            if self.odometer + self.failure >= 1:
                raise BudgetError("odometer and failure: their δ must add up to less than 1")
        self.promise = promise
        self.users = user_range(users=_range(opened.users))
        self.ceiling = Ceiling.empty(self.users, cap, self.failure)
        self.charged = self.ceiling.charged
        self.spent: ByUser[Tally] = ByUser(self.users, {}, dict)
        self.committed: ByUser[Tally] = ByUser(self.users, {}, dict)
        self.plan: list[Planned] | None = None
        self.accounts: dict[str, Account] = {}
        self.folded: set[str] = set()
        """Tokens that ended and whose history was dropped, by `fold`."""
        self.allowances: dict[str, Allowance] = {}
        self.interactive = self.interleaved = False
        self._running = 0
        self._prices: dict[Loss, tuple[Currency, Fraction]] = {}
        self._last_price: tuple[Loss, tuple[Currency, Fraction]] | None = None
        self.attested: list[AttestEntry] = []
        self.closed = False

    # What is left -------------------------------------------------------------------------------

    def charged_to(self, users: range) -> Currency:
        """The largest charge on any of the users, amount by amount."""
        pieces = [value for _, value in self.charged.pieces(users)]
        amounts = zip(*(value.amounts for value in pieces), strict=True)
        return pieces[0]._with(tuple(max(column) for column in amounts))

    def fold(self, token: str) -> None:
        """Drops the history of a token that has ended: no entry of it may follow.

        For audits of long ledgers; sums and charges stay.
        """
        del self.accounts[token]
        self.folded.add(token)

    def outstanding(self) -> list[Account]:
        """Tokens without a recorded end."""
        return [account for account in self.accounts.values() if account.outcome is None]

    def delegated(self) -> list[Allowance]:
        """Allowances that were not given back."""
        return [allowance for allowance in self.allowances.values() if not allowance.returned]

    @staticmethod
    def read_loss(data: dict[str, Any]) -> Loss:
        """A loss from its JSON form; equal flat ones are one object.

        Raises:
            UnknownKindError, ValueError: no loss.
        """
        return _read_loss(data)

    def price(self, loss: Loss) -> Currency:
        """What a loss costs apart from its failures, which are counted by themselves.

        Raises:
            CurrencyError: no finite price in this currency.
        """
        return self._price(loss)[0]

    def _price(self, loss: Loss) -> tuple[Currency, Fraction]:
        last = self._last_price
        if last is not None and last[0] is loss:  # its hash takes time
            return last[1]
        found = self._prices.get(loss)
        if found is None:
            failure = loss.failure()
            found = self.cap.price(loss.unless_failed() if failure else loss), failure
            if len(self._prices) >= 4096:
                self._prices.clear()
            self._prices[loss] = found
        self._last_price = loss, found
        return found

    def planned_for(self, label: str, users: range, loss: Loss) -> int | None:
        """Position of the plan item that a new token can use, if there is a plan.

        Raises:
            BudgetError: there is a plan, and no item of it is left for this token.
        """
        if self.plan is None:
            return None
        for position, item in enumerate(self.plan):
            fits = item.label == label and item.users == users and _dominates(item.loss, loss)
            if fits and item.left:
                return position
        raise BudgetError(
            f"token {label!r} for users {users!r} is not (or no longer) in the committed plan; "
            "a plan is exhaustive: commit one that names it"
        )

    # Checks: nothing is changed, and what is wrong is raised --------------------------------------

    def check(self, entry: Entry) -> None:
        """Raises what is wrong with ``entry`` as the next one; changes nothing."""
        if self.closed:
            raise LedgerClosedError("the accountant is closed: no entry may follow")
        match entry:
            case PlanEntry():
                self._check_plan(entry)
            case IssueEntry():
                self._check_issue(entry)
            case SpendEntry():
                self._check_spend(entry)
            case FunctionsEntry():
                self._check_functions(entry)
            case RetireEntry():
                self._check_retire(entry)
            case AttestEntry():
                self._check_attest(entry)
            case DelegateEntry():
                self._check_delegate(entry)
            case ReturnEntry():
                self._delegated(entry.allowance)
            case CloseEntry():
                if self.outstanding():
                    raise LedgerError("tokens without an end: retire them before closing")
                if self.delegated():
                    raise LedgerError("allowances that were not returned: return them first")
            case OpenEntry():
                raise LedgerError(f"accountant {entry.accountant!r} was opened before")

    def _check_plan(self, entry: PlanEntry) -> None:
        begun = self.accounts or self.folded or self.attested or self.allowances
        if self.plan is not None or begun:
            raise BudgetError("a plan is committed once, before the first token")
        trial = Ceiling.empty(self.users, self.cap, self.failure)
        for item in entry.items:
            loss = self._own_loss(item.loss)
            users = self._whole_ranges(_range(item.users))
            for piece, part in _over(loss, users):
                price, failure = self._price(part)
                trial.charge(piece, price * item.count, failure * item.count)
        none = Ceiling.empty(self.users, self.cap, self.failure)
        for users, total in trial.charged.pieces():
            none.check(users, total, Fraction(0))
        for users, failure in trial.failing.pieces():
            none.check(users, self.cap.zero(), failure)

    def _check_issue(self, entry: IssueEntry) -> None:
        if entry.token in self.accounts or entry.token in self.folded:
            raise TokenError(f"token {entry.token} was issued before")
        if self.opened.attested:
            raise BudgetError("an accountant of attestations issues no tokens: open a second one")
        users = self._whole_ranges(_range(entry.users))
        budget = self._currency(entry.budget)
        failure = _probability("failure", entry.failure)
        if budget.is_zero:
            raise BudgetError(f"token {entry.label!r}: a budget of {budget} can pay for nothing")
        if self.plan is not None:
            if entry.planned is None or not 0 <= entry.planned < len(self.plan):
                raise BudgetError(f"token {entry.token} is not in the committed plan")
            item = self.plan[entry.planned]
            if not item.left or item.users != users or item.label != entry.label:
                raise BudgetError(f"token {entry.token} does not match plan item {entry.planned}")
            price, failing = self._price(item.loss)
            if not price.covers(budget) or failing < failure:
                raise BudgetError(f"token {entry.token} holds more than plan item {entry.planned}")
            return
        if entry.planned is not None:
            raise BudgetError(f"token {entry.token} names a plan, but none was committed")
        ceiling = self.ceiling
        if entry.allowance is not None:
            ceiling = self._delegated(entry.allowance).ceiling
            ceiling.charged.check(users)
        ceiling.check(users, budget, failure)

    def _check_delegate(self, entry: DelegateEntry) -> None:
        if self.opened.attested:
            raise BudgetError("an accountant of attestations has nothing to delegate")
        if self.plan is not None:
            raise BudgetError("a plan is exhaustive: its items are the components' budgets")
        if entry.allowance in self.allowances:
            raise BudgetError(f"allowance {entry.allowance} was delegated before")
        users = self._whole_ranges(_range(entry.users))
        budget = self._currency(entry.budget)
        if budget.is_zero:
            raise BudgetError(f"allowance {entry.label!r}: {budget} can pay for nothing")
        self.ceiling.check(users, budget, _probability("failure", entry.failure))

    def _delegated(self, name: str) -> Allowance:
        allowance = self.allowances.get(name)
        if allowance is None:
            raise BudgetError(f"allowance {name} was never delegated here")
        if allowance.returned:
            raise BudgetError(f"allowance {name} was returned before")
        return allowance

    def _check_spend(self, entry: SpendEntry) -> None:
        account = self._account(entry.token)
        if account.spend is not None or account.outcome is not None:
            raise TokenSpentError(f"token {entry.token} was spent or retired before")
        if entry.users != account.entry.users:
            raise TokenError(f"token {entry.token} was issued for users {account.entry.users}")
        if entry.trust is not self.opened.trust:
            raise BudgetError(
                f"spend under {entry.trust.value} trust: the accountant is "
                f"{self.opened.trust.value}"
            )
        if entry.adjacency is not self.opened.adjacency:
            raise AdjacencyError(
                f"spend for {entry.adjacency.value}: the accountant counts "
                f"{self.opened.adjacency.value}"
            )
        if entry.simulated is not self.opened.simulated:
            raise BudgetError("the spend's noise source is not the accountant's")
        self._check_devices(entry)
        loss = self._own_loss(entry.loss)
        _over(loss, _range(entry.users))
        price, failure = self._price(loss)
        if not account.budget.covers(price):
            raise LossExceedsTokenError(
                f"{entry.mechanism} costs {price}, token {entry.token} holds {account.budget}"
            )
        if failure > account.failure:
            raise LossExceedsTokenError(
                f"{entry.mechanism} fails with probability {exact_text(failure)}, token "
                f"{entry.token} holds {exact_text(account.failure)}"
            )
        if entry.arithmetic == "sum" and (entry.interactive or entry.profile):
            raise BudgetError(
                f"{entry.mechanism}: arithmetic 'sum' is one release of a plain sum, without "
                "a profile"
            )
        if entry.interactive and any(is_bounded_range(part) for part, _ in leaves_of(loss)):
            raise BudgetError(
                f"{entry.mechanism}: bounded range is a statement about one release; state a "
                "stream of them as a PureLoss"
            )
        if entry.interactive and _may_fail(loss):
            raise BudgetError(
                f"{entry.mechanism}: no theorem is known for a stream whose loss holds only apart "
                "from an event; state it as an ApproxLoss"
            )
        if self.plan is not None:
            item = self.plan[cast(int, account.entry.planned)]
            if not _dominates(item.loss, loss):
                raise BudgetError(f"token {entry.token}: its loss is not the planned one")
        self._check_binding(entry, loss)

    def _check_devices(self, entry: SpendEntry) -> None:
        """Noise that several users share is drawn by somebody who sees all their rows."""
        users = _range(entry.users)
        if entry.trust is Trust.LOCAL and entry.arithmetic != "each" and len(users) != 1:
            raise UsersError(
                f"{entry.mechanism} for users = {users!r}: under local trust every user draws "
                "noise alone, so a spend for several of them needs arithmetic = 'each'"
            )

    def _check_binding(self, entry: SpendEntry, loss: Loss) -> None:
        """The noise in the entry must earn the loss in the entry, unless code is trusted for it."""
        if not entry.derived:
            self._check_minimizers(entry, loss)
            return
        earned = _earned(entry)
        if earned is None:
            raise BudgetError(
                f"{entry.mechanism}: its price needs trusted code but does not say so"
            )
        if not _dominates(loss, earned):
            raise BudgetError(
                f"{entry.mechanism}: noise and domain give a loss of {earned.numbers()}, "
                f"more than the stated {loss.numbers()}"
            )

    def _check_minimizers(self, entry: SpendEntry, loss: Loss) -> None:
        """A minimiser's loss is for the tilt that is drawn, and its solver's error is paid for."""
        found = [(part, n) for part, n in leaves_of(loss) if isinstance(part, MinimizerLoss)]
        if not found:
            return
        part, count = found[0]
        if len(found) > 1 or count > 1:
            raise BudgetError(f"{entry.mechanism}: one spend releases one minimiser")
        noise = noise_from_dict(entry.noise)
        if not isinstance(noise, GaussianNoise) or noise.std != part.noise_std:
            raise BudgetError(
                f"{entry.mechanism}: the loss is for a tilt of std {part.noise_std!r}, the noise "
                f"is {entry.noise}"
            )
        try:
            ridge, error, blur = (
                float(entry.parameters[name]) for name in ("ridge", "solver_error", "blur_std")
            )
            needed = gaussian_loss(2 * error, blur, entry.adjacency).mu_squared
        except (KeyError, TypeError, ValueError):
            raise BudgetError(
                f"{entry.mechanism}: the parameters must state ridge, solver_error and blur_std, "
                "all > 0"
            ) from None
        if ridge != part.ridge or _gaussian_part(loss) < needed:
            raise BudgetError(
                f"{entry.mechanism}: the loss does not pay for ridge {ridge!r}, solver_error "
                f"{error!r} and blur_std {blur!r}"
            )

    def _check_functions(self, entry: FunctionsEntry) -> None:
        account = self._account(entry.token)
        if account.spend is None or account.outcome is not None:
            state = "unspent" if account.spend is None else "retired"
            raise TokenError(f"token {entry.token} is {state}: no rows are opened for it")
        if known := [name for name in entry.names if name in account.functions]:
            raise LedgerError(f"token {entry.token}: functions {known} were named before")

    def _check_retire(self, entry: RetireEntry) -> None:
        account = self._account(entry.token)
        if account.outcome is not None:
            raise TokenSpentError(f"token {entry.token} was retired before")
        if (entry.outcome == "unused") is not (account.spend is None):
            state = "unspent" if account.spend is None else "spent"
            raise TokenError(f"token {entry.token} is {state}: it cannot end as {entry.outcome}")

    def _check_attest(self, entry: AttestEntry) -> None:
        if not self.opened.attested:
            raise BudgetError(
                "an attestation is no spend: it needs a local accountant with attested=True"
            )
        if entry.adjacency is not self.opened.adjacency:
            raise AdjacencyError(
                f"attestation for {entry.adjacency.value}: the accountant counts "
                f"{self.opened.adjacency.value}"
            )
        loss, users = self._own_loss(entry.loss), self.charged.check(_range(entry.users))
        single, failing = self._price(loss)
        price, failure = single * entry.most_messages, failing * entry.most_messages
        if entry.count > len(users) * entry.most_messages:
            raise BudgetError(
                f"count = {entry.count}: {len(users)} users with at most {entry.most_messages} "
                f"messages each send at most {len(users) * entry.most_messages}"
            )
        if self.plan is not None:
            if entry.planned is None or not 0 <= entry.planned < len(self.plan):
                raise BudgetError(f"attestation {entry.label!r} is not in the committed plan")
            item = self.plan[entry.planned]
            named = (item.label, item.users) == (entry.label, users)
            if not named or not _dominates(item.loss, loss) or item.left < entry.most_messages:
                raise BudgetError(
                    f"attestation {entry.label!r} does not fit plan item {entry.planned}"
                )
            return
        if entry.planned is not None:
            raise BudgetError(f"attestation {entry.label!r} names a plan, but none was committed")
        self.ceiling.check(users, price, failure)

    def _whole_ranges(self, users: range) -> range:
        if self.opened.adjacency is Adjacency.ADD_REMOVE and users != self.users:
            raise AdjacencyError(
                "add-remove shifts every later index: only spends on the whole population "
                f"range({self.users.start}, {self.users.stop}) can be counted, not {users!r}"
            )
        return self.charged.check(users)

    def _account(self, token: str) -> Account:
        if token not in self.accounts:
            if token in self.folded:
                raise TokenSpentError(f"token {token} was retired before")
            raise TokenError(f"token {token} was never issued here")
        return self.accounts[token]

    def _currency(self, data: dict[str, object]) -> Currency:
        budget = _read_budget(data)
        if not isinstance(budget, Currency):
            raise BudgetError(f"{budget} is not a currency")
        self.cap._same_kind(budget)  # raises for another currency
        return budget

    def _own_loss(self, data: dict[str, object]) -> Loss:
        loss = _read_loss(data)
        if loss.adjacency is not self.opened.adjacency:
            raise AdjacencyError(
                f"a loss for {loss.adjacency.value} under an accountant that counts "
                f"{self.opened.adjacency.value}: convert it explicitly"
            )
        return loss

    # Records: the entry has been checked and is durable -------------------------------------------

    def record(self, entry: Entry) -> None:
        """Takes ``entry`` into account."""
        match entry:
            case PlanEntry():
                self._record_plan(entry)
            case IssueEntry():
                self._record_issue(entry)
            case SpendEntry():
                self._record_spend(entry)
            case FunctionsEntry():
                self._account(entry.token).functions.update(dict.fromkeys(entry.names))
            case RetireEntry():
                self._record_retire(entry)
            case AttestEntry():
                self._record_attest(entry)
            case DelegateEntry():
                self._record_delegate(entry)
            case ReturnEntry():
                self._record_return(entry)
            case CloseEntry():
                self.closed = True
            case OpenEntry():
                pass

    def _record_plan(self, entry: PlanEntry) -> None:
        self.plan = []
        for item in entry.items:
            loss, users = loss_from_dict(item.loss), _range(item.users)
            self.plan.append(Planned(item.label, users, loss, item.count, item.count))
            for piece, part in _over(loss, users):
                price, failure = self._price(part)
                self.ceiling.charge(piece, price * item.count, failure * item.count)
                self.committed.update(piece, _adding(part, item.count))

    def _record_issue(self, entry: IssueEntry) -> None:
        failure = _NEVER if entry.failure == "0" else exact("failure", entry.failure)
        account = Account(entry, self._currency(entry.budget), failure)
        self.accounts[entry.token] = account
        if self.plan is None:
            self._paying(account).charge(_range(entry.users), account.budget, account.failure)
        elif entry.planned is not None:
            self.plan[entry.planned].left -= 1

    def _record_delegate(self, entry: DelegateEntry) -> None:
        users, budget = _range(entry.users), self._currency(entry.budget)
        failure = exact("failure", entry.failure)
        self.allowances[entry.allowance] = Allowance(entry, Ceiling.empty(users, budget, failure))
        self.ceiling.charge(users, budget, failure)

    def _record_return(self, entry: ReturnEntry) -> None:
        """What the component's tokens hold stays charged, now to the accountant itself."""
        allowance = self._delegated(entry.allowance)
        allowance.returned = True
        inner = allowance.ceiling
        self.ceiling.release(_range(allowance.entry.users), inner.cap, inner.failure)
        for piece, value in inner.charged.pieces():
            self.ceiling.charge(piece, value, Fraction(0))
        for piece, failed in inner.failing.pieces():
            self.ceiling.charge(piece, self.cap.zero(), failed)

    def _paying(self, account: Account) -> Ceiling:
        """The ceiling that carries a token: its allowance's until that is returned."""
        name = account.entry.allowance
        allowance = None if name is None else self.allowances.get(name)
        return self.ceiling if allowance is None or allowance.returned else allowance.ceiling

    def _record_spend(self, entry: SpendEntry) -> None:
        loss = _read_loss(entry.loss)
        if entry.token in self.folded:  # only in what an audit reads: nothing is reserved for it
            self._charge_again(entry, loss)
            return
        account = self._account(entry.token)
        if account.spend is None and account.outcome is None:
            self.interleaved = self.interleaved or self._running > 0
            self._running += 1
        self.interactive = self.interactive or entry.interactive
        again, account.spend, account.loss = account.spend, entry, loss
        users = _range(entry.users)
        pieces = pieces_of(loss, users)
        for piece, part in pieces:
            self.spent.update(piece, _adding(part, 1))
        if self.plan is not None:
            return
        if len(pieces) == 1 and again is None:
            price, failure = self._price(loss)
            if price.amounts == account.budget.amounts and failure == account.failure:
                return
        # The token may have held more than its one loss; the rest is free again.
        ceiling = self._paying(account)
        ceiling.release(users, account.budget, account.failure)
        for piece, part in pieces:
            ceiling.charge(piece, *self._price(part))

    def _charge_again(self, entry: SpendEntry, loss: Loss) -> None:
        for piece, part in pieces_of(loss, _range(entry.users)):
            self.spent.update(piece, _adding(part, 1))
            if self.plan is None:
                self.ceiling.charge(piece, *self._price(part))

    def _record_retire(self, entry: RetireEntry) -> None:
        account = self._account(entry.token)
        if account.spend is not None and account.outcome is None:
            self._running -= 1
        account.outcome = entry.outcome
        if entry.outcome != "unused":
            return
        if self.plan is None:
            ceiling = self._paying(account)
            ceiling.release(_range(account.entry.users), account.budget, account.failure)
        elif account.entry.planned is not None:
            self.plan[account.entry.planned].left += 1

    def _record_attest(self, entry: AttestEntry) -> None:
        self.attested.append(entry)
        loss, users = loss_from_dict(entry.loss), _range(entry.users)
        self.spent.update(users, _adding(loss, entry.most_messages))
        if self.plan is None:
            price, failure = self._price(loss)
            self.ceiling.charge(users, price * entry.most_messages, failure * entry.most_messages)
        elif entry.planned is not None:
            self.plan[entry.planned].left -= entry.most_messages


def _check_relation(opened: OpenEntry) -> None:
    """What trust and neighbour relation can promise together."""
    if opened.attested and opened.trust is not Trust.LOCAL:
        raise BudgetError(f"attested: clients attest local privacy, not {opened.trust.value}")
    if opened.adjacency is not Adjacency.ADD_REMOVE:
        return
    if opened.trust is Trust.JOINT:
        raise AdjacencyError(
            "adjacency = add-remove: removing a user shifts what everybody behind is served, "
            "so a joint guarantee is for replace-one or zero-out"
        )
    if opened.trust is Trust.LOCAL:
        raise AdjacencyError(
            "adjacency = add-remove: who sends a message is seen to take part, so a local "
            "guarantee is for replace-one or zero-out (the device sends, but for the null record)"
        )


def has_minimizer(loss: Loss) -> bool:
    """Whether an objective perturbation is part of ``loss``."""
    return any(isinstance(part, MinimizerLoss) for part, _ in leaves_of(loss))


def _may_fail(loss: Loss) -> bool:
    return isinstance(loss, FailingLoss) or any(_may_fail(part) for part, _ in loss.inner())


def _by_arrival(loss: Loss) -> bool:
    return isinstance(loss, PerArrivalLoss) or any(_by_arrival(part) for part, _ in loss.inner())


def _gaussian_part(loss: Loss) -> Fraction:
    masses = (p.mu_squared * count for p, count in leaves_of(loss) if isinstance(p, GaussianLoss))
    return sum(masses, Fraction(0))


_NEVER = Fraction(0)


def _probability(name: str, text: str) -> Fraction:
    if text == "0":
        return _NEVER
    number = exact(name, text)
    if not 0 <= number < 1:
        raise BudgetError(f"{name} = {text!r}: must lie in [0, 1)")
    return number


def _over(loss: Loss, users: range) -> list[tuple[range, Loss]]:
    try:
        return loss.over(users)
    except ValueError as error:
        raise BudgetError(str(error)) from None


def _earned(entry: SpendEntry) -> Loss | None:
    """The loss that follows from domain, noise and gains; None where only its author knows it."""
    shape = entry.domain, entry.noise, entry.gain, entry.adjacency, entry.profile
    key = {f"{i}{name}": v for i, d in enumerate(shape[:2]) for name, v in d.items()}
    if not entry.profile:
        return _read_earned({**key, "gain": entry.gain, "adjacency": entry.adjacency})
    parts = [
        (n, _read_earned({**key, "gain": gain, "adjacency": entry.adjacency}))
        for n, gain in entry.profile
    ]
    if max(gain for _, gain in entry.profile) > entry.gain or any(p is None for _, p in parts):
        return None
    return PerArrivalLoss([(n, part) for n, part in parts if part is not None])


def _earn(flat: dict[str, Any]) -> Loss | None:
    domain = domain_from_dict({name[1:]: v for name, v in flat.items() if name[0] == "0"})
    noise = noise_from_dict({name[1:]: v for name, v in flat.items() if name[0] == "1"})
    if domain is None or noise is None:
        return None
    reach = domain.sensitivity(flat["adjacency"], noise.norm) * flat["gain"]
    return noise.loss(reach, flat["adjacency"])


_read_earned: _Reader[Loss | None] = _Reader(_earn)


def _adding(loss: Loss, count: int) -> Callable[[Tally], Tally]:
    def change(tally: Tally) -> Tally:
        tally[loss] = tally.get(loss, 0) + count
        return tally

    return change


def _dominates(stated: Loss, actual: Loss) -> bool:
    """Whether ``stated`` is provably at least as large as ``actual`` at every order."""
    if stated == actual:
        return True
    if _by_arrival(stated):
        return False  # its bounds are those of its dearest users
    if isinstance(stated, LaplaceLoss | BoundedRangeLoss) and isinstance(actual, type(stated)):
        return actual.epsilon <= stated.epsilon
    mass, actual_mass = stated.gaussian(), actual.gaussian()
    return mass is not None and actual_mass is not None and actual_mass <= mass


def pieces_of(loss: Loss, users: range) -> list[tuple[range, Loss]]:
    """What each of the users pays; everybody the most where the loss is not for so many.

    The second is only in what an audit reads.
    """
    try:
        return loss.over(users)
    except ValueError:
        return [(users, loss)]


def composed(pieces: Iterable[tuple[range, Tally]]) -> list[tuple[range, Loss | None]]:
    """The composition for each range of users; equal tallies are composed once."""
    known: dict[tuple[tuple[int, int], ...], Loss | None] = {}
    found = []
    for users, tally in pieces:
        key = tuple([(id(loss), count) for loss, count in tally.items()])
        if key not in known:
            known[key] = total(tally)
        found.append((users, known[key]))
    return found


def total(tally: Tally) -> Loss | None:
    """The composition of a tally; None when it is empty."""
    return compose(list(tally.items())) if tally else None
