"""A planned stream of running sums that goes on where its process died.

Noise of an open stream is secret, and ends with its process.  Its token is then charged to the
users whose rows it may have taken, and a second stream takes the rows of the others, with noise of
its own at the same price: users are disjoint, so nobody pays twice.  A running sum is the last one
of the streams before plus that of the one that is open; its variance is the sum of theirs.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar, final

import numpy as np

from privlearn.domains import Array
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, BatchedStream
from privlearn.mechanisms.prefix_sums import PrefixSum, PrefixSumStream
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows
from privlearn.tokens import Released

X = TypeVar("X")


@final
class PlannedStream(Generic[X]):
    """Running sums over all of ``users``, by one stream or, after crashes, by several.

    Args:
        accountant: that the plan is committed with.
        label: of the plan item.
        users: of the plan item, in order of arrival.
        sums: the mechanism, for all users.

    ``first`` is the first user whose row the open stream took.
    """

    def __init__(
        self,
        accountant: Accountant[Any],
        label: str,
        users: range,
        sums: PrefixSum[X] | BatchedPrefixSum[X],
    ) -> None:
        self._accountant, self.label, self.users, self.sums = accountant, label, users, sums
        self._stream: PrefixSumStream[X] | BatchedStream[X] | None = None
        self._open: PrefixSum[X] | BatchedPrefixSum[X] = sums
        self.first = self._last = users.start  # of the open stream; when a value left it last
        self._before: Array | float = 0.0
        self._total: Array | float = 0.0
        self._variance = 0.0

    def plan(self) -> Plan:
        """The item of the plan."""
        return Plan(self.label, self.sums.loss(), self.users)

    def append(self, rows: Rows[X]) -> Released[Array] | None:
        """Adds the next rows; what is released, whose `whole` is the running sum.

        None if nothing is: within a batch, and where the rows are of users that a stream which
        ended with its process may have taken; they are null.
        """
        mine = self._mine(rows)
        if mine is None or self._stream is None:
            return None
        released = self._stream.append(mine)
        return self._seen(released, rows.users.stop)

    def advance(self, rows: Rows[X]) -> Released[Array] | None:
        """As `append`, but of the running sums only the last is released, shape (1, size)."""
        mine = self._mine(rows)
        if mine is None or not isinstance(self._stream, PrefixSumStream):
            return None
        return self._seen(self._stream.advance(mine), rows.users.stop)

    def _seen(self, released: Released[Array] | None, upto: int) -> Released[Array] | None:
        if released is not None:
            single = isinstance(self._stream, BatchedStream)
            self._total = released.value if single else released.value[-1]
            self._last = upto
        return released

    def whole(self, value: Array) -> Array:
        """The running sum over all users, of what was released last."""
        return np.asarray(self._before + value)

    def error_std(self, upto: int) -> float:
        """Standard deviation per coordinate of the running sum after the users before ``upto``."""
        own = self._steps(upto)
        now = self._open.error_std(own) if own else 0.0
        return float(np.sqrt(self._variance + now * now))

    def largest_error_std(self) -> float:
        """The largest standard deviation per coordinate of all running sums, if no crash follows.

        With several streams the variance of those before is added to the largest of the open one.
        """
        now = self._open.noise_std * self._open.factorization.max_error_std()
        return math.sqrt(self._variance + now * now) if self._variance else now

    def excess(self) -> float:
        """How many times as large as without a crash the largest standard deviation is."""
        first = self.sums.noise_std * self.sums.factorization.max_error_std()
        return self.largest_error_std() / first

    def _steps(self, upto: int) -> int:
        """Rows of the open stream's factorisation up to there."""
        users = upto - self.first
        if isinstance(self._open, PrefixSum):
            return users
        return int(np.searchsorted(np.cumsum(self._open.sizes), users, side="right"))

    def _mine(self, rows: Rows[X]) -> Rows[X] | None:
        """The rows that the open stream takes; opens one, if none is."""
        if not self.begin(rows.users):
            return None
        return rows.slice(range(max(self.first, rows.users.start), rows.users.stop))

    def begin(self, users: range) -> bool:
        """Opens a stream for these users and all that follow, unless one is open; whether one is.

        Where several streams take the same rows, all of them begin before the first takes any:
        otherwise the first users could be in a sum of one, and the others have nothing to go on
        from after a crash.
        """
        if self._stream is not None and not self._stream.closed:
            return True
        left = self._accountant.rest(self.label, self.users)
        if left is None or users.stop <= left.start:
            return False
        first = max(left.start, users.start)
        rest = range(first, self.users.stop)
        if self._stream is not None:
            own = self._steps(self._last)
            self._variance += self._open.error_std(own) ** 2 if own else 0.0
            self._before, self._total = self._before + self._total, 0.0
        self.first = self._last = first
        self._open = self.sums.for_last(rest)
        token = self._accountant.issue(self._open.loss(), users=rest, label=self.label)
        self._stream = self._open.open(token)
        return True

    @property
    def ended(self) -> bool:
        """Whether a stream ended, and none can take the rows of the users who are left."""
        running = self._stream is not None and not self._stream.closed
        return not running and self._accountant.rest(self.label, self.users) is None

    def close(self) -> None:
        """Ends the open stream, if there is one."""
        if self._stream is not None and not self._stream.closed:
            self._stream.close()
