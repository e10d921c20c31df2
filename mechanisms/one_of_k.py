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

Running sums by arm are `PrefixSum` over the domain `OneOf`: one token for all streams, of which
every arm advances at every row; each row releases sums of shape (arms, size).

Arms are exact where one of them is (`NoisySum`, `ReportNoisyMax`): contributions and noise are
integers, and noisy scores real numbers.

The local form has one message of K parts instead of K streams; see `local_one_of_k`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast, final

from numpy.typing import NDArray

from privlearn.contract.partial_sums import partial_sum
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import AdjacencyError
from privlearn.losses import Loss, PureLoss
from privlearn.losses.budgets import B, Currency
from privlearn.mechanisms.least_noise import gaussian_noise
from privlearn.mechanisms.noisy_max import ReportNoisyMax, choice_loss, release_picks
from privlearn.mechanisms.noisy_sum import NoisySum
from privlearn.mechanisms.receipt_stream import check_adjacency
from privlearn.noise import noise_from_dict
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array, Domain, OneOf
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, round_up
from privlearn.values.grid import Grid, sum_of_rows
from privlearn.values.validate import AtLeastTwo, assign, check_fields

X = TypeVar("X")
Single = NoisySum[X] | ReportNoisyMax
"""Mechanisms with one release for which the lemma is proved."""


def _check_arms(mechanism: Any) -> None:
    proved = isinstance(mechanism, NoisySum | ReportNoisyMax)
    if isinstance(mechanism, NoisySum):
        proved = noise_from_dict(mechanism.noise.to_dict()) == mechanism.noise
    if not proved or isinstance(getattr(mechanism, "domain", None), OneOf):
        raise TypeError(
            f"mechanism = {mechanism!r}: the lemma is proved for one arm of: NoisySum, "
            "ReportNoisyMax, with noise of this package"
        )
    if mechanism.adjacency is Adjacency.ADD_REMOVE:
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
        mechanism: what each arm runs: `NoisySum` or `ReportNoisyMax`.
        arms: K >= 2, public.

    Raises:
        ValueError: fewer than two arms, or a price out of range.
        TypeError: a mechanism or a domain for which the lemma is not proved.
        AdjacencyError: add-remove.
    """

    mechanism: Single[X]
    arms: AtLeastTwo
    domain: OneOf[X] = field(init=False, repr=False, compare=False)
    """Where pairs (record, arm) are clipped."""
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_arms(self.mechanism)
        check_fields(self)
        assign(self, domain=OneOf(cast(Domain[X], self.mechanism.domain), self.arms))
        assign(self, _spend=self._stated())
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
            CurrencyError, ValueError: as `NoisySum.calibrated`.
        """
        noise = gaussian_noise(OneOf(domain, arms), budget, adjacency)
        return cls(NoisySum(domain, noise, adjacency), arms)

    @property
    def adjacency(self) -> Adjacency:
        return self.mechanism.adjacency

    @property
    def _one_sum(self) -> bool:
        """Whether all arms together are one noisy sum, of contributions in `OneOf`."""
        return isinstance(self.mechanism, NoisySum) and self.mechanism.noise.independent

    def spend(self) -> Spend:
        return self._spend

    def _stated(self) -> Spend:
        one = self.mechanism.spend()
        name, more = f"one-of-k/{one.mechanism}", {**one.parameters, "arms": self.arms}
        if self._one_sum:
            return Spend(
                name, self.domain, one.noise, arithmetic="sum", parameters=more, grid=one.grid
            )
        return Spend(
            name, self.domain, one.noise, own_loss=self._own_loss(), parameters=more, grid=one.grid
        )

    def loss(self) -> Loss:
        return self.spend().loss(self.adjacency)

    def _own_loss(self) -> Loss:
        mechanism = self.mechanism
        if isinstance(mechanism, ReportNoisyMax):
            eta = mechanism.eta
            if self.adjacency is Adjacency.REPLACE_ONE:
                eta = max(eta, mechanism.eta_of(Adjacency.ZERO_OUT, times=2))
            return choice_loss(mechanism.noise, eta, mechanism.top, self.adjacency)
        noise = mechanism.noise
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
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            if self._one_sum:
                return receipt.release_sum(rows)
            if spend.grid is None:  # a domain or noise without integers; certificates say so
                sums = receipt.open(rows).sum(axis=0).reshape(self.arms, -1)
                noisy = sums + receipt.draw(sums.shape)
                return receipt.release(self.domain.decode(noisy.reshape(-1)))
            total = sum_of_rows(receipt.open_integers(rows))
            return self._of_arms(receipt, spend.grid, total)

    def partial(self, rows: Rows[tuple[X, NDArray[Any]]]) -> PartialSum:
        """The sealed sum over ``rows``, to be merged with those of other rows; nothing leaves.

        Raises:
            ValueError, TypeError: as `NoisySum.partial`.
        """
        return partial_sum(self.spend(), rows)

    def release_partial(self, total: PartialSum, token: Token[B]) -> Released[Array]:
        """Releases what `release` would on all rows that ``total`` is the sum of.

        Raises:
            ValueError: another mechanism made it.  Else as `release`.
        """
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check_total(total, spend)
        with token.spend(spend) as receipt:
            if self._one_sum:
                return receipt.release_total(total)
            assert spend.grid is not None  # else there were no partial sum
            return self._of_arms(receipt, spend.grid, receipt.open_total(total))

    def _of_arms(self, receipt: Receipt, grid: Grid, total: NDArray[Any]) -> Released[Array]:
        sums = total.reshape(self.arms, -1)
        if isinstance(self.mechanism, ReportNoisyMax):
            picks = self.mechanism.picked(receipt, sums)
            return cast(Released[Array], release_picks(receipt, picks))
        noisy = grid.values(sums + receipt.draw_integers(sums.shape))
        return receipt.release(self.domain.decode(noisy.reshape(-1)))


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
