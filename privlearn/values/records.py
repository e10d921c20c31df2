"""Records and blocks: arrays, or (nested) tuples of arrays, with users along the leading axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

T = TypeVar("T")


def rebuilt(like: object, fields: list[Any]) -> Any:
    """A tuple of the same type with other fields."""
    return type(like)(*fields) if hasattr(like, "_fields") else tuple(fields)


def leaves(block: object) -> Iterator[Any]:
    """The arrays of a block, in field order."""
    return iter(_listed(block))


def _listed(block: object) -> list[Any]:
    if not isinstance(block, tuple):
        return [np.asarray(block)]
    found: list[Any] = []
    for field in block:
        if type(field) is np.ndarray:
            found.append(field)
        else:
            found += _listed(field)
    return found


def each_leaf(block: object, change: Callable[[NDArray[Any]], Any]) -> Any:
    """The block with each of its arrays changed, in field order."""
    if isinstance(block, tuple):
        return rebuilt(block, [each_leaf(field, change) for field in block])
    return change(np.asarray(block))


def copied(block: T) -> T:
    """The same block in arrays of its own, row after row in memory; lists become arrays.

    Objects inside arrays stay as they are.
    """
    if isinstance(block, tuple):
        return cast(T, rebuilt(block, [copied(field) for field in block]))
    # a subclass stays one: it may know which of its cells are masked
    return cast(T, np.array(block, order="C", subok=True))


def frozen(values: ArrayLike) -> NDArray[np.float64]:
    """A copy as floats that cannot be written to, to be handed out."""
    own = np.array(values, dtype=np.float64)
    own.setflags(write=False)
    return own


def record_at(block: T, index: int | slice | NDArray[np.int_]) -> T:
    """One record of a block (int) or a sub-block (slice or indices)."""
    if isinstance(block, tuple):
        return cast(T, rebuilt(block, [record_at(field, index) for field in block]))
    if isinstance(block, list) and isinstance(index, slice):  # its records may be of any form
        return cast(T, block[index])
    return cast(T, np.asarray(block)[index])


def blanked(block: T, where: NDArray[np.bool_]) -> T:
    """A copy of a block in which the rows ``where`` are zero (empty, for text and objects)."""
    if isinstance(block, tuple):
        return cast(T, rebuilt(block, [blanked(field, where) for field in block]))
    copy = np.array(block)
    copy[where] = np.zeros((), dtype=copy.dtype)
    return cast(T, copy)


def _combine(parts: Sequence[T], how: Callable[[Sequence[Any]], Any]) -> T:
    first = parts[0]
    if isinstance(first, tuple):
        columns = [[cast(Any, part)[i] for part in parts] for i in range(len(first))]
        return cast(T, rebuilt(first, [_combine(column, how) for column in columns]))
    return cast(T, how([np.asarray(part) for part in parts]))


def stack(records: Sequence[T]) -> T:
    """A block from single records.

    Raises:
        ValueError: shapes differ.
    """
    return _combine(records, np.stack)


def join(blocks: Sequence[T]) -> T:
    """One block from several of the same signature."""
    return blocks[0] if len(blocks) == 1 else _combine(blocks, np.concatenate)


def length(block: object) -> int:
    """The number of records in a block.

    Raises:
        ValueError: arrays without a common leading axis.
    """
    if isinstance(block, np.ndarray) and block.ndim:
        return len(block)
    shapes = _shapes(block)
    firsts = {shape[:1] for shape in shapes}
    if len(firsts) == 1 and (first := firsts.pop()):
        return int(first[0])
    if not shapes or any(len(s) == 0 for s in shapes) or len({s[0] for s in shapes}) != 1:
        raise ValueError(f"a block needs arrays with one common leading axis, got shapes {shapes}")
    return int(shapes[0][0])


def _shapes(block: object) -> list[tuple[int, ...]]:
    if isinstance(block, tuple):
        return [shape for field in block for shape in _shapes(field)]
    return [(len(block),)] if isinstance(block, list) else [np.shape(cast(ArrayLike, block))]


def runs(blocks: Sequence[T | None]) -> list[tuple[int, list[T]]]:
    """Neighbouring blocks that can be joined: how many, and the blocks; none for a run of None."""
    found: list[tuple[int, list[T]]] = []
    for key, run in groupby(blocks, lambda block: None if block is None else signature(block)):
        together = list(run)
        found.append((len(together), [] if key is None else cast("list[T]", together)))
    return found


def signature(block: object) -> object:
    """Types and per-record shapes; blocks with equal signatures can be joined."""
    if type(block) is np.ndarray:
        return (block.shape[1:], block.dtype.str)
    if isinstance(block, tuple):
        return (type(block), tuple([signature(field) for field in block]))
    array = np.asarray(block)
    return (array.shape[1:], array.dtype.str)
