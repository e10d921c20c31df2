r"""LDP-SGD: one bounded, randomised direction from every user, and public steps.

A message is about v·u, a vector of length at most 1, reported by `BallReport.best` at pure ε:

* u is the pulled arm's context, shortened along the published θ to a part of its length there and
  scaled to length 1.  Greedy contexts lie mostly along θ, where they do not tell its direction.
* v in [−1, 1] is the residual r − μ(x·θ) in units of a public level, and cut.

The server adds up a batch, with the model frozen, takes a step of

    gain·h/c² · (t₀/(t + t₀))^power,    t₀ = min(delay·c²/h², latest·horizon),

times the sum, and projects to the ball ‖θ‖ <= ``theta_bound``.  c² = E‖report‖² follows from (ε, d)
only, and h = slope/√d stands for the length of a mean message at the start.  No κ_l, p_* or ζ is
needed: with such a step, drift and noise balance at an error of order 1 after about c²/h² messages.

Proved: a message is ε-private whatever its user does (`BallReport`), and its mean is v·u.  One
message moves θ by at most the step times `BallReport.scale`; θ stays in the ball.  With A the map
that shortens, and e = θ* − θ, the mean message is A·E[x·v]/‖Ax‖, whose product with A⁻¹e is
E[(x·e)·v]/‖Ax‖: never negative, and 0 at θ*, for logistic rewards and for linear ones with noise
that is symmetric around 0, whatever the law of the contexts.  Under skewed noise and for counts the
cut moves that point.  Only measured: that this is a good rule, and its constants
(docstring of ``benchmarks/ldp.py``).

Choices are greedy, but for one case: a logistic answer tells little of a direction that contexts
hardly leave, and of K uniform directions in d dimensions the best by θ is about K^(−1/(d−1)) of the
way to a right angle from it.  With

    w = max(0, 1 − 2·K^(−1/(d−1))),

the first users pull the largest x·θ + w·‖θ‖·‖x across θ‖, and later steps are smaller for what they
tell: h falls, the clock of the steps goes with h², and the gain is smaller throughout.

With one θ per arm (``shared=False``) every arm has a part of the message (`OneOfKReport`), null but
for the pulled arm's.  Where a message of the warm-up tells of its arm for sure, a part afterwards
does with a chance of about 1/K, so it is weighed by 1/K, and its clock goes K times as slowly.
Arms that are behind by more than the largest |x·θ|, by the θ of the warm-up, are eliminated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from privlearn.learners.links import Link, mean_of
from privlearn.learners.local.protocol import Arrays, LocalLearner
from privlearn.mechanisms import BallReport
from privlearn.rows.domains import Array

_GAIN: Final = 0.6
_DELAY: Final = 2.0  # t₀, in messages that it takes to find the direction of θ
_POWER: Final = 0.9
"""Of the fall of the steps: below 1, so that steps are left where answers are noisy."""
_LATEST: Final = 0.15  # The largest t₀, as part of the horizon
_BATCH_GROWTH: Final = 0.02
"""Of a batch, relative to the users before it: as good as a step per message, with exact merges."""
_LINEAR_LEVEL: Final = 0.05
"""Where linear residuals are cut, in units of the largest |x·θ|: nearly all messages are as long as
they may be until the residuals are small.  Logistic ones are cut at max(μ, 1 − μ), which is no cut.
"""
_COUNT_LEVEL: Final = 0.5  # Where residuals of counts are cut
_KEPT_ALONG: Final = 0.35  # What is kept of a context's part along θ
_WARM_UP: Final = 0.3
"""Users in turn, in units of the geometric mean of what arms need and the horizon."""
_EXPLORED: Final = 2.0  # Users who explore, in units of t₀
_LESS_DRIFT: Final = 0.75  # By so much of w does h fall once they have explored
_LESS_GAIN: Final = 0.5  # By so much of w is the gain smaller
_TINY: Final = 1e-300
_SLOPES: Final[dict[Link, float]] = {"linear": 1.0, "logistic": 0.25, "poisson": 0.5}
"""What random answers leave of a mean message, in units of that about signs."""


@final
class LDPSGD(LocalLearner):
    """Private gradient steps and nearly greedy choices; pure ε, linear and generalized rewards.

    ``delta`` is not used.  Everything but ``theta_bound`` and the link follows from sizes and ε.

    Args:
        link: of the mean reward to x·θ: ``linear``, ``logistic`` (rewards 0 or 1), or ``poisson``
            (counts, cut to ``reward_high``).
        theta_bound: largest ‖θ‖₂.
        singly: a step per message, without merges, as in the paper; needs one θ for all arms.

    Raises:
        ValueError: as `LocalLearner`; rewards declared outside what the link can give; ``singly``
            with one θ per arm.
    """

    kind: Literal["ldp-sgd"] = "ldp-sgd"
    link: Link = "linear"
    theta_bound: Annotated[float, Field(gt=0)] = 1.0
    singly: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.reward_low, self.reward_high
        if self.link == "logistic" and (low < 0 or high > 1):
            raise ValueError(f"reward_low = {low!r}, reward_high = {high!r}: logistic: in [0, 1]")
        if self.link == "poisson" and low < 0:
            raise ValueError(f"reward_low = {low!r}: poisson: must be >= 0")
        if self.singly and not self.shared:
            raise ValueError("singly = True: needs one theta for all arms, shared = True")
        return self

    @property
    def per_message(self) -> bool:
        return self.singly

    @property
    def reach(self) -> float:
        """The largest |x·θ|."""
        return self.context_bound * self.theta_bound

    def report(self) -> BallReport:
        return _best(self.dim, self.epsilon)

    @property
    def _drift(self) -> float:
        slope = _SLOPES[self.link] * (1.0 if self.link == "linear" else self.reach)
        return min(slope, 1.0) / math.sqrt(self.dim)

    @property
    def _messages(self) -> float:
        """c²/h²: about as many messages as it takes to find the direction of θ."""
        return self.report().mean_squared_error() / self._drift**2

    def _clock(self, user: float) -> float:
        """What was learned of each θ before a user, in messages."""
        warm = min(user, self.warm_up())
        return warm / self.parts + (user - warm) / self.parts**2

    def _delay(self) -> float:
        return min(_DELAY * self._messages, _LATEST * self._clock(self.horizon))

    @property
    def _exploration(self) -> float:
        """w: what the part across θ counts for at first; 0 for greedy choices throughout."""
        if self.link != "logistic" or not self.shared or self.dim == 1:
            return 0.0
        return max(0.0, 1 - 2 * math.exp(-math.log(self.n_arms) / (self.dim - 1)))

    def _bonus(self, user: int) -> float:
        return self._exploration if user < _EXPLORED * self._delay() else 0.0

    def rate(self, batch: int) -> float:
        """What the sums of a batch are multiplied by."""
        starts = self.starts
        first, end = starts[batch], starts[batch + 1]
        delay, clock = self._delay(), self._clock((first + end - 1) / 2)
        weight = 1.0 if first < self.warm_up() else 1 / self.parts
        gain = _GAIN
        if self._exploration:
            gain *= 1 - _LESS_GAIN * self._exploration
            if not self._bonus(first):
                weight = 1 - _LESS_DRIFT * self._exploration
                clock -= (1 - weight**2) * max(0.0, clock - _EXPLORED * delay)
        fall: float = (delay / (clock + delay)) ** _POWER
        start = gain * self._drift / self.report().mean_squared_error()
        return self.theta_bound * weight * start * fall

    def batches(self) -> Sequence[int]:
        """Batches that grow with the users before them; see `LocalLearner.batches`."""
        if self.singly:
            return range(self.horizon + 1)
        return _growing(self.horizon, self.warm_up(), self.parts * self._delay())

    def warm_up(self) -> int:
        """Users in turn: a fifth of all, or fewer where that is enough; 0 if shared."""
        if self.shared:
            return 0
        needed = math.sqrt(self.n_arms * self._messages * self.horizon)
        return int(min(self.horizon / 5, max(4 * self.n_arms, _WARM_UP * needed)))

    def scores(self, model: Arrays, contexts: Array) -> Array:
        """x·θ_a, with a bonus across θ while there is one; −inf for arms that are eliminated.

        See `LocalLearner.scores`.
        """
        if self.shared:
            theta = model["theta"][0]
            along = np.asarray(np.einsum("nkd,d->nk", contexts, theta))
            bonus = float(model["bonus"][0]) if "bonus" in model else 0.0
            if bonus == 0:
                return along
            square = float(theta @ theta)
            # ‖θ‖·‖x across θ‖
            across = np.einsum("nkd,nkd->nk", contexts, contexts) * square - along**2
            return np.asarray(along + bonus * np.sqrt(np.maximum(across, 0.0)))
        scores = np.einsum("nd,kd->nk", contexts, model["theta"])
        early = np.einsum("nd,kd->nk", contexts, model["early"])
        behind = early.max(axis=1, keepdims=True) - early
        return np.asarray(np.where(behind <= self.reach, scores, -np.inf))

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: Array, rewards: Array
    ) -> Array:
        """v·u, shape (n, dim), of length at most 1; see `LocalLearner.record`."""
        theta = model["theta"][0] if self.shared else model["theta"][arms]
        along = _dots(contexts, theta)
        means = mean_of(self.link, along)
        level: Array | float = _LINEAR_LEVEL * self.reach
        if self.link == "logistic":
            level = np.maximum(means, 1 - means)
        elif self.link == "poisson":
            level = _COUNT_LEVEL
        directions, square = contexts, float(theta @ theta) if self.shared else 0.0
        if square > _TINY:
            directions = contexts - ((1 - _KEPT_ALONG) / square * along)[:, None] * theta
        lengths = np.maximum(np.sqrt(_dots(directions, directions)), _TINY)
        sizes = np.minimum(np.maximum((rewards - means) / level, -1), 1) / lengths
        return np.asarray(sizes[:, None] * directions)

    def start(self) -> Arrays:
        theta = np.zeros((self.parts, self.dim))
        if self._exploration:
            return {"theta": theta, "bonus": np.array([self._bonus(0)])}
        return {"theta": theta} if self.shared else {"theta": theta, "early": theta}

    def step(self, state: Arrays, batch: int, sums: Array, counts: Array) -> Arrays:
        """A step along the sums, and back into the ball; see `LocalLearner.step`."""
        theta = state["theta"] + self.rate(batch) * sums
        norms = np.linalg.norm(theta, axis=1, keepdims=True)
        theta = theta * (self.theta_bound / np.maximum(norms, self.theta_bound))
        if self._exploration:
            return {"theta": theta, "bonus": np.array([self._bonus(self.starts[batch + 1])])}
        if self.shared:
            return {"theta": theta}
        warming = self.starts[batch] < self.warm_up()
        return {"theta": theta, "early": theta if warming else state["early"]}

    def model(self, state: Arrays) -> Arrays:
        """θ, and the bonus, or what θ was after the warm-up, if there is one."""
        return state


def _dots(rows: Array, others: Array) -> Array:
    return np.asarray((rows * others).sum(axis=1))


@lru_cache(maxsize=64)
def _best(dim: int, epsilon: float) -> BallReport:
    return BallReport.best(dim, 1.0, epsilon)


@lru_cache(maxsize=64)
def _growing(horizon: int, warm_up: int, delay: float) -> tuple[int, ...]:
    starts = [0]
    while starts[-1] < horizon:
        first = starts[-1]
        end = first + max(1, int(_BATCH_GROWTH * max(first, delay)))
        starts.append(min(end, warm_up if first < warm_up else horizon))
    return tuple(starts)
