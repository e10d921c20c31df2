"""A belief from batches of unknown sizes, whose noise may be correlated.

Under a rule of participation nobody may know how many rows of a batch were learned.  What a batch
knows of the parameter is in its Hessian sum, which is released: its trace, a sum of d noisy
entries, says how much of all information the batch has.

With G_j = H_j·θ_j − g_j for the gradient sum g_j at θ_j, to first order G_j = H_j·θ* + e_j.  The
errors e_j are sampling noise of covariance H_j (the information equality; less for rows of weight
below 1) and privacy noise, together of covariance std²·(M·Mᵀ)_jl·I between batches j and l, where M
says how the noise of the sums is mixed.  The belief is the Gauss-Markov estimate from all G_j and
the prior; for M = I it is that of `privlearn.learners.newton`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self, cast, final

import numpy as np

from privlearn.domains import Array
from privlearn.learners.newton import Belief, shrunk

_Batch = tuple[Array, Array, Array]
"""θ_j, g_j and H_j."""


@final
@dataclass(slots=True)
class MixedStatistics:
    """All that was released so far, and the belief it gives; pure post-processing.

    Args:
        dim: d.
        prior_precision: of the prior N(0, I/prior_precision).
        gradient_std, hessian_std: of the independent noise behind each gradient coordinate, and
            each svec coordinate of a Hessian.
        mixing: M, shape (batches, batches), lower triangular.
    """

    dim: int
    prior_precision: float
    gradient_std: float
    hessian_std: float
    mixing: Array
    batches: list[_Batch] = field(default_factory=list)

    def add(self, users: int, at: Array, gradient: Array, hessian: Array) -> None:
        """Adds the sums over the next batch, released at the parameter ``at``."""
        self.batches.append((at, gradient, hessian))

    def _covariance(self) -> Array:
        """M·Mᵀ of the batches so far."""
        mixing = self.mixing[: len(self.batches), : len(self.batches)]
        return np.asarray(mixing @ mixing.T)

    def belief(self) -> Belief:
        """The belief given everything added so far."""
        precision = self.prior_precision * np.eye(self.dim)
        if not self.batches:
            return Belief(np.zeros(self.dim), precision)
        hessians = [_positive(hessian) for hessian in self._denoised_hessians()]
        noise = np.kron(self._covariance() * self.gradient_std**2, np.eye(self.dim))
        for j, hessian in enumerate(hessians):
            own = slice(j * self.dim, (j + 1) * self.dim)
            noise[own, own] += hessian
        design = np.concatenate(hessians)
        seen = [h @ at - g for h, (at, g, _) in zip(hessians, self.batches, strict=True)]
        weighed = np.linalg.solve(noise, np.column_stack([design, np.concatenate(seen)]))
        information = design.T @ weighed
        precision = precision + (information[:, :-1] + information[:, :-1].T) / 2
        mean = cast(Array, np.linalg.solve(precision, information[:, -1]))
        return Belief(mean, precision)

    def _denoised_hessians(self) -> list[Array]:
        """As for batches of known sizes (`BatchStatistics`), with shares by the released traces."""
        covariance, n = self._covariance(), len(self.batches)
        sums = [hessian for _, _, hessian in self.batches]
        traces = np.maximum([float(np.trace(hessian)) for hessian in sums], 0.0)
        shares = traces / traces.sum() if traces.any() else np.full(n, 1 / n)
        total = cast(Array, np.sum(sums, axis=0))
        eye = max(float(np.trace(total)) / self.dim, 0.0) * np.eye(self.dim)
        coordinates = self.dim * (self.dim + 1) / 2
        variance = self.hessian_std**2
        whole = shrunk(total, eye, variance * float(covariance.sum()) * (coordinates - 1))
        hessians = []
        for j, (share, hessian) in enumerate(zip(shares, sums, strict=True)):
            contrast = np.full(n, -share)
            contrast[j] += 1
            energy = variance * float(contrast @ covariance @ contrast) * coordinates
            difference = hessian - share * total
            hessians.append(share * whole + shrunk(difference, np.zeros_like(difference), energy))
        return hessians

    def to_dict(self) -> dict[str, Any]:
        """JSON form of what was added."""
        return {"batches": [[x.tolist() for x in batch] for batch in self.batches]}

    def restored(self, data: dict[str, Any]) -> Self:
        """Takes back what `to_dict` gave."""
        self.batches = [
            (np.array(at), np.array(gradient), np.array(hessian))
            for at, gradient, hessian in data["batches"]
        ]
        return self


def _positive(matrix: Array) -> Array:
    """The nearest positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
