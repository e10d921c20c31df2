"""What the commands that sign and verify share: keys, files, and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privlearn.cli.output import (
    BAD_INPUT,
    OTHER_LEDGER,
    PROBLEMS,
    SIMULATION,
    WRONG_SIGNATURE,
    fail,
    unread,
)
from privlearn.errors import (
    LedgerError,
    NotCertifiedError,
    OtherLedgerError,
    PassphraseError,
    PrivlearnError,
    SigningError,
    WrongSignatureError,
)

if TYPE_CHECKING:
    from privlearn.signing import Note, SigningKey

PrivateKey = Annotated[Path, typer.Option("--key", help="File of a private key.")]
Passphrase = Annotated[
    Path | None,
    typer.Option(help="File with the key's passphrase, for runs that nobody can be asked in."),
]
Out = Annotated[Path | None, typer.Option(help="New file; default: the standard output.")]
PublicKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="Public key that must have signed, NAME+ID+BASE64, or its file; may be a witness's, "
        "and be repeated.",
    ),
]


@contextmanager
def signing_errors() -> Iterator[None]:
    """Turns what is wrong with keys, signatures and ledgers into one line and its exit code."""
    try:
        yield
    except NotCertifiedError as error:
        fail(str(error), SIMULATION if error.simulation else PROBLEMS)
    except WrongSignatureError as error:
        fail(str(error), WRONG_SIGNATURE)
    except OtherLedgerError as error:
        fail(str(error), OTHER_LEDGER)
    except LedgerError as error:
        fail(str(error), unread(error))
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}", BAD_INPUT)
    except (PrivlearnError, ValueError, OverflowError) as error:
        fail(str(error), BAD_INPUT)


def private_key(path: Path, passphrase_file: Path | None) -> SigningKey:
    """A private key; its passphrase is asked for on a terminal if it needs one."""
    from privlearn.signing import SigningKey

    if passphrase_file is not None:
        return SigningKey.load(path, passphrase_in(passphrase_file))
    try:
        return SigningKey.load(path)
    except PassphraseError as error:
        if not error.needed or not sys.stdin.isatty():
            raise
    return SigningKey.load(path, typer.prompt("Passphrase", hide_input=True).encode())


def passphrase_in(path: Path) -> bytes:
    """The one line of a file that nobody but its owner may read."""
    from privlearn.signing.keys import read_secret

    found = read_secret(path).removesuffix(b"\n")
    if not found:
        raise SigningError(f"{path} is empty: it holds the passphrase on one line")
    return found


def read_signed(path: Path, most: int) -> bytes:
    """A small file that somebody else wrote."""
    from privlearn.storage.foreign_files import read_foreign

    try:
        found = read_foreign(path, at_most=most)
    except OSError as error:
        raise SigningError(f"{path} cannot be read: {error.strerror}") from None
    if found is None:
        raise SigningError(f"{path}: no such file")
    return found


def read_note(path: Path, most: int) -> Note:
    """A signed note, with the name of its file in what is wrong with it."""
    from privlearn.signing import Note

    read = read_signed(path, most)
    try:
        return Note.parse(read)
    except SigningError as error:
        raise SigningError(f"{path}: {error}") from None


def check_new(out: Path | None) -> None:
    """Raises SigningError if what would be delivered to a file could not be."""
    if out is None:
        return
    if os.path.lexists(out):
        raise SigningError(f"{out} exists: it is not overwritten")
    if not out.parent.is_dir():
        raise SigningError(f"{out} cannot be made: there is no folder {out.parent}")


def deliver(data: bytes, out: Path | None) -> None:
    """Writes what was signed to a new file, or to the standard output."""
    from privlearn.signing.keys import write_new

    if out is None:
        typer.echo(data, nl=False)
    else:
        write_new(out, data, mode=0o644)
