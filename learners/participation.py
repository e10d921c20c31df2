"""Served learners under a rule of participation: who comes, the public batches, a row's price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from privlearn.budgets import Currency
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.participation import Participation
from privlearn.protocols import Accountant


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


def declare_batches(accountant: Accountant[Any], batches: Sequence[range]) -> None:
    """Declares public batches, if there is a rule that counts within them."""
    rule = rule_of(accountant)
    if rule is not None and rule.batched:
        accountant.divide([batch.start for batch in batches])


def one_row_budget(accountant: Accountant[Any], batches: Sequence[range]) -> Currency:
    """What one row may cost in each of disjoint batches, if it may cost the same in all of them.

    With one row of a person in a batch, as under pooled rules, that is the budget divided by
    min(most, number of batches); see `privlearn.learners.person_budgets`.
    """
    budgets = PersonBudgets(accountant, [[len(batch)] for batch in batches])
    fullest = max(range(len(batches)), key=budgets.visits.__getitem__)
    return budgets.of_row(fullest)
