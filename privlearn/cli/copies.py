"""``privlearn ledger export`` and ``postgres-schema``."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import BAD_INPUT, clear_errors, fail, of_system, unread
from privlearn.errors import LedgerError, LedgerUnreadableError


def export(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="Ledger file, or postgresql://….")
    ],
    to: Annotated[Path, typer.Argument(metavar="TO", help="File of JSON lines.")],
) -> None:
    """Write the entries of a ledger as JSON lines, which can be audited anywhere.

    It holds no released values; `backup` copies them as well. Exit codes: 0
    written; 2 something else stands there; 4 the ledger cannot be read.
    """
    from privlearn.ledger import iterate_records, write_export

    if to.is_dir() or not to.parent.is_dir():
        fail(f"{to} is a folder, or there is none for it", BAD_INPUT)
    if to.exists() and Path(ledger).exists() and to.samefile(ledger):
        fail(f"{to} is the ledger itself: it stays as it is", BAD_INPUT)
    try:
        records = iterate_records(ledger)
        first = next(records, None)  # before anything is overwritten
        write_export(to, chain([] if first is None else [first], records))
    except LedgerUnreadableError as error:
        fail(str(error), unread(error))
    except LedgerError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(of_system(error), BAD_INPUT)


def postgres_schema(
    writer: Annotated[
        list[str] | None,
        typer.Option(help="Role that may write ledgers: INSERT and SELECT. May be repeated."),
    ] = None,
    reader: Annotated[
        list[str] | None, typer.Option(help="Role that may audit them. May be repeated.")
    ] = None,
) -> None:
    """Print the SQL that makes the tables of ledgers in PostgreSQL, for `psql`.

    A database needs them once; the roles must be there. Exit codes: 0 printed; 2
    the extra `postgres` is not installed.
    """
    from privlearn.ledger.addresses import extra_needed

    with clear_errors(), extra_needed():
        from privlearn.ledger.postgres_schema import script

        typer.echo(script(writers=writer or (), readers=reader or ()), nl=False)
