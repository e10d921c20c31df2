"""``privlearn fit`` and ``privlearn predict``: models of a table that a schema describes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from privlearn.cli.output import clear_errors, console
from privlearn.cli.run import ends_early, show_outcome

fit_app = typer.Typer(help="Fit a private model to a file within a budget.", no_args_is_help=True)

_DATA = typer.Argument(metavar="FILE", help="CSV (also .gz) or Parquet file, a row per record.")
_EXIT_CODES = (
    "Exit codes: 0 done; 2 wrong use, data that cannot be learned from, or a disk that is full; "
    "130 stopped. A fit that has begun says what was spent."
)

_NEW_FOLDER = "a fit that was cut off does not go on: a new one is paid again, in another folder"


def _add(name: str, what: str) -> None:
    def fit(
        data: Annotated[Path, _DATA],
        schema: Annotated[
            Path,
            typer.Option(help="TOML or JSON: what the columns are (`privlearn schema FILE`)."),
        ],
        budget: Annotated[str, typer.Option(help="1,1e-5 (ε and δ), mu=… or rho=…")],
        out: Annotated[Path, typer.Option(help="New folder for the fit.")] = Path("fit"),
        method: Annotated[str, typer.Option(help="auto, or another of the estimator.")] = "auto",
        rows: Annotated[
            int | None,
            typer.Option(min=1, help="A public number of rows; fewer are filled with null ones."),
        ] = None,
        held_out: Annotated[
            float,
            typer.Option(
                min=0, max=0.99, help="Share of rows, drawn at random, that score the fit only."
            ),
        ] = 0.0,
        simulate_noise: Annotated[
            int | None, typer.Option(min=0, help="Seed of noise that protects nobody.")
        ] = None,
    ) -> None:
        with clear_errors(), ends_early(out, _NEW_FOLDER, resume=False):
            fits: Any = import_module("privlearn.runs.fits")  # late: it imports learners
            options = fits.FitOptions(data, schema, budget, method, rows, held_out, simulate_noise)
            outcome = fits.run_fit(name, options, out)
        show_outcome(outcome)

    fit_app.command(name, help=f"{what}\n\n{_EXIT_CODES}")(fit)


_add("linear", "Fit a linear regression: the schema's target is a number.")
_add("sparse", "Fit a linear regression of many columns of which few matter, in one pass.")
_add("logistic", "Fit a logistic regression: the target is a category of two or more labels.")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="model.json of a fit.")],
    data: Annotated[Path, _DATA],
    out: Annotated[Path, typer.Option(help="New CSV file for the answers.")] = Path(
        "forecasts.csv"
    ),
) -> None:
    """Answer every line of a file by a saved model, in order; a line without usable cells too.

    Needs no budget and no ledger. The answers are about single rows: they are for whoever has these
    rows. Exit codes: 0 written; 2 no model, no such columns, or a file that exists.
    """
    with clear_errors():
        fits: Any = import_module("privlearn.runs.fits")
        forecast = fits.run_predict(model, data, out)
    screen = console()
    screen.print(f"{forecast.rows:,} answers in {out}", markup=False, highlight=False)
    screen.print("for the operator only:", style="dim")
    if not forecast.unusable:
        screen.print("  all cells could be used")
    for reason, count in forecast.unusable.most_common(20):
        text = f"  {count:,} answered as if it were missing: {reason}"
        screen.print(text, markup=False, highlight=False)
