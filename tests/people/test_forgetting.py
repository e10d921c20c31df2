"""Who was forgotten is in nothing that is released later, pending rows included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import DPTOFW
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.participation import Participation

IDS = ["a", "b", "a", "c", "a", "b"]


class Opened:
    """What receipts open."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def spent(self, token: Any, spend: Any) -> None:
        pass

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        self.rows.append(np.array(rows).any(axis=1).tolist())

    def released(self, token: Any, value: Any) -> Any:
        return value


def begun(rule: Participation, seen: Opened) -> tuple[People, CentralAccountant[Any]]:
    people = People.memory(rule)
    account = CentralAccountant(
        ZCDP(1), users=range(6), noise=NoiseSource.simulation(0), people=people, observer=seen
    )
    return people, account


@pytest.mark.parametrize("pooled", [False, True])
def test_pending_rows_are_null(pooled: bool) -> None:
    seen = Opened()
    rule = Participation(1, pooled=True) if pooled else Participation(3)
    people, account = begun(rule, seen)
    if pooled:
        account.divide([0])
    rows: Rows[Any] = people.admit(Rows.seal(np.ones((6, 2)), users=range(6)), IDS)
    if pooled:
        rows = rows.pool(lambda block: block.mean(axis=0))
    mechanism = NoisySum.calibrated(Ball(2.0, 2), ZCDP("1/9"), adjacency=account.adjacency)
    people.forget("a")
    people.forget("nobody we know")
    mechanism.release(rows, account.issue(mechanism.loss(), users=range(6), label="sum"))
    left = [False, True, False, True, False, not pooled]
    assert seen.rows == [left]
    account.close()
    assert not account.certificate().problems


def test_a_learner_forgets_in_the_middle_of_an_epoch() -> None:
    found = []
    for forgotten in (False, True):
        seen = Opened()
        people, account = begun(Participation(2, pooled=True), seen)
        learner = DPTOFW(2, method="buffered").start(account)
        x, y = np.full((6, 2), 0.3), np.full(6, 0.5)
        learner.partial_fit(x[:4], y[:4], people=IDS[:4])
        if forgotten:
            people.forget("b")
        learner.partial_fit(x[4:], y[4:], people=IDS[4:])
        found.append(seen.rows)
    plain, without = found
    assert len(plain) == len(without)
    # the first epoch is one user, and was released before
    assert plain[-1] == [True, True, True, False, False]  # b, a, c, a, b
    assert without[-1] == [False, True, True, False, False]
