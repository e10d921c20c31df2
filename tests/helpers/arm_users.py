"""Users of learners in phases: rewards that follow from the user's number and the arm alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import PureDP
from privlearn.noise import NoiseSource


def joint(
    users: int, budget: Any = None, seed: int = 0, path: Path | None = None, **options: Any
) -> JointAccountant[Any]:
    """An accountant with simulated noise, in memory or in a file."""
    return JointAccountant(
        PureDP(1) if budget is None else budget,
        users=range(users),
        ledger=Ledger.memory() if path is None else Ledger.create(path),
        noise=NoiseSource.simulation(seed),
        **options,
    )


def resumed(path: Path, seed: int = 1) -> JointAccountant[Any]:
    """The account of a file after a restart, with other noise."""
    return JointAccountant.resume(path, noise=NoiseSource.simulation(seed))


class Crowd:
    """Users whose reward from an arm is 1 with a probability of its own, shape (n, K).

    Whoever comes as the t-th user rewards as the t-th user does, in blocks or one by one.
    """

    def __init__(self, means: list[float], users: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.rewards = (rng.random((users, len(means))) < np.array(means)).astype(np.float64)

    def respond(self, learner: Any) -> Callable[[Any], Any]:
        """For `play`: the users come in order, from the learner's clock on."""
        at = [learner.clock_]

        def answer(arms: Any) -> Any:
            first = at[0]
            at[0] += len(arms)
            return self.rewards[np.arange(first, first + len(arms)), arms]

        return answer

    def play(self, learner: Any, stop: int) -> Any:
        learner.play(stop - learner.clock_, self.respond(learner))
        return learner

    def one_by_one(self, learner: Any, stop: int, change: Callable[[int, float], Any]) -> Any:
        while learner.clock_ < stop:
            user = learner.clock_
            arm = learner.select()
            learner.observe(change(user, float(self.rewards[user, arm])))
        return learner
