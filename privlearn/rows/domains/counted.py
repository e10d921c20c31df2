"""Vectors, and how many of them there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains.balls import Ball
from privlearn.rows.domains.base import ShippedDomain
from privlearn.rows.domains.boxes import Box
from privlearn.rows.domains.clipping import Number, floor_in_steps, shaped
from privlearn.rows.domains.norms import Array, Norm, exponent_of
from privlearn.rows.domains.reading import domain_from_dict, ships
from privlearn.rows.record_forms import Numbers
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_down, float_up
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers
from privlearn.values.json_forms import OBJECT, REAL
from privlearn.values.validate import check_fields, positive


@final
@dataclass(frozen=True, slots=True)
class Counted(ShippedDomain):
    """Pairs (x, 1) of a vector of ``inner`` and a one that counts it; the null pair is (0, 0).

    A sum over them is (Σx, number of records), so that a mean is a quotient of two released
    numbers, and a record that is missing moves neither.  In a contribution the one stands as
    ``unit``, which sets how exactly records are counted: by noise of std σ, to σ/unit.

    Two pairs differ by (x − x′, 0) or, where one is null, by (x, unit): in ℓp by at most
    max(D, (R^p + unit^p)^{1/p}), for the diameter D of ``inner`` and R the largest ‖x‖_p; both are
    attained.  Under zero-out and add-remove it is the second.  So with unit^p = D^p − R^p the count
    is free under replace-one, where the ball around all pairs has diameter 2·(R^p + unit^p)^{1/p}.

    Args:
        inner: a ball, or a box around 0.  Subtract the middle of the bounds from data in [a, b].
        unit: what stands for the one; by default the largest that costs nothing under replace-one,
            with Gaussian noise: √3·radius for a ball in ℓ2.

    Raises:
        ValueError: a box that does not hold 0, or lies so that no count is free; a unit that is not
            positive.
        TypeError: another domain.
    """

    kind: ClassVar[str] = "counted"
    inner: Ball | Box
    unit: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.inner, Ball | Box):
            raise TypeError(f"inner = {self.inner!r}: must be a Ball or a Box")
        if self.inner.null().any():
            raise ValueError(
                f"inner = {self.inner!r}: must hold 0; subtract the middle of the bounds from the "
                "data, and count within Box(-half, half, size)"
            )
        unit = _free_unit(self.inner) if self.unit is None else positive(unit=self.unit)
        object.__setattr__(self, "unit", unit)

    @property
    def size(self) -> int:
        return self.inner.size + 1

    @property
    def _unit(self) -> float:
        assert self.unit is not None  # since `__post_init__`
        return self.unit

    def record_form(self) -> Numbers:
        return self.inner.record_form()

    def clip(self, block: Array) -> Array:
        """Of rows of shape (inner.size,): clipped, and behind them the unit; zeros if missing."""
        return _paired(self.inner.clip(block), block, self._unit)

    def integers(self, block: Array, grid: Grid) -> Integers:
        """In steps, as `clip`; the unit is rounded down."""
        return _paired(self.inner.integers(block, grid), block, _unit_in_steps(self, grid))

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """That of ``inner``, and the ``unit``."""
        inner, unit = self.inner.integer_bound(grid), _unit_in_steps(self, grid)
        return {**inner, "largest": max(inner["largest"], unit), "unit": unit}

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        missing = _joint(self.inner.sensitivity(Adjacency.ZERO_OUT, norm), self._unit, norm)
        if adjacency is Adjacency.REPLACE_ONE:
            return max(missing, self.inner.sensitivity(adjacency, norm))
        return missing

    def decode(self, total: Array) -> Array:
        """(Σx, number of records), shape (..., size)."""
        return np.concatenate([total[..., :-1], total[..., -1:] / self._unit], axis=-1)

    def encode(self, quantity: Array) -> Array:
        return np.append(quantity[:-1], quantity[-1] * self._unit)

    def mean(self, released: Array) -> Array:
        """The mean of the records that are there, from a released (Σx, number).

        It is put into ``inner``, where the mean without noise lies.  Where the number is not above
        0, noise outweighs the data, and the answer is 0: the middle.

        Args:
            released: shape (..., size), such as the value of a `NoisySum`.

        Returns:
            shape (..., inner.size); not a further release.

        Raises:
            ValueError: another shape.
        """
        values = np.asarray(released, dtype=np.float64)
        if values.shape[-1:] != (self.size,):
            raise ValueError(f"released of shape {values.shape}: must end in {self.size}")
        sums, counts = values[..., :-1], values[..., -1:]
        means = np.where(counts > 0, sums / np.where(counts > 0, counts, 1.0), 0.0)
        return self.inner.clip(means.reshape(-1, self.inner.size)).reshape(sums.shape)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "inner": self.inner.to_dict(), "unit": self.unit}


def _paired(vectors: NDArray[Number], block: Array, unit: float) -> NDArray[Number]:
    """The vectors with the unit behind those of usable records, the others zero."""
    there = np.isfinite(shaped(block, Numbers(vectors.shape[1:]))).all(axis=1)
    pairs = np.zeros((len(vectors), vectors.shape[1] + 1), vectors.dtype)
    pairs[there, :-1], pairs[there, -1] = vectors[there], unit
    return pairs


@lru_cache(maxsize=256)
def _unit_in_steps(domain: Counted, grid: Grid) -> int:
    return floor_in_steps(Fraction(domain._unit), grid, unit=domain._unit)


def _free_unit(inner: Ball | Box) -> float:
    """The largest unit that leaves the ℓ2 diameter as it is, rounded down."""
    across, out = (
        Fraction(inner.sensitivity(adjacency))
        for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
    )
    if across <= out:
        raise ValueError(
            f"inner = {inner!r}: has 0 at its edge, so that every count costs something; state a "
            "unit, or subtract the middle of the bounds from the data"
        )
    unit = math.sqrt(float_down(across**2 - out**2))
    while _joint(float(out), unit, "l2") > across:
        unit = math.nextafter(unit, 0.0)
    return unit


def _joint(one: float, other: float, norm: Norm) -> float:
    """‖(one, other)‖_p, rounded up."""
    p = exponent_of(norm)
    if p == math.inf:
        return max(one, other)
    if p == 1:
        return float_up(Fraction(one) + Fraction(other))
    top = max(one, other)
    if p == 2:
        found, square = math.hypot(one, other), Fraction(one) ** 2 + Fraction(other) ** 2
        while Fraction(found) ** 2 < square:
            found = math.nextafter(found, math.inf)
        return found
    return top * math.pow(math.pow(one / top, p) + math.pow(other / top, p), 1 / p) * (1 + 2.0**-46)


def _read(data: Mapping[str, Any]) -> Counted:
    inner = domain_from_dict(data["inner"])
    if not isinstance(inner, Ball | Box):
        raise ValueError(f"inner = {data['inner']!r}: must be a ball or a box")
    return Counted(inner, data["unit"])


ships(Counted, {"inner": OBJECT, "unit": REAL}, _read)
