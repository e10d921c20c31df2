"""Faults that a reviewer brought along, none of them shipped: found with default settings."""

from __future__ import annotations

import io
import itertools
import json
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.checking.sampling.check import black_box
from privlearn.errors import CheckError
from privlearn.losses.budgets import PureDP

Rng = np.random.Generator
ONE, NONE = [1.0], [0.0]


def noisy(x: list[float], rng: Rng) -> float:
    """Ten times too little noise for ε = 1."""
    return float(sum(x) + rng.laplace(0, 0.1))


class Repr:
    """Tells its value only in its print."""

    __slots__ = ("_text",)

    def __init__(self, value: float) -> None:
        self._text = value

    def __repr__(self) -> str:
        return f"R<{self._text}>"


def nested(value: float) -> Any:
    inner: Any = value
    for _ in range(40):
        inner = [inner]
    return inner


def long_text(value: float) -> str:
    return json.dumps({"edges": list(range(20)), "total": round(5e5 + 1000 * value, 3)})


WRAPS: dict[str, Callable[[float], Any]] = {
    "bytes": lambda v: json.dumps(v).encode(),
    "packed": lambda v: np.float64(v).tobytes(),
    "memoryview": lambda v: memoryview(np.array([v]).data),
    "deque": lambda v: deque([v]),
    "values of a dict": lambda v: {"a": v}.values(),
    "a set": lambda v: {v},
    "a key": lambda v: {v: 1},
    "a file": lambda v: io.StringIO(str(v)),
    "nested": nested,
    "repr": Repr,
    "long text": long_text,
}


@pytest.mark.parametrize("kind", WRAPS)
def test_noise_is_seen_in_outputs_of_any_kind(kind: str) -> None:
    found = black_box(
        lambda x, rng: WRAPS[kind](noisy(x, rng)), PureDP(1), (ONE, NONE), samples=1_000
    )
    assert found.violated


@pytest.mark.parametrize("pair", [(ONE, NONE), (NONE, ONE)])
def test_the_order_of_the_pair_does_not_matter(pair: Any) -> None:
    def spread(x: list[float], rng: Rng) -> Any:
        return rng.normal(0, 1 + 0.3 * x[0], 100)

    assert black_box(spread, PureDP(1), pair, samples=3_000).violated


@pytest.mark.parametrize("pair", [(ONE, NONE), (NONE, ONE)])
def test_one_raw_value_in_a_hundred(pair: Any) -> None:
    def sometimes(x: list[float], rng: Rng) -> float:
        return float(rng.normal() if rng.random() > 0.01 else 50 + x[0])

    assert black_box(sometimes, PureDP(1), pair, samples=20_000).violated


def test_the_parity_of_whole_numbers_is_no_rounding() -> None:
    def even(x: list[float], rng: Rng) -> int:
        return int(2 * rng.integers(0, 20_000) + x[0])

    def quarters(x: list[float], rng: Rng) -> float:
        return float(rng.integers(0, 20_000) + 0.25 * x[0])

    assert black_box(even, PureDP(1), (ONE, NONE), samples=1_000).violated
    assert black_box(quarters, PureDP(1), (ONE, NONE), samples=1_000).violated


def test_equal_values_among_shuffled_ones() -> None:
    def memoised(x: list[float], rng: Rng) -> Any:
        seen: dict[float, float] = {}
        return rng.permutation([seen.setdefault(v, v + rng.normal()) for v in x])

    pair = ([1.0, 2, 3, 4, 5], [1.0, 1, 3, 4, 5])
    assert black_box(memoised, PureDP(1), pair, samples=2_000).violated


def test_a_clock_in_the_output_accuses_nobody() -> None:
    clock = itertools.count(10**36, 98_765_432_109_876_543)

    def stamped(x: list[float], rng: Rng) -> Any:
        return str(uuid.UUID(int=next(clock) % 2**128)), x[0] + rng.laplace()

    accused = [
        black_box(stamped, PureDP(1), (ONE, NONE), seed=seed, confidence=0.99, samples=600).violated
        for seed in range(20)
    ]
    assert sum(accused) <= 1


def test_data_that_the_first_run_uses_up() -> None:
    def sums(data: Any, rng: Rng) -> float:
        return float(sum(data["g"]) + rng.laplace(0, 0.1))

    with pytest.raises(CheckError, match="an iterator is exhausted by the first run"):
        black_box(sums, PureDP(1), ({"g": iter([5.0])}, {"g": iter([0.0])}))


@pytest.mark.parametrize(
    "data", [{"a": np.arange(2)}, np.array([np.nan]), [float("nan"), {"b": [1]}]]
)
def test_equal_data_sets_are_no_neighbours(data: Any) -> None:
    import copy

    with pytest.raises(CheckError, match="the two data sets are the same"):
        black_box(noisy, PureDP(1), (data, copy.deepcopy(data)))


def test_what_cannot_be_looked_into_is_no_pass() -> None:
    async def later(x: list[float], rng: Rng) -> float:
        return noisy(x, rng)

    with (
        pytest.warns(RuntimeWarning, match="never awaited"),
        pytest.raises(CheckError, match="a coroutine cannot be looked into"),
    ):
        black_box(later, PureDP(1), (ONE, NONE), samples=40)


def test_runs_that_mostly_fail_are_said_to() -> None:
    def busy(x: list[float], rng: Rng) -> float:
        if rng.random() < 0.99:
            raise OSError("busy")
        return 1.0

    found = black_box(busy, PureDP(1), (ONE, NONE), samples=2_000)
    assert not found.violated
    assert any("of the runs fail, the first with OSError: busy" in note for note in found.notes)
