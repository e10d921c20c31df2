"""Ed25519 keys with a name, in files and as the text that others verify with.

The public text is a verifier key of C2SP signed notes, ``<name>+<id>+<base64>``
(https://c2sp.org/signed-note).  A key signs either certificates and checkpoints, or cosignatures of
a witness, and never both: what is signed by one cannot be taken for the other.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, final

from privlearn.errors import PassphraseError, SigningError
from privlearn.storage.foreign_files import read_foreign
from privlearn.storage.new_names import sync_directory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNER, WITNESS = 1, 4
"""What a key is for, as signed notes number it: Ed25519 over the text, or cosignatures."""
_USES = {SIGNER: "signer", WITNESS: "witness"}
_MOST_BYTES = 16_384
_PRIVATE = b"PRIVATE KEY"
_NEW_NAME = re.compile(r"[!-*,-~]{1,200}")
_PUBLIC = re.compile(r"([^+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)")
_HEADER = re.compile(rb"privlearn (signer|witness) key ([!-*,-~]{1,200})\n")


def valid_name(name: str) -> bool:
    """Whether a signed note may name a key so: no blanks, no plus, no control characters."""
    return bool(name) and not any(c.isspace() or c == "+" or c < " " for c in name)


def strict_base64(text: str) -> bytes:
    """Bytes of standard base64 in its one canonical form; raises `SigningError` for another."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not text or base64.b64encode(data).decode() != text:
        raise SigningError(f"{text[:80]!r} is not canonical base64")
    return data


@final
@dataclass(frozen=True)
class PublicKey:
    """What verifies signatures of one key: its name, what it is for, and 32 bytes."""

    name: str
    use: int
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not valid_name(self.name):
            raise SigningError(f"the name of a key, {self.name[:80]!r}: no blanks and no plus")
        if self.use not in _USES:
            raise SigningError(
                f"a key of type {self.use}: only Ed25519 ones are known, of notes (1) and of "
                "witnesses (4)"
            )
        if len(self.data) != 32:
            raise SigningError(f"a public key of {len(self.data)} bytes: Ed25519 has 32")
        if int.from_bytes(self.data, "little") & _WITHOUT_SIGN in _SMALL_ORDER:
            raise SigningError("a public key of small order: its signatures prove nothing")

    @cached_property
    def id(self) -> bytes:
        """Four bytes that name it in signatures, and prove nothing."""
        said = self.name.encode() + b"\n" + bytes([self.use]) + self.data
        return sha256(said).digest()[:4]

    @property
    def text(self) -> str:
        """``<name>+<id>+<base64>``, for others to verify with."""
        material = base64.b64encode(bytes([self.use]) + self.data).decode()
        return f"{self.name}+{self.id.hex()}+{material}"

    @property
    def witness(self) -> bool:
        """Whether it is for cosignatures."""
        return self.use == WITNESS

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Reads ``<name>+<id>+<base64>``.

        Raises:
            SigningError: it is not that, or the id is another key's.
        """
        found = _PUBLIC.fullmatch(text)
        if found is None:
            raise SigningError(f"{text[:80]!r} is no public key: <name>+<id>+<base64> is")
        material = strict_base64(found[3])
        key = cls(found[1], material[0], material[1:])
        if key.id.hex() != found[2]:
            raise SigningError(
                f"the key {found[1][:80]!r} has the id {key.id.hex()}, not {found[2]}: it was "
                "changed, or copied with an error"
            )
        return key

    @classmethod
    def given(cls, said: str) -> PublicKey:
        """A key as people give it: the text, or the name of a file that holds it on one line.

        Raises:
            SigningError: it is neither.
            OSError: the file cannot be read.
        """
        if _PUBLIC.fullmatch(said):
            return cls.parse(said)
        data = read_foreign(Path(said), at_most=_MOST_BYTES)
        if data is None:
            raise SigningError(
                f"{said!r:.200} is no public key, <name>+<id>+<base64>, and no file that holds one"
            )
        if _PRIVATE in data:
            raise SigningError(f"{said!r:.200} is a private key: give its public one ({PUBLIC})")
        try:
            return cls.parse(data.decode().removesuffix("\n"))
        except UnicodeDecodeError:
            raise SigningError(f"{said!r:.200} holds no public key") from None

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether a signature of 64 bytes over a message is this key's."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.data).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


_P = 2**255 - 19
_WITHOUT_SIGN = 2**255 - 1
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = {y + k * _P for y in (0, 1, _P - 1, _ORDER_8, _P - _ORDER_8) for k in (0, 1)}
"""y of the eight points of order 1, 2, 4 and 8, also not reduced: such a key signs anything."""

PUBLIC = ".pub"  # Behind the name of a private key's file, the file of its public one


@final
class SigningKey:
    """A private key with its name; never printed, and kept in a file that its owner reads only."""

    def __init__(self, name: str, use: int, private: Ed25519PrivateKey) -> None:
        if not _NEW_NAME.fullmatch(name):
            raise SigningError(
                f"name = {name!r:.80}: must be up to 200 printable ASCII characters without blank "
                "and plus; a domain of yours and a path, such as example.com/audits, is like no "
                "one else's"
            )
        self._private = private
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        data = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = PublicKey(name, use, data)

    def __repr__(self) -> str:
        return f"SigningKey({self.public.text!r})"

    def __reduce__(self) -> str:
        raise TypeError("a private key is not pickled: load it from its file")

    @classmethod
    def new(cls, name: str, *, witness: bool = False) -> SigningKey:
        """Draws a key.

        Args:
            name: up to 200 printable ASCII characters without blank and plus.
            witness: whether it is for cosignatures.

        Raises:
            SigningError: the name is another.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(name, WITNESS if witness else SIGNER, Ed25519PrivateKey.generate())

    def sign(self, message: bytes) -> bytes:
        """The signature of 64 bytes (RFC 8032)."""
        return self._private.sign(message)

    def save(self, path: str | os.PathLike[str], passphrase: bytes | None = None) -> None:
        """Writes the key, mode 0600, as PKCS8 in PEM below a line with its name, and its public
        text to the same name with ``.pub``; overwrites nothing.

        Raises:
            SigningError: a file stands there, or cannot be made, or the passphrase is empty.
        """
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        if passphrase == b"":
            raise SigningError("an empty passphrase: give one, or none")
        how = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
        head = f"privlearn {_USES[self.public.use]} key {self.public.name}\n".encode()
        where = Path(path)
        public = where.with_name(where.name + PUBLIC)
        for taken in (where, public):
            if os.path.lexists(taken):
                raise SigningError(f"{taken} exists: keys are never overwritten")
        write_new(where, head + pem, mode=0o600)
        write_new(public, self.public.text.encode() + b"\n", mode=0o644)

    @classmethod
    def load(cls, path: str | os.PathLike[str], passphrase: bytes | None = None) -> SigningKey:
        """Reads a key that `save` wrote.

        Raises:
            PassphraseError: it needs one, or another one.
            SigningError: it is no such key, or others than its owner may read or write the file.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = read_secret(path)
        found = _HEADER.match(data)
        if found is None:
            raise SigningError(f"{path} is no private key that `privlearn key new` made")
        try:
            private = load_pem_private_key(data[found.end() :], passphrase)
        except TypeError:
            if passphrase is not None:
                raise PassphraseError(f"{path} has no passphrase: leave it out") from None
            raise PassphraseError(f"{path} needs its passphrase", needed=True) from None
        except (ValueError, UnsupportedAlgorithm):
            why = "is damaged" if passphrase is None else "is damaged, or has another passphrase"
            raise PassphraseError(f"{path} {why}") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise SigningError(f"{path} is no Ed25519 key")
        use = SIGNER if found[1] == b"signer" else WITNESS
        return cls(found[2].decode(), use, private)


def is_private(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a private key."""
    data = read_foreign(Path(path), at_most=_MOST_BYTES)
    return data is not None and _PRIVATE in data


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """A small file that nobody but its owner may read or write; `SigningError` for any other."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise SigningError(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        os.close(file)  # before `open`, which would name a folder by its number
        raise SigningError(f"{path} is no file of a key")
    with open(file, "rb") as opened:
        if os.fspath(path).endswith(".pub"):
            raise SigningError(f"{path} is a public key: give its private one")
        if os.name == "posix" and found.st_mode & 0o077:
            raise SigningError(
                f"{path} can be read or written by others (mode {stat.S_IMODE(found.st_mode):04o})"
                f": chmod 600 {path}, and make a new key if somebody may have read it"
            )
        return opened.read(_MOST_BYTES)


def write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Writes and syncs a file that was not there; `SigningError` if it was, or cannot be made."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise SigningError(f"{path} exists: it is not overwritten") from None
    except OSError as error:
        raise SigningError(f"{path} cannot be made: {error.strerror}") from None
    try:
        with open(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(file)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    sync_directory(path.parent)
