"""Third parties' mechanisms in the usual ten lines, each with a line that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privlearn.adjacency import Adjacency
from privlearn.checking.faults.cases import Fault, LawCase
from privlearn.checking.faults.learners_learning import LyingBall
from privlearn.domains import Array, Ball
from privlearn.losses import GaussianLoss, Loss
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token


@dataclass(frozen=True)
class HonestSum:
    """A noisy sum with arithmetic of its own, which is right; the others override one step."""

    domain: Any = field(default_factory=lambda: Ball(1.0, 2))
    std: float = 2.0

    def loss(self) -> Loss:
        """The price of one release."""
        return self.spend().loss(Adjacency.REPLACE_ONE)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return Spend("sum", self.domain, GaussianNoise(self.std))

    def release(self, rows: Rows[Array], token: Token[Any]) -> Released[Array]:
        """The noisy sum."""
        with token.spend(self.spend()) as receipt:
            values = receipt.open(rows)
            return receipt.release(self.leaving(values, receipt.draw((self.domain.size,))))

    def leaving(self, values: Array, noise: Array) -> Array:
        """What is released of the clipped rows."""
        return np.asarray(values.sum(axis=0) + noise)


class ForgetsItsNoise(HonestSum):
    """The noise is drawn, as the receipt demands, and not added."""

    def leaving(self, values: Array, noise: Array) -> Array:
        return np.asarray(values.sum(axis=0))


class CountsTwice(HonestSum):
    """The sum is doubled before the noise is added, without a gain in the spend."""

    def leaving(self, values: Array, noise: Array) -> Array:
        return np.asarray(2 * values.sum(axis=0) + noise)


class TellsWhoIsThere(HonestSum):
    """The number of rows that are not null is released with the noisy sum."""

    def leaving(self, values: Array, noise: Array) -> Array:
        return np.append(values.sum(axis=0) + noise, np.count_nonzero(values.any(axis=1)))


class UnderstatesItsLoss(HonestSum):
    """``loss()`` is a quarter of what the spend costs."""

    def loss(self) -> Loss:
        return GaussianLoss("0.25")


class WritesDataToTheLedger(HonestSum):
    """The largest entry of the rows is put into the parameters of the spend."""

    def release(self, rows: Rows[Array], token: Token[Any]) -> Released[Array]:
        seen: list[float] = []

        def peek(block: Array) -> Array:
            seen.append(float(np.nanmax(np.abs(block))))
            return block

        rows.map_rows(peek)
        spend = replace(self.spend(), parameters={"bound": max(seen, default=0.0)})
        with token.spend(spend) as receipt:
            return receipt.release(receipt.open(rows).sum(axis=0) + receipt.draw((2,)))


_OURS = "a mechanism of a third party that passes `mypy` and runs; see the guide to your own"

_RECORDS = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -0.5], [9.0, 0.1], [-1.0, 0.0], [0.2, 0.3]])
"""One of them is the null record of every domain here."""


_HONEST = LawCase(HonestSum, _RECORDS)


def _fault(name: str, fault: str, broken: Callable[[], HonestSum]) -> Fault:
    return Fault(f"third party: {name}", fault, _OURS, LawCase(broken, _RECORDS), _HONEST)


FAULTS = (
    *(
        _fault(kind.__name__, kind.__doc__ or kind.__name__, kind)
        for kind in (
            ForgetsItsNoise,
            CountsTwice,
            TellsWhoIsThere,
            UnderstatesItsLoss,
            WritesDataToTheLedger,
        )
    ),
    _fault(
        "a domain that does not clip",
        "The stated sensitivity is not that of what ``clip`` returns.",
        lambda: HonestSum(LyingBall(1.0, 2)),
    ),
)
