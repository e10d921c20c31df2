"""What has been charged to each arrival index, kept as few constant pieces.

One rule covers parallel and sequential composition: a charge on a range of users is added to the
pieces it touches, so disjoint ranges cost their maximum and overlapping ones their sum.  Parallel
composition needs ranges that are fixed by public information (design, "Disjoint public batches").

The pieces are the leaves of a tree.  A charge on a whole branch is noted at the branch, and each
branch has a bound on its largest value, so that charging and checking take time that grows with the
logarithm of the number of pieces, however many of them a range of users covers.

Amounts are exact: integers over a common denominator, which grows when an amount needs a larger
one.  What that multiplies is noted at the root, and passed on to the branches that are visited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from math import lcm
from typing import Any, Generic, Self, TypeVar, final

from privlearn.errors import UsersError

Amounts = tuple[Fraction, ...]
"""The exact numbers of a currency."""


@final
class IntegerVector(tuple[int, ...]):
    """Several integers, which add up and compare one by one."""

    __slots__ = ()

    def __add__(self, other: IntegerVector) -> Self:  # type: ignore[override]
        return type(self)([a + b for a, b in zip(self, other, strict=True)])

    def __mul__(self, factor: int) -> Self:  # type: ignore[override]
        return type(self)([a * factor for a in self])

    def __neg__(self) -> Self:
        return type(self)([-a for a in self])

    def __le__(self, other: tuple[int, ...]) -> bool:
        return all([a <= b for a, b in zip(self, other, strict=True)])


N = TypeVar("N", int, IntegerVector)

_LONGEST_LEAF, _LONGEST = 64, 32
_MOST_SEEN = 16


@final
class _Node(Generic[N]):
    """Pieces that lie side by side (values), or nodes that do (children)."""

    __slots__ = ("added", "children", "exact", "factor", "most", "starts", "values")

    def __init__(
        self, starts: list[int], values: list[N], children: list[_Node[N]], most: N
    ) -> None:
        self.starts = starts
        self.values: list[N] = values
        self.children: list[_Node[N]] = children
        self.added: N | None = None  # Charged to all below, and not noted there
        self.most: N = most  # At least the largest value below, without ``added``
        self.exact = True  # Whether ``most`` is the largest value
        self.factor = 1
        """What is below has yet to be multiplied by it; ``added`` and ``most`` were."""

    @property
    def top(self) -> N:
        """At least the largest value, with ``added``."""
        most: N = self.most if self.added is None else self.most + self.added
        return most

    def multiply(self, factor: int) -> None:
        self.most = self.most * factor
        if self.added is not None:
            self.added = self.added * factor
        self.factor *= factor

    def visit(self) -> None:
        """Brings values and children up to date."""
        factor = self.factor
        if factor != 1:
            self.factor = 1
            self.values = [value * factor for value in self.values]
            for child in self.children:
                child.multiply(factor)

    def split(self) -> _Node[N]:
        """Moves the second half into a node of its own; this one was visited."""
        half = len(self.starts) // 2
        other = _Node(self.starts[half:], self.values[half:], self.children[half:], self.most)
        del self.starts[half:], self.values[half:], self.children[half:]
        other.added = self.added
        self.exact = other.exact = False
        return other

    def refresh(self) -> None:
        if not self.exact:
            self.exact = all([child.exact for child in self.children])
            self.most = _largest(self.values or [child.top for child in self.children])


@final
class Charges:
    """Exact amounts per arrival index, piecewise constant, in the beginning zero.

    A charge outside of ``users`` does not count.

    Args:
        users: all arrival indices.
        terms: how many numbers are charged at once; each adds up by itself.
    """

    __slots__ = ("_charged", "_limit", "_root", "_unit", "users")

    def __init__(self, users: range, terms: int = 1) -> None:
        self.users = users
        zero: Any = 0 if terms == 1 else IntegerVector((0,) * terms)
        self._root: _Node[Any] = _Node([users.start], [zero], [], zero)
        self._unit = 1  # the common denominator
        self._charged: dict[int, tuple[Amounts, Any]] = {}
        """By identity: amounts over the common denominator."""
        self._limit: tuple[Amounts, Amounts, Any] | None = None

    def check(self, users: range) -> range:
        if (
            users.step != 1
            or not users
            or not (self.users.start <= users.start and users.stop <= self.users.stop)
        ):
            raise UsersError(
                f"users = {users!r}: must be a non-empty part of "
                f"range({self.users.start}, {self.users.stop})"
            )
        return users

    def charge(self, users: range, amounts: Amounts, *, released: bool = False) -> None:
        """Adds ``amounts`` for each of the users, or takes off what was added to them."""
        start, stop = users.start, users.stop
        if start < self.users.start or self.users.stop < stop:
            start, stop = max(start, self.users.start), min(stop, self.users.stop)
        if start >= stop:
            return
        by = self._in_units(amounts)
        if released:
            by = -by
        if self._charge_leaf(start, stop, by, not released):
            return
        self._cut(start)
        self._cut(stop)
        self._add(self._root, start, stop, self.users.stop, by, not released)

    def pieces(self, users: range | None = None) -> Iterator[tuple[range, Amounts]]:
        """The constant pieces that meet ``users`` (default: all), in order.

        Raises:
            UsersError: an index outside all users.
        """
        within = self.users if users is None else self.check(users)
        before: tuple[int, Any] | None = None
        for start, value in _walk(self._root, within, None):
            if before is not None:
                yield range(before[0], start), self._exact(before[1])
            before = max(start, within.start), value
        if before is not None:
            yield range(before[0], within.stop), self._exact(before[1])

    def first_above(
        self, most: Amounts, amounts: Amounts, users: range
    ) -> tuple[range, Amounts] | None:
        """The first piece of the users without room for ``amounts`` under ``most``; else None."""
        limit = self._limit_of(most, amounts)
        root = self._root
        if root.top <= limit:
            return None
        at = _above(root, users, limit)
        return None if at is None else next(self.pieces(range(max(at, users.start), users.stop)))

    def largest(self, users: range | None = None) -> Amounts:
        """The largest amount of any of the users, each number by itself.

        Raises:
            UsersError: an index outside all users.
        """
        within = self.users if users is None else self.check(users)
        return self._exact(_largest_of(self._root, within, self.users.stop))

    def extremes(self, term: int = 0) -> tuple[int, Fraction, Fraction]:
        """Of one number: the first user whose amount is largest, that amount, and the smallest."""
        first, most, least = self.users.start, None, None
        for start, value in _walk(self._root, self.users, None):
            number = value if value.__class__ is int else value[term]
            if most is None or number > most:
                first, most = start, number
            if least is None or number < least:
                least = number
        return first, Fraction(most or 0, self._unit), Fraction(least or 0, self._unit)

    def _in_units(self, amounts: Amounts) -> Any:
        seen = self._charged.get(id(amounts))
        if seen is not None and seen[0] is amounts:
            return seen[1]
        unit = lcm(self._unit, *[amount.denominator for amount in amounts])
        if unit != self._unit:
            self._root.multiply(unit // self._unit)
            self._unit, self._limit = unit, None
            self._charged.clear()
        found = _number([a.numerator * (unit // a.denominator) for a in amounts])
        if len(self._charged) >= _MOST_SEEN:
            self._charged.clear()
        self._charged[id(amounts)] = amounts, found
        return found

    def _limit_of(self, most: Amounts, amounts: Amounts) -> Any:
        """The largest integers over the common denominator that leave room for ``amounts``.

        Rounding down changes nothing, as what is charged is an integer.
        """
        last = self._limit
        if last is not None and last[0] is most and last[1] is amounts:
            return last[2]
        unit = self._unit
        found = _number(
            [
                (m.numerator * a.denominator - a.numerator * m.denominator)
                * unit
                // (m.denominator * a.denominator)
                for m, a in zip(most, amounts, strict=True)
            ]
        )
        self._limit = most, amounts, found
        return found

    def _exact(self, value: Any) -> Amounts:
        unit = self._unit
        return tuple([Fraction(v, unit) for v in ((value,) if value.__class__ is int else value)])

    def _charge_leaf(self, start: int, stop: int, by: Any, grows: bool) -> bool:
        """Adds within one leaf, which is what a charge on few users does; whether it is one."""
        node, end = self._root, self.users.stop
        path = []
        while True:
            if node.factor != 1:
                node.visit()
            if not node.children:
                break
            starts = node.starts
            i = bisect_right(starts, start)
            if i < len(starts):
                end = starts[i]
            if stop > end:
                return False
            path.append(node)
            node = node.children[i - 1]
        starts, values = node.starts, node.values
        if len(starts) > _LONGEST_LEAF - 2:
            return False
        i = bisect_right(starts, start) - 1
        if starts[i] != start:
            i += 1
            starts.insert(i, start)
            values.insert(i, values[i - 1])
        most, exact = node.most, node.exact and grows
        count = len(starts)
        while i < count and starts[i] < stop:
            if stop < (starts[i + 1] if i + 1 < count else end):
                starts.insert(i + 1, stop)
                values.insert(i + 1, values[i])
            value = values[i] = values[i] + by
            if grows:
                most = larger(most, value)
            i += 1
        node.most, node.exact = most, exact
        while path:
            child, node = node, path.pop()
            if grows:
                node.most = larger(node.most, child.top)
            node.exact = node.exact and child.exact
        return True

    def _cut(self, at: int) -> None:
        if not self.users.start < at < self.users.stop:
            return
        root = self._root
        other = _cut(root, at)
        if other is not None:
            starts = [root.starts[0], other.starts[0]]
            self._root = _Node(starts, [], [root, other], root.top)
            self._root.exact = False

    def _add(self, node: _Node[Any], start: int, stop: int, end: int, by: Any, grows: bool) -> None:
        """Adds to pieces from ``start`` to ``stop``; those of the node end at ``end``."""
        starts = node.starts
        count = len(starts)
        if start <= starts[0] and end <= stop and count > 1:
            node.added = by if node.added is None else node.added + by
            return
        node.visit()
        i = bisect_right(starts, start) - 1 if start > starts[0] else 0
        most, exact = node.most, node.exact and grows
        if node.values:
            values = node.values
            while i < count and starts[i] < stop:
                value = values[i] = values[i] + by
                if grows:
                    most = larger(most, value)
                i += 1
        else:
            while i < count and starts[i] < stop:
                child, i = node.children[i], i + 1
                self._add(child, start, stop, starts[i] if i < count else end, by, grows)
                if grows:
                    most, exact = larger(most, child.top), exact and child.exact
        node.most, node.exact = most, exact


def _number(numbers: list[int]) -> Any:
    return numbers[0] if len(numbers) == 1 else IntegerVector(numbers)


def _above(node: _Node[N], users: range, limit: N) -> int | None:
    """Where the first piece of the users begins that is above ``limit``; None for none."""
    if node.top <= limit:
        return None
    node.visit()
    starts = node.starts
    if node.added is not None:
        limit = limit + -node.added
    i = max(bisect_right(starts, users.start) - 1, 0)
    while i < len(starts) and starts[i] < users.stop:
        if node.values:
            at = None if node.values[i] <= limit else starts[i]
        else:
            at = _above(node.children[i], users, limit)
        if at is not None:
            return at
        i += 1
    node.refresh()
    return None


def larger(a: N, b: N) -> N:
    """The larger of each number."""
    if isinstance(a, int):
        return b if b > a else a
    return IntegerVector(map(max, a, b))


def _largest(values: list[N]) -> N:
    most = values[0]
    for value in values:
        most = larger(most, value)
    return most


def _cut(node: _Node[N], at: int) -> _Node[N] | None:
    node.visit()
    starts = node.starts
    i = bisect_right(starts, at) - 1
    if node.values:
        if starts[i] == at:
            return None
        starts.insert(i + 1, at)
        node.values.insert(i + 1, node.values[i])
        return node.split() if len(starts) > _LONGEST_LEAF else None
    other = _cut(node.children[i], at)
    if other is None:
        return None
    starts.insert(i + 1, other.starts[0])
    node.children.insert(i + 1, other)
    return node.split() if len(starts) > _LONGEST else None


def _walk(node: _Node[N], users: range, added: N | None) -> Iterator[tuple[int, N]]:
    node.visit()
    starts = node.starts
    if node.added is not None:
        added = node.added if added is None else added + node.added
    i = max(bisect_right(starts, users.start) - 1, 0)
    while i < len(starts) and starts[i] < users.stop:
        if node.values:
            yield starts[i], node.values[i] if added is None else node.values[i] + added
        else:
            yield from _walk(node.children[i], users, added)
        i += 1


def _largest_of(node: _Node[N], users: range, end: int) -> N:
    starts = node.starts
    whole = users.start <= starts[0] and end <= users.stop
    if whole and node.exact:
        return node.top
    node.visit()
    i = max(bisect_right(starts, users.start) - 1, 0)
    found: list[N] = []
    while i < len(starts) and starts[i] < users.stop:
        stop = starts[i + 1] if i + 1 < len(starts) else end
        found.append(node.values[i] if node.values else _largest_of(node.children[i], users, stop))
        i += 1
    if whole:
        node.refresh()
    most = _largest(found)
    return most if node.added is None else most + node.added
