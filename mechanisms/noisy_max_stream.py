"""Report-noisy-max after every row of a stream: one token, one pick per row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from privlearn._validate import Count, Positive, check_fields, count
from privlearn.adjacency import Adjacency
from privlearn.budgets import B, Currency
from privlearn.domains import Array, Ball
from privlearn.errors import HorizonError
from privlearn.exact import round_up
from privlearn.losses import BoundedRangeLoss, Loss, ZCDPLoss
from privlearn.mechanisms.noisy_max import Picks, ReportNoisyMax
from privlearn.mechanisms.receipt_stream import ReceiptStream, StreamAdjacency
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token


@final
@dataclass(frozen=True, slots=True)
class NoisyMaxStream:
    """The point with the largest ⟨running sum, v⟩ + Gumbel noise, after every row.

    Han et al. 2022, Algorithm 2, with Gumbel noise: the noise on sums grows like √t, here by √2 at
    t = 2, 4, 8, …: it is scale·2^{k/2} for 2^k <= t < 2^{k+1}.  One user changes one row and with
    it every later sum, so the stream is a sequence of exponential mechanisms of bounded range
    η_k = spread/(scale·2^{k/2}), at most 2^k of each, composed adaptively: ρ is about
    spread²/(8·scale²) times log₂ of the horizon.  The price is stated in zCDP, which adds up also
    where other mechanisms run in between.  The first user pays for all, and is the worst.

    Args:
        vertices: what is chosen from.
        clip: rows are scaled into the ℓ∞ ball of this radius.
        scale: of the noise at t = 1, unit of the scores.
        horizon: the most rows.
        adjacency: replace-one or zero-out.
    """

    vertices: Vertices
    clip: float
    scale: Positive
    horizon: Count
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        check_fields(self)
        self.loss()

    @classmethod
    def calibrated(
        cls,
        vertices: Vertices,
        clip: float,
        budget: Currency,
        *,
        horizon: int,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> NoisyMaxStream:
        """The least noise (to a relative 1e-6) that ``budget`` allows for the whole stream.

        Raises:
            CurrencyError: zCDP has no price in this currency.  ValueError: a budget of zero.
        """
        spread = ReportNoisyMax(vertices, clip, 1e9 * clip, adjacency=adjacency).spread
        if budget.is_zero:
            raise ValueError(f"budget = {budget}: noise needs a budget > 0")

        def fits(logarithm: float) -> bool:
            made = cls(vertices, clip, spread * math.exp(logarithm), horizon, adjacency)
            return budget.covers(budget.price(made.loss()))

        low, high = -5.0, 0.0  # a spread of at most 150 scales
        while not fits(high):
            low, high = high, high + 5.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return cls(vertices, clip, spread * math.exp(high), horizon, adjacency)

    @property
    def _first(self) -> ReportNoisyMax:
        return ReportNoisyMax(self.vertices, self.clip, self.scale, adjacency=self.adjacency)

    def scale_at(self, t: int) -> float:
        """Scale of the noise on the scores after ``t`` >= 1 rows."""
        return float(self.scale * math.sqrt(2.0 ** (count(t=t).bit_length() - 1)))

    def loss(self) -> Loss:
        """The zCDP price of the whole stream: the sum over the picks."""
        total = Fraction(0)
        for k in range(self.horizon.bit_length()):
            eta = round_up(Fraction(self._first.spread) / Fraction(self.scale_at(2**k)))
            single = BoundedRangeLoss(eta, adjacency=self.adjacency).zcdp()
            total += min(2**k, self.horizon - 2**k + 1) * single
        return ZCDPLoss(round_up(total), adjacency=self.adjacency)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return Spend(
            "noisy-max-stream",
            Ball(self.clip, self.vertices.dim, "linf"),
            GumbelNoise(self.scale),
            own_loss=self.loss(),
            parameters={**self._first.parameters(), "horizon": self.horizon},
            interactive=True,
        )

    def open(self, token: Token[B]) -> NoisyMaxPicks:
        """Spends ``token`` for the whole stream.

        Raises:
            HorizonError: the token's users outnumber the horizon.  AdjacencyError: the token is for
            another neighbour relation.  TokenError: see `Token.spend`.
        """
        if len(token.users) > self.horizon:
            raise HorizonError(f"users = {token.users!r} exceed horizon = {self.horizon}")
        return NoisyMaxPicks(self, token)


@final
class NoisyMaxPicks(ReceiptStream[Array]):
    """An open stream; close it (or leave its ``with`` block) to retire the token."""

    __slots__ = ("__total", "_mechanism", "_taken")

    def __init__(self, mechanism: NoisyMaxStream, token: Token[B]) -> None:
        super().__init__(mechanism.spend(), token, mechanism.adjacency)
        self._mechanism, self._taken = mechanism, 0
        self.__total = np.zeros(mechanism.vertices.dim)

    def append(self, rows: Rows[Array]) -> Released[Picks]:
        """Adds the next rows and releases one pick after each of them.

        Returns:
            Indices of points, int64, shape (n,).

        Raises:
            UsersError: not the next users of the stream.
        """
        with self._lock, self._receipt.round():
            vertices, scale = self._mechanism.vertices, self._mechanism.scale
            picks = np.empty(len(rows), dtype=np.int64)
            for place, value in enumerate(self._opened(rows)):
                self._taken += 1
                self.__total += value
                growth = self._mechanism.scale_at(self._taken) / scale
                noise = growth * self._receipt.draw((vertices.count,))
                picks[place] = np.argmax(vertices.scores(self.__total) + noise)
            released: Released[Picks] = self._receipt.publish(picks)  # type: ignore[assignment, arg-type]
            return released
