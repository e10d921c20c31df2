"""Outputs of any kind as a table of numbers and symbols, so that nothing fails open.

An output is taken apart into *leaves* with a path each: ``[0].x`` and so on.  Finite numbers stay
numbers; NaN, infinities, text, None, exceptions, warnings, types, shapes and absent leaves are
symbols.  A leaf that is a number in one run and a symbol in another is both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

MAX_NUMBERS = 4096
MAX_SYMBOLS = 256
ABSENT, NUMBER = "absent", "a number"


@dataclass(frozen=True, slots=True)
class Raised:
    """The run ended with an exception; an output like any other."""

    kind: str
    message: str

    @classmethod
    def by(cls, error: BaseException) -> Raised:
        return cls(type(error).__name__, str(error))


@dataclass(frozen=True, slots=True)
class Warned:
    """The run warned, and what it returned."""

    warnings: tuple[str, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class Table:
    """Outputs of several runs as columns.

    Attributes:
        numbers: shape (n, k); 0 where the leaf is no number.
        names: k paths.
        symbols: shape (n, m), codes into ``values``; −1 for a value that was not seen when the
            columns were chosen.
        paths: m paths of symbols.
        values: per symbol column its known values.
    """

    numbers: Array
    names: tuple[str, ...]
    symbols: Codes
    paths: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Any) -> Table:
        """The table of some of the runs."""
        return Table(self.numbers[rows], self.names, self.symbols[rows], self.paths, self.values)


def tabulate(outputs: Sequence[Any], like: Table | None = None) -> Table:
    """Columns for these outputs, the same as those of ``like`` if given."""
    plain = _homogeneous(outputs)
    if plain is not None and (like is None or _fits(plain, like)):
        names = tuple(f"[{i}]" for i in range(plain.shape[1])) if like is None else like.names
        if like is None:
            return Table(plain, names, np.zeros((len(plain), 0), dtype=np.int64), (), ())
        one = _filled([dict(_leaves(outputs[0], ""))], like)  # alike but for the numbers
        return Table(
            plain, like.names, one.symbols.repeat(len(plain), axis=0), like.paths, like.values
        )
    rows = [dict(_leaves(output, "")) for output in outputs]
    columns = _columns(rows) if like is None else like
    return _filled(rows, columns)


def _fits(plain: Array, like: Table) -> bool:
    return like.names == tuple(f"[{i}]" for i in range(plain.shape[1]))


def _homogeneous(outputs: Sequence[Any]) -> Array | None:
    """Finite numbers of one shape, flat; the usual case, and fast."""
    first = outputs[0]
    if isinstance(first, np.ndarray):
        alike = all(
            type(x) is np.ndarray and x.shape == first.shape and x.dtype == first.dtype
            for x in outputs
        )
        if not alike or first.dtype.kind not in "fiu" or first.size > MAX_NUMBERS:
            return None
        values = np.array(outputs, dtype=np.float64).reshape(len(outputs), -1)
    elif all(type(x) is float or isinstance(x, np.floating) for x in outputs):
        values = np.array(outputs, dtype=np.float64)[:, None]
    else:
        return None
    return values if np.isfinite(values).all() else None


def _leaves(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(item, np.ndarray):
        yield f"{path}.shape", f"{item.dtype.kind}{item.shape}"
        for i, value in enumerate(item.ravel()[:MAX_NUMBERS].tolist()):
            yield from _leaves(value, f"{path}[{i}]")
    elif isinstance(item, Raised):
        yield f"{path}.raises", item.kind
        yield f"{path}.message", item.message
    elif isinstance(item, Warned):
        yield f"{path}.warns", item.warnings
        yield from _leaves(item.value, path)
    elif isinstance(item, Mapping):
        yield f"{path}.keys", tuple(map(repr, item))
        for key, value in item.items():
            yield from _leaves(value, f"{path}[{key!r}]")
    elif is_dataclass(item) and not isinstance(item, type):
        for field in fields(item):
            yield from _leaves(getattr(item, field.name), f"{path}.{field.name}")
    elif isinstance(item, list | tuple):
        yield f"{path}.length", len(item)
        for i, value in enumerate(item[:MAX_NUMBERS]):
            yield from _leaves(value, f"{path}[{i}]")
    elif isinstance(item, set | frozenset):
        yield path, tuple(sorted(map(repr, item)))
    else:
        yield path or "[0]", _scalar(item)


def _scalar(item: Any) -> Any:
    if isinstance(item, bool | np.bool_):
        return bool(item)
    if isinstance(item, int | np.integer) and abs(int(item)) < 2**53:
        return int(item)
    if isinstance(item, float | np.floating):
        return float(item)
    if item is None or isinstance(item, str | bytes):
        return item
    return item.name if isinstance(item, Enum) else repr(item)


def _number(leaf: Any) -> float | None:
    if type(leaf) is float:
        return leaf if math.isfinite(leaf) else None
    return float(leaf) if type(leaf) is int else None


def _symbol(leaf: Any) -> Any:
    """What a leaf is, apart from its value if it is a number; NaN equals NaN."""
    if type(leaf) is float:
        return NUMBER if math.isfinite(leaf) else repr(leaf)
    return NUMBER if type(leaf) is int else leaf


def _columns(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Which paths hold numbers, and which vary as symbols."""
    counts: dict[str, Counter[Any]] = {}
    for row in rows:
        for path, leaf in row.items():
            counts.setdefault(path, Counter())[_symbol(leaf)] += 1
    names = tuple(path for path, seen in counts.items() if NUMBER in seen)[:MAX_NUMBERS]
    paths, values = [], []
    for path, seen in counts.items():
        missing = len(rows) - seen.total()
        if missing:
            seen[ABSENT] += missing
        paths.append(path)
        values.append(tuple(value for value, _ in seen.most_common(MAX_SYMBOLS)))
    empty = np.zeros((0, len(names)))
    return Table(
        empty, names, np.zeros((0, len(paths)), dtype=np.int64), tuple(paths), tuple(values)
    )


def _filled(rows: Sequence[Mapping[str, Any]], like: Table) -> Table:
    numbers = np.zeros((len(rows), len(like.names)))
    symbols = np.full((len(rows), len(like.paths)), -1, dtype=np.int64)
    places = {name: i for i, name in enumerate(like.names)}
    codes = [
        (j, path, {value: c for c, value in enumerate(values)})
        for j, (path, values) in enumerate(zip(like.paths, like.values, strict=True))
    ]
    for i, row in enumerate(rows):
        for path, leaf in row.items():
            value = _number(leaf)
            if value is not None and path in places:
                numbers[i, places[path]] = value
        for j, path, known in codes:
            symbols[i, j] = known.get(_symbol(row[path]) if path in row else ABSENT, -1)
    return Table(numbers, like.names, symbols, like.paths, like.values)
