"""Caps inside an account: every level holds, in each of its epochs, or nothing is charged."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from privlearn import ApproxDP, GaussianDP, NoiseSource, PureDP, Rows
from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.accounts import Accounts
from privlearn.accountants.allowances import Allowances
from privlearn.accountants.audit import certify
from privlearn.checking import assert_budget
from privlearn.checking.budgets import USED, _counted
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    BudgetError,
    CurrencyError,
    InsufficientBudgetError,
    LedgerError,
    UsersError,
)
from privlearn.estimators import PrivateLogisticRegression
from privlearn.learners import NoisySGD
from privlearn.ledger import Ledger, entry_log, write_export
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import IssueEntry
from privlearn.losses import FailingLoss, GaussianLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.people import People
from privlearn.reporting.page import page_html
from privlearn.reporting.report import report
from privlearn.reporting.terminal import print_report
from privlearn.rows.domains import Ball
from privlearn.tables import Category, Number, Schema
from privlearn.values.participation import Participation

N = 12
USERS = range(N)
DAY = 24 * 60
BEGAN = 29_000_160
"""A minute of 2025, at midnight."""
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
PRICE = ZCDP("1/200")
ROWS = Rows.seal(np.ones((N, 2)), users=USERS)


class Clock:
    """Of this host, in minutes."""

    now = BEGAN

    def time(self) -> float:
        return 60.0 * self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(entry_log, "time", SimpleNamespace(time=found.time))
    return found


def account(ledger: Ledger | None = None, spends: int = 100, **more: Any) -> CentralAccountant[Any]:
    noise = NoiseSource.simulation(0)
    book = Ledger.memory() if ledger is None else ledger
    more.setdefault("budget", PRICE * spends)
    return CentralAccountant(users=USERS, ledger=book, noise=noise, **more)


def run(issuer: Any) -> None:
    SUM.release(ROWS, issuer.issue(SUM.loss(), users=USERS, label="sum"))


def verifier(name: str = "verify_ledger") -> ModuleType:
    file = Path(__file__).parents[2] / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Every level holds -----------------------------------------------------------------------------


@dataclass
class Level:
    """What a cap is to the oracle: sums for each user and epoch, from scratch."""

    cap: Fraction
    users: range
    outer: Level | None
    every: int | None = None
    numbers: range | None = None
    charged: dict[tuple[object, int], Fraction] = field(default_factory=dict)

    def out(self) -> Iterator[Level]:
        yield self
        if self.outer is not None:
            yield from self.outer.out()

    def epoch(self, minute: int, number: int) -> object:
        if self.every is not None:
            return (minute - BEGAN) // self.every
        return number if self.numbers is not None else "one"

    def fits(self, users: range, price: Fraction, minute: int, number: int) -> bool:
        return all(
            level.charged.get((level.epoch(minute, number), user), Fraction(0)) + price <= level.cap
            for level in self.out()
            for user in users
        )

    def charge(self, users: range, price: Fraction, minute: int, number: int) -> None:
        for level in self.out():
            for user in users:
                at = level.epoch(minute, number), user
                level.charged[at] = level.charged.get(at, Fraction(0)) + price


def played(seed: int, clock: Clock) -> Iterator[tuple[bool, bool, Ledger, list[tuple[Any, Level]]]]:
    """Random caps and spends: of each whether it was done, and whether the oracle says it fits."""
    random, ledger = Random(seed), Ledger.memory()
    clock.now = BEGAN
    whole = account(ledger, spends=9)
    levels: list[tuple[Any, Level]] = [(whole, Level(PRICE.rho * 9, USERS, None))]
    for number in range(random.randint(2, 5)):
        issuer, outer = random.choice(levels)
        size, first = random.choice([N, 4]), random.randrange(0, N - 3)
        users = USERS if size == N else range(first, first + 4)
        users = users if {*users} <= {*outer.users} else outer.users
        spends = random.randint(1, 6)
        inside = Level(PRICE.rho * spends, users, outer)
        renews: dict[str, Any] = {}
        match random.randrange(3):
            case 1:
                inside.every, renews = random.choice(
                    [(DAY, {"every": "1d"}), (60, {"every": "1h"})]
                )
            case 2:
                inside.numbers, renews = range(3), {"epochs": range(3)}
        with suppress(BudgetError):
            made = issuer.nested(PRICE * spends, label=f"cap {number}", users=users, **renews)
            levels.append((made, inside))
    held: list[tuple[Any, Level, range, int, int]] = []
    for _ in range(30):
        clock.now += random.choice([0, 0, 1, 30, 700])
        issuer, level = random.choice(levels)
        numbered, number = any(one.numbers for one in level.out()), random.randrange(3)
        issuer = issuer.epoch(number) if numbered else issuer
        first = random.randrange(level.users.start, level.users.stop)
        users = range(first, random.randrange(first, level.users.stop) + 1)
        fits = level.fits(users, PRICE.rho, clock.now, number)
        try:
            token = issuer.issue(SUM.loss(), users=users, label="sum")
        except InsufficientBudgetError:
            yield False, fits, ledger, levels
            continue
        yield True, fits, ledger, levels
        level.charge(users, PRICE.rho, clock.now, number)
        if random.random() < 0.2:
            token.retire()
            level.charge(users, -PRICE.rho, clock.now, number)
        elif random.random() < 0.8:
            with token.spend(SUM.spend()):
                pass
        else:
            held.append((token, level, users, clock.now, number))
    for token, level, users, minute, number in held:  # whose epochs may be over
        with suppress(BudgetError):
            if random.random() < 0.5:
                with token.spend(SUM.spend()):
                    continue
        token.retire()
        level.charge(users, -PRICE.rho, minute, number)


SEEDS = range(30)


def test_a_spend_is_done_exactly_if_every_level_has_room_for_it(
    clock: Clock, tmp_path: Path
) -> None:
    module, done = verifier(), [0, 0]
    for seed in SEEDS:
        ledger, levels = Ledger.memory(), list[tuple[Any, Level]]()
        for was, fits, ledger, levels in played(seed, clock):  # noqa: B007 - the last
            assert was is fits, seed
            done[was] += 1
        for issuer, level in levels[1:]:
            stated = issuer._allowance
            most: dict[int, Fraction] = {}
            for (_, user), amount in level.charged.items():
                most[user] = most.get(user, Fraction(0)) + amount
            assert stated.meter.largest().amounts[0] == max([*most.values(), Fraction(0)])
        levels[0][0].close()
        assert certify(ledger.iterate()).problems == []
        path = tmp_path / f"{seed}.jsonl"
        ledger.export(path)
        assert module.verify(path)["problems"] == []
    assert min(done) > 100, done


@pytest.mark.parametrize("broken", ["inside only", "outside only", "one epoch"])
def test_who_checks_fewer_levels_is_caught(
    broken: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Allowances._limits

    def fewer(self: Allowances, name: str, epochs: Any) -> Any:
        limits = list(whole(self, name, epochs))
        if broken == "one epoch":
            part = self[name]
            return iter([("", part.meter), *limits[1:]])
        return iter(limits[:1] if broken == "inside only" else limits[-1:])

    monkeypatch.setattr(Allowances, "_limits", fewer)
    assert any(was is not fits for seed in SEEDS for was, fits, *_ in played(seed, clock))


def test_threads_on_one_file_stay_within_every_level(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    whole = account(Ledger.create(path), spends=10)
    team = whole.nested(PRICE * 6, label="team")
    issuers = [whole, team, *(team.nested(PRICE * 3, label=f"{n}") for n in range(3))]

    def work(number: int) -> int:
        paid = 0
        for turn in range(5):
            with suppress(InsufficientBudgetError):
                run(issuers[(number + turn) % len(issuers)])
                paid += 1
        return paid

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == 10
    assert team.spent() == PRICE * 6
    whole.close()
    assert audit(path).problems == []


# Epochs ----------------------------------------------------------------------------------------


def test_a_cap_renews_by_the_clock_and_the_total_is_told(clock: Clock) -> None:
    whole = account()
    team = whole.nested(PRICE * 2, label="team", every="7d")
    clock.now = BEGAN + 3 * DAY
    for week in range(3):
        run(team)
        run(team)
        with pytest.raises(InsufficientBudgetError, match=f"cap 'team', epoch {week}"):
            run(team)
        clock.now += 7 * DAY
    assert (team.spent(), team.spent_in_all(), team.remaining()) == (ZCDP(0), PRICE * 6, PRICE * 2)
    early = team.issue(SUM.loss(), users=USERS, label="early")
    clock.now += 7 * DAY
    with pytest.raises(BudgetError, match=r"it is epoch 4, which began at .* issue another one"):
        SUM.release(ROWS, early)
    early.retire()
    whole.close()
    (cap,) = whole.certificate(1e-6).caps
    assert (cap.path, cap.every, cap.epochs_charged, cap.charged_in) == (
        ("team",),
        7 * DAY,
        3,
        (0, 2),
    )
    assert cap.share == 1
    # ε of ρ at δ, from the largest over all epochs, and of the six spends together
    spent = whole.certificate(1e-6)
    assert cap.epsilon == cap.most
    assert cap.epsilon is not None
    assert cap.in_all is not None
    assert cap.epsilon < spent.spent[0].epsilon <= cap.in_all < spent.epsilon


def test_a_clock_that_goes_back_is_refused_before_anything_is_spent(clock: Clock) -> None:
    whole = account()
    team = whole.nested(PRICE * 2, label="team", every="1h")
    token = team.issue(SUM.loss(), users=USERS, label="sum")
    clock.now += 1
    run(whole)
    clock.now -= 2  # as the clocks of two hosts may differ
    run(team)
    clock.now -= 5
    entries = whole.ledger.entries_of(whole.id)
    for act in (
        lambda: run(team),
        lambda: SUM.release(ROWS, token),
        lambda: whole.nested(PRICE, label="other", every="1d"),
    ):
        with pytest.raises(LedgerError, match=r"clock is behind .* set the clock"):
            act()
    assert whole.ledger.entries_of(whole.id) == entries
    run(whole)  # what does not renew by the clock needs none


def test_the_owner_of_a_ledger_goes_by_its_own_clock(clock: Clock) -> None:
    """A process whose clock is ahead asks for an epoch that has not begun."""
    whole = account()
    team = whole.nested(PRICE, label="team", every="1d")
    run(team)
    checker = Accounts.read(whole.ledger)
    ahead = IssueEntry(
        accountant=whole.id,
        token="t",
        label="sum",
        users=(0, N),
        budget=PRICE.to_dict(),
        allowance=team.id,
        epochs=(1,),
    )
    with pytest.raises(BudgetError, match="it is epoch 0"):
        checker.check(ahead, BEGAN + 5)
    checker.check(ahead, BEGAN + DAY)


# Bad input -------------------------------------------------------------------------------------

Asked = Callable[[Any, Any], Any]
"""Of an account, and a cap of 10 inside it that renews each week."""
REFUSED: dict[str, tuple[Asked, type[Exception], str]] = {
    "larger than the account's": (
        lambda a, _: a.nested(PRICE * 101, label="x"), BudgetError, "larger than that of the acc"
    ),
    "larger than the cap's": (
        lambda _, w: w.nested(PRICE * 11, label="x"), BudgetError, "larger than that of cap 'week'"
    ),
    "failure larger": (
        lambda _, w: w.nested(PRICE, label="x", failure="1e-9"), BudgetError, "failure"
    ),
    "another currency": (
        lambda a, _: a.nested(PureDP(".1"), label="x"), CurrencyError, "counts in ZCDP.*share"
    ),
    "gaussian": (lambda a, _: a.nested(GaussianDP(".1"), label="x"), CurrencyError, "ZCDP"),
    "nothing": (lambda a, _: a.nested(ZCDP(0), label="x"), BudgetError, "pay for nothing"),
    "other users": (
        lambda a, _: a.nested(PRICE, label="x", users=range(5)).nested(
            PRICE, label="y", users=range(3, 7)
        ),
        UsersError,
        r"range\(0, 5\)",
    ),
    "overlapping epochs": (
        lambda _, w: w.nested(PRICE, label="x", every="2d"), BudgetError, "overlap"
    ),
    "longer epochs": (
        lambda _, w: w.nested(PRICE, label="x", every="14d"), BudgetError, "overlap"
    ),
    "other numbers": (
        lambda a, _: a.nested(PRICE, label="n", epochs=range(3)).nested(
            PRICE, label="m", epochs=range(2, 5)
        ),
        BudgetError,
        "must be among",
    ),
    "two ways": (
        lambda a, _: a.nested(PRICE, label="x", every="1d", epochs=range(2)), BudgetError, "give"
    ),
    "no time": (lambda a, _: a.nested(PRICE, label="x", every="7 days"), ValueError, "every ="),
    "no label": (lambda a, _: a.nested(PRICE, label=""), ValueError, "label"),
    "other terms": (
        lambda a, _: a.nested(PRICE * 9, label="week", every="7d"), BudgetError, "with budget"
    ),
    "other epochs": (
        lambda a, _: a.nested(PRICE * 10, label="week", every="1d"), BudgetError, "with every"
    ),
    "closed": (
        lambda a, w: (w.close(), a.nested(PRICE * 10, label="week", every="7d")),
        BudgetError,
        "was closed",
    ),
    "out of a closed one": (
        lambda _, w: (
            inner := w.nested(PRICE, label="x"),
            w.close(),
            inner.issue(PRICE, users=USERS, label="x"),
        ),
        BudgetError,
        "inside of was returned before",
    ),
    "no number": (
        lambda a, _: run(a.nested(PRICE, label="n", epochs=range(3))), BudgetError, r"epoch\(number"
    ),
    "a number of none": (lambda _, w: w.epoch(3), BudgetError, "epoch = 3"),
    "a number that is no integer": (
        lambda a, _: a.nested(PRICE, label="n", epochs=range(3)).epoch(2.0),
        BudgetError,
        "epoch = 2.0",
    ),
    "beyond the numbers": (
        lambda a, _: a.nested(PRICE, label="n", epochs=range(3)).epoch(3), BudgetError, "epoch = 3"
    ),
    "too deep": (
        lambda a, _: reduce(lambda inside, n: inside.nested(PRICE, label=str(n)), range(65), a),
        BudgetError,
        "at most 64 deep",
    ),
    "a plan": (lambda a, _: a.commit([Plan("x", SUM.loss(), USERS)]), BudgetError, "plan"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_hold_is_refused_by_name_and_nothing_is_spent(name: str, clock: Clock) -> None:
    whole = account()
    week = whole.nested(PRICE * 10, label="week", every="7d")
    act, kind, says = REFUSED[name]
    with pytest.raises(kind, match=says):
        act(whole, week)
    assert whole.spent() == ZCDP(0)
    whole.close()
    assert certify(whole.ledger.iterate()).problems == []


def test_beside_a_plan_there_is_no_cap() -> None:
    whole = account()
    whole.commit([Plan("x", SUM.loss(), USERS)])
    with pytest.raises(BudgetError, match="a plan is exhaustive"):
        whole.nested(PRICE, label="x")


# Going on, learners, other budgets ----------------------------------------------------------------


def test_after_a_restart_a_cap_is_found_again_with_what_was_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path)
    team = account(ledger).nested(PRICE * 4, label="company").nested(PRICE * 2, label="team")
    run(team)
    team.issue(SUM.loss(), users=USERS, label="lost").spend(SUM.spend())
    ledger.close()
    whole = CentralAccountant[ZCDP].resume(path, noise=NoiseSource.simulation(0))
    company = whole.nested(PRICE * 4, label="company")
    again = company.nested(PRICE * 2, label="team")
    assert (again.id, again.spent(), company.remaining()) == (team.id, PRICE * 2, PRICE * 2)
    with pytest.raises(InsufficientBudgetError, match="cap 'company/team'"):
        run(again)
    run(company)
    whole.close()
    found = audit(path)
    assert (found.problems, found.lost) == ([], 1)


def test_parts_and_caps_stand_inside_each_other_and_learners_spend_from_them() -> None:
    whole = account(budget=ZCDP(1))
    with whole.delegate(ZCDP("1/2"), users=USERS, label="part") as part:
        inner = part.nested(ZCDP("1/4"), label="inner")
        fit = NoisySGD(2, passes=2).start(inner)
        fit.partial_fit(np.full((N, 2), 0.25), np.ones(N))
        assert ZCDP("1/5").rho < inner.spent().rho <= ZCDP("1/4").rho
        assert part.spent() == inner.spent()
        assert whole.spent() == ZCDP("1/2")
        assert_budget(whole.ledger, at_most=ZCDP(1))
        used = _counted(whole._state, USED)
        assert sum(used.of(0).values()) == 1  # the part, and nothing that comes out of it
    assert whole.spent() == inner.spent()
    whole.close()
    assert certify(whole.ledger.iterate()).problems == []


def test_a_part_of_a_cap_is_reserved_at_every_level_and_is_for_its_epoch(clock: Clock) -> None:
    whole = account()
    team = whole.nested(PRICE * 3, label="team", every="1d")
    part = team.delegate(PRICE * 2, users=USERS, label="part")
    run(part)
    assert (team.spent(), whole.spent(), part.remaining()) == (PRICE * 2, PRICE * 2, PRICE)
    with pytest.raises(InsufficientBudgetError, match="cap 'team', epoch 0"):
        team.delegate(PRICE * 2, users=USERS, label="other")
    held = part.issue(SUM.loss(), users=USERS, label="held")
    clock.now += DAY
    with pytest.raises(BudgetError, match="it is epoch 1"):
        SUM.release(ROWS, held)
    with pytest.raises(BudgetError, match="it is epoch 1"):
        run(part)
    run(team)
    team.close()
    part.close()
    assert (team.spent_in_all(), whole.spent()) == (PRICE * 3, PRICE * 3)
    held.retire()  # it was charged in the epoch in which its part was reserved
    assert [meter.largest() for meter in team._allowance.epochs.values()] == [PRICE, PRICE]
    assert (team.spent_in_all(), whole.spent()) == (PRICE * 2, PRICE * 2)
    whole.close()
    assert certify(whole.ledger.iterate()).problems == []


def test_estimators_fit_within_a_cap() -> None:
    whole = account(budget=GaussianDP(2))
    team = whole.nested(GaussianDP(1), label="team")
    schema = Schema({"a": Number(0, 1), "b": Number(0, 1), "y": Category([0, 1])}, target="y")
    to_one = np.linspace(0, 1, N)
    rows = pd.DataFrame({"a": to_one, "b": to_one**2, "y": [0, 1] * (N // 2)})
    fit = PrivateLogisticRegression(ApproxDP(0.5, 1e-5), schema=schema, accountant=team)
    assert fit.fit(rows).predict(rows).shape == (N,)
    spent = team.spent()
    assert 0 < spent.amounts[0] == whole.spent().amounts[0]
    assert not team.closed
    fit.fit(rows)
    assert team.spent() == spent * 2


def test_failures_and_promises_have_caps_of_their_own() -> None:
    whole = account(budget=ApproxDP(3, "1e-5"), failure="2e-6")
    team = whole.nested(ApproxDP(1, "1e-5"), label="team", failure="1e-6")
    loss = FailingLoss(GaussianLoss("1e-4"), "6e-7")
    team.issue(loss, users=USERS, label="one")
    with pytest.raises(InsufficientBudgetError, match=r"cap 'team'.*failure"):
        team.issue(loss, users=USERS, label="two")
    whole.issue(loss, users=USERS, label="two")
    (cap,) = whole.certificate().caps
    assert cap.epsilon is not None
    assert 0.9 < cap.epsilon < 1.1


def test_a_person_with_all_visits_stays_within_every_level(tmp_path: Path) -> None:
    rule = Participation(2, apart=4)
    people = People.memory(rule)
    whole = account(people=people, spends=100)
    team = whole.nested(PRICE * 3, label="team", epochs=range(2))
    for first in (0, 4):
        team.epoch(0).issue(SUM.loss(), users=range(first, first + 4), label="sum")
    # a person can be in two of the three, whoever it is: ρ of one each
    team.epoch(0).issue(SUM.loss(), users=range(8, 12), label="sum")
    team.epoch(0).issue(SUM.loss(), users=range(4), label="sum")
    with pytest.raises(InsufficientBudgetError, match="epoch 0"):
        team.epoch(0).issue(SUM.loss(), users=range(4), label="sum")
    team.epoch(1).issue(SUM.loss(), users=range(4), label="sum")
    whole.close()
    path = tmp_path / "ledger.jsonl"
    whole.ledger.export(path)
    assert certify(whole.ledger.iterate()).problems == []
    sys.modules["verify_ledger"] = verifier()
    assert verifier("verify_persons").verify(path)["problems"] == []


# Who audits ------------------------------------------------------------------------------------

Bodies = list[dict[str, Any]]


def _of(bodies: Bodies, kind: str) -> dict[str, Any]:
    return next(body for body in bodies if body["entry"] == kind)


LIES: dict[str, tuple[Callable[[Bodies], object], str]] = {
    "a spend in an epoch to come": (lambda b: _of(b, "issue").update(epochs=[1]), "it is epoch 0"),
    "no epoch": (lambda b: _of(b, "issue").pop("epochs"), "must be one for each"),
    "a smaller cap": (lambda b: _of(b, "cap")["budget"].update(rho="1/300"), "budget exceeded"),
    "a cap larger than the account's": (
        lambda b: _of(b, "cap")["budget"].update(rho="9"),
        "larger than that of the account",
    ),
    "a cap that begins later": (
        lambda b: _of(b, "cap").update(since="2200-01-01T00:00Z"),
        "epoch",
    ),
    "out of no cap": (lambda b: _of(b, "issue").update(allowance="none"), "never delegated"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_about_caps_are_problems_of_both_verifiers(name: str, tmp_path: Path) -> None:
    whole = account()
    run(whole.nested(PRICE, label="team", every="1d"))
    whole.close()
    bodies = [record.body for record in whole.ledger.records]
    change, says = LIES[name]
    change(bodies)
    ext = {n: entry.ext() for n, entry in enumerate(whole.ledger.entries) if entry.ext()}
    records = chained(bodies, ext)
    found = certify(records)
    assert any(says in problem for problem in found.problems + found.consequences)
    path = tmp_path / "lie.jsonl"
    write_export(path, records)
    assert verifier().verify(path)["problems"]


def test_names_and_epochs_stand_on_the_page_and_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with CentralAccountant(PRICE * 9, users=USERS, ledger=path) as whole:
        company = whole.nested(PRICE * 6, label="company")
        run(company.nested(PRICE * 3, label="team <b>", every="7d"))
        run(company.nested(PRICE * 3, label="site", epochs=range(4)).epoch(2))
    told = report(path)
    page = page_html(told)
    assert "company/team &lt;b&gt;" in page
    assert "every 7 d from " in page
    assert "epochs 0..3; 1 charged, 2" in page
    shown = io.StringIO()
    print_report(told, Console(file=shown, width=200), full=True)
    assert re.search(r"company/site +0\.\.11 +epochs 0\.\.3; 1 charged, 2", shown.getvalue())
