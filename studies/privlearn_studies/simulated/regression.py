"""Streams for private linear regression as in Han et al. 2022.

A `LinearStream` is the users' side of an experiment: it holds what no learner may see and scores
answers.  Everything it computes is private.  Settings are those of the authors' code where paper
and code differ (θ is flat on five coordinates, not Gaussian).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.mechanisms.constraint_sets import dual_exponent, exponent, norms
from privlearn.rows.domains import Array
from privlearn.values.validate import count, not_negative, positive

TEST_ROWS: Final = 10_000
LABEL_NOISE: Final = 0.05
RADIUS: Final = 2.0
"""Of the ball that θ is searched in; ‖θ*‖_p = 1."""
UNEQUAL: Final = (1.3, -1.0, 0.8, -0.6, 0.45)
"""Entries of a θ* that is not flat, before scaling."""


@final
@dataclass(frozen=True, slots=True)
class LinearStream:
    """Rows (x, y) in order of arrival, ‖x‖_q = 1, y = x·θ* + N(0, noise²).

    Args:
        features: shape (T, d).
        labels: shape (T,).
        theta: θ*, ‖θ*‖_p = 1.
        p: of the ball; features are of unit norm in the dual one.
        test: further features, shape (TEST_ROWS, d).
        noise: standard deviation of labels.
    """

    features: Array
    labels: Array
    theta: Array
    p: float
    test: Array
    noise: float

    @property
    def horizon(self) -> int:
        """T."""
        return len(self.labels)

    @property
    def dim(self) -> int:
        """d."""
        return len(self.theta)

    def risk(self, theta: Array) -> float:
        """Mean of (x·θ − y)² on the test rows, the noise of their labels integrated out."""
        errors = self.test @ (theta - self.theta)
        return float(np.mean(errors * errors)) + self.noise**2

    def suboptimality(self, theta: Array) -> float:
        """SubOpt: excess risk over that of θ = 0; 0 is perfect, above 1 worse than nothing."""
        least = self.risk(self.theta)
        return (self.risk(theta) - least) / (self.risk(np.zeros(self.dim)) - least)


STREAMS = (101, 102)
"""Keys of the data and test streams; with 0 they would share their random words with the simulated
noise of the same seed, as NumPy pads seeds with zeros."""


def linear_stream(
    seed: int,
    *,
    horizon: int,
    dim: int,
    p: float,
    entries: int = 5,
    theta: Sequence[float] | None = None,
    scales: ArrayLike | None = None,
    noise: float = LABEL_NOISE,
) -> LinearStream:
    """The setting of Table 5.1: normal features of unit q-norm, θ* flat on a few coordinates.

    Args:
        seed: of features and noise.
        horizon: T.
        dim: d.
        p: in [1, inf].
        entries: how many coordinates of θ* are not 0.
        theta: these coordinates, in place of equal ones; scaled to ‖θ*‖_p = 1.
        scales: standard deviations of columns before rows are normalised, shape (d,).
        noise: standard deviation of labels.

    Raises:
        ValueError: an argument is out of range.
    """
    exponent(p=p)
    count(horizon=horizon)
    not_negative(noise=noise)
    shown = np.ones(min(count(entries=entries), count(dim=dim))) if theta is None else theta
    if len(shown) > dim:
        raise ValueError(f"theta of length {len(shown)}: dim is {dim}")
    truth = np.zeros(dim)
    truth[: len(shown)] = shown
    truth /= positive(length=float(norms(truth, p)))
    widths = np.ones(dim) if scales is None else np.asarray(scales, dtype=np.float64)
    if widths.shape != (dim,) or not (widths > 0).all():
        raise ValueError(f"scales: must be {dim} numbers > 0")
    first, second = (np.random.default_rng([count(seed=seed, at_least=0), k]) for k in STREAMS)
    features = _features(first, horizon, widths, p)
    labels = features @ truth + noise * first.standard_normal(horizon)
    return LinearStream(features, labels, truth, p, _features(second, TEST_ROWS, widths, p), noise)


def _features(rng: np.random.Generator, rows: int, widths: Array, p: float) -> Array:
    drawn = rng.standard_normal((rows, len(widths))) * widths
    return np.asarray(drawn / norms(drawn, dual_exponent(p))[:, None])
