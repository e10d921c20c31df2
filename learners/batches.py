"""Served learners that release once per public batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from privlearn.learners.served import Served
from privlearn.rows import Rows


class BatchLearner(Served[Any, Any, Any]):
    """Learns at the end of each public batch."""

    _labels: ClassVar[tuple[str, ...]]
    """Of the tokens that every batch needs, all planned."""
    _batches: list[range]
    _batch: int

    @abstractmethod
    def _release(self, rows: Rows[Any], batch: range) -> None:
        """Releases what the rows of a batch tell, and learns from it."""

    @abstractmethod
    def _learned_state(self) -> dict[str, Any]:
        """What was learned, as JSON."""

    @property
    def _rule_batches(self) -> Sequence[int]:
        return [batch.start for batch in self._batches]

    def _cut(self, users: range, ends: Sequence[int]) -> None:
        """Batches of consecutive users from how many users have come at their ends."""
        bounds = [users.start, *(users.start + end for end in ends)]
        self._batches, self._batch = [range(a, b) for a, b in pairwise(bounds)], 0

    def _next_change(self) -> int:
        return self._batches[self._batch].stop

    def _learn(self, rows: Rows[Any]) -> None:
        batch = self._batches[self._batch]
        # After a crash in the middle of a release, this batch's tokens are gone and its outcome is
        # lost: nothing is drawn twice, the estimates stay, the next batch goes on.
        if self._can_release(self._batch):
            self._failed = True  # until the release is whole
            self._release(rows, batch)
            self._failed = False
        self._batch += 1

    def _can_release(self, batch: int) -> bool:
        """Whether everything that a batch needs is left of the plan."""
        users = self._batches[batch]
        return all([self._accountant.left(label, users) for label in self._labels])

    def public_state(self) -> dict[str, Any]:
        """Everything the learner acts on, as JSON: a function of releases and the clock.

        On a timetable the clock is the slot up to which time was let pass, `skip`; which slot was
        visited last is not public.
        """
        return {"clock": self._public_clock(), "batch": self._batch, **self._learned_state()}

    def _public_clock(self) -> int:
        if not self._timed or self._batch == len(self._batches):
            return self.clock_
        return max(self._passed, self._batches[self._batch].start)
