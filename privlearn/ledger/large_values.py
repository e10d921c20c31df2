"""Released values that are too large for the database: files beside it, named by their digests."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from privlearn.errors import LedgerUnreadableError
from privlearn.storage.foreign_files import read_foreign
from privlearn.storage.new_names import sync_directory

LARGEST_IN_DATABASE = 2**20
"""Bytes of a value in the table ``released``."""
LARGEST = 2**30
"""Bytes of a value in a file."""
_DIGEST = re.compile("[0-9a-f]{64}")


def values_path(ledger: Path) -> Path:
    """The directory of a ledger's large values, which is there once it has one."""
    return ledger.with_name(f"{ledger.name}.values")


def write_large(ledger: Path, digest: str, data: bytes) -> None:
    """Returns when the value is on disk, under its name or not at all.

    Raises:
        OSError: it could not be written.
    """
    folder = values_path(ledger)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"a value of {len(data)} bytes; at most {LARGEST} are kept")
    folder.mkdir(exist_ok=True)
    sync_directory(folder.parent)  # who made it may have died before it was on disk
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
        LedgerUnreadableError: it could not be read.
    """
    if not _DIGEST.fullmatch(digest):
        raise LedgerUnreadableError(f"the value {digest!r:.80} cannot be read: that is no digest")
    try:
        return read_foreign(values_path(ledger) / digest, at_most=LARGEST)
    except OSError as error:
        raise LedgerUnreadableError(
            f"the value {digest} cannot be read: {error.strerror or error}"
        ) from None


def large_values(ledger: Path, digests: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Those of these values that stand in files; of one that cannot be read no bytes."""
    there = os.path.lexists(values_path(ledger))
    for digest in digests:
        if there or not _DIGEST.fullmatch(digest):
            try:
                value = read_large(ledger, digest)
            except LedgerUnreadableError:
                value = b""
            if value is not None:
                yield digest, value
