"""What may be checked, and on which data: everything else is a clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from privlearn.checking.targets import SamplingTarget, sampling_target
from privlearn.errors import CheckError
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ApproxDP, PureDP
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

PAIR = ([0.0, 0.0], [1.0, 0.0])


def noisy(data: list[float], rng: Generator) -> float:
    return float(sum(data) + rng.normal())


def test_functions_with_and_without_a_generator_are_run_alike() -> None:
    named = lambda data, *, rng: sum(data) + rng.normal()  # noqa: E731
    own = lambda data: sum(data)  # noqa: E731
    for function in (noisy, named):
        draw = sampling_target(function, PureDP(1), PAIR).start([1.0], 7)
        assert draw() == 1.0 + np.random.default_rng(7).normal()
        assert draw() != draw()
    assert sampling_target(own, PureDP(1), PAIR).start([2.0], 0)() == 2.0


def test_a_seed_gives_the_same_outputs_and_another_seed_others() -> None:
    block = np.eye(2)
    for subject, data in (
        (sampling_target(noisy, PureDP(1), PAIR), [1.0]),
        (sampling_target(NoisySum(Ball(1.0, 2), GaussianNoise(1.0))), block),
    ):
        one, again, other = (subject.start(data, seed) for seed in (1, 1, 2))
        first, second, third = one(), again(), other()
        assert np.array_equal(first, second)
        assert not np.array_equal(first, third)


@pytest.mark.parametrize(
    ("neighbours", "message"),
    [
        (None, "needs neighbours"),
        ([], "no pair"),
        (iter([]), "exhausted iterator"),
        (3, "must be a tuple of two"),
        ("ab", "must be a tuple of two"),
        ((1, 2, 3), "must be a tuple of two"),
        ([(1, 2), 3], r"neighbours\[1\]"),
        ((1, 1), "are the same"),
        (([1.0], [1.0]), "are the same"),
        ((np.zeros(3), np.zeros(3)), "are the same"),
        ([(0, 1), (2, 2)], r"neighbours\[1\]: the two data sets are the same"),
        ((iter([1]), iter([2])), "exhausted by the first run"),
        (([1], (x for x in [2])), "exhausted by the first run"),
    ],
)
def test_bad_neighbours_are_refused(neighbours: Any, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        sampling_target(noisy, PureDP(1), neighbours)


@pytest.mark.parametrize(
    ("mechanism", "claim", "message"),
    [
        (3, PureDP(1), "must be f"),
        (noisy, None, "needs a claim"),
        (noisy, 1.0, "must be a loss or a budget"),
        (lambda: 1, PureDP(1), "takes 0 positional"),
        (lambda a, b, c: 1, PureDP(1), "takes 3 positional"),
    ],
)
def test_bad_mechanisms_and_claims_are_refused(mechanism: Any, claim: Any, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        sampling_target(mechanism, claim, PAIR)


@pytest.mark.parametrize(
    ("first", "second", "adjacency", "good"),
    [
        ([1, 2, 3], [1, 5, 3], Adjacency.REPLACE_ONE, True),
        ([1, 2, 3], [5, 2, 5], Adjacency.REPLACE_ONE, False),
        ([1, 2, 3], [1, 2], Adjacency.REPLACE_ONE, False),
        ([1, 2, 3], [1, 3], Adjacency.ADD_REMOVE, True),
        ([1, 3], [1, 2, 3], Adjacency.ADD_REMOVE, True),
        ([1, 2, 3], [2, 1], Adjacency.ADD_REMOVE, False),
        ([1, 2, 3], [1, 5, 3], Adjacency.ADD_REMOVE, False),
        (np.eye(3), np.eye(3)[[0, 1, 1]], Adjacency.REPLACE_ONE, True),
        (np.eye(3), np.eye(3)[::-1], Adjacency.REPLACE_ONE, False),
    ],
)
def test_neighbours_are_checked_against_the_relation(
    first: Any, second: Any, adjacency: Adjacency, good: bool
) -> None:
    if good:
        assert (
            sampling_target(noisy, PureDP(1), (first, second), adjacency=adjacency).name == "noisy"
        )
        return
    with pytest.raises(CheckError, match=r"neighbours\[0\]"):
        sampling_target(noisy, PureDP(1), (first, second), adjacency=adjacency)


def test_an_iterator_of_pairs_is_read_once() -> None:
    assert len(sampling_target(noisy, PureDP(1), iter([(0, 1), (1, 2)])).neighbours) == 2


def test_a_subject_may_be_restated() -> None:
    base = sampling_target(noisy, PureDP(1), PAIR)
    assert isinstance(base, SamplingTarget)
    again = sampling_target(base, ApproxDP(1, "0.1"), ([3.0], [4.0]), name="other")
    assert (again.name, again.claim, again.neighbours) == (
        "other", ApproxDP(1, "0.1"), [([3.0], [4.0])],
    )  # fmt: skip
    with pytest.raises(CheckError, match="the same"):
        sampling_target(base, None, ([3.0], [3.0]))


def test_shipped_mechanisms_bring_their_claim_and_extreme_neighbours() -> None:
    mechanism = NoisySum(Ball(1.0, 3), GaussianNoise(2.0))
    subject = sampling_target(mechanism)
    assert isinstance(subject.claim, GaussianLoss)
    assert all(np.shape(first) == np.shape(second) for first, second in subject.neighbours)
    assert np.shape(subject.start(subject.neighbours[0][0], 0)()) == (3,)
    stream = sampling_target(PrefixSum(Ball(1.0, 2), BinaryTree(16), 1.0))
    assert len(stream.start(stream.neighbours[0][0], 0)()) == 16
