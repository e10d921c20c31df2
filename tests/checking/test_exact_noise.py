"""What checks do with exact noise: scripted pools, halved integers, last bits by default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faults import third_party

from privlearn import Ball, PureDP
from privlearn.checking import check_mechanism
from privlearn.checking.exact.check import white_box
from privlearn.checking.sampling.check import black_box
from privlearn.checking.scripted_noise import LimitedSource, Script, ScriptedCalls
from privlearn.checking.targets import sampling_target
from privlearn.errors import CheckError, PrivacyViolation
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.values.adjacency import Adjacency

SUM = NoisySum(Ball(1.0, 1), GaussianNoise(2.0))


# Scripted noise -----------------------------------------------------------------------------------


def test_a_script_hands_out_its_numbers_in_one_row_and_then_zeros() -> None:
    script = Script(np.array([1.0, -0.5, 2.0**-40]))
    pool = script.pool()
    assert pool.floors("normal", 2).tolist() == [2**40, -(2**39)]
    assert script.pool().floors("laplace", 3).tolist() == [1, 0, 0]
    assert script.drawn == {"normal": 2, "laplace": 3}
    for refused in (lambda: pool.words(1), pool.more):
        with pytest.raises(CheckError, match="uniform words decide"):
            refused()


def test_scripted_numbers_can_be_refined_and_are_all_different() -> None:
    drawn = Script(np.array([0.5, 0.5, -0.25])).variates("gumbel", 4)
    for i, floor in enumerate([2**39, 2**39, -(2**38), 0]):
        assert drawn.refined(i, 40) == drawn.floors[i] == floor
        for bits in (10, 41, 100, 200):
            refined = drawn.refined(i, bits)
            assert drawn.refined(i, bits + 1) >> 1 == refined
            assert (refined >> bits - 40 if bits > 40 else refined) == floor >> max(40 - bits, 0)
    assert drawn.refined(0, 104) != drawn.refined(1, 104)
    part = drawn.part(1, 3)
    assert [part.refined(i, 90) for i in range(len(part))] == [drawn.refined(i, 90) for i in (1, 2)]


def test_noise_of_another_kind_than_is_stated_is_refused() -> None:
    calls = ScriptedCalls("gumbel", [np.array([1.0, 2.0])])
    assert calls.floors("gumbel", 2).tolist() == [2**40, 2**41]
    assert calls.sizes == [2]
    with pytest.raises(CheckError, match="laplace numbers decide, where the spend states gumbel"):
        calls.floors("laplace", 2)


def test_the_limit_is_for_all_pools_of_a_run() -> None:
    source = LimitedSource(Script(np.zeros(0)), 2)
    source.pool().floors("normal", 5)
    source.pool().variates("normal", 5)
    with pytest.raises(CheckError, match="more than 2 times"):
        source.pool().words(1)


# Last bits ----------------------------------------------------------------------------------------


def test_last_bits_are_looked_at_where_noise_is_said_to_be_exact() -> None:
    pair = np.array([[0.7]]), np.array([[-0.4]])
    assert sampling_target(SUM, None, pair).exact
    assert sampling_target(SUM).exact
    doubles = third_party.HonestSum(Ball(1.0, 1))
    assert not sampling_target(doubles, None, pair).exact
    assert not sampling_target(lambda x, rng: x, PureDP(1), (0.0, 1.0)).exact


def test_by_default_they_refute_a_mechanism_that_only_says_so() -> None:
    """And nothing else does: its noise has the right law to 12 digits, but is always even."""
    lying = third_party.RoundsTheNoiseToEven(Ball(1.0, 1))
    odd = 2**38 + 1
    pair = np.array([[odd * 2.0**-39]]), np.array([[-0.5]])
    found = black_box(lying, neighbours=pair, samples=1200)
    assert found.violated
    assert "lowest set bit" in found.event or "trees" in found.event
    assert not black_box(lying, neighbours=pair, samples=1200, bits=False).violated
    honest = third_party.ExactSum(Ball(1.0, 1))
    assert not black_box(honest, neighbours=pair, samples=1200).violated


def test_doubles_are_noted_and_counted_where_somebody_asks() -> None:
    doubles = third_party.HonestSum(Ball(1.0, 1))
    pair = np.array([[0.7]]), np.array([[0.0]])
    found = black_box(doubles, neighbours=pair, samples=1200)
    assert not found.violated
    assert any("bits=True counts that" in said for said in found.notes)
    assert black_box(doubles, neighbours=pair, samples=1200, bits=True).violated


def test_the_line_that_finds_it_again_says_what_was_asked_for() -> None:
    doubles = third_party.HonestSum(Ball(1.0, 1))
    pair = np.array([[0.7]]), np.array([[0.0]])
    with pytest.raises(PrivacyViolation, match=r"reproduce: .*bits=True"):
        check_mechanism(doubles, neighbours=pair, samples=1200, bits=True)


# Functions of noisy integers ----------------------------------------------------------------------


def test_outputs_that_are_no_function_of_noisy_integers_are_seen() -> None:
    broken = white_box(third_party.RoundsBeforeTheNoise(), orders=(2.0,))
    assert broken.violated
    (row,) = [row for row in broken.rows if row.violated]
    assert row.measure == "outputs that are no function of noisy integers"
    assert row.exact == 2
    assert not white_box(third_party.ScaledMean(), orders=(2.0,)).violated


def test_data_beside_the_grid_are_seen() -> None:
    class Beside(third_party.ExactSum):
        def noisy(self, receipt: Any, rows: Any, grid: Any) -> Any:
            total = receipt.open_integers(rows).sum(axis=0)
            return grid.values(receipt.draw_integers(total.shape)) + 0.7 * grid.values(total)

    assert white_box(Beside(), orders=(2.0,)).violated


def test_a_mechanism_in_doubles_makes_no_such_promise() -> None:
    assert not white_box(third_party.HonestSum(), orders=(2.0,)).violated


def test_under_zero_out_and_add_remove_too() -> None:
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE):
        right = third_party.ExactSum(adjacency=adjacency)
        assert not white_box(right, orders=(2.0,)).violated
        wrong = third_party.RoundsBeforeTheNoise(adjacency=adjacency)
        assert white_box(wrong, orders=(2.0,)).violated
