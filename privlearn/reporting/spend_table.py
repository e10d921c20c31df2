"""All spends of a ledger as columns of numbers: who, what, when and how much.

One row stands for one loss on one range of users: a spend has one, or several if its loss says who
pays what.  What clients attest is a row, too.  A row takes 72 bytes, so the spends of a ledger of
millions of entries are held in memory.  Rows are only for users whom their accountant has, and of a
stream that ended early for those whom it reached.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants.charged import pieces_of
from privlearn.accountants.prices import read_loss
from privlearn.accountants.state import AccountState
from privlearn.ledger import Record
from privlearn.ledger.chain import minute_of
from privlearn.ledger.entries import (
    AttestEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    RetireEntry,
    SpendEntry,
)
from privlearn.losses import Loss
from privlearn.rows.domains import Array

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNKNOWN_TIME = -1
"""In place of a minute, where a ledger tells none (format 1) or one that does not exist."""
_MOST_INDEX = 2**62
_WIDTH = 8  # Numbers of a row


@final
@dataclass(frozen=True, slots=True)
class Group:
    """What spends are named by: their accountant's number, mechanism and label."""

    accountant: int
    mechanism: str
    label: str
    attested: bool = False  # Whether clients claim it


@final
@dataclass(slots=True)
class _OfAccount:
    start: int
    stop: int
    opened: int
    groups: dict[tuple[str, str, bool], int] = field(default_factory=dict)
    issued: dict[str, int] = field(default_factory=dict)
    """Minutes in which tokens without an end were issued."""
    rows: dict[str, range] = field(default_factory=dict)
    """Rows of tokens that were spent and have no end."""
    last: tuple[Loss, int] | None = None


@final
@dataclass(slots=True)
class SpendTable:
    """Filled by `see`, once for each entry of an audit; `columns` are what was seen."""

    groups: list[Group] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """Each different loss once, as rows number them."""
    first_minute: int = UNKNOWN_TIME
    last_minute: int = UNKNOWN_TIME
    _losses: dict[Loss, int] = field(default_factory=dict)
    _rows: array[int] = field(default_factory=lambda: array("q"))
    _number: int = 0
    _accounts: dict[int, _OfAccount] = field(default_factory=dict)
    _minute: int = UNKNOWN_TIME
    _text: str = ""

    def see(self, record: Record, entry: Entry, state: AccountState) -> None:
        envelope = record.envelope
        if envelope is not None:
            text = envelope.get("at", self._text)
            if text != self._text:
                self._tell_time(text)
        known = self._accounts.get(state.number)
        if known is None or isinstance(entry, OpenEntry):
            users = state.users
            bounds = min(users.start, _MOST_INDEX), min(users.stop, _MOST_INDEX)
            known = self._accounts[state.number] = _OfAccount(*bounds, opened=self._minute)
        if isinstance(entry, IssueEntry):
            known.issued[entry.token] = self._minute
        elif isinstance(entry, SpendEntry):
            account = state.accounts.get(entry.token)
            label = "" if account is None else account.label
            group = self._group(state, known, entry.mechanism, label)
            before = self._size
            self._add(record, known, group, read_loss(entry.loss), range(*entry.users), 1)
            known.rows[entry.token] = range(before, self._size)
        elif isinstance(entry, RetireEntry):
            known.issued.pop(entry.token, None)
            rows = known.rows.pop(entry.token, None)
            account = state.accounts.get(entry.token)
            if rows and account is not None and account.stream is not None:
                self._cut(rows, account.stream.paid if account.stream.freed else _MOST_INDEX)
        elif isinstance(entry, AttestEntry):
            group = self._group(state, known, entry.mechanism, entry.label, attested=True)
            loss, users = read_loss(entry.loss), range(*entry.users)
            self._add(record, known, group, loss, users, min(entry.most_messages, _MOST_INDEX))

    def opened(self, number: int) -> int:
        found = self._accounts.get(number)
        return UNKNOWN_TIME if found is None else found.opened

    def issued(self, number: int, token: str) -> int:
        found = self._accounts.get(number)
        return UNKNOWN_TIME if found is None else found.issued.get(token, UNKNOWN_TIME)

    def mechanism(self, number: int, token: str) -> str | None:
        """Of a token without an end: what it was spent on; None if it was not."""
        found = self._accounts.get(number)
        rows = None if found is None else found.rows.get(token)
        return self.groups[self._rows[rows.start * _WIDTH + 3]].mechanism if rows else None

    @property
    def _size(self) -> int:
        return len(self._rows) // _WIDTH

    def _tell_time(self, text: object) -> None:
        if not isinstance(text, str):
            return
        self._text = text
        minute = minute_of(text)
        self._minute = minute if minute > 0 else UNKNOWN_TIME
        if self._minute != UNKNOWN_TIME:
            if self.first_minute == UNKNOWN_TIME:
                self.first_minute = self._minute
            self.last_minute = self._minute

    def _group(
        self,
        state: AccountState,
        known: _OfAccount,
        mechanism: str,
        label: str,
        *,
        attested: bool = False,
    ) -> int:
        key = mechanism, label, attested
        found = known.groups.get(key)
        if found is None:
            found = known.groups[key] = len(self.groups)
            self.groups.append(Group(state.number, mechanism, label, attested))
        return found

    def _loss(self, known: _OfAccount, loss: Loss) -> int:
        last = known.last
        if last is not None and last[0] is loss:  # its hash takes time
            return last[1]
        found = self._losses.get(loss)
        if found is None:
            found = self._losses[loss] = len(self.losses)
            self.losses.append(loss)
        known.last = loss, found
        return found

    def _add(
        self, record: Record, known: _OfAccount, group: int, loss: Loss, users: range, times: int
    ) -> None:
        number, seq = self._number, min(max(record.seq, 0), _MOST_INDEX)
        self._number += 1
        for piece, part in pieces_of(loss, users):
            start = min(max(piece.start, known.start), known.stop)
            stop = max(min(piece.stop, known.stop), start)
            which = self._loss(known, part)
            self._rows.extend((number, seq, self._minute, group, which, start, stop, times))

    def _cut(self, rows: range, stop: int) -> None:
        """Takes a stream's rows off those who come from ``stop`` on, whom it did not reach."""
        for row in rows:
            at = row * _WIDTH
            self._rows[at + 6] = max(self._rows[at + 5], min(self._rows[at + 6], stop))

    @property
    def columns(self) -> Columns:
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, _WIDTH)
        return Columns(*(np.ascontiguousarray(column) for column in rows.T))


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of a `SpendTable`, one array a column, each of shape (rows,)."""

    number: Integers  # Which spend, in order: rows of one stand together
    seq: Integers  # Of its entry
    minute: Integers
    group: Integers
    loss: Integers
    start: Integers
    stop: Integers
    times: Integers  # How often a user pays the loss: messages of what is attested, else 1

    def __len__(self) -> int:
        return len(self.seq)

    def only(self, which: Mask | Integers | slice) -> Columns:
        return Columns(*(getattr(self, name)[which] for name in self.__slots__))

    @property
    def spends(self) -> int:
        return len(self) and 1 + int(np.count_nonzero(np.diff(self.number)))

    def touching(self, start: int, stop: int) -> Mask:
        return (self.start < stop) & (self.stop > start) & (self.start < self.stop)

    def paid(self, amount: Array) -> tuple[Integers, Array]:
        """What users pay: indices where the sum changes, and the sum from each of them on.

        ``amount``: of each row, shape (rows,).
        """
        at = np.concatenate([self.start, self.stop])
        by = np.concatenate([amount, -amount])
        edges, where = np.unique(at, return_inverse=True)
        sums: Array = np.cumsum(np.bincount(where, weights=by, minlength=len(edges)))
        return edges, sums


@final
@dataclass(frozen=True, slots=True)
class Sums:
    """Rows added up by a key, one element for each key that occurs; all of shape (keys,)."""

    key: Integers
    spends: Integers
    start: Integers
    stop: Integers
    since: Integers
    until: Integers
    most: Array  # What the user pays who pays most, to rounding
    user: Integers
    """Who that is."""
    order: Integers  # Shape (rows,): rows sorted by key, in their order
    begin: Integers  # Where the rows of each key begin in ``order``

    def rows(self, place: int) -> Integers:
        end = self.begin[place + 1] if place + 1 < len(self.begin) else len(self.order)
        return self.order[self.begin[place] : end]


def add_up(columns: Columns, key: Integers, amount: Array) -> Sums:
    """Adds rows up by ``key``, shape (rows,); ``amount``, shape (rows,), is what each costs."""
    order = np.argsort(key, kind="stable")
    keys = key[order]
    begin = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
    if not len(keys):
        none = np.zeros(0, dtype=np.int64)
        return Sums(none, none, none, none, none, none, np.zeros(0), none, order, begin)
    number, minute = columns.number[order], columns.minute[order]
    new = np.r_[True, (keys[1:] != keys[:-1]) | (number[1:] != number[:-1])]
    late = np.where(minute == UNKNOWN_TIME, np.iinfo(np.int64).max, minute)
    since = np.minimum.reduceat(late, begin)
    most, user = _most(columns, key, np.where(np.isfinite(amount), amount, 0.0))
    return Sums(
        key=keys[begin],
        spends=np.add.reduceat(new.astype(np.int64), begin),
        start=np.minimum.reduceat(columns.start[order], begin),
        stop=np.maximum.reduceat(columns.stop[order], begin),
        since=np.where(since == np.iinfo(np.int64).max, UNKNOWN_TIME, since),
        until=np.maximum.reduceat(minute, begin),
        most=most,
        user=user,
        order=order,
        begin=begin,
    )


def _most(columns: Columns, key: Integers, amount: Array) -> tuple[Array, Integers]:
    at = np.concatenate([columns.start, columns.stop])
    keys = np.concatenate([key, key])
    order = np.lexsort((at, keys))
    at, keys = at[order], keys[order]
    sums = np.cumsum(np.concatenate([amount, -amount])[order])
    begin = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    sizes = np.diff(np.r_[begin, len(keys)])
    before = np.r_[0.0, sums[begin[1:] - 1]]
    sums = sums - np.repeat(before, sizes)
    last = np.r_[(at[1:] != at[:-1]) | (keys[1:] != keys[:-1]), True]  # of all at one index
    sums = np.where(last, sums, -np.inf)
    most = np.maximum.reduceat(sums, begin)
    # sums that differ by rounding only are equal: the first user counts
    large = sums >= np.repeat(most - 1e-12 * np.abs(most), sizes)
    places = np.where(large, np.arange(len(at)), len(at))
    first = np.minimum.reduceat(places, begin)
    return np.maximum(most, 0.0), at[first]
