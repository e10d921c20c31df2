"""How many rows of X the visits of one person in a stream change, and how far apart these are.

Row t of X is slot t of the stream, or the sum over batch t of its slots.  A rule of participation
speaks of slots; where X has a row per batch,

* up to c visits may fall into one row: c = 1 for a pooled rule, else the least of ``per_batch``,
  ``most`` and what fits into the longest batch, slots ``apart``.  Visits i and i + c, in order of
  time, are then in different batches, since i, ..., i + c cannot all be in one; so the visits are c
  patterns with at most one visit a row, as many in each as there are, but for one.  Minkowski's
  inequality adds up what the patterns move.
* two visits that are s slots apart are at least `_batches_between` batches apart.

That takes each batch to lie within one of the batches that the rule counts within.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, final

from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.participation_norms import most_visits
from privlearn.values.participation import Participation


@final
@dataclass(frozen=True, slots=True)
class StreamVisits:
    """At most ``most`` visits, in ``together`` patterns whose visits are ``apart`` rows apart."""

    most: int
    apart: int
    together: int = 1

    def norm(self, factorization: Factorization) -> Fraction:
        """Upper bound on how far they move C X, each by 1: S of the patterns, added up.

        Raises:
            ValueError: no bound is known, see `Factorization.participation_norm`.
        """
        return self.added_up(factorization.participation_norm)

    def added_up(self, norm: Callable[[int, int], float]) -> Fraction:
        """The same, of what ``norm`` gives for a number of visits and how far apart they are."""
        whole, longer = divmod(self.most, self.together)
        total = Fraction(0)
        for visits, patterns in ((whole + 1, longer), (whole, self.together - longer)):
            if patterns:
                total += patterns * Fraction(norm(visits, self.apart))
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"most": self.most, "apart": self.apart, "together": self.together}


def visits_in_slots(rule: Participation, slots: int) -> StreamVisits:
    """Where every slot is a row."""
    return StreamVisits(most_visits(slots, rule.most, rule.apart), rule.apart)


def visits_in_batches(rule: Participation, sizes: Sequence[int]) -> StreamVisits:
    """Where every batch, of so many slots, is a row."""
    most = rule.visits(sum(sizes), len(sizes))
    if rule.pooled:
        return StreamVisits(most, 1)
    together = min(rule.per_batch or most, most, -(-max(sizes) // rule.apart))
    return StreamVisits(most, _batches_between(sizes, together * rule.apart), together)


def _batches_between(sizes: Sequence[int], slots: int) -> int:
    """The fewest batches from one to another so many slots later, if these are different ones.

    That is least, from one batch to the next, between its first slot and the slot so much later.
    """
    stops = list(accumulate(sizes))
    starts = [0, *stops[:-1]]
    later = [
        bisect_right(starts, start + slots) - 1 - batch
        for batch, start in enumerate(starts)
        if start + slots < stops[-1]
    ]
    return max(min(later, default=1), 1)
