"""The law of row maps: what happens to one row depends on no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from privlearn._records import join, leaves, length, record_at
from privlearn.errors import InterferenceError

T = TypeVar("T")


def check_row_local(function: Callable[[T], Any], block: T, other: T) -> None:
    """Checks that a function for `Rows.map_rows` acts on each row by itself.

    Args:
        function: takes a block (leading axis: users).
        block: at least two rows to try.
        other: one more row, as a block of one, to replace each row with.

    Raises:
        InterferenceError: permuting rows does not permute the results, or replacing one row changes
            another row's result.
    """
    n = length(block)
    if n < 2 or length(other) != 1:
        raise ValueError("block needs at least two rows, other exactly one")
    before = list(leaves(function(block)))
    order = np.roll(np.arange(n), 1)
    for x, y in zip(before, leaves(function(record_at(block, order))), strict=True):
        if not np.array_equal(x[order], y, equal_nan=True):
            raise InterferenceError("permuting the rows does not permute the results")
    both = join([block, other])
    for i in range(n):
        rows = np.where(np.arange(n) == i, n, np.arange(n))
        for x, y in zip(before, leaves(function(record_at(both, rows))), strict=True):
            keep = np.arange(n) != i
            if not np.array_equal(x[keep], y[keep], equal_nan=True):
                raise InterferenceError(f"replacing row {i} changes other rows' results")
