"""The variates of one spend: drawn after it, ahead of use, and used once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Never, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import TokenCopyError
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.variates import Kind, Variates, variates
from privlearn.noise.exact.words import Words
from privlearn.storage import processes
from privlearn.storage.exclusive import Exclusive

_FIRST, _AHEAD = 256, 4096
"""Variates that are drawn at a time, first and later: a release's time then says little of its own
noise, and small draws cost little."""
_ROWS_AHEAD = 1024
_UNIFORM_BITS = 52


class Ahead(Protocol):
    """Rows that are drawn together, and used part by part."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any: ...

    def in_child(self) -> None:
        """Overwrites all of them in a forked child."""


A = TypeVar("A", bound=NDArray[Any] | Ahead)


class Pool(Protocol):
    """Where a mechanism's noise comes from, after its spend."""

    def variates(self, kind: Kind, n: int) -> Variates:
        """``n`` variates that can be refined."""

    def floors(self, kind: Kind, n: int) -> Floors:
        """⌊2^40 z⌋ of ``n`` variates, int64."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Uniform words, for choices between finitely many things."""

    def more(self) -> int:
        """64 further bits, of a stream of their own."""


@final
class NoisePool:
    """Variates from a source of words that nobody else draws from.

    Made after the spend that pays for them, under a key of its own: a process image that is
    restored holds no noise of a later spend.  Used by one thread at a time, in the process that
    made it; a forked child overwrites what is ahead.
    """

    __slots__ = ("__weakref__", "_ahead", "_lock", "_next", "_rows", "_source")

    def __init__(self, source: Words) -> None:
        self._source = source
        self._lock = Exclusive("a pool of noise")
        self._ahead: dict[Kind, Variates] = {}
        self._next: dict[Kind, int] = {}
        self._rows: dict[Hashable, tuple[NDArray[Any] | Ahead | None, int, int]] = {}
        """Rows of a law, of which some are left; how many were used, and how many were made."""
        processes.INHERITED.add(self)

    def variates(self, kind: Kind, n: int) -> Variates:
        """The next ``n`` variates of one kind; the same whatever the sizes of the calls are.

        Words go to kinds in blocks, so that what is drawn of one kind depends on when another is
        asked for.

        Raises:
            TokenCopyError: in a forked process.
        """
        with self._lock:
            start = self._reserve(kind, n)
            return self._ahead[kind].part(start, start + n)

    def floors(self, kind: Kind, n: int) -> Floors:
        """⌊2^40 z⌋ of the next ``n`` variates, int64, the caller's own."""
        with self._lock:
            start = self._reserve(kind, n)
            return self._ahead[kind].floors[start : start + n].copy()  # not the block it is from

    def _reserve(self, kind: Kind, n: int) -> int:
        """The place of the first of ``n`` variates ahead, which nobody else will get."""
        start = self._next.get(kind)
        if start is None:
            self._ahead[kind] = variates(kind, self._source, max(n, _FIRST))
            start = 0
        elif start + n > len(self._ahead[kind]):
            left = self._ahead[kind].part(start, len(self._ahead[kind]))
            fresh = variates(kind, self._source, max(n - len(left), _AHEAD))
            self._ahead[kind], start = left.joined(fresh) if len(left) else fresh, 0
        self._next[kind] = start + n
        return start

    def words(self, n: int) -> NDArray[np.uint64]:
        with self._lock:
            return self._source.words(n)

    def rows(self, law: Hashable, n: int, wide: int, make: Callable[[int], A]) -> A:
        """The next ``n`` rows of what ``make`` draws from this pool, some of them ahead.

        Args:
            law: names all that ``make`` depends on.
            n: how many; so many are made the first time, as most spends ask once, and then up to
                twice as many as the last time, or 1024.  Rows too few for a call stay unused.
            wide: numbers in a row; of more than 4 fewer rows are made.
            make: so many rows: an array, or what overwrites itself in a forked child.

        Raises:
            TokenCopyError: in a forked process.
        """
        with self._lock:  # whoever comes meanwhile finds none, and makes others
            block, start, made = self._rows.pop(law, (None, 0, 0))
        stop = start + n
        if block is None or stop > made:
            most = min(2 * made, _ROWS_AHEAD, _AHEAD // max(wide, 1))
            made = n * max(most // max(n, 1), 1)
            block, start, stop = make(made), 0, n
        found = block[start:stop]
        if isinstance(found, np.ndarray):
            found = found.copy()  # not the block it is from
        with self._lock:
            self._rows[law] = block if stop < made else None, stop, made
        return cast(A, found)

    def more(self) -> int:
        """64 further bits, of a stream of their own."""
        if self._lock.made_in != processes.here():
            raise self._lock.refused()
        return self._source.more()

    def in_child(self) -> None:
        """Overwrites what was drawn ahead, in a forked child.

        What was handed out stays, but for rows that are parts of a block with further ones: no
        receipt lets a value leave in a child.
        """
        for kind, ahead in self._ahead.items():
            unused = ahead.part(self._next.get(kind, 0), len(ahead))
            unused.words[:] = 0
            unused.floors[:] = 0
        for block, _, _ in self._rows.values():
            if isinstance(block, np.ndarray):
                block[:] = 0
            elif block is not None:
                block.in_child()
        self._ahead, self._next, self._rows = {}, {}, {}

    def __reduce__(self) -> Never:
        raise TokenCopyError("a pool of noise cannot be copied or pickled")


def below(pool: Pool, bound: int, n: int) -> NDArray[np.int64]:
    """Uniform integers 0..bound−1, exactly: words beyond the last multiple of ``bound`` are left.

    Args:
        pool: of words.
        bound: 1..2^32.
        n: how many.
    """
    if not 1 <= bound <= 2**32:
        raise ValueError(f"bound = {bound!r}: must lie in 1..2^32")
    last = np.uint64((1 << 64) // bound * bound - 1)
    found = np.empty(n, np.int64)
    places: Any = np.arange(n)
    while len(places):
        words = pool.words(len(places))
        kept = words <= last
        found[places[kept]] = (words[kept] % np.uint64(bound)).astype(np.int64)
        places = places[~kept]
    return found


def bernoulli(pool: Pool, numerator: int, n: int) -> NDArray[np.bool_]:
    """True with probability numerator·2^−52, exactly."""
    if not 0 <= numerator <= 1 << _UNIFORM_BITS:
        raise ValueError(f"numerator = {numerator!r}: must lie in 0..2^{_UNIFORM_BITS}")
    return np.asarray((pool.words(n) >> np.uint64(64 - _UNIFORM_BITS)) < np.uint64(numerator))


def uniform(pool: Pool, n: int) -> NDArray[np.float64]:
    """Doubles in (0, 1) on a grid of 2^−52, for what needs no exact law."""
    numbers = (pool.words(n) >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-_UNIFORM_BITS
    return numbers
