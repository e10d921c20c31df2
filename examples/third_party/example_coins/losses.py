"""What it costs to answer by a coin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from privlearn.losses import Loss, register
from privlearn.losses.numerics import up, valid_number, valid_order
from privlearn.losses.output_laws import Discrete, LawPair
from privlearn.losses.steps import RandomizedResponseStep
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, round_up


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class CoinLoss(Loss):
    """A bit that is told the wrong way round with probability ``flip`` <= 0.499.

    On neighbours the told bit is 1 with probability 1 − q and q, or q and 1 − q; so
    D_α = log((1−q)^α·q^(1−α) + q^α·(1−q)^(1−α))/(α−1), and the worst case is log((1−q)/q).
    """

    kind = "example-coins.coin"
    flip: Fraction
    adjacency: Adjacency

    def __init__(self, flip: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        self._set(flip=valid_number("flip", flip, "1e-6", "0.499"), adjacency=adjacency)

    def renyi(self, order: float) -> float:
        alpha = valid_order(order)
        wrong, right = math.log(self.flip), math.log(1 - self.flip)
        first = alpha * right + (1 - alpha) * wrong  # the larger one
        second = alpha * wrong + (1 - alpha) * right
        return up((first + math.log1p(math.exp(second - first))) / (alpha - 1))

    def pure(self) -> Fraction:
        return round_up(Fraction(up(math.log((1 - self.flip) / self.flip))))

    def zcdp(self) -> Fraction:
        """ρ = ε·tanh(ε/2), as for every ε-DP mechanism."""
        epsilon = float(self.pure())
        return round_up(Fraction(up(epsilon * math.tanh(epsilon / 2))))

    def step(self) -> RandomizedResponseStep:
        return RandomizedResponseStep(float(self.pure()), 2)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        law = np.log([float(1 - self.flip), float(self.flip)])
        return [(Discrete(law), Discrete(law[::-1].copy()))]
