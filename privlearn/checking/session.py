"""What a running test tells the checks inside it, and what they tell the summary.

It imports nothing of the package, so that the pytest plugin stays cheap for projects that have
privlearn installed and do not use it."""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class CheckSession:
    """The settings of one test (``deadline`` is a reading of `time.monotonic`), and the lines that
    its checks leave for the terminal summary."""

    confidence: float | None = None
    deadline: float | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()


_CURRENT: ContextVar[CheckSession | None] = ContextVar("privlearn_check_session", default=None)


def current() -> CheckSession | None:
    """The session of the test that is running in this context, if any."""
    return _CURRENT.get()


def enter(session: CheckSession) -> Token[CheckSession | None]:
    """Makes ``session`` the current one until `leave` is called with what this returns."""
    return _CURRENT.set(session)


def leave(token: Token[CheckSession | None]) -> None:
    """Ends what `enter` began."""
    _CURRENT.reset(token)


def note(line: str) -> None:
    """Leaves a line for the summary; outside of a test it goes nowhere."""
    session = _CURRENT.get()
    if session is not None:
        session.lines.append(line)
