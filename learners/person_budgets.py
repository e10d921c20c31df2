"""What disjoint groups of slots may spend, so that persons who come back stay within the cap.

Without a rule of participation a user is in one group, and each group has the whole cap (parallel
composition).  Under a rule a person is in several, and has several rows in one, each of which is
charged (`one_row_budget`).  All of this is public.  The accountant computes the same totals from
the ledger (`privlearn.accountants.persons`) and refuses a plan that is above its cap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from privlearn.contract.protocols import Accountant
from privlearn.learners.participation import one_row_budget, rule_of
from privlearn.losses.budgets import Currency
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.least_error import least_error
from privlearn.rows.domains import Domain

X = TypeVar("X")
_ALL = Fraction(1)


class PersonBudgets:
    """Budgets of disjoint groups of slots; without a rule each has the whole cap.

    Args:
        accountant: whose cap and rule they are.
        groups: of slots.
        batches: how many public batches of the rule each group is.
    """

    def __init__(
        self, accountant: Accountant[Any], groups: Sequence[range], batches: Sequence[int] = ()
    ) -> None:
        self._adjacency = accountant.adjacency
        self.rule, self._row = rule_of(accountant), accountant.budget
        self.visits = [1] * len(groups)
        if self.rule is not None:
            pairs = zip(groups, batches or self.visits, strict=True)
            self.visits = [self.rule.visits(len(users), count) for users, count in pairs]
            self._row = one_row_budget(accountant, groups, self.visits)

    def of_row(self, part: Fraction = _ALL) -> Currency:
        """What losses of one row may cost together in each group, of ``part`` of the cap."""
        row: Currency = self._row
        return row.share(part)

    def sums(
        self,
        domains: Sequence[Domain[X]],
        sizes: Sequence[Sequence[int]],
        part: Fraction = _ALL,
        *,
        factorization: Callable[[int], Factorization] = least_error,
    ) -> list[BatchedPrefixSum[X]]:
        """Sums of each group, in so many batches, with the least noise at ``part`` of the cap.

        Args:
            domains: of one row, for each group.
            sizes: of the batches of each group.
            part: of the cap.
            factorization: for so many batches; default that of the least largest error.

        Raises:
            CurrencyError, ValueError: as `BatchedPrefixSum.calibrated`.
        """
        budget, adjacency = self.of_row(part), self._adjacency
        return [
            BatchedPrefixSum.calibrated(
                domain,
                budget,
                sizes=batches,
                adjacency=adjacency,
                factorization=factorization(len(batches)),
            )
            for domain, batches in zip(domains, sizes, strict=True)
        ]
