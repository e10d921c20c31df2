"""How many users said yes, told by coins."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from example_coins.noises import CoinNoise
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.losses import Loss
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box
from privlearn.values.adjacency import Adjacency


@final
@dataclass(frozen=True)
class CoinCount:
    """The number of answers above a half, each of which was flipped with probability ``flip``.

    One user changes one bit of those that are added up, so the count costs no more than that bit.
    """

    flip: Fraction

    def loss(self) -> Loss:
        """For replace-one."""
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def _spend(self) -> Spend:
        return Spend("example-coins.count", Box(0.0, 1.0, 1), CoinNoise(self.flip))

    def release(self, rows: Rows[Array], token: Token[Any]) -> Released[Array]:
        """The count without its bias, shape (1,).

        Args:
            rows: shape (n, 1), in [0, 1].
            token: for `loss`.
        """
        with token.spend(self._spend()) as receipt:
            yes = receipt.open(rows) > 0.5
            told = yes != (receipt.draw(yes.shape) > 0)
            flip = float(self.flip)
            count = (told.sum(axis=0) - len(rows) * flip) / (1 - 2 * flip)
            return receipt.release(np.asarray(count, dtype=np.float64))


def checked() -> CoinCount:
    """What ``privlearn check example-coins.count`` checks."""
    return CoinCount(Fraction(1, 4))
