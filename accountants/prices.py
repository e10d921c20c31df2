"""What losses cost a person in the currency of an account's cap, and forms that are read once.

No file decides how much work it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any, Generic, TypeVar, cast, final

from privlearn.accountants.loss_structure import by_arrival, dominates, responses
from privlearn.accountants.opening_checks import probability
from privlearn.accountants.persons import Visits
from privlearn.errors import BudgetError
from privlearn.losses import (
    BoundedRangeLoss,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    PureLoss,
    ZCDPLoss,
    each_visit,
    foreign_kinds,
    has_visits,
    leaves_of,
    loss_from_dict,
)
from privlearn.losses.budgets import Budget, Currency, GaussianDP, Renyi, budget_from_dict
from privlearn.noise import Noise, noise_from_dict
from privlearn.rows.domains import Domain, domain_from_dict
from privlearn.values.exact import exact

T = TypeVar("T")
_MOST_SEEN = 1024
_MOST_BITS = 4096  # Of a common denominator of all amounts of an account
MOST_ORDERS = 256
_MOST_VALUES = 200_000
_RESPONSE_WORK = 600
"""The ρ of a randomized response of three or more categories takes as long as so many values."""


class Reader(Generic[T]):
    """Reads JSON forms, and remembers the flat ones: most spends of an account look alike."""

    def __init__(self, read: Callable[[dict[str, Any]], T]) -> None:
        self._read = read
        self._known: dict[tuple[object, ...], T] = {}
        self._last: tuple[dict[str, Any], T] | None = None

    def __call__(self, data: dict[str, Any]) -> T:
        last = self._last
        if last is not None and last[0] is data:  # what was checked is recorded
            return last[1]
        try:
            key = flat(data)
            found = self._known.get(key)
        except TypeError:  # it holds lists or objects
            found = self._read(data)
            self._last = data, found
            return found
        if found is None:
            found = self._read(data)
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[key] = found
        self._last = data, found
        return found


def flat(data: dict[str, Any]) -> tuple[object, ...]:
    """A key for a form without lists and objects, which raise TypeError when it is hashed."""
    # types too: True, 1 and 1.0 are equal, but not all of them are accepted
    return (*data.items(), *map(type, data.values()))


read_loss: Reader[Loss] = Reader(loss_from_dict)
read_budget: Reader[Budget] = Reader(budget_from_dict)
read_domain: Reader[Domain[Any] | None] = Reader(domain_from_dict)
read_noise: Reader[Noise | None] = Reader(noise_from_dict)


@final
@dataclass(slots=True)
class CurveWork:
    """Values of Rényi curves that may still be computed, so that no file decides how many.

    A file of a megabyte could ask for a hundred million.
    """

    left: int = _MOST_VALUES

    def take(self, values: int) -> None:
        """Raises BudgetError if a further loss needs too many values."""
        if values > self.left:
            raise BudgetError(
                f"a loss to be priced with {values} values of its curve: {_MOST_VALUES} and "
                f"{MOST_ORDERS} more for each entry can be computed; use fewer orders, or fewer "
                "different losses"
            )
        self.left -= values


@final
class LossPrice:
    """What a loss costs in one currency.

    Attributes:
        budget: apart from its failures, which are counted by themselves.
        failure: how likely it is to fail.
        work: values of its curve that were computed for it.
    """

    def __init__(self, budget: Currency, failure: Fraction, work: int) -> None:
        self.budget, self.failure, self.work = budget, failure, work

    def covers(self, other: LossPrice) -> bool:
        """Whether it is enough for another one."""
        same = self.budget is other.budget
        return (same or self.budget.covers(other.budget)) and self.failure >= other.failure

    @cached_property
    def form(self) -> dict[str, Any]:
        """The budget as it is written."""
        form = self.budget.to_dict()
        read = read_budget(form)
        assert read == self.budget
        self.budget = cast(Currency, read)  # the very one that is read in entries of tokens
        return form


_NEVER = Fraction(0)
_GROWING: tuple[type[Loss], ...] = (
    GaussianLoss,
    GeneralizedGaussian,
    ZCDPLoss,
    PureLoss,
    LaplaceLoss,
    BoundedRangeLoss,
)
"""Kinds whose loss for m visits is at least m/r times that for r; docs/proofs.md has the proofs."""
_PRICED: dict[tuple[type[Currency], tuple[Fraction, ...], type[Loss], Loss], LossPrice] = {}
"""By currency, with its orders, and loss: the prices that all accounts share."""


@final
class Prices:
    """What losses and budgets cost one account, whose sums of them stay short.

    Args:
        cap: of the account.
        visits: the rule under which a person may come back; without one a person is an index.
        apart: whether each message of a person has noise of its own, so that losses add up.

    Attributes:
        work: which may be shared by the accountants of a ledger that is audited.
        orders: of a Rényi cap; none in other currencies.
        denominator: a common one of all amounts.
    """

    def __init__(self, cap: Currency, visits: Visits | None = None, *, apart: bool = False) -> None:
        self._cap, self._visits, self._apart = cap, visits, apart
        self.work = CurveWork()
        self.orders = tuple(cap.curve) if isinstance(cap, Renyi) else ()
        self.denominator = 1
        self._prices: dict[Loss, LossPrice] = {}
        self._seen_losses: dict[int, tuple[Loss, LossPrice]] = {}
        self._seen_budgets: dict[int, Budget] = {}
        """By identity: prices, and budgets that were read before, in the currency of the cap."""
        self._of_person: dict[tuple[Loss, int], Loss] = {}

    def forget(self, denominator: int) -> None:
        """Goes back to the ``denominator`` before an entry that does not check."""
        self.denominator = denominator
        self._seen_losses.clear()
        self._seen_budgets.clear()

    def of_person(self, loss: Loss, users: range) -> LossPrice:
        """What a loss costs here for one person with all visits in a range.

        Raises:
            CurrencyError, BudgetError: as `of` and `loss_of_person`.
        """
        return self.of(loss if self._visits is None else self.loss_of_person(loss, users))

    def loss_of_person(self, loss: Loss, users: range) -> Loss:
        """The loss of one person with all visits in a range; of one row without a rule.

        Raises:
            BudgetError: no such loss is known, or the range cuts a batch of the rule.
        """
        if self._visits is None:
            return loss
        rule, most = self._visits.rule, self._visits.most(users)
        found = self._of_person.get((loss, most))
        if found is None:
            if by_arrival(loss):
                raise BudgetError(
                    "a loss by arrival under a rule of participation: it is not known which of its "
                    "slots are one person's; state one loss for all"
                )
            try:
                found = each_visit(loss, most) if self._apart else loss.for_visits(most, rule.apart)
            except ValueError as error:
                raise BudgetError(str(error)) from None
            if len(self._of_person) >= _MOST_SEEN:
                self._of_person.clear()
            self._of_person[loss, most] = found
        return found

    def shares(self, loss: Loss) -> bool:
        """Whether r of m visits cost at most r/m of the loss of m."""
        if self._visits is None:
            return False
        if self._apart:
            return True
        kinds = _GROWING
        if self.orders:  # at a Rényi order that is not proved of a bounded range
            kinds = _GROWING[:-1]
        elif isinstance(self._cap, GaussianDP):  # nor of fixed prices of pure losses
            kinds = (GaussianLoss,)
        grows = all(isinstance(part, kinds) for part, _ in leaves_of(loss))
        return grows and not has_visits(loss)

    def dominates(self, stated: Loss, actual: Loss, users: range) -> bool:
        """Whether ``stated`` is provably at least ``actual``, for all visits of a person."""
        if stated is actual or stated == actual:
            return True
        if self.shares(stated) and not self.shares(actual):
            return False  # of r visits it may cost more than r/m of what m cost
        return dominates(self.loss_of_person(stated, users), self.loss_of_person(actual, users))

    def of(self, loss: Loss) -> LossPrice:
        """What a loss of one row costs here.

        Raises:
            CurrencyError: no finite price in this currency.
            BudgetError: it takes too long, or its numbers are too long.
        """
        seen = self._seen_losses.get(id(loss))
        if seen is not None and seen[0] is loss:  # its hash takes time
            return seen[1]
        found = self._prices.get(loss)
        if found is None:
            found = self._priced(loss)
            if len(self._prices) >= 4096:
                self._prices.clear()
            self._prices[loss] = found
        self.addable(found.failure, *found.budget.amounts)
        self._see(found.budget)
        if len(self._seen_losses) >= _MOST_SEEN:
            self._seen_losses.clear()
        self._seen_losses[id(loss)] = loss, found
        return found

    def _priced(self, loss: Loss) -> LossPrice:
        key = self._cap.__class__, self.orders, loss.__class__, loss
        found = _PRICED.get(key)
        if found is not None:
            self.work.take(found.work)
            return found
        orders = len(self.orders) if len(self.orders) > 1 else 0
        work = orders + _RESPONSE_WORK * responses(loss)
        self.work.take(work)
        failure = loss.failure() or Fraction(0)
        found = LossPrice(self._cap.price(loss.unless_failed() if failure else loss), failure, work)
        if not any(foreign_kinds(loss)):  # equal ones of ours are alike
            if len(_PRICED) >= 4096:
                _PRICED.clear()
            _PRICED[key] = found
        return found

    def addable(self, *amounts: Fraction) -> None:
        """Raises BudgetError for amounts whose sums would be too long to work with.

        A sum of fractions can have as many digits as all denominators together.
        """
        for amount in amounts:
            if self.denominator % amount.denominator:
                common = lcm(self.denominator, amount.denominator)
                if common.bit_length() > _MOST_BITS:
                    raise BudgetError(
                        f"an amount with a denominator of {amount.denominator.bit_length()} bits: "
                        f"a common denominator of all amounts may have {_MOST_BITS} bits, so that "
                        "their sums can be computed; write them as decimals of few digits"
                    )
                self.denominator = common

    def currency(self, data: dict[str, Any]) -> Currency:
        """A budget in the currency of the cap, from its form.

        Raises:
            CurrencyError, BudgetError: another currency, or its numbers are too long.
        """
        budget = read_budget(data)
        if not isinstance(budget, Currency):
            raise BudgetError(f"{budget} is not a currency")
        if self._seen_budgets.get(id(budget)) is not budget:
            self._cap._same_kind(budget)  # raises for another currency
            self.addable(*budget.amounts)
            self._see(budget)
        return budget

    def of_entry(self, data: dict[str, Any], failing: str, *, probable: bool = True) -> LossPrice:
        """A budget and a probability of failing as an entry states them.

        Args:
            data: form of the budget.
            failing: text of the probability.
            probable: whether to refuse one that is none; an audit counts it all the same.

        Raises:
            CurrencyError, BudgetError: as `currency`, or no probability.
        """
        budget, failure = self.currency(data), _NEVER
        if failing != "0":
            failure = probability("failure", failing) if probable else exact("failure", failing)
            self.addable(failure)
        return LossPrice(budget, failure, 0)

    def _see(self, budget: Currency) -> None:
        if len(self._seen_budgets) >= _MOST_SEEN:
            self._seen_budgets.clear()
        self._seen_budgets[id(budget)] = budget
