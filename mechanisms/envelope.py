r"""The Lipschitz envelope: any convex loss with its gradients bounded, convex still.

Clipping the gradients of ℓ does not give gradients of anything; this does.  With a convex kernel h
on [0, ∞) with h(0) = 0, whose slope rises from (1−m)C at 0 towards C,

    ℓ_C(θ; z) = min over v of ℓ(v; z) + h(‖θ − v‖).

**Bounds.**  The conjugate of ℓ_C is ℓ* + h*(‖·‖), and h*(s) = ∞ for s > C.  So
∇ℓ_C(θ) = argmax over ‖g‖ <= C of ⟨g, θ⟩ − ℓ*(g) − h*(‖g‖) has norm at most C; by the optimality of
v it is ∇ℓ(v).  As ℓ* is 1/T-strongly convex (∇ℓ is T-Lipschitz), ∇ℓ_C is T-Lipschitz.  With
H = ∇²ℓ(v) and G >= 0 the Hessian of h(‖·‖) at θ − v, the Hessian of ℓ_C is the parallel sum
H − H(H+G)⁻H <= H (Anderson & Duffin 1969): trace and rank are bounded as those of ℓ are, and the
gradients stay in its span.  inf ℓ_C = inf ℓ and ℓ_C <= ℓ.  A bound s < 2L on differences of
gradients at *one* θ does not carry over, as two records have two v: s = 2·min(C, L).

**The kernel.**  h has the slope S(μ) = C(1 − m/(1+Tμ)) at the distance t = μS(μ), which increases
in μ >= 0, so that v + μ∇ℓ(v) = θ and ‖∇ℓ(v)‖ = S(μ) where the minimum is not at v = θ.  m = 0 is
the envelope proper, h(t) = Ct.  It is badly conditioned: where ‖∇ℓ‖ is C up to η on a long way, an
error of η in ∇ℓ moves ∇ℓ_C by up to √(2Cη), that is 1e-8 per record for η = 1e-16, and objective
perturbation pays for every digit.  A small m > 0 makes the error proportional to η.

**Accuracy.**  Computed are v, μ >= 0 and g̃ ≈ g = ∇ℓ(v), ‖g̃ − g‖ <= f, with residuals
r = v + μg − θ and | ‖g̃‖ − S(μ) | <= δ (or μ = 0 and ‖g̃‖ <= S(0)).
The exact ones are v*, μ*, g* with v* + μ*g* = θ, ‖g*‖ = S(μ*) (or μ* = 0 and ‖g*‖ <= S(0)).  Write
e = g − g* and η = f + δ.  ∇ℓ is T-cocoercive, so ‖e‖²/T <= ⟨v − v*, e⟩ = ⟨r + μ*g* − μg, e⟩ and,
expanding ⟨μ*g* − μg, g − g*⟩,

    (1/T + (μ+μ*)/2)‖e‖² <= ‖r‖‖e‖ + (μ* − μ)(‖g‖² − ‖g*‖²)/2.

S increases, so the last term is positive only if ‖g‖ lies within η of ‖g*‖ and S(μ) within η of
S(μ*) (with S(μ*) replaced by S(0) where μ* = 0).  (i) As |μ* − μ| <= μ + μ*, it is then at most
(1/T + (μ+μ*)/2)·2Cη(1+η/C).  (ii) As dμ/dS = (1+Tμ)²/(CmT), it is at most η²(1+A)²(1+η/C)/(mT),
A = T·max(μ, μ*), and 1 + T(μ+μ*)/2 >= (1+A)/2.  From x² <= αx + β² follows x <= α + β:

    ‖g̃ − g*‖ <= f + 2‖r‖/(1/T+μ) + min(√(2Cη), η√(2(1+A)/m))·√(1+η/C).

By convexity ℓ(θ) >= ℓ(v*) + ⟨g*, θ − v*⟩, so ‖θ − v*‖ <= (depth + L‖θ‖)/((1−m)C), which bounds A
and the length of v, hence f.  `LipschitzEnvelope.rounding` evaluates the bound; the residuals are
checked for every record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast, final

import numpy as np

from privlearn.errors import SolverError
from privlearn.mechanisms.linear_models import LinearObjective
from privlearn.mechanisms.objectives import UNIT, Objective
from privlearn.rows.domains import Array, Domain
from privlearn.values.validate import Positive, assign, check_fields

X = TypeVar("X")

_STEPS = 20_000
"""Far more evaluations than any record has been seen to need (1000, for 20 items, ‖θ‖ = 1e4)."""


class _Solved(NamedTuple):
    """Where the minimum over v is attained: v (n, d), μ (n,), ∇ℓ(v) (n, d)."""

    points: Array
    weights: Array
    gradients: Array


@final
@dataclass(frozen=True, slots=True)
class LipschitzEnvelope(Objective[X]):
    """min over v of ℓ(v; z) + h(‖θ − v‖): a convex loss with gradients of norm at most ``clip``.

    What is ℓ's stays (domain, trace, rank, span); see the module's docstring for the proofs.  For
    losses of a linear score x·θ it is the loss whose derivative is clipped to ±clip/‖x‖, exactly.

    Args:
        objective: ℓ, with a finite `Objective.depth`.
        clip: C, bound on the norm of a gradient.
        margin: m in [0, 1/2]; gradients are unchanged up to the norm (1−m)C.  0 is the envelope
            proper, whose gradients can be computed less precisely.  Linear scores need no margin.

    Raises:
        ValueError: a number is out of range, or ℓ is not known to be bounded below.
    """

    objective: Objective[X]
    clip: Positive
    margin: float = 0.01
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        assign(self, dim=self.objective.dim)
        if not 0 <= self.margin <= 0.5:
            raise ValueError(f"margin = {self.margin!r}: must lie in [0, 1/2]")
        if not math.isfinite(self.objective.depth):
            raise ValueError(
                f"{type(self.objective).__name__} is not known to be bounded below, and then it "
                "may have no envelope: state its depth"
            )

    @property
    def domain(self) -> Domain[X]:
        return self.objective.domain

    @property
    def gradient_bound(self) -> float:
        return min(self.clip, self.objective.gradient_bound)

    @property
    def difference(self) -> float:
        return 2 * self.gradient_bound if self._clips else self.objective.difference

    @property
    def trace(self) -> float:
        return self.objective.trace

    @property
    def rank(self) -> int:
        return self.objective.rank

    @property
    def span(self) -> int:
        return self.objective.span

    @property
    def depth(self) -> float:
        return self.objective.depth

    @property
    def _clips(self) -> bool:
        return self._threshold < self.objective.gradient_bound

    @property
    def _threshold(self) -> float:
        """(1−m)C."""
        margin = 0.0 if isinstance(self.objective, LinearObjective) else self.margin
        return self.clip * (1 - margin)

    def values(self, records: Array, theta: Array) -> Array:
        if not self._clips:
            return self.objective.values(records, theta)
        if isinstance(self.objective, LinearObjective):
            return self._linear_values(self.objective, records, theta)
        theta = self._each(records, theta)
        points = self._solve(records, theta).points
        distances = np.linalg.norm(theta - points, axis=1)
        return self.objective.values(records, points) + self._kernel(distances)

    def gradients(self, records: Array, theta: Array) -> Array:
        if not self._clips:
            return self.objective.gradients(records, theta)
        if isinstance(self.objective, LinearObjective):
            x, u, y = self.objective.scores(records, theta)
            limit = _ratio(self.clip, x)
            return np.clip(self.objective.scalar.derivative(u, y), -limit, limit)[:, None] * x
        found = self._solve(records, self._each(records, theta)).gradients
        norms = np.linalg.norm(found, axis=1)
        return cast(Array, found * (self.clip / np.maximum(norms, self.clip))[:, None])

    def hessians(self, records: Array, theta: Array) -> Array:
        if not self._clips:
            return self.objective.hessians(records, theta)
        if isinstance(self.objective, LinearObjective):
            x, u, y = self.objective.scores(records, theta)
            inside = np.abs(self.objective.scalar.derivative(u, y)) <= _ratio(self.clip, x)
            return self.objective.hessians(records, theta) * inside[:, None, None]
        solved = self._solve(records, self._each(records, theta))
        hessians = self.objective.hessians(records, solved.points)
        active = np.flatnonzero(solved.weights > 0)
        hessians[active] = self._parallel(
            hessians[active], solved.weights[active], solved.gradients[active]
        )
        return hessians

    def hessian_sum(self, records: Array, theta: Array) -> Array:
        if not self._clips:
            return self.objective.hessian_sum(records, theta)
        if isinstance(self.objective, LinearObjective):
            x, u, y = self.objective.scores(records, theta)
            inside = np.abs(self.objective.scalar.derivative(u, y)) <= _ratio(self.clip, x)
            total: Array = (x * (self.objective.scalar.second(u, y) * inside)[:, None]).T @ x
            return total
        theta = self._each(records, theta)
        points, weights, gradients = self._solve(records, theta)
        active = weights > 0
        plain = self.objective.hessian_sum(records[~active], theta[~active])
        hessians = self.objective.hessians(records[active], points[active])
        clipped = self._parallel(hessians, weights[active], gradients[active])
        return cast(Array, plain + clipped.sum(axis=0))

    def rounding(self, radius: float) -> float:
        if isinstance(self.objective, LinearObjective):
            # ‖x‖, the quotient and the product; x is not 0
            return self.objective.rounding(radius) + (self.dim + 8) * UNIT * self.clip
        if not self._clips:
            return self.objective.rounding(radius)
        error, tolerance = self._tolerances(radius)
        eta = error + tolerance + 8 * self.dim * UNIT * self.clip
        residual = tolerance + error + self._drift(radius)
        steep = 2 * self.clip * eta
        if self.margin > 0:
            longest = 1.01 * self.trace * self._weight_bound(radius)
            steep = min(steep, 2 * eta**2 * (1 + longest) / self.margin)
        bound = error + 2 * residual + math.sqrt(1.01 * steep * (1 + eta / self.clip))
        return min(bound, 2 * self.gradient_bound)

    def examples(self, rng: np.random.Generator, n: int) -> Array:
        return self.objective.examples(rng, n)

    def to_dict(self) -> dict[str, Any]:
        inner = self.objective.to_dict()
        return {
            **inner,
            "objective": f"lipschitz-envelope of {inner['objective']}",
            "clip": self.clip,
            "margin": 0.0 if isinstance(self.objective, LinearObjective) else self.margin,
        }

    # The kernel, in units in which T = C = 1: weight a = Tμ, slope y = S/C, distance τ = Tt/C = ay.

    def _slope(self, weight: Array) -> Array:
        """S(μ)."""
        return self.clip * (1 - self.margin / (1 + self.trace * weight))

    def _bend(self, weight: Array) -> Array:
        """S′(μ)."""
        return self.clip * self.margin * self.trace / (1 + self.trace * weight) ** 2

    def _kernel(self, distance: Array) -> Array:
        """h(t) = ty − h*(y), where a solves a(1 − m/(1+a)) = τ and h*′(y) = a(y)·y."""
        m = self.margin
        tau = distance * self.trace / self.clip
        half = (tau - 1 + m) / 2
        root = np.sqrt(half**2 + tau)
        a = np.where(half >= 0, half + root, tau / np.where(half >= 0, 1.0, root - half))
        rise = m * a / (1 + a)
        y = 1 - m + rise
        conjugate = m * (np.log1p(a) - rise) - rise * (y + 1 - m) / 2
        return cast(Array, self.clip**2 / self.trace * (tau * y - conjugate))

    def _parallel(self, hessians: Array, weights: Array, gradients: Array) -> Array:
        """(H⁻¹ + μI + μ′s·ĝĝᵀ)⁻¹ for each record."""
        flat = np.linalg.solve(np.eye(self.dim) + weights[:, None, None] * hessians, hessians)
        flat = (flat + flat.transpose(0, 2, 1)) / 2
        norms = np.linalg.norm(gradients, axis=1)
        unit = gradients / norms[:, None]
        image = np.einsum("nde,ne->nd", flat, unit)
        below = np.einsum("nd,nd->n", image, unit) + self._bend(weights) / norms
        scaled = image / np.where(below > 0, below, np.inf)[:, None]
        return cast(Array, flat - scaled[:, :, None] * image[:, None, :])

    # The problem of each record.

    def _each(self, records: Array, theta: Array) -> Array:
        return np.array(np.broadcast_to(theta, (len(records), self.dim)), dtype=np.float64)

    def _weight_bound(self, radius: float) -> float:
        """Bound on μ*: μ*‖g*‖² = ⟨g*, θ − v*⟩ <= ℓ(θ) − inf ℓ."""
        fall = self.objective.depth + self.objective.gradient_bound * radius
        return fall / self._threshold**2

    def _reach(self, radius: float) -> float:
        """Bound on ‖v‖."""
        return 1.02 * (radius + self._weight_bound(radius) * self.clip)

    def _drift(self, radius: float) -> float:
        """What the rounding of v and θ does to a residual ‖r‖/(1/T+μ)."""
        return 8 * UNIT * self.trace * self._reach(radius)

    def _tolerances(self, radius: float) -> tuple[float, float]:
        """f, and what is accepted for δ and for the computed ‖r‖/(1/T+μ)."""
        error = self.objective.rounding(self._reach(radius))
        return error, 2 * error + self._drift(radius) + 8 * UNIT * self.clip

    def _solve(self, records: Array, theta: Array) -> _Solved:
        """v, μ and ∇ℓ(v) with v + μ∇ℓ(v) = θ and ‖∇ℓ(v)‖ = S(μ), or v = θ and μ = 0.

        ‖∇ℓ‖ − S(μ) decreases in μ when v is the minimiser of μℓ + ‖· − θ‖²/2.  A Newton step in
        (v, μ) is taken if it halves both residuals.  Else, if v is good enough to tell the sign of
        that difference, μ is bracketed by bisection; if it is not, v is improved at fixed μ by a
        Newton step, in full or up to where the convex function on its way has its minimum.
        """
        start = self.objective.gradients(records, theta)
        solved = _Solved(theta.copy(), np.zeros(len(theta)), start)
        norms = np.linalg.norm(solved.gradients, axis=1)
        active = np.flatnonzero(norms > self._threshold)
        if len(active):
            self._search(solved, active, records[active], theta[active])
        return solved

    def _search(self, solved: _Solved, places: Any, records: Array, theta: Array) -> None:
        n, flat = len(theta), 1 / self.trace
        lengths = np.linalg.norm(theta, axis=1)
        if np.ptp(lengths) == 0:
            error, enough = (np.full(n, x) for x in self._tolerances(float(lengths[0])))
        else:
            error, enough = np.array([self._tolerances(float(x)) for x in lengths]).T
        state = _State.start(theta, np.array([1.01 * self._weight_bound(x) for x in lengths]))
        for _ in range(_STEPS):
            gradients = self.objective.gradients(records, state.trial_v)
            norms = np.linalg.norm(gradients, axis=1)
            residual = state.trial_v + state.trial_mu[:, None] * gradients - theta
            miss = np.linalg.norm(residual, axis=1) / (flat + state.trial_mu)
            gap = norms - self._slope(state.trial_mu)
            worse = np.maximum(miss, np.abs(gap))
            good = (miss <= enough) & (np.abs(gap) <= enough)
            ahead = -np.einsum("nd,nd->n", residual, state.step)
            taken = (
                (state.mode == _FREE)
                | ((state.mode == _JOINT) & (worse <= np.minimum(state.worst, state.best) / 2))
                | ((state.mode == _PROX) & state.far_enough(ahead))
            )
            if good.any():
                done = places[good]
                solved.points[done] = state.trial_v[good]
                solved.weights[done] = state.trial_mu[good]
                solved.gradients[done] = gradients[good]
                left = ~good
                if not left.any():
                    return
                places, records, theta = places[left], records[left], theta[left]
                error, enough = error[left], enough[left]
                state = state.keep(left)
                gradients, norms, residual = gradients[left], norms[left], residual[left]
                miss, gap, worse = miss[left], gap[left], worse[left]
                taken, ahead = taken[left], ahead[left]
            self._refuse(state, np.flatnonzero(~taken), ahead, error)
            rows = np.flatnonzero(taken)
            if len(rows) == 0:
                continue
            state.v[rows], state.mu[rows] = state.trial_v[rows], state.trial_mu[rows]
            joint = rows[state.mode[rows] == _JOINT]
            state.best[joint], state.worst[rows] = worse[joint], worse[rows]
            state.miss[rows], state.gap[rows] = miss[rows], gap[rows]
            state.residual[rows] = residual[rows]
            self._propose(state, rows, records[rows], gradients[rows], norms[rows], error[rows])
        raise SolverError("no certified envelope: the outcome of this release is not covered")

    def _propose(
        self, state: _State, rows: Any, records: Array, gradients: Array, norms: Array, error: Array
    ) -> None:
        mu, miss, gap = state.mu[rows], state.miss[rows], state.gap[rows]
        hessians = self.objective.hessians(records, state.v[rows])
        sides = np.stack([state.residual[rows], gradients], axis=2)
        steps = np.linalg.solve(np.eye(self.dim) + mu[:, None, None] * hessians, sides)
        state.step[rows], state.slide[rows] = steps[:, :, 0], steps[:, :, 1]
        sure = np.abs(gap) > miss + error
        low, high = sure & (gap > 0), sure & (gap < 0)
        state.low[rows[low]], state.high[rows[high]] = mu[low], mu[high]
        images = np.einsum("nde,nek->ndk", hessians, steps)
        slope = self._slope(mu)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # nan is outside
            change = np.einsum("nd,ndk->nk", gradients, images) / norms[:, None]
            expected = np.maximum(norms - change[:, 0], norms / 4)
            # 1/‖∇ℓ(v(μ))‖ is nearly linear in μ (Moré & Sorensen 1983)
            fall = change[:, 1] * np.minimum(slope / expected, 2.0) + self._bend(mu)
            new = mu + (expected - slope) / fall
        inside = (new >= state.low[rows]) & (new <= state.high[rows])
        state.move(rows[inside], new[inside], _JOINT)
        self._fall_back(state, rows[~inside], sure[~inside])

    def _refuse(self, state: _State, rows: Any, ahead: Array, error: Array) -> None:
        if len(rows) == 0:
            return
        joint = state.mode[rows] == _JOINT
        first, again = rows[joint], rows[~joint]
        sure = np.abs(state.gap[first]) > state.miss[first] + error[first]
        self._fall_back(state, first, sure)
        size, short = state.size[again], ahead[again] < 0
        state.near[again] = np.where(short, size, state.near[again])
        state.far[again] = np.where(short, state.far[again], size)
        start = np.einsum("nd,nd->n", state.residual[again], state.step[again])
        over = ahead[again] / np.maximum(start, np.finfo(np.float64).tiny)
        slightly = (size == 1) & (over < 0.25)
        middle = (state.near[again] + state.far[again]) / 2
        state.size[again] = np.where(slightly, 1 - np.maximum(2 * over, 1e-9), middle)
        state.trial_v[again] = state.v[again] - state.size[again, None] * state.step[again]

    def _fall_back(self, state: _State, rows: Any, sure: Any) -> None:
        halve, stay = rows[sure], rows[~sure]
        flat = 1 / self.trace
        middle = np.sqrt((flat + state.low[halve]) * (flat + state.high[halve])) - flat
        state.move(halve, np.clip(middle, state.low[halve], state.high[halve]), _FREE)
        state.trial_v[stay] = state.v[stay] - state.step[stay]
        state.trial_mu[stay], state.mode[stay] = state.mu[stay], _PROX
        state.near[stay], state.far[stay], state.size[stay] = 0.0, 1.0, 1.0

    def _linear_values(self, inner: LinearObjective, records: Array, theta: Array) -> Array:
        """f with its derivative clipped to ±c: f(w) + c|u − w|, w the nearest with |f′(w)| <= c."""
        x, u, y = inner.scores(records, theta)
        limit = _ratio(self.clip, x)
        slope = inner.scalar.derivative(u, y)
        side = -np.sign(slope)
        active = np.abs(slope) > limit
        near, far = np.zeros(len(u)), np.where(active, 1.0, 0.0)

        def beyond(distance: Array) -> Any:
            found = inner.scalar.derivative(u + side * distance, y)
            return -side * found > limit  # still too steep on the same side

        while (more := active & beyond(far)).any():
            near, far = np.where(more, far, near), np.where(more, 2 * far, far)
        for _ in range(200):
            middle = (near + far) / 2
            if np.all((middle == near) | (middle == far)):
                break
            more = active & beyond(middle)
            near, far = np.where(more, middle, near), np.where(more, far, middle)
        return cast(
            Array, inner.scalar.value(u + side * far, y) + np.where(active, limit, 0.0) * far
        )


_JOINT, _PROX, _FREE = range(3)


@dataclass(slots=True)
class _State:
    """Where each record stands: the last point that was taken, and the trial point."""

    v: Array
    mu: Array
    residual: Array
    miss: Array
    gap: Array
    worst: Array
    best: Array
    low: Array
    high: Array
    step: Array
    slide: Array
    trial_v: Array
    trial_mu: Array
    mode: Any
    near: Array
    far: Array
    size: Array

    @classmethod
    def start(cls, theta: Array, high: Array) -> _State:
        n = len(theta)

        def full(number: float) -> Array:
            return np.full(n, number)

        return cls(
            v=theta.copy(),
            mu=full(0.0),
            residual=np.zeros_like(theta),
            miss=full(0.0),
            gap=full(0.0),
            worst=full(np.inf),
            best=full(np.inf),
            low=full(0.0),
            high=high,
            step=np.zeros_like(theta),
            slide=np.zeros_like(theta),
            trial_v=theta.copy(),
            trial_mu=full(0.0),
            mode=np.full(n, _FREE),
            near=full(0.0),
            far=full(1.0),
            size=full(1.0),
        )

    def keep(self, left: Any) -> _State:
        return _State(*(getattr(self, name)[left] for name in self.__slots__))

    def far_enough(self, ahead: Array) -> Any:
        """Whether a step at fixed μ is to be taken; ``ahead``: slope of μℓ + ‖· − θ‖²/2 there."""
        start = np.einsum("nd,nd->n", self.residual, self.step)
        enough = (ahead >= -start / 2) | (self.size == 1)  # and ahead <= 0, or the value may rise
        return ((ahead <= 0) & enough) | (self.far - self.near < 1e-14)

    def move(self, rows: Any, weight: Array, mode: int) -> None:
        shift = (weight - self.mu[rows])[:, None] * self.slide[rows]
        self.trial_v[rows] = self.v[rows] - self.step[rows] - shift
        self.trial_mu[rows] = weight
        self.mode[rows] = mode


def _ratio(clip: float, x: Array) -> Array:
    norms = np.linalg.norm(x, axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(norms > 0, clip / norms, np.inf)
