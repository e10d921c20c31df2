"""``privlearn people``: what is public of a registry of people, and requests to be forgotten.

An id is read and hashed; it is never printed, logged or put into a message.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import BAD_INPUT, clear_errors, fail

people_app = typer.Typer(
    help="The registry of the people who come back: see docs/people.md.", no_args_is_help=True
)

_File = Annotated[Path, typer.Argument(metavar="REGISTRY", help="The registry's file.")]


_CLOCK = {
    "arrivals": "next slot",
    "timetable": "next slot (not public: it may follow from who came, until time has passed)",
}


@people_app.command("show")
def show(registry: _File) -> None:
    """Print what is public of a registry: its name, its rule and its clock.

    Exit codes: 0 printed; 2 the registry cannot be read.
    """
    from privlearn.people import People

    with clear_errors(), People.open(registry) as people:
        facts = {
            "registry": people.id,
            "rule": people.rule,
            "accountant": people.accountant,
            _CLOCK[people.rule.clock]: people.clock,
            "serving only": "yes" if people.serving_only else "no",
        }
        for name, value in facts.items():
            typer.echo(f"{name}: {'none' if value is None else value}")


@people_app.command("forget")
def forget(
    registry: _File,
    person: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Whom to forget. Left out, ids are read from standard input, one a line, so that "
            "none stands in the history of a shell.",
        ),
    ] = None,
    integer: Annotated[
        bool, typer.Option("--integer", help="The registry's ids are integers, not text.")
    ] = False,
) -> None:
    """Learn nothing more of somebody, for good; docs/people.md says what that promises.

    Exit codes: 0 forgotten; 2 wrong use, or the registry cannot be used.
    """
    from privlearn.people import People

    given = [person] if person is not None else [line.rstrip("\r\n") for line in sys.stdin]
    if not given or not all(given):
        fail("id: there is none, or an empty line: nobody was forgotten", BAD_INPUT)
    ids = [_whole(text) for text in given] if integer else given
    with clear_errors(), People.open(registry) as people:
        try:
            for each in ids:
                people.forget(each)
        except TypeError as error:  # it names kinds only; the first id tells, so nothing is done
            fail(f"{error}; nobody was forgotten", BAD_INPUT)
    typer.echo(
        f"{'1 person' if len(ids) == 1 else f'{len(ids):,} persons'}: no further visit is learned, "
        "and the registry keeps no slot. What was released stays; a keyed hash stays, too, or the "
        "rule would begin anew"
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        fail("id: with --integer each must be a whole number: nobody was forgotten", BAD_INPUT)
