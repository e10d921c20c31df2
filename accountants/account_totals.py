"""What is promised to the users of an account, and what was spent on them.

The guarantee is the composition of the committed plan, or the cap where there is no plan; every
further entry of the ledger could only lower what is left, so cutting the ledger's tail cannot lower
a claim.  What was spent is a fact about one run (ex post), not a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from privlearn.accountants.charged import Tallies
from privlearn.accountants.guarantee import Composite, as_loss
from privlearn.accountants.loss_structure import total
from privlearn.accountants.person_totals import person_total
from privlearn.accountants.state import AccountState
from privlearn.losses import FailingLoss, GaussianLoss, Loss, without_visits
from privlearn.losses.budgets import Currency


def cap_of(state: AccountState) -> Loss | Currency:
    """The cap, with the probability of failing that was set aside."""
    return bound(state, state.cap, state.failure)


def bound(state: AccountState, cap: Currency, failure: Fraction) -> Loss | Currency:
    """Amounts of the account's currency, with a probability of failing."""
    return FailingLoss(as_loss(cap, state.opened.adjacency), failure) if failure else cap


@dataclass(frozen=True, slots=True)
class Totals:
    """What stands for the users whose totals can be the largest.

    With very many different ones, the last of ``parts`` is a bound on all that are not listed: the
    largest sum in the accountant's currency, as the cap is.  ``bounded`` says of how many.
    """

    parts: list[Composite]
    bounded: int = 0


MOST_TERMS = 5000
"""Losses in all compositions that are looked at one by one."""


def promised(state: AccountState, users: range | None = None) -> Totals:
    """What stands for each user: the distinct plan compositions, or the cap."""
    if state.plan is None:
        return Totals([cap_of(state)])
    if state.visits is not None:
        return Totals([_of_person(state, state.charged.runs_committed, users)])
    return _totals(state, state.charged.committed, users)


def spent(state: AccountState, users: range | None = None) -> Totals:
    """What was actually spent on each user."""
    if state.visits is not None:
        return Totals([_of_person(state, state.charged.runs_spent, users)])
    return _totals(state, state.charged.spent, users)


def _of_person(
    state: AccountState, runs: Mapping[tuple[int, int, Loss], int], users: range | None
) -> Composite:
    """What stands for a person; for one with a visit among ``users`` no more is known."""
    found = person_total(state, runs)
    if found is None and runs:  # no currency that all of them have adds up: the cap's does
        return cap_of(state)
    return found


def _totals(state: AccountState, tallies: Tallies[Loss], users: range | None) -> Totals:
    if users is not None:
        return Totals([total(tallies.of(users.start))])
    tops = tallies.tops()
    if sum(top.terms for top in tops) <= MOST_TERMS:
        return Totals(compositions(tallies, [top.first for top in tops]))

    def numbers(loss: Loss) -> tuple[Fraction, ...]:
        price = state.prices.of(loss)
        return *price.budget.amounts, price.failure

    prices = tallies.sums(numbers, [top.first for top in tops])
    order = sorted(range(len(tops)), key=prices.__getitem__, reverse=True)
    if all(isinstance(without_visits(loss), GaussianLoss) for loss in tallies):
        order = order[:1]  # what they do to privacy is one number
    terms = accumulate(tops[i].terms for i in order)
    kept = max(1, sum(so_far <= MOST_TERMS for so_far in terms))
    parts = compositions(tallies, sorted(tops[i].first for i in order[:kept]))
    rest = [prices[i] for i in order[kept:]]
    if rest:
        *amounts, failure = (max(column) for column in zip(*rest, strict=True))
        parts.append(bound(state, state.cap._of(tuple(amounts)), failure))
    return Totals(parts, len(rest))


def compositions(tallies: Tallies[Loss], firsts: Sequence[int]) -> list[Composite]:
    """What was counted for each of some users, which are in order."""
    return list(dict.fromkeys(total(tally) for tally in tallies.at(firsts)))
