"""Copies of a ledger that are whole, whoever writes to it meanwhile."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from privlearn.errors import LedgerError, LedgerUnreadableError
from privlearn.ledger.addresses import extra_needed, is_address, shown
from privlearn.ledger.chain import GENESIS, SCHEMA, Chain
from privlearn.ledger.disk import located
from privlearn.ledger.large_values import LARGEST_IN_DATABASE, read_large, values_path, write_large
from privlearn.ledger.moments import real_path
from privlearn.ledger.new_files import check_written, named_when_whole, write_tables
from privlearn.ledger.reader import (
    Look,
    check_is_file,
    is_export,
    iterate_records,
    read_at_once,
    readable,
)
from privlearn.ledger.recorded_values import RecordedValues
from privlearn.ledger.tail import waiting_behind
from privlearn.ledger.values import unpacked
from privlearn.storage.new_names import sync_directory


def backup(
    ledger: str | os.PathLike[str], to: str | os.PathLike[str], *, vouched: bool = False
) -> str:
    """Copies a ledger, with its values, to a new file; returns the head of the copy.

    The copy is as the ledger was at one moment, also while another process writes to it or after
    one died.  It is on disk, and was read and checked, before it has its name.  No head is kept
    beside it: who resumes it says which one it must hold.

    Raises:
        LedgerUnreadableError: missing, torn, broken, or an export.
        LedgerSchemaError: of a newer version.
        LedgerError: ``to`` exists, or cannot be made.

    Args:
        ledger: the file, or ``postgresql://user@host/database?ledger=name``.
        to: the new file.
        vouched: whether the file is whole though its log is empty, as its writer says.
    """
    if is_address(ledger):
        return _backup_of_server(ledger, located(to))
    where, target = located(ledger), located(to)
    chain = Chain()
    with named_when_whole(target) as new:
        with readable(where):
            check_is_file(where)
            if is_export(where):
                raise LedgerUnreadableError(f"{where} is an export: copy it as a file")
            read_at_once(where, partial(_copy, where, new), vouched=vouched)
        check_written(new, target)
        problems = [problem for record in iterate_records(new) for problem in chain.add(record)]
        if problems:
            raise LedgerUnreadableError(f"{where} could not be copied: {'; '.join(problems[:3])}")
        _copy_values(where, target)
    return chain.head


def _backup_of_server(address: str | os.PathLike[str], target: Path) -> str:
    with extra_needed():
        from privlearn.ledger.postgres_reading import read_values
    chain, values = Chain(), RecordedValues()
    with named_when_whole(target) as new, closing(sqlite3.connect(new)) as copy:
        write_tables(copy)
        for record in iterate_records(address):
            if problems := chain.add(record):
                raise LedgerUnreadableError(
                    f"{shown(address)} could not be copied: {'; '.join(problems)}"
                )
            values.note([record])
            row = record.seq, record.data.decode(), record.hash
            copy.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
        for digest, data in read_values(address, values.digests):
            with suppress(LedgerUnreadableError):
                unpacked(data, digest)
                if len(data) > LARGEST_IN_DATABASE:
                    write_large(target, digest, data)
                else:
                    copy.execute("INSERT INTO released VALUES (?, ?)", (digest, data))
        copy.commit()
        check_written(new, target)
    return chain.head


def _copy(where: Path, new: Path, look: Look) -> None:
    with closing(sqlite3.connect(new, isolation_level=None)) as copy:
        try:
            look.connection.backup(copy)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            raise LedgerError("the copy cannot be written: there is no room for it") from None
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()  # it has no log
        last = copy.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        if look.schema == SCHEMA:
            for each in waiting_behind(real_path(where), *(last or (-1, GENESIS))):
                row = each.seq, each.data.decode(), each.hash
                copy.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
                if each.digest:
                    value = each.digest, each.value
                    copy.execute("INSERT OR IGNORE INTO released VALUES (?, ?)", value)


def _copy_values(where: Path, target: Path) -> None:
    """After the entries, so that what they name is there.

    A file that is not the value that its name says is left out: the audit of the copy misses it.
    """
    folder = values_path(where)
    if not folder.is_dir():
        return
    for digest in sorted(value.name for value in folder.iterdir()):
        if not _DIGEST.fullmatch(digest):
            continue
        with suppress(LedgerUnreadableError):
            data = read_large(where, digest)
            if data is not None:
                unpacked(data, digest)
                write_large(target, digest, data)
    sync_directory(target.parent)


_DIGEST = re.compile("[0-9a-f]{64}")
