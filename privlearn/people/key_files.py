"""The secret key of a registry in a file of its own, for registries that stand in a database.

Who has the database and not this file cannot test guesses of ids.  Each host whose processes admit
visits has a copy, which only their user may read.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b
from pathlib import Path

from privlearn.errors import PeopleError
from privlearn.people.identities import KEY_BYTES
from privlearn.storage.foreign_files import open_regular

_PURPOSE = b"privlearn people"


def write_key(path: str | os.PathLike[str], key: bytes) -> None:
    """Writes a key to a new file, which only its owner may read, and which is on disk then.

    Raises:
        PeopleError: something stands there, or it cannot be written.
    """
    where = Path(path)
    try:
        file = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as out:
            out.write(key.hex().encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())
        folder = os.open(where.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise PeopleError(
            f"{where} exists: a key is never overwritten; name another file"
        ) from None
    except OSError as error:
        raise PeopleError(f"{where} cannot be written: {error.strerror}") from None


def read_key(path: str | os.PathLike[str]) -> bytes:
    """The key that `write_key` wrote.

    Raises:
        PeopleError: there is none, others may read it, or it is no key.
    """
    where = Path(path)
    try:
        with open_regular(where) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(2 * KEY_BYTES + 2)
    except OSError as error:
        raise PeopleError(
            f"{where} cannot be read: {error.strerror}; copy the file from a host whose processes "
            "keep the registry"
        ) from None
    if mode & 0o077:
        raise PeopleError(
            f"{where} may be read by others (mode {mode:04o}): with this key ids can be guessed; "
            f"use chmod 600 {where}"
        )
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise PeopleError(f"{where} holds no key of a registry of people")
    return key


def known(key: bytes, registry: str) -> bytes:
    """What tells whether a key is that of a registry, and nothing else of it."""
    return blake2b(registry.encode(), key=key, digest_size=16, person=_PURPOSE).digest()
