r"""LDP-OLS: least squares from one Gaussian message of every user, re-centred at what is published.

A message is ffᵀ + noise of the factor f = (x/C, z), ‖x‖ <= C and z = clip((r − x·θ_b)/c_b, ±1): the
public estimate θ_b and the public scale c_b are those of the user's batch b.  It holds xxᵀ, x·z and
z² together, at the ℓ2 sensitivity 2√2 (`PSDTrace`): the least noise for x·z by itself is as large,
so that the matrix and the size of the residuals cost nothing.

Re-centring is what pays.  The noise on x·r is of the size of the largest reward for ever; that on
c_b·x·z falls with the residuals.  The normal equations of all batches are solved together, with
batch b weighted by its precision ω_b = γ²/(v·c_b²), v the variance of a number of x·z:

    (W·G² + d/S²)·θ = G·(G·Σ ω_b n_b θ_b + Σ ω_b c_b/γ · (x·z summed over b)),  W = Σ ω_b n_b.

This is the posterior mean for independent normal θ of expected norm S = ``theta_bound`` and known
G, the mean of xxᵀ; S is the whole of the regularisation, and there is no shift of order √t.  G is
the noisy mean, shrunk towards a multiple of 1 by as much as its noise can account for (the level is
public), with eigenvalues raised to a tenth of their mean.  The next scale is c = 0.6·s, s² the
residual variance that the posterior predicts, and γ = erf(0.6/√2) is what clipping there leaves of
a normal residual.  Where the messages' z² show that residuals are larger than predicted (noise in
the rewards, a model that does not hold, an estimate that is stuck), the scale is raised and what
was learnt is weighted down.

One θ per arm: the first users pull arms in turn, and report on that arm only; later ones pull the
best arm, of those that the warm-up left, and send a part for every arm, of which K − 1 are null
(`OneOfKReport`, at the full ε).  Everything above then holds arm by arm.

Proved: the price, whatever users and models do; that every estimate is in the ball; and that at
the true θ clipped residuals of symmetric noise have mean 0, unless the rewards were cut.
Only measured: the constants below, batches that grow by 15 %, the length of the
warm-up, and the regret.  No regret bound is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from privlearn.learners.links import least_gaussian
from privlearn.learners.local.protocol import Arrays, LocalLearner
from privlearn.mechanisms import NoisyReport
from privlearn.rows.domains import Array, PSDTrace

_CLIP = 0.6  # Where residuals are clipped, in predicted standard deviations
_GAIN = math.erf(_CLIP / math.sqrt(2))
"""E[clip(y)·y]/E[y²] for normal y: a clipped residual moves as if it were this much shorter."""
_SATURATED = 0.75  # E z² from which the scale counts as too small; .69 if the prediction holds
_LEFT = 0.5  # The least that is left of the weight of past messages each time that it does
_DECAY = 0.7  # What a batch leaves of a scale that was raised
_FLOOR = 0.1  # Least eigenvalue of a mean of xxᵀ, as part of their mean
_GROWTH = 0.15  # Length of a batch, as part of all users before it


@lru_cache(maxsize=64)
def _batches(horizon: int, warm_up: int, least: int) -> tuple[int, ...]:
    starts = sorted({0, warm_up // 2, warm_up})
    while starts[-1] < horizon:
        length = max(least, int(_GROWTH * starts[-1]))
        starts.append(min(horizon, starts[-1] + length))
    return tuple(starts)


@final
class LDPOLS(LocalLearner):
    r"""Greedy least squares from re-centred Gaussian messages; see the module.

    Args:
        theta_bound: S, the largest ‖θ‖; estimates are scaled to it.
        warm_up_users: with one θ per arm; None for min(T/5, 0.16·√(n₁·T)), n₁ = 1.57·K·d²·v the
            users it takes until θ is known as well as not.
        margin: with one θ per arm, an arm further than this behind the best by the estimates of the
            warm-up is not pulled; None for three predicted standard deviations of the difference.

    Raises:
        ValueError: a number out of range.
    """

    kind: Literal["ldp-ols"] = "ldp-ols"
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.01
    theta_bound: Annotated[float, Field(gt=0)] = 1.0
    warm_up_users: Annotated[int | None, Field(ge=0)] = None
    margin: Annotated[float | None, Field(gt=0)] = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.warm_up_users is not None and self.warm_up_users > self.horizon:
            raise ValueError(f"warm_up_users = {self.warm_up_users!r}: must be <= horizon")
        return self

    @property
    def domain(self) -> PSDTrace:
        """Of factors (x/C, z)."""
        return PSDTrace(2.0, self.dim + 1)

    def report(self) -> NoisyReport[Array]:
        """The mechanism of one part: the least noise that (epsilon, delta) allows."""
        return least_gaussian(self.domain, self.epsilon, self.delta)

    def warm_up(self) -> int:
        """Users in turn; 0 if shared."""
        if self.shared:
            return 0
        if self.warm_up_users is not None:
            return self.warm_up_users
        arms, d, noise = self.n_arms, self.dim, self.report().error_std() ** 2 / 2
        wanted = 0.16 * math.sqrt(1.57 * arms * d * d * noise * self.horizon)
        return int(min(self.horizon / 5, max(4 * arms, wanted)))

    def batches(self) -> Sequence[int]:
        """Two of the warm-up, then each 15 % of all users before it."""
        return _batches(self.horizon, self.warm_up(), max(10, 3 * self.dim))

    def scores(self, model: Arrays, contexts: Array) -> Array:
        """Estimated rewards, −∞ for eliminated arms; see `LocalLearner.scores`."""
        if self.shared:
            return np.asarray(np.einsum("nkd,d->nk", contexts, model["theta"][0]))
        scores = np.einsum("nd,kd->nk", contexts, model["theta"])
        first = np.einsum("nd,kd->nk", contexts, model["first"])
        behind = first.max(axis=1, keepdims=True) - first
        return np.where(behind > model["margin"], -np.inf, scores)

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: NDArray[Any], rewards: Array
    ) -> Array:
        """Factors (x/C, z); see `LocalLearner.record`."""
        pulled = np.zeros_like(arms) if self.shared else arms
        residuals = rewards - (contexts * model["theta"][pulled]).sum(axis=1)
        clipped = np.clip(residuals / model["clip"][pulled], -1, 1)
        return np.column_stack([contexts / self.context_bound, clipped])[:, None, :]

    # The server's half: sums in contexts of norm 1, axis 0 the warm-up and the rest ---------------

    @property
    def _size(self) -> float:
        """The largest ‖θ‖ for contexts of norm 1."""
        return self.theta_bound * self.context_bound

    def start(self) -> Arrays:
        parts, d = self.parts, self.dim
        prior = self._size**2 / d
        return {
            "theta": np.zeros((parts, d)),
            "clip": np.full(parts, self._scale(prior, 0.0)),
            "first": np.zeros((parts, d)),
            "margin": np.array([2 * self._size]),
            "weight": np.zeros((2, parts)),
            "centre": np.zeros((2, parts, d)),
            "moment": np.zeros((2, parts, d)),
            "gram": np.zeros((2, parts, d, d)),
            "users": np.zeros((2, parts)),
            "squares": np.zeros(parts),
            "squares_of": np.zeros(parts),
            "excess": np.zeros(parts),
        }

    def _scale(self, predicted: Array | float, excess: Array | float) -> Array:
        """c, between a millionth of the largest reward and the range of rewards."""
        wanted = _CLIP * np.sqrt(np.asarray(predicted) + excess)
        return np.clip(wanted, 1e-6 * self._size, self.reward_high - self.reward_low)

    def step(self, state: Arrays, batch: int, sums: Array, counts: NDArray[Any]) -> Arrays:
        """Adds the batch at its precision and solves anew; see `LocalLearner.step`."""
        d, arms = self.dim, self.parts
        std, users = self.report().error_std(), np.asarray(counts, dtype=np.float64)
        phase = int(self.starts[batch] >= self.warm_up())
        shares = (1.0, 1.0 / arms)  # of the messages that are about an arm
        whole, clip = self.domain.decode(sums), state["clip"]
        new = {name: array.copy() for name, array in state.items()}

        variance = std**2 / 2 + shares[phase] / d
        weight = _GAIN**2 / (variance * clip**2)
        new["weight"][phase] += weight * users
        new["centre"][phase] += (weight * users)[:, None] * state["theta"] * self.context_bound
        new["moment"][phase] += (weight * clip / _GAIN)[:, None] * whole[:, :d, d]
        new["gram"][phase] += whole[:, :d, :d]
        new["users"][phase] += users

        precision, right = np.eye(d) * (d / self._size**2), np.zeros((arms, d))
        for i in (0, 1):
            mean = self._mean_gram(new["gram"][i], new["users"][i], std, shares[i], pooled=i == 0)
            precision = precision + new["weight"][i][:, None, None] * (mean @ mean)
            inner = np.einsum("kde,ke->kd", mean, new["centre"][i]) + new["moment"][i]
            right += np.einsum("kde,ke->kd", mean, inner)
        theta = np.linalg.solve(precision, right[:, :, None])[:, :, 0]
        norms = np.linalg.norm(theta, axis=1, keepdims=True)
        new["theta"] = theta / np.maximum(norms / self._size, 1.0) / self.context_bound
        # `mean` is of the greedy users, from whom the next residuals come
        shape = mean / np.trace(mean, axis1=1, axis2=2)[:, None, None]
        predicted = np.einsum("kde,ked->k", shape, np.linalg.inv(precision))

        self._check_scale(new, whole[:, d, d], users, std, shares[phase])
        new["clip"] = self._scale(predicted, new["excess"])
        if self.starts[batch + 1] <= self.warm_up():
            new["first"] = new["theta"]
            spread = 3 * math.sqrt(2 * float(predicted.max()))
            new["margin"] = np.array([spread if self.margin is None else self.margin])
        return new

    def _mean_gram(
        self, sums: Array, users: Array, std: float, share: float, *, pooled: bool
    ) -> Array:
        d, arms = self.dim, len(sums)
        if pooled:  # arms in turn: their users are alike
            sums, users = sums.sum(axis=0, keepdims=True), users.sum(keepdims=True)
        n = np.maximum(users, 1.0)
        mean = sums / n[:, None, None]
        noise = std**2 / n
        trace = np.trace(mean, axis1=1, axis2=2)
        shape = mean - (trace / d)[:, None, None] * np.eye(d)
        trace = share + _kept((trace - share) ** 2, noise * d, 1) * (trace - share)
        trace = np.clip(trace, share / 10, 1.0)
        degrees = d * (d + 1) // 2 - 1
        if degrees:
            energy = np.einsum("kde,kde->k", shape, shape)
            shape = _kept(energy, noise * degrees, degrees)[:, None, None] * shape
        values, vectors = np.linalg.eigh((trace / d)[:, None, None] * np.eye(d) + shape)
        values = np.maximum(values, _FLOOR * (trace / d)[:, None])
        values *= (trace / values.sum(axis=1))[:, None]
        made = np.einsum("kde,ke,kfe->kdf", vectors, values, vectors)
        return np.broadcast_to(made, (arms, d, d))

    def _check_scale(
        self, new: Arrays, squares: Array, users: Array, std: float, share: float
    ) -> None:
        """Where z² is larger than predicted, by its noise and more: a larger scale, less weight."""
        kept = np.clip(1 - 5 * users / np.maximum(new["users"].sum(axis=0), 1.0), 0.0, 1.0)
        new["squares"] = kept * new["squares"] + squares
        new["squares_of"] = kept * new["squares_of"] + users * share
        of = np.maximum(new["squares_of"], 1.0)
        wary = 1 if self.shared else 2  # deviations; of parts there are many, each with this noise
        mean = new["squares"] / of - wary * std / np.sqrt(of * share)
        # of a normal residual, z² leaves 1 − E z² = .53·c/s for small c: this is c/s, at most
        narrow = np.clip((1 - mean) / 0.53, 0.06, None)
        high = mean > _SATURATED
        left = np.where(high, np.maximum((narrow / _CLIP) ** 2, _LEFT), 1.0)
        new["weight"] *= left
        new["centre"] *= left[:, None]
        new["moment"] *= left[:, None]
        wider = np.minimum((new["clip"] / narrow) ** 2, self._size**2)
        new["excess"] = np.where(high, np.maximum(wider, new["excess"]), _DECAY * new["excess"])

    def model(self, state: Arrays) -> Arrays:
        """θ and the scale of residuals by part; with one θ per arm, what the warm-up left."""
        names = ("theta", "clip") if self.shared else ("theta", "clip", "first", "margin")
        return {name: state[name] for name in names}


def _kept(energy: Array, noise: Array, degrees: int) -> Array:
    """What part of a deviation is not noise: positive-part Stein, two standard deviations wary."""
    wary = noise * (1 + 2 * math.sqrt(2 / degrees))
    return np.clip(1 - wary / np.maximum(energy, 1e-300), 0.0, 1.0)
