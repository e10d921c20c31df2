"""Uniform 64-bit words, and further bits for draws whose first word does not decide."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

WordArray: TypeAlias = NDArray[np.uint64]
_ZEROS = bytes(1 << 16)
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
    """AES-256 in counter mode under a fresh key of the system."""

    __slots__ = ("_first", "_key", "_second")

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._first = _encryptor(self._key, 0)
        self._second: dict[None, Any] = {}

    def words(self, n: int) -> WordArray:
        zeros = _ZEROS[: 8 * n] if 8 * n <= len(_ZEROS) else bytes(8 * n)
        return np.frombuffer(self._first.update(zeros), dtype=np.uint64)

    def more(self) -> int:
        # setdefault: of two threads that find none, both take the one that was first
        second = self._second.get(None) or self._second.setdefault(
            None, _encryptor(self._key, _SECOND_STREAM)
        )
        return int.from_bytes(second.update(_ZEROS[:8]), "little")


@cache
def _cipher() -> tuple[Any, Any, dict[int, Any]]:
    """Loaded when noise is first drawn; and the mode that begins at each counter."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    first, second = (modes.CTR(start.to_bytes(16, "big")) for start in (0, _SECOND_STREAM))
    return Cipher, algorithms.AES, {0: first, _SECOND_STREAM: second}


def _encryptor(key: bytes, start: int) -> Any:
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
