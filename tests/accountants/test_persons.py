"""What a person can be charged at most, against all admissible patterns of visits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from mutation import Edit, InspectionCase, Mutant

from privlearn.accountants import persons
from privlearn.accountants.persons import PatternWork, PersonCharges, Visits, check_starts
from privlearn.errors import BudgetError, UsersError
from privlearn.values.participation import Participation

Token = tuple[range, int, bool]
"""Slots, price for all visits in them, and whether the price is shared."""


def patterns(visits: Visits) -> Iterator[tuple[int, ...]]:
    """All sets of slots that one person may be learned at, under a rule without pooling."""
    rule, users = visits.rule, visits.users
    for size in range(1, rule.most + 1):
        for slots in itertools.combinations(users, size):
            if any(b - a < rule.apart for a, b in itertools.pairwise(slots)):
                continue
            batches = [sum(s <= t for s in visits.starts) for t in slots]
            limit = 1 if rule.pooled else rule.per_batch
            if limit is not None and max(batches.count(b) for b in batches) > limit:
                continue
            yield slots


def by_force(visits: Visits, tokens: list[Token]) -> Fraction:
    """The largest total over all patterns, each shared price divided by the visits it is for."""
    best = Fraction(0)
    for slots in patterns(visits):
        total = Fraction(0)
        for users, price, shared in tokens:
            inside = sum(t in users for t in slots)
            if shared:
                total += Fraction(price, visits.most(users)) * inside
            elif inside:
                total += price
        best = max(best, total)
    return best


def charged(visits: Visits, tokens: list[Token]) -> Fraction:
    charges = PersonCharges(visits, 1)
    for users, price, shared in tokens:
        charges.charge(users, (Fraction(price),), shared)
    return charges.largest()[0]


def random_case(seed: int) -> tuple[Visits, list[Token]]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 11))
    users = range(0, n)
    kind = seed % 4
    starts = tuple(sorted({0, *(int(x) for x in rng.integers(1, n, 3))}))
    most = int(rng.integers(1, 5))
    if kind == 1:
        rule = Participation(most, pooled=True)
    elif kind == 2:
        rule = Participation(most, per_batch=int(rng.integers(1, most + 1)))
    else:
        rule = Participation(most, apart=int(rng.integers(1, 5)))
    visits = Visits(rule, users, starts if rule.batched else ())
    edges = [*starts, n] if rule.batched else list(range(n + 1))
    tokens = []
    for _ in range(int(rng.integers(1, 6))):
        low, high = sorted(rng.choice(len(edges), 2, replace=False))
        tokens.append(
            (range(edges[low], edges[high]), int(rng.integers(1, 20)), bool(rng.integers(2)))
        )
    return visits, tokens


def test_the_dearest_pattern_is_found() -> None:
    assert _wrong() is None


def test_a_smaller_charge_in_place_of_a_larger_one_never_raises_the_total() -> None:
    """As where a token for a budget is spent on a loss that is shared, and costs less."""
    for seed in range(300):
        rng = np.random.default_rng([5, seed])
        visits, tokens = random_case(seed)
        if seed % 4 == 2:  # within batches, and apart
            rule = replace(visits.rule, apart=int(rng.integers(1, 5)))
            visits = Visits(rule, visits.users, visits.starts)
        before = charged(visits, tokens)
        at = int(rng.integers(len(tokens)))
        users, price, _ = tokens[at]
        tokens[at] = users, int(rng.integers(price + 1)), True
        assert by_force(visits, tokens) <= charged(visits, tokens) <= before, seed


def test_visits_that_are_too_close_are_not_counted() -> None:
    """Three visits fit, at 2, 6 and 10; in the pieces that they are in there seem to be four."""
    visits = Visits(Participation(4, apart=4), range(12))
    tokens = [(range(3, 8), 4, True), (range(10, 11), 1, True), (range(11), 9, True)]
    assert charged(visits, tokens) == by_force(visits, tokens) == 12


def test_by_greed_is_a_bound_that_is_exact_for_disjoint_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(persons, "_MOST_PIECES", 0)
    for seed in range(80):
        visits, tokens = random_case(seed)
        assert charged(visits, tokens) >= by_force(visits, tokens)
    visits = Visits(Participation(3, pooled=True), range(12), (0, 2, 5, 9))
    tokens = [(range(0, 2), 4, False), (range(2, 5), 9, True), (range(5, 9), 1, False)]
    tokens += [(range(9, 12), 7, True)]
    assert charged(visits, tokens) == by_force(visits, tokens) == 20


def test_equal_batches_cost_as_many_as_are_learned() -> None:
    starts = tuple(range(0, 100, 10))
    for most in (1, 2, 7, 10, 30):
        visits = Visits(Participation(most, pooled=True), range(100), starts)
        tokens = [(range(a, a + 10), 1, True) for a in starts]
        assert charged(visits, tokens) == min(most, 10)


def test_whole_charges_count_once_and_nested_ones_by_their_visits() -> None:
    visits = Visits(Participation(3, apart=4), range(20))
    assert charged(visits, [(range(20), 5, False)]) == 5
    # refits over all rows so far: their visits are those of the pattern 0, 4, 8
    nested = [(range(n), visits.most(range(n)) ** 2, True) for n in (4, 8, 20)]
    assert charged(visits, nested) == 1 + 4 + 9


def test_amounts_that_were_taken_off_do_not_stand() -> None:
    charges = PersonCharges(Visits(Participation(2), range(10)), 2)
    amounts = Fraction(1, 3), Fraction(0)
    charges.charge(range(5), amounts, shared=True)
    charges.charge(range(5), amounts, shared=True, released=True)
    assert charges.largest() == (Fraction(0), Fraction(0))


def test_a_token_that_cuts_a_batch_is_refused_by_name() -> None:
    visits = Visits(Participation(2, pooled=True), range(20), (0, 10))
    with pytest.raises(BudgetError, match=r"range\(0, 15.*slot 0"):
        visits.most(range(0, 15))
    with pytest.raises(BudgetError, match="divide"):
        Visits(Participation(2, pooled=True), range(20)).most(range(20))


@pytest.mark.parametrize("starts", [(), (1, 5), (0, 5, 5), (0, 20), (0, 7, 3)])
def test_starts_of_batches_ascend_from_the_first_slot(starts: tuple[int, ...]) -> None:
    with pytest.raises(UsersError, match="ascend from 0"):
        check_starts(starts, range(20))


def test_a_large_programme_is_exact_in_big_numbers() -> None:
    visits = Visits(Participation(4), range(50))
    big = 3**60
    tokens = [(range(a, a + 10), big + a, False) for a in range(0, 40, 5)]
    assert charged(visits, tokens) > 2**62
    assert charged(visits, tokens) == sum(big + a for a in range(0, 40, 5))


def test_long_amounts_of_many_tokens_are_rounded_up_a_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(40):
        visits, tokens = random_case(seed)
        charges = PersonCharges(visits, 1)
        for users, price, shared in tokens:
            charges.charge(users, (price * (1 + Fraction(1, 3**50)),), shared)
        exact = charges.largest()[0]
        with monkeypatch.context() as patch:
            patch.setattr(persons, "_FEW_CELLS", 0)
            assert exact <= charges.largest()[0] <= exact * (1 + Fraction(1, 2**40))


def test_an_audit_that_has_no_work_left_takes_a_bound() -> None:
    for seed in range(40):
        visits, tokens = random_case(seed)
        limited = Visits(visits.rule, visits.users, visits.starts, PatternWork(0))
        assert charged(limited, tokens) >= by_force(visits, tokens)
        assert limited.work.ended
    work = PatternWork(10)
    assert work.take(10)
    assert not work.take(1)
    work.earn()
    assert work.take(1)


def test_what_is_quickly_known_to_fit_needs_no_programme() -> None:
    """Equal batches, and a stream over all of them: both bounds are met exactly."""
    starts = tuple(range(0, 100, 10))
    visits = Visits(Participation(3, pooled=True), range(100), starts)
    charges = PersonCharges(visits, 1)
    for start in starts:
        charges.charge(range(start, start + 10), (Fraction(1, 3),), shared=True)
    assert charges.bound() == charges.largest() == (Fraction(1),)
    charges.charge(range(100), (Fraction(5),), shared=False)
    assert charges.bound() == charges.largest() == (Fraction(6),)
    within = (Fraction(7),).__ge__
    assert not charges.may_exceed(range(10), (Fraction(1),), False, within)
    assert charges.may_exceed(range(10), (Fraction(11, 10),), False, within)
    with pytest.raises(BudgetError, match="cuts a batch"):
        charges.may_exceed(range(5), (Fraction(1),), False, within)


def _wrong() -> str | None:
    """A case in which what is charged is not what the dearest pattern costs."""
    for seed in range(160):
        visits, tokens = random_case(seed)
        bound, truth = charged(visits, tokens), by_force(visits, tokens)
        if bound != truth:
            return f"seed {seed}: {bound}, not {truth}"
    return None


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        ("Visits.most", "visits(len(users), self._batches(users))", "visits(len(users))"),
        ("PersonCharges.charge", "self._shared if shared else self._whole", "self._shared"),
        ("_Pieces.__init__", "min(visits.rule.most, sum(self.room))", "1"),
        ("_Pieces.__init__", "change[number[b]] -= amount", "pass"),
        ("_Pieces._by_programme", "behind[p, 1 : p + 1, None]", "0"),
        ("_Pieces._by_programme", "gains[:, 1:] += ", "_ = "),
        ("_Pieces._by_programme", "begun[p] += self.per_visit[p]", "pass"),
        ("_Pieces._behind", "found[first:stop, first]", "found[first:, first]"),
        ("_Runs.__init__", "slots + apart)", "slots)"),
        ("_Runs.__init__", "within & (slots < end)", "within"),
        ("_Runs.__init__", "< np.array(of.room)", "<= np.array(of.room)"),
        ("_Runs.__init__", "min(of.most, ", "min(1, "),
    ],
)
def test_faults_of_the_programme_are_found(target: str, old: str, new: str) -> None:
    edit = Edit(f"privlearn.accountants.persons:{target}", old, new)
    assert Mutant("programme", "One line.", (edit,), InspectionCase(_wrong)).check().caught
