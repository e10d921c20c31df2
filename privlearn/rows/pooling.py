"""One record for each person in each batch, made of the person's own records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.functions import RowFunction
from privlearn.rows.stamps import Counted, Persons
from privlearn.values.records import join, record_at, runs

T = TypeVar("T")
U = TypeVar("U")
RECHECKED = 16
"""Records of a block on which what was called on each by itself is called once more."""


def pool(
    parts: Sequence[tuple[T | None, NDArray[np.bool_]]],
    persons: Persons,
    counted: Counted,
    batches: Sequence[range],
    at: NDArray[np.int64],
    function: RowFunction[T, U],
) -> list[U | None]:
    """For each row what `Rows.pool` makes at its place; None where there is nothing.

    Of each person only the person's own records are ever joined.

    Args:
        parts: blocks of records, and which of them are real.
        persons, counted: whose each record is, and whether it used up a place in the rule.
        batches: the slots of each.
        at: the slot of each record.
        function: makes one record of a block.
    """
    places = [(block, i, real) for block, valid in parts for i, real in enumerate(valid)]
    results: list[U | None] = [None] * len(places)
    checked = 0
    for batch in batches:
        low, high = (int(i) for i in np.searchsorted(at, [batch.start, batch.stop]))
        order = low + np.argsort(persons[low:high], kind="stable")
        order = order[persons[order] >= 0]
        for group in np.split(order, np.flatnonzero(np.diff(persons[order])) + 1):
            if not group.size or not counted[group[0]]:
                continue
            block = _own_block([places[i][:2] for i in group if places[i][2]])
            if block is None:
                continue
            made = function.attempt(block, 1)
            if made is not None and checked < RECHECKED:
                function.check_again(block, made)
                checked += 1
            results[int(group[0])] = made
    return results


def _own_block(own: Sequence[tuple[T | None, int]]) -> T | None:
    if not own:
        return None
    block = own[0][0]
    if block is not None and all(part is block for part, _ in own):
        return record_at(block, np.array([i for _, i in own]))
    singles = [record_at(b, slice(i, i + 1)) for b, i in own if b is not None]
    return join(singles) if len(runs(singles)) == 1 else None


def mean_of_visits(block: Any) -> Any:
    """For `Rows.pool`: the mean of a person's arrays; one that is not finite does not count.

    On arrays of one shape it takes a few array operations for all persons together.
    """
    kept, shape = _finite(block)
    return (np.add.reduceat(kept, [0], axis=0)[0] / len(kept)).reshape(shape)


def _finite(block: Any) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """The finite ones of a person's arrays, each as one row, and their shape."""
    values = np.asarray(block, dtype=np.float64)
    flat = values.reshape(len(values), -1)
    kept = np.ascontiguousarray(flat[np.isfinite(flat).all(axis=1)])
    if not len(kept):
        raise ValueError("no record is finite")
    return kept, values.shape[1:]


def sum_of_visits(block: Any) -> Any:
    """For `Rows.pool`: as `mean_of_visits`, the sum."""
    kept, shape = _finite(block)
    return np.add.reduceat(kept, [0], axis=0)[0].reshape(shape)


@np.errstate(all="ignore")  # a warning would tell of sealed data
def pool_means(
    parts: Sequence[tuple[Any, NDArray[np.bool_]]],
    persons: Persons,
    counted: Counted,
    batches: Sequence[range],
    slots: NDArray[np.int64],
    *,
    total: bool,
) -> tuple[Any, NDArray[np.bool_]] | None:
    """`pool` with `mean_of_visits`, or the ``total`` with `sum_of_visits`, of one block of floats.

    None if the records are something else.

    A sum over one person's rows is made of these alone, in their order, so that it has the same
    bits whoever else comes.
    """
    if len(parts) != 1:
        return None
    block, valid = parts[0]
    if type(block) is not np.ndarray or block.dtype != np.float64:
        return None
    values = block.reshape(len(block), -1)
    number = np.searchsorted([batch.start for batch in batches], slots, side="right")
    order = np.lexsort((persons, number))  # stable: in order of arrival
    order = order[persons[order] >= 0]
    made, real = np.zeros_like(values), np.zeros(len(values), dtype=bool)
    new = (np.diff(persons[order], prepend=-1) != 0) | (np.diff(number[order], prepend=0) != 0)
    group = np.cumsum(new) - 1
    kept = valid[order] & np.isfinite(values[order]).all(axis=1) & counted[order[new]][group]
    if kept.any():
        some, heads, counts = np.unique(group[kept], return_index=True, return_counts=True)
        places = order[new][some]
        sums = np.add.reduceat(np.ascontiguousarray(values[order[kept]]), heads, axis=0)
        made[places], real[places] = sums if total else sums / counts[:, None], True
    return made.reshape(block.shape), real
