"""Users' data as arrays: what one user sent wrong becomes NaN, for that user only.

Shapes of numeric arrays are public and raise; contents are not, and lists are contents.  Data
frames and tensors are taken, and what is no table is refused (`privlearn.rows.tabular`).  What
comes out are arrays of our own, row after row in memory: the usual environment writes the next
user's data into the array that held the last one's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.domains import Array
from privlearn.mnl import Items
from privlearn.rows.tabular import block_from, unmasked


def _sequence(name: str, values: Any) -> Sequence[Any] | NDArray[Any]:
    """An array, list or tuple; what it holds is not looked at.

    Raises:
        TypeError: something else.
        ValueError: an array without rows.
    """
    rows: Sequence[Any] | NDArray[Any] = block_from(name, values)
    if isinstance(rows, np.ndarray) and rows.ndim == 0:
        raise ValueError(f"{name} of shape (): must have one entry per user")
    return rows


def _is_numeric(values: object) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf"


def _converted(values: Any) -> Array | None:
    """A copy as numbers, or None; an error or a warning would tell of sealed data."""
    if type(values) is np.ndarray and (values.dtype == np.float64 or values.dtype.kind in "biu"):
        return np.array(values, dtype=np.float64, order="C")  # neither fails nor warns
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            return np.array(unmasked(values), dtype=np.float64, order="C")
    except Exception:
        return None


def absent(users: range) -> str:
    """What the operator is told of users who never came, in one message for all."""
    return f"users {users.start}..{users.stop - 1} never came; their records do not count"


def row_of(values: Any, shape: tuple[int, ...]) -> Array:
    """A copy of one user's numbers; NaN if they are not numbers, or of another shape."""
    row = _converted(values)
    return row if row is not None and row.shape == shape else np.full(shape, np.nan)


def rows_of(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """What several users sent, each as `row_of` reads it, shape (n, *shape)."""
    rows = [row_of(each, shape) for each in values]
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


def block_of(name: str, values: Any, shape: tuple[int, ...], n: int | None = None) -> Array:
    """A copy as numbers of shape (n, *shape); rows that are not, are NaN.

    Raises:
        TypeError: no array, frame or list.
        ValueError: an array of numbers has another shape; there are not ``n`` rows.
    """
    rows = _sequence(name, values)
    count = len(rows) if n is None else n
    wanted = (count, *shape)
    if isinstance(rows, np.ndarray) and _is_numeric(rows) and rows.shape != wanted:
        first = "n" if n is None else str(n)
        text = ", ".join([first, *map(str, shape)])
        raise ValueError(f"{name} of shape {rows.shape}: must be ({text})")
    if len(rows) != count:
        raise ValueError(f"{name} of {len(rows)} rows: must have {count}")
    whole = _converted(rows)
    if whole is not None and whole.shape == wanted:
        return whole
    block = np.empty(wanted)
    for i, row in enumerate(rows):
        block[i] = row_of(row, shape)
    return block


def places_of(choices: Any, n_items: int, n: int) -> Items:
    """Choices as item numbers, shape (n,); what is no whole number becomes N, which is no item.

    Raises:
        TypeError: no array, frame or list.
        ValueError: an array of numbers has another shape; there are not ``n`` rows.
    """
    rows = _sequence("choices", choices)
    if isinstance(rows, np.ndarray) and _is_numeric(rows) and rows.shape != (n,):
        raise ValueError(f"choices of shape {rows.shape}: must be ({n},)")
    if len(rows) != n:
        raise ValueError(f"choices of {len(rows)} rows: must have {n}")
    if isinstance(rows, np.ndarray) and _is_numeric(rows):
        numbers = row_of(rows, (n,))
    else:
        numbers = np.array([_place(row) for row in rows], dtype=np.float64)
    with np.errstate(all="ignore"):  # a warning would tell of sealed data
        whole = (np.abs(numbers) <= n_items) & (numbers == np.floor(numbers))
    return np.where(whole, numbers, n_items).astype(np.int64)


def _place(choice: Any) -> float:
    """One user's choice as a number; NaN for text."""
    try:
        cell = np.asarray(choice)
    except Exception:
        return np.nan
    return float(row_of(cell, ())) if _is_numeric(cell) else np.nan
