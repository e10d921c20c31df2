"""Audits a ledger into the one model that the terminal, the page and the JSON show."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np

from privlearn.accountants.account_totals import promised
from privlearn.accountants.audit import Examined
from privlearn.accountants.certificate import Certificate, Guarantee
from privlearn.accountants.epsilon_delta import Work
from privlearn.accountants.guarantee import Composite
from privlearn.accountants.multiple_accountants import promised_pieces, sums, user_sums
from privlearn.accountants.plain_words import (
    attacker,
    certified,
    compared,
    guessed,
    meaning,
    sentence,
    verdict,
    weaknesses,
)
from privlearn.accountants.state import AccountState
from privlearn.errors import DataError, PrivlearnError
from privlearn.ledger.addresses import is_address, shown
from privlearn.ledger.chain import minute_of
from privlearn.reporting.asked import Asked, minute_text
from privlearn.reporting.audits import examination
from privlearn.reporting.books import Books
from privlearn.reporting.model import MOST_LISTED, Balance, Curve, Reading, Report
from privlearn.reporting.privacy_curves import PrivacyCurve, chances, curve_of_totals, reading_words
from privlearn.reporting.remaining import Remaining
from privlearn.reporting.spend_table import UNKNOWN_TIME, SpendTable
from privlearn.reporting.spending import Spending, spending_over_time
from privlearn.reporting.visible import visible

_MOST_CURVES = 100
"""Accountants of which a curve is drawn; the readings of others are of their (ε, δ)."""
_MOST_ACCOUNTS = 1000  # Accountants whose spends are told one by one
_MINUTE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\dZ)?", re.ASCII)


def report(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    since: str | None = None,
    label: str | None = None,
    mechanism: str | None = None,
    after: int | None = None,
) -> Report:
    """Audits a ledger, and says everything that its views show.

    Args:
        path, delta, head, user, rounds: as of `privlearn.accountants.audit`.
        since: the first minute that counts, ``2026-11-01T10:00Z``, or a day, from its beginning.
        label, mechanism: only spends of that name.
        after: only entries from this position on.

    With the last four only the spends that are listed change: the guarantee stays that of the whole
    ledger. With a user the tokens that wait are those of that user.

    Raises:
        PrivlearnError: as `privlearn.accountants.audit`.
        DataError: ``since`` is no minute, or no entry tells one.
    """
    return report_of(
        look_at(
            path,
            delta=delta,
            head=head,
            user=user,
            rounds=rounds,
            since=since,
            label=label,
            mechanism=mechanism,
            after=after,
        )
    )


@final
@dataclass(frozen=True)
class Looked:
    """An audited ledger with all of its spends."""

    found: Examined
    table: SpendTable
    ledger: str
    """The name of the file, or where in a database it is."""
    asked: Asked = field(default_factory=Asked)

    @property
    def states(self) -> Sequence[AccountState]:
        """The accounts, in the order of opening."""
        return self.found.states

    @cached_property
    def books(self) -> list[Books]:
        """Those of the accounts that are asked about, of very many the first."""
        found, table, columns = self.found, self.table, self.table.columns
        number_of_group = np.array([group.accountant for group in table.groups], dtype=np.int64)
        account = number_of_group[columns.group] if len(columns) else columns.group
        order = np.argsort(account, kind="stable")
        sorted_accounts, books = account[order], []
        for state, unknown in self.chosen[:_MOST_ACCOUNTS]:
            first, last = np.searchsorted(sorted_accounts, [state.number, state.number + 1])
            rows = columns.only(order[first:last])
            entries = found.certificate.entries
            books.append(Books(state, rows, table, self.asked, unknown, entries))
        return books

    @property
    def chosen(self) -> list[tuple[AccountState, str]]:
        """Accounts that are asked about, and why it is not known what they spent."""
        pairs = list(zip(self.found.states, self.found.unknown, strict=True))
        user = self.asked.user
        return pairs if user is None else [pair for pair in pairs if user in pair[0].users]


def look_at(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    since: str | None = None,
    label: str | None = None,
    mechanism: str | None = None,
    after: int | None = None,
) -> Looked:
    """Audits a ledger as `report` does, with its arguments and errors, for more than a report."""
    asked = Asked(user, None if since is None else _minute(since), label, mechanism, after)
    table = SpendTable()
    audited = examination(path, delta=delta, head=head, user=user, rounds=rounds, watcher=table)
    found = audited.read()
    if asked.since is not None and table.groups and table.first_minute == UNKNOWN_TIME:
        raise DataError(f"since = {since!r}: no entry of {name_of(path)} tells when it was written")
    return Looked(found, table, name_of(path), asked)


def name_of(path: str | os.PathLike[str]) -> str:
    """What a ledger is called: the name of its file, or where in a database it is."""
    return shown(path) if is_address(path) else Path(path).name


def spending_of(looked: Looked) -> list[Spending]:
    """What the most charged user of each accountant paid over time; not under a rule."""
    return [told for one in looked.books if (told := spending_over_time(one.costs)) is not None]


def _minute(text: str) -> int:
    whole = f"{text}T00:00Z" if len(text) == len("2026-11-01") else text
    minute = minute_of(whole) if _MINUTE.fullmatch(text) else 0
    if minute <= 0:
        raise DataError(
            f"since = {text!r:.80}: must be a day or a minute in UTC, from 1970 on, such as "
            "2026-11-01 or 2026-11-01T10:00Z"
        )
    return minute


def report_of(looked: Looked) -> Report:
    """What an audit found, as all views show it."""
    found, table, asked, books = looked.found, looked.table, looked.asked, looked.books
    certificate = found.certificate
    tokens = [one.open_tokens() for one in books]
    listed = [one.listed() for one in books]
    curves = _curves(certificate, found.states, asked.user)
    together = _sum_curves(certificate, found.states, asked.user)
    among = len(found.states)
    numbers = {name: getattr(certificate, name) for name in Certificate.model_fields}
    return Report(
        **numbers,
        ledger=looked.ledger,
        verdict=verdict(certificate),
        meaning=meaning(certificate),
        compared=compared(certificate),
        weaknesses=weaknesses(certificate),
        exit_code=exit_code(certificate),
        first=minute_text(table.first_minute),
        last=minute_text(table.last_minute),
        asked=_said(asked),
        balances=[_balance(certificate, one) for one in books],
        total=[line for one in books for line in one.lines.total()],
        by_mechanism=[line for one in books for line in one.lines.by_group("mechanism")],
        by_label=[line for one in books for line in one.lines.by_group("label")],
        by_mechanism_and_label=[
            line for one in books for line in one.lines.by_group("mechanism", "label")
        ],
        by_time=[line for one in books for line in one.lines.by_time()],
        by_user_range=[line for one in books for line in one.lines.by_user_range()],
        listed=[line for lines, _ in listed for line in lines],
        not_listed=sum(more for _, more in listed),
        open_tokens=[token for some, _, _ in tokens for token in some][: 5 * MOST_LISTED],
        unspent_tokens=sum(unspent for _, unspent, _ in tokens),
        running_tokens=sum(running for _, _, running in tokens),
        accounts_left_out=max(len(looked.chosen) - _MOST_ACCOUNTS, 0),
        curves=[curve for curve in curves if curve is not None],
        readings=[
            _reading(certificate, guarantee, curve, among)
            for guarantee, curve in zip(certificate.guarantees, curves, strict=True)
        ],
        sum_readings=[
            _reading(certificate, guarantee, curve, among)
            for guarantee, curve in zip(certificate.sums, together, strict=True)
        ],
    )


def _balance(certificate: Certificate, books: Books) -> Balance:
    """What is left; nothing is offered for it where the audit found a problem."""
    told = Remaining(books.costs).balance()
    return told.model_copy(update={"buys": []}) if certificate.problems else told


def exit_code(certificate: Certificate) -> int:
    """That of ``privlearn audit``: 0, 1 for problems, 3 for a simulation."""
    return 1 if certificate.problems else 3 if certificate.simulation else 0


def _said(asked: Asked) -> dict[str, str | int | float]:
    said: dict[str, str | int | float] = {}
    for name in ("user", "since", "label", "mechanism", "after"):
        value = getattr(asked, name)
        if value is not None:
            said[name] = str(minute_text(value)) if name == "since" else value
    return said


def _curves(
    certificate: Certificate, states: Sequence[AccountState], user: int | None
) -> list[Curve | None]:
    by_number = {state.number: state for state in states}
    users = None if user is None else range(user, user + 1)
    known: dict[tuple[object, ...], PrivacyCurve] = {}
    found: list[Curve | None] = []
    work = Work()
    for guarantee in certificate.guarantees:
        number = guarantee.accountants[0]
        curve = None
        if certified(certificate, guarantee) and len(found) < _MOST_CURVES:
            parts = promised(by_number[number], users).parts
            key = (*parts, guarantee.epsilon, guarantee.delta, guarantee.rounds)
            if key not in known:
                known[key] = _curve(parts, guarantee, work)
            curve = _as_told(guarantee, known[key])
        found.append(curve)
    return found


def _sum_curves(
    certificate: Certificate, states: Sequence[AccountState], user: int | None
) -> list[Curve | None]:
    if not any(certified(certificate, guarantee) for guarantee in certificate.sums):
        return [None] * len(certificate.sums)
    users = None if user is None else range(user, user + 1)
    told = (
        sums(states, promised_pieces)
        if users is None
        else user_sums(states, promised_pieces, users)
    )
    parts = {one.who: one.parts for one in told}
    work = Work()
    found: list[Curve | None] = []
    for guarantee in certificate.sums:
        curve = None
        if certified(certificate, guarantee) and guarantee.who in parts:
            curve = _as_told(guarantee, _curve(parts[guarantee.who], guarantee, work))
        found.append(curve)
    return found


def _as_told(guarantee: Guarantee, points: PrivacyCurve) -> Curve:
    epsilons, deltas = points.epsilons.tolist(), points.deltas.tolist()
    return Curve(accountant=guarantee.accountants[0], epsilons=epsilons, deltas=deltas)


def _curve(parts: list[Composite], guarantee: Guarantee, work: Work) -> PrivacyCurve:
    point = guarantee.epsilon, guarantee.delta
    try:
        return curve_of_totals(parts, known=point, rounds=guarantee.rounds, work=work)
    except (PrivlearnError, ValueError, ArithmeticError):  # what the guarantee states holds alone
        return PrivacyCurve(np.array([point[0]]), np.array([point[1]]))


def _reading(
    certificate: Certificate, guarantee: Guarantee, curve: Curve | None, among: int
) -> Reading:
    number = guarantee.accountants[0]
    if not certified(certificate, guarantee):
        shown_guarantee = guarantee.model_copy(update={"unknown": visible(guarantee.unknown)})
        said = sentence(certificate, shown_guarantee, 1.0)
        return Reading(accountant=number, sentence=said, guess=1.0, alarm=1.0, odds=100.0, words=[])
    if curve is None:
        points = PrivacyCurve(np.array([guarantee.epsilon]), np.array([guarantee.delta]))
    else:
        points = PrivacyCurve(np.array(curve.epsilons), np.array(curve.deltas))
    guess, alarm, odds = chances(points)
    words = reading_words(points, guessed(guarantee), attacker(guarantee, among=among))
    if guarantee.attested:
        words = [f"If the clients do what they attest: {line}" for line in words]
    return Reading(
        accountant=number,
        sentence=sentence(certificate, guarantee, guess, among=among),
        guess=guess,
        alarm=alarm,
        odds=odds,
        words=words,
    )
