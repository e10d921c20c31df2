"""The accounts of a ledger that is audited, as far as it was read, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from pydantic import ValidationError

from privlearn.accountants.multiple_accountants import check_beside
from privlearn.accountants.persons import PatternWork
from privlearn.accountants.prices import CurveWork, read_loss
from privlearn.accountants.recorded_visits import Restate, restated_visits
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState
from privlearn.ledger import Record
from privlearn.ledger.chain import minute_of
from privlearn.ledger.entries import (
    CapEntry,
    Entry,
    OpenEntry,
    RetireEntry,
    SpendEntry,
    parse_entries,
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
            timed = state.allowances.timed or isinstance(entry, CapEntry)
            told = (record.envelope or {}).get("at") if timed else None
            checked = state.check(entry, None if told is None else minute_of(str(told)))
        except Exception as error:  # whatever a file holds, an audit ends
            problem = str(error) or type(error).__name__
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
            problem = problem or str(error) or type(error).__name__
            self.cannot_count(entry.entry, problem)
        if isinstance(entry, RetireEntry):
            self._fold(entry)
        elif isinstance(entry, SpendEntry):
            if state.visits is not None:
                problem = problem or self._check_visits(entry)
            self._drop(entry)
        return problem

    def _check_visits(self, entry: SpendEntry) -> str:
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
        told = entry.outcome not in ("lost", "uncovered") or (
            entry.outcome == "lost" and account.all_left  # phases that ended before their last user
        )
        if account.spend is not None and not told:
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
    "cap",
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


_MOST_LISTED = 1000  # Problems of a kind that are listed; the others are counted


@final
@dataclass
class Problems:
    """What is wrong, the first of it listed."""

    listed: list[str] = field(default_factory=list)
    others: int = 0

    def add(self, text: str) -> None:
        if len(self.listed) < _MOST_LISTED:
            self.listed.append(text)
        else:
            self.others += 1

    def lines(self) -> list[str]:
        """The first of them, and how many more there are."""
        more = [f"and {self.others} more, which are not listed"] if self.others else []
        return [*self.listed, *more]


@final
class AuditedAccounts:
    """All accounts of one ledger.

    Args:
        restate, watcher: as of `privlearn.accountants.audit.Examination`.

    Attributes:
        books: by the id of the accountant, in the order of opening.
        problems: what is wrong.
        consequences: what may be wrong only because the chain is broken before it.
        broken: whether the chain is.
    """

    def __init__(self, restate: Restate | None = None, watcher: Watcher | None = None) -> None:
        self._restate, self._watcher = restate, watcher
        self.problems, self.consequences, self.broken = Problems(), Problems(), False
        self.books: dict[str, AuditedAccount] = {}
        self._strangers: set[str] = set()
        self._curve_work = CurveWork()
        self._pattern_work = PatternWork.of_an_audit()

    def take(self, records: Sequence[Record], broken: Sequence[Sequence[str]]) -> None:
        """Looks at the next records; ``broken`` says of each what is wrong with its chain."""
        entries = parse_entries([(record.body, record.ext) for record in records])
        for record, entry, problems in zip(records, entries, broken, strict=True):
            for problem in problems:
                self.broken = True
                self.problems.add(problem)
            for problem in self._wrong_with(record, entry):
                self.found(f"entry {record.seq}: {problem}")

    def found(self, problem: str) -> None:
        """Takes down something that is wrong, and may be because the chain is broken."""
        (self.consequences if self.broken else self.problems).add(problem)

    def _wrong_with(self, record: Record, entry: Entry | Exception) -> Iterator[str]:
        if not isinstance(entry, Exception):
            book = self.books.get(entry.accountant)
            problem = self._enter(record, entry) if book is None else book.take(entry, record)
            if problem:
                yield problem
            return
        found = [str(entry)]
        if isinstance(entry, ValidationError):
            found = [
                f"field {'.'.join(map(str, detail['loc']))!r}: {detail['msg']}"
                for detail in entry.errors()
            ]
        book = self.books.get(str(record.body.get("accountant")))
        if book is not None:
            book.cannot_count(record.body.get("entry"), f"entry {record.seq}: {found[0]}")
        yield from found

    def _enter(self, record: Record, entry: Entry) -> str:
        if not isinstance(entry, OpenEntry):
            if entry.accountant in self._strangers:
                self.consequences.add(f"entry {record.seq}: the same accountant is not open")
                return ""
            self._strangers.add(entry.accountant)
            return f"accountant {entry.accountant} is not open"
        others = [other.state.opened for other in self.books.values()]
        try:
            state = AccountState(entry)
            self.books[entry.accountant] = AuditedAccount(
                state, restate=self._restate, watcher=self._watcher
            )
            state.number = len(self.books)
            state.prices.work = self._curve_work
            if state.visits is not None:
                state.visits.work = self._pattern_work
            state.functions_named = record.format != 1
            if self._watcher is not None:
                self._watcher.see(record, entry, state)
            check_beside(entry, others)
        except Exception as error:  # whatever a file holds, an audit ends
            return str(error) or type(error).__name__
        return ""
