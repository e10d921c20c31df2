"""What local bandits are held against: learners that promise nothing, and random play.

They see every user's row as it is and take no accountant.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.learners.links import Link, mean_of, optimistic
from privlearn.rows.domains import Array
from privlearn.values.validate import count


class _Greedy(ABC):
    """Pulls the arm of the largest value; with one θ per arm, first every arm d times in turn."""

    coef_: Array

    def __init__(self, *, dim: int, n_arms: int, shared: bool) -> None:
        self.dim, self.n_arms, self.shared = count(dim=dim), count(n_arms=n_arms), shared
        self._users = 0

    def choose(self, contexts: Array) -> NDArray[np.int64]:
        """Arms, shape (n,), for contexts (n, K, d) if shared, else (n, d)."""
        forced = 0 if self.shared else self.n_arms * self.dim
        index = self._users + np.arange(len(contexts))
        return np.where(index < forced, index % self.n_arms, self._values(contexts).argmax(axis=1))

    def _values(self, contexts: Array) -> Array:
        return optimistic(contexts, self.coef_, None, None, shared=self.shared)

    @abstractmethod
    def learn(self, contexts: Array, arms: NDArray[np.int64], rewards: Array) -> None:
        """Takes the contexts (n, d) of pulled arms, the arms, and their rewards (n,)."""


class GreedyLeastSquares(_Greedy):
    """Ridge regression on what was seen, greedy; **not private**.

    Args:
        dim: d.
        n_arms: K.
        shared: one θ for all arms, or one per arm; then every arm is first pulled d times in turn.
        ridge: weight of ‖θ‖².
    """

    def __init__(self, *, dim: int, n_arms: int, shared: bool, ridge: float = 1.0) -> None:
        super().__init__(dim=dim, n_arms=n_arms, shared=shared)
        parts = 1 if shared else n_arms
        self._gram = np.tile(ridge * np.eye(dim), (parts, 1, 1))
        self._moment = np.zeros((parts, dim))
        self._fit()

    def _fit(self) -> None:
        solved = np.linalg.solve(self._gram, self._moment[..., None])[..., 0]
        self.coef_ = np.asarray(solved, dtype=np.float64)

    def learn(self, contexts: Array, arms: NDArray[np.int64], rewards: Array) -> None:
        """Takes the contexts (n, d) of pulled arms, the arms, and their rewards (n,)."""
        for part in range(len(self._gram)):
            own = slice(None) if self.shared else arms == part
            self._gram[part] += contexts[own].T @ contexts[own]
            self._moment[part] += rewards[own] @ contexts[own]
        self._users += len(arms)
        self._fit()


@final
class LinUCB(GreedyLeastSquares):
    """Ridge regression with the bonus of Abbasi-Yadkori et al. 2011; **not private**.

    Its confidence sets fail with chance 1/T.

    Args:
        horizon: T.
        noise_std: public sub-Gaussian constant of rewards.

    The other arguments are those of `GreedyLeastSquares`; ‖θ‖ is taken to be at most 1.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_arms: int,
        shared: bool,
        horizon: int,
        noise_std: float = 0.5,
        ridge: float = 1.0,
    ) -> None:
        self._ridge, self._noise, self._log = ridge, noise_std, math.log(count(horizon=horizon))
        super().__init__(dim=dim, n_arms=n_arms, shared=shared, ridge=ridge)

    def _fit(self) -> None:
        super()._fit()
        values, vectors = np.linalg.eigh(self._gram)
        roots = vectors.swapaxes(1, 2) / np.sqrt(values)[:, :, None]
        self._roots: Array = np.asarray(roots, dtype=np.float64)
        volume = np.log(values / self._ridge).sum(axis=1)
        self._width = math.sqrt(self._ridge) + self._noise * np.sqrt(2 * self._log + volume)

    def _values(self, contexts: Array) -> Array:
        return optimistic(contexts, self.coef_, self._roots, self._width, shared=self.shared)


@final
class GreedySGD(_Greedy):
    """One gradient step per user, greedy; **not private**.

    Steps are step_size/√(d + t) for the t-th user of the part, times d: good for contexts of norm
    about 1.

    Args:
        dim: d.
        n_arms: K.
        shared: one θ for all arms, or one per arm; then every arm is first pulled d times in turn.
        link: ``linear``, ``logistic`` or ``poisson``.
        step_size: factor of the steps.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_arms: int,
        shared: bool,
        link: Link = "linear",
        step_size: float = 1.0,
    ) -> None:
        super().__init__(dim=dim, n_arms=n_arms, shared=shared)
        self.link, self.step_size = link, step_size
        self.coef_ = np.zeros((1 if shared else n_arms, dim))
        self._steps = np.zeros(len(self.coef_))

    def learn(self, contexts: Array, arms: NDArray[np.int64], rewards: Array) -> None:
        """As `GreedyLeastSquares.learn`."""
        for context, arm, reward in zip(contexts, arms, rewards, strict=True):
            part = 0 if self.shared else int(arm)
            self._steps[part] += 1
            index = np.clip(context @ self.coef_[part], -20.0, 20.0)
            residual = float(mean_of(self.link, index)) - reward
            rate = self.step_size * self.dim / math.sqrt(self.dim * (self.dim + self._steps[part]))
            size = max(float(context @ context), 1.0)
            self.coef_[part] -= min(rate, 1.0) * residual / size * context
        self._users += len(arms)


@final
class RandomPlay:
    """Pulls arms at random; **not a learner**.

    Args:
        n_arms: K.
        random_state: seed of the coins.
    """

    def __init__(self, *, n_arms: int, random_state: int = 0) -> None:
        self.n_arms = count(n_arms=n_arms)
        self._coins = np.random.default_rng(random_state)

    def choose(self, contexts: Array) -> NDArray[np.int64]:
        """Arms, shape (n,)."""
        return self._coins.integers(self.n_arms, size=len(contexts))

    def learn(self, contexts: Array, arms: NDArray[np.int64], rewards: Array) -> None:
        """Learns nothing."""
