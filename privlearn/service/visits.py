"""A visitor's body as a question to the owner, whatever the body holds.

The body is one visitor's data, and its arrival index must not hang on them: every body that comes
whole, within the size limit and with the right access token, is asked for a place.  One that is of
another form, down to bytes that are no text, is a null record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import ValidationError

from privlearn.errors import DataError
from privlearn.people import People
from privlearn.service.messages import Recommend, unpacked
from privlearn.values.user_code import FAILED, attempted

_NO_RULE: Final = "person: the service has no rule of participation, so that nobody is named"
_NOBODY: Final = (
    "person is missing: the service has a rule of participation; null says that nobody can tell"
)


class Visit(NamedTuple):
    """What the owner is asked, all numbers as floats beside it, and what the caller is told."""

    fields: dict[str, Any]
    attached: bytes
    wrong: str | None
    """With the form of the body; the record is then null."""


def visit_of(
    body: bytes, form: type[Recommend], shapes: Mapping[str, tuple[int, ...]], *, ruled: bool
) -> Visit:
    """What a body asks the owner.

    Numbers that are of no such form go as an empty array, as do all of a body of another form:
    their record is null, as of any others that cannot be used.
    """
    sent = attempted(_read, body, form, ruled=ruled)
    if sent is FAILED:
        sent = "the body is no JSON"
    wanted = None if isinstance(sent, str) else sent
    parts = {}
    for name, shape in shapes.items():
        numbers = None if wanted is None else getattr(wanted, name)
        if numbers is not None or form.model_fields[name].is_required():
            found = attempted(_floats, numbers, shape, form)
            parts[name] = b"" if found is FAILED else found
    fields: dict[str, Any] = {"sizes": {name: len(part) for name, part in parts.items()}}
    if ruled:
        fields["person"] = None if wanted is None else wanted.person
    return Visit(fields, b"".join(parts.values()), sent if isinstance(sent, str) else None)


def digest(visit: Visit) -> str:
    """Tells apart what is asked with one Idempotency-Key."""
    told = f"{visit.fields['sizes']} {visit.fields.get('person')!r}".encode()
    return hashlib.sha256(told + visit.attached).hexdigest()


def _read(body: bytes, form: type[Recommend], *, ruled: bool) -> Recommend | str:
    try:
        found = form.model_validate(json.loads(body or b"{}"))
    except ValidationError as error:
        return what_is_wrong((item, item["loc"]) for item in error.errors())
    if ruled is ("person" in found.model_fields_set):
        return found
    return _NOBODY if ruled else _NO_RULE


def _floats(sent: Any, shape: tuple[int, ...], form: type[Recommend]) -> bytes:
    found = unpacked(sent)
    if isinstance(found, np.ndarray):
        return found.tobytes() if form.shaped(found, shape) is not None else b""
    with np.errstate(all="ignore"):
        values = np.array(found, dtype="<f8")
    return values.tobytes() if form.fits(values.shape, shape) else b""


def what_is_wrong(mistakes: Iterable[tuple[Any, tuple[Any, ...]]]) -> str:
    """Names and kinds of mistakes; no values, as they are somebody's."""
    found = []
    for item, place in mistakes:
        name = str(place[0]) if place else ""
        if item["type"] == "json_invalid":
            found.append("the body is no JSON")
        elif item["type"] == "extra_forbidden":
            found.append("there is a name that the request does not have")
        elif item["type"] == "missing":
            found.append(f"{name or 'the body'}: must be given")
        else:
            said = str(item["msg"]).removeprefix("Value error, ")
            found.append(f"{name or 'the body'}: {said}")
    return "; ".join(found[:5])


def form_of_ids(people: People) -> type[str | int]:
    """What ids of a registry are: text, unless there are numbers in it already.

    Raises:
        DataError: neither, so that no request can name anybody.
    """
    for form in (str, int):
        with suppress(TypeError):
            people.nobody([form(1)])
            return form
    raise DataError(f"{people!r}: has ids in bytes, which no request of the service can name")


def as_id(person: str | int | None, form: type[str | int]) -> str | int | None:
    """A person's id in the form of a registry; None if it has none in it."""
    if person is None or form is str:
        return None if person is None else str(person)
    found = attempted(int, person)
    return found if found is not FAILED and str(found) == str(person) else None
