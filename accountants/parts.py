"""Parts of an account: what it reserves for a component, and caps of their own inside it."""

from __future__ import annotations

from fractions import Fraction
from typing import Generic, cast

from privlearn.accountants.allowances import Epochs
from privlearn.accountants.continuing import Continuing
from privlearn.accountants.delegated import Delegated, Nested
from privlearn.accountants.nested_caps import Renews, as_asked, cap_entry
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError
from privlearn.ledger.entries import DelegateEntry
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, B
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.validate import user_range


class Parts(Continuing, Generic[B]):
    """The side of an accountant that is divided into parts."""

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
        """Issues a token, out of a part if ``allowance`` names one."""
        raise NotImplementedError

    def delegate(self, budget: B, *, users: range, label: str, failure: Exact = 0) -> Delegated[B]:
        """Reserves part of the cap for a component, which issues its tokens from it.

        What it did not use comes back when it is closed.  Component and reservation stand in the
        ledger, so an audit sees that the component stayed within its part.  A learner can be
        started with it, so that several fits spend under one cap::

            for part in accountant.budget.split(4):
                with accountant.delegate(part, users=accountant.users, label="fit") as own:
                    learner.start(own)

        Raises:
            InsufficientBudgetError: it does not fit.
            BudgetError: there is a committed plan, whose items are the components' budgets.
        """
        return self._delegate(budget, users, label, failure, None, None)

    def _delegate(
        self,
        budget: B,
        users: range,
        label: str,
        failure: Exact,
        within: str | None,
        epoch: int | None,
    ) -> Delegated[B]:
        with self._lock:
            index = self._state.meter.charged.check(user_range(users=users))
            name = f"{self.issuer.id}/allowance-{len(self._state.allowances) + 1}"
            epochs, minute = self._epochs(within, epoch)
            entry = DelegateEntry(
                accountant=self.issuer.id,
                allowance=name,
                label=label,
                users=(index.start, index.stop),
                budget=budget.to_dict(),
                failure=exact_text(exact("failure", failure)),
                within=within,
                epochs=epochs,
            )
            self._log.append(entry, minute=minute)
            return Delegated(self, self._state, name, budget, index)

    def _epochs(self, allowance: str | None, epoch: int | None) -> tuple[Epochs, int | None]:
        """In which epochs something comes out of a part now, and the minute that it tells."""
        allowances = self._state.allowances
        if allowance is None:
            return None, None
        minute = self.ledger.next_minute() if allowances.timed else None
        return allowances.epochs_at(allowance, minute or 0, epoch), minute

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
        """A cap of its own inside this account: a team within a company, a site within all.

        Nothing is reserved: each token is charged to the cap and to all that it is inside of, or,
        if one of these has no room, to none.  The same call in another process, or after a restart,
        finds it again::

            team = accountant.nested(ZCDP("0.1"), label="team a", every="7d")
            team.nested(ZCDP("0.05"), label="project").issue(loss, users=users, label="report")

        Args:
            cap: in the currency of the account; for ZCDP and GaussianDP also as (ε, δ).
            label: by which it is found again, told in the ledger.
            users: whom it is for; default, all that what it is inside of is for.
            failure: the probability of failing that its losses may use.
            every: after how long it renews: ``"7d"``, ``"12h"``, ``"30m"``.  Epochs follow each
                other, from the beginning of the day (of the hour, of the minute) in UTC in which it
                is made, or with those of what it is inside of.  A token is of the epoch that it is
                issued in, by the minute that its entry tells, and must be spent in it.
            epochs: numbers of its epochs, each with the whole cap: ``nested(...).epoch(3)``.
            to: to whom it is granted, who finds it by `granted`: a user of the owner's host, or a
                role of PostgreSQL; see docs/how-to/several-teams.md.
            until: when the grant ends, in UTC: ``"2027-01-31"``, ``"2027-01-31T12:00Z"``.

        Raises:
            BudgetError: the label stands with other terms, or is closed; the cap is larger than
                that of what it is inside of; its epochs overlap several of that; a plan.
            CurrencyError: a cap in another currency.
            LedgerError: the clock is behind what entries tell.
            ValueError: ``every`` or ``until`` is no time.  UsersError: others than those.
        """
        return self._nested(cap, label, users, failure, Renews(every, epochs, to, until), None)

    def granted(self, label: str) -> Nested[B]:
        """A cap inside this account that was made before, such as a grant, by its label.

        Args:
            label: of one inside another, all from the outermost in, as in ``"team/project"``.

        Raises:
            BudgetError: there is none, or it was closed.
        """
        with self._lock:
            found = self._state.allowances.items()
            names = [n for n, one in found if not one.reserved and "/".join(one.path) == label]
            if not names:
                raise BudgetError(f"no cap {label!r} was made or granted inside this account")
            part = self._state.allowances.at(names[-1])
            return Nested(self, self._state, names[-1], cast(B, part.meter.cap), part.meter.users)

    def _nested(
        self,
        cap: B | ApproxDP,
        label: str,
        users: range | None,
        failure: Exact,
        renews: Renews,
        within: str | None,
    ) -> Nested[B]:
        with self._lock:
            state, minute = self._state, self.ledger.next_minute()
            entry = cap_entry(state, cap, label, users, failure, renews, within, minute)
            stands = state.allowances.cap(within, label)
            if stands is None:
                self._log.append(entry, minute=minute)
                stands = state.allowances[entry.allowance]
            else:
                as_asked(stands, entry)
            budget, index = cast(B, stands.meter.cap), stands.meter.users
            return Nested(self, state, stands.entry.allowance, budget, index)
