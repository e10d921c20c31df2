"""A belief about θ that weighs batches by what each knows; their noise may be correlated.

What a batch knows of the parameter is in its Hessian sum, which is released: its trace, a sum of d
noisy entries, says how much of all information the batch has.  (Under a rule of participation
nobody may know how many rows of a batch were learned.)

With G_j = H_j·θ_j − g_j for the gradient sum g_j at θ_j, to first order G_j = H_j·θ* + e_j.  The
errors e_j are sampling noise of covariance H_j (the information equality; less for rows of weight
below 1) and privacy noise, of covariance N_jl·I between batches j and l.  The belief is the
Gauss-Markov estimate from all G_j and the prior.

It needs Hessians of single batches, which must stand out of the noise.  Those of choices among
several items do; where they do not, as in generalized linear models with one reward for each user,
`privlearn.learners.pooled_belief` is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, final

import numpy as np

from privlearn.learners.newton import Belief, shrunk
from privlearn.rows.domains import Array

_Batch = tuple[Array, Array, Array]  # θ_j, g_j and H_j

Noise = Callable[[Sequence[int]], Array]
"""From batches, of which there may be gaps, to the covariance N of the noise of their sums."""


@final
@dataclass(slots=True)
class MixedStatistics:
    """All that was released so far, and the belief it gives; pure post-processing.

    Args:
        dim: d.
        prior_precision: of the prior N(0, I/prior_precision).
        gradient_noise, hessian_noise: N of each gradient coordinate, and each svec coordinate of a
            Hessian.

    Attributes:
        belief: after all batches that were added.
    """

    dim: int
    prior_precision: float
    gradient_noise: Noise
    hessian_noise: Noise
    batches: list[_Batch] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    belief: Belief = field(init=False)

    def __post_init__(self) -> None:
        self.belief = self._estimate()

    def add(self, batch: int, at: Array, gradient: Array, hessian: Array) -> None:
        """Adds the sums that a batch released at the parameter ``at``."""
        self.numbers.append(batch)
        self.batches.append((at, gradient, hessian))
        self.belief = self._estimate()

    def _estimate(self) -> Belief:
        precision = self.prior_precision * np.eye(self.dim)
        if not self.batches:
            return Belief(np.zeros(self.dim), precision)
        hessians = [_positive(hessian) for hessian in self._denoised_hessians()]
        noise = np.kron(self.gradient_noise(self.numbers), np.eye(self.dim))
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
        covariance, n = self.hessian_noise(self.numbers), len(self.batches)
        sums = [hessian for _, _, hessian in self.batches]
        traces = np.maximum([float(np.trace(hessian)) for hessian in sums], 0.0)
        shares = traces / traces.sum() if traces.any() else np.full(n, 1 / n)
        total = cast(Array, np.sum(sums, axis=0))
        eye = max(float(np.trace(total)) / self.dim, 0.0) * np.eye(self.dim)
        coordinates = self.dim * (self.dim + 1) / 2
        whole = shrunk(total, eye, float(covariance.sum()) * (coordinates - 1))
        hessians = []
        for j, (share, hessian) in enumerate(zip(shares, sums, strict=True)):
            contrast = np.full(n, -share)
            contrast[j] += 1
            energy = float(contrast @ covariance @ contrast) * coordinates
            difference = hessian - share * total
            hessians.append(share * whole + shrunk(difference, np.zeros_like(difference), energy))
        return hessians

    def to_dict(self) -> dict[str, Any]:
        return {"batches": [[x.tolist() for x in batch] for batch in self.batches]}


def _positive(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
