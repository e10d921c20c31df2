"""Noisy scores are compared as real numbers: against fractions, on forced ties, and broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from privlearn.errors import NoiseSamplerError
from privlearn.mechanisms import exact_choices
from privlearn.mechanisms.exact_choices import NoisyScores, Refinable
from privlearn.mechanisms.vertices import (
    CrossPolytope,
    ExplicitVertices,
    SimplexVertices,
    Vertices,
)
from privlearn.noise.exact.pool import Kind, SeededWords, Variates, variates

KINDS: tuple[Kind, ...] = ("gumbel", "laplace", "exponential")
DEEP = 400
"""Bits that tell all variates of a test apart."""
COARSE = 3
"""Bits of floors that force ties."""


@dataclass(frozen=True)
class Given:
    """Variates number·2^−DEEP; their floors end at ±2^62, as those of `Variates` do."""

    numbers: list[int]

    @property
    def floors(self) -> NDArray[np.int64]:
        return np.array([min(max(z >> (DEEP - 40), -(2**62)), 2**62) for z in self.numbers])

    def refined(self, i: int, bits: int) -> int:
        shift = DEEP - bits
        return self.numbers[i] >> shift if shift >= 0 else self.numbers[i] << -shift


@dataclass(frozen=True)
class Coarse:
    """The same variates, of which less is known at first."""

    noise: Variates

    @property
    def floors(self) -> NDArray[np.int64]:
        return self.noise.floors >> (40 - COARSE)

    def refined(self, i: int, bits: int) -> int:
        return self.noise.refined(i, bits)


def ranked(scores: NoisyScores, row: int, bits: int = DEEP) -> list[int]:
    """Points by their noisy scores, in fractions."""
    n = scores.vertices.count
    points, total = scores.vertices.points(np.arange(n)), scores.totals[row]
    unit = Fraction(float(scores.units[row]))
    noisy = []
    for i in range(n):
        score = sum(
            (int(g) * Fraction(float(v)) for g, v in zip(total, points[i], strict=True)),
            Fraction(0),
        )
        noisy.append(score + unit * Fraction(scores.noise.refined(row * n + i, bits), 2**bits))
    return sorted(range(n), key=lambda i: -noisy[i])


def drawn(kind: Kind, n: int, seed: int = 0) -> Variates:
    return variates(kind, SeededWords(seed), n)


# Fractions --------------------------------------------------------------------------------------

SETS: list[Vertices] = [
    CrossPolytope(2, 0.1),
    SimplexVertices(4, 1 / 3),
    ExplicitVertices(np.array([[0.1, 0.3], [1e-30, 0.3], [-1e10, 2.0], [0.1 + 1e-16, 0.3]])),
]
LARGE = st.integers(-(2**100), 2**100)
NOISE = st.one_of(
    st.integers(-(2 ** (DEEP + 3)), 2 ** (DEEP + 3)),
    st.integers(-1000, 1000),
    st.integers(-(2 ** (DEEP + 30)), 2 ** (DEEP + 30)),
)


@settings(max_examples=150)
@given(
    st.sampled_from(SETS),
    st.lists(LARGE, min_size=4, max_size=4),
    st.lists(NOISE, min_size=4, max_size=4, unique=True),
    st.sampled_from([2.0**13, 2.0**40, 3 * 2.0**60]),
    st.integers(1, 3),
)
def test_the_picks_are_those_of_exact_fractions(
    vertices: Vertices, total: list[int], noise: list[int], unit: float, top: int
) -> None:
    """Sums beyond 64 bits, nearly equal points, and noise beyond the ends of its floors."""
    totals = np.array([total[: vertices.dim]], dtype=object)
    scores = NoisyScores(vertices, totals, np.array([unit]), Given(noise))
    expected = ranked(scores, 0)
    assert scores.largest(top)[0].tolist() == expected[:top]
    taken = np.array([expected[:1]])
    assert scores.largest(1, taken)[0].tolist() == expected[1:2]


def near_ties() -> list[NoisyScores]:
    """Sums of 2^80 steps that differ by a few; and equal ones with noise that differs late."""
    rng, made = np.random.default_rng(0), []
    for _ in range(40):
        total = [2**80 + int(k) for k in rng.permutation(4)]
        noise = Given([int(k) << (DEEP - 45) for k in rng.permutation(4)])
        units = np.array([2.0**40])
        made.append(NoisyScores(SimplexVertices(4), np.array([total], object), units, noise))
    return made


def far_noise() -> list[NoisyScores]:
    """Noise beyond the ends of its floors, of which the scores say nothing."""
    rng = np.random.default_rng(1)
    return [
        NoisyScores(
            SimplexVertices(4),
            rng.integers(-(2**40), 2**40, (1, 4)),
            np.array([2.0**40]),
            Given([int(k) + 30 << (DEEP + 23) for k in rng.permutation(4)]),
        )
        for _ in range(40)
    ]


def close_points() -> list[NoisyScores]:
    """Points that differ in the last bits."""
    rng = np.random.default_rng(2)
    points = 1 + rng.integers(0, 8, (4, 2)).astype(np.float64) * 2.0**-52
    made = ExplicitVertices(points)
    totals = rng.integers(2**50, 2**51, (40, 1, 2))
    return [NoisyScores(made, total, np.array([2.0**40]), Given([5, 6, 7, 8])) for total in totals]


CASES = [near_ties, far_noise, close_points]


def wrong(cases: list[NoisyScores]) -> int:
    return sum(case.largest(1)[0, 0] != ranked(case, 0)[0] for case in cases)


@pytest.mark.parametrize("made", CASES)
def test_what_doubles_cannot_tell_is_told(made: Callable[[], list[NoisyScores]]) -> None:
    assert wrong(made()) == 0


def test_it_would_be_seen_if_doubles_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoisyScores, "_in_order", lambda self, row, points: points)
    assert all(wrong(made()) > 10 for made in CASES), "ties go to the lowest index"


def test_it_would_be_seen_if_floors_were_compared_where_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_choices, "_UNUSUAL", 2**63)
    assert wrong(far_noise()) > 10


def test_it_would_be_seen_if_points_were_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    true = ExplicitVertices.points
    made = close_points()
    expected = [ranked(case, 0)[0] for case in made]

    def rounded(self: ExplicitVertices, indices: NDArray[np.int64]) -> Any:
        return true(self, indices).astype(np.float32).astype(np.float64)

    monkeypatch.setattr(ExplicitVertices, "points", rounded)
    assert sum(case.largest(1)[0, 0] != e for case, e in zip(made, expected, strict=True)) > 10


def test_the_margin_covers_what_doubles_do() -> None:
    """Noisy scores in doubles against fractions, on points and sums of all sizes."""
    rng, worst = np.random.default_rng(3), 0.0
    for dim in (1, 7, 60):
        points = rng.normal(size=(30, dim)) * 10.0 ** rng.integers(-6, 7, (30, 1))
        vertices = ExplicitVertices(points)
        totals = (rng.normal(size=(4, dim)) * 10.0 ** rng.integers(9, 25, (4, 1))).tolist()
        totals = np.array([[int(x) for x in row] for row in totals], dtype=object)
        rough = totals.astype(np.float64)
        found = vertices.scores(rough)
        sizes = vertices.longest * np.abs(rough).max(axis=1)
        for row in range(4):
            for i in range(30):
                exact = sum(
                    (
                        int(g) * Fraction(float(v))
                        for g, v in zip(totals[row], points[i], strict=True)
                    ),
                    Fraction(0),
                )
                error = abs(exact - Fraction(float(found[row, i])))
                margin = Fraction((dim + 8) * 2.0**-51) * Fraction(float(sizes[row]))
                worst = max(worst, float(2 * error / margin))
    assert 0 < worst < 0.5


# Ties -------------------------------------------------------------------------------------------


def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_choices, "STEP", 2.0**-COARSE)
    monkeypatch.setattr(exact_choices, "_UNUSUAL", 2 ** (COARSE + 6))


def pair(kind: Kind, rows: int, seed: int, wrap: Callable[[Variates], Refinable]) -> NoisyScores:
    """Random sums of scores 0.1 or so apart, in steps of 2^−30 of the scale of the noise."""
    totals = np.random.default_rng(seed).integers(-(2**28), 2**28, (rows, 3))
    noise = wrap(drawn(kind, rows * 6, seed))
    return NoisyScores(CrossPolytope(3), totals, np.full(rows, 2.0**30), noise)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top", [1, 3])
def test_coarse_floors_give_the_picks_of_fine_ones(
    kind: Kind, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = pair(kind, 200, 7, lambda z: z).largest(top)
    asked: list[int] = []
    true = NoisyScores._in_order

    def counted(self: NoisyScores, row: int, points: Any) -> Any:
        asked.append(row)
        return true(self, row, points)

    monkeypatch.setattr(NoisyScores, "_in_order", counted)
    pair(kind, 200, 7, lambda z: z).largest(top)
    assert not asked, "2^-40 tells them apart"
    coarse(monkeypatch)
    np.testing.assert_array_equal(pair(kind, 200, 7, Coarse).largest(top), fine)
    assert len(asked) > 25

    monkeypatch.setattr(NoisyScores, "_in_order", lambda self, row, points: np.sort(points))
    assert (pair(kind, 200, 7, Coarse).largest(top) != fine).any(), "ties to the lowest index"


def test_decided_ties_have_the_law_of_the_exponential_mechanism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coarse(monkeypatch)
    scores, n = np.array([0.5, -0.2, 0.0, 1.1]), 3_000
    totals = np.tile(np.round(scores * 2**40).astype(np.int64), (n, 1))
    made = NoisyScores(
        SimplexVertices(4), totals, np.full(n, 2.0**40), Coarse(drawn("gumbel", 4 * n, 11))
    )
    expected = softmax(scores) * n
    seen = np.bincount(made.largest(1)[:, 0], minlength=4)
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-3
    monkeypatch.setattr(NoisyScores, "_in_order", lambda self, row, points: np.sort(points))
    seen = np.bincount(made.largest(1)[:, 0], minlength=4)
    assert scipy.stats.chisquare(seen, expected).pvalue < 1e-6


def test_several_gumbel_picks_are_picks_one_after_the_other() -> None:
    scores, n = np.array([0.5, -0.2, 0.0, 1.1]), 30_000
    totals = np.tile(np.round(scores * 2**40).astype(np.int64), (n, 1))
    noise = drawn("gumbel", 4 * n, 5)
    picks = NoisyScores(SimplexVertices(4), totals, np.full(n, 2.0**40), noise).largest(2)
    pairs = list(permutations(range(4), 2))
    first = softmax(scores)
    expected = np.array([first[i] * first[j] / (1 - first[i]) for i, j in pairs]) * n
    seen = [int((picks == key).all(axis=1).sum()) for key in pairs]
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-3


def equal_words(kind: Kind, seed: int) -> Variates:
    """Four variates whose words are the same; only bits that were not drawn tell them apart."""
    source = SeededWords(seed)
    found = variates(kind, source, 1)
    return Variates(kind, np.repeat(found.words, 4), np.repeat(found.floors, 4), source.more, {})


@pytest.mark.parametrize("kind", KINDS)
def test_bits_that_decided_once_are_the_variates_from_then_on(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the second time, and to more bits."""

    def contradictions() -> int:
        found = 0
        for seed in range(8):
            noise = equal_words(kind, seed)
            made = NoisyScores(
                SimplexVertices(4), np.zeros((1, 4), int), np.array([2.0**40]), noise
            )
            picks = made.largest(3)[0].tolist()
            found += picks != ranked(made, 0, 128)[:3] or made.largest(1)[0, 0] != picks[0]
        return found

    assert contradictions() == 0
    true = Variates.refined

    def forgetful(self: Variates, i: int, bits: int) -> int:
        self.extended.clear()
        return true(self, i, bits)

    monkeypatch.setattr(Variates, "refined", forgetful)
    assert contradictions() > 3, "bits that are dropped after a slow draw"


def test_a_source_that_repeats_itself_is_named() -> None:
    made = NoisyScores(
        SimplexVertices(2), np.zeros((1, 2), int), np.array([2.0**40]), Given([5, 5])
    )
    with pytest.raises(NoiseSamplerError, match="what they are drawn from repeats"):
        made.largest(1)
