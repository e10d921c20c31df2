"""Where a socket is, and what is a database's address instead: it may hold a password."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from privlearn.errors import LocalSocketError

_BEGINNING = r"postgres(ql)?(\+psycopg)?:/"
_ADDRESS = re.compile(_BEGINNING, re.IGNORECASE)
_SECRETS = re.compile(rf"{_BEGINNING}\S*@", re.IGNORECASE)
LONGEST_PATH = 107
"""Bytes of a socket's path: the kernel's ``sun_path`` has room for no more."""


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether it names a database, and no file; also as a `Path`, which drops a slash."""
    text = os.fspath(path)
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def without_passwords(message: str) -> str:
    """A message in which addresses begin behind user and password."""
    return _SECRETS.sub("postgresql://…@", message)


def located_socket(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a socket.

    Raises:
        LocalSocketError: no name, or one too long for the system, which may have no such sockets.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise LocalSocketError(
            "this system does not tell a Unix socket who is at its other end (SO_PEERCRED, Linux): "
            "processes cannot share a ledger here"
        )
    name = os.fsdecode(path)
    if not name or "\0" in name:
        raise LocalSocketError(f"socket = {name!r}: must name a file")
    if is_address(name):
        raise LocalSocketError(
            "a database's address where the path of a socket is wanted; a ledger in PostgreSQL is "
            "joined by Ledger.postgres(address, 'join')"
        )
    where = Path(os.path.abspath(name))
    size = len(os.fsencode(where))
    if size > LONGEST_PATH:
        raise LocalSocketError(
            f"{where}: a path of {size} bytes; that of a socket has at most {LONGEST_PATH}: give a "
            "shorter one, such as /run/user/1000/privlearn.sock"
        )
    return where
