"""Outputs of any kind become numbers and symbols, one row each, and nothing is lost in silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.checking.sampling.encoding import MAX_NUMBERS, Noted, Raised, tabulate
from privlearn.errors import CheckError


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Record:
    x: float
    label: str


class Point(NamedTuple):
    x: float
    y: float


class Plain:
    def __init__(self, x: float) -> None:
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: float) -> None:
        self.x = x


DIFFERENT: list[tuple[Any, Any]] = [
    (1.0, 2.0),
    (1.0, 1),
    (True, 1),
    (float("nan"), 0.0),
    (float("inf"), -float("inf")),
    (1e150, 1e200),
    (2**70, 2**70 + 1),
    (10**400, 10**400 + 1),
    (None, "None"),
    ("a", b"a"),
    ([1.0], (1.0,)),
    ([1.0], [1.0, 1.0]),
    (np.zeros(2), np.zeros((2, 1))),
    (np.zeros(2), np.zeros(2, dtype=int)),
    (np.array([1.0, np.nan]), np.array([np.nan, 1.0])),
    (np.array(["a"]), np.array(["b"])),
    (np.array([None, 1.0], dtype=object), np.array([1.0, None], dtype=object)),
    (np.array([(1, 2.0)], dtype="i4,f8"), np.array([(1, 3.0)], dtype="i4,f8")),
    (1 + 2j, 1 + 3j),
    (np.complex64(1 + 2j), np.complex64(1 + 3j)),
    (np.longdouble(1), np.longdouble(2)),
    ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}),
    ({1, 2}, {1, 3}),
    (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)),
    (datetime(2020, 1, 1), datetime(2020, 1, 1, microsecond=1)),
    (date(2020, 1, 1), date(2020, 1, 2)),
    (timedelta(seconds=1), timedelta(seconds=2)),
    (np.datetime64("2020-01-01"), np.datetime64("NaT")),
    (Decimal("1.5"), Fraction(3, 2)),
    (Decimal("NaN"), Decimal("sNaN")),
    (Colour.RED, Colour.BLUE),
    (Record(1.0, "a"), Record(1.0, "b")),
    (Point(1.0, 2.0), (1.0, 2.0)),
    (Plain(1.0), Plain(2.0)),
    (Slotted(1.0), Slotted(2.0)),
    (int, float),
    (Raised("ValueError", "a"), Raised("KeyError", "a")),
    (Noted(1.0, ("UserWarning: x",)), 1.0),
    ("noise 1.5", "noise 1.25"),
    ({"a": [Record(1.0, "x"), None]}, {"a": [Record(1.0, "x"), 0.0]}),
]


def rows(outputs: list[Any]) -> list[bytes]:
    table = tabulate(outputs)
    return [a.tobytes() + b.tobytes() for a, b in zip(table.numbers, table.symbols, strict=True)]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda x: str(x)[:24])
def test_different_outputs_have_different_rows_and_equal_ones_the_same(
    one: Any, other: Any
) -> None:
    first, again, second = rows([one, one, other])
    assert first == again != second


def test_what_is_noisy_is_a_number_wherever_it_hides() -> None:
    hidden: list[Callable[[float], Any]] = [
        lambda x: x,
        lambda x: {"a": (x, None)},
        lambda x: complex(0, x),
        lambda x: Plain(x),
        lambda x: Slotted(x),
        lambda x: Decimal(repr(x)),
        lambda x: f"the answer is {x!r}!",
        lambda x: Raised("ValueError", f"bad value {x!r}"),
        lambda x: Noted(0.0, (f"UserWarning: {x!r}",)),
        lambda x: np.array([[x, 0.0]]),
        lambda x: np.array([x], dtype=object),
        lambda x: [1.0] * MAX_NUMBERS + [x],
    ]
    values = [0.5, 1.25, -3.0, 4.5]
    for hide in hidden:
        numbers = tabulate([hide(v) for v in values]).numbers
        varied = numbers[:, numbers.max(axis=0) > numbers.min(axis=0)]
        steps = np.diff(varied, axis=0)[:, :1] / np.diff(values)[:, None]
        assert steps == pytest.approx(np.full((3, 1), steps[0, 0]), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-1e9, 1e9)] * 3), min_size=1, max_size=6))
def test_the_fast_way_and_the_slow_way_agree(values: list[tuple[float, ...]]) -> None:
    arrays = [np.array(v) for v in values]
    fast = tabulate(arrays)
    like = tabulate([*arrays, "odd one out"])
    together = tabulate([*arrays, None], like)
    apart = tabulate(arrays, like)
    assert np.array_equal(fast.numbers, apart.numbers)
    assert np.array_equal(apart.numbers, together.numbers[:-1])
    assert np.array_equal(apart.symbols, together.symbols[:-1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=True), st.integers(), st.text(max_size=4), st.none(), st.booleans(),
            st.lists(st.floats(), max_size=3), st.dictionaries(st.text(max_size=2), st.integers()),
        ), min_size=2, max_size=8),
    st.integers(1, 7),
)  # fmt: skip
def test_a_row_does_not_depend_on_what_else_was_drawn(outputs: list[Any], cut: int) -> None:
    like = tabulate(outputs)
    parts = [tabulate(part, like) for part in (outputs[:cut], outputs[cut:]) if part]
    assert np.array_equal(np.vstack([p.numbers for p in parts]), like.numbers)
    assert np.array_equal(np.vstack([p.symbols for p in parts]), like.symbols)


def test_symbols_that_were_not_seen_are_a_symbol_of_their_own() -> None:
    like = tabulate(["a", "b", 1.0])
    new = tabulate(["c", "a", 2.0, float("nan")], like)
    assert new.symbols[:, 0].tolist() == [-1, like.symbols[0, 0], like.symbols[2, 0], -1]


def test_numbers_stay_in_order_and_have_finite_squares() -> None:
    huge = [-1e308, -1e200, -1.0, 1e-300, 1e100, 1e101, 1e308]
    numbers = tabulate(huge).numbers[:, 0]
    assert (np.diff(numbers) > 0).all()
    assert np.isfinite(numbers**2).all()
    assert tabulate([5e-324, 1.0]).numbers[0, 0] == 5e-324


def test_long_outputs_are_seen_to_their_end() -> None:
    for make in (lambda x: np.append(np.zeros(50_000), x), lambda x: [0.0] * 50_000 + [x]):
        table = tabulate([make(v) for v in (0.0, 1.0, 2.5)])
        assert table.numbers.shape == (3, MAX_NUMBERS)
        assert np.ptp(table.numbers, axis=0).max() == 2.5
    lost = tabulate([["a"] * 5000 + [end] for end in "xy"])
    assert np.ptp(lost.numbers, axis=0).max() > 0
    bad = tabulate([np.append(np.zeros(5000), end) for end in (0.0, np.nan)])
    assert len(set(map(bytes, bad.symbols))) == 2


@pytest.mark.parametrize("output", [object(), lambda x: x, len, [1.0, object()]])
def test_what_cannot_be_looked_into_is_refused(output: Any) -> None:
    with pytest.raises(CheckError, match="cannot be looked into"):
        tabulate([output, output])


def test_deep_and_circular_outputs_end() -> None:
    knot: list[Any] = [1.0]
    knot += [knot, knot]
    assert len(tabulate([knot, 2.0])) == 2
