"""Formulas that local learners share: links, scores of arms, and the least Gaussian noise."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import expit

from privlearn.losses.budgets import GaussianDP
from privlearn.losses.conversion import gaussian_mu
from privlearn.mechanisms import NoisyReport
from privlearn.rows.domains import Array, PSDTrace

Link = Literal["linear", "logistic", "poisson"]


def mean_of(link: str, indices: Array) -> Array:
    """Expected rewards at indices x·θ."""
    if link == "logistic":
        return np.asarray(expit(indices))
    return np.exp(np.minimum(indices, 20.0)) if link == "poisson" else indices


@lru_cache(maxsize=64)
def least_gaussian(domain: PSDTrace, epsilon: float, delta: float) -> NoisyReport[Array]:
    """The report of factors with the least noise that (ε, δ) allows."""
    return NoisyReport.calibrated(domain, GaussianDP(gaussian_mu(epsilon, delta)))


def optimistic(
    contexts: Array, theta: Array, root: Array | None, width: Array | None, *, shared: bool
) -> Array:
    """Scores x·θ_a + width_a·‖R_a x‖, shape (n, K); without R or width, x·θ_a.

    Rows are summed up one by one in the same order, so that a score depends on its own row only.

    Args:
        contexts: (n, K, d) if shared, else (n, d).
        theta: one row if shared, else K, shape (parts, d).
        root: R of every part, shape (parts, d, d).
        width: of every part, shape (parts,).
        shared: one θ for all arms, or one per arm.
    """
    form, images = ("nkd,kd->nk", "nkd,ked->nke") if shared else ("nd,kd->nk", "nd,ked->nke")
    arms = contexts.shape[1] if shared else len(theta)
    scores = np.einsum(form, contexts, np.broadcast_to(theta, (arms, theta.shape[1])))
    if root is None or width is None:
        return np.asarray(scores)
    spread = np.einsum(images, contexts, np.broadcast_to(root, (arms, *root.shape[1:])))
    return np.asarray(scores + width * np.sqrt(np.einsum("nke,nke->nk", spread, spread)))
