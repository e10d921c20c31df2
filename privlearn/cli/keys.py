"""``privlearn key``: keys that sign certificates, checkpoints and cosignatures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.signing import Passphrase, passphrase_in, private_key, signing_errors

key_app = typer.Typer(
    help="Keys that sign certificates: see docs/how-to/sign-and-archive.md.", no_args_is_help=True
)


@key_app.command("new")
def new(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="New file; the public key goes to FILE.pub.")
    ],
    name: Annotated[str, typer.Option(help="Whose key it is, such as example.com/audits.")],
    witness: Annotated[
        bool, typer.Option("--witness", help="For cosignatures of others' checkpoints.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask-passphrase", help="Encrypt the file.")] = False,
    passphrase_file: Passphrase = None,
) -> None:
    """Make a key, and print the public one, which others verify with.

    Exit codes: 0 made; 2 a file exists or cannot be made, or the name is none.
    """
    from privlearn.signing import SigningKey

    with signing_errors():
        key = SigningKey.new(name, witness=witness)
        passphrase = None if passphrase_file is None else passphrase_in(passphrase_file)
        if ask:
            asked = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True)
            passphrase = asked.encode()
        key.save(file, passphrase)
    typer.echo(key.public.text)


@key_app.command("show")
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A private key, or a public one.")],
    passphrase_file: Passphrase = None,
) -> None:
    """Print the public key of a file, whose it is and what for.

    Exit codes: 0 printed; 2 it is no key, or a private one that others may
    read.
    """
    from privlearn.reporting.visible import visible
    from privlearn.signing import PublicKey
    from privlearn.signing.keys import is_private

    with signing_errors():
        if is_private(file):
            public = private_key(Path(file), passphrase_file).public
        else:
            public = PublicKey.given(file)
    use = "cosignatures of a witness" if public.witness else "certificates and checkpoints"
    typer.echo(f"{visible(public.text)}\nname  {visible(public.name)}\nfor   {use}")
