"""Accounts inside an account: reserved parts of its cap, and caps that share it.

A reserved part is handed to a component and given back unused; a cap inside the account reserves
nothing, stands in the ledger for every process, and may renew.  A learner can be started with
either; its plan is then this process's alone: the ledger holds the budget, which every token is
checked against, whatever was planned.  So several fits spend under one accountant, and the plan
only keeps each of them from beginning what it cannot pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Generic, Never, Protocol, Self, cast, final

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.allowances import Epochs
from privlearn.accountants.capped import CappedSums
from privlearn.accountants.charged import CommittedPlan, Planned
from privlearn.accountants.loss_structure import over
from privlearn.accountants.metering import Metering
from privlearn.accountants.nested_caps import Renews
from privlearn.accountants.state import AccountState
from privlearn.accountants.token_entries import TokenEntries
from privlearn.contract.protocols import Plan
from privlearn.contract.tokens import Token
from privlearn.errors import ONE_PROCESS, BudgetError, TokenCopyError
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, B
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact
from privlearn.values.validate import user_range


class _Parent(Protocol[B]):
    issuer: TokenEntries
    _log: AccountLog

    def held(self, label: str, users: range) -> list[range]: ...
    def _issue(
        self,
        price: Loss | B,
        users: range,
        label: str,
        failure: Fraction,
        allowance: str | None,
        *,
        epoch: int | None = None,
    ) -> Token[B]: ...
    def _delegate(
        self,
        budget: B,
        users: range,
        label: str,
        failure: Exact,
        within: str | None,
        epoch: int | None,
    ) -> Delegated[B]: ...
    def _nested(
        self,
        cap: B | ApproxDP,
        label: str,
        users: range | None,
        failure: Exact,
        renews: Renews,
        within: str | None,
    ) -> Nested[B]: ...


class Part(Metering, Generic[B]):
    """What a reserved part and a cap inside an account have in common: they issue tokens.

    The tokens are the accountant's own, so they open the rows of the accountant's billboard.  A
    learner can be started with it, one for each.
    """

    _epoch: int | None = None

    def __init__(
        self, parent: _Parent[B], state: AccountState, name: str, budget: B, users: range
    ) -> None:
        self._parent, self._name, self._budget, self._users = parent, name, budget, users
        self._allowance = state.allowances[name]
        self._state = state
        self.issuer = parent.issuer
        self._plan: CommittedPlan | None = None
        self._begun = False
        self._out: dict[str, Planned] = {}
        """The plan items of tokens that may still be handed back."""

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        return self._name

    @property
    def budget(self) -> B:
        """The cap for every user in this part."""
        return self._budget

    @property
    def users(self) -> range:
        """The arrival indices it was made for."""
        return self._users

    @property
    def adjacency(self) -> Adjacency:
        """The accountant's neighbour relation."""
        return self.issuer.adjacency

    @property
    def trust(self) -> Trust:
        """The accountant's."""
        return self.issuer.trust

    @property
    def people(self) -> None:
        """None: under a rule of participation nothing is delegated."""
        return

    def of_person(self, loss: Loss, users: range) -> Loss:
        """``loss`` as it is recorded, as an index is one person."""
        return self.issuer.of_person(loss, users)

    def divide(self, starts: Sequence[int]) -> None:
        """Refuses: there is no rule of participation here.

        Raises:
            BudgetError: always.
        """
        raise BudgetError("a delegated part has no rule of participation, and no batches")

    @property
    def learner(self) -> None:
        """None: the ledger names no learner of a part."""
        return

    @property
    def resumed(self) -> bool:
        """False: a part ends with its process."""
        return False

    @property
    def begun(self) -> bool:
        """Whether a plan was committed here, or a token issued."""
        return self._begun

    def record_learner(self, name: str, parameters: dict[str, Any], made: dict[str, Any]) -> None:
        """Writes nothing: nobody goes on from a part, so nothing of its learner is needed again.

        Raises:
            BudgetError: the part has begun with something else.
        """
        self._check_new("a learner")

    def _check_new(self, what: str) -> None:
        if self._begun:
            raise BudgetError(
                f"{what} comes before the first token of a part and is its only one: "
                "accountant.delegate(...) or nested(...) makes another one"
            )

    def replaying(self, *, goes_on: bool = False) -> Never:
        """Refuses: a part ends with its process.

        Raises:
            BudgetError: always.
        """
        raise BudgetError("a delegated part ends with its process: nothing goes on from it")

    def lost(self, label: str, users: range, upto: int | None = None) -> bool:
        """False: nothing goes on from here."""
        return False

    def rest(self, label: str, users: range) -> range | None:
        """The users of whom a planned stream can still take rows; None if there are none."""
        with self._parent._log.lock:
            for item in self._items():
                if (item.label, item.users) == (label, users):
                    return item.rest
            return None

    @property
    def closed(self) -> bool:
        """Whether it was closed, or what it is inside of."""
        return self._allowance.over or self._state.closed

    def spent(self, user: int | None = None) -> B:
        """What its tokens hold or have spent for one user (default: amount by amount, the most)."""
        return cast(B, self._allowance.meter.largest(self._range(user)))

    def remaining(self, user: int | None = None) -> B:
        """What can still be issued for one user (default: for all of them at once)."""
        return self._budget - self.spent(user)

    def _range(self, user: int | None) -> range:
        return self._users if user is None else range(user, user + 1)

    def issue(self, price: Loss | B, *, users: range, label: str, failure: Exact = 0) -> Token[B]:
        """Issues a token out of this part.

        Raises:
            BudgetError: it was given back, or is not in the plan that was committed here; and
                otherwise as `CentralAccountant.issue`.
        """
        inside = self._allowance.meter.charged.check(user_range(users=users))
        item = self._take(price, inside, label)
        try:
            token = self._parent._issue(
                price, inside, label, exact("failure", failure), self._name, epoch=self._epoch
            )
        except BaseException:
            if item is not None:
                item.give_back(inside)
            raise
        self._begun = True
        if item is not None:
            self._out[token.id] = item
        return token

    def _take(self, price: Loss | B, users: range, label: str) -> Planned | None:
        """The plan item of a new token, taken; None without a plan."""
        if self._plan is None:
            return None
        if not isinstance(price, Loss):
            raise BudgetError("under a committed plan, issue tokens for its losses")
        stands = self.of_person(price, users)
        with self._parent._log.lock:
            items = self._items()
            item = items[items.position_for(label, users, stands, self._state.prices)]
            item.take(users)
            return item

    def _items(self) -> CommittedPlan:
        """The plan, with tokens that were handed back unused."""
        accounts = self._state.accounts
        for token, item in list(self._out.items()):
            outcome = accounts[token].outcome
            if outcome == "unused":
                item.give_back(range(*accounts[token].users))
            if outcome is not None:
                del self._out[token]
        return CommittedPlan() if self._plan is None else self._plan

    def commit(self, plan: Iterable[Plan]) -> None:
        """Says all that will be spent from this part, which afterwards only that can be.

        The ledger holds nothing of it: the guarantee is that of the reserved budget.

        Raises:
            InsufficientBudgetError: it does not fit in the part.
            BudgetError: too late, as the part has begun.
            UsersError: others than the part's.
            ValueError: no items.
        """
        items = [
            replace(item, loss=self.of_person(item.loss, item.users), users=users)
            for item in plan
            for users in [self._allowance.meter.charged.check(user_range(users=item.users))]
        ]
        if not items:
            raise ValueError("plan = []: must have an item for everything that will be spent")
        self._check_new("a plan")
        committed = CommittedPlan()
        with self._parent._log.lock:
            trial = CappedSums(self._users, self._budget, self.failure)
            for item in items:
                pieces = over(item.loss, item.users)
                self._state.charged.charge(trial, pieces, item.count)
                committed.add(item.label, item.users, item.loss, item.count)
            trial.check_within()
            self._plan, self._begun = committed, True

    def left(self, label: str, users: range) -> int:
        """How many tokens of a committed plan item are still to be issued; 0 if there is none."""
        with self._parent._log.lock:
            return sum(
                item.left for item in self._items() if (item.label, item.users) == (label, users)
            )

    def held(self, label: str, users: range) -> list[range]:
        """As the accountant's, all of whose tokens it knows."""
        return self._parent.held(label, users)

    @property
    def failure(self) -> Fraction:
        """The probability of failing that was handed over."""
        return self._allowance.meter.failure

    def nested(
        self,
        cap: B | ApproxDP,
        *,
        label: str,
        users: range | None = None,
        failure: Exact = 0,
        every: str | None = None,
        epochs: range | None = None,
        to: str | None = None,
        until: str | None = None,
    ) -> Nested[B]:
        """A cap inside this one; as `CentralAccountant.nested`."""
        renews = Renews(every, epochs, to, until)
        made = self._parent._nested(cap, label, users, failure, renews, self._name)
        made._epoch = self._epoch
        return made

    def delegate(self, budget: B, *, users: range, label: str, failure: Exact = 0) -> Delegated[B]:
        """Reserves part of what is left here; as `CentralAccountant.delegate`.

        In what renews by the clock, it is to be spent in the epoch in which it is reserved.
        """
        self._allowance.meter.charged.check(user_range(users=users))
        return self._parent._delegate(budget, users, label, failure, self._name, self._epoch)

    def close(self) -> None:
        """Ends it, and gives back what was reserved and not used; may be called twice."""
        log = self._parent._log
        with log.lock:
            if not self._allowance.returned:
                log.take_back(self._name)

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError(f"a delegated budget cannot be copied or pickled; {ONE_PROCESS}")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy

    def __sklearn_clone__(self) -> Self:
        """Itself: what `sklearn.base.clone` makes of an estimator spends from the same part."""
        return self

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}({self._budget}, spent {self.spent()}, users={self._users})"


@final
class Delegated(Part[B]):
    """What a component is handed: it issues tokens up to its budget and gives back the rest.

    Made by `CentralAccountant.delegate`.  Closing ends it; tokens that are still out stay charged.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Nested(Part[B]):
    """A cap inside an account, or inside another cap; nothing is reserved for it.

    Made by `CentralAccountant.nested`, and found again by the same call in another process, or
    after a restart.  Each token is charged to it and to all that it is inside of, or to none.  It
    ends with `close`, for all processes, or with its account.
    """

    def epoch(self, number: int) -> Nested[B]:
        """The same cap, to spend in an epoch that is told by number, here or outside.

        Raises:
            BudgetError: there are no epochs, or not this one.
        """
        renewals = [one.renewal for one in self._allowance.renewing if one.renewal]
        numbered = [renewal.numbers for renewal in renewals if renewal.every is None]
        if not numbered or type(number) is not int or number not in numbered[-1]:
            told = numbered[-1] if numbered else "told by the clock, or there are none"
            raise BudgetError(f"epoch = {number!r:.80}: the epochs of {self._name} are {told}")
        found = Nested(self._parent, self._state, self._name, self._budget, self._users)
        found._epoch = number
        return found

    def spent(self, user: int | None = None) -> B:
        """What is charged or reserved for one user (default: amount by amount, the most).

        Of a cap that renews, in the epoch of now, or the one that is spent in.
        """
        with self._parent._log.lock:
            meter, epochs = self._allowance.meter, self._epochs()
            if epochs is not None and self._allowance.renewal is not None:
                meter = self._allowance.in_epoch(epochs[-1])
            return cast(B, meter.largest(self._range(user)))

    def spent_in_all(self, user: int | None = None) -> B:
        """As `spent`, over all epochs together: for a person who is in all of them."""
        with self._parent._log.lock:
            return cast(B, self._allowance.meter.largest(self._range(user)))

    def remaining(self, user: int | None = None) -> B:
        """What can still be issued now, here and in all that it is inside of; as `spent`."""
        with self._parent._log.lock:
            users = self._range(user)
            if self.closed:
                return self._budget.zero()
            return cast(B, self._state.allowances.room(self._name, self._epochs(), users))

    def _epochs(self) -> Epochs:
        allowances, ledger = self._state.allowances, self._parent._log.ledger
        minute = ledger.next_minute() if allowances.timed else 0
        return allowances.epochs_at(self._name, minute, self._epoch)
