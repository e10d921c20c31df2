"""Reads files beside a ledger, where anybody may have put anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_foreign(path: Path, *, at_most: int) -> bytes | None:
    """What a file holds; None where there is none.

    Raises:
        OSError: it is no file, but a pipe, say, that would be waited for; it has more bytes; or it
            could not be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):  # before `open`, which would name a folder by its number
        os.close(file)
        raise OSError(errno.EINVAL, "it is no file")
    with open(file, "rb") as opened:
        if found.st_size > at_most:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than {at_most}")
        return opened.read(at_most)
