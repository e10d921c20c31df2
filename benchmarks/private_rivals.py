"""Private linear fits of other libraries and papers, for comparisons: noise of NumPy, no ledger.

All take encoded inputs (n, d) without a constant, targets in [−1, 1] or numbers of ``classes``, and
give a `Linear` model.  Adjacency: one record replaced.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import NamedTuple

import numpy as np

from privlearn.rows.domains import Array

CONSTANT = 0.5  # the input of the intercept


def shortened(inputs: Array, longest: float) -> Array:
    """Rows of at most this norm."""
    lengths = np.maximum(np.linalg.norm(inputs, axis=1), 1e-300)
    return np.asarray(inputs * np.minimum(1.0, longest / lengths)[:, None])


class Linear(NamedTuple):
    """Scores x·coef + intercept: coef (d, m), intercept (m,); m = 1 for numbers and two classes.

    Rows are `shortened` as they were for learning.
    """

    coef: Array
    intercept: Array
    longest: float = math.inf

    def scores(self, inputs: Array) -> Array:
        """Shape (n, m)."""
        return np.asarray(shortened(inputs, self.longest) @ self.coef + self.intercept)


def with_constant(inputs: Array) -> Array:
    """Inputs with the constant as last column."""
    return np.hstack([inputs, np.full((len(inputs), 1), CONSTANT)])


def without_constant(theta: Array) -> Linear:
    """The model of θ (d + 1,) or (d + 1, m) over inputs `with_constant`."""
    wide = theta.reshape(len(theta), -1)
    return Linear(wide[:-1], CONSTANT * wide[-1])


class Recipe(NamedTuple):
    """Settings of DP-SGD."""

    step: float
    clip: float
    batch: int
    epochs: int


RECIPES = {
    "Opacus 64": Recipe(step=0.1, clip=1.0, batch=64, epochs=10),
    "Opacus 512": Recipe(step=0.1, clip=1.0, batch=512, epochs=20),
}
"""Defaults of ``examples/mnist.py`` of Opacus; and these with batch and epochs of its tutorial."""


def rate(recipe: Recipe, n: int) -> float:
    """Of Poisson sampling; a batch is at most a quarter of the rows."""
    return min(recipe.batch / n, 0.25)


@cache
def noise_multiplier(epsilon: float, delta: float, sampled: float, epochs: int) -> float:
    """σ of Opacus, for one record added or left out."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=sampled, epochs=epochs
        )
    return float(found)


def dp_sgd(
    recipe: Recipe, inputs: Array, targets: Array, classes: int, sigma: float, seed: int
) -> Linear:
    """DP-SGD on `torch.nn.Linear` as Opacus runs it, with twice its noise, as records are replaced.

    Poisson batches, gradients of each record clipped over all parameters, their sum and the noise
    divided by the expected batch.  Losses: `MSELoss`, `BCEWithLogitsLoss`, `CrossEntropyLoss`.
    """
    rng = np.random.default_rng([seed, 2])
    n, dim = inputs.shape
    outputs = classes if classes > 2 else 1
    sampled = rate(recipe, n)
    rows = np.hstack([inputs, np.ones((n, 1))])
    norms = np.linalg.norm(rows, axis=1)
    wanted = np.eye(outputs)[targets.astype(int)] if outputs > 1 else targets[:, None]
    theta = rng.uniform(-1, 1, (dim + 1, outputs)) / math.sqrt(dim)
    spread = 2 * sigma * recipe.clip
    for _ in range(recipe.epochs * int(1 / sampled)):
        batch = rng.choice(n, rng.binomial(n, sampled), replace=False, shuffle=False)
        x = rows[batch]
        left = _residuals(x @ theta, wanted[batch], classes)
        lengths = np.sqrt(np.einsum("ij,ij->i", left, left)) * norms[batch]
        left *= np.minimum(1.0, recipe.clip / np.maximum(lengths, 1e-12))[:, None]
        noisy = x.T @ left + rng.normal(scale=spread, size=theta.shape)
        theta -= recipe.step * noisy / (sampled * n)
    return Linear(theta[:-1], theta[-1])


def _residuals(scores: Array, wanted: Array, classes: int) -> Array:
    """Derivatives of a record's loss by its scores."""
    if classes == 0:
        return np.asarray(2 * (scores - wanted))
    if classes == 2:
        return np.asarray(1 / (1 + np.exp(-scores)) - wanted)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True) - wanted)


def adassp(
    inputs: Array, targets: Array, row_norm: float, mu: float, rng: np.random.Generator
) -> Linear:
    """AdaSSP (Wang 2018), a third of μ² each for λ_min, Σxxᵀ and Σxy; |y| <= 1, rows shortened.

    With its bound on the noise's eigenvalues at a failure of 0.05.
    """
    rows, bound = with_constant(inputs), row_norm**2 + CONSTANT**2
    dim, part = rows.shape[1], mu / math.sqrt(3)
    gram = rows.T @ rows
    std = math.sqrt(2) * bound / part
    noise = np.triu(rng.normal(size=(dim, dim))) * std / math.sqrt(2)
    noise += np.triu(noise, 1).T
    noise[np.diag_indices(dim)] *= math.sqrt(2)
    noisy = std * math.sqrt(dim * math.log(2 * dim**2 / 0.05))
    least = float(np.linalg.eigvalsh(gram)[0]) + (rng.normal() - 2) * bound / part
    ridge = max(0.0, noisy - max(least, 0.0))
    moment = rows.T @ targets + rng.normal(size=dim) * 2 * math.sqrt(bound) / part
    theta = np.linalg.solve(gram + noise + ridge * np.eye(dim), moment)
    return without_constant(np.asarray(theta, dtype=np.float64))


def diffprivlib(
    inputs: Array, targets: Array, row_norm: float, classes: int, epsilon: float, seed: int
) -> Linear:
    """Its linear and logistic regressions, at pure ε, with bounds declared; else its defaults.

    Columns with two values are declared as those, others as [−1, 1]; rows are shortened.
    """
    from diffprivlib.models import LinearRegression, LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if classes:
            fitted = LogisticRegression(epsilon=epsilon, data_norm=row_norm, random_state=seed)
            fitted.fit(inputs, targets)
            return Linear(fitted.coef_.T, fitted.intercept_)
        two = np.array([len(np.unique(column[:1000])) <= 2 for column in inputs.T])
        low, high = np.where(two, inputs.min(axis=0), -1.0), np.where(two, inputs.max(axis=0), 1.0)
        model = LinearRegression(
            epsilon=epsilon, bounds_X=(low, high), bounds_y=(-1.0, 1.0), random_state=seed
        ).fit(inputs, targets)
        return Linear(model.coef_.reshape(-1, 1), np.reshape(model.intercept_, 1))
