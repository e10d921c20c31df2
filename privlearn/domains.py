"""Public sets that bound what one user can contribute; clipping lives here and nowhere else.

A domain turns a block of records into vectors that provably lie in the set, whatever comes in: a
record with NaN, infinity or a wrong shape becomes the null value ``clip(0)``.  `sensitivity` is
then the largest distance, in ℓ2 or ℓ1, between two contributions (replace-one) or between a
contribution and the null value (zero-out, add-remove).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn._validate import count, finite, positive
from privlearn.adjacency import Adjacency
from privlearn.budgets import float_up

Array = NDArray[np.float64]
Norm = Literal["l1", "l2", "linf"]
X_contra = TypeVar("X_contra", contravariant=True)

_SHRINK = 1 - 1e-12
"""Clipped values stay inside by this factor, which covers the rounding of norm and product."""


class Domain(Protocol[X_contra]):
    """A public set of vectors of length ``size`` and how records get into it."""

    @property
    def size(self) -> int:
        """Length of a contribution."""

    def clip(self, block: X_contra) -> Array:
        """Contributions, shape (n, size), every row inside the set."""

    def null(self) -> Array:
        """The null contribution, shape (size,)."""

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        """Largest change of a sum when one user changes."""

    def decode(self, total: Array) -> Array:
        """Gives a vector of shape (..., size) the shape of the quantity it stands for."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


def _rows_of(block: object, shape: tuple[int | None, ...]) -> Array:
    """The block as floats, with unusable rows set to 0.

    Raises:
        ValueError: the whole block has a shape other than (n, *shape).
    """
    if isinstance(block, tuple | list):
        raise TypeError("rows of several arrays: map them to one array first")
    values = np.asarray(block, dtype=np.float64)
    fits = values.ndim == len(shape) + 1 and all(
        want is None or have == want for want, have in zip(shape, values.shape[1:], strict=True)
    )
    if not fits:
        raise ValueError(f"rows of shape {values.shape[1:]} where {shape} is required")
    usable = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return np.where(usable.reshape(-1, *(1,) * len(shape)), values, 0.0)


def _to_radius(values: Array, norms: Array, radius: float) -> Array:
    limit = radius * _SHRINK
    outside = norms > limit
    scale = np.where(outside, limit / np.where(outside, norms, limit), 1.0)
    # Subnormal factors have few digits, so rows that are far too long become 0.
    return np.asarray(values * np.where(scale < 1e-290, 0.0, scale)[:, None])


def _bound(**named: float) -> float:
    """Checks a radius: squares of the numbers beside it must neither overflow nor vanish."""
    number = positive(**named)
    if not 1e-100 <= number <= 1e100:
        ((name, value),) = named.items()
        raise ValueError(f"{name} = {value!r}: must lie in [1e-100, 1e100]")
    return number


class _Diameter(ABC):
    """The usual name of the replace-one sensitivity."""

    __slots__ = ()

    @abstractmethod
    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        """Largest change of a sum when one user changes."""

    def diameter(self, norm: Norm = "l2") -> float:
        """Largest distance between two members."""
        return self.sensitivity(Adjacency.REPLACE_ONE, norm)


@final
@dataclass(frozen=True, slots=True)
class Ball(_Diameter):
    """Vectors of length ``size`` with norm at most ``radius``; records are scaled into it.

    Diameter 2·radius in its own norm.  In ℓ2: 2·radius for an ℓ1 or ℓ2 ball, 2·radius·√size for
    ℓ∞.  In ℓ1: 2·radius for ℓ1, 2·radius·√size for ℓ2, 2·radius·size for ℓ∞.
    """

    kind: ClassVar[str] = "ball"
    radius: float
    size: int
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", _bound(radius=self.radius))
        object.__setattr__(self, "size", count(size=self.size))
        if self.norm not in ("l1", "l2", "linf"):
            raise ValueError(f"norm = {self.norm!r}: must be 'l1', 'l2' or 'linf'")

    def clip(self, block: Array) -> Array:
        """Scales each row, shape (size,), to norm <= radius."""
        values = _rows_of(block, (self.size,))
        order = {"l1": 1, "l2": 2, "linf": np.inf}[self.norm]
        with np.errstate(over="ignore"):  # a norm of inf scales its row to 0
            norms = np.linalg.norm(values, ord=order, axis=1)
        return _to_radius(values, norms, self.radius)

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        stretch = {
            ("l1", "l1"): 1.0,
            ("l1", "l2"): 1.0,
            ("l2", "l2"): 1.0,
            ("l2", "l1"): math.sqrt(self.size),
            ("linf", "l2"): math.sqrt(self.size),
            ("linf", "l1"): float(self.size),
        }.get((self.norm, norm), 1.0)
        return (2 if adjacency is Adjacency.REPLACE_ONE else 1) * self.radius * stretch

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "radius": self.radius, "size": self.size, "norm": self.norm}


@final
@dataclass(frozen=True, slots=True)
class Box(_Diameter):
    """Vectors of length ``size`` with every entry in [low, high]; entries are clamped."""

    kind: ClassVar[str] = "box"
    low: float
    high: float
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", count(size=self.size))
        object.__setattr__(self, "low", finite(low=self.low))
        object.__setattr__(self, "high", finite(high=self.high))
        if self.low >= self.high:
            raise ValueError(f"low = {self.low!r}, high = {self.high!r}: low must be below high")
        if max(abs(self.low), abs(self.high)) > 1e3 * _bound(width=self.high - self.low):
            raise ValueError(
                f"low = {self.low!r}, high = {self.high!r}: lie far from 0 for their distance, so "
                "that sums would lose the digits that matter; subtract a public constant first"
            )

    def clip(self, block: Array) -> Array:
        """Clamps each entry of each row, shape (size,)."""
        values = _rows_of(block, (self.size,))
        return np.clip(values, self.low, self.high)

    def null(self) -> Array:
        return np.clip(np.zeros(self.size), self.low, self.high)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        low, high = Fraction(self.low), Fraction(self.high)
        if adjacency is Adjacency.REPLACE_ONE:
            width = high - low
        elif adjacency is Adjacency.ADD_REMOVE:
            width = max(abs(low), abs(high))
        else:
            null = min(max(Fraction(0), low), high)
            width = max(high - null, null - low)
        # Exact where it can be, so that a count in [0, 1] costs exactly what it should.
        root = math.isqrt(self.size)
        if norm == "l2" and root * root != self.size:
            return float_up(width) * math.sqrt(self.size) * (1 + 1e-15)
        return float_up(width * {"l1": self.size, "l2": root, "linf": 1}[norm])

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "low": self.low, "high": self.high, "size": self.size}


Layout = Literal["svec", "triangle"]


@lru_cache(maxsize=32)
def _upper(dim: int, layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Row and column of each coordinate, and its weight (in svec, √2 off the diagonal)."""
    rows, columns = np.triu_indices(dim)
    return rows, columns, np.where((rows == columns) | (layout == "triangle"), 1.0, math.sqrt(2))


@final
@dataclass(frozen=True, slots=True)
class PSDTrace(_Diameter):
    """Symmetric positive semidefinite dim × dim matrices with trace at most ``trace``.

    Takes factors X of shape (m, dim) with any m, scales them to ‖X‖_F² <= trace and forms XᵀX, so
    that nothing but a matrix of the set can come out.  A contribution is the matrix in *svec* form
    (upper triangle, off-diagonal entries times √2), whose ℓ2 norm is the Frobenius norm; equal
    noise on svec entries is half the variance off the diagonal.

    Replace-one diameter √2·trace: for A, B in the set ‖A−B‖_F² = ‖A‖²+‖B‖²−2⟨A,B⟩ and ⟨A,B⟩ >= 0,
    so it is at most (tr A)² + (tr B)² <= 2·trace²; attained by trace·e₁e₁ᵀ and trace·e₂e₂ᵀ.
    The published √(2·trace) for sums of unit vectors (Cho & Sun, Lemma S5) is wrong.

    With ``layout="triangle"`` the entries of the upper triangle stand as they are: equal noise is
    then as large off the diagonal as on it, which costs the same (that pair differs on the diagonal
    only) and is worse; published mechanisms do it.
    """

    kind: ClassVar[str] = "psd-trace"
    trace: float
    dim: int
    layout: Layout = "svec"

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", _bound(trace=self.trace))
        object.__setattr__(self, "dim", count(dim=self.dim))
        if self.layout not in ("svec", "triangle"):
            raise ValueError(f"layout = {self.layout!r}: must be 'svec' or 'triangle'")

    @property
    def size(self) -> int:
        return self.dim * (self.dim + 1) // 2

    def clip(self, block: Array) -> Array:
        """Turns factors, shape (n, m, dim), into svec rows of trace <= ``trace``."""
        factors = _rows_of(block, (None, self.dim))
        n = len(factors)
        flat = factors.reshape(n, -1)
        with np.errstate(over="ignore"):  # as in Ball
            norms = np.sqrt(np.einsum("ij,ij->i", flat, flat))
        scaled = _to_radius(flat, norms, math.sqrt(self.trace)).reshape(factors.shape)
        rows, columns, weights = _upper(self.dim, self.layout)
        matrices = np.matmul(scaled.transpose(0, 2, 1), scaled)
        return cast(Array, matrices[:, rows, columns] * weights)

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        frobenius = self.trace * (math.sqrt(2) if adjacency is Adjacency.REPLACE_ONE else 1.0)
        stretch = math.sqrt(self.size) if norm == "l1" else 1.0
        return frobenius * stretch

    def decode(self, total: Array) -> Array:
        """Turns svec vectors, shape (..., size), into symmetric matrices (..., dim, dim)."""
        rows, columns, weights = _upper(self.dim, self.layout)
        matrix = np.zeros((*np.shape(total)[:-1], self.dim, self.dim))
        values = np.asarray(total) / weights
        matrix[..., rows, columns] = values
        matrix[..., columns, rows] = values
        return matrix

    def to_dict(self) -> dict[str, Any]:
        form = {} if self.layout == "svec" else {"layout": self.layout}
        return {"kind": self.kind, "trace": self.trace, "dim": self.dim, **form}


_READERS: dict[str, Callable[[Mapping[str, Any]], Domain[Any]]] = {
    "ball": lambda data: Ball(data["radius"], data["size"], data["norm"]),
    "box": lambda data: Box(data["low"], data["high"], data["size"]),
    "psd-trace": lambda data: PSDTrace(data["trace"], data["dim"], data.get("layout", "svec")),
}


def domain_from_dict(data: Mapping[str, Any]) -> Domain[Any] | None:
    """Rebuilds a shipped domain from its JSON form; None for a domain that only its author knows.

    Raises:
        ValueError: a shipped kind with bad numbers.
    """
    read = _READERS.get(str(data.get("kind")))
    try:
        return None if read is None else read(data)
    except KeyError as missing:
        raise ValueError(f"{data.get('kind')} domain lacks {missing}") from None
