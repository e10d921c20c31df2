"""Canonical JSON (RFC 8785), as it is stored and hashed.

`rfc8785` writes it.  What an entry mostly holds, text and small numbers, pydantic's encoder in Rust
writes to the same bytes in a fifth of the time; which values those are is decided here, and
everything else is left to `rfc8785`.
"""

from __future__ import annotations

from typing import Any

import rfc8785
from pydantic_core import PydanticSerializationError, to_json

_DEEPEST = 16
_SMALLEST = 1e-4


class _OtherError(Exception):
    """A value that is left to `rfc8785`."""


def canonical(value: Any) -> bytes:
    """Canonical JSON (RFC 8785), as an entry is stored.

    Raises:
        ValueError: it is no JSON: not finite, an integer of 2^53 or more, no text.
    """
    try:
        return to_json(_plain(value, 0))
    except (_OtherError, PydanticSerializationError):
        return rfc8785.dumps(value)


def canonical_in_order(value: dict[str, Any]) -> bytes:
    """As `canonical`, in less time of an object of texts and small integers, in order."""
    try:
        return to_json(value) if _in_order(value, 0) else canonical(value)
    except PydanticSerializationError:
        return canonical(value)


def _in_order(value: Any, depth: int) -> bool:
    """Whether `_plain` has nothing to do."""
    for inner in value.values() if value.__class__ is dict else value:
        kind = inner.__class__
        if kind is str or inner is None or (kind is int and -(2**53) < inner < 2**53):
            continue
        if (kind is not dict and kind is not list) or depth == 2 or not _in_order(inner, depth + 1):
            return False
    if value.__class__ is not dict:
        return True
    names = [*value]
    texts = all([name.__class__ is str for name in names])
    return texts and names == sorted(names) and "".join(names).isascii()


def _plain(value: Any, depth: int) -> Any:
    """A value, with its names in their order, that pydantic writes as RFC 8785 has it.

    Both escape the same characters of a text.  Names in ASCII have one order, as code points and
    as UTF-16.  A whole number is written without point; others, from 1e-4 on and below 2^53, are
    written by both with the fewest digits and without exponent.
    """
    kind = value.__class__
    if kind is str or kind is bool or value is None:
        return value
    if kind is dict and depth < _DEEPEST:
        try:
            if not "".join(value).isascii():
                raise _OtherError
        except TypeError:
            raise _OtherError from None
        return {
            name: inner if (inner := value[name]).__class__ is str else _plain(inner, depth + 1)
            for name in sorted(value)
        }
    if (kind is list or kind is tuple) and depth < _DEEPEST:
        return [_plain(inner, depth + 1) for inner in value]
    if kind is int and -(2**53) < value < 2**53:
        return value
    if kind is float and -(2.0**53) < value < 2.0**53:
        if value.is_integer():
            return int(value)
        if not -_SMALLEST < value < _SMALLEST:
            return value
    raise _OtherError
