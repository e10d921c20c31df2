"""Makes files that are there as a whole or not at all, and never in place of another one.

A file is written and synced under a name that ends in ``.new-`` and eight digits, and then linked
to its own.  What a crash leaves under the former name is of no use to anybody, and may be removed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from privlearn.errors import LedgerError
from privlearn.ledger.chain import SCHEMA
from privlearn.ledger.heads import HEAD, HeadFile, head_path, read_head
from privlearn.ledger.records import APPLICATION_ID, ENTRIES, RELEASED
from privlearn.ledger.tail import TAIL
from privlearn.storage.fork_gate import SQLITE
from privlearn.storage.new_names import BESIDE, new_name, sync_directory


@contextmanager
def named_when_whole(path: Path) -> Iterator[Path]:
    """Where to write a file, which gets its name when the block is done.

    Raises:
        LedgerError: the name is taken, or the file cannot be made.
    """
    check_free(path)
    new = new_name(path)
    try:
        with open(new, "xb"):
            pass
        yield new
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.link(new, path)
    except FileExistsError:
        check_free(path)
        raise
    except OSError as error:
        raise LedgerError(f"{path} cannot be created: {error.strerror}") from None
    finally:
        with suppress(OSError):
            os.unlink(new)
    sync_directory(path.parent)


def check_free(path: Path) -> None:
    """Raises LedgerError if something stands at a path where a ledger is to be made."""
    if os.path.lexists(path):
        raise LedgerError(
            f"{path} is a directory: name a file in it"
            if path.is_dir()
            else f"{path} exists: ledgers are never overwritten; choose another path, or resume it"
        )
    for end in (*BESIDE, HEAD, TAIL):
        if path.name.endswith(end) and path.name != end:
            raise LedgerError(
                f"{path} ends in {end}: what stands there is taken for a part of "
                f"{path.name.removesuffix(end)!r}, and overwritten or removed; choose another path"
            )
    for end in ("-wal", "-journal"):
        if os.path.lexists(f"{path}{end}"):
            raise LedgerError(
                f"{path}{end} stands there, and {path} does not: it is the log of a ledger that "
                "was deleted or moved; put that back, or choose another path"
            )


def create_ledger(path: Path) -> None:
    """Makes a ledger file without entries, with its head beside it.

    Raises:
        LedgerError: the name is taken, the head of a ledger that is gone stands there, or the file
            cannot be made.
    """
    check_free(path)
    kept = read_head(path)
    if kept is not None and kept.entries:
        raise LedgerError(
            f"{path} is gone, of which {head_path(path)} kept the head, with {kept.entries} "
            "entries: put it back, or restore a backup; to begin another ledger choose another "
            "path, or remove the head if nothing of that run is ever to be counted"
        )
    with named_when_whole(path) as new:
        with SQLITE, closing(sqlite3.connect(new, isolation_level=None)) as connection:
            write_tables(connection)
        check_written(new, path)
        # before the ledger has its name: without entries it says that there is nothing to lose
        HeadFile(path).begin()


def write_tables(connection: sqlite3.Connection) -> None:
    """Makes a file that has no name yet a ledger without entries."""
    connection.executescript(
        "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};"
        f"BEGIN; {ENTRIES};{RELEASED}; COMMIT;"
    )


def check_written(new: Path, path: Path) -> None:
    """Raises LedgerError unless what SQLite wrote stands in the file itself."""
    with open(new, "rb") as file:
        header = file.read(100)
    # the fields of the header: https://www.sqlite.org/fileformat.html#the_database_header
    if header[68:72] != APPLICATION_ID.to_bytes(4, "big"):
        raise LedgerError(
            f"{path} is not the file that SQLite writes to: it holds {len(header)} bytes of a "
            "ledger; nothing can be recorded in it"
        )
