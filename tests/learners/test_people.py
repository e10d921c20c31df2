"""Learners from logged rows under a rule of participation: prices, replay, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from grids import thinned

from privlearn import Adjacency
from privlearn.accountants import CentralAccountant
from privlearn.errors import InsufficientBudgetError, ProvenanceError, UsersError
from privlearn.learners import DPPOFW, DPTOFW, person_budgets
from privlearn.learners.noisy_sgd import NoisySGD
from privlearn.learners.participation import one_row_budget
from privlearn.learners.streaming import StreamLearner
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation as Rule
from privlearn_studies.rivals.convex import LocalMD, NoisySFW, PublishedTOFW

DIM, MOST = 3, 50
POOLED = Rule(2, pooled=True)
Make = Callable[[], StreamLearner]
METHODS: dict[str, Make] = {
    "plain": lambda: DPTOFW(DIM, method="plain"),
    "anytime": lambda: DPTOFW(DIM, method="plain", anytime=True),
    "buffered": lambda: DPTOFW(DIM, method="buffered"),
    "whitened": lambda: DPTOFW(DIM, method="whitened", constant=0.5),
    "thresholds": lambda: DPPOFW(LpBall(DIM, 1, 1.0), method="thresholds"),
    "projections": lambda: DPPOFW(LpBall(DIM, 1, 1.0), method="projections"),
    "choices": lambda: DPPOFW(LpBall(DIM, 1, 1.0), method="choices"),
    "vertices": lambda: DPPOFW(LpBall(DIM, 1, 1.0), method="vertices"),
}
RULES = [
    Rule(3),
    Rule(3, apart=40),
    Rule(5, per_batch=2),
    Rule(2, per_batch=1, pattern="public"),
    Rule(5, pooled=True),
]


def makes(method: str, rule: Rule) -> bool:
    return not (rule.batched and method in ("plain", "anytime"))


def accountant(
    rule: Rule | None,
    users: int,
    budget: Currency = ZCDP(1),  # noqa: B008
    observer: Any = None,
) -> CentralAccountant[Any]:
    return CentralAccountant(
        budget,
        users=range(users),
        noise=NoiseSource.simulation(0),
        people=None if rule is None else People.memory(rule),
        observer=observer,
    )


def rows(n: int, seed: int = 0) -> tuple[Any, Any, list[int]]:
    """Features, labels and persons, who come about five times each."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.5, 0.5, size=(n, DIM))
    theta = np.array([0.6, -0.5, 0.3])
    ids = [int(i) for i in rng.integers(0, max(n // 5, 1), n)]
    return x, np.clip(x @ theta + 0.1 * rng.normal(size=n), -1, 1), ids


# What a person pays -------------------------------------------------------------------------------


@pytest.mark.parametrize("rooms", [[1], [3], [2, 2], [1, 4], [3, 3, 1], [2, 5, 4]])
@pytest.mark.parametrize("most", [1, 2, 5, 9])
@pytest.mark.parametrize("budget", [ZCDP(1), PureDP(1)])
def test_a_row_may_cost_what_the_worst_pattern_leaves(
    rooms: list[int], most: int, budget: Currency
) -> None:
    patterns = itertools.product(*(range(m + 1) for m in rooms))
    each = (lambda room: room) if isinstance(budget, ZCDP) else (lambda _: 1)
    worst = max(
        sum(rows * each(room) for rows, room in zip(pattern, rooms, strict=True))
        for pattern in patterns
        if sum(pattern) <= most
    )
    users = [range(10 * i, 10 * i + 10) for i in range(len(rooms))]
    account = accountant(Rule(most), 10 * len(rooms), budget)
    assert one_row_budget(account, users, rooms) == budget.share(Fraction(1, worst))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_whole_plans_fit_and_little_is_left(method: str, rule: Rule) -> None:
    if not makes(method, rule):
        return
    account = accountant(rule, 300)
    METHODS[method]().start(account)
    (promised,) = account.certificate().guarantees
    # of a bounded range the bound m² is not attained, and of a stream S is not
    least = 0.5 if method in ("choices", "vertices") else 0.98
    if rule.per_batch == 2:
        least = 0.4  # 2 and 2 and 1 visits: counted as 5 of 4
    assert promised.rho is not None
    assert least <= promised.rho <= 1


@pytest.mark.parametrize("budget", [GaussianDP(1), Renyi({4: 1})], ids=["mu", "renyi"])
def test_other_currencies(budget: Currency) -> None:
    account = accountant(POOLED, 300, budget)
    METHODS["buffered"]().start(account)
    assert not account.certificate().problems


def test_pure_budgets_add_up_by_visits() -> None:
    account = accountant(Rule(4, per_batch=2), 300, PureDP(4))
    learner = DPPOFW(LpBall(DIM, 1, 1.0)).start(account)
    assert learner.method_ == "choices"
    assert 3.9 <= account.epsilon(0.0) <= 4


def test_parallel_composition_is_refused_for_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person_budgets, "one_row_budget", lambda account, *_: account.budget)
    with pytest.raises(InsufficientBudgetError):
        METHODS["buffered"]().start(accountant(POOLED, 300))


def test_pooling_is_better_than_group_privacy_where_a_few_come_often() -> None:
    def error(rule: Rule, seed: int) -> float:
        rng = np.random.default_rng(seed)
        visits = np.minimum(rng.pareto(1.1, 300) + 1, MOST).astype(int)
        ids = rng.permutation(np.repeat(np.arange(300), visits))
        x = rng.uniform(-0.5, 0.5, size=(len(ids), DIM))
        theta = np.array([0.6, -0.5, 0.3])
        account = accountant(rule, len(ids), ZCDP("0.3"))
        learner = METHODS["buffered"]().start(account)
        learner.partial_fit(x, x @ theta, people=ids)
        return float(((learner.coef_ - theta) ** 2).sum())

    seeds = range(3)
    pooled, group = (
        np.mean([error(rule, seed) for seed in seeds]) for rule in (POOLED, Rule(MOST))
    )
    assert pooled < 0.25 * group
    assert pooled < 0.05  # that of no learning is 0.7


# Replay -------------------------------------------------------------------------------------------


@dataclass
class Watcher:
    """Notes what is opened and released; releases those of an earlier run, if there is one."""

    earlier: Watcher | None = None
    opened_rows: list[tuple[str, range, Any]] = field(default_factory=list)
    spends: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def spent(self, token: Any, spend: Any) -> None:
        self.spends.append(f"{token.label} {token.users} {spend}")

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        self.opened_rows.append((token.label, users, np.array(rows)))

    def released(self, token: Any, value: Any) -> Any:
        number = len(self.values)
        self.values.append(np.array(value))
        return value if self.earlier is None else self.earlier.values[number]


def played(
    make: Make, rule: Rule, data: tuple[Any, Any, list[Any]], size: int, watcher: Watcher
) -> dict[str, Any]:
    """Everything that is public after a run."""
    x, y, ids = data
    account = accountant(rule, len(y) + 7, observer=watcher)
    learner = make().start(account)
    seen: list[Any] = []
    for start in range(0, len(y), size):
        part = slice(start, start + size)
        learner.partial_fit(x[part], y[part], people=ids[part])
        seen.append(learner.coef_.tolist())
    learner.skip(7)
    account.close()
    book = [entry.model_dump_json() for entry in account.ledger.entries]
    people = account.people
    assert people is not None
    return {
        "coef": seen,
        "state": learner.public_state(),
        "board": [
            (item["name"], item["at"], item["value"]) for item in learner.billboard_.history()
        ],
        "ledger": [
            text.replace(account.id, "account").replace(people.id, "registry") for text in book
        ],
        "spends": watcher.spends,
        "clock": people.clock,
    }


def changed(first: Watcher, second: Watcher) -> Iterator[tuple[str, int]]:
    """Labels and slots of opened rows that differ."""
    for (label, users, a), (other, same, b) in zip(
        first.opened_rows, second.opened_rows, strict=True
    ):
        assert (label, users, a.shape) == (other, same, b.shape)
        for i in np.flatnonzero((a != b).reshape(len(a), -1).any(axis=1)):
            yield label, users[int(i)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "rule", thinned([Rule(3, per_batch=2), Rule(3, apart=5), POOLED], 2), ids=str
)
def test_replay_with_all_rows_of_a_person_replaced(method: str, rule: Rule) -> None:
    if not makes(method, rule):
        return
    x, y, ids = rows(80)
    person = ids[0]
    mine = [slot for slot, who in enumerate(ids) if who == person]
    assert len(mine) > 3  # the rule has no room for all
    nulled = x.copy(), y.copy(), list(ids)
    nulled[0][mine] = np.nan
    other = -x, y.copy(), list(ids)
    other[0][:] = x
    other[0][mine] *= -1
    first = Watcher()
    public = played(METHODS[method], rule, (x, y, ids), 17, first)
    for data in (nulled, other):
        again = Watcher(first)
        assert played(METHODS[method], rule, data, 17, again) == public
        moved = list(changed(first, again))
        assert moved, "nothing that was paid for depends on this person"
        assert {slot for _, slot in moved} <= set(mine)
        for label in {label for label, _ in moved}:
            slots = {slot for name, slot in moved if name == label}
            assert len(slots) <= rule.most


def test_a_person_with_a_quota_left_or_none_looks_alike() -> None:
    x, y, ids = rows(120)
    late = [slot for slot, who in enumerate(ids) if who == ids[0]][-1]
    first, again = Watcher(), Watcher()
    public = played(METHODS["buffered"], Rule(1), (x, y, ids), 20, first)
    again.earlier = first
    x[late] = 0.4
    assert played(METHODS["buffered"], Rule(1), (x, y, ids), 20, again) == public
    assert not list(changed(first, again))  # the row of a visit too many is never opened


def test_blocks_and_single_rows_learn_the_same() -> None:
    x, y, ids = rows(60)
    found = []
    for method, rule in (("buffered", POOLED), ("plain", Rule(2, apart=3))):
        ends = []
        for size in (1, 7, 60):
            learner = METHODS[method]().start(accountant(rule, 60))
            for start in range(0, 60, size):
                part = slice(start, start + size)
                if size == 1:  # one id as it is
                    learner.partial_fit(x[start], y[start], people=ids[start])
                else:
                    learner.partial_fit(x[part], y[part], people=ids[part])
            ends.append(learner.coef_.tolist())
        assert ends[0] == ends[1] == ends[2]
        found.append(ends[0])
    assert found[0] != found[1]


def test_a_row_that_is_no_numbers_leaves_the_rest_of_its_person() -> None:
    x, y, ids = np.full((20, DIM), 0.3), np.full(20, 0.9), [1] * 10 + [2] * 10
    opened = []
    for bad in (False, True):
        watcher = Watcher()
        if bad:
            x = x.copy()
            x[0] = np.nan
        learner = DPTOFW(DIM, method="buffered")
        learner.start(accountant(Rule(1, pooled=True), 20, observer=watcher))
        learner.partial_fit(x, y, people=ids)
        opened.append(watcher.opened_rows)
    for (_, _, a), (_, _, b) in zip(*opened, strict=True):
        assert (a != 0).any(axis=1).tolist() == (b != 0).any(axis=1).tolist()
        assert np.allclose(a, b, rtol=1e-9, atol=1)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "rule", "words"),
    [
        (METHODS["plain"], POOLED, "method = 'plain' releases after every row"),
        (METHODS["plain"], Rule(2, per_batch=1), "use Participation"),
        (lambda: DPPOFW(LpBall(DIM, 1, 1.0), method="published"), Rule(2), "each pick reads all"),
        (METHODS["buffered"], Rule(2, clock="timetable"), "use clock = 'arrivals'"),
        (lambda: NoisySGD(DIM), POOLED, "NoisySGD: no price for a person"),
        (lambda: NoisySFW(DIM), POOLED, "NoisySFW: no price for a person"),
        (lambda: LocalMD(DIM), POOLED, "LocalMD: no price for a person"),
        (lambda: PublishedTOFW(DIM), Rule(1), "PublishedTOFW: no price for a person"),
    ],
)
def test_no_price_is_refused_before_anything_is_spent(make: Any, rule: Rule, words: str) -> None:
    account = accountant(rule, 50)
    with pytest.raises(ValueError, match=words):
        make().start(account)
    assert [entry.entry for entry in account.ledger.entries] == ["open"]
    assert account.people is not None
    account.people.skip(range(0, 50)) if not rule.batched else None


def test_ids_that_do_not_fit_change_nothing() -> None:
    x, y, ids = rows(30)
    learner = METHODS["buffered"]().start(accountant(Rule(2), 30))
    with pytest.raises(ProvenanceError, match="people is missing"):
        learner.partial_fit(x, y)
    with pytest.raises(UsersError, match="30 slots, there are 29 ids"):
        learner.partial_fit(x, y, people=ids[1:])
    with pytest.raises(TypeError, match="ids: float"):
        learner.partial_fit(x, y, people=[0.5, *ids[1:]])
    with pytest.raises(TypeError, match="ids: str: must be a list"):
        learner.partial_fit(x, y, people="maria")
    assert learner.clock_ == 0
    assert not learner.private_messages_
    learner.partial_fit(x, y, people=[None, *ids[1:]])
    assert learner.clock_ == 30
    assert learner.private_messages_ == [(0, "no id says who came; your record does not count")]


def test_ids_without_a_registry_are_refused() -> None:
    x, y, ids = rows(30)
    learner = METHODS["buffered"]().start(accountant(None, 30))
    with pytest.raises(ProvenanceError, match="has no rule of participation"):
        learner.partial_fit(x, y, people=ids)


def test_public_pattern_goes_with_replace_one() -> None:
    account = accountant(Rule(2, per_batch=1, pattern="public"), 100)
    assert account.adjacency is Adjacency.REPLACE_ONE
    x, y, ids = rows(100)
    METHODS["whitened"]().start(account).partial_fit(x, y, people=ids)
    account.close()
    assert not account.certificate().problems


# Forgetting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_are_kept_lose_the_data_of_who_is_forgotten(method: str) -> None:
    if not makes(method, POOLED):
        return
    learner = METHODS[method]().start(accountant(POOLED, 300))
    learner.partial_fit(np.full((3, DIM), 0.25), np.full(3, 0.5), people=["a", "b", "a"])
    strategy: Any = learner._strategy  # type: ignore[attr-defined]
    holder = strategy if hasattr(strategy, "_pending") else strategy._epochs

    def real() -> int:
        """Records that hold something; null ones are blanked."""
        chunks = [chunk for rows in holder._pending for chunk in rows._Rows__chunks]
        for chunk in chunks:
            first = chunk.block[0] if isinstance(chunk.block, tuple) else chunk.block
            assert not first[~chunk.valid].any()
        return sum(int(chunk.valid.sum()) for chunk in chunks)

    assert real() == 3
    learner.forget("a")
    assert real() == 1
