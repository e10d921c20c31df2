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
from typing import Annotated, Any

import typer
from typer.main import get_command

from privlearn.cli.audit import audit
from privlearn.cli.certify import certify, verify, witness
from privlearn.cli.check import check
from privlearn.cli.commands import announcing_group
from privlearn.cli.describe import describe
from privlearn.cli.fit import fit_app, predict
from privlearn.cli.keys import key_app
from privlearn.cli.ledger import ledger_app
from privlearn.cli.output import BAD_INPUT, say_error, standard_output, unread
from privlearn.cli.packages import packages
from privlearn.cli.people import people_app
from privlearn.cli.price import calibrate, delta, epsilon
from privlearn.cli.run import quickstart, run_app
from privlearn.cli.schema import schema
from privlearn.cli.serve import access_app, serve
from privlearn.errors import LedgerError, PrivlearnError

app = typer.Typer(
    cls=announcing_group(),
    help="Private online learning that can be checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # else line breaks of docstrings stay
)
_COMMANDS = (
    quickstart,
    describe,
    predict,
    audit,
    epsilon,
    delta,
    calibrate,
    check,
    packages,
    schema,
    serve,
)
for command in _COMMANDS:
    app.command()(command)
for signing_command in (certify, verify, witness):
    app.command()(signing_command)
app.add_typer(fit_app, name="fit")
app.add_typer(run_app, name="run", cls=announcing_group("run "))
app.add_typer(ledger_app, name="ledger")
app.add_typer(key_app, name="key")
app.add_typer(people_app, name="people")
app.add_typer(access_app, name="access")


def is_own_command(name: str) -> bool:
    """Whether ``privlearn NAME`` is of this package; ``run mnl`` is one of ``run``."""
    found: Any = get_command(app)
    for part in name.split():
        found = getattr(found, "commands", {}).get(part)
    return found is not None


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
