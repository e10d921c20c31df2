"""What a person is promised, and what was spent on one, who may come back under a public rule.

The pattern of a person's visits may depend on earlier outputs, so that only what has a filter adds
up: Gaussian mass, ρ, pure ε (docs/proofs.md, "Persons who return: totals").  In each of them the
total is the dynamic programme of `privlearn.accountants.persons`, and each bound holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from privlearn.accountants.persons import PersonCharges
from privlearn.accountants.state import AccountState
from privlearn.losses import FailingLoss, GaussianLoss, Loss, PureLoss, ZCDPLoss
from privlearn.losses.budgets import Currency
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up

_DIGITS = 24  # Of amounts that are added up, so that their common denominator stays short


@final
@dataclass(frozen=True)
class LeastLoss(Loss):
    """Whatever has all of these losses as bounds; never in a ledger."""

    kind = "least"
    options: tuple[Loss, ...]

    @property
    def adjacency(self) -> Adjacency:
        return self.options[0].adjacency

    def renyi(self, order: float) -> float:
        return min(option.renyi(order) for option in self.options)

    def zcdp(self) -> Fraction | None:
        return min((rho for o in self.options if (rho := o.zcdp()) is not None), default=None)

    def pure(self) -> Fraction | None:
        return min((e for o in self.options if (e := o.pure()) is not None), default=None)

    def numbers(self) -> dict[str, Any]:
        return {"options": [option.to_dict() for option in self.options]}

    def doubled(self) -> Loss:
        return LeastLoss(tuple(option.doubled() for option in self.options))


def person_total(state: AccountState, runs: Mapping[tuple[int, int, Loss], int]) -> Loss | None:
    """A bound on the loss of any one person, of runs of losses (of one row) on ranges of slots.

    None if there are none.

    Raises:
        BudgetError: a loss has no price for several visits, or none that adds up over patterns.
    """
    if not runs:
        return None
    adjacency = state.opened.adjacency
    failure = _most(state, runs, lambda loss: loss.failure())
    mass = _most(state, runs, lambda loss: loss.unless_failed().gaussian())
    options: list[Loss] = []
    if mass is not None:
        options = [GaussianLoss(mass, adjacency=adjacency)]
    else:
        rho = _most(state, runs, lambda loss: loss.unless_failed().zcdp())
        pure = _most(state, runs, lambda loss: loss.unless_failed().pure())
        if pure is not None:
            options.append(PureLoss(pure, adjacency=adjacency))
        if rho is not None:
            options.append(ZCDPLoss(rho, adjacency=adjacency))
    if not options:
        return None
    bound = options[0] if len(options) == 1 else LeastLoss(tuple(options))
    return FailingLoss(bound, failure) if failure else bound


def person_cost(state: AccountState, runs: Mapping[tuple[int, int, Loss], int]) -> Currency:
    """The most that runs of losses cost any one person in the accountant's currency.

    Raises:
        CurrencyError, BudgetError: a loss without a price, or without one for several visits.
    """
    assert state.visits is not None
    charges = PersonCharges(state.visits, len(state.cap.amounts))
    for (start, stop, loss), count in runs.items():
        users = range(start, stop)
        price = state.prices.of_person(loss, users).budget * count
        charges.charge(users, price.amounts, state.prices.shares(loss))
    return state.cap._of(charges.largest())


def _most(
    state: AccountState,
    runs: Mapping[tuple[int, int, Loss], int],
    amount: Callable[[Loss], Fraction | None],
) -> Fraction | None:
    visits = state.visits
    assert visits is not None
    charges = PersonCharges(visits, 1)
    for (start, stop, loss), count in runs.items():
        users = range(start, stop)
        found = amount(state.prices.loss_of_person(loss, users))
        if found is None:
            return None
        charges.charge(users, (round_up(found, _DIGITS) * count,), state.prices.shares(loss))
    return charges.largest()[0]
