"""Recomputes a guarantee from ledger entries alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from privlearn._validate import count as valid_count
from privlearn._validate import probability
from privlearn.accountants.assumptions import assumptions
from privlearn.accountants.filters import running_bound
from privlearn.accountants.guarantee import (
    Composite,
    epsilon_of,
    mu_of,
    promised,
    rho_of,
    spent,
    unless_failed,
)
from privlearn.accountants.pricing import largest_epsilon
from privlearn.accountants.several import (
    CHOSEN_BEFORE,
    Pieces,
    check_beside,
    promised_pieces,
    remarks,
    spent_pieces,
    sums,
)
from privlearn.accountants.state import AccountState
from privlearn.adjacency import Adjacency, Trust
from privlearn.budgets import float_down, float_up
from privlearn.entries import (
    AttestEntry,
    Entry,
    FunctionsEntry,
    OpenEntry,
    SpendEntry,
    Users,
    parse_entry,
)
from privlearn.errors import BudgetError, PrivlearnError
from privlearn.ledger import SCHEMA, Chain, Record, read_records
from privlearn.losses import Loss


class Running(BaseModel):
    """The odometer: the privacy loss exceeds ``epsilon``, or did so earlier, with chance δ only."""

    model_config = ConfigDict(frozen=True)
    epsilon: float
    delta: float
    theorem: str


class Guarantee(BaseModel):
    """One statement of privacy, the maximum over users.

    ``rho`` (zCDP) and ``mu`` (Gaussian DP) are None where the losses have none.  ``epsilon`` is the
    least of all bounds that hold at ``delta``, and ``method`` says which (`pricing` lists them).
    For ``gaussian`` and tight compositions the exact worst case is at most ``error_bound`` below
    it; for ``renyi`` and ``pure`` that covers rounding only.
    """

    model_config = ConfigDict(frozen=True)
    trust: Trust
    adjacency: Adjacency
    rho: float | None
    mu: float | None
    epsilon: float
    delta: float
    error_bound: float
    method: str
    assumptions: list[str]
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
    running: Running | None = None
    """Ex post, and a guarantee of its own kind: a bound that holds at all times at once."""


class Share(BaseModel):
    """All spends of one mechanism under one label."""

    model_config = ConfigDict(frozen=True)
    mechanism: str
    label: str
    spends: int
    share: float
    """Part of the budget spent on its accountant's most charged user, 0 to 1."""
    accountant: int = 1
    interactive: bool = False
    """Stays open and releases again while other tokens may be spent."""


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
    closed: bool
    simulation: bool
    noise: str
    interleaved: bool = False
    """Whether tokens were spent while another's mechanism was still open, so that the guarantee
    rests on a theorem of concurrent composition (named among the assumptions)."""
    trusted_code: list[str]
    problems: list[str]
    head: str
    format: int = SCHEMA
    """Of the ledger that was read."""
    root: str = ""
    """The Merkle root (RFC 6962) of the hashes of all entries."""
    features: list[str] = []
    """Extensions that the ledger names and that this audit left aside, as they are optional."""

    @property
    def holds(self) -> bool:
        """Whether all is certified: no problems, noise that protects, nothing merely attested."""
        return not self.problems and not self.simulation and not self.attested

    @property
    def attested(self) -> bool:
        """Whether some guarantee is only what clients attest."""
        return any(guarantee.attested for guarantee in self.guarantees)


def audit(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
) -> Certificate:
    """Recomputes everything from a ledger file or export.

    Args:
        path: the SQLite ledger or its JSON-lines export; it is not changed.
        delta: where to state ε; default the δ of an (ε, δ) promise, else 1e-6.  At 0 it is finite
            where all losses are pure.
        head: the expected last hash, to detect cuts and rewrites.
        user: an arrival index; default the maximum over users.
        rounds: for a person with so many rows (group privacy).

    Raises:
        LedgerUnreadableError: missing, torn or not a ledger.  LedgerSchemaError: newer version.
        LedgerFeatureError: it needs an unknown extension to be understood.
    """
    return certify(read_records(path), delta=delta, head=head, user=user, rounds=rounds)


def certify(
    records: Sequence[Record],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
) -> Certificate:
    """Recomputes everything from ledger records; problems are listed, not raised."""
    if delta is not None and delta != 0:
        probability(delta=delta)
    valid_count(rounds=rounds)
    users = None if user is None else range(valid_count(at_least=0, user=user), user + 1)
    chain = Chain()
    problems = [problem for record in records for problem in chain.add(record)]
    problems += chain.end(head)
    states, entries = _fold(records, problems)
    if not states:
        problems.append("no accountant was opened: there is nothing to guarantee")
    problems += [text for state in states for text in _broken_promise(state) + _uncovered(state)]
    spends = [entry for entry in entries if isinstance(entry, SpendEntry)]
    guarantees: list[Guarantee] = []
    expended: list[Guarantee] = []
    shares: list[Share] = []
    for state in states:
        try:
            stated = _guarantee(state, promised(state, users), delta, rounds, users)
            guarantees.append(stated)
            expended.append(_guarantee(state, spent(state, users), delta, rounds, users, True))
            shares += _shares(state)
            if stated.epsilon == math.inf:
                problems.append(
                    f"accountant {state.opened.accountant}: no finite ε at δ = {stated.delta:g}"
                )
        except Exception as error:  # whatever a file holds, an audit ends
            problems.append(f"accountant {state.opened.accountant}: no total: {error}")
    notes = remarks(states)
    added = states if user is None else []  # one index may be several people
    together = _sums(added, promised_pieces, delta, notes, rounds)
    expended_together = _sums(added, spent_pieces, delta, notes, rounds)
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
        entries=len(records),
        spends=len(spends),
        lost=sum(
            a.spend is not None and a.outcome in (None, "lost", "uncovered")
            for s in states
            for a in s.accounts.values()
        ),
        closed=bool(states) and all(state.closed for state in states),
        simulation=any(state.opened.simulated for state in states),
        interleaved=any(state.interleaved for state in states),
        noise="; ".join(sorted({state.opened.noise for state in states})),
        trusted_code=sorted({note for entry in entries for note in _trust_notes(entry)}),
        problems=problems,
        head=chain.head,
        format=records[0].format if records else SCHEMA,
        root=chain.root,
        features=sorted({name for state in states for name in state.opened.features}),
    )


def _fold(records: Sequence[Record], problems: list[str]) -> tuple[list[AccountState], list[Entry]]:
    states: dict[str, AccountState] = {}
    entries: list[Entry] = []
    for record in records:
        try:
            entry = parse_entry(record.body)
            entries.append(entry)
            if isinstance(entry, OpenEntry) and entry.accountant not in states:
                others = [other.opened for other in states.values()]
                states[entry.accountant] = AccountState(entry)
                states[entry.accountant].number = len(states)
                check_beside(entry, others)
                continue
            state = states.get(entry.accountant)
            if state is None:
                problems.append(f"entry {record.seq}: accountant {entry.accountant} is not open")
                continue
            try:
                state.check(entry)
            except PrivlearnError as error:
                problems.append(f"entry {record.seq}: {error}")
            # Also what should not have happened counts as spent.
            state.record(entry)
        except ValidationError as error:
            for detail in error.errors():
                field = ".".join(str(part) for part in detail["loc"])
                problems.append(f"entry {record.seq}: field {field!r}: {detail['msg']}")
        except Exception as error:  # whatever a file holds, an audit ends
            problems.append(f"entry {record.seq}: {error}")
    return list(states.values()), entries


def _guarantee(
    state: AccountState,
    parts: list[Composite],
    delta: float | None,
    rounds: int,
    users: range | None,
    ex_post: bool = False,
) -> Guarantee:
    if users is not None:
        state.charged.check(users)
    lines = assumptions(state, rounds)
    if users is not None:
        lines.append(
            f"This is for user {users.start} alone: what the plan or the cap allows to touch this "
            "user counts, spent or not; what happened after the arrival depends on the user."
        )
    found = _stated([state], parts, delta, lines, rounds=rounds)
    bound = running_bound(state, users) if ex_post and rounds == 1 else None
    extra: dict[str, object] = {"user": None if users is None else users.start}
    if bound is not None:
        extra["running"] = Running(epsilon=bound.epsilon, delta=bound.delta, theorem=bound.theorem)
    return found.model_copy(update=extra)


def _stated(
    states: Sequence[AccountState],
    parts: list[Composite],
    delta: float | None,
    rests_on: list[str],
    who: str = "",
    rounds: int = 1,
) -> Guarantee:
    if delta is None:
        promises = {float(s.promise.delta) for s in states if s.promise is not None}
        failing = float(sum(s.failure for s in states))
        delta = max(promises, default=failing + 1e-6 * (1 - failing))
    epsilon = largest_epsilon(parts, delta, rounds)
    first = states[0].opened
    ranges = {state.opened.users for state in states}
    return Guarantee(
        trust=first.trust,
        adjacency=first.adjacency,
        rho=_times(_largest([rho_of(part) for part in parts]), rounds**2),
        mu=_times(_largest([mu_of(part) for part in parts]), rounds),
        epsilon=epsilon.value,
        delta=delta,
        error_bound=epsilon.error_bound,
        method=epsilon.method,
        assumptions=rests_on,
        accountants=tuple(state.number for state in states),
        users=next(iter(ranges)) if len(ranges) == 1 else None,
        who=who,
        attested=any(state.opened.attested for state in states),
        failure=max(
            (float_up(part.failure()) for part in parts if isinstance(part, Loss)), default=0.0
        ),
        rounds=rounds,
    )


def _times(value: float | None, factor: int) -> float | None:
    return value if value is None or factor == 1 else float_up(Fraction(value) * factor)


def _sums(
    states: Sequence[AccountState],
    pieces: Callable[[AccountState], Pieces],
    delta: float | None,
    notes: list[str],
    rounds: int,
) -> list[Guarantee]:
    found = []
    try:
        for added in sums(states, pieces):
            if not added.parts:
                notes.append(f"For {added.who}, the sum was not computed: too many totals differ.")
                continue
            rows = "" if rounds == 1 else f", {rounds} rows instead of each one"
            lines = [f"This is the sum for {added.who}{rows}.", CHOSEN_BEFORE]
            lines += [line for state in added.states for line in assumptions(state, rounds)]
            rests_on = list(dict.fromkeys(lines))
            found.append(_stated(added.states, added.parts, delta, rests_on, added.who, rounds))
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


def _uncovered(state: AccountState) -> list[str]:
    """Releases that ended in a way that may depend on data beyond what was paid for."""
    return [
        f"token {token} ({account.entry.label}): its mechanism stopped after it had opened rows; "
        "whether it does may depend on them, which is not covered"
        for token, account in state.accounts.items()
        if account.outcome == "uncovered"
    ]


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _shares(state: AccountState) -> list[Share]:
    """Spends by mechanism and label, with their part of the most charged user's spend."""
    groups: dict[tuple[str, str], list[tuple[range, Fraction]]] = {}
    spends: dict[tuple[str, str], int] = {}
    streams: set[tuple[str, str]] = set()
    for account in state.accounts.values():
        if account.spend is not None and account.loss is not None:
            key = (account.spend.mechanism, account.entry.label)
            for piece, part in account.loss.over(range(*account.entry.users)):
                groups.setdefault(key, []).append((piece, state.price(part).amounts[0]))
            spends[key] = spends.get(key, 0) + 1
            if account.spend.interactive:
                streams.add(key)
    totals = {
        users.start: sum((p for g in groups.values() for r, p in g if users.start in r), Fraction())
        for users, _ in state.spent.pieces()
    }
    most = max(totals, key=lambda start: totals[start])
    return [
        Share(
            mechanism=mechanism,
            label=label,
            accountant=state.number,
            spends=spends[mechanism, label],
            interactive=(mechanism, label) in streams,
            share=float(sum((p for r, p in items if most in r), Fraction()) / (totals[most] or 1)),
        )
        for (mechanism, label), items in groups.items()
    ]


def _trust_notes(entry: Entry) -> list[str]:
    if isinstance(entry, AttestEntry):
        return [f"{entry.mechanism}: attested by {entry.by}, not verified"]
    if isinstance(entry, FunctionsEntry):
        return [
            f"{name}: user code; that it acts on each row by itself is its word, spot-checked"
            if not name.startswith("deliver(")
            else f"{name}: user code for the users' answers; that each user answers by itself is "
            "its word"
            for name in entry.names
        ]
    if not isinstance(entry, SpendEntry):
        return []
    notes = []
    if not entry.derived:
        notes = [f"{entry.mechanism}: its loss, or its domain's or noise's, is its code's word"]
        if entry.arithmetic != "each":
            return notes
    if entry.arithmetic == "sum" and entry.gain == 1:
        return []
    gain = "" if entry.gain == 1 else f" and its gain of {entry.gain!r}"
    if entry.arithmetic == "each":
        return [
            *notes,
            f"{entry.mechanism}: that every output depends on its user's row and own noise "
            f"alone{gain} is its code's word",
        ]
    return [f"{entry.mechanism}: what it computes from opened rows{gain} is its code's word"]
