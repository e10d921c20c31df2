"""Report-noisy-max after every row of a stream: one token, one pick per row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import Self, final

import numpy as np

from privlearn._exclusive import Exclusive
from privlearn._validate import count, positive
from privlearn.adjacency import Adjacency
from privlearn.budgets import B, Currency
from privlearn.domains import Array, Ball
from privlearn.errors import AdjacencyError, HorizonError, UsersError
from privlearn.exact import round_up
from privlearn.losses import BoundedRangeLoss, Loss, ZCDPLoss
from privlearn.mechanisms.noisy_max import Picks, ReportNoisyMax, check_adjacency
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.tokens import Receipt, Released, Spend, Token


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
    scale: float
    horizon: int
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        positive(scale=self.scale)
        count(horizon=self.horizon)
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise AdjacencyError("a stream has no add-remove price: every later row would shift")
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
        check_adjacency(self.adjacency, token)
        if len(token.users) > self.horizon:
            raise HorizonError(f"users = {token.users!r} exceed horizon = {self.horizon}")
        return NoisyMaxPicks(self, token)


@final
class NoisyMaxPicks:
    """An open stream; close it (or leave its ``with`` block) to retire the token."""

    __slots__ = ("__total", "_lock", "_mechanism", "_next", "_receipt", "_taken")

    def __init__(self, mechanism: NoisyMaxStream, token: Token[B]) -> None:
        self._mechanism = mechanism
        self._receipt: Receipt = token.spend(mechanism.spend())
        self._next, self._taken = token.users.start, 0
        self.__total = np.zeros(mechanism.vertices.dim)
        self._lock = Exclusive("a stream")

    def append(self, rows: Rows[Array]) -> Released[Picks]:
        """Adds the next rows and releases one pick after each of them.

        Returns:
            Indices of points, int64, shape (n,).

        Raises:
            UsersError: not the next users of the stream.
        """
        with self._lock, self._receipt.round():
            if rows.users.start != self._next:
                raise UsersError(
                    f"the stream is at user {self._next}, the rows at {rows.users.start}"
                )
            vertices, scale = self._mechanism.vertices, self._mechanism.scale
            picks = np.empty(len(rows), dtype=np.int64)
            for place, value in enumerate(self._receipt.open(rows)):
                self._taken += 1
                self._next += 1
                self.__total += value
                growth = self._mechanism.scale_at(self._taken) / scale
                noise = growth * self._receipt.draw((vertices.count,))
                picks[place] = np.argmax(vertices.scores(self.__total) + noise)
            released: Released[Picks] = self._receipt.publish(picks)  # type: ignore[assignment, arg-type]
            return released

    def close(self) -> None:
        """Retires the token; nothing more can be appended."""
        with self._lock:
            self._receipt.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._receipt.closed and error is None:
            self.close()
        else:
            self._receipt.abandon(error)

    def __repr__(self) -> str:
        return f"NoisyMaxPicks(next user {self._next}, sealed)"
