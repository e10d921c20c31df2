"""The law of row maps: what happens to one row depends on no other, and on nothing before.

Rows are replaced by copies of others, extreme, tiny and missing numbers, and the constants that the
function's own code and closure hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.isolation import own_copy
from privlearn.checking.mined import mined
from privlearn.checking.neighbours import rows_about
from privlearn.errors import InterferenceError
from privlearn.values.records import join, leaves, length, record_at

T = TypeVar("T")

_CLOSE = 1e-9  # Of a number that may be rounded otherwise at another place of a matrix product
_MOST_CONSTANTS = 16
_SIZES = (2, 3)  # Blocks that small are tried too


def check_row_local(function: Callable[[T], Any], block: T, other: T) -> None:
    """Checks that a function for `Rows.map_rows` acts on each row by itself.

    Args:
        function: takes a block (leading axis: users).
        block: at least two rows to try.
        other: one more row, as a block of one, to replace each row with.

    Raises:
        InterferenceError: permuting rows does not permute the results; replacing rows, also by
            copies of others, by extreme, tiny or missing numbers and by numbers that the function's
            code mentions, changes another row's result, and so does replacing a row beside such
            rows; a block fails though none of its rows does by itself; a second call gives
            something else; or the function writes to its input.
    """
    if length(block) < 2 or length(other) != 1:
        raise ValueError("block needs at least two rows, other exactly one")
    block, other = own_copy((block, other))
    _check_twice(function, block, other)
    n = length(block)
    for size in sorted({n, *(size for size in _SIZES if size < n)}):
        part = record_at(block, np.arange(size))
        trial = _Trial(function, part)
        trial.check_order()
        trial.check_size(_result(function, block))
        for i in range(size):
            alone = np.arange(size) == i
            trial.check(other, alone, "by another row")
            trial.check(record_at(part, np.array([(i + 1) % size])), alone, "by a copy of another")
            trial.check(record_at(part, np.array([i])), ~alone, "by copies of one")
    trial = _Trial(function, block)
    for number, (what, row) in enumerate(odd_rows(function, block)):
        trial.check(row, np.arange(n) == number % n, f"by one of {what}")
    for what, row in odd_rows(None, block):
        trial.check(row, np.arange(n) != 0, f"by rows of {what}")
        _check_beside(function, block, other, what, row)


def _check_beside(
    function: Callable[[Any], Any], block: Any, other: Any, what: str, row: Any
) -> None:
    n = length(block)
    for first in {0, n // 2}:
        changed = np.isin(np.arange(n), (first, first + 1) if n > 3 else (first,))
        mixed = record_at(join([block, row]), np.where(changed, n, np.arange(n)))
        trial, beside = _Trial(function, mixed), f"beside rows of {what}"
        for at in {(first - 1) % n, (int(changed.nonzero()[0][-1]) + 1) % n}:
            trial.check(other, np.arange(n) == at, f"by another row, {beside},")
        trial.check(other, ~changed, f"by another row, {beside},")


def untouched(before: Any, after: Any, rows: NDArray[np.bool_]) -> bool:
    """Whether two results agree to the last bit in the rows ``rows``."""
    first, second = list(leaves(before)), list(leaves(after))
    return len(first) == len(second) and all(
        _same_bits(x, y, rows) for x, y in zip(first, second, strict=True)
    )


def _same_bits(x: NDArray[Any], y: NDArray[Any], rows: NDArray[np.bool_]) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    x, y = x[rows], y[rows]
    if x.dtype.kind in "fc":  # what else a NaN holds is nobody's
        x, y = (np.where(np.isnan(z), np.nan, z) for z in (x, y))
    return bool(np.array_equal(x, y)) if x.dtype.hasobject else x.tobytes() == y.tobytes()


class _Trial:
    def __init__(self, function: Callable[[Any], Any], block: Any) -> None:
        self._function, self._block, self._n = function, block, length(block)
        self._before = _result(function, block)

    def check(self, row: Any, where: NDArray[np.bool_], how: str) -> None:
        new = record_at(join([self._block, row]), np.where(where, self._n, np.arange(self._n)))
        after = _result(self._function, new)
        if self._before is None or after is None:  # a row fails by itself, and is null by itself
            return
        if not untouched(self._before, after, ~where):
            rows = ", ".join(map(str, np.flatnonzero(where)[:3]))
            raise InterferenceError(
                f"replacing row {rows}{', …' if where.sum() > 3 else ''} of {self._n} {how} "
                "changes other rows' results"
            )

    def check_order(self) -> None:
        n, before = self._n, self._before
        for order in (np.roll(np.arange(n), 1), np.arange(n)[::-1], *_sorted_orders(self._block)):
            after = _result(self._function, record_at(self._block, order))
            if before is not None and not _all_close([x[order] for x in before], after):
                raise InterferenceError("permuting the rows does not permute the results")

    def check_size(self, whole: Any) -> None:
        if whole is None or self._before is None:
            return
        if not _all_close([x[: self._n] for x in whole], self._before):
            raise InterferenceError(f"a row's result depends on how many there are: {self._n}")


def _sorted_orders(block: Any) -> Iterator[NDArray[np.intp]]:
    for leaf in leaves(block):
        if leaf.dtype.kind in "fiu" and leaf.size:
            up = np.argsort(leaf.reshape(len(leaf), -1)[:, 0], kind="stable")
            yield from (up, up[::-1])
            return


def _all_close(first: Any, second: Any) -> bool:
    return second is not None and len(first) == len(second) and all(map(_close, first, second))


def _close(x: NDArray[Any], y: NDArray[Any]) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind not in "fc":
        return bool(np.array_equal(x, y))
    size = np.abs(np.where(np.isfinite(x), x, 0.0)).max(axis=tuple(range(1, x.ndim)), initial=0.0)
    near = _CLOSE * size.reshape(-1, *(1,) * (x.ndim - 1))
    with np.errstate(all="ignore"):
        return bool(np.isclose(x, y, rtol=_CLOSE, atol=near, equal_nan=True).all())


def _check_twice(function: Callable[[T], Any], block: T, other: T) -> None:
    n, before = length(block), [np.array(leaf) for leaf in leaves(block)]
    everywhere = np.ones(n, dtype=bool)
    first = _result(function, block)
    if not untouched(tuple(before), tuple(leaves(block)), everywhere):
        raise InterferenceError("the function writes to the rows it is given")
    _result(function, record_at(join([block, other]), np.full(n, n)))
    again = _result(function, block)
    known = first is not None and again is not None
    if first is not again and not (known and untouched(first, again, everywhere)):
        raise InterferenceError("the same rows give another result after a call with other rows")


def _result(function: Callable[[T], Any], block: T) -> Any:
    """What the function makes of a block; None where a row of it fails also by itself."""
    n = length(block)
    problem = _attempt(function, block, n)
    if problem is not None:
        return problem
    if all(_attempt(function, record_at(block, slice(i, i + 1)), 1) is not None for i in range(n)):
        raise InterferenceError("the function fails on a block of rows and on none by itself")
    return None


def _attempt(function: Callable[[T], Any], block: T, n: int) -> Any:
    """A copy of the result, which a function may overwrite later; None for a failure."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = function(block)
        arrays = tuple(np.array(leaf) for leaf in leaves(result))
        return arrays if length(arrays) == n else None
    except Exception:
        return None


_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 10.0, 100.0, -1e3, 1e6, -1e6, 1e12, 1e100, -1e300,
            1e-12, 1e-300, 5e-324)  # fmt: skip
_FEW = (0.0, 1.0, 1e6, -1e6, 1e-12)


def odd_rows(function: Callable[..., Any] | None, block: Any) -> Iterator[tuple[str, Any]]:
    """Rows, as blocks of one, on which a function may do something special, and what they hold.

    Without a function the few that most of them would do something special on.
    """
    row = record_at(block, slice(0, 1))
    if function is None:
        return rows_about(row, _FEW, each=False)
    mentioned = mined(function, most=_MOST_CONSTANTS).values()
    return rows_about(row, (*_NUMBERS, *mentioned))
