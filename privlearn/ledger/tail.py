"""Entries that wait for the next one that is synced: a plain file beside a ledger.

What needs no sync (`needs_no_sync`: tokens that are issued, values that leave, ends) would pay one
transaction of SQLite each.  Here it pays one write to a file, which a kill of the process leaves
whole; all of it goes into the database in one transaction, with the next other entry.  A cut of the
power may take it away, as it may in the database: none is synced.

Each record has its entry's bytes and hash, so it counts only if it continues the chain: what is
torn, of another moment or of another ledger is no part of a ledger.  Whoever takes the ledger over
writes an end behind the last record, with the database locked.  The writer before looks, once its
record is written and before anything leaves, whether it is the last thing in the file.  Records
that stand in the database, too, continue it no more, and stay until the file is begun anew.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

from privlearn.errors import LedgerUnreadableError
from privlearn.ledger.chain import MOST_BYTES, chain_hash
from privlearn.ledger.values import unpacked
from privlearn.storage.foreign_files import read_foreign
from privlearn.storage.new_names import new_name

TAIL = "-tail"
"""Behind the name of a ledger."""
LARGEST_TAIL = 2**20
"""Bytes that it holds at most."""
WORTH_EMPTYING = 2**16
"""Bytes from which on the file is begun anew once all of it stands in the database: less is not
worth the lock, and is read in no time."""
_MOST_READ = LARGEST_TAIL + 2 * MOST_BYTES
_HEAD = struct.Struct(">II32s32s")
"""Sizes of the entry and of its value, the entry's hash and the value's digest; zeros for none."""
_END = bytes(_HEAD.size)
_TO_END = os.O_WRONLY | os.O_APPEND
for _flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"):  # no pipe is waited for, no link followed
    _TO_END |= getattr(os, _flag, 0)


def needs_no_sync(body: Mapping[str, Any]) -> bool:
    """Whether a cut of the power may take an entry away that was written last."""
    kind = body.get("entry")
    return kind in ("issue", "publish", "sums") or (
        kind == "retire" and body.get("outcome") != "uncovered"
    )


class Waiting(NamedTuple):
    """An entry that is not in the database yet, with the value that left, if one did."""

    seq: int
    data: bytes
    hash: str
    digest: str
    value: bytes

    @property
    def size(self) -> int:
        return _HEAD.size + len(self.data) + len(self.value)


def tail_path(ledger: Path) -> Path:
    """The file beside a ledger."""
    return ledger.with_name(f"{ledger.name}{TAIL}")


def values_in_tail(ledger: Path) -> Iterator[tuple[str, bytes]]:
    """All values there, under the digests that are said of them.

    Raises:
        OSError: it is no file, or cannot be read.
    """
    for _, _, digest, value in _parts(ledger):
        if digest:
            yield digest, value


def waiting_behind(ledger: Path, seq: int, head: str) -> Iterator[Waiting]:
    """The records there that continue a chain whose last entry is number ``seq``.

    Raises:
        OSError: as `values_in_tail`.
    """
    for data, hash, digest, value in _parts(ledger):
        if chain_hash(head, data) == hash:
            seq, head = seq + 1, hash
            yield Waiting(seq, data, hash, digest, value)


def _parts(ledger: Path) -> Iterator[tuple[bytes, str, str, bytes]]:
    found = read_foreign(tail_path(ledger), at_most=_MOST_READ) or b""
    at = 0
    while at + _HEAD.size <= len(found):
        size, more, hash, digest = _HEAD.unpack_from(found, at)
        begin = at + _HEAD.size
        at = begin + size + more
        if not size or at > len(found):
            return
        value = found[begin + size : at]
        if value[-1:] == b"\0" and not any(memoryview(found)[at:]) and not _is(value, digest):
            return  # it was torn, and its last bytes are those of an end
        yield found[begin : begin + size], hash.hex(), digest.hex() if more else "", value


def _is(value: bytes, digest: bytes) -> bool:
    try:
        unpacked(value, digest.hex())
    except LedgerUnreadableError:
        return False
    return True


@final
class Tail:
    """The file of the process that writes to a ledger, made before the first entry waits.

    Attributes:
        records: that are not in the database yet.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger, self._path = ledger, tail_path(ledger)
        self.records: list[Waiting] = []
        self._file: int | None = None
        self._size = 0

    @property
    def made(self) -> bool:
        return self._file is not None

    def exists(self) -> bool:
        """Whether the file stands there, whoever made it."""
        return os.path.lexists(self._path)

    @property
    def worth_emptying(self) -> bool:
        return self._size > WORTH_EMPTYING

    def has_room(self, more: int) -> bool:
        """Whether it can hold so many bytes besides."""
        return self._size + more <= LARGEST_TAIL

    def add(self, record: Waiting) -> bool:
        """Writes a record; whether it stands there, and nobody has taken the ledger over.

        Raises:
            OSError: it could not be written.
        """
        assert self._file is not None
        sizes = len(record.data), len(record.value)
        head = _HEAD.pack(*sizes, bytes.fromhex(record.hash), bytes.fromhex(record.digest))
        whole = b"".join((head, record.data, record.value))
        room, self._size = self._size, LARGEST_TAIL + 1  # unless it stands: then none has room
        if os.write(self._file, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        found = os.fstat(self._file)
        if found.st_size != room + len(whole) or found.st_nlink != 1:
            return False
        self._size = found.st_size
        self.records.append(record)
        return True

    def make(self) -> None:
        """Makes the file, with the database locked and nobody else's entries in it.

        Raises:
            OSError: it cannot be made.
        """
        new = new_name(self._path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        file = os.open(new, flags, 0o600)
        weakref.finalize(self, os.close, file).atexit = False
        os.chmod(new, stat.S_IMODE(os.stat(self._ledger).st_mode))  # who reads one reads the other
        os.replace(new, self._path)
        self._file = file  # not before it stands where readers look

    def take_over(self) -> bool:
        """Ends what another process left there, with the database locked; whether anything was.

        Raises:
            OSError: it is no file, or cannot be written.
        """
        try:
            left = os.open(self._path, _TO_END)
        except FileNotFoundError:
            return False
        try:
            os.write(left, _END)
        finally:
            os.close(left)
        return True

    def empty(self) -> None:
        """Begins anew, with all that stands there in the database, and that locked."""
        self.records.clear()
        self._size = 0
        if self._file is None:
            self._path.unlink(missing_ok=True)
        else:
            os.ftruncate(self._file, 0)

    def remove(self) -> None:
        """Leaves no file, once all is in the database."""
        with suppress(OSError):
            if self._file is not None and os.path.samestat(
                os.fstat(self._file), os.stat(self._path)
            ):
                os.unlink(self._path)
