"""What one person can be charged who comes back, under a public rule of participation.

A token on a range of slots costs a person F for all the visits of this person in it.  Its cost is
*shared* if r of m visits cost at most (r/m)·F, as where F grows at least as fast as the number of
visits; else, as for streams, it is charged *whole* to whoever has a visit in the range.  The most
that a person pays is then at most

    max over admissible patterns of  sum over visits of F/m  +  sum over whole tokens met of F,

and a dynamic programme over pieces of slots, on which the same tokens stand, finds that maximum, or
a bound on it: visits in two pieces are taken to be far enough apart if some two slots of these
pieces are (docs/proofs.md, "Persons who return: totals").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import final

import numpy as np

from privlearn.accountants.per_user_charge import Amounts
from privlearn.errors import BudgetError, UsersError
from privlearn.participation import Participation

_MOST_PIECES = 1024
"""Pieces of slots for the dynamic programme, which takes their square; with more, a bound."""


@final
@dataclass(slots=True)
class Visits:
    """The rule, and its public batches: how many rows of one person a range can hold."""

    rule: Participation
    users: range
    starts: tuple[int, ...] = ()
    """Where batches begin, in ascending order; none while they are not declared."""

    def most(self, users: range) -> int:
        """The most visits of one person in a range of slots.

        Raises:
            BudgetError: the rule counts within batches, and none were declared, or the range cuts
            one.
        """
        if not self.rule.batched:
            return self.rule.visits(len(users))
        if not self.starts:
            raise BudgetError(
                f"{self.rule}: counts within batches; declare them before the first token, "
                "accountant.divide(starts)"
            )
        return self.rule.visits(len(users), self._batches(users))

    def _batches(self, users: range) -> int:
        first = bisect_left(self.starts, users.start)
        stop = bisect_left(self.starts, users.stop)
        begins = first < len(self.starts) and self.starts[first] == users.start
        ends = users.stop == self.users.stop or (
            stop < len(self.starts) and self.starts[stop] == users.stop
        )
        if not (begins and ends):
            low = self.starts[max(bisect_right(self.starts, users.start) - 1, 0)]
            raise BudgetError(
                f"users = {users!r}: cuts a batch of the rule, such as the one from slot {low} on; "
                "a token is for whole batches"
            )
        return stop - first


@final
@dataclass(slots=True)
class PersonCharges:
    """Amounts that are charged to a person with a visit in a range of slots, in exact numbers."""

    visits: Visits
    terms: int
    """How many numbers are charged at once; each adds up by itself."""
    _whole: dict[tuple[int, int], Amounts] = field(default_factory=dict)
    _shared: dict[tuple[int, int], Amounts] = field(default_factory=dict)
    """Per visit."""

    def charge(
        self, users: range, amounts: Amounts, shared: bool, *, released: bool = False
    ) -> None:
        """Adds ``amounts``, for all visits in a range of slots, or takes off what was added."""
        start = max(users.start, self.visits.users.start)
        stop = min(users.stop, self.visits.users.stop)
        if start >= stop:  # only in what an audit reads
            return
        book = self._shared if shared else self._whole
        sign = -1 if released else 1
        each = self.visits.most(users) if shared else 1
        before = book.get((start, stop), (Fraction(0),) * self.terms)
        after = tuple(a + sign * b / each for a, b in zip(before, amounts, strict=True))
        if any(after):
            book[start, stop] = after
        else:
            book.pop((start, stop), None)

    def with_added(self, users: range, amounts: Amounts, shared: bool) -> PersonCharges:
        """What it would be after a further charge."""
        other = PersonCharges(self.visits, self.terms, dict(self._whole), dict(self._shared))
        other.charge(users, amounts, shared)
        return other

    def largest(self) -> Amounts:
        """The most that one person can be charged, each number by itself."""
        return tuple(self._largest(term) for term in range(self.terms))

    def _largest(self, term: int) -> Fraction:
        whole = {users: value[term] for users, value in self._whole.items() if value[term]}
        shared = {users: value[term] for users, value in self._shared.items() if value[term]}
        if not whole and not shared:
            return Fraction(0)
        unit = lcm(*(v.denominator for v in (*whole.values(), *shared.values())))
        pieces = _Pieces(
            self.visits,
            {users: int(value * unit) for users, value in whole.items()},
            {users: int(value * unit) for users, value in shared.items()},
        )
        return Fraction(pieces.largest(), unit)


class _Pieces:
    """Neighbouring pieces of slots, on each of which the same charges stand; integers."""

    def __init__(
        self,
        visits: Visits,
        whole: dict[tuple[int, int], int],
        shared: dict[tuple[int, int], int],
    ) -> None:
        edges = sorted({at for users in (*whole, *shared) for at in users})
        self.starts, self.stops = edges[:-1], edges[1:]
        number = {at: i for i, at in enumerate(edges)}
        self.whole = [(number[a], number[b], w) for (a, b), w in whole.items()]
        change = [0] * len(edges)
        for (a, b), amount in shared.items():
            change[number[a]] += amount
            change[number[b]] -= amount
        self.per_visit: list[int] = []
        total = 0
        for step in change[:-1]:
            total += step
            self.per_visit.append(total)
        self.room = [visits.most(range(a, b)) for a, b in zip(self.starts, self.stops, strict=True)]
        self.most = min(visits.rule.most, sum(self.room))
        self.apart = visits.rule.apart

    def largest(self) -> int:
        """The maximum, or where there are very many pieces a bound on it."""
        if len(self.starts) > _MOST_PIECES or self.most > _MOST_PIECES:
            return self._by_greed()
        return self._by_programme()

    def _met(self) -> list[int]:
        """The whole charges on each piece."""
        change = [0] * (len(self.starts) + 1)
        for first, stop, amount in self.whole:
            change[first] += amount
            change[stop] -= amount
        found, total = [], 0
        for step in change[:-1]:
            total += step
            found.append(total)
        return found

    def _by_greed(self) -> int:
        """The dearest visits one by one; exact where no whole charge is on two pieces.

        A further visit in a piece never costs more than the first, so the dearest visits of each
        piece come first; no whole charge is ever counted more than once in all.
        """
        gains: list[tuple[int, int]] = []
        for met, each, room in zip(self._met(), self.per_visit, self.room, strict=True):
            gains.append((met + each, 1))
            if room > 1:
                gains.append((each, room - 1))
        gains.sort(reverse=True)
        total, left = 0, self.most
        for gain, times in gains:
            taken = min(times, left)
            total += taken * gain
            left -= taken
        once = sum(amount for _, _, amount in self.whole)
        return min(total, once + self.most * max(self.per_visit))

    def _by_programme(self) -> int:
        """best[j][p]: the most for j + 1 visits, the last of which is in piece p."""
        pieces, most = len(self.starts), self.most
        largest = sum(amount for _, _, amount in self.whole) + most * max(self.per_visit)
        kind = np.int64 if largest < 2**62 else object
        best = np.full((most, pieces), -1, dtype=kind)  # -1: no such pattern
        begun = np.zeros(pieces + 1, dtype=kind)  # whole charges that stand, by where they begin
        ends: dict[int, list[tuple[int, int]]] = {}
        begins: dict[int, list[tuple[int, int]]] = {}
        for first, stop, amount in self.whole:
            begins.setdefault(first, []).append((stop, amount))
            ends.setdefault(stop, []).append((first, amount))
        for p in range(pieces):
            for first, amount in ends.get(p, ()):
                begun[first] -= amount
            for _, amount in begins.get(p, ()):
                begun[p] += amount
            self._fill(best, begun, p)
        return int(best.max())

    def _fill(self, best: np.ndarray, begun: np.ndarray, p: int) -> None:
        each = self.per_visit[p]
        standing = begun[: p + 1]
        first = np.full(self.most, -1, dtype=best.dtype)
        first[0] = standing.sum() + each
        # a piece whose first slot is far enough from the last slot of this one
        reach = bisect_right(self.starts, self.stops[p] - 1 - self.apart, 0, p)
        if reach and self.most > 1:
            after = np.cumsum(standing[::-1])[::-1][1:][:reach]  # begun behind piece 0, 1, ...
            before = best[:-1, :reach]
            reached = np.where(before >= 0, before + after, -1).max(axis=1)
            first[1:] = np.where(reached >= 0, reached + each, -1)
        best[:, p] = first
        for _ in range(min(self.room[p], self.most) - 1):
            more = np.where(best[:-1, p] >= 0, best[:-1, p] + each, -1)
            grown = np.maximum(best[1:, p], more)
            if np.array_equal(grown, best[1:, p]):
                break
            best[1:, p] = grown


def check_starts(starts: Sequence[int], users: range) -> tuple[int, ...]:
    """Where batches begin, as a tuple.

    Raises:
        UsersError: not ascending from the first slot on, or beyond the last.
    """
    found = tuple(starts)
    ascending = all(a < b for a, b in pairwise(found))
    if not found or found[0] != users.start or not ascending or found[-1] >= users.stop:
        raise UsersError(
            f"starts = {found[:8]!r}{'...' if len(found) > 8 else ''}: must ascend from "
            f"{users.start} and stay below {users.stop}"
        )
    return found
