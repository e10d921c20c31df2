"""Reads files that somebody else may have put there: in bounded time and memory.

A pipe would be waited for, and a device such as ``/dev/zero`` has no end: only regular files are
opened.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

LARGEST_SETTINGS = 2**20
"""Bytes of a file of settings."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading, and nothing else that stands under its name.

    Raises:
        OSError: there is none, it is no file, or it cannot be opened; it names the path.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError:
        raise OSError(errno.EINVAL, "no file has such a name", os.fspath(path)) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):  # before `open`, which names a folder by number
        os.close(file)
        raise OSError(errno.EINVAL, "it is no file", os.fspath(path))
    return open(file, "rb")


def read_whole(path: str | os.PathLike[str], *, at_most: int) -> bytes:
    """What a small file holds.

    Raises:
        OSError: as `open_regular`, or it has more bytes.
    """
    with open_regular(path) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > at_most:
            said = f"it has {size} bytes, more than {at_most}"
            raise OSError(errno.EFBIG, said, os.fspath(path))
        return opened.read(at_most)


def read_foreign(path: Path, *, at_most: int) -> bytes | None:
    """As `read_whole`; None where there is no file."""
    try:
        return read_whole(path, at_most=at_most)
    except (FileNotFoundError, NotADirectoryError):
        return None


def toml_in(data: bytes) -> dict[str, Any]:
    """The table that a TOML file holds.

    Raises:
        ValueError: it is no TOML, or nested too deeply.
    """
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
