"""Rows of B z, drawn ahead in blocks and handed out one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from privlearn.errors import HorizonError
from privlearn.mechanisms.block_products import BLOCK
from privlearn.mechanisms.factorization import Array, Decoder, DrawNumbers
from privlearn.values.validate import count


@final
class NoiseStream:
    """Hands out the rows W_1, W_2, ... of W = B z, each once and in order.

    z is drawn and correlated ahead, in blocks of fixed size: for the same z the rows are bitwise
    the same however the calls are split.  Rows made ahead are as secret as z.  A call that fails
    hands out nothing and loses nothing, so it may be repeated.  Not thread-safe.
    """

    __slots__ = ("_decode", "_decoder", "_draw", "_drawn", "_handed", "_horizon", "_rest")

    def __init__(self, draw: DrawNumbers, decoder: Callable[[int], Decoder], horizon: int) -> None:
        self._draw = draw
        self._decoder = decoder
        self._decode: Decoder | None = None
        self._horizon = horizon
        self._drawn = 0
        self._handed = 0
        self._rest = np.empty((0, 0))  # rows made but not handed out

    def next(self, n: int, /) -> Array:
        """Returns the next n >= 0 rows, shape (n, dim), in memory of the caller's own.

        Raises:
            ValueError: n < 0, or ``draw`` gave another shape.
            HorizonError: more rows than the horizon in all.
        """
        n = count(at_least=0, n=n)
        if self._handed + n > self._horizon:
            raise HorizonError(
                f"{n} more rows after {self._handed} exceed horizon = {self._horizon}; "
                "declare a larger horizon"
            )
        if self._drawn == 0:
            self._rest = self._block()
        rows = np.empty((n, self._rest.shape[1]))
        at = 0
        try:
            while at < n:
                if not len(self._rest):
                    self._rest = self._block()
                part = self._rest[: n - at]
                rows[at : at + len(part)] = part
                at += len(part)
                self._rest = self._rest[len(part) :]
        except BaseException:
            self._rest = np.concatenate([rows[:at], self._rest])
            raise
        self._handed += n
        return rows

    def _block(self) -> Array:
        size = min(BLOCK, self._horizon - self._drawn)
        z = np.asarray(self._draw(size), dtype=np.float64)
        dim = self._rest.shape[1] if self._drawn else None
        if z.ndim != 2 or len(z) != size or dim not in (None, z.shape[1]):
            raise ValueError(f"draw({size}) has shape {z.shape}: must be ({size}, {dim or 'dim'})")
        if self._decode is None:
            self._decode = self._decoder(z.shape[1])
        rows = self._decode(z)
        self._drawn += size
        return rows
