r"""Arms without features whose rewards leave devices as one random bit each, at pure ε.

Users pull the arm that is published for their batch, so that arm and counts are public and only
the reward is protected.  It is scaled to x ∈ [−1, 1] and reported by `BallReport` in one
dimension: a bit that is 1 with probability ½ + ½·μ·x, μ = tanh(ε/2), and ½ without a usable
reward.  With q = ½ + (p − ½)·μ for a mean reward p ∈ [0, 1] a bit of any rewards of mean p is a
coin of q: n bits tell of p about as much as n·μ² rewards would, and with that number IMED
(`arm_policies`) shows the next arm.

No ε-private report of rewards that are 0 or 1 has a smaller variance than that bit, and its
variance is the same for all rewards of the same mean (docs/proofs.md, "Local").  The
variance of the noise falls with the number of messages, however many batches they come in, so that
batches are short; their ends are fixed, and which arm a batch pulls follows from the sums before.

Proved: the price, whatever users do and whichever arms are published.  Only measured: regret.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from privlearn.learners.arm_policies import imed_arm
from privlearn.learners.local.protocol import Arrays, LocalLearner
from privlearn.mechanisms import BallReport
from privlearn.rows.domains import Array


@final
class LDPArms(LocalLearner):
    """A bandit without features from one private bit per user; see the module.

    There are no contexts: clients hand over None in their place.

    Args:
        n_arms: at least two.
        reward_low, reward_high: rewards are cut to them for the message.
        growth: length of a batch, as part of all users before it, from 0.001 on; half of it costs
            up to a fifth less regret, and makes nearly twice as many batches.
        first_phase: the least length of a batch, that of the first one of each arm.

    Raises:
        ValueError: a number out of range, or a horizon below one batch of each arm.
    """

    kind: Literal["ldp-arms"] = "ldp-arms"
    dim: Literal[0] = 0
    shared: Literal[True] = True
    n_arms: Annotated[int, Field(ge=2)]
    delta: Annotated[float, Field(ge=0, le=0)] = 0.0
    reward_low: float = 0.0
    reward_high: float = 1.0
    growth: Annotated[float, Field(ge=0.001, le=1)] = 0.01
    first_phase: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.n_arms * self.first_phase > self.horizon:
            raise ValueError(
                f"horizon = {self.horizon}: must be at least n_arms·first_phase = "
                f"{self.n_arms * self.first_phase}, a batch of each arm"
            )
        return self

    def report(self) -> BallReport:
        """The mechanism of a reward, scaled to [−1, 1]."""
        return _bit(self.epsilon)

    def batches(self) -> Sequence[int]:
        """One of each arm, then each by `growth` of all users before it."""
        starts = [*range(0, self.n_arms * self.first_phase, self.first_phase)]
        start = self.n_arms * self.first_phase
        while start < self.horizon:
            starts.append(start)
            start += max(self.first_phase, int(self.growth * start))
        return [*starts, self.horizon]

    def public_arm(self, model: Arrays) -> int:
        return int(model["arm"][0])

    def scores(self, model: Arrays, contexts: Array) -> Array:
        """0 for the published arm, −∞ for the others; see `LocalLearner.scores`."""
        scores = np.full((len(contexts), self.n_arms), -np.inf)
        scores[:, self.public_arm(model)] = 0.0
        return scores

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: NDArray[Any], rewards: Array
    ) -> Array:
        """Rewards in [−1, 1], shape (n, 1); see `LocalLearner.record`."""
        middle = (self.reward_low + self.reward_high) / 2
        return ((rewards - middle) / (self.reward_high - middle))[:, None]

    # The server's half ----------------------------------------------------------------------------

    def start(self) -> Arrays:
        none = np.zeros(self.n_arms)
        return {"arm": np.zeros(1), "ones": none, "messages": none}

    def step(self, state: Arrays, batch: int, sums: Array, counts: NDArray[Any]) -> Arrays:
        """Counts the batch's bits, and names the next arm; see `LocalLearner.step`."""
        arm = self.public_arm(state)
        ones, messages = state["ones"].copy(), state["messages"].copy()
        ones[arm] += (counts[0] + sums[0, 0] / self.report().scale) / 2
        messages[arm] += counts[0]
        # rewards that would tell as much: each by its bit's share of what a reward tells
        share, left = self.report().scale ** -2, self.horizon - self.starts[batch + 1]
        following = imed_arm(self._means(ones, messages), share * messages, share * left)
        return {"arm": np.array([float(following)]), "ones": ones, "messages": messages}

    def _means(self, ones: Array, messages: Array) -> Array:
        """Of rewards in [0, 1], unbiased; ½ without messages."""
        signs = (2 * ones - messages) / np.maximum(messages, 1)
        return np.asarray((1 + self.report().scale * signs) / 2)

    def model(self, state: Arrays) -> Arrays:
        """The arm of the open batch; mean rewards by arm, (K,), with standard deviations.

        A mean is unbiased for messages of one batch, and may lie outside of the range of rewards;
        that of an arm without messages is the middle of the range.
        """
        width, messages = self.reward_high - self.reward_low, state["messages"]
        means = self.reward_low + width * self._means(state["ones"], messages)
        stds = width * self.report().scale / (2 * np.sqrt(np.maximum(messages, 1)))
        return {"arm": state["arm"], "means": means, "stds": stds}


@lru_cache(maxsize=64)
def _bit(epsilon: float) -> BallReport:
    return BallReport.best(1, 1.0, epsilon)
