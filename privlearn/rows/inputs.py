"""Users' data as arrays of numbers: a wrong form is refused, and a bad row is NaN, alone.

What a program hands over has a form, which is public: shape and dtype of an array, types of the
columns of a frame.  It is checked here, before anything is sealed or spent.  What one user sent is
contents, and becomes NaN if it is no row.

A list, or an array of objects, is contents entry by entry.  It is refused only if all entries,
three at least, have one and the same form that no row has, whatever its values are (text in place
of labels, rows of another length); None and NaN say nothing.  So the form of one entry is told only
where all others are of no use (docs/threat-model.md).

What comes out are arrays of our own, row after row in memory: the usual environment writes the next
user's data into the array that held the last one's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import date, time, timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.record_forms import LEAST
from privlearn.rows.tabular import block_from, row_from, unmasked
from privlearn.values.user_code import FAILED, attempted

Array = NDArray[np.float64]
Shape = tuple[int, ...]

_NUMBERS: Final = "biuf"
_TEXT: Final = "UST"
_PLAIN: Final = (np.ndarray, np.generic, list, tuple, str, bytes, int, float, dict, type(None))
_NO_SCALAR: Final = (np.complexfloating, np.datetime64, np.timedelta64, np.void)
_NO_NUMBER: Final = (
    *(bytes, bytearray, complex, date, time, timedelta, dict, set, frozenset),
    *_NO_SCALAR,
)
_MISSING: Final = ("missing",)
_TEXTUAL: Final = ("text",)
_REMEDIES: Final = {
    "c": "make columns of its real and imaginary parts",
    "M": "make numbers of it, as in ({0} - numpy.datetime64('2020-01-01')) / "
    "numpy.timedelta64(1, 'D')",
    "m": "make numbers of it, as in {0} / numpy.timedelta64(1, 'D')",
    "V": "make one array of numbers of its fields",
}
_OF_TEXT: Final = (
    "make numbers of it, as in {0}.astype(float) where it holds numbers, or ({0} == 'yes') where "
    "it names two classes"
)


def check_dtype(name: str, values: NDArray[Any] | np.generic) -> None:
    """Raises TypeError for an array that holds neither numbers, booleans nor objects."""
    kind = values.dtype.kind
    if kind in _NUMBERS or kind == "O":
        return
    remedy = _REMEDIES.get(kind, _OF_TEXT).format(name)
    raise TypeError(f"{name} has dtype {values.dtype}: must be numbers or booleans; {remedy}")


def check_shape(name: str, found: Shape, shape: Shape, n: int | None = None) -> None:
    """Raises ValueError for an array that has not a row of ``shape`` for each of n users."""
    count = (found[0] if found else 0) if n is None else n
    if found == (count, *shape):
        return
    text = ", ".join(["n" if n is None else str(n), *map(str, shape)])
    comma = "," if not shape else ""
    advice = _advice(name, found, shape)
    raise ValueError(f"{name} of shape {found}: must be ({text}{comma}){advice}")


def _advice(name: str, found: Shape, shape: Shape) -> str:
    if not shape:
        one = len(found) == 2 and found[1] == 1
        return f"; take its one column, as in {name}.ravel()" if one else ""
    if len(found) == 1:
        column = f"; make a column of it, as in {name}[:, None]" if shape == (1,) else ""
        return column or "; each user has a row, not a number (and check the order of arguments)"
    turned = len(found) == 2 and len(shape) == 1 and found[0] == shape[0]
    return f"; transpose it, as in {name}.T" if turned else ""


def column_from(name: str, values: Any) -> Any:
    """A number of each user, or of one, as `row_from` reads it; objects as they are.

    Raises:
        TypeError: as for `row_from`, or a column of text, whose type is public.
    """
    if isinstance(values, _PLAIN):
        return row_from(name, values)
    import narwhals  # late, as whoever hands in arrays does not need it

    column = values
    if type(values).__module__.partition(".")[0] == "pyarrow":
        import pyarrow

        column = pyarrow.chunked_array([values]) if isinstance(values, pyarrow.Array) else values
    series = narwhals.from_native(column, series_only=True, pass_through=True)
    if isinstance(series, narwhals.Series):
        if (
            isinstance(getattr(values, "dtype", None), np.dtype) and values.dtype.hasobject
        ):  # what its cells are is contents
            return np.asarray(values, dtype=object)
        if isinstance(series.dtype, narwhals.String | narwhals.Categorical | narwhals.Enum):
            remedy = _OF_TEXT.format(name)
            kind = str(series.dtype).partition("(")[0]  # without categories
            raise TypeError(f"{name} has type {kind}: must be numbers or booleans; {remedy}")
    return row_from(name, values)


def _check_entries(
    name: str, rows: Sequence[Any] | NDArray[Any], shape: Shape, *, most: int | None = None
) -> None:
    """Raises ValueError for `LEAST` entries or more, all of one form that no row has.

    With ``most`` a row is a table, of 1 to so many rows of ``shape``.
    """
    odd: list[Any] = []
    for entry in rows:
        wanted = shape
        if most is not None:
            length = attempted(len, entry)
            rows_of_it = length if isinstance(length, int) and 0 < length <= most else most
            wanted = (rows_of_it, *shape)
        form = attempted(_wrong_form, entry, wanted)
        if form is _MISSING:
            continue
        if form is FAILED or not form or (odd and form != odd[0]):
            return
        odd.append(form)
    if len(odd) >= LEAST:
        told = f"rows of shape {shape}" if shape else "numbers"
        if most is not None:
            told = f"tables of 1 to {most} {told}"
        raise ValueError(
            f"{name}: no entry could be one of the {told} that it must hold, whatever its values "
            "are; check shapes and types (text must be made numbers first)"
        )


def _wrong_form(entry: Any, shape: Shape, *, cell: bool = False) -> tuple[Any, ...]:
    """The form of an entry that is no row whatever its values are; () if it could be one.

    The cells of a row may be text, which is read as numbers; only text that is none is no row.
    """
    missing = isinstance(entry, float) and entry != entry and not shape
    if entry is None or missing:  # in place of a row of several numbers, NaN is of another form
        return _MISSING
    if isinstance(entry, str):
        return () if cell and not shape and attempted(float, entry) is not FAILED else _TEXTUAL
    if isinstance(entry, _NO_NUMBER):
        return (type(entry),)
    if isinstance(entry, np.ndarray):
        if entry.shape != shape or entry.dtype.kind not in (*_NUMBERS, "O"):
            return (entry.shape, entry.dtype.kind)
        return _wrong_form(entry.tolist(), shape) if shape and entry.dtype.kind == "O" else ()
    if isinstance(entry, list | tuple):
        if not shape or len(entry) != shape[0]:
            return ("row", len(entry))
        forms = [_wrong_form(each, shape[1:], cell=True) for each in entry]
        if forms and all(form is _TEXTUAL for form in forms):
            return _TEXTUAL
        return next((form for form in forms if form and form not in (_MISSING, _TEXTUAL)), ())
    return ("number",) if shape and isinstance(entry, int | float | np.number | np.bool_) else ()


def _numbers(values: Any) -> Array:
    values = unmasked(values)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        # not "error": filters are of all threads, and two at once may leave each other's behind
        warnings.simplefilter("ignore")
        found = np.array(values, order="C")
        if found.dtype.kind in _TEXT and isinstance(values, list | tuple):  # also among numbers
            found = np.array(values, dtype=object, order="C")
        check_dtype("", found)
        if found.dtype.kind == "O" and any(isinstance(cell, _NO_SCALAR) for cell in found.flat):
            raise TypeError
        return np.asarray(found, dtype=np.float64, order="C")


def _converted(values: Any) -> Array | None:
    """A copy as numbers, or None; an error or a warning would tell of sealed data."""
    if type(values) is np.ndarray and (values.dtype == np.float64 or values.dtype.kind in "biu"):
        return np.array(values, dtype=np.float64, order="C")  # neither fails nor warns
    found = attempted(_numbers, values)
    return None if found is FAILED else found


def row_of(values: Any, shape: Shape) -> Array:
    """A copy of one user's numbers; NaN if they are not numbers, or of another shape."""
    row = _converted(values)
    return row if row is not None and row.shape == shape else np.full(shape, np.nan)


def rows_of(values: Sequence[Any], shape: Shape) -> Array:
    """What several users sent, each as `row_of` reads it, shape (n, *shape)."""
    rows = [row_of(each, shape) for each in values]
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


def tables_of(values: Sequence[Any], most: int, width: int) -> tuple[Array, NDArray[np.bool_]]:
    """What several users sent, each a table of numbers of up to ``most`` rows.

    Returns:
        the tables, shape (n, most, width), of 0 behind their last row, and NaN where one is no
        table of numbers of that width or has too many rows; and which rows are there, (n, most).
    """
    tables = np.zeros((len(values), most, width))
    there = np.zeros((len(values), most), dtype=bool)
    for i, each in enumerate(values):
        table = _converted(each)
        if table is not None and table.ndim == 2 and table.shape[1] == width and len(table) <= most:
            rows = len(table)
            tables[i, :rows] = table
        else:
            length = attempted(len, each)
            rows = length if isinstance(length, int) else 0
            tables[i, :rows] = np.nan
        there[i, :rows] = True
    return tables, there


def table_block_of(
    name: str, values: Any, most: int, width: int
) -> tuple[Array, NDArray[np.bool_]]:
    """As `tables_of`, of an array (n, m, width) with 1 <= m <= ``most``, or a list of tables.

    Raises:
        TypeError: neither array nor list; an array of another type than numbers.
        ValueError: an array has another shape; no entry of a list could be a table.
    """
    rows = block_from(name, values)
    if not isinstance(rows, np.ndarray) or rows.dtype == object:
        _check_entries(name, rows, (width,), most=most)
        return tables_of(rows, most, width)
    held = rows.ndim == 3 and 1 <= rows.shape[1] <= most
    length = rows.shape[1] if held else most
    tables = np.zeros((len(rows), most, width))
    tables[:, :length] = block_of(name, rows, (length, width))
    return tables, np.broadcast_to(np.arange(most) < length, tables.shape[:2])


def block_of(name: str, values: Any, shape: Shape, n: int | None = None) -> Array:
    """A copy as numbers of shape (n, *shape); rows that are not, are NaN.

    Raises:
        TypeError: no array, frame or list; an array or, of single numbers, a column of another
            type than numbers.
        ValueError: an array has another shape; there are not ``n`` rows; no entry of a list could
            be a row.
    """
    rows = entries_of(name, values, shape, n)
    wanted = (len(rows), *shape)
    whole = _converted(rows)
    if whole is not None and whole.shape == wanted:
        return whole
    return np.array([row_of(row, shape) for row in rows], dtype=np.float64).reshape(wanted)


def entries_of(
    name: str, values: Any, shape: Shape, n: int | None = None
) -> Sequence[Any] | NDArray[Any]:
    """Rows of many users as they are, after the check of their form.

    Raises:
        TypeError, ValueError: as for `block_of`.
    """
    rows: Sequence[Any] | NDArray[Any] = block_from(
        name, values if shape else column_from(name, values)
    )
    listed = not isinstance(rows, np.ndarray)
    if isinstance(rows, np.ndarray):
        check_dtype(name, rows)
        listed = rows.dtype == object
        if not listed or rows.ndim != 1:
            check_shape(name, rows.shape, shape, n)
    if n is not None and len(rows) != n:
        raise ValueError(f"{name} of {len(rows)} rows: must have {n}")
    if listed:
        _check_entries(name, rows, shape)
    return rows


def numbers_from(name: str, values: Any) -> Array:
    """Numbers to score, which are nobody's contribution; of any shape.

    Raises:
        TypeError: no table of numbers.
        ValueError: cells that are none.
    """
    found = row_from(name, values)
    if isinstance(found, np.ndarray):
        check_dtype(name, found)
    try:
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: must be numbers, each row as long: {error}") from None
