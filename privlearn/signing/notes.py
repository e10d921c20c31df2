"""Signed notes (https://c2sp.org/signed-note): a text, an empty line, and lines of signatures.

Nothing of a note is believed before a signature of a known key was verified over its text.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import final

from privlearn.errors import SigningError, WrongSignatureError
from privlearn.signing.keys import PublicKey, SigningKey, strict_base64, valid_name

MOST_SIGNATURES = 100
_DASH = "— "
_MOST_LINE = 10_000


@final
@dataclass(frozen=True, slots=True)
class Signature:
    """One line: who is said to have signed, four bytes that name the key, and what was signed."""

    name: str
    key_id: bytes
    data: bytes

    @property
    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.data).decode()}\n"

    @classmethod
    def parse(cls, line: str) -> Signature:
        name, blank, signed = line.removeprefix(_DASH).rpartition(" ")
        if not line.startswith(_DASH) or not blank or not valid_name(name):
            raise SigningError(f"{line[:80]!r} is no signature: — <name> <base64> is")
        if len(line) > _MOST_LINE:
            raise SigningError(f"a signature of more than {_MOST_LINE} characters")
        data = strict_base64(signed)
        if len(data) < 5:
            raise SigningError(f"{line[:80]!r}: a signature has more than four bytes")
        return cls(name, data[:4], data[4:])

    def of(self, key: PublicKey) -> bool:
        """Whether it says that this key made it; whether it did, `signed_by` verifies."""
        return self.name == key.name and self.key_id == key.id


@final
@dataclass(frozen=True, slots=True)
class Note:
    """A text, which ends with a line end, and its signatures, not verified."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Note:
        """Reads a note.

        Raises:
            SigningError: it is none.
        """
        try:
            whole = data.decode()
        except UnicodeDecodeError:
            raise SigningError("it is no signed note: its text is not UTF-8") from None
        if len(data.translate(None, _CONTROLS)) != len(data):
            raise SigningError("it is no signed note: it holds control characters")
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or not text or not lines.endswith("\n"):
            raise SigningError(
                "it is no signed note: a text, an empty line, and signatures, each with a line end"
            )
        if lines.count("\n") > MOST_SIGNATURES:
            raise SigningError(f"a note with more than {MOST_SIGNATURES} signatures")
        signatures = tuple(map(Signature.parse, lines[:-1].split("\n")))
        return cls(text + "\n", signatures)

    def encode(self) -> bytes:
        """The bytes of the note."""
        return (self.text + "\n" + "".join(one.line for one in self.signatures)).encode()

    def with_signature(self, signature: Signature) -> Note:
        """The same with one more line, in place of an earlier one of the same key.

        Raises:
            SigningError: it has as many as a note may have.
        """
        kept = [
            one
            for one in self.signatures
            if (one.name, one.key_id) != (signature.name, signature.key_id)
        ]
        if len(kept) >= MOST_SIGNATURES:
            raise SigningError(f"the note has {len(kept)} signatures already")
        return Note(self.text, (*kept, signature))

    def signed_by(self, key: PublicKey) -> tuple[Signature, ...]:
        """The lines that say that they are this key's; every one must verify.

        Raises:
            WrongSignatureError: there is none.
        """
        found = tuple(one for one in self.signatures if one.of(key))
        if not found:
            names = ", ".join(f"{one.name} (id {one.key_id.hex()})" for one in self.signatures)
            raise WrongSignatureError(
                f"it is not signed by {key.name} (id {key.id.hex()}); it bears signatures in the "
                f"names of: {names:.400}"
            )
        return found

    def check_text(self, key: PublicKey) -> None:
        """Raises WrongSignatureError unless this key signed the text."""
        for one in self.signed_by(key):
            if not key.verifies(self.text.encode(), one.data):
                raise WrongSignatureError(
                    f"the signature in the name of {key.name} (id {key.id.hex()}) is wrong: the "
                    "text was changed, or another key made it"
                )


_CONTROLS = bytes(code for code in range(32) if code != ord("\n"))


def sign_text(text: str, key: SigningKey) -> Note:
    """A note with one signature over its text."""
    public = key.public
    return Note(text, (Signature(public.name, public.id, key.sign(text.encode())),))
