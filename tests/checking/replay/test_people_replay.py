"""Replay with all visits of one person replaced or nulled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from faults.learners_learning import Honest
from grids import thinned
from learner_cases import PEOPLE_CASES, LearnerCase, replay_pairs

from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import Person, null_person, replaced, returning_pair
from privlearn.checking.replay.protocols import serve_people
from privlearn.errors import CheckError, InterferenceError
from privlearn.mechanisms.choice_model import Items
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation

RULE = Participation(2)
PUBLIC = Participation(2, pattern="public")
PAIRS = 6


class Returning(Honest):
    """Honest, of people who return."""

    def __init__(self, accountant: Any) -> None:
        super().__init__(accountant)
        self._person: Any = None
        self._visits: Counter[Any] = Counter()

    def select(self, features: Array, /, *, person: Any = None) -> Items:
        self._person = person
        self._visits[person] += person is not None
        user = range(self.board.clock, self.board.clock + 1)
        rows = Rows.seal(np.array(features)[None], users=user).map_rows(np.array)
        self.asked = self.board.serve(rows, self.policy, people=[self.named(person)])
        items = self.asked.reveal()
        assert items is not None
        return items

    def named(self, person: Any) -> Any:
        return person

    def learned(self) -> int:
        """Visits so far that a quota had room for: what nobody may know."""
        return sum(min(n, RULE.most) for n in self._visits.values())


class BatchOfLearnedRows(Returning):
    """A batch is full when so many visits were learned."""

    def is_full(self) -> bool:
        return self.learned() >= self.every and len(self.pending) >= self.every


class CountsLearnedRows(Returning):
    """Says how many visits were learned."""

    def public_state(self) -> Any:
        return {"rows": self.learned(), "belief": self.belief.tolist()}


class StepByLearnedRows(Returning):
    """Divides by the number of learned rows, in place of slots."""

    def learn(self, rows: Rows[Array]) -> Array:
        return super().learn(rows) / max(self.learned(), 1)


class OtherOffersAtTheEndOfAQuota(Returning):
    """Shows everybody something else from when on a quota ended."""

    def policy(self, own: Array) -> Items:
        ended = max(self._visits.values(), default=0) > RULE.most
        return super().policy(-own if ended else own)


class SaysThatAQuotaEnded(Returning):
    """Prints it."""

    def observe(self, choice: int | None, /) -> None:
        super().observe(choice)
        if self._visits[self._person] > RULE.most:
            print("served only")


class FailsAtTheEndOfAQuota(Returning):
    """Refuses whoever has come too often."""

    def select(self, features: Array, /, *, person: Any = None) -> Items:
        if self._visits[person] >= RULE.most:
            raise ValueError("this person came too often")
        return super().select(features, person=person)


class DropsSurplusVisits(Returning):
    """Leaves them out, so that those behind them move up."""

    def observe(self, choice: int | None, /) -> None:
        if self._visits[self._person] <= RULE.most:
            super().observe(choice)
            return
        assert self.asked is not None
        self.asked.deliver(lambda own, items: own.mean(axis=1))


class NamesEveryVisitAnew(Returning):
    """Each visit is another person's."""

    def named(self, person: Any) -> Any:
        return None if person is None else f"{person} at {self.board.clock}"


def pair_of(number: int, *, public: bool = False) -> tuple[list[Person], list[Person]]:
    both = returning_pair(5, number, users=15, public=public)
    tame = {id(user): in_an_array(user) for people in both for user in people}
    first, second = ([tame[id(user)] for user in people] for people in both)
    return first, second


def in_an_array(user: Person) -> Person:
    """With data of the right shape, whatever is in it."""
    if getattr(user.features, "shape", None) == (6, 2) and user.features.dtype == float:
        return user
    return replace(user, features=np.full((6, 2), np.nan))


HONEST_RULES = [RULE, PUBLIC, Participation(3, apart=2), Participation(1)]


@pytest.mark.parametrize("rule", HONEST_RULES, ids=str)
def test_an_honest_learner_passes(rule: Participation) -> None:
    moved = 0
    for number in range(PAIRS):
        pair = pair_of(number, public=rule.pattern == "public")
        found = assert_noninterference(Returning, *pair, rule=rule, seed=number)
        assert found.visits >= 4
        moved += found.moved
    assert moved >= PAIRS // 2


@pytest.mark.parametrize(
    ("leak", "words"),
    [
        (BatchOfLearnedRows, "then spend of"),
        (CountsLearnedRows, "['rows']"),
        (StepByLearnedRows, "['belief']"),
        (OtherOffersAtTheEndOfAQuota, "received"),
        (SaysThatAQuotaEnded, "printed"),
        (FailsAtTheEndOfAQuota, "came too often"),
        (DropsSurplusVisits, "raises UsersError"),
        (NamesEveryVisitAnew, "are opened"),
    ],
)
def test_leaks_of_a_quota_are_found(leak: type[Returning], words: str) -> None:
    found = []
    for number in range(PAIRS):
        try:  # the honest learner passes on the same pairs
            assert_noninterference(leak, *pair_of(number), rule=RULE, seed=number)
        except InterferenceError as error:
            found.append(str(error))
        except CheckError:  # others, too, have used up their quota
            continue
    assert any(words in text for text in found), found
    assert all("the person at slots [0, " in text for text in found)


@pytest.mark.parametrize("case", thinned(PEOPLE_CASES, 3), ids=str)
def test_shipped_learners_pass(case: LearnerCase) -> None:
    assert any(found.moved for found in replay_pairs(case, 3, seed=1))


def visitors(ids: str) -> list[Person]:
    rng = np.random.default_rng(1)
    data, _ = returning_pair(0, users=len(ids))
    return [
        Person(rng.normal(size=(6, 2)), user.answer, id=id)
        for user, id in zip(data, ids, strict=True)
    ]


def test_what_is_no_neighbour_is_refused() -> None:
    data = visitors("abacab")
    nobody = [replaced(data, at, null_person()) for at in (0, 1)]
    with pytest.raises(CheckError, match=r"all visits of one person.*slots \[2, 4\]"):
        assert_noninterference(Returning, data, nobody[0], rule=RULE)
    with pytest.raises(CheckError, match="visits of 2 persons"):
        assert_noninterference(Returning, nobody[0], nobody[1], rule=RULE)
    with pytest.raises(CheckError, match="visits of 0 persons"):
        assert_noninterference(Returning, data, data, rule=RULE)
    empty = [null_person() if user.id == "a" else user for user in data]
    assert assert_noninterference(Returning, data, empty, rule=RULE).visits == 3
    with pytest.raises(CheckError, match="slots stay"):
        assert_noninterference(Returning, data, empty, rule=PUBLIC)
    others = [Person(-u.features, u.answer, id="a") if u.id == "a" else u for u in data]
    assert assert_noninterference(Returning, data, others, rule=PUBLIC).visits == 3
    with pytest.raises(CheckError, match="must be None"):
        assert_noninterference(Returning, data, others, rule=RULE)


def test_a_protocol_without_ids_checks_nothing() -> None:
    def forgets(learner: Any, users: Any) -> Any:
        return serve_people(learner, (Person(u.features, u.answer) for u in users))

    data = visitors("abacab")
    empty = [null_person() if user.id == "a" else user for user in data]
    found = assert_noninterference(Returning, data, empty, rule=RULE, protocol=forgets)
    assert found.moved == 0  # nobody is learned
