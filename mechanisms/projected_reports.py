"""Reports of k numbers about vectors of length dim, for a large dim.

As a `BallReport`, but what is reported is the direction of the unit vector u within a random
subspace: y = Wu/‖Wu‖, W of k orthonormal rows.  W is public, drawn anew for every user and without
the record; the report carries its seed.  The estimate is Wᵀz/E‖Wu‖ for a report z about y.  Because
the law of W is that of WO for every rotation O, E[Wᵀy] is a multiple of u, and its inner product
with u is E‖Wu‖ = Γ((k+1)/2)Γ(d/2)/(Γ(k/2)Γ((d+1)/2)); so the estimate is unbiased.  (Asi, Feldman,
Nelson, Nguyen & Talwar 2023, ProjUnit.)

Privacy: given W the report is that of a ball of dimension k, and W has the same law for everybody.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.spends import Spend
from privlearn.mechanisms.ball_reports import BallReport, in_blocks, on_surface, rounded
from privlearn.mechanisms.report_streams import LEVELS, EachReport, RowsOfNoise
from privlearn.noise import CapNoise
from privlearn.noise.exact.cap_rows import CapRows
from privlearn.rows.domains import Array, Ball, Bound
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact
from privlearn.values.validate import Count, check_fields

_WORDS = 2  # Numbers of a report that hold the seed, 24 bits each
_AT_ONCE = 2**20  # Numbers of the subspaces that are in memory at once, in several copies


@final
@dataclass(frozen=True, slots=True)
class ProjectedReport(EachReport[Array]):
    """A vector with ‖x‖₂ <= radius, reported in a random subspace at a pure ε.

    A report has the k = cap.dim numbers of the subspace and two that name it.

    Args:
        dim: length of x.
        radius: R, in the unit of the data.
        cap: in k <= dim dimensions; its price is the report's.
        adjacency: must be the accountant's.

    Raises:
        ValueError: a cap of more dimensions, or a number out of range.
        AdjacencyError: add-remove.
    """

    dim: Count
    radius: Bound
    cap: CapNoise
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cap.dim > self.dim:
            raise ValueError(f"cap = {self.cap!r}: must have at most {self.dim} dimensions")
        self.loss()

    @classmethod
    def privunit(
        cls,
        dim: int,
        radius: float,
        epsilon: Exact,
        *,
        size: int,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> ProjectedReport:
        """Caps of least error in ``size`` dimensions.

        Raises:
            ValueError: ε is not in [1e-6, 30], or a number is out of range.
        """
        return cls(dim, radius, CapNoise.optimal(size, epsilon), adjacency)

    @property
    def domain(self) -> Ball:
        return Ball(self.radius, self.dim)

    @property
    def size(self) -> int:
        return self.cap.dim + _WORDS

    @property
    def scale(self) -> float:
        """R/(μ·E‖Wu‖): the numbers of the subspace are this times a point of the cap noise."""
        k, d = self.cap.dim, self.dim
        logs = math.lgamma((k + 1) / 2) - math.lgamma(k / 2)
        logs += math.lgamma(d / 2) - math.lgamma((d + 1) / 2)
        return self.radius / (self.cap.mean * math.exp(logs))

    @property
    def limit(self) -> float:
        flat = BallReport(self.cap.dim, self.cap.mean, self.cap, self.adjacency)
        return flat.limit * self.scale

    def spend(self, *, interactive: bool = False) -> Spend:
        return Spend(
            "projected-report",
            self.domain,
            self.cap,
            arithmetic="each",
            interactive=interactive,
            exact=True,
        )

    def randomized(self, values: Array, draw: RowsOfNoise) -> Array:
        step = self.limit / LEVELS

        def made(part: Array, rows: CapRows) -> Array:
            words = seeds_of(rows.public)
            units, null = rounded(part, self.radius, rows.turns)
            inside = self._mapped("nkd,nd->nk", words, units)
            lengths = np.sqrt(np.einsum("nk,nk->n", inside, inside))
            inside[lengths == 0, 0] = 1.0
            inside /= np.where(lengths == 0, 1.0, lengths)[:, None]
            return np.concatenate([rows.steps(inside, null), words], axis=1) * step

        return in_blocks(values, draw, self.cap.dim, made)

    def _mapped(self, how: str, words: Array, vectors: Array) -> Array:
        """Vectors in the coordinates of subspaces or back, in blocks of rows."""
        rows = max(1, _AT_ONCE // (self.cap.dim * self.dim))
        blocks = [slice(i, i + rows) for i in range(0, max(len(words), 1), rows)]
        return np.concatenate(
            [np.einsum(how, self._subspaces(words[b]), vectors[b]) for b in blocks]
        )

    def _subspaces(self, words: Array) -> Array:
        """Orthonormal rows of random subspaces, uniform, (n, k, dim), from the words of seeds."""
        k, d = self.cap.dim, self.dim
        pairs = (k * d + 1) // 2
        bits = b"".join(
            hashlib.shake_128(row.astype("<i4").tobytes()).digest(16 * pairs) for row in words
        )
        numbers = np.frombuffer(bits, dtype="<u8").reshape(len(words), 2, pairs)
        uniform = ((numbers >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * math.pi * uniform[:, 1]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        columns = normal[:, : k * d].reshape(len(words), d, k)
        basis, triangle = np.linalg.qr(columns)
        # the factor with a positive diagonal is the one that is uniform, and unique
        signs = np.sign(np.diagonal(triangle, axis1=1, axis2=2))
        return np.asarray((basis * signs[:, None, :]).transpose(0, 2, 1))

    @property
    def estimate_limit(self) -> float:
        return self.limit * (1.0 if self.cap.surface == "sphere" else math.sqrt(self.cap.dim))

    def estimate(self, reports: Array) -> Array:
        """Vectors of length dim, unbiased; shape (n, dim)."""
        k = self.cap.dim
        words = np.rint(reports[:, k:] * (LEVELS / self.limit))
        return self._mapped("nkd,nk->nd", words, reports[:, :k])

    def plausible(self, reports: Array, slack: float) -> NDArray[np.bool_]:
        k = self.cap.dim
        named = np.abs(reports[:, k:]).max(axis=1) <= self.limit + slack
        return np.asarray(named & on_surface(self.cap, self.scale, reports[:, :k], slack))

    def mean_squared_error(self) -> float:
        """The largest E‖estimate − x‖², which is that at x = 0."""
        return self.scale**2 * self.cap.second_moment

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "projected-report",
            "dim": self.dim,
            "radius": self.radius,
            "cap": self.cap.to_dict(),
            "adjacency": self.adjacency.value,
        }


def seeds_of(words: NDArray[np.uint64]) -> Array:
    """Two numbers in −2²³..2²³ − 1 for each word, (n, 2): the name of a subspace."""
    parts = [words >> np.uint64(40), (words >> np.uint64(16)) & np.uint64(2 * LEVELS - 1)]
    return np.stack(parts, axis=1).astype(np.float64) - LEVELS
