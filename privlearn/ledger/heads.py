"""The head of a ledger, in a small file beside it.

It tells a ledger file that was cut, replaced by an older copy or swapped for another one.  It does
not tell when both files were put back together: for that a head must be kept in a safer place, see
`Ledger.create`.

The file is overwritten in place, within one sector, and not synced: a cut of the power leaves the
head of now or an earlier one.  It is written when its entry is on disk.  So it may lag behind its
ledger, which then goes on from it, and is never ahead.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, final

from privlearn.errors import LedgerHeadError
from privlearn.ledger.chain import GENESIS, Chain, Record
from privlearn.ledger.entries import OpenEntry
from privlearn.storage.foreign_files import read_foreign
from privlearn.storage.new_names import new_name, sync_directory

HEAD = ".head"
"""Behind the name of a ledger, the file that keeps its head."""
_FORM = re.compile(
    rb"privlearn ledger head\nentries ([0-9]{12})\nhash ([0-9a-f]{64})\ncheck ([0-9a-f]{16})\n"
)
_MOST_BYTES = 1024
_SAY = "give head=, as kept elsewhere, or go on with unknown_head=True, which every audit reports"
_TRIES = 3  # Of reading a file that is being written


@dataclass(frozen=True, slots=True)
class Head:
    """How many entries a ledger had, and the hash of the last."""

    entries: int
    hash: str

    def line(self) -> bytes:
        """As it is kept; always of one length."""
        said = b"privlearn ledger head\nentries %012d\nhash %b\n" % (
            self.entries,
            self.hash.encode(),
        )
        return said + b"check " + _check(said) + b"\n"


def is_head(path: Path) -> bool:
    """Whether a file keeps the head of a ledger, and is none itself, by its name and its size.

    It is not opened: to close a database again would let go of this process's locks on it.

    Raises:
        OSError: there is none.
    """
    return path.name.endswith(HEAD) and path.stat().st_size == _SIZE


def _check(said: bytes) -> bytes:
    return sha256(said).hexdigest()[:16].encode()


_SIZE = len(Head(0, GENESIS).line())


def head_path(ledger: Path) -> Path:
    """Where the head of a ledger file is kept."""
    return ledger.with_name(f"{ledger.name}{HEAD}")


def read_head(ledger: Path) -> Head | None:
    """The head that is kept beside a ledger file; None if there is none.

    Raises:
        LedgerHeadError: the file holds something else.
    """
    path = head_path(ledger)
    for _ in range(_TRIES):
        try:
            data = read_foreign(path, at_most=_MOST_BYTES)
        except OSError as error:
            raise LedgerHeadError(
                f"{path} cannot be read: {error.strerror or error}; {_SAY}"
            ) from None
        if data is None:
            return None
        found = _FORM.fullmatch(data)
        if found is not None and _check(data[: found.start(3) - len("check ")]) == found[3]:
            return Head(int(found[1]), found[2].decode())
    raise LedgerHeadError(f"{path} is damaged: it holds no head of a ledger; {_SAY}")


@final
class HeadFile:
    """Keeps the head of one ledger beside it."""

    def __init__(self, ledger: Path) -> None:
        self._path = head_path(ledger)
        self._file: int | None = None
        self._end: weakref.finalize[[int], Any] | None = None

    def write(self, head: Head) -> None:
        """Overwrites what is kept; makes the file anew where it is not the one that is open.

        Raises:
            OSError: it could not be written.
        """
        line = head.line()
        if self._file is None or not self._stands(self._file):
            self.close()
            file = self._begin(line)
            self._file, self._end = file, weakref.finalize(self, os.close, file)
            self._end.atexit = False
        elif os.pwrite(self._file, line, 0) != len(line):
            raise OSError(f"{self._path} could not be written whole")

    def begin(self) -> None:
        """Says that the ledger, which has no name yet, is without entries, where nothing is said.

        What another process says, which named the ledger meanwhile, is left as it is.

        Raises:
            OSError: it could not be written.
        """
        new = new_name(self._path)
        try:
            with open(new, "xb") as file:
                file.write(Head(0, GENESIS).line())
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(new, self._path)
        finally:
            with suppress(OSError):
                os.unlink(new)

    def _stands(self, file: int) -> bool:
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return found.st_nlink == 1 and os.path.samestat(found, os.fstat(file))

    def _begin(self, line: bytes) -> int:
        new = new_name(self._path)
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if os.write(file, line) != len(line):
                raise OSError(f"{new} could not be written whole")
            os.fsync(file)
            os.replace(new, self._path)
            sync_directory(self._path.parent)  # else a cut of the power could bring the former back
        except BaseException:
            os.close(file)
            with suppress(FileNotFoundError):
                os.unlink(new)
            raise
        return file

    def close(self) -> None:
        """Lets go of the file, which stays."""
        self._file = None
        if self._end is not None:
            self._end()


def kept_elsewhere(opened: OpenEntry) -> bool:
    """Whether an accountant said, when it was opened, that heads go to a safer place."""
    return opened.heads is not None


def check_form_of_head(head: object) -> None:
    """Raises ValueError for what was given as a head, and is none; None is left out."""
    if head is not None and not (isinstance(head, str) and re.fullmatch("[0-9a-f]{64}", head)):
        raise ValueError(f"head = {head!r:.80}: must be 64 hexadecimal digits in lower case")


@final
class Claimed:
    """What a ledger that is to go on must hold, as far as it was kept.

    Raises:
        LedgerHeadError: the file beside the ledger is damaged, and nothing else is known.
        ValueError: ``head`` is none, or given although it is said to be unknown.
    """

    def __init__(self, ledger: Path, *, head: str | None, unknown: bool) -> None:
        check_form_of_head(head)
        if head is not None and unknown:
            raise ValueError("unknown_head = True: a head is given; leave one of them out")
        self._ledger, self._head, self._unknown = ledger, head, unknown
        self._beside: Head | None = None
        try:
            self._beside = read_head(ledger)
        except LedgerHeadError:
            if head is None and not unknown:
                raise
        self._found = head == GENESIS
        self._found_beside = self._beside is not None and not self._beside.entries

    @property
    def beside(self) -> bool:
        """Whether a file beside the ledger keeps a head."""
        return self._beside is not None

    def problem(self, missing: str | None = None) -> str:
        """What an audit says once all records were compared: of the head beside the ledger only.

        Args:
            missing: a head of which it says already that it stands nowhere.
        """
        if self._beside is None or self._found_beside or self._beside.hash == missing:
            return ""
        return (
            f"the head {self._beside.hash} of {self._beside.entries} entries, which "
            f"{head_path(self._ledger).name} keeps, is not in it: it is an older copy, was cut, or "
            "is another ledger"
        )

    def compare(self, records: Iterable[Record]) -> None:
        """Looks whether one of the next records was claimed."""
        at, hash = (
            (-1, "") if self._beside is None else (self._beside.entries - 1, self._beside.hash)
        )
        for record in records:
            if record.hash == self._head:
                self._found = True
            if record.seq == at and record.hash == hash:
                self._found_beside = True

    def check(self, chain: Chain, *, elsewhere: bool) -> bool:
        """Whether nothing is known of the head of a ledger, which was said to be so.

        Args:
            chain: of all entries that it holds.
            elsewhere: whether it says that its heads are kept in a safer place.

        Raises:
            LedgerHeadError: entries are missing, or nothing is known and this was not said.
        """
        ledger, beside = self._ledger, self._beside
        if self._head is not None and not self._found:
            raise LedgerHeadError(
                f"{ledger}: its head is {chain.head}, not {self._head}, which no entry has: it is "
                f"an older copy, or was cut or rewritten; {_NEWEST}"
            )
        if beside is not None and not self._found_beside and not self._unknown:
            raise LedgerHeadError(
                f"{ledger} has {chain.size} entries, and not the head {beside.hash} of "
                f"{beside.entries} entries that {head_path(ledger).name} keeps: it is an older "
                f"copy, was cut, or is another ledger; {_NEWEST}"
            )
        if self._head is not None or (beside is not None and self._found_beside and not elsewhere):
            return False
        if self._unknown:
            return True
        if elsewhere:
            raise LedgerHeadError(
                f"{ledger} says that its heads are kept elsewhere: give head=, the last of them; "
                f"{_UNKNOWN}"
            )
        if not chain.size:
            return False  # nothing was spent
        raise LedgerHeadError(
            f"{ledger}: {head_path(ledger).name}, which keeps its head, is not there: put it back, "
            f"or give head=, as kept elsewhere, which tells an older copy; {_UNKNOWN}"
        )


_UNKNOWN = "if it is lost, go on with unknown_head=True, which every audit reports"
_NEWEST = (
    "restore the newest, or, if there is none, go on with unknown_head=True, which every audit "
    "reports, as what was spent behind it is not counted"
)
