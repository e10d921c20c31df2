"""What all local reports share: one token, any users of it, one report for each.

A report is a frozen specification with a ``domain``, a ``spend`` and a rule ``randomized`` that
turns the clipped contributions of n users, and noise drawn for each of them, into n reports.  No
row of the result depends on another user's row or noise.  What is released is a function of exact
noise: integers are added on a grid, or the noise class makes the whole report (`ReportNoise`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.losses import Loss
from privlearn.losses.budgets import B
from privlearn.mechanisms.receipt_stream import ReceiptStream, check_adjacency
from privlearn.noise.exact.caps import REPORT_LEVELS
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

X = TypeVar("X")
RowsOfNoise = Callable[[int], Any]
"""Noise for so many users, with a length, and parts as ``noise[start:stop]``."""
_MOST_AHEAD = 64
LEVELS = REPORT_LEVELS
"""Messages carry multiples of limit/LEVELS; a public word in a report is such a multiple."""


class EachReport(ABC, Generic[X]):
    """One report for every user: ``domain``, ``spend`` and the rule ``randomized`` make it."""

    __slots__ = ()

    if TYPE_CHECKING:  # fields of the reports

        @property
        def domain(self) -> Domain[X]: ...
        @property
        def adjacency(self) -> Adjacency: ...
        @property
        def limit(self) -> float: ...

    _spends: tuple[Spend, Spend]  # Of one release, and of a stream; see `spends_of`

    def spend(self, *, interactive: bool = False) -> Spend:
        """The statement for the ledger; domain and noise give the price."""
        return self._spends[interactive]

    @property
    def size(self) -> int:
        """Numbers in a report."""
        return self.domain.size

    @property
    def estimate_limit(self) -> float:
        """Every number of an estimate lies in [−estimate_limit, estimate_limit]."""
        return self.limit

    def estimate(self, reports: Array) -> Array:
        """Unbiased estimates of contributions; by default the reports themselves."""
        return reports

    @abstractmethod
    def randomized(self, values: NDArray[Any], draw: RowsOfNoise) -> Array:
        """Reports about clipped contributions, row by row."""

    def noise_of(self, receipt: Receipt) -> RowsOfNoise:
        """Where `randomized` gets the noise of users from."""
        return receipt.draw_rows

    def loss(self) -> Loss:
        """The price of one report."""
        return self.spend().loss(self.adjacency)

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Releases one report of every row, shape (n, size); null rows have the null law.

        Raises:
            AdjacencyError: the token is for another neighbour relation.
            TokenError, UsersError: see `Token.spend` and `Receipt.open`.
        """
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check(rows, spend)
        # an error of floats, where the caller asked for such, would tell of a row
        with np.errstate(all="ignore"), token.spend(spend) as receipt:
            values = _opened(receipt, rows)
            return receipt.release(self.randomized(values, self.noise_of(receipt)))

    def open(self, token: Token[B]) -> EachStream[X]:
        """Spends ``token`` on a stream of reports, for rows that come one after the other.

        Raises:
            AdjacencyError, TokenError, UsersError: as `release`.
        """
        return EachStream(self, token)


def spends_of(
    name: str, domain: Domain[Any], noise: Any, *, grid: Grid | None = None, exact: bool = False
) -> tuple[Spend, Spend]:
    """What one release and what a stream of a report say in the ledger."""
    single, stream = (
        Spend(
            name, domain, noise, arithmetic="each", interactive=interactive, grid=grid, exact=exact
        )
        for interactive in (False, True)
    )
    return single, stream


class _Ahead:
    """Noise for the next reports, drawn for many at once, because that of one row costs as much.

    Every row is used once, and how many are drawn does not depend on the data.
    """

    __slots__ = ("_draw", "_next", "_rows")

    def __init__(self, draw: RowsOfNoise) -> None:
        self._draw, self._next = draw, 0
        self._rows: Any = ()

    def __call__(self, n: int) -> Any:
        first, last = self._next, self._next + n
        if last > len(self._rows):
            rows = max(n, min(2 * len(self._rows), _MOST_AHEAD))
            self._rows, first, last = self._draw(rows), 0, n
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
        self._report, self._draw = report, _Ahead(report.noise_of(self._receipt))

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
            values = _opened(receipt, rows)  # users may be left out
            self._next = rows.users.stop
            return receipt.publish(self._report.randomized(values, self._draw))


def _opened(receipt: Receipt, rows: Rows[Any]) -> NDArray[Any]:
    return receipt.open(rows) if receipt.grid is None else receipt.open_integers(rows)
