"""Accountants: they hold a cap per arrival index, issue tokens and write the ledger.

`CentralAccountant` promises differential privacy of everything released; `JointAccountant` promises
it jointly for what all *other* users receive, by the billboard lemma, and therefore opens only rows
that its own billboard served.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, ClassVar, Generic, Literal, Self, cast, final

from privlearn._validate import user_range
from privlearn.accountants.audit import Certificate, certify
from privlearn.accountants.guarantee import (
    in_gaussian,
    in_renyi,
    in_zcdp,
    promised_delta,
    promised_epsilon,
    spent_delta,
    spent_epsilon,
)
from privlearn.accountants.state import AccountState
from privlearn.adjacency import Adjacency, Trust
from privlearn.budgets import ZCDP, ApproxDP, B, Currency, GaussianDP, Renyi
from privlearn.entries import (
    CloseEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    PlanEntry,
    PlanItem,
    RetireEntry,
    SpendEntry,
    to_users,
)
from privlearn.errors import AdjacencyError, BudgetError, LedgerError, TokenCopyError
from privlearn.ledger import Ledger
from privlearn.losses import Loss
from privlearn.noise import NoiseSource
from privlearn.protocols import Plan
from privlearn.tokens import Outcome, Spend, Tape, Token, mint_token

Of = Literal["guarantee", "spent"]


class _Accountant(Generic[B]):
    """What central and joint accountants share.

    Args:
        budget: the cap for every user: a currency, or an (ε, δ) promise that is turned into one.
        users: the arrival indices this accountant protects.
        ledger: where entries go; it must be new.  Only a simulation may leave it out.
        noise: default `NoiseSource.secure()`.  The accountant becomes its owner.
        currency: for an (ε, δ) budget, what to count in: ZCDP (default; takes every loss with a
            zCDP constant), GaussianDP (a larger budget, for Gaussian losses only) or Renyi (one
            order; a larger budget for objective perturbation).
        adjacency: the neighbour relation; every loss must be stated for it.
        side_information: quantities computed from these or related data that are declared public.
        tape: for checks only; needs simulation noise.
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
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        side_information: Iterable[str] = (),
        tape: Tape | None = None,
    ) -> None:
        cap, promise = _in_currency(budget, currency)
        if cap.is_zero:
            raise BudgetError(f"budget = {budget}: must be above zero")
        index = user_range(users=users)
        source = noise if noise is not None else NoiseSource.secure()
        if ledger is None and not source.simulated:
            raise ValueError(
                "ledger: secure noise needs one that outlives the process, Ledger.create(path); "
                "Ledger.memory(), which forgets what was spent, has to be asked for"
            )
        book = ledger if ledger is not None else Ledger.memory()
        if adjacency is Adjacency.ADD_REMOVE and self.trust is Trust.JOINT:
            raise AdjacencyError(
                "adjacency = add-remove: removing a user shifts what everybody behind is served, "
                "so a joint guarantee is for replace-one or zero-out"
            )
        if book.entries:
            raise LedgerError("the ledger has entries: use resume(...) to go on with it")
        opened = OpenEntry(
            accountant=secrets.token_hex(4),
            software=f"privlearn {version('privlearn')}",
            trust=self.trust,
            adjacency=adjacency,
            users=to_users(index),
            cap=cap.to_dict(),
            promise=None if promise is None else promise.to_dict(),
            noise=source.name,
            simulated=source.simulated,
            side_information=tuple(side_information),
            durable=book.path is not None,
        )
        self._start(AccountState(opened), book, source, tape)
        book.append(opened, after=0)
        self._seen = 1

    def _start(
        self, state: AccountState, ledger: Ledger, noise: NoiseSource, tape: Tape | None
    ) -> None:
        if tape is not None and not noise.simulated:
            raise ValueError("tape: a check needs NoiseSource.simulation(seed)")
        self._state, self.ledger, self.noise, self.tape = state, ledger, noise, tape
        self._lock = threading.RLock()
        self._seen = len(ledger.entries)
        self._interrupted = False

    @classmethod
    def resume(
        cls,
        ledger: Ledger | str | os.PathLike[str],
        *,
        noise: NoiseSource | None = None,
        head: str | None = None,
    ) -> Self:
        """Goes on with an existing ledger after a restart.

        ``head`` is the last hash as kept elsewhere; it tells an old copy, which forgets spends.

        Tokens that were never spent are handed back; spends whose end is unknown are retired as
        ``lost`` and stay charged: their outcome cannot be drawn again.

        Raises:
            LedgerError: unreadable, closed, of another trust, or with entries that do not check.
        """
        book = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger, head=head)
        if head is not None and book.head != head:
            raise LedgerError(f"head is {book.head}, not {head}: the ledger was cut or rewritten")
        first = book.entries[0] if book.entries else None
        if not isinstance(first, OpenEntry) or first.trust is not cls.trust:
            raise LedgerError(f"the ledger does not begin with a {cls.trust.value} accountant")
        source = noise if noise is not None else _noise_like(first)
        if source.simulated is not first.simulated:
            raise LedgerError(f"noise = {source.name}: the ledger was begun with {first.noise}")
        state = AccountState(first)
        for entry in book.entries[1:]:
            state.check(entry)
            state.record(entry)
        if state.closed:
            raise LedgerError("the accountant was closed: its ledger takes no further entries")
        accountant = cls.__new__(cls)
        accountant._start(state, book, source, None)
        accountant._end_outstanding()
        return accountant

    # Public facts ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The accountant's name in the ledger; token ids begin with it."""
        return self._state.opened.accountant

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of all guarantees."""
        return self._state.opened.adjacency

    @property
    def users(self) -> range:
        """The arrival indices this accountant protects."""
        return self._state.users

    @property
    def budget(self) -> B:
        """The cap for every user."""
        return cast(B, self._state.cap)

    def spent(self, user: int | None = None) -> B:
        """What is charged or reserved for one user (default: the largest over users)."""
        return cast(B, self._state.charged_to(self._range(user)))

    def remaining(self, user: int | None = None) -> B:
        """What can still be issued for one user (default: for all of them at once)."""
        return self.budget - self.spent(user)

    def _range(self, user: int | None) -> range:
        return self.users if user is None else range(user, user + 1)

    def epsilon(self, delta: float, *, of: Of = "guarantee") -> float:
        """ε at ``delta``: of the guarantee (plan total or cap), or of what was spent, ex post.

        An upper bound on the exact value, error bound included.

        Raises:
            ValueError: delta outside (0, 1).
        """
        with self._lock:
            bound = promised_epsilon if of == "guarantee" else spent_epsilon
            return bound(self._state, delta).value

    def delta(self, epsilon: float, *, of: Of = "guarantee") -> float:
        """δ at ``epsilon``: of the guarantee, or of what was spent, ex post."""
        with self._lock:
            bound = promised_delta if of == "guarantee" else spent_delta
            return bound(self._state, epsilon).value

    def certificate(self, delta: float | None = None) -> Certificate:
        """What the ledger proves so far, as an auditor would find it.

        ``delta`` defaults to that of an (ε, δ) budget, else 1e-6.
        """
        return certify(self.ledger.records, delta=delta)

    # Spending -------------------------------------------------------------------------------------

    def commit(self, plan: Iterable[Plan]) -> None:
        """Commits all losses and counts in advance; afterwards only they can be spent.

        The guarantee is then the plan's composition, which is exact where all mass is Gaussian.

        Raises:
            InsufficientBudgetError: the plan does not fit under the cap.  BudgetError: too late.
        """
        items = tuple(
            PlanItem(
                label=item.label,
                users=to_users(user_range(users=item.users)),
                loss=item.loss.to_dict(),
                count=item.count,
            )
            for item in plan
        )
        self._append(PlanEntry(accountant=self.id, items=items))

    def left(self, label: str, users: range) -> int:
        """How many tokens of a committed plan item are still to be issued; 0 if there is none."""
        with self._lock:
            items = self._state.plan or []
            return sum(item.left for item in items if (item.label, item.users) == (label, users))

    def issue(self, price: Loss | B, *, users: range, label: str) -> Token[B]:
        """Issues a token for one loss, or for any loss that a budget covers, on ``users``.

        Raises:
            InsufficientBudgetError: some user's cap cannot hold it (nothing is charged).
            BudgetError: not in the committed plan.  CurrencyError: no price in this currency.
        """
        with self._lock:
            budget = cast(B, self._state.cap.price(price)) if isinstance(price, Loss) else price
            index = self._state.charged.check(user_range(users=users))
            planned = None
            if self._state.plan is not None:
                if not isinstance(price, Loss):
                    raise BudgetError("under a committed plan, issue tokens for its losses")
                planned = self._state.planned_for(label, index, price)
            token = f"{self.id}/{len(self._state.accounts) + 1}"
            self._append(
                IssueEntry(
                    accountant=self.id,
                    token=token,
                    label=label,
                    users=to_users(index),
                    budget=budget.to_dict(),
                    planned=planned,
                )
            )
            return mint_token(self, token, budget, index, label)

    def record_spend(self, token: Token[Any], spend: Spend, loss: Loss) -> None:
        """For tokens: writes the spend; returns when it is durable."""
        self._append(
            SpendEntry(
                accountant=self.id,
                token=token.id,
                mechanism=spend.mechanism,
                users=to_users(token.users),
                trust=self.trust,
                adjacency=self.adjacency,
                domain=spend.domain.to_dict(),
                noise=spend.noise.to_dict(),
                simulated=self.noise.simulated,
                gain=spend.gain,
                loss=loss.to_dict(),
                arithmetic=spend.arithmetic,
                derived=spend.derived,
                calibration=spend.calibration,
                parameters=dict(spend.parameters),
            )
        )
        if self.tape is not None:
            self.tape.spent(token, spend)

    def record_retire(self, token: Token[Any], outcome: Outcome, digest: str | None) -> None:
        """For tokens and receipts: writes how the token ended."""
        self._append(
            RetireEntry(accountant=self.id, token=token.id, outcome=outcome, digest=digest)
        )

    def outstanding(self, token: Token[Any]) -> bool:
        """For receipts: whether the token has no recorded end yet."""
        return self._state.accounts[token.id].outcome is None

    def _append(self, entry: Entry) -> None:
        with self._lock:
            if self._interrupted:
                raise LedgerError("an entry was interrupted half-way: resume the ledger to go on")
            self._state.check(entry)
            self._interrupted = True
            try:
                self.ledger.append(entry, after=self._seen)
            except Exception:  # it is not in the ledger
                self._interrupted = False
                raise
            self._seen += 1
            self._state.record(entry)
            self._interrupted = False

    def close(self) -> None:
        """Ends the account: unspent tokens go back, open streams are lost, the file is sealed."""
        with self._lock:
            if self._state.closed:
                return
            self._end_outstanding()
            self._append(CloseEntry(accountant=self.id))
            self.ledger.close()

    def _end_outstanding(self) -> None:
        for account in self._state.outstanding():
            outcome: Outcome = "unused" if account.spend is None else "lost"
            self._append(
                RetireEntry(accountant=self.id, token=account.entry.token, outcome=outcome)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TokenCopyError("an accountant cannot be copied or pickled; resume its ledger instead")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.budget}, spent {self.spent()}, users={self.users})"


def _in_currency(
    budget: Currency | ApproxDP, currency: type[Currency] | None
) -> tuple[Currency, ApproxDP | None]:
    if isinstance(budget, ApproxDP):
        if currency is None or currency is ZCDP:
            return in_zcdp(budget), budget
        if currency is GaussianDP:
            return in_gaussian(budget), budget
        if currency is Renyi:
            return in_renyi(budget), budget
        raise BudgetError(
            f"currency = {currency}: an (ε, δ) budget counts in ZCDP, GaussianDP or Renyi"
        )
    if not isinstance(budget, Currency):
        raise TypeError(f"budget = {budget!r}: must be a budget such as ZCDP('1')")
    if currency is not None and currency is not type(budget):
        raise BudgetError(f"currency = {currency}: the budget {budget} has its own")
    return budget, None


def _noise_like(opened: OpenEntry) -> NoiseSource:
    if opened.simulated:
        raise LedgerError("noise: a simulation ledger is resumed with NoiseSource.simulation(seed)")
    return NoiseSource.secure()


@final
class CentralAccountant(_Accountant[B]):
    """Promises differential privacy of everything released, with a trusted curator."""

    trust = Trust.CENTRAL


@final
class JointAccountant(_Accountant[B]):
    """Promises joint differential privacy by the billboard lemma (see `privlearn.billboard`)."""

    trust = Trust.JOINT
