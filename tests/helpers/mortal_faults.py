"""Faults of ledgers, receipts and learners, planted into every process of a task.

Each is one that the look at what a death left must catch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from privlearn.accountants import state
from privlearn.accountants.charged import OpenPhases
from privlearn.accountants.persons import Visits
from privlearn.accountants.replay import Replay
from privlearn.accountants.streams import Stream, kept_until
from privlearn.contract.receipts import Receipt
from privlearn.learners.phases import PhaseLearner
from privlearn.ledger.entry_log import EntryLog

Left = Callable[[str, Any], None]
"""Tells that a value left, with the token that is to pay."""


def _late(until: Callable[[list[Any]], bool]) -> None:
    """Entries are told to be written, and wait in memory until ``until`` says so of them."""
    write = EntryLog._write
    waiting: list[Any] = []

    def later(self: EntryLog, *written: Any) -> None:
        waiting.append(written)
        if until([entry for entry, *_ in waiting]):
            for each in waiting:
                write(self, *each)
            waiting.clear()

    EntryLog._write = later  # type: ignore[method-assign, assignment]


def receipt_lets_go_early(left: Left) -> None:
    """The value leaves, and then its spend is written."""
    _late(lambda entries: entries[0].entry != "spend" or entries[-1].entry in ("retire", "publish"))
    released = Receipt._released

    def early(self: Receipt, value: Any, *, last: bool, keep: bool = True) -> Any:
        left(self.token_id, value)
        return released(self, value, last=last, keep=keep)

    Receipt._released = early  # type: ignore[method-assign]


def ledger_tells_durable_before_commit(_: Left) -> None:
    """`Ledger.append` returns for sixteen entries before they are written."""
    _late(lambda entries: len(entries) == 16 or entries[0].entry not in ("issue", "spend"))


def ledger_never_syncs(_: Left) -> None:
    """What was written is left to the system to bring to disk; only a cut of the power shows it."""

    for name in ("fsync", "fdatasync"):
        setattr(os, name, lambda file: None)


def learner_forgets_the_last_release(_: Left) -> None:
    """A learner that is resumed stops one release before the last one."""
    points = Replay.points

    def fewer(self: Replay, unbounded: frozenset[str] = frozenset()) -> list[int]:
        return points(self, unbounded)[:-1]

    Replay.points = fewer  # type: ignore[method-assign]


def account_gives_users_again(_: Left) -> None:
    """An account frees users of a stream that died who may have been in it."""

    def too_few(stream: Stream, visits: Visits | None) -> int:
        return max(kept_until(stream, visits) - 5, stream.users.start)

    state.kept_until = too_few  # type: ignore[attr-defined]


def phases_are_shorter_after_a_death(_: Left) -> None:
    """A learner that is resumed ends its open phase earlier than it said, and nobody objects."""
    OpenPhases.check = lambda self, account, entry: None  # type: ignore[method-assign]
    go_on = PhaseLearner._go_on

    def shorter(self: Any) -> None:
        self._phase = self._phases._phase = self._phase[:-1]
        go_on(self)

    PhaseLearner._go_on = shorter  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[Left], None]] = {
    fault.__name__: fault
    for fault in (
        receipt_lets_go_early,
        ledger_tells_durable_before_commit,
        ledger_never_syncs,
        learner_forgets_the_last_release,
        account_gives_users_again,
        phases_are_shorter_after_a_death,
    )
}
