"""Recomputes a guarantee from only the ledger's entries."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Protocol, final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_serializer,
    model_serializer,
)

from privlearn._validate import count as valid_count
from privlearn._validate import probability
from privlearn.accountants.assumption import Assumption, paid, unprotected
from privlearn.accountants.assumptions import assumptions, noise_text
from privlearn.accountants.declarations import Declaration
from privlearn.accountants.epsilon_delta import RoundedNumber, Work, largest_epsilon
from privlearn.accountants.filters import running_bound
from privlearn.accountants.guarantee import (
    Composite,
    Totals,
    epsilon_of,
    mu_of,
    promised,
    rho_of,
    spent,
    unless_failed,
)
from privlearn.accountants.multiple_accountants import (
    CHOSEN_BEFORE,
    Pieces,
    check_beside,
    promised_pieces,
    remarks,
    spent_pieces,
    sums,
    user_sums,
)
from privlearn.accountants.opening_checks import rule_of
from privlearn.accountants.person_assumptions import relation_words
from privlearn.accountants.persons import PatternWork
from privlearn.accountants.prices import CurveWork
from privlearn.accountants.read_forms import read_loss
from privlearn.accountants.recorded_visits import Restate, restated_visits
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState
from privlearn.adjacency import Adjacency, Trust
from privlearn.entries import (
    Entry,
    OpenEntry,
    RetireEntry,
    SpendEntry,
    Users,
    parse_entry,
)
from privlearn.errors import BudgetError, UsersError
from privlearn.exact import float_down, float_up
from privlearn.ledger import KNOWN_FEATURES, SCHEMA, Chain, Record, iterate_records
from privlearn.ledger.addresses import is_address
from privlearn.ledger.heads import Claimed
from privlearn.ledger.recorded_values import RecordedValues
from privlearn.losses import Loss
from privlearn.participation import Participation


def _or_infinite(value: object) -> object:
    return math.inf if value is None else value


class Running(BaseModel):
    """The odometer: the privacy loss exceeds ``epsilon``, or did so earlier, with chance δ only."""

    model_config = ConfigDict(frozen=True)
    epsilon: float
    delta: float
    theorem: str


class Guarantee(BaseModel):
    """One statement of privacy, the maximum over users.

    ``rho`` (zCDP) and ``mu`` (Gaussian DP) are None where the losses have none.  ``epsilon`` is the
    least of all bounds that hold at ``delta``, and ``method`` says which (`epsilon_delta` lists
    them).
    Where it is ``unknown``, ``epsilon`` is infinite here and null in JSON.
    For ``gaussian`` and tight compositions the exact worst case is at most ``error_bound`` below
    it; for ``renyi`` and ``pure`` that covers rounding only.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    trust: Trust
    adjacency: Adjacency
    rho: float | None
    mu: float | None
    epsilon: Annotated[float, BeforeValidator(_or_infinite)]
    delta: float
    error_bound: float
    method: str
    rests_on: list[Assumption]
    accountants: tuple[int, ...] = (1,)
    """Whose guarantee it is, numbered as the ledger opens them; of several, it is their sum."""
    users: Users | None = None
    """The protected indices; None where several accountants name different people."""
    who: str = ""
    """Of a sum: for whom it holds."""
    attested: bool = False
    """Rests on what clients claim, which no ledger can verify."""
    failure: float = 0.0
    """Part of ``delta``: the probability of failing that was set aside or spent."""
    user: int | None = None
    """The one arrival index it is for; None for the maximum over users."""
    rounds: int = 1
    """How many rows the protected person has."""
    rule: Participation | None = None
    """How often the protected person may come back; None where a person is an index.  With a rule
    it is a guarantee for every person with all visits."""
    relation: str = ""
    """The neighbour relation of persons in a few words; empty where an index is one person."""
    running: Running | None = None
    """Ex post, and a guarantee of its own kind: a bound that holds at all times at once."""
    unknown: str = ""
    """Why it cannot be known from the ledger; empty where it is known."""

    @property
    def assumptions(self) -> list[str]:
        """What it rests on, in words."""
        return [assumption.text for assumption in self.rests_on]

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Certificates of accounts without rules stay what they were."""
        told: dict[str, Any] = serialize(self)
        for name in ("rule", "relation"):
            if not told[name]:
                del told[name]
        return told

    @field_serializer("epsilon", when_used="json")
    def _epsilon(self, value: float) -> float | None:
        return None if self.unknown else value


class Share(BaseModel):
    """All spends of one mechanism under one label."""

    model_config = ConfigDict(frozen=True)
    mechanism: str
    label: str
    spends: int
    share: float | None
    """Part of the budget spent on its accountant's most charged user, 0 to 1; None if unknown."""
    accountant: int = 1
    interactive: bool = False
    """Stays open and releases again while other tokens may be spent."""


class Leased(BaseModel):
    """Leases of one mechanism under one label: spends that each paid for several runs."""

    model_config = ConfigDict(frozen=True)
    accountant: int
    mechanism: str
    label: str
    leases: int
    runs: int
    """That they paid for; how many of these were used is not recorded."""


class Attestation(BaseModel):
    """What clients claim about their messages; not verified."""

    model_config = ConfigDict(frozen=True)
    accountant: int
    by: str
    mechanism: str
    label: str
    users: Users
    adjacency: Adjacency
    loss: dict[str, Any]
    most_messages: int
    count: int
    unseen: tuple[str, ...] = ()


class Certificate(BaseModel):
    """What a ledger proves, and every problem found in it.

    ``guarantees`` has one statement for each accountant and ``spent`` what each has spent, ex post.
    Where several accountants have the same trust and neighbour relation, ``sums`` states what they
    promise together and ``sums_spent`` what they spent; ``remarks`` says what cannot be known.
    ``problems`` are what is wrong; ``consequences``, which are never alone, are what may be wrong
    only because the record is broken before it.
    """

    model_config = ConfigDict(frozen=True)
    guarantees: list[Guarantee]
    spent: list[Guarantee]
    sums: list[Guarantee] = []
    sums_spent: list[Guarantee] = []
    remarks: list[str] = []
    attestations: list[Attestation] = []
    mechanisms: list[Share]
    entries: int
    spends: int
    lost: int
    ended_early: int = 0
    """Streams that are charged only to users whose rows they may have taken."""
    freed: int = 0
    """Users who were not, added up over these streams: nothing is charged to them for it."""
    leases: list[Leased] = []
    """Spends that paid for several runs of a mechanism, whose values do not stand in the ledger."""
    learners: list[str] = []
    """Names of the learners whose plans stand in the ledger, as it gives them."""
    closed: bool
    simulation: bool
    noise: str
    interleaved: bool = False
    """Whether tokens were spent while another's mechanism was still open, so that the guarantee
    rests on a theorem of concurrent composition (named among the assumptions)."""
    trusted_code: list[str]
    declarations: list[Declaration] = []
    """Losses of other packages, which are counted with the bounds that were declared for them."""
    problems: list[str]
    consequences: list[str] = []
    head: str
    head_compared: bool = False
    """Whether a head that was kept elsewhere was looked for."""
    head_at: int | None = None
    """After how many entries that head stands, all of which it vouches for; None if nowhere."""
    head_beside: bool = False
    """Whether the head in the file beside the ledger was looked for."""
    format: int = SCHEMA
    """Of the ledger that was read."""
    root: str = ""
    """The Merkle root (RFC 6962) of the hashes of all entries."""
    features: list[str] = []
    """Extensions that the ledger names and that this audit left aside, as they are optional."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Certificates of ledgers that older versions wrote stay what they were."""
        told: dict[str, Any] = serialize(self)
        for name in ("ended_early", "freed", "leases", "learners", "head_beside", "declarations"):
            if not told[name]:
                del told[name]
        return told

    @property
    def holds(self) -> bool:
        """Whether all is certified: no problems, noise that protects, nothing merely attested."""
        return not self.problems and not self.simulation and not self.attested

    @property
    def attested(self) -> bool:
        """Whether some guarantee is only what clients attest."""
        return any(guarantee.attested for guarantee in self.guarantees)


class Watcher(Protocol):
    """Sees every entry of an audit, for what a certificate does not say."""

    def see(self, record: Record, entry: Entry, state: AccountState) -> None:
        """An entry that ``state``, that of its accountant, has just taken into account."""


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
        self._claimed = Claimed(Path(path).resolve(), head=None, unknown=True)

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
@dataclass
class _Book:
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
        problem, state = "", self.state
        try:
            state.check(entry)
        except Exception as error:  # whatever a file holds, an audit ends
            problem = str(error)
        try:
            # Also what should not have happened counts as spent.
            (state.record_wrong if problem else state.record)(entry)
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
        self.chain, self.entries = Chain(), 0
        self.head = head
        """One that was kept elsewhere."""
        self.head_at = 0 if head == self.chain.head else None
        self.format = SCHEMA
        self.broken = False
        """Whether the chain was: what is wrong afterwards may be wrong because of that."""
        self.gap = ""
        """Where entries are missing or moved first; empty if nowhere."""
        self.problems, self.consequences = _Findings(), _Findings()
        self.books: dict[str, _Book] = {}
        self.strangers: set[str] = set()
        self.curve_work = CurveWork()
        self.pattern_work = PatternWork.of_an_audit()

    def take(self, record: Record) -> None:
        """Looks at the next record."""
        self.format, chain = record.format, self.chain
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
            self.books[entry.accountant] = _Book(state, restate=self.restate, watcher=self.watcher)
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
            for text in _broken_promise(book.state) + _uncovered(book.totals) + said:
                self.problems.add(text)
        guarantees: list[Guarantee] = []
        expended: list[Guarantee] = []
        shares: list[Share] = []
        notes = remarks(states)
        for totals in (book.totals for book in books):
            notes += [*totals.declarations.remarks(), *totals.foreign.remarks]
        work = Work()
        for book in protecting:
            state = book.state
            try:
                stated = _guarantee(book, promised(state, users), delta, rounds, users, work)
                spent_so_far = _guarantee(
                    book, spent(state, users), delta, rounds, users, work, ex_post=True
                )
                guarantees.append(stated)
                expended.append(spent_so_far)
                shares += _shares(book)
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
        together = _sums(books, promised_pieces, delta, notes, rounds, users, work)
        expended_together = _sums(
            books, spent_pieces, delta, notes, rounds, users, work, ex_post=True
        )
        return Certificate(
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
            leases=[lease for book in books for lease in _leases(book)],
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


def _guarantee(
    book: _Book,
    totals: Totals,
    delta: float | None,
    rounds: int,
    users: range | None,
    work: Work,
    *,
    ex_post: bool = False,
) -> Guarantee:
    state = book.state
    lines = assumptions(state, book.totals, rounds)
    if totals.bounded:
        lines.append(
            paid(
                f"Users with {totals.bounded} different totals, too many to compose one by one, "
                "are counted by the largest sum in the accountant's currency, which is no less "
                "than any of theirs."
            )
        )
    if users is not None:
        lines.append(
            paid(
                f"This is for user {users.start} only: what the plan or the cap allows to touch "
                "this user counts, spent or not."
            )
        )
        lines.append(unprotected("What happened after the arrival depends on the user."))
    unknown = book.unpriced if ex_post else book.unplanned
    found = _stated([state], totals.parts, delta, lines, work, rounds=rounds, unknown=unknown)
    known = ex_post and rounds == 1 and not unknown
    bound = running_bound(state, users) if known else None
    extra: dict[str, object] = {"user": None if users is None else users.start}
    if bound is not None:
        extra["running"] = Running(epsilon=bound.epsilon, delta=bound.delta, theorem=bound.theorem)
    return found.model_copy(update=extra)


def _stated(
    states: Sequence[AccountState],
    parts: list[Composite],
    delta: float | None,
    rests_on: list[Assumption],
    work: Work,
    who: str = "",
    rounds: int = 1,
    unknown: str = "",
) -> Guarantee:
    if delta is None:
        promises = {float(s.promise.delta) for s in states if s.promise is not None}
        failing = float(sum(s.failure for s in states))
        delta = max(promises, default=failing + 1e-6 * (1 - failing))
    rho, mu, epsilon = None, None, RoundedNumber(math.inf, 0.0, "unknown")
    if not unknown:
        rho = _times(_largest([rho_of(part) for part in parts]), rounds**2)
        mu = _times(_largest([mu_of(part) for part in parts]), rounds)
        epsilon = largest_epsilon(parts, delta, rounds, work)
    first = states[0].opened
    ranges = {state.opened.users for state in states}
    return Guarantee(
        trust=first.trust,
        adjacency=first.adjacency,
        rho=rho,
        mu=mu,
        epsilon=epsilon.value,
        delta=delta,
        error_bound=epsilon.error_bound,
        method=epsilon.method,
        rests_on=rests_on,
        accountants=tuple(state.number for state in states),
        users=next(iter(ranges)) if len(ranges) == 1 else None,
        who=who,
        attested=any(state.opened.attested for state in states),
        failure=max(
            (float_up(part.failure()) for part in parts if isinstance(part, Loss)), default=0.0
        ),
        rounds=rounds,
        rule=rule_of(first) if len(states) == 1 else None,
        relation=_relation(states),
        unknown=unknown,
    )


def _relation(states: Sequence[AccountState]) -> str:
    opened = [state.opened for state in states]
    words = dict.fromkeys(relation_words(o.adjacency, rule_of(o)) for o in opened)
    return "; ".join(words) if any(rule_of(o) for o in opened) else ""


def _times(value: float | None, factor: int) -> float | None:
    return value if value is None or factor == 1 else float_up(Fraction(value) * factor)


def _sums(
    books: Sequence[_Book],
    pieces: Callable[[AccountState], Pieces],
    delta: float | None,
    notes: list[str],
    rounds: int,
    users: range | None,
    work: Work,
    *,
    ex_post: bool = False,
) -> list[Guarantee]:
    found = []
    by_number = {book.state.number: book for book in books}
    try:
        states = [book.state for book in books]
        for added in sums(states, pieces) if users is None else user_sums(states, pieces, users):
            if not added.parts:
                notes.append(f"For {added.who}, the sum was not computed: too many totals differ.")
                continue
            its_books = [by_number[state.number] for state in added.states]
            rows = "" if rounds == 1 else f", {rounds} rows instead of each one"
            lines = [paid(f"This is the sum for {added.who}{rows}."), CHOSEN_BEFORE]
            lines += [line for b in its_books for line in assumptions(b.state, b.totals, rounds)]
            reasons = [b.unpriced if ex_post else b.unplanned for b in its_books]
            stated = _stated(
                added.states,
                added.parts,
                delta,
                list(dict.fromkeys(lines)),
                work,
                added.who,
                rounds,
                next(filter(None, reasons), ""),
            )
            user = None if users is None else users.start
            found.append(stated.model_copy(update={"user": user}))
    except Exception as error:  # whatever a file holds, an audit ends
        notes.append(f"Guarantees add up, but there is no sum: {error}")
    return found


def _broken_promise(state: AccountState) -> list[str]:
    """A cap that does not keep the (ε, δ) it was made from."""
    if state.promise is None:
        return []
    try:
        apart = unless_failed(state.promise, state.failure)
        found = epsilon_of(state.cap, float_down(apart.delta)).value
        if found <= float(state.promise.epsilon) * (1 + 1e-12):
            return []
    except (BudgetError, ValueError, ArithmeticError) as error:  # whatever a file holds
        return [f"the promise {state.promise} is not kept: {error}"]
    return [f"the cap {state.cap} gives ε = {found:.6g}, not the promised {state.promise}"]


def _uncovered(totals: SpendTotals) -> list[str]:
    """Releases that ended in a way that may depend on data beyond what was paid for."""
    return [
        f"token {token} ({label}): its mechanism stopped after it had opened rows; whether it does "
        "may depend on them, which is not covered"
        for token, label in totals.uncovered
    ]


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _leases(book: _Book) -> list[Leased]:
    """Spends that paid for several runs, by mechanism and label."""
    return [
        Leased(
            accountant=book.state.number,
            mechanism=mechanism,
            label=label,
            leases=leases,
            runs=runs,
        )
        for (mechanism, label), (leases, runs) in book.totals.leases.items()
    ]


def _shares(book: _Book) -> list[Share]:
    """Spends by mechanism and label, with their part of the most charged user's spend."""
    totals = book.totals
    parts = dict.fromkeys(totals.spends) | (
        {} if book.unpriced else dict(totals.shares(book.state))
    )
    return [
        Share(
            mechanism=group[0],
            label=group[1],
            accountant=book.state.number,
            spends=totals.spends[group],
            interactive=group in totals.streams,
            share=share,
        )
        for group, share in parts.items()
    ]
