"""Streams in integers: what leaves is a function of R + N, and the price covers how far R moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from streams_and_matrices import (
    FALLING,
    PLACES,
    banded,
    banded_c,
    matrix_c,
    open_stream,
    true_sums,
)

from privlearn.errors import HorizonError
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BinaryTree,
    BufferedToeplitz,
    PrefixSum,
    running_sums,
)
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.factorization import NO_ROUNDING, Factorization, Rounding
from privlearn.mechanisms.stream_price import gain_profile, largest_gain, visits_gain
from privlearn.mechanisms.stream_terms import stream_terms
from privlearn.mechanisms.stream_visits import StreamVisits, visits_in_batches, visits_in_slots
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box, Categories, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

T = 70
STEPS = 2**38
FACTORIZATIONS: list[Factorization] = [
    BinaryTree(T),
    BufferedToeplitz.fitted(T),
    AnytimeBLT(),
    banded(T, 30),
    banded(T, 30, FALLING),
]
by_kind = pytest.mark.parametrize("factorization", FACTORIZATIONS, ids=lambda f: f.kind)


# What leaves ------------------------------------------------------------------------------


def run(mechanism: PrefixSum[Any], data: Any, cuts: tuple[int, ...] = (), seed: int = 3) -> Array:
    stream, _ = open_stream(mechanism, range(len(data)), seed=seed)
    ends = [*cuts, len(data)]
    parts = [
        stream.append(Rows.seal(data[a:b], users=range(a, b))).value
        for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]
    return np.concatenate(parts)


def noisy_rows(mechanism: PrefixSum[Any], data: Any, seed: int = 3) -> NDArray[np.int64]:
    """Y = R + N, with the noise that a stream of the same seed draws."""
    grid = mechanism.spend().grid
    assert grid is not None
    domain = cast(Any, mechanism.domain)
    rows = domain.integers(data, grid)
    pool = NoiseSource.simulation(seed).pool()
    noise = pool.floors("normal", rows.size) >> (40 - grid.bits)
    encoder = mechanism.factorization.encoder(domain.size)
    return np.asarray(encoder(rows) + noise.reshape(rows.shape))


@by_kind
def test_what_leaves_is_b_times_the_noisy_rows_bit_for_bit(
    factorization: Factorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(0).normal(size=(T, 3))
    mechanism = PrefixSum(Ball(1.0, 3), factorization, 0.7)
    grid = mechanism.spend().grid
    assert grid is not None
    rows = noisy_rows(mechanism, data)
    expected = factorization.decoder(3)(rows) * grid.step
    assert run(mechanism, data).tobytes() == expected.tobytes()
    if isinstance(factorization, BinaryTree):
        sums = np.zeros((T + 1, 3), dtype=np.int64)
        for t in range(1, T + 1):
            sums[t] = sums[t & (t - 1)] + rows[t - 1]
        assert np.array_equal(expected, sums[1:] * grid.step)
        return
    monkeypatch.setattr(running_sums._IntegerSums, "after", _exact_sums_and_rounded_noise)
    wrong = run(mechanism, data)
    np.testing.assert_allclose(wrong, expected, atol=1e-10)
    assert wrong.tobytes() != expected.tobytes()


def _exact_sums_and_rounded_noise(self: Any, values: NDArray[np.int64], users: int) -> Array:
    """A broken twin: A·X + B·N in doubles is no function of Y."""
    noise = self._decoder(self._ahead.next(len(values)))
    return np.asarray((np.cumsum(values, axis=0) + noise) * self._step)


@by_kind
def test_however_rows_come_the_same_leaves_bit_for_bit(factorization: Factorization) -> None:
    data = np.random.default_rng(1).uniform(-0.5, 0.5, size=(T, 5))
    mechanism = PrefixSum(Ball(1.0, 5), factorization, 0.7)
    whole = run(mechanism, data)
    for cuts in (tuple(range(1, T)), (31, 32, 33), (1, 65)):
        assert run(mechanism, data, cuts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("domain", [Box(999.0, 1000.0, 2), Box(-2.0, -1.0, 2), Categories(2)])
@by_kind
def test_sums_of_contributions_far_from_zero_are_right(
    factorization: Factorization, domain: Domain[Any]
) -> None:
    rng = np.random.default_rng(2)
    data = rng.integers(0, 3, size=T) if isinstance(domain, Categories) else rng.normal(size=(T, 2))
    if isinstance(domain, Box):
        data = domain.high - np.abs(data)
    mechanism = PrefixSum(domain, factorization, 1e-3)
    sums = np.cumsum(domain.clip(data), axis=0)
    errors = np.array([mechanism.error_std(t) for t in range(1, T + 1)])
    for cuts in ((), (1, 2, 40)):
        found = run(mechanism, data, cuts)
        assert (np.abs(found - sums) <= 6 * errors[:, None]).all()


def test_rounding_does_not_grow_with_the_distance_of_a_box_from_zero() -> None:
    noise, blt = GaussianNoise(2.0), BufferedToeplitz.fitted(2**20)
    near, far = (
        stream_terms(Box(low, low + 1, 1), noise, blt, Adjacency.REPLACE_ONE)
        for low in (0.0, 999.0)
    )
    assert far.centred
    assert far.rounding.each <= near.rounding.each * Fraction(1001, 1000)
    assert blt.rounding(1000 * near.largest).each > 100 * near.rounding.each


class Foreign:
    """A domain of somebody else, without integers: numbers in [0, 1]."""

    size = 1

    def clip(self, block: Array) -> Array:
        return np.clip(np.nan_to_num(block), 0.0, 1.0)

    def null(self) -> Array:
        return np.zeros(1)

    def sensitivity(self, adjacency: Adjacency, norm: Any = "l2") -> float:
        return 1.0

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "foreign"}


def test_a_domain_without_integers_is_added_up_in_doubles() -> None:
    mechanism = PrefixSum.calibrated(Foreign(), GaussianDP(1), horizon=T)
    spend = mechanism.spend()
    assert spend.grid is None
    assert "rounding" not in spend.parameters
    assert spend.gain == pytest.approx(mechanism.factorization.column_norm(), rel=1e-14)
    data = np.random.default_rng(4).uniform(size=(T, 1))
    for cuts in ((), (1, 2, 40)):
        found = run(PrefixSum(Foreign(), BufferedToeplitz.fitted(T), 1e-9), data, cuts)
        np.testing.assert_allclose(found, np.cumsum(data, axis=0), atol=1e-7)


# What it costs ----------------------------------------------------------------------------


def column_times(factorization: Factorization, j: int, number: int) -> Array:
    """Column j of C, counted from 0, times a number; to some 15 digits."""
    impulse = np.zeros((T, 1), dtype=np.int64)
    impulse[j] = number
    if isinstance(factorization, BinaryTree):
        return np.asarray(matrix_c(factorization, T) @ impulse[:, 0])
    if isinstance(factorization, BandedBLT):
        return np.asarray(banded_c(factorization) @ impulse[:, 0])
    blt = cast(BufferedToeplitz, factorization)
    return np.array(
        [sums[0] / 2**PLACES for sums in true_sums(blt.decay, blt.output_decay, impulse)]
    )


@by_kind
def test_rows_move_by_no_more_than_the_price_covers(factorization: Factorization) -> None:
    """R of two data sets that differ in one row, on numbers at the bound."""
    rng = np.random.default_rng(5)
    rounding = factorization.rounding(STEPS)
    x = rng.integers(-STEPS, STEPS, size=(T, 40), endpoint=True)
    for j in (0, 1, 31, 32, T - 1):
        other = x.copy()
        other[j] = rng.integers(-STEPS, STEPS, size=40, endpoint=True)
        moved = factorization.encoder(40)(x) - factorization.encoder(40)(other)
        true = [column_times(factorization, j, int(v)) for v in x[j] - other[j]]
        off = np.abs(moved - np.array(true).T)
        assert (moved[:j] == 0).all()
        beyond = np.maximum(off - float(rounding.each), 0)
        assert np.linalg.norm(beyond, axis=0).max() <= float(rounding.column) + 1e-3
        if rounding == NO_ROUNDING:
            assert (off == 0).all()
        elif j < T // 2:
            assert off.max() > 0.5


def moved_by(column: Array, j: int, rounding: Rounding, step: float) -> float:
    """The norm of a move that the rounding allows: along the column, and as far as it goes."""
    shift = column * (1 + step * float(rounding.column) / np.linalg.norm(column))
    shift[j:] += step * float(rounding.each)
    return float(np.linalg.norm(shift))


@pytest.mark.parametrize("each", [0, 1, 50])
@by_kind
def test_the_gain_bounds_the_largest_move(factorization: Factorization, each: int) -> None:
    """Against the sum over rows, with rounding that is not small; without it, it is the norm."""
    rounding, step = Rounding(Fraction(each, 2), Fraction(each)), Fraction(1, 1000)
    last = min(factorization.horizon, 300)
    gain = largest_gain(factorization, rounding, step)
    c = np.abs(matrix_c(factorization, last))
    moves = [moved_by(c[:, j], j, rounding, 1e-3) for j in range(last)]
    assert gain >= max(moves)
    if factorization.horizon == last:
        assert gain <= max(moves) * (1 + 1e-10 if each == 0 else 1.1)
        profile = gain_profile(factorization, rounding, step)
        assert sum(n for n, _ in profile) == last
        known = np.repeat([g for _, g in profile], [n for n, _ in profile])
        assert (known >= moves).all()
        assert profile[0][1] == gain
    if each == 50:
        assert max(moves) > largest_gain(factorization, NO_ROUNDING, step)  # it may not be left out


def test_the_tree_has_the_largest_norm_of_every_range() -> None:
    for tree in (BinaryTree(64), BinaryTree(45)):
        norms = [tree.column_norm_at(j) for j in range(1, tree.horizon + 1)]
        for first in range(1, 46):
            for last in range(first, 46):
                assert tree.largest_norm(first, last) == max(norms[first - 1 : last])


@pytest.mark.parametrize(
    ("make", "added"),
    [
        (BinaryTree, 1e-14),
        (BufferedToeplitz.fitted, 3e-7),
        (lambda n: AnytimeBLT(horizon=n), 1e-7),
        (lambda n: banded(n, n // 4), 1e-7),
    ],
)
def test_what_rounding_adds_to_the_price(
    make: Callable[[int], Factorization], added: float
) -> None:
    """Of μ² at μ = 1 and a million rows of 1275 numbers, replace-one: below 1e-6."""
    factorization = make(2**20)
    mechanism = PrefixSum.calibrated(Ball(1.0, 1275), GaussianDP(1), factorization=factorization)
    gain = mechanism.spend().gain
    assert (
        mechanism.spend().grid
        == stream_terms(
            mechanism.domain, GaussianNoise(mechanism.noise_std), factorization, mechanism.adjacency
        ).grid
    )
    assert 0 <= (gain / factorization.column_norm()) ** 2 - 1 <= added
    price = mechanism.loss().gaussian()
    assert price is not None
    assert 1 - 1e-9 <= price <= 1


@pytest.mark.parametrize("rule", [None, Participation(4, apart=7)])
@pytest.mark.parametrize("sizes", [None, (3, 40, 2)])
@by_kind
def test_a_stranger_finds_the_gain_from_what_the_ledger_holds(
    factorization: Factorization, sizes: tuple[int, ...] | None, rule: Participation | None
) -> None:
    domain = Box(3.0, 5.0, 4)
    made: Any = PrefixSum(domain, factorization, 0.9, participation=rule)
    if sizes is not None:
        made = BatchedPrefixSum(domain, sizes, factorization, 0.9, participation=rule)
    spend = made.spend()
    known = dict(spend.parameters)
    visits = None
    if rule is not None:
        stated_rule = Participation.from_dict(known.pop("participation"))
        norm = known["visits"].pop("norm")
        visits = StreamVisits(**known.pop("visits"))
        slots = visits_in_slots(stated_rule, factorization.horizon)
        assert visits == (slots if sizes is None else visits_in_batches(stated_rule, sizes))
        assert norm >= visits.norm(factorization)
        assert spend.visits == (stated_rule.most, stated_rule.apart)
    kinds = {f.kind: type(f) for f in FACTORIZATIONS}
    kind = kinds[known.pop("factorization")]
    largest, stated = int(known.pop("largest")), known.pop("rounding")
    together = max(known.pop("sizes", [1]))
    rebuilt: Any = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in known.items()})
    number = domain.high - (domain.low if rebuilt.rounding(1) != NO_ROUNDING else 0)
    assert largest == together * (int(number / spend.grid.step) + 1)
    rounding = rebuilt.rounding(largest)
    assert stated == {"column": float(rounding.column), "each": float(rounding.each)}
    assert Rounding(*map(Fraction, (stated["column"], stated["each"]))) == rounding
    step = Fraction(spend.grid.step) * 2 / Fraction(domain.sensitivity(Adjacency.REPLACE_ONE))
    gain = largest_gain(rebuilt, rounding, step)
    if visits is not None:
        gain = visits_gain(rebuilt, visits, rounding, step)
    assert spend.gain == pytest.approx(gain, rel=1e-15)
    assert rebuilt.reach() * largest < 2**61 * Fraction(1001, 1000)


# What is refused --------------------------------------------------------------------------


def test_contributions_that_are_too_large_for_the_noise_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scale = 1e-08: too small .* 70 of which"):
        PrefixSum(Ball(1.0, 1), BinaryTree(T), 1e-8)
    assert PrefixSum(Ball(1.0, 1), BinaryTree(T), 4e-8).spend().grid is not None
    with pytest.raises(ValueError, match=r"too small .* 7000 of which"):
        BatchedPrefixSum(Ball(1.0, 1), (1, 100), BinaryTree(T), 4e-8)


def test_a_stream_of_unknown_length_ends_at_its_cap() -> None:
    assert AnytimeBLT().horizon == 2**24
    mechanism = PrefixSum(Ball(1.0, 1), AnytimeBLT(horizon=5), 1.0)
    with pytest.raises(HorizonError, match=r"users = range\(0, 6\) exceed horizon = 5"):
        open_stream(mechanism, range(6))
    assert math.isfinite(
        PrefixSum.calibrated(Ball(1.0, 1), ZCDP(1), factorization=AnytimeBLT()).error_std(2**24)
    )
    with pytest.raises(ValueError, match=r"must be <= 2\*\*40"):
        AnytimeBLT(horizon=2**40 + 1)
