"""Noisy sums over a batch of rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar, final

from privlearn.contract.partial_sums import partial_sum
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency
from privlearn.mechanisms.grids import grid_of
from privlearn.mechanisms.least_noise import Family, check_noise, family_of, least_noise
from privlearn.noise import AdditiveNoise
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import assign

X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Noisy(ABC, Generic[X]):
    """Clipped contributions plus noise: what `NoisySum` and `NoisyReport` share.

    Args:
        domain: what one user can contribute; records are clipped into it.
        noise: on every number (svec coordinate for matrices), in the unit of the data.
        adjacency: must be the accountant's.

    Raises:
        TypeError: ``noise`` is not added to numbers.
    """

    domain: Domain[X]
    noise: AdditiveNoise
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        check_noise(self.noise)
        self.loss()

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        noise: Family = "gaussian",
        exponent: float | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> Self:
        """The least noise that ``budget`` allows; arguments and errors as of `least_noise`."""
        found = least_noise(domain, budget, noise, exponent=exponent, adjacency=adjacency)
        return cls(domain, found, adjacency)

    @abstractmethod
    def spend(self) -> Spend:
        """The statement for the ledger."""

    def loss(self) -> Loss:
        """The price of one release."""
        return self.spend().loss(self.adjacency)

    def error_std(self) -> float:
        """Standard deviation of the noise on each number, unit of the data."""
        return math.sqrt(self.noise.variance(self.domain.size))


@final
@dataclass(frozen=True, slots=True)
class NoisySum(Noisy[X]):
    """The sum of clipped contributions of a batch, plus noise.

    Privacy: the loss of the noise at the domain's sensitivity under ``adjacency``, in the norm of
    the noise: (sensitivity/std)² in ℓ2 for Gaussian noise (Bun & Steinke 2016, Proposition 1.6),
    ε = sensitivity/scale in ℓ1 for Laplace noise, ρ = (p−1)·s²/(2·std²) in ℓp for generalized
    Gaussian noise (``docs/errata/generalized-gaussian.md``).

    Args:
        domain, noise, adjacency: see `Noisy`.
        name: in the ledger; default the noise's family, as in ``gaussian-sum``.
    """

    name: str = ""
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_noise(self.noise)
        name = self.name or f"{family_of(self.noise)}-sum"
        grid = grid_of(self.domain, self.noise)
        assign(self, _spend=Spend(name, self.domain, self.noise, arithmetic="sum", grid=grid))
        self.loss()

    def spend(self) -> Spend:
        return self._spend

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Releases the noisy sum over ``rows``; null rows count as the null contribution.

        Returns:
            The sum in its natural shape: (size,), or (dim, dim) for `PSDTrace`.

        Raises:
            DataError: rows of a form that the domain cannot use; nothing is spent.
            TokenError, UsersError, ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            return receipt.release_sum(rows)

    def partial(self, rows: Rows[X]) -> PartialSum:
        """The sealed sum over ``rows``, to be merged with those of other rows; nothing leaves.

        Partial sums of the same mechanism add up to the integers that one sum over all rows would
        be, in any order and on any number of machines (`merge`).

        Raises:
            ValueError: the domain is somebody's own, without integers.
            TypeError: no rows.
        """
        return partial_sum(self.spend(), rows)

    def release_partial(self, total: PartialSum, token: Token[B]) -> Released[Array]:
        """Releases what `release` would on all rows that ``total`` is the sum of.

        Raises:
            ValueError: another mechanism made it.
            TokenError, UsersError, ProvenanceError: as `release`.
        """
        spend = self.spend()
        token.check_total(total, spend)
        with token.spend(spend) as receipt:
            return receipt.release_total(total)
