"""Recomputes a guarantee from ledger entries alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction

from pydantic import BaseModel, ConfigDict, ValidationError

from privlearn._validate import probability
from privlearn.accountants.assumptions import assumptions
from privlearn.accountants.guarantee import (
    Composite,
    epsilon_of,
    mu_of,
    promised,
    rho_of,
    spent,
)
from privlearn.accountants.state import AccountState
from privlearn.adjacency import Adjacency, Trust
from privlearn.entries import Entry, OpenEntry, SpendEntry, parse_entry
from privlearn.errors import PrivlearnError
from privlearn.ledger import GENESIS, Record, chain_problems, read_records


class Guarantee(BaseModel):
    """One statement of privacy, the maximum over users.

    ``rho`` (zCDP) and ``mu`` (Gaussian DP) are None where the losses have none.  ``epsilon`` is
    never below the ε that they imply at ``delta``; where ``mu`` is given it is above that by at
    most ``error_bound``.
    """

    model_config = ConfigDict(frozen=True)
    trust: Trust
    adjacency: Adjacency
    rho: float | None
    mu: float | None
    epsilon: float
    delta: float
    error_bound: float
    assumptions: list[str]


class Share(BaseModel):
    """All spends of one mechanism under one label."""

    model_config = ConfigDict(frozen=True)
    mechanism: str
    label: str
    spends: int
    share: float
    """Part of the budget spent on the most charged user, 0 to 1."""


class Certificate(BaseModel):
    """What a ledger proves, and every problem found in it."""

    model_config = ConfigDict(frozen=True)
    guarantees: list[Guarantee]
    spent: list[Guarantee]
    mechanisms: list[Share]
    entries: int
    spends: int
    lost: int
    closed: bool
    simulation: bool
    noise: str
    trusted_code: list[str]
    problems: list[str]
    head: str

    @property
    def holds(self) -> bool:
        """Whether the guarantees are certified: no problems, and noise that protects."""
        return not self.problems and not self.simulation


def audit(
    path: str | os.PathLike[str], *, delta: float | None = None, head: str | None = None
) -> Certificate:
    """Recomputes everything from a ledger file or export.

    Args:
        path: the SQLite ledger or its JSON-lines export; it is not changed.
        delta: where to state ε; default the δ of an (ε, δ) promise, else 1e-6.
        head: the expected last hash, to detect cuts and rewrites.

    Raises:
        LedgerUnreadableError: missing, torn or not a ledger.  LedgerSchemaError: newer version.
    """
    return certify(read_records(path), delta=delta, head=head)


def certify(
    records: Sequence[Record], *, delta: float | None = None, head: str | None = None
) -> Certificate:
    """Recomputes everything from ledger records; problems are listed, not raised."""
    if delta is not None:
        probability(delta=delta)
    problems = chain_problems(records, head)
    states, entries = _fold(records, problems)
    if not states:
        problems.append("no accountant was opened: there is nothing to guarantee")
    problems += [text for state in states for text in _broken_promise(state) + _uncovered(state)]
    if len(states) > 1:
        problems.append("several accountants in one ledger: their guarantees add up, by hand")
    spends = [entry for entry in entries if isinstance(entry, SpendEntry)]
    guarantees: list[Guarantee] = []
    expended: list[Guarantee] = []
    shares: list[Share] = []
    for state in states:
        try:
            guarantees.append(_guarantee(state, promised(state), delta))
            expended.append(_guarantee(state, spent(state), delta))
            shares += _shares(state)
        except Exception as error:  # whatever a file holds, an audit ends
            problems.append(f"accountant {state.opened.accountant}: no total: {error}")
    return Certificate(
        guarantees=guarantees,
        spent=expended,
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
        noise="; ".join(sorted({state.opened.noise for state in states})),
        trusted_code=sorted({note for entry in spends for note in _trust_notes(entry)}),
        problems=problems,
        head=records[-1].hash if records else GENESIS,
    )


def _fold(records: Sequence[Record], problems: list[str]) -> tuple[list[AccountState], list[Entry]]:
    states: dict[str, AccountState] = {}
    entries: list[Entry] = []
    for record in records:
        try:
            entry = parse_entry(record.body)
            entries.append(entry)
            if isinstance(entry, OpenEntry) and entry.accountant not in states:
                states[entry.accountant] = AccountState(entry)
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


def _guarantee(state: AccountState, parts: list[Composite], delta: float | None) -> Guarantee:
    if delta is None:
        delta = float(state.promise.delta) if state.promise is not None else 1e-6
    epsilon = max((epsilon_of(part, delta) for part in parts), key=lambda bound: bound.value)
    return Guarantee(
        trust=state.opened.trust,
        adjacency=state.opened.adjacency,
        rho=_largest([rho_of(part) for part in parts]),
        mu=_largest([mu_of(part) for part in parts]),
        epsilon=epsilon.value,
        delta=delta,
        error_bound=epsilon.error_bound,
        assumptions=assumptions(state),
    )


def _broken_promise(state: AccountState) -> list[str]:
    """A cap that does not keep the (ε, δ) it was made from."""
    if state.promise is None:
        return []
    found = epsilon_of(state.cap, float(state.promise.delta)).value
    if found <= float(state.promise.epsilon) * (1 + 1e-12):
        return []
    return [f"the cap {state.cap} gives ε = {found:.6g}, not the promised {state.promise}"]


def _uncovered(state: AccountState) -> list[str]:
    """Releases that ended in a way that may depend on data beyond what was paid for."""
    return [
        f"token {token}: no minimiser was certified; that this happened is not covered"
        for token, account in state.accounts.items()
        if account.outcome == "uncovered"
    ]


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _shares(state: AccountState) -> list[Share]:
    """Spends by mechanism and label, with their part of the most charged user's spend."""
    groups: dict[tuple[str, str], list[tuple[range, Fraction]]] = {}
    for account in state.accounts.values():
        if account.spend is not None and account.loss is not None:
            key = (account.spend.mechanism, account.entry.label)
            price = state.cap.price(account.loss).amounts[0]
            groups.setdefault(key, []).append((range(*account.entry.users), price))
    totals = {
        users.start: sum((p for g in groups.values() for r, p in g if users.start in r), Fraction())
        for users, _ in state.spent.pieces()
    }
    most = max(totals, key=lambda start: totals[start])
    return [
        Share(
            mechanism=mechanism,
            label=label,
            spends=len(items),
            share=float(sum((p for r, p in items if most in r), Fraction()) / (totals[most] or 1)),
        )
        for (mechanism, label), items in groups.items()
    ]


def _trust_notes(entry: SpendEntry) -> list[str]:
    if not entry.derived:
        return [f"{entry.mechanism}: its loss, or its domain's or noise's, is its code's word"]
    if entry.arithmetic == "sum" and entry.gain == 1:
        return []
    gain = "" if entry.gain == 1 else f" and its gain of {entry.gain!r}"
    return [f"{entry.mechanism}: what it computes from opened rows{gain} is its code's word"]
