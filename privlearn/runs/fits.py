"""``privlearn fit`` and ``privlearn predict``: from a file to a model, and from a model to answers.

A fit leaves a public and a private folder, as every run.  Forecasts are about single rows: they are
for whoever has these rows, and nobody paid for them to be published.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from privlearn.accountants import Certificate
from privlearn.errors import DataError
from privlearn.estimators.base import PrivateEstimator
from privlearn.estimators.choice_models import PublicChoiceModel, items_to_predict
from privlearn.estimators.displays import (
    CalibrationDisplay,
    CoefficientsDisplay,
    GuaranteeDisplay,
    HeldOutDisplay,
)
from privlearn.estimators.linear import PrivateLinearRegression
from privlearn.estimators.logistic import PrivateLogisticRegression
from privlearn.estimators.models import PublicModel, read_model
from privlearn.estimators.reward_models import PublicRewardModel
from privlearn.estimators.sparse import PrivateSparseRegression
from privlearn.ledger import iterate_records, write_export
from privlearn.losses.budget_texts import parse_budget
from privlearn.reporting.certificates import certificate_markdown
from privlearn.reporting.figures import can_draw, save
from privlearn.runs.common import Folders, Outcome, write_csv, write_json
from privlearn.runs.null_records import NullRecords
from privlearn.tables.readers import read
from privlearn.tables.schema import Schema
from privlearn.tables.table import Table, public_split

ESTIMATORS: Final[dict[str, type[PrivateEstimator]]] = {
    "linear": PrivateLinearRegression,
    "logistic": PrivateLogisticRegression,
    "sparse": PrivateSparseRegression,
}


_LEAST_SCORED: Final = 2
"""Usable rows, below which there is no R²."""


class FitOptions(NamedTuple):
    """What ``privlearn fit`` is asked for."""

    data: Path
    schema: Path
    budget: str
    method: str = "auto"
    rows: int | None = None
    """A public number of rows; None for as many as the file has."""
    held_out: float = 0.0
    """Share of the rows that only score the fit."""
    simulate_noise: int | None = None


def run_fit(kind: str, options: FitOptions, out: Path) -> Outcome:
    """Learns from a file within a budget; leaves a public and a private folder.

    Raises:
        DataError, ValueError: the schema, the form of the file, or an option; nothing was spent.
    """
    schema = Schema.load(options.schema)
    estimator = ESTIMATORS[kind](
        parse_budget(options.budget),
        schema=schema,
        method=options.method,
        simulate_noise=options.simulate_noise,
    )
    learn, held_out = _split(options, read(options.data, schema, rows=options.rows))
    folders = Folders.create(out)
    try:
        estimator.set_params(ledger=folders.ledger).fit(learn)
    except BaseException:
        for path in (folders.public, folders.private, out):  # where nothing was begun
            with suppress(OSError):
                path.rmdir()
        raise
    certificate = estimator.certificate_
    assert certificate is not None, "the fit has a ledger of its own"
    _write_public(folders, estimator, certificate)
    nulls = NullRecords.of(len(learn), learn.messages, absent=learn.absent)
    nulls.write(folders.private)
    lines = [*nulls.lines(rule=learn.people is not None), *_scored(folders, estimator, held_out)]
    return Outcome(
        certificate,
        repr(estimator.coef_table_).splitlines(),
        lines,
        folders,
        "ledger, certificate, model, pictures",
    )


def _split(options: FitOptions, table: Table) -> tuple[Table, Table | None]:
    if not options.held_out:
        return table, None
    learn, held_out = public_split(table, options.held_out)
    return learn, held_out


def _write_public(folders: Folders, estimator: PrivateEstimator, certificate: Certificate) -> None:
    public = folders.public
    estimator.save(public / "model.json")
    (public / "certificate.json").write_text(certificate.model_dump_json(indent=1), "utf-8")
    (public / "certificate.md").write_text(certificate_markdown(certificate), "utf-8")
    write_export(public / "ledger.jsonl", iterate_records(folders.ledger))
    if not can_draw():
        return
    CoefficientsDisplay.from_estimator(estimator).save(public / "coefficients.png")
    if not certificate.not_certified:
        GuaranteeDisplay.from_estimator(estimator).save(public / "guarantee.png")


def _scored(folders: Folders, estimator: PrivateEstimator, held_out: Table | None) -> list[str]:
    if held_out is None:
        return []
    rows = int(held_out.usable.sum())
    if rows < _LEAST_SCORED:  # the exit code must not tell of it
        write_json(folders.private / "score.json", {"rows": rows, "score": None})
        return [f"{rows} rows that were held out at random can be used: too few for a score"]
    score = estimator.score(held_out)
    write_json(folders.private / "score.json", {"rows": rows, "score": score})
    regression = isinstance(estimator, PrivateLinearRegression)
    if can_draw():
        display = HeldOutDisplay if regression else CalibrationDisplay
        drawn = display.from_estimator(estimator, held_out).plot().figure_
        save(drawn, folders.private / "fit.png")
    name = "R²" if regression else "accuracy"
    return [f"{name} on {rows:,} rows that were held out at random: {score:.3f}"]


class Forecast(NamedTuple):
    """What ``privlearn predict`` tells its operator."""

    rows: int
    unusable: Counter[str]
    """Rows with cells that cannot be used, by what was wrong."""


def run_predict(model: Path, data: Path, out: Path) -> Forecast:
    """Writes an answer for every line of a file, in their order.

    Raises:
        DataError: the model or the file is not of its form, or ``out`` exists.
    """
    public = read_model(model)
    if out.exists():
        raise DataError(f"{os.fspath(out)} exists: forecasts never overwrite a file")
    if isinstance(public, PublicChoiceModel):
        table = items_to_predict(data, public.schema_)
    else:
        table = read(data, public.schema_.without_target())
    write_csv(out, *_answers(public, table))
    return Forecast(len(table), Counter(reason for _, reason in table.messages))


def _answers(
    model: PublicModel | PublicChoiceModel | PublicRewardModel, table: Table
) -> tuple[list[str], Any]:
    if isinstance(model, PublicRewardModel):
        means = model.predict(table).reshape(len(table), -1).tolist()
        names = [f"{model.reward} of {action}" for action in model.actions_ or ()]
        return names or [model.reward], ([f"{mean:.6g}" for mean in row] for row in means)
    name = str(model.schema_.target)
    answers = model.predict(table).tolist()
    if isinstance(model, PublicChoiceModel):
        chances = model.predict_proba(table).tolist()
        return [name, "probability"], zip(answers, (f"{p:.6g}" for p in chances), strict=True)
    if model.schema_.classes is None:
        return [name], ([f"{answer:.10g}"] for answer in answers)
    chances = model.predict_proba(table).tolist()
    header = [name, *(f"probability of {label}" for label in model.classes_.tolist())]
    rows = zip(answers, chances, strict=True)
    return header, ([answer, *(f"{p:.6g}" for p in each)] for answer, each in rows)
