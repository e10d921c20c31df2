"""Parameters and mechanisms of a learner as JSON, and back, number by number.

What a learner works out at its start stands in its ledger in this form, and is read from there when
another process goes on with it: nothing is calibrated anew, by whatever version.
"""

from __future__ import annotations

import dataclasses
import math
from enum import Enum
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from privlearn.errors import LedgerUnreadableError
from privlearn.exact import exact, exact_text

_MODULES = (
    "adjacency",
    "budgets",
    "domains",
    "grid",
    "participation",
    "noise",
    "mechanisms",
    "mechanisms.factorization",
    "mechanisms.least_error",
    "mechanisms.constraint_sets",
    "mechanisms.regions",
    "mechanisms.scalar_objectives",
    "mechanisms.vertices",
    "learners",
)
"""Of this package: whose classes are written by name, with their fields."""


@cache
def _classes() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for name in _MODULES:
        for value in vars(import_module(f"privlearn.{name}")).values():
            ours = isinstance(value, type) and value.__module__.startswith("privlearn.")
            if ours and (dataclasses.is_dataclass(value) or issubclass(value, Enum)):
                found[value.__name__] = value
    return found


def stored(value: Any) -> Any:
    """JSON from which `restored` makes an equal value.

    Raises:
        TypeError: it is neither made of numbers and text nor a class of this package.
    """
    if type(value) in (int, bool, str, type(None)):
        return value
    match value:
        case float():
            return _real(float(value))
        case Fraction():
            return {"exact": exact_text(value)}
        case range():
            return {"range": [value.start, value.stop]}
        case tuple():
            return {"tuple": [stored(item) for item in value]}
        case list():
            return [stored(item) for item in value]
        case dict():
            return {"names": {name: stored(item) for name, item in value.items()}}
        case np.ndarray() if value.dtype.kind in "biuf":
            numbers = [stored(number) for number in value.ravel().tolist()]
            return {"array": {"dtype": value.dtype.str, "shape": list(value.shape), "of": numbers}}
        case np.generic():
            return stored(value.item())
    if type(value) is not _classes().get(type(value).__name__):
        raise TypeError(f"{value!r:.200}: a {type(value).__name__} cannot be written to a ledger")
    if isinstance(value, Enum):
        return {"class": type(value).__name__, "member": value.name}
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    return {"class": type(value).__name__, "fields": stored(fields)["names"]}


def _real(value: float) -> Any:
    """A float; JSON writes whole ones as it writes integers."""
    if not math.isfinite(value):
        return {"real": str(value)}
    return {"real": int(value)} if value.is_integer() and abs(value) < 2**53 else value


def restored(data: Any) -> Any:
    """What `stored` was given.

    Raises:
        LedgerUnreadableError: no such form, or a class that this version does not have.
    """
    try:
        return _restored(data)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerUnreadableError(f"{data!r:.200} cannot be read as a value: {error}") from None


def _restored(data: Any) -> Any:
    if isinstance(data, list):
        return [_restored(item) for item in data]
    if not isinstance(data, dict):
        return data
    match data:
        case {"exact": text}:
            return exact("exact", text)
        case {"real": number}:
            return float(number)
        case {"range": [start, stop]}:
            return range(start, stop)
        case {"tuple": items}:
            return tuple(_restored(item) for item in items)
        case {"names": items}:
            return {name: _restored(item) for name, item in items.items()}
        case {"array": {"dtype": dtype, "shape": shape, "of": numbers}}:
            return np.array([_restored(n) for n in numbers], dtype=np.dtype(dtype)).reshape(shape)
        case {"class": name, "member": member}:
            return _classes()[name][member]
        case {"class": name, "fields": fields}:
            kinds = _classes()[name]
            return kinds(**{field: _restored(item) for field, item in fields.items()})
    raise ValueError("no known form")
