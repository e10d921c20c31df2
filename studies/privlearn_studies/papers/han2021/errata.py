"""Published calibrations of Han et al. (2021), "Generalized Linear Bandits with Local DP"."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from privlearn.losses.conversion import gaussian_delta, gaussian_epsilon
from privlearn_studies.papers.errata_table import DELTA, EPSILON, Numbers, numbers, page

PAPER = "Han et al. 2021"


@page(
    "ldp-ols",
    PAPER,
    """
    ldp-ols | Proposition 3.1 | δ at ε = {EPSILON:g}
        | C_B = 1, c_r = 1 | REPAIRABLE: true for C_B ≤ √2
    ldp-ols-wide | Proposition 3.1 | δ at ε = {EPSILON:g}
        | C_B = 5, c_r = 1 | WRONG: W_t lacks a factor C_B
    ldp-ols-proof | proof of Proposition 3.1 | δ of u_t alone at ε/2 = {half:g}
        | δ/2 claimed, δ = {DELTA:g} | WRONG: the step fails, not the claim
    """,
)
def ols() -> Iterator[Numbers]:
    """Least squares from Gaussian reports."""
    for id, bound in (("ldp-ols", 1.0), ("ldp-ols-wide", 5.0)):
        mass = ols_mass(bound, EPSILON, DELTA)
        yield numbers(id, DELTA, gaussian_delta(mass, EPSILON).value)
    half = EPSILON / 2
    true = gaussian_delta((2 / _ols_sigma(EPSILON, DELTA)) ** 2, half).value
    yield numbers("ldp-ols-proof", DELTA / 2, true, half=half)


def _ols_sigma(epsilon: float, delta: float) -> float:
    """σ_{ε,δ} of Section 3.1, printed as 2√(2 ln(1.25/δ))/ε."""
    return 2 * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def ols_mass(context_bound: float, epsilon: float, delta: float) -> float:
    """μ² of the pair (M_t, u_t) as printed with c_r = 1, by search over pairs of users.

    Users are (x, r) with norms a, b and angle cos⁻¹ c.  The shift of u_t is convex in the rewards,
    so these are ±1; that of M_t counts in full, as some pair of the same angle makes it diagonal.
    """
    norms = np.linspace(0, context_bound, 21)
    a, b = norms[:, None, None], norms[None, :, None]
    c = np.linspace(-1, 1, 2001)
    matrix = (a**4 + b**4 - 2 * (a * b * c) ** 2) / (4 * context_bound**2)
    vector = (a**2 + b**2 + 2 * a * b * np.abs(c)) / context_bound**2
    return float((matrix + vector).max()) / _ols_sigma(epsilon, delta) ** 2


@page(
    "ldp-sgd",
    PAPER,
    """
    l2-ball-zero | Lemma 2.2 | probability that the rule gives an output
        | x = 0, ε = {EPSILON:g}: {{z : 0 > 0}} is empty | REPAIRABLE: Ψ(0) uniform
    l2-ball-range | Proposition 3.2 | Bernoulli parameter, at most 1
        | d = 5, ε = {EPSILON:g}, C_B = c_r = η₁ = 1, R = 2, second user
        | WRONG: clip the gradient to R
    l2-ball | Lemma 2.2 | ε
        | ε = {EPSILON:g}, ‖x‖ ≤ R, Ψ(0) uniform | CORRECT: after both repairs
    """,
)
def ball() -> Iterator[Numbers]:
    """Reports on a sphere."""
    share = math.exp(EPSILON) / (1 + math.exp(EPSILON))
    yield numbers("l2-ball-zero", 1.0, 1 - share)
    # linear link, theta_hat_1 = -eta_1 Z_1 has length r, the context points along it
    gradient = ball_radius(EPSILON, 5, 2.0) + 1
    yield numbers("l2-ball-range", 1.0, 0.5 + gradient / (2 * 2.0), ">=")
    # largest and smallest density against the uniform law on the sphere
    largest, smallest = 2 * share, 2 * (1 - share)
    yield numbers("l2-ball", EPSILON, math.log(largest / smallest))


def ball_radius(epsilon: float, dim: int, bound: float) -> float:
    """r_{ε,d} of Lemma 2.2, in units of the input."""
    gammas = math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2 + 1)
    return bound * math.sqrt(math.pi) / 2 / math.tanh(epsilon / 2) * dim * math.exp(gammas)


@page(
    "synthetic-updates",
    PAPER,
    """
    synthetic-sgd | Proposition 4.2 | ε
        | ε = {EPSILON:g}, any K ≥ 2 arms, each at ε/2 as printed
        | CORRECT: the split is not needed
    synthetic-ols | Proposition 4.1 | ε at δ = {DELTA:g}
        | ε = {EPSILON:g}, C_B = c_r = 1, each arm at (ε/2, δ/2) as printed
        | CORRECT: the split is not needed
    """,
)
def synthetic() -> Iterator[Numbers]:
    """Reports for arms that were not pulled."""
    half = EPSILON / 2
    share = math.exp(half) / (1 + math.exp(half))
    # log(M/m), whichever arms are real
    yield numbers("synthetic-sgd", EPSILON, math.log(share / (1 - share)))
    # same arm: as in Proposition 3.1; different arms: two null-against-real shifts of the pair
    alone = 1.0 / 4 + 1.0
    mass = max(ols_mass(1.0, half, DELTA / 2), 2 * alone / _ols_sigma(half, DELTA / 2) ** 2)
    yield numbers("synthetic-ols", EPSILON, gaussian_epsilon(mass, DELTA).value)


HAN_2021 = (ols, ball, synthetic)
