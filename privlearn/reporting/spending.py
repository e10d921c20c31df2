"""What the most charged user paid over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.reporting.costs import Costs
from privlearn.reporting.spend_table import UNKNOWN_TIME, Integers
from privlearn.rows.domains import Array

_MOST_DRAWN = 100  # Mechanisms and labels that are drawn by themselves


@final
@dataclass(frozen=True)
class Spending:
    """What the most charged user of one accountant paid, spend by spend."""

    accountant: str
    user: int
    unit: str
    cap: float
    labels: list[str]
    cumulated: Array  # Shape (labels, spends + 1): paid under each label after each spend
    minutes: Integers
    """Shape (spends + 2,): when it was opened, when each was made, and the ledger's last minute, in
    minutes since 1970 and in order; none where no entry tells its time."""


def spending_over_time(costs: Costs) -> Spending | None:
    """What the most charged user paid over time; None under a rule of participation."""
    if costs.persons:
        return None
    state, table = costs.state, costs.table
    user = costs.user
    if user is None:
        closed_plan = state.closed and state.plan is not None
        user = costs.most_spent() if closed_plan else state.meter.charged.extremes(costs.term)[0]
    rows = costs.columns.only(costs.columns.touching(user, user + 1))
    cost = np.nan_to_num(costs.of_rows(rows), nan=0.0)
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
        unit=costs.unit,
        cap=float(costs.cap),
        labels=labels,
        cumulated=np.cumsum(cumulated, axis=1),
        minutes=minutes if len(known) else known,
    )
