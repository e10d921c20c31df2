"""Poisson samples: each record takes part with a given probability, independently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, final

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, loss_from_dict, register
from privlearn.losses.gaussian_mixture import GaussianMixture, MixtureStep, OppositeStep
from privlearn.losses.numerics import valid_count, valid_order
from privlearn.losses.output_laws import LawPair
from privlearn.losses.pure import PureLoss
from privlearn.losses.sampling import (
    JoinedStep,
    MixedStep,
    ReplacedStep,
    check_sampled,
    sampled_epsilon,
    valid_rate,
)
from privlearn.losses.steps import CurveStep, PairStep
from privlearn.losses.subsampled import SubsampledGaussianStep
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact_text, float_up
from privlearn.values.json_forms import OBJECT, TEXT, WHOLE, Form

_MOST_RECORDS = 10**9
_CLOSE = 1e-10  # Relative error of binomial tails in floating point, with a margin
_SENSITIVE = 1e-15  # That of a rounded probability, for each record
_LEAST_CHANCE = 1e-9  # A larger chance costs more


class _OnSample(Loss):
    """A loss on a Poisson sample, for one record that joins it or for one that is replaced."""

    __slots__ = ()
    loss: Loss
    rate: Fraction

    def _start(self, loss: Loss, rate: Exact, adjacency: Adjacency | None) -> None:
        check_sampled(loss)
        relation = loss.adjacency if adjacency is None else adjacency
        if loss.adjacency is Adjacency.REPLACE_ONE:
            raise AdjacencyError(
                "loss: a Poisson sample has a record or has it not: state the loss for add-remove "
                "or zero-out; adjacency = replace-one then prices the replacement"
            )
        if relation is Adjacency.ADD_REMOVE and loss.adjacency is not relation:
            raise AdjacencyError("loss: for zero-out says nothing about add-remove")
        if relation is not loss.adjacency:
            _check_doubled(loss)
        self._set(loss=loss, rate=valid_rate("rate", rate), adjacency=relation)

    @property
    def replaced(self) -> bool:
        """Whether both neighbours have a record of which nothing more is known."""
        return self.adjacency is not self.loss.adjacency

    def _float_rate(self) -> float:
        return float_up(self.rate)

    def _untruncated(self) -> PairStep:
        rate, mass = self._float_rate(), self.loss.gaussian()
        if mass is None:
            if self.replaced:
                return ReplacedStep(((1.0, self.loss.doubled()),), rate)
            return JoinedStep(((1.0, self.loss),), rate)
        root = _root(mass)
        if self.replaced:
            return OppositeStep(MixtureStep((0.0, root), (1 - rate, rate)))
        return SubsampledGaussianStep(rate, 1 / root * (1 - 2.0**-52))

    def step(self) -> PairStep | CurveStep:
        step = self._pair()
        return step if step.in_range() else CurveStep(self.renyi)

    def _pair(self) -> PairStep:
        return self._untruncated()

    def renyi(self, order: float) -> float:
        return self._pair().renyi(valid_order(order))

    def zcdp(self) -> Fraction | None:
        worst = self.pure()
        return None if worst is None else PureLoss(worst).zcdp()

    def _numbers(self) -> dict[str, Any]:
        return {"sample": self.loss.to_dict(), "rate": exact_text(self.rate)}


def _check_doubled(loss: Loss) -> None:
    """Raises ValueError where a record in the place of another one has no price."""
    try:
        if loss.gaussian() is None:
            loss.doubled()
    except ValueError as error:
        raise ValueError(f"loss: one record for another costs twice of it: {error}") from None


def _root(mass: Fraction) -> float:
    return math.sqrt(float_up(mass)) * (1 + 2.0**-50)


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class PoissonSampled(_OnSample):
    """What runs on a Poisson sample: one noise, or several on the same sample as a composition.

    Args:
        loss: of what runs, for one record that joins or leaves the sample (add-remove; zero-out
            where a null record counts as one that is not in it): Gaussian, Laplace, discrete
            Gaussian or Laplace, pure, randomized response, or a composition of these.  What they
            release must not depend on the size of the sample otherwise.
        rate: the chance of each record, independently of all others.
        adjacency: that of ``loss``, the default; or replace-one, where a record that is sampled
            may count as anything within ``loss`` in both worlds.

    The pair is (1−q)Q + qP against Q (Zhu, Dong & Wang 2022, Theorem 11).  Under replace-one, for
    a Gaussian (1−q)N(0) + qN(μ) against (1−q)N(0) + qN(−μ), for others that of a replacement with
    chance q.  Proofs: ``docs/proofs.md#samples``.  A zCDP constant is stated where the worst case
    is finite; a Gaussian has none but that without a sample (see `SubsampledGaussian`).
    """

    kind = "poisson-sampled"
    loss: Loss
    rate: Fraction
    adjacency: Adjacency

    def __init__(self, loss: Loss, rate: Exact, *, adjacency: Adjacency | None = None):
        self._start(loss, rate, adjacency)

    def pure(self) -> Fraction | None:
        worst = self.loss.pure()
        twice = 2 * worst if worst is not None and self.replaced else worst
        return sampled_epsilon(twice, self.rate)

    def doubled(self) -> PoissonSampled:
        return PoissonSampled(self.loss, self.rate, adjacency=Adjacency.REPLACE_ONE)

    def several(self, visits: int, apart: int) -> GaussianMixture:
        """Gaussians: as many contributions as rows are sampled."""
        mass = self.loss.gaussian()
        if mass is None:
            raise ValueError(
                f"visits = {visits}: a {self.loss.kind} loss on a Poisson sample has no known "
                "price for a person with several rows; a Gaussian has"
            )
        return self._mixture(Fraction(_root(mass))).several(visits, apart)

    def noisier(self, factor: Fraction) -> PoissonSampled:
        return PoissonSampled(self.loss.noisier(factor), self.rate, adjacency=self.adjacency)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair] | None:
        mass = self.loss.gaussian()
        if mass is None:
            return None
        return self._mixture(Fraction(math.sqrt(mass))).worst_pairs(orders)

    def _mixture(self, mu: Fraction) -> GaussianMixture:
        chances = 1 - self.rate, self.rate
        return GaussianMixture([0, mu], chances, 1, adjacency=self.adjacency)

    def numbers(self) -> dict[str, Any]:
        return self._numbers()

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Self:
        return cls(loss_from_dict(data["sample"]), data["rate"], adjacency=adjacency)

    @classmethod
    def json_form(cls) -> Form:
        return {"sample": OBJECT, "rate": TEXT}


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class TruncatedPoisson(_OnSample):
    """A Poisson sample, of which at most ``largest_batch`` records are kept, drawn at random.

    Args:
        loss, rate, adjacency: as of `PoissonSampled`.
        dataset_size: n, records; under add-remove of the larger of two neighbours.
        largest_batch: B, below n.

    Apart from the record, K of n−1 are drawn.  If K < B, nothing is cut: `PoissonSampled`.  If
    K >= B, B−1 of the kept are the same in both worlds, and the last one is the record with chance
    q̄ = (B/n)·P(Bin(n, q) > B)/P(K >= B), else one of the others: it is replaced.  Which of the two
    happens is taken as seen (``docs/proofs.md#samples``; Ganesh, McMahan & Thakurta 2025).
    """

    kind = "truncated-poisson"
    loss: Loss
    rate: Fraction
    dataset_size: int
    largest_batch: int
    adjacency: Adjacency

    def __init__(
        self,
        loss: Loss,
        rate: Exact,
        dataset_size: int,
        largest_batch: int,
        *,
        adjacency: Adjacency | None = None,
    ):
        self._start(loss, rate, adjacency)
        _check_doubled(loss)
        size = valid_count(_MOST_RECORDS, at_least=1, dataset_size=dataset_size)
        batch = valid_count(_MOST_RECORDS, at_least=1, largest_batch=largest_batch)
        if batch >= size:
            raise ValueError(
                f"largest_batch = {batch}: must be below dataset_size = {size}; no sample is cut "
                "else, and the loss is a PoissonSampled one"
            )
        self._set(dataset_size=size, largest_batch=batch)

    def _pair(self) -> PairStep:
        from scipy.stats import binom

        q, n, batch = float(self.rate), self.dataset_size, self.largest_batch
        up = 1 + _CLOSE + n * _SENSITIVE
        cut = min(float(binom.sf(batch - 1, n - 1, q)) * up, 1.0)
        uncut = min(float(binom.cdf(batch - 1, n - 1, q)) * up, 1.0)
        plain = self._untruncated()
        if cut <= 0:
            return plain
        kept = float(binom.sf(batch, n, q)) * batch / n
        chance = min(max(kept / cut * up * up, _LEAST_CHANCE), self._float_rate())
        kind = JoinedStep if self.adjacency is Adjacency.ADD_REMOVE else ReplacedStep
        last = kind(((1.0, self.loss.doubled()),), chance)
        return MixedStep(((uncut, plain), (cut, last))) if uncut > 0 else last

    def pure(self) -> Fraction | None:
        worst = self.loss.pure()
        return None if worst is None else sampled_epsilon(2 * worst, self.rate)

    def doubled(self) -> TruncatedPoisson:
        return self._with(adjacency=Adjacency.REPLACE_ONE)

    def noisier(self, factor: Fraction) -> TruncatedPoisson:
        return self._with(loss=self.loss.noisier(factor))

    def _with(self, **changed: Any) -> TruncatedPoisson:
        given: dict[str, Any] = {
            "loss": self.loss,
            "rate": self.rate,
            "dataset_size": self.dataset_size,
            "largest_batch": self.largest_batch,
            "adjacency": self.adjacency,
        }
        return TruncatedPoisson(**{**given, **changed})

    def numbers(self) -> dict[str, Any]:
        return {
            **self._numbers(),
            "dataset_size": self.dataset_size,
            "largest_batch": self.largest_batch,
        }

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Self:
        loss, size, batch = (
            loss_from_dict(data["sample"]),
            data["dataset_size"],
            data["largest_batch"],
        )
        return cls(loss, data["rate"], size, batch, adjacency=adjacency)

    @classmethod
    def json_form(cls) -> Form:
        return {"sample": OBJECT, "rate": TEXT, "dataset_size": WHOLE, "largest_batch": WHOLE}
