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

    __slots__ = ("_lock", "_what")

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.RLock()

    def __enter__(self) -> None:
        """Takes it.

        Raises:
            ReentryError: this thread holds it already.
        """
        owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        if owned():
            raise ReentryError(
                f"{self._what} was called from inside an unfinished call of its own, by a signal "
                "handler, a finaliser or a callback: call it when that one is done"
            )
        try:
            self._lock.acquire()
        except BaseException:
            if owned():
                self._lock.release()
            raise

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return Exclusive, (self._what,)  # a copy is held by nobody
