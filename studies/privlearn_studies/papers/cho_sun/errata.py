"""Published calibrations of Cho & Sun, "Privacy-Preserving Dynamic Assortment Selection"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise

import numpy as np

from privlearn.losses import GaussianLoss, MinimizerLoss, compose
from privlearn.losses.conversion import (
    gaussian_epsilon,
    gaussian_mu_squared,
    renyi_epsilon,
    zcdp_epsilon,
)
from privlearn.mechanisms import published
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, gradients, hessian_sum
from privlearn.rows.domains import Array, PSDTrace
from privlearn.values.exact import float_up
from privlearn_studies.papers.errata_table import (
    DELTA,
    EPSILON,
    Numbers,
    gaussian,
    numbers,
    page,
    tree_nodes,
    zcdp,
)

PAPER = "Cho & Sun"
DIM, ITEMS = 5, 10
"""d and K of the experiments."""


# The Gram matrices ------------------------------------------------------------------------------


@page(
    "gram",
    PAPER,
    """
    gram-sensitivity | Lemma S5 | Frobenius distance
        | K = 10 items per user | WRONG: √2·K, not √(2K)
    gram-nodes | Algorithm 3 | tree nodes per user
        | T = 5000; the proof prints ⌊log T⌋ + 1 | WRONG: ceiling for floor, harmless
    gram-zcdp | Theorem 2, Algorithm 3 | ρ
        | K = 10, T = 1024, ρ₂ = 1 | WRONG: K·m′/m times the claim
    gram-zcdp-5000 | Theorem 2, Algorithm 3 | ρ
        | K = 5, T = 5000, ρ₂ = 1 | WRONG: K·m′/m times the claim
    gram-approx | Algorithm 5 | ε at δ₂
        | K = 10, T = 1024, ε₂ = {EPSILON:g}, δ₂ = {DELTA:g} | REPAIRABLE: holds by slack alone
    gram-approx-variance | Algorithm 5 | noise variance needed for the claim
        | K = 10, T = 1024, ε₂ = {EPSILON:g}, δ₂ = {DELTA:g}; {simple:.1f} times too much already by
        ρ = ε²/(4 ln(1/δ)) | REPAIRABLE: too much noise
    benchmark-conversion | Section 5.1, Figure 7 | ε at δ = 1/T²
        | ρ = 1, T = 10000; ε = ρ + 4ρ log T as printed | WRONG: Lemma S13 has a root
    """,
)
def gram() -> Iterator[Numbers]:
    """Noise on the sum of Gram matrices."""
    diameter = PSDTrace(ITEMS, DIM).diameter()
    yield numbers("gram-sensitivity", math.sqrt(2 * ITEMS), diameter)
    yield numbers("gram-nodes", published.tree_depth(5000), tree_nodes(5000))
    yield numbers("gram-zcdp", 1.0, float(gram_rho(Fraction(1), ITEMS, 1024)))
    yield numbers("gram-zcdp-5000", 1.0, float(gram_rho(Fraction(1), 5, 5000)))
    std = published.algorithm_5(EPSILON, DELTA, ITEMS, 1024)
    # N = (N′ + N′ᵀ)/√2 has variance 2σ² on the diagonal, σ² off it: std √2·σ per svec coordinate
    mass = float_up(2 * zcdp(gaussian(diameter, math.sqrt(2) * std) * tree_nodes(1024)))
    enough = gaussian_mu_squared(EPSILON, DELTA)
    simple = EPSILON**2 / (4 * math.log(1 / DELTA)) / (mass / 2)
    yield numbers("gram-approx", EPSILON, gaussian_epsilon(mass, DELTA).value)
    yield numbers("gram-approx-variance", std**2, std**2 * mass / enough, simple=simple)
    true = zcdp_epsilon(1.0, 10_000**-2.0).value
    yield numbers("benchmark-conversion", 1.0 + 4 * math.log(10_000), true, "<=")


def gram_rho(rho: Fraction, items: int, horizon: int) -> Fraction:
    """The zCDP constant of Algorithm 3 of Cho & Sun with σ² = Km/ρ₂, exactly."""
    variance = items * published.tree_depth(horizon) / rho
    return zcdp(GaussianLoss(_farthest_grams(items) / variance) * tree_nodes(horizon))


def _farthest_grams(items: int) -> int:
    """‖A − B‖_F² of a user with K items e₁ and one with K items e₂, the diameter of `PSDTrace`."""
    first, second = (np.repeat(row[None], items, axis=0) for row in np.eye(2, dtype=np.int64))
    return int(((first.T @ first - second.T @ second) ** 2).sum())


# The constants of the multinomial logit ---------------------------------------------------------


@page(
    "hessian",
    PAPER,
    """
    hessian-rank | Section S.1.3 | rank
        | d = 5, K = 3; largest of 100 random users | WRONG: min(d, K), not min(d, K−1)
    hessian-eigenvalue | Section S.1.3 | largest eigenvalue
        | d = K = 2, by search; less than 1 is proved | WRONG: 1, even for the trace
    gradient-difference | Section S.1.3 | distance of two users' gradients
        | 2L with L = 2; d = K = 2, by search | CORRECT: the supremum
    """,
)
def hessian() -> Iterator[Numbers]:
    """Bounds on derivatives of one user's loss."""
    yield numbers("hessian-rank", published.printed_rank(DIM, 3), _largest_rank(DIM, 3))
    yield numbers("hessian-eigenvalue", published.EIGENVALUE_BOUND, _largest_eigenvalue())
    yield numbers("gradient-difference", 2 * published.GRADIENT_BOUND, _largest_difference())


def _answer(features: Array, choice: int = NO_ITEM) -> Answer:
    return Answer(features[None], np.ones((1, len(features))), np.array([choice]))


def _largest_rank(dim: int, items: int) -> int:
    rng = np.random.default_rng(0)
    ranks = []
    for _ in range(100):
        features = rng.normal(size=(items, dim))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        hessian = hessian_sum(_answer(features), rng.normal(size=dim), outside=True)
        ranks.append(int(np.linalg.matrix_rank(hessian)))
    return max(ranks)


_NARROW = (1e-1, 1e-2, 1e-3)
_STEEP = (1e1, 1e2, 1e3, 1e4, 1e5)


def _largest_eigenvalue() -> float:
    """Items (e, ±√(1−e²)) and θ = (c, 0): the supremum 1 is approached as e → 0, ce → ∞."""
    best = 0.0
    for e in _NARROW:
        side = math.sqrt(1 - e * e)
        user = _answer(np.array([[e, side], [e, -side]]))
        for c in _STEEP:
            hessian = hessian_sum(user, np.array([c, 0.0]), outside=True)
            best = max(best, float(np.linalg.eigvalsh(hessian)[-1]))
    return best


def _largest_difference() -> float:
    """Items ±(e, √(1−e²)) against ±(e, −√(1−e²)), both users buying the unlikely item."""
    best = 0.0
    for e in _NARROW:
        side = math.sqrt(1 - e * e)
        one, other = (
            _answer(np.array([[e, sign * side], [-e, -sign * side]]), choice=1) for sign in (1, -1)
        )
        for c in _STEEP:
            theta = np.array([c, 0.0])
            gap = gradients(one, theta, outside=True) - gradients(other, theta, outside=True)
            best = max(best, float(np.linalg.norm(gap)))
    return best


# Objective perturbation -------------------------------------------------------------------------


@page(
    "objective-perturbation",
    PAPER,
    """
    objective-zcdp | Theorem 1, Algorithm 2 | ρ
        | d = 5, K = 10, q = 1/2, one call; at least {least:.2g}
        | REPAIRABLE: same constants, new proof
    objective-zcdp-calls | Corollary 1 | ε at δ = {DELTA:g}
        | d = 5, K = 10, q = 1/2, ρ₁ = 1 over D_MLE = 10 calls
        | REPAIRABLE: far too much noise
    objective-approx | Theorem 5 | δ at ε = 0.5
        | d = R = L = η = 1, Huber loss against none; log cosh: {smooth:.2g}
        | WRONG: Δ too small by (1−q)²
    objective-algorithm-4 | Algorithm 4 | ε at δ = {DELTA:g}
        | d = 5, K = 10, q = 1/2, ε₁ = {EPSILON:g} over D_MLE = 10 calls
        | REPAIRABLE: holds for K ≥ 2 by slack
    """,
)
def objective() -> Iterator[Numbers]:
    """Private fits by objective perturbation."""
    rank, calls = published.printed_rank(DIM, ITEMS), 10
    tilt = published.theorem_1(0.1, DIM, rank)
    # users with the same offer ±x who buy differently: a Gaussian mechanism with shift 2
    least = float(zcdp(gaussian(2.0, tilt.noise_std)))
    yield numbers("objective-zcdp", 0.1, float(zcdp(_minimizer(tilt))), "<=", least=least)
    ten = _minimizer(published.theorem_1(1 / calls, DIM, rank)) * calls
    claimed, true = zcdp_epsilon(1.0, DELTA).value, renyi_epsilon(ten.renyi, DELTA).value
    yield numbers("objective-zcdp-calls", claimed, true, "<=")
    tilt = published.theorem_5(0.5, DELTA, 1, 1, gradient_bound=1, eigenvalue=1)
    smooth = _one_dimensional_delta(
        tilt, 0.5, math.tanh, lambda a: 1 / math.cosh(a) ** 2 if abs(a) < 300 else 0.0
    )
    huber = _one_dimensional_delta(
        tilt, 0.5, lambda a: min(max(a, -1.0), 1.0), lambda a: float(abs(a) < 1)
    )
    yield numbers("objective-approx", DELTA, huber, ">=", smooth=smooth)
    ten = _minimizer(published.algorithm_4(EPSILON, DELTA, DIM, rank, calls)) * calls
    true = renyi_epsilon(ten.renyi, DELTA).value
    yield numbers("objective-algorithm-4", EPSILON, true, "<=")


def _minimizer(tilt: published.Tilt, dim: int = DIM, items: int = ITEMS) -> MinimizerLoss:
    """The loss of one fit of the multinomial logit with its true constants."""
    return MinimizerLoss(
        difference=2 * published.GRADIENT_BOUND,
        trace=1.0,
        rank=min(dim, items),
        directions=min(dim, 2 * items),
        ridge=tilt.ridge,
        noise_std=tilt.noise_std,
    )


def _one_dimensional_delta(
    tilt: published.Tilt,
    epsilon: float,
    slope: Callable[[float], float],
    curvature: Callable[[float], float],
) -> float:
    """∫(p − e^ε p′)₊ for a single user with the given loss against one whose loss is 0."""
    from scipy.integrate import quad

    ridge, std = tilt

    def density(a: float, gradient: float, hessian: float) -> float:
        tail = math.exp(-(((gradient + ridge * a) / std) ** 2) / 2)
        return tail * (hessian + ridge) / (std * math.sqrt(2 * math.pi))

    def excess(a: float) -> float:
        null = density(a, 0.0, 0.0)
        return max(density(a, slope(a), curvature(a)) - math.exp(epsilon) * null, 0.0)

    far = 40 * std / ridge
    edges = (-far, -1.0, 1.0, far)
    parts = (quad(excess, low, high, limit=500, epsabs=1e-13)[0] for low, high in pairwise(edges))
    return math.fsum(parts)


# The algorithm around them ----------------------------------------------------------------------


@page(
    "dpmnl",
    PAPER,
    """
    update-charge | Algorithm 1, line 16 | ρ
        | ρ₁ = 1, D_MLE = 8, fits priced as in the paper; by Theorem N: {actual:.2g}
        | AMBIGUOUS: must be ρ₁/D_MLE
    update-rule | Algorithm 1, line 15 | fits after T₀
        | d = 5, K = 10, isotropic, T₀ = 500, T = 10000; claimed: doubling since the last fit;
        true: det V_t > 2 det V_{{t−1}}
        | WRONG: hurts utility only
    dpmnl-joint | Theorem 3 | ρ, joint
        | d = 5, K = 10, T = 10000, ρ₁ + ρ₂ = 1, 50% for 10 fits; at least {gram:.3g}
        | WRONG: by the Gram noise
    dpmnl-joint-90 | Theorem 3 | ρ, joint
        | d = 5, K = 10, T = 10000, ρ₁ + ρ₂ = 1, 90% for 10 fits; at least {gram:.3g}
        | REPAIRABLE: the slacks cancel here
    """,
)
def dpmnl() -> Iterator[Numbers]:
    """What the whole of Algorithm 1 is charged."""
    # the fit after T0 with rho1 / D_MLE, then those with D = 1, ..., D_MLE - 1
    divisors = (8, *range(1, 8))
    literal = compose([(GaussianLoss(Fraction(2, divisor)), 1) for divisor in divisors])
    tilts = (published.theorem_1(float(Fraction(1, divisor)), DIM, 5) for divisor in divisors)
    actual = float(zcdp(compose([(_minimizer(tilt), 1) for tilt in tilts])))
    yield numbers("update-charge", 1.0, float(zcdp(literal)), actual=actual)
    start, horizon = 500, 10_000
    last, step = (_updates(start, horizon, per_step=choice) for choice in (False, True))
    yield numbers("update-rule", last, step)
    for id, share in (("dpmnl-joint", Fraction(1, 2)), ("dpmnl-joint-90", Fraction(9, 10))):
        calls = 10
        fit = _minimizer(published.theorem_1(float(share / calls), DIM, 5)) * calls
        noise = gram_rho(1 - share, ITEMS, horizon)
        yield numbers(id, 1.0, float(zcdp(fit) + noise), "<=", gram=float(noise))


def _updates(start: int, horizon: int, *, per_step: bool) -> int:
    """How often det V doubles when V_t = (tK/d)·I."""
    fits, last = 0, start
    for t in range(start + 1, horizon + 1):
        before = t - 1 if per_step else last
        if DIM * math.log(t / before) > math.log(2):
            fits, last = fits + 1, t
    return fits


CHO_SUN = (gram, hessian, objective, dpmnl)
