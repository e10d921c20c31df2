"""Which token was issued under which nonce, so that a retry finds its first try."""

from __future__ import annotations

import re
from array import array
from typing import Any, final

import numpy as np

_NONCE = re.compile(r"[0-9a-f]{32}")
_BYTES = 16


def check_nonce(nonce: object) -> str:
    """``nonce`` itself, if it is one.

    Raises:
        ValueError: it is not 32 lower-case hexadecimal digits.
    """
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ValueError(
            f"nonce = {nonce!r:.80}: must be 32 lower-case hexadecimal digits, as "
            "secrets.token_hex(16) makes them"
        )
    return nonce


@final
class IssueNonces:
    """The nonces of all ``issue`` entries, with their positions.

    They take 24 bytes each; a table of them, which takes some 200, is made when one is asked for.
    """

    def __init__(self) -> None:
        self._nonces, self._positions = bytearray(), array("q")
        self._found: dict[bytes, int] = {}
        self._looked_at = 0
        self._repeated: tuple[int, list[tuple[int, int]]] = 0, []
        """Among how many nonces it was looked for, and what was found."""

    def note(self, position: int, nonce: str) -> None:
        """The next ``issue``, and its nonce."""
        self._nonces += bytes.fromhex(nonce)
        self._positions.append(position)

    def position(self, nonce: str) -> int | None:
        """Of the entry that a token was issued with under that nonce; None if none was."""
        while self._looked_at < len(self._positions):
            at = _BYTES * self._looked_at
            key = bytes(self._nonces[at : at + _BYTES])
            self._found.setdefault(key, self._positions[self._looked_at])
            self._looked_at += 1
        return self._found.get(bytes.fromhex(nonce))

    def repeated(self) -> list[tuple[int, int]]:
        """Positions of entries whose nonce stands before, after that of the one before."""
        size = len(self._positions)
        if self._repeated[0] != size:
            halves: Any = np.frombuffer(bytes(self._nonces), np.uint64).reshape(-1, 2)
            order = np.argsort(halves[:, 0], kind="stable")  # the halves are at random
            near = np.flatnonzero(np.diff(halves[order, 0]) == 0)
            found: list[tuple[int, int]] = []
            if len(near):
                order = np.lexsort((np.arange(size), halves[:, 1], halves[:, 0]))
                same = (np.diff(halves[order], axis=0) == 0).all(axis=1)
                places = np.array(self._positions)[order]
                found = sorted((int(places[i]), int(places[i + 1])) for i in np.flatnonzero(same))
            self._repeated = size, found
        return self._repeated[1]
