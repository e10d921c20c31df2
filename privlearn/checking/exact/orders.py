r"""A curve of bounds against the exact divergence, at as many orders as are cheap.

The exact curve is computed at some orders, the knots, bounds are asked at thousands.  Between knots
D does not fall with the order, and (α−1)D is convex (van Erven & Harremoës 2014, Theorem 3 and
Corollary 2).  Where a bound is nearest to the curve, or leaps, the exact value is computed, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple

import numpy as np

from privlearn.checking.exact.distributions import Value
from privlearn.checking.mined import mined
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.base import is_foreign
from privlearn.losses.declared import ORDERS as RECORDED
from privlearn.rows.domains import Array

Exact = Callable[[float], tuple[Value, str]]

_FIRST, _LAST = 1.001, 1e4  # Of the orders that are asked most densely
_NEAREST = 40  # Orders at which the exact value is computed, besides the knots
_LEAPS = 16  # Places where a curve bends most, about which more orders are asked
_UNITS = 4  # Of the last place of a moment that is near 1, by which a bound may be off
_ROUNDING = 1e-9  # Relative, of what follows from other orders


class Point(NamedTuple):
    """A bound at an order, and the exact value there, or what it is at least."""

    order: float
    claimed: float
    exact: Value
    pair: str


class Scan(NamedTuple):
    """A curve of bounds, looked at."""

    points: tuple[Point, ...]  # Where bound and exact value were compared
    orders: Array  # At which the bound was asked
    claimed: Array  # The bounds there
    failed: int  # Number of bounds at knots without an exact value
    troubles: tuple[str, ...]  # What bounds there are that are no numbers

    @property
    def enough(self) -> bool:
        """Whether exact values could be computed almost everywhere."""
        return len(self.points) > 0 and 4 * self.failed <= len(self.points)


def knots(per_decade: int) -> list[float]:
    """Orders at which the exact value is computed first."""
    low, high = math.log10(_FIRST - 1), math.log10(_LAST)
    number = round((high - low) * per_decade) + 1
    return [1 + 1e-6, 1 + 1e-5, 1 + 1e-4, *(1 + np.logspace(low, high, number)).tolist()]


def code_of(loss: Loss) -> list[object]:
    """Where numbers may be mentioned at which a kind of another package does something special."""
    return [] if not is_foreign(loss) else [loss, type(loss), *vars(type(loss)).values()]


def dense_orders(per_decade: int, *things: object) -> Array:
    """Orders at which bounds are asked, among them those that the code of ``things`` mentions."""
    near = np.logspace(math.log10(_FIRST - 1), math.log10(_LAST), 7 * per_decade + 1)
    far = np.r_[np.logspace(-9, -3, 6 * per_decade // 4), np.logspace(4, 7, 3 * per_decade // 4)]
    whole = np.arange(2.0, 2 + min(300, 2 * per_decade))
    mentioned = [x for value in mined(*things).values() for x in (value, 1 + value)]
    made = np.r_[1 + near, 1 + far, whole, whole + 0.5, 2.0 ** np.arange(1, 21), mentioned]
    made = np.r_[made, [float(order) for order in RECORDED]]
    return np.unique(made[(made > 1 + 5e-10) & (made < 1e9)])


@dataclass
class _Asked:
    """Bounds by order; the least one where a second answer is another."""

    bound: Callable[[float], float]
    found: dict[float, float] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def at(self, orders: Iterable[float]) -> None:
        for order in orders:
            self.found[order] = min(self._one(order), self.found.get(order, math.inf))

    def _one(self, order: float) -> float:
        try:
            value = self.bound(order)
        except Exception as error:  # whatever code of somebody else does
            self.troubles.append(f"at {order:g} it raises {type(error).__name__}: {error!s:.80}")
            return math.inf
        if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
            self.troubles.append(f"at {order:g} it is {value!r:.80}")
            return math.inf
        return float(value)

    def curve(self) -> tuple[Array, Array]:
        orders = np.array(sorted(self.found))
        return orders, np.array([self.found[order] for order in orders.tolist()])


def scan(
    bound: Callable[[float], float],
    exact: Exact,
    at: Sequence[float],
    dense: Array,
    *,
    nearest: int = _NEAREST,
) -> Scan:
    """Compares a curve with the exact one.

    Args:
        bound: on D at an order.
        exact: D at an order, and what it is of.
        at: orders at which ``exact`` is computed.
        dense: orders at which ``bound`` is asked.
        nearest: orders at which the exact value is computed, besides those of ``at``.

    Raises:
        CheckError: no exact value could be computed.
    """
    known = _Known(exact, at)
    asked = _Asked(bound)
    asked.at([*dense.tolist(), *at])
    if nearest >= _NEAREST:  # in full: whole orders as integers, too, and all in another order
        asked.at(int(order) if order.is_integer() else order for order in dense[::-1].tolist())
        asked.at(_leaps(*asked.curve()))
    orders, claimed = asked.curve()
    points = [Point(order, asked.found[order], *value) for order, value in known.values.items()]
    for i in _nearest(claimed, known.smooth(orders), known.least(orders), nearest):
        order = float(orders[i])
        if order not in known.values:
            points.append(Point(order, float(claimed[i]), *known.at(order)))
    points = [_tolerant(point) for point in sorted(points)]
    failed = sum(asked.found[order] < math.inf for order in known.failed)
    return Scan(tuple(points), orders, claimed, failed, tuple(asked.troubles))


def _tolerant(point: Point) -> Point:
    """With the rounding of a formula in doubles, log(moment)/(order − 1), in the error."""
    value, error = point.exact
    return point._replace(exact=Value(value, error + _UNITS * 2.0**-52 / (point.order - 1)))


def _leaps(orders: Array, claimed: Array) -> list[float]:
    """Orders about places where the curve bends much more than around there."""
    seen = np.isfinite(claimed) & (claimed > 0)
    x, kept = np.unique(np.log(orders[seen] - 1), return_index=True)
    y = np.log(claimed[seen][kept])
    if len(x) < 8:
        return []
    with np.errstate(over="ignore"):
        bends = np.abs(np.diff(np.diff(y) / np.diff(x)))
    most = np.argsort(bends)[-_LEAPS:] + 1
    parts = [np.exp(np.linspace(x[i - 1], x[i + 1], 10)[1:-1]) for i in most]
    return [1 + float(order) for order in np.unique(np.concatenate(parts))]


def _nearest(claimed: Array, smooth: Array, least: Array, most: int) -> Array:
    """Where bounds are least in proportion to the curve, and where they are below what it is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(claimed == smooth, 1.0, claimed / smooth)
        short = np.where(claimed == least, 1.0, claimed / least)
    shares, short = (np.where(np.isnan(part), np.inf, part) for part in (shares, short))
    sides = np.r_[np.inf, shares, np.inf]
    lowest = np.flatnonzero((shares <= sides[:-2]) & (shares <= sides[2:]) & (shares < 1.1))
    worst = lowest[np.argsort(shares[lowest], kind="stable")[:most]]
    below = np.argsort(short, kind="stable")[:4]
    return np.unique(np.r_[worst, below[short[below] < 1]])


class _Known:
    """The exact curve at its knots, and what follows from that elsewhere."""

    def __init__(self, exact: Exact, at: Sequence[float]) -> None:
        self._exact = exact
        self.values: dict[float, tuple[Value, str]] = {}
        self.failed: list[float] = []
        for order in sorted(at):
            try:
                self.values[order] = exact(order)
            except CheckError:
                self.failed.append(order)
                if len(self.failed) == len(at):
                    raise
        self._orders = np.array(list(self.values))
        self._d, self._error = (
            np.array([value[part] for value, _ in self.values.values()]) for part in (0, 1)
        )

    def at(self, order: float) -> tuple[Value, str]:
        """The exact value; where it cannot be computed, what it is at least."""
        inside = len(self._orders) > 0 and self._orders[0] <= order <= self._orders[-1]
        if inside or not len(self._orders):
            try:
                return self._exact(order)
            except CheckError:
                pass
        least = float(self.least(np.array([order]))[0])
        return Value(least, _ROUNDING * least if least < math.inf else 0.0), "from other orders"

    def least(self, orders: Array) -> Array:
        """What the exact curve is at least: it does not fall, and (α−1)D is convex."""
        found = np.zeros(len(orders))
        if not len(self._orders):
            return found
        low, high = self._d - self._error, self._d + self._error
        a = np.r_[1.0, self._orders]
        k_low, k_high = (np.r_[0.0, part * (self._orders - 1)] for part in (low, high))
        i = np.searchsorted(self._orders, orders, "right")  # a[i] <= order
        found = np.where(i > 0, np.r_[0.0, low][i], 0.0)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            slopes = (k_low[1:] - k_high[:-1]) / np.diff(a)
            before = (k_low[i] + slopes[np.maximum(i - 1, 0)] * (orders - a[i])) / (orders - 1)
            found = np.where((i > 0) & np.isfinite(before), np.maximum(found, before), found)
            slopes = (k_high[1:] - k_low[:-1]) / np.diff(a)  # from a[j] to a[j + 1]
            j = np.minimum(i + 1, len(a) - 2)
            behind = (k_low[j] - slopes[j] * (a[j] - orders)) / (orders - 1)
            good = (i + 2 < len(a)) & np.isfinite(behind)
        return np.maximum(np.where(good, np.maximum(found, behind), found), 0.0)

    def smooth(self, orders: Array) -> Array:
        """The curve through the knots; beyond them, and where it is not smooth, as `least`."""
        from scipy.interpolate import PchipInterpolator

        found = self.least(orders)
        seen = np.isfinite(self._d) & (self._d > 0)
        if np.count_nonzero(seen) < 4:
            return found
        at = self._orders[seen]
        through = PchipInterpolator(np.log(at - 1), np.log(self._d[seen]))
        inside = (orders >= at[0]) & (orders <= at[-1])
        found[inside] = np.exp(through(np.log(orders[inside] - 1)))
        return found
