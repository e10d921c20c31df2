"""One account and its spends, from which all of a report's numbers about it come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import final

import numpy as np

from privlearn.accountants.person_totals import person_cost
from privlearn.accountants.prices import CurveWork, LossPrice
from privlearn.accountants.state import AccountState
from privlearn.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.domains import Array
from privlearn.errors import PrivlearnError
from privlearn.exact import float_down, float_up
from privlearn.ledger.chain import text_of_minute
from privlearn.losses import Loss
from privlearn.reporting.model import (
    Balance,
    Failing,
    OneSpend,
    OpenToken,
    PlanItemLeft,
    Purchase,
    Spent,
)
from privlearn.reporting.shown_numbers import counted, up
from privlearn.reporting.spend_table import (
    UNKNOWN_TIME,
    Columns,
    Group,
    Integers,
    SpendTable,
    Sums,
    add_up,
)

MOST_LISTED = 200
"""Groups, spends, tokens or items of a plan that are listed; of more, some are counted only."""
_DAY, _FIRST_MONDAY = 24 * 60, 4 * 24 * 60
_PERIODS = tuple(
    minutes * factor
    for minutes, factors in ((1, (1, 10)), (60, (1, 6)), (_DAY, (1,)))
    for factor in factors
) + tuple(7 * _DAY * weeks for weeks in (1, 4, 13, 52, 520, 5200, 52000, 520000))
"""Minutes of the periods that spends are added up over: the shortest of which few enough fit."""
_MOST_PERIODS = 60
_RANGES = 20
"""Ranges of arrival indices that spends are added up over."""
_MOST_BOUGHT = 10
_MOST_RUNS = 2000
"""Different runs of losses of which it is worked out what they cost a person who comes back."""
_MOST_EXACT = 5000
"""Different losses that are added up as exact numbers; more are added up as floats, rounded up."""

_MOST_DRAWN = 100
"""Mechanisms and labels that are drawn by themselves."""

_NO_PRICE = PrivlearnError, ValueError, TypeError, ArithmeticError


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """Which spends a report is about; all of them if nothing is said."""

    user: int | None = None
    since: int | None = None
    """The first minute that counts."""
    label: str | None = None
    mechanism: str | None = None
    after: int | None = None
    """Entries from this position on count."""

    @property
    def anything(self) -> bool:
        """Whether some spends may be left out."""
        return self != Asked()

    def of(self, columns: Columns, groups: Sequence[Group]) -> Columns:
        """The rows that are asked for."""
        which = np.ones(len(columns), dtype=bool)
        if self.user is not None:
            which &= columns.touching(self.user, self.user + 1)
        if self.since is not None:
            which &= columns.minute >= self.since
        if self.after is not None:
            which &= columns.seq >= self.after
        for name in ("label", "mechanism"):
            wanted = getattr(self, name)
            if wanted is not None:
                named = np.array([getattr(g, name) == wanted for g in groups], dtype=bool)
                which &= named[columns.group] if len(named) else False
        return columns if which.all() else columns.only(which)


def minute_text(minute: int) -> str | None:
    """As entries tell it; None where it is not known."""
    return None if minute == UNKNOWN_TIME else text_of_minute(minute)


def unit_of(cap: Currency, term: int = 0) -> str:
    """What an amount of a currency is."""
    match cap:
        case ZCDP():
            return "ρ"
        case GaussianDP():
            return "μ²"
        case PureDP():
            return "ε"
        case Renyi():
            return f"ε at order {float(list(cap.curve)[term]):g}"
    return cap.kind


@final
@dataclass(frozen=True)
class Spending:
    """What the most charged user of one accountant paid, spend by spend."""

    accountant: str
    user: int
    unit: str
    cap: float
    labels: list[str]
    cumulated: Array
    """Shape (labels, spends + 1): paid under each label after each spend."""
    minutes: Integers
    """Shape (spends + 2,): when it was opened, when each was made, and the ledger's last minute, in
    minutes since 1970 and in order; none where no entry tells its time."""


@final
class Books:
    """One account and its spends.

    Args:
        state: the account, after its last entry.
        columns: the rows of its spends.
        table: where they are from.
        asked: which of them are asked for.
        unknown: why it is not known what was spent; empty where it is.
        entries: how many there are in the ledger, which bounds what may be worked out.
    """

    def __init__(
        self,
        state: AccountState,
        columns: Columns,
        table: SpendTable,
        asked: Asked,
        unknown: str,
        entries: int,
    ) -> None:
        self._state, self._table, self._asked = state, table, asked
        self._unknown = unknown
        state.prices.work = CurveWork()  # the audit is over: what it may take is no concern here
        state.prices.work.left += 256 * entries
        self._persons = state.visits is not None
        self._prices: dict[Loss, LossPrice | None] = {}
        self._charged = self._largest_charge()
        self._term = _binding(state.cap, self._charged)
        self._unit = unit_of(state.cap, self._term)
        self._cap = state.cap.amounts[self._term]
        self._columns = columns
        chosen = asked.of(columns, table.groups)
        self._listed = chosen
        if asked.user is not None:
            self._chosen = replace(
                chosen,
                start=np.maximum(chosen.start, asked.user),
                stop=np.minimum(chosen.stop, asked.user + 1),
            )
        else:
            self._chosen = chosen
        self._amounts = self._amount_of_losses(columns)
        """Of each loss of the table, rounded up; NaN where it has no price here."""

    def _largest_charge(self) -> tuple[Fraction, ...]:
        """The largest charge on any user or person, amount by amount."""
        try:
            return self._state.ceiling.largest().amounts
        except _NO_PRICE as error:
            self._unknown = self._unknown or str(error)
            return self._state.cap.amounts

    def _price(self, loss: Loss) -> LossPrice | None:
        """What a loss costs an index here; None where it has no price, which the audit says."""
        if loss not in self._prices:
            try:
                self._prices[loss] = self._state.prices.of(loss)
            except _NO_PRICE:
                self._prices[loss] = None
        return self._prices[loss]

    def _amount_of_losses(self, columns: Columns) -> Array:
        amounts = np.full(len(self._table.losses), np.nan)
        if not self._persons:
            for number in np.unique(columns.loss).tolist():
                price = self._price(self._table.losses[number])
                if price is not None:
                    amounts[number] = float_up(price.budget.amounts[self._term])
        return amounts

    def _of_rows(self, rows: Columns) -> Array:
        """What each row costs a user, in floats."""
        found: Array = self._amounts[rows.loss] * rows.times
        return found

    # What is left --------------------------------------------------------------------------------

    def balance(self) -> Balance:
        """What of the cap is spent, reserved and left."""
        state, opened = self._state, self._state.opened
        spent = reserved = remaining = least = user = None
        if not self._unknown:
            try:
                user, spent, charged = self._paid()
                left = max(
                    self._cap - (spent if state.closed else max(charged, spent)), Fraction(0)
                )
                held = Fraction(0) if state.closed else max(charged - spent, Fraction(0))
                reserved, remaining = float_up(held), float_down(left) + 0.0
                least = self._least_charged()
            except _NO_PRICE as error:
                self._unknown = str(error)
        return Balance(
            accountant=state.number,
            id=opened.accountant,
            software=opened.software,
            trust=opened.trust.value,
            adjacency=opened.adjacency.value,
            users=opened.users,
            population=opened.population,
            opened=minute_text(self._table.opened(state.number)),
            closed=state.closed,
            planned=state.plan is not None,
            promise=None if state.promise is None else str(state.promise),
            unit=self._unit,
            cap=float_up(self._cap),
            user=user,
            spent=None if spent is None or self._unknown else float_up(spent),
            reserved=None if self._unknown else reserved,
            remaining=None if self._unknown else remaining,
            most_remaining=None if least is None or self._unknown else float_down(least) + 0.0,
            unknown=self._unknown,
            failing=self._failing(),
            buys=[] if self._unknown else self._buys(),
            plan_left=[
                PlanItemLeft(
                    label=item.label,
                    users=(rest.start, rest.stop),
                    count=item.count,
                    left=max(item.left, 0) + len(item.rests),
                )
                for item in (state.plan or [])[: 10 * MOST_LISTED]
                if not state.closed and (rest := item.rest) is not None
            ][:MOST_LISTED],
        )

    def _paid(self) -> tuple[int | None, Fraction, Fraction]:
        """Whose numbers are told, what was spent on them, and what is charged to them."""
        state, term = self._state, self._term
        if self._persons:
            return None, person_cost(state, state.runs_spent).amounts[term], self._charged[term]
        if self._asked.user is not None:
            user = self._asked.user
        elif state.closed and state.plan is not None:
            user = self._most_spent()
        else:
            user = state.ceiling.charged.extremes(term)[0]
        charged = state.ceiling.charged.largest(range(user, user + 1))[term]
        return user, self._spent_on(user, lambda price: price.budget.amounts[term]), charged

    def _most_spent(self) -> int:
        """A user on whom most was spent."""
        rows = self._columns
        if not len(rows):
            return self._state.users.start
        return int(add_up(rows, np.zeros(len(rows), np.int64), self._of_rows(rows)).user[0])

    def _spent_on(self, user: int, amount: Callable[[LossPrice], Fraction]) -> Fraction:
        """What was spent on one user; raises where a loss has no price."""
        tally = self._state.spent.of(user)
        return _total((amount(self._state.prices.of(loss)), n) for loss, n in tally.items())

    def _least_charged(self) -> Fraction | None:
        """What the least charged user has left; None where it is not known who that is."""
        state = self._state
        if self._persons or self._asked.user is not None:
            return None
        if state.closed and state.plan is not None:
            return None
        return max(self._cap - state.ceiling.charged.extremes(self._term)[2], Fraction(0))

    def _failing(self) -> Failing | None:
        state = self._state
        cap, closed = state.failure, state.closed
        if not cap:
            return None
        user, spent, charged = None, None, state.ceiling.largest_failure()
        try:
            if not self._persons and not self._unknown:
                asked = self._asked.user
                user = state.ceiling.failing.extremes()[0] if asked is None else asked
                charged = state.ceiling.failing.largest(range(user, user + 1))[0]
                spent = self._spent_on(user, lambda price: price.failure)
        except _NO_PRICE:
            user = None
        if spent is None:
            return Failing(cap=float_up(cap), user=None, spent=None, reserved=None, remaining=None)
        left = cap - (spent if closed else max(charged, spent))
        return Failing(
            cap=float_up(cap),
            user=user,
            spent=float_up(spent),
            reserved=0.0 if closed else float_up(max(charged - spent, Fraction(0))),
            remaining=float_down(max(left, Fraction(0))) + 0.0,
        )

    def _buys(self) -> list[Purchase]:
        """Further runs of what was run before, and the noise of one more Gaussian release.

        For all users together, or for the one who is asked about.
        """
        state, asked = self._state, self._asked.user
        if state.closed or state.plan is not None:
            return []
        whose = None if asked is None else range(asked, asked + 1)
        all_charged = self._charged if whose is None else state.ceiling.charged.largest(whose)
        pairs = zip(state.cap.amounts, all_charged, strict=True)
        room = tuple([max(cap - charged, Fraction(0)) for cap, charged in pairs])
        if not all(room):
            return []
        failure = max(state.failure - state.ceiling.largest_failure(whose), Fraction(0))
        found: list[Purchase] = []
        known: set[tuple[str, int]] = set()
        for group, last in self._last_of_groups():
            prices = [self._price_of_run(self._table.losses[number]) for number in last]
            runs = min((_runs(room, failure, price) for price in prices), default=0)
            if runs > 0 and (group.mechanism, runs) not in known:
                known.add((group.mechanism, runs))  # of labels alike the last is named
                whom = "all users" if asked is None else f"user {asked}"
                told = (
                    f"{counted(runs, 'more message')} of {'every user' if asked is None else whom}"
                    if group.attested
                    else f"{counted(runs, 'more run')} for {whom}"
                )
                what = f"{told}, of {group.mechanism} as under {group.label!r}"
                found.append(Purchase(what=what, runs=runs))
        if not self._persons and not state.opened.attested:
            found += _one_release(state.cap._of(room))
        return found

    def _price_of_run(self, loss: Loss) -> LossPrice | None:
        if not self._persons:
            return self._price(loss)
        try:
            return self._state.price_of_person(loss, self._state.users)
        except _NO_PRICE:
            return None

    def _last_of_groups(self) -> list[tuple[Group, list[int]]]:
        """The mechanisms and labels that were run last, and the losses of their last runs."""
        rows = self._columns
        groups, places = np.unique(rows.group[::-1], return_index=True)
        found = []
        for place in np.argsort(places)[:_MOST_BOUGHT].tolist():
            at = len(rows) - 1 - int(places[place])
            first = int(np.searchsorted(rows.number, rows.number[at]))
            losses = np.unique(rows.loss[first : at + 1]).tolist()
            if len(losses) <= _MOST_RUNS:  # of more parts the dearest is not looked for
                found.append((self._table.groups[int(groups[place])], losses))
        return found

    # Who was charged for what, and when ---------------------------------------------------------

    def total(self) -> list[Spent]:
        """All spends that are asked for, as one line."""
        rows = self._chosen
        if not len(rows):
            return []
        return [self._line(rows, self._summed(rows, np.zeros(len(rows), np.int64)), 0)]

    def by_group(self, *names: str) -> list[Spent]:
        """Spends by ``mechanism``, ``label``, or both, the dearest first."""
        rows, groups = self._chosen, self._table.groups
        if not len(rows):
            return []
        numbers: dict[tuple[object, ...], int] = {}
        of_group = np.zeros(len(groups), dtype=np.int64)
        for number in np.unique(rows.group).tolist():
            value = (*(getattr(groups[number], name) for name in names), groups[number].attested)
            of_group[number] = numbers.setdefault(value, len(numbers))
        key = of_group[rows.group]
        sums = self._summed(rows, key)
        dear = np.round(sums.most / max(float(sums.most.max()), np.finfo(float).tiny), 9)
        order = np.lexsort((sums.order[sums.begin], -sums.spends, -dear))  # of equal ones the first
        values = list(numbers)
        listed = len(order) if len(order) <= MOST_LISTED else MOST_LISTED - 1
        lines = []
        for place in order[:listed].tolist():
            *named, attested = values[int(sums.key[place])]
            told = dict(zip(names, named, strict=True))
            lines.append(self._line(rows, sums, place, **told, attested=attested))
        if listed < len(order):
            rest = rows.only(np.isin(key, sums.key[order[listed:]]))
            whole = self._summed(rest, np.zeros(len(rest), np.int64))
            lines.append(self._line(rest, whole, 0, others=len(order) - listed))
        return lines

    def by_time(self) -> list[Spent]:
        """Spends by period, in order; those of an unknown time first."""
        rows = self._chosen
        if not len(rows):
            return []
        period = rows.minute
        length = 1
        for length in _PERIODS:
            offset = _FIRST_MONDAY if length >= 7 * _DAY else 0
            period = (rows.minute - offset) // length * length + offset
            if len(np.unique(period)) < _MOST_PERIODS:
                break
        period = np.where(rows.minute == UNKNOWN_TIME, UNKNOWN_TIME, period)
        sums = self._summed(rows, period)
        so_far = self._so_far(rows, period, sums.key.tolist())
        lines = []
        for place, begin in enumerate(sums.key.tolist()):
            if begin == UNKNOWN_TIME:
                lines.append(self._line(rows, sums, place, so_far=so_far[place]))
                continue
            end = max(begin + length - 1, int(sums.until[place]))
            named = {"since": text_of_minute(max(begin, 0)), "until": _until(end, sums, place)}
            lines.append(self._line(rows, sums, place, **named, so_far=so_far[place]))
        return lines

    def _so_far(
        self, rows: Columns, period: Integers, ends: Sequence[int]
    ) -> Sequence[float | None]:
        """The most that any one user had paid at the end of each period, in order."""
        amounts = self._of_rows(rows)
        if self._persons or not np.isfinite(amounts).all():
            return [None] * len(ends)
        edges = np.unique(np.concatenate([rows.start, rows.stop]))
        first, last = np.searchsorted(edges, rows.start), np.searchsorted(edges, rows.stop)
        steps, found = np.zeros(len(edges)), []
        for end in ends:
            now = period == end
            steps += np.bincount(first[now], amounts[now], len(edges))
            steps -= np.bincount(last[now], amounts[now], len(edges))
            user = int(edges[np.argmax(np.cumsum(steps))])
            paid = self._most(rows.only(period <= end), user)
            found.append(None if paid is None else float_up(paid))
        return found

    def by_user_range(self) -> list[Spent]:
        """Spends by range of arrival indices, in order; a spend counts in each that it touches."""
        rows = self._chosen
        if not len(rows):
            return []
        first, last = int(rows.start.min()), int(rows.stop.max())
        steps = np.linspace(0, last - first, _RANGES + 1).astype(np.int64)
        lines = []
        for start, stop in pairwise(np.unique(steps + first).tolist()):
            inside = rows.only(rows.touching(start, stop))
            if len(inside):
                inside = replace(
                    inside,
                    start=np.maximum(inside.start, start),
                    stop=np.minimum(inside.stop, stop),
                )
                sums = self._summed(inside, np.zeros(len(inside), np.int64))
                lines.append(self._line(inside, sums, 0, users=(start, stop)))
        return lines

    def _summed(self, rows: Columns, key: Integers) -> Sums:
        return add_up(rows, key, self._of_rows(rows))

    def _line(self, rows: Columns, sums: Sums, place: int, **named: object) -> Spent:
        mine = rows.only(sums.rows(place))
        user = int(sums.user[place])
        most = self._most(mine, user)
        given: dict[str, object] = {
            "since": minute_text(int(sums.since[place])),
            "until": minute_text(int(sums.until[place])),
            "users": (int(sums.start[place]), int(sums.stop[place])),
        }
        return Spent.model_validate(
            {
                "accountant": self._state.number,
                "unit": self._unit,
                "spends": int(sums.spends[place]),
                "most": None if most is None else float_up(most),
                "user": None if most is None or self._persons else user,
                "of_cap": None if most is None else float_up(most / self._cap),
                "attested": self._state.opened.attested,
                **given,
                **named,
            }
        )

    def _most(self, rows: Columns, user: int) -> Fraction | None:
        """What rows cost the user whom they cost most; under a rule any one person."""
        if self._persons:
            return self._most_of_person(rows)
        if not np.isfinite(self._amounts[rows.loss]).all():
            return None
        rows = rows.only(rows.touching(user, user + 1))
        numbers, where = np.unique(rows.loss, return_inverse=True)
        if len(numbers) > _MOST_EXACT:
            return Fraction(math.fsum(self._of_rows(rows).tolist()) * (1 + 1e-12))
        counts = np.zeros(len(numbers), dtype=object)
        np.add.at(counts, where, rows.times.astype(object))
        prices = [self._price(self._table.losses[number]) for number in numbers.tolist()]
        return _total(
            (price.budget.amounts[self._term], int(n))
            for price, n in zip(prices, counts, strict=True)
            if price is not None
        )

    def _most_of_person(self, rows: Columns) -> Fraction | None:
        """The most that rows cost any one person with all visits."""
        if self._asked.user is not None:
            return None
        runs: Counter[tuple[int, int, Loss]] = Counter()
        losses = self._table.losses
        columns = (rows.start.tolist(), rows.stop.tolist(), rows.loss.tolist(), rows.times.tolist())
        for start, stop, loss, times in zip(*columns, strict=True):
            if start < stop:
                runs[start, stop, losses[loss]] += times
            if len(runs) > _MOST_RUNS:
                return None
        try:
            return person_cost(self._state, runs).amounts[self._term]
        except _NO_PRICE:
            return None

    def spending(self) -> Spending | None:
        """What the most charged user paid over time; None under a rule of participation."""
        if self._persons:
            return None
        state, table = self._state, self._table
        user = self._asked.user
        if user is None:
            closed_plan = state.closed and state.plan is not None
            user = (
                self._most_spent() if closed_plan else state.ceiling.charged.extremes(self._term)[0]
            )
        rows = self._columns.only(self._columns.touching(user, user + 1))
        cost = np.nan_to_num(self._of_rows(rows), nan=0.0)
        groups, which = np.unique(rows.group, return_inverse=True)
        sums = np.bincount(which, weights=cost, minlength=len(groups))
        order = np.argsort(-sums, kind="stable")
        kept = order if len(order) <= _MOST_DRAWN else order[: _MOST_DRAWN - 1]
        place = np.full(len(groups), len(kept))
        place[np.sort(kept)] = np.arange(len(kept))
        names = [table.groups[int(groups[at])] for at in np.sort(kept)]
        labels = [f"{group.mechanism}: {group.label}" for group in names]
        if len(kept) < len(order):
            labels.append(f"{len(order) - len(kept)} others")
        cumulated = np.zeros((len(labels), len(rows) + 1))
        cumulated[place[which], np.arange(1, len(rows) + 1)] = cost
        minutes = np.array(
            [table.opened(state.number), *rows.minute.tolist(), table.last_minute], dtype=np.int64
        )
        known = minutes[minutes != UNKNOWN_TIME]
        if len(known):  # a clock may go back, and entries of format 1 tell no time
            minutes = np.maximum.accumulate(np.where(minutes == UNKNOWN_TIME, known[0], minutes))
        return Spending(
            accountant=state.opened.accountant,
            user=user,
            unit=self._unit,
            cap=float(self._cap),
            labels=labels,
            cumulated=np.cumsum(cumulated, axis=1),
            minutes=minutes if len(known) else known,
        )

    # One by one ---------------------------------------------------------------------------------

    def listed(self) -> tuple[list[OneSpend], int]:
        """The last spends that are asked for, and how many there are before them."""
        rows = self._listed
        if not self._asked.anything or not len(rows):
            return [], 0
        begin = np.flatnonzero(np.r_[True, np.diff(rows.number) != 0])
        ends = [*begin[1:].tolist(), len(rows)]
        spends = list(zip(begin.tolist(), ends, strict=True))
        kept = spends[-MOST_LISTED:]
        return [self._one(rows, *ends) for ends in kept], len(spends) - len(kept)

    def _one(self, rows: Columns, begin: int, end: int) -> OneSpend:
        group = self._table.groups[int(rows.group[begin])]
        costs = [
            None if price is None else price.budget.amounts[self._term] * int(times)
            for price, times in (
                (self._price(self._table.losses[int(rows.loss[at])]), rows.times[at])
                for at in range(begin, end)
                if not self._persons
            )
        ]
        known = [cost for cost in costs if cost is not None]
        return OneSpend(
            accountant=self._state.number,
            entry=int(rows.seq[begin]),
            at=minute_text(int(rows.minute[begin])),
            mechanism=group.mechanism,
            label=group.label,
            users=(int(rows.start[begin:end].min()), int(rows.stop[begin:end].max())),
            cost=float_up(max(known)) if known and len(known) == len(costs) else None,
            unit=self._unit,
            attested=group.attested,
        )

    def open_tokens(self) -> tuple[list[OpenToken], int, int]:
        """Tokens without a recorded end, how many are not spent, and how many are.

        Of a user who is asked about, those of that user.
        """
        number, user = self._state.number, self._asked.user
        waiting = [
            account
            for account in self._state.outstanding()
            if user is None or account.users[0] <= user < account.users[1]
        ]
        unspent = [account for account in waiting if account.spend is None]
        running = [account for account in waiting if account.spend is not None]
        listed = [
            OpenToken(
                accountant=number,
                token=account.token,
                mechanism=None
                if account.spend is None
                else self._table.mechanism(number, account.token) or account.spend.mechanism,
                label=account.label,
                users=account.users,
                issued=minute_text(self._table.issued(number, account.token)),
                reserved=float_up(account.budget.amounts[self._term])
                if account.spend is None
                else None,
            )
            for account in [*unspent, *running][:MOST_LISTED]
        ]
        return listed, len(unspent), len(running)


def _binding(cap: Currency, charged: Sequence[Fraction]) -> int:
    """The amount of a currency that is used up first: of Rényi orders, the one to report."""
    orders = list(cap.curve) if isinstance(cap, Renyi) else [Fraction(1)]
    places = range(len(cap.amounts))
    return max(places, key=lambda k: (charged[k] / cap.amounts[k], orders[k] / cap.amounts[k]))


def _total(terms: Iterable[tuple[Fraction, int]]) -> Fraction:
    return sum((amount * count for amount, count in terms), Fraction(0))


def _runs(room: Sequence[Fraction], failure: Fraction, price: LossPrice | None) -> int:
    """How many more runs of a price there is room for."""
    if price is None or not all(price.budget.amounts):
        return 0
    fits = [int(left // one) for left, one in zip(room, price.budget.amounts, strict=True)]
    if price.failure:
        fits.append(int(failure // price.failure))
    return min(fits)


def _one_release(room: Currency) -> list[Purchase]:
    """One more release that takes all of what is left."""
    if isinstance(room, PureDP):
        factor = float_up(1 / room.epsilon)
        shown = _multiplier(1 / room.epsilon, 1)
        what = f"one Laplace release with noise of scale {shown} times its sensitivity"
        return [Purchase(what=what, noise_multiplier=factor)]
    try:
        exact_mass = room.gaussian_mass()
        mass = float_down(exact_mass)
    except PrivlearnError:
        return []
    if not mass > 0:
        return []
    factor = math.sqrt(1 / mass) * (1 + 1e-15)
    shown = _multiplier(1 / exact_mass, 2)
    what = f"one Gaussian release with noise of standard deviation {shown} times its sensitivity"
    return [Purchase(what=what, noise_multiplier=factor)]


def _multiplier(power: Fraction, root: int) -> str:
    """The smallest number of six digits whose square, or itself, is not below ``power``."""
    number = up(float(power) ** (1 / root))
    while Fraction(number) ** root < power:
        number = up(math.nextafter(float(number), math.inf) * (1 + 1e-11))
    return number


def _until(end: int, sums: Sums, place: int) -> str:
    """The last minute of a period, or of its spends where no calendar has that minute."""
    try:
        return _checked(text_of_minute(end))
    except (ValueError, OverflowError, OSError):
        return text_of_minute(int(sums.until[place]))


def _checked(text: str) -> str:
    if len(text) != len("2026-11-01T10:00Z"):
        raise ValueError(text)
    return text
