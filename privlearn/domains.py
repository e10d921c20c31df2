"""Public sets that bound what one user can contribute; clipping lives here and nowhere else.

A domain turns a block of records into vectors that provably lie in the set, whatever comes in: a
record with NaN, infinity or a wrong shape becomes the null value ``clip(0)``.  `sensitivity` is
then the largest distance, in a norm ℓp, between two contributions (replace-one) or between a
contribution and the null value (zero-out, add-remove).

`integers` clips to integers in steps of a public grid, for exact noise: only a check of these
integers is trusted (docs/proofs.md, "Clipping on integers").
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeGuard,
    TypeVar,
    cast,
    final,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from privlearn._integer_sets import MOST, MOST_EXPONENT, Integers, inside
from privlearn._json_forms import OBJECT, REAL, TEXT, WHOLE, Form, Kind, check_form, named
from privlearn._validate import AtLeastTwo, Checked, Count, Finite, check_fields, positive
from privlearn.adjacency import Adjacency
from privlearn.exact import float_down, float_up
from privlearn.grid import Grid

Array = NDArray[np.float64]
Norm = Literal["l1", "l2", "linf"] | float
"""A name, or the exponent p >= 1 of ℓp.  Noise asks in numbers p > 2 only, where an answer for ℓ2
is never too small."""
X = TypeVar("X")
Number = TypeVar("Number", np.float64, np.int64)
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
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", values, values)))
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


@runtime_checkable
class IntegerDomain(Domain[X_contra], Protocol[X_contra]):
    """A domain that clips to integers, too: contributions in steps of a public grid.

    Times the step they are no further apart than `sensitivity` says, in every norm; that rests on a
    check of the integers alone.
    """

    def integers(self, block: X_contra, grid: Grid) -> Integers:
        """Contributions in steps, shape (n, size); toward zero, and null where a row is no use."""

    def null_integers(self, grid: Grid) -> Integers:
        """The null contribution in steps, shape (size,)."""

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """What the check of the integers enforces, in steps; ``largest`` bounds every |entry|.

        Raises:
            ValueError: the grid is too coarse for the set, or too fine for 64-bit integers.
        """


def has_integers(domain: Domain[X]) -> TypeGuard[IntegerDomain[X]]:
    """Whether a domain clips to integers; those of this package do."""
    return isinstance(domain, IntegerDomain)


def largest_number(domain: Domain[Any]) -> float:
    """A bound on every number of a contribution: what null has, and how far from it others are."""
    return _largest_of_null(domain) + domain.sensitivity(Adjacency.ZERO_OUT, "linf")


def _largest_of_null(domain: Domain[Any]) -> float:
    """Of the sizes of its numbers.  Ours are all the same: a ledger may state any length."""
    match domain:
        case Ball() | PSDTrace():
            return 0.0
        case Box():
            return abs(min(max(0.0, domain.low), domain.high))
        case Categories():
            return 1 / domain.size
        case OneOf():
            return _largest_of_null(domain.inner)
    return float(np.abs(domain.null()).max(initial=0.0))


def fitting_grid(domain: IntegerDomain[Any], scale: float, rows: float | Fraction = 1) -> Grid:
    """The finest grid for noise of this scale on which ``rows`` contributions can be added up.

    Raises:
        ValueError: no grid fits, see `Grid.fitting` and `IntegerDomain.integer_bound`.
    """
    grid = Grid.fitting(scale, largest_number(domain), rows)
    domain.integer_bound(grid)
    return grid


_WITHIN = Fraction(2**42 - 1, 2**42)
"""Of a radius, what integers are checked against: covers the rounding of `sensitivity`."""


def _in_steps(number: Fraction, grid: Grid, **named: float) -> int:
    """⌊number/step⌋.

    Raises:
        ValueError: 2⁶² or more, by the name of what it is.
    """
    steps = math.floor(number / Fraction(grid.step))
    if not -MOST < steps < MOST:
        ((name, value),) = named.items()
        raise ValueError(
            f"{name} = {value!r}: more than 2^62 steps of {grid!r}; the grid must be coarser"
        )
    return steps


def _shrunk(terms: int) -> float:
    """Of a radius, what rows are scaled to: sums of so many rounded terms are then certified."""
    return _SHRINK - (terms + 256) * 2.0**-52


def _without(values: Array, norms: Array, usable: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Rows and their norms, both 0 where they are of no use."""
    return np.where(usable[:, None], values, 0.0), np.where(usable, norms, 0.0)


def _drop(steps: Integers, held: NDArray[np.bool_]) -> None:
    """Sets rows to 0 that no check held to be inside."""
    if not held.all():
        steps[~held] = 0


def _tiles(values: NDArray[Any]) -> Iterator[slice]:
    """Slices of rows that stay in the cache together with what is computed of them."""
    rows = max(_TILE // max(values[:1].size, 1), 1)
    for start in range(0, len(values), rows):
        yield slice(start, start + rows)


_TILE = 2**14
"""Numbers."""


@lru_cache(maxsize=256)
def _radius_in_steps(radius: float, grid: Grid) -> int:
    return _in_steps(Fraction(radius) * _WITHIN, grid, radius=radius)


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
    return np.ascontiguousarray(values)  # sums of a row then do not depend on the block's layout


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

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Scales each row, shape (size,), so that its norm in steps is at most ⌊radius/step⌋."""
        radius, exponent = _radius_in_steps(self.radius, grid), exponent_of(self.norm)
        if exponent < math.inf:
            exponent = min(exponent, MOST_EXPONENT)
        aim = radius * _shrunk(self.size) * grid.step
        values = _shaped(block, (self.size,))
        if exponent == 2 and np.vdot(values, values) < 0.999 * aim**2:  # well inside, all together
            steps = (values * (1.0 / grid.step)).astype(np.int64)
            _drop(steps, inside(steps, radius, exponent))
            return steps
        steps = np.empty(values.shape, dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in _tiles(values):
                part, norms = values[tile], _norms(values[tile], exponent)
                if not np.isfinite(norms).all():
                    part, norms = _without(part, norms, np.isfinite(norms))
                factors = np.minimum(aim / norms, 1.0) / grid.step
                steps[tile] = part * factors[:, None]  # toward zero
                _drop(steps[tile], inside(steps[tile], radius, exponent))
        return steps

    def null_integers(self, grid: Grid) -> Integers:
        return np.zeros(self.size, dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """The norm, the domain's own, is at most ``largest``: ⌊radius·(1 − 2⁻⁴²)/step⌋."""
        return {"largest": _radius_in_steps(self.radius, grid)}

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

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Clamps each entry of each row, shape (size,), to ⌈low/step⌉ … ⌊high/step⌋."""
        low, high = _ends_in_steps(self, grid)
        values = _shaped(block, (self.size,))
        steps = np.empty(values.shape, dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in _tiles(values):
                part = np.clip(_usable(values[tile]), self.low, self.high)
                steps[tile] = np.divide(part, grid.step, out=part)  # toward zero
                np.clip(steps[tile], low, high, out=steps[tile])
        return steps

    def null_integers(self, grid: Grid) -> Integers:
        low, high = _ends_in_steps(self, grid)
        return np.full(self.size, min(max(0, low), high), dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """Every entry lies in ``low`` … ``high``."""
        low, high = _ends_in_steps(self, grid)
        return {"largest": max(abs(low), abs(high)), "low": low, "high": high}

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


@lru_cache(maxsize=256)
def _ends_in_steps(box: Box, grid: Grid) -> tuple[int, int]:
    low = -_in_steps(-Fraction(box.low), grid, low=box.low)
    high = _in_steps(Fraction(box.high), grid, high=box.high)
    if low > high:
        raise ValueError(
            f"{box!r}: holds no multiple of the step {grid.step!r} of {grid!r}; the scale of the "
            "noise is too large for it"
        )
    return low, high


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

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Turns factors, shape (n, m, dim), into rows of svec (or triangle) form in steps.

        That the ℓ2 norm of a row is at most ⌊trace/step⌋ rests on a check of the integers; that two
        rows are at most √2·trace apart rests on a check of the scaled factors, too, and on the
        error bound of a matrix product in any order of summation.
        """
        factors = _shaped(block, (None, self.dim))
        count, terms = factors.shape[1], factors.shape[1] * self.dim
        radius, trace = _trace_in_steps(self, count, grid)
        limit = _certain_trace(trace, grid.step, terms)
        aim = math.sqrt(limit) * _shrunk(terms)
        rows, columns, weights = _upper(self.dim, self.layout)
        in_steps = weights / grid.step
        flat = factors.reshape(len(factors), terms)
        steps = np.empty((len(factors), self.size), dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in _tiles(steps):
                part = flat[tile]
                norms = _norms(part, 2.0)
                if not np.isfinite(norms).all():
                    part, norms = _without(part, norms, np.isfinite(norms))
                part = part * np.minimum(aim / norms, 1.0)[:, None]
                held = np.einsum("ij,ij->i", part, part) <= limit
                scaled = part.reshape(len(part), count, self.dim)
                matrices = np.matmul(scaled.transpose(0, 2, 1), scaled)
                steps[tile] = matrices[:, rows, columns] * in_steps  # toward zero
                _drop(steps[tile], held & inside(steps[tile], radius, 2.0))
        return steps

    def null_integers(self, grid: Grid) -> Integers:
        return np.zeros(self.size, dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """The ℓ2 norm is at most ``largest``, and ``trace`` bounds that of factors of <= 4096 rows.

        Raises:
            ValueError: as for every domain.
        """
        largest, trace = _trace_in_steps(self, 0, grid)
        if trace < 1:
            raise ValueError(
                f"{self!r}: the trace is {largest} steps of {grid!r}, and rounding {self.size} "
                "entries takes all of them; the scale of the noise is too large for it"
            )
        return {"largest": largest, "trace": trace}

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


@lru_cache(maxsize=256)
def _trace_in_steps(domain: PSDTrace, count: int, grid: Grid) -> tuple[int, int]:
    """The radius of the integers, and the trace of factors of ``count`` rows, both in steps.

    An integer row lies within e = √D + 1 + γ·trace steps of svec(XᵀX), for truncation, underflow
    and rounding, so two of them are at most √2·trace + 2e <= √2·radius apart.
    """
    radius = _radius_in_steps(domain.trace, grid)
    rounding = (max(count, 4096) + domain.size + 8) * Fraction(1, 2**52)
    truncation = math.isqrt(domain.size) + 2
    trace = (radius - Fraction(3, 2) * truncation) / (1 + Fraction(3, 2) * rounding)
    return radius, max(math.floor(trace), 0)


@lru_cache(maxsize=256)
def _certain_trace(trace: int, step: float, terms: int) -> float:
    """As `certain`, for a sum of so many squares of doubles, in the unit of the data."""
    return float_down(trace * Fraction(step) / (1 + (terms + 8) * Fraction(1, 2**52)))


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
        return self._placed(self.inner.clip(records), arms, self.inner.null())

    def _placed(
        self, contributions: NDArray[Number], arms: object, null: NDArray[Number]
    ) -> NDArray[Number]:
        """Each contribution at its arm, and null ones at the others."""
        chosen = np.asarray(arms, dtype=np.float64)
        if chosen.shape != (len(contributions),):
            raise ValueError(f"arms of shape {chosen.shape}: must be ({len(contributions)},)")
        with np.errstate(invalid="ignore"):
            real, places = _whole_below(chosen, self.arms)
        rows = np.tile(null, (len(chosen), self.arms, 1))
        rows[real, places] = contributions[real]
        return rows.reshape(-1, self.size)

    def null(self) -> Array:
        return np.tile(self.inner.null(), self.arms)

    def integers(self, block: tuple[X, NDArray[Any]], grid: Grid) -> Integers:
        """Rows in steps, in blocks by arm: those of the inner domain, at one arm each."""
        inner, (records, arms) = cast(IntegerDomain[X], self.inner), block  # it is a shipped one
        return self._placed(inner.integers(records, grid), arms, inner.null_integers(grid))

    def null_integers(self, grid: Grid) -> Integers:
        return np.tile(cast(IntegerDomain[X], self.inner).null_integers(grid), self.arms)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """That of the inner domain, at one arm."""
        return cast(IntegerDomain[X], self.inner).integer_bound(grid)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        p, single = exponent_of(norm), self.inner.sensitivity(adjacency, norm)
        if adjacency is Adjacency.REPLACE_ONE:
            moved = self.inner.sensitivity(Adjacency.ZERO_OUT, norm)
            return max(single, _at_places(2, moved, p))
        if adjacency is Adjacency.ADD_REMOVE and _largest_of_null(self.inner):
            return _at_places(self.arms, single, p)  # the null entries come and go too
        return single

    def decode(self, total: Array) -> Array:
        """Sums by arm, shape (..., arms, *shape of one)."""
        apart = np.reshape(total, (*np.shape(total)[:-1], self.arms, self.inner.size))
        return self.inner.decode(apart)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "arms": self.arms, "inner": self.inner.to_dict()}


def _at_places(places: int, one: float, p: float) -> float:
    """The ℓp norm of a vector that has norm ``one`` at each of several places, rounded up."""
    if p == 1:
        return float_up(places * Fraction(one))
    norm = one * _power(places, 1 / p)
    if p == 2:
        while Fraction(norm) ** 2 < places * Fraction(one) ** 2:
            norm = math.nextafter(norm, math.inf)
        return norm
    return norm if p == math.inf else norm * (1 + 2.0**-50)


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
        return self._marked(block, np.float64(1.0), self.null())

    def _marked(self, block: object, mark: Number, null: NDArray[Number]) -> NDArray[Number]:
        answers = np.asarray(block, dtype=np.float64)
        if answers.ndim != 1:
            raise ValueError(f"rows of shape {answers.shape[1:]}: answers are single integers")
        with np.errstate(all="ignore"):
            real, places = _whole_below(answers, self.size)
        rows = np.tile(null, (len(answers), 1))
        rows[real] = 0
        rows[real, places] = mark
        return rows

    def null(self) -> Array:
        return np.full(self.size, 1 / self.size)

    def integers(self, block: NDArray[Any], grid: Grid) -> Integers:
        """Rows with k·b at the answer, b = ⌊1/(k·step)⌋; b everywhere for what is no answer."""
        null = self.null_integers(grid)
        return self._marked(block, null.sum(), null)

    def null_integers(self, grid: Grid) -> Integers:
        return np.full(self.size, _share_in_steps(self, grid), dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """An answer is ``largest`` = k·``null``, so that null is exactly the mean of all."""
        share = _share_in_steps(self, grid)
        return {"largest": self.size * share, "null": share}

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


def _whole_below(numbers: Array, end: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the whole numbers among 0, …, end − 1 stand, and which they are."""
    found = np.flatnonzero((numbers >= 0) & (numbers < end) & (numbers == np.floor(numbers)))
    return found, numbers[found].astype(np.intp)


@lru_cache(maxsize=256)
def _share_in_steps(domain: Categories, grid: Grid) -> int:
    share = _in_steps(_WITHIN / domain.size, grid, answer=1.0)
    if share < 1:
        raise ValueError(
            f"{domain!r}: 1/{domain.size} is less than the step {grid.step!r} of {grid!r}; the "
            "scale of the noise is too large for it"
        )
    return share


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
