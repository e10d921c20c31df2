"""Users' data as learners take them: rows of numbers, and choices as item numbers.

Their form is checked before anything is sealed or spent, and a bad row is NaN, alone
(`privlearn.rows.inputs`).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.choice_model import Items
from privlearn.rows.inputs import block_of as block_of
from privlearn.rows.inputs import check_dtype as check_dtype
from privlearn.rows.inputs import check_shape as check_shape
from privlearn.rows.inputs import column_from as column_from
from privlearn.rows.inputs import entries_of
from privlearn.rows.inputs import numbers_from as numbers_from
from privlearn.rows.inputs import row_of as row_of
from privlearn.rows.inputs import rows_of as rows_of
from privlearn.rows.inputs import table_block_of as table_block_of
from privlearn.rows.inputs import tables_of as tables_of
from privlearn.values.user_code import FAILED, attempted


def absent(users: range) -> str:
    """What the operator is told of users who never came, in one message for all."""
    return f"users {users.start}..{users.stop - 1} never came; their records do not count"


def places_of(choices: Any, n_items: int, n: int, name: str = "choices") -> Items:
    """Choices as item numbers, shape (n,); what is no whole number becomes N, which is no item.

    Raises:
        TypeError: no array, frame or list; an array or column of another type than numbers.
        ValueError: an array has another shape; there are not ``n`` rows; no entry of a list could
            be a number.
    """
    rows = entries_of(name, choices, (), n)
    if isinstance(rows, np.ndarray) and rows.dtype != object:
        if rows.dtype == np.bool_:
            raise TypeError(f"{name} has dtype bool: must be numbers, from 0 to {n_items - 1}")
        numbers = row_of(rows, (n,))
    else:
        numbers = np.array([_place(row) for row in rows], dtype=np.float64)
    with np.errstate(all="ignore"):  # a warning would tell of sealed data
        whole = (np.abs(numbers) <= n_items) & (numbers == np.floor(numbers))
    return np.where(whole, numbers, n_items).astype(np.int64)


def _place(choice: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would tell of sealed data
        cell = attempted(np.asarray, choice)
    return np.nan if cell is FAILED or cell.dtype.kind not in "biuf" else float(row_of(cell, ()))


def checked_offers(offered: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which actions, or items, each user is offered, in a copy; None for all.

    Raises:
        TypeError: no array of bool.
        ValueError: of another shape.
    """
    if offered is None:
        return np.ones(shape, dtype=bool)
    if not isinstance(offered, np.ndarray) or offered.dtype != bool:
        told = getattr(offered, "dtype", type(offered).__name__)
        raise TypeError(f"offered: {told}: must be an array of bool, shape {shape}")
    if offered.shape != shape:
        raise ValueError(f"offered of shape {offered.shape}: must be {shape}")
    return offered.copy()
