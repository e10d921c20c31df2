"""A lock for what must be looked at and changed in one piece.

Other threads wait.  The same thread can come back before it is done, in a signal handler, a
finaliser or a callback: a plain lock would then wait for itself for ever, and a reentrant one would
let it in between the look and the change.  In a forked child it may be held for ever, by a thread
that is not there: what the parent made is refused in the child before the lock is tried.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, final

from privlearn.errors import PrivlearnError, ReentryError, TokenCopyError
from privlearn.storage import processes


@final
class Exclusive:
    """One call at a time: other threads wait; a call from inside another one is refused.

    So is every call in a process that was forked from the one that made it.

    A context manager.  A signal's exception falls before it is held, or it is let go of: there is
    no Python code of ours between the taking and the block, nor on leaving.

    Args:
        what: is half-way while it is held, for the message.
        refusal: what is raised in a forked child.
        why: it is refused there, for the message.
    """

    # bound methods in slots: an append takes three of these, and makes none of them anew
    __slots__ = ("__exit__", "_acquire", "_owned", "_refusal", "_what", "_why", "made_in")
    __exit__: Callable[..., None]

    def __init__(
        self, what: str, refusal: type[PrivlearnError] = TokenCopyError, why: str = ""
    ) -> None:
        lock = threading.RLock()
        self._refusal, self._why = refusal, why
        if not processes.MARK[0]:
            processes.in_child()
        self.made_in = processes.forks, os.getpid()
        self._what, self._acquire, self.__exit__ = what, lock.acquire, lock.__exit__
        self._owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        """Takes it.

        Raises:
            ReentryError: this thread holds it already.  TokenCopyError, or what ``refusal`` says:
                in a forked child.
        """
        if not processes.MARK[0]:
            processes.in_child()
        if self.made_in != (processes.forks, os.getpid()):
            raise self.refused()
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

    def refused(self) -> PrivlearnError:
        """What is raised in a forked child."""
        because = f": {self._why}" if self._why else ""
        return self._refusal(f"{self._what} cannot be used in a forked process{because}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Exclusive, (self._what, self._refusal, self._why)  # a copy is held by nobody


T_co = TypeVar("T_co", covariant=True)


class Block(io.IOBase, Generic[T_co]):
    """A ``with`` block over a generator, which goes on behind its ``yield`` when the block ends.

    A manager of `contextlib` is left by Python code, and a signal's exception that falls at its
    first instruction keeps the generator from going on: what it holds stays held.  This one is
    left by C code, `io.IOBase.__exit__`, that calls the generator's ``close``; so what falls, falls
    behind the ``yield``, where a ``finally`` sees it.  What is raised in the block comes out of it
    as it is; to the generator every end is GeneratorExit.

    Args:
        steps: makes the generator of each block, which has one ``yield``.
    """

    def __init__(self, steps: Callable[[], Generator[T_co, None, None]]) -> None:
        self._steps = steps

    def __enter__(self) -> T_co:  # type: ignore[override]
        steps = self._steps()
        try:
            found = next(steps)
            self.close = steps.close  # type: ignore[method-assign]
            return found
        except BaseException:
            steps.close()
            raise
