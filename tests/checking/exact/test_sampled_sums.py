"""Sums over a random sample: a rate that is not the one which was sold is refuted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from privlearn import Adjacency, Ball, Rows, Spend, Token
from privlearn.checking.exact.additive import law_of_coins, sampled_law
from privlearn.checking.exact.check import white_box
from privlearn.contract.receipts import Released
from privlearn.losses import SubsampledGaussian
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array


@dataclass(frozen=True)
class Sampled:
    """A noisy sum over a sample that is drawn beside the accountant."""

    rate: float
    fixed: bool = False
    adjacency: Adjacency = Adjacency.ZERO_OUT
    domain: Any = field(default_factory=lambda: Ball(1.0, 2))

    def loss(self) -> SubsampledGaussian:
        return SubsampledGaussian(2, "0.1", adjacency=self.adjacency)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        spend = Spend("sampled", self.domain, GaussianNoise(2.0), own_loss=self.loss())
        with token.spend(spend) as receipt:
            values, rng = receipt.open(rows), np.random.default_rng()
            kept = rng.random(len(values)) < self.rate
            if self.fixed:
                number = round(self.rate * len(values))
                kept = rng.permutation(len(values)) < number
            return receipt.release(values[kept].sum(axis=0) + receipt.draw((2,)))


@pytest.mark.parametrize(
    ("mechanism", "wrong"),
    [
        (Sampled(0.3), True),
        (Sampled(0.1), False),
        (Sampled(0.3, adjacency=Adjacency.ADD_REMOVE), True),
        (Sampled(0.5, fixed=True), True),
    ],
)
def test_a_rate_is_counted_and_compared(mechanism: Sampled, wrong: bool) -> None:
    found = white_box(mechanism)
    assert found.violated is wrong, found
    assert not found.whole
    assert "the sample at a rate between" in str(found.coverage)


def test_a_sum_without_coins_and_a_sum_of_others_are_none_of_these() -> None:
    assert law_of_coins(NoisySum(Ball(1.0, 2), GaussianNoise(2.0))) is None
    rng, one = np.random.default_rng(0), np.eye(1)

    def of_many(data: Array, z: Array) -> Array:
        return np.asarray(data[rng.random(len(data)) < 0.5].sum(keepdims=True) + z)

    pair = np.array([1.0, 0.3, 0.2]), np.array([0.0, 0.3, 0.2])
    assert sampled_law(of_many, pair, "normal", one) is None
    bare = sampled_law(of_many, (np.array([1.0, 0.0]), np.zeros(2)), "laplace", 0 * one)
    assert bare is None
    half = sampled_law(of_many, (np.array([1.0, 0.0]), np.zeros(2)), "laplace", one)
    assert half is not None
    rate = float(half.pair.label.rpartition(" ")[2])
    assert 0.38 < rate < 0.5
