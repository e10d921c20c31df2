"""Vectors of bounded norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, final

import numpy as np

from privlearn.rows.domains.base import ShippedDomain
from privlearn.rows.domains.clipping import (
    FAR,
    Bound,
    drop,
    radius_in_steps,
    shaped,
    shrunk,
    tiles,
    to_radius,
    with_norms,
)
from privlearn.rows.domains.norms import Array, Norm, exponent_of, norm_name, power
from privlearn.rows.domains.reading import ships
from privlearn.rows.record_forms import Numbers, vectors_of
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import MOST_EXPONENT, Integers, inside
from privlearn.values.json_forms import REAL, WHOLE, Kind
from privlearn.values.validate import Count


@final
@dataclass(frozen=True, slots=True)
class Ball(ShippedDomain):
    """Vectors of length ``size`` with norm at most ``radius``; records are scaled into it.

    ``norm`` is "l1", "l2", "linf", or the exponent q of any ℓq; the numbers 1, 2 and inf become the
    names.  Diameter 2·radius in its own norm, and in ℓp 2·radius·size^{max(0, 1/p − 1/q)}: by
    Hölder's inequality ‖x‖_p <= size^{1/p−1/q}·‖x‖_q for p <= q, attained by a flat vector, and
    ‖x‖_p <= ‖x‖_q for p >= q, attained on an axis.
    """

    kind: ClassVar[str] = "ball"
    radius: Bound
    size: Count
    norm: Annotated[Norm, norm_name] = "l2"

    def clip(self, block: Array) -> Array:
        values = shaped(block, self.record_form())
        if self.norm == "l2" and np.vdot(values, values) < 0.999 * self.radius**2:
            return values  # well inside, all of them together (NaN is not)
        with np.errstate(all="ignore"):
            values, norms = with_norms(values, exponent_of(self.norm))
            return to_radius(values, norms, self.radius)

    def record_form(self) -> Numbers:
        return vectors_of(self.size)

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Scales each row, shape (size,), so that its norm in steps is at most ⌊radius/step⌋."""
        radius, exponent, aim, step = _bounds(self, grid)
        values = shaped(block, self.record_form())
        if exponent == 2 and values.size <= _FEW:
            few = _few(values, radius, aim, step)
            if few is not None:
                return few
        if exponent == 2 and np.vdot(values, values) < 0.999 * aim**2:  # well inside, all together
            with np.errstate(all="ignore"):  # tiny numbers vanish, of which a warning would tell
                steps = (values * (1.0 / step)).astype(np.int64)
            drop(steps, inside(steps, radius, exponent))
            return steps
        steps = np.empty(values.shape, dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in tiles(values):
                part, norms = with_norms(values[tile], exponent)
                factors = np.minimum(aim / norms, 1.0) / step
                steps[tile] = part * factors[:, None]  # toward zero
                drop(steps[tile], inside(steps[tile], radius, exponent))
        return steps

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """The norm, the domain's own, is at most ``largest``: ⌊radius·(1 − 2⁻⁴²)/step⌋."""
        return {"largest": radius_in_steps(self.radius, grid)}

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        more = 1 / exponent_of(norm) - 1 / exponent_of(self.norm)
        stretch = 1.0 if more <= 0 else power(self.size, more)
        return (2 if adjacency is Adjacency.REPLACE_ONE else 1) * self.radius * stretch

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "radius": self.radius, "size": self.size, "norm": self.norm}


_FEW = 32
"""Numbers that Python shortens in a third of NumPy's time, to the same bits."""


@lru_cache(maxsize=256)
def _bounds(ball: Ball, grid: Grid) -> tuple[int, float, float, float]:
    """Radius in steps, exponent of the norm, length to shorten to, and step."""
    radius, exponent, step = radius_in_steps(ball.radius, grid), exponent_of(ball.norm), grid.step
    if exponent < math.inf:
        exponent = min(exponent, MOST_EXPONENT)
    return radius, exponent, radius * shrunk(ball.size) * step, step


def _few(values: Array, radius: int, aim: float, step: float) -> Integers | None:
    """As `Ball.integers` in ℓ2; None for what has no usable norm, or is not certainly inside."""
    with np.errstate(all="ignore"):
        norms: list[float] = np.sqrt(np.einsum("ij,ij->i", values, values)).tolist()
    if not all([norm <= FAR for norm in norms]):  # NaN is not
        return None
    factors = [(aim / norm if norm > aim else 1.0) / step for norm in norms]
    rows = [
        [int(x * factor) for x in row] for row, factor in zip(values.tolist(), factors, strict=True)
    ]
    if any([sum([x * x for x in row]) > radius * radius for row in rows]):
        return None
    return np.array(rows, dtype=np.int64).reshape(values.shape)


_NORM: Kind = (str, int, float)
ships(
    Ball,
    {"radius": REAL, "size": WHOLE, "norm": _NORM},
    lambda data: Ball(data["radius"], data["size"], data["norm"]),
)
