"""Blocks of standard noise from a pool: in integers, and in doubles."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Pool
from privlearn.noise.exact.tables import FLOOR_BITS
from privlearn.noise.exact.variates import STEP, Kind, Variates
from privlearn.rows.domains import Array
from privlearn.values.validate import Checked


def integers_of(pool: Pool, kind: Kind, shape: tuple[int, ...], bits: int) -> Floors:
    """⌊2^bits·Z⌋, exactly; bits <= 40."""
    found = pool.floors(kind, math.prod(shape)).reshape(shape)
    return found if bits == FLOOR_BITS else found >> (FLOOR_BITS - bits)


def doubles_of(pool: Pool, kind: Kind, shape: tuple[int, ...]) -> Array:
    """The middles of steps of 2^−40."""
    return np.asarray((pool.floors(kind, math.prod(shape)).reshape(shape) + 0.5) * STEP)


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
