"""Records as they are sealed: in arrays that nobody else holds, and their form.

Each record of a list is taken by itself: numbers as floats (a missing one is NaN), text and objects
as they are, for functions that the rows are mapped with.  What cannot be taken is null, alone.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.record_forms import LEAST, Form, cells_of, form_of, numbers_of, parsed
from privlearn.rows.tabular import objects
from privlearn.values.records import rebuilt
from privlearn.values.user_code import FAILED, Failed, attempted


def own_records(block: Any) -> tuple[Any, Form]:
    """A copy of a block of arrays and lists, and its form.

    Records that do not fit into one array are a list of arrays, with None for null ones.
    """
    if isinstance(block, tuple):
        fields = [own_records(field) for field in block]
        return rebuilt(block, [own for own, _ in fields]), rebuilt(block, [f for _, f in fields])
    if isinstance(block, list):
        return _of_list(block)
    array = np.array(block, order="C")
    form = form_of(array)
    if not array.dtype.hasobject or not array.ndim:
        return array, form
    whole = _deep_copy(array)
    if whole is not None:
        return whole, form
    return [_deep_copy(array[i : i + 1]) for i in range(len(array))], form


def single_records(own: Any, count: int) -> list[Any] | None:
    """Blocks of one record each, None for null ones; None if ``own`` is of arrays throughout."""
    if isinstance(own, tuple):
        fields = [single_records(field, count) for field in own]
        if all(singles is None for singles in fields):
            return None
        columns = [
            [field[i : i + 1] for i in range(count)] if singles is None else singles
            for field, singles in zip(own, fields, strict=True)
        ]
        return [
            None if any(part is None for part in record) else rebuilt(own, list(record))
            for record in zip(*columns, strict=True)
        ]
    return own if isinstance(own, list) else None


def _of_list(values: list[Any]) -> tuple[NDArray[Any] | list[NDArray[Any] | None], Form]:
    whole = _array(values)
    if whole is not FAILED and whole.dtype.kind in "biuf":
        return whole, form_of(whole) if len(values) >= LEAST else None
    made = [_record(value) for value in values]
    held = [record for record in made if record is not None]
    # of a few records any form may come
    form = frozenset(_cells(record) for record in held) if len(held) >= LEAST else None
    if len(held) == len(made) and len({(r.shape, r.dtype.kind) for r in held}) == 1:
        return np.concatenate(held), form
    return made, form


def _record(value: Any) -> NDArray[Any] | None:
    if value is None:
        return None
    made = _array(value)
    if made is FAILED:  # such as a list of lists of several lengths
        made = objects([value]).reshape(())
    if made.dtype.kind in "biuf":
        made = numbers_of(made)
    elif made.dtype.kind == "O":
        numbers, alien = parsed(made)
        if made.ndim and not alien.any():
            made = numbers
        else:
            return _deep_copy(made[None])
    return np.asarray(made[None])


def _array(value: Any) -> NDArray[Any] | Failed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would tell of sealed data
        return attempted(np.array, value)


def _cells(record: NDArray[Any]) -> Any:
    cells = cells_of(record, record.shape[1:])
    if record.dtype.kind in "OUST":  # contents, of which a cell may be a number
        cells = cells._replace(numeric=not parsed(record)[1].all())
    return cells


def _deep_copy(array: NDArray[Any]) -> NDArray[Any] | None:
    made = attempted(lambda: copy.deepcopy(array))
    return None if made is FAILED else made
