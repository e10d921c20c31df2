"""Closed convex sets for θ, and the two problems a solver needs solved on them.

`Region.step` minimises a quadratic model over the set; besides the minimiser z it returns a vector
ν and a number g >= 0 with ⟨ν, x − z⟩ <= g for every x of the set: a normal at z, up to g.  That is
what a certificate rests on (`privlearn.mechanisms.solver`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.objectives import UNIT
from privlearn.rows.domains import Array
from privlearn.values.validate import count, positive


class RegionStep(NamedTuple):
    """A minimiser (d,), a normal of the set there (d,), and how far it is from being one."""

    point: Array
    normal: Array
    gap: float


class Region(Protocol):
    """A closed convex set in R^d."""

    @property
    def dim(self) -> int:
        """d."""

    @property
    def radius(self) -> float:
        """sup ‖θ‖ over the set; inf for R^d."""

    @property
    def grip(self) -> float:
        """G >= 1: a normal ν is a sum of unit normals with weights that sum to at most G‖ν‖.

        A point outside of each face by at most r is then "in the set, up to G‖ν‖r".
        """

    def inner(self) -> Array:
        """Some point of the set, (d,)."""

    def project(self, point: Array) -> Array:
        """The nearest point of the set."""

    def step(self, at: Array, gradient: Array, hessian: Array) -> RegionStep:
        """Minimises ⟨gradient, x − at⟩ + ½(x − at)ᵀ hessian (x − at) over the set."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@final
@dataclass(frozen=True, slots=True)
class WholeSpace:
    """All of R^d."""

    dim: int

    @property
    def radius(self) -> float:
        return math.inf

    @property
    def grip(self) -> float:
        return 1.0

    def inner(self) -> Array:
        return np.zeros(self.dim)

    def project(self, point: Array) -> Array:
        return point

    def step(self, at: Array, gradient: Array, hessian: Array) -> RegionStep:
        return RegionStep(at - np.linalg.solve(hessian, gradient), np.zeros(self.dim), 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {"region": "whole-space"}


@final
@dataclass(frozen=True, slots=True)
class EuclideanBall:
    """‖θ‖₂ <= radius."""

    dim: int
    radius: float

    def __post_init__(self) -> None:
        count(dim=self.dim)
        if not 1e-50 <= positive(radius=self.radius) <= 1e50:
            raise ValueError(f"radius = {self.radius!r}: must lie in [1e-50, 1e50]")

    @property
    def grip(self) -> float:
        return 1.0

    def inner(self) -> Array:
        return np.zeros(self.dim)

    def project(self, point: Array) -> Array:
        norm = float(np.linalg.norm(point))
        return point if norm <= self.radius else point * (self.radius / norm)

    def step(self, at: Array, gradient: Array, hessian: Array) -> RegionStep:
        values, vectors = np.linalg.eigh(hessian)
        target = vectors.T @ (hessian @ at - gradient)

        def length(shift: float) -> float:
            return float(np.linalg.norm(target / (values + shift)))

        shift = 0.0
        if length(0.0) > self.radius:
            # ‖(H + λI)⁻¹t‖ falls in λ, and λ <= ‖t‖/radius
            low, high = 0.0, float(np.linalg.norm(target)) / self.radius
            for _ in range(200):
                shift = (low + high) / 2
                if not low < shift < high:
                    break
                low, high = (shift, high) if length(shift) > self.radius else (low, shift)
            shift = high
        point = self.project(vectors @ (target / (values + shift)))
        # ⟨λz, x − z⟩ <= λ(‖x‖² − ‖z‖²)/2 by convexity of ‖·‖²/2
        gap = shift * abs(self.radius**2 - float(point @ point)) / 2
        return RegionStep(point, shift * point, gap)

    def to_dict(self) -> dict[str, Any]:
        return {"region": "ball", "radius": self.radius}


@final
class Polyhedron:
    """{θ : rows·θ <= limits}, bounded and not empty.

    `grip`: let c be a point with slack >= w in every inequality that is not always an equation, D
    the largest distance from it.  A normal ν = Σλ_i·row_i at z has ⟨ν, z − c⟩ >= wΣλ_i over those,
    so their weights sum to at most ‖ν‖D/w; the rest of ν, of norm at most ‖ν‖(1 + D/w), comes from
    the equations, whose least singular value bounds the weights.

    Args:
        rows: shape (m, d), public.
        limits: shape (m,), public.

    Raises:
        ValueError: wrong shapes, numbers that are not finite, an empty or an unbounded set, or one
            too thin for double precision.
    """

    __slots__ = ("_equations", "_inner", "dim", "grip", "limits", "radius", "rows")

    def __init__(self, rows: Array, limits: Array) -> None:
        matrix, bounds = np.array(rows, dtype=np.float64), np.array(limits, dtype=np.float64)
        if matrix.ndim != 2 or bounds.shape != matrix.shape[:1] or 0 in matrix.shape:
            raise ValueError(
                f"rows of {matrix.shape}, limits of {bounds.shape}: must be (m, d) and (m,)"
            )
        if not (np.isfinite(matrix).all() and np.isfinite(bounds).all()):
            raise ValueError("rows, limits: must be finite")
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(matrix, axis=1)
        if (norms == 0).any():
            raise ValueError(f"rows: row {int(np.argmin(norms))} is 0 and bounds nothing")
        if np.isinf(norms).any():
            raise ValueError(f"rows: row {int(np.argmax(norms))} is too long for its norm")
        self.dim = int(matrix.shape[1])
        self.rows, self.limits = _without_repetitions(matrix / norms[:, None], bounds / norms)
        self.rows.setflags(write=False)
        self.limits.setflags(write=False)
        scale = float(np.abs(self.limits).max()) or 1.0
        corners = self._corners(scale)
        self.radius = float(np.linalg.norm(np.abs(corners).max(axis=0))) + 1e-6 * scale
        self._inner, self._equations = self._centre(scale)
        self.grip = self._grip(float(np.linalg.norm(np.abs(corners - self._inner).max(axis=0))))

    def _corners(self, scale: float) -> Array:
        """Least and largest coordinates, (2, d)."""
        corners = np.empty((2, self.dim))
        for i in range(self.dim):
            for k, sign in enumerate((1.0, -1.0)):
                found = self._linear_program(sign * np.eye(self.dim)[i], scale)
                if found is None:
                    raise ValueError(
                        f"rows, limits: the set is unbounded in coordinate {i}; for all of R^d "
                        "give no region"
                    )
                corners[k, i] = found[i]
        return corners

    def _linear_program(
        self, cost: Array, scale: float, equations: NDArray[np.bool_] | None = None
    ) -> Array | None:
        """A minimiser over the set, with a last coordinate for the slack if ``cost`` has one."""
        from scipy.optimize import linprog

        fixed = np.zeros(len(self.rows), dtype=bool) if equations is None else equations
        wide = len(cost) > self.dim
        rows = np.column_stack([self.rows, ~fixed]) if wide else self.rows
        some = bool(fixed.any())
        found = linprog(
            cost,
            A_ub=rows[~fixed],
            b_ub=self.limits[~fixed] / scale,
            A_eq=rows[fixed] if some else None,
            b_eq=self.limits[fixed] / scale if some else None,
            bounds=[(None, None)] * len(cost),
        )
        if found.status == 2:
            raise ValueError("rows, limits: no θ satisfies them, the set is empty")
        return None if found.status != 0 or found.x is None else found.x * scale

    def _centre(self, scale: float) -> tuple[Array, NDArray[np.bool_]]:
        equations = np.zeros(len(self.rows), dtype=bool)
        deepest = np.append(np.zeros(self.dim), -1.0)
        found = self._linear_program(deepest, scale)
        if found is not None and found[-1] <= 1e-9 * scale:
            if found[-1] < -1e-9 * scale:
                raise ValueError("rows, limits: no θ satisfies them, the set is empty")
            for i, row in enumerate(self.rows):
                lowest = self._linear_program(row, scale)
                slack = 0.0 if lowest is None else float(self.limits[i] - row @ lowest)
                equations[i] = slack <= 1e-9 * scale
            if equations.all():  # a single point: there is no slack to make large
                found = self._linear_program(np.zeros(self.dim), scale)
                found = None if found is None else np.append(found, 0.0)
            else:
                found = self._linear_program(deepest, scale, equations)
        if found is None:
            raise ValueError("rows, limits: the set is too thin for double precision")
        return found[:-1], equations

    def _grip(self, reach: float) -> float:
        slack = self.limits - self.rows @ self._inner
        fixed, loose = slack[self._equations], slack[~self._equations]
        grip = 0.0
        if loose.size:
            grip = reach / float(loose.min()) if loose.min() > 0 else math.inf
        if fixed.size:
            sizes = np.linalg.svd(self.rows[self._equations], compute_uv=False)
            grip += (1 + grip) * math.sqrt(fixed.size) / float(sizes[sizes > 1e-10].min())
            if np.abs(fixed).max() > 1e-12 * (1 + self.radius):
                grip = math.inf
        if grip > 1e8:
            raise ValueError("rows, limits: the set is empty or too thin for double precision")
        return float(max(grip, 1.0))

    def inner(self) -> Array:
        return self._inner

    def project(self, point: Array) -> Array:
        return self.step(point, np.zeros(self.dim), np.eye(self.dim)).point

    def step(self, at: Array, gradient: Array, hessian: Array) -> RegionStep:
        free = at - np.linalg.solve(hessian, gradient)
        if not self._equations.any() and (self.rows @ free - self.limits).max() <= 0:
            return RegionStep(free, np.zeros(self.dim), 0.0)
        flattest = float(np.linalg.eigvalsh(hessian)[0])
        active = self._equations | self._facing(free, hessian)
        best, least = RegionStep(self._inner, np.zeros(self.dim), math.inf), math.inf
        for _ in range(20 + 4 * self.dim):
            point, weights = self._on_face(active, at, gradient, hessian)
            step = self._feasible(point, weights)
            error = gradient + hessian @ (step.point - at) + step.normal
            score = float(error @ error) / flattest + step.gap
            if score < least:
                best, least = step, score
            excess = np.where(active, -math.inf, self.rows @ point - self.limits)
            pull = np.where(active & ~self._equations, weights, math.inf)
            if excess.max() > self._tolerance(point):
                full = np.linalg.matrix_rank(self.rows[active]) >= self.dim
                if full and pull.min() < math.inf:
                    active[int(np.argmin(pull))] = False
                active[int(np.argmax(excess))] = True
            elif pull.min() < 0:
                active[int(np.argmin(pull))] = False
            else:
                break
        return best

    def _facing(self, free: Array, hessian: Array) -> NDArray[np.bool_]:
        """The inequalities that hold the minimiser back, up to rounding.

        Least distance programming by nonnegative least squares (Lawson & Hanson 1974, ch. 23):
        minimise ‖w‖, w = Lᵀ(x − free), subject to −rows·L⁻ᵀw >= excess.
        """
        from scipy.optimize import nnls

        excess = self.rows @ free - self.limits
        facing = -np.linalg.solve(np.linalg.cholesky(hessian), self.rows.T)
        scale = float(np.abs(facing).max() / max(np.abs(excess).max(), 1e-300))
        system = np.vstack([facing, excess * scale])
        try:
            weights, _ = nnls(system, np.eye(self.dim + 1)[-1], maxiter=100 * len(self.limits))
        except RuntimeError:  # too many steps: start from the worst inequality instead
            return np.asarray(excess >= excess.max())
        return np.asarray(weights > 0)

    def _on_face(
        self, active: NDArray[np.bool_], at: Array, gradient: Array, hessian: Array
    ) -> tuple[Array, Array]:
        rows, limits = self.rows[active], self.limits[active]
        weights = np.zeros(len(active))
        left, sizes, right = np.linalg.svd(rows)
        rank = int((sizes > 1e-10).sum())
        inverse = (right[:rank].T / sizes[:rank]) @ left[:, :rank].T
        along = right[rank:].T
        point = at + inverse @ (limits - rows @ at)
        slope = gradient + hessian @ (point - at)
        point = point - along @ np.linalg.solve(along.T @ hessian @ along, along.T @ slope)
        point = point + inverse @ (limits - rows @ point)
        force = -(gradient + hessian @ (point - at))
        found = inverse.T @ force
        weights[active] = found + inverse.T @ (force - rows.T @ found)
        return point, weights

    def _feasible(self, point: Array, weights: Array) -> RegionStep:
        excess = np.where(self._equations, 0.0, self.rows @ point - self.limits)
        if excess.max() > self._tolerance(point):
            out = excess > 0
            depth = self.limits[out] - self.rows[out] @ self._inner
            share = float((excess[out] / (excess[out] + depth)).max())
            point = point + share * (self._inner - point)
        weights = np.where(self._equations, weights, np.maximum(weights, 0.0))
        gap = float(np.abs(weights) @ np.abs(self.limits - self.rows @ point))
        return RegionStep(point, self.rows.T @ weights, gap)

    def _tolerance(self, point: Array) -> float:
        return 4 * UNIT * self.dim * (1 + float(np.linalg.norm(point)))

    def to_dict(self) -> dict[str, Any]:
        return {"region": "polyhedron", "rows": self.rows.tolist(), "limits": self.limits.tolist()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polyhedron) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.rows.tobytes(), self.limits.tobytes()))

    def __repr__(self) -> str:
        return f"Polyhedron({len(self.limits)} inequalities in R^{self.dim})"


def _without_repetitions(rows: Array, limits: Array) -> tuple[Array, Array]:
    kept: list[int] = []
    for i in np.argsort(limits, kind="stable"):
        same = False
        for j in kept:
            apart = min(np.linalg.norm(rows[i] - rows[j]), np.linalg.norm(rows[i] + rows[j]))
            if 1e-12 < apart < 1e-4:
                raise ValueError(
                    f"rows: rows {min(i, j)} and {max(i, j)} are parallel up to {apart:.1e}; "
                    "make them equal, opposite, or clearly different"
                )
            same = same or bool(np.linalg.norm(rows[i] - rows[j]) <= 1e-12)
        if not same:
            kept.append(int(i))
    kept.sort()
    return rows[kept], limits[kept]


def box(dim: int, low: float, high: float) -> Polyhedron:
    """{θ : low <= θ_i <= high}.

    Raises:
        ValueError: ``low`` is not below ``high``.
    """
    if not low < high:
        raise ValueError(f"low = {low!r}, high = {high!r}: low must be below high")
    eye = np.eye(count(dim=dim))
    return Polyhedron(np.vstack([eye, -eye]), np.repeat([high, -low], dim))


def simplex(dim: int, total: float = 1.0) -> Polyhedron:
    """{θ : θ_i >= 0, Σθ_i = total}."""
    positive(total=total)
    ones = np.ones((1, count(dim=dim)))
    rows = np.vstack([-np.eye(dim), ones, -ones])
    return Polyhedron(rows, np.concatenate([np.zeros(dim), [total, -total]]))
