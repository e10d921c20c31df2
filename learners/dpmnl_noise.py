r"""Noise, shift and confidence width of DPMNL: as proved here, and as published.

The optimistic utility of an item is x·θ̂ + c·α_t‖x‖_{V⁻¹} with V = (noisy Gram sum) + 2λI.  At any
one time the noise is above −λI with probability 1 − 1/T² (and as often below λI), so that V is
positive definite; α_t is the paper's confidence radius (Lemma S10) for the Δ, σ and λ that are
really in use,

    α_t = κ⁻¹(√((d/2)log(1 + t/d) + log t) + Δ + 2σ√(d·log T/K)) + √(3λ),

with public constants only.  None of this touches privacy: both are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from privlearn.losses.budgets import ZCDP, ApproxDP, Currency
from privlearn.mechanisms import BinaryTree, MultinomialLogit, ObjectivePerturbation, PrefixSum
from privlearn.mechanisms import published as paper
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.choice_model import Answer
from privlearn.rows.domains import Array, PSDTrace
from privlearn.values.adjacency import Adjacency, Calibration
from privlearn.values.exact import Exact, exact, float_up
from privlearn.values.participation import Participation


class Shape(NamedTuple):
    """The public sizes that noise is chosen from."""

    horizon: int
    dim: int
    max_items: int
    calls: int
    outside: bool

    @property
    def objective(self) -> MultinomialLogit:
        """The negative log-likelihood of one user."""
        return MultinomialLogit(self.max_items, self.dim, self.outside)


@final
@dataclass(frozen=True, slots=True)
class Width:
    """α_t = κ⁻¹√… + constant + √(3λ), with √… of t or of t + 1."""

    dim: int
    kappa: float
    constant: float
    """Of tilt and noise of the fits."""
    ahead: int = 0
    """What is added to t."""

    def __call__(self, t: int, shift: float) -> float:
        """After t users, for λ = ``shift``."""
        d, users = self.dim, t + self.ahead
        sampling = math.sqrt(d / 2 * math.log1p(users / d) + math.log(users))
        return sampling / self.kappa + self.constant + math.sqrt(3 * shift)


@final
@dataclass(frozen=True, slots=True)
class DPMNLNoise:
    """What DPMNL releases, and the public numbers it acts on them with."""

    fit: ObjectivePerturbation[Answer]
    """One of the at most D_MLE private fits."""
    gram: PrefixSum[Array] | BatchedPrefixSum[Array]
    """The private prefix sums of Σ x xᵀ over offered items; of logged answers, after batches."""
    shift: float
    """λ, unit of the Gram matrix."""
    width: Width
    """α_t."""


def proved(
    shape: Shape,
    budget: Currency,
    *,
    gram_share: Exact,
    theta_norm: float,
    kappa: float,
    adjacency: Adjacency,
    rule: Participation | None = None,
    visits: int | Sequence[int] = 1,
    sizes: Sequence[int] = (),
) -> DPMNLNoise:
    """The least noise that ``budget`` allows for all fits and the Gram sums together.

    With ``sizes`` the Gram sums are released after public batches of logged answers only.  Under a
    rule of participation the budget is a person's, with so many ``visits`` in each fit.
    """
    share = exact("gram_share", gram_share)
    fit = ObjectivePerturbation.calibrated(
        shape.objective,
        budget.share(1 - share),
        max_rows=shape.horizon,
        calls=shape.calls,
        theta_norm=theta_norm,
        adjacency=adjacency,
        visits=visits,
    )
    domain, rest = PSDTrace(shape.max_items, shape.dim), budget.share(share)
    gram: PrefixSum[Array] | BatchedPrefixSum[Array]
    if sizes:
        gram = BatchedPrefixSum.calibrated(domain, rest, sizes=sizes, adjacency=adjacency)
    else:
        gram = PrefixSum.calibrated(
            domain, rest, horizon=shape.horizon, adjacency=adjacency, participation=rule
        )
    shift = gram.factorization.max_error_std() * gram.noise_std * _norm(shape)
    return DPMNLNoise(fit, gram, shift, _width(shape, fit, kappa))


def _norm(shape: Shape) -> float:
    """Largest eigenvalue of a symmetric matrix of svec entries N(0, 1), but for a chance of 1/T².

    The mean is at most √(2d) (Gordon's inequality for entries of variance 1 on and ½ off the
    diagonal) and the eigenvalue is 1-Lipschitz in the svec entries.  The same holds for minus the
    smallest one, which is what keeps V positive definite.
    """
    return math.sqrt(2 * shape.dim) + math.sqrt(4 * math.log(max(shape.horizon, 2)))


def _width(shape: Shape, fit: ObjectivePerturbation[Answer], kappa: float) -> Width:
    spread = math.sqrt(shape.dim * math.log(max(shape.horizon, 2)) / shape.max_items)
    return Width(shape.dim, kappa, (fit.ridge + 2 * fit.noise_std * spread) / kappa)


def published(
    shape: Shape, nominal: ZCDP, *, gram_share: Exact, kappa: float, adjacency: Adjacency
) -> DPMNLNoise:
    """Algorithms 1 to 3 as printed for a nominal ρ: Theorem 1 at ρ₁/D_MLE, the tree at ρ₂."""
    share, rho = float(exact("gram_share", gram_share)), float(nominal.rho)
    rank = paper.printed_rank(shape.dim, shape.max_items)
    tilt = paper.theorem_1(rho * (1 - share) / shape.calls, shape.dim, rank)
    sigma = paper.algorithm_3(rho * share, shape.max_items, shape.horizon)
    domain = PSDTrace(shape.max_items, shape.dim, "triangle")
    fit, gram = _printed(shape, tilt, domain, sigma, adjacency)
    shift = _printed_shift(shape, sigma)
    return DPMNLNoise(fit, gram, shift, _width(shape, fit, kappa))


def benchmark(
    shape: Shape, nominal: ApproxDP, *, gram_share: Exact, corrected: bool, adjacency: Adjacency
) -> DPMNLNoise:
    """The (ε, δ)-JDP benchmark of S.3.2 and S.3.3 for a nominal (ε, δ); printed or corrected."""
    share = float(exact("gram_share", gram_share))
    epsilon, delta = float_up(nominal.epsilon), float_up(nominal.delta)
    fits = (epsilon * (1 - share), delta * (1 - share), shape.dim)
    tree = (epsilon * share, delta * share, shape.max_items, shape.horizon)
    if corrected:
        tilt = paper.corrected_algorithm_4(*fits, shape.calls)
        sigma = node_std = paper.corrected_algorithm_5(*tree)
    else:
        rank = paper.printed_rank(shape.dim, shape.max_items)
        tilt = paper.algorithm_4(*fits, rank, shape.calls)
        sigma = paper.algorithm_5(*tree)
        # (N′ + N′ᵀ)/√2 has entries N(0, σ²) off and N(0, 2σ²) on the diagonal: svec noise of √2·σ
        node_std = math.sqrt(2) * sigma
    domain = PSDTrace(shape.max_items, shape.dim)
    fit, gram = _printed(shape, tilt, domain, node_std, adjacency)
    spread = math.sqrt(shape.dim * math.log(max(shape.horizon, 2)) / shape.max_items)
    constant = 2 * tilt.ridge / math.sqrt(shape.max_items) + 2 * tilt.noise_std * spread
    width = Width(shape.dim, 1.0, constant, ahead=1)
    return DPMNLNoise(fit, gram, _printed_shift(shape, sigma), width)


def _printed(
    shape: Shape, tilt: paper.Tilt, domain: PSDTrace, node_std: float, adjacency: Adjacency
) -> tuple[ObjectivePerturbation[Answer], PrefixSum[Array]]:
    fit = ObjectivePerturbation.published(
        shape.objective, tilt, max_rows=shape.horizon, adjacency=adjacency
    )
    tree = BinaryTree(shape.horizon)
    return fit, PrefixSum(domain, tree, node_std, adjacency, Calibration.PUBLISHED)


def _printed_shift(shape: Shape, sigma: float) -> float:
    depth = math.floor(math.log2(shape.horizon)) + 1
    return sigma * math.sqrt(depth) * paper.lemma_s7(shape.dim, shape.horizon)
