"""Noisy sums over a batch of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar, final

from privlearn._validate import positive
from privlearn.adjacency import Adjacency
from privlearn.budgets import B, Currency
from privlearn.domains import Array, Domain
from privlearn.losses import Loss, gaussian_std
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token

X = TypeVar("X")


@final
@dataclass(frozen=True, slots=True)
class GaussianSum(Generic[X]):
    """The sum of clipped contributions of a batch, plus N(0, noise_std²) on every coordinate.

    Privacy: a Gaussian loss of mass (sensitivity/noise_std)², where the sensitivity is the
    domain's under ``adjacency`` (Bun & Steinke 2016, Proposition 1.6).

    Args:
        domain: what one user can contribute; records are clipped into it.
        noise_std: standard deviation per coordinate (svec coordinate for matrices).
        adjacency: must be the accountant's.
    """

    domain: Domain[X]
    noise_std: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive(noise_std=self.noise_std)
        noise = GaussianNoise(self.noise_std)
        spend = Spend("gaussian-sum", self.domain, noise, arithmetic="sum")
        object.__setattr__(self, "_spend", spend)

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> GaussianSum[X]:
        """The least noise that ``budget`` allows.

        Raises:
            CurrencyError: no Gaussian fits this currency.  ValueError: a budget of zero.
        """
        std = gaussian_std(domain.sensitivity(adjacency, "l2"), budget.gaussian_mass())
        return cls(domain, std, adjacency)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return self._spend

    def loss(self) -> Loss:
        """The price of one release."""
        return self.spend().loss(self.adjacency)

    def error_std(self) -> float:
        """Standard deviation of the noise on each coordinate, unit of the sum."""
        return self.noise_std

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Releases the noisy sum over ``rows``; null rows count as the null contribution.

        Returns:
            The sum in its natural shape: (size,), or (dim, dim) for `PSDTrace`.

        Raises:
            TokenError, UsersError, ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        token.check(rows)
        with token.spend(self.spend()) as receipt:
            return receipt.release_sum(rows)
