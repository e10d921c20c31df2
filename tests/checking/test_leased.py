"""Runs of a lease, checked as one mechanism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faults.leases import lends_one_more
from leased import UnderLease

from privlearn.checking.sampling.check import black_box
from privlearn.checking.stream_runs import StubAccountant
from privlearn.errors import LeaseError
from privlearn.mechanisms import NoisyReport, NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

SUM: NoisySum[Any] = NoisySum(Ball(1.0, 1, "l2"), GaussianNoise(2.0))
USERS = range(2)


def values(mechanism: UnderLease[Any]) -> Any:
    rows = Rows.seal(np.zeros((2, 1)), users=USERS)
    return mechanism.release(rows, StubAccountant(1).issue(USERS)).value


@pytest.mark.parametrize(
    "mechanism", [SUM, NoisyReport(Ball(1.0, 1, "l2"), GaussianNoise(2.0))], ids=["sum", "report"]
)
def test_all_runs_of_a_lease_are_checked_at_its_price(mechanism: Any) -> None:
    subject = UnderLease(mechanism, 3)
    assert subject.loss() == mechanism.loss() * 3
    assert subject.name.endswith("under a lease of 3")
    evidence = black_box(subject, samples=400, confidence=0.999)
    assert not evidence.violated


def test_one_run_more_than_was_paid_for_is_refused_or_planted() -> None:
    assert len(values(UnderLease(SUM, 2))) == 2
    with pytest.raises(LeaseError):
        values(UnderLease(SUM, 2, used=3))
    assert len(values(UnderLease(SUM, 2, lends_one_more, used=3))) == 3
    with pytest.raises(ValueError, match="runs = 0"):
        UnderLease(SUM, 0)
