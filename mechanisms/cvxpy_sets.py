"""Convex sets that a user states as cvxpy constraints (extra ``cvxpy``).

For Frank-Wolfe a `CvxpySet` is a constraint set: a solver answers its oracle.  What the set is only
decides what becomes of released numbers, so an error of the solver costs accuracy and no privacy.
For objective perturbation the solver's error would have to be certified; linear constraints become
a `Polyhedron`, whose steps are, by `CvxpySet.polyhedron`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.mechanisms.constraint_sets import exponent, norms
from privlearn.mechanisms.regions import Polyhedron
from privlearn.rows.domains import Array

_LARGEST = 1e50


@final
class CvxpySet:
    """{x : the constraints hold}, closed, bounded and not empty.

    Args:
        variable: a cvxpy ``Variable`` of shape (d,) with no attribute like ``nonneg``.
        constraints: convex constraints on it, all public, with numbers in place of parameters.

    Raises:
        ImportError: cvxpy is not installed.
        TypeError, ValueError: the variable is of another kind, a constraint is not convex or not on
            this variable, or the set is empty or unbounded.

    >>> import cvxpy as cp
    >>> x = cp.Variable(2)
    >>> CvxpySet(x, [x >= 0, cp.sum(x) <= 1]).minimize([-1.0, -2.0]).round(6) + 0.0
    array([0., 1.])
    """

    kind = "cvxpy"

    def __init__(self, variable: Any, constraints: Sequence[Any]) -> None:
        cp = _cvxpy()
        if not isinstance(variable, cp.Variable) or variable.ndim != 1:
            raise TypeError(f"variable = {variable!r}: must be a cvxpy.Variable of shape (d,)")
        # cvxpy would add them to its problems, but to no list of constraints
        if any(value for value in variable.attributes.values()):
            raise ValueError("variable: give nonneg=True and the like as constraints, x >= 0")
        for place, constraint in enumerate(constraints):
            if not isinstance(constraint, cp.constraints.constraint.Constraint):
                raise TypeError(f"constraints[{place}] = {constraint!r}: must be a constraint")
            if not constraint.is_dcp():
                raise ValueError(f"constraints[{place}], {constraint}: must be convex")
            if any(other is not variable for other in constraint.variables()):
                raise ValueError(f"constraints[{place}], {constraint}: has another variable")
            if constraint.parameters():  # the set could be another one later
                raise ValueError(f"constraints[{place}], {constraint}: give its parameter's value")
        self._variable, self._constraints = variable, tuple(constraints)
        self._cost, self._near = cp.Parameter(variable.size), cp.Parameter(variable.size)
        self._oracle = cp.Problem(cp.Minimize(self._cost @ variable), list(constraints))
        gap = variable - self._near
        self._projection = cp.Problem(cp.Minimize(cp.sum_squares(gap)), list(constraints))
        signed = np.vstack([np.eye(self.dim), -np.eye(self.dim)])
        self._corners = self.minimize(signed)[np.arange(2 * self.dim), [*range(self.dim)] * 2]
        if not np.abs(self._corners).max() <= _LARGEST:
            raise ValueError("constraints: the set is unbounded")

    @property
    def dim(self) -> int:
        return int(self._variable.size)

    def minimize(self, direction: ArrayLike, /) -> Array:
        """A member with the least ⟨direction, v⟩, up to the solver's tolerance; (..., d)."""
        costs = np.asarray(direction, dtype=np.float64)
        flat = costs.reshape(-1, self.dim)
        found = [self._solve(self._oracle, self._cost, cost / _size(cost)) for cost in flat]
        return np.array(found).reshape(costs.shape)

    def diameter(self, norm: float, /) -> float:
        """At least the largest ℓs distance of two members: that of the bounding box."""
        widths = self._corners[self.dim :] - self._corners[: self.dim]
        return float(norms(np.abs(widths), exponent(norm=norm)))

    def project(self, theta: ArrayLike, /) -> Array:
        """The nearest member in ℓ2, up to the solver's tolerance, (d,)."""
        point = np.asarray(theta, dtype=np.float64)
        if point.shape != (self.dim,) or not np.isfinite(point).all():
            raise ValueError(f"theta of shape {point.shape}: must be ({self.dim},), all finite")
        return self._solve(self._projection, self._near, point)

    def pull(self, theta: ArrayLike, /) -> Array:
        """``theta`` if it is a member, else the nearest one, (d,)."""
        point = np.asarray(theta, dtype=np.float64)
        return point if self._holds(point) else self.project(point)

    def contains(self, theta: ArrayLike, tol: float = 1e-9, /) -> bool:
        """Whether ``theta`` breaks no constraint by more than ``tol`` times the set's size."""
        return self._holds(np.asarray(theta, dtype=np.float64), tol)

    def polyhedron(self) -> Polyhedron:
        """The same set for objective perturbation, if all constraints are linear.

        Raises:
            ValueError: one is not; for a Euclidean ball there is `regions.EuclideanBall`.
        """
        cp = _cvxpy()
        rows, limits = [], []
        for constraint in self._constraints:
            one_sided = isinstance(constraint, cp.constraints.Inequality)
            equal = isinstance(constraint, cp.constraints.Equality)
            if not (one_sided or equal) or not constraint.expr.is_affine():
                raise ValueError(f"{constraint}: only linear constraints make a polyhedron")
            matrix, offset = self._affine(constraint.expr)
            for sign in (1.0, -1.0) if equal else (1.0,):
                rows.append(sign * matrix)
                limits.append(-sign * offset)
        return Polyhedron(np.vstack(rows), np.concatenate(limits))

    def to_dict(self) -> dict[str, Any]:
        """JSON form, for people: the constraints as cvxpy writes them."""
        return {
            "set": self.kind,
            "dim": self.dim,
            "constraints": [str(c) for c in self._constraints],
        }

    def _affine(self, expression: Any) -> tuple[Array, Array]:
        self._variable.value = np.zeros(self.dim)
        offset = np.ravel(expression.value, order="F")
        slopes = expression.grad.get(self._variable, 0)
        dense = slopes.toarray() if hasattr(slopes, "toarray") else np.asarray(slopes)
        return np.broadcast_to(dense, (self.dim, len(offset))).T, offset

    def _holds(self, point: Array, tol: float = 0.0) -> bool:
        self._variable.value = point
        allowed = tol * (1 + float(np.abs(self._corners).max()))
        return all(float(np.max(c.violation())) <= allowed for c in self._constraints)

    def _solve(self, problem: Any, parameter: Any, value: Array) -> Array:
        cp = _cvxpy()
        parameter.value = value
        try:
            problem.solve()
        except cp.SolverError as error:
            raise ValueError(f"constraints: the solver gave up: {error}") from None
        if problem.status in ("infeasible", "infeasible_inaccurate"):
            raise ValueError("constraints: nothing satisfies them, the set is empty")
        if problem.status in ("unbounded", "unbounded_inaccurate"):
            raise ValueError("constraints: the set is unbounded")
        return np.array(self._variable.value, dtype=np.float64)


def _size(cost: Array) -> float:
    return float(np.abs(cost).max()) or 1.0


def _cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError:
        raise ImportError(
            "sets given as cvxpy constraints need cvxpy: pip install 'privlearn[cvxpy]'"
        ) from None
    return cvxpy
