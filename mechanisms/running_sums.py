"""Noisy running sums of an open stream: in integers, or in doubles where there are none."""

from __future__ import annotations

from typing import Any, Protocol, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.receipts import Receipt
from privlearn.contract.spends import Spend
from privlearn.errors import HorizonError
from privlearn.mechanisms.block_products import BLOCK
from privlearn.mechanisms.factorization import Factorization, Integers
from privlearn.mechanisms.stream_terms import StreamTerms
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array, IntegerDomain


class RunningSums(Protocol):
    """Turns contributions into noisy running sums; in order, each row of noise for one of them."""

    def open_sums(self, rows: Rows[Any]) -> NDArray[Any]:
        """The contributions of the next users, in the numbers that it computes with."""

    def opened_total(self, total: PartialSum) -> NDArray[Any]:
        """The sum of the contributions of the next users, shape (1, size)."""

    def after(self, values: NDArray[Any], users: int) -> Array:
        """The noisy running sum after each of the next rows, the last of which ends ``users``."""


def running_sums(receipt: Receipt, spend: Spend, terms: StreamTerms) -> RunningSums:
    """Of a stream that was spent for."""
    if terms.grid is None:
        return _SumsInDoubles(receipt, terms.factorization, spend.domain.size)
    return _IntegerSums(receipt, spend, terms)


@final
class _IntegerSums:
    """B·Y·g for Y = R + N, with R near C·X: see `privlearn.mechanisms.factorization`."""

    __slots__ = ("_ahead", "_centre", "_decoder", "_encoder", "_receipt", "_step")

    def __init__(self, receipt: Receipt, spend: Spend, terms: StreamTerms) -> None:
        size, grid = spend.domain.size, terms.grid
        domain = cast(IntegerDomain[Any], spend.domain)  # it has a grid
        assert grid is not None
        null = domain.null_integers(grid)
        self._receipt = receipt
        self._centre = null if terms.centred and null.any() else None
        self._step = grid.step
        self._encoder = terms.factorization.encoder(size)
        self._decoder = terms.factorization.decoder(size)
        self._ahead = _Ahead(receipt, size, terms.factorization.horizon)

    def open_sums(self, rows: Rows[Any]) -> Integers:
        values = self._receipt.open_integers(rows)
        if self._centre is not None:
            values -= self._centre
        return values

    def opened_total(self, total: PartialSum) -> Integers:
        values = self._receipt.open_total(total)
        if self._centre is not None:  # Python's integers: without it, it may have more than 64 bits
            values = values.astype(object) - total.count * self._centre.astype(object)
        return values.astype(np.int64)[None]

    def after(self, values: Integers, users: int) -> Array:
        released = self._encoder(values)
        released += self._ahead.next(len(values))
        sums = self._decoder(released)
        sums *= self._step
        if self._centre is not None:
            counts = np.arange(users - len(values) + 1, users + 1, dtype=np.float64)
            sums += counts[:, None] * (self._centre * self._step)
        return sums


@final
class _Ahead:
    """Integer noise for the next rows, drawn for 32 at once; as secret as the rows."""

    __slots__ = ("_drawn", "_horizon", "_next", "_receipt", "_rows", "_size")

    def __init__(self, receipt: Receipt, size: int, horizon: int) -> None:
        self._receipt, self._size, self._horizon = receipt, size, horizon
        self._rows: Integers = np.empty((0, size), dtype=np.int64)
        self._drawn = self._next = 0

    def next(self, n: int) -> Integers:
        stop = self._next + n
        if stop > len(self._rows):
            self._more(n)
            stop = n
        found = self._rows[self._next : stop]
        self._next = stop
        return found

    def _more(self, n: int) -> None:
        left = self._rows[self._next :]
        missing = n - len(left)
        if self._drawn + missing > self._horizon:
            raise HorizonError(
                f"{n} more rows after {self._drawn - len(left)} exceed horizon = {self._horizon}"
            )
        drawn = min(-(-missing // BLOCK) * BLOCK, self._horizon - self._drawn)
        fresh = self._receipt.draw_integers((drawn, self._size))
        self._drawn += drawn
        self._rows = np.concatenate([left, fresh]) if len(left) else fresh
        self._next = 0


@final
class _SumsInDoubles:
    """A·x + B·z, for domains and noise without integers: the receipt's noise is in doubles, too."""

    __slots__ = ("_noise", "_receipt", "_total")

    def __init__(self, receipt: Receipt, factorization: Factorization, size: int) -> None:
        self._receipt = receipt
        self._noise = factorization.stream(lambda n: receipt.draw((n, size)))
        self._total = np.zeros(size)

    def open_sums(self, rows: Rows[Any]) -> Array:
        return self._receipt.open(rows)

    def opened_total(self, total: PartialSum) -> Array:
        raise ValueError("total: this stream adds up in doubles, which cannot be merged exactly")

    def after(self, values: Array, users: int) -> Array:
        sums = np.cumsum(np.vstack([self._total, values]), axis=0)[1:]
        self._total = sums[-1].copy()
        return np.asarray(sums + self._noise.next(len(sums)))
