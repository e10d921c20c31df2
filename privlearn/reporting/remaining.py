"""What is left of the cap of an account."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import final

import numpy as np

from privlearn.accountants.guarantee import reached_in_zcdp
from privlearn.accountants.person_totals import person_cost
from privlearn.accountants.prices import LossPrice
from privlearn.accountants.shown_numbers import counted, fixed, up
from privlearn.accountants.state import AccountState
from privlearn.errors import BudgetError, PrivlearnError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.reporting.asked import minute_text
from privlearn.reporting.costs import MOST_RUNS, NO_PRICE, Costs, total
from privlearn.reporting.model import MOST_LISTED, Balance, Failing, PlanItemLeft, Purchase
from privlearn.reporting.spend_table import Group
from privlearn.values.exact import float_down, float_up

_MOST_BOUGHT = 10


@final
class Remaining:
    """What of the cap of one account is spent, reserved and left, and what that buys."""

    def __init__(self, costs: Costs) -> None:
        self._costs, self._unknown = costs, costs.unknown

    def balance(self) -> Balance:
        state, opened = self._costs.state, self._costs.state.opened
        spent = reserved = remaining = least = user = None
        if not self._unknown:
            try:
                user, spent, charged = self._paid()
                left = max(
                    self._costs.cap - (spent if state.closed else max(charged, spent)), Fraction(0)
                )
                held = Fraction(0) if state.closed else max(charged - spent, Fraction(0))
                reserved, remaining = float_up(held), float_down(left) + 0.0
                least = self._least_charged()
            except NO_PRICE as error:
                self._unknown = str(error)
        return Balance(
            accountant=state.number,
            id=opened.accountant,
            software=opened.software,
            trust=opened.trust.value,
            adjacency=opened.adjacency.value,
            users=opened.users,
            population=opened.population,
            opened=minute_text(self._costs.table.opened(state.number)),
            closed=state.closed,
            planned=state.plan is not None,
            promise=None if state.promise is None else str(state.promise),
            counted=_counted(state),
            unit=self._costs.unit,
            cap=float_up(self._costs.cap),
            user=user,
            spent=None if spent is None or self._unknown else float_up(spent),
            reserved=None if self._unknown else reserved,
            remaining=None if self._unknown else remaining,
            most_remaining=None if least is None or self._unknown else float_down(least) + 0.0,
            unknown=self._unknown,
            failing=self._failing(),
            buys=[] if self._unknown else self._buys(),
            plan_left=[
                PlanItemLeft(
                    label=item.label,
                    users=(rest.start, rest.stop),
                    count=item.count,
                    left=max(item.left, 0) + len(item.rests),
                )
                for item in (state.plan or [])[: 10 * MOST_LISTED]
                if not state.closed and (rest := item.rest) is not None
            ][:MOST_LISTED],
        )

    def _paid(self) -> tuple[int | None, Fraction, Fraction]:
        state, term = self._costs.state, self._costs.term
        if self._costs.persons:
            return (
                None,
                person_cost(state, state.charged.runs_spent).amounts[term],
                self._costs.charged[term],
            )
        if self._costs.user is not None:
            user = self._costs.user
        elif state.closed and state.plan is not None:
            user = self._costs.most_spent()
        else:
            user = state.meter.charged.extremes(term)[0]
        charged = state.meter.charged.largest(range(user, user + 1))[term]
        return user, self._spent_on(user, lambda price: price.budget.amounts[term]), charged

    def _spent_on(self, user: int, amount: Callable[[LossPrice], Fraction]) -> Fraction:
        tally = self._costs.state.charged.spent.of(user)
        return total((amount(self._costs.state.prices.of(loss)), n) for loss, n in tally.items())

    def _least_charged(self) -> Fraction | None:
        """What the least charged user has left; None where it is not known who that is."""
        state = self._costs.state
        if self._costs.persons or self._costs.user is not None:
            return None
        if state.closed and state.plan is not None:
            return None
        return max(self._costs.cap - state.meter.charged.extremes(self._costs.term)[2], Fraction(0))

    def _failing(self) -> Failing | None:
        state = self._costs.state
        cap, closed = state.failure, state.closed
        if not cap:
            return None
        user, spent, charged = None, None, state.meter.largest_failure()
        try:
            if not self._costs.persons and not self._unknown:
                asked = self._costs.user
                user = state.meter.failing.extremes()[0] if asked is None else asked
                charged = state.meter.failing.largest(range(user, user + 1))[0]
                spent = self._spent_on(user, lambda price: price.failure)
        except NO_PRICE:
            user = None
        if spent is None:
            return Failing(cap=float_up(cap), user=None, spent=None, reserved=None, remaining=None)
        left = cap - (spent if closed else max(charged, spent))
        return Failing(
            cap=float_up(cap),
            user=user,
            spent=float_up(spent),
            reserved=0.0 if closed else float_up(max(charged - spent, Fraction(0))),
            remaining=float_down(max(left, Fraction(0))) + 0.0,
        )

    def _buys(self) -> list[Purchase]:
        """Further runs of what was run before, and the noise of one more Gaussian release.

        For all users together, or for the one who is asked about.
        """
        state, asked = self._costs.state, self._costs.user
        if state.closed or state.plan is not None:
            return []
        whose = None if asked is None else range(asked, asked + 1)
        all_charged = self._costs.charged if whose is None else state.meter.charged.largest(whose)
        pairs = zip(state.cap.amounts, all_charged, strict=True)
        room = tuple([max(cap - charged, Fraction(0)) for cap, charged in pairs])
        if not all(room):
            return []
        failure = max(state.failure - state.meter.largest_failure(whose), Fraction(0))
        found: list[Purchase] = []
        known: set[tuple[str, int]] = set()
        for group, last in self._last_of_groups():
            prices = [self._price_of_run(self._costs.table.losses[number]) for number in last]
            runs = min((_runs(room, failure, price) for price in prices), default=0)
            if runs > 0 and (group.mechanism, runs) not in known:
                known.add((group.mechanism, runs))  # of labels alike the last is named
                whom = "all users" if asked is None else f"user {asked}"
                told = (
                    f"{counted(runs, 'more message')} of {'every user' if asked is None else whom}"
                    if group.attested
                    else f"{counted(runs, 'more run')} for {whom}"
                )
                what = f"{told}, of {group.mechanism} as under {group.label!r}"
                found.append(Purchase(what=what, runs=runs))
        if not self._costs.persons and not state.opened.attested:
            found += _one_release(state.cap._of(room))
        return found

    def _price_of_run(self, loss: Loss) -> LossPrice | None:
        if not self._costs.persons:
            return self._costs.price(loss)
        try:
            return self._costs.state.prices.of_person(loss, self._costs.state.users)
        except NO_PRICE:
            return None

    def _last_of_groups(self) -> list[tuple[Group, list[int]]]:
        rows = self._costs.columns
        groups, places = np.unique(rows.group[::-1], return_index=True)
        found = []
        for place in np.argsort(places)[:_MOST_BOUGHT].tolist():
            at = len(rows) - 1 - int(places[place])
            first = int(np.searchsorted(rows.number, rows.number[at]))
            losses = np.unique(rows.loss[first : at + 1]).tolist()
            if len(losses) <= MOST_RUNS:  # of more parts the dearest is not looked for
                found.append((self._costs.table.groups[int(groups[place])], losses))
        return found


def _runs(room: Sequence[Fraction], failure: Fraction, price: LossPrice | None) -> int:
    if price is None or not all(price.budget.amounts):
        return 0
    fits = [int(left // one) for left, one in zip(room, price.budget.amounts, strict=True)]
    if price.failure:
        fits.append(int(failure // price.failure))
    return min(fits)


def _one_release(room: Currency) -> list[Purchase]:
    if isinstance(room, PureDP):
        factor = float_up(1 / room.epsilon)
        shown = _multiplier(1 / room.epsilon, 1)
        what = f"one Laplace release with noise of scale {shown} times its sensitivity"
        return [Purchase(what=what, noise_multiplier=factor)]
    try:
        exact_mass = room.gaussian_mass()
        mass = float_down(exact_mass)
    except PrivlearnError:
        return []
    if not mass > 0:
        return []
    factor = math.sqrt(1 / mass) * (1 + 1e-15)
    shown = _multiplier(1 / exact_mass, 2)
    what = f"one Gaussian release with noise of standard deviation {shown} times its sensitivity"
    return [Purchase(what=what, noise_multiplier=factor)]


def _multiplier(power: Fraction, root: int) -> str:
    """The smallest number of six digits whose square, or itself, is not below ``power``."""
    number = up(float(power) ** (1 / root))
    while Fraction(number) ** root < power:
        number = up(math.nextafter(float(number), math.inf) * (1 + 1e-11))
    return number


def _counted(state: AccountState) -> str:
    if state.promise is None or not isinstance(state.cap, ZCDP):
        return ""
    try:
        reached = reached_in_zcdp(state.promise, state.failure)
    except (BudgetError, ValueError, ArithmeticError):  # whatever a file holds
        return ""
    return (
        f"counted in ρ, Gaussian noise uses up the cap at ε = {fixed(reached)}; with "
        "currency=GaussianDP it may use all of the promise"
    )
