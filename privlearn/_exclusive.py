"""A lock for what must be looked at and changed in one piece.

Other threads wait.  The same thread can come back before it is done, in a signal handler, a
finaliser or a callback: a plain lock would then wait for itself for ever, and a reentrant one would
let it in between the look and the change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

from privlearn.errors import ReentryError


@final
class Exclusive:
    """One call at a time: other threads wait, and a call from inside another one is refused.

    A context manager.  A signal's exception falls before it is held, or it is let go of: there is
    no Python code of ours between the taking and the block, nor on leaving.

    Args:
        what: is half-way while it is held, for the message.
    """

    # bound methods in slots: an append takes three of these, and makes none of them anew
    __slots__ = ("__exit__", "_acquire", "_owned", "_what")
    __exit__: Callable[..., None]

    def __init__(self, what: str) -> None:
        lock = threading.RLock()
        self._what, self._acquire, self.__exit__ = what, lock.acquire, lock.__exit__
        self._owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        """Takes it.

        Raises:
            ReentryError: this thread holds it already.
        """
        if self._owned():
            raise ReentryError(
                f"{self._what} was called from inside an unfinished call of its own, by a signal "
                "handler, a finaliser or a callback: call it when that one is done"
            )
        try:
            self._acquire()
        except BaseException:
            if self._owned():
                self.__exit__(None, None, None)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return Exclusive, (self._what,)  # a copy is held by nobody
