"""How processes of a service end: by signals, with their supervisor, and with which exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

BAD_INPUT: Final = 2
"""It could not begin."""
FAILED: Final = 70
"""After an error from which only a new start helps."""
OVER: Final = 71
"""All users were served before it began."""
FENCED: Final = 72
"""Another process went on with its ledger; to start again would take the ledger from that one."""


def when_told(stop: Callable[[], None], lifeline: int | None) -> None:
    """Calls ``stop`` at SIGTERM, SIGINT, and at the end of the supervisor.

    Args:
        stop: may be called several times.
        lifeline: a pipe that only the supervisor could write to, so that it ends with it.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if lifeline is not None:
        pipe = lifeline

        def read() -> None:
            if not os.read(pipe, 64):
                loop.remove_reader(pipe)
                stop()

        loop.add_reader(pipe, read)
