"""S of every factorisation, against all patterns of visits of small streams."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from visit_patterns import largest_move, patterns, toeplitz_matrix, tree_matrix

from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BinaryTree,
    BufferedToeplitz,
)
from privlearn.mechanisms.buffered_toeplitz import Decays
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.participation_norms import banded_norm, falling_norm, most_visits
from privlearn.mechanisms.row_scales import RowScales
from privlearn.mechanisms.toeplitz import toeplitz

Array = NDArray[np.float64]
RULES = [(most, apart) for most in (1, 2, 3, 4, 16) for apart in (1, 2, 3, 5, 20)]
SIZES = (1, 2, 5, 12, 16)
DECAYS: tuple[Decays, ...] = (
    ((0.3,), (0.6,)),
    ((0.02,), (0.9,)),
    ((0.5, 0.01), (0.7, 0.3)),
    ((0.4, 0.1, 0.001), (0.99, 0.2, 0.03)),
    ((1e-3, 1e-9), (0.5, 1e-6)),
)
ULPS = 1 + 1e-13


def coefficients(decays: Decays, n: int) -> Array:
    """c by long division of two polynomials."""
    decay, output_decay = decays
    above, below = np.poly(1.0 - np.array(output_decay)), np.poly(1.0 - np.array(decay))
    c = np.zeros(n)
    for k in range(n):
        c[k] = above[k] if k < len(above) else 0.0
        c[k] -= sum(below[i] * c[k - i] for i in range(1, min(k, len(decay)) + 1))
    return c


def spread_out(c: Array, most: int, apart: int) -> float:
    """What the formula for a BLT stands for: the norm of the pattern 0, apart, 2 apart, ..."""
    moved = np.zeros(len(c))
    for start in range(0, len(c), apart)[:most]:
        moved[start:] += c[: len(c) - start]
    return float(np.linalg.norm(moved))


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("n", SIZES)
def test_of_a_blt_it_is_the_largest_of_all_patterns(n: int, decays: Decays) -> None:
    c = coefficients(decays, n)
    for most, apart in RULES:
        found = BufferedToeplitz(n, *decays).participation_norm(most, apart)
        assert found == pytest.approx(largest_move(toeplitz_matrix(c), most, apart), rel=1e-12)


def test_of_a_blt_it_is_rounded_up_in_exact_arithmetic() -> None:
    decays = (0.4, 0.1), (0.8, 0.3)
    weights = toeplitz(*decays).weights
    rates = [1 - Fraction(a) for a in decays[0]]
    for n, most, apart in ((40, 5, 7), (40, 3, 16), (33, 33, 1), (64, 2, 64), (64, 3, 32)):
        c = [Fraction(1)]
        for s in range(n - 1):
            terms = (w * x**s for w, x in zip(weights, rates, strict=True))
            c.append(sum(terms, Fraction(0)))
        moved = [
            sum((c[t - j] for j in range(0, t + 1, apart)[:most]), Fraction(0)) for t in range(n)
        ]
        exact = sum(x * x for x in moved)
        found = Fraction(BufferedToeplitz(n, *decays).participation_norm(most, apart)) ** 2
        assert exact <= found <= exact * (1 + Fraction(1, 2**51))


def test_coefficients_that_grow_would_break_the_formula() -> None:
    """The oracle tells: 0, apart, ... is not the worst pattern there.  A BLT's never grow."""
    c = np.array([1.0, 0.1, 0.1, 1.0, 0.1, 0.1, 0.1, 0.1])
    assert largest_move(toeplitz_matrix(c), 2, 2) == pytest.approx(2.520, abs=5e-4)
    assert spread_out(c, 2, 2) == pytest.approx(2.182, abs=5e-4)
    for decays in DECAYS:
        assert (np.diff(coefficients(decays, 16)) <= 0).all()
    with pytest.raises(ValueError, match="must interlace"):
        BufferedToeplitz(8, (0.6,), (0.3,))  # c_1 < 0


def test_an_anytime_blt_is_one_up_to_its_last_row() -> None:
    anytime = AnytimeBLT(horizon=16)
    c = toeplitz_matrix(coefficients((anytime.decay, anytime.output_decay), 16))
    for most, apart in RULES:
        found = anytime.participation_norm(most, apart)
        assert found == pytest.approx(largest_move(c, most, apart), rel=1e-10)
    endless = AnytimeBLT().participation_norm(1, 1)
    assert endless <= AnytimeBLT().column_norm()


@pytest.mark.parametrize("n", [*range(1, 11), 15, 16])
def test_of_the_tree_it_is_an_upper_bound(n: int) -> None:
    for most, apart in RULES:
        found = BinaryTree(n).participation_norm(most, apart)
        exact = largest_move(tree_matrix(n), most, apart)
        assert exact <= found * ULPS
        assert found <= exact * 1.2
    for most in (1, 16):
        found = BinaryTree(n).participation_norm(most, 1)
        assert found == pytest.approx(largest_move(tree_matrix(n), most, 1))


def unit_columns(n: int, band: int, seed: int) -> Array:
    """Banded, with entries of any sign."""
    entries = np.random.default_rng(seed).normal(size=(n, n))
    c = np.tril(entries) - np.tril(entries, -band)
    return np.asarray(c / np.linalg.norm(c, axis=0))


def test_of_bands_it_is_the_root_of_the_visits() -> None:
    for n, band in ((5, 1), (12, 3), (16, 5), (16, 16)):
        c = unit_columns(n, band, n)
        for most, apart in RULES:
            found = banded_norm(n, band, most, apart)
            exact = largest_move(c, most, apart)
            assert exact <= found * ULPS
            if apart >= band:
                assert 0 <= found - math.sqrt(most_visits(n, most, apart)) <= math.ulp(found)
                assert found == pytest.approx(exact, rel=1e-13)


FALLING = ((1.0, 0.9, 0.9, 0.4), (1.0, 2.0**-20), (1.0, 1.0, 0.1), (1.0,))


@pytest.mark.parametrize("knots", FALLING, ids=str)
def test_where_norms_fall_the_earliest_visits_are_the_worst(knots: tuple[float, ...]) -> None:
    for n, band in ((1, 1), (5, 1), (12, 3), (16, 5), (16, 16)):
        norms = RowScales(n, knots)(1, n)
        c = unit_columns(n, band, n) * norms
        for most, apart in RULES:
            found = falling_norm(n, band, knots, most, apart)
            exact = largest_move(c, most, apart)
            assert exact <= found * ULPS
            assert found <= banded_norm(n, band, most, apart)
            if apart >= band:
                assert found == pytest.approx(exact, rel=1e-13)


def test_where_norms_rise_the_earliest_visits_are_not_the_worst() -> None:
    """The broken twin, which the constructor refuses."""
    n, knots = 16, (1.0, 0.2, 0.9)
    c = unit_columns(n, 4, 0) * RowScales(n, knots)(1, n)
    assert largest_move(c, 2, 4) > 1.1 * falling_norm(n, 4, knots, 2, 4)
    with pytest.raises(ValueError, match=r"column_scales = \(1\.0, 0\.2, 0\.9\): must be"):
        BandedBLT(n, 4, (0.3,), (0.5,), (1.0,), knots)


@pytest.mark.parametrize("knots", FALLING, ids=str)
def test_where_norms_fall_it_is_rounded_up_in_exact_arithmetic(knots: tuple[float, ...]) -> None:
    for n, most, apart in ((5000, 5000, 1), (5000, 60, 7), (4999, 300, 16), (3000, 2, 2999)):
        norms = RowScales(n, knots)(1, n)[::apart][:most]
        exact = sum((Fraction(x) ** 2 for x in norms.tolist()), Fraction(0))
        found = Fraction(falling_norm(n, apart, knots, most, apart)) ** 2
        assert exact <= found <= exact * (1 + Fraction(1, 2**45))


def test_where_norms_fall_the_longest_streams_take_no_longer() -> None:
    found = falling_norm(2**40, 2**24, (1.0, 0.5), 2**40, 1)
    assert found == pytest.approx(math.sqrt(2**64 * 7 / 12), rel=1e-6)


@pytest.mark.parametrize("knots", FALLING, ids=str)
@pytest.mark.parametrize("band", [3, 5, 12])
def test_of_a_banded_blt_it_is_that_of_its_bands(band: int, knots: tuple[float, ...]) -> None:
    n = 12
    made = BandedBLT(n, band, (0.3, -0.4), (0.4, 0.2), (0.5, 1.0, 0.7), knots)
    unit = 2**40
    c = made.encoder(n)(unit * np.eye(n, dtype=np.int64)) / unit
    assert (c < 0).any()
    for most, apart in RULES:
        found = made.participation_norm(most, apart)
        exact = largest_move(c, most, apart)
        assert exact <= found * (1 + 1e-9)
        if apart >= band:
            assert exact == pytest.approx(found, rel=1e-9)


def test_the_root_of_the_visits_needs_visits_as_far_apart_as_the_band() -> None:
    """Broken twins: one slot less between visits, or two in one slot, move more than sqrt(3)."""
    c = toeplitz_matrix(np.pad(0.8 ** np.arange(5), (0, 15)))[:16, :16]
    c /= np.linalg.norm(c, axis=0)
    closer = largest_move(c, 3, 4)
    assert closer > 1.05 * math.sqrt(3)
    assert closer <= banded_norm(16, 5, 3, 4)
    twice = np.linalg.norm(2 * c[:, 0] + c[:, 5])
    assert twice > 1.2 * math.sqrt(3)


def test_it_never_exceeds_group_privacy_and_grows_with_visits() -> None:
    made: list[Factorization] = [
        BinaryTree(100),
        BufferedToeplitz.fitted(100),
        AnytimeBLT(horizon=100),
        BandedBLT(100, 20, (0.4, 0.1), (0.3, 0.02), (1.0, 0.8)),
        BandedBLT(100, 20, (0.4, 0.1), (0.3, 0.02), (1.0, 0.8), (1.0, 0.6)),
    ]
    for factorization in made:
        norm = factorization.column_norm()
        one = factorization.participation_norm(1, 1)
        assert one == pytest.approx(norm, rel=1e-11) or factorization == AnytimeBLT(horizon=100)
        norms = [factorization.participation_norm(most, 7) for most in range(1, 16)]
        assert norms == sorted(norms)
        assert all(s <= most * norm * (1 + 1e-11) for most, s in enumerate(norms, 1))
        assert factorization.participation_norm(4, 30) < factorization.participation_norm(4, 7)


@pytest.mark.parametrize(("most", "apart"), [(0, 1), (1, 0), (-3, 2), (2, -1)])
def test_rules_below_1_are_refused(most: int, apart: int) -> None:
    for made in (BinaryTree(8), BufferedToeplitz.fitted(8), BandedBLT.fitted(8)):
        with pytest.raises(ValueError, match="must be an integer >= 1"):
            made.participation_norm(most, apart)


def test_a_thousand_times_as_many_rows_take_about_as_long() -> None:
    def norms(horizon: int) -> tuple[list[float], float]:
        made = BufferedToeplitz.fitted(horizon)
        made.column_norm()
        start = time.process_time()
        found = [made.participation_norm(most, horizon // most) for most in (4, 64, horizon)]
        return found, time.process_time() - start

    short, long = (min(norms(2**n)[1] for _ in range(3)) for n in (10, 20))
    assert long < 30 * short  # measured: 1.6
    first, *_ = norms(2**20)[0]
    assert first / BufferedToeplitz.fitted(2**20).column_norm() == pytest.approx(2.270, abs=1e-3)


def test_the_oracle_lists_each_pattern_once() -> None:
    assert len(patterns(6, 6, 1)) == 2**6 - 1
    assert len(patterns(6, 2, 3)) == 6 + 3 + 2 + 1
    assert len(patterns(6, 6, 2)) == 20  # subsets without neighbours, but the empty one
