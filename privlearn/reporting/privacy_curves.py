"""(ε, δ) curves, and what they mean to an attacker, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.accountants.epsilon_delta import Evaluated, Work, largest_delta, largest_epsilon
from privlearn.accountants.guarantee import Composite
from privlearn.accountants.shown_numbers import rounded_up
from privlearn.losses import Loss, parts_of
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

_SMALLEST_DELTA = 1e-12
FALSE_ALARMS = 0.01  # Of the alarm that a reading tells of: whom it goes off for by mistake
_QUICK = "gaussian", "pure", "renyi"
_MOST_TERMS = 4000  # Losses that are looked at for all points of a curve together
_LEAST_POINTS, _MOST_POINTS, _SLOW_POINTS = 5, 81, 13


@final
@dataclass(frozen=True)
class PrivacyCurve:
    """(ε, δ(ε)) at some ε, and the trade-off between an attack's two errors that follows.

    Any (ε, δ) guarantee that holds in both directions bounds the power of a test at false-alarm
    rate a by min(e^ε·a + δ, 1 − e^{−ε}(1 − δ − a)) (Dong, Roth & Su 2022, Proposition 2.5);
    finitely many ε give a bound that is valid and a little too pessimistic.
    """

    epsilons: Array
    deltas: Array

    def power(self, false_alarms: float | Array) -> Array:
        """The most that an attack can catch at a rate of false alarms in [0, 1]."""
        rate = np.asarray(false_alarms, dtype=float)[..., None]
        up = np.exp(np.minimum(self.epsilons, 700.0)) * rate + self.deltas
        down = 1 - np.exp(-self.epsilons) * (1 - self.deltas - rate)
        bound: Array = np.clip(np.minimum(up, down).min(axis=-1), 0.0, 1.0)
        return bound

    @property
    def advantage(self) -> float:
        """The most by which an attack's power can exceed its rate of false alarms.

        δ(0), or where that is not known what another (ε, δ) allows: (e^ε − 1 + 2δ)/(e^ε + 1).
        """
        growth = np.tanh(self.epsilons / 2)  # (e^ε − 1)/(e^ε + 1), and 2/(e^ε + 1) is the rest
        return float(np.clip(growth + (1 - growth) * self.deltas, 0.0, 1.0).min())


def curve_of(evaluated: Evaluated, slow_points: int = 21) -> PrivacyCurve:
    """δ at 81 values of ε from 0 to where δ is 1e-12, or a failure's δ is reached.

    A few more lie just below the end; it is ``slow_points`` where each takes up to seconds.
    """
    failure = float(evaluated.total.failure())
    answer = evaluated.epsilon(_end(failure))
    number = _MOST_POINTS if answer.method in _QUICK else slow_points
    return _drawn(answer.value, number, lambda epsilon: evaluated.delta(epsilon).value)


def curve_of_totals(
    parts: Sequence[Composite],
    *,
    known: tuple[float, float],
    rounds: int = 1,
    work: Work | None = None,
) -> PrivacyCurve:
    """The largest δ over ``parts``, which stand for users, from ε = 0 on.

    ``known`` is an (ε, δ) that holds and becomes a point of the curve; of a person with several
    ``rounds`` only ε at some δ are bounded; ``work`` is what is left for tight compositions.
    """
    epsilon, delta = known
    points = [known] if math.isfinite(epsilon) else []
    work = Work() if work is None else work
    if rounds == 1:
        failure = max((float(p.failure()) for p in parts if isinstance(p, Loss)), default=0.0)
        answer = largest_epsilon(parts, _end(failure), work=work)
        terms = sum(len(parts_of(p)) if isinstance(p, Loss) else 1 for p in parts)
        most = _MOST_POINTS if answer.method in (*_QUICK, "nothing") else _SLOW_POINTS
        number = min(max(_MOST_TERMS // max(terms, 1), _LEAST_POINTS), most)
        found = _drawn(answer.value, number, lambda e: largest_delta(parts, e, work).value)
        points += zip(found.epsilons.tolist(), found.deltas.tolist(), strict=True)
    else:
        levels = [0.5, 0.1, *(10.0**-k for k in range(2, 13, 2)), delta]
        bounds = [(largest_epsilon(parts, at, rounds).value, at) for at in levels if at > 0]
        points += [(0.0, 1.0), *(bound for bound in bounds if math.isfinite(bound[0]))]
    points.sort()
    epsilons, deltas = (np.array(column) for column in zip(*points, strict=True))
    return PrivacyCurve(epsilons, np.minimum.accumulate(deltas))


def _end(failure: float) -> float:
    return min(max(_SMALLEST_DELTA, failure * 1.001), 0.999)


def _drawn(end: float, number: int, delta_at: Callable[[float], float]) -> PrivacyCurve:
    top = end if math.isfinite(end) and end > 0 else 1.0
    # δ can fall steeply just below a worst case
    near = 1 - 10.0 ** -np.arange(2, 13, 1 if number == _MOST_POINTS else 5)
    epsilons = top * np.unique(np.concatenate([np.linspace(0, 1, number) ** 1.5, near]))
    deltas = np.array([min(delta_at(float(epsilon)), 1.0) for epsilon in epsilons])
    return PrivacyCurve(epsilons, np.minimum.accumulate(deltas))


def chances(curve: PrivacyCurve) -> tuple[float, float, float]:
    """The largest chance of a right guess, of a right alarm at 1% false ones, and its odds."""
    caught = float(curve.power(FALSE_ALARMS))
    return min(0.5 + curve.advantage / 2, 1.0), caught, caught / FALSE_ALARMS


GUESSED = {
    Adjacency.REPLACE_ONE: "which of two records a person contributed",
    Adjacency.ZERO_OUT: "whether a person's record was used or blanked out",
    Adjacency.ADD_REMOVE: "whether a person took part",
}
"""What an attacker guesses, by neighbour relation."""


def reading(evaluated: Evaluated, curve: PrivacyCurve | None = None) -> list[str]:
    """What the numbers mean, in two sentences without symbols."""
    curve = curve if curve is not None else curve_of(evaluated, 13)
    return reading_words(curve, GUESSED[evaluated.total.adjacency])


def reading_words(curve: PrivacyCurve, what: str, who: str = "") -> list[str]:
    """Two sentences about whoever guesses ``what``; ``who`` that is, if not the usual attacker."""
    _, caught, odds = chances(curve)
    who = who or "whoever knows all other records"
    return [
        f"Attack: {who} and guesses {what} is right in at most "
        f"{rounded_up(50 + 50 * curve.advantage, 2)}% of cases (50% is tossing a coin; membership "
        f"advantage {rounded_up(curve.advantage, 4)}).",
        f"Posterior odds: an alarm that goes off for 1% of those it is wrong about goes off for at "
        f"most {rounded_up(100 * caught, 2)}% of those it is right about; it turns even odds into "
        f"at most {rounded_up(odds, 2)} to 1 (probability "
        f"{rounded_up(100 * odds / (1 + odds), 1)}%).",
    ]
