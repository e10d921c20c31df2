"""Exports of ledgers: all entries as lines of JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from privlearn.errors import LedgerError
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import SCHEMA, Record
from privlearn.ledger.reader import is_export


def write_export(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Writes records as JSON lines, the first line naming their format.

    Raises:
        LedgerError: something else than an export stands there, a ledger, say.
    """
    where = Path(path)
    if where.is_file() and where.stat().st_size and not is_export(where):
        raise LedgerError(f"{path} is no export: it is not overwritten")
    with open(path, "wb") as file:
        format = None
        for record in records:
            if format is None:
                format = record.format
                file.write(canonical({"privlearn_ledger": format}) + b"\n")
            file.write(record.line() + b"\n")
        if format is None:
            file.write(canonical({"privlearn_ledger": SCHEMA}) + b"\n")
