"""``privlearn schema``: a draft of what the columns of a table are, for a person to fill in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import clear_errors


def schema(
    file: Annotated[Path, typer.Argument(help="A CSV file (also .gz) or Parquet file.")],
) -> None:
    """Write the draft of a schema to the standard output: names and types, and ? for the rest.

    No row is looked at: of a CSV file the first line is read, of a Parquet file its schema. Fill in
    bounds and categories from what is known of a column, never from its rows: a bound that is
    computed from them is somebody's value, outside any guarantee.

    Exit codes: 0 done; 2 wrong use, or a file that cannot be read.
    """
    with clear_errors():
        from privlearn.tables import Schema  # late, as it takes a moment

        typer.echo(Schema.draft(file), nl=False)
