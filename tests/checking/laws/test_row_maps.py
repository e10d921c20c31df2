"""`check_row_local` tries the rows on which a function might do something special."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from privlearn.checking import check_row_local
from privlearn.checking.laws.domains import untouched
from privlearn.errors import InterferenceError
from privlearn.rows.domains import Array

LIMIT = 3.7e7
WEIGHTS = np.random.default_rng(3).normal(size=(9, 31))


def rows(n: int = 5, size: int = 2) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, size)), rng.normal(size=(1, size))


def dedupe(block: Array) -> Array:
    """Rows that occur twice are set to zero."""
    _, where, counts = np.unique(block, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(block * (counts[where.reshape(-1)] == 1)[:, None])


class Remembers:
    """Something of one call is left for the next."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, block: Array) -> Array:
        result, self.last = block + self.last, float(block[0, 0])
        return np.asarray(result)


def overwrites(block: Array) -> Array:
    block[:, 0] = 0.0
    return block


def marked_by_default(block: Array, marked: float = 17.125) -> Array:
    return block * 0 if (block == marked).any() else block


def zeroed_if(trigger: Callable[[Array], Any]) -> Callable[[Array], Array]:
    return lambda block: block * 0 if trigger(block) else block


COUPLED: dict[str, Callable[[Array], Any]] = {
    "a large block": lambda block: np.sort(block, axis=0) if len(block) > 40 else block,
    "the same row twice": dedupe,
    "distinct rows only": lambda block: np.unique(block, axis=0),
    "a large number": zeroed_if(lambda block: block.max() > 9),
    "a very negative number": zeroed_if(lambda block: block.min() < -1e5),
    "a limit from the module": zeroed_if(lambda block: (block > LIMIT).any() and block.max() < 4e7),
    "a number of its own": zeroed_if(lambda block: (block == 42.25).any()),
    "a default": marked_by_default,
    "a number in a partial": partial(
        lambda marked, block: block * 0 if (block == marked).any() else block, -7.5
    ),
    "a missing number": zeroed_if(lambda block: np.isnan(block).any()),
    "an infinite number": zeroed_if(lambda block: np.isinf(block).any()),
    "a row of zeros": zeroed_if(lambda block: not block.any(axis=1).all()),
    "a tiny number": zeroed_if(lambda block: 0 < np.abs(block).min() < 1e-200),
    "all rows equal": zeroed_if(lambda block: (block == block[0]).all()),
    "the spread": lambda block: block / block.std() if block.std() > 1e4 else block,
    "the number of rows": lambda block: block * len(block),
    "a failure of the whole": lambda block: block if block.max() < 50 or len(block) < 2 else 1 / 0,
    "a row behind the third": lambda block: block - block[3:4] if len(block) > 4 else block,
    "a call before": Remembers(),
    "its input": overwrites,
    "the sign of zero": lambda block: np.where(block.max() > 9, -0.0, 0.0) * np.abs(block),
}


@pytest.mark.parametrize("name", COUPLED)
def test_coupling_that_only_some_rows_trigger_is_caught(name: str) -> None:
    block, other = rows()
    with pytest.raises(InterferenceError):
        check_row_local(COUPLED[name], block, other)


INNOCENT: dict[str, Callable[[Array], Any]] = {
    "absolute values": np.abs,
    "a matrix product": lambda block: block @ WEIGHTS[: block.shape[1]],
    "unit rows": lambda block: block / np.linalg.norm(block, axis=1, keepdims=True),
    "a clip": lambda block: np.clip(block, -LIMIT, LIMIT),
    "several arrays": lambda block: (block.argmax(axis=1), np.exp(-block).sum(axis=1)),
    "sorting within rows": lambda block: np.sort(block, axis=1),
    "refuses a row": lambda block: block if np.isfinite(block).all() else 1 / 0,
    "own limit for each row": lambda block: np.where(block > 9, 0.0, block),
}


@pytest.mark.parametrize("name", INNOCENT)
@pytest.mark.parametrize("shape", [(5, 2), (33, 9)])
def test_functions_of_single_rows_are_not_accused(name: str, shape: tuple[int, int]) -> None:
    for dtype in (np.float64, np.float32):
        made: Any = [part.astype(dtype) for part in rows(*shape)]
        check_row_local(INNOCENT[name], *made)


class Visit(NamedTuple):
    features: Array
    choice: Any
    member: Any


def test_every_part_of_a_record_is_tried() -> None:
    rng = np.random.default_rng(1)
    block = Visit(rng.normal(size=(4, 3, 2)), np.array([0, 1, 2, 1]), np.zeros(4, dtype=bool))
    other = Visit(rng.normal(size=(1, 3, 2)), np.array([2]), np.zeros(1, dtype=bool))
    check_row_local(lambda own: own.features.sum(axis=(1, 2)) + own.choice, block, other)
    for coupled in (
        lambda own: own.features * (0 if (own.choice == -1).any() else 1),
        lambda own: own.features * (0 if (own.choice == 8).any() else 1),
        lambda own: own.choice * (0 if own.member.any() else 1),
        lambda own: own.choice * (0 if np.isnan(own.features).any() else 1),
        lambda own: own.choice * (0 if own.features.max() > 9 else 1),
    ):
        with pytest.raises(InterferenceError, match="changes other rows' results"):
            check_row_local(coupled, block, other)


def test_untouched_rows_are_compared_to_the_last_bit() -> None:
    first = np.array([0.1, 0.0, np.nan, 3.0])
    kept = np.array([True, True, True, False])
    assert untouched(first, np.array([0.1, 0.0, np.nan, 4.0]), kept)
    assert not untouched(first, np.array([np.nextafter(0.1, 1), 0.0, np.nan, 3.0]), kept)
    assert not untouched(first, np.array([0.1, -0.0, np.nan, 3.0]), kept)
    assert not untouched(first, first.astype(np.float32), kept)
    assert not untouched((first,), (first, first), kept)
