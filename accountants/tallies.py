"""How often each loss was charged to each arrival index.

Kept as the indices where a count changes, so a charge costs the same for however many users it is,
and however many others there are.  Composition is looked at only where it can be the largest: of a
range of users whose losses are a part of those of the range beside it nothing needs to be computed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import add
from typing import Generic, NamedTuple, TypeVar, final

from privlearn.accountants.per_user_charge import Amounts

K = TypeVar("K", bound=Hashable)
_MOST_SEEN = 256


class Top(NamedTuple):
    """A range of users whose tally is no part of the tally beside it."""

    first: int
    """Its first arrival index."""
    terms: int
    """Different things in its tally."""


@final
class Tallies(Generic[K]):
    """A multiset for each arrival index.

    Args:
        users: all arrival indices; what is added outside of them does not count.
    """

    __slots__ = ("_edges", "_seen", "users")

    def __init__(self, users: range) -> None:
        self.users = users
        self._edges: dict[K, dict[int, int]] = {}
        self._seen: dict[int, tuple[K, dict[int, int]]] = {}

    def add(self, users: range, what: K, count: int = 1) -> None:
        """Counts ``what`` so many times for each of the users."""
        start, stop = users.start, users.stop
        if start < self.users.start:
            start = self.users.start
        if start >= stop or start >= self.users.stop:
            return
        edges = self._of(what)
        _change(edges, start, count)
        if stop < self.users.stop:
            _change(edges, stop, -count)

    def add_all(self, other: Tallies[K]) -> None:
        for what, edges in other._edges.items():
            mine = self._of(what)
            for at, change in edges.items():
                _change(mine, at, change)
            left = sum(edges.values())
            if left and other.users.stop < self.users.stop:
                _change(mine, other.users.stop, -left)

    def mapped(self, function: Callable[[K], K]) -> Tallies[K]:
        """The same with something else in each place; what becomes equal is added up."""
        found: Tallies[K] = Tallies(self.users)
        for what, edges in self._edges.items():
            mine = found._of(function(what))
            for at, change in edges.items():
                _change(mine, at, change)
        return found

    def _of(self, what: K) -> dict[int, int]:
        seen = self._seen.get(id(what))
        if seen is not None and seen[0] is what:  # the hash of a loss takes time
            return seen[1]
        edges = self._edges.get(what)
        if edges is None:
            edges = self._edges[what] = {}
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[id(what)] = what, edges
        return edges

    def __iter__(self) -> Iterator[K]:
        """What was counted for anybody."""
        return iter(self._edges)

    def of(self, user: int) -> dict[K, int]:
        counts = {what: _at(edges, user) for what, edges in self._edges.items()}
        return {what: count for what, count in counts.items() if count}

    def pieces(self, users: range | None = None) -> Iterator[tuple[range, dict[K, int]]]:
        """Every tally within ``users`` (default: all), in order; as much work as they are long."""
        within = self.users if users is None else users
        tally: dict[K, int] = {}
        at = within.start
        for edge, changes in self._steps():
            if edge >= within.stop:
                break
            if edge > at:
                yield range(at, edge), dict(tally)
                at = edge
            _apply(tally, changes)
        yield range(at, within.stop), dict(tally)

    def tops(self) -> list[Top]:
        """Where the tallies are that matter to a maximum over users, each different one once.

        All others are a part of one of these.
        """
        weights = {what: secrets.randbits(128) for what in self._edges}
        tally: dict[K, int] = {}
        # Equal tallies have equal sums of weights.  Different ones have, too, with probability
        # 2^-128: the weights are drawn here, after the file was written.
        found: dict[int, Top] = {}
        mark, begun, risen = 0, self.users.start, True
        for edge, changes in self._steps():
            if edge > begun and risen and any(change < 0 for _, change in changes):
                found.setdefault(mark, Top(begun, len(tally)))
            risen = any(change > 0 for _, change in changes) or (risen and edge == begun)
            begun = edge
            for what, change in changes:
                mark += weights[what] * change
            _apply(tally, changes)
        if risen:
            found.setdefault(mark, Top(begun, len(tally)))
        return list(found.values())

    def at(self, firsts: Sequence[int]) -> list[dict[K, int]]:
        """The tallies of some users, which are in order."""
        tally: dict[K, int] = {}
        found = []
        steps, end = self._steps(), self._end()
        edge, changes = next(steps, end)
        for first in firsts:
            while changes and edge <= first:
                _apply(tally, changes)
                edge, changes = next(steps, end)
            found.append(dict(tally))
        return found

    def sums(self, value: Callable[[K], Amounts], firsts: Sequence[int]) -> list[Amounts]:
        """The sums of the values of all that was counted for some users, which are in order."""
        values = {what: value(what) for what in self._edges}
        total: Amounts | None = None
        found = []
        steps, end = self._steps(), self._end()
        edge, changes = next(steps, end)
        for first in firsts:
            while changes and edge <= first:
                for what, change in changes:
                    more = tuple([amount * change for amount in values[what]])
                    total = more if total is None else tuple(map(add, total, more))
                edge, changes = next(steps, end)
            found.append(total or ())
        return found

    def _end(self) -> tuple[int, list[tuple[K, int]]]:
        return self.users.stop, []

    def _steps(self) -> Iterator[tuple[int, list[tuple[K, int]]]]:
        changes: dict[int, list[tuple[K, int]]] = {}
        for what, edges in self._edges.items():
            for at, change in edges.items():
                changes.setdefault(at, []).append((what, change))
        return ((at, changes[at]) for at in sorted(changes))


def _change(edges: dict[int, int], at: int, by: int) -> None:
    after = edges.get(at, 0) + by
    if after:
        edges[at] = after
    else:
        del edges[at]


def _at(edges: dict[int, int], user: int) -> int:
    return sum(change for edge, change in edges.items() if edge <= user)


def _apply(tally: dict[K, int], changes: list[tuple[K, int]]) -> None:
    for what, change in changes:
        count = tally.get(what, 0) + change
        if count:
            tally[what] = count
        else:
            del tally[what]
