"""What disjoint groups of slots may spend, so that persons who come back stay within the cap.

Without a rule of participation a user is in one group, and each group has the whole cap (parallel
composition).  Under a rule a person is in several, and has several rows in one:

* Losses that are priced for a row are charged by the row: see `one_row_budget`.
* Others, such as a stream that is priced for a person, are charged whole to whoever is in the
  group, which is in as many groups as there are, or k if that is less.

All of this is public.  The accountant computes the same totals from the ledger
(`privlearn.accountants.persons`) and refuses a plan that is above its cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, TypeVar

from privlearn.contract.protocols import Accountant
from privlearn.learners.participation import one_row_budget, rule_of
from privlearn.losses.budgets import Currency
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.rows.domains import Domain
from privlearn.values.participation import Participation

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
        self._cap: Currency = accountant.budget
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
    ) -> list[BatchedPrefixSum[X]]:
        """Running sums over the batches of each group, with the least noise at ``part`` of the cap.

        Under a rule all of them are priced for a row, several of which are a group of rows, or all
        for the person by the stream's own price, whichever makes less noise.

        Args:
            domains: of the groups.
            sizes: of the batches of each group.

        Raises:
            CurrencyError, ValueError: as `BatchedPrefixSum.calibrated`.
        """
        both = list(zip(domains, sizes, strict=True))
        of_row = [
            BatchedPrefixSum.calibrated(
                domain, self.of_row(part), sizes=batches, adjacency=self._adjacency
            )
            for domain, batches in both
        ]
        rule = self.rule
        if rule is None or max(self.visits) == 1 or max(map(len, sizes)) == 1:
            return of_row
        of_person = [
            BatchedPrefixSum.calibrated(
                domain,
                self._cap.share(part / min(len(both), rule.most)),
                sizes=batches,
                adjacency=self._adjacency,
                # where the rule counts within batches without pooling, the group is one of them
                participation=rule if rule.pooled else Participation(visits, rule.apart),
            )
            for (domain, batches), visits in zip(both, self.visits, strict=True)
        ]
        return min(of_row, of_person, key=lambda found: prod(sums.noise_std for sums in found))
