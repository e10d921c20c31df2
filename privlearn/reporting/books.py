"""One account and its spends, from which all of a report's numbers about it come."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from privlearn.accountants.state import AccountState
from privlearn.reporting.asked import Asked, minute_text
from privlearn.reporting.costs import Costs
from privlearn.reporting.model import MOST_LISTED, OneSpend, OpenToken
from privlearn.reporting.spend_table import Columns, SpendTable
from privlearn.reporting.spent_lines import SpentLines
from privlearn.values.exact import float_up


@final
class Books:
    """One account and its spends."""

    def __init__(
        self,
        state: AccountState,
        columns: Columns,
        table: SpendTable,
        asked: Asked,
        unknown: str,
        entries: int,
    ) -> None:
        self.costs = Costs(state, columns, table, asked.user, unknown, entries)
        self._asked = asked
        chosen = asked.of(columns, table.groups)
        self._listed = chosen
        if asked.user is not None:
            chosen = replace(
                chosen,
                start=np.maximum(chosen.start, asked.user),
                stop=np.minimum(chosen.stop, asked.user + 1),
            )
        self.lines = SpentLines(self.costs, chosen)

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
        group = self.costs.table.groups[int(rows.group[begin])]
        costs = [
            None if price is None else price.budget.amounts[self.costs.term] * int(times)
            for price, times in (
                (self.costs.price(self.costs.table.losses[int(rows.loss[at])]), rows.times[at])
                for at in range(begin, end)
                if not self.costs.persons
            )
        ]
        known = [cost for cost in costs if cost is not None]
        return OneSpend(
            accountant=self.costs.state.number,
            entry=int(rows.seq[begin]),
            at=minute_text(int(rows.minute[begin])),
            mechanism=group.mechanism,
            label=group.label,
            users=(int(rows.start[begin:end].min()), int(rows.stop[begin:end].max())),
            cost=float_up(max(known)) if known and len(known) == len(costs) else None,
            unit=self.costs.unit,
            attested=group.attested,
        )

    def open_tokens(self) -> tuple[list[OpenToken], int, int]:
        """Tokens without a recorded end, how many are not spent, and how many are.

        Of a user who is asked about, those of that user.
        """
        number, user = self.costs.state.number, self.costs.user
        waiting = [
            account
            for account in self.costs.state.outstanding()
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
                else self.costs.table.mechanism(number, account.token) or account.spend.mechanism,
                label=account.label,
                users=account.users,
                issued=minute_text(self.costs.table.issued(number, account.token)),
                reserved=float_up(account.budget.amounts[self.costs.term])
                if account.spend is None
                else None,
            )
            for account in [*unspent, *running][:MOST_LISTED]
        ]
        return listed, len(unspent), len(running)
