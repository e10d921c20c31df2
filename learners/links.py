"""Formulas that local learners share: links, scores of arms, and the least Gaussian noise."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, expit

from privlearn.budgets import GaussianDP
from privlearn.domains import Array, PSDTrace
from privlearn.mechanisms import NoisyReport

Link = Literal["linear", "logistic", "poisson"]
_NODES, _WEIGHTS = (half / 2 for half in np.polynomial.legendre.leggauss(20))
_NODES += 0.5
"""Gauss and Legendre's, on [0, 1]."""


def mean_of(link: str, indices: Array) -> Array:
    """Expected rewards at indices x·θ."""
    if link == "logistic":
        return np.asarray(expit(indices))
    return np.exp(np.minimum(indices, 20.0)) if link == "poisson" else indices


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ with which a Gaussian mechanism is (ε, δ)-DP, a billionth too small.

    Raises:
        ValueError: ``delta`` is not in [1e-200, 0.999], or ``epsilon`` not in (0, 1e9].
    """
    if not 1e-200 <= delta <= 0.999:
        raise ValueError(
            f"delta = {delta!r}: Gaussian noise needs a delta in (0, 1), here in [1e-200, 0.999]"
        )
    if not 0 < epsilon <= 1e9:
        raise ValueError(f"epsilon = {epsilon!r}: must lie in (0, 1e9]")
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        return max(_log_gaussian_delta(math.exp(log_mu), epsilon) - target, -1e6)

    # the curve's slope in μ is at most .4, and at the other end it is above 1 − 1e-6
    ends = target, math.log(math.sqrt(2 * epsilon) + 10)
    mu = math.exp(brentq(excess, *ends, xtol=1e-13)) * (1 - 1e-9)
    while _log_gaussian_delta(mu, epsilon) > target:
        mu *= 1 - 1e-9
    return mu


def _log_gaussian_delta(mu: float, epsilon: float) -> float:
    """log δ(ε) of a Gaussian mechanism, to about 12 digits of δ also where it is tiny.

    δ = φ(t)·(M(t) − M(t + μ)) with t = ε/μ − μ/2 and Mills' ratio M, because e^ε·φ(t + μ) = φ(t).
    For small μ the difference is the integral of −M′ = 1 − x·M(x), which loses no digits.
    """
    t = epsilon / mu - mu / 2
    if mu < 1:
        points = t + mu * _NODES
        gap = mu * float(_WEIGHTS @ (1 - points * _mills(points)))
    else:
        gap = float(_mills(t) - _mills(t + mu))
    return math.log(max(gap, 1e-320)) - t * t / 2 - math.log(2 * math.pi) / 2


def _mills(x: Any) -> Any:
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


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
