"""Sums over phases against their price: enumerated to the end, measured exactly, and broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from exact_games import FAR, law

from privlearn import ZCDP, Ball, Box, PSDTrace, PureDP
from privlearn.accountants import CentralAccountant
from privlearn.checking.exact.check import white_box
from privlearn.mechanisms import PhaseSum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows

ORDERS = (2.0,)

# A game against one user, enumerated in exact numbers ---------------------------------------------

USERS, PRICE = 5, 1
SUMS: PhaseSum[Any] = PhaseSum.calibrated(Ball(1.0, 1), PureDP(2 * PRICE), horizon=USERS, outputs=2)
Clock = Callable[[int, float], int]
"""From the last output, and the record of whoever comes next, to how long a phase is."""


def by_releases(last: int, record: float) -> int:
    return 1 if last < 0 else 2


def by_rows(last: int, record: float) -> int:
    return 1 if record < 0 else 2


class Phases:
    """What is opened for each release, and what is released: the outputs of a transcript."""

    def __init__(self, outputs: Sequence[int]) -> None:
        self.outputs, self.rows = iter(outputs), list[Any]()

    def spent(self, token: Any, spend: Any) -> None:
        """Nothing is to be noted."""

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        self.rows.append(spend.grid.values(rows)[:, 0])

    def released(self, token: Any, value: Any) -> Any:
        return np.full_like(value, next(self.outputs))


def played(
    values: Sequence[float], outputs: Sequence[int], clock: Clock
) -> tuple[list[int], list[int]]:
    """Where phases end, and what the first sum of each is, if the outputs are these.

    Whoever is not 1 is the person in question; all others answer by what was released last.  Users
    are added to the first sum and taken away from it in turn, and every third is in the second.
    """
    watcher = Phases(outputs)
    account = CentralAccountant(
        PureDP(100), users=range(USERS), noise=NoiseSource.simulation(0), observer=watcher
    )
    stream = SUMS.open(account.issue(SUMS.loss(), users=range(USERS), label="sums"))
    last, ends, sums = 1, [0], []
    while (at := ends[-1]) < USERS:
        stop = min(at + clock(last, values[at]), USERS)
        turn = np.arange(at, stop)
        first = np.where(turn % 3 == 2, 0, np.where(turn % 2, -1, 1))
        stream.begin(stop, np.stack([first, turn % 3 == 2], axis=1).astype(np.int8))
        own = [v * last if v == 1 else v for v in values[at:stop]]
        released = stream.end(Rows.seal(np.array(own)[:, None], users=range(at, stop)))
        sums.append(round(float(first @ watcher.rows[-1])))
        last = 1 if released.value[0] > 0 else -1
        ends.append(stop)
    return ends, sums


def worst(clock: Clock) -> Fraction | float:
    """The largest likelihood ratio of transcripts; infinite if one is of one world only."""
    found: Fraction | float = Fraction(0)
    for outputs in product((-FAR, FAR), repeat=USERS):
        for at in range(USERS):
            here, there = ([by if i == at else 1.0 for i in range(USERS)] for by in (9.0, -9.0))
            (ends, one), (others, other) = (played(v, outputs, clock) for v in (here, there))
            if ends != others:  # which stand in the ledger
                return inf
            ratio = Fraction(1)
            for output, a, b in zip(outputs, one, other, strict=False):
                ratio *= law(output, a, PRICE) / law(output, b, PRICE)
            found = max(found, ratio, 1 / ratio)
    return found


def test_all_phases_together_cost_as_much_as_one_sum() -> None:
    """Densities from the rows alone: one factor of them moves, whatever was released before."""
    assert worst(by_releases) == 2 ** (2 * PRICE)
    assert Fraction(SUMS.loss().pure() or 0) == 2 * PRICE


def test_a_clock_that_reads_rows_has_no_price() -> None:
    assert worst(by_rows) == inf


# As it runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sums",
    [
        PhaseSum.calibrated(Box(-0.5, 0.5, 1), PureDP(1), horizon=24),
        PhaseSum.calibrated(Box(0, 1, 1), ZCDP("0.5"), horizon=24, outputs=3),
        PhaseSum.calibrated(PSDTrace(2.0, 2), ZCDP("0.1"), horizon=9, outputs=2),
    ],
    ids=["laplace", "gaussian", "matrices"],
)
def test_the_price_is_tight(sums: PhaseSum[Any]) -> None:
    found = white_box(sums, orders=ORDERS)
    assert found.whole, found
    assert found.tight, found


def test_vectors_may_move_in_all_coordinates() -> None:
    """Which tells as much at worst, and less on average, than a move of one alone."""
    sums = PhaseSum.calibrated(Box(-1, 1, 2), PureDP("0.5"), horizon=12, outputs=2)
    found = white_box(sums, orders=ORDERS)
    assert found.whole
    assert not found.violated
    assert next(row for row in found.rows if row.measure == "epsilon").tight
