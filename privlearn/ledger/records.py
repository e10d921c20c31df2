"""How one entry is stored, and read back: its row, its envelope, and the JSON of both.

What stands there may come from people who are not trusted: nesting and numbers have limits.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any

from pydantic_core import from_json, to_json

from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import Record

APPLICATION_ID = 0x70726C6E  # "prln"
MOST_DEPTH = 64
MOST_DIGITS = 400

ENTRIES = """CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL
) STRICT"""
RELEASED = """CREATE TABLE released (
    digest TEXT PRIMARY KEY, value BLOB NOT NULL
) STRICT, WITHOUT ROWID"""


def record_of(seq: int, data: bytes, hash: bytes) -> Record:
    """An entry as it is stored.

    Raises:
        ValueError: it is of a wrong form.
    """
    envelope = parse(data)
    if envelope.__class__ is not dict or not _ENVELOPE.issuperset(envelope):
        raise ValueError(f"entry {seq} has no envelope, or one with unknown parts")
    body = envelope.pop("body", None)
    if body.__class__ is not dict:
        raise ValueError(f"entry {seq} has no body")
    if not _HASH.fullmatch(hash):
        raise ValueError(f"the hash of entry {seq} is not one of 64 hexadecimal digits")
    return Record(seq, body, hash.decode(), data, envelope)


_HASH = re.compile(rb"[0-9a-f]{64}")
_ENVELOPE = frozenset({"at", "body", "epoch", "ext", "nonce", "root", "writer"})


def record_of_1(seq: int, body: dict[str, Any], digests: dict[str, str], hash: str) -> Record:
    """An entry of format 1, in its parts.

    Raises:
        ValueError: they are of a wrong form.
    """
    forms = ((seq, int), (body, dict), (digests, dict), (hash, str))
    if not all(isinstance(value, form) for value, form in forms):
        raise ValueError(f"entry {seq} has no body, digests or hash")
    return Record(seq, body, hash, digests=digests)


def record_in_row_1(seq: int, body: bytes, digests: bytes, hash: bytes) -> Record:
    """A row of format 1; as `record_of`."""
    told, fields = (parse(each, most_digits=MOST_DIGITS) for each in (body, digests))
    return record_of_1(seq, told, fields, hash.decode())


def parse(data: bytes, most_digits: int | None = None) -> Any:
    """JSON as RFC 7493 has it: UTF-8, no name twice, finite numbers, integers below 2^53.

    A larger integer is a real number, where it is how RFC 8785 writes that.

    ``most_digits`` allows integers of so many digits instead, for format 1.

    Raises:
        ValueError: it is not that, or nested too deeply.
    """
    if data.count(b"{") + data.count(b"[") > MOST_DEPTH and _depth(data) > MOST_DEPTH:
        raise ValueError(f"JSON that is nested more than {MOST_DEPTH} levels deep")
    if most_digits is None and data[:1] == b"{" and _LONG_RUN not in data.translate(_SHAPE):
        # Several times as fast.  What is written back as the same bytes had no name twice and no
        # number that is not finite or has another reading; all else is looked at below.
        try:
            value = from_json(data, allow_inf_nan=False)
            if to_json(value) == data:
                return value
        except ValueError:
            pass
    text = data.decode()
    value = (_SAFE if most_digits is None else _LONG).decode(text)
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair
    return value


_LONG_RUN = b":" + b"0" * 16  # an integer of 2^53 or more begins and goes on like that
_SHAPE = bytes.maketrans(b"123456789[,-", b"000000000:::")


def _depth(data: bytes) -> int:
    brackets = _STRING.sub(b"", data).translate(_STEPS, _OTHERS)
    return max(accumulate(1 if step == 43 else -1 for step in brackets), default=0)


# a text without an end goes on to the end: looked for again at each of its quotes, it takes hours
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEPS = bytes.maketrans(b"{[}]", b"++--")
_OTHERS = bytes(set(range(256)) - set(b"{[}]"))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:80]!r} stands twice in one JSON object")
    return value


def _safe_integer(text: str) -> int | float:
    if len(text) < 18 and abs(value := int(text)) < 2**53:
        return value
    # as an integer below 1e21 is how canonical JSON writes a real number without a fraction
    if len(text) < 23 and canonical(real := float(text)) == text.encode():
        return real
    raise ValueError(f"the integer {text[:40]} is not below 2^53, nor a double's canonical form")


def _long_integer(text: str) -> int:
    if len(text) > MOST_DIGITS + 1:
        raise ValueError(f"an integer of more than {MOST_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    if len(text) > MOST_DIGITS or not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:40]} is too large or too long")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_SAFE, _LONG = (
    json.JSONDecoder(
        object_pairs_hook=_once, parse_int=integer, parse_float=_finite, parse_constant=_no_constant
    )
    for integer in (_safe_integer, _long_integer)
)
