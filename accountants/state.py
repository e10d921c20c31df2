"""The state of one accountant as a fold over its ledger entries.

The live accountant checks an entry, makes it durable and then records it here; an auditor feeds the
entries of a file through the same two steps.  So what is enforced is what is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast, final

from privlearn._validate import user_range
from privlearn.accountants.ceiling import ByUser
from privlearn.adjacency import Adjacency
from privlearn.budgets import ApproxDP, Currency, budget_from_dict
from privlearn.domains import domain_from_dict
from privlearn.entries import (
    CloseEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    PlanEntry,
    RetireEntry,
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
)
from privlearn.losses import (
    BoundedRange,
    Composed,
    Gaussian,
    Laplace,
    Loss,
    compose,
    gaussian_loss,
    loss_from_dict,
)
from privlearn.noise import GaussianNoise, noise_from_dict
from privlearn.objective_loss import MinimizerLoss

Tally = dict[Loss, int]
"""Losses with multiplicities."""


def _range(users: tuple[int, int]) -> range:
    return range(*users)


@dataclass(slots=True)
class Account:
    """One token's history."""

    entry: IssueEntry
    budget: Currency
    spend: SpendEntry | None = None
    loss: Loss | None = None
    outcome: str | None = None


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
        cap = budget_from_dict(opened.cap)
        if not isinstance(cap, Currency) or cap.is_zero:
            raise BudgetError(f"cap {cap}: must be a currency above zero")
        promise = None if opened.promise is None else budget_from_dict(opened.promise)
        if promise is not None and not isinstance(promise, ApproxDP):
            raise BudgetError(f"promise {promise}: must be an (ε, δ) budget")
        self.opened = opened
        self.cap = cap
        self.promise = promise
        self.users = user_range(users=_range(opened.users))
        self.charged: ByUser[Currency] = ByUser(self.users, cap.zero(), lambda value: value)
        self.spent: ByUser[Tally] = ByUser(self.users, {}, dict)
        self.committed: ByUser[Tally] = ByUser(self.users, {}, dict)
        self.plan: list[Planned] | None = None
        self.accounts: dict[str, Account] = {}
        self.closed = False

    # What is left -------------------------------------------------------------------------------

    def charged_to(self, users: range) -> Currency:
        """The largest charge on any of the users, amount by amount."""
        pieces = [value for _, value in self.charged.pieces(users)]
        amounts = zip(*(value.amounts for value in pieces), strict=True)
        return pieces[0]._with(tuple(max(column) for column in amounts))

    def outstanding(self) -> list[Account]:
        """Tokens without a recorded end."""
        return [account for account in self.accounts.values() if account.outcome is None]

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
            case RetireEntry():
                self._check_retire(entry)
            case CloseEntry():
                if self.outstanding():
                    raise LedgerError("tokens without an end: retire them before closing")
            case OpenEntry():
                raise LedgerError(f"accountant {entry.accountant!r} was opened before")

    def _check_plan(self, entry: PlanEntry) -> None:
        if self.plan is not None or self.accounts:
            raise BudgetError("a plan is committed once, before the first token")
        trial: ByUser[Currency] = ByUser(self.users, self.cap.zero(), lambda value: value)
        for item in entry.items:
            loss = self._own_loss(item.loss)
            users = self._whole_ranges(_range(item.users))
            price = self.cap.price(loss) * item.count
            trial.update(users, lambda value, price=price: value + price)  # type: ignore[misc]
        for users, total in trial.pieces():
            if not self.cap.covers(total):
                raise InsufficientBudgetError(
                    spent=self.cap.zero(), requested=total, remaining=self.cap, users=users
                )

    def _check_issue(self, entry: IssueEntry) -> None:
        if entry.token in self.accounts:
            raise TokenError(f"token {entry.token} was issued before")
        users = self._whole_ranges(_range(entry.users))
        budget = self._currency(entry.budget)
        if budget.is_zero:
            raise BudgetError(f"token {entry.label!r}: a budget of {budget} can pay for nothing")
        if self.plan is not None:
            if entry.planned is None or not 0 <= entry.planned < len(self.plan):
                raise BudgetError(f"token {entry.token} is not in the committed plan")
            item = self.plan[entry.planned]
            if not item.left or item.users != users or item.label != entry.label:
                raise BudgetError(f"token {entry.token} does not match plan item {entry.planned}")
            if not self.cap.price(item.loss).covers(budget):
                raise BudgetError(f"token {entry.token} holds more than plan item {entry.planned}")
            return
        if entry.planned is not None:
            raise BudgetError(f"token {entry.token} names a plan, but none was committed")
        for piece, value in self.charged.pieces(users):
            if not self.cap.covers(value + budget):
                raise InsufficientBudgetError(
                    spent=value, requested=budget, remaining=self.cap - value, users=piece
                )

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
        loss = self._own_loss(entry.loss)
        price = self.cap.price(loss)
        if not account.budget.covers(price):
            raise LossExceedsTokenError(
                f"{entry.mechanism} costs {price}, token {entry.token} holds {account.budget}"
            )
        if self.plan is not None:
            item = self.plan[cast(int, account.entry.planned)]
            if not _dominates(item.loss, loss):
                raise BudgetError(f"token {entry.token}: its loss is not the planned one")
        self._check_binding(entry, loss)

    def _check_binding(self, entry: SpendEntry, loss: Loss) -> None:
        """The noise in the entry must earn the loss in the entry, unless code is trusted for it."""
        if not entry.derived:
            self._check_minimizers(entry, loss)
            return
        domain, noise = domain_from_dict(entry.domain), noise_from_dict(entry.noise)
        if domain is None or noise is None:
            raise BudgetError(
                f"{entry.mechanism}: its price needs trusted code but does not say so"
            )
        reach = domain.sensitivity(entry.adjacency, noise.norm) * entry.gain
        earned = noise.loss(reach, entry.adjacency)
        if not _dominates(loss, earned):
            raise BudgetError(
                f"{entry.mechanism}: noise and domain give a loss of {earned.numbers()}, "
                f"more than the stated {loss.numbers()}"
            )

    def _check_minimizers(self, entry: SpendEntry, loss: Loss) -> None:
        """A minimiser's loss is for the tilt that is drawn, and its solver's error is paid for."""
        found = [(part, n) for part, n in _counted(loss) if isinstance(part, MinimizerLoss)]
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

    def _check_retire(self, entry: RetireEntry) -> None:
        account = self._account(entry.token)
        if account.outcome is not None:
            raise TokenSpentError(f"token {entry.token} was retired before")
        if (entry.outcome == "unused") is not (account.spend is None):
            state = "unspent" if account.spend is None else "spent"
            raise TokenError(f"token {entry.token} is {state}: it cannot end as {entry.outcome}")

    def _whole_ranges(self, users: range) -> range:
        if self.opened.adjacency is Adjacency.ADD_REMOVE and users != self.users:
            raise AdjacencyError(
                "add-remove shifts every later index: only spends on the whole population "
                f"range({self.users.start}, {self.users.stop}) can be counted, not {users!r}"
            )
        return self.charged.check(users)

    def _account(self, token: str) -> Account:
        if token not in self.accounts:
            raise TokenError(f"token {token} was never issued here")
        return self.accounts[token]

    def _currency(self, data: dict[str, object]) -> Currency:
        budget = budget_from_dict(data)
        if not isinstance(budget, Currency):
            raise BudgetError(f"{budget} is not a currency")
        self.cap.covers(budget)  # raises for another currency
        return budget

    def _own_loss(self, data: dict[str, object]) -> Loss:
        loss = loss_from_dict(data)
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
            case RetireEntry():
                self._record_retire(entry)
            case CloseEntry():
                self.closed = True
            case OpenEntry():
                pass

    def _record_plan(self, entry: PlanEntry) -> None:
        self.plan = []
        for item in entry.items:
            loss, users = loss_from_dict(item.loss), _range(item.users)
            self.plan.append(Planned(item.label, users, loss, item.count, item.count))
            self._charge(users, self.cap.price(loss) * item.count)
            self.committed.update(users, _adding(loss, item.count))

    def _record_issue(self, entry: IssueEntry) -> None:
        account = Account(entry, self._currency(entry.budget))
        self.accounts[entry.token] = account
        if self.plan is None:
            self._charge(_range(entry.users), account.budget)
        elif entry.planned is not None:
            self.plan[entry.planned].left -= 1

    def _record_spend(self, entry: SpendEntry) -> None:
        account, loss = self._account(entry.token), loss_from_dict(entry.loss)
        account.spend, account.loss = entry, loss
        users = _range(entry.users)
        self.spent.update(users, _adding(loss, 1))
        if self.plan is None:
            # The token may have held more than its one loss; the rest is free again.
            self._release(users, account.budget)
            self._charge(users, self.cap.price(loss))

    def _record_retire(self, entry: RetireEntry) -> None:
        account = self._account(entry.token)
        account.outcome = entry.outcome
        if entry.outcome != "unused":
            return
        if self.plan is None:
            self._release(_range(account.entry.users), account.budget)
        elif account.entry.planned is not None:
            self.plan[account.entry.planned].left += 1

    def _charge(self, users: range, amount: Currency) -> None:
        self.charged.update(users, lambda value: value + amount)

    def _release(self, users: range, amount: Currency) -> None:
        self.charged.update(users, lambda value: value - amount)


def has_minimizer(loss: Loss) -> bool:
    """Whether an objective perturbation is part of ``loss``."""
    return any(isinstance(part, MinimizerLoss) for part, _ in _counted(loss))


def _counted(loss: Loss) -> Sequence[tuple[Loss, int]]:
    return loss.parts if isinstance(loss, Composed) else ((loss, 1),)


def _gaussian_part(loss: Loss) -> Fraction:
    masses = (p.mu_squared * count for p, count in _counted(loss) if isinstance(p, Gaussian))
    return sum(masses, Fraction(0))


def _adding(loss: Loss, count: int) -> Callable[[Tally], Tally]:
    def change(tally: Tally) -> Tally:
        tally[loss] = tally.get(loss, 0) + count
        return tally

    return change


def _dominates(stated: Loss, actual: Loss) -> bool:
    """Whether ``stated`` is provably at least as large as ``actual`` at every order."""
    if stated == actual:
        return True
    if isinstance(stated, Laplace | BoundedRange) and isinstance(actual, type(stated)):
        return actual.epsilon <= stated.epsilon
    mass, actual_mass = stated.gaussian(), actual.gaussian()
    return mass is not None and actual_mass is not None and actual_mass <= mass


def total(tally: Tally) -> Loss | None:
    """The composition of a tally; None when it is empty."""
    return compose(list(tally.items())) if tally else None
