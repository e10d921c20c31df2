"""Ids as keyed hashes: what is kept of a person, and by whom it can be recognised.

An id is a text, bytes or an integer, of one kind in one registry.  It is hashed as it is: a text
by its code points, without any normalisation, so that two spellings are two persons.  The id itself
is never kept and stands in no message.  Without the key a hash tells nothing; with the key anybody
can try guesses, and e-mail addresses or numbers can be guessed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from numbers import Real
from typing import Any

KEY_BYTES = 32
HASH_BYTES = 16
KINDS = {"str": b"s", "bytes": b"b", "int": b"i"}
"""Kinds of ids, and the tag that tells them apart in what is hashed."""
_NOT_THERE = ("NAType", "NaTType")  # of pandas, which is not imported for it


def new_key() -> bytes:
    """A key for the hashes of one registry."""
    return secrets.token_bytes(KEY_BYTES)


def id_list(ids: Sequence[Any]) -> list[Any]:
    """The ids one by one, of a list, a tuple, an array or a column of a table.

    Raises:
        TypeError: a single id, or what has no order or no length.
    """
    if isinstance(ids, (list, tuple)):
        return list(ids)
    to_list = getattr(ids, "tolist", None) or getattr(ids, "to_list", None)
    listed = to_list() if callable(to_list) else None
    if not isinstance(listed, list):
        raise TypeError(f"ids: {type(ids).__name__}: must be a list, an array or a column of ids")
    return listed


def kind_of(ids: Sequence[Any], kind: str | None) -> str | None:
    """The one kind of all ids that are there, which is ``kind`` if that is known.

    Raises:
        TypeError: another kind, or what is no id; the message names types only.
    """
    for each in ids:
        found = _kind(each)
        if found is None or found == kind:
            continue
        if kind is not None:
            raise TypeError(
                f"ids: {found} beside {kind}: the ids of one registry are all of one kind"
            )
        kind = found
    return kind


def _kind(value: Any) -> str | None:
    """The kind of an id; None where there is none."""
    kind = type(value)
    if kind is str or kind is bytes:
        return kind.__name__ if value else None
    if kind is int:
        return "int"
    if value is None or kind.__name__ in _NOT_THERE:
        return None
    if isinstance(value, (str, bytes)):
        return ("str" if isinstance(value, str) else "bytes") if value else None
    if isinstance(value, Real) and not hasattr(value, "__index__") and value != value:
        return None
    if kind.__name__ in ("bool", "bool_") or not hasattr(value, "__index__"):
        raise TypeError(
            f"ids: {kind.__name__}: an id is a str, bytes or an int; None, an empty one and nan "
            "say that there is none"
        )
    return "int"


def hashes(key: bytes, ids: Sequence[Any]) -> list[bytes | None]:
    """The keyed hash of each id, 16 bytes of BLAKE2b; None where there is no id.

    The ids are of the kind that `kind_of` found.
    """
    keyed = blake2b(key=key, digest_size=HASH_BYTES)
    made: list[bytes | None] = []
    for each in ids:
        kind = _kind(each)
        if kind is None:
            made.append(None)
            continue
        data = _bytes(kind, each)
        state = keyed.copy()
        state.update(KINDS[kind] + len(data).to_bytes(8, "big") + data)
        made.append(state.digest())
    return made


def _bytes(kind: str, value: Any) -> bytes:
    if kind == "str":
        text: str = value
        return text.encode("utf-8", "surrogatepass")
    if kind == "bytes":
        return bytes(value)
    number = int(value.__index__())
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
