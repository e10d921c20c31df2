"""Numbers that code mentions become values, sizes and places to try."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from privlearn.checking.laws.domains import odd_rows
from privlearn.checking.mined import mined
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array, Box

LIMIT = 3.7e7


def called(block: Array) -> Array:
    return block * 0.375


def nested(block: Array, scale: float = 2.5, *, shift: int = 7) -> Array:
    return np.asarray([called(x) + 0.125 + LIMIT for x in block]) * scale + shift


class Base:
    wide = 6.5

    def inherited(self, rows: Array) -> Any:
        return len(rows) in (17, 18)


class Held(Base):
    __slots__ = ("domain", "number")

    def __init__(self, number: float) -> None:
        self.number, self.domain = number, {"of": [Box(0, 8.25, 1)]}

    @property
    def twice(self) -> float:
        return 19.5 * self.number


def test_numbers_are_found_where_code_keeps_them() -> None:
    inner = 11.5
    assert {2.5, 7.0, 0.125, 0.375, LIMIT} <= {*mined(nested).numbers}
    assert {3.0, 11.5} <= {*mined(partial(nested, scale=3.0), lambda x: x + inner).numbers}
    for held in (Held(4.5), Held(4.5).inherited):
        assert {4.5, 8.25, 6.5, 17.0, 18.0, 19.5} <= {*mined(held).numbers}
    assert mined(np.abs).numbers == ()
    noise = GaussianNoise(2.0)  # what it holds, not what our code mentions
    assert set(mined(noise).numbers) == {2.0}


def test_what_is_compared_with_comes_first() -> None:
    def crowded(rows: Array) -> Any:
        return rows * 3.25 if len(rows) > 100 else rows[:40] + 12.5

    found = mined(crowded)
    assert found.numbers[0] == 100
    assert set(found.sizes(1000)) >= {99, 100, 101, 39, 40, 41, 11, 12, 13, 14}
    assert set(found.places(128)) >= {100, 99, 101, 28, 40, 88}
    assert not found.places(1)
    assert {np.nextafter(12.5, 13), 25.0, -12.5} <= {*found.values()}


def test_a_row_map_is_tried_on_what_it_mentions() -> None:
    tried = [float(row[0, 0]) for _, row in odd_rows(nested, np.zeros((1, 1)))]
    assert {0.375, 0.75, -0.75, 2.5} <= set(tried)
    assert np.isnan(tried).any()
