"""Served learners that release once per public batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from privlearn.learners.served import Served
from privlearn.rows import Rows


class BatchLearner(Served[Any, Any, Any]):
    """Learns at the end of each public batch."""

    _batches: list[range]
    _batch: int

    @abstractmethod
    def _release(self, rows: Rows[Any], batch: range) -> None:
        """Releases what the rows of a batch tell, and learns from it.

        What a process that died took of the plan is passed over: nothing is drawn twice, and the
        estimates stay.
        """

    @abstractmethod
    def _learned_state(self) -> dict[str, Any]:
        """What was learned, as JSON."""

    @property
    def batches_(self) -> list[range]:
        """The public batches, as arrival indices; after `start`."""
        return list(self._batches)

    @property
    def _rule_batches(self) -> Sequence[int]:
        return [batch.start for batch in self._batches]

    def _cut(self, users: range, ends: Sequence[int]) -> None:
        self._batches, self._batch = ranges(users, ends), 0

    def _next_change(self) -> int:
        return self._batches[self._batch].stop

    def _learn(self, rows: Rows[Any]) -> None:
        self._failed = True  # until the release is whole
        self._release(rows, self._batches[self._batch])
        self._batch += 1
        self._failed = False

    def public_state(self) -> dict[str, Any]:
        """Everything the learner acts on, as JSON: a function of releases and the clock.

        On a timetable the clock is the slot up to which time was let pass, `skip`; which slot was
        visited last is not public.
        """
        return {"clock": self._public_clock(), "batch": self._batch, **self._learned_state()}

    def _public_clock(self) -> int:
        if not self._timed or self._batch == len(self._batches):
            return self.clock_
        return max(self._skipped_to, self._batches[self._batch].start)


def ranges(users: range, ends: Sequence[int]) -> list[range]:
    """Consecutive users, from how many of them have come at the ends."""
    return [users[a:b] for a, b in pairwise([0, *ends])]
