"""The state of one accountant as a fold over its ledger entries.

The live accountant checks an entry, makes it durable and then records it here; an auditor feeds the
entries of a file through the same two steps.  So what is enforced is what is verified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from privlearn.accountants.allowances import Allowance
from privlearn.accountants.capped import CappedSums
from privlearn.accountants.charged import (
    Account,
    Charged,
    CommittedPlan,
    OpenPhases,
    Planned,
    pieces_of,
)
from privlearn.accountants.claims import Claims
from privlearn.accountants.loss_structure import by_arrival, dominates, over
from privlearn.accountants.opening_checks import (
    cap_of,
    check_relation,
    is_resumable,
    odometer_of,
    probability,
    promise_of,
    rule_of,
)
from privlearn.accountants.persons import Visits, check_starts
from privlearn.accountants.prices import MOST_ORDERS, LossPrice, Prices, read_loss
from privlearn.accountants.spend_checks import check_clock, own_loss, stated
from privlearn.accountants.streams import Stream, ends_early, freed_after, frees, kept_until
from privlearn.contract.spends import LEASE, PHASES
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    LedgerClosedError,
    LedgerError,
    TokenError,
    TokenSpentError,
)
from privlearn.ledger.chain import text_of_minute
from privlearn.ledger.entries import (
    PARTICIPATION,
    RESUME,
    AttestEntry,
    BatchesEntry,
    CapEntry,
    CloseEntry,
    DelegateEntry,
    Entry,
    FunctionsEntry,
    IssueEntry,
    LearnerEntry,
    OpenEntry,
    PhaseEntry,
    PlanEntry,
    PublishEntry,
    ReachEntry,
    ResumeEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
    SumsEntry,
)
from privlearn.losses import Loss
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.validate import user_range

E = TypeVar("E")


@final
@dataclass(slots=True)
class Checked(Generic[E]):
    """An entry that was checked, with what was found out of it; or an unchecked one, without."""

    entry: E
    loss: Loss | None = None
    """That a spend states."""
    price: LossPrice | None = None
    """Of a spend; of an issue or a delegation what it holds."""


@final
class AccountState:
    """Everything that follows from one accountant's entries so far."""

    def __init__(self, opened: OpenEntry) -> None:
        check_relation(opened)
        cap = cap_of(opened, MOST_ORDERS)
        self.opened = opened
        self.number = 1  # among the accountants of its ledger
        self.functions_named = True
        """Whether user code that rows pass through is named; not in format 1."""
        self.cap, self.promise = cap, promise_of(opened)
        self.failure = probability("failure", opened.failure)
        self.odometer = odometer_of(opened, self.failure)
        self.users = user_range(users=range(*opened.users))
        rule = rule_of(opened)
        self.visits = None if rule is None else Visits(rule, self.users)
        """The rule under which a person may come back; without one a person is an index."""
        self.prices = Prices(cap, self.visits, apart=opened.trust is Trust.LOCAL)
        self.admitted = self.users.start
        """The next slot of the registry of persons, as far as entries say."""
        self.meter = CappedSums(self.users, cap, self.failure, self.visits)
        self.charged = Charged(self.meter, self.prices, self.visits)
        self.allowances = self.charged.allowances
        self.plan: CommittedPlan | None = None
        self.accounts: dict[str, Account] = {}
        self._of_mechanism: dict[str, SpendEntry] = {}
        """The first spend of each mechanism that ended, which stands for all of them."""
        self.folded: set[str] = set()
        """Tokens that ended and whose history was dropped, by `fold`."""
        self.interactive = self.interleaved = False
        self._running = 0
        self.open_phases = OpenPhases()
        self.claims = Claims()
        self.resumable = is_resumable(opened)
        """Whether streams say how far they come, and are charged no further."""
        self.learner: LearnerEntry | None = None
        self._minute: int | None = None
        """Of the entry that is being checked."""
        self._latest = 0
        """Of the entries so far, where it is known."""
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
        """Reserved parts that were not given back."""
        found = self.allowances.values()
        return [part for part in found if part.reserved and not part.returned]

    @property
    def begun(self) -> bool:
        """Whether there is a plan, or was a token."""
        return bool(self.accounts or self.folded) or self.plan is not None

    @property
    def attested(self) -> list[AttestEntry]:
        """All claims of clients, in order."""
        return self.claims.attested

    def users_of(self, account: Account) -> range:
        """Whom a token is, or may still be, charged to: of a stream that ended, whom it reached."""
        start, stop = account.users
        return range(start, stop if account.stream is None else account.stream.paid)

    def check_asked(self, rounds: int = 1, user: object = None) -> None:
        """Raises BudgetError for what is asked of single rows, and not of a person."""
        if self.visits is not None:
            self.visits.check_asked(rounds, user)

    # Checks: nothing is changed, and what is wrong is raised --------------------------------------

    def check(self, entry: Entry, minute: int | None = None) -> Checked[Any]:
        """Raises what is wrong with ``entry`` as the next one; changes nothing.

        ``minute``: that it tells, as of `Ledger.next_minute`; None where that is not known.
        """
        if self.closed:
            raise LedgerClosedError("the accountant is closed: no entry may follow")
        self._minute = minute
        before = self.prices.denominator
        try:
            if minute and minute < self._latest:
                raise LedgerError(
                    f"it tells {text_of_minute(minute)}, behind {text_of_minute(self._latest)} of "
                    "an entry before it: caps renew, or grants end, by these times"
                )
            if self.visits is not None or entry.__dict__.get("admitted") is not None:
                check_clock(entry, self.visits, self.users, self.admitted)
            return _CHECKS[entry.__class__](self, entry) or Checked(entry)
        except BaseException:
            self.prices.forget(before)
            raise

    def _check_close(self, _: CloseEntry) -> None:
        if self.outstanding():
            raise LedgerError("tokens without an end: retire them before closing")
        if self.delegated():
            raise LedgerError("allowances that were not returned: return them first")

    def _check_return(self, entry: ReturnEntry) -> None:
        self.allowances.standing(entry.allowance)

    def _check_plan(self, entry: PlanEntry) -> None:
        begun = self.accounts or self.folded or self.attested or self.allowances
        if self.plan is not None or begun:
            raise BudgetError("a plan is committed once, before the first token")
        trial = CappedSums(self.users, self.cap, self.failure, self.visits)
        for item in entry.items:
            loss = own_loss(item.loss, self.opened)
            users = self._whole_ranges(range(*item.users))
            if self.visits is not None:  # raises where only its parts have a price
                self.prices.loss_of_person(loss, users)
            self.charged.charge(trial, over(loss, users), item.count)
        trial.check_within()

    def _check_issue(self, entry: IssueEntry) -> Checked[IssueEntry]:
        if entry.token in self.accounts or entry.token in self.folded:
            raise TokenError(f"token {entry.token} was issued before")
        if self.opened.attested:
            raise BudgetError("an accountant of attestations issues no tokens: open a second one")
        users = self._whole_ranges(range(*entry.users))
        item = None if self.plan is None else self.plan.item_of(entry, users)
        price = self.prices.of_entry(entry.budget, entry.failure)
        if entry.shared is not None:
            self._check_shared(entry)
        if self.plan is not None and (entry.allowance, entry.epochs) != (None, None):
            raise BudgetError(f"token {entry.token}: no allowance can stand beside a plan")
        if not all(price.budget.amounts):
            raise BudgetError(
                f"token {entry.label!r}: a budget of {price.budget} can pay for nothing"
            )
        if item is not None:
            if not self.prices.of_person(item.loss, users).covers(price):
                raise BudgetError(f"token {entry.token} holds more than plan item {entry.planned}")
            return Checked(entry, price=price)
        if entry.planned is not None:
            raise BudgetError(f"token {entry.token} names a plan, but none was committed")
        shared = entry.shared is not None
        if entry.allowance is None and entry.epochs is None:
            self.meter.check(users, price.budget, price.failure, shared=shared)
        else:
            self._check_room(entry, entry.allowance, users, price, shared=shared)
        return Checked(entry, price=price)

    def _check_shared(self, entry: IssueEntry) -> None:
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

    def _check_delegate(self, entry: DelegateEntry) -> Checked[DelegateEntry]:
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
        users = self._whole_ranges(range(*entry.users))
        price = self.prices.of_entry(entry.budget, entry.failure)
        if price.budget.is_zero:
            raise BudgetError(f"allowance {entry.label!r}: {price.budget} can pay for nothing")
        self.allowances.check_depth(entry)
        self._check_room(entry, entry.within, users, price)
        return Checked(entry, price=price)

    def _check_room(
        self,
        entry: IssueEntry | DelegateEntry,
        within: str | None,
        users: range,
        price: LossPrice,
        *,
        shared: bool = False,
    ) -> None:
        """Raises unless what a token or a reserved part comes out of has room for it."""
        holds = price.budget, price.failure
        if within is not None:
            minute = self._minute
            self.allowances.check(within, entry.epochs, minute, users, *holds, shared=shared)
        elif entry.epochs is not None:
            raise BudgetError(f"{entry.label!r}: epochs are those of caps, and it is in none")
        else:
            self.meter.check(users, *holds, shared=shared)

    def _check_spend(self, entry: SpendEntry) -> Checked[SpendEntry]:
        account = self._account(entry.token)
        account.check_unspent(entry)
        if account.allowance is not None and (part := self.allowances.get(account.allowance)):
            if self.allowances.timed:
                part.check_epochs(account.epochs, self._minute)
            part.check_until(self._minute)
        statement = stated(entry, self.opened, self.visits)
        loss = statement.loss
        price = self.prices.of_person(loss, range(*account.users))
        account.check_holds(entry.mechanism, loss, price, shares=self.prices.shares(loss))
        if self.plan is not None:
            item = self.plan.item(account.planned)
            if item is None:
                raise BudgetError(f"token {entry.token} is not in the committed plan")
            if item.loss is not loss and not self.prices.dominates(item.loss, loss, item.users):
                raise BudgetError(f"token {entry.token}: its loss is not the planned one")
        if statement.form is not None:
            statement.check(statement.form)
        return Checked(entry, loss, price)

    def _check_learner(self, entry: LearnerEntry) -> None:
        self._check_resumable(entry.entry)
        if self.learner is not None:
            raise BudgetError(f"a second learner {entry.name!r}: an account has one")
        if self.begun:
            raise BudgetError("a learner is named before the plan and the first token")

    def _check_resumable(self, kind: str) -> None:
        if not self.resumable:
            raise BudgetError(f"an entry {kind!r}: {RESUME!r} was not declared when it was opened")

    def _check_sums(self, entry: SumsEntry) -> None:
        self._check_resumable(entry.entry)
        self.claims.check_sums(entry)

    def _check_phase(self, entry: PhaseEntry) -> None:
        self._check_resumable(entry.entry)
        account = self._account(entry.token)
        account.check_phase(entry)
        self.open_phases.check(account, entry)

    def _check_reach(self, entry: ReachEntry) -> None:
        self._check_resumable(entry.entry)
        self._account(entry.token).check_reach(entry)

    def _check_publish(self, entry: PublishEntry) -> None:
        self._check_resumable(entry.entry)
        self._account(entry.token).check_publish(entry)

    def _check_functions(self, entry: FunctionsEntry) -> None:
        self._account(entry.token).check_functions(entry)

    def _check_retire(self, entry: RetireEntry) -> None:
        self._account(entry.token).check_retire(entry)
        if entry.value is not None:
            self._check_resumable("value")

    def _whole_ranges(self, users: range) -> range:
        if self.opened.adjacency is Adjacency.ADD_REMOVE and users != self.users:
            raise AdjacencyError(
                "add-remove shifts every later index: only spends on the whole population "
                f"range({self.users.start}, {self.users.stop}) can be counted, not {users!r}"
            )
        return self.meter.charged.check(users)

    def _item(self, account: Account) -> Planned | None:
        return None if self.plan is None else self.plan.item(account.planned)

    def _account(self, token: str) -> Account:
        account = self.accounts.get(token)
        if account is None:
            if token in self.folded:
                raise TokenSpentError(f"token {token} was retired before")
            raise TokenError(f"token {token} was never issued here")
        return account

    # Records: the entry has been checked and is durable -------------------------------------------

    def record(self, checked: Checked[Any]) -> None:
        """Takes an entry into account."""
        self._latest = max(self._latest, self._minute or 0)
        self.prices.work.left += MOST_ORDERS  # it may bring one more loss
        if self.visits is not None:
            self.visits.work.earn()
            self._see_clock(checked.entry)
        _RECORDS[checked.entry.__class__](self, checked)

    def _see_clock(self, entry: Entry) -> None:
        said = entry.__dict__.get("admitted") or {}
        clock = said.get("clock")
        if isinstance(clock, int):
            self.admitted = max(self.admitted, clock)

    def _record_close(self, _: Checked[CloseEntry]) -> None:
        self.closed = True

    def _record_learner(self, checked: Checked[LearnerEntry]) -> None:
        self.learner = self.learner or checked.entry

    def _record_resume(self, _: Checked[ResumeEntry]) -> None:
        self.unknown_heads += 1

    def _record_phase(self, checked: Checked[PhaseEntry]) -> None:
        account = self._account(checked.entry.token)
        self.open_phases.begin(account, checked.entry)
        if account.stream is not None:
            account.stream.phase = checked.entry.stop

    def _record_reach(self, checked: Checked[ReachEntry]) -> None:
        stream = self._account(checked.entry.token).stream
        if stream is not None:
            stream.come_to(checked.entry.stop)

    def _record_publish(self, checked: Checked[PublishEntry]) -> None:
        account = self._account(checked.entry.token)
        account.upto = max(account.upto, checked.entry.upto)

    def _record_functions(self, checked: Checked[FunctionsEntry]) -> None:
        account = self._account(checked.entry.token)
        if account.functions is None:
            account.functions = {}
        account.functions.update(dict.fromkeys(checked.entry.names))

    def _record_batches(self, checked: Checked[BatchesEntry]) -> None:
        if self.visits is None or self.visits.starts or self.begun:
            return  # only in what an audit reads: what was charged stays as it was priced
        self.visits.starts = check_starts(checked.entry.starts, self.users)

    def _record_plan(self, checked: Checked[PlanEntry]) -> None:
        self.plan = CommittedPlan()
        for item in checked.entry.items:
            loss, users = read_loss(item.loss), range(*item.users)
            self.plan.add(item.label, users, loss, item.count)
            self.charged.plan(users, loss, item.count)
        self.charged.planned = True

    def _record_issue(self, checked: Checked[IssueEntry]) -> None:
        entry = checked.entry
        price = checked.price or self.prices.of_entry(entry.budget, entry.failure, probable=False)
        account = Account(
            entry.token,
            entry.label,
            entry.users,
            entry.planned,
            entry.allowance,
            price.budget,
            price.failure,
            shared=entry.shared is not None,
            epochs=entry.epochs,
        )
        item = self._item(account)
        self.accounts[entry.token] = account
        self.charged.reserve(account)
        if item is not None:
            item.take(range(*entry.users))

    def _record_delegate(self, checked: Checked[DelegateEntry]) -> None:
        entry = checked.entry
        price = checked.price or self.prices.of_entry(entry.budget, entry.failure, probable=False)
        self.allowances.reserve(entry, price.budget, price.failure)

    def _record_cap(self, checked: Checked[CapEntry]) -> None:
        entry = checked.entry
        price = checked.price or self.prices.of_entry(entry.budget, entry.failure, probable=False)
        self.allowances.begin(entry, price.budget, price.failure)

    def _record_spend(self, checked: Checked[SpendEntry]) -> None:
        entry = checked.entry
        loss, users = checked.loss or read_loss(entry.loss), range(*entry.users)
        if entry.token in self.folded:  # only in what an audit reads: nothing is reserved for it
            self.charged.spend(None, users, loss, checked.price)
            return
        account = self._account(entry.token)
        if account.spend is None and account.outcome is None and LEASE not in entry.parameters:
            self.interleaved = self.interleaved or self._running > 0
            account.running = True  # not a lease, each of whose runs is over before the next
            self._running += 1
        self.interactive = self.interactive or entry.interactive
        account.spend, account.loss = entry, loss
        early = self.resumable and ends_early(self.opened, self.visits, entry, loss)
        if early and not account.wrong:
            each = entry.arithmetic == "each"
            account.stream = Stream(entry.mechanism, loss, entry.derived, users, users.start, each)
            if PHASES in entry.parameters:
                account.stream.phase = users.start
        self.charged.spend(account, users, loss, checked.price)

    def _record_retire(self, checked: Checked[RetireEntry]) -> None:
        entry = checked.entry
        account = self._account(entry.token)
        self._record_end(account, entry)
        if account.stream is not None and frees(entry.outcome):
            self._end_early(account, account.stream)
        if entry.outcome == "unused" and not account.wrong:
            self.charged.hand_back(account)
            if item := self._item(account):
                item.give_back(range(*account.users))

    def _record_end(self, account: Account, entry: RetireEntry) -> None:
        if account.running:
            account.running = False
            self._running -= 1
        if account.spend is not None:
            # a spend is most of what a token takes in memory
            account.spend = self._of_mechanism.setdefault(account.spend.mechanism, account.spend)
        account.outcome = entry.outcome

    def _end_early(self, account: Account, stream: Stream) -> None:
        """Frees the users whose rows a stream never took."""
        stop = kept_until(stream, self.visits)
        stream.freed = tuple(freed_after(stop, pieces_of(stream.loss, stream.users)))
        self.charged.end_early(account, stream)
        self.open_phases.leave(account, stream)
        item = self._item(account)
        if stream.freed and item is not None and not by_arrival(stream.loss):
            item.end_early(stop)

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
            self.record(Checked(entry))
        after = self.accounts.get(token) if token is not None else None
        if after is not None:
            after.wrong = True


def _check_batches(state: AccountState, entry: BatchesEntry) -> None:
    if state.visits is None or not state.visits.rule.batched:
        raise BudgetError(
            "batches are declared for a rule that counts within them: Participation with "
            "pooled=True or per_batch"
        )
    if state.visits.starts:
        raise BudgetError("batches are declared once")
    if state.begun:
        raise BudgetError("batches are declared before the plan and the first token")
    check_starts(entry.starts, state.users)


def _check_cap(state: AccountState, entry: CapEntry) -> Checked[CapEntry]:
    if state.opened.attested:
        raise BudgetError("an accountant of attestations issues no tokens: no cap is inside it")
    if state.plan is not None:
        raise BudgetError("a plan is exhaustive: no cap can stand beside it")
    users = state._whole_ranges(range(*entry.users))
    price = state.prices.of_entry(entry.budget, entry.failure)
    if price.budget.is_zero:
        raise BudgetError(f"cap {entry.label!r}: {price.budget} can pay for nothing")
    state.allowances.check_cap(entry, users, price.budget, price.failure, state._minute)
    return Checked(entry, price=price)


def _check_attest(state: AccountState, entry: AttestEntry) -> None:
    Claims.check_attest(state.opened, entry)
    loss = own_loss(entry.loss, state.opened)
    users = state.meter.charged.check(range(*entry.users))
    one, most = state.prices.of(loss), entry.most_messages
    if entry.count > len(users) * most:
        raise BudgetError(
            f"count = {entry.count}: {len(users)} users with at most {most} messages each "
            f"send at most {len(users) * most}"
        )
    if state.plan is not None:
        item = state.plan.item(entry.planned)
        if item is None:
            raise BudgetError(f"attestation {entry.label!r} is not in the committed plan")
        named = (item.label, item.users) == (entry.label, users)
        if not named or not dominates(item.loss, loss) or item.left < most:
            raise BudgetError(f"attestation {entry.label!r} does not fit plan item {entry.planned}")
        return
    if entry.planned is not None:
        raise BudgetError(f"attestation {entry.label!r} names a plan, but none was committed")
    state.meter.check(users, one.budget * most, one.failure * most)


def _record_attest(state: AccountState, checked: Checked[AttestEntry]) -> None:
    entry = checked.entry
    state.attested.append(entry)
    loss, users = read_loss(entry.loss), range(*entry.users)
    # with no rule: see `_check_rule`
    state.charged.spent.add(users, loss, entry.most_messages)
    if state.plan is None:
        price, most = state.prices.of(loss), entry.most_messages
        state.meter.charge(users, price.budget * most, price.failure * most)
    elif item := state.plan.item(entry.planned):
        item.left -= entry.most_messages


def _opened_before(_: AccountState, entry: OpenEntry) -> None:
    raise LedgerError(f"accountant {entry.accountant!r} was opened before")


_CHECKS: dict[type[Any], Callable[[AccountState, Any], Checked[Any] | None]] = {
    OpenEntry: _opened_before,
    BatchesEntry: _check_batches,
    LearnerEntry: AccountState._check_learner,
    ResumeEntry: lambda state, entry: state._check_resumable(entry.entry),
    PhaseEntry: AccountState._check_phase,
    ReachEntry: AccountState._check_reach,
    PublishEntry: AccountState._check_publish,
    PlanEntry: AccountState._check_plan,
    DelegateEntry: AccountState._check_delegate,
    CapEntry: _check_cap,
    ReturnEntry: AccountState._check_return,
    IssueEntry: AccountState._check_issue,
    SpendEntry: AccountState._check_spend,
    FunctionsEntry: AccountState._check_functions,
    RetireEntry: AccountState._check_retire,
    AttestEntry: _check_attest,
    SumsEntry: AccountState._check_sums,
    CloseEntry: AccountState._check_close,
}
_RECORDS: dict[type[Any], Callable[[AccountState, Checked[Any]], None]] = {
    OpenEntry: lambda state, checked: None,  # it is the state that it opened
    BatchesEntry: AccountState._record_batches,
    LearnerEntry: AccountState._record_learner,
    ResumeEntry: AccountState._record_resume,
    PhaseEntry: AccountState._record_phase,
    ReachEntry: AccountState._record_reach,
    PublishEntry: AccountState._record_publish,
    PlanEntry: AccountState._record_plan,
    DelegateEntry: AccountState._record_delegate,
    CapEntry: AccountState._record_cap,
    ReturnEntry: lambda state, checked: state.allowances.end(checked.entry.allowance),
    IssueEntry: AccountState._record_issue,
    SpendEntry: AccountState._record_spend,
    FunctionsEntry: AccountState._record_functions,
    RetireEntry: AccountState._record_retire,
    AttestEntry: _record_attest,
    SumsEntry: lambda state, checked: state.claims.record_sums(checked.entry),
    CloseEntry: AccountState._record_close,
}
