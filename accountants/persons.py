"""What one person can be charged who comes back, under a public rule of participation.

A token on a range of slots costs a person F for all the visits of this person in it.  Its cost is
*shared* if r of m visits cost at most (r/m)·F, as where F grows at least as fast as the number of
visits; else, as for streams, it is charged *whole* to whoever has a visit in the range.  The most
that a person pays is then at most

    max over admissible patterns of  sum over visits of F/m  +  sum over whole tokens met of F,

and a dynamic programme over pieces of slots, on which the same tokens stand, finds that maximum
(docs/proofs.md, "Persons who return: totals").  A smaller charge in place of a larger one never
raises it.  Beyond `_MOST_PIECES` a bound takes its place, of which that is not known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import ceil, lcm
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants.per_user_charge import Amounts, Charges
from privlearn.errors import BudgetError, UsersError
from privlearn.values.participation import Participation

_MOST_PIECES = 1024
"""Pieces of slots for the dynamic programme, which takes their square; with more, a bound."""
_MOST_CELLS = 2**33
_CELLS_OF_AN_ENTRY = 2**21
_CELLS_OF_A_PIECE = 2**10  # As long takes a piece of a greedy bound
_FEW_CELLS = 2**15  # Of which amounts may be integers of any length, which take much longer
_SHORT = 2**62  # Below it integers add up in 64 bits


@final
@dataclass(slots=True)
class PatternWork:
    """Cells of dynamic programmes that an audit may still fill, so that no file decides how many.

    When there are none left, a bound takes the place of the maximum.
    """

    left: int | None = None
    """None: an accountant's own."""
    ended: bool = False
    """Whether there were too few of them."""

    @classmethod
    def of_an_audit(cls) -> PatternWork:
        """Some tens of seconds."""
        return cls(_MOST_CELLS)

    def take(self, cells: int) -> bool:
        """Whether so many may be filled, which are then taken off."""
        if self.left is None:
            return True
        self.ended = self.ended or cells > self.left
        self.left -= 0 if cells > self.left else cells
        return not self.ended

    def earn(self) -> None:
        """An entry was recorded."""
        if self.left is not None:
            self.left += _CELLS_OF_AN_ENTRY
            self.ended = False


@final
@dataclass(slots=True)
class Visits:
    """The rule, and its public batches: how many rows of one person a range can hold."""

    rule: Participation
    users: range
    starts: tuple[int, ...] = ()
    """Where batches begin, in ascending order; none while they are not declared."""
    work: PatternWork = field(default_factory=PatternWork)
    """Shared by the accountants of a ledger that is audited."""

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

    def check_asked(self, rounds: int, user: object) -> None:
        """Raises BudgetError for what is asked of single rows, and not of a person."""
        if rounds != 1:
            raise BudgetError(
                f"rounds = {rounds}: under {self.rule} the guarantee is that of a person with all "
                "visits, so group privacy of rows is paid for already; leave rounds out"
            )
        if user is not None:
            raise BudgetError(
                f"user = {user}: under {self.rule} an index is a slot, and no person; who stands "
                "at it, and where else, is sealed, and the guarantee is every person's; leave user "
                "out"
            )

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


_Book = dict[tuple[int, int], Amounts]  # Amounts by ranges of slots


def _add(book: _Book, users: tuple[int, int], amounts: Amounts, *, released: bool = False) -> None:
    sign = -1 if released else 1
    before = book.get(users, (Fraction(0),) * len(amounts))
    after = tuple(a + sign * b for a, b in zip(before, amounts, strict=True))
    if any(after):
        book[users] = after
    else:
        book.pop(users, None)


def _only(book: _Book, term: int) -> dict[tuple[int, int], Fraction]:
    return {users: value[term] for users, value in book.items() if value[term]}


def _higher(charges: Charges, users: range, by: Amounts) -> list[Fraction]:
    everywhere, there = charges.largest(), charges.largest(users)
    return [max(a, b + c) for a, b, c in zip(everywhere, there, by, strict=True)]


@final
@dataclass(slots=True)
class PersonCharges:
    """Amounts that are charged to a person with a visit in a range of slots, in exact numbers."""

    visits: Visits
    terms: int
    """How many numbers are charged at once; each adds up by itself."""
    _visit: Charges = field(init=False)
    """What stands on each slot: shared amounts per visit, and whole ones."""
    _part: Charges = field(init=False)  # Shared amounts per visit only
    _once: Amounts = field(init=False)  # The sum of all whole amounts
    _whole: _Book = field(default_factory=dict)
    _shared: _Book = field(default_factory=dict)  # Per visit

    def __post_init__(self) -> None:
        self._visit = Charges(self.visits.users, self.terms)
        self._part = Charges(self.visits.users, self.terms)
        self._once = (Fraction(0),) * self.terms

    def charge(
        self, users: range, amounts: Amounts, shared: bool, *, released: bool = False
    ) -> None:
        """Adds ``amounts``, for all visits in a range of slots, or takes off what was added."""
        start = max(users.start, self.visits.users.start)
        stop = min(users.stop, self.visits.users.stop)
        if start >= stop:  # only in what an audit reads
            return
        each = self._each(users, amounts, shared)
        range_ = range(start, stop)
        self._visit.charge(range_, each, released=released)
        if shared:
            self._part.charge(range_, each, released=released)
        else:
            sign = -1 if released else 1
            self._once = tuple(a + sign * b for a, b in zip(self._once, amounts, strict=True))
        book = self._shared if shared else self._whole
        _add(book, (start, stop), each, released=released)

    def _each(self, users: range, amounts: Amounts, shared: bool) -> Amounts:
        most = self.visits.most(users) if shared else 1
        return tuple(amount / most for amount in amounts)

    def may_exceed(
        self, users: range, amounts: Amounts, shared: bool, within: Callable[[Amounts], bool]
    ) -> bool:
        """Whether it is not known that all stays ``within`` after a further charge.

        The quickest of three bounds that says so is taken; see `bound`.

        Raises:
            BudgetError: as `Visits.most`.
        """
        self.visits.most(users)
        if within(self._after(users, amounts, shared)):
            return False
        whole, parts = dict(self._whole), dict(self._shared)
        each = self._each(users, amounts, shared)
        _add(parts if shared else whole, (users.start, users.stop), each)
        for quick in (True, False):
            found = self._largest(whole, parts, quick=quick)
            if found is not None and within(found):
                return False
        return True

    def _after(self, users: range, amounts: Amounts, shared: bool) -> Amounts:
        most = self.visits.rule.most
        each = self._each(users, amounts, shared)
        none = (Fraction(0),) * self.terms
        visit = _higher(self._visit, users, each)
        part = _higher(self._part, users, each if shared else none)
        once = [a + b for a, b in zip(self._once, none if shared else amounts, strict=True)]
        return tuple(min(most * v, w + most * p) for v, p, w in zip(visit, part, once, strict=True))

    def largest(self) -> Amounts:
        """The most that one person can be charged, each number by itself."""
        quick, found = self.bound(), self._largest(self._whole, self._shared, quick=False)
        return quick if found is None else tuple(map(min, found, quick))

    def bound(self) -> Amounts:
        """No less than `largest`: all visits on the dearest slot, or all whole amounts once."""
        none = (Fraction(0),) * self.terms
        return self._after(self.visits.users, none, shared=False)

    def _largest(self, whole: _Book, shared: _Book, *, quick: bool) -> Amounts | None:
        """The maximum, or a bound by greed; None if that is too much work."""
        found = []
        for term in range(self.terms):
            pieces = 2 * (len(whole) + len(shared))
            if not self.visits.work.take(pieces * _CELLS_OF_A_PIECE):
                return None
            found.append(self._largest_of(_only(whole, term), _only(shared, term), quick=quick))
        return tuple(found)

    def _largest_of(
        self,
        whole: dict[tuple[int, int], Fraction],
        shared: dict[tuple[int, int], Fraction],
        *,
        quick: bool,
    ) -> Fraction:
        if not whole and not shared:
            return Fraction(0)
        unit = self._unit(whole, shared)
        pieces = _Pieces(
            self.visits,
            {users: ceil(value * unit) for users, value in whole.items()},
            {users: ceil(value * unit) for users, value in shared.items()},
        )
        return (pieces.by_greed() if quick else pieces.largest()) / unit

    def _unit(
        self, whole: dict[tuple[int, int], Fraction], shared: dict[tuple[int, int], Fraction]
    ) -> Fraction:
        """What amounts are multiplied by: they are then integers, or where these would be long, and
        there are many of them, are rounded up to integers of 61 bits."""
        exact = lcm(*(v.denominator for v in (*whole.values(), *shared.values())))
        most, ranges = self.visits.rule.most, len(whole) + len(shared)
        largest = sum(whole.values(), Fraction(0)) + most * sum(shared.values(), Fraction(0))
        if largest * exact < _SHORT or most * ranges**2 <= _FEW_CELLS:
            return Fraction(exact)
        return Fraction(_SHORT, 2) / largest


class _Pieces:
    """Neighbouring pieces of slots, on each of which the same charges stand; integers."""

    def __init__(
        self, visits: Visits, whole: dict[tuple[int, int], int], shared: dict[tuple[int, int], int]
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
        self.apart, self.work = visits.rule.apart, visits.work

    def largest(self) -> int:
        most = sum(amount for _, _, amount in self.whole) + self.most * max(self.per_visit)
        kind = np.int64 if most < _SHORT else object
        cells = len(self.starts) * self.most * (len(self.starts) + self.most)
        large = len(self.starts) > _MOST_PIECES or self.most > _MOST_PIECES
        if large or not self.work.take(cells):
            return self.by_greed()
        return self._by_programme(kind)

    def _met(self) -> list[int]:
        change = [0] * (len(self.starts) + 1)
        for first, stop, amount in self.whole:
            change[first] += amount
            change[stop] -= amount
        found, total = [], 0
        for step in change[:-1]:
            total += step
            found.append(total)
        return found

    def by_greed(self) -> int:
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

    def _by_programme(self, kind: type[Any]) -> int:
        """The maximum, over patterns that are one run after another (see `_Runs`)."""
        runs, pieces, most = _Runs(self), len(self.starts), self.most
        behind = self._behind(kind)
        gains = np.array(self.per_visit, dtype=kind)[runs.pieces]
        gains[:, 0] = 0  # in what is begun
        gains[:, 1:] += behind[runs.pieces[:, 1:], runs.pieces[:, :-1] + 1]
        gains = np.cumsum(gains, axis=1)
        # what no pattern reaches stays below 0, whatever else is added
        none = -1 - sum(amount for _, _, amount in self.whole) - most * max(self.per_visit)
        # [p, j]: the most for j + 1 visits, the last of which is in piece p and begins a run
        begun: NDArray[Any] = np.full((pieces, most), none, dtype=kind)
        best = begun.copy()  # or is in piece p, and far enough from what comes next
        for p in range(pieces + 1):
            for run, step in runs.ready[p]:
                after = best[runs.pieces[run, step], step:]
                np.maximum(after, begun[run, : most - step] + gains[run, step], out=after)
            if p == pieces:
                break
            begun[p, 0] = behind[p, 0]
            if p and most > 1:
                begun[p, 1:] = (best[:p, :-1] + behind[p, 1 : p + 1, None]).max(axis=0)
            begun[p] += self.per_visit[p]
        return int(best.max())

    def _behind(self, kind: type[Any]) -> NDArray[Any]:
        """[p, q]: the whole charges on piece p that begin in piece q or later."""
        pieces = len(self.starts)
        found: NDArray[Any] = np.zeros((pieces, pieces + 1), dtype=kind)
        for first, stop, amount in self.whole:
            found[first:stop, first] += amount
        return np.cumsum(found[:, ::-1], axis=1)[:, ::-1]


class _Runs:
    """Slots in steps of `apart`, from the first slot of each piece on.

    With every visit as early as its piece allows, a pattern is one run after another: each visit is
    the first slot of its piece, or `apart` behind the visit before.
    """

    def __init__(self, of: _Pieces) -> None:
        starts, end = np.array(of.starts, dtype=np.int64), of.stops[-1]
        apart = min(of.apart, end - of.starts[0])
        steps = np.arange(min(of.most, -(-(end - of.starts[0]) // apart)))
        slots = starts[:, None] + apart * steps
        self.pieces: NDArray[np.intp] = np.searchsorted(starts, slots, side="right") - 1
        """Of each slot, by run and step."""
        entered = np.zeros_like(slots)
        entered[:, 1:] = np.where(self.pieces[:, 1:] != self.pieces[:, :-1], steps[1:], 0)
        within = steps - np.maximum.accumulate(entered, axis=1) < np.array(of.room)[self.pieces]
        # behind the first slot of a further piece the run from there goes on
        within[:, 1:] &= slots[:, 1:] != starts[self.pieces[:, 1:]]
        within = np.logical_and.accumulate(within & (slots < end), axis=1)
        self.ready: list[list[tuple[int, int]]] = [[] for _ in range(len(starts) + 1)]
        """Runs and steps, by the first piece that begins far enough behind the slot."""
        ready = np.searchsorted(starts, slots + apart)
        for run, step in np.argwhere(within).tolist():
            self.ready[ready[run, step]].append((run, step))


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
