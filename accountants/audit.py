"""Recomputes a guarantee from only the ledger's entries."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from privlearn.accountants.account_totals import promised, spent
from privlearn.accountants.assumptions import noise_text
from privlearn.accountants.audited_accounts import AuditedAccount, AuditedAccounts, Watcher
from privlearn.accountants.certificate import Attestation, Certificate, Guarantee, Share
from privlearn.accountants.epsilon_delta import Work
from privlearn.accountants.multiple_accountants import promised_pieces, remarks, spent_pieces
from privlearn.accountants.recorded_visits import Restate
from privlearn.accountants.state import AccountState
from privlearn.accountants.stated_caps import RENEWED_BY_CLOCKS, stated_caps
from privlearn.accountants.stated_guarantees import (
    Asked,
    broken_promise,
    leases_of,
    shares_of,
    stated_composition,
    stated_guarantee,
    stated_sums,
    uncovered,
)
from privlearn.errors import LedgerError, UsersError
from privlearn.ledger import KNOWN_FEATURES, SCHEMA, Chain, Record
from privlearn.ledger.addresses import is_address
from privlearn.ledger.chain import minute_of, text_of_minute
from privlearn.ledger.entry_log import this_minute
from privlearn.ledger.heads import Claimed
from privlearn.ledger.reader import iterate_pages, pages_of
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
    examination = Examination(
        path, delta=delta, head=head, user=user, rounds=rounds, restate=restate
    )
    return examination.read().certificate


_CLOCKS_DIFFER = 24 * 60
"""Minutes by which the clocks of a writer and a reader may differ without a word."""


@final
class ToldTimes:
    """Compares the minutes of entries with each other, and in the end with the reader's clock."""

    def __init__(self) -> None:
        self._last: object = None
        self._latest = 0
        self._back = self._unreal = 0
        self._first_back = ""

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            told = (record.envelope or {}).get("at")
            if told is None or told == self._last or not isinstance(told, str):
                continue
            self._last, minute = told, minute_of(told)
            if not minute:
                self._unreal += 1
            elif minute < self._latest:
                self._back += 1
                self._first_back = self._first_back or f"entry {record.seq} ({told})"
            else:
                self._latest = minute

    def remarks(self) -> list[str]:
        """What is to be said whoever reads the entries, and whenever."""
        found = []
        if self._back:
            found.append(
                f"Times go back {self._back} times, first at {self._first_back}; entries that this "
                f"package writes never do. {_CLAIMS}"
            )
        if self._unreal:
            found.append(f"{self._unreal} entries tell a time that no calendar has. {_CLAIMS}")
        return found

    def ahead(self, now: int) -> list[str]:
        """What is to be said of times beyond ``now``, the minute of the reader's clock."""
        if self._latest <= now + _CLOCKS_DIFFER:
            return []
        return [
            f"Entries tell times up to {text_of_minute(self._latest)}, and the clock of who reads "
            f"them says {text_of_minute(now)}: one of the two is wrong. {_CLAIMS}"
        ]


_CLAIMS = (
    "Times are what the writers say; no guarantee rests on them, but the epochs of caps that renew "
    "by the clock."
)


@final
class Examination:
    """An audit that is handed a ledger's records in turn, and can say at any time what it found.

    Args:
        path: the ledger, beside which its head and its values stand.
        delta, head, user, rounds, restate: as of `audit`.
        watcher: sees every entry on the way.

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
        self._asked = _valid(delta, user, rounds)
        self._path = os.fspath(path) if is_address(path) else Path(path)
        self._values = RecordedValues()
        self._claimed = Claimed(Path(os.path.realpath(path)), head=None, unknown=True)

    def read(self) -> Examined:
        """Reads the whole ledger.

        Raises:
            PrivlearnError: as `audit`.
        """
        for page in iterate_pages(self._path, vouched=self._audited.head is not None):
            self.take(page)
        return self.result()

    @property
    def entries(self) -> int:
        """How many records were taken."""
        return self._audited.chain.tree.size

    @property
    def closed(self) -> bool:
        """Whether accountants were opened, and all of them are closed."""
        books = self._audited.books
        return bool(books) and all(book.state.closed for book in books)

    @property
    def problems(self) -> list[str]:
        """What is wrong with the records so far, the first of it."""
        return self._audited.accounts.problems.lines()

    def take(self, records: Sequence[Record]) -> None:
        self._claimed.compare(records)
        self._values.note(records)
        self._audited.take(records)

    def result(self) -> Examined:
        """What was found so far.

        Raises:
            UsersError: no accountant has that user.
            BudgetError: user or rounds, of an account of persons.
        """
        found = self._audited.certificate(self._asked)
        problems, notes = self._values.problems_and_remarks(self._path)
        with suppress(LedgerError):  # a clock that tells no time tells nothing of others
            notes += self._audited.times.ahead(this_minute())
        if older := self._claimed.problem(self._audited.missing_head):
            problems.append(older)
        certificate = found.model_copy(
            update={
                "problems": found.problems + problems,
                "remarks": found.remarks + notes,
                "head_beside": self._claimed.beside,
            }
        )
        books = self._audited.books
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

    The records are looked at page by page; of a token that has ended only its name is kept, and of
    no token the entries.
    """
    asked = _valid(delta, user, rounds)
    audited = _Audit(_valid_head(head), restate)
    for page in pages_of(records):
        audited.take(page)
    return audited.certificate(asked)


def _valid(delta: float | None, user: int | None, rounds: int) -> Asked:
    if delta is not None and delta != 0:
        probability(delta=delta)
    valid_count(rounds=rounds)
    users = None if user is None else range(valid_count(at_least=0, user=user), user + 1)
    return Asked(delta, users, rounds)


def _valid_head(head: str | None) -> str | None:
    if head is not None and not re.fullmatch(r"[0-9a-f]{64}", head):
        raise ValueError(f"head = {head!r:.80}: must be 64 hexadecimal digits in lower case")
    return head


@final
class _Audit:
    """The audit of one ledger, as far as it was read."""

    def __init__(
        self,
        head: str | None = None,
        restate: Restate | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.chain, self.times, self.format = Chain(head), ToldTimes(), SCHEMA
        self.head = head
        self.accounts = AuditedAccounts(restate, watcher)

    @property
    def books(self) -> list[AuditedAccount]:
        return list(self.accounts.books.values())

    @property
    def missing_head(self) -> str | None:
        """The head that was kept elsewhere, if it stands nowhere."""
        return self.head if self.chain.sought_at is None else None

    def take(self, records: Sequence[Record]) -> None:
        self.format = records[-1].format
        self.times.note(records)
        self.accounts.take(records, [self.chain.add(record) for record in records])

    def certificate(self, asked: Asked) -> Certificate:
        books = self.books
        protecting = _protecting(books, asked)
        self._find_problems(books)
        notes, work = self._remarks(books), Work()
        guarantees, expended, shares = self._stated(protecting, asked, work)
        if asked.users is not None:
            notes += [
                f"Accountant {book.state.number} has no user {asked.user}."
                for book in books
                if book not in protecting
            ]
        together = stated_sums(books, promised_pieces, asked, notes, work)
        expended_together = stated_sums(books, spent_pieces, asked, notes, work, ex_post=True)
        states, totals = [book.state for book in books], [book.totals for book in books]
        return Certificate(
            together=stated_composition(books, asked, work, together),
            guarantees=guarantees,
            spent=expended,
            sums=together,
            sums_spent=expended_together,
            remarks=list(dict.fromkeys(notes)),
            attestations=_attestations(states),
            caps=stated_caps(books, guarantees, asked, work)
            if any(state.allowances for state in states)
            else [],
            mechanisms=shares,
            entries=self.chain.tree.size,
            spends=sum(sum(each.spends.values()) for each in totals),
            lost=sum(book.lost for book in books),
            ended_early=sum(each.ended_early for each in totals),
            freed=sum(each.freed for each in totals),
            leases=[lease for book in books for lease in leases_of(book)],
            learners=[s.learner.name for s in states if s.learner is not None],
            closed=bool(states) and all(state.closed for state in states),
            simulation=any(state.opened.simulated for state in states),
            interleaved=any(state.interleaved for state in states),
            noise="; ".join(sorted({noise_text(book.state, book.totals) for book in books})),
            trusted_code=sorted({word for each in totals for word in each.words()}),
            declarations=[one for each in totals for one in each.declarations.listed()],
            problems=self.accounts.problems.lines(),
            consequences=self.accounts.consequences.lines(),
            head=self.chain.head,
            head_compared=self.head is not None,
            head_at=self.chain.sought_at,
            format=self.format,
            root=self.chain.root,
            features=sorted({name for s in states for name in s.opened.features} - KNOWN_FEATURES),
        )

    def _find_problems(self, books: Sequence[AuditedAccount]) -> None:
        for problem in self.chain.end(self.missing_head):
            self.accounts.problems.add(problem)
        if self.chain.cut:
            for book in books:
                book.unpriced = "entries are missing or were moved"
        if not books:
            self.accounts.found("no accountant was opened: there is nothing to guarantee")
        for book in books:
            totals = book.totals
            said = [*totals.declarations.problems(), *totals.foreign.problems]
            for problem in broken_promise(book.state) + uncovered(totals) + said:
                self.accounts.problems.add(problem)

    def _remarks(self, books: Sequence[AuditedAccount]) -> list[str]:
        states = [book.state for book in books]
        notes = [*remarks(states), *self.times.remarks()]
        if any(state.allowances.timed for state in states):
            notes.append(RENEWED_BY_CLOCKS)
        for book in books:
            notes += [*book.totals.declarations.remarks(), *book.totals.foreign.remarks]
        return notes

    def _stated(
        self, books: Sequence[AuditedAccount], asked: Asked, work: Work
    ) -> tuple[list[Guarantee], list[Guarantee], list[Share]]:
        guarantees: list[Guarantee] = []
        expended: list[Guarantee] = []
        shares: list[Share] = []
        for book in books:
            state, users = book.state, asked.users
            try:
                stated = stated_guarantee(book, promised(state, users), asked, work)
                so_far = stated_guarantee(book, spent(state, users), asked, work, ex_post=True)
                guarantees.append(stated)
                expended.append(so_far)
                shares += shares_of(book)
                infinite = stated.epsilon == math.inf and not stated.unknown
                if infinite and asked.delta is None and asked.rounds == 1:
                    text = f"accountant {state.number}: no finite ε at δ = {stated.delta:g}"
                    self.accounts.found(text)
            except Exception as error:  # whatever a file holds, an audit ends
                self.accounts.found(f"accountant {state.number}: no total: {error}")
        return guarantees, expended, shares


def _protecting(books: Sequence[AuditedAccount], asked: Asked) -> Sequence[AuditedAccount]:
    for book in books:
        book.state.check_asked(asked.rounds, asked.user)
    found = [b for b in books if asked.users is None or asked.user in b.state.users]
    if books and not found:
        ranges = (range(b.state.users.start, b.state.users.stop) for b in books)
        known = ", ".join(dict.fromkeys(map(str, ranges)))
        raise UsersError(
            f"user = {asked.user}: no accountant has this user; they have {known:.200}"
        )
    return found


def _attestations(states: Iterable[AccountState]) -> list[Attestation]:
    return [
        Attestation(
            accountant=state.number, **entry.model_dump(exclude={"accountant", "entry", "planned"})
        )
        for state in states
        for entry in state.attested
    ]
