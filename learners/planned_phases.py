"""Planned sums over phases that go on where their process died.

A learner begins a phase before it serves the first of its users, and ends it with their rows::

    phases = PlannedPhases(accountant, "rewards", accountant.users, mechanism)
    phases.plan()                      # for `Learner._plan`
    phases.begin(range(0, 100))        # in `Learner._begin`, after the accountant is there
    released = phases.end(rows)        # in `Served._learn`; None: that phase teaches nothing
    phases.begin(range(100, 150))      # then at once the next one
    phases.go_on()                     # before anybody is served

After a restart a phase of which no row was opened is the first of the stream that follows, and ends
where it was to end; of one whose rows were opened, and whose sum did not leave, nothing is known.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, final

from privlearn.contract.protocols import Accountant
from privlearn.contract.receipts import Released
from privlearn.errors import UsersError
from privlearn.learners.participation import rule_of
from privlearn.learners.successive_streams import SuccessiveStreams
from privlearn.mechanisms.phase_sums import PhaseStream, PhaseSum, Signs
from privlearn.rows import Rows
from privlearn.rows.domains import Array

X = TypeVar("X")


@final
class PlannedPhases(SuccessiveStreams[PhaseStream[X]], Generic[X]):
    """Sums over the phases of ``users``, by one stream or, after crashes, by several.

    Args:
        accountant: that the plan is committed with.
        label: of the plan item.
        users: of the plan item, in order of arrival.
        mechanism: for all users.

    Raises:
        ValueError: the accountant's rule of participation counts within batches, or is on a
            timetable.
    """

    def __init__(
        self, accountant: Accountant[Any], label: str, users: range, mechanism: PhaseSum[X]
    ) -> None:
        rule = rule_of(accountant)
        if rule is not None and (rule.batched or rule.clock != "arrivals"):
            raise ValueError(
                f"{rule}: the ends of phases follow from what is released, so that no batches can "
                "be declared; use a rule with most and apart alone, and clock = 'arrivals'"
            )
        super().__init__(accountant, label, users, mechanism)
        self._phase: range | None = None
        self._signs: Signs | None = None
        self._next = users.start
        self._declared = self._ended = False
        # In a replay nothing new is begun, and at a restart nothing is spent.
        self._live = not accountant.resumed

    @property
    def phase(self) -> range | None:
        """The users of the phase that was begun and has not ended."""
        return self._phase

    def begin(self, users: range, signs: Signs | None = None) -> None:
        """Begins the phase of the next users; returns when its end stands in the ledger.

        After a restart it does so at `go_on`, or at the end of the phase.

        Args:
            users: from where the last phase ended.
            signs: of each of them, see `PhaseStream.begin`.

        Raises:
            UsersError: others, or a phase is open.
            RuntimeError: closed.
            As `PhaseStream.begin`.
        """
        if self._ended:
            raise RuntimeError(f"stream {self.label!r}: closed")
        if self._phase is not None or users.start != self._next or not users:
            open_one = "" if self._phase is None else f", and the phase of {self._phase!r} is open"
            raise UsersError(f"a phase of {users!r}: the next user is {self._next}{open_one}")
        self._phase, self._signs = users, signs
        if self._live:
            self._declare()

    def _declare(self) -> None:
        """Begins the phase in the stream that takes its rows, if one does."""
        assert self._phase is not None
        self._declared = bool(self.takes(self._phase))
        if self._declared:
            self.open.begin(self._phase.stop, self._signs)

    def go_on(self) -> None:
        """Before anybody is served: begins the phase that is open, if a restart left it to that."""
        self._live = True
        if self._phase is not None and not self._declared:
            self._declare()

    def end(self, rows: Rows[X]) -> Released[Array] | None:
        """Ends the phase with the rows of all its users, null ones among them.

        Returns:
            its sums; None if what paid for them died after the rows were opened.

        Raises:
            UsersError: no phase is open, or rows of others.
        """
        if self._phase is None or rows.users != self._phase:
            raise UsersError(f"rows of {rows.users!r}: the open phase is of {self._phase!r}")
        if not self._declared:
            self._declare()
        released = self.open.end(rows) if self._declared else None
        self._phase, self._signs, self._next = None, None, rows.users.stop
        self._declared = False
        return released

    def close(self) -> None:
        """Ends all phases, also one that is open; nothing more is released."""
        self._ended, self._phase = True, None
        super().close()
