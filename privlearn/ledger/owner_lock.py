"""The lock on a ledger file by which there is one owner of it, whatever the owner dies of.

It is one of the open file (``flock``), on the ledger itself: so it does not depend on the name by
which somebody comes to it, and the system lets go of it with the process.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Self, final

from privlearn.errors import LedgerBusyError, LedgerError, LedgerUnreadableError
from privlearn.storage import processes

try:
    import fcntl
except ImportError:  # no owner there: its sockets need more than that
    fcntl = None  # type: ignore[assignment]


@final
class OwnerLock:
    """Held while a ledger is served; a context manager.

    Raises:
        LedgerBusyError: another process serves it.
        LedgerUnreadableError: there is none.
        LedgerError: it cannot be opened or locked.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self._ledger, os.O_RDWR)
        except FileNotFoundError:
            raise LedgerUnreadableError(f"{self._ledger}: no such file") from None
        except OSError as error:
            raise LedgerError(f"{self._ledger} cannot be opened: {error.strerror}") from None
        try:
            self._lock()
        except OSError as error:
            os.close(self._file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise served(self._ledger) from None
            raise LedgerError(f"{self._ledger} cannot be locked: {error.strerror}") from None
        processes.INHERITED.add(self)
        return self

    def _lock(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody who just opens the ledger looks at the lock, perhaps
                if not tries_left:
                    raise
                time.sleep(_BETWEEN)
            else:
                return

    def __exit__(self, *_: object) -> None:
        processes.INHERITED.discard(self)
        self.in_child()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """A block in which this thread, and nobody else, may open the ledger."""
        ours = get_ident(), *_which(self._file)
        _OPENING.add(ours)
        try:
            yield
        finally:
            _OPENING.discard(ours)

    def in_child(self) -> None:
        os.close(self._file)


_TRIES, _BETWEEN = 5, 0.005
_OPENING: set[tuple[int, int, int]] = set()
"""Threads of this process that open what it serves, each with its file."""


def _which(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def check_not_served(ledger: Path) -> None:
    """Raises LedgerBusyError while an owner serves a ledger, which opening it would end."""
    if fcntl is None:
        return
    try:
        file = os.open(ledger, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return  # of which others tell
    try:
        if (get_ident(), *_which(file)) not in _OPENING:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise served(ledger) from None
    finally:
        with suppress(OSError):
            os.close(file)


def served(ledger: Path) -> LedgerBusyError:
    """What is raised while a ledger is served."""
    return LedgerBusyError(
        f"{ledger} is served by its owner: connect to that (Ledger.connect) if it is `privlearn "
        "ledger serve`, or end it first"
    )
