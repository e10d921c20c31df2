"""How contributions come out of sealed rows: clipped by a domain, one by one or added up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Domain, IntegerDomain
from privlearn.rows.domains.reading import SHIPPED
from privlearn.rows.functions import RowFunction
from privlearn.rows.sealed import Rows
from privlearn.values.grid import Grid, added, sum_of_rows
from privlearn.values.records import record_at

_PLAIN = np.dtype(np.float64), np.dtype(np.int64)
_PIECE = 2**16  # Numbers that are clipped at once where only their sum is wanted


@dataclass(frozen=True, slots=True)
class Clipping:
    """How contributions come out of sealed rows."""

    function: Callable[[Any], NDArray[Any]]
    null: Callable[[], NDArray[Any]]
    size: int
    largest: int
    """Of the sizes of integers."""
    checked: RowFunction[Any, NDArray[Any]]
    own: bool
    """Whether the domain is ours."""

    def contributions(self, rows: Rows[Any]) -> NDArray[Any]:
        """Of all rows, shape (n, domain.size), in memory of the caller's own.

        Raises:
            RowLocalityError: a function that the rows passed through is not row-local.
        """
        # somebody's own clip may not see how many came
        clip = self._clip if self.own or Rows._slots_of(rows) is None else self._clip_singly
        parts = [clip(chunk.block, chunk.valid) for chunk in Rows._unseal(rows)]
        if not parts:  # a timetable on which nobody came
            return np.broadcast_to(self.null(), (0, self.size))
        # a copy: an observer may write to it
        return np.array(parts[0]) if len(parts) == 1 else np.concatenate(parts)

    def sum(self, rows: Rows[Any]) -> NDArray[Any]:
        """Of the integers of all rows, exactly; in pieces, so that no more memory is taken.

        Raises:
            RowLocalityError: as `contributions`.
        """
        if not self.own:  # somebody's own clip is called, and spot-checked, on whole blocks
            return sum_of_rows(self.contributions(rows), self.largest)
        total, seen = np.zeros(self.size, np.int64), 0
        step = max(_PIECE // max(self.size, 1), 1)
        chunks = Rows._unseal(rows)
        if len(chunks) == 1 and len(chunks[0].valid) <= step:
            return sum_of_rows(self._clip(chunks[0].block, chunks[0].valid), self.largest)
        for chunk in chunks:
            for start in range(0, len(chunk.valid), step):
                piece = slice(start, start + step)
                block = None if chunk.block is None else record_at(chunk.block, piece)
                part = sum_of_rows(self._clip(block, chunk.valid[piece]), self.largest)
                seen += len(chunk.valid[piece])
                small = seen * self.largest < 2**62
                total = total + part if small else added(total, part)
        return total

    def _clip(self, block: Any, valid: NDArray[np.bool_]) -> NDArray[Any]:
        values = None if block is None else self._clipped(block, valid)
        if values is not None and values.shape == (len(valid), self.size):
            if np.count_nonzero(valid) == len(valid):
                return values
            return np.where(valid[:, None], values, self.null())
        if block is None or len(valid) == 1:
            return np.broadcast_to(self.null(), (len(valid), self.size))
        # A third party's clip may fail on a whole block because of one row.
        return self._clip_singly(block, valid)

    def _clip_singly(self, block: Any, valid: NDArray[np.bool_]) -> NDArray[Any]:
        if block is None:
            return self._clip(None, valid)
        return np.concatenate(
            [
                self._clip(record_at(block, slice(i, i + 1)), valid[i : i + 1])
                for i in range(len(valid))
            ]
        )

    def _clipped(self, block: Any, valid: NDArray[np.bool_]) -> NDArray[Any] | None:
        """The contributions of a block, or None where it cannot be clipped as a whole."""
        if self.own and _of_numbers(block):
            try:  # our own code, on plain numbers, warns of nothing
                return self.function(block)
            except (ValueError, TypeError, ArithmeticError):
                return None
        values = self.checked.attempt(block, len(valid))
        if values is not None:
            self.checked.check(block, valid, values)
        return values


def _of_numbers(block: Any) -> bool:
    if type(block) is np.ndarray:
        return block.dtype in _PLAIN
    return type(block) is tuple and bool(block) and all(map(_of_numbers, block))


def clipping_of(domain: Domain[Any], grid: Grid | None) -> Clipping:
    """To integers in steps of ``grid``; to doubles without one."""
    if _is_builtin(domain):
        return _clipping_once(cast(Any, domain), grid)
    return _clipping_for(domain, grid)


@lru_cache(maxsize=1024)
def _clipping_once(domain: Domain[Any], grid: Grid | None) -> Clipping:
    return _clipping_for(domain, grid)


def _clipping_for(domain: Domain[Any], grid: Grid | None) -> Clipping:
    if grid is None:

        def clip(block: Any) -> NDArray[Any]:
            return np.asarray(domain.clip(block), dtype=np.float64)

        checked = RowFunction(clip, "clip", code=domain)
        return Clipping(clip, domain.null, domain.size, 0, checked, _is_builtin(domain))
    exact = cast(IntegerDomain[Any], domain)

    def integers(block: Any) -> NDArray[Any]:
        return np.asarray(exact.integers(block, grid), dtype=np.int64)

    checked = RowFunction(integers, "clip", code=domain)
    null = partial(exact.null_integers, grid)
    largest = (
        min(int(exact.integer_bound(grid)["largest"]), 2**61) if _is_builtin(domain) else 2**61
    )
    return Clipping(integers, null, domain.size, largest, checked, _is_builtin(domain))


def _is_builtin(domain: Domain[Any]) -> bool:
    """Whether what follows from a domain can be kept: it is ours, so equal ones are alike."""
    return type(domain) in SHIPPED
