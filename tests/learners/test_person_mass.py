"""How far a person's rows really move what learners release, against what they say it costs.

All rows are alike and as far from null as their clips let them be.  With what receipts opened, the
matrices of the streams and the noise that was drawn, the Gaussian mass of any pattern of visits is
arithmetic: here it is done for many patterns of the rule, without the accountant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from streams_and_matrices import matrix_c

from privlearn.accountants import CentralAccountant
from privlearn.learners import DPPOFW, DPTOFW
from privlearn.learners.streaming import StreamLearner
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation as Rule

N, DIM = 48, 3
CASES: dict[str, Callable[[], Any]] = {
    "plain": lambda: DPTOFW(DIM, method="plain", clip=1e-3),
    "buffered": lambda: DPTOFW(DIM, method="buffered", clip=1e-3),
    "whitened": lambda: DPTOFW(DIM, method="whitened", clip=1e-3),
    "pofw": lambda: DPPOFW(LpBall(DIM, 1, 1.0), method="thresholds"),
}
RULES = [Rule(1), Rule(4), Rule(4, apart=9), Rule(5, per_batch=2), Rule(3, pooled=True)]


class Book:
    """What every token opened, and its spend."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[Any, Any]] = {}

    def spent(self, token: Any, spend: Any) -> None:
        self.rows[token.id] = spend, np.zeros((N, 0))

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        _, before = self.rows[token.id]
        if not before.size:
            before = np.zeros((N, rows.shape[1]))
        before[users.start : users.stop] = spend.grid.values(np.array(rows))
        self.rows[token.id] = spend, before

    def released(self, token: Any, value: Any) -> Any:
        return value


def mechanisms(found: Any, depth: int = 4) -> Iterator[Any]:
    """All streams that a strategy holds."""
    if hasattr(found, "factorization"):
        yield found
    elif isinstance(found, list | tuple) and depth:
        for each in found:
            yield from mechanisms(each, depth - 1)
    elif type(found).__module__.startswith("privlearn.learners") and depth:
        for each in vars(found).values():
            if not isinstance(each, StreamLearner):
                yield from mechanisms(each, depth - 1)


def moves(case: str, rule: Rule) -> tuple[list[Any], list[int]]:
    """Maps from slots to what is released in units of the noise, and the batches of the rule."""
    book = Book()
    account = CentralAccountant(
        ZCDP(1),
        users=range(N),
        noise=NoiseSource.simulation(0),
        people=People.memory(rule),
        observer=book,
    )
    learner = CASES[case]().start(account)
    # everybody comes once: then each slot's own row is seen
    learner.partial_fit(np.full((N, DIM), 0.5), np.ones(N), people=list(range(N)))
    streams = {id(each.spend()): each for each in mechanisms(learner._strategy)}
    maps = []
    for spend, rows in book.rows.values():
        stream = streams.get(id(spend))
        users = np.flatnonzero(rows.any(axis=1))
        first = int(users[0])
        if stream is None:
            mixing = np.ones((1, N))
        else:
            sizes = spend.parameters.get("sizes", [1] * N)
            ends = np.cumsum([first, *sizes])
            into = np.zeros((len(sizes), N))
            for batch, (start, stop) in enumerate(pairwise(ends)):
                into[batch, start:stop] = 1
            mixing = matrix_c(stream.factorization, len(sizes)) @ into
        maps.append((mixing, rows / spend.noise.std))
    starts = [0] if not rule.batched else list(learner._rule_batches)
    return maps, starts


def patterns(rule: Rule, starts: list[int], seed: int) -> Iterator[list[int]]:
    """Slots of one person's learned rows: early, late, close together, and anyhow."""
    rng = np.random.default_rng(seed)
    for trial in range(60):
        order = rng.permutation(N)
        if trial < 20:
            order = np.argsort(np.abs(np.arange(N) - rng.integers(N)), kind="stable")
        most = 1 if rule.pooled else rule.per_batch
        chosen: list[int] = []
        for slot in order.tolist():
            batch = sum(start <= slot for start in starts)
            inside = sum(sum(start <= other for start in starts) == batch for other in chosen)
            near = any(abs(slot - other) < rule.apart for other in chosen)
            if len(chosen) < rule.most and not near and (most is None or inside < most):
                chosen.append(slot)
        yield sorted(chosen)


def largest(case: str, rule: Rule) -> float:
    """The largest Gaussian mass that was found; the budget is 2."""
    maps, starts = moves(case, rule)
    best = 0.0
    for pattern in patterns(rule, starts, 0):
        mass = sum(((mix[:, pattern] @ rows[pattern]) ** 2).sum() for mix, rows in maps)
        best = max(best, float(mass))
    return best


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_no_pattern_moves_more_than_was_paid_for(case: str, rule: Rule) -> None:
    if case == "plain" and rule.batched:
        return
    mass = largest(case, rule)
    assert mass <= 2 * (1 + 1e-9)
    assert mass >= 0.77 * 2  # of what was paid: whitened features are not at their bound


def test_rows_that_cost_as_one_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rule, "visits", lambda *_: 1)
    assert largest("buffered", Rule(4)) > 2
