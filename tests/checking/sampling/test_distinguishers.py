"""Witnesses: what they see, and that their scores of training outputs are honest."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from privlearn.checking.sampling.distinguishers import (
    Score,
    families,
    last_bits_tell,
    lowest_bit,
)
from privlearn.checking.sampling.encoding import tabulate

Draw = Callable[[bool, Generator], Any]


def ranks_ahead(score: Score) -> float:
    """P(score of the first data set > of the second) − P(<), by scores of training rows."""
    order = np.sort(score.second)
    below = np.searchsorted(order, score.first, side="left")
    upto = np.searchsorted(order, score.first, side="right")
    return float((below + upto).mean() / len(order) - 1)


def learned(draw: Draw, n: int = 400, *, bits: bool = False) -> list[tuple[float, float, Score]]:
    """Advantages on training outputs (crossed), on fresh ones, and the scores."""
    rng = np.random.default_rng(8)
    worlds = [[draw(w, rng) for _ in range(n)] for w in (True, False)]
    like = tabulate([*worlds[0], *worlds[1]])
    p, q = like.take(slice(0, n)), like.take(slice(n, None))
    fresh = [tabulate([draw(w, rng) for _ in range(n)], like) for w in (True, False)]
    found = []
    for family in families(p, q, bits=bits):
        for score in family(p, q):
            new = Score(score.text, score.of, score.of(fresh[0]), score.of(fresh[1]))
            found.append((ranks_ahead(score), ranks_ahead(new), score))
    return found


def xor(world: bool, rng: Generator) -> Any:
    a = bool(rng.integers(2))
    return [a, a ^ (world == (rng.random() < 0.8))]


def xor_of_integers(world: bool, rng: Generator) -> Any:
    return np.array(xor(world, rng), dtype=int)


def product(world: bool, rng: Generator) -> Any:
    x, y = rng.normal(size=2)
    return np.array([x, abs(y) * np.sign(x) * (1 if world == (rng.random() < 0.8) else -1)])


def sorted_numbers(world: bool, rng: Generator) -> Any:
    return np.sort(rng.normal(size=5) + 3 * world * np.eye(5)[2])


def arg_max(world: bool, rng: Generator) -> Any:
    return int(np.argmax(rng.normal(size=6) + 1.5 * world * np.eye(6)[3]))


LEAKS: dict[str, Draw] = {
    "a shift": lambda w, r: w + r.normal(),
    "variance alone": lambda w, r: (2.0 if w else 1.0) * r.normal(),
    "noise used twice": lambda w, r: (lambda z: np.array([z, z + 1e-6 * w]))(r.normal()),
    "difference of twenty": lambda w, r: np.append(z := r.normal(size=20), z.sum() + 0.01 * w),
    "a symbol": lambda w, r: "ab"[int(r.random() < (0.7 if w else 0.3))],
    "nan": lambda w, r: math.nan if w and r.random() < 0.3 else r.normal(),
    "twenty booleans": lambda w, r: (r.random(20) < (0.55 if w else 0.45)).tolist(),
    "xor": xor,
    "xor of integers": xor_of_integers,
    "a product": product,
    "sorted": sorted_numbers,
    "arg-max": arg_max,
    "nested": lambda w, r: {"a": (None, [r.normal() + w]), "b": "x"},
    "the largest of many": lambda w, r: r.permutation(np.append(r.normal(size=9), 6.0 * w)),
    "correlation": lambda w, r: (lambda x, y: np.array([x, 0.8 * w * x + y]))(*r.normal(size=2)),
}


@pytest.mark.parametrize("name", LEAKS)
def test_some_distinguisher_sees_the_leak_in_fresh_outputs(name: str) -> None:
    assert max(fresh for _, fresh, _ in learned(LEAKS[name])) > 0.25


NOTHING: dict[str, Draw] = {
    "a number": lambda w, r: r.normal(),
    "many numbers": lambda w, r: r.normal(size=60),
    "symbols": lambda w, r: [int(x) for x in r.integers(3, size=8)] + ["abc"[r.integers(3)]],
    "rare text": lambda w, r: f"{r.integers(500)}",
}


@pytest.mark.parametrize("name", NOTHING)
def test_scores_kept_for_training_outputs_are_as_good_as_on_fresh_ones(name: str) -> None:
    for kept, fresh, _ in learned(NOTHING[name]):
        assert abs(kept) < 0.16  # standard deviation .041
        assert abs(fresh) < 0.16


def test_scores_by_a_fit_that_saw_the_outputs_would_not_be() -> None:
    rng = np.random.default_rng(1)
    outputs = [rng.normal(size=60) for _ in range(800)]
    like = tabulate(outputs)
    p, q = like.take(slice(0, 400)), like.take(slice(400, None))
    seen = [Score(s.text, s.of, s.of(p), s.of(q)) for f in families(p, q) for s in f(p, q)]
    assert max(map(ranks_ahead, seen)) > 0.3


def test_nothing_that_varies_has_no_distinguisher() -> None:
    same = tabulate([3.0] * 20)
    assert families(same, same) == []


def test_a_learner_says_what_it_looks_at() -> None:
    texts = [score.text for _, _, score in learned(LEAKS["nested"])]
    assert any("output['a'][1][0]" in text for text in texts)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_lowest_bit_is_that_of_the_exact_fraction(value: float) -> None:
    found = float(lowest_bit(np.array([value]))[0])
    if value == 0:
        assert found == 1100
        return
    fraction = Fraction(value)
    top = abs(fraction.numerator)
    twos = (top & -top).bit_length() - 1
    assert found == twos - (fraction.denominator.bit_length() - 1)


def test_last_bits_of_floating_point_noise_tell_and_those_of_a_grid_do_not() -> None:
    rng = np.random.default_rng(2)
    noise = rng.laplace(size=(2, 3000))
    assert last_bits_tell(tabulate(list(0.0 + noise[0])), tabulate(list(16.0 + noise[1])))
    grid = np.round(noise * 2**20) / 2**20
    assert not last_bits_tell(tabulate(list(grid[0])), tabulate(list(16.0 + grid[1])))
    found = learned(lambda w, r: (16.0 * w + r.random()) - 16.0 * w, 600, bits=True)
    assert any("lowest set bit" in score.text for _, _, score in found)


def test_constant_columns_do_not_cost_what_they_do_not_tell() -> None:
    draw: Draw = lambda w, r: [1.0] * 1000 + [2.0 * w + r.normal()]  # noqa: E731
    assert max(fresh for _, fresh, _ in learned(draw, 60)) > 0.7
