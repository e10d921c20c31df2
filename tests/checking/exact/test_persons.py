"""Prices of persons who return, against data sets that differ in all their visits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import visit_patterns
from grids import thinned

from privlearn import Adjacency, Ball, Spend
from privlearn.checking.exact.check import white_box
from privlearn.checking.exact.visit_patterns import Patterns, VisitRule
from privlearn.checking.neighbours import default_pairs
from privlearn.checking.targets import sampling_target
from privlearn.errors import CheckError
from privlearn.losses import GaussianLoss, Loss, PureLoss, VisitsLoss
from privlearn.losses.budgets import GaussianDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BatchedPrefixSum,
    BinaryTree,
    BufferedToeplitz,
    CrossPolytope,
    NoisyMaxBatches,
    NoisyMaxStream,
    NoisySum,
    PrefixSum,
)
from privlearn.mechanisms.batched_sums import BatchedStream
from privlearn.mechanisms.factorization import Factorization
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation

ZERO = Adjacency.ZERO_OUT
ONE = Ball(1.0, 1)
ORDERS = (2.0,)
RULE = Participation(3, apart=4)
N = 12


# Which visits are worst ---------------------------------------------------------------------------


def largest(c: Array, rule: VisitRule, signed: bool) -> float:
    """Of all patterns and signs, one by one."""
    squares = [0.0]
    for pattern in visit_patterns.patterns(len(c), rule.most, rule.apart) > 0:
        batches = np.searchsorted(rule.ends, np.flatnonzero(pattern), side="right")
        if rule.in_a_batch is None or np.bincount(batches).max() <= rule.in_a_batch:
            for signs in itertools.product((1, -1) if signed else (1,), repeat=int(pattern.sum())):
                squares.append(float(np.sum((c[:, pattern] @ np.array(signs)) ** 2)))
    return max(squares)


@pytest.mark.parametrize("seed", range(12))
def test_the_worst_visits_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c, signed = np.tril(rng.normal(size=(8, 8))), seed % 3 == 0
    most, apart = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    batches = (int(rng.integers(1, 3)), (3, 4, 8)) if seed % 2 else (None, ())
    rule = VisitRule(most, apart, *batches)
    slots, signs = Patterns(c.T @ c, np.arange(8), rule, signed).worst()
    assert float(np.sum((c[:, slots] @ signs) ** 2)) == pytest.approx(largest(c, rule, signed))
    assert len(slots) <= most
    assert (np.diff(np.sort(slots)) >= apart).all()
    if rule.in_a_batch is not None:
        assert np.bincount(np.searchsorted(rule.ends, slots, side="right")).max() <= batches[0]


# What is right ------------------------------------------------------------------------------------


def sums(factorization: Factorization, rule: Participation | None = RULE) -> PrefixSum[Any]:
    return PrefixSum(ONE, factorization, 5.0, ZERO, participation=rule)


def batches(rule: Participation, *sizes: int) -> BatchedPrefixSum[Any]:
    made = BufferedToeplitz.fitted(len(sizes))
    return BatchedPrefixSum(ONE, sizes, made, 5.0, ZERO, rule)


RIGHT: dict[str, tuple[Any, bool]] = {
    "tree": (sums(BinaryTree(24)), False),
    "BLT": (sums(BufferedToeplitz.fitted(N)), True),
    "anytime BLT": (sums(AnytimeBLT(horizon=N)), True),
    "bands": (sums(BandedBLT(24, 4, (0.4, -0.2), (0.3, 0.02), (1.0, 0.8))), True),
    "bands, solved": (sums(BandedBLT(128, 4, (0.4,), (0.3,), (1.0,), (1.0, 0.6))), True),
    "on a timetable": (sums(AnytimeBLT(horizon=9), replace(RULE, clock="timetable")), True),
    "pooled": (batches(Participation(3, pooled=True), 3, 3, 3, 3), True),
    "once a batch": (batches(Participation(3, apart=4, per_batch=1), 2, 5, 1, 4), False),
    "twice a batch": (batches(Participation(4, per_batch=2), 3, 3, 3), True),
    "picks": (
        NoisyMaxStream(CrossPolytope(1), 1.0, 9.0, 8, ZERO, Participation(3, apart=2)),
        False,
    ),
}


@pytest.mark.parametrize("name", thinned(RIGHT))
def test_prices_of_persons_stand_and_most_are_reached(name: str) -> None:
    mechanism, reached = RIGHT[name]
    result = white_box(mechanism, orders=ORDERS)
    assert not result.violated
    assert result.coverage.axes[-1].name == "persons"
    assert result.coverage.axes[-1].enough
    assert result.tight is reached
    assert result.worst.ratio < 1.1


# What is wrong ------------------------------------------------------------------------------------


class Tree(BinaryTree):  # type: ignore[misc]  # final for us, not for a user
    """A tree whose S is that of one visit."""

    def participation_norm(self, most: int, apart: int, /) -> float:
        return self.column_norm()


class RootTree(BinaryTree):  # type: ignore[misc]  # as above
    """A tree whose visits are taken for orthogonal."""

    def participation_norm(self, most: int, apart: int, /) -> float:
        return float(self.column_norm() * most**0.5)


class Claiming:
    """A mechanism with another loss."""

    def __init__(self, of: Any, loss: Loss) -> None:
        self._of, self._loss = of, loss

    def loss(self) -> Loss:
        return self._loss

    def open(self, token: Any) -> Any:
        return self._of.open(token)

    def __getattr__(self, name: str) -> Any:
        if name == "release" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._of, name)


class Unchecked(Claiming):
    """Batches that are not compared with those of the registry."""

    def open(self, token: Any) -> Any:
        return BatchedStream(self._of, token)


@dataclass(frozen=True)
class Weighted:
    """Any sums of rows, with noise of their own: what visits move together is anything."""

    matrix: tuple[tuple[float, ...], ...]
    price: float
    participation: ClassVar[Participation] = Participation(3, apart=2)
    domain: ClassVar[Ball] = ONE

    @property
    def horizon(self) -> int:
        return len(self.matrix)

    def loss(self) -> Loss:
        rule = self.participation
        mass = Fraction(self.price) * (1 + Fraction(1, 10**9)) / 25
        return VisitsLoss(GaussianLoss(mass, adjacency=ZERO), rule.most, rule.apart)

    def open(self, token: Any) -> Any:
        noise = GaussianNoise(5.0)
        return _WeightedStream(self, token.spend(
            Spend("weighted", ONE, noise, own_loss=self.loss(), interactive=True)
        ))  # fmt: skip


class _WeightedStream:
    def __init__(self, of: Weighted, receipt: Any) -> None:
        self.matrix, self.receipt, self.seen = np.array(of.matrix), receipt, np.zeros((0, 1))

    def append(self, rows: Any) -> Any:
        with self.receipt.round():
            before = len(self.seen)
            self.seen = np.concatenate([self.seen, self.receipt.open(rows)])
            n = len(self.seen)
            out = (self.matrix[:n, :n] @ self.seen)[before:]
            return self.receipt.publish(out + self.receipt.draw(out.shape))

    def __enter__(self) -> _WeightedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.receipt.close()


def weighted(*entries: tuple[int, int, float]) -> Array:
    matrix = np.eye(N)
    for t, j, entry in entries:
        matrix[t, j] = entry
    return matrix


UNEVEN = weighted((8, 0, 3), (8, 2, 3), (8, 7, 3))
MIXED = weighted((4, 0, -2), (4, 2, 2), (9, 2, 1), (9, 7, -2))


def weighing(matrix: Array, price: float) -> Weighted:
    return Weighted(tuple(map(tuple, matrix.tolist())), price)


def even(matrix: Array) -> float:
    """The largest of evenly spaced visits."""
    spaced = [np.arange(j, N, gap)[:3] for gap in range(2, N) for j in range(N)]
    return max(float(np.sum(matrix[:, at].sum(axis=1) ** 2)) for at in spaced)


def claiming(of: Any, other: Any, most: int, apart: int) -> Claiming:
    inner = other.loss()
    return Claiming(of, VisitsLoss(getattr(inner, "loss", inner), most, apart))


blt = BufferedToeplitz.fitted(N)
picks, one_pick = RIGHT["picks"][0], NoisyMaxStream(CrossPolytope(1), 1.0, 9.0, 8, ZERO)
votes = NoisyMaxBatches(CrossPolytope(1), 1.0, 9.0, (2, 2, 2), (1,) * 3, (1024,) * 3, ZERO)
once, twice = (batches(Participation(4, per_batch=n), 3, 3, 3, 3) for n in (1, 2))
pooled = RIGHT["pooled"][0]
WRONG: dict[str, Callable[[], Any]] = {
    "the norm of one column": lambda: sums(Tree(24)),
    "as if visits were orthogonal": lambda: sums(RootTree(24)),
    "one slot too far apart": lambda: claiming(
        sums(blt), sums(blt, Participation(3, apart=5)), 3, 4
    ),
    "one visit too few": lambda: claiming(sums(blt), sums(blt, Participation(2, apart=4)), 3, 4),
    "only even patterns": lambda: weighing(UNEVEN, even(UNEVEN)),
    "signs left out": lambda: weighing(MIXED, largest(MIXED, VisitRule(3, 2), signed=False)),
    "fewer in a batch": lambda: claiming(twice, once, 4, 1),
    "batches unchecked": lambda: Unchecked(once, once.loss()),
    "pooling unchecked": lambda: Unchecked(pooled, pooled.loss()),
    "one pick": lambda: claiming(picks, one_pick, 3, 2),
    "one vote": lambda: claiming(votes, votes, 2, 1),
}


@pytest.mark.parametrize("name", thinned(WRONG))
def test_prices_of_persons_that_are_too_small_are_refuted(name: str) -> None:
    assert white_box(WRONG[name](), orders=ORDERS).violated


def test_correct_twins_stand() -> None:
    for matrix in (UNEVEN, MIXED):
        assert white_box(
            weighing(matrix, largest(matrix, VisitRule(3, 2), True)), orders=ORDERS
        ).tight
    assert not white_box(claiming(sums(blt), sums(blt), 3, 4), orders=ORDERS).violated


def test_a_claim_that_is_no_loss_is_about_the_rule_of_the_mechanism() -> None:
    mechanism = sums(BinaryTree(12))
    assert white_box(mechanism, GaussianDP(0.5), orders=ORDERS).violated
    assert not white_box(mechanism, GaussianDP(2), orders=ORDERS).violated


def test_a_rule_that_the_price_says_nothing_of_is_told() -> None:
    plain = sums(BinaryTree(12), None)
    stated = Claiming(plain, plain.loss())
    stated.__dict__["participation"] = RULE
    result = white_box(stated, orders=ORDERS)
    assert not result.violated
    assert not result.whole
    assert result.coverage.missing == ("persons",)


@dataclass(frozen=True)
class Grouped(Loss):
    """ε by another name, and what it says of several rows."""

    epsilon: float
    factor: float
    kind: ClassVar[str] = "grouped"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE

    def renyi(self, order: float) -> float:
        return PureLoss(self.epsilon).renyi(order)

    def pure(self) -> Fraction:
        return Fraction(self.epsilon)

    def several(self, visits: int, apart: int) -> Loss:
        return replace(self, epsilon=self.epsilon * max(self.factor * visits, 1.0))

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon}

    @classmethod
    def from_numbers(cls, data: Any, adjacency: Adjacency) -> Grouped:
        return cls(data["epsilon"], 1.0)


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, False), (0.95, True), (0.0, True)])
def test_what_a_loss_says_of_several_rows(factor: float, wrong: bool) -> None:
    from privlearn.noise import LaplaceNoise

    summed = NoisySum(Ball(1.0, 1, "l1"), LaplaceNoise(10.0))
    result = white_box(summed, Grouped(0.2 * (1 + 1e-9), factor), orders=ORDERS)
    assert result.violated is wrong


def test_neighbours_of_a_person_may_differ_in_as_many_records_as_the_rule_allows() -> None:
    absent = np.full((N, 1), np.nan)
    for slots, fits in (([0, 4, 8], True), ([0, 3], False), ([0, 4, 8, 11], False)):
        present = absent.copy()
        present[slots] = 1.0
        with (
            nullcontext() if fits else pytest.raises(CheckError, match="3 records 4 or more apart")
        ):
            sampling_target(sums(blt), neighbours=(present, absent))


def test_samples_are_of_persons_too() -> None:
    first, second = default_pairs(picks, adjacency=ZERO)[0]
    assert np.flatnonzero((np.nan_to_num(first) != np.nan_to_num(second)).any(axis=1)).tolist() == [
        0,
        2,
        4,
    ]
    first, second = default_pairs(pooled, adjacency=ZERO)[0]
    assert np.flatnonzero((np.nan_to_num(first) != np.nan_to_num(second)).any(axis=1)).tolist() == [
        0,
        3,
        6,
    ]
