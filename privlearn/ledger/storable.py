"""Whether an entry is plainly what a reader of the ledger takes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum

_PLAIN_DEPTH = 16


def storable(values: Iterable[object], depth: int = 0) -> bool:
    """Whether values are plainly JSON that a reader takes; where not, `parse` says.

    An entry in memory is not written, and what a file could not hold must not stand in it either.
    """
    for value in values:
        kind = value.__class__
        if kind is str:
            if not value.isascii() and not _encodes(value):  # type: ignore[attr-defined, arg-type]
                return False
        elif kind is int:
            if not -(2**53) < value < 2**53:  # type: ignore[operator]
                return False
        elif kind is float:
            if not math.isfinite(value):  # type: ignore[arg-type]
                return False
        elif value is None or kind is bool:
            pass
        elif kind is dict or kind is list or kind is tuple:
            if not value:
                continue
            if depth == _PLAIN_DEPTH:
                return False
            if kind is dict:
                try:
                    names = "".join(value)  # type: ignore[arg-type]
                except TypeError:
                    return False
                if not names.isascii() and not _encodes(names):
                    return False
                value = value.values()  # type: ignore[attr-defined]
            if not storable(value, depth + 1):  # type: ignore[arg-type]
                return False
        elif not isinstance(value, Enum) or value._value_.__class__ is not str:
            return False
    return True


def _encodes(text: str) -> bool:
    """Whether a text holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
