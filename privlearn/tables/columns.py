"""Cells of a whole column at once, each read as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array
from privlearn.tables.cells import number_pattern, number_reader, person_of
from privlearn.values.user_code import FAILED, attempted

T = TypeVar("T")
_KNOWN: Final = 4_096  # so many texts are remembered with what they were read as


class Marks(NamedTuple):
    """How numbers are written in text."""

    decimal: str = "."
    thousands: str | None = None


def text_numbers(texts: Any, marks: Marks) -> Array:
    """A column of text as numbers, shape (n,); NaN where a cell is none.

    Args:
        texts: of Arrow, without missing cells.
        marks: how numbers are written.
    """
    import pyarrow
    from pyarrow import compute

    texts = compute.if_else(compute.equal(texts, ""), pyarrow.scalar(None, pyarrow.string()), texts)
    found = FAILED if marks != Marks() else attempted(compute.cast, texts, pyarrow.float64())
    if found is FAILED:  # it takes all cells or none
        spaced = rf"^[ \t]*{number_pattern(*marks)}[ \t]*$"
        known = compute.match_substring_regex(texts, spaced)
        texts = compute.if_else(known, texts, pyarrow.scalar(None, pyarrow.string()))
        plain = compute.utf8_ltrim(compute.utf8_trim(texts, " \t"), "+")
        if marks.thousands is not None:
            plain = compute.replace_substring(plain, marks.thousands, "")
        plain = compute.replace_substring(plain, marks.decimal, ".")
        found = attempted(compute.cast, plain, pyarrow.float64())
    if found is FAILED:  # such as a number beyond doubles
        return np.array(_each(texts.to_pylist(), number_reader(*marks), np.nan))
    numbers = np.array(found.to_numpy(), dtype=np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def people_in(part: Any) -> tuple[str | None, ...]:
    """Ids of persons, None where a cell is none, which costs no other cell.

    Args:
        part: an array of shape (n,), or a series of narwhals.
    """
    known, places = _distinct(part)
    if places is None:
        return tuple(_each(known, person_of, None))
    found = [*_each(known, person_of, None), None]
    return tuple(found[place] for place in places.tolist())


def values_in(part: Any, read: Callable[[Any], float]) -> Array:
    """What ``read`` makes of each cell, shape (n,); NaN where it fails, which costs no other cell.

    Args:
        part: as of `people_in`.
        read: called once for equal texts.
    """
    known, places = _distinct(part)
    found = np.array([*_each(known, read, np.nan), np.nan], dtype=np.float64)
    return found[:-1] if places is None else found[places]


def _distinct(part: Any) -> tuple[Sequence[Any], NDArray[np.intp] | None]:
    """Different cells and which of them stands where, −1 for none; or all, where that is slow."""
    if isinstance(part, np.ndarray):
        return part.tolist(), None
    native = part.to_native()
    if type(native).__module__.partition(".")[0] == "pyarrow":
        coded = attempted(_coded, native)
        if coded is not FAILED:
            return _cells(coded.dictionary), coded.indices.fill_null(-1).to_numpy()
    return _cells(part), None


def _coded(column: Any) -> Any:
    import pyarrow

    joined = column.combine_chunks()
    return joined if pyarrow.types.is_dictionary(joined.type) else joined.dictionary_encode()


def _cells(column: Any) -> Sequence[Any]:
    """Of a series or of an Arrow array; None where a cell cannot be held."""
    whole: Any = attempted(getattr(column, "to_pylist", None) or column.to_list)
    if whole is not FAILED:
        return list(whole)
    cells: list[Any] = [attempted(_cell, column, i) for i in range(len(column))]
    return [None if cell is FAILED else cell for cell in cells]


def _cell(column: Any, i: int) -> Any:
    found = column[i]
    return found.as_py() if hasattr(found, "as_py") else found


def _each(cells: Sequence[Any], read: Callable[[Any], T], failed: T) -> list[T]:
    known: dict[str, T] = {}
    found = []
    for cell in cells:
        if cell is None:
            value: Any = failed
        elif type(cell) is str and cell in known:
            value = known[cell]
        else:
            value = attempted(read, cell)
            value = failed if value is FAILED else value
            if type(cell) is str and len(known) < _KNOWN:
                known[cell] = value
        found.append(value)
    return found
