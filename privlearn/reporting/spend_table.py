"""All spends of a ledger as columns of numbers: who, what, when and how much.

One row stands for one loss on one range of users: a spend has one, or several if its loss says who
pays what.  A stream that ended early has further rows with the sign -1, for those who no longer
pay.  A row takes 40 bytes, so a ledger of a million spends is held in memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants.state import AccountState, pieces_of
from privlearn.domains import Array
from privlearn.entries import Entry, RetireEntry, SpendEntry
from privlearn.errors import PrivlearnError
from privlearn.exact import float_up
from privlearn.ledger import Record
from privlearn.ledger.chain import minute_of
from privlearn.losses import Loss

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNKNOWN_TIME = -1
"""In place of a minute, where a ledger tells none (format 1)."""


@final
@dataclass(frozen=True, slots=True)
class Group:
    """What spends are named by: their accountant's number, mechanism and label."""

    accountant: int
    mechanism: str
    label: str


@final
@dataclass(slots=True)
class SpendTable:
    """Filled by `see`, once for each entry of an audit; `columns` are what was seen."""

    groups: dict[Group, int] = field(default_factory=dict)
    prices: list[float] = field(default_factory=list)
    """Of each loss in its accountant's currency, rounded up; NaN where it has no price there."""
    _losses: dict[tuple[int, Loss], int] = field(default_factory=dict)
    _rows: array[int] = field(default_factory=lambda: array("q"))
    _minute: int = UNKNOWN_TIME
    _text: str = ""
    first_minute: int = UNKNOWN_TIME
    last_minute: int = UNKNOWN_TIME

    def see(self, record: Record, entry: Entry, state: AccountState) -> None:
        """Counts a spend, or takes off what a stream that ended early did not take."""
        self._tell_time(record)
        if isinstance(entry, SpendEntry):
            account = state.accounts.get(entry.token)
            label = "" if account is None else account.label
            group = self._group(Group(state.number, entry.mechanism, label))
            for users, loss in pieces_of(state.read_loss(entry.loss), range(*entry.users)):
                self._add(record.seq, group, users, self._loss(state, loss, users), 1)
        elif isinstance(entry, RetireEntry):
            account = state.accounts.get(entry.token)
            if account is not None and account.stream is not None and account.stream.freed:
                group = self._group(Group(state.number, account.stream.mechanism, account.label))
                for users, kept, loss in account.stream.freed:
                    price = self._loss(state, loss, users)
                    self._add(record.seq, group, range(kept.stop, users.stop), price, -1)

    def _tell_time(self, record: Record) -> None:
        text = (record.envelope or {}).get("at", self._text)
        if text != self._text and isinstance(text, str):
            self._text = text
            self._minute = minute_of(text) or UNKNOWN_TIME
            if self.first_minute == UNKNOWN_TIME:
                self.first_minute = self._minute
            self.last_minute = self._minute

    def _group(self, group: Group) -> int:
        return self.groups.setdefault(group, len(self.groups))

    def _loss(self, state: AccountState, loss: Loss, users: range) -> int:
        known = self._losses.get((state.number, loss))
        if known is None:
            known = self._losses[state.number, loss] = len(self.prices)
            try:
                price = float_up(state.price_of_person(loss, users).budget.amounts[0])
            except (PrivlearnError, ValueError, ArithmeticError):  # no price, which the audit says
                price = float("nan")
            self.prices.append(price)
        return known

    def _add(self, seq: int, group: int, users: range, loss: int, sign: int) -> None:
        self._rows.extend((seq, self._minute, group, loss, users.start, users.stop, sign))

    @property
    def columns(self) -> Columns:
        """Everything that was seen."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 7)
        price = np.array([*self.prices, 0.0])[rows[:, 3]]
        seq, minute, group, _, start, stop, sign = rows.T
        return Columns(seq, minute, group, start, stop, sign, price)


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of a `SpendTable`, one array a column, each of shape (rows,)."""

    seq: Integers
    minute: Integers
    group: Integers
    start: Integers
    stop: Integers
    sign: Integers
    price: Array

    def only(self, which: Mask) -> Columns:
        """The rows for which ``which``, of shape (rows,), holds."""
        names = ("seq", "minute", "group", "start", "stop", "sign", "price")
        return Columns(*(getattr(self, name)[which] for name in names))

    def clipped(self, start: int, stop: int) -> Columns:
        """The rows as far as they are for users from ``start`` to below ``stop``."""
        return replace(self, start=np.maximum(self.start, start), stop=np.minimum(self.stop, stop))

    @property
    def spends(self) -> int:
        """How many spends they are of."""
        return len(np.unique(self.seq[self.sign > 0]))

    def paid(self) -> tuple[Integers, Array]:
        """What users pay: indices where the sum changes, and the sum from each of them on."""
        at = np.concatenate([self.start, self.stop])
        by = np.concatenate([self.price * self.sign, -self.price * self.sign])
        edges, where = np.unique(at, return_inverse=True)
        sums: Array = np.cumsum(np.bincount(where, weights=by, minlength=len(edges)))
        rounding = 1e-15 * len(at) * float(np.abs(by).max(initial=0.0))
        sums[np.abs(sums) <= rounding] = 0.0
        return edges, sums

    def most(self) -> float:
        """The most that they cost any one user."""
        return float(self.paid()[1].max(initial=0.0))
