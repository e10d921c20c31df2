"""``privlearn check``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from privlearn.cli.output import POWERLESS, PROBLEMS, clear_errors, console


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|all|FILE.py:FACTORY]...",
            help="What to check; default: all mechanisms and learners of this package. A NAME "
            "may be one that an installed package announces (`privlearn packages`), whose code "
            "is then run.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    list_names: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
    confidence: Annotated[float, typer.Option(help="Of each sampling bound.")] = 0.999,
    samples: Annotated[int, typer.Option(help="Outputs per sampling check.")] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and simulated noise.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores.")] = None,
) -> None:
    """Check that mechanisms and learners earn what they claim; yours too.

    Exit codes: 0 nothing was refuted, and every check would have found a fault
    of factor 2; 1 a claim or a law was refuted, or a check could not be done; 2
    wrong use; 5 nothing was refuted, but something was checked without power: a
    fault of factor 2 that was planted in it was not found either.
    """
    from privlearn.checking import suite
    from privlearn.checking.printing import print_report

    with clear_errors():
        if list_names:
            typer.echo("\n".join(suite.catalogue()))
            return
        settings = suite.Settings(confidence, samples, seed)
        checks = suite.chosen(names or ["all"])
        workers = min(jobs or os.cpu_count() or 1, len(checks))
        report = suite.run(checks, settings, _named_bar(len(checks), quiet=json), jobs=workers)
    if json:
        sys.stdout.write(report.model_dump_json(indent=2) + "\n")
    else:
        print_report(report, console())
    if not report.passed:
        raise typer.Exit(PROBLEMS)
    if report.powerless:
        raise typer.Exit(POWERLESS)


def _named_bar(length: int, *, quiet: bool) -> Callable[[str], None]:
    from tqdm import tqdm

    bar = tqdm(total=length, unit=" checks", disable=True if quiet else None, leave=False)

    def advance(name: str) -> None:
        bar.set_description(f"{name[:40]:40}")
        bar.update()
        if bar.n == length:
            bar.close()

    return advance
