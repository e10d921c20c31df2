"""One vector of an ℓ2 ball, reported by every user under pure local privacy.

A record x, clipped to length R, first becomes a unit vector u: x/‖x‖ with probability
(1 + ‖x‖/R)/2, else −x/‖x‖, so that E u = x/R; and a report about u is R/μ times a point of
`CapNoise`, so that its mean is x.  For x = 0, which is also what a record without use counts as,
the report has the null law itself, R/μ times a uniform point (or a normal vector); its mean is 0.
Numbers are rounded to multiples of limit/2²³.

Privacy: whatever x is, the law of the report is a mixture of laws with density in [m, M] against
the null law, so that two records differ by a factor of at most M/m <= e^ε.  That also is the price
of K such reports of which one is real (`OneOfKReport`).  The law of a report about u is exact
(`exact_noise.caps`); how x/‖x‖ and the probability of its sign are rounded only says which mixture
it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.spends import Spend
from privlearn.mechanisms.report_streams import LEVELS, EachReport, RowsOfNoise, spends_of
from privlearn.noise import CapNoise
from privlearn.noise.exact.cap_rows import CapRows
from privlearn.noise.exact.caps import NORMAL_LIMIT
from privlearn.rows.domains import Array, Ball, Bound
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact
from privlearn.values.validate import Count, assign, check_fields

_AT_ONCE = 2**14  # Numbers of reports that are computed at once, in several copies
_SHORTEST = 1e-140
"""Shorter records count as 0: their squares have too few digits for a unit vector."""


@final
@dataclass(frozen=True, slots=True)
class BallReport(EachReport[Array]):
    """A vector with ‖x‖₂ <= radius, reported at a pure ε; longer ones are scaled down.

    Args:
        dim: length of x.
        radius: R, in the unit of the data.
        cap: in the same dimension; its price is the report's.
        adjacency: must be the accountant's.

    Raises:
        ValueError: a cap of another dimension, or a number out of range.
        AdjacencyError: add-remove.
    """

    dim: Count
    radius: Bound
    cap: CapNoise
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    domain: Ball = field(init=False, repr=False, compare=False)
    """Where records are clipped."""
    _spends: tuple[Spend, Spend] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cap.dim != self.dim:
            raise ValueError(f"cap = {self.cap!r}: must have dimension {self.dim}")
        ball = Ball(self.radius, self.dim)
        assign(self, domain=ball, _spends=spends_of("ball-report", ball, self.cap, exact=True))
        self.loss()

    @classmethod
    def duchi(
        cls,
        dim: int,
        radius: float,
        epsilon: Exact,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> BallReport:
        """Half spheres (Duchi, Jordan & Wainwright 2018), with the null input defined.

        Raises:
            ValueError: ε is not in [1e-6, 30], or dim or radius is out of range.
        """
        return cls(dim, radius, CapNoise.half(dim, epsilon), adjacency)

    @classmethod
    def privunit(
        cls,
        dim: int,
        radius: float,
        epsilon: Exact,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> BallReport:
        """Caps of the sphere of least error (Bhowmick et al. 2018).

        Raises:
            ValueError: as `duchi`.
        """
        return cls(dim, radius, CapNoise.optimal(dim, epsilon), adjacency)

    @classmethod
    def privunit_g(
        cls,
        dim: int,
        radius: float,
        epsilon: Exact,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> BallReport:
        """Half spaces of normals of least error (Asi, Feldman & Talwar 2022).

        Raises:
            ValueError: as `duchi`.
        """
        return cls(dim, radius, CapNoise.optimal(dim, epsilon, "gaussian"), adjacency)

    @classmethod
    def best(
        cls,
        dim: int,
        radius: float,
        epsilon: Exact,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> BallReport:
        """The one of least mean squared error of the three.

        It is `privunit`, which among all ε-private unbiased reports of unit vectors is the best
        (Asi, Feldman & Talwar 2022); in dimension 1 that is `duchi`.

        Raises:
            ValueError: as `duchi`.
        """
        return cls.privunit(dim, radius, epsilon, adjacency=adjacency)

    @property
    def scale(self) -> float:
        """R/μ: a report is this times a point of the cap noise."""
        return self.radius / self.cap.mean

    @property
    def limit(self) -> float:
        return self.scale * (1.0 if self.cap.surface == "sphere" else NORMAL_LIMIT)

    def randomized(self, values: Array, draw: RowsOfNoise) -> Array:
        """Reports about contributions, shape (n, dim), row by row; multiples of limit/2²³."""
        step = self.limit / LEVELS

        def made(part: Array, rows: CapRows) -> Array:
            return np.asarray(rows.steps(*rounded(part, self.radius, rows.turns)) * step)

        return in_blocks(values, draw, self.dim, made)

    def plausible(self, reports: Array, slack: float) -> NDArray[np.bool_]:
        return on_surface(self.cap, self.scale, reports, slack)

    def mean_squared_error(self) -> float:
        """The largest E‖report − x‖², which is that near x = 0; less by R² at ‖x‖ = R."""
        return self.scale**2 * self.cap.second_moment

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "ball-report",
            "dim": self.dim,
            "radius": self.radius,
            "cap": self.cap.to_dict(),
            "adjacency": self.adjacency.value,
        }


def rounded(values: Array, radius: float, uniform: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Unit vectors ±x/‖x‖ of mean x/radius, and which rows are null and have an arbitrary one."""
    lengths = np.sqrt(np.einsum("ij,ij->i", values, values))
    null = lengths < _SHORTEST
    odd = np.count_nonzero(null)
    if odd:
        lengths[null] = 1.0
    signed = np.copysign(lengths, lengths / radius + 1 - 2 * uniform)
    units = values / signed[:, None]
    if odd:
        units[null, 0] = 1.0
    return units, null


def in_blocks(
    values: Array, draw: RowsOfNoise, dim: int, make: Callable[[Array, CapRows], Array]
) -> Array:
    """What ``make`` makes of contributions and their noise, each row of its own, in blocks."""
    size = max(1, _AT_ONCE // dim)
    if len(values) <= size:
        return make(values, draw(len(values)))
    blocks = [values[i : i + size] for i in range(0, len(values), size)]
    return np.concatenate([make(block, draw(len(block))) for block in blocks])


def on_surface(cap: CapNoise, scale: float, reports: Array, slack: float) -> NDArray[np.bool_]:
    """Whether rows are as long as reports are, or, if normal, within their limit."""
    room = slack + scale / LEVELS  # they are rounded to half of it
    if cap.surface == "gaussian":
        return np.asarray(np.abs(reports).max(axis=1) <= scale * NORMAL_LIMIT + room)
    lengths = np.sqrt(np.einsum("ij,ij->i", reports, reports))
    return np.asarray(np.abs(lengths - scale) <= room * math.sqrt(cap.dim))
