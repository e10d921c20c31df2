"""Uniform 64-bit words, and further bits for draws whose first word does not decide."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import TokenCopyError
from privlearn.storage import processes

WordArray: TypeAlias = NDArray[np.uint64]
_ZEROS = bytes(1 << 16)
_SPARE = 2  # Words at the end of a buffer, where the cipher may want a block less a byte (16 − 1)
_WIPED = "a keystream cannot be used in a forked process: its key was wiped"
_SECOND_STREAM = 1 << 127
"""Where the counter of the further bits begins: 2¹²⁷ blocks away, so that streams never meet."""


class Words(Protocol):
    """A source of independent fair bits."""

    def words(self, n: int) -> WordArray:
        """The next ``n`` uniform words."""

    def more(self) -> int:
        """64 further bits, of a stream of their own: who takes them moves no later word."""


@final
class Keystream:
    """AES-256 in counter mode under a fresh key of the system, which a forked child wipes."""

    __slots__ = ("__weakref__", "_first", "_key", "_second")

    def __init__(self) -> None:
        self._key = bytearray(secrets.token_bytes(32))
        self._first: Any = _encryptor(self._key, 0)
        self._second: dict[None, Any] = {}
        processes.INHERITED.add(self)

    def words(self, n: int) -> WordArray:
        if not processes.MARK[0]:
            processes.in_child()
        if self._first is None:
            raise TokenCopyError(_WIPED)
        zeros = _ZEROS[: 8 * n] if 8 * n <= len(_ZEROS) else bytes(8 * n)
        words = np.empty(n + _SPARE, dtype=np.uint64)  # which can be overwritten
        self._first.update_into(zeros, words.view(np.uint8).data)
        return words[:n]

    def more(self) -> int:
        if not processes.MARK[0]:
            processes.in_child()
        if self._first is None:
            raise TokenCopyError(_WIPED)
        # setdefault: of two threads that find none, both take the one that was first
        second = self._second.get(None) or self._second.setdefault(
            None, _encryptor(self._key, _SECOND_STREAM)
        )
        return int.from_bytes(second.update(_ZEROS[:8]), "little")

    def in_child(self) -> None:
        """Overwrites the key in a forked child, and lets go of what was made of it."""
        self._first = None
        self._key[:] = bytes(len(self._key))
        self._second.clear()


@cache
def _cipher() -> tuple[Any, Any, dict[int, Any]]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    first, second = (modes.CTR(start.to_bytes(16, "big")) for start in (0, _SECOND_STREAM))
    return Cipher, algorithms.AES, {0: first, _SECOND_STREAM: second}


def _encryptor(key: bytes | bytearray, start: int) -> Any:
    cipher, aes, counters = _cipher()
    return cipher(aes(key), counters[start]).encryptor()


@final
class SeededWords:
    """Reproducible words for simulations; they protect nobody."""

    __slots__ = ("_first", "_second", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = np.random.SeedSequence(seed)
        self._first = np.random.PCG64(self._seed)
        self._second: np.random.PCG64 | None = None

    def words(self, n: int) -> WordArray:
        return self._first.random_raw(n)

    def more(self) -> int:
        if self._second is None:
            self._second = np.random.PCG64(self._seed.spawn(1)[0])
        return int(self._second.random_raw())
