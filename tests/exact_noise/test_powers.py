"""⌊2^k z⌋ of vectors in ℓp: doubles against integers, integers against mpmath, and the law."""

from __future__ import annotations

import math
from typing import ClassVar, get_args

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privlearn.noise import GeneralizedGaussianNoise
from privlearn.noise.exact import powers
from privlearn.noise.exact.fast import WordArray
from privlearn.noise.exact.near import NEAR_BITS, TOO_LARGE, near, nearly
from privlearn.noise.exact.pool import Kind, NoisePool, SeededWords, Variates, below, variates
from privlearn.noise.exact.powers import (
    Sizes,
    _Vectors,
    as_doubles,
    pairwise,
    power_vectors,
)
from privlearn.noise.exact.real_powers import RealPower, integer_power, real_power

SHAPES: list[tuple[int, int, float]] = [
    (30, 1, 3),
    (30, 2, 4),
    (20, 15, 6),
    (5, 60, 11),
    (3, 7, 1000),
]
SHAPES += [(30, 1, 2.5), (20, 15, 2.7), (5, 60, 17.3), (3, 7, 999.9)]
by_shape = pytest.mark.parametrize(("n", "dim", "p"), SHAPES)


class _Small:
    """Words with many leading zeros, and so uniform numbers near 0 and exponentials up to 40."""

    def __init__(self, seed: int) -> None:
        self._inner = SeededWords(seed)

    def words(self, n: int) -> WordArray:
        words = self._inner.words(n)
        words >>= self._inner.words(n) % np.uint64(60)
        return words

    def more(self) -> int:
        return self._inner.more()


def drawn(n: int, dim: int, p: float, seed: int = 0, *, small: bool = False) -> _Vectors:
    source = _Small(seed) if small else SeededWords(seed)
    return _Vectors.drawn(NoisePool(source), n, dim, p)


def oracle(vectors: _Vectors, row: int, bits: int) -> list[int]:
    """⌊2^bits z⌋ of one vector, with 300 bits of everything it was made from."""
    p, dim, places = (
        vectors.sizes.power.p,
        vectors.dim,
        range(row * vectors.dim, (row + 1) * vectors.dim),
    )
    with mpmath.workprec(1200):
        x = [mpmath.mpf(vectors.sizes.between(i, 300)[0]) / 2**300 for i in places]
        square = mpmath.mpf(0)
        for i in range(row * (dim // 2), (row + 1) * (dim // 2)):
            square += mpmath.mpf(vectors.halves.refined(i, 300)) / 2**299
        if dim % 2:
            square += (mpmath.mpf(vectors.odd.refined(row, 300)) / 2**300) ** 2
        length = mpmath.fsum(v ** mpmath.mpf(p) for v in x) ** (1 / mpmath.mpf(p))
        signs = [-1 if int(vectors.sizes.words[i]) & 1 else 1 for i in places]
        ratio = mpmath.sqrt(square) / length * mpmath.mpf(2) ** bits
        return [int(mpmath.floor(s * v * ratio)) for s, v in zip(signs, x, strict=True)]


@by_shape
@pytest.mark.parametrize("small", [False, True])
def test_every_coordinate_is_the_floor_of_the_real_vector(
    n: int, dim: int, p: float, small: bool
) -> None:
    n = min(n, 45 // dim + 1) if small else n
    vectors = drawn(n, dim, p, small=small)
    found = vectors.floors(40)
    for row in range(0, n, 3):
        assert found[row].tolist() == oracle(vectors, row, 40)
    finer = vectors.floors(34)
    assert np.array_equal(found >> 6, finer)


@by_shape
def test_doubles_integers_and_refined_integers_agree(n: int, dim: int, p: float) -> None:
    vectors = drawn(n, dim, p, seed=1)
    fast, unsure = vectors._in_doubles(40)
    assert unsure.mean() < 0.15
    columns = list(range(dim))
    for row in range(n):
        exact = vectors._by_integers(row, columns, 40)
        sure = ~unsure[row]
        assert fast[row][sure].tolist() == [exact[i] for i in np.flatnonzero(sure).tolist()]
        nearly, closely = vectors._nearly(row), vectors._closely(row, 128)
        assert nearly is not None
        for (low, high), (least, most) in zip(
            [*nearly[0], *nearly[1:]], [*closely[0], *closely[1:]], strict=True
        ):
            # the nearer bounds lie within the others
            assert low << (128 - NEAR_BITS) <= most
            assert least <= high << (128 - NEAR_BITS)
            assert high - low < 2**9 * dim


@pytest.mark.parametrize("p", [3, 2.7])
def test_without_near_numbers_the_vectors_are_the_same(
    p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = power_vectors(NoisePool(SeededWords(5)), 6, 5, p, 40)
    monkeypatch.setattr(_Vectors, "_nearly", lambda self, row: None)
    monkeypatch.setattr(
        _Vectors, "_in_doubles", lambda self, bits: (np.zeros((6, 5), int), np.ones((6, 5), bool))
    )
    assert np.array_equal(power_vectors(NoisePool(SeededWords(5)), 6, 5, p, 40), plain)


def test_rounding_that_is_not_allowed_for_would_be_seen() -> None:
    """Of floors that doubles leave open, plain rounding gets some wrong."""
    vectors = drawn(400, 60, 6, seed=2)
    x = as_doubles(vectors.sizes.near).reshape(-1, 60)
    square = 2 * pairwise(as_doubles(vectors.near_halves[0]))
    length = pairwise(integer_power(x, 6)) ** (1 / 6)
    plain = np.floor(np.sqrt(square) * x / length * 2.0**40).astype(np.int64)
    signs = (vectors.sizes.words & np.uint64(1)).view(np.int64).reshape(plain.shape)
    assert 0 < np.count_nonzero((plain ^ -signs) != vectors.floors(40)) < 100


@pytest.mark.parametrize("p", [3, 8, 2.7])
def test_acceptance_by_integers_is_that_by_doubles(
    p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = Sizes.drawn(NoisePool(SeededWords(3)), 400, p)
    monkeypatch.setattr(RealPower, "doubles", lambda self, x: x * np.nan)
    exact = Sizes.drawn(NoisePool(SeededWords(3)), 400, p)
    assert np.array_equal(fast.words, exact.words)
    assert np.array_equal(fast.near, exact.near)
    assert fast.tails.keys() == exact.tails.keys() != set()
    # bits that a comparison took are the first bits of what is refined later
    for place in range(0, 400, 7):
        coarse, fine = exact.between(place, 128), exact.between(place, 300)
        assert coarse[0] <= fine[0] >> 172 <= fine[1] >> 172 <= coarse[1]
        low = int(exact.near[place]) - int(exact.off[place])
        assert low <= coarse[0] >> 128 - NEAR_BITS <= low + 2 * int(exact.off[place])


class _Kept(NoisePool):  # type: ignore[misc]  # final, but for what it gives
    """Keeps the variates that it gives."""

    given: ClassVar[list[Variates]] = []

    def variates(self, kind: Kind, n: int) -> Variates:
        self.given.append(super().variates(kind, n))
        return self.given[-1]


def wrongly_accepted(p: float, seed: int) -> int:
    """Of some proposals, by 160 bits of all variates."""
    pool = _Kept(SeededWords(seed))
    tried = Sizes._proposed(pool, 1000, real_power(p))
    levels, wrong = pool.given[-1], 0
    with mpmath.workprec(400):
        for place, accepted in enumerate(tried.accepted.tolist()):
            level = levels.refined(place, 160)
            if place in tried.tails:
                tails, j = tried.tails[place]
                level += tails.refined(j, 160)
            x = mpmath.mpf(tried.between(place, 160)[0]) / 2**160
            wrong += accepted != (mpmath.mpf(level) / 2**160 > x ** mpmath.mpf(p))
    return wrong


@pytest.mark.parametrize("p", [2.1, 2.7, 3, 9.8, 999.9])
def test_proposals_are_accepted_by_the_real_power(p: float) -> None:
    assert wrongly_accepted(p, 6) == 0


def test_a_power_of_the_integer_below_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealPower, "doubles", lambda self, x: integer_power(x, self.whole))
    assert wrongly_accepted(2.7, 6) > 0


@pytest.mark.parametrize("p", [2, 2.1, 2.9, 3, 6, 7.25, 40])
def test_sizes_have_the_density_e_to_the_minus_x_to_the_p(p: float) -> None:
    sizes = as_doubles(Sizes.drawn(NoisePool(SeededWords(int(p))), 40_000, p).near)
    assert stats.kstest(sizes**p, stats.gamma(1 / p).cdf).pvalue > 1e-3


def test_an_exponent_cut_to_fewer_digits_is_seen() -> None:
    sizes = as_doubles(Sizes.drawn(NoisePool(SeededWords(2)), 40_000, 2.5).near)
    for p in (2.25, 3.0):
        assert stats.kstest(sizes**p, stats.gamma(1 / p).cdf).pvalue < 1e-6


@pytest.mark.parametrize("p", [2, 2.7, 3, 6])
def test_wrong_weights_of_the_proposal_are_seen(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many from beyond 1 as there should be."""
    monkeypatch.setattr(powers, "below", lambda pool, bound, n: below(pool, bound, n) // 2)
    sizes = as_doubles(Sizes.drawn(NoisePool(SeededWords(int(p))), 40_000, p).near)
    assert stats.kstest(sizes**p, stats.gamma(1 / p).cdf).pvalue < 1e-9


@pytest.mark.parametrize("kind", get_args(Kind))
def test_near_numbers_are_as_near_as_they_say(kind: Kind) -> None:
    drawn = variates(kind, _Small(4), 200)
    if kind == "gumbel":
        with pytest.raises(ValueError, match="drawn: are Gumbel"):
            near(drawn)
        return
    found, off = near(drawn)
    assert 1 <= off.min() <= off.max() <= 17
    wrong = 0
    for i, (number, error) in enumerate(zip(found.tolist(), off.tolist(), strict=True)):
        exact = drawn.refined(i, NEAR_BITS)
        exact = max(exact, ~exact)
        if number == TOO_LARGE:
            assert exact >= 15 << NEAR_BITS
        else:
            assert number - error <= exact <= number + error
            wrong += number != exact
    assert wrong > 0, "they are not floors"
    for i, number in enumerate(nearly(drawn)):
        assert abs(number - drawn.refined(i, NEAR_BITS)) <= 18


def test_the_same_noise_whatever_the_sizes_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert power_vectors(NoisePool(SeededWords(1)), 0, 3, 3, 40).shape == (0, 3)
    assert power_vectors(NoisePool(SeededWords(1)), 3, 0, 3, 40).shape == (3, 0)
    monkeypatch.setattr(powers, "_NUMBERS", 8)
    few = power_vectors(NoisePool(SeededWords(1)), 2000, 3, 4, 34) * 2.0**-34
    norms = (np.abs(few) ** 4).sum(axis=1) ** 0.5
    assert stats.kstest(norms, "gamma", (1.5, 0, 2)).pvalue > 1e-3


@given(st.integers(1, 70), st.integers(2, 40))
def test_powers_and_sums_round_as_little_as_is_said(dim: int, p: int) -> None:
    x = np.random.default_rng(dim).exponential(size=dim) + 0.1
    found = float(pairwise(integer_power(x, p)[None])[0, 0])
    with mpmath.workprec(300):
        exact = mpmath.fsum(mpmath.mpf(v) ** p for v in x.tolist())
        assert abs(found - exact) <= exact * 1.01 * 2.0**-53 * (p - 1 + math.ceil(math.log2(dim)))


@pytest.mark.parametrize("kind", ["normal", "exponential"])
@pytest.mark.parametrize("word", [2**64 - 1, 2**64 - 2, 2**64 - 1024, 2**40, 1, 0])
def test_near_numbers_at_the_ends_of_the_table(kind: Kind, word: int) -> None:
    source = SeededWords(0)
    words = np.array([word], np.uint64)
    drawn = Variates(kind, words, np.zeros(1, np.int64), source.more, {})
    (number,) = nearly(drawn)
    assert abs(number - drawn.refined(0, NEAR_BITS)) <= 18


def test_vectors_are_drawn_ahead_and_handed_out_once() -> None:
    pool = NoisePool(SeededWords(3))
    noise = GeneralizedGaussianNoise(1.0, 4.0)
    single = [noise.integers(pool, (5,), 34) for _ in range(70)]
    single += list(noise.integers(pool, (100, 5), 34))
    assert len({row.tobytes() for row in single}) == 170
    assert noise.integers(pool, (0, 5), 34).shape == (0, 5)
    other = noise.integers(pool, (2, 5), 40)
    assert (other >> 6).tobytes() not in {row.tobytes() for row in single}
    norms = (np.abs(np.array(single) * 2.0**-34) ** 4).sum(axis=1) ** 0.5
    assert stats.kstest(norms, "gamma", (2.5, 0, 2)).pvalue > 1e-3


@pytest.mark.parametrize("p", [2.5, math.nextafter(3, 4), 1000 - 2**-43])
def test_exponents_between_integers_have_integers_too(p: float) -> None:
    noise = GeneralizedGaussianNoise(2.0, p)
    assert noise.unit == 2.0
    found = noise.integers(NoisePool(SeededWords(0)), (500, 4), 34) * 2.0**-34
    largest = np.abs(found).max(axis=1, keepdims=True)
    norms = largest[:, 0] * ((np.abs(found) / largest) ** p).sum(axis=1) ** (1 / p)
    assert stats.kstest(norms**2, "gamma", (2, 0, 2)).pvalue > 1e-3
