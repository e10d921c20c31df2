"""What the loaders of people's own retail files share: checked tables, coded features, a market.

Messages name cells of the file: they are for the operator, not for publication.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from privlearn.errors import DataError
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, Items, clip_items, fit_mle
from privlearn.rows.domains import Array
from privlearn.runs.simulated_choices import Market
from privlearn.storage.foreign_files import open_regular
from privlearn.values.validate import count

LONGEST_LINE = 2**16
"""Bytes of the longest line that is read."""

LINES_PER_CALL = 10_000
"""Lines between two calls of ``progress``."""

RIDGE = 1.0
"""Weight λ of the ridge λ‖θ‖²/2 in the fit of the true preferences; a public constant."""

BytesRead = Callable[[int], None]
"""Is told how many more bytes were read."""

_WHOLE = re.compile(rb"[+-]?\d{1,15}(?:\.0*)?")
_REAL = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "a gzip file"}


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """One column: its name, what a cell may hold (in words), and how it becomes a number."""

    name: str
    accepts: str
    parse: Callable[[bytes], float]
    """Raises ValueError for anything else; NaN is a missing cell."""


def number(
    name: str, low: float, high: float = math.inf, *, whole: bool = False, missing: bool = False
) -> CsvColumn:
    """A column of finite numbers from ``low`` to ``high``; ``missing`` allows empty and NULL."""
    pattern = _WHOLE if whole else _REAL
    bounds = f" from {low:g} to {high:g}"
    if high == math.inf:
        bounds = "" if low == -math.inf else f" >= {low:g}"
    elif low == -math.inf:
        bounds = f" <= {high:g}"

    def parse(cell: bytes) -> float:
        if pattern.fullmatch(cell):
            value = float(cell)
            if low <= value <= high and value < math.inf:
                return value
        elif missing and cell in (b"", b"NULL"):
            return math.nan
        raise ValueError

    kind = "an integer" if whole else "a finite number"
    return CsvColumn(name, f"{kind}{bounds}{', or empty or NULL' if missing else ''}", parse)


def identity(name: str) -> CsvColumn:
    """A column of ids: integers >= 0 of up to 15 digits."""
    return number(name, 0, whole=True)


def flag(name: str) -> CsvColumn:
    """A column of 0 and 1."""
    return number(name, 0, 1, whole=True)


def moment(name: str, form: str, accepts: str) -> CsvColumn:
    """A column of times in a `datetime.strptime` form; the number is in seconds."""

    @lru_cache(maxsize=256)
    def parse(cell: bytes) -> float:
        return (datetime.strptime(cell.decode("ascii"), form) - datetime.min).total_seconds()

    return CsvColumn(name, accepts, parse)


def label(name: str, labels: Sequence[str], *, missing: bool = False) -> CsvColumn:
    """A column of labels; the number is the label's place."""
    places = {text.encode(): float(place) for place, text in enumerate(labels)}
    if missing:
        places |= {b"": math.nan, b"NULL": math.nan}

    def parse(cell: bytes) -> float:
        try:
            return places[cell]
        except KeyError:
            raise ValueError from None

    accepts = f"one of {', '.join(labels)}{', or empty or NULL' if missing else ''}"
    return CsvColumn(name, accepts, parse)


class CsvTable:
    """An open CSV file of known columns in known order.

    A line ends at a newline and a cell at a comma; one pair of double quotes around a cell is
    taken off.  Made by `open_table`.

    Args:
        path: the file.
        file: the same, open.
        columns: all columns, in order.
    """

    def __init__(self, path: Path, file: BinaryIO, columns: Sequence[CsvColumn]):
        self.path, self.columns = path, columns
        self._file = file
        self.place = {column.name: place for place, column in enumerate(columns)}

    def error(self, line: int, problem: str) -> DataError:
        """The error to raise about a line (the header is line 1)."""
        return DataError(f"{self.path}, line {line}: {problem}")

    def check_header(self, advice: Callable[[list[str]], str] = lambda missing: "") -> None:
        """Compares the first line with the columns; ``advice`` may comment on missing ones.

        Raises:
            DataError: an archive, no text, or a header with other columns; all are named.
        """
        start = self._file.read(4)
        for magic, kind in _ARCHIVES.items():
            if start.startswith(magic):
                raise DataError(f"{self.path} is {kind}: unpack it, only plain CSV is read")
        self._file.seek(0)
        first = self._file.readline(LONGEST_LINE)
        try:
            names = [_unquoted(c).decode() for c in _ended(first).split(b",")] if first else []
        except UnicodeDecodeError:
            raise self.error(1, "the header is not UTF-8 text") from None
        if names:
            names[0] = _unquoted(names[0].removeprefix("\ufeff").encode()).decode()
        missing = [column.name for column in self.columns if column.name not in names]
        problems = {
            "lacks": missing,
            "has the unknown": [shown(n.encode()) for n in names if n not in self.place],
            "has twice": [n for n, times in Counter(names).items() if times > 1],
        }
        told = [f"{verb} {_few(which)}" for verb, which in problems.items() if which]
        if told:
            wanted = f"{len(self.columns)} columns {', '.join(self.place)}"
            raise self.error(
                1, f"the header {'; '.join(told)}{advice(missing)}. Accepted: {wanted}"
            )
        for place, (name, column) in enumerate(zip(names, self.columns, strict=True)):
            if name != column.name:
                raise self.error(
                    1, f"the header has {name} as column {place + 1}, where {column.name} must be"
                )

    def rows(
        self, progress: BytesRead, *, final_newline: bool
    ) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Line number and cells of every line after the header; may be called again.

        Args:
            progress: is told the bytes read since its last call.
            final_newline: whether a last line without newline counts as cut off even if it has
                all its cells.

        Raises:
            DataError: a wrong number of cells, or a last line that is cut off.
        """
        width = len(self.columns)
        self._file.seek(0)
        told = 0
        done = len(self._file.readline(LONGEST_LINE))
        for at, line in enumerate(iter(lambda: self._file.readline(LONGEST_LINE), b""), start=2):
            done += len(line)
            cells = _ended(line).split(b",")
            if not line.endswith(b"\n"):
                if len(line) == LONGEST_LINE:
                    raise self.error(at, f"longer than {LONGEST_LINE} bytes")
                if final_newline or len(cells) < width or not cells[-1]:
                    raise self.error(
                        at,
                        f"the last line has {len(cells)} of {width} cells and no newline at its "
                        "end: the file looks cut off; get it again (or, if it is complete, add a "
                        "newline)",
                    )
            if len(cells) != width:
                raise self.error(at, f"{len(cells)} cells, accepted are {width}")
            yield at, [_unquoted(cell) for cell in cells] if b'"' in line else cells
            if at % LINES_PER_CALL == 0:
                progress(done - told)
                told = done
        progress(done - told)

    def value(self, line: int, cells: Sequence[bytes], place: int) -> float:
        """The number in a cell, NaN if missing.

        Raises:
            DataError: the cell holds something that its column does not accept.
        """
        try:
            return self.columns[place].parse(cells[place])
        except ValueError:
            column = self.columns[place]
            raise self.error(
                line,
                f"column {column.name}: found {shown(cells[place])}, accepted is {column.accepts}",
            ) from None


@contextmanager
def open_table(path: str | os.PathLike[str], columns: Sequence[CsvColumn]) -> Iterator[CsvTable]:
    """Opens a CSV file.

    Raises:
        DataError: it cannot be opened or read.
    """
    try:
        with open_regular(path) as file:
            yield CsvTable(Path(path), file, columns)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _ended(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _unquoted(cell: bytes) -> bytes:
    return cell[1:-1] if len(cell) > 1 and cell[:1] == cell[-1:] == b'"' else cell


def shown(cell: bytes) -> str:
    """A cell as a message shows it: quoted, and not longer than a line can bear."""
    text = cell.decode("utf-8", errors="backslashreplace")
    return repr(text if len(text) <= 40 else text[:40] + "…") if text else "an empty cell"


def require_declared(declare_public: bool, source: str, side_information: Sequence[str]) -> None:
    """Refuses to compute statistics that are not declared public.

    Raises:
        ValueError: ``declare_public`` is not True; the message lists the statistics.
    """
    if declare_public is not True:
        listed = "".join(f"\n  - {item}" for item in side_information)
        raise ValueError(
            f"declare_public = {declare_public!r}: must be True to load {source}, because these "
            f"statistics of its people are used without noise:{listed}\nIf they may be public, "
            "pass declare_public=True and hand the loaded object's side_information to the "
            "accountant, which prints it in the certificate. The file was not opened"
        )


def above_reference(name: str, values: Array, edges: Sequence[float]) -> dict[str, Array]:
    """One column per level but the lowest, which is the reference.

    Level k holds ``edges[k-1] <= value < edges[k]``; ``edges`` ascend.
    """
    level = np.searchsorted(edges, values, side="right")
    ends = [*(f"{edge:g}" for edge in edges[1:]), "inf"]
    return {
        f"{name}[{low:g},{high})": (level == place).astype(float)
        for place, (low, high) in enumerate(zip(edges, ends, strict=True), start=1)
    }


def standardised(columns: dict[str, Array]) -> Array:
    """The columns, (n, d) and read-only, with mean 0 and variance 1 over rows; constant ones: 0."""
    values = np.stack(list(columns.values()), axis=1)
    centred = values - values.mean(axis=0)
    spread = centred.std(axis=0)
    flat = spread <= 1e-12 * np.maximum(1.0, np.abs(values).max(axis=0))
    scaled = np.where(flat, 0.0, centred / np.where(flat, 1.0, spread))
    scaled.flags.writeable = False
    return scaled


def joined(items: Array, users: Array, scale: float, constant: bool) -> Array:
    """x = [item, user(, 1)] over ``scale``, clipped: (n, N, d) from (N, a) or (n, N, a), (n, b)."""
    n_users, n_items = len(users), items.shape[-2]
    own = np.concatenate([users, np.ones((n_users, int(constant)))], axis=1)
    parts = (
        np.broadcast_to(items, (n_users, n_items, items.shape[-1])),
        np.broadcast_to(own[:, None], (n_users, n_items, own.shape[1])),
    )
    return clip_items(np.concatenate(parts, axis=-1), scale)


def fitted_tastes(
    items: Array, users: Array, offered: Items, choice: Items, scale: float, constant: bool
) -> Array:
    """The ridge fit of θ, (d,), to what people chose; **not private**.

    Args:
        items: (N, a).
        users: (n, b).
        offered: items offered, filled up with `NO_ITEM`, (n, L).
        choice: the item chosen, or `NO_ITEM`, (n,).
        scale: public divisor of the features.
        constant: whether the features end with a constant.
    """
    used = offered != NO_ITEM
    features = joined(items[np.maximum(offered, 0)], users, scale, constant)
    hits = used & (offered == choice[:, None])
    place = np.where(hits.any(axis=1), hits.argmax(axis=1), NO_ITEM)
    answer = Answer(np.where(used[..., None], features, 0.0), used.astype(float), place)
    return fit_mle(answer, outside=True, prior_precision=RIDGE)


def resampled_market(
    items: Array,
    users: Array,
    theta: Array,
    scale: float,
    constant: bool,
    *,
    horizon: int,
    seed: int,
    replicate: int,
) -> Market:
    """A market of people drawn with replacement from ``users``; features are made per block."""
    rng = np.random.default_rng(
        [count(seed=seed, at_least=0), count(replicate=replicate, at_least=0)]
    )
    people = rng.integers(len(users), size=count(horizon=horizon))
    uniforms = rng.random(horizon)

    def features_of(block: range) -> Array:
        return joined(items, users[people[block.start : block.stop]], scale, constant)

    return Market(theta, uniforms, features_of)
