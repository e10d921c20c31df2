"""Checkpoints of a ledger (https://c2sp.org/tlog-checkpoint), and cosignatures of witnesses
(https://c2sp.org/tlog-cosignature).

A checkpoint says how many entries a ledger has, and the Merkle root of their hashes.  Whoever has
two of them, and a proof of consistency, knows that the later ledger continues the earlier one,
without seeing any entry.
"""

from __future__ import annotations

import base64
import os
import re
import time
from dataclasses import dataclass
from typing import final

from privlearn.errors import NotCertifiedError, SigningError, WrongSignatureError
from privlearn.ledger.proofs import TreeHead, consistent, measure
from privlearn.signing.keys import PublicKey, SigningKey, strict_base64
from privlearn.signing.notes import Note, Signature, sign_text

MOST_BYTES = 2**20
"""Of a checkpoint with its signatures, and of what a witness is asked."""
MOST_SIZE = 2**63 - 1
SIZE = re.compile("0|[1-9][0-9]{0,18}")
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_AHEAD = 300  # Seconds by which the clock of a witness may be ahead of the reader's


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Which ledger (``origin``), how many entries, and their Merkle root in hexadecimal."""

    origin: str
    size: int
    root: str

    @property
    def text(self) -> str:
        """What is signed."""
        root = base64.b64encode(bytes.fromhex(self.root)).decode()
        return f"{self.origin}\n{self.size}\n{root}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Reads the text of a note; lines behind the third say nothing that is used here.

        Raises:
            SigningError: it is no checkpoint.
        """
        lines = text.split("\n")
        if len(lines) < 4 or lines.pop() or not all(lines):
            raise SigningError(
                "it is no checkpoint: lines of origin, size and root, and none empty"
            )
        origin, size, root, *_ = lines
        hash = strict_base64(root)
        if not SIZE.fullmatch(size) or int(size) > MOST_SIZE or len(hash) != 32:
            raise SigningError(
                f"it is no checkpoint: size {size[:40]!r}, and a root of {len(hash)} bytes; a size "
                "is a decimal number below 2^63, and a root has 32"
            )
        found = cls(origin, int(size), hash.hex())
        if not found.size and found.root != _EMPTY:
            raise SigningError("the root of a checkpoint of size 0 is that of the empty tree")
        return found

    def continues(self, earlier: Checkpoint, proof: list[bytes]) -> bool:
        """Whether a proof shows that this is the same history, as far as the earlier one goes."""
        roots = bytes.fromhex(earlier.root), bytes.fromhex(self.root)
        return consistent(earlier.size, self.size, *roots, proof)


def origin_of(key: PublicKey, tree: TreeHead) -> str:
    """How a checkpoint names a ledger: by the signer, and by the hash of its first entry."""
    return f"{key.name}/{tree.first[:32]}"


def sign_checkpoint(ledger: str | os.PathLike[str], key: SigningKey) -> Note:
    """Signs how many entries a ledger has, and their root, after its chain was followed.

    Raises:
        NotCertifiedError: its chain is broken, or it has no entries.
        SigningError: the key is one of a witness.
        LedgerUnreadableError, LedgerSchemaError, LedgerFeatureError: as `measure`.
    """
    check_signer(key)
    found = measure(ledger)
    if found.problems:
        raise NotCertifiedError(f"nothing was signed: {found.problems[0]}")
    if not found.whole.size:
        raise NotCertifiedError("nothing was signed: the ledger has no entries")
    tree = found.whole
    return sign_text(Checkpoint(origin_of(key.public, tree), tree.size, tree.root).text, key)


def check_signer(key: SigningKey) -> None:
    """Raises SigningError for the key of a witness, which signs nothing but cosignatures."""
    if key.public.witness:
        raise SigningError(f"{key.public.name} is the key of a witness: it signs cosignatures only")


def cosign(text: str, key: SigningKey, now: int | None = None) -> Signature:
    """The line of a witness; that it may be signed is looked at elsewhere."""
    Checkpoint.parse(text)
    if not key.public.witness:
        raise SigningError(
            f"{key.public.name} is no witness's key: make one with `privlearn key new --witness`"
        )
    when = int(time.time()) if now is None else now
    signed = when.to_bytes(8, "big") + key.sign(_cosigned(when, text))
    return Signature(key.public.name, key.public.id, signed)


def _cosigned(when: int, text: str) -> bytes:
    return f"cosignature/v1\ntime {when}\n{text}".encode()


def check_cosignature(note: Note, key: PublicKey, now: int | None = None) -> int:
    """When a witness cosigned a checkpoint, in seconds since 1970; the latest time of several.

    Raises:
        WrongSignatureError: it did not, a signature in its name is wrong, or its time is 0 or lies
            in the future.
        SigningError: the note is no checkpoint.
    """
    Checkpoint.parse(note.text)
    latest = 0
    for one in note.signed_by(key):
        when, signature = int.from_bytes(one.data[:8], "big"), one.data[8:]
        if not key.verifies(_cosigned(when, note.text), signature):
            raise WrongSignatureError(
                f"the cosignature in the name of {key.name} (id {key.id.hex()}) is wrong: the "
                "checkpoint or its time was changed, or another key made it"
            )
        present = int(time.time()) if now is None else now
        if not 0 < when <= present + _AHEAD:
            raise WrongSignatureError(
                f"the cosignature of {key.name} is of second {when} since 1970, and now is "
                f"{present}: a witness states the time at which it signs"
            )
        latest = max(latest, when)
    return latest
