"""A search for data sets between which the scores of a choice move farther than at hand.

Of two candidates, all others far below, the gap is how much more noise one of them needs to win.
Where rows of nobody change a gap, or equal rows by unequal steps, those of neighbours are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privlearn.checking.exact.search import LARGEST, Numbers, sizes_about
from privlearn.checking.mined import Mined
from privlearn.checking.reports import Axis, Coverage
from privlearn.values.adjacency import Adjacency

_WIDE = 2.0**12  # Units of the noise that a gap may be wide
_STEPS = 18  # Halvings that measure a gap, to a 32nd of a unit
_ROOM = 0.1
_SOME_PLACES = 12
_MEASURED = 24  # Neighbours that are measured at most because they were not as predicted
_CROWD = 16  # Rows in which every record is tried
_SUMS = 12  # Rows that are not of nobody, at most, where gaps are predicted


@dataclass(frozen=True)
class Scored:
    """A choice, as far as a search needs it."""

    wins: Callable[[Any, int, int, float], bool]
    """Whether a candidate wins against another one with so much more noise, on a data set."""
    candidates: list[tuple[int, int]]  # Pairs of them whose gaps are looked at
    take: Callable[[Numbers], Any]
    count: int
    changing: int  # Records, the first ones, that may be exchanged; the last one is of nobody
    adjacency: Adjacency
    mined: Mined


@dataclass
class _Gaps:
    choice: Scored
    reach: float
    worse: list[tuple[Any, Any]]
    measured: int = 0
    refused: list[int] = field(default_factory=list)

    def alone(self, i: int, j: int) -> None:
        """One record among rows of nobody, of which none hides what it does."""
        gap = 0.0
        for n in sizes_about(self.choice.mined):
            first = _at(np.full(n, self.choice.count - 1), n // 2, 0)
            second = self.changed(first, n // 2)
            try:
                if not self.within(first, i, j, gap, _ROOM):  # it is another than for fewer rows
                    gap = self.gap(first, i, j)
                if len(second) and not self.within(second, i, j, gap, self.reach + _ROOM):
                    self.measure(first, second, i, j)
            except Exception:  # so many rows are refused, whatever they are
                self.refused.append(n)

    def gap(self, numbers: Numbers, i: int, j: int) -> float:
        block, low, high = self.choice.take(numbers), -_WIDE, _WIDE
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.choice.wins(block, i, j, middle) else (middle, high)
        return (low + high) / 2

    def within(self, numbers: Numbers, i: int, j: int, gap: float, room: float) -> bool:
        block = self.choice.take(numbers)
        return self.choice.wins(block, i, j, gap + room) and not self.choice.wins(
            block, i, j, gap - room
        )

    def changed(self, numbers: Numbers, place: int) -> Numbers:
        result = numbers.copy()
        match self.choice.adjacency:
            case Adjacency.ADD_REMOVE:
                return np.delete(numbers, place)
            case Adjacency.ZERO_OUT:
                result[place] = self.choice.count - 1
            case _:
                result[place] = 1 if numbers[place] == 0 else 0
        return result

    def measure(self, first: Numbers, second: Numbers, i: int, j: int) -> None:
        self.measured += 1
        if self.measured > _MEASURED or not len(second):
            return
        moved = abs(self.gap(first, i, j) - self.gap(second, i, j))
        if moved > self.reach + _ROOM:
            self.reach = moved
            pairs = (first, second), *self._amid(first, second)
            self.worse += [(self.choice.take(one), self.choice.take(two)) for one, two in pairs]

    def _amid(self, first: Numbers, second: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
        """The same where some of those that are nobody are on either side, or half of them each."""
        if len(first) != len(second):
            return
        free = np.flatnonzero((first == second) & (first == self.choice.count - 1))
        for sides in ([0], [1], [0, 1]) if len(free) else ():
            one, two = first.copy(), second.copy()
            some = free if len(sides) > 1 else free[:_CROWD]
            one[some] = two[some] = np.resize(sides, len(some))
            yield one, two


def search_scores(choice: Scored, reach: float, at_once: int) -> tuple[list[Any], Coverage]:
    """Neighbours between which some gap moves by more than ``reach``, as at hand, the farthest
    last; ``at_once`` at most, each beside four kinds of others."""
    rng, nobody = np.random.default_rng(0), choice.count - 1
    gaps = _Gaps(choice, reach, [])
    refused = gaps.refused
    for i, j in choice.candidates:
        gaps.alone(i, j)
        null = np.full(3, nobody)
        start = gaps.gap(null, i, j)
        each = [gaps.gap(_at(null, 0, k), i, j) - start for k in (0, 1)]
        for others in (null, np.zeros(_CROWD, dtype=int), np.arange(_CROWD) % 2):
            first = gaps.gap(_at(others, 0, 0), i, j)
            for k in range(2, choice.changing):  # each record against the first one
                numbers = _at(others, 0, k)
                if not gaps.within(numbers, i, j, first, gaps.reach + _ROOM):
                    gaps.measure(numbers, gaps.changed(numbers, 0), i, j)
        for numbers, place in _data_sets(choice, rng):
            wanted = start + sum(each[k] * np.count_nonzero(numbers == k) for k in (0, 1))
            try:
                if gaps.within(numbers, i, j, wanted, _ROOM * (1 + _SUMS / 4)):
                    continue
                gaps.measure(numbers, gaps.changed(numbers, place), i, j)
            except Exception:  # so many rows are refused, whatever they are
                refused.append(len(numbers))
    sizes = [n for n in sizes_about(choice.mined) if n not in refused]
    axes = (
        Axis("values", f"{choice.changing} records about {len(choice.mined.numbers)} numbers"),
        Axis("sizes", f"{sizes[0]} to {sizes[-1]:,} rows" if sizes else "none", bool(sizes)),
        Axis("places", "first, last, at random, as mentioned in code"),
    )
    return gaps.worse[-4 * at_once :], Coverage(axes)


def _at(numbers: Numbers, place: int, record: int) -> Numbers:
    result = numbers.copy()
    result[place] = record
    return result


def _data_sets(choice: Scored, rng: np.random.Generator) -> Iterator[tuple[Numbers, int]]:
    """Of all sizes, and with the changed record at all kinds of places; rows of nobody beside."""
    nobody = choice.count - 1
    for n in sizes_about(choice.mined):
        numbers = np.full(n, nobody)
        for place in rng.integers(n, size=min(n, int(rng.integers(1, _SUMS)))):
            numbers[place] = rng.integers(2)
        yield numbers, int(place)
    places = {0, LARGEST - 1, *rng.integers(LARGEST, size=_SOME_PLACES).tolist()}
    for place in sorted(places | {*choice.mined.places(LARGEST)}):
        yield _at(np.full(LARGEST, nobody), place, int(rng.integers(2))), place
