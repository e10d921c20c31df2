"""Single numbers of a report that sums and random ledgers do not pin down."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers_to_show import attested, clock, release, simulated
from person_ledgers import APART, SLOTS, admitted
from person_ledgers import SUM as PERSON_SUM

from privlearn.accountants import CentralAccountant
from privlearn.accountants.plain_words import largest_chance
from privlearn.accountants.shown_numbers import rounded_up
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.ledger import Ledger
from privlearn.losses import FailingLoss, GaussianLoss, Loss, PerArrivalLoss, RenyiCurve
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, Renyi
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.people import People
from privlearn.reporting.certificates import verdict, weaknesses
from privlearn.reporting.differences import difference
from privlearn.reporting.model import MOST_LISTED, Balance, Report
from privlearn.reporting.privacy_curves import PrivacyCurve, chances
from privlearn.reporting.report import exit_code, report
from privlearn.rows import Rows
from privlearn.rows.domains import Ball


def opened(path: Path, cap: Currency, users: int = 10, **named: Any) -> CentralAccountant[Any]:
    return CentralAccountant(cap, users=range(users), ledger=Ledger.create(path), **named)


def spend(book: CentralAccountant[Any], loss: Loss, users: range, name: str = "own") -> None:
    with book.issue(loss, users=users, label=name).spend(
        Spend(name, Ball(1.0, 1), GaussianNoise(1.0), own_loss=loss)
    ) as receipt:
        receipt.release(receipt.draw((1,)), keep=False)


def runs(balance: Balance) -> list[int]:
    return [one.runs for one in balance.buys if one.runs is not None]


def test_at_several_orders_as_many_runs_are_left_as_all_of_them_allow(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", Renyi({2: 10, 8: 10}))
    spend(book, RenyiCurve({2: 1, 8: 3}), range(10))  # twice more at order 8, nine times at 2
    (balance,) = report(tmp_path / "a.db").balances
    assert runs(balance) == [2]
    assert (balance.unit, balance.spent) == ("ε at order 8", 3.0)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_certificate_bounds_a_guess_by_each_of_its_numbers(mu: float) -> None:
    """Of one Gaussian release, on which no guess is right more often than Φ(μ/2)."""
    truth = 0.5 + math.erf(mu / math.sqrt(8)) / 2
    book = CentralAccountant(GaussianDP(Fraction(mu)), users=range(2), ledger=Ledger.memory())
    (whole,) = book.certificate().guarantees
    by_mu = largest_chance(whole)
    by_rho = largest_chance(whole.model_copy(update={"mu": None}))
    by_epsilon = largest_chance(whole.model_copy(update={"mu": None, "rho": None}))
    assert truth == pytest.approx(by_mu, rel=1e-12)
    assert truth < by_rho <= by_epsilon <= 1
    assert largest_chance(whole.model_copy(update={"failure": 1e-9})) == by_epsilon


def test_failures_that_are_set_aside_bound_what_is_left(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(1), failure="1e-6")
    loss = FailingLoss(GaussianLoss("0.01"), Fraction("4e-7"))
    spend(book, loss, range(10))
    (before,) = report(tmp_path / "a.db").balances
    assert runs(before) == [1], "the cap has room for 199"
    book.issue(loss, users=range(10), label="waits")
    (balance,) = report(tmp_path / "a.db").balances
    failing = balance.failing
    assert failing is not None
    assert (failing.spent, failing.reserved) == pytest.approx((4e-7, 4e-7))
    assert failing.remaining == pytest.approx(2e-7)
    assert runs(balance) == []


def test_a_run_that_costs_some_more_is_bought_at_their_price(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(1))
    spend(book, PerArrivalLoss([(5, GaussianLoss("0.2")), (5, GaussianLoss("0.6"))]), range(10))
    (balance,) = report(tmp_path / "a.db").balances
    assert runs(balance) == [2], "0.3 of 1 is spent, and each costs 0.3"
    (noise,) = [one.noise_multiplier for one in balance.buys if one.noise_multiplier is not None]
    assert noise == pytest.approx((1 / (2 * 0.7)) ** 0.5)
    book.issue(ZCDP(Fraction(1, 2) / Fraction(noise) ** 2), users=range(10), label="fits")


def test_a_closed_plan_reserves_nothing(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(1))
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(8.0))
    book.commit([Plan("fit", mechanism.loss(), range(10), count=3)])
    token = book.issue(mechanism.loss(), users=range(10), label="fit")
    mechanism.release(Rows.seal(np.ones((10, 2)), users=range(10)), token)
    (open_,) = report(tmp_path / "a.db").balances
    assert open_.reserved == pytest.approx(2 * (open_.spent or 0.0))
    book.close()
    (balance,) = report(tmp_path / "a.db").balances
    assert (balance.spent, balance.reserved) == (open_.spent, 0.0)
    assert balance.remaining == pytest.approx(1 - (balance.spent or 0.0))
    assert (balance.plan_left, balance.buys) == ([], [])


def test_periods_follow_each_other_and_what_was_paid_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with clock() as on:
        book = opened(path, ZCDP(1))
        for _ in range(100):
            release(book, range(10), "day")
            on(24 * 60)
    found = report(path)
    lines = found.by_time
    assert 1 < len(lines) < 60
    for line, following in pairwise(lines):
        assert (line.until or "") < (following.since or "")
        assert (line.so_far or 0.0) < (following.so_far or 0.0)
    paid = 0.0
    for line in lines:
        paid += line.most or 0.0
        assert line.so_far == pytest.approx(paid), "everybody pays everything"
    assert lines[-1].so_far == found.total[0].most


def test_a_user_who_is_named_for_a_range_is_in_it(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(1), users=100)
    release(book, range(100), "all")
    lines = report(tmp_path / "a.db").by_user_range
    assert len(lines) == 20
    assert all(start <= (line.user or 0) < stop for line in lines for start, stop in [line.users])


def test_a_stream_is_charged_to_those_whom_it_reached(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(1))
    stream = PrefixSum(Ball(1.0, 2), BinaryTree(10), 8.0)
    with stream.open(book.issue(stream.loss(), users=range(10), label="stream")) as one:
        one.append(Rows.seal(np.ones((4, 2)), users=range(4)))
    found = report(tmp_path / "a.db")
    reached = 10 - found.freed
    assert 4 <= reached < 10, "this stream ended early"
    assert found.total[0].users == (0, reached)
    assert [line.users[1] for line in found.by_user_range][-1] == reached
    for user, times in ((reached - 1, 1), (reached, 0)):
        mine = report(tmp_path / "a.db", user=user)
        assert sum(line.spends for line in mine.total) == times
        assert bool(mine.balances[0].spent) == bool(times)


def test_attested_messages_count_as_often_as_one_user_may_send(tmp_path: Path) -> None:
    attested(tmp_path / "a.db")
    found = report(tmp_path / "a.db")
    assert found.total[0].most == found.balances[0].spent == 2 * 0.5
    (one,) = report(tmp_path / "a.db", label="clicks").listed
    assert one.cost == 1.0


def test_of_very_many_tokens_those_not_spent_are_listed(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(100))
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(100.0))
    book.issue(mechanism.loss(), users=range(10), label="runs").spend(mechanism.spend()).__enter__()
    for _ in range(MOST_LISTED + 1):
        book.issue(mechanism.loss(), users=range(10), label="waits")
    found = report(tmp_path / "a.db")
    assert (found.unspent_tokens, found.running_tokens) == (MOST_LISTED + 1, 1)
    assert {token.label for token in found.open_tokens} == {"waits"}
    assert len(found.open_tokens) == MOST_LISTED


def test_the_dearest_stand_first_and_the_others_are_counted(tmp_path: Path) -> None:
    book = opened(tmp_path / "a.db", ZCDP(100))
    for number in range(MOST_LISTED + 5):
        release(book, range(10), f"label {number}", 100.0)
    for _ in range(3):
        release(book, range(10), "often", 99.0)
    release(book, range(10), "dear", 10.0)
    lines = report(tmp_path / "a.db").by_label
    assert [line.label for line in lines[:3]] == ["dear", "often", "label 0"]
    assert lines[-1].others == MOST_LISTED + 7 - (MOST_LISTED - 1)


def test_runs_alike_of_persons_are_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    book = opened(path, ZCDP(4), users=len(SLOTS), people=People.memory(APART))
    rows = admitted(book, range(6))
    for _ in range(2):
        PERSON_SUM.release(rows, book.issue(PERSON_SUM.loss(), users=range(6), label="sum"))
    found = report(path)
    assert found.total[0].spends == 2
    assert found.total[0].most == pytest.approx(found.balances[0].spent)


def test_a_spend_just_behind_the_old_ledger_is_told(tmp_path: Path) -> None:
    """The old copy was made between a token's issue and its spend."""
    book = opened(tmp_path / "new.db", ZCDP(1))
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(8.0))
    token = book.issue(mechanism.loss(), users=range(10), label="week")
    book.ledger.export(tmp_path / "old.jsonl")
    mechanism.release(Rows.seal(np.ones((10, 2)), users=range(10)), token)
    found = difference(tmp_path / "old.jsonl", tmp_path / "new.db")
    assert found.continues
    assert [line.spends for line in found.total] == [1]
    assert [one.entry for one in found.listed] == [found.old_entries]


@pytest.fixture(scope="module")
def of_simulation(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("simulated") / "a.db"
    simulated(path)
    return report(path)


def test_a_problem_is_more_than_a_simulation(of_simulation: Report) -> None:
    assert (of_simulation.exit_code, exit_code(of_simulation)) == (3, 3)
    both = of_simulation.model_copy(update={"problems": ["entry 1: is wrong"]})
    assert exit_code(both) == 1
    assert verdict(both) == "NOT VERIFIED: 1 problem"
    assert exit_code(both.model_copy(update={"simulation": False})) == 1
    assert exit_code(both.model_copy(update={"simulation": False, "problems": []})) == 0


def test_one_lost_spend_weakens_a_claim(of_simulation: Report) -> None:
    told = weaknesses(of_simulation.model_copy(update={"lost": 1}))
    assert "1 spend without a recorded outcome" in " ".join(told)
    assert "without a recorded outcome" not in " ".join(weaknesses(of_simulation))


def test_a_curve_of_one_point_bounds_attacks_by_its_delta_too() -> None:
    point = PrivacyCurve(np.array([1.0]), np.array([0.1]))
    assert float(point.power(0.0)) == 0.1
    growth = math.e
    assert point.advantage == pytest.approx((growth - 1 + 0.2) / (growth + 1))
    guess, caught, odds = chances(point)
    assert guess == pytest.approx(0.5 + point.advantage / 2)
    assert (caught, odds) == pytest.approx((0.01 * growth + 0.1, growth + 10))
    assert rounded_up(50.001, 2) == 50.01


def test_a_promise_counted_in_rho_says_what_gaussian_noise_has_of_it(tmp_path: Path) -> None:
    """And the guarantee of a plan that uses up the cap is that number."""
    told = {}
    for name, currency in (("rho", None), ("mass", GaussianDP)):
        with Ledger.create(tmp_path / f"{name}.db") as book:
            account = CentralAccountant(
                ApproxDP(1, "1e-5"), users=range(3), ledger=book, currency=currency
            )
            loss = NoisySum.calibrated(Ball(1.0, 2), account.budget).loss()
            account.commit([Plan("all", loss, range(3))])
        told[name] = report(tmp_path / f"{name}.db")
    assert round(told["rho"].epsilon, 3) == 0.915
    (balance,) = told["rho"].balances
    assert "uses up the cap at ε = 0.9151; with currency=GaussianDP" in balance.counted
    assert round(told["mass"].epsilon, 3) == 1
    assert told["mass"].balances[0].counted == ""
