"""Learners that a service can serve, and how their parameters stand in a file.

All of it follows from the classes: which there are, what their constructors take, and of which
types.  Ranges are for the classes themselves, which check them before anything is begun.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
)

from privlearn import learners
from privlearn.errors import LedgerError, PackageError
from privlearn.learners.base import class_of
from privlearn.losses.budget_texts import parse_budget
from privlearn.losses.budgets import Budget
from privlearn.service.exchange import exchange_of
from privlearn.values.packages import LEARNERS, announced

_NOTHING: Any = object()  # The type of what no file can hold
_NO_OBJECTS: Final = (
    "an object, which no file holds. Serve it with Offers in a program of your own, or announce a "
    "class of learners that makes the object itself (docs/how-to/publish-a-package.md)"
)


def served_class(name: str) -> type[Any] | None:
    """The class of learners with a name, of this package or one that announces it.

    Returns:
        None if there is none, or it does not serve users.

    Raises:
        PackageError: two packages announce it, or one that cannot be loaded.
    """
    try:
        found = class_of(name)
    except LedgerError:
        return None
    return found if _is_served(found) else None


def _is_served(found: object) -> bool:
    if not isinstance(found, type) or inspect.isabstract(found):
        return False
    return exchange_of(found) is not None and not _needed_objects(found)


def refusal_of(name: str) -> str | None:
    """Why a learner that serves users is none that a file can name; None for all others.

    Raises:
        PackageError: two packages announce it, or one that cannot be loaded.
    """
    try:
        found = class_of(name)
    except LedgerError:
        return None
    needed = _needed_objects(found) if exchange_of(found) is not None else []
    return f"it needs {' and '.join(needed)}: {_NO_OBJECTS}" if needed else None


def _needed_objects(kind: type[Any]) -> list[str]:
    """Parameters without a default that are objects of somebody's own."""
    hints = _hints(kind)
    return [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is parameter.empty and _is_object(hints.get(name, Any))
    ]


def served_names() -> list[str]:
    """Names that `served_class` knows; imports the packages that announce learners."""
    found = []
    for name in {*learners.__all__, *announced(LEARNERS)}:
        with suppress(PackageError):
            if served_class(name) is not None:
                found.append(name)
    return sorted(found)


class Parameters(BaseModel):
    """Those of one class of learners, as fields."""

    # no text for a number, no 1 for true: what a class gets is what the file says
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


def parameters_of(kind: type[Any]) -> type[Parameters]:
    """The form of the parameters of a class of learners: one field for each, of its type.

    Objects other than budgets have no text, so that of ``str | Something`` only the text is taken.
    """
    hints = _hints(kind)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        form = _written(hints.get(name, Any))
        default = ... if parameter.default is parameter.empty else parameter.default
        if form in (_NOTHING, NoneType):
            form = _OBJECT if _is_object(hints[name]) else Any
        fields[name] = (form, default)
    return create_model(kind.__name__, __base__=Parameters, **fields)


def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind.__init__) | get_type_hints(kind)


def _is_object(kind: Any) -> bool:
    """Whether a type is of objects that only a program makes, or of several of them."""
    origin, parts = get_origin(kind), [each for each in get_args(kind) if each is not NoneType]
    if origin in (Union, UnionType):
        return all(_is_object(each) for each in parts)
    if origin in (list, tuple, Sequence):
        return _is_object(parts[0])
    return origin is Callable or (isinstance(kind, type) and _written(kind) is _NOTHING)


def _written(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        members = get_args(kind)
        budgets = tuple(each for each in members if _is_budget(each))
        forms = [_written(each) for each in members if each not in budgets]
        if budgets:
            forms.append(_budget(budgets))
        writable = [form for form in forms if form is not _NOTHING]
        return reduce(or_, writable) if writable else _NOTHING
    if _is_budget(kind):
        return _budget((kind,))
    if get_origin(kind) is tuple:
        whole = all(_written(each) is not _NOTHING for each in get_args(kind) if each is not ...)
        return _tuple(kind) if whole else _NOTHING
    plain = kind in (bool, int, float, str, NoneType, Any) or get_origin(kind) is Literal
    return kind if plain else _NOTHING


def _tuple(kind: Any) -> Any:
    form = TypeAdapter(kind, config=ConfigDict(strict=True))
    parts = [getattr(each, "__name__", "…") for each in get_args(kind)]

    def read(given: Any) -> Any:
        try:
            return form.validate_python(tuple(given) if isinstance(given, list) else given)
        except ValidationError:
            raise ValueError(f"must be a list [{', '.join(parts)}]") from None

    return Annotated[Any, PlainValidator(read)]


def _object(given: Any) -> Any:
    raise ValueError(f"must be {_NO_OBJECTS}")


_OBJECT: Any = Annotated[Any, PlainValidator(_object)]


def _is_budget(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Budget)


def _budget(kinds: tuple[type[Budget], ...]) -> Any:
    def read(text: Any) -> Budget:
        found = parse_budget(text, pure=True) if isinstance(text, str) else None
        if not isinstance(found, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"must be a budget of the kind {wanted}, such as 'rho=1'")
        return found

    return Annotated[Any, PlainValidator(read)]
