"""Generalised linear models as objectives: a scalar objective of x·θ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from privlearn.mechanisms.objectives import UNIT, Objective
from privlearn.mechanisms.scalar_objectives import (
    HuberObjective,
    LogisticObjective,
    PoissonObjective,
    SmoothObjective,
)
from privlearn.rows.domains import Array, Bound, Norm, Numbers, exponent_of
from privlearn.rows.domains.clipping import shaped, to_radius, with_norms
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import Count, check_fields


@final
@dataclass(frozen=True, slots=True)
class Labelled:
    """A vector x of an ℓ2 ball in R^d with a label y of an interval.

    Takes blocks of pairs (x, y) of shapes (n, d) and (n,); vectors are scaled into the ball, labels
    clamped.  A contribution is x followed by y; the null record has x = 0 (and the y nearest 0).
    """

    kind: ClassVar[str] = "labelled"
    dim: Count
    radius: Bound
    low: float
    high: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not -1e100 <= self.low < self.high <= 1e100:
            raise ValueError(f"low = {self.low!r}, high = {self.high!r}: low must be below high")

    @property
    def size(self) -> int:
        return self.dim + 1

    def clip(self, block: tuple[Array, Array]) -> Array:
        """Rows (x, y) with ‖x‖ <= radius and low <= y <= high."""
        parts = zip(block, self.record_form(), strict=True)
        x, y = (shaped(part, form) for part, form in parts)
        good = np.isfinite(x).all(axis=1) & np.isfinite(y)
        x = np.where(good[:, None], x, 0.0)
        labels = np.clip(np.where(good, y, 0.0), self.low, self.high)
        with np.errstate(all="ignore"):
            scaled = to_radius(*with_norms(x, 2.0), self.radius)
        return np.concatenate([scaled, labels[:, None]], axis=1)

    def record_form(self) -> tuple[Numbers, Numbers]:
        """A vector, and one number."""
        return Numbers((self.dim,)), Numbers()

    def null(self) -> Array:
        zero = np.zeros(self.size)
        zero[-1] = min(max(0.0, self.low), self.high)
        return zero

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        """Of a plain sum of records; objective perturbation does not use it."""
        stretch = math.sqrt(self.dim) if exponent_of(norm) < 2 else 1.0
        factor = 2 if adjacency is Adjacency.REPLACE_ONE else 1
        label = (self.high - self.low) if factor == 2 else max(abs(self.low), abs(self.high))
        return factor * self.radius * stretch + label

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "dim": self.dim,
            "radius": self.radius,
            "low": self.low,
            "high": self.high,
        }


Pair = tuple[Array, Array]
"""A block of vectors (n, d) and labels (n,)."""


@final
@dataclass(frozen=True, slots=True)
class LinearObjective(Objective[Pair]):
    """ℓ(θ; x, y) = φ(x·θ; y) with |φ'| <= slope and 0 <= φ'' <= curvature.

    ∇ℓ = φ'x, so L = slope·radius; ∇²ℓ = φ''xxᵀ has rank 1 and trace at most curvature·radius²; all
    gradients of one record are multiples of x.

    Args:
        scalar: φ, such as `LogisticObjective()`; labels are clipped into its range.
        dim: d.
        radius: ℓ2 bound that each x is clipped to.
    """

    scalar: SmoothObjective
    dim: Count
    radius: Bound = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not callable(getattr(self.scalar, "second", None)):
            raise TypeError(
                f"scalar = {self.scalar!r}: must have a bounded slope and second derivatives, such "
                "as LogisticObjective()"
            )

    @classmethod
    def logistic(cls, dim: int, radius: float = 1.0) -> LinearObjective:
        """Logistic regression, labels in [0, 1]."""
        return cls(LogisticObjective(), dim, radius)

    @classmethod
    def poisson(cls, dim: int, max_rate: float, radius: float = 1.0) -> LinearObjective:
        """Poisson regression with rates and counts up to ``max_rate``."""
        return cls(PoissonObjective(max_rate), dim, radius)

    @classmethod
    def huber(
        cls, dim: int, threshold: float = 1.0, radius: float = 1.0, label_bound: float = 1.0
    ) -> LinearObjective:
        """Robust regression, labels in [−label_bound, label_bound]."""
        return cls(HuberObjective(threshold, label_bound), dim, radius)

    @property
    def domain(self) -> Labelled:
        return Labelled(self.dim, self.radius, *self.scalar.label_range)

    @property
    def gradient_bound(self) -> float:
        return self.scalar.slope * self.radius

    @property
    def trace(self) -> float:
        return self.scalar.curvature * self.radius**2

    @property
    def rank(self) -> int:
        return 1

    @property
    def span(self) -> int:
        return 1

    @property
    def depth(self) -> float:
        return self.scalar.depth

    def scores(self, records: Array, theta: Array) -> tuple[Array, Array, Array]:
        x, y = records[:, :-1], records[:, -1]
        return x, (x * theta).sum(axis=1), y

    def values(self, records: Array, theta: Array) -> Array:
        _, u, y = self.scores(records, theta)
        return self.scalar.value(u, y)

    def gradients(self, records: Array, theta: Array) -> Array:
        x, u, y = self.scores(records, theta)
        return self.scalar.derivative(u, y)[:, None] * x

    def hessians(self, records: Array, theta: Array) -> Array:
        x, u, y = self.scores(records, theta)
        return self.scalar.second(u, y)[:, None, None] * x[:, :, None] * x[:, None, :]

    def hessian_sum(self, records: Array, theta: Array) -> Array:
        x, u, y = self.scores(records, theta)
        return (x * self.scalar.second(u, y)[:, None]).T @ x

    def rounding(self, radius: float) -> float:
        # u is off by (d+1)·unit·radius·‖θ‖, φ' by curvature times that and a few units of its size
        score = (self.dim + 2) * UNIT * self.radius * radius
        size = self.scalar.slope + max(map(abs, self.scalar.label_range))
        return 2 * self.radius * (self.scalar.curvature * score + 16 * UNIT * size)

    def examples(self, rng: np.random.Generator, n: int) -> Array:
        domain = self.domain
        x = (
            rng.standard_normal((n, domain.dim))
            * domain.radius
            * 10.0 ** rng.integers(-2, 3, (n, 1))
        )
        y = rng.uniform(domain.low, domain.high, n)
        y[: n // 2] = rng.choice([domain.low, domain.high], n // 2)
        return domain.clip((x, y))

    def to_dict(self) -> dict[str, Any]:
        numbers = self.scalar.to_dict()
        return {"objective": numbers.pop("kind"), "dim": self.dim, "radius": self.radius, **numbers}
