"""Simulated users of contextual bandits with one linear reward per arm, and their regret.

An `ArmMarket` is the users' side of an experiment: it holds what no learner may see (the rewards of
all arms) and scores which arms were pulled.  Everything it computes is private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np
from scipy.special import expit

from privlearn.learners.contextual import Arms, RespondToArms, Visitor
from privlearn.rows.domains import Array
from privlearn.values.validate import count

BLOCK = 2_000
"""Users per block; bounds memory, changes no result."""


class ArmPlayer(Protocol):
    """A learner that can serve blocks of users."""

    def play(
        self, contexts: Array, respond: RespondToArms, private: Array | None = None, /
    ) -> None:
        """Serves the next users."""


@final
@dataclass(slots=True)
class ArmMarket:
    """T users with a context each, and their rewards from K arms.

    Args:
        contexts: shape (T, d).
        rewards: what each arm would pay, shape (T, K).
        means: expected rewards, shape (T, K); regret is counted in these.
    """

    contexts: Array
    rewards: Array
    means: Array
    pulled: Arms = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if self.rewards.shape != self.means.shape or len(self.rewards) != len(self.contexts):
            raise ValueError(
                f"contexts {self.contexts.shape}, rewards {self.rewards.shape} and means "
                f"{self.means.shape}: must be (T, d), (T, K) and (T, K)"
            )

    @property
    def horizon(self) -> int:
        """T, the number of users."""
        return len(self.contexts)

    @property
    def n_arms(self) -> int:
        """K."""
        return int(self.means.shape[1])

    @property
    def dim(self) -> int:
        """d."""
        return int(self.contexts.shape[1])

    def respond(self, own: Visitor, arms: Arms) -> Array:
        """The rewards of the pulled arms: a function of own row and arm."""
        users = own.private[:, 0].astype(np.int64)
        self.pulled[users] = arms
        return np.asarray(self.rewards[users, arms])

    def serve(self, player: ArmPlayer, progress: Callable[[int], None] = lambda n: None) -> Array:
        """Lets ``player`` serve everybody; returns the regret of each user, shape (T,).

        ``progress`` is called with the number of users of each block.
        """
        self.pulled = np.full(self.horizon, -1, dtype=np.int64)
        for start in range(0, self.horizon, BLOCK):
            users = np.arange(start, min(start + BLOCK, self.horizon))
            private = users[:, None].astype(np.float64)
            player.play(self.contexts[users], self.respond, private)
            progress(len(users))
        return self.regrets()

    def regrets(self) -> Array:
        """Expected reward of the best arm minus that of the arm pulled, per user."""
        got: Array = np.take_along_axis(self.means, self.pulled[:, None], axis=1)[:, 0]
        return np.asarray(self.means.max(axis=1) - got)


def sparse_market(
    seed: int,
    *,
    horizon: int = 10_000,
    dim: int = 50,
    n_arms: int = 2,
    entries: int = 5,
    noise: float = 0.05,
    logistic: bool = False,
    strength: float = 5.0,
) -> ArmMarket:
    """The setting of Han et al. (Section 5.4): Gaussian contexts scaled to largest entry 1.

    θ_a is 1/‖·‖₁ on ``entries`` coordinates drawn with replacement, as in the authors' code, and
    rewards are x·θ_a + N(0, noise²); or 1 with probability σ(strength·x·θ_a), else 0.
    """
    rng = np.random.default_rng([count(seed=seed, at_least=0), 77])
    theta = np.zeros((n_arms, dim))
    for arm in range(n_arms):
        theta[arm, rng.choice(dim, entries)] = 1.0
    theta /= theta.sum(axis=1, keepdims=True)
    contexts = rng.standard_normal((horizon, dim))
    contexts /= np.abs(contexts).max(axis=1, keepdims=True)
    scores = contexts @ theta.T
    if logistic:
        means = expit(strength * scores)
        rewards = (rng.random(means.shape) < means).astype(np.float64)
    else:
        means, rewards = scores, scores + noise * rng.standard_normal(scores.shape)
    return ArmMarket(contexts, rewards, means)
