"""Numbers that code under test mentions: where it compares, it may do something special.

They are read from its bytecode and from what it holds.  A check tries them as values, as numbers of
rows and as places."""

from __future__ import annotations

import dis
import functools
import math
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from numbers import Rational
from typing import Any

import numpy as np

_MOST = 24  # Numbers that are tried at most, those that are compared with first
_DEPTH = 6  # From the thing to a number, through attributes, functions and containers
_MOST_PARTS = 3_000
_FEW = 32  # Items of a container that are looked at
_LARGEST = 1e300
_NEAR = 3  # Instructions before a comparison that may load what it compares with
_LIBRARIES = sys.stdlib_module_names | {
    *("jax", "matplotlib", "numpy", "opacus", "pandas", "privlearn", "pyarrow", "pytest", "scipy"),
    *("sklearn", "torch"),
}
_COMPARING = {"COMPARE_OP", "CONTAINS_OP", "IS_OP"}
_HASHING = {"hash", "tobytes", "bytes", "hashlib", "crc32", "adler32", "sha256", "md5", "blake2b"}
HASHED = "; it takes hashes, which no number shows"
_FIRST, _LATE = 40, 10**6  # Arrival numbers that no small data set reaches, and a late one


@dataclass(frozen=True)
class Mined:
    """Numbers that some code mentions, those first that it compares something with."""

    numbers: tuple[float, ...]
    hashes: bool = False  # Whether it may act on what no number shows, such as a hash of a record

    def values(self) -> tuple[float, ...]:
        """Each of them, its neighbours among doubles, and what is clearly beyond it."""
        made = [
            value
            for x in self.numbers
            for value in (x, math.nextafter(x, math.inf), math.nextafter(x, -math.inf), 2 * x, -x)
        ]
        return tuple(dict.fromkeys([*made, *(-2 * x for x in self.numbers)]))

    def sizes(self, most: int) -> tuple[int, ...]:
        """Numbers of rows about them, from 1 to ``most``."""
        return tuple(n for n in self._whole() if 1 <= n <= most)

    def places(self, rows: int) -> tuple[int, ...]:
        """Places about them, counted from either end, among so many rows."""
        both = [place for n in self._whole() for place in (n, rows - n)]
        return tuple(dict.fromkeys(place for place in both if 0 <= place < rows))

    def starts(self) -> tuple[int, ...]:
        """Arrival numbers about them that a first user may have, and a large one."""
        about = (int(x) + step for x in self.numbers if _FIRST < x < _LATE for step in (0, 1))
        return (_LATE, *dict.fromkeys(about))

    def _whole(self) -> Iterator[int]:
        near = (math.floor(x) + step for x in self.numbers for step in (0, 1, -1, 2))
        return iter(dict.fromkeys(near))


def mined(*things: Any, most: int = _MOST, also: Iterable[float] = ()) -> Mined:
    """What the code of functions, classes or objects mentions, and of what they call and hold.
    ``also`` comes between what is compared with and what is only mentioned (`in_variables`). Code
    of the standard library, of NumPy and its like and of this package is not read, but for the
    things themselves where they are functions."""
    compared, others, hashes = dict[float, None](), dict[float, None](), False
    for part in reached(*things):
        number = _number(part)
        if number is not None:
            others[number] = None
        elif isinstance(part, types.CodeType):
            compared |= dict.fromkeys(_compared(part))
            hashing = part.co_name != "__hash__" and not _HASHING.isdisjoint(part.co_names)
            hashes = hashes or hashing
    return Mined(tuple(dict.fromkeys([*compared, *also, *others]))[:most], hashes)


@contextmanager
def in_variables() -> Iterator[dict[float, None]]:
    """Numbers that variables of the user's functions hold at the end of calls made meanwhile."""
    seen = dict[float, None]()

    def look(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "return" and not _is_known(frame.f_globals.get("__name__")):
            numbers = (_number(value) for value in frame.f_locals.values())
            seen.update((x, None) for x in numbers if x is not None)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def reached(*things: Any) -> Iterator[Any]:
    """The things, and what their code mentions, calls and holds, breadth first."""
    queue = deque((thing, 0) for thing in things)
    seen, own = set[int](), {id(thing) for thing in things}
    keep = []  # parts that were made on the way, so that no id comes twice
    while queue and len(seen) < _MOST_PARTS:
        part, depth = queue.popleft()
        if _number(part) is not None:
            yield part
        elif id(part) not in seen and depth <= _DEPTH:
            seen.add(id(part))
            keep.append(part)
            yield part
            queue.extend((inner, depth + 1) for inner in _parts(part, id(part) in own))


def _number(part: Any) -> float | None:
    if isinstance(part, bool | np.complexfloating):
        return None
    if not isinstance(part, int | float | np.number | Rational):
        return None
    try:
        value = float(part)
    except OverflowError:
        return None
    return value if abs(value) < _LARGEST else None


def _compared(code: types.CodeType) -> Iterator[float]:
    """Constants of comparisons, those of this code only."""
    last: list[dis.Instruction] = []
    for step in dis.get_instructions(code):
        if step.opname in _COMPARING:
            for before in reversed(last[-_NEAR:]):
                values = before.argval if isinstance(before.argval, tuple) else (before.argval,)
                if before.opname.startswith("LOAD_") and before.opname != "LOAD_FAST":
                    yield from (x for value in values if (x := _number(value)) is not None)
        last = [*last[-_NEAR:], step]


def _parts(part: Any, own: bool) -> Iterable[Any]:
    """What a thing consists of; of functions that are not ``own`` only if they are the user's."""
    if part is None or isinstance(part, str | bytes | types.ModuleType):
        return ()
    if isinstance(part, np.ndarray):
        few = np.unique(part[np.isfinite(part)])[:8] if part.dtype.kind in "iuf" else ()
        return [float(x) for x in few]
    if isinstance(part, list | tuple | set | frozenset | dict):
        held = part.values() if isinstance(part, dict) else ()
        return [*islice(part, _FEW), *islice(held, _FEW)]
    if isinstance(part, types.CodeType):
        loaded = [i.argval for i in dis.get_instructions(part) if i.opname == "LOAD_SMALL_INT"]
        return [*part.co_consts, *loaded]
    if isinstance(part, functools.partial):
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(part, types.MethodType):
        return [part.__func__, part.__self__]
    if isinstance(part, staticmethod | classmethod | property | functools.cached_property):
        return [getattr(part, name, None) for name in ("__func__", "fget", "func")]
    if isinstance(part, types.FunctionType):
        return _of_function(part, own)
    if isinstance(part, type):
        users = [base for base in part.__mro__ if not is_library(base)]
        return [member for base in users for member in vars(base).values()]
    return [*_attributes(part), type(part)]


def _of_function(function: types.FunctionType, own: bool) -> list[Any]:
    parts: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not yet filled
            parts.append(cell.cell_contents)
    if own or not is_library(function):
        parts += [function.__code__]
        parts += [function.__globals__[name] for name in global_names(function)]
    return parts


def global_names(function: types.FunctionType) -> set[str]:
    """Names of its module that its code, or code inside that, mentions."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    return names & set(function.__globals__)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def is_library(thing: Any) -> bool:
    """Whether it stands in the standard library, this package, or another one that is known."""
    return _is_known(getattr(thing, "__module__", None))


def _is_known(module: str | None) -> bool:
    return str(module or "builtins").partition(".")[0] in _LIBRARIES


def _attributes(thing: Any) -> Iterator[Any]:
    yield from vars(thing).values() if hasattr(thing, "__dict__") else ()
    bases = (vars(base) for base in type(thing).__mro__ if "__slots__" in vars(base))
    for held in (member for base in bases for member in base.values()):
        if isinstance(held, types.MemberDescriptorType):
            with suppress(AttributeError):  # not yet set
                yield held.__get__(thing)
