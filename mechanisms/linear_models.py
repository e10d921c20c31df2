"""Generalised linear models as objectives: logistic, Poisson with a bounded rate, Huber."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, cast, final

import numpy as np

from privlearn._validate import Count, check_fields, positive
from privlearn.adjacency import Adjacency
from privlearn.domains import Array, Bound, Norm, _to_radius, exponent_of
from privlearn.mechanisms.objectives import UNIT, Objective


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
        x, y = (np.asarray(part, dtype=np.float64) for part in block)
        if x.ndim != 2 or x.shape[1] != self.dim or y.shape != x.shape[:1]:
            raise ValueError(
                f"records of shapes {x.shape}, {y.shape}: must be (n, {self.dim}), (n,)"
            )
        good = np.isfinite(x).all(axis=1) & np.isfinite(y)
        x = np.where(good[:, None], x, 0.0)
        with np.errstate(over="ignore"):  # a norm of inf scales its row to 0
            norms = np.linalg.norm(x, axis=1)
        labels = np.clip(np.where(good, y, 0.0), self.low, self.high)
        return np.concatenate([_to_radius(x, norms, self.radius), labels[:, None]], axis=1)

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


class _Linear(Objective[Pair]):
    """ℓ(θ; x, y) = f(x·θ; y) with |f′| <= slope and 0 <= f″ <= curvature.

    ∇ℓ = f′x, so L = slope·radius; ∇²ℓ = f″xxᵀ has rank 1 and trace at most curvature·radius²; all
    gradients of one record are multiples of x.
    """

    @property
    @abstractmethod
    def slope(self) -> float: ...
    @property
    @abstractmethod
    def curvature(self) -> float: ...
    @abstractmethod
    def _value(self, u: Array, y: Array) -> Array: ...
    @abstractmethod
    def _first(self, u: Array, y: Array) -> Array: ...
    @abstractmethod
    def _second(self, u: Array, y: Array) -> Array: ...

    @property
    @abstractmethod
    def domain(self) -> Labelled: ...

    @property
    def gradient_bound(self) -> float:
        return self.slope * self.domain.radius

    @property
    def trace(self) -> float:
        return self.curvature * self.domain.radius**2

    @property
    def rank(self) -> int:
        return 1

    @property
    def span(self) -> int:
        return 1

    def _scores(self, records: Array, theta: Array) -> tuple[Array, Array, Array]:
        x, y = records[:, :-1], records[:, -1]
        return x, (x * theta).sum(axis=1), y

    def values(self, records: Array, theta: Array) -> Array:
        _, u, y = self._scores(records, theta)
        return self._value(u, y)

    def gradients(self, records: Array, theta: Array) -> Array:
        x, u, y = self._scores(records, theta)
        return self._first(u, y)[:, None] * x

    def hessians(self, records: Array, theta: Array) -> Array:
        x, u, y = self._scores(records, theta)
        return self._second(u, y)[:, None, None] * x[:, :, None] * x[:, None, :]

    def hessian_sum(self, records: Array, theta: Array) -> Array:
        x, u, y = self._scores(records, theta)
        return (x * self._second(u, y)[:, None]).T @ x

    def rounding(self, radius: float) -> float:
        # u is off by (d+1)·unit·radius·‖θ‖, f′ by curvature times that and a few units of its size
        reach = self.domain.radius
        score = (self.dim + 2) * UNIT * reach * radius
        size = self.slope + max(abs(self.domain.low), abs(self.domain.high))
        return 2 * reach * (self.curvature * score + 16 * UNIT * size)

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


@final
@dataclass(frozen=True, slots=True)
class Logistic(_Linear):
    """Logistic loss log(1 + e^u) − y·u, u = x·θ, for labels y in [0, 1].

    f′ = σ(u) − y lies in [−1, 1] and f″ = σ(u)σ(−u) in [0, 1/4].

    Args:
        dim: d.
        radius: ℓ2 bound that each x is clipped to.
    """

    dim: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        _ = self.domain

    @property
    def slope(self) -> float:
        return 1.0

    @property
    def curvature(self) -> float:
        return 0.25

    @property
    def domain(self) -> Labelled:
        return Labelled(self.dim, self.radius, 0.0, 1.0)

    @property
    def depth(self) -> float:
        """No loss is negative."""
        return math.log(2)

    def _value(self, u: Array, y: Array) -> Array:
        return cast(Array, np.logaddexp(0.0, u) - y * u)

    def _first(self, u: Array, y: Array) -> Array:
        return _sigmoid(u) - y

    def _second(self, u: Array, y: Array) -> Array:
        return _sigmoid(u) * _sigmoid(-u)

    def to_dict(self) -> dict[str, Any]:
        return {"objective": "logistic", "dim": self.dim, "radius": self.radius}


def _sigmoid(u: Array) -> Array:
    return cast(Array, np.exp(-np.logaddexp(0.0, -u)))


@final
@dataclass(frozen=True, slots=True)
class Poisson(_Linear):
    """Poisson loss φ(u) − y·u, u = x·θ, for counts y in [0, max_rate] and rates up to ``max_rate``.

    φ(u) = e^u below u = log(max_rate) and goes on along its tangent: convex, C^{1,1}, with
    φ′ = φ″ = min(e^u, max_rate), so |f′| <= max_rate and f″ <= max_rate.

    Args:
        dim: d.
        max_rate: largest rate (events per record), and the bound that counts are clipped to.
        radius: ℓ2 bound that each x is clipped to.
    """

    dim: int
    max_rate: float
    radius: float = 1.0

    def __post_init__(self) -> None:
        positive(max_rate=self.max_rate)
        _ = self.domain

    @property
    def slope(self) -> float:
        return self.max_rate

    @property
    def curvature(self) -> float:
        return self.max_rate

    @property
    def domain(self) -> Labelled:
        return Labelled(self.dim, self.radius, 0.0, self.max_rate)

    @property
    def depth(self) -> float:
        """φ(0) − y + y·log y, convex in y, is largest at 0 or ``max_rate``."""
        most = self.max_rate
        start = 1.0 if most >= 1 else most * (1 - math.log(most))
        return start + max(0.0, most * math.log(most) - most)

    def _value(self, u: Array, y: Array) -> Array:
        rate = self._rate(u)
        return cast(Array, rate * (1 + np.maximum(u - math.log(self.max_rate), 0.0)) - y * u)

    def _first(self, u: Array, y: Array) -> Array:
        return self._rate(u) - y

    def _second(self, u: Array, y: Array) -> Array:
        return np.where(u > math.log(self.max_rate), 0.0, self._rate(u))

    def _rate(self, u: Array) -> Array:
        return cast(Array, np.exp(np.minimum(u, math.log(self.max_rate))))

    def to_dict(self) -> dict[str, Any]:
        return {
            "objective": "poisson",
            "dim": self.dim,
            "max_rate": self.max_rate,
            "radius": self.radius,
        }


@final
@dataclass(frozen=True, slots=True)
class Huber(_Linear):
    """Huber's loss of the residual y − x·θ: quadratic up to ``threshold``, linear beyond.

    |f′| <= threshold and f″ is 0 or 1; f is C^{1,1}.

    Args:
        dim: d.
        threshold: largest slope, unit of y.
        radius: ℓ2 bound that each x is clipped to.
        label_bound: y is clipped to [−label_bound, label_bound].
    """

    dim: int
    threshold: float = 1.0
    radius: float = 1.0
    label_bound: float = 1.0

    def __post_init__(self) -> None:
        positive(threshold=self.threshold)
        positive(label_bound=self.label_bound)
        _ = self.domain

    @property
    def slope(self) -> float:
        return self.threshold

    @property
    def curvature(self) -> float:
        return 1.0

    @property
    def domain(self) -> Labelled:
        return Labelled(self.dim, self.radius, -self.label_bound, self.label_bound)

    @property
    def depth(self) -> float:
        """The largest loss at θ = 0; no loss is negative."""
        reach = min(self.label_bound, self.threshold)
        return reach * (self.label_bound - reach / 2)

    def _value(self, u: Array, y: Array) -> Array:
        size = np.abs(y - u)
        c = self.threshold
        return np.where(size <= c, size**2 / 2, c * (size - c / 2))

    def _first(self, u: Array, y: Array) -> Array:
        return np.clip(u - y, -self.threshold, self.threshold)

    def _second(self, u: Array, y: Array) -> Array:
        return np.where(np.abs(u - y) <= self.threshold, 1.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "objective": "huber",
            "dim": self.dim,
            "threshold": self.threshold,
            "radius": self.radius,
            "label_bound": self.label_bound,
        }
