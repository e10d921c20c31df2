"""How many requests an access token may make."""

from __future__ import annotations

import pytest

from privlearn.service.rates import Rates


def test_a_burst_and_then_so_many_a_second() -> None:
    now = 0.0
    rates = Rates(2.0, 3, clock=lambda: now)
    assert [rates.wait("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.wait("b") == 0.0  # each by itself
    now = 0.25
    assert rates.wait("a") == pytest.approx(0.25)  # which takes nothing
    now = 0.5
    assert rates.wait("a") == 0.0
    now = 100.0  # no more than a burst is saved up
    assert [rates.wait("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
