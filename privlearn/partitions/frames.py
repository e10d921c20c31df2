"""What travels between owner and workers, encrypted: rows, questions, sums and failures.

A frame is one byte that says what it is, and AES-256-GCM under the key of the job, which
authenticates that byte, too.  Arrays are in NumPy's own format, which holds no Python objects.
"""

from __future__ import annotations

import io
import os
from enum import Enum
from typing import Any

import numpy as np

from privlearn._records import leaves
from privlearn.errors import PartitionError
from privlearn.partitions.keys import Job

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


def block_to_bytes(block: Any) -> bytes:
    """The arrays of a block, in field order.

    Raises:
        TypeError: one holds Python objects.
    """
    arrays = list(leaves(block))
    if any(array.dtype.hasobject for array in arrays):
        raise TypeError("blocks: arrays of Python objects do not travel; hand in numbers")
    out = io.BytesIO()
    np.savez(out, *arrays)
    return out.getvalue()


def arrays_of(data: bytes) -> list[np.ndarray[Any, Any]]:
    """What `block_to_bytes` was given the leaves of."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return [held[f"arr_{i}"] for i in range(len(held.files))]


def shape_of(block: Any) -> Any:
    """The named tuples that a block is built of: public, as its class is."""
    if isinstance(block, tuple):
        return (type(block), tuple(shape_of(field) for field in block))
    return None


def built(shape: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A block of that shape; takes its arrays from the front of the list."""
    if shape is None:
        return arrays.pop(0)
    kind, fields = shape
    made = [built(field, arrays) for field in fields]
    return kind(*made) if hasattr(kind, "_fields") else tuple(made)


def failure_of(frame: bytes, job: Job) -> str | None:
    """What a worker says went wrong; None if nothing did."""
    if frame[:1] == Kind.KEYLESS.value:
        return frame[1:].decode(errors="replace")
    if frame[:1] == Kind.FAILURE.value:
        return unframed(Kind.FAILURE, frame, job.key()).decode(errors="replace")
    return None
