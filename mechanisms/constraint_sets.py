"""Sets that a parameter is kept in: ℓp balls, simplices and polytopes given by their vertices.

Each knows its linear minimisation oracle (the step of Frank-Wolfe), its diameter in any ℓs norm,
and two ways back into it: the Euclidean projection, and a `pull` that may be cheaper.  All of them
are bounded by construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol, cast, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from privlearn.mechanisms.vertices import CrossPolytope, ExplicitVertices, SimplexVertices, Vertices
from privlearn.rows.domains import Array
from privlearn.rows.domains.clipping import bound
from privlearn.values.validate import count

_BISECTIONS = 80
_LARGEST = 1e100  # Coordinates up to here keep all norms finite


@runtime_checkable
class ConstraintSet(Protocol):
    """A closed, bounded, convex set of vectors of length ``dim``; structural."""

    @property
    def dim(self) -> int:
        """Length of its vectors."""

    def minimize(self, direction: Array, /) -> Array:
        """A member v with the least ⟨direction, v⟩, ties by lowest index; shape (..., dim)."""

    def diameter(self, norm: float, /) -> float:
        """Largest ℓs distance of two members, s = ``norm`` in [1, ∞]."""

    def project(self, theta: Array, /) -> Array:
        """The nearest member in ℓ2, shape (dim,)."""

    def pull(self, theta: Array, /) -> Array:
        """Some member, ``theta`` itself if it is one, shape (dim,)."""

    def contains(self, theta: Array, tol: float = 1e-9, /) -> bool:
        """Whether ``theta`` is a member, up to ``tol`` in parts of the set's size."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@runtime_checkable
class CornerSet(ConstraintSet, Protocol):
    """A constraint set with few vertices."""

    @property
    def choices(self) -> Vertices:
        """The vertices, for a mechanism that picks one."""


def exponent(**named: float) -> float:
    """Returns the value as an exponent in [1, ∞].

    Raises:
        TypeError: no number.
        ValueError: below 1, or NaN.
    """
    ((name, value),) = named.items()
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {value!r}: must be a number") from None
    if not number >= 1:
        raise ValueError(f"{name} = {value!r}: must be in [1, inf]")
    return number


def dual_exponent(p: float) -> float:
    """The q with 1/p + 1/q = 1."""
    if p == 1:
        return math.inf
    return 1.0 if p == math.inf else p / (p - 1)


def norms(values: Array, s: float) -> Array:
    """ℓs norms along the last axis, without overflow for finite values."""
    sizes = np.abs(values)
    largest = np.asarray(sizes.max(axis=-1))
    if s == math.inf:
        return largest
    if s == 1:
        return np.asarray(sizes.sum(axis=-1))
    unit = np.where(largest > 0, largest, 1.0)
    ratios = sizes / unit[..., None]
    powers = ratios * ratios if s == 2 else ratios**s
    return np.asarray(unit * powers.sum(axis=-1) ** (1 / s) * (largest > 0))


def _vector(theta: ArrayLike, dim: int) -> Array:
    vector = np.asarray(theta, dtype=np.float64)
    if vector.shape != (dim,):
        raise ValueError(f"theta of shape {vector.shape}: must be ({dim},)")
    if not np.isfinite(vector).all():
        raise ValueError("theta: must be finite")
    return vector


@final
@dataclass(frozen=True, slots=True)
class LpBall:
    """Vectors with ‖θ‖_p <= radius, p in [1, ∞]."""

    kind: ClassVar[str] = "lp-ball"
    dim: int
    p: float
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", count(dim=self.dim))
        object.__setattr__(self, "p", exponent(p=self.p))
        object.__setattr__(self, "radius", bound(radius=self.radius))

    def minimize(self, direction: Array, /) -> Array:
        """−radius·sign(g)·(|g|/‖g‖_q)^{q−1}: Hölder with equality; shape (..., dim)."""
        g = np.asarray(direction, dtype=np.float64)
        signs = np.where(g > 0, -self.radius, self.radius)
        if self.p == math.inf:
            return signs
        sizes = np.abs(g)
        if self.p == 1:
            vertex = np.zeros(g.shape)
            first = np.argmax(sizes, axis=-1)[..., None]
            np.put_along_axis(vertex, first, np.take_along_axis(signs, first, -1), -1)
            return vertex
        largest = sizes.max(axis=-1, keepdims=True)
        if not largest.all():  # every member is a minimiser of 0: take radius·e_1
            sizes[..., :1] += largest == 0
            largest = np.where(largest > 0, largest, 1.0)
        sizes /= largest
        if self.p == 2:
            lengths = np.sqrt((sizes * sizes).sum(axis=-1, keepdims=True))
            return np.asarray(signs * (sizes / lengths))
        q = dual_exponent(self.p)
        powers = sizes ** (q - 1)
        lengths = (powers * sizes).sum(axis=-1, keepdims=True) ** (1 / self.p)
        return np.asarray(signs * (powers / lengths))

    @property
    def choices(self) -> CrossPolytope:
        """The vertices of the ℓ1 ball, for a mechanism that picks one.

        Raises:
            ValueError: p is not 1.
        """
        if self.p != 1:
            raise ValueError(f"p = {self.p!r}: only the ℓ1 ball has few vertices; use DPTOFW")
        return CrossPolytope(self.dim, self.radius)

    def diameter(self, norm: float, /) -> float:
        """2·radius·max(1, dim^{1/s − 1/p})."""
        s = exponent(norm=norm)
        return float(2 * self.radius * max(1.0, self.dim ** (1 / s - 1 / self.p)))

    def project(self, theta: Array, /) -> Array:
        """Sorting for p = 1, scaling for p = 2, clamping for p = ∞, else bisection on λ >= 0 in
        z_i + λ z_i^{p−1} = |θ_i|."""
        theta = _vector(theta, self.dim)
        if self.contains(theta, 0.0):
            return theta.copy()
        if self.p == math.inf:
            return np.clip(theta, -self.radius, self.radius)
        if self.p == 2:
            return self.pull(theta)
        sizes = np.abs(theta)
        flat = self.p == 1
        near = _onto_simplex(sizes, self.radius) if flat else self._power_projection(sizes)
        return self.pull(np.copysign(near, theta))

    def _power_projection(self, sizes: Array) -> Array:
        power = self.p - 1

        def point(multiplier: float) -> Array:
            low, high = np.zeros(self.dim), sizes.copy()
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                above = middle + multiplier * middle**power > sizes
                low, high = np.where(above, low, middle), np.where(above, middle, high)
            return high

        low, high = 0.0, 1.0
        while norms(point(high), self.p) > self.radius:
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if norms(point(middle), self.p) > self.radius:
                low = middle
            else:
                high = middle
        return point(high)

    def pull(self, theta: Array, /) -> Array:
        """Scales towards 0."""
        size = float(norms(theta, self.p))
        if size <= self.radius:
            return np.array(theta)
        inside = np.asarray(theta * (self.radius / size))
        over = float(norms(inside, self.p))
        return inside if over <= self.radius else inside * ((1 - 1e-15) * self.radius / over)

    def contains(self, theta: Array, tol: float = 1e-9, /) -> bool:
        return bool(norms(_vector(theta, self.dim), self.p) <= self.radius * (1 + tol))

    def to_dict(self) -> dict[str, Any]:
        p = "inf" if self.p == math.inf else self.p
        return {"kind": self.kind, "dim": self.dim, "p": p, "radius": self.radius}


def _onto_simplex(values: Array, total: float) -> Array:
    """The nearest w >= 0 with Σw = total (Held, Wolfe & Crowder 1974)."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1]) if (ordered > excess).any() else 0
    return np.asarray(np.maximum(values - excess[kept], 0.0))


@final
@dataclass(frozen=True, slots=True)
class Simplex:
    """Vectors θ >= 0 with Σθ = radius; its vertices are radius·e_j."""

    kind: ClassVar[str] = "simplex"
    dim: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", count(dim=self.dim))
        object.__setattr__(self, "radius", bound(radius=self.radius))

    @property
    def vertices(self) -> Array:
        return np.asarray(self.radius * np.eye(self.dim))

    @property
    def choices(self) -> SimplexVertices:
        """The vertices, for a mechanism that picks one; there must be two."""
        return SimplexVertices(self.dim, self.radius)

    def minimize(self, direction: Array, /) -> Array:
        g = np.asarray(direction, dtype=np.float64)
        vertex = np.zeros(g.shape)
        np.put_along_axis(vertex, np.argmin(g, axis=-1)[..., None], self.radius, -1)
        return vertex

    def diameter(self, norm: float, /) -> float:
        """radius·2^{1/s}, 0 for a single vertex."""
        s = exponent(norm=norm)
        return float(self.radius * 2 ** (1 / s)) if self.dim > 1 else 0.0

    def project(self, theta: Array, /) -> Array:
        near = _onto_simplex(_vector(theta, self.dim), self.radius)
        return np.asarray(near * (self.radius / near.sum()))

    def pull(self, theta: Array, /) -> Array:
        return np.array(theta) if self.contains(theta, 0.0) else self.project(theta)

    def contains(self, theta: Array, tol: float = 1e-9, /) -> bool:
        theta = _vector(theta, self.dim)
        slack = self.radius * (tol + 4e-16 * self.dim)  # the sum is rounded
        return bool(theta.min() >= -tol * self.radius and abs(theta.sum() - self.radius) <= slack)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dim": self.dim, "radius": self.radius}


@final
@dataclass(frozen=True, slots=True)
class Polytope:
    """The convex hull of finitely many points.

    Args:
        corners: the points, V rows of length dim; hashable, so a tuple of tuples is kept.  Points
            that are not corners do no harm.
    """

    kind: ClassVar[str] = "polytope"
    corners: tuple[tuple[float, ...], ...]

    def __init__(self, corners: ArrayLike) -> None:
        try:
            points = np.asarray(corners, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError("corners: must be an array of numbers, shape (V, dim)") from None
        if points.ndim != 2 or 0 in points.shape:
            raise ValueError(f"corners of shape {points.shape}: must be (V, dim), both >= 1")
        if not (np.abs(points) <= _LARGEST).all():
            raise ValueError("corners: must be finite, as the set must be bounded")
        object.__setattr__(self, "corners", tuple(map(tuple, points.tolist())))

    @property
    def dim(self) -> int:
        return len(self.corners[0])

    @property
    def vertices(self) -> Array:
        """Shape (V, dim); read-only."""
        return _points(self.corners)

    @property
    def choices(self) -> ExplicitVertices:
        """The points, for a mechanism that picks one; two must differ."""
        return ExplicitVertices(self.vertices)

    def minimize(self, direction: Array, /) -> Array:
        g = np.asarray(direction, dtype=np.float64)
        scores = (g[..., None, :] * self.vertices).sum(axis=-1)
        return cast(Array, self.vertices[np.argmin(scores, axis=-1)])

    def diameter(self, norm: float, /) -> float:
        """The largest distance of two corners."""
        s = exponent(norm=norm)
        return max(float(norms(self.vertices - corner, s).max()) for corner in self.vertices)

    def project(self, theta: Array, /) -> Array:
        """Non-negative least squares for the weights, which are then made to add up to one: always
        a member, and the nearest one up to a relative 1e-6."""
        from scipy.optimize import nnls

        theta = _vector(theta, self.dim)
        centre = self.vertices.mean(axis=0)
        shifted = self.vertices - centre
        scale = float(np.abs(shifted).max()) or 1.0
        heavy = 1e4 * max(1.0, float(np.abs(theta - centre).max()) / scale)
        system = np.vstack([shifted.T / scale, np.full(len(shifted), heavy)])
        weights, _ = nnls(system, np.append((theta - centre) / scale, heavy))
        return np.asarray(weights / weights.sum() @ self.vertices)

    def pull(self, theta: Array, /) -> Array:
        return self.project(theta)

    def contains(self, theta: Array, tol: float = 1e-9, /) -> bool:
        near = self.project(theta)
        widths = np.ptp(self.vertices, axis=0)
        reach = max(tol, 1e-6) * widths + 1e-9 * float(np.abs(self.vertices).max())
        return bool((np.abs(near - theta) <= reach).all())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "corners": [list(corner) for corner in self.corners]}


@lru_cache(maxsize=32)
def _points(corners: tuple[tuple[float, ...], ...]) -> Array:
    points = np.array(corners)
    points.setflags(write=False)
    return points


def checked_member(theta: ArrayLike, inside: ConstraintSet) -> Array:
    """A vector of the set, as floats.

    Raises:
        ValueError: wrong shape, not finite, or outside.
    """
    vector = _vector(theta, inside.dim)
    if not inside.contains(vector):
        raise ValueError(f"theta = {vector.tolist()}: lies outside {inside!r}")
    return vector
