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

from privlearn._validate import count, positive
from privlearn.domains import Array


class Step(NamedTuple):
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

    def inner(self) -> Array:
        """Some point of the set, (d,)."""

    def project(self, point: Array) -> Array:
        """The nearest point of the set."""

    def step(self, at: Array, gradient: Array, hessian: Array) -> Step:
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

    def inner(self) -> Array:
        return np.zeros(self.dim)

    def project(self, point: Array) -> Array:
        return point

    def step(self, at: Array, gradient: Array, hessian: Array) -> Step:
        return Step(at - np.linalg.solve(hessian, gradient), np.zeros(self.dim), 0.0)

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
        positive(radius=self.radius)

    def inner(self) -> Array:
        return np.zeros(self.dim)

    def project(self, point: Array) -> Array:
        norm = float(np.linalg.norm(point))
        return point if norm <= self.radius else point * (self.radius / norm)

    def step(self, at: Array, gradient: Array, hessian: Array) -> Step:
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
        return Step(point, shift * point, gap)

    def to_dict(self) -> dict[str, Any]:
        return {"region": "ball", "radius": self.radius}


@final
class Polyhedron:
    """{θ : rows·θ <= limits}, bounded and not empty.

    Args:
        rows: shape (m, d), public.
        limits: shape (m,), public.

    Raises:
        ValueError: wrong shapes, numbers that are not finite, an empty or an unbounded set.
    """

    __slots__ = ("_inner", "dim", "limits", "radius", "rows")

    def __init__(self, rows: Array, limits: Array) -> None:
        matrix, bounds = np.array(rows, dtype=np.float64), np.array(limits, dtype=np.float64)
        if matrix.ndim != 2 or bounds.shape != matrix.shape[:1] or 0 in matrix.shape:
            raise ValueError(
                f"rows of {matrix.shape}, limits of {bounds.shape}: must be (m, d) and (m,)"
            )
        if not (np.isfinite(matrix).all() and np.isfinite(bounds).all()):
            raise ValueError("rows, limits: must be finite")
        norms = np.linalg.norm(matrix, axis=1)
        if (norms == 0).any():
            raise ValueError(f"rows: row {int(np.argmin(norms))} is 0 and bounds nothing")
        self.dim = matrix.shape[1]
        self.rows, self.limits = matrix / norms[:, None], bounds / norms
        self.rows.setflags(write=False)
        self.limits.setflags(write=False)
        self._inner, self.radius = self._centre_and_radius()

    def _centre_and_radius(self) -> tuple[Array, float]:
        from scipy.optimize import linprog

        free = [(None, None)] * self.dim
        corners = np.empty((2, self.dim))
        points = []
        for i in range(self.dim):
            for k, sign in enumerate((1.0, -1.0)):
                cost = sign * np.eye(self.dim)[i]
                found = linprog(cost, A_ub=self.rows, b_ub=self.limits, bounds=free)
                if found.status == 2:
                    raise ValueError("rows, limits: no θ satisfies them, the set is empty")
                if found.status != 0 or found.x is None:
                    raise ValueError(
                        f"rows, limits: the set is unbounded in coordinate {i}; for all of R^d "
                        "give no region"
                    )
                corners[k, i] = found.x[i]
                points.append(found.x)
        return np.mean(points, axis=0), float(np.linalg.norm(np.abs(corners).max(axis=0)))

    def inner(self) -> Array:
        return self._inner

    def project(self, point: Array) -> Array:
        return self.step(point, np.zeros(self.dim), np.eye(self.dim)).point

    def step(self, at: Array, gradient: Array, hessian: Array) -> Step:
        from scipy.optimize import nnls

        free = at - np.linalg.solve(hessian, gradient)
        excess = self.rows @ free - self.limits
        if excess.max() <= 0:
            return Step(free, np.zeros(self.dim), 0.0)
        # Least distance programming by nonnegative least squares (Lawson & Hanson 1974, ch. 23):
        # minimise ‖w‖, w = Lᵀ(x − free), subject to −rows·L⁻ᵀw >= excess.
        root = np.linalg.cholesky(hessian)
        facing = -np.linalg.solve(root, self.rows.T)
        scale = float(np.abs(facing).max() / np.abs(excess).max())
        system = np.vstack([facing, excess * scale])
        weights, _ = nnls(system, np.eye(self.dim + 1)[-1], maxiter=100 * len(self.limits))
        slack = 1.0 - float(system[-1] @ weights)
        multipliers = weights / (slack * scale)
        point = free - np.linalg.solve(hessian, self.rows.T @ multipliers)
        gap = float(multipliers @ np.abs(self.limits - self.rows @ point))
        return Step(point, self.rows.T @ multipliers, gap)

    def to_dict(self) -> dict[str, Any]:
        return {
            "region": "polyhedron",
            "rows": self.rows.tolist(),
            "limits": self.limits.tolist(),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polyhedron) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.rows.tobytes(), self.limits.tobytes()))

    def __repr__(self) -> str:
        return f"Polyhedron({len(self.limits)} inequalities in R^{self.dim})"


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
