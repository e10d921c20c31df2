"""What surrounds a run under check: a capture of its output, a time limit, a process of its own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import wraps
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar
from unittest.mock import patch

from privlearn.errors import CheckError, InterferenceError
from privlearn.values.user_code import FAILED, attempted, from_outside

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_active: list[OutputCapture] = []


class OutputCapture:
    """Records what is printed, warned of and logged, with the time on a public clock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._captured: list[tuple[int, list[str], str]] = []
        self.open = True
        self._clock = clock

    @property
    def captured(self) -> list[tuple[int, str, str]]:
        """When, what and where, in order; consecutive writes to one place are joined."""
        return [(now, "".join(texts), where) for now, texts, where in self._captured]

    def record(self, text: str, where: str) -> None:
        now = self._clock()
        if not self.open or not text:
            return
        if self._captured and self._captured[-1][::2] == (now, where):
            self._captured[-1][1].append(text)
        else:
            self._captured.append((now, [text], where))

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        root, handle = logging.getLogger(), logging.Logger.callHandlers
        level = root.level

        def logged(logger: logging.Logger, record: logging.LogRecord) -> None:
            self.record(_told(record), "log")
            handle(logger, record)

        def warned(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
            self.record(f"{category.__name__}: {message}\n", "warnings")

        with (
            contextlib.redirect_stdout(_Stream(self, "stdout")),
            contextlib.redirect_stderr(_Stream(self, "stderr")),
            patch.object(sys, "__stdout__", _Stream(self, "stdout")),
            patch.object(sys, "__stderr__", _Stream(self, "stderr")),
            patch.object(logging.Logger, "callHandlers", logged),  # also of those by themselves
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always")
            warnings.showwarning = warned
            root.setLevel(logging.DEBUG)
            _active.append(self)
            try:
                yield
            finally:
                _active.remove(self)
                root.setLevel(level)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """While the block runs, users act: what they print or warn of is not captured."""
    were_open = [capture for capture in _active if capture.open]
    for capture in were_open:
        capture.open = False
    try:
        yield
    finally:
        for capture in were_open:
            capture.open = True


class _Stream(io.TextIOBase):
    def __init__(self, capture: OutputCapture | None, where: str = "") -> None:
        self._capture, self._where = capture, where

    def write(self, text: str, /) -> int:
        if self._capture is not None:
            self._capture.record(text, self._where)
        return len(text)

    def writable(self) -> bool:
        return True


_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def _told(record: logging.LogRecord) -> str:
    """Its text, its error, and what else the code put into it."""
    own = {name: value for name, value in vars(record).items() if name not in _USUAL}
    error = f" {record.exc_info[1]!r}" if record.exc_info else ""
    return f"{record.name} {record.levelname}: {record.getMessage()}{error}{own or ''}\n"


def silenced(check: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a check, while which the code under check prints to nobody, and ends nothing."""

    @wraps(check)
    def quietly(*args: P.args, **kwargs: P.kwargs) -> R:
        sink = _Stream(None)
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), contained():
            return check(*args, **kwargs)

    return quietly


class contained:
    """While the block runs, code in it cannot end this process: `os._exit` raises SystemExit. A
    copy of the process that it forks ends at once, unless it is one of `multiprocessing` or
    `subprocess`; ``forks`` counts them."""

    forks = 0
    _active = 0
    _hooked = False

    def __enter__(self) -> None:
        if contained._active == 0:
            contained.forks, os._exit = 0, sys.exit  # type: ignore[assignment]
            if not contained._hooked and hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_parent=_count_fork, after_in_child=_end_copy)
                contained._hooked = True
        contained._active += 1

    def __exit__(self, *_: object) -> None:
        contained._active -= 1
        if contained._active == 0:
            os._exit = _EXIT


_EXIT = os._exit
_MANAGED = frozenset({"multiprocessing.popen_fork", "subprocess", __name__})


def _managed() -> bool:
    """Whether the copy that is being made belongs to a library that ends it."""
    frame = sys._getframe(2)
    return frame.f_back is None or frame.f_globals.get("__name__") in _MANAGED


def _count_fork() -> None:
    if contained._active and not _managed():
        contained.forks += 1


def _end_copy() -> None:
    if contained._active:
        if not _managed():
            _EXIT(0)
        os._exit = _EXIT


def _run_apart(run: Callable[[], object], told: int) -> NoReturn:
    try:
        contained.forks = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        with contextlib.suppress(BaseException):  # found again, and told, in the first process
            run()
        os.write(told, b"f" if contained.forks else b"!")
    finally:
        _EXIT(0)


FORKS = "makes a copy of its process (os.fork), and what that does is not seen"


@contextlib.contextmanager
def kept_alive(what: str) -> Iterator[None]:
    """While the block runs, code in it neither ends this process nor copies it unseen. Raises
    CheckError: it tried to."""
    with contained():
        try:
            yield
        except SystemExit as error:
            raise CheckError(f"{what} ends the process that runs it ({error!r})") from None
        if contained.forks:
            raise CheckError(f"{what} {FORKS}")


_THREADED = ("torch", "jax", "tensorflow", "sklearn")
"""Libraries whose threads may wait for ever in a copy of the process that has used them."""


def tried_apart(run: Callable[[], object], seconds: float, what: str) -> None:
    """Runs something once in a copy of this process, which may hang or end without harm. That also
    ends what hangs in compiled code. Nothing is tried where processes cannot be copied. Raises
    CheckError: it did not end in time, or it ended the copy."""
    if sys.platform != "linux" or any(name in sys.modules for name in _THREADED):
        return
    mine, its = os.pipe()
    with contained(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process has threads
        pid = os.fork()
        if pid == 0:
            _run_apart(run, its)
    os.close(its)
    said = b""
    try:
        ended = bool(select.select([mine], [], [], seconds)[0])
        said = os.read(mine, 1) if ended else said
    finally:
        os.close(mine)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if not ended:
        raise CheckError(f"{what} did not end within {seconds:g} seconds")
    if said == b"f":
        raise CheckError(f"{what} {FORKS}")
    if not said:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        raise CheckError(f"{what} ends the process that runs it ({how})")


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
    """Ends what takes too long, as a `CheckError`: a check that does not end is never a pass. In
    the main thread a timer interrupts Python code at any point, where the system has one (POSIX;
    long calls into compiled code end first); elsewhere `check` has to be called now and then."""

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
