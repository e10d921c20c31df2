"""Recomputes a guarantee from only the ledger's entries."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from pydantic import (
    ValidationError,
)

from privlearn.accountants.assumptions import noise_text
from privlearn.accountants.audited_accounts import AuditedAccount, Watcher
from privlearn.accountants.certificate import (
    Attestation,
    Certificate,
    Guarantee,
    Share,
)
from privlearn.accountants.epsilon_delta import Work
from privlearn.accountants.guarantee import (
    promised,
    spent,
)
from privlearn.accountants.multiple_accountants import (
    check_beside,
    promised_pieces,
    remarks,
    spent_pieces,
)
from privlearn.accountants.persons import PatternWork
from privlearn.accountants.prices import CurveWork
from privlearn.accountants.recorded_visits import Restate
from privlearn.accountants.state import AccountState
from privlearn.accountants.stated_guarantees import (
    broken_promise,
    leases_of,
    shares_of,
    stated_composition,
    stated_guarantee,
    stated_sums,
    uncovered,
)
from privlearn.accountants.told_times import ToldTimes
from privlearn.errors import LedgerError, UsersError
from privlearn.ledger import KNOWN_FEATURES, SCHEMA, Chain, Record, iterate_records
from privlearn.ledger.addresses import is_address
from privlearn.ledger.chain import this_minute
from privlearn.ledger.entries import (
    Entry,
    OpenEntry,
    parse_entry,
)
from privlearn.ledger.heads import Claimed
from privlearn.ledger.recorded_values import RecordedValues
from privlearn.values.validate import count as valid_count
from privlearn.values.validate import probability


@final
@dataclass(frozen=True)
class Examined:
    """An audit's certificate, and the accounts that it follows from, in the order of opening."""

    certificate: Certificate
    states: Sequence[AccountState]
    unknown: Sequence[str]
    """Of each account: why it is not known what was spent; empty where it is."""
    of_entries: Certificate
    """What follows from the entries, whatever file they stand in and whatever is beside it."""


def audit(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    restate: Restate | None = None,
) -> Certificate:
    """Recomputes everything from a ledger file or export.

    ``audit(path).epsilon`` is what one person may lose in the whole ledger.

    Args:
        path: the SQLite ledger or its JSON-lines export; it is not changed.
        delta: where to state ε; default the δ of an (ε, δ) promise, else 1e-6.  At 0 it is finite
            where all losses are pure.
        head: a last hash that was kept, 64 digits, to detect cuts and rewrites; of an earlier one,
            `Certificate.head_at` says where in the ledger, which continues it, it stands.
        user: an arrival index; default the maximum over users.
        rounds: for a person with so many rows (group privacy).
        restate: works out again from the parameters of a spend what all visits of one person move,
            as `privlearn.reporting.audits.audit` does; else the certificate says "as recorded".

    Raises:
        LedgerUnreadableError: missing, torn or not a ledger.
        LedgerSchemaError: newer version.
        LedgerFeatureError: it needs an unknown extension to be understood.
        UsersError: no accountant has that user.
        BudgetError: user or rounds, of an account of persons.
    """
    return examine(
        path, delta=delta, head=head, user=user, rounds=rounds, restate=restate
    ).certificate


def examine(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    restate: Restate | None = None,
    watcher: Watcher | None = None,
) -> Examined:
    """As `audit`, with the accounts; ``watcher`` sees every entry on the way.

    Raises:
        PrivlearnError: as `audit`.
    """
    examination = Examination(
        path, delta=delta, head=head, user=user, rounds=rounds, restate=restate, watcher=watcher
    )
    for record in iterate_records(path, vouched=head is not None):
        examination.take(record)
    return examination.result()


@final
class Examination:
    """An audit that is handed a ledger's records one by one, and can say at any time what it found.

    Args:
        path: the ledger, beside which its head and its values stand.
        delta, head, user, rounds, restate, watcher: as of `examine`.

    Raises:
        ValueError: delta, head or rounds are none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        delta: float | None = None,
        head: str | None = None,
        user: int | None = None,
        rounds: int = 1,
        restate: Restate | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._audited = _Audit(_valid_head(head), restate, watcher)
        self._delta, self._rounds = delta, rounds
        self._users = _asked(delta, user, rounds)
        self._path = os.fspath(path) if is_address(path) else Path(path)
        self._values = RecordedValues()
        self._claimed = Claimed(Path(os.path.realpath(path)), head=None, unknown=True)

    @property
    def entries(self) -> int:
        """How many records were taken."""
        return self._audited.entries

    @property
    def closed(self) -> bool:
        """Whether accountants were opened, and all of them are closed."""
        books = self._audited.books.values()
        return bool(books) and all(book.state.closed for book in books)

    @property
    def problems(self) -> list[str]:
        """What is wrong with the records so far, the first of it."""
        return self._audited.problems.lines()

    def take(self, record: Record) -> None:
        """Looks at the next record."""
        self._claimed.compare(record)
        self._values.note(record)
        self._audited.take(record)

    def result(self) -> Examined:
        """What was found so far.

        Raises:
            UsersError: no accountant has that user.
            BudgetError: user or rounds, of an account of persons.
        """
        found = self._audited.certificate(self._delta, self._users, self._rounds)
        problems, notes = self._values.problems_and_remarks(self._path)
        with suppress(LedgerError):  # a clock that tells no time tells nothing of others
            notes += self._audited.times.ahead(this_minute())
        missing = self._audited.head if self._audited.head_at is None else None
        if older := self._claimed.problem(missing):
            problems.append(older)
        certificate = found.model_copy(
            update={
                "problems": found.problems + problems,
                "remarks": found.remarks + notes,
                "head_beside": self._claimed.beside,
            }
        )
        books = self._audited.books.values()
        states, unknown = [book.state for book in books], [book.unpriced for book in books]
        return Examined(certificate, states, unknown, found)


def certify(
    records: Iterable[Record],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    restate: Restate | None = None,
) -> Certificate:
    """Recomputes everything from ledger records; problems are listed, not raised.

    As `audit` does, it raises UsersError for a user of no accountant, and BudgetError for a user,
    or rounds, of an account of persons.

    The records are looked at one by one; of a token that has ended only its name is kept, and of
    no token the entries.
    """
    users = _asked(delta, user, rounds)
    audited = _Audit(_valid_head(head), restate)
    for record in records:
        audited.take(record)
    return audited.certificate(delta, users, rounds)


def _asked(delta: float | None, user: int | None, rounds: int) -> range | None:
    """The users that are asked about, and whether the numbers are such."""
    if delta is not None and delta != 0:
        probability(delta=delta)
    valid_count(rounds=rounds)
    return None if user is None else range(valid_count(at_least=0, user=user), user + 1)


def _valid_head(head: str | None) -> str | None:
    if head is not None and not re.fullmatch(r"[0-9a-f]{64}", head):
        raise ValueError(f"head = {head!r:.80}: must be 64 hexadecimal digits in lower case")
    return head


_MOST_LISTED = 1000
"""Problems of a kind that are listed; the others are counted."""


@final
@dataclass
class _Findings:
    """What is wrong, the first of it listed."""

    listed: list[str] = field(default_factory=list)
    others: int = 0

    def add(self, text: str) -> None:
        if len(self.listed) < _MOST_LISTED:
            self.listed.append(text)
        else:
            self.others += 1

    def lines(self) -> list[str]:
        more = [f"and {self.others} more, which are not listed"] if self.others else []
        return [*self.listed, *more]


@final
class _Audit:
    """The audit of one ledger, record by record."""

    def __init__(
        self,
        head: str | None = None,
        restate: Restate | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.restate, self.watcher = restate, watcher
        self.chain, self.entries, self.times = Chain(), 0, ToldTimes()
        self.head = head
        """One that was kept elsewhere."""
        self.head_at = 0 if head == self.chain.head else None
        self.format = SCHEMA
        self.broken = False
        """Whether the chain was: what is wrong afterwards may be wrong because of that."""
        self.gap = ""
        """Where entries are missing or moved first; empty if nowhere."""
        self.problems, self.consequences = _Findings(), _Findings()
        self.books: dict[str, AuditedAccount] = {}
        self.strangers: set[str] = set()
        self.curve_work = CurveWork()
        self.pattern_work = PatternWork.of_an_audit()

    def take(self, record: Record) -> None:
        """Looks at the next record."""
        self.format, chain = record.format, self.chain
        self.times.note(record)
        misplaced = record.seq != chain.size
        problems = chain.add(record)
        if problems:
            for problem in problems:
                self.problems.add(problem)
            self.broken = True
            if misplaced:
                self.gap = "entries are missing or were moved"
        self.entries += 1
        if self.head == chain.head:
            self.head_at = self.entries
        for problem in self._read(record):
            self._found(f"entry {record.seq}: {problem}")

    def _found(self, problem: str, *, follows: bool = False) -> None:
        (self.consequences if follows or self.broken else self.problems).add(problem)

    def _read(self, record: Record) -> Sequence[str]:
        """What is wrong with an entry itself."""
        try:
            entry = parse_entry(record.body, record.ext)
        except ValidationError as error:
            found = [
                f"field {'.'.join(map(str, detail['loc']))!r}: {detail['msg']}"
                for detail in error.errors()
            ]
        except Exception as error:  # whatever a file holds, an audit ends
            found = [str(error)]
        else:
            book = self.books.get(entry.accountant)
            problem = self._enter(record, entry) if book is None else book.take(entry, record)
            return (problem,) if problem else ()
        book = self.books.get(str(record.body.get("accountant")))
        if book is not None:
            book.cannot_count(record.body.get("entry"), f"entry {record.seq}: {found[0]}")
        return found

    def _enter(self, record: Record, entry: Entry) -> str:
        """An entry of an accountant that is not known."""
        if not isinstance(entry, OpenEntry):
            if entry.accountant in self.strangers:
                self._found(f"entry {record.seq}: the same accountant is not open", follows=True)
                return ""
            self.strangers.add(entry.accountant)
            return f"accountant {entry.accountant} is not open"
        others = [other.state.opened for other in self.books.values()]
        try:
            state = AccountState(entry)
            self.books[entry.accountant] = AuditedAccount(
                state, restate=self.restate, watcher=self.watcher
            )
            state.number = len(self.books)
            state.prices.work = self.curve_work
            if state.visits is not None:
                state.visits.work = self.pattern_work
            state.functions_named = self.format != 1
            if self.watcher is not None:
                self.watcher.see(record, entry, state)
            check_beside(entry, others)
        except Exception as error:  # whatever a file holds, an audit ends
            return str(error)
        return ""

    def certificate(self, delta: float | None, users: range | None, rounds: int) -> Certificate:
        """What follows from all records so far."""
        books = list(self.books.values())
        for book in books:
            book.state.check_asked(rounds, None if users is None else users.start)
        protecting = [b for b in books if users is None or users.start in b.state.users]
        if books and users is not None and not protecting:
            ranges = (range(b.state.users.start, b.state.users.stop) for b in books)
            known = ", ".join(dict.fromkeys(map(str, ranges)))
            raise UsersError(
                f"user = {users.start}: no accountant has this user; they have {known:.200}"
            )
        for problem in self.chain.end(self.head if self.head_at is None else None):
            self.problems.add(problem)
        states = [book.state for book in books]
        if self.gap:
            for book in books:
                book.unpriced = self.gap
        if not states:
            self._found("no accountant was opened: there is nothing to guarantee")
        for book in books:
            said = [*book.totals.declarations.problems(), *book.totals.foreign.problems]
            for text in broken_promise(book.state) + uncovered(book.totals) + said:
                self.problems.add(text)
        guarantees: list[Guarantee] = []
        expended: list[Guarantee] = []
        shares: list[Share] = []
        notes = [*remarks(states), *self.times.remarks()]
        for totals in (book.totals for book in books):
            notes += [*totals.declarations.remarks(), *totals.foreign.remarks]
        work = Work()
        for book in protecting:
            state = book.state
            try:
                stated = stated_guarantee(book, promised(state, users), delta, rounds, users, work)
                spent_so_far = stated_guarantee(
                    book, spent(state, users), delta, rounds, users, work, ex_post=True
                )
                guarantees.append(stated)
                expended.append(spent_so_far)
                shares += shares_of(book)
                infinite = stated.epsilon == math.inf and not stated.unknown
                if infinite and delta is None and rounds == 1:
                    self._found(f"accountant {state.number}: no finite ε at δ = {stated.delta:g}")
            except Exception as error:  # whatever a file holds, an audit ends
                self._found(f"accountant {state.number}: no total: {error}")
        if users is not None:
            notes += [
                f"Accountant {book.state.number} has no user {users.start}."
                for book in books
                if book not in protecting
            ]
        together = stated_sums(books, promised_pieces, delta, notes, rounds, users, work)
        expended_together = stated_sums(
            books, spent_pieces, delta, notes, rounds, users, work, ex_post=True
        )
        return Certificate(
            together=stated_composition(books, delta, rounds, users, work, together),
            guarantees=guarantees,
            spent=expended,
            sums=together,
            sums_spent=expended_together,
            remarks=list(dict.fromkeys(notes)),
            attestations=[
                Attestation(
                    accountant=state.number,
                    **entry.model_dump(exclude={"accountant", "entry", "planned"}),
                )
                for state in states
                for entry in state.attested
            ],
            mechanisms=shares,
            entries=self.entries,
            spends=sum(sum(book.totals.spends.values()) for book in books),
            lost=sum(book.lost for book in books),
            ended_early=sum(book.totals.ended_early for book in books),
            freed=sum(book.totals.freed for book in books),
            leases=[lease for book in books for lease in leases_of(book)],
            learners=[s.learner.name for s in states if s.learner is not None],
            closed=bool(states) and all(state.closed for state in states),
            simulation=any(state.opened.simulated for state in states),
            interleaved=any(state.interleaved for state in states),
            noise="; ".join(sorted({noise_text(book.state, book.totals) for book in books})),
            trusted_code=sorted(
                {
                    note
                    for totals in (book.totals for book in books)
                    for note in (
                        *totals.trusted_code,
                        *totals.declarations.words(),
                        *totals.foreign.words(),
                    )
                }
            ),
            declarations=[one for book in books for one in book.totals.declarations.listed()],
            problems=self.problems.lines(),
            consequences=self.consequences.lines(),
            head=self.chain.head,
            head_compared=self.head is not None,
            head_at=self.head_at,
            format=self.format,
            root=self.chain.root,
            features=sorted(
                {name for state in states for name in state.opened.features} - KNOWN_FEATURES
            ),
        )
