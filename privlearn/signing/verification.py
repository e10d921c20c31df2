"""What a signed certificate or checkpoint is worth, with the keys and the ledger that one has."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, final

from privlearn.accountants.certificate import Certificate
from privlearn.errors import OtherLedgerError, SigningError, WrongSignatureError
from privlearn.ledger.proofs import Measured, consistency_proof, consistent, entry_hashes, measure
from privlearn.reporting.audits import examination
from privlearn.signing.certificates import Statement, certificate_of_first, open_certificate, stated
from privlearn.signing.checkpoints import Checkpoint, check_cosignature
from privlearn.signing.keys import PublicKey
from privlearn.signing.notes import Note

_CLOSE = 1e-6  # Relative: numbers that two machines compute from one ledger differ by less
_ROUNDING = 1e-9
"""By which a bound on numerical errors may differ, as these are of that size themselves."""
_WORDS = frozenset({"text", "remarks", "noise", "who", "theorem", "relation"})
"""Names whose texts a later version may put in other words."""
_ADDED = frozenset({"together"})  # What earlier versions did not say, and follows from the rest


class Relation(StrEnum):
    """Of a ledger to what was signed."""

    SAME = "exactly the one that was signed"
    CONTINUES = "a continuation of the one that was signed"
    BROKEN = "broken: hashes that stand in it are not those of its entries"


@final
@dataclass(frozen=True)
class Verified:
    """What follows from a signed note whose signatures are right."""

    statement: Statement | None
    """Of a certificate."""
    checkpoint: Checkpoint | None
    """Of a checkpoint."""
    known: tuple[PublicKey, ...]
    """The keys that one has, all of which signed; empty if only the key inside is known."""
    cosigned: tuple[tuple[PublicKey, int], ...]
    """Witnesses, and when they signed, in seconds since 1970."""
    unknown: tuple[str, ...]
    """Names in which there are further signatures, which were not looked at."""
    relation: Relation | None = None
    """None without a ledger."""
    entries: int = 0
    """Of the ledger."""
    differences: list[str] = field(default_factory=list)
    """Where the certificate says something else than the audit of the same entries.

    Of a broken ledger none are told: its problems say it.
    """
    rewordings: int = 0
    """Texts of another version that say the same in other words, as far as their place tells."""
    problems: list[str] = field(default_factory=list)
    """Of the ledger as it is now."""
    recomputed: Certificate | None = None
    """What an audit says of the same entries, where the certificate says nothing else; its words
    are this version's, whatever words were signed."""


def verify(
    note: Note,
    keys: Sequence[PublicKey] = (),
    ledger: str | os.PathLike[str] | None = None,
    *,
    now: int | None = None,
) -> Verified:
    """Verifies a certificate or a checkpoint; no secret is needed.

    Args:
        note: what was signed.
        keys: of signers and witnesses; each must have signed.  Without a signer's, a certificate
            is verified with the key that it names, which proves only that nothing was changed since
            somebody signed it.
        ledger: what it should be of: a file or an export.
        now: seconds since 1970, for the times of witnesses; default the clock's.

    Raises:
        WrongSignatureError: a signature is wrong, or a key did not sign.
        OtherLedgerError: it is of another ledger.
        SigningError: it is neither certificate nor checkpoint, or a checkpoint without key.
        LedgerUnreadableError, LedgerSchemaError, LedgerFeatureError: as `audit`.
    """
    for key in keys:
        if not key.witness:
            note.check_text(key)  # before anything of the text is read
    statement = checkpoint = None
    if note.text.split("\n", 2)[1].startswith("{"):
        statement = open_certificate(note)
    else:
        checkpoint = Checkpoint.parse(note.text)
    cosigned = list[tuple[PublicKey, int]]()
    for key in keys:
        if key.witness and checkpoint is None:
            raise WrongSignatureError(
                f"it is not signed by {key.name}, a witness: these sign checkpoints only"
            )
        if key.witness:
            cosigned.append((key, check_cosignature(note, key, now)))
    known = tuple(key for key in keys if not key.witness)
    if checkpoint is not None and not known:
        raise SigningError(
            "a checkpoint does not hold the key that signed it: give --key, as its signer published"
        )
    inside = (statement.key,) if statement is not None else ()
    found = Verified(
        statement,
        checkpoint,
        known,
        tuple(cosigned),
        tuple(one.name for one in note.signatures if not any(map(one.of, (*keys, *inside)))),
    )
    if ledger is None:
        return found
    return _with_ledger(found, ledger)


def _with_ledger(found: Verified, ledger: str | os.PathLike[str]) -> Verified:
    statement, checkpoint = found.statement, found.checkpoint
    if statement is not None:
        said = statement.certificate
        size, root = said.entries, said.root
    else:
        assert checkpoint is not None
        size, root = checkpoint.size, checkpoint.root
    measured = measure(ledger, at=size)
    _check_same_history(found, measured, size, root)
    whole = measured.whole
    relation = Relation.SAME if whole.size == size else Relation.CONTINUES
    if measured.problems:  # the hashes were compared as they stand there, and prove nothing
        relation = Relation.BROKEN
    if relation is Relation.CONTINUES:
        proof = consistency_proof(entry_hashes(ledger), size, whole.size)
        roots = bytes.fromhex(root), bytes.fromhex(whole.root)
        if not consistent(size, whole.size, *roots, proof):
            raise OtherLedgerError("the ledger was rewritten while it was read")
    differences, rewordings, own = list[str](), 0, None
    if statement is not None:
        delta, head = statement.delta, statement.certificate.head
        examined = examination(ledger, delta=delta, head=head).read()
        problems = examined.certificate.problems
        if relation is not Relation.BROKEN:
            own = (
                examined.of_entries
                if examined.certificate.entries == size
                else certificate_of_first(ledger, size, delta)
            )
        for where, words, text in () if own is None else _differences(statement.told, stated(own)):
            if words and statement.software != _version():
                rewordings += 1
            else:
                differences.append(f"{where}: {text}")
    else:
        problems = measured.problems
    return Verified(
        statement,
        checkpoint,
        found.known,
        found.cosigned,
        found.unknown,
        relation,
        whole.size,
        differences[:100],
        rewordings,
        problems,
        None if differences else own,
    )


def _check_same_history(found: Verified, measured: Measured, size: int, root: str) -> None:
    there, whole = measured.earlier, measured.whole
    if there is None:
        raise OtherLedgerError(
            f"the ledger has {whole.size} entries, and what was signed {size}: it is an older "
            "copy, was cut, or is another one"
        )
    if found.statement is not None and there.head != found.statement.certificate.head:
        raise OtherLedgerError(
            f"after {size} entries the head of the ledger is {there.head}, and the one that was "
            f"signed {found.statement.certificate.head}: it is another ledger, or was rewritten"
        )
    if there.root != root:
        raise OtherLedgerError(
            f"after {size} entries the root of the ledger is {there.root}, and the one that was "
            f"signed {root}: it is another ledger, or was rewritten"
        )
    if found.checkpoint is not None:
        name, _, first = found.checkpoint.origin.rpartition("/")
        if any(key.name == name for key in found.known) and first != whole.first[:32]:
            raise OtherLedgerError(
                f"the checkpoint is of {found.checkpoint.origin!r:.200}, and the hash of the first "
                f"entry of the ledger begins with {whole.first[:32]}"
            )


def _version() -> str:
    from privlearn import __version__

    return __version__


def _differences(signed: Any, found: Any, where: str = "") -> Iterator[tuple[str, bool, str]]:
    """Where two JSON values say something else, whether only in words, and what they say."""
    if isinstance(signed, dict) and isinstance(found, dict):
        for name in sorted(signed.keys() | found.keys()):
            at = f"{where}.{name}" if where else name
            if name not in signed and at in _ADDED:
                yield at, True, f"{_short(found[name])} is not in the certificate"
            elif name not in found or name not in signed:
                here, only = (signed, "only") if name in signed else (found, "not")
                yield at, False, f"{_short(here[name])} stands {only} in the certificate"
            else:
                yield from _differences(signed[name], found[name], at)
    elif isinstance(signed, list) and isinstance(found, list) and len(signed) == len(found):
        for number, (one, other) in enumerate(zip(signed, found, strict=True)):
            yield from _differences(one, other, f"{where}[{number}]")
    else:
        name = where.rpartition(".")[2].partition("[")[0]
        if _equal(signed, found, _ROUNDING if name == "error_bound" else 0.0):
            return
        words = isinstance(signed, str) and isinstance(found, str)
        text = f"the certificate says {_short(signed)}, and the ledger gives {_short(found)}"
        yield where, words and name in _WORDS, text


def _equal(signed: Any, found: Any, most: float) -> bool:
    numbers = type(signed) in (int, float) and type(found) in (int, float)
    if numbers and not (type(signed) is int and type(found) is int):
        return math.isclose(signed, found, rel_tol=_CLOSE, abs_tol=most)
    return type(signed) is type(found) and signed == found


def _short(value: Any) -> str:
    return f"{value!r:.80}"
