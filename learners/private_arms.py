"""Which of K arms is best? Rewards are private, and what is shown is learned meanwhile.

Every phase shows one arm; the next arm is the one with the least index of IMED
(`privlearn.learners.arm_policies`).  A phase of m users gives the arm's mean with variance at most
¼/m + σ²/m², σ the standard deviation of the noise on a sum; an arm's phases are weighed by the
inverse of that, which adds up to the information J, and count as n = J/4 rewards.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np

from privlearn.contract.protocols import Accountant
from privlearn.learners.arm_policies import imed_arm
from privlearn.learners.phases import Arms, PhaseLearner
from privlearn.rows.domains import Array
from privlearn.values.records import copied
from privlearn.values.validate import count, finite

_VARIANCE = 0.25
"""The largest variance of a reward in [0, 1]."""
_STDS_AT_FIRST = 2.0
_PHASES_OF_MEMORY = 40
"""A phase has at most that part of the users that are remembered."""


@final
@dataclass(eq=False, repr=False)
class PrivateArms(PhaseLearner):
    """Shows the arm that may be best, and learns from the rewards without telling anybody's.

    Privacy: that of one noisy sum, whatever the number of phases: ε with ``PureDP(ε)`` (Laplace
    noise), ρ with ``ZCDP(ρ)`` (Gaussian); also for the arms that are shown, which follow from the
    sums (docs/proofs.md, "Sums over phases").

    Args:
        n_arms: K >= 2.
        growth: how many times as many users an arm has after a phase as before it, > 1; a phase is
            never shorter than the first.
        first_phase: users of each arm's first phase; default ⌈2σ⌉, at which noise tells as much as
            the variance of rewards does, σ as for a range of [0, 1]: 3/ε under pure ε-DP; no less
            than ``delay``, or most users would not be counted.
        memory: for rewards whose means change: about how many users it takes until they do.  What
            was learned fades by a factor 1 − 1/memory with every user, and no phase is longer than
            memory/40 or the first.  Default: the means stay.  Where they stay, memory costs twice
            the regret; where they move, it saves half of it, and without it the regret is large.
        reward_range: public ends of rewards; a reward outside is unusable.
        missing: what a user without a usable reward counts as, in [0, 1]: 0 and 1 are the ends.
        delay: users at the end of each phase who are shown its arm and not counted, while those
            before them answer: about as many as come while one decides, where users overlap.

    After `start`, by arm: ``means_``, ``stds_`` and ``pulls_``, and ``best_arm_``.
    """

    n_arms: int
    _: KW_ONLY
    growth: float = 1.5
    first_phase: int | None = None
    memory: int | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    missing: float = 0.5
    delay: int = 0

    def _check_params(self) -> None:
        super()._check_params()
        if finite(growth=self.growth) <= 1:
            raise ValueError(f"growth = {self.growth!r}: must be > 1")
        if self.first_phase is not None:
            count(first_phase=self.first_phase)
        if self.memory is not None:
            count(memory=self.memory)

    def _prepare(self, accountant: Accountant[Any]) -> None:
        super()._prepare(accountant)
        self._first = self._fixed(
            "first_phase",
            lambda: self.first_phase or max(self._users_for(_STDS_AT_FIRST), self.delay),
        )
        self._check_horizon(self._first)
        self._longest = None
        if self.memory is not None:
            needed = self.n_arms * (self._first + self.delay)
            if self.memory < needed:
                raise ValueError(
                    f"memory = {self.memory}: the first phases of all {self.n_arms} arms are "
                    f"{needed} users, by which what was learned first is forgotten; must be at "
                    f"least {needed}"
                )
            self._longest = max(self._first, self.memory // _PHASES_OF_MEMORY)
        self._information, self._weighed = np.zeros((2, self.n_arms))
        self._pulls = np.zeros(self.n_arms, dtype=np.int64)
        self._arm = 0

    def _arms_of(self, turn: Arms) -> Arms:
        return np.asarray(0 * turn + self._arm)  # np.full is slow for one

    def _phase_length(self) -> int:
        grown = (self.growth - 1) * int(self._pulls[self._arm])
        users = max(self._first, math.floor(min(grown, len(self._board.users))))
        return users if self._longest is None else min(users, self._longest)

    def _learned(self, users: range, total: Array) -> None:
        arm, m = self._arm, len(users)
        if self.memory is not None:
            kept = (1 - 1 / self.memory) ** len(self._phase)
            self._information *= kept
            self._weighed *= kept
        information = 1 / (_VARIANCE / m + (self._noise_std / m) ** 2)
        self._information[arm] += information
        self._weighed[arm] += information * float(total[0]) / m
        self._pulls[arm] += m
        left = self._board.users.stop - self._phase.stop
        if self.memory is not None:
            left = min(left, self.memory)
        self._arm = imed_arm(self._means(), _VARIANCE * self._information, left)

    def _means(self) -> Array:
        """In units where rewards lie in [0, 1]; NaN of arms of which nothing is known."""
        self._check_started()
        with np.errstate(invalid="ignore"):
            return np.asarray(self._weighed / self._information)

    @property
    def means_(self) -> Array:
        """Estimates of the mean rewards, shape (K,); NaN of arms that were not learned of."""
        means = self._means()
        return self._low + (self._high - self._low) * means

    @property
    def stds_(self) -> Array:
        """Standard deviations of ``means_``, no more than these, shape (K,); ∞ before."""
        self._check_started()
        with np.errstate(divide="ignore"):
            return np.asarray((self._high - self._low) / np.sqrt(self._information))

    @property
    def pulls_(self) -> Arms:
        """How many users of each arm were counted in the phases that were learned, shape (K,)."""
        self._check_started()
        return copied(self._pulls)

    @property
    def best_arm_(self) -> int:
        """The arm with the largest mean; 0 while nothing is known."""
        means = self._means()
        return 0 if np.isnan(means).all() else int(np.nanargmax(means))

    def _learned_state(self) -> dict[str, Any]:
        return {
            "arm": self._arm,
            "information": self._information.tolist(),
            "weighed": self._weighed.tolist(),
            "pulls": self._pulls.tolist(),
        }
