"""Learners under a rule of participation: who comes, the public batches, and the price of a row.

A mechanism and its loss are about one row.  Under a rule the accountant charges a person for all of
that person's rows, so a learner whose batches are equally dear may spend less on each:
`one_row_budget` is the only place that says how much less.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, TypeVar, final

from privlearn.contract.protocols import Accountant
from privlearn.losses.budgets import Currency, PureDP
from privlearn.people import People
from privlearn.people.argument import not_as_ruled
from privlearn.values.participation import Participation

B = TypeVar("B", bound=Currency)


@final
class NotGiven:
    """Type of `NOT_GIVEN`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven()
"""No word on who came; None says that it is nobody who can be told apart."""

PersonId = str | bytes | int | float | None | NotGiven
"""An id; None, an empty one and nan are none."""


def given(ids: Sequence[Any] | None) -> object:
    """Ids of many users, which None says are not given."""
    return NOT_GIVEN if ids is None else ids


def rule_of(accountant: Accountant[Any]) -> Participation | None:
    """The rule under which persons may come back; None if a person is an index."""
    return None if accountant.people is None else accountant.people.rule


def check_given(people: People | None, given: object, name: str) -> None:
    """Checks that ids are given exactly where there is a rule.

    Raises:
        ProvenanceError: they are not.
    """
    if (people is None) is not (given is NOT_GIVEN):
        raise not_as_ruled(None if people is None else people.rule, name)


def declare_batches(accountant: Accountant[Any], starts: Sequence[int]) -> None:
    """Declares where public batches begin, if there is a rule that counts within them."""
    rule = rule_of(accountant)
    if rule is not None and rule.batched:
        accountant.divide(starts)


def one_row_budget(
    accountant: Accountant[B], batches: Sequence[range], rooms: Sequence[int] | None = None
) -> B:
    """What one row may cost in each batch, so that no person exceeds the accountant's budget.

    Every batch is spent on once.  In batch j a person has up to m_j rows, whose loss is at most
    m_j² that of one row in zCDP and Gaussian mass, that is m_j a row, and m_j in pure ε, that is 1;
    the dearest ``most`` rows together bound what a person pays (docs/proofs.md, "Persons who
    return: totals").  With one row a batch, as under pooled rules, that is min(most, number of
    batches).

    Args:
        accountant: with or without a rule.
        batches: disjoint ranges of slots.
        rooms: m_j, where it is not what the rule says of one batch.
    """
    rule = rule_of(accountant)
    if rule is None:
        return accountant.budget
    pure = isinstance(accountant.budget, PureDP)
    found = [rule.visits(len(batch)) for batch in batches] if rooms is None else rooms
    factor, left = 0, rule.most
    for room in sorted(found, reverse=True):
        taken = min(room, left)
        factor += taken if pure else taken * room
        left -= taken
    return accountant.budget.share(Fraction(1, factor))
