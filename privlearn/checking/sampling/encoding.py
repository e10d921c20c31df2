"""Outputs of any kind as a table of numbers and symbols, so that nothing fails open.

An output is taken apart into *leaves* with a path each: ``[0].x`` and so on. Finite numbers stay
numbers, also those in texts; all else (NaN, text, exceptions, types, absent leaves) are symbols."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
import zlib
from array import array
from collections import Counter, deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from inspect import isawaitable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import CheckError
from privlearn.rows.domains import Array

Codes = NDArray[np.int64]
MAX_NUMBERS = 4096
MAX_SYMBOLS = 4096
LONG = 16
MAX_DEPTH = 30
MAX_LEAVES = 20_000
GROUPS = 1024
LARGE = 1e100
ABSENT, NUMBER, WHOLE, MINUS_ZERO = "absent", "a number", "a whole number", "-0.0"


@dataclass(frozen=True, slots=True)
class Raised:
    """The run ended with an exception; an output like any other."""

    kind: str
    message: str

    @classmethod
    def by(cls, error: BaseException) -> Raised:
        return cls(type(error).__name__, str(error))


@dataclass(frozen=True, slots=True)
class Noted:
    """What was returned, with what was warned of, and how it lies in memory (`layout`) if that is
    not as the first output did."""

    value: Any
    warnings: tuple[str, ...] = ()
    layout: str = ""


PLAIN = frozenset((bool, int, complex, str, bytes, type(None), float, np.float64))
"""Values that nobody can change, and that lie in memory in one way."""


def layout(output: Any, depth: int = 3) -> str:
    """Types, strides, flags and repetition of an output's arrays, which a copy would not keep."""
    if isinstance(output, np.ndarray):
        flags = output.flags
        order = f"{'C' * flags.c_contiguous}{'F' * flags.f_contiguous}"
        strides = "" if order else f" strides {output.strides}"
        return (
            f"{output.dtype.str} {order}{strides}{'' if flags.writeable else ' read-only'}"
            f"{'' if output.base is None else ' view'}"
        )
    if depth and isinstance(output, tuple | list | Mapping):
        parts = list(output.values() if isinstance(output, Mapping) else output)[:LONG]
    elif depth and is_dataclass(output) and not isinstance(output, type):
        parts = [getattr(output, field.name, None) for field in fields(output)]
    else:
        return type(output).__name__ if isinstance(output, np.generic | float) else ""
    arrays = [x for x in parts if isinstance(x, np.ndarray)]
    same = [i for i, x in enumerate(arrays) if any(x is y for y in arrays[:i])]
    inner = ", ".join(layout(x, depth - 1) for x in parts)
    return f"({inner}){f' repeats {same}' if same else ''}"


@dataclass(frozen=True, slots=True)
class OutputTable:
    """Outputs of several runs as columns: ``numbers`` (n, k), 0 where a leaf is none, and
    ``symbols`` (n, m), codes into ``values``, −1 for what was not seen when the columns were
    chosen."""

    numbers: Array
    names: tuple[str, ...]
    symbols: Codes
    paths: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Any) -> OutputTable:
        return OutputTable(
            self.numbers[rows], self.names, self.symbols[rows], self.paths, self.values
        )


def tabulate(outputs: Sequence[Any], like: OutputTable | None = None) -> OutputTable:
    """Columns for these outputs, the same as those of ``like`` if given."""
    plain = _homogeneous(outputs)
    names = () if plain is None else tuple(f"[{i}]" for i in range(plain.shape[1]))
    if plain is not None and (like is None or like.names == names):
        if like is None:
            return OutputTable(plain, names, np.zeros((len(plain), 0), dtype=np.int64), (), ())
        one = _filled([row_of(outputs[0])], like)  # alike but for the numbers
        return OutputTable(
            plain, like.names, one.symbols.repeat(len(plain), axis=0), like.paths, like.values
        )
    rows = [row_of(output) for output in outputs]
    return _filled(rows, _columns(rows) if like is None else like)


def row_of(output: Any) -> dict[str, Any]:
    """The leaves of one output, by their paths."""
    return dict(itertools.islice(_leaves(output, ""), MAX_LEAVES))


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
    elif all(isinstance(x, float) for x in outputs):  # np.float64 is one
        values = np.array(outputs, dtype=np.float64)[:, None]
    else:
        return None
    odd = (values == 0) & np.signbit(values)
    return values if (np.abs(values) <= LARGE).all() and not odd.any() else None


class _Note(str):
    """What is said about an output; numbers in it are none of the output's."""

    __slots__ = ()


def _leaves(item: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    parts = None if depth > MAX_DEPTH else _parts(item, path)
    if parts is None:
        yield from _atoms(item, path or "[0]")
        return
    for place, part in parts:
        if type(part) is float:  # most parts are; as below, but fast
            yield place, part
        else:
            yield from _leaves(part, place, depth + 1)


def _parts(item: Any, path: str) -> Iterable[tuple[str, Any]] | None:
    if isinstance(item, np.generic | str | Enum | type):
        return None
    if isinstance(item, bytes | bytearray | memoryview | array):
        return _bytes(bytes(item), path)
    if isinstance(item, np.ndarray):
        kind = [(f"{path}.shape", _Note(f"{item.dtype.str}{item.shape}"))]
        flat = item.ravel()
        simple = item.dtype.kind in "biufO"
        return [*kind, *_numbered(flat.tolist() if simple else list(flat), path)]
    if isinstance(item, complex):
        return [(f"{path}.real", item.real), (f"{path}.imag", item.imag)]
    if isinstance(item, Raised):
        return [(f"{path}.raises", item.kind), (f"{path}.message", item.message)]
    if isinstance(item, Noted):
        told = [(f"{path}.layout", _Note(item.layout))] if item.layout else []
        return [*told, *_numbered(item.warnings, f"{path}.warnings"), (path, item.value)]
    if isinstance(item, Mapping):
        entries = [(f"{path}[{key!r}]", value) for key, value in item.items()]
        keys = _numbered(list(item), f"{path}.key")
        return [(f"{path}.keys", _Note(list(item))), *keys, *entries]
    if isinstance(item, KeysView | ValuesView | ItemsView | deque):
        item = list(item)
    if isinstance(item, Sequence):
        kind = [(f"{path}.length", _Note(f"{type(item).__name__} of {len(item)}"))]
        return [*kind, *_numbered(item, path)]
    if isinstance(item, set | frozenset):
        members = sorted(map(repr, item))
        numbers = sorted(float(m) for m in item if isinstance(m, int | float))
        return [
            (f"{path}.members", _Note(members)),
            (f"{path}.order", _Note(list(map(repr, item)))),
            *((f"{path}{{{m}}}", True) for m in members),
            *_numbered(numbers, f"{path}.sorted"),
        ]
    if isinstance(item, io.StringIO | io.BytesIO):
        return [(path, item.getvalue())]
    if hasattr(item, "__array__"):  # tensors, frames, series
        return [(path, np.asarray(item))]
    return _fields(item, path)


def _bytes(raw: bytes, path: str) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = [(f"{path}.bytes", _Note(raw[:MAX_NUMBERS]))]
    parts += _numbered(list(raw[:MAX_NUMBERS]), f"{path}.byte")
    with contextlib.suppress(UnicodeDecodeError):
        parts.append((f"{path}.text", raw.decode()))
    if len(raw) and len(raw) % 8 == 0:
        parts += _numbered(np.frombuffer(raw, dtype="<f8").tolist(), f"{path}.float")
    return parts


def _numbered(items: Sequence[Any], path: str) -> list[tuple[str, Any]]:
    return [(f"{path}[{i}]", value) for i, value in enumerate(_folded(items))]


def _folded(items: Sequence[Any]) -> Sequence[Any]:
    """At most MAX_NUMBERS items: of longer outputs the rest is there as sums of groups."""
    if len(items) <= MAX_NUMBERS:
        return items
    try:
        rest = np.array(items[MAX_NUMBERS - GROUPS :], dtype=np.float64)
    except (TypeError, ValueError):
        rest = np.array([zlib.crc32(repr(x).encode()) for x in items[MAX_NUMBERS - GROUPS :]])
    rest = np.concatenate([rest, np.zeros(-len(rest) % GROUPS)])
    sums = rest.reshape(-1, GROUPS).sum(axis=0)
    return [*items[: MAX_NUMBERS - GROUPS], *sums.tolist()]


def _fields(item: Any, path: str) -> list[tuple[str, Any]] | None:
    if isinstance(item, float | int | None | Fraction):
        return None
    names = [field.name for field in fields(item)] if is_dataclass(item) else []
    names += [name for name in getattr(item, "__dict__", ()) if name not in names]
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [n for n in ([slots] if isinstance(slots, str) else slots) if n not in names]
    if not names:
        return None
    held = [(f"{path}.{name}", getattr(item, name)) for name in names if hasattr(item, name)]
    return [(f"{path}.type", _Note(type(item).__name__)), *held]


def _atoms(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(item, np.datetime64 | np.timedelta64):
        item = str(item) if np.isnat(item) else int(item.astype(np.int64))
    elif isinstance(item, np.generic):
        item = float(item) if isinstance(item, np.floating) else item.item()
    if isinstance(item, complex | tuple):
        yield from _leaves(item, path)
    elif isinstance(item, Enum | type):
        yield path, item.name if isinstance(item, Enum) else item.__qualname__
    elif isinstance(item, bool | None):
        yield path, item
    elif isinstance(item, int):
        yield path, int(item)
        if abs(item) >= 2**53:  # more digits than a float has
            yield f"{path}.digits", hex(item)
    elif isinstance(item, float):
        yield path, float(item)
    else:
        shown = isinstance(item, str)
        text = str(item) if shown else repr(item)
        if not shown and (callable(item) or isawaitable(item) or " at 0x" in text):
            raise CheckError(f"output{path}: a {type(item).__name__} cannot be looked into")
        yield path, text
        if isinstance(item, _Note):
            return
        if result := [float(digits) for digits in _DIGITS.findall(text)]:
            yield from _numbered(result, f"{path}.number")
        if len(text) > LONG:
            yield f"{path}.letters", len(text)


_DIGITS = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def numbers_in(data: Any) -> Array:
    """The numbers that data are made of, as far as outputs would be looked at."""
    try:
        result = [_number(leaf) for _, leaf in itertools.islice(_leaves(data, ""), MAX_NUMBERS)]
    except CheckError:  # data may hold what outputs may not
        return np.zeros(0)
    return np.array([number for number in result if number is not None])


def _number(leaf: Any) -> float | None:
    if type(leaf) is float:
        return _tamed(leaf) if math.isfinite(leaf) else None
    if type(leaf) is not int:
        return None
    return _tamed(float(max(min(leaf, 2**1000), -(2**1000))))


def _tamed(value: float) -> float:
    """The number, or one in the same order whose square is finite."""
    if abs(value) <= LARGE:
        return value
    return math.copysign(LARGE * (1 + math.log10(abs(value) / LARGE)), value)


def _symbol(leaf: Any) -> Any:
    """What a leaf is, apart from its value if it is a number; NaN equals NaN."""
    if type(leaf) is float:
        if leaf == 0 and math.copysign(1.0, leaf) < 0:
            return MINUS_ZERO
        return NUMBER if math.isfinite(leaf) else repr(leaf)
    return WHOLE if type(leaf) is int else leaf


def _columns(rows: Sequence[Mapping[str, Any]]) -> OutputTable:
    counts: dict[str, Counter[Any]] = {}
    for row in rows:
        for path, leaf in row.items():
            counts.setdefault(path, Counter())[_symbol(leaf)] += 1
    for seen in counts.values():
        if missing := len(rows) - seen.total():
            seen[ABSENT] += missing
    numeric = [path for path, seen in counts.items() if seen.keys() & {NUMBER, WHOLE, MINUS_ZERO}]
    varied = {path: seen.most_common(MAX_SYMBOLS) for path, seen in counts.items() if len(seen) > 1}
    names, paths = tuple(numeric[:MAX_NUMBERS]), tuple(varied)
    values = tuple(tuple(value for value, _ in seen) for seen in varied.values())
    empty = np.zeros((0, len(paths)), dtype=np.int64)
    return OutputTable(np.zeros((0, len(names))), names, empty, paths, values)


def _filled(rows: Sequence[Mapping[str, Any]], like: OutputTable) -> OutputTable:
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
    return OutputTable(numbers, like.names, symbols, like.paths, like.values)
