"""What a file holds that a run would read, before anything is spent: for the operator only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from privlearn.errors import DataError
from privlearn.runs import tables
from privlearn.runs.arm_configs import SIMULATED, LogConfig
from privlearn.runs.arm_logs import ArmLog, log_of
from privlearn.runs.choice_logs import logged
from privlearn.runs.common import Folders
from privlearn.runs.configs import ChoiceConfig, TableConfig
from privlearn.runs.glm_configs import GLMConfig
from privlearn.runs.glm_logs import glm_log
from privlearn.runs.null_records import NullRecords
from privlearn.runs.records import Records
from privlearn.tables import Number

_NOT_PROTECTED = """\
NOT PROTECTED: this was computed from the records themselves, without noise, and is for the operator
only. Bounds, columns and classes that are chosen by it tell of these records, and no guarantee
covers that: take them from units, or from what is known without these data.
"""


def look(config: TableConfig | ChoiceConfig | LogConfig | GLMConfig, out: Path) -> list[str]:
    """Reads what a run with these settings would read; no ledger is made, and nothing spent."""
    what = "feature"
    if isinstance(config, LogConfig | GLMConfig) and config.data == SIMULATED:
        raise DataError("data = 'simulated': visitors are made up; no file is read")
    if isinstance(config, LogConfig):
        what, names, rewards = "arm", list(config.names()), log_of(config)
        nulls = NullRecords.of(rewards.visitors, rewards.messages.items())
        lines = [*_records(nulls), *_arms(rewards)]
    elif isinstance(config, GLMConfig):
        visits = glm_log(config)
        names = list(visits.records.encoding.schema.features)
        told = visits.gather([range(visits.visits)]).messages
        nulls = NullRecords.of(visits.visits, told, absent=visits.visits - visits.came)
        lines = [*_records(nulls), *_columns(visits.records)]
    elif isinstance(config, TableConfig):
        table, _ = tables.split(config, config.seed)
        names = list(table.schema.features)
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
        f"{config.data} was read: {len(names)} {what}{'' if len(names) == 1 else 's'} ({shown})",
        "nothing was spent, and no ledger was made",
        f"{path} says which records would count, and why others not; it is not protected",
    ]


def _records(nulls: NullRecords) -> Iterator[str]:
    yield f"records: {nulls.users - nulls.count:,} of {nulls.users:,} would count"
    for reason, count in nulls.by_reason():
        yield f"  {count:,}: {reason}"
    if nulls.absent:
        yield f"  {len(nulls.absent):,}: the file has no rows for them"


def _arms(log: ArmLog) -> Iterator[str]:
    yield "rewards of these records, by arm:"
    for name, rewards in log.by_arm().items():
        there = rewards[np.isfinite(rewards)]
        mean = f"; mean {there.mean():.4g}" if len(there) else ""
        yield f"  {name}: {len(there):,} of {len(rewards):,} there{mean}"


def _columns(records: Records) -> Iterator[str]:
    table, usable = records.came, records.usable
    if not usable.any():
        return
    yield "columns of these records (values beyond the declared bounds are moved onto them):"
    width = max(len(name) for name in records.schema.features)
    for name in records.schema.features:
        kind, cells = records.schema.columns[name], table.column(name)[usable]
        there = cells[np.isfinite(cells)]
        if isinstance(kind, Number) and len(there):
            beyond = np.count_nonzero((there < kind.low) | (there > kind.high))
            yield (
                f"  {name:{width}}  {kind.low:g} to {kind.high:g} declared; {beyond:,} of "
                f"{len(there):,} beyond; {there.min():g} to {there.max():g} there"
            )
        else:
            yield f"  {name:{width}}  {len(there):,} of {len(cells):,} there"


def _labels(records: Records) -> Iterator[str]:
    name, usable = str(records.schema.target), records.usable
    kind, labels = records.schema.columns[name], records.came.column(name)[usable]
    if not len(labels):
        return
    if isinstance(kind, Number):
        yield (
            f"target {name}: {kind.low:g} to {kind.high:g} declared; {labels.min():g} to "
            f"{labels.max():g} there"
        )
        return
    yield f"target {name}:"
    for number, label in enumerate(records.classes or ()):
        yield f"  {label}: {np.count_nonzero(labels == number):,}"
