"""Whether a ledger file is still the one that it was a moment ago.

A writer begins and ends its log at any time, and copies it to the main file when it ends.  Whoever
reads meanwhile may find that a file is gone at which it looked just before, or pages of two moments
where nothing was locked.  Neither is a fault of the ledger: it is read again.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from privlearn.storage.foreign_files import open_regular

CHANGED = "somebody writes to it, or replaced it, while it is read"
_TRIES = 100  # Of reading further, before it is said that it cannot be read
_PAUSE, _LONGEST_PAUSE = 0.001, 0.02
"""Seconds before the next try, for each that was made."""
_COUNTERS = slice(18, 28)
"""Of SQLite's header: whether there is a log, and a count that each end of a log moves on.

https://www.sqlite.org/fileformat.html#the_database_header
"""


def real_path(where: Path) -> Path:
    """The path without links, also where they lead in a circle, of which opening it tells."""
    return Path(os.path.realpath(where))


def log_path(where: Path) -> Path:
    """Where SQLite has the log of a file: beside the file that the links lead to."""
    return Path(f"{real_path(where)}-wal")


@final
@dataclass(frozen=True, slots=True)
class Moment:
    """Which file stands at a path, which log beside it, and how far both were written."""

    main: tuple[int, ...] | None
    log: tuple[int, ...] | None
    counters: bytes

    @classmethod
    def of(cls, where: Path) -> Self:
        """As it is now.

        Raises:
            ValueError: what stands in place of a log is no file.
        """
        log = _told(log_path(where))
        if log is not None and not stat.S_ISREG(log[0]):
            raise ValueError(f"{where.name}-wal is no file")
        # nobody of this process writes to it, whose locks would be let go of as it is closed again
        return cls(_told(where), log, b"" if log is not None else _counters(where))

    @property
    def logged(self) -> bool:
        """Whether a log stands there, so that SQLite has to lock what it reads."""
        return self.log is not None

    @property
    def file(self) -> tuple[int, ...] | None:
        """Mode, device and inode of the main file."""
        return None if self.main is None else self.main[:3]

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return sum(each[3] for each in (self.main, self.log) if each is not None)


@final
class Tries:
    """How often a file is read again that a writer changed while it was read."""

    def __init__(self, where: Path) -> None:
        self._where, self._made, self._moved_on = where, 0, False
        self._before = Moment.of(where)

    def further(self) -> None:
        """Something was read, so that it may go on as long again, with the same file."""
        self._made, self._moved_on = 0, True

    def again(self) -> bool:
        """Whether what went wrong just now can be a writer's doing; waits for that a moment.

        Raises:
            ValueError: it is, and was for too long, or the file is another one.
        """
        self._made += 1
        time.sleep(min(_PAUSE * self._made, _LONGEST_PAUSE))
        before, self._before = self._before, Moment.of(self._where)
        if self._before == before:
            return False
        if self._made >= _TRIES or (self._moved_on and self._before.file != before.file):
            raise ValueError(CHANGED)
        return True


def _told(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mode, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _counters(where: Path) -> bytes:
    try:
        with open_regular(where) as file:
            return file.read(_COUNTERS.stop)[_COUNTERS]
    except OSError:
        return b""
