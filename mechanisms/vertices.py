"""Finite sets of points to choose from: explicit ones, and structured ones that are never listed.

A set is asked for the scores ⟨g, v⟩ of all its points, in a fixed order, and for its diameter: the
score differences of two points move by ⟨Δ, v − v′⟩ <= ‖Δ‖_p·‖v − v′‖_q (1/p + 1/q = 1) when g moves
by Δ, which is what a choice costs (`ReportNoisyMax`).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array, Bound, Norm, exponent_of
from privlearn.values.validate import AtLeastTwo, Checked, Count, assign

_PAIRS_AT_ONCE = 2**22  # Numbers in a block of differences when a diameter is computed
_UP = 1 + 1e-12  # Covers the rounding of a computed distance


class Vertices(Protocol):
    """Points v₀, v₁, … in R^dim."""

    @property
    def dim(self) -> int:
        """Length of a point."""

    @property
    def count(self) -> int:
        """How many points there are, at least 2."""

    @property
    def longest(self) -> float:
        """The largest ℓ1 norm of a point, or a little more; in [1e-100, 1e200]."""

    def scores(self, direction: Array) -> Array:
        """⟨direction, v⟩ for every point; shape (..., dim) to (..., count).

        By products and sums of doubles, in any order: `NoisyScores` bounds their rounding.
        """

    def points(self, indices: NDArray[np.int64]) -> Array:
        """The points of these indices; shape (...) to (..., dim)."""

    def diameter(self, norm: Norm = "l1") -> float:
        """The largest distance of two points."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form; enough to recognise the set."""


def check_vertices(vertices: object) -> None:
    """Raises TypeError for what is no set of points."""
    if not all(hasattr(vertices, name) for name in ("dim", "count", "scores", "diameter")):
        raise TypeError(
            f"vertices: must be a set of points to choose from, not {type(vertices).__name__}: "
            "SimplexVertices(k) for which of k totals is the largest, or ExplicitVertices(array) "
            "for points of your own, one in each row"
        )


@final
@dataclass(frozen=True, slots=True)
class CrossPolytope(Checked):
    """The 2·dim points ±radius·e_j; j in 0..dim−1 is +radius·e_j, dim + j is −radius·e_j.

    Diameter 2·radius in every ℓp, between e_j and −e_j (others are 2^{1/p}·radius apart).
    """

    kind: ClassVar[str] = "cross-polytope"
    dim: Count
    radius: Bound = 1.0

    @property
    def count(self) -> int:
        return 2 * self.dim

    @property
    def longest(self) -> float:
        return self.radius

    def scores(self, direction: Array) -> Array:
        scaled = self.radius * np.asarray(direction, dtype=np.float64)
        return np.concatenate([scaled, -scaled], axis=-1)

    def points(self, indices: NDArray[np.int64]) -> Array:
        chosen = _indices(indices, self.count)
        found = np.zeros((*chosen.shape, self.dim))
        sizes = np.where(chosen < self.dim, self.radius, -self.radius)
        np.put_along_axis(found, (chosen % self.dim)[..., None], sizes[..., None], axis=-1)
        return found

    def diameter(self, norm: Norm = "l1") -> float:
        exponent_of(norm)
        return 2 * self.radius

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dim": self.dim, "radius": self.radius}


@final
@dataclass(frozen=True, slots=True)
class SimplexVertices(Checked):
    """The dim >= 2 points radius·e_j; any two of them are 2^{1/p}·radius apart in ℓp."""

    kind: ClassVar[str] = "simplex"
    dim: AtLeastTwo
    radius: Bound = 1.0

    @property
    def count(self) -> int:
        return self.dim

    @property
    def longest(self) -> float:
        return self.radius

    def scores(self, direction: Array) -> Array:
        return self.radius * np.asarray(direction, dtype=np.float64)

    def points(self, indices: NDArray[np.int64]) -> Array:
        chosen = _indices(indices, self.count)
        found = np.zeros((*chosen.shape, self.dim))
        np.put_along_axis(found, chosen[..., None], self.radius, axis=-1)
        return found

    def diameter(self, norm: Norm = "l1") -> float:
        p = exponent_of(norm)
        return 2 * self.radius if p == 1 else float(self.radius * 2 ** (1 / p)) * _UP

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dim": self.dim, "radius": self.radius}


@final
class ExplicitVertices:
    """Points given one by one.

    Args:
        points: shape (count, dim), finite, count >= 2, not all the same; copied.

    Raises:
        ValueError: another shape, a number that is not finite, or nothing to choose from.
    """

    kind: ClassVar[str] = "explicit"
    __slots__ = ("_diameters", "_longest", "_points", "_sha256")

    def __init__(self, points: Array) -> None:
        array = np.array(points, dtype=np.float64, order="C") + 0.0  # −0.0 and 0.0 are one point
        if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 1:
            raise ValueError(f"points of shape {array.shape}: must be (count >= 2, dim >= 1)")
        if not np.isfinite(array).all():
            raise ValueError("points: must be finite; an unbounded polytope has no such vertices")
        if not np.abs(array).max() <= 1e100:
            raise ValueError("points: must be at most 1e100 in every coordinate")
        if (array == array[0]).all():
            raise ValueError("points: all are the same, so there is nothing to choose")
        longest = float(np.abs(array).sum(axis=1).max()) * _UP
        if longest < 1e-100:
            raise ValueError("points: one must have an l1 norm of 1e-100 or more")
        array.setflags(write=False)
        head = f"{array.shape}".encode()
        digest = hashlib.sha256(head + array.tobytes()).hexdigest()
        assign(self, _points=array, _sha256=digest, _diameters={}, _longest=longest)

    @property
    def dim(self) -> int:
        return int(self._points.shape[1])

    @property
    def count(self) -> int:
        return int(self._points.shape[0])

    @property
    def longest(self) -> float:
        return self._longest

    def scores(self, direction: Array) -> Array:
        return np.asarray(np.asarray(direction, dtype=np.float64) @ self._points.T)

    def points(self, indices: NDArray[np.int64]) -> Array:
        return np.asarray(self._points[_indices(indices, self.count)])

    def diameter(self, norm: Norm = "l1") -> float:
        """The largest distance of two points; computed once, in O(count²·dim)."""
        p = exponent_of(norm)
        if p not in self._diameters:
            self._diameters[p] = self._farthest(p) * _UP
        return self._diameters[p]

    def _farthest(self, p: float) -> float:
        step, most = max(_PAIRS_AT_ONCE // self._points.size, 1), 0.0
        # in units of the longest difference: of differences themselves, which keep their digits
        # where points lie far from 0, and have powers that vanish only beside 1
        points, largest = self._points, np.ptp(self._points, axis=0).max()
        for first in range(0, self.count, step):
            apart = np.abs(points[first : first + step, None] - points[None, first:]) / largest
            powers = apart.max(axis=-1) if math.isinf(p) else np.power(apart, p).sum(axis=-1)
            most = max(most, float(powers.max()))
        return float(largest * (most if math.isinf(p) else most ** (1 / p)))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "dim": self.dim, "sha256": self._sha256}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"vertices are fixed: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExplicitVertices) and self._sha256 == other._sha256

    def __hash__(self) -> int:
        return hash(self._sha256)

    def __repr__(self) -> str:
        return f"ExplicitVertices({self.count} points in R^{self.dim})"

    _points: Array
    _sha256: str
    _diameters: dict[float, float]
    _longest: float


def _indices(indices: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    chosen = np.asarray(indices)
    if chosen.dtype.kind not in "iu" or (chosen < 0).any() or (chosen >= count).any():
        raise ValueError(f"indices = {chosen!r}: must be integers in 0..{count - 1}")
    return chosen.astype(np.int64)
