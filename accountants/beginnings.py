"""What must hold where an account is begun, or gone on with: cap, noise, name and registry."""

from __future__ import annotations

import secrets
from fractions import Fraction
from typing import Any, Final

from privlearn.accountants.guarantee import in_gaussian, in_renyi, in_zcdp, unless_failed
from privlearn.accountants.state import AccountState
from privlearn.errors import BudgetError, LedgerError, PeopleError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import OpenEntry
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.adjacency import Trust
from privlearn.values.participation import Participation

ON_DEVICES: Final = "drawn on the users' devices, as attested"


def in_currency(
    budget: Currency | ApproxDP,
    currency: type[Currency] | None,
    order_for: Loss | None,
    failure: Fraction,
) -> tuple[Currency, ApproxDP | None]:
    """The cap in the currency that is counted in, and the (ε, δ) promise that it was given as.

    Raises:
        BudgetError: a currency that does not fit the budget, or a loss that is for another one.
        TypeError: no budget.
    """
    if order_for is not None and not (currency is Renyi and isinstance(budget, ApproxDP)):
        raise BudgetError("order_for: is for an (ε, δ) budget with currency=Renyi")
    if isinstance(budget, ApproxDP):
        apart = unless_failed(budget, failure)
        if currency is None or currency is ZCDP:
            return in_zcdp(apart), budget
        if currency is GaussianDP:
            return in_gaussian(apart), budget
        if currency is Renyi:
            return in_renyi(apart, order_for), budget
        raise BudgetError(
            f"currency = {currency}: an (ε, δ) budget counts in ZCDP, GaussianDP or Renyi"
        )
    if not isinstance(budget, Currency):
        raise TypeError(f"budget = {budget!r}: must be a budget such as ZCDP('1')")
    if currency is not None and currency is not type(budget):
        raise BudgetError(f"currency = {currency}: the budget {budget} has its own")
    return budget, None


def participation_form(people: People) -> dict[str, Any]:
    """What an ``open`` entry says of a rule of participation and its registry."""
    return {"rule": people.rule.to_dict(), "registry": people.id}


def check_registry(people: object) -> None:
    """Raises TypeError unless it is a registry, or there is none; says nothing of what it is."""
    if people is not None and not isinstance(people, People):
        raise TypeError(
            f"people: a {type(people).__name__}: must be the registry that keeps the rule, "
            "People.create(path, rule), People.open(path) or People.memory(rule)"
        )


def check_people(people: People | None, state: AccountState) -> None:
    """Raises PeopleError unless it is the registry that the accountant was begun with."""
    begun = state.opened.participation
    if people is None or begun is None or begun != participation_form(people):
        had = "no registry"
        if begun is not None:
            rule = Participation.from_dict(begun["rule"])
            had = f"registry {begun['registry']} and {rule}, which was at slot {state.admitted} or "
            had += (
                "later (if it is lost: People.replace_lost, or 'replace_lost' of People.postgres)"
            )
        given = "none" if people is None else f"registry {people.id} and {people.rule}"
        raise PeopleError(f"people: the accountant was begun with {had}; given was {given}")
    people.bind(state.opened.accountant, state.users)
    if state.visits is not None and state.visits.starts:
        people.divide(state.visits.starts)
    if state.admitted > state.users.start:
        people.check_not_older(state.admitted - 1)


def new_id(taken: set[str]) -> str:
    """A public name for an accountant: 8 hexadecimal digits."""
    while (name := secrets.token_hex(4)) in taken:
        pass
    return name


def opened_as(book: Ledger, trust: Trust, accountant: str | None) -> OpenEntry:
    """The one accountant of the ledger that can be meant."""
    of_trust = [e for e in book.opened if e.trust is trust]
    found = [e for e in of_trust if accountant in (None, e.accountant)]
    if not found:
        named = "" if accountant is None else f" {accountant!r}"
        had = ", ".join(f"{e.accountant} ({e.trust.value})" for e in book.opened) or "none"
        raise LedgerError(f"{book.name} holds no {trust.value} accountant{named}; it has {had}")
    still_open = [entry for entry in found if entry.accountant in book.open_accountants]
    if len(still_open) > 1:
        ids = ", ".join(entry.accountant for entry in still_open)
        raise LedgerError(f"accountant: {len(still_open)} {trust.value} ones are open, {ids}")
    return (still_open or found)[0]


def noise_like(opened: OpenEntry) -> NoiseSource:
    """Secure noise, for an account that was begun with it.

    Raises:
        LedgerError: it was begun with that of a simulation, which needs a seed.
    """
    if opened.simulated:
        raise LedgerError("noise: a simulation ledger is resumed with NoiseSource.simulation(seed)")
    return NoiseSource.secure()
