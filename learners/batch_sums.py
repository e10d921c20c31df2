"""Noisy sums over public batches, one label each: with noise of their own, or correlated noise.

Independent noise needs one token for each batch, so that a learner goes on after a crash.  Running
sums (`BatchedPrefixSum`) need one token for all batches, and their noise ends with the process; but
a total over many batches is then hardly noisier than the sum over one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, final

import numpy as np

from privlearn.billboard import Billboard
from privlearn.domains import Array
from privlearn.losses import Loss
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, BatchedStream
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows

X = TypeVar("X")


class BatchSums(ABC, Generic[X]):
    """Noisy sums over each of the public ``batches``, in order.

    Attributes:
        mixing: the noise of the sums is ``mixing`` @ z for rows z of independent noise of standard
            deviation ``std`` a coordinate, shape (batches, batches).
    """

    label: str
    batches: Sequence[range]
    std: float
    mixing: Array

    @abstractmethod
    def loss(self) -> Loss:
        """The price of one token: of a batch, or of all."""

    @abstractmethod
    def plan(self) -> list[Plan]:
        """All that will be spent."""

    @abstractmethod
    def left(self, accountant: Accountant[Any], batch: int) -> bool:
        """Whether the sum over a batch can still be released."""

    @abstractmethod
    def release(
        self, rows: Rows[X], accountant: Accountant[Any], board: Billboard, batch: int
    ) -> Array:
        """Releases, and posts, what gives the noisy sum over a batch; returns that sum."""


@final
class IndependentSums(BatchSums[X]):
    """Each batch has a release of its own."""

    def __init__(self, label: str, mechanism: NoisySum[X], batches: Sequence[range]) -> None:
        self.label, self._mechanism, self.batches = label, mechanism, batches
        self.std, self.mixing = mechanism.error_std(), np.eye(len(batches))

    def loss(self) -> Loss:
        return self._mechanism.loss()

    def plan(self) -> list[Plan]:
        return [Plan(self.label, self.loss(), users) for users in self.batches]

    def left(self, accountant: Accountant[Any], batch: int) -> bool:
        return accountant.left(self.label, self.batches[batch]) > 0

    def release(
        self, rows: Rows[X], accountant: Accountant[Any], board: Billboard, batch: int
    ) -> Array:
        users = self.batches[batch]
        token = accountant.issue(self.loss(), users=users, label=self.label)
        return board.post(f"{self.label}/{batch}", self._mechanism.release(rows, token))


@final
class CorrelatedSums(BatchSums[X]):
    """All batches have one stream of running sums, whose differences are the sums over batches."""

    def __init__(
        self, label: str, mechanism: BatchedPrefixSum[X], batches: Sequence[range]
    ) -> None:
        self.label, self._mechanism, self.batches = label, mechanism, batches
        self._users = range(batches[0].start, batches[-1].stop)
        self._stream: BatchedStream[X] | None = None
        self._before: Array | float = 0.0
        running = mechanism.factorization.stream(_unit_rows(len(batches))).next(len(batches))
        self.std, self.mixing = mechanism.noise_std, np.diff(running, axis=0, prepend=0.0)

    def loss(self) -> Loss:
        return self._mechanism.loss()

    def plan(self) -> list[Plan]:
        return [Plan(self.label, self.loss(), self._users)]

    def left(self, accountant: Accountant[Any], batch: int) -> bool:
        return self._stream is not None or accountant.left(self.label, self._users) > 0

    def release(
        self, rows: Rows[X], accountant: Accountant[Any], board: Billboard, batch: int
    ) -> Array:
        if self._stream is None:
            token = accountant.issue(self.loss(), users=self._users, label=self.label)
            self._stream = self._mechanism.open(token)
        released = self._stream.append(rows)
        if released is None:
            raise AssertionError("rows of a whole batch complete it")
        total = board.post(f"{self.label}/{batch}", released)
        before, self._before = self._before, total
        return np.asarray(total - before)


def _unit_rows(n: int) -> Any:
    """Draws the rows of the identity one after the other, in place of noise."""
    rows = iter(np.eye(n))
    return lambda count: np.array([next(rows) for _ in range(count)])
