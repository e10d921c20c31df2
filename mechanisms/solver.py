r"""Minimises Σℓ(θ; z) + (Δ/2)‖θ‖² + bᵀθ over a region, with a certified distance to the minimiser.

**Certificate.**  Let z be a point of the region and ν a vector with ⟨ν, x − z⟩ <= g for every x of
it.  J is Δ-strongly convex, and ⟨∇J(θ*), z − θ*⟩ >= 0, so with e = z − θ*
Δ‖e‖² <= ⟨∇J(z) − ∇J(θ*), e⟩ <= ⟨∇J(z) + ν, e⟩ + ⟨ν, θ* − z⟩ <= ‖∇J(z) + ν‖‖e‖ + g, hence

    ‖z − θ*‖ <= ‖∇J(z) + ν‖/Δ + √(g/Δ).

The float error of the computed ∇J is bounded beforehand from public constants (`attainable`).

**It ends for every data set** on R^d and on balls.  Newton's method on the region: a step is taken
in full if it halves the certified distance, else it is shortened until J falls enough (Armijo).
The former can happen only finitely often; the latter lowers J by an amount bounded below while the
distance is too large, because the Hessian lies between Δ and Δ + nT.  Should `NEWTON_STEPS` not be
enough, accelerated projected gradients follow, whose number of steps √((Δ+nT)/Δ)·log(…) is fixed by
public constants.  Which of the two was needed is not visible outside but for its time, which is not
protected.  On a polyhedron both rest on `Polyhedron.step`, whose search for the active faces is
tested but not proved to end at the minimiser: the certificate is honest there too, but that it is
always reached is not a theorem.  A fit without one ends as *uncovered*, which an audit reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast, final

import numpy as np

from privlearn.errors import SolverError
from privlearn.mechanisms.objectives import UNIT, Objective
from privlearn.mechanisms.regions import EuclideanBall, Region, RegionStep, WholeSpace
from privlearn.noise.exact.near import NEAR_BITS, NEAR_ERROR
from privlearn.rows.domains import Array

NEWTON_STEPS = 100
TILT_TAIL = 9.0
"""Standard deviations that a coordinate of a tilt hardly ever exceeds (2e-19); beyond,
`privlearn.mechanisms.far_tilts` takes over on R^d and on balls."""
FAR_TAIL = 40.0
"""The same on other regions, where nothing is certified beyond (1e-349)."""
TILT_BITS = NEAR_BITS
"""Fractional bits of standard tilts,"""
TILT_ERROR = (NEAR_ERROR + 1) * 2.0**-TILT_BITS
"""and how far they may be off."""
STEEPEST = 1e8
"""Largest ratio of nT to Δ; the number of accelerated steps grows with its root."""
_SUM = 64  # Relative rounding error of a pairwise sum of up to 2⁴⁰ numbers, in units of `UNIT`


class Minimised(Protocol):
    """J, wherever its data set lies."""

    @property
    def objective(self) -> Objective[Any]: ...
    @property
    def ridge(self) -> float: ...
    @property
    def rows(self) -> int:
        """n."""

    def value(self, theta: Array) -> float:
        """J(θ), or by how much it exceeds one number."""

    def gradient(self, theta: Array) -> Array:
        """∇J(θ), with an error that `attainable` bounds."""

    def hessian(self, theta: Array) -> Array:
        """∇²J(θ), nearly."""


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """J on one data set: sealed from everybody but the mechanism that opened it."""

    objective: Objective[Any]
    records: Array
    ridge: float
    tilt: Array

    @property
    def rows(self) -> int:
        return len(self.records)

    def value(self, theta: Array) -> float:
        total = math.fsum(self.objective.values(self.records, theta))
        return float(total + self.ridge / 2 * theta @ theta + self.tilt @ theta)

    def gradient(self, theta: Array) -> Array:
        each = np.ascontiguousarray(self.objective.gradients(self.records, theta).T)
        return cast(Array, each.sum(axis=1) + self.ridge * theta + self.tilt)

    def hessian(self, theta: Array) -> Array:
        total = self.objective.hessian_sum(self.records, theta)
        return total + self.ridge * np.eye(self.objective.dim)


Certificate: TypeAlias = Callable[[Minimised, Region, RegionStep], float]
"""A number of a step that is small enough near the minimiser only."""


def tail_of(region: Region) -> float:
    """Standard deviations up to which `minimise` is certified in every coordinate of a tilt."""
    return TILT_TAIL if isinstance(region, WholeSpace | EuclideanBall) else FAR_TAIL


def longest(
    objective: Objective[Any], region: Region, *, rows: int, ridge: float, tilt_std: float
) -> float:
    """Bound on ‖θ*‖ for every data set and every tilt up to `tail_of`.

    Let p be the point of the region nearest 0, so that ⟨p, p − θ*⟩ <= 0, and G = Σ∇ℓ(p) + b.  Then
    Δ‖θ* − p‖² <= ⟨∇J(p), p − θ*⟩ <= ⟨G, p − θ*⟩, and ‖θ*‖ <= ‖p‖ + ‖G‖/Δ.  If p = 0, also
    J(θ*) <= J(0), which is (Δ/2)‖θ*‖² <= Σ(ℓ(0) − ℓ(θ*)) + ‖b‖‖θ*‖.
    """
    tilt = tail_of(region) * tilt_std * math.sqrt(objective.dim)
    nearest = float(np.linalg.norm(region.project(np.zeros(objective.dim))))
    bound = min(region.radius, nearest + (rows * objective.gradient_bound + tilt) / ridge)
    if nearest > 0:
        return bound
    by_value = (tilt + math.sqrt(tilt**2 + 2 * ridge * rows * objective.depth)) / ridge
    return min(bound, by_value)


def attainable(
    objective: Objective[Any], region: Region, *, rows: int, ridge: float, tilt_std: float
) -> float:
    """A distance to the minimiser that is certified for every data set of up to ``rows`` records.

    For every tilt up to `tail_of`.  Twice the error that double precision can make in the computed
    gradient (from `rounding`, sums, ridge and tilt, which is known to 2⁻⁵³ only), over Δ; on a
    bounded region also the rounding of its boundary.

    Raises:
        ValueError: ``ridge`` is so small for so many rows that double precision certifies nothing.
    """
    radius = longest(objective, region, rows=rows, ridge=ridge, tilt_std=tilt_std)
    slopes = rows * objective.gradient_bound
    spread = tilt_std * math.sqrt(objective.dim)
    tilt = tail_of(region) * spread
    error = rows * objective.rounding(2 * radius) + TILT_ERROR * spread
    error += UNIT * (_SUM * slopes + 8 * ridge * radius + 12 * tilt)
    distance = 2 * error / ridge
    if math.isfinite(region.radius):
        force = slopes + ridge * radius + tilt
        distance += 4 * math.sqrt(_edge(region, radius) * force / ridge)
    # So the bound on the error, which holds where ‖θ‖ <= 2·radius, holds wherever one is certified;
    # and the accelerated steps are few enough.
    vacuous = math.isinf(region.radius) and distance > 1e-2 * radius
    if vacuous or rows * objective.trace > STEEPEST * ridge:
        raise ValueError(
            f"ridge = {ridge!r}: too small to certify minimisers over max_rows = {rows} rows in "
            "double precision; take a larger ridge"
        )
    return distance


def _edge(region: Region, radius: float) -> float:
    """Allowance for the rounding of points on the boundary of a region, per unit of force."""
    return 16 * UNIT * region.dim * (1 + radius) * region.grip


def minimise(
    problem: Minimised,
    region: Region,
    distance: float,
    *,
    newton_steps: int = NEWTON_STEPS,
    certificate: Certificate | None = None,
) -> Array:
    """A point of the region within ``distance`` of the minimiser, shape (d,).

    Args:
        problem: J.
        region: where θ may lie.
        distance: at least `attainable`.
        newton_steps: after so many, accelerated gradients take over.
        certificate: of a step; default, of its distance by the computed gradient.

    Raises:
        SolverError: no certificate was reached; on R^d and balls `attainable` rules that out.
    """
    # The computed gradient may be wrong by half of the distance times Δ.
    enough, judge = distance / 2, certificate or _distance
    theta, certified = region.inner(), math.inf
    value = math.inf
    for _ in range(newton_steps):
        gradient = problem.gradient(theta)
        step = region.step(theta, gradient, problem.hessian(theta))
        found = judge(problem, region, step)
        if found <= enough:
            return step.point
        if found <= certified / 2:
            theta, certified, value = step.point, found, math.inf
            continue
        move = step.point - theta
        if not move.any():
            break
        slope, size = float(gradient @ move), 1.0
        value = problem.value(theta) if math.isinf(value) else value
        while (trial := problem.value(theta + size * move)) > value + 1e-4 * size * slope:
            size /= 2
            if size < 1e-12:
                break
        theta, value = theta + size * move, trial
    return _accelerated(problem, region, theta, enough, judge)


def _distance(problem: Minimised, region: Region, step: RegionStep) -> float:
    gradient, gap = problem.gradient(step.point), step.gap
    if math.isfinite(region.radius):
        size = float(np.linalg.norm(gradient))
        gap += _edge(region, float(np.linalg.norm(step.point))) * size
    away = float(np.linalg.norm(gradient + step.normal))
    return away / problem.ridge + math.sqrt(gap / problem.ridge)


def _accelerated(
    problem: Minimised, region: Region, start: Array, enough: float, judge: Certificate
) -> Array:
    """Nesterov's method for strongly convex functions, with projections (Nesterov 2018, 2.2.63)."""
    steepest = problem.ridge + problem.rows * problem.objective.trace
    root = math.sqrt(steepest / problem.ridge)
    first = float(np.linalg.norm(problem.gradient(start))) / problem.ridge
    # ‖θ_k − θ*‖² <= (1 − 1/root)^k·(κ+1)‖θ_0 − θ*‖², and the certificate costs at most 3κ more
    needed = 2 * root * (math.log(max(first / enough, 1.0)) + 4 * math.log(root) + 4)
    momentum = (root - 1) / (root + 1)
    before = theta = region.project(start)
    for _ in range(math.ceil(needed)):
        ahead = theta + momentum * (theta - before)
        # A step and not a projection: it says how far its normal is from being one.
        step = region.step(ahead, problem.gradient(ahead), steepest * np.eye(len(ahead)))
        before, theta = theta, step.point
        if judge(problem, region, step) <= enough:
            return theta
    raise SolverError("no certified minimiser: the outcome of this release is not covered")
