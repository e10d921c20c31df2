"""The state of one accountant as a fold over its ledger entries.

The live accountant checks an entry, makes it durable and then records it here; an auditor feeds the
entries of a file through the same two steps.  So what is enforced is what is verified.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar, final

from privlearn.accountants.ceilings import Allowance, Ceiling
from privlearn.accountants.earned_losses import SpendForm, form_of
from privlearn.accountants.exact_spends import check_exact
from privlearn.accountants.leased_spends import is_lease, runs_of
from privlearn.accountants.loss_structure import by_arrival, dominates, may_fail, over, pieces_of
from privlearn.accountants.opening_checks import (
    check_relation,
    is_resumable,
    probability,
    read_promise,
    rule_of,
)
from privlearn.accountants.persons import Visits, check_starts
from privlearn.accountants.planned import Planned
from privlearn.accountants.prices import MOST_ORDERS, LossPrice, Prices
from privlearn.accountants.read_forms import read_loss
from privlearn.accountants.spend_checks import check_binding, check_users
from privlearn.accountants.streams import Stream, ends_early, freed_after, frees, kept_until
from privlearn.accountants.tallies import Tallies
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
from privlearn.ledger.entries import (
    PARTICIPATION,
    RESUME,
    SHA256,
    AttestEntry,
    BatchesEntry,
    CloseEntry,
    DelegateEntry,
    Entry,
    FunctionsEntry,
    IssueEntry,
    LearnerEntry,
    OpenEntry,
    PlanEntry,
    PublishEntry,
    ReachEntry,
    ResumeEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
    SumsEntry,
    Users,
)
from privlearn.losses import (
    BoundedRangeLoss,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    PureLoss,
    ZCDPLoss,
    each_visit,
    has_visits,
    is_bounded_range,
    leaves_of,
    loss_from_dict,
)
from privlearn.losses.budgets import ApproxDP, Currency, budget_from_dict
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import exact, exact_text
from privlearn.values.validate import user_range

T = TypeVar("T")
_NEVER = Fraction(0)
_LONGEST_FORM = 4096
_MOST_SEEN = 1024


def _range(users: tuple[int, int]) -> range:
    return range(*users)


@dataclass(slots=True)
class Summed:
    """How far a server came with the messages of one label."""

    entries: int
    upto: int
    heard: int


@dataclass(slots=True)
class Account:
    """One token's history; of its issue only what is still needed, as an audit may hold many."""

    token: str
    label: str
    users: Users
    planned: int | None
    allowance: str | None
    budget: Currency
    failure: Fraction
    spend: SpendEntry | None = None
    """Of a token that has ended, one of the same mechanism: its own stands in the ledger."""
    loss: Loss | None = None
    outcome: str | None = None
    held: bool = True
    """Whether its budget is charged; not once the loss or nothing is charged instead."""
    shared: bool = False
    """Whether it is for a loss that `AccountState.shares` holds of."""
    functions: dict[str, None] | None = None
    """Names of user code that its rows passed through, in the order in which they came."""
    upto: int = 0
    """One past the last user whose row was open when a value left."""
    stream: Stream | None = None
    """What is known of a stream that is charged as far as it came, once it has ended."""
    wrong: bool = False
    """Whether an entry of it did not check, so that nothing of what it is charged becomes free."""
    past: None = None
    """Nothing that it released in another process leaves again."""


_GOOD: dict[Adjacency, dict[SpendForm, Loss]] = {relation: {} for relation in Adjacency}
"""Spends of any account that were found right, apart from their tokens and users."""


def _before(account: Account) -> str:
    """What the ledger says of a token that can be spent, or ended, no more."""
    match account.outcome:
        case None:
            return "was spent before: it stays charged; whether anything left is not known here"
        case "unused":
            return (
                "was retired before, unspent and free of charge: by its own process, or by another "
                "one when the connection of that was cut; issue another token"
            )
        case "lost":
            return (
                "was spent and then retired before, its outcome lost: it stays charged, and "
                "nothing more is released for it; issue another token"
            )
        case outcome:
            return f"was spent and then retired before, as {outcome}: it stays charged"


@final
class AccountState:
    """Everything that follows from one accountant's entries so far."""

    def __init__(self, opened: OpenEntry) -> None:
        check_relation(opened)
        cap = budget_from_dict(opened.cap)
        if not isinstance(cap, Currency) or cap.is_zero:
            raise BudgetError(f"cap {cap}: must be a currency above zero")
        if len(cap.amounts) > MOST_ORDERS:
            raise BudgetError(
                f"cap at {len(cap.amounts)} orders: at most {MOST_ORDERS} are counted"
            )
        promise = None if opened.promise is None else read_promise(opened.promise)
        if promise is not None and not isinstance(promise, ApproxDP):
            raise BudgetError(f"promise {promise}: must be an (ε, δ) budget")
        self.opened = opened
        self.number = 1  # among the accountants of its ledger
        self.prices = Prices(cap)
        self.functions_named = True
        """Whether user code that rows pass through is named; not in format 1."""
        self.cap = cap
        self.failure = probability("failure", opened.failure)
        self.odometer: Fraction | None = None
        if opened.odometer is not None:
            self.odometer = probability("odometer", opened.odometer)
            if not self.odometer:
                raise BudgetError("odometer = 0: its δ must be above zero")
            if self.odometer + self.failure >= 1:
                raise BudgetError("odometer and failure: their δ must add up to less than 1")
        self.promise = promise
        self.users = user_range(users=_range(opened.users))
        rule = rule_of(opened)
        self.visits = None if rule is None else Visits(rule, self.users)
        """The rule under which a person may come back; without one a person is an index."""
        self._of_person: dict[tuple[Loss, int], Loss] = {}
        self.runs_committed: Counter[tuple[int, int, Loss]] = Counter()
        self.runs_spent: Counter[tuple[int, int, Loss]] = Counter()
        """With a rule: losses of one row by the ranges of slots that they are on."""
        self.admitted = self.users.start
        """The next slot of the registry of persons, as far as entries say."""
        self.ceiling = Ceiling(self.users, cap, self.failure, self.visits)
        self.spent: Tallies[Loss] = Tallies(self.users)
        self.committed: Tallies[Loss] = Tallies(self.users)
        self.plan: list[Planned] | None = None
        self._planned: dict[tuple[str, range], list[int]] = {}
        self.accounts: dict[str, Account] = {}
        self._of_mechanism: dict[str, SpendEntry] = {}
        """The first spend of each mechanism that ended, which stands for all of them."""
        self.folded: set[str] = set()
        """Tokens that ended and whose history was dropped, by `fold`."""
        self.allowances: dict[str, Allowance] = {}
        self.interactive = self.interleaved = False
        self._running = 0
        self._good = _GOOD[opened.adjacency]
        self._last_spend: tuple[SpendEntry, Loss] | None = None
        self.attested: list[AttestEntry] = []
        self.summed: dict[str, Summed] = {}
        """What a server made of messages, by their label."""
        self.resumable = is_resumable(opened)
        """Whether streams say how far they come, and are charged no further."""
        self.learner: LearnerEntry | None = None
        self.unknown_heads = 0
        """How often it was gone on with without a head to compare the ledger with."""
        self.closed = False

    # What is left -------------------------------------------------------------------------------

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

    def of_person(self, loss: Loss, users: range) -> Loss:
        """The loss of one person with all visits in a range; of one row without a rule.

        Under local trust each message has noise of its own, so that losses add up.

        Raises:
            BudgetError: no such loss is known, or the range cuts a batch of the rule.
        """
        if self.visits is None:
            return loss
        rule, most = self.visits.rule, self.visits.most(users)
        found = self._of_person.get((loss, most))
        if found is None:
            if by_arrival(loss):
                raise BudgetError(
                    "a loss by arrival under a rule of participation: it is not known which of its "
                    "slots are one person's; state one loss for all"
                )
            try:
                local = self.opened.trust is Trust.LOCAL
                found = each_visit(loss, most) if local else loss.for_visits(most, rule.apart)
            except ValueError as error:
                raise BudgetError(str(error)) from None
            if len(self._of_person) >= _MOST_SEEN:
                self._of_person.clear()
            self._of_person[loss, most] = found
        return found

    def price_of_person(self, loss: Loss, users: range) -> LossPrice:
        """What a loss costs here for one person with all visits in a range.

        Raises:
            CurrencyError, BudgetError: as `Prices.of` and `of_person`.
        """
        return self.prices.of(loss if self.visits is None else self.of_person(loss, users))

    def shares(self, loss: Loss) -> bool:
        """Whether r of m visits cost at most r/m of the loss of m."""
        if self.visits is None:
            return False
        if self.opened.trust is Trust.LOCAL:
            return True
        # at a Rényi order that is not proved of a bounded range
        kinds = _GROWING if not self.prices.orders else _GROWING[:-1]
        grows = all(isinstance(part, kinds) for part, _ in leaves_of(loss))
        return grows and not has_visits(loss)

    def users_of(self, account: Account) -> range:
        """Whom a token is, or may still be, charged to: of a stream that ended, whom it reached."""
        start, stop = account.users
        return range(start, stop if account.stream is None else account.stream.paid)

    def planned_for(self, label: str, users: range, loss: Loss) -> int | None:
        """Position of the plan item that a new token can use, if there is a plan.

        Raises:
            BudgetError: there is a plan, and no item of it is left for this token.
            UsersError: some of the users are not the accountant's.
        """
        if self.plan is None:
            return None
        for position in self._planned.get((label, users), []):
            item = self.plan[position]
            if item.left and self._dominates(item.loss, loss, users):
                return position
        for position, item in enumerate(self.plan):
            rest = item.label == label and item.has(users)
            if rest and self._dominates(item.loss, loss, users):
                return position
        self.ceiling.charged.check(users)
        raise BudgetError(
            f"token {label!r} for users {users!r} is not (or no longer) in the committed plan; "
            "a plan is exhaustive: commit one that names it"
        )

    def check_asked(self, rounds: int = 1, user: object = None) -> None:
        """Raises BudgetError for what is asked of single rows, and not of a person."""
        if self.visits is None:
            return
        rule = self.visits.rule
        if rounds != 1:
            raise BudgetError(
                f"rounds = {rounds}: under {rule} the guarantee is that of a person with all "
                "visits, so group privacy of rows is paid for already; leave rounds out"
            )
        if user is not None:
            raise BudgetError(
                f"user = {user}: under {rule} an index is a slot, and no person; who stands at it, "
                "and where else, is sealed, and the guarantee is every person's; leave user out"
            )

    # Checks: nothing is changed, and what is wrong is raised --------------------------------------

    def check(self, entry: Entry) -> None:
        """Raises what is wrong with ``entry`` as the next one; changes nothing."""
        if self.closed:
            raise LedgerClosedError("the accountant is closed: no entry may follow")
        before = self.prices.denominator
        try:
            self._check_clock(entry)
            _CHECKS[entry.__class__](self, entry)
        except BaseException:
            self.prices.forget(before)
            raise

    def _check_clock(self, entry: Entry) -> None:
        """The registry of persons goes on; one that goes back is an older one, or another."""
        data = entry.__dict__.get("admitted")  # few have it, and a model looks long for it
        if data is None:
            if self.visits is not None and isinstance(entry, SpendEntry):
                raise BudgetError(
                    f"a spend without data of {PARTICIPATION!r}: must state the clock of the "
                    "registry of persons, by which an older copy of it is told"
                )
            return
        clock = data.get("clock")
        within = type(clock) is int and self.users.start <= clock <= self.users.stop
        if self.visits is None or set(data) != {"clock"} or not within:
            raise BudgetError(
                f"data of {PARTICIPATION!r}: must be the clock of the registry of persons, one of "
                f"the slots {self.users.start} to {self.users.stop}, under a rule of participation"
            )
        if clock < self.admitted:
            raise BudgetError(
                f"the registry of persons is at slot {clock}, and was at {self.admitted}: an older "
                "copy of it, or another one, which forgets visits that were learned"
            )

    def _check_close(self, _: CloseEntry) -> None:
        if self.outstanding():
            raise LedgerError("tokens without an end: retire them before closing")
        if self.delegated():
            raise LedgerError("allowances that were not returned: return them first")

    def _check_open(self, entry: OpenEntry) -> None:
        raise LedgerError(f"accountant {entry.accountant!r} was opened before")

    def _check_return(self, entry: ReturnEntry) -> None:
        self._delegated(entry.allowance)

    def _check_plan(self, entry: PlanEntry) -> None:
        begun = self.accounts or self.folded or self.attested or self.allowances
        if self.plan is not None or begun:
            raise BudgetError("a plan is committed once, before the first token")
        trial = Ceiling(self.users, self.cap, self.failure, self.visits)
        for item in entry.items:
            loss = self._own_loss(item.loss)
            users = self._whole_ranges(_range(item.users))
            self.of_person(loss, users)  # raises where only its parts have a price
            self._charge_item(trial, loss, users, item.count)
        if self.visits is not None:
            self._check_persons(trial)
            return
        none = Ceiling(self.users, self.cap, self.failure)
        for users, total in trial.pieces():
            none.check(users, total, _NEVER)
        for users, failure in trial.failures():
            none.check(users, self.cap.zero(), failure)

    def _charge_item(self, ceiling: Ceiling, loss: Loss, users: range, count: int) -> None:
        """Charges ``count`` runs of a planned loss."""
        for piece, part in over(loss, users):
            price = self.price_of_person(part, piece)
            shared = self.shares(part)
            ceiling.charge(piece, price.budget * count, price.failure * count, shared=shared)

    def _check_persons(self, trial: Ceiling) -> None:
        """Raises InsufficientBudgetError unless a whole plan fits for every person."""
        if not trial.fits():
            raise InsufficientBudgetError(
                spent=self.cap.zero(),
                requested=trial.largest(),
                remaining=self.cap,
                users=self.users,
            )

    def _check_batches(self, entry: BatchesEntry) -> None:
        if self.visits is None or not self.visits.rule.batched:
            raise BudgetError(
                "batches are declared for a rule that counts within them: Participation with "
                "pooled=True or per_batch"
            )
        if self.visits.starts:
            raise BudgetError("batches are declared once")
        if self.begun:
            raise BudgetError("batches are declared before the plan and the first token")
        check_starts(entry.starts, self.users)

    @property
    def begun(self) -> bool:
        """Whether there is a plan, or was a token."""
        return bool(self.accounts or self.folded) or self.plan is not None

    def _check_issue(self, entry: IssueEntry) -> None:
        if entry.token in self.accounts or entry.token in self.folded:
            raise TokenError(f"token {entry.token} was issued before")
        if self.opened.attested:
            raise BudgetError("an accountant of attestations issues no tokens: open a second one")
        users = self._whole_ranges(_range(entry.users))
        budget = self.prices.currency(entry.budget)
        failure = self._failing(entry.failure)
        self._check_shared(entry)
        if self.plan is not None and entry.allowance is not None:
            raise BudgetError(f"token {entry.token}: no allowance can stand beside a plan")
        if not all(budget.amounts):
            raise BudgetError(f"token {entry.label!r}: a budget of {budget} can pay for nothing")
        if self.plan is not None:
            item = self._item(entry.planned)
            if item is None:
                raise BudgetError(f"token {entry.token} is not in the committed plan")
            if not item.has(users) or item.label != entry.label:
                raise BudgetError(f"token {entry.token} does not match plan item {entry.planned}")
            price = self.price_of_person(item.loss, users)
            more = price.budget is not budget and not price.budget.covers(budget)
            if more or price.failure < failure:
                raise BudgetError(f"token {entry.token} holds more than plan item {entry.planned}")
            return
        if entry.planned is not None:
            raise BudgetError(f"token {entry.token} names a plan, but none was committed")
        ceiling = self.ceiling
        if entry.allowance is not None:
            ceiling = self._delegated(entry.allowance).ceiling
            ceiling.charged.check(users)
        ceiling.check(users, budget, failure, shared=entry.shared is not None)

    def _check_shared(self, entry: IssueEntry) -> None:
        if entry.shared is None:
            return
        if self.visits is None or self.plan is not None:
            raise BudgetError(
                f"token {entry.token}: data of {PARTICIPATION!r} are for tokens without a plan, "
                "under a rule of participation"
            )
        if entry.shared:
            raise BudgetError(
                f"token {entry.token}: data of {PARTICIPATION!r} are {entry.shared!r:.80}: must be "
                "an object with no name in it"
            )

    def _check_delegate(self, entry: DelegateEntry) -> None:
        if self.opened.attested:
            raise BudgetError("an accountant of attestations has nothing to delegate")
        if self.plan is not None:
            raise BudgetError("a plan is exhaustive: its items are the components' budgets")
        if self.visits is not None:
            raise BudgetError(
                "under a rule of participation nothing is delegated: open an accountant of its own "
                "for the component, and add the two up"
            )
        if entry.allowance in self.allowances:
            raise BudgetError(f"allowance {entry.allowance} was delegated before")
        users = self._whole_ranges(_range(entry.users))
        budget = self.prices.currency(entry.budget)
        if budget.is_zero:
            raise BudgetError(f"allowance {entry.label!r}: {budget} can pay for nothing")
        self.ceiling.check(users, budget, self._failing(entry.failure))

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
            raise TokenSpentError(f"token {entry.token} {_before(account)}")
        if entry.users != account.users:
            raise TokenError(f"token {entry.token} was issued for users {account.users}")
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
        check_users(self.visits, entry)
        runs = runs_of(entry)
        clock = (entry.admitted or {}).get("clock", entry.users[1])
        if is_lease(entry) and clock < entry.users[1]:
            raise BudgetError(
                f"{entry.mechanism}: a lease of slots up to {entry.users[1] - 1}, and the registry "
                f"of persons is at slot {clock}: its runs do not say what else was admitted"
            )
        form = form_of(entry)
        known = self._good.get(form)
        if known is not None:  # all was right with it before, whosever token that was
            self._check_holds(account, entry, known)
            self._check_planned(account, entry, known)
            self._last_spend = entry, known
            return
        loss = self._own_loss(entry.loss)
        over(loss, _range(entry.users))
        self._check_holds(account, entry, loss)
        if entry.arithmetic == "sum" and (entry.interactive or entry.profile or has_visits(loss)):
            raise BudgetError(
                f"{entry.mechanism}: arithmetic 'sum' is one release of a plain sum, without "
                "a profile, and its loss that of one row"
            )
        if entry.interactive and any(is_bounded_range(part) for part, _ in leaves_of(loss)):
            raise BudgetError(
                f"{entry.mechanism}: bounded range is a statement about one release; state a "
                "stream of them as a PureLoss"
            )
        if entry.interactive and may_fail(loss):
            raise BudgetError(
                f"{entry.mechanism}: no theorem is known for a stream whose loss holds only apart "
                "from an event; state it as an ApproxLoss"
            )
        self._check_planned(account, entry, loss)
        check_binding(entry, loss, runs)
        if entry.arithmetic == "sum" and entry.gain != 1:
            raise BudgetError(f"{entry.mechanism}: the gain of a plain sum is 1, not {entry.gain}")
        check_exact(entry)
        if len(form[0]) <= _LONGEST_FORM and not by_arrival(loss):
            if len(self._good) >= 4096:
                self._good.clear()
            self._good[form] = loss
        self._last_spend = entry, loss

    def _check_holds(self, account: Account, entry: SpendEntry, loss: Loss) -> None:
        """The token must hold what the loss costs."""
        price = self.price_of_person(loss, _range(account.users))
        failure = price.failure
        held = account.budget
        if held is not price.budget and not held.covers(price.budget):
            raise LossExceedsTokenError(
                f"{entry.mechanism} costs {price.budget}, token {entry.token} holds {held}"
            )
        if account.shared and not self.shares(loss):
            raise LossExceedsTokenError(
                f"{entry.mechanism}: token {entry.token} is for a loss that grows with a person's "
                f"visits, which {loss.kind!r} is not known to do; issue a token for this loss"
            )
        if failure and failure > account.failure:
            raise LossExceedsTokenError(
                f"{entry.mechanism} fails with probability {exact_text(failure)}, token "
                f"{entry.token} holds {exact_text(account.failure)}"
            )

    @staticmethod
    def _holds(account: Account, price: LossPrice) -> bool:
        return account.budget.covers(price.budget) and price.failure <= account.failure

    def _check_planned(self, account: Account, entry: SpendEntry, loss: Loss) -> None:
        if self.plan is None:
            return
        item = self._item(account.planned)
        if item is None:
            raise BudgetError(f"token {entry.token} is not in the committed plan")
        if not self._dominates(item.loss, loss, item.users):
            raise BudgetError(f"token {entry.token}: its loss is not the planned one")

    def _dominates(self, stated: Loss, actual: Loss, users: range) -> bool:
        """Whether ``stated`` is provably at least ``actual``, for all visits of a person."""
        if stated is actual or stated == actual:
            return True
        if self.shares(stated) and not self.shares(actual):
            return False  # of r visits it may cost more than r/m of what m cost
        return dominates(self.of_person(stated, users), self.of_person(actual, users))

    def _check_learner(self, entry: LearnerEntry) -> None:
        self._check_resumable(entry.entry)
        if self.learner is not None:
            raise BudgetError(f"a second learner {entry.name!r}: an account has one")
        if self.begun:
            raise BudgetError("a learner is named before the plan and the first token")

    def _check_resume(self, entry: ResumeEntry) -> None:
        self._check_resumable(entry.entry)

    def _check_resumable(self, kind: str) -> None:
        if not self.resumable:
            raise BudgetError(f"an entry {kind!r}: {RESUME!r} was not declared when it was opened")

    def _running_account(self, entry: ReachEntry | PublishEntry) -> Account:
        self._check_resumable(entry.entry)
        account = self._account(entry.token)
        if account.spend is None or account.outcome is not None:
            state = "unspent" if account.spend is None else "retired"
            raise TokenError(f"token {entry.token} is {state}: no rows are opened for it")
        return account

    def _check_reach(self, entry: ReachEntry) -> None:
        account = self._running_account(entry)
        if account.stream is None:
            raise TokenError(f"token {entry.token} is charged whole: it has no reach")
        before = account.stream.reach
        if not before < entry.stop <= account.users[1]:
            raise UsersError(
                f"token {entry.token}: reach {entry.stop} after {before}, of users {account.users}"
            )

    def _check_publish(self, entry: PublishEntry) -> None:
        self._check_upto(self._running_account(entry), entry.upto)

    def _check_upto(self, account: Account, upto: object) -> None:
        """Rows that a value is made of must have been within the reach when they were opened."""
        start, stop = account.users
        most = stop if account.stream is None else account.stream.reach
        if type(upto) is not int or not max(account.upto, start) <= upto <= most:
            raise UsersError(
                f"token {account.token}: a value with rows up to {upto!r}; must lie in "
                f"{max(account.upto, start)}..{most}"
            )

    def _check_functions(self, entry: FunctionsEntry) -> None:
        account = self._account(entry.token)
        if account.spend is None or account.outcome is not None:
            state = "unspent" if account.spend is None else "retired"
            raise TokenError(f"token {entry.token} is {state}: no rows are opened for it")
        if known := [name for name in entry.names if name in (account.functions or ())]:
            raise LedgerError(f"token {entry.token}: functions {known} were named before")

    def _check_retire(self, entry: RetireEntry) -> None:
        account = self._account(entry.token)
        if account.outcome is not None:
            raise TokenSpentError(f"token {entry.token} {_before(account)}")
        if (entry.outcome == "unused") is not (account.spend is None):
            state = "unspent" if account.spend is None else "spent"
            raise TokenError(f"token {entry.token} is {state}: it cannot end as {entry.outcome}")
        if entry.value is None:
            return
        self._check_resumable("value")
        said = entry.value
        if set(said) != {"digest", "upto"} or not re.fullmatch(SHA256, str(said["digest"])):
            raise LedgerError(f"token {entry.token}: data of {RESUME!r} must be digest and upto")
        if entry.outcome not in ("released", "uncovered"):
            raise LedgerError(f"token {entry.token}: it ended {entry.outcome}, with a value")
        self._check_upto(account, said["upto"])

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
        loss, users = self._own_loss(entry.loss), self.ceiling.charged.check(_range(entry.users))
        one, most = self.prices.of(loss), entry.most_messages
        if entry.count > len(users) * entry.most_messages:
            raise BudgetError(
                f"count = {entry.count}: {len(users)} users with at most {entry.most_messages} "
                f"messages each send at most {len(users) * entry.most_messages}"
            )
        if self.plan is not None:
            item = self._item(entry.planned)
            if item is None:
                raise BudgetError(f"attestation {entry.label!r} is not in the committed plan")
            named = (item.label, item.users) == (entry.label, users)
            if not named or not dominates(item.loss, loss) or item.left < entry.most_messages:
                raise BudgetError(
                    f"attestation {entry.label!r} does not fit plan item {entry.planned}"
                )
            return
        if entry.planned is not None:
            raise BudgetError(f"attestation {entry.label!r} names a plan, but none was committed")
        self.ceiling.check(users, one.budget * most, one.failure * most)

    def _check_sums(self, entry: SumsEntry) -> None:
        self._check_resumable(entry.entry)
        claims = [claim for claim in self.attested if claim.label == entry.label]
        if not claims:
            raise BudgetError(f"sums of {entry.label!r}: no such messages were attested")
        done = self._summed(entry.label)
        if entry.number != done.entries:
            raise LedgerError(
                f"sums {entry.number} of {entry.label!r}: {done.entries} stand in the ledger; a "
                "batch counts once, and another server took this one (or this server stopped half "
                "way): resume it"
            )
        start, stop = min(c.users[0] for c in claims), max(c.users[1] for c in claims)
        if not max(done.upto, start) <= entry.upto <= stop:
            raise UsersError(
                f"sums of {entry.label!r} up to user {entry.upto}: must lie in "
                f"{max(done.upto, start)}..{stop}"
            )
        most = sum(claim.count for claim in claims)
        if done.heard + entry.heard > most:
            raise BudgetError(
                f"sums of {entry.label!r}: {done.heard + entry.heard} messages, where {most} were "
                "attested"
            )

    def _summed(self, label: str) -> Summed:
        return self.summed.get(label, Summed(0, 0, 0))

    def _item(self, position: int | None) -> Planned | None:
        """The item of the plan at a position; None where there is none, which only audits meet."""
        if self.plan is None or position is None or not 0 <= position < len(self.plan):
            return None
        return self.plan[position]

    def _whole_ranges(self, users: range) -> range:
        if self.opened.adjacency is Adjacency.ADD_REMOVE and users != self.users:
            raise AdjacencyError(
                "add-remove shifts every later index: only spends on the whole population "
                f"range({self.users.start}, {self.users.stop}) can be counted, not {users!r}"
            )
        return self.ceiling.charged.check(users)

    def _account(self, token: str) -> Account:
        account = self.accounts.get(token)
        if account is None:
            if token in self.folded:
                raise TokenSpentError(f"token {token} was retired before")
            raise TokenError(f"token {token} was never issued here")
        return account

    def _failing(self, text: str) -> Fraction:
        if text == "0":
            return _NEVER
        failure = probability("failure", text)
        self.prices.addable(failure)
        return failure

    def _stated_failure(self, text: str) -> Fraction:
        """Also one that is no probability, in what an audit reads."""
        failure = _NEVER if text == "0" else exact("failure", text)
        self.prices.addable(failure)
        return failure

    def _own_loss(self, data: dict[str, object]) -> Loss:
        loss = read_loss(data)
        if loss.adjacency is not self.opened.adjacency:
            raise AdjacencyError(
                f"a loss for {loss.adjacency.value} under an accountant that counts "
                f"{self.opened.adjacency.value}: convert it explicitly"
            )
        return loss

    # Records: the entry has been checked and is durable -------------------------------------------

    def record(self, entry: Entry) -> None:
        """Takes ``entry`` into account."""
        self.prices.work.earn()
        if self.visits is not None:
            self.visits.work.earn()
            self._see_clock(entry)
        _RECORDS[entry.__class__](self, entry)

    def _see_clock(self, entry: Entry) -> None:
        said = entry.__dict__.get("admitted") or {}
        clock = said.get("clock")
        if isinstance(clock, int):
            self.admitted = max(self.admitted, clock)

    def _record_open(self, _: OpenEntry) -> None:
        """It is the state that it opened."""

    def _record_close(self, _: CloseEntry) -> None:
        self.closed = True

    def _record_learner(self, entry: LearnerEntry) -> None:
        self.learner = self.learner or entry

    def _record_resume(self, entry: ResumeEntry) -> None:
        self.unknown_heads += 1

    def _record_reach(self, entry: ReachEntry) -> None:
        stream = self._account(entry.token).stream
        if stream is not None:
            stream.come_to(entry.stop)

    def _record_publish(self, entry: PublishEntry) -> None:
        account = self._account(entry.token)
        account.upto = max(account.upto, entry.upto)

    def _record_functions(self, entry: FunctionsEntry) -> None:
        account = self._account(entry.token)
        if account.functions is None:
            account.functions = {}
        account.functions.update(dict.fromkeys(entry.names))

    def _record_batches(self, entry: BatchesEntry) -> None:
        if self.visits is None or self.visits.starts or self.begun:
            return  # only in what an audit reads: what was charged stays as it was priced
        self.visits.starts = check_starts(entry.starts, self.users)

    def _record_plan(self, entry: PlanEntry) -> None:
        self.plan = []
        for item in entry.items:
            loss, users = loss_from_dict(item.loss), _range(item.users)
            self._planned.setdefault((item.label, users), []).append(len(self.plan))
            self.plan.append(Planned(item.label, users, loss, item.count, item.count))
            self._charge_item(self.ceiling, loss, users, item.count)
            if self.visits is not None:
                self.runs_committed[users.start, users.stop, loss] += item.count
            for piece, part in over(loss, users):
                self.committed.add(piece, self.of_person(part, piece), item.count)

    def _record_issue(self, entry: IssueEntry) -> None:
        failure = self._stated_failure(entry.failure)
        account = Account(
            entry.token,
            entry.label,
            entry.users,
            entry.planned,
            entry.allowance,
            self.prices.currency(entry.budget),
            failure,
            shared=entry.shared is not None,
        )
        self.accounts[entry.token] = account
        if self.plan is None:
            self._paying(account).charge(
                _range(entry.users), account.budget, account.failure, shared=account.shared
            )
        elif item := self._item(entry.planned):
            item.take(_range(entry.users))

    def _record_delegate(self, entry: DelegateEntry) -> None:
        users, budget = _range(entry.users), self.prices.currency(entry.budget)
        failure = self._stated_failure(entry.failure)
        # a second one of the name is only in what an audit reads
        self.allowances.setdefault(
            entry.allowance, Allowance(entry, Ceiling(users, budget, failure))
        )
        self.ceiling.charge(users, budget, failure)

    def _record_return(self, entry: ReturnEntry) -> None:
        """What the component's tokens hold stays charged, now to the accountant itself."""
        allowance = self._delegated(entry.allowance)
        allowance.returned = True
        inner = allowance.ceiling
        self.ceiling.release(_range(allowance.entry.users), inner.cap, inner.failure)
        for piece, value in inner.pieces():
            self.ceiling.charge(piece, value, _NEVER)
        for piece, failed in inner.failures():
            self.ceiling.charge(piece, self.cap.zero(), failed)

    def _paying(self, account: Account) -> Ceiling:
        """The ceiling that carries a token: its allowance's until that is returned."""
        name = account.allowance
        allowance = None if name is None else self.allowances.get(name)
        return self.ceiling if allowance is None or allowance.returned else allowance.ceiling

    def _record_spend(self, entry: SpendEntry) -> None:
        last = self._last_spend
        loss = last[1] if last is not None and last[0] is entry else read_loss(entry.loss)
        if entry.token in self.folded:  # only in what an audit reads: nothing is reserved for it
            self._charge_again(entry, loss)
            return
        account = self._account(entry.token)
        if account.spend is None and account.outcome is None and not is_lease(entry):
            self.interleaved = self.interleaved or self._running > 0
            self._running += 1  # not a lease, each of whose runs is over before the next
        self.interactive = self.interactive or entry.interactive
        held, account.spend, account.loss = account.held, entry, loss
        users = _range(entry.users)
        pieces = pieces_of(loss, users)
        for piece, part in pieces:
            self._add_spent(piece, part)
        early = self.resumable and ends_early(self.opened, self.visits, entry, loss)
        if early and not account.wrong:
            each = entry.arithmetic == "each"
            account.stream = Stream(entry.mechanism, loss, entry.derived, users, users.start, each)
        if self.plan is not None:
            return
        if held and account.wrong and self._holds(account, self.price_of_person(loss, users)):
            return
        account.held = False
        like = account.shared is self.shares(loss)
        if held and like and len(pieces) == 1 and entry.users == account.users:
            price = self.price_of_person(loss, users)
            same = price.failure is account.failure or price.failure == account.failure
            if same and price.budget.amounts == account.budget.amounts:
                return
        ceiling = self._paying(account)
        if held:  # the token may have held more than its one loss; the rest is free again
            ceiling.release(
                _range(account.users), account.budget, account.failure, shared=account.shared
            )
        for piece, part in pieces:
            price, shared = self.price_of_person(part, piece), self.shares(part)
            ceiling.charge(piece, price.budget, price.failure, shared=shared)

    def _add_spent(self, users: range, loss: Loss) -> None:
        self.spent.add(users, self.of_person(loss, users))
        if self.visits is not None:
            self.runs_spent[users.start, users.stop, loss] += 1

    def _charge_again(self, entry: SpendEntry, loss: Loss) -> None:
        for piece, part in pieces_of(loss, _range(entry.users)):
            self._add_spent(piece, part)
            if self.plan is None:
                price, shared = self.price_of_person(part, piece), self.shares(part)
                self.ceiling.charge(piece, price.budget, price.failure, shared=shared)

    def _record_retire(self, entry: RetireEntry) -> None:
        account = self._account(entry.token)
        self._record_end(account, entry)
        if account.stream is not None and frees(entry.outcome):
            self._end_early(account, account.stream)
        if entry.outcome != "unused" or account.wrong:
            return
        if self.plan is None:
            if account.held:
                account.held = False
                ceiling = self._paying(account)
                ceiling.release(
                    _range(account.users), account.budget, account.failure, shared=account.shared
                )
        elif item := self._item(account.planned):
            item.give_back(_range(account.users))

    def _record_end(self, account: Account, entry: RetireEntry) -> None:
        if account.spend is not None:
            if account.outcome is None and not is_lease(account.spend):
                self._running -= 1
            # a spend is most of what a token takes in memory
            account.spend = self._of_mechanism.setdefault(account.spend.mechanism, account.spend)
        account.outcome = entry.outcome

    def _end_early(self, account: Account, stream: Stream) -> None:
        """Takes a stream's charges off the users whose rows it never took."""
        stop = kept_until(stream, self.visits)
        stream.freed = tuple(freed_after(stop, pieces_of(stream.loss, stream.users)))
        for users, kept, part in stream.freed:
            self._take_off(account, users, part)
            if kept:
                self._add_spent(kept, part)
                if self.plan is None:
                    price, shared = self.price_of_person(part, kept), self.shares(part)
                    self._paying(account).charge(kept, price.budget, price.failure, shared=shared)
        item = self._item(account.planned)
        if stream.freed and item is not None and not by_arrival(stream.loss):
            item.end_early(stop)

    def _take_off(self, account: Account, users: range, loss: Loss) -> None:
        """Undoes what a spend of these users added to what was spent, and was charged."""
        self.spent.add(users, self.of_person(loss, users), -1)
        if self.visits is not None:
            run = users.start, users.stop, loss
            self.runs_spent[run] -= 1
            if not self.runs_spent[run]:
                del self.runs_spent[run]
        if self.plan is None:
            price, shared = self.price_of_person(loss, users), self.shares(loss)
            ceiling = self._paying(account)
            ceiling.release(users, price.budget, price.failure, shared=shared)

    def record_wrong(self, entry: Entry) -> None:
        """Takes into account, for an audit, an entry that did not check: it charges, frees nothing.

        Of its token, if it has one, nothing is freed later either.
        """
        token = getattr(entry, "token", None)
        before = self.accounts.get(token) if token is not None else None
        if before is not None:
            before.wrong, before.stream = True, None
        if isinstance(entry, RetireEntry):
            self._see_clock(entry)
            self._record_end(self._account(entry.token), entry)
        elif not isinstance(entry, ReturnEntry):
            self.record(entry)
        after = self.accounts.get(token) if token is not None else None
        if after is not None:
            after.wrong = True

    def _record_attest(self, entry: AttestEntry) -> None:
        self.attested.append(entry)
        loss, users = loss_from_dict(entry.loss), _range(entry.users)
        self.spent.add(users, loss, entry.most_messages)  # with no rule: see `_check_rule`
        if self.plan is None:
            price, most = self.prices.of(loss), entry.most_messages
            self.ceiling.charge(users, price.budget * most, price.failure * most)
        elif item := self._item(entry.planned):
            item.left -= entry.most_messages

    def _record_sums(self, entry: SumsEntry) -> None:
        done = self._summed(entry.label)
        self.summed[entry.label] = Summed(
            done.entries + 1, max(done.upto, entry.upto), done.heard + entry.heard
        )


_CHECKS: dict[type[Any], Callable[[AccountState, Any], None]] = {
    OpenEntry: AccountState._check_open,
    BatchesEntry: AccountState._check_batches,
    LearnerEntry: AccountState._check_learner,
    ResumeEntry: AccountState._check_resume,
    ReachEntry: AccountState._check_reach,
    PublishEntry: AccountState._check_publish,
    PlanEntry: AccountState._check_plan,
    DelegateEntry: AccountState._check_delegate,
    ReturnEntry: AccountState._check_return,
    IssueEntry: AccountState._check_issue,
    SpendEntry: AccountState._check_spend,
    FunctionsEntry: AccountState._check_functions,
    RetireEntry: AccountState._check_retire,
    AttestEntry: AccountState._check_attest,
    SumsEntry: AccountState._check_sums,
    CloseEntry: AccountState._check_close,
}
_RECORDS: dict[type[Any], Callable[[AccountState, Any], None]] = {
    OpenEntry: AccountState._record_open,
    BatchesEntry: AccountState._record_batches,
    LearnerEntry: AccountState._record_learner,
    ResumeEntry: AccountState._record_resume,
    ReachEntry: AccountState._record_reach,
    PublishEntry: AccountState._record_publish,
    PlanEntry: AccountState._record_plan,
    DelegateEntry: AccountState._record_delegate,
    ReturnEntry: AccountState._record_return,
    IssueEntry: AccountState._record_issue,
    SpendEntry: AccountState._record_spend,
    FunctionsEntry: AccountState._record_functions,
    RetireEntry: AccountState._record_retire,
    AttestEntry: AccountState._record_attest,
    SumsEntry: AccountState._record_sums,
    CloseEntry: AccountState._record_close,
}


_GROWING = GaussianLoss, GeneralizedGaussian, ZCDPLoss, PureLoss, LaplaceLoss, BoundedRangeLoss
"""Kinds whose loss for m visits is at least m/r times that for r; docs/proofs.md has the proofs."""
