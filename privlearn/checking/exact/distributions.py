r"""Laws of outputs, and how far two of them are apart, computed and not bounded.

Everything is done in log space, and every number comes with an estimate of its own error.  With
g = α·log p − (α−1)·log q the divergence is D_α = log ∫ e^g / (α−1).

- One dimension: Gauss-Legendre panels, halved until halving changes nothing that matters; kinks and
  jumps are found by that.
- Two dimensions, smooth: the trapezoidal rule in coordinates in which g looks round at its mode.
  It converges faster than any power of the step for analytic functions that vanish at the ends
  (Trefethen & Weideman 2014); the error is the change when the step is divided by √2.
- Two dimensions, densities that jump on lines along given coordinates: Gauss-Legendre panels
  between those lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np

from privlearn.errors import CheckError
from privlearn.losses.output_laws import Density, Discrete, Distribution, Normal, Product, normal
from privlearn.rows.domains import Array
from privlearn.values.validate import finite

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


@final
@dataclass(frozen=True, eq=False)
class DistributionPair:
    """Laws of the output on two neighbouring data sets."""

    p: Distribution
    q: Distribution
    label: str = ""


def renyi(p: Distribution, q: Distribution, order: float) -> Value:
    """D_order(p‖q) in nats; inf where p has mass that q has not.

    Raises:
        CheckError: laws of different kinds, or an integral that does not converge.
        ValueError: order <= 1.
    """
    if not finite(order=order) > 1:
        raise ValueError(f"order = {order!r}: must be > 1")
    match p, q:
        case Product(), Product():
            pairs = _matched(p, q)
            values = [(renyi(a, b, order), n) for a, b, n in pairs]
            return Value(sum(v.value * n for v, n in values), sum(v.error * n for v, n in values))
        case Discrete(), Discrete():
            return _discrete(p, q, order)
        case Normal(), Normal():
            return renyi(*whitened(p, q), order)
        case Density(), Density() if len(p.centre) == len(q.centre):
            if len(p.centre) == 1:
                return _line(p, q, order)
            return _panelled(p, q, order) if p.jumps else _plane(p, q, order)
    raise _unlike(p, q)


def hockey_stick(p: Distribution, q: Distribution, epsilon: float) -> Value:
    """δ(ε) = ∫ max(p − e^ε·q, 0), the least δ for which p against q is (ε, δ)-indistinguishable.

    Raises:
        CheckError: laws of different kinds, in two dimensions, or products of several that differ.
    """
    match p, q:
        case Discrete(), Discrete():
            excess = np.exp(p.log_mass) - np.exp(q.log_mass + epsilon)
            return Value(float(np.maximum(excess, 0).sum()), 1e-15 * len(excess))
        case Normal(), Normal():
            return hockey_stick(*whitened(p, q), epsilon)
        case Density(), Density() if len(p.centre) == len(q.centre) == 1:
            return _stick(p, q, epsilon)
        case Product(), Product() if len(p.parts) == 1 and p.parts[0][1] == 1:
            return hockey_stick(p.parts[0][0], q.parts[0][0], epsilon)
    raise CheckError(
        f"δ(ε) of a {type(p).__name__} law against a {type(q).__name__} law is not computed; "
        "compare Rényi curves"
    )


def largest_ratio(p: Distribution, q: Distribution) -> Value:
    """The largest log(p/q) that was found: the privacy loss ε is at least this.

    Raises:
        CheckError: laws of different kinds.
    """
    match p, q:
        case Product(), Product():
            result = [(largest_ratio(a, b), n) for a, b, n in _matched(p, q)]
            return Value(sum(v.value * n for v, n in result), sum(v.error * n for v, n in result))
        case Discrete(), Discrete():
            lp, lq = p.log_mass, q.log_mass
        case Normal(), Normal():
            return largest_ratio(*whitened(p, q))
        case Density(), Density() if len(p.centre) == len(q.centre):
            wide = 50.0 * max(p.scale, q.scale) + math.dist(p.centre, q.centre)
            steps = np.linspace(-wide, wide, 4001 if len(p.centre) == 1 else 201)
            grid = np.stack(np.meshgrid(*[steps + c for c in p.centre], indexing="ij"), axis=-1)
            points = grid.reshape(-1, len(p.centre))
            lp, lq = p.log_density(points), q.log_density(points)
        case _:
            raise _unlike(p, q)
    seen = lp > -np.inf
    best = int((lp[seen] - lq[seen]).argmax())
    first, second = float(lp[seen][best]), float(lq[seen][best])
    size = abs(first) + (abs(second) if math.isfinite(second) else 0.0)
    return Value(first - second, 16 * _ULP * (1 + size))


def _unlike(p: Distribution, q: Distribution) -> CheckError:
    return CheckError(
        f"cannot compare a {type(p).__name__} law with a {type(q).__name__} law of other shape"
    )


def _matched(p: Product, q: Product) -> Sequence[tuple[Distribution, Distribution, int]]:
    if [n for _, n in p.parts] != [n for _, n in q.parts]:
        raise CheckError("products of different numbers of parts cannot be compared")
    return [(a, b, n) for (a, n), (b, _) in zip(p.parts, q.parts, strict=True)]


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


def squared_distance(p: Normal, q: Normal) -> float:
    """Squared distance of the means in units of the noise; inf if some part of it has none."""
    shift = p.mean - q.mean
    # what no noise hides: the part of the shift outside the range of the factor
    solved = np.linalg.lstsq(p.factor, shift, rcond=1e-12)[0]
    left = float(np.linalg.norm(shift - p.factor @ solved))
    if left > 1e-8 * float(np.linalg.norm(shift)):
        return math.inf
    return float(solved @ solved)


def whitened(p: Normal, q: Normal) -> tuple[Distribution, Distribution]:
    """The same divergences in one dimension, along the line between the means."""
    mass = squared_distance(p, q)
    if math.isinf(mass):
        return Discrete(np.array([0.0, -np.inf])), Discrete(np.array([-np.inf, 0.0]))
    return normal(math.sqrt(mass), 1.0), normal(0.0, 1.0)


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
    f: Callable[[Array], Array], left: Array, right: Array, noise: float = _TOLERANCE
) -> Value:
    """∫f over panels, each split until that changed nothing that matters twice in a row.

    Twice, and not in the middle: where a kink lies just so, one split in the middle changes nothing
    although the sum is wrong.  A panel that needed many splits holds a jump or a kink; then part of
    the change of f over it counts as error.  ``noise`` is the relative rounding error of f.
    """
    coarse, _ = _rule(f, left, right)
    calm = np.zeros(len(left), dtype=bool)
    total = error = 0.0
    for depth in range(60):
        middle = left + 0.4472 * (right - left)
        result, changes = _rule(f, np.r_[left, middle], np.r_[middle, right])
        parts = result.reshape(2, -1)
        apart = np.abs(parts.sum(axis=0) - coarse)
        still = apart <= noise * max(abs(total) + float(np.abs(coarse).sum()), 1e-300)
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


def _exponent(p: Density, q: Density, order: float) -> Callable[[Array], Array]:
    """g at points (n, d); +inf where p has mass and q none."""
    return lambda points: _mixed(p.log_density(points), q.log_density(points), order)


def _mixed(lp: Array, lq: Array, order: float) -> Array:
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


def _line(p: Density, q: Density, order: float, *, roughly: bool = False) -> Value:
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
    if roughly:
        total = float((np.exp(values - top) @ _gauss(_NODES)[1]) @ (right - left))
        return Value((top + math.log(total)) / (order - 1), math.inf)
    near = heights > top - _DEPTH
    near = near | np.r_[near[1:], False] | np.r_[False, near[:-1]]
    g = _exponent(p, q, order)
    noise = _TOLERANCE + _rounding(order, lp[near], lq[near])
    result = _integral(lambda x: np.exp(g(x[:, None]) - top), left[near], right[near], noise)
    at = np.full((1, 1), float((left + right)[heights.argmax()] / 2))
    return _divergence(p, q, order, top, result, at)


def _rounding(order: float, lp: Array, lq: Array) -> float:
    """Bound on the rounding errors of g where the logarithms are at most so large."""
    seen = np.isfinite(lp) & np.isfinite(lq)
    largest = [float(np.abs(logs[seen]).max(initial=0.0)) for logs in (lp, lq)]
    return 4 * _ULP * (16 + order * largest[0] + (order - 1) * largest[1])


def _divergence(
    p: Density, q: Density, order: float, top: float, result: Value, at: Array
) -> Value:
    """D_order from ∫e^{g−top}, with the rounding of g at its peak in the error."""
    relative = result.error / result.value
    relative += _rounding(order, p.log_density(at), q.log_density(at))
    return Value((top + math.log(result.value)) / (order - 1), relative / (order - 1))


def _stick(p: Density, q: Density, epsilon: float) -> Value:
    left, right, *_ = _panels(p, q, 0)

    def ahead(x: Array) -> Array:
        """Where log p − log q exceeds ε; False where p has no mass."""
        lp, lq = p.log_density(x[:, None]), q.log_density(x[:, None])
        return np.asarray(lp > np.maximum(lq + epsilon, -1e300))

    def f(x: Array) -> Array:
        lp, lq = p.log_density(x[:, None]), q.log_density(x[:, None])
        seen = lp > np.maximum(lq + epsilon, -1e300)
        with np.errstate(invalid="ignore"):
            return np.where(seen, np.exp(lp) * -np.expm1(np.minimum(lq + epsilon - lp, 0.0)), 0.0)

    edges = np.r_[left, right[-1]]
    sides = ahead(edges)
    turn = sides[1:] != sides[:-1]
    low, high = left[turn], right[turn]
    for _ in range(60):
        middle = (low + high) / 2
        same = ahead(middle) == sides[:-1][turn]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    edges = np.unique(np.r_[edges, low])
    result = _integral(f, edges[:-1], edges[1:])
    return Value(result.value, result.error + 64 * _ULP * result.value)


def _peak(p: Density, q: Density, order: float) -> tuple[Array, Array]:
    """About the mode of g, and a matrix whose columns are its widths there.

    Newton's method from the best of many scattered points; what it misses by is made good by the
    window around it, which grows until nothing is left outside.
    """
    g = _exponent(p, q, order)
    points, lp, lq = _scan(p, q)
    mode, unit = points[int(_mixed(lp, lq, order).argmax())], min(p.scale, q.scale)
    step = 0.02 * unit
    moves = step * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
    for _ in range(50):
        v = g(mode + moves)
        slope = np.array([v[1] - v[2], v[3] - v[4]]) / (2 * step)
        xx, yy = 2 * v[0] - v[1] - v[2], 2 * v[0] - v[3] - v[4]
        xy = (v[1] + v[2] + v[3] + v[4] - v[5] - v[6] - 2 * v[0]) / 2
        values, vectors = np.linalg.eigh(np.array([[xx, xy], [xy, yy]]) / step**2)
        widths = vectors / np.sqrt(np.maximum(values, 1e-3 / unit**2))
        move = widths @ (widths.T @ slope)
        lengths = 0.5 ** np.arange(12)
        tried = g(mode + lengths[:, None] * move)
        if not tried.max() > v[0] + 0.01:
            break
        mode = mode + lengths[int(tried.argmax())] * move
    return mode, widths


@lru_cache(maxsize=64)
def _scan(p: Density, q: Density) -> tuple[Array, Array, Array]:
    unit = max(p.scale, q.scale)
    radii = unit * np.r_[0.25, 0.5, 1:5:0.5, 5:60:2.5, np.geomspace(60, 400, 12)]
    turns = np.linspace(0, 2 * math.pi, 24, endpoint=False)
    ring = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
    points = np.concatenate(
        [(np.array(law.centre) + radii[:, None, None] * ring).reshape(-1, 2) for law in (p, q)]
        + [np.array([p.centre, q.centre])]
    )
    return points, p.log_density(points), q.log_density(points)


_RIM = -32.0  # Height of an integrand over the plane, below its peak in nats, where it is cut off
_MOST_POINTS = 30_000


def _rough_plane(result: Value, order: float) -> CheckError | None:
    if result.error < 1e-7 * result.value * min(order - 1, 100.0):
        return None
    return CheckError(
        "an integral over the plane did not converge: the density is not smooth, or not smooth "
        "between lines along two directions"
    )


def _plane(p: Density, q: Density, order: float, *, roughly: bool = False) -> Value:
    g = _exponent(p, q, order)
    mode, widths = _peak(p, q, order)
    top = float(g(mode[None])[0])
    if math.isinf(top):
        return Value(math.inf, 0.0)
    span, step, turns = 8.0, 0.6, 0
    result = Value(math.inf, math.inf)
    while (2 * span / step) ** 2 < _MOST_POINTS:
        ticks = np.arange(-math.ceil(span / step), math.ceil(span / step) + 1) * step
        grid = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), axis=-1).reshape(-1, 2)
        logs = g(mode + grid @ widths.T) - top
        square = logs.reshape(len(ticks), -1)
        rim = max(square[[0, -1]].max(), square[:, [0, -1]].max())
        if rim > logs.max() + _RIM and span < 100:
            span *= 1.4
            continue
        weights = np.exp(logs)
        total = float(weights.sum())
        mean = weights @ grid / total
        covariance = (grid - mean).T @ ((grid - mean) * weights[:, None]) / total
        sizes = np.linalg.eigvalsh(covariance)
        if turns < 4 and not 0.3 < sizes[0] <= sizes[1] < 2:
            # the mode tells little of the width: take that of the whole instead
            mode = mode + widths @ mean
            widths = widths @ np.linalg.cholesky(covariance + 1e-6 * np.eye(2))
            span, turns = 8.0, turns + 1
            continue
        total *= step**2 * abs(float(np.linalg.det(widths)))
        if roughly:
            return Value((top + math.log(total)) / (order - 1), math.inf)
        result = Value(total, abs(total - result.value))
        if result.error <= 1e-10 * total:
            break
        step /= math.sqrt(2)
    if (failure := _rough_plane(result, order)) is not None:
        raise failure
    return _divergence(p, q, order, top, result, mode[None])


def _panelled(p: Density, q: Density, order: float, *, roughly: bool = False) -> Value:
    assert p.axes is not None, "jumps in the plane come with axes"
    mode, _ = _peak(p, q, order)  # its widths mean nothing beside a jump
    inverse = np.linalg.inv(p.axes)
    centre = inverse @ mode
    spread = np.linalg.norm(inverse, axis=1) * min(p.scale, q.scale)
    reach = np.full((2, 2), 10.0)
    for _ in range(16):
        logs, area = _tensor(p, q, order, (centre, spread, reach), 8)
        top = float(logs.max())
        far = np.array([[logs[0].max(), logs[:, 0].max()], [logs[-1].max(), logs[:, -1].max()]])
        if not (far > top + _RIM).any():
            break
        reach = np.where(far > top + _RIM, 2 * reach, reach)
    coarse = float((np.exp(logs - top) * area).sum())
    if roughly:
        return Value((top + math.log(coarse)) / (order - 1), math.inf)
    result = Value(coarse, math.inf)
    for nodes_each in (11, 16, 24, 36):
        logs, area = _tensor(p, q, order, (centre, spread, reach), nodes_each)
        fine = float((np.exp(logs - top) * area).sum())
        result = Value(fine, abs(fine - result.value))
        if result.error < 1e-9 * fine:
            break
    if (failure := _rough_plane(result, order)) is not None:
        raise failure
    return _divergence(p, q, order, top, result, mode[None])


def _tensor(
    p: Density, q: Density, order: float, window: tuple[Array, Array, Array], nodes_each: int
) -> tuple[Array, Array]:
    """g on a grid of Gauss-Legendre panels between all jumps, and the weights of its points.

    Panels grow with the distance from the centre, as what is wide there is smooth.
    """
    assert p.axes is not None, "jumps in the plane come with axes"
    nodes, weights = _gauss(nodes_each)
    steps = 1.6 * np.r_[0, 1, 2, 3, 3 * 1.3 ** np.arange(1, 60)]
    ticks, shares = [], []
    for i, (middle, unit) in enumerate(zip(*window[:2], strict=True)):
        low, high = window[2][:, i]
        stops = np.r_[-steps[steps < low], -low, steps[steps < high], high]
        edges = np.unique(np.r_[middle + unit * stops, p.jumps[i]])
        inside = (edges >= middle - unit * low) & (edges <= middle + unit * high)
        left, wide = edges[inside][:-1], np.diff(edges[inside])
        ticks.append((left[:, None] + wide[:, None] * nodes).reshape(-1))
        shares.append((wide[:, None] * weights).reshape(-1))
    grid = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = _exponent(p, q, order)(grid @ p.axes.T).reshape(len(ticks[0]), -1)
    return logs, np.multiply.outer(*shares) * abs(float(np.linalg.det(p.axes)))


def rough_renyi(p: Density, q: Density, order: float) -> float:
    """D_order up to a few digits, for comparing pairs with each other; much quicker."""
    if len(p.centre) == 1:
        return _line(p, q, order, roughly=True).value
    return (_panelled if p.jumps else _plane)(p, q, order, roughly=True).value
