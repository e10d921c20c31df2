"""No printed number of a guarantee is below the number, and what is left can be bought."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from ledgers_to_show import KINDS, clock

from privlearn.accountants import CentralAccountant
from privlearn.accountants.certificate import Guarantee, Running
from privlearn.cli import interruption
from privlearn.cli.price import _price_line
from privlearn.contract.spends import Spend
from privlearn.errors import InsufficientBudgetError, PrivlearnError
from privlearn.events.lists import event_list
from privlearn.events.pricing import epsilon_price
from privlearn.ledger import Ledger, write_export
from privlearn.losses import (
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PerArrivalLoss,
    PureLoss,
    compose,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.noise import GaussianNoise
from privlearn.reporting.certificates import guarantee_line, running_line
from privlearn.reporting.evaluation import evaluation
from privlearn.reporting.page import page_html
from privlearn.reporting.page_charts import time_chart
from privlearn.reporting.report import report
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency, Trust

# Rounding -----------------------------------------------------------------------------------------

ODD = (1.00001, 0.12344, 1 / 3, 2 / 3, 5.22151, 1.0, 0.3, 1234567.1, 1.2345649e-7)


def printed(pattern: str, text: str) -> list[Fraction]:
    return [Fraction(number) for number in re.findall(pattern + r" ?([\d.]+(?:e[+-]?\d+)?)", text)]


@pytest.mark.parametrize("value", ODD)
def test_a_guarantee_is_printed_upwards(value: float) -> None:
    small = value / 1e8
    said = Guarantee(
        trust=Trust.CENTRAL,
        adjacency=Adjacency.REPLACE_ONE,
        rho=value,
        mu=value,
        epsilon=value,
        delta=small,
        error_bound=small,
        method="gaussian",
        rests_on=[],
        failure=small,
        running=Running(epsilon=value, delta=small, theorem="one"),
    )
    text = guarantee_line(said)
    nearest = 1 - Fraction(1, 10**11)  # a float stands for the short decimal that it is closest to
    for names, true in ((("ε =", "ρ =", "μ ="), value), (("δ =", "failures of"), small)):
        for name in names:
            (number,) = printed(name, text)
            assert Fraction(true) * nearest <= number <= Fraction(true) * 2 + Fraction(1, 10**4)
    odometer = running_line(said)
    assert printed("at most", odometer)[0] >= Fraction(value) * nearest
    assert printed("probability", odometer)[0] >= Fraction(small) * nearest


def test_a_price_is_printed_upwards() -> None:
    events = [{"mechanism": "gaussian", "noise_multiplier": 3}]
    told = event_list({"adjacency": "replace-one", "trust": "central", "events": events})
    price = epsilon_price(told, 1.23454e-6)
    line = _price_line(price)
    assert printed("ε =", line)[0] >= Fraction(price.epsilon)
    assert printed("δ =", line)[0] >= Fraction(price.delta) * (1 - Fraction(1, 10**11))
    assert printed("error bound", line)[0] >= Fraction(price.error_bound) * (1 - Fraction(1, 10**9))


def test_what_is_left_after_a_stop_is_less_what_is_reserved(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    path = tmp_path / "public" / "ledger.db"
    with CentralAccountant(ZCDP(1), users=range(4), ledger=Ledger.create(path)) as account:
        loss = GaussianLoss("0.5")
        paid(account, loss, "sum")
        account.issue(loss, users=range(4), label="waits")
        told = interruption.spent_lines(tmp_path, {})
    assert "of the plan or cap: ρ = 0.5 of 1" in told[1]


# What the remainder buys --------------------------------------------------------------------------


def paid(account: Any, loss: Loss, mechanism: str, users: range | None = None) -> None:
    """Spends a loss whose mechanism releases nothing but noise."""
    token = account.issue(loss, users=users or account.users, label=mechanism)
    spend = Spend(mechanism, Ball(1.0, 2), GaussianNoise(20.0), own_loss=loss)
    with token.spend(spend) as receipt:
        receipt.draw((2,))
        receipt.release(np.zeros(2))


def some_loss(random: Random, size: int, *, pure: bool) -> Loss:
    number = Fraction(random.randint(1, 40), random.randint(100, 999))
    one: Loss = PureLoss(number) if pure else GaussianLoss(number**2)
    kinds: list[Loss] = [one, FailingLoss(one, "1e-7"), LaplaceLoss(number)]
    if not pure:
        later = [(1, one), (size - 1, GaussianLoss(number**2 / 3))]
        kinds += [PerArrivalLoss(later), compose([(LaplaceLoss(number), 2), (one, 1)])]
    return random.choice(kinds)


BUDGETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "zcdp": (ZCDP("0.3"), {}),
    "gdp": (GaussianDP("0.7"), {}),
    "pure": (PureDP(3), {}),
    "renyi": (Renyi({2: "1.1", 8: "5"}), {}),
    "approx": (ApproxDP("0.3", "1e-7"), {"currency": Renyi}),
}


def bought(account: Any, losses: list[Loss]) -> bool:
    """Whether tokens for all of these are issued, which are handed back."""
    tokens = []
    try:
        for loss in losses:
            tokens.append(account.issue(loss, users=account.users, label="more"))
    except InsufficientBudgetError:
        return False
    finally:
        for token in tokens:
            token.retire()
    return True


@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_the_remainder_buys_is_issued_and_not_more(
    kind: str, seed: int, tmp_path: Path
) -> None:
    random, (budget, more) = Random(f"{kind} {seed}"), BUDGETS[kind]
    book, users = Ledger.memory(), range(random.randint(3, 9))
    failure = "1e-8" if kind == "approx" else "1e-4"
    account = CentralAccountant(budget, users=users, ledger=book, failure=failure, **more)
    losses: dict[str, Loss] = {}
    for number in range(4):
        loss = some_loss(random, len(users), pure=kind == "pure")
        try:
            paid(account, loss, f"m{number}")
        except PrivlearnError:
            continue
        losses[f"m{number}"] = loss
    waits: Loss = PureLoss("1/999") if kind == "pure" else GaussianLoss("1/99999")
    account.issue(waits, users=users, label="waits")
    write_export(tmp_path / "l.jsonl", list(book.records))
    (balance,) = report(tmp_path / "l.jsonl").balances
    assert balance.buys
    for purchase in balance.buys:
        if purchase.runs is not None:
            (name,) = re.findall(r"of (m\d) as", purchase.what)
            runs = min(purchase.runs, 200)  # tokens take time
            assert bought(account, [losses[name] * (purchase.runs // runs)] * runs) or (
                isinstance(losses[name], PerArrivalLoss)  # has no multiples
                and bought(account, [losses[name]] * runs)
            )
            if purchase.runs == runs:
                assert not bought(account, [losses[name]] * (runs + 1))
            continue
        (scale,) = re.findall(r"(?:deviation|scale) (\S+) times", purchase.what)
        assert purchase.noise_multiplier is not None
        for multiplier in (Fraction(scale), Fraction(purchase.noise_multiplier)):
            assert bought(account, [_release(kind, multiplier)])
        assert not bought(account, [_release(kind, Fraction(scale) * Fraction(99998, 10**5))])


def _release(kind: str, multiplier: Fraction) -> Loss:
    return LaplaceLoss(1 / multiplier) if kind == "pure" else GaussianLoss(1 / multiplier**2)


def test_of_a_loss_with_many_parts_the_dearest_counts(tmp_path: Path) -> None:
    """Also where it is the last one."""
    size = 300
    parts = [(1, GaussianLoss(Fraction(1, 10**4 + place))) for place in range(size - 1)]
    loss = PerArrivalLoss([*parts, (1, GaussianLoss("0.25"))])
    book = Ledger.memory()
    account = CentralAccountant(ZCDP(1), users=range(size), ledger=book)
    paid(account, loss, "late")
    write_export(tmp_path / "l.jsonl", list(book.records))
    (balance,) = report(tmp_path / "l.jsonl").balances
    assert [one.runs for one in balance.buys if one.runs is not None] == [7]
    assert bought(account, [loss] * 7)
    assert not bought(account, [loss] * 8)


# What is said -------------------------------------------------------------------------------------


def test_an_accountant_speaks_for_itself_where_there_are_others(tmp_path: Path) -> None:
    """Who sees what all of them let out knows more than the sentence of one allows."""
    KINDS["several"](tmp_path / "l.db")
    found = report(tmp_path / "l.db")
    for number, reading in enumerate(found.readings, start=1):
        for text in (reading.sentence, reading.words[0]):
            assert f"all that was released under accountant {number} alone" in text
    (together,) = found.sum_readings
    assert "released under accountants 1 and 2, knows all other records" in together.sentence
    assert "which of two sets of records in all of them a person contributed" in together.sentence
    assert together.guess > max(reading.guess for reading in found.readings)


def test_others_count_also_where_an_index_is_not_theirs(tmp_path: Path) -> None:
    """Index 7 of one may be a person who is index 0 of the other."""
    book = Ledger.memory()
    CentralAccountant(ZCDP(1), users=range(8), ledger=book)
    CentralAccountant(ZCDP(1), users=range(2), ledger=book, shared=True)
    write_export(tmp_path / "l.jsonl", list(book.records))
    (reading,) = report(tmp_path / "l.jsonl", user=7).readings
    assert "all that was released under accountant 1 alone" in reading.sentence


def test_a_page_says_how_many_sums_it_leaves_out(tmp_path: Path) -> None:
    KINDS["several"](tmp_path / "l.db")
    found = report(tmp_path / "l.db")
    many = {
        "sums": found.sums * 60,
        "sums_spent": found.sums_spent * 60,
        "sum_readings": found.sum_readings * 60,
    }
    page = page_html(found.model_copy(update=many))
    assert len(re.findall(r'<data value="10">10</data> more sums over accountants', page)) == 2
    assert "more sums over" not in page_html(found)


def test_what_clients_attest_is_said_under_that_condition(tmp_path: Path) -> None:
    KINDS["attested"](tmp_path / "l.db")
    found = report(tmp_path / "l.db")
    answers = {one.question: one.answer for one in evaluation(found)}
    for reading in found.readings:
        assert reading.words
        assert all(line.startswith("If the clients do what they attest") for line in reading.words)
    assert "AES" not in answers["Where do random numbers come from?"]
    assert "attested by" in next(answer for ask, answer in answers.items() if "ran" in ask)
    bounded = next(answer for ask, answer in answers.items() if "sensitivity" in ask)
    assert "Of what clients attest that is not known." in bounded


def test_an_evaluator_is_told_of_sums_and_of_what_is_not_listed(tmp_path: Path) -> None:
    KINDS["several"](tmp_path / "l.db")
    found = report(tmp_path / "l.db")
    trusted = [f"code {number}" for number in range(40)]
    answers = {
        one.question: one.answer
        for one in evaluation(found.model_copy(update={"trusted_code": trusted}))
    }
    (attack,) = (answer for ask, answer in answers.items() if "attacks" in ask)
    assert "accountants 1 and 2" in attack
    assert "and 10 more" in answers["What has to be taken on trust?"]


def test_a_chart_over_time_is_nowhere_below_what_was_paid(tmp_path: Path) -> None:
    """All that a period paid may have been paid when it began."""
    book = Ledger.memory()
    with clock() as on:
        account = CentralAccountant(ZCDP(1), users=range(2), ledger=book)
        for _ in range(70):  # too many minutes to draw one by one
            paid(account, GaussianLoss("0.01"), "sum")
            on(3)
    write_export(tmp_path / "l.jsonl", list(book.records))
    found = report(tmp_path / "l.jsonl")
    assert any(line.since != line.until for line in found.by_time)
    chart = time_chart(found.by_time, found.balances[0].cap)
    assert chart is not None
    corners = [tuple(map(float, point.split(","))) for point in chart.line.split()]
    for (left, high), (right, low) in pairwise(corners):
        assert left == right or high == low, "it rises where a period begins, and at no other place"
