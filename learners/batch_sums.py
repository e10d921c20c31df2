"""Noisy sums over public batches, one label each: with noise of their own, or correlated noise.

Independent noise needs one token for each batch.  Running sums (`BatchedPrefixSum`) need one token
for all batches, and a total over many of them is then hardly noisier than the sum over one.  Their
noise ends with its process: what comes after a restart is a second stream (`PlannedStream`), whose
noise has nothing to do with that of the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, final

import numpy as np

from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.planned_stream import PlannedStream
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array

X = TypeVar("X")


class BatchSums(ABC, Generic[X]):
    """Noisy sums over each of the public ``batches``, in order."""

    label: str
    batches: Sequence[range]
    std: float
    """Of the independent noise that the noise of the sums is mixed from, per coordinate."""

    @abstractmethod
    def plan(self) -> list[Plan]:
        """All that will be spent."""

    def begin(self, users: range) -> None:
        """What has to be done for a batch before anything is released of it."""

    def users(self, batch: int) -> range:
        """Whose rows are in a sum that was released: the batch, or its end after a restart."""
        return self.batches[batch]

    @abstractmethod
    def release(self, rows: Rows[X], board: Billboard, batch: int) -> Array | None:
        """Releases, and posts, what gives the noisy sum over a batch; returns that sum.

        To be called for every batch in order.  None if a process that died took what pays for it.
        """

    @abstractmethod
    def covariance(self, batches: Sequence[int]) -> Array:
        """Of the noise of the sums over these batches, all released, shape (n, n)."""


@final
class IndependentSums(BatchSums[X]):
    """Each batch has a release of its own."""

    def __init__(
        self,
        label: str,
        mechanism: NoisySum[X],
        batches: Sequence[range],
        accountant: Accountant[Any],
    ) -> None:
        self.label, self._mechanism, self.batches = label, mechanism, batches
        self._accountant, self.std = accountant, mechanism.error_std()

    def plan(self) -> list[Plan]:
        loss = self._mechanism.loss()
        return [Plan(self.label, loss, users) for users in self.batches]

    def release(self, rows: Rows[X], board: Billboard, batch: int) -> Array | None:
        users = self.batches[batch]
        if self._accountant.lost(self.label, users):
            return None
        token = self._accountant.issue(self._mechanism.loss(), users=users, label=self.label)
        return board.post(f"{self.label}/{batch}", self._mechanism.release(rows, token))

    def covariance(self, batches: Sequence[int]) -> Array:
        return np.asarray(self.std**2 * np.eye(len(batches)))


@final
class CorrelatedSums(BatchSums[X]):
    """Running sums over all batches, whose differences are the sums over each."""

    def __init__(
        self,
        label: str,
        mechanism: BatchedPrefixSum[X],
        batches: Sequence[range],
        accountant: Accountant[Any],
    ) -> None:
        self.label, self.batches, self.std = label, batches, mechanism.noise_std
        users = range(batches[0].start, batches[-1].stop)
        self._stream = PlannedStream(accountant, label, users, mechanism)
        self._before: Array | float = 0.0
        self._released: dict[int, tuple[int, int]] = {}
        """Of batches: the first user of their stream, and how many it had released before."""
        running = mechanism.factorization.stream(_unit_rows(len(batches))).next(len(batches))
        mixing = np.diff(running, axis=0, prepend=0.0)
        self._mixed = self.std**2 * mixing @ mixing.T  # of the noise within one stream

    def plan(self) -> list[Plan]:
        return [self._stream.plan()]

    def begin(self, users: range) -> None:
        self._stream.takes(users)

    def release(self, rows: Rows[X], board: Billboard, batch: int) -> Array | None:
        released = self._stream.append(rows)
        if released is None:
            return None
        first = self._stream.first
        total = board.post(f"{self.label}/{batch}", released)
        step = sum(stream == first for stream, _ in self._released.values())
        self._released[batch] = first, step
        before, self._before = self._before if step else 0.0, total
        return np.asarray(total - before)

    def users(self, batch: int) -> range:
        own, (first, _) = self.batches[batch], self._released[batch]
        return range(max(own.start, first), own.stop)

    def covariance(self, batches: Sequence[int]) -> Array:
        streams, steps = np.array([self._released[batch] for batch in batches]).T
        return np.where(streams[:, None] == streams, self._mixed[np.ix_(steps, steps)], 0.0)


def _unit_rows(n: int) -> Any:
    """Draws the rows of the identity one after the other, in place of noise."""
    rows = iter(np.eye(n))
    return lambda count: np.array([next(rows) for _ in range(count)])
