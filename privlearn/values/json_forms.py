"""What the JSON objects inside ledger entries look like: their names, and the type of each value.

Numbers that must be exact are text, so that no reader rounds them; JSON has one kind of number, and
writes 1.0 as 1, so a real number may come as an integer, but never as a boolean.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Kind = tuple[type, ...]
TEXT: Kind = (str,)
WHOLE: Kind = (int,)
REAL: Kind = (int, float)
OBJECT: Kind = (dict,)
LIST: Kind = (list, tuple)
_NAMES = {str: "text", int: "an integer", float: "a number", dict: "an object", list: "a list"}

Form = Mapping[str, Kind]
"""The names that an object has, and of which types their values are."""


_NOTHING: Form = MappingProxyType({})


def check_form(what: str, data: Mapping[str, Any], form: Form, optional: Form = _NOTHING) -> None:
    """Raises unless an object has the names of ``form``, perhaps those of ``optional``, no others.

    Raises:
        KeyError: a name is missing.
        ValueError: one is unknown, or its value of another type.
    """
    for name in form:
        if name not in data:
            raise KeyError(name)
    for name, value in data.items():
        kinds = form.get(name) or optional.get(name)
        if kinds is None:
            raise ValueError(
                f"{what}: has no {str(name)!r:.80}, only {', '.join((*form, *optional))}"
            )
        if not is_of(value, kinds):
            expected = " or ".join(_NAMES[kind] for kind in kinds if kind in _NAMES)
            raise ValueError(f"{what}: {name} = {value!r:.80}: must be {expected}")


def is_of(value: object, kinds: Kind) -> bool:
    """Whether a value is of one of these types; a boolean is no number."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def named(what: str, data: Mapping[str, Any], key: str) -> str | None:
    """The kind that an object names under ``key``; None if it names none.

    Raises:
        ValueError: it is no text.
    """
    kind = data.get(key)
    if key in data and not isinstance(kind, str):
        raise ValueError(f"{what}: {key} = {kind!r:.80}: must be text")
    return kind


def check_curve(what: str, points: object) -> None:
    """Raises ValueError unless ``points`` is a list of pairs of exact numbers, written as text."""
    if not isinstance(points, list | tuple) or not all(
        isinstance(point, list | tuple) and len(point) == 2 and all(is_of(x, TEXT) for x in point)
        for point in points
    ):
        raise ValueError(f"{what}: curve: must be a list of pairs of numbers that are text")
