"""``privlearn audit``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from privlearn.cli.output import (
    BAD_INPUT,
    INCOMPLETE,
    OTHER_LEDGER,
    check_drawn,
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
    from privlearn.reporting.report import Looked


_asked = partial(typer.Option, rich_help_panel="What is asked")
_listed = partial(typer.Option, rich_help_panel="Which spends are listed")
_output = partial(typer.Option, rich_help_panel="Where it goes")
_OF_DIFF = frozenset({"ledger", "more", "delta", "json", "modules"})
_OF_FOLLOW = frozenset({"ledger", "follow", "delta", "head", "rounds", "full", "modules"})


_Ledger = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="Ledger file, its JSON-lines export, or postgresql://… for one in a database. "
        "`diff OLD NEW` compares two.",
    ),
]
_More = Annotated[
    list[str] | None, typer.Argument(metavar="[OLD NEW]", help="After diff: the two ledgers.")
]
_Delta = Annotated[float | None, _asked(help="Where to state ε.")]
_Head = Annotated[str | None, _asked(help="A head that was kept elsewhere: is it in the ledger?")]
_User = Annotated[
    int | None,
    _asked(
        min=0,
        help="For this arrival index; default: the largest. Not under a rule of participation.",
    ),
]
_Rounds = Annotated[
    int, _asked(min=1, help="For a person with so many rows. Not under a rule of participation.")
]
_Since = Annotated[
    str | None, _listed(help="Only spends from this day or minute on: 2026-11-01[T10:00Z].")
]
_Label = Annotated[str | None, _listed(help="Only spends of this label.")]
_Mechanism = Annotated[str | None, _listed(help="Only spends of this mechanism.")]
_By = Annotated[
    Literal["time", "label", "mechanism", "user-range"] | None,
    _listed(help="How spends are added up; default: by mechanism and label."),
]
_Follow = Annotated[
    bool, typer.Option("--follow", help="Print spends as they are written, until it closes.")
]
_Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, which runs its code: for kinds of losses of other "
        "packages that register without entry points. May be repeated.",
    ),
]
_Full = Annotated[
    bool,
    _output(
        "--full", help="Print everything, with every assumption, and what follows from problems."
    ),
]
_Json = Annotated[bool, _output("--json", help="Print JSON only, with everything.")]
_Html = Annotated[Path | None, _output(help="Write one self-contained page to this file.")]
_Registry = Annotated[
    Path | None, _output(help="Write a record for the registry of deployments to this file.")
]
_Evaluation = Annotated[
    Path | None, _output(help="Write the answers to an evaluator's questions to this file.")
]
_About = Annotated[
    Path | None,
    _output(
        help="TOML file of what only a person can say, for these two; --registry makes one if "
        "there is none."
    ),
]
_Plot = Annotated[Path | None, _output(help="Draw what was spent over time to this file.")]


def audit(
    context: typer.Context,
    ledger: _Ledger,
    more: _More = None,
    delta: _Delta = None,
    head: _Head = None,
    user: _User = None,
    rounds: _Rounds = 1,
    since: _Since = None,
    label: _Label = None,
    mechanism: _Mechanism = None,
    by: _By = None,
    follow: _Follow = False,
    modules: _Modules = None,
    full: _Full = False,
    json: _Json = False,
    html: _Html = None,
    registry: _Registry = None,
    evaluation: _Evaluation = None,
    about: _About = None,
    plot: _Plot = None,
) -> None:
    """Recompute the guarantee from only a ledger, and tell what was spent and what remains.

    `privlearn audit diff OLD NEW` tells whether NEW continues OLD, and what was
    spent in between; a ledger that is named so is ./diff.

    Exit codes: 0 verified, or attested; 1 problems; 2 wrong use; 3 a simulation; 4 the ledger
    cannot be read; 6 it needs an extension that is not known; 8 NEW does not continue OLD; 9 a
    field of the record is missing in what a person said.
    """
    import_named(modules or [])
    if ledger == "diff" and more is not None:
        _refuse_others(context, "diff compares two ledgers", _OF_DIFF)
        _diff(more, delta=delta, json=json)
    where = _one_ledger(ledger, more)
    files = {"html": html, "registry": registry, "evaluation": evaluation, "plot": plot}
    written = [path for path in (html, plot, registry, evaluation) if path is not None]
    for path in written:
        if not path.parent.is_dir():  # before an audit that may take long
            fail(f"{path}: there is no folder {path.parent}", BAD_INPUT)
    if follow:
        _refuse_others(context, "--follow prints spends as they come", _OF_FOLLOW)
        _follow(where, delta=delta, head=head, rounds=rounds, full=full)
    check_drawn(files["plot"])
    _check_files(where, {**files, "about": about})
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
    _write_pictures(looked, found, html=html, plot=plot)
    _write_records(found, registry=registry, evaluation=evaluation, about=about)
    if written and not json:
        from privlearn.reporting.terminal_page import Page

        Page(console()).named("files", ", ".join(map(str, written)))
    raise typer.Exit(found.exit_code)


def _one_ledger(ledger: str, more: list[str] | None) -> Path | str:
    if more is not None:
        fail(f"one ledger is audited at a time, not also {named(more[0])}", BAD_INPUT)
    if ledger == "diff":
        fail("diff needs two ledgers, OLD and NEW; a ledger of that name is ./diff", BAD_INPUT)
    return ledger if is_address(ledger) else Path(ledger)


def _follow(where: Path | str, **asked: Any) -> NoReturn:
    from privlearn.cli.following import follow_ledger

    with _unreadable():
        code = follow_ledger(where, **asked)
    raise typer.Exit(code)


def _refuse_others(context: typer.Context, what: str, taken: frozenset[str]) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in taken:
            fail(f"{what}; it takes no {parameter.opts[0]}", BAD_INPUT)


def _check_files(ledger: Path | str, files: Mapping[str, Path | None]) -> None:
    seen = {"the ledger": Path(os.path.realpath(ledger))}
    for name, path in files.items():
        if path is None:
            continue
        where = Path(os.path.realpath(path))
        for other, taken in seen.items():
            if where == taken or (where.exists() and taken.exists() and where.samefile(taken)):
                fail(f"--{name} {path} is the same file as {other}: it stays as it is", BAD_INPUT)
        seen[f"--{name}"] = where
    if (html := files["html"]) is not None:
        from privlearn.reporting.page import check_page_name

        with clear_errors():
            check_page_name(html)


def _write_pictures(looked: Looked, found: Report, *, html: Path | None, plot: Path | None) -> None:
    with clear_errors():
        if html is not None:
            from privlearn.reporting.page import write_page

            write_page(found, html)
        if plot is not None:
            from privlearn.reporting.figures import draw_spending
            from privlearn.reporting.report import spending_of

            draw_spending(plot, spending_of(looked), looked.states)


@contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        fail(str(error), unread(error))


def _write_records(
    found: Report, *, registry: Path | None, evaluation: Path | None, about: Path | None
) -> None:
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
