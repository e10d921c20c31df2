"""``privlearn describe``: statistics of a table that a schema describes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from privlearn.cli.output import clear_errors
from privlearn.cli.run import ends_early, show_outcome

_NEW_FOLDER = "statistics that were cut off do not go on: new ones are paid, in another folder"


def describe(
    data: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV (also .gz) or Parquet file, a row a person.")
    ],
    schema: Annotated[
        Path, typer.Option(help="TOML or JSON: what the columns are (`privlearn schema FILE`).")
    ],
    budget: Annotated[str, typer.Option(help="1,1e-6 (ε and δ), mu=… or rho=…")],
    by: Annotated[
        str | None, typer.Option(help="A category or boolean: one description for each value.")
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder.")] = Path("described"),
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="A public number of rows; fewer are filled with null ones."),
    ] = None,
    simulate_noise: Annotated[
        int | None, typer.Option(min=0, help="Seed of noise that protects nobody.")
    ] = None,
) -> None:
    """Count, mean, sd and quartiles of numbers, counts of categories, each with its interval.

    All from one budget. Exit codes: 0 done; 2 wrong use, data that cannot be described, or a disk
    that is full; 130 stopped. What has begun says what was spent.
    """
    with clear_errors(), ends_early(out, _NEW_FOLDER, resume=False):
        descriptions: Any = import_module(
            "privlearn.runs.descriptions"
        )  # late: it imports learners
        options = descriptions.DescribeOptions(data, schema, budget, by, rows, simulate_noise)
        outcome = descriptions.run_describe(options, out)
    show_outcome(outcome)
