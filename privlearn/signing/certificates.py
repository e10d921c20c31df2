"""Signed certificates: what an audit of a ledger found, and who says so.

A certificate is a signed note of two lines.  The first is `FORM`; the second is canonical JSON (RFC
8785) with the certificate of the audit, the δ that was asked for, the public key, the time by the
signer's clock, and the version that audited.  Everything that is shown of it stands in these two
lines, which are what is signed.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

from pydantic import ValidationError

from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Certificate
from privlearn.errors import NotCertifiedError, SigningError, WrongSignatureError
from privlearn.ledger import canonical, iterate_records
from privlearn.ledger.records import parse
from privlearn.mechanisms.recorded_streams import RecordedStreams
from privlearn.reporting.audits import examination
from privlearn.signing.checkpoints import check_signer
from privlearn.signing.keys import PublicKey, SigningKey
from privlearn.signing.notes import Note, sign_text

FORM = "privlearn certificate v1"
MOST_BYTES = 64 * 2**20
_OF_THE_FILE = frozenset({"head_compared", "head_at", "head_beside"})
"""What an audit says of the file that it read, and not of the entries."""
_TIME = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z")
_HASH = re.compile("[0-9a-f]{64}")


@final
@dataclass(frozen=True)
class Statement:
    """What is signed, as it was read.

    ``told`` is the certificate's JSON; ``certificate`` the same for those who show it.
    """

    told: dict[str, Any]
    certificate: Certificate
    delta: float | None
    key: PublicKey
    signed: str
    software: str

    @property
    def text(self) -> str:
        """The two lines."""
        value = {
            "certificate": self.told,
            "delta": self.delta,
            "key": self.key.text,
            "signed": self.signed,
            "software": self.software,
        }
        return f"{FORM}\n{canonical(value).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Statement:
        """Reads the text of a note.

        Raises:
            SigningError: it is no certificate, or not in canonical JSON.
        """
        form, _, rest = text.partition("\n")
        if form != FORM:
            raise SigningError(
                f"it is no certificate that this version reads: it begins with {form[:80]!r}, not "
                f"{FORM!r}"
            )
        try:
            value = parse(rest.removesuffix("\n").encode())
            if canonical(value).decode() + "\n" != rest:
                raise ValueError("it is not canonical (RFC 8785)")
            return cls._from(value)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise SigningError(
                f"it is no certificate: {where}: {error.errors()[0]['msg']}"
            ) from None
        except SigningError:
            raise
        except (ValueError, RecursionError) as error:
            raise SigningError(f"it is no certificate: its JSON: {error}") from None

    @classmethod
    def _from(cls, value: Any) -> Statement:
        names = {"certificate", "delta", "key", "signed", "software"}
        if not isinstance(value, dict) or set(value) != names:
            raise SigningError(f"it is no certificate: an object of {', '.join(sorted(names))} is")
        told, delta = value["certificate"], value["delta"]
        key, signed, software = value["key"], value["signed"], value["software"]
        if not isinstance(told, dict) or not all(
            isinstance(one, str) for one in (key, signed, software)
        ):
            raise SigningError("it is no certificate: a value has another type")
        if not (delta is None or (type(delta) in (int, float) and 0 <= delta < 1)):
            raise SigningError(f"it is no certificate: delta = {delta!r:.40}")
        if not _TIME.fullmatch(signed):
            raise SigningError(f"it is no certificate: signed = {signed!r:.40}")
        certificate = Certificate.model_validate(told)
        if not (_HASH.fullmatch(certificate.head) and _HASH.fullmatch(certificate.root)):
            raise SigningError("it is no certificate: head and root have 64 hexadecimal digits")
        if certificate.entries < 1 or _OF_THE_FILE & set(told):
            raise SigningError("it is no certificate: it is of no entries, or of a file")
        return cls(told, certificate, delta, PublicKey.parse(key), signed, software)


def stated(found: Certificate) -> dict[str, Any]:
    """What an audit says of entries, whatever file they stand in, as JSON."""
    told = parse(found.model_dump_json().encode())
    said = {name: value for name, value in told.items() if name not in _OF_THE_FILE}
    stated: dict[str, Any] = parse(canonical(said))
    return stated


def certificate_of_first(
    ledger: str | os.PathLike[str], entries: int, delta: float | None
) -> Certificate:
    """What an audit says of the first entries of a ledger."""
    records = islice(iterate_records(ledger, vouched=True), entries)
    return certify(records, delta=delta, restate=RecordedStreams())


def certify_ledger(
    ledger: str | os.PathLike[str], key: SigningKey, *, delta: float | None = None
) -> Note:
    """Audits a ledger, and signs what follows from its entries if the guarantee holds.

    Of an open ledger it is what holds so far, at its plan or cap, which the certificate says.

    Args:
        ledger: the file or its export; it is not changed.
        key: who signs.
        delta: where to state ε; default as `audit`.

    Raises:
        NotCertifiedError: the audit found problems, or noise that protects nobody.
        SigningError: the key is a witness's.
        LedgerUnreadableError, LedgerSchemaError, LedgerFeatureError: as `audit`.
        ValueError: a δ that is none.
    """
    from privlearn import __version__

    check_signer(key)
    examined = examination(ledger, delta=delta).read()
    _check(examined.certificate)  # of the file, with its values and the head beside it
    found = examined.of_entries
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    statement = Statement(stated(found), found, delta, key.public, now, __version__)
    note = sign_text(statement.text, key)
    if (size := len(note.encode())) > MOST_BYTES:
        raise SigningError(
            f"a certificate of {size} bytes, and none above {MOST_BYTES} is read: it lists every "
            "label of every mechanism; use fewer labels"
        )
    return note


def _check(found: Certificate) -> None:
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise NotCertifiedError(f"nothing was signed: {found.problems[0]}{more}")
    if found.simulation:
        raise NotCertifiedError(
            "nothing was signed: the ledger is of a simulation, whose noise protects nobody",
            simulation=True,
        )


def open_certificate(note: Note) -> Statement:
    """Reads a certificate whose signature fits the key that it names; that says not whose key."""
    statement = Statement.parse(note.text)
    if statement.key.witness:
        raise WrongSignatureError("the key that the certificate names is one of a witness")
    note.check_text(statement.key)
    return statement
