"""The noise of one spend: uniform words, the variates made of them, and the pool that holds them.

Variates are known to 2^-40, exactly, and to as many more bits as somebody asks for.  A pool draws
them after its spend, ahead of use, and hands each out once.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Never, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import NoiseSamplerError, TokenCopyError
from privlearn.noise.exact.fast import Extended, Floors, Halves, WordArray, floors
from privlearn.noise.exact.slow import Bits, exact_floor
from privlearn.noise.exact.tables import FLOOR_BITS, WORD_BITS, Table, shipped_tables
from privlearn.storage import processes
from privlearn.storage.exclusive import Exclusive
from privlearn.values.validate import count

_ZEROS = bytes(1 << 16)
_SPARE = 2  # Words at the end of a buffer, where the cipher may want a block less a byte (16 − 1)
_WIPED = "a keystream cannot be used in a forked process: its key was wiped"
_SECOND_STREAM = 1 << 127
"""Where the counter of the further bits begins: 2¹²⁷ blocks away, so that streams never meet."""


class Words(Protocol):
    """A source of independent fair bits."""

    def words(self, n: int) -> WordArray:
        """The next ``n`` uniform words."""

    def more(self) -> int:
        """64 further bits, of a stream of their own: who takes them moves no later word."""


@final
class Keystream:
    """AES-256 in counter mode under a fresh key of the system, which a forked child wipes."""

    __slots__ = ("__weakref__", "_first", "_key", "_second")

    def __init__(self) -> None:
        self._key = bytearray(secrets.token_bytes(32))
        self._first: Any = _encryptor(self._key, 0)
        self._second: dict[None, Any] = {}
        processes.INHERITED.add(self)

    def words(self, n: int) -> WordArray:
        if not processes.MARK[0]:
            processes.in_child()
        if self._first is None:
            raise TokenCopyError(_WIPED)
        zeros = _ZEROS[: 8 * n] if 8 * n <= len(_ZEROS) else bytes(8 * n)
        words = np.empty(n + _SPARE, dtype=np.uint64)  # which can be overwritten
        self._first.update_into(zeros, words.view(np.uint8).data)
        return words[:n]

    def more(self) -> int:
        if not processes.MARK[0]:
            processes.in_child()
        if self._first is None:
            raise TokenCopyError(_WIPED)
        # setdefault: of two threads that find none, both take the one that was first
        second = self._second.get(None) or self._second.setdefault(
            None, _encryptor(self._key, _SECOND_STREAM)
        )
        return int.from_bytes(second.update(_ZEROS[:8]), "little")

    def in_child(self) -> None:
        """Overwrites the key in a forked child, and lets go of what was made of it."""
        self._first = None
        self._key[:] = bytes(len(self._key))
        self._second.clear()


@cache
def _cipher() -> tuple[Any, Any, dict[int, Any]]:
    """Loaded when noise is first drawn; and the mode that begins at each counter."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    first, second = (modes.CTR(start.to_bytes(16, "big")) for start in (0, _SECOND_STREAM))
    return Cipher, algorithms.AES, {0: first, _SECOND_STREAM: second}


def _encryptor(key: bytes | bytearray, start: int) -> Any:
    cipher, aes, counters = _cipher()
    return cipher(aes(key), counters[start]).encryptor()


@final
class SeededWords:
    """Reproducible words for simulations; they protect nobody."""

    __slots__ = ("_first", "_second", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = np.random.SeedSequence(seed)
        self._first = np.random.PCG64(self._seed)
        self._second: np.random.PCG64 | None = None

    def words(self, n: int) -> WordArray:
        return self._first.random_raw(n)

    def more(self) -> int:
        if self._second is None:
            self._second = np.random.PCG64(self._seed.spawn(1)[0])
        return int(self._second.random_raw())


Kind = Literal["normal", "laplace", "exponential", "gumbel"]
"""N(0, 1); density e^(−|z|)/2; density e^(−z), z > 0; distribution function e^(−e^(−z))."""

_ONE = np.uint64(1)


@final
@dataclass(slots=True)  # a frozen one takes longer to make
class Variates:
    """Independent variates z_0, …, z_(n−1) of one kind.

    Args:
        kind: of all of them.
        words: one for each: bits 1 to 63 begin V, the last one is a sign, or says which half.
        floors: ⌊2^40 z_i⌋, int64, shape (n,); ends at ±2^62.
        more: 64 further bits.
        extended: the bits of V of those that took more than their word.
    """

    kind: Kind
    words: WordArray
    floors: Floors
    more: Callable[[], int]
    extended: Extended

    def __len__(self) -> int:
        return len(self.words)

    def refined(self, i: int, bits: int) -> int:
        """⌊2^bits z_i⌋ for any number of bits; the bits of V that it takes are kept for later."""
        word = int(self.words[i])
        known = self.extended.setdefault(i, Bits(word >> 1, WORD_BITS))
        table, turned = table_of(self.kind, word & 1)
        found = exact_floor(table.family, known, self.more, bits)
        return ~found if turned else found

    def part(self, start: int, stop: int) -> Variates:
        """z_start, …, z_(stop−1); what is refined in a part is to be asked of that part only."""
        kept = {i - start: bits for i, bits in self.extended.items() if start <= i < stop}
        return Variates(self.kind, self.words[start:stop], self.floors[start:stop], self.more, kept)

    def joined(self, later: Variates) -> Variates:
        """These, and then ``later`` ones of the same kind and source."""
        n = len(self)
        return Variates(
            self.kind,
            np.concatenate([self.words, later.words]),
            np.concatenate([self.floors, later.floors]),
            self.more,
            {**self.extended, **{n + i: bits for i, bits in later.extended.items()}},
        )


def variates(kind: Kind, source: Words, n: int) -> Variates:
    """``n`` fresh variates."""
    words = source.words(n)
    if kind == "gumbel":
        found, extended = floors(_gumbel(), words, source.more)
        found ^= (words & _ONE).view(np.int64) - 1  # minus the lower half's table
    else:
        table = table_of(kind, 0)[0]
        found, extended = floors(table, words, source.more)
        if kind in ("normal", "laplace"):
            found ^= -(words & _ONE).view(np.int64)  # ⌊−y⌋ = −⌊y⌋ − 1 for y that is no integer
    return Variates(kind, words, found, source.more, extended)


@cache
def _gumbel() -> Halves:
    return Halves.of(table_of("gumbel", 0)[0], table_of("gumbel", 1)[0])


def table_of(kind: Kind, last_bit: int) -> tuple[Table, bool]:
    """The table for a word, and whether z is minus the table's f."""
    normal, exponential, top, bottom = shipped_tables()
    if kind == "gumbel":
        return (top, False) if last_bit else (bottom, True)
    table = normal if kind == "normal" else exponential
    return table, kind in ("normal", "laplace") and bool(last_bit)


STEP = 2.0**-FLOOR_BITS
"""Of the floors."""
_TRIED = 64  # Words of each table, in the test before first use; it takes some 10 ms


@cache
def check_sampler() -> None:
    """Compares both paths on some words, once in a process: a broken platform would differ.

    Raises:
        NoiseSamplerError: they differ, or the tables are not those that were shipped.
    """
    source = SeededWords(0)
    for table in shipped_tables():
        words = source.words(_TRIED)
        found, _ = floors(table, words, source.more)
        for word, fast in zip(words.tolist(), found.tolist(), strict=True):
            known = Bits(word >> 1, WORD_BITS)
            if exact_floor(table.family, known, source.more, FLOOR_BITS) != fast:
                raise NoiseSamplerError(
                    f"the {table.family.name} noise of word {word:#x} is {fast} by the table and "
                    "something else by integer arithmetic: NumPy's double arithmetic on this "
                    "machine is not IEEE 754 to nearest, so that no noise is drawn here"
                )


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


@final
class NoiseSource:
    """Where the noise of every spend comes from; it cannot be copied.

    `secure` draws from cryptographic keystreams, a fresh one for each spend.  `simulation` is
    reproducible; ledgers made with it are never certified.  Either way the same code turns words
    into noise (`privlearn.noise.exact`), which is tried against its slow path before first use.

    Raises:
        NoiseSamplerError: the tables are damaged, or this machine's arithmetic is not IEEE 754.
    """

    __slots__ = ("_words", "name", "simulated")

    def __init__(self, words: Words | None, name: str, simulated: bool):
        check_sampler()
        self._words, self.name, self.simulated = words, name, simulated

    @classmethod
    def secure(cls) -> NoiseSource:
        """Noise for real releases, from AES-256 in counter mode."""
        return cls(None, "secure keystream", simulated=False)

    @classmethod
    def simulation(cls, seed: int) -> NoiseSource:
        """Reproducible noise for experiments and tests; protects nobody."""
        words = SeededWords(count(seed=seed, at_least=0))
        return cls(words, f"simulation, seed {seed}", simulated=True)

    def pool(self) -> NoisePool:
        """The noise of one spend, asked for after it; of a simulation, the next of its seed."""
        return NoisePool(Keystream() if self._words is None else self._words)

    def __reduce__(self) -> str:
        raise TokenCopyError("a noise source cannot be copied or pickled")


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


def bernoulli(words: WordArray, numerator: int) -> NDArray[np.bool_]:
    """True with probability numerator·2^−52, exactly, of one word each."""
    if not 0 <= numerator <= 1 << _UNIFORM_BITS:
        raise ValueError(f"numerator = {numerator!r}: must lie in 0..2^{_UNIFORM_BITS}")
    return np.asarray((words >> np.uint64(64 - _UNIFORM_BITS)) < np.uint64(numerator))


def uniform(words: WordArray) -> NDArray[np.float64]:
    """Doubles in (0, 1) on a grid of 2^−52, of one word each, for what needs no exact law."""
    numbers = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-_UNIFORM_BITS
    return numbers


def integers_of(pool: Pool, kind: Kind, shape: tuple[int, ...], bits: int) -> Floors:
    """⌊2^bits·Z⌋, exactly; bits <= 40."""
    found = pool.floors(kind, math.prod(shape)).reshape(shape)
    return found if bits == FLOOR_BITS else found >> (FLOOR_BITS - bits)


def doubles_of(pool: Pool, kind: Kind, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The middles of steps of 2^−40."""
    return np.asarray((pool.floors(kind, math.prod(shape)).reshape(shape) + 0.5) * STEP)
