"""The plain strategy of DP-TOFW: θ moves after every user, by a Frank-Wolfe step.

The step is towards the vertex of the noisy gradient, a prefix sum of increments with the noise of
least error (`least_error`).  Increments are made against θ at the start of a public block.

Under a rule of participation the stream is priced for all visits of one person, at most ``most`` of
them and ``apart`` slots from each other; rules that count within batches are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.convex import TINY, LpLearner, Strategy
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.streaming import Example, Terms
from privlearn.mechanisms import AnytimeBLT, PrefixSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball

_CLIP = 0.08  # Level of residuals at which increments are clipped, as a part of the unit
_STEP, _DELAY = 1.4, 20
"""The step after t users is at most _STEP/(t + d/μ + _DELAY)."""
_USERS_PER_BLOCK_USER, _LARGEST_BLOCK = 16, 64
"""A block is at most a sixteenth of the users before it, and no larger than this."""


class _Aim(NamedTuple):
    learned: int  # Users in the running sum before it
    users: range  # Of the block, or what was left of it when its stream began
    theta: Array  # Where the running sum is the gradient after the last of them

    def reached(self, before: Terms, learned: int) -> Terms:
        """Where the running sum is the gradient with ``learned`` users, not all of the block.

        Of s users, r took it from L·g to L·g + r/s·((L + s)·g(θ) − L·g), a mixture.
        """
        part = (learned - self.learned) / max(len(self.users), 1)
        if part == 1:
            return [(1.0, self.theta)]
        if not part:
            return before
        kept = (1 - part) * self.learned / learned
        return [*((kept * weight, at) for weight, at in before), (1 - kept, self.theta)]


@final
class Plain(Strategy):
    """See the module."""

    def __init__(
        self, learner: LpLearner, accountant: Accountant[Any], clip: float | None, *, anytime: bool
    ) -> None:
        super().__init__(learner, accountant)
        if self._rule is not None and self._rule.batched:
            raise ValueError(
                f"{self._rule}: method = 'plain' releases after every row, so that there are no "
                "batches to count within or to pool; use Participation(most=..., apart=...), or "
                "another method"
            )
        users = len(self._users)

        def calibrated() -> PrefixSum[Array]:
            return PrefixSum.calibrated(
                Ball(clip or self._scale.clip(_CLIP), learner._dim),
                accountant.budget,
                horizon=None if anytime else users,
                factorization=AnytimeBLT(horizon=users) if anytime else None,
                adjacency=accountant.adjacency,
                participation=self._rule,
            )

        sums = self._fixed("increments", calibrated)
        self._stream = PlannedStream(accountant, "increments", self._users, sums)
        self._delay = self._fixed("delay", lambda: learner._dim / self._mu + _DELAY)
        # At these parameters, with weights that add up to 1, the running sum is the gradient.
        self._gradient: Terms = []
        self._done = 0  # users before the open block
        self._aimed = _Aim(0, range(0), learner._theta)
        self._begin_block()

    def batches(self) -> Sequence[int]:
        return (self._users.start,)

    def plan(self) -> list[Plan]:
        return [self._stream.plan()]

    def streams(self) -> list[PlannedStream[Array]]:
        return [self._stream]

    def _begin_block(self) -> None:
        left = len(self._users) - self._done
        self._size = min(max(self._done // _USERS_PER_BLOCK_USER, 1), _LARGEST_BLOCK, left)

    def next_change(self) -> int:
        return self._users.start + self._done + self._size

    def let_go(self) -> None:
        """No rows are kept."""

    def needed_from(self, clock: int) -> int:
        return clock

    def take(self, rows: Rows[Example]) -> None:
        taken = self._stream.takes(rows.users)
        if taken:
            self._aim(self._stream.first)
            own = rows if taken == rows.users else rows.slice(taken)
            released = self._stream.append(own.map_rows(self._increments))
            if released is not None:
                self._move(self._stream.whole(released.value), taken.stop)
        if rows.users.stop == self.next_change():
            self._done += self._size
            if self._done == len(self._users):
                self.close()
            else:
                self._begin_block()

    def _aim(self, first: int) -> None:
        """Makes the increments of a block, or of what is left of one for a new stream."""
        start, stop = self._users.start + self._done, self.next_change()
        users = range(max(start, first), stop)
        if users == self._aimed.users:
            return
        learned, theta = self._stream.learned, self._learner._theta
        self._gradient = self._aimed.reached(self._gradient, learned)
        size = len(users)
        ahead = (learned + size) / size
        terms: Terms = [(ahead, theta)]
        if learned:
            terms = [*terms, *((weight * (1 - ahead), at) for weight, at in self._gradient)]
        self._increments = self._learner._increments(terms)
        self._aimed = _Aim(learned, users, theta)
        # The variance at the end of the block stands for all of it.
        std = self._stream.error_std(stop)
        self._noise = self._learner._dim * std * std

    def _move(self, sums: Array, stop: int) -> None:
        first = stop - len(sums) - self._users.start + 1
        energy = (sums * sums).sum(axis=1)
        steps = [
            min(1.0, _STEP / (t + self._delay)) * max(0.0, 1.0 - self._noise / (e + TINY))
            for t, e in enumerate(energy.tolist(), first)
        ]
        vertices = self._set.minimize(sums)
        theta = self._learner._theta
        for step, vertex in zip(steps, vertices, strict=True):
            theta = (1.0 - step) * theta + step * vertex
        self._learner._theta = theta
