r"""Baselines for contextual bandits with one linear reward per arm.

Private ones keep, per arm, sums of [x y]ᵀ[x y] of the users it served, from which θ_a and its
confidence ellipsoid follow.  All K arms are one stream (`OneOf`: one user enters one arm), with one
token.  A contribution is ffᵀ of the factor f = (x/X, w·y/Y), with x scaled to ‖x‖ <= X and
|y| <= Y, so that its trace is at most 1 + w² and its ℓ2 sensitivity √2·(1 + w²) (`PSDTrace`).

* `DPUCB`: Shariff & Sheffet 2018 with their tree over all rounds, their shift that makes the noisy
  matrices positive definite, and their bonus, every constant recomputed for the noise really in
  use.  Their noise is priced anew: a tree is one Gaussian mechanism of mass
  (number of levels)·(sensitivity/σ)², where they compose (ε/√(8m·ln(2/δ)), δ/2m)-DP nodes.
* `PrivateLeastSquares`: the same sums as well as can be done, over public batches with a BLT, no
  bonus.

`LassoBandit` (Bastani & Bayati 2020) and `RandomArms` promise nothing and take no accountant.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.contract.tokens import Released
from privlearn.learners.contextual import (
    Arms,
    Feedback,
    RespondToArms,
    ServedBandit,
    Visitor,
    best_in_turn,
    scores,
)
from privlearn.learners.participation import rule_of
from privlearn.learners.planned_stream import PlannedStream
from privlearn.losses.budgets import Currency
from privlearn.mechanisms import BinaryTree, PrefixSum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, even_sizes
from privlearn.rows import Rows
from privlearn.rows.domains import Array, OneOf, PSDTrace
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.records import copied, record_at
from privlearn.values.validate import count, not_negative, positive, within

ArmFactors = tuple[Array, Arms]
"""Blocks of factors (n, 1, d + 1), and the arms (n,) they belong to."""


class _GramBandit(ServedBandit):
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

    # Life ----------------------------------------------------------------------------------------

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
        """At the end of a public block: releases the sums and solves."""
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
        """Everything the learner acts on, as JSON: a function of releases and the clock."""
        return {
            "params": self.get_params(),
            "clock": self.clock_,
            "block": self._at,
            "theta": self._theta.tolist(),
            "precision": self._precision.tolist(),
        }


def _at_least(matrices: Array, floor: float) -> Array:
    """Symmetric matrices with eigenvalues raised to ``floor``."""
    values, vectors = np.linalg.eigh(matrices)
    raised = np.maximum(values, floor)
    return np.asarray(np.einsum("kij,kj,klj->kil", vectors, raised, vectors))


def _inverse_roots(matrices: Array) -> Array:
    """R with RᵀR = V⁻¹ for positive definite V, shape (K, d, d)."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray(np.swapaxes(vectors, 1, 2) / np.sqrt(values)[:, :, None])


@final
@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLeastSquares(_GramBandit):
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


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DPUCB(_GramBandit):
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


# Without a promise --------------------------------------------------------------------------------


def _visitors(contexts: Any, first: int, private: Array | None) -> Visitor:
    values = np.array(contexts, dtype=np.float64)
    own = np.zeros((len(values), 0)) if private is None else copied(private)
    return Visitor(values, np.arange(first, first + len(values)), own)


@final
class RandomArms:
    """Pulls arms at random; **not a learner**.

    Args:
        n_arms: K.
        random_state: seed of the coins.
    """

    def __init__(self, *, n_arms: int, random_state: int = 0) -> None:
        self.n_arms = count(n_arms=n_arms)
        self._coins = np.random.default_rng(random_state)
        self._clock = 0

    def play(self, contexts: Any, respond: RespondToArms, private: Array | None = None) -> None:
        """Serves users, contexts (n, d); as `DPHDB.play`."""
        own = _visitors(contexts, self._clock, private)
        self._clock += len(own.context)
        respond(own, self._coins.integers(self.n_arms, size=len(own.context)))


@final
class LassoBandit:
    """The Lasso bandit of Bastani & Bayati 2020 (Algorithm 1); **not private**.

    Arm a is forced at rounds (2ⁿ − 1)·Kq + (q·a, q·(a + 1)], n = 0, 1, …  At all others the arms
    within h/2 of the best by the Lasso on forced rounds only (λ₁) are kept, and of these the best
    by the Lasso on all rounds (λ₂√((ln t + ln d)/t)) is pulled.  The loss is ‖Y − Xβ‖²/n + λ‖β‖₁.
    Fits are renewed when rounds have grown by a twentieth, not at every round.

    Args:
        n_arms: K.
        dim: d.
        forced: q.
        gap: h.
        forced_penalty: λ₁.
        penalty: λ₂.
    """

    def __init__(
        self,
        *,
        n_arms: int,
        dim: int,
        forced: int = 1,
        gap: float = 1.0,
        forced_penalty: float = 0.02,
        penalty: float = 0.02,
    ) -> None:
        self.n_arms, self.dim = count(n_arms=n_arms), count(dim=dim)
        self.forced, self.gap = count(forced=forced), positive(gap=gap)
        self.forced_penalty = positive(forced_penalty=forced_penalty)
        self.penalty = positive(penalty=penalty)
        self.coef_ = np.zeros((n_arms, dim))
        self._early = np.zeros((n_arms, dim))
        self._clock = self._renewed = 0
        self._rounds: list[tuple[Array, Arms, Array, Array]] = []

    def play(self, contexts: Any, respond: RespondToArms, private: Array | None = None) -> None:
        """Serves users, contexts (n, d); as `DPHDB.play`."""
        everybody = _visitors(contexts, self._clock, private)
        at = 0
        while at < len(everybody.context):
            stop = min(at + max(self._renewed // 20, 1), len(everybody.context))
            own = record_at(everybody, slice(at, stop))
            arms, forced = self._chosen(own)
            rewards = np.array(respond(*copied((own, arms))), dtype=np.float64)
            self._rounds.append((own.context, arms, rewards, forced))
            self._clock += stop - at
            at = stop
            if self._clock >= self._renewed * 1.05:
                self._renew()

    def _chosen(self, own: Visitor) -> tuple[Arms, Array]:
        """The arms, and 1.0 where one was forced."""
        cycle = self.n_arms * self.forced
        start = cycle * (2.0 ** np.floor(np.log2(own.turn / cycle + 1)) - 1)
        place = own.turn - start.astype(np.int64)
        forced = place < cycle
        early = scores(own.context, self._early)
        out = early < early.max(axis=1, keepdims=True) - self.gap / 2
        values = np.where(out, -np.inf, scores(own.context, self.coef_))
        greedy = best_in_turn(values, own.turn)
        return np.where(forced, place // self.forced, greedy), forced.astype(np.float64)

    def _renew(self) -> None:
        parts = zip(*self._rounds, strict=True)
        contexts, arms, rewards, forced = (np.concatenate(part) for part in parts)
        self._rounds = [(contexts, arms, rewards, forced)]
        self._renewed = self._clock
        decay = math.sqrt((math.log(self._clock) + math.log(self.dim)) / self._clock)
        for arm in range(self.n_arms):
            mine = arms == arm
            first = mine & (forced > 0)
            self.coef_[arm] = _lasso(contexts[mine], rewards[mine], self.penalty * decay)
            self._early[arm] = _lasso(contexts[first], rewards[first], self.forced_penalty)


def _lasso(contexts: Array, rewards: Array, penalty: float) -> Array:
    """argmin ‖Y − Xβ‖²/n + penalty·‖β‖₁; 0 without data."""
    if not len(rewards):
        return np.zeros(contexts.shape[1])
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso  # slow to import

    fit = Lasso(alpha=penalty / 2, fit_intercept=False, max_iter=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit.fit(contexts, rewards)
    return np.asarray(fit.coef_, dtype=np.float64)
