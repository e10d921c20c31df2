"""Which process this is, and what becomes in a forked child of what its parent made.

A child begins with the parent's memory: tokens, connections, keys, and locks that are held by
threads it does not have.  Its process number does not tell it apart: the first process of a
container and one that it forks into another container may both be process 1.  So forks are counted,
in the child, before any other code of ours runs there.  For a fork in C, of which Python is not
told, the number is compared besides, and there is a page that the kernel wipes in every child
(Linux): whoever finds it wiped counts then.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

forks = 0
"""How many lie between this process and the one that loaded this module."""


_WIPE_ON_FORK = 18  # ``MADV_WIPEONFORK``, Linux 4.14, which Python does not name


def _mark() -> mmap.mmap | bytearray:
    if not hasattr(mmap.mmap, "madvise") or not hasattr(mmap, "MAP_ANONYMOUS"):
        return bytearray(1)
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        page.madvise(_WIPE_ON_FORK)
    return page


MARK: Any = _mark()
"""Its first byte is 1, and 0 in a child that was not counted yet."""
MARK[0] = 1


def here() -> tuple[int, int]:
    """This process: equal to what another call gives here, and to none in a child or parent.

    Where each call counts, `MARK` and ``(_processes.forks, os.getpid())`` are written out.
    """
    if not MARK[0]:
        in_child()
    return forks, os.getpid()


class Inherited(Protocol):
    """What a forked child must wipe, or leave alone, at once."""

    def in_child(self) -> None:
        """Called in the child, in which no other thread runs; it takes no lock."""


INHERITED: weakref.WeakSet[Inherited] = weakref.WeakSet()
"""What lives and is to be told; it takes itself out."""


def never_end(thing: object) -> None:
    """Keeps it for as long as the process lives, and beyond the end of the interpreter.

    SQLite forbids a child even to close a connection of its parent: it takes itself to hold locks
    that are the parent's, and may end a log in which somebody writes
    (https://www.sqlite.org/howtocorrupt.html, 2.6).  The garbage collector, or the end of the
    interpreter, would close it.  So it goes into a circle that neither of them sees: NumPy's arrays
    of objects take no part in the collection of garbage.
    """
    circle: Any = np.empty(2, dtype=object)
    circle[0], circle[1] = thing, circle


class Gone:
    """Stands in a forked child for a connection of its parent, and refuses whatever is asked of it.

    Args:
        refusal: what is raised.
        what: cannot be used, for the message.
    """

    def __init__(self, refusal: type[Exception], what: str) -> None:
        self._refusal, self._what = refusal, what

    def __getattr__(self, name: str) -> Any:
        raise self._refusal(f"{self._what} cannot be used in a forked process")


def in_child() -> None:
    """Counts a fork, and tells what the parent made; called in the child."""
    global forks
    forks += 1
    MARK[0] = 1
    for each in list(INHERITED):
        each.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=in_child)
