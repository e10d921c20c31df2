"""`WhitenedDescent`: its price, its sums, and what it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import WhitenedDescent
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP
from privlearn.noise import NoiseSource

USERS, DIM = 40, 3
LOSSES = ("squared", "logistic", "softmax")
RNG = np.random.default_rng(11)


def accountant(users: int, budget: Currency, seed: int = 0) -> CentralAccountant[Any]:
    return CentralAccountant(budget, users=range(users), noise=NoiseSource.simulation(seed))


def learner(loss: str, dim: int = DIM, classes: int = 3) -> WhitenedDescent:
    return WhitenedDescent(dim, loss, row_norm=math.sqrt(dim) / 2, classes=classes)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("budget", [GaussianDP("0.3"), ZCDP("0.2")])
def test_the_plan_takes_the_whole_cap(loss: str, budget: Currency) -> None:
    account = accountant(USERS, budget)
    plan = learner(loss).start(account)._plan()
    assert [item.label for item in plan] == ["moments", "step"]
    mass = math.fsum(item.count * float(item.loss.gaussian() or 0) for item in plan)
    assert float(budget.gaussian_mass()) * (1 - 1e-9) <= mass <= float(budget.gaussian_mass())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_record_that_is_null_adds_nothing(loss: str) -> None:
    x = RNG.uniform(-1, 1, (USERS, DIM))
    y = RNG.integers(0, 2, USERS).astype(float)
    broken_x, broken_y = x.copy(), y.copy()
    broken_x[::4, 1], broken_y[1::4], y[2::4] = math.nan, math.nan, math.inf
    found = []
    for with_nulls in (True, False):
        account = accountant(USERS, GaussianDP(50))
        player = learner(loss).start(account)
        if with_nulls:
            player.partial_fit(broken_x, np.where(np.arange(USERS) % 4 == 2, y, broken_y))
        else:
            for i in range(USERS):
                player.partial_fit(x[i], y[i]) if i % 4 == 3 else player.skip(1)
        found.append((player.coef_, player.intercept_))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
    assert np.abs(found[0][0]).max() > 0
