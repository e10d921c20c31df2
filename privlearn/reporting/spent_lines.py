"""Spends added up, by mechanism, label, time and arrival index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

import numpy as np

from privlearn.ledger.chain import text_of_minute
from privlearn.reporting.asked import minute_text
from privlearn.reporting.costs import Costs
from privlearn.reporting.model import MOST_LISTED, Spent
from privlearn.reporting.spend_table import UNKNOWN_TIME, Columns, Integers, Sums, add_up
from privlearn.values.exact import float_up

_DAY, _FIRST_MONDAY = 24 * 60, 4 * 24 * 60
_PERIODS = tuple(
    minutes * factor
    for minutes, factors in ((1, (1, 10)), (60, (1, 6)), (_DAY, (1,)))
    for factor in factors
) + tuple(7 * _DAY * weeks for weeks in (1, 4, 13, 52, 520, 5200, 52000, 520000))
"""Minutes of the periods that spends are added up over: the shortest of which few enough fit."""
_MOST_PERIODS = 60
_RANGES = 20  # Ranges of arrival indices that spends are added up over


@final
class SpentLines:
    """Spends of one account, added up in lines."""

    def __init__(self, costs: Costs, rows: Columns) -> None:
        self._costs, self._chosen = costs, rows

    def total(self) -> list[Spent]:
        rows = self._chosen
        if not len(rows):
            return []
        return [self._line(rows, self._summed(rows, np.zeros(len(rows), np.int64)), 0)]

    def by_group(self, *names: str) -> list[Spent]:
        """Spends by ``mechanism``, ``label``, or both, the dearest first."""
        rows, groups = self._chosen, self._costs.table.groups
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
        amounts = self._costs.of_rows(rows)
        if self._costs.persons or not np.isfinite(amounts).all():
            return [None] * len(ends)
        edges = np.unique(np.concatenate([rows.start, rows.stop]))
        first, last = np.searchsorted(edges, rows.start), np.searchsorted(edges, rows.stop)
        steps, found = np.zeros(len(edges)), []
        for end in ends:
            now = period == end
            steps += np.bincount(first[now], amounts[now], len(edges))
            steps -= np.bincount(last[now], amounts[now], len(edges))
            user = int(edges[np.argmax(np.cumsum(steps))])
            paid = self._costs.most(rows.only(period <= end), user)
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
        return add_up(rows, key, self._costs.of_rows(rows))

    def _line(self, rows: Columns, sums: Sums, place: int, **named: object) -> Spent:
        mine = rows.only(sums.rows(place))
        user = int(sums.user[place])
        most = self._costs.most(mine, user)
        given: dict[str, object] = {
            "since": minute_text(int(sums.since[place])),
            "until": minute_text(int(sums.until[place])),
            "users": (int(sums.start[place]), int(sums.stop[place])),
        }
        return Spent.model_validate(
            {
                "accountant": self._costs.state.number,
                "unit": self._costs.unit,
                "spends": int(sums.spends[place]),
                "most": None if most is None else float_up(most),
                "user": None if most is None or self._costs.persons else user,
                "of_cap": None if most is None else float_up(most / self._costs.cap),
                "attested": self._costs.state.opened.attested,
                **given,
                **named,
            }
        )


def _until(end: int, sums: Sums, place: int) -> str:
    try:
        return _checked(text_of_minute(end))
    except (ValueError, OverflowError, OSError):
        return text_of_minute(int(sums.until[place]))


def _checked(text: str) -> str:
    if len(text) != len("2026-11-01T10:00Z"):
        raise ValueError(text)
    return text
