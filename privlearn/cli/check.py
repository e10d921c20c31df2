"""``privlearn check``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from privlearn.cli.output import POWERLESS, PROBLEMS, clear_errors, console

if TYPE_CHECKING:
    from privlearn.checking.reports import CheckReport


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
    samples: Annotated[
        int | None, typer.Option(help="Outputs per sampling check; default 5000, or 1000.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and simulated noise.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores.")] = None,
) -> None:
    """Check that mechanisms and learners earn what they claim; yours too.

    Exit codes: 0 nothing was refuted; 1 a claim or a law was refuted, or a check
    could not be done; 2 wrong use; 5 nothing was refuted, but a check was
    inconclusive: the exact loss is known for a part of what can happen only, or
    samples do not refute even half the claim. It is said which.
    """
    from privlearn.checking import suite
    from privlearn.cli import check_names
    from privlearn.cli.check_table import as_json, print_reports

    with clear_errors():
        if list_names:
            typer.echo("\n".join(suite.catalogue()))
            return
        how = suite.settings(confidence, samples, seed)
        checks = check_names.chosen(names or ["all"])
        workers = min(jobs or os.cpu_count() or 1, len(checks))
        reports = list(_shown(check_names.run(checks, how, jobs=workers), len(checks)))
    if json:
        sys.stdout.write(as_json(reports, seed=seed) + "\n")
    else:
        print_reports(reports, console(), seed=seed)
    if not all(report.passed for report in reports):
        raise typer.Exit(PROBLEMS)
    if any(report.inconclusive for report in reports):
        raise typer.Exit(POWERLESS)


def _shown(reports: Iterable[CheckReport], length: int) -> Iterator[CheckReport]:
    """Shows a bar on a terminal; else one line for each subject."""
    from tqdm import tqdm

    with tqdm(total=length, unit=" checks", disable=None, leave=False) as bar:
        for done, report in enumerate(reports, 1):
            if bar.disable:
                line = f"{done}/{length} {report.subject}: {report.verdict}"
                print(line, file=sys.stderr, flush=True)
            bar.set_description(f"{report.subject[:40]:40}")
            bar.update()
            yield report
