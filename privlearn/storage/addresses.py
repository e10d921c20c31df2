"""What is a database's address where a path was wanted: it may hold a password."""

from __future__ import annotations

import os
import re

_BEGINNING = r"postgres(ql)?(\+psycopg)?:/"
_ADDRESS = re.compile(_BEGINNING, re.IGNORECASE)
_SECRETS = re.compile(rf"{_BEGINNING}\S*@", re.IGNORECASE)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether it names a database, and no file; also as a `Path`, which drops a slash."""
    text = os.fspath(path)
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def without_passwords(message: str) -> str:
    """A message in which addresses begin behind user and password."""
    return _SECRETS.sub("postgresql://…@", message)
