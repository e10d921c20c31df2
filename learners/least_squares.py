r"""Private least squares for contextual bandits with one linear reward per arm.

Per arm, sums of [x y]ᵀ[x y] of the users it served are kept, from which θ_a follows.  All K arms
are one stream (`OneOf`: one user enters one arm), with one token.  A contribution is ffᵀ of the
factor f = (x/X, w·y/Y), with x scaled to ‖x‖ <= X and |y| <= Y, so that its trace is at most 1 + w²
and its ℓ2 sensitivity √2·(1 + w²) (`PSDTrace`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.contract.receipts import Released
from privlearn.learners.contextual import Arms, Feedback, ServedBandit, best_in_turn, scores
from privlearn.learners.participation import rule_of
from privlearn.learners.planned_stream import PlannedStream
from privlearn.losses.budgets import Currency
from privlearn.mechanisms import PrefixSum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, even_sizes
from privlearn.rows import Rows
from privlearn.rows.domains import Array, OneOf, PSDTrace
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.validate import count, positive, within

ArmFactors = tuple[Array, Arms]
"""Blocks of factors (n, 1, d + 1), and the arms (n,) they belong to."""


class GramBandit(ServedBandit):
    """Learns from private sums of [x y]ᵀ[x y], updated at the ends of public blocks."""

    loss = "squared"
    blocks: int
    norm_clip: float
    reward_clip: float
    curvature: float | None

    @abstractmethod
    def _mechanism(
        self,
        domain: OneOf[Array],
        users: int,
        budget: Currency,
        adjacency: Adjacency,
        rule: Participation | None,
    ) -> PrefixSum[Any] | BatchedPrefixSum[Any]:
        """The sums, at the least noise."""

    @abstractmethod
    def _advance(self, rows: Rows[ArmFactors]) -> Released[Array] | None:
        """Feeds a whole block and releases the sums, shape (K, d + 1, d + 1) (or 1 before it)."""

    @abstractmethod
    def _weight(self, norm: float, reward: float) -> float:
        """w, the weight of rewards in the factors."""

    @abstractmethod
    def _shift(self, upto: int) -> float:
        """What is added to the diagonal of the noisy Σxxᵀ of the users before ``upto``."""

    def _solved(self) -> None:
        """Called whenever the public estimates have changed."""

    def _bonus(self, contexts: Array) -> Array | None:
        """Optimism, shape (n, K); None for none."""
        return None

    def _check_params(self) -> None:
        self._check_bandit()
        count(blocks=self.blocks)
        positive(norm_clip=self.norm_clip)
        positive(reward_clip=self.reward_clip)
        if self.curvature is not None:
            within("(0, 1]", curvature=self.curvature)

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        users, rule = accountant.users, rule_of(accountant)
        if rule is not None and rule.pooled:
            raise ValueError(
                f"{rule}: a contribution is one row (x, y) of one arm, and several visits of a "
                "person make none; use per_batch=1 instead of pooled=True"
            )
        curvature = self._fixed(
            "curvature", lambda: self.curvature or 1 / max(2 * math.log(self.dim), 1.0)
        )
        self._norm = self.norm_clip * math.sqrt(self.dim * curvature)
        self._reward = self.reward_clip * self.reward_bound
        self._share = self._weight(self._norm, self._reward)
        domain = OneOf(PSDTrace(1 + self._share**2, self.dim + 1), self.n_arms)
        mechanism = self._fixed(
            "sums",
            lambda: self._mechanism(
                domain, len(users), accountant.budget, accountant.adjacency, rule
            ),
        )
        self._sums = PlannedStream(accountant, "sums", users, mechanism)
        sizes = self._fixed("blocks", lambda: even_sizes(len(users), self.blocks))
        self._ends = [users.start + int(end) for end in np.cumsum(sizes)]
        self._prepare_serving(accountant)
        self._at = 0
        self._theta = np.zeros((self.n_arms, self.dim))
        self._precision = np.tile(self._shift(0) * np.eye(self.dim), (self.n_arms, 1, 1))
        self._roots = _inverse_roots(self._precision)
        self._solved()

    def _plan(self) -> list[Plan]:
        return [self._sums.plan()]

    @property
    def _rule_batches(self) -> Sequence[int]:
        return [self._board.users.start, *self._ends[:-1]]

    @property
    def coef_(self) -> Array:
        """The public estimates θ_a for contexts as sent, shape (K, d)."""
        return self._theta / self.context_bound

    def _next_change(self) -> int:
        return self._ends[self._at]

    def _arms(self, contexts: Array, turn: Arms) -> Arms:
        values, bonus = scores(contexts, self._theta), self._bonus(contexts)
        return best_in_turn(values if bonus is None else values + bonus, turn)

    def _factors(self, feedback: Feedback) -> ArmFactors:
        norms = np.sqrt(np.einsum("nd,nd->n", feedback.context, feedback.context))
        shrink = 1 / np.maximum(norms, self._norm)
        reward = np.clip(feedback.reward / self._reward, -1.0, 1.0)
        factors = [feedback.context * shrink[:, None], self._share * reward[:, None]]
        return np.concatenate(factors, axis=1)[:, None, :], feedback.arm

    def _learn(self, rows: Rows[Feedback]) -> None:
        released = self._advance(rows.map_rows(self._factors))
        self._at += 1
        if released is not None:
            self._solve(self._sums.whole(self._board.post("sums", released)))

    def _solve(self, released: Array) -> None:
        sums = np.reshape(released, (self.n_arms, self.dim + 1, self.dim + 1))
        gram = self._norm**2 * sums[:, : self.dim, : self.dim]
        moment = self._norm * self._reward / self._share * sums[:, : self.dim, self.dim]
        shift = self._shift(self.clock_)
        self._precision = _at_least(gram + shift * np.eye(self.dim), shift / 2)
        self._roots = _inverse_roots(self._precision)
        self._theta = np.einsum("kie,kid,kd->ke", self._roots, self._roots, moment)
        self._solved()

    def public_state(self) -> dict[str, Any]:
        return {
            "params": self.get_params(),
            "clock": self.clock_,
            "block": self._at,
            "theta": self._theta.tolist(),
            "precision": self._precision.tolist(),
        }


def _at_least(matrices: Array, floor: float) -> Array:
    values, vectors = np.linalg.eigh(matrices)
    raised = np.maximum(values, floor)
    return np.asarray(np.einsum("kij,kj,klj->kil", vectors, raised, vectors))


def _inverse_roots(matrices: Array) -> Array:
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray(np.swapaxes(vectors, 1, 2) / np.sqrt(values)[:, :, None])


@final
@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLeastSquares(GramBandit):
    """Greedy on private least squares per arm: a fair baseline.

    Args:
        n_arms: K >= 2.
        dim: d.
        context_bound: public bound on context entries, which are clamped to it.
        reward_bound: public bound on rewards.
        blocks: public batches after which θ is solved for; the first one is served in turn.
        norm_clip: X, in units of the usual norm of a scaled context.
        reward_clip: Y, in units of ``reward_bound``.
        weight: w, the weight of rewards against contexts in what is released.
        ridge: multiple of the noise's usual largest eigenvalue that is added to Σxxᵀ.
        curvature: as for `DPHDB`.
        random_state: taken for the sake of a common interface; there are no coins.

    After `start`, ``coef_`` (K, d) are the public estimates.
    """

    n_arms: int
    dim: int
    context_bound: float = 1.0
    reward_bound: float = 1.0
    blocks: int = 50
    norm_clip: float = 0.8
    reward_clip: float = 0.2
    weight: float = 1.0
    ridge: float = 4.0
    curvature: float | None = None
    random_state: int = 0

    def _check_params(self) -> None:
        super()._check_params()
        positive(weight=self.weight)
        positive(ridge=self.ridge)

    def _weight(self, norm: float, reward: float) -> float:
        return self.weight

    def _mechanism(
        self,
        domain: OneOf[Array],
        users: int,
        budget: Currency,
        adjacency: Adjacency,
        rule: Participation | None,
    ) -> BatchedPrefixSum[Any]:
        return BatchedPrefixSum.calibrated(
            domain,
            budget,
            sizes=even_sizes(users, self.blocks),
            adjacency=adjacency,
            participation=rule,
        )

    def _advance(self, rows: Rows[ArmFactors]) -> Released[Array] | None:
        return self._sums.append(rows)

    def _shift(self, upto: int) -> float:
        std = self._sums.error_std(max(upto, self._ends[0]))
        return self.ridge * std * self._norm**2 * math.sqrt(2 * self.dim)
