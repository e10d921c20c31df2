"""Simulated users of contextual bandits, one by one and in blocks, for several test files."""

from __future__ import annotations

from typing import Any

import numpy as np

from privlearn.learners.contextual import Visitor
from privlearn.rows.domains import Array


class RewardingCrowd:
    """Contexts, the reward of every arm, and which arms were pulled."""

    def __init__(self, contexts: Array, rewards: Array) -> None:
        self.contexts, self.rewards = contexts, rewards
        self.places = np.arange(len(contexts), dtype=np.float64)[:, None]
        self.arms: list[int] = []

    def respond(self, own: Visitor, arms: Any) -> Array:
        self.arms.extend(arms.tolist())
        return np.array(self.rewards[own.private[:, 0].astype(int), arms])

    def play(self, learner: Any, start: int = 0, stop: int | None = None) -> None:
        learner.play(self.contexts[start:stop], self.respond, self.places[start:stop])

    def one_by_one(self, learner: Any, start: int = 0, stop: int | None = None) -> None:
        for context, rewards in zip(
            self.contexts[start:stop], self.rewards[start:stop], strict=True
        ):
            arm = learner.select(context)
            self.arms.append(arm)
            learner.observe(float(rewards[arm]))
