"""What processes of one host send each other: a JSON object, and bytes that come with it.

A frame is the lengths of both, four bytes each (big-endian), the JSON (UTF-8) and the bytes.  A
length above what was agreed on is refused before anything of it is read or held.  There is no
pickle: who sends frames cannot make whoever reads them run anything.

A question is ``{"id": 7, "ask": {...}}``; its answer is ``{"id": 7, "answer": {...}}``, or
``{"id": 7, "error": {"name": "LedgerBusyError", "message": "..."}}``.  Answers may come in any
order.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

from privlearn import errors
from privlearn.errors import InsufficientBudgetError, LocalSocketError, PrivlearnError

HEAD = struct.Struct(">II")


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What one side takes of the other.

    Args:
        json: bytes of the JSON of one frame.
        attached: bytes that come with it; of unanswered questions together hardly more.
        connections: that a server has at once.
        unanswered: questions of one connection; a server reads on when there are fewer.
        seconds: until a frame that was begun must be there, and an answer must be taken.
    """

    json: int = 9 * 2**20
    attached: int = 2**28
    connections: int = 512
    unanswered: int = 4096
    seconds: float = 30.0


@final
@dataclass(frozen=True, slots=True)
class Message:
    """A question or an answer: JSON, and bytes."""

    fields: dict[str, Any] = field(default_factory=dict)
    attached: bytes = b""


def framed(fields: dict[str, Any], attached: bytes, limits: Limits) -> bytes:
    """One frame.

    Raises:
        LocalSocketError: larger than the other side takes.
        ValueError, TypeError: no JSON.
    """
    data = json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    _check_lengths(len(data), len(attached), limits)
    return HEAD.pack(len(data), len(attached)) + data + attached


def lengths(head: bytes | bytearray | memoryview, limits: Limits) -> tuple[int, int]:
    """How many bytes of JSON, and of others, follow the first eight of a frame.

    Raises:
        LocalSocketError: more than is taken.
    """
    found: tuple[int, int] = HEAD.unpack(head)
    _check_lengths(*found, limits)
    return found


def _check_lengths(json: int, attached: int, limits: Limits) -> None:
    if json > limits.json or attached > limits.attached:
        raise LocalSocketError(
            f"a frame of {json} bytes of JSON and {attached} others: at most {limits.json} and "
            f"{limits.attached} are taken"
        )


def parsed(data: bytes | bytearray) -> tuple[int, dict[str, Any]]:
    """The number of a frame's JSON, and the object.

    Raises:
        LocalSocketError: not of the form.
    """
    try:
        found = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise LocalSocketError("a frame that is no JSON: who sent it speaks another way") from None
    number = found.get("id") if isinstance(found, dict) else None
    if number.__class__ is not int:
        raise LocalSocketError("a frame without an id: who sent it speaks another way")
    return number, found


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def object_in(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of that name.

    Raises:
        LocalSocketError: there is none.
    """
    inside = found.get(name)
    if not isinstance(inside, dict):
        raise LocalSocketError(f"a frame without {name!r}: who sent it speaks another way")
    return inside


def error_form(error: PrivlearnError) -> dict[str, Any]:
    """An error that was made on purpose, as JSON: its name and message, and nothing else of it."""
    form: dict[str, Any] = {"name": type(error).__name__, "message": str(error)}
    if isinstance(error, InsufficientBudgetError):
        users = error.users.start, error.users.stop
        told = {name: str(getattr(error, name)) for name in _PARTS}
        form["parts"] = {**told, "users": users}
    return form


_PARTS = "spent", "requested", "remaining", "cap"


def error_from(form: dict[str, Any]) -> PrivlearnError:
    """What to raise for what the other side raised: of that name, or of the nearest one above."""
    message = str(form.get("message", ""))
    found = getattr(errors, str(form.get("name", "")), None)
    if found is InsufficientBudgetError:
        parts = object_in(form, "parts")
        try:
            users = range(*parts["users"])
            return InsufficientBudgetError(users=users, **{name: parts[name] for name in _PARTS})
        except (KeyError, TypeError):
            raise LocalSocketError(
                "an error without its parts: who sent it speaks another way"
            ) from None
    if isinstance(found, type) and issubclass(found, PrivlearnError):
        for kind in found.__mro__:
            if issubclass(kind, PrivlearnError):
                try:
                    return kind(message)
                except TypeError:  # made from more than a message
                    continue
    return LocalSocketError(message)
