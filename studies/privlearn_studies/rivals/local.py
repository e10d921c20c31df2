r"""Private baselines of local bandits: what their authors ran, and the same at its true price.

All send sums that least squares needs, in Gaussian noise, or clipped gradients in a ball:

* `LDPUCB` (Zheng et al. 2020): xxᵀ and rx, ridge regression, and a bonus.
* `LDPGLOC` (Zheng et al. 2020): xxᵀ, zx with z = x·θ_h, and a gradient step for θ_h; a bonus.
* `PublishedOLS` and `PublishedSGD` (Han et al. 2021): greedy, as printed, or as their code is.

A message of the Gaussian ones is ffᵀ of one factor f, the pulled arm's context beside what depends
on the reward, with w chosen so that every entry gets the noise it should: all products are released
together, at ℓ2 sensitivity √2·(trace) (`PSDTrace`), which is less than for each by itself.  The
*published* forms have the noise of the papers and are charged what it costs.  At small ε that is
less than the claim; it can be more at large ε (`PublishedOLS` from about 5 on) and where |μ(z) − r|
is large (`LDPGLOC`, Poisson), and then a server whose cap is the claim refuses them.  One thing is
changed in their favour: noise in svec form is 1/√2 as large off the diagonal of xxᵀ, at the same
price.  The *tight* forms have the least noise of (ε, δ) on the exact Gaussian curve, and shift and
bonus recomputed for it.

With one θ per arm the authors run one regression of dimension Kd on contexts e_a ⊗ x.  Here every
arm has a regression and a part of the message (`OneOfKReport`): the same estimate without noise on
the blocks that are known to be 0, at the same price.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from privlearn.learners.links import Link, least_gaussian, mean_of, optimistic
from privlearn.learners.local.protocol import Arrays, LocalLearner
from privlearn.mechanisms import BallReport, NoisyReport
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array, PSDTrace

PublishedForm = Literal["published", "tight"]

FAILURE = 0.1
"""The authors' chance that a confidence set fails."""


# Least squares --------------------------------------------------------------------------------


class _Regression(LocalLearner):
    """Sums of ffᵀ of factors f = (x, w·y, …), and ridge regression of y on x from them.

    Inside, x is divided by context_bound, and rewards by their largest size.
    """

    delta: Annotated[float, Field(gt=0, lt=1)] = 0.01

    @property
    def reward_size(self) -> float:
        """The largest |reward| after clamping."""
        return max(abs(self.reward_low), abs(self.reward_high))

    @property
    @abstractmethod
    def weights(self) -> tuple[float, ...]:
        """w of every number beside x in the factor, for entries of size at most 1."""

    @abstractmethod
    def noise_std(self) -> float:
        """Of svec entries of ffᵀ."""

    @property
    def domain(self) -> PSDTrace:
        """Of factors."""
        return PSDTrace(1 + sum(w**2 for w in self.weights), self.dim + len(self.weights))

    def report(self) -> NoisyReport[Array]:
        """The mechanism of one part."""
        return NoisyReport(self.domain, GaussianNoise(self.noise_std()))

    def tight_std(self) -> float:
        """The least noise that (epsilon, delta) allows."""
        return least_gaussian(self.domain, self.epsilon, self.delta).error_std()

    def batches(self) -> Sequence[int]:
        """Even batches of about √T/8 users: short enough to serve as one round of the papers."""
        size = math.ceil(math.sqrt(self.horizon) / 8)
        return [*range(self.warm_up(), self.horizon, size), self.horizon]

    def _factors(self, contexts: Array, columns: Sequence[Array]) -> Array:
        scaled = [w * column for w, column in zip(self.weights, columns, strict=True)]
        return np.column_stack([contexts / self.context_bound, *scaled])[:, None, :]

    def _apart(self, sums: Array) -> tuple[Array, list[Array]]:
        """Σxxᵀ, shape (parts, d, d), and for every number y of the factor Σyx, (parts, d)."""
        whole, d = self.domain.decode(sums), self.dim
        moments = [whole[:, :d, d + i] / w for i, w in enumerate(self.weights)]
        return whole[:, :d, :d], moments

    def start(self) -> Arrays:
        """The state before any message."""
        flat = (self.parts, self.dim)
        return {
            "gram": np.zeros((*flat, self.dim)),
            "moment": np.zeros(flat),
            "users": np.zeros(self.parts),
        }

    def _add(self, state: Arrays, gram: Array, moment: Array, counts: Array) -> Arrays:
        return {
            **state,
            "gram": state["gram"] + gram,
            "moment": state["moment"] + moment,
            "users": state["users"] + counts,
        }

    def _fitted(self, state: Arrays, shifts: Array, floors: Array) -> tuple[Array, Array]:
        """θ, shape (parts, d), and R with RᵀR = V⁻¹, for V = Σxxᵀ + shift with a floor."""
        shifted = state["gram"] + shifts[:, None, None] * np.eye(self.dim)
        values, vectors = np.linalg.eigh(shifted)
        roots = vectors.swapaxes(1, 2) / np.sqrt(np.maximum(values, floors[:, None]))[:, :, None]
        return np.einsum("kie,kid,kd->ke", roots, roots, state["moment"]), roots

    def scores(self, model: Arrays, contexts: Array) -> Array:
        """Estimated index and bonus; see `LocalLearner.scores`."""
        return optimistic(
            contexts / self.context_bound,
            model["theta"],
            model.get("root"),
            model.get("width"),
            shared=self.shared,
        )

    def _spectral(self, std: float, users: Array, chance: float) -> Array:
        """A bound on the largest eigenvalue of the noise on Σxxᵀ, but for ``chance``.

        svec entries of standard deviation s are a Gaussian orthogonal ensemble with E λ_max <=
        s·√(2d), and λ_max is 1-Lipschitz in them.
        """
        width = math.sqrt(2 * self.dim) + math.sqrt(2 * math.log(1 / chance))
        return std * np.sqrt(users) * width


class _Optimistic(_Regression):
    """A bonus of width·‖x‖ in V⁻¹, V = Σxxᵀ + 2Υ with a floor on its eigenvalues."""

    form: PublishedForm = "tight"
    exploration: Annotated[float, Field(ge=0)] = 1.0

    def _shift(self, std: float, users: Array) -> tuple[Array, Array]:
        """Υ, and the least eigenvalue that V is given, of every part."""
        if self.form == "published":
            shift = _published_shift(std, users, self.dim, self.horizon)
            return shift, np.full(self.parts, 1e-6)
        shift = self._spectral(std, users, self.horizon**-2.0)
        return shift, shift


@final
class LDPUCB(_Optimistic):
    r"""LDP-UCB of Zheng et al. 2020: private ridge regression and an upper confidence bound.

    *Published*: σ = 6·√(2·ln(2.5/δ))/ε on every entry of xxᵀ and rx (for ‖x‖ and |r| at most 1),
    Υ = σ√t·(4√d + 2·ln(2T/α)), V = Σxxᵀ + 2Υ, and the bonus β·‖x‖ in V⁻¹ with
    β = 2σ√(d·ln T) + (√(3Υ) + σ√(dt/Υ))·d·ln T, α = 0.1.

    *Tight*: the least noise, Υ the bound on its eigenvalues that fails with chance 1/T²,
    V = Σxxᵀ + 2Υ with eigenvalues raised to Υ, and the radius that follows for rewards in [−1, 1]
    and ‖θ‖ <= 1: β = √(2·ln T + d·ln(1 + t/Υ)) + √(3Υ) + (norm of the noise on Σrx)/√Υ, times
    ``exploration``.

    Args:
        form: ``published`` or ``tight``.
        exploration: factor in front of the bonus; 1 is proved, less is not.
    """

    kind: Literal["ldp-ucb"] = "ldp-ucb"

    @property
    def weights(self) -> tuple[float, ...]:
        """For equal noise on xxᵀ and rx."""
        return (math.sqrt(0.5),)

    def noise_std(self) -> float:
        """Of svec entries."""
        if self.form == "tight":
            return self.tight_std()
        return 6 * math.sqrt(2 * math.log(2.5 / self.delta)) / self.epsilon

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: Array, rewards: Array
    ) -> Array:
        """Factors; see `LocalLearner.record`."""
        return self._factors(contexts, [rewards / self.reward_size])

    def step(self, state: Arrays, batch: int, sums: Array, counts: Array) -> Arrays:
        """Adds; see `LocalLearner.step`."""
        gram, (moment,) = self._apart(sums)
        return self._add(state, gram, moment, counts)

    def model(self, state: Arrays) -> Arrays:
        """θ, R with RᵀR = V⁻¹, and β, for every part."""
        std, users = self.noise_std(), np.maximum(state["users"], 1.0)
        d, log_t = self.dim, math.log(max(self.horizon, 2))
        bound, floor = self._shift(std, users)
        if self.form == "published":
            rest = np.sqrt(3 * bound) + std * np.sqrt(d * users / bound)
            width = 2 * std * math.sqrt(d * log_t) + rest * d * log_t
        else:
            moment_noise = std * np.sqrt(users) * (math.sqrt(d) + math.sqrt(4 * log_t))
            sampling = np.sqrt(2 * log_t + d * np.log1p(users / bound))
            width = sampling + np.sqrt(3 * bound) + moment_noise / np.sqrt(bound)
        theta, roots = self._fitted(state, 2 * bound, floor)
        return {"theta": theta, "root": roots, "width": self.exploration * width}


def _published_shift(std: float, users: Array, dim: int, horizon: int) -> Array:
    """Υ of Zheng et al. after so many users."""
    return std * np.sqrt(users) * (4 * math.sqrt(dim) + 2 * math.log(2 * horizon / FAILURE))


@final
class LDPGLOC(_Optimistic):
    r"""LDP-GLOC of Zheng et al. 2020 for generalised linear rewards.

    θ_h follows the gradients (μ(z) − r)·x, z = x·θ_h; the regression is of z on x, and its bonus is
    β·‖x‖ in V⁻¹ with β² = (σ/ζ)·√(dt), ζ the least slope of the link.  All constants are those of
    Han et al.'s code: plain gradient steps of 1/√T, though the paper has a Newton step.

    *Published*: σ = 6·√(2·ln(3.75/δ))/ε on every entry of xxᵀ, zx and (μ(z) − r)·x, and Υ as for
    `LDPUCB`.  *Tight*: the least noise, and Υ the bound on its eigenvalues that fails with chance
    1/T².  For the message z is clamped to what ‖θ‖ <= 1 allows: nothing holds without it.

    Args:
        link: ``linear``, ``logistic`` or ``poisson``.
        form: ``published`` or ``tight``.
        exploration: factor in front of the bonus.
    """

    kind: Literal["ldp-gloc"] = "ldp-gloc"
    link: Link = "linear"

    @property
    def index_size(self) -> float:
        """The largest |z| that is sent, in the units inside."""
        return 1.0 if self.link == "linear" else self.context_bound

    @property
    def residual_size(self) -> float:
        """The largest |μ(z) − r|, in the units inside."""
        ends = mean_of(self.link, np.array([-self.index_size, self.index_size]))
        low, high = self.reward_low / self.reward_unit, self.reward_high / self.reward_unit
        return float(max(high - ends[0], ends[1] - low))

    @property
    def reward_unit(self) -> float:
        """What rewards are divided by: only linear ones can be."""
        return self.reward_size if self.link == "linear" else 1.0

    @property
    def weights(self) -> tuple[float, ...]:
        """For equal noise on xxᵀ, zx and the gradient, in the units inside."""
        return self.index_size / math.sqrt(2), self.residual_size / math.sqrt(2)

    def noise_std(self) -> float:
        """Of svec entries."""
        if self.form == "tight":
            return self.tight_std()
        return 6 * math.sqrt(2 * math.log(3.75 / self.delta)) / self.epsilon

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: Array, rewards: Array
    ) -> Array:
        """Factors; see `LocalLearner.record`."""
        pulled = model["follower"][0 if self.shared else arms]
        unit = contexts / self.context_bound
        index = np.clip((unit * pulled).sum(axis=1), -self.index_size, self.index_size)
        residual = mean_of(self.link, index) - rewards / self.reward_unit
        return self._factors(contexts, [index / self.index_size, residual / self.residual_size])

    def start(self) -> Arrays:
        """The state before any message."""
        return {**super().start(), "follower": np.zeros((self.parts, self.dim))}

    def step(self, state: Arrays, batch: int, sums: Array, counts: Array) -> Arrays:
        """Adds, and moves θ_h along the gradients of the batch; see `LocalLearner.step`."""
        gram, (moment, gradient) = self._apart(sums)
        added = self._add(state, gram, self.index_size * moment, counts)
        stepped = self.residual_size / math.sqrt(self.horizon) * gradient
        return {**added, "follower": state["follower"] - stepped}

    def model(self, state: Arrays) -> Arrays:
        """θ, R with RᵀR = V⁻¹ and β for every part, and θ_h."""
        std, users = self.noise_std(), np.maximum(state["users"], 1.0)
        slope = {"linear": 1.0, "logistic": math.exp(-1) / (1 + math.exp(-1)) ** 2}.get(
            self.link, math.exp(-1)
        )
        bound, floor = self._shift(std, users)
        theta, roots = self._fitted(state, 2 * bound, floor)
        width = self.exploration * np.sqrt(std / slope * np.sqrt(self.dim * users))
        return {"theta": theta, "root": roots, "width": width, "follower": state["follower"]}


@final
class PublishedOLS(_Regression):
    r"""LDP-OLS of Han et al. 2021 with the noise and the shift of their paper; greedy.

    With σ = 2·√(2·ln(1.25/δ))/ε the noise is 2σ on xxᵀ and σ on rx (for ‖x‖ and |r| at most 1).
    That is enough for the claim (docs/errata/ldp-ols.md), where its proof is not.  The price here
    is 6 % above that of both, for the square of r that comes along: .64 of the μ that is allowed at
    (1, 0.01), .97 at (5, 0.01), and more than is allowed from ε = 5.5 on (from 5.0 at δ = 0.1).
    θ = (Σxxᵀ + c√t)⁻¹·Σrx with c = 2σ(4√d + 2·ln(2T/α)).  With one θ per arm: warm-up, synthetic
    updates at (ε/2, δ/2), and elimination of arms that are half of ``gap`` behind by the estimates
    of the warm-up.

    Args:
        code: as in the authors' code instead: σ = 6·√(2·ln(2.5/δ))/ε, and, with one θ for all, no
            shift (the noisy matrix is inverted as it is).
        warm_up_users: with one θ per arm; 3000 of 10,000 in the code.
        gap: h; None for no elimination, as in the code.
    """

    kind: Literal["published-ols"] = "published-ols"
    code: bool = False
    warm_up_users: Annotated[int, Field(ge=0)] = 0
    gap: float | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.warm_up_users > self.horizon:
            raise ValueError(f"warm_up_users = {self.warm_up_users!r}: must be <= horizon")
        return self

    @property
    def weights(self) -> tuple[float, ...]:
        """For as much noise on xxᵀ as on rx in the code, and twice as much in the paper."""
        return (math.sqrt(0.5 if self.code else 2.0),)

    @property
    def sigma(self) -> float:
        """σ, the standard deviation of the noise on rx."""
        if self.code:
            return 6 * math.sqrt(2 * math.log(2.5 / self.delta)) / self.epsilon
        half = 1 if self.shared else 2
        return 2 * half * math.sqrt(2 * math.log(1.25 * half / self.delta)) / self.epsilon

    def noise_std(self) -> float:
        """Of svec entries."""
        return self.sigma if self.code else 2 * self.sigma

    def warm_up(self) -> int:
        """Users in turn; 0 if shared."""
        return 0 if self.shared else self.warm_up_users

    def batches(self) -> Sequence[int]:
        """As for the others; the warm-up is cut into such batches too."""
        size = math.ceil(math.sqrt(self.horizon) / 8)
        warm = self.warm_up()
        return [*range(0, warm, size), *range(warm, self.horizon, size), self.horizon]

    def start(self) -> Arrays:
        """The state before any message."""
        return {**super().start(), "first": np.zeros((self.parts, self.dim))}

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: Array, rewards: Array
    ) -> Array:
        """Factors; see `LocalLearner.record`."""
        return self._factors(contexts, [rewards / self.reward_size])

    def step(self, state: Arrays, batch: int, sums: Array, counts: Array) -> Arrays:
        """Adds; keeps the estimates of the warm-up; see `LocalLearner.step`."""
        gram, (moment,) = self._apart(sums)
        added = self._add(state, gram, moment, counts)
        if self.starts[batch + 1] <= self.warm_up():
            added["first"] = self._theta(added)
        return added

    def _theta(self, state: Arrays) -> Array:
        users = np.maximum(state["users"], 1.0)
        if self.code and self.shared:
            return np.asarray(np.linalg.solve(state["gram"], state["moment"][..., None])[..., 0])
        shift = 2 * _published_shift(self.sigma, users, self.dim, self.horizon)
        return self._fitted(state, shift, np.full(self.parts, 1e-6))[0]

    def model(self, state: Arrays) -> Arrays:
        """θ, and the estimates of the warm-up."""
        if not state["gram"].any():
            return {"theta": np.zeros((self.parts, self.dim)), "first": state["first"]}
        return {"theta": self._theta(state), "first": state["first"]}

    def scores(self, model: Arrays, contexts: Array) -> Array:
        """Estimated rewards, −∞ for eliminated arms; see `LocalLearner.scores`."""
        scores = super().scores(model, contexts)
        if self.gap is None or self.shared:
            return scores
        first = super().scores({"theta": model["first"]}, contexts)
        far = first <= first.max(axis=1, keepdims=True) - self.gap / 2
        return np.where(far, -np.inf, scores)


# Gradients ------------------------------------------------------------------------------------


@final
class PublishedSGD(LocalLearner):
    """LDP-SGD of Han et al. 2021 with the constants of their code; greedy, a step per message.

    The ball mechanism of Duchi et al. on gradients clipped to ``radius`` (the paper has 2c, for
    rewards and contexts bounded by c and 1; the code has 1, which gradients exceed), steps of
    5/(t + 1) for one θ and 5K/(t + 1) per arm, and a ridge of .05 but for one θ and linear rewards.
    Messages of several parts are at ε/2, as their proof has it; they start at 0, the code at
    random.

    Args:
        link: ``linear``, ``logistic`` or ``poisson``.
        radius: R.
        step_size: c of the steps c/(t + 1) and c·K/(t + 1).
        warm_up_users: with one θ per arm.
    """

    kind: Literal["published-sgd"] = "published-sgd"
    link: Link = "linear"
    radius: Annotated[float, Field(gt=0)] = 1.0
    step_size: Annotated[float, Field(gt=0)] = 5.0
    warm_up_users: Annotated[int, Field(ge=0)] = 0

    @property
    def per_message(self) -> bool:
        """A step at every message; with one θ per arm, where there is a warm-up, batches of one."""
        return self.shared

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.warm_up_users > self.horizon:
            raise ValueError(f"warm_up_users = {self.warm_up_users!r}: must be <= horizon")
        return self

    def report(self) -> BallReport:
        """The mechanism of one part, at half of epsilon where there are several."""
        return BallReport.duchi(self.dim, self.radius, self.epsilon / (1 if self.shared else 2))

    def warm_up(self) -> int:
        """Users in turn; 0 if shared."""
        return 0 if self.shared else self.warm_up_users

    def scores(self, model: Arrays, contexts: Array) -> Array:
        """x·θ_a; see `LocalLearner.scores`."""
        return optimistic(contexts, model["theta"], None, None, shared=self.shared)

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: Array, rewards: Array
    ) -> Array:
        """Gradients; see `LocalLearner.record`."""
        theta = model["theta"][0 if self.shared else arms]
        index = np.clip((contexts * theta).sum(axis=1), -20.0, 20.0)
        residual = mean_of(self.link, index) - rewards
        return residual[:, None] * contexts

    def start(self) -> Arrays:
        """The state before any message."""
        return {"theta": np.zeros((self.parts, self.dim))}

    def step(self, state: Arrays, batch: int, sums: Array, counts: Array) -> Arrays:
        """One step for every part that the message has; see `LocalLearner.step`."""
        ridge = 0.0 if self.shared and self.link == "linear" else 0.05
        theta = state["theta"]
        rate = self.step_size * self.parts / (batch + 1)
        moved = theta - rate * (sums + ridge * theta)
        return {"theta": np.where(counts[:, None] > 0, moved, theta)}

    def model(self, state: Arrays) -> Arrays:
        """θ."""
        return state
