"""One way into a table: frames of pandas, polars and Arrow, arrays, columns, and files.

The types of a frame's columns, its names and its number of rows are form, which is public and
raises.  Its cells are contents: one that cannot be read is NaN, and costs no other record.  A
pandas column of objects or text is contents, too, as pandas takes its type from the cells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from privlearn.errors import DataError
from privlearn.rows.domains import Array
from privlearn.rows.tabular import block_from, objects
from privlearn.tables.cells import (
    LabelPlaces,
    days_reader,
    number_reader,
    person_of,
    read_each,
    truth,
)
from privlearn.tables.schema import Boolean, Category, Date, Kind, Number, Schema
from privlearn.tables.table import Table, joined
from privlearn.values.user_code import FAILED, attempted

_BATCH: Final = 65_536
_DISTINCT: Final = 4_096
_DAY: Final = 86_400.0


def read(
    source: Any,
    schema: Schema,
    *,
    rows: int | None = None,
    target: Any = None,
    people: Any = None,
) -> Table:
    """The records of a frame, an array or a file.

    Args:
        source: a pandas, polars or Arrow frame, an array of shape (n, d) whose columns are those of
            the schema in their order, a mapping from names to columns, or the path of a CSV (also
            .gz) or Parquet file.
        schema: what its columns are.
        rows: a public number of records; if there are fewer, the others are absent, and null.
        target, people: columns that ``source`` does not hold, shape (n,); they stand for those
            that the schema names.

    Raises:
        DataError: a column is missing, stands there twice, or has a type that its kind never takes;
            no rows.
        TypeError: nothing that is a table.
    """
    table = joined(schema, batches(source, schema, target=target, people=people))
    if not len(table):
        raise DataError("source: there is no row; a table must have at least one")
    return table if rows is None else table.padded(rows)


def batches(
    source: Any, schema: Schema, *, target: Any = None, people: Any = None
) -> Iterator[Table]:
    """The same in parts; types and names are checked before the first."""
    columns = _columns_of(source, schema, target is not None, people is not None)
    if target is not None and schema.target is not None:
        columns[schema.target] = _one_column("target", target)
    if people is not None:
        columns[_PEOPLE] = _one_column("people", people)
    elif schema.person is not None:
        columns[_PEOPLE] = columns.pop(schema.person)
    lengths = {name: len(column) for name, column in columns.items()}
    n = max(lengths.values(), default=0)
    for name, length in lengths.items():
        if length != n:
            raise DataError(f"{_said(name)}: {length} rows, where others have {n}")
    readers: dict[str | None, _Reader] = {}
    for name, column in columns.items():
        kind = None if name is _PEOPLE else schema.columns[str(name)]
        readers[name] = _reader(_said(name), kind, column)
    for start in range(0, n, _BATCH):
        yield _batch(schema, readers, start, min(start + _BATCH, n))


_PEOPLE: Final = None
_FORMS: Final = {
    **dict.fromkeys("biuf", "numbers"),
    **dict.fromkeys("UT", "text"),
    "M": "dates",
    "O": "cells",
}
_Reader = Callable[[int, int], Any]


def _batch(schema: Schema, readers: Mapping[str | None, _Reader], start: int, stop: int) -> Table:
    found = {name: readers[name](start, stop) for name in readers}
    people = found.pop(_PEOPLE, None)
    return Table(schema, {str(n): c for n, c in found.items()}, stop - start, people=people)


def _said(name: str | None) -> str:
    return "people" if name is _PEOPLE else f"column {name!r}"


def _wanted(schema: Schema, has_target: bool, has_people: bool) -> list[str]:
    found = [*schema.features]
    if schema.target is not None and not has_target:
        found.append(schema.target)
    if schema.person is not None and not has_people:
        found.append(schema.person)
    return found


def _columns_of(
    source: Any, schema: Schema, has_target: bool, has_people: bool
) -> dict[str | None, Any]:
    """The wanted columns by name: series of narwhals, or arrays of shape (n,)."""
    wanted = _wanted(schema, has_target, has_people)
    if isinstance(source, str | os.PathLike):
        raise DataError(f"{os.fspath(source)!s}: files are not read yet")
    if isinstance(source, Mapping):
        _check_names(wanted, list(map(str, source)), "the mapping")
        return {name: _one_column(_said(name), source[name]) for name in wanted}
    frame, names = _frame_of(source)
    if frame is not None:
        _check_names(wanted, names, "the frame")
        return {name: frame[frame.columns[names.index(name)]] for name in wanted}
    array = _array_of(source)
    order = [name for name in schema.columns if name in wanted]
    order += [name for name in wanted if name not in order]
    if array.shape[1] != len(order):
        raise DataError(
            f"source: {array.shape[1]} columns; must be {len(order)}, in the order of the schema: "
            f"{_listed(order)}"
        )
    return {name: array[:, place] for place, name in enumerate(order)}


def _frame_of(source: Any) -> tuple[Any, list[str]]:
    """A frame of narwhals whose columns are named by their places, and the names they had."""
    import narwhals  # late, as whoever hands in arrays does not need it

    native = source
    if type(source).__module__.partition(".")[0] == "pyarrow" and hasattr(source, "to_pandas"):
        import pyarrow

        if isinstance(source, pyarrow.RecordBatch):
            native = pyarrow.Table.from_batches([source])
    names: list[str] = []
    if callable(getattr(native, "set_axis", None)):
        names = [str(name) for name in native.columns]
        native = native.set_axis([str(i) for i in range(len(names))], axis=1)
    elif callable(getattr(native, "rename_columns", None)):
        names = [str(name) for name in native.column_names]
        native = native.rename_columns([str(i) for i in range(len(names))])
    frame = attempted(narwhals.from_native, native, pass_through=True)
    if isinstance(frame, narwhals.LazyFrame):
        raise TypeError("source is a lazy frame: hand over its rows, .collect() them")
    if not isinstance(frame, narwhals.DataFrame):
        return None, []
    return frame, names or list(frame.columns)


def _array_of(source: Any) -> Any:
    found = block_from("source", source)
    if not isinstance(found, np.ndarray):
        rows = [list(row) if isinstance(row, list | tuple | np.ndarray) else [row] for row in found]
        widths = [len(row) for row in rows]
        width = max(set(widths), key=widths.count, default=0)
        found = np.empty((len(rows), width), dtype=object)
        for i, row in enumerate(rows):  # a row of another length is its own record's contents
            found[i] = row if len(row) == width else [None] * width
    if found.ndim != 2:
        raise DataError(
            f"source: an array of shape {found.shape}; must be (n, d), one row per record"
        )
    return found


def _one_column(what: str, values: Any) -> Any:
    import narwhals

    series = attempted(narwhals.from_native, values, series_only=True, pass_through=True)
    if isinstance(series, narwhals.Series):
        return series
    found = block_from(what, values)
    if isinstance(found, list | tuple):
        return objects(found)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise DataError(f"{what}: shape {found.shape}; must be (n,)")
    return found


def _check_names(wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    for name in wanted:
        count = names.count(name)
        if count != 1:
            found = "is not there" if not count else f"stands there {count} times"
            raise DataError(
                f"column {name!r} {found}; the columns of {where} are {_listed(names)}. Name it "
                "as it is there, or take it out of the schema"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:30])) + (", …" if len(names) > 30 else "")


def _reader(what: str, kind: Kind | None, column: Any) -> _Reader:
    """A function from a range of rows to their cells, after a check of the column's type."""
    form = form_of(column)
    check_form(what, kind, form, str(column.dtype))
    places = LabelPlaces(kind.values, other=kind.other) if isinstance(kind, Category) else None
    each = cell_reader(kind, places)

    def cells(start: int, stop: int) -> Any:
        part = column[start:stop]
        if kind is None:
            return tuple(_people_of(part))
        if form == "numbers":
            return of_numbers(kind, _floats(part), places)
        if form == "dates" and isinstance(kind, Date):
            return _days(kind, part)
        return _of_cells(each, _listed_cells(part))

    return cells


def check_form(what: str, kind: Kind | None, form: str, dtype: str) -> None:
    """Whether a column of such cells ("numbers", "text", "dates" or "cells") can be of a kind.

    Raises:
        DataError: it never can.
    """
    accepted = {
        Number: ("numbers or booleans", ("numbers",)),
        Category: ("text, numbers, booleans or categories", ("numbers", "text")),
        Boolean: ("booleans, numbers or text", ("numbers", "text")),
        Date: ("dates, or text such as 2015-01-31", ("dates", "text")),
        type(None): ("text or whole numbers", ("numbers", "text")),
    }[type(kind)]
    if form != "cells" and form not in accepted[1]:
        declared = "a person's id" if kind is None else type(kind).__name__
        raise DataError(
            f"{what} has type {dtype[:30]}; it is declared as {declared}, which takes "
            f"{accepted[0]}: convert it, or change the schema"
        )
    if (
        isinstance(kind, Category)
        and form == "numbers"
        and not LabelPlaces(kind.values, other=kind.other).numeric
    ):
        raise DataError(
            f"{what} has type {dtype[:30]}, and none of its declared values {_listed(kind.values)} "
            "is a number: no cell can ever match"
        )


def cell_reader(kind: Kind | None, places: LabelPlaces | None) -> Callable[[Any], float]:
    """A function from one cell to its value in `Table.column`, or NaN."""
    if isinstance(kind, Boolean):
        return truth
    if isinstance(kind, Date):
        return days_reader(kind.start)
    return number_reader() if places is None else places.of_cell


def of_numbers(kind: Kind, values: Array, places: LabelPlaces | None) -> Array:
    """Cells of a column whose type is numeric, shape (n,)."""
    if places is not None:
        return places.of_numbers(values)
    if isinstance(kind, Boolean):
        return np.where((values == 0) | (values == 1), values, np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def names_and_forms(source: Any) -> list[tuple[str, str]]:
    """Names of the columns of a frame and what their types are, also "booleans"."""
    frame, names = _frame_of(source)
    if frame is None:
        raise TypeError("source: must be a frame with named columns, or the path of a file")
    found = []
    for name, place in zip(names, frame.columns, strict=True):
        logical = str(frame[place].dtype) == "Boolean"
        found.append((name, "booleans" if logical else form_of(frame[place])))
    return found


def form_of(column: Any) -> str:
    """What the type of a column allows: "numbers", "text", "dates", "cells" (anything), or ""."""
    import narwhals

    if isinstance(column, np.ndarray):
        return _FORMS.get(column.dtype.kind, "")
    kind = column.dtype
    if kind.is_numeric() or kind == narwhals.Boolean:
        return "numbers"
    if kind in (narwhals.Object, narwhals.Unknown):
        return "cells"
    if kind == narwhals.String:
        return "cells" if column.implementation.is_pandas_like() else "text"
    if kind in (narwhals.Categorical, narwhals.Enum):
        return "text"
    return "dates" if kind in (narwhals.Date, narwhals.Datetime) else ""


@np.errstate(all="ignore")  # a warning would tell of sealed data
def _floats(part: Any) -> Array:
    if isinstance(part, np.ndarray):
        return np.asarray(part, dtype=np.float64)
    found = attempted(_plain_floats, part)
    if found is FAILED:  # such as an integer that no float is equal to
        return _of_cells(number_reader(), _listed_cells(part))
    return found


def _plain_floats(series: Any) -> Array:
    import narwhals

    if not series.null_count():
        return np.array(series.to_numpy(), dtype=np.float64)
    series = series.cast(narwhals.Float64)
    holes = series.is_null().to_numpy()
    found = np.array(series.fill_null(0.0).to_numpy(), dtype=np.float64)
    found[holes] = np.nan
    return found


def _days(kind: Date, part: Any) -> Array:
    if isinstance(part, np.ndarray):
        stamps = part
    else:
        found = attempted(_stamps, part)
        if found is FAILED:
            return _of_cells(days_reader(kind.start), _listed_cells(part))
        stamps = found
    start = np.datetime64(kind.start.isoformat(), "us")
    seconds = (stamps.astype("datetime64[us]") - start) / np.timedelta64(1, "s")
    return np.asarray(seconds / _DAY, dtype=np.float64)  # NaT is NaN


def _stamps(series: Any) -> Any:
    import narwhals

    if getattr(series.dtype, "time_zone", None) is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    found = series.cast(narwhals.Datetime("us")).to_numpy()
    return np.asarray(found, dtype="datetime64[us]")


def _people_of(part: Any) -> list[str | None]:
    found = [attempted(person_of, cell) for cell in _listed_cells(part)]
    return [None if person is FAILED else person for person in found]


def _listed_cells(part: Any) -> list[Any]:
    if isinstance(part, np.ndarray):
        return list(part.tolist())
    found = attempted(part.to_list)
    if found is not FAILED:
        return list(found)
    single = (attempted(part.__getitem__, i) for i in range(len(part)))
    return [None if cell is FAILED else cell for cell in single]


def _of_cells(read_one: Callable[[Any], float], cells: Sequence[Any]) -> Array:
    """``read_one`` of every cell, shape (n,), once for equal texts."""
    known: dict[str, float] = {}
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if type(cell) is str:
            value = known.get(cell)
            if value is None:
                value = float(read_each(read_one, [cell])[0])
                if len(known) < _DISTINCT:
                    known[cell] = value
            found[i] = value
        elif cell is not None:
            found[i] = read_each(read_one, [cell])[0]
    return found
