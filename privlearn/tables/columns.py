"""Cells of a whole column at once, each read as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from privlearn.rows.domains import Array
from privlearn.tables.cells import number_pattern, number_reader
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
        return np.array(_each(texts.to_pylist(), number_reader(*marks), np.nan), dtype=np.float64)
    numbers = np.array(found.to_numpy(), dtype=np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def distinct(part: Any, read: Callable[[Any], T], failed: T) -> list[T]:
    """What ``read`` makes of each cell; ``failed`` where it fails, which costs no other cell.

    Args:
        part: an array of shape (n,), or a series of narwhals.
        read: called once for equal texts.
        failed: also of a missing cell.
    """
    if isinstance(part, np.ndarray):
        return _each(part.tolist(), read, failed)
    native = part.to_native()
    if type(native).__module__.partition(".")[0] == "pyarrow":
        coded = attempted(_coded, native)
        if coded is not FAILED:
            found = [*_each(_cells(coded.dictionary), read, failed), failed]
            return [found[place] for place in coded.indices.fill_null(-1).to_pylist()]
    return _each(_cells(part), read, failed)


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
