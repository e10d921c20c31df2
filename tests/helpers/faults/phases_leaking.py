"""Learners in phases with a single fault each, for replay on a neighbouring population.

`Honest` is right; each leak overrides one step of it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from faults.cases import Fault, ReplayCase
from privlearn.checking.replay.populations import Person, replaced
from privlearn.checking.replay.protocols import pulled
from privlearn.contract.billboard import Billboard, Shown
from privlearn.contract.protocols import Accountant
from privlearn.learners import PrivateExperts
from privlearn.learners.phases import Arms
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import PhaseSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box

ARMS, USERS = 2, 30


class Honest:
    """Holds the arm with the best noisy mean for a phase, which grows with what was released.

    Leaks override one step.  ``_seen`` holds the raw rewards, which no honest step looks at; a
    reward that cannot be used is nan there.
    """

    def __init__(self, accountant: Accountant[Any]) -> None:
        users = accountant.users
        self.board = Billboard(accountant, users)
        sums: PhaseSum[Any] = PhaseSum.calibrated(
            Box(-0.5, 0.5, 1), ZCDP("0.5"), horizon=len(users)
        )
        self._stream = sums.open(accountant.issue(sums.loss(), users=users, label="rewards"))
        self.means_, self.pulls_ = np.zeros(ARMS), np.zeros(ARMS)
        self._seen: list[float] = []
        self._pending: list[Rows[Array]] = []
        self._asked: Shown[Array, Array] | None = None
        self.start()

    def start(self) -> None:
        self.arm_ = int(np.argmax(np.where(self.pulls_ == 0, np.inf, self.means_)))
        first = self.first
        self.end_ = min(first + (3 if self.means_[self.arm_] < 0.6 else 5), USERS)
        if first < USERS:
            self.begin_to(self.end_)

    @property
    def first(self) -> int:
        return int(self.pulls_.sum())

    def begin_to(self, stop: int) -> None:
        self._stream.begin(stop)

    def select(self) -> int:
        clock = self.board.clock
        rows = Rows.seal(np.zeros((1, 1)), users=range(clock, clock + 1))
        arm = self.chosen()
        self._asked = self.board.serve(rows, lambda own: np.full((len(own), 1), float(arm)))
        return arm

    def chosen(self) -> int:
        return self.arm_

    def observe(self, reward: Any) -> None:
        usable = type(reward) is float and 0 <= reward <= 1
        self._seen.append(reward if usable else math.nan)
        self.take(self._seen[-1])

    def take(self, reward: float) -> None:
        assert self._asked is not None
        sent = self.sent(reward)
        self._pending.append(self._asked.deliver(lambda own, arms: np.full((len(own), 1), sent)))
        if self.is_full():
            rows, self._pending = Rows.concat(self._pending), []
            self.learn(rows)

    def sent(self, reward: float) -> float:
        """Centred; nan is null, which counts as ½."""
        return reward - 0.5

    def is_full(self) -> bool:
        return self.board.clock == self.end_

    def learn(self, rows: Rows[Array]) -> None:
        released = self._stream.end(rows)
        self.board.post("sum", released)
        before = self.means_[self.arm_] * self.pulls_[self.arm_]
        self.pulls_[self.arm_] += len(rows)
        total = before + float(released.value[0]) + self.size(len(rows)) / 2
        self.means_[self.arm_] = total / self.pulls_[self.arm_]
        self.start()

    def size(self, n: int) -> float:
        return n


class ClockReadsRewards(Honest):
    """A phase ends early when rewards are high, and is begun when it ends."""

    def begin_to(self, stop: int) -> None:
        """Too early to say."""

    def is_full(self) -> bool:
        rewards = self._seen[self.first :]
        return super().is_full() or float(np.nansum(rewards)) > 1.2

    def learn(self, rows: Rows[Array]) -> None:
        self._stream.begin(rows.users.stop)
        super().learn(rows)


class EndIsNotAnnounced(ClockReadsRewards):
    """A phase is begun when its users have come."""

    def is_full(self) -> bool:
        return self.board.clock == self.end_


class NullUsersDoNotCount(ClockReadsRewards):
    """A phase waits for so many rewards that can be used, and is begun when it has them."""

    def is_full(self) -> bool:
        wanted = self.end_ - self.first
        return bool(np.isfinite(self._seen[self.first :]).sum() == wanted)


class NullUsersAreSkipped(Honest):
    """Users without a reward get no index, so that all others move up."""

    def select(self) -> int:
        return self.chosen()

    def take(self, reward: float) -> None:
        if not math.isnan(reward):
            super().select()
            super().take(reward)


class MeanOverUsableRewards(Honest):
    """A mean is over those who had a reward, so that their number is public."""

    def size(self, n: int) -> float:
        return float(np.isfinite(self._seen[-n:]).sum())


class ArmFromAnUnreleasedReward(Honest):
    """After a reward of 1 the other arm is pulled, whatever the phase is for."""

    def chosen(self) -> int:
        return 1 - self.arm_ if self._seen[-1:] == [1.0] else self.arm_


class MissingIsTheMean(Honest):
    """Whoever has no reward counts as the mean of the others in the phase."""

    def sent(self, reward: float) -> float:
        rewards = np.array(self._seen[self.first :])
        if math.isnan(reward) and np.isfinite(rewards).any():
            return float(np.nanmean(rewards)) - 0.5
        return reward - 0.5


class DrawnForNothing(PrivateExperts):  # type: ignore[misc]  # a fault of its own
    """Between two draws that are paid for, the expert of the least losses so far is followed."""

    def _heard(self, answer: Any) -> Array:
        losses = super()._heard(answer)
        self._raw = getattr(self, "_raw", 0.0) + np.nan_to_num(losses)
        return losses

    def _experts_of(self, turn: Arms) -> Arms:
        if self._expert is None or turn[0] % 3:
            return super()._experts_of(turn)
        return np.full(len(turn), np.argmin(self._raw))


# As faults ----------------------------------------------------------------------------------------

LEAKS: tuple[tuple[type[Honest], float], ...] = (
    (ClockReadsRewards, 1.0),
    (EndIsNotAnnounced, 1.0),
    (NullUsersDoNotCount, math.nan),
    (NullUsersAreSkipped, math.nan),
    (MeanOverUsableRewards, math.nan),
    (ArmFromAnUnreleasedReward, 1.0),
    (MissingIsTheMean, 1.0),
)


def person(answer: Any) -> Person:
    """A user who answers the same to every offer."""
    return Person(np.zeros((ARMS, 1)), lambda items: answer, f"answer {answer}")


def crowd_and_other(reward: float) -> tuple[list[Person], list[Person]]:
    """Users with rewards of their own, one of them with none; and the seventh with another one."""
    rewards = np.random.default_rng(2).uniform(0.2, 0.8, USERS)
    data = [person(math.nan if user == 8 else float(value)) for user, value in enumerate(rewards)]
    data[6] = person(0.0)
    return data, replaced(data, 6, person(reward))


def _fault(leak: type[Honest], reward: float) -> Fault:
    data, other = crowd_and_other(reward)
    protocol = pulled(contexts=False)
    return Fault(
        f"phases: {leak.__name__}",
        leak.__doc__ or "",
        "phases may follow from releases only: docs/proofs.md, sums over phases",
        ReplayCase(leak, data, other, protocol),
        ReplayCase(Honest, data, other, protocol),
    )


def _experts(kind: type[PrivateExperts], accountant: Any) -> PrivateExperts:
    return kind(ARMS, first_block=4).start(accountant)


def _of_experts() -> Fault:
    """Either expert is right for every second user, and the seventh turns the balance."""
    data = [person(user % 2) for user in range(USERS)]
    protocol = pulled(contexts=False, losses=ARMS)
    broken, control = (
        ReplayCase(partial(_experts, kind), data, replaced(data, 6, person(1)), protocol)
        for kind in (DrawnForNothing, PrivateExperts)
    )
    source = "a draw by the exponential mechanism is paid for, whoever draws"
    description = DrawnForNothing.__doc__ or ""
    return Fault(f"phases: {DrawnForNothing.__name__}", description, source, broken, control)


FAULTS = (*(_fault(*leak) for leak in LEAKS), _of_experts())
