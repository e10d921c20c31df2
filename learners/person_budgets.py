"""What disjoint groups of slots may spend, so that persons who come back stay within the cap.

Without a rule of participation a user is in one group, and each group has the whole cap (parallel
composition).  Under a rule a person is in several, and has several rows in one.  Let m_g be the
most rows of one person in group g, F what a person pays who has all of them there, and P the cap.

* Losses that grow at least as fast as the number of rows are charged F/m_g a row (`shared`): with
  at most k rows in all a person pays at most F times the greatest sum of k shares 1/m_g, of which
  group g has m_g.  For one row a group may spend F/m², as Gaussian mass and ρ grow with the square
  of the rows (and ρ of a bounded range more slowly), or F/m of a pure ε.
* Others, such as a stream that is priced for a person, are charged whole to whoever is in the
  group: F times the number of groups, or k if that is less.

All of this is public.  The accountant computes the same totals from the ledger
(`privlearn.accountants.persons`) and refuses a plan that is above its cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeVar

from privlearn.budgets import Currency, PureDP
from privlearn.domains import Domain
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.participation import Participation
from privlearn.protocols import Accountant

X = TypeVar("X")
_ALL = Fraction(1)


class PersonBudgets:
    """Budgets of disjoint groups of slots; without a rule each has the whole cap.

    Args:
        accountant: whose cap and rule they are.
        groups: of slots, each with the numbers of slots of the public batches that the rule counts
            within, where it does.
    """

    def __init__(self, accountant: Accountant[Any], groups: Sequence[Sequence[int]]) -> None:
        people = accountant.people
        self._cap: Currency = accountant.budget
        self._adjacency = accountant.adjacency
        self.rule = None if people is None else people.rule
        self.visits = [1 if self.rule is None else _most(self.rule, sizes) for sizes in groups]
        self._shared = self._whole = Fraction(1)
        if self.rule is not None:
            self._shared = 1 / shares_of_rows(self.visits, self.rule.most)
            self._whole = Fraction(1, min(len(groups), self.rule.most))

    def of_row(self, group: int, part: Fraction = _ALL) -> Currency:
        """What losses of one row in a group may cost together, of ``part`` of the cap."""
        visits = self.visits[group]
        several = visits if isinstance(self._cap, PureDP) else visits**2
        return self._cap.share(part * self._shared / several)

    def sums(
        self, group: int, domain: Domain[X], sizes: Sequence[int], part: Fraction = _ALL
    ) -> BatchedPrefixSum[X]:
        """Running sums over batches of a group, with the least noise at ``part`` of the cap.

        Under a rule they are priced for a row, several of which are a group of rows, or for the
        person by the stream's own price, whichever makes less noise.

        Raises:
            As `BatchedPrefixSum.calibrated`.
        """
        adjacency = self._adjacency
        of_row = BatchedPrefixSum.calibrated(
            domain, self.of_row(group, part), sizes=sizes, adjacency=adjacency
        )
        rule, visits = self.rule, self.visits[group]
        if rule is None or visits == 1 or len(sizes) == 1:
            return of_row
        inside = rule
        if not rule.pooled:  # the batches of the rule are at least as long as the group
            inside = Participation(visits, rule.apart)
        of_person = BatchedPrefixSum.calibrated(
            domain,
            self._cap.share(part * self._whole),
            sizes=sizes,
            adjacency=adjacency,
            participation=inside,
        )
        return min(of_row, of_person, key=lambda sums: sums.noise_std)


def shares_of_rows(visits: Sequence[int], most: int) -> Fraction:
    """The greatest sum of ``most`` shares 1/m, of which a group with at most m rows has m."""
    left, total = most, Fraction(0)
    for rows in sorted(visits):
        taken = min(rows, left)
        total += Fraction(taken, rows)
        left -= taken
    return total


def _most(rule: Participation, sizes: Sequence[int]) -> int:
    return rule.visits(sum(sizes), len(sizes))
