"""Convex losses of one record, with the bounds that objective perturbation is priced by.

An *objective* is ℓ(θ; z), convex in θ and C^{1,1}, together with public bounds that hold for every
record z of its domain and every θ in R^d: on gradients, on differences of gradients, on the trace
and the rank of Hessians.  Records are flat vectors, as the domain clips them; the null record has
gradient 0.  Bounds are proved in the docstrings, and `check_objective` tries to break them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

import numpy as np

from privlearn.rows.domains import Array, Domain
from privlearn.rows.functions import RowFunction
from privlearn.values.adjacency import Adjacency

X = TypeVar("X")

UNIT = 2.0**-53
"""Relative rounding error of one float operation."""


class Objective(ABC, Generic[X]):
    """One convex loss; ``theta`` is one point (d,) or one point per record (n, d)."""

    dim: int
    """d, the length of θ."""

    @property
    @abstractmethod
    def domain(self) -> Domain[X]:
        """What a record can be; records below are its contributions, shape (n, domain.size)."""

    @property
    @abstractmethod
    def gradient_bound(self) -> float:
        """L >= ‖∇ℓ(θ; z)‖."""

    @property
    def difference(self) -> float:
        """s >= ‖∇ℓ(θ; z) − ∇ℓ(θ; z′)‖; 2L unless something sharper is known."""
        return 2 * self.gradient_bound

    @property
    @abstractmethod
    def trace(self) -> float:
        """T >= tr ∇²ℓ(θ; z)."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """R >= rank ∇²ℓ(θ; z)."""

    @property
    def span(self) -> int:
        """Dimension of a subspace that holds the gradients of one record at every θ."""
        return self.dim

    @property
    def depth(self) -> float:
        """Bound on ℓ(0; z) − inf ℓ(·; z); inf where none is known."""
        return math.inf

    @abstractmethod
    def values(self, records: Array, theta: Array) -> Array:
        """ℓ(θ; z) for each record, shape (n,)."""

    @abstractmethod
    def gradients(self, records: Array, theta: Array) -> Array:
        """∇ℓ(θ; z) for each record, shape (n, d)."""

    @abstractmethod
    def hessians(self, records: Array, theta: Array) -> Array:
        """∇²ℓ(θ; z) for each record (a generalised Hessian at kinks), shape (n, d, d)."""

    def hessian_sum(self, records: Array, theta: Array) -> Array:
        """Σ ∇²ℓ(θ; z), shape (d, d)."""
        return cast(Array, self.hessians(records, theta).sum(axis=0))

    @abstractmethod
    def rounding(self, radius: float) -> float:
        """Bound on the float error of one computed gradient where ‖θ‖ <= radius."""

    @abstractmethod
    def examples(self, rng: np.random.Generator, n: int) -> Array:
        """Records of the domain to try the bounds on, extreme ones among them; (n, size)."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON form: name and constants."""

    def spread(self, adjacency: Adjacency) -> float:
        """Largest distance between the gradients of two neighbouring records at one θ."""
        return self.difference if adjacency is Adjacency.REPLACE_ONE else self.gradient_bound

    def directions(self, adjacency: Adjacency) -> int:
        """Dimension of a subspace that holds that difference at every θ."""
        records = 2 if adjacency is Adjacency.REPLACE_ONE else 1
        return min(self.dim, records * self.span)


def spot_check(objective: Objective[Any], records: Array, theta: Array) -> None:
    """Checks that the gradient of one record depends on no other, where it is the user's code.

    Raises:
        RowLocalityError: it does.
    """

    def gradients(block: Array) -> Array:
        return objective.gradients(block, theta)

    function = RowFunction(gradients, "objective", code=objective)
    found = function.attempt(records, len(records))
    if found is not None:
        function.check(records, np.ones(len(records), dtype=bool), found)


@lru_cache(maxsize=64)
def check_objective(objective: Objective[Any]) -> None:
    """Tries to break the stated bounds on random records at random θ of many lengths.

    What `rounding` says is taken on trust.

    Raises:
        ValueError: a bound is broken, a gradient is not the derivative of the value, a Hessian is
            not symmetric positive semidefinite, or the null record has a gradient.
        RowLocalityError: a record's gradient depends on other records.
    """
    rng = np.random.default_rng(0)
    name, d = type(objective).__name__, objective.dim
    records = np.asarray(objective.examples(rng, 200), dtype=np.float64)

    def refuse(what: str, found: float, stated: float) -> None:
        raise ValueError(f"{name}: {what} = {stated:g} is stated, and {found:.6g} was found")

    if records.shape != (200, objective.domain.size):
        raise ValueError(f"{name}: examples of shape {records.shape}, not (200, domain.size)")
    for length in (0.0, 0.1, 1.0, 3.0, 10.0, 100.0):
        theta = rng.standard_normal(d)
        theta *= length / np.linalg.norm(theta)
        gradients = objective.gradients(records, theta)
        hessians = objective.hessians(records, theta)
        norms = np.linalg.norm(gradients, axis=1)
        gaps = np.linalg.norm(gradients[:, None] - gradients[None], axis=2)
        traces = np.trace(hessians, axis1=1, axis2=2)
        depths = objective.values(records, 0 * theta) - objective.values(records, theta)
        spectra = np.linalg.eigvalsh((hessians + hessians.transpose(0, 2, 1)) / 2)
        ranks = (spectra > 1e-9 * objective.trace).sum(axis=1)
        for what, found, stated in (
            ("gradient_bound", norms.max(), objective.gradient_bound),
            ("difference", gaps.max(), objective.difference),
            ("trace", traces.max(), objective.trace),
            ("rank", ranks.max(), objective.rank),
            ("depth", depths.max(), objective.depth),
        ):
            if not found <= stated * (1 + 1e-9):
                refuse(what, float(found), float(stated))
        skew = np.abs(hessians - hessians.transpose(0, 2, 1)).max()
        if not min(-skew, spectra.min()) >= -1e-9 * objective.trace:
            raise ValueError(
                f"{name}: a Hessian is not symmetric positive semidefinite: not convex"
            )
        step = rng.standard_normal(d) * 1e-5
        ends = (objective.values(records, theta + k * step) for k in (1, -1))
        slopes = (next(ends) - next(ends)) / 2
        error = np.abs(slopes - gradients @ step).max()
        limit = 2 * objective.trace * float(step @ step) + 1e-12 * (1 + length)
        if not error <= limit:
            raise ValueError(f"{name}: its gradient is not the derivative of its value")
        if np.any(objective.gradients(objective.domain.null()[None], theta)):
            raise ValueError(f"{name}: the null record must have gradient 0 everywhere")
        spot_check(objective, records, theta)
        apart = np.abs(objective.hessian_sum(records, theta) - hessians.sum(axis=0)).max()
        if not apart <= 1e-9 * len(records) * objective.trace:
            raise ValueError(f"{name}: hessian_sum is not the sum of the Hessians")
    turns = rng.standard_normal((objective.span + 2, d)) * rng.choice([0.3, 3.0], (1, d))
    stacked = np.stack([objective.gradients(records, theta) for theta in turns], axis=1)
    sizes = np.linalg.svd(stacked, compute_uv=False)
    spans = (sizes > 1e-9 * objective.gradient_bound).sum(axis=1)
    if spans.max() > objective.span:
        refuse("span", float(spans.max()), objective.span)
