"""Third parties' mechanisms in the usual ten lines, each with a line that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from faults.cases import ExactCase, Fault, LawCase
from faults.learners_learning import LyingBall
from privlearn.checking.laws.mechanisms import check_only_values_depend_on_data
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.losses import GaussianLoss, Loss
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid


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


@dataclass(frozen=True)
class ExactSum(HonestSum):
    """A noisy sum on a public grid, which is right; the others override one step."""

    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def loss(self) -> Loss:
        return self.spend().loss(self.adjacency)

    def spend(self) -> Spend:
        return self.on(40)

    def on(self, bits: int) -> Spend:
        """The statement for the ledger, with a grid."""
        return Spend("exact-sum", self.domain, GaussianNoise(self.std), grid=Grid(self.std, bits))

    def release(self, rows: Rows[Array], token: Token[Any]) -> Released[Array]:
        spend = self.spend_on(rows)
        with token.spend(spend) as receipt:
            return receipt.release(self.noisy(receipt, rows, cast(Grid, spend.grid)))

    def spend_on(self, rows: Rows[Array]) -> Spend:
        """The statement for some rows."""
        return self.spend()

    def noisy(self, receipt: Receipt, rows: Rows[Array], grid: Grid) -> Array:
        """What is released."""
        total = receipt.open_integers(rows).sum(axis=0)
        return grid.values(total + receipt.draw_integers(total.shape))


class GridOfTheData(ExactSum):
    """The grid is as fine as the largest number in the rows allows."""

    def spend_on(self, rows: Rows[Array]) -> Spend:
        seen: list[float] = []

        def peek(block: Array) -> Array:
            seen.append(float(np.nan_to_num(np.abs(block), posinf=0.0).max()))
            return block

        rows.map_rows(peek)
        return self.on(40 if max(seen, default=0.0) < 1 else 36)


class GridOfTheirNumber(ExactSum):
    """The grid has room for as many rows as there are, which nobody may know under add-remove."""

    def spend_on(self, rows: Rows[Array]) -> Spend:
        return self.on(40 - len(rows).bit_length())


class ScaledMean(ExactSum):
    """A third of the exact noisy sum, which is right."""

    def noisy(self, receipt: Receipt, rows: Rows[Array], grid: Grid) -> Array:
        return super().noisy(receipt, rows, grid) / 3


class RoundsBeforeTheNoise(ExactSum):
    """A third of the exact noise is added to a third of the exact sum, after either was rounded."""

    def noisy(self, receipt: Receipt, rows: Rows[Array], grid: Grid) -> Array:
        total = receipt.open_integers(rows).sum(axis=0)
        return grid.values(total) / 3 + grid.values(receipt.draw_integers(total.shape)) / 3


class RoundsTheNoiseToEven(ExactSum):
    """The noise goes through doubles, and is rounded to the grid half to even."""

    def noisy(self, receipt: Receipt, rows: Rows[Array], grid: Grid) -> Array:
        total = receipt.open_integers(rows).sum(axis=0)
        noise = (receipt.draw_integers(total.shape) + 0.5) * grid.step
        return grid.values(total + np.rint(noise / grid.step).astype(np.int64))


_OURS = "a mechanism of a third party that passes `mypy` and runs; see the guide to your own"

_RECORDS = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -0.5], [9.0, 0.1], [-1.0, 0.0], [0.2, 0.3]])
"""One of them is the null record of every domain here."""


_HONEST = LawCase(HonestSum, _RECORDS)
_GRIDS = "exact noise is private on a grid that is public, for a function of noisy integers"


def _of_grid(kind: type[ExactSum]) -> LawCase:
    made = partial(kind, adjacency=Adjacency.ADD_REMOVE)
    return LawCase(made, _RECORDS, only=check_only_values_depend_on_data)


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
    *(
        Fault(f"third party: {kind.__name__}", kind.__doc__ or "", _GRIDS, *cases)
        for kind, cases in (
            (GridOfTheData, (_of_grid(GridOfTheData), _of_grid(ExactSum))),
            (GridOfTheirNumber, (_of_grid(GridOfTheirNumber), _of_grid(ExactSum))),
            (RoundsBeforeTheNoise, (ExactCase(RoundsBeforeTheNoise), ExactCase(ScaledMean))),
            (RoundsTheNoiseToEven, (ExactCase(RoundsTheNoiseToEven), ExactCase(ExactSum))),
        )
    ),
)
