"""Which visits are learned: against the rule as it is written down, and person by person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutation import Edit, InspectionCase, Mutant
from participation_oracle import Visits, rules

from privlearn.people import People, quotas
from privlearn.values.participation import Participation

ME = "accountant"


@st.composite
def stories(
    draw: st.DrawFn,
) -> tuple[Participation, list[str | None], int, list[int], list[int]]:
    """A rule, visits from a first slot on, starts of batches, and where the calls are cut."""
    rule = draw(rules())
    visits = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=24))
    first = draw(st.integers(0, 3))
    inside = st.integers(first + 1, first + len(visits))
    starts = sorted(draw(st.sets(inside, max_size=4)) - {first + len(visits)})
    cuts = sorted(draw(st.sets(inside, max_size=3)) | {first + len(visits)})
    return rule, visits, first, [first, *starts], cuts


def masks(
    rule: Participation,
    visits: Sequence[str | None],
    first: int,
    starts: Sequence[int],
    cuts: Sequence[int],
) -> tuple[list[bool], list[int]]:
    people = People.memory(rule)
    people.bind(ME, range(first, first + len(visits)))
    if rule.batched:
        people.divide(starts)
    learned: list[bool] = []
    persons: list[int] = []
    begin = first
    for cut in cuts:
        admission = people.admit_visits(visits[begin - first : cut - first], range(begin, cut))
        learned += admission.learned.tolist()
        persons += admission.persons.tolist()
        begin = cut
    assert people.clock == first + len(visits)
    return learned, persons


@settings(max_examples=150, deadline=None)
@given(stories())
def test_a_visit_is_learned_as_the_rule_is_written(
    story: tuple[Participation, list[str | None], int, list[int], list[int]],
) -> None:
    rule, visits, first, starts, cuts = story
    oracle = Visits(rule, starts)
    expected = [oracle.learns(person, first + i) for i, person in enumerate(visits)]
    learned, persons = masks(rule, visits, first, starts, cuts)
    assert learned == expected
    names = {person: number for person, number in zip(visits, persons, strict=True)}
    assert names.get(None, -1) == -1
    numbers = [number for person, number in names.items() if person is not None]
    assert sorted(numbers) == list(range(len(numbers)))
    assert persons == [names[person] for person in visits]


@settings(max_examples=100, deadline=None)
@given(stories())
def test_a_person_has_the_mask_that_it_would_have_alone(
    story: tuple[Participation, list[str | None], int, list[int], list[int]],
) -> None:
    """Lemma 1: who else comes does not enter, and neither does how the calls are cut."""
    rule, visits, first, starts, cuts = story
    learned, _ = masks(rule, visits, first, starts, cuts)
    for person in {"a", "b", "c"} & set(visits):
        alone = [other if other == person else None for other in visits]
        mask, _ = masks(rule, alone, first, starts, [first + len(visits)])
        mine = [one and who == person for one, who in zip(learned, visits, strict=True)]
        assert mask == mine


@st.composite
def timetables(
    draw: st.DrawFn,
) -> tuple[Participation, list[tuple[int, str | None]], list[int], list[int]]:
    """A rule, visits in 12 slots, starts of batches, and before which visits the calls are cut."""
    rule = replace(draw(rules()), clock="timetable")
    slots = sorted(draw(st.lists(st.integers(0, 11), max_size=20)))
    who = st.sampled_from(["a", "b", "c", None])
    visits = [(slot, draw(who)) for slot in slots]
    starts = sorted(draw(st.sets(st.integers(1, 11), max_size=4)))
    cuts = draw(st.lists(st.integers(0, len(visits)), max_size=4))
    return rule, visits, [0, *starts], sorted(cuts)


def timed_mask(
    rule: Participation,
    visits: Sequence[tuple[int, str | None]],
    starts: Sequence[int],
    cuts: Sequence[int],
) -> list[bool]:
    """What is learned; a call ends in the slot of its last visit, the next may go on there."""
    people = People.memory(rule)
    people.bind(ME, range(12))
    if rule.batched:
        people.divide(starts)
    learned: list[bool] = []
    for begin, end in pairwise([0, *cuts, len(visits)]):
        part = visits[begin:end]
        clock = people.clock or 0
        if not part:
            continue
        first = min(clock, part[0][0])
        slots = [slot for slot, _ in part]
        users = range(first, slots[-1] + 1)
        learned += people.admit_visits([who for _, who in part], users, slots).learned.tolist()
    return learned


@settings(max_examples=150, deadline=None)
@given(timetables())
def test_on_a_timetable_it_is_the_same_rule_and_the_same_mask_as_alone(
    story: tuple[Participation, list[tuple[int, str | None]], list[int], list[int]],
) -> None:
    rule, visits, starts, cuts = story
    oracle = Visits(rule, starts)
    expected = [oracle.learns(person, slot) for slot, person in visits]
    learned = timed_mask(rule, visits, starts, cuts)
    assert learned == expected
    if not rule.pooled:
        kept = [visit for visit, one in zip(visits, learned, strict=True) if one]
        assert len(set(kept)) == len(kept)  # at most one in a slot
    for person in {"a", "b", "c"}:  # whoever else comes: the others are not there at all
        mine = [visit for visit in visits if visit[1] == person]
        alone = timed_mask(rule, mine, starts, [])
        assert alone == [one for one, visit in zip(learned, visits, strict=True) if visit in mine]


@pytest.mark.parametrize(
    "rule",
    [
        Participation(3, apart=50),
        Participation(2, pooled=True),
        Participation(4, apart=7, per_batch=2),
        Participation(2, apart=3, per_batch=1),
    ],
    ids=str,
)
def test_long_random_patterns(rule: Participation) -> None:
    rng = np.random.default_rng(8)
    visits = [f"p{i}" if i else None for i in rng.zipf(1.6, 3_000) % 400]
    starts = [0, *np.flatnonzero(rng.random(3_000) < 0.01).tolist()]
    starts = sorted(set(starts))
    oracle = Visits(rule, starts)
    expected = [oracle.learns(person, i) for i, person in enumerate(visits)]
    learned, _ = masks(rule, visits, 0, starts, [1_000, 1_001, 3_000])
    assert learned == expected
    assert 100 < sum(learned) < 2_500


def test_a_rule_that_forgets_the_batch_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, visits = Participation(3, per_batch=1), ["a", "a", "a", "a"]
    monkeypatch.setattr(quotas, "_batch", lambda starts, slot, stop: (slot, slot + 1))
    oracle = Visits(rule, [0, 2])
    expected = [oracle.learns(person, i) for i, person in enumerate(visits)]
    assert expected == [True, False, True, False]
    assert masks(rule, visits, 0, [0, 2], [4])[0] != expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Participation(1), "Participation(most=1)"),
        (Participation(2, pooled=True), "Participation(most=2, pooled=True)"),
        (Participation(4, 100, 2), "Participation(most=4, apart=100, per_batch=2)"),
        (Participation(1, pattern="public"), "Participation(most=1, pattern='public')"),
        (Participation(3, clock="timetable"), "Participation(most=3, clock='timetable')"),
    ],
)
def test_a_rule_is_shown_as_it_would_be_written(rule: Participation, said: str) -> None:
    assert repr(rule) == said
    assert eval(said) == rule


def _learns_otherwise() -> str | None:
    """A rule under which visits of three persons are not learned as it is written."""
    visits = [f"p{i}" for i in np.random.default_rng(2).integers(0, 3, 60)]
    starts = [0, 5, 6, 13]
    for rule in (
        Participation(7, apart=4),
        Participation(2, pooled=True),
        Participation(5, per_batch=2),
    ):
        oracle = Visits(rule, starts)
        expected = [oracle.learns(person, i) for i, person in enumerate(visits)]
        if masks(rule, visits, 0, starts, [9, 60])[0] != expected:
            return str(rule)
    return None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("elif used >= most or", "elif used > most or"),
        ("slot - last < apart", "slot - last < apart - 1"),
        ("if used >= most:\n", "if used > most:\n"),
        ("known, 0, -apart, 0", "known, 0, 0, 0"),
        ("within + 1 if same_batch else 1", "within + 1"),
        ("used + 1, slot, within", "used + 1, slot, 1"),
        ("used + 1, slot, within", "used, slot, within"),
        ("same_batch = last >= begin", "same_batch = last > begin"),
        ("changed.get(key) or standings.get(key)", "standings.get(key)"),
    ],
)
def test_faults_of_the_rule_are_found(old: str, new: str) -> None:
    assert _learns_otherwise() is None
    edit = Edit("privlearn.people.quotas:judge", old, new)
    case = InspectionCase(_learns_otherwise)
    assert Mutant("rule", "One line.", (edit,), case).check().caught
