"""The tables of a page: rows of the report as headed cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from markupsafe import Markup

from privlearn.accountants.certificate import Guarantee
from privlearn.reporting.certificates import CAP_HEADS, cap_words, price_words
from privlearn.reporting.model import Balance, Report, Spent
from privlearn.reporting.page_values import count, minute, number, percent, users
from privlearn.values.adjacency import Adjacency

T = TypeVar("T")
_MOST_POINTS = 20  # Of a curve that are told as numbers
Cell = str | Markup


@final
@dataclass(frozen=True)
class Table:
    """A caption, heads, and rows of as many cells, the first of which names its row."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@final
@dataclass(frozen=True)
class Tables:
    """Tables of what a report says of one accountant, or of all where none is named."""

    report: Report
    accountant: int | None = None
    persons: bool = False
    """Whether an index is no person."""

    def of(self, lines: Sequence[T]) -> list[T]:
        chosen: Any = lines
        return [line for line in chosen if self.accountant in (None, line.accountant)]

    def _spends(
        self, caption: str, head: str, lines: Sequence[Spent], name: Callable[[Spent], Cell]
    ) -> Table:
        mine = self.of(lines)
        unit = mine[0].unit if mine else ""
        heads = [
            head,
            "spends",
            f"most for one {'person' if self.persons else 'user'}, {unit}",
            "of the cap",
        ]
        rows = [
            (
                _named(line, name),
                count(line.spends),
                number(line.most, missing="no price"),
                percent(line.of_cap, missing="no price"),
            )
            for line in mine
        ]
        return Table(caption, heads, rows)

    @property
    def total(self) -> Table:
        return self._spends("All together", "period", self.report.total, _period)

    @property
    def by_mechanism(self) -> Table:
        lines = self.report.by_mechanism
        return self._spends("By mechanism", "mechanism", lines, lambda one: one.mechanism or "")

    @property
    def by_label(self) -> Table:
        lines = self.report.by_label
        return self._spends("By label", "label", lines, lambda one: one.label or "")

    @property
    def by_time(self) -> Table:
        return self._spends("By time", "period", self.report.by_time, _period)

    @property
    def by_user_range(self) -> Table:
        lines = self.report.by_user_range
        return self._spends("By arrival index", "users", lines, lambda one: users(one.users))

    @property
    def listed(self) -> Table:
        heads = ["entry", "time", "mechanism", "label", "users", "cost"]
        rows = [
            (
                count(one.entry),
                minute(one.at),
                f"{one.mechanism}, attested" if one.attested else one.mechanism,
                one.label,
                users(one.users),
                number(one.cost),
            )
            for one in self.of(self.report.listed)
        ]
        return Table("One by one", heads, rows)

    def plan_left(self, balance: Balance) -> Table:
        rows = [
            (one.label, users(one.users), count(one.count), count(one.left))
            for one in balance.plan_left
        ]
        return Table("Left of the plan", ["item", "users", "planned", "left"], rows)

    @property
    def open_tokens(self) -> Table:
        heads = ["token", "accountant", "label", "users", "state", "holds"]
        rows = [
            (
                one.token,
                count(one.accountant),
                one.label,
                users(one.users),
                "issued, not spent: its budget is reserved"
                if one.mechanism is None
                else f"spent by {one.mechanism}, no outcome recorded",
                number(one.reserved, missing="paid for"),
            )
            for one in self.of(self.report.open_tokens)
        ]
        return Table("Tokens, those that are not spent first", heads, rows)

    @property
    def attestations(self) -> Table:
        heads = ["mechanism", "label", "by", "users", "messages", "most of one user", "each costs"]
        rows = [
            (
                one.mechanism,
                one.label,
                one.by,
                users(one.users),
                count(one.count),
                count(one.most_messages),
                price_words(one.loss),
            )
            for one in self.of(self.report.attestations)
        ]
        return Table("Attested by clients, not verified", heads, rows)

    @property
    def caps(self) -> Table:
        rows = [cap_words(one) for one in self.of(self.report.caps)]
        return Table("Caps inside the account, each for one person", CAP_HEADS, rows)

    @property
    def curve(self) -> Table:
        points = [
            (epsilon, delta)
            for curve in self.of(self.report.curves)
            for epsilon, delta in zip(curve.epsilons, curve.deltas, strict=True)
        ]
        shown = points[:: max(len(points) // _MOST_POINTS, 1)]
        rows = [(number(epsilon), number(delta)) for epsilon, delta in shown]
        return Table("Points from which the curve follows, all of them in --json", ["ε", "δ"], rows)


def numbers(guarantee: Guarantee, spent: Guarantee) -> Table:
    """The numbers of a guarantee, and the same of what was spent."""
    both = (guarantee, spent)
    named: list[tuple[str, Sequence[Cell]]] = [
        (
            "ε, the privacy loss",
            [f"unknown: {one.unknown}" if one.unknown else number(one.epsilon) for one in both],
        ),
        ("δ, the chance beyond it", [number(one.delta) for one in both]),
        ("ρ, zero-concentrated DP", [number(one.rho, missing="not stated") for one in both]),
        ("μ, Gaussian DP", [number(one.mu, missing="not stated") for one in both]),
        ("method", [one.method for one in both]),
        ("ε is above the exact one by at most", [number(one.error_bound) for one in both]),
        ("kind", [_KINDS[one.trust.value] for one in both]),
        (
            "what an attacker is to tell apart",
            [one.relation or _RELATIONS[one.adjacency] for one in both],
        ),
        ("for", [_whom(one) for one in both]),
    ]
    if any(one.failure for one in both):
        named.append(("failures, part of δ", [number(one.failure) for one in both]))
    if any(one.attested for one in both):
        named.append(("rests on", [_ATTESTED[one.attested] for one in both]))
    if spent.running is not None:
        odometer = Markup("ε {}, except with probability {}").format(
            number(spent.running.epsilon), number(spent.running.delta)
        )
        named.append(("at all times at once", ["", odometer]))
    rows = [(name, *cells) for name, cells in named]
    return Table(
        "What was promised, and what was spent", ["number", "promised", "spent so far"], rows
    )


_KINDS: Mapping[str, str] = {
    "central": "differential privacy, central",
    "joint": "joint differential privacy",
    "local": "local differential privacy",
}
_RELATIONS: Mapping[Adjacency, str] = {
    Adjacency.REPLACE_ONE: "replace-one: a user's record, or any other in its place",
    Adjacency.ZERO_OUT: "zero-out: a user's record, or a blank one in its place",
    Adjacency.ADD_REMOVE: "add-remove: the data with a user's record, or without it",
}
_ATTESTED = {True: "what clients attest, not verified", False: "the ledger"}


def _whom(guarantee: Guarantee) -> Cell:
    if guarantee.rule is not None:
        return "every person, with all visits"
    if guarantee.user is not None:
        return Markup("user {}").format(count(guarantee.user))
    if guarantee.who:
        return guarantee.who
    rounds = (
        Markup(", with {} rows").format(count(guarantee.rounds)) if guarantee.rounds > 1 else ""
    )
    return Markup("every one of users {}{}").format(users(guarantee.users), rounds)


def _named(line: Spent, name: Callable[[Spent], Cell]) -> Cell:
    if line.others:
        return Markup("{} others together").format(count(line.others))
    return Markup("{}, attested").format(name(line)) if line.attested else name(line)


def _period(line: Spent) -> Cell:
    if line.since == line.until:
        return minute(line.since)
    return Markup("{} to {}").format(minute(line.since), minute(line.until))
