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

_LONGEST = 512


@final
class ByUser(Generic[V]):
    """A value per arrival index, piecewise constant.

    Args:
        users: all arrival indices.
        initial: the value everywhere at first.
        split: copies a value when a piece is cut in two (identity for immutable values).
    """

    __slots__ = ("_chunks", "_heads", "_simple", "_split", "users")

    def __init__(self, users: range, initial: V, split: Callable[[V], V]) -> None:
        self.users = users
        # Short lists, so that a piece is cut in the same time however many others there are.
        self._chunks: list[tuple[list[int], list[V]]] = [([users.start], [initial])]
        self._heads = [users.start]
        self._simple = True  # everybody has the same
        self._split = split

    def update(self, users: range, change: Callable[[V], V]) -> None:
        """Replaces the value of every piece within ``users`` by ``change(value)``."""
        if self._simple and users == self.users:
            values = self._chunks[0][1]
            values[0] = change(values[0])
            return
        stop = users.stop
        self._cut(stop)
        chunk, i = self._cut(users.start)
        while chunk < len(self._chunks):
            starts, values = self._chunks[chunk]
            while i < len(starts):
                if starts[i] >= stop:
                    return
                values[i] = change(values[i])
                i += 1
            chunk, i = chunk + 1, 0

    def pieces(self, users: range | None = None) -> Iterator[tuple[range, V]]:
        """The constant pieces that meet ``users`` (default: all), in order.

        Raises:
            UsersError: an index outside all users.
        """
        within = self.users if users is None else self.check(users)
        if self._simple:
            yield within, self._chunks[0][1][0]
            return
        chunk = bisect_right(self._heads, within.start) - 1
        starts, values = self._chunks[chunk]
        i = bisect_right(starts, within.start) - 1
        at, value = within.start, values[i]
        while True:
            i += 1
            if i == len(starts):
                chunk, i = chunk + 1, 0
                if chunk == len(self._chunks):
                    break
                starts, values = self._chunks[chunk]
            if starts[i] >= within.stop:
                break
            yield range(at, starts[i]), value
            at, value = starts[i], values[i]
        yield range(at, within.stop), value

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

    def _cut(self, at: int) -> tuple[int, int]:
        """Makes ``at`` the start of a piece; its chunk, and its position there."""
        if at >= self.users.stop:
            return len(self._chunks), 0
        chunk = bisect_right(self._heads, at) - 1
        starts, values = self._chunks[chunk]
        i = bisect_right(starts, at) - 1
        if starts[i] == at:
            return chunk, i
        self._simple = False
        starts.insert(i + 1, at)
        values.insert(i + 1, self._split(values[i]))
        if len(starts) <= _LONGEST:
            return chunk, i + 1
        half = len(starts) // 2
        self._chunks.insert(chunk + 1, (starts[half:], values[half:]))
        self._heads.insert(chunk + 1, starts[half])
        del starts[half:], values[half:]
        return (chunk, i + 1) if i + 1 < half else (chunk + 1, i + 1 - half)
