"""The form of records, how many arrays of which shapes and kinds: public, checked before a spend.

What an array or a frame is made of is form, and so is what a function makes of a record of zeros.
A *list* is contents: each of its records may have another form, and one that a set cannot take is
null, like NaN.  That no record of a list can be taken, whatever its numbers, is an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import DataError
from privlearn.values.records import rebuilt
from privlearn.values.user_code import FAILED, attempted

_NUMBERS = "biuf"
_DOUBLES = np.dtype(np.float64)
LEAST = 3
"""Of so many records of a list not all are of the same odd form by what single users sent."""


class Cells(NamedTuple):
    """One array of a record."""

    shape: tuple[int, ...]
    dtype: str
    """As NumPy writes it, of the narrowest text."""
    numeric: bool
    """Whether it is of numbers, or holds something that is read as one."""
    holds: str = ""
    """The class of its objects."""

    def __str__(self) -> str:
        kind = np.dtype(self.dtype)
        other = self.holds or ("text" if kind.kind in "UST" else kind.name)
        # which numbers: in a list and in an array of objects that may follow from a value
        return f"{'numbers' if self.numeric else other} of shape {self.shape}"


Form: TypeAlias = "frozenset[Cells] | tuple[Form, ...] | None"
"""Of records: what an array may be, which is several things in a list; None if unknown."""

Forms: TypeAlias = tuple[Form, ...]
"""Of rows that were joined."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a set takes of a record: numbers in an array of this shape; None is any length."""

    shape: tuple[int | None, ...] = ()

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a record may have this shape."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(want in (None, have) for want, have in zip(self.shape, shape, strict=True))
        )

    def takes(self, cells: Cells) -> bool:
        """Whether such cells may be used."""
        return cells.numeric and self.holds(cells.shape)

    def __str__(self) -> str:
        sizes = ", ".join("any" if n is None else str(n) for n in self.shape)
        return f"numbers of shape ({sizes}{',' if len(self.shape) == 1 else ''})"


@lru_cache(maxsize=256)
def vectors_of(size: int) -> Numbers:
    """So many numbers side by side."""
    return Numbers((size,))


Accepted: TypeAlias = "Numbers | tuple[Accepted, ...]"
"""What a set takes of a record: one array, or a tuple of them."""


def cells_of(array: NDArray[Any], shape: tuple[int, ...]) -> Cells:
    """Of an array that holds one record of this shape, or several."""
    kind = array.dtype.kind
    if kind == "O":
        held = next((type(cell).__name__ for cell in array.flat if cell is not None), "objects")
        return Cells(shape, "|O", readable(array), held)
    if kind in "UST":
        return Cells(shape, "<U1", False)
    return Cells(shape, array.dtype.str, kind in _NUMBERS)


def form_of(block: Any) -> Form:
    """The form of a block of arrays; unknown where there is no record."""
    if isinstance(block, tuple):
        return cast(Form, rebuilt(block, [form_of(field) for field in block]))
    array = np.asarray(block)
    if not array.shape[:1] or not len(array):
        return None
    return frozenset([cells_of(array, array.shape[1:])])


def zeros_of(form: Form, count: int) -> list[Any]:
    """A block of ``count`` records of zeros for each form that the records may have.

    None at all where one of them is unknown, or of objects, whose zero is unknown.
    """
    if isinstance(form, tuple):
        fields = [zeros_of(field, count) for field in form]
        known = {len(blocks) for blocks in fields} == {1}
        return [rebuilt(form, [blocks[0] for blocks in fields])] if known else []
    if form is None or any(cells.dtype == "|O" for cells in form):
        return []
    return [np.zeros((count, *cells.shape), cells.dtype) for cells in form]


def others_than(zeros: Any) -> Any:
    """The same with the numbers 1, 2, … in place of zeros; text and dates as they are."""
    if isinstance(zeros, tuple):
        return rebuilt(zeros, [others_than(field) for field in zeros])
    if zeros.dtype.kind not in _NUMBERS:
        return zeros
    numbers = np.arange(zeros.size) % 100 + 1  # of any type
    return numbers.astype(zeros.dtype).reshape(zeros.shape)


def parsed(array: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """An array of text or objects as numbers, cell by cell, and which cells are none.

    A number is what ``float`` takes, but for complex ones; None and what is masked is a missing
    one.  Both are NaN where there is none.
    """
    numbers, alien = np.full(array.size, np.nan), np.zeros(array.size, dtype=np.bool_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would tell of sealed data
        for i, cell in enumerate(array.ravel().tolist()):
            if _is_missing(cell):
                continue
            number = attempted(float, cell)
            if number is not FAILED and not issubclass(type(cell), np.complexfloating):
                numbers[i] = number
            else:  # numbers that no double is near are numbers all the same
                alien[i] = not issubclass(type(cell), Real)
    return numbers.reshape(array.shape), alien.reshape(array.shape)


def _is_missing(cell: object) -> bool:
    return cell is None or cell is np.ma.masked


def readable(array: NDArray[Any]) -> bool:
    """Whether some record of text or objects may be numbers; yes, where few say no."""
    _, alien = parsed(array)
    missing = np.array([_is_missing(cell) for cell in array.ravel().tolist()]).reshape(array.shape)
    flat = len(array), array[:1].size
    bad, present = (cells.reshape(flat) for cells in (alien, ~missing))
    return bool((present & ~bad).any() or np.count_nonzero(bad.any(axis=1)) < LEAST)


def numbers_of(values: object) -> NDArray[np.float64]:
    """An array as numbers; NaN where text or an object is none.

    Raises:
        TypeError: several arrays, or of dates, complex numbers or the like.
    """
    if isinstance(values, tuple | list):
        raise TypeError("rows of several arrays: map them to one array first")
    array = np.asarray(values)
    if array.dtype is _DOUBLES or array.dtype == _DOUBLES:
        return array
    if array.dtype.kind in _NUMBERS:
        with np.errstate(all="ignore"):  # a warning would tell of a number beyond doubles
            return array.astype(np.float64)
    if array.dtype.kind in "OUST":
        return parsed(array)[0]
    raise TypeError(f"rows of type {array.dtype}: must be numbers")


def check_form(accepted: Accepted, forms: Iterable[Form], into: object) -> None:
    """Raises unless records of each of the forms may be in a set that takes ``accepted``.

    Raises:
        DataError: none can be, whatever their numbers.
    """
    for form in forms:
        if (told := _misfit(accepted, form)) is not None:
            raise DataError(
                f"rows: {told[0]}, where {into!r:.200} takes {_named(accepted)}{told[1]}"
            )


def _misfit(accepted: Accepted, form: Form) -> tuple[str, str] | None:
    if form is None:
        return None
    if isinstance(accepted, Numbers):
        if isinstance(form, tuple):
            return (
                f"a record is a tuple of {len(form)} arrays",
                ": map them to one array first, such as rows.map(lambda r: np.append(r[0], r[1]))",
            )
        if any(accepted.takes(cells) for cells in form):
            return None
        cells = min(form)
        return f"a record is {cells}", _remedy(accepted, cells)
    if not isinstance(form, tuple):
        return (
            f"a record is {min(form)}",
            f": seal a tuple of {len(accepted)} arrays, such as Rows.seal((x, y), users=...)",
        )
    if len(form) != len(accepted):
        return f"a record is a tuple of {len(form)} arrays", ""
    misfits = [_misfit(want, have) for want, have in zip(accepted, form, strict=True)]
    for place, misfit in enumerate(misfits):
        if misfit is not None:
            told, remedy = misfit
            back = zip(accepted, reversed(form), strict=True)
            swapped = all(_misfit(want, have) is None for want, have in back)
            return f"field {place}: {told}", ": the fields are swapped" if swapped else remedy
    return None


def _named(accepted: Accepted) -> str:
    if isinstance(accepted, Numbers):
        return str(accepted)
    return f"({'; '.join(_named(part) for part in accepted)})"


_OTHER_KINDS = {
    "M": ": convert it, x.astype('datetime64[s]').astype(float) is in seconds",
    "m": ": convert it, x / np.timedelta64(1, 's') is in seconds",
    "c": ": convert it, such as np.column_stack([x.real, x.imag]), or to its size np.abs(x)",
    "V": ": make an array of its fields, np.lib.recfunctions.structured_to_unstructured(x)",
    "U": ": convert numbers, x.astype(float), and map other text to numbers first",
    "O": ": map records to numbers first, such as rows.map(lambda r: [r['a'], r['b']])",
}


def _remedy(accepted: Numbers, cells: Cells) -> str:
    if not cells.numeric:
        return _OTHER_KINDS.get(np.dtype(cells.dtype).kind, ": map them to numbers first")
    want, have = accepted.shape, cells.shape
    if (have == () and want == (1,)) or (want[:1] == (None,) and have == want[1:]):
        return ": use x[:, None] (of a series .to_numpy()[:, None])"
    if have == (1,) and want == ():
        return ": use x[:, 0]"
    if len(have) == len(want) == 1:
        return f": choose columns, x[:, :{want[0]}], or turn a transposed array, x.T"
    if len(have) > len(want) == 1:
        return ": one flat array for each record, x.reshape(len(x), -1)"
    return ""
