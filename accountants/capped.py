"""Sums of what is charged to users, under a cap."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import final

from privlearn.accountants.per_user_charge import Charges
from privlearn.accountants.persons import PersonCharges, Visits
from privlearn.errors import BudgetError, InsufficientBudgetError
from privlearn.losses.budgets import Currency
from privlearn.values.exact import exact_text


@final
class CappedSums:
    """What is charged to each arrival index, or person, and how likely it is to fail.

    Args:
        users: the arrival indices.
        cap: of what each is charged.
        failure: the cap of the probability of failing.
        visits: with a rule, what is charged is charged to a person.

    Attributes:
        charged: in numbers of the currency.
        failing: the probabilities.
        persons: those numbers and, last, the probability of failing, of persons.
    """

    __slots__ = ("cap", "charged", "failing", "failure", "persons", "users")

    def __init__(
        self, users: range, cap: Currency, failure: Fraction, visits: Visits | None = None
    ) -> None:
        self.users, self.cap, self.failure = users, cap, failure
        terms = len(cap.amounts)
        self.charged, self.failing = Charges(users, terms), Charges(users)
        self.persons = None if visits is None else PersonCharges(visits, terms + 1)

    def check(
        self, users: range, amount: Currency, failure: Fraction, *, shared: bool = False
    ) -> None:
        """Raises InsufficientBudgetError unless every one of the users has room for that much.

        This is the filter: the next spend is chosen after everything before it was seen, and may
        be made only if the sum, of amounts known before it runs, stays under the cap.
        """
        if self.persons is not None:
            self._check_persons(self.persons, users, amount, failure, shared)
            return
        above = self.charged.first_above(self.cap.amounts, amount.amounts, users)
        if above is not None:
            piece, value = above[0], self.cap._of(above[1])
            # an audit goes on after a cap was exceeded
            remaining = self.cap - value if self.cap.covers(value) else self.cap.zero()
            raise InsufficientBudgetError(
                spent=value, requested=amount, remaining=remaining, users=piece
            )
        if not failure:
            return
        failed = self.failing.first_above((self.failure,), (failure,), users)
        if failed is not None:
            piece, (before,) = failed
            raise InsufficientBudgetError(
                spent=f"failure {exact_text(before)}",
                requested=f"failure {exact_text(failure)}",
                remaining=f"failure {exact_text(max(self.failure - before, Fraction(0)))}",
                users=piece,
            )

    def _check_persons(
        self,
        persons: PersonCharges,
        users: range,
        amount: Currency,
        failure: Fraction,
        shared: bool,
    ) -> None:
        whole = (*amount.amounts, failure)
        if not persons.may_exceed(users, whole, shared, self._within):
            return
        if persons.visits.work.ended:
            raise BudgetError(
                "patterns of visits: too many pieces and visits to find the most that a person "
                "pays, and quick bounds are above the cap; commit a plan, or use fewer ranges"
            )
        before = persons.largest()
        spent = self.cap._of(before[:-1])
        remaining = self.cap - spent if self.cap.covers(spent) else self.cap.zero()
        raise InsufficientBudgetError(
            spent=spent, requested=amount, remaining=remaining, users=users
        )

    def _within(self, most: tuple[Fraction, ...]) -> bool:
        return self.cap.covers(self.cap._of(most[:-1])) and most[-1] <= self.failure

    def charge(
        self, users: range, amount: Currency, failure: Fraction, *, shared: bool = False
    ) -> None:
        """Adds to what is charged; ``shared``: see `privlearn.accountants.persons`."""
        if self.persons is not None:
            self.persons.charge(users, (*amount.amounts, failure), shared)
        self.charged.charge(users, amount.amounts)
        if failure:
            self.failing.charge(users, (failure,))

    def release(
        self, users: range, amount: Currency, failure: Fraction, *, shared: bool = False
    ) -> None:
        if self.persons is not None:
            self.persons.charge(users, (*amount.amounts, failure), shared, released=True)
        self.charged.charge(users, amount.amounts, released=True)
        if failure:
            self.failing.charge(users, (failure,), released=True)

    def largest(self, users: range | None = None) -> Currency:
        """The largest charge on any of the users, amount by amount; on any person with a rule.

        With a rule, the charge on one slot is that of all tokens whose ranges it is in.
        """
        if self.persons is not None and users in (None, self.users):
            return self.cap._of(self.persons.largest()[:-1])
        return self.cap._of(self.charged.largest(users))

    def largest_failure(self, users: range | None = None) -> Fraction:
        """The largest probability of failing of any of the users, or persons."""
        if self.persons is not None and users in (None, self.users):
            return self.persons.largest()[-1]
        return self.failing.largest(users)[0]

    def check_within(self) -> None:
        """Raises InsufficientBudgetError unless a whole plan is charged under the cap."""
        if self.persons is None:
            none = CappedSums(self.users, self.cap, self.failure)
            for users, total in self.pieces():
                none.check(users, total, Fraction(0))
            for users, failure in self.failures():
                none.check(users, self.cap.zero(), failure)
        elif not self._within(self.persons.bound()) and not self._within(self.persons.largest()):
            raise InsufficientBudgetError(
                spent=self.cap.zero(),
                requested=self.largest(),
                remaining=self.cap,
                users=self.users,
            )

    def pieces(self) -> Iterator[tuple[range, Currency]]:
        return ((users, self.cap._of(value)) for users, value in self.charged.pieces())

    def failures(self) -> Iterator[tuple[range, Fraction]]:
        return ((users, failure) for users, (failure,) in self.failing.pieces())
