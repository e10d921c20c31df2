"""Positive semidefinite matrices of bounded trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains.base import ShippedDomain
from privlearn.rows.domains.clipping import (
    Bound,
    drop,
    radius_in_steps,
    shaped,
    shrunk,
    tiles,
    to_radius,
    with_norms,
)
from privlearn.rows.domains.norms import Array, Norm, exponent_of, power
from privlearn.rows.domains.reading import ships
from privlearn.rows.record_forms import Numbers
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_down
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers, inside
from privlearn.values.json_forms import REAL, TEXT, WHOLE
from privlearn.values.validate import Count, check_fields

Layout = Literal["svec", "triangle"]


@lru_cache(maxsize=32)
def svec_places(dim: int, layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Row and column of each coordinate, and its weight (in svec, √2 off the diagonal)."""
    rows, columns = np.triu_indices(dim)
    return rows, columns, np.where((rows == columns) | (layout == "triangle"), 1.0, math.sqrt(2))


@final
@dataclass(frozen=True, slots=True)
class PSDTrace(ShippedDomain):
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
            factors = shaped(block, self.record_form())
            flat, norms = with_norms(
                factors.reshape(len(factors), factors.shape[1] * self.dim), 2.0
            )
            scaled = to_radius(flat, norms, math.sqrt(self.trace)).reshape(factors.shape)
            rows, columns, weights = svec_places(self.dim, self.layout)
            matrices = np.matmul(scaled.transpose(0, 2, 1), scaled)
            return cast(Array, matrices[:, rows, columns] * weights)

    def record_form(self) -> Numbers:
        return Numbers((None, self.dim))

    def integers(self, block: Array, grid: Grid) -> Integers:
        """Turns factors, shape (n, m, dim), into rows of svec (or triangle) form in steps.

        That the ℓ2 norm of a row is at most ⌊trace/step⌋ rests on a check of the integers; that two
        rows are at most √2·trace apart rests on a check of the scaled factors, too, and on the
        error bound of a matrix product in any order of summation.
        """
        factors = shaped(block, self.record_form())
        count, terms = factors.shape[1], factors.shape[1] * self.dim
        radius, trace = _trace_in_steps(self, count, grid)
        step = grid.step
        limit = _certain_trace(trace, step, terms)
        aim = math.sqrt(limit) * shrunk(terms)
        rows, columns, weights = svec_places(self.dim, self.layout)
        in_steps = weights / step
        flat = factors.reshape(len(factors), terms)
        steps = np.empty((len(factors), self.size), dtype=np.int64)
        with np.errstate(all="ignore"):
            for tile in tiles(steps):
                part, norms = with_norms(flat[tile], 2.0)
                part = part * np.minimum(aim / norms, 1.0)[:, None]
                held = np.einsum("ij,ij->i", part, part) <= limit
                if count == 1:  # an entry is one product, with the bits of a matrix product
                    entries = part.take(rows, axis=1)
                    entries *= part.take(columns, axis=1)
                else:
                    scaled = part.reshape(len(part), count, self.dim)
                    matrices = np.matmul(scaled.transpose(0, 2, 1), scaled)
                    entries = matrices[:, rows, columns]
                entries *= in_steps
                steps[tile] = entries  # toward zero
                drop(steps[tile], held & inside(steps[tile], radius, 2.0))
        return steps

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
        return frobenius * power(self.size, max(1 / exponent_of(norm) - 0.5, 0.0))

    def decode(self, total: Array) -> Array:
        """Turns svec vectors, shape (..., size), into symmetric matrices (..., dim, dim)."""
        rows, columns, weights = svec_places(self.dim, self.layout)
        matrix = np.zeros((*np.shape(total)[:-1], self.dim, self.dim))
        values = np.asarray(total) / weights
        matrix[..., rows, columns] = values
        matrix[..., columns, rows] = values
        return matrix

    def encode(self, quantity: Array) -> Array:
        rows, columns, weights = svec_places(self.dim, self.layout)
        return np.asarray(quantity[rows, columns] * weights)

    def to_dict(self) -> dict[str, Any]:
        form = {} if self.layout == "svec" else {"layout": self.layout}
        return {"kind": self.kind, "trace": self.trace, "dim": self.dim, **form}


@lru_cache(maxsize=256)
def _trace_in_steps(domain: PSDTrace, count: int, grid: Grid) -> tuple[int, int]:
    """The radius of the integers, and the trace of factors of ``count`` rows, both in steps.

    An integer row lies within e = √D + 1 + γ·trace steps of svec(XᵀX), for truncation, underflow
    and rounding, so two of them are at most √2·trace + 2e <= √2·radius apart.
    """
    radius = radius_in_steps(domain.trace, grid)
    rounding = (max(count, 4096) + domain.size + 8) * Fraction(1, 2**52)
    truncation = math.isqrt(domain.size) + 2
    trace = (radius - Fraction(3, 2) * truncation) / (1 + Fraction(3, 2) * rounding)
    return radius, max(math.floor(trace), 0)


@lru_cache(maxsize=256)
def _certain_trace(trace: int, step: float, terms: int) -> float:
    """As `certain`, for a sum of so many squares of doubles, in the unit of the data."""
    return float_down(trace * Fraction(step) / (1 + (terms + 8) * Fraction(1, 2**52)))


ships(
    PSDTrace,
    {"trace": REAL, "dim": WHOLE},
    lambda data: PSDTrace(data["trace"], data["dim"], data.get("layout", "svec")),
    optional={"layout": TEXT},
)
