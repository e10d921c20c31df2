"""Yardsticks for private learners; they take no accountant because they promise nothing."""

from __future__ import annotations

from typing import final

import numpy as np

from privlearn.learners.newton import Belief, batch_ends
from privlearn.learners.serving import Arrival, Respond, answered, optimistic_items, random_items
from privlearn.mechanisms.choice_model import Answer, fit_mle, hessian_sum
from privlearn.rows.domains import Array
from privlearn.values.records import copied, join
from privlearn.values.validate import count


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
            everything,
            outside=True,
            prior_precision=self.prior_precision,
            start=self.belief_.mean,
        )
        prior = self.prior_precision * np.eye(len(theta))
        self.belief_ = Belief(theta, prior + hessian_sum(everything, theta, outside=True))
        self._batch += 1
