"""What travels between owner and workers, encrypted: rows, questions, sums and failures.

A frame is one byte that says what it is, and AES-256-GCM under the key of the job, which
authenticates that byte, too.  Questions are in NumPy's own format, without
Python objects; rows as in a store of rows (`privlearn.rows.packing`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import PartitionError
from privlearn.rows.partitions.keys import Job

_NONCE = 12


class Kind(Enum):
    """What a frame holds."""

    ROWS = b"R"
    QUESTION = b"Q"
    LEARNED = b"L"
    SUM = b"S"
    FAILURE = b"F"
    KEYLESS = b"K"
    """A failure of a process that has no key: the only frame in clear; it tells of the key."""


def framed(kind: Kind, data: bytes, key: bytes, about: str = "") -> bytes:
    """The encrypted frame; ``about`` is public, and authenticated with it."""
    nonce, beside = os.urandom(_NONCE), _beside(kind, about)
    return kind.value + nonce + bytes(_cipher(key).encrypt(nonce, data, beside))


def _beside(kind: Kind, about: str) -> bytes:
    return b"privlearn frame " + kind.value + about.encode()


def unframed(kind: Kind, frame: bytes, key: bytes, about: str = "") -> bytes:
    """What `framed` was given.

    Raises:
        PartitionError: another kind of frame, of another job, or changed on the way.
    """
    from cryptography.exceptions import InvalidTag

    if not isinstance(frame, bytes) or frame[:1] != kind.value:
        raise PartitionError(f"no frame of {kind.name.lower()}: made by something else")
    nonce, sealed = frame[1 : 1 + _NONCE], frame[1 + _NONCE :]
    try:
        found: bytes = _cipher(key).decrypt(nonce, sealed, _beside(kind, about))
    except (InvalidTag, ValueError):
        raise PartitionError(
            f"a frame of {kind.name.lower()}, {len(frame)} bytes: of another job, or changed on "
            "the way"
        ) from None
    return found


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def numbers_to_bytes(values: NDArray[Any]) -> bytes:
    """In NumPy's own format, without Python objects."""
    out = io.BytesIO()
    np.save(out, values, allow_pickle=False)
    return out.getvalue()


def numbers_from(data: bytes) -> NDArray[Any]:
    """What `numbers_to_bytes` was given."""
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))


def check_travels(block: Any) -> None:
    """Raises TypeError for arrays of Python objects."""
    if isinstance(block, tuple):
        for field in block:
            check_travels(field)
    elif isinstance(block, np.ndarray) and block.dtype.hasobject:
        raise TypeError("blocks: arrays of Python objects do not travel; hand in numbers")


def kinds_of(block: Any) -> Iterator[type[Any]]:
    """The named tuples that a block is built of."""
    if isinstance(block, tuple):
        if type(block) is not tuple:
            yield type(block)
        for field in block:
            yield from kinds_of(field)


def failure_of(frame: bytes, job: Job) -> str | None:
    """What a worker says went wrong; None if nothing did."""
    if frame[:1] == Kind.KEYLESS.value:
        return frame[1:].decode(errors="replace")
    if frame[:1] == Kind.FAILURE.value:
        return unframed(Kind.FAILURE, frame, job.key()).decode(errors="replace")
    return None
