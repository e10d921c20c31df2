"""Rivals of DP-TOFW, each as good as it gets at a true price, and the published DP-TOFW itself.

* `NoisySFW` (Bassily, Guzmán & Nandi 2021, Algorithm 3): variance-reduced Frank-Wolfe.  Half of
  the users make the first gradient and √n batches of the others correct it.
* `NoisySGD` (Bassily, Feldman, Guzmán & Talwar 2020, Algorithm 2): many passes over everybody.  An
  *offline* method: it keeps all data in memory and releases nothing before the horizon.
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
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Self, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn._validate import count, finite, positive
from privlearn.budgets import ZCDP, Currency
from privlearn.domains import Array, Ball
from privlearn.learners.constraint_sets import LpBall, dual_exponent, exponent
from privlearn.learners.streaming import Example, StreamLearner, Terms, checked_choice
from privlearn.learners.tofw_ways import Scale, scale_of
from privlearn.mechanisms import (
    BinaryTree,
    NoisySum,
    PrefixSum,
    PrefixSumStream,
)
from privlearn.mechanisms.batched_sums import even_sizes
from privlearn.mechanisms.least_noise import regular_exponent
from privlearn.mechanisms.scalar_objectives import ScalarObjective, named_objective
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows
from privlearn.rows.tabular import row_from

Noise = Literal["gaussian", "generalized"]
Summed = NoisySum[Array]


class _LpLearner(StreamLearner):
    """A learner over an ℓp ball around 0 for a stream of (x, y) with ‖x‖_q bounded."""

    dim: int
    p: float
    radius: float

    @property
    def _dim(self) -> int:
        return self.dim

    @property
    def _feature_norm(self) -> float:
        return dual_exponent(float(self.p))

    def _check_params(self) -> None:
        count(dim=self.dim)
        exponent(p=self.p)
        positive(radius=self.radius)

    def _set_up(self) -> tuple[LpBall, Scale]:
        ball = LpBall(self.dim, self.p, self.radius)
        scale = scale_of(
            self._loss,
            dim=self.dim,
            q=self._feature_norm,
            feature_bound=self.feature_bound,
            reach=self.radius / 2,
        )
        return ball, scale


class _Batch(NamedTuple):
    users: range
    sums: Summed


class _Batches:
    """Consecutive groups of users: their increments are kept, sealed, until the group is full."""

    def __init__(self, learner: StreamLearner, accountant: Accountant[Any], label: str) -> None:
        self._learner, self._accountant, self._label = learner, accountant, label
        self._pending: list[Rows[Array]] = []
        self.all: list[_Batch] = []
        self.number = 0

    def plan(self) -> list[Plan]:
        return [Plan(self._label, batch.sums.loss(), batch.users) for batch in self.all]

    def next_change(self) -> int:
        return self.all[min(self.number, len(self.all) - 1)].users.stop

    def take(self, rows: Rows[Example], terms: Terms) -> Array | None:
        """The noisy mean of the group's increments, once it is full."""
        self._pending.append(rows.map_rows(self._learner._increments(terms)))
        users, sums = self.all[self.number]
        if rows.users.stop < users.stop:
            return None
        kept, self._pending = Rows.concat(self._pending), []
        token = self._accountant.issue(sums.loss(), users=users, label=self._label)
        released = sums.release(kept, token)
        total = self._learner._board.post(f"{self._label}/{self.number}", released)
        self.number += 1
        return total / len(users)


@final
class NoisySFW(_LpLearner):
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

    def __init__(
        self,
        dim: int,
        *,
        p: float = 2.0,
        radius: float = 2.0,
        loss: str | ScalarObjective = "squared",
        feature_bound: float = 1.0,
        label_bound: float = 1.0,
        noise: Noise = "gaussian",
        first_clip: float = 0.3,
        clip: float = 0.02,
        shrink_clip: bool = True,
        step: float = 1.0,
        step_delay: float = 0.0,
        weight: float = 2.0,
        weight_delay: float = 20.0,
    ) -> None:
        self.dim, self.p, self.radius, self.loss = dim, p, radius, loss
        self.feature_bound, self.label_bound, self.noise = feature_bound, label_bound, noise
        self.first_clip, self.clip, self.shrink_clip = first_clip, clip, shrink_clip
        self.step, self.step_delay = step, step_delay
        self.weight, self.weight_delay = weight, weight_delay

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice(("gaussian", "generalized"), noise=self.noise)
        positive(first_clip=self.first_clip)
        positive(clip=self.clip)
        positive(step=self.step)
        positive(weight=self.weight)
        for name in ("step_delay", "weight_delay"):
            if finite(**{name: getattr(self, name)}) < 0:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be >= 0")

    def _rate(self, batch: int) -> float:
        return min(1.0, self.weight / (batch + 1 + self.weight_delay))

    def _prepare(self, accountant: Accountant[Any]) -> list[Plan]:
        self._ball, scale = self._set_up()
        users = accountant.users
        first = max(len(users) // 2, 1)
        later = len(users) - first
        sizes = [first, *(even_sizes(later, math.isqrt(len(users))) if later else ())]
        self._batches, start = _Batches(self, accountant, "batch"), users.start
        for number, size in enumerate(sizes):
            level = self.first_clip
            if number:
                level = self.clip * (self._rate(number - 1) if self.shrink_clip else 1.0)
            sums = _sums(scale, level, self, accountant)
            self._batches.all.append(_Batch(range(start, start + size), sums))
            start += size
        self._direction = np.zeros(self.dim)
        self._before = self._theta
        return self._batches.plan()

    def _next_change(self) -> int:
        return self._batches.next_change()

    def _take(self, rows: Rows[Example]) -> None:
        number = self._batches.number
        kept = 1 - self._rate(number - 1) if number else 0.0
        terms: Terms = [(1.0, self._theta)]
        if kept > 0:
            terms = [*terms, (-kept, self._before)]
        mean = self._batches.take(rows, terms)
        if mean is None:
            return
        self._direction = kept * self._direction + mean
        step = min(1.0, self.step / (number + 1 + self.step_delay))
        self._before = self._theta
        self._theta = self._theta + step * (self._ball.minimize(self._direction) - self._theta)


def _sums(scale: Scale, level: float, learner: NoisySFW, accountant: Accountant[Any]) -> Summed:
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
        exponent=regular_exponent(q, learner.dim),
        adjacency=adjacency,
    )


class _Steps:
    """Many noisy gradients of the same users, who share the budget of a group among them."""

    def __init__(
        self, learner: StreamLearner, accountant: Accountant[Any], steps: int, label: str
    ) -> None:
        self._learner, self._accountant, self._label = learner, accountant, label
        self._steps = steps
        self._pending: list[Rows[Example]] = []

    def sums(self, clip: float, dim: int) -> NoisySum[Array]:
        budget: Currency = self._accountant.budget
        return NoisySum.calibrated(
            Ball(clip, dim),
            budget.share(Fraction(1, self._steps)),
            adjacency=self._accountant.adjacency,
        )

    def keep(self, rows: Rows[Example]) -> None:
        self._pending.append(rows)

    def close(self) -> Rows[Example]:
        kept, self._pending = Rows.concat(self._pending), []
        return kept

    def gradient(
        self, kept: Rows[Example], sums: NoisySum[Array], theta: Array, name: str
    ) -> Array:
        """The noisy mean gradient at θ."""
        token = self._accountant.issue(sums.loss(), users=kept.users, label=self._label)
        rows = kept.map_rows(self._learner._increments([(1.0, theta)]))
        total = self._learner._board.post(name, sums.release(rows, token))
        return total / len(kept.users)


@final
class NoisySGD(_LpLearner):
    """Noisy gradient descent over the whole data set, projected and averaged.

    **Not a streaming method**: it holds every record until the horizon, reads all of them in each
    of ``passes`` steps, and answers 0 until then.  Memory O(n·d).  The paper samples one record per
    step and takes n² steps, from which its authors' code needs minutes; noisy sums over everybody
    at 1/passes of the budget each replace them here.

    Args:
        dim, p, radius, loss, feature_bound, label_bound: as for `NoisySFW`.
        passes: K, steps over all data.
        clip: of gradients, in units of a typical ‖x‖ times the label bound.
        step: in units of one over the curvature of features without a preferred direction.
        averaged: steps from this part of them on are averaged.
    """

    def __init__(
        self,
        dim: int,
        *,
        p: float = 2.0,
        radius: float = 2.0,
        loss: str | ScalarObjective = "squared",
        feature_bound: float = 1.0,
        label_bound: float = 1.0,
        passes: int = 60,
        clip: float = 0.05,
        step: float = 0.7,
        averaged: float = 0.3,
    ) -> None:
        self.dim, self.p, self.radius, self.loss = dim, p, radius, loss
        self.feature_bound, self.label_bound = feature_bound, label_bound
        self.passes, self.clip, self.step, self.averaged = passes, clip, step, averaged

    def _check_params(self) -> None:
        super()._check_params()
        count(passes=self.passes)
        positive(clip=self.clip)
        positive(step=self.step)
        if not 0 <= finite(averaged=self.averaged) < 1:
            raise ValueError(f"averaged = {self.averaged!r}: must lie in [0, 1)")

    def _prepare(self, accountant: Accountant[Any]) -> list[Plan]:
        self._ball, self._scale = self._set_up()
        self._steps = _Steps(self, accountant, self.passes, "step")
        self._sums = self._steps.sums(self._scale.clip(self.clip), self.dim)
        self._stop = accountant.users.stop
        return [Plan("step", self._sums.loss(), accountant.users, self.passes)]

    def _next_change(self) -> int:
        return self._stop

    def _take(self, rows: Rows[Example]) -> None:
        self._steps.keep(rows)
        if rows.users.stop < self._stop:
            return
        kept, theta = self._steps.close(), self._theta
        late: list[Array] = []
        for number in range(self.passes):
            gradient = self._steps.gradient(kept, self._sums, theta, f"gradient/{number}")
            theta = self._ball.pull(theta - self.step * self._scale.newton * gradient)
            if number >= self.averaged * self.passes:
                late.append(theta)
        self._theta = np.mean(late, axis=0)


@final
class LocalMD(_LpLearner):
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

    def __init__(
        self,
        dim: int,
        *,
        p: float = 1.5,
        radius: float = 2.0,
        loss: str | ScalarObjective = "squared",
        feature_bound: float = 1.0,
        label_bound: float = 1.0,
        phases: int = 2,
        steps: int = 16,
        clip: float = 0.1,
        shrink: float = 0.4,
        step: float = 4.0,
        pull: float = 0.01,
        decay: float = 0.5,
        averaged: bool = True,
    ) -> None:
        self.dim, self.p, self.radius, self.loss = dim, p, radius, loss
        self.feature_bound, self.label_bound = feature_bound, label_bound
        self.phases, self.steps, self.clip, self.shrink = phases, steps, clip, shrink
        self.step, self.pull, self.decay, self.averaged = step, pull, decay, averaged

    def _check_params(self) -> None:
        super()._check_params()
        count(phases=self.phases)
        count(steps=self.steps)
        for name in ("clip", "shrink", "step", "decay"):
            positive(**{name: getattr(self, name)})
        if finite(pull=self.pull) < 0:
            raise ValueError(f"pull = {self.pull!r}: must be >= 0")

    def _prepare(self, accountant: Accountant[Any]) -> list[Plan]:
        self._ball, self._scale = self._set_up()
        self._map = min(max(self.p, 1 + 1 / math.log(max(self.dim, 3))), 2.0)
        self._steps = _Steps(self, accountant, self.steps, "step")
        users, self._phases = accountant.users, list[tuple[range, NoisySum[Array]]]()
        start = users.start
        for phase in range(self.phases):
            last = phase == self.phases - 1
            stop = users.stop if last else start + len(users) // 2 ** (phase + 1)
            clip = self._scale.clip(max(self.clip * self.shrink**phase, 0.05))
            if stop > start:
                sums = self._steps.sums(clip, self.dim)
                self._phases.append((range(start, stop), sums))
            start = stop
        self._number = 0
        return [Plan("step", sums.loss(), part, self.steps) for part, sums in self._phases]

    def _next_change(self) -> int:
        return self._phases[min(self._number, len(self._phases) - 1)][0].stop

    def _take(self, rows: Rows[Example]) -> None:
        self._steps.keep(rows)
        users, sums = self._phases[self._number]
        if rows.users.stop < users.stop:
            return
        kept, centre = self._steps.close(), self._theta
        step = self.step * self._scale.newton * self.decay**self._number
        moved, dual, mean = np.zeros(self.dim), np.zeros(self.dim), np.zeros(self.dim)
        for number in range(self.steps):
            name = f"gradient/{self._number}/{number}"
            gradient = self._steps.gradient(kept, sums, centre + moved, name)
            dual = (dual - step * gradient) / (1 + self.pull)
            moved = _mirrored(dual, self._map)
            mean = mean + moved / self.steps
        self._theta = self._ball.pull(centre + (mean if self.averaged else moved))
        self._number += 1


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
class PublishedTOFW(_LpLearner):
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

    def __init__(
        self,
        dim: int,
        *,
        p: float = 2.0,
        radius: float = 2.0,
        loss: str | ScalarObjective = "squared",
        feature_bound: float = 1.0,
        label_bound: float = 1.0,
        noise: Literal["true", "printed"] = "true",
        epsilon: float = 1.0,
        delta: float = 1e-3,
        step: float = 1.0,
    ) -> None:
        self.dim, self.p, self.radius, self.loss = dim, p, radius, loss
        self.feature_bound, self.label_bound, self.noise = feature_bound, label_bound, noise
        self.epsilon, self.delta, self.step = epsilon, delta, step

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice(("true", "printed"), noise=self.noise)
        positive(step=self.step)
        positive(epsilon=self.epsilon)
        if not 0 < finite(delta=self.delta) < 1:
            raise ValueError(f"delta = {self.delta!r}: must lie in (0, 1)")

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

    def _prepare(self, accountant: Accountant[Any]) -> list[Plan]:
        self._ball, _ = self._set_up()
        self._users = accountant.users
        if self.noise == "printed":
            self._tree = self._printed(len(self._users))
        else:
            self._tree = PrefixSum.calibrated(
                self._domain,
                accountant.budget,
                factorization=BinaryTree(len(self._users)),
                exponent=self.noise_exponent,
                adjacency=accountant.adjacency,
            )
        self._stream: PrefixSumStream[Array] | None = None
        self._owner, self._before = accountant, self._theta
        return [Plan("increments", self._tree.loss(), self._users)]

    def _next_change(self) -> int:
        return self.clock_ + 1

    def _take(self, rows: Rows[Example]) -> None:
        if self._stream is None:
            token = self._owner.issue(self._tree.loss(), users=self._users, label="increments")
            self._stream = self._tree.open(token)
        t = rows.users.stop - self._users.start
        terms: Terms = [(1.0, self._theta)] if t == 1 else _recursive(t, self._theta, self._before)
        sums = self._stream.append(rows.map_rows(self._increments(terms))).value
        self._before = self._theta
        vertex = self._ball.minimize(sums[0])
        self._theta = self._theta + min(1.0, self.step / (t + 1)) * (vertex - self._theta)
        if rows.users.stop == self._users.stop:
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
