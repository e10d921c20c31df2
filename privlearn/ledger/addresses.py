"""Addresses of ledgers that stand in a database; they may hold a password, which is never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, unquote, urlsplit

from privlearn.errors import LedgerError
from privlearn.storage.addresses import is_address as is_address

LEDGER = "ledger"
"""The parameter of an address that names one of the ledgers of a database."""


def spelled_out(address: str | os.PathLike[str]) -> str:
    """An address with the slash that a `Path` drops."""
    return re.sub(
        r"^postgres(ql)?(\+psycopg)?:/(/?)", "postgresql://", os.fspath(address), flags=re.I
    )


def shown(address: str | os.PathLike[str]) -> str:
    """Where an address leads to, without user, password and parameters that are nobody's matter."""
    text = spelled_out(address)
    try:
        parts = urlsplit(text)
        # a password may hold one of "/?#", and then does not end where the host seems to begin
        behind = parts.path if "@" in parts.netloc else text.partition("://")[2]
        if parts.netloc and "@" in behind:
            return "postgresql://…"
        parameters = dict(parse_qsl(parts.query))
        port = "" if parts.port is None else f":{parts.port}"
        host = unquote(parts.netloc.rpartition("@")[2]).partition(":")[0] if parts.netloc else ""
        if parts.netloc.rpartition("@")[2].startswith("["):
            host = f"[{parts.hostname}]"
    except ValueError:
        return "postgresql://…"
    where = host or parameters.get("host", "")
    ledger = f"?{LEDGER}={parameters[LEDGER]}" if LEDGER in parameters else ""
    return f"postgresql://{where}{port}{parts.path}{ledger}"


def named(path: str | os.PathLike[str]) -> str:
    """A path as it is given; of an address only what may be shown."""
    return shown(path) if is_address(path) else str(os.fspath(path))


@contextmanager
def extra_needed() -> Iterator[None]:
    """A block that imports what only the extra ``postgres`` installs.

    Raises:
        LedgerError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise LedgerError(
            f"{error.name} is not installed, and ledgers in PostgreSQL need it: "
            "pip install 'privlearn[postgres]'"
        ) from None
