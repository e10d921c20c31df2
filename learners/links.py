"""Links of generalized linear models, and formulas that local learners share.

A link says what reward is to be expected at an index z = x·θ: μ(z).  An estimating equation is
Σ (r − μ(x·θ))·x = 0, with the derivative −Σ μ'(x·θ)·xxᵀ; for the linear, the logistic and the
Poisson model it is that of maximum likelihood, and for probit it has bounded terms, which the score
of the likelihood has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import numpy as np
from scipy.special import expit, ndtr

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


LINKS = ("linear", "logistic", "probit", "poisson")


@final
@dataclass(frozen=True, slots=True)
class BoundedLink:
    """A link for rewards in a public range, and the public bounds that follow from it.

    Rewards r enter as (r − offset)/unit: logistic and probit ones lie in [0, 1] then, linear ones
    in [−½, ½], and counts stay as they are.

    Args:
        name: one of `LINKS`.
        low, high: ends of the range.
        max_rate: the largest mean of counts, which is no more than ``high``.
    """

    name: str
    low: float
    high: float
    max_rate: float

    @property
    def offset(self) -> float:
        match self.name:
            case "linear":
                return self.low / 2 + self.high / 2
            case "poisson":
                return 0.0
        return self.low

    @property
    def unit(self) -> float:
        return 1.0 if self.name == "poisson" else self.high - self.low

    @property
    def largest_slope(self) -> float:
        """L, the largest μ'(z): ¼ for logistic, φ(0) = 1/√(2π) for probit, the largest rate."""
        match self.name:
            case "logistic":
                return 0.25
            case "probit":
                return 1 / math.sqrt(2 * math.pi)
            case "poisson":
                return self.max_rate
        return 1.0

    @property
    def residual_unit(self) -> float:
        """What bounds on residuals r − μ are counted in, in the unit above.

        The width of the range, and for counts the largest standard deviation, √max_rate.
        """
        return math.sqrt(self.max_rate) if self.name == "poisson" else 1.0

    @property
    def dispersion(self) -> float:
        """φ, a bound on the variance of rewards as part of their slope μ'(z), if the model holds.

        A variable of mean μ in [0, 1] has at most the variance μ(1 − μ) <= ¼, which is the slope of
        the logistic link; for probit it is Φ(1 − Φ)/φ, largest at 0.
        """
        return {"linear": 0.25, "probit": math.sqrt(2 * math.pi) / 4}.get(self.name, 1.0)

    def mean(self, indices: Array) -> Array:
        """μ(z)."""
        match self.name:
            case "probit":
                return np.asarray(ndtr(indices))
            case "poisson":
                return np.exp(np.minimum(indices, math.log(self.max_rate)))
        return mean_of(self.name, indices)

    def slope(self, means: Array, indices: Array) -> Array:
        """μ'(z), of both μ(z) and z."""
        match self.name:
            case "linear":
                return np.ones_like(indices)
            case "logistic":
                return means * (1 - means)
            case "probit":
                return np.exp(-indices * indices / 2) / math.sqrt(2 * math.pi)
        return means

    def weights(self, means: Array, bound: float) -> Array:
        """By what rows are weighted so that no residual |r − μ| exceeds ``bound``; μ in the range.

        The weight follows from the mean, so that an equation with weights has the same solution;
        where residuals are cut it has another one.  Counts have weight 1, as nearly all lie nearer
        to their mean than the range says.
        """
        if self.name == "poisson":
            return np.ones_like(means)
        low, high = (self.low - self.offset) / self.unit, (self.high - self.offset) / self.unit
        inside = np.minimum(np.maximum(means, low), high)
        return np.minimum(1.0, bound / np.maximum(inside - low, high - inside))

    def rewards(self, indices: Array) -> Array:
        """Expected rewards, in the unit that they are declared in."""
        return self.offset + self.unit * self.mean(indices)


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
