"""What surrounds a run under check: a capture of its output, and a time limit."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from privlearn.checking.full_messages import told_in_full
from privlearn.errors import CheckError, InterferenceError
from privlearn.values.user_code import FAILED, attempted, from_outside

__tracebackhide__ = told_in_full

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_active: list[OutputCapture] = []


class OutputCapture:
    """Records what is printed, warned of and logged, with the time on a public clock.

    Loggers that do not propagate to the root logger are not captured.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.captured: list[tuple[int, str, str]] = []
        """When, what and where, in order; consecutive writes to one place are joined."""
        self.open = True
        self._clock = clock

    def record(self, text: str, where: str) -> None:
        now = self._clock()
        if not self.open or not text:
            return
        if self.captured and self.captured[-1][::2] == (now, where):
            text = self.captured.pop()[1] + text
        self.captured.append((now, text, where))

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        root, handler = logging.getLogger(), _Handler(self)
        level = root.level

        def warned(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
            self.record(f"{category.__name__}: {message}\n", "warnings")

        with (
            contextlib.redirect_stdout(_Stream(self, "stdout")),
            contextlib.redirect_stderr(_Stream(self, "stderr")),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always")
            warnings.showwarning = warned
            root.addHandler(handler)
            root.setLevel(logging.DEBUG)
            _active.append(self)
            try:
                yield
            finally:
                _active.remove(self)
                root.setLevel(level)
                root.removeHandler(handler)


class muted:
    """While the block runs, users act: what they print or warn of is not captured."""

    def __enter__(self) -> None:
        self._were_open = [capture for capture in _active if capture.open]
        for capture in self._were_open:
            capture.open = False

    def __exit__(self, *_: object) -> None:
        for capture in self._were_open:
            capture.open = True


class _Stream(io.TextIOBase):
    def __init__(self, capture: OutputCapture, where: str) -> None:
        self._capture, self._where = capture, where

    def write(self, text: str, /) -> int:
        self._capture.record(text, self._where)
        return len(text)

    def writable(self) -> bool:
        return True


class _Handler(logging.Handler):
    def __init__(self, capture: OutputCapture) -> None:
        super().__init__()
        self._capture = capture

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name} {record.levelname}: {record.getMessage()}\n"
        self._capture.record(text, "log")


class _Sink(io.TextIOBase):
    def write(self, text: str, /) -> int:
        return len(text)


def silenced(check: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a check, while which the code under check prints to nobody."""

    @wraps(check)
    def quietly(*args: P.args, **kwargs: P.kwargs) -> R:
        with contextlib.redirect_stdout(_Sink()), contextlib.redirect_stderr(_Sink()):
            return check(*args, **kwargs)

    return quietly


def own_copy(data: T) -> T:
    """A copy of a caller's data, which code under check may overwrite; itself if it has none."""
    copied = attempted(deepcopy, data)
    return data if copied is FAILED else copied


class _TimeUp(BaseException):
    """Not an Exception, so that what is checked does not take it for one of its own."""


def is_output(error: BaseException) -> bool:
    """Whether code that was checked raised it, of itself: then it is an output like any other."""
    return not (isinstance(error, _TimeUp | CheckError | InterferenceError) or from_outside(error))


_GRACE = 0.1
"""Seconds for an error to get out that says who is slow, before an outer limit ends it, too."""


class TimeLimit:
    """Ends what takes too long, as a `CheckError`: a check that does not end is never a pass.

    In the main thread a timer interrupts Python code at any point, where the system has one (POSIX;
    long calls into compiled code end first); elsewhere `check` has to be called now and then.
    """

    def __init__(self, seconds: float, what: str) -> None:
        if not 0 < seconds < float("inf"):
            raise CheckError(f"seconds = {seconds!r}: must be a finite number above 0")
        self.seconds, self.what = seconds, what
        self.where = ""
        """How far it came; whoever runs it keeps this up to date."""
        in_main = threading.current_thread() is threading.main_thread()
        self._timer = in_main and hasattr(signal, "setitimer")

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise _TimeUp

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise _TimeUp

    def __enter__(self) -> TimeLimit:
        self._end = time.monotonic() + self.seconds
        if self._timer:
            self._handler = signal.signal(signal.SIGALRM, self._ring)
            # Again and again, in case something swallows the first one.
            self._before = signal.setitimer(signal.ITIMER_REAL, self.seconds, 0.2)
            self._began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            if self._before[0]:  # somebody else's limit goes on
                left = self._before[0] - (time.monotonic() - self._began)
                signal.setitimer(signal.ITIMER_REAL, max(left, _GRACE), self._before[1])
        if kind is not None and issubclass(kind, _TimeUp):
            raise CheckError(
                f"{self.what} did not end within {self.seconds:g} seconds{self.where}"
            ) from None
