"""Picks after public batches: their law, their price, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant
from privlearn.errors import UsersError
from privlearn.losses import VisitsLoss
from privlearn.losses.budgets import ZCDP, PureDP, Renyi
from privlearn.mechanisms import NoisyMaxBatches, SimplexVertices, noisy_max_batches
from privlearn.mechanisms.noisy_max import largest_scores
from privlearn.mechanisms.noisy_max_batches import BatchPicks
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

THREE = SimplexVertices(3)
Made = NoisyMaxBatches
SMALL = Made(THREE, 0.5, 4.0, (2, 3, 4), (1, 2, 5), (1024, 1536, 3072))


def opened(mechanism: Made, seed: int = 0) -> BatchPicks:
    users = range(sum(mechanism.sizes))
    accountant: CentralAccountant[Any] = CentralAccountant(
        ZCDP(10**6), users=users, noise=NoiseSource.simulation(seed)
    )
    return mechanism.open(accountant.issue(mechanism.loss(), users=users, label="picks"))


def fed(stream: BatchPicks, rows: Any) -> list[int]:
    """All picks, rows handed in one by one."""
    picks: list[int] = []
    for at, row in enumerate(rows):
        released = stream.append(Rows.seal(np.array([row]), users=range(at, at + 1)))
        picks += [] if released is None else released.value.tolist()
    return picks


def softmax(scores: Any) -> Any:
    chances = np.exp(scores - np.max(scores))
    return chances / chances.sum()


def rho(eta: float) -> float:
    """Bun & Steinke's constant of the exponential mechanism of range η, from its definition."""
    ends = np.linspace(1e-6, eta - 1e-6, 20_001)  # log dP/dQ in {t, t − η}: the worst t
    up = (1 - np.exp(ends - eta)) / (np.exp(ends) - np.exp(ends - eta))  # Q of the upper one
    return float((up * np.exp(ends) * ends + (1 - up) * np.exp(ends - eta) * (ends - eta)).max())


def moves(mechanism: Made, pattern: tuple[int, ...]) -> list[float]:
    """η of each pick for a person with rows in these batches, at a spread of 2·2·clip.

    Replace-one moves a row by 2·clip in every coordinate, and two corners are 2 apart in ℓ1.
    """
    spread = 4 * mechanism.clip
    return [
        sum(mechanism.weights[b] for b in pattern if b <= k) * spread / mechanism.scale_at(k + 1)
        for k in range(len(mechanism.sizes))
    ]


def test_picks_have_the_law_of_the_exponential_mechanism() -> None:
    """Weights and growth included: many picks of one sum, against softmax."""
    n = 120
    growth = (1024,) * (n // 2) + (2048,) * (n // 2)
    mechanism = Made(THREE, 1.0, 3.0, (1,) * n, (4, *(1,) * (n - 1)), growth)
    rows = np.zeros((n, 3))
    rows[0] = [0.9, -0.3, 0.0]
    picks = np.array([fed(opened(mechanism, seed), rows) for seed in range(3)])
    for half, scale in ((picks[:, : n // 2].ravel(), 3.0), (picks[:, n // 2 :].ravel(), 6.0)):
        expected = softmax(4 * rows[0] / scale) * len(half)
        found = np.bincount(half, minlength=3)
        wrong = softmax(4 * rows[0] / scale * 2) * len(half)  # half the noise
        assert ((found - expected) ** 2 / expected).sum() < 14  # χ² of 2: 0.999
        assert ((found - wrong) ** 2 / wrong).sum() > 14


def test_noise_has_the_very_scale_that_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rationals: a rounded product of scale and growth could be below that of the price."""
    made = Made(THREE, 0.5, 4.7, (2, 3, 4), (1, 3, 2**40), (1024, 1537, 2**40 - 1))
    rows, seen = np.random.default_rng(0).uniform(-0.5, 0.5, (9, 3)), list[Any]()

    def picked(receipt: Any, vertices: Any, totals: Any, units: Any) -> Any:
        seen.append((totals[0], units[0]))
        return largest_scores(receipt, vertices, totals, units)

    monkeypatch.setattr(noisy_max_batches, "largest_scores", picked)
    fed(opened(made), rows)
    step, total = Fraction(made.grid.step), np.zeros(3, dtype=object)
    parts = np.split(np.trunc(rows / made.grid.step).astype(np.int64), [2, 5])
    for part, weight, growth, (found, unit) in zip(
        parts, made.weights, made.growth, seen, strict=True
    ):
        total = total + weight * part.sum(axis=0).astype(object)
        assert found.tolist() == total.tolist()
        assert Fraction(float(unit)) * step == Fraction(made.scale) * growth / 1024


def test_batches_may_come_in_parts() -> None:
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (9, 3))
    whole = opened(SMALL)
    assert whole.next_end == 2
    parts = [Rows.seal(rows[a:b], users=range(a, b)) for a, b in ((0, 2), (2, 5), (5, 9))]
    picks = [released.value[0] for part in parts if (released := whole.append(part)) is not None]
    assert picks == fed(opened(SMALL), rows)
    assert whole.closed


@given(st.data())
def test_neighbours_cost_no_more_than_is_stated(data: Any) -> None:
    """The law of all picks together, for all rows at the bound; half the noise costs too much."""
    sizes = (1, 2, 1)
    weights = tuple(data.draw(st.integers(1, 4), label="weight") for _ in sizes)
    growth = tuple(data.draw(st.integers(1024, 4096), label="growth") for _ in sizes)
    mechanism = Made(SimplexVertices(2), 0.5, 8.0, sizes, weights, growth)
    loss = mechanism.loss()
    worst: dict[float, float] = {1.0: 0.0, 2.0: 0.0}
    for batch, less in product(range(3), (1.0, 2.0)):
        etas = moves(mechanism, (batch,))
        # at balanced scores: one row moves two points against each other by 2·clip each
        laws = [(softmax(np.array([eta * less / 4, -eta * less / 4]))) for eta in etas]
        kl = sum(float((p * np.log(p / p[::-1])).sum()) for p in laws)
        worst[less] = max(worst[less], kl)
    assert worst[1.0] <= float(loss.zcdp() or 0) < worst[2.0]


def test_the_price_is_the_dearest_batch() -> None:
    etas = [moves(SMALL, (batch,)) for batch in range(3)]
    assert float(SMALL.loss().zcdp() or 0) == pytest.approx(
        max(sum(map(rho, filter(None, each))) for each in etas), rel=1e-5
    )
    assert float(SMALL.loss().pure() or 0) == pytest.approx(max(map(sum, etas)))


def admissible(rule: Participation, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    starts = np.cumsum((0, *sizes))
    slots = [b for b, size in enumerate(sizes) for _ in range(size)]
    found = set()
    for visits in combinations_with_replacement(range(len(slots)), rule.most):
        apart = all(b - a >= rule.apart for a, b in pairwise(visits))
        within = [slots[t] for t in visits]
        room = rule.in_a_batch or rule.most
        if apart and all(within.count(b) <= room for b in set(within)):
            found.add(tuple(within))
    assert starts[-1] == len(slots)
    return sorted(found)


RULES = [
    Participation(most=2),
    Participation(most=3, apart=2),
    Participation(most=2, pooled=True),
    Participation(most=3, per_batch=1),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_person_costs_no_more_than_is_stated(rule: Participation) -> None:
    """Every pattern of visits that the rule allows, one after the other."""
    one = Made(THREE, 0.5, 30.0, (2, 3, 4), (1, 3, 9), (1024, 3000, 9000))
    made = Made(one.vertices, 0.5, 30.0, one.sizes, one.weights, one.growth, participation=rule)
    loss = made.loss()
    assert isinstance(loss, VisitsLoss)
    stated, epsilon = float(loss.zcdp() or 0), float(loss.pure() or 0)
    found = [moves(made, pattern) for pattern in admissible(rule, made.sizes)]
    worst = max(sum(rho(eta) for eta in each if eta) for each in found)
    assert worst <= stated * (1 + 1e-6)
    assert max(map(sum, found)) <= epsilon * (1 + 1e-9)
    alone, visits = float(one.loss().zcdp() or 0), rule.visits(9, 3)
    assert stated <= visits**2 * alone * 1.01
    if rule.per_batch == 1:
        assert stated < 0.6 * visits**2 * alone, "visits in different batches cost less"
    assert stated > alone, "the price of one visit would not do"
    assert worst > alone


@pytest.mark.parametrize("budget", [ZCDP("0.02"), PureDP(1), Renyi({8: "0.3"}), ZCDP(3)], ids=repr)
@pytest.mark.parametrize("rule", [None, Participation(most=3, apart=2)])
def test_calibrated_noise_uses_the_budget_up(budget: Any, rule: Participation | None) -> None:
    made = Made.calibrated(THREE, 0.5, budget, sizes=(2, 3, 4), participation=rule)
    price = budget.price(made.loss())
    assert budget.covers(price)
    assert not budget.share("0.9999").covers(price)
    assert made.weights == (1, 1, 1)
    assert made.scale_at(3) == made.scale


def test_the_rest_of_a_stream_costs_no_more_and_keeps_its_ends() -> None:
    rest = SMALL.for_last(range(3, 9))
    assert (rest.sizes, rest.weights, rest.growth) == ((2, 4), (2, 5), (1536, 3072))
    assert SMALL.for_last(range(9)) is SMALL
    assert rest.loss() == SMALL.loss()
    alone = Made(rest.vertices, 0.5, 4.0, rest.sizes, rest.weights, rest.growth)
    assert (alone.loss().zcdp() or 0) <= (SMALL.loss().zcdp() or 0)
    for users in (range(0), range(10)):
        with pytest.raises(UsersError, match="must be some of the last 9"):
            SMALL.for_last(users)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="noise needs a budget"):
        Made.calibrated(THREE, 0.5, ZCDP(0), sizes=(2, 3))
    for sizes, weights, growth, named in (
        ((), (), (), "sizes"),
        ((2, 3), (1,), (1024, 1024), "weights: has 1 entries for 2 batches"),
        ((2, 3), (1, 0), (1024, 1024), "weights = 0"),
        ((2, 3), (1, 1), (1024, 1023), "growth = 1023: must be at least 1024"),
    ):
        with pytest.raises(ValueError, match=named):
            Made(THREE, 0.5, 4.0, sizes, weights, growth)
    accountant: CentralAccountant[Any] = CentralAccountant(
        ZCDP(1),
        users=range(9),
        people=People.memory(Participation(3)),
        adjacency=Adjacency.ZERO_OUT,
        noise=NoiseSource.simulation(0),
    )
    made = Made.calibrated(
        THREE,
        0.5,
        ZCDP(1),
        sizes=(2, 3, 4),
        adjacency=Adjacency.ZERO_OUT,
        participation=Participation(3, per_batch=1),
    )
    with pytest.raises(UsersError, match="a person may have more rows in a batch"):
        made.open(accountant.issue(made.loss(), users=range(9), label="picks"))
    stream = opened(SMALL)
    with pytest.raises(UsersError, match="its batch ends before 2"):
        stream.append(Rows.seal(np.zeros((3, 3)), users=range(3)))
    assert math.isclose(SMALL.scale_at(3), 12.0)
