"""Accountants: exact caps, what is left, what is promised, and going on after a restart."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.guarantee import epsilon_of, in_renyi, in_zcdp
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CurrencyError,
    InsufficientBudgetError,
    LedgerBusyError,
    LedgerError,
    TokenCopyError,
    UsersError,
)
from privlearn.ledger import GENESIS, Ledger, Record, read_records
from privlearn.losses import BoundedRangeLoss, GaussianLoss, LaplaceLoss, Loss, MinimizerLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, Budget, Currency, GaussianDP, PureDP, Renyi
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency, Trust

OLD = Path(__file__).resolve().parents[1] / "ledger" / "format1"

USERS = range(10)


def central(budget: Any = "1", **more: Any) -> CentralAccountant[Any]:
    cap = ZCDP(budget) if isinstance(budget, str) else budget
    return CentralAccountant(cap, users=USERS, noise=NoiseSource.simulation(0), **more)


def rows(users: range = USERS) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


def test_two_hundred_spends_of_a_two_hundredth_fill_one_and_no_more_fits() -> None:
    """The defect of peers: budget arithmetic in floats refused the last of them."""
    book = central()
    loss = GaussianLoss("1/100")  # rho = 1/200
    for _ in range(200):
        book.issue(loss, users=USERS, label="step")
    assert book.remaining() == ZCDP(0)
    assert book.spent() == ZCDP(1)
    with pytest.raises(
        InsufficientBudgetError,
        match=r"spent or reserved ZCDP\('1'\), requested ZCDP\('0.005'\), remaining ZCDP\('0'\); "
        "nothing was charged",
    ) as refused:
        book.issue(loss, users=USERS, label="step")
    error = refused.value
    assert (error.spent, error.requested, error.remaining) == (ZCDP(1), ZCDP("1/200"), ZCDP(0))
    assert error.users == USERS
    assert len(book.ledger.entries) == 201


def test_the_same_in_thirds_and_in_other_currencies() -> None:
    for cap, part, count in (
        (ZCDP(1), ZCDP("1/3"), 3),
        (PureDP("0.3"), PureDP(0.1), 3),
        (GaussianDP(1), GaussianDP.from_mu_squared("1/7"), 7),
        (Renyi({2: 1, 8: 2}), Renyi({2: "1/9", 8: "0.01"}), 9),
    ):
        book = central(cap)
        for _ in range(count):
            book.issue(part, users=USERS, label="part")
        with pytest.raises(InsufficientBudgetError, match="budget exceeded"):
            book.issue(part, users=USERS, label="part")


def test_an_unused_token_gives_its_budget_back_and_a_partly_used_one_the_rest() -> None:
    book = central()
    token = book.issue(ZCDP(1), users=USERS, label="all")
    assert book.remaining().is_zero
    token.retire()
    assert book.remaining() == ZCDP(1)
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(10.0))
    mechanism.release(rows(), book.issue(ZCDP(1), users=USERS, label="all"))
    assert book.spent() == ZCDP("0.02")
    assert book.remaining() == ZCDP("0.98")


def test_what_a_user_has_left_is_their_own() -> None:
    book = central()
    book.issue(ZCDP("0.4"), users=range(0, 5), label="first half")
    assert book.remaining(0) == ZCDP("0.6")
    assert book.remaining(9) == ZCDP(1)
    assert book.remaining() == ZCDP("0.6")
    assert book.spent(0) == ZCDP("0.4")


@pytest.mark.parametrize(
    "budget", [ZCDP(0), PureDP(0), GaussianDP(0), Renyi({2: 0}), Renyi({2: 1, 3: 0})], ids=repr
)
def test_a_cap_of_nothing_is_refused(budget: Currency) -> None:
    with pytest.raises(BudgetError, match="must be above zero"):
        central(budget)


def test_budgets_of_other_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match="must be a budget such as"):
        central(0.5)
    with pytest.raises(BudgetError, match="has its own"):
        central("1", currency=GaussianDP)
    with pytest.raises(BudgetError, match="counts in ZCDP, GaussianDP or Renyi"):
        central(ApproxDP(1, "1e-6"), currency=PureDP)
    book = central()
    others: list[Budget] = [
        GaussianDP("0.1"),
        PureDP("0.1"),
        Renyi({2: "0.1"}),
        ApproxDP(1, "1e-6"),
    ]
    for other in others:
        with pytest.raises(BudgetError, match=r"different budgets|is not a currency"):
            book.issue(other, users=USERS, label="x")
    with pytest.raises(CurrencyError, match="not pure-DP"):
        central(PureDP(1)).issue(GaussianLoss("0.1"), users=USERS, label="x")
    for nothing in (ZCDP(0),):
        with pytest.raises(BudgetError, match="can pay for nothing"):
            book.issue(nothing, users=USERS, label="x")
    assert len(book.ledger.entries) == 1


@pytest.mark.parametrize("currency", [ZCDP, GaussianDP])
@pytest.mark.parametrize(("epsilon", "delta"), [(1, "1e-6"), ("0.1", "1e-9"), (8, "0.01")])
def test_an_epsilon_delta_promise_is_kept_and_used_up(
    epsilon: Any, delta: str, currency: type[Currency]
) -> None:
    promise = ApproxDP(epsilon, delta)
    book = central(promise, currency=currency)
    assert isinstance(book.budget, currency)
    stated = book.epsilon(float(delta))
    assert float(promise.epsilon) * (1 - 1e-6) <= stated <= float(promise.epsilon) * (1 + 1e-12)
    mechanism = NoisySum.calibrated(Ball(1.0, 2), book.budget)
    mechanism.release(rows(), book.issue(mechanism.loss(), users=USERS, label="x"))
    assert book.epsilon(float(delta), of="spent") <= float(promise.epsilon) * (1 + 1e-12)
    assert book.certificate().guarantees[0].delta == float(delta)


def test_a_gaussian_budget_buys_more_than_a_zcdp_budget_for_one_promise() -> None:
    promise = ApproxDP(1, "1e-6")
    gauss, zcdp = central(promise, currency=GaussianDP), central(promise)
    assert gauss.budget.gaussian_mass() > 1.1 * float(zcdp.budget.gaussian_mass())


def test_a_thousand_gaussians_of_multiplier_twenty_are_the_exact_curve() -> None:
    book = central("2")
    book.commit([Plan("step", GaussianLoss("1/400"), USERS, count=1000)])
    assert book.epsilon(1e-6) == pytest.approx(8.3062, abs=5e-5)
    assert book.delta(book.epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-6)
    assert book.delta(book.epsilon(1e-6)) <= 1e-6


def test_without_a_plan_the_cap_is_the_promise_and_with_one_its_total() -> None:
    ad_hoc, planned = central(), central()
    planned.commit([Plan("step", GaussianLoss("0.5"), USERS)])
    assert ad_hoc.epsilon(1e-6) == pytest.approx(7.76622, abs=1e-5)  # zCDP of 1
    assert planned.epsilon(1e-6) < ad_hoc.epsilon(1e-6)
    for book in (ad_hoc, planned):
        assert book.epsilon(1e-6, of="spent") == 0
        assert book.delta(0.1, of="spent") == 0
        token = book.issue(GaussianLoss("0.5"), users=USERS, label="step")
        before = book.epsilon(1e-6)
        NoisySum(Ball(1.0, 2), GaussianNoise(3.0)).release(rows(), token)
        assert book.epsilon(1e-6) == before
        assert 0 < book.epsilon(1e-6, of="spent") <= before


@pytest.mark.parametrize(
    "loss", [GaussianLoss("0.01"), LaplaceLoss("0.05"), BoundedRangeLoss("0.1")], ids=str
)
def test_epsilon_never_falls_as_spends_are_added(loss: Loss) -> None:
    last = 0.0
    for count in (1, 2, 5, 10):
        book = central("10")
        book.commit([Plan("x", loss, USERS, count=count)])
        epsilon = book.epsilon(1e-6)
        assert epsilon > last
        last = epsilon


@pytest.mark.parametrize("delta", [1, -1, 2, math.nan, math.inf])
def test_delta_outside_zero_and_one_is_refused(delta: float) -> None:
    book = central()
    for ask in (book.epsilon, book.certificate):
        with pytest.raises(ValueError, match=r"delta = .*must"):
            ask(delta)
    for epsilon in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"epsilon = .*must"):
            book.delta(epsilon)


def test_accountants_cannot_be_copied() -> None:
    book = central()
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TokenCopyError, match="resume its ledger instead"):
            copier(book)


def test_a_used_ledger_is_resumed_and_not_begun_again() -> None:
    ledger = Ledger.memory()
    central(ledger=ledger)
    with pytest.raises(LedgerError, match=r"use resume"):
        central(ledger=ledger)
    with pytest.raises(LedgerError, match="holds no joint accountant"):
        JointAccountant.resume(ledger)
    with pytest.raises(LedgerError, match=r"resumed with NoiseSource.simulation"):
        CentralAccountant.resume(ledger)
    with pytest.raises(LedgerError, match="the ledger was begun with"):
        CentralAccountant.resume(ledger, noise=NoiseSource.secure())
    with pytest.raises(LedgerError, match="holds no central accountant"):
        CentralAccountant.resume(Ledger.memory())


def test_after_a_restart_everything_is_as_it_was(tmp_path: Any) -> None:
    path = tmp_path / "ledger.db"
    noise = NoiseSource.simulation(0)
    book = JointAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=noise)
    book.commit(
        [Plan("a", GaussianLoss("0.2"), range(5), 2), Plan("b", GaussianLoss("0.6"), range(5, 10))]
    )
    released = book.issue(GaussianLoss("0.2"), users=range(5), label="a")
    board = Billboard(book, USERS)
    own = board.serve(rows(range(5)), lambda block: block).deliver(lambda block, _: block)
    NoisySum(Ball(1.0, 2), GaussianNoise(5.0)).release(own, released)
    unused = book.issue(GaussianLoss("0.2"), users=range(5), label="a")
    again: JointAccountant[ZCDP] = JointAccountant.resume(path, noise=NoiseSource.simulation(1))
    assert (again.id, again.users, again.budget) == (book.id, USERS, ZCDP(1))
    assert (again.trust, again.adjacency) == (Trust.JOINT, Adjacency.REPLACE_ONE)
    assert again.spent() == book.spent() == ZCDP("0.3")
    assert again.epsilon(1e-6) == book.epsilon(1e-6)
    assert again.epsilon(1e-6, of="spent") == book.epsilon(1e-6, of="spent")
    with pytest.raises(LedgerBusyError, match="another process"):
        unused.retire()
    again.issue(GaussianLoss("0.2"), users=range(5), label="a")  # its place is free again
    with pytest.raises(BudgetError, match="no longer"):
        again.issue(GaussianLoss("0.2"), users=range(5), label="a")
    assert again.certificate().problems == []


def test_the_joint_certificate_says_what_it_rests_on() -> None:
    book = JointAccountant(
        ZCDP(1), users=USERS, ledger=Ledger.memory(), side_information=["item revenues"]
    )
    (guarantee,) = book.certificate().guarantees
    text = " ".join(guarantee.assumptions)
    for part in (
        "One user is one round",
        "k rounds has group privacy",
        "record is the pair",
        "response function",
        "own action is not protected",
        "logged rows are refused",
        "index of a user is fixed",
        "batches are closed by public counts",
        "public and were not tuned",
        "item revenues",
        "Noise: ",
        "solver",
        "act on each row by itself",
        "floating point",
        "lived in memory",
        "ex post",
        "verifies the record",
        "cap",
    ):
        assert part in text, part
    assert guarantee.trust is Trust.JOINT
    assert book.certificate().holds


def test_simulation_is_never_certified_and_noise_kind_is_always_known() -> None:
    certificate = central().certificate()
    assert certificate.simulation
    assert not certificate.holds
    assert "simulation, seed 0" in certificate.noise
    assert "SIMULATION" in " ".join(certificate.guarantees[0].assumptions)


def test_a_check_tape_needs_simulation_noise() -> None:
    with pytest.raises(ValueError, match=r"a check needs NoiseSource.simulation"):
        CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.memory(), observer=object())  # type: ignore[arg-type]


def test_secure_noise_asks_for_a_ledger_that_lasts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the path of a new file"):
        CentralAccountant(ZCDP(1), users=USERS)
    CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(tmp_path / "ledger.db")).close()


def test_add_remove_opens_everybody_at_once_and_has_no_joint_form() -> None:
    add_remove = Adjacency.ADD_REMOVE
    book = central("100", adjacency=add_remove)
    mechanism = NoisySum(Ball(1.0, 1), GaussianNoise(1.0), add_remove)
    everybody = Rows.seal(np.ones((len(USERS), 1)), users=USERS)
    with pytest.raises(UsersError, match="must be opened at once"):
        mechanism.release(
            everybody.slice(range(0, 2)), book.issue(mechanism.loss(), users=USERS, label="x")
        )
    mechanism.release(everybody, book.issue(mechanism.loss(), users=USERS, label="x"))
    with pytest.raises(AdjacencyError, match="a joint guarantee is for replace-one or zero-out"):
        JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0), adjacency=add_remove)


def test_an_old_copy_is_told_by_its_head(tmp_path: Path) -> None:
    path, old = tmp_path / "ledger.db", tmp_path / "old.db"
    book = CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path))
    token = book.issue(ZCDP("0.5"), users=USERS, label="x")
    head = book.ledger.backup(old)
    assert len(read_records(old)) == 2
    assert CentralAccountant.resume(old, head=head).ledger.open_accountants
    token.retire()
    head = book.ledger.head
    book.ledger.close()
    with pytest.raises(LedgerError, match="cut or rewritten"):
        CentralAccountant.resume(old, head=head)
    assert CentralAccountant.resume(path, head=head).spent().is_zero


def test_the_error_bound_of_gaussian_answers_is_true() -> None:
    book = central("2")
    book.commit([Plan("x", GaussianLoss("1/16"), USERS, count=17)])
    (guarantee,) = book.certificate(1e-6).guarantees
    assert guarantee.epsilon == pytest.approx(5.0582, abs=5e-5)
    assert 0 <= guarantee.error_bound < 1e-9
    assert guarantee.mu == pytest.approx(math.sqrt(17) / 4)
    assert guarantee.rho == 17 / 32


@pytest.mark.parametrize("trust", [CentralAccountant, JointAccountant])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1, "1e-6"), ("0.1", "1e-9"), (8, "0.01"), ("1/3", "1/7"), (60, "1e-30")]
)
def test_one_renyi_order_keeps_the_promise(trust: Any, epsilon: Any, delta: str) -> None:
    promise = ApproxDP(epsilon, delta)
    book = trust(promise, users=USERS, noise=NoiseSource.simulation(0), currency=Renyi)
    assert isinstance(book.budget, Renyi)
    assert len(book.budget.curve) == 1
    stated = book.epsilon(float(promise.delta))
    assert float(promise.epsilon) * (1 - 1e-6) <= stated <= float(promise.epsilon) * (1 + 1e-12)
    loss = GaussianLoss(book.budget.gaussian_mass())
    book.commit([Plan("x", loss, USERS)])
    certificate = book.certificate()
    assert certificate.problems == []
    (guarantee,) = certificate.guarantees
    assert guarantee.delta == float(promise.delta)
    assert guarantee.epsilon <= float(promise.epsilon)
    with pytest.raises(InsufficientBudgetError, match="budget exceeded"):
        trust(promise, users=USERS, noise=NoiseSource.simulation(0), currency=Renyi).issue(
            GaussianLoss(book.budget.gaussian_mass() * Fraction("1.0001")), users=USERS, label="x"
        )


def test_one_order_takes_losses_whose_curve_is_no_line() -> None:
    """What zCDP cannot price, or only by a line above the curve."""
    promise = ApproxDP(2, "1e-6")
    loss = MinimizerLoss(
        difference=4.0, trace=1.0, rank=5, directions=5, ridge=12.0, noise_std=11.0
    )
    zcdp, renyi = central(promise), central(promise, currency=Renyi)
    with pytest.raises(InsufficientBudgetError, match="budget exceeded"):
        zcdp.commit([Plan("fit", loss, USERS)])
    renyi.commit([Plan("fit", loss, USERS)])
    assert renyi.epsilon(1e-6) <= 2
    assert renyi.certificate().problems == []


@pytest.mark.parametrize("promise", [ApproxDP(0, "1e-6"), ApproxDP("1e-9", "1e-200")], ids=repr)
def test_promises_of_next_to_nothing_are_kept_at_one_order_too(promise: ApproxDP) -> None:
    book = central(promise, currency=Renyi)
    assert not book.budget.is_zero
    assert book.epsilon(float(promise.delta)) <= float(promise.epsilon) + 1e-15


def test_a_cap_at_one_order_survives_a_restart(tmp_path: Path) -> None:
    path, promise = tmp_path / "ledger.db", ApproxDP(1, "1e-6")
    book: CentralAccountant[Any] = CentralAccountant(
        promise,
        users=USERS,
        ledger=Ledger.create(path),
        noise=NoiseSource.simulation(0),
        currency=Renyi,
    )
    book.issue(GaussianLoss("0.01"), users=USERS, label="x")
    cap, stated = book.budget, book.epsilon(1e-6)
    book.ledger.close()
    again: CentralAccountant[Any] = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
    assert again.budget == cap
    assert again.epsilon(1e-6) == stated <= 1
    assert again.spent().is_zero
    assert again.certificate().problems == []


def test_a_doctored_order_breaks_the_promise() -> None:
    """The auditor recomputes ε from the cap; more at the same order is a problem."""
    promise = ApproxDP(1, "1e-6")
    (order,) = in_renyi(promise).curve
    (level,) = in_renyi(promise).curve.values()
    assert epsilon_of(in_renyi(promise), 1e-6).value <= 1
    assert epsilon_of(Renyi({order: level * Fraction("1.001")}), 1e-6).value > 1
    assert epsilon_of(Renyi({order * Fraction("0.9"): level}), 1e-6).value > 1
    assert in_renyi(promise).gaussian_mass() == pytest.approx(
        float(in_zcdp(promise).gaussian_mass()), rel=1e-6
    )


def test_a_ledger_of_format_1_does_not_say_that_functions_were_named() -> None:
    """It had no entries for them; every ledger of format 2 has."""
    old = certify(read_records(OLD / "tofw-central.db"))
    new = certify([Record.make(GENESIS, 0, central()._state.opened.body())])
    texts = [" ".join(found.guarantees[0].assumptions) for found in (old, new)]
    assert "which neither named nor checked them" in texts[0]
    assert "spot-checked" not in texts[0]
    assert "spot-checked on every block, but for the users' answers" in texts[1]


def test_a_ledger_may_be_named_by_the_path_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with pytest.raises(BudgetError, match="must be above zero"):
        CentralAccountant(ZCDP(0), users=range(5), ledger=path)
    assert not path.exists()  # a mistake leaves no file behind
    accountant = CentralAccountant(ZCDP(1), users=range(5), ledger=str(path))
    accountant.close()
    assert [record.body["entry"] for record in read_records(path)] == ["open", "close"]
    with pytest.raises(LedgerError, match="never overwritten"):
        CentralAccountant(ZCDP(1), users=range(5), ledger=path)
    with pytest.raises(TypeError, match="ledger = 3: must be the path of a new file"):
        CentralAccountant(ZCDP(1), users=range(5), ledger=3)  # type: ignore[arg-type]
