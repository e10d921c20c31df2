r"""Laws of outputs, and how far two of them are apart, computed and not bounded.

With g = α·log p − (α−1)·log q the divergence is D_α = log ∫ e^g / (α−1), by Gauss-Legendre panels
that are halved until that changes nothing that matters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privlearn.checking.reports import Coverage
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Density, Discrete, Distribution, Normal, Product, normal
from privlearn.rows.domains import Array
from privlearn.values.validate import finite

if TYPE_CHECKING:
    from privlearn.checking.exact.search import Found


from collections.abc import Iterable, Sequence
from dataclasses import field
from numbers import Real

from privlearn.checking.mined import mined
from privlearn.losses import Loss
from privlearn.losses.base import is_foreign
from privlearn.losses.declared import ORDERS as RECORDED

_NODES = 12
_DEPTH = 50.0  # What lies this many nats below the peak of an integrand is left out
_TOLERANCE = 1e-13
_MOST_PANELS = 20_000
_ROUGH = 12  # A panel that was split more often holds a jump or a kink
_ULP = 2.0**-52


class Value(NamedTuple):
    """A number and how far it may be off."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class DistributionPair:
    """Laws of the output on two neighbouring data sets."""

    p: Distribution
    q: Distribution
    label: str = ""


class AdditiveDistributions(NamedTuple):
    """What was promised to whom, and the laws that neighbours give."""

    parts: list[tuple[Any, list[DistributionPair]]]
    coverage: Coverage
    telling: int = 0  # Numbers of the output that are no function of noisy integers
    found: Found | None = None  # Of a single release, what the search came to


def renyi(p: Distribution, q: Distribution, order: float) -> Value:
    """D_order(p‖q) in nats; inf where p has mass that q has not. Raises CheckError: laws of
    different kinds, or an integral that does not converge. Raises ValueError: order <= 1."""
    if not finite(order=order) > 1:
        raise ValueError(f"order = {order!r}: must be > 1")
    match p, q:
        case Product(), Product():
            return _total(p, q, lambda a, b: renyi(a, b, order))
        case Discrete(), Discrete():
            return _discrete(p, q, order)
        case Normal(), Normal():
            return renyi(*whitened(p, q), order)
        case Density(), Density():
            return _line(p, q, order)
    raise _unlike(p, q)


def hockey_stick(p: Distribution, q: Distribution, epsilon: float) -> Value:
    """δ(ε) = ∫ max(p − e^ε·q, 0), the least δ for which p against q is (ε, δ)-indistinguishable.
    Raises CheckError: laws of different kinds, or products of several that differ."""
    match p, q:
        case Discrete(), Discrete():
            excess = np.exp(p.log_mass) - np.exp(q.log_mass + epsilon)
            return Value(float(np.maximum(excess, 0).sum()), 1e-15 * len(excess))
        case Normal(), Normal():
            return hockey_stick(*whitened(p, q), epsilon)
        case Density(), Density():
            return _stick(p, q, epsilon)
        case Product(), Product() if len(p.parts) == 1 and p.parts[0][1] == 1:
            return hockey_stick(p.parts[0][0], q.parts[0][0], epsilon)
    raise CheckError(f"δ(ε) of {type(p).__name__} against {type(q).__name__} laws is not computed")


def largest_ratio(p: Distribution, q: Distribution) -> Value:
    """The largest log(p/q) that was found: the privacy loss ε is at least this. Raises CheckError:
    laws of different kinds."""
    match p, q:
        case Product(), Product():
            return _total(p, q, largest_ratio)
        case Discrete(), Discrete():
            lp, lq = p.log_mass, q.log_mass
        case Normal(), Normal():
            return largest_ratio(*whitened(p, q))
        case Density(), Density():
            wide = 50.0 * max(p.scale, q.scale) + math.dist(p.centre, q.centre)
            points = np.linspace(-wide, wide, 4001)[:, None] + p.centre
            lp, lq = p.log_density(points), q.log_density(points)
        case _:
            raise _unlike(p, q)
    seen = lp > -np.inf
    best = int((lp[seen] - lq[seen]).argmax())
    first, second = float(lp[seen][best]), float(lq[seen][best])
    size = abs(first) + (abs(second) if math.isfinite(second) else 0.0)
    return Value(first - second, 16 * _ULP * (1 + size))


def _unlike(p: Distribution, q: Distribution) -> CheckError:
    return CheckError(f"cannot compare laws: {type(p).__name__} and {type(q).__name__}")


def _total(p: Product, q: Product, of: Callable[[Distribution, Distribution], Value]) -> Value:
    if [n for _, n in p.parts] != [n for _, n in q.parts]:
        raise CheckError("products of different numbers of parts cannot be compared")
    values = [(of(a, b), n) for (a, n), (b, _) in zip(p.parts, q.parts, strict=True)]
    return Value(sum(v.value * n for v, n in values), sum(v.error * n for v, n in values))


def _discrete(p: Discrete, q: Discrete, order: float) -> Value:
    if p.log_mass.shape != q.log_mass.shape:
        raise CheckError("discrete laws must be over the same symbols")
    seen = p.log_mass > -np.inf
    lp, lq = p.log_mass[seen], q.log_mass[seen]
    if np.isneginf(lq).any():
        return Value(math.inf, 0.0)
    terms = order * lp - (order - 1) * lq
    top = float(terms.max())
    value = (top + math.log(math.fsum(np.exp(terms - top)))) / (order - 1)
    size = order * np.abs(lp).max() + (order - 1) * np.abs(lq).max() + 8
    return Value(value, 4 * _ULP * float(size) / (order - 1))


def whitened(p: Normal, q: Normal) -> tuple[Distribution, Distribution]:
    """The same divergences in one dimension, along the line between the means."""
    shift = p.mean - q.mean
    # what no noise hides: the part of the shift outside the range of the factor
    solved = np.linalg.lstsq(p.factor, shift, rcond=1e-12)[0]
    if np.linalg.norm(shift - p.factor @ solved) > 1e-8 * np.linalg.norm(shift):
        return Discrete(np.array([0.0, -np.inf])), Discrete(np.array([-np.inf, 0.0]))
    return normal(float(np.linalg.norm(solved)), 1.0), normal(0.0, 1.0)


@lru_cache(maxsize=8)
def _gauss(n: int) -> tuple[Array, Array]:
    """Nodes in (0, 1) and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2


def _points(left: Array, right: Array) -> Array:
    nodes, _ = _gauss(_NODES)
    return np.asarray(left[:, None] + (right - left)[:, None] * nodes)


def _rule(f: Callable[[Array], Array], left: Array, right: Array) -> tuple[Array, Array]:
    """The integral over each panel, and how much f changes in it, times its width."""
    values = f(_points(left, right).reshape(-1)).reshape(len(left), _NODES)
    width = right - left
    return np.asarray((values @ _gauss(_NODES)[1]) * width), np.asarray(np.ptp(values, 1) * width)


def _integral(
    f: Callable[[Array], Array],
    left: Array,
    right: Array,
    noise: float = _TOLERANCE,
    least: float = 1e-300,
) -> Value:
    """∫f over panels, each split until that changed nothing that matters twice in a row. Twice, and
    not in the middle, where a kink may lie just so. After many splits part of the change of f
    counts as error. ``noise`` is the rounding error of f, relative to an integral above ``least``.
    """
    coarse, _ = _rule(f, left, right)
    calm = np.zeros(len(left), dtype=bool)
    total = error = 0.0
    for depth in range(60):
        middle = left + 0.4472 * (right - left)
        result, changes = _rule(f, np.r_[left, middle], np.r_[middle, right])
        parts = result.reshape(2, -1)
        apart = np.abs(parts.sum(axis=0) - coarse)
        still = apart <= noise * max(abs(total) + float(np.abs(coarse).sum()), least)
        done, rest = calm & still, ~(calm & still)
        total += float(parts.sum(axis=0)[done].sum())
        error += float(apart[done].sum())
        if depth >= _ROUGH:
            error += 0.02 * float(changes.reshape(2, -1).sum(axis=0)[done].sum())
        if not rest.any():
            return Value(total, error)
        left, middle, right = left[rest], middle[rest], right[rest]
        left, right = np.r_[left, middle], np.r_[middle, right]
        coarse, calm = parts[:, rest].reshape(-1), np.tile(still[rest], 2)
        if len(left) > _MOST_PANELS:
            raise CheckError("an integral did not converge: the density is not piecewise smooth")
    return Value(total + float(coarse.sum()), error + float(np.abs(coarse).sum()))


def _mixed(lp: Array, lq: Array, order: float) -> Array:
    """g; +inf where p has mass and q none."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(lp), -np.inf, order * lp - (order - 1) * lq)


class _Line(NamedTuple):
    left: Array
    right: Array
    lp: Array
    lq: Array


@lru_cache(maxsize=64)
def _panels(p: Density, q: Density, doublings: int) -> _Line:
    low, high = min(p.centre[0], q.centre[0]), max(p.centre[0], q.centre[0])
    unit = min(p.scale, q.scale)
    reach = (_DEPTH * max(p.scale, q.scale) + 100 * (high - low + unit)) * 2.0**doublings
    n = min(math.ceil((high - low + 2 * reach) / unit), _MOST_PANELS // 4)
    jumps = [t for law in (p, q) for t in (law.jumps[0] if law.jumps else ())]
    # not at round places, where a kink that is not declared may lie
    edges = np.unique(np.r_[np.linspace(low - 1.0137 * reach, high + reach, n + 1), jumps])
    points = _points(edges[:-1], edges[1:])
    lp, lq = (law.log_density(points.reshape(-1, 1)).reshape(points.shape) for law in (p, q))
    return _Line(edges[:-1], edges[1:], lp, lq)


def _line(p: Density, q: Density, order: float) -> Value:
    for doublings in range(40):
        left, right, lp, lq = _panels(p, q, doublings)
        values = _mixed(lp, lq, order)
        heights = values.max(axis=1)
        top = float(heights.max())
        if math.isinf(top):
            return Value(math.inf, 0.0)
        if max(heights[0], heights[-1]) < top - _DEPTH:
            break
    else:
        raise CheckError("the divergence is not finite, or the density's scale is far from true")
    near = heights > top - _DEPTH
    near = near | np.r_[near[1:], False] | np.r_[False, near[:-1]]

    def f(x: Array) -> Array:
        both = p.log_density(x[:, None]), q.log_density(x[:, None])
        return np.asarray(np.exp(_mixed(*both, order) - top))

    noise = _TOLERANCE + _rounding(order, lp[near], lq[near])
    result = _integral(f, left[near], right[near], noise)
    if not result.value > 0:
        raise CheckError("an integral over a peak that is too narrow, or beyond any bound")
    at = np.full((1, 1), float((left + right)[heights.argmax()] / 2))
    relative = result.error / result.value
    relative += _rounding(order, p.log_density(at), q.log_density(at))
    return Value((top + math.log(result.value)) / (order - 1), relative / (order - 1))


def _rounding(order: float, lp: Array, lq: Array) -> float:
    """Bound on the rounding errors of g where the logarithms are at most so large."""
    seen = np.isfinite(lp) & np.isfinite(lq)
    largest = [float(np.abs(logs[seen]).max(initial=0.0)) for logs in (lp, lq)]
    return 4 * _ULP * (16 + order * largest[0] + (order - 1) * largest[1])


def _stick(p: Density, q: Density, epsilon: float) -> Value:
    left, right, *_ = _panels(p, q, 0)

    def excess(x: Array) -> Array:
        """p − e^ε·q where that is positive, else 0."""
        lp, lq = p.log_density(x[:, None]), q.log_density(x[:, None])
        ahead = lp > np.maximum(lq + epsilon, -1e300)
        with np.errstate(invalid="ignore"):
            return np.where(ahead, np.exp(lp) * -np.expm1(np.minimum(lq + epsilon - lp, 0.0)), 0.0)

    edges = np.r_[left, right[-1]]
    sides = excess(edges) > 0
    turn = sides[1:] != sides[:-1]
    low, high = left[turn], right[turn]
    for _ in range(60):
        middle = (low + high) / 2
        same = (excess(middle) > 0) == sides[:-1][turn]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    edges = np.unique(np.r_[edges, low])
    # where log p − log q is ε on a whole interval, the excess is nothing but rounding there
    result = _integral(excess, edges[:-1], edges[1:], least=1e-3)
    # by what logarithms are rounded, far out the difference may be as small
    middle = (edges[1:] + edges[:-1]) / 2
    lp = p.log_density(middle[:, None])
    off = np.where(excess(middle) > 0, np.exp(lp) * (1 + np.abs(lp)), 0.0) @ np.diff(edges)
    return Value(result.value, result.error + 16 * _ULP * (result.value + float(off)))


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
    """Compares a curve with the exact one. ``exact`` is computed at some orders and where the bound
    is ``nearest`` to it; the bound is asked at ``dense`` orders. Raises CheckError: no exact value
    could be computed."""
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
    # the rounding of a formula in doubles, log(moment)/(order − 1)
    room = [_UNITS * 2.0**-52 / (point.order - 1) for point in sorted(points)]
    points = [
        p._replace(exact=Value(p.exact.value, p.exact.error + more))
        for p, more in zip(sorted(points), room, strict=True)
    ]
    failed = sum(asked.found[order] < math.inf for order in known.failed)
    return Scan(tuple(points), orders, claimed, failed, tuple(asked.troubles))


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
