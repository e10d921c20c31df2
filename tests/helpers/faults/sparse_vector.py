"""The sparse vector technique: which of a stream of queries exceed a threshold.

Lyu, Su & Li, "Understanding the Sparse Vector Technique for Differential Privacy" (VLDB 2017),
compare six published variants.  All of them add noise to the threshold and to every query; they
differ in how much, and in when they stop.  Data are the query answers themselves, each of
sensitivity 1, less the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from faults.cases import sampling_fault
from privlearn.losses.budgets import PureDP
from privlearn.rows.domains import Array

Symbol = str | float
ABOVE, BELOW = "⊤", "⊥"
LYU = "Lyu, Su & Li 2017, Understanding the Sparse Vector Technique"


@dataclass(frozen=True, slots=True)
class SparseVector:
    """One variant, by its noise.

    Args:
        threshold: scale of the Laplace noise on the threshold.
        query: scale of the Laplace noise on each query; 0 for none.
        cutoff: stops after so many queries above; None: never.
        refresh: scale of the fresh noise on the threshold after each query above; None: it stays.
        values: whether the noisy value is released in place of ⊤.
    """

    threshold: float
    query: float
    cutoff: int | None = 1
    refresh: float | None = None
    values: bool = False

    def __call__(self, queries: Array, rng: np.random.Generator) -> tuple[Symbol, ...]:
        level = rng.laplace(scale=self.threshold)
        noisy = (
            queries + rng.laplace(scale=self.query, size=len(queries)) if self.query else queries
        )
        left, said = self.cutoff, list[Symbol]()
        for value in noisy.tolist():
            if value < level:
                said.append(BELOW)
                continue
            said.append(value if self.values else ABOVE)
            if left is not None:
                left -= 1
                if left == 0:
                    break
            if self.refresh is not None:
                level = rng.laplace(scale=self.refresh)
        return tuple(said)


def opposed(below: int, above: int, *, low: float = 0.0, high: float = 1.0) -> tuple[Array, Array]:
    """Queries of which the first rise by 1 and the others fall by 1: no query is monotone."""
    first = np.array([low] * below + [high] * above)
    return first, first + np.array([1.0] * below + [-1.0] * above)


def lyu_1(epsilon: float, cutoff: int) -> SparseVector:
    """Lyu et al., Algorithm 1: ε/2 for the threshold, ε/2 for the queries above."""
    return SparseVector(2 / epsilon, 4 * cutoff / epsilon, cutoff)


def lyu_2(epsilon: float, cutoff: int) -> SparseVector:
    """Lyu et al., Algorithm 2, after Dwork & Roth 2014: fresh noise on the threshold."""
    return SparseVector(2 * cutoff / epsilon, 4 * cutoff / epsilon, cutoff, 2 * cutoff / epsilon)


FAULTS = (
    sampling_fault(
        "sparse vector releasing the noisy value",
        "Values above the threshold are released with the noise they were compared with, which "
        "tells how low the noisy threshold must be.",
        f"{LYU}, Algorithm 3 (Roth's lecture notes 2011): no ε at all",
        SparseVector(threshold=1.0, query=1.0, values=True),
        lyu_1(2, 1),
        PureDP(2),
        opposed(6, 1, low=-0.5),
        samples=20_000,  # the leak is in rare outputs
    ),
    sampling_fault(
        "sparse vector with a quarter of the budget for the threshold",
        "The noise on the queries grows neither with the cutoff nor for queries that move in both "
        "directions.",
        f"{LYU}, Algorithm 4 (Lee & Clifton 2014): (1 + 6c)/4·ε, not ε",
        SparseVector(threshold=4.0, query=4 / 3, cutoff=4),
        lyu_1(1, 4),
        PureDP(1),
        opposed(4, 4),
    ),
    sampling_fault(
        "sparse vector without noise on the queries",
        "Only the threshold is noisy, so two queries are compared exactly.",
        f"{LYU}, Algorithm 5 (Stoddard, Chen & Machanavajjhala 2014): no ε at all",
        SparseVector(threshold=2.0, query=0.0, cutoff=None),
        lyu_2(1, 2),
        PureDP(1),
        opposed(1, 1),
    ),
    sampling_fault(
        "sparse vector without a cutoff",
        "Any number of queries above the threshold is answered at the price of one.",
        f"{LYU}, Algorithm 6 (Chen, Xiao, Zhang & Xu 2015): no ε at all",
        SparseVector(threshold=2.0, query=2.0, cutoff=None),
        lyu_2(1, 20),
        PureDP(1),
        opposed(20, 20),
    ),
    sampling_fault(
        "generalised private threshold testing",
        "As without a cutoff, with the budget split unevenly between threshold and queries.",
        "Chen & Machanavajjhala 2015, On the privacy properties of variants on the sparse vector "
        f"technique, GPTT; {LYU}, Section 3.3",
        SparseVector(threshold=4.0, query=4 / 3, cutoff=None),
        SparseVector(threshold=4.0, query=2 * 40 * 4 / 3, cutoff=40),
        PureDP(1),
        opposed(20, 20),
    ),
    sampling_fault(
        "sparse vector with an unsplit budget",
        "Threshold and queries get the noise of the whole ε each: 2ε.",
        "Dwork & Roth 2014, Theorem 3.23 splits it; a usual slip",
        SparseVector(threshold=0.5, query=1.0),
        lyu_1(2, 1),
        PureDP(2),
        opposed(6, 1, low=-0.5, high=0.5),
    ),
    sampling_fault(
        "sparse vector with the query noise of a single answer",
        "The queries of a sparse vector with cutoff c get the noise of a cutoff of 1.",
        f"{LYU}, Section 4.2: the noise must grow with c",
        SparseVector(threshold=2.0, query=4.0, cutoff=16),
        lyu_1(1, 16),
        PureDP(1),
        opposed(16, 16),
    ),
)
