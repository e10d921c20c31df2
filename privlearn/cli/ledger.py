"""``privlearn ledger``: copies of ledgers that are whole, checkpoints, and proofs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import BAD_INPUT, fail, unread
from privlearn.cli.signing import (
    Out,
    Passphrase,
    PrivateKey,
    deliver,
    private_key,
    read_note,
    signing_errors,
)
from privlearn.errors import LedgerError, LedgerUnreadableError, SigningError

ledger_app = typer.Typer(help="Ledger files: see docs/ledger.md.", no_args_is_help=True)


@ledger_app.callback()
def _root() -> None:
    pass


@ledger_app.command("backup")
def backup(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="Ledger file.")],
    to: Annotated[Path, typer.Argument(metavar="TO", help="New file, which must not exist.")],
) -> None:
    """Copy a ledger, also while it is written to, and print the head of the copy.

    Exit codes: 0 copied; 2 the new file exists or cannot be made; 4 the ledger
    cannot be read.
    """
    from privlearn.ledger import backup as copy

    try:
        head = copy(ledger, to)
    except LedgerUnreadableError as error:
        fail(str(error), unread(error))
    except LedgerError as error:
        fail(str(error), BAD_INPUT)
    typer.echo(f"head: {head}")


@ledger_app.command("checkpoint")
def checkpoint(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="Ledger file, or its export.")],
    key: PrivateKey,
    out: Out = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Sign how many entries a ledger has, and their Merkle root, as a C2SP checkpoint.

    Exit codes: 0 signed; 1 the chain is broken; 2 wrong use; 4 the ledger
    cannot be read.
    """
    from privlearn.signing import sign_checkpoint

    with signing_errors():
        signer = private_key(key, passphrase_file)
        deliver(sign_checkpoint(ledger, signer).encode(), out)


@ledger_app.command("consistency")
def consistency(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="Ledger file, or its export.")],
    earlier: Annotated[
        Path | None, typer.Option("--from", metavar="OLD", help="The earlier checkpoint.")
    ] = None,
    later: Annotated[
        Path | None,
        typer.Option("--to", metavar="NEW", help="The later one, which a witness is to cosign."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Public key that both must be signed by, or its file.")
    ] = None,
    out: Out = None,
) -> None:
    """Prove that a ledger continues an earlier checkpoint.

    With --to it is the request to a witness; without --from that for the first
    checkpoint. Exit codes: 0 proved; 2 wrong use; 4 the ledger cannot be read;
    7 a signature is not the key's; 8 a checkpoint is not of this ledger.
    """
    from privlearn.signing import PublicKey
    from privlearn.signing.checkpoints import MOST_BYTES
    from privlearn.signing.witnesses import continuation

    with signing_errors():
        if earlier is None and later is None:
            raise SigningError("neither --from nor --to: there is nothing to prove")
        known = None if key is None else PublicKey.given(key)
        old, new = (None if one is None else read_note(one, MOST_BYTES) for one in (earlier, later))
        deliver(continuation(ledger, old, new, known), out)
