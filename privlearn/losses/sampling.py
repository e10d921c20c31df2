r"""Steps in which a record takes part by chance: the dominating pair, from that of the sample.

Let P, Q dominate what runs on the sample, with equal laws of the loss in both directions, and let
γ be the chance that the record is in the sample.  Y = dP/dQ, H_a(A‖B) = sup over events of
A − a·B.  Proofs: ``docs/proofs.md#samples``.

- *It joins* (`JoinedStep`): without it the sample is that of the others.  The pair is
  (1−γ)Q + γP against Q.
- *Another one stands in its place* (`ReplacedStep`): H_a <= γ·H_{1+(a−1)/γ}(P‖Q) for a >= 1, and
  for a < 1 by H_a(A‖B) = 1 − a + a·H_{1/a}(B‖A).  This is the curve of one pair, whose loss l̃ is
  log(1−γ+γe^l) where the loss l of P, Q is positive, with density (1−γ)Q + γP; minus the same of
  −l where l is negative, with density P; and 0 with mass (1−γ)(P−Q)(l > 0).

Where the record may take part in several ways, the way is taken as seen: a mixture of pairs.
Renyi moments at integer orders, with E_k = E_Q[Y^k] − 1 from the curve of the sample:
1 + Σ_{k>=2} C(α,k)(1−γ)^{α−k}γ^k·E_k where it joins, and
1 + 2C(α,2)γ²E_2 + Σ_{k>=3} C(α,k)γ^k·E_k where it is replaced; chords between them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np

from privlearn.losses.base import Loss, parts_of
from privlearn.losses.discrete import DiscreteGaussian, DiscreteLaplace
from privlearn.losses.gaussian import GaussianLoss
from privlearn.losses.numerics import ULP, decimal_of, fraction_up, working_context
from privlearn.losses.pure import LaplaceLoss, PureLoss, RandomizedResponse
from privlearn.losses.steps import (
    Array,
    Direction,
    GaussianStep,
    LaplaceStep,
    PairStep,
    Points,
    Step,
    integrated,
    normal_density,
    normal_reach,
    normal_tail,
)
from privlearn.losses.subsampled import SubsampledGaussianStep
from privlearn.values.exact import Exact, exact, float_up

SAMPLED: tuple[type[Loss], ...] = (
    GaussianLoss,
    LaplaceLoss,
    PureLoss,
    DiscreteLaplace,
    DiscreteGaussian,
    RandomizedResponse,
)
"""Kinds that may run on a sample: each has a pair with equal laws of the loss both ways."""
_LARGEST_ORDER = 512
_LEAST_MASS, _MOST_MASS = Fraction(1, 10**12), 400  # Of Gaussians whose law is listed
_RARE = 1e-30  # Shares of ways to take part that count as lost, and need no law
_MOST_RUNS = 8  # On one sample, whose product has a law of its own
_MOST_PRODUCTS = 2**20
_SPACING = 2.0**-10  # Of the lattice of a product, in standard deviations of its least part
_MOST_POINTS = 2**17
_UNSEEN = 1e-13  # Mass that a sum of float probabilities may miss


def valid_rate(name: str, value: Exact) -> Fraction:
    """Returns a chance of being sampled: exact, in [1e-12, 1 − 2^−53]."""
    rate = exact(name, value)
    if not Fraction(1, 10**12) <= rate <= 1 - Fraction(1, 2**53):
        raise ValueError(
            f"{name} = {value!r}: must lie in [1e-12, 1 - 2^-53]; with probability 1 the price is "
            "that of the loss without a sample"
        )
    return rate


def check_sampled(loss: Loss) -> None:
    """Raises ValueError for a loss that is not of `SAMPLED`, or of several of them together."""
    for part, _ in parts_of(loss):
        if type(part) not in SAMPLED:
            known = ", ".join(kind.kind for kind in SAMPLED)
            raise ValueError(f"a {part.kind} loss on a sample: must be one of {known}")


def has_pair(loss: Loss) -> bool:
    """Whether what runs on the sample has a law of its loss that is not too long to be listed."""
    mass = loss.gaussian()
    if mass is not None:
        return _LEAST_MASS <= mass <= _MOST_MASS
    parts = parts_of(loss)
    known = all(isinstance(part.step(), PairStep) and part.step().in_range() for part, _ in parts)
    return known and sum(count for _, count in parts) <= _MOST_RUNS


def sampled_epsilon(epsilon: Fraction | None, rate: Fraction) -> Fraction | None:
    """log(1−γ+γe^ε), rounded up: the worst case of a pair in which the record joins."""
    if epsilon is None:
        return None
    precise = working_context(epsilon * rate)
    grown = precise.subtract(precise.exp(decimal_of(epsilon, precise)), Decimal(1))
    inside = precise.add(Decimal(1), precise.multiply(decimal_of(rate, precise), grown))
    return min(fraction_up(precise.ln(inside)), epsilon)


@dataclass(frozen=True, slots=True)
class _SampledStep(PairStep):
    """What runs on the sample, in ways that are seen, each with its share; and the chance γ.

    Shares that are missing from 1 count as lost.
    """

    groups: tuple[tuple[float, Loss], ...]
    rate: float

    @abstractmethod
    def _mapped(self, loss: Array, p: Array, way: Direction) -> tuple[Array, Array]:
        """Losses and masses, from losses and masses of the sample under P."""

    @abstractmethod
    def _normal(self, mu: float, way: Direction, step: float, tail: float) -> Points:
        """The law where the sample is N(mu, 1) against N(0, 1)."""

    @abstractmethod
    def _inverse(self, loss: Array, way: Direction) -> Array:
        """The loss of the sample, where given losses are reached."""

    def _whole(self, found: Points, base: Points, way: Direction) -> Points:
        """With what is not among the losses of the sample: cut tails, and an atom at 0."""
        return found

    def points(self, way: Direction, step: float, tail: float) -> Points:
        losses, masses = [np.zeros(0)], [np.zeros(0)]
        spill, counted = 0.0, 0.0
        lost = max(1 - math.fsum(share for share, _ in self.groups), 0.0) * self.rate
        for share, loss in sorted(self.groups, key=lambda group: -group[0]):
            if counted and share * self.rate < max(tail * 2.0**-20, _RARE):
                lost += self.rate * share
                continue
            found = self._of(loss, way, step, tail)
            counted += share
            losses.append(found.loss)
            masses.append(found.p * share)
            lost += found.lost * share
            spill += found.spill * share
        return Points(np.concatenate(losses), np.concatenate(masses), lost, spill)

    def _of(self, loss: Loss, way: Direction, step: float, tail: float) -> Points:
        mass, one = loss.gaussian(), loss.step()
        if mass is not None:
            return self._normal(math.sqrt(float_up(mass)) * (1 + 2.0**-51), way, step, tail)
        if isinstance(one, LaplaceStep):
            return self._laplace(one, way, step)
        base = _law(loss, tail)
        losses, p = self._mapped(base.loss, base.p, way)
        return self._whole(Points(losses, p, 0.0, base.spill), base, way)

    def _laplace(self, one: LaplaceStep, way: Direction, step: float) -> Points:
        eps = one.epsilon
        inner = integrated(
            lambda z: self._mapped(z, z, way)[0],
            lambda z: self._mapped(z, np.exp((z - eps) / 2) / 4, way)[1],
            (-eps, eps),
            step,
            inverse=lambda loss: self._inverse(loss, way),
            breaks=(0.0,),
        )
        atoms = self._mapped(np.array([eps, -eps]), np.array([0.5, math.exp(-eps) / 2]), way)
        found = inner.plus(list(atoms[0]), list(atoms[1]))
        return self._whole(found, one.points(way, 1.0, 0.0), way)

    def largest(self) -> float:
        worst = [loss.pure() for _, loss in self.groups]
        if any(one is None for one in worst) or math.fsum(s for s, _ in self.groups) < 1 - 1e-9:
            return math.inf
        top = max(float_up(one) for one in worst if one is not None)
        return float(_joined(np.array([top]), self.rate)[0]) * (1 + 1e-12)

    def in_range(self) -> bool:
        seen = (loss for share, loss in self.groups if share * self.rate >= _RARE)
        return 1e-9 <= self.rate < 1 and all(map(has_pair, seen))

    @abstractmethod
    def _log_terms(self, order: int) -> Array:
        """Logarithms of what E_2, …, E_order are multiplied by."""

    def renyi(self, order: float) -> float:
        return _renyi(self, order)


@dataclass(frozen=True, slots=True)
class JoinedStep(_SampledStep):
    """The record joins the sample of the others with chance γ."""

    both_ways = True

    def _mapped(self, loss: Array, p: Array, way: Direction) -> tuple[Array, Array]:
        if way == "add":
            return -_joined(-loss, self.rate), p
        return _joined(loss, self.rate), p * _lifted(loss, self.rate)

    def _inverse(self, loss: Array, way: Direction) -> Array:
        return -_parted(-loss, self.rate) if way == "add" else _parted(loss, self.rate)

    def _normal(self, mu: float, way: Direction, step: float, tail: float) -> Points:
        return SubsampledGaussianStep(self.rate, 1 / mu).points(way, step, tail)

    def _whole(self, found: Points, base: Points, way: Direction) -> Points:
        if way == "add":
            top = -math.log1p(-self.rate)
            return found.plus([top], [base.lost]) if base.lost else found
        least = float(base.loss.min())
        rest = _q_rest(base) * (1 - self.rate)
        spill = base.spill * float(_lifted(np.array([least]), self.rate)[0])
        lost = self.rate * base.lost
        found = found._replace(lost=lost, spill=spill)
        return found.plus([float(_joined(np.array([least]), self.rate)[0])], [rest], rest)

    def _log_terms(self, order: int) -> Array:
        k = np.arange(2, order + 1, dtype=float)
        logs: Array = _log_choose(order) + (order - k) * math.log1p(-self.rate)
        return logs + k * math.log(self.rate)


@dataclass(frozen=True, slots=True)
class ReplacedStep(_SampledStep):
    """Where the record is not in the sample, another one is: P, Q are those of a replacement."""

    def _mapped(self, loss: Array, p: Array, way: Direction) -> tuple[Array, Array]:
        size = np.sign(loss) * _joined(np.abs(loss), self.rate)
        return size, np.where(loss > 0, p * _lifted(np.maximum(loss, 0.0), self.rate), p)

    def _inverse(self, loss: Array, way: Direction) -> Array:
        return np.asarray(np.sign(loss) * _parted(np.abs(loss), self.rate))

    def _normal(self, mu: float, way: Direction, step: float, tail: float) -> Points:
        reach, rate, middle = normal_reach(tail), self.rate, -mu / 2

        def density(z: Array) -> Array:
            mixed = (1 - rate) * normal_density(z + mu) + rate * normal_density(z)
            return np.where(z > middle, mixed, normal_density(z))

        above = (1 - rate) * normal_tail(reach + mu) + rate * normal_tail(reach)
        found = integrated(
            lambda z: self._mapped(mu * (z - middle), z, way)[0],
            density,
            (-reach, reach),
            step,
            outside=(normal_tail(reach), above),
            width=min(1.0, 1 / mu) / 16,
            inverse=lambda loss: self._inverse(loss, way) / mu + middle,
            breaks=(middle,),
        )
        return found.plus([0.0], [(1 - rate) * math.erf(mu / 2 / math.sqrt(2))])

    def _whole(self, found: Points, base: Points, way: Direction) -> Points:
        above = np.maximum(base.loss, 0.0)
        apart = float((base.p * -np.expm1(-above)).sum()) + base.lost
        return found._replace(lost=self.rate * base.lost).plus([0.0], [(1 - self.rate) * apart])

    def _log_terms(self, order: int) -> Array:
        k = np.arange(2, order + 1, dtype=float)
        logs: Array = _log_choose(order) + k * math.log(self.rate)
        logs[0] += math.log(2)
        return logs


@dataclass(frozen=True, slots=True)
class MixedStep(PairStep):
    """One of several steps, with its chance; which one is seen."""

    parts: tuple[tuple[float, PairStep], ...]
    both_ways = True

    def points(self, way: Direction, step: float, tail: float) -> Points:
        found = [(share, one.points(way, step, tail)) for share, one in self.parts]
        return Points(
            np.concatenate([one.loss for _, one in found]),
            np.concatenate([share * one.p for share, one in found]),
            math.fsum(share * one.lost for share, one in found),
            math.fsum(share * one.spill for share, one in found),
        )

    def largest(self) -> float:
        return max(one.largest() for _, one in self.parts)

    def in_range(self) -> bool:
        return all(one.in_range() for _, one in self.parts)

    def renyi(self, order: float) -> float:
        moments = [(share, (order - 1) * one.renyi(order)) for share, one in self.parts]
        return log_mean(moments) / (order - 1) * (1 + 1e-12)


def log_mean(moments: Sequence[tuple[float, float]]) -> float:
    """log Σ share·e^x of shares that add up to 1, x >= 0, without cancellation; rounded up."""
    top = max(x for _, x in moments)
    if top == math.inf:
        return math.inf
    if top < 1:
        return math.log1p(math.fsum(share * math.expm1(x) for share, x in moments)) * (1 + 1e-13)
    total = math.fsum(share * math.exp(x - top) for share, x in moments)
    return max(top + math.log(total) + 1e-14 * (1 + top), 0.0)


def _joined(loss: Array, rate: float) -> Array:
    """log(1−γ+γe^l)."""
    small = np.log1p(rate * np.expm1(np.minimum(loss, 30.0)))
    rest = (1 - rate) / rate * np.exp(-np.maximum(loss, 0.0))
    return np.where(loss < 30, small, loss + math.log(rate) + np.log1p(rest))


def _parted(loss: Array, rate: float) -> Array:
    """The inverse of `_joined`; −inf below its values."""
    inside = np.expm1(np.minimum(loss, 30.0)) / rate
    small = np.log1p(np.maximum(inside, -1 + 2.0**-53))
    large = loss - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1.0)))
    found = np.where(loss < 30, small, large)
    return np.where(inside > -1, found, -np.inf)


def _lifted(loss: Array, rate: float) -> Array:
    """((1−γ)Q + γP)/P."""
    return (1 - rate) * np.exp(-loss) + rate


def _q_rest(base: Points) -> float:
    """At least the mass of Q that is not at the losses listed."""
    return max(1 - float((base.p * np.exp(-base.loss)).sum()), 0.0) + _UNSEEN


def _log_choose(order: int) -> Array:
    factorial = _log_factorials()
    whole = factorial[order] - factorial[2 : order + 1]
    return np.asarray(whole - factorial[order - 2 :: -1][: order - 1])


@lru_cache(maxsize=1)
def _log_factorials() -> Array:
    return np.array([math.lgamma(k + 1) for k in range(_LARGEST_ORDER + 2)])


Groups = tuple[tuple[float, Loss], ...]


@lru_cache(maxsize=256)
def _excess_table(groups: Groups) -> list[float]:
    """log E_2, log E_3, … as far as they were asked for."""
    return []


def _log_excess(groups: Groups, order: int) -> Array:
    """log E_2, …, log E_order, rounded up."""
    table = _excess_table(groups)
    while len(table) < order - 1:
        k = len(table) + 2.0
        top = log_mean([(share, (k - 1) * loss.renyi(k)) for share, loss in groups])
        small = math.log(math.expm1(top)) + 1e-12 if 0 < top <= 30 else -math.inf
        table.append(top + 1e-13 if top > 30 else small)
    return np.array(table[: order - 1])


@lru_cache(maxsize=2**14)
def _integer_moment(step: _SampledStep, order: int) -> float:
    if order == 1:
        return 0.0
    excess = _log_excess(step.groups, order)
    if excess.max() == np.inf:
        return math.inf
    logs = step._log_terms(order)
    terms = logs + excess
    terms += 16 * ULP * (1 + 4 * _log_factorials()[order] + np.abs(logs) + np.abs(excess))
    top = float(terms.max())
    log_excess = top + math.log(float(np.exp(terms - top).sum())) + 1e-13
    rounded = math.log1p(math.exp(log_excess)) if log_excess < 30 else log_excess + 1e-13
    return rounded * (1 + 1e-13)


@lru_cache(maxsize=2**14)
def _renyi(step: _SampledStep, order: float) -> float:
    t = order - 1
    if math.fsum(share for share, _ in step.groups) < 1 - 1e-9:
        return math.inf
    plain = log_mean([(share, t * loss.renyi(order)) for share, loss in step.groups]) / t
    if order <= _LARGEST_ORDER:
        below = math.floor(order)
        share = order - below
        moment = _integer_moment(step, below) * (1 - share)
        if share > 0:
            moment += _integer_moment(step, below + 1) * share
        return min(moment / t, plain) * (1 + 1e-12)
    if isinstance(step, JoinedStep):  # (1−γ+γY)^α <= 1−γ+γY^α
        plain = min(plain, float(_joined(np.array([t * plain]), step.rate)[0]) / t)
    return plain * (1 + 1e-12)


def _law(loss: Loss, tail: float) -> Points:
    """Atoms of what runs on the sample: exact if there are few, else on a fine lattice."""
    parts = [(part.step(), count) for part, count in parts_of(loss)]
    laws: list[Points] = []
    continuous = False
    for one, count in parts:
        continuous |= isinstance(one, GaussianStep | LaplaceStep)
        laws += [_points(one, 1.0, tail)] * count
    size = math.prod(len(law.loss) for law in laws)
    if continuous or size > _MOST_PRODUCTS:
        return _on_lattice(loss, tail)
    losses, masses = np.zeros(1), np.ones(1)
    for law in laws:
        losses = np.add.outer(losses, law.loss).ravel()
        masses = np.multiply.outer(masses, law.p).ravel()
    return Points(losses, masses, sum(law.lost for law in laws), sum(law.spill for law in laws))


@lru_cache(maxsize=16)
def _on_lattice(loss: Loss, tail: float) -> Points:
    """A law above that of the product, every outcome split between two points of a lattice.

    The split keeps the mean of dP/dQ (``docs/proofs.md#composition``, 2a).  It has no lower side.
    """
    parts = [(part.step(), count) for part, count in parts_of(loss)]
    rough = [
        (one.points("remove", 0.125, tail), n) for one, n in parts if isinstance(one, PairStep)
    ]
    spread = min(_std(law) for law, _ in rough)
    length = sum(float(np.ptp(law.loss)) * count for law, count in rough)
    size = 2.0 ** math.floor(math.log2(max(spread * _SPACING, length / _MOST_POINTS)))
    low, lost = 0, 0.0
    whole: Array = np.ones(1)
    for one, count in parts:
        law = _points(one, size, tail)
        first, weights = _split(law, size)
        for _ in range(count):
            low, whole, lost = low + first, np.convolve(whole, weights), lost + law.lost
    whole *= 1 + 1e-12
    losses: Array = (low + np.arange(len(whole), dtype=np.float64)) * size
    return Points(losses, whole, lost, float(whole.sum()))


def _points(one: Step, size: float, tail: float) -> Points:
    if not isinstance(one, PairStep):
        raise AssertionError("a curve has no law")
    return one.points("remove", size, tail)


def _split(law: Points, size: float) -> tuple[int, Array]:
    below = np.floor(law.loss / size)
    up = np.expm1(below * size - law.loss) / math.expm1(-size)
    up = np.clip(up + (16 * ULP * (2 + np.abs(law.loss)) + _UNSEEN) / size, 0.0, 1.0)
    low = int(below.min())
    index = (below - low).astype(np.intp)
    length = int(index.max()) + 2
    weights = np.bincount(index, law.p * (1 - up), length)
    weights += np.bincount(index + 1, law.p * up, length)
    return low, np.asarray(weights, dtype=np.float64)


def _std(law: Points) -> float:
    share = law.p / law.p.sum()
    mean = float((share * law.loss).sum())
    return math.sqrt(max(float((share * (law.loss - mean) ** 2).sum()), 1e-60))
