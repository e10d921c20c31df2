"""Served learners that release once per public batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from privlearn.errors import ProvenanceError
from privlearn.learners.served import Mask, Served
from privlearn.rows import Rows
from privlearn.values.adjacency import Trust


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

    # Logged rows, under a central accountant ------------------------------------------------------

    def _check_logged(self) -> None:
        if self._accountant.trust is Trust.JOINT:
            raise ProvenanceError(
                "logged answers depend on what was shown outside the billboard: a joint guarantee "
                "does not cover them; use a CentralAccountant"
            )

    def _take_logged(
        self,
        block: Any,
        n: int,
        ids: list[Any] | None,
        read: Callable[[Any], Any],
        null: tuple[Mask, Mask, Mask],
    ) -> None:
        """Takes the next n rows, from one end of a batch to the next.

        Args:
            block: as they were handed in.
            n: how many.
            ids: whose they are, under a rule of participation.
            read: makes rows to learn from of rows of the block.
            null: whose data are unusable, whose answers, and who is nobody, shape (n,).
        """
        if not n:
            return
        self.private_counts_.rows += n
        rows = self._sealed_next(block, n)
        people = self._accountant.people
        if people is not None and ids is not None:
            rows = people.admit(rows, ids)
        self._tell(rows.users, *null)
        while self.clock_ < rows.users.stop:
            stop = min(self._next_change(), rows.users.stop)
            some = rows.slice(range(self.clock_, stop))
            self.clock_ = stop
            self._take(some.map_rows(read))

    def _absent(self, users: range) -> Rows[Any]:
        if self._accountant.trust is Trust.JOINT or self._public_actions:  # they are served
            return super()._absent(users)
        if self._accountant.people is not None:
            self._accountant.people.skip_to(users.stop)
        # on a timetable the first of them may have its visits already, which this adds none to
        return Rows.null(users)

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
