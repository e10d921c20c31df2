"""⌊2^k f(V)⌋: the table against integers, integers against Arb, and both at the worst words."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import get_args

import flint
import numpy as np
import pytest
from scipy import stats
from table_building import BALL_TAILS

from privlearn.noise.exact.fast import Halves, WordArray, floors
from privlearn.noise.exact.pool import Kind, SeededWords, Variates, table_of, variates
from privlearn.noise.exact.slow import Bits, exact_floor
from privlearn.noise.exact.tables import FLOOR_BITS, SAMPLER, Table, shipped_tables
from privlearn.noise.exact.tails import FAMILIES, Family

KINDS: tuple[Kind, ...] = get_args(Kind)
by_table = pytest.mark.parametrize("table", shipped_tables(), ids=lambda table: table.family.name)
by_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
by_kind = pytest.mark.parametrize("kind", KINDS)


def no_more() -> int:
    raise AssertionError("the word decides")


def bisected(family: Family, v: flint.arb, k: int) -> int:
    """⌊2^k f(v)⌋ by halving, in balls of 500 bits."""
    old, flint.ctx.prec = flint.ctx.prec, 500
    try:
        low, high = -(1 << k), 64 << k
        while high - low > 1:
            middle = (low + high) // 2
            height = BALL_TAILS[family.name].of(flint.arb(middle) / flint.arb(2) ** k)
            low, high = (middle, high) if height > v else (low, middle)
        return low
    finally:
        flint.ctx.prec = old


def slow(table: Table, word: int, more: Callable[[], int]) -> int:
    return exact_floor(table.family, Bits(word >> 1, 63), more, FLOOR_BITS)


@by_table
def test_the_table_gives_what_integers_give(table: Table) -> None:
    source = SeededWords(3)
    words = source.words(3000)
    words[:1000] >>= np.arange(1000, dtype=np.uint64) % np.uint64(50)  # small V, too
    found, extended = floors(table, words, source.more)
    for i, word in enumerate(words.tolist()):
        known = extended.get(i, Bits(word >> 1, 63))
        assert exact_floor(table.family, known, source.more, FLOOR_BITS) == found[i]


class _Ends:
    """Random words, and the smallest and largest ones, of which many take the slow path."""

    def __init__(self) -> None:
        self._seeded = SeededWords(5)
        self.more = self._seeded.more

    def words(self, n: int) -> WordArray:
        words, place = self._seeded.words(n), np.arange(n)
        words[place % 60 == 1] >>= np.uint64(40)
        words[place % 60 == 2] |= np.uint64(2**64 - 2**12)
        words[:8] = [0, 1, 2, 3, 2**64 - 1, 2**64 - 2, 2**64 - 3, 2**64 - 4]
        return words


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("normal", "21cdd505fe06b344"),
        ("laplace", "1f7ba6b780248007"),
        ("exponential", "a215ffc0473addd9"),
        ("gumbel", "b85d7e80f8b23f73"),
    ],
)
def test_the_same_words_give_the_same_noise(kind: Kind, digest: str) -> None:
    """As long as the sampler has this name: who changes these changes `SAMPLER`, too."""
    assert SAMPLER == "inversion/1"
    drawn = variates(kind, _Ends(), 9000)
    slow_ones = [(i, bits.prefix, bits.count) for i, bits in drawn.extended.items()]
    assert len(slow_ones) > 100
    seen = hashlib.sha256(drawn.floors.astype("<i8").tobytes() + repr(slow_ones).encode())
    assert seen.hexdigest()[:16] == digest


def test_halves_in_one_draw_are_those_of_their_tables() -> None:
    top, bottom = (table_of("gumbel", bit)[0] for bit in (1, 0))
    source = _Ends()
    words = source.words(9000)
    found, extended = floors(Halves.of(bottom, top), words, SeededWords(1).more)
    more = SeededWords(1).more  # even words are first to take further bits
    for bit, table in enumerate((bottom, top)):
        places = np.flatnonzero(words & np.uint64(1) == bit)
        apart, bits = floors(table, words[places], more)
        assert (found[places] == apart).all()
        assert {int(places[i]): kept for i, kept in bits.items()} == {
            i: kept for i, kept in extended.items() if words[i] & np.uint64(1) == bit
        }


@by_family
def test_integers_give_what_halving_in_balls_gives(family: Family) -> None:
    rng = random.Random(5)
    for k in (3, 40, 100):
        for zeros in (0, 1, 5, 40):
            prefix = rng.getrandbits(200) >> zeros
            old, flint.ctx.prec = flint.ctx.prec, 500
            v = flint.arb(prefix) / flint.arb(2) ** 200
            flint.ctx.prec = old
            assert exact_floor(family, Bits(prefix, 200), no_more, k) == bisected(family, v, k)


@by_table
def test_words_beside_a_boundary(table: Table) -> None:
    """V = tail(m·2^−40) is where the floor changes; its word, and the ones beside it."""
    rng = random.Random(11)
    more = SeededWords(1).more
    least = {"gumbel-top": 0.37, "gumbel-bottom": -0.36}.get(table.family.name, 0.0)
    most = {"gumbel-bottom": 2.8}.get(table.family.name, 5.3)
    for _ in range(60):
        m = int(rng.uniform(least, most) * 2**FLOOR_BITS)
        boundary = table.family.tail(m, FLOOR_BITS, 63)[0]
        words = np.array([max(boundary + i, 1) << 1 for i in (-2, -1, 0, 1, 2)], dtype=np.uint64)
        found, extended = floors(table, words, more)
        for i, word in enumerate(words.tolist()):
            known = extended.get(i, Bits(word >> 1, 63))
            old, flint.ctx.prec = flint.ctx.prec, 500
            middle = (flint.arb(known.prefix) + 0.5) / flint.arb(2) ** known.count
            flint.ctx.prec = old
            assert found[i] == bisected(table.family, middle, FLOOR_BITS)


@by_family
@pytest.mark.parametrize("zeros", [64, 130, 700])
def test_far_tails_are_reached(family: Family, zeros: int) -> None:
    """Beyond 8.57 standard deviations, where uniforms of 52 bits end."""
    bits = Bits((1 << 62) + 12345, 63 + zeros)
    m = exact_floor(family, bits, no_more, FLOOR_BITS)
    low, high = (family.tail(m + i, FLOOR_BITS, 63 + zeros + 40) for i in (1, 0))
    assert low[1] <= bits.prefix << 40 <= high[0]
    assert m > {"gumbel-bottom": 3.5}.get(family.name, 8.9) * 2**FLOOR_BITS


@by_family
def test_nothing_but_zeros_waits_for_a_one(family: Family) -> None:
    supply = iter([0, 0, 1 << 20])
    bits = Bits(0, 63)
    exact_floor(family, bits, lambda: next(supply), 10)
    assert (bits.prefix, bits.count) == (1 << 20, 63 + 192)


@pytest.mark.parametrize("guess", [-1e300, 0.0, 7.25, 1e300, float("nan")])
@by_family
def test_a_bad_guess_only_takes_longer(family: Family, guess: float) -> None:
    bad = Family(family.name, family.tail, lambda v: guess)
    for prefix in (3, 1 << 30, (1 << 62) + 99, (1 << 63) - 1):
        wanted = exact_floor(family, Bits(prefix, 63), SeededWords(2).more, 12)
        assert exact_floor(bad, Bits(prefix, 63), SeededWords(2).more, 12) == wanted


@by_family
@pytest.mark.parametrize("k", [FLOOR_BITS, 60, 130, 300])
def test_a_floor_takes_few_comparisons(family: Family, k: int) -> None:
    """Also where the first bits of V are zeros: bits beyond them move it by far."""
    asked: list[int] = []

    def tail(m: int, bits: int, precision: int) -> tuple[int, int]:
        asked.append(m)
        return family.tail(m, bits, precision)

    counted, words = Family(family.name, tail, family.guess), SeededWords(3)
    prefixes = [1, 5, 1 << 20, 1 << 44, 3 << 60] * 4
    for prefix in prefixes:
        exact_floor(counted, Bits(prefix, 63), words.more, k)
    assert 2 * len(prefixes) <= len(asked) <= (4 if k == FLOOR_BITS else 20) * len(prefixes)


@by_kind
def test_refining_agrees_with_what_was_drawn(kind: Kind) -> None:
    drawn = variates(kind, SeededWords(8), 300)
    for i in range(len(drawn)):
        fine = drawn.refined(i, 130)
        assert fine >> 90 == drawn.floors[i]
        assert drawn.refined(i, 20) == fine >> 110
        assert drawn.refined(i, 130) == fine


def undecided_word(family: Family) -> int:
    """A word whose 63 bits do not decide the floor: V = tail(m·2^−40) lies among its values."""
    return (family.tail(1 << FLOOR_BITS, FLOOR_BITS, 200)[0] >> 137) << 1 | 1


class _OneWord:
    """A source of one word, and of further bits."""

    def __init__(self, word: int, seed: int) -> None:
        self._word, self._more = word, SeededWords(seed).more

    def words(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.full(n, self._word, dtype=np.uint64)

    def more(self) -> int:
        return self._more()


@pytest.mark.parametrize(("kind", "place"), [("normal", 0), ("exponential", 1), ("gumbel", 2)])
def test_a_slow_draw_keeps_its_bits(kind: Kind, place: int) -> None:
    """Else what is drawn, and what it is refined to, could be of two different V."""
    table = shipped_tables()[place]
    source = _OneWord(undecided_word(table.family), 4)
    drawn = variates(kind, source, 64)
    assert set(drawn.extended) == set(range(64))
    assert len(set(drawn.floors.tolist())) == 2
    for i in range(64):
        assert drawn.refined(i, 120) >> 80 == drawn.floors[i]
    dropped = Variates(kind, drawn.words, drawn.floors, drawn.more, {})  # the broken variant
    assert any(dropped.refined(i, 120) >> 80 != dropped.floors[i] for i in range(64))


def test_parts_and_joins_keep_bits_at_their_places() -> None:
    source = _OneWord(undecided_word(FAMILIES[0]), 4)
    drawn = variates("normal", source, 20)
    again = drawn.part(0, 7).joined(drawn.part(7, 20))
    assert (again.floors == drawn.floors).all()
    assert again.extended == drawn.extended
    assert drawn.part(5, 9).extended == {i: drawn.extended[5 + i] for i in range(4)}


LAWS = {
    "normal": stats.norm,
    "laplace": stats.laplace,
    "exponential": stats.expon,
    "gumbel": stats.gumbel_r,
}


@by_kind
def test_the_law(kind: Kind) -> None:
    """χ² over 1,000 cells of equal probability; its low bits, too."""
    n, cells = 1_000_000, 1000
    drawn = variates(kind, SeededWords(20 + KINDS.index(kind)), n).floors
    levels = LAWS[kind].ppf(np.arange(1, cells) / cells)
    counts = np.bincount(np.searchsorted(levels, (drawn + 0.5) * 2.0**-40), minlength=cells)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.chisquare(np.bincount(drawn & 1023, minlength=1024)).pvalue > 1e-3


@by_kind
def test_a_law_that_is_a_little_off_is_seen(kind: Kind) -> None:
    n, cells = 1_000_000, 1000
    drawn = variates(kind, SeededWords(20 + KINDS.index(kind)), n).floors * 1.02
    levels = LAWS[kind].ppf(np.arange(1, cells) / cells)
    counts = np.bincount(np.searchsorted(levels, (drawn + 0.5) * 2.0**-40), minlength=cells)
    assert stats.chisquare(counts).pvalue < 1e-6
