"""Code under check that hangs, exits, forks, prints or writes to its data: the verdict says so."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from privlearn import Ball, PureDP
from privlearn.checking import check_mechanism, sampling_target
from privlearn.checking.isolation import OutputCapture, contained
from privlearn.checking.laws.check import LEAST, Sampling, _affordable
from privlearn.errors import CheckError
from privlearn.mechanisms import mechanism
from privlearn.noise import LaplaceNoise
from privlearn.rows.domains import Array


def hangs(data: Array, rng: Generator) -> float:
    return float(sum(itertools.repeat(0)))  # no signal is looked at


def exits(data: Array, rng: Generator) -> float:
    os._exit(0)


def forks(data: Array, rng: Generator) -> float:
    os.fork()
    return float(data.sum() + rng.laplace())


BAD: list[tuple[Callable[[Array, Generator], float], str]] = [
    (hangs, "did not end within 0.5 seconds"),
    (exits, r"ends the process that runs it \(exit code 0\)"),
    (forks, "makes a copy of its process"),
]


def as_mechanism(function: Callable[[Array, Generator], float]) -> Any:
    @mechanism(domain=Ball(1.0, 1, "l1"), noise=LaplaceNoise(2.0))
    def released(rows: Array, draw: Any) -> Any:
        function(rows, np.random.default_rng(0))
        return rows.sum(axis=0) + draw((1,))

    return released


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only")
@pytest.mark.parametrize(("bad", "told"), BAD)
@pytest.mark.parametrize("of_rows", [False, True])
def test_it_is_tried_in_a_process_of_its_own_first(
    bad: Callable[[Array, Generator], float],
    told: str,
    of_rows: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privlearn.checking.isolation._THREADED", ())  # other tests import them
    given: dict[str, Any] = {"claim": PureDP(1), "neighbours": (np.ones(2), np.array([0.0, 1.0]))}
    began = time.monotonic()
    report = check_mechanism(
        as_mechanism(bad) if of_rows else bad,
        seconds=0.5 if bad is hangs else 9.0,
        raise_error=False,
        **({} if of_rows else given),
    )
    assert time.monotonic() - began < 20
    assert [finding.check for finding in report.undone] == ["process"]
    with pytest.raises(CheckError, match=told):
        report.raise_if_bad()


def test_now_and_then_it_exits_or_forks_and_this_process_goes_on() -> None:
    def often(data: Array, rng: Generator) -> float:
        if data[0] and rng.random() < 0.4:
            os._exit(0)
        return float(rng.laplace())

    pair = np.ones(1), np.zeros(1)
    report = check_mechanism(often, PureDP(1), neighbours=pair, samples=400, raise_error=False)
    assert report["samples"].verdict == "violated"
    assert os._exit.__module__ == "posix"
    with contained():
        assert os.fork() > 0, "the copy ended before it came here"
        assert contained.forks == 1


def test_it_prints_much_and_writes_to_its_data(capfd: pytest.CaptureFixture[str]) -> None:
    def loud(data: Array, rng: Generator) -> float:
        for line in range(10_000 * bool(rng.random() < 0.02)):
            print("line", line)
        data[:] = 7.0
        return float(rng.laplace())

    pair = np.ones(1), np.zeros(1)
    assert check_mechanism(loud, PureDP(1), neighbours=pair, samples=200).passed
    assert (pair[0][0], pair[1][0]) == (1.0, 0.0)
    assert capfd.readouterr().out == ""
    capture = OutputCapture(lambda: 0)
    with capture.capturing():
        loud(np.ones(1), np.random.Generator(_Rare()))
    ((_, text, _),) = capture.captured
    assert text.count("\n") == 10_000


class _Rare(np.random.PCG64):
    """Whose first number is below 0.02."""

    def __init__(self) -> None:
        super().__init__(next(s for s in range(999) if np.random.default_rng(s).random() < 0.02))


def test_a_slow_function_gets_as_many_samples_as_time_allows() -> None:
    def slow(data: Array, rng: Generator) -> float:
        time.sleep(0.01)
        return float(rng.laplace())

    subject = sampling_target(slow, PureDP(1), (np.ones(1), np.zeros(1)))
    assert LEAST <= _affordable(subject, Sampling(seconds=3.0), 5_000) <= 100
