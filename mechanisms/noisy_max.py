r"""Private choices: the points of a set whose noisy scores are largest.

The score of a point v is ⟨G, v⟩ with G the sum of the clipped rows.  When one row changes, the
score of v moves by ⟨Δ, v⟩, and what counts is the *spread* s, the largest
⟨Δ, v⟩ − ⟨Δ, v′⟩ = ⟨Δ, v − v′⟩ over points and changes: a number added to all scores changes no
choice.  Rows lie in a ball of ℓp, so s = (sensitivity in ℓp)·(diameter of the points in ℓq) by
Hölder's inequality, 1/p + 1/q = 1.  With η = s/scale, one pick costs the following.

Gumbel noise
    The exponential mechanism: P(v) ∝ e^{⟨G, v⟩/scale} (Gumbel's trick).  So log P(v)/P′(v) is
    ⟨Δ, v⟩/scale and a constant: it lies in an interval of length η, `BoundedRangeLoss` (η),
    so that ρ = η²/8 or a little less.  The k largest noisy scores, in order, are k picks one after
    the other without replacement: of independent exponential clocks the rates of which are
    e^{⟨G, v⟩/scale}, the next to ring is chosen ∝ rate among those left, whatever happened before
    (no memory), and a Gumbel number is −log of a clock.  Each pick is an exponential mechanism on
    the points left, chosen after the picks before: k losses of range η, composed adaptively.

Laplace and exponential noise
    v wins against the noise of all others if its own noise exceeds a threshold
    t = max_w (⟨G, w⟩ + z_w) − ⟨G, v⟩, which moves by at most s.  For either law
    P(z > t) <= e^{s/scale}·P(z > t + s).  So log P(v)/P′(v) lies in [−η, η]: `PureLoss` (η),
    ρ = η·tanh(η/2) <= η²/2.  The sum of both ends is the range, and for exponential noise
    (permute-and-flip) on two points it is 2·log(2e^{η/2} − 1), almost 2η: where picks are composed
    Gumbel noise is four times cheaper.  Several picks are made one after the other with fresh
    noise, since one draw for all is not k picks here: k losses, composed adaptively.

Claims of Han et al. 2022 for this step, and what is wrong with them: ``docs/errata/pofw.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn._validate import count, positive
from privlearn.adjacency import Adjacency
from privlearn.budgets import B, Currency
from privlearn.domains import Array, Ball, Norm, exponent_of
from privlearn.errors import BudgetError
from privlearn.exact import float_up, round_up
from privlearn.losses import BoundedRangeLoss, Loss, PureLoss
from privlearn.mechanisms.receipt_stream import check_adjacency
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import ExponentialNoise, GumbelNoise, LaplaceNoise
from privlearn.rows import Rows
from privlearn.tokens import Receipt, Released, Spend, Token

ChoiceNoise = Literal["gumbel", "laplace", "exponential"]
Picks = NDArray[np.int64]
"""Indices of points, the first pick first."""

_NOISES: dict[ChoiceNoise, type[GumbelNoise] | type[LaplaceNoise] | type[ExponentialNoise]] = {
    "gumbel": GumbelNoise,
    "laplace": LaplaceNoise,
    "exponential": ExponentialNoise,
}


def choice_loss(family: ChoiceNoise, eta: Fraction, top: int, adjacency: Adjacency) -> Loss:
    """The loss of ``top`` picks at η = spread/scale; proofs in the module's docstring.

    Raises:
        ValueError: an unknown family, or η outside [1e-100, 700].
    """
    if family not in _NOISES:
        raise ValueError(f"noise = {family!r}: must be 'gumbel', 'laplace' or 'exponential'")
    kind = BoundedRangeLoss if family == "gumbel" else PureLoss
    return kind(eta, adjacency=adjacency) * count(top=top)


@final
@dataclass(frozen=True, slots=True)
class ReportNoisyMax:
    """The points with the largest ⟨Σ rows, v⟩ + noise, by index; best first.

    Only indices leave: no score, no noise.  For a step that descends, feed −∇.  Prices are proved
    in the module's docstring.  Noise is drawn in double precision, which certificates name: a
    rounded arg max has the stated law up to the rounding of scores and noise, and is no exact
    exponential mechanism.  Ties have probability about 2^−50 and go to the lowest index.

    Args:
        vertices: what is chosen from.
        clip: rows are scaled into the ball of this radius (unit of a gradient).
        scale: of the noise, unit of the scores (gradient times point).
        top: number of picks, below the number of points.
        noise: "gumbel" unless another is to be compared with.
        norm: of the ball; the default ℓ∞ goes with the ℓ1 diameter of the points.
        adjacency: must be the accountant's; add-remove is as zero-out, the null row being 0.

    Raises:
        ValueError: a number is out of range, or a spread of more than 700 scales.
    """

    vertices: Vertices
    clip: float
    scale: float
    top: int = 1
    noise: ChoiceNoise = "gumbel"
    norm: Norm = "linf"
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        positive(scale=self.scale)
        if count(top=self.top) >= self.vertices.count:
            raise ValueError(
                f"top = {self.top!r}: must be below the number of points, {self.vertices.count}"
            )
        if not isinstance(self.adjacency, Adjacency):
            raise TypeError(f"adjacency = {self.adjacency!r}: must be an Adjacency")
        self.loss()

    @classmethod
    def calibrated(
        cls,
        vertices: Vertices,
        clip: float,
        budget: Currency,
        *,
        top: int = 1,
        noise: ChoiceNoise = "gumbel",
        norm: Norm = "linf",
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> ReportNoisyMax:
        """The least noise (to a relative 1e-9) that ``budget`` allows for all picks together.

        Raises:
            CurrencyError: a choice has no price in this currency.  BudgetError: a budget of zero.
        """
        if not isinstance(budget, Currency) or budget.is_zero:
            raise BudgetError(f"{budget}: a noisy choice needs a budget > 0")
        spread = _spread(Ball(clip, vertices.dim, norm), vertices, adjacency)
        eta = _largest_eta(lambda x: budget.price(choice_loss(noise, x, top, adjacency)), budget)
        scale = float(spread / eta)
        while round_up(spread / Fraction(scale)) > eta:
            scale *= 1 + 1e-12
        return cls(vertices, clip, scale, top, noise, norm, adjacency)

    @property
    def domain(self) -> Ball:
        """Where rows are clipped."""
        return Ball(self.clip, self.vertices.dim, self.norm)

    @property
    def spread(self) -> float:
        """The largest change of a difference of two scores, unit of the scores."""
        return float_up(_spread(self.domain, self.vertices, self.adjacency))

    @property
    def eta(self) -> Fraction:
        """spread/scale, rounded up: the range (Gumbel) or the ε (else) of one pick."""
        return self.eta_of(self.adjacency)

    def eta_of(self, adjacency: Adjacency, times: int = 1) -> Fraction:
        """``times`` the spread under a neighbour relation, over the scale, rounded up."""
        return round_up(
            times * _spread(self.domain, self.vertices, adjacency) / Fraction(self.scale)
        )

    def loss(self) -> Loss:
        """The price of one release: ``top`` picks."""
        return choice_loss(self.noise, self.eta, self.top, self.adjacency)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return Spend(
            "report-noisy-max",
            self.domain,
            _NOISES[self.noise](self.scale),
            own_loss=self.loss(),
            parameters=self.parameters(),
        )

    def parameters(self) -> dict[str, Any]:
        """What the ledger says beside domain and noise."""
        return {"vertices": self.vertices.to_dict(), "top": self.top, "spread": self.spread}

    def release(self, rows: Rows[Array], token: Token[B]) -> Released[Picks]:
        """Releases the picks over the sum of ``rows``; null rows count as 0.

        Returns:
            Indices of points, int64, shape (top,); `Vertices.points` has the points themselves.

        Raises:
            AdjacencyError: the token is for another neighbour relation.  TokenError, UsersError,
            ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        check_adjacency(self.adjacency, token)
        token.check(rows)
        with token.spend(self.spend()) as receipt:
            scores = self.vertices.scores(receipt.open(rows).sum(axis=0))
            return release_picks(receipt, self.picked(receipt, scores))

    def picked(self, receipt: Receipt, scores: Array) -> Picks:
        """Picks by the noise of ``receipt``; scores of shape (..., count) to (..., top)."""
        if self.noise == "gumbel" or self.top == 1:
            return _largest(scores + receipt.draw(scores.shape), self.top)
        left, picks = scores.copy(), []
        for _ in range(self.top):
            picks.append(_largest(left + receipt.draw(left.shape), 1))
            np.put_along_axis(left, picks[-1], -np.inf, axis=-1)
        return np.concatenate(picks, axis=-1)


def _spread(domain: Ball, vertices: Vertices, adjacency: Adjacency) -> Fraction:
    """(sensitivity in the ball's own ℓp)·(diameter of the points in the dual norm)."""
    p = exponent_of(domain.norm)
    dual = math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1)
    reach = domain.sensitivity(adjacency, domain.norm)
    return Fraction(reach) * Fraction(vertices.diameter(dual))


def _largest_eta(price: Callable[[Fraction], Currency], budget: Currency) -> Fraction:
    """The largest η, to a relative 1e-10, whose price fits; prices grow with η."""

    def fits(eta: Fraction) -> bool:
        return budget.covers(price(eta))

    low = Fraction(1)
    while not fits(low):
        low /= 16
        if low < Fraction(1, 10**90):
            raise BudgetError(f"{budget}: no noise is enough for it")
    high = low
    while high < 700 and fits(min(high * 16, Fraction(700))):
        low = high = min(high * 16, Fraction(700))
    high = min(high * 16, Fraction(700))
    for _ in range(40):
        middle = round_up((low + high) / 2)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _largest(values: Array, top: int) -> Picks:
    """Indices of the ``top`` largest of the last axis, in order; of equal ones the lowest."""
    if top == 1:
        return np.asarray(values.argmax(axis=-1), dtype=np.int64)[..., None]
    flat = values.reshape(-1, values.shape[-1])
    found = np.empty((len(flat), top), dtype=np.int64)
    for row, picks in zip(flat, found, strict=True):
        least = np.partition(row, -top)[-top]
        enough = np.flatnonzero(row >= least)
        picks[:] = enough[np.argsort(-row[enough], kind="stable")[:top]]
    return found.reshape(*values.shape[:-1], top)


def release_picks(receipt: Receipt, picks: Picks) -> Released[Picks]:
    """Lets picks leave as the only value of their mechanism."""
    return cast(Released[Picks], receipt.release(cast(Array, picks)))
