"""A read lock on a SQLite file that no closing of a descriptor lets go of.

SQLite's own locks are POSIX ones: they belong to the process, and closing any descriptor of the
file, somebody's who only read it, lets go of all of them.  Another process then takes itself for
the only one, and removes the log of a writer that goes on writing to it.  Where the system has
locks of open files (Linux), one is held beside SQLite's own, on the same bytes; elsewhere a writer
looks whether its log is still there after each entry.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress

try:
    import fcntl
except ImportError:  # no such locks on this system
    _SET: int | None = None
else:
    _SET = getattr(fcntl, "F_OFD_SETLK", None)

_FIRST, _LENGTH = 0x40000002, 510
"""SQLite's shared lock: https://www.sqlite.org/fileformat.html#the_lock_byte_page, os_unix.c."""


def hold(file: int) -> bool:
    """Takes the lock, through a descriptor that stays open; whether this system has such locks.

    Raises:
        BlockingIOError: another process has the file to itself.
    """
    if _SET is None:
        return False
    try:
        _set(_SET, file, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError(errno.EAGAIN, "another process has locked it") from None
        if error.errno in (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return False  # a file system without them
        raise
    return True


def let_go(file: int) -> None:
    """Lets go of it, also for processes that were forked from this one."""
    if _SET is not None:
        with suppress(OSError):
            _set(_SET, file, fcntl.F_UNLCK)


def _set(command: int, file: int, kind: int) -> None:
    # struct flock: type, whence, start, length, process (0 for these locks), padded to its end
    fcntl.fcntl(file, command, struct.pack("hhqqi0q", kind, os.SEEK_SET, _FIRST, _LENGTH, 0))
