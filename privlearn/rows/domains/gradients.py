"""Gradients and Hessians of generalized linear models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np

from privlearn.rows.domains.base import ShippedDomain
from privlearn.rows.domains.clipping import (
    WITHIN,
    Bound,
    drop,
    floor_in_steps,
    row_norms,
    shaped,
    shrunk,
    tiles,
    to_radius,
    usable_rows,
    with_norms,
)
from privlearn.rows.domains.matrices import svec_places
from privlearn.rows.domains.norms import Array, Norm, exponent_of, power
from privlearn.rows.domains.reading import ships
from privlearn.rows.record_forms import Numbers
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_down
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers, inside
from privlearn.values.json_forms import REAL, WHOLE
from privlearn.values.validate import Count


@final
@dataclass(frozen=True, slots=True)
class GradientHessian(ShippedDomain):
    """Gradient s·x and Hessian h·xxᵀ of a generalized linear model, together.

    A record is an array of shape (m, dim + 2) with any m: one line (x, s, h) for one row of data,
    of features x, score s (a residual over its bound) and curvature h (over its bound).  Each line
    is clipped by itself, which keeps directions: x is scaled to ‖x‖ <= 1, s clipped to [−1, 1], h
    to [0, 1].  A record of several lines is their sum, scaled by min(1, 1/κ), κ = Σ max(|s|·‖x‖,
    h·‖x‖²); a mean of lines has κ <= 1.

    A contribution is Σ s·x and, times ``weight``, Σ h·xxᵀ in svec form (as of `PSDTrace`).
    `decode` gives arrays (dim + 1, dim): row 0 is the gradient, the others are the Hessian, without
    the weight.

    Squared replace-one diameter in ℓ2, with W = weight²: 4 + W (5 for weight 1), reached by one x
    with s = ±1 and h = 1, 0; for W > 1 + 1/√2 and dim > 1 it is 2 + 2W + 1/(2W), reached at |cos| =
    1/(2W).  From the null contribution, 0, the farthest is at √(1 + W); so `OneOf` has the same
    replace-one diameter, but for dim = 1 and W > 2, where it has √(2 + 2W).  Proof: docs/proofs.md,
    "Gradient and Hessian".

    Args:
        dim: d, length of x.
        weight: of the Hessian against the gradient, in the noise: noise of standard deviation σ is
            σ on the gradient, and on the Hessian σ/weight on the diagonal.
    """

    kind: ClassVar[str] = "gradient-hessian"
    dim: Count
    weight: Bound = 1.0

    @property
    def size(self) -> int:
        return self.dim + self.dim * (self.dim + 1) // 2

    def record_form(self) -> Numbers:
        return Numbers((None, self.dim + 2))

    def clip(self, block: Array) -> Array:
        """Of records, shape (n, m, dim + 2): gradients and weighted svec rows, (n, size)."""
        lines = shaped(block, self.record_form())
        with np.errstate(all="ignore"):
            x, s, h = _clipped(lines, self.dim)
            aim = shrunk(lines.shape[1] * (self.dim + 2))
            scale = np.minimum(aim / _sizes(x, s, h), 1.0)[:, None]
            return self._contributions(x, s * scale, h * scale, 1.0)

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Of records, shape (n, m, dim + 2), in steps.

        That κ <= 1, and so the distance of two rows, rests on a check of the clipped lines and on
        the error bound of a matrix product in any order of summation; the ℓ2 norm of a row is
        checked on the integers, too.
        """
        lines = shaped(block, self.record_form())
        count = lines.shape[1]
        largest, unit = _in_steps(self, count, grid)
        step = grid.step
        limit = _certain_size(unit, step, count + self.dim)
        aim = limit * shrunk(count * (self.dim + 2))
        steps = np.empty((len(lines), self.size), dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in tiles(steps):
                x, s, h = _clipped(lines[tile], self.dim)
                scale = np.minimum(aim / _sizes(x, s, h), 1.0)[:, None]
                s *= scale
                h *= scale
                steps[tile] = self._contributions(x, s, h, step)  # toward zero
                held = _sizes(x, s, h) <= limit
                drop(steps[tile], held & inside(steps[tile], largest, 2.0))
        return steps

    def _contributions(self, x: Array, s: Array, h: Array, step: float) -> Array:
        rows, columns, weights = svec_places(self.dim, "svec")
        made = np.empty((len(x), self.size))
        gradients, hessians = made[:, : self.dim], made[:, self.dim :]
        if x.shape[1] == 1:
            single = x[:, 0]
            np.multiply(single, s / step, out=gradients)
            np.multiply(single.take(rows, axis=1), single.take(columns, axis=1), out=hessians)
            hessians *= h
        else:
            sums = np.matmul(
                np.concatenate([s[:, None], (x * h[:, :, None]).transpose(0, 2, 1)], axis=1), x
            )
            np.divide(sums[:, 0], step, out=gradients)
            hessians[:] = sums[:, 1:][:, rows, columns]
        hessians *= weights * (self.weight / step)
        return made

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """The ℓ2 norm is at most ``largest``, and κ of records of <= 4096 lines at most ``unit``.

        Raises:
            ValueError: as for every domain.
        """
        largest, unit = _in_steps(self, 0, grid)
        if unit < 1:
            raise ValueError(
                f"{self!r}: 1 is {floor_in_steps(WITHIN, grid, one=1.0)} steps of {grid!r}, and "
                f"rounding {self.size} entries takes all of them; the scale of the noise is too "
                "large for it"
            )
        return {"largest": largest, "unit": unit}

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        replaced = adjacency is Adjacency.REPLACE_ONE
        far = _diameter(self.weight, self.dim > 1) if replaced else _radius(self.weight)
        return far * power(self.size, max(1 / exponent_of(norm) - 0.5, 0.0))

    def decode(self, total: Array) -> Array:
        """Arrays of shape (..., dim + 1, dim): the gradient, and below it the Hessian."""
        rows, columns, weights = svec_places(self.dim, "svec")
        values = np.asarray(total)
        made = np.empty((*values.shape[:-1], self.dim + 1, self.dim))
        made[..., 0, :] = values[..., : self.dim]
        hessian = values[..., self.dim :] / (weights * self.weight)
        made[..., rows + 1, columns] = hessian
        made[..., columns + 1, rows] = hessian
        return made

    def encode(self, quantity: Array) -> Array:
        rows, columns, weights = svec_places(self.dim, "svec")
        hessian = quantity[rows + 1, columns] * (weights * self.weight)
        return np.concatenate([quantity[0], hessian])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dim": self.dim, "weight": self.weight}


def _clipped(lines: Array, dim: int) -> tuple[Array, Array, Array]:
    """x (n, m, dim), s and h (n, m), each line clipped; zeros where a number is no use."""
    lines = usable_rows(lines)
    n, m = lines.shape[:2]
    x, norms = with_norms(np.ascontiguousarray(lines[:, :, :dim]).reshape(n * m, dim), 2.0)
    x = to_radius(x, norms, 1.0).reshape(n, m, dim)
    return x, np.clip(lines[:, :, dim], -1.0, 1.0), np.clip(lines[:, :, dim + 1], 0.0, 1.0)


def _sizes(x: Array, s: Array, h: Array) -> Array:
    """κ of each record, shape (n,)."""
    norms = row_norms(x.reshape(-1, x.shape[2]), 2.0).reshape(s.shape)
    sizes = np.maximum(np.abs(s), h * norms)
    return np.asarray(np.einsum("ij,ij->i", sizes, norms))


def _root_up(square: Fraction) -> float:
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root


@lru_cache(maxsize=256)
def _diameter(weight: float, several: bool) -> float:
    """In ℓ2, rounded up; ``several`` dimensions, so that features can stand at an angle."""
    w = Fraction(weight) ** 2
    square = 4 + w
    if several and 2 * w**2 >= 1:
        square = max(square, 2 + 2 * w + 1 / (2 * w))
    return _root_up(square)


@lru_cache(maxsize=256)
def _radius(weight: float) -> float:
    """The ℓ2 norm of the longest contribution, rounded up."""
    return _root_up(1 + Fraction(weight) ** 2)


@lru_cache(maxsize=256)
def _in_steps(domain: GradientHessian, count: int, grid: Grid) -> tuple[int, int]:
    """The ℓ2 norm of the integers, and κ of records of ``count`` lines, both in steps.

    An integer row lies within e = √size + 1 + γ·κ·√(1 + W) steps of its contribution, for
    truncation, underflow and rounding; the diameter is at least 2 and at least √(1 + W) times 1, so
    that 2e <= diameter·(√size + 1 + 2γκ).
    """
    norm = _radius(domain.weight)
    largest = floor_in_steps(Fraction(norm) * WITHIN, grid, weight=domain.weight)
    one = floor_in_steps(WITHIN, grid, one=1.0)
    rounding = (max(count, 4096) + domain.size + 8) * Fraction(1, 2**52)
    unit = (one - math.isqrt(domain.size) - 2) / (1 + 2 * rounding)
    return largest, max(math.floor(unit), 0)


@lru_cache(maxsize=256)
def _certain_size(unit: int, step: float, terms: int) -> float:
    """What a κ that is computed in doubles may be, so that it is at most ``unit`` steps."""
    return float_down(unit * Fraction(step) / (1 + (terms + 8) * Fraction(1, 2**52)))


ships(
    GradientHessian,
    {"dim": WHOLE, "weight": REAL},
    lambda data: GradientHessian(data["dim"], data["weight"]),
)
