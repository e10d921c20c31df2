"""What a person with several visits pays for picks of experts: exact divergences, end to end.

Losses do not depend on who is followed, so what receipts open fixes the law of every pick, and
picks are independent of each other.  `laws` knows that a pick is a softmax of weighted sums, and
none of the package's prices.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from participation_oracle import Visits

from privlearn.accountants import JointAccountant
from privlearn.errors import InsufficientBudgetError
from privlearn.learners import PrivateExperts, private_experts
from privlearn.learners.expert_blocks import fading
from privlearn.losses import LeastLoss
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation

SLOTS, N, FIRST = range(120), 3, 20
RULES = [
    Participation(3),
    Participation(3, apart=2, pattern="public"),
    Participation(3, per_batch=1),
    Participation(2, pooled=True),
]
BEST = np.array([0.0, 1.0, 1.0])
"""Losses of one person: one expert is as good as it can be, and the others as bad."""
FADING = cache(lambda sizes, pure: fading(sizes, pure=pure))
PLACES = [1, 4, 9], [2, 50, 99]
"""Three visits in one block, and a block each."""


class Seen:
    """The rows of each block that a receipt opens, and what was spent."""

    def __init__(self) -> None:
        self.rows: list[Array] = []
        self.spends: list[Any] = []

    def spent(self, token: Any, spend: Any) -> None:
        self.spends.append(spend)

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        self.rows.append(np.array(rows) * spend.grid.step)

    def released(self, token: Any, value: Any) -> Any:
        return value


def started(cap: Currency, rule: Participation, seen: Any = None) -> tuple[Any, Any]:
    noise = NoiseSource.simulation(0)
    book = JointAccountant(cap, users=SLOTS, people=People.memory(rule), noise=noise, observer=seen)
    return PrivateExperts(N, first_block=FIRST).start(book), book


def world(
    cap: Currency, rule: Participation, visits: list[int], mine: Array | None
) -> tuple[Seen, Any]:
    """One person comes at ``visits``, and others, each once, at all other slots."""
    seen, losses = Seen(), np.random.default_rng(0).random((len(SLOTS), N))
    losses[visits] = np.nan if mine is None else mine
    learner, book = started(cap, rule, seen)
    left = iter(losses)

    def respond(experts: Any) -> Array:
        return np.array([next(left) for _ in experts])

    ids = ["me" if t in visits else f"other {t}" for t in SLOTS]
    learner.play(len(SLOTS), respond, people=ids)
    return seen, book


def laws(seen: Seen) -> Array:
    """log probabilities of all experts in each pick, shape (picks, N)."""
    (spend,) = seen.spends
    sums = np.array([rows.sum(axis=0) for rows in seen.rows])
    weighed = np.cumsum(np.array(spend.parameters["weights"])[:, None] * sums, axis=0)
    growth = np.array([float(Fraction(each)) for each in spend.parameters["growth"]])
    scores = weighed / (spend.noise.scale * growth)[:, None]
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))


def told(one: Array, other: Array, pure: bool) -> float:
    """The exact ε of all picks together, or the least ρ for which D_α <= ρα at these orders."""
    if pure:
        return float(np.abs(one - other).max(axis=1).sum())
    rhos = []
    for p, q in ((one, other), (other, one)):
        for order in (1.001, 1.5, 2.0, 4.0, 16.0, 64.0):
            each = np.log(np.exp(order * p - (order - 1) * q).sum(axis=1)) / (order - 1)
            rhos.append(float(each.sum()) / order)
    return max(rhos)


def check_price(cap: Currency, rule: Participation) -> float:
    """How much of what is charged the worst place of three visits tells, of those tried."""
    away = None if rule.pattern == "private" else BEST[::-1]
    shares = []
    for visits in PLACES:
        (one, book), (other, _) = (world(cap, rule, visits, mine) for mine in (BEST, away))
        oracle = Visits(rule, range(0, len(SLOTS), FIRST))
        learned = [t for t in visits if oracle.learns("me", t)]
        rows = [np.concatenate(seen.rows) for seen in (one, other)]
        moved = np.flatnonzero((rows[0] != rows[1]).any(axis=1)).tolist()
        # pooled: one row, of all visits in a block, at the first of them
        assert moved == (learned if not rule.pooled else learned[: 1 if visits[2] < FIRST else 2])
        charged = float(book.spent().amounts[0])
        assert charged <= float(cap.amounts[0])
        exact = told(laws(one), laws(other), isinstance(cap, PureDP))
        assert exact <= charged
        shares.append(exact / charged)
    return max(shares)


@pytest.fixture(autouse=True)
def _weights_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_experts, "fading", lambda sizes, pure: FADING(tuple(sizes), pure))


@pytest.mark.parametrize(
    ("cap", "rule"), list(zip([PureDP(3), ZCDP("1/2")] * 2, RULES, strict=True)), ids=str
)
def test_no_person_is_charged_less_than_the_picks_tell(cap: Currency, rule: Participation) -> None:
    assert check_price(cap, rule) > 0.4  # others' losses make no pick a matter of course


def test_noise_for_one_visit_is_refused_and_a_price_of_one_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twins that are broken: the learner asks for too little, and the accountant agrees."""
    monkeypatch.setattr(private_experts, "rule_of", lambda accountant: None)
    with pytest.raises(InsufficientBudgetError):
        check_price(PureDP(3), RULES[0])
    monkeypatch.setattr(LeastLoss, "for_visits", lambda self, most, apart=1: self)
    with pytest.raises(AssertionError, match="<="):
        check_price(PureDP(3), RULES[0])
