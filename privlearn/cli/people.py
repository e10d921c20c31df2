"""``privlearn people``: what is public of a registry of people, and requests to be forgotten.

An id is read and hashed; it is never printed, logged or put into a message.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privlearn.cli.output import BAD_INPUT, clear_errors, fail

people_app = typer.Typer(
    help="The registry of the people who come back: see docs/people.md.", no_args_is_help=True
)

if TYPE_CHECKING:
    from privlearn.people import People

_File = Annotated[
    Path,
    typer.Argument(
        metavar="REGISTRY",
        help="The registry's file; the socket of the ledger's owner, which keeps it; or, with "
        "--key, the address of its ledger, postgresql://….",
    ),
]
_Key = Annotated[
    Path | None, typer.Option(help="In PostgreSQL: the file of the registry's secret key.")
]
_Name = Annotated[str, typer.Option(help="In PostgreSQL: which of the ledger's registries.")]


@contextmanager
def _opened(registry: Path, key: Path | None, name: str) -> Iterator[People]:
    from privlearn.ledger.addresses import extra_needed, is_address
    from privlearn.people import People

    with clear_errors(), ExitStack() as stack:
        if is_address(registry):
            if key is None:
                fail(
                    "--key: a registry in PostgreSQL is opened with the file of its key", BAD_INPUT
                )
            stack.enter_context(extra_needed())
            people = People.postgres(os.fspath(registry), key=key, name=name)
        elif registry.exists() and stat.S_ISSOCK(registry.stat().st_mode):
            people = People.connect(registry)
        else:
            people = People.open(registry)
        yield stack.enter_context(people)


_CLOCK = {
    "arrivals": "next slot",
    "timetable": "next slot (not public: it may follow from who came, until time has passed)",
}


@people_app.command("show")
def show(registry: _File, key: _Key = None, name: _Name = "people") -> None:
    """Print what is public of a registry: its name, its rule and its clock.

    Exit codes: 0 printed; 2 the registry cannot be read.
    """
    with _opened(registry, key, name) as people:
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
    key: _Key = None,
    name: _Name = "people",
) -> None:
    """Learn nothing more of somebody, for good; docs/people.md says what that promises.

    Exit codes: 0 forgotten; 2 wrong use, or the registry cannot be used.
    """
    given = [person] if person is not None else [line.rstrip("\r\n") for line in sys.stdin]
    if not given or not all(given):
        fail("id: there is none, or an empty line: nobody was forgotten", BAD_INPUT)
    ids = [_whole(text) for text in given] if integer else given
    with _opened(registry, key, name) as people:
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


@people_app.command("postgres-schema")
def postgres_schema(
    keeper: Annotated[
        list[str] | None,
        typer.Option(
            help="Role that may keep registries: SELECT, INSERT and UPDATE. May be repeated."
        ),
    ] = None,
) -> None:
    """Print the SQL that makes the tables of registries in PostgreSQL, for `psql`.

    It comes after that of `privlearn ledger postgres-schema`; the roles must be there.

    Exit codes: 0 printed; 2 wrong use, or the extra `postgres` is missing.
    """
    from privlearn.ledger.addresses import extra_needed

    with clear_errors(), extra_needed():
        from privlearn.people.postgres_schema import script

        typer.echo(script(keepers=keeper or ()), nl=False)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        fail("id: with --integer each must be a whole number: nobody was forgotten", BAD_INPUT)
