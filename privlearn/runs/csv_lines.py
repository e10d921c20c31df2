"""Lines and cells of a user's own CSV file: a broken line costs nobody but whose line it is.

A record is a line, up to its newline, whether quoted or not, so that an open quote in one line
cannot swallow the next; within the line, quotes protect commas (RFC 4180).  The header is form,
which is public, and raises; the lines are contents, and what is wrong with one says so to whoever
reads it, without its cells.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from privlearn.errors import DataError

LONGEST_LINE = 2**20
"""Bytes of the longest line of a CSV file that is looked at."""

_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def physical_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines up to their newline; one longer than `LONGEST_LINE` counts as blank."""
    while line := file.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            line, rest = b"", file.readline(LONGEST_LINE)
        yield line


def cells_of(line: bytes) -> list[str]:
    """The cells of one line, without spaces around them; bytes that are no text stay told apart.

    Raises:
        ValueError: its quotes or line ends are broken.
    """
    return _split(line.decode("utf-8", errors="surrogateescape"))


def _split(line: str) -> list[str]:
    try:
        found = next(csv.reader([line.rstrip("\r\n")], strict=True, skipinitialspace=True), [])
    except csv.Error:
        raise ValueError("its quotes or line ends are broken") from None
    return [cell.strip() for cell in found] or [""]


def header_of(line: bytes, path: str) -> list[str]:
    """Column names; a message quotes none where they may be the cells of a user.

    Raises:
        DataError: not text, broken quotes, another separator than commas, blank or repeated names.
    """
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: the first line is not UTF-8 text") from None
    outside = _QUOTED.sub("", text)
    for mark, name in _SEPARATORS.items():
        if mark in outside:
            raise DataError(
                f"{path}: {name} ({mark!r}) stand between the names of the first line; cells must "
                "be separated by commas: save the file with commas, or put a name that contains "
                "one in double quotes"
            )
    try:
        header = _split(text)
    except ValueError:
        raise DataError(
            f"{path}: the first line has broken quotes, or lines do not end in newlines; quotes "
            'stand around a whole name, as in age,"Income, EUR"'
        ) from None
    if len(set(header)) < len(header):
        raise DataError(f"{path}: the header must name each column once")
    return header


def some_lines(lines: list[bytes], path: str) -> list[bytes]:
    """The same lines.

    How many lines there are is form: neighbouring files differ in what a line says, which may be
    nothing.

    Raises:
        DataError: there are none.
    """
    if not lines:
        raise DataError(f"{path}: there is no row after the header; a file must have at least one")
    return lines


def number(cell: Any) -> float:
    """A finite number.

    Raises:
        ValueError: anything else; the message says nothing of the cell but its kind.
    """
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise ValueError("the cell is missing")
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        comma = isinstance(cell, str) and "," in cell
        more = " (it has a comma, which no number has)" if comma else ""
        raise ValueError(f"the cell is no number{more}") from None
    if not math.isfinite(value):
        raise ValueError("the cell is no finite number")
    return value


def numbers(cells: list[Any], places: list[int], names: list[str]) -> list[float]:
    """The numbers at some places.

    Raises:
        ValueError: a cell is none; the message names its column.
    """
    found = []
    for place, name in zip(places, names, strict=True):
        try:
            found.append(number(cells[place]))
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None
    return found


def is_number(text: str) -> bool:
    """Whether Python reads it as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
