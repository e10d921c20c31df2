"""Sealed rows on their way to the process that releases them: encrypted, like partial sums.

Where a batch's rows come in at several processes, they go to one: the owner of the batch, which
joins them in order of their slots (`Rows.concat`), and pools them where the rule of participation
says so.  Partial sums (`privlearn.rows.partial_sums`) are smaller, where nothing is pooled.

What a registry of persons found goes with the rows: which rows are learned, and of each of them a
number that stands for its person.  Only a process that has the same registry takes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Any, Final

from privlearn.errors import ProvenanceError
from privlearn.rows.packing import Parts, packed, unpacked
from privlearn.rows.partial_sums import cipher_of
from privlearn.rows.sealed import Rows
from privlearn.rows.stamps import Registry, check_registry

_FORMAT: Final = b"privlearn rows 1"
_NONCE = 12


def rows_to_bytes(rows: Rows[Any], key: bytes, *, kinds: Collection[type[Any]] = ()) -> bytes:
    """Encrypts rows (AES-256-GCM) for another process that has the key and the same registry.

    They hold everything of the rows, and how long they are may tell that some row is null, or of
    another form than the others: send them where nobody else sees them.

    Args:
        rows: logged ones.
        key: 32 bytes, known to both processes only.
        kinds: the classes of named tuples that the rows are made of.

    Raises:
        ValueError: another key.
        TypeError: no rows, or rows made of another class.
        ProvenanceError: a billboard served them; or, on a timetable, rows of several calls.
    """
    if not isinstance(rows, Rows):
        raise TypeError(f"rows: must be Rows, not {type(rows).__name__}")
    cipher, stamp, parts = cipher_of(key), Rows._stamp_of(rows), Rows._parts_of(rows)
    if parts.served:
        raise ProvenanceError(
            "rows that a billboard served stay where it is: in another process they would be "
            "logged rows"
        )
    low, high = (0, 0) if stamp is None else stamp.calls
    if parts.at is not None and low != high:
        raise ProvenanceError(
            "rows on a timetable that were admitted in several calls: send those of each call by "
            "themselves, so that they can be joined in the order of the calls"
        )
    users = rows.users
    head = json.dumps({"users": [users.start, users.stop], "call": high}).encode()
    nonce = os.urandom(_NONCE)
    text = b"\n".join((head, packed(parts, kinds)))
    return nonce + bytes(cipher.encrypt(nonce, text, _FORMAT))


def rows_from_bytes(
    data: bytes, key: bytes, *, people: Registry | None = None, kinds: Collection[type[Any]] = ()
) -> Rows[Any]:
    """Decrypts what `rows_to_bytes` gave under the same key.

    Args:
        people: the registry that admitted the rows, if one did, as this process has it.
        kinds: as they were told to `rows_to_bytes`.

    Raises:
        TypeError: no bytes.
        ValueError: another key, bytes that were changed, or not what `rows_to_bytes` writes.
        ProvenanceError: another registry admitted them, or one did, and none is given.
        PeopleError: the registry is older than the rows.
    """
    from cryptography.exceptions import InvalidTag

    cipher = cipher_of(key)
    if not isinstance(data, bytes):
        raise TypeError(f"data: must be bytes, from rows_to_bytes, not {type(data).__name__}")
    try:
        text = cipher.decrypt(data[:_NONCE], data[_NONCE:], _FORMAT)
    except (InvalidTag, ValueError):
        raise ValueError(
            f"data of {len(data)} bytes: no rows under this key, or changed on the way"
        ) from None
    try:
        parts, call = _read(text, kinds)
    except (ValueError, TypeError, KeyError, IndexError):  # no word of what is in it
        raise ValueError(
            "data: encrypted with this key, but no rows, or rows made of a class that is not among "
            "kinds"
        ) from None
    name = None if parts.stamp is None else parts.stamp.registry
    if name is not None:
        check_registry(name, people, parts.users.stop)
    return Rows._of_parts(parts, None, people, call)


def rows_packed(rows: Rows[Any], kinds: Collection[type[Any]]) -> bytes:
    """Logged rows that no registry admitted, not encrypted: for `rows.partitions` only."""
    return packed(Rows._parts_of(rows), kinds)


def rows_unpacked(data: bytes, users: range, kinds: Collection[type[Any]]) -> Rows[Any]:
    """What `rows_packed` was given; of bytes that are known to be from there."""
    return Rows._of_parts(unpacked([data], users, kinds), None, None, 0)


def _read(text: bytes, kinds: Collection[type[Any]]) -> tuple[Parts, int]:
    line, _, body = text.partition(b"\n")
    head = json.loads(line)
    (start, stop), call = head["users"], head["call"]
    if not 0 <= start < stop or not isinstance(call, int):
        raise ValueError("users")
    parts = unpacked([body], range(start, stop), kinds)
    visits = stop - start if parts.at is None else len(parts.at)
    stamp, counts = parts.stamp, [sum(len(valid) for _, valid in parts.chunks)]
    if stamp is not None:
        counts += [len(each) for each in (stamp.persons, stamp.counted) if each is not None]
    nobodys = stamp is not None and stamp.registry is None
    if nobodys and any(valid.any() for _, valid in parts.chunks):
        raise ValueError("rows of nobody that hold something")
    if any(count != visits for count in counts) or parts.served:
        raise ValueError("rows")
    return parts, call
