"""Whether a package says more today than was recorded: each number that can be more is found."""

from __future__ import annotations

from fractions import Fraction

import pytest

from privlearn.losses import FailingLoss, GaussianLoss, Loss, PerArrivalLoss, PureLoss, RenyiCurve
from privlearn.losses import ZCDPLoss as ZCDP
from privlearn.losses.discrete import DiscreteLaplace
from privlearn.losses.pure import BoundedRangeLoss, LaplaceLoss, RandomizedResponse
from privlearn.losses.subsampled import SubsampledGaussian
from privlearn.losses.upper_bounds import is_above
from privlearn.values.adjacency import Adjacency

USERS = range(4)
OUT = Adjacency.ADD_REMOVE


def sampled(noise: str, rate: str) -> Loss:
    return SubsampledGaussian(Fraction(noise), Fraction(rate), adjacency=OUT)


def rr(epsilon: str, categories: int) -> Loss:
    return RandomizedResponse(Fraction(epsilon), categories)


@pytest.mark.parametrize(
    ("recorded", "today"),
    [
        (GaussianLoss("0.5"), GaussianLoss("0.500001")),
        (ZCDP("0.5"), ZCDP("0.500001")),
        (ZCDP("0.5"), RenyiCurve({2: "0.1"})),
        (PureLoss("0.5"), PureLoss("0.500001")),
        (PureLoss("0.5"), GaussianLoss("0.0001")),
        (RenyiCurve({2: 1, 8: 2}), RenyiCurve({2: 1, 8: "2.00001"})),
        (RenyiCurve({2: 1, 8: 2}), RenyiCurve({2: "1.00001", 8: 2})),
        (LaplaceLoss("0.5"), LaplaceLoss("0.500001")),
        (LaplaceLoss("0.5"), PureLoss("0.5")),
        (BoundedRangeLoss("0.5"), BoundedRangeLoss("0.500001")),
        (rr("0.5", 3), rr("0.500001", 3)),
        (rr("0.5", 3), rr("0.5", 4)),
        (DiscreteLaplace("0.5", 2), DiscreteLaplace("0.500001", 2)),
        (DiscreteLaplace("0.5", 2), DiscreteLaplace("0.5", 3)),
        (sampled("2", "0.1"), sampled("1.99999", "0.1")),
        (sampled("2", "0.1"), sampled("2", "0.100001")),
        (FailingLoss(PureLoss(1), "1e-6"), FailingLoss(PureLoss(1), "1.00001e-6")),
        (PureLoss(1), FailingLoss(PureLoss(1), "1e-9")),
        (FailingLoss(PureLoss(1), "1e-6"), FailingLoss(PureLoss("1.00001"), "1e-6")),
        (PureLoss(1), PerArrivalLoss([(3, PureLoss(1)), (1, PureLoss(2))])),
        (
            PerArrivalLoss([(2, PureLoss(1)), (2, PureLoss("0.5"))]),
            PerArrivalLoss([(3, PureLoss(1)), (1, PureLoss("0.5"))]),
        ),
    ],
    ids=lambda loss: f"{loss.kind}",
)
def test_more_in_one_number_is_more(recorded: Loss, today: Loss) -> None:
    assert is_above(recorded, today, USERS)
    assert is_above(recorded, recorded, USERS) is None
    assert is_above(today, today, USERS) is None


def test_rounding_of_another_machine_is_no_more() -> None:
    assert is_above(ZCDP(1), ZCDP(1 + Fraction(1, 2**40)), USERS) is None
    assert is_above(ZCDP(1), ZCDP("0.9"), USERS) is None
    assert is_above(sampled("2", "0.1"), sampled("3", "0.05"), USERS) is None
    assert is_above(FailingLoss(PureLoss(1), "1e-6"), PureLoss(1), USERS) is None
