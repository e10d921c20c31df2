"""What a report says to whoever wrote the mechanism: where it failed, and what was not seen."""

from typing import Any

import numpy as np
import pytest

from privlearn.checking import check_mechanism
from privlearn.errors import PrivacyViolation
from privlearn.mechanisms import mechanism
from privlearn.noise import LaplaceNoise
from privlearn.rows.domains import Array, Ball

BALL, NOISE = Ball(1.0, 1, "l1"), LaplaceNoise(4.0)


@mechanism(domain=BALL, noise=NOISE)
def misspelt(rows: Any, draw: Any) -> Any:
    return rows.summ(axis=0) + draw((1,))


@mechanism(domain=BALL, noise=NOISE)
def rounded(rows: Array, draw: Any) -> Any:
    return np.tanh(rows.sum(axis=0) + draw((1,)))  # not data plus noise: only samples see it


@mechanism(domain=BALL, noise=NOISE)
def added(rows: Array, draw: Any) -> Any:
    return rows.sum(axis=0) + draw((1,))


def test_the_line_that_failed_is_named() -> None:
    with pytest.raises(PrivacyViolation) as raised:
        check_mechanism(misspelt, samples=400)
    line = misspelt.function.__code__.co_firstlineno + 2
    told = str(raised.value)
    assert "it was AttributeError: 'numpy.ndarray' object has no attribute 'summ'" in told
    assert f"test_reports_for_authors.py:{line})" in told


def test_a_report_without_power_ends_with_that() -> None:
    weak = check_mechanism(rounded, samples=400)
    assert weak["exact"].verdict == "not applicable"
    assert [finding.check for finding in weak.inconclusive] == ["samples"]
    assert "\n  inconclusive: samples: weak: power: NOT EVEN HALF" in str(weak)
    assert "samples: WEAK, " in weak.summary()
    exact = check_mechanism(added, samples=400)
    assert not exact.inconclusive
    assert "WEAK" not in exact.summary()
