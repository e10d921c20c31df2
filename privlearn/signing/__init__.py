"""Who says what of a ledger: keys, signed certificates, checkpoints, and witnesses.

Nothing here is secret but the file of a private key.  docs/how-to/sign-and-archive.md shows how it
is used.
"""

from privlearn.signing.certificates import Statement, certify_ledger
from privlearn.signing.checkpoints import Checkpoint, sign_checkpoint
from privlearn.signing.keys import PublicKey, SigningKey
from privlearn.signing.notes import Note
from privlearn.signing.verification import Relation, Verified, verify
from privlearn.signing.witnesses import Request, Witness

__all__ = [
    "Checkpoint",
    "Note",
    "PublicKey",
    "Relation",
    "Request",
    "SigningKey",
    "Statement",
    "Verified",
    "Witness",
    "certify_ledger",
    "sign_checkpoint",
    "verify",
]
