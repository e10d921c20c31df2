"""The default factorisation: the least error among all that are at hand."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from privlearn.losses.budgets import GaussianDP
from privlearn.mechanisms import (
    BandedBLT,
    BatchedPrefixSum,
    BinaryTree,
    BufferedToeplitz,
    PrefixSum,
)
from privlearn.mechanisms.banded_shapes import Objective
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.least_error import LONGEST, banded, least_error
from privlearn.mechanisms.stream_visits import StreamVisits, visits_in_slots
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

OBJECTIVES: tuple[Objective, ...] = ("max", "mean")


def error(factorization: Factorization, visits: StreamVisits, objective: Objective) -> float:
    """Computed, not looked up."""
    largest = objective == "max"
    alone = factorization.max_error_std() if largest else factorization.rms_error_std()
    return alone * float(visits.norm(factorization))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("horizon", "most", "apart"),
    [
        (2, 2, 1),
        (7, 3, 2),
        (30, 1, 1),
        (200, 1, 1),
        (200, 8, 25),
        (200, 2, 3),
        (300, 4, 40),
        (256, 256, 1),
        (500, 3, 400),
    ],
)
def test_nothing_at_hand_has_less_error(
    horizon: int, most: int, apart: int, objective: Objective
) -> None:
    visits = visits_in_slots(Participation(most, apart), horizon)
    found = error(least_error(horizon, visits, objective), visits, objective)
    others: list[Factorization] = [
        BinaryTree(horizon),
        BufferedToeplitz.fitted(horizon),
        banded(horizon, horizon, objective),
    ]
    if 16 <= apart < horizon:
        others.append(banded(horizon, apart, objective))
        others.append(banded(horizon, apart, "visits"))
    for other in others:
        assert found <= error(other, visits, objective) * 1.01  # the table is within 1%


def test_the_default_call_reaches_what_is_known() -> None:
    """Largest and rms error of a prefix sum at mu = 1, sensitivity 1."""
    known = (1, 1, 2.98, 2.97), (8, 128, 10.8, 9.748), (16, 64, 18.7, 15.991)
    for most, apart, largest, rms in known:
        rule = Participation(most, apart)
        for objective, target in (("max", largest), ("mean", rms)):
            mechanism = PrefixSum.calibrated(
                Ball(0.5, 3),
                GaussianDP(1),
                horizon=1024,
                participation=rule,
                objective=cast(Objective, objective),
            )
            made = mechanism.factorization
            assert isinstance(made, BandedBLT)
            assert (len(made.column_scales) > 1) is (most > 1 and objective == "mean")
            alone = made.max_error_std() if objective == "max" else made.rms_error_std()
            assert mechanism.noise_std * alone <= target


@pytest.mark.parametrize(
    ("horizon", "most", "apart", "target"),
    [
        (2**14, 4, 2**12, 8.4),
        (2**14, 16, 2**10, 22.0),
        (2**16, 4, 2**14, 9.3),
        (2**16, 16, 2**12, 23.5),
        (2**14, 1, 1, 1.03 * 3.791),
        (2**16, 1, 1, 1.03 * 4.232),
        (2**20, 1, 1, 1.03 * 5.115),
    ],
)
def test_long_streams_have_the_error_of_the_table(
    horizon: int, most: int, apart: int, target: float
) -> None:
    from privlearn.mechanisms.banded_parameters import fitted_errors

    visits = visits_in_slots(Participation(most, apart), horizon)
    found = least_error(horizon, visits)
    assert isinstance(found, BandedBLT)
    assert float(visits.norm(found)) == pytest.approx(math.sqrt(most))
    assert fitted_errors(horizon, found.band, "max").largest * math.sqrt(most) <= target


def test_visits_that_come_close_to_each_other_take_the_blt() -> None:
    """A band of few rows has a large error, a wide one the price of a group."""
    visits = visits_in_slots(Participation(4, apart=16), 2**10)
    found, one = least_error(2**10, visits), BufferedToeplitz.fitted(2**10)
    assert isinstance(found, BufferedToeplitz)
    error, known = (float(visits.norm(f)) * f.max_error_std() for f in (found, one))
    assert error < 0.97 * known


def test_of_one_row_there_is_one_factorization() -> None:
    assert least_error(1).max_error_std() == 1


def test_beyond_the_table_it_is_the_blt() -> None:
    assert least_error(LONGEST + 1) == BufferedToeplitz.fitted(LONGEST + 1)
    assert least_error(2**40).kind == "buffered_toeplitz"


def test_batches_take_it_too() -> None:
    rule = Participation(4, per_batch=1, apart=300)
    sizes = (100,) * 40
    made = BatchedPrefixSum.calibrated(
        Ball(0.5, 2), GaussianDP(1), sizes=sizes, participation=rule, adjacency=Adjacency.ZERO_OUT
    )
    assert made.factorization == least_error(40, StreamVisits(4, 3))
    assert BatchedPrefixSum.calibrated(
        Ball(0.5, 2), GaussianDP(1), sizes=sizes, objective="mean"
    ).factorization == least_error(40, None, "mean")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="objective = 'median': must be 'max' or 'mean'"):
        least_error(8, None, cast(Any, "median"))
    for horizon in (0, -3):
        for rule in (None, Participation(2)):
            with pytest.raises(ValueError, match=f"horizon = {horizon}: must be"):
                PrefixSum.calibrated(
                    Ball(1.0, 1), GaussianDP(1), horizon=horizon, participation=rule
                )
