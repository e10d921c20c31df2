"""Printed noise levels against a second transcription from the paper's text.

Line by line from Cho & Sun (2025): Theorem 1, Algorithms 2 to 5, Theorem 5, Lemmas S6 and S7.  The
transcription keeps the paper's symbols and is written in fifty digits, so that it shares no code
and no shortcut with the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from mpmath import MPContext

from privlearn.mechanisms import published
from privlearn.mechanisms.published import Tilt

mp = MPContext()
mp.dps = 50
mpf = mp.mpf
Q = mpf(1) / 2
L, ETA = mpf(2), mpf(4)

CASES = [(rho, d, R) for rho in (1e-4, 0.01, 0.1, 1.0, 20.0) for d, R in ((1, 1), (5, 5), (20, 7))]


def close(found: Tilt, ridge: Any, noise_std: Any) -> bool:
    return bool(
        abs(found.ridge / ridge - 1) < 1e-13 and abs(found.noise_std / noise_std - 1) < 1e-13
    )


@pytest.mark.parametrize(("rho", "d", "R"), CASES)
def test_theorem_1_and_algorithm_2(rho: float, d: int, R: int) -> None:
    r = mpf(rho)
    delta = ETA / (mp.exp((1 - Q) * r / R) - 1)
    sigma = mp.sqrt((L * (mp.sqrt(d + 2 * Q * r) + mp.sqrt(d)) / (Q * r)) ** 2)
    assert close(published.theorem_1(rho, d, R), delta, sigma)
    # Algorithm 2 line 3, in which rho_1/D is the budget of one call
    calls = 4
    printed = 4 / (mp.exp((1 - Q) * (r * calls) / (R * calls)) - 1)
    assert abs(published.theorem_1(rho, d, R).ridge / printed - 1) < 1e-13


def test_reference_values() -> None:
    tilt = published.theorem_1(0.1, 5, published.printed_rank(5, 10))
    assert tilt.noise_std == pytest.approx(179.8, abs=0.05)
    assert tilt.ridge == pytest.approx(398.0, abs=0.05)
    assert published.theorem_1(1.0, 5, 5) == pytest.approx((38.03, 18.7), abs=0.05)
    assert published.theorem_1(0.01, 5, 5).noise_std == pytest.approx(1790, abs=2)


def test_tiny_budgets_lose_no_digits() -> None:
    r = mpf(1e-15)
    found = published.theorem_1(1e-15, 3, 2)
    assert close(found, 4 / mp.expm1(r / 4), 2 * (mp.sqrt(3 + r) + mp.sqrt(3)) / (r / 2))


def width(d: int, epsilon: Any, delta: Any) -> Any:
    """The bracket in the σ of Theorem 5."""
    inside = d + 2 * mp.sqrt(d * mp.log(2 / delta)) + 2 * mp.log(2 / delta)
    return mp.sqrt(inside) + mp.sqrt(inside + 2 * Q * epsilon)


@pytest.mark.parametrize(("epsilon", "d", "R"), CASES)
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_theorem_5(epsilon: float, d: int, R: int, delta: float) -> None:
    e, x = mpf(epsilon), mpf(delta)
    ridge = (1 - Q) * R * ETA / e
    sigma = L * width(d, e, x) / (Q * e)
    assert close(published.theorem_5(epsilon, delta, d, R), ridge, sigma)
    huber = published.theorem_5(epsilon, delta, 1, 1, gradient_bound=1.0, eigenvalue=1.0)
    assert close(huber, (1 - Q) / e, width(1, e, x) / (Q * e))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(("d", "R", "calls"), [(1, 1, 1), (5, 5, 10), (20, 4, 37)])
def test_algorithm_4(epsilon: float, d: int, R: int, calls: int) -> None:
    total = mpf(1e-5)
    e = mpf(epsilon) / mp.sqrt(8 * calls * mp.log(1 / total))
    x = total / (2 * calls)
    found = published.algorithm_4(epsilon, 1e-5, d, R, calls)
    assert close(found, 2 * R / e, 4 * L * width(d, e, x) / e)


def test_algorithm_4_is_theorem_5_with_twice_the_noise() -> None:
    """Its L is already doubled (errata item 4), and its Δ is that of the theorem as printed."""
    epsilon, delta, calls = 1.0, 1e-5, 10
    each = epsilon / math.sqrt(8 * calls * math.log(1 / delta))
    theorem = published.theorem_5(each, delta / (2 * calls), 5, 5)
    algorithm = published.algorithm_4(epsilon, delta, 5, 5, calls)
    assert algorithm.noise_std == pytest.approx(2 * theorem.noise_std)
    assert algorithm.ridge == pytest.approx((1 - 0.5) * 5 * 4 / each)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize(("d", "calls"), [(1, 1), (5, 10)])
def test_algorithm_4_corrected(epsilon: float, d: int, calls: int) -> None:
    """Δ so that the determinants, at most T/Δ with T = 1, take (1 − q)ε′; σ from the theorem."""
    total = mpf(1e-5)
    e = mpf(epsilon) / mp.sqrt(8 * calls * mp.log(2 / total))
    x = total / (2 * calls)
    found = published.corrected_algorithm_4(epsilon, 1e-5, d, calls)
    assert close(found, 1 / ((1 - Q) * e), L * width(d, e, x) / (Q * e))
    assert 1 / found.ridge <= float((1 - Q) * e) * (1 + 1e-12)


@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 1000, 1023, 1024, 1025, 5000, 2**40, 2**40 + 1])
def test_tree_depths(T: int) -> None:
    assert published.tree_depth(T) == 1 + (T - 1).bit_length()
    assert T.bit_length() <= published.tree_depth(T) <= T.bit_length() + 1


@pytest.mark.parametrize(("T", "K"), [(1, 1), (1024, 10), (5000, 5), (10**6, 3)])
def test_algorithms_3_and_5(T: int, K: int) -> None:
    m = 1 + (T - 1).bit_length()
    for rho in (0.01, 1.0):
        assert published.algorithm_3(rho, K, T) ** 2 == pytest.approx(K * m / rho, rel=1e-13)
    for epsilon, delta in ((0.5, 1e-5), (4.0, 1e-2)):
        printed = 32 * m * K * mp.log(4 / mpf(delta)) ** 2 / mpf(epsilon) ** 2
        found = published.algorithm_5(epsilon, delta, K, T)
        assert abs(mpf(found) ** 2 / printed - 1) < 1e-13
        nodes = T.bit_length()
        each = mpf(epsilon) / mp.sqrt(8 * nodes * mp.log(2 / mpf(delta)))
        node_delta = mpf(delta) / (2 * nodes)
        classical = mp.sqrt(2) * K * mp.sqrt(2 * mp.log(mpf(5) / 4 / node_delta)) / each
        corrected = published.corrected_algorithm_5(epsilon, delta, K, T)
        assert abs(corrected / classical - 1) < 1e-13


@pytest.mark.parametrize("d", [2, 3, 5, 20, 1000])
@pytest.mark.parametrize("T", [1, 10, 10_000])
def test_lemma_s6(d: int, T: int) -> None:
    log = mp.log(d)
    ratio = (log / d) ** (mpf(1) / 3)
    bracket = (
        2 * mp.sqrt(d)
        + 2 * mpf(d) ** (mpf(1) / 6) * log ** (mpf(1) / 3)
        + 6 * (1 + ratio) * mp.sqrt(log) / mp.sqrt(mp.log(1 + ratio))
        + 2 * mp.sqrt(4 * mp.log(T))
    )
    assert abs(published.lemma_s7(d, T) / bracket - 1) < 1e-13
    # Lemma S7 at β = 1/T²: 2√(2 log(1/β)) is 2√(4 log T)
    assert 2 * mp.sqrt(2 * mp.log(mpf(T) ** 2)) == pytest.approx(2 * math.sqrt(4 * math.log(T)))


def test_lemma_s6_in_one_dimension_is_its_limit() -> None:
    """log d → 0: the third term is of order (log d)^(1/3)."""
    log = mpf(10) ** -40
    ratio = log ** (mpf(1) / 3)
    third = 6 * (1 + ratio) * mp.sqrt(log) / mp.sqrt(mp.log(1 + ratio))
    assert third < 1e-12
    assert published.lemma_s7(1, 100) == pytest.approx(2 + 2 * math.sqrt(4 * math.log(100)))


def test_ranks_as_printed() -> None:
    for d in range(1, 8):
        for K in range(2, 8):
            assert published.printed_rank(d, K) == min(d, K - 1)
        with pytest.raises(ValueError, match="max_items = 1: the published rank"):
            published.printed_rank(d, 1)


BAD: dict[str, Callable[[], object]] = {
    "rho": lambda: published.theorem_1(0.0, 2, 1),
    "rho ": lambda: published.theorem_1(math.nan, 2, 1),
    "rho  ": lambda: published.algorithm_3(-1.0, 2, 10),
    "epsilon": lambda: published.theorem_5(0.0, 1e-5, 2, 1),
    "epsilon ": lambda: published.algorithm_5(math.inf, 1e-5, 2, 10),
    "delta": lambda: published.theorem_5(1.0, 1.0, 2, 1),
    "delta ": lambda: published.algorithm_4(1.0, 0.0, 2, 1, 3),
    "delta  ": lambda: published.algorithm_5(1.0, 2.0, 2, 10),
    "calls": lambda: published.algorithm_4(1.0, 1e-5, 2, 1, 0),
    "calls ": lambda: published.corrected_algorithm_4(1.0, 1e-5, 2, 0),
    "horizon": lambda: published.tree_depth(0),
    "horizon ": lambda: published.lemma_s7(2, 0),
    "dim": lambda: published.printed_rank(0, 3),
    "max_items": lambda: published.printed_rank(2, 0),
}


@pytest.mark.parametrize("name", list(BAD))
def test_wrong_parameters_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name.strip()} = "):
        BAD[name]()
