"""Checks of public parameters; the keyword is the name that the message shows.

A frozen dataclass says in its annotations what its fields accept: `Checked` calls the checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Annotated, Any, get_type_hints


def _single(named: Mapping[str, Any]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def positive(**named: float) -> float:
    """Returns the value as a finite float > 0."""
    name, value = _single(named)
    if value.__class__ is float and 0.0 < value < math.inf:
        return value
    number = finite(**{name: value})
    if number <= 0:
        raise ValueError(f"{name} = {value!r}: must be > 0")
    return number


def finite(**named: float) -> float:
    """Returns the value as a finite float."""
    name, value = _single(named)
    try:
        number = float(value)
    except OverflowError:  # a whole number, or a fraction
        number = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {value!r}: must be a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} = {value!r}: must be finite")
    return number


def probability(**named: float) -> float:
    """Returns the value as a float strictly between 0 and 1."""
    name, value = _single(named)
    number = finite(**{name: value})
    if not 0 < number < 1:
        raise ValueError(f"{name} = {value!r}: must lie strictly between 0 and 1")
    return number


def not_negative(**named: float) -> float:
    """Returns the value as a finite float >= 0."""
    name, value = _single(named)
    number = finite(**{name: value})
    if number < 0:
        raise ValueError(f"{name} = {value!r}: must be >= 0")
    return number


def within(interval: str, /, **named: float) -> float:
    """Returns the value as a float in ``"(0, 1)"``, ``"[0, 1)"``, ``"(0, 1]"`` or ``"[0, 1]"``."""
    name, value = _single(named)
    number = finite(**{name: value})
    inside = 0 < number < 1
    if not (inside or (number == 0 and "[" in interval) or (number == 1 and "]" in interval)):
        raise ValueError(f"{name} = {value!r}: must lie in {interval}")
    return number


def count(*, at_least: int = 1, **named: int) -> int:
    """Returns the value as an int not below ``at_least``; booleans and floats are refused."""
    name, value = _single(named)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} = {value!r}: must be an integer")
    number = int(value.__index__())
    if number < at_least:
        raise ValueError(f"{name} = {value!r}: must be an integer >= {at_least}")
    return number


def check_function(**named: Any) -> None:
    """Raises TypeError for what cannot be called; it is not shown, as it may be users' data."""
    name, value = _single(named)
    if not callable(value):
        raise TypeError(f"{name}: is of type {type(value).__name__}; must be a function")


def text(**named: str) -> str:
    """Returns the value as a non-empty string."""
    name, value = _single(named)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} = {value!r}: must be a non-empty text")
    return value


def user_range(**named: range) -> range:
    """Returns a non-empty, ascending, contiguous range of arrival indices >= 0."""
    name, value = _single(named)
    if not isinstance(value, range):
        raise TypeError(
            f"{name} = {value!r}: must be a range of arrival indices, such as range(10_000)"
        )
    if value.step != 1 or value.start < 0 or len(value) == 0:
        raise ValueError(f"{name} = {value!r}: must be a non-empty range(start, stop), start >= 0")
    return value


Finite = Annotated[float, finite]
Positive = Annotated[float, positive]
Count = Annotated[int, count]
AtLeastTwo = Annotated[int, partial(count, at_least=2)]


def assign(made: object, **values: object) -> None:
    """Sets fields of a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(made, name, value)


def check_fields(made: object) -> None:
    """Calls the check in each annotation, ``std: Positive``, and stores what it returns."""
    kind: Any = type(made)
    for name, check in _checks_of(kind):
        object.__setattr__(made, name, check(**{name: getattr(made, name)}))


@lru_cache(maxsize=256)
def _checks_of(kind: type) -> tuple[tuple[str, Callable[..., Any]], ...]:
    return tuple(
        (name, check)
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for check in getattr(hint, "__metadata__", ())
    )


class Checked:
    """Base of dataclasses that need `check_fields` and nothing else."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)
