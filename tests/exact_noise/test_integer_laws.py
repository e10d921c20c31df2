"""Laws on the integers against their probabilities, summed with mpmath."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest
from scipy import stats

from privlearn.noise.exact import integer_laws
from privlearn.noise.exact.integer_laws import discrete_gaussian, discrete_laplace, geometric
from privlearn.noise.exact.pool import NoisePool, Pool, SeededWords
from privlearn.values.exact import Exact

Law = Callable[[Pool, Exact, int], list[int]]
HEIGHTS: dict[Law, Callable[[int, float], float]] = {
    geometric: lambda k, scale: math.exp(-k / scale) if k >= 0 else 0.0,
    discrete_laplace: lambda k, scale: math.exp(-abs(k) / scale),
    discrete_gaussian: lambda k, variance: math.exp(-(k**2) / (2 * variance)),
}
CASES: list[tuple[Law, Fraction]] = [
    (geometric, Fraction(7, 3)),
    (geometric, Fraction(1, 5)),
    (discrete_laplace, Fraction(5, 2)),
    (discrete_laplace, Fraction(1, 2)),
    (discrete_gaussian, Fraction(50, 3)),
    (discrete_gaussian, Fraction(1, 4)),
]
N = 20_000


def p_value(law: Law, parameter: Fraction, values: list[int]) -> float:
    height = HEIGHTS[law]
    heights = {k: height(k, float(parameter)) for k in range(-400, 401)}
    total = float(mpmath.fsum(heights.values()))
    large = [k for k, h in heights.items() if h / total * N >= 10]
    counts = Counter(values)
    seen = [counts[k] for k in large]
    expected = [heights[k] / total * N for k in large]
    rest, seen_rest = N - sum(expected), N - sum(seen)
    return float(stats.chisquare([*seen, seen_rest], [*expected, rest]).pvalue)


@pytest.mark.parametrize(("law", "parameter"), CASES)
def test_the_law(law: Law, parameter: Fraction) -> None:
    assert p_value(law, parameter, law(NoisePool(SeededWords(2)), parameter, N)) > 1e-3


@pytest.mark.parametrize(("law", "parameter"), CASES)
def test_another_parameter_is_seen(law: Law, parameter: Fraction) -> None:
    values = law(NoisePool(SeededWords(2)), parameter * Fraction(11, 10), N)
    assert p_value(law, parameter, values) < 1e-6


@pytest.mark.parametrize(("law", "parameter"), CASES)
def test_coarse_floors_that_are_refined_decide_the_same(
    law: Law, parameter: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = law(NoisePool(SeededWords(4)), parameter, 300)
    refined = []
    monkeypatch.setattr(integer_laws, "FLOOR_BITS", 2)
    for name in ("_floor_of_multiple", "_exceeds"):
        inner = getattr(integer_laws, name)

        def coarse(drawn, i, m, *rest, inner=inner):  # type: ignore[no-untyped-def]
            refined.append(m)
            return inner(drawn, i, m >> 38, *rest)

        monkeypatch.setattr(integer_laws, name, coarse)
    assert law(NoisePool(SeededWords(4)), parameter, 300) == plain
    assert refined


def test_zero_with_two_signs_would_be_seen() -> None:
    sizes = geometric(NoisePool(SeededWords(1)), Fraction(5, 2), N)
    signs = NoisePool(SeededWords(2)).words(N).tolist()
    wrong = [-k if sign & 1 else k for k, sign in zip(sizes, signs, strict=True)]
    assert p_value(discrete_laplace, Fraction(5, 2), wrong) < 1e-9


def test_parameters_of_any_size() -> None:
    pool = NoisePool(SeededWords(0))
    huge = discrete_gaussian(pool, 10**60, 200)
    assert 0.7e30 < math.sqrt(sum(k * k for k in huge) / 200) < 1.3e30
    assert len({k & 1023 for k in huge}) > 150
    assert set(discrete_gaussian(pool, "1/1000000", 200)) == {0}
    assert geometric(pool, "0.5", 0) == []
    for law in (geometric, discrete_laplace, discrete_gaussian):
        with pytest.raises(ValueError, match=r"(scale|variance) = 0: must be > 0"):
            law(pool, 0, 1)
