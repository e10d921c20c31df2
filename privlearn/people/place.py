"""The one place of a registry's file: held by one process, and looked at before each write.

A second registry at work would give everybody the whole of the rule again, and so would a copy.
The file is locked as an open file (``flock``, where the system has it, beside SQLite's own lock),
and it states on which device and as which inode it was made.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self, final

from privlearn import _held_lock
from privlearn.errors import PeopleError

try:
    import fcntl
except ImportError:  # SQLite's own lock has to do
    fcntl = None  # type: ignore[assignment]

_MODE = 0o600


def located(path: str | os.PathLike[str]) -> Path:
    """The path without links.

    Raises:
        PeopleError: it names no file.
    """
    given = os.fspath(path)
    if not isinstance(given, str) or not given or "\0" in given:
        raise PeopleError(f"path = {given!r}: must name a file")
    return Path(given).resolve()


@final
class Place:
    """A file that is open and locked; `made` and `found` make one.

    Attributes:
        path: of the file.
        log: of what SQLite writes beside it until it is copied there.
    """

    __slots__ = ("_file", "_log", "log", "path")

    def __init__(self, path: Path, file: int) -> None:
        self.path, self._file = path, file
        self.log = Path(f"{path}-wal")
        self._log: tuple[int, int] | None = None

    @classmethod
    def made(cls, path: Path) -> Self:
        """Makes the file, which only its owner may read.

        Raises:
            PeopleError: it exists, or cannot be made.
        """
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE)
        except FileExistsError:
            raise PeopleError(
                f"{path} exists: a registry of people is never overwritten; open it, or choose "
                "another path"
            ) from None
        except OSError as error:
            raise PeopleError(f"{path} cannot be created: {error.strerror}") from None
        return cls(path, file)._locked()

    @classmethod
    def found(cls, path: Path) -> Self:
        """Opens the file.

        Raises:
            PeopleError: it is not there, is no file, or is open already.
        """
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            raise PeopleError(
                f"{path} does not exist: a registry of people that is lost cannot be made anew "
                "with what people have left; People.create begins one, and People.replace_lost "
                "goes on without learning"
            ) from None
        except OSError as error:
            raise PeopleError(f"{path} cannot be opened: {error.strerror}") from None
        place = cls(path, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            place.leave()
            raise PeopleError(f"{path} is no registry of people: it is no file")
        return place._locked()

    def _locked(self) -> Self:
        if fcntl is None:
            return self
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self.leave()
                raise busy(self.path) from None
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                self.leave()
                raise PeopleError(f"{self.path} cannot be locked: {error.strerror}") from None
        return self

    @property
    def identity(self) -> str:
        """Device and inode."""
        found = os.fstat(self._file)
        return f"{found.st_dev}:{found.st_ino}"

    def header(self, length: int) -> bytes:
        """The first bytes of the file."""
        os.lseek(self._file, 0, os.SEEK_SET)
        return os.read(self._file, length)

    def has_log(self) -> bool:
        """Whether a log stands beside it."""
        return self.log.exists()

    def take_log(self) -> None:
        """From now on no closing removes the log that SQLite has begun, and `check` looks at it."""
        _held_lock.hold(self._file)
        self._log = _which(self.log)

    def leave_log(self) -> None:
        """Lets SQLite remove the log."""
        _held_lock.let_go(self._file)

    def check(self) -> None:
        """Raises PeopleError unless the paths still name these very files."""
        changed = None
        if _which(self.path) != _which(self._file):
            changed = self.path
        elif self._log is not None and _which(self.log) != self._log:
            changed = self.log
        if changed is not None:
            raise PeopleError(
                f"{changed} was deleted or replaced while it was in use: what is written to it "
                "would be lost; nothing more is learned"
            )

    def leave(self) -> None:
        """Lets go of the lock, also for processes that were forked from this one."""
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
        self.leave_log()
        os.close(self._file)


def _which(file: Path | int) -> tuple[int, int] | None:
    """Device and inode of what stands there; None for nothing."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def busy(path: Path) -> PeopleError:
    """What is raised where somebody else has the file."""
    return PeopleError(
        f"{path} is open already, in this process or in another: one registry of people is used "
        "by one accountant in one process"
    )
