"""The sampling check as a whole: power, silence on correct mechanisms, and clear refusals."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from grids import thinned
from numpy.random import Generator
from scipy.stats import binom

from privlearn.checking.reports import Evidence
from privlearn.checking.sampling.check import black_box
from privlearn.checking.targets import SamplingTarget
from privlearn.errors import CheckError
from privlearn.losses import LaplaceLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi

DIRECTION = np.random.default_rng(1).normal(size=15)
DIRECTION /= np.linalg.norm(DIRECTION)
Function = Callable[[int, Generator], Any]


def normal(shift: float) -> Function:
    return lambda world, rng: float(shift * world + rng.normal())


def vector(shift: float) -> Function:
    return lambda world, rng: shift * world * DIRECTION + rng.normal(size=15)


def response(epsilon: float) -> Function:
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    return lambda world, rng: bool(rng.random() < (p if world else 1 - p))


def check(function: Function, claim: Any, samples: int = 2000, **more: Any) -> Evidence:
    return black_box(function, claim, more.pop("pair", (1, 0)), samples=samples, **more)


# Power --------------------------------------------------------------------------------------------


@pytest.mark.calibration
def test_half_the_noise_is_caught_with_three_hundred_samples() -> None:
    caught = sum(check(vector(2.0), GaussianDP(1), 300, seed=s).violated for s in range(40))
    assert caught >= 36
    assert check(vector(2.0), GaussianDP(1), 300).samples <= 300


@pytest.mark.calibration
def test_a_tenth_too_little_is_caught() -> None:
    short = math.sqrt(1.1)
    fixed = check(normal(short), GaussianDP(1), 75_000, seed=1)
    assert 1 < fixed.bound < short


def one_level(world: int, rng: Generator, horizon: int = 256) -> Any:
    """Tree sums whose noise is enough for one level instead of nine."""
    levels = horizon.bit_length()
    noise = [rng.normal(size=horizon) for _ in range(levels)]
    return [
        world + sum(noise[k][(t >> k) - 1] for k in range(levels) if t >> k & 1)
        for t in range(1, horizon + 1)
    ]


@pytest.mark.calibration
def test_a_stream_with_a_forgotten_logarithm_is_caught() -> None:
    found = check(lambda w, r: np.array(one_level(w, r)), GaussianDP(1), 2000)
    assert found.violated
    assert found.bound > 1.5


def fails(odd: bool, rng: Generator, warn: bool = False) -> float:
    """Half of all runs raise; only the error's message, or a warning, tells the data sets apart."""
    if warn:
        warnings.warn("a first world", stacklevel=1)
    if rng.random() < 0.5:
        raise ValueError("odd" if odd else "even")
    return 0.0


MISTAKES: dict[str, tuple[Function, Any]] = {
    "half a Laplace": (lambda w, r: w + r.laplace(0, 0.5), LaplaceLoss(1)),
    "response": (response(1.5), PureDP(1)),
    "response of more than δ": (response(1.5), ApproxDP(1, "0.01")),
    "zcdp": (vector(2.0), ZCDP("0.5")),
    "curve": (normal(2.0), Renyi({"1.5": "0.75", 2: 1, 8: 4})),
    "one order": (normal(3.0), Renyi({20: 1})),
    "no privacy at all claimed and some lost": (normal(0.5), PureDP(0)),
    "exception": (lambda w, r: 1 / 0 if w and r.random() < 0.1 else r.normal(), PureDP(1)),
    "message": (lambda w, r: fails(bool(w and r.random() < 0.3), r), PureDP(1)),
    "warning": (lambda w, r: fails(False, r, bool(w and r.random() < 0.1)), PureDP(1)),
    "nan": (lambda w, r: math.nan if w and r.random() < 0.1 else r.normal(), PureDP(1)),
    "shape": (lambda w, r: np.zeros(1 + (w and r.random() < 0.1)), PureDP(1)),
    "type": (lambda w, r: 0 if w and r.random() < 0.1 else 0.0, PureDP(1)),
    "booleans": (lambda w, r: (r.random(20) < (0.6 if w else 0.4)).tolist(), PureDP(1)),
    "a generator": (lambda w, r: (x for x in (1, 4 * w + r.normal())), PureDP(1)),
    "exit": (lambda w, r: exit(1) if w and r.random() < 0.1 else 0, PureDP(1)),
}  # fmt: skip


BOTH_WAYS = [
    (name, bool((number + shift) % 2)) for number, name in enumerate(MISTAKES) for shift in range(2)
]


@pytest.mark.parametrize(("name", "turned"), thinned(BOTH_WAYS, 2))
def test_mistakes_are_caught_in_either_order_of_the_worlds(name: str, turned: bool) -> None:
    function, claim = MISTAKES[name]
    pair = (0, 1) if turned else (1, 0)
    found = check(function, claim, 4000, pair=pair)
    assert found.violated, found
    assert found.samples <= 4000
    assert found.bound > found.claimed


def test_the_bound_stays_below_the_truth_and_the_report_says_how() -> None:
    found = check(response(3.0), PureDP(1), 4000)
    assert 2.3 < found.bound < 3.0
    assert found.p == pytest.approx(0.953, abs=0.02)
    assert "VIOLATED" in str(found)
    assert f"seed {found.seed}" in str(found)
    again = check(response(3.0), PureDP(1), 4000)
    assert (again.bound, again.event) == (found.bound, found.event)


def test_the_most_telling_pair_is_found_first() -> None:
    found = black_box(
        lambda d, r: d + r.normal(), GaussianDP(1), [(0.0, 0.1), (0.0, 3.0), (0.0, 0.2)]
    )
    assert found.pair == 1
    assert found.violated


# Silence ------------------------------------------------------------------------------------------

CORRECT: dict[str, tuple[Function, Any]] = {
    "response": (response(1.0), PureDP(1)),
    "Gaussian": (normal(1.0), GaussianDP(1)),
    "Laplace": (lambda w, r: w + r.laplace(), LaplaceLoss(1)),
    "failure": (lambda w, r: "oops" if w and r.random() < 0.05 else 0, ApproxDP(0, "0.05")),
    "nothing": (lambda w, r: "abcdefgh"[r.integers(8)], PureDP(0)),
}


@pytest.mark.calibration
@pytest.mark.parametrize("name", CORRECT)
def test_correct_mechanisms_are_accused_as_rarely_as_stated(name: str) -> None:
    function, claim = CORRECT[name]
    runs = 40
    alarms = sum(
        check(function, claim, 240, seed=seed, confidence=0.9).violated for seed in range(runs)
    )
    assert alarms <= binom.ppf(0.999, runs, 0.1)


def test_there_is_never_a_bare_pass() -> None:
    found = check(lambda w, r: 3.0, PureDP(1), 40)
    assert found.bound == 0
    assert "not refuted" in str(found)
    assert "at least" in str(found)
    for claim in (PureDP(1000), GaussianDP(100), ZCDP(1000), ApproxDP(700, "0.5")):
        assert not check(normal(1.0), claim, 300).violated


# Refusals and odd mechanisms ----------------------------------------------------------------------


def test_one_array_filled_again_and_again_is_many_outputs() -> None:
    kept = np.zeros(1)

    def reuse(world: int, rng: Generator) -> Any:
        kept[0] = 3 * world + rng.normal()
        return {"a": [kept], "b": kept}

    assert check(reuse, GaussianDP(1), 600).violated


def test_each_run_has_the_data_as_they_were() -> None:
    def drain(data: list[int], rng: Generator) -> float:
        return float(data.pop() if data else 0) + rng.normal()

    def start(data: list[int], seed: int) -> Callable[[], float]:
        return partial(drain, data, np.random.default_rng(seed))

    data = [1], [9]
    assert black_box(drain, PureDP(1), data, samples=200).violated
    assert data == ([1], [9])
    target = SamplingTarget("drain", start, PureDP(1), [([1], [5])])
    with pytest.raises(CheckError, match="changes its data"):
        black_box(target, samples=200)


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_time_is_limited_everywhere(in_thread: bool) -> None:
    def slow(world: int, rng: Generator) -> float:
        time.sleep(0.005)
        return rng.normal()

    said: list[str] = []

    def attempt() -> None:
        try:
            check(slow, PureDP(1), 4000, seconds=0.1)
        except CheckError as error:
            said.append(str(error))

    began = time.monotonic()
    if in_thread:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    else:
        attempt()
    assert len(said) == 1
    assert "did not end within 0.1 seconds" in said[0]
    assert time.monotonic() - began < 5


def test_a_mechanism_that_hangs_and_swallows_errors_is_interrupted() -> None:
    def stubborn(world: int, rng: Generator) -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    with pytest.raises(CheckError, match="did not end"):
        check(stubborn, PureDP(1), seconds=0.1)


def test_an_interrupt_is_the_users() -> None:
    def interrupted(world: int, rng: Generator) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        check(interrupted, PureDP(1))


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"seconds": 0.0}, ValueError, "seconds"),
        ({"seed": -1}, ValueError, "seed"),
        ({"pair": [(0, 1)] * 20, "samples": 100}, CheckError, "too few"),
    ],
)
def test_bad_arguments_are_refused(more: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        check(normal(1.0), PureDP(1), **more)


def test_a_mechanism_that_always_fails_or_hides_is_an_error() -> None:
    with pytest.raises(CheckError, match="every run fails on both"):
        check(lambda w, r: 1 / 0, PureDP(1))
    with pytest.raises(CheckError, match="cannot be looked into"):
        check(lambda w, r: object(), PureDP(1))


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e15])
def test_any_scale_will_do(scale: float) -> None:
    function: Function = lambda w, r: scale * (4 * w + r.normal())  # noqa: E731
    assert check(function, GaussianDP(1), 1000).violated
