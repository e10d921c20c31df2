"""What has been charged to each arrival index, kept as few constant pieces.

One rule covers parallel and sequential composition: a charge on a range of users is added to the
pieces it touches, so disjoint ranges cost their maximum and overlapping ones their sum.  Parallel
composition needs ranges that are fixed by public information (design, "Disjoint public batches").

The pieces are the leaves of a tree.  A charge on a whole branch is noted at the branch, and each
branch has a bound on its largest value, so that charging and checking take time that grows with the
logarithm of the number of pieces, however many of them a range of users covers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from typing import Generic, Self, TypeVar, final

from privlearn.errors import UsersError


@final
class Vector(tuple[Fraction, ...]):
    """Several exact numbers, which add up and compare one by one."""

    __slots__ = ()

    def __add__(self, other: Vector) -> Self:  # type: ignore[override]
        return type(self)([a + b for a, b in zip(self, other, strict=True)])

    def __neg__(self) -> Self:
        return type(self)([-a for a in self])

    def __le__(self, other: tuple[Fraction, ...]) -> bool:
        return all([a <= b for a, b in zip(self, other, strict=True)])


N = TypeVar("N", Fraction, Vector)

_LONGEST_LEAF, _LONGEST = 64, 32


@final
class _Node(Generic[N]):
    """Pieces that lie side by side (values), or nodes that do (children)."""

    __slots__ = ("added", "children", "exact", "most", "starts", "values")

    def __init__(
        self, starts: list[int], values: list[N], children: list[_Node[N]], most: N
    ) -> None:
        self.starts = starts
        self.values: list[N] = values
        self.children: list[_Node[N]] = children
        self.added: N | None = None
        """Charged to all below, and not noted there."""
        self.most: N = most
        """At least the largest value below, without ``added``."""
        self.exact = True
        """Whether ``most`` is the largest value."""

    @property
    def top(self) -> N:
        """At least the largest value, with ``added``."""
        most: N = self.most if self.added is None else self.most + self.added
        return most

    def split(self) -> _Node[N]:
        """Moves the second half into a node of its own."""
        half = len(self.starts) // 2
        other = _Node(self.starts[half:], self.values[half:], self.children[half:], self.most)
        del self.starts[half:], self.values[half:], self.children[half:]
        other.added = self.added
        self.exact = other.exact = False
        return other

    def refresh(self) -> None:
        """Finds the largest value anew, from what is known of the children."""
        if not self.exact:
            self.exact = all([child.exact for child in self.children])
            self.most = _largest(self.values or [child.top for child in self.children])


@final
class Charges(Generic[N]):
    """An amount per arrival index, piecewise constant, in the beginning ``zero``.

    A charge outside of ``users`` does not count.
    """

    __slots__ = ("_last", "_root", "users")

    def __init__(self, users: range, zero: N) -> None:
        self.users = users
        self._root: _Node[N] = _Node([users.start], [zero], [], zero)
        self._last: tuple[N, N, N] | None = None

    def check(self, users: range) -> range:
        """Returns ``users`` if they are all known."""
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

    def charge(self, users: range, amount: N, *, released: bool = False) -> None:
        """Adds ``amount`` for each of the users, or takes off what was added to them."""
        start, stop = users.start, users.stop
        if start < self.users.start or self.users.stop < stop:
            start, stop = max(start, self.users.start), min(stop, self.users.stop)
        if start >= stop:
            return
        by = -amount if released else amount
        if self._charge_leaf(start, stop, by, not released):
            return
        self._cut(start)
        self._cut(stop)
        self._add(self._root, start, stop, self.users.stop, by, not released)

    def pieces(self, users: range | None = None) -> Iterator[tuple[range, N]]:
        """The constant pieces that meet ``users`` (default: all), in order.

        Raises:
            UsersError: an index outside all users.
        """
        within = self.users if users is None else self.check(users)
        before: tuple[int, N] | None = None
        for start, value in _walk(self._root, within, None):
            if before is not None:
                yield range(before[0], start), before[1]
            before = max(start, within.start), value
        if before is not None:
            yield range(before[0], within.stop), before[1]

    def first_above(self, most: N, amount: N, users: range) -> tuple[range, N] | None:
        """The first piece of the users without room for ``amount`` under ``most``; else None."""
        at = self._above(self._root, users, amount, most)
        return None if at is None else next(self.pieces(range(max(at, users.start), users.stop)))

    def largest(self, users: range | None = None) -> N:
        """The largest amount of any of the users, each number by itself.

        Raises:
            UsersError: an index outside all users.
        """
        within = self.users if users is None else self.check(users)
        return _largest_of(self._root, within, self.users.stop)

    def _sum(self, value: N, amount: N) -> N:
        last = self._last  # what is checked is then charged
        if last is None or last[0] is not value or last[1] is not amount:
            last = self._last = value, amount, value + amount
        return last[2]

    def _charge_leaf(self, start: int, stop: int, by: N, grows: bool) -> bool:
        """Adds within one leaf, which is what a charge on few users does; whether it is one."""
        node, end = self._root, self.users.stop
        path = []
        while node.children:
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
            value = values[i] = self._sum(values[i], by)
            if value is not most and grows:
                most = larger(most, value)
            i += 1
        node.most, node.exact = most, exact
        while path:
            child, node = node, path.pop()
            if grows:
                top = child.top
                if top is not node.most:
                    node.most = larger(node.most, top)
            node.exact = node.exact and child.exact
        return True

    def _cut(self, at: int) -> None:
        """Makes ``at`` the start of a piece."""
        if not self.users.start < at < self.users.stop:
            return
        root = self._root
        other = _cut(root, at)
        if other is not None:
            starts = [root.starts[0], other.starts[0]]
            self._root = _Node(starts, [], [root, other], root.top)
            self._root.exact = False

    def _add(self, node: _Node[N], start: int, stop: int, end: int, by: N, grows: bool) -> None:
        """Adds to pieces from ``start`` to ``stop``; those of the node end at ``end``."""
        starts = node.starts
        count = len(starts)
        if start <= starts[0] and end <= stop and count > 1:
            node.added = by if node.added is None else node.added + by
            return
        i = bisect_right(starts, start) - 1 if start > starts[0] else 0
        most, exact = node.most, node.exact and grows
        if node.values:
            values = node.values
            while i < count and starts[i] < stop:
                value = values[i] = self._sum(values[i], by)
                if value is not most and grows:
                    most = larger(most, value)
                i += 1
        else:
            while i < count and starts[i] < stop:
                child, i = node.children[i], i + 1
                self._add(child, start, stop, starts[i] if i < count else end, by, grows)
                if grows:
                    most, exact = larger(most, child.top), exact and child.exact
        node.most, node.exact = most, exact

    def _above(self, node: _Node[N], users: range, more: N, most: N) -> int | None:
        if within(self._sum(node.top, more), most):
            return None
        starts = node.starts
        if node.added is not None:
            more = more + node.added
        i = max(bisect_right(starts, users.start) - 1, 0)
        while i < len(starts) and starts[i] < users.stop:
            if node.values:
                at = None if within(self._sum(node.values[i], more), most) else starts[i]
            else:
                at = self._above(node.children[i], users, more, most)
            if at is not None:
                return at
            i += 1
        node.refresh()
        return None


def larger(a: N, b: N) -> N:
    """The larger of each number."""
    if within(a, b):
        return b
    if isinstance(a, Fraction):
        return a
    return Vector(map(max, a, b))


def within(a: N, b: N) -> bool:
    """Whether each number is at most the other."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        # cross-multiplied: comparing fractions takes several times as long
        return a.numerator * b.denominator <= b.numerator * a.denominator
    return a <= b


def _largest(values: list[N]) -> N:
    most = values[0]
    for value in values:
        if value is not most:
            most = larger(most, value)
    return most


def _cut(node: _Node[N], at: int) -> _Node[N] | None:
    """Makes ``at`` the start of a piece; a new node that stands behind this one, if any."""
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
    """The pieces that meet ``users``: where they begin, and their values."""
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
