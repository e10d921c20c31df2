"""Losses of black boxes: a promise that somebody states, without what is inside."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from operator import itemgetter
from typing import Any, final

import numpy as np

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, register
from privlearn.losses.numerics import up, valid_epsilon, valid_number, valid_order
from privlearn.losses.output_laws import Discrete, LawPair, shifted
from privlearn.losses.pure import PureLoss, response_pair
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text, float_up, round_up
from privlearn.values.json_forms import LIST, Form, check_curve

_MOST_TERMS = 64  # Of the sum for a person with many rows


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class ZCDPLoss(Loss):
    """A black box that is ρ-zCDP: D_α <= αρ for all α > 1 (Bun & Steinke 2016, Definition 1.1)."""

    kind = "zcdp"
    rho: Fraction
    adjacency: Adjacency

    def __init__(self, rho: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        self._set(rho=valid_number("rho", rho, "1e-100", "1e100"), adjacency=adjacency)

    def renyi(self, order: float) -> float:
        return up(valid_order(order) * float_up(self.rho))

    def zcdp(self) -> Fraction:
        return self.rho

    def doubled(self) -> ZCDPLoss:
        return ZCDPLoss(4 * self.rho)

    def several(self, visits: int, apart: int) -> ZCDPLoss:
        return replace(self, rho=visits**2 * self.rho)

    def noisier(self, factor: Fraction) -> ZCDPLoss:
        return replace(self, rho=self.rho / factor**2)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [shifted(math.sqrt(2 * self.rho))]


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class RenyiCurve(Loss):
    """Any mechanism for which Rényi bounds at finitely many orders are known.

    Between two orders the bound is the chord of the convex function (α−1)D_α, which is 0 at α = 1
    (van Erven & Harremoës 2014, Corollary 2); beyond the largest order there is none.  An order
    that is not a float is asked for by its nearest float.
    """

    kind = "renyi-curve"
    points: tuple[tuple[Fraction, Fraction], ...]
    adjacency: Adjacency

    def __init__(
        self, curve: Mapping[Exact, Exact], *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        points = sorted((exact("order", a), exact("epsilon", e)) for a, e in curve.items())
        if not points or points[0][0] <= 1 or any(e < 0 for _, e in points):
            raise ValueError(f"curve = {dict(curve)!r}: needs orders > 1 with bounds >= 0")
        if len({a for a, _ in points}) != len(points):
            raise ValueError(f"curve = {dict(curve)!r}: names an order twice")
        self._set(points=tuple(points), adjacency=adjacency)

    def renyi(self, order: float) -> float:
        alpha = Fraction(valid_order(order))
        left, left_value = Fraction(1), Fraction(0)
        for right, epsilon in self.points:
            right_value = (right - 1) * epsilon
            if order == float(right):
                return float_up(epsilon)
            if alpha <= right:
                share = (alpha - left) / (right - left)
                chord = left_value + share * (right_value - left_value)
                return float_up(chord / (alpha - 1))
            left, left_value = right, right_value
        return math.inf

    def numbers(self) -> dict[str, Any]:
        return {"curve": [[exact_text(a), exact_text(e)] for a, e in self.points]}

    def doubled(self) -> RenyiCurve:
        """The weak triangle inequality, at half of each order above 2; see `as_replace_one`."""
        points: dict[Exact, Exact] = {}
        for order, bound in self.points:
            if order > 2:
                alpha = order / 2
                # bounds do not fall with the order: a float above it will do
                other = Fraction(self.renyi(float_up(order - 1)))
                points[alpha] = round_up((alpha - Fraction(1, 2)) / (alpha - 1) * bound + other)
        if not points:
            raise AdjacencyError("a Rényi curve needs an order above 2 to be converted")
        return RenyiCurve(points)

    def several(self, visits: int, apart: int) -> RenyiCurve:
        """D_α <= Σ_{j<=m} (mα/β_j)·D at β_j = m(α−1) + j, for m rows of one person."""
        points: dict[Exact, Exact] = {}
        for order, _ in self.points:
            if order > visits:
                points[order / visits] = round_up(self._group(order, visits))
        if not points:
            raise ValueError(
                f"visits = {visits}: a Rényi curve of orders up to {exact_text(self.points[-1][0])}"
                " says nothing about so many; it needs an order above their number"
            )
        return RenyiCurve(points, adjacency=self.adjacency)

    def _group(self, order: Fraction, visits: int) -> Fraction:
        """The sum at mα = ``order``, terms of many visits by runs: divergences grow with orders."""
        total, first = Fraction(0), order - visits + 1
        run = -(-visits // _MOST_TERMS)
        for start in range(0, visits, run):
            number = min(run, visits - start)
            last = first + start + number - 1
            total += number * order / (first + start) * round_up(self._chord(last))
        return total

    def _chord(self, order: Fraction) -> Fraction:
        """The bound at an order up to the largest, without rounding."""
        place = bisect_left(self.points, order, key=itemgetter(0))
        right, bound = self.points[place]
        left, before = self.points[place - 1] if place else (Fraction(1), Fraction(0))
        share = (order - left) / (right - left)
        below = (left - 1) * before
        return (below + share * ((right - 1) * bound - below)) / (order - 1)

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> RenyiCurve:
        check_curve(f"{cls.kind} loss", data["curve"])
        return cls(dict(data["curve"]), adjacency=adjacency)

    @classmethod
    def json_form(cls) -> Form:
        return {"curve": LIST}


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class ApproxLoss(Loss):
    """A black box that is (ε, δ)-DP.

    On every pair of neighbours it is post-processing of: with probability δ reveal which of the
    two it is, else run binary ε-randomized response (Kairouz, Oh & Viswanath 2015; its trade-off
    function is the least that (ε, δ)-DP allows, so this is Blackwell's theorem).  So k such boxes
    and other losses, composed adaptively, are no worse than the following: with probability at
    most Σδ_i, the same under both neighbours, everything is revealed; else the other losses are
    composed with k `PureLoss` losses.  If that is (ε′, δ′)-DP, the whole is
    (ε′, f + (1−f)δ′)-DP for every f >= Σδ_i.

    Alone it has no Rényi curve, no zCDP constant and no worst case: a failure reveals everything.
    `failure` and `unless_failed` are what is added up and what is composed.
    """

    kind = "approx"
    epsilon: Fraction
    delta: Fraction
    adjacency: Adjacency

    def __init__(
        self, epsilon: Exact, delta: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        failure = exact("delta", delta)
        if not Fraction(1, 10**300) <= failure < 1:
            raise ValueError(
                f"delta = {delta!r}: must lie in [1e-300, 1); without δ this is `PureLoss`"
            )
        self._set(epsilon=valid_epsilon(epsilon), delta=failure, adjacency=adjacency)

    def renyi(self, order: float) -> float:
        valid_order(order)
        return math.inf

    def failure(self) -> Fraction:
        """The probability δ of the event in which nothing is promised."""
        return self.delta

    def unless_failed(self) -> Loss:
        """The loss apart from that event."""
        return PureLoss(self.epsilon, adjacency=self.adjacency)

    def doubled(self) -> ApproxLoss:
        delta = _failures(self, 2)
        if delta is None:
            raise AdjacencyError(f"two steps of {self.to_dict()} fail with probability 1")
        return ApproxLoss(2 * self.epsilon, delta)

    def several(self, visits: int, apart: int) -> ApproxLoss:
        delta = _failures(self, visits)
        if delta is None:
            raise ValueError(
                f"visits = {visits}: δ = {exact_text(self.delta)} at ε = "
                f"{exact_text(self.epsilon)} for one row grows to 1 or more for so many, which "
                "promises nothing"
            )
        return replace(self, epsilon=visits * self.epsilon, delta=delta)

    def noisier(self, factor: Fraction) -> ApproxLoss:
        return replace(self, epsilon=self.epsilon / factor)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [_revealing(float(self.epsilon), float(self.delta))]


def _failures(loss: ApproxLoss, steps: int) -> Fraction | None:
    """δ·(1 + e^ε + … + e^{(steps−1)ε}), rounded up; None where it is 1 or more."""
    precise = Context(prec=40, rounding=ROUND_CEILING)
    epsilon = precise.divide(Decimal(loss.epsilon.numerator), Decimal(loss.epsilon.denominator))
    # exp is rounded to nearest whatever the context says: one unit of the last digit on top
    factor = precise.exp(epsilon).next_plus(precise)
    total, power = Decimal(1), factor  # of the first n terms, and e^{nε}; n are the leading bits
    for bit in f"{steps:b}"[1:]:
        total = precise.add(total, precise.multiply(power, total))
        power = precise.multiply(power, power)
        if bit == "1":
            total = precise.add(Decimal(1), precise.multiply(factor, total))
            power = precise.multiply(factor, power)
        if loss.delta * Fraction(total) >= 1:
            return None
    delta = round_up(loss.delta * Fraction(total))
    return delta if delta < 1 else None


def _revealing(epsilon: float, delta: float) -> LawPair:
    p, q = response_pair(epsilon, 2)
    known, rest = math.log(delta), math.log1p(-delta)
    return (
        Discrete(np.r_[p.log_mass + rest, known, -np.inf]),
        Discrete(np.r_[q.log_mass + rest, -np.inf, known]),
    )
