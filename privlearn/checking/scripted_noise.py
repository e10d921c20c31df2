"""Noise that is written down in advance, behind the interface of a pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Never, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import CheckError
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Kind, Pool, Variates
from privlearn.noise.exact.tables import FLOOR_BITS
from privlearn.rows.domains import Array

_ODD = 0x9E3779B97F4A7C15
_TAIL_BITS = 64


class PoolSource(Protocol):
    """What receipts ask for the noise of a spend: a `NoiseSource`, or a script in its place."""

    @property
    def name(self) -> str: ...
    @property
    def simulated(self) -> bool: ...

    def pool(self) -> Pool:
        """The noise of one spend."""


@dataclass(frozen=True)
class ScriptedVariates:
    """Numbers that are given on 2^−40, with 64 further bits that no two of a run have in common."""

    kind: Kind
    floors: Floors
    first: int

    def __len__(self) -> int:
        return len(self.floors)

    def refined(self, i: int, bits: int) -> int:
        tail = (self.first + i + 1) * _ODD & (1 << _TAIL_BITS) - 1
        known = (int(self.floors[i]) << _TAIL_BITS) + tail
        drop = FLOOR_BITS + _TAIL_BITS - bits
        return known >> drop if drop >= 0 else known << -drop

    def part(self, start: int, stop: int) -> ScriptedVariates:
        return ScriptedVariates(self.kind, self.floors[start:stop], self.first + start)


class ScriptedPool(ABC):
    """A noise source, and its own pool: every spend goes on where the one before it stopped."""

    name, simulated = "scripted", True

    def __init__(self) -> None:
        self.drawn: Counter[Kind] = Counter()
        """How many numbers of each kind were asked for."""

    def pool(self) -> Self:
        return self

    @abstractmethod
    def numbers(self, kind: Kind, n: int) -> Array:
        """The next ``n`` standard variates."""

    def floors(self, kind: Kind, n: int) -> Floors:
        """⌊2^40 z⌋, for numbers rounded to 2^−40."""
        numbers = self.numbers(kind, n)
        self.drawn[kind] += n
        return np.rint(np.ldexp(numbers, FLOOR_BITS)).astype(np.int64)

    def variates(self, kind: Kind, n: int) -> Variates:
        first = self.drawn.total()
        return cast(Variates, ScriptedVariates(kind, self.floors(kind, n), first))

    def words(self, n: int) -> NDArray[np.uint64]:
        """Refused: nothing is known of what uniform words decide."""
        return self._refuse()

    def more(self) -> int:
        return self._refuse()

    def _refuse(self) -> Never:
        raise CheckError("uniform words decide, so noise is not just added: check it by sampling")


class Script(ScriptedPool):
    """Hands out numbers of whatever kind in one row, and zeros behind them."""

    def __init__(self, numbers: Array) -> None:
        super().__init__()
        self._numbers = numbers

    def numbers(self, kind: Kind, n: int) -> Array:
        first, taken = self.drawn.total(), np.zeros(n)
        part = self._numbers[first : first + n]
        taken[: len(part)] = part
        return taken


class ScriptedCalls(ScriptedPool):
    """Hands out numbers of one kind call by call, and zeros behind them."""

    def __init__(self, kind: Kind, calls: Sequence[Array]) -> None:
        super().__init__()
        self._kind, self._calls = kind, calls
        self.sizes: list[int] = []
        """Of the calls."""

    def numbers(self, kind: Kind, n: int) -> Array:
        if kind != self._kind:
            raise CheckError(f"{kind} numbers decide, where the spend states {self._kind} noise")
        self.sizes.append(n)
        if len(self.sizes) > len(self._calls):
            return np.zeros(n)
        scripted = np.asarray(self._calls[len(self.sizes) - 1]).reshape(-1)
        if len(scripted) != n:
            raise CheckError(
                f"noise is drawn for {n} candidates on some data and {len(scripted)} on others: "
                "how many there are must follow from public numbers"
            )
        return scripted.copy()


class LimitedSource:
    """A noise source with a limit on its draws, for a mechanism that draws until a value suits it.
    Numbers that are written down in advance may never suit it, and the run would not end."""

    name, simulated = "scripted", True

    def __init__(self, source: PoolSource, draws: int) -> None:
        self._source, self._most, self._left = source, draws, draws

    def pool(self) -> Pool:
        return cast(Pool, _LimitedPool(self._source.pool(), self))

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise CheckError(
                f"one run asks for noise more than {self._most} times, so that the noise may be "
                "chosen by what it gives: check it by sampling"
            )


@dataclass(frozen=True)
class _LimitedPool:
    _pool: Pool
    _limit: LimitedSource

    def __getattr__(self, name: str) -> Any:
        self._limit.count()
        return getattr(self._pool, name)
