"""What an audit says, in one model: the terminal, the page and the JSON only show it.

A `Report` is the certificate with everything an auditor asks beyond it: what is left of each
budget, who was charged for what and when, which tokens are open, what the numbers mean to an
attacker.  Every number and sentence that a view prints stands here, so that the views agree.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from privlearn.accountants.audit import Certificate
from privlearn.accountants.state import AccountState
from privlearn.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.exact import float_down, float_up
from privlearn.ledger.chain import text_of_minute
from privlearn.reporting.audits import examine
from privlearn.reporting.certificates import verdict, weaknesses
from privlearn.reporting.spend_table import UNKNOWN_TIME, Columns, Group, SpendTable

VERSION: Literal["privlearn-audit/1"] = "privlearn-audit/1"
"""Of the JSON form: fields are added within a version, and never change their meaning."""

Minute = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\dZ$")]
By = Literal["time", "label", "mechanism", "user-range"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class Purchase(_Part):
    """What the remainder would still buy for every user at once."""

    what: str
    """In words: ``3 more runs of noisy-sum under 'week'``, or the noise of one more release."""
    runs: int | None = None
    """How many more runs; None for one release with other noise."""


class Balance(_Part):
    """One accountant's budget, in the number that it counts in.

    ``spent``, ``reserved`` and ``remaining`` are those of its most charged user, so that
    ``spent + reserved + remaining`` is the cap; all are None where an index is no person.  Numbers
    are rounded so that none understates: what is used up, and what is left overstates nothing.
    """

    accountant: int
    """Its number in the ledger, from 1."""
    id: str
    software: str
    trust: str
    adjacency: str
    users: tuple[int, int]
    population: str | None
    opened: Minute | None
    """When, as the ledger declares."""
    closed: bool
    planned: bool
    """Whether all spends were committed in advance; then nothing beyond the plan can be spent."""
    promise: str | None
    """The (ε, δ) that the cap was made from, if it was."""
    unit: str
    """What the numbers below are: ``ρ``, ``μ²``, ``ε``, or ``ε at order 12``."""
    cap: float
    user: int | None
    """A user who is charged most."""
    spent: float | None
    reserved: float | None
    """Issued or planned, and not spent: it is charged until it is given back."""
    remaining: float | None
    most_remaining: float | None
    """What the least charged user has left."""
    buys: list[Purchase]


class Spent(_Part):
    """Spends that have something in common: a mechanism and label, a period, a range of users."""

    accountant: int
    unit: str
    mechanism: str | None = None
    label: str | None = None
    since: Minute | None = None
    """The first minute of the period, or of the first spend."""
    until: Minute | None = None
    """The last minute of it."""
    users: tuple[int, int]
    """The first and one past the last user that any of them is for."""
    spends: int
    most: float | None
    """The most that they cost any one user, in ``unit``; None where there is no price."""
    of_cap: float | None
    """The same as a part of the cap, 0 to 1."""


class OpenToken(_Part):
    """A token without a recorded end."""

    accountant: int
    token: str
    mechanism: str | None
    """None for one that was issued and not spent: its budget is reserved."""
    label: str
    users: tuple[int, int]
    reserved: float | None
    """What it holds, in its accountant's unit."""


class Curve(_Part):
    """δ at some ε for one guarantee, from which the trade-off between errors follows."""

    accountant: int
    epsilons: list[float]
    deltas: list[float]


class Reading(_Part):
    """What a guarantee means to whoever attacks it, in numbers and in words."""

    accountant: int
    sentence: str
    """The guarantee in one sentence in plain words."""
    guess: float
    """The largest chance of guessing right between two possibilities, 1/2 being tossing a coin."""
    alarm: float
    """The most that an alarm can catch which is false in 1 % of cases."""
    odds: float
    """To 1: the most that even odds become by that alarm."""
    words: list[str]


class Report(Certificate):
    """A certificate, and the answers to what an auditor asks next."""

    version: Literal["privlearn-audit/1"] = VERSION
    ledger: str
    """The name of the file."""
    verdict: str
    weaknesses: list[str]
    """What weakens this claim, of what is particular to this ledger."""
    exit_code: int
    """Of ``privlearn audit``."""
    first: Minute | None
    last: Minute | None
    """When the first and the last entry with a time were written, as the ledger declares."""
    asked: dict[str, str | int | float]
    """What the report was restricted to, by option: ``user``, ``since``, ``label``, ``delta``."""
    balances: list[Balance]
    by_mechanism: list[Spent]
    by_label: list[Spent]
    by_time: list[Spent]
    by_user_range: list[Spent]
    open_tokens: list[OpenToken]
    curves: list[Curve]
    readings: list[Reading]


_MOST_GROUPS = 200
"""Groups, periods or ranges that a report lists; the smallest of more are added up."""
_PERIODS = (1, 60, 24 * 60, 7 * 24 * 60)
"""Minutes of the periods that spends are added up over: the shortest of which few enough fit."""
_MOST_PERIODS = 60
_RANGES = 20
"""Ranges of arrival indices that spends are added up over."""


def report(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
) -> Report:
    """Audits a ledger, and says everything that its views show.

    Raises:
        As `privlearn.accountants.audit`.
    """
    table = SpendTable()
    found = examine(path, delta=delta, head=head, user=user, rounds=rounds, watcher=table)
    certificate, columns = found.certificate, table.columns
    accounts = [_Books(state, columns, table) for state in found.states]
    numbers = {name: getattr(certificate, name) for name in Certificate.model_fields}
    return Report(
        **numbers,
        ledger=Path(path).name,
        verdict=verdict(certificate),
        weaknesses=weaknesses(certificate),
        exit_code=exit_code(certificate),
        first=_minute(table.first_minute),
        last=_minute(table.last_minute),
        asked={} if user is None else {"user": user},
        balances=[books.balance() for books in accounts],
        by_mechanism=[line for books in accounts for line in books.by_group("mechanism")],
        by_label=[line for books in accounts for line in books.by_group("label")],
        by_time=[line for books in accounts for line in books.by_time()],
        by_user_range=[line for books in accounts for line in books.by_user_range()],
        open_tokens=[token for books in accounts for token in books.open_tokens()],
        curves=[],
        readings=[],
    )


def exit_code(certificate: Certificate) -> int:
    """That of ``privlearn audit``: 0, 1 for problems, 3 for a simulation."""
    return 1 if certificate.problems else 3 if certificate.simulation else 0


def _minute(minute: int) -> str | None:
    return None if minute == UNKNOWN_TIME else text_of_minute(minute)


@final
class _Books:
    """One account and its spends, from which all of a report's numbers about it come."""

    def __init__(self, state: AccountState, columns: Columns, table: SpendTable) -> None:
        self._state = state
        self._groups: list[Group] = list(table.groups)
        mine = np.array([group.accountant == state.number for group in self._groups], dtype=bool)
        self._columns = columns.only(mine[columns.group] if len(mine) else columns.group < 0)
        self._unit, self._cap = unit_of(state.cap), float_up(state.cap.amounts[0])
        self._priced = state.visits is None
        """Whether what users pay adds up index by index."""

    def balance(self) -> Balance:
        """What of the cap is spent, reserved and left."""
        state = self._state
        spent = reserved = remaining = most_remaining = user = None
        if self._priced:
            user, charged, least = self._charges()
            spent = min(self._spent_by(user), float_up(charged))
            left = max(state.cap.amounts[0] - charged, Fraction(0))
            remaining = float_down(left)
            reserved = 0.0 if state.closed else max(float_up(charged) - spent, 0.0)
            if state.closed:
                remaining = float_down(max(state.cap.amounts[0] - Fraction(spent), Fraction(0)))
            most_remaining = float_down(max(state.cap.amounts[0] - least, Fraction(0)))
        opened = state.opened
        return Balance(
            accountant=state.number,
            id=opened.accountant,
            software=opened.software,
            trust=opened.trust.value,
            adjacency=opened.adjacency.value,
            users=opened.users,
            population=opened.population,
            opened=None,
            closed=state.closed,
            planned=state.plan is not None,
            promise=None if state.promise is None else str(state.promise),
            unit=self._unit,
            cap=self._cap,
            user=user,
            spent=spent,
            reserved=reserved,
            remaining=remaining,
            most_remaining=most_remaining,
            buys=self._buys(remaining),
        )

    def _charges(self) -> tuple[int, Fraction, Fraction]:
        """A user who is charged most, how much, and the least that anybody is charged."""
        pieces = [
            (users.start, charged.amounts[0]) for users, charged in self._state.ceiling.pieces()
        ]
        user, most = max(pieces, key=lambda piece: piece[1])
        return user, most, min(charged for _, charged in pieces)

    def _spent_by(self, user: int) -> float:
        edges, sums = self._columns.paid()
        at = int(np.searchsorted(edges, user, side="right")) - 1
        return float(sums[at]) if at >= 0 else 0.0

    def _buys(self, remaining: float | None) -> list[Purchase]:
        """Further runs of what was run before, and the noise of one more Gaussian release."""
        if not remaining or self._state.closed or self._state.plan is not None:
            return []
        found = []
        for number, group in enumerate(self._groups):
            rows = self._columns.only(self._columns.group == number)
            price = float(rows.price[-1]) if len(rows.price) else math.nan
            if price > 0 and (runs := int(remaining // price)):
                what = f"{runs:,} more runs of {group.mechanism} under {group.label!r}"
                found.append(Purchase(what=what, runs=runs))
        return found

    def _line(self, rows: Columns, **named: object) -> Spent:
        most = rows.most() if self._priced and np.isfinite(rows.price).all() else None
        times = rows.minute[rows.minute != UNKNOWN_TIME]
        given: dict[str, object] = {
            "since": _minute(int(times.min())) if len(times) else None,
            "until": _minute(int(times.max())) if len(times) else None,
            "users": (int(rows.start.min()), int(rows.stop.max())),
        }
        return Spent.model_validate(
            {
                "accountant": self._state.number,
                "unit": self._unit,
                "spends": rows.spends,
                "most": most,
                "of_cap": None if most is None else most / self._cap,
                **given,
                **named,
            }
        )

    def by_group(self, by: Literal["mechanism", "label"]) -> list[Spent]:
        """Spends by mechanism or label, the dearest first."""
        names = [getattr(group, by) for group in self._groups]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        of_group = np.array([numbers[name] for name in names], dtype=np.int64)
        which = of_group[self._columns.group] if len(of_group) else self._columns.group
        lines = [
            self._line(self._columns.only(which == number), **{by: name})
            for name, number in numbers.items()
            if (which == number).any()
        ]
        return sorted(lines, key=lambda line: -(line.most or 0.0))[:_MOST_GROUPS]

    def by_time(self) -> list[Spent]:
        """Spends by period, in order."""
        minutes = self._columns.minute
        for length in _PERIODS:
            periods = np.unique(minutes // length)
            if len(periods) <= _MOST_PERIODS:
                break
        return [
            self._line(self._columns.only(minutes // length == period))
            for period in periods[:_MOST_GROUPS]
        ]

    def by_user_range(self) -> list[Spent]:
        """Spends by range of arrival indices, in order; a spend counts in each that it touches."""
        users = self._state.users
        cuts = np.unique(np.linspace(users.start, users.stop, _RANGES + 1).astype(np.int64))
        found = []
        for start, stop in pairwise(cuts):
            rows = self._columns.only((self._columns.start < stop) & (self._columns.stop > start))
            if len(rows.seq):
                inside = rows.clipped(int(start), int(stop))
                found.append(self._line(inside, users=(int(start), int(stop))))
        return found

    def open_tokens(self) -> list[OpenToken]:
        """Tokens without a recorded end."""
        return [
            OpenToken(
                accountant=self._state.number,
                token=account.token,
                mechanism=None if account.spend is None else account.spend.mechanism,
                label=account.label,
                users=account.users,
                reserved=float_up(account.budget.amounts[0]),
            )
            for account in self._state.outstanding()[:_MOST_GROUPS]
        ]


def unit_of(cap: Currency) -> str:
    """What the first amount of a currency is."""
    match cap:
        case ZCDP():
            return "ρ"
        case GaussianDP():
            return "μ²"
        case PureDP():
            return "ε"
        case Renyi():
            return f"ε at order {float(next(iter(cap.curve))):g}"
    return cap.kind
