"""``privlearn audit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import PROBLEMS, SIMULATION, clear_errors, console, fail, unread
from privlearn.cli.packages import import_named
from privlearn.errors import LedgerError


def audit(
    ledger: Annotated[Path, typer.Argument(help="Ledger file, or its JSON-lines export.")],
    delta: Annotated[float | None, typer.Option(help="Where to state ε.")] = None,
    head: Annotated[str | None, typer.Option(help="A last hash that was kept.")] = None,
    user: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="For this arrival index; default: the largest. Not under a rule of participation.",
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, help="For a person with so many rows. Not under a rule of participation."
        ),
    ] = 1,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import this module first, which runs its code: for kinds of losses of other "
            "packages that register without entry points. Can be given several times.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print every assumption.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only, with everything.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what was spent over time to this file.")
    ] = None,
) -> None:
    """Recompute the guarantee from only a ledger.

    Exit codes: 0 verified, or attested; 1 problems; 2 wrong use; 3 a simulation; 4 the ledger
    cannot be read.
    """
    from privlearn.reporting.audits import audit as recompute
    from privlearn.reporting.certificates import print_certificate
    from privlearn.reporting.visible import in_json

    import_named(modules or [])
    try:
        certificate = recompute(ledger, delta=delta, head=head, user=user, rounds=rounds)
    except LedgerError as error:
        fail(str(error), unread(error))
    if json:
        sys.stdout.write(in_json(certificate.model_dump_json(indent=2)) + "\n")
    else:
        print_certificate(certificate, console(), full=full)
    if plot is not None:
        from privlearn.reporting.figures import plot_spending

        with clear_errors():
            plot_spending(plot, ledger)
    if certificate.problems:
        raise typer.Exit(PROBLEMS)
    if certificate.simulation:
        raise typer.Exit(SIMULATION)
