"""What holds the accounts of persons together, line by line: planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from one_line_faults import cases, is_found

from privlearn.accountants import (
    CentralAccountant,
    JointAccountant,
    LocalAccountant,
    person_totals,
    state,
)
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    BudgetError,
    InsufficientBudgetError,
    ProvenanceError,
    UsersError,
)
from privlearn.ledger.entries import BatchesEntry, SpendEntry
from privlearn.losses import FailingLoss, GaussianLoss, LaplaceLoss, VisitsLoss, ZCDPLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import CrossPolytope, NoisySum, ReportNoisyMax
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation as Rule

N = 20
STARTS = (0, 5, 10, 15)
BATCHES = [range(a, a + 5) for a in STARTS]
ZERO_OUT = Adjacency.ZERO_OUT
POOLED = Rule(2, pooled=True)


def gaussian(mass: str) -> GaussianLoss:
    return GaussianLoss(mass, adjacency=ZERO_OUT)


def account(rule: Rule, kind: Any = CentralAccountant, cap: str = "100") -> Any:
    made = kind(
        ZCDP(cap), users=range(N), noise=NoiseSource.simulation(0), people=People.memory(rule)
    )
    if rule.batched:
        made.divide(STARTS)
    return made


def ones(users: range) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 1)), users=users)


def mass(made: Any, loss: Any, users: range) -> Fraction | None:
    found: Fraction | None = made._state.prices.loss_of_person(loss, users).gaussian()
    return found


def test_a_loss_is_priced_anew_for_each_number_of_visits() -> None:
    made = account(Rule(3))
    assert [mass(made, gaussian("1"), range(n)) for n in (10, 2, 1)] == [9, 4, 1]


def test_messages_of_devices_add_up_in_gaussian_mass() -> None:
    made = LocalAccountant(
        ZCDP(9),
        users=range(N),
        noise=NoiseSource.simulation(0),
        people=People.memory(Rule(3)),
    )
    assert mass(made, gaussian("1"), range(N)) == 3


def test_streams_are_charged_whole_to_whoever_is_in_them() -> None:
    made = account(Rule(2))
    for users in (range(10), range(10, N)):
        made.issue(VisitsLoss(gaussian("2"), 2), users=users, label="stream")
    assert made.spent() == ZCDP(2)


def test_a_plan_is_charged_as_often_as_it_says() -> None:
    loss = gaussian("1/2")  # 1/4 in each of two batches
    account(POOLED, cap="3/2").commit([Plan("sum", loss, users, 3) for users in BATCHES])
    with pytest.raises(InsufficientBudgetError):
        account(POOLED, cap="3/2").commit([Plan("sum", loss, users, 4) for users in BATCHES])
    # both visits may be in one batch, where a run then costs 1
    account(Rule(2), cap="3").commit([Plan("sum", loss, users, 3) for users in BATCHES])
    with pytest.raises(InsufficientBudgetError):
        account(Rule(2), cap="3").commit([Plan("sum", loss, users, 4) for users in BATCHES])


def test_entries_of_batches_stand_once_and_first() -> None:
    entry = BatchesEntry(accountant="a", starts=STARTS)
    with pytest.raises(BudgetError, match="declared once"):
        state._check_batches(account(POOLED)._state, entry)
    made = account(POOLED)
    made.issue(gaussian("1"), users=BATCHES[0], label="sum")
    made._state.visits.starts = ()
    with pytest.raises(BudgetError, match="before the plan"):
        state._check_batches(made._state, entry)


def totals(rule: Rule, *runs: tuple[range, Any, int]) -> Any:
    return person_totals.person_total(
        account(rule)._state, {(users.start, users.stop, loss): n for users, loss, n in runs}
    )


def test_totals_are_of_the_person_who_pays_most() -> None:
    each = [(users, gaussian("1"), 3) for users in BATCHES]
    assert totals(POOLED, *each).gaussian() == 6
    assert totals(Rule(2), *each).gaussian() == 12  # both visits in one batch: 3 x 2²
    # one visit in each of the two is less than both in the first
    assert totals(Rule(2), (BATCHES[0], gaussian("1"), 1)).gaussian() == 4
    assert totals(Rule(2), *each[:1], (BATCHES[1], gaussian("1"), 1)).gaussian() == 12
    assert totals(POOLED) is None


def test_totals_hold_whatever_has_a_filter() -> None:
    each = [(users, LaplaceLoss("1", adjacency=ZERO_OUT), 1) for users in BATCHES]
    found = totals(POOLED, *each)
    assert found.pure() == 2
    assert found.zcdp() is not None
    assert found.zcdp() < 2
    mixed = totals(POOLED, *each[:1], (BATCHES[1], ZCDPLoss("1/2", adjacency=ZERO_OUT), 1))
    assert mixed.pure() is None
    assert mixed.zcdp() > Fraction(1, 2)


def test_totals_fail_as_often_as_their_parts() -> None:
    failing = FailingLoss(gaussian("1"), "1/1000")
    found = totals(POOLED, *((users, failing, 1) for users in BATCHES))
    assert found.failure() == Fraction(2, 1000)
    assert found.unless_failed().gaussian() == 2


def test_a_trial_holds_what_was_charged_before() -> None:
    made = account(Rule(1), cap="1")
    made.issue(VisitsLoss(gaussian("2"), 1), users=range(N), label="stream")
    with pytest.raises(InsufficientBudgetError):
        made.issue(VisitsLoss(gaussian("1"), 1), users=range(N), label="stream")


def test_quick_bounds_let_nothing_pass_that_a_person_may_pay() -> None:
    loss = gaussian("2")  # 1 in each batch
    for shared in (True, False):
        price = loss if shared else VisitsLoss(loss, 2)
        with pytest.raises(InsufficientBudgetError):
            account(POOLED, cap="1/2").issue(price, users=BATCHES[0], label="sum")
        made = account(POOLED, cap="3/2")
        made.issue(price, users=BATCHES[0], label="sum")
        for users in BATCHES[:2]:
            with pytest.raises(InsufficientBudgetError):
                made.issue(price, users=users, label="sum")


def noisy_sum() -> NoisySum[Any]:
    return NoisySum.calibrated(Ball(1.0, 1), ZCDP(1), adjacency=ZERO_OUT)


def test_under_a_pooled_rule_only_pooled_rows_are_opened() -> None:
    made = account(POOLED)
    rows = made.people.admit(ones(BATCHES[0]), list("aabbc"))
    token = made.issue(noisy_sum().loss(), users=BATCHES[0], label="sum")
    with pytest.raises(ProvenanceError, match=r"rows\.pool"):
        noisy_sum().release(rows, token)
    noisy_sum().release(rows.pool(lambda block: block.sum(axis=0)), token)


def test_sums_that_nobody_admitted_are_not_opened() -> None:
    made, mechanism = account(Rule(1)), noisy_sum()
    token = made.issue(mechanism.loss(), users=range(N), label="sum")
    with pytest.raises(ProvenanceError, match=r"people\.admit"):
        mechanism.release_partial(mechanism.partial(ones(range(N))), token)
    rows = made.people.admit(ones(range(N)), list("ab") * 10)
    mechanism.release_partial(mechanism.partial(rows), token)


def test_what_is_no_sum_is_none_on_a_timetable_whoever_spent_it_before() -> None:
    """What was right in an account without a rule is remembered, and not looked at again."""
    pick = ReportNoisyMax(CrossPolytope(1), clip=1.0, scale=1.0, adjacency=ZERO_OUT)
    plain = CentralAccountant(
        ZCDP(1), users=range(N), noise=NoiseSource.simulation(0), adjacency=ZERO_OUT
    )
    timed = account(Rule(1, clock="timetable"))
    tokens = [book.issue(pick.loss(), users=range(N), label="pick") for book in (plain, timed)]
    pick.release(ones(range(N)), tokens[0])
    (spend,) = (entry for entry in plain.ledger.entries if isinstance(entry, SpendEntry))
    now = {"accountant": timed.id, "token": tokens[1].id, "admitted": {"clock": N}}
    same = spend.model_copy(update=now)
    with pytest.raises(BudgetError, match="on a timetable rows are added up"):
        timed._state.check(same)


def test_what_is_pooled_has_no_null_records_in_it() -> None:
    made = account(POOLED)
    values = np.array([[1.0], [-1.0], [1.0], [1.0], [1.0]])
    rows = Rows.seal(values, users=BATCHES[0]).map_rows(_positive)
    pooled = made.people.admit(rows, list("aaabb")).pool(lambda block: np.array([len(block)]))
    (chunk,) = Rows._unseal(pooled)
    assert np.asarray(chunk.block)[chunk.valid].ravel().tolist() == [2, 2]


def _positive(block: Any) -> Any:
    if (block < 0).any():
        raise ValueError("below zero")
    return block


def test_slots_that_are_skipped_are_skipped_in_the_registry() -> None:
    made = account(Rule(1), JointAccountant)
    board = Billboard(made, made.users)
    board.skip(range(4))
    assert made.people.clock == board.clock == 4
    board.serve(ones(range(4, 5)), lambda block: block, people=["a"])


def test_who_is_out_of_order_is_not_debited() -> None:
    made = account(Rule(1), JointAccountant)
    board = Billboard(made, made.users)
    board._advance(range(1))
    with pytest.raises(UsersError, match="next is 1"):  # the registry would take them
        board.serve(ones(range(1)), lambda block: block, people=["a"])
    assert made.people.clock == 0


def total(block: Any) -> Any:
    return block.sum(axis=0)


def pooled_sum(users: range, ids: str) -> list[float]:
    """What is left of rows 0, 1, ... after all were admitted and a part of them pooled."""
    made = account(POOLED)
    rows = Rows.seal(np.arange(float(len(ids)))[:, None], users=range(len(ids)))
    pooled = made.people.admit(rows, list(ids)).slice(users).pool(total)
    return [
        float(value)
        for chunk in Rows._unseal(pooled)
        if chunk.block is not None
        for value in np.asarray(chunk.block)[chunk.valid, 0]
    ]


def test_a_part_of_rows_is_of_the_persons_that_were_in_it() -> None:
    assert pooled_sum(BATCHES[0], "abcabaabbb") == [0 + 3, 1 + 4, 2]
    assert pooled_sum(BATCHES[1], "abcabaabbb") == [5 + 6, 7 + 8 + 9]


def test_rows_within_a_batch_are_not_pooled_without_the_others() -> None:
    for users in (range(2, 5), range(2, 10), range(5, 8)):
        with pytest.raises(UsersError, match="whole batches"):
            pooled_sum(users, "abcabaabbb")


def test_joined_rows_were_admitted_and_pooled_alike() -> None:
    made = account(POOLED)
    first = made.people.admit(ones(BATCHES[0]), list("aabbc"))
    second = made.people.admit(ones(BATCHES[1]), list("aabbc"))
    joined = {
        "pooled and not": [first.pool(total), second],
        "admitted and not": [first, ones(BATCHES[1])],
        "not and admitted": [ones(BATCHES[0]), second],
    }
    for parts in joined.values():
        assert Rows._stamp_of(Rows.concat(parts)) is None
    for parts in ([first, second], [first.pool(total), Rows.null(BATCHES[1])]):
        stamp = Rows._stamp_of(Rows.concat(parts))
        assert stamp is not None
        assert stamp.registry is made.people


def test_sums_say_whether_their_rows_were_pooled() -> None:
    made, mechanism, users = account(POOLED), noisy_sum(), BATCHES[0]
    rows = made.people.admit(ones(users), list("aabbc"))
    token = made.issue(mechanism.loss(), users=users, label="sum")
    with pytest.raises(ProvenanceError, match=r"rows\.pool"):
        mechanism.release_partial(mechanism.partial(rows), token)
    mechanism.release_partial(mechanism.partial(rows.pool(total)), token)


def test_sums_of_nobody_are_open_to_all() -> None:
    made, mechanism, users = account(POOLED), noisy_sum(), BATCHES[0]
    token = made.issue(mechanism.loss(), users=users, label="sum")
    mechanism.release_partial(mechanism.partial(Rows.null(users)), token)


def test_failures_of_all_visits_are_within_those_that_are_allowed() -> None:
    loss = FailingLoss(gaussian("1/100"), "1/1000")

    def made(rule: Rule) -> Any:
        found: Any = CentralAccountant(
            ZCDP(1),
            users=range(N),
            noise=NoiseSource.simulation(0),
            people=People.memory(rule),
            failure="2/1000",
        )
        found.divide(STARTS)
        return found

    fits, over = made(POOLED), made(Rule(3, pooled=True))
    fits.commit([Plan("sum", loss, users) for users in BATCHES])
    with pytest.raises(InsufficientBudgetError):
        over.commit([Plan("sum", loss, users) for users in BATCHES])
    for users in BATCHES[:2]:
        over.issue(loss, users=users, label="sum")
    with pytest.raises(InsufficientBudgetError):
        over.issue(loss, users=BATCHES[2], label="sum")


PERSONS, STATE = "privlearn.accountants.persons", "privlearn.accountants.state"
PRICES = "privlearn.accountants.prices:Prices"
OF_PERSON = f"{PRICES}.loss_of_person"
TOTAL = "privlearn.accountants.person_totals:_most"
STAMPS = "privlearn.contract.openings:_check_stamp"

FAULTS: list[tuple[str, str, str, Callable[[], None]]] = [
    (
        f"{PERSONS}:PersonCharges.may_exceed",
        "dict(self._whole)",
        "{}",
        test_a_trial_holds_what_was_charged_before,
    ),
    (
        f"{PERSONS}:PersonCharges._each",
        "self.visits.most(users) if shared else 1",
        "1",
        test_totals_are_of_the_person_who_pays_most,
    ),
    (
        f"{PERSONS}:PersonCharges._after",
        "most * v, w",
        "v, w",
        test_quick_bounds_let_nothing_pass_that_a_person_may_pay,
    ),
    (
        f"{PERSONS}:PersonCharges._after",
        "w + most * p",
        "w",
        test_quick_bounds_let_nothing_pass_that_a_person_may_pay,
    ),
    (
        f"{PERSONS}:PersonCharges._after",
        "none if shared else amounts",
        "none",
        test_quick_bounds_let_nothing_pass_that_a_person_may_pay,
    ),
    (
        f"{PERSONS}:_higher",
        "b + c",
        "b",
        test_quick_bounds_let_nothing_pass_that_a_person_may_pay,
    ),
    (
        f"{PERSONS}:PersonCharges.may_exceed",
        "_add(parts if shared else whole, (users.start, users.stop), each)",
        "pass",
        test_quick_bounds_let_nothing_pass_that_a_person_may_pay,
    ),
    (
        f"{PERSONS}:_Pieces._behind",
        "found[first:stop, first]",
        "found[first:stop, 0]",
        test_streams_are_charged_whole_to_whoever_is_in_them,
    ),
    (
        OF_PERSON,
        "self._of_person[loss, most] = found",
        "self._of_person.update({(loss, k): found for k in range(9)})",
        test_a_loss_is_priced_anew_for_each_number_of_visits,
    ),
    (
        OF_PERSON,
        "loss.for_visits(most, rule.apart)",
        "loss",
        test_totals_are_of_the_person_who_pays_most,
    ),
    (
        OF_PERSON,
        "if self._apart else",
        "if False else",
        test_messages_of_devices_add_up_in_gaussian_mass,
    ),
    (
        f"{PRICES}.shares",
        "grows and not has_visits(loss)",
        "grows",
        test_streams_are_charged_whole_to_whoever_is_in_them,
    ),
    (
        f"{PRICES}.of_person",
        "loss if self._visits is None else self.loss_of_person(loss, users)",
        "loss",
        test_a_plan_is_charged_as_often_as_it_says,
    ),
    (
        "privlearn.accountants.charged:Charged.charge",
        "price.budget * count",
        "price.budget",
        test_a_plan_is_charged_as_often_as_it_says,
    ),
    (
        "privlearn.accountants.capped:CappedSums.check_within",
        "not self._within(self.persons.bound())",
        "False",
        test_a_plan_is_charged_as_often_as_it_says,
    ),
    (
        f"{STATE}:_check_batches",
        "if state.visits.starts:",
        "if False:",
        test_entries_of_batches_stand_once_and_first,
    ),
    (
        f"{STATE}:AccountState.begun",
        "bool(self.accounts or self.folded) or",
        "",
        test_entries_of_batches_stand_once_and_first,
    ),
    (TOTAL, "_DIGITS) * count", "_DIGITS)", test_totals_are_of_the_person_who_pays_most),
    (TOTAL, "state.prices.shares(loss)", "False", test_totals_are_of_the_person_who_pays_most),
    (
        TOTAL,
        "state.prices.loss_of_person(loss, users)",
        "loss",
        test_totals_are_of_the_person_who_pays_most,
    ),
    (
        "privlearn.accountants.person_totals:person_total",
        "if failure else bound",
        "if False else bound",
        test_totals_fail_as_often_as_their_parts,
    ),
    (
        "privlearn.accountants.person_totals:person_total",
        "loss.unless_failed().pure()",
        "loss.unless_failed().zcdp()",
        test_totals_hold_whatever_has_a_filter,
    ),
    (
        STAMPS,
        "people.rule.pooled and not stamp.pooled",
        "False",
        test_under_a_pooled_rule_only_pooled_rows_are_opened,
    ),
    (
        STAMPS,
        "stamp is None or stamp.registry is not people",
        "stamp is not None and stamp.registry is not people",
        test_sums_that_nobody_admitted_are_not_opened,
    ),
    (
        "privlearn.contract.openings:check_total",
        "_check_stamp(issuer.people, PartialSum._stamp_of(total))",
        "pass",
        test_sums_that_nobody_admitted_are_not_opened,
    ),
    (
        "privlearn.rows.pooling:pool",
        "if places[i][2]",
        "if True",
        test_what_is_pooled_has_no_null_records_in_it,
    ),
    (
        "privlearn.rows.stamps:Stamp.part",
        "self.persons[low:high]",
        "self.persons[: high - low]",
        test_a_part_of_rows_is_of_the_persons_that_were_in_it,
    ),
    (
        "privlearn.rows.stamps:joined",
        "or stamp.pooled != first.pooled",
        "",
        test_joined_rows_were_admitted_and_pooled_alike,
    ),
    (
        "privlearn.rows.stamps:Stamp.of_sum",
        "self.pooled",
        "True",
        test_sums_say_whether_their_rows_were_pooled,
    ),
    (
        "privlearn.rows.stamps:Stamp.of_sum",
        "if self is NOBODY:",
        "if False:",
        test_sums_of_nobody_are_open_to_all,
    ),
    (
        "privlearn.people.registry:_whole_batches",
        "inside[0] != users.start or not whole",
        "not whole",
        test_rows_within_a_batch_are_not_pooled_without_the_others,
    ),
    (
        "privlearn.accountants.capped:CappedSums._within",
        "and most[-1] <= self.failure",
        "",
        test_failures_of_all_visits_are_within_those_that_are_allowed,
    ),
    (
        "privlearn.contract.billboard:Billboard.skip",
        "self.people.skip_to(users.stop)",
        "pass",
        test_slots_that_are_skipped_are_skipped_in_the_registry,
    ),
    (
        "privlearn.contract.billboard:Billboard.serve",
        "self._check_next(users, going_on=timed)",
        "pass",
        test_who_is_out_of_order_is_not_debited,
    ),
]


@cases(FAULTS)
def test_planted_faults_are_found(
    target: str, old: str, new: str, test: Callable[[], None]
) -> None:
    assert is_found(target, old, new, test)
