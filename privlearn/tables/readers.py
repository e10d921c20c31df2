"""One way into a table: frames of pandas, polars and Arrow, arrays, columns, and files.

The types of a frame's columns, its names and its number of rows are form, which is public and
raises.  Its cells are contents: one that cannot be read is NaN, and costs no other record.  A
pandas column of objects or text is contents, too, as pandas takes its type from the cells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from privlearn.errors import DataError
from privlearn.rows.domains import Array
from privlearn.rows.tabular import block_from, objects
from privlearn.tables.cells import (
    days_reader,
    number_reader,
    truth,
)
from privlearn.tables.columns import Marks, people_in, text_numbers, values_in
from privlearn.tables.encoding import Encoding
from privlearn.tables.files import TableFile
from privlearn.tables.schema import Boolean, Category, Date, Kind, Number, Schema
from privlearn.tables.table import Table, joined
from privlearn.values.user_code import FAILED, attempted

_BATCH: Final = 32_768
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
    parts = batches(source, schema, target=target, people=people)
    table = joined(schema, parts if rows is None else _at_least(rows, parts))
    _check_rows(table)
    return table if rows is None else table.padded(rows)


class Encoded(NamedTuple):
    """What a model learns from, without the table it was read from; all of it private.

    Attributes:
        inputs: shape (n, dim), as of `Encoding.inputs`.
        targets: shape (n,), as of `Encoding.targets`; None without a target.
        people: whose each row is; None where each row is a person.
        messages: (row, what makes it null).
    """

    inputs: Array
    targets: Array | None
    people: tuple[str | None, ...] | None
    messages: list[tuple[int, str]]

    def __repr__(self) -> str:
        return f"<Encoded: {len(self.inputs)} rows>"


def read_encoded(
    source: Any, encoding: Encoding, *, target: Any = None, people: Any = None
) -> Encoded:
    """As `read`, and encoded part by part, so that no second copy of the table is held.

    Raises:
        DataError, TypeError: as `read`.
    """
    schema, n = encoding.schema, 0
    inputs, targets = np.empty((0, encoding.dim)), np.empty(0)
    whose: list[str | None] = []
    messages: list[tuple[int, str]] = []
    for table in batches(source, schema, target=target, people=people):
        stop = n + len(table)
        # large arrays grow in place, where a list of parts would be in memory twice when joined
        inputs.resize((stop, encoding.dim), refcheck=False)
        inputs[n:] = encoding.inputs(table)
        if schema.target is not None:
            targets.resize(stop, refcheck=False)
            targets[n:] = encoding.targets(table)
        whose += table.people or ()
        messages += ((n + row, text) for row, text in table.messages)
        named, n = table.people is not None, stop
    if not n:
        raise DataError(_NO_ROW)
    labels = None if schema.target is None else targets
    return Encoded(inputs, labels, tuple(whose) if named else None, messages)


def batches(
    source: Any, schema: Schema, *, target: Any = None, people: Any = None
) -> Iterator[Table]:
    """The same in parts; names and types are checked before the first."""
    if isinstance(source, str | os.PathLike):
        if target is not None or people is not None:
            raise ValueError("target, people: name the columns of the file in the schema")
        yield from _of_file(TableFile(source, schema), schema)
        return
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
    yield from _parts(schema, columns, n, {})


def _of_file(file: TableFile, schema: Schema) -> Iterator[Table]:
    wanted = _wanted(schema, False, False)
    frame, names = _frame_of(file.header())
    missing = any(name not in names for name in wanted)
    if missing and file.may_be_a_row(names):
        raise DataError(
            f"{file.path}: the first line must name every column; a cell of it is blank or a "
            "number, so that it may be somebody's row, and it does not name all that the schema "
            "names"
        )
    _check_names(wanted, names, file.path)
    for table, broken in chain([(file.header(), {})], file.batches(wanted)):
        frame, names = _frame_of(table)
        columns: dict[str | None, Any] = {
            name: frame[frame.columns[names.index(name)]] for name in wanted
        }
        if schema.person is not None:
            columns[_PEOPLE] = columns.pop(schema.person)
        yield from _parts(schema, columns, len(frame), broken, csv=file.csv)


def _parts(
    schema: Schema,
    columns: Mapping[str | None, Any],
    n: int,
    broken: Mapping[int, str],
    *,
    csv: bool = False,
) -> Iterator[Table]:
    marks = Marks(schema.decimal, schema.thousands)
    readers: dict[str | None, _Reader] = {}
    for name, column in columns.items():
        kind = None if name is _PEOPLE else schema.columns[str(name)]
        readers[name] = _reader(_said(name), kind, column, marks, csv=csv)
    for start in range(0, n, _BATCH):
        stop = min(start + _BATCH, n)
        found = {name: readers[name](start, stop) for name in readers}
        people = found.pop(_PEOPLE, None)
        cells = {str(name): values for name, values in found.items()}
        here = {row - start: text for row, text in broken.items() if start <= row < stop}
        yield Table(schema, cells, stop - start, people=people, broken=here)


def _at_least(rows: int, parts: Iterable[Table]) -> Iterator[Table]:
    """The first parts that have so many rows."""
    for table in parts:
        yield table
        rows -= len(table)
        if rows <= 0:
            return


_NO_ROW: Final = "there is no row; a table must have at least one"
_PEOPLE: Final = None
_NUMBERS: Final = ("numbers", "reals")
_LABELS: Final = (*_NUMBERS, "text", "codes")
_ACCEPTED: Final[dict[type, tuple[str, tuple[str, ...]]]] = {
    Number: ("numbers or booleans", _NUMBERS),
    Category: ("text, numbers, booleans or categories", _LABELS),
    Boolean: ("booleans, numbers or text", _LABELS),
    Date: ("dates, or text such as 2015-01-31", ("dates", "text")),
    type(None): ("text or integers", ("numbers", "text", "codes")),
}
_SHOWN: Final = 30
_FORMS: Final = {
    **dict.fromkeys("biuf", "numbers"),
    **dict.fromkeys("UT", "text"),
    "M": "dates",
    "O": "cells",
}
_Reader = Callable[[int, int], Any]


def _said(name: str | None) -> str:
    return "people" if name is _PEOPLE else f"column {name!r}"


def _check_rows(table: Table) -> None:
    if not len(table):
        raise DataError(_NO_ROW)


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


def _reader(what: str, kind: Kind | None, column: Any, marks: Marks, *, csv: bool) -> _Reader:
    """A function from a range of rows to their cells, after a check of the column's type.

    The text of a CSV file may be of any kind.
    """
    form = "cells" if csv else form_of(column)
    _check_form(what, kind, form, _type_of(column))
    if isinstance(kind, Category) and form in (*_NUMBERS, "codes") and not kind.places.numeric:
        raise DataError(
            f"{what} has type {_type_of(column)}, and none of its declared values "
            f"{_listed(kind.values)} is a number: no cell can ever match"
        )
    each = _cell_reader(kind, marks)

    def cells(start: int, stop: int) -> Any:
        part = column[start:stop]
        if kind is None:
            return people_in(part)
        if form in _NUMBERS:
            return _of_numbers(kind, _floats(part))
        if form == "dates" and isinstance(kind, Date):
            return _days(kind, part)
        if csv and isinstance(kind, Number):
            return text_numbers(part.to_native(), marks)
        return values_in(part, each)

    return cells


def _check_form(what: str, kind: Kind | None, form: str, dtype: str) -> None:
    """Whether a column of such cells, as of `form_of`, can be of a kind.

    Raises:
        DataError: it never can.
    """
    takes, forms = _ACCEPTED[type(kind)]
    if form != "cells" and form not in forms:
        declared = "a person's id" if kind is None else type(kind).__name__
        raise DataError(
            f"{what} has type {dtype}; it is declared as {declared}, which takes {takes}: convert "
            "it, or change the schema"
        )


def _type_of(column: Any) -> str:
    native = column if isinstance(column, np.ndarray) else column.to_native()
    shown = " ".join(str(getattr(native, "type", None) or native.dtype).split())
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _cell_reader(kind: Kind | None, marks: Marks) -> Callable[[Any], float]:
    """A function from one cell to its value in `Table.column`, or NaN."""
    if isinstance(kind, Boolean):
        return truth
    if isinstance(kind, Date):
        return days_reader(kind.start)
    return kind.places.of_cell if isinstance(kind, Category) else number_reader(*marks)


def _of_numbers(kind: Kind, values: Array) -> Array:
    """Cells of a column whose type is numeric, shape (n,)."""
    if isinstance(kind, Category):
        return kind.places.of_numbers(values)
    if isinstance(kind, Boolean):
        return np.where((values == 0) | (values == 1), values, np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def names_and_forms(source: Any) -> list[tuple[str, str]]:
    """Names of the columns of a frame and what their types are: as `form_of`, or "booleans"."""
    frame, names = _frame_of(source)
    if frame is None:
        raise TypeError("source: must be a frame with named columns, or the path of a file")
    found = []
    for name, place in zip(names, frame.columns, strict=True):
        logical = str(frame[place].dtype) == "Boolean"
        found.append((name, "booleans" if logical else form_of(frame[place])))
    return found


def form_of(column: Any) -> str:
    """What the type of a column allows.

    Returns:
        "numbers", or "reals" where they cannot be ids; "text", or "codes" for categories that are
        numbers; "dates"; "cells" for anything; "" for nothing that a kind takes.
    """
    import narwhals

    if isinstance(column, np.ndarray):
        return _FORMS.get(column.dtype.kind, "")
    kind, guessed = column.dtype, column.implementation.is_pandas_like()
    if kind.is_numeric() or kind == narwhals.Boolean:
        whole = guessed or kind.is_integer()  # pandas has whole numbers with holes as floats
        return "numbers" if whole else "reals"
    if kind in (narwhals.Object, narwhals.String):
        return "cells" if guessed or kind == narwhals.Object else "text"
    if kind in (narwhals.Categorical, narwhals.Enum):
        held = getattr(getattr(column.to_native(), "type", None), "value_type", "string")
        return "text" if "string" in str(held) else "codes"
    return "dates" if kind in (narwhals.Date, narwhals.Datetime) else ""


@np.errstate(all="ignore")  # a warning would tell of sealed data
def _floats(part: Any) -> Array:
    if isinstance(part, np.ndarray):
        return np.asarray(part, dtype=np.float64)
    found = attempted(_plain_floats, part)
    if found is FAILED:  # such as an integer that no float is equal to
        return values_in(part, number_reader())
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
            return values_in(part, days_reader(kind.start))
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
