"""Sealed rows as bytes, and back: one line of JSON, and then the arrays.

Arrays are written as type, shape and bytes, of numbers and text only; the tuples around them by the
name of their class, which whoever reads must hand in.  Nothing that is read is ever run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.record_forms import Cells, Form, Forms

PLAIN_KINDS = "biufcUSmM"
"""Kinds of NumPy's types whose bytes are the whole value."""


class PackedStamp(NamedTuple):
    """What is kept of a stamp; ``registry`` is its name, and None of rows that are nobody's."""

    registry: str | None
    persons: NDArray[np.int64] | None
    counted: NDArray[np.bool_] | None
    pooled: bool


class Parts(NamedTuple):
    """All that sealed rows hold."""

    users: range
    chunks: tuple[tuple[Any, NDArray[np.bool_]], ...]
    """Blocks, or None, and which of their rows are real."""
    served: bool
    functions: tuple[str, ...]
    defect: str | None
    stamp: PackedStamp | None
    at: NDArray[np.int64] | None
    forms: Forms = ()


def packed(parts: Parts, kinds: Collection[type[Any]] = ()) -> bytes:
    """The bytes from which `unpacked` makes the same parts, all but the users.

    A block with arrays of objects is written as null: that it has some may follow from a row.

    Raises:
        TypeError: a tuple in a block is neither a plain one nor of the classes ``kinds``.
    """
    out = _Writer(kinds)
    stamp = parts.stamp
    head = {
        "served": parts.served,
        "functions": parts.functions,
        "defect": parts.defect,
        "chunks": [out.chunk(block, valid) for block, valid in parts.chunks],
        "stamp": None
        if stamp is None
        else {
            "registry": stamp.registry,
            "persons": out.maybe(stamp.persons),
            "counted": out.maybe(stamp.counted),
            "pooled": stamp.pooled,
        },
        "at": out.maybe(parts.at),
    }
    if parts.forms:
        head["forms"] = [_form_told(form) for form in parts.forms]
    line = json.dumps(head, separators=(",", ":")).encode()
    return b"\n".join((line, b"".join(out.arrays)))


def joins(head: bytes) -> bool:
    """Whether records that all begin so, of consecutive users, can be read as one block."""
    told = _read(head)
    return told["at"] is None and len(told["chunks"]) == 1


def unpacked(records: Sequence[bytes], users: range, kinds: Collection[type[Any]] = ()) -> Parts:
    """What `packed` was given; of several records that `joins` all of it.

    Raises:
        ValueError, KeyError, TypeError: these are no such bytes.
    """
    line = records[0].partition(b"\n")[0]
    head = _read(line)
    named = {kind.__name__: kind for kind in kinds}
    read = _Reader([r[len(line) + 1 :] for r in records], named)
    chunks = tuple(read.chunk(form) for form in head["chunks"])
    stamp = head["stamp"]
    made = None
    if stamp is not None:
        persons, counted = read.maybe(stamp["persons"]), read.maybe(stamp["counted"])
        made = PackedStamp(stamp["registry"], persons, counted, stamp["pooled"])
    at = read.maybe(head["at"])
    read.check_done()
    functions = tuple(head["functions"])
    forms = tuple(_form_read(form, named) for form in head.get("forms", ()))
    return Parts(users, chunks, head["served"], functions, head["defect"], made, at, forms)


def _form_told(form: Form) -> Any:
    if isinstance(form, tuple):
        return {"class": type(form).__name__, "fields": [_form_told(field) for field in form]}
    return None if form is None else sorted(form)


def _form_read(told: Any, kinds: Mapping[str, type[Any]]) -> Form:
    if isinstance(told, dict):
        fields = [_form_read(field, kinds) for field in told["fields"]]
        kind = kinds.get(told["class"])
        return tuple(fields) if kind is None else cast(Form, kind(*fields))
    if told is None:
        return None
    return frozenset(Cells(tuple(shape), *rest) for shape, *rest in told)


@lru_cache(maxsize=64)
def _read(line: bytes) -> Any:
    """Of rows that came one by one most have the same."""
    return json.loads(line)


@final
class _Writer:
    def __init__(self, kinds: Collection[type[Any]]) -> None:
        self.arrays: list[bytes] = []
        self._kinds = kinds

    def chunk(self, block: Any, valid: NDArray[np.bool_]) -> dict[str, Any]:
        if block is None or not _is_plain(block):
            return {"n": len(valid), "block": None}
        form = {"n": len(valid), "block": self.block(block)}
        return form if valid.all() else {**form, "valid": self.array(valid)}

    def block(self, block: Any) -> Any:
        if block is None:
            return None
        if not isinstance(block, tuple):
            return self.array(np.asarray(block))
        fields = [self.block(field) for field in block]
        kind = type(block)
        if kind is tuple:
            return {"class": None, "fields": fields}
        if kind not in self._kinds:
            raise TypeError(f"rows made of {kind.__qualname__}: a store must be told of that class")
        return {"class": kind.__name__, "fields": fields}

    def array(self, values: NDArray[Any]) -> list[Any]:
        self.arrays.append(values.tobytes())
        return [values.dtype.str, list(values.shape)]

    def maybe(self, values: NDArray[Any] | None) -> list[Any] | None:
        return None if values is None else self.array(values)


@final
class _Reader:
    """Arrays of one record, or of several whose arrays have the same forms, joined."""

    def __init__(self, records: Sequence[bytes], kinds: Mapping[str, type[Any]]) -> None:
        data = np.frombuffer(b"".join(records), np.uint8)
        self._data, self._at, self._kinds = data.reshape(len(records), -1), 0, kinds

    def chunk(self, form: Mapping[str, Any]) -> tuple[Any, NDArray[np.bool_]]:
        block = None if form["block"] is None else self.block(form["block"])
        if "valid" in form:
            return block, self.array(form["valid"])
        return block, np.full(form["n"] * len(self._data), block is not None)

    def block(self, form: Any) -> Any:
        if isinstance(form, list):
            return self.array(form)
        fields = [self.block(field) for field in form["fields"]]
        name = form["class"]
        if name is None:
            return tuple(fields)
        if name not in self._kinds:
            raise ValueError(f"its rows are made of {name}, which is not among those handed in")
        return self._kinds[name](*fields)

    def array(self, form: Any) -> NDArray[Any]:
        kind, shape = np.dtype(form[0]), tuple(form[1])
        if kind.kind not in PLAIN_KINDS or kind.hasobject:
            raise ValueError(f"an array of type {kind}")
        size = kind.itemsize * math.prod(shape)
        if self._at + size > self._data.shape[1]:
            raise ValueError("an array ends too early")
        # in memory of its own, aligned, which the arithmetic may depend on
        found = np.zeros((shape[0] * len(self._data), *shape[1:]), kind)
        if size:
            own = found.reshape(-1).view(np.uint8).reshape(len(self._data), size)
            own[:] = self._data[:, self._at : self._at + size]
        self._at += size
        return found

    def maybe(self, form: Any) -> NDArray[Any] | None:
        return None if form is None else self.array(form)

    def check_done(self) -> None:
        if self._at != self._data.shape[1]:
            raise ValueError("there is more than its arrays")


def _is_plain(block: Any) -> bool:
    if isinstance(block, tuple):
        return all(_is_plain(field) for field in block)
    kind = np.asarray(block).dtype
    return kind.kind in PLAIN_KINDS and not kind.hasobject and kind.names is None
