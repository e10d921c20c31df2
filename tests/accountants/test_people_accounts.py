"""Accounts of persons: what a receipt opens, what a token holds, and what outlives the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant, audit
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    InsufficientBudgetError,
    PeopleError,
    PrivlearnError,
    ProvenanceError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.losses import GaussianLoss, PureLoss, VisitsLoss
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

N = 40
STARTS = (0, 10, 20, 30)
BATCHES = [range(a, a + 10) for a in STARTS]


def noisy_sum(budget: str) -> NoisySum[Any]:
    return NoisySum.calibrated(Ball(1.0, 2), ZCDP(budget), adjacency=Adjacency.ZERO_OUT)


def account(rule: Participation, **how: Any) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    people = People.memory(rule)
    made = CentralAccountant(ZCDP("1"), users=range(N), noise=noise, people=people, **how)
    if rule.batched:
        made.divide(STARTS)
    return made


def ones(users: range) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        (Participation(2, pooled=True), "1/2"),
        (Participation(9, pooled=True), "1/4"),
        (Participation(3, per_batch=1), "1/3"),
        (Participation(4, per_batch=2), "1/8"),  # two in each of two batches: 2 x 4
        (Participation(2), "1/4"),  # both may be in one batch
        (Participation(4, apart=20), "1/2"),
    ],
)
def test_batches_that_fill_the_cap_fit_and_a_little_more_does_not(
    rule: Participation, share: str
) -> None:
    fitting = noisy_sum(share).loss()
    for grown, fits in ((fitting, True), (GaussianLoss(fitting.gaussian() or 0) * 2, False)):
        loss = GaussianLoss(grown.gaussian() or 0, adjacency=Adjacency.ZERO_OUT)
        made = account(rule)
        plan = [Plan("sum", loss, users) for users in BATCHES]
        if fits:
            made.commit(plan)
            assert made.spent().covers(ZCDP("0.9999"))
        else:
            with pytest.raises(InsufficientBudgetError):
                made.commit(plan)


def test_without_a_plan_each_token_is_checked() -> None:
    made = account(Participation(2, pooled=True))
    loss = noisy_sum("1/2").loss()
    for users in BATCHES:
        made.issue(loss, users=users, label="sum")
    with pytest.raises(InsufficientBudgetError):
        made.issue(loss, users=BATCHES[0], label="more")


def test_a_token_that_was_not_used_is_free_again() -> None:
    made = account(Participation(1, pooled=True))
    token = made.issue(noisy_sum("1").loss(), users=BATCHES[0], label="sum")
    with pytest.raises(InsufficientBudgetError):
        made.issue(noisy_sum("1/10").loss(), users=BATCHES[0], label="sum")
    token.retire()
    assert made.spent().is_zero
    made.issue(noisy_sum("1").loss(), users=BATCHES[0], label="sum")


def test_a_receipt_opens_only_what_the_registry_admitted() -> None:
    made = account(Participation(2, per_batch=1))
    other = account(Participation(2, per_batch=1))
    assert made.people is not None
    assert other.people is not None
    mechanism, users = noisy_sum("1/2"), BATCHES[0]
    token = made.issue(mechanism.loss(), users=users, label="sum")
    for rows in (ones(users), other.people.admit(ones(users), list("abcdefghij"))):
        with pytest.raises(ProvenanceError, match=r"people\.admit"):
            mechanism.release(rows, token)
    admitted = made.people.admit(ones(users), list("aaabbbcccd"))
    assert mechanism.release(admitted, token).value.shape == (2,)


def test_surplus_visits_are_null_in_place() -> None:
    made = account(Participation(2, per_batch=1))
    assert made.people is not None
    rows = made.people.admit(ones(BATCHES[0]), list("aaabbbcccd"))
    (chunk,) = Rows._unseal(rows)
    assert chunk.valid.tolist() == [c in "0369" for c in "0123456789"]


def test_everybody_is_served_and_the_policy_sees_no_mask() -> None:
    made = JointAccountant(
        ZCDP("1"),
        users=range(N),
        noise=NoiseSource.simulation(0),
        people=People.memory(Participation(1)),
    )
    board = Billboard(made, made.users)
    seen: list[Any] = []

    def policy(block: Any) -> Any:
        seen.append(np.array(block))
        return block[:, 0] * 2

    answered: list[Any] = []

    def answer(own: Any, shown: Any) -> Any:
        answered.append(shown)
        return np.stack([shown, shown], axis=1)

    shown = board.serve(ones(range(4)), policy, people=["a", "a", "b", None])
    rows = shown.deliver(answer)
    assert len(seen[0]) == 4
    assert answered[0].tolist() == [2.0] * 4
    assert Rows._unseal(rows)[0].valid.tolist() == [True, False, True, False]
    one = board.serve(ones(range(4, 5)), policy, people=["a"])
    assert one.reveal() == 2.0
    with pytest.raises(ProvenanceError, match="people is missing"):
        board.serve(ones(range(5, 6)), policy)
    assert board.clock == 5
    assert made.people is not None
    assert made.people.clock == 5


def test_ids_without_a_rule_are_refused() -> None:
    made = JointAccountant(ZCDP("1"), users=range(N), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="no rule"):
        Billboard(made, made.users).serve(ones(range(1)), lambda block: block, people=["a"])


def test_messages_of_local_devices_add_up() -> None:
    people = People.memory(Participation(3, pattern="public"))
    made = LocalAccountant(
        PureDP(3), users=range(N), noise=NoiseSource.simulation(0), people=people
    )
    made.issue(PureLoss(1), users=range(N), label="reports")
    assert made.spent() == PureDP(3)


def test_a_stream_that_states_its_visits_is_charged_whole() -> None:
    made = account(Participation(2, apart=10))
    stream = VisitsLoss(GaussianLoss("2", adjacency=Adjacency.ZERO_OUT), 2, 10)
    made.issue(stream, users=range(N), label="stream")
    assert made.spent() == ZCDP("1")
    closer = account(Participation(2, apart=5))
    with pytest.raises(InsufficientBudgetError):  # groups of two: four times as much
        closer.issue(stream, users=range(N), label="stream")


@pytest.mark.parametrize(
    ("rule", "adjacency"),
    [
        (Participation(2), Adjacency.REPLACE_ONE),
        (Participation(2), Adjacency.ADD_REMOVE),
        (Participation(2, pattern="public"), Adjacency.ADD_REMOVE),
    ],
)
def test_relations_that_say_nothing_are_refused(rule: Participation, adjacency: Adjacency) -> None:
    with pytest.raises(AdjacencyError, match="adjacency"):
        account(rule, adjacency=adjacency)


def test_what_has_no_price_for_a_person_is_refused() -> None:
    with pytest.raises(BudgetError, match="odometer"):
        account(Participation(2), odometer="1e-6")
    made = account(Participation(2))
    with pytest.raises(BudgetError, match="delegated"):
        made.delegate(ZCDP("1/2"), users=range(N), label="part")
    with pytest.raises(BudgetError, match="within"):
        made.divide(STARTS)


def test_batches_are_declared_once_and_first() -> None:
    made = account(Participation(2, pooled=True))
    with pytest.raises(BudgetError, match="once"):
        made.divide(STARTS)
    late = CentralAccountant(
        ZCDP("1"),
        users=range(N),
        noise=NoiseSource.simulation(0),
        people=People.memory(Participation(2, pooled=True)),
    )
    with pytest.raises(BudgetError, match="declare them"):
        late.issue(noisy_sum("1/2").loss(), users=range(N), label="sum")


def test_one_registry_is_for_one_account() -> None:
    people = People.memory(Participation(2))
    noise = NoiseSource.simulation(0)
    first = CentralAccountant(ZCDP("1"), users=range(N), noise=noise, people=people)
    with pytest.raises(PeopleError, match=first.id):
        CentralAccountant(ZCDP("1"), users=range(N), noise=NoiseSource.simulation(0), people=people)


def test_an_account_goes_on_with_its_registry_and_no_other(tmp_path: Path) -> None:
    where = tmp_path / "book.ledger"
    noise = NoiseSource.simulation(0)
    people = People.memory(Participation(2, per_batch=1))
    made = CentralAccountant(
        ZCDP("1"), users=range(N), noise=noise, people=people, ledger=Ledger.create(where)
    )
    made.divide(STARTS)
    mechanism = noisy_sum("1/2")
    made.commit([Plan("sum", mechanism.loss(), users) for users in BATCHES])
    rows = people.admit(ones(BATCHES[0]), list("abcdefghij"))
    mechanism.release(rows, made.issue(mechanism.loss(), users=BATCHES[0], label="sum"))
    made.ledger.close()
    for wrong in (None, People.memory(Participation(2, per_batch=1))):
        with pytest.raises(PeopleError, match=people.id):
            CentralAccountant.resume(where, noise=NoiseSource.simulation(1), people=wrong)
    again: CentralAccountant[ZCDP] = CentralAccountant.resume(
        where, noise=NoiseSource.simulation(1), people=people
    )
    again.divide(STARTS)
    assert again.spent() == made.spent() == ZCDP("1")
    assert again.certificate().problems == []
    again.ledger.close()
    assert audit(where).guarantees[0].rho == pytest.approx(1.0)
    assert isinstance(PeopleError("x"), PrivlearnError)


def test_a_rule_in_place_of_its_registry_is_refused_by_name(tmp_path: Path) -> None:
    rule, noise = Participation(2), NoiseSource.simulation(0)
    for wrong in (rule, tmp_path / "people.db", "people.db"):
        with pytest.raises(TypeError, match=rf"^people: a {type(wrong).__name__}: .*People.create"):
            CentralAccountant(ZCDP("1"), users=range(N), noise=noise, people=wrong)  # type: ignore[arg-type]
    where = tmp_path / "book.ledger"
    made = CentralAccountant(ZCDP("1"), users=range(N), noise=noise, ledger=Ledger.create(where))
    made.ledger.close()
    with pytest.raises(TypeError, match=r"People\.open"):
        CentralAccountant.resume(where, people=rule)  # type: ignore[arg-type]


def test_resuming_without_the_registry_tells_what_replaces_it(tmp_path: Path) -> None:
    where, rule = tmp_path / "book.ledger", Participation(2)
    people = People.memory(rule)
    made = CentralAccountant(
        ZCDP("1"),
        users=range(N),
        noise=NoiseSource.simulation(0),
        people=people,
        ledger=Ledger.create(where),
    )
    mechanism = noisy_sum("1/4")
    rows = people.admit(ones(BATCHES[0]), list("abcdefghij"))
    mechanism.release(rows, made.issue(mechanism.loss(), users=BATCHES[0], label="sum"))
    made.ledger.close()
    slot = people.clock
    told = rf"{people.id} and Participation\(most=2\), which was at slot {slot} .*replace_lost"
    with pytest.raises(PeopleError, match=told):
        CentralAccountant.resume(where, noise=NoiseSource.simulation(1))


def test_no_registry_comes_later() -> None:
    made = CentralAccountant(ZCDP("1"), users=range(N), noise=NoiseSource.simulation(0))
    with pytest.raises(AttributeError, match="people"):
        made.people = People.memory(Participation(1))  # type: ignore[misc]
    assert made.people is None


@pytest.mark.parametrize("others", [[0, 10], [0, 10, 20, 25, 30]])
def test_batches_that_the_registry_does_not_have_are_in_no_ledger(others: list[int]) -> None:
    """Else prices count a person's rows by other batches than the registry lets them in."""
    people = People.memory(Participation(4, pooled=True))
    noise = NoiseSource.simulation(0)
    made = CentralAccountant(ZCDP("1"), users=range(N), noise=noise, people=people)
    people.divide(others)
    before = len(made.ledger.records)
    with pytest.raises(PeopleError, match="other batches"):
        made.divide(STARTS)
    assert len(made.ledger.records) == before
    with pytest.raises(BudgetError, match="declare them before the first token"):
        made.issue(noisy_sum("1").loss(), users=range(N), label="sum")
    made.divide(others)
    assert made.issue(noisy_sum("1/4").loss(), users=range(10), label="sum")


def test_batches_that_come_too_late_are_not_in_the_registry() -> None:
    made = account(Participation(2, pooled=True))
    made.issue(noisy_sum("1/4").loss(), users=BATCHES[0], label="sum")
    with pytest.raises(BudgetError, match="once"):
        made.divide([0])
    plain = account(Participation(2))
    with pytest.raises(BudgetError, match="counts within"):
        plain.divide([0])


def test_a_late_answer_belongs_to_the_batch_of_its_slot() -> None:
    """As certificates say: it is learned there, however late, and stands in no other batch."""
    rule = Participation(2, pooled=True)
    people = People.memory(rule)
    noise = NoiseSource.simulation(0)
    made = JointAccountant(ZCDP("1"), users=range(N), noise=noise, people=people)
    made.divide(STARTS)
    board = Billboard(made, range(N))
    shown = [
        board.serve(ones(users), lambda own: own, people=[f"p{t % 4}" for t in users])
        for users in BATCHES[:2]
    ]
    late = shown[0].deliver(lambda own, action: own).pool(lambda block: block.sum(axis=0))
    assert late.users == BATCHES[0]
    mechanism = noisy_sum("1/4")
    with pytest.raises(UsersError):
        mechanism.release(late, made.issue(mechanism.loss(), users=BATCHES[1], label="sum"))
    mechanism.release(late, made.issue(mechanism.loss(), users=BATCHES[0], label="sum"))
    guarantee = made.certificate().guarantees[0]
    assert any("whenever it is answered" in line for line in guarantee.assumptions)
    assert not any("after that batch is null" in line for line in guarantee.assumptions)
