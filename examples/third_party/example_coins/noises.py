"""Coins: which answers are told the wrong way round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

import numpy as np

from example_coins.losses import CoinLoss
from privlearn.noise.exact.pool import Pool
from privlearn.rows.domains import Array, Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact_text


@final
@dataclass(frozen=True, slots=True)
class CoinNoise:
    """For each answer 1 with probability ``flip``, else 0."""

    norm: ClassVar[Norm] = "linf"
    flip: Fraction

    def loss(self, sensitivity: float, adjacency: Adjacency) -> CoinLoss:
        """That of one told bit, for answers that are a bit.

        Raises:
            ValueError: they are not, if one differs from another by more than 1.
        """
        if sensitivity > 1:
            raise ValueError(f"sensitivity = {sensitivity!r}: must be at most 1, for a bit")
        return CoinLoss(self.flip, adjacency=adjacency)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        # at least as often as priced: the loss falls with the probability, up to a half
        below = np.uint64(math.ceil(self.flip * 2**64))
        return (pool.words(math.prod(shape)) < below).astype(np.float64).reshape(shape)

    def to_dict(self) -> dict[str, Any]:
        return {"family": "example-coins.coin", "flip": exact_text(self.flip)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CoinNoise:
        """What `to_dict` was made of; privlearn compares the two."""
        return cls(CoinLoss(str(data["flip"])).flip)
