"""Gaussian and Laplace noise, on each coordinate by itself."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

from privlearn.losses import LaplaceLoss, Loss, gaussian_loss
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Kind, Pool, Variates, doubles_of, integers_of
from privlearn.noise.scaled import Scaled
from privlearn.rows.domains import Array, Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.validate import Checked, Positive, positive


@final
@dataclass(frozen=True, slots=True)
class GaussianNoise(Checked):
    """N(0, std²) on each coordinate, in the unit of the data."""

    norm: ClassVar[Norm] = "l2"
    independent: ClassVar[bool] = True
    std: Positive

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """A Gaussian loss of mass (sensitivity/std)², rounded up."""
        return gaussian_loss(sensitivity, self.std, adjacency)

    @property
    def unit(self) -> float:
        """The standard deviation."""
        return self.std

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        return integers_of(pool, "normal", shape, bits)

    def variates(self, pool: Pool, n: int) -> Variates:
        """Standard ones, that can be refined."""
        return pool.variates("normal", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return doubles_of(pool, "normal", shape) * self.std

    def variance(self, dim: int) -> float:
        return self.std * self.std

    def reach(self, dim: int) -> float:
        """12 standard deviations, passed with probability 4e-33."""
        return 12 * self.std

    def to_dict(self) -> dict[str, Any]:
        return {"family": "gaussian", "std": self.std}


@final
@dataclass(frozen=True, slots=True)
class LaplaceNoise(Scaled):
    """Laplace noise of the given scale on each coordinate, in the unit of the data."""

    norm: ClassVar[Norm] = "l1"
    independent: ClassVar[bool] = True
    kind: ClassVar[Kind] = "laplace"
    scale: Positive

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """A Laplace loss of ε = sensitivity/scale, rounded up."""
        epsilon = round_up(Fraction(positive(sensitivity=sensitivity)) / Fraction(self.scale))
        return LaplaceLoss(epsilon, adjacency=adjacency)

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        return integers_of(pool, self.kind, shape, bits)

    def variance(self, dim: int) -> float:
        return 2 * self.scale**2

    def reach(self, dim: int) -> float:
        """40 scales, passed with probability 4e-18."""
        return 40 * self.scale
