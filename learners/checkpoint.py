"""Served learners that release once per public batch, and go on from a saved state.

What is saved is public: releases and the clock.  Sealed rows of an open batch are not in it.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

from privlearn.adjacency import Trust
from privlearn.errors import DataError
from privlearn.learners.served import Served
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows


class BatchLearner(Served[Any, Any, Any]):
    """Learns at the end of each public batch, and saves its public state as JSON."""

    _recovery_hint = "resume the ledger, load the last saved state"
    _format: ClassVar[tuple[str, int]]
    """Name and number of the version of a saved state."""
    _batch_field: ClassVar[str]
    """What a saved state calls the open batch."""
    _labels: ClassVar[tuple[str, ...]]
    """Of the tokens that every batch needs, all planned."""
    _nothing_left = "resume the ledger that the state belongs to"
    """What to do where a state cannot be gone on from."""
    _batches: list[range]
    _batch: int

    @abstractmethod
    def _prepare(self, accountant: Accountant[Any]) -> None:
        """Everything that follows from the parameters and the accountant; sets ``_batches``."""

    @abstractmethod
    def _plan(self) -> list[Plan]:
        """Everything that the batches will spend."""

    @abstractmethod
    def _release(self, rows: Rows[Any], batch: range) -> None:
        """Releases what the rows of a batch tell, and learns from it."""

    @abstractmethod
    def _saved_state(self) -> dict[str, Any]:
        """What was learned, as JSON; `_restore` reads it."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Takes back what `_saved_state` gave."""

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
        """Everything the learner goes on from, as JSON: a function of releases and the clock.

        On a timetable the clock is the slot up to which time was let pass, `skip`; which slot was
        visited last is not public.
        """
        name, version = self._format
        return {
            name: version,
            "params": self._saved_params(),
            "clock": self._public_clock(),
            self._batch_field: self._batch,
            **self._saved_state(),
        }

    def _public_clock(self) -> int:
        if not self._timed or self._batch == len(self._batches):
            return self.clock_
        return max(self._passed, self._batches[self._batch].start)

    def _saved_params(self) -> dict[str, Any]:
        """The constructor arguments as JSON."""
        return self.get_params()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the public state as JSON; sealed rows of an open batch are not in it."""
        Path(path).write_text(json.dumps(self.public_state(), indent=1), encoding="utf-8")

    @classmethod
    def _make(cls, path: str | os.PathLike[str], params: dict[str, Any], given: Any) -> Self:
        """A new learner from saved parameters, and what `load` was given besides."""
        return cls(**params)

    @classmethod
    def load(cls, path: str | os.PathLike[str], accountant: Accountant[Any]) -> Self:
        """Goes on from a saved state under the resumed accountant of the same ledger.

        Users of the open batch whose rows were lost with the process count as null records.

        Raises:
            DataError: the file is not a saved state, or the accountant holds none of its plan.
        """
        return cls._load(path, accountant)

    @classmethod
    def _load(
        cls, path: str | os.PathLike[str], accountant: Accountant[Any], given: Any = None
    ) -> Self:
        name, version = cls._format
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
            if state[name] != version:
                raise DataError(f"{path}: state version {state[name]} is not known")
            learner = cls._make(path, {**state["params"]}, given)
            learner._prepare(accountant)
            learner._restore(state)
            learner._batch, learner.clock_ = state[cls._batch_field], state["clock"]
            learner._passed = learner.clock_
            learner._begin(accountant)
        except (OSError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not a saved learner: {error}") from None
        going = learner.clock_ < accountant.users.stop
        if going and not any(map(learner._can_release, range(len(learner._batches)))):
            raise DataError(
                f"{path}: nothing of this learner's plan is left with the accountant; "
                f"{cls._nothing_left}"
            )
        learner._rejoin()
        return learner

    def _rejoin(self) -> None:
        """Lets the billboard's clock catch up; lost rows of the open batch become null.

        Under a rule of participation visits may have been counted after the state was saved; these
        slots are not served again, and are null.
        """
        begun = range(self._accountant.users.start, self.clock_)
        if begun:
            self._take_lost(self._lost(begun))
        people = self._accountant.people
        if people is None:
            return
        # on a timetable the slot in which somebody came last goes on
        ahead = (people.clock or 0) - self._timed - self.clock_
        if ahead > 0 and self._timed:  # no `skip`, after which the clock is public
            self._let_pass(range(self.clock_, self.clock_ + ahead))
        elif ahead > 0:
            self.skip(ahead)

    def _lost(self, begun: range) -> Rows[Any]:
        lost: Rows[Any] = self._board.skip(begun)
        return lost if self._accountant.trust is Trust.JOINT else Rows.null(begun)

    def _take_lost(self, lost: Rows[Any]) -> None:
        if self._batch < len(self._batches) and self._batches[self._batch].start < self.clock_:
            # Releases at once if the batch was full and only its last answer was missing.
            self._take(lost.slice(range(self._batches[self._batch].start, self.clock_)))
