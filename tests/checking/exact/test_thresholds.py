"""Exact laws of answers that compare noise with a noisy threshold; faults that were published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from privlearn import Box, PureDP, Rows, Spend, Token
from privlearn.checking.exact.check import ExactResult, compare
from privlearn.checking.exact.thresholds import threshold_pairs
from privlearn.errors import CheckError
from privlearn.losses import Loss, PureLoss
from privlearn.losses.output_laws import Discrete
from privlearn.mechanisms import AboveThreshold
from privlearn.noise import GaussianNoise, LaplaceNoise, Noise

LAPLACE = LaplaceNoise(1.0)


@dataclass(frozen=True)
class Vector:
    """Which of some sums in [0, n] are above a noisy threshold of 0; sold as ε = 1.

    Args:
        base: of the noise of the threshold.
        own: of that of each sum; ``once``: one draw for all of them.
        most: it stops after so many sums above.
        fresh: of new noise on the threshold after each of them.
        values: releases the noisy sum in place of 1, and nan in place of 0.
    """

    queries: int
    base: float
    own: float
    most: int = 1
    fresh: float = 0.0
    once: bool = False
    values: bool = False
    noise: Noise = LAPLACE

    def loss(self) -> Loss:
        return PureLoss(1)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        spend = Spend("vector", Box(0.0, 1.0, self.queries), self.noise, own_loss=self.loss())
        with token.spend(spend) as receipt:
            sums, said, left = receipt.open(rows).sum(axis=0), [np.nan] * self.queries, self.most
            level, shared = receipt.draw((2,)) * (self.base, self.own)
            for i, total in enumerate(sums):
                noise = shared if self.once else self.own and self.own * receipt.draw((1,))[0]
                above = total + noise >= level
                said[i] = total + noise if above else np.nan
                left -= above
                if not left:
                    break
                if above and self.fresh:
                    level = self.fresh * receipt.draw((1,))[0]
            found = np.array(said)
            return receipt.release(found if self.values else np.isfinite(found).astype(int))


def checked(mechanism: Any) -> ExactResult:
    """On sums of which one half rises and the other falls, but for ours, which finds its own."""
    half = np.arange(mechanism.queries) < mechanism.queries / 2
    opposed = [(half[None] * 1.0, ~half[None] * 1.0)]
    found = threshold_pairs(mechanism, opposed if isinstance(mechanism, Vector) else None)
    assert found is not None
    return compare(mechanism.loss(), found[0], orders=(2.0,))


@pytest.mark.parametrize(
    "mechanism",
    [
        AboveThreshold.calibrated(3, 2.0, PureDP(1)),
        Vector(4, 2.0, 4.0),
        Vector(4, 4.0, 8.0, most=2, fresh=4.0),
    ],
    ids=["ours", "Lyu 1", "Lyu 2"],
)
def test_sparse_vectors_that_hold(mechanism: Any) -> None:
    found = checked(mechanism)
    assert not found.violated
    assert found.worst.exact > 0.2


@pytest.mark.parametrize(
    ("mechanism", "least"),
    [
        (Vector(6, 2.0, 1.0, values=True), 1.3),
        (Vector(6, 4.0, 4 / 3, most=3), 2.0),
        (Vector(3, 2.0, 0.0), np.inf),
        (Vector(6, 2.0, 2.0, most=99), 1.5),
        (Vector(3, 2.0, 4.0, once=True), np.inf),
        (Vector(3, 1.0, 1.0, noise=GaussianNoise(1.0)), 1.5),
    ],
    ids=["Lyu 3", "Lyu 4", "Lyu 5", "Lyu 6", "one draw for all", "Gaussian"],
)
def test_sparse_vectors_that_do_not(mechanism: Any, least: float) -> None:
    """Lyu, Su & Li 2017, algorithms 3 to 6, and slips."""
    found = checked(mechanism)
    (epsilon,) = (row for row in found.rows if row.measure == "epsilon")
    assert epsilon.violated
    assert epsilon.exact >= least


def test_probabilities_are_those_of_the_integral() -> None:
    sums = (0.0, 0.9), (1.0, 0.2)
    found = threshold_pairs(Vector(2, 2.0, 3.0), [(np.array([sums[0]]), np.array([sums[1]]))])
    assert found is not None
    for law, both in zip((found[0][0].p, found[0][0].q), sums, strict=True):
        assert isinstance(law, Discrete)
        wanted = [expected(both, said) for said in ((True,), (False, True), (False, False))]
        np.testing.assert_allclose(sorted(np.exp(law.log_mass)), sorted(wanted), rtol=1e-5)


def expected(sums: tuple[float, ...], said: tuple[bool, ...]) -> float:
    """The probability that sums with noise of 3 are above a level with noise of 2, or not."""

    def density(t: float) -> float:
        away = [(2 * t - total) / 3 for total in sums]
        above = [np.exp(-abs(z)) / 2 if z > 0 else 1 - np.exp(-abs(z)) / 2 for z in away]
        chances = [p if up else 1 - p for p, up in zip(above, said, strict=False)]
        return float(np.exp(-abs(t)) / 2 * np.prod(chances))

    kinks = [0.0, *(total / 2 for total in sums)]
    return float(quad(density, -60, 60, points=kinks, limit=400)[0])


def test_answers_of_another_kind_are_not_priced() -> None:
    @dataclass(frozen=True)
    class Parity(Vector):
        def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
            spend = Spend("parity", Box(0.0, 1.0, 1), self.noise, own_loss=self.loss())
            with token.spend(spend) as receipt:
                noisy = receipt.open(rows).sum() + receipt.draw((3,)).sum()
                return receipt.release(np.array([int(noisy) % 2, int(noisy) % 3]))

    with pytest.raises(CheckError, match=r"."):
        threshold_pairs(Parity(1, 1.0, 1.0), None)
