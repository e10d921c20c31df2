"""Names of files that are being made, before they have their own.

A file is written and synced under a name that ends in ``.new-`` and eight digits, and then linked
to its own, which overwrites nothing.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

BESIDE = ("-wal", "-journal", "-shm")
"""What SQLite puts behind the name of a database for the files that it makes, and removes."""


def new_name(path: Path) -> Path:
    """Where to write what is to stand at a path, beside it."""
    return path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")


def unlink_leftover_names(path: Path) -> None:
    """Removes the second name of a file whose making was interrupted behind its naming.

    A file of that form that is not this one may be somebody's that is just being made.
    """
    own = path.stat()
    if own.st_nlink == 1:
        return
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path.name)
    for other in path.parent.glob(f"{escaped}.new-*"):
        with suppress(FileNotFoundError):
            found = other.lstat()
            if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) == (
                own.st_dev,
                own.st_ino,
            ):
                other.unlink()


def sync_directory(directory: Path) -> None:
    """Brings the names in a directory to disk."""
    if os.name != "posix":  # elsewhere a directory cannot be opened
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
