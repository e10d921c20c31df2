"""Batches of a fixed size, drawn from a population of a public size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, final

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, loss_from_dict, register
from privlearn.losses.numerics import valid_count, valid_order
from privlearn.losses.pure import PureLoss
from privlearn.losses.sampling import ReplacedStep, check_sampled, sampled_epsilon
from privlearn.losses.steps import CurveStep, PairStep, Step
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up, round_up
from privlearn.values.json_forms import OBJECT, TEXT, WHOLE, Form

_MOST_RECORDS = 10**12
_MOST_COPIES = 64  # Of one record in a batch that are told apart; more are below 1/65! rare
_LEAST_LOG = -650.0  # Of a chance
_RATE_DIGITS = 20
_LARGEST_EPSILON = 700


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class FixedBatch(Loss):
    """What runs on a batch of ``batch`` records, drawn anew from ``population``.

    Args:
        loss: of what runs, under replace-one on the batch: Gaussian, Laplace, discrete Gaussian or
            Laplace, pure, randomized response, or a composition of these on the same batch.
        population: n, the public number of records.
        batch: b, at most n.
        replacement: whether a record may be drawn more than once.
        adjacency: replace-one, or zero-out, which is one of the replacements.

    Without replacement the record is in the batch with chance γ = b/n, else another one stands in
    its place: the curve is that of `ReplacedStep` (Balle, Barthe & Gaboardi 2018, Theorems 2 and
    9).  With replacement it is there k times with the chance of Bin(b, 1/n), γ = 1 − (1−1/n)^b;
    given k, k others stand in its places: k rows of one person (ibid., Theorem 10).
    Proofs: ``docs/proofs.md#samples``.  Under add-remove the population's size is not public, and
    the batch of a neighbour differs without the record: refused.
    """

    kind = "fixed-batch"
    loss: Loss
    population: int
    batch: int
    replacement: bool
    adjacency: Adjacency

    def __init__(
        self,
        loss: Loss,
        population: int,
        batch: int,
        *,
        replacement: bool = False,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ):
        check_sampled(loss)
        if adjacency is Adjacency.ADD_REMOVE or loss.adjacency is not Adjacency.REPLACE_ONE:
            raise AdjacencyError(
                "a fixed batch is priced for replace-one, of a loss for replace-one: without the "
                "record another one is in the batch"
            )
        size = valid_count(_MOST_RECORDS, at_least=1, population=population)
        drawn = valid_count(_MOST_RECORDS, at_least=1, batch=batch)
        if drawn > size or (drawn == size and not replacement):
            raise ValueError(
                f"batch = {batch!r}: must be "
                + (f"at most {size}, the population" if drawn > size else "below the population")
                + "; all of it is no sample"
            )
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement = {replacement!r}: must be True or False")
        if replacement:
            loss.for_visits(drawn)  # refuses what leaves the range of its numbers
        self._set(
            loss=loss, population=size, batch=drawn, replacement=replacement, adjacency=adjacency
        )

    @property
    def rate(self) -> Fraction:
        """The chance that a record is in the batch, rounded up."""
        if not self.replacement:
            return Fraction(self.batch, self.population)
        if self.population == 1:
            return Fraction(1)
        missed = math.expm1(self.batch * math.log1p(-1 / self.population))
        found = round_up(Fraction(-missed) * (1 + Fraction(1, 10**13)), _RATE_DIGITS)
        return min(found, Fraction(self.batch, self.population))

    def _pair(self) -> PairStep | None:
        rate = float_up(self.rate)
        if rate > 1 - 2.0**-53:
            return None
        if not self.replacement:
            return ReplacedStep(((1.0, self.loss),), rate)
        return ReplacedStep(self._copies(), rate)

    def _copies(self) -> tuple[tuple[float, Loss], ...]:
        """The chances of k copies where there are any, with what k rows cost.

        Many copies are rare, and count as a whole batch of them.
        """
        n, b, log = self.population, self.batch, 0.0
        shares: list[float] = []
        for k in range(1, min(b, _MOST_COPIES) + 1):
            log += math.log((b - k + 1) / n / k)
            shares.append(math.exp(log + (b - k) * math.log1p(-1 / n)))
        total = math.fsum(shares)
        groups = [(share / total, self.loss.for_visits(k)) for k, share in enumerate(shares, 1)]
        if b > _MOST_COPIES:
            more = max(log + math.log((b - _MOST_COPIES) / n / (_MOST_COPIES + 1)), _LEAST_LOG)
            groups.append((math.exp(more) / total, self.loss.for_visits(b)))
        return tuple((share, loss) for share, loss in groups if share > 0)

    def step(self) -> Step:
        pair = self._pair()
        if pair is None:
            return self._whole().step()
        return pair if pair.in_range() else CurveStep(self.renyi)

    def _whole(self) -> Loss:
        """What is paid without a sample."""
        return self.loss if not self.replacement else self.loss.for_visits(self.batch)

    def renyi(self, order: float) -> float:
        alpha, pair = valid_order(order), self._pair()
        return self._whole().renyi(alpha) if pair is None else pair.renyi(alpha)

    def pure(self) -> Fraction | None:
        worst = self.loss.pure()
        if worst is None:
            return None
        whole = worst * self.batch if self.replacement else worst
        return sampled_epsilon(whole, self.rate) if whole <= _LARGEST_EPSILON else None

    def zcdp(self) -> Fraction | None:
        worst = self.pure()
        return None if worst is None else PureLoss(worst).zcdp()

    def noisier(self, factor: Fraction) -> FixedBatch:
        return self._of(self.loss.noisier(factor))

    def _of(self, loss: Loss) -> FixedBatch:
        return FixedBatch(
            loss,
            self.population,
            self.batch,
            replacement=self.replacement,
            adjacency=self.adjacency,
        )

    def numbers(self) -> dict[str, Any]:
        return {
            "sample": self.loss.to_dict(),
            "population": self.population,
            "batch": self.batch,
            "replacement": "with" if self.replacement else "without",
        }

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Self:
        drawn = data["replacement"]
        if drawn not in ("with", "without"):
            raise ValueError(f"replacement = {drawn!r:.80}: must be with or without")
        return cls(
            loss_from_dict(data["sample"]),
            data["population"],
            data["batch"],
            replacement=drawn == "with",
            adjacency=adjacency,
        )

    @classmethod
    def json_form(cls) -> Form:
        return {"sample": OBJECT, "population": WHOLE, "batch": WHOLE, "replacement": TEXT}
