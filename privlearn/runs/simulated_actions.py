"""Simulated visitors, each with some actions of whose features the expected reward is a function.

The users' side of an experiment: it holds what no learner may see, and scores what was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np
from scipy.special import expit, ndtr

from privlearn.learners.contextual import Arms
from privlearn.rows.domains import Array

BLOCK: Final = 2_000
"""Visitors drawn at once, by a seed of their own."""
CONSTANT: Final = 0.5
"""The last feature of every action."""
_LENGTH: Final = (1 - CONSTANT**2) ** 0.5
_STRENGTH: Final = {"logistic": (5.0, -2.0), "probit": (3.0, -1.0), "poisson": (2.0, 0.0)}
_SLOPE, _MIDDLE = 0.5, 0.5  # Of the linear link: means within [0, 1]


class Respond(Protocol):
    """The visitors' side: block of own data and actions (n,) to rewards (n,)."""

    def __call__(self, own: Any, actions: Arms, /) -> Array: ...


class Visitors(NamedTuple):
    """Some visitors; arrays with a leading axis."""

    features: Array
    """shape (n, A, d)."""
    means: Array
    """Expected rewards, shape (n, A)."""
    rewards: Array
    """Of each action, shape (n, A)."""


@final
@dataclass(slots=True)
class ActionMarket:
    """T visitors with A actions of d features and a constant each; θ is a unit vector.

    Args:
        seed: of everything.
        horizon: T.
        actions: A.
        dim: d.
        link: from features to expected rewards.
        most: the largest count, of a Poisson link.
    """

    seed: int
    horizon: int
    actions: int
    dim: int
    link: str
    most: float
    _theta: Array = field(init=False)

    def __post_init__(self) -> None:
        theta = np.random.default_rng([self.seed, 83]).standard_normal(self.dim)
        self._theta = theta / np.sqrt(theta @ theta)

    def block(self, number: int) -> Visitors:
        """`BLOCK` visitors, or those who are left."""
        n = min(BLOCK, self.horizon - number * BLOCK)
        rng = np.random.default_rng([self.seed, 84, number])
        x = rng.standard_normal((n, self.actions, self.dim))
        x *= _LENGTH / np.maximum(np.sqrt(np.einsum("nad,nad->na", x, x)), 1.0)[..., None]
        scores = x @ self._theta
        means = self._means(scores)
        if self.link == "poisson":
            rewards = np.minimum(rng.poisson(means), self.most).astype(np.float64)
        else:
            rewards = (rng.random(means.shape) < means).astype(np.float64)
        constant = np.full((*scores.shape, 1), CONSTANT)
        return Visitors(np.concatenate([x, constant], axis=2), means, rewards)

    def _means(self, scores: Array) -> Array:
        if self.link == "linear":
            return _MIDDLE + _SLOPE * scores
        strength, middle = _STRENGTH[self.link]
        indices = middle + strength * scores
        if self.link == "poisson":
            return np.exp(indices)
        return np.asarray(expit(indices) if self.link == "logistic" else ndtr(indices))

    def serve(
        self,
        play: Callable[[Array, Respond, Array], object],
        progress: Callable[[int], None] = lambda n: None,
        *,
        first: int = 0,
    ) -> Array:
        """Regret of each visitor from ``first`` on, and what a random action's would be, (n, 2).

        Args:
            play: serves a block: features, ``respond``, and an array (n, 1) that it hands through.
            progress: is told how many were served.
        """
        regrets = [np.zeros((0, 2))]
        for number in range(first // BLOCK, -(-self.horizon // BLOCK)):
            some = slice(max(first - number * BLOCK, 0), None)
            features, means, rewards = (part[some] for part in self.block(number))
            if not len(means):
                continue
            taken = np.full(len(means), -1, dtype=np.int64)

            def respond(
                own: Any, actions: Arms, taken: Arms = taken, rewards: Array = rewards
            ) -> Array:
                places = own.private[:, 0].astype(np.int64)
                taken[places] = actions
                return np.asarray(rewards[places, actions])

            play(features, respond, np.arange(float(len(means)))[:, None])
            best = means.max(axis=1)
            got = np.take_along_axis(means, taken[:, None], axis=1)[:, 0]
            regrets.append(np.stack([best - got, best - means.mean(axis=1)], axis=1))
            progress(len(means))
        return np.concatenate(regrets)
