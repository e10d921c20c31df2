"""A witness: cosigns a checkpoint if it continues the last one that it cosigned of that ledger.

What it is asked is the ``add-checkpoint`` request of https://c2sp.org/tlog-witness, in a file: the
size of the last checkpoint, a proof of consistency, and the new checkpoint.
"""

from __future__ import annotations

import base64
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from privlearn.errors import OtherLedgerError, SigningError
from privlearn.ledger.proofs import MOST_HASHES, consistency_proof, entry_hashes, measure
from privlearn.signing.checkpoints import MOST_SIZE, SIZE, Checkpoint, cosign
from privlearn.signing.keys import PublicKey, SigningKey, strict_base64
from privlearn.signing.notes import Note
from privlearn.storage.fork_gate import SQLITE
from privlearn.storage.new_names import sync_directory

_APPLICATION = 0x70726C77  # "prlw"
_FIRST = re.compile("[0-9a-f]{32}")
"""How the last part of an origin names a ledger, so that no other signer's name fits before it."""
_TABLE = """CREATE TABLE cosigned (
    origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root TEXT NOT NULL
) STRICT"""


@final
@dataclass(frozen=True, slots=True)
class Request:
    """Asks a witness to cosign a checkpoint that continues one of ``old`` entries."""

    old: int
    proof: list[bytes]
    note: Note

    @property
    def checkpoint(self) -> Checkpoint:
        """The new one."""
        return Checkpoint.parse(self.note.text)

    def encode(self) -> bytes:
        """The request as it is sent."""
        return _head(self.old, self.proof) + b"\n" + self.note.encode()

    @classmethod
    def parse(cls, data: bytes) -> Request:
        """Reads a request.

        Raises:
            SigningError: it is none.
        """
        head, blank, note = data.partition(b"\n\n")
        try:
            first, *hashes = head.decode("ascii").split("\n")
        except UnicodeDecodeError:
            first, hashes = "", []
        size = first.removeprefix("old ")
        known = first.startswith("old ") and SIZE.fullmatch(size) and int(size) <= MOST_SIZE
        if not blank or not known:
            raise SigningError(
                "it asks no witness: `old <size>`, a proof, an empty line and a checkpoint do"
            )
        if len(hashes) >= MOST_HASHES:
            raise SigningError(f"a proof of {len(hashes)} hashes; at most {MOST_HASHES - 1}")
        request = cls(int(size), [strict_base64(one) for one in hashes], Note.parse(note))
        Checkpoint.parse(request.note.text)
        return request


def continuation(
    ledger: str | os.PathLike[str],
    earlier: Note | None,
    later: Note | None = None,
    key: PublicKey | None = None,
) -> bytes:
    """Proof that a ledger continues a checkpoint, up to a later one or to its end.

    Raises:
        OtherLedgerError: a checkpoint is not of this ledger, or they are in the wrong order.
        WrongSignatureError: the key did not sign it.
        SigningError: it is no checkpoint.
    """
    for note in (earlier, later):
        if note is not None and key is not None:
            note.check_text(key)
    old, new = (None if one is None else Checkpoint.parse(one.text) for one in (earlier, later))
    if old is not None and new is not None:
        if old.origin != new.origin:
            raise OtherLedgerError(
                f"the checkpoints are of {old.origin!r:.200} and of {new.origin!r:.200}"
            )
        if old.size > new.size:
            raise OtherLedgerError(
                f"the later checkpoint has {new.size} entries, fewer than the {old.size} of the "
                "earlier one"
            )
    for one in (old, new):
        if one is not None:
            _check_of_ledger(ledger, one)
    size = measure(ledger).whole.size if new is None else new.size
    begin = 0 if old is None else old.size
    proof = consistency_proof(entry_hashes(ledger), begin, size)
    return _head(begin, proof) if later is None else Request(begin, proof, later).encode()


def _head(old: int, proof: list[bytes]) -> bytes:
    lines = [f"old {old}", *(base64.b64encode(one).decode() for one in proof)]
    return "".join(f"{line}\n" for line in lines).encode()


def _check_of_ledger(ledger: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    found = measure(ledger, at=checkpoint.size)
    if found.problems:
        raise OtherLedgerError(f"the chain of the ledger is broken: {found.problems[0]}")
    if found.earlier is None:
        raise OtherLedgerError(
            f"the ledger has {found.whole.size} entries, fewer than the {checkpoint.size} of the "
            "checkpoint: it is an older copy, was cut, or is another one"
        )
    if found.earlier.root != checkpoint.root:
        raise OtherLedgerError(
            f"after {checkpoint.size} entries the root of the ledger is {found.earlier.root}, and "
            f"that of the checkpoint {checkpoint.root}: it is another ledger, or was rewritten"
        )


@final
class Witness:
    """Remembers the last checkpoint of each ledger, and cosigns what continues it.

    The file is compared and written in one transaction, and is on disk before a cosignature is
    told: of two requests at a time the later sees the earlier.
    """

    def __init__(self, path: str | os.PathLike[str], key: SigningKey) -> None:
        self._path, self._key = Path(path), key

    def begin(self) -> None:
        """Makes the file of a witness that has cosigned nothing yet.

        Raises:
            SigningError: something stands there, or it cannot be made.
        """
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise SigningError(f"{self._path} exists: this witness has begun") from None
        except OSError as error:
            raise SigningError(f"{self._path} cannot be made: {error.strerror}") from None
        with self._connected() as database:
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(_TABLE)
        sync_directory(self._path.parent)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        if not self._path.is_file():
            raise SigningError(
                f"{self._path}: no such file; `--begin` makes that of a witness that has cosigned "
                "nothing yet, and one that lost its file could cosign a second history"
            )
        uri = f"{self._path.resolve().as_uri()}?mode=rw"
        try:
            with SQLITE, closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = FULL")
                yield database
        except sqlite3.Error as error:
            raise SigningError(
                f"{self._path} cannot be used as a witness's file: {error}"
            ) from None

    def cosign(self, request: Request, signer: PublicKey, now: int | None = None) -> Note:
        """The checkpoint with this witness's line, if it continues the last one that was cosigned.

        Args:
            request: what is asked.
            signer: the key that the witness knows for ledgers named after it.
            now: seconds since 1970; default the clock's.

        Raises:
            WrongSignatureError: the signer did not sign it.
            OtherLedgerError: it is of a ledger that is not the signer's, does not continue the last
                checkpoint, or the request begins elsewhere.
            SigningError: the witness's file, or a key, is none.
        """
        if signer.witness:
            raise SigningError(f"{signer.name} is a witness's key: give that of who signs ledgers")
        request.note.check_text(signer)
        new = request.checkpoint
        name, _, ledger = new.origin.rpartition("/")
        if new.origin != signer.name and not (name == signer.name and _FIRST.fullmatch(ledger)):
            raise OtherLedgerError(
                f"the checkpoint is of {new.origin!r:.200}, and ledgers of {signer.name} are named "
                f"{signer.name}/ and the first 32 digits of the hash of their first entry"
            )
        cosigned = request.note.with_signature(cosign(request.note.text, self._key, now))
        with self._connected() as database:
            if database.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
                raise SigningError(f"{self._path} is no witness's file: `--begin` makes one")
            database.execute("BEGIN IMMEDIATE")
            self._check(request, new, self._last(database, new.origin))
            database.execute(
                "INSERT INTO cosigned VALUES (?1, ?2, ?3) ON CONFLICT (origin) "
                "DO UPDATE SET size = ?2, root = ?3",
                (new.origin, new.size, new.root),
            )
            database.execute("COMMIT")
        return cosigned

    def _last(self, database: sqlite3.Connection, origin: str) -> Checkpoint | None:
        row = database.execute("SELECT size, root FROM cosigned WHERE origin = ?", (origin,))
        found = row.fetchone()
        return None if found is None else Checkpoint(origin, *found)

    def _check(self, request: Request, new: Checkpoint, last: Checkpoint | None) -> None:
        size = 0 if last is None else last.size
        if request.old != size:
            raise OtherLedgerError(
                f"the proof begins at {request.old} entries, and the last checkpoint that "
                f"{self._key.public.name} cosigned of {new.origin} has {size}: give that one"
            )
        if last is None:
            if request.proof:
                raise OtherLedgerError(
                    "a first checkpoint has no proof, as there is nothing before"
                )
        elif not new.continues(last, request.proof):
            raise OtherLedgerError(
                f"the proof does not show that this ledger of {new.size} entries continues the one "
                f"of {size} that {self._key.public.name} cosigned: it was rewritten or rolled back"
            )
