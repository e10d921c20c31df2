"""Arrays from whatever holds a table: frames by their interface, and a refusal for the rest.

What somebody may have *sent* (None, numbers, text, lists, dicts: what JSON can hold) passes as it
is: it is contents, and whoever takes it decides what becomes of a bad one.  An object that only a
program can have made (a frame, a tensor, a generator, a sparse matrix) is part of the program: it
is taken as an array, or refused with a `TypeError`.  The types of a frame's columns are its form,
as shapes and dtypes of arrays are; its cells are contents, and one that is missing or no number is
NaN.  Whoever made a frame may have guessed a type from the cells, so a column of text or objects is
read cell by cell, and refused only where none of three cells or more is a number.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from datetime import date, time, timedelta
from numbers import Number
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.record_forms import parsed, readable
from privlearn.values.records import rebuilt
from privlearn.values.user_code import FAILED, Failed, attempted

T = TypeVar("T")

_SENT = (
    *(type(None), str, bytes, bytearray, bool, int, float, dict, np.generic, Number),
    *(date, time, timedelta),
)
"""What JSON holds, and cells of tables."""
_PLAIN = (array, memoryview, range, deque)


def unmasked(values: Any) -> Any:
    """Plain arrays, and such arrays in lists, with NaN where they are masked."""
    if isinstance(values, np.ma.MaskedArray):
        kind = values.dtype.kind
        missing = {"m": "NaT", "M": "NaT", "c": "nan", "U": "", "S": ""}
        if kind in missing:
            return values.filled(np.array([missing[kind]]).astype(values.dtype)[0])
        if values.dtype.names is not None:  # tuples, with None where a field is masked
            cells = values.ravel().tolist() if values.ndim else [values.tolist()]
            return objects(cells).reshape(values.shape)
        plain = np.float64 if kind in "biuf" else object
        with np.errstate(all="ignore"):  # a warning would tell of a number beyond doubles
            return np.ma.array(values, dtype=plain).filled(np.nan)
    if isinstance(values, list | tuple) and any(
        issubclass(type(v), np.ma.MaskedArray) for v in values
    ):  # `isinstance` would ask what somebody sent itself, too
        return [unmasked(value) for value in values]
    if isinstance(values, np.ndarray) and type(values) is not np.ndarray:
        return np.asarray(values)  # such as a matrix, whose rows have another shape
    return values


def block_from(name: str, values: Any) -> Any:
    """Rows of many users: an array, or a list or tuple of rows as they are.

    Raises:
        TypeError: something else that cannot be taken as an array (a dict, a generator, a sparse
            matrix, a lazy frame), or a frame with columns that are no numbers.
    """
    found = row_from(name, values)
    if isinstance(found, np.ndarray | list | tuple):
        return found
    raise TypeError(
        f"{name} is a {_kind(values)}: must be an array, a data frame, or a list with one entry "
        "per user"
    )


def records_from(name: str, block: T) -> T:
    """A block of records: the same, with all its tables as arrays.

    Raises:
        TypeError: as for `block_from`.
    """
    if type(block) is np.ndarray:
        return block
    if isinstance(block, tuple):
        return cast(T, rebuilt(block, [records_from(name, field) for field in block]))
    return cast(T, block_from(name, block))


def row_from(name: str, values: Any) -> Any:
    """One user's data: what JSON can hold and arrays pass, masked numbers as NaN.

    Raises:
        TypeError: as for `block_from`, but for a dict, which a user may have sent.
    """
    if type(values) is np.ndarray:  # which comes once per user
        return values
    if isinstance(values, np.ndarray | list | tuple):
        return unmasked(values)
    if issubclass(type(values), _SENT) or type(values).__name__ == "NAType":  # that of pandas
        return values
    if isinstance(values, _PLAIN):
        return np.asarray(values)
    found = _from_frame(name, values)
    if found is None:
        found = _from_array_like(name, values)
    return found


def _from_frame(name: str, values: Any) -> NDArray[Any] | None:
    import narwhals  # late, as whoever hands in arrays does not need it

    native, names = _by_place(_arrow_table(values))
    frame = attempted(narwhals.from_native, native, allow_series=True, pass_through=True)
    if frame is FAILED:  # what it says may quote cells
        raise TypeError(f"{name} is a {_kind(values)} that cannot be used: make it an array first")
    if isinstance(frame, narwhals.LazyFrame):
        raise TypeError(f"{name} is a lazy {_kind(values)}: hand over its rows, .collect() them")
    if isinstance(frame, narwhals.Series):
        return _column(name, frame)
    if not isinstance(frame, narwhals.DataFrame):
        return None
    columns = [
        _column(f"{name}: column {c!r}", frame[place])
        for c, place in zip(names or frame.columns, frame.columns, strict=True)
    ]
    return np.column_stack(columns) if columns else np.zeros((len(frame), 0))


def _by_place(native: Any) -> tuple[Any, list[Any]]:
    """A frame with its columns named by their places, and the names that they had.

    Those of pandas and Arrow may be anything, and stand there twice.
    """
    if callable(getattr(native, "set_axis", None)) and getattr(native, "ndim", 0) == 2:
        names = list(native.columns)
        return native.set_axis([str(i) for i in range(len(names))], axis=1), names
    if callable(getattr(native, "rename_columns", None)):
        names = list(native.column_names)
        return native.rename_columns([str(i) for i in range(len(names))]), names
    return native, []


def _arrow_table(values: Any) -> Any:
    """Batches and arrays of Arrow as the tables and columns that narwhals knows."""
    if type(values).__module__.partition(".")[0] != "pyarrow":
        return values
    import pyarrow

    if isinstance(values, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([values])
    return pyarrow.chunked_array([values]) if isinstance(values, pyarrow.Array) else values


def _column(what: str, series: Any) -> NDArray[np.float64]:
    import narwhals

    kind = series.dtype
    guessed = kind in (narwhals.String, narwhals.Object, narwhals.Unknown)
    if not (kind.is_numeric() or kind == narwhals.Boolean or guessed):
        raise TypeError(f"{what} has type {kind}: must be numbers or booleans")
    if not guessed and (found := attempted(_floats, series)) is not FAILED:
        return found
    # such as an integer that no float is equal to
    cells = _cells(series)
    if not readable(cells):
        raise TypeError(
            f"{what} has type {kind}, and no cell of it is a number: must be numbers or booleans"
        )
    return parsed(cells)[0]


def _cells(series: Any) -> NDArray[np.object_]:
    count = len(series)
    cells: list[Any] | Failed = attempted(series.to_list)
    if cells is FAILED:
        single = (attempted(series.__getitem__, i) for i in range(count))
        cells = [None if cell is FAILED else cell for cell in single]
    # pandas asks the cells whether they are missing, and one of them may fail at that
    missing = attempted(lambda: series.is_null().to_list())
    holes = [False] * count if missing is FAILED else missing
    return objects([None if hole else cell for cell, hole in zip(cells, holes, strict=True)])


def objects(cells: Sequence[Any]) -> NDArray[np.object_]:
    """An array of so many objects, whatever they are."""
    made = np.empty(len(cells), dtype=object)
    for i, cell in enumerate(cells):
        made[i] = cell
    return made


@np.errstate(all="ignore")
def _floats(series: Any) -> NDArray[np.float64]:
    import narwhals

    if not series.null_count():
        return np.array(series.to_numpy(), dtype=np.float64)
    series = series.cast(narwhals.Float64)
    holes = series.is_null().to_numpy()
    filled = np.array(series.fill_null(0.0).to_numpy(), dtype=np.float64)
    filled[holes] = np.nan
    return filled


def _from_array_like(name: str, values: Any) -> NDArray[Any]:
    if hasattr(values, "__array__") or hasattr(values, "__array_interface__"):
        found = attempted(np.asarray, values)
        if found is FAILED:  # what it says may quote cells
            raise TypeError(
                f"{name} is a {_kind(values)} that gives no array: convert it first (a tensor: "
                "detached, and on the CPU)"
            )
        if found.dtype != object or found.ndim:
            return found
    more = "; call .toarray() first" if hasattr(values, "toarray") else ""
    raise TypeError(f"{name} is a {_kind(values)}: must be an array or a data frame{more}")


def _kind(values: Any) -> str:
    kind = type(values)
    module = kind.__module__.partition(".")[0]
    return kind.__qualname__ if module == "builtins" else f"{module} {kind.__qualname__}"
