"""Noise that is a standard variate of one kind, times a scale."""

from __future__ import annotations

from typing import Any, ClassVar

from privlearn.noise.exact.pool import Kind, Pool, Variates, doubles_of
from privlearn.rows.domains import Array
from privlearn.values.validate import Checked


class Scaled(Checked):
    """Base of noise that is a standard variate of one kind, times ``scale``."""

    __slots__ = ()
    kind: ClassVar[Kind]
    scale: float

    @property
    def unit(self) -> float:
        """The scale."""
        return self.scale

    def variates(self, pool: Pool, n: int) -> Variates:
        """Standard ones, that can be refined."""
        return pool.variates(self.kind, n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return doubles_of(pool, self.kind, shape) * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": self.kind, "scale": self.scale}
