"""K copies of one mechanism for the price of about one: a user is in at most one of them.

Each user has a record for one arm of K, or for none; to every other arm the user gives a null
record ("synthetic update").  Every arm takes one entry of every user, so that its clock is the
public arrival index, whatever arms the users chose: with clocks of the arms' own, or users that are
skipped, a changed arm would shift everybody behind in two streams, and nothing below would hold.

Lemma.  Let the arms' noise be independent.  Changing one user changes one arm, from one record to
another, or two arms, each between a record and the null record.  So the whole costs the maximum of

- Gaussian noise: squared shifts max(D², 2R²), D the diameter of the domain and R the largest
  distance of a contribution from the null one: the shifts of two arms are orthogonal.  Laplace
  noise: max(D₁, 2R₁) in ℓ1, in the same way.  Both stand in the domain, `OneOf.sensitivity`, so
  that an audit needs no trust for it.
- any zCDP constant, or any Rényi curve: max(ρ(D), 2ρ(R)): divergences of independent laws add up.
- bounded range and pure losses: max(range of one arm, twice the range between real and null).  Of
  independent choices log P/P′ is the sum of those of the arms, which lie in intervals whose lengths
  add up.  With several picks per arm: the j-th picks of all arms are one such product, given those
  before.

For balls around the null record D = 2R: K arms cost what one does.  The maximum, and not the sum
of the arms; and no budget has to be split (Han et al. 2021, 2022 split it, or prove it with a step
left out: ``docs/errata/synthetic-updates.md``, ``docs/errata/hdb.md``).

The local form has one message of K parts instead of K streams; see `local_one_of_k`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast, final

from numpy.typing import NDArray

from privlearn.adjacency import Adjacency
from privlearn.budgets import B, Currency
from privlearn.domains import Array, Domain, OneOf
from privlearn.errors import AdjacencyError
from privlearn.exact import Exact, exact, round_up
from privlearn.losses import Loss, PureLoss
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.gaussian import GaussianSum
from privlearn.mechanisms.generalized_gaussian import GeneralizedGaussianSum
from privlearn.mechanisms.noisy_max import (
    ReportNoisyMax,
    check_adjacency,
    choice_loss,
    release_picks,
)
from privlearn.mechanisms.prefix_sums import PrefixSum, PrefixSumStream
from privlearn.noise import GeneralizedGaussianNoise
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token

X = TypeVar("X")
Single = GaussianSum[X] | GeneralizedGaussianSum[X] | ReportNoisyMax
"""Mechanisms with one release for which the lemma is proved."""


def _check_arms(mechanism: Any, kinds: tuple[type, ...], domain: Any) -> None:
    """The hypotheses of the lemma, as far as they are not built in.

    Raises:
        TypeError: a mechanism or a domain for which it is not proved.  AdjacencyError: add-remove,
        under which the null entries of a user would come and go too.
    """
    if not isinstance(mechanism, kinds) or isinstance(domain, OneOf):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"mechanism = {mechanism!r}: the lemma is proved for one arm of: {names}")
    if getattr(mechanism, "adjacency", None) is Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            "one of K has no add-remove price: a user is an entry in every arm, null or not"
        )


@final
@dataclass(frozen=True, slots=True)
class OneOfK(Generic[X]):
    """K releases of one mechanism over the same users, each of whom has a record for one arm.

    Rows are pairs (record, arm), arms integers in 0..arms−1; a user of no arm has arm −1, and a
    user whose record or arm cannot be used counts as that.  One token pays for all arms; the price
    is that of the module's lemma, with independent noise for every arm.

    Args:
        mechanism: what each arm runs: `GaussianSum`, `GeneralizedGaussianSum` or `ReportNoisyMax`.
        arms: K >= 2, public.

    Raises:
        ValueError: fewer than two arms, or a price out of range.  TypeError: a mechanism or a
        domain for which the lemma is not proved.  AdjacencyError: add-remove.
    """

    mechanism: Single[X]
    arms: int

    def __post_init__(self) -> None:
        kinds = (GaussianSum, GeneralizedGaussianSum, ReportNoisyMax)
        _check_arms(self.mechanism, kinds, getattr(self.mechanism, "domain", None))
        object.__setattr__(self, "arms", self.domain.arms)
        self.loss()

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        arms: int,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> OneOfK[X]:
        """Gaussian sums with the least noise that ``budget`` allows.

        Raises:
            As `GaussianSum.calibrated`.
        """
        made = GaussianSum.calibrated(OneOf(domain, arms), budget, adjacency=adjacency)
        return cls(GaussianSum(domain, made.noise_std, adjacency), arms)

    @property
    def domain(self) -> OneOf[X]:
        """Where pairs (record, arm) are clipped."""
        return OneOf(cast(Domain[X], self.mechanism.domain), self.arms)

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of the price."""
        return self.mechanism.adjacency

    def spend(self) -> Spend:
        """The statement for the ledger."""
        one = self.mechanism.spend()
        name, more = f"one-of-k/{one.mechanism}", {**one.parameters, "arms": self.arms}
        if isinstance(self.mechanism, GaussianSum):
            return Spend(name, self.domain, one.noise, arithmetic="sum", parameters=more)
        return Spend(name, self.domain, one.noise, own_loss=self.loss(), parameters=more)

    def loss(self) -> Loss:
        """The price of one release of all arms."""
        mechanism = self.mechanism
        if isinstance(mechanism, GaussianSum):
            return self.spend().loss(self.adjacency)
        if isinstance(mechanism, ReportNoisyMax):
            eta = mechanism.eta
            if self.adjacency is Adjacency.REPLACE_ONE:
                eta = max(eta, mechanism.eta_of(Adjacency.ZERO_OUT, times=2))
            return choice_loss(mechanism.noise, eta, mechanism.top, self.adjacency)
        noise = GeneralizedGaussianNoise(mechanism.noise_std, mechanism.exponent)
        reach = mechanism.domain.sensitivity(self.adjacency, noise.norm)
        if self.adjacency is Adjacency.REPLACE_ONE:
            away = mechanism.domain.sensitivity(Adjacency.ZERO_OUT, noise.norm)
            reach = max(reach, math.sqrt(2) * away)
        return noise.loss(reach, self.adjacency)

    def release(self, rows: Rows[tuple[X, NDArray[Any]]], token: Token[B]) -> Released[Array]:
        """Releases all arms over ``rows``; null rows are null at every arm.

        Returns:
            One release per arm along the first axis: sums (arms, size), or (arms, dim, dim) for
            `PSDTrace`; picks (arms, top), int64.

        Raises:
            AdjacencyError: the token is for another neighbour relation.  TokenError, UsersError,
            ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        mechanism = self.mechanism
        check_adjacency(self.adjacency, token)
        token.check(rows)
        with token.spend(self.spend()) as receipt:
            if isinstance(mechanism, GaussianSum):
                return receipt.release_sum(rows)
            flat = receipt.open(rows).sum(axis=0)
            sums = flat.reshape(self.arms, -1)
            if isinstance(mechanism, ReportNoisyMax):
                picks = mechanism.picked(receipt, mechanism.vertices.scores(sums))
                return cast(Released[Array], release_picks(receipt, picks))
            noisy = sums + receipt.draw(sums.shape)
            return receipt.release(self.domain.decode(noisy.reshape(-1)))


@final
@dataclass(frozen=True, slots=True)
class OneOfKStream(Generic[X]):
    """K streams of running sums, one for each arm, of which every row feeds at most one.

    Rows are as for `OneOfK`.  One token pays for all streams; every arm advances by one at every
    row.  The price follows from domain, noise and factorisation.  (With noise in ℓp, p > 2, a row
    of noise is one vector for all arms, and the domain's sensitivity in ℓp prices it.)

    Args:
        mechanism: what each arm runs.
        arms: K >= 2, public.

    Raises:
        As `OneOfK`.
    """

    mechanism: PrefixSum[X]
    arms: int

    def __post_init__(self) -> None:
        _check_arms(self.mechanism, (PrefixSum,), getattr(self.mechanism, "domain", None))
        object.__setattr__(self, "arms", self.domain.arms)

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        arms: int,
        horizon: int | None = None,
        factorization: Factorization | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> OneOfKStream[X]:
        """The least noise that ``budget`` allows.

        Raises:
            As `PrefixSum.calibrated`.
        """
        made = PrefixSum.calibrated(
            OneOf(domain, arms),
            budget,
            horizon=horizon,
            factorization=factorization,
            adjacency=adjacency,
        )
        return cls(PrefixSum(domain, made.factorization, made.noise_std, adjacency), arms)

    @property
    def domain(self) -> OneOf[X]:
        """Where pairs (record, arm) are clipped."""
        return OneOf(self.mechanism.domain, self.arms)

    @property
    def factorization(self) -> Factorization:
        """That of every arm."""
        return self.mechanism.factorization

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of the price."""
        return self.mechanism.adjacency

    def _joint(self) -> PrefixSum[tuple[X, NDArray[Any]]]:
        return cast(
            PrefixSum[tuple[X, NDArray[Any]]],
            replace(self.mechanism, domain=cast(Any, self.domain)),
        )

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return self._joint().spend()

    def loss(self) -> Loss:
        """The price of all streams together."""
        return self._joint().loss()

    def error_std(self, t: int) -> float:
        """Standard deviation per coordinate of an arm's running sum after ``t`` >= 1 rows."""
        return self._joint().error_std(t)

    def open(self, token: Token[B]) -> PrefixSumStream[tuple[X, NDArray[Any]]]:
        """Spends ``token`` for all streams; each row releases sums of shape (arms, size).

        Raises:
            As `PrefixSum.open`.
        """
        return self._joint().open(token)


def local_one_of_k(
    least: Exact, most: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> PureLoss:
    """The loss log(most/least) of a local message of K parts, one real and the others null.

    Let Q be the law of a null part and P_x that of a part about x, with
    least <= dP_x/dQ <= most for all x.  Parts are independent.  For two users on the same arm
    P_x/P_x′ <= most/least; on different arms (P_x/Q)(z_a)·(Q/P_x′)(z_b) <= most/least.

    Args:
        least: m in (0, 1]; both laws have mass 1, so that m <= 1 <= M.
        most: M >= 1, not both 1.
        adjacency: under zero-out (a user against nobody) log max(M, 1/m) is enough, and is what is
            returned.

    Raises:
        ValueError: m <= 1 <= M does not hold, or the loss is out of range.
    """
    low, high = exact("least", least), exact("most", most)
    if not 0 < low <= 1 <= high:
        raise ValueError(f"least = {least!r}, most = {most!r}: must be 0 < least <= 1 <= most")
    ratio = high / low if adjacency is Adjacency.REPLACE_ONE else max(high, 1 / low)
    log = math.log(ratio.numerator) - math.log(ratio.denominator)
    size = math.log(max(ratio.numerator, ratio.denominator)) if log else 0.0
    return PureLoss(round_up(Fraction(log + 1e-15 * (log + size))), adjacency=adjacency)
