"""The tokens that pay for the messages of a client's users, and what left by them.

One token pays for all users of a client, or for those of the warm-up and for the others.  If its
process dies, users whose rows its stream may have taken were paid for, and are never randomised
again; the next client of the account gets a token for those behind them.  Under a rule by which
persons come back a stream is charged whole however it ends: there a token is for few users.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, final

import numpy as np

from privlearn.contract.protocols import Accountant, ReportStream
from privlearn.contract.tokens import Token
from privlearn.errors import TokenSpentError
from privlearn.learners.local.protocol import LocalBanditConfig
from privlearn.losses.budgets import B
from privlearn.rows import Rows
from privlearn.rows.domains import Array


class _Paid(NamedTuple):
    users: range
    token: Token[Any]
    stream: ReportStream[Any] | None  # None for a single user, whose token is spent on one release


@final
class PaidReports(Generic[B]):
    """One report of each of ``users``, whatever other clients of the account did.

    Args:
        config: the public configuration.
        accountant: that pays.
        users: of the client, in order of arrival.
    """

    def __init__(self, config: LocalBanditConfig, accountant: Accountant[B], users: range) -> None:
        self._config, self._accountant, self._users = config, accountant, users
        warm = config.warm_up
        self._phases = {
            True: range(users.start, min(users.stop, warm)),
            False: range(max(users.start, warm), users.stop),
        }
        """Whose messages are of the warm-up, and whose are not."""
        self._paid: dict[bool, _Paid] = {}

    def pay(self, users: range, *, warming: bool) -> range:
        """Sees to it that a token pays for the first of these users; returns whom it is for.

        Raises:
            TokenSpentError: a token of the account is for them.
            InsufficientBudgetError: the account cannot pay.
            BudgetError: not in its plan.
        """
        found = self._paid.get(warming)
        if found is not None:
            return found.users
        form, label = self._config.forms[warming], self._config.label
        left = self._unpaid(warming)
        if users.start not in left:
            raise self._refused(users)
        segment = getattr(self._accountant, "segment", None)
        if segment is not None:
            left = range(users.start, min(left.stop, max(users.start + segment, users.stop)))
        token = self._accountant.issue(form.loss, users=left, label=label)
        if len(self._accountant.held(label, left)) > 1:  # another client got one in the meantime
            token.retire()
            raise self._refused(users)
        stream = None if len(left) == 1 else form.report.open(token)
        self._paid[warming] = _Paid(left, token, stream)
        return left

    def append(self, rows: Rows[Any], users: range, *, warming: bool) -> Array:
        """Reports of the next users, whose rows these are, shape (n, size)."""
        found = []
        while users:  # once, but where a token ends within them
            paid = self.pay(users, warming=warming)
            part = range(users.start, min(users.stop, paid.stop))
            found.append(self._released(rows if part == users else rows.slice(part), part, warming))
            users = range(part.stop, users.stop)
            rows = rows.slice(users) if users else rows
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _released(self, rows: Rows[Any], part: range, warming: bool) -> Array:
        users, token, stream = self._paid[warming]
        last = part.stop == users.stop
        if stream is None:
            del self._paid[warming]
            return self._config.forms[warming].report.release(rows, token).value
        released = stream.append(rows).value
        if last:
            del self._paid[warming]
            stream.close()
        return released

    def _unpaid(self, warming: bool) -> range:
        """The last users of a phase, behind all whom a token of the account is for."""
        phase = self._phases[warming]
        start = phase.start
        for held in self._accountant.held(self._config.label, phase):
            start = max(start, held.stop)
        return range(start, phase.stop)

    def _refused(self, users: range) -> TokenSpentError:
        return TokenSpentError(
            f"{self._config.label} of users {users.start}..{users.stop - 1}: this account has a "
            "token for some of them, and each sends one message; client.left can still answer"
        )

    def left(self, first: int) -> range:
        """Users who can still have a report, from ``first`` or later on."""
        for warming, phase in self._phases.items():
            paid = self._paid.get(warming)
            users = self._unpaid(warming) if paid is None else paid.users
            start = max(users.start, first)
            if phase and start < phase.stop:
                return range(start, self._users.stop)
        return range(self._users.stop, self._users.stop)

    def recorded(self) -> Iterator[tuple[range, Array]]:
        """Whose reports stand in the account's ledger, and what they are.

        Raises:
            LedgerError: it is in memory, and keeps none.
            LedgerUnreadableError: one was changed.
            TypeError: an accountant that cannot tell.
        """
        if not hasattr(self._accountant, "reports"):
            raise TypeError(f"accountant = {self._accountant!r}: must be a LocalAccountant")
        for users, reports in self._accountant.reports(self._config.label):
            start, stop = max(users.start, self._users.start), min(users.stop, self._users.stop)
            if start < stop:
                yield range(start, stop), reports[start - users.start : stop - users.start]

    def close(self) -> None:
        """Ends what is open; a token that was not spent goes back."""
        while self._paid:
            _, paid = self._paid.popitem()
            if paid.stream is None:
                paid.token.retire()
            else:
                paid.stream.close()
