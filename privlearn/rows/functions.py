"""Functions that sealed rows pass through: whose code they are, and whether they are row-local.

Code of this package is tested in advance.  Any other function is *user code*: it gets copies, its
name goes to the ledger before its results are opened, and every block is spot-checked.  The check
calls the function again on blocks of the same shape in which other rows were replaced; the results
of the rows that stayed must be equal to the last bit.  (On a block of another shape they need not
be: a matrix product of another size rounds differently.)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import RowLocalityError
from privlearn.rows.record_forms import Cells, Form, Forms, form_of, others_than, zeros_of
from privlearn.rows.tabular import unmasked
from privlearn.values.records import copied, leaves, length, rebuilt, record_at
from privlearn.values.user_code import FAILED, attempted, from_outside

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
U = TypeVar("U")

_PACKAGE = __name__.partition(".")[0]
NOT_NAMED = "any(rows on a timetable)"
"""In place of the names of what such rows passed through: they would tell whether somebody came."""
_LONGEST_NAME = 200  # Characters; a name is for people, and no more of it goes to the ledger


@final
@dataclass(frozen=True, slots=True)
class Calls(Generic[P, R]):
    """A function of this package that calls ``code``, which may be the user's."""

    function: Callable[P, R]
    code: tuple[object, ...]
    user_code: tuple[str, ...] = field(init=False, compare=False)
    """Names, looked for once: many rows go through one."""

    def __post_init__(self) -> None:
        names = (name for part in (self.function, *self.code) for name in _user_code(part))
        object.__setattr__(self, "user_code", tuple(names))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


def user_code(code: object) -> tuple[str, ...]:
    """Names of the parts of ``code`` that did not come with this package, each once.

    A function or class goes by module and qualified name, a lambda also by file and line; an
    object goes by its class.
    """
    names = _user_code(code)
    return tuple(dict.fromkeys(names)) if names else ()


def _user_code(code: object) -> list[str]:
    if isinstance(code, FunctionType):  # most of them ours, and made anew for every row
        return [] if _is_ours(str(code.__globals__.get("__name__", ""))) else _named(code)
    if isinstance(code, Calls):
        return list(code.user_code)
    if isinstance(code, partial):
        handed = [part for part in (*code.args, *code.keywords.values()) if callable(part)]
        return [name for part in (code.func, *handed) for name in _user_code(part)]
    if isinstance(code, MethodType):
        return _user_code(code.__func__) or _user_code(code.__self__)
    return _named(code)


@lru_cache
def _is_ours(module: str) -> bool:
    return module == _PACKAGE or module.startswith(_PACKAGE + ".")


def _named(code: object) -> list[str]:
    if _is_ours(_home(code)):
        return []
    named: Any = code if hasattr(code, "__qualname__") else type(code)
    module = getattr(named, "__module__", None) or type(code).__module__
    name = f"{module}.{named.__qualname__}"
    if _is_ours(module):  # it goes by the name of what it wraps
        own = (
            code.__code__.co_qualname if isinstance(code, FunctionType) else type(code).__qualname__
        )
        name = f"{_home(code)}.{own}, around {name}"
    if isinstance(code, FunctionType) and "<lambda>" in name:
        where = code.__code__
        name += f" ({os.path.basename(where.co_filename)}:{where.co_firstlineno})"
    return [name[:_LONGEST_NAME]]


def _home(code: object) -> str:
    """The module that code stands in; a decorator may have given it the name of another one."""
    if isinstance(code, FunctionType):
        return str(code.__globals__.get("__name__", ""))
    return (code if isinstance(code, type) else type(code)).__module__


@final
class RowFunction(Generic[T, U]):
    """A function of blocks as `privlearn.rows` calls it.

    Args:
        function: takes a block and returns one of as many rows.
        role: how it came in, for its name in the ledger, such as ``map_rows``.
        code: what ``function`` is made of, where that is more than itself.
        repeatable: whether it may be called again, as a spot check does.

    Attributes:
        owned: whether it is code of this package, all of it.
    """

    def __init__(
        self, function: Callable[[T], U], role: str, *, code: object = None, repeatable: bool = True
    ) -> None:
        names = user_code(function if code is None else code)
        self._function, self.owned = function, not names
        self._checked = repeatable and not self.owned
        self.names = tuple(f"{role}({name})" for name in names)

    def attempt(self, block: T, count: int) -> U | None:
        """The result on a block, or None: a failure of user code is a null record, no message."""
        if self.owned:
            return attempt(self._function, block, count)
        # A copy in, and a copy out: user code may write to what it gets, and use its own again.
        result = attempt(self._function, copied(block), count)
        if result is None:
            return None
        own = attempted(lambda: copied(_plain(result)))  # an array of a class of the user's own
        return None if own is FAILED else own

    def forms_of(self, forms: Forms, count: int) -> Forms:
        """The forms of what it makes of records of these forms, as far as they are known.

        It is called on ``count`` records of zeros, so that what is known follows from its code and
        from public forms alone; a function that fails there may still be of use.  So may one that
        makes NaN or an empty array of zeros, which is how many say that a record is of no use; its
        form is what it makes of other numbers.
        """
        if self.owned or not self._checked:
            return ()
        made: list[Form] = []
        for form in forms:
            tried = [self._tried(block, count) for block in zeros_of(form, count)]
            found = [form_of(result) for result in tried if result is not None]
            if len(found) == 1:
                made += found
            elif found and all(isinstance(one, frozenset) for one in found):
                made.append(frozenset().union(*cast("list[frozenset[Cells]]", found)))
        return tuple(dict.fromkeys(made))

    def _tried(self, zeros: Any, count: int) -> U | None:
        made = self.attempt(zeros, count)
        if made is not None and not _telling(made):
            made = self.attempt(others_than(zeros), count)
        return made if made is not None and _telling(made) else None

    def check(self, block: T, real: NDArray[np.bool_], result: U) -> None:
        """Spot-checks that no row's result depends on another row, or on earlier calls.

        Args:
            block: what the function was called on.
            real: which of its rows are no null records, shape (n,).
            result: what it returned.

        Raises:
            RowLocalityError: a result changed.
        """
        if not self._checked or not real.any():
            return
        rows = np.flatnonzero(real)
        if len(rows) == 1:
            self._compare(block, result, rows)
            return
        mixed = np.random.default_rng().permutation(rows)
        half = len(rows) // 2
        for kept in (mixed[:half], mixed[half:]):
            places = np.resize(kept, len(real))
            places[kept] = kept
            self._compare(record_at(block, places), result, kept)

    def check_again(self, block: T, result: U) -> None:
        """As `check`, for a function that makes one record of a whole block: it remembers nothing.

        Raises:
            RowLocalityError: the result changed.
        """
        if self._checked:
            again = self.attempt(block, 1)
            if again is None or not _same(again, result, np.zeros(1, dtype=int)):
                raise RowLocalityError(
                    f"{', '.join(self.names)}: the result changed when it was computed again; a "
                    "function of one person's records must remember nothing"
                )

    def _compare(self, block: T, result: U, kept: NDArray[np.int_]) -> None:
        again = self.attempt(block, length(block))
        if again is None or not _same(again, result, kept):
            raise RowLocalityError(
                f"{', '.join(self.names)}: the result of a row changed when other rows of its "
                "block were replaced, or when it was computed again. A function of rows must act "
                "on each row by itself, remember nothing and draw no random numbers (make those "
                "a column of the rows); privlearn.checking.check_row_local shows where it fails"
            )


def attempt(function: Callable[[T], U], block: T, count: int) -> U | None:
    """The result on a block of ``count`` rows; None if it fails, or has other rows, or objects."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = function(block)
            arrays = list(leaves(result))
        fits = all(x.shape[:1] == (count,) and not _opaque(x.dtype) for x in arrays)
        return result if arrays and fits else None
    except RowLocalityError:  # an error of the program, and of no single record
        raise
    except BaseException as error:
        if from_outside(error):
            raise
        return None


def _telling(result: Any) -> bool:
    arrays = list(leaves(result))
    return all(x.size and not (x.dtype.kind in "fc" and np.isnan(x).any()) for x in arrays)


def _opaque(kind: np.dtype[Any]) -> bool:
    return (
        kind.hasobject and kind.kind != "T"
    )  # variable-width text says that it holds objects, too


def _plain(result: T) -> T:
    """As plain arrays, with NaN where they are masked: parts of a block would be taken so, too."""
    if isinstance(result, tuple):
        return cast(T, rebuilt(result, [_plain(field) for field in result]))
    return cast(T, unmasked(result))


def _same(result: Any, other: Any, rows: NDArray[np.int_]) -> bool:
    one, two = list(leaves(result)), list(leaves(other))
    return len(one) == len(two) and all(
        x.shape == y.shape and _equal(x[rows], y[rows]) for x, y in zip(one, two, strict=True)
    )


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether they hold the same to the last bit, wherever there is a bit that means something."""
    if one.dtype.names is not None:  # there may be gaps between the fields
        return one.dtype.names == other.dtype.names and all(
            _equal(one[name], other[name]) for name in one.dtype.names
        )
    if one.dtype.kind in "UST" and one.dtype.kind == other.dtype.kind:
        return bool((one == other).all())  # text is stored as wide as the longest of its block
    if one.dtype != other.dtype:
        return False
    if one.dtype.char in "gG":  # takes more room than its bits
        parts = [(one.real, other.real), (one.imag, other.imag)]
        return all(
            np.array_equal(x, y, equal_nan=True) and not (np.signbit(x) ^ np.signbit(y)).any()
            for x, y in parts
        )
    return one.tobytes() == other.tobytes()
