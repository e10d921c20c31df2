r"""DP-UCB of Shariff & Sheffet 2018, with their tree over all rounds, at a true price.

Their shift makes the noisy matrices positive definite, and every constant of their bonus is
recomputed for the noise really in use.  Their noise is priced anew: a tree is one Gaussian
mechanism of mass (number of levels)·(sensitivity/σ)², where they compose
(ε/√(8m·ln(2/δ)), δ/2m)-DP nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from privlearn.contract.protocols import Accountant
from privlearn.contract.receipts import Released
from privlearn.learners.contextual import (
    scores,
)
from privlearn.learners.least_squares import ArmFactors, GramBandit
from privlearn.losses.budgets import Currency
from privlearn.mechanisms import BinaryTree, PrefixSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, OneOf
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.validate import not_negative, positive


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DPUCB(GramBandit):
    r"""Private upper confidence bounds of Shariff & Sheffet 2018, with a tree, at a true price.

    With s the largest standard deviation of an svec entry of the noise over all rounds, in the unit
    of xxᵀ, the noise N_t on Σxxᵀ has at any one time all eigenvalues within ±Γ, Γ = s·(√(2d) +
    √(4·ln T)), but for a chance of 1/T² (see `privlearn.learners.dpmnl_noise`).  The shift 2Γ gives
    Γ <= N_t + 2Γ <= 3Γ, which are their ρ_min and ρ_max.  The noise on Σxy has standard deviation
    s/√2 (y enters as a coordinate of x does), and γ = (its norm, but for a chance of 1/T²)/√Γ.  The
    bonus is β_t·‖x‖ in V⁻¹ with β_t = σ√(2·ln(2T) + log det V_t − dK·log Γ) + S√(3Γ) + γ, their
    confidence radius at α = 1/T.

    Args:
        n_arms: K >= 2.
        dim: d.
        context_bound: public bound on context entries, which are clamped to it.
        reward_bound: public bound Y on rewards.
        blocks: after how many public blocks θ and V change; the tree has a leaf for every user.
        norm_clip: X, in units of the usual norm of a scaled context.
        theta_norm: S, public bound on ‖θ_a‖ for scaled contexts.
        noise_std: σ, public sub-Gaussian constant of rewards.
        exploration: factor in front of the bonus; 1 is the paper's.
        curvature: as for `DPHDB`.
        random_state: taken for the sake of a common interface; there are no coins.

    After `start`, ``coef_`` (K, d) are the public estimates.
    """

    reward_clip = 1.0

    n_arms: int
    dim: int
    context_bound: float = 1.0
    reward_bound: float = 1.0
    blocks: int = 50
    norm_clip: float = 1.0
    theta_norm: float = 1.0
    noise_std: float = 0.05
    exploration: float = 1.0
    curvature: float | None = None
    random_state: int = 0

    def _check_params(self) -> None:
        super()._check_params()
        positive(theta_norm=self.theta_norm)
        positive(noise_std=self.noise_std)
        not_negative(exploration=self.exploration)

    def _weight(self, norm: float, reward: float) -> float:
        return reward / norm  # factors (x, y)/X, as in the paper

    def _mechanism(
        self,
        domain: OneOf[Array],
        users: int,
        budget: Currency,
        adjacency: Adjacency,
        rule: Participation | None,
    ) -> PrefixSum[Any]:
        return PrefixSum.calibrated(
            domain,
            budget,
            factorization=BinaryTree(users),
            adjacency=adjacency,
            participation=rule,
        )

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._confidence = self._fixed(
            "confidence", lambda: 2 * math.log(2 * len(accountant.users))
        )
        self._tail = math.sqrt(4 * math.log(max(len(accountant.users), 2)))
        super()._prepare(accountant)

    def _advance(self, rows: Rows[ArmFactors]) -> Released[Array] | None:
        released = self._sums.advance(rows)
        if self.clock_ == self._accountant.users.stop:
            self._sums.close()
        return released

    @property
    def _gamma(self) -> float:
        """Γ, for the noise that is really there, of which there is more after a restart."""
        return self._entry * (math.sqrt(2 * self.dim) + self._tail)

    @property
    def _entry(self) -> float:
        """s."""
        return self._norm**2 * self._sums.largest_error_std()

    def _shift(self, upto: int) -> float:
        return 2 * self._gamma

    def _solved(self) -> None:
        gamma = self._gamma
        volume = float(np.linalg.slogdet(self._precision).logabsdet.sum())
        spare = volume - self.n_arms * self.dim * math.log(gamma)
        moment = self._entry / math.sqrt(2) * (math.sqrt(self.dim) + self._tail)
        self._width = self.exploration * (
            self.noise_std * math.sqrt(self._confidence + spare)
            + self.theta_norm * math.sqrt(3 * gamma)
            + moment / math.sqrt(gamma)
        )

    def _bonus(self, contexts: Array) -> Array | None:
        if self.exploration == 0:
            return None
        return self._width * np.stack([_lengths(contexts, root) for root in self._roots], axis=1)


def _lengths(contexts: Array, root: Array) -> Array:
    """‖Rx‖ for contexts (n, d), each row by itself to the last bit."""
    images = scores(contexts, root)
    return np.asarray(np.sqrt(np.einsum("nd,nd->n", images, images)))
