"""The command line: ``quickstart``, ``schema``, ``run``, ``audit``, ``check``, ``errata``, ….

Exit codes: 0 all is well; 1 an audit or a check found problems; 2 wrong use or bad input; 3 the
ledger is of a simulation; 4 the ledger cannot be read, or is hostile; 5 checks refuted nothing, and
one of them was inconclusive; 6 the ledger needs an extension of its format that this version does
not know; 7 a signature is not that of the key asked for; 8 a certificate or
checkpoint is not of this ledger, or a ledger does not continue another; 9 a record lacks a field
that only a human can fill in; 130 stopped by SIGINT or SIGTERM, after saying what was spent; 141
whoever read the output stopped. An audit of nothing but attestations finds no problem and exits
with 0; its first line says that they are not verified.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

from privlearn.cli.commands import announcing_group
from privlearn.cli.output import BAD_INPUT, say_error, standard_output, unread
from privlearn.errors import LedgerError, PrivlearnError

_COMMANDS: Final = {
    "quickstart": "run:quickstart",
    "describe": "describe:describe",
    "predict": "fit:predict",
    "audit": "audit:audit",
    "epsilon": "price:epsilon",
    "delta": "price:delta",
    "calibrate": "price:calibrate",
    "check": "check:check",
    "packages": "packages:packages",
    "schema": "schema:schema",
    "serve": "serve:serve",
    "certify": "certify:certify",
    "verify": "certify:verify",
    "witness": "certify:witness",
    "fit": "fit:fit_app",
    "run": "run:run_app",
    "ledger": "ledger:ledger_app",
    "key": "keys:key_app",
    "people": "people:people_app",
    "access": "serve:access_app",
}
app = typer.Typer(
    cls=announcing_group("", {name: f"privlearn.cli.{at}" for name, at in _COMMANDS.items()}),
    help="Private online learning that can be checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # else line breaks of docstrings stay
)


def is_own_command(name: str) -> bool:
    """Whether ``privlearn NAME`` is of this package; ``run mnl`` is one of ``run``."""
    first, _, second = name.partition(" ")
    if first not in _COMMANDS or not second:
        return first in _COMMANDS
    group: Any = get_command(app)
    return second in getattr(group.get_command(None, first), "commands", {})


def _print_version(wanted: bool) -> None:
    if wanted:
        from privlearn import __version__

        typer.echo(f"privlearn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: errors made on purpose become one clear line and an exit code."""
    with standard_output():
        _main()


def _main() -> None:
    try:
        app()
    except (PrivlearnError, ValueError, OverflowError) as error:
        say_error(str(error))
        sys.exit(unread(error) if isinstance(error, LedgerError) else BAD_INPUT)
