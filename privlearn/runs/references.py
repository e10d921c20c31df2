"""Yardsticks for private learners; they take no accountant because they promise nothing."""

from __future__ import annotations

import math
import warnings
from typing import Any, final

import numpy as np

from privlearn.learners.contextual import Arms, RespondToArms, Visitor, best_in_turn, scores
from privlearn.learners.newton import Belief, batch_ends
from privlearn.learners.serving import Arrival, Respond, answered, optimistic_items, random_items
from privlearn.mechanisms.choice_model import Answer, fit_mle, hessian_sum
from privlearn.rows.domains import Array
from privlearn.values.records import copied, join, record_at
from privlearn.values.validate import count, positive


def _arrivals(
    features: Array, revenues: Array | None, private: Array | None, ties: Array
) -> Arrival:
    earned = np.ones(features.shape[:2]) if revenues is None else revenues
    own = np.zeros((len(features), 0)) if private is None else private
    return copied(Arrival(features, earned, ties, own))


@final
class RandomAssortments:
    """Shows every user K items at random."""

    def __init__(self, *, max_items: int, random_state: int = 0) -> None:
        self.max_items = count(max_items=max_items)
        self._coins = np.random.default_rng(random_state)

    def play(
        self,
        features: Array,
        respond: Respond,
        revenues: Array | None = None,
        private: Array | None = None,
    ) -> None:
        """Serves users, features (n, N, d); as `OnePassNewtonMNL.play`."""
        ties = self._coins.random(features.shape[:2])
        shown = random_items(ties, self.max_items)
        respond(_arrivals(features, revenues, private, ties), shown)


@final
class NonPrivateMNL:
    """Refits the ridge MLE on all answers at the end of every batch; **not private**.

    Args:
        horizon: number of users.
        dim: d.
        max_items: K.
        first_batch: users in the first batch, shown random items.
        growth: ratio of consecutive batch sizes.
        prior_precision: ridge weight.
        exploration: weight of the bonus, as for `OnePassNewtonMNL`.
        feature_scale: public divisor of the features.
        random_state: seed of the coins of the first batch.
    """

    def __init__(
        self,
        *,
        horizon: int,
        dim: int,
        max_items: int,
        first_batch: int = 30,
        growth: float = 1.5,
        prior_precision: float = 3.0,
        exploration: float = 2.0,
        feature_scale: float = 1.0,
        random_state: int = 0,
    ) -> None:
        self.max_items, self.feature_scale = count(max_items=max_items), feature_scale
        self.prior_precision, self.exploration = prior_precision, exploration
        self.belief_ = Belief(np.zeros(count(dim=dim)), prior_precision * np.eye(dim))
        self._ends = batch_ends(horizon, min(first_batch, horizon), growth)
        self._answers: list[Answer] = []
        self._clock = self._batch = 0
        self._coins = np.random.default_rng(random_state)

    def play(
        self,
        features: Array,
        respond: Respond,
        revenues: Array | None = None,
        private: Array | None = None,
    ) -> None:
        """Serves users, features (n, N, d); as `OnePassNewtonMNL.play`."""
        ties = self._coins.random(features.shape[:2])
        everybody = _arrivals(features, revenues, private, ties)
        at = 0
        while at < len(features):
            stop = min(at + self._ends[self._batch] - self._clock, len(features))
            own = Arrival(*(field[at:stop] for field in everybody))
            shown = optimistic_items(
                own,
                self.belief_,
                max_items=self.max_items,
                exploration=self.exploration if self._batch > 0 else 0.0,
                scale=self.feature_scale,
                shuffled=self._batch == 0,
                coins=True,
            )
            choice = respond(*copied((own, shown)))
            self._answers.append(
                answered(own, shown, choice, outside=True, scale=self.feature_scale)
            )
            self._clock += stop - at
            at = stop
            if self._clock == self._ends[self._batch]:
                self._refit()

    def _refit(self) -> None:
        everything = join(self._answers)
        self._answers = [everything]
        theta = fit_mle(
            everything, outside=True, prior_precision=self.prior_precision, start=self.belief_.mean
        )
        prior = self.prior_precision * np.eye(len(theta))
        self.belief_ = Belief(theta, prior + hessian_sum(everything, theta, outside=True))
        self._batch += 1


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
