"""Gaussian noise on a sum to which a record contributes a random multiple."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from privlearn.losses.base import Loss, register
from privlearn.losses.gaussian import GaussianLoss
from privlearn.losses.numerics import valid_number, valid_order
from privlearn.losses.output_laws import Density, LawPair, normal
from privlearn.losses.sampling import (
    Groups,
    JoinedStep,
    ReplacedStep,
    log_mean,
    valid_rate,
)
from privlearn.losses.steps import (
    Array,
    CurveStep,
    Direction,
    PairStep,
    Points,
    integrated,
    normal_density,
    normal_reach,
    normal_tail,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text, float_up
from privlearn.values.json_forms import LIST, TEXT, Form

_MOST = 1000  # Multiples, more of which take too long
_MOST_VISITS = 64
_LEAST_CHANCE = Fraction(1, 10**290)  # Of a multiple, whose logarithm is taken as that of a double
_MOST_LISTED = 40  # Whose law is listed; more are priced by their curve


@dataclass(frozen=True, slots=True)
class MixtureStep(PairStep):
    """Shifts c_i in units of the noise, with chances p_i: Σ p_i·N(c_i, 1) against N(0, 1).

    "remove": the first is P; "add": it is Q.
    """

    shifts: tuple[float, ...]
    chances: tuple[float, ...]

    both_ways = True

    def _log_ratio(self, z: Array) -> Array:
        """log Σ p_i·e^{c_i·z − c_i²/2}."""
        total = np.full(len(z), -np.inf)
        small, spread = np.zeros(len(z)), np.zeros(len(z))
        for c, p in zip(self.shifts, self.chances, strict=True):
            y = c * z - c * c / 2
            total = np.logaddexp(total, math.log(p) + y)
            spread = np.maximum(spread, np.abs(y))
            small += p * np.expm1(np.minimum(y, 30.0))
        return np.where(spread < 30, np.log1p(np.maximum(small, -1 + 2.0**-53)), total)

    def _tail(self, z: float) -> float:
        """The chance of more than z."""
        return math.fsum(
            p * normal_tail(z - c) for c, p in zip(self.shifts, self.chances, strict=True)
        )

    def points(self, way: Direction, step: float, tail: float) -> Points:
        reach = normal_reach(tail)
        out = normal_tail(reach)
        if way == "add":
            unmoved = math.fsum(p for c, p in zip(self.shifts, self.chances, strict=True) if c == 0)
            return integrated(
                lambda z: -self._log_ratio(-z),
                normal_density,
                (-reach, reach),
                step,
                outside=(out, out),
                width=self._width(),
                top=-math.log(unmoved) if unmoved else math.inf,
            )
        end = reach + max(self.shifts)
        return integrated(
            self._log_ratio,
            lambda z: normal_density(z) * np.exp(self._log_ratio(z)),
            (-reach - end, end),
            step,
            outside=(normal_tail(reach + end), self._tail(end)),
            width=self._width(),
        )

    def _width(self) -> float:
        return min(1.0, 1 / max(self.shifts)) / 16

    def in_range(self) -> bool:
        return 1e-6 <= max(self.shifts) <= 20 and len(self.shifts) <= _MOST_LISTED

    def renyi(self, order: float) -> float:
        return _renyi(self, order, 1)


@dataclass(frozen=True, slots=True)
class OppositeStep(PairStep):
    """Σ p_i·N(c_i, 1) against Σ p_i·N(−c_i, 1)."""

    mixture: MixtureStep

    def points(self, way: Direction, step: float, tail: float) -> Points:
        mixture, reach = self.mixture, normal_reach(tail)
        end = reach + max(mixture.shifts)
        return integrated(
            lambda z: mixture._log_ratio(z) - mixture._log_ratio(-z),
            lambda z: normal_density(z) * np.exp(mixture._log_ratio(z)),
            (-end, end),
            step,
            outside=(normal_tail(end), mixture._tail(end)),
            width=mixture._width(),
        )

    def in_range(self) -> bool:
        return self.mixture.in_range()

    def renyi(self, order: float) -> float:
        return _renyi(self.mixture, order, 2)


def _renyi(step: MixtureStep, order: float, reach: int) -> float:
    """With the multiple taken as seen; 0 is the chance of taking no part."""
    seen = _seen(step, reach)
    if seen is not None:
        return seen.renyi(order)
    t = order - 1
    parts = zip(step.shifts, step.chances, strict=True)
    return log_mean([(p, t * order * (reach * c) ** 2 / 2) for c, p in parts]) / t * (1 + 1e-12)


@lru_cache(maxsize=256)
def _seen(step: MixtureStep, reach: int) -> JoinedStep | ReplacedStep | None:
    """None where the record always takes part."""
    moved = [(p, c) for c, p in zip(step.shifts, step.chances, strict=True) if c > 0]
    rate = math.fsum(p for p, _ in moved)
    if rate > 1 - 2.0**-53:
        return None
    groups: Groups = tuple(
        (p / rate, GaussianLoss(Fraction(reach * c) ** 2, adjacency=Adjacency.ADD_REMOVE))
        for p, c in moved
    )
    return JoinedStep(groups, rate) if reach == 1 else ReplacedStep(groups, rate)


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class GaussianMixture(Loss):
    """Noise N(0, std²) on a sum to which a record contributes c_i times a vector, c_i by chance.

    Args:
        sensitivities: the ℓ2 norms c_i >= 0 of what one record contributes, one or more.
        probabilities: their chances, which add up to 1 and do not depend on the records.
        std: of the noise, in the same unit.
        adjacency: add-remove, or zero-out where a null record contributes 0; replace-one for two
            records of such contributions, in any two directions.

    Under replace-one Σp_i·N(c_i, std²) faces Σp_i·N(−c_i, std²), else N(0, std²), whatever the
    dimension: ``docs/proofs.md#samples``.  (For add-remove: Choquette-Choo, Ganesh, Steinke &
    Thakurta 2023, Corollary 4.7.)  The Rényi curve takes the multiple as seen.
    """

    kind = "gaussian-mixture"
    sensitivities: tuple[Fraction, ...]
    probabilities: tuple[Fraction, ...]
    std: Fraction
    adjacency: Adjacency

    def __init__(
        self,
        sensitivities: Sequence[Exact],
        probabilities: Sequence[Exact],
        std: Exact,
        *,
        adjacency: Adjacency = Adjacency.ADD_REMOVE,
    ):
        shifts = [exact("sensitivities", one) for one in sensitivities]
        chances = [exact("probabilities", one) for one in probabilities]
        if len(shifts) != len(chances) or not 1 <= len(shifts) <= _MOST:
            raise ValueError(
                f"sensitivities and probabilities: {len(shifts)} and {len(chances)} of them; must "
                f"be as many, 1 to {_MOST}"
            )
        if any(c < 0 for c in shifts) or not 0 < max(shifts) <= 10**75:
            raise ValueError("sensitivities: must be >= 0, one of them > 0, none above 1e75")
        total = sum(chances, Fraction(0))
        if any(p < _LEAST_CHANCE for p in chances) or total != 1:
            raise ValueError(
                "probabilities: must be at least 1e-290 and add up to exactly 1, not "
                f"{exact_text(abs(total))}"
            )
        merged: dict[Fraction, Fraction] = {}
        for c, p in zip(shifts, chances, strict=True):
            merged[c] = merged.get(c, Fraction(0)) + p
        self._set(
            sensitivities=tuple(sorted(merged)),
            probabilities=tuple(merged[c] for c in sorted(merged)),
            std=valid_number("std", std, "1e-75", "1e75"),
            adjacency=adjacency,
        )

    def _pair(self) -> MixtureStep | OppositeStep:
        shifts = tuple(float_up(c / self.std) for c in self.sensitivities)
        chances = tuple(map(float, self.probabilities))
        step = MixtureStep(shifts, chances)
        return OppositeStep(step) if self.adjacency is Adjacency.REPLACE_ONE else step

    def renyi(self, order: float) -> float:
        return self._pair().renyi(valid_order(order))

    def step(self) -> PairStep | CurveStep:
        step = self._pair()
        return step if step.in_range() else CurveStep(self.renyi)

    def doubled(self) -> GaussianMixture:
        return self._with(adjacency=Adjacency.REPLACE_ONE)

    def several(self, visits: int, apart: int) -> GaussianMixture:
        """Multiples drawn anew for each row add up, by their norms."""
        if visits > _MOST_VISITS or len(self.sensitivities) ** 2 > _MOST:
            raise ValueError(f"visits = {visits}: at most {_MOST_VISITS}, of few sensitivities")
        total = {Fraction(0): Fraction(1)}
        for _ in range(visits):
            after: dict[Fraction, Fraction] = {}
            for before, chance in total.items():
                for c, p in zip(self.sensitivities, self.probabilities, strict=True):
                    after[before + c] = after.get(before + c, Fraction(0)) + chance * p
            if len(after) > _MOST:
                raise ValueError(f"visits = {visits}: their sums are more than {_MOST}")
            total = after
        return self._with(sensitivities=list(total), probabilities=list(total.values()))

    def noisier(self, factor: Fraction) -> GaussianMixture:
        return self._with(std=self.std * factor)

    def sampled(self, rate: Exact) -> GaussianMixture:
        """The same on a Poisson sample: a mixture with a smaller chance of every contribution.

        Raises:
            ValueError: the rate is not in [1e-12, 1 − 2^−53].
        """
        chance = valid_rate("rate", rate)
        return self._with(
            sensitivities=[0, *self.sensitivities],
            probabilities=[1 - chance, *(chance * p for p in self.probabilities)],
        )

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        parts = list(
            zip(map(float, self.sensitivities), map(float, self.probabilities), strict=True)
        )
        std = float(self.std)

        def mixed(sign: int) -> Density:
            laws = [(normal(sign * c, std), math.log(p)) for c, p in parts]

            def log_density(x: Array) -> Array:
                terms = [law.log_density(x) + log_p for law, log_p in laws]
                return np.asarray(np.logaddexp.reduce(terms))

            return Density(log_density, (sign * parts[-1][0],), std)

        other = mixed(-1) if self.adjacency is Adjacency.REPLACE_ONE else normal(0.0, std)
        return [(mixed(1), other)]

    def _with(self, **changed: Any) -> GaussianMixture:
        given: dict[str, Any] = {
            "sensitivities": self.sensitivities,
            "probabilities": self.probabilities,
            "std": self.std,
            "adjacency": self.adjacency,
        }
        return GaussianMixture(**{**given, **changed})

    def numbers(self) -> dict[str, Any]:
        return {
            "sensitivities": [exact_text(c) for c in self.sensitivities],
            "probabilities": [exact_text(p) for p in self.probabilities],
            "std": exact_text(self.std),
        }

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> GaussianMixture:
        for name in ("sensitivities", "probabilities"):
            if not all(isinstance(one, str) for one in data[name]):
                raise ValueError(f"{cls.kind} loss: {name} = {data[name]!r:.80}: must be of text")
        return cls(data["sensitivities"], data["probabilities"], data["std"], adjacency=adjacency)

    @classmethod
    def json_form(cls) -> Form:
        return {"sensitivities": LIST, "probabilities": LIST, "std": TEXT}
