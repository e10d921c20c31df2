"""``privlearn ledger``: copies of ledgers that are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import BAD_INPUT, fail, unread
from privlearn.errors import LedgerError, LedgerUnreadableError

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

    Exit codes: 0 copied; 2 the new file exists or cannot be made; 4 the ledger cannot be read.
    """
    from privlearn.ledger import backup as copy

    try:
        head = copy(ledger, to)
    except LedgerUnreadableError as error:
        fail(str(error), unread(error))
    except LedgerError as error:
        fail(str(error), BAD_INPUT)
    typer.echo(f"head: {head}")
