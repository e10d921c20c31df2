"""Blocks of standard noise from a pool: in integers, and in doubles."""

from __future__ import annotations

import math

import numpy as np

from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Pool
from privlearn.noise.exact.tables import FLOOR_BITS
from privlearn.noise.exact.variates import STEP, Kind
from privlearn.rows.domains import Array


def integers_of(pool: Pool, kind: Kind, shape: tuple[int, ...], bits: int) -> Floors:
    """⌊2^bits·Z⌋, exactly; bits <= 40."""
    found = pool.floors(kind, math.prod(shape)).reshape(shape)
    return found if bits == FLOOR_BITS else found >> (FLOOR_BITS - bits)


def doubles_of(pool: Pool, kind: Kind, shape: tuple[int, ...]) -> Array:
    """The middles of steps of 2^−40."""
    return np.asarray((pool.floors(kind, math.prod(shape)).reshape(shape) + 0.5) * STEP)
