"""Released values that are too large for the database: files beside it, named by their digests."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from privlearn.ledger.disk import sync_directory

LARGEST_IN_DATABASE = 2**20
"""Bytes of a value in the table ``released``."""


def values_path(ledger: Path) -> Path:
    """The directory of a ledger's large values, which is there once it has one."""
    return ledger.with_name(f"{ledger.name}.values")


def write_large(ledger: Path, digest: str, data: bytes) -> None:
    """Returns when the value is on disk, under its name or not at all.

    Raises:
        OSError: it could not be written.
    """
    folder = values_path(ledger)
    if not folder.is_dir():
        folder.mkdir()
        sync_directory(folder.parent)
    new = folder / f"{digest}.new-{secrets.token_hex(4)}"
    try:
        with open(new, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / digest)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new)
    sync_directory(folder)


def read_large(ledger: Path, digest: str) -> bytes | None:
    """A value as it was written; None where there is none.

    Raises:
        OSError: it could not be read.
    """
    try:
        return (values_path(ledger) / digest).read_bytes()
    except FileNotFoundError:
        return None
