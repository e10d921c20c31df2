"""How much leaves may follow from a noisy value, but not from the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from faults.few_inputs import ComputingMechanism

from privlearn.checking import check_mechanism
from privlearn.contract.receipts import Receipt
from privlearn.losses import PureLoss
from privlearn.noise import LaplaceNoise
from privlearn.rows.domains import Array, Box


def _as_many_as(length: Callable[[float, float], float]) -> ComputingMechanism:
    def shown(values: Array, receipt: Receipt) -> Array:
        raw = float(values.sum())
        noisy = raw + float(receipt.draw((1,))[0])
        return np.full(1 + int(np.clip(length(raw, noisy), 0, 9)), noisy)

    return ComputingMechanism("shown", Box(0, 1, 1), LaplaceNoise(2.0), shown, PureLoss("0.5"))


@pytest.mark.parametrize(
    ("length", "refuted"),
    [
        (lambda raw, noisy: noisy, False),
        (lambda raw, noisy: raw, True),
        (lambda raw, noisy: 9 if raw > 3 else min(noisy, 5), True),
    ],
    ids=["noisy", "raw", "both"],
)
def test_a_form_may_follow_from_noisy_values_only(length: Any, refuted: bool) -> None:
    report = check_mechanism(_as_many_as(length), samples=2_000, raise_error=False)
    assert bool(report.violated) == refuted, report
