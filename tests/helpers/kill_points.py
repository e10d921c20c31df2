"""Numbered points of a process at which it is killed, or its machine loses power.

`watch` puts points around all that is done to a ledger: every statement of SQLite, every sync,
rename and write of a file, every entry's check, append and record, every opening of rows, draw of
noise and release.  The package knows nothing of it.  It is for a child that was forked for this, as
it replaces functions for good.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants.state import AccountState
from privlearn.contract.receipts import Receipt
from privlearn.contract.tokens import Token
from privlearn.ledger import Ledger
from privlearn.noise.exact.pool import NoisePool

LEDGER = "ledger.db"
"""The name of a ledger's file, which others beside it do not begin with."""
FILES = (
    "fsync",
    "fdatasync",
    "rename",
    "replace",
    "link",
    "unlink",
    "write",
    "pwrite",
    "ftruncate",
)
"""Functions of the system with points around them."""
BLOCK = 4096
"""Bytes that a disk writes whole or not at all."""

_write = os.write  # before it is replaced


def die() -> None:
    """Ends the process as a kill from outside does, or a machine that is switched off."""
    os.kill(os.getpid(), signal.SIGKILL)


class Points:
    """Counts the points that a process passes, and ends it at one of them.

    Args:
        stop: the number of the point, from 1; 0 to pass them all.
        name: count only points with this name.
        end: what to do there.
    """

    def __init__(self, stop: int = 0, name: str = "", end: Callable[[], None] = die) -> None:
        self._left, self._name, self._end = stop, name, end
        self.names: list[str] = []
        self.entry = "no entry"
        """The kind of the entry that is being appended."""

    def at(self, name: str) -> None:
        """Passes a point, if the process is not to end there."""
        self.names.append(name)
        if not self._name or name == self._name:
            self._left -= 1
            if self._left == 0:
                self._end()

    def around(self, home: Any, name: str, title: str = "") -> None:
        """Puts a point before and one behind each call of a function."""
        function = getattr(home, name)

        @wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            self.at(f"before {title or name} ({self.entry})")
            done = function(*arguments, **named)
            self.at(f"after {title or name} ({self.entry})")
            return done

        setattr(home, name, watched)


def end_after(seconds: float) -> None:
    """Kills this process at a time that no point of it knows of."""

    def wait() -> None:
        time.sleep(seconds)
        die()

    threading.Thread(target=wait, daemon=True).start()


class Disk:
    """What a disk holds of a folder: files as they were synced, and perhaps what came since.

    SQLite's own syncs, which Python does not see, follow from its settings: with ``synchronous =
    FULL`` a commit syncs the log and its name, and ending the log syncs both files and the folder.
    What copying a log syncs is not counted, as the package syncs for itself then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: dict[int, bytes] = {}
        self._cut: set[int] = set()
        self._names: dict[str, int] = {}
        self._folder_synced()
        for path in self._files():
            self._file_synced(path)

    def _files(self) -> list[Path]:
        found = (path for path in self._folder.iterdir() if path.is_file())
        return sorted(path for path in found if not path.name.endswith("-shm"))

    def _file_synced(self, path: Path) -> None:
        if path.is_file():
            self._synced[path.stat().st_ino] = path.read_bytes()
            self._cut.discard(path.stat().st_ino)

    def _folder_synced(self) -> None:
        self._names = {path.name: path.stat().st_ino for path in self._files()}

    def synced(self, handle: int) -> None:
        """``os.fsync`` returned."""
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path == self._folder:
            self._folder_synced()
        elif path.parent == self._folder:
            self._file_synced(path)

    def all_synced(self, main: Path) -> None:
        """All that stands there of another database than the ledger, which syncs for itself."""
        for path in self._files():
            if path.name.startswith(main.name):
                self._file_synced(path)
                self._names[path.name] = path.stat().st_ino
        for name in [name for name in self._names if name.startswith(main.name)]:
            if not (self._folder / name).exists():
                del self._names[name]

    def synced_by_sqlite(self, main: Path, *, ended: bool) -> None:
        """A commit is done, or a log was ended, in a connection that syncs for itself."""
        log = Path(f"{main}-wal")
        self._file_synced(log)
        if log.exists():
            self._names[log.name] = log.stat().st_ino
        if ended:
            self._file_synced(main)
            self._folder_synced()

    def leave(self, copy: Path, rng: np.random.Generator) -> None:
        """Writes what may be found after a cut of the power to another folder."""
        now = {path.name: path.stat().st_ino for path in self._files()}
        contents = {path.stat().st_ino: path.read_bytes() for path in self._files()}
        copy.mkdir()
        for name in sorted({*now, *self._names}):
            options = [names.get(name) for names in (now, self._names)]
            file = options[int(rng.integers(2))]
            if file is not None:
                (copy / name).write_bytes(self._mixed(file, contents.get(file), rng))

    def look(self) -> None:
        """Takes down which files were cut since they were synced; their blocks are new ones."""
        for path in self._files():
            found = path.stat()
            if found.st_size < len(self._synced.get(found.st_ino, b"")):
                self._cut.add(found.st_ino)

    def _mixed(self, file: int, now: bytes | None, rng: np.random.Generator) -> bytes:
        """Block by block as it was synced, or as it is; of a file that was cut all, or new ones."""
        old = self._synced.get(file, b"")
        new = old if now is None else now
        if file in self._cut:
            if rng.random() < 0.3:
                return old
            old = b""
        size = (len(old), len(new))[int(rng.integers(2))]
        old, new = (part.ljust(size, b"\0")[:size] for part in (old, new))
        starts = range(0, size, BLOCK)
        return b"".join((new if rng.random() < 0.5 else old)[i : i + BLOCK] for i in starts)


def _connections(points: Points, disk: Disk | None) -> type[sqlite3.Connection]:
    class Watched(sqlite3.Connection):
        def __init__(self, database: Any, *arguments: Any, **named: Any) -> None:
            super().__init__(database, *arguments, **named)
            self._main, self._syncs = Path(str(database)), True

        def execute(self, sql: str, *arguments: Any) -> Any:
            name = " ".join(sql.split()[:2])
            points.at(f"before {name} ({points.entry})")
            mode = sql.startswith("PRAGMA journal_mode =")  # syncs the log, and then the main file
            if mode:
                self._synced(ended=False)
            done = super().execute(sql, *arguments)
            if sql.startswith("PRAGMA synchronous ="):
                self._syncs = sql.endswith("FULL")
            if mode or sql == "COMMIT":
                self._synced(ended=mode)
            if disk is not None:
                disk.look()
                if LEDGER not in self._main.name:
                    disk.all_synced(self._main)
            points.at(f"after {name} ({points.entry})")
            return done

        def executemany(self, sql: str, rows: Any) -> Any:
            name = " ".join(sql.split()[:2])
            points.at(f"before {name} ({points.entry})")
            done = super().executemany(sql, rows)
            points.at(f"after {name} ({points.entry})")
            return done

        def executescript(self, script: str) -> Any:
            points.at(f"before a script ({points.entry})")
            done = super().executescript(script)
            self._synced(ended=True)
            points.at(f"after a script ({points.entry})")
            return done

        def _synced(self, *, ended: bool) -> None:
            if disk is not None and self._syncs:
                disk.synced_by_sqlite(self._main, ended=ended)

    return Watched


def watch(points: Points, disk: Disk | None = None) -> None:
    """Puts points into this process, and tells the disk of every sync."""
    append, connect = Ledger.append, sqlite3.connect

    @wraps(append)
    def appended(self: Ledger, entry: Any, **named: Any) -> None:
        points.entry = entry.entry
        points.at(f"before append ({points.entry})")
        append(self, entry, **named)
        points.at(f"after append ({points.entry})")
        points.entry = "no entry"

    def connected(*arguments: Any, **named: Any) -> sqlite3.Connection:
        return connect(*arguments, factory=_connections(points, disk), **named)

    def syncing(sync: Callable[[int], None]) -> Callable[[int], None]:
        @wraps(sync)
        def synced(handle: int) -> None:
            sync(handle)
            if disk is not None:
                disk.synced(handle)

        return synced

    home: Any
    for home, name, function in [
        (Ledger, "append", appended),
        (sqlite3, "connect", connected),
        (os, "fsync", syncing(os.fsync)),
        (os, "fdatasync", syncing(os.fdatasync)),
    ]:
        setattr(home, name, function)
    for name in FILES:
        points.around(os, name)
    points.around(AccountState, "check", "state check")
    points.around(AccountState, "record", "state record")
    points.around(Token, "spend", "token spend")
    for name in ("_opened", "_opened_total", "_reach", "_noise", "_released", "close"):
        points.around(Receipt, name, f"receipt {name.strip('_')}")
    for name in ("variates", "floors"):
        points.around(NoisePool, name, f"noise {name}")


def tell(pipe: int, line: bytes) -> None:
    """Lets a line leave the process; whoever reads it has it, whatever comes next."""
    _write(pipe, line + b"\n")
