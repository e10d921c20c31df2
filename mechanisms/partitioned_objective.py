r"""Objectives over rows that lie in several processes: value, gradient and Hessian by passes.

**What travels.**  The solver's iterates are functions of the rows, without noise: they go to the
workers encrypted, as what comes back does, and the number of passes is at least a public one.

**Accuracy.**  A worker adds up the gradients of a piece of rows in doubles, pairwise as
`privlearn.mechanisms.solver.Problem` does, and rounds each coordinate to the nearest multiple of
g, 2⁻⁶¹ times the least power of two above L; these integers are added exactly, and rounded to a
double once.  With u = 2⁻⁵³ a pairwise sum of up to 2⁴⁰ numbers is off by at most 52u times the sum
of their sizes, rounding to the grid by at most g√d/2 <= u·2⁻⁸·√d·L for each piece of one row or
more, and the last rounding by u·nL: together below (53 + 2⁻⁸·√d)·u·nL, which for d <= 2²² is within
the 64·u·nL that `attainable` and `Reach` allow for the sum of a gradient.  So the certified
distance, and with it the price, is the one of the mechanism on one machine.  Hessians and values
need no accuracy: they only choose steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import SolverError
from privlearn.mechanisms.objectives import Objective, spot_check
from privlearn.rows import PartialSum
from privlearn.rows.domains import Array, Domain
from privlearn.rows.functions import user_code
from privlearn.rows.partitions.rows import OpenedPartitions

BITS = 61
"""Sums are counted in 2⁻⁶¹ of (a power of two above) what one record can add."""
MOST_DIMENSIONS = 2**22
_KEPT = 8  # Points whose sums are kept for when the solver asks for them again


@final
@dataclass(frozen=True, slots=True)
class ObjectiveSums:
    """On how many pieces it failed, Σ(ℓ(θ) − ℓ(0)), Σ∇ℓ(θ), and the upper triangle of Σ∇²ℓ(θ).

    All but the first in steps, which are powers of two.
    """

    objective: Objective[Any]

    @property
    def domain(self) -> Domain[Any]:
        return self.objective.domain

    @property
    def size(self) -> int:
        d = self.objective.dim
        return 2 + d + d * (d + 1) // 2

    def to_dict(self) -> dict[str, Any]:
        return {"sums": "objective", **self.objective.to_dict()}

    def exponents(self, theta: Array) -> NDArray[np.int64]:
        """Powers of two of the steps, shape (size,)."""
        d, slope = self.objective.dim, _above(self.objective.gradient_bound)
        rest = self.size - 2 - d
        size = math.sqrt(math.fsum(x * x for x in theta.tolist()))  # the same on every machine
        powers = [0, slope + _above(size)]
        powers += [slope] * d + [_above(self.objective.trace)] * rest
        return np.array([0] + [power - BITS for power in powers[1:]], dtype=np.int64)

    def failed(self) -> list[int]:
        return [1] + [0] * (self.size - 1)

    def __call__(self, records: Array, theta: Array) -> list[int]:
        objective = self.objective
        if user_code(objective):
            spot_check(objective, records, theta)
        with np.errstate(all="ignore"):
            gained = objective.values(records, theta) - objective.values(records, 0 * theta)
            each = np.ascontiguousarray(objective.gradients(records, theta).T)
            hessian = objective.hessian_sum(records, theta)
            upper = hessian[np.triu_indices(objective.dim)]
            found = np.concatenate([[0.0, gained.sum()], each.sum(axis=1), upper])
        if not np.isfinite(found).all():
            return self.failed()
        powers = self.exponents(theta)
        return [round(math.ldexp(x, -int(k))) for x, k in zip(found.tolist(), powers, strict=True)]


@final
class AddedUp:
    """J on rows of several processes; each point that is asked about costs one pass over them.

    Args:
        opened: by a receipt.
        sums: of the objective.
        rows: how many.
        ridge: Δ.
        tilt: b, shape (d,).
        first: a point, and the sealed sums at it, which were made before the rows were opened.
    """

    def __init__(
        self,
        opened: OpenedPartitions,
        sums: ObjectiveSums,
        rows: int,
        ridge: float,
        tilt: Array,
        first: tuple[Array, PartialSum],
    ) -> None:
        self._opened, self._sums = opened, sums
        self.objective, self.rows, self.ridge, self._tilt = sums.objective, rows, ridge, tilt
        point, total = first
        self._known = {point.tobytes(): self._in_unit(point, opened.of(total))}
        self.passes = 1

    def value(self, theta: Array) -> float:
        """J(θ) − J(0)."""
        gained = float(self._at(theta)[1])
        return float(gained + self.ridge / 2 * theta @ theta + self._tilt @ theta)

    def gradient(self, theta: Array) -> Array:
        total = self._at(theta)[2 : 2 + self.objective.dim]
        return np.asarray(total + self.ridge * theta + self._tilt)

    def hessian(self, theta: Array) -> Array:
        d = self.objective.dim
        total = np.zeros((d, d))
        rows, columns = np.triu_indices(d)
        total[rows, columns] = total[columns, rows] = self._at(theta)[2 + d :]
        return np.asarray(total + self.ridge * np.eye(d))

    def pass_on(self, theta: Array, upto: int) -> None:
        """Further passes that change nothing, so that at least so many were made."""
        while self.passes < upto:
            self._ask(theta)

    def _at(self, theta: Array) -> Array:
        key = theta.tobytes()
        if key not in self._known:
            if len(self._known) == _KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = self._ask(theta)
        return self._known[key]

    def _ask(self, theta: Array) -> Array:
        self.passes += 1
        return self._in_unit(theta, self._opened.sums(self._sums, theta))

    def _in_unit(self, theta: Array, total: NDArray[Any]) -> Array:
        if total[0]:
            raise SolverError(
                f"{type(self.objective).__name__}: failed, or was not finite, on some records: the "
                "outcome of this release is not covered"
            )
        powers = self._sums.exponents(theta)
        return np.array(
            [math.ldexp(float(int(n)), int(k)) for n, k in zip(total, powers, strict=True)]
        )


def _above(bound: float) -> int:
    return math.frexp(bound)[1] if bound > 0 else 0
