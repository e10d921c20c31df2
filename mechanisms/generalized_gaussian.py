"""Noisy sums with noise in ℓp: generalized Gaussian, of which the Gaussian is the case p = 2."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar, final

from privlearn._validate import count
from privlearn.adjacency import Adjacency
from privlearn.budgets import ZCDP, B, Currency
from privlearn.domains import Array, Ball, Domain, Norm, exponent_of
from privlearn.errors import CurrencyError
from privlearn.losses import Loss
from privlearn.noise import GeneralizedGaussianNoise
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token

X = TypeVar("X")


def regular_exponent(q: float, dim: int) -> float:
    """The p in [2, q] with the least κ = (p−1)·dim^{2/p − 2/q}, in closed form.

    With L = log dim, the derivative of log κ in p is 1/(p−1) − 2L/p², of the sign of
    p² − 2Lp + 2L.  For L <= 2 that is nowhere negative: p = 2.  For L > 2 it is negative between
    its roots L ± √(L² − 2L); at p = 2 it is 4 − 2L < 0, so 2 lies between them: κ falls up to the
    larger root and grows from there on.

    Args:
        q: exponent >= 2 of the norm in which sensitivity counts; inf is allowed.
        dim: d >= 1.

    Raises:
        ValueError: q < 2.
    """
    if not q >= 2:
        raise ValueError(f"q = {q!r}: must be >= 2; below, noise in ℓ2 is right (‖x‖₂ <= ‖x‖_q)")
    log = math.log(count(dim=dim))
    return 2.0 if log <= 2 else min(float(q), log + math.sqrt(log * (log - 2)))


def regularity(q: float, dim: int, exponent: float | None = None) -> float:
    """κ = (p−1)·dim^{2/p − 2/q}: ℓq is κ-regular by way of ℓp (``docs/errata``).

    Args:
        q: exponent >= 2; inf is allowed.
        dim: d >= 1.
        exponent: p in [2, q]; default the one with the least κ.

    Raises:
        ValueError: an exponent is out of range.
    """
    p = regular_exponent(q, dim) if exponent is None else float(exponent)
    if not 2 <= p <= q:
        raise ValueError(f"exponent = {exponent!r}: must lie in [2, {q!r}]")
    return float((p - 1) * count(dim=dim) ** (2 / p - 2 / q))


@final
@dataclass(frozen=True, slots=True)
class GeneralizedGaussianSum(Generic[X]):
    """The sum of clipped contributions of a batch, plus noise with density ∝ exp(−‖z‖_p²/(2std²)).

    Privacy: ρ = (p−1)·s²/(2·noise_std²), s the domain's sensitivity in ℓp.  In a ball of ℓq,
    2 <= p <= q, that is κs_q²/(2·noise_std²) with the κ of `regularity`; the proof is in
    ``docs/errata/generalized-gaussian.md``.  For p = 2 it is the Gaussian mechanism and priced as
    such.

    Args:
        domain: what one user can contribute, such as ``Ball(r, d, q)``.
        noise_std: σ; the mean of ‖z‖_p² is size·σ².
        exponent: p in [2, 1000].
        adjacency: must be the accountant's.
    """

    domain: Domain[X]
    noise_std: float
    exponent: float = 2.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        self._noise()

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        exponent: float | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> GeneralizedGaussianSum[X]:
        """The least noise that ``budget`` allows.

        Args:
            domain: what one user can contribute.
            budget: ZCDP; or any that a Gaussian has a price in, if p = 2 is given or chosen.
            exponent: p; default the one with the least computed error (`error_std`) among 2, that
                is the Gaussian with ℓ2 sensitivity, and, for a ball of ℓq with q > 2, the
                exponent with the least κ.
            adjacency: as above.

        Raises:
            CurrencyError: the noise has no price in this currency.  ValueError: a budget of zero.
        """
        if exponent is not None:
            return cls._with(domain, budget, float(exponent), adjacency)
        tried = {2.0, *_regular(domain)} if isinstance(budget, ZCDP) else {2.0}
        made = [cls._with(domain, budget, p, adjacency) for p in sorted(tried)]
        return min(made, key=lambda mechanism: mechanism.error_std())

    @classmethod
    def _with(
        cls, domain: Domain[X], budget: Currency, p: float, adjacency: Adjacency
    ) -> GeneralizedGaussianSum[X]:
        if p != 2 and not isinstance(budget, ZCDP):
            raise CurrencyError(
                f"generalized Gaussian noise has a zCDP constant and no more: it has no price in "
                f"{type(budget).__name__}"
            )
        mass = budget.gaussian_mass()
        if mass <= 0:
            raise ValueError(f"{budget}: noise needs a budget > 0")
        norm: Norm = "l2" if p == 2 else p
        std = domain.sensitivity(adjacency, norm) * math.sqrt(Fraction(p - 1) / mass)
        made, step = cls(domain, std, p, adjacency), math.ulp(std)
        while not budget.covers(budget.price(made.loss())):
            std, step = std + step, 2 * step
            made = cls(domain, std, p, adjacency)
        return made

    def _noise(self) -> GeneralizedGaussianNoise:
        return GeneralizedGaussianNoise(self.noise_std, self.exponent)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return Spend("generalized-gaussian-sum", self.domain, self._noise(), arithmetic="sum")

    def loss(self) -> Loss:
        """The price of one release."""
        return self.spend().loss(self.adjacency)

    def error_std(self) -> float:
        """Standard deviation of the noise on each coordinate, unit of the sum."""
        return self._noise().coordinate_std(self.domain.size)

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Releases the noisy sum over ``rows``; null rows count as the null contribution.

        Returns:
            The sum in its natural shape, (size,) for balls.

        Raises:
            TokenError, UsersError, ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        token.check(rows)
        with token.spend(self.spend()) as receipt:
            return receipt.release_sum(rows)


def _regular(domain: Domain[X]) -> Iterable[float]:
    if isinstance(domain, Ball) and (q := exponent_of(domain.norm)) > 2:
        yield regular_exponent(q, domain.size)
