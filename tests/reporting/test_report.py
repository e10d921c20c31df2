"""What the views of a report state agrees, and is what brute force finds in the entries."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from random_ledgers import CAPS, FIRST_MINUTE, KINDS, ORDERS, Known, Told, random_records, told_by
from rich.console import Console
from typer.testing import CliRunner

from privlearn.cli.main import app
from privlearn.ledger import write_export
from privlearn.ledger.chain import text_of_minute
from privlearn.reporting.report import Balance, Report, Spent, report
from privlearn.reporting.shown_numbers import down, up
from privlearn.reporting.terminal import print_report
from privlearn.reporting.visible import visible

SEEDS = (0, 1, 2, 3, 4, 5, 6, 8, 11, 13, 17, 20)
"""Together they have every kind of cap, plans, allowances, streams, failures and claims."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export for each seed."""
    made = tmp_path_factory.mktemp("ledgers")
    for seed in SEEDS:
        write_export(made / f"{seed}.jsonl", random_records(seed))
    return made


def binding(told: Told) -> int:
    """The order that is used up first; of equal ones, the one where Gaussian noise fits least."""
    most = [max(cost.amounts[k] for cost in told.charged.values()) for k in range(len(told.cap))]
    orders = ORDERS if told.kind == "renyi" else (Fraction(1),)
    return max(range(len(told.cap)),
               key=lambda k: (most[k] / told.cap[k], orders[k] / told.cap[k]))  # fmt: skip


def whose(told: Told, term: int) -> int:
    """The most charged user; of a closed plan, the one on whom most was spent."""
    if told.closed and told.planned:
        return max(told.users, key=lambda user: (told.spent(user).amounts[term], -user))
    return max(told.users, key=lambda user: (told.charged[user].amounts[term], -user))


def assert_balance(balance: Balance, told: Told, asked: int | None) -> None:
    term = binding(told)
    user = whose(told, term) if asked is None else asked
    charged, spent = told.charged[user].amounts[term], told.spent(user).amounts[term]
    if told.closed:
        charged = spent
    assert balance.user == user
    exactly = Fraction(balance.spent or 0), Fraction(balance.reserved or 0)
    assert 0 <= exactly[0] - spent <= spent / 2**52
    assert 0 <= exactly[1] - (charged - spent) <= charged / 2**52
    left = told.cap[term] - charged
    assert balance.remaining is not None
    assert 0 <= left - Fraction(balance.remaining) <= left / 2**52
    assert balance.cap == float(told.cap[term])
    assert balance.unknown == ""
    if not told.failure:
        assert balance.failing is None
        return
    failing = balance.failing
    assert failing is not None
    assert failing.user is not None
    ours = [told.charged[u].failure for u in told.users]
    if asked is None and not told.closed:
        assert told.charged[failing.user].failure == max(ours)
    paid, held = told.spent(failing.user).failure, told.charged[failing.user].failure
    held = paid if told.closed else held
    assert (failing.spent, failing.reserved) == pytest.approx((float(paid), float(held - paid)))
    assert failing.remaining == pytest.approx(float(told.failure - held), rel=1e-12)


def most_of(spends: list[Known], term: int) -> float:
    paid: dict[int, Fraction] = defaultdict(Fraction)
    for spend in spends:
        for user, cost in spend.costs.items():
            paid[user] += cost.amounts[term]
    return float(max(paid.values(), default=Fraction(0)))


def assert_lines(
    lines: list[Spent], told: Told, spends: list[Known], name: Callable[[Known], object]
) -> None:
    term = binding(told)
    groups: dict[object, list[Known]] = defaultdict(list)
    for spend in spends:
        groups[name(spend)].append(spend)
    found = {(line.mechanism, line.label): line for line in lines}
    assert len(found) == len(lines)
    assert found.keys() == groups.keys()
    for key, mine in groups.items():
        line = found[key]  # type: ignore[index]
        most = most_of(mine, term)
        assert line.spends == len(mine)
        assert line.most == pytest.approx(most, rel=1e-12)
        assert line.of_cap == pytest.approx(most / float(told.cap[term]), rel=1e-12)
        times = [spend.minute for spend in mine]
        assert (line.since, line.until) == (text_of_minute(min(times)), text_of_minute(max(times)))


def test_the_ledgers_are_of_every_kind() -> None:
    accounts = [told for seed in SEEDS for told in told_by(random_records(seed))]
    assert {told.kind for told in accounts} == set(CAPS)
    assert {told.closed for told in accounts} == {True, False}
    assert {told.planned for told in accounts} == {True, False}
    assert any(told.failure for told in accounts)
    kinds = {record.body["entry"] for seed in SEEDS for record in random_records(seed)}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_report_is_what_brute_force_finds(seed: int, folder: Path) -> None:
    records, random = random_records(seed), Random(seed)
    accounts = told_by(records)
    user = random.choice([None, 0, 3])
    label = random.choice([None, "week"])
    minute = random.choice([None, FIRST_MINUTE + 3000])
    since = None if minute is None else text_of_minute(minute)
    found = report(folder / f"{seed}.jsonl", user=user, label=label, since=since)
    assert found.problems == []
    assert found.exit_code == 0
    assert len(found.balances) == len(accounts)
    for number, (balance, told) in enumerate(zip(found.balances, accounts, strict=True), 1):
        assert_balance(balance, told, user)
        asked = [
            Known(s.seq, s.minute, s.mechanism, s.label,
                  s.costs if user is None else {u: c for u, c in s.costs.items() if u == user})
            for s in told.spends
            if (user is None or user in s.costs)
            and (label is None or s.label == label)
            and (minute is None or s.minute >= minute)
        ]  # fmt: skip

        def of(lines: list[Spent], number: int = number) -> list[Spent]:
            return [line for line in lines if line.accountant == number]

        assert_lines(of(found.by_label), told, asked, lambda s: (None, s.label))
        assert_lines(of(found.by_mechanism), told, asked, lambda s: (s.mechanism, None))
        assert_lines(
            of(found.by_mechanism_and_label), told, asked, lambda s: (s.mechanism, s.label)
        )
        assert_lines(of(found.total), told, asked, lambda s: (None, None))
        assert sum(line.spends for line in of(found.by_time)) == len(asked)
        whole = max((line.most or 0 for line in of(found.by_user_range)), default=0.0)
        assert whole == pytest.approx(most_of(asked, binding(told)), rel=1e-12)
        if found.asked:
            entries = [one.entry for one in found.listed if one.accountant == number]
            assert entries == [spend.seq for spend in asked]
    assert found.unspent_tokens == sum(told.unspent for told in accounts)


def one_space(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("seed", SEEDS[::2])
def test_terminal_and_json_state_the_same(seed: int, folder: Path) -> None:
    path = folder / f"{seed}.jsonl"
    found = report(path)
    told = CliRunner().invoke(app, ["audit", str(path), "--json"])
    assert told.exit_code == found.exit_code
    assert Report.model_validate_json(told.output) == found
    assert json.loads(told.output) == json.loads(found.model_dump_json())
    page = StringIO()
    print_report(found, Console(file=page, width=400))
    shown = one_space(page.getvalue())
    stated = [found.verdict, found.head, *found.weaknesses]
    for reading in found.readings:
        stated.append(f"in plain words {reading.sentence}")
    for balance in found.balances:
        stated += [
            f"budget cap {balance.unit} = {up(balance.cap)}",
            f"spent {up(balance.spent)} (user {balance.user}",
            f"reserved {up(balance.reserved)}",
            f"remaining {down(balance.remaining)}",
            *(purchase.what for purchase in balance.buys),
        ]
    for line in found.by_mechanism_and_label:
        part = "" if line.of_cap is None else f"{line.of_cap:.1%}"
        stated.append(f"{line.mechanism} {line.label} {line.spends} {up(line.most)} {part}")
    for token in found.open_tokens:
        stated.append(f"{token.token} {token.label} ")
    for text in stated:
        assert one_space(visible(text)) in shown, text
