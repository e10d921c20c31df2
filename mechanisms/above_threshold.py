r"""The first of several sums that is above a threshold: the sparse vector technique, once.

Query i sums numbers in [0, 1], one of each person.  The answer is the first i with
q_i + b·E_i >= T + b₀·E₀, the E independent standard exponentials, fresh for every query and for the
threshold, or none.  With F and S the distribution and survival functions of b·E, the density p of
b₀·E₀ and q′ after one record changed,

    P(k) = ∫ p(z) ∏_{i<k} F(T + z − q_i) · S(T + z − q_k) dz.

Replaced record, |q_i − q′_i| <= 1: put z + 1 for z.  p(z) <= e^{1/b₀} p(z + 1);
F(T + z − q_i) <= F(T + z + 1 − q′_i); and S(T + z − q_k) <= e^{2/b} S(T + z + 2 − q_k)
<= e^{2/b} S(T + z + 1 − q′_k).  So ε = 1/b₀ + 2/b, also for no answer.
Removed record, q − 1 <= q′ <= q: P(k) <= e^{1/b} P′(k) without a shift, and with one
P′(k) <= e^{1/b₀ + 1/b} P(k): ε = 1/b₀ + 1/b.

The step for S needs a survival function that falls no faster than e^{−x/b}, and that for p a
density on a half-line: exponential noise has both, as Laplace noise has, at half its variance.
For a given ε the variance b₀² + b² is least at b = c^{1/3}·b₀, c = 2 or 1.  That noise is fresh for
each query is in the product over i; without noise on queries, or with one draw for all, there is
none and the mechanism is not private (Lyu, Su & Li 2017).

Comparisons are of real numbers: sums are integers in steps of a grid, and variates are refined
until the sign is certain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.partial_sums import partial_sum
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError, CurrencyError, NoiseSamplerError
from privlearn.losses import Loss, PureLoss
from privlearn.losses.budgets import B, Currency, check_currency
from privlearn.mechanisms.exact_choices import Picks, Refinable
from privlearn.mechanisms.noisy_max import release_picks
from privlearn.mechanisms.receipt_stream import check_adjacency
from privlearn.noise import ExponentialNoise
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array, Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.grid import Grid, sum_of_rows
from privlearn.values.validate import Count, Finite, Positive, assign, check_fields

_FIRST_BITS, _MOST_BITS = 40, 2**9


@final
@dataclass(frozen=True, slots=True)
class AboveThreshold:
    """The first query whose noisy sum is above a noisy threshold; `queries` if none is.

    Prices are proved in the module's docstring.

    Args:
        queries: how many; rows are vectors of so many numbers, clipped to [0, 1].
        threshold: of the sums.  Noise is above 0, so what is compared is shifted by its mean.
        scale: of the noise on each sum.
        threshold_scale: of the noise on the threshold.
        adjacency: must be the accountant's.

    Raises:
        ValueError: a number is out of range.
    """

    queries: Count
    threshold: Finite
    scale: Positive
    threshold_scale: Positive
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        loss = _loss(Fraction(self.scale), Fraction(self.threshold_scale), self.adjacency)
        assign(
            self,
            _spend=Spend(
                "above-threshold",
                self.domain,
                ExponentialNoise(self.scale),
                own_loss=loss,
                parameters={
                    "threshold": self.threshold,
                    "threshold_scale": self.threshold_scale,
                },
                grid=Grid.fitting(self.scale, 1.0),
            ),
        )

    @classmethod
    def calibrated(
        cls,
        queries: int,
        threshold: float,
        budget: Currency,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> Self:
        """The least noise that ``budget`` allows.

        Raises:
            CurrencyError: an ε has no price in this currency.
            BudgetError: a budget of zero.
        """
        check_currency(budget)
        if budget.is_zero:
            raise BudgetError(f"{budget}: noise needs a budget > 0")
        low, high = Fraction(0), Fraction(1)
        while budget.covers(budget.price(PureLoss(high, adjacency=adjacency))) and high < 64:
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            price = budget.price(PureLoss(round_up(middle), adjacency=adjacency))
            low, high = (middle, high) if budget.covers(price) else (low, middle)
        if not low:
            raise CurrencyError(f"{budget}: too small for any choice")
        moved = _moved(adjacency)
        first = (1 + moved ** (2 / 3)) / float(low) * (1 + 1e-11)
        return cls(queries, threshold, float(moved ** (1 / 3) * first), first, adjacency)

    @property
    def domain(self) -> Box:
        return Box(0.0, 1.0, self.queries)

    @property
    def grid(self) -> Grid:
        """Where rows are clipped."""
        grid = self._spend.grid
        assert grid is not None
        return grid

    def loss(self) -> Loss:
        return self._spend.loss(self.adjacency)

    def spend(self) -> Spend:
        return self._spend

    def release(self, rows: Rows[Array], token: Token[B]) -> Released[Picks]:
        """Releases the index of the first query above, int64, shape (1,).

        Raises:
            AdjacencyError: the token is for another neighbour relation.  TokenError, UsersError,
            ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            return self._first(receipt, sum_of_rows(receipt.open_integers(rows)))

    def partial(self, rows: Rows[Array]) -> PartialSum:
        """The sealed sums over ``rows``, as `NoisySum.partial`."""
        return partial_sum(self.spend(), rows)

    def release_partial(self, total: PartialSum, token: Token[B]) -> Released[Picks]:
        """Releases what `release` would on all rows that ``total`` is the sum of."""
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check_total(total, spend)
        with token.spend(spend) as receipt:
            return self._first(receipt, receipt.open_total(total))

    def _first(self, receipt: Receipt, totals: NDArray[Any]) -> Released[Picks]:
        noise = receipt.draw_variates(self.queries + 1)
        return release_picks(receipt, np.array([self.first_above(totals, noise)], dtype=np.int64))

    def first_above(self, totals: NDArray[Any], noise: Refinable) -> int:
        """For sums in steps; ``noise``: of the threshold, then of each query."""
        step, own, base = (Fraction(x) for x in (self.grid.step, self.scale, self.threshold_scale))
        edge = Fraction(self.threshold) + own - base  # the means of both noises
        above = [
            _is_above(int(total) * step - edge, own, base, noise, i + 1)
            for i, total in enumerate(totals.tolist())
        ]
        return above.index(True) if True in above else self.queries


def _is_above(lead: Fraction, own: Fraction, base: Fraction, noise: Refinable, i: int) -> bool:
    """Whether lead + own·E_i >= base·E_0."""
    bits = _FIRST_BITS
    while bits <= _MOST_BITS:
        found = lead * 2**bits + own * noise.refined(i, bits) - base * noise.refined(0, bits)
        if found >= base:  # a floor is below its number, by less than 1
            return True
        if found <= -own:
            return False
        bits *= 2
    raise NoiseSamplerError(f"noise of a threshold is equal to a sum's in {_MOST_BITS} bits")


def _moved(adjacency: Adjacency) -> int:
    return 2 if adjacency is Adjacency.REPLACE_ONE else 1


def _loss(scale: Fraction, threshold_scale: Fraction, adjacency: Adjacency) -> Loss:
    epsilon = 1 / threshold_scale + _moved(adjacency) / scale
    return PureLoss(round_up(epsilon), adjacency=adjacency)
