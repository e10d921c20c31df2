"""What a person with several visits pays in phases: exact density ratios, and no less is charged.

A learner runs twice while the same values leave: with a person's records, and with others or none.
Its phases must then be the same, and the densities of these values differ by what the opened sums
say: `paid` knows the law of the noise, and none of the package's prices.  Which visits are learned
is counted by an oracle of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from mortal_subjects import Leader
from participation_oracle import Visits

from privlearn.accountants import JointAccountant
from privlearn.errors import InsufficientBudgetError, ProvenanceError
from privlearn.learners import HeldPolicy, PrivateArms, PrivateTest, phases
from privlearn.losses import LaplaceLoss
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation

SLOTS = range(330)
PRIVATE, PUBLIC = Participation(3), Participation(3, apart=2, pattern="public")


LEARNERS: dict[str, Callable[[], Any]] = {
    "arms": lambda: PrivateArms(2),
    "held": lambda: HeldPolicy(Leader(2), n_arms=2, hold=8),
    "pairs": lambda: PrivateTest(assume="coin", random_state=1),
    "groups": lambda: PrivateTest(3, assume="coin", random_state=1),
}
WAYS: dict[str, Callable[[int], list[int]]] = {
    "arms": lambda arm: [1],
    "held": lambda arm: [1],
    "pairs": lambda arm: [2 * arm - 1],
    "groups": lambda arm: [int(arm == each) for each in range(3)],
}
"""How a reward enters the released numbers, by the arm that was shown."""
REFUSED = [
    Participation(3, per_batch=1),
    Participation(3, pooled=True),
    Participation(3, clock="timetable"),
]


@dataclass
class Scripted:
    """Lets values leave that do not depend on rows, far above all sums; sees what is opened."""

    way: Callable[[int], list[int]]
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    spends: list[Any] = field(default_factory=list)
    phases: list[range] = field(default_factory=list)
    sums: list[Array] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    shown: list[int] = field(default_factory=list)

    def spent(self, token: Any, spend: Any) -> None:
        self.spends.append(spend)

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        self.phases.append(users)
        self.rows.update(zip(users, np.array(rows)[:, 0].tolist(), strict=True))
        each = [np.array(self.way(self.shown[t])) * self.rows[t] for t in users]
        self.sums.append(np.sum(each, axis=0))

    def released(self, token: Any, value: Array) -> Array:
        return 1e6 * (1 + self.rng.random(value.shape))


def account(cap: Currency, rule: Participation, seen: Any = None) -> JointAccountant[Any]:
    noise = NoiseSource.simulation(0)
    return JointAccountant(cap, users=SLOTS, people=People.memory(rule), noise=noise, observer=seen)


def served(
    learner: Any, seen: Scripted, visits: Sequence[int], reward: float | None, users: range = SLOTS
) -> None:
    """One person comes at ``visits``, and others, each once, at all other slots."""
    rewards = np.random.default_rng(1).random(len(SLOTS))
    rewards[list(visits)] = np.nan if reward is None else reward

    def respond(arms: Any) -> Array:
        first = len(seen.shown)
        seen.shown.extend(arms.tolist())
        return rewards[first : len(seen.shown)]

    ids = ["me" if t in visits else f"other {t}" for t in users]
    learner.play(len(users), respond, people=ids)


def world(
    name: str, cap: Currency, rule: Participation, visits: Sequence[int], reward: float | None
) -> tuple[Scripted, JointAccountant[Any]]:
    seen = Scripted(WAYS[name])
    book = account(cap, rule, seen)
    served(LEARNERS[name]().start(book), seen, visits, reward)
    return seen, book


def paid(one: Scripted, other: Scripted) -> float:
    """The exact log ratio of the densities of what left, or for normal noise ½·Σ(shift/std)²."""
    assert one.phases == other.phases, "the phases follow from rows"
    (spend,) = one.spends
    step, noise, total = spend.grid.step, spend.noise, 0.0
    for a, b in zip(one.sums, other.sums, strict=True):
        shift = (a - b) * step
        if isinstance(noise, LaplaceNoise):  # at values above both sums: e^(shift/scale)
            total += float(shift.sum()) / noise.scale
        else:
            total += float(shift @ shift) / (2 * noise.std**2)
    return total


def patterns(name: str, cap: Currency, rule: Participation) -> dict[str, list[int]]:
    """Five visits, three of which are learned: in one phase or each in another.

    All three move the same sums upward, where the values are.
    """
    seen, _ = world(name, cap, rule, [], None)
    way = WAYS[name]
    up = [[t for t in users if way(seen.shown[t]) == way(1)] for users in seen.phases]
    long = next(users for users in up if len(users) >= 6)
    each = [users[0] for users in up if len(users) > 2][:3]
    last = SLOTS.stop - 1
    return {"one phase": [*long[:6:2], last - 4, last], "three": [*each, last - 2, last]}


def check_price(name: str, cap: Currency, rule: Participation) -> None:
    records: tuple[float | None, float | None]
    records = (1.0, 0.0) if rule.pattern == "public" else (1.0, None)
    for where, visits in patterns(name, cap, rule).items():
        (one, book), (other, _) = (world(name, cap, rule, visits, reward) for reward in records)
        oracle = Visits(rule, [0])
        learned = [t for t in SLOTS if t in visits and oracle.learns("me", t)]
        assert [t for t in SLOTS if one.rows[t] != other.rows[t]] == learned
        assert len(learned) == 3
        charged = float(book.spent().amounts[0])
        assert charged <= float(cap.amounts[0])
        exact = paid(one, other)
        assert exact <= charged * (1 + 1e-9)
        if isinstance(cap, PureDP) or where == "one phase":
            assert exact > 0.99 * charged  # less would be more noise than it takes
        else:
            assert exact == pytest.approx(charged / 3, rel=0.01)


@pytest.mark.parametrize(("cap", "rule"), [(PureDP(2), PRIVATE), (ZCDP(2), PUBLIC)], ids=str)
@pytest.mark.parametrize("name", LEARNERS)
def test_no_person_is_charged_less_than_the_releases_tell(
    name: str, cap: Currency, rule: Participation
) -> None:
    check_price(name, cap, rule)


def test_noise_for_one_visit_is_refused_and_a_price_of_one_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twins that are broken: the learner asks for too little, and the accountant agrees."""
    monkeypatch.setattr(phases, "one_row_budget", lambda accountant, batches: accountant.budget)
    with pytest.raises(InsufficientBudgetError):
        check_price("arms", PureDP(2), PRIVATE)
    monkeypatch.setattr(LaplaceLoss, "for_visits", lambda self, most, apart=1: self)
    with pytest.raises(AssertionError, match=r"6\.0 <= \(2\.0"):
        check_price("arms", PureDP(2), PRIVATE)


@pytest.mark.parametrize("rule", REFUSED, ids=str)
@pytest.mark.parametrize("name", LEARNERS)
def test_rules_that_need_batches_are_refused_before_anything_is_spent(
    name: str, rule: Participation
) -> None:
    book = account(PureDP(2), rule)
    with pytest.raises((ValueError, ProvenanceError), match=r"pooled|per_batch|timetable"):
        LEARNERS[name]().start(book)
    assert [record.body["entry"] for record in book.ledger.records] == ["open"]


@pytest.mark.parametrize("name", LEARNERS)
def test_who_was_forgotten_is_in_no_sum_that_is_released_later(name: str) -> None:
    visits = patterns(name, PureDP(2), PRIVATE)["one phase"]
    seen = Scripted(WAYS[name])
    learner = LEARNERS[name]().start(account(PureDP(2), PRIVATE, seen))
    half = visits[1] + 1
    served(learner, seen, visits, 1.0, range(half))
    learner.forget("me")
    served(learner, seen, visits, 1.0, range(half, SLOTS.stop))
    without, _ = world(name, PureDP(2), PRIVATE, visits, None)
    assert seen.rows == without.rows


@pytest.mark.parametrize("name", LEARNERS)
def test_one_by_one_is_learned_as_many_at_once(name: str) -> None:
    seen, visits = Scripted(WAYS[name]), [3, 4, 30, 50, 60]
    learner = LEARNERS[name]().start(account(PureDP(2), PRIVATE, seen))
    rewards = np.random.default_rng(1).random(len(SLOTS))
    for t in SLOTS:
        seen.shown.append(learner.select(person="me" if t in visits else f"other {t}"))
        learner.observe(1.0 if t in visits else rewards[t])
    many, _ = world(name, PureDP(2), PRIVATE, visits, 1.0)
    assert (seen.shown, seen.rows) == (many.shown, many.rows)
