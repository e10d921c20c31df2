"""Rivals of `OnePassNewtonGLM`, who take visitors one by one; a slate is (K, d).

- LinUCB: ridge regression, one θ for all actions, width 1/2 (no privacy).  Li et al. 2010.
- Vowpal Wabbit: contextual bandit with features for each action, SquareCB (no privacy).
- private LinUCB: Shariff and Sheffet 2018, arXiv:1810.00068: sums of [x y]ᵀ[x y] with the noise of
  a binary tree, ten times its square root of T instead of every time, at (1, 10⁻⁶); their
  regulariser, and the half of it that keeps the sum positive.
- MABWiser: UCB1 (½) on actions that are the same for all, without their features (no privacy).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from glm_market import Cell

from privlearn.losses.conversion import zcdp_rho
from privlearn.rows.domains import Array

EVERY = 50
"""Visitors from one solution of private LinUCB to the next."""


class LinUCB:
    """Ridge regression with widths; rewards of mean 1/2 are centred."""

    def __init__(self, cell: Cell, seed: int) -> None:
        del seed
        self._centre = 0.0 if cell.link == "linear" else 0.5
        self._inverse, self._moment = np.eye(cell.dim), np.zeros(cell.dim)

    def select(self, slate: Array) -> int:
        theta = self._inverse @ self._moment
        widths = np.sqrt(np.einsum("kd,kd->k", slate @ self._inverse, slate))
        return int(np.argmax(slate @ theta + 0.5 * widths))

    def observe(self, x: Array, reward: float) -> None:
        image = self._inverse @ x
        self._inverse -= np.outer(image, image) / (1 + x @ image)
        self._moment += (reward - self._centre) * x


class TreeLinUCB:
    """That of Shariff and Sheffet, solved anew for every fiftieth visitor."""

    regulariser = 1.0

    def __init__(self, cell: Cell, seed: int) -> None:
        self._rng, self._dim = np.random.default_rng([seed, 9]), cell.dim
        self._centre = 0.0 if cell.link == "linear" else 0.5
        leaves = math.ceil(cell.horizon / EVERY)
        self._levels = max(math.ceil(math.log2(leaves)), 1) + 1
        rho = zcdp_rho(1.0, 1e-6)
        # ‖[x y]ᵀ[x y]‖ <= 1 + y², replace-one √2 times that, in every level once
        squared = 2 * (1 + 0.25) ** 2 * self._levels
        self._std = math.sqrt(squared / (2 * rho))
        self._sum: Array = np.zeros((cell.dim + 1, cell.dim + 1))
        self._nodes: list[Array] = [np.zeros_like(self._sum) for _ in range(self._levels)]
        self._seen = 0
        self._theta: Array = np.zeros(cell.dim)
        edge = self._std * math.sqrt(self._levels) * math.sqrt(2 * (cell.dim + 1))
        self._shift = self.regulariser * edge
        self._inverse: Array = np.eye(cell.dim) / (1 + self._shift)

    def select(self, slate: Array) -> int:
        widths = np.sqrt(np.maximum(np.einsum("kd,kd->k", slate @ self._inverse, slate), 0))
        return int(np.argmax(slate @ self._theta + 0.5 * widths))

    def observe(self, x: Array, reward: float) -> None:
        row = np.append(x, reward - self._centre)
        self._sum = self._sum + np.outer(row, row)
        self._seen += 1
        if self._seen % EVERY == 0:
            self._solve(self._seen // EVERY)

    def _solve(self, step: int) -> None:
        for level in range(self._levels):
            if step % 2**level == 0:
                self._nodes[level] = self._noise()
        noise = sum(n for k, n in enumerate(self._nodes) if step >> k & 1)
        noisy = self._sum + noise
        gram: Array = noisy[:-1, :-1] + (1 + self._shift) * np.eye(self._dim)
        lowest = float(np.linalg.eigvalsh(gram)[0])
        if lowest < 1:
            gram += (1 - lowest) * np.eye(self._dim)
        self._inverse = np.asarray(np.linalg.inv(gram), dtype=float)
        self._theta = np.asarray(self._inverse @ noisy[:-1, -1])

    def _noise(self) -> Array:
        normal: Array = self._rng.standard_normal(self._sum.shape) * self._std
        upper = np.triu(normal, 1) / math.sqrt(2)
        return np.asarray(upper + upper.T + np.diag(np.diag(normal)))


class TreeLinUCBHalf(TreeLinUCB):
    """With a smaller regulariser."""

    regulariser = 0.1


class Vowpal:
    """Vowpal Wabbit, SquareCB."""

    def __init__(self, cell: Cell, seed: int) -> None:
        import vowpalwabbit

        options = f"--cb_explore_adf --squarecb --quiet --random_seed {seed}"
        self._workspace = vowpalwabbit.Workspace(options)
        self._rng = np.random.default_rng([seed, 9])

    def select(self, slate: Array) -> int:
        self._lines = [
            "| " + " ".join(f"f{i}:{v:.5f}" for i, v in enumerate(row)) for row in slate.tolist()
        ]
        chances = np.array(self._workspace.predict(self._lines))
        self._action = int(self._rng.choice(len(chances), p=chances / chances.sum()))
        self._chance = float(chances[self._action])
        return self._action

    def observe(self, x: Array, reward: float) -> None:
        del x
        told = list(self._lines)
        told[self._action] = f"0:{-reward:.1f}:{self._chance:.6f} {told[self._action]}"
        self._workspace.learn(told)


class MABWiser:
    """UCB1, by the places of actions."""

    def __init__(self, cell: Cell, seed: int) -> None:
        from mabwiser.mab import MAB, LearningPolicy

        self._mab = MAB(list(range(cell.n_actions)), LearningPolicy.UCB1(alpha=0.5), seed=seed)
        self._seen, self._begun = cell.n_actions, 0

    def select(self, slate: Array) -> int:
        del slate
        begins = self._begun < self._seen
        self._action = self._begun if begins else int(self._mab.predict())
        return self._action

    def observe(self, x: Array, reward: float) -> None:
        del x
        told = [self._action], [reward]
        if self._begun:
            self._mab.partial_fit(*told)
        else:
            self._mab.fit(*told)
        self._begun += 1


PLAYERS: dict[str, Any] = {
    "LinUCB, no privacy": LinUCB,
    "Vowpal Wabbit, no privacy": Vowpal,
    "MABWiser UCB1, no features, no privacy": MABWiser,
    "private LinUCB, (1, 10⁻⁶)": TreeLinUCB,
    "private LinUCB, regulariser ÷ 10": TreeLinUCBHalf,
}
BOTH = ("logistic", "linear")
FOR: dict[str, tuple[str, ...]] = {
    "MABWiser UCB1, no features, no privacy": BOTH,
    "LinUCB, no privacy": BOTH,
    "Vowpal Wabbit, no privacy": BOTH,
    "private LinUCB, (1, 10⁻⁶)": ("linear",),
    "private LinUCB, regulariser ÷ 10": ("linear",),
}
