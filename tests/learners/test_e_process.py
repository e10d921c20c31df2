"""E-processes on noisy sums: exact expectations by enumeration, closed testing, intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from privlearn.learners import e_process
from privlearn.learners.e_process import (
    BlockNoise,
    EProcess,
    Pairs,
    block_tilts,
    corrected,
    first_pairs,
    log_mean,
    pairs_of_block,
    passes,
    shift_bound,
    tilts,
)
from privlearn.noise import GaussianNoise, LaplaceNoise

Law = Mapping[float, float]
"""Values and their probabilities."""
NONE = BlockNoise(None)
LAPLACE = BlockNoise(LaplaceNoise(2.0))
GAUSS = BlockNoise(GaussianNoise(3.0))


def rewards(mean: float, null: float = 0.0, null_as: float = 0.0) -> Law:
    law = {1.0: (1 - null) * mean, 0.0: (1 - null) * (1 - mean)}
    law[null_as] = law.get(null_as, 0.0) + null
    return law


def difference(better: Law, control: Law) -> dict[float, float]:
    law: dict[float, float] = {}
    for (x, a), (y, b) in itertools.product(better.items(), control.items()):
        law[x - y] = law.get(x - y, 0.0) + a * b
    return law


def nodes(noise: BlockNoise) -> tuple[Any, Any]:
    """Points and weights that integrate exponentials against the law of the noise."""
    if noise.law is None:
        return np.zeros(1), np.ones(1)
    if isinstance(noise.law, GaussianNoise):
        points, weights = np.polynomial.hermite_e.hermegauss(80)
        return points * math.sqrt(noise.variance), weights / weights.sum()
    points, weights = np.polynomial.legendre.leggauss(12)
    starts = np.arange(0, 480, 10.0)[:, None]
    x, w = (starts + 5 + 5 * points).ravel(), np.tile(5 * weights, 48)
    density = np.exp(-x) / 2 if noise.sums == 1 else np.exp(-x) * (1 + x) / 4
    return noise.law.scale * np.concatenate([-x, x]), np.concatenate([density * w] * 2)


def next_mean(
    pairs: Pairs, noise: BlockNoise, pair: Law, *, said: BlockNoise | None = None, size: int = 3
) -> float:
    """E[E after a block | E before] / E before, exactly, for a state that releases have made."""
    sums: dict[float, float] = {0.0: 1.0}
    for _ in range(size):
        longer: dict[float, float] = {}
        for (s, a), (d, b) in itertools.product(sums.items(), pair.items()):
            longer[s + d] = longer.get(s + d, 0.0) + a * b
        sums = longer
    points, weights = nodes(noise)
    released = np.add.outer(np.array(list(sums)), points).ravel()
    chance = np.multiply.outer(np.array(list(sums.values())), weights).ravel()
    process = EProcess(pairs, said or noise, tilts(pairs, 200, 0.05), released.shape)
    for past, n_pairs in ((2.5, 4), (-1.0, 5)):
        process.add(np.full(released.shape, past), n_pairs)
    before = log_mean(process.log_sides)[0]
    process.add(released, size)
    return float(chance @ np.exp(log_mean(process.log_sides) - before))


@pytest.mark.parametrize("noise", [NONE, LAPLACE, GAUSS, BlockNoise(LaplaceNoise(2.0), sums=2)])
@pytest.mark.parametrize("rate", [None, 0.04, 0.5])
def test_expectation_stays_at_most_one_whatever_the_mean_is(
    noise: BlockNoise, rate: float | None
) -> None:
    pairs, highest = Pairs(rate), 1.0 if rate is None else rate
    for mean in np.linspace(0, highest, 4):
        for null in (0.0, 0.2):
            law = rewards(mean, null)
            assert next_mean(pairs, noise, difference(law, law)) <= 1 + 1e-9
    worst = rewards(0.5 if rate is None else rate)
    assert next_mean(pairs, noise, difference(worst, worst)) >= 1 - 1e-9  # nothing is given away


def test_expectation_of_the_coin_alone() -> None:
    for u, v in ((1.0, 0.0), (0.7, 0.2), (1.0, 1.0)):
        assert next_mean(Pairs(assume="coin"), LAPLACE, {u - v: 0.5, v - u: 0.5}) <= 1 + 1e-9


def test_means_may_differ_within_a_pair_below_a_declared_rate() -> None:
    pairs = Pairs(0.3)
    for one, other in itertools.product((0.0, 0.1, 0.3), repeat=2):
        first, second = rewards(one), rewards(other)
        law = difference(first, second)
        by_coin = {d: (law[d] + law.get(-d, 0.0)) / 2 for d in (-1.0, 0.0, 1.0)}
        assert next_mean(pairs, LAPLACE, by_coin) <= 1 + 1e-9


@dataclass(frozen=True, slots=True)
class _Unpaid(BlockNoise):
    def log_moment(self, tilt: Any, pairs: Any) -> Any:
        return np.zeros_like(tilt)


def _same(law: Law) -> Law:
    return difference(law, law)


BROKEN: dict[str, tuple[Any, ...]] = {
    "no moment of the noise": (Pairs(), LAPLACE, _same(rewards(0.5)), _Unpaid(LAPLACE.law)),
    "one noise of two": (Pairs(), BlockNoise(LAPLACE.law, 2), _same(rewards(0.5)), LAPLACE),
    "null as one half": (Pairs(0.04), LAPLACE, _same(rewards(0.02, 0.2, 0.5)), None),
    "a rate that is too low": (Pairs(0.04), LAPLACE, _same(rewards(0.06)), None),
    "pairs across a drift": (Pairs(), LAPLACE, difference(rewards(0.6), rewards(0.4)), None),
    "returning persons under iid": (Pairs(), LAPLACE, {1.0: 0.5, -1.0: 0.5}, None),
    "dropout of one arm": (
        Pairs(0.5),
        LAPLACE,
        difference(rewards(0.5), rewards(0.5, 0.3)),
        None,
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_broken_twins_are_caught(defect: str) -> None:
    pairs, noise, law, said = BROKEN[defect]
    assert next_mean(pairs, noise, law, said=said) > 1 + 1e-6


def test_null_as_one_half_breaks_the_bound() -> None:
    tilt, bound = np.array([0.5]), Pairs(0.04).log_bound(np.array([0.5]))

    def moment(law: Law) -> float:
        return sum(chance * math.exp(0.5 * d) for d, chance in _same(law).items())

    assert math.exp(bound[0]) == pytest.approx(1.00980, abs=1e-5)
    assert moment(rewards(0.02, 0.2, 0.5)) == pytest.approx(1.01325, abs=2e-5)
    assert moment(rewards(0.02, 0.2)) <= math.exp(bound[0])
    assert tilt[0] == 0.5


@pytest.mark.parametrize("rate", [None, 0.1, 0.5])
def test_shifted_bound_is_the_largest_moment(rate: float | None) -> None:
    pairs = Pairs(rate)
    highest = 1.0 if rate is None else rate
    tilt = np.array([-1.0, -0.2, 0.1, 0.7])
    shifts = np.linspace(*pairs.shifts, 23)
    found = np.array([pairs.log_shifted_bound(tilt, np.full(4, shift)) for shift in shifts])
    for shift, bound in zip(shifts, found, strict=True):
        mean = np.linspace(max(0, -shift), min(highest, 1 - shift), 2001)[:, None]
        moment = (1 + mean * np.expm1(-tilt)) * (1 + (mean + shift) * np.expm1(tilt))
        assert np.log(moment.max(axis=0)) == pytest.approx(bound, abs=1e-6)
    assert (np.diff(found, axis=0) * np.sign(tilt) >= -1e-12).all()
    assert pairs.log_shifted_bound(tilt, np.zeros(4)) == pytest.approx(pairs.log_bound(tilt))


def test_rounding_is_paid_for_each_user_and_each_noise() -> None:
    tilt = np.array([-0.2, 0.1])
    for sums in (1, 2):
        exact, rounded = (BlockNoise(LAPLACE.law, sums, grid) for grid in (0.0, 0.01))
        paid = rounded.log_moment(tilt, 5) - exact.log_moment(tilt, 5)
        assert paid == pytest.approx(abs(tilt) * 0.01 * (10 + sums))


def test_numbers_stay_finite_where_tests_end() -> None:
    for noise in (
        NONE,
        LAPLACE,
        GAUSS,
        BlockNoise(LaplaceNoise(1e4)),
        BlockNoise(GaussianNoise(1e4)),
    ):
        pairs = Pairs(1e-6)
        process = EProcess(pairs, noise, tilts(pairs, 10, 1e-12), (3,))
        for number in (0, 1, 400):
            n = pairs_of_block(number, first_pairs(pairs, noise))
            process.add(np.array([-n, 0.0, n]), n)
        assert np.isfinite(process.log_sides).all()
        assert abs(block_tilts(process.grid, pairs, noise, 10**12)).max() <= noise.steepest
    assert passes(np.array([math.log(20) + 1e-6, math.log(20) - 1e-6]), 0.05).tolist() == [1, 0]


def simulated(
    rng: np.random.Generator,
    means: tuple[float, float],
    process: EProcess,
    blocks: int,
) -> tuple[Any, Any]:
    """Released sums (blocks, *runs), and pairs in each block."""
    first = first_pairs(process.pairs, process.noise)
    sizes = np.array([pairs_of_block(k, first) for k in range(blocks)])
    shape, law = process.runs, process.noise.law
    sums = []
    for n in sizes:
        noise = 0 if law is None else rng.laplace(0, law.unit, shape)  # a marked simulation
        sums.append(rng.binomial(n, means[1], shape) - rng.binomial(n, means[0], shape) + noise)
    return np.array(sums), sizes


def test_interval_is_where_the_shifted_process_is_below() -> None:
    pairs = Pairs(0.3)
    process = EProcess(pairs, LAPLACE, tilts(pairs, 4_000, 0.05), (2,))
    sums, sizes = simulated(np.random.default_rng(3), (0.1, 0.25), process, 30)
    low, high = (shift_bound(side, sums, sizes, process=process, alpha=0.025) for side in (1, -1))
    assert ((low < 0.15) & (high > 0.15) & (high - low < 0.2)).all()
    for side, ends in ((1, low), (-1, high)):
        for shift, out in ((ends - side * 1e-9, True), (ends + side * 1e-9, False)):
            logs = np.zeros((2, len(process.grid)))
            most = np.full(2, -math.inf)
            for total, n in zip(sums, sizes, strict=True):
                tilt = side * block_tilts(process.grid, pairs, LAPLACE, n)
                cost = n * pairs.log_shifted_bound(tilt, shift[:, None])
                logs += total[:, None] * tilt - cost - LAPLACE.log_moment(tilt, n)
                most = np.maximum(most, log_mean(logs))
            assert (passes(most, 0.025) == out).all()
    nothing = np.zeros((0, 2))
    for side, end in ((1, -0.3), (-1, 1.0)):
        none = shift_bound(side, nothing, np.zeros(0), process=process, alpha=0.025)
        assert (none == end).all()


@pytest.mark.calibration
@pytest.mark.parametrize(("mean", "rate"), [(0.5, None), (0.1, 0.1), (0.02, 0.02), (0.02, None)])
def test_no_more_false_positives_than_alpha(mean: float, rate: float | None) -> None:
    pairs, runs = Pairs(rate), 4_000
    process = EProcess(pairs, BlockNoise(LaplaceNoise(1.0)), tilts(pairs, 100_000, 0.05), (runs,))
    sums, sizes = simulated(np.random.default_rng(7), (mean, mean), process, 100)
    ever = np.zeros(runs, dtype=bool)
    for total, n in zip(sums, sizes, strict=True):
        process.add(total, n)
        ever |= passes(corrected(process.log_sides[:, None]), 0.05).any(axis=(1, 2))
    assert ever.mean() <= 0.05
    if rate is not None:
        assert ever.mean() >= 0.005  # the bound is used


@pytest.mark.calibration
def test_intervals_cover_at_all_times() -> None:
    pairs, runs = Pairs(0.2), 400
    process = EProcess(pairs, BlockNoise(LaplaceNoise(1.0)), tilts(pairs, 50_000, 0.05), (runs,))
    sums, sizes = simulated(np.random.default_rng(8), (0.2, 0.23), process, 80)
    low, high = (shift_bound(s, sums, sizes, process=process, alpha=0.025) for s in (1, -1))
    assert ((low <= 0.03) & (high >= 0.03)).mean() >= 0.95
    assert ((low > 0) | (high < 0)).mean() >= 0.9


def test_constants_are_those_of_the_documents() -> None:
    assert (e_process.FIRST_PAIRS, e_process.GROWTH, e_process.NEAREST_POLE) == (50, 1.05, 0.9)
    assert [pairs_of_block(k, 50) for k in (0, 1, 14)] == [50, 53, 99]
    assert first_pairs(Pairs(), LAPLACE) == 50
    assert first_pairs(Pairs(0.04), LAPLACE) == math.ceil(8 / 0.0384)
