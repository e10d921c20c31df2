"""The binary tree of Han et al. 2022 with generalized Gaussian noise on its nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast, final

from privlearn._validate import count
from privlearn.adjacency import Adjacency
from privlearn.budgets import ZCDP, B, Currency
from privlearn.domains import Array, Domain, Norm
from privlearn.errors import AdjacencyError, CurrencyError, HorizonError
from privlearn.losses import Loss
from privlearn.mechanisms.factorization import BinaryTree
from privlearn.mechanisms.prefix_sums import PrefixSumStream
from privlearn.noise import GeneralizedGaussianNoise
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token

X = TypeVar("X")


@final
@dataclass(frozen=True, slots=True)
class GeneralizedGaussianTree(Generic[X]):
    """Running sums from a tree (Fenwick form) whose nodes have density ∝ exp(−‖z‖_p²/(2std²)).

    Privacy: node t is the sum over (t − lowbit(t), t] plus noise, released when row t is known, and
    it is ρ₀-zCDP with ρ₀ = (p−1)·s²/(2·noise_std²), s the domain's sensitivity in ℓp
    (``docs/errata/generalized-gaussian.md``).  One user is in at most m = ⌊log₂ horizon⌋ + 1 nodes,
    and zCDP adds up although contributions may depend on earlier nodes: ρ = m·ρ₀, which is the
    price of one release with s·√m for s.  Prefix sums are sums of nodes: post-processing.

    It is here to run the published algorithm.  For p = 2 `PrefixSum` has less noise; and in ℓ3,
    as in the paper, with d <= 20, p = 2 has no more of it per coordinate than any p > 2.

    Args:
        domain: what one user can contribute, such as ``Ball(r, d, q)``.
        horizon: the most rows.
        noise_std: σ of every node; the mean of ‖z‖_p² is size·σ².
        exponent: p in [2, 1000].
        adjacency: replace-one or zero-out; under add-remove all later rows would shift.
    """

    domain: Domain[X]
    horizon: int
    noise_std: float
    exponent: float = 2.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        count(horizon=self.horizon)
        self._noise()
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise AdjacencyError("a stream has no add-remove price: every later row would shift")

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        horizon: int,
        exponent: float = 2.0,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> GeneralizedGaussianTree[X]:
        """The least noise that ``budget`` allows.

        Raises:
            CurrencyError: the noise has no price in it; p > 2 has one in zCDP only.  ValueError: a
            budget of zero; an argument is out of range.
        """
        if exponent != 2 and not isinstance(budget, ZCDP):
            raise CurrencyError(
                f"generalized Gaussian noise has a zCDP constant and no more: it has no price in "
                f"{type(budget).__name__}"
            )
        mass = budget.gaussian_mass()
        if mass <= 0:
            raise ValueError(f"{budget}: noise needs a budget > 0")
        norm: Norm = "l2" if exponent == 2 else float(exponent)
        reach = domain.sensitivity(adjacency, norm) * BinaryTree(horizon).column_norm()
        std = reach * math.sqrt(Fraction(float(exponent) - 1) / mass)
        made, step = cls(domain, horizon, std, exponent, adjacency), math.ulp(std)
        while not budget.covers(budget.price(made.loss())):
            std, step = std + step, 2 * step
            made = cls(domain, horizon, std, exponent, adjacency)
        return made

    @property
    def factorization(self) -> BinaryTree:
        """Prefix sums as A = B·C, with a node of noise per row."""
        return BinaryTree(self.horizon)

    def _noise(self) -> GeneralizedGaussianNoise:
        return GeneralizedGaussianNoise(self.noise_std, self.exponent)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return Spend(
            "generalized-gaussian-tree",
            self.domain,
            self._noise(),
            gain=self.factorization.column_norm(),
            parameters={"horizon": self.horizon},
            interactive=True,
        )

    def loss(self) -> Loss:
        """The price of the whole stream."""
        return self.spend().loss(self.adjacency)

    def error_std(self, t: int) -> float:
        """Standard deviation per coordinate of the running sum after ``t`` >= 1 rows."""
        each = self._noise().coordinate_std(self.domain.size)
        return each * self.factorization.error_std(t)

    def open(self, token: Token[B]) -> PrefixSumStream[X]:
        """Spends ``token`` for the whole stream.

        Raises:
            HorizonError: the token's users outnumber the horizon.  AdjacencyError: the token is for
            another neighbour relation.  TokenError: see `Token.spend`.
        """
        if token.adjacency is not self.adjacency:
            raise AdjacencyError(
                f"a stream for {self.adjacency.value}, a token for {token.adjacency.value}"
            )
        if len(token.users) > self.horizon:
            raise HorizonError(f"users = {token.users!r} exceed horizon = {self.horizon}")
        # The stream asks for domain, factorization and spend() alone.
        return PrefixSumStream(cast(Any, self), token)

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """All running sums at once, shape (n, size); as `open`, `append` and `close`."""
        with self.open(token) as stream:
            return stream.append(rows)
