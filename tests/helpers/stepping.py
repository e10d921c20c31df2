"""Comes in at each line of a call, as a signal handler does: with another call or an exception."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Collection
from functools import cache
from types import FrameType, ModuleType
from typing import Any


@cache
def runs_nothing(file: str, number: int) -> bool:
    return linecache.getline(file, number).lstrip().startswith(("with ", "try:"))


def stepped(
    act: Callable[[], object],
    intrude: Callable[[], object],
    step: int,
    modules: Collection[ModuleType],
) -> bool:
    """Calls ``act``, and ``intrude`` before the ``step``-th line that it runs in ``modules``.

    The intruder itself is not interrupted.  An exception that it lets out comes up in ``act`` where
    it was interrupted.  Lines of ``with`` and ``try`` are left out, where Python handles no signal:
    tracing comes by once more on leaving the former, and the latter do nothing.

    Returns:
        Whether there were so many lines.
    """
    files = {module.__file__ for module in modules}
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and not runs_nothing(frame.f_code.co_filename, frame.f_lineno):
            seen += 1
            if seen == step:
                intrude()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return seen >= step
