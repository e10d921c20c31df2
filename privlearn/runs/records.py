"""The records of a run on a table: read by a schema, scaled, and split by public chance.

The options of ``privlearn run`` that say what columns are become a schema here.  All of it is
public; a row that cannot be used stands as NaN and becomes the null record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import DataError
from privlearn.rows.domains import Array
from privlearn.runs.configs import TableConfig, check_interval
from privlearn.runs.glm_configs import GLMConfig
from privlearn.runs.shipped_tables import SHIPPED, shipped_rows, shipped_schema, with_classes
from privlearn.tables import Category, Encoding, Number, Schema, Table, public_split, read
from privlearn.tables.files import TableFile
from privlearn.tables.schema import Kind

CONSTANT: Final = 0.5
"""The last input of every model, in place of an intercept; about as large as a scaled column."""

_NAMED: Final = 30  # Columns that a message lists at most
_DECLARED: Final = ("columns", "bounds", "feature_bound", "classes", "label_bound", "label_centre")
_SPLIT: Final = "split.json"


@dataclass(frozen=True, slots=True)
class Records:
    """Rows in order of arrival, and the public map from each to the inputs of a model.

    Attributes:
        table: the rows.
        encoding: the map.
        side_information: what a certificate must say about them.
    """

    table: Table
    encoding: Encoding
    side_information: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def dim(self) -> int:
        """Inputs of a model, with the constant."""
        return self.encoding.dim + 1

    @property
    def schema(self) -> Schema:
        """What the columns are."""
        return self.table.schema

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Labels of a classification, as text."""
        labels = self.schema.classes
        return None if labels is None else tuple(map(str, labels))

    @property
    def came(self) -> Table:
        """Without those who did not come; private."""
        return self.table.take(slice(0, len(self.table) - self.table.absent))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which of the rows that came hold something, shape (m,); private."""
        return self.came.usable

    @property
    def people(self) -> tuple[str | None, ...] | None:
        """Whose each of them is; None where each row is a person; private."""
        return self.came.people

    @property
    def messages(self) -> list[tuple[int, str]]:
        """(row, what makes it null), for the operator only."""
        return self.table.messages

    @property
    def absent(self) -> int:
        """How many did not come, after all others; private."""
        return self.table.absent

    def inputs(self) -> Array:
        """Inputs of the rows that came, and `CONSTANT`, shape (m, d); private."""
        scaled = self.encoding.inputs(self.came)
        return np.concatenate([scaled, np.full((len(scaled), 1), CONSTANT)], axis=1)

    def targets(self) -> Array:
        """Labels of a regression on [−1, 1], or class numbers, shape (m,); private."""
        return self.encoding.targets(self.came)

    def take(self, rows: Any) -> Records:
        """Some of them, by public indices."""
        return replace(self, table=self.table.take(rows))

    def describe(self) -> dict[str, Any]:
        """The public map from a row to the inputs of a model, as JSON."""
        return {**self.encoding.to_dict(), "constant": CONSTANT}


def records_of(config: TableConfig, seed: int | None = None) -> tuple[Records, Records]:
    """Rows to learn from, and rows that score the fit.

    Args:
        config: what to read, and all that is declared about it.
        seed: of the split of a file; None splits by position.

    Raises:
        DataError: the file cannot be read or has no rows, columns are missing or of types that
            cannot be used, or bounds are not declared.
    """
    if config.data in SHIPPED:
        return _shipped(config)
    assert config.horizon is not None
    schema = _schema_file(config) if config.schema_file else _schema_of_options(config)
    rows, held = config.horizon + (config.held_out or 0), config.held_out or 0
    table = read(config.data, schema, rows=rows)
    said = ["the names of the columns and their declared bounds are public"]
    if schema.looked_at_data:
        said.append("whoever wrote the schema had looked at these data")
    records = Records(table, Encoding(schema), tuple(said))
    if seed is None or not held:
        return records.take(slice(0, rows - held)), records.take(slice(rows - held, rows))
    learn, apart = public_split(rows, held, seed=seed)
    return records.take(learn), records.take(apart)


def split_seed(config: TableConfig, out: Path, *, resume: bool) -> int | None:
    """The seed of the split; None of a run that was begun with a split by position, or without."""
    if config.data in SHIPPED or not config.held_out:
        return None
    if resume and (out / "public" / "ledger.db").exists():
        path = out / "public" / _SPLIT
        return int(json.loads(path.read_text("utf-8"))["seed"]) if path.exists() else None
    return config.seed


def write_split(config: TableConfig, seed: int | None, public: Path) -> None:
    """Writes which rows are held out, before any is learned from."""
    if seed is None:
        return
    assert config.horizon is not None
    assert config.held_out is not None
    rows = config.horizon + config.held_out
    told = {
        "rows": rows,
        "held_out": config.held_out,
        "seed": seed,
        "which": "the first held_out of numpy.random.default_rng(seed).permutation(rows)",
    }
    (public / _SPLIT).write_text(json.dumps(told, indent=1), "utf-8")


def _schema_file(config: TableConfig) -> Schema:
    given = [name for name in _DECLARED if getattr(config, name)]
    if given:
        raise DataError(f"{given[0]}: is declared in the schema; give one of them")
    schema = Schema.load(str(config.schema_file))
    if config.target not in (None, schema.target):
        raise DataError(f"target = {config.target!r}: the schema has {schema.target!r}")
    if schema.target is None:
        raise DataError(f"{config.schema_file}: target: name the column to predict in the schema")
    if schema.person not in (None, config.people):
        raise DataError(
            f"people: the schema says that {schema.person!r} is the person's id: say so with "
            f"people = {schema.person!r} and most"
        )
    classes = schema.classes
    if config.learner == "hdb" and classes is None:
        raise DataError(f"target = {schema.target!r} is a regression: hdb needs classes")
    if config.learner != "hdb" and classes is not None and len(classes) > 2:
        raise DataError(f"target = {schema.target!r}: {config.learner} needs two classes")
    about = schema.to_dict() | ({"person": config.people} if config.people else {})
    return Schema.from_dict(about)


def _schema_of_options(config: TableConfig) -> Schema:
    assert config.target is not None
    roles = {"target": config.target} | ({"people": config.people} if config.people else {})
    columns: dict[str, Kind] = {**features_of(config, roles)}
    columns[config.target] = _target(config)
    return Schema(columns, target=config.target, person=config.people)


def features_of(config: TableConfig | GLMConfig, roles: Mapping[str, str]) -> dict[str, Number]:
    """The features of a file, as options declare them.

    Args:
        config: that names the file and declares bounds.
        roles: columns that are no features, by the options that name them.

    Raises:
        DataError: a column is missing or has two roles, or its bounds are not declared.
    """
    file = TableFile(config.data, Schema({}))
    names = list(file.header().column_names)
    wanted = [*roles.values(), *(config.columns or ())]
    sure = all(name in names for name in wanted) and config.columns is not None
    if not sure and file.may_be_a_row(names):
        raise DataError(
            f"{config.data}: the first line must name every column; a cell of it is blank or a "
            "number, so that it may be somebody's row. If it names them, name those that are read "
            "with columns"
        )
    taken: dict[str, str] = {}
    for role, name in roles.items():
        check_named(role, [name], names, config.data)
        if name in taken:
            raise DataError(f"{role}: {name!r} is the {taken[name]}")
        taken[name] = role
    features = [name for name in names if name not in taken]
    if config.columns is not None:
        features = list(config.columns)
        check_named("columns", features, names, config.data)
        for name in features:
            if name in taken:
                raise DataError(f"columns: {name!r} is the {taken[name]} column, and no feature")
    if not features:
        raise DataError(f"{config.data}: there is no column beside the {', the '.join(roles)}")
    return _numbers(config, features)


def _numbers(config: TableConfig | GLMConfig, features: Sequence[str]) -> dict[str, Number]:
    check_named("bounds", list(config.bounds), features, config.data)
    for name, pair in config.bounds.items():
        check_interval(f"bounds of {name!r}", pair)
    missing = [name for name in features if name not in config.bounds]
    if missing and config.feature_bound is None:
        shown = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        raise DataError(
            f"bounds: none declared for {shown}; say --bounds 'name=low:high,…', --feature-bound B "
            "for all, or --schema FILE. They are public constants and never computed from the data"
        )
    reach = config.feature_bound or 1.0
    pairs = [config.bounds.get(name, (-reach, reach)) for name in features]
    return {name: Number(*pair) for name, pair in zip(features, pairs, strict=True)}


def _target(config: TableConfig) -> Number | Category:
    if config.classes is not None:
        return Category(config.classes)
    if config.label_bound is None:
        raise DataError(
            "label_bound: declare how far labels may be from --label-centre (a public constant, "
            "never computed from the data), or --classes for a classification"
        )
    centre = config.label_centre or 0.0
    return Number(centre - config.label_bound, centre + config.label_bound)


def check_named(what: str, wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    """Raises DataError for a name that no column has."""
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(map(repr, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
        raise DataError(f"{what} = {missing[0]!r}: no column of {where}; its columns are {shown}")


def _shipped(config: TableConfig) -> tuple[Records, Records]:
    name, whole = config.data, shipped_schema(config.data)
    if config.schema_file:
        raise DataError(f"schema: {name!r} has its own; declare bounds, columns or classes")
    if config.target not in (None, whole.target):
        raise DataError(f"target = {config.target!r}: the target of {name!r} is {whole.target!r}")
    classes = config.classes
    if classes is None and config.learner != "hdb" and name == "digits":
        classes = ("0", "1")
    schema = _overridden(config, with_classes(name, whole, classes))
    table, said = shipped_rows(name, schema, config.seed)
    default = 0 if config.learner == "hdb" else len(table) // 5
    held = default if config.held_out is None else config.held_out
    users = len(table) - held if config.horizon is None else config.horizon
    if not 0 < users <= len(table) - held:
        raise DataError(
            f"horizon = {config.horizon}, held_out = {held}: {name!r} has {len(table)} rows"
        )
    records = Records(table, Encoding(schema), tuple(said))
    return records.take(slice(0, users)), records.take(slice(users, users + held))


def _overridden(config: TableConfig, schema: Schema) -> Schema:
    """The schema of a shipped table with what was declared otherwise."""
    target, features = str(schema.target), schema.features
    chosen = features if config.columns is None else config.columns
    check_named("columns", chosen, features, config.data)
    check_named("bounds", list(config.bounds), chosen, config.data)
    columns: dict[str, Kind] = {name: schema.columns[name] for name in chosen}
    if config.feature_bound is not None:
        columns = dict.fromkeys(chosen, Number(-config.feature_bound, config.feature_bound))
    columns |= {name: Number(*pair) for name, pair in config.bounds.items()}
    kind = schema.columns[target]
    if isinstance(kind, Number):
        middle, half = (kind.low + kind.high) / 2, (kind.high - kind.low) / 2
        centre = middle if config.label_centre is None else config.label_centre
        reach = half if config.label_bound is None else config.label_bound
        kind = Number(centre - reach, centre + reach)
    return Schema({**columns, target: kind}, target=target)
