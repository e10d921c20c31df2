"""How a registry is asked by another process of its host: the forms of questions and answers.

Ids travel as they are, and the registry's key does not: whoever asks knows the ids of those who
visit it, and with the key it could test guesses about everybody.  So ids are for a moment in the
memory of the registry's owner, which hashes them; the socket is of one user (mode 0600).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import PeopleError
from privlearn.people.identities import kind_of
from privlearn.people.keeper import Found, Public
from privlearn.values.participation import Participation

ASK = "registry"
"""The field of a question that says what is asked of a registry."""


def malformed() -> PeopleError:
    """For a question or an answer that is not of its form; of what is in it nothing is said."""
    return PeopleError("a message about a registry of people that is not of its form")


def packed_ids(ids: Sequence[Any]) -> list[Any]:
    """The ids, of one kind, as JSON; None where there is none."""
    return [_packed(each) for each in ids]


def _packed(value: Any) -> Any:
    kind = kind_of([value], None)
    if kind is None:
        return None
    if kind == "str":
        return str(value)
    if kind == "bytes":
        return {"b": bytes(value).hex()}
    return {"i": f"{int(value.__index__()):x}"}  # in decimal Python refuses very long ones


def unpacked_ids(found: Any) -> list[Any]:
    """What `packed_ids` was given.

    Raises:
        PeopleError: it is not of its form.
    """
    if not isinstance(found, list):
        raise malformed()
    return [_unpacked(each) for each in found]


def _unpacked(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, text),) = value.items()
        if isinstance(text, str):
            try:
                return bytes.fromhex(text) if kind == "b" else int(text, 16)
            except ValueError:
                pass
    raise malformed()


def packed_range(users: range | None) -> list[int] | None:
    """A range as JSON."""
    return None if users is None else [users.start, users.stop]


def unpacked_range(found: Any) -> range | None:
    """What `packed_range` was given.

    Raises:
        PeopleError: it is not of its form.
    """
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2 or any(type(x) is not int for x in found):
        raise malformed()
    return range(*found)


def packed_public(public: Public, *, starts: bool) -> dict[str, Any]:
    """What is public, as JSON; ``starts``: with the batches, of which there may be many."""
    return {
        **public._asdict(),
        "rule": public.rule.to_dict(),
        "users": packed_range(public.users),
        "starts": list(public.starts) if starts and public.starts is not None else None,
    }


def unpacked_public(found: Any, starts: tuple[int, ...] | None) -> Public:
    """What `packed_public` was given, with ``starts`` where they are known already.

    Raises:
        PeopleError: it is not of its form.
    """
    try:
        told = found["starts"]
        return Public(
            **{
                **found,
                "rule": Participation.from_dict(found["rule"]),
                "users": unpacked_range(found["users"]),
                "starts": starts if told is None else tuple(told),
            }
        )
    except (KeyError, TypeError, ValueError):
        raise malformed() from None


def packed_found(found: Found) -> tuple[dict[str, Any], bytes]:
    """What was found of visits, as JSON and bytes."""
    arrays = (
        np.array(found.learned, dtype=np.uint8),
        np.array(found.counted, dtype=np.uint8),
        np.array(found.persons, dtype="<i8"),
    )
    fields = {"users": packed_range(found.users), "call": found.call}
    return fields, b"".join(each.tobytes() for each in arrays)


def unpacked_found(fields: Mapping[str, Any], attached: bytes, visits: int) -> Found:
    """What `packed_found` was given, of so many visits.

    Raises:
        PeopleError: it is not of its form.
    """
    users, call = unpacked_range(fields.get("users")), fields.get("call")
    if users is None or type(call) is not int or len(attached) != 10 * visits:
        raise malformed()
    learned = np.frombuffer(attached, np.uint8, visits).astype(np.bool_)
    counted = np.frombuffer(attached, np.uint8, visits, visits).astype(np.bool_)
    persons = np.frombuffer(attached, "<i8", visits, 2 * visits)
    return Found(users, learned.tolist(), persons.tolist(), counted.tolist(), call)


def packed_numbers(values: NDArray[np.int64]) -> bytes:
    """Numbers as bytes."""
    return values.astype("<i8").tobytes()


def unpacked_numbers(data: bytes) -> NDArray[np.int64]:
    """What `packed_numbers` was given.

    Raises:
        PeopleError: it is not of its form.
    """
    if len(data) % 8:
        raise malformed()
    return np.frombuffer(data, "<i8").astype(np.int64)


def as_json(value: Any) -> bytes:
    """JSON in ASCII, in which also a text that is no Unicode has its form."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def from_json(data: bytes) -> Any:
    """What `as_json` was given.

    Raises:
        PeopleError: it is not of its form.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise malformed() from None
