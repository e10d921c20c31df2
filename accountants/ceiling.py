"""What has been charged to each arrival index, kept as few constant pieces.

One rule covers parallel and sequential composition: a charge on a range of users is added to the
pieces it touches, so disjoint ranges cost their maximum and overlapping ones their sum.  Parallel
composition needs ranges that are fixed by public information (design, "Disjoint public batches").
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, final

from privlearn.errors import UsersError

V = TypeVar("V")


@final
class ByUser(Generic[V]):
    """A value per arrival index, piecewise constant.

    Args:
        users: all arrival indices.
        initial: the value everywhere at first.
        split: copies a value when a piece is cut in two (identity for immutable values).
    """

    __slots__ = ("_split", "_starts", "_values", "users")

    def __init__(self, users: range, initial: V, split: Callable[[V], V]) -> None:
        self.users = users
        self._starts = [users.start]
        self._values = [initial]
        self._split = split

    def update(self, users: range, change: Callable[[V], V]) -> None:
        """Replaces the value of every piece within ``users`` by ``change(value)``."""
        first, last = self._cut(users.start), self._cut(users.stop)
        for i in range(first, last):
            self._values[i] = change(self._values[i])

    def pieces(self, users: range | None = None) -> Iterator[tuple[range, V]]:
        """The constant pieces that meet ``users`` (default: all), in order.

        Raises:
            UsersError: an index outside all users.
        """
        within = self.users if users is None else self.check(users)
        if len(self._starts) == 1:
            yield within, self._values[0]
            return
        i = bisect_right(self._starts, within.start) - 1
        while i < len(self._starts) and self._starts[i] < within.stop:
            stop = self._starts[i + 1] if i + 1 < len(self._starts) else self.users.stop
            yield range(max(self._starts[i], within.start), min(stop, within.stop)), self._values[i]
            i += 1

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

    def _cut(self, at: int) -> int:
        """Makes ``at`` the start of a piece and returns its position."""
        if at >= self.users.stop:
            return len(self._starts)
        if at == self.users.start:
            return 0
        i = bisect_right(self._starts, at) - 1
        if self._starts[i] == at:
            return i
        self._starts.insert(i + 1, at)
        self._values.insert(i + 1, self._split(self._values[i]))
        return i + 1
