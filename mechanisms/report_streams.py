"""What all local reports share: one token, any users of it, one report for each.

A report is a frozen specification with a ``domain``, a ``spend`` and a rule ``randomized`` that
turns the clipped contributions of n users, and noise drawn for each of them, into n reports.  No
row of the result depends on another user's row or noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np

from privlearn.adjacency import Adjacency
from privlearn.budgets import B
from privlearn.domains import Array, Domain
from privlearn.losses import Loss
from privlearn.mechanisms.receipt_stream import ReceiptStream, check_adjacency
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token

X = TypeVar("X")
Draw = Callable[[tuple[int, ...]], Array]
"""`Receipt.draw`."""
_MOST_AHEAD = 64
LEVELS = 2**23
"""Messages carry multiples of limit/LEVELS; a public word in a report is such a multiple."""


class EachReport(ABC, Generic[X]):
    """One report for every user: ``domain``, ``spend`` and the rule ``randomized`` make it."""

    __slots__ = ()

    if TYPE_CHECKING:  # fields of the reports

        @property
        def domain(self) -> Domain[X]: ...
        @property
        def adjacency(self) -> Adjacency: ...

    @abstractmethod
    def spend(self, *, interactive: bool = False) -> Spend:
        """The statement for the ledger; domain and noise give the price."""

    @abstractmethod
    def randomized(self, values: Array, draw: Draw) -> Array:
        """Reports about clipped contributions, row by row."""

    def loss(self) -> Loss:
        """The price of one report."""
        return self.spend().loss(self.adjacency)

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Releases one report of every row, shape (n, size); null rows have the null law.

        Raises:
            AdjacencyError: the token is for another neighbour relation.  TokenError, UsersError:
            see `Token.spend` and `Receipt.open`.
        """
        check_adjacency(self.adjacency, token)
        token.check(rows)
        # an error of floats, where the caller asked for such, would tell of a row
        with np.errstate(all="ignore"), token.spend(self.spend()) as receipt:
            return receipt.release(self.randomized(receipt.open(rows), receipt.draw))

    def open(self, token: Token[B]) -> EachStream[X]:
        """Spends ``token`` on a stream of reports, for rows that come one after the other.

        Raises:
            As `release`.
        """
        return EachStream(self, token)


class _Ahead:
    """Noise for the next reports, drawn for many at once, because draws of one row cost as much.

    Every row is used once, and how many are drawn does not depend on the data.
    """

    __slots__ = ("_draw", "_next", "_rows")

    def __init__(self, draw: Draw) -> None:
        self._draw, self._next = draw, 0
        self._rows: Array = np.empty((0, 0))

    def __call__(self, shape: tuple[int, ...]) -> Array:
        first, last = self._next, self._next + shape[0]
        if last > len(self._rows):
            rows = max(shape[0], min(2 * len(self._rows), _MOST_AHEAD))
            self._rows, first, last = self._draw((rows, *shape[1:])), 0, shape[0]
        self._next = last
        return self._rows[first:last]


@final
class EachStream(ReceiptStream[X]):
    """Reports of a token's users as their rows come, in order; a context manager that closes.

    Every user of the token is charged when it is opened, and each row is reported once.
    """

    __slots__ = ("_draw", "_report")

    def __init__(self, report: EachReport[X], token: Token[Any]) -> None:
        super().__init__(report.spend(interactive=True), token, report.adjacency)
        self._report, self._draw = report, _Ahead(self._receipt.draw)

    def append(self, rows: Rows[X]) -> Released[Array]:
        """Releases one report of every row, shape (n, size).

        If it fails or is interrupted these users have no report, and stay charged; the stream goes
        on.  After a failure, which may depend on their rows, it ends ``uncovered``.

        Raises:
            UsersError: users not of this token, reported before, or out of order.
            TokenSpentError: closed.
        """
        receipt = self._receipt
        # no noise twice, whatever threads do; for errors of floats see EachReport.release
        with self._lock, receipt.round(), np.errstate(all="ignore"):
            values = receipt.open(rows)  # users may be left out
            self._next = rows.users.stop
            return receipt.publish(self._report.randomized(values, self._draw))
