"""Values in full and in a form that can be compared bit by bit, and where two of them differ."""

from __future__ import annotations

import marshal
import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from inspect import getattr_static, isroutine, signature
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from privlearn.checking.isolation import is_output
from privlearn.contract.billboard import Billboard
from privlearn.contract.tokens import Token
from privlearn.errors import CheckError, InterferenceError
from privlearn.rows import Sealed

CanonicalValue = Any
"""None, bool, int, float, str, or a list whose first entry says what the others are."""

MISSING: CanonicalValue = ["missing"]  # In place of what is not there
_ATOMS = frozenset([bool, int, float, str, type(None)])
_NUMBERS = frozenset([bool, int, float, type(None)])
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_NOT_ASKED = {"public_state", "select", "start", "close", "stop", "shutdown"}
_MOST_ITEMS = 100_000  # Of an iteration over a learner that are looked at


class CanonicalForm:
    """Turns values into forms: JSON values and arrays, and other ``objects`` only if asked to.
    ``known`` are the same in every run, by name; the id of the ``accountant`` is taken out of
    texts. ``posts``: whether to look at what stands on billboards, or only at how much."""

    def __init__(self, known: dict[str, Any], *, objects: bool = False, posts: bool = True) -> None:
        self._known = {id(item): (name, item) for name, item in known.items()}
        self._id = getattr(known.get("accountant"), "id", "accountant")
        self._objects, self._posts = objects, posts
        self.left_out: set[str] = set()
        """What inner learners declare to be the operator's, by class and name, and was met."""

    def of(self, item: Any, name: str) -> CanonicalValue:
        """The form of a value; what occurs in it a second time is named, not repeated."""
        if type(item) in _NUMBERS:
            return item
        self._seen = self._known.copy()
        return self._form(item, name)

    def _form(self, item: Any, name: str) -> CanonicalValue:
        kind = type(item)
        if kind is str:
            return _ADDRESS.sub(" at 0x", item.replace(self._id, "accountant"))
        if kind in _NUMBERS:
            return item
        if (kind is np.ndarray or isinstance(item, np.generic)) and not item.dtype.hasobject:
            text, code = _dtype(item.dtype)
            return ["array", text, list(item.shape), item.tobytes(), code]
        if isinstance(item, Enum):
            return ["enum", kind.__qualname__, item.name]
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
            told = f"{name} is of type {kind.__qualname__}, which may hide something"
            raise InterferenceError(f"{told}: it must be a JSON value or a numpy array")
        return ["object", kind.__qualname__, self._form(self._inside(item, name), name)]

    def _inside(self, item: Any, name: str) -> Any:
        if isinstance(item, Sealed | Token | type | bytes):
            return repr(item)
        if isinstance(item, Billboard):
            return [item.clock, item.history() if self._posts else len(item._history)]
        if isinstance(item, set | frozenset):  # their order may differ where they are equal
            return sorted((self._form(x, name) for x in item), key=marshalled)
        if isinstance(item, MethodType):
            return [item.__func__.__qualname__, item.__self__]
        if isinstance(item, FunctionType):
            cells = [cell.cell_contents for cell in item.__closure__ or ()]
            code = marshal.dumps(item.__code__).hex()
            return [code, item.__defaults__, item.__kwdefaults__, cells, item.__dict__]
        if callable(getattr(item, "public_state", None)):  # a learner inside another one
            own = operator_only(item) & set(dir(item))
            self.left_out |= {f"{type(item).__qualname__}.{name}" for name in own}
            return public_parts(item)
        try:
            if derived := _derived(type(item).__mro__):
                state = object.__getstate__(item)
                held = ChainMap(*filter(None, state if type(state) is tuple else (state,)))
                return {name: held[name] for name in held if name not in derived}
            parts = item.__reduce_ex__(4)[1:]  # as for a pickle; also of types written in C
            listed = [list(x) if isinstance(x, Iterator) else x for x in parts]
            return [object.__getstate__(item), listed]
        except BaseException as error:
            if not is_output(error):
                raise
            raise CheckError(
                f"nothing can be concluded, as {name} cannot be compared ({error}): begin its name "
                "with an underscore, or name it in operator_only of its class if only the operator "
                "sees it"
            ) from None


def operator_only(item: object) -> frozenset[str]:
    """The attributes that the class of a learner, or one that it is made from, declares so."""
    declared = (vars(kind).get("operator_only", ()) for kind in type(item).__mro__)
    return frozenset[str]().union(*declared)


@lru_cache(maxsize=256)
def _derived(bases: tuple[type[Any], ...]) -> frozenset[str]:
    """Fields of this package's values that follow from the others and may be kept only if asked."""
    own = (base for base in bases if base.__module__.startswith("privlearn."))
    made = [vars(base).get("__dataclass_fields__", {}).values() for base in own]
    return frozenset(f.name for each in made for f in each if not (f.init or f.compare))


@lru_cache(maxsize=64)
def _names(bases: tuple[type[Any], ...], sizes: tuple[int, ...]) -> tuple[str, ...]:
    kind = bases[0]
    return tuple(
        name
        for name in dir(kind)
        if not name.startswith("_")
        and name != "operator_only"
        and not isinstance(getattr_static(kind, name), FunctionType | classmethod | staticmethod)
    )


def public_parts(item: Any) -> dict[str, Any]:
    """What anybody can read of a learner, by name, apart from what is the operator's. Attributes
    and properties without a leading underscore, `public_state`, and ``repr``, ``str``, ``len`` and
    iteration where its class defines them; what raises is the text of its error."""
    kind, own = type(item), getattr(item, "__dict__", {})
    of_class = _names(kind.__mro__, tuple(len(vars(base)) for base in kind.__mro__))
    parts: dict[str, Any] = {}
    for name in sorted({*of_class, *own} - operator_only(item)):
        if name.startswith("_"):
            continue
        value = own[name] if name not in of_class else _read(partial(getattr, item, name))
        if name in own or not isroutine(value):
            parts[name] = value
    if callable(getattr(item, "public_state", None)):
        parts["public_state()"] = _read(item.public_state)
    for function, special in ((repr, "__repr__"), (str, "__str__"), (len, "__len__")):
        if getattr(kind, special, None) is not getattr(object, special, None):
            parts[f"{function.__name__}()"] = _read(partial(function, item))
    if hasattr(kind, "__iter__") or hasattr(kind, "__getitem__"):
        parts["iteration"] = _read(partial(_items, item))
    return parts


def answers(item: Any, known: dict[str, Any]) -> dict[str, bytes]:
    """What public methods return that need no argument, of the user's own classes, by name. They
    may change the learner, so that it must not be used any more."""
    methods: dict[str, Any] = {}
    for kind in reversed(type(item).__mro__):
        if kind.__module__.partition(".")[0] not in ("privlearn", "builtins", "abc", "typing"):
            methods |= vars(kind)
    found = {}
    for name in sorted(methods.keys() - operator_only(item) - _NOT_ASKED):
        if name.startswith("_") or not isinstance(methods[name], FunctionType):
            continue
        needed = list(signature(methods[name]).parameters.values())[1:]
        if all(p.default is not p.empty or p.kind in (2, 4) for p in needed):
            answer = _read(getattr(item, name))
            answer = list(islice(answer, 1_000)) if isinstance(answer, Iterator) else answer
            with suppress(CheckError):
                form = CanonicalForm({"learner": item, **known}, objects=True).of(answer, name)
                found[f"{name}()"] = marshalled(form)
    return found


def _items(item: Any) -> list[Any]:
    kind = type(item).__qualname__
    if hasattr(type(item), "__next__"):
        raise CheckError(f"nothing can be concluded, as looking through a {kind} changes it")
    items = list(islice(iter(item), _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise CheckError(
            f"nothing can be concluded, as a {kind} did not end after {_MOST_ITEMS:,} items"
        )
    return items


def _read(value: Callable[[], Any]) -> Any:
    try:
        return value()
    except BaseException as error:
        if not is_output(error):
            raise
        return f"raises {error!r}"


@lru_cache(maxsize=64)
def _dtype(dtype: np.dtype[Any]) -> tuple[str, str]:
    return repr(dtype), dtype.str


def marshalled(form: CanonicalValue) -> bytes:
    """A form as bytes, which are equal where the forms are `alike`. Version 2 of marshal writes
    numbers in binary and knows no references between equal objects."""
    return marshal.dumps(form, 2)


def alike(x: CanonicalValue, y: CanonicalValue) -> bool:
    """Whether two forms are equal in type and in every bit: NaN is NaN, 1 is not 1.0 nor True."""
    return marshalled(x) == marshalled(y)


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
    if kinds == {"array"} and x[1:3] == y[1:3] and x[3] != y[3]:
        a, b = (np.frombuffer(form[3], dtype=form[4]) for form in (x, y))
        other = (a.view(np.uint8) != b.view(np.uint8)).reshape(len(a), -1).any(axis=1)
        at = int(np.argmax(other))
        index = [int(i) for i in np.unravel_index(at, x[2])]
        return f"{name}{index or ''}: {a[at].item()!r}, then {b[at].item()!r}"
    return f"{name}: {short(x)}, then {short(y)}"


def short(form: CanonicalValue, most: int = 100) -> str:
    """A form as text for messages."""
    text = _text(form)
    return text if len(text) <= most else f"{text[: most - 20]} ... {text[-15:]}"


def _text(form: CanonicalValue) -> str:
    if not isinstance(form, list):
        return repr(form)
    match form:
        case ["list", *items]:
            return f"[{', '.join(map(_text, items[:29]))}{', ...' if len(items) > 29 else ''}]"
        case ["dict", [_, *keys], values]:
            pairs = zip(keys[:29], values, strict=False)
            return "{" + ", ".join(f"{key!r}: {_text(value)}" for key, value in pairs) + "}"
        case ["array", kind, shape, *_]:
            return f"array of {kind} and shape {tuple(shape)}"
        case ["enum", kind, name]:
            return f"{kind}.{name}"
        case ["object", kind, inside]:
            return f"{kind} with {_text(inside)}"
    return "no such attribute" if form == MISSING else f"the {form[1]} (again)"
