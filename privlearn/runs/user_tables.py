"""Tables to learn from: the user's own CSV or Parquet file, and three that scikit-learn ships.

Row k after the header is user k, in order of arrival.  Columns are scaled only by *declared*
bounds, never by anything computed from the rows.  A row that cannot be used (a missing cell, text,
NaN, a label out of range) stands in the table as NaN and becomes the null record; only
``messages`` say so, which are for the operator.  What can be told from the form of a file (its
header, the types of Parquet columns, that it has no rows at all) is public and raises.

Examples:
    >>> table = read_table(Wanted("diabetes"), rows=100)
    >>> table.inputs().shape
    (100, 11)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import DataError
from privlearn.rows.domains import Array
from privlearn.storage.foreign_files import open_regular
from privlearn.tables.lines import (
    cells_of,
    header_of,
    is_number,
    number,
    numbers,
    physical_lines,
    some_lines,
)
from privlearn.values.user_code import FAILED, attempted, from_outside

CONSTANT: Final = 0.5
"""The last input of every model, in place of an intercept; about as large as a scaled column."""

_NAMED = 30  # Columns that a message lists at most
_BATCH = 8_192
_BEYOND = "the label is out of its declared range"


@dataclass(frozen=True, slots=True)
class Column:
    """A feature and its declared bounds; values beyond them are moved onto them."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read, and all that is declared about it.

    Args:
        data: ``diabetes``, ``breast_cancer``, ``digits``, or the path of a CSV or Parquet file.
        target: the column to predict; default for shipped tables: their own.
        columns: features; default: all columns but the target.
        bounds: (low, high) of columns by name.
        feature_bound: all columns that ``bounds`` does not name lie in ±feature_bound.
        classes: labels of a classification, as text; None for a regression.
        label_bound: |label − label_centre| of a regression is at most this.
        label_centre: default 0, or the shipped table's own.
        seed: of the order in which the rows of a shipped table arrive.
        people: the column that says whose row it is, which is no feature.
    """

    data: str
    target: str | None = None
    columns: tuple[str, ...] | None = None
    bounds: tuple[tuple[str, tuple[float, float]], ...] = ()
    feature_bound: float | None = None
    classes: tuple[str, ...] | None = None
    label_bound: float | None = None
    label_centre: float | None = None
    seed: int = 0
    people: str | None = None

    @property
    def shipped(self) -> bool:
        """Whether scikit-learn brings the table."""
        return self.data in SHIPPED


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order of arrival.

    Attributes:
        columns: the features.
        target: name of the label.
        values: features in the table's own units, shape (n, d); NaN in rows that cannot be used.
        labels: numbers of a regression, class numbers 0..K−1 else, shape (n,); NaN likewise.
        classes: names of the classes, None for a regression.
        label_centre, label_bound: of a regression.
        side_information: what a certificate must say about this table.
        messages: about single users, for the operator only.
        absent: users after the last row, who are in the horizon but not in the file.
        people: whose each row is, None for nobody's; None where each row is a person.

    The length is that of the horizon: rows and absent users.
    """

    columns: tuple[Column, ...]
    target: str
    values: Array
    labels: Array
    classes: tuple[str, ...] | None = None
    label_centre: float = 0.0
    label_bound: float = 1.0
    side_information: tuple[str, ...] = ()
    messages: tuple[tuple[int, str], ...] = ()
    absent: int = 0
    people: tuple[str | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels) + self.absent

    @property
    def dim(self) -> int:
        """Inputs of a model: the columns and the constant."""
        return len(self.columns) + 1

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which rows hold something, shape (n,); private."""
        return np.isfinite(self.labels) & np.isfinite(self.values).all(axis=1)

    def inputs(self) -> Array:
        """Columns from their declared bounds onto [−1, 1], and `CONSTANT`; shape (n, d + 1).

        A public map of every row by itself.
        """
        low = np.array([column.low for column in self.columns])
        high = np.array([column.high for column in self.columns])
        middle, half = (low + high) / 2, (high - low) / 2
        with np.errstate(all="ignore"):  # a warning would tell of sealed data
            scaled = np.clip((self.values - middle) / half, -1.0, 1.0)
        return np.concatenate([scaled, np.full((len(scaled), 1), CONSTANT)], axis=1)

    def targets(self) -> Array:
        """Labels of a regression on [−1, 1], or class numbers; shape (n,)."""
        if self.classes is not None:
            return self.labels
        return (self.labels - self.label_centre) / self.label_bound

    def take(self, rows: slice) -> Table:
        """A part of the users; messages stay with those who are in it, under their old numbers.

        ``rows`` has a step of 1.
        """
        kept = range(len(self))[rows]
        came = range(len(self.labels))[rows]
        return Table(
            self.columns,
            self.target,
            self.values[rows],
            self.labels[rows],
            self.classes,
            self.label_centre,
            self.label_bound,
            self.side_information,
            tuple(message for message in self.messages if message[0] in kept),
            len(kept) - len(came),
            None if self.people is None else self.people[rows],
        )

    def describe(self) -> dict[str, Any]:
        """The public map from a row to the inputs of a model, as JSON."""
        told: dict[str, Any] = {
            "columns": [{"name": c.name, "low": c.low, "high": c.high} for c in self.columns],
            "inputs": "clip(2*(value - low)/(high - low) - 1, -1, 1) per column, then the constant",
            "constant": CONSTANT,
            "target": self.target,
        }
        if self.classes is not None:
            return {**told, "classes": list(self.classes)}
        return {**told, "label_centre": self.label_centre, "label_bound": self.label_bound}


def read_table(wanted: Wanted, rows: int | None = None) -> Table:
    """The first ``rows`` rows.

    Args:
        wanted: what to read.
        rows: a public count; None for all rows of a shipped table.  If a file has fewer, those who
            are missing are absent, and null.

    Raises:
        DataError: the file cannot be read or has no rows, columns are missing or of types that are
            no numbers, or bounds are not declared.
    """
    if wanted.shipped:
        return _shipped_table(wanted, rows)
    if rows is None:
        raise DataError("horizon: the number of users is a public count; state it for your file")
    if wanted.target is None:
        raise DataError("target: name the column of your file that is to be predicted")
    if wanted.data.lower().endswith((".parquet", ".pq")):
        return _parquet(wanted, rows)
    return _csv(wanted, rows)


def _csv(wanted: Wanted, rows: int) -> Table:
    try:
        with open_regular(wanted.data) as file:
            physical = physical_lines(file)
            header = _csv_header(next(physical, b""), wanted.data)
            lines = list(islice(physical, rows))
    except OSError as error:
        raise DataError(f"{wanted.data} cannot be read: {error.strerror}") from None

    def cells(line: bytes) -> Sequence[Any]:
        found = cells_of(line)
        if len(found) != len(header):
            raise ValueError(f"{len(found)} cells, where the header has {len(header)}")
        return found

    records = [partial(cells, line) for line in some_lines(lines, wanted.data)]
    return _assembled(wanted, header, records, rows)


def _csv_header(line: bytes, path: str) -> list[str]:
    """Column names; a message quotes none where they may be the cells of a user."""
    header = header_of(line, path)
    if len(set(header)) < len(header):
        raise DataError(f"{path}: the header must name each column once")
    if any(not name or is_number(name) for name in header):
        raise DataError(
            f"{path}: the first line must name every column; a cell of it is blank or a number, so "
            "that it may be somebody's row"
        )
    return header


def _parquet(wanted: Wanted, rows: int) -> Table:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(
            f"{wanted.data}: Parquet files need pyarrow: pip install 'privlearn[tables]', or "
            "save the table as CSV"
        ) from None
    try:
        with open_regular(wanted.data) as stream:
            file = parquet.ParquetFile(stream)
            names = list(file.schema_arrow.names)
            if len(set(names)) < len(names):
                raise DataError(f"{wanted.data}: the schema must name each column once")
            if file.metadata.num_rows == 0:
                raise DataError(f"{wanted.data}: there is no row; a file must have at least one")
            chosen = _places(wanted, names)
            _check_types(wanted, file.schema_arrow, [names[place] for place in chosen])
            kept = [names[place] for place in chosen] + [str(wanted.target)]
            kept += [] if wanted.people is None else [wanted.people]
            records = list(islice(_records(file.iter_batches(_BATCH, columns=kept), kept), rows))
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{wanted.data} cannot be read: {error.strerror or 'damaged'}") from None
    except BaseException as error:  # whatever pyarrow says may quote somebody's cells
        if from_outside(error):
            raise
        raise DataError(f"{wanted.data}: not a Parquet file that pyarrow can read") from None
    return _assembled(wanted, names, [partial(_as_is, record) for record in records], rows, kept)


def _check_types(wanted: Wanted, schema: Any, features: Sequence[str]) -> None:
    """The schema of a Parquet file is form: what is declared to be no number is refused by name."""
    if wanted.people is not None and not _is_of_ids(schema.field(wanted.people).type):
        raise DataError(
            f"{wanted.data}: column {wanted.people!r} says whose row it is; must be text or "
            "integers: save it as such"
        )
    for name in [*features, str(wanted.target)]:
        kind = schema.field(name).type
        label = name == wanted.target and wanted.classes is not None
        if _is_of_numbers(kind) or (label and _is_of_text(kind)):
            continue
        accepted = "numbers, booleans, text or categories" if label else "numbers or booleans"
        shown = str(kind) if len(str(kind)) <= _NAMED else f"{str(kind)[:_NAMED]}…"
        more = "" if name == wanted.target else ", or leave it out by naming others in columns"
        raise DataError(
            f"{wanted.data}: column {name!r} has type {shown}; must be {accepted}: save it as "
            f"such{more}"
        )
    if wanted.classes is not None:
        _check_classes(wanted, schema.field(wanted.target).type)


def _check_classes(wanted: Wanted, kind: Any) -> None:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if _is_of_text(kind):
        return
    logical = types.is_boolean(kind)
    for name in wanted.classes or ():
        if name not in ("False", "True") if logical else not is_number(name):
            accepted = "say --classes False,True" if logical else "its classes are numbers"
            raise DataError(
                f"classes: {name!r} is no label of column {wanted.target!r} of {wanted.data}, "
                f"which has type {kind}: {accepted}"
            )


def _is_of_ids(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_of_ids(kind.value_type)
    return bool(types.is_integer(kind)) or _is_of_text(kind)


def _is_of_numbers(kind: Any) -> bool:
    from pyarrow import types

    known = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return any(is_one(kind) for is_one in known)


def _is_of_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_of_numbers(kind.value_type) or _is_of_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _records(batches: Any, names: Sequence[str]) -> Iterator[list[Any]]:
    for batch in batches:
        columns = [_listed(batch.column(batch.schema.get_field_index(name))) for name in names]
        yield from map(list, zip(*columns, strict=True))


def _listed(column: Any) -> list[Any]:
    found = attempted(column.to_pylist)
    if found is not FAILED:
        return list(found)
    # one cell that Python cannot hold must not cost the others
    cells = (attempted(_cell, column, i) for i in range(len(column)))
    return [None if cell is FAILED else cell for cell in cells]


def _cell(column: Any, i: int) -> Any:
    return column[i].as_py()


def _as_is(record: Sequence[Any]) -> Sequence[Any]:
    return record


def _assembled(
    wanted: Wanted,
    names: Sequence[str],
    records: Sequence[Callable[[], Sequence[Any]]],
    rows: int,
    kept: Sequence[str] | None = None,
) -> Table:
    """The table of ``records``, each of which may fail and is then null, and no other is."""
    chosen = _places(wanted, names)
    columns = _columns(wanted, [names[place] for place in chosen])
    cells_of = list(names if kept is None else kept)
    places = [cells_of.index(column.name) for column in columns]
    target = cells_of.index(str(wanted.target))
    person = None if wanted.people is None else cells_of.index(wanted.people)
    people: list[str | None] = [None] * len(records)
    label = _label_reader(wanted)
    asked = [column.name for column in columns]
    values = np.full((len(records), len(columns)), np.nan)
    labels = np.full(len(records), np.nan)
    messages: list[tuple[int, str]] = []
    for user, record in enumerate(records):
        try:
            cells = list(record())
            if person is not None:
                cell = cells[person]
                people[user] = str(cell) or None if isinstance(cell, str | int) else None
            found = numbers(cells, places, asked)
            labels[user] = label(cells[target])
            values[user] = found
        except BaseException as error:  # whatever is wrong with it concerns this user only
            if from_outside(error):
                raise
            messages.append((user, " ".join(str(error).split())[:200]))
    said = ("the names of the columns and their declared bounds are public",)
    return Table(
        columns,
        str(wanted.target),
        values,
        labels,
        wanted.classes,
        wanted.label_centre or 0.0,
        1.0 if wanted.label_bound is None else wanted.label_bound,
        said,
        tuple(messages),
        rows - len(records),
        None if person is None else tuple(people),
    )


def _places(wanted: Wanted, names: Sequence[str]) -> list[int]:
    _check_named("target", [str(wanted.target)], names, wanted.data)
    if wanted.people is not None:
        _check_named("people", [wanted.people], names, wanted.data)
        if wanted.people == wanted.target:
            raise DataError(f"people: {wanted.people!r} is the target")
    if wanted.columns is None:
        features = [name for name in names if name not in (wanted.target, wanted.people)]
    else:
        features = list(wanted.columns)
        _check_named("columns", features, names, wanted.data)
        if wanted.target in features:
            raise DataError(f"columns: {wanted.target!r} is the target and cannot be a feature")
        if wanted.people in features:
            raise DataError(f"columns: {wanted.people!r} says whose row it is and is no feature")
    if not features:
        raise DataError(f"{wanted.data}: there is no column beside the target")
    return [list(names).index(name) for name in features]


def _check_named(what: str, wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(map(repr, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
        raise DataError(f"{what} = {missing[0]!r}: no column of {where}; its columns are {shown}")


def _columns(wanted: Wanted, names: Sequence[str]) -> tuple[Column, ...]:
    declared = dict(wanted.bounds)
    _check_named("bounds", list(declared), names, wanted.data)
    missing = [name for name in names if name not in declared]
    if missing and wanted.feature_bound is None:
        shown = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        raise DataError(
            f"bounds: none declared for {shown}; say --bounds 'name=low:high,…' or --feature-bound "
            "B for all. They are public constants and never computed from the data"
        )
    reach = wanted.feature_bound or 1.0
    return tuple(Column(name, *declared.get(name, (-reach, reach))) for name in names)


def _label_reader(wanted: Wanted) -> Callable[[Any], float]:
    classes = wanted.classes
    if classes is not None:
        known = {name: float(place) for place, name in enumerate(classes)}
        numbers = {float(name): known[name] for name in classes if is_number(name)}

        def class_of(cell: Any) -> float:
            text = str(cell).strip()
            if text in known:
                return known[text]
            if cell is not None and is_number(text) and float(text) in numbers:
                return numbers[float(text)]
            raise ValueError(f"the label must be one of {', '.join(classes[:_NAMED])}")

        return class_of
    if wanted.label_bound is None:
        raise DataError(
            "label_bound: declare how far labels may be from --label-centre (a public constant, "
            "never computed from the data), or --classes for a classification"
        )
    centre, bound = wanted.label_centre or 0.0, wanted.label_bound

    def number_of(cell: Any) -> float:
        try:
            value = number(cell)
        except ValueError as error:
            raise ValueError(f"column {wanted.target!r}: {error}") from None
        if abs(value - centre) > bound:
            raise ValueError("the label is out of its declared range")
        return value

    return number_of


@dataclass(frozen=True, slots=True)
class Shipped:
    """A table of scikit-learn with public constants.

    Attributes:
        load: the function of `sklearn.datasets`, and its arguments.
        target: name that is given to its label.
        bounds: (low, high) of each column, or one pair for all.
        classes: all classes, or None for a regression.
        default: those that count unless others are asked for.
        label_centre, label_bound: of a regression.
        origin: where the bounds come from.
    """

    load: tuple[str, Mapping[str, Any]]
    target: str
    bounds: tuple[tuple[float, float], ...]
    origin: str
    classes: tuple[str, ...] | None = None
    default: tuple[str, ...] | None = None
    label_centre: float = 0.0
    label_bound: float = 1.0


_DIABETES: Final = (
    (20, 80),  # age, years
    (1, 2),  # sex
    (15, 40),  # body mass index, kg/m²
    (65, 125),  # mean blood pressure, mmHg
    (100, 280),  # total cholesterol, mg/dl
    (40, 200),  # LDL, mg/dl
    (20, 80),  # HDL, mg/dl
    (1, 7),  # total cholesterol over HDL
    (3.2, 6.2),  # log of triglycerides
    (60, 125),  # blood sugar, mg/dl
)

_CANCER: Final = (
    # means of radius, texture, perimeter, area, smoothness, compactness, concavity, concave points,
    # symmetry and fractal dimension
    *((5, 25), (10, 30), (40, 160), (0, 1500), (0.05, 0.15)),
    *((0, 0.25), (0, 0.3), (0, 0.15), (0.1, 0.25), (0.05, 0.08)),
    # their standard errors
    *((0, 1), (0, 2.5), (0, 7), (0, 100), (0, 0.015)),
    *((0, 0.06), (0, 0.1), (0, 0.025), (0, 0.04), (0, 0.008)),
    # the worst of each
    *((5, 30), (10, 40), (40, 200), (0, 2000), (0.08, 0.2)),
    *((0, 0.6), (0, 0.8), (0, 0.25), (0.1, 0.5), (0.05, 0.13)),
)

SHIPPED: Final[dict[str, Shipped]] = {
    "diabetes": Shipped(
        load=("load_diabetes", {"scaled": False}),
        target="progression",
        bounds=_DIABETES,
        origin="round numbers about the usual clinical ranges",
        label_centre=150.0,
        label_bound=200.0,
    ),
    "breast_cancer": Shipped(
        load=("load_breast_cancer", {}),
        target="benign",
        bounds=_CANCER,
        origin="round numbers within the minima and maxima of scikit-learn's description",
        classes=("0", "1"),
    ),
    "digits": Shipped(
        load=("load_digits", {}),
        target="digit",
        bounds=((-6, 16),),  # pixels are 0..16; their middle is put at 5, as most are dark
        origin="the documented range 0..16 of pixels, extended so that 5 is the middle",
        classes=tuple("0123456789"),
        default=("0", "1", "2"),
    ),
}
"""Shipped tables; the bounds were chosen with these data in view, and certificates say so."""


def _shipped_table(wanted: Wanted, rows: int | None) -> Table:
    from sklearn import datasets  # slow to import

    about = SHIPPED[wanted.data]
    function, arguments = about.load
    found = getattr(datasets, function)(**arguments)
    names = [str(name).replace(" ", "_") for name in found.feature_names]
    values = np.asarray(found.data, dtype=np.float64)
    labels = np.asarray(found.target, dtype=np.float64)
    if wanted.target not in (None, about.target):
        raise DataError(
            f"target = {wanted.target!r}: the target of {wanted.data!r} is {about.target!r}"
        )
    of_target = Wanted(wanted.data, about.target, wanted.columns)
    chosen = _places(of_target, [*names, about.target])
    declared = about.bounds if len(about.bounds) > 1 else about.bounds * len(names)
    if wanted.feature_bound is not None:
        declared = ((-wanted.feature_bound, wanted.feature_bound),) * len(names)
    bounds = {names[i]: declared[i] for i in chosen} | dict(wanted.bounds)
    kept = tuple(names[place] for place in chosen)
    _check_named("bounds", list(dict(wanted.bounds)), kept, wanted.data)
    columns = tuple(Column(name, *bounds[name]) for name in kept)
    side = [
        f"the bounds of the shipped table {wanted.data!r} ({about.origin}) were chosen with these "
        "data in view, and so were the default radius, the constant input and tofw's constants"
    ]
    classes: tuple[str, ...] | None = None
    if about.classes is not None:
        classes = wanted.classes or about.default or about.classes
        _check_named("classes", classes, about.classes, wanted.data)
        places = [about.classes.index(name) for name in classes]
        part = np.isin(labels, places)
        values, labels = values[part], labels[part]
        labels = np.array([places.index(int(label)) for label in labels], dtype=np.float64)
        if len(places) < len(about.classes):
            side.append(
                f"the population is the rows of the classes {', '.join(classes)}; how many there "
                "are is public"
            )
    elif wanted.classes is not None:
        raise DataError(f"classes: {wanted.data!r} is a regression; its labels are numbers")
    if rows is not None and rows > len(labels):
        raise DataError(f"horizon = {rows}: {wanted.data!r} has {len(labels)} such rows")
    order = np.random.default_rng([wanted.seed, 6]).permutation(len(labels))[:rows]
    labels = labels[order]
    centre = about.label_centre if wanted.label_centre is None else wanted.label_centre
    bound = about.label_bound if wanted.label_bound is None else wanted.label_bound
    beyond = np.zeros(len(labels), dtype=bool)
    if classes is None:
        beyond = np.abs(labels - centre) > bound
        labels = np.where(beyond, np.nan, labels)
    return Table(
        columns,
        about.target,
        values[order][:, chosen],
        labels,
        classes,
        centre,
        bound,
        tuple(side),
        tuple((int(user), _BEYOND) for user in np.flatnonzero(beyond)),
    )
