"""Published calibrations of Han et al. (2022), "On Private Online Convex Optimization"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from privlearn.losses import GaussianLoss
from privlearn.losses.conversion import (
    gaussian_delta,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from privlearn.rows.domains import Array
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

PAPER = "Han et al. 2022"


# Noise in a norm --------------------------------------------------------------------------------


@page(
    "generalized-gaussian",
    PAPER,
    """
    generalized-gaussian | Lemma 2.1 | δ at ε = {EPSILON:g}
        | δ = {DELTA:g}, any κ-regular norm | CORRECT: proved up to ε = {largest:.2f}
    generalized-gaussian-10 | Lemma 2.1 | δ at ε = 10
        | δ = {DELTA:g}, κ = 1: the ordinary Gaussian, exact | WRONG: for all ε > {largest:.2f}
    gamma-scale | Lemma 3.1, Algorithm 4 | ρ
        | d = 4, σ₊ = 5, κ = s = 1; ratio σ₊ | WRONG: scale 2σ₊², as in its proof
    regularity-exponent | Lemma 3.2 | exponent of ‖·‖₊
        | q = 3, d = 1000; least κ over all exponents | WRONG: printed is κ₊, not the exponent
    regularity-q3 | Lemma 3.2 | ρ
        | q = 3, d = 1000, σ₊ = s = 1: noise in ℓ2 as printed | WRONG: under-noised for d > 8
    regularity-q2 | Lemma 3.2 | ρ, by KL
        | q = 2, d = 50: noise in ℓ{printed:g} as printed, s/σ₊ = {shift:.3g} as in Theorem 3.1
        | WRONG: ℓ1 is not smooth
    """,
)
def norms() -> Iterator[Numbers]:
    """Noise whose density falls with a norm."""

    def lemma(epsilon: float) -> float:
        """ρ = κs²/(2σ²) with the printed σ² = 2κ ln(1/δ)s²/ε²."""
        return epsilon**2 / (4 * math.log(1 / DELTA))

    regular = _threshold(lambda epsilon: zcdp_delta(lemma(epsilon), epsilon).value)
    exact = _threshold(lambda epsilon: gaussian_delta(2 * lemma(epsilon), epsilon).value)
    true = zcdp_delta(lemma(EPSILON), EPSILON).value
    yield numbers("generalized-gaussian", DELTA, true, "<=", largest=regular)
    true = gaussian_delta(2 * lemma(10.0), 10.0).value
    yield numbers("generalized-gaussian-10", DELTA, true, largest=exact)
    dim, std = 4, Fraction(5)
    drawn = Fraction(dim, 2) * 2 * std / dim  # E r²/d when r² ~ Gamma(d/2, scale 2σ₊)
    claimed, actual = (float(zcdp(GaussianLoss(1 / variance))) for variance in (std**2, drawn))
    yield numbers("gamma-scale", claimed, actual)
    dim, q = 1000, 3.0
    printed, regularity = printed_regularity(q, dim)
    yield numbers("regularity-exponent", printed, best_exponent(q, dim)[0])
    # the printed norm is ℓ2: a Gaussian mechanism with the ℓ2 length of a shift of ℓq length 1
    longest = dim ** (0.5 - 1 / q)
    yield numbers("regularity-q3", regularity / 2, float(zcdp(gaussian(longest, 1.0))))
    dim, q = 50, 2.0
    printed, regularity = printed_regularity(q, dim)
    depth = tofw_depth(10_000)
    shift = EPSILON / (depth * math.sqrt(2 * math.log(depth / DELTA)))
    claimed, true = regularity * shift**2 / 2, taxicab_divergence(dim, shift)
    yield numbers("regularity-q2", claimed, true, ">=", printed=printed, shift=shift)


def _threshold(delta: Callable[[float], float]) -> float:
    """The ε in [1, 20] up to which the given δ(ε) stays below DELTA."""
    low, high = 1.0, 20.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) <= DELTA else (low, middle)
    return low


def printed_regularity(q: float, dim: int) -> tuple[float, float]:
    """(q⁺, κ_q) as printed in Lemma 3.2."""
    log = math.log(dim) - 1
    return min(q - 1, log), min(q - 1, math.e**2 * log)


def best_exponent(q: float, dim: int) -> tuple[float, float]:
    """The exponent ρ′ in [2, q] with the least κ = (ρ′−1)·d^{2/ρ′−2/q}, and that κ."""
    grid = np.linspace(2, q, 1001)
    values = (grid - 1) * dim ** (2 / grid - 2 / q)
    best = int(values.argmin())
    return float(grid[best]), float(values[best])


def taxicab_divergence(dim: int, shift: float) -> float:
    """KL divergence of density ∝ exp(−‖z‖₁²/2) and its translate by shift·e₁.

    With r = ‖z‖₁ ~ χ_d and w = |z₁| = ru, u ~ Beta(1, d−1) independent of r, averaging over the
    sign of z₁ gives KL = (s² + 2·E[(s−w)₊(r−w)])/2; the inner mean is a polynomial in s/r.
    """
    from scipy.integrate import quad

    def mean(r: float) -> float:
        x = min(1.0, shift / r)
        # ∫₀ˣ (s − ru)·r(1−u)·(d−1)(1−u)^{d−2} du with v = 1 − u
        first = (1 - (1 - x) ** dim) / dim
        second = (1 - (1 - x) ** (dim + 1)) / (dim + 1)
        return (dim - 1) * r * ((shift - r) * first + r * second)

    log_norm = (dim / 2 - 1) * math.log(2) + math.lgamma(dim / 2)

    def weighted(r: float) -> float:
        return mean(r) * math.exp((dim - 1) * math.log(r) - r * r / 2 - log_norm)

    middle = math.sqrt(dim)
    total = sum(quad(weighted, low, low + 5, epsabs=1e-14)[0] for low in (middle, middle + 5))
    total += quad(weighted, 0, middle, epsabs=1e-14, points=(min(shift, middle),))[0]
    return float(shift**2 + 2 * total) / 2


# Frank-Wolfe ------------------------------------------------------------------------------------


def tofw_depth(horizon: int) -> int:
    """⌈log₂ n⌉ + 1 of Theorem 3.1."""
    return math.ceil(math.log2(horizon)) + 1


def tofw_variance(epsilon: float, delta: float, horizon: int) -> float:
    """σ₊² of Theorem 3.1 for κ = βD + L = 1."""
    depth = tofw_depth(horizon)
    return 8 * depth**2 * math.log(depth / delta) / epsilon**2


@page(
    "tofw",
    PAPER,
    """
    tofw | Theorem 3.1 | ε at δ
        | n = 10000, ε = {EPSILON:g}, δ = {DELTA:g}, any κ, noise repaired
        | CORRECT: basic composition is loose
    tofw-variance | Theorem 3.1 | σ₊² needed for the claim, per κ(βD+L)²
        | n = 10000, ε = {EPSILON:g}, δ = {DELTA:g} | CORRECT: too much noise
    tofw-1000 | Theorem 3.1 | ε at δ
        | n = 1000, ε = {EPSILON:g}, δ = {DELTA:g}, any κ, noise repaired
        | CORRECT: basic composition is loose
    tofw-variance-1000 | Theorem 3.1 | σ₊² needed for the claim, per κ(βD+L)²
        | n = 1000, ε = {EPSILON:g}, δ = {DELTA:g} | CORRECT: too much noise
    """,
)
def tofw() -> Iterator[Numbers]:
    """Frank-Wolfe on the tree of gradients."""
    for horizon, suffix in ((10_000, ""), (1_000, "-1000")):
        variance = tofw_variance(EPSILON, DELTA, horizon)
        # sensitivity s = 2(βD + L); rho = kappa s²/(2σ₊²) for each of a user's nodes
        rho = tree_nodes(horizon) * 2.0**2 / (2 * variance)
        yield numbers(f"tofw{suffix}", EPSILON, zcdp_epsilon(rho, DELTA).value, "<=")
        enough = variance * rho / zcdp_rho(EPSILON, DELTA)
        yield numbers(f"tofw-variance{suffix}", variance, enough, "<=")


def pofw_steps(epsilon: float, delta: float, horizon: int) -> Array:
    """Bound spread/b_t on the loss of each step of Algorithm 2, t = 1, …, n.

    spread = 2D(βD+L)/(t+1) and b_t = 4D(βD+L)√(ln n·ln(1/δ))/(ε√t).
    """
    t = np.arange(1, horizon + 1)
    scale = 4 * math.sqrt(math.log(horizon) * math.log(1 / delta)) / (epsilon * np.sqrt(t))
    return np.asarray(2 / (t + 1) / scale)


def pure_rho(steps: Array) -> float:
    """Σ ε·tanh(ε/2): the tight zCDP constants of ε-DP steps (``docs/proofs.md#pure``)."""
    return float((steps * np.tanh(steps / 2)).sum())


@page(
    "pofw",
    PAPER,
    """
    pofw | Theorem 3.4 | ε at δ
        | n = 10000, ε = {EPSILON:g}, δ = {DELTA:g}, D the ℓ1 diameter, all users but the first
        | CORRECT: for D the diameter, n ≥ 2
    pofw-noisy-max | proof of Theorem 3.4 | loss of one step
        | scores change by ±0.25·b; Claim 3.9 needs monotone ones
        | AMBIGUOUS: right for D the diameter
    pofw-user-1 | Algorithm 2, line 4 | sensitivity of (t+1)·d_t
        | linear losses, L = 1; then only ε = {late:.3g} is proved for n = 10000, ε = {EPSILON:g},
        δ = {DELTA:g} | REPAIRABLE: start at ∇f/2
    pofw-one-step | Theorem 3.4 | δ at ε = {EPSILON:g}
        | n = 1: Laplace scale {noise:g}·D(βD+L) | WRONG: ln n = 0, no noise
    """,
)
def pofw() -> Iterator[Numbers]:
    """Frank-Wolfe on a polytope, with noisy choices of vertices."""
    steps = pofw_steps(EPSILON, DELTA, 10_000)
    yield numbers("pofw", EPSILON, zcdp_epsilon(pure_rho(steps), DELTA).value, "<=")
    score, gap = 0.25, 1e6  # change of a score and head start of a vertex, in units of b
    yield numbers("pofw-noisy-max", score, _log_tail(gap) - _log_tail(gap + 2 * score), ">=")
    late = zcdp_epsilon(pure_rho(2 * steps), DELTA).value
    yield numbers("pofw-user-1", 2.0, abs(_recursion(0, range(1, 21)) * 21 * 2), late=late)
    noise = 4 * math.sqrt(math.log(1) * math.log(1 / DELTA)) / EPSILON
    # without noise, two different point masses
    yield numbers("pofw-one-step", DELTA, float(noise == 0), noise=noise)


def _log_tail(gap: float) -> float:
    """log P(X − Y > gap) for standard Laplace X, Y and gap >= 0: e^{−gap}(2 + gap)/4."""
    return math.log(2 + gap) - gap - math.log(4)


def _recursion(user: int, clock: range | list[int]) -> float:
    """Weight of a user's gradient in the last d_t of Algorithm 2, for linear losses.

    The clock has the t of each step, which sets ρ_t = 1/(t+1).
    """
    weight = 0.0
    for place, t in enumerate(clock):
        own = float(place == user)
        weight = own if place == 0 else own / (t + 1) + (1 - 1 / (t + 1)) * weight
    return weight


@page(
    "hdb",
    PAPER,
    """
    hdb-synthetic | Theorem 4.1 | ε at δ, joint
        | n = 10000, ε = {EPSILON:g}, δ = {DELTA:g}, any K arms, a clock for each arm
        | REPAIRABLE: max over arms, not sum
    hdb-clock | Algorithm 3, line 17 | weight of a user in (t+1)·d_t
        | K = 5, t₀ = 50, second user of an arm, t the global time
        | AMBIGUOUS: count steps per arm
    """,
)
def hdb() -> Iterator[Numbers]:
    """The bandit on top of it."""
    steps = pofw_steps(EPSILON, DELTA, 10_000)
    # one arm sees the whole spread, or two arms half of it each
    rho = max(pure_rho(steps), 2 * pure_rho(steps / 2))
    yield numbers("hdb-synthetic", EPSILON, zcdp_epsilon(rho, DELTA).value, "<=")
    arms, warm = 5, 50
    clock = [*range(1, warm + 1), *range(arms * warm + 1, arms * warm + 101)]
    yield numbers("hdb-clock", 1.0, _recursion(1, clock) * (clock[-1] + 1))


HAN_2022 = (norms, tofw, pofw, hdb)
