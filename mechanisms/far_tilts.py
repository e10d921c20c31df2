r"""Certified minimisers over a ball for tilts of any size, so that no tilt has to be left out.

Normal tilts exceed every bound, and a mechanism that stopped, drew again or cut them off would have
an infinite Rényi divergence.  On R^d the mechanism is defined as the minimiser over a ball that
holds the minimiser of every tilt up to `TILT_TAIL`: there, the two are the same.  On balls the
following holds for every tilt b.

**Certificate.**  Let ‖z‖ = ρ, λ >= 0, r = ∇J(z) + λz, and e = z − θ*.  As ⟨∇J(θ*), e⟩ >= 0,
Δ‖e‖² <= ⟨∇J(z) − ∇J(θ*), e⟩ <= ⟨r, e⟩ − λ⟨z, e⟩, and ‖e‖² <= 2ρ² − 2⟨z, θ*⟩ = 2⟨z, e⟩, hence

    ‖z − θ*‖ <= ‖r‖/(Δ + λ/2),

for λ = 0 also inside the ball.  With G = nL + Δρ, ‖b‖ <= λρ + G at the minimiser, so what rounding
does to r is at most a constant (`Reach.steady`) plus a small multiple of λρ: the distance is
bounded for all b.  Beyond ‖b‖ = 2⁵²G the minimiser −ρ(b+g)/‖b+g‖, ‖g‖ <= G, is within 2ρG/‖b‖ of
−ρb/‖b‖.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, final

import numpy as np

from privlearn.mechanisms.objectives import UNIT, Objective
from privlearn.mechanisms.regions import EuclideanBall, Region, RegionStep, WholeSpace
from privlearn.mechanisms.solver import TILT_BITS, TILT_ERROR, Minimised, longest, minimise
from privlearn.rows.domains import Array

_HUGE = 2**52  # In units of G: beyond, only the direction of a tilt matters


@final
@dataclass(frozen=True, slots=True)
class Reach:
    """The ball over which J is minimised, and what double precision certifies on it.

    Args:
        ball: of radius ρ.
        force: G = nL + Δρ, the largest gradient without the tilt.
        steady: error of a computed residual r, where λ = 0.
        steep: error of r for each λ.
        distance: within which of the minimiser `minimise_far` ends, for every tilt.
    """

    ball: EuclideanBall
    force: float
    steady: float
    steep: float
    distance: float

    @classmethod
    def of(
        cls,
        objective: Objective[Any],
        region: Region | None,
        *,
        rows: int,
        ridge: float,
        tilt_std: float,
    ) -> Self | None:
        """For R^d (None) and balls; None for other regions, where no such bound is known."""
        d = objective.dim
        if region is None or isinstance(region, WholeSpace):
            whole = WholeSpace(d)
            radius = longest(objective, whole, rows=rows, ridge=ridge, tilt_std=tilt_std)
            region = EuclideanBall(d, radius * (1 + 2.0**-30))
        if not isinstance(region, EuclideanBall):
            return None
        radius = region.radius
        slopes, bend = rows * objective.gradient_bound, ridge + rows * objective.trace
        force = slopes + ridge * radius
        # r is not taken on the sphere but within (d+12)·UNIT·ρ of it; the solver gets as much again
        away = (2 * d + 24) * UNIT * radius
        steady = rows * objective.rounding(1.001 * radius) + bend * away
        steady += UNIT * (64 * slopes + 8 * ridge * radius + 12 * force)
        steady += TILT_ERROR * tilt_std * math.sqrt(d)
        steep = away + 12 * UNIT * radius
        # half is what is accepted, and half what rounding hides; then z itself, and huge tilts
        distance = 2 * steady / ridge + 4 * steep + away
        return cls(region, force, steady, steep, distance)


def minimise_far(problem: Minimised, reach: Reach, known: Sequence[int], tilt_std: float) -> Array:
    """A point within `Reach.distance` of the minimiser over the ball, shape (d,).

    Args:
        reach: of the ball.
        known: 2^58·Z of the standard tilt, nearly (`TILT_ERROR`).
        tilt_std: σ.

    Raises:
        SolverError: no certificate was reached, which `Reach.distance` rules out.
    """
    ball = reach.ball
    largest = max(max(m, ~m) for m in known)
    if Fraction(tilt_std) * largest >= Fraction(reach.force) * _HUGE * 2**TILT_BITS:
        direction = np.array([float(Fraction(m, largest)) for m in known])
        return np.asarray(-direction * (ball.radius / float(np.linalg.norm(direction))))

    def excess(problem: Minimised, _: Region, step: RegionStep) -> float:
        """‖r‖ over what is accepted of it, in units of half the distance."""
        length = math.sqrt(math.fsum(x * x for x in step.point.tolist()))
        pull = float(np.linalg.norm(step.normal)) / length if step.normal.any() else 0.0
        edge = abs(length - ball.radius) if pull else max(length - ball.radius, 0.0)
        if not edge <= (ball.dim + 12) * UNIT * ball.radius:
            return math.inf
        rest = float(np.linalg.norm(problem.gradient(step.point) + step.normal))
        return reach.distance / 2 * rest / (reach.steady + reach.steep * pull)

    return minimise(problem, ball, reach.distance, certificate=excess)
