"""Values in full and in a form that can be compared bit by bit, and where two of them differ."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from enum import Enum
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from privlearn.billboard import Billboard
from privlearn.errors import InterferenceError
from privlearn.rows import Sealed
from privlearn.tokens import Token

CanonicalValue = Any
"""None, bool, int, float, str, or a list whose first entry says what the others are."""

_ATOMS = frozenset([bool, int, float, str, type(None)])
_NUMBERS = frozenset([bool, int, float, type(None)])


class CanonicalForm:
    """Turns values into forms: JSON values and arrays, and other objects only if asked to.

    Args:
        known: objects that are the same in every run, by name; the ``accountant`` also gives its
            id, which is random and is taken out of all texts.
        objects: whether to look into other objects, private fields included.
    """

    def __init__(self, known: dict[str, Any], *, objects: bool = False) -> None:
        self._known = {id(item): (name, item) for name, item in known.items()}
        self._id = getattr(known.get("accountant"), "id", "accountant")
        self._objects = objects

    def of(self, item: Any, name: str) -> CanonicalValue:
        """The form of a value; what occurs in it a second time is named, not repeated.

        Raises:
            InterferenceError: it holds something that cannot be compared; ``name`` says where.
        """
        self._seen = self._known.copy()
        return self._form(item, name)

    def _form(self, item: Any, name: str) -> CanonicalValue:
        kind = type(item)
        if kind is str:
            return item.replace(self._id, "accountant")
        if kind in _NUMBERS:
            return item
        if isinstance(item, Enum):
            return ["enum", kind.__qualname__, item.name]
        if _is_array(item):
            shape = list(item.shape)
            return ["array", repr(item.dtype), shape, item.tobytes(), item.dtype.str]
        is_list = kind is list or kind is tuple
        if is_list and _NUMBERS.issuperset(map(type, item)):
            return ["list", *item]
        if id(item) in self._seen:
            return ["seen", self._seen[id(item)][0]]
        self._seen[id(item)] = (str(len(self._seen)), item)  # kept, so that no id is used twice
        if is_list:
            return ["list", *[self._form(x, f"{name}[{i}]") for i, x in enumerate(item)]]
        if kind is dict:
            values = [self._form(value, f"{name}[{key!r}]") for key, value in item.items()]
            return ["dict", self._form(list(item), f"the keys of {name}"), values]
        if not self._objects:
            raise InterferenceError(
                f"{name} is of type {kind.__qualname__}, which may hide something: it must "
                "be a JSON value or a numpy array"
            )
        return ["object", kind.__qualname__, self._form(self._inside(item, name), name)]

    def _inside(self, item: Any, name: str) -> Any:
        if isinstance(item, Sealed | Token | type | bytes):
            return repr(item)
        if isinstance(item, Billboard):
            return [item.clock, item.history()]
        try:
            parts = item.__reduce_ex__(4)[1:]  # as for a pickle; also of types written in C
            listed = [list(x) if isinstance(x, Iterator) else x for x in parts]
            return [object.__getstate__(item), listed]
        except Exception as error:
            raise InterferenceError(
                f"{name} cannot be compared ({error}): make it private or define public_state()"
            ) from None


def _is_array(item: object) -> TypeGuard[NDArray[Any]]:
    plain = type(item) is np.ndarray or isinstance(item, np.generic)
    return plain and not item.dtype.hasobject  # type: ignore[attr-defined]


def alike(x: CanonicalValue, y: CanonicalValue) -> bool:
    """Whether two forms are equal in type and in every bit: NaN is NaN, 1 is neither 1.0 nor True.

    Version 2 of marshal writes numbers in binary and knows no references between equal objects.
    """
    return marshal.dumps(x, 2) == marshal.dumps(y, 2)


def difference(x: CanonicalValue, y: CanonicalValue, name: str) -> str:
    """Where two forms that are not alike differ first, and the two values, shortened."""
    kinds = {form[0] if isinstance(form, list) else None for form in (x, y)}
    if kinds == {"list"} and len(x) == len(y):
        i = next(i for i in range(1, len(x)) if not alike(x[i], y[i]))
        return difference(x[i], y[i], f"{name}[{i - 1}]")
    if kinds == {"dict"} and alike(x[1], y[1]):
        i = next(i for i, (a, b) in enumerate(zip(x[2], y[2], strict=True)) if not alike(a, b))
        return difference(x[2][i], y[2][i], f"{name}[{x[1][i + 1]!r}]")
    if kinds == {"object"} and x[1] == y[1] and not alike(x[2], y[2]):
        return difference(x[2], y[2], name)
    if kinds == {"array"} and x[1:3] == y[1:3] and (place := _place(x, y)):
        at, a, b = place
        return f"{name}{at}: {a!r}, then {b!r}"
    return f"{name}: {short(x)}, then {short(y)}"


def _place(x: CanonicalValue, y: CanonicalValue) -> tuple[str, Any, Any] | None:
    """The first entry in which two arrays of one kind differ, and its two values."""
    a, b = (np.frombuffer(form[3], dtype=form[4]) for form in (x, y))
    if a.tobytes() == b.tobytes():
        return None
    other = (a.view(np.uint8) != b.view(np.uint8)).reshape(len(a), -1).any(axis=1)
    at = int(np.argmax(other))
    index = [int(i) for i in np.unravel_index(at, x[2])]
    return (str(index) if index else "", a[at].item(), b[at].item())


def short(form: CanonicalValue, most: int = 100) -> str:
    """A form as text for messages."""
    text = _text(form)
    return text if len(text) <= most else f"{text[: most - 20]} ... {text[-15:]}"


def _text(form: CanonicalValue) -> str:
    if not isinstance(form, list):
        return repr(form)
    match form[0]:
        case "list":
            return f"[{', '.join(map(_text, form[1:30]))}{', ...' if len(form) > 30 else ''}]"
        case "dict":
            pairs = zip(form[1][1:30], form[2], strict=False)
            return "{" + ", ".join(f"{key!r}: {_text(value)}" for key, value in pairs) + "}"
        case "array":
            return f"array of {form[1]} and shape {tuple(form[2])}"
        case "enum":
            return f"{form[1]}.{form[2]}"
        case "object":
            return f"{form[1]} with {_text(form[2])}"
    return f"the {form[1]} (again)"
