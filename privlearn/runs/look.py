"""What a file holds that a run would read, before anything is spent: for the operator only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from privlearn.errors import DataError
from privlearn.runs import tables
from privlearn.runs.choice_logs import logged
from privlearn.runs.common import Folders
from privlearn.runs.configs import ChoiceConfig, TableConfig
from privlearn.runs.null_records import NullRecords
from privlearn.runs.user_tables import Table

_NOT_PROTECTED = """\
NOT PROTECTED: this was computed from the records themselves, without noise, and is for the operator
only. Bounds, columns and classes that are chosen by it tell of these records, and no guarantee
covers that: take them from units, or from what is known without these data.
"""


def look(config: TableConfig | ChoiceConfig, out: Path) -> list[str]:
    """Reads what a run with these settings would read; no ledger is made, and nothing spent."""
    if isinstance(config, TableConfig):
        table, _ = tables.split(config)
        names = [column.name for column in table.columns]
        nulls = NullRecords.of(len(table), table.messages, absent=table.absent)
        lines = [*_records(nulls), *_columns(table), *_labels(table)]
    else:
        if config.task != "logged":
            raise DataError(f"task = {config.task!r}: its people are simulated; no file is read")
        log = logged(config)
        names = list(log.names)
        found = log.gather([range(log.users)])
        nulls = NullRecords.of(log.users + log.absent, found.messages, absent=log.absent)
        lines = list(_records(nulls))
    path = Folders.write_look(out, "\n".join([_NOT_PROTECTED, *lines]) + "\n")
    shown = ", ".join(names[:30]) + (", …" if len(names) > 30 else "")
    return [
        f"{config.data} was read: {len(names)} feature{'' if len(names) == 1 else 's'} ({shown})",
        "nothing was spent, and no ledger was made",
        f"{path} says which records would count, and why others not; it is not protected",
    ]


def _records(nulls: NullRecords) -> Iterator[str]:
    yield f"records: {nulls.users - nulls.count:,} of {nulls.users:,} would count"
    for reason, count in nulls.by_reason():
        yield f"  {count:,}: {reason}"
    if nulls.absent:
        yield f"  {len(nulls.absent):,}: the file has no rows for them"


def _columns(table: Table) -> Iterator[str]:
    values = table.values[table.usable]
    if not len(values):
        return
    yield "columns of these records (values beyond the declared bounds are moved onto them):"
    width = max(len(column.name) for column in table.columns)
    for column, cells in zip(table.columns, values.T, strict=True):
        beyond = np.count_nonzero((cells < column.low) | (cells > column.high))
        yield (
            f"  {column.name:{width}}  {column.low:g} to {column.high:g} declared; "
            f"{beyond:,} of {len(cells):,} beyond; {cells.min():g} to {cells.max():g} there"
        )


def _labels(table: Table) -> Iterator[str]:
    labels = table.labels[table.usable]
    if not len(labels):
        return
    if table.classes is None:
        low, high = (table.label_centre + sign * table.label_bound for sign in (-1, 1))
        yield (
            f"target {table.target}: {low:g} to {high:g} declared; {labels.min():g} to "
            f"{labels.max():g} there"
        )
        return
    yield f"target {table.target}:"
    for number, name in enumerate(table.classes):
        yield f"  {name}: {np.count_nonzero(labels == number):,}"
