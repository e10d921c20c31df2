"""What a spend may not do, it may not do inside another loss either."""

from __future__ import annotations

from typing import Any

import pytest

from privlearn import ZCDP, Ball, NoiseSource, Spend
from privlearn.accountants import CentralAccountant
from privlearn.errors import BudgetError
from privlearn.losses import (
    BoundedRangeLoss,
    FailingLoss,
    GaussianLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    VisitsLoss,
    ZCDPLoss,
    leaves_of,
)
from privlearn.noise import GaussianNoise

USERS = range(10)


def spend(loss: Loss, *, std: float = 1.0, interactive: bool = False, failure: str = "0") -> Any:
    accountant = CentralAccountant(
        ZCDP("1e6"), users=USERS, noise=NoiseSource.simulation(0), failure=failure
    )
    token = accountant.issue(loss, users=USERS, label="x")
    return token.spend(
        Spend("mine", Ball(1.0, 2), GaussianNoise(std), own_loss=loss, interactive=interactive)
    )


def test_leaves_are_counted_through_every_nesting() -> None:
    loss = PerArrivalLoss([(10, BoundedRangeLoss("0.1") * 3 + ZCDPLoss("0.1"))]) * 2
    assert sorted((part.kind, count) for part, count in leaves_of(loss)) == [
        ("bounded-range", 6),
        ("zcdp", 2),
    ]


@pytest.mark.parametrize(
    "loss", [BoundedRangeLoss("0.3"), PerArrivalLoss([(10, BoundedRangeLoss("0.3"))])]
)
def test_a_stream_of_bounded_ranges_is_refused(loss: Loss) -> None:
    with pytest.raises(BudgetError, match="one release"):
        spend(loss, interactive=True)
    spend(loss)


def test_an_interactive_loss_that_may_fail_is_refused_however_deep() -> None:
    inner = FailingLoss(ZCDPLoss("0.1"), "1e-4")
    for loss in (inner, PerArrivalLoss([(10, inner)])):
        with pytest.raises(BudgetError, match="no theorem is known"):
            spend(loss, interactive=True, failure="1e-4")


def test_a_minimiser_is_bound_to_its_noise_however_deep() -> None:
    m = MinimizerLoss(difference=4, trace=1, rank=2, directions=2, ridge=20, noise_std=50)
    for loss, failure in (
        (m, "0"),
        (PerArrivalLoss([(10, m)]), "0"),
        (FailingLoss(m, "1e-9"), "1e-9"),
    ):
        with pytest.raises(BudgetError, match=r"tilt of std 50"):
            spend(loss, std=0.001, failure=failure)
        with pytest.raises(BudgetError, match="must state ridge"):
            spend(loss, std=50.0, failure=failure)


def test_a_minimisers_loss_for_one_row_is_not_stated_for_many() -> None:
    m = MinimizerLoss(difference=4, trace=1, rank=2, directions=2, ridge=20, noise_std=50)
    for loss in (VisitsLoss(m, 100), VisitsLoss(m, 100) + GaussianLoss("0.1")):
        with pytest.raises(BudgetError, match="stated for one row"):
            spend(loss, std=50.0)
    # the blur, which is the same for any number of rows, may be
    with pytest.raises(BudgetError, match="must state ridge"):
        spend(m + VisitsLoss(GaussianLoss("0.1"), 100), std=50.0)
