"""One account of a ledger that is audited, as far as it was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, final

from privlearn.accountants.read_forms import read_loss
from privlearn.accountants.recorded_visits import Restate, restated_visits
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState
from privlearn.ledger import Record
from privlearn.ledger.entries import (
    Entry,
    RetireEntry,
    SpendEntry,
)


class Watcher(Protocol):
    """Sees every entry of an audit, for what a certificate does not say."""

    def see(self, record: Record, entry: Entry, state: AccountState) -> None:
        """An entry that ``state``, that of its accountant, has just taken into account."""


@final
@dataclass
class AuditedAccount:
    """One accountant as far as it was read."""

    state: AccountState
    totals: SpendTotals = field(default_factory=SpendTotals)
    spent: SpendEntry | None = None
    """The first spend."""
    unpriced: str = ""
    """Why what was spent is not known; empty where it is."""
    unplanned: str = ""
    """Why what was promised is not known; empty where it is."""
    restate: Restate | None = None
    watcher: Watcher | None = None

    def take(self, entry: Entry, record: Record) -> str:
        """Checks and records an entry, and says what is wrong with it."""
        problem, state, checked = "", self.state, None
        try:
            checked = state.check(entry)
        except Exception as error:  # whatever a file holds, an audit ends
            problem = str(error)
        try:
            # Also what should not have happened counts as spent.
            if checked is None:
                state.record_wrong(entry)
            else:
                state.record(checked)
            self.totals.add(state, entry)
            if self.watcher is not None:
                self.watcher.see(record, entry, state)
        except Exception as error:
            problem = problem or str(error)
            self.cannot_count(entry.entry, problem)
        if isinstance(entry, RetireEntry):
            self._fold(entry)
        elif isinstance(entry, SpendEntry):
            if state.visits is not None:
                problem = problem or self._check_visits(entry)
            self._drop(entry)
        return problem

    def _check_visits(self, entry: SpendEntry) -> str:
        """What is wrong with a gain that is for all visits of a person."""
        try:
            found = restated_visits(entry, read_loss(entry.loss), self.restate)
        except Exception as error:  # whatever a file holds, an audit ends
            return f"{entry.mechanism}: its parameters do not give its price: {error}"
        if found is not None:
            told = self.totals.restated if found else self.totals.as_recorded
            told[entry.mechanism] = None
        return ""

    def _drop(self, entry: SpendEntry) -> None:
        """Keeps of a spend only that it was made: one entry stands for all of them."""
        account = self.state.accounts.get(entry.token)
        if account is not None and account.spend is entry:
            self.spent = account.spend = self.spent or entry
            account.loss = None

    def _fold(self, entry: RetireEntry) -> None:
        account = self.state.accounts.get(entry.token)
        if account is None:
            return
        if account.spend is not None and entry.outcome in ("lost", "uncovered"):
            self.totals.lost += 1
        if entry.outcome == "uncovered":
            self.totals.uncovered.append((entry.token, account.label))
        self.state.fold(entry.token)

    def cannot_count(self, kind: object, why: str) -> None:
        """An entry of that kind could not be understood."""
        if str(kind) not in _FREE:
            self.unpriced = self.unpriced or why
        if kind == "plan":
            self.unplanned = self.unplanned or why

    @property
    def lost(self) -> int:
        """Spends of which no outcome is known."""
        return self.totals.lost + sum(
            account.spend is not None for account in self.state.accounts.values()
        )


_FREE = {
    "close",
    "delegate",
    "functions",
    "issue",
    "learner",
    "open",
    "plan",
    "resume",
    "retire",
    "return",
    "sums",
}
"""Kinds of entries by which nothing is spent; one of a kind that is unknown may spend."""
