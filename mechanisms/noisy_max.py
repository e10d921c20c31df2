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
    One pick is dominated by Laplace noise of ε = η, `LaplaceLoss` (η): ``docs/proofs.md#choices``
    has the proof.  ρ = η + e^{−η} − 1 <= η²/2: where picks are composed Gumbel noise is four times
    cheaper.  Several picks are made one after the other with fresh noise, since one draw for all
    is not k picks here: k losses, composed adaptively.

Scores and noise are exact, so that these are the prices of what runs.  G is a sum of integers, rows
in steps of a public grid; points are the doubles that they are; noisy scores are compared as real
numbers (`NoisyScores`), and no tie is left to an index.  Integers lie in the ball, so that the
spread is no larger than that of real rows.

Claims of Han et al. 2022 for this step, and what is wrong with them: ``docs/errata/pofw.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.partial_sums import partial_sum
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError
from privlearn.losses import BoundedRangeLoss, LaplaceLoss, Loss
from privlearn.losses.budgets import B, Currency, check_currency
from privlearn.mechanisms.exact_choices import NoisyScores, Picks
from privlearn.mechanisms.receipt_stream import check_adjacency
from privlearn.mechanisms.vertices import Vertices, check_vertices
from privlearn.noise import ExponentialNoise, GumbelNoise, LaplaceNoise
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array, Ball, Norm, exponent_of
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up, round_up
from privlearn.values.grid import Grid, sum_of_rows
from privlearn.values.validate import assign, count, positive

ChoiceNoise = Literal["gumbel", "laplace", "exponential"]
_NOISES: dict[ChoiceNoise, type[GumbelNoise] | type[LaplaceNoise] | type[ExponentialNoise]] = {
    "gumbel": GumbelNoise,
    "laplace": LaplaceNoise,
    "exponential": ExponentialNoise,
}
_AT_ONCE = 2**18  # Scores that are computed at a time


def choice_loss(family: ChoiceNoise, eta: Fraction, top: int, adjacency: Adjacency) -> Loss:
    """The loss of ``top`` picks at η = spread/scale; proofs in the module's docstring.

    Raises:
        ValueError: an unknown family, or η outside [1e-100, 700].
    """
    if family not in _NOISES:
        raise ValueError(f"noise = {family!r}: must be 'gumbel', 'laplace' or 'exponential'")
    kind = BoundedRangeLoss if family == "gumbel" else LaplaceLoss
    return kind(eta, adjacency=adjacency) * count(top=top)


@final
@dataclass(frozen=True, slots=True)
class ReportNoisyMax:
    """The points with the largest ⟨Σ rows, v⟩ + noise, by index; best first.

    Only indices leave: no score, no noise.  For a step that descends, feed −∇.  Prices are proved
    in the module's docstring.  With Gumbel noise it is the exponential mechanism itself: rounding
    changes no pick.  Rows are cut to a public `grid`, by less than 2^−29 scales of a score each.

    Args:
        vertices: what is chosen from.
        clip: rows are scaled into the ball of this radius (unit of a gradient).
        scale: of the noise, unit of the scores (gradient times point).
        top: number of picks, below the number of points.
        noise: "gumbel" unless another is to be compared with.
        norm: of the ball; the default ℓ∞ goes with the ℓ1 diameter of the points.
        adjacency: must be the accountant's; add-remove is as zero-out, the null row being 0.

    Raises:
        ValueError: a number is out of range, a spread of more than 700 scales, or points that are
            so long for their distances that no grid has room for rows.
    """

    vertices: Vertices
    clip: float
    scale: float
    top: int = 1
    noise: ChoiceNoise = "gumbel"
    norm: Norm = "linf"
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_vertices(self.vertices)
        positive(scale=self.scale)
        if count(top=self.top) >= self.vertices.count:
            raise ValueError(
                f"top = {self.top!r}: must be below the number of points, {self.vertices.count}"
            )
        if not isinstance(self.adjacency, Adjacency):
            raise TypeError(f"adjacency = {self.adjacency!r}: must be an Adjacency")
        assign(self, _spend=self._stated())

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
            TypeError: ``vertices`` is no set of points.
            CurrencyError: a choice has no price in this currency.
            BudgetError: a budget of zero.
        """
        check_vertices(vertices)
        check_currency(budget)
        if budget.is_zero:
            raise BudgetError(f"{budget}: a noisy choice needs a budget > 0")
        spread = _spread(Ball(clip, vertices.dim, norm), vertices, adjacency)
        eta = _largest_eta(lambda x: budget.price(choice_loss(noise, x, top, adjacency)), budget)
        scale = float(spread / eta)
        while round_up(spread / Fraction(scale)) > eta:
            scale *= 1 + 1e-12
        return cls(vertices, clip, scale, top, noise, norm, adjacency)

    @property
    def domain(self) -> Ball:
        return Ball(self.clip, self.vertices.dim, self.norm)

    @property
    def spread(self) -> float:
        """The largest change of a difference of two scores, unit of the scores."""
        return float_up(_spread(self.domain, self.vertices, self.adjacency))

    @property
    def unit(self) -> float:
        """A power of two near the length of the points: scores over it are in the unit of rows."""
        return unit_of(self.vertices)

    @property
    def eta(self) -> Fraction:
        """spread/scale, rounded up: the range (Gumbel) or the ε (else) of one pick."""
        return self.eta_of(self.adjacency)

    @property
    def grid(self) -> Grid:
        """Where rows are clipped; see `choice_grid`."""
        return cast(Grid, self._spend.grid)

    def eta_of(self, adjacency: Adjacency, times: int = 1) -> Fraction:
        """``times`` the spread under a neighbour relation, over the scale, rounded up."""
        return round_up(
            times * _spread(self.domain, self.vertices, adjacency) / Fraction(self.scale)
        )

    def loss(self) -> Loss:
        return self._spend.loss(self.adjacency)

    def spend(self) -> Spend:
        return self._spend

    def _stated(self) -> Spend:
        loss = choice_loss(self.noise, self.eta, self.top, self.adjacency)
        return Spend(
            "report-noisy-max",
            self.domain,
            _NOISES[self.noise](self.scale / self.unit),
            own_loss=loss,
            parameters=self.parameters(),
            grid=choice_grid(self.domain, self.vertices, self.scale),
        )

    def parameters(self) -> dict[str, Any]:
        """What the ledger says beside domain and noise: spread and scale are those over `unit`."""
        return {
            "vertices": self.vertices.to_dict(),
            "unit": self.unit,
            "top": self.top,
            "spread": self.spread / self.unit,
        }

    def release(self, rows: Rows[Array], token: Token[B]) -> Released[Picks]:
        """Releases the picks over the sum of ``rows``; null rows count as 0.

        Returns:
            Indices of points, int64, shape (top,); `Vertices.points` has the points themselves.

        Raises:
            AdjacencyError: the token is for another neighbour relation.  TokenError, UsersError,
            ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            return self._picks(receipt, sum_of_rows(receipt.open_integers(rows)))

    def partial(self, rows: Rows[Array]) -> PartialSum:
        """The sealed sum over ``rows``, to be merged with those of other rows; nothing leaves.

        Raises:
            ValueError, TypeError: as `NoisySum.partial`.
        """
        return partial_sum(self.spend(), rows)

    def release_partial(self, total: PartialSum, token: Token[B]) -> Released[Picks]:
        """Releases what `release` would on all rows that ``total`` is the sum of.

        Raises:
            ValueError: another mechanism made it.  Else as `release`.
        """
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check_total(total, spend)
        with token.spend(spend) as receipt:
            return self._picks(receipt, receipt.open_total(total))

    def _picks(self, receipt: Receipt, total: NDArray[Any]) -> Released[Picks]:
        return release_picks(receipt, self.picked(receipt, total[None])[0])

    def picked(self, receipt: Receipt, totals: NDArray[Any]) -> Picks:
        """Picks by the noise of ``receipt``, (n, top), for sums in steps, (n, dim)."""
        units = np.full(len(totals), self.scale / self.grid.step)

        def drawn() -> NoisyScores:
            noise = receipt.draw_variates(len(totals) * self.vertices.count)
            return NoisyScores(self.vertices, totals, units, noise)

        if self.noise == "gumbel":
            return drawn().largest(self.top)
        picks = np.empty((len(totals), 0), dtype=np.int64)
        for _ in range(self.top):
            picks = np.concatenate([picks, drawn().largest(1, taken=picks)], axis=1)
        return picks


def largest_scores(
    receipt: Receipt, vertices: Vertices, totals: NDArray[Any], units: Array
) -> Picks:
    """The point with the largest noisy score for each of many sums, shape (n,).

    Args:
        receipt: draws the noise.
        vertices: the points.
        totals: in steps of the grid, int64 or Python's integers, shape (n, dim).
        units: scales of the noise in steps, shape (n,).
    """
    found = [np.empty(0, dtype=np.int64)]
    size = max(_AT_ONCE // vertices.count, 1)
    for start in range(0, len(totals), size):
        part = slice(start, start + size)
        noise = receipt.draw_variates(len(totals[part]) * vertices.count)
        found.append(NoisyScores(vertices, totals[part], units[part], noise).largest(1)[:, 0])
    return np.concatenate(found)


def choice_grid(domain: Ball, vertices: Vertices, scale: float, rows: float | Fraction = 1) -> Grid:
    """The finest grid for rows whose scores get noise of this scale.

    Its scale is that of the noise over `unit_of` the points: a row that is cut to the grid then
    moves scores by less than 2^(1−bits) scales of the noise.

    Args:
        domain: of the rows.
        vertices: of the scores.
        scale: of the noise, unit of the scores.
        rows: see `Grid.fitting`.

    Raises:
        ValueError: no grid has room for rows; it names clip, scale and length of the points.
    """
    try:
        return _fitting(scale / unit_of(vertices), domain.radius, rows)
    except ValueError as refused:
        raise ValueError(
            f"clip = {domain.radius!r}, scale = {scale!r}, points of length {vertices.longest!r}: "
            f"no grid has room for their scores ({refused})"
        ) from None


_fitting = lru_cache(maxsize=256)(Grid.fitting)


def unit_of(vertices: Vertices) -> float:
    """The largest power of two that is not above `Vertices.longest`."""
    return math.ldexp(1.0, math.frexp(vertices.longest)[1] - 1)


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


def release_picks(receipt: Receipt, picks: Picks) -> Released[Picks]:
    """Lets picks leave as the only value of their mechanism."""
    return cast(Released[Picks], receipt.release(cast(Array, picks)))
