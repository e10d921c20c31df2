"""How released values are kept: one line of JSON with type and shape, and then the bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import LedgerUnreadableError
from privlearn.ledger.canonical_json import canonical

KEPT_KINDS = "biufcUS"
"""Kinds of NumPy's types whose bytes are the whole value."""
_WHOLE = "no guarantee needs it, but a learner cannot go on without it; a backup may hold it"


def digest_of(value: NDArray[np.generic]) -> str:
    """SHA-256 over type, shape and bytes."""
    head = f"{value.dtype.str}{value.shape}".encode()
    return hashlib.sha256(head + value.tobytes()).hexdigest()


def packed(value: NDArray[np.generic]) -> bytes:
    """The bytes that are kept of a value.

    Raises:
        TypeError: it holds objects, or fields.
    """
    if value.dtype.kind not in KEPT_KINDS:
        raise TypeError(f"a value of type {value.dtype}: must hold numbers or text")
    return _form(value.dtype.str, value.shape) + value.tobytes()


@lru_cache(64)
def _form(dtype: str, shape: tuple[int, ...]) -> bytes:
    return canonical({"dtype": dtype, "shape": list(shape)}) + b"\n"


def unpacked(data: bytes, digest: str) -> NDArray[np.generic]:
    """The value that was kept under ``digest``; cannot be written to.

    Raises:
        LedgerUnreadableError: these are not its bytes.
    """
    head, _, rest = data.partition(b"\n")
    try:
        said = json.loads(head)
        dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
        if dtype.kind not in KEPT_KINDS:
            raise ValueError(f"type {dtype}")
        value = np.frombuffer(rest, dtype=dtype).reshape(shape)
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError, SyntaxError) as error:
        raise LedgerUnreadableError(
            f"the value {digest} cannot be read: {error}; {_WHOLE}"
        ) from None
    if digest_of(value) != digest:
        raise LedgerUnreadableError(
            f"the value {digest} was changed: its bytes have another hash; {_WHOLE}"
        )
    return value


def wrong_values(values: Iterable[tuple[str, bytes]]) -> list[str]:
    """What is wrong with values that were kept under these digests."""
    problems = []
    for digest, data in values:
        try:
            unpacked(data, digest)
        except LedgerUnreadableError as error:
            problems.append(str(error))
    return problems
