"""A fork waits until no other thread of this package is inside SQLite.

SQLite has locks of its own for the whole process (of its memory, of its list of files).  A child
that is forked while a thread holds one of them waits for it for ever, in whatever it asks of
SQLite, a new file included: measured for 15 children of 300, with four busy ledgers on a fast disk.
What other packages do with SQLite is not seen here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import TypeVar, final

from privlearn.storage import processes

T = TypeVar("T")

WAIT = 5.0
"""Seconds that a fork waits at most, and then goes ahead: somebody may wait for the child."""
_LOOK = 0.0005


@final
class _Gate:
    """A context manager around calls of SQLite, that may be entered again inside.

    Whether a thread is inside stands in one dictionary, and who forks in one attribute: each side
    first says what it is about to do, and then looks at the other one.
    """

    def __init__(self) -> None:
        self.in_child()

    def in_child(self) -> None:
        """As in a child, in which there is one thread, and nobody forks."""
        self._inside: dict[int, int] = {}
        self._forking: int | None = None
        self._one_fork = threading.Lock()

    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        self._inside[me] = depth + 1
        if depth or self._forking is None:
            return
        try:
            while self._forking not in (None, me):
                self._inside.pop(me, None)
                time.sleep(_LOOK)
                self._inside[me] = 1
        except BaseException:
            self._inside.pop(me, None)
            raise

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        if depth > 1:
            self._inside[me] = depth - 1
        else:
            self._inside.pop(me, None)

    def each(self, rows: Iterator[T]) -> Iterator[T]:
        """What SQLite finds, with others let in between."""
        nothing = object()
        while True:
            with self:
                row = next(rows, nothing)
            if row is nothing:
                return
            yield row  # type: ignore[misc]

    def before_fork(self) -> None:
        """Keeps others out, and waits for those who are in; a callback in SQLite may fork."""
        until = time.monotonic() + WAIT
        if not self._one_fork.acquire(timeout=WAIT):
            return
        me = threading.get_ident()
        self._forking = me
        while any(each != me for each in tuple(self._inside)) and time.monotonic() < until:
            time.sleep(_LOOK)

    def after_fork_in_parent(self) -> None:
        """Lets others in again; also after a fork that failed."""
        if self._forking == threading.get_ident():
            self._forking = None
            self._one_fork.release()


SQLITE = _Gate()
processes.INHERITED.add(SQLITE)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=SQLITE.before_fork, after_in_parent=SQLITE.after_fork_in_parent)
