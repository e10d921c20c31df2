"""The cipher of a store of rows: AES-256-GCM-SIV under a key of its own, with random nonces.

The key is derived from the user's, for one store alone (HKDF with SHA-256), so that one key of the
user may be that of many stores.  Nonces are 96 bits that the system draws for each record: among
2³² records two are equal with probability below 2⁻³², and the system draws anew after a fork and,
where the machine tells it, after an image of the machine was restored.  Should one repeat, this
cipher, unlike most, shows no more than whether the same was encrypted with the same data beside it
(RFC 8452).
"""

from __future__ import annotations

import os
from typing import Any, final

from privlearn.errors import RowStoreError
from privlearn.storage import processes

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12
_CHECK_BYTES = 16


def check_key(key: bytes) -> None:
    """Raises TypeError or ValueError unless it is of 32 bytes; the message does not show it."""
    if not isinstance(key, bytes | bytearray | memoryview):
        raise TypeError(f"key: must be {KEY_BYTES} bytes, not a {type(key).__name__}")
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"key of {len(key)} bytes: must have {KEY_BYTES}; RowStore.new_key() makes one"
        )


@final
class Cipher:
    """Encrypts and authenticates records, until it is wiped; a forked child wipes it at once.

    Args:
        key: the user's.
        id: of the store.

    Attributes:
        known: bytes that tell whether the key is the one a store was made with, and nothing of it.
    """

    __slots__ = ("__weakref__", "_aead", "_key", "known")

    def __init__(self, key: bytes, id: str) -> None:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        check_key(key)
        derive = HKDF(SHA256(), KEY_BYTES + _CHECK_BYTES, salt=id.encode(), info=b"privlearn rows")
        made = derive.derive(bytes(key))
        self._key, self.known = bytearray(made[:KEY_BYTES]), made[KEY_BYTES:]
        try:
            self._aead: Any = AESGCMSIV(self._key)
        except UnsupportedAlgorithm:
            raise RowStoreError(
                "a store of rows needs AES-GCM-SIV, which OpenSSL has from 3.2 on: install a "
                "version of cryptography that was built with it"
            ) from None
        processes.INHERITED.add(self)

    def encrypt(self, data: bytes, beside: bytes) -> bytes:
        """The record, of which the last `TAG_BYTES` are its tag; ``beside`` is authenticated."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._aead.encrypt(nonce, data, beside)
        return nonce + sealed

    def decrypt(self, record: object, beside: bytes) -> bytes:
        """What was encrypted.

        Raises:
            ValueError: something else, or with something else beside it.
        """
        from cryptography.exceptions import InvalidTag

        if not isinstance(record, bytes) or len(record) < _NONCE_BYTES + TAG_BYTES:
            raise ValueError("a record is too short")
        nonce, sealed = record[:_NONCE_BYTES], record[_NONCE_BYTES:]
        try:
            found: bytes = self._aead.decrypt(nonce, sealed, beside)
        except InvalidTag:
            raise ValueError(
                "a record was changed, was moved, or is of another store or accountant"
            ) from None
        return found

    def wipe(self) -> None:
        """Overwrites the key, and lets go of what was made of it."""
        self._aead = None
        self._key[:] = bytes(KEY_BYTES)

    def in_child(self) -> None:
        self.wipe()
