"""Strategies for neighbouring data sets: what they draw are neighbours, and they shrink well."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from privlearn.checking import assert_noninterference, check_row_local
from privlearn.checking.asserts import assert_private
from privlearn.checking.replay.populations import Person
from privlearn.checking.strategies import (
    add_remove,
    blocks,
    bounded_vectors,
    choice_rounds,
    people,
    replace_one,
    streams,
    zero_out,
)
from privlearn.checking.targets import sampling_target
from privlearn.errors import InterferenceError
from privlearn.learners import OnePassNewtonMNL
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.mechanisms.choice_model import Answer
from privlearn.rows.domains import Array, Ball, Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import leaves, record_at

VECTORS = bounded_vectors(2.0, 3)
QUICK = settings(max_examples=25, derandomize=True, deadline=None)
SHRINK = settings(
    max_examples=200, derandomize=True, deadline=None, phases=(Phase.generate, Phase.shrink)
)
ORDERS: dict[Norm, float] = {"l1": 1, "l2": 2, "linf": np.inf}


def answers() -> st.SearchStrategy[Answer]:
    """Records that are named tuples."""
    return st.builds(
        lambda x, choice: Answer(np.stack([x, -x]), np.ones(2), np.array(choice)),
        bounded_vectors(1.0, 2),
        st.integers(-1, 1),
    )


def differing(first: Any, second: Any) -> list[int]:
    """Places where two blocks of the same length differ."""
    n = len(next(leaves(first)))
    same = np.ones(n, dtype=bool)
    for x, y in zip(leaves(first), leaves(second), strict=True):
        assert x.shape == y.shape
        alike = (x == y) | ((x != x) & (y != y))
        same &= alike.reshape(n, -1).all(axis=1)
    return [int(i) for i in np.flatnonzero(~same)]


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_vectors_stay_in_their_ball_and_reach_its_edge(norm: Norm) -> None:
    seen: list[float] = []

    @QUICK
    @given(bounded_vectors(3.0, 4, norm))
    def sizes(vector: Array) -> None:
        assert vector.shape == (4,)
        seen.append(float(np.linalg.norm(vector, ord=ORDERS[norm])))
        clipped = Ball(3.0, 4, norm).clip(vector[None])[0]
        assert np.allclose(clipped, vector, rtol=1e-9)

    sizes()
    assert max(seen) <= 3.0
    assert max(seen) > 2.99
    assert min(seen) == 0.0


def test_vectors_shrink_to_few_small_numbers() -> None:
    smallest = find(bounded_vectors(1.0, 3), lambda v: bool(v.any()), settings=SHRINK)
    assert np.count_nonzero(smallest) == 1
    assert not find(bounded_vectors(1.0, 3), lambda v: True, settings=SHRINK).any()


@QUICK
@given(replace_one(VECTORS))
def test_replace_one_differs_in_one_record(pair: tuple[Array, Array]) -> None:
    first, second = pair
    assert 1 <= len(first) <= 6
    assert len(differing(first, second)) == 1
    sampling_target(NoisySum.calibrated(Ball(2.0, 3), ZCDP(1)), neighbours=pair)  # accepts it


@QUICK
@given(replace_one(answers(), min_users=2, at=1))
def test_replace_one_of_named_tuples_at_a_place(pair: tuple[Answer, Answer]) -> None:
    assert isinstance(pair[0], Answer)
    assert isinstance(pair[1], Answer)
    assert differing(*pair) == [1]


@QUICK
@given(add_remove(VECTORS))
def test_add_remove_takes_one_record_out(pair: tuple[Array, Array]) -> None:
    smaller, larger = sorted(pair, key=len)
    assert 1 <= len(smaller) == len(larger) - 1
    gaps = [np.delete(larger, i, axis=0) for i in range(len(larger))]
    assert any(np.array_equal(gap, smaller) for gap in gaps)
    mechanism = NoisySum.calibrated(Ball(2.0, 3), ZCDP(1), adjacency=Adjacency.ADD_REMOVE)
    sampling_target(mechanism, neighbours=pair, adjacency=Adjacency.ADD_REMOVE)


@QUICK
@given(zero_out(VECTORS), zero_out(st.integers(1, 9), null=0))
def test_zero_out_puts_a_null_record_in_place(
    vectors: tuple[Array, Array], numbers: tuple[Array, Array]
) -> None:
    (place,) = differing(*vectors)
    assert np.isnan(vectors[1][place]).all()
    assert not Ball(2.0, 3).clip(vectors[1])[place].any()
    (place,) = differing(*numbers)
    assert numbers[1][place] == 0


@QUICK
@given(streams(VECTORS, horizon=5))
def test_streams_have_one_length(pair: tuple[Array, Array]) -> None:
    assert len(pair[0]) == len(pair[1]) == 5
    assert len(differing(*pair)) == 1


@pytest.mark.parametrize(
    "strategy",
    [replace_one(VECTORS), zero_out(VECTORS), streams(VECTORS, horizon=4), add_remove(VECTORS)],
    ids=["replace", "zero", "stream", "add"],
)
def test_pairs_shrink_to_few_users(strategy: Any) -> None:
    first, second = find(strategy, lambda pair: True, settings=SHRINK)
    assert max(len(first), len(second)) <= 4
    assert np.count_nonzero(np.nan_to_num(first)) + np.count_nonzero(np.nan_to_num(second)) <= 1


def test_pairs_that_differ_by_much_shrink_to_one_user() -> None:
    far = find(
        replace_one(VECTORS),
        lambda pair: bool(np.abs(pair[0].sum(axis=0) - pair[1].sum(axis=0)).max() > 1),
        settings=SHRINK,
    )
    assert len(far[0]) == 1


def test_pairs_serve_the_sampling_check() -> None:
    mechanism = NoisySum.calibrated(Ball(2.0, 3), ZCDP("0.5"))
    stream = PrefixSum.calibrated(Ball(2.0, 3), ZCDP("0.5"), horizon=4)

    @settings(max_examples=5, derandomize=True, deadline=None)
    @given(replace_one(VECTORS), streams(VECTORS, horizon=4))
    def checks(pair: tuple[Array, Array], neighbours: tuple[Array, Array]) -> None:
        assert not assert_private(mechanism, neighbours=pair, samples=200).violated
        assert not assert_private(stream, neighbours=neighbours, samples=200).violated

    checks()


def test_a_leak_is_found_by_drawn_pairs_and_shrunk() -> None:
    """A sum that forgets to clip: hypothesis finds records that are too large for the claim."""

    def unclipped(data: Array, rng: np.random.Generator) -> Any:
        return data.sum(axis=0) + rng.laplace(0, 1, data.shape[1])

    def too_much(pair: tuple[Array, Array]) -> bool:
        try:
            assert_private(unclipped, PureDP(1), neighbours=pair, samples=200)
        except AssertionError:
            return True
        return False

    quick = settings(max_examples=60, derandomize=True, deadline=None)
    first, second = find(replace_one(bounded_vectors(50.0, 1)), too_much, settings=quick)
    assert len(first) == len(second) == 1


def test_blocks_serve_the_check_of_row_maps() -> None:
    @QUICK
    @given(blocks(VECTORS, min_users=2), blocks(VECTORS, max_users=1))
    def local(block: Array, other: Array) -> None:
        check_row_local(lambda rows: np.abs(rows), block, other)

    @settings(QUICK, report_multiple_bugs=False, phases=(Phase.generate,))
    @given(blocks(VECTORS, min_users=2), blocks(VECTORS, max_users=1))
    def centred(block: Array, other: Array) -> None:
        check_row_local(lambda rows: rows - rows.mean(axis=0), block, other)

    local()
    with pytest.raises(InterferenceError):
        centred()


@QUICK
@given(choice_rounds(n_items=4, dim=2, min_users=2, max_users=6))
def test_populations_differ_by_one_person(pair: tuple[list[Person], list[Person]]) -> None:
    first, second = pair
    assert 2 <= len(first) == len(second) <= 6
    assert sum(a is not b for a, b in zip(first, second, strict=True)) == 1


def learner(accountant: Any) -> OnePassNewtonMNL:
    return OnePassNewtonMNL(n_items=4, dim=2, max_items=2).start(accountant)


@settings(max_examples=8, derandomize=True, deadline=None)
@given(choice_rounds(n_items=4, dim=2, min_users=3, max_users=5))
def test_populations_serve_the_check_of_learners(pair: tuple[list[Person], list[Person]]) -> None:
    assert_noninterference(learner, *pair)


def test_populations_shrink_to_plain_people() -> None:
    first, second = find(choice_rounds(n_items=3, dim=1), lambda pair: True, settings=SHRINK)
    assert len(first) == 1
    assert first[0].kind.startswith("shopper")
    assert second[0].kind == "null record"
    odd = find(people(3, 1), lambda person: "stranger" in person.kind, settings=SHRINK)
    assert odd.features is None or np.asarray(odd.features, dtype=object).size >= 0
    plain = find(
        choice_rounds(n_items=3, dim=1, odd=False, min_users=4), lambda pair: True, settings=SHRINK
    )
    assert all("shopper" in person.kind for person in plain[0])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: bounded_vectors(0.0, 2), "radius"),
        (lambda: bounded_vectors(1.0, 0), "dim"),
        (lambda: bounded_vectors(1.0, 2, "l3"), "norm"),  # type: ignore[arg-type]
        (lambda: blocks(VECTORS, min_users=0), "min_users"),
        (lambda: blocks(VECTORS, min_users=3, max_users=2), "max_users"),
        (lambda: replace_one(VECTORS, at=1).example(), "at = 1"),
        (lambda: add_remove(VECTORS, min_users=2, max_users=2).example(), "max_users"),
        (lambda: people(0, 2), "n_items"),
    ],
)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_settings_out_of_range_are_refused(make: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make()


def test_records_keep_their_form() -> None:
    block = find(blocks(answers(), min_users=2), lambda b: True, settings=SHRINK)
    assert isinstance(block, Answer)
    assert record_at(block, 0).features.shape == (2, 2)


def test_nothing_else_needs_hypothesis() -> None:
    script = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import privlearn.checking.laws, privlearn.checking.pytest_plugin\n"
        "try:\n    import privlearn.checking.strategies\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "pip install privlearn[checking]" in done.stdout
