"""Rivals of DP-TOFW, each as good as it gets at a true price, and the published DP-TOFW itself.

* `NoisySFW` (Bassily, Guzmán & Nandi 2021, Algorithm 3): variance-reduced Frank-Wolfe.  Half of
  the users make the first gradient and √n batches of the others correct it.
* `LocalMD` (Asi, Feldman, Koren & Talwar 2021, Algorithm 6): noisy mirror descent in phases that
  start where the last one ended.
* `PublishedTOFW` (Han et al. 2022, Algorithm 1): the noise as printed, or as it should have been.
* `OnlineFrankWolfe`, without noise, and `ConstantAnswer` promise nothing and take no accountant.

What is changed in all of them: increments and gradients are clipped as a whole in ℓ2, which bounds
the sensitivity of differences too (radial clipping of gradients in ℓq does not); noise is Gaussian
with its exact price at the accountant's cap; steps, clips and batch sizes are public constants, by
default the best found for them on other data.  Each is better for it than as printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.convex import ProblemScale, SealedEpochs
from privlearn.learners.noisy_sgd import BallLearner, Summed, step_sums
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.streaming import Example, Terms, checked_choice
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.mechanisms.batched_sums import even_sizes
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.mechanisms.least_noise import regular_exponent, whole_exponent
from privlearn.mechanisms.scalar_objectives import ScalarObjective, named_objective
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.rows.tabular import row_from
from privlearn.values.validate import count, not_negative, positive, within

NoiseName = Literal["gaussian", "generalized"]


@final
@dataclass(eq=False, repr=False, kw_only=True)
class NoisySFW(BallLearner):
    """Variance-reduced noisy Frank-Wolfe; θ is released after every batch.

    d_0 is the mean gradient of the first half; then, for batch t of √n, d_t = (1−ρ_t)·d_{t−1} +
    mean(∇f(θ_t) − (1−ρ_t)∇f(θ_{t−1})) + noise with ρ_t = min(1, weight/(t + 1 + weight_delay)), and
    θ_{t+1} = θ_t + η_t(v_t − θ_t), η_t = min(1, step/(t + 1 + step_delay)).  A user is in one
    batch, which spends the whole budget (parallel composition).

    Repaired: the paper bounds the ℓq sensitivity of these differences by smoothness times
    the diameter and adds generalized Gaussian noise in a norm that has no proof
    (``docs/errata/generalized-gaussian.md``); here they are clipped as a whole.

    Args:
        dim: d.
        p: the ℓp ball; features are bounded in the dual norm.
        radius: of the ball that vertices are taken from.
        loss: ``"squared"``, ``"logistic"``, or a `ScalarObjective`.
        feature_bound: bound on ‖x‖_q.
        label_bound: bound on |y| for the squared loss.
        noise: ``"gaussian"``, clipped in ℓ2; ``"generalized"``, clipped in ℓq and for `ZCDP` caps.
        first_clip: clip of the first batch, in units of a typical ‖x‖ times the label bound.
        clip: of the others, in the same unit.
        shrink_clip: whether the others' clip is multiplied by ρ_t.
        step, step_delay, weight, weight_delay: see above.
    """

    noise: NoiseName = "gaussian"
    first_clip: float = 0.3
    clip: float = 0.02
    shrink_clip: bool = True
    step: float = 1.0
    step_delay: float = 0.0
    weight: float = 2.0
    weight_delay: float = 20.0

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice(("gaussian", "generalized"), noise=self.noise)
        positive(first_clip=self.first_clip)
        positive(clip=self.clip)
        positive(step=self.step)
        positive(weight=self.weight)
        for name in ("step_delay", "weight_delay"):
            not_negative(**{name: getattr(self, name)})

    def _rate(self, batch: int) -> float:
        return min(1.0, self.weight / (batch + 1 + self.weight_delay))

    def _mechanisms(self, accountant: Accountant[Any]) -> None:
        sizes = self._fixed("batches", lambda: _halves(len(accountant.users)))
        self._batches: SealedEpochs[Array] = SealedEpochs(accountant.users, sizes)

        def calibrated() -> list[Summed]:
            levels = [self.first_clip]
            for number in range(len(sizes) - 1):
                levels.append(self.clip * (self._rate(number) if self.shrink_clip else 1.0))
            return [_sums(self._scale, level, self, accountant) for level in levels]

        self._sums = self._fixed("increments", calibrated)
        self._direction = np.zeros(self.dim)
        self._before = self._theta

    def _plan(self) -> list[Plan]:
        pairs = zip(self._sums, self._batches.all, strict=True)
        return [Plan("batch", sums.loss(), users) for sums, users in pairs]

    def _next_change(self) -> int:
        return self._batches.stop

    def _take(self, rows: Rows[Example]) -> None:
        number = self._batches.number
        kept = 1 - self._rate(number - 1) if number else 0.0
        terms: Terms = [(1.0, self._theta)]
        if kept > 0:
            terms = [*terms, (-kept, self._before)]
        batch = self._batches.add(rows.map_rows(self._increments(terms)))
        if batch is None or not self._accountant.left("batch", batch.users):
            return  # within a batch, or its sum was lost with its process
        total = self._posted(self._sums[number], batch, "batch", f"batch/{number}")
        mean = total / len(batch.users)
        self._direction = kept * self._direction + mean
        step = min(1.0, self.step / (number + 1 + self.step_delay))
        self._before = self._theta
        self._theta = self._theta + step * (self._set.minimize(self._direction) - self._theta)


def _halves(users: int) -> list[int]:
    """The first half, and √n batches of the others."""
    first = max(users // 2, 1)
    later = users - first
    return [first, *(even_sizes(later, math.isqrt(users)) if later else ())]


def _sums(
    scale: ProblemScale, level: float, learner: NoisySFW, accountant: Accountant[Any]
) -> Summed:
    budget, adjacency = accountant.budget, accountant.adjacency
    q = learner._feature_norm
    if learner.noise == "gaussian" or q <= 2:
        ball = Ball(scale.clip(level), learner.dim)
        return NoisySum.calibrated(ball, budget, adjacency=adjacency)
    clip = scale.clip(level) / scale.length * float(learner.feature_bound)
    return NoisySum.calibrated(
        Ball(clip, learner.dim, q),
        budget,
        noise="generalized-gaussian",
        exponent=whole_exponent(q, learner.dim),
        adjacency=adjacency,
    )


@final
@dataclass(eq=False, repr=False, kw_only=True)
class LocalMD(BallLearner):
    """Localized noisy mirror descent with the map ‖θ − c‖_r²/(2(r−1)), r = p within (1, 2].

    Phase i has 1/2ⁱ of the users (the last one, the rest), who are read in ``steps`` steps at its
    end; it starts at the c where the last one ended.  The paper's step, from a worst-case bound,
    does not converge here (as Han et al. found); ours is in units of the curvature.

    Args:
        dim, p, radius, loss, feature_bound, label_bound: as for `NoisySFW`.
        phases: number of phases.
        steps: K, gradients per phase, each at 1/K of the budget.
        clip: of gradients in the first phase, in units of a typical ‖x‖ times the label bound.
        shrink: ratio of the clips of consecutive phases; the least clip is 0.05.
        step: in units of one over the curvature of features without a preferred direction.
        pull: weight of the regularisation towards c.
        decay: ratio of the steps of consecutive phases.
        averaged: whether a phase ends at the mean of its steps rather than at the last.
    """

    p: float = 1.5
    phases: int = 2
    steps: int = 16
    clip: float = 0.1
    shrink: float = 0.4
    step: float = 4.0
    pull: float = 0.01
    decay: float = 0.5
    averaged: bool = True

    def _check_params(self) -> None:
        super()._check_params()
        count(phases=self.phases)
        count(steps=self.steps)
        for name in ("clip", "shrink", "step", "decay"):
            positive(**{name: getattr(self, name)})
        not_negative(pull=self.pull)

    def _mechanisms(self, accountant: Accountant[Any]) -> None:
        self._map = min(max(self.p, 1 + 1 / math.log(max(self.dim, 3))), 2.0)
        users = len(accountant.users)
        sizes = [users // 2 ** (phase + 1) for phase in range(self.phases - 1)]
        sizes.append(users - sum(sizes))

        def calibrated() -> list[Summed]:
            clips = [
                self._scale.clip(max(self.clip * self.shrink**phase, 0.05))
                for phase, size in enumerate(sizes)
                if size
            ]
            return [step_sums(accountant, clip, self.dim, self.steps) for clip in clips]

        self._sums = self._fixed("gradients", calibrated)
        self._phases: SealedEpochs[Example] = SealedEpochs(accountant.users, filter(None, sizes))

    def _plan(self) -> list[Plan]:
        pairs = zip(self._sums, self._phases.all, strict=True)
        return [Plan("step", sums.loss(), users, self.steps) for sums, users in pairs]

    def _next_change(self) -> int:
        return self._phases.stop

    def _take(self, rows: Rows[Example]) -> None:
        phase, centre = self._phases.number, self._theta
        kept = self._phases.add(rows)
        if kept is None:
            return
        step = self.step * self._scale.newton * self.decay**phase
        moved, dual = np.zeros(self.dim), np.zeros(self.dim)
        path: list[Array] = []
        for number in range(self.steps):
            gradient = self._mean_gradient(
                kept, self._sums[phase], centre + moved, f"{phase}/{number}"
            )
            if gradient is None:
                break
            dual = (dual - step * gradient) / (1 + self.pull)
            moved = _mirrored(dual, self._map)
            path.append(moved)
            mean = np.asarray(sum(at / len(path) for at in path))
            self._theta = self._set.pull(centre + (mean if self.averaged else moved))


def _mirrored(dual: Array, r: float) -> Array:
    """∇ of the conjugate of ‖·‖_r²/(2(r−1)): (r−1)·‖z‖_s·sign(z)(|z|/‖z‖_s)^{s−1}, s dual to r."""
    s = r / (r - 1)
    sizes = np.abs(dual)
    largest = float(sizes.max())
    if largest == 0:
        return np.zeros(len(dual))
    length = largest * float(((sizes / largest) ** s).sum() ** (1 / s))
    return np.asarray((r - 1) * length * np.copysign((sizes / length) ** (s - 1), dual))


# The published algorithm ---------------------------------------------------------------------


def _noise_exponent(q: float, dim: int) -> float:
    return 2.0 if q <= 2 else regular_exponent(q, dim)


def printed_deviation(
    reach: float, kappa: float, horizon: int, epsilon: float, delta: float
) -> float:
    """σ₊ of a node in Theorem 3.1: σ₊² = 8m²κ·ln(m/δ)·reach²/ε², m = ⌈log₂ n⌉ + 1.

    Args:
        reach: βD + L.
    """
    nodes = math.ceil(math.log2(count(horizon=horizon))) + 1
    return (
        nodes * reach * math.sqrt(8 * kappa * math.log(nodes / delta)) / positive(epsilon=epsilon)
    )


@final
@dataclass(eq=False, repr=False, kw_only=True)
class PublishedTOFW(BallLearner):
    """DP-TOFW as published: a tree, η_t = step/(t + 1), clip βD + L, θ moves after every user.

    ``printed`` has the noise that Theorem 3.1 and Algorithm 4 print for (ε, δ): for p < 2 the
    squared radius is drawn with scale 2σ₊ where 2σ₊² is right, so noise is √σ₊ in place of σ₊.  It
    is *charged at what it really costs* (``docs/errata``), which the accountant's cap must cover:
    see `price`.  ``true`` has the least noise of its kind that the cap allows.

    For p < 2 the norm of the noise is the regular norm with the least κ; the printed exponents
    (0.61, 1.30 and 2.00 for q = 3 and d = 5, 10, 20) belong to no theorem.  Increments
    (t+1)∇f(θ_t) − t∇f(θ_{t−1}) are clipped as a whole to βD + L in ℓq, β the loss's curvature, L =
    β·label_bound as in the authors' settings, D = 2·radius.

    Args:
        dim, p, radius, loss, feature_bound, label_bound: as for `NoisySFW`.
        noise: ``"true"`` or ``"printed"``.
        epsilon, delta: the paper's, for ``"printed"``.
        step: the paper's learning-rate scale.
    """

    noise: Literal["true", "printed"] = "true"
    epsilon: float = 1.0
    delta: float = 1e-3
    step: float = 1.0

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice(("true", "printed"), noise=self.noise)
        positive(step=self.step)
        positive(epsilon=self.epsilon)
        within("(0, 1)", delta=self.delta)

    @property
    def noise_exponent(self) -> float:
        """That of the norm of the noise; 2 is the Gaussian, else only zCDP has a price for it."""
        return _noise_exponent(self._feature_norm, self.dim)

    @property
    def _domain(self) -> Ball:
        loss = named_objective(self.loss, positive(label_bound=self.label_bound))
        bound = positive(feature_bound=self.feature_bound)
        slope = loss.slope if math.isfinite(loss.slope) else loss.curvature * self.label_bound
        reach = bound * (loss.curvature * bound * 2 * self.radius + slope)
        return Ball(reach, self.dim, self._feature_norm)

    def _printed(self, horizon: int) -> PrefixSum[Array]:
        domain, q = self._domain, self._feature_norm
        if q <= 2:  # Lemma 3.3: a Gaussian, κ cancels
            std = printed_deviation(domain.radius, 1.0, horizon, self.epsilon, self.delta)
        else:
            kappa = q - 1
            if self.dim > math.e:  # its other branch is negative for d < e
                kappa = min(kappa, math.e**2 * (math.log(self.dim) - 1))
            deviation = printed_deviation(domain.radius, kappa, horizon, self.epsilon, self.delta)
            std = math.sqrt(deviation)
        return PrefixSum(domain, BinaryTree(horizon), std, exponent=self.noise_exponent)

    def price(self, horizon: int) -> ZCDP:
        """What ``printed`` noise costs."""
        return ZCDP(1).price(self._printed(horizon).loss())

    def _mechanisms(self, accountant: Accountant[Any]) -> None:
        def calibrated() -> PrefixSum[Array]:
            if self.noise == "printed":
                return self._printed(len(accountant.users))
            return PrefixSum.calibrated(
                self._domain,
                accountant.budget,
                factorization=BinaryTree(len(accountant.users)),
                exponent=self.noise_exponent,
                adjacency=accountant.adjacency,
            )

        tree = self._fixed("increments", calibrated)
        self._stream = PlannedStream(accountant, "increments", accountant.users, tree)
        self._before = self._theta

    def _plan(self) -> list[Plan]:
        return [self._stream.plan()]

    def _next_change(self) -> int:
        return self.clock_ + 1

    def _take(self, rows: Rows[Example]) -> None:
        t = self._stream.learned + 1  # as if users had never come whose rows died with a stream
        terms: Terms = [(1.0, self._theta)] if t == 1 else _recursive(t, self._theta, self._before)
        released = self._stream.append(rows.map_rows(self._increments(terms)))
        if released is not None:
            self._before = self._theta
            vertex = self._set.minimize(self._stream.whole(released.value)[0])
            self._theta = self._theta + min(1.0, self.step / (t + 1)) * (vertex - self._theta)
        if rows.users.stop == self._stream.users.stop:
            self._stream.close()


def _recursive(t: int, theta: Array, before: Array) -> Terms:
    return [(t + 1.0, theta), (-float(t), before)]


# Without a promise ---------------------------------------------------------------------------


@final
class OnlineFrankWolfe:
    """The recursion of `PublishedTOFW` without noise, clipping or accountant; **not private**.

    Args:
        dim, p, radius, loss, label_bound: as for `NoisySFW`.
        step: η_t = step/(t + 1).

    ``coef_`` is θ, shape (d,).
    """

    def __init__(
        self,
        dim: int,
        *,
        p: float = 2.0,
        radius: float = 2.0,
        loss: str | ScalarObjective = "squared",
        label_bound: float = 1.0,
        step: float = 1.0,
    ) -> None:
        self._ball, self._loss = LpBall(dim, p, radius), named_objective(loss, label_bound)
        self.step = positive(step=step)
        self.coef_ = np.zeros(dim)
        self._before, self._sum, self._t = self.coef_, np.zeros(dim), 0

    def partial_fit(self, x: ArrayLike, y: ArrayLike) -> Self:
        """Learns from rows (n, d) and labels (n,), one after the other."""
        values = np.atleast_2d(np.asarray(row_from("x", x), dtype=np.float64))
        labels = self._loss.labels(np.atleast_1d(np.asarray(row_from("y", y), dtype=np.float64)))
        for i in range(len(values)):
            self._step(values[i], labels[i : i + 1])
        return self

    def _step(self, x: Array, label: Array) -> None:
        self._t += 1
        t, here = self._t, self.coef_
        slopes = [
            float(self._loss.derivative((x * theta).sum(keepdims=True), label)[0])
            for theta in ((here,) if t == 1 else (here, self._before))
        ]
        weight = slopes[0] if t == 1 else (t + 1) * slopes[0] - t * slopes[1]
        self._sum = self._sum + weight * x
        vertex = self._ball.minimize(self._sum)
        self._before = here
        self.coef_ = here + min(1.0, self.step / (t + 1)) * (vertex - here)

    def predict(self, x: ArrayLike) -> Array:
        """Scores x·θ."""
        return np.asarray(np.asarray(row_from("x", x), dtype=np.float64) @ self.coef_)


@final
class ConstantAnswer:
    """θ = 0 whatever is seen: private at no cost, and what every learner must beat."""

    def __init__(self, dim: int) -> None:
        self.coef_ = np.zeros(count(dim=dim))

    def partial_fit(self, x: ArrayLike, y: ArrayLike) -> Self:
        """Learns nothing."""
        return self

    def predict(self, x: ArrayLike) -> Array:
        """Scores of 0."""
        return np.asarray(np.asarray(row_from("x", x), dtype=np.float64) @ self.coef_)
