"""Lines and cells of a user's own CSV file: a broken line costs nobody but whose line it is.

No reader of CSV files keeps an open quote, an odd number of cells or a blank line from moving other
people's records, so that a `Screen` stands before the one that is used: what it hands on holds as
many records as there were lines.  A record is a line, up to its newline, whether quoted or not;
within the line, quotes protect separators (RFC 4180).  The header is form, which is public, and
raises; the lines are contents, and what is wrong with one says so to whoever reads it, without its
cells.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from typing import BinaryIO

from privlearn.errors import DataError
from privlearn.values.user_code import FAILED, attempted

LONGEST_LINE = 2**20
"""Bytes of the longest line of a CSV file that is looked at."""

_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_CHUNK = 2**24


def line_chunks(file: BinaryIO) -> Iterator[list[bytes]]:
    """Some 16 MB of lines at a time, without their ends; a line that is too long is blank."""
    left = b""
    while block := file.read(_CHUNK):
        lines = (left + block).split(b"\n")
        left = lines.pop()[: LONGEST_LINE + 1]  # what is too long stays so, whatever follows
        if lines:
            yield _short(lines)
    if left:
        yield _short([left])


def _short(lines: list[bytes]) -> list[bytes]:
    if max(map(len, lines)) <= LONGEST_LINE:
        return lines
    return [line if len(line) <= LONGEST_LINE else b"" for line in lines]


class Screen:
    """Lines with exactly so many cells, as any CSV reader takes them; the others are blank records.

    A line with a quote, a carriage return or another number of separators goes through one regular
    expression, and if that fails through Python's reader, which forgives spaces before a quote.

    Args:
        cells: of a record.
        separator, encoding: of the file; the lines that are handed on are UTF-8.
    """

    def __init__(self, cells: int, separator: str, encoding: str) -> None:
        self.cells, self._separator, self._encoding = cells, separator, encoding
        mark = re.escape(separator.encode())
        cell = rb'(?:"(?:[^"\r]++|"")*+"|[^"\r' + mark + rb"]*+)"
        self._whole = re.compile(cell + rb"(?:" + mark + cell + rb"){%d}" % (cells - 1))
        self._blank = (b'""' if cells == 1 else b"") + separator.encode() * (cells - 1)

    def __call__(self, lines: list[bytes]) -> tuple[list[bytes], dict[int, str]]:
        """The lines to be read, as many as before, and what was wrong with some, by place."""
        lines = self._as_utf8(lines)
        mark, count, broken = self._separator.encode(), self.cells - 1, dict[int, str]()
        odd = [
            place
            for place, line in enumerate(lines)
            if line.count(mark) != count or b'"' in line or b"\r" in line
        ]
        for place in odd:
            line = lines[place] = lines[place].removesuffix(b"\r")
            if not self._whole.fullmatch(line):
                try:
                    lines[place] = self._rewritten(line)
                except ValueError as error:
                    lines[place], broken[place] = self._blank, str(error)
        return lines, broken

    def blank(self, count: int) -> list[bytes]:
        """So many records without anything in them."""
        return [self._blank] * count

    def _as_utf8(self, lines: list[bytes]) -> list[bytes]:
        plain = codecs.lookup(self._encoding).name == "utf-8"
        if plain and attempted(b"\n".join(lines).decode) is not FAILED:
            return lines
        return [line.decode(self._encoding, "backslashreplace").encode() for line in lines]

    def _rewritten(self, line: bytes) -> bytes:
        cells = cells_of(line, self._separator)
        if len(cells) != self.cells:
            said = "cell" if len(cells) == 1 else "cells"
            raise ValueError(f"{len(cells)} {said}, where the header has {self.cells}")
        plain = (re.sub("[\r\n]", " ", cell).replace('"', '""') for cell in cells)
        return self._separator.join(f'"{cell}"' for cell in plain).encode()


def cells_of(line: bytes, separator: str = ",") -> list[str]:
    """The cells of one line, without spaces around them; bytes that are no text stay told apart.

    Raises:
        ValueError: its quotes or line ends are broken.
    """
    return _split(line.decode("utf-8", errors="surrogateescape"), separator)


def _split(line: str, separator: str) -> list[str]:
    reader = csv.reader(
        [line.rstrip("\r\n")], strict=True, skipinitialspace=True, delimiter=separator
    )
    try:
        found = next(reader, [])
    except csv.Error:
        raise ValueError("its quotes or line ends are broken") from None
    return [cell.strip() for cell in found] or [""]


def header_of(line: bytes, path: str, separator: str = ",", encoding: str = "utf-8") -> list[str]:
    """Column names; a message quotes none where they may be the cells of a user.

    Raises:
        DataError: not text, broken quotes, or other marks than commas between the names.
    """
    plain = codecs.lookup(encoding).name == "utf-8"
    try:
        text = line.decode("utf-8-sig" if plain else encoding)
    except UnicodeDecodeError:
        name = "UTF-8" if plain else encoding
        raise DataError(f"{path}: the first line is not {name} text") from None
    outside = _QUOTED.sub("", text)
    for mark, name in _SEPARATORS.items():
        if separator == "," and mark in outside:
            raise DataError(
                f"{path}: {name} ({mark!r}) stand between the names of the first line, where "
                f"commas are declared: declare separator = {mark!r} in a schema, save the file "
                "with commas, or put a name that contains one in double quotes"
            )
    try:
        return _split(text, separator)
    except ValueError:
        raise DataError(
            f"{path}: the first line has broken quotes, or lines do not end in newlines; quotes "
            'stand around a whole name, as in age,"Income, EUR"'
        ) from None
