"""One contribution of a person to the sums of a Newton step, from all visits in a batch.

A person's gradients g_i and Hessians H_i of one batch are added up and scaled by

    w = min(1, bound / tr ΣH_i).

w depends on what was offered and on θ, not on what was chosen: with offers fixed within a batch,
E[w·Σg_i] = w·ΣH_i·(θ − θ*) to first order, so that scaled gradients and Hessians belong to one and
the same θ* and the step has no bias by the weights.  (The clip of the gradient, which comes after,
looks at choices, as it does for single rows; and whoever comes back because of what was chosen is
another matter, see `Participation`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from privlearn.mechanisms.choice_model import Answer, gradients, hessian_factors
from privlearn.rows.domains import Array


class Contribution(NamedTuple):
    """Of one row, or of a block with a leading axis."""

    gradient: Array
    """shape (d,)."""
    factors: Array
    """X of the Hessian XᵀX, shape (m, d)."""


def contributions(answer: Answer, theta: Array, *, outside: bool) -> Contribution:
    """Of single visits, unscaled; row by row."""
    return Contribution(
        gradients(answer, theta, outside=outside), hessian_factors(answer, theta, outside=outside)
    )


def scaled(bound: float) -> Callable[[Contribution], Contribution]:
    """Scales each row by its own w."""

    def scale(block: Contribution) -> Contribution:
        traces = np.einsum("nmd,nmd->n", block.factors, block.factors)
        weights = np.minimum(1.0, bound / np.maximum(traces, bound))
        return Contribution(
            block.gradient * weights[:, None], block.factors * np.sqrt(weights)[:, None, None]
        )

    return scale


def pooled(bound: float) -> Callable[[Contribution], Contribution]:
    """Makes one contribution of all of one person's; visits without a usable answer are left out.

    The factor of ΣH_i is the triangle R of a QR decomposition, shape (d, d), whatever the number
    of visits.
    """

    def combine(own: Contribution) -> Contribution:
        usable = np.isfinite(own.gradient).all(axis=1)
        dim = own.gradient.shape[1]
        stacked = own.factors[usable].reshape(-1, dim)
        trace = float(np.einsum("md,md->", stacked, stacked))
        weight = min(1.0, bound / max(trace, bound)) if usable.any() else np.nan
        triangle = np.linalg.qr(stacked, mode="r") if len(stacked) > dim else stacked
        factor = np.zeros((dim, dim))
        factor[: len(triangle)] = triangle
        total: Array = own.gradient[usable].sum(axis=0)
        return Contribution(weight * total, np.sqrt(weight) * factor)

    return combine
