"""Ceilings per arrival index and committed plans, against arrays that count one by one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant, prices
from privlearn.accountants.per_user_charge import Charges
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    InsufficientBudgetError,
    UsersError,
)
from privlearn.ledger.entries import IssueEntry, SpendEntry
from privlearn.losses import BoundedRangeLoss, GaussianLoss, LaplaceLoss, Loss, register
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

N = 12
USERS = range(5, 5 + N)
RANGES = st.tuples(st.integers(5, 16), st.integers(1, N)).map(
    lambda pair: range(pair[0], min(pair[0] + pair[1], 5 + N))
)
CHARGES = st.lists(
    st.tuples(RANGES, st.fractions(Fraction(1, 100), Fraction(3, 10), max_denominator=100)),
    max_size=12,
)

GIVE_BACK: st.SearchStrategy[bool] = st.booleans()


def accountant(cap: str = "1", users: range = USERS, **more: Any) -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(cap), users=users, noise=NoiseSource.simulation(0), **more)


@given(CHARGES)
def test_the_pieces_say_what_an_array_says(charges: list[tuple[range, Fraction]]) -> None:
    pieces = Charges(USERS)
    array = [Fraction(0)] * N
    for users, amount in charges:
        pieces.charge(users, (amount,))
        for user in users:
            array[user - 5] += amount
    spread = [value for users, (value,) in pieces.pieces() for _ in users]
    assert spread == array
    assert [user for users, _ in pieces.pieces() for user in users] == list(USERS)
    for start in (5, 9, 16):
        part = [v for users, (v,) in pieces.pieces(range(start, 17)) for _ in users]
        assert part == array[start - 5 :]


@given(CHARGES, st.data())
def test_disjoint_ranges_cost_the_maximum_and_overlapping_ones_the_sum(
    charges: list[tuple[range, Fraction]], data: st.DataObject
) -> None:
    """Issue, refuse and give back in random order; an array per index is the oracle."""
    book, array = accountant(), [Fraction(0)] * N
    live: list[tuple[Token[ZCDP], range, Fraction]] = []
    for users, amount in charges:
        fits = all(array[user - 5] + amount <= 1 for user in users)
        try:
            token = book.issue(ZCDP(amount), users=users, label="part")
        except InsufficientBudgetError:
            assert not fits
        else:
            assert fits
            live.append((token, users, amount))
            for user in users:
                array[user - 5] += amount
        if data.draw(GIVE_BACK) and live:
            token, users, amount = live.pop(data.draw(st.integers(0, len(live) - 1)))
            token.retire()
            for user in users:
                array[user - 5] -= amount
        for user in (5, 10, 16):
            assert book.spent(user) == ZCDP(array[user - 5])
            assert book.remaining(user) == ZCDP(1 - array[user - 5])
        assert book.spent() == ZCDP(max(array))


def test_a_ceiling_that_summed_over_all_users_would_be_seen() -> None:
    """The planted defect: one number for everybody refuses what parallel composition allows."""
    book = accountant()
    for start in USERS:
        book.issue(ZCDP(1), users=range(start, start + 1), label="own batch")
    assert book.spent() == ZCDP(1)
    assert book.remaining().is_zero


def test_a_refusal_names_the_users_that_are_full() -> None:
    book = accountant()
    book.issue(ZCDP("0.7"), users=range(8, 10), label="first")
    with pytest.raises(
        InsufficientBudgetError,
        match=r"for users 8..9: spent or reserved ZCDP\('0.7'\), requested ZCDP\('0.4'\), "
        r"remaining ZCDP\('0.3'\); nothing was charged",
    ):
        book.issue(ZCDP("0.4"), users=USERS, label="second")
    assert book.spent(5).is_zero


@pytest.mark.parametrize(
    "users", [range(4, 6), range(16, 18), range(0, 1), range(9, 9), range(9, 5), range(6, 10, 2)]
)
def test_users_outside_the_account_are_refused(users: range) -> None:
    book = accountant()
    with pytest.raises(ValueError, match=r"users = .*must be"):
        book.issue(ZCDP("0.1"), users=users, label="x")
    with pytest.raises(UsersError, match="must be a non-empty part"):
        book.spent(4)
    assert len(book.ledger.entries) == 1


PLAN = [
    Plan("gram", GaussianLoss("0.4"), USERS),
    Plan("batch", GaussianLoss("0.1"), range(5, 10), count=3),
    Plan("batch", GaussianLoss("0.2"), range(10, 17), count=2),
]


def test_a_plan_charges_everything_at_once_and_per_index() -> None:
    book = accountant()
    book.commit(PLAN)
    assert book.spent(5) == ZCDP("0.35")
    assert book.spent(16) == ZCDP("0.4")
    assert book.spent() == ZCDP("0.4")
    token = book.issue(GaussianLoss("0.4"), users=USERS, label="gram")
    assert token.budget == ZCDP("0.2")
    assert book.spent() == ZCDP("0.4")


def test_a_plan_is_exhaustive() -> None:
    book = accountant()
    book.commit(PLAN)
    refused: list[tuple[Any, range, str]] = [
        (GaussianLoss("0.41"), USERS, "gram"),  # more than planned
        (GaussianLoss("0.4"), range(5, 16), "gram"),  # other users
        (GaussianLoss("0.4"), USERS, "gramm"),  # another label
        (LaplaceLoss("0.01"), USERS, "gram"),  # another kind
        (GaussianLoss("0.2"), range(5, 10), "batch"),  # the loss of the other batches
    ]
    for price, users, label in refused:
        with pytest.raises(BudgetError, match=r"is not .*in the committed plan"):
            book.issue(price, users=users, label=label)
    with pytest.raises(BudgetError, match="issue tokens for its losses"):
        book.issue(ZCDP("0.001"), users=USERS, label="gram")
    for _ in range(3):
        book.issue(GaussianLoss("0.1"), users=range(5, 10), label="batch")
    with pytest.raises(BudgetError, match="no longer"):
        book.issue(GaussianLoss("0.1"), users=range(5, 10), label="batch")


def test_a_smaller_loss_may_take_a_planned_place_and_the_guarantee_stays() -> None:
    book = accountant()
    book.commit(PLAN)
    before = book.epsilon(1e-6)
    token = book.issue(GaussianLoss("0.3"), users=USERS, label="gram")
    assert token.budget == ZCDP("0.15")
    assert book.epsilon(1e-6) == before
    with pytest.raises(BudgetError, match="is not"):
        book.issue(GaussianLoss("0.1"), users=USERS, label="gram")


def test_an_unused_planned_token_can_be_issued_again() -> None:
    book = accountant()
    book.commit(PLAN)
    book.issue(GaussianLoss("0.4"), users=USERS, label="gram").retire()
    token = book.issue(GaussianLoss("0.4"), users=USERS, label="gram")
    receipt = token.spend(Spend("probe", Ball(1.0, 1), GaussianNoise(20.0)))
    receipt.release(receipt.draw((1,)))
    with pytest.raises(BudgetError, match="no longer"):
        book.issue(GaussianLoss("0.4"), users=USERS, label="gram")


def test_a_plan_comes_before_the_first_token_and_once() -> None:
    late = accountant()
    late.issue(ZCDP("0.1"), users=USERS, label="early").retire()
    with pytest.raises(BudgetError, match="committed once, before the first token"):
        late.commit(PLAN)
    twice = accountant()
    twice.commit(PLAN)
    with pytest.raises(BudgetError, match="committed once, before the first token"):
        twice.commit(PLAN)
    assert twice.spent() == ZCDP("0.4")


def test_a_plan_that_does_not_fit_is_refused_whole() -> None:
    book = accountant("0.39")
    with pytest.raises(InsufficientBudgetError, match=r"users 10..16: .*requested ZCDP\('0.4'\)"):
        book.commit(PLAN)
    assert book.spent().is_zero
    assert len(book.ledger.entries) == 1
    accountant("0.4").commit(PLAN)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="count"):
            book.commit([Plan("x", GaussianLoss("0.1"), USERS, count=bad)])
    with pytest.raises(ValueError, match=r"plan = \[\]: must have an item"):
        book.commit([])


def test_planned_counts_are_applied() -> None:
    """The defect of a peer: a branch that forgot the count."""
    book = accountant("10")
    book.commit([Plan("select", BoundedRangeLoss("0.1"), USERS, count=500)])
    one = BoundedRangeLoss("0.1").zcdp()
    assert book.spent() == ZCDP(one * 500)


def test_whole_population_spends_only_under_add_remove() -> None:
    book = accountant(adjacency=Adjacency.ADD_REMOVE)
    for part in (range(5, 10), range(5, 16)):
        with pytest.raises(AdjacencyError, match="add-remove shifts every later index"):
            book.issue(ZCDP("0.1"), users=part, label="part")
    with pytest.raises(AdjacencyError, match="add-remove shifts every later index"):
        book.commit([Plan("x", GaussianLoss("0.1", adjacency=Adjacency.ADD_REMOVE), range(5, 6))])
    mechanism = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.1"), adjacency=Adjacency.ADD_REMOVE)
    token = book.issue(mechanism.loss(), users=USERS, label="all")
    mechanism.release(Rows.seal(np.ones((N, 2)), users=USERS), token)
    replace = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.1"))
    assert replace.error_std() == pytest.approx(2 * mechanism.error_std())


@pytest.mark.parametrize("own", Adjacency)
@pytest.mark.parametrize("other", Adjacency)
def test_losses_of_another_adjacency_are_refused(own: Adjacency, other: Adjacency) -> None:
    book = accountant(adjacency=own)
    plan = [Plan("x", GaussianLoss("0.1", adjacency=other), USERS)]
    noise = GaussianNoise(100.0)
    spend = Spend("probe", Ball(1.0, 1), noise, own_loss=noise.loss(1.0, other))
    token = book.issue(ZCDP("0.1"), users=USERS, label="probe")
    if own is other:
        token.spend(spend)
        accountant(adjacency=own).commit(plan)
        return
    with pytest.raises(AdjacencyError, match="convert it explicitly"):
        token.spend(spend)
    with pytest.raises(AdjacencyError, match="convert it explicitly"):
        accountant(adjacency=own).commit(plan)
    assert len(book.ledger.entries) == 2


def test_a_stated_loss_must_be_earned_by_domain_and_noise() -> None:
    """A spend that says untrusted but lies about its loss is refused before it is recorded."""
    book = accountant()
    token = book.issue(ZCDP("0.5"), users=USERS, label="probe")
    spend = Spend("liar", Ball(1.0, 1), GaussianNoise(10.0))
    cheap = GaussianLoss("0.01")
    with pytest.raises(BudgetError, match="noise and domain give a loss of"):
        book.issuer.record_spend(token, spend, cheap)
    assert len(book.ledger.entries) == 2


def test_pure_budgets_add_up_worst_cases() -> None:
    book = CentralAccountant(PureDP(1), users=USERS, noise=NoiseSource.simulation(0))
    for _ in range(10):
        book.issue(LaplaceLoss("0.1"), users=USERS, label="x")
    with pytest.raises(InsufficientBudgetError, match=r"remaining PureDP\('0'\)"):
        book.issue(LaplaceLoss("0.001"), users=USERS, label="x")


# What accounts share ---------------------------------------------------------------------------


def test_a_price_is_worked_out_once_for_all_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Loss] = []
    price = ZCDP.price

    def asking(self: ZCDP, loss: Loss) -> ZCDP:
        asked.append(loss)
        return price(self, loss)

    monkeypatch.setattr(ZCDP, "price", asking)
    monkeypatch.setattr(prices, "_PRICED", {})
    losses = GaussianLoss("0.013"), GaussianLoss("0.013")
    tokens = [accountant().issue(loss, users=USERS, label="x") for loss in losses]
    assert asked == [losses[0]]
    assert tokens[0].budget == tokens[1].budget == ZCDP("0.0065")
    assert asking(ZCDP(0), losses[1]) == ZCDP("0.0065")


@register
class Chameleon(GaussianLoss):  # type: ignore[misc]
    """A kind of somebody else that says it equals another one."""

    kind = "test.chameleon"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(GaussianLoss("0.017"))

    def zcdp(self) -> Fraction:
        return Fraction(1, 2)

    def gaussian(self) -> None:  # type: ignore[override]
        return None


def test_a_foreign_loss_has_its_own_price_in_every_account() -> None:
    ours, other = GaussianLoss("0.017"), Chameleon("0.017")
    for loss, cost in ((ours, ZCDP("0.0085")), (other, ZCDP("0.5")), (ours, ZCDP("0.0085"))):
        assert accountant().issue(loss, users=USERS, label="x").budget == cost
    assert not any(isinstance(key[-1], Chameleon) for key in prices._PRICED)


def test_a_spend_that_was_right_elsewhere_is_not_right_for_another_relation() -> None:
    spend = Spend("probe", Ball(1.0, 2), GaussianNoise(9.0))
    elsewhere = accountant()
    first = elsewhere.issue(ZCDP("0.1"), users=USERS, label="x")
    first.spend(spend)
    entry = elsewhere.ledger.entries[-1]
    assert isinstance(entry, SpendEntry)
    here = accountant(adjacency=Adjacency.ZERO_OUT)
    token = here.issue(ZCDP("0.1"), users=USERS, label="x")
    changes = {"accountant": here.id, "token": token.id, "adjacency": Adjacency.ZERO_OUT}
    claimed = SpendEntry(**{**entry.__dict__, **changes})
    with pytest.raises(AdjacencyError, match="a loss for replace-one under an accountant"):
        here._state.check(claimed)
    here._state.check(
        SpendEntry(**{**claimed.__dict__, "loss": spend.loss(Adjacency.ZERO_OUT).to_dict()})
    )


def test_a_budget_that_was_refused_is_looked_at_again() -> None:
    """What is remembered by identity is forgotten where a check fails, with what it counted."""
    book = accountant()
    loss = GaussianLoss(Fraction(2, 3**9))
    for _ in range(2):
        with pytest.raises(BudgetError, match="names a plan, but none"):
            book._state.check(
                IssueEntry(
                    accountant=book.id,
                    token=f"{book.id}/1",
                    label="x",
                    users=(5, 17),
                    budget=ZCDP(0).price(loss).to_dict(),
                    planned=0,
                )
            )
        assert book._state.prices.denominator == 1
