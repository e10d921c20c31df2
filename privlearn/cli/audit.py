"""``privlearn audit``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from privlearn.cli.output import (
    BAD_INPUT,
    INCOMPLETE,
    OTHER_LEDGER,
    clear_errors,
    console,
    fail,
    print_json,
    unread,
)
from privlearn.cli.packages import import_named
from privlearn.errors import IncompleteRecordError, LedgerError, UncertifiedRecordError
from privlearn.ledger.addresses import is_address, named

if TYPE_CHECKING:
    from privlearn.reporting.model import Report


_QUESTION, _LISTED, _OUTPUT = "What is asked", "Which spends are listed", "Where it goes"
_OF_DIFF = frozenset({"ledger", "more", "delta", "json", "modules"})
_OF_FOLLOW = frozenset({"ledger", "follow", "delta", "head", "rounds", "full", "modules"})


def audit(
    context: typer.Context,
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="LEDGER",
            help="Ledger file, its JSON-lines export, or postgresql://… for one in a database. "
            "`diff OLD NEW` compares two.",
        ),
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[OLD NEW]", help="After diff: the two ledgers.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Where to state ε.", rich_help_panel=_QUESTION)
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="A head that was kept elsewhere: is it in the ledger?", rich_help_panel=_QUESTION
        ),
    ] = None,
    user: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="For this arrival index; default: the largest. Not under a rule of participation.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            help="For a person with so many rows. Not under a rule of participation.",
            rich_help_panel=_QUESTION,
        ),
    ] = 1,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only spends from this day or minute on: 2026-11-01[T10:00Z].",
            rich_help_panel=_LISTED,
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Only spends of this label.", rich_help_panel=_LISTED)
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="Only spends of this mechanism.", rich_help_panel=_LISTED)
    ] = None,
    by: Annotated[
        Literal["time", "label", "mechanism", "user-range"] | None,
        typer.Option(
            help="How spends are added up; default: by mechanism and label.",
            rich_help_panel=_LISTED,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print spends as they are written, until it closes.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import this module first, which runs its code: for kinds of losses of other "
            "packages that register without entry points. May be repeated.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Print every assumption, and what follows from problems.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON only, with everything.", rich_help_panel=_OUTPUT),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one self-contained page to this file.", rich_help_panel=_OUTPUT),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            help="Write a record for the registry of deployments to this file.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="Write the answers to an evaluator's questions to this file.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    about: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of what only a person can say, for these two; --registry makes one if "
            "there is none.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw what was spent over time to this file.", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Recompute the guarantee from only a ledger, and tell what was spent and what remains.

    `privlearn audit diff OLD NEW` tells whether NEW continues OLD, and what was
    spent in between; a ledger that is named so is ./diff.

    Exit codes: 0 verified, or attested; 1 problems; 2 wrong use; 3 a simulation; 4 the ledger
    cannot be read; 6 it needs an extension that is not known; 8 NEW does not continue OLD; 9 a
    field of the record is missing in what a person said.
    """
    import_named(modules or [])
    files = {"html": html, "registry": registry, "evaluation": evaluation, "plot": plot}
    if ledger == "diff" and more is not None:
        _refuse_others(context, "diff compares two ledgers", _OF_DIFF)
        _diff(more, delta=delta, json=json)
    if more is not None:
        fail(f"one ledger is audited at a time, not also {named(more[0])}", BAD_INPUT)
    if ledger == "diff":
        fail("diff needs two ledgers, OLD and NEW; a ledger of that name is ./diff", BAD_INPUT)
    where = ledger if is_address(ledger) else Path(ledger)
    written = [path for path in (html, plot, registry, evaluation) if path is not None]
    for path in written:
        if not path.parent.is_dir():  # before an audit that may take long
            fail(f"{path}: there is no folder {path.parent}", BAD_INPUT)
    if follow:
        _refuse_others(context, "--follow prints spends as they come", _OF_FOLLOW)
        from privlearn.cli.following import follow_ledger

        with _unreadable():
            code = follow_ledger(where, delta=delta, head=head, rounds=rounds, full=full)
        raise typer.Exit(code)
    _check_files(where, {**files, "about": about})
    if html is not None:
        from privlearn.reporting.page import check_page_name

        with clear_errors():
            check_page_name(html)
    from privlearn.reporting.report import look_at, report_of

    with _unreadable():
        looked = look_at(
            where,
            delta=delta,
            head=head,
            user=user,
            rounds=rounds,
            since=since,
            label=label,
            mechanism=mechanism,
        )
    found = report_of(looked)
    if json:
        print_json(found.model_dump_json(indent=2))
    else:
        from privlearn.reporting.terminal import print_report

        print_report(found, console(), by=by, full=full)
    if html is not None:
        from privlearn.reporting.page import write_page

        with clear_errors():
            write_page(found, html)
    if plot is not None:
        from privlearn.reporting.figures import draw_spending
        from privlearn.reporting.report import spending_of

        with clear_errors():
            draw_spending(plot, spending_of(looked), looked.states)
    _write_records(found, registry=registry, evaluation=evaluation, about=about)
    if written and not json:
        from privlearn.reporting.terminal_page import Page

        Page(console()).named("files", ", ".join(map(str, written)))
    raise typer.Exit(found.exit_code)


def _refuse_others(context: typer.Context, what: str, taken: frozenset[str]) -> None:
    """Ends the command if an option was given that would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in taken:
            fail(f"{what}; it takes no {parameter.opts[0]}", BAD_INPUT)


def _check_files(ledger: Path | str, files: Mapping[str, Path | None]) -> None:
    """Ends the command, before anything is written, where two names are of one file."""
    seen = {"the ledger": Path(os.path.realpath(ledger))}
    for name, path in files.items():
        if path is None:
            continue
        where = Path(os.path.realpath(path))
        for other, taken in seen.items():
            if where == taken or (where.exists() and taken.exists() and where.samefile(taken)):
                fail(f"--{name} {path} is the same file as {other}: it stays as it is", BAD_INPUT)
        seen[f"--{name}"] = where


@contextmanager
def _unreadable() -> Iterator[None]:
    """Ends with the exit code of a ledger that cannot be read."""
    try:
        yield
    except LedgerError as error:
        fail(str(error), unread(error))


def _write_records(
    found: Report, *, registry: Path | None, evaluation: Path | None, about: Path | None
) -> None:
    """Writes what others ask for in their own forms."""
    if registry is None and evaluation is None:
        if about is not None:
            fail("--about is for --registry and --evaluation, and neither was asked for", BAD_INPUT)
        return
    from privlearn.reporting.deployment_record import read_about, write_record
    from privlearn.reporting.evaluation import write_evaluation

    with clear_errors():
        if evaluation is not None:
            made = registry is not None and about is not None and not about.exists()
            said = None if about is None or made else read_about(about)
            write_evaluation(found, evaluation, said)
        if registry is not None:
            try:
                write_record(found, registry, about or registry.with_name("about.toml"))
            except IncompleteRecordError as error:
                fail(str(error), INCOMPLETE)
            except UncertifiedRecordError as error:
                fail(str(error), found.exit_code or BAD_INPUT)


def _diff(files: list[str], *, delta: float | None, json: bool) -> NoReturn:
    if len(files) != 2:
        fail(f"diff needs two ledgers, OLD and NEW, not {len(files)}", BAD_INPUT)
    from privlearn.reporting.differences import difference, print_difference

    with _unreadable():
        found = difference(*files, delta=delta)
    if json:
        print_json(found.model_dump_json(indent=2))
    else:
        print_difference(found, console())
    raise typer.Exit(found.exit_code if found.continues else OTHER_LEDGER)
