r"""Several quantiles at once: an exponential mechanism over cells of a public grid, halved again.

The range [−1, 1] has m equal cells.  With L the number of values before cell j, N of all, and c of
those in it, the score of j for the probability q is −max(0, L − qN, qN − L − c): how many ranks
the cell misses q by.  It is largest where the quantile lies, also if many values are equal.

Spread.  One more value in cell x adds 1 − q to L − qN beyond x, and −q before and at x; to
qN − L − c it adds q before x, and −(1 − q) at and beyond it.  So with p = max(q, 1 − q) no score
moves by more than p, and two scores by at most 2p against each other.  A value that is replaced
leaves N, and moves L and L + c by at most 1, all in one direction: the spread is 2.

Several.  The middle probability comes first.  Its cell divides the values, and the halves are
asked for what is left, at probabilities within the half (Kaplan, Schnapp & Stemmer 2022): k of
them take ⌈log₂(k + 1)⌉ rounds.  The parts of one round are disjoint, so a value that is replaced
moves one part by 2, or two parts by 2p and 2p′.  Given earlier rounds their picks are independent:
the round has bounded range R = max(2, 2p + 2p′), over the scale, and the Gaussian mass and ρ of the
worse case.  Groups are further parts, disjoint in the same way.  Values are moved by a public
fraction of 16 cells, which depends on their index alone, so that a cell divides also equal values.

Gaussian mass of a bounded range η: μ = 2Φ⁻¹(σ(η/2)), σ the logistic function.  Privacy losses in
[t − η, t] are post-processing of the two-point law on both ends, the trade-off function of which
has one corner; so μ is the largest Φ⁻¹(P) − Φ⁻¹(Q) over its corners, at which the odds of P are e^η
those of Q.  With x the middle of both log-odds that is g(x + η/2) − g(x − η/2), g = Φ⁻¹∘σ: odd, and
concave for x > 0, as logistic tails are heavier than normal ones (van Zwet 1964); largest at x = 0.

Scores are integers and noise is exact, so these are the prices of what runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError
from privlearn.losses import BoundedRangeLoss, GaussianLoss, LeastLoss, Loss, ZCDPLoss, compose
from privlearn.losses.budgets import B, Currency, GaussianDP, check_currency
from privlearn.mechanisms.exact_choices import NoisyScores, Picks
from privlearn.mechanisms.least_noise import least_that_fits
from privlearn.mechanisms.noisy_max import release_picks
from privlearn.mechanisms.receipt_stream import StreamAdjacency, check_adjacency
from privlearn.mechanisms.vertices import SimplexVertices
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box, Counted, OneOf
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up, round_up
from privlearn.values.validate import AtLeastTwo, Count, Positive, assign, check_fields

Counts = NDArray[np.int64]
_SPREAD_OVER = 16  # Cells that equal values are moved over, where values are divided
_FEW_CELLS = 256  # Where there are fewer, none is moved
_GOLDEN = (math.sqrt(5) - 1) / 2
_UNIT_BITS = 20  # The scale of the noise is about so large, in steps of a score
_MOST_DENOMINATOR = 1000


class Part(NamedTuple):
    """One pick: of which probability, within what values, between which other picks."""

    place: int
    """Among the probabilities."""
    within: Fraction
    """The probability within the values between two picks."""
    after: int
    """Place of the pick before; −1 for the beginning of the range."""
    before: int
    """Place of the pick behind; the number of probabilities for the end of the range."""


@lru_cache(maxsize=256)
def rounds_of(probabilities: tuple[Fraction, ...]) -> tuple[tuple[Part, ...], ...]:
    """Which picks are made in which round; a public function of the probabilities."""
    edges = (*probabilities, Fraction(1), Fraction(0))  # the last one is also at −1
    found: list[tuple[Part, ...]] = []
    open_parts = [(-1, len(probabilities))]
    while open_parts:
        made, following = [], []
        for after, before in open_parts:
            place = (after + before) // 2
            low, high = edges[after], edges[before]
            made.append(Part(place, (edges[place] - low) / (high - low), after, before))
            following += [(after, place), (place, before)]
        found.append(tuple(made))
        open_parts = [(a, b) for a, b in following if b - a > 1]
    return tuple(found)


def mass_of_range(eta: Fraction) -> Fraction:
    """An upper bound on the Gaussian mass μ² of bounded range η; see the module's docstring."""
    half = float_up(eta) / 2
    if half > 30:  # beyond what doubles tell from certainty: group privacy of η = 1, squared
        return Fraction(round_up(eta * eta))
    mu = 2 * NormalDist().inv_cdf(1 / (1 + math.exp(-half))) if half > 1e-6 else half * 1.2534
    return round_up(Fraction(mu) ** 2 * (1 + Fraction(1, 10**8)))


@final
@dataclass(frozen=True, slots=True)
class ReportQuantiles:
    """Quantiles of one number of each person, in [−1, 1], as cells of a public grid.

    Prices are proved in the module's docstring.  Of an empty group each cell is as likely.

    Args:
        probabilities: ascending, within (0, 1), with denominators up to 1000.
        scale: of the Gumbel noise, in ranks.
        cells: of the grid; answers are off by half a cell, 1/cells, besides the noise, and by up to
            16 cells where there are several probabilities and values that are not alike nearby.
        groups: of people, public; each has its own quantiles.
        adjacency: must be the accountant's; under add-remove the indices of others would shift.
        as_gaussian: whether the loss is stated as Gaussian mass, for an account in Gaussian DP.

    Raises:
        ValueError: a number is out of range.
        AdjacencyError: add-remove.
    """

    probabilities: tuple[Fraction, ...]
    scale: Positive
    cells: AtLeastTwo = 4096
    groups: Count = 1
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    as_gaussian: bool = False
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        asked = checked_probabilities(self.probabilities)
        assign(self, probabilities=asked)
        assign(
            self,
            _spend=Spend(
                "report-quantiles",
                self.domain,
                GumbelNoise(self.scale),
                own_loss=_loss(asked, self.scale, self.groups, self.adjacency, self.as_gaussian),
                parameters={
                    "probabilities": [str(q) for q in asked],
                    "cells": self.cells,
                    "groups": self.groups,
                },
                exact=True,
            ),
        )

    @classmethod
    def calibrated(
        cls,
        probabilities: Sequence[Fraction | float | str],
        budget: Currency,
        *,
        cells: int = 4096,
        groups: int = 1,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> Self:
        """The least noise (to a relative 1e-6) that ``budget`` allows.

        Raises:
            CurrencyError: a choice has no price in this currency.
            BudgetError: a budget of zero.
        """
        check_currency(budget)
        asked = checked_probabilities(probabilities)
        if budget.is_zero:
            raise BudgetError(f"{budget}: a noisy choice needs a budget > 0")

        gaussian = isinstance(budget, GaussianDP)

        def fits(logarithm: float) -> bool:
            loss = _loss(asked, math.exp(logarithm), groups, adjacency, gaussian)
            return budget.covers(budget.price(loss))

        scale = math.exp(least_that_fits(-4.0, 0.0, fits, 1e-6))
        return cls(asked, scale, cells, groups, adjacency, gaussian)

    @property
    def domain(self) -> Counted | OneOf[Array]:
        """A number in [−1, 1] that may be missing, or one and the group that it is of."""
        inner = Counted(Box(-1.0, 1.0, 1), 1.0)
        return inner if self.groups == 1 else OneOf(inner, self.groups)

    def loss(self) -> Loss:
        return self._spend.loss(self.adjacency)

    def spend(self) -> Spend:
        return self._spend

    def rank_error_std(self) -> float:
        """Of one pick among many values without ties, in ranks: about √2 scales."""
        return math.sqrt(2) * self.scale

    def values(self, picks: NDArray[np.int64]) -> Array:
        """The middles of cells, in [−1, 1]."""
        return np.asarray(-1 + (2 * np.asarray(picks) + 1) / self.cells)

    def release(self, rows: Rows[Any], token: Token[B]) -> Released[Picks]:
        """Releases the cells of the quantiles; missing values count nowhere.

        Returns:
            int64, shape (groups, number of probabilities), ascending in each group.

        Raises:
            AdjacencyError: the token is for another neighbour relation.  TokenError, UsersError,
            ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            counts = self._counts(receipt.open(rows), rows.users)
            return release_picks(receipt, np.array([self._picks(receipt, c) for c in counts]))

    def _counts(self, opened: Array, users: range) -> Counts:
        """How many values each group has before each cell, shape (groups, cells + 1)."""
        pairs = opened.reshape(len(opened), self.groups, 2)
        moved = np.zeros(len(opened))
        if len(self.probabilities) > 1:
            turn = np.arange(users.start, users.stop) * _GOLDEN % 1.0
            moved = (turn - 0.5) * 2 * min(_SPREAD_OVER, self.cells // _FEW_CELLS) / self.cells
        counts = np.zeros((self.groups, self.cells + 1), dtype=np.int64)
        for group in range(self.groups):
            there = pairs[:, group, 1] > 0
            places = (pairs[there, group, 0] + moved[there] + 1) * (self.cells / 2)
            cells = np.clip(places, 0, self.cells - 1).astype(np.int64)
            counts[group, 1:] = np.bincount(cells, minlength=self.cells).cumsum()
        return counts

    def _picks(self, receipt: Receipt, counts: Counts) -> list[int]:
        number = len(self.probabilities)
        ends = {-1: 0, number: self.cells}  # the first cell behind a pick
        found = {-1: 0, number: self.cells - 1}
        for parts in rounds_of(self.probabilities):
            for part in parts:
                low, high = ends[part.after], ends[part.before]
                first, last = found[part.after], found[part.before]
                held = np.clip(counts[first : last + 2], counts[low], counts[high]) - counts[low]
                pick = first + self._pick(receipt, held, part.within)
                found[part.place], ends[part.place] = pick, pick + 1
        return [found[place] for place in range(number)]

    def _pick(self, receipt: Receipt, held: Counts, q: Fraction) -> int:
        """The cell of q among the values that ``held`` counts: those before each cell, and all."""
        cells = len(held) - 1
        if cells == 1:
            return 0
        bits, unit = unit_in_steps(self.scale, q)
        scores = missed_ranks(held, q) * -(2**bits)
        noise = receipt.draw_variates(cells)
        vertices = SimplexVertices(cells)
        return int(NoisyScores(vertices, scores[None], np.array([unit]), noise).largest(1)[0, 0])


def missed_ranks(held: Counts, q: Fraction) -> Counts:
    """By how many ranks each cell misses q, times the denominator of q; the lowest is best."""
    target = q.numerator * held[-1]
    beyond, short = q.denominator * held[:-1] - target, target - q.denominator * held[1:]
    return np.asarray(np.maximum(np.maximum(beyond, short), 0))


def unit_in_steps(scale: float, q: Fraction) -> tuple[int, float]:
    """Binary places of scores, and the scale in steps of 2^−places/denominator, rounded up."""
    exact = Fraction(scale) * q.denominator
    bits = max(_UNIT_BITS - math.frexp(float(exact))[1], 0)
    return bits, float_up(exact * 2**bits)


def checked_probabilities(probabilities: Sequence[Any]) -> tuple[Fraction, ...]:
    """As fractions.

    Raises:
        ValueError: none, not ascending, outside (0, 1), or of a denominator above 1000.
    """
    try:
        given = [Fraction(q if isinstance(q, Fraction | int) else str(q)) for q in probabilities]
    except (TypeError, ValueError):
        given = []
    ascending = all(
        a < b for a, b in zip([Fraction(0), *given], [*given, Fraction(1)], strict=True)
    )
    if not given or not ascending or any(q.denominator > _MOST_DENOMINATOR for q in given):
        raise ValueError(
            f"probabilities = {probabilities!r}: must ascend within (0, 1), with at most "
            "three decimals, such as (0.25, 0.5, 0.75)"
        )
    return tuple(given)


@lru_cache(maxsize=1024)
def _loss(
    probabilities: tuple[Fraction, ...],
    scale: float,
    groups: int,
    adjacency: Adjacency,
    as_gaussian: bool,
) -> Loss:
    rounds = rounds_of(probabilities)
    return compose([(_round_loss(r, scale, groups, adjacency, as_gaussian), 1) for r in rounds])


def _round_loss(
    parts: tuple[Part, ...], scale: float, groups: int, adjacency: Adjacency, as_gaussian: bool
) -> Loss:
    """One value replaced in one part, or gone from one part and come to another."""
    one = sorted(2 * max(part.within, 1 - part.within) for part in parts)[::-1]
    cases = [one[:1]]
    if adjacency is Adjacency.REPLACE_ONE:
        cases = [[Fraction(2)], (one if groups == 1 else [one[0], *one])[:2]]
    etas = [[round_up(spread / Fraction(scale)) for spread in case] for case in cases]
    if as_gaussian:
        mass = max(sum(map(mass_of_range, case), Fraction(0)) for case in etas)
        return GaussianLoss(round_up(mass), adjacency=adjacency)
    rho = max(sum((BoundedRangeLoss(eta).zcdp() for eta in case), Fraction(0)) for case in etas)
    spread = max(sum(case, Fraction(0)) for case in etas)
    whole = BoundedRangeLoss(spread, adjacency=adjacency)
    if whole.zcdp() <= rho:
        return whole
    return LeastLoss((whole, ZCDPLoss(round_up(rho), adjacency=adjacency)))
