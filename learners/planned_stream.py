"""A planned stream of running sums that goes on where its process died.

A running sum is the last one of the streams before plus that of the one that is open; their noise
is independent, so that its variance is the sum of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, final

import numpy as np

from privlearn.contract.protocols import Accountant
from privlearn.contract.receipts import Released
from privlearn.learners.successive_streams import SuccessiveStreams
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, BatchedStream
from privlearn.mechanisms.prefix_sums import PrefixSum, PrefixSumStream
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array

X = TypeVar("X")


@final
class PlannedStream(SuccessiveStreams[PrefixSumStream[X] | BatchedStream[X]], Generic[X]):
    """Running sums over all of ``users``, by one stream or, after crashes, by several.

    Args:
        accountant: that the plan is committed with.
        label: of the plan item.
        users: of the plan item, in order of arrival.
        sums: the mechanism, for all users.
    """

    def __init__(
        self,
        accountant: Accountant[Any],
        label: str,
        users: range,
        sums: PrefixSum[X] | BatchedPrefixSum[X],
    ) -> None:
        super().__init__(accountant, label, users, sums)
        self.sums = sums
        self._before: Array | float = 0.0
        self._variance = 0.0
        self._learned = 0
        # Of the open stream: what it released last, and the user behind those whose rows are in it.
        self._total: Array | float = 0.0
        self._last = users.start

    @property
    def _now(self) -> PrefixSum[X] | BatchedPrefixSum[X]:
        return cast("PrefixSum[X] | BatchedPrefixSum[X]", self._open)

    def append(self, rows: Rows[X]) -> Released[Array] | None:
        """Adds the next rows; what is released, whose `whole` is the running sum.

        None if nothing is: within a batch, and where the rows are of users that a stream which
        ended with its process may have taken; they are null.
        """
        mine = self._mine(rows)
        return None if mine is None else self._seen(self.open.append(mine), mine.users.stop)

    def append_sum(
        self, users: range, summed: Callable[[range], PartialSum]
    ) -> Released[Array] | None:
        """As `append`, for the next users' sum, which ``summed`` makes of those that are taken."""
        mine = self.takes(users)
        if not mine:
            return None
        stream = cast("BatchedStream[X]", self.open)
        return self._seen(stream.append_partial(summed(mine)), mine.stop)

    def advance(self, rows: Rows[X]) -> Released[Array] | None:
        """As `append`, but of the running sums only the last is released, shape (1, size)."""
        mine = self._mine(rows)
        if mine is None:
            return None
        stream = cast("PrefixSumStream[X]", self.open)
        return self._seen(stream.advance(mine), mine.users.stop)

    def _mine(self, rows: Rows[X]) -> Rows[X] | None:
        taken = self.takes(rows.users)
        if not taken:
            return None
        return rows if taken == rows.users else rows.slice(taken)

    def _seen(self, released: Released[Array] | None, upto: int) -> Released[Array] | None:
        if released is not None:
            single = isinstance(self._stream, BatchedStream)
            self._total = released.value if single else released.value[-1]
            self._last = upto
        return released

    def _begin(self, users: range) -> None:
        learned = self._last - self.first
        if learned:
            self._variance += self._now.error_std(self._steps(self._last)) ** 2
        self._learned += learned
        self._before, self._total = self._before + self._total, 0.0
        super()._begin(users)
        self._last = users.start

    def whole(self, value: Array) -> Array:
        """The running sum over all users, of what was released last."""
        return np.asarray(self._before + value)

    @property
    def learned(self) -> int:
        return self._learned + self._last - self.first

    def error_std(self, upto: int) -> float:
        """Standard deviation per coordinate of the running sum after the users before ``upto``."""
        own = self._steps(upto)
        now = self._now.error_std(own) if own else 0.0
        return math.sqrt(self._variance + now * now)

    def largest_error_std(self) -> float:
        """The largest standard deviation per coordinate of all running sums, if no crash follows.

        With several streams the variance of those before is added to the largest of the open one.
        """
        now = self._now.noise_std * self._now.factorization.max_error_std()
        return math.sqrt(self._variance + now * now) if self._variance else now

    def excess(self) -> float:
        """How many times as large as without a crash the largest standard deviation is."""
        first = self.sums.noise_std * self.sums.factorization.max_error_std()
        return self.largest_error_std() / first

    def _steps(self, upto: int) -> int:
        users = upto - self.first
        now = self._now
        if isinstance(now, PrefixSum):
            return users
        return int(np.searchsorted(np.cumsum(now.sizes), users, side="right"))
