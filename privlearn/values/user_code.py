"""Calls of code that sees somebody's data: whatever it raises because of them is told to nobody.

Not every error is an `Exception`: compiled extensions raise their own kind for a value that they
cannot hold, and user code may call ``sys.exit``.  What a signal raises meanwhile is no answer of
the code that it interrupts, and passes.
"""

from __future__ import annotations

import dis
import signal
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, TracebackType
from typing import Final, Literal, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Outcome(Enum):
    FAILED = "failed"


Failed: TypeAlias = Literal[_Outcome.FAILED]
FAILED: Final = _Outcome.FAILED
"""In place of a result."""

_RAISE: Final = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


def attempted(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | Failed:
    """What a call gives back, or FAILED, whatever it raised; what a signal raised passes."""
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        if from_outside(error):
            raise
        return FAILED


def from_outside(error: BaseException) -> bool:
    """Whether a signal raised it, and not the code that was running.

    That is so if a frame of an installed handler is on its way, or if it is the KeyboardInterrupt
    of Python's own handler, which has no frame: the code that was running then stood at something
    else than a ``raise``.  An `Exception` counts as the code's own.
    """
    if issubclass(type(error), Exception):  # `isinstance` would ask the error itself, too
        return False
    ways = list(_ways(BaseException.__getattribute__(error, "__traceback__")))
    if type(error) is KeyboardInterrupt and ways and ways[-1][1] not in _RAISE:
        return True
    handlers = set(_handlers())
    return any(code in handlers for code, _ in ways)


def _ways(traceback: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    """The code of each frame and the instruction at which it stood, the innermost last."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code, code.co_code[traceback.tb_lasti]
        traceback = traceback.tb_next


def _handlers() -> Iterator[CodeType]:
    """Of the handlers that are written in Python."""
    for number in signal.valid_signals():
        code = _code_of(signal.getsignal(number))
        if code is not None:
            yield code


def _code_of(handler: object) -> CodeType | None:
    """Of a function, a method, an object that is called, or a partial one, as asyncio installs."""
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType) and callable(handler):
        handler = type(handler).__call__
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None
