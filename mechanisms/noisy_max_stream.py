"""Report-noisy-max after every row of a stream: one token, one pick per row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import cast, final

import numpy as np

from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import HorizonError
from privlearn.losses import BoundedRangeLoss, Loss, VisitsLoss, ZCDPLoss
from privlearn.losses.budgets import B, Currency, check_currency
from privlearn.mechanisms.exact_choices import Picks
from privlearn.mechanisms.least_noise import least_that_fits
from privlearn.mechanisms.noisy_max import ReportNoisyMax, choice_grid, largest_scores
from privlearn.mechanisms.prefix_sums import stated_rule
from privlearn.mechanisms.receipt_stream import ReceiptStream, StreamAdjacency
from privlearn.mechanisms.stream_visits import StreamVisits, visits_in_slots
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.grid import Grid
from privlearn.values.participation import Participation
from privlearn.values.validate import Count, Positive, assign, check_fields, count

_ROOT = Fraction(92682, 65536)  # √2 and 1.1·10⁻⁶ of it more
_MOST_VISITS = 2**14


@lru_cache(maxsize=64)
def growth(k: int) -> Fraction:
    """By how much noise has grown when 2^k rows are there: 2^{k/2}, or a millionth of it more."""
    return Fraction(2 ** (k // 2)) * (_ROOT if k % 2 else 1)


@final
@dataclass(frozen=True, slots=True)
class NoisyMaxStream:
    """The point with the largest ⟨running sum, v⟩ + Gumbel noise, after every row.

    Han et al. 2022, Algorithm 2, with Gumbel noise: the noise on sums grows like √t, here by about
    √2 at t = 2, 4, 8, …: it is scale·`growth`(k) for 2^k <= t < 2^{k+1}, a rational number that is
    2^{k/2}, or 10⁻⁶ of it more.  One user changes one row and with it every later sum, so the
    stream is a sequence of exponential mechanisms of bounded range η_k = spread/(scale·growth(k)),
    at most 2^k of each, composed adaptively: ρ is about spread²/(8·scale²) times log₂ of the
    horizon.  The price is stated in zCDP, which adds up also where other mechanisms run in between.
    The first user pays for all, and is the worst.  Picks are exact, as those of `ReportNoisyMax`.

    With a rule of ``participation``, m visits so far move a pick as m users do, by a bounded range
    of m·η_k; visits that come as early as the rule lets them are the worst at every pick.

    Args:
        vertices: what is chosen from.
        clip: rows are scaled into the ℓ∞ ball of this radius.
        scale: of the noise at t = 1, unit of the scores.
        horizon: the most rows.
        adjacency: replace-one or zero-out.
        participation: how often one person may come back; the price is then that of a person.

    Raises:
        ValueError: a number is out of range, a spread of more than 700 scales, or sums of
            ``horizon`` rows have no room on a grid.
    """

    vertices: Vertices
    clip: float
    scale: Positive
    horizon: Count
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    participation: Participation | None = None
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        assign(self, _spend=self._stated())

    @classmethod
    def calibrated(
        cls,
        vertices: Vertices,
        clip: float,
        budget: Currency,
        *,
        horizon: int,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        participation: Participation | None = None,
    ) -> NoisyMaxStream:
        """The least noise (to a relative 1e-6) that ``budget`` allows for the whole stream.

        Raises:
            CurrencyError: zCDP has no price in this currency.
            ValueError: a budget of zero.
        """
        check_currency(budget)
        spread = ReportNoisyMax(vertices, clip, 1e9 * clip, adjacency=adjacency).spread
        if budget.is_zero:
            raise ValueError(f"budget = {budget}: noise needs a budget > 0")

        def fits(logarithm: float) -> bool:
            scale = spread * math.exp(logarithm)
            loss = _loss(spread, scale, horizon, adjacency, participation)
            return budget.covers(budget.price(loss))

        # a spread of at most 150 scales
        scale = spread * math.exp(least_that_fits(-5.0, 0.0, fits, 1e-6))
        return cls(vertices, clip, scale, horizon, adjacency, participation)

    def scale_at(self, t: int) -> float:
        """Scale of the noise on the scores after ``t`` >= 1 rows."""
        return float(self.scale * growth(count(t=t).bit_length() - 1))

    @property
    def grid(self) -> Grid:
        """Where rows are clipped, with room for the sum of ``horizon`` of them."""
        return cast(Grid, self._spend.grid)

    def loss(self) -> Loss:
        return self._spend.loss(self.adjacency)

    def spend(self) -> Spend:
        return self._spend

    def _stated(self) -> Spend:
        first = ReportNoisyMax(self.vertices, self.clip, self.scale, adjacency=self.adjacency)
        loss = _loss(first.spread, self.scale, self.horizon, self.adjacency, self.participation)
        return Spend(
            "noisy-max-stream",
            first.domain,
            GumbelNoise(self.scale / first.unit),
            own_loss=loss,
            parameters={
                **first.parameters(),
                "horizon": self.horizon,
                "growth": [str(growth(k)) for k in range(self.horizon.bit_length())],
                **stated_rule(self.participation),
            },
            interactive=True,
            grid=choice_grid(first.domain, self.vertices, self.scale, self.horizon),
        )

    def for_last(self, users: range) -> NoisyMaxStream:
        """The mechanism for the last ``users`` of a stream that ended early: the same.

        Its sums and its noise begin anew, with the first of them.

        Raises:
            HorizonError: more users than the horizon.
        """
        if len(users) > self.horizon:
            raise HorizonError(f"users = {users!r} exceed horizon = {self.horizon}")
        return self

    def open(self, token: Token[B]) -> NoisyMaxPicks:
        """Spends ``token`` for the whole stream.

        Raises:
            HorizonError: the token's users outnumber the horizon.
            AdjacencyError: the token is for another neighbour relation.
            TokenError: see `Token.spend`.
        """
        return NoisyMaxPicks(self.for_last(token.users), token)


def _loss(
    spread: float, scale: float, horizon: int, adjacency: Adjacency, rule: Participation | None
) -> Loss:
    visits = StreamVisits(1, 1) if rule is None else visits_in_slots(rule, horizon)
    if visits.most > _MOST_VISITS:
        raise ValueError(
            f"participation = {rule!r}: {visits.most} visits fit into horizon = {horizon}; the "
            f"price is a sum over visits, for at most {_MOST_VISITS}"
        )
    total = Fraction(0)
    begins = {1 + i * visits.apart for i in range(visits.most)}
    starts = sorted(begins | {2**k for k in range(horizon.bit_length())})
    there = 0
    for start, stop in pairwise([*starts, horizon + 1]):
        there += start in begins
        noise = Fraction(scale) * growth(start.bit_length() - 1)
        eta = round_up(there * Fraction(spread) / noise)
        total += (stop - start) * BoundedRangeLoss(eta, adjacency=adjacency).zcdp()
    loss = ZCDPLoss(round_up(total), adjacency=adjacency)
    return loss if rule is None else VisitsLoss(loss, rule.most, rule.apart)


@final
class NoisyMaxPicks(ReceiptStream[Array]):
    """An open stream; close it (or leave its ``with`` block) to retire the token."""

    __slots__ = ("__total", "_mechanism", "_seen", "_unit")

    def __init__(self, mechanism: NoisyMaxStream, token: Token[B]) -> None:
        super().__init__(mechanism.spend(), token, mechanism.adjacency)
        self._mechanism, self._seen = mechanism, 0
        self._unit = mechanism.scale / mechanism.grid.step
        self.__total = np.zeros(mechanism.vertices.dim, dtype=np.int64)

    def append(self, rows: Rows[Array]) -> Released[Picks]:
        """Adds the next rows and releases one pick after each of them.

        Returns:
            Indices of points, int64, shape (n,).

        Raises:
            UsersError: not the next users of the stream.
        """
        with self._lock, self._receipt.round():
            self._check_in_step()
            totals = self._next_rows(rows, self._receipt.open_integers).cumsum(axis=0)
            totals += self.__total
            self.__total = totals[-1] if len(totals) else self.__total
            units = self._units(len(totals))
            picks = largest_scores(self._receipt, self._mechanism.vertices, totals, units)
            released: Released[Picks] = self._receipt.publish(picks)  # type: ignore[assignment, arg-type]
            self._in_step = self._next
            return released

    def _units(self, n: int) -> Array:
        first, self._seen = self._seen + 1, self._seen + n
        logs = [t.bit_length() - 1 for t in range(first, first + n)]
        return self._unit * np.array([float(growth(k)) for k in logs])
