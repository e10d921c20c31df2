"""A lock for what must be looked at and changed in one piece.

Other threads wait.  The same thread can come back before it is done, in a signal handler, a
finaliser or a callback: a plain lock would then wait for itself for ever, and a reentrant one would
let it in between the look and the change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from privlearn.errors import ReentryError


@final
class Exclusive:
    """One call at a time: other threads wait, and a call from inside another one is refused.

    Args:
        what: is half-way while it is held, for the message.
    """

    __slots__ = ("_inside", "_lock", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()  # so that a second call of its thread gets to the flag
        self._inside = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds it for a ``with`` block.

        A generator, so that it is let go of also where a signal's exception falls between the
        taking and the block.

        Raises:
            ReentryError: this thread holds it already.
        """
        with self._lock:
            if self._inside:
                raise ReentryError(
                    f"{self._what} was called from inside an unfinished call of its own, by a "
                    "signal handler, a finaliser or a callback: call it when that one is done"
                )
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def __reduce__(self) -> tuple[type[Exclusive], tuple[str]]:
        return Exclusive, (self._what,)  # a copy is held by nobody
