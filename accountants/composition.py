r"""Tight (epsilon, delta) of a committed plan, worst case over fully adaptive inputs.

A plan is a sequence of steps in time order.  At each step an adversary, who has seen all earlier
outputs, picks the neighbouring inputs; L is the privacy loss log dP/dQ of all outputs so far and
x = e^L.  delta(epsilon) = sup E_Q[(x - e^epsilon)_+] over all adversaries.  Shifting L by epsilon
makes the goal (x - 1)_+, and delta(epsilon) = V_0(-epsilon) for every epsilon from one backward
recursion: with U(x) = x V(log x),

    U_n(x) = (x - 1)_+,    U_i(x) = sup over the laws Y = dP/dQ of step i of E_Q[U_{i+1}(x Y)].

`loss_grid` holds laws on a lattice, from above and from below; `worst_case` the value functions V
and what is special about bounded range; here is the choice of what to compute:

- without bounded range, the law of all dominating pairs together;
- with it, the recursion backward in the listed order; for any order, dominating pairs first and,
  if sizes differ, the recursion in which the adversary also picks the next step;
- where that is too much work, a Gaussian majorant of many small steps;
- steps of which only a Rényi curve is known take a part of δ.

Proofs: ``docs/proofs.md#composition``.  Nothing rests on independence of the steps.  Numbers are
floats: round parameters up before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privlearn.accountants.loss_grid import (
    ASKED,
    COARSEST,
    FINE,
    ULP,
    DeltaCurve,
    Mesh,
    TooLong,
    block,
    curve_of_law,
    dyadic,
    frame,
    merged,
)
from privlearn.accountants.step_curves import StepCurve
from privlearn.accountants.worst_case import FixedStep, Values, best_top, gaussian_cover, order_free
from privlearn.losses.conversion import RoundedNumber, gaussian_delta, gaussian_epsilon
from privlearn.losses.steps import (
    BoundedRangeStep,
    CurveStep,
    Direction,
    GaussianStep,
    Order,
    PairStep,
    Step,
    StepPlan,
    check_step,
)

_ACCURACY = 1.5e-4  # Share of the variance that a grid may add
_ORDERS = 1000  # Bounded-range steps in a recursion over all orders
_FEW_KINDS = 16  # Of steps whose largest losses are looked at before a lattice is
_NEAR = 5e-6  # Relative distance of two simple bounds between which nothing else is looked for
_SPARE = 3e-3  # Share of ε by which the better direction may first be too large
_APART = 2.0**-46  # Relative distance of an answer to where it is too small
_STEEP = 50.0  # Logarithm of a quotient beyond which it says nothing about where a curve crosses

EFFORT = 1.2e7
"""(Bounded-range steps) x (grid points) of a recursion: about 3 s."""


class _Frame(NamedTuple):
    """Grid of a backward recursion, and the Renyi order that describes its tails best."""

    step: float
    low: float
    high: float
    order: float
    steps: int


@dataclass(frozen=True, slots=True)
class _Tight:
    """A curve of dominated and bounded-range steps, maximum over both directions."""

    curves: tuple[DeltaCurve, ...]
    lower_curves: tuple[DeltaCurve, ...]
    method: str

    def upper(self, epsilon: float) -> float:
        return max(curve.upper(epsilon) for curve in self.curves)

    def lower(self, epsilon: float) -> float:
        return max((curve.lower(epsilon) for curve in self.lower_curves), default=0.0)


class Composition:
    """The (epsilon, delta) curve of a committed plan, worst case over adaptive inputs.

    Args:
        plan: steps with counts, in time order.
        delta: the resolution: tails of about 1e-6 of it are dropped (and added to every answer).
            `epsilon` may be asked at any delta, `delta` at any epsilon; both stay valid.
        order: "listed" for the time order of the plan, "any" for every order, also one that is
            chosen from earlier outputs.
        effort: bound on (bounded-range steps) x (grid points); the default takes about 3 s.

    Raises:
        ValueError: an empty plan, a count < 1, or a parameter out of range.

    >>> from privlearn.losses.steps import GaussianStep
    >>> answer = Composition([(GaussianStep(2.5), 1)]).epsilon(1e-6)
    >>> round(answer.value, 4)
    8.3062
    """

    def __init__(
        self,
        plan: StepPlan,
        *,
        delta: float = 1e-6,
        order: Order = "listed",
        effort: float = EFFORT,
    ):
        if not plan:
            raise ValueError("plan = []: needs at least one step")
        if not 1e-40 <= delta < 1:
            raise ValueError(f"delta = {delta!r}: must lie in [1e-40, 1)")
        for step, count in plan:
            check_step(step, count)
        self._plan = tuple(plan)
        self._delta = delta
        self._order = order
        self._effort = effort
        self._others = [(s, n) for s, n in plan if isinstance(s, CurveStep)]
        self._known = [(s, n) for s, n in plan if not isinstance(s, CurveStep)]
        self._renyi = StepCurve(self._plan)
        self._renyi_known = StepCurve(self._known)
        self._renyi_others = StepCurve(self._others)
        self._mass = self._gaussian_mass()
        self._solved: list[_Tight] | None = None if self._known else []

    def epsilon(self, delta: float) -> RoundedNumber:
        """An epsilon >= 0 such that the whole plan is (epsilon, delta)-DP."""
        if not 0 < delta < 1:
            raise ValueError(f"delta = {delta!r}: must lie in (0, 1)")
        if self._mass is not None:
            exact = gaussian_epsilon(self._mass, delta)
            return RoundedNumber(exact.value, exact.error_bound, "gaussian")
        pure = self._pure()
        options = [(self._renyi.epsilon(delta), "renyi"), (pure, "pure")]
        value, method = min(options)
        least = self._by_largest(pure, delta)
        if value - least <= _NEAR * value:
            return RoundedNumber(value, _gap(value, least), method)
        for tight in self._tight:
            if self._others:
                options.append((self._shared_epsilon(tight, delta), f"{tight.method}+renyi"))
            else:
                options.append((_invert(tight.upper, delta), tight.method))
        value, method = min(options)
        low = max((_invert_lower(t.lower, delta, value) for t in self._tight), default=None)
        if low is None:
            return RoundedNumber(value, math.inf if value else 0.0, method)
        return RoundedNumber(value, _gap(value, low), method)

    def delta(self, epsilon: float) -> RoundedNumber:
        """A delta such that the whole plan is (epsilon, delta)-DP."""
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise ValueError(f"epsilon = {epsilon!r}: must be >= 0 and finite")
        if self._mass is not None:
            exact = gaussian_delta(self._mass, epsilon)
            return RoundedNumber(exact.value, exact.error_bound, "gaussian")
        if epsilon >= self._pure():
            return RoundedNumber(0.0, 0.0, "pure")
        options = [(self._renyi.delta(epsilon), "renyi")]
        for tight in self._tight:
            if self._others:
                options.append((self._shared_delta(tight, epsilon), f"{tight.method}+renyi"))
            else:
                options.append((tight.upper(epsilon), tight.method))
        value, method = min(options)
        low = max((tight.lower(epsilon) for tight in self._tight), default=0.0)
        return RoundedNumber(value, _gap(value, low), method)

    @property
    def _tight(self) -> list[_Tight]:
        if self._solved is None:
            self._solved = []
            with suppress(TooLong):  # the bound by Renyi curves remains
                self._solved = self._solve()
        return self._solved

    # -- simple bounds

    def _gaussian_mass(self) -> float | None:
        mass = 0.0
        for step, count in self._plan:
            if not isinstance(step, GaussianStep):
                return None
            mass += step.mu_squared * count
        return mass * (1 + (2 * len(self._plan) + 2) * ULP)

    def _pure(self) -> float:
        total = 0.0
        for step, count in self._plan:
            total += step.largest() * count
        return total * (1 + (2 * len(self._plan) + 2) * ULP)

    def _by_largest(self, pure: float, delta: float) -> float:
        """A lower bound of epsilon: what is lost where every loss is the largest possible."""
        chance = 1.0
        if self._others or math.isinf(pure) or len(self._known) > _FEW_KINDS:
            return 0.0
        for step, count in self._known:
            if isinstance(step, BoundedRangeStep):
                return 0.0
            loss, p, _, spill = step.points("remove", COARSEST, 1.0)
            top = float(p[loss >= step.largest() * (1 - 4 * ULP)].sum()) - spill
            chance *= max(top * (1 - 1e-12), 0.0) ** count
            if chance <= delta:
                return 0.0
        return max(pure * (1 - 1e-12) + math.log1p(-delta / chance), 0.0)

    # -- tight and Renyi parts together: delta splits

    def _shared_epsilon(self, tight: _Tight, delta: float) -> float:
        def total(share: float) -> float:
            rest = self._renyi_others.epsilon(delta * share)
            return _invert(tight.upper, delta * (1 - share)) + rest

        shares = [0.5, 0.1, 0.25, 0.75, 0.9, 0.03, 0.97]
        return min(total(share) for share in shares) * (1 + 4 * ULP)

    def _shared_delta(self, tight: _Tight, epsilon: float) -> float:
        def total(share: float) -> float:
            rest = self._renyi_others.delta(epsilon * share)
            return tight.upper(epsilon * (1 - share) * (1 - 4 * ULP)) + rest

        return min(1.0, *(total(k / 32) * (1 + 4 * ULP) for k in range(1, 32)))

    # -- the tight curve

    def _solve(self) -> list[_Tight]:
        ranged = [(s, n) for s, n in self._known if isinstance(s, BoundedRangeStep)]
        dominated = [(s, n) for s, n in self._known if not isinstance(s, BoundedRangeStep)]
        sampled = any(step.both_ways for step, _ in dominated)
        directions: list[Direction] = ["remove", "add"] if sampled else ["remove"]
        tail = 1e-5 * self._delta
        if not ranged:
            mesh = FINE if self._effort >= EFFORT else Mesh()
            roughly = {way: frame(merged(dominated), tail, way).epsilon for way in directions}
            curves: tuple[DeltaCurve, ...] = ()
            for way in sorted(roughly, key=lambda way: -roughly[way]):
                curve = None
                if curves:  # what is the better direction may be known less well
                    worse = _invert(curves[0].upper, ASKED * tail)
                    spare = max((worse - roughly[way]) / 4, _SPARE * worse)
                    curve = curve_of_law(block(dominated, tail, mesh, way, spare))
                    if curve.upper(worse) > ASKED * tail:
                        curve = None
                curve = curve or curve_of_law(block(dominated, tail, mesh, way))
                curves = (*curves, curve)
            return [_Tight(curves, curves, "dominating pairs")]
        if self._order == "any" and len({s for s, _ in ranged}) > 1:
            return self._any_order(dominated, ranged, tail, directions)
        sequence: Sequence[tuple[Step, int]]
        sequence = self._known if self._order == "listed" else [*dominated, *ranged]
        if not self._affordable(sequence):
            lower = self._fixed(dominated, ranged, tail, directions)
            return [self._majorant(dominated, ranged, tail, directions, lower)]
        curves = tuple(self._backward(sequence, tail, way) for way in directions)
        return [_Tight(curves, curves, f"backward recursion, {self._order} order")]

    def _any_order(
        self,
        dominated: list[tuple[PairStep, int]],
        ranged: list[tuple[BoundedRangeStep, int]],
        tail: float,
        directions: list[Direction],
    ) -> list[_Tight]:
        """Every order: lemma 6 for small steps, all orders of the large ones; else `_majorant`.

        From below, two orders are tried.
        """
        rising = sorted(ranged, key=lambda part: part[0].epsilon)
        if not self._affordable(self._known):
            lower = self._fixed(dominated, ranged, tail, directions)
            return [self._majorant(dominated, ranged, tail, directions, lower)]
        tried = tuple(
            self._backward([*dominated, *steps], tail, way)
            for way in directions
            for steps in (rising, rising[::-1])
        )
        few, rest = self._few(ranged)
        values = self._best_order(few)
        cover = gaussian_cover(np.repeat([s.epsilon for s, _ in rest], [n for _, n in rest]))
        steps: list[tuple[PairStep, int]] = list(dominated)
        if cover:
            steps.append((GaussianStep(cover), 1))
        uppers = []
        for way in directions:
            final = values.copy()
            self._apply(final, steps, tail, way)
            uppers.append(DeltaCurve(final.curve().upper, lambda _: 0.0))
        mixed = _Tight(tuple(uppers), tried, "backward recursion, any order")
        return [mixed, self._majorant(dominated, ranged, tail, directions, tried)]

    def _fixed(
        self,
        dominated: list[tuple[PairStep, int]],
        ranged: list[tuple[BoundedRangeStep, int]],
        tail: float,
        directions: list[Direction],
    ) -> tuple[DeltaCurve, ...]:
        order = min((self._frame(self._known).order - 2) / 1.5 + 0.5, 50.0)
        steps = list(dominated)
        for part, count in ranged:
            top = best_top(part.epsilon, max(order, 1.001))
            steps.append((FixedStep(part.epsilon, top), count))
        return tuple(curve_of_law(block(steps, tail, Mesh(), way)) for way in directions)

    def _few(
        self, ranged: list[tuple[BoundedRangeStep, int]]
    ) -> tuple[list[tuple[BoundedRangeStep, int]], list[tuple[BoundedRangeStep, int]]]:
        """The largest sizes, as many as the recursion over all orders can hold, and the rest."""
        merged: dict[BoundedRangeStep, int] = {}
        for step, count in ranged:
            merged[step] = merged.get(step, 0) + count
        sizes = sorted(merged.items(), key=lambda part: -part[0].epsilon)
        states, taken = 1, 0
        for _, count in sizes:
            if states * (count + 1) * (taken + 1) > _ORDERS:
                break
            states *= count + 1
            taken += 1
        return sizes[:taken], sizes[taken:]

    def _best_order(self, few: list[tuple[BoundedRangeStep, int]]) -> Values:
        """The value where the adversary also picks which of these steps comes next."""
        step, low, high, order, _ = self._frame(self._known)
        step = min(2 * step, COARSEST)
        start = Values(low, high, step, two_sided=False)
        known = {tuple(0 for _ in few): start}
        for used in itertools.product(*(range(n + 1) for _, n in few)):
            spread = math.fsum(k * s.epsilon**2 / 4 for k, (s, _) in zip(used, few, strict=True))
            for i, (part, _) in enumerate(few):
                if not used[i]:
                    continue
                before = (*used[:i], used[i] - 1, *used[i + 1 :])
                values = known[before].copy()
                size = part.epsilon
                values.ranged(size, order, 4 * size**2 > spread - size**2 / 4)
                if used in known:
                    known[used].join(values)
                else:
                    known[used] = values
        return known[tuple(n for _, n in few)]

    def _majorant(
        self,
        dominated: list[tuple[PairStep, int]],
        ranged: list[tuple[BoundedRangeStep, int]],
        tail: float,
        directions: list[Direction],
        lower: tuple[DeltaCurve, ...],
    ) -> _Tight:
        steps = [*dominated, *order_free(ranged)]
        uppers = tuple(curve_of_law(block(steps, tail, Mesh(), way)) for way in directions)
        return _Tight(uppers, lower, "Gaussian majorant, any order")

    def _backward(
        self, sequence: Sequence[tuple[Step, int]], tail: float, way: Direction
    ) -> DeltaCurve:
        step, low, high, order, _ = self._frame(sequence)
        values = Values(low, high, step)
        collected: list[tuple[PairStep, int]] = []
        spread = 0.0
        for part, count in reversed(sequence):
            if isinstance(part, CurveStep):
                raise AssertionError("curves have no place in the recursion")
            if not isinstance(part, BoundedRangeStep):
                collected.append((part, count))
                continue
            spread += self._apply(values, collected, tail, way)
            collected = []
            for _ in range(count):
                values.ranged(part.epsilon, order, 4 * part.epsilon**2 > spread)
                spread += part.epsilon**2 / 4
        self._apply(values, collected, tail, way)
        return values.curve()

    def _apply(
        self, values: Values, steps: list[tuple[PairStep, int]], tail: float, way: Direction
    ) -> float:
        if not steps:
            return 0.0
        law = block(steps, tail / len(self._known), Mesh(values.step), way)
        values.dominated(law)
        return law.std**2

    def _frame(self, sequence: Sequence[tuple[Step, int]]) -> _Frame:
        """Grid step and ends, and the order at which the tails are best described.

        Any choice is valid.  Each bounded-range step adds about step^2/6 to the variance.
        """
        curve = self._renyi_known
        epsilon = min(curve.epsilon(self._delta), self._pure_known())
        variance = 2 * curve(2.0 if curve.sampled else 1.0625)
        std = math.sqrt(variance)
        steps = sum(n for s, n in sequence if isinstance(s, BoundedRangeStep))
        low, high = -epsilon - 2 * std - 0.1, min(6 * std, self._pure_known()) + 0.1
        wanted = math.sqrt(6 * _ACCURACY * variance / steps)
        affordable = 1.5 * steps * (high - low) / self._effort
        wanted = max(wanted, min(affordable, 4 * wanted))
        order = 2 + 1.5 * epsilon / variance
        return _Frame(dyadic(wanted * math.sqrt(2)), low, high, order, steps)

    def _affordable(self, sequence: Sequence[tuple[Step, int]]) -> bool:
        frame = self._frame(sequence)
        return frame.steps * (frame.high - frame.low) / frame.step <= self._effort

    def _pure_known(self) -> float:
        total = 0.0
        for step, count in self._known:
            total += step.largest() * count
        return total


def _gap(value: float, low: float) -> float:
    """value - low, rounded up, at most value."""
    return min(math.nextafter(max(value - low, 0.0), math.inf), value)


def _invert(upper: Callable[[float], float], delta: float) -> float:
    """An epsilon at which ``upper``, which falls, is at most delta; about the least."""
    if upper(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while not (at_high := upper(high)) <= delta:
        low, high = high, 2 * high
        if high > 1e9:
            return math.inf
    return _crossing(upper, delta, low, high, at_high)[1]


def _invert_lower(lower: Callable[[float], float], delta: float, high: float) -> float:
    """A point where the lower bound exceeds delta, so that the exact epsilon is not below it."""
    if math.isinf(high):
        return 0.0
    for share in (1e-6, 1e-3, 0.1, 0.5, 1.0):  # nothing is known of it far below
        low = high * (1 - share)
        if lower(low) > delta:
            return _crossing(lower, delta, low, high, lower(high))[0]
    return 0.0


def _crossing(
    curve: Callable[[float], float], delta: float, low: float, high: float, at_high: float
) -> tuple[float, float]:
    """Neighbours: ``curve`` is above delta at the first and at most delta at the second.

    By false position on the logarithm, which is nearly straight; halved where it jumps.
    """

    def excess(value: float) -> float:
        return min(max(math.log(value / delta), -_STEEP), _STEEP) if value > 0 else -_STEEP

    at_low, at_high = excess(curve(low)), excess(at_high)
    moved, number = 0, 0
    while high - low > (apart := _APART * high):
        number += 1
        share = at_low / (at_low - at_high) if at_low > at_high and number % 8 else 0.5
        middle = min(max(low + (high - low) * share, low + apart / 2), high - apart / 2)
        found = curve(middle)
        if found > delta:
            low, at_low = middle, excess(found)
            at_high /= 2 if moved > 0 else 1  # an end that stays loses weight
            moved = 1
        else:
            high, at_high = middle, excess(found)
            at_low /= 2 if moved < 0 else 1
            moved = -1
    return low, high
