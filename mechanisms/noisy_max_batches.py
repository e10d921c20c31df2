r"""Report-noisy-max over public batches: one token, a pick at the end of every batch.

With x_b the sum of the clipped rows of batch b, the pick at the end of batch k is the point v with
the largest

    ⟨Σ_{b<=k} w_b·x_b, v⟩ + scale·g_k·Gumbel,

weights w_b and growth g_k public.  One row of batch b moves the difference of two scores of pick k
by at most w_b·spread, so pick k is for this row an exponential mechanism of bounded range

    η_kb = w_b·spread/(scale·g_k)      for k >= b, and 0 before,

and the picks are composed adaptively: ρ = max_b Σ_{k>=b} ρ(η_kb), with ρ(η) that of
`BoundedRangeLoss`, or η²/8, which is no less, and ε = max_b Σ_{k>=b} η_kb.  Weights that grow with
the batches, and with them the noise, let every row pay for few picks only: old rows fade, for all
of them were in many picks (docs/proofs.md, "Experts").

With a rule of participation a person has n rows at most.  Two bounds hold, and the lesser counts.
(a) ρ(η) is convex, so ρ(Σ_i η_kb_i) <= mean over i of ρ(n·η_kb_i): n visits anywhere cost no more
than n in the dearest batch.  (b) Of each pick by itself: the n rows with the largest weights so far
that the rule allows in these batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TypeVar, cast, final

import numpy as np

from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import UsersError
from privlearn.losses import BoundedRangeLoss, Loss, PureLoss, VisitsLoss, ZCDPLoss
from privlearn.losses.budgets import B, Currency, check_currency
from privlearn.losses.minimum import least
from privlearn.mechanisms.exact_choices import Picks
from privlearn.mechanisms.least_noise import least_that_fits
from privlearn.mechanisms.noisy_max import ReportNoisyMax, choice_grid, largest_scores
from privlearn.mechanisms.prefix_sums import stated_rule
from privlearn.mechanisms.receipt_stream import ReceiptStream, StreamAdjacency
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.grid import Grid, sum_of_rows
from privlearn.values.participation import Participation
from privlearn.values.validate import Positive, assign, check_fields, count

N = TypeVar("N", Fraction, float)

GROWTH_UNIT = 1024
"""`NoisyMaxBatches.growth` counts in so many parts of the scale, so that noise is exact."""
LARGEST_WEIGHT = 2**40
"""Of the whole numbers in `NoisyMaxBatches`."""
MOST_BATCHES = 128
"""The price is a sum over pairs of them."""
_SMALL = Fraction(1, 64)  # ρ(η) is η²/8 for less, which is 4·10⁻⁶ of it too much at most
_LARGEST_EPSILON = 700  # that a `PureLoss` takes


@final
@dataclass(frozen=True, slots=True)
class NoisyMaxBatches:
    """The point with the largest noisy score at the end of every public batch, by index.

    Prices are proved in the module's docstring.  Picks are exact, as those of `ReportNoisyMax`: of
    the sums of integers, weighted by integers.  Nothing leaves within a batch; one sum of each
    batch is kept, and no row.

    Args:
        vertices: what is chosen from.
        clip: rows are scaled into the ℓ∞ ball of this radius.
        scale: of the noise at growth 1, unit of a weighted score.
        sizes: users in each batch.
        weights: how many times the rows of a batch count, integers >= 1.
        growth: by how much the noise at the end of a batch is larger than ``scale``, in 1024ths:
            integers >= 1024.
        adjacency: replace-one or zero-out.
        participation: how often one person may come back; the price is then that of a person.  A
            rule that counts within batches must count within these.

    Raises:
        ValueError: a number is out of range, tuples of different lengths, or no grid has room.
    """

    vertices: Vertices
    clip: float
    scale: Positive
    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    growth: tuple[int, ...]
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    participation: Participation | None = None
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_batches(self.sizes, self.weights, self.growth)
        assign(self, _spend=self._stated())

    @classmethod
    def calibrated(
        cls,
        vertices: Vertices,
        clip: float,
        budget: Currency,
        *,
        sizes: Sequence[int],
        weights: Sequence[int] | None = None,
        growth: Sequence[int] | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        participation: Participation | None = None,
    ) -> NoisyMaxBatches:
        """The least noise (to a relative 1e-6) that ``budget`` allows for all picks together.

        Args:
            weights, growth: default all alike: noise of one scale on plain running sums.

        Raises:
            CurrencyError: picks have no price in this currency.
            ValueError: a budget of zero.
        """
        check_currency(budget)
        if budget.is_zero:
            raise ValueError(f"budget = {budget}: noise needs a budget > 0")
        batches = tuple(sizes)
        alike = (1,) * len(batches), (GROWTH_UNIT,) * len(batches)
        heavy = alike[0] if weights is None else tuple(weights)
        grown = alike[1] if growth is None else tuple(growth)
        _check_batches(batches, heavy, grown)
        moves = _Moves.of(batches, heavy, grown, participation)
        spread = ReportNoisyMax(vertices, clip, 1e9 * clip, adjacency=adjacency).spread

        def fits(loss: Loss) -> bool:
            return budget.covers(budget.price(loss))

        def roughly(logarithm: float) -> bool:
            return fits(moves.roughly(spread, math.exp(logarithm), adjacency))

        largest = math.log(spread * moves.largest)
        scale = math.exp(least_that_fits(largest - 6.0, largest, roughly, 1e-7))
        while not fits(moves.loss(Fraction(spread), scale, adjacency)):
            scale *= 1 + 1e-7
        return cls(vertices, clip, scale, batches, heavy, grown, adjacency, participation)

    def scale_at(self, batch: int) -> float:
        """Scale of the noise on the weighted scores after ``batch`` >= 1 batches."""
        return self.scale * self.growth[count(batch=batch) - 1] / GROWTH_UNIT

    @property
    def grid(self) -> Grid:
        """Where rows are clipped, with room for the sum of the largest batch."""
        return cast(Grid, self._spend.grid)

    def loss(self) -> Loss:
        return self._spend.loss(self.adjacency)

    def spend(self) -> Spend:
        return self._spend

    def _stated(self) -> Spend:
        first = ReportNoisyMax(self.vertices, self.clip, self.scale, adjacency=self.adjacency)
        moves = _Moves.of(self.sizes, self.weights, self.growth, self.participation)
        loss = moves.loss(Fraction(first.spread), self.scale, self.adjacency)
        rule = self.participation
        return Spend(
            "noisy-max-batches",
            first.domain,
            GumbelNoise(self.scale / first.unit),
            own_loss=loss if rule is None else VisitsLoss(loss, rule.most, rule.apart),
            parameters={
                **first.parameters(),
                "sizes": list(self.sizes),
                "weights": list(self.weights),
                "growth": [str(Fraction(grown, GROWTH_UNIT)) for grown in self.growth],
                **stated_rule(rule),
            },
            interactive=True,
            grid=choice_grid(first.domain, self.vertices, self.scale, max(self.sizes)),
        )

    def for_last(self, users: range) -> NoisyMaxBatches:
        """The mechanism for the last ``users`` of a stream that ended early, at the same price.

        Its batches end where they did, with the weights and noise that they had, and its sums
        begin anew; the first batch may be a part of one.

        Raises:
            UsersError: no users, or more than the stream has.
        """
        missing = sum(self.sizes) - len(users)
        if not missing:
            return self
        if missing < 0 or not users:
            raise UsersError(f"users = {users!r}: must be some of the last {sum(self.sizes)}")
        ends = [end - missing for end in accumulate(self.sizes) if end > missing]
        sizes = tuple(b - a for a, b in pairwise([0, *ends]))
        left = len(self.sizes) - len(sizes)
        grown = self.growth[left:]
        rest = replace(self, sizes=sizes, weights=self.weights[left:], growth=grown)
        # no less than it costs, and what a plan was committed with
        assign(rest, _spend=replace(rest.spend(), own_loss=self.loss()))
        return rest

    def open(self, token: Token[B]) -> BatchPicks:
        """Spends ``token`` for the whole stream.

        Raises:
            UsersError: the token's users are not those of the batches, or the rule of participation
                counts within others.
            AdjacencyError: the token is for another neighbour relation.
            TokenError: see `Token.spend`.
        """
        if len(token.users) != sum(self.sizes):
            raise UsersError(f"users = {token.users!r}: the batches hold {sum(self.sizes)}")
        if self.participation is not None and self.participation.batched:
            starts = accumulate(self.sizes, initial=token.users.start)
            token.check_batches(self.participation, list(starts))
        return BatchPicks(self, token)


def _check_batches(
    sizes: tuple[int, ...], weights: tuple[int, ...], growth: tuple[int, ...]
) -> None:
    for name, numbers in (("sizes", sizes), ("weights", weights), ("growth", growth)):
        if not isinstance(numbers, tuple) or not 1 <= len(numbers) <= MOST_BATCHES:
            raise ValueError(
                f"{name} = {numbers!r:.80}: must be a tuple with one entry per batch, of which "
                f"there may be {MOST_BATCHES}"
            )
        if len(numbers) != len(sizes):
            raise ValueError(f"{name}: has {len(numbers)} entries for {len(sizes)} batches")
        for number in numbers:
            count(**{name: number})
            if number > LARGEST_WEIGHT:
                raise ValueError(f"{name} = {number}: must be at most {LARGEST_WEIGHT}")
    if min(growth) < GROWTH_UNIT:
        raise ValueError(f"growth = {min(growth)}: must be at least {GROWTH_UNIT}, no growth")


@final
@dataclass(frozen=True, slots=True)
class _Moves:
    """How far a person moves the picks, as η·scale/spread: what is to be summed, and compared.

    Args:
        batches: for each batch that all visits may be in, the picks from there on.
        picks: for each pick by itself the most, if that may be less; else nothing.
    """

    batches: list[list[Fraction]]
    picks: list[Fraction]

    @classmethod
    def of(
        cls,
        sizes: tuple[int, ...],
        weights: tuple[int, ...],
        growth: tuple[int, ...],
        rule: Participation | None,
    ) -> _Moves:
        visits = 1 if rule is None else rule.visits(sum(sizes), len(sizes))
        noise = [round_up(Fraction(GROWTH_UNIT, grown)) for grown in growth]
        batches = [
            [visits * weight * inverse for inverse in noise[b:]] for b, weight in enumerate(weights)
        ]
        if rule is None or visits == 1:
            return cls(batches, [])
        rooms = [rule.visits(size) for size in sizes]
        return cls(
            batches,
            [
                _heaviest(weights[: k + 1], rooms[: k + 1], visits) * inverse
                for k, inverse in enumerate(noise)
            ],
        )

    @property
    def largest(self) -> float:
        return float(max(max(moves) for moves in self.batches))

    def loss(self, spread: Fraction, scale: float, adjacency: Adjacency) -> Loss:
        """What these moves cost at most."""
        unit = spread / Fraction(scale)

        def rho(moves: list[Fraction]) -> Fraction:
            return sum((_rho(round_up(unit * move)) for move in moves), Fraction(0))

        return _both(round_up(self._worst(rho)), round_up(unit * self._worst(_total)), adjacency)

    def roughly(self, spread: float, scale: float, adjacency: Adjacency) -> Loss:
        """The same in floating point, to search with."""
        unit = spread / scale

        def rho(moves: list[Fraction]) -> float:
            eta = unit * np.array([float(move) for move in moves])
            ratio = eta / np.expm1(eta)
            exactly = ratio - 1 - np.log(ratio)
            return float(np.where(eta < float(_SMALL), eta**2 / 8, exactly).sum())

        return _both(Fraction(self._worst(rho)), Fraction(unit) * self._worst(_total), adjacency)

    def _worst(self, price: Callable[[list[Fraction]], N]) -> N:
        """The lesser of both bounds."""
        dearest = max(map(price, self.batches))
        return min(dearest, price(self.picks)) if self.picks else dearest


def _rho(eta: Fraction) -> Fraction:
    return eta**2 / 8 if eta < _SMALL else BoundedRangeLoss(eta).zcdp()


def _total(moves: list[Fraction]) -> Fraction:
    return sum(moves, Fraction(0))


def _both(rho: Fraction, epsilon: Fraction, adjacency: Adjacency) -> Loss:
    zcdp = ZCDPLoss(rho, adjacency=adjacency)
    if epsilon > _LARGEST_EPSILON:
        return zcdp
    return least([zcdp, PureLoss(epsilon, adjacency=adjacency)])


def _heaviest(weights: Sequence[int], rooms: Sequence[int], visits: int) -> int:
    """The largest sum of weights of ``visits`` rows, with room for so many in each batch."""
    total = 0
    for weight, room in sorted(zip(weights, rooms, strict=True), reverse=True):
        taken = min(room, visits)
        total, visits = total + taken * weight, visits - taken
    return total


@final
class BatchPicks(ReceiptStream[Array]):
    """An open stream; it retires the token with its last batch."""

    __slots__ = ("__sums", "_batch", "_ends", "_mechanism", "_unit")

    def __init__(self, mechanism: NoisyMaxBatches, token: Token[B]) -> None:
        super().__init__(mechanism.spend(), token, mechanism.adjacency)
        self._mechanism, self._batch = mechanism, 0
        self._unit = mechanism.scale / mechanism.grid.step
        self._ends = [token.users.start + end for end in accumulate(mechanism.sizes)]
        # weighted only where a pick is made, in Python's integers, which no child could overwrite
        self.__sums = np.zeros((len(self._ends), mechanism.vertices.dim), dtype=np.int64)

    @property
    def next_end(self) -> int:
        """The arrival index at which the open batch ends.

        Raises:
            UsersError: all batches have ended.
        """
        if self._complete:
            raise UsersError("the last batch has ended")
        return self._ends[self._batch]

    def append(self, rows: Rows[Array]) -> Released[Picks] | None:
        """Adds the next rows, all of one batch; releases a pick if they complete it.

        Returns:
            The index of a point, int64, shape (1,); None within a batch.

        Raises:
            UsersError: not the next users of the stream, or of more than one batch.
        """
        with self._lock, self._receipt.round():
            self._check_in_step()
            if rows.users.stop > self.next_end:
                raise UsersError(
                    f"the stream is at user {self._next} and its batch ends before "
                    f"{self.next_end}; the rows are {rows.users!r}"
                )
            opened = self._next_rows(rows, self._receipt.open_integers)
            self.__sums[self._batch] += sum_of_rows(opened)
            if self._next < self.next_end:
                self._in_step = self._next
                return None
            return self._picked()

    def _picked(self) -> Released[Picks]:
        mechanism, batch = self._mechanism, self._batch
        self._batch += 1
        weights = np.array(mechanism.weights[: self._batch], dtype=object)
        total = weights @ self.__sums[: self._batch].astype(object)
        units = np.array([self._unit * mechanism.growth[batch] / GROWTH_UNIT])
        picks = largest_scores(self._receipt, mechanism.vertices, total[None], units)
        released: Released[Picks] = self._receipt.publish(picks)  # type: ignore[assignment, arg-type]
        self._in_step = self._next
        if self._complete and not self.closed:  # it is, if its process died before it wrote so
            self._receipt.close()
        return released

    @property
    def _complete(self) -> bool:
        return self._batch == len(self._ends)
