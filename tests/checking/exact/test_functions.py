"""Exact laws of functions of data and a generator: faults that samples miss, and correct twins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grids import thinned

from privlearn.checking.exact import functions
from privlearn.checking.exact.check import ExactResult
from privlearn.checking.exact.functions import function_finding
from privlearn.checking.reports import Finding
from privlearn.losses.budgets import ApproxDP, GaussianDP, PureDP

Rng = np.random.Generator
ONE, OTHER = [0.0] * 5, [0.0] * 4 + [1.0]
CLAIM = PureDP(1)
RANDOMIZED = round(math.log(3), 12)  # ε of an answer that is true three times in four


def look(
    function: Callable[..., Any],
    claim: Any = CLAIM,
    pair: Any = (ONE, OTHER),
) -> Finding:
    return function_finding(function, claim, [pair])


def added(draw: Callable[[Rng], Any]) -> Callable[[list[float], Rng], Any]:
    return lambda data, rng: sum(data) + draw(rng)


def cut_noise(rng: Rng) -> float:
    return float(np.clip(rng.laplace(), -4, 4))


def dropped_noise(rng: Rng) -> float:
    z = rng.laplace()
    return 0 * z if abs(z) > 7.6 else z


def seeded(data: list[float], rng: Rng) -> float:
    return sum(data) + float(np.random.default_rng(int(sum(data))).laplace())


def reused(data: list[float], rng: Rng) -> tuple[float, float]:
    z = rng.laplace(scale=2)
    return sum(data) + z, sum(data) / 2 + z


def last_bit(data: list[float], rng: Rng) -> float:
    noisy = np.array([sum(data) + rng.laplace()])
    bits = noisy.view(np.int64)
    bits[:] = bits & ~1 | int(data[-1])
    return float(noisy[0])


def sign_of_zero(data: list[float], rng: Rng) -> float:
    noisy = max(0.0, sum(data) + rng.laplace())
    return math.copysign(noisy, -1.0 if data[-1] and noisy == 0 else 1.0)


def order_of_a_set(data: list[float], rng: Rng) -> set[int]:
    rng.laplace()
    return {8, 0} if data[-1] else {0, 8}


def text_of_an_error(data: list[float], rng: Rng) -> float:
    if rng.laplace() > 3:
        raise ValueError(f"{data[-1]}")
    return sum(data) + rng.laplace()


def other_type(data: list[float], rng: Rng) -> Any:
    return np.array([rng.laplace()], dtype=np.float32 if data[-1] else np.float64)


def weighted(data: list[float], rng: Rng) -> float:
    return sum(x * (2 if k == 2 else 1) for k, x in enumerate(data)) + rng.laplace()


def answers(sure: float) -> Callable[[list[float], Rng], list[bool]]:
    return lambda data, rng: [bool(x) ^ (rng.random() >= sure) for x in data]


def two_coins(data: list[float], rng: Rng) -> bool:
    return bool(data[0]) if rng.random() < 0.5 else rng.random() < 0.5


def sampled(rate: float) -> Callable[[list[float], Rng], float]:
    return lambda data, rng: float(np.array(data) @ (rng.random(len(data)) < rate) + rng.laplace())


def sampled_three(data: list[float], rng: Rng) -> float:
    return float(rng.choice(data, 3, replace=False).sum() + rng.laplace())


def largest(data: list[float], rng: Rng) -> str:
    return "abc"[int(np.argmax(np.array([sum(data), 1.0, 0.5]) + rng.gumbel(scale=2, size=3)))]


FAULTS: list[tuple[Any, Any]] = [
    (added(lambda rng: rng.normal(scale=0.97)), GaussianDP(1)),
    (added(lambda rng: rng.normal(scale=3)), PureDP(1)),
    (added(lambda rng: rng.exponential()), PureDP(1)),
    (added(cut_noise), ApproxDP(1, 1e-6)),
    (added(dropped_noise), ApproxDP(1, 1e-6)),
    (seeded, PureDP(1)),
    (reused, PureDP(1)),
    (last_bit, PureDP(1)),
    (sign_of_zero, PureDP(1)),
    (order_of_a_set, PureDP(1)),
    (other_type, PureDP(1)),
    (weighted, PureDP(1)),
    (answers(0.76), PureDP(RANDOMIZED)),
    (sampled(0.3), PureDP(0.2)),
    (sampled_three, PureDP(0.4)),
    (largest, PureDP(0.3)),
    (added(lambda rng: rng.laplace() if rng.random() < 0.999 else 0.0), ApproxDP(1, 1e-6)),
    (lambda data, rng: str(rng.choice(list("ab"), p=[0.9, 0.1][:: 1 - 2 * int(data[-1])])), CLAIM),
    (lambda data: sum(data) + np.random.laplace(scale=0.9), PureDP(1)),
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_SEARCH_SECONDS", 0.15)


@pytest.mark.parametrize(("function", "claim"), FAULTS)
def test_faults_are_refuted(function: Any, claim: Any) -> None:
    assert look(function, claim).verdict == "violated"


SURELY = round(math.log1p(0.6 * math.expm1(1)), 9)  # ε of 1, on three of five records
TWINS: list[tuple[Any, Any]] = [
    (added(lambda rng: rng.normal()), GaussianDP(1)),
    (added(lambda rng: rng.laplace()), PureDP(1)),
    (lambda data, rng: np.array(data) + rng.laplace(size=5), PureDP(1)),
    (lambda data, rng: {"sum": sum(data) + rng.laplace(), "n": 5}, PureDP(1)),
    (lambda data, rng: sum(rng.permutation(data)) + rng.laplace(), PureDP(1)),
    (lambda data, rng: round(sum(data) + rng.laplace()), PureDP(1)),
    (lambda data, rng: float(np.clip(sum(data) + rng.laplace(), 0, 9)), PureDP(1)),
    (answers(0.75), PureDP(RANDOMIZED)),
    (sampled_three, PureDP(SURELY)),
    (lambda data: sum(data) + np.random.default_rng().spawn(1)[0].laplace(), PureDP(1)),
]


@pytest.mark.parametrize(("function", "claim"), thinned(TWINS))
def test_correct_twins_are_not_accused_and_their_loss_is_exact(function: Any, claim: Any) -> None:
    found = look(function, claim)
    assert found.verdict != "violated", found
    assert isinstance(found.evidence, ExactResult)
    assert found.evidence.worst.ratio == pytest.approx(1, abs=1e-6)


def over(threshold: int, draw: Callable[[Rng], float]) -> Callable[[list[int], Rng], float]:
    """How many records are above a number that the code mentions, and noise."""
    return lambda data, rng: sum(x > threshold for x in data) + draw(rng)


def laplace(rng: Rng) -> float:
    return rng.laplace()


def histogram(data: list[int], rng: Rng) -> dict[int, int]:
    counts = {71: 0, 40: 0}
    for x in data:
        if x in counts:
            counts[x] += 1
    return {key: int(np.rint(n + rng.laplace())) for key, n in counts.items()}


def passed_through(data: list[int], rng: Rng) -> int:
    z = rng.laplace()
    return 1_000 + data[-1] if z > 13 else round(sum(x > 40 for x in data) + z)


AGES = [31, 55, 8, 71, 40, 90, 17]
WHOLE: list[tuple[Any, Any]] = [
    (lambda data, rng: int(np.rint(over(40, laplace)(data, rng))), CLAIM),
    (lambda data, rng: np.rint(over(65, laplace)(data, rng)), CLAIM),
    (lambda data, rng: int(sum(x == 71 for x in data) + rng.laplace()), CLAIM),
    (lambda data, rng: round(sum(min(x, 100) for x in data) + rng.laplace(scale=100)), CLAIM),
    (lambda data, rng: round(sum(min(x, 50) for x in data) / 50 + rng.laplace(), 1), CLAIM),
    (lambda data, rng: max(0, round(over(50, laplace)(data, rng))), CLAIM),
    (lambda data, rng: 5 * round(over(40, laplace)(data, rng) / 5), CLAIM),
    (lambda data, rng: f"{over(40, laplace)(data, rng):.1f}", CLAIM),
    (lambda data, rng: float(np.float32(over(40, laplace)(data, rng))), CLAIM),
    (lambda data, rng: round(over(36, lambda rng: rng.normal())(data, rng)), GaussianDP(1)),
    (histogram, CLAIM),
]
LEAKING: list[Any] = [
    passed_through,
    lambda data, rng: round(
        over(40, lambda rng: float(np.clip(rng.laplace(), -12, 12)))(data, rng)
    ),
    lambda data, rng: sum(x > 40 for x in data) / 3 + round(rng.laplace(), 1),
    lambda data, rng: round(over(40, lambda rng: 10 * rng.random())(data, rng)),
]


@pytest.mark.parametrize(("function", "claim"), thinned(WHOLE))
def test_rounded_counts_that_mention_numbers_are_not_accused(function: Any, claim: Any) -> None:
    found = look(function, claim, ([*AGES, 12], [*AGES, 71]))
    assert found.verdict != "violated", found


@pytest.mark.parametrize("function", LEAKING)
def test_rounded_counts_with_an_outcome_of_their_own_are_refuted(function: Any) -> None:
    assert "inf" in look(function, CLAIM, ([*AGES, 12], [*AGES, 71])).detail


def test_noise_in_doubles_is_said_to_tell_by_its_last_bits() -> None:
    found = look(added(lambda rng: rng.laplace()))
    assert found.coverage.missing == ("floating point", "values")  # what a NaN adds is not hidden


def test_crowds_of_given_records_are_tried() -> None:
    assert look(largest, PureDP(0.35)).coverage.axes[-1].tried == "among 4 like it"
    assert look(largest, PureDP(0.5)).verdict in ("holds", "window")


def test_records_of_several_types_are_not_mixed_anew() -> None:
    mixed: list[Any] = [np.float64(0.25), np.float64(0.5), np.float64(1.0)]
    assert (
        look(added(lambda rng: rng.laplace()), pair=(mixed, [*mixed[:2], 0.0])).verdict == "window"
    )


def test_coins_in_a_row_have_their_exact_law() -> None:
    assert look(two_coins, PureDP(RANDOMIZED), ((False,), (True,))).verdict == "tight"
    assert look(two_coins, PureDP(1.09), ((False,), (True,))).verdict == "violated"


@pytest.mark.parametrize(
    ("function", "axis"),
    [
        (lambda d, rng: sum(d) * (3 if len(d) > 100 else 1) + rng.laplace(), "sizes"),
        (lambda d, rng: sum(9.0 if x == 999.0 else x for x in d) + rng.laplace(), "values"),
        (lambda d, rng: sum(d) + rng.laplace(), "values"),  # nan is a number
    ],
)
def test_what_happens_on_other_data_is_said_and_accuses_nobody(function: Any, axis: str) -> None:
    found = look(function)
    assert found.verdict == "window"
    assert axis in found.coverage.missing


def test_what_a_function_keeps_between_runs_is_said() -> None:
    class Fitted:
        bound: float | None = None

        def __call__(self, data: list[float], rng: Rng) -> float:
            self.bound = 2 * max(data) if self.bound is None else self.bound
            return float(np.clip(sum(data), 0, self.bound) + rng.laplace())

    assert "state" in look(Fitted()).coverage.missing


def test_numbers_that_an_array_cannot_hold_are_not_tried() -> None:
    pair = np.zeros(3, dtype=np.uint8), np.array([0, 0, 1], dtype=np.uint8)
    found = look(lambda d, rng: float(np.sum(d == 0)) - 1 + rng.laplace(), pair=pair)
    assert found.verdict == "window"
    assert "records" not in found.coverage.missing


def test_functions_whose_law_is_not_known_say_so() -> None:
    kept: dict[str, float] = {}

    def cached(data: list[float], rng: Rng) -> float:
        return kept.setdefault(str(data), sum(data) + float(rng.laplace()))

    def redrawn(data: list[float], rng: Rng) -> float:
        while abs(z := rng.laplace()) > 3:
            pass
        return sum(data) + float(z)

    assert look(cached).verdict == "not done"
    found = look(redrawn)
    assert (found.verdict, found.coverage.missing) == ("window", ("outputs",))
    assert "not computed" in found.detail


def test_a_function_that_always_fails_is_not_called_private() -> None:
    found = look(lambda data, rng: [][0])
    assert found.verdict == "window"
    assert "raises IndexError on both" in found.detail


def test_what_a_function_raises_is_an_output() -> None:
    found = look(text_of_an_error)
    assert found.verdict in ("violated", "window")
