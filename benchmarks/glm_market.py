"""Simulated visitors of bandits whose actions have features, and the regret of what they see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from privlearn.rows.domains import Array

CHUNK = 1_000


class Cell(NamedTuple):
    """A simulated market."""

    link: str
    dim: int
    n_actions: int
    horizon: int
    norm: float
    kind: str = "new"

    def mean(self, indices: Array) -> Array:
        """Expected rewards."""
        match self.link:
            case "logistic":
                return np.asarray(expit(indices), dtype=float)
            case "probit":
                return np.asarray(ndtr(indices))
            case "poisson":
                return np.asarray(np.exp(indices))
        return indices

    def rewards(self, indices: Array, uniform: Array) -> Array:
        """Of uniform numbers, the users' own."""
        match self.link:
            case "linear":
                return np.asarray((uniform < 0.5 + indices) - 0.5)
            case "poisson":
                rates, found = np.exp(indices), np.zeros(len(uniform))
                term = total = np.exp(-rates)
                for k in range(1, 200):
                    found += uniform > total
                    term = term * rates / k
                    total = total + term
                return found
        return np.asarray(uniform < self.mean(indices), dtype=float)

    @property
    def declared(self) -> dict[str, Any]:
        """What a learner is told of rewards."""
        told: dict[str, Any] = {"link": self.link}
        if self.link == "linear":
            told["reward_range"] = (-0.5, 0.5)
        if self.link == "poisson":
            told |= {"reward_range": (0.0, 30.0), "max_rate": math.exp(self.norm)}
        return told


LOGISTIC = {
    "d = 3, K = 20": Cell("logistic", 3, 20, 10_000, 3.0),
    "d = 5, K = 20, T = 15,000": Cell("logistic", 5, 20, 15_000, 3.5),
    "d = 20, K = 10": Cell("logistic", 20, 10, 10_000, 3.0),
    "d = 40, K = 40, T = 20,000": Cell("logistic", 40, 40, 20_000, 4.0),
    "d = 6, K = 10, moving": Cell("logistic", 6, 10, 10_000, 3.0, "moving"),
    "d = 20, K = 10, moving": Cell("logistic", 20, 10, 10_000, 3.0, "moving"),
    "d = 3, K = 20, fixed": Cell("logistic", 3, 20, 10_000, 3.0, "fixed"),
}
LINEAR = {
    f"d = {d}, {kind}": Cell("linear", d, 10, 10_000, 0.5, kind)
    for d in (5, 20)
    for kind in ("new", "fixed")
}
OTHERS = {
    "probit, d = 5": Cell("probit", 5, 10, 10_000, 2.0),
    "Poisson, d = 5": Cell("poisson", 5, 10, 10_000, 1.0),
}
CELLS = LOGISTIC | {f"linear, {name}": cell for name, cell in LINEAR.items()} | OTHERS


def ball(rng: np.random.Generator, *shape: int) -> Array:
    """Uniform in the unit ball of the last dimension."""
    normal = rng.standard_normal(shape)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    return np.asarray(normal * rng.random((*shape[:-1], 1)) ** (1 / shape[-1]))


class Visitors:
    """Those of one run, and the regret of what they were shown."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell, self.regret, self.random = cell, 0.0, 0.0
        self._rng = np.random.default_rng([seed, 1])
        theta = self._rng.standard_normal(cell.dim)
        self.theta = theta * cell.norm / np.linalg.norm(theta)
        self._same = ball(self._rng, cell.n_actions, cell.dim)

    def slates(self, first: int, n: int) -> Array:
        """Features of the next visitors, shape (n, K, d)."""
        cell, half = self.cell, self.cell.dim // 2
        if cell.kind == "fixed":
            return np.repeat(self._same[None], n, axis=0)
        if cell.kind == "new":
            return ball(self._rng, n, cell.n_actions, cell.dim)
        early = first + n <= cell.horizon // 2
        found = np.zeros((n, cell.n_actions, cell.dim))
        part = slice(half) if early else slice(half, None)
        found[..., part] = ball(self._rng, n, cell.n_actions, half)
        return found

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, Array]]:
        """Features and uniform numbers, of all visitors in order."""
        for first in range(0, self.cell.horizon, size):
            n = min(size, self.cell.horizon - first)
            yield self.slates(first, n), self._rng.random((n, 1))

    def answer(self, features: Array, actions: NDArray[np.int64], uniform: Array) -> Array:
        """Rewards; counts regret."""
        indices = features @ self.theta
        means, own = self.cell.mean(indices), np.arange(len(actions))
        self.regret += float((means.max(axis=1) - means[own, actions]).sum())
        self.random += float((means.max(axis=1) - means.mean(axis=1)).sum())
        return self.cell.rewards(indices[own, actions], uniform)
