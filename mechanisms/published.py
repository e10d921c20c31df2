r"""Noise levels as printed in Cho & Sun, *Privacy-Preserving Dynamic Assortment Selection*.

Here to reproduce figures.  None of these functions promises anything: a mechanism made with them is
priced by its true loss, like any other (``docs/errata/``).  Arguments are the paper's *nominal*
budgets.  `corrected_*` keep the (ε, δ) benchmark's method and repair its constants.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from privlearn.values.validate import count, positive, probability

GRADIENT_BOUND = 2.0
"""L for the multinomial logit (right)."""
EIGENVALUE_BOUND = 4.0
"""η as printed; the truth is 1, even for the trace (``docs/errata/hessian.md``)."""
SHARE = 0.5
"""q, the part of the budget for the density ratio; 1 − q pays for the determinants."""


class Tilt(NamedTuple):
    """Ridge weight Δ and standard deviation σ of the tilt b, per coordinate."""

    ridge: float
    noise_std: float


def printed_rank(dim: int, max_items: int) -> int:
    """R = min(d, K − 1) as printed; the truth is min(d, K).

    Raises:
        ValueError: K = 1, where the printed Δ divides by zero.
    """
    rank = min(count(dim=dim), count(max_items=max_items) - 1)
    if rank == 0:
        raise ValueError("max_items = 1: the published rank min(d, K - 1) is 0 and Δ undefined")
    return rank


def theorem_1(rho: float, dim: int, rank: int) -> Tilt:
    """Theorem 1 for one call: Δ = η/(e^{(1−q)ρ/R} − 1), σ = L(√(d+2qρ) + √d)/(qρ)."""
    positive(rho=rho)
    width = math.sqrt(dim + 2 * SHARE * rho) + math.sqrt(dim)
    return Tilt(
        EIGENVALUE_BOUND / math.expm1((1 - SHARE) * rho / rank),
        GRADIENT_BOUND * width / (SHARE * rho),
    )


def theorem_5(
    epsilon: float,
    delta: float,
    dim: int,
    rank: int,
    *,
    gradient_bound: float = GRADIENT_BOUND,
    eigenvalue: float = EIGENVALUE_BOUND,
) -> Tilt:
    """Theorem 5 as printed: Δ = (1−q)Rη/ε, which should be Rη/((1−q)ε)."""
    positive(epsilon=epsilon)
    return Tilt(
        (1 - SHARE) * rank * eigenvalue / epsilon,
        gradient_bound * _width(epsilon, delta, dim) / (SHARE * epsilon),
    )


def _width(epsilon: float, delta: float, dim: int) -> float:
    x = math.log(2 / probability(delta=delta))
    radius = dim + 2 * math.sqrt(dim * x) + 2 * x
    return math.sqrt(radius) + math.sqrt(radius + 2 * SHARE * epsilon)


def algorithm_4(epsilon: float, delta: float, dim: int, rank: int, calls: int) -> Tilt:
    """Algorithm 4 within a total (ε, δ) over all calls: Δ = 2R/ε′, σ = 4L(…)/ε′ as printed."""
    each = epsilon / math.sqrt(8 * count(calls=calls) * math.log(1 / probability(delta=delta)))
    width = _width(each, delta / (2 * calls), dim)
    return Tilt(2 * rank / each, 4 * GRADIENT_BOUND * width / each)


def corrected_algorithm_4(epsilon: float, delta: float, dim: int, calls: int) -> Tilt:
    """Algorithm 4 with Δ >= T/((1−q)ε′) for the true trace T = 1, σ = L(…)/(qε′), ln(2/δ).

    Advanced composition of D calls at (ε′, δ/(2D)) costs (ε, δ/2 + δ/2) with ε′ = ε/√(8D ln(2/δ)),
    for ε < 1; beyond that only the accountant's price counts.
    """
    each = epsilon / math.sqrt(8 * count(calls=calls) * math.log(2 / probability(delta=delta)))
    width = _width(each, delta / (2 * calls), dim)
    return Tilt(1 / ((1 - SHARE) * each), GRADIENT_BOUND * width / (SHARE * each))


def tree_depth(horizon: int) -> int:
    """m = 1 + ⌈log₂ T⌉ as printed; a user is in at most ⌊log₂ T⌋ + 1 nodes."""
    return 1 + math.ceil(math.log2(count(horizon=horizon)))


def algorithm_3(rho: float, max_items: int, horizon: int) -> float:
    """Standard deviation per entry and node of the Gram tree: σ² = Km/ρ₂, for K²m′/ρ₂."""
    return math.sqrt(max_items * tree_depth(horizon) / positive(rho=rho))


def algorithm_5(epsilon: float, delta: float, max_items: int, horizon: int) -> float:
    """σ of Algorithm 5, before the symmetrisation (N′ + N′ᵀ)/√2: σ² = 32mK ln²(4/δ)/ε²."""
    depth = tree_depth(horizon)
    log = math.log(4 / probability(delta=delta))
    return math.sqrt(32 * depth * max_items) * log / positive(epsilon=epsilon)


def corrected_algorithm_5(epsilon: float, delta: float, max_items: int, horizon: int) -> float:
    """Algorithm 5 with sensitivity √2·K and (ε/√(8m ln(2/δ)), δ/(2m)) per node.

    The classical Gaussian mechanism, √2·K·√(2 ln(1.25/δ_node))/ε_node, per svec coordinate.
    """
    nodes = math.floor(math.log2(count(horizon=horizon))) + 1
    each = positive(epsilon=epsilon) / math.sqrt(8 * nodes * math.log(2 / probability(delta=delta)))
    spread = math.sqrt(2) * max_items
    return spread * math.sqrt(2 * math.log(1.25 * 2 * nodes / delta)) / each


def lemma_s7(dim: int, horizon: int) -> float:
    """Operator norm of a symmetric N(0, 1) matrix, exceeded with probability 1/T² at most.

    The bracket of Lemma S6; at d = 1 its third term is its limit, 0.
    """
    log = math.log(count(dim=dim))
    ratio = math.cbrt(log / dim)
    third = 6 * (1 + ratio) * math.sqrt(log) / math.sqrt(math.log1p(ratio)) if log > 0 else 0.0
    tail = 2 * math.sqrt(4 * math.log(count(horizon=horizon)))
    return 2 * math.sqrt(dim) + 2 * math.pow(dim, 1 / 6) * math.cbrt(log) + third + tail
