"""Public sets that bound what one user can contribute; clipping lives here and nowhere else.

A domain turns a block of records into vectors that provably lie in the set, whatever comes in: a
record with NaN, infinity or a wrong shape becomes the null value ``clip(0)``.  `sensitivity` is
then the largest distance, in a norm ℓp, between two contributions (replace-one) or between a
contribution and the null value (zero-out, add-remove).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn._json_forms import OBJECT, REAL, TEXT, WHOLE, Form, Kind, check_form, named
from privlearn._validate import AtLeastTwo, Checked, Count, Finite, check_fields, positive
from privlearn.adjacency import Adjacency
from privlearn.exact import float_up

Array = NDArray[np.float64]
Norm = Literal["l1", "l2", "linf"] | float
"""A name, or the exponent p >= 1 of ℓp.  Noise asks in numbers p > 2 only, where an answer for ℓ2
is never too small."""
X = TypeVar("X")
X_contra = TypeVar("X_contra", contravariant=True)

_SHRINK = 1 - 1e-12
"""Clipped values stay inside by this factor, which covers the rounding of norm and product."""


def exponent_of(norm: Norm) -> float:
    """The exponent p of the norm ℓp.

    Raises:
        ValueError: no such norm.
    """
    named = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
    p = named.get(norm, 0.0) if isinstance(norm, str) else float(norm)
    if not p >= 1:
        raise ValueError(f"norm = {norm!r}: must be 'l1', 'l2', 'linf' or an exponent >= 1")
    return p


def _named(*, norm: Norm) -> Norm:
    """The name of a norm, where it has one."""
    names: dict[float, Norm] = {1.0: "l1", 2.0: "l2", math.inf: "linf"}
    p = exponent_of(norm)
    return names.get(p, p)


def _norms(values: Array, p: float) -> Array:
    """The ℓp norms of rows; inf where that is too large for a float."""
    with np.errstate(over="ignore"):
        if p == 2:
            return np.asarray(np.sqrt(np.add.reduce(values * values, axis=1)))
        if p in (1, math.inf):
            return np.asarray(np.linalg.norm(values, ord=p, axis=1))
        # powers of numbers below 1 only: those of small ones vanish, those of large ones overflow
        largest = np.abs(values).max(axis=1)
        scaled = np.abs(values) / np.where(largest > 0, largest, 1.0)[:, None]
        return np.asarray(largest * np.power(np.power(scaled, p).sum(axis=1), 1 / p))


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
    return _usable(_shaped(block, shape))


def _shaped(block: object, shape: tuple[int | None, ...]) -> Array:
    if isinstance(block, tuple | list):
        raise TypeError("rows of several arrays: map them to one array first")
    values = np.asarray(block, dtype=np.float64)
    fits = values.shape[1:] == shape or (
        values.ndim == len(shape) + 1
        and all(want in (None, have) for want, have in zip(shape, values.shape[1:], strict=True))
    )
    if not fits:
        raise ValueError(f"rows of shape {values.shape[1:]} where {shape} is required")
    return values


def _usable(values: Array) -> Array:
    if np.isfinite(values).all():
        return values
    usable = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return np.where(usable.reshape(-1, *(1,) * (values.ndim - 1)), values, 0.0)


def _to_radius(values: Array, norms: Array, radius: float) -> Array:
    limit = radius * _SHRINK
    outside = norms > limit
    if not outside.any():
        return values
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


Bound = Annotated[float, _bound]


class _Diameter(Checked, ABC):
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

    ``norm`` is "l1", "l2", "linf", or the exponent q of any ℓq; the numbers 1, 2 and inf become the
    names.  Diameter 2·radius in its own norm, and in ℓp 2·radius·size^{max(0, 1/p − 1/q)}: by
    Hölder's inequality ‖x‖_p <= size^{1/p−1/q}·‖x‖_q for p <= q, attained by a flat vector, and
    ‖x‖_p <= ‖x‖_q for p >= q, attained on an axis.
    """

    kind: ClassVar[str] = "ball"
    radius: Bound
    size: Count
    norm: Annotated[Norm, _named] = "l2"

    def clip(self, block: Array) -> Array:
        """Scales each row, shape (size,), to norm <= radius."""
        values = _shaped(block, (self.size,))
        if self.norm == "l2" and np.vdot(values, values) < 0.999 * self.radius**2:
            return values  # well inside, all of them together (NaN is not)
        with np.errstate(all="ignore"):
            values = _usable(values)
            norms = _norms(values, exponent_of(self.norm))
            return _to_radius(values, norms, self.radius)

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        more = 1 / exponent_of(norm) - 1 / exponent_of(self.norm)
        stretch = 1.0 if more <= 0 else _power(self.size, more)
        return (2 if adjacency is Adjacency.REPLACE_ONE else 1) * self.radius * stretch

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "radius": self.radius, "size": self.size, "norm": self.norm}


def _power(size: int, exponent: float) -> float:
    return math.sqrt(size) if exponent == 0.5 else float(size**exponent)


@final
@dataclass(frozen=True, slots=True)
class Box(_Diameter):
    """Vectors of length ``size`` with every entry in [low, high]; entries are clamped."""

    kind: ClassVar[str] = "box"
    low: Finite
    high: Finite
    size: Count

    def __post_init__(self) -> None:
        check_fields(self)
        if self.low >= self.high:
            raise ValueError(f"low = {self.low!r}, high = {self.high!r}: low must be below high")
        if max(abs(self.low), abs(self.high)) > 1e3 * _bound(width=self.high - self.low):
            raise ValueError(
                f"low = {self.low!r}, high = {self.high!r}: lie far from 0 for their distance, so "
                "that sums would lose the digits that matter; subtract a public constant first"
            )

    def clip(self, block: Array) -> Array:
        """Clamps each entry of each row, shape (size,)."""
        with np.errstate(all="ignore"):
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
        p = exponent_of(norm)
        whole = {1.0: self.size, math.inf: 1} | ({2.0: root} if root**2 == self.size else {})
        if p not in whole:
            return float_up(width) * _power(self.size, 1 / p) * (1 + 1e-14)
        return float_up(width * whole[p])

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
    trace: Bound
    dim: Count
    layout: Layout = "svec"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.layout not in ("svec", "triangle"):
            raise ValueError(f"layout = {self.layout!r}: must be 'svec' or 'triangle'")

    @property
    def size(self) -> int:
        return self.dim * (self.dim + 1) // 2

    def clip(self, block: Array) -> Array:
        """Turns factors, shape (n, m, dim), into svec rows of trace <= ``trace``."""
        with np.errstate(all="ignore"):
            factors = _rows_of(block, (None, self.dim))
            flat = factors.reshape(len(factors), -1)
            norms = np.sqrt(np.einsum("ij,ij->i", flat, flat))
            scaled = _to_radius(flat, norms, math.sqrt(self.trace)).reshape(factors.shape)
            rows, columns, weights = _upper(self.dim, self.layout)
            matrices = np.matmul(scaled.transpose(0, 2, 1), scaled)
            return cast(Array, matrices[:, rows, columns] * weights)

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        frobenius = self.trace * (math.sqrt(2) if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return frobenius * _power(self.size, max(1 / exponent_of(norm) - 0.5, 0.0))

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


@final
@dataclass(frozen=True, slots=True)
class OneOf(_Diameter, Generic[X]):
    """``arms`` contributions at once, of which at most one is real and the others are null.

    Takes blocks of pairs (records of ``inner``, arms of shape (n,)).  A contribution is a row of
    length arms·inner.size: the record's at its arm's place, null ones elsewhere.  A record whose
    arm is not one of 0, …, arms − 1, or that `inner` cannot use, is null at every arm.

    Two contributions differ at one place, by at most the diameter D of ``inner``, or at two, at
    each by at most R, the largest distance of a contribution from the null one: in ℓp by
    max(D, 2^{1/p}·R).  Squared in ℓ2 that is max(D², 2R²); it is no more than D where the null
    contribution is the centre of a ball.  Attained by two farthest records on one arm, or by the
    one farthest from null on two arms.  Under zero-out it is R: one place.

    Args:
        inner: a shipped domain.
        arms: K >= 2.

    Raises:
        ValueError: fewer than two arms.  TypeError: a domain that only its author can rebuild.
    """

    kind: ClassVar[str] = "one-of"
    inner: Domain[X]
    arms: AtLeastTwo

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.inner, OneOf) or not is_shipped(self.inner):
            raise TypeError(f"inner = {self.inner!r}: must be a shipped domain of one contribution")

    @property
    def size(self) -> int:
        return self.arms * self.inner.size

    def clip(self, block: tuple[X, NDArray[Any]]) -> Array:
        """Rows of length arms·inner.size, in blocks by arm."""
        records, arms = block
        contributions = self.inner.clip(records)
        chosen = np.asarray(arms, dtype=np.float64)
        if chosen.shape != (len(contributions),):
            raise ValueError(f"arms of shape {chosen.shape}: must be ({len(contributions)},)")
        real = np.flatnonzero((chosen >= 0) & (chosen < self.arms) & (chosen == np.floor(chosen)))
        rows = np.tile(self.null(), (len(chosen), 1)).reshape(-1, self.arms, self.inner.size)
        rows[real, chosen[real].astype(np.intp)] = contributions[real]
        return rows.reshape(-1, self.size)

    def null(self) -> Array:
        return np.tile(self.inner.null(), self.arms)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        p, single = exponent_of(norm), self.inner.sensitivity(adjacency, norm)
        if adjacency is Adjacency.REPLACE_ONE:
            moved = self.inner.sensitivity(Adjacency.ZERO_OUT, norm)
            return max(single, moved * (math.sqrt(2) if p == 2 else 2 ** (1 / p)))
        if adjacency is Adjacency.ADD_REMOVE and self.inner.null().any():
            return float(self.arms ** (1 / p)) * single  # the null entries come and go too
        return single

    def decode(self, total: Array) -> Array:
        """Sums by arm, shape (..., arms, *shape of one)."""
        apart = np.reshape(total, (*np.shape(total)[:-1], self.arms, self.inner.size))
        return self.inner.decode(apart)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "arms": self.arms, "inner": self.inner.to_dict()}


@final
@dataclass(frozen=True, slots=True)
class Categories(_Diameter):
    """One of k answers, as a vector of k numbers with a 1 at the answer.

    Takes integers 0..k−1, shape (n,).  The null contribution is 1/k for every answer, the mean of
    all: what randomized response reports where there is no answer.

    Args:
        size: k >= 2.
    """

    kind: ClassVar[str] = "categories"
    size: AtLeastTwo

    def clip(self, block: NDArray[Any]) -> Array:
        """Rows with a 1 at the answer; 1/k everywhere for what is no answer."""
        answers = np.asarray(block, dtype=np.float64)
        if answers.ndim != 1:
            raise ValueError(f"rows of shape {answers.shape[1:]}: answers are single integers")
        with np.errstate(all="ignore"):
            whole = answers == np.floor(answers)
            real = np.flatnonzero((answers >= 0) & (answers < self.size) & whole)
        rows = np.tile(self.null(), (len(answers), 1))
        rows[real] = 0.0
        rows[real, answers[real].astype(np.intp)] = 1.0
        return rows

    def null(self) -> Array:
        return np.full(self.size, 1 / self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        p = exponent_of(norm)
        if adjacency is Adjacency.REPLACE_ONE:
            return math.sqrt(2) if p == 2 else float(2 ** (1 / p))
        if adjacency is Adjacency.ADD_REMOVE:
            return 1.0
        away = 1 - 1 / self.size
        rest = (self.size - 1) * (1 / (self.size * away)) ** p if p < math.inf else 0.0
        return away * float((1 + rest) ** (1 / p)) * (1 + 1e-14)

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size}


def _read_one_of(data: Mapping[str, Any]) -> Domain[Any]:
    inner = domain_from_dict(data["inner"])
    if inner is None:
        raise ValueError(f"inner = {data['inner']!r}: must be a shipped domain")
    return OneOf(inner, data["arms"])


_NORM: Kind = (str, int, float)
_READERS: dict[str, tuple[Form, Callable[[Mapping[str, Any]], Domain[Any]]]] = {
    "ball": (
        {"radius": REAL, "size": WHOLE, "norm": _NORM},
        lambda data: Ball(data["radius"], data["size"], data["norm"]),
    ),
    "box": (
        {"low": REAL, "high": REAL, "size": WHOLE},
        lambda data: Box(data["low"], data["high"], data["size"]),
    ),
    "psd-trace": (
        {"trace": REAL, "dim": WHOLE},
        lambda data: PSDTrace(data["trace"], data["dim"], data.get("layout", "svec")),
    ),
    "one-of": ({"inner": OBJECT, "arms": WHOLE}, _read_one_of),
    "categories": ({"size": WHOLE}, lambda data: Categories(data["size"])),
}


def domain_from_dict(data: Mapping[str, Any]) -> Domain[Any] | None:
    """Rebuilds a shipped domain from its JSON form; None for a domain that only its author knows.

    Raises:
        ValueError: a shipped kind with bad or missing numbers, of other JSON types, or more.
    """
    kind = named("domain", data, "kind")
    if kind not in _READERS:
        return None
    form, read = _READERS[kind]
    optional = {"layout": TEXT} if kind == "psd-trace" else {}
    try:
        check_form(f"{kind} domain", data, {"kind": TEXT, **form}, optional)
        return read(data)
    except KeyError as missing:
        raise ValueError(f"{kind} domain lacks {missing}") from None


def is_shipped(domain: Domain[Any]) -> bool:
    """Whether a domain came with this package, so that anybody can rebuild it."""
    rebuilt = domain_from_dict(domain.to_dict())
    # not == alone: a class of somebody else may say that it equals anything
    return type(rebuilt) is type(domain) and rebuilt == domain
